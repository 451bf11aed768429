/* kda_step.c: one token of Kimi Delta Attention: convolution, gates, L2 norms, delta rule and gated
 * norm in one launch; a block has one head of one sequence.
 *
 * A group of lanes has a row of the state (one value dimension, all keys), eight keys a lane. All
 * of the block's state is on its way into registers before anything else is done, and nothing but
 * the last reduction stands between it and its way back. With S' the decayed state: u = S' k and w
 * = S' q come of one pass, d = beta (v - u), then o = w + d (k q) and S = S' + d k. Invariants
 * that bite: the window holds projections before their activation; and the state is read before the
 * kernel in front has ended, which therefore may not be one that writes states. */
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { KDA_PASSES = 8, KDA_WIDE = 256, KDA_NARROW = 64 };

/* Over aligned groups of so many lanes. */
GPU_FN float group_sum(float v, const uint32_t lanes) {
    if (lanes == 16)
        return gpu_sum16(v);
    GPU_UNROLL
    for (uint32_t m = 8; m > 0; m /= 2)
        if (m < lanes)
            v += gpu_shuffle_xor(v, m);
    return v;
}

/* Key i of the eight that a lane of `lanes` has: fours that a group reads side by side. */
GPU_FN uint32_t key_of(uint32_t lane, uint32_t lanes, uint32_t i) {
    return i / 4 * lanes * 4 + lane * 4 + i % 4;
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

/* One channel behind the convolution and SiLU; the window moves on by this token. `row`: of the
 * window's rows the first of q, k or v, and the channel. */
GPU_FN float convolve(const struct gpu_kda_step *a, const float *taps, uint16_t now,
                      struct kda_place from, struct kda_place to, struct kda_place checkpoint,
                      uint32_t row, uint32_t channels) {
    const uint32_t n = a->taps;
    float sum = taps[n - 1] * gpu_from_bf16(now);
    GPU_UNROLL
    for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++) {
        if (j + 1 >= n)
            continue;
        const uint16_t old = from.window ? from.window[row + j * channels] : 0;
        sum += taps[j] * gpu_from_bf16(old);
        /* Row j becomes row j - 1: the oldest falls out. */
        if (j > 0) {
            to.window[row + (j - 1) * channels] = old;
            if (checkpoint.window)
                checkpoint.window[row + (j - 1) * channels] = old;
        }
    }
    if (n > 1) {
        to.window[row + (n - 2) * channels] = now;
        if (checkpoint.window)
            checkpoint.window[row + (n - 2) * channels] = now;
    }
    return sum * gpu_sigmoid(sum);
}

GPU_FN float decay_of(const struct gpu_kda_step *a, uint32_t head, float z) {
    const float ea = a->ea[head];
    return gpu_exp(a->lower_bound < 0 ? a->lower_bound * gpu_sigmoid(ea * z)
                                      : -ea * gpu_softplus(z));
}

GPU_FN void load_state(float *s, const float *row, uint32_t lane, const uint32_t lanes) {
    widen_f32x4(s, gpu_load16_stream(row + key_of(lane, lanes, 0)));
    widen_f32x4(s + 4, gpu_load16_stream(row + key_of(lane, lanes, 4)));
}
GPU_FN void store_state(const float *s, float *row, uint32_t lane, const uint32_t lanes) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i += 4) {
        const struct gpu_u4 v = {gpu_as_u32(s[i]), gpu_as_u32(s[i + 1]), gpu_as_u32(s[i + 2]),
                                 gpu_as_u32(s[i + 3])};
        gpu_store16_stream(row + key_of(lane, lanes, i), v);
    }
}

