/* kda_states_wgmma.c: the second part of chunked KDA (kda_states.c) by products of warpgroups, for
 * heads of 128. A block has 32 values of a head: four waves pass their state through the chunks,
 * and a thread of a fifth brings what a chunk needs, in pieces of 16 KiB that lie as operands in
 * the work buffer.
 *
 * State, corrected values and outputs stay in registers, values across tokens or keys, from the
 * sums of one product to the operand of the next: no wave waits for another, only for pieces. Of
 * the 64 rows of a product those that are eight apart, which one lane has, are two parts of the
 * same value, so that one product with a part of the other side is two, and a lane adds up its sums
 * by itself. While one result becomes the next operand, products of outputs, which nobody waits
 * for, keep the units busy: four stages, each begun before the one in front of it has ended.
 *
 * What enters the state has all products of three parts that matter (kda_prefill.h), the others
 * have four of two. */
#include "ops/gpu/kernels/kda_prefill.h"

#ifdef GPU_WARPGROUPS

enum {
    KEYS = GPU_KDA_DIM_MOST,
    VALUES = GPU_KDA_WG_VALUES,
    PASSING = 4 * GPU_WAVE, /* threads */
    SLOTS = GPU_KDA_WG_SLOTS,
    STATE = KEYS / 4,   /* numbers of a lane: two neighbouring keys of every eight */
    TOKENS = CHUNK / 4, /* the same of tokens */
    KEY_STEPS = KEYS / 16,
    TOKEN_STEPS = CHUNK / 16,
    /* Pieces of a chunk: two of w, two of q, three of kt, one of aqk. */
    KEYS_PIECE = 4,
    PIECES = 8,
};

/* ------------------------------------------------------------------------------- pieces */

/* Where somebody is among the slots, which are used in turn. */
struct ring {
    uint32_t slot, parity;
};
GPU_FN void next_slot(struct ring *r) {
    r->slot++;
    if (r->slot == SLOTS) {
        r->slot = 0;
        r->parity ^= 1;
    }
}
/* By a wave: all pieces of all chunks, as slots become empty. Values, which come straight to
 * registers, are asked for one chunk ahead. */
GPU_FN void bring(const struct kda_pass *p, struct gpu_kda_states_wg_shared *s, uint32_t first,
                  uint32_t chunks) {
    struct ring r = {0, 1};
    GPU_ROLLED
    for (uint32_t i = 0; i < chunks; i++) {
        const struct kda_work w = kda_work_of(p->a, first + i, p->head, KEYS);
        if (i + 1 < chunks) {
            const struct kda_work next = kda_work_of(p->a, first + i + 1, p->head, KEYS);
            for (uint32_t row = gpu_lane(); row < CHUNK; row += GPU_WAVE)
                gpu_prefetch(next.u + row * KEYS + p->value0);
        }
        GPU_ROLLED
        for (uint32_t piece = 0; gpu_lane() == 0 && piece < PIECES; piece++, next_slot(&r)) {
            uint64_t *full = &s->full[r.slot];
            gpu_gate_wait(&s->empty[r.slot], r.parity);
            if (piece == KEYS_PIECE)
                gpu_copy_bulk(s->decay[r.slot], w.decay, sizeof s->decay[0], full);
            gpu_copy_bulk(s->piece[r.slot], w.w + piece * GPU_KDA_WG_PIECE, sizeof s->piece[0],
                          full);
            gpu_gate_arrive(full);
        }
        gpu_wave_meet();
    }
}
/* Waits for the next n pieces. */
GPU_FN void take(const uint16_t **piece, struct gpu_kda_states_wg_shared *s, struct ring *r,
                 const uint32_t n) {
    GPU_UNROLL
    for (uint32_t i = 0; i < n; i++, next_slot(r)) {
        piece[i] = s->piece[r->slot];
        gpu_gate_wait(&s->full[r->slot], r->parity);
    }
}
/* Behind gpu_wg_wait(), where a wave meets. */
GPU_FN void give_back(struct gpu_kda_states_wg_shared *s, struct ring *r, const uint32_t n) {
    GPU_UNROLL
    for (uint32_t i = 0; i < n; i++, next_slot(r))
        if (gpu_lane() == 0)
            gpu_gate_arrive(&s->empty[r->slot]);
}

/* ------------------------------------------------------------------------------- numbers */

/* A lane's value (one of the block's), and its first of keys or tokens: x[2 j + b] is of 8 j + b
 * further. */
