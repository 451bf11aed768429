/* kda_prefill.h: what the kernels of chunked KDA share: where a chunk's rows are, how its part of
 * the work buffer is laid out, and products of f32 numbers on units that multiply BF16.
 *
 * Such a number is the sum of two BF16 ones to 2^-17 of itself, of three to the last bit; so three
 * products of tiles are one of numbers that are nearly f32, and six one that is. The six are for
 * what enters the state, where a single token's share is far above the mean, and for queries and
 * keys of the same 16 tokens, whose shares may cancel: results then stay within what token by token
 * gives, which single BF16 operands would not. */
#ifndef WEIR_OPS_GPU_KERNELS_KDA_PREFILL_H
#define WEIR_OPS_GPU_KERNELS_KDA_PREFILL_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum {
    TILE = 16,
    CHUNK = GPU_WAVE == 32 ? (int)GPU_KDA_ROWS_32 : (int)GPU_KDA_ROWS_64,
    BLOCKS = CHUNK / TILE, /* of rows */
};

/* ------------------------------------------------------------------------------- chunks */

/* A block's part of a sequence: values of a head from value0 on. */
struct kda_pass {
    const struct gpu_kda_prefill *a;
    struct gpu_kda_span span;
    uint32_t seq, head, value0;
};
struct kda_chunk {
    uint32_t seq, row, rows; /* row: of the sequence */
};

GPU_FN uint32_t kda_chunks_of(const struct gpu_kda_span *s) {
    return s->rows ? (s->pos0 % CHUNK + s->rows + CHUNK - 1) / CHUNK : 0;
}
/* Chunk i of a sequence. */
GPU_FN struct kda_chunk kda_chunk_of(const struct gpu_kda_span *s, uint32_t seq, uint32_t i) {
    const uint32_t skipped = s->pos0 % CHUNK; /* rows of the first chunk that came before */
    const uint32_t begin = i ? i * CHUNK - skipped : 0, end = (i + 1) * CHUNK - skipped;
    struct kda_chunk c = {seq, begin, (end < s->rows ? end : s->rows) - begin};
    return c;
}
/* Chunk i of all; seq is n_seqs where there are fewer. */
GPU_FN struct kda_chunk kda_chunk_at(const struct gpu_kda_prefill *a, uint32_t i) {
    struct kda_chunk c = {a->n_seqs, 0, 0};
    for (uint32_t seq = 0; seq < a->n_seqs; seq++) {
        const uint32_t n = kda_chunks_of(&a->seqs[seq]);
        if (i < n)
            return kda_chunk_of(&a->seqs[seq], seq, i);
        i -= n;
    }
    return c;
}
/* A layer's part of a slot: states, behind them windows. */
GPU_FN float *kda_slot(const struct gpu_kda_prefill *a, int32_t slot) {
    return a->state + (uint64_t)(uint32_t)slot * a->slot_floats;
}
GPU_FN uint16_t *kda_window(const struct gpu_kda_prefill *a, int32_t slot) {
    return (uint16_t *)(kda_slot(a, slot) + (uint64_t)a->heads * a->dim * a->dim);
}
/* Number of the first chunk of a sequence. */
GPU_FN uint32_t kda_first_chunk(const struct gpu_kda_prefill *a, uint32_t seq) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq; i++)
        n += kda_chunks_of(&a->seqs[i]);
    return n;
}

/* ------------------------------------------------------------------------------- work buffer
 * The part of a chunk and head. Matrices of two or three parts have all upper parts, then all
 * lower ones. With waves of 32 a part of 64 columns and more lies in panels (gpu_panel), so that
 * what is copied to shared memory as it lies there is an operand of warpgroups. Others lie as lanes
 * read them: tiles of 16 rows by 32 columns one behind the other, and in a tile strip 0 of all
 * lanes, then strip 1. With G_i the cumulative log decay and X = (I +
 * diag(beta) Akk)^-1 diag(beta): */
