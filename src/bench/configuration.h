/* configuration.h: what makes a run the run it is, as one flat JSON object, and a short name for
 * it, so that repeats are recognised. */
#ifndef WEIR_BENCH_CONFIGURATION_H
#define WEIR_BENCH_CONFIGURATION_H

#include "trace/run.h"

enum { FINGERPRINT_BYTES = 33 }; /* 32 hex digits and NUL */

/* The subject's fields, concurrency, dataset, scales and every option of the run; objects within
 * become "outer.inner", dashes underscores. Unknown ones are left out. What the
 * server told of its own settings stands as "server.KEY". NULL without memory. */
json_t *configuration_of(const struct run *r);
/* Does the key name software, which changes while a configuration stays the same? */
bool configuration_is_version(const char *key);
/* Does it say where or under which name something is kept, and not what was measured? */
bool configuration_is_incidental(const char *key);
/* Equal for equal configurations; versions and incidental keys do not enter, and of what the server
 * told only settings that are known to be chosen and not found out (threads, max_num_seqs ...). */
weir_status configuration_fingerprint(const json_t *configuration, char out[FINGERPRINT_BYTES],
                                      weir_error *err);
/* The versions alone, as one text: "framework_version=0.16;image=..." ; free(). NULL: no memory. */
char *configuration_version(const json_t *configuration);
/* Is a result of the real thing: no time or length scale. */
bool run_is_unscaled(const struct run *r);

#endif
