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
/* Code `at` of four, times 2^-120: exponents are left as codes have them, which small codes make
 * denormal numbers. Three instructions instead of the four of a whole number. */
GPU_FN float small_code(uint32_t w, const uint32_t at) {
    return gpu_as_f32((uint32_t)((int32_t)(w << (24 - 8 * at)) >> 4) & 0x87F00000u);
}

#endif