GPU_FN uint32_t my_value(void) {
    return gpu_wave() * 8 + gpu_lane() / 4;
}
GPU_FN uint32_t my_first(void) {
    return gpu_lane() % 4 * 2;
}
/* Sum i of a value's both rows. */
GPU_FN float both_rows(const float *sum, uint32_t i) {
    const uint32_t at = i / 2 * 4 + i % 2;
    return sum[at] + sum[at + 2];
}
/* Two numbers as pairs of parts; what these leave stays. */
GPU_FN void split_pair(float *x, uint32_t *hi, uint32_t *lo) {
    *hi = gpu_bf16_pair(x[0], x[1]);
    x[0] -= gpu_bf16_lo(*hi);
    x[1] -= gpu_bf16_hi(*hi);
    *lo = gpu_bf16_pair(x[0], x[1]);
    x[0] -= gpu_bf16_lo(*lo);
    x[1] -= gpu_bf16_hi(*lo);
}
/* Four numbers, of 16 keys or tokens that four lanes have, as a step's rows of upper and lower
 * parts, and a third part with rows of zeros. */
GPU_FN void split_four(const float *from, struct gpu_u4 *two, struct gpu_u4 *least) {
    float rest[4] = {from[0], from[1], from[2], from[3]};
    split_pair(rest, &two->x, &two->y);
    split_pair(rest + 2, &two->z, &two->w);
    *least =
        (struct gpu_u4){gpu_bf16_pair(rest[0], rest[1]), 0, gpu_bf16_pair(rest[2], rest[3]), 0};
}
GPU_FN void load_values(const struct kda_pass *p, const struct kda_work *w, float *u) {
    const float *from = w->u + my_first() * KEYS + p->value0 + my_value();
    GPU_UNROLL
    for (uint32_t i = 0; i < TOKENS; i++)
        u[i] = from[(i / 2 * 8 + i % 2) * KEYS];
}
GPU_FN uint64_t state_at(const struct kda_pass *p) {
    return ((uint64_t)p->head * KEYS + p->value0 + my_value()) * KEYS + my_first();
}
GPU_FN void put_state(const struct kda_pass *p, const float *state, uint32_t rows, int32_t slot) {
    float *to = kda_slot(p->a, slot) + state_at(p);
    GPU_UNROLL
    for (uint32_t i = 0; i < STATE; i++)
        to[i / 2 * 8 + i % 2] = state[i];
    if (p->value0 == 0)
        kda_put_window(p, rows, slot, PASSING);
}

/* c = (or c +=) a times a matrix of two parts, n rows: 64 or 128. */
GPU_FN void multiply(float *c, const struct gpu_u4 *a, const uint16_t *upper, const uint16_t *lower,
                     const uint32_t n, const uint32_t steps, const bool add) {
    GPU_UNROLL
    for (uint32_t k = 0; k < steps; k++)
        gpu_wg_rows_of(c, n, a[k], upper, k, add || k);
    GPU_UNROLL
    for (uint32_t k = 0; k < steps; k++)
        gpu_wg_rows_of(c, n, a[k], lower, k, true);
}

/* ------------------------------------------------------------------------------- chunks */

/* Outputs of a chunk take the place of its values. */
GPU_FN void put_outputs(const struct kda_pass *p, const struct kda_work *w, const float *out) {
    float *to = w->u + my_first() * KEYS + p->value0 + my_value();
    GPU_UNROLL
    for (uint32_t e = 0; e < TOKENS; e++)
        to[(e / 2 * 8 + e % 2) * KEYS] = out[e];
}

/* What goes from chunk to chunk. */
struct passed {
    float state[STATE];
    struct gpu_u4 a[KEY_STEPS]; /* the state as operand */
    float u[TOKENS];            /* values of the chunk that comes */
    float out[TOKENS];          /* outputs of the one before, on their way */
    struct ring at, done;
};
GPU_FN void split_state(struct passed *c) {
    struct gpu_u4 none;
    GPU_UNROLL
    for (uint32_t k = 0; k < KEY_STEPS; k++)
        split_four(c->state + 4 * k, &c->a[k], &none);
}

/* The state through a chunk; before, next: the one in front of it, whose outputs are to be put
 * away unless it is the first, and the one behind it. */
