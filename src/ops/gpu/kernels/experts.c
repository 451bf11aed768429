/* experts.c: routed experts with MXFP4 or BF16 weights for few rows, where every chosen expert is
 * read once.
 *
 * A block belongs to one choice (row, j) and some rows of a matrix. The first choice of an expert
 * works for all rows that chose it; the blocks of later ones find an earlier choice and leave. So
 * nothing has to be sorted, and results do not depend on who came first.
 */
#include "ops/gpu/kernels/experts.h"

enum { EXPERTS_THREADS = 256, EXPERTS_DEEP = 2 };

/* Adds the products of this wave's pieces of 128 columns; `x`: rows of its lanes, NULL where there
 * is none. */
GPU_FN void experts_add(struct gpu_sums *acc, const struct expert_rows *w, const uint16_t *const *x,
                        uint32_t cols, uint32_t first, uint32_t step) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const uint32_t group = gpu_strip_k() / 8; /* of four; each has 32 columns of a piece */
    for (uint32_t piece = first; piece * PIECE < cols; piece += EXPERTS_DEEP * step) {
        struct gpu_u4 have[EXPERTS_DEEP][PAIR][GPU_STRIPS];
        uint32_t scale[EXPERTS_DEEP][PAIR][GPU_STRIPS];
        GPU_UNROLL
        for (uint32_t u = 0; u < EXPERTS_DEEP; u++) {
            const uint32_t k = (piece + u * step) * PIECE + group * 32;
            GPU_UNROLL
            for (uint32_t m = 0; m < PAIR; m++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                    have[u][m][i] = none;
                    scale[u][m][i] = 0;
                    if (k < cols) {
                        have[u][m][i] = gpu_load16_stream(w->codes[m][i] + k / 2);
                        scale[u][m][i] = w->scales[m][i][k / 32];
                    }
                }
            }
        }
        GPU_UNROLL
        for (uint32_t u = 0; u < EXPERTS_DEEP; u++) {
            const uint32_t k = (piece + u * step) * PIECE + group * 32;
            if ((piece + u * step) * PIECE >= cols)
                continue; /* the same for the whole wave */
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                struct gpu_strips a, b;
                GPU_UNROLL
                for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                    b.row[i] = none;
                    if (x[i] && k < cols)
                        b.row[i] = like_codes(gpu_load16(x[i] + k + j * 8));
                }
                GPU_UNROLL
                for (uint32_t m = 0; m < PAIR; m++) {
                    GPU_UNROLL
                    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                        const struct gpu_u4 c = have[u][m][i];
                        uint32_t more, factor = scale_pair(scale[u][m][i], &more);
                        a.row[i] = widen_codes(j == 0   ? c.x
                                               : j == 1 ? c.y
                                               : j == 2 ? c.z
                                                        : c.w,
                                               factor, more);
                    }
                    gpu_mma16(&acc[m], &a, &b);
                }
            }
        }
    }
}

/* The same with BF16 weights: pieces of 32 columns. */
GPU_FN void experts_add_bf16(struct gpu_sums *acc, const struct expert_rows *w,
                             const uint16_t *const *x, uint32_t cols, uint32_t first,
                             uint32_t step) {
    enum { DEEP = 2 * EXPERTS_DEEP };
    const struct gpu_u4 none = {0, 0, 0, 0};
    for (uint32_t piece = first; piece * 32 < cols; piece += DEEP * step) {
        struct gpu_strips have[DEEP][PAIR];
        GPU_UNROLL
        for (uint32_t u = 0; u < DEEP; u++) {
            const uint32_t k = (piece + u * step) * 32 + gpu_strip_k();
            GPU_UNROLL
            for (uint32_t m = 0; m < PAIR; m++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                    have[u][m].row[i] = none;
                    if (k < cols)
                        have[u][m].row[i] = gpu_load16_stream(w->codes[m][i] + (uint64_t)k * 2);
                }
            }
        }
        GPU_UNROLL
        for (uint32_t u = 0; u < DEEP; u++) {
            const uint32_t k = (piece + u * step) * 32 + gpu_strip_k();
            if ((piece + u * step) * 32 >= cols)
                continue; /* the same for the whole wave */
            struct gpu_strips b;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                b.row[i] = none;
                if (x[i] && k < cols)
                    b.row[i] = gpu_load16(x[i] + k);
            }
            GPU_UNROLL
            for (uint32_t m = 0; m < PAIR; m++)
                gpu_mma16(&acc[m], &have[u][m], &b);
        }
    }
}

