/* case_experts.c: routed experts with MXFP4 weights, and the sum over them. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

static double worst_out(const struct gpu_case *c) {
    const struct case_rows *out = c->own;
    return case_error_rows(out, 1e-4);
}

/* Different experts for a row, as a router chooses them; of `chosen` experts at most, so that some
 * are everybody's. */
static int32_t *choose(struct gpu_case *c, uint32_t rows, uint32_t top_k, uint32_t chosen,
                       int32_t *host) {
    int32_t *ids = case_take(c, (size_t)rows * top_k * sizeof *ids);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < top_k; j++) {
            bool taken = true;
            int32_t e = 0;
            while (taken) {
                taken = false;
                e = (int32_t)(case_unit(c) * chosen);
                for (uint32_t i = 0; i < j; i++)
                    taken |= ids[r * top_k + i] == e;
            }
            ids[r * top_k + j] = host[r * top_k + j] = e;
        }
    return ids;
}

/* Codes and scales of all experts; the first scales are those at the ends of the format. */
struct mxfp4 {
    uint8_t *codes, *scales;
    struct weight *weight; /* [experts] */
};
static struct mxfp4 matrices(struct gpu_case *c, uint32_t experts, uint32_t rows, uint32_t cols,
                             bool ends) {
    size_t n = (size_t)rows * cols;
    struct mxfp4 m = {case_take(c, experts * n / 2), case_take(c, experts * n / 32),
                      case_host(c, experts * sizeof(struct weight))};
    for (size_t i = 0; i < experts * n / 2; i += 2) {
        uint64_t bits = (uint64_t)(case_unit(c) * 65536);
        m.codes[i] = (uint8_t)bits;
        m.codes[i + 1] = (uint8_t)(bits >> 8);
    }
    for (size_t i = 0; i < experts * n / 32; i++)
        m.scales[i] = (uint8_t)(119 + (uint32_t)(case_unit(c) * 5));
    if (ends) {
        m.scales[0] = 0; /* 2^-127 */
        m.scales[experts * n / 32 - 1] = 131;
    }
    for (uint32_t e = 0; e < experts; e++)
        m.weight[e] = (struct weight){.data = m.codes + e * n / 2,
                                      .scale = m.scales + e * n / 32,
                                      .dtype = DTYPE_MXFP4,
                                      .rows = rows,
                                      .cols = cols};
    return m;
}

static double bytes_read(const int32_t *ids, size_t slots, uint32_t experts, double of_each) {
    double n = 0;
    for (uint32_t e = 0; e < experts; e++) {
        bool chosen = false;
        for (size_t i = 0; i < slots; i++)
            chosen |= ids[i] == (int32_t)e;
        n += chosen;
    }
    return n * of_each;
}

/* rows, width, inter, experts, top_k, experts that are chosen from, plain SiLU */
static void make_up(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], inter = p[2], experts = p[3], top_k = p[4];
    size_t slots = (size_t)rows * top_k;
    int32_t *host = case_host(c, slots * 4), *ids = choose(c, rows, top_k, p[5], host);
    struct mxfp4 w1 = matrices(c, experts, inter, width, true),
                 w3 = matrices(c, experts, inter, width, false);
    struct case_rows z = case_rows(c, rows, width, true, 1), *h = case_host(c, sizeof *h);
    *h = case_blank(c, (uint32_t)slots, inter, true);
    struct glu act = {.situ = !p[6], .beta = 4, .linear_beta = 25};
    struct op_experts op = {.z = z.host,
                            .h = h->host,
                            .w1 = w1.weight,
                            .w3 = w3.weight,
                            .ids = host,
                            .experts = experts,
                            .top_k = top_k,
                            .act = act};
    ref_experts_up(&op, &(struct batch){.n_rows = rows}, case_work(c, 0));
    c->record.experts = (struct gpu_experts){.codes = {w1.codes, w3.codes},
                                             .scales = {w1.scales, w3.scales},
                                             .x = z.h,
                                             .h = h->h,
                                             .ids = ids,
                                             .codes_stride = (uint64_t)inter * width / 2,
                                             .scales_stride = (uint64_t)inter * width / 32,
                                             .slots = (uint32_t)slots,
                                             .top_k = top_k,
                                             .rows = inter,
                                             .cols = width,
                                             .x_stride = z.stride,
                                             .out_stride = h->stride,
                                             .situ = act.situ,
                                             .beta = act.beta,
                                             .linear_beta = act.linear_beta};
    c->launch = gpu_launch_experts_up(&c->record.experts);
    c->traffic = bytes_read(host, slots, experts, 2.0 * inter * width * 17 / 32) +
                 2.0 * (double)(rows * width + slots * inter);
    c->worst = worst_out;
    c->own = h;
    snprintf(c->label, sizeof c->label, "experts_up %u rows, %u of %u, %u x %u%s", rows, top_k,
             experts, inter, width, p[6] ? ", SiLU" : "");
}
static const uint32_t up_small[][CASE_PARAMETERS] = {{1, 32, 1, 3, 2, 3, 0},
                                                     {2, 96, 19, 6, 3, 6, 1},
                                                     {20, 128, 33, 4, 3, 4, 0},
                                                     {3, 1184, 16, 5, 2, 5, 0}};
