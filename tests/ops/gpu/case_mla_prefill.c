/* case_mla_prefill.c: latent attention of many rows in the expanded form: history out of its pages,
 * and attention over keys and values that are there. */
#include "tests/ops/gpu/case_mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

/* --------------------------------------------------------------------------- out of pages */

struct gathered {
    const uint16_t *latents;
    uint16_t *want;
    size_t n;
};

static double worst_gather(const struct gpu_case *c) {
    const struct gathered *o = c->own;
    return memcmp(o->latents, o->want, o->n * sizeof *o->want) == 0 ? 0 : INFINITY;
}

/* spans, latent, extra, first position and end of the first span; those of others are further on */
static void make_gather_of(struct gpu_case *c, const uint32_t *p, enum dtype dtype) {
    const uint32_t latent = p[1], extra = p[2], width = latent + extra;
    struct gathered *o = case_host(c, sizeof *o);
    struct gpu_mla_prefill *r = &c->record.mla_prefill;
    const size_t record = kv_record_bytes(dtype, latent, extra), page = 2 * 64 * record;
    uint32_t positions = 0, pages = 0;
    for (uint32_t i = 0; i < p[0]; i++) {
        const uint32_t from = p[3] + 64 * i, end = p[4] + 77 * i;
        r->span[i] =
            (struct gpu_mla_span){.first_page = pages, .from = from, .end = end, .at = positions};
        positions += end - from;
        pages += (end + 63) / 64;
    }
    uint8_t *pool = case_take(c, pages * page);
    int32_t *table = case_take(c, pages * sizeof *table);
    uint16_t *latents = case_take(c, (size_t)positions * width * sizeof *latents);
    float *x = case_host(c, width * sizeof *x);
    o->n = (size_t)positions * width;
    o->want = case_host(c, o->n * sizeof *o->want);
    o->latents = latents;
    for (uint32_t k = 0; k < pages; k++)
        table[k] = (int32_t)(pages - 1 - k);
    for (uint32_t i = 0; i < p[0]; i++)
        for (uint32_t t = r->span[i].from; t < r->span[i].end; t++) {
            unsigned char *to =
                pool + (size_t)table[r->span[i].first_page + t / 64] * page + page / 2;
            for (uint32_t k = 0; k < width; k++)
                x[k] = case_bf16(c, 1);
            case_put_record(to + t % 64 * record, x, dtype, latent, extra, true);
            for (uint32_t k = 0; k < width; k++)
                o->want[(size_t)(r->span[i].at + t - r->span[i].from) * width + k] =
                    f32_to_bf16(x[k]);
        }
    r->history = pool + page / 2;
    r->pages = table;
    r->latents = latents;
    r->page_bytes = page;
    r->record_bytes = (uint32_t)record;
    r->fp8 = dtype == DTYPE_FP8;
    r->latent = latent;
    r->extra = extra;
    r->n_spans = p[0];
    c->launch = gpu_launch_mla_gather(r);
    c->traffic = positions * ((double)record + 2 * width);
    c->worst = worst_gather;
    c->own = o;
    snprintf(c->label, sizeof c->label, "mla_gather%s %u spans, %u positions of %u+%u",
             r->fp8 ? "_fp8" : "", p[0], positions, latent, extra);
}
static void make_gather(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    (void)shape;
    make_gather_of(c, p, DTYPE_BF16);
}
static void make_gather_fp8(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    (void)shape;
    make_gather_of(c, p, DTYPE_FP8);
}
static const uint32_t gather_small[][CASE_PARAMETERS] = {
    {1, 24, 8, 0, 70}, {3, 64, 16, 64, 100}, {2, 512, 64, 128, 192}};
static const uint32_t gather_large[][CASE_PARAMETERS] = {{1, 512, 64, 0, 16384}};
const struct gpu_case_kind case_mla_gather = {"mla_gather", make_gather, SHAPES(gather_small),
                                              SHAPES(gather_large)};
const struct gpu_case_kind case_mla_gather_fp8 = {"mla_gather_fp8", make_gather_fp8,
                                                  SHAPES(gather_small), SHAPES(gather_large)};

/* --------------------------------------------------------------------------- attention */

struct attended {
    struct case_rows q, gate, out, kv, latents;
    float *sum_before, *state_before; /* as they were */
    uint32_t step;                    /* of rows that are looked at */
};

