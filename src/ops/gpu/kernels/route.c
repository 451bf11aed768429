/* route.c: which experts a row goes to. A block has a row, a thread every ROUTE_THREADS-th expert.
 * A score and its bias become a key whose order as an integer is theirs. Each wave finds its own
 * best, one after another: a lane has its keys in falling order, so that only the first of each is
 * looked at. What the waves found is put together by ranks: how many of all come before. Of equal
 * keys the lower index comes first, at every stage. */
#include "ops/gpu/dialect.h"
#include "ops/gpu/records.h"

enum { ROUTE_THREADS = 256, ROUTE_EACH = GPU_EXPERTS_MOST / ROUTE_THREADS };
/* Below the key of every expert. */
#define ROUTE_TAKEN 0u

struct routed {
    uint32_t key[ROUTE_EACH], at[ROUTE_EACH];
    float score[ROUTE_EACH];
};

GPU_FN uint32_t route_key(float f) {
    const uint32_t key = gpu_order_key(f);
    return key > ROUTE_TAKEN ? key : ROUTE_TAKEN + 1; /* a NaN is an expert as well */
}

/* Leaves the experts of the top_groups best groups alone: a group counts as the sum of its two best
 * scores. `choice` holds all scores; lane l of the wave ranks groups l, l + GPU_WAVE, ... */
GPU_FN void mask_groups(const struct gpu_route *a, float *choice) {
    enum { MOST = 4 }; /* groups a lane: 128 at least */
    const uint32_t size = a->experts / a->groups;
    uint32_t key[MOST];
    GPU_UNROLL
    for (uint32_t i = 0; i < MOST; i++) {
        const uint32_t g = gpu_lane() + i * GPU_WAVE;
        float first = -GPU_INFINITY, second = -GPU_INFINITY;
        for (uint32_t e = g * size; g < a->groups && e < (g + 1) * size; e++) {
            const float c = choice[e];
            second = c > first ? first : c > second ? c : second;
            first = c > first ? c : first;
        }
        key[i] = g < a->groups ? gpu_order_key(size > 1 ? first + second : first) : ROUTE_TAKEN;
    }
    for (uint32_t n = 0; n < a->top_groups; n++) {
        uint32_t best = 0, at = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < MOST; i++)
            if (key[i] > best) {
                best = key[i];
                at = gpu_lane() + i * GPU_WAVE;
            }
        const uint32_t most = gpu_max_u32(best);
        const uint32_t chosen = gpu_min_u32(best == most ? at : 0xFFFFFFFFu);
        GPU_UNROLL
        for (uint32_t i = 0; i < MOST; i++)
            if (gpu_lane() + i * GPU_WAVE == chosen)
                key[i] = ROUTE_TAKEN;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < MOST; i++) {
        const uint32_t g = gpu_lane() + i * GPU_WAVE;
        for (uint32_t e = g * size; g < a->groups && key[i] != ROUTE_TAKEN && e < (g + 1) * size;
             e++)
            choice[e] = -GPU_INFINITY;
    }
}

/* The largest over the block, and the sum. */
GPU_FN float route_most(float v, float *part) {
    v = gpu_wave_max(v);
    if (gpu_lane() == 0)
        part[gpu_wave()] = v;
    gpu_barrier();
    for (uint32_t w = 0; w < gpu_waves(); w++)
        v = part[w] > v ? part[w] : v;
    return v;
}

/* Neighbours that stand the wrong way round change places: equal ones never do. */
GPU_FN void sort_routed(struct routed *r) {
    GPU_UNROLL
    for (uint32_t round = 0; round < ROUTE_EACH; round++) {
        GPU_UNROLL
        for (uint32_t i = round % 2; i + 1 < ROUTE_EACH; i += 2) {
            const bool turn = r->key[i] < r->key[i + 1];
            const uint32_t key = r->key[i], at = r->at[i];
            const float score = r->score[i];
            r->key[i] = turn ? r->key[i + 1] : key;
            r->at[i] = turn ? r->at[i + 1] : at;
            r->score[i] = turn ? r->score[i + 1] : score;
            r->key[i + 1] = turn ? key : r->key[i + 1];
            r->at[i + 1] = turn ? at : r->at[i + 1];
            r->score[i + 1] = turn ? score : r->score[i + 1];
        }
    }
}

