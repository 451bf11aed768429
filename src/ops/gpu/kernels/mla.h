/* mla.h: what kernels of absorbed latent attention have in common, whatever the format of history:
 * all heads score and sum the same rows of latents.
 *
 * A block has up to 16 heads of one row and a share of its positions. Tiles of positions come into
 * shared memory once and serve twice: row by row against the queries, then, read across, for the
 * sum. The weights of a tile go from sums to operands through shared memory. What a share has not
 * seen is put right by weir_mla_merge.
 * Invariant that bites: positions beyond the last are zero in a tile, not left over: their weight
 * is 0, and 0 times NaN is not. */
#ifndef WEIR_OPS_GPU_KERNELS_MLA_H
#define WEIR_OPS_GPU_KERNELS_MLA_H

#include "ops/gpu/kernels/mla_share.h"

enum {
    MLA_THREADS = 256,
    MLA_WAVES = MLA_THREADS / GPU_WAVE,
    MLA_POSITIONS = GPU_WAVE == 32 ? 64 : 32, /* of a tile */
    MLA_STAGES = GPU_WAVE == 32 ? 2 : 1,
    TILE = 16,
    PAGE = 64,
    MLA_PART = GPU_LATENT_MOST / TILE / MLA_WAVES, /* tiles of latents whose sum a wave has */
};
#if GPU_WAVE == 32
typedef struct gpu_mla_shared_32 mla_shared;
#else
typedef struct gpu_mla_shared_64 mla_shared;
#endif

/* Queries of the block's heads, zero where there is no head and beyond the last value. */
GPU_FN void mla_queries(const struct gpu_mla_decode *a, mla_shared *s, uint32_t row,
                        uint32_t head0) {
    const uint32_t width = a->latent + a->extra, padded = (width + 31) / 32 * 32;
    const struct gpu_u4 none = {0, 0, 0, 0};
    for (uint32_t i = gpu_thread(); i < GPU_MLA_HEADS * (a->latent / 8); i += MLA_THREADS) {
        const uint32_t h = i / (a->latent / 8), k = i % (a->latent / 8) * 8;
        const uint16_t *qa = a->qa + (uint64_t)row * a->qa_stride + (head0 + h) * a->latent;
        gpu_store16(&s->q[h][k], head0 + h < a->heads ? gpu_load16(qa + k) : none);
    }
    for (uint32_t i = gpu_thread(); i < GPU_MLA_HEADS * (padded - a->latent); i += MLA_THREADS) {
        const uint32_t h = i / (padded - a->latent), k = i % (padded - a->latent);
        const uint16_t *q = a->q + (uint64_t)row * a->q_stride + (head0 + h) * a->q_step + a->nope;
        s->q[h][a->latent + k] = head0 + h < a->heads && k < a->extra ? q[k] : 0;
    }
}

/* Scores of the tile; two waves share the values of a record. */
GPU_FN void mla_scores(const struct gpu_mla_decode *a, mla_shared *s,
                       const uint16_t (*tile)[GPU_MLA_ROW]) {
    enum { TILES = MLA_POSITIONS / TILE };
    const uint32_t t = gpu_wave() % TILES, half = gpu_wave() / TILES;
    const uint32_t pieces = (a->latent + a->extra + 31) / 32;
    struct gpu_sums sum;
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        sum.at[i] = 0;
    for (uint32_t k = half; k < pieces; k += 2) {
        struct gpu_strips q, c;
        gpu_strips_shared(&q, &s->q[0][k * 32], GPU_MLA_ROW);
        gpu_strips_shared(&c, &tile[t * TILE][k * 32], GPU_MLA_ROW);
        gpu_mma16(&sum, &q, &c);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        s->s[half][gpu_sum_row(i)][t * TILE + gpu_sum_col(i)] = sum.at[i];
}

/* Weights of the tile's positions from their scores; 16 lanes have a head. `top` and `total`: of
 * that head so far. */
GPU_FN void mla_weights(const struct gpu_mla_decode *a, mla_shared *s, uint32_t from, uint32_t end,
                        float *top, float *total) {
    enum { EACH = MLA_POSITIONS / 16 };
    const uint32_t head = gpu_thread() / 16, lane = gpu_thread() % 16;
    float score[EACH], most = *top, sum = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = i * 16 + lane;
        score[i] = -GPU_INFINITY;
        if (from + at < end)
            score[i] = (s->s[0][head][at] + s->s[1][head][at]) * a->scale * 1.44269504f;
        most = score[i] > most ? score[i] : most;
    }
    GPU_UNROLL
    for (uint32_t m = 8; m > 0; m /= 2) {
        const float other = gpu_shuffle_xor(most, m);
        most = other > most ? other : most;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        /* As it will be multiplied: so the weights' sum is that of what is summed. */
        const uint16_t p = gpu_to_bf16(gpu_exp2(score[i] - most));
        s->p[head][i * 16 + lane] = p;
        sum += gpu_from_bf16(p);
    }
    const float factor = gpu_exp2(*top - most);
    *total = *total * factor + gpu_sum16(sum);
    *top = most;
    if (lane == 0)
        s->factor[head] = factor;
}

