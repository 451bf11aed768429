/* experts_wgmma.c: routed experts for many rows (experts_many.c) by products of warpgroups, weights
 * of MXFP4. A wave has 16 rows of two matrices (or of two parts of one), a warpgroup 64 of either:
 * they go from memory into registers, become BF16 there and are rows of products whose columns are
 * the choices of a tile, about as many as there are. A third warpgroup brings x, a wave a stage.
 *
 * Weights become BF16 while the products before are on their way, in registers that the products
 * before those read. The second warpgroup begins a little later than the first, so that one
 * multiplies while the other's results leave.
 * Invariant that bites: of 16 columns of a product a lane has the pairs from 2 t and 2 t + 8 on (t:
 * lane % 4), and of a piece of 128 columns of codes those from 32 t on. So x lies in shared memory
 * in the order in which columns are multiplied: product i of a piece has of each t the columns
 * 32 t + 4 i to 32 t + 4 i + 3, first two of all t, then the other two. */
#include "ops/gpu/kernels/experts_many.h"

enum {
    STAGES = GPU_MANY_WG_STAGES,
    AT_ONCE = 4, /* stages that are filled at the same time, each by a wave */
    BATCH = 3,   /* choices that a thread asks for at a time */
    LAG = 2,     /* stages by which the second warpgroup is behind the first */
    BOTH = 96,   /* choices up to which weights of both matrices are made at a time */
    PIECE = GPU_PIECE_COLS,
};

#ifdef GPU_WARPGROUPS

/* What a block goes through: pieces of columns, over and over for groups of rows. */
struct many_walk {
    uint32_t first, rows, pieces, steps; /* `rows` at a time, from `first` on */
};
GPU_FN void many_walk_of(struct many_walk *w, const struct gpu_experts *a, const bool up) {
    w->rows = up ? GPU_MANY_ROWS : GPU_MANY_ROWS * PAIR;
    const uint32_t groups = (a->rows + w->rows - 1) / w->rows;
    const uint32_t each = (groups + gpu_blocks_x() - 1) / gpu_blocks_x();
    const uint32_t from = gpu_block_x() * each;
    const uint32_t n = from >= groups ? 0 : groups - from < each ? groups - from : each;
    w->first = from * w->rows;
    w->pieces = (a->cols + PIECE - 1) / PIECE;
    w->steps = n * w->pieces;
}

/* Of choice c: 8 columns of each quarter of a piece from k on, in the order of products. */
GPU_FN void load_columns(const struct gpu_experts *a, const struct gpu_many_choices *s,
                         struct gpu_u4 *v, uint32_t c, uint32_t k) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    const uint16_t *row = a->x + (uint64_t)s->from[c < s->n ? c : 0] * a->x_stride;
    GPU_UNROLL
    for (uint32_t t = 0; t < 4; t++)
        v[t] = c < s->n && k + 32 * t < a->cols ? gpu_load16(row + k + 32 * t) : none;
}
GPU_FN void store_columns(uint16_t (*panel)[64], const struct gpu_u4 *v, uint32_t c, uint32_t i) {
    GPU_UNROLL
    for (uint32_t q = 0; q < 4; q++) {
        const struct gpu_u4 all = {word_of(v[0], q), word_of(v[1], q), word_of(v[2], q),
                                   word_of(v[3], q)};
        gpu_store16(&panel[0][0] + gpu_panel(c, i % 2 * 4 + q), all);
    }
}

