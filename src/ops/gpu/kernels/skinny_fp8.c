/* skinny_fp8.c: products of FP8 matrices with 3 to 32 rows: skinny.h with codes in the stages,
 * which become BF16 numbers, without rounding, on their way to the tiles. A wave takes columns 128
 * at a time, those that share a scale, in two stages of 64: 16 contiguous columns a lane, the first
 * eight of which are its strip of one product, the others that of the next. Sums of 128 columns get
 * their scale and are added as f32. Parts of a launch that are BF16 go as there: their rows take
 * the same blocks. */
#include "ops/gpu/kernels/codes.h"
#include "ops/gpu/kernels/skinny.h"

enum { STAGE_COLS = 64, HALVES = GPU_FP8_SCALED / STAGE_COLS };

/* What a stage has for this lane: half of a group of 128 columns. s->first and s->pieces count such
 * groups. */
GPU_FN struct skinny_piece codes_piece(const struct skinny *s, uint32_t group, uint32_t half) {
    const uint32_t term = group >= s->first ? 1 : 0;
    const struct skinny_piece p = {term,
                                   (group - (term ? s->first : 0)) * GPU_FP8_SCALED +
                                       half * STAGE_COLS + gpu_strip_k() * 2,
                                   term ? s->part->cols2 : s->part->cols};
    return p;
}
/* Beyond the last row: the last once more, and nothing is done with the sums. */
GPU_FN uint64_t codes_row(const struct skinny *s, uint32_t row) {
    return row < s->part->rows ? row : s->part->rows - 1;
}

GPU_FN void fetch_codes(const struct skinny *s, struct gpu_u4 *stage, uint32_t group, uint32_t half,
                        const uint32_t tiles) {
    if (group >= s->pieces)
        return;
    const struct skinny_piece p = codes_piece(s, group, half);
    const uint8_t *w = codes_of(s->part, p.term);
    GPU_UNROLL
    for (uint32_t t = 0; t < tiles; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            const uint64_t row = codes_row(s, s->row0 + t * TILE + gpu_strip_row(i));
            gpu_copy16(stage + (t * GPU_STRIPS + i) * GPU_WAVE + gpu_lane(),
                       p.k < p.cols ? w + row * GPU_FP8_ROW(p.cols) + p.k : w, p.k < p.cols);
        }
    }
}
/* Behind the vectors of W, two for each group of rows. Rows and columns that x has not are zero. */
GPU_FN void fetch_x_of_codes(const struct skinny *s, struct gpu_u4 *stage, uint32_t group,
                             uint32_t half, const uint32_t tiles, const uint32_t groups) {
    if (group >= s->pieces)
        return;
    const struct skinny_piece p = codes_piece(s, group, half);
    const uint16_t *x = x_of(s->part, p.term);
    const uint32_t stride = p.term ? s->part->x2_stride : s->part->x_stride;
    GPU_UNROLL
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t row = g * GPU_FEW + gpu_strip_row(0);
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            const bool there = row < s->a->x_rows && p.k + h * 8 < p.cols;
            gpu_copy16(stage + (tiles * GPU_STRIPS + g * 2 + h) * GPU_WAVE + gpu_lane(),
                       there ? x + (uint64_t)row * stride + p.k + h * 8 : x, there);
        }
    }
}
GPU_FN void load_scales(const struct skinny *s, float (*scale)[GPU_FEW_SUMS], uint32_t group,
                        const uint32_t tiles) {
    if (group >= s->pieces)
        return;
    const uint32_t term = group >= s->first ? 1 : 0, at = group - (term ? s->first : 0);
    const uint32_t cols = term ? s->part->cols2 : s->part->cols;
    const float *from = scales_of(s->part, term, cols);
    GPU_UNROLL
    for (uint32_t t = 0; t < tiles; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
            scale[t][i] =
                from[codes_row(s, s->row0 + t * TILE + gpu_sum_row(i)) * GPU_FP8_SCALES(cols) + at];
    }
}

GPU_FN void multiply_codes(float (*acc)[GPU_FEW_SUMS], const struct gpu_u4 *stage,
                           const uint32_t tiles, const uint32_t groups) {
    GPU_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        struct gpu_u4 x[GROUPS_MOST];
        GPU_UNROLL
        for (uint32_t g = 0; g < groups; g++)
            x[g] = gpu_load16(stage + (tiles * GPU_STRIPS + g * 2 + h) * GPU_WAVE + gpu_lane());
        GPU_UNROLL
        for (uint32_t t = 0; t < tiles; t++) {
            struct gpu_strips w;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                const struct gpu_u4 v =
                    gpu_load16(stage + (t * GPU_STRIPS + i) * GPU_WAVE + gpu_lane());
                w.row[i] = h ? widen_codes8(v.z, v.w) : widen_codes8(v.x, v.y);
            }
            GPU_UNROLL
            for (uint32_t g = 0; g < groups; g++)
                gpu_mma_few(acc[t * groups + g], &w, x[g]);
        }
    }
}