/* The choices of this block's expert into s->slots, in order; how many, or 0: an earlier choice has
 * the same expert. Everybody calls it. */
GPU_FN uint32_t choices_of(const struct gpu_experts *a, struct gpu_experts_shared *s, uint32_t mine,
                           int32_t expert) {
    if (a->slots == a->top_k) { /* one row: all its experts are different */
        if (gpu_thread() == 0)
            s->slots[0] = (uint16_t)mine;
        gpu_barrier();
        return 1;
    }
    /* Every wave has a share of the choices and counts, then each knows where its own begin. */
    const uint32_t share = (a->slots + gpu_waves() * GPU_WAVE - 1) / (gpu_waves() * GPU_WAVE);
    const uint32_t from = gpu_wave() * share * GPU_WAVE + gpu_lane();
    uint32_t count = 0;
    for (uint32_t i = 0; i < share; i++) {
        const uint32_t at = from + i * GPU_WAVE;
        count += gpu_popcount(gpu_ballot(at < a->slots && a->ids[at] == expert));
    }
    if (gpu_lane() == 0)
        s->count[gpu_wave()] = count;
    gpu_barrier();
    uint32_t before = 0, total = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++) {
        before += w < gpu_wave() ? s->count[w] : 0;
        total += s->count[w];
    }
    for (uint32_t i = 0; i < share; i++) {
        const uint32_t at = from + i * GPU_WAVE;
        const bool is = at < a->slots && a->ids[at] == expert;
        const gpu_mask all = gpu_ballot(is);
        if (is)
            s->slots[before + gpu_popcount(all & (((gpu_mask)1 << gpu_lane()) - 1))] = (uint16_t)at;
        before += gpu_popcount(all);
    }
    gpu_barrier();
    return s->slots[0] == mine ? total : 0;
}

/* Products of one tile of up to 16 choices with this wave's rows, into s->part. */
GPU_FN void experts_tile(const struct gpu_experts *a, struct gpu_experts_shared *s,
                         const struct expert_rows *w, uint32_t base, uint32_t n, uint32_t first,
                         uint32_t step, const bool up, const bool bf16) {
    struct gpu_sums acc[PAIR];
    const uint16_t *x[GPU_STRIPS];
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            acc[m].at[i] = 0;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t at = base + gpu_strip_row(i);
        x[i] = 0;
        if (at < n)
            x[i] = a->x + (uint64_t)(up ? s->slots[at] / a->top_k : s->slots[at]) * a->x_stride;
    }
    if (bf16)
        experts_add_bf16(acc, w, x, a->cols, first, step);
    else
        experts_add(acc, w, x, a->cols, first, step);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            s->part[gpu_wave()][m][gpu_sum_col(i)][gpu_sum_row(i)] = acc[m].at[i];
    }
}

/* h = act(w1 z, w3 z): 16 rows of both matrices a block, its waves share the columns. */
GPU_FN void experts_up(const struct gpu_experts *a, struct gpu_experts_shared *s, const bool bf16) {
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t mine = gpu_block_y(), row0 = gpu_block_x() * TILE;
    const int32_t expert = a->ids[mine];
    const uint32_t n = choices_of(a, s, mine, expert);
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(a, &w, m, m, i, row0 + gpu_strip_row(i), expert, bf16);
    }
    for (uint32_t base = 0; base < n; base += TILE) {
        experts_tile(a, s, &w, base, n, gpu_wave(), gpu_waves(), true, bf16);
        gpu_barrier();
        const uint32_t r = gpu_thread() % TILE, c = gpu_thread() / TILE;
        if (base + c < n && row0 + r < a->rows) {
            float gate = 0, up = 0;
            for (uint32_t i = 0; i < gpu_waves(); i++) {
                gate += s->part[i][0][c][r];
                up += s->part[i][1][c][r];
            }
            a->h[(uint64_t)s->slots[base + c] * a->out_stride + row0 + r] =
                gpu_to_bf16(activate(a, gate, up));
        }
        gpu_barrier();
    }
}
GPU_KERNEL(weir_experts_up, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    experts_up(&a, s, false);
}
GPU_KERNEL(weir_experts_up_bf16, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    experts_up(&a, s, true);
}

