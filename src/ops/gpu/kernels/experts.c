/* experts.c: routed experts with MXFP4 weights for few rows, where every chosen expert is read
 * once.
 *
 * A block belongs to one choice (row, j) and some rows of a matrix. The first choice of an expert
 * works for all rows that chose it; the blocks of later ones find an earlier choice and leave. So
 * nothing has to be sorted, and results do not depend on who came first.
 *
 * A lane reads 16 bytes: the 32 codes that share a scale, of its row. They make four strips; what
 * a strip of x holds is taken from the same columns, so that neither side is laid out anew. Codes
 * become BF16 exactly: the three bits of a magnitude are the last two of an exponent and the first
 * of a mantissa, 2^126 too small; that factor and the scale are one multiplication. */
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { EXPERTS_THREADS = 256, EXPERTS_DEEP = 2, TILE = 16, PIECE = 128, PAIR = 2 };

/* BF16 of 2^(s - 127) * 2^126 in both halves, for scale bytes to 128; above, the rest of the factor
 * is in *more (0: none). */
GPU_FN uint32_t scale_pair(uint32_t s, uint32_t *more) {
    const uint32_t least = s < 128 ? s : 128;
    *more = s > 128 ? (127 + s - 128) << 7 | (127 + s - 128) << 23 : 0;
    return (126 + least) << 7 | (126 + least) << 23;
}

/* Eight codes as BF16 pairs of elements (0, 4), (1, 5), (2, 6), (3, 7): halves that two shifts put
 * in place. */
GPU_FN struct gpu_u4 widen_codes(uint32_t codes, uint32_t scale, uint32_t more) {
    uint32_t pair[4];
    GPU_UNROLL
    for (uint32_t p = 0; p < 4; p++) {
        const uint32_t c = codes >> 4 * p;
        pair[p] = gpu_bf16_mul((c << 6 & 0x01C001C0u) | (c << 12 & 0x80008000u), scale);
        if (more)
            pair[p] = gpu_bf16_mul(pair[p], more);
    }
    const struct gpu_u4 v = {pair[0], pair[1], pair[2], pair[3]};
    return v;
}
/* Eight elements of x in the same order. */
GPU_FN struct gpu_u4 like_codes(struct gpu_u4 v) {
    const struct gpu_u4 w = {(v.x & 0xFFFFu) | v.z << 16, v.x >> 16 | (v.z & 0xFFFF0000u),
                             (v.y & 0xFFFFu) | v.w << 16, v.y >> 16 | (v.w & 0xFFFF0000u)};
    return w;
}

/* Rows of two matrices, or of two parts of one, that this lane reads. */
struct expert_rows {
    const uint8_t *codes[PAIR][GPU_STRIPS], *scales[PAIR][GPU_STRIPS];
};

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
                         uint32_t step, const bool up) {
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
    experts_add(acc, w, x, a->cols, first, step);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            s->part[gpu_wave()][m][gpu_sum_col(i)][gpu_sum_row(i)] = acc[m].at[i];
    }
}

/* Row `row` of matrix m of the expert, for this lane; beyond the last: the last once more. */
GPU_FN void take_row(const struct gpu_experts *a, struct expert_rows *w, uint32_t m, uint32_t of,
                     uint32_t i, uint32_t row, int32_t expert) {
    const uint64_t e = (uint32_t)expert, r = row < a->rows ? row : a->rows - 1;
    w->codes[m][i] = a->codes[of] + e * a->codes_stride + r * (a->cols / 2);
    w->scales[m][i] = a->scales[of] + e * a->scales_stride + r * (a->cols / 32);
}

GPU_FN float activate(const struct gpu_experts *a, float gate, float up) {
    return glu_of(a->situ, a->beta, a->linear_beta, gate, up);
}

/* h = act(w1 z, w3 z): 16 rows of both matrices a block, its waves share the columns. */
GPU_KERNEL(weir_experts_up, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t mine = gpu_block_y(), row0 = gpu_block_x() * TILE;
    const int32_t expert = a.ids[mine];
    const uint32_t n = choices_of(&a, s, mine, expert);
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(&a, &w, m, m, i, row0 + gpu_strip_row(i), expert);
    }
    for (uint32_t base = 0; base < n; base += TILE) {
        experts_tile(&a, s, &w, base, n, gpu_wave(), gpu_waves(), true);
        gpu_barrier();
        const uint32_t r = gpu_thread() % TILE, c = gpu_thread() / TILE;
        if (base + c < n && row0 + r < a.rows) {
            float gate = 0, up = 0;
            for (uint32_t i = 0; i < gpu_waves(); i++) {
                gate += s->part[i][0][c][r];
                up += s->part[i][1][c][r];
            }
            a.h[(uint64_t)s->slots[base + c] * a.out_stride + row0 + r] =
                gpu_to_bf16(activate(&a, gate, up));
        }
        gpu_barrier();
    }
}

/* each = w2 h: 32 rows a wave, all columns. */
GPU_KERNEL(weir_experts_down, gpu_experts, EXPERTS_THREADS, 2) {
    GPU_SHARED(struct gpu_experts_shared, s);
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t mine = gpu_block_y();
    const uint32_t row0 = (gpu_block_x() * gpu_waves() + gpu_wave()) * TILE * PAIR;
    const int32_t expert = a.ids[mine];
    const uint32_t n = choices_of(&a, s, mine, expert);
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(&a, &w, m, 0, i, row0 + m * TILE + gpu_strip_row(i), expert);
    }
    for (uint32_t base = 0; base < n; base += TILE) {
        experts_tile(&a, s, &w, base, n, 0, 1, false);
        gpu_barrier(); /* of lanes of one wave, but a wave cannot meet alone */
        for (uint32_t at = gpu_lane(); at < PAIR * TILE * TILE; at += GPU_WAVE) {
            const uint32_t r = at % (PAIR * TILE), c = at / (PAIR * TILE);
            if (base + c < n && row0 + r < a.rows)
                a.each[(uint64_t)s->slots[base + c] * a.out_stride + row0 + r] =
                    s->part[gpu_wave()][r / TILE][c][r % TILE];
        }
        gpu_barrier();
    }
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
            if (at + e < a.cols)
                a.out[row * a.out_stride + at + e] =
                    gpu_to_bf16(v[i][e] * inv * (a.norm ? a.norm[at + e] : 1));
    }
}
