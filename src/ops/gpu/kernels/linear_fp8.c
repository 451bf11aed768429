/* linear_fp8.c: products of FP8 matrices with one row or two: gemv.h with codes in the stages, 16
 * columns a lane at a time, which share one scale. Codes become f32 numbers in registers. Parts of
 * a launch that are BF16 go as there: their rows take the same blocks. */
#include "ops/gpu/kernels/codes.h"
#include "ops/gpu/kernels/gemv.h"

enum { LANE_CODES = 16 };

GPU_FN void fetch_codes(const struct gemv *g, struct gpu_u4 *stage, uint32_t piece) {
    if (piece < g->pieces) {
        const struct gemv_piece p = piece_of(g, piece, LANE_CODES);
        const uint8_t *w = codes_of(g->part, p.term);
        GPU_UNROLL
        for (uint32_t r = 0; r < GEMV_ROWS; r++)
            if (p.k < p.cols)
                gpu_copy16(stage + r * GPU_WAVE + gpu_lane(),
                           w + gemv_row(g, r) * GPU_FP8_ROW(p.cols) + p.k, true);
    }
    gpu_copy_commit();
}
GPU_FN void load_scales(const struct gemv *g, float *scale, uint32_t piece) {
    const struct gemv_piece p = piece_of(g, piece, LANE_CODES);
    const float *from = scales_of(g->part, p.term, p.cols);
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++)
        if (piece < g->pieces && p.k < p.cols)
            scale[r] = from[gemv_row(g, r) * GPU_FP8_SCALES(p.cols) + p.k / GPU_FP8_SCALED];
}
/* Two vectors of each row; columns are multiples of 8, so that the second may not be there. */
GPU_FN void load_x_of_codes(const struct gemv *g, struct gpu_u4 (*x)[2], uint32_t piece,
                            const uint32_t most) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const struct gemv_piece p = piece_of(g, piece, LANE_CODES);
    const uint16_t *from = x_of(g->part, p.term);
    const uint32_t stride = p.term ? g->part->x2_stride : g->part->x_stride;
    GPU_UNROLL
    for (uint32_t m = 0; m < most; m++) {
        const uint32_t row = m < g->a->x_rows ? m : g->a->x_rows - 1;
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            x[m][h] = none;
            if (piece < g->pieces && p.k + h * 8 < p.cols)
                x[m][h] = gpu_load16(from + (uint64_t)row * stride + p.k + h * 8);
        }
    }
}

GPU_FN void multiply_codes(float (*acc)[ROWS_MOST], const struct gpu_u4 *stage, const float *scale,
                           struct gpu_u4 (*x)[2], const uint32_t most) {
    float f[ROWS_MOST][LANE_CODES];
    GPU_UNROLL
    for (uint32_t m = 0; m < most; m++) {
        widen_bf16x8(f[m], x[m][0]);
        widen_bf16x8(f[m] + 8, x[m][1]);
    }
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        const struct gpu_u4 v = gpu_load16(stage + r * GPU_WAVE + gpu_lane());
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
        float sum[ROWS_MOST] = {0, 0};
        GPU_UNROLL
        for (uint32_t e = 0; e < LANE_CODES; e += 2) {
            float w[2];
            gpu_from_e4m3_x2(word[e / 4], e % 4 > 0, w);
            GPU_UNROLL
            for (uint32_t m = 0; m < most; m++)
                sum[m] += w[0] * f[m][e] + w[1] * f[m][e + 1];
        }
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++)
            acc[r][m] += sum[m] * scale[r];
    }
}

/* As gemv(). */
GPU_FN void gemv_codes(const struct gpu_linear *a, const struct gpu_linear_part *part,
                       struct gpu_u4 *rings, float *parts, const uint32_t most,
                       const uint32_t stages) {
    enum { COLS = LANE_CODES * GPU_WAVE };
    const uint32_t wave = gpu_wave(), split = a->split, groups = gpu_waves() / split;
    const uint32_t share = wave % split;
    struct gpu_u4 *ring = rings + wave * stages * VECTORS, next[ROWS_MOST][2];
    float acc[GEMV_ROWS][ROWS_MOST], next_scale[GEMV_ROWS];
    struct gemv g;
    g.a = a;
    g.part = part;
    g.first = (part->cols + COLS - 1) / COLS;
    g.pieces = g.first + (part->w2 ? (part->cols2 + COLS - 1) / COLS : 0);
    const uint32_t block_row = (gpu_block_x() - part->first_block) * groups * GEMV_ROWS;
    g.row0 = block_row + wave / split * GEMV_ROWS;
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        next_scale[r] = 0;
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++)
            acc[r][m] = 0;
    }
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++)
        fetch_codes(&g, ring + t * VECTORS, share + t * split);
    load_scales(&g, next_scale, share);
    gpu_wait_previous(); /* the matrix was there before; x was not */
    gpu_launch_next();
    load_x_of_codes(&g, next, share, most);
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t piece = share; piece < g.pieces; piece += split) {
        struct gpu_u4 *stage = ring + here * VECTORS, x[ROWS_MOST][2];
        float scale[GEMV_ROWS];
        const struct gemv_piece p = piece_of(&g, piece, LANE_CODES);
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++) {
            x[m][0] = next[m][0];
            x[m][1] = next[m][1];
        }
        GPU_UNROLL
        for (uint32_t r = 0; r < GEMV_ROWS; r++)
            scale[r] = next_scale[r];
        load_x_of_codes(&g, next, piece + split, most);
        load_scales(&g, next_scale, piece + split);
        wait_for_stage(stages);
        if (p.k < p.cols)
            multiply_codes(acc, stage, scale, x, most);
        fetch_codes(&g, stage, piece + stages * split);
        here = here + 1 < stages ? here + 1 : 0;
    }
    gemv_out(&g, acc, parts, block_row, split, most);
}

#define GEMV_FP8(NAME, SHARED, ROWS, BLOCKS)                                                       \
    GPU_KERNEL(NAME, gpu_linear, GEMV_THREADS, BLOCKS) {                                           \
        GPU_SHARED(SHARED, s);                                                                     \
        enum { STAGES = sizeof s->ring[0] / sizeof s->ring[0][0] };                                \
        const struct gpu_linear_part *part = &a.part[part_of_block(&a)];                           \
        if (part->fp8)                                                                             \
            gemv_codes(&a, part, (struct gpu_u4 *)s->ring, s->part[0], ROWS, STAGES);              \
        else                                                                                       \
            gemv(&a, (struct gpu_u4 *)s->ring, s->part[0], ROWS, STAGES);                          \
    }
GEMV_FP8(weir_gemv_fp8_1, gemv_shared, 1, 3)
GEMV_FP8(weir_gemv_fp8_1_more, gemv_more_shared, 1, 4)
GEMV_FP8(weir_gemv_fp8_2, gemv_shared, 2, 2)