static const uint32_t up_large[][CASE_PARAMETERS] = {{1, 3584, 384, 128, 16, 128, 0},
                                                     {8, 3584, 384, 224, 16, 224, 0},
                                                     {32, 3584, 384, 448, 16, 448, 0}};
const struct gpu_case_kind case_experts_up = {"experts_up", make_up, SHAPES(up_small),
                                              SHAPES(up_large)};

/* The same numbers; `each` is compared. */
static void make_down(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], inter = p[2], experts = p[3], top_k = p[4];
    size_t slots = (size_t)rows * top_k;
    int32_t *host = case_host(c, slots * 4), *ids = choose(c, rows, top_k, p[5], host);
    struct mxfp4 w2 = matrices(c, experts, width, inter, true);
    struct case_rows h = case_rows(c, (uint32_t)slots, inter, true, 1),
                     *each = case_host(c, sizeof *each);
    *each = case_blank(c, (uint32_t)slots, width, false);
    for (size_t i = 0; i < slots; i++)
        for (uint32_t o = 0; o < width; o++)
            tensor_row(each->host, i)[o] = ref_dot(&w2.weight[host[i]], o, tensor_row(h.host, i));
    c->record.experts = (struct gpu_experts){.codes = {w2.codes},
                                             .scales = {w2.scales},
                                             .x = h.h,
                                             .each = each->f,
                                             .ids = ids,
                                             .codes_stride = (uint64_t)inter * width / 2,
                                             .scales_stride = (uint64_t)inter * width / 32,
                                             .slots = (uint32_t)slots,
                                             .top_k = top_k,
                                             .rows = width,
                                             .cols = inter,
                                             .x_stride = h.stride,
                                             .out_stride = each->stride};
    c->launch = gpu_launch_experts_down(&c->record.experts, shape);
    c->traffic = bytes_read(host, slots, experts, 1.0 * inter * width * 17 / 32) +
                 (double)slots * (2.0 * inter + 4.0 * width);
    c->worst = worst_out;
    c->own = each;
    snprintf(c->label, sizeof c->label, "experts_down %u rows, %u of %u, %u x %u", rows, top_k,
             experts, width, inter);
}
static const uint32_t down_small[][CASE_PARAMETERS] = {
    {1, 1, 32, 3, 2, 3, 0}, {2, 67, 96, 6, 3, 6, 0}, {20, 300, 64, 4, 3, 4, 0}};
static const uint32_t down_large[][CASE_PARAMETERS] = {{1, 3584, 384, 128, 16, 128, 0},
                                                       {8, 3584, 384, 224, 16, 224, 0},
                                                       {32, 3584, 384, 448, 16, 448, 0}};
const struct gpu_case_kind case_experts_down = {"experts_down", make_down, SHAPES(down_small),
                                                SHAPES(down_large)};

/* rows, width, top_k, norm */
static void make_combine(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], top_k = p[2];
    struct case_rows each = case_rows(c, rows * top_k, width, false, 1),
                     *out = case_host(c, sizeof *out);
    float *weights = case_f32_vector(c, (size_t)rows * top_k, 0.3f, 0.5f);
    float *norm = p[3] ? case_f32_vector(c, width, 0.2f, 1) : NULL;
    *out = case_blank(c, rows, width, true);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < width; k++)
            for (uint32_t j = 0; j < top_k; j++)
                tensor_row(out->host, r)[k] +=
                    weights[r * top_k + j] * tensor_row(each.host, r * top_k + j)[k];
    struct op_norm op = {.x = out->host, .y = out->host, .norm = norm, .eps = 1e-5f};
    if (norm)
        ref_norm(&op, &(struct batch){.n_rows = rows}, case_work(c, 0));
    c->record.combine = (struct gpu_combine){each.f, weights,     out->h,      norm, top_k,
                                             width,  each.stride, out->stride, 1e-5f};
    c->launch = gpu_launch_combine(&c->record.combine, rows);
    c->traffic = (double)rows * width * (4.0 * top_k + 2);
    c->worst = worst_out;
    c->own = out;
    snprintf(c->label, sizeof c->label, "combine %u rows of %u choices, %u%s", rows, top_k, width,
             p[3] ? ", norm" : "");
}
static const uint32_t combine_small[][CASE_PARAMETERS] = {
    {1, 1, 1, 1}, {3, 70, 3, 0}, {2, 1032, 4, 1}};
static const uint32_t combine_large[][CASE_PARAMETERS] = {
    {1, 3584, 16, 1}, {32, 3584, 16, 1}, {128, 3584, 16, 1}};
const struct gpu_case_kind case_combine = {"combine", make_combine, SHAPES(combine_small),
                                           SHAPES(combine_large)};
