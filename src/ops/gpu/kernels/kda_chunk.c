/* kda_chunk.c: the first part of chunked KDA: all that a chunk of one head needs before the state
 * comes by. Convolution, gates, L2 norms, what its tokens have to do with one another, and the
 * inverse that corrects the values. The formulas are at struct kda_work.
 *
 * Invariant that bites: exp(G_i) exp(-G_j) overflows after a few strong decays. Decays are summed
 * from the start of a block of 16 rows, and every exponent is a difference that cannot be above
 * zero: from the block's start down to a row, from a row to the block's end, whole blocks between.
 * Short sums also keep what differences of long ones would lose. */
#include "ops/gpu/kernels/kda_prefill.h"

enum { CHUNK_THREADS = 256, CHUNK_WAVES = CHUNK_THREADS / GPU_WAVE };
#if GPU_WAVE == 32
typedef struct gpu_kda_chunk_shared_32 kda_chunk_shared;
#else
typedef struct gpu_kda_chunk_shared_64 kda_chunk_shared;
#endif
enum { WIDE = GPU_KDA_DIM_MOST + 4, SQUARE = CHUNK + 4 };

/* What all parts of the kernel know. */
struct part {
    const struct gpu_kda_prefill *a;
    const struct gpu_kda_span *span;
    struct kda_chunk c;
    struct kda_work to;
    uint32_t head, number;
};

/* ------------------------------------------------------------------------------- tokens */

/* The projection `t` rows behind the sequence's first one, perhaps of the window before it. */
GPU_FN float projected(const struct part *p, const uint16_t *x, uint32_t part, int32_t t,
                       uint32_t d) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t channels = a->heads * a->dim, channel = p->head * a->dim + d;
    if (t >= 0)
        return gpu_from_bf16(x[(uint64_t)(p->span->row0 + (uint32_t)t) * a->stride + channel]);
    if (p->span->from < 0)
        return 0;
    const uint32_t row = (part + 1) * (a->taps - 1) + (uint32_t)t; /* t < 0 */
    return gpu_from_bf16(kda_window(a, p->span->from)[(uint64_t)row * channels + channel]);
}

/* Rows of q, k or v (part 0, 1, 2) behind convolution and SiLU; zeros beyond the chunk's rows and
 * the head's dimensions. A thread has a dimension and a range of rows. */
GPU_FN void convolve(const struct part *p, const uint32_t part, float *to, const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t each = CHUNK / (CHUNK_THREADS / keys), d = gpu_thread() % keys;
    const uint32_t begin = gpu_thread() / keys * each, n = a->taps;
    const uint16_t *x = part == 0 ? a->q : part == 1 ? a->k : a->v;
    const float *taps = part == 0 ? a->q_taps : part == 1 ? a->k_taps : a->v_taps;
    /* Taps stand at the end of four; those that are not there must not even meet a NaN. */
    float tap[GPU_TAPS_MOST], past[GPU_TAPS_MOST];
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_TAPS_MOST; j++) {
        const bool there = d < a->dim && j + n >= GPU_TAPS_MOST;
        const int32_t t = (int32_t)(p->c.row + begin + j) - (GPU_TAPS_MOST - 1);
        tap[j] = past[j] = 0;
        if (there)
            tap[j] = taps[(uint64_t)(p->head * a->dim + d) * n + j + n - GPU_TAPS_MOST];
        if (there && j + 1 < GPU_TAPS_MOST && begin < p->c.rows)
            past[j] = projected(p, x, part, t, d);
    }
    GPU_ROLLED
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t row = begin + i;
        float sum = 0;
        if (row < p->c.rows && d < a->dim) {
            past[GPU_TAPS_MOST - 1] = projected(p, x, part, (int32_t)(p->c.row + row), d);
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_TAPS_MOST; j++) {
                if (j + n >= GPU_TAPS_MOST)
                    sum += tap[j] * past[j];
                if (j > 0)
                    past[j - 1] = past[j];
            }
            sum *= gpu_sigmoid(sum);
        }
        to[row * WIDE + d] = sum;
    }
}

