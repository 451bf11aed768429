/* ops_case.h: random inputs and a runner for one operation, for the table that compares columns.
 * An operation is described once; the case is run on a fresh copy of its buffers for every column,
 * thread count and batch, and what comes out is compared. */
#ifndef WEIR_TESTS_OPS_OPS_CASE_H
#define WEIR_TESTS_OPS_OPS_CASE_H

#include "tests/test.h"

#include "base/rng.h"
#include "base/team.h"
#include "ops/cpu/cpu.h"

#include <math.h>

/* Builds with sanitizers take fewer of what others take all of. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OPS_SLOW = 1 };
#else
enum { OPS_SLOW = 0 };
#endif

/* Random numbers of one case; the seed is printed by whoever fails. */
struct dice {
    uint64_t seed, at;
};

static inline double dice_unit(struct dice *d) {
    return rng_unit(rng_at(d->seed, 7, d->at++));
}
static inline uint32_t dice_below(struct dice *d, uint32_t n) {
    return (uint32_t)(dice_unit(d) * n);
}
/* About normal with standard deviation `scale`: the sum of four uniform 16-bit pieces. */
static inline float dice_float(struct dice *d, float scale) {
    uint64_t bits = rng_at(d->seed, 7, d->at++);
    int32_t sum = -131070;
    for (int i = 0; i < 4; i++, bits >>= 16)
        sum += (int32_t)(bits & 0xFFFF);
    return (float)sum * (1.7320508f / 65536) * scale;
}
static inline void dice_fill(struct dice *d, float *p, size_t n, float scale) {
    for (size_t i = 0; i < n; i++)
        p[i] = dice_float(d, scale);
}

/* Memory of one case, all of it freed at its end. Every piece ends where its allocation ends, so
 * that a sanitizer sees a read or write beyond it. */
struct heap {
    void *piece[512];
    size_t bytes[512];
    int n;
};
static inline void *heap_take(struct heap *h, size_t bytes) {
    assert_true(h->n < 512);
    void *p = calloc(1, bytes ? bytes : 1);
    h->bytes[h->n] = bytes;
    h->piece[h->n++] = p;
    return p;
}
static inline void heap_free(struct heap *h) {
    for (int i = 0; i < h->n; i++)
        free(h->piece[i]);
    h->n = 0;
}

/* A weight of random numbers of scale 1/sqrt(cols). MXFP4 takes codes and scales at random. */
static inline struct weight random_weight(struct heap *h, struct dice *d, enum dtype t,
                                          uint32_t rows, uint32_t cols) {
    size_t n = (size_t)rows * cols;
    struct weight w = {.dtype = t, .rows = rows, .cols = cols};
    float scale = 1.0f / sqrtf((float)cols);
    if (t == DTYPE_MXFP4) {
        uint8_t *codes = heap_take(h, n / 2), *scales = heap_take(h, n / 32);
        for (size_t i = 0; i < n / 2; i++)
            codes[i] = (uint8_t)dice_below(d, 256);
        for (size_t i = 0; i < n / 32; i++)
            scales[i] = (uint8_t)(120 + dice_below(d, 5));
        scales[0] = 0; /* 2^-127 */
        w.data = codes;
        w.scale = scales;
    } else if (t == DTYPE_BF16) {
        uint16_t *p = heap_take(h, n * 2);
        for (size_t i = 0; i < n; i++)
            p[i] = f32_to_bf16(dice_float(d, scale));
        w.data = p;
    } else {
        float *p = heap_take(h, n * 4);
        dice_fill(d, p, n, scale);
        w.data = p;
    }
    return w;
}

enum { PAD = 5 }; /* floats between rows that nobody may touch */
#define SENTINEL 12345.678f

/* A step buffer with a gap behind each row. */
static inline struct tensor new_tensor(struct heap *h, uint32_t rows, uint32_t cols) {
    struct tensor t = {.cols = cols, .stride = cols + PAD};
    t.data = heap_take(h, (size_t)rows * t.stride * sizeof(float));
    for (size_t i = 0; i < (size_t)rows * t.stride; i++)
        t.data[i] = SENTINEL;
    return t;
}
static inline struct tensor random_tensor(struct heap *h, struct dice *d, uint32_t rows,
                                          uint32_t cols, float scale) {
    struct tensor t = new_tensor(h, rows, cols);
    for (uint32_t r = 0; r < rows; r++)
        dice_fill(d, tensor_row(t, r), cols, scale);
    return t;
}
static inline float *random_vector(struct heap *h, struct dice *d, size_t n, float scale,
                                   float offset) {
    float *p = heap_take(h, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        p[i] = offset + dice_float(d, scale);
    return p;
}
static inline bool gaps_untouched(struct tensor t, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = t.cols; c < t.stride; c++)
            if (tensor_row(t, r)[c] != SENTINEL)
                return false;
    return true;
}

/* Largest difference over n floats, relative to the root mean square of `want`; infinite if a NaN
 * stands on one side only. */
