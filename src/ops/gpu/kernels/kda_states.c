/* kda_states.c: the second part of chunked KDA: the state passes through the chunks of a sequence.
 * A block has 16 value dimensions of a head, which never meet others, and all their keys. With S
 * the state as [value][key] and what kda_chunk.c left (struct kda_work):
 *   R = U + S W^T, O = S Q^T + R Aqk^T, S' = S diag(decay) + R Kt^T
 * all across, values by tokens, so that every operand is read along its rows. The state stays in
 * f32, in the registers that its sums come from; copies of two BF16 parts are operands. The last
 * part, weir_kda_out, norms and gates whole heads. */
#include "ops/gpu/kernels/kda_prefill.h"

enum { STATE_THREADS = BLOCKS * GPU_WAVE, OUT_THREADS = 256 };

/* A block's part of a sequence. */
struct pass {
    const struct gpu_kda_prefill *a;
    struct gpu_kda_span span;
    uint32_t seq, head, value0;
};

/* Element e of the state's tile of keys `tile`: where in the head's matrix; false: nowhere. */
GPU_FN bool state_place(const struct pass *p, uint32_t tile, uint32_t e, uint64_t *at) {
    const uint32_t dim = p->a->dim, value = p->value0 + gpu_sum_row(e);
    const uint32_t key = tile * TILE + gpu_sum_col(e);
    *at = ((uint64_t)p->head * dim + value) * dim + key;
    return value < dim && key < dim;
}

/* The window after `rows` rows, by the block that has the head's first values. */
GPU_FN void put_window(const struct pass *p, uint32_t rows, int32_t slot) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t channels = a->heads * a->dim, kept = a->taps - 1;
    uint16_t *to = kda_window(a, slot);
    for (uint32_t i = gpu_thread(); i < 3 * kept * a->dim; i += STATE_THREADS) {
        const uint32_t channel = p->head * a->dim + i % a->dim, line = i / a->dim;
        const uint32_t part = line / kept, t = rows + line % kept; /* row t - kept */
        const uint16_t *x = part == 0 ? a->q : part == 1 ? a->k : a->v;
        const uint16_t *before = kda_windows_before(a, p->seq);
        to[(uint64_t)line * channels + channel] =
            t < kept ? before[(uint64_t)(part * kept + t) * channels + channel]
                     : x[(uint64_t)(p->span.row0 + t - kept) * a->stride + channel];
    }
}

/* tiles: of keys that a wave has, every BLOCKS-th one. */
GPU_FN void put_state(const struct pass *p, const struct gpu_sums *state, const uint32_t keys,
                      const uint32_t tiles, uint32_t rows, int32_t slot) {
    float *to = kda_slot(p->a, slot);
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * BLOCKS + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            uint64_t at;
            if (tile * TILE < keys && state_place(p, tile, e, &at))
                to[at] = state[i].at[e];
        }
    }
    if (p->value0 == 0)
        put_window(p, rows, slot);
}

/* The chunk's outputs and the state behind it. */
GPU_FN void pass_chunk(const struct pass *p, struct gpu_kda_states_shared *s,
                       const struct kda_work *w, struct gpu_sums *state, const uint32_t keys,
                       const uint32_t tiles) {
    const uint32_t row = gpu_wave() * TILE; /* of the chunk: this wave's tokens */
    struct gpu_sums r, o;
    struct kda_strips x, y;
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * BLOCKS + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++)
            if (tile * TILE < keys) {
                const uint32_t value = gpu_sum_row(e), key = tile * TILE + gpu_sum_col(e);
                split1(state[i].at[e], &s->s[0][value][key], &s->s[1][value][key]);
            }
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e++)
        r.at[e] = w->u[(row + gpu_sum_col(e)) * keys + p->value0 + gpu_sum_row(e)];
    clear_sums(&o);
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t d = 0; d < keys; d += 32) {
        load_strips(&x, &s->s[0][0][d], sizeof s->s[0][0] / 2, sizeof s->s[0] / 2);
        load_strips(&y, w->w + row * keys + d, keys, CHUNK * keys);
        add_product(&r, &x, &y);
        load_strips(&y, w->q + row * keys + d, keys, CHUNK * keys);
        add_product(&o, &x, &y);
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e++) {
        const uint32_t value = gpu_sum_row(e), token = row + gpu_sum_col(e);
        split1_whole(r.at[e], &s->v[0][value][token], &s->v[1][value][token],
                     &s->v[2][value][token]);
    }
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t m = 0; m < CHUNK; m += 32) {
        struct kda_strips_whole whole, k;
        load_strips_whole(&whole, &s->v[0][0][m], sizeof s->v[0][0] / 2, sizeof s->v[0] / 2);
        if (m < row + TILE) {
            load_strips(&y, w->aqk + row * CHUNK + m, CHUNK, CHUNK * CHUNK);
            add_product(&o, &whole.upper, &y);
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < tiles; i++) {
            const uint32_t tile = i * BLOCKS + gpu_wave();
            if (tile * TILE >= keys)
                continue; /* the same for the whole wave */
            GPU_UNROLL
            for (uint32_t e = 0; e < GPU_SUMS; e++)
                if (m == 0)
                    state[i].at[e] *= w->decay[tile * TILE + gpu_sum_col(e)];
            load_strips_whole(&k, w->kt + tile * TILE * CHUNK + m, CHUNK, CHUNK * keys);
            add_product_whole(&state[i], &whole, &k);
        }
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e++)
        w->u[(row + gpu_sum_col(e)) * keys + p->value0 + gpu_sum_row(e)] = o.at[e];
}

