/* gemm.c: products of BF16 matrices with many rows, where multiplying is most of the time.
 *
 * A block has a tile of x by W, each of its waves 64 rows of it. Columns come through shared memory
 * in stages, by copies that go on while earlier ones are multiplied; the columns of a second term
 * follow those of the first without a pause. Results go back through shared memory, so that they
 * leave as whole rows.
 * Tensor cores cut what they add off where others round: what a chain of products loses grows with
 * its length, so chains end after CHAIN stages and their sums are added as f32.
 * Invariant that bites: columns beyond the last are zero in a stage, on both sides: 0 times what
 * was left over may be NaN. Rows beyond the last are not read, and nothing is done with their sums.
 */
#include "ops/gpu/kernels/gemm_tiles.h"

enum { CHAIN = 512 / TILE_K };
#if GPU_WAVE == 32
typedef struct gpu_gemm_192_shared_32 gemm_192_shared;
typedef struct gpu_gemm_128_shared_32 gemm_128_shared;
#else
typedef struct gpu_gemm_192_shared_64 gemm_192_shared;
typedef struct gpu_gemm_128_shared_64 gemm_128_shared;
#endif

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

/* `down`: waves one below the other along x; `high`, `wide`: tiles of x and W that a wave has. */
GPU_FN void gemm(const struct gpu_linear *a, uint16_t *tiles, float *bands, const uint32_t down,
                 const uint32_t high, const uint32_t wide) {
    const uint32_t tx = down * high * TILE, tw = GEMM_ACROSS * wide * TILE;
    const uint32_t threads = down * GEMM_ACROSS * GPU_WAVE, stage = (tx + tw) * TILE_ROW;
    const struct gpu_linear_part *part = &a->part[part_of_block(a)];
    const uint32_t first = (part->cols + TILE_K - 1) / TILE_K;
    const uint32_t steps = first + (part->w2 ? (part->cols2 + TILE_K - 1) / TILE_K : 0);
    const uint32_t x_in = gpu_wave() / GEMM_ACROSS * high * TILE;
    const uint32_t w_in = gpu_wave() % GEMM_ACROSS * wide * TILE;
    uint32_t x0, w0;
    struct gpu_sums acc[SUMS_MOST], sum_of[SUMS_MOST];
    gemm_place(a, part, gpu_block_x() - part->first_block, &x0, &w0, tx, tw);
    tile_clear(acc, high * wide);
    tile_clear(sum_of, high * wide);
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
        tile_multiply(acc, x, tiles + here * stage + (tx + w_in) * TILE_ROW, high, wide);
        here = here + 1 < TILE_STAGES ? here + 1 : 0;
        next = next + 1 < TILE_STAGES ? next + 1 : 0;
        if (s % CHAIN == CHAIN - 1 || s + 1 == steps) {
            tile_add(sum_of, acc, high * wide);
            tile_clear(acc, high * wide);
        }
    }
    gpu_copy_wait(0);
    gemm_out(a, part, sum_of, bands, x0, x_in, w0, w_in, high, wide);
}

GPU_KERNEL(weir_gemm_192, gpu_linear, 8 * GPU_WAVE, 1) {
    GPU_SHARED(gemm_192_shared, s);
    gemm(&a, &s->tile[0][0][0], &s->band[0][0][0], 4, 3, 4);
}
GPU_KERNEL(weir_gemm_128, gpu_linear, 4 * GPU_WAVE, 2) {
    GPU_SHARED(gemm_128_shared, s);
    gemm(&a, &s->tile[0][0][0], &s->band[0][0][0], 2, 4, 2);
}
