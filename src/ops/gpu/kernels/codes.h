/* codes.h: E4M3 codes as the numbers that products take. */
#ifndef WEIR_OPS_GPU_KERNELS_CODES_H
#define WEIR_OPS_GPU_KERNELS_CODES_H

#include "ops/gpu/dialect.h"

/* Four codes as BF16 numbers, the first two in *lo. */
GPU_FN void widen_codes(uint32_t w, uint32_t *lo, uint32_t *hi) {
    const uint32_t x = gpu_spread_bytes(w, false), y = gpu_spread_bytes(w, true);
    /* Exponents begin at 2^-7 with codes, at 2^-127 with BF16. */
    *lo = gpu_bf16_mul((x & 0x80008000u) | (x >> 4 & 0x07F007F0u), 0x7B807B80u);
    *hi = gpu_bf16_mul((y & 0x80008000u) | (y >> 4 & 0x07F007F0u), 0x7B807B80u);
}

/* Eight codes as a strip of BF16 numbers. */
GPU_FN struct gpu_u4 widen_codes8(uint32_t first, uint32_t second) {
    struct gpu_u4 v;
    widen_codes(first, &v.x, &v.y);
    widen_codes(second, &v.z, &v.w);
    return v;
}
/* Eight codes times their scale as BF16 numbers. */
GPU_FN struct gpu_u4 numbers_of_codes(uint32_t first, uint32_t second, float scale) {
    const uint32_t word[2] = {first, second};
    uint32_t pair[4];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        float f[2];
        gpu_from_e4m3_x2(word[i / 2], i % 2 > 0, f);
        pair[i] = gpu_bf16_pair(f[0] * scale, f[1] * scale);
    }
    const struct gpu_u4 v = {pair[0], pair[1], pair[2], pair[3]};
    return v;
}

#endif
