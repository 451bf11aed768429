/* norm.c: RMS norms and the attention-residual mixture. Called through column_ref. */
#include "ops/ref/ref.h"

#include <math.h>

void ref_norm(const struct op_norm *a, const struct batch *b, struct work work) {
    struct span s = work_span(work, b->n_rows);
    for (uint32_t r = s.begin; r < s.end; r++) {
        const float *x = tensor_row(a->x, r);
        float *y = tensor_row(a->y, r);
        float inv = 1.0f / sqrtf(ref_dot_f32(x, x, a->x.cols) / (float)a->x.cols + a->eps);
        for (uint32_t c = 0; c < a->x.cols; c++)
            y[c] = x[c] * inv * a->norm[c];
    }
}

/* The mixture of n sources by softmax of their scores into m. Scores see normalised sources, the
 * sum takes raw ones. */
static void mix(const struct op_mix_norm *a, const float *const *v, uint32_t n, uint32_t width,
                float *m) {
    float score[OP_MAX_BANK + 1], top = -INFINITY, total = 0;
    for (uint32_t i = 0; i < n; i++) {
        float square = ref_dot_f32(v[i], v[i], width) / (float)width;
        score[i] = ref_dot_f32(v[i], a->c, width) * (1.0f / sqrtf(square + a->eps));
        top = fmaxf(top, score[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        score[i] = expf(score[i] - top);
        total += score[i];
    }
    for (uint32_t c = 0; c < width; c++) {
        float sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += score[i] / total * v[i][c];
        m[c] = sum;
    }
}

void ref_mix_norm(const struct op_mix_norm *a, const struct batch *b, struct work work) {
    uint32_t width = a->prefix.cols;
    struct span s = work_span(work, a->gather ? b->n_logits : b->n_rows);
    for (uint32_t i = s.begin; i < s.end; i++) {
        uint32_t r = a->gather ? b->logits[i].row : i;
        float *p = tensor_row(a->prefix, r);
        const float *delta = a->delta.data ? tensor_row(a->delta, r) : NULL;
        float *out = tensor_row(a->out, i);
        float *sum =
            a->gather ? out : p; /* out may serve as a source: the mixture goes column by column */
        for (uint32_t c = 0; delta && c < width; c++) {
            float x = a->replace ? delta[c] : p[c] + delta[c];
            sum[c] = a->round_prefix ? bf16_round(x) : x;
        }
        const float *v[OP_MAX_BANK + 1];
        for (uint32_t k = 0; k < a->n_bank; k++)
            v[k] = tensor_row(a->bank[k], r);
        const float *m = delta ? sum : p;
        v[a->n_bank] = m;
        if (a->n_bank) {
            mix(a, v, a->n_bank + 1, width, out);
            m = out;
        }
        if (a->mixed.data)
            for (uint32_t c = 0; c < width; c++)
                tensor_row(a->mixed, i)[c] = m[c];
        /* Bank the prefix as it was before this sublayer: the mixture would leak this layer's own
         * weights into every later mix. */
        for (uint32_t c = 0; a->push && c < width; c++)
            tensor_row(a->bank[a->n_bank], r)[c] = p[c];
        float inv = 1.0f / sqrtf(ref_dot_f32(m, m, width) / (float)width + a->eps);
        for (uint32_t c = 0; c < width; c++)
            out[c] = m[c] * inv * a->norm[c];
    }
}
