/* mla_write.c: puts a step's rows into the history of latent attention: the latent normed, the
 * extra values of the key raw. A block has a row, a lane eight of its values. Invariant that bites:
 * a row whose page is shared history is not written again: others read it. */
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { WRITE_THREADS = 64 }; /* of eight values: all that a latent may have */

GPU_KERNEL(weir_mla_write, gpu_mla_write, WRITE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    const struct gpu_mla_place place = a.places[gpu_block_x()];
    if (place.page < 0)
        return; /* the whole block */
    const float *kv = a.kv + (uint64_t)gpu_block_x() * a.kv_stride;
    uint16_t *record = (uint16_t *)(a.pool + (uint64_t)(uint32_t)place.page * a.page_bytes) +
                       (uint64_t)place.position * (a.latent + a.extra);
    const uint32_t at = gpu_thread() * 8;
    float v[8], square = 0;
    widen_f32x4(v, load_f32x4(kv, at, a.latent));
    widen_f32x4(v + 4, load_f32x4(kv, at + 4, a.latent));
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        square += v[e] * v[e];
    const float inv = gpu_rsqrt(gpu_block_sum(square, s->sum) / (float)a.latent + a.eps);
    if (at < a.latent) {
        float norm[8];
        widen_f32x4(norm, gpu_load16(a.norm + at));
        widen_f32x4(norm + 4, gpu_load16(a.norm + at + 4));
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            v[e] *= inv * norm[e];
        gpu_store16(record + at, narrow_bf16x8(v));
    }
    if (at < a.extra) {
        /* The extra values begin where the latent ends: a multiple of 8 floats into the row. */
        widen_f32x4(v, gpu_load16(kv + a.latent + at));
        widen_f32x4(v + 4, gpu_load16(kv + a.latent + at + 4));
        gpu_store16(record + a.latent + at, narrow_bf16x8(v));
    }
}
