/* sample.c: the next token of each row of logits, as sample_draw (ops/sample.c) chooses it. A
 * cluster has a row, each of its blocks every so-many-th piece of 256 logits, which stay in shared
 * memory where there is room. No vocabulary is sorted: a bound is found below which no token can be
 * chosen, the few above it come to the first block, and it sorts them.
 * Invariant that bites: a token is chosen by the order in which sample.c walks through what is left
 * over: by groups that its search for the border forms, ids rising within each. */
#include "ops/gpu/kernels/row_sums.h"
#include "ops/gpu/records.h"

enum { SAMPLE_THREADS = 1024, QUADS = GPU_SAMPLE_BLOCK / 4 };

/* ------------------------------------------------------------------------------- helpers */

GPU_FN double f64_from(double v, uint32_t lane) {
    union {
        double f;
        uint32_t u[2];
    } x;
    x.f = v;
    x.u[0] = gpu_shuffle_u32(x.u[0], lane);
    x.u[1] = gpu_shuffle_u32(x.u[1], lane);
    return x.f;
}

/* What the threads before this one have together; *total: all of them. `sums`: a number for each
 * wave. */
GPU_FN double sum_before(double v, double *sums, double *total) {
    const uint32_t lane = gpu_lane();
    double sum = v, before = 0;
    for (uint32_t d = 1; d < GPU_WAVE; d *= 2) {
        const double other = f64_from(sum, lane >= d ? lane - d : lane);
        sum += lane >= d ? other : 0;
    }
    if (lane == GPU_WAVE - 1)
        sums[gpu_wave()] = sum;
    gpu_barrier();
    *total = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++) {
        before = w == gpu_wave() ? *total : before;
        *total += sums[w];
    }
    gpu_barrier();
    const double up_to = f64_from(sum, lane ? lane - 1 : 0);
    return before + (lane ? up_to : 0);
}

GPU_FN uint32_t most_of_block(uint32_t v, uint32_t *most) {
    v = gpu_max_u32(v);
    if (gpu_lane() == 0)
        most[gpu_wave()] = v;
    gpu_barrier();
    for (uint32_t w = 0; w < gpu_waves(); w++)
        v = most[w] > v ? most[w] : v;
    gpu_barrier();
    return v;
}

/* -0 and 0 are equal. */
GPU_FN uint32_t key_of(float x) {
    return gpu_order_key(gpu_add(x, 0.0f));
}
#define KEY_NEVER 0x007FFFFFu /* of minus infinity */

/* exp_negative of ops/sample.c, to the bit. */
GPU_FN float weight_of(float inverse, float x, float peak) {
    x = gpu_mul(gpu_add(x, -peak), inverse);
    if (!(x > -87.0f))
        return 0;
    float k = gpu_add(gpu_mul(x, 1.44269504f), 12582912.0f);
    const float scale = gpu_as_f32((gpu_as_u32(k) + 127) << 23);
    k = gpu_add(k, -12582912.0f);
    float r = gpu_add(x, -gpu_mul(k, 0.693359375f));
    r = gpu_add(r, gpu_mul(k, 2.12194440e-4f));
    float p = gpu_add(gpu_mul(r, 1.9875691500e-4f), 1.3981999507e-3f);
    p = gpu_add(gpu_mul(p, r), 8.3334519073e-3f);
    p = gpu_add(gpu_mul(p, r), 4.1665795894e-2f);
    p = gpu_add(gpu_mul(p, r), 1.6666665459e-1f);
    p = gpu_add(gpu_mul(p, r), 5.0000001201e-1f);
    p = gpu_add(gpu_add(gpu_mul(gpu_mul(p, r), r), r), 1.0f);
    return gpu_mul(p, scale);
}

/* A key that no logit with at least this weight is below. */
GPU_FN uint32_t key_of_weight(const struct gpu_draw *d, float peak, float weight) {
    const float down = gpu_log2(weight) * 0.6931472f / d->inverse;
    const float size = peak > 0 ? peak : -peak;
    return key_of(peak + down - (size - down) * 1e-4f - 1e-30f);
}

/* ------------------------------------------------------------------------------- all logits */

