/* kda_chunk.c: the first part of chunked KDA: all that a chunk of one head needs before the state
 * comes by. Convolution, gates, L2 norms, what its tokens have to do with one another, and the
 * inverse that corrects the values. The formulas are at struct kda_work.
 *
 * Invariant that bites: exp(G_i) exp(-G_j) overflows after a few strong decays. Decays are summed
 * from the start of a block of 16 rows. Between blocks every exponent is a difference that cannot
 * be above zero: from the block's start down to a row, from a row to the block's end, whole blocks
 * between. Within a block exponents are taken from its middle, where that is safe; where decays
 * have no bound and are steep, each pair has its own. Short sums also keep what differences of long
 * ones would lose.
 *
 * A thread that reads rows has two neighbouring dimensions and a range of rows, all of them on
 * their way before the first is used. */
#include "ops/gpu/kernels/kda_prefill.h"

enum {
    CHUNK_THREADS = 256,
    CHUNK_WAVES = CHUNK_THREADS / GPU_WAVE,
    PAST = GPU_TAPS_MOST - 1,
    ROWS_MOST = CHUNK * GPU_KDA_DIM_MOST / 2 / CHUNK_THREADS, /* of a thread */
    MIDDLE = TILE / 2 - 1,
    STEEP = 60, /* a logarithm (base 2) whose power, times a number, is far from overflow */
};
#if GPU_WAVE == 32
typedef struct gpu_kda_chunk_shared_32 kda_chunk_shared;
#else
typedef struct gpu_kda_chunk_shared_64 kda_chunk_shared;
#endif
enum { WIDE = GPU_KDA_DIM_MOST + 4, SQUARE = TILE + 4, TILES = BLOCKS * (BLOCKS + 1) / 2 };

/* What all parts of the kernel know. */
struct part {
    const struct gpu_kda_prefill *a;
    struct gpu_kda_span span;
    struct kda_chunk c;
    struct kda_work to;
    uint32_t head, number;
};
/* The thread's place: dimensions d and d + 1, `each` rows from `begin` on. */
struct place {
    uint32_t d, begin;
    bool there; /* the head has these dimensions */
};
GPU_FN uint32_t rows_each(const uint32_t keys) {
    return CHUNK * keys / 2 / CHUNK_THREADS;
}
GPU_FN struct place place_of(const struct part *p, const uint32_t keys) {
    struct place at;
    at.d = gpu_thread() % (keys / 2) * 2;
    at.begin = gpu_thread() / (keys / 2) * rows_each(keys);
    at.there = at.d < p->a->dim;
    return at;
}
/* Block (i, j), i >= j, of what is zero above its diagonal. */
GPU_FN uint32_t tile_of(uint32_t i, uint32_t j) {
    return i * (i + 1) / 2 + j;
}

/* ------------------------------------------------------------------------------- tokens */

GPU_FN uint32_t pair_at(const uint16_t *p) {
    return *(const uint32_t *)(const void *)p;
}
/* The thread's rows of q, k or v (part 0, 1, 2), those in front of them first: of the window where
 * the sequence begins. No branch: all of them are asked for before the first comes. */
GPU_FN void load_rows(const struct part *p, const uint32_t part, uint32_t *x, const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const struct place at = place_of(p, keys);
    const uint32_t channels = a->heads * a->dim, channel = p->head * a->dim + at.d;
    const uint32_t taps = a->taps, first = p->c.row + at.begin; /* of the sequence */
    const uint16_t *rows = (part == 0 ? a->q : part == 1 ? a->k : a->v) + channel;
    const uint16_t *window = kda_window(a, p->span.from < 0 ? 0 : p->span.from) + channel;
    GPU_UNROLL
    for (uint32_t i = 0; i < rows_each(keys) + PAST; i++) {
        bool there = at.there && at.begin + i < p->c.rows + PAST;
        const uint16_t *from = rows + ((uint64_t)p->span.row0 + first + i - PAST) * a->stride;
        if (i < PAST && first + i < PAST) {
            const uint32_t back = PAST - first - i; /* rows in front of the sequence */
            there = there && p->span.from >= 0 && back < taps;
            from = window + (uint64_t)((part + 1) * (taps - 1) - back) * channels;
        }
        x[i] = there ? pair_at(from) : 0;
    }
}

