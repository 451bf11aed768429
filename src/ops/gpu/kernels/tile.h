/* tile.h: products of tiles that lie in shared memory, for many rows. Rows of a tile are eight
 * elements longer than they need to be: eight of them, read side by side, then lie in different
 * banks. */
#ifndef WEIR_OPS_GPU_KERNELS_TILE_H
#define WEIR_OPS_GPU_KERNELS_TILE_H

#include "ops/gpu/dialect.h"
#include "ops/gpu/records.h"

enum {
    TILE = 16,
    TILE_K = GPU_WAVE == 32 ? GPU_TILE_K_32 : GPU_TILE_K_64, /* columns in a stage */
    TILE_STAGES = GPU_WAVE == 32 ? GPU_TILE_STAGES_32 : GPU_TILE_STAGES_64,
    TILE_ROW = TILE_K + 8,
    TILE_PIECES = TILE_K / 8, /* loads of a row */
    TILE_HIGH = 4,            /* tiles of x that a wave has, at most */
};

GPU_FN void tile_clear(struct gpu_sums *acc, const uint32_t n) {
    GPU_UNROLL
    for (uint32_t t = 0; t < n; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            acc[t].at[i] = 0;
    }
}

GPU_FN void tile_add(struct gpu_sums *to, const struct gpu_sums *acc, const uint32_t n) {
    GPU_UNROLL
    for (uint32_t t = 0; t < n; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            to[t].at[i] += acc[t].at[i];
    }
}

/* acc[high][wide] += rows of x from `x` on times rows of W from `w` on, over one stage. */
GPU_FN void tile_multiply(struct gpu_sums *acc, const uint16_t *x, const uint16_t *w,
                          const uint32_t high, const uint32_t wide) {
    GPU_UNROLL
    for (uint32_t k = 0; k < TILE_K; k += 32) {
        struct gpu_strips a[TILE_HIGH];
        GPU_UNROLL
        for (uint32_t h = 0; h < high; h++)
            gpu_strips_shared(&a[h], x + h * TILE * TILE_ROW + k, TILE_ROW);
        GPU_UNROLL
        for (uint32_t t = 0; t < wide; t++) {
            struct gpu_strips b;
            gpu_strips_shared(&b, w + t * TILE * TILE_ROW + k, TILE_ROW);
            GPU_UNROLL
            for (uint32_t h = 0; h < high; h++)
                gpu_mma16(&acc[h * wide + t], &a[h], &b);
        }
    }
}

/* 16 rows of a wave's sums, as rows of 16 * wide + GPU_BAND_PAD floats. */
GPU_FN void tile_band(float *band, const struct gpu_sums *acc, const uint32_t wide) {
    GPU_UNROLL
    for (uint32_t t = 0; t < wide; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            band[gpu_sum_row(i) * (wide * TILE + GPU_BAND_PAD) + t * TILE + gpu_sum_col(i)] =
                acc[t].at[i];
    }
}

#endif
