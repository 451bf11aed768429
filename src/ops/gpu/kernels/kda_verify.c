/* kda_verify.c: several tokens of Kimi Delta Attention at once, of which nobody knows yet how many
 * will be kept: drafts that the model verifies. The state is not moved on by them. They are left
 * behind (struct kda_left), and the next launch takes those that were kept into the state that it
 * has to read anyway: so a state is read once and written once for all tokens of a round.
 *
 * Every token goes through the functions of kernels/kda_token.h, so that kept ones leave the bits
 * that weir_kda_step leaves of them. Blocks are those of kda_step.c, and so are its invariants; and
 * where tokens are left must not be where the last ones were, which other blocks may still read. */
#include "ops/gpu/kernels/kda_token.h"

enum { VERIFY_PASSES = 8, VERIFY_ROUNDS = 4, VERIFY_EACH = 8, TOKENS = GPU_KDA_TOKENS_MOST };

/* Tokens that were left: of each and every head [key, decay, d][dim]; behind them their projections
 * [token][q, k, v][heads * dim] BF16. */
struct kda_left {
    float *keys; /* of the head's first token; tokens `heads` * 3 * dim apart */
    uint16_t *raw;
};
GPU_FN struct kda_left kda_left_of(const struct gpu_kda_verify *v, int32_t number, uint32_t head,
                                   const uint32_t dim) {
    float *at = v->left + (uint64_t)(uint32_t)number * v->left_floats;
    struct kda_left l;
    l.keys = at + (uint64_t)head * 3 * dim;
    l.raw = (uint16_t *)(at + (uint64_t)TOKENS * v->token.heads * 3 * dim) + head * dim;
    return l;
}

/* Row j (of kda_channels) of the window behind `kept` tokens. */
GPU_FN uint32_t load_window(const struct gpu_kda_step *a, const uint16_t *window,
                            const uint16_t *raw, uint32_t of, uint32_t j, uint32_t kept, uint32_t d,
                            const uint32_t dim) {
    const uint32_t channels = a->heads * dim;
    if (of == KDA_DECAY || j + a->taps < GPU_TAPS_MOST)
        return 0;
    if (j + kept + 1 >= GPU_TAPS_MOST)
        return load_pair(raw + ((j + kept + 1 - GPU_TAPS_MOST) * 3 + of) * channels + d);
    return window
               ? load_pair(window + d + window_row(a, of, j + kept + a->taps - GPU_TAPS_MOST, dim))
               : 0;
}