/* A wave fills a stage, so that four are on their way. */
GPU_FN void many_bring(const struct gpu_experts *a, struct gpu_many_wg_shared *s,
                       const struct many_walk *w) {
    const uint32_t first = gpu_wave() - GPU_MANY_WAVES, high = (s->choices.n + 7) / 8 * 8;
    /* Eight lanes in a row: four choices, two pieces of a panel each. */
    const uint32_t c0 = gpu_lane() / 2 % 8, i = gpu_lane() % 2 + gpu_lane() / 16 * 2;
    uint32_t piece = first % w->pieces, stage = first, parity = 1;
    GPU_ROLLED
    for (uint32_t t = first; t < w->steps; t += AT_ONCE) {
        const uint32_t k = piece * PIECE + i * 8;
        GPU_ROLLED
        for (uint32_t c = c0; c < high; c += 8 * BATCH) {
            struct gpu_u4 v[BATCH][4];
            GPU_UNROLL
            for (uint32_t b = 0; b < BATCH; b++)
                load_columns(a, &s->choices, v[b], c + 8 * b, k);
            if (c == c0)
                gpu_gate_wait(&s->empty[stage], parity);
            GPU_UNROLL
            for (uint32_t b = 0; b < BATCH; b++)
                if (c + 8 * b < high)
                    store_columns(s->x[stage][i / 2], v[b], c + 8 * b, i);
        }
        gpu_wg_seen();
        gpu_gate_arrive(&s->full[stage]);
        piece = (piece + AT_ONCE) % w->pieces;
        stage += AT_ONCE;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
}

/* Where a lane's weights of a piece are: of the wave's rows, `row0` being the block's. */
struct many_place {
    const uint8_t *codes, *scales;
};
GPU_FN void many_place_of(struct many_place *p, const struct gpu_experts *a, uint64_t expert,
                          const struct many_walk *w, uint32_t row0, const bool up) {
    const uint32_t rows = up ? TILE : TILE * PAIR, pairs = (a->rows + rows - 1) / rows;
    const uint32_t pair = row0 / rows + gpu_wave(); /* behind the last: what is there is ignored */
    const uint8_t *from = a->w + expert * a->w_stride +
                          (uint64_t)(pair < pairs ? pair : pairs - 1) * w->pieces * GPU_PIECE_BYTES;
    p->codes = from + lane_vector(0, 0) * 16;
    p->scales = from + GPU_PIECE_BYTES_BF16 + lane_vector(0, 0);
}
/* The piece, and on to the next one. */
GPU_FN void many_take(struct many_weights *w, struct many_place *p) {
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            const uint32_t vector = (m * TILE + 8 * i) * 4;
            w->codes[m][i] = gpu_load16_stream(p->codes + vector * 16);
            w->scale[m][i] = p->scales[vector];
        }
    }
    p->codes += GPU_PIECE_BYTES;
    p->scales += GPU_PIECE_BYTES;
}

/* Factors of a lane's rows; `large`: a lane of the wave has one that BF16 has not. */
struct many_scales {
    uint32_t pair[PAIR][GPU_STRIPS];
    bool large;
};
GPU_FN void many_scales_of(struct many_scales *f, const struct many_weights *w) {
    bool large = false;
    GPU_UNROLL
    for (uint32_t m = 0; m < PAIR; m++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            f->pair[m][i] = scale_pair(w->scale[m][i]);
            large |= w->scale[m][i] > 128;
        }
    }
    f->large = gpu_ballot(large) != 0;
}

/* Words j of a lane's two rows of matrix m, as rows of two products. */
GPU_FN void many_rows_of(struct gpu_u4 *rows, const struct many_weights *w,
                         const struct many_scales *f, uint32_t m, uint32_t j) {
    struct gpu_u4 v[2];
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        v[i] = widen_codes(word_of(w->codes[m][i], j), f->pair[m][i]);
    if (__builtin_expect(f->large, 0)) {
        v[0] = times_pairs(v[0], scale_more(w->scale[m][0]));
        v[1] = times_pairs(v[1], scale_more(w->scale[m][1]));
    }
    const struct gpu_u4 even = {v[0].x, v[1].x, v[0].y, v[1].y};
    const struct gpu_u4 odd = {v[0].z, v[1].z, v[0].w, v[1].w};
    rows[0] = even;
    rows[1] = odd;
}

/* Sums of 16 choices at a time through the wave's shared memory, in two places by turns, so that
 * they leave as pieces of rows: what is written was read before the last meeting. */
