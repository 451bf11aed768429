/* kda.h: what the files of Kimi Delta Attention share: one head of one sequence, what its tokens
 * bring, and the memory that is fetched ahead. kda.c holds convolution, norms, gates and output,
 * kda_step.c the recurrence, kda_chunk.c and kda_factor.c the chunked form. */
#ifndef WEIR_OPS_CPU_KDA_H
#define WEIR_OPS_CPU_KDA_H

#include "ops/cpu/kernels.h"

#define cpu_kda_head_bytes ISA_NAME(kda_head_bytes)
#define cpu_kda_head       ISA_NAME(kda_head)
#define cpu_kda_tokens     ISA_NAME(kda_tokens)
#define cpu_kda_output     ISA_NAME(kda_output)
#define cpu_kda_put_window ISA_NAME(kda_put_window)
#define cpu_kda_reads      ISA_NAME(kda_reads)
#define cpu_kda_sweep      ISA_NAME(kda_sweep)
#define cpu_kda_flow_bytes ISA_NAME(kda_flow_bytes)
#define cpu_kda_flow_open  ISA_NAME(kda_flow_open)
#define cpu_kda_flow_head  ISA_NAME(kda_flow_head)
#define cpu_kda_flow_close ISA_NAME(kda_flow_close)
#define cpu_kda_factors    ISA_NAME(kda_factors)

/* Rows of scratch are whole pairs of vectors at every instruction set. */
ALWAYS uint32_t kda_width(uint32_t dim) {
    return round_up(dim, 32);
}

/* Rows wanted soon, brought into the second-level cache one by one between arithmetic, so that
 * memory never idles while a core computes. What is not fetched is only late. */
enum { AHEAD_ROWS = 192 };
struct ahead {
    const float *row[AHEAD_ROWS];
    uint32_t n, next, floats;
};

ALWAYS void ahead_open(struct ahead *a, uint32_t floats) {
    a->n = a->next = 0;
    a->floats = floats;
}
ALWAYS void ahead_add(struct ahead *a, const float *row) {
    if (a->n < AHEAD_ROWS)
        a->row[a->n++] = row;
}
/* `rows` rows, `stride` floats apart. */
ALWAYS void ahead_rows(struct ahead *a, const float *row, size_t stride, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++)
        ahead_add(a, row + i * stride);
}
ALWAYS void ahead_fetch(struct ahead *a) {
    if (a->next >= a->n)
        return;
    const float *row = a->row[a->next++];
    if (a->floats == 128) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 128; i += 16)
            __builtin_prefetch(row + i, 0, 2);
        return;
    }
    for (uint32_t i = 0; i < a->floats; i += 16)
        __builtin_prefetch(row + i, 0, 2);
}

/* One head of one sequence while an operation works on it. */
struct kda_head {
    const struct op_kda *op;
    const struct batch_seq *seq;
    uint32_t head, dim, width; /* width: kda_width(dim); scratch rows have it */
    float *taps[3];            /* [taps][width] each: q, k, v */
    float *window;             /* [3][taps-1][width], as it was before the first row */
};

/* What tokens bring to the recurrence, after convolution, norms and gates: rows of `width` floats,
 * zero beyond dim (decay: any value of (0, 1]). */
struct kda_tokens {
    float *q, *k, *v, *decay, *beta;
};

size_t cpu_kda_head_bytes(const struct op_kda *op);
void cpu_kda_head(struct kda_head *h, const struct op_kda *op, const struct batch_seq *seq,
                  uint32_t head, unsigned char **scratch);
/* Rows [row, row + rows) of the sequence to the first rows of t. */
void cpu_kda_tokens(const struct kda_head *h, uint32_t row, uint32_t rows,
                    const struct kda_tokens *t, struct ahead *ahead);
/* The gated norm of o into the output row. */
void cpu_kda_output(const struct kda_head *h, uint32_t row, const float *o);
/* The convolution window after `rows` rows, into a slot. */
void cpu_kda_put_window(const struct kda_head *h, uint32_t rows, int32_t slot);

ALWAYS float *kda_state(const struct op_kda *op, int32_t slot, uint32_t head) {
    return op->pool->data + (size_t)slot * op->pool->slot_floats +
           (size_t)op->layer * op->pool->layer_floats + (size_t)head * op->dim * op->dim;
}
/* [3][taps-1][heads*dim] */
ALWAYS float *kda_window(const struct op_kda *op, int32_t slot) {
    return kda_state(op, slot, op->heads);
}
ALWAYS struct tensor kda_projection(const struct op_kda *op, int part) {
    return part == 0 ? op->q : part == 1 ? op->k : op->v;
}

/* One token on its way through `cols` columns of a state whose rows are `stride` floats apart:
 * `in` is read and `out` written, they may be the same. v: the token's values; u: their correction;
 * o: the read-out; dk and dq: decay*k and decay*q. v, u and o are whole vectors. */
struct kda_step {
    const float *k, *decay, *v, *in;
    float *dk, *dq, *u, *o, *out;
    float qk, beta;
};
/* Token i of t; s->dk and s->dq are there and are filled. */
void cpu_kda_reads(const struct kda_tokens *t, uint32_t i, uint32_t width, struct kda_step *s);
/* One sweep over the rows of both states (which may be the same one): first updates `last` (NULL:
 * none), whose u is known, and behind it reads for `next` (NULL: none), whose u and o come out.
 * ahead: NULL where the states lie in the caches, else rows to fetch beside those of `next`. */
void cpu_kda_sweep(const struct kda_step *last, const struct kda_step *next, size_t stride,
                   uint32_t rows, uint32_t cols, struct ahead *ahead);
/* The recurrence over heads that come one after the other: a token's update of the state waits for
 * the sweep that reads for the next one. */
struct kda_flow {
    const struct op_kda *op;
    struct kda_step s[2];
    struct kda_step *pending; /* not yet in its state */
    uint32_t at;              /* the step of the token to come */
    unsigned char *scratch;
    struct ahead ahead; /* what the head after this one reads beside its state */
};
size_t cpu_kda_flow_bytes(const struct op_kda *op);
void cpu_kda_flow_open(struct kda_flow *f, const struct op_kda *op, void *scratch);
/* All rows of one head of a sequence. */
void cpu_kda_flow_head(struct kda_flow *f, const struct batch_seq *seq, uint32_t head);
/* Every state is written behind this. */
void cpu_kda_flow_close(struct kda_flow *f);

#endif