/* The same rows behind convolution and SiLU; zeros beyond the chunk's rows and the head's
 * dimensions. */
GPU_FN void convolve(const struct part *p, const uint32_t part, const uint32_t *x, float *to,
                     const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const struct place at = place_of(p, keys);
    const uint32_t n = a->taps;
    const float *taps = part == 0 ? a->q_taps : part == 1 ? a->k_taps : a->v_taps;
    /* Taps stand at the end of four; those that are not there must not even meet a NaN. */
    float tap[2][GPU_TAPS_MOST];
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_TAPS_MOST; j++) {
            tap[e][j] = 0;
            if (at.there && j + n >= GPU_TAPS_MOST)
                tap[e][j] =
                    taps[(uint64_t)(p->head * a->dim + at.d + e) * n + j + n - GPU_TAPS_MOST];
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < rows_each(keys); i++) {
        const uint32_t row = at.begin + i;
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            float sum = 0;
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_TAPS_MOST; j++)
                if (j + n >= GPU_TAPS_MOST)
                    sum += tap[e][j] * (e ? gpu_bf16_hi(x[i + j]) : gpu_bf16_lo(x[i + j]));
            to[row * WIDE + at.d + e] = row < p->c.rows && at.there ? sum * gpu_sigmoid(sum) : 0;
        }
    }
}

GPU_FN void load_gates(const struct part *p, uint32_t *z, const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const struct place at = place_of(p, keys);
    GPU_UNROLL
    for (uint32_t i = 0; i < rows_each(keys); i++) {
        const uint64_t row = p->span.row0 + p->c.row + at.begin + i;
        z[i] = at.there && at.begin + i < p->c.rows
                   ? pair_at(a->z + row * a->z_stride + p->head * a->dim + at.d)
                   : 0;
    }
}

/* Logarithms (base 2) of decays, summed from the start of each block of 16 rows. */
GPU_FN void decays(const struct part *p, kda_chunk_shared *s, const uint32_t *z,
                   const uint32_t keys) {
    const struct gpu_kda_prefill *a = p->a;
    const struct place at = place_of(p, keys);
    const uint32_t each = rows_each(keys), channel = p->head * a->dim + at.d;
    const float ea = a->ea[p->head];
    const float dt[2] = {at.there ? a->dt[channel] : 0, at.there ? a->dt[channel + 1] : 0};
    const bool bound = a->lower_bound < 0;
    float sum[2] = {0, 0};
    GPU_UNROLL
    for (uint32_t i = 0; i < each; i++) {
        const bool there = at.there && at.begin + i < p->c.rows;
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            const float x = (e ? gpu_bf16_hi(z[i]) : gpu_bf16_lo(z[i])) + dt[e];
            sum[e] += there ? 1.44269504f * a->lower_bound * gpu_sigmoid(ea * x) : 0;
            s->g[at.begin + i][at.d + e] = bound ? sum[e] : there ? x : -GPU_INFINITY;
        }
    }
    if (!bound) { /* softplus of the thread's own numbers; of minus infinity it is 0 */
        sum[0] = sum[1] = 0;
        GPU_ROLLED
        for (uint32_t i = 0; i < each; i++) {
            GPU_UNROLL
            for (uint32_t e = 0; e < 2; e++) {
                const float x = s->g[at.begin + i][at.d + e];
                sum[e] -= x > -GPU_INFINITY ? 1.44269504f * ea * gpu_softplus(x) : 0;
                s->g[at.begin + i][at.d + e] = sum[e];
            }
        }
    }
    if (each >= TILE)
        return;
    float before[2] = {0, 0};
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++)
        for (uint32_t row = at.begin / TILE * TILE; row < at.begin; row += each)
            before[e] += s->g[row + each - 1][at.d + e];
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++)
        for (uint32_t i = 0; i < each; i++)
            s->g[at.begin + i][at.d + e] += before[e];
}
/* Whether a block's decays from its middle are too steep for exponents above zero. */
GPU_FN void look_for_steep(kda_chunk_shared *s, const uint32_t keys) {
    for (uint32_t i = gpu_thread(); i < BLOCKS * keys; i += CHUNK_THREADS) {
        const uint32_t row = i / keys * TILE;
        const float middle = s->g[row + MIDDLE][i % keys], end = s->g[row + TILE - 1][i % keys];
        if (!(middle >= -STEEP && end - middle >= -STEEP))
            s->steep = 1;
    }
}

