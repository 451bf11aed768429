/* case_norm.c: RMS norms and attention residuals. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/ref/ref.h"

#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

static double worst_rows(const struct gpu_case *c) {
    const struct case_rows *out = c->own;
    double worst = 0;
    for (; out->rows; out++) {
        double e = case_error_rows(out, 1e-4);
        worst = e > worst ? e : worst;
    }
    return worst;
}

/* rows, cols */
static void make_norm(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], cols = p[1];
    struct case_rows *out = case_host(c, 2 * sizeof *out), x = case_rows(c, rows, cols, false, 3);
    float *norm = case_f32_vector(c, cols, 0.3f, 1);
    out[0] = case_blank(c, rows, cols, true);
    struct op_norm op = {.x = x.host, .y = out[0].host, .norm = norm, .eps = 1e-5f};
    ref_norm(&op, &(struct batch){.n_rows = rows}, case_work(c, 0));
    c->record.norm = (struct gpu_norm){x.f, out[0].h, norm, cols, x.stride, out[0].stride, 1e-5f};
    c->launch = gpu_launch_norm(&c->record.norm, rows, shape);
    c->traffic = (double)rows * cols * (4 + 2) + 4.0 * cols;
    c->worst = worst_rows;
    c->own = out;
    snprintf(c->label, sizeof c->label, "norm %u x %u", rows, cols);
}
static const uint32_t norm_small[][CASE_PARAMETERS] = {{1, 1},  {3, 7},    {2, 64},
                                                       {2, 97}, {2, 1536}, {1, 8192}};
static const uint32_t norm_large[][CASE_PARAMETERS] = {
    {1, 1536}, {1, 3584}, {32, 3584}, {128, 3584}, {4096, 3584}};
const struct gpu_case_kind case_norm = {"norm", make_norm, SHAPES(norm_small), SHAPES(norm_large)};

enum { SMALL = 1, WAY = 16 };
/* rows, cols, bank entries, delta, replace, push, gather (rows of the batch; 0: none), SMALL values
 * (beside which eps counts: else the norm would hide a wrong sum of weights) and WAY times a
 * GPU_MIX_* */
