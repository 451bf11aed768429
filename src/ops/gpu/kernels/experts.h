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

/* BF16 of 2^(s - 127) * 2^126 in both halves, for scale bytes to 128; above, the rest of the factor
 * is in *more (0: none). 255 is NaN. */
GPU_FN uint32_t scale_pair(uint32_t s, uint32_t *more) {
    const uint32_t least = s < 128 ? s : 128;
    *more = s > 128 ? (127 + s - 128) << 7 | (127 + s - 128) << 23 : 0;
    if (s == 255)
        *more = 0x7FC07FC0u;
    return (126 + least) << 7 | (126 + least) << 23;
}

/* Eight codes as BF16 pairs of elements (0, 4), (1, 5), (2, 6), (3, 7): halves that two shifts put
 * in place. */
GPU_FN struct gpu_u4 widen_codes(uint32_t codes, uint32_t scale, uint32_t more) {
    uint32_t pair[4];
    GPU_UNROLL
    for (uint32_t p = 0; p < 4; p++) {
        const uint32_t c = codes >> 4 * p;
        pair[p] = gpu_bf16_mul((c << 6 & 0x01C001C0u) | (c << 12 & 0x80008000u), scale);
        if (more)
            pair[p] = gpu_bf16_mul(pair[p], more);
    }
    const struct gpu_u4 v = {pair[0], pair[1], pair[2], pair[3]};
    return v;
}
/* Eight elements of x in the same order. */
GPU_FN struct gpu_u4 like_codes(struct gpu_u4 v) {
    const struct gpu_u4 w = {(v.x & 0xFFFFu) | v.z << 16, v.x >> 16 | (v.z & 0xFFFF0000u),
                             (v.y & 0xFFFFu) | v.w << 16, v.y >> 16 | (v.w & 0xFFFF0000u)};
    return w;
}

/* Rows of two matrices, or of two parts of one, that this lane reads. */
struct expert_rows {
    const uint8_t *codes[PAIR][GPU_STRIPS], *scales[PAIR][GPU_STRIPS];
};

/* Row `row` of matrix m of the expert, for this lane; beyond the last: the last once more. */
GPU_FN void take_row(const struct gpu_experts *a, struct expert_rows *w, uint32_t m, uint32_t of,
                     uint32_t i, uint32_t row, int32_t expert, const bool bf16) {
    const uint64_t e = (uint32_t)expert, r = row < a->rows ? row : a->rows - 1;
    w->codes[m][i] = a->codes[of] + e * a->codes_stride + r * (bf16 ? a->cols * 2 : a->cols / 2);
    w->scales[m][i] = 0;
    if (!bf16)
        w->scales[m][i] = a->scales[of] + e * a->scales_stride + r * (a->cols / 32);
}

GPU_FN float activate(const struct gpu_experts *a, float gate, float up) {
    return glu_of(a->situ, a->beta, a->linear_beta, gate, up);
}

#endif
