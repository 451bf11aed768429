/* error.h: how a failure travels. The caller owns the weir_error; whoever finds the fault fills it
 * once and returns its code. */
#ifndef WEIR_BASE_ERROR_H
#define WEIR_BASE_ERROR_H

#include "weir.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Fills *err (which may be NULL) and returns `code`, so that a fault reads `return weir_fail(err,
 * WEIR_BAD_FILE, path, "...")`. Text that does not fit is cut at a character border. */
weir_status weir_fail(weir_error *err, weir_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* For faults of the programmer only, never of input; stays on in release builds. */
#define WEIR_ASSERT(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "weir: internal fault at %s:%d: %s\n", __FILE__, __LINE__,             \
                    #condition);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