/* each = w2 h: 32 rows a wave, all columns. */
GPU_FN void experts_down(const struct gpu_experts *a, struct gpu_experts_shared *s,
                         const bool bf16) {
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t mine = gpu_block_y();
    const uint32_t row0 = (gpu_block_x() * gpu_waves() + gpu_wave()) * TILE * PAIR;
    const int32_t expert = a->ids[mine];
    const uint32_t n = choices_of(a, s, mine, expert);
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(a, &w, m, 0, i, row0 + m * TILE + gpu_strip_row(i), expert, bf16);
    }
    for (uint32_t base = 0; base < n; base += TILE) {
        experts_tile(a, s, &w, base, n, 0, 1, false, bf16);
        gpu_barrier(); /* of lanes of one wave, but a wave cannot meet alone */
        for (uint32_t at = gpu_lane(); at < PAIR * TILE * TILE; at += GPU_WAVE) {
            const uint32_t r = at % (PAIR * TILE), c = at / (PAIR * TILE);
            if (base + c < n && row0 + r < a->rows)
                a->each[(uint64_t)s->slots[base + c] * a->out_stride + row0 + r] =
                    s->part[gpu_wave()][r / TILE][c][r % TILE];
        }
        gpu_barrier();
    }
}
GPU_KERNEL(weir_experts_down, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    experts_down(&a, s, false);
}
GPU_KERNEL(weir_experts_down_bf16, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    experts_down(&a, s, true);
}

enum { COMBINE_THREADS = 256, COMBINE_CHUNKS = GPU_ROW_MOST / COMBINE_THREADS / 4 };

/* out = (sum over j of weight_j each_j), then, if there is one, the norm. A block a row. */
GPU_KERNEL(weir_combine, gpu_combine, COMBINE_THREADS, 2) {
    GPU_SHARED(struct gpu_norm_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    const uint64_t row = gpu_block_x();
    const float *each = a.each + row * a.top_k * a.each_stride;
    const float *weights = a.weights + row * a.top_k;
    float v[COMBINE_CHUNKS][4], square = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < COMBINE_CHUNKS; i++) {
        const uint32_t at = (i * COMBINE_THREADS + gpu_thread()) * 4;
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            v[i][e] = 0;
        if (at < a.cols)
            for (uint32_t j = 0; j < a.top_k; j++) {
                float f[4];
                widen_f32x4(f, load_f32x4(each + (uint64_t)j * a.each_stride, at, a.cols));
                GPU_UNROLL
                for (uint32_t e = 0; e < 4; e++)
                    v[i][e] += weights[j] * f[e];
            }
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            square += v[i][e] * v[i][e];
    }
    float inv = 1;
    if (a.norm)
        inv = gpu_rsqrt(gpu_block_sum(square, s->sum) / (float)a.cols + a.eps);
    GPU_UNROLL
    for (uint32_t i = 0; i < COMBINE_CHUNKS; i++) {
        const uint32_t at = (i * COMBINE_THREADS + gpu_thread()) * 4;
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            if (at + e < a.cols) {
                const float f = v[i][e] * inv * (a.norm ? a.norm[at + e] : 1);
                if (a.out)
                    a.out[row * a.out_stride + at + e] = gpu_to_bf16(f);
                else
                    a.out32[row * a.out_stride + at + e] = f;
            }
    }
}
