/* invented.h: a sweep of synthetic runs that has one of everything a report can show. */
#ifndef WEIR_TESTS_BENCH_INVENTED_H
#define WEIR_TESTS_BENCH_INVENTED_H

#include "tests/bench/synthetic.h"

enum trait {
    TRAIT_SCALED = 1,
    TRAIT_CANCELLED = 2,
    TRAIT_FAILING = 4, /* more than one in ten */
    TRAIT_DRAFTS = 8,
    TRAIT_SILENT = 16, /* no metrics of the server */
    TRAIT_OTHER_MACHINE = 32,
};
void invent(struct run *out, const char *label, double slower, uint32_t lanes, double seconds,
            unsigned traits);

#define HOSTILE_LABEL "off <img src=x onerror=alert(1)> & \"quotes\""

/* The sweep, written into dir/NAME each; exits the program on failure. Returns how many. */
size_t invent_sweep(const char *dir);

#endif
