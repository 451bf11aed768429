/* norm.c: RMS norms, and the attention-residual mixture with the norm behind it. A thread has eight
 * columns of a row, or twice eight, and reads all it needs of them before it waits for the first.
 */
#include "ops/gpu/kernels/row_sums.h"
#include "ops/gpu/records.h"

enum { NORM_THREADS = 512, NORM_CHUNKS = GPU_ROW_MOST / NORM_THREADS / 8 };

GPU_KERNEL(weir_norm, gpu_norm, NORM_THREADS, 2) {
    GPU_SHARED(struct gpu_norm_shared, s);
    const float *x = a.x + (uint64_t)gpu_block_x() * a.x_stride;
    uint16_t *y = a.y + (uint64_t)gpu_block_x() * a.y_stride;
    const uint32_t first = gpu_thread() * 8, step = gpu_waves() * GPU_WAVE * 8;
    float v[NORM_CHUNKS][8], w[NORM_CHUNKS][8], square = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++)
        load_f32x8(w[j], a.norm, first + j * step, a.cols);
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++)
        load_f32x8(v[j], x, first + j * step, a.cols);
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            square += v[j][e] * v[j][e];
    }
    float inv = gpu_rsqrt(gpu_block_sum(square, s->sum) / (float)a.cols + a.eps);
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            w[j][e] *= v[j][e] * inv;
        store_bf16x8(y, first + j * step, a.cols, narrow_bf16x8(w[j]));
    }
}

/* ------------------------------------------------------------------------------- mixture
 * Every source is read once. Up to GPU_MIX_SOURCES of the bank and the prefix are in registers at a
 * time; of more, weights and sums so far are put to the new highest score. Invariant that bites:
 * lanes l and l + 16 hold the same scores, entry l % 16 or, at GPU_MIX_SOURCES, the prefix. */
enum {
    MIX_THREADS = 512,
    MIX_CHUNKS = GPU_ROW_MOST / MIX_THREADS / 8,
    MIX_AT_ONCE = 4, /* sources of two chunks: of more, registers spill */
};

/* What a thread has of a row: its columns of the sources and of the prefix, BF16, and the mixture
 * so far with its highest score and the sum of its weights. */
struct mix_row {
    struct gpu_u4 v[GPU_MIX_SOURCES][MIX_CHUNKS], sum[MIX_CHUNKS];
    float mix[MIX_CHUNKS][8], top, total;
};

/* Eight columns from `at` on of n sources, as chunk j. One branch for all that come whole, so that
 * they are asked for one behind the other. */
GPU_FN void load_sources(const uint16_t *bank, uint64_t stride, const uint32_t most, uint32_t n,
                         uint32_t at, uint32_t cols, struct mix_row *r, const uint32_t j) {
    if (at + 8 <= cols) {
        GPU_UNROLL
        for (uint32_t i = 0; i < most; i++)
            if (i < n)
                r->v[i][j] = gpu_load16(bank + i * stride + at);
    } else {
        GPU_UNROLL
        for (uint32_t i = 0; i < most; i++)
            if (i < n)
                r->v[i][j] = load_bf16x8(bank + i * stride, at, cols);
    }
}

/* The prefix with what is added to it. */
GPU_FN struct gpu_u4 added(const struct gpu_mix_norm *a, struct gpu_u4 old, const float *delta) {
    float f[8];
    widen_bf16x8(f, old);
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        f[e] = delta[e] + (a->replace ? 0 : f[e]);
    return narrow_bf16x8(f);
}

/* Dots and squares of a chunk of n sources, into t, and those of the prefix. */
GPU_FN void mix_dots(const struct mix_row *r, const uint32_t j, const uint32_t most, uint32_t n,
                     const float *c, float *t, float *of_prefix) {
    float f[8];
    GPU_UNROLL
    for (uint32_t i = 0; i < most; i++)
        if (i < n) {
            widen_bf16x8(f, r->v[i][j]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++) {
                t[i] += f[e] * c[e];
                t[GPU_MIX_SOURCES + i] += f[e] * f[e];
            }
        }
    widen_bf16x8(f, r->sum[j]);
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++) {
        of_prefix[0] += f[e] * c[e];
        of_prefix[1] += f[e] * f[e];
    }
}

/* Adds n sources, from all threads' dots and squares of them, to the mixture; the first time with
 * the prefix. */
