/* linear.c: projections. Called through the columns of this folder.
 * Invariant that bites: members share the multiply-adds of all parts, each a contiguous range of
 * rows; where a range ends depends on the thread count and must not show in a result, so nothing
 * here may sum across rows. */
#include "ops/cpu/product.h"

/* The row of a part that a cut at `at` multiply-adds falls on; `per_row` of them make a row. Cuts
 * fall on whole chunks of rows, the unit of packed weights, or on several. */
static uint32_t cut(uint64_t at, uint64_t begin, uint64_t per_row, const struct weight *w,
                    uint32_t grain) {
    if (at <= begin)
        return 0;
    uint64_t unit = PANEL_LANES * (uint64_t)grain;
    uint64_t row = ((at - begin) / per_row + unit - 1) / unit * unit;
    return row < w->rows ? (uint32_t)row : w->rows;
}

/* Rows of activations that are worked on together, and the scratch for them. */
struct block {
    uint32_t j0, n;
    const float **x;
    float **y;
    void *dot;           /* of the stored form */
    unsigned char *acts; /* of packed ones */
    /* what `acts` holds: the next part often has the same input */
    const float *made_from;
    enum packing made_for;
    struct acts made;
    const struct cpu_variant *how;
    uint32_t chunks, members; /* of all parts; of the team */
};

static void multiply(struct block *k, const struct weight *w, struct tensor x, uint32_t r0,
                     uint32_t r1, bool add, enum activation mode) {
    for (uint32_t j = 0; j < k->n; j++)
        k->x[j] = tensor_row(x, k->j0 + j);
    if (w->packing == PACK_NONE) {
        struct mat m = mat_of(w);
        cpu_dot(&m, r0, r1, k->x, k->y, k->n, add, k->dot);
        return;
    }
    const float *from = tensor_row(x, k->j0);
    if (k->made_from != from || k->made_for != w->packing ||
        k->made.cols != pack_cols(w->packing, w->cols)) {
        unsigned char *at = k->acts;
        cpu_acts_make(&k->made, w->packing, mode, k->x, k->n, w->cols, &at);
        k->made_from = from;
        k->made_for = w->packing;
        k->made.how = k->how;
    }
    cpu_product_run(w, &k->made, r0 / PANEL_LANES, (r1 + PANEL_LANES - 1) / PANEL_LANES, k->y, add);
}

static void part(struct block *k, const struct linear_part *p, uint32_t r0, uint32_t r1,
                 enum activation mode) {
    for (uint32_t j = 0; j < k->n; j++)
        k->y[j] = tensor_row(p->y, k->j0 + j);
    multiply(k, &p->w, p->x, r0, r1, p->add, mode);
    if (p->w2.data)
        multiply(k, &p->w2, p->x2, r0, r1, true, mode);
}

static uint32_t most_cols(const struct op_linear *a) {
    uint32_t cols = 0;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        cols = a->part[i].w.cols > cols ? a->part[i].w.cols : cols;
        cols = a->part[i].w2.cols > cols ? a->part[i].w2.cols : cols;
    }
    return cols;
}

/* The rows of all parts between two marks of their common multiply-adds. */
struct cuts {
    uint64_t lo, hi;
};

static void parts(const struct op_linear *a, struct block *k, struct cuts c, enum activation mode) {
    uint64_t begin = 0;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const struct linear_part *p = &a->part[i];
        uint64_t per_row = (uint64_t)p->w.cols + p->w2.cols;
        uint32_t grain = product_grain(&p->w, k->chunks, k->members, k->how);
        uint32_t r0 = cut(c.lo, begin, per_row, &p->w, grain);
        uint32_t r1 = cut(c.hi, begin, per_row, &p->w, grain);
        begin += per_row * p->w.rows;
        if (r0 < r1)
            part(k, p, r0, r1, mode);
    }
}

static void linear(const struct op_linear *a, const struct batch *b, struct work work,
                   enum activation mode) {
    uint32_t n = a->logit_rows ? b->n_logits : b->n_rows, units = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        total += (uint64_t)a->part[i].w.rows * (a->part[i].w.cols + a->part[i].w2.cols);
        units += product_chunks(&a->part[i].w);
    }
    uint32_t take = acts_rows(most_cols(a));
    unsigned char *at = work.scratch;
    struct block k = {.n = n < take ? n : take, .how = variant_of(&work)};
    k.chunks = units;
    k.members = work.count;
    k.dot = carve(&at, cpu_dot_scratch_bytes());
    k.x = carve(&at, k.n * sizeof *k.x);
    k.y = carve(&at, k.n * sizeof *k.y);
    k.acts = at;
    if (n <= take) { /* what has been brought into form serves all ranges */
        for (struct span s; n > 0 && work_next(&work, units, &s);)
            parts(a, &k, (struct cuts){total * s.begin / units, total * s.end / units}, mode);
        return;
    }
    struct span s = work_span(work, units);
    for (uint32_t j = 0; j < n; j += take) {
        k.j0 = j;
        k.n = n - j < take ? n - j : take;
        k.made_from = NULL;
        parts(a, &k, (struct cuts){total * s.begin / units, total * s.end / units}, mode);
    }
}

void cpu_linear_f32(const struct op_linear *a, const struct batch *b, struct work w) {
    linear(a, b, w, ACTIVATION_F32);
}
void cpu_linear_bf16(const struct op_linear *a, const struct batch *b, struct work w) {
    linear(a, b, w, ACTIVATION_BF16);
}
void cpu_linear_int8(const struct op_linear *a, const struct batch *b, struct work w) {
    linear(a, b, w, ACTIVATION_INT8);
}

size_t cpu_linear_scratch(const struct op_linear *a, uint32_t max_rows) {
    uint32_t cols = most_cols(a), n = acts_rows(cols);
    n = n < max_rows ? n : max_rows;
    return cpu_dot_scratch_bytes() + 2 * (n * sizeof(float *) + 64) + acts_bytes(cols, n) + 128;
}
