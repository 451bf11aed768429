/* kda_token.h: what a token of Kimi Delta Attention is made of, shared by the kernel of single
 * tokens and by the one that verifies several.
 *
 * A block has some of a head's value dimensions, all of them or those of one block of a cluster,
 * and all keys. A group of lanes has a row of the state (one value dimension), eight keys a lane.
 * With S' the decayed state: u = S' k and w = S' q come of one pass, d = beta (v - u), then o = w +
 * d (k q) and S = S' + d k. Invariant that bites: verified tokens must leave the bits that single
 * ones leave, however a head is shared out, so that sums are formed by gpu_fma and gpu_mul alone,
 * over 16 lanes at a time and those in order. */
#ifndef WEIR_OPS_GPU_KERNELS_KDA_TOKEN_H
#define WEIR_OPS_GPU_KERNELS_KDA_TOKEN_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { KDA_Q, KDA_K, KDA_V, KDA_DECAY }; /* what shared memory has of a token */

/* Over aligned groups of so many lanes. */
GPU_FN float group_sum(float v, const uint32_t lanes) {
    if (lanes == 16)
        return gpu_sum16(v);
    GPU_UNROLL
    for (uint32_t step = 0; step < 4; step++)
        if (8u >> step < lanes)
            v += gpu_shuffle_xor(v, 8u >> step);
    return v;
}

/* Key i of the eight that a lane of `lanes` has: fours that a group reads side by side. */
GPU_FN uint32_t key_of(uint32_t lane, uint32_t lanes, uint32_t i) {
    return i / 4 * lanes * 4 + lane * 4 + i % 4;
}

/* A block's share of a head. */
struct kda_share {
    uint32_t head, rank; /* rank: among the blocks of the head */
    uint32_t at;         /* the head's first channel */
    uint32_t value0, values;
};
GPU_FN struct kda_share kda_share_of(const uint32_t dim, const uint32_t parts) {
    struct kda_share s;
    s.head = gpu_block_x() / parts;
    s.rank = gpu_block_x() % parts;
    s.at = s.head * dim;
    s.values = dim / parts;
    s.value0 = s.rank * s.values;
    return s;
}

/* Where a head's parts of a slot are; slot < 0: nowhere. */
struct kda_place {
    float *s;
    uint16_t *window; /* its first channel; rows `channels` apart */
};
GPU_FN struct kda_place kda_place_of(const struct gpu_kda_step *a, int32_t slot, uint32_t head,
                                     const uint32_t dim) {
    struct kda_place p = {0, 0};
    if (slot >= 0) {
        float *layer = a->state + (uint64_t)(uint32_t)slot * a->slot_floats;
        p.s = layer + (uint64_t)head * dim * dim;
        p.window = (uint16_t *)(layer + (uint64_t)a->heads * dim * dim) + head * dim;
    }
    return p;
}

/* ------------------------------------------------------------------------------- channels
 * Two neighbouring channels are one item: first those of q and k, then decays, then the block's
 * own values. */
/* What an item is of, and its first channel in the head; false: there is none. */
GPU_FN bool kda_item_of(const struct kda_share *share, const uint32_t dim, uint32_t item,
                        uint32_t *of, uint32_t *d) {
    const uint32_t part = item / (dim / 2), pair = item % (dim / 2);
    *d = part == 3 ? share->value0 + 2 * pair : 2 * pair;
    *of = part == 0 ? KDA_Q : part == 1 ? KDA_K : part == 2 ? KDA_DECAY : KDA_V;
    return item < 3 * dim / 2 + share->values / 2;
}

/* What weights and windows have of an item. Taps stand at the end of four, and so do the rows of
 * the window; of decays tap[.][3] is dt and tap[.][0] the head's ea. */
