/* tune_inside.h: what the files of `weir tune` share: tune.c decides, tune_device.c times the steps
 * of a GPU. */
#ifndef WEIR_BENCH_TUNE_INSIDE_H
#define WEIR_BENCH_TUNE_INSIDE_H

#include "bench/step_rig.h"
#include "bench/tune.h"

enum { WAYS = 1 + OP_VARIANTS }; /* the default first */

/* Operations of one kind and shape. */
struct group {
    const struct op *op; /* the first of them */
    char shape[OP_SIGNATURE];
    uint32_t calls;
    bool done[ROW_CLASSES];
    /* of the phase in progress; ways == 0: not in it */
    enum row_class rows;
    struct variant variant[WAYS];
    uint32_t ways, best;
    double us[WAYS][TUNE_ROUNDS];
    uint32_t way; /* of the next step ... */
    bool counts;  /* ... whose time is a sample */
};

struct tuner {
    const struct tune_options *o;
    struct tune_report *out;
    struct step_rig rig;
    struct group *group;
    uint32_t n_groups;
    uint32_t *group_of;       /* [n_ops]; UINT32_MAX: its column has no variants of it */
    double *begin;            /* [n_ops + 1] us */
    struct runner_feed *feed; /* [sequences] */
    /* of the phase in progress */
    bool decode;
    uint32_t rows;
    uint32_t done, of; /* rounds */
};

/* Every operation goes by the way that its group is set to. */
weir_status tune_choose(struct tuner *t, weir_error *err);
/* Behind a round. */
void tune_next_round(struct tuner *t);

/* On a device an operation has no time of its own: a sample is the time of the whole step's graph
 * with one group by one way, less that of the graph without the group. Samples of all ways of all
 * groups of the phase, and whole steps by default (ms). */
weir_status tune_device_all(struct tuner *t, double *ms, weir_error *err);
/* The best way of each group beside its default; whole steps by default and all by their best. */
weir_status tune_device_best(struct tuner *t, double ms[2][TUNE_ROUNDS], weir_error *err);

#endif
