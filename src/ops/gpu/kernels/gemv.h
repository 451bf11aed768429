/* gemv.h: products of BF16 matrices with one row or two, where reading the matrix is all the
 * time there is: every lane multiplies what it loads. A wave has GEMV_ROWS rows of W, of which what
 * it reads of x serves all, and `split` waves share their columns, 8 a lane at a time in turn. W
 * comes through stages in shared memory that no other lane reads: a longer row of registers, so
 * that much is on its way all the time. */
#ifndef WEIR_OPS_GPU_KERNELS_GEMV_H
#define WEIR_OPS_GPU_KERNELS_GEMV_H

#include "ops/gpu/kernels/parts.h"
#include "ops/gpu/kernels/rows.h"

enum {
    GEMV_THREADS = 256,
    GEMV_ROWS = GPU_GEMV_ROWS,
    VECTORS = GEMV_ROWS * GPU_WAVE, /* of a stage */
    ROWS_MOST = 2,
};
struct gemv {
    const struct gpu_linear *a;
    const struct gpu_linear_part *part;
    uint32_t first, pieces; /* pieces of 8 columns a lane of the first term, and of both */
    uint32_t row0;          /* of W */
};
/* Where a piece lies for this lane, which takes `each` columns of it. */
struct gemv_piece {
    uint32_t term, k, cols;
};
GPU_FN struct gemv_piece piece_of(const struct gemv *g, uint32_t piece, const uint32_t each) {
    const uint32_t term = piece >= g->first ? 1 : 0;
    const struct gemv_piece p = {
        term, (piece - (term ? g->first : 0)) * each * GPU_WAVE + gpu_lane() * each,
        term ? g->part->cols2 : g->part->cols};
    return p;
}
/* Beyond the last row: the last once more, and nothing is done with it. */
GPU_FN uint64_t gemv_row(const struct gemv *g, uint32_t r) {
    return g->row0 + r < g->part->rows ? g->row0 + r : g->part->rows - 1;
}

GPU_FN void fetch_w(const struct gemv *g, struct gpu_u4 *stage, uint32_t piece) {
    if (piece < g->pieces) {
        const struct gemv_piece p = piece_of(g, piece, 8);
        const uint16_t *w = matrix_of(g->part, p.term);
        GPU_UNROLL
        for (uint32_t r = 0; r < GEMV_ROWS; r++) {
            const uint64_t row = gemv_row(g, r);
            if (p.k < p.cols)
                gpu_copy16(stage + r * GPU_WAVE + gpu_lane(), w + row * p.cols + p.k, true);
        }
    }
    gpu_copy_commit();
}
GPU_FN void load_x(const struct gemv *g, struct gpu_u4 *x, uint32_t piece, const uint32_t most) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const struct gemv_piece p = piece_of(g, piece, 8);
    const uint16_t *from = x_of(g->part, p.term);
    const uint32_t stride = p.term ? g->part->x2_stride : g->part->x_stride;
    GPU_UNROLL
    for (uint32_t m = 0; m < most; m++) {
        const uint32_t row = m < g->a->x_rows ? m : g->a->x_rows - 1;
        x[m] = none;
        if (piece < g->pieces && p.k < p.cols)
            x[m] = gpu_load16(from + (uint64_t)row * stride + p.k);
    }
}
GPU_FN void multiply(float (*acc)[ROWS_MOST], const struct gpu_u4 *stage, const struct gpu_u4 *x,
                     const uint32_t most) {
    float w[GEMV_ROWS][8];
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++)
        widen_bf16x8(w[r], gpu_load16(stage + r * GPU_WAVE + gpu_lane()));
    GPU_UNROLL
    for (uint32_t m = 0; m < most; m++) {
        float f[8];
        widen_bf16x8(f, x[m]);
        GPU_UNROLL
        for (uint32_t r = 0; r < GEMV_ROWS; r++) {
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++)
                acc[r][m] += w[r][e] * f[e];
        }
    }
}

/* The sums of all lanes, then of the waves that share rows of W, to where they belong. */
GPU_FN void gemv_out(const struct gemv *g, float (*acc)[ROWS_MOST], float *parts,
                     uint32_t block_row, uint32_t split, const uint32_t most) {
    const uint32_t wave = gpu_wave(), groups = gpu_waves() / split, each = GEMV_ROWS * most;
    gpu_copy_wait(0);
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++) {
            acc[r][m] = gpu_wave_sum(acc[r][m]);
            if (gpu_lane() == 0)
                parts[wave * each + r * most + m] = acc[r][m];
        }
    }
    gpu_barrier();
    if (gpu_thread() >= groups * each)
        return;
    const uint32_t group = gpu_thread() / each, r = gpu_thread() % each / most;
    const uint32_t m = gpu_thread() % most, row = block_row + group * GEMV_ROWS + r;
    float sum = 0;
    for (uint32_t i = 0; i < split; i++)
        sum += parts[(group * split + i) * each + r * most + m];
    if (row < g->part->rows && m < g->a->x_rows)
        put(g->part, m, row, sum);
}

/* `rings`: of the waves, so many stages each; `parts`: the sums of each. */
GPU_FN void gemv(const struct gpu_linear *a, struct gpu_u4 *rings, float *parts,
                 const uint32_t most, const uint32_t stages) {
    const uint32_t wave = gpu_wave(), split = a->split, groups = gpu_waves() / split;
    const uint32_t share = wave % split;
    struct gpu_u4 *ring = rings + wave * stages * VECTORS, next[ROWS_MOST];
    float acc[GEMV_ROWS][ROWS_MOST];
    struct gemv g;
    g.a = a;
    g.part = &a->part[part_of_block(a)];
    g.first = (g.part->cols + 8 * GPU_WAVE - 1) / (8 * GPU_WAVE);
    g.pieces = g.first;
    if (g.part->w2)
        g.pieces += (g.part->cols2 + 8 * GPU_WAVE - 1) / (8 * GPU_WAVE);
    const uint32_t block_row = (gpu_block_x() - g.part->first_block) * groups * GEMV_ROWS;
    g.row0 = block_row + wave / split * GEMV_ROWS;
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++)
            acc[r][m] = 0;
    }
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++)
        fetch_w(&g, ring + t * VECTORS, share + t * split);
    gpu_wait_previous(); /* the matrix was there before; x was not */
    gpu_launch_next();
    load_x(&g, next, share, most);
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t piece = share; piece < g.pieces; piece += split) {
        struct gpu_u4 *stage = ring + here * VECTORS, x[ROWS_MOST];
        const struct gemv_piece p = piece_of(&g, piece, 8);
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++)
            x[m] = next[m];
        load_x(&g, next, piece + split, most);
        wait_for_stage(stages);
        if (p.k < p.cols)
            multiply(acc, stage, x, most);
        fetch_w(&g, stage, piece + stages * split);
        here = here + 1 < stages ? here + 1 : 0;
    }
    gemv_out(&g, acc, parts, block_row, split, most);
}

#if GPU_WAVE == 32
typedef struct gpu_gemv_shared_32 gemv_shared;
typedef struct gpu_gemv_more_shared_32 gemv_more_shared;
#else
typedef struct gpu_gemv_shared_64 gemv_shared;
typedef struct gpu_gemv_more_shared_64 gemv_more_shared;
#endif

#endif
