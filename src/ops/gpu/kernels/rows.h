/* rows.h: pieces of rows in 16-byte loads, widened to f32 and back, and the gated activation. Rows
 * begin at multiples of 16 bytes; their last piece may be shorter than a load. */
#ifndef WEIR_OPS_GPU_KERNELS_ROWS_H
#define WEIR_OPS_GPU_KERNELS_ROWS_H

#include "ops/gpu/dialect.h"

/* Element i of a row of n floats from p on, four of them; what lies beyond is 0. */
GPU_FN struct gpu_u4 load_f32x4(const float *p, uint32_t i, uint32_t n) {
    struct gpu_u4 v = {0, 0, 0, 0};
    if (i + 4 <= n)
        return gpu_load16(p + i);
    if (i < n)
        v.x = gpu_as_u32(p[i]);
    if (i + 1 < n)
        v.y = gpu_as_u32(p[i + 1]);
    if (i + 2 < n)
        v.z = gpu_as_u32(p[i + 2]);
    return v;
}
/* Eight of them, widened; one branch where none is missing. */
GPU_FN void widen_f32x4(float *f, struct gpu_u4 v);
GPU_FN void load_f32x8(float *f, const float *p, uint32_t i, uint32_t n) {
    struct gpu_u4 lo = {0, 0, 0, 0}, hi = {0, 0, 0, 0};
    if (i + 8 <= n) {
        lo = gpu_load16(p + i);
        hi = gpu_load16(p + i + 4);
    } else if (i < n) {
        lo = load_f32x4(p, i, n);
        hi = load_f32x4(p, i + 4, n);
    }
    widen_f32x4(f, lo);
    widen_f32x4(f + 4, hi);
}
/* The same of eight BF16. */
GPU_FN struct gpu_u4 load_bf16x8(const uint16_t *p, uint32_t i, uint32_t n) {
    if (i + 8 <= n)
        return gpu_load16(p + i);
    uint32_t pair[4] = {0, 0, 0, 0};
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        if (i + e < n)
            pair[e / 2] |= (uint32_t)p[i + e] << e % 2 * 16;
    struct gpu_u4 v = {pair[0], pair[1], pair[2], pair[3]};
    return v;
}
GPU_FN void store_bf16x8(uint16_t *p, uint32_t i, uint32_t n, struct gpu_u4 v) {
    if (i + 8 <= n) {
        gpu_store16(p + i, v);
        return;
    }
    const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        if (i + e < n)
            p[i + e] = (uint16_t)(pair[e / 2] >> e % 2 * 16);
}
GPU_FN void widen_f32x4(float *f, struct gpu_u4 v) {
    f[0] = gpu_as_f32(v.x);
    f[1] = gpu_as_f32(v.y);
    f[2] = gpu_as_f32(v.z);
    f[3] = gpu_as_f32(v.w);
}
GPU_FN void widen_bf16x8(float *f, struct gpu_u4 v) {
    f[0] = gpu_bf16_lo(v.x);
    f[1] = gpu_bf16_hi(v.x);
    f[2] = gpu_bf16_lo(v.y);
    f[3] = gpu_bf16_hi(v.y);
    f[4] = gpu_bf16_lo(v.z);
    f[5] = gpu_bf16_hi(v.z);
    f[6] = gpu_bf16_lo(v.w);
    f[7] = gpu_bf16_hi(v.w);
}
GPU_FN struct gpu_u4 f32x4(const float *f) {
    struct gpu_u4 v = {gpu_as_u32(f[0]), gpu_as_u32(f[1]), gpu_as_u32(f[2]), gpu_as_u32(f[3])};
    return v;
}
GPU_FN struct gpu_u4 narrow_bf16x8(const float *f) {
    struct gpu_u4 v = {gpu_bf16_pair(f[0], f[1]), gpu_bf16_pair(f[2], f[3]),
                       gpu_bf16_pair(f[4], f[5]), gpu_bf16_pair(f[6], f[7])};
    return v;
}

/* struct glu (ops.h): situ 0 is SiLU. */
GPU_FN float glu_of(uint32_t situ, float beta, float linear_beta, float gate, float up) {
    if (!situ)
        return gate * gpu_sigmoid(gate) * up;
    /* Of what is the same for all values the compiler makes one quotient. */
    const float g = beta * gpu_tanh(gate * (1.0f / beta)) * gpu_sigmoid(gate);
    return g * (linear_beta > 0 ? linear_beta * gpu_tanh(up * (1.0f / linear_beta)) : up);
}

#endif
