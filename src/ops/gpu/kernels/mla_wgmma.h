/* mla_wgmma.h: what kernels of absorbed latent attention by products of warpgroups have in common.
 * What mla.h does, with positions as the 64 rows of a product and heads as its columns: so few
 * heads cost what they are, and a block can have many, which read the history once. A tile of 64
 * positions is a page. Each of two warpgroups has half of the values of a score, and half of the
 * latents of a sum. Invariant that bites: whoever writes shared memory that a product reads says
 * gpu_wg_seen() before the barrier. */
#ifndef WEIR_OPS_GPU_KERNELS_MLA_WGMMA_H
#define WEIR_OPS_GPU_KERNELS_MLA_WGMMA_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum {
    WG_THREADS = 256,
    LATENT = GPU_LATENT_MOST,
    WIDTH = GPU_LATENT_MOST + GPU_EXTRA_MOST,
    LATENT_PANELS = LATENT / 64,
    PARTS = LATENT_PANELS / 2, /* panels of a warpgroup's sums */
    PAGE = 64,
    SCORE_ROW = 64 + 4,
    HEADS_MOST = 48,
};

/* Scores and weights in shared memory, whatever the number of heads: weights as one panel a head,
 * or four, each times the scale of a quarter of the latents ([4][64]). */
struct wg_place {
    uint16_t *p;
    float *s, *factor, *scale;
};

/* Which positions a block has; begin >= end: none. */
struct wg_share {
    struct gpu_mla_seq seq;
    uint32_t head0, begin, end;
};
GPU_FN struct wg_share wg_share_of(const struct gpu_mla_decode *a, const uint32_t heads) {
    const uint32_t tiles = (a->heads + heads - 1) / heads;
    struct wg_share m;
    m.seq = a->seqs[gpu_block_y() / tiles];
    m.head0 = gpu_block_y() % tiles * heads;
    m.begin = gpu_block_x() * m.seq.share;
    m.end = m.begin + m.seq.share < m.seq.positions ? m.begin + m.seq.share : m.seq.positions;
    return m;
}

/* A warpgroup's scores into `s`; `add`: to what is there. */
GPU_FN void wg_leave_scores(float *s, const float *sum, const uint32_t heads, const bool add) {
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 2; i++) {
        float *at = s + gpu_wg_col(i) * SCORE_ROW + gpu_wg_row(i);
        *at = add ? *at + sum[i] : sum[i];
    }
}

/* Weights of the tile's positions from their scores, `scores` sums each; 16 lanes have a head, and
 * every 16th further. `top` and `total`: of those heads so far. */
GPU_FN void wg_weights(const struct gpu_mla_decode *a, const struct wg_place *w, uint32_t n,
                       float *top, float *total, const uint32_t heads, const uint32_t scores,
                       const uint32_t panels) {
    const uint32_t lane = gpu_thread() % 16;
    GPU_UNROLL
    for (uint32_t t = 0; t < heads / 16; t++) {
        const uint32_t head = t * 16 + gpu_thread() / 16;
        float score[4], most = top[t], sum = 0;
        widen_f32x4(score, gpu_load16(w->s + head * SCORE_ROW + lane * 4));
        if (scores > 1) {
            float more[4];
            widen_f32x4(more, gpu_load16(w->s + (heads + head) * SCORE_ROW + lane * 4));
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                score[i] += more[i];
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            score[i] = lane * 4 + i < n ? score[i] * (a->scale * 1.44269504f) : -GPU_INFINITY;
            most = score[i] > most ? score[i] : most;
        }
        GPU_UNROLL
        for (uint32_t m = 8; m > 0; m /= 2) {
            const float other = gpu_shuffle_xor(most, m);
            most = other > most ? other : most;
        }
        uint32_t *to = (uint32_t *)(w->p + gpu_panel(head, lane / 2) + lane % 2 * 4);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            score[i] = gpu_exp2(score[i] - most);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i += 2) {
            const uint32_t pair = gpu_bf16_pair(score[i], score[i + 1]);
            if (panels > 1) {
                sum += score[i] + score[i + 1];
                continue;
            }
            to[i / 2] = pair;
            sum += gpu_bf16_lo(pair) + gpu_bf16_hi(pair); /* as it will be multiplied */
        }
        GPU_UNROLL
        for (uint32_t g = 0; panels > 1 && g < panels; g++) {
            float scale[4];
            widen_f32x4(scale, gpu_load16(w->scale + g * 64 + lane * 4));
            to[g * heads * 32] = gpu_bf16_pair(score[0] * scale[0], score[1] * scale[1]);
            to[g * heads * 32 + 1] = gpu_bf16_pair(score[2] * scale[2], score[3] * scale[3]);
        }
        const float factor = gpu_exp2(top[t] - most);
        total[t] = total[t] * factor + gpu_sum16(sum);
        top[t] = most;
        if (lane == 0)
            w->factor[head] = factor;
    }
}

/* sum *= factor, a head's. */
GPU_FN void wg_shrink(const struct wg_place *w, float *sum, const uint32_t heads) {
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 2; i++) {
        const float factor = w->factor[gpu_wg_col(i)];
        GPU_UNROLL
        for (uint32_t p = 0; p < PARTS; p++)
            sum[p * (heads / 2) + i] *= factor;
    }
}

/* The share's results. */
GPU_FN void wg_put(const struct gpu_mla_decode *a, const struct wg_place *w,
                   const struct wg_share *m, const float *top, const float *total, const float *sum,
                   const uint32_t heads) {
    const uint64_t place = ((uint64_t)m->seq.row * a->heads + m->head0) * a->shares + gpu_block_x();
    GPU_UNROLL
    for (uint32_t t = 0; t < heads / 16; t++) {
        const uint32_t head = t * 16 + gpu_thread() / 16;
        if (gpu_thread() % 16)
            continue;
        w->factor[head] = gpu_rcp(total[t]);
        if (m->head0 + head < a->heads)
            a->lse[place + (uint64_t)head * a->shares] = top[t] + gpu_log2(total[t]);
    }
    gpu_barrier();
    const uint32_t group = gpu_wave() / 4;
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < heads / 2; i++) {
            const uint32_t h = gpu_wg_col(i);
            const uint32_t col = (PARTS * group + p) * 64 + gpu_wg_row(i);
            if (m->head0 + h < a->heads)
                a->part[(place + (uint64_t)h * a->shares) * LATENT + col] =
                    sum[p * (heads / 2) + i] * w->factor[h];
        }
    }
}

#endif