/* Lengths of q and k; q scaled as well. Sixteen lanes have a row. */
GPU_FN void normalise(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const uint32_t lane = gpu_thread() % 16 * 4;
    const float scale = gpu_rsqrt((float)p->a->dim);
    for (uint32_t row = gpu_thread() / 16; row < CHUNK; row += CHUNK_THREADS / 16) {
        float q[2][4], k[2][4], qq = 0, kk = 0;
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            if (h * 64 + lane >= keys)
                continue;
            widen_f32x4(q[h], gpu_load16(&s->q[row][h * 64 + lane]));
            widen_f32x4(k[h], gpu_load16(&s->k[row][h * 64 + lane]));
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                qq += q[h][e] * q[h][e];
                kk += k[h][e] * k[h][e];
            }
        }
        const float q_scale = gpu_rsqrt(gpu_sum16(qq) + 1e-6f) * scale;
        const float k_scale = gpu_rsqrt(gpu_sum16(kk) + 1e-6f);
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            if (h * 64 + lane >= keys)
                continue;
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                q[h][e] *= q_scale;
                k[h][e] *= k_scale;
            }
            gpu_store16(&s->q[row][h * 64 + lane], f32x4(q[h]));
            gpu_store16(&s->k[row][h * 64 + lane], f32x4(k[h]));
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

/* Row i of block `below` and row j of block `above`. */
GPU_FN void put_pair(const struct part *p, kda_chunk_shared *s, uint32_t below, uint32_t above,
                     uint32_t i, uint32_t j, float qk, float kk) {
    const uint32_t row = below * TILE + i, col = above * TILE + j;
    const uint32_t at = kda_element(row, col, CHUNK);
    split1(col <= row ? qk : 0, &p->to.aqk[at], &p->to.aqk[CHUNK * CHUNK + at]);
    s->l[tile_of(below, above)][i][j] = col < row ? s->beta[row] * kk : 0;
}
GPU_FN void put_nothing(const struct part *p, uint32_t row, uint32_t col) {
    const uint32_t at = kda_element(row, col, CHUNK);
    p->to.aqk[at] = p->to.aqk[CHUNK * CHUNK + at] = 0;
}

/* Within a block of steep decays: 136 pairs, two rows that together have 17 at a time. */
GPU_FN void near_pairs(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    enum { PAIRS = TILE * (TILE + 1) / 2 };
    GPU_ROLLED
    for (uint32_t t = gpu_thread(); t < BLOCKS * PAIRS; t += CHUNK_THREADS) {
        const uint32_t block = t / PAIRS, r = t % PAIRS / (TILE + 1), c = t % (TILE + 1);
        const uint32_t i = c <= r ? r : TILE - 1 - r, j = c <= r ? c : c - r - 1;
        float qk = 0, kk = 0;
        GPU_ROLLED
        for (uint32_t d = 0; d < keys; d += 4) {
            float qi[4], ki[4], gi[4], kj[4], gj[4];
            widen_f32x4(qi, gpu_load16(&s->q[block * TILE + i][d]));
            widen_f32x4(ki, gpu_load16(&s->k[block * TILE + i][d]));
            widen_f32x4(gi, gpu_load16(&s->g[block * TILE + i][d]));
            widen_f32x4(kj, gpu_load16(&s->k[block * TILE + j][d]));
            widen_f32x4(gj, gpu_load16(&s->g[block * TILE + j][d]));
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                const float w = kj[e] * gpu_exp2(gi[e] - gj[e]);
                qk += qi[e] * w;
                kk += ki[e] * w;
            }
        }
        put_pair(p, s, block, block, i, j, qk, kk);
        if (i != j)
            put_pair(p, s, block, block, j, i, 0, 0);
    }
}