struct shard {
    const float *logits; /* of the row */
    float *kept;         /* NULL: they are read again */
    uint32_t vocab, quads, members, rank;
};

/* Of the row's logits, the index of the first of quad q of this block's share. */
GPU_FN uint32_t index_of(const struct shard *h, uint32_t q) {
    return (q / QUADS * h->members + h->rank) * GPU_SAMPLE_BLOCK + q % QUADS * 4;
}
GPU_FN float *kept_at(const struct shard *h, uint32_t q) {
    return h->kept + q / QUADS * GPU_SAMPLE_ROW + q % QUADS * 4;
}
/* Four logits of the share, minus infinity where there are none. */
GPU_FN void read_quad(const struct shard *h, uint32_t q, float *x) {
    const uint32_t i = q < h->quads ? index_of(h, q) : h->vocab;
    if (i + 4 <= h->vocab) {
        widen_f32x4(x, gpu_load16(h->logits + i));
        return;
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++)
        x[e] = i + e < h->vocab ? h->logits[i + e] : -GPU_INFINITY;
}
GPU_FN void quad_of(const struct shard *h, uint32_t q, float *x) {
    if (h->kept && q < h->quads)
        widen_f32x4(x, gpu_load16(kept_at(h, q)));
    else
        read_quad(h, q, x);
}

/* Those of a thread from quad `from` on, whose reads do not wait for one another. */
enum { AHEAD = 4 };
GPU_FN void quads_from(const struct shard *h, uint32_t from, float (*x)[4]) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    GPU_UNROLL
    for (uint32_t i = 0; i < AHEAD; i++)
        quad_of(h, from + i * threads + gpu_thread(), x[i]);
}

/* How many of a wave's lanes show their best logit to all members. */
GPU_FN uint32_t shown(const struct shard *h) {
    const uint32_t n = GPU_SAMPLE_SEEN / (h->members * gpu_waves());
    return n < 16 ? n : 16;
}

/* Copies the share to where it is kept: each thread the quads that it looks at. */
GPU_FN void keep(const struct shard *h) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    for (uint32_t q = gpu_thread(); q < h->quads; q += threads) {
        const uint32_t i = index_of(h, q);
        if (i + 4 <= h->vocab) {
            gpu_copy16(kept_at(h, q), h->logits + i, true);
        } else {
            float x[4];
            read_quad(h, q, x);
            gpu_store16(kept_at(h, q), f32x4(x));
        }
    }
    gpu_copy_commit();
    gpu_copy_wait(0);
}

/* Reads the share, keeps it if there is room, and shows all members the best of each wave, and how
 * many tokens may be chosen. */
GPU_FN void look(const struct shard *h, struct gpu_sample_shared *s) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    uint32_t best = 0, at = 0, there = 0;
    bool finite = true;
    if (h->kept)
        keep(h);
    for (uint32_t from = 0; from < h->quads; from += AHEAD * threads) {
        float x[AHEAD][4];
        quads_from(h, from, x);
        GPU_UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint32_t q = from + i * threads + gpu_thread();
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t key = key_of(x[i][e]);
                finite = finite && x[i][e] < GPU_INFINITY; /* false for NaN */
                there += key > KEY_NEVER ? 1 : 0;
                at = key > best ? index_of(h, q) + e : at;
                best = key > best ? key : best;
            }
        }
    }
    const uint32_t n = shown(h), wave = member_wave();
    const float total = gpu_wave_sum((float)there);
    const bool all_finite = gpu_ballot(!finite) == 0;
    members_there();
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t most = gpu_max_u32(best);
        const uint32_t lowest = gpu_min_u32(best == most ? at : 0xFFFFFFFFu);
        if (gpu_lane() < h->members) {
            struct gpu_sample_shared *to = (struct gpu_sample_shared *)gpu_shared_of(s, gpu_lane());
            to->seen[wave * n + j] = most;
            if (j == 0) {
                to->at[wave] = lowest;
                to->count[wave] = all_finite ? total : -1;
            }
        }
        best = best == most && at == lowest ? 0 : best;
    }
}

