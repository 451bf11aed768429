/* Packed weights: every value is where pack.h says, padding is zero, and products in every column
 * read nothing beyond and are within their bounds of the exact ones on the stored form. */
#include "tests/ops/ops_case.h"

#include "ops/pack.h"

struct matrix {
    struct weight w;
    unsigned char *data, *scale, *packed;
};

/* Random weights of any shape; allocations end where the matrix ends. */
static struct matrix matrix(struct dice *d, enum dtype t, uint32_t rows, uint32_t cols) {
    struct matrix m = {.w = {.dtype = t, .rows = rows, .cols = cols}};
    size_t n = (size_t)rows * cols, bytes = t == DTYPE_BF16 ? 2 * n : n / 2;
    m.data = malloc(bytes);
    if (t == DTYPE_BF16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = f32_to_bf16(dice_float(d, 0.05f));
            memcpy(m.data + 2 * i, &h, 2);
        }
    } else {
        m.scale = malloc(n / 32);
        for (size_t i = 0; i < bytes; i++)
            m.data[i] = (unsigned char)dice_below(d, 256);
        for (size_t i = 0; i < n / 32; i++)
            m.scale[i] = (unsigned char)(118 + dice_below(d, 6));
    }
    m.w.data = m.data;
    m.w.scale = m.scale;
    return m;
}

static void pack(struct matrix *m, enum packing p, uint32_t members) {
    m->packed = aligned_alloc(64, pack_bytes(&m->w, p));
    assert_int_equal(pack_bytes(&m->w, p) % 64, 0);
    memset(m->packed, 0xFF, pack_bytes(&m->w, p));
    for (uint32_t i = 0; i < members; i++)
        pack_weight(&m->w, p, m->packed, (struct work){.index = i, .count = members});
    m->w.packing = p;
    m->w.packed = m->packed;
}

static void free_matrix(struct matrix *m) {
    free(m->data);
    free(m->scale);
    free(m->packed);
}

static float stored_value(const struct weight *w, uint32_t r, uint32_t c) {
    if (r >= w->rows || c >= w->cols)
        return 0;
    size_t i = (size_t)r * w->cols + c;
    if (w->dtype == DTYPE_BF16) {
        uint16_t h;
        memcpy(&h, (const unsigned char *)w->data + 2 * i, 2);
        return bf16_to_f32(h);
    }
    unsigned byte = ((const unsigned char *)w->data)[i / 2];
    return e2m1_to_f32(i % 2 ? byte >> 4 : byte) * e8m0_to_f32(w->scale[i / 32]);
}

/* The value at (r, c) by the words of pack.h, padding included; *step: how far a quantised one may
 * be from the stored one. */
static float packed_value(const struct weight *w, uint32_t r, uint32_t c, float *step) {
    const unsigned char *panel =
        (const unsigned char *)w->packed + r / PANEL_ROWS * pack_panel_bytes(w->packing, w->cols);
    uint32_t lane = r % PANEL_ROWS;
    *step = 0;
    if (w->packing == PACK_BF16) {
        uint16_t h;
        memcpy(&h, panel + ((size_t)(c / 2) * PANEL_ROWS + lane) * 4 + c % 2 * 2, 2);
        return bf16_to_f32(h);
    }
    if (w->packing == PACK_MXFP4) {
        const unsigned char *group = panel + c / 32 * (PANEL_ROWS * 17);
        const unsigned char *line =
            group + PANEL_ROWS + lane / 16 * 256 + c % 32 / 8 * 64 + lane % 16 * 4;
        unsigned byte = line[c % 4];
        return e2m1_to_f32(c % 8 < 4 ? byte : byte >> 4) * e8m0_to_f32(group[lane]);
    }
    const unsigned char *group = panel + c / PACK_GROUP * (PANEL_ROWS * (4 + PACK_GROUP));
    float scale;
    memcpy(&scale, group + lane * 4, 4);
    unsigned char code =
        group[PANEL_ROWS * 4 + (c % PACK_GROUP / 4 * PANEL_ROWS + lane) * 4 + c % 4];
    if (w->packing == PACK_INT8) {
        *step = 0.5001f * scale;
        return (float)(code - 128) * scale;
    }
    *step = fmaxf(fabsf(e4m3_to_f32(code)) / 16, 0x1p-10f) * 1.001f * scale;
    return e4m3_to_f32(code) * scale;
}

