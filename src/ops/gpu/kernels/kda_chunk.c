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

/* Two neighbouring numbers in shared memory, the first one's place a multiple of 8 bytes. */
GPU_FN void load_two(float *f, const float *from) {
    const uint64_t two = *(const uint64_t *)(const void *)from;
    f[0] = gpu_as_f32((uint32_t)two);
    f[1] = gpu_as_f32((uint32_t)(two >> 32));
}
GPU_FN void put_two(float *to, const float *f) {
    *(uint64_t *)(void *)to = (uint64_t)gpu_as_u32(f[1]) << 32 | gpu_as_u32(f[0]);
}

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
    const uint32_t n = a->taps, rows = at.there && at.begin < p->c.rows ? p->c.rows - at.begin : 0;
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
        float f[2];
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            float sum = 0;
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_TAPS_MOST; j++)
                if (j + n >= GPU_TAPS_MOST)
                    sum += tap[e][j] * (e ? gpu_bf16_hi(x[i + j]) : gpu_bf16_lo(x[i + j]));
            f[e] = i < rows ? sum * gpu_sigmoid(sum) : 0;
        }
        put_two(to + row * WIDE + at.d, f);
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
        float f[2];
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            const float x = (e ? gpu_bf16_hi(z[i]) : gpu_bf16_lo(z[i])) + dt[e];
            sum[e] += there ? 1.44269504f * a->lower_bound * gpu_sigmoid(ea * x) : 0;
            f[e] = bound ? sum[e] : there ? x : -GPU_INFINITY;
        }
        put_two(&s->g[at.begin + i][at.d], f);
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

