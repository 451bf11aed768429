/* case_linear.c: products: merged parts, two terms, additions, BF16 results. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/gpu/pack.h"
#include "ops/ref/ref.h"

#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

static double worst_parts(const struct gpu_case *c) {
    const struct case_rows *y = c->own;
    double worst = 0;
    for (; y->rows; y++) {
        double e = case_error_rows(y, 1e-5);
        worst = e > worst ? e : worst;
    }
    return worst;
}

static struct weight weight_of(const uint16_t *w, uint32_t rows, uint32_t cols) {
    return (struct weight){.data = w, .dtype = DTYPE_BF16, .rows = rows, .cols = cols};
}

/* Every so many rows of it. */
static struct tensor thinned(struct tensor t, uint32_t every) {
    t.stride *= every;
    return t;
}

/* The numbers that codes and scales mean, as the packer leaves them. */
static struct weight weight_of_codes(struct gpu_case *c, const uint8_t *w, uint32_t rows,
                                     uint32_t cols) {
    float *value = case_host(c, (size_t)rows * cols * sizeof *value);
    const uint8_t *scales = w + (size_t)rows * GPU_FP8_ROW(cols);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < cols; k++) {
            float scale;
            memcpy(&scale, scales + (r * GPU_FP8_SCALES(cols) + k / GPU_FP8_SCALED) * sizeof scale,
                   sizeof scale);
            value[r * cols + k] = e4m3_to_f32(w[r * GPU_FP8_ROW(cols) + k]) * scale;
        }
    return (struct weight){.data = value, .dtype = DTYPE_F32, .rows = rows, .cols = cols};
}

/* A matrix at random, of the same size in all its columns or, as FP8, of another in each that share
 * a scale and of none in some. `seen`: what kernels get. */
static struct weight matrix(struct gpu_case *c, uint32_t rows, uint32_t cols, bool fp8,
                            const uint16_t **seen) {
    if (!fp8) {
        *seen = case_bf16_vector(c, (size_t)rows * cols, 0.02f);
        return weight_of(*seen, rows, cols);
    }
    uint16_t *stored = case_host(c, (size_t)rows * cols * sizeof *stored);
    float size = 0;
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        if (i % cols % GPU_FP8_SCALED == 0)
            size = 0.01f * (float)(case_bits(c) % 8);
        stored[i] = f32_to_bf16(case_float(c, size));
    }
    const struct weight w = weight_of(stored, rows, cols);
    uint8_t *codes = case_take(c, gpu_pack_fp8_bytes(&w));
    gpu_pack_fp8(codes, &w);
    *seen = (const uint16_t *)(const void *)codes;
    return weight_of_codes(c, codes, rows, cols);
}

/* rows of x, cols, rows of W of three parts (0: not there), cols of a second term, split (0: by the
 * rules), which parts are FP8 (bits). The first part's results are f32 and, with a second term,
 * added to; the second's BF16. */
