/* experts.h: what kernels of routed experts have in common: rows of weights, MXFP4 codes as BF16,
 * the activation.
 *
 * A lane reads 16 bytes of codes: the 32 that share a scale, of its row. They make four strips;
 * what a strip of x holds is taken from the same columns, so that neither side is laid out anew.
 * Codes become BF16 exactly: the three bits of a magnitude are the last two of an exponent and the
 * first of a mantissa, 2^126 too small; that factor and the scale are one multiplication. */
#ifndef WEIR_OPS_GPU_KERNELS_EXPERTS_H
#define WEIR_OPS_GPU_KERNELS_EXPERTS_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum {
    TILE = 16,
    PIECE = 128, /* columns of four products of tiles: 32 of each of four groups of lanes */
    PAIR = 2,    /* tiles of W that a wave has: of two matrices, or of two parts of one */
};

/* BF16 of 2^(s - 127) * 2^126 in both halves, for scale bytes to 128; of larger ones the rest of
 * the factor is scale_more. */
GPU_FN uint32_t scale_pair(uint32_t s) {
    return (126 + (s < 128 ? s : 128)) * 0x00800080u;
}
/* 1 for scale bytes to 128; 255 is NaN. */
GPU_FN uint32_t scale_more(uint32_t s) {
    const uint32_t more = (127 + (s > 128 ? s - 128 : 0)) * 0x00800080u;
    return s == 255 ? 0x7FC07FC0u : more;
}

/* Eight codes as BF16 pairs of elements (0, 4), (1, 5), (2, 6), (3, 7). Two codes 16 bits apart are
 * put where magnitude and sign of BF16 belong by one multiplication: its two copies do not meet. */
GPU_FN struct gpu_u4 widen_codes(uint32_t codes, uint32_t scale) {
    uint32_t pair[4];
    GPU_UNROLL
    for (uint32_t p = 0; p < 4; p++) {
        const uint32_t low = p < 2 ? codes : codes >> 8;
        const uint32_t two = p % 2 ? gpu_two_shifts(low & 0x00F000F0u, 2, 8)
                                   : gpu_two_shifts(low & 0x000F000Fu, 6, 12);
        pair[p] = gpu_bf16_mul(two & 0x81C081C0u, scale);
    }
    const struct gpu_u4 v = {pair[0], pair[1], pair[2], pair[3]};
    return v;
}
GPU_FN struct gpu_u4 times_pairs(struct gpu_u4 v, uint32_t factor) {
    const struct gpu_u4 w = {gpu_bf16_mul(v.x, factor), gpu_bf16_mul(v.y, factor),
                             gpu_bf16_mul(v.z, factor), gpu_bf16_mul(v.w, factor)};
    return w;
}
/* Eight elements of x in the same order. */
GPU_FN struct gpu_u4 like_codes(struct gpu_u4 v) {
    const struct gpu_u4 w = {(v.x & 0xFFFFu) | v.z << 16, v.x >> 16 | (v.z & 0xFFFF0000u),
                             (v.y & 0xFFFFu) | v.w << 16, v.y >> 16 | (v.w & 0xFFFF0000u)};
    return w;
}

GPU_FN float activate(const struct gpu_experts *a, float gate, float up) {
    return glu_of(a->situ, a->beta, a->linear_beta, gate, up);
}

#endif
