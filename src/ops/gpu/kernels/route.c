/* route.c: which experts a row goes to. A wave has a row, every lane every GPU_WAVE-th expert in
 * registers. The best is found by an order-keeping integer key: one maximum over the wave, and a
 * minimum over the indices of those that have it, so that of equals the lower index comes first. */
#include "ops/gpu/dialect.h"
#include "ops/gpu/records.h"

enum { ROUTE_THREADS = 64, ROUTE_EACH = GPU_EXPERTS_MOST / GPU_WAVE };
/* Below the key of every number and of minus infinity. */
#define ROUTE_TAKEN 0u

/* Leaves the experts of the top_groups best groups alone: a group counts as the sum of its two best
 * scores. `choice` holds all scores; lane l ranks groups l, l + GPU_WAVE, ... */
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

GPU_KERNEL(weir_route, gpu_route, ROUTE_THREADS, 4) {
    GPU_SHARED(struct gpu_route_shared, s);
    const uint32_t lane = gpu_lane(), row = gpu_block_x() * gpu_waves() + gpu_wave();
    /* A wave without a row goes along: barriers are everybody's. */
    const bool there = row < a.rows;
    const float *logits = a.logits + (uint64_t)(there ? row : 0) * a.stride;
    float score[ROUTE_EACH], *choice = s->choice[gpu_wave()];
    uint32_t key[ROUTE_EACH];
    gpu_wait_previous();
    gpu_launch_next();
    float top = -GPU_INFINITY, total = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const uint32_t e = lane + i * GPU_WAVE;
        score[i] = e < a.experts ? logits[e] : -GPU_INFINITY;
        top = score[i] > top ? score[i] : top;
    }
    if (a.softmax)
        top = gpu_wave_max(top);
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        score[i] = a.softmax ? gpu_exp(score[i] - top) : gpu_sigmoid(score[i]);
        total += lane + i * GPU_WAVE < a.experts ? score[i] : 0;
    }
    const float part = a.softmax ? gpu_rcp(gpu_wave_sum(total)) : 1;
    GPU_UNROLL
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const uint32_t e = lane + i * GPU_WAVE;
        key[i] = ROUTE_TAKEN;
        if (e >= a.experts)
            continue;
        score[i] *= part;
        const float biased = score[i] + (a.bias ? a.bias[e] : 0);
        key[i] = gpu_order_key(biased);
        choice[e] = biased;
    }
    if (a.groups > 1 && a.groups > a.top_groups) {
        gpu_barrier();
        mask_groups(&a, choice);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if (lane + i * GPU_WAVE < a.experts)
                key[i] = gpu_order_key(choice[lane + i * GPU_WAVE]);
    }
    float sum = 0, mine = 0; /* lane j keeps the j-th weight */
    int32_t id = 0;
    for (uint32_t j = 0; j < a.top_k; j++) {
        uint32_t best = 0, at = 0;
        float its = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if (key[i] > best) {
                best = key[i];
                at = lane + i * GPU_WAVE;
                its = score[i];
            }
        const uint32_t most = gpu_max_u32(best);
        const uint32_t chosen = gpu_min_u32(best == most ? at : 0xFFFFFFFFu);
        const float weight = gpu_shuffle(its, chosen % GPU_WAVE);
        GPU_UNROLL
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if (lane + i * GPU_WAVE == chosen)
                key[i] = ROUTE_TAKEN;
        sum += weight;
        if (lane == j) {
            mine = weight;
            id = (int32_t)chosen;
        }
    }
    if (there && lane < a.top_k) {
        a.ids[(uint64_t)row * a.top_k + lane] = id;
        a.weights[(uint64_t)row * a.top_k + lane] =
            (a.renormalize ? mine / (sum + 1e-20f) : mine) * a.scale;
    }
}
