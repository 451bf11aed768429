/* experts_many.c: routed experts for many rows: choices grouped by expert, then tiles of choices of
 * one expert by rows of its weights.
 *
 * A wave has 16 rows of two matrices (or of two parts of one) and all choices of the tile: weights
 * go from memory into registers and nowhere else, become BF16 there, and serve up to 128 choices.
 * Rows of x come through shared memory in stages of 128 columns, by copies that go on while earlier
 * ones are multiplied. A block takes several groups of rows without a pause between.
 * Invariant that bites: with codes group g of four lanes multiplies columns 32 g to 32 g + 31 of a
 * stage, eight at a time; in shared memory the pieces lie in the order in which they are read. */
#include "ops/gpu/kernels/experts_many.h"

enum {
    GROUP_THREADS = 256,
    GROUP_WAVES = GROUP_THREADS / GPU_WAVE,
    GROUP_AHEAD = 8, /* choices that a lane asks for at once */
    MANY_THREADS = GPU_MANY_WAVES * GPU_WAVE,
    MANY_HIGH = MANY_TILE / TILE,
    MANY_STAGES = GPU_WAVE == 32 ? 3 : 2,
    PIECE = GPU_PIECE_COLS,
    MANY_ROW = PIECE + 32,
};
#if GPU_WAVE == 32
typedef struct gpu_many_shared_32 many_shared;
#else
typedef struct gpu_many_shared_64 many_shared;
#endif

/* A lane's choices from number i on, asked for at once; nobody's where there are none. */
GPU_FN void group_ids(const struct gpu_group *a, uint32_t from, uint32_t i, uint32_t share,
                      uint32_t *id) {
    GPU_UNROLL
    for (uint32_t j = 0; j < GROUP_AHEAD; j++) {
        const uint32_t at = from + (i + j) * GPU_WAVE;
        id[j] = i + j < share && at < a->slots ? (uint32_t)a->ids[at] : 0xFFFFFFFFu;
    }
}

/* Every block reads all choices: those of its experts and, for where they begin, how many are of
 * experts before. A wave has a share of the choices, so that those of an expert stay in order. */
GPU_KERNEL(weir_group, gpu_group, GROUP_THREADS, 2) {
    GPU_SHARED(struct gpu_group_shared, s);
    const uint32_t first = gpu_block_x() * GPU_GROUP_EXPERTS;
    const uint32_t share = (a.slots + GROUP_THREADS - 1) / GROUP_THREADS;
    const uint32_t from = gpu_wave() * share * GPU_WAVE + gpu_lane();
    uint32_t id[GROUP_AHEAD], count[GPU_GROUP_EXPERTS + 1], start[GPU_GROUP_EXPERTS];
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t k = 0; k <= GPU_GROUP_EXPERTS; k++)
        count[k] = 0;
    for (uint32_t i = 0; i < share; i += GROUP_AHEAD) {
        group_ids(&a, from, i, share, id);
        GPU_UNROLL
        for (uint32_t j = 0; j < GROUP_AHEAD; j++) {
            GPU_UNROLL
            for (uint32_t k = 0; k < GPU_GROUP_EXPERTS; k++)
                count[k] += id[j] == first + k ? 1 : 0;
            count[GPU_GROUP_EXPERTS] += id[j] < first ? 1 : 0;
        }
    }
    GPU_UNROLL
    for (uint32_t k = 0; k <= GPU_GROUP_EXPERTS; k++) {
        const float sum = gpu_wave_sum((float)count[k]);
        if (gpu_lane() == 0)
            s->count[gpu_wave()][k] = (uint32_t)sum;
    }
    gpu_barrier();
    uint32_t begin = 0;
    for (uint32_t w = 0; w < GROUP_WAVES; w++)
        begin += s->count[w][GPU_GROUP_EXPERTS];
    GPU_UNROLL
    for (uint32_t k = 0; k < GPU_GROUP_EXPERTS; k++) {
        if (gpu_thread() == 0 && first + k < a.experts)
            a.offsets[first + k] = begin;
        for (uint32_t w = 0; w < GROUP_WAVES; w++) {
            if (w == gpu_wave())
                start[k] = begin;
            begin += s->count[w][k];
        }
    }
    if (gpu_thread() == 0 && first + GPU_GROUP_EXPERTS >= a.experts)
        a.offsets[a.experts] = begin;
    for (uint32_t i = 0; i < share; i += GROUP_AHEAD) {
        if (share > GROUP_AHEAD) /* else they are there still */
            group_ids(&a, from, i, share, id);
        GPU_UNROLL
        for (uint32_t j = 0; j < GROUP_AHEAD; j++) {
            const uint32_t k_mine = id[j] - first;
            if (!gpu_ballot(k_mine < GPU_GROUP_EXPERTS))
                continue; /* the same for the whole wave */
            GPU_UNROLL
            for (uint32_t k = 0; k < GPU_GROUP_EXPERTS; k++) {
                const gpu_mask all = gpu_ballot(k_mine == k);
                if (k_mine == k)
                    a.order[start[k] + gpu_popcount(all & (((gpu_mask)1 << gpu_lane()) - 1))] =
                        from + (i + j) * GPU_WAVE;
                start[k] += gpu_popcount(all);
            }
        }
    }
}