static void make_linear(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t m = p[0], cols = p[1], cols2 = p[5];
    struct case_rows *y = case_host(c, 4 * sizeof *y);
    struct case_rows x = case_rows(c, m, cols, true, 1), x2 = {0};
    struct op_linear op = {0};
    struct gpu_linear *g = &c->record.linear;
    memset(g, 0, sizeof *g);
    g->x_rows = m;
    g->split = p[6];
    if (cols2)
        x2 = case_rows(c, m, cols2, true, 1);
    const uint32_t every =
        case_every(m, (double)(p[2] + p[3] + p[4]) * cols + (double)p[2] * cols2);
    for (uint32_t i = 0; i < 3 && p[2 + i]; i++) {
        uint32_t rows = p[2 + i];
        const bool two = i == 0 && cols2, fp8 = p[7] >> i & 1;
        const uint16_t *w, *w2 = NULL;
        struct weight of = matrix(c, rows, cols, fp8, &w), of2 = {0};
        if (two)
            of2 = matrix(c, rows, cols2, fp8, &w2);
        y[i] = two ? case_rows(c, m, rows, false, 1) : case_blank(c, m, rows, i == 1);
        y[i].every = every;
        y[i].group = 1;
        op.part[i] = (struct linear_part){.w = of,
                                          .w2 = of2,
                                          .x = thinned(x.host, every),
                                          .x2 = thinned(x2.host, every),
                                          .y = thinned(y[i].host, every),
                                          .add = two};
        g->part[i] = (struct gpu_linear_part){.w = w,
                                              .x = x.h,
                                              .w2 = w2,
                                              .x2 = x2.h,
                                              .y = y[i].f,
                                              .y16 = y[i].h,
                                              .rows = rows,
                                              .cols = cols,
                                              .cols2 = cols2,
                                              .x_stride = x.stride,
                                              .x2_stride = x2.stride,
                                              .y_stride = y[i].stride,
                                              .add = two,
                                              .fp8 = fp8,
                                              .fp8_2 = two && fp8};
        op.n_parts = g->n_parts = i + 1;
        c->traffic +=
            (double)rows * (cols + (two ? cols2 : 0)) * (fp8 ? 1 + 4.0 / GPU_FP8_SCALED : 2) +
            (double)m * rows * 4;
    }
    c->traffic += (double)m * (cols + cols2) * 2;
    ref_linear(&op, &(struct batch){.n_rows = gpu_divide_up(m, every)}, case_work(c, 0));
    c->launch = gpu_launch_linear(g, shape);
    c->worst = worst_parts;
    c->own = y;
    snprintf(c->label, sizeof c->label, "linear %u rows, %u x %u%s%s, split %u", m,
             p[2] + p[3] + p[4], cols, cols2 ? " and a second term" : "",
             !p[7]       ? ""
             : p[7] == 7 ? ", FP8"
                         : ", FP8 in part",
             g->split);
}
static const uint32_t linear_small[][CASE_PARAMETERS] = {
    {1, 8, 1, 0, 0, 0, 0},
    {1, 40, 5, 3, 0, 0, 1},
    {2, 264, 7, 0, 0, 40, 2},
    {3, 1048, 3, 2, 9, 0, 0},
    {4, 520, 17, 0, 0, 264, 4},
    {5, 40, 17, 3, 0, 0, 1},
    {7, 264, 16, 0, 0, 72, 2},
    {16, 1032, 33, 2, 18, 0, 4},
    {17, 72, 20, 0, 0, 0, 0},
    {33, 520, 16, 5, 0, 0, 2},
    {64, 64, 48, 0, 0, 32, 0},
    {65, 8, 1, 70, 0, 0, 0},
    {129, 200, 65, 9, 130, 0, 0},
    {130, 72, 63, 0, 0, 136, 0},
    {500, 200, 380, 0, 0, 40, 0},
    {257, 64, 124, 380, 0, 0, 0},
    {2100, 8, 130, 0, 0, 0, 0},
    /* FP8: columns that end within a vector, within a group, within the columns of a wave */
    {1, 8, 1, 0, 0, 0, 0, 7},
    {1, 40, 5, 3, 0, 0, 1, 7},
    {1, 1160, 9, 6, 4, 520, 0, 7},
    {1, 2056, 33, 7, 5, 0, 2, 5},
    {2, 264, 7, 0, 0, 40, 2, 7},
    {2, 1288, 6, 9, 3, 136, 0, 5},
    {1, 5000, 4, 4, 0, 0, 4, 7},
    {2, 3208, 3, 0, 0, 1160, 1, 7},
    {3, 1048, 3, 2, 9, 0, 0, 7},
    {4, 520, 17, 0, 0, 264, 4, 7},
    {5, 40, 17, 3, 0, 0, 1, 7},
    {8, 3080, 180, 20, 0, 0, 0, 7},
    {7, 264, 160, 80, 0, 72, 0, 2},
    {16, 1032, 33, 2, 18, 0, 4, 5},
    {12, 2312, 250, 9, 0, 264, 0, 1},
    {17, 72, 20, 0, 0, 0, 0, 7},
    {30, 1288, 330, 40, 0, 0, 0, 1},
    {1, 4104, 55, 5, 0, 0, 0, 7},
    {6, 520, 310, 9, 0, 0, 0, 7},
    {10, 1288, 17, 0, 0, 0, 0, 7},
    {32, 520, 41, 5, 0, 0, 2, 7},
    {25, 1160, 200, 3, 0, 72, 0, 1}};
