/* case_experts.c: routed experts with MXFP4 or BF16 weights, for few rows and for many, choices by
 * expert, and the sum over experts. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/gpu/pack.h"
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

/* All experts, MXFP4: the first and the last scale are those at the ends of the format; one is NaN.
 */
enum { PLAIN, ENDS, NOT_A_NUMBER };
static struct weight *mxfp4(struct gpu_case *c, uint32_t experts, uint32_t rows, uint32_t cols,
                            int scales) {
    const size_t n = (size_t)rows * cols;
    uint8_t *codes = case_host(c, experts * n / 2), *scale = case_host(c, experts * n / 32);
    struct weight *w = case_host(c, experts * sizeof *w);
    for (size_t i = 0; i < experts * n / 2; i += 8) {
        const uint64_t bits = case_bits(c);
        memcpy(codes + i, &bits, 8);
    }
    for (size_t i = 0; i < experts * n / 32; i++)
        scale[i] = (uint8_t)(119 + (uint32_t)(case_unit(c) * 5));
    if (scales != PLAIN) {
        scale[0] = 0; /* 2^-127 */
        scale[experts * n / 32 - 1] = 131;
    }
    if (scales == NOT_A_NUMBER) {
        scale[n / 32] = 255; /* the first of expert 1; of zeros, which a large number leaves 0 */
        memset(codes + n / 2, 0, 16);
    }
    for (uint32_t e = 0; e < experts; e++)
        w[e] = (struct weight){.data = codes + e * n / 2,
                               .scale = scale + e * n / 32,
                               .dtype = DTYPE_MXFP4,
                               .rows = rows,
                               .cols = cols};
    return w;
}
static struct weight *bf16(struct gpu_case *c, uint32_t experts, uint32_t rows, uint32_t cols) {
    const size_t n = (size_t)rows * cols;
    uint16_t *numbers = case_host(c, experts * n * 2);
    struct weight *w = case_host(c, experts * sizeof *w);
    for (size_t i = 0; i < experts * n; i++)
        numbers[i] = f32_to_bf16(case_float(c, 0.05f));
    for (uint32_t e = 0; e < experts; e++)
        w[e] = (struct weight){
            .data = numbers + e * n, .dtype = DTYPE_BF16, .rows = rows, .cols = cols};
    return w;
}
/* As kernels read them. */
static uint8_t *packed(struct gpu_case *c, const struct weight *w, const struct weight *other,
                       uint32_t experts) {
    const size_t each = gpu_pack_bytes(w, other != NULL);
    uint8_t *to = case_take(c, experts * each);
    for (uint32_t e = 0; e < experts; e++)
        gpu_pack(to + e * each, &w[e], other ? &other[e] : NULL);
    return to;
}

/* Choices by expert, as gpu_group wants them. */
static void group(const int32_t *ids, size_t slots, uint32_t experts, uint32_t *offsets,
                  uint32_t *order) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < experts; e++) {
        offsets[e] = n;
        for (size_t i = 0; i < slots; i++)
            if (ids[i] == (int32_t)e)
                order[n++] = (uint32_t)i;
    }
    offsets[experts] = n;
}
static void give_groups(struct gpu_case *c, const int32_t *ids, uint32_t experts) {
    struct gpu_experts *a = &c->record.experts;
    uint32_t *offsets = case_take(c, (experts + 1) * sizeof *offsets);
    uint32_t *order = case_take(c, a->slots * sizeof *order);
    group(ids, a->slots, experts, offsets, order);
    a->offsets = offsets;
    a->order = order;
    a->ids = NULL;
}