struct kda_channels {
    float tap[2][GPU_TAPS_MOST];
    uint32_t past[GPU_TAPS_MOST - 1]; /* pairs of BF16 */
};
GPU_FN void load_taps(struct kda_channels *c, const struct gpu_kda_step *a, uint32_t of,
                      uint32_t head, uint32_t channel) {
    const uint32_t n = a->taps;
    const float *taps = of == KDA_Q ? a->q_taps : of == KDA_K ? a->k_taps : a->v_taps;
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_TAPS_MOST; j++)
            c->tap[e][j] = 0;
        if (of == KDA_DECAY) {
            c->tap[e][GPU_TAPS_MOST - 1] = a->dt[channel + e];
            c->tap[e][0] = a->ea[head];
        } else if (n == GPU_TAPS_MOST) {
            widen_f32x4(c->tap[e], gpu_load16(taps + (uint64_t)(channel + e) * GPU_TAPS_MOST));
        } else {
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_TAPS_MOST; j++)
                if (j + n >= GPU_TAPS_MOST)
                    c->tap[e][j] = taps[(uint64_t)(channel + e) * n + j + n - GPU_TAPS_MOST];
        }
    }
}
GPU_FN uint32_t load_pair(const uint16_t *p) {
    return *(const uint32_t *)(const void *)p;
}
GPU_FN void store_pair(uint16_t *p, uint32_t pair) {
    *(uint32_t *)(void *)p = pair;
}
/* Where row `row` of the window's part `of` is, from a head's first channel on. */
GPU_FN uint32_t window_row(const struct gpu_kda_step *a, uint32_t of, uint32_t row,
                           const uint32_t dim) {
    return (of * (a->taps - 1) + row) * a->heads * dim;
}
/* Where the projection of a token's channel is. */
GPU_FN const uint16_t *projection_at(const struct gpu_kda_step *a, uint32_t of, uint64_t row,
                                     uint32_t channel) {
    const uint16_t *x = of == KDA_Q ? a->q : of == KDA_K ? a->k : a->v;
    return of == KDA_DECAY ? a->z + row * a->z_stride + channel : x + row * a->stride + channel;
}

/* One of the item's channels behind the convolution and SiLU; or its decay. */
GPU_FN float kda_channel(const struct gpu_kda_step *a, const struct kda_channels *c, uint32_t of,
                         const uint32_t e, uint32_t now) {
    const float x = e ? gpu_bf16_hi(now) : gpu_bf16_lo(now), last = c->tap[e][GPU_TAPS_MOST - 1];
    if (of == KDA_DECAY) {
        const float z = x + last, ea = c->tap[e][0];
        return gpu_exp(a->lower_bound < 0 ? a->lower_bound * gpu_sigmoid(ea * z)
                                          : -ea * gpu_softplus(z));
    }
    float sum = gpu_mul(last, x);
    GPU_UNROLL
    for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++)
        if (j + a->taps >= GPU_TAPS_MOST)
            sum = gpu_fma(c->tap[e][j], e ? gpu_bf16_hi(c->past[j]) : gpu_bf16_lo(c->past[j]), sum);
    return sum * gpu_sigmoid(sum);
}
/* The window moves on by a token. */
GPU_FN void move_window(struct kda_channels *c, uint32_t now) {
    GPU_UNROLL
    for (uint32_t j = 0; j + 2 < GPU_TAPS_MOST; j++)
        c->past[j] = c->past[j + 1];
    c->past[GPU_TAPS_MOST - 2] = now;
}

/* The item's rows of the window to shared memory, where they stand as in kda_channels. */
GPU_FN void show_window(uint16_t (*raw)[GPU_TAPS_MOST - 1][GPU_KDA_DIM_MOST],
                        const struct kda_channels *c, uint32_t of, uint32_t d) {
    GPU_UNROLL
    for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++)
        if (of != KDA_DECAY)
            store_pair(&raw[of][j][d], c->past[j]);
}
/* A block's own channels of the window, from shared memory, where rows stand as in kda_channels. */
GPU_FN void put_window(const struct gpu_kda_step *a, const struct kda_share *share,
                       uint16_t (*raw)[GPU_TAPS_MOST - 1][GPU_KDA_DIM_MOST], uint16_t *window,
                       const uint32_t dim, const uint32_t threads) {
    const uint32_t kept = a->taps - 1, pieces = share->values / 8;
    for (uint32_t i = gpu_thread(); i < 3 * kept * pieces; i += threads) {
        const uint32_t of = i / pieces / kept, row = i / pieces % kept;
        const uint32_t d = share->value0 + i % pieces * 8;
        gpu_store16(window + window_row(a, of, row, dim) + d,
                    gpu_load16(&raw[of][row + GPU_TAPS_MOST - a->taps][d]));
    }
}

/* ------------------------------------------------------------------------------- a token */

/* What all rows of the state need of a token: eight keys of it, normed. */
struct kda_keys {
    float q[8], k[8], decay[8], kq, beta;
};
GPU_FN void kda_keys_of(struct kda_keys *t, float (*in)[GPU_KDA_DIM_MOST], float beta,
                        uint32_t lane, const uint32_t lanes, const uint32_t dim) {
    float qq = 0, kk = 0, kq = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i += 4) {
        const uint32_t key = key_of(lane, lanes, i);
        widen_f32x4(t->q + i, gpu_load16(&in[KDA_Q][key]));
        widen_f32x4(t->k + i, gpu_load16(&in[KDA_K][key]));
        widen_f32x4(t->decay + i, gpu_load16(&in[KDA_DECAY][key]));
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        qq = gpu_fma(t->q[i], t->q[i], qq);
        kk = gpu_fma(t->k[i], t->k[i], kk);
        kq = gpu_fma(t->k[i], t->q[i], kq);
    }
    const float q_scale = gpu_mul(gpu_rsqrt(group_sum(qq, lanes) + 1e-6f), gpu_rsqrt((float)dim));
    const float k_scale = gpu_rsqrt(group_sum(kk, lanes) + 1e-6f);
    t->kq = gpu_mul(gpu_mul(group_sum(kq, lanes), q_scale), k_scale);
    t->beta = beta;
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        t->q[i] = gpu_mul(t->q[i], q_scale);
        t->k[i] = gpu_mul(t->k[i], k_scale);
    }
}