/* Sums of a tile to their places, and zeros opposite to it. */
GPU_FN void put_pairs(const struct part *p, kda_chunk_shared *s, uint32_t below, uint32_t above,
                      const struct gpu_sums *qk, const struct gpu_sums *kk) {
    const uint32_t each = GPU_WAVE == 32 ? 2 : 1; /* neighbours */
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e += each) {
        const uint32_t i = gpu_sum_row(e), j = gpu_sum_col(e);
        const uint32_t row = below * TILE + i, col = above * TILE + j;
        const uint32_t opposite = kda_element(above * TILE + i, below * TILE + j, CHUNK);
        if (each == 2) {
            const float y = qk->at[e + each - 1], z = kk->at[e + each - 1];
            const float l[2] = {col < row ? s->beta[row] * kk->at[e] : 0,
                                col + 1 < row ? s->beta[row] * z : 0};
            put_split(&p->to.aqk[kda_element(row, col, CHUNK)], CHUNK * CHUNK,
                      col <= row ? qk->at[e] : 0, col + 1 <= row ? y : 0);
            put_two(&s->l[tile_of(below, above)][i][j], l);
            if (below != above)
                put_split(&p->to.aqk[opposite], CHUNK * CHUNK, 0, 0);
        } else {
            put_pair(p, s, below, above, i, j, qk->at[e], kk->at[e]);
            if (below != above)
                p->to.aqk[opposite] = p->to.aqk[CHUNK * CHUNK + opposite] = 0;
        }
    }
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
/* Queries and keys of block `block` from column `at` on, decayed since its start. */
GPU_FN void strips_below(struct kda_strips *q, struct kda_strips *k, const kda_chunk_shared *s,
                         uint32_t block, uint32_t at) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i);
        float g[8], f[8];
        eight(g, &s->g[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            g[e] = gpu_exp2(g[e]);
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

/* Rows of q or k of block `block`, decayed since the block's middle, or keys until it. */
GPU_FN void strips_within(struct kda_strips_whole *to, const float (*rows)[WIDE],
                          const kda_chunk_shared *s, uint32_t block, uint32_t at, bool since) {
    float middle[8];
    eight(middle, &s->g[block * TILE + MIDDLE][at]);
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t row = block * TILE + gpu_strip_row(i);
        float g[8], f[8];
        eight(g, &s->g[row][at]);
        eight(f, &rows[row][at]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] *= gpu_exp2(since ? g[e] - middle[e] : middle[e] - g[e]);
        split8(f, &to->upper.hi.row[i], &to->upper.lo.row[i]);
        to->least.row[i] = narrow_bf16x8(f);
    }
}
/* A block with itself. Outputs whose terms cancel show what is lost here first. */
GPU_FN void pairs_within(struct gpu_sums *qk, struct gpu_sums *kk, const kda_chunk_shared *s,
                         uint32_t block, const uint32_t keys) {
    GPU_ROLLED
    for (uint32_t d = 0; d < keys; d += 32) {
        const uint32_t at = d + gpu_strip_k();
        struct kda_strips_whole above, below;
        strips_within(&above, s->k, s, block, at, false);
        strips_within(&below, s->q, s, block, at, true);
        add_product_whole(qk, qk, &below, &above);
        strips_within(&below, s->k, s, block, at, true);
        add_product(kk, &below.upper, &above.upper);
    }
}
GPU_FN void pairs_between(struct gpu_sums *qk, struct gpu_sums *kk, const kda_chunk_shared *s,
                          uint32_t below, uint32_t above, const uint32_t keys) {
    GPU_ROLLED
    for (uint32_t d = 0; d < keys; d += 32) {
        const uint32_t at = d + gpu_strip_k();
        struct kda_strips q, k, above_k;
        float until[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        GPU_ROLLED
        for (uint32_t b = above; b < below; b++) {
            float end[8];
            eight(end, &s->g[b * TILE + TILE - 1][at]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++)
                until[e] += end[e];
        }
        strips_above(&above_k, s, above, at, until);
        strips_below(&q, &k, s, below, at);
        add_product(qk, &q, &above_k);
        add_product(kk, &k, &above_k);
    }
}

/* Tiles of pairs of blocks, a wave each; first those of a block with itself, unless it is steep. */
GPU_FN void pairs(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    const bool steep = s->steep;
    GPU_ROLLED
    for (uint32_t t = gpu_wave(); t < TILES; t += CHUNK_WAVES) {
        uint32_t below = t, above = t;
        struct gpu_sums qk, kk;
        if (t < BLOCKS && steep)
            continue; /* the same for the whole wave */
        clear_sums(&qk);
        clear_sums(&kk);
        if (t < BLOCKS) {
            pairs_within(&qk, &kk, s, t, keys);
        } else {
            above = t - BLOCKS;
            for (below = 1; above >= below; below++)
                above -= below;
            pairs_between(&qk, &kk, s, below, above, keys);
        }
        put_pairs(p, s, below, above, &qk, &kk);
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

/* Element e of strip t of 32 tokens is token e / 2 * 8 + t * 2 + e % 2, in x and in what it
 * multiplies: lanes that read the latter then find it in different banks. */
GPU_FN uint32_t place_in_strips(uint32_t token) {
    return token / 32 * 32 + token % 8 / 2 * 8 + token % 32 / 8 * 2 + token % 2;
}

/* x = (I + l)^-1, all in f32: the blocks on the diagonal column by column, then row by row of
 * blocks X_ba = -X_bb sum_m L_bm X_ma. x diag(beta) without its diagonal, which is beta, is left in
 * two parts. Both take the place of g. */
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
        for (uint32_t a = 0; a < BLOCKS; a++) {
            const uint32_t row = thread / TILE % TILE, c = thread % TILE;
            const bool own = a == b && row == c;
            const float x = a > b || own ? 0 : s->x[tile_of(b, a)][row][c] * s->beta[a * TILE + c];
            const uint32_t at = place_in_strips(a * TILE + c);
            split1(x, &s->parts[0][b * TILE + row][at], &s->parts[1][b * TILE + row][at]);
        }
    }
}

/* ------------------------------------------------------------------------------- results */

/* Parts of four numbers with the other sign. */
GPU_FN void put_four(uint16_t *to, uint32_t lower, const float *f) {
    uint32_t hi[2], lo[2];
    split2(-f[0], -f[1], &hi[0], &lo[0]);
    split2(-f[2], -f[3], &hi[1], &lo[1]);
    *(uint64_t *)(void *)to = (uint64_t)hi[1] << 32 | hi[0];
    *(uint64_t *)(void *)(to + lower) = (uint64_t)lo[1] << 32 | lo[0];
}

/* Log decays of two dimensions over the whole blocks in front of `block` and behind it. */
GPU_FN void around(float *before, float *after, const kda_chunk_shared *s, uint32_t block,
                   uint32_t d) {
    before[0] = before[1] = after[0] = after[1] = 0;
    GPU_UNROLL
    for (uint32_t b = 0; b < BLOCKS; b++) {
        float end[2];
        load_two(end, &s->g[b * TILE + TILE - 1][d]);
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            before[h] += b < block ? end[h] : 0;
            after[h] += b > block ? end[h] : 0;
        }
    }
}
/* From where a part of kt lies as the work buffer has it. */
GPU_FN void copy_out(uint16_t *to, const uint16_t *from, uint32_t n) {
    GPU_ROLLED
    for (uint32_t i = gpu_thread() * 8; i < n; i += CHUNK_THREADS * 8)
        gpu_store16(to + i, gpu_load16(from + i));
}

/* Where a thread has two dimensions of some pieces of 8 rows: the dimension, the first row, from a
 * piece to the next, and how many pieces; those beyond the chunk are none. */
struct pieces {
    uint32_t d, own, step, n;
};
GPU_FN struct pieces pieces_of(const uint32_t keys) {
    struct pieces at;
    at.d = gpu_thread() % (keys / 2) * 2;
    at.own = gpu_thread() / (keys / 2) * 8;
    at.step = CHUNK_THREADS / (keys / 2) * 8;
    at.n = (CHUNK + at.step - 1) / at.step;
    return at;
}
/* q and decay to their places. */
GPU_FN void put_queries(const struct part *p, const kda_chunk_shared *s, const uint32_t keys) {
    const struct pieces own = pieces_of(keys);
    if (gpu_thread() < keys)
        p->to.decay[gpu_thread()] = gpu_exp2(between(s, 0, BLOCKS, gpu_thread()));
    GPU_UNROLL
    for (uint32_t i = 0; i < own.n; i++) {
        const uint32_t at = own.own + i * own.step;
        float before[2], after[2];
        if (at >= CHUNK)
            continue;
        around(before, after, s, at / TILE, own.d);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            float q[2], g[2];
            load_two(q, &s->q[at + e][own.d]);
            load_two(g, &s->g[at + e][own.d]);
            put_split(&p->to.q[kda_element(at + e, own.d, keys)], CHUNK * keys,
                      q[0] * gpu_exp2(g[0] + before[0]), q[1] * gpu_exp2(g[1] + before[1]));
        }
    }
}
/* k becomes k exp G. Parts of kt pass through the places of q and then of g, so that whole lines
 * are written; the last part is left in the latter. */