/* One head of row i of a span, in double. */
struct sum {
    double top, total, value[GPU_VALUE_MOST];
};
static void attend(const struct gpu_mla_prefill *r, const struct attended *o,
                   const struct gpu_mla_span *m, uint32_t i, uint32_t head, struct sum *s) {
    const uint32_t position = m->pos0 + i, width = r->nope + r->extra;
    const float *q = tensor_row(o->q.host, m->row0 + i) + (size_t)head * width;
    const size_t state = (size_t)(m->row0 + i) * r->heads + head;
    *s = (struct sum){.top = -INFINITY};
    if (m->from > 0) {
        s->top = o->state_before[state * 2];
        s->total = o->state_before[state * 2 + 1];
        for (uint32_t k = 0; k < r->v_dim; k++)
            s->value[k] = o->sum_before[state * r->v_dim + k];
    }
    for (uint32_t t = m->from; t < m->end && t <= position; t++) {
        const size_t row = m->at + t - m->from;
        const float *kv = tensor_row(o->kv.host, row) + (size_t)head * (r->nope + r->v_dim);
        const float *extra = tensor_row(o->latents.host, row) + r->latent;
        float lane[8] = {0};
        for (uint32_t k = 0; k < r->nope; k++)
            lane[k % 8] += q[k] * kv[k];
        for (uint32_t k = 0; k < r->extra; k++)
            lane[k % 8] += q[r->nope + k] * extra[k];
        double score = 0;
        for (int k = 0; k < 8; k++)
            score += (double)lane[k];
        score *= (double)r->scale * 1.4426950408889634;
        if (score > s->top) {
            const double factor = exp2(s->top - score);
            s->total *= factor;
            for (uint32_t k = 0; k < r->v_dim; k++)
                s->value[k] *= factor;
            s->top = score;
        }
        const double p = exp2(score - s->top);
        s->total += p;
        for (uint32_t k = 0; k < r->v_dim; k++)
            s->value[k] += p * (double)kv[r->nope + k];
    }
}

static bool untouched(const uint16_t *x, uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        if (x[k] != 0xFFFF)
            return false;
    return true;
}

static double worst_row(const struct gpu_mla_prefill *r, const struct attended *o,
                        const struct gpu_mla_span *m, uint32_t i, uint32_t head) {
    const size_t row = m->row0 + i, state = row * r->heads + head;
    const uint16_t *got16 = o->out.h + row * o->out.stride + (size_t)head * r->v_dim;
    float want[GPU_VALUE_MOST], got[GPU_VALUE_MOST];
    double square = 0, worst = 0;
    struct sum s;
    if (m->pos0 + i < m->from) /* it was done before */
        return untouched(got16, r->v_dim) ? 0 : INFINITY;
    attend(r, o, m, i, head, &s);
    const bool goes_on = m->pos0 + i >= m->end;
    if (goes_on && !untouched(got16, r->v_dim))
        return INFINITY;
    for (uint32_t k = 0; k < r->v_dim; k++) {
        want[k] = (float)(s.value[k] / s.total);
        square += (double)want[k] * want[k];
        got[k] = goes_on ? r->sum[state * r->v_dim + k] / r->state[state * 2 + 1]
                         : bf16_to_f32(got16[k]);
        if (!goes_on && o->gate.h)
            want[k] *= 1 / (1 + expf(-tensor_row(o->gate.host, row)[head * r->v_dim + k]));
    }
    /* Weights are rounded to BF16, and so are results. */
    const double slack = 1e-2 * sqrt(square / r->v_dim);
    for (uint32_t k = 0; k < r->v_dim; k++) {
        const double allowed = slack + (goes_on ? 0 : fabs((double)want[k]) * 0x1p-8);
        const double error = fabs((double)got[k] - want[k]) / allowed;
        worst = isnan(error) ? INFINITY : fmax(worst, error);
    }
    if (goes_on)
        worst = fmax(worst, fabs(r->state[state * 2] + log2(r->state[state * 2 + 1]) - s.top -
                                 log2(s.total)) /
                                5e-3);
    return worst;
}

static double worst_attend(const struct gpu_case *c) {
    const struct gpu_mla_prefill *r = &c->record.mla_prefill;
    const struct attended *o = c->own;
    double worst = 0;
    for (uint32_t i = 0; i < r->n_spans; i++)
        for (uint32_t unit = 0; unit < r->span[i].rows * r->heads; unit += o->step)
            worst = fmax(worst, worst_row(r, o, &r->span[i], unit / r->heads, unit % r->heads));
    return worst;
}

static const struct {
    uint32_t latent, extra, nope, v_dim;
} dims[] = {{512, 64, 128, 128}, {24, 8, 16, 16}, {64, 16, 32, 24}};

/* dims, heads, rows of the first span and its position, from, end (0: all there is), spans, one of
 * how many results is looked at */