/* The best token of the row, how many may be chosen; false: one is no number. */
GPU_FN bool best_of_row(const struct shard *h, const struct gpu_sample_shared *s, uint32_t *key,
                        uint32_t *id, float *there) {
    const uint32_t n = shown(h), waves = h->members * gpu_waves();
    uint32_t best = 0, at = 0xFFFFFFFFu;
    float count = 0;
    bool finite = true;
    for (uint32_t w = gpu_lane(); w < waves; w += GPU_WAVE) {
        const uint32_t k = s->seen[w * n];
        finite = finite && s->count[w] >= 0;
        count += s->count[w];
        at = k > best || (k == best && s->at[w] < at) ? s->at[w] : at;
        best = k > best ? k : best;
    }
    *key = gpu_max_u32(best);
    *id = gpu_min_u32(best == *key ? at : 0xFFFFFFFFu);
    *there = gpu_wave_sum(count);
    return gpu_ballot(!finite) == 0;
}

/* A key that at least k of the logits reach: of those that all see. By one wave. */
GPU_FN uint32_t bound_of(const struct shard *h, const struct gpu_sample_shared *s, uint32_t k) {
    enum { EACH = GPU_SAMPLE_SEEN / GPU_WAVE, BITS = 20 };
    const uint32_t n = shown(h) * h->members * gpu_waves();
    uint32_t key[EACH], bound = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = i * GPU_WAVE + gpu_lane();
        key[i] = at < n ? s->seen[at] : 0;
    }
    for (uint32_t bit = 0x80000000u; bit >= 1u << (32 - BITS); bit >>= 1) {
        uint32_t count = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++)
            count += gpu_popcount(gpu_ballot(key[i] >= (bound | bit)));
        bound |= count >= k ? bit : 0;
        if (count == k)
            break;
    }
    return bound;
}

/* A token's weight, if it is one of at least 2^-GPU_SAMPLE_LEVELS, to the levels it reaches: half
 * the best one's, a quarter, ... */
GPU_FN void add_to_levels(float *level, float w) {
    if (gpu_as_u32(w) < (127u - GPU_SAMPLE_LEVELS) << 23)
        return;
    GPU_UNROLL
    for (uint32_t l = 0; l < GPU_SAMPLE_LEVELS; l++)
        level[l] += gpu_as_u32(w) >= (126u - l) << 23 ? w : 0;
}

/* Sums of weights as ops/sample.c forms them: of each piece of 256 four f32 sums, every fourth
 * token each. And of levels. Both to all members. */
GPU_FN void sum_weights(const struct shard *h, struct gpu_sample_shared *s,
                        const struct gpu_draw *d, float peak) {
    const uint32_t threads = gpu_waves() * GPU_WAVE, pieces = h->quads / QUADS;
    const bool levels = d->top_p < 1.0f;
    const float inverse = d->inverse;
    float level[GPU_SAMPLE_LEVELS];
    GPU_UNROLL
    for (uint32_t l = 0; l < GPU_SAMPLE_LEVELS; l++)
        level[l] = 0;
    if (h->kept) {
        for (uint32_t c = gpu_thread(); c < 4 * pieces; c += threads) {
            const float *x = h->kept + c / 4 * GPU_SAMPLE_ROW + c % 4;
            float sum = 0;
            for (uint32_t k = 0; k < QUADS; k++) {
                const float w = weight_of(inverse, x[4 * k], peak);
                sum = gpu_add(sum, w);
                if (levels)
                    add_to_levels(level, w);
            }
            for (uint32_t m = 0; m < h->members; m++)
                ((struct gpu_sample_shared *)gpu_shared_of(s, m))
                    ->part[c / 4 * h->members + h->rank][c % 4] = sum;
        }
    } else {
        for (uint32_t piece = gpu_thread(); piece < pieces; piece += threads) {
            float sum[4] = {0, 0, 0, 0};
            for (uint32_t k = 0; k < QUADS; k += AHEAD) {
                float x[AHEAD][4];
                GPU_UNROLL
                for (uint32_t i = 0; i < AHEAD; i++)
                    read_quad(h, piece * QUADS + k + i, x[i]);
                GPU_UNROLL
                for (uint32_t i = 0; i < AHEAD; i++) {
                    GPU_UNROLL
                    for (uint32_t e = 0; e < 4; e++) {
                        const float w = weight_of(inverse, x[i][e], peak);
                        sum[e] = gpu_add(sum[e], w);
                        if (levels)
                            add_to_levels(level, w);
                    }
                }
            }
            for (uint32_t m = 0; m < h->members; m++) {
                struct gpu_sample_shared *to = (struct gpu_sample_shared *)gpu_shared_of(s, m);
                GPU_UNROLL
                for (uint32_t e = 0; e < 4; e++)
                    to->part[piece * h->members + h->rank][e] = sum[e];
            }
        }
    }
    if (!levels)
        return;
    const float mine = gpu_wave_sum_sixteen(level);
    if (gpu_lane() < GPU_SAMPLE_LEVELS)
        s->wave_level[gpu_wave()][gpu_lane()] = mine;
    gpu_barrier();
    if (gpu_thread() >= GPU_SAMPLE_LEVELS)
        return;
    double total = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++)
        total += (double)s->wave_level[w][gpu_thread()];
    for (uint32_t m = 0; m < h->members; m++)
        ((struct gpu_sample_shared *)gpu_shared_of(s, m))->level[h->rank][gpu_thread()] = total;
}

