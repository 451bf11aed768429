/* kda_states.c: the second part of chunked KDA: the state passes through the chunks of a sequence.
 * (kda_states_wgmma.c does the same where there are products of warpgroups, for heads of 128.)
 * A block has 16 value dimensions of a head, which never meet others, and all their keys. With S
 * the state as [value][key] and what kda_chunk.c left (struct kda_work):
 *   R = U + S W^T, O = S Q^T + R Aqk^T, S' = S diag(decay) + R Kt^T
 * all across, values by tokens, so that every operand is read along its rows. The state stays in
 * f32, in the registers that its sums come from; copies of two BF16 parts are operands. What a
 * phase reads is on its way to registers while the phase before it computes. The last part,
 * weir_kda_out, norms and gates whole heads. */
#include "ops/gpu/kernels/kda_prefill.h"

enum {
    STATE_WAVES = 2 * BLOCKS, /* the first half forms R, the other O, 16 tokens each */
    STATE_THREADS = STATE_WAVES * GPU_WAVE,
    STATE_TILES = GPU_KDA_DIM_MOST / TILE / STATE_WAVES, /* of keys that a wave has */
    OUT_THREADS = 256
};

/* Element e of the state's tile of keys `tile`: where in the head's matrix; false: nowhere. */
GPU_FN bool state_place(const struct kda_pass *p, uint32_t tile, uint32_t e, uint64_t *at) {
    const uint32_t dim = p->a->dim, value = p->value0 + gpu_sum_row(e);
    const uint32_t key = tile * TILE + gpu_sum_col(e);
    *at = ((uint64_t)p->head * dim + value) * dim + key;
    return value < dim && key < dim;
}

/* tiles: of keys that a wave has, every STATE_WAVES-th one. */
GPU_FN void put_state(const struct kda_pass *p, const struct gpu_sums *state, const uint32_t keys,
                      const uint32_t tiles, uint32_t rows, int32_t slot) {
    float *to = kda_slot(p->a, slot);
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * STATE_WAVES + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            uint64_t at;
            if (tile * TILE < keys && state_place(p, tile, e, &at))
                to[at] = state[i].at[e];
        }
    }
    if (p->value0 == 0)
        kda_put_window(p, rows, slot, STATE_THREADS);
}

/* What a wave reads of a chunk, on its way one phase before it is used. */
struct early {
    struct kda_strips x[GPU_KDA_DIM_MOST / 32]; /* rows of w or q */
    struct gpu_sums u;                          /* of waves that form R */
};
struct late {
    struct kda_strips aqk[CHUNK / 32]; /* of waves that form O */
    struct kda_strips_whole kt[STATE_TILES][CHUNK / 32];
    float decay[STATE_TILES][GPU_SUMS];
};

GPU_FN void load_early(struct early *to, const struct kda_pass *p, const struct kda_work *w,
                       bool forms_o, uint32_t row, const uint32_t keys) {
    GPU_UNROLL
    for (uint32_t d = 0; d < keys; d += 32)
        load_parts(&to->x[d / 32], forms_o ? w->q : w->w, row, d, keys, CHUNK * keys);
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e++)
        to->u.at[e] =
            forms_o ? 0 : w->u[(row + gpu_sum_col(e)) * keys + p->value0 + gpu_sum_row(e)];
}
GPU_FN void load_late(struct late *to, const struct kda_work *w, bool forms_o, uint32_t row,
                      const uint32_t keys, const uint32_t tiles) {
    GPU_UNROLL
    for (uint32_t m = 0; m < CHUNK; m += 32) {
        if (forms_o && m < row + TILE)
            load_parts(&to->aqk[m / 32], w->aqk, row, m, CHUNK, CHUNK * CHUNK);
        GPU_UNROLL
        for (uint32_t i = 0; i < tiles; i++) {
            const uint32_t tile = i * STATE_WAVES + gpu_wave();
            if (tile * TILE >= keys)
                continue;
            load_parts(&to->kt[i][m / 32].upper, w->kt, tile * TILE, m, CHUNK, CHUNK * keys);
            load_part(&to->kt[i][m / 32].least, w->kt + 2 * CHUNK * keys, tile * TILE, m, CHUNK);
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * STATE_WAVES + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++)
            to->decay[i][e] = tile * TILE < keys ? w->decay[tile * TILE + gpu_sum_col(e)] : 0;
    }
}