GPU_FN void pass_chunk(const struct kda_pass *p, struct gpu_kda_states_wg_shared *s,
                       struct passed *c, bool is_first, const struct kda_work *before,
                       const struct kda_work *next) {
    float r[2 * TOKENS], o[2 * TOKENS], more[2 * STATE];
    struct gpu_u4 two[TOKEN_STEPS], least[TOKEN_STEPS];
    const uint16_t *piece[4];
    take(piece, s, &c->at, 4);
    gpu_wg_begin();
    multiply(r, c->a, piece[0], piece[1], CHUNK, KEY_STEPS, false);
    gpu_wg_commit();
    multiply(o, c->a, piece[2], piece[3], CHUNK, KEY_STEPS, false);
    gpu_wg_commit();
    if (!is_first)
        put_outputs(p, before, c->out);
    const float *decay = s->decay[c->at.slot] + my_first();
    take(piece, s, &c->at, 4);
    gpu_wg_wait(1);
    gpu_wg_hold(r, 2 * TOKENS);
    give_back(s, &c->done, 2);
    GPU_UNROLL
    for (uint32_t e = 0; e < TOKENS; e++)
        c->u[e] += both_rows(r, e);
    GPU_UNROLL
    for (uint32_t k = 0; k < TOKEN_STEPS; k++)
        split_four(c->u + 4 * k, &two[k], &least[k]);
    gpu_wg_begin();
    multiply(more, two, piece[0], piece[1], KEYS, TOKEN_STEPS, false);
    GPU_UNROLL
    for (uint32_t k = 0; k < TOKEN_STEPS; k++)
        gpu_wg_rows_of(more, KEYS, two[k], piece[2], k, true);
    GPU_UNROLL
    for (uint32_t k = 0; k < TOKEN_STEPS; k++)
        gpu_wg_rows_of(more, KEYS, least[k], piece[0], k, true);
    gpu_wg_commit();
    multiply(o, two, piece[3], piece[3] + CHUNK * CHUNK, CHUNK, TOKEN_STEPS, true);
    gpu_wg_commit();
    GPU_UNROLL
    for (uint32_t e = 0; e < STATE; e++)
        c->state[e] *= decay[e / 2 * 8 + e % 2];
    gpu_wg_wait(1);
    gpu_wg_hold(more, 2 * STATE);
    give_back(s, &c->done, 5);
    GPU_UNROLL
    for (uint32_t e = 0; e < STATE; e++)
        c->state[e] += both_rows(more, e);
    load_values(p, next, c->u);
    split_state(c);
    gpu_wg_wait(0);
    gpu_wg_hold(o, 2 * TOKENS);
    give_back(s, &c->done, 1);
    GPU_UNROLL
    for (uint32_t e = 0; e < TOKENS; e++)
        c->out[e] = both_rows(o, e);
}

GPU_FN void pass_all(const struct kda_pass *p, struct gpu_kda_states_wg_shared *s, uint32_t first,
                     uint32_t chunks) {
    const struct gpu_kda_prefill *a = p->a;
    const struct gpu_kda_checkpoint *next = a->checkpoints + p->span.first_checkpoint;
    const struct gpu_kda_checkpoint *last = next + p->span.n_checkpoints;
    const float *from = kda_slot(a, p->span.from < 0 ? 0 : p->span.from) + state_at(p);
    struct kda_work w = kda_work_of(a, first, p->head, KEYS), before = w;
    struct passed passed;
    passed.at = passed.done = (struct ring){0, 0};
    GPU_UNROLL
    for (uint32_t e = 0; e < STATE; e++)
        passed.state[e] = p->span.from < 0 ? 0 : from[e / 2 * 8 + e % 2];
    split_state(&passed);
    if (chunks)
        load_values(p, &w, passed.u);
    GPU_ROLLED
    for (uint32_t i = 0; i < chunks; i++) {
        const struct kda_work behind =
            kda_work_of(a, first + (i + 1 < chunks ? i + 1 : i), p->head, KEYS);
        const struct kda_chunk c = kda_chunk_of(&p->span, p->seq, i);
        pass_chunk(p, s, &passed, i == 0, &before, &behind);
        for (; next < last && next->position <= p->span.pos0 + c.row + c.rows; next++)
            put_state(p, passed.state, c.row + c.rows, next->slot);
        before = w;
        w = behind;
    }
    if (chunks)
        put_outputs(p, &before, passed.out);
    put_state(p, passed.state, p->span.rows, p->span.slot);
}

GPU_KERNEL(weir_kda_states_wg, gpu_kda_prefill, GPU_KDA_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_kda_states_wg_shared, s);
    enum { SHARES = KEYS / VALUES };
    struct kda_pass p;
    p.a = &a;
    p.seq = gpu_block_y();
    p.span = a.seqs[p.seq];
    p.head = gpu_block_x() / SHARES;
    p.value0 = gpu_block_x() % SHARES * VALUES;
    if (gpu_thread() == 0)
        for (uint32_t i = 0; i < SLOTS; i++) {
            gpu_gate_set(&s->full[i], 1);
            gpu_gate_set(&s->empty[i], PASSING / GPU_WAVE);
        }
    gpu_gates_seen();
    gpu_barrier();
    gpu_wait_previous();
    gpu_launch_next();
    if (p.span.slot < 0)
        return;
    const uint32_t first = kda_first_chunk(&a, p.seq), chunks = kda_chunks_of(&p.span);
    if (gpu_uniform(gpu_wave()) < PASSING / GPU_WAVE)
        pass_all(&p, s, first, chunks);
    else
        bring(&p, s, first, chunks);
}

#else

GPU_KERNEL(weir_kda_states_wg, gpu_kda_prefill, GPU_KDA_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