/* Asks for a stage of x, of `high` times 16 choices. */
GPU_FN void many_fetch(const struct gpu_experts *a, const many_shared *s, uint16_t (*x)[MANY_ROW],
                       uint32_t piece, uint32_t high, const bool bf16) {
    enum { PIECES = PIECE / 8 };
    GPU_UNROLL
    for (uint32_t i = 0; i < MANY_TILE * PIECES / MANY_THREADS; i++) {
        const uint32_t at = i * MANY_THREADS + gpu_thread(), c = at / PIECES, q = at % PIECES;
        const uint32_t k = piece * PIECE + q * 8;
        const bool there = c < s->choices.n && k < a->cols;
        if (c < high * TILE)
            gpu_copy16(&x[c][(bf16 ? q : q % 4 * 4 + q / 4) * 8],
                       there ? a->x + (uint64_t)s->choices.from[c] * a->x_stride + k : a->x, there);
    }
}

/* Of a piece of 128 columns, the block's rows from row0 on; of BF16, the part for products j. */
GPU_FN void many_take(const struct gpu_experts *a, struct many_weights *w, uint64_t expert,
                      uint32_t row0, uint32_t piece, uint32_t j, const bool up, const bool bf16) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const uint32_t rows = up ? TILE : TILE * PAIR, pairs = (a->rows + rows - 1) / rows;
    const uint32_t pieces = (a->cols + piece_cols(bf16) - 1) / piece_cols(bf16);
    const uint32_t at = bf16 ? piece * 4 + j : piece;
    uint32_t pair = row0 / rows + gpu_wave();
    pair = pair < pairs ? pair : pairs - 1;
    const uint8_t *from =
        a->w + expert * a->w_stride + ((uint64_t)pair * pieces + at) * piece_bytes(bf16);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            w->codes[m][i] = none;
            w->scale[m][i] = 0;
            if (at >= pieces)
                continue;
            w->codes[m][i] = gpu_load16_stream(from + lane_vector(m, i) * 16);
            if (!bf16)
                w->scale[m][i] = from[GPU_PIECE_BYTES_BF16 + lane_vector(m, i)];
        }
    }
}

/* Strips of W for products j of a stage. */
GPU_FN void many_strips(struct gpu_strips *strips, const struct many_weights *w, uint32_t m,
                        uint32_t j, const bool bf16) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        strips->row[i] = w->codes[m][i];
        if (bf16)
            continue;
        strips->row[i] = widen_codes(word_of(w->codes[m][i], j), scale_pair(w->scale[m][i]));
        if (w->scale[m][i] > 128)
            strips->row[i] = times_pairs(strips->row[i], scale_more(w->scale[m][i]));
    }
}

/* acc[choices][PAIR] += products j of a stage. */
GPU_FN void many_multiply(struct gpu_sums *acc, const struct many_weights *w,
                          const uint16_t (*x)[MANY_ROW], uint32_t j, uint32_t high,
                          const bool bf16) {
    struct gpu_strips strips[PAIR];
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++)
        many_strips(&strips[m], w, m, j, bf16);
    GPU_UNROLL
    for (uint32_t h = 0; h < MANY_HIGH; h++) {
        if (h >= high)
            continue; /* the same for the whole block */
        struct gpu_strips b;
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            b.row[i] = gpu_load16(&x[h * TILE + gpu_strip_row(i)][j * 32 + gpu_strip_k()]);
        }
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++)
            gpu_mma16(&acc[h * PAIR + m], &strips[m], &b);
    }
}

