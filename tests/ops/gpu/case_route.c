/* case_route.c: choosing experts, with ties, biases, groups and both kinds of score. */
#include "tests/ops/gpu/cases.h"

#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

struct own {
    const int32_t *ids, *want_ids;
    const float *weights, *want;
    size_t n;
};

static double worst_route(const struct gpu_case *c) {
    const struct own *o = c->own;
    if (memcmp(o->ids, o->want_ids, o->n * sizeof *o->ids) != 0)
        return INFINITY;
    return case_error(o->weights, o->want, o->n, 1e-5);
}

/* rows, experts, top_k, groups, top_groups, softmax, ties. Logits are far enough apart that the
 * rounding of a score does not change the order; with ties many are the same. */
static void make_route(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], experts = p[1], top_k = p[2];
    struct case_rows logits = case_rows(c, rows, experts, false, 1);
    float *bias = p[6] ? NULL : case_take(c, experts * sizeof *bias);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t e = 0; e < experts; e++) {
            float v = p[6] ? floorf(case_float(c, 2))
                           : ((float)((e * 7919u + r * 31u) % experts) / (float)experts - 0.5f) *
                                 (p[5] ? 20.0f : 4.0f);
            tensor_row(logits.host, r)[e] = logits.f[(size_t)r * logits.stride + e] = v;
        }
    for (uint32_t e = 0; bias && e < experts; e++)
        bias[e] = p[5] ? 0 : (float)(e % 3) * 0.25f;
    struct own *o = case_host(c, sizeof *o);
    o->n = (size_t)rows * top_k;
    int32_t *ids = case_take(c, o->n * 4), *want_ids = case_host(c, o->n * 4);
    float *weights = case_take(c, o->n * 4), *want = case_host(c, o->n * 4);
    struct op_route op = {.logits = logits.host,
                          .bias = bias,
                          .ids = want_ids,
                          .weights = want,
                          .experts = experts,
                          .top_k = top_k,
                          .groups = p[3],
                          .top_groups = p[4],
                          .softmax = p[5],
                          .renormalize = !p[5],
                          .scale = 2.446f};
    ref_route(&op, &(struct batch){.n_rows = rows},
              case_work(c, (2 * experts + p[3]) * sizeof(float)));
    *o = (struct own){ids, want_ids, weights, want, o->n};
    c->record.route = (struct gpu_route){.logits = logits.f,
                                         .bias = bias,
                                         .ids = ids,
                                         .weights = weights,
                                         .rows = rows,
                                         .stride = logits.stride,
                                         .experts = experts,
                                         .top_k = top_k,
                                         .groups = p[3],
                                         .top_groups = p[4],
                                         .softmax = (uint8_t)p[5],
                                         .renormalize = !p[5],
                                         .scale = op.scale};
    c->launch = gpu_launch_route(&c->record.route);
    c->traffic = (double)rows * experts * 4 + (double)o->n * 8;
    c->worst = worst_route;
    c->own = o;
    snprintf(c->label, sizeof c->label, "route %u rows, %u of %u%s%s", rows, top_k, experts,
             p[5] ? ", softmax" : "", p[3] > 1 ? ", groups" : "");
}
static const uint32_t route_small[][CASE_PARAMETERS] = {
    {3, 6, 3, 1, 1, 0, 0},    {1, 1, 1, 1, 1, 0, 0},     {2, 24, 4, 4, 2, 0, 0},
    {3, 97, 8, 1, 1, 1, 0},   {2, 70, 16, 1, 1, 0, 1},   {1, 256, 8, 8, 4, 0, 1},
    {2, 896, 16, 1, 1, 0, 0}, {1, 1024, 32, 1, 1, 1, 0}, {3, 900, 31, 1, 1, 0, 1},
    {2, 40, 32, 1, 1, 0, 1}};
static const uint32_t route_large[][CASE_PARAMETERS] = {{1, 896, 16, 1, 1, 0, 0},
                                                        {32, 896, 16, 1, 1, 0, 0},
                                                        {128, 896, 16, 1, 1, 0, 0},
                                                        {4096, 896, 16, 1, 1, 0, 0}};
const struct gpu_case_kind case_route = {"route", make_route, SHAPES(route_small),
                                         SHAPES(route_large)};
