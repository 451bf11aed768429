/* experts_many.h: what kernels of routed experts for many rows have in common: which choices a
 * block has, what a lane holds of weights, and how results leave. */
#ifndef WEIR_OPS_GPU_KERNELS_EXPERTS_MANY_H
#define WEIR_OPS_GPU_KERNELS_EXPERTS_MANY_H

#include "ops/gpu/kernels/experts.h"

enum { MANY_TILE = GPU_WAVE == 32 ? GPU_MANY_TILE_32 : GPU_MANY_TILE_64 };

/* Which expert and which of its choices this block's tile is: tiles of expert e have numbers from
 * offsets[e] / MANY_TILE + e on, which is enough for all of them. Into s; false: none. */
GPU_FN bool many_tile(const struct gpu_experts *a, struct gpu_many_choices *s, const bool up,
                      const uint32_t threads) {
    const uint32_t tile = gpu_block_y();
    if (tile >= a->offsets[a->experts] / MANY_TILE + a->experts)
        return false;
    for (uint32_t e = gpu_thread(); e < a->experts; e += threads) {
        const uint32_t begin = a->offsets[e], end = a->offsets[e + 1];
        const uint32_t first = begin / MANY_TILE + e;
        if (tile < first || tile > end / MANY_TILE + e)
            continue; /* all but one of the threads' experts */
        const uint32_t base = begin + (tile - first) * MANY_TILE;
        s->expert = e;
        s->base = base;
        s->n = base >= end ? 0 : end - base < MANY_TILE ? end - base : MANY_TILE;
    }
    gpu_barrier();
    for (uint32_t c = gpu_thread(); c < s->n; c += threads) {
        const uint32_t slot = a->order[s->base + c];
        s->slot[c] = slot;
        s->from[c] = up ? slot / a->top_k : slot;
    }
    gpu_barrier();
    return s->n > 0;
}

/* What a lane has of its rows of W: codes of 32 columns and their scales, or 8 columns of BF16. */
struct many_weights {
    struct gpu_u4 codes[PAIR][GPU_STRIPS];
    uint32_t scale[PAIR][GPU_STRIPS];
};

/* n results of a choice, of rows of W from `row` on: 8, or 4 where they go to `each`. */
GPU_FN void many_put(const struct gpu_experts *a, uint32_t slot, uint32_t row, const float *sum,
                     const uint32_t n, const bool up) {
    const uint64_t at = (uint64_t)slot * a->out_stride + row;
    if (row + n <= a->rows) {
        if (up)
            gpu_store16(a->h + at, narrow_bf16x8(sum));
        else {
            GPU_UNROLL
            for (uint32_t e = 0; e < n; e += 4)
                gpu_store16(a->each + at + e, f32x4(sum + e));
        }
        return;
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < n; e++) {
        if (row + e >= a->rows)
            continue;
        if (up)
            a->h[at + e] = gpu_to_bf16(sum[e]);
        else
            a->each[at + e] = sum[e];
    }
}

#endif