/* The n best of the wave's, falling. */
GPU_FN void best_of_wave(struct routed *r, struct gpu_route_shared *s, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t most = gpu_max_u32(r->key[0]);
        bool mine = r->key[0] == most;
        if (gpu_popcount(gpu_ballot(mine)) > 1) {
            const uint32_t lowest = gpu_min_u32(mine ? r->at[0] : 0xFFFFFFFFu);
            mine = mine && r->at[0] == lowest;
        }
        if (mine) {
            s->best[gpu_wave()][j] = (uint64_t)most << 32 | (0xFFFFFFFFu - r->at[0]);
            s->score[gpu_wave()][j] = r->score[0];
            GPU_UNROLL
            for (uint32_t i = 0; i + 1 < ROUTE_EACH; i++) {
                r->key[i] = r->key[i + 1];
                r->at[i] = r->at[i + 1];
                r->score[i] = r->score[i + 1];
            }
            r->key[ROUTE_EACH - 1] = ROUTE_TAKEN;
        }
    }
}

/* How many of all waves' best come before `me`, which is number j of wave w's. */
GPU_FN uint32_t rank_of(const struct gpu_route_shared *s, uint32_t n, uint32_t w, uint32_t j,
                        uint64_t me) {
    enum { WAVES = ROUTE_THREADS / GPU_WAVE };
    uint32_t before[WAVES], half = 1, rank = j;
    while (2 * half <= n)
        half *= 2;
    GPU_UNROLL
    for (uint32_t k = 0; k < WAVES; k++)
        before[k] = 0;
    for (; half > 0; half /= 2) {
        GPU_UNROLL
        for (uint32_t k = 0; k < WAVES; k++) {
            const uint32_t probe = before[k] + half - 1;
            if (probe < n && s->best[k][probe] > me)
                before[k] += half;
        }
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < WAVES; k++)
        rank += k == w ? 0 : before[k];
    return rank;
}

GPU_KERNEL(weir_route, gpu_route, ROUTE_THREADS, 4) {
    GPU_SHARED(struct gpu_route_shared, s);
    const uint32_t thread = gpu_thread(), row = gpu_block_x();
    const float *logits = a.logits + (uint64_t)row * a.stride;
    struct routed r;
    float bias[ROUTE_EACH];
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        r.at[i] = thread + i * ROUTE_THREADS;
        bias[i] = a.bias && r.at[i] < a.experts ? a.bias[r.at[i]] : 0;
    }
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        r.score[i] = r.at[i] < a.experts ? logits[r.at[i]] : -GPU_INFINITY;
    if (a.softmax) {
        float top = r.score[0], total = 0;
        GPU_UNROLL
        for (uint32_t i = 1; i < ROUTE_EACH; i++)
            top = r.score[i] > top ? r.score[i] : top;
        top = route_most(top, s->part[0]);
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++) {
            r.score[i] = gpu_exp(r.score[i] - top);
            total += r.at[i] < a.experts ? r.score[i] : 0;
        }
        const float part = gpu_rcp(gpu_block_sum(total, s->part[1]));
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            r.score[i] *= part;
    } else {
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            r.score[i] = gpu_sigmoid(r.score[i]);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const float biased = r.score[i] + bias[i];
        r.key[i] = r.at[i] < a.experts ? route_key(biased) : ROUTE_TAKEN;
        if (a.groups > 1 && r.at[i] < a.experts)
            s->choice[r.at[i]] = biased;
    }
    if (a.groups > 1 && a.groups > a.top_groups) {
        gpu_barrier();
        if (gpu_wave() == 0)
            mask_groups(&a, s->choice);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if (r.at[i] < a.experts)
                r.key[i] = route_key(s->choice[r.at[i]]);
    }
    sort_routed(&r);
    best_of_wave(&r, s, a.top_k);
    gpu_barrier();
    const uint32_t w = thread / GPU_ROUTE_MOST, j = thread % GPU_ROUTE_MOST;
    if (w < gpu_waves() && j < a.top_k && s->best[w][j] >> 32 != ROUTE_TAKEN) {
        const uint32_t rank = rank_of(s, a.top_k, w, j, s->best[w][j]);
        if (rank < a.top_k) {
            s->weight[rank] = s->score[w][j];
            a.ids[(uint64_t)row * a.top_k + rank] =
                (int32_t)(0xFFFFFFFFu - (uint32_t)s->best[w][j]);
        }
    }
    gpu_barrier();
    if (gpu_wave() > 0)
        return;
    const float mine = gpu_lane() < a.top_k ? s->weight[gpu_lane()] : 0;
    const float sum = gpu_wave_sum(mine);
    if (gpu_lane() < a.top_k)
        a.weights[(uint64_t)row * a.top_k + gpu_lane()] =
            (a.renormalize ? mine / (sum + 1e-20f) : mine) * a.scale;
}