/* `threads`: of the block; `parts`: blocks of a head. */
GPU_FN void kda_verify(const struct gpu_kda_verify *v, struct gpu_kda_verify_shared *sh,
                       const uint32_t dim, const uint32_t parts, const uint32_t threads) {
    const struct gpu_kda_step *a = &v->token;
    const uint32_t lanes = dim / 8, rows = threads / lanes; /* of the state in a pass */
    const struct kda_share share = kda_share_of(dim, parts);
    const uint32_t passes = (dim / parts + rows - 1) / rows;
    const uint32_t rounds = (3 * dim / 2 + dim / parts / 2 + threads - 1) / threads;
    const uint32_t each = (TOKENS * (dim / parts) + threads - 1) / threads;
    const uint32_t thread = gpu_thread(), group = thread / lanes, lane = thread % lanes;
    const uint32_t channels = a->heads * dim;
    const struct gpu_kda_draft seq = v->drafts[gpu_block_y()];
    const uint32_t kept = (uint32_t)seq.kept, tokens = (uint32_t)seq.tokens;
    const uint64_t row = (uint32_t)seq.row;
    uint16_t *out = a->out + row * a->out_stride + share.at + share.value0;
    if (seq.slot < 0) {
        gpu_wait_previous();
        for (uint32_t i = thread; i < tokens * share.values; i += threads)
            out[(uint64_t)(i / share.values) * a->out_stride + i % share.values] = 0;
        return;
    }
    head_arrive(parts);
    const struct kda_place from = kda_place_of(a, seq.from, share.head, dim);
    const struct kda_place to = kda_place_of(a, seq.slot, share.head, dim);
    const struct kda_place checkpoint = kda_place_of(a, seq.checkpoint, share.head, dim);
    const struct kda_left last = kda_left_of(v, kept ? seq.left : 0, share.head, dim);
    const struct kda_left next = kda_left_of(v, tokens ? seq.leave : 0, share.head, dim);
    const uint32_t pieces = dim / 2 + share.values / 4; /* of a kept token */
    for (uint32_t i = thread; i < kept * pieces; i += threads) {
        const uint32_t t = i / pieces, piece = i % pieces;
        const uint32_t at = piece * 4 + (piece * 4 < 2 * dim ? 0 : share.value0);
        gpu_copy16(&sh->kept[t][at / dim][at % dim],
                   last.keys + (uint64_t)t * a->heads * 3 * dim + at, true);
    }
    gpu_copy_commit();
    struct kda_channels item[VERIFY_ROUNDS];
    GPU_UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t of, d;
        if (!kda_item_of(&share, dim, r * threads + thread, &of, &d))
            continue;
        load_taps(&item[r], a, of, share.head, share.at + d);
        GPU_UNROLL
        for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++)
            item[r].past[j] = load_window(a, from.window, last.raw, of, j, kept, d, dim);
        if (checkpoint.window && of != KDA_DECAY) {
            GPU_UNROLL
            for (uint32_t j = 0; j + 1 < GPU_TAPS_MOST; j++)
                store_pair(&sh->checkpoint[of][j][d],
                           load_window(a, from.window, last.raw, of, j,
                                       (uint32_t)seq.checkpoint_kept, d, dim));
        }
    }
    float s[VERIFY_PASSES][8];
    take_states(s, &share, from.s, dim, passes, rows, group, lane, lanes);
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t row_pieces = 3 * dim / 8 + share.values / 8;
    for (uint32_t i = thread; i < tokens * row_pieces; i += threads) {
        const uint32_t t = i / row_pieces, at = i % row_pieces * 8;
        const uint32_t of = at < dim       ? KDA_Q
                            : at < 2 * dim ? KDA_K
                            : at < 3 * dim ? KDA_DECAY
                                           : KDA_V;
        const uint32_t d = at % dim + (of == KDA_V ? share.value0 : 0);
        gpu_copy16(&sh->x[t][of][d], projection_at(a, of, row + t, share.at + d), true);
    }
    gpu_copy_commit();
    /* Results of this thread: `each` of all tokens. */
    uint16_t go[VERIFY_EACH];
    float o_norm[VERIFY_EACH];
    GPU_UNROLL
    for (uint32_t e = 0; e < each; e++) {
        const uint32_t i = e * threads + thread, value = share.value0 + i % share.values;
        const bool there = i < tokens * share.values;
        go[e] = there ? a->go[(row + i / share.values) * a->stride + share.at + value] : 0;
        o_norm[e] = there ? a->o_norm[value] : 0;
    }
    if (thread < tokens)
        sh->beta[thread] =
            gpu_sigmoid(gpu_from_bf16(a->b[(row + thread) * a->b_stride + share.head]));
    gpu_copy_wait(0);
    gpu_barrier();
    GPU_UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t of, d;
        if (!kda_item_of(&share, dim, r * threads + thread, &of, &d))
            continue;
        show_window(sh->raw, &item[r], of, d);
        GPU_ROLLED
        for (uint32_t t = 0; t < tokens; t++) {
            const uint32_t now = load_pair(&sh->x[t][of][d]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 2; e++)
                sh->in[t][of][d + e] = kda_channel(a, &item[r], of, e, now);
            move_window(&item[r], now);
        }
    }
    gpu_barrier();
    /* A group of lanes norms a token: more are not there, and fewer groups are in no block. */
    if (gpu_wave() * GPU_WAVE / lanes < TOKENS) {
        struct kda_keys token;
        const uint32_t t = group % TOKENS;
        float *keys = next.keys + (uint64_t)t * a->heads * 3 * dim;
        kda_keys_of(&token, sh->in[t], sh->beta[t], lane, lanes, dim);
        gpu_wave_meet(); /* groups without a token have read what others write now */
        if (group < tokens) {
            GPU_UNROLL
            for (uint32_t i = 0; i < 8; i += 4) {
                const uint32_t key = key_of(lane, lanes, i);
                gpu_store16(&sh->in[t][KDA_Q][key], f32x4(token.q + i));
                gpu_store16(&sh->in[t][KDA_K][key], f32x4(token.k + i));
                if (share.rank == 0) {
                    gpu_store16(keys + key, f32x4(token.k + i));
                    gpu_store16(keys + dim + key, f32x4(token.decay + i));
                }
            }
            if (lane == 0)
                sh->kq[t] = token.kq;
        }
    }
    gpu_barrier();
    const bool moves = kept > 0 || seq.from != seq.slot;
    GPU_ROLLED
    for (uint32_t t = 0; t < kept; t++) {
        float k[8], decay[8];
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i += 4) {
            widen_f32x4(k + i, gpu_load16(&sh->kept[t][0][key_of(lane, lanes, i)]));
            widen_f32x4(decay + i, gpu_load16(&sh->kept[t][1][key_of(lane, lanes, i)]));
        }
        GPU_UNROLL
        for (uint32_t p = 0; p < passes; p++) {
            const uint32_t own = p * rows + group, value = share.value0 + own;
            if (own >= share.values)
                continue;
            GPU_UNROLL
            for (uint32_t i = 0; i < 8; i++)
                s[p][i] = gpu_mul(s[p][i], decay[i]);
            kda_row_write(s[p], k, sh->kept[t][2][value]);
            if (checkpoint.s && t + 1 == (uint32_t)seq.checkpoint_kept)
                store_state(s[p], checkpoint.s + value * dim, lane, lanes);
        }
    }
    GPU_UNROLL
    for (uint32_t p = 0; p < passes; p++) {
        const uint32_t own = p * rows + group;
        if (moves && own < share.values)
            store_state(s[p], to.s + (share.value0 + own) * dim, lane, lanes);
    }
    GPU_ROLLED
    for (uint32_t t = 0; t < tokens; t++) {
        struct kda_keys token;
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i += 4) {
            const uint32_t key = key_of(lane, lanes, i);
            widen_f32x4(token.q + i, gpu_load16(&sh->in[t][KDA_Q][key]));
            widen_f32x4(token.k + i, gpu_load16(&sh->in[t][KDA_K][key]));
            widen_f32x4(token.decay + i, gpu_load16(&sh->in[t][KDA_DECAY][key]));
        }
        token.kq = sh->kq[t];
        token.beta = sh->beta[t];
        GPU_UNROLL
        for (uint32_t p = 0; p < passes; p++) {
            const uint32_t own = p * rows + group, value = share.value0 + own;
            float u, w;
            kda_row_read(s[p], &token, lanes, &u, &w);
            if (own >= share.values)
                continue; /* collectives are above */
            const float d = gpu_mul(token.beta, sh->in[t][KDA_V][value] - u);
            kda_row_write(s[p], token.k, d);
            if (lane == 0) {
                sh->o[t][own] = gpu_fma(d, token.kq, w);
                sh->d[t][own] = d;
            }
        }
    }
    gpu_barrier();
    if (parts > 1)
        head_wait(parts); /* all have begun */
    /* Whole waves a token. */
    const uint32_t squaring = dim / parts < GPU_WAVE ? GPU_WAVE : dim / parts;
    for (uint32_t t = thread / squaring; t < tokens; t += threads / squaring)
        put_squares(sh->o[t], sh->squares[t], &share, thread % squaring, parts);
    for (uint32_t i = thread; i < tokens * share.values; i += threads) {
        const uint32_t t = i / share.values, own = i % share.values;
        next.keys[((uint64_t)t * a->heads * 3 + 2) * dim + share.value0 + own] = sh->d[t][own];
    }
    const uint32_t raw_pieces = share.values / 8;
    for (uint32_t i = thread; i < tokens * 3 * raw_pieces; i += threads) {
        const uint32_t t = i / raw_pieces / 3, of = i / raw_pieces % 3;
        const uint32_t d = share.value0 + i % raw_pieces * 8;
        gpu_store16(next.raw + (t * 3 + of) * channels + d, gpu_load16(&sh->x[t][of][d]));
    }
    head_arrive(parts);
    head_wait(parts);
    GPU_UNROLL
    for (uint32_t e = 0; e < each; e++) {
        const uint32_t i = e * threads + thread, t = i / share.values, own = i % share.values;
        if (t < tokens)
            out[(uint64_t)t * a->out_stride + own] =
                kda_result(a, sh->o[t][own], sh->squares[t], o_norm[e], go[e], dim);
    }
    if (moves)
        put_window(a, &share, sh->raw, to.window, dim, threads);
    if (checkpoint.window)
        put_window(a, &share, sh->checkpoint, checkpoint.window, dim, threads);
}

#define KDA_VERIFY(NAME, DIM, PARTS, THREADS, BLOCKS)                                              \
    GPU_KERNEL(NAME, gpu_kda_verify, THREADS, BLOCKS) {                                            \
        GPU_SHARED(struct gpu_kda_verify_shared, s);                                               \
        kda_verify(&a, s, DIM, PARTS, THREADS);                                                    \
    }
KDA_VERIFY(weir_kda_verify_128, 128, 1, 256, 2)
KDA_VERIFY(weir_kda_verify_64, 64, 1, 64, 2)
KDA_VERIFY(weir_kda_verify_32, 32, 1, 64, 2)
KDA_VERIFY(weir_kda_verify_16, 16, 1, 64, 2)
KDA_VERIFY(weir_kda_verify_8, 8, 1, 64, 2)
#if GPU_CLUSTERS
KDA_VERIFY(weir_kda_verify_128_by_2, 128, 2, 256, 3)
KDA_VERIFY(weir_kda_verify_128_by_8, 128, 8, 128, 5)
#endif
