/* table_case.h: one operation with its memory, run on the exact column and on every fast one with
 * one to three threads, for test_cpu_table.c and test_cpu_mla.c. Tolerances are largest error over
 * root mean square of the exact result, and allow only for another order of f32 sums and a few
 * units in the last place of exp. */
#ifndef TESTS_OPS_TABLE_CASE_H
#define TESTS_OPS_TABLE_CASE_H

#include "ops_case.h"

#include "ops/ref/ref.h"

/* What an operation leaves behind. */
struct view {
    float *data;
    size_t rows, cols, stride;
};
enum { MAX_VIEWS = 8 };
struct ops_case {
    char name[160];
    struct heap heap;
    struct dice dice;
    struct op op;
    struct test_batch t;
    struct view view[MAX_VIEWS];
    int views;
    struct {
        int32_t *data;
        size_t n;
    } ids; /* must be equal */
    struct tensor gaps[MAX_VIEWS];
    uint32_t gap_rows[MAX_VIEWS];
    int n_gaps;
    double tolerance;
};

static inline void case_open(struct ops_case *c, double tolerance, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->dice.seed = seed;
    c->tolerance = tolerance;
}

static inline void add_view(struct ops_case *c, float *data, size_t rows, size_t cols,
                            size_t stride) {
    c->view[c->views++] = (struct view){data, rows, cols, stride};
}
static inline void add_output(struct ops_case *c, struct tensor t, uint32_t rows) {
    add_view(c, t.data, rows, t.cols, t.stride);
    c->gaps[c->n_gaps] = t;
    c->gap_rows[c->n_gaps++] = rows;
}

static inline size_t view_floats(const struct ops_case *c) {
    size_t n = 0;
    for (int i = 0; i < c->views; i++)
        n += c->view[i].rows * c->view[i].cols;
    return n;
}
static inline float *read_views(const struct ops_case *c) {
    float *out = malloc((view_floats(c) + 1) * sizeof(float)), *to = out;
    for (int i = 0; i < c->views; i++)
        for (size_t r = 0; r < c->view[i].rows; r++, to += c->view[i].cols)
            memcpy(to, c->view[i].data + r * c->view[i].stride, c->view[i].cols * sizeof(float));
    return out;
}

static inline unsigned char *heap_save(const struct heap *h) {
    size_t n = 0;
    for (int i = 0; i < h->n; i++)
        n += h->bytes[i];
    unsigned char *copy = malloc(n + 1), *to = copy;
    for (int i = 0; i < h->n; i++, to += h->bytes[i - 1])
        memcpy(to, h->piece[i], h->bytes[i]);
    return copy;
}
static inline void heap_load(struct heap *h, const unsigned char *copy) {
    for (int i = 0; i < h->n; copy += h->bytes[i], i++)
        memcpy(h->piece[i], copy, h->bytes[i]);
}

static double largest_seen;

static inline void compare(const struct ops_case *c, const float *want, const float *got,
                           const char *column, uint32_t threads) {
    for (int i = 0; i < c->views; i++) {
        size_t n = c->view[i].rows * c->view[i].cols;
        double e = difference(got, want, n);
        largest_seen = e > largest_seen ? e : largest_seen;
        if (!(e <= c->tolerance))
            fail_msg("%s, seed %llu, %s, %u threads: output %d is off by %g (allowed %g)", c->name,
                     (unsigned long long)c->dice.seed, column, threads, i, e, c->tolerance);
        got += n;
        want += n;
    }
    for (int i = 0; i < c->n_gaps; i++)
        if (!gaps_untouched(c->gaps[i], c->gap_rows[i]))
            fail_msg("%s, %s: wrote between the rows of output %d", c->name, column, i);
}

/* One of the column's variants beside its default (first) and the truth. */
static inline void check_variant(struct ops_case *c, const struct column *column,
                                 const unsigned char *before, const float *want,
                                 const float *first) {
    struct variant v = {0};
    char name[80];
    if (take_variant(column, &c->op, &c->t.b, c->dice.seed, &v)) {
        heap_load(&c->heap, before);
        run_op(column, &c->op, &c->t.b, c->t.longest, 2);
        float *got = read_views(c);
        snprintf(name, sizeof name, "%s %s", column->name, v.name);
        compare(c, want, got, name, 2);
        if (v.same_bits && memcmp(first, got, view_floats(c) * sizeof(float)) != 0)
            fail_msg("%s, seed %llu, %s: other bits than by default", c->name,
                     (unsigned long long)c->dice.seed, name);
        free(got);
    }
    memset(c->op.variant, 0, sizeof c->op.variant);
}

/* Runs the case on all columns and thread counts, closes it. */
static inline void case_check(struct ops_case *c) {
    unsigned char *before = heap_save(&c->heap);
    struct op exact = c->op; /* one form of attention is enough for the truth: the quicker one */
    exact.kind = c->op.kind == OP_MLA_PREFILL ? OP_MLA_DECODE : c->op.kind;
    run_op(&column_ref, &exact, &c->t.b, c->t.longest, 1);
    float *want = read_views(c);
    int32_t *ids = malloc((c->ids.n + 1) * sizeof *ids);
    if (c->ids.n)
        memcpy(ids, c->ids.data, c->ids.n * sizeof *ids);
    const struct column *columns[CPU_COLUMNS];
    uint32_t n = fast_columns(columns);
    for (uint32_t k = 0; k < n; k++) {
        float *first = NULL;
        for (uint32_t threads = OPS_SLOW ? 3 : 1; threads <= 3; threads++) {
            heap_load(&c->heap, before);
            run_op(columns[k], &c->op, &c->t.b, c->t.longest, threads);
            float *got = read_views(c);
            compare(c, want, got, columns[k]->name, threads);
            if (c->ids.n && memcmp(ids, c->ids.data, c->ids.n * sizeof *ids) != 0)
                fail_msg("%s, %s: other experts", c->name, columns[k]->name);
            if (first && memcmp(first, got, view_floats(c) * sizeof(float)) != 0)
                fail_msg("%s, seed %llu, %s: %u threads give other bits than one", c->name,
                         (unsigned long long)c->dice.seed, columns[k]->name, threads);
            if (first)
                free(got);
            else
                first = got;
        }
        check_variant(c, columns[k], before, want, first);
        free(first);
    }
    free(ids);
    free(want);
    free(before);
    heap_free(&c->heap);
}

static inline const char *format_name(enum dtype t) {
    return t == DTYPE_F32 ? "f32" : t == DTYPE_BF16 ? "bf16" : t == DTYPE_FP8 ? "fp8" : "mxfp4";
}

static inline void set_rows(struct ops_case *c, uint32_t n) {
    make_batch(&c->t, &c->heap, &(struct seq_shape){0, n}, 1, false);
}

/* Says how far the columns really are apart; the tolerances were set from it. */
static inline void report(void **state) {
    (void)state;
    print_message("largest error seen, relative to the root mean square: %.2e\n", largest_seen);
}

#endif
