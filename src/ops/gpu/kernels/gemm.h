/* gemm.h: what kernels of products with many rows have in common: which tile a block has, and where
 * its results go. */
#ifndef WEIR_OPS_GPU_KERNELS_GEMM_H
#define WEIR_OPS_GPU_KERNELS_GEMM_H

#include "ops/gpu/kernels/parts.h"
#include "ops/gpu/kernels/rows.h"

enum { GEMM_GROUP = 8 };

/* First rows of x and W of tile `at` of a part: GEMM_GROUP tiles of x go through all of W together,
 * so that blocks that run at the same time find each other's rows in the second-level cache. */
GPU_FN void gemm_place(const struct gpu_linear *a, const struct gpu_linear_part *part, uint32_t at,
                       uint32_t *x0, uint32_t *w0, const uint32_t tx, const uint32_t tw) {
    const uint32_t tiles_x = (a->x_rows + tx - 1) / tx, tiles_w = (part->rows + tw - 1) / tw;
    const uint32_t first = at / (GEMM_GROUP * tiles_w) * GEMM_GROUP;
    const uint32_t in = at % (GEMM_GROUP * tiles_w);
    const uint32_t high = tiles_x - first < GEMM_GROUP ? tiles_x - first : GEMM_GROUP;
    *x0 = (first + in % high) * tx;
    *w0 = in / high * tw;
}

/* Eight results of a row of x, rows of W from w_row on. */
GPU_FN void gemm_put(const struct gpu_linear_part *part, uint32_t x_row, uint32_t w_row,
                     const float *sum) {
    const uint32_t step = gpu_block_y() * part->y_step, col = step + w_row;
    if (w_row + 8 > part->rows || step % 8) {
        for (uint32_t e = 0; e < 8; e++)
            if (w_row + e < part->rows)
                put(part, x_row, w_row + e, sum[e]);
        return;
    }
    const uint64_t at = (uint64_t)x_row * part->y_stride + col;
    float v[8], more[8];
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        v[e] = sum[e];
    if (part->gate) {
        widen_bf16x8(more, gpu_load16(part->gate + (uint64_t)x_row * part->gate_stride + col));
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            v[e] *= gpu_sigmoid(more[e]);
    }
    if (!part->y) {
        gpu_store16(part->y16 + at, narrow_bf16x8(v));
        return;
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e += 4) {
        if (part->add) {
            widen_f32x4(more, gpu_load16(part->y + at + e));
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                v[e + i] += more[i];
        }
        gpu_store16(part->y + at + e, f32x4(v + e));
    }
}

#endif