GPU_FN void many_finish(const struct gpu_experts *a, const struct gpu_many_choices *s,
                        float (*bands)[16][32 + GPU_BAND_PAD], float (*acc)[MANY_TILE / 2],
                        uint32_t row0, const uint32_t n, const bool up) {
    const uint32_t lanes = up ? 2 : 8, each = up ? 8 : 4; /* of a choice, and results of a lane */
    const uint32_t base = row0 + gpu_wave() * (up ? TILE : TILE * PAIR);
    const uint32_t r = gpu_lane() % lanes * each, parts = up ? 1 : 4;
    GPU_UNROLL
    for (uint32_t h = 0; h < (n + 15) / 16; h++) {
        float(*band)[32 + GPU_BAND_PAD] = bands[h % 2];
        uint32_t slot[4];
        float sum[4][8];
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            if (h * 8 + i >= n / 2)
                continue;
            const uint32_t c = gpu_wg_col(i), row = gpu_lane() / 4 + i / 2 % 2 * 8;
            const float first = acc[0][h * 8 + i], other = acc[1][h * 8 + i];
            band[c][row] = up ? activate(a, first, other) : first;
            if (!up)
                band[c][TILE + row] = other;
        }
        GPU_UNROLL
        for (uint32_t q = 0; q < parts; q++)
            slot[q] = s->slot[h * 16 + q * 4 + gpu_lane() / lanes];
        gpu_wave_meet();
        GPU_UNROLL
        for (uint32_t q = 0; q < parts; q++) {
            const float *from = &band[q * 4 + gpu_lane() / lanes][r];
            widen_f32x4(sum[q], gpu_load16(from));
            if (up)
                widen_f32x4(sum[q] + 4, gpu_load16(from + 4));
        }
        GPU_UNROLL
        for (uint32_t q = 0; q < parts; q++)
            if (h * 16 + q * 4 + gpu_lane() / lanes < s->n && base + r < a->rows)
                many_put(a, slot[q], base + r, sum[q], each, up);
    }
    gpu_wave_meet(); /* what is written next may be in either place */
}

/* Sums of a piece, from stage `stage` on; the piece in front of it, if any, is no longer read.
 * Where registers are left, weights of both matrices are widened for products in one go. */
GPU_FN void many_piece(struct gpu_many_wg_shared *s, float (*acc)[MANY_TILE / 2],
                       struct gpu_u4 (*rows)[PAIR][2], const struct many_weights *w, uint32_t stage,
                       bool before, const uint32_t n) {
    const uint16_t *x = &s->x[stage][0][0][0];
    const uint32_t each = n <= BOTH ? PAIR : 1; /* matrices */
    struct many_scales scales;
    many_scales_of(&scales, w);
    GPU_UNROLL
    for (uint32_t g = 0; g < 4 * PAIR / each; g++) {
        const uint32_t j = g * each / PAIR, m0 = g * each % PAIR;
        const uint16_t *panel = x + j / 2 * MANY_TILE * 64;
        GPU_UNROLL
        for (uint32_t m = m0; m < m0 + each; m++)
            many_rows_of(rows[g % 2][m], w, &scales, m, j);
        gpu_wg_begin();
        GPU_UNROLL
        for (uint32_t m = m0; m < m0 + each; m++) {
            gpu_wg_rows_of(acc[m], n, rows[g % 2][m][0], panel, j % 2 * 2, true);
            gpu_wg_rows_of(acc[m], n, rows[g % 2][m][1], panel, j % 2 * 2 + 1, true);
        }
        gpu_wg_commit();
        gpu_wg_wait(1); /* the registers that are filled next are no longer read */
        if (g == 0 && before && gpu_lane() == 0)
            gpu_gate_arrive(&s->empty[stage ? stage - 1 : STAGES - 1]);
    }
}