enum { SILU = 1, BF16 = 2, MANY = 4, NAN_SCALE = 8 }; /* the last parameter */
static double weight_bytes(uint32_t flags) {
    return flags & BF16 ? 2 : 17.0 / 32;
}
static const char *flags_text(uint32_t flags) {
    static const char *const text[] = {"", ", BF16", ", many", ", BF16, many"};
    return text[flags / 2 % 4];
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

/* rows, width, inter, experts, top_k, experts that are chosen from, flags */
static void make_up(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], inter = p[2], experts = p[3], top_k = p[4];
    size_t slots = (size_t)rows * top_k;
    int32_t *host = case_host(c, slots * 4), *ids = choose(c, rows, top_k, p[5], host);
    struct weight *w1, *w3;
    if (p[6] & BF16) {
        w1 = bf16(c, experts, inter, width);
        w3 = bf16(c, experts, inter, width);
    } else {
        w1 = mxfp4(c, experts, inter, width, p[6] & NAN_SCALE ? NOT_A_NUMBER : ENDS);
        w3 = mxfp4(c, experts, inter, width, PLAIN);
    }
    struct case_rows z = case_rows(c, rows, width, true, 1), *h = case_host(c, sizeof *h);
    *h = case_blank(c, (uint32_t)slots, inter, true);
    struct glu act = {.situ = !(p[6] & SILU), .beta = 4, .linear_beta = 25};
    struct op_experts op = {.z = z.host,
                            .h = h->host,
                            .w1 = w1,
                            .w3 = w3,
                            .ids = host,
                            .experts = experts,
                            .top_k = top_k,
                            .act = act};
    h->group = top_k;
    h->every = case_every(rows, 2.0 * top_k * inter * width);
    const struct work work = case_work(c, 0);
    for (uint32_t r = 0; r < rows; r += h->every) {
        op.z.data = tensor_row(z.host, r);
        op.h.data = tensor_row(h->host, (size_t)r * top_k);
        op.ids = host + (size_t)r * top_k;
        ref_experts_up(&op, &(struct batch){.n_rows = 1}, work);
    }
    c->record.experts = (struct gpu_experts){.w = packed(c, w1, w3, experts),
                                             .x = z.h,
                                             .h = h->h,
                                             .ids = ids,
                                             .w_stride = gpu_pack_bytes(w1, true),
                                             .experts = experts,
                                             .slots = (uint32_t)slots,
                                             .top_k = top_k,
                                             .bf16 = p[6] & BF16 ? 1 : 0,
                                             .rows = inter,
                                             .cols = width,
                                             .x_stride = z.stride,
                                             .out_stride = h->stride,
                                             .situ = act.situ,
                                             .beta = act.beta,
                                             .linear_beta = act.linear_beta};
    if (p[6] & MANY)
        give_groups(c, host, experts);
    c->launch = p[6] & MANY ? gpu_launch_experts_up_many(&c->record.experts, shape)
                            : gpu_launch_experts_up(&c->record.experts, shape);
    c->traffic = bytes_read(host, slots, experts, 2.0 * inter * width * weight_bytes(p[6])) +
                 2.0 * (double)(rows * width + slots * inter);
    c->worst = worst_out;
    c->own = h;
    snprintf(c->label, sizeof c->label, "experts_up %u rows, %u of %u, %u x %u%s%s", rows, top_k,
             experts, inter, width, p[6] & SILU ? ", SiLU" : "", flags_text(p[6]));
}
static const uint32_t up_small[][CASE_PARAMETERS] = {{1, 32, 1, 3, 2, 3, 0},
                                                     {2, 96, 19, 6, 3, 6, 1},
                                                     {20, 128, 33, 4, 3, 4, 0},
                                                     {3, 1184, 16, 5, 2, 5, 0},
                                                     {20, 5216, 17, 4, 3, 4, 0},
                                                     {40, 96, 35, 7, 2, 3, SILU},
                                                     {3, 64, 20, 4, 2, 2, NAN_SCALE},
                                                     {2, 40, 19, 6, 3, 6, BF16 | SILU},
                                                     {20, 1160, 33, 4, 3, 4, BF16},
                                                     {33, 1160, 17, 5, 2, 3, BF16},
                                                     {3, 32, 5, 9, 2, 4, MANY | NAN_SCALE},
                                                     {200, 160, 140, 5, 2, 3, MANY},
                                                     {70, 416, 521, 3, 2, 3, MANY | SILU},
                                                     {90, 160, 40, 6, 4, 6, MANY},
                                                     {130, 32, 150, 5, 4, 5, MANY},
                                                     {200, 136, 136, 4, 2, 3, MANY | BF16},
                                                     {9, 8, 700, 3, 1, 3, MANY | BF16 | SILU}};
static const uint32_t up_large[][CASE_PARAMETERS] = {{1, 3584, 384, 128, 16, 128, 0},
                                                     {8, 3584, 384, 896, 16, 896, 0},
                                                     {32, 3584, 384, 896, 16, 896, 0},
                                                     {128, 3584, 384, 896, 16, 896, 0},
                                                     {512, 3584, 384, 896, 16, 896, MANY},
                                                     {4096, 3584, 384, 896, 16, 896, MANY},
                                                     {1024, 2304, 1024, 64, 8, 64, MANY | BF16},
                                                     {8, 2304, 1024, 64, 8, 64, BF16}};
