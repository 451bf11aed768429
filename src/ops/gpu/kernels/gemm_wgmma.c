/* gemm_wgmma.c: the products of gemm.c by warpgroups. A block has 192 rows of x by 128 of W: each
 * of two warpgroups has 64 rows of W as rows of its products and all of x as columns, so that they
 * read the least from shared memory.
 *
 * A stage is filled again two steps after it was read: then products of both warpgroups with it are
 * known to have ended, while those of the step between still run. Chains of products end after
 * CHAIN steps (gemm.c), those of the two warpgroups at different times, so that one multiplies
 * while the other adds. */
#include "ops/gpu/kernels/gemm.h"

enum {
    WG_THREADS = 256,
    X_ROWS = GPU_GEMM_WG_X,
    W_ROWS = GPU_GEMM_WG_W,
    K = 64, /* of a panel */
    STAGES = GPU_GEMM_WG_STAGES,
    CHAIN = 512 / K,
    STAGE = (X_ROWS + W_ROWS) * 64,
    SUMS = X_ROWS / 2,
};

#ifdef GPU_WARPGROUPS

/* Rows [from, from + high) of columns from k0 on, those below `end`; others are zero. */
GPU_FN void fetch_panel(uint16_t *panel, const uint16_t *rows, uint64_t stride, uint32_t from,
                        uint32_t end, uint32_t k0, uint32_t cols, const uint32_t high) {
    const uint32_t row = gpu_thread() / 8, piece = gpu_thread() % 8, k = k0 + piece * 8;
    GPU_UNROLL
    for (uint32_t r = 0; r < high; r += WG_THREADS / 8) {
        const uint64_t at = from + row + r;
        const bool there = at < end && k < cols;
        gpu_copy16(panel + gpu_panel(row, piece) + r * 64, there ? rows + at * stride + k : rows,
                   there);
    }
}

/* Where a block's work lies. */
struct tile {
    const struct gpu_linear_part *part;
    uint32_t x0, w0, x_rows;
    uint32_t first, steps; /* of the first term, of both */
};
GPU_FN void fetch_step(const struct tile *t, struct gpu_gemm_wg_stage *stage, uint32_t step) {
    if (step < t->steps) {
        const uint32_t term = step >= t->first ? 1 : 0, k0 = (step - (term ? t->first : 0)) * K;
        const uint32_t cols = term ? t->part->cols2 : t->part->cols;
        fetch_panel(&stage->w[0][0], matrix_of(t->part, term), cols, t->w0, t->part->rows, k0, cols,
                    W_ROWS);
        fetch_panel(&stage->x[0][0], x_of(t->part, term),
                    term ? t->part->x2_stride : t->part->x_stride, t->x0, t->x_rows, k0, cols,
                    X_ROWS);
    }
    gpu_copy_commit();
}

GPU_KERNEL(weir_gemm_wg, gpu_linear, WG_THREADS, 1) {
    GPU_SHARED(struct gpu_gemm_wg_shared, s);
    struct tile t;
    t.part = &a.part[part_of_block(&a)];
    t.x_rows = a.x_rows;
    t.first = (t.part->cols + K - 1) / K;
    t.steps = t.first + (t.part->w2 ? (t.part->cols2 + K - 1) / K : 0);
    gemm_place(&a, t.part, &t.x0, &t.w0, X_ROWS, W_ROWS);
    const uint32_t group = gpu_wave() / 4;
    const uint16_t *stages = &s->stage[0].w[0][0];
    float acc[SUMS], sum_of[SUMS];
    GPU_UNROLL
    for (uint32_t i = 0; i < SUMS; i++)
        acc[i] = sum_of[i] = 0;
    gpu_wait_previous();
    gpu_launch_next();
    for (uint32_t step = 0; step < STAGES - 2; step++)
        fetch_step(&t, &s->stage[step], step);
    uint32_t here = 0, next = STAGES - 2;
    bool add = false;
    const uint32_t lag = group * (CHAIN / 2);
    GPU_ROLLED
    for (uint32_t step = 0; step < t.steps; step++) {
        gpu_copy_wait(GPU_GEMM_WG_STAGES - 3);
        gpu_wg_seen();
        gpu_barrier(); /* everybody's have come, and products of two steps ago have ended */
        const uint16_t *w = stages + here * STAGE + group * 64 * 64;
        const uint16_t *x = stages + here * STAGE + W_ROWS * 64;
        gpu_wg_begin();
        GPU_UNROLL
        for (uint32_t k = 0; k < K / 16; k++)
            gpu_wg_rows(acc, X_ROWS, w, x, k, k > 0 || add);
        gpu_wg_commit();
        add = true;
        fetch_step(&t, &s->stage[next], step + STAGES - 2);
        if ((step + lag) % CHAIN == CHAIN - 1) {
            gpu_wg_wait(0);
            GPU_UNROLL
            for (uint32_t i = 0; i < SUMS; i++)
                sum_of[i] += acc[i];
            add = false;
        }
        gpu_wg_wait(1);
        here = here + 1 < STAGES ? here + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    gpu_wg_wait(0);
    gpu_copy_wait(0);
    gpu_barrier(); /* the stages are no longer read */
    GPU_UNROLL
    for (uint32_t i = 0; i < SUMS; i++)
        s->band[gpu_wg_col(i)][group * 64 + gpu_wg_row(i)] = add ? sum_of[i] + acc[i] : sum_of[i];
    gpu_barrier();
    for (uint32_t at = gpu_thread(); at < X_ROWS * W_ROWS / 8; at += WG_THREADS) {
        const uint32_t r = at / (W_ROWS / 8), c = at % (W_ROWS / 8) * 8;
        float sum[8];
        widen_f32x4(sum, gpu_load16(&s->band[r][c]));
        widen_f32x4(sum + 4, gpu_load16(&s->band[r][c + 4]));
        if (t.x0 + r < a.x_rows && t.w0 + c < t.part->rows)
            gemm_put(t.part, t.x0 + r, t.w0 + c, sum);
    }
}

#else

GPU_KERNEL(weir_gemm_wg, gpu_linear, WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
