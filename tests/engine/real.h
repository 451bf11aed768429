/* real.h: engines over the real models, for the tests that compare their answers. */
#ifndef WEIR_TESTS_ENGINE_REAL_H
#define WEIR_TESTS_ENGINE_REAL_H

#include "tests/test.h"

#include "weir.h"

/* `model` below the sources; the test fails where it cannot be opened. */
static inline weir_engine *open_engine(const char *model, const weir_options *o) {
    weir_engine *e;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(model));
    if (weir_open(dir, o, &e, &err))
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

#endif
