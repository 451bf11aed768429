/* experts.c: routed experts with MXFP4 or BF16 weights for few rows, where every chosen expert is
 * read once for a few choices.
 *
 * A block belongs to one expert and some rows of a matrix. Of choices that are not grouped it
 * belongs to one (row, j): the first choice of an expert works for all rows that chose it; the
 * blocks of later ones find an earlier choice and leave. Either way results do not depend on who
 * came first.
 *
 * A wave takes pieces of its rows, four 16-byte vectors a lane, through stages in shared memory
 * that no other lane reads: a longer row of registers, so that all that a block reads is on its way
 * before it needs the first. Nobody waits for anybody on the way. */
#include "ops/gpu/kernels/experts.h"

enum {
    UP_THREADS = 256,
    DOWN_THREADS = GPU_WAVE * GPU_EXPERT_DOWN_WAVES,
    STAGES = GPU_EXPERT_STAGES,
    VECTORS = GPU_EXPERT_VECTORS,
};
#if GPU_WAVE == 32
typedef struct gpu_experts_shared_32 experts_shared;
#else
typedef struct gpu_experts_shared_64 experts_shared;
#endif

/* ------------------------------------------------------------------------------- choices */

struct expert_choices {
    uint32_t n, first; /* first: in a->order */
    int32_t expert;
};

/* The choices of this block's expert; none: the block has nothing to do. Choices that are not
 * grouped go into `slots`, which others read behind a barrier. Every wave calls it. */
GPU_FN struct expert_choices choices_of(const struct gpu_experts *a, uint16_t *slots) {
    const uint32_t mine = gpu_block_y();
    struct expert_choices c = {1, 0, (int32_t)mine};
    if (a->grouped) {
        c.first = a->offsets[mine];
        c.n = a->offsets[mine + 1] - c.first;
        return c;
    }
    c.expert = a->ids[mine];
    if (a->slots == a->top_k) { /* one row: all its experts are different */
        if (gpu_thread() == 0)
            slots[0] = (uint16_t)mine;
        return c;
    }
    /* All are asked for before the first is looked at. */
    int32_t id[GPU_SCANNED_SLOTS / GPU_WAVE];
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SCANNED_SLOTS / GPU_WAVE; i++) {
        const uint32_t at = i * GPU_WAVE + gpu_lane();
        id[i] = at < a->slots ? a->ids[at] : -1;
    }
    uint32_t n = 0, earlier = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SCANNED_SLOTS / GPU_WAVE; i++) {
        const uint32_t at = i * GPU_WAVE + gpu_lane();
        if (i * GPU_WAVE >= a->slots)
            continue; /* the same for the whole wave */
        const gpu_mask all = gpu_ballot(id[i] == c.expert);
        earlier += gpu_popcount(gpu_ballot(id[i] == c.expert && at < mine));
        if (gpu_wave() == 0 && id[i] == c.expert)
            slots[n + gpu_popcount(all & (((gpu_mask)1 << gpu_lane()) - 1))] = (uint16_t)at;
        n += gpu_popcount(all);
    }
    c.n = earlier || c.expert < 0 ? 0 : n;
    return c;
}
GPU_FN uint32_t slot_of(const struct gpu_experts *a, const uint16_t *slots,
                        const struct expert_choices *c, uint32_t i) {
    return a->grouped ? a->order[c->first + i] : slots[i];
}

/* ------------------------------------------------------------------------------- pieces */

/* Rows of two matrices, or of two parts of one, that this lane reads. */
struct expert_rows {
    const uint8_t *codes[PAIR], *scales[PAIR]; /* of the expert */
    uint32_t row[PAIR][GPU_STRIPS];
};
/* Row `row` for strip i of part m; beyond the last: the last once more. */
GPU_FN void take_row(const struct gpu_experts *a, struct expert_rows *w, uint32_t m, uint32_t of,
                     uint32_t i, uint32_t row, int32_t expert, const bool bf16) {
    w->codes[m] = a->codes[of] + (uint64_t)(uint32_t)expert * a->codes_stride;
    w->scales[m] = bf16 ? 0 : a->scales[of] + (uint64_t)(uint32_t)expert * a->scales_stride;
    w->row[m][i] = row < a->rows ? row : a->rows - 1;
}