struct kda_work {
    uint16_t *w;   /* [2][CHUNK][keys]: -X (K exp G) */
    uint16_t *q;   /* [2][CHUNK][keys]: Q exp G */
    uint16_t *kt;  /* [3][keys][CHUNK]: K exp(G_C - G), across */
    uint16_t *aqk; /* [2][CHUNK][CHUNK]: zero above the diagonal */
    float *u;      /* [CHUNK][keys]: X V; what the states put in its place is the output */
    float *decay;  /* [keys]: exp G_C */
};
GPU_FN bool kda_panels(const uint32_t cols) {
    return GPU_WAVE == 32 && cols >= 64;
}
/* Where element (row, k) of a part of so many columns is; one of two panels has CHUNK rows. */
GPU_FN uint32_t kda_element(uint32_t row, uint32_t k, const uint32_t cols) {
    if (kda_panels(cols))
        return k / 64 * CHUNK * 64 + gpu_panel(row, k % 64 / 8) + k % 8;
    const uint32_t tile = row / TILE * (cols / 32) + k / 32, strip = k % 32 / 8;
    const uint32_t lane = GPU_WAVE == 32 ? row % 8 * 4 + strip : strip * 16 + row % 16;
    const uint32_t of = GPU_WAVE == 32 ? row % 16 / 8 : 0;
    return ((tile * GPU_STRIPS + of) * GPU_WAVE + lane) * 8 + k % 8;
}
/* At its start: the windows before the sequences, [n_seqs][3][taps - 1][heads * dim] BF16. */
GPU_FN uint64_t kda_window_numbers(const struct gpu_kda_prefill *a) {
    return (uint64_t)3 * (a->taps - 1) * a->heads * a->dim;
}
GPU_FN uint16_t *kda_windows_before(const struct gpu_kda_prefill *a, uint32_t seq) {
    return (uint16_t *)a->work + seq * kda_window_numbers(a);
}
/* The window behind `rows` rows of the sequence. */
GPU_FN void kda_put_window(const struct kda_pass *p, uint32_t rows, int32_t slot,
                           const uint32_t threads) {
    const struct gpu_kda_prefill *a = p->a;
    const uint32_t channels = a->heads * a->dim, kept = a->taps - 1;
    uint16_t *to = kda_window(a, slot);
    for (uint32_t i = gpu_thread(); i < 3 * kept * a->dim; i += threads) {
        const uint32_t channel = p->head * a->dim + i % a->dim, line = i / a->dim;
        const uint32_t part = line / kept, t = rows + line % kept; /* row t - kept */
        const uint16_t *x = part == 0 ? a->q : part == 1 ? a->k : a->v;
        const uint16_t *before = kda_windows_before(a, p->seq);
        to[(uint64_t)line * channels + channel] =
            t < kept ? before[(uint64_t)(part * kept + t) * channels + channel]
                     : x[(uint64_t)(p->span.row0 + t - kept) * a->stride + channel];
    }
}
GPU_FN uint64_t kda_work_floats(const uint32_t keys) {
    return CHUNK * keys * 9 / 2 + CHUNK * CHUNK + keys;
}
GPU_FN struct kda_work kda_work_of(const struct gpu_kda_prefill *a, uint32_t chunk, uint32_t head,
                                   const uint32_t keys) {
    float *at = a->work + (a->n_seqs * kda_window_numbers(a) + 7) / 8 * 4 +
                ((uint64_t)chunk * a->heads + head) * kda_work_floats(keys);
    struct kda_work w;
    w.w = (uint16_t *)at;
    w.q = (uint16_t *)(at + CHUNK * keys);
    w.kt = (uint16_t *)(at + 2 * CHUNK * keys);
    w.aqk = (uint16_t *)(at + CHUNK * keys * 7 / 2);
    w.u = at + CHUNK * keys * 7 / 2 + CHUNK * CHUNK;
    w.decay = w.u + CHUNK * keys;
    return w;
}

/* ------------------------------------------------------------------------------- products */

struct kda_strips {
    struct gpu_strips hi, lo;
};
struct kda_strips_whole {
    struct kda_strips upper;
    struct gpu_strips least;
};

