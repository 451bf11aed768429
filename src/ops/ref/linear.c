/* linear.c: dot products with weights as stored, and everything that is only a dot product per row:
 * projections, experts, routing. Called through column_ref. Invariant that bites: the order of a
 * sum depends on its length alone, never on the row, the batch or the threads; that is what makes
 * two ways to the same state give equal bits. */
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static float fold(float lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

float ref_dot_f32(const float *w, const float *x, uint32_t n) {
    float lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += w[i + j] * x[i + j];
    for (uint32_t j = 0; i < n; i++, j++)
        lane[j] += w[i] * x[i];
    return fold(lane);
}

static float dot_bf16(const uint16_t *w, const float *x, uint32_t n) {
    float lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += bf16_to_f32(w[i + j]) * x[i + j];
    for (uint32_t j = 0; i < n; i++, j++)
        lane[j] += bf16_to_f32(w[i]) * x[i];
    return fold(lane);
}

static float dot_mxfp4(const uint8_t *codes, const uint8_t *scales, const float *x, uint32_t n) {
    float lane[LANES] = {0};
    for (uint32_t g = 0; g < n; g += 32) {
        float w[32], scale = e8m0_to_f32(scales[g / 32]);
        for (uint32_t i = 0; i < 16; i++) {
            w[2 * i] = e2m1_to_f32(codes[g / 2 + i] & 15u) * scale;
            w[2 * i + 1] = e2m1_to_f32(codes[g / 2 + i] >> 4) * scale;
        }
        for (uint32_t i = 0; i < 32; i += LANES)
            for (uint32_t j = 0; j < LANES; j++)
                lane[j] += w[i + j] * x[g + i + j];
    }
    return fold(lane);
}

float ref_dot(const struct weight *w, uint32_t row, const float *x) {
    size_t at = (size_t)row * w->cols;
    switch (w->dtype) {
    case DTYPE_F32: return ref_dot_f32((const float *)w->data + at, x, w->cols);
    case DTYPE_BF16: return dot_bf16((const uint16_t *)w->data + at, x, w->cols);
    case DTYPE_MXFP4:
        return dot_mxfp4((const uint8_t *)w->data + at / 2, w->scale + at / 32, x, w->cols);
    case DTYPE_U8:
    case DTYPE_FP8: break;
    }
    return NAN;
}

void ref_embed(const struct op_embed *a, const struct batch *b, const int32_t *ids,
               struct work work) {
    struct span s = work_span(work, b->n_rows);
    for (uint32_t r = s.begin; r < s.end; r++) {
        float *out = tensor_row(a->out, r);
        size_t at = (size_t)ids[r] * a->w.cols;
        for (uint32_t c = 0; c < a->w.cols; c++)
            out[c] = a->w.dtype == DTYPE_F32 ? ((const float *)a->w.data)[at + c]
                                             : bf16_to_f32(((const uint16_t *)a->w.data)[at + c]);
    }
}

void ref_linear(const struct op_linear *a, const struct batch *b, struct work work) {
    uint32_t units = 0;
    for (uint32_t p = 0; p < a->n_parts; p++)
        units += a->part[p].w.rows;
    struct span s = work_span(work, units);
    uint32_t rows = a->logit_rows ? b->n_logits : b->n_rows;
    uint32_t base = 0;
    for (uint32_t p = 0; p < a->n_parts; base += a->part[p].w.rows, p++) {
        const struct linear_part *part = &a->part[p];
        for (uint32_t o = 0; o < part->w.rows; o++) {
            if (base + o < s.begin || base + o >= s.end)
                continue;
            for (uint32_t r = 0; r < rows; r++) {
                float y = ref_dot(&part->w, o, tensor_row(part->x, r));
                if (part->w2.data)
                    y += ref_dot(&part->w2, o, tensor_row(part->x2, r));
                tensor_row(part->y, r)[o] = part->add ? y + tensor_row(part->y, r)[o] : y;
            }
        }
    }
}

float ref_glu_one(struct glu a, float gate, float up) {
    if (!a.situ)
        return gate * ref_sigmoid(gate) * up;
    float g = a.beta * tanhf(gate / a.beta) * ref_sigmoid(gate);
    float u = a.linear_beta > 0 ? a.linear_beta * tanhf(up / a.linear_beta) : up;
    return g * u;
}

void ref_glu(const struct op_glu *a, const struct batch *b, struct work work) {
    /* Columns are shared out, not rows: a decode step has one row and many columns. */
    struct span s = work_span(work, a->y.cols);
    for (uint32_t r = 0; r < b->n_rows; r++)
        for (uint32_t c = s.begin; c < s.end; c++)
            tensor_row(a->y, r)[c] =
                ref_glu_one(a->act, tensor_row(a->gate, r)[c], tensor_row(a->up, r)[c]);
}

/* Experts in falling order of `score`, ties to the lower index; -inf means masked. */
static int32_t take_best(float *score, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (score[i] > score[best])
            best = i;
    score[best] = -INFINITY;
    return (int32_t)best;
}

static void mask_groups(float *choice, uint32_t experts, uint32_t groups, uint32_t keep,
                        float *rank) {
    uint32_t size = experts / groups;
    for (uint32_t g = 0; g < groups; g++) { /* a group counts as the sum of its two best scores */
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            if (choice[i] > first) {
                second = first;
                first = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        rank[g] = size > 1 ? first + second : first;
    }
    for (uint32_t i = 0; i < keep; i++) /* a chosen group's rank becomes -inf, which marks it */
        take_best(rank, groups);
    for (uint32_t i = 0; i < experts; i++)
        if (rank[i / size] != -INFINITY)
            choice[i] = -INFINITY;
}

void ref_route(const struct op_route *a, const struct batch *b, struct work work) {
    struct span span = work_span(work, b->n_rows);
    float *score = work.scratch, *choice = score + a->experts, *rank = choice + a->experts;
    for (uint32_t r = span.begin; r < span.end; r++) {
        const float *logit = tensor_row(a->logits, r);
        float top = -INFINITY, total = 0;
        for (uint32_t e = 0; a->softmax && e < a->experts; e++)
            top = fmaxf(top, logit[e]);
        for (uint32_t e = 0; e < a->experts; e++) {
            score[e] = a->softmax ? expf(logit[e] - top) : ref_sigmoid(logit[e]);
            total += score[e];
        }
        for (uint32_t e = 0; e < a->experts; e++) {
            if (a->softmax)
                score[e] /= total;
            choice[e] = score[e] + (a->bias ? a->bias[e] : 0);
        }
        if (a->groups > 1 && a->groups > a->top_groups)
            mask_groups(choice, a->experts, a->groups, a->top_groups, rank);
        int32_t *ids = a->ids + (size_t)r * a->top_k;
        float *weights = a->weights + (size_t)r * a->top_k;
        float sum = 0;
        for (uint32_t j = 0; j < a->top_k; j++) {
            ids[j] = take_best(choice, a->experts);
            weights[j] = score[ids[j]]; /* the unbiased score: the bias only steers the choice */
            sum += weights[j];
        }
        for (uint32_t j = 0; j < a->top_k; j++)
            weights[j] = (a->renormalize ? weights[j] / (sum + 1e-20f) : weights[j]) * a->scale;
    }
}

/* The experts that some row chose, ascending; `list` has room for all. */
static uint32_t chosen(const struct op_experts *a, uint32_t n_rows, uint32_t *list) {
    uint32_t n = 0;
    memset(list, 0, a->experts * sizeof *list);
    for (size_t i = 0; i < (size_t)n_rows * a->top_k; i++)
        list[a->ids[i]] = 1;
    for (uint32_t e = 0; e < a->experts; e++)
        if (list[e])
            list[n++] = e;
    return n;
}

/* Rows [s.begin, s.end) of what expert e, whose weights are w, makes of every row that chose it. */
static void one_expert(const struct op_experts *a, enum expert_part part, int32_t e,
                       const struct weight *const w[2], uint32_t n_rows, struct span s) {
    for (size_t slot = 0; slot < (size_t)n_rows * a->top_k; slot++) {
        if (a->ids[slot] != e)
            continue;
        const float *z = tensor_row(a->z, slot / a->top_k), *h = tensor_row(a->h, slot);
        for (uint32_t o = s.begin; o < s.end; o++)
            if (part == EXPERT_UP)
                tensor_row(a->h, slot)[o] =
                    ref_glu_one(a->act, ref_dot(w[0], o, z), ref_dot(w[1], o, z));
            else
                tensor_row(a->each, slot)[o] = ref_dot(w[0], o, h);
    }
}

/* Expert by expert, as the source has them; sums that go over experts are formed afterwards. */
static void experts_from_source(const struct op_experts *a, enum expert_part part, uint32_t n_rows,
                                struct span s, struct work work) {
    uint32_t *list = work.scratch, n = chosen(a, n_rows, list);
    const uint32_t *order = a->source->begin(a->source->self, a, part, list, n, n_rows, work);
    for (uint32_t k = 0; k < n; k++) {
        const struct weight *w[2];
        uint32_t e = list[order[k]];
        if (s.begin < s.end && expert_acquire(a, part, e, w))
            one_expert(a, part, (int32_t)e, w, n_rows, s);
        expert_release(a, part, e);
    }
}

void ref_experts_up(const struct op_experts *a, const struct batch *b, struct work work) {
    struct span s = work_span(work, a->w1[0].rows);
    if (a->source) {
        experts_from_source(a, EXPERT_UP, b->n_rows, s, work);
        return;
    }
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const float *z = tensor_row(a->z, r);
        for (uint32_t j = 0; j < a->top_k; j++) {
            size_t slot = (size_t)r * a->top_k + j;
            int32_t e = a->ids[slot];
            for (uint32_t o = s.begin; o < s.end; o++)
                tensor_row(a->h, slot)[o] =
                    ref_glu_one(a->act, ref_dot(&a->w1[e], o, z), ref_dot(&a->w3[e], o, z));
        }
    }
}

void ref_experts_down(const struct op_experts *a, const struct batch *b, struct work work) {
    struct span s = work_span(work, a->w2[0].rows);
    if (a->source)
        experts_from_source(a, EXPERT_DOWN, b->n_rows, s, work);
    for (uint32_t r = 0; r < b->n_rows; r++) {
        for (uint32_t o = s.begin; o < s.end; o++) {
            float y = 0;
            for (uint32_t j = 0; j < a->top_k; j++) {
                size_t slot = (size_t)r * a->top_k + j;
                y += a->weights[slot] *
                     (a->source ? tensor_row(a->each, slot)[o]
                                : ref_dot(&a->w2[a->ids[slot]], o, tensor_row(a->h, slot)));
            }
            tensor_row(a->out, r)[o] = y;
        }
    }
}