/* Asks for a chunk before its time: a block its share, and all blocks of the head together all. */
GPU_FN void ask_for(const struct kda_pass *p, const struct kda_work *w, const uint32_t keys) {
    const uint32_t shares = (p->a->dim + TILE - 1) / TILE, line = 128 / sizeof(float);
    for (uint64_t at = (p->value0 / TILE * STATE_THREADS + gpu_thread()) * line;
         at < kda_work_floats(keys); at += (uint64_t)shares * STATE_THREADS * line)
        gpu_prefetch((const float *)(const void *)w->w + at);
}

/* The chunk's outputs and the state behind it; `next`: the chunk behind this one, or this one
 * again. */
GPU_FN void pass_chunk(const struct kda_pass *p, struct gpu_kda_states_shared *s,
                       const struct kda_work *w, const struct kda_work *next, struct early *early,
                       struct gpu_sums *state, const uint32_t keys, const uint32_t tiles) {
    const bool forms_o = gpu_wave() >= BLOCKS;
    const uint32_t row = gpu_wave() % BLOCKS * TILE; /* of the chunk: this wave's tokens */
    struct gpu_sums sum = early->u, rest; /* rest: of lower parts, so that no chain is long */
    struct late late;
    struct kda_strips x;
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t tile = i * STATE_WAVES + gpu_wave();
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++)
            if (tile * TILE < keys) {
                const uint32_t value = gpu_sum_row(e), key = tile * TILE + gpu_sum_col(e);
                split1(state[i].at[e], &s->s[0][value][key], &s->s[1][value][key]);
            }
    }
    load_late(&late, w, forms_o, row, keys, tiles);
    clear_sums(&rest);
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t d = 0; d < keys; d += 32) {
        load_strips(&x, &s->s[0][0][d], sizeof s->s[0][0] / 2, sizeof s->s[0] / 2);
        gpu_mma16(&rest, &x.lo, &early->x[d / 32].hi);
        gpu_mma16(&rest, &x.hi, &early->x[d / 32].lo);
        gpu_mma16(&sum, &x.hi, &early->x[d / 32].hi);
    }
    add_sums(&sum, &rest);
    if (!forms_o) {
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++) {
            const uint32_t value = gpu_sum_row(e), token = row + gpu_sum_col(e);
            split1_whole(sum.at[e], &s->v[0][value][token], &s->v[1][value][token],
                         &s->v[2][value][token]);
        }
    }
    load_early(early, p, next, forms_o, row, keys);
    gpu_barrier();
    struct gpu_sums lower[STATE_TILES];
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++) {
        clear_sums(&lower[i]);
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_SUMS; e++)
            state[i].at[e] *= late.decay[i][e];
    }
    GPU_UNROLL
    for (uint32_t m = 0; m < CHUNK; m += 32) {
        struct kda_strips_whole whole;
        load_strips_whole(&whole, &s->v[0][0][m], sizeof s->v[0][0] / 2, sizeof s->v[0] / 2);
        if (forms_o && m < row + TILE)
            add_product(&sum, &whole.upper, &late.aqk[m / 32]);
        GPU_UNROLL
        for (uint32_t i = 0; i < tiles; i++)
            if ((i * STATE_WAVES + gpu_wave()) * TILE < keys) /* the same for the whole wave */
                add_product_whole(&state[i], &lower[i], &whole, &late.kt[i][m / 32]);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < tiles; i++)
        add_sums(&state[i], &lower[i]);
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_SUMS; e++)
        if (forms_o)
            w->u[(row + gpu_sum_col(e)) * keys + p->value0 + gpu_sum_row(e)] = sum.at[e];
}