/* Logarithms (base 2) of decays, summed from the start of each block of 16 rows. */
GPU_FN void decays(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t each = CHUNK / (CHUNK_THREADS / keys), d = gpu_thread() % keys;
    const uint32_t begin = gpu_thread() / keys * each, channel = p->head * a->dim + d;
    const float ea = a->ea[p->head];
    float sum = 0, before = 0;
    GPU_ROLLED
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t row = begin + i;
        if (row % TILE == 0)
            sum = 0;
        if (row < p->c.rows && d < a->dim) {
            const uint64_t at = (uint64_t)(p->span->row0 + p->c.row + row) * a->z_stride + channel;
            const float z = gpu_from_bf16(a->z[at]) + a->dt[channel];
            sum += 1.44269504f * (a->lower_bound < 0 ? a->lower_bound * gpu_sigmoid(ea * z)
                                                     : -ea * gpu_softplus(z));
        }
        s->g[row][d] = sum;
    }
    if (each >= TILE)
        return;
    gpu_barrier();
    for (uint32_t row = begin / TILE * TILE; row < begin; row += each)
        before += s->g[row + each - 1][d];
    gpu_barrier();
    for (uint32_t i = 0; i < each; i++)
        s->g[begin + i][d] += before;
}

/* Lengths of q and k; q scaled as well. Sixteen lanes have a row. */
GPU_FN void normalise(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const uint32_t lane = gpu_thread() % 16;
    const float scale = gpu_rsqrt((float)p->a->dim);
    for (uint32_t row = gpu_thread() / 16; row < CHUNK; row += CHUNK_THREADS / 16) {
        float qq = 0, kk = 0;
        for (uint32_t d = lane; d < keys; d += 16) {
            qq += s->q[row][d] * s->q[row][d];
            kk += s->k[row][d] * s->k[row][d];
        }
        const float q_scale = gpu_rsqrt(gpu_sum16(qq) + 1e-6f) * scale;
        const float k_scale = gpu_rsqrt(gpu_sum16(kk) + 1e-6f);
        for (uint32_t d = lane; d < keys; d += 16) {
            s->q[row][d] *= q_scale;
            s->k[row][d] *= k_scale;
        }
    }
}

/* Log decay of the whole blocks from `from` to `end`. */
GPU_FN float between(const kda_chunk_shared *s, uint32_t from, uint32_t end, uint32_t d) {
    float sum = 0;
    GPU_ROLLED
    for (uint32_t b = from; b < end; b++)
        sum += s->g[b * TILE + TILE - 1][d];
    return sum;
}

/* ------------------------------------------------------------------------------- pairs of tokens
 */

GPU_FN void put_pair(const struct part *p, kda_chunk_shared *s, uint32_t i, uint32_t j, float qk,
                     float kk) {
    split1(j <= i ? qk : 0, &p->to.aqk[i * CHUNK + j], &p->to.aqk[(CHUNK + i) * CHUNK + j]);
    s->l[i][j] = j < i ? s->beta[i] * kk : 0;
}

/* Within a block: 136 pairs, two rows that together have 17 at a time. */
GPU_FN void near_pairs(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    enum { PAIRS = TILE * (TILE + 1) / 2 };
    GPU_ROLLED
    for (uint32_t t = gpu_thread(); t < BLOCKS * PAIRS; t += CHUNK_THREADS) {
        const uint32_t block = t / PAIRS * TILE, r = t % PAIRS / (TILE + 1), c = t % (TILE + 1);
        const uint32_t i = block + (c <= r ? r : TILE - 1 - r),
                       j = block + (c <= r ? c : c - r - 1);
        float qk = 0, kk = 0;
        GPU_ROLLED
        for (uint32_t d = 0; d < keys; d += 4) {
            float qi[4], ki[4], gi[4], kj[4], gj[4];
            widen_f32x4(qi, gpu_load16(&s->q[i][d]));
            widen_f32x4(ki, gpu_load16(&s->k[i][d]));
            widen_f32x4(gi, gpu_load16(&s->g[i][d]));
            widen_f32x4(kj, gpu_load16(&s->k[j][d]));
            widen_f32x4(gj, gpu_load16(&s->g[j][d]));
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                const float w = kj[e] * gpu_exp2(gi[e] - gj[e]);
                qk += qi[e] * w;
                kk += ki[e] * w;
            }
        }
        put_pair(p, s, i, j, qk, kk);
        if (i != j)
            put_pair(p, s, j, i, 0, 0);
    }
}

/* Rows of block `block` from column d on, decayed from the block's start. */
GPU_FN void strips_below(struct kda_strips *to, const float *x, const kda_chunk_shared *s,
                         uint32_t block, uint32_t d) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i), at = d + gpu_strip_k();
        float f[8];
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] = x[row * WIDE + at + e] * gpu_exp2(s->g[row][at + e]);
        split8(f, &to->hi.row[i], &to->lo.row[i]);
    }
}
/* Keys of block `block`, decayed up to the start of block `end`. */
GPU_FN void strips_above(struct kda_strips *to, const kda_chunk_shared *s, uint32_t block,
                         uint32_t end, uint32_t d) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i), at = d + gpu_strip_k();
        float f[8];
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            const float rest = s->g[block * TILE + TILE - 1][at + e] - s->g[row][at + e];
            f[e] = s->k[row][at + e] * gpu_exp2(rest + between(s, block + 1, end, at + e));
        }
        split8(f, &to->hi.row[i], &to->lo.row[i]);
    }
}