GPU_FN void put_keys(const struct part *p, kda_chunk_shared *s, const uint32_t keys) {
    enum { PIECES = CHUNK * GPU_KDA_DIM_MOST / 16 / CHUNK_THREADS }; /* at most */
    const struct pieces own = pieces_of(keys);
    uint16_t *parts = (uint16_t *)(void *)&s->q[0][0], *last = (uint16_t *)(void *)&s->g[0][0];
    struct gpu_u4 least[PIECES][2];
    GPU_UNROLL
    for (uint32_t i = 0; i < own.n; i++) {
        const uint32_t at = own.own + i * own.step;
        float before[2], after[2], end[2], back[2][8];
        if (at >= CHUNK)
            continue;
        around(before, after, s, at / TILE, own.d);
        load_two(end, &s->g[at / TILE * TILE + TILE - 1][own.d]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            float k[2], g[2];
            load_two(k, &s->k[at + e][own.d]);
            load_two(g, &s->g[at + e][own.d]);
            GPU_UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                back[h][e] = k[h] * gpu_exp2(end[h] - g[h] + after[h]);
                k[h] *= gpu_exp2(g[h] + before[h]);
            }
            put_two(&s->k[at + e][own.d], k);
        }
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            struct gpu_u4 hi, lo;
            split8(back[h], &hi, &lo);
            least[i][h] = narrow_bf16x8(back[h]);
            gpu_store16(parts + kda_element(own.d + h, at, CHUNK), hi);
            gpu_store16(parts + CHUNK * keys + kda_element(own.d + h, at, CHUNK), lo);
        }
    }
    gpu_barrier(); /* g is free */
    GPU_UNROLL
    for (uint32_t i = 0; i < own.n; i++) {
        const uint32_t at = own.own + i * own.step;
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++)
            if (at < CHUNK)
                gpu_store16(last + kda_element(own.d + h, at, CHUNK), least[i][h]);
    }
    copy_out(p->to.kt, parts, 2 * CHUNK * keys);
}

