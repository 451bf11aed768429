/* gemm_fp8.c: products of FP8 matrices with many rows: gemm.c by tiles of 128 by 64, whose codes
 * come through registers, where they become BF16 numbers without rounding. A thread has those of a
 * stage that is one further than what copies bring. Sums of the 128 columns that share a scale get
 * it when they are added as f32. Parts of a launch that are BF16 have copies in place of codes, and
 * scales of one. */
#include "ops/gpu/kernels/codes.h"
#include "ops/gpu/kernels/gemm_tiles.h"

enum {
    HIGH = 4, /* tiles of x of a wave, and of W */
    WIDE = 2,
    DOWN = 2, /* waves one below the other along x */
    X_ROWS = DOWN * HIGH * TILE,
    W_ROWS = GEMM_ACROSS * WIDE * TILE,
    THREADS = DOWN * GEMM_ACROSS * GPU_WAVE,
    STAGE = (X_ROWS + W_ROWS) * TILE_ROW,
    VECTORS = W_ROWS * TILE_K / 16, /* of codes in a stage */
    EACH = (VECTORS + THREADS - 1) / THREADS,
    GROUP = GPU_FP8_SCALED / TILE_K, /* stages that share a scale */
};
#if GPU_WAVE == 32
typedef struct gpu_gemm_128_shared_32 gemm_128_shared;
#else
typedef struct gpu_gemm_128_shared_64 gemm_128_shared;
#endif

/* One block's part of the work. */
struct tiles {
    const struct gpu_linear *a;
    const struct gpu_linear_part *part;
    uint32_t x0, w0;       /* of x and W */
    uint32_t first, steps; /* stages of the first term, and of both */
};
/* The columns of a stage. */
struct tile_cols {
    uint32_t term, step, cols; /* step: of its term */
};
GPU_FN struct tile_cols cols_of(const struct tiles *t, uint32_t step) {
    const uint32_t term = step >= t->first ? 1 : 0;
    const struct tile_cols c = {term, step - (term ? t->first : 0),
                                term ? t->part->cols2 : t->part->cols};
    return c;
}
GPU_FN uint64_t codes_row(const struct tiles *t, uint32_t row) {
    return row < t->part->rows ? row : t->part->rows - 1;
}

/* Asks for what copies bring of stage `step`. */
GPU_FN void fetch(const struct tiles *t, uint16_t *stage, uint32_t step) {
    if (step < t->steps) {
        const struct tile_cols c = cols_of(t, step);
        const struct gpu_linear_part *part = t->part;
        gemm_rows(stage, x_of(part, c.term), c.term ? part->x2_stride : part->x_stride, t->x0,
                  t->a->x_rows, c.step * TILE_K, c.cols, X_ROWS, THREADS);
        if (!part->fp8)
            gemm_rows(stage + X_ROWS * TILE_ROW, matrix_of(part, c.term), c.cols, t->w0, part->rows,
                      c.step * TILE_K, c.cols, W_ROWS, THREADS);
    }
    gpu_copy_commit();
}
/* This thread's codes of stage `step`; what is not there is zero. */
GPU_FN void take_codes(const struct tiles *t, struct gpu_u4 *code, uint32_t step) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const struct tile_cols c = cols_of(t, step);
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = i * THREADS + gpu_thread(), row = t->w0 + at / (TILE_K / 16);
        const uint32_t k = c.step * TILE_K + at % (TILE_K / 16) * 16;
        code[i] = none;
        if (t->part->fp8 && step < t->steps && at < VECTORS && row < t->part->rows && k < c.cols)
            code[i] =
                gpu_load16(codes_of(t->part, c.term) + (uint64_t)row * GPU_FP8_ROW(c.cols) + k);
    }
}
GPU_FN void put_codes(const struct tiles *t, uint16_t *stage, const struct gpu_u4 *code) {
    if (!t->part->fp8)
        return;
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = i * THREADS + gpu_thread();
        if (at >= VECTORS)
            continue;
        uint16_t *to = stage + (X_ROWS + at / (TILE_K / 16)) * TILE_ROW + at % (TILE_K / 16) * 16;
        gpu_store16(to, widen_codes8(code[i].x, code[i].y));
        gpu_store16(to + 8, widen_codes8(code[i].z, code[i].w));
    }
}
/* Of the rows of W that this lane has sums of, for the columns that begin with stage `step`. */
GPU_FN void load_scales(const struct tiles *t, float (*scale)[GPU_SUMS], uint32_t step,
                        uint32_t w_in) {
    const struct tile_cols c = cols_of(t, step);
    const float *from = scales_of(t->part, c.term, c.cols);
    GPU_UNROLL
    for (uint32_t w = 0; w < WIDE; w++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++) {
            const uint64_t row = codes_row(t, t->w0 + w_in + w * TILE + gpu_sum_col(i));
            scale[w][i] = 1;
            if (t->part->fp8)
                scale[w][i] = from[row * GPU_FP8_SCALES(c.cols) + c.step / GROUP];
        }
    }
}