/* Columns of a piece: a vector of codes has 32, one of BF16 has 8, of four groups of lanes. */
GPU_FN uint32_t piece_cols(const bool bf16) {
    return bf16 ? 32 : PIECE;
}
/* Of the columns of a piece, where this lane's begin. */
GPU_FN uint32_t lane_col(const bool bf16) {
    return bf16 ? gpu_strip_k() : gpu_strip_k() / 8 * 32;
}

/* Asks for a piece of this wave's rows, and commits. */
GPU_FN void piece_fetch(struct gpu_u4 *stage, const struct expert_rows *w, uint32_t piece,
                        uint32_t end, uint32_t cols, const bool bf16) {
    const uint32_t k = piece * piece_cols(bf16) + lane_col(bf16);
    if (piece < end) {
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                const uint32_t at = w->row[m][i] * cols + k; /* an expert is no larger */
                gpu_copy16(stage + (m * GPU_STRIPS + i) * GPU_WAVE + gpu_lane(),
                           w->codes[m] + (k >= cols ? 0u
                                          : bf16    ? at * 2
                                                    : at / 2),
                           k < cols);
            }
        }
    }
    gpu_copy_commit();
}

/* What else a lane needs of a piece: its scales, and its columns of its choice of x. */
struct piece_rest {
    uint32_t scale[PAIR][GPU_STRIPS];
    struct gpu_u4 x[2]; /* codes: of the products to come and of those behind them */
};
GPU_FN void load_x(struct gpu_u4 *v, const uint16_t *x, uint32_t k, uint32_t cols) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    *v = none;
    if (k < cols)
        *v = gpu_load16(x + k);
}
GPU_FN void load_scales(struct piece_rest *r, const struct expert_rows *w, uint32_t piece,
                        uint32_t cols) {
    const uint32_t k = piece * PIECE + lane_col(false);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            r->scale[m][i] = k < cols ? w->scales[m][w->row[m][i] * (cols / 32) + k / 32] : 0;
    }
}

GPU_FN bool has_large_scale(const struct piece_rest *r) {
    bool large = false;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            large |= r->scale[m][i] > 128;
    }
    return gpu_ballot(large) != 0;
}
/* A piece's products; scales and x of the one behind it come where those of this one were. */
GPU_FN void multiply_codes(float (*acc)[GPU_FEW_SUMS], const struct gpu_u4 *stage,
                           struct piece_rest *r, const struct expert_rows *w, const uint16_t *x,
                           uint32_t piece, uint32_t cols, uint32_t x_cols) {
    struct gpu_u4 codes[PAIR][GPU_STRIPS];
    uint32_t factor[PAIR][GPU_STRIPS];
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            codes[m][i] = gpu_load16(stage + (m * GPU_STRIPS + i) * GPU_WAVE + gpu_lane());
            factor[m][i] = scale_pair(r->scale[m][i]);
        }
    }
    load_scales(r, w, piece + 1, cols);
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const struct gpu_u4 b = like_codes(r->x[j % 2]);
        const uint32_t k = (piece + (j + 2) / 4) * PIECE + lane_col(false) + (j + 2) % 4 * 8;
        load_x(&r->x[j % 2], x, k, x_cols);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            struct gpu_strips strips;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                const struct gpu_u4 c = codes[m][i];
                strips.row[i] = widen_codes(j == 0   ? c.x
                                            : j == 1 ? c.y
                                            : j == 2 ? c.z
                                                     : c.w,
                                            factor[m][i]);
            }
            gpu_mma_few(acc[m], &strips, b);
        }
    }
}
/* The same where some scale is above 128, so that its factor takes a second multiplication: rare,
 * and so without haste. */