GPU_FN void mix_add(const struct gpu_mix_norm *a, struct mix_row *r, const uint32_t chunks,
                    const uint32_t most, uint32_t n, bool with_prefix, float *t,
                    const float *of_prefix, float (*part)[GPU_MIX_SUMS]) {
    const uint32_t lane = gpu_lane(), entry = lane % 16;
    float mine = gpu_wave_sum_sixteen(t);
    const float dot = gpu_wave_sum(of_prefix[0]), square = gpu_wave_sum(of_prefix[1]);
    mine = lane < 16 ? mine : lane == 16 ? dot : square;
    if (lane < GPU_MIX_SUMS)
        to_members(&part[member_wave()][lane], mine);
    gpu_cluster_barrier();
    /* Unrolled, so that the reads do not wait for one another. */
    const uint32_t waves = lane < GPU_MIX_SUMS ? member_waves() : 0;
    float sum = 0;
    GPU_UNROLL
    for (uint32_t w = 0; w < GPU_ROW_WAVES; w++)
        sum += w < waves ? part[w][lane] : 0;
    const bool prefix = entry == GPU_MIX_SOURCES;
    const float d = gpu_shuffle(sum, prefix ? 16 : entry);
    const float q = gpu_shuffle(sum, prefix ? 17 : entry + 8);
    const float score = entry < n || (prefix && with_prefix)
                            ? d * gpu_rsqrt(q * gpu_rcp((float)a->cols) + a->eps)
                            : -GPU_INFINITY;
    float highest = gpu_from_order_key(gpu_max_u32(gpu_order_key(score)));
    highest = with_prefix || highest > r->top ? highest : r->top;
    const float weight = gpu_exp(score - highest);
    const float before = with_prefix ? 0 : gpu_exp(r->top - highest);
    r->top = highest;
    r->total = with_prefix ? gpu_sum16(weight) : r->total * before + gpu_sum16(weight);
    const float w_prefix = gpu_shuffle(weight, GPU_MIX_SOURCES);
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks; j++) {
        float f[8];
        widen_bf16x8(f, r->sum[j]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            r->mix[j][e] = with_prefix ? w_prefix * f[e] : r->mix[j][e] * before;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < most; i++)
        if (i < n) {
            const float w = gpu_shuffle(weight, i);
            GPU_UNROLL
            for (uint32_t j = 0; j < chunks; j++) {
                float f[8];
                widen_bf16x8(f, r->v[i][j]);
                GPU_UNROLL
                for (uint32_t e = 0; e < 8; e++)
                    r->mix[j][e] += w * f[e];
            }
        }
}

/* The new prefix, where it is kept. */
GPU_FN void store_prefix(const struct gpu_mix_norm *a, const struct mix_row *r, uint64_t row,
                         uint32_t first, uint32_t step, const uint32_t chunks) {
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks; j++) {
        if (a->delta && !a->gather)
            store_bf16x8(a->prefix + row * a->stride, first + j * step, a->cols, r->sum[j]);
        /* The prefix as it was before this sublayer: the mixture would leak this layer's own
         * weights into every later mix. */
        if (a->push)
            store_bf16x8(a->bank + a->n_bank * a->bank_stride + row * a->stride, first + j * step,
                         a->cols, r->sum[j]);
    }
}

/* The mixture, normed, into row `to` of out. */
GPU_FN void mix_out(const struct gpu_mix_norm *a, struct mix_row *r, float *parts, uint64_t to,
                    uint32_t first, uint32_t step, const uint32_t chunks, const float (*norm)[8]) {
    const float scale = a->n_bank ? gpu_rcp(r->total) : 1;
    float square = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks; j++) {
        if (!a->n_bank)
            widen_bf16x8(r->mix[j], r->sum[j]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            r->mix[j][e] *= scale;
            square += r->mix[j][e] * r->mix[j][e];
        }
    }
    const float inv = gpu_rsqrt(sum_of_members(square, parts) * gpu_rcp((float)a->cols) + a->eps);
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks; j++) {
        float y[8];
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            y[e] = norm[j][e] * r->mix[j][e] * inv;
        store_bf16x8(a->out + to * a->out_stride, first + j * step, a->cols, narrow_bf16x8(y));
    }
}