GPU_FN void eight(float *f, const float *from) {
    widen_f32x4(f, gpu_load16(from));
    widen_f32x4(f + 4, gpu_load16(from + 4));
}
/* Queries and keys of block `block` from column `at` on, decayed since `since`. */
GPU_FN void strips_below(struct kda_strips *q, struct kda_strips *k, const kda_chunk_shared *s,
                         uint32_t block, uint32_t at, const float *since) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i);
        float g[8], f[8];
        eight(g, &s->g[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            g[e] = gpu_exp2(g[e] - since[e]);
        eight(f, &s->q[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] *= g[e];
        split8(f, &q->hi.row[i], &q->lo.row[i]);
        eight(f, &s->k[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] *= g[e];
        split8(f, &k->hi.row[i], &k->lo.row[i]);
    }
}
/* Keys of block `block`, decayed until `until`. */
GPU_FN void strips_above(struct kda_strips *k, const kda_chunk_shared *s, uint32_t block,
                         uint32_t at, const float *until) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i);
        float g[8], f[8];
        eight(g, &s->g[row][at]);
        eight(f, &s->k[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] *= gpu_exp2(until[e] - g[e]);
        split8(f, &k->hi.row[i], &k->lo.row[i]);
    }
}

/* Tiles of pairs of blocks, a wave each; those of a block with itself unless it is steep. */
GPU_FN void pairs(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const bool steep = s->steep;
    GPU_ROLLED
    for (uint32_t t = gpu_wave(); t < TILES; t += CHUNK_WAVES) {
        uint32_t below = 0;
        while (tile_of(below + 1, 0) <= t)
            below++;
        const uint32_t above = t - tile_of(below, 0);
        struct gpu_sums qk, kk;
        if (below == above && steep)
            continue; /* the same for the whole wave */
        clear_sums(&qk);
        clear_sums(&kk);
        GPU_ROLLED
        for (uint32_t d = 0; d < keys; d += 32) {
            const uint32_t at = d + gpu_strip_k();
            struct kda_strips q, k, above_k;
            float since[8], until[8];
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++)
                since[e] = until[e] = 0;
            if (below == above) {
                eight(since, &s->g[below * TILE + MIDDLE][at]);
                eight(until, &s->g[below * TILE + MIDDLE][at]);
            }
            GPU_ROLLED
            for (uint32_t b = above; b < below; b++) {
                float end[8];
                eight(end, &s->g[b * TILE + TILE - 1][at]);
                GPU_UNROLL
                for (uint32_t e = 0; e < 8; e++)
                    until[e] += end[e];
            }
            strips_above(&above_k, s, above, at, until);
            strips_below(&q, &k, s, below, at, since);
            add_product(&qk, &q, &above_k);
            add_product(&kk, &k, &above_k);
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            const uint32_t i = gpu_sum_row(e), j = gpu_sum_col(e);
            put_pair(p, s, below, above, i, j, qk.at[e], kk.at[e]);
            if (below != above)
                put_nothing(p, above * TILE + i, below * TILE + j);
        }
    }
    if (steep)
        near_pairs(p, s, keys);
}

/* ------------------------------------------------------------------------------- inverse */

/* sum plus a row of a tile times column c of another. */
GPU_FN float add_tile(float sum, const float *row, const float *tile, uint32_t c) {
    GPU_UNROLL
    for (uint32_t m = 0; m < TILE; m += 4) {
        float f[4];
        widen_f32x4(f, gpu_load16(row + m));
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            sum += f[e] * tile[(m + e) * SQUARE + c];
    }
    return sum;
}