static void make_mix(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], cols = p[1], n = p[2], entries = n + p[5];
    uint32_t from = p[6] ? p[6] : rows; /* rows of the batch */
    float unit = p[7] & SMALL ? 1e-3f : 1;
    struct case_rows *out = case_host(c, 4 * sizeof *out);
    struct case_rows prefix = case_rows(c, from, cols, true, 2 * unit),
                     delta = case_rows(c, from, cols, false, unit);
    struct case_rows bank = {.stride = prefix.stride};
    size_t stride = (size_t)from * prefix.stride;
    bank.h = case_take(c, entries * stride * 2);
    struct tensor *host = case_host(c, (entries + 1) * sizeof *host);
    for (uint32_t i = 0; i < entries; i++) {
        host[i] = (struct tensor){case_host(c, (size_t)from * cols * 4), cols, cols};
        for (uint32_t r = 0; r < from && i < n; r++)
            for (uint32_t k = 0; k < cols; k++) {
                tensor_row(host[i], r)[k] = case_bf16(c, (1 + (float)i) * unit);
                bank.h[i * stride + (size_t)r * bank.stride + k] =
                    f32_to_bf16(tensor_row(host[i], r)[k]);
            }
    }
    float *w = n ? case_f32_vector(c, cols, 0.05f, 0) : NULL; /* no model has one without sources */
    float *norm = case_f32_vector(c, cols, 0.3f, 1);
    int32_t *gather = NULL;
    struct batch_logits *logits = case_host(c, (rows + 1) * sizeof *logits);
    if (p[6])
        gather = case_take(c, rows * sizeof *gather);
    for (uint32_t i = 0; i < rows && p[6]; i++)
        logits[i].row = (uint32_t)(gather[i] = (int32_t)((i * 3 + 1) % from));
    out[0] = case_blank(c, rows, cols, true);
    struct op_mix_norm op = {.prefix = prefix.host,
                             .delta = p[3] ? delta.host : (struct tensor){0},
                             .out = out[0].host,
                             .bank = host,
                             .n_bank = n,
                             .replace = p[4],
                             .push = p[5],
                             .round_prefix = true,
                             .gather = p[6] != 0,
                             .c = w,
                             .norm = norm,
                             .eps = 1e-5f};
    ref_mix_norm(&op,
                 &(struct batch){.n_rows = from, .n_logits = p[6] ? rows : 0, .logits = logits},
                 case_work(c, 0));
    out[1] = prefix;
    out[2] = (struct case_rows){p[5] ? host[n] : host[0], bank.h + (p[5] ? n : 0) * stride, NULL,
                                p[5] || n ? from : 0, bank.stride};
    c->record.mix_norm = (struct gpu_mix_norm){.prefix = prefix.h,
                                               .delta = p[3] ? delta.f : NULL,
                                               .bank = bank.h,
                                               .out = out[0].h,
                                               .c = w,
                                               .norm = norm,
                                               .gather = gather,
                                               .bank_stride = stride,
                                               .rows = rows,
                                               .cols = cols,
                                               .stride = prefix.stride,
                                               .delta_stride = delta.stride,
                                               .out_stride = out[0].stride,
                                               .n_bank = n,
                                               .replace = (uint8_t)p[4],
                                               .push = (uint8_t)p[5],
                                               .way = (uint8_t)(p[7] / WAY),
                                               .eps = 1e-5f};
    c->launch = gpu_launch_mix_norm(&c->record.mix_norm, shape);
    c->traffic = (double)rows * cols * (2.0 * n + 2 + (p[3] ? 6 : 0) + (p[5] ? 2 : 0) + 2);
    c->worst = worst_rows;
    c->own = out;
    snprintf(c->label, sizeof c->label, "mix_norm %u x %u, %u sources%s%s%s%s, way %u", rows, cols,
             n + 1, p[3] ? ", delta" : "", p[4] ? ", replaces" : "", p[5] ? ", pushes" : "",
             p[6] ? ", gathers" : "", c->record.mix_norm.way);
}
static const uint32_t mix_small[][CASE_PARAMETERS] = {
    {2, 32, 0, 1, 1, 0, 0},
    {3, 256, 1, 1, 0, 0, 0},
    {2, 97, 3, 1, 0, 1, 0},
    {2, 256, 8, 1, 0, 0, 0},
    {1, 130, 9, 1, 0, 0, 0},
    {1, 260, 17, 0, 0, 0, 0, SMALL},
    {2, 64, 2, 1, 0, 0, 5},
    {1, 1048, 8, 1, 1, 1, 0},
    {2, 97, 3, 1, 0, 1, 0, WAY *GPU_MIX_BLOCK},
    {1, 260, 17, 0, 0, 0, 0, SMALL + WAY *GPU_MIX_BLOCK},
    {2, 64, 2, 1, 0, 0, 5, WAY *GPU_MIX_SPLIT_4},
    {1, 1110, 9, 1, 0, 1, 0, WAY *GPU_MIX_SPLIT_2},
    {1, 1030, 17, 1, 0, 0, 0, SMALL + WAY *GPU_MIX_SPLIT_8},
    {9, 264, 7, 0, 0, 0, 0, SMALL + WAY *GPU_MIX_MANY},
    {13, 1048, 8, 1, 0, 1, 0, WAY *GPU_MIX_MANY},
    {6, 64, 0, 1, 1, 1, 0, WAY *GPU_MIX_MANY},
};
static const uint32_t mix_large[][CASE_PARAMETERS] = {
    {1, 7168, 7, 1, 0, 0, 0},
    {1, 7168, 7, 1, 0, 0, 0, WAY *GPU_MIX_SPLIT_2},
    {1, 7168, 7, 1, 0, 0, 0, WAY *GPU_MIX_SPLIT_4},
    {1, 7168, 7, 0, 0, 0, 0},
    {32, 7168, 7, 1, 0, 0, 0},
    {32, 7168, 7, 1, 0, 0, 0, WAY *GPU_MIX_SPLIT_2},
    {64, 7168, 7, 1, 0, 0, 0},
    {128, 7168, 7, 1, 0, 0, 0},
    {128, 7168, 7, 0, 0, 0, 0},
    {128, 7168, 8, 1, 0, 0, 0},
    {512, 7168, 7, 1, 0, 0, 0},
    {4096, 7168, 7, 0, 0, 0, 0, WAY *GPU_MIX_MANY},
    {4096, 7168, 7, 0, 0, 0, 0},
    {4096, 7168, 7, 1, 0, 0, 0},
};
const struct gpu_case_kind case_mix_norm = {"mix_norm", make_mix, SHAPES(mix_small),
                                            SHAPES(mix_large)};
