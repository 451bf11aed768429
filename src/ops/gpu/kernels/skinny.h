/* skinny.h: products of BF16 matrices with 3 to 64 rows, where reading the matrix still is nearly
 * all the time there is. A block has some rows of W and all rows of x; its waves share the columns,
 * 32 at a time in turn. A lane copies what it will multiply, of both sides, into stages in shared
 * memory that no other lane reads: a longer row of registers, with which nobody waits for anybody
 * until the sums of the waves are added. */
#ifndef WEIR_OPS_GPU_KERNELS_SKINNY_H
#define WEIR_OPS_GPU_KERNELS_SKINNY_H

#include "ops/gpu/kernels/parts.h"

enum { TILE = 16, SKINNY_THREADS = 256, TILES_MOST = 4, GROUPS_MOST = GPU_SKINNY_ROWS / GPU_FEW };

/* One block's part of the work. */
struct skinny {
    const struct gpu_linear *a;
    const struct gpu_linear_part *part;
    uint32_t first, pieces; /* pieces of 32 columns of the first term, and of both */
    uint32_t row0;          /* of W */
};

/* Which columns of which term a piece has for this lane. */
struct skinny_piece {
    uint32_t term, k, cols;
};
GPU_FN struct skinny_piece piece_of(const struct skinny *s, uint32_t piece) {
    const uint32_t term = piece >= s->first ? 1 : 0;
    const struct skinny_piece p = {term, (piece - (term ? s->first : 0)) * 32 + gpu_strip_k(),
                                   term ? s->part->cols2 : s->part->cols};
    return p;
}

/* Rows beyond the last: the last once more, and nothing is done with the sums. */
GPU_FN void fetch_w(const struct skinny *s, struct gpu_u4 *stage, uint32_t piece,
                    const uint32_t tiles) {
    if (piece >= s->pieces)
        return;
    const struct skinny_piece p = piece_of(s, piece);
    const uint16_t *w = matrix_of(s->part, p.term);
    GPU_UNROLL
    for (uint32_t t = 0; t < tiles; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            uint32_t row = s->row0 + t * TILE + gpu_strip_row(i);
            row = row < s->part->rows ? row : s->part->rows - 1;
            gpu_copy16(stage + (t * GPU_STRIPS + i) * GPU_WAVE + gpu_lane(),
                       p.k < p.cols ? w + (uint64_t)row * p.cols + p.k : w, p.k < p.cols);
        }
    }
}
/* Behind the vectors of W. Rows that x has not are zero. */
GPU_FN void fetch_x(const struct skinny *s, struct gpu_u4 *stage, uint32_t piece,
                    const uint32_t tiles, const uint32_t groups) {
    if (piece >= s->pieces)
        return;
    const struct skinny_piece p = piece_of(s, piece);
    const uint16_t *x = x_of(s->part, p.term);
    const uint32_t stride = p.term ? s->part->x2_stride : s->part->x_stride;
    GPU_UNROLL
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t row = g * GPU_FEW + gpu_strip_row(0);
        const bool there = row < s->a->x_rows && p.k < p.cols;
        gpu_copy16(stage + (tiles * GPU_STRIPS + g) * GPU_WAVE + gpu_lane(),
                   there ? x + (uint64_t)row * stride + p.k : x, there);
    }
}

GPU_FN void multiply_stage(float (*acc)[GPU_FEW_SUMS], const struct gpu_u4 *stage,
                           const uint32_t tiles, const uint32_t groups) {
    struct gpu_u4 x[GROUPS_MOST];
    GPU_UNROLL
    for (uint32_t g = 0; g < groups; g++)
        x[g] = gpu_load16(stage + (tiles * GPU_STRIPS + g) * GPU_WAVE + gpu_lane());
    GPU_UNROLL
    for (uint32_t t = 0; t < tiles; t++) {
        struct gpu_strips w;
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            w.row[i] = gpu_load16(stage + (t * GPU_STRIPS + i) * GPU_WAVE + gpu_lane());
        GPU_UNROLL
        for (uint32_t g = 0; g < groups; g++)
            gpu_mma_few(acc[t * groups + g], &w, x[g]);
    }
}

/* The sums of the waves, `row` floats of `parts` for each row of x and in place of the stages,
 * added up and to where they belong. */
GPU_FN void skinny_out(const struct skinny *s, float (*acc)[GPU_FEW_SUMS], float *parts,
                       const uint32_t row, const uint32_t tiles, const uint32_t groups) {
    const uint32_t wave = gpu_wave(), waves = gpu_waves();
    gpu_copy_wait(0);
    gpu_barrier(); /* nobody's stages are in use */
    GPU_UNROLL
    for (uint32_t t = 0; t < tiles; t++) {
        GPU_UNROLL
        for (uint32_t g = 0; g < groups; g++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
                parts[(wave * groups * GPU_FEW + g * GPU_FEW + gpu_sum_col(i)) * row + t * TILE +
                      gpu_sum_row(i)] = acc[t * groups + g][i];
        }
    }
    gpu_barrier();
    for (uint32_t at = gpu_thread(); at < s->a->x_rows * tiles * TILE; at += waves * GPU_WAVE) {
        const uint32_t r = at % (tiles * TILE), m = at / (tiles * TILE);
        if (s->row0 + r >= s->part->rows)
            continue;
        float sum = 0;
        for (uint32_t w = 0; w < waves; w++)
            sum += parts[(w * groups * GPU_FEW + m) * row + r];
        put(s->part, m, s->row0 + r, sum);
    }
}

/* `tiles` of 16 rows of W a block, `most` rows of x; `parts`: sums of each wave, `row` floats for
 * each row of x, in place of the stages. */
GPU_FN void skinny(const struct gpu_linear *a, struct gpu_u4 *ring, float *parts,
                   const uint32_t row, const uint32_t tiles, const uint32_t most,
                   const uint32_t stages) {
    const uint32_t groups = (most + GPU_FEW - 1) / GPU_FEW;
    const uint32_t vectors = (tiles * GPU_STRIPS + groups) * GPU_WAVE;
    const uint32_t wave = gpu_wave(), waves = gpu_waves();
    struct skinny s;
    float acc[TILES_MOST * GROUPS_MOST][GPU_FEW_SUMS];
    s.a = a;
    s.part = &a->part[part_of_block(a)];
    s.first = (s.part->cols + 31) / 32;
    s.pieces = s.first + (s.part->w2 ? (s.part->cols2 + 31) / 32 : 0);
    s.row0 = (gpu_block_x() - s.part->first_block) * tiles * TILE;
    struct gpu_u4 *mine = ring + wave * stages * vectors;
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles * groups; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_FEW_SUMS; e++)
            acc[i][e] = 0;
    }
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++)
        fetch_w(&s, mine + t * vectors, wave + t * waves, tiles);
    gpu_wait_previous(); /* the matrix was there before; x was not */
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++) {
        fetch_x(&s, mine + t * vectors, wave + t * waves, tiles, groups);
        gpu_copy_commit();
    }
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t piece = wave; piece < s.pieces; piece += waves) {
        struct gpu_u4 *stage = mine + here * vectors;
        wait_for_stage(stages);
        multiply_stage(acc, stage, tiles, groups);
        fetch_w(&s, stage, piece + stages * waves, tiles);
        fetch_x(&s, stage, piece + stages * waves, tiles, groups);
        gpu_copy_commit();
        here = here + 1 < stages ? here + 1 : 0;
    }
    skinny_out(&s, acc, parts, row, tiles, groups);
}

#endif
