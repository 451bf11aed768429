/* linear.c: products of BF16 matrices with up to four rows, where reading the matrix is all the
 * time there is: every lane multiplies what it loads. A lane takes 16 bytes of contiguous k of W
 * straight into registers, several such loads on their way at once, and `split` waves share the
 * columns of a group of rows, so that small matrices fill the device too. */
#include "ops/gpu/kernels/parts.h"
#include "ops/gpu/kernels/rows.h"

enum {
    LINEAR_THREADS = 256,
    GEMV_ROWS = 2, /* of W that a wave has in hand: what it reads of x serves both */
    GEMV_DEEP = 4, /* loads of each on their way */
};

/* Adds the products of this lane's columns. `w`: this wave's rows; `first` and `step`: its vectors
 * of eight columns. */
GPU_FN void gemv_add(float (*acc)[4], const uint16_t *const *w, const uint16_t *x,
                     uint32_t x_stride, uint32_t x_rows, uint32_t vectors, uint32_t first,
                     uint32_t step, const uint32_t most) {
    for (uint32_t v = first; v < vectors; v += GEMV_DEEP * step) {
        struct gpu_u4 have[GEMV_ROWS][GEMV_DEEP];
        GPU_UNROLL
        for (uint32_t u = 0; u < GEMV_DEEP; u++) {
            GPU_UNROLL
            for (uint32_t r = 0; r < GEMV_ROWS; r++) {
                const struct gpu_u4 none = {0, 0, 0, 0};
                have[r][u] = none;
                if (v + u * step < vectors)
                    have[r][u] = gpu_load16_stream(w[r] + (uint64_t)(v + u * step) * 8);
            }
        }
        gpu_wait_previous(); /* the matrix was there before; x was not */
        GPU_UNROLL
        for (uint32_t u = 0; u < GEMV_DEEP; u++) {
            if (v + u * step >= vectors)
                continue;
            float wide[GEMV_ROWS][8];
            GPU_UNROLL
            for (uint32_t r = 0; r < GEMV_ROWS; r++)
                widen_bf16x8(wide[r], have[r][u]);
            GPU_UNROLL
            for (uint32_t m = 0; m < most; m++) {
                const uint32_t row = m < x_rows ? m : x_rows - 1;
                float f[8];
                widen_bf16x8(f, gpu_load16(x + (uint64_t)row * x_stride + (v + u * step) * 8));
                GPU_UNROLL
                for (uint32_t r = 0; r < GEMV_ROWS; r++) {
                    GPU_UNROLL
                    for (uint32_t e = 0; e < 8; e++)
                        acc[r][m] += wide[r][e] * f[e];
                }
            }
        }
    }
}

GPU_FN void gemv(const struct gpu_linear *a, struct gpu_gemv_shared *s, const uint32_t most) {
    const struct gpu_linear_part *part = &a->part[part_of_block(a)];
    const uint32_t wave = gpu_wave(), split = a->split, groups = gpu_waves() / split;
    const uint32_t group = wave / split, share = wave % split;
    const uint32_t row0 = ((gpu_block_x() - part->first_block) * groups + group) * GEMV_ROWS;
    const uint32_t first = share * GPU_WAVE + gpu_lane(), step = split * GPU_WAVE;
    float acc[GEMV_ROWS][4];
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++)
            acc[r][m] = 0;
    }
    GPU_ROLLED
    for (uint32_t term = 0; term < (part->w2 ? 2u : 1u); term++) {
        const uint32_t cols = term ? part->cols2 : part->cols;
        const uint16_t *w[GEMV_ROWS];
        GPU_UNROLL
        for (uint32_t r = 0; r < GEMV_ROWS; r++) {
            /* Beyond the last row: the last once more, and nothing is done with it. */
            const uint64_t row = row0 + r < part->rows ? row0 + r : part->rows - 1;
            w[r] = matrix_of(part, term) + row * cols;
        }
        gemv_add(acc, w, x_of(part, term), term ? part->x2_stride : part->x_stride, a->x_rows,
                 cols / 8, first, step, most);
    }
    gpu_wait_previous(); /* of lanes that had no columns */
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t r = 0; r < GEMV_ROWS; r++) {
        GPU_UNROLL
        for (uint32_t m = 0; m < most; m++) {
            acc[r][m] = gpu_wave_sum(acc[r][m]);
            if (gpu_lane() == 0)
                s->part[wave][r * most + m] = acc[r][m];
        }
    }
    gpu_barrier();
    const uint32_t each = GEMV_ROWS * most;
    if (gpu_thread() >= groups * each)
        return;
    const uint32_t g = gpu_thread() / each, r = gpu_thread() % each / most, m = gpu_thread() % most;
    const uint32_t row = ((gpu_block_x() - part->first_block) * groups + g) * GEMV_ROWS + r;
    float sum = 0;
    for (uint32_t i = 0; i < split; i++)
        sum += s->part[g * split + i][r * most + m];
    if (row < part->rows && m < a->x_rows)
        put(part, m, row, sum);
}

GPU_KERNEL(weir_gemv_1, gpu_linear, LINEAR_THREADS, 3) {
    GPU_SHARED(struct gpu_gemv_shared, s);
    gemv(&a, s, 1);
}
GPU_KERNEL(weir_gemv_2, gpu_linear, LINEAR_THREADS, 3) {
    GPU_SHARED(struct gpu_gemv_shared, s);
    gemv(&a, s, 2);
}
GPU_KERNEL(weir_gemv_4, gpu_linear, LINEAR_THREADS, 3) {
    GPU_SHARED(struct gpu_gemv_shared, s);
    gemv(&a, s, 4);
}
