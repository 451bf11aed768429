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
#define cpu_kda_recur      ISA_NAME(kda_recur)
#define cpu_kda_list_ahead ISA_NAME(kda_list_ahead)
#define cpu_kda_factors    ISA_NAME(kda_factors)

/* Rows of scratch are whole pairs of vectors at every instruction set. */
ALWAYS uint32_t kda_width(uint32_t dim) {
    return round_up(dim, 32);
}

/* Runs of memory wanted soon, brought into the second-level cache line by line between arithmetic,
 * so that memory never idles while a core computes. Often and little: a processor drops what it is
 * asked for while all its requests are under way. What is not fetched is only late. */
enum { AHEAD_RUNS = 192, LINE = 64 };
struct ahead {
    uintptr_t at, end; /* of the run that is under way; `at` may pass the end */
    uint32_t n, next;
    struct {
        uintptr_t at, end;
    } run[AHEAD_RUNS];
};

ALWAYS void ahead_open(struct ahead *a) {
    a->n = a->next = 0;
    a->at = a->end = 0;
}
/* n floats; right behind the last ones they make one run with them. */
ALWAYS void ahead_add(struct ahead *a, const float *from, size_t n) {
    const uintptr_t at = (uintptr_t)from, end = at + n * sizeof *from;
    if (a->n > 0 && a->run[a->n - 1].end == at) {
        a->run[a->n - 1].end = end;
    } else if (a->n < AHEAD_RUNS) {
        a->run[a->n].at = at / LINE * LINE;
        a->run[a->n++].end = end;
    }
}
/* `rows` rows of n floats, `stride` floats apart. */
ALWAYS void ahead_rows(struct ahead *a, const float *row, size_t n, size_t stride, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++)
        ahead_add(a, row + i * stride, n);
}
/* Over the end of a run. */
ALWAYS void ahead_next(struct ahead *a, uint32_t lines) {
    for (; lines > 0; lines--, a->at += LINE) {
        if (a->at >= a->end) {
            if (a->next == a->n)
                return;
            a->at = a->run[a->next].at;
            a->end = a->run[a->next++].end;
        }
        __builtin_prefetch((const void *)a->at, 0, 2);
    }
}
/* The next `lines` cache lines of them. */
ALWAYS void ahead_fetch(struct ahead *a, const uint32_t lines) {
    const uintptr_t at = a->at;
    if (at + (uintptr_t)lines * LINE > a->end) {
        ahead_next(a, lines);
        return;
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < lines; i++)
        __builtin_prefetch((const void *)(at + (uintptr_t)i * LINE), 0, 2);
    a->at = at + (uintptr_t)lines * LINE;
}
/* One head of one sequence while an operation works on it. */
struct kda_head {
    const struct op_kda *op;
    const struct batch_seq *seq;
    uint32_t head, dim, width; /* width: kda_width(dim); scratch rows have it */
    /* q, k, v: [taps][width]; NULL: as they are stored, which one row has the least work with */
    float *taps[3];
    const float *stored_taps[3]; /* [dim][taps] */
    /* [3][taps-1] rows, as they were before the first row: where `from` has them while there is one
     * row, which is through before the window of `slot` is written; else a copy. */
    const float *window;
    size_t window_stride;
};

/* What tokens bring to the recurrence, after convolution, norms and gates: rows of `width` floats,
 * zero beyond dim (decay: any value of (0, 1]). */
struct kda_tokens {
    float *q, *k, *v, *decay, *beta;
};

size_t cpu_kda_head_bytes(const struct op_kda *op);
void cpu_kda_head(struct kda_head *h, const struct op_kda *op, const struct batch_seq *seq,
                  uint32_t head, unsigned char **scratch);
/* Rows [row, row + rows) of the sequence to the first rows of t. ahead: what to fetch
 * meanwhile. */
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

/* Of a state that is read from memory: how many rows a sweep asks ahead, and how many the work
 * before it has asked for, so that the sweep does not begin cold. */
enum { SOON_ROWS = 16, FIRST_ROWS = 32 };

/* One head of one sequence. seq NULL: none. */
struct kda_unit {
    const struct batch_seq *seq;
    uint32_t head;
};

/* One token on its way through `cols` columns of a state. v: the token's values; u: their
 * correction; o: the read-out; dk and dq: decay*k and decay*q. v, u and o are whole vectors. */
struct kda_step {
    const float *k, *decay, *v;
    float *dk, *dq, *u, *o;
    float qk, beta;
};
/* Token i of t; s->dk and s->dq are there and are filled. */
void cpu_kda_reads(const struct kda_tokens *t, uint32_t i, uint32_t width, struct kda_step *s);
/* One sweep over a state whose rows are `stride` floats apart. With `last`, whose u is known, it is
 * updated, from `in` to `out` (which may be the same). With `next`, whose u and o come out, what it
 * holds then is read. ahead: what to fetch meanwhile, by a sweep that only updates; one that only
 * reads asks for its own next rows, as the state comes from memory. NULL: neither. */
void cpu_kda_sweep(const struct kda_step *last, const struct kda_step *next, const float *in,
                   float *out, size_t stride, uint32_t rows, uint32_t cols, struct ahead *ahead);
/* Adds what the first token of a head reads: `rows` rows of its state, window, taps and
 * activations. */
void cpu_kda_list_ahead(struct ahead *a, const struct op_kda *op, struct kda_unit u, uint32_t rows);
/* All rows of one head of a sequence by the recurrence. next: what its member does then, which
 * begins with so many rows of its state. */
void cpu_kda_recur(const struct op_kda *op, struct kda_unit u, struct kda_unit next,
                   uint32_t next_rows, void *scratch);

#endif