GPU_FN double block_sum(const struct gpu_sample_shared *s, uint32_t block) {
    double sum = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        sum += (double)s->part[block][j];
    return sum;
}

/* Tokens of this block's that may be chosen, to the first member's list: those of at least this key
 * and this weight. */
GPU_FN void collect(const struct shard *h, struct gpu_sample_shared *s, const struct gpu_draw *d,
                    float peak, uint32_t key, float weight) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    struct gpu_sample_shared *to = (struct gpu_sample_shared *)gpu_shared_of(s, 0);
    const float inverse = d->inverse;
    if (weight > 0)
        key = key_of_weight(d, peak, weight);
    key = key > KEY_NEVER ? key : KEY_NEVER + 1;
    for (uint32_t from = 0; from < h->quads; from += AHEAD * threads) {
        float x[AHEAD][4];
        quads_from(h, from, x);
        GPU_UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint32_t q = from + i * threads + gpu_thread();
            bool some = false;
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                some = some || key_of(x[i][e]) >= key;
            if (!gpu_ballot(some))
                continue; /* the whole wave */
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t mine = key_of(x[i][e]);
                const bool take =
                    mine >= key && (weight <= 0 || weight_of(inverse, x[i][e], peak) >= weight);
                const gpu_mask all = gpu_ballot(take);
                if (!all)
                    continue;
                uint32_t base = 0;
                if (gpu_lane() == 0)
                    base = gpu_atomic_add(&to->n, gpu_popcount(all));
                base = gpu_shuffle_u32(base, 0);
                base += gpu_popcount(all & (((gpu_mask)1 << gpu_lane()) - 1));
                if (take && base < GPU_SAMPLE_MOST)
                    to->list[base] = (uint64_t)mine << 32 | (0xFFFFFFFFu - (index_of(h, q) + e));
            }
        }
    }
}

/* ------------------------------------------------------------------------------- the choice */

/* Sorts `list` by falling number into `z->sorted`: all numbers differ. A few lanes count for each
 * how many come before it. */
GPU_FN void sort_list(const uint64_t *list, struct gpu_sample_sort *z, uint32_t n) {
    const uint32_t threads = gpu_waves() * GPU_WAVE;
    uint32_t lanes = 1;
    while (lanes < 16 && 2 * lanes * n <= threads)
        lanes *= 2;
    const uint32_t sub = gpu_thread() % lanes;
    for (uint32_t from = 0; from < n; from += threads / lanes) {
        const uint32_t at = from + gpu_thread() / lanes;
        const uint64_t mine = list[at < n ? at : 0];
        uint32_t before = 0;
        for (uint32_t i = sub; i < n; i += lanes)
            before += list[i] > mine ? 1 : 0;
        for (uint32_t m = lanes / 2; m > 0; m /= 2)
            before += gpu_shuffle_xor_u32(before, m);
        if (sub == 0 && at < n)
            z->sorted[before] = mine;
    }
    gpu_barrier();
}