/* `threads`: of the block. */
GPU_FN void kda_step(const struct gpu_kda_step *a, struct gpu_kda_step_shared *sh,
                     const uint32_t dim, const uint32_t threads) {
    const uint32_t lanes = dim / 8, rows = threads / lanes; /* of the state in a pass */
    const uint32_t passes = (dim + rows - 1) / rows;
    const uint32_t thread = gpu_thread(), group = thread / lanes, lane = thread % lanes;
    const uint32_t head = gpu_block_x(), channels = a->heads * dim, at = head * dim;
    const struct gpu_kda_seq seq = a->seqs[gpu_block_y()];
    uint16_t *out = a->out + (uint64_t)(uint32_t)seq.row * a->out_stride + at;
    if (seq.slot < 0) {
        gpu_wait_previous();
        for (uint32_t d = thread; d < dim; d += threads)
            out[d] = 0;
        return;
    }
    const struct kda_place from = kda_place_of(a, seq.from, head, dim);
    const struct kda_place to = kda_place_of(a, seq.slot, head, dim);
    const struct kda_place checkpoint = kda_place_of(a, seq.checkpoint, head, dim);
    float s[KDA_PASSES][8];
    GPU_UNROLL
    for (uint32_t p = 0; p < passes; p++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            s[p][i] = 0;
        if (from.s && p * rows + group < dim)
            load_state(s[p], from.s + (p * rows + group) * dim, lane, lanes);
    }
    gpu_wait_previous();
    gpu_launch_next();
    for (uint32_t i = thread; i < 4 * dim; i += threads) {
        const uint32_t part = i / dim, d = i % dim;
        const uint64_t in = (uint64_t)(uint32_t)seq.row * a->stride + at + d;
        if (part == 3) {
            const uint64_t z = (uint64_t)(uint32_t)seq.row * a->z_stride + at + d;
            sh->in[3][d] = decay_of(a, head, gpu_from_bf16(a->z[z]) + a->dt[at + d]);
            continue;
        }
        const uint16_t *x = part == 0 ? a->q : part == 1 ? a->k : a->v;
        const float *taps = part == 0 ? a->q_taps : part == 1 ? a->k_taps : a->v_taps;
        sh->in[part][d] = convolve(a, taps + (uint64_t)(at + d) * a->taps, x[in], from, to,
                                   checkpoint, part * (a->taps - 1) * channels + d, channels);
    }
    gpu_barrier();
    const float beta =
        gpu_sigmoid(gpu_from_bf16(a->b[(uint64_t)(uint32_t)seq.row * a->b_stride + head]));
    float q[8], k[8], decay[8], qq = 0, kk = 0, kq = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t key = key_of(lane, lanes, i);
        q[i] = sh->in[0][key];
        k[i] = sh->in[1][key];
        decay[i] = sh->in[3][key];
        qq += q[i] * q[i];
        kk += k[i] * k[i];
        kq += k[i] * q[i];
    }
    const float q_scale = gpu_rsqrt(group_sum(qq, lanes) + 1e-6f) * gpu_rsqrt((float)dim);
    const float k_scale = gpu_rsqrt(group_sum(kk, lanes) + 1e-6f);
    kq = group_sum(kq, lanes) * q_scale * k_scale;
    GPU_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        q[i] *= q_scale;
        k[i] *= k_scale;
    }
    GPU_UNROLL
    for (uint32_t p = 0; p < passes; p++) {
        const uint32_t row = p * rows + group;
        const bool there = row < dim;
        float u = 0, w = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            s[p][i] *= decay[i];
            u += s[p][i] * k[i];
            w += s[p][i] * q[i];
        }
        u = group_sum(u, lanes);
        w = group_sum(w, lanes);
        if (!there)
            continue; /* collectives are above */
        const float d = beta * (sh->in[2][row] - u);
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            s[p][i] += k[i] * d;
        store_state(s[p], to.s + row * dim, lane, lanes);
        if (checkpoint.s)
            store_state(s[p], checkpoint.s + row * dim, lane, lanes);
        if (lane == 0)
            sh->o[row] = w + d * kq;
    }
    gpu_barrier();
    float square = 0;
    for (uint32_t d = gpu_lane(); d < dim; d += GPU_WAVE)
        square += sh->o[d] * sh->o[d];
    const float inv = gpu_rsqrt(gpu_wave_sum(square) / (float)dim + a->eps);
    const uint16_t *go = a->go + (uint64_t)(uint32_t)seq.row * a->stride + at;
    for (uint32_t d = thread; d < dim; d += threads)
        out[d] = gpu_to_bf16(sh->o[d] * inv * a->o_norm[d] * gpu_sigmoid(gpu_from_bf16(go[d])));
}

GPU_KERNEL(weir_kda_step_128, gpu_kda_step, KDA_WIDE, 2) {
    GPU_SHARED(struct gpu_kda_step_shared, s);
    kda_step(&a, s, 128, KDA_WIDE);
}
GPU_KERNEL(weir_kda_step_64, gpu_kda_step, KDA_NARROW, 2) {
    GPU_SHARED(struct gpu_kda_step_shared, s);
    kda_step(&a, s, 64, KDA_NARROW);
}
GPU_KERNEL(weir_kda_step_32, gpu_kda_step, KDA_NARROW, 2) {
    GPU_SHARED(struct gpu_kda_step_shared, s);
    kda_step(&a, s, 32, KDA_NARROW);
}
GPU_KERNEL(weir_kda_step_16, gpu_kda_step, KDA_NARROW, 2) {
    GPU_SHARED(struct gpu_kda_step_shared, s);
    kda_step(&a, s, 16, KDA_NARROW);
}
GPU_KERNEL(weir_kda_step_8, gpu_kda_step, KDA_NARROW, 2) {
    GPU_SHARED(struct gpu_kda_step_shared, s);
    kda_step(&a, s, 8, KDA_NARROW);
}
