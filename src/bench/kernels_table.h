/* kernels_table.h: the table of cases of `weir bench kernels`. One row says everything about a
 * case: which operation, its shape and formats, how far a result may lie from ops/ref and why, and
 * what the operation must at least move and compute. Correctness, timing and documentation all come
 * from it. */
#ifndef WEIR_BENCH_KERNELS_TABLE_H
#define WEIR_BENCH_KERNELS_TABLE_H

#include "ops/ops.h"

/* How a case becomes an operation record. */
enum kernel_family {
    KERNEL_LINEAR,       /* y = W x: out x in, n rows */
    KERNEL_EXPERTS_UP,   /* w1, w3 (out x in) and activation of top_k of `count` experts, n rows */
    KERNEL_EXPERTS_DOWN, /* w2 (out x in) and the weighted sum */
    KERNEL_KDA_STEP,     /* n sequences, one token each, `count` layers of state in turn */
    KERNEL_KDA_PREFILL,  /* one sequence of n tokens, `count` layers of state in turn */
    KERNEL_KDA_TOKENS,   /* the same by the recurrence, which prefill must never fall behind */
    KERNEL_MLA_DECODE,   /* one token of each of n sequences at `history` positions */
    KERNEL_MLA_PREFILL,  /* one sequence of n tokens behind `history` positions */
    KERNEL_MLA_WRITE,    /* n rows into the pages */
    KERNEL_MIX_NORM,     /* residual mixture with `count` bank entries and norm, n rows of `out` */
    KERNEL_NORM,         /* n rows of `out` */
    KERNEL_GLU,          /* SiTU of n rows of `out` */
    KERNEL_ROUTE,        /* top_k of `count`, n rows */
    KERNEL_EMBED,        /* n rows of `out` values from a table of `count` */
};

/* What separates a right result from the exact one. */
enum kernel_bound {
    BOUND_COPY,       /* values pass through */
    BOUND_DOT,        /* sums of products */
    BOUND_GATED,      /* one sum of products times another */
    BOUND_SOFTMAX,    /* exponentials, then sums */
    BOUND_RECURRENCE, /* sums that feed on earlier results */
    BOUNDS
};

struct kernel_limit {
    double rms;     /* root mean square of the error over that of the exact result */
    double largest; /* largest error over the root mean square of the exact result */
    const char *reason;
};

struct kernel_case {
    const char *name;
    enum kernel_family family;
    enum dtype dtype;      /* of weights, or of history */
    enum dense_form dense; /* what BF16 weights are turned into at load */
    uint32_t n;
    uint32_t out, in;
    uint32_t count, top_k;
    uint32_t heads, dim;    /* KDA: dim; MLA: nope and value dims */
    uint32_t latent, extra; /* MLA, where they are not 4*dim and dim/2 */
    uint32_t history;
    enum kernel_bound bound;
    bool slow; /* takes seconds or gigabytes: left out by --quick */
};

/* The whole table. */
const struct kernel_case *kernel_table(size_t *n);
/* The same case with small matrices, few heads and short histories, for tests. */
struct kernel_case kernel_case_small(struct kernel_case c);
/* "3072x3584 n=8"; returns buf. */
const char *kernel_shape(const struct kernel_case *c, char *buf, size_t cap);
/* Format of weights or history, after quantisation at load. */
const char *kernel_format(const struct kernel_case *c);
/* Does the case belong to `filter`: words separated by commas, each a part of "name shape"? NULL:
 * all do. */
bool kernel_selected(const struct kernel_case *c, const char *filter);

const char *arithmetic_name(enum arithmetic a);
/* What bounds this case in that column: its products' instructions, or f32 for everything else. */
enum arithmetic kernel_arithmetic(const struct kernel_case *c, const struct column *column);
/* The bound of a case for these activations. Sums over a long history in f32 go astray with the
 * root of its length, the exact column's as well: each of the terms that follow is rounded at the
 * size of the sum so far. Weights that were quantised add their own error. */
struct kernel_limit kernel_limit(const struct kernel_case *c, enum activation a);

/* What one call must move and compute, whatever the implementation: each weight that is used once,
 * state read and written, activations once where they are too many for the caches. */
struct kernel_cost {
    double read_bytes;   /* from memory */
    double modify_bytes; /* read and written back: counted twice as traffic */
    double write_bytes;
    double cache_bytes; /* of activations that lie in the caches */
    double flops;       /* a multiply-add is two */
};
/* `experts`: how many different experts the rows choose (expert cases). */
struct kernel_cost kernel_cost(const struct kernel_case *c, uint32_t experts);

/* Bytes of `rows` rows of `cols` stored values. */
double kernel_matrix_bytes(enum dtype t, double rows, double cols);

#endif