GPU_FN void kda_states(const struct gpu_kda_prefill *a, struct gpu_kda_states_shared *s,
                       const uint32_t keys) {
    const uint32_t tiles = (keys / TILE + BLOCKS - 1) / BLOCKS;
    const uint32_t shares = (a->dim + TILE - 1) / TILE;
    struct gpu_sums state[GPU_KDA_DIM_MOST / TILE / BLOCKS];
    struct pass p;
    p.a = a;
    p.seq = gpu_block_y();
    p.span = a->seqs[p.seq];
    p.head = gpu_block_x() / shares;
    p.value0 = gpu_block_x() % shares * TILE;
    gpu_wait_previous();
    gpu_launch_next();
    if (p.span.slot < 0)
        return;
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * BLOCKS + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            uint64_t at;
            state[i].at[e] = 0;
            if (p.span.from >= 0 && tile * TILE < keys && state_place(&p, tile, e, &at))
                state[i].at[e] = kda_slot(a, p.span.from)[at];
        }
    }
    const uint32_t first = kda_first_chunk(a, p.seq), n = kda_chunks_of(&p.span);
    const struct gpu_kda_checkpoint *next = a->checkpoints + p.span.first_checkpoint;
    const struct gpu_kda_checkpoint *last = next + p.span.n_checkpoints;
    GPU_ROLLED
    for (uint32_t i = 0; i < n; i++) {
        const struct kda_work w = kda_work_of(a, first + i, p.head, keys);
        const struct kda_chunk c = kda_chunk_of(&p.span, p.seq, i);
        const uint32_t end = c.row + c.rows;
        pass_chunk(&p, s, &w, state, keys, tiles);
        for (; next < last && next->position <= p.span.pos0 + end; next++)
            put_state(&p, state, keys, tiles, end, next->slot);
    }
    put_state(&p, state, keys, tiles, p.span.rows, p.span.slot);
}

GPU_KERNEL(weir_kda_states_128, gpu_kda_prefill, STATE_THREADS, 1) {
    GPU_SHARED(struct gpu_kda_states_shared, s);
    kda_states(&a, s, 128);
}
GPU_KERNEL(weir_kda_states_64, gpu_kda_prefill, STATE_THREADS, 1) {
    GPU_SHARED(struct gpu_kda_states_shared, s);
    kda_states(&a, s, 64);
}
GPU_KERNEL(weir_kda_states_32, gpu_kda_prefill, STATE_THREADS, 1) {
    GPU_SHARED(struct gpu_kda_states_shared, s);
    kda_states(&a, s, 32);
}

/* A block a chunk and head, a wave a row at a time. */
GPU_KERNEL(weir_kda_out, gpu_kda_prefill, OUT_THREADS, 4) {
    enum { EACH = (GPU_KDA_DIM_MOST + GPU_WAVE - 1) / GPU_WAVE };
    const uint32_t keys = a.dim < GPU_KDA_KEYS_LEAST ? GPU_KDA_KEYS_LEAST : a.dim;
    const uint32_t head = gpu_block_x(), waves = OUT_THREADS / GPU_WAVE;
    const struct kda_chunk c = kda_chunk_at(&a, gpu_block_y());
    gpu_wait_previous();
    gpu_launch_next();
    if (c.seq == a.n_seqs)
        return;
    const bool there = a.seqs[c.seq].slot >= 0;
    const struct kda_work w = kda_work_of(&a, gpu_block_y(), head, keys);
    for (uint32_t i = gpu_wave(); i < c.rows; i += waves) {
        const uint64_t row = a.seqs[c.seq].row0 + c.row + i;
        const uint16_t *go = a.go + row * a.stride + head * a.dim;
        uint16_t *out = a.out + row * a.out_stride + head * a.dim;
        float o[EACH], square = 0;
        GPU_UNROLL
        for (uint32_t e = 0; e < EACH; e++) {
            const uint32_t d = e * GPU_WAVE + gpu_lane();
            o[e] = there && d < a.dim ? w.u[i * keys + d] : 0;
            square += o[e] * o[e];
        }
        const float inv = gpu_rsqrt(gpu_wave_sum(square) / (float)a.dim + a.eps);
        GPU_UNROLL
        for (uint32_t e = 0; e < EACH; e++) {
            const uint32_t d = e * GPU_WAVE + gpu_lane();
            if (d < a.dim)
                out[d] =
                    there
                        ? gpu_to_bf16(o[e] * inv * a.o_norm[d] * gpu_sigmoid(gpu_from_bf16(go[d])))
                        : 0;
        }
    }
}
