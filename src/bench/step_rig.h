/* step_rig.h: a model opened to have its steps timed: weights laid out for a column, a runner with
 * a team, and invented ids. Shared by `weir bench step` and `weir tune`. */
#ifndef WEIR_BENCH_STEP_RIG_H
#define WEIR_BENCH_STEP_RIG_H

#include "forward/runner.h"

struct step_rig_options {
    struct tuning_for of;          /* model, column, formats and threads */
    const char *tuning;            /* which table is used: tuning_choose */
    uint32_t sequences, positions; /* of the runner */
    uint32_t rows, prompt_tokens;
    struct gpu_device *device; /* for column_gpu; NULL: this machine computes */
};
struct step_rig {
    struct model m;
    struct weights *w;
    struct runner *r;
    struct step_program *program; /* of the runner */
    const struct op *op;
    uint32_t n_ops;
    int32_t *ids; /* [prompt_tokens] */
};

/* Whatever comes back, the rig is to be closed. WEIR_BAD_FILE and what else opening a model gives;
 * WEIR_NO_MEMORY. */
weir_status step_rig_open(const struct step_rig_options *o, struct step_rig *out, weir_error *err);
void step_rig_close(struct step_rig *g);

#endif