static const uint32_t linear_large[][CASE_PARAMETERS] = {
    {1, 7168, 6284, 0, 0, 0, 0},      {1, 7168, 6144, 0, 0, 0, 0},
    {1, 7168, 3072, 0, 0, 0, 0},      {1, 3584, 7168, 0, 0, 0, 0},
    {1, 1536, 7168, 0, 0, 0, 0},      {1, 7168, 1536, 0, 0, 0, 0},
    {1, 7168, 896, 0, 0, 0, 0},       {1, 1536, 2304, 0, 0, 0, 0},
    {1, 768, 7168, 0, 0, 0, 0},       {2, 7168, 6284, 0, 0, 0, 0},
    {4, 7168, 6284, 0, 0, 0, 0},      {4, 7168, 896, 0, 0, 0, 0},
    {8, 7168, 6144, 0, 0, 0, 0},      {8, 7168, 6284, 0, 0, 0, 0},
    {8, 7168, 896, 0, 0, 0, 0},       {8, 1536, 7168, 0, 0, 0, 0},
    {16, 7168, 6284, 0, 0, 0, 0},     {32, 7168, 6284, 0, 0, 0, 0},
    {64, 7168, 6284, 0, 0, 0, 0},     {128, 7168, 6284, 0, 0, 0, 0},
    {512, 7168, 6284, 0, 0, 0, 0},    {512, 7168, 896, 0, 0, 0, 0},
    {512, 1536, 7168, 0, 0, 0, 0},    {4096, 7168, 6284, 0, 0, 0, 0},
    {4096, 3584, 7168, 0, 0, 0, 0},   {4096, 1536, 7168, 0, 0, 0, 0},
    {4096, 7168, 1536, 0, 0, 0, 0},   {1, 7168, 6284, 0, 0, 0, 0, 7},
    {1, 3584, 7168, 0, 0, 0, 0, 7},   {1, 1536, 7168, 0, 0, 0, 0, 7},
    {1, 7168, 896, 3584, 0, 0, 0, 6}, {2, 7168, 6284, 0, 0, 0, 0, 7},
    {4, 7168, 6284, 0, 0, 0, 0, 7},   {8, 7168, 6284, 0, 0, 0, 0, 7},
    {8, 1536, 7168, 0, 0, 0, 0, 7},   {16, 7168, 6284, 0, 0, 0, 0, 7},
    {32, 7168, 6284, 0, 0, 0, 0, 7}};
/* rows of x, heads, cols, rows of W of a head, whether there is a gate: x and y are heads side by
 * side. */
static void make_heads(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t m = p[0], heads = p[1], cols = p[2], rows = p[3];
    struct case_rows *y = case_host(c, 2 * sizeof *y), x = case_rows(c, m, heads * cols, true, 1),
                     gate = case_rows(c, m, heads * rows, true, 1);
    uint16_t *w = case_bf16_vector(c, (size_t)heads * rows * cols, 0.05f);
    y[0] = case_blank(c, m, heads * rows, true);
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t o = 0; o < rows; o++) {
                struct weight of = weight_of(w, heads * rows, cols);
                float sum = ref_dot(&of, h * rows + o, tensor_row(x.host, r) + h * cols);
                if (p[4])
                    sum *= ref_sigmoid(tensor_row(gate.host, r)[h * rows + o]);
                tensor_row(y[0].host, r)[h * rows + o] = sum;
            }
    struct gpu_linear *g = &c->record.linear;
    memset(g, 0, sizeof *g);
    g->n_parts = 1;
    g->x_rows = m;
    g->steps = heads;
    g->part[0] = (struct gpu_linear_part){.w = w,
                                          .x = x.h,
                                          .y16 = y[0].h,
                                          .rows = rows,
                                          .cols = cols,
                                          .x_stride = x.stride,
                                          .y_stride = y[0].stride,
                                          .w_step = rows * cols,
                                          .x_step = cols,
                                          .y_step = rows,
                                          .gate = p[4] ? gate.h : NULL,
                                          .gate_stride = gate.stride};
    c->launch = gpu_launch_linear(g, shape);
    c->traffic = 2.0 * heads * rows * cols + 2.0 * m * heads * (rows + cols);
    c->worst = worst_parts;
    c->own = y;
    snprintf(c->label, sizeof c->label, "heads %u rows, %u times %u x %u%s", m, heads, rows, cols,
             p[4] ? ", gate" : "");
}
static const uint32_t heads_small[][CASE_PARAMETERS] = {
    {1, 3, 32, 17, 1},  {2, 2, 72, 8, 0},   {4, 2, 128, 40, 1},   {6, 3, 64, 24, 1},
    {40, 2, 40, 16, 0}, {70, 2, 40, 17, 1}, {259, 3, 72, 140, 0}, {300, 2, 32, 128, 1}};
static const uint32_t heads_large[][CASE_PARAMETERS] = {
    {1, 12, 128, 512, 0},  {1, 12, 512, 128, 1},  {8, 12, 128, 512, 0},   {8, 12, 512, 128, 1},
    {64, 12, 128, 512, 0}, {64, 12, 512, 128, 1}, {512, 12, 128, 512, 0}, {512, 12, 512, 128, 1}};
const struct gpu_case_kind case_heads = {"heads", make_heads, SHAPES(heads_small),
                                         SHAPES(heads_large)};

const struct gpu_case_kind case_linear = {"linear", make_linear, SHAPES(linear_small),
                                          SHAPES(linear_large)};