GPU_KERNEL(weir_gemm_fp8_128, gpu_linear, THREADS, 2) {
    GPU_SHARED(gemm_128_shared, s);
    uint16_t *stages = &s->tile[0][0][0];
    const uint32_t x_in = gpu_wave() / GEMM_ACROSS * HIGH * TILE;
    const uint32_t w_in = gpu_wave() % GEMM_ACROSS * WIDE * TILE;
    struct gpu_sums acc[HIGH * WIDE], sum_of[HIGH * WIDE];
    struct gpu_u4 code[EACH];
    float scale[WIDE][GPU_SUMS];
    struct tiles t;
    t.a = &a;
    t.part = &a.part[part_of_block(&a)];
    t.first = (t.part->cols + TILE_K - 1) / TILE_K;
    t.steps = t.first + (t.part->w2 ? (t.part->cols2 + TILE_K - 1) / TILE_K : 0);
    gemm_place(&a, t.part, gpu_block_x() - t.part->first_block, &t.x0, &t.w0, X_ROWS, W_ROWS);
    tile_clear(acc, HIGH * WIDE);
    tile_clear(sum_of, HIGH * WIDE);
    gpu_wait_previous();
    gpu_launch_next();
    for (uint32_t step = 0; step < TILE_STAGES - 1; step++) {
        fetch(&t, stages + step * STAGE, step);
        take_codes(&t, code, step);
        put_codes(&t, stages + step * STAGE, code);
    }
    take_codes(&t, code, TILE_STAGES - 1);
    uint32_t here = 0, next = TILE_STAGES - 1;
    GPU_ROLLED
    for (uint32_t step = 0; step < t.steps; step++) {
        const struct tile_cols c = cols_of(&t, step);
        if (c.step % GROUP == 0)
            load_scales(&t, scale, step, w_in);
        gpu_copy_wait(TILE_STAGES - 2);
        gpu_barrier(); /* everybody's have come, and nobody reads what the next ones replace */
        fetch(&t, stages + next * STAGE, step + TILE_STAGES - 1);
        put_codes(&t, stages + next * STAGE, code);
        take_codes(&t, code, step + TILE_STAGES);
        const uint16_t *x = stages + here * STAGE + x_in * TILE_ROW;
        tile_multiply(acc, x, stages + here * STAGE + (X_ROWS + w_in) * TILE_ROW, HIGH, WIDE);
        here = here + 1 < TILE_STAGES ? here + 1 : 0;
        next = next + 1 < TILE_STAGES ? next + 1 : 0;
        if (c.step % GROUP == GROUP - 1 || step + 1 == t.first || step + 1 == t.steps) {
            GPU_UNROLL
            for (uint32_t k = 0; k < HIGH * WIDE; k++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < GPU_SUMS; i++)
                    sum_of[k].at[i] += acc[k].at[i] * scale[k % WIDE][i];
            }
            tile_clear(acc, HIGH * WIDE);
        }
    }
    gpu_copy_wait(0);
    gemm_out(&a, t.part, sum_of, &s->band[0][0][0], t.x0, x_in, t.w0, w_in, HIGH, WIDE);
}
