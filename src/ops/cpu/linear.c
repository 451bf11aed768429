/* linear.c: projections. Called through the columns of this folder.
 * Invariant that bites: members share the bytes of all parts, each a contiguous range of rows;
 * where a range ends depends on the thread count and must not show in a result, so nothing here may
 * sum across rows. */
#include "ops/cpu/kernels.h"

/* The row of a part that a cut at `at` multiply-adds falls on; `per_row` of them make a row. Cuts
 * fall on whole groups of 8 rows, the unit the kernels like. */
static uint32_t cut(uint64_t at, uint64_t begin, uint64_t per_row, uint32_t rows) {
    if (at <= begin)
        return 0;
    uint64_t row = ((at - begin) / per_row + 7) & ~(uint64_t)7;
    return row < rows ? (uint32_t)row : rows;
}

struct rows_of {
    const float **x;
    float **y;
};

static void point_x(struct tensor t, uint32_t n, const float **p) {
    for (uint32_t j = 0; j < n; j++)
        p[j] = tensor_row(t, j);
}
static void point_y(struct tensor t, uint32_t n, float **p) {
    for (uint32_t j = 0; j < n; j++)
        p[j] = tensor_row(t, j);
}

void cpu_linear(const struct op_linear *a, const struct batch *b, struct work work) {
    uint32_t n = a->logit_rows ? b->n_logits : b->n_rows;
    if (n == 0)
        return;
    uint64_t total = 0;
    for (uint32_t i = 0; i < a->n_parts; i++)
        total += (uint64_t)a->part[i].w.rows * (a->part[i].w.cols + a->part[i].w2.cols);
    uint64_t lo = total * work.index / work.count, hi = total * (work.index + 1) / work.count;

    unsigned char *at = work.scratch;
    void *blocks = carve(&at, cpu_dot_scratch_bytes());
    struct rows_of rows = {carve(&at, n * sizeof(float *)), carve(&at, n * sizeof(float *))};
    uint64_t begin = 0;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const struct linear_part *p = &a->part[i];
        uint64_t per_row = (uint64_t)p->w.cols + p->w2.cols;
        uint32_t r0 = cut(lo, begin, per_row, p->w.rows);
        uint32_t r1 = cut(hi, begin, per_row, p->w.rows);
        begin += per_row * p->w.rows;
        if (r0 >= r1)
            continue;
        struct mat m = mat_of(&p->w);
        point_x(p->x, n, rows.x);
        point_y(p->y, n, rows.y);
        cpu_dot(&m, r0, r1, rows.x, rows.y, n, p->add, blocks);
        if (p->w2.data) {
            m = mat_of(&p->w2);
            point_x(p->x2, n, rows.x);
            cpu_dot(&m, r0, r1, rows.x, rows.y, n, true, blocks);
        }
    }
}

size_t cpu_linear_scratch(uint32_t max_rows) {
    return cpu_dot_scratch_bytes() + 2 * (max_rows * sizeof(float *) + 64) + 64;
}