/* Between blocks, a wave a pair of them. */
GPU_FN void far_pairs(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    GPU_ROLLED
    for (uint32_t t = gpu_wave(); t < BLOCKS * BLOCKS; t += CHUNK_WAVES) {
        const uint32_t below = t / BLOCKS, above = t % BLOCKS;
        struct gpu_sums qk, kk;
        if (below <= above)
            continue; /* the same for the whole wave */
        clear_sums(&qk);
        clear_sums(&kk);
        GPU_ROLLED
        for (uint32_t d = 0; d < keys; d += 32) {
            struct kda_strips x, k;
            strips_above(&k, s, above, below, d);
            strips_below(&x, &s->q[0][0], s, below, d);
            add_product(&qk, &x, &k);
            strips_below(&x, &s->k[0][0], s, below, d);
            add_product(&kk, &x, &k);
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            const uint32_t i = below * TILE + gpu_sum_row(e), j = above * TILE + gpu_sum_col(e);
            put_pair(p, s, i, j, qk.at[e], kk.at[e]);
            put_pair(p, s, above * TILE + gpu_sum_row(e), below * TILE + gpu_sum_col(e), 0, 0);
        }
    }
}

/* ------------------------------------------------------------------------------- inverse */

/* x = (I + l)^-1 diag(beta) without its diagonal, which is beta, all in f32: the blocks on the
 * diagonal column by column, then row by row of blocks X_ba = -X_bb sum_m L_bm X_ma. */
GPU_FN void invert(kda_chunk_shared *s) {
    const uint32_t thread = gpu_thread();
    for (uint32_t t = thread; t < CHUNK * CHUNK; t += CHUNK_THREADS)
        if (t % CHUNK / TILE > t / CHUNK / TILE)
            s->x[t / CHUNK][t % CHUNK] = 0;
    if (thread < CHUNK) {
        const uint32_t block = thread / TILE * TILE, c = thread % TILE;
        float x[TILE];
        GPU_UNROLL
        for (uint32_t i = 0; i < TILE; i++) {
            x[i] = i == c ? 1 : 0;
            GPU_UNROLL
            for (uint32_t m = 0; m < i; m++)
                x[i] -= s->l[block + i][block + m] * x[m];
            s->x[block + i][block + c] = x[i];
        }
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t b = 1; b < BLOCKS; b++) {
        const uint32_t row = b * TILE + thread / TILE % TILE, c = thread % TILE;
        float sum[BLOCKS];
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++) {
            sum[a] = 0;
            GPU_ROLLED
            for (uint32_t m = a * TILE; m < b * TILE; m++)
                sum[a] += s->l[row][m] * s->x[m][a * TILE + c];
            s->x[row][a * TILE + c] = sum[a];
        }
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++) {
            sum[a] = 0;
            GPU_ROLLED
            for (uint32_t m = 0; m < TILE; m++)
                sum[a] -= s->x[row][b * TILE + m] * s->x[b * TILE + m][a * TILE + c];
        }
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++)
            s->x[row][a * TILE + c] = sum[a];
        gpu_barrier();
    }
    for (uint32_t t = thread; t < CHUNK * CHUNK; t += CHUNK_THREADS)
        s->x[t / CHUNK][t % CHUNK] *= t / CHUNK == t % CHUNK ? 0 : s->beta[t % CHUNK];
}

/* ------------------------------------------------------------------------------- results */

/* q, kt and decay to their places; k becomes k exp G. */
GPU_FN void put_tokens(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const uint32_t d = gpu_thread() % keys;
    const float whole = between(s, 0, BLOCKS, d);
    if (gpu_thread() < keys)
        p->to.decay[d] = gpu_exp2(whole);
    GPU_ROLLED
    for (uint32_t at = gpu_thread() / keys * 8; at < CHUNK; at += CHUNK_THREADS / keys * 8) {
        const uint32_t block = at / TILE;
        const float before = between(s, 0, block, d), after = between(s, block + 1, BLOCKS, d);
        const float end = s->g[block * TILE + TILE - 1][d];
        float back[8];
        struct gpu_u4 hi, lo;
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            const uint32_t i = at + e;
            const float g = s->g[i][d], down = gpu_exp2(g + before);
            split1(s->q[i][d] * down, &p->to.q[i * keys + d], &p->to.q[(CHUNK + i) * keys + d]);
            back[e] = s->k[i][d] * gpu_exp2(end - g + after);
            s->k[i][d] *= down;
        }
        split8(back, &hi, &lo);
        gpu_store16(&p->to.kt[d * CHUNK + at], hi);
        gpu_store16(&p->to.kt[(keys + d) * CHUNK + at], lo);
        gpu_store16(&p->to.kt[(2 * keys + d) * CHUNK + at], narrow_bf16x8(back));
    }
}

