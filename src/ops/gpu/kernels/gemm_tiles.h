/* gemm_tiles.h: what products of many rows by tiles of waves share: how rows come into a stage, and
 * how sums leave. */
#ifndef WEIR_OPS_GPU_KERNELS_GEMM_TILES_H
#define WEIR_OPS_GPU_KERNELS_GEMM_TILES_H

#include "ops/gpu/kernels/gemm.h"
#include "ops/gpu/kernels/tile.h"

enum {
    GEMM_ACROSS = 2, /* waves side by side along W */
    SUMS_MOST = 12,  /* tiles of a wave */
};

/* Asks for rows [from, from + high) of a stage, those below `end`; `threads` of the block. */
GPU_FN void gemm_rows(uint16_t *stage, const uint16_t *rows, uint64_t stride, uint32_t from,
                      uint32_t end, uint32_t k0, uint32_t cols, const uint32_t high,
                      const uint32_t threads) {
    GPU_UNROLL
    for (uint32_t i = 0; i < (high * TILE_PIECES + threads - 1) / threads; i++) {
        const uint32_t at = i * threads + gpu_thread();
        const uint32_t r = at / TILE_PIECES, k = at % TILE_PIECES * 8;
        const bool there = from + r < end && k0 + k < cols;
        if (r < high)
            gpu_copy16(stage + r * TILE_ROW + k, there ? rows + (from + r) * stride + k0 + k : rows,
                       there);
    }
}

/* Sums of `high` by `wide` tiles of this wave, as whole rows. The block's rows of x begin at x0,
 * the wave's x_in behind that, of W likewise; `bands` take the place of the stages. */
GPU_FN void gemm_out(const struct gpu_linear *a, const struct gpu_linear_part *part,
                     const struct gpu_sums *sum_of, float *bands, uint32_t x0, uint32_t x_in,
                     uint32_t w0, uint32_t w_in, const uint32_t high, const uint32_t wide) {
    const uint32_t cols = wide * TILE, row = cols + GPU_BAND_PAD, lanes = cols / 8;
    float *band = bands + gpu_wave() * TILE * row;
    GPU_UNROLL
    for (uint32_t h = 0; h < high; h++) {
        gpu_barrier(); /* the stages, or the band before, are no longer read */
        tile_band(band, sum_of + h * wide, wide);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t i = 0; i < TILE * lanes / GPU_WAVE; i++) {
            const uint32_t at = i * GPU_WAVE + gpu_lane(), r = at / lanes, c = at % lanes * 8;
            const uint32_t x_row = x0 + x_in + h * TILE + r, w_row = w0 + w_in + c;
            float sum[8];
            widen_f32x4(sum, gpu_load16(band + r * row + c));
            widen_f32x4(sum + 4, gpu_load16(band + r * row + c + 4));
            if (x_row < a->x_rows && w_row < part->rows)
                gemm_put(part, x_row, w_row, sum);
        }
    }
}

#endif