/* Sums of 16 choices at a time through shared memory, so that they leave as whole rows. */
GPU_FN void many_finish(const struct gpu_experts *a, many_shared *s, const struct gpu_sums *acc,
                        uint32_t row0, uint32_t high, const bool up) {
    enum { LANES = GPU_MANY_ROWS / 8 };
    GPU_UNROLL
    for (uint32_t h = 0; h < MANY_HIGH; h++) {
        if (h >= high)
            continue;
        GPU_UNROLL
        for (uint32_t m = 0; m < (up ? 1u : PAIR); m++) {
            gpu_barrier(); /* the band before is no longer read */
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_SUMS; i++) {
                const float sum = acc[h * PAIR + m].at[i];
                s->band[gpu_sum_col(i)][gpu_wave() * TILE + gpu_sum_row(i)] =
                    up ? activate(a, sum, acc[h * PAIR + 1].at[i]) : sum;
            }
            gpu_barrier();
            const uint32_t c = gpu_thread() / LANES, r = gpu_thread() % LANES * 8;
            const uint32_t row = up ? row0 + r : row0 + (r / TILE * PAIR + m) * TILE + r % TILE;
            if (c >= TILE || h * TILE + c >= s->choices.n || row >= a->rows)
                continue;
            float sum[8];
            widen_f32x4(sum, gpu_load16(&s->band[c][r]));
            widen_f32x4(sum + 4, gpu_load16(&s->band[c][r + 4]));
            many_put(a, s->choices.slot[h * TILE + c], row, sum, 8, up);
        }
    }
}

GPU_FN void experts_many(const struct gpu_experts *a, many_shared *s, const bool up,
                         const bool bf16) {
    const uint32_t wide = up ? GPU_MANY_ROWS : GPU_MANY_ROWS * PAIR;
    const uint32_t first = gpu_block_x() * GPU_MANY_GROUPS * wide;
    const uint32_t left = (a->rows - first + wide - 1) / wide;
    const uint32_t pieces = (a->cols + PIECE - 1) / PIECE;
    const uint32_t steps = pieces * (left < GPU_MANY_GROUPS ? left : GPU_MANY_GROUPS);
    struct gpu_sums acc[MANY_HIGH * PAIR];
    struct many_weights now, next;
    gpu_wait_previous();
    gpu_launch_next();
    if (!many_tile(a, &s->choices, up, MANY_THREADS))
        return;
    const uint32_t high = (s->choices.n + TILE - 1) / TILE;
    const uint64_t expert = s->choices.expert;
    uint32_t piece = 0, row0 = first, ahead = 0, here = 0, there = MANY_STAGES - 1;
    GPU_UNROLL
    for (uint32_t t = 0; t < MANY_HIGH * PAIR; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            acc[t].at[i] = 0;
    }
    for (uint32_t t = 0; t < MANY_STAGES - 1; t++) {
        if (t < steps)
            many_fetch(a, s, s->x[t], ahead, high, bf16);
        gpu_copy_commit();
        ahead = ahead + 1 < pieces ? ahead + 1 : 0;
    }
    many_take(a, &now, expert, row0, 0, 0, up, bf16);
    GPU_ROLLED
    for (uint32_t t = 0; t < steps; t++) {
        gpu_copy_wait(MANY_STAGES - 2);
        gpu_barrier(); /* everybody's have come, and nobody reads what the next ones replace */
        if (t + MANY_STAGES - 1 < steps)
            many_fetch(a, s, s->x[there], ahead, high, bf16);
        gpu_copy_commit();
        const bool last = piece + 1 == pieces;
        const uint32_t next_row0 = last ? row0 + wide : row0, next_piece = last ? 0 : piece + 1;
        /* Weights of the step after this one; BF16, of the products after the next ones. */
        if (!bf16)
            many_take(a, &next, expert, next_row0, next_piece, 0, up, false);
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            if (bf16)
                many_take(a, &next, expert, j < 3 ? row0 : next_row0, j < 3 ? piece : next_piece,
                          (j + 1) % 4, up, true);
            many_multiply(acc, &now, s->x[here], j, high, bf16);
            if (bf16)
                now = next;
        }
        now = next;
        ahead = ahead + 1 < pieces ? ahead + 1 : 0;
        here = here + 1 < MANY_STAGES ? here + 1 : 0;
        there = there + 1 < MANY_STAGES ? there + 1 : 0;
        if (last) {
            many_finish(a, s, acc, row0, high, up);
            GPU_UNROLL
            for (uint32_t h = 0; h < MANY_HIGH * PAIR; h++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < GPU_SUMS; i++)
                    acc[h].at[i] = 0;
            }
        }
        piece = next_piece;
        row0 = next_row0;
    }
    gpu_copy_wait(0);
}

GPU_KERNEL(weir_experts_up_many, gpu_experts, MANY_THREADS, 1) {
    GPU_SHARED(many_shared, s);
    experts_many(&a, s, true, false);
}
GPU_KERNEL(weir_experts_down_many, gpu_experts, MANY_THREADS, 1) {
    GPU_SHARED(many_shared, s);
    experts_many(&a, s, false, false);
}
GPU_KERNEL(weir_experts_up_many_bf16, gpu_experts, MANY_THREADS, 1) {
    GPU_SHARED(many_shared, s);
    experts_many(&a, s, true, true);
}
GPU_KERNEL(weir_experts_down_many_bf16, gpu_experts, MANY_THREADS, 1) {
    GPU_SHARED(many_shared, s);
    experts_many(&a, s, false, true);
}
