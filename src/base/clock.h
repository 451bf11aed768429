/* clock.h: monotonic time. The engine takes its clock from here alone, so that a simulator can put
 * a virtual one in its place. */
#ifndef WEIR_BASE_CLOCK_H
#define WEIR_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);    /* monotonic */
double clock_seconds(void); /* the same, in seconds */
int64_t clock_unix(void);   /* seconds since 1970 */

#endif