static void make_attend(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    struct gpu_mla_prefill *r = &c->record.mla_prefill;
    struct attended *o = case_host(c, sizeof *o);
    r->latent = dims[p[0]].latent;
    r->extra = dims[p[0]].extra;
    r->nope = dims[p[0]].nope;
    r->v_dim = dims[p[0]].v_dim;
    r->heads = p[1];
    r->n_spans = p[6];
    r->record_bytes = (uint32_t)kv_record_bytes(DTYPE_BF16, r->latent, r->extra);
    r->scale = 1 / sqrtf((float)(r->nope + r->extra));
    uint32_t rows = 3, positions = 5; /* what lies in front is others' */
    double pairs = 0;
    for (uint32_t i = 0; i < p[6]; i++) {
        const uint32_t n = p[2] > 37 * i ? p[2] - 37 * i : 1, pos0 = p[3] + 100 * i;
        const uint32_t end = p[5] && p[5] < pos0 + n ? p[5] : pos0 + n;
        r->span[i] = (struct gpu_mla_span){
            .row0 = rows, .rows = n, .pos0 = pos0, .from = p[4], .end = end, .at = positions};
        rows += n;
        positions += end - p[4];
        for (uint32_t k = 0; k < n; k++)
            pairs += fmin(pos0 + k + 1, end) - fmin(pos0 + k + 1, p[4]);
    }
    const size_t states = (size_t)rows * r->heads, sums = states * r->v_dim;
    const bool pieces = p[4] || p[5];
    o->q = case_rows(c, rows, r->heads * (r->nope + r->extra), true, 1);
    o->kv = case_rows(c, positions, r->heads * (r->nope + r->v_dim), true, 1);
    o->latents = case_rows(c, 1, r->latent + r->extra, true, 1);
    /* Rows of history are not apart. */
    const uint32_t width = r->latent + r->extra;
    o->latents.host =
        (struct tensor){case_host(c, (size_t)positions * width * sizeof(float)), width, width};
    o->latents.h = case_bf16_vector(c, (size_t)positions * width, 1);
    for (size_t k = 0; k < (size_t)positions * width; k++)
        o->latents.host.data[k] = bf16_to_f32(o->latents.h[k]);
    if (p[6] % 2)
        o->gate = case_rows(c, rows, r->heads * r->v_dim, true, 1);
    o->out = case_blank(c, rows, r->heads * r->v_dim, true);
    o->step = p[7] ? p[7] : 1;
    if (pieces) {
        r->sum = case_f32_vector(c, sums, 1, 0);
        r->state = case_f32_vector(c, states * 2, 1, 0);
        for (size_t k = 0; k < states; k++)
            r->state[2 * k + 1] = 1 + (float)case_unit(c) * 30;
        o->sum_before = case_host(c, sums * sizeof(float));
        o->state_before = case_host(c, states * 2 * sizeof(float));
        memcpy(o->sum_before, r->sum, sums * sizeof(float));
        memcpy(o->state_before, r->state, states * 2 * sizeof(float));
    }
    r->latents = o->latents.h;
    r->kv = o->kv.h;
    r->kv_stride = o->kv.stride;
    r->q = o->q.h;
    r->q_stride = o->q.stride;
    r->gate = o->gate.h;
    r->gate_stride = o->gate.stride;
    r->out = o->out.h;
    r->out_stride = o->out.stride;
    c->launch = gpu_launch_mla_attend(r, shape);
    c->traffic = 2.0 * r->heads *
                 (positions * (double)(r->nope + r->v_dim) +
                  rows * (double)(r->nope + r->extra + 2 * r->v_dim));
    c->worst = worst_attend;
    c->own = o;
    snprintf(c->label, sizeof c->label,
             "%s %u spans, %u rows at %u, positions %u to %u, %u heads, %.4f TFLOP",
             gpu_kernel_info(c->launch.kernel)->name, p[6], p[2], p[3], p[4], r->span[0].end, p[1],
             2e-12 * pairs * r->heads * (r->nope + r->extra + r->v_dim));
}
static const uint32_t attend_small[][CASE_PARAMETERS] = {
    {1, 3, 70, 0, 0, 0, 1, 0},    {2, 2, 90, 40, 0, 0, 3, 0}, {1, 1, 100, 30, 64, 100, 2, 0},
    {0, 1, 130, 70, 0, 0, 1, 0},  {0, 2, 140, 0, 0, 0, 2, 0}, {0, 1, 200, 10, 64, 192, 2, 0},
    {0, 1, 20, 200, 128, 0, 1, 0}};
static const uint32_t attend_large[][CASE_PARAMETERS] = {{0, 12, 4096, 0, 0, 0, 1, 997},
                                                         {0, 12, 16384, 0, 0, 0, 1, 6007},
                                                         {0, 12, 4096, 0, 0, 0, 4, 4001},
                                                         {0, 12, 2048, 14336, 0, 0, 1, 997}};
const struct gpu_case_kind case_mla_attend = {"mla_attend", make_attend, SHAPES(attend_small),
                                              SHAPES(attend_large)};