GPU_FN void multiply_large(float (*acc)[GPU_FEW_SUMS], const struct gpu_u4 *stage,
                           struct piece_rest *r, const struct expert_rows *w, const uint16_t *x,
                           uint32_t piece, uint32_t cols, uint32_t x_cols) {
    const uint32_t k = piece * PIECE + lane_col(false);
    GPU_ROLLED
    for (uint32_t j = 0; j < 4; j++) {
        struct gpu_u4 b;
        load_x(&b, x, k + j * 8, x_cols);
        b = like_codes(b);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            struct gpu_strips strips;
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_STRIPS; i++) {
                const struct gpu_u4 *codes = stage + (m * GPU_STRIPS + i) * GPU_WAVE + gpu_lane();
                const uint32_t word = ((const uint32_t *)codes)[j];
                strips.row[i] = times_pairs(widen_codes(word, scale_pair(r->scale[m][i])),
                                            scale_more(r->scale[m][i]));
            }
            gpu_mma_few(acc[m], &strips, b);
        }
    }
    load_scales(r, w, piece + 1, cols);
    GPU_UNROLL
    for (uint32_t j = 0; j < 2; j++)
        load_x(&r->x[j], x, k + PIECE + j * 8, x_cols);
}
GPU_FN void multiply_bf16(float (*acc)[GPU_FEW_SUMS], const struct gpu_u4 *stage,
                          struct piece_rest *r, const uint16_t *x, uint32_t piece,
                          uint32_t x_cols) {
    const struct gpu_u4 b = r->x[0];
    load_x(&r->x[0], x, (piece + 1) * piece_cols(true) + lane_col(true), x_cols);
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        struct gpu_strips strips;
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            strips.row[i] = gpu_load16(stage + (m * GPU_STRIPS + i) * GPU_WAVE + gpu_lane());
        gpu_mma_few(acc[m], &strips, b);
    }
}

/* The first pieces of [begin, end). */
GPU_FN void pieces_begin(struct gpu_u4 *stages, const struct expert_rows *w, uint32_t begin,
                         uint32_t end, uint32_t cols, const bool bf16) {
    GPU_UNROLL
    for (uint32_t t = 0; t < STAGES; t++)
        piece_fetch(stages + t * VECTORS, w, begin + t, end, cols, bf16);
}
/* Sums of all of them; x: of this lane's choice, of which there are x_cols columns or none. */
GPU_FN void pieces_multiply(float (*acc)[GPU_FEW_SUMS], struct gpu_u4 *stages,
                            const struct expert_rows *w, const uint16_t *x, uint32_t begin,
                            uint32_t end, uint32_t cols, uint32_t x_cols, const bool bf16) {
    struct piece_rest r;
    uint32_t here = 0;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
            acc[m][i] = 0;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < 2; j++)
        load_x(&r.x[j], x, begin * piece_cols(bf16) + lane_col(bf16) + j * 8, x_cols);
    if (!bf16)
        load_scales(&r, w, begin, cols);
    GPU_ROLLED
    for (uint32_t piece = begin; piece < end; piece++) {
        struct gpu_u4 *stage = stages + here * VECTORS;
        gpu_copy_wait(GPU_EXPERT_STAGES - 1);
        if (bf16)
            multiply_bf16(acc, stage, &r, x, piece, x_cols);
        else if (has_large_scale(&r))
            multiply_large(acc, stage, &r, w, x, piece, cols, x_cols);
        else
            multiply_codes(acc, stage, &r, w, x, piece, cols, x_cols);
        piece_fetch(stage, w, piece + STAGES, end, cols, bf16);
        here = here + 1 < STAGES ? here + 1 : 0;
    }
    gpu_copy_wait(0);
}

/* ------------------------------------------------------------------------------- up */