const struct gpu_case_kind case_experts_up = {"experts_up", make_up, SHAPES(up_small),
                                              SHAPES(up_large)};

/* The same numbers; `each` is compared. */
static void make_down(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], inter = p[2], experts = p[3], top_k = p[4];
    size_t slots = (size_t)rows * top_k;
    int32_t *host = case_host(c, slots * 4), *ids = choose(c, rows, top_k, p[5], host);
    struct weight *w2 =
        p[6] & BF16 ? bf16(c, experts, width, inter)
                    : mxfp4(c, experts, width, inter, p[6] & NAN_SCALE ? NOT_A_NUMBER : ENDS);
    struct case_rows h = case_rows(c, (uint32_t)slots, inter, true, 1),
                     *each = case_host(c, sizeof *each);
    *each = case_blank(c, (uint32_t)slots, width, false);
    each->group = top_k;
    each->every = case_every(rows, 1.0 * top_k * inter * width);
    for (size_t i = 0; i < slots; i++)
        for (uint32_t o = 0; o < width && i / top_k % each->every == 0; o++)
            tensor_row(each->host, i)[o] = ref_dot(&w2[host[i]], o, tensor_row(h.host, i));
    c->record.experts = (struct gpu_experts){.w = packed(c, w2, NULL, experts),
                                             .x = h.h,
                                             .each = each->f,
                                             .ids = ids,
                                             .w_stride = gpu_pack_bytes(w2, false),
                                             .experts = experts,
                                             .slots = (uint32_t)slots,
                                             .top_k = top_k,
                                             .bf16 = p[6] & BF16 ? 1 : 0,
                                             .rows = width,
                                             .cols = inter,
                                             .x_stride = h.stride,
                                             .out_stride = each->stride};
    if (p[6] & MANY)
        give_groups(c, host, experts);
    c->launch = p[6] & MANY ? gpu_launch_experts_down_many(&c->record.experts, shape)
                            : gpu_launch_experts_down(&c->record.experts, shape);
    c->traffic = bytes_read(host, slots, experts, 1.0 * inter * width * weight_bytes(p[6])) +
                 (double)slots * (2.0 * inter + 4.0 * width);
    c->worst = worst_out;
    c->own = each;
    snprintf(c->label, sizeof c->label, "experts_down %u rows, %u of %u, %u x %u%s", rows, top_k,
             experts, width, inter, flags_text(p[6]));
}
static const uint32_t down_small[][CASE_PARAMETERS] = {{1, 1, 32, 3, 2, 3, 0},
                                                       {2, 67, 96, 6, 3, 6, 0},
                                                       {20, 300, 64, 4, 3, 4, 0},
                                                       {40, 300, 672, 7, 2, 3, 0},
                                                       {3, 40, 64, 4, 2, 2, NAN_SCALE},
                                                       {2, 67, 40, 6, 3, 6, BF16},
                                                       {20, 300, 264, 4, 3, 4, BF16},
                                                       {33, 140, 264, 5, 2, 3, BF16},
                                                       {3, 20, 32, 9, 2, 4, MANY | NAN_SCALE},
                                                       {200, 270, 160, 5, 2, 3, MANY},
                                                       {70, 1100, 288, 3, 2, 3, MANY},
                                                       {90, 70, 160, 6, 4, 6, MANY},
                                                       {130, 290, 32, 5, 4, 5, MANY},
                                                       {200, 270, 136, 4, 2, 3, MANY | BF16},
                                                       {9, 1030, 8, 3, 1, 3, MANY | BF16}};
static const uint32_t down_large[][CASE_PARAMETERS] = {{1, 3584, 384, 128, 16, 128, 0},
                                                       {8, 3584, 384, 896, 16, 896, 0},
                                                       {32, 3584, 384, 896, 16, 896, 0},
                                                       {128, 3584, 384, 896, 16, 896, 0},
                                                       {512, 3584, 384, 896, 16, 896, MANY},
                                                       {4096, 3584, 384, 896, 16, 896, MANY},
                                                       {1024, 2304, 1024, 64, 8, 64, MANY | BF16},
                                                       {8, 2304, 1024, 64, 8, 64, BF16}};
const struct gpu_case_kind case_experts_down = {"experts_down", make_down, SHAPES(down_small),
                                                SHAPES(down_large)};