/* Sum e of a lane: its column of a tile. With waves of 32 strips are of such columns that a lane
 * has four neighbours of two rows, in this order. */
GPU_FN uint32_t column_of_sum(uint32_t e) {
    return GPU_WAVE == 32 ? gpu_lane() % 4 * 4 + e / 4 * 2 + e % 2 : gpu_sum_col(e);
}
/* A tile of X times `what` (k exp G, or v) to its place, own shares added. */
GPU_FN void put_tile(const struct part *p, const kda_chunk_shared *s, const struct gpu_sums *sum,
                     const float (*what)[WIDE], bool values, uint32_t row, uint32_t col,
                     const uint32_t keys) {
    const uint32_t lower = CHUNK * keys;
    if (GPU_WAVE == 32) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e += 2) {
            const uint32_t i = row + gpu_sum_row(e), d = col + column_of_sum(e);
            float own[4];
            widen_f32x4(own, gpu_load16(&what[i][d]));
            GPU_UNROLL
            for (uint32_t c = 0; c < 4; c++)
                own[c] = sum->at[e + c / 2 * 4 + c % 2] + s->beta[i] * own[c];
            if (values)
                gpu_store16(p->to.u + i * keys + d, f32x4(own));
            else
                put_four(&p->to.w[kda_element(i, d, keys)], lower, own);
        }
    } else {
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            const uint32_t i = row + gpu_sum_row(e), d = col + column_of_sum(e);
            const float whole = sum->at[e] + s->beta[i] * what[i][d];
            uint16_t *to = &p->to.w[kda_element(i, d, keys)];
            if (values)
                p->to.u[i * keys + d] = whole;
            else
                split1(-whole, to, to + lower);
        }
    }
}
/* X times k exp G and times v (in q's place), a wave 16 columns of both. A token's own share, the
 * largest, is not rounded on its way. */
GPU_FN void put_corrections(const struct part *p, const kda_chunk_shared *s, const uint32_t keys) {
    GPU_ROLLED
    for (uint32_t col = gpu_wave() * TILE; col < keys; col += CHUNK_WAVES * TILE) {
        struct kda_strips k[CHUNK / 32], v[CHUNK / 32];
        GPU_UNROLL
        for (uint32_t m = 0; m < CHUNK; m += 32) {
            split_cols(&k[m / 32], &s->k[m][col], WIDE);
            split_cols(&v[m / 32], &s->q[m][col], WIDE);
        }
        GPU_ROLLED
        for (uint32_t row = 0; row < CHUNK; row += TILE) {
            struct gpu_sums w, u;
            clear_sums(&w);
            clear_sums(&u);
            GPU_UNROLL
            for (uint32_t m = 0; m < CHUNK; m += 32) {
                struct kda_strips x;
                if (m > row)
                    continue; /* the same for the whole wave */
                load_strips(&x, &s->parts[0][row][m], sizeof s->parts[0][0] / 2,
                            sizeof s->parts[0] / 2);
                add_product(&w, &x, &k[m / 32]);
                add_product(&u, &x, &v[m / 32]);
            }
            put_tile(p, s, &w, s->k, false, row, col, keys);
            put_tile(p, s, &u, s->q, true, row, col, keys);
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
    p.to = kda_work_of(a, p.number, p.head, keys); /* not before registers are free */
    pairs(&p, s, keys);
    gpu_barrier();
    put_queries(&p, s, keys);
    gpu_barrier();
    put_keys(&p, s, keys);
    load_rows(&p, 2, q, keys);
    gpu_barrier();
    copy_out(p.to.kt + 2 * CHUNK * keys, (const uint16_t *)(const void *)s->g, CHUNK * keys);
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
