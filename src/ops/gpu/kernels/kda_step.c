/* kda_step.c: one token of Kimi Delta Attention: convolution, gates, L2 norms, delta rule and gated
 * norm in one launch (kernels/kda_token.h). A block has a head of one sequence, or with clusters a
 * part of its value dimensions: all blocks of a head then form its queries and keys, and give each
 * other sums for the norm.
 *
 * All that a block reads is on its way before anything is computed, the state in registers; after
 * that nothing waits for memory. Invariants that bite: the window holds projections before their
 * activation, and all blocks of a head read it, so that it is written behind their last meeting;
 * the state is read before the kernel in front has ended, which therefore may not be one that
 * writes states. */
#include "ops/gpu/kernels/kda_token.h"

enum { KDA_PASSES = 8, KDA_ROUNDS = 2 };

/* `threads`: of the block; `parts`: blocks of a head. */
GPU_FN void kda_step(const struct gpu_kda_step *a, struct gpu_kda_step_shared *sh,
                     const uint32_t dim, const uint32_t parts, const uint32_t threads) {
    const uint32_t lanes = dim / 8, rows = threads / lanes; /* of the state in a pass */
    const struct kda_share share = kda_share_of(dim, parts);
    const uint32_t passes = (dim / parts + rows - 1) / rows;
    const uint32_t rounds = (3 * dim / 2 + dim / parts / 2 + threads - 1) / threads;
    const uint32_t thread = gpu_thread(), group = thread / lanes, lane = thread % lanes;
    const struct gpu_kda_seq seq = a->seqs[gpu_block_y()];
    const uint64_t row = (uint32_t)seq.row;
    uint16_t *out = a->out + row * a->out_stride + share.at + share.value0;
    struct kda_channels item[KDA_ROUNDS];
    uint32_t now[KDA_ROUNDS];
    if (seq.slot < 0) {
        gpu_wait_previous();
        if (thread < share.values)
            out[thread] = 0;
        return;
    }
    head_arrive(parts);
    const struct kda_place from = kda_place_of(a, seq.from, share.head, dim);
    const struct kda_place to = kda_place_of(a, seq.slot, share.head, dim);
    const struct kda_place checkpoint = kda_place_of(a, seq.checkpoint, share.head, dim);
    GPU_UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t of, d;
        if (!kda_item_of(&share, dim, r * threads + thread, &of, &d))
            continue;
        load_taps(&item[r], a, of, share.head, share.at + d);
        GPU_UNROLL
        for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++)
            item[r].past[j] = of != KDA_DECAY && from.window && j + a->taps >= GPU_TAPS_MOST
                                  ? load_pair(from.window + d +
                                              window_row(a, of, j + a->taps - GPU_TAPS_MOST, dim))
                                  : 0;
    }
    float s[KDA_PASSES][8];
    take_states(s, &share, from.s, dim, passes, rows, group, lane, lanes);
    const bool has_out = thread < share.values;
    const float o_norm = has_out ? a->o_norm[share.value0 + thread] : 0;
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t of, d;
        now[r] = 0;
        if (kda_item_of(&share, dim, r * threads + thread, &of, &d))
            now[r] = load_pair(projection_at(a, of, row, share.at + d));
    }
    const uint16_t b = a->b[row * a->b_stride + share.head];
    const uint16_t go = has_out ? a->go[row * a->stride + share.at + share.value0 + thread] : 0;
    GPU_UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t of, d;
        if (!kda_item_of(&share, dim, r * threads + thread, &of, &d))
            continue;
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++)
            sh->in[of][d + e] = kda_channel(a, &item[r], of, e, now[r]);
        move_window(&item[r], now[r]);
        show_window(sh->raw, &item[r], of, d);
    }
    gpu_barrier();
    struct kda_keys token;
    kda_keys_of(&token, sh->in, gpu_sigmoid(gpu_from_bf16(b)), lane, lanes, dim);
    GPU_UNROLL
    for (uint32_t p = 0; p < passes; p++) {
        const uint32_t own = p * rows + group, value = share.value0 + own;
        float u, w;
        kda_row_read(s[p], &token, lanes, &u, &w);
        if (own >= share.values)
            continue; /* collectives are above */
        const float d = gpu_mul(token.beta, sh->in[KDA_V][value] - u);
        kda_row_write(s[p], token.k, d);
        store_state(s[p], to.s + value * dim, lane, lanes);
        if (checkpoint.s)
            store_state(s[p], checkpoint.s + value * dim, lane, lanes);
        if (lane == 0)
            sh->o[own] = gpu_fma(d, token.kq, w);
    }
    gpu_barrier();
    if (parts > 1)
        head_wait(parts); /* all have begun */
    if (gpu_wave() * GPU_WAVE < share.values)
        put_squares(sh->o, sh->squares, &share, thread, parts);
    head_arrive(parts);
    head_wait(parts);
    if (has_out)
        out[thread] = kda_result(a, sh->o[thread], sh->squares, o_norm, go, dim);
    put_window(a, &share, sh->raw, to.window, dim, threads);
    if (checkpoint.window)
        put_window(a, &share, sh->raw, checkpoint.window, dim, threads);
}

#define KDA_STEP(NAME, DIM, PARTS, THREADS)                                                        \
    GPU_KERNEL(NAME, gpu_kda_step, THREADS, 2) {                                                   \
        GPU_SHARED(struct gpu_kda_step_shared, s);                                                 \
        kda_step(&a, s, DIM, PARTS, THREADS);                                                      \
    }
KDA_STEP(weir_kda_step_128, 128, 1, 256)
KDA_STEP(weir_kda_step_64, 64, 1, 64)
KDA_STEP(weir_kda_step_32, 32, 1, 64)
KDA_STEP(weir_kda_step_16, 16, 1, 64)
KDA_STEP(weir_kda_step_8, 8, 1, 64)
#if GPU_CLUSTERS
KDA_STEP(weir_kda_step_128_by_2, 128, 2, 256)
#endif