GPU_FN void kda_states(const struct gpu_kda_prefill *a, struct gpu_kda_states_shared *s,
                       const uint32_t keys) {
    const uint32_t tiles = (keys / TILE + STATE_WAVES - 1) / STATE_WAVES;
    const uint32_t shares = (a->dim + TILE - 1) / TILE;
    struct gpu_sums state[STATE_TILES];
    struct kda_pass p;
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
        const uint32_t tile = i * STATE_WAVES + gpu_wave();
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
    struct kda_work w = kda_work_of(a, first, p.head, keys);
    const struct kda_work second = kda_work_of(a, first + (n > 1 ? 1 : 0), p.head, keys);
    struct early early;
    ask_for(&p, &second, keys);
    if (n)
        load_early(&early, &p, &w, gpu_wave() >= BLOCKS, gpu_wave() % BLOCKS * TILE, keys);
    GPU_ROLLED
    for (uint32_t i = 0; i < n; i++) {
        const struct kda_work behind =
            kda_work_of(a, first + (i + 1 < n ? i + 1 : i), p.head, keys);
        const struct kda_chunk c = kda_chunk_of(&p.span, p.seq, i);
        const uint32_t end = c.row + c.rows;
        if (i + 2 < n) {
            const struct kda_work far = kda_work_of(a, first + i + 2, p.head, keys);
            ask_for(&p, &far, keys);
        }
        pass_chunk(&p, s, &w, &behind, &early, state, keys, tiles);
        for (; next < last && next->position <= p.span.pos0 + end; next++)
            put_state(&p, state, keys, tiles, end, next->slot);
        w = behind;
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

/* A block a chunk and head. Sixteen lanes have a row, and all rows of theirs are on their way
 * before the first is used. */
GPU_KERNEL(weir_kda_out, gpu_kda_prefill, OUT_THREADS, 3) {
    enum { GROUPS = OUT_THREADS / 16, EACH = CHUNK / GROUPS };
    const uint32_t keys = a.dim < GPU_KDA_KEYS_LEAST ? GPU_KDA_KEYS_LEAST : a.dim;
    const uint32_t head = gpu_block_x(), group = gpu_thread() / 16, d = gpu_thread() % 16 * 8;
    const struct kda_chunk c = kda_chunk_at(&a, gpu_block_y());
    struct gpu_u4 u[EACH][2], go[EACH];
    float norm[8];
    gpu_wait_previous();
    gpu_launch_next();
    if (c.seq == a.n_seqs)
        return;
    const struct gpu_kda_span span = a.seqs[c.seq];
    const struct kda_work w = kda_work_of(&a, gpu_block_y(), head, keys);
    const uint64_t row0 = span.row0 + c.row, channel = head * a.dim + d;
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = k * GROUPS + group;
        u[k][0] = u[k][1] = go[k] = (struct gpu_u4){0, 0, 0, 0};
        if (i < c.rows && d < a.dim && span.slot >= 0) {
            u[k][0] = gpu_load16(w.u + i * keys + d);
            u[k][1] = gpu_load16(w.u + i * keys + d + 4);
            go[k] = gpu_load16(a.go + (row0 + i) * a.stride + channel);
        }
    }
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        norm[e] = d < a.dim ? a.o_norm[d + e] : 0;
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = k * GROUPS + group;
        float o[8], gate[8], square = 0;
        widen_f32x4(o, u[k][0]);
        widen_f32x4(o + 4, u[k][1]);
        widen_bf16x8(gate, go[k]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            square += o[e] * o[e];
        const float inv = gpu_rsqrt(gpu_sum16(square) / (float)a.dim + a.eps);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            o[e] = o[e] * inv * norm[e] * gpu_sigmoid(gate[e]);
        if (i < c.rows && d < a.dim)
            gpu_store16(a.out + (row0 + i) * a.out_stride + channel, narrow_bf16x8(o));
    }
}