static const enum packing packings[] = {PACK_BF16, PACK_INT8, PACK_FP8, PACK_MXFP4};

static void every_value_is_where_the_layout_says(void **state) {
    static const uint32_t shapes[][2] = {{1, 32},   {63, 64},  {64, 128},
                                         {65, 160}, {200, 96}, {17, 416}};
    struct dice d = {.seed = 3};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t k = 0; k < 4; k++) {
            enum packing p = packings[k];
            uint32_t cols = shapes[s][1] - (p == PACK_MXFP4 ? 0 : dice_below(&d, 30));
            struct matrix m =
                matrix(&d, p == PACK_MXFP4 ? DTYPE_MXFP4 : DTYPE_BF16, shapes[s][0], cols);
            pack(&m, p, 1 + dice_below(&d, 3));
            for (uint32_t r = 0; r < pack_panels(m.w.rows) * PANEL_ROWS; r++)
                for (uint32_t c = 0; c < pack_cols(p, cols); c++) {
                    float step, got = packed_value(&m.w, r, c, &step);
                    float want = stored_value(&m.w, r, c);
                    if (!(fabsf(got - want) <= step))
                        fail_msg("%s %ux%u: (%u, %u) is %g, not %g", packing_name(p), m.w.rows,
                                 cols, r, c, (double)got, (double)want);
                }
            free_matrix(&m);
        }
}

static void only_what_has_a_packed_form_gets_one(void **state) {
    struct weight bf16 = {.dtype = DTYPE_BF16, .rows = 3, .cols = 32};
    struct weight mxfp4 = {.dtype = DTYPE_MXFP4, .rows = 3, .cols = 32};
    struct weight f32 = {.dtype = DTYPE_F32, .rows = 3, .cols = 32};
    assert_int_equal(pack_bytes(&bf16, PACK_BF16), 64 * 32 * 2);
    assert_int_equal(pack_bytes(&mxfp4, PACK_MXFP4), 64 * 17);
    assert_int_equal(pack_bytes(&bf16, PACK_INT8), 64 * (128 + 4));
    assert_int_equal(pack_bytes(&bf16, PACK_MXFP4), 0);
    assert_int_equal(pack_bytes(&mxfp4, PACK_BF16), 0);
    assert_int_equal(pack_bytes(&f32, PACK_BF16), 0);
    bf16.rows = bf16.cols = UINT32_MAX; /* more than any memory */
    assert_true(pack_bytes(&bf16, PACK_BF16) == 0 || pack_bytes(&bf16, PACK_BF16) > 1ull << 60);
}

/* ---------------------------------------------------------------------------------- products */

struct both {
    float *x, *want, *got;
};

static double rms_error(const float *got, const float *want, size_t n) {
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        square += (double)want[i] * want[i];
    }
    return sqrt(error / (square + 1e-30));
}

/* What rounding of activations and of weights may cost: several times what was computed for one of
 * them (kernels_table.c), as these sums are short. */
static double bound_of(const struct column *c, enum packing p) {
    double weights = p == PACK_INT8 ? 1.5e-2 : p == PACK_FP8 ? 6e-2 : 0;
    double activations = c->activation == ACTIVATION_F32    ? 4e-6
                         : c->activation == ACTIVATION_BF16 ? 6e-3
                                                            : 1.5e-2;
    return weights + activations;
}