/* What the lanes before this one have together; *total: all of them. */
GPU_FN double lanes_before(double v, double *total) {
    double sum = v;
    for (uint32_t d = 1; d < GPU_WAVE; d *= 2) {
        const double other = f64_from(sum, gpu_lane() >= d ? gpu_lane() - d : gpu_lane());
        sum += gpu_lane() >= d ? other : 0;
    }
    *total = f64_from(sum, GPU_WAVE - 1);
    return sum - v;
}

/* Where a token stands in the order of keep_best (ops/sample.c), whose border is the key `border`.
 */
GPU_FN uint32_t group_of(uint32_t key, uint32_t border) {
    return key >> 21 != border >> 21 ? 0 : key >> 10 != border >> 10 ? 1 : key != border ? 2 : 3;
}

/* By the first wave, of n tokens in falling order: which are kept, and in which order they are
 * walked through, into `list`. Returns the sum of their weights. */
GPU_FN double keep_tokens(const struct gpu_draw *d, const struct gpu_sample_sort *z, uint64_t *list,
                          uint32_t n, bool cut, float peak, double all) {
    const float inverse = d->inverse;
    const uint32_t each = (n + GPU_WAVE - 1) / GPU_WAVE;
    const uint32_t first = gpu_lane() * each < n ? gpu_lane() * each : n;
    const uint32_t end = first + each < n ? first + each : n;
    double mine = 0, sum, kept;
    for (uint32_t i = first; i < end; i++) {
        const float w =
            weight_of(inverse, gpu_from_order_key((uint32_t)(z->sorted[i] >> 32)), peak);
        list[i] = gpu_as_u32(w);
        mine += w >= d->min_p ? (double)w : 0;
    }
    double before = lanes_before(mine, &sum);
    double limit = (double)d->top_p * (d->top_k || d->min_p > 0 ? sum : all);
    limit = limit > 0 ? limit : 0x1p-1022;
    uint32_t last = 0;
    mine = 0;
    for (uint32_t i = first; i < end; i++) {
        const float w = gpu_as_f32((uint32_t)list[i]);
        if (!(w >= d->min_p))
            continue;
        if (d->top_p >= 1.0f || before < limit) {
            last = i + 1;
            mine += (double)w;
        }
        before += (double)w;
    }
    last = gpu_max_u32(last);
    lanes_before(mine, &kept);
    const uint32_t border[2] = {last ? (uint32_t)(z->sorted[last - 1] >> 32) : 0,
                                (uint32_t)(z->sorted[n - 1] >> 32)};
    for (uint32_t i = first; i < end; i++) {
        const uint32_t key = (uint32_t)(z->sorted[i] >> 32), weight = (uint32_t)list[i];
        uint32_t order = 0xFFFFFFFFu - (uint32_t)z->sorted[i];
        order |= d->top_p < 1.0f ? group_of(key, border[0]) << 30 : 0;
        order |= cut ? group_of(key, border[1]) << 28 : 0;
        /* What is not kept has no weight and goes last; numbers must differ all the same. */
        const bool keep = i < last && gpu_as_f32(weight) >= d->min_p;
        list[i] = keep ? (uint64_t)~order << 32 | weight : i;
    }
    return kept;
}

/* By the first wave: the token under `target`, else the last that weighs anything. */
GPU_FN uint32_t walk(const struct gpu_sample_sort *z, uint32_t n, double target) {
    const uint32_t each = (n + GPU_WAVE - 1) / GPU_WAVE;
    const uint32_t first = gpu_lane() * each < n ? gpu_lane() * each : n;
    const uint32_t end = first + each < n ? first + each : n;
    double mine = 0, sum;
    for (uint32_t i = first; i < end; i++)
        mine += z->sorted[i] >> 32 ? (double)gpu_as_f32((uint32_t)z->sorted[i]) : 0;
    double before = lanes_before(mine, &sum);
    uint32_t found = 0, fallback = 0;
    for (uint32_t i = first; i < end; i++) {
        const float w = gpu_as_f32((uint32_t)z->sorted[i]);
        if (!(z->sorted[i] >> 32) || w == 0)
            continue;
        before += (double)w;
        fallback = i + 1;
        if (!found && before > target)
            found = n - i;
    }
    found = gpu_max_u32(found);
    fallback = gpu_max_u32(fallback);
    const uint32_t at = found ? n - found : fallback ? fallback - 1 : 0;
    return ~(uint32_t)(z->sorted[at] >> 32) & 0x0FFFFFFFu;
}