/* A row for a cluster of blocks. */
GPU_FN void mix_norm(const struct gpu_mix_norm *a, struct gpu_mix_norm_shared *s,
                     const uint32_t chunks) {
    const uint32_t cols = a->cols, threads = gpu_waves() * GPU_WAVE;
    const uint32_t members = gpu_cluster_blocks(), step = members * threads * 8;
    const uint32_t first = (gpu_cluster_rank() * threads + gpu_thread()) * 8;
    const uint32_t most = chunks == 1 ? (uint32_t)GPU_MIX_SOURCES : (uint32_t)MIX_AT_ONCE;
    struct mix_row r;
    float c[8], norm[MIX_CHUNKS][8], delta[8];
    members_begin();
    const uint64_t to = gpu_block_x() / members;
    const uint64_t row = a->gather ? (uint32_t)a->gather[to] : to;
    const uint16_t *bank = a->bank + row * a->stride;
    uint32_t n = a->n_bank < most ? a->n_bank : most;
    /* Of two chunks there is no room for all. What is in the bank was not left there by the kernel
     * directly before. */
    if (chunks == 1 && a->n_bank)
        load_f32x8(c, a->c, first, cols);
    if (chunks == 1) {
        load_f32x8(norm[0], a->norm, first, cols);
        load_sources(bank, a->bank_stride, most, n, first, cols, &r, 0);
    }
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks; j++) {
        r.sum[j] = load_bf16x8(a->prefix + row * a->stride, first + j * step, cols);
        if (a->delta)
            load_f32x8(delta, a->delta + row * a->delta_stride, first + j * step, cols);
        if (a->delta && chunks > 1)
            r.sum[j] = added(a, r.sum[j], delta);
    }
    for (uint32_t base = 0; base < a->n_bank || base == 0; base += most) {
        float t[2 * GPU_MIX_SOURCES], of_prefix[2] = {0, 0};
        n = a->n_bank - base < most ? a->n_bank - base : most;
        if (chunks > 1 || base > 0) {
            GPU_UNROLL
            for (uint32_t j = 0; j < chunks; j++)
                load_sources(bank + base * a->bank_stride, a->bank_stride, most, n,
                             first + j * step, cols, &r, j);
        }
        if (base == 0) {
            if (a->delta && chunks == 1)
                r.sum[0] = added(a, r.sum[0], delta);
            store_prefix(a, &r, row, first, step, chunks);
        }
        if (!a->n_bank)
            break;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2 * GPU_MIX_SOURCES; i++)
            t[i] = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < chunks; j++) {
            if (chunks > 1)
                load_f32x8(c, a->c, first + j * step, cols);
            mix_dots(&r, j, most, n, c, t, of_prefix);
        }
        if (base == 0)
            members_there();
        /* Two areas in turn: a fast wave writes the next while a slow one reads this. */
        mix_add(a, &r, chunks, most, n, base == 0, t, of_prefix, s->part[base / most % 2]);
    }
    if (!a->n_bank)
        members_there();
    GPU_UNROLL
    for (uint32_t j = 0; j < chunks && chunks > 1; j++)
        load_f32x8(norm[j], a->norm, first + j * step, cols);
    mix_out(a, &r, s->square, to, first, step, chunks, norm);
}
GPU_KERNEL(weir_mix_norm, gpu_mix_norm, MIX_THREADS, 1) {
    GPU_SHARED(struct gpu_mix_norm_shared, s);
    mix_norm(&a, s, 2);
}
GPU_KERNEL(weir_mix_norm_split, gpu_mix_norm, MIX_THREADS, 1) {
    GPU_SHARED(struct gpu_mix_norm_shared, s);
    mix_norm(&a, s, 1);
}

#if GPU_CLUSTERS /* and as much shared memory as their devices have */
/* Rows one after another, a block on every multiprocessor: while one is in registers the next comes
 * into shared memory, where each thread has its own columns and nobody else's, so that it waits for
 * no other. Columns are a multiple of 8, sources fit into registers, no gather.
 * Pieces of eight columns of a thread, twice: the weights of scores and of the norm (two each),
 * the prefix, what is added to it (two), the bank. */
enum { PIECE_C, PIECE_NORM = 2, PIECE_PREFIX = 4, PIECE_DELTA, PIECE_BANK = 7 };

GPU_FN uint32_t *mix_piece(struct gpu_mix_norm_shared *s, uint32_t piece, uint32_t j) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    return (uint32_t *)(void *)(s + 1) + ((piece * MIX_CHUNKS + j) * threads + gpu_thread()) * 4;
}
GPU_FN void copy_f32x8(struct gpu_mix_norm_shared *s, uint32_t piece, uint32_t j, const float *from,
                       bool there) {
    gpu_copy16(mix_piece(s, piece, j), from, there);
    gpu_copy16(mix_piece(s, piece + 1, j), from + 4, there);
}
GPU_FN void read_f32x8(float *f, struct gpu_mix_norm_shared *s, uint32_t piece, uint32_t j) {
    widen_f32x4(f, gpu_load16(mix_piece(s, piece, j)));
    widen_f32x4(f + 4, gpu_load16(mix_piece(s, piece + 1, j)));
}

/* Eight weights, kept or not; any where there are no columns. */
GPU_FN void weights_of(float *f, const struct gpu_mix_norm *a, struct gpu_mix_norm_shared *s,
                       bool kept, uint32_t piece, const float *from, uint32_t at, uint32_t j) {
    from += at < a->cols ? at : 0;
    const void *lo = from, *hi = from + 4;
    if (kept) {
        lo = mix_piece(s, piece, j);
        hi = mix_piece(s, piece + 1, j);
    }
    widen_f32x4(f, gpu_load16(lo));
    widen_f32x4(f + 4, gpu_load16(hi));
}