/* A row of the state decays, and what keys and query find in it. */
GPU_FN void kda_row_read(float *s, const struct kda_keys *t, const uint32_t lanes, float *u,
                         float *w) {
    float su = 0, sw = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        s[i] = gpu_mul(s[i], t->decay[i]);
        su = gpu_fma(s[i], t->k[i], su);
        sw = gpu_fma(s[i], t->q[i], sw);
    }
    *u = group_sum(su, lanes);
    *w = group_sum(sw, lanes);
}
GPU_FN void kda_row_write(float *s, const float *k, float d) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        s[i] = gpu_fma(k[i], d, s[i]);
}

/* ------------------------------------------------------------------------------- state */

GPU_FN void load_state(float *s, const float *row, uint32_t lane, const uint32_t lanes) {
    widen_f32x4(s, gpu_load16_stream(row + key_of(lane, lanes, 0)));
    widen_f32x4(s + 4, gpu_load16_stream(row + key_of(lane, lanes, 4)));
}
/* Row `value` of a head's state s; zeros where there is none. */
GPU_FN void take_state(float *to, const float *s, uint32_t value, const uint32_t dim, uint32_t lane,
                       const uint32_t lanes) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        to[i] = 0;
    if (s)
        load_state(to, s + value * dim, lane, lanes);
}
/* All rows of the block's share that a group has: `rows` of them lie between two. */
GPU_FN void take_states(float (*s)[8], const struct kda_share *share, const float *from,
                        const uint32_t dim, const uint32_t passes, const uint32_t rows,
                        uint32_t group, uint32_t lane, const uint32_t lanes) {
    GPU_UNROLL
    for (uint32_t p = 0; p < passes; p++) {
        const bool there = p * rows + group < share->values;
        take_state(s[p], there ? from : 0, share->value0 + p * rows + group, dim, lane, lanes);
    }
}
GPU_FN void store_state(const float *s, float *row, uint32_t lane, const uint32_t lanes) {
    gpu_store16_stream(row + key_of(lane, lanes, 0), f32x4(s));
    gpu_store16_stream(row + key_of(lane, lanes, 4), f32x4(s + 4));
}

/* ------------------------------------------------------------------------------- gated norm */

enum { KDA_SQUARES = GPU_KDA_DIM_MOST / 16 }; /* sums of 16 values of a head */

/* The sums of a block's own values `o`, by whole waves, to all blocks of the head. A thread has
 * number `value`; there may be more threads than values. */
GPU_FN void put_squares(const float *o, float *squares, const struct kda_share *share,
                        uint32_t value, const uint32_t parts) {
    const float v = value < share->values ? o[value] : 0;
    const float sum = gpu_sum16(gpu_mul(v, v));
    if (value % 16 != 0 || value >= share->values)
        return;
    float *to = &squares[(share->value0 + value) / 16];
#if GPU_CLUSTERS
    GPU_UNROLL
    for (uint32_t r = 0; r < parts; r++)
        gpu_cluster_store(to, r, sum);
#else
    *to = sum;
#endif
}
/* Output `o`, normed by its head's sums and gated. */
GPU_FN uint16_t kda_result(const struct gpu_kda_step *a, float o, const float *squares,
                           float o_norm, uint16_t go, const uint32_t dim) {
    float sum = squares[0];
    GPU_UNROLL
    for (uint32_t i = 1; i < (dim + 15) / 16; i++)
        sum += squares[i];
    const float inv = gpu_rsqrt(gpu_fma(sum, 1.0f / (float)dim, a->eps));
    return gpu_to_bf16(o * inv * o_norm * gpu_sigmoid(gpu_from_bf16(go)));
}
/* All blocks of the head meet, in two parts; of a single one its threads. */
GPU_FN void head_arrive(const uint32_t parts) {
#if GPU_CLUSTERS
    if (parts > 1)
        gpu_cluster_arrive();
#endif
}
GPU_FN void head_wait(const uint32_t parts) {
#if GPU_CLUSTERS
    if (parts > 1)
        gpu_cluster_wait();
#endif
    if (parts == 1)
        gpu_barrier();
}

#endif