static void check_product(struct dice *d, enum packing p, uint32_t rows, uint32_t cols, uint32_t n,
                          bool add) {
    const struct column *columns[CPU_COLUMNS];
    uint32_t n_columns = column_list(columns), stride = rows + dice_below(d, 3);
    struct matrix m = matrix(d, p == PACK_MXFP4 ? DTYPE_MXFP4 : DTYPE_BF16, rows, cols);
    size_t outputs = (size_t)(n - 1) * stride + rows;
    struct both f = {malloc((size_t)n * cols * 4), malloc(outputs * 4), malloc(outputs * 4)};
    float *before = malloc(outputs * 4);
    dice_fill(d, f.x, (size_t)n * cols, 1);
    dice_fill(d, before, outputs, 0.1f);
    struct op op = {.kind = OP_LINEAR};
    struct batch b = {.n_rows = n};
    op.u.linear.n_parts = 1;
    struct linear_part *part = &op.u.linear.part[0];
    *part = (struct linear_part){
        .w = m.w, .x = {f.x, cols, cols}, .y = {f.want, rows, stride}, .add = add};
    memcpy(f.want, before, outputs * 4);
    run_op(&column_ref, &op, &b, 1, 1);
    pack(&m, p, 2);
    part->w = m.w;
    part->y.data = f.got;
    for (uint32_t k = 0; k < n_columns; k++)
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            memcpy(f.got, before, outputs * 4);
            run_op(columns[k], &op, &b, 1, threads);
            double error = rms_error(f.got, f.want, outputs);
            if (!(error <= bound_of(columns[k], p)))
                fail_msg("%s, %s %ux%u n=%u threads %u: error %g (seed %llu)", columns[k]->name,
                         packing_name(p), rows, cols, n, threads, error,
                         (unsigned long long)d->seed);
            for (size_t i = 0; i < outputs; i++) /* between the rows nothing is touched */
                if (i % stride >= rows)
                    assert_true(f.got[i] == before[i]);
        }
    free(f.x);
    free(f.want);
    free(f.got);
    free(before);
    free_matrix(&m);
}

static void products_of_any_shape_are_within_their_bounds(void **state) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct dice d = {.seed = seed};
        enum packing p = packings[seed % 4];
        uint32_t n = 1 + dice_below(&d, seed % 3 ? 14 : 60);
        uint32_t cols = p == PACK_MXFP4 ? 32 * (1 + dice_below(&d, 9)) : 1 + dice_below(&d, 300);
        check_product(&d, p, 1 + dice_below(&d, 180), cols, n, dice_below(&d, 2));
    }
}

/* Sizes of tiles, ways to share out and distances of prefetching must not show in a result; what
 * adds up in another order (dots beside matrix tiles) stays near. */
static void every_variant_of_a_product_gives_the_default_result(void **state) {
    static const uint32_t batch[] = {1, 2, 3, 7, 13, 29, 70};
    const struct column *columns[CPU_COLUMNS];
    uint32_t n_columns = column_list(columns);
    /* The second one is given out by whole panels. */
    static const uint32_t shapes[2][2] = {{150, 1120}, {2100, 64}};
    enum { ROWS = 2100, COLS = 1120, N = 70 };
    struct dice d = {.seed = 9};
    float *x = malloc(N * COLS * 4), *usual = malloc(N * ROWS * 4), *got = malloc(N * ROWS * 4);
    uint32_t tried = 0;
    dice_fill(&d, x, N * COLS, 1);
    for (size_t k = 0; k < 8; k++) {
        enum packing p = packings[k % 4];
        const uint32_t out = shapes[k / 4][0], in = shapes[k / 4][1];
        const size_t step = (k < 4 ? 1 : 3) + OPS_SLOW;
        struct matrix m = matrix(&d, p == PACK_MXFP4 ? DTYPE_MXFP4 : DTYPE_BF16, out, in);
        pack(&m, p, 1);
        struct op op = {.kind = OP_LINEAR, .u.linear = {.n_parts = 1}};
        struct linear_part *part = &op.u.linear.part[0];
        *part = (struct linear_part){.w = m.w, .x = {x, in, in}};
        for (uint32_t i = 0; i < n_columns; i++)
            for (size_t b = OPS_SLOW; b < sizeof batch / sizeof *batch; b += step) {
                const struct batch rows = {.n_rows = batch[b]};
                struct variant all[OP_VARIANTS], v = {0};
                uint32_t n = column_variants(columns[i], &op, row_class_of(batch[b]), all);
                memset(op.variant, 0, sizeof op.variant);
                part->y = (struct tensor){usual, out, out};
                run_op(columns[i], &op, &rows, 1, 2);
                part->y.data = got;
                for (uint32_t turn = 0; turn < n; turn++, tried++) {
                    assert_true(take_variant(columns[i], &op, &rows, turn, &v));
                    memset(got, 0xFF, N * ROWS * 4);
                    run_op(columns[i], &op, &rows, 1, 2);
                    size_t floats = (size_t)batch[b] * out;
                    if (v.same_bits ? memcmp(got, usual, floats * 4) != 0
                                    : !(rms_error(got, usual, floats) < 1e-5))
                        fail_msg("%s, %s, %u rows: %s gives another result", columns[i]->name,
                                 packing_name(p), batch[b], v.name);
                }
            }
        free_matrix(&m);
    }
    assert_true(tried > 4 * n_columns);
    free(x);
    free(usual);
    free(got);
}

