/* real.h: engines over the real models, for the tests that compare their answers. */
#ifndef WEIR_TESTS_ENGINE_REAL_H
#define WEIR_TESTS_ENGINE_REAL_H

#include "tests/test.h"

#include "base/clock.h"

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

/* Waits for the step that was under way when the last answer ended: until it comes back it holds
 * the pages and the state that it writes. The figures of then. */
static inline weir_stats when_idle(weir_engine *e) {
    weir_stats s;
    double limit = clock_seconds() + 60;
    do {
        weir_get_stats(e, &s);
        assert_true(clock_seconds() < limit);
    } while (s.running + s.waiting + s.pages_used + s.slots_used > 0);
    return s;
}

#endif