/* rows, width, top_k, norm, f32 results */
static void make_combine(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], width = p[1], top_k = p[2];
    struct case_rows each = case_rows(c, rows * top_k, width, false, 1),
                     *out = case_host(c, sizeof *out);
    float *weights = case_f32_vector(c, (size_t)rows * top_k, 0.3f, 0.5f);
    float *norm = p[3] ? case_f32_vector(c, width, 0.2f, 1) : NULL;
    *out = case_blank(c, rows, width, !p[4]);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < width; k++)
            for (uint32_t j = 0; j < top_k; j++)
                tensor_row(out->host, r)[k] +=
                    weights[r * top_k + j] * tensor_row(each.host, r * top_k + j)[k];
    struct op_norm op = {.x = out->host, .y = out->host, .norm = norm, .eps = 1e-5f};
    if (norm)
        ref_norm(&op, &(struct batch){.n_rows = rows}, case_work(c, 0));
    c->record.combine = (struct gpu_combine){.each = each.f,
                                             .weights = weights,
                                             .out = out->h,
                                             .out32 = out->f,
                                             .norm = norm,
                                             .top_k = top_k,
                                             .cols = width,
                                             .each_stride = each.stride,
                                             .out_stride = out->stride,
                                             .eps = 1e-5f};
    c->launch = gpu_launch_combine(&c->record.combine, rows, shape);
    c->traffic = (double)rows * width * (4.0 * top_k + 2);
    c->worst = worst_out;
    c->own = out;
    snprintf(c->label, sizeof c->label, "combine %u rows of %u choices, %u%s%s", rows, top_k, width,
             p[3] ? ", norm" : "", p[4] ? ", f32" : "");
}
static const uint32_t combine_small[][CASE_PARAMETERS] = {
    {1, 1, 1, 1},       {3, 70, 3, 0},    {2, 1032, 4, 1}, {3, 70, 3, 0, 1},
    {2, 1030, 4, 1, 1}, {1, 2054, 17, 1}, {1, 4100, 5, 1}, {1, 4100, 5, 0, 1}};
static const uint32_t combine_large[][CASE_PARAMETERS] = {{1, 3584, 16, 1},   {32, 3584, 16, 1},
                                                          {128, 3584, 16, 1}, {1024, 3584, 16, 1},
                                                          {1, 2304, 8, 0, 1}, {128, 2304, 8, 0, 1}};
const struct gpu_case_kind case_combine = {"combine", make_combine, SHAPES(combine_small),
                                           SHAPES(combine_large)};

/* slots, experts, experts that are chosen from, every so many is nobody's (0: none) */
static double worst_group(const struct gpu_case *c) {
    const struct gpu_group *a = &c->record.group;
    const uint32_t *want = c->own; /* offsets, then order */
    bool same = memcmp(a->offsets, want, (a->experts + 1) * sizeof *want) == 0 &&
                memcmp(a->order, want + a->experts + 1, a->slots * sizeof *want) == 0;
    return same ? 0 : INFINITY;
}
static void make_group(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t slots = p[0], experts = p[1];
    int32_t *ids = case_take(c, slots * sizeof *ids);
    uint32_t *want = case_host(c, (experts + 1 + (size_t)slots) * sizeof *want);
    for (uint32_t i = 0; i < slots; i++)
        ids[i] = p[3] && i % p[3] == 0 ? -1 : (int32_t)(case_unit(c) * p[2]);
    memset(want, 0xFF, (experts + 1 + (size_t)slots) * sizeof *want); /* as nobody has written */
    group(ids, slots, experts, want, want + experts + 1);
    c->record.group = (struct gpu_group){.ids = ids,
                                         .offsets = case_take(c, (experts + 1) * 4),
                                         .order = case_take(c, slots * 4),
                                         .slots = slots,
                                         .experts = experts};
    c->launch = gpu_launch_group(&c->record.group);
    c->traffic = 8.0 * slots + 4.0 * experts;
    c->worst = worst_group;
    c->own = want;
    snprintf(c->label, sizeof c->label, "group %u choices of %u experts", slots, experts);
}
static const uint32_t group_small[][CASE_PARAMETERS] = {
    {1, 1, 1, 0}, {300, 9, 9, 0}, {3000, 40, 11, 7}, {600, 16, 16, 2}, {513, 896, 896, 0}};
static const uint32_t group_large[][CASE_PARAMETERS] = {
    {16, 896, 896, 0}, {2048, 896, 896, 0}, {16384, 896, 896, 0}, {65536, 896, 896, 0}};
const struct gpu_case_kind case_group = {"group", make_group, SHAPES(group_small),
                                         SHAPES(group_large)};