/* A commit for the prefix and one for each source, whether or not it is there. */
GPU_FN void copy_row(const struct gpu_mix_norm *a, struct gpu_mix_norm_shared *s, uint64_t row,
                     uint32_t first, uint32_t step) {
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
        const bool there = first + j * step < a->cols;
        const uint32_t col = there ? first + j * step : 0;
        gpu_copy16(mix_piece(s, PIECE_PREFIX, j), a->prefix + row * a->stride + col, there);
        if (a->delta)
            copy_f32x8(s, PIECE_DELTA, j, a->delta + row * a->delta_stride + col, there);
    }
    gpu_copy_commit();
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_MIX_SOURCES; i++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < MIX_CHUNKS && i < a->n_bank; j++) {
            const bool there = first + j * step < a->cols;
            const uint32_t col = there ? first + j * step : 0;
            gpu_copy16(mix_piece(s, PIECE_BANK + i, j),
                       a->bank + i * a->bank_stride + row * a->stride + col, there);
        }
        gpu_copy_commit();
    }
}

/* Source i, which has come, into registers, and its dots. */
GPU_FN void take_source(const struct gpu_mix_norm *a, struct gpu_mix_norm_shared *s,
                        struct mix_row *r, const uint32_t i, float (*c)[8], float *t) {
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS && i < a->n_bank; j++) {
        float f[8];
        r->v[i][j] = gpu_load16(mix_piece(s, PIECE_BANK + i, j));
        widen_bf16x8(f, r->v[i][j]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            t[i] += f[e] * c[j][e];
            t[GPU_MIX_SOURCES + i] += f[e] * f[e];
        }
    }
}
#define TAKE_SOURCE(I)                                                                             \
    gpu_copy_wait((int)GPU_MIX_SOURCES - 1 - (I));                                                 \
    take_source(&a, s, &r, I, c, t)

GPU_KERNEL(weir_mix_norm_many, gpu_mix_norm, MIX_THREADS, 1) {
    GPU_SHARED(struct gpu_mix_norm_shared, s);
    const uint32_t step = gpu_waves() * GPU_WAVE * 8, first = gpu_thread() * 8;
    const uint32_t begin = gpu_block_x(), next = gpu_blocks_x();
    /* Weights are kept by who needs them again; all blocks at once would wait for the same lines.
     */
    const bool again = begin + next < a.rows;
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS && again; j++) {
        const bool there = first + j * step < a.cols;
        const uint32_t col = there ? first + j * step : 0;
        if (a.n_bank)
            copy_f32x8(s, PIECE_C, j, a.c + col, there);
        copy_f32x8(s, PIECE_NORM, j, a.norm + col, there);
    }
    gpu_wait_previous();
    gpu_launch_next();
    if (begin < a.rows)
        copy_row(&a, s, begin, first, step);
    for (uint32_t row = begin; row < a.rows; row += next) {
        struct mix_row r;
        float t[2 * GPU_MIX_SOURCES], of_prefix[2] = {0, 0}, c[MIX_CHUNKS][8];
        GPU_UNROLL
        for (uint32_t i = 0; i < 2 * GPU_MIX_SOURCES; i++)
            t[i] = 0;
        gpu_copy_wait((int)GPU_MIX_SOURCES);
        GPU_UNROLL
        for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
            if (a.n_bank)
                weights_of(c[j], &a, s, again, PIECE_C, a.c, first + j * step, j);
            r.sum[j] = gpu_load16(mix_piece(s, PIECE_PREFIX, j));
            if (a.delta) {
                float delta[8];
                read_f32x8(delta, s, PIECE_DELTA, j);
                r.sum[j] = added(&a, r.sum[j], delta);
            }
            if (a.n_bank)
                mix_dots(&r, j, 0, 0, c[j], t, of_prefix);
        }
        store_prefix(&a, &r, row, first, step, MIX_CHUNKS);
        TAKE_SOURCE(0);
        TAKE_SOURCE(1);
        TAKE_SOURCE(2);
        TAKE_SOURCE(3);
        TAKE_SOURCE(4);
        TAKE_SOURCE(5);
        TAKE_SOURCE(6);
        TAKE_SOURCE(7);
        /* All of the row is in registers: its dots are formed. */
        if (row + next < a.rows)
            copy_row(&a, s, row + next, first, step);
        mix_add(&a, &r, MIX_CHUNKS, GPU_MIX_SOURCES, a.n_bank, true, t, of_prefix, s->part[0]);
        float norm[MIX_CHUNKS][8];
        GPU_UNROLL
        for (uint32_t j = 0; j < MIX_CHUNKS; j++)
            weights_of(norm[j], &a, s, again, PIECE_NORM, a.norm, first + j * step, j);
        mix_out(&a, &r, s->square, row, first, step, MIX_CHUNKS, norm);
    }
}
#endif
