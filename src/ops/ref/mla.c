/* mla.c: gated latent attention over paged history, in the absorbed form (one shared key of C+R
 * values for all heads) and in the expanded form (keys and values per head). Called through
 * column_ref; the two forms are compared with each other. Invariant that bites: the R extra dims
 * are scored raw on both sides, and only the C latent values are normed. */
#include "ops/kv.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

void *ref_kv_record(const struct kv_pool *pool, uint32_t latent, uint32_t layer,
                    const int32_t *pages, uint32_t position) {
    return pool->data + (size_t)pages[position / PAGE_TOKENS] * pool->page_bytes +
           ((size_t)layer * PAGE_TOKENS + position % PAGE_TOKENS) *
               kv_record_bytes(pool->dtype, latent, pool->width - latent);
}

float ref_kv_at(const void *record, enum dtype dtype, uint32_t latent, uint32_t i) {
    const unsigned char *bytes = record;
    float scale;
    uint16_t half;
    switch (dtype) {
    case DTYPE_F32: return ((const float *)record)[i];
    case DTYPE_BF16: return bf16_to_f32(((const uint16_t *)record)[i]);
    case DTYPE_FP8:
        if (i < latent) {
            memcpy(&scale, bytes + kv_scales_at(latent) + i / KV_SCALED * sizeof scale,
                   sizeof scale);
            return e4m3_to_f32(bytes[i]) * scale;
        }
        memcpy(&half, bytes + kv_extra_at(latent) + (size_t)(i - latent) * sizeof half,
               sizeof half);
        return bf16_to_f32(half);
    case DTYPE_U8:
    case DTYPE_MXFP4: break;
    }
    return NAN;
}

/* The record of x: its first `latent` values times inv and norm, the others as they are. */
static void put_record(const struct op_mla_write *a, const float *x, float inv, void *record) {
    uint32_t latent = a->kv_lora, width = a->pool->width;
    for (uint32_t c = 0; a->pool->dtype != DTYPE_FP8 && c < width; c++) {
        float v = c < latent ? x[c] * inv * a->norm[c] : x[c];
        if (a->pool->dtype == DTYPE_F32)
            ((float *)record)[c] = v;
        else
            ((uint16_t *)record)[c] = f32_to_bf16(v);
    }
    if (a->pool->dtype != DTYPE_FP8)
        return;
    unsigned char *bytes = record;
    for (uint32_t c = 0; c < latent; c += KV_SCALED) {
        uint32_t n = latent - c < KV_SCALED ? latent - c : KV_SCALED;
        float v[KV_SCALED];
        for (uint32_t i = 0; i < n; i++)
            v[i] = x[c + i] * inv * a->norm[c + i];
        float scale = kv_scale(v, n);
        kv_encode(v, n, scale, bytes + c);
        memcpy(bytes + kv_scales_at(latent) + c / KV_SCALED * sizeof scale, &scale, sizeof scale);
    }
    for (uint32_t c = latent; c < width; c++) {
        uint16_t half = f32_to_bf16(x[c]);
        memcpy(bytes + kv_extra_at(latent) + (size_t)(c - latent) * sizeof half, &half,
               sizeof half);
    }
}

/* The sequence a row belongs to: rows are in order of sequences. */
static const struct batch_seq *seq_of_row(const struct batch *b, struct span seqs, uint32_t row) {
    for (uint32_t i = seqs.begin; i < seqs.end; i++)
        if (row >= b->seqs[i].row0 && row < b->seqs[i].row0 + b->seqs[i].rows)
            return &b->seqs[i];
    return NULL;
}

void ref_mla_write(const struct op_mla_write *a, const struct batch *b, struct work work) {
    struct span s = work_span(work, b->n_rows);
    for (uint32_t r = s.begin; r < s.end; r++) {
        const struct batch_seq *seq = seq_of_row(b, (struct span){0, b->n_seqs}, r);
        uint32_t position = seq->pos0 + (r - seq->row0);
        if (position < seq->kept)
            continue;
        const float *x = tensor_row(a->kv, r);
        float inv = 1.0f / sqrtf(ref_dot_f32(x, x, a->kv_lora) / (float)a->kv_lora + a->eps);
        put_record(a, x, inv, ref_kv_record(a->pool, a->kv_lora, a->layer, seq->pages, position));
    }
}

static float weight_at(const struct weight *w, size_t row, uint32_t col) {
    size_t at = row * w->cols + col;
    return w->dtype == DTYPE_F32 ? ((const float *)w->data)[at]
                                 : bf16_to_f32(((const uint16_t *)w->data)[at]);
}

/* One row, one head, absorbed. Scratch: key [width], query [width], latent [C], score [positions].
 */