/* One of the n tokens of the list; thread 0 gets it. `all`: the sum of all tokens' weights, where
 * top_p is of it. */
GPU_FN uint32_t choose(const struct gpu_draw *d, struct gpu_sample_shared *s,
                       struct gpu_sample_sort *z, uint32_t n, float there, float peak, double all) {
    const bool cut = d->top_k && there > (float)d->top_k;
    double kept = 0;
    sort_list(s->list, z, n);
    n = cut && n > d->top_k ? d->top_k : n;
    if (gpu_wave() == 0)
        kept = keep_tokens(d, z, s->list, n, cut, peak, all);
    gpu_barrier();
    sort_list(s->list, z, n);
    return gpu_wave() == 0 ? walk(z, n, d->point * kept) : 0;
}

/* Of all tokens: the piece of 256 by its sums, then the token, by the first wave. */
GPU_FN uint32_t choose_any(const struct gpu_draw *d, const struct shard *h,
                           struct gpu_sample_shared *s, float peak, uint32_t blocks) {
    enum { EACH = GPU_SAMPLE_BLOCK / GPU_WAVE };
    const float inverse = d->inverse;
    const uint32_t threads = gpu_waves() * GPU_WAVE, each = (blocks + threads - 1) / threads;
    const uint32_t first = gpu_thread() * each < blocks ? gpu_thread() * each : blocks;
    const uint32_t end = first + each < blocks ? first + each : blocks;
    double mine = 0, total;
    for (uint32_t b = first; b < end; b++)
        mine += block_sum(s, b);
    double before = sum_before(mine, s->sum[0], &total), target = d->point * total;
    uint32_t own = 0, fallback = 0;
    double at_own = 0;
    for (uint32_t b = first; b < end; b++) {
        const double sum = block_sum(s, b);
        fallback = sum > 0 ? b + 1 : fallback;
        if (!own && sum > 0 && before + sum > target) {
            own = blocks - b;
            at_own = before;
        }
        before += sum;
    }
    const uint32_t found = most_of_block(own, s->most);
    fallback = most_of_block(fallback, s->most);
    if (found && own == found)
        s->sum[1][0] = at_own;
    gpu_barrier();
    uint32_t chosen = 0;
    if (gpu_wave() > 0)
        return 0;
    uint32_t b = found ? blocks - found : fallback - 1;
    double sum = found ? s->sum[1][0] : 0;
    target = found ? target : 1e300; /* rounding carried it past the end: the last there is */
    for (uint32_t here = 0; b < blocks && !here; b++) {
        const uint32_t i0 = b * GPU_SAMPLE_BLOCK + gpu_lane() * EACH;
        float w[EACH];
        double of_lane = 0;
        for (uint32_t e = 0; e < EACH; e++) {
            w[e] = i0 + e < h->vocab ? weight_of(inverse, h->logits[i0 + e], peak) : 0;
            of_lane += (double)w[e];
        }
        double up_to = of_lane;
        for (uint32_t k = 1; k < GPU_WAVE; k *= 2) {
            const double other = f64_from(up_to, gpu_lane() >= k ? gpu_lane() - k : gpu_lane());
            up_to += gpu_lane() >= k ? other : 0;
        }
        double at = sum + (up_to - of_lane);
        uint32_t beyond = 0, last = 0; /* ids, one more; the first turned round */
        for (uint32_t e = 0; e < EACH; e++) {
            at += (double)w[e];
            last = w[e] > 0 ? i0 + e + 1 : last;
            beyond = !beyond && w[e] > 0 && at > target ? ~(i0 + e) : beyond;
        }
        here = gpu_max_u32(beyond);
        last = gpu_max_u32(last);
        chosen = here ? ~here : last ? last - 1 : chosen;
        sum += f64_from(up_to, GPU_WAVE - 1);
    }
    return chosen;
}