/* Longer than a pass over the columns, with enough rows to make passes. */
static void long_rows_are_summed_over_several_passes(void **state) {
    struct dice d = {.seed = 77};
    for (size_t k = 0; k < 4; k++)
        check_product(&d, packings[k], 80, 2336, 27, k % 2);
}

/* A row's result does not depend on how many others share the batch: in every column that keeps one
 * order of sums. */
static void a_row_alone_is_the_row_among_others(void **state) {
    const struct column *columns[CPU_COLUMNS];
    uint32_t n_columns = column_list(columns);
    enum { ROWS = 70, COLS = 1184, N = 29 };
    struct dice d = {.seed = 5};
    for (size_t k = 0; k < 4; k++) {
        struct matrix m =
            matrix(&d, packings[k] == PACK_MXFP4 ? DTYPE_MXFP4 : DTYPE_BF16, ROWS, COLS);
        float *x = malloc(N * COLS * 4), *all = malloc(N * ROWS * 4), one[ROWS];
        dice_fill(&d, x, N * COLS, 1);
        pack(&m, packings[k], 1);
        for (uint32_t i = 0; i < n_columns; i++) {
            struct op op = {.kind = OP_LINEAR, .u.linear = {.n_parts = 1}};
            op.u.linear.part[0] =
                (struct linear_part){.w = m.w, .x = {x, COLS, COLS}, .y = {all, ROWS, ROWS}};
            run_op(columns[i], &op, &(struct batch){.n_rows = N}, 1, 2);
            for (uint32_t j = 0; j < N; j += 7) {
                op.u.linear.part[0].x.data = x + j * COLS;
                op.u.linear.part[0].y.data = one;
                run_op(columns[i], &op, &(struct batch){.n_rows = 1}, 1, 1);
                if (!strncmp(columns[i]->name, "amx", 3)) {
                    /* Tiles add pairs of products first, a row alone goes without them. */
                    assert_true(rms_error(one, all + j * ROWS, ROWS) < 1e-5);
                    continue;
                }
                if (memcmp(one, all + j * ROWS, sizeof one))
                    fail_msg("%s, %s: row %u", columns[i]->name, packing_name(packings[k]), j);
            }
        }
        free(x);
        free(all);
        free_matrix(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_is_where_the_layout_says),
        cmocka_unit_test(only_what_has_a_packed_form_gets_one),
        cmocka_unit_test(products_of_any_shape_are_within_their_bounds),
        cmocka_unit_test(every_variant_of_a_product_gives_the_default_result),
        cmocka_unit_test(long_rows_are_summed_over_several_passes),
        cmocka_unit_test(a_row_alone_is_the_row_among_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