/* h = act(w1 z, w3 z): 16 rows of both matrices a block, its waves share the columns. */
GPU_FN void experts_up(const struct gpu_experts *a, experts_shared *s, const bool bf16) {
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t row0 = gpu_block_x() * TILE, wave = gpu_wave();
    const struct expert_choices c = choices_of(a, s->slots);
    if (!c.n)
        return;
    struct gpu_u4 *stages = (struct gpu_u4 *)s->codes[wave];
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(a, &w, m, m, i, row0 + gpu_strip_row(i), c.expert, bf16);
    }
    const uint32_t pieces = (a->cols + piece_cols(bf16) - 1) / piece_cols(bf16);
    const uint32_t begin = wave * pieces / gpu_waves(), end = (wave + 1) * pieces / gpu_waves();
    pieces_begin(stages, &w, begin, end, a->cols, bf16);
    gpu_barrier(); /* s->slots is there */
    for (uint32_t base = 0; base < c.n; base += GPU_FEW) {
        float acc[PAIR][GPU_FEW_SUMS];
        const uint32_t at = base + gpu_strip_row(0);
        const uint16_t *x = a->x;
        if (base > 0)
            pieces_begin(stages, &w, begin, end, a->cols, bf16);
        if (at < c.n)
            x += (uint64_t)(slot_of(a, s->slots, &c, at) / a->top_k) * a->x_stride;
        pieces_multiply(acc, stages, &w, x, begin, end, a->cols, at < c.n ? a->cols : 0, bf16);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
                s->part[wave][m][gpu_sum_col(i)][gpu_sum_row(i)] = acc[m][i];
        }
        gpu_barrier();
        const uint32_t r = gpu_thread() % TILE, mine = gpu_thread() / TILE;
        if (mine < GPU_FEW && base + mine < c.n && row0 + r < a->rows) {
            float gate = 0, up = 0;
            for (uint32_t i = 0; i < gpu_waves(); i++) {
                gate += s->part[i][0][mine][r];
                up += s->part[i][1][mine][r];
            }
            a->h[(uint64_t)slot_of(a, s->slots, &c, base + mine) * a->out_stride + row0 + r] =
                gpu_to_bf16(activate(a, gate, up));
        }
        gpu_barrier();
    }
}
GPU_KERNEL(weir_experts_up, gpu_experts, UP_THREADS, 3) {
    GPU_SHARED(experts_shared, s);
    experts_up(&a, s, false);
}
GPU_KERNEL(weir_experts_up_bf16, gpu_experts, UP_THREADS, 3) {
    GPU_SHARED(experts_shared, s);
    experts_up(&a, s, true);
}

/* ------------------------------------------------------------------------------- down */

/* each = w2 h: 32 rows a wave, all columns. Who chose what was known before h was: weights are
 * asked for above the wait for the kernel before, which made h. */
GPU_FN void experts_down(const struct gpu_experts *a, struct gpu_experts_down_shared *s,
                         const bool bf16) {
    const uint32_t wave = gpu_wave();
    const uint32_t row0 = (gpu_block_x() * gpu_waves() + wave) * TILE * PAIR;
    const struct expert_choices c = choices_of(a, s->slots);
    if (!c.n) {
        gpu_wait_previous();
        return;
    }
    struct gpu_u4 *stages = (struct gpu_u4 *)s->codes[wave];
    struct expert_rows w;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++)
            take_row(a, &w, m, 0, i, row0 + m * TILE + gpu_strip_row(i), c.expert, bf16);
    }
    const uint32_t pieces = (a->cols + piece_cols(bf16) - 1) / piece_cols(bf16);
    const uint32_t end = row0 < a->rows ? pieces : 0;
    pieces_begin(stages, &w, 0, end, a->cols, bf16);
    gpu_wait_previous();
    gpu_launch_next();
    gpu_barrier(); /* s->slots is there */
    for (uint32_t base = 0; base < c.n; base += GPU_FEW) {
        float acc[PAIR][GPU_FEW_SUMS];
        const uint32_t at = base + gpu_strip_row(0);
        const uint16_t *x = a->x;
        if (base > 0)
            pieces_begin(stages, &w, 0, end, a->cols, bf16);
        if (at < c.n)
            x += (uint64_t)slot_of(a, s->slots, &c, at) * a->x_stride;
        pieces_multiply(acc, stages, &w, x, 0, end, a->cols, at < c.n ? a->cols : 0, bf16);
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_FEW_SUMS; i++) {
            const uint32_t mine = base + gpu_sum_col(i);
            if (mine >= c.n)
                continue;
            float *each = a->each + (uint64_t)slot_of(a, s->slots, &c, mine) * a->out_stride;
            GPU_UNROLL
            for (uint32_t m = 0; m < PAIR; m++) {
                const uint32_t row = row0 + m * TILE + gpu_sum_row(i);
                if (row < a->rows)
                    each[row] = acc[m][i];
            }
        }
    }
}
GPU_KERNEL(weir_experts_down, gpu_experts, DOWN_THREADS, 5) {
    GPU_SHARED(struct gpu_experts_down_shared, s);
    experts_down(&a, s, false);
}
GPU_KERNEL(weir_experts_down_bf16, gpu_experts, DOWN_THREADS, 5) {
    GPU_SHARED(struct gpu_experts_down_shared, s);
    experts_down(&a, s, true);
}