GPU_FN void answer(const struct gpu_sample *a, const struct shard *h, uint32_t row, int32_t id,
                   uint32_t state) {
    if (h->rank == 0 && gpu_thread() == 0) {
        a->drawn[row].id = id;
        a->drawn[row].state = state;
    }
}

GPU_KERNEL(weir_sample, gpu_sample, SAMPLE_THREADS, 1) {
    GPU_SHARED(struct gpu_sample_shared, s);
    const uint32_t members = gpu_cluster_blocks(), row = gpu_block_x() / members;
    const uint32_t blocks = (a.vocab + GPU_SAMPLE_BLOCK - 1) / GPU_SAMPLE_BLOCK;
    float *room = (float *)(void *)(s + 1);
    struct gpu_sample_sort *z = (struct gpu_sample_sort *)(void *)room;
    struct shard h;
    h.logits = a.logits + (uint64_t)row * a.stride;
    h.kept = a.kept ? room : 0;
    h.vocab = a.vocab;
    h.members = members;
    h.rank = gpu_cluster_rank();
    h.quads = (blocks + members - 1 - h.rank) / members * QUADS;
    gpu_wait_previous();
    gpu_launch_next();
    const struct gpu_draw *d = &a.draws[row];
    if (d->how == GPU_DRAW_NOT)
        return; /* the whole cluster */
    members_begin();
    if (gpu_thread() == 0)
        s->n = 0;
    look(&h, s);
    gpu_cluster_barrier();
    uint32_t key, id;
    float there;
    const bool finite = best_of_row(&h, s, &key, &id, &there);
    if (!finite || key <= KEY_NEVER || d->how == GPU_DRAW_BEST) {
        answer(&a, &h, row, finite && key > KEY_NEVER ? (int32_t)id : -1,
               !finite            ? GPU_DRAWN_NOT_FINITE
               : key <= KEY_NEVER ? GPU_DRAWN_NOTHING_LEFT
                                  : GPU_DRAWN);
        return;
    }
    const float peak = gpu_from_order_key(key);
    const bool some = d->top_k || d->min_p > 0;
    double all = 0, mine = 0;
    uint32_t bound = 0;
    float least = d->top_k ? 0 : d->min_p; /* weight */
    if (d->top_k) {
        if (gpu_wave() == 0) {
            bound = bound_of(&h, s, d->top_k);
            if (gpu_lane() == 0)
                s->bound = bound;
        }
        gpu_barrier();
        bound = s->bound;
    }
    if (!some) {
        sum_weights(&h, s, d, peak);
        gpu_cluster_barrier();
        if (d->top_p >= 1.0f) {
            if (h.rank == 0)
                id = choose_any(d, &h, s, peak, blocks);
            answer(&a, &h, row, (int32_t)id, GPU_DRAWN);
            return;
        }
        for (uint32_t b = gpu_thread(); b < blocks; b += gpu_waves() * GPU_WAVE)
            mine += block_sum(s, b);
        sum_before(mine, s->sum[0], &all);
        /* The level at which there is enough, with what f32 sums may be off. */
        uint32_t level = 0;
        for (; level < GPU_SAMPLE_LEVELS; level++) {
            double sum = 0;
            for (uint32_t m = 0; m < members; m++)
                sum += s->level[m][level];
            if (sum >= (double)d->top_p * all * (1 + 1e-5))
                break;
        }
        least = gpu_as_f32((126u - level) << 23);
        if (level == GPU_SAMPLE_LEVELS) { /* all blocks see the same */
            answer(&a, &h, row, -1, GPU_DRAWN_UNDECIDED);
            return;
        }
    }
    collect(&h, s, d, peak, bound, least);
    gpu_cluster_barrier();
    if (h.rank > 0)
        return;
    const uint32_t n = s->n;
    if (n > GPU_SAMPLE_MOST) {
        answer(&a, &h, row, -1, GPU_DRAWN_UNDECIDED);
        return;
    }
    id = choose(d, s, z, n, there, peak, all);
    answer(&a, &h, row, (int32_t)id, GPU_DRAWN);
}