/* sum = sum * factor + weights times latents, for this wave's columns. */
GPU_FN void mla_sum(const struct gpu_mla_decode *a, const mla_shared *s,
                    const uint16_t (*tile)[GPU_MLA_ROW], struct gpu_sums *sum) {
    GPU_UNROLL
    for (uint32_t c = 0; c < MLA_PART; c++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            sum[c].at[i] *= s->factor[gpu_sum_row(i)];
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < MLA_POSITIONS; k += 32) {
        struct gpu_strips p;
        gpu_strips_shared(&p, &s->p[0][k], MLA_POSITIONS + 8);
        GPU_UNROLL
        for (uint32_t c = 0; c < MLA_PART; c++) {
            const uint32_t col = (gpu_wave() * MLA_PART + c) * TILE;
            struct gpu_strips v;
            if (col >= a->latent)
                continue; /* the same for the whole wave */
            gpu_strips_transposed(&v, &tile[k][col], GPU_MLA_ROW);
            gpu_mma16(&sum[c], &p, &v);
        }
    }
}

/* Scores, weights and sum of the tile of positions from `from` on, which all threads see. */
GPU_FN void mla_tile(const struct gpu_mla_decode *a, mla_shared *s,
                     const uint16_t (*tile)[GPU_MLA_ROW], uint32_t from, uint32_t end, float *top,
                     float *total, struct gpu_sums *sum) {
    mla_scores(a, s, tile);
    gpu_barrier();
    mla_weights(a, s, from, end, top, total);
    gpu_barrier();
    mla_sum(a, s, tile, sum);
    gpu_barrier();
}

GPU_FN void mla_clear(struct gpu_sums *sum) {
    GPU_UNROLL
    for (uint32_t c = 0; c < MLA_PART; c++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            sum[c].at[i] = 0;
    }
}

/* The share's results. */
GPU_FN void mla_put(const struct gpu_mla_decode *a, mla_shared *s, const struct mla_share *m,
                    float top, float total, const struct gpu_sums *sum) {
    const uint32_t head = gpu_thread() / 16;
    const uint64_t place = ((uint64_t)m->seq.row * a->heads + m->head0) * a->shares + gpu_block_x();
    if (gpu_thread() % 16 == 0) {
        s->factor[head] = gpu_rcp(total);
        if (m->head0 + head < a->heads)
            a->lse[place + (uint64_t)head * a->shares] = top + gpu_log2(total);
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t c = 0; c < MLA_PART; c++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++) {
            const uint32_t h = gpu_sum_row(i);
            const uint32_t col = (gpu_wave() * MLA_PART + c) * TILE + gpu_sum_col(i);
            if (m->head0 + h < a->heads && col < a->latent)
                a->part[(place + (uint64_t)h * a->shares) * a->latent + col] =
                    sum[c].at[i] * s->factor[h];
        }
    }
}

#endif
