/* experts.h: what kernels of routed experts have in common: weights as pack.h lays them out, MXFP4
 * codes as BF16, the activation.
 *
 * A lane reads 16 bytes of a row: the 32 codes that share a scale, or 8 BF16. Codes make four
 * strips; a strip of x is of the same columns. Codes become BF16 exactly: the three bits of a
 * magnitude are the last two of an exponent and the first of a mantissa, 2^126 too small; that
 * factor and the scale are one multiplication. */
#ifndef WEIR_OPS_GPU_KERNELS_EXPERTS_H
#define WEIR_OPS_GPU_KERNELS_EXPERTS_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum {
    TILE = 16,
    PAIR = 2, /* tiles of a piece: of two matrices, or of two parts of one */
};

GPU_FN uint32_t piece_cols(const bool bf16) {
    return bf16 ? GPU_PIECE_COLS_BF16 : GPU_PIECE_COLS;
}
GPU_FN uint32_t piece_bytes(const bool bf16) {
    return bf16 ? GPU_PIECE_BYTES_BF16 : GPU_PIECE_BYTES;
}
/* Of the columns of a piece, where this lane's begin. */
GPU_FN uint32_t lane_col(const bool bf16) {
    return bf16 ? gpu_strip_k() : gpu_strip_k() / 8 * 32;
}
/* This lane's vector of strip i of tile m of a piece; behind all vectors the scales, likewise. */
GPU_FN uint32_t lane_vector(uint32_t m, uint32_t i) {
    return (m * TILE + gpu_strip_row(i)) * 4 + gpu_strip_k() / 8;
}

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

GPU_FN uint32_t rotate_right(uint32_t v, uint32_t by) {
    return v >> by | v << (32 - by);
}
/* A word of eight codes (pack.h) as BF16 pairs. */
GPU_FN struct gpu_u4 widen_codes(uint32_t word, uint32_t scale) {
    const uint32_t mask = 0x81C081C0u; /* signs and magnitudes of a pair */
    /* The last pair: three copies of its bits, which do not meet, each put in place by one. */
    const uint32_t last = (word & 0x001B001Bu) * (1u << 3 | 1u << 8 | 1u << 14);
    const struct gpu_u4 v = {
        gpu_bf16_mul(word & mask, scale), gpu_bf16_mul(rotate_right(word, 3) & mask, scale),
        gpu_bf16_mul(rotate_right(word, 6) & mask, scale), gpu_bf16_mul(last & mask, scale)};
    return v;
}
GPU_FN struct gpu_u4 times_pairs(struct gpu_u4 v, uint32_t factor) {
    const struct gpu_u4 w = {gpu_bf16_mul(v.x, factor), gpu_bf16_mul(v.y, factor),
                             gpu_bf16_mul(v.z, factor), gpu_bf16_mul(v.w, factor)};
    return w;
}
GPU_FN uint32_t word_of(struct gpu_u4 v, const uint32_t j) {
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

GPU_FN float activate(const struct gpu_experts *a, float gate, float up) {
    return glu_of(a->situ, a->beta, a->linear_beta, gate, up);
}

#endif