/* x = (I + l)^-1 diag(beta) without its diagonal, which is beta, all in f32: the blocks on the
 * diagonal column by column, then row by row of blocks X_ba = -X_bb sum_m L_bm X_ma. It takes the
 * place of g. */
GPU_FN void invert(kda_chunk_shared *s) {
    const uint32_t thread = gpu_thread();
    if (thread < CHUNK) {
        const uint32_t tile = tile_of(thread / TILE, thread / TILE), c = thread % TILE;
        float x[TILE];
        GPU_UNROLL
        for (uint32_t i = 0; i < TILE; i++) {
            x[i] = i == c ? 1 : 0;
            GPU_UNROLL
            for (uint32_t m = 0; m < i; m++)
                x[i] -= s->l[tile][i][m] * x[m];
            s->x[tile][i][c] = x[i];
        }
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t b = 1; b < BLOCKS; b++) {
        const uint32_t row = thread / TILE % TILE, c = thread % TILE;
        float sum[BLOCKS];
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++) {
            sum[a] = 0;
            GPU_ROLLED
            for (uint32_t o = a; o < b; o++)
                sum[a] = add_tile(sum[a], s->l[tile_of(b, o)][row], &s->x[tile_of(o, a)][0][0], c);
            s->x[tile_of(b, a)][row][c] = sum[a];
        }
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++)
            sum[a] = -add_tile(0, s->x[tile_of(b, b)][row], &s->x[tile_of(b, a)][0][0], c);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t a = 0; a < b; a++)
            s->x[tile_of(b, a)][row][c] = sum[a];
        gpu_barrier();
    }
    GPU_UNROLL
    for (uint32_t b = 0; b < BLOCKS; b++) {
        GPU_UNROLL
        for (uint32_t a = 0; a <= b; a++) {
            const uint32_t row = thread / TILE % TILE, c = thread % TILE;
            s->x[tile_of(b, a)][row][c] *= a == b && row == c ? 0 : s->beta[a * TILE + c];
        }
    }
}

/* ------------------------------------------------------------------------------- results */

/* Two numbers as pairs of upper and lower parts. */
GPU_FN void split2(float x, float y, uint32_t *hi, uint32_t *lo) {
    *hi = gpu_bf16_pair(x, y);
    *lo = gpu_bf16_pair(x - gpu_bf16_lo(*hi), y - gpu_bf16_hi(*hi));
}
GPU_FN void put_split(uint16_t *to, uint32_t lower, float x, float y) {
    uint32_t hi, lo;
    split2(x, y, &hi, &lo);
    *(uint32_t *)(void *)to = hi;
    *(uint32_t *)(void *)(to + lower) = lo;
}

/* q, kt and decay to their places; k becomes k exp G. */
GPU_FN void put_tokens(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const uint32_t d = gpu_thread() % (keys / 2) * 2, ranges = CHUNK_THREADS / (keys / 2);
    if (gpu_thread() < keys)
        p->to.decay[gpu_thread()] = gpu_exp2(between(s, 0, BLOCKS, gpu_thread()));
    GPU_ROLLED
    for (uint32_t at = gpu_thread() / (keys / 2) * 8; at < CHUNK; at += ranges * 8) {
        const uint32_t block = at / TILE;
        float back[2][8], q[2][8];
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            const float before = between(s, 0, block, d + h);
            const float after = between(s, block + 1, BLOCKS, d + h);
            const float end = s->g[block * TILE + TILE - 1][d + h];
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++) {
                const float g = s->g[at + e][d + h], down = gpu_exp2(g + before);
                const float k = s->k[at + e][d + h];
                q[h][e] = s->q[at + e][d + h] * down;
                back[h][e] = k * gpu_exp2(end - g + after);
                s->k[at + e][d + h] = k * down;
            }
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            put_split(&p->to.q[kda_element(at + e, d, keys)], CHUNK * keys, q[0][e], q[1][e]);
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            struct gpu_u4 hi, lo;
            split8(back[h], &hi, &lo);
            uint16_t *kt = p->to.kt + kda_element(d + h, at, CHUNK);
            gpu_store16(kt, hi);
            gpu_store16(kt + CHUNK * keys, lo);
            gpu_store16(kt + 2 * CHUNK * keys, narrow_bf16x8(back[h]));
        }
    }
}