/* f as upper and lower parts; what these leave stays. */
GPU_FN void split8(float *f, struct gpu_u4 *hi, struct gpu_u4 *lo) {
    float upper[8];
    *hi = narrow_bf16x8(f);
    widen_bf16x8(upper, *hi);
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        f[e] -= upper[e];
    *lo = narrow_bf16x8(f);
    widen_bf16x8(upper, *lo);
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        f[e] -= upper[e];
}
GPU_FN void split1(float f, uint16_t *hi, uint16_t *lo) {
    *hi = gpu_to_bf16(f);
    *lo = gpu_to_bf16(f - gpu_from_bf16(*hi));
}
GPU_FN void split1_whole(float f, uint16_t *hi, uint16_t *lo, uint16_t *least) {
    split1(f, hi, lo);
    *least = gpu_to_bf16(f - gpu_from_bf16(*hi) - gpu_from_bf16(*lo));
}

/* Strips of a tile of f32 [k][row]. The e-th number of a lane's strip is of k = e / 2 * 8 + e % 2
 * further than its first, which is a pair further than that of the strip before. With waves of 32
 * row n of the product is row n % 8 / 2 * 4 + n / 8 * 2 + n % 2 of the tile: a lane's sums are then
 * of four neighbours. */
GPU_FN void split_cols(struct kda_strips *s, const float *tile, uint32_t stride) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint32_t n = gpu_strip_row(i);
        const uint32_t row = GPU_WAVE == 32 ? n % 8 / 2 * 4 + n / 8 * 2 + n % 2 : n;
        float f[8];
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            f[e] = tile[(gpu_strip_k() / 4 + e / 2 * 8 + e % 2) * stride + row];
        split8(f, &s->hi.row[i], &s->lo.row[i]);
    }
}
/* Strips of a tile [row][k] of upper parts in shared memory; the lower ones are `lower` further. */
GPU_FN void load_strips(struct kda_strips *s, const uint16_t *tile, uint32_t stride,
                        uint32_t lower) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        const uint16_t *from = tile + gpu_strip_row(i) * stride + gpu_strip_k();
        s->hi.row[i] = gpu_load16(from);
        s->lo.row[i] = gpu_load16(from + lower);
    }
}
/* Strips of the tile from (row, k) on of a part of so many columns; parts are `lower` apart. */
GPU_FN void load_part(struct gpu_strips *s, const uint16_t *part, uint32_t row, uint32_t k,
                      const uint32_t cols) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++)
        s->row[i] =
            gpu_load16(part + (kda_panels(cols)
                                   ? kda_element(row + gpu_strip_row(i), k + gpu_strip_k(), cols)
                                   : kda_element(row, k, cols) + (i * GPU_WAVE + gpu_lane()) * 8));
}
GPU_FN void load_parts(struct kda_strips *s, const uint16_t *part, uint32_t row, uint32_t k,
                       const uint32_t cols, uint32_t lower) {
    load_part(&s->hi, part, row, k, cols);
    load_part(&s->lo, part + lower, row, k, cols);
}
GPU_FN void clear_sums(struct gpu_sums *c) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        c->at[i] = 0;
}
/* The product of the lower parts is below what f32 keeps. */
GPU_FN void add_product(struct gpu_sums *c, const struct kda_strips *a,
                        const struct kda_strips *b) {
    gpu_mma16(c, &a->lo, &b->hi);
    gpu_mma16(c, &a->hi, &b->lo);
    gpu_mma16(c, &a->hi, &b->hi);
}

GPU_FN void load_strips_whole(struct kda_strips_whole *s, const uint16_t *tile, uint32_t stride,
                              uint32_t lower) {
    load_strips(&s->upper, tile, stride, lower);
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_STRIPS; i++)
        s->least.row[i] = gpu_load16(tile + gpu_strip_row(i) * stride + gpu_strip_k() + 2 * lower);
}
GPU_FN void add_sums(struct gpu_sums *c, const struct gpu_sums *more) {
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        c->at[i] += more->at[i];
}
/* What is below the three largest products goes to `lower`. */
GPU_FN void add_product_whole(struct gpu_sums *c, struct gpu_sums *lower,
                              const struct kda_strips_whole *a, const struct kda_strips_whole *b) {
    gpu_mma16(lower, &a->least, &b->upper.hi);
    gpu_mma16(lower, &a->upper.hi, &b->least);
    gpu_mma16(lower, &a->upper.lo, &b->upper.lo);
    add_product(c, &a->upper, &b->upper);
}

#endif