static inline double difference(const float *got, const float *want, size_t n) {
    double worst = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]) != isnan(want[i]))
            return INFINITY;
        if (isnan(want[i]))
            continue;
        double e = fabs((double)got[i] - want[i]);
        worst = e > worst ? e : worst;
        square += (double)want[i] * want[i];
    }
    double rms = sqrt(square / (double)(n ? n : 1));
    return worst == 0 ? 0 : worst / (rms > 1e-30 ? rms : 1e-30);
}

/* ------------------------------------------------------------------------------- running */

struct op_run {
    const struct column *column;
    const struct op *op;
    const struct batch *batch;
    const int32_t *ids;
    unsigned char *scratch, *shared;
    size_t each;
    uint32_t threads;
    struct team *team;
};

static inline void op_run_member(void *arg, uint32_t member) {
    struct op_run *r = arg;
    struct work w = {.index = member,
                     .count = r->threads,
                     .scratch = r->scratch + member * r->each,
                     .team = r->team,
                     .shared = r->shared};
    uint32_t passes = column_passes(r->column, r->op, r->batch);
    for (; w.pass < passes; w.pass++) {
        column_run(r->column, r->op, r->batch, r->ids, w);
        if (r->team)
            team_barrier(r->team, member);
    }
}

/* Runs one operation on `threads` members with scratch of exactly the size it asked for. */
static inline void run_op(const struct column *column, const struct op *op, const struct batch *b,
                          uint32_t max_position, uint32_t threads) {
    size_t each = column->scratch_bytes(op, b->n_rows, max_position);
    each = (each + 63) & ~(size_t)63;
    size_t shared = (column_shared_bytes(column, op, b->n_rows, threads) + 63) & ~(size_t)63;
    struct op_run r = {column, op, b, b->ids, NULL, NULL, each, threads, NULL};
    size_t bytes = each * threads;
    r.scratch = aligned_alloc(64, bytes ? bytes : 64);
    r.shared = aligned_alloc(64, shared ? shared : 64);
    memset(r.scratch, 0xFF, bytes); /* NaN: nothing may be taken from scratch that was not put there
                                     */
    memset(r.shared, 0xFF, shared);
    if (threads == 1) {
        op_run_member(&r, 0);
    } else {
        r.team = team_open(threads);
        team_run(r.team, op_run_member, &r);
        team_close(r.team);
    }
    free(r.scratch);
    free(r.shared);
}

/* Has the operation done by one of the variants that the column has of it on this batch, chosen by
 * `turn`; false: there is none. */
static inline bool take_variant(const struct column *c, struct op *op, const struct batch *b,
                                uint64_t turn, struct variant *out) {
    struct variant v[OP_VARIANTS];
    uint32_t rows = op_rows(op, b);
    uint32_t n = rows ? column_variants(c, op, row_class_of(rows), v) : 0;
    memset(op->variant, 0, sizeof op->variant);
    if (n == 0)
        return false;
    *out = v[turn % n];
    op->variant[row_class_of(rows)] = out->number;
    return true;
}

/* The fast columns that this machine runs and that compute in f32, by level. */
static inline uint32_t fast_columns(const struct column *out[CPU_COLUMNS]) {
    uint32_t n = 0;
    for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++)
        if (column_cpu(l, ACTIVATION_F32))
            out[n++] = column_cpu(l, ACTIVATION_F32);
    return n;
}

/* ------------------------------------------------------------------------------- batches */

enum { MAX_SEQS = 8 };
struct seq_shape {
    uint32_t pos0, rows;
};
/* A batch of these sequences; single rows first. Sequence i has pages of its own, slot 2i and, if
 * it has a past, `from` = slot 2i+1 where `move` is set. */
struct test_batch {
    struct batch b;
    struct batch_seq seqs[MAX_SEQS];
    uint32_t pages, slots, longest;
};

static inline void make_batch(struct test_batch *t, struct heap *h, const struct seq_shape *shape,
                              uint32_t n, bool move) {
    memset(t, 0, sizeof *t);
    assert_true(n <= MAX_SEQS);
    for (uint32_t i = 0; i < n; i++) {
        struct batch_seq *s = &t->seqs[i];
        uint32_t end = shape[i].pos0 + shape[i].rows, pages = (end + 63) / 64;
        int32_t *list = heap_take(h, pages * sizeof(int32_t));
        for (uint32_t p = 0; p < pages; p++) /* scattered: neighbours in a sequence are not in
                                                memory */
            list[p] = (int32_t)(t->pages + (pages - 1 - p));
        *s =
            (struct batch_seq){.row0 = t->b.n_rows,
                               .rows = shape[i].rows,
                               .pos0 = shape[i].pos0,
                               .pages = list,
                               .slot = (int32_t)(2 * i),
                               .from = shape[i].pos0 == 0 ? -1 : (int32_t)(2 * i + (move ? 1 : 0))};
        t->pages += pages;
        t->b.n_rows += shape[i].rows;
        t->b.n_seqs++;
        if (shape[i].rows == 1 && t->b.n_decode == i)
            t->b.n_decode++;
        t->longest = end > t->longest ? end : t->longest;
    }
    t->slots = 2 * n;
    t->b.seqs = t->seqs;
    int32_t *ids = heap_take(h, t->b.n_rows * sizeof *ids);
    t->b.ids = ids;
}

#endif