static void attend_absorbed(const struct op_mla *a, const struct batch_seq *seq, uint32_t row,
                            uint32_t head, float *scratch) {
    uint32_t n = seq->pos0 + (row - seq->row0) + 1, width = a->pool->width, C = a->kv_lora;
    float *key = scratch, *query = key + width, *latent = query + width, *score = latent + C;
    const float *q = tensor_row(a->q, row) + (size_t)head * (a->nope_dim + a->rope_dim);
    size_t kv_row = (size_t)head * (a->nope_dim + a->v_dim);
    memset(query, 0, C * sizeof(float));
    for (uint32_t d = 0; d < a->nope_dim; d++)
        for (uint32_t c = 0; c < C; c++)
            query[c] += q[d] * weight_at(&a->kv_b, kv_row + d, c);
    memcpy(query + C, q + a->nope_dim, a->rope_dim * sizeof(float));
    float top = -INFINITY, total = 0;
    for (uint32_t t = 0; t < n; t++) {
        const void *record = ref_kv_record(a->pool, C, a->layer, seq->pages, t);
        for (uint32_t c = 0; c < width; c++)
            key[c] = ref_kv_at(record, a->pool->dtype, C, c);
        score[t] = ref_dot_f32(query, key, width) * a->scale;
        top = fmaxf(top, score[t]);
    }
    memset(latent, 0, C * sizeof(float));
    for (uint32_t t = 0; t < n; t++) {
        const void *record = ref_kv_record(a->pool, C, a->layer, seq->pages, t);
        float p = expf(score[t] - top);
        total += p;
        for (uint32_t c = 0; c < C; c++)
            latent[c] += p * ref_kv_at(record, a->pool->dtype, C, c);
    }
    for (uint32_t c = 0; c < C; c++)
        latent[c] /= total;
    float *out = tensor_row(a->out, row) + (size_t)head * a->v_dim;
    const float *g = a->g.data ? tensor_row(a->g, row) + (size_t)head * a->v_dim : NULL;
    for (uint32_t d = 0; d < a->v_dim; d++) {
        float o = ref_dot(&a->kv_b, (uint32_t)(kv_row + a->nope_dim + d), latent);
        out[d] = g ? o * ref_sigmoid(g[d]) : o;
    }
}

/* One row, one head, expanded. Scratch: latent [C], score [positions]. */
static void attend_expanded(const struct op_mla *a, const struct batch_seq *seq, uint32_t row,
                            uint32_t head, float *scratch) {
    uint32_t n = seq->pos0 + (row - seq->row0) + 1, C = a->kv_lora;
    float *latent = scratch, *score = latent + C;
    const float *q = tensor_row(a->q, row) + (size_t)head * (a->nope_dim + a->rope_dim);
    uint32_t kv_row = head * (a->nope_dim + a->v_dim);
    float top = -INFINITY, total = 0;
    for (uint32_t t = 0; t < n; t++) {
        const void *record = ref_kv_record(a->pool, C, a->layer, seq->pages, t);
        for (uint32_t c = 0; c < C; c++)
            latent[c] = ref_kv_at(record, a->pool->dtype, C, c);
        float sum = 0;
        for (uint32_t d = 0; d < a->nope_dim; d++)
            sum += q[d] * ref_dot(&a->kv_b, kv_row + d, latent);
        for (uint32_t d = 0; d < a->rope_dim; d++)
            sum += q[a->nope_dim + d] * ref_kv_at(record, a->pool->dtype, C, C + d);
        score[t] = sum * a->scale;
        top = fmaxf(top, score[t]);
    }
    float *out = tensor_row(a->out, row) + (size_t)head * a->v_dim;
    memset(out, 0, a->v_dim * sizeof(float));
    for (uint32_t t = 0; t < n; t++) {
        const void *record = ref_kv_record(a->pool, C, a->layer, seq->pages, t);
        for (uint32_t c = 0; c < C; c++)
            latent[c] = ref_kv_at(record, a->pool->dtype, C, c);
        float p = expf(score[t] - top);
        total += p;
        for (uint32_t d = 0; d < a->v_dim; d++)
            out[d] += p * ref_dot(&a->kv_b, kv_row + a->nope_dim + d, latent);
    }
    const float *g = a->g.data ? tensor_row(a->g, row) + (size_t)head * a->v_dim : NULL;
    for (uint32_t d = 0; d < a->v_dim; d++) {
        out[d] /= total;
        if (g)
            out[d] *= ref_sigmoid(g[d]);
    }
}

static void attend(const struct op_mla *a, const struct batch *b, struct work work,
                   void (*one)(const struct op_mla *, const struct batch_seq *, uint32_t, uint32_t,
                               float *)) {
    struct span seqs = batch_class(b, a->which);
    if (seqs.begin == seqs.end)
        return;
    uint32_t row0 = b->seqs[seqs.begin].row0;
    const struct batch_seq *last = &b->seqs[seqs.end - 1];
    struct span s = work_span(work, (last->row0 + last->rows - row0) * a->heads);
    for (uint32_t unit = s.begin; unit < s.end; unit++) {
        uint32_t row = row0 + unit / a->heads;
        one(a, seq_of_row(b, seqs, row), row, unit % a->heads, work.scratch);
    }
}

void ref_mla_decode(const struct op_mla *a, const struct batch *b, struct work work) {
    attend(a, b, work, attend_absorbed);
}

void ref_mla_prefill(const struct op_mla *a, const struct batch *b, struct work work) {
    attend(a, b, work, attend_expanded);
}