GPU_FN void many_multiply(const struct gpu_experts *a, struct gpu_many_wg_shared *s,
                          const struct many_walk *w, const uint32_t n, const bool up) {
    const uint64_t expert = s->choices.expert;
    const uint32_t end = w->first + w->steps / w->pieces * w->rows;
    const bool second = gpu_uniform(gpu_wave()) >= GPU_MANY_WAVES / 2;
    struct many_place place;
    struct many_weights now, next;
    uint32_t stage = 0, parity = 0;
    many_place_of(&place, a, expert, w, w->first, up);
    many_take(&next, &place);
    if (second)
        gpu_gate_wait(&s->begun, 0);
    GPU_ROLLED
    for (uint32_t row0 = w->first; row0 < end; row0 += w->rows) {
        float acc[PAIR][MANY_TILE / 2];
        struct gpu_u4 rows[2][PAIR][2];
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < n / 2; i++)
                acc[m][i] = 0;
            gpu_wg_hold(acc[m], n / 2);
        }
        GPU_ROLLED
        for (uint32_t piece = 0; piece < w->pieces; piece++) {
            now = next;
            if (piece + 1 == w->pieces) /* behind the last rows: some that nobody multiplies */
                many_place_of(&place, a, expert, w, row0 + w->rows, up);
            many_take(&next, &place);
            gpu_gate_wait(&s->full[stage], parity);
            many_piece(s, acc, rows, &now, stage, piece > 0, n);
            if (row0 == w->first && piece == (LAG < w->pieces ? LAG : w->pieces - 1) && !second &&
                gpu_lane() == 0)
                gpu_gate_arrive(&s->begun);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            parity ^= stage == 0;
        }
        gpu_wg_wait(0);
        GPU_UNROLL
        for (uint32_t m = 0; m < PAIR; m++)
            gpu_wg_hold(acc[m], n / 2);
        if (gpu_lane() == 0)
            gpu_gate_arrive(&s->empty[stage ? stage - 1 : STAGES - 1]);
        many_finish(a, &s->choices, s->band[gpu_wave()], acc, row0, n, up);
    }
}

GPU_FN void experts_wg(const struct gpu_experts *a, struct gpu_many_wg_shared *s, const bool up) {
    struct many_walk w;
    many_walk_of(&w, a, up);
    gpu_wait_previous();
    gpu_launch_next();
    if (!w.steps)
        return;
    if (gpu_thread() == 0) {
        gpu_gate_set(&s->begun, GPU_MANY_WAVES / 2);
        for (uint32_t i = 0; i < STAGES; i++) {
            gpu_gate_set(&s->full[i], GPU_WAVE);
            gpu_gate_set(&s->empty[i], GPU_MANY_WAVES);
        }
    }
    if (!many_tile(a, &s->choices, up, GPU_MANY_WG_THREADS)) /* where all have met */
        return;
    if (gpu_wave() >= GPU_MANY_WAVES) {
        gpu_fewer_registers(88);
        many_bring(a, s, &w);
        return;
    }
    gpu_more_registers(208);
    const uint32_t n = s->choices.n;
    if (n <= 8)
        many_multiply(a, s, &w, 8, up);
    else if (n <= 16)
        many_multiply(a, s, &w, 16, up);
    else if (n <= 24)
        many_multiply(a, s, &w, 24, up);
    else if (n <= 32)
        many_multiply(a, s, &w, 32, up);
    else if (n <= 48)
        many_multiply(a, s, &w, 48, up);
    else if (n <= 64)
        many_multiply(a, s, &w, 64, up);
    else if (n <= 72)
        many_multiply(a, s, &w, 72, up);
    else if (n <= 80)
        many_multiply(a, s, &w, 80, up);
    else if (n <= 88)
        many_multiply(a, s, &w, 88, up);
    else if (n <= 96)
        many_multiply(a, s, &w, 96, up);
    else if (n <= 112)
        many_multiply(a, s, &w, 112, up);
    else
        many_multiply(a, s, &w, 128, up);
}

GPU_KERNEL(weir_experts_up_many_wg, gpu_experts, GPU_MANY_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_many_wg_shared, s);
    experts_wg(&a, s, true);
}
GPU_KERNEL(weir_experts_down_many_wg, gpu_experts, GPU_MANY_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_many_wg_shared, s);
    experts_wg(&a, s, false);
}

#else

GPU_KERNEL(weir_experts_up_many_wg, gpu_experts, GPU_MANY_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}
GPU_KERNEL(weir_experts_down_many_wg, gpu_experts, GPU_MANY_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
