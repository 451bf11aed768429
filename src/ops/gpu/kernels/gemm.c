/* gemm.c: products of BF16 matrices with many rows, where multiplying is most of the time.
 *
 * A block has a tile of x by W, each of its waves 64 rows of it. Columns come through shared memory
 * in stages, by copies that go on while earlier ones are multiplied; the columns of a second term
 * follow those of the first without a pause. Results go back through shared memory, so that they
 * leave as whole rows.
 * Invariant that bites: columns beyond the last are zero in a stage, on both sides: 0 times what
 * was left over may be NaN. Rows beyond the last are not read, and nothing is done with their sums.
 */
#include "ops/gpu/kernels/parts.h"
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/kernels/tile.h"

enum { GEMM_ACROSS = 2 /* waves side by side along W */, GEMM_GROUP = 8 };
#if GPU_WAVE == 32
typedef struct gpu_gemm_256_shared_32 gemm_256_shared;
typedef struct gpu_gemm_128_shared_32 gemm_128_shared;
#else
typedef struct gpu_gemm_256_shared_64 gemm_256_shared;
typedef struct gpu_gemm_128_shared_64 gemm_128_shared;
#endif

/* First rows of x and W of this block: GEMM_GROUP tiles of x go through all of W together, so that
 * blocks that run at the same time find each other's rows in the second-level cache. */
GPU_FN void gemm_place(const struct gpu_linear *a, const struct gpu_linear_part *part, uint32_t *x0,
                       uint32_t *w0, const uint32_t tx, const uint32_t tw) {
    const uint32_t tiles_x = (a->x_rows + tx - 1) / tx, tiles_w = (part->rows + tw - 1) / tw;
    const uint32_t at = gpu_block_x() - part->first_block;
    const uint32_t first = at / (GEMM_GROUP * tiles_w) * GEMM_GROUP;
    const uint32_t in = at % (GEMM_GROUP * tiles_w);
    const uint32_t high = tiles_x - first < GEMM_GROUP ? tiles_x - first : GEMM_GROUP;
    *x0 = (first + in % high) * tx;
    *w0 = in / high * tw;
}

/* Asks for rows [from, from + high) of a stage, those below `end`; `threads` of the block. */
GPU_FN void gemm_rows(uint16_t *stage, const uint16_t *rows, uint64_t stride, uint32_t from,
                      uint32_t end, uint32_t k0, uint32_t cols, const uint32_t high,
                      const uint32_t threads) {
    GPU_UNROLL
    for (uint32_t i = 0; i < high * TILE_PIECES / threads; i++) {
        const uint32_t at = i * threads + gpu_thread();
        const uint32_t r = at / TILE_PIECES, k = at % TILE_PIECES * 8;
        const bool there = from + r < end && k0 + k < cols;
        gpu_copy16(stage + r * TILE_ROW + k, there ? rows + (from + r) * stride + k0 + k : rows,
                   there);
    }
}

/* Stage `step` of the columns of both terms; `first`: stages of the first. */
GPU_FN void gemm_fetch(const struct gpu_linear *a, const struct gpu_linear_part *part,
                       uint16_t *stage, uint32_t x0, uint32_t w0, uint32_t step, uint32_t first,
                       const uint32_t tx, const uint32_t tw, const uint32_t threads) {
    const uint32_t term = step >= first ? 1 : 0, k0 = (step - (term ? first : 0)) * TILE_K;
    const uint32_t cols = term ? part->cols2 : part->cols;
    gemm_rows(stage, x_of(part, term), term ? part->x2_stride : part->x_stride, x0, a->x_rows, k0,
              cols, tx, threads);
    gemm_rows(stage + tx * TILE_ROW, matrix_of(part, term), cols, w0, part->rows, k0, cols, tw,
              threads);
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

/* `down`: waves one below the other along x; `wide`: tiles of W that a wave has. */
GPU_FN void gemm(const struct gpu_linear *a, uint16_t *tiles, float *bands, const uint32_t down,
                 const uint32_t wide) {
    const uint32_t tx = down * TILE_HIGH * TILE, tw = GEMM_ACROSS * wide * TILE;
    const uint32_t threads = down * GEMM_ACROSS * GPU_WAVE, stage = (tx + tw) * TILE_ROW;
    const struct gpu_linear_part *part = &a->part[part_of_block(a)];
    const uint32_t first = (part->cols + TILE_K - 1) / TILE_K;
    const uint32_t steps = first + (part->w2 ? (part->cols2 + TILE_K - 1) / TILE_K : 0);
    const uint32_t x_in = gpu_wave() / GEMM_ACROSS * TILE_HIGH * TILE;
    const uint32_t w_in = gpu_wave() % GEMM_ACROSS * wide * TILE;
    uint32_t x0, w0;
    struct gpu_sums acc[TILE_HIGH * 4];
    gemm_place(a, part, &x0, &w0, tx, tw);
    tile_clear(acc, TILE_HIGH * wide);
    gpu_wait_previous();
    gpu_launch_next();
    for (uint32_t s = 0; s < TILE_STAGES - 1; s++) {
        if (s < steps)
            gemm_fetch(a, part, tiles + s * stage, x0, w0, s, first, tx, tw, threads);
        gpu_copy_commit();
    }
    uint32_t here = 0, next = TILE_STAGES - 1;
    GPU_ROLLED
    for (uint32_t s = 0; s < steps; s++) {
        gpu_copy_wait(TILE_STAGES - 2);
        gpu_barrier(); /* everybody's have come, and nobody reads what the next ones replace */
        if (s + TILE_STAGES - 1 < steps)
            gemm_fetch(a, part, tiles + next * stage, x0, w0, s + TILE_STAGES - 1, first, tx, tw,
                       threads);
        gpu_copy_commit();
        const uint16_t *x = tiles + here * stage + x_in * TILE_ROW;
        tile_multiply(acc, x, tiles + here * stage + (tx + w_in) * TILE_ROW, TILE_HIGH, wide);
        here = here + 1 < TILE_STAGES ? here + 1 : 0;
        next = next + 1 < TILE_STAGES ? next + 1 : 0;
    }
    gpu_copy_wait(0);
    const uint32_t cols = wide * TILE, row = cols + GPU_BAND_PAD, lanes = cols / 8;
    float *band = bands + gpu_wave() * TILE * row;
    GPU_UNROLL
    for (uint32_t h = 0; h < TILE_HIGH; h++) {
        gpu_barrier(); /* the stages, or the band before, are no longer read */
        tile_band(band, acc + h * wide, wide);
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

GPU_KERNEL(weir_gemm_256, gpu_linear, 8 * GPU_WAVE, 1) {
    GPU_SHARED(gemm_256_shared, s);
    gemm(&a, &s->tile[0][0][0], &s->band[0][0][0], 4, 4);
}
GPU_KERNEL(weir_gemm_128, gpu_linear, 4 * GPU_WAVE, 2) {
    GPU_SHARED(gemm_128_shared, s);
    gemm(&a, &s->tile[0][0][0], &s->band[0][0][0], 2, 2);
}
