/* mla_write.c: the records of this step's rows into their pages: the latent normed, the extra
 * values raw. Called through the columns of this folder. */
#include "ops/cpu/mla.h"

static void write_codes(const struct op_mla_write *a, const float *x, float inv,
                        unsigned char *record) {
    uint32_t latent = a->kv_lora, width = a->pool->width;
    for (uint32_t c = 0; c < latent; c += KV_SCALED) {
        uint32_t n = latent - c < KV_SCALED ? latent - c : KV_SCALED;
        float v[KV_SCALED];
        for (uint32_t i = 0; i < n; i++)
            v[i] = x[c + i] * inv * a->norm[c + i];
        float scale = kv_scale(v, n);
        kv_encode(v, n, scale, record + c);
        memcpy(record + kv_scales_at(latent) + c / KV_SCALED * sizeof scale, &scale, sizeof scale);
    }
    uint16_t *extra = (uint16_t *)(void *)(record + kv_extra_at(latent));
    for (uint32_t c = latent; c < width; c++)
        extra[c - latent] = f32_to_bf16(x[c]);
}

static void write_row(const struct op_mla_write *a, const float *x, void *record) {
    uint32_t latent = a->kv_lora, width = a->pool->width;
    vf square = vset(0);
    for (uint32_t c = 0; c < latent; c += VL) {
        vf v = vloadm(x + c, vmask(latent - c));
        square = vfma(v, v, square);
    }
    float inv = 1.0f / sqrtf(vsum(square) / (float)latent + a->eps);
    if (a->pool->dtype == DTYPE_F32) {
        float *to = record;
        for (uint32_t c = 0; c < latent; c++)
            to[c] = x[c] * inv * a->norm[c];
        memcpy(to + latent, x + latent, (width - latent) * sizeof *to);
        return;
    }
    if (a->pool->dtype == DTYPE_FP8) {
        write_codes(a, x, inv, record);
        return;
    }
    uint16_t *to = record;
    for (uint32_t c = 0; c < latent; c++)
        to[c] = f32_to_bf16(x[c] * inv * a->norm[c]);
    for (uint32_t c = latent; c < width; c++)
        to[c] = f32_to_bf16(x[c]);
}

void cpu_mla_write(const struct op_mla_write *a, const struct batch *b, struct work work) {
    struct span s = work_span(work, b->n_rows);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *seq = &b->seqs[i];
        uint32_t first = seq->row0 + (seq->kept > seq->pos0 ? seq->kept - seq->pos0 : 0);
        uint32_t begin = first > s.begin ? first : s.begin;
        uint32_t end = seq->row0 + seq->rows < s.end ? seq->row0 + seq->rows : s.end;
        for (uint32_t r = begin; r < end; r++)
            write_row(
                a, tensor_row(a->kv, r),
                kv_record(a->pool, a->kv_lora, a->layer, seq->pages, seq->pos0 + (r - seq->row0)));
    }
}
