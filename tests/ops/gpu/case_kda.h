/* case_kda.h: what cases of Kimi Delta Attention have in common: projections and weights at random,
 * a pool of states in both layouts, and what the recurrence of ops/ref makes of them. */
#ifndef WEIR_TESTS_OPS_GPU_CASE_KDA_H
#define WEIR_TESTS_OPS_GPU_CASE_KDA_H

#include "tests/ops/gpu/cases.h"

struct case_kda {
    struct case_rows q, k, v, go, z, b, out;
    float *taps_of[3], *ea, *dt, *o_norm;
    float *state; /* of the layer, in the kernel's layout */
    size_t slot_floats;
    float *device; /* where the pool begins */
    size_t layer_floats;
    struct state_pool host; /* as the reference leaves it */
    struct op_kda op;
    uint32_t slots;
};

/* In memory of the case; its `own` and `worst` are set. */
struct case_kda *case_kda_open(struct gpu_case *c, uint32_t rows, uint32_t heads, uint32_t dim,
                               uint32_t taps, bool softplus, uint32_t slots);
/* The kernel's record but for the sequences. */
struct gpu_kda_step case_kda_step_record(const struct case_kda *o);
/* Outputs and states that the batch leaves. */
void case_kda_want(struct gpu_case *c, struct case_kda *k, const struct batch *b);

#endif
