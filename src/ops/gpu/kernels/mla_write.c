/* mla_write.c: puts a step's rows into the history of latent attention: the latent normed, the
 * extra values of the key raw. A block has a row, a lane eight of its values. Invariant that bites:
 * a row whose page is shared history is not written again: others read it. */
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { WRITE_THREADS = 64 }; /* of eight values: all that a latent may have */

/* Where the block's record goes; NULL: nowhere. */
GPU_FN uint8_t *record_of(const struct gpu_mla_write *a) {
    const struct gpu_mla_place place = a->places[gpu_block_x()];
    if (place.page < 0)
        return 0;
    return a->pool + (uint64_t)(uint32_t)place.page * a->page_bytes +
           (uint64_t)place.position * a->record_bytes;
}

/* Eight values of the row's latent, normed; zeros beyond its end. */
GPU_FN void normed(const struct gpu_mla_write *a, struct gpu_norm_shared *s, const float *kv,
                   float *v) {
    const uint32_t at = gpu_thread() * 8;
    float square = 0;
    widen_f32x4(v, load_f32x4(kv, at, a->latent));
    widen_f32x4(v + 4, load_f32x4(kv, at + 4, a->latent));
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        square += v[e] * v[e];
    const float inv = gpu_rsqrt(gpu_block_sum(square, s->sum) / (float)a->latent + a->eps);
    float norm[8];
    widen_f32x4(norm, load_f32x4(a->norm, at, a->latent));
    widen_f32x4(norm + 4, load_f32x4(a->norm, at + 4, a->latent));
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        v[e] *= inv * norm[e];
}

/* Eight of the extra values, which begin where the latent ends: a multiple of 8 floats into the
 * row. */
GPU_FN struct gpu_u4 extra_values(const float *extra) {
    float v[8];
    widen_f32x4(v, gpu_load16(extra));
    widen_f32x4(v + 4, gpu_load16(extra + 4));
    return narrow_bf16x8(v);
}

GPU_KERNEL(weir_mla_write, gpu_mla_write, WRITE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    uint16_t *record = (uint16_t *)record_of(&a);
    if (!record)
        return; /* the whole block */
    const float *kv = a.kv + (uint64_t)gpu_block_x() * a.kv_stride;
    const uint32_t at = gpu_thread() * 8;
    float v[8];
    normed(&a, s, kv, v);
    if (at < a.latent)
        gpu_store16(record + at, narrow_bf16x8(v));
    if (at < a.extra)
        gpu_store16(record + a.latent + at, extra_values(kv + a.latent + at));
}

/* FP8: 16 lanes have the 128 values of a scale. */
GPU_KERNEL(weir_mla_write_fp8, gpu_mla_write, WRITE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    uint8_t *record = record_of(&a);
    if (!record)
        return;
    const float *kv = a.kv + (uint64_t)gpu_block_x() * a.kv_stride;
    const uint32_t at = gpu_thread() * 8, scales = a.latent;
    const uint32_t extra = scales + (a.latent + GPU_KV_SCALED - 1) / GPU_KV_SCALED * 4;
    float v[8];
    normed(&a, s, kv, v);
    /* Of magnitudes as unsigned numbers infinity and NaN are the largest. */
    uint32_t most = 0;
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++) {
        const uint32_t magnitude = gpu_as_u32(v[e]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    GPU_UNROLL
    for (uint32_t mask = 8; mask > 0; mask /= 2) {
        const uint32_t other = gpu_shuffle_xor_u32(most, mask);
        most = other > most ? other : most;
    }
    /* Values that are no numbers make the scale NaN, and with it all that share it. */
    const float scale =
        most < 0x7F800000u ? gpu_as_f32(most) * (1.0f / 448) : gpu_as_f32(0x7FC00000u);
    const float inverse = scale > 0x1p-120f ? 1.0f / scale : 0;
    if (at < a.latent) {
        uint32_t codes[2] = {0, 0};
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            codes[e / 4] |= gpu_to_e4m3(v[e] * inverse) << e % 4 * 8;
        uint32_t *to = (uint32_t *)(record + at);
        to[0] = codes[0];
        to[1] = codes[1];
        if (at % GPU_KV_SCALED == 0)
            ((float *)(record + scales))[at / GPU_KV_SCALED] = scale;
    }
    if (at < a.extra) {
        const struct gpu_u4 x = extra_values(kv + a.latent + at);
        uint32_t *to = (uint32_t *)(record + extra + at * 2);
        to[0] = x.x;
        to[1] = x.y;
        to[2] = x.z;
        to[3] = x.w;
    }
}