/* X times k exp G and times v (in q's place), a wave 16 columns of one. A token's own share, the
 * largest, is not rounded on its way. */
GPU_FN void put_corrections(const struct part *p, const kda_chunk_shared *s, const uint32_t keys) {
    const uint32_t tiles = keys / TILE;
    GPU_ROLLED
    for (uint32_t t = gpu_wave(); t < 2 * tiles; t += CHUNK_WAVES) {
        const bool values = t >= tiles;
        const uint32_t col = t % tiles * TILE;
        struct kda_strips b[CHUNK / 32];
        GPU_UNROLL
        for (uint32_t m = 0; m < CHUNK; m += 32)
            split_cols(&b[m / 32], values ? &s->q[m][col] : &s->k[m][col], WIDE);
        GPU_ROLLED
        for (uint32_t row = 0; row < CHUNK; row += TILE) {
            struct gpu_sums sum;
            clear_sums(&sum);
            GPU_UNROLL
            for (uint32_t m = 0; m < CHUNK; m += 32) {
                struct kda_strips x;
                if (m > row)
                    continue; /* the same for the whole wave */
                split_rows(&x, &s->x[row][m], SQUARE);
                add_product(&sum, &x, &b[m / 32]);
            }
            GPU_UNROLL
            for (uint32_t e = 0; e < GPU_SUMS; e++) {
                const uint32_t i = row + gpu_sum_row(e), d = col + gpu_sum_col(e);
                const float whole = sum.at[e] + s->beta[i] * (values ? s->q[i][d] : s->k[i][d]);
                if (values)
                    p->to.u[i * keys + d] = whole;
                else
                    split1(-whole, &p->to.w[i * keys + d], &p->to.w[(CHUNK + i) * keys + d]);
            }
        }
    }
}

/* The window before the sequence, before anybody writes one. */
GPU_FN void take_window(const struct part *p) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t channels = a->heads * a->dim, rows = 3 * (a->taps - 1);
    uint16_t *to = kda_windows_before(a, p->c.seq);
    for (uint32_t i = gpu_thread(); i < rows * a->dim; i += CHUNK_THREADS) {
        const uint64_t at = (uint64_t)(i / a->dim) * channels + p->head * a->dim + i % a->dim;
        to[at] = p->span->from < 0 ? 0 : kda_window(a, p->span->from)[at];
    }
}

GPU_FN void kda_chunk(const struct gpu_kda_prefill *a, kda_chunk_shared *s, const uint32_t keys) {
    struct part p;
    p.a = a;
    p.head = gpu_block_x();
    p.number = gpu_block_y();
    p.c = kda_chunk_at(a, p.number);
    gpu_wait_previous();
    gpu_launch_next();
    if (p.c.seq == a->n_seqs || a->seqs[p.c.seq].slot < 0)
        return;
    p.span = &a->seqs[p.c.seq];
    p.to = kda_work_of(a, p.number, p.head, keys);
    if (p.c.row == 0)
        take_window(&p);
    convolve(&p, 0, &s->q[0][0], keys);
    convolve(&p, 1, &s->k[0][0], keys);
    decays(&p, s, keys);
    for (uint32_t i = gpu_thread(); i < CHUNK; i += CHUNK_THREADS) {
        const uint64_t row = p.span->row0 + p.c.row + i;
        s->beta[i] =
            i < p.c.rows ? gpu_sigmoid(gpu_from_bf16(a->b[row * a->b_stride + p.head])) : 0;
    }
    gpu_barrier();
    normalise(&p, s, keys);
    gpu_barrier();
    near_pairs(&p, s, keys);
    far_pairs(&p, s, keys);
    gpu_barrier();
    put_tokens(&p, s, keys);
    invert(s); /* its barriers: q is free behind them */
    convolve(&p, 2, &s->q[0][0], keys);
    gpu_barrier();
    put_corrections(&p, s, keys);
}

GPU_KERNEL(weir_kda_chunk_128, gpu_kda_prefill, CHUNK_THREADS, 1) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 128);
}
GPU_KERNEL(weir_kda_chunk_64, gpu_kda_prefill, CHUNK_THREADS, 1) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 64);
}
GPU_KERNEL(weir_kda_chunk_32, gpu_kda_prefill, CHUNK_THREADS, 1) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 32);
}
