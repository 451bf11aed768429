/* threads.h: `weir bench threads`: what the thread team costs, on a machine to itself and beside a
 * busy neighbour on one of its cores. */
#ifndef WEIR_BENCH_THREADS_H
#define WEIR_BENCH_THREADS_H

#include "base/error.h"
#include "bench/kernels_idle.h"

#include <jansson.h>

/* How the members of a fork-join step share its units, and how they wait for each other. */
enum threads_way {
    THREADS_CLAIMED, /* the team's barrier; units claimed as members come to them */
    THREADS_FIXED,   /* the team's barrier; an equal share each */
    THREADS_POLLING, /* an equal share each, and a barrier that polls and never sleeps, always all
                        of them: for comparison, nothing in an engine waits like this */
    THREADS_WAYS
};
enum { THREADS_ITEMS = 3, THREADS_ROUNDS = 9 };

struct threads_options {
    uint32_t threads;
    double seconds;      /* of one sample */
    double wait_seconds; /* before each round, for the machine to be idle; 0: none */
    uint32_t rounds;
};

/* Samples of one figure, alone and beside the neighbour, taken in turn. */
struct threads_pair {
    double quiet[THREADS_ROUNDS], busy[THREADS_ROUNDS];
    double quiet_median, busy_median;
};

struct threads_report {
    uint32_t threads, cores, neighbour; /* neighbour: the core that its loop is bound to */
    uint32_t rounds;
    struct threads_pair barrier_us[2]; /* of THREADS_FIXED and THREADS_POLLING; mean of a sample */
    double wake_us; /* from team_run to the last member's first instruction, all asleep before */
    double item_us[THREADS_ITEMS]; /* what a member computes between two barriers */
    struct threads_pair steps[THREADS_ITEMS][THREADS_WAYS]; /* steps a second */
    double parks[THREADS_ITEMS][THREADS_WAYS];   /* sleeps per step and member, alone; median */
    double members[THREADS_ITEMS][THREADS_WAYS]; /* that took part, beside the neighbour; median */
    struct idle_share before, after;
};

/* WEIR_NO_MEMORY: threads could not be started. */
weir_status threads_measure(const struct threads_options *o, struct threads_report *out,
                            weir_error *err);
const char *threads_way_name(enum threads_way way);
/* NULL without memory. */
json_t *threads_json(const struct threads_report *r);

#endif