GPU_FN void clear(float (*acc)[GPU_FEW_SUMS], const uint32_t n) {
    GPU_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_FEW_SUMS; e++)
            acc[i][e] = 0;
    }
}

/* As skinny(). */
GPU_FN void skinny_codes(const struct gpu_linear *a, const struct gpu_linear_part *part,
                         struct gpu_u4 *ring, float *parts, const uint32_t row,
                         const uint32_t tiles, const uint32_t most, const uint32_t stages) {
    const uint32_t groups = (most + GPU_FEW - 1) / GPU_FEW;
    const uint32_t vectors = (tiles * GPU_STRIPS + groups * 2) * GPU_WAVE;
    const uint32_t wave = gpu_wave(), waves = gpu_waves();
    struct skinny s;
    float acc[TILES_MOST * GROUPS_MOST][GPU_FEW_SUMS], sum[TILES_MOST * GROUPS_MOST][GPU_FEW_SUMS];
    float scale[TILES_MOST][GPU_FEW_SUMS], next[TILES_MOST][GPU_FEW_SUMS];
    s.a = a;
    s.part = part;
    s.first = GPU_FP8_SCALES(part->cols);
    s.pieces = s.first + (part->w2 ? GPU_FP8_SCALES(part->cols2) : 0);
    s.row0 = (gpu_block_x() - part->first_block) * tiles * TILE;
    struct gpu_u4 *mine = ring + wave * stages * vectors;
    clear(acc, tiles * groups);
    clear(sum, tiles * groups);
    clear(next, tiles);
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++)
        fetch_codes(&s, mine + t * vectors, wave + t / HALVES * waves, t % HALVES, tiles);
    load_scales(&s, next, wave, tiles);
    gpu_wait_previous(); /* the matrix was there before; x was not */
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t t = 0; t < stages; t++) {
        fetch_x_of_codes(&s, mine + t * vectors, wave + t / HALVES * waves, t % HALVES, tiles,
                         groups);
        gpu_copy_commit();
    }
    uint32_t here = 0;
    GPU_ROLLED
    for (uint32_t group = wave; group < s.pieces; group += waves) {
        GPU_UNROLL
        for (uint32_t t = 0; t < tiles; t++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
                scale[t][i] = next[t][i];
        }
        load_scales(&s, next, group + waves, tiles);
        GPU_UNROLL
        for (uint32_t half = 0; half < HALVES; half++) {
            struct gpu_u4 *stage = mine + here * vectors;
            const uint32_t then = half + stages;
            wait_for_stage(stages);
            multiply_codes(acc, stage, tiles, groups);
            fetch_codes(&s, stage, group + then / HALVES * waves, then % HALVES, tiles);
            fetch_x_of_codes(&s, stage, group + then / HALVES * waves, then % HALVES, tiles,
                             groups);
            gpu_copy_commit();
            here = here + 1 < stages ? here + 1 : 0;
        }
        GPU_UNROLL
        for (uint32_t t = 0; t < tiles * groups; t++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
                sum[t][i] += acc[t][i] * scale[t / groups][i];
        }
        clear(acc, tiles * groups);
    }
    skinny_out(&s, sum, parts, row, tiles, groups);
}

#if GPU_WAVE == 32
#define SKINNY_SHARED(NAME) struct gpu_##NAME##_shared_32
#else
#define SKINNY_SHARED(NAME) struct gpu_##NAME##_shared_64
#endif
#define SKINNY_FP8(NAME, TILES, ROWS, BLOCKS, STAGES_32, STAGES_64)                                \
    GPU_KERNEL(weir_##NAME, gpu_linear, SKINNY_THREADS, BLOCKS) {                                  \
        GPU_SHARED(SKINNY_SHARED(NAME), s);                                                        \
        enum {                                                                                     \
            STAGES = sizeof s->ring[0] / sizeof s->ring[0][0],                                     \
            STAGES_BF16 = sizeof s->bf16[0] / sizeof s->bf16[0][0],                                \
            ROW = sizeof s->part[0][0] / 4                                                         \
        };                                                                                         \
        const struct gpu_linear_part *part = &a.part[part_of_block(&a)];                           \
        if (part->fp8)                                                                             \
            skinny_codes(&a, part, (struct gpu_u4 *)s->ring, &s->part[0][0][0], ROW, TILES, ROWS,  \
                         STAGES);                                                                  \
        else                                                                                       \
            skinny(&a, (struct gpu_u4 *)s->bf16, &s->part[0][0][0], ROW, TILES, ROWS,              \
                   STAGES_BF16);                                                                   \
    }
GPU_SKINNY_FP8_KERNELS(SKINNY_FP8)