/* Strips of rows of block `block` of x, from column m on; zeros above the diagonal. */
GPU_FN void strips_of_x(struct kda_strips *to, const kda_chunk_shared *s, uint32_t block,
                        uint32_t m) {
    const uint32_t above = (m + gpu_strip_k()) / TILE;
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        float f[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (above <= block)
            eight(f, &s->x[tile_of(block, above)][gpu_strip_row(i)][gpu_strip_k() % TILE]);
        split8(f, &to->hi.row[i], &to->lo.row[i]);
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
                strips_of_x(&x, s, row / TILE, m);
                add_product(&sum, &x, &b[m / 32]);
            }
            GPU_UNROLL
            for (uint32_t e = 0; e < GPU_SUMS; e++) {
                const uint32_t i = row + gpu_sum_row(e), d = col + gpu_sum_col(e);
                const float whole = sum.at[e] + s->beta[i] * (values ? s->q[i][d] : s->k[i][d]);
                if (values)
                    p->to.u[i * keys + d] = whole;
                else
                    split1(-whole, &p->to.w[kda_element(i, d, keys)],
                           &p->to.w[CHUNK * keys + kda_element(i, d, keys)]);
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
        to[at] = p->span.from < 0 ? 0 : kda_window(a, p->span.from)[at];
    }
}

GPU_FN void kda_chunk(const struct gpu_kda_prefill *a, kda_chunk_shared *s, const uint32_t keys) {
    struct part p;
    uint32_t q[ROWS_MOST + PAST], k[ROWS_MOST + PAST], z[ROWS_MOST];
    p.a = a;
    p.head = gpu_block_x();
    p.number = gpu_block_y();
    p.c = kda_chunk_at(a, p.number);
    gpu_wait_previous();
    gpu_launch_next();
    if (p.c.seq == a->n_seqs || a->seqs[p.c.seq].slot < 0)
        return;
    p.span = a->seqs[p.c.seq];
    p.to = kda_work_of(a, p.number, p.head, keys);
    load_rows(&p, 0, q, keys);
    load_rows(&p, 1, k, keys);
    load_gates(&p, z, keys);
    for (uint32_t i = gpu_thread(); i < CHUNK; i += CHUNK_THREADS) {
        const uint64_t row = p.span.row0 + p.c.row + i;
        s->beta[i] =
            i < p.c.rows ? gpu_sigmoid(gpu_from_bf16(a->b[row * a->b_stride + p.head])) : 0;
    }
    if (gpu_thread() == 0)
        s->steep = 0;
    if (p.c.row == 0)
        take_window(&p);
    convolve(&p, 0, q, &s->q[0][0], keys);
    convolve(&p, 1, k, &s->k[0][0], keys);
    decays(&p, s, z, keys);
    gpu_barrier();
    look_for_steep(s, keys);
    normalise(&p, s, keys);
    gpu_barrier();
    pairs(&p, s, keys);
    gpu_barrier();
    load_rows(&p, 2, q, keys); /* on its way while the rest is computed */
    put_tokens(&p, s, keys);
    gpu_barrier(); /* g and q are free */
    convolve(&p, 2, q, &s->q[0][0], keys);
    invert(s);
    gpu_barrier();
    put_corrections(&p, s, keys);
}

GPU_KERNEL(weir_kda_chunk_128, gpu_kda_prefill, CHUNK_THREADS, 2) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 128);
}
GPU_KERNEL(weir_kda_chunk_64, gpu_kda_prefill, CHUNK_THREADS, 2) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 64);
}
GPU_KERNEL(weir_kda_chunk_32, gpu_kda_prefill, CHUNK_THREADS, 2) {
    GPU_SHARED(kda_chunk_shared, s);
    kda_chunk(&a, s, 32);
}
