/* dot.c: dot products of stored rows with several activation rows: the heart of linear, experts and
 * attention scores. Each (row, activation) pair has one vector of running sums; many pairs run side
 * by side to hide latency. Few activations: rows are decoded on the fly, each byte of the weight is
 * read once. Many: a block of rows is widened to f32 once and used for all of them.
 * Invariant that bites: lane l of a pair's vector takes elements l, l+VL, ... in order, whatever
 * the tile. Blocking along the row keeps that vector in memory between blocks instead of summing
 * partial results, or an answer would depend on who shares the batch. */
#include "ops/cpu/kernels.h"

/* NR: activations of a tile. At 512 bits 4 x 6 sums, 4 weights and 1 activation fill the 32
 * registers. STREAM_X: up to so many the blocked form does not pay. Small tiles are the same code
 * for builds with sanitizers, which take minutes for the large ones. */
#if defined(WEIR_SMALL_TILES)
enum { NR = 2, STREAM_X = 4 };
#elif defined(WEIR_ISA_AVX512)
enum { NR = 6, STREAM_X = 12 };
#elif defined(WEIR_ISA_AVX2)
enum { NR = 3, STREAM_X = 9 };
#else
enum { NR = 2, STREAM_X = 4 };
#endif
enum {
    MR = 4,           /* rows of a tile */
    WIDE = 8,         /* rows side by side where there is one activation */
    GROUP = 32 / VL,  /* vectors in 32 elements: what one scale of MXFP4 covers */
    STREAM_ROWS = 16, /* rows read again for the next group of activations, still in cache */
    BLOCK_ROWS = 16,  /* rows widened at a time */
    BLOCK_COLS = 512,
    BLOCK_X = 48 /* activations served by one widening */
};

ALWAYS void decode32(const unsigned char *row, const uint8_t *scale, enum dtype t, uint32_t k,
                     vf w[GROUP]) {
    if (t == DTYPE_MXFP4) {
        vdecode_mxfp4(row + k / 2, scale[k / 32], w);
        return;
    }
    for (int g = 0; g < GROUP; g++)
        w[g] = t == DTYPE_BF16 ? vwiden((const uint16_t *)(const void *)row + k + g * VL)
                               : vload((const float *)(const void *)row + k + g * VL);
}

/* Elements k .. k+VL-1 of a row, those beyond n zero. MXFP4 has no such tail. */
ALWAYS vf decode_part(const unsigned char *row, enum dtype t, uint32_t k, vm m) {
    return t == DTYPE_BF16 ? vwidenm((const uint16_t *)(const void *)row + k, m)
                           : vloadm((const float *)(const void *)row + k, m);
}

/* sum[r*N + j] += row r . x[j] over the whole row. */
ALWAYS void accumulate(const struct mat *m, uint32_t row, const float *const *x, enum dtype t,
                       const int R, const int N, vf *sum) {
    const unsigned char *w0 = m->data + row * m->row_bytes;
    const uint8_t *s0 = t == DTYPE_MXFP4 ? m->scale + (size_t)row * (m->cols / 32) : NULL;
    size_t row_bytes = m->row_bytes, row_scales = m->cols / 32;
    /* Far enough ahead for memory: along the row if it is long, else the block of rows after this
     * one. A prefetch beyond the weight is harmless. */
    size_t ahead = row_bytes >= 4096 ? 1024 : row_bytes * (size_t)R;
    const size_t bytes32 = t == DTYPE_F32 ? 128 : t == DTYPE_BF16 ? 64 : 16;
    uint32_t k = 0, cols = m->cols;
    for (; k + 32 <= cols; k += 32) {
        const unsigned char *at = w0 + k / 32 * bytes32;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf w[GROUP];
            if (t != DTYPE_MXFP4 || k % 128 == 0) /* once a cache line */
                __builtin_prefetch(at + (size_t)r * row_bytes + ahead);
            decode32(w0 + (size_t)r * row_bytes, s0 ? s0 + (size_t)r * row_scales : NULL, t, k, w);
#pragma GCC unroll 8
            for (int g = 0; g < GROUP; g++)
#pragma GCC unroll 8
                for (int j = 0; j < N; j++)
                    sum[r * N + j] = vfma(w[g], vload(x[j] + k + g * VL), sum[r * N + j]);
        }
    }
    if (t == DTYPE_MXFP4)
        return;
    for (; k < cols; k += VL) {
        vm part = vmask(cols - k);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf w = decode_part(w0 + (size_t)r * row_bytes, t, k, part);
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(w, vloadm(x[j] + k, part), sum[r * N + j]);
        }
    }
}

/* Folds the sums of R rows into y[j][row...]. */
ALWAYS void finish(const vf *sum, const int R, const int N, float *const *y, uint32_t row,
                   bool add) {
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
        float *out = y[j] + row;
        if (R < 4) {
            for (int r = 0; r < R; r++) {
                float s = vsum(sum[r * N + j]);
                out[r] = add ? out[r] + s : s;
            }
            continue;
        }
#pragma GCC unroll 8
        for (int r = 0; r + 4 <= R; r += 4)
            vsum4_store(out + r, sum[r * N + j], sum[(r + 1) * N + j], sum[(r + 2) * N + j],
                        sum[(r + 3) * N + j], add);
    }
}

ALWAYS void tile(const struct mat *m, uint32_t row, const float *const *x, float *const *y,
                 bool add, enum dtype t, const int R, const int N) {
    vf sum[WIDE * NR];
    const float *xs[NR];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++)
        xs[j] = x[j];
#pragma GCC unroll 48
    for (int i = 0; i < R * N; i++)
        sum[i] = vset(0);
    accumulate(m, row, xs, t, R, N, sum);
    finish(sum, R, N, y, row, add);
}

/* Rows decoded on the fly for N activations. */
ALWAYS void stream(const struct mat *m, uint32_t r, uint32_t r1, const float *const *x,
                   float *const *y, bool add, enum dtype t, const int N) {
    if (N == 1)
        for (; r + WIDE <= r1; r += WIDE)
            tile(m, r, x, y, add, t, WIDE, 1);
    for (; r + MR <= r1; r += MR)
        tile(m, r, x, y, add, t, MR, N);
    for (; r < r1; r++) /* rare: one small tile for all N keeps the code small */
        for (int j = 0; j < N; j++)
            tile(m, r, x + j, y + j, add, t, 1, 1);
}

ALWAYS void stream_any(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                       float *const *y, uint32_t n, bool add, enum dtype t) {
    switch (n) {
    case 1: stream(m, r0, r1, x, y, add, t, 1); return;
    case 2: stream(m, r0, r1, x, y, add, t, 2); return;
#if !defined(WEIR_SMALL_TILES) && (defined(WEIR_ISA_AVX512) || defined(WEIR_ISA_AVX2))
    case 3: stream(m, r0, r1, x, y, add, t, 3); return;
#endif
#if !defined(WEIR_SMALL_TILES) && defined(WEIR_ISA_AVX512)
    case 4: stream(m, r0, r1, x, y, add, t, 4); return;
    case 5: stream(m, r0, r1, x, y, add, t, 5); return;
    case 6: stream(m, r0, r1, x, y, add, t, 6); return;
#endif
    }
}

static void stream_f32(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                       float *const *y, uint32_t n, bool add) {
    stream_any(m, r0, r1, x, y, n, add, DTYPE_F32);
}
static void stream_bf16(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                        float *const *y, uint32_t n, bool add) {
    stream_any(m, r0, r1, x, y, n, add, DTYPE_BF16);
}
static void stream_mxfp4(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                         float *const *y, uint32_t n, bool add) {
    stream_any(m, r0, r1, x, y, n, add, DTYPE_MXFP4);
}

/* ---------------------------------------------------------------------------- blocked form */

/* Widens columns [k0, k0+cols) of one row; the rest of its last vector becomes zero. */
static void widen_row(const struct mat *m, uint32_t row, uint32_t k0, uint32_t cols, float *out) {
    const unsigned char *w = m->data + row * m->row_bytes;
    uint32_t k = 0;
    for (; k + 32 <= cols; k += 32) {
        vf v[GROUP];
        if (m->dtype == DTYPE_MXFP4)
            decode32(w, m->scale + (size_t)row * (m->cols / 32), DTYPE_MXFP4, k0 + k, v);
        else if (m->dtype == DTYPE_BF16)
            decode32(w, NULL, DTYPE_BF16, k0 + k, v);
        else
            decode32(w, NULL, DTYPE_F32, k0 + k, v);
        for (int g = 0; g < GROUP; g++)
            vstore(out + k + g * VL, v[g]);
    }
    for (; k < cols; k += VL)
        vstore(out + k, decode_part(w, m->dtype, k0 + k, vmask(cols - k)));
}

/* Scratch of the blocked form. */
struct blocks {
    float wide[BLOCK_ROWS][BLOCK_COLS];
    float sum[BLOCK_ROWS][BLOCK_X][VL];
};

/* One R x N tile over one block of columns: begins with zero or with what the block before left,
 * ends in y or in the block's sums. */
ALWAYS void block_tile(struct blocks *b, uint32_t r, uint32_t row, uint32_t j0, uint32_t k0,
                       uint32_t cols, bool last, const float *const *x, float *const *y, bool add,
                       const int R, const int N) {
    vf sum[MR * NR];
    const float *xs[NR];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++)
        xs[j] = x[j] + k0;
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < N; j++)
            sum[i * N + j] = k0 ? vload(b->sum[r + i][j0 + j]) : vset(0);
    const float *w = b->wide[r];
    uint32_t k = 0;
    for (; k + VL <= cols; k += VL) {
        vf wv[MR];
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
            wv[i] = vload(w + (size_t)i * BLOCK_COLS + k);
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            vf v = vload(xs[j] + k);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++)
                sum[i * N + j] = vfma(wv[i], v, sum[i * N + j]);
        }
    }
    if (k < cols) {
        vm part = vmask(cols - k);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                sum[i * N + j] = vfma(vload(w + (size_t)i * BLOCK_COLS + k),
                                      vloadm(xs[j] + k, part), sum[i * N + j]);
    }
    if (last) {
        finish(sum, R, N, y, row, add);
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < N; j++)
            vstore(b->sum[r + i][j0 + j], sum[i * N + j]);
}

ALWAYS void block_rows(struct blocks *b, uint32_t row, uint32_t rows, uint32_t j0, uint32_t k0,
                       uint32_t cols, bool last, const float *const *x, float *const *y, bool add,
                       const int N) {
    uint32_t r = 0;
    for (; r + MR <= rows; r += MR)
        block_tile(b, r, row + r, j0, k0, cols, last, x, y, add, MR, N);
    for (; r < rows; r++)
        for (int j = 0; j < N; j++)
            block_tile(b, r, row + r, j0 + (uint32_t)j, k0, cols, last, x + j, y + j, add, 1, 1);
}

static void block_rows_full(struct blocks *b, uint32_t row, uint32_t rows, uint32_t j0, uint32_t k0,
                            uint32_t cols, bool last, const float *const *x, float *const *y,
                            bool add) {
    block_rows(b, row, rows, j0, k0, cols, last, x, y, add, NR);
}
static void block_rows_one(struct blocks *b, uint32_t row, uint32_t rows, uint32_t j0, uint32_t k0,
                           uint32_t cols, bool last, const float *const *x, float *const *y,
                           bool add) {
    block_rows(b, row, rows, j0, k0, cols, last, x, y, add, 1);
}
static void block_rows_two(struct blocks *b, uint32_t row, uint32_t rows, uint32_t j0, uint32_t k0,
                           uint32_t cols, bool last, const float *const *x, float *const *y,
                           bool add) {
    block_rows(b, row, rows, j0, k0, cols, last, x, y, add, 2);
}

static void blocked(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                    float *const *y, uint32_t n, bool add, struct blocks *b) {
    for (uint32_t row = r0; row < r1; row += BLOCK_ROWS) {
        uint32_t rows = r1 - row < BLOCK_ROWS ? r1 - row : BLOCK_ROWS;
        for (uint32_t k0 = 0; k0 < m->cols; k0 += BLOCK_COLS) {
            uint32_t cols = m->cols - k0 < BLOCK_COLS ? m->cols - k0 : BLOCK_COLS;
            bool last = k0 + cols == m->cols;
            for (uint32_t r = 0; r < rows; r++)
                widen_row(m, row + r, k0, cols, b->wide[r]);
            uint32_t j = 0;
            for (; j + NR <= n; j += NR)
                block_rows_full(b, row, rows, j, k0, cols, last, x + j, y + j, add);
            for (; j + 2 <= n; j += 2)
                block_rows_two(b, row, rows, j, k0, cols, last, x + j, y + j, add);
            for (; j < n; j++)
                block_rows_one(b, row, rows, j, k0, cols, last, x + j, y + j, add);
        }
    }
}

static void stream_rows(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x,
                        float *const *y, uint32_t n, bool add) {
    switch (m->dtype) {
    case DTYPE_F32: stream_f32(m, r0, r1, x, y, n, add); return;
    case DTYPE_BF16: stream_bf16(m, r0, r1, x, y, n, add); return;
    case DTYPE_MXFP4: stream_mxfp4(m, r0, r1, x, y, n, add); return;
    case DTYPE_U8:
    case DTYPE_FP8: return;
    }
}

void cpu_dot(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x, float *const *y,
             uint32_t n, bool add, void *scratch) {
    if (n == 0 || r0 >= r1)
        return;
    if (n <= STREAM_X) {
        uint32_t groups = (n + NR - 1) / NR;
        for (uint32_t r = r0; r < r1; r += STREAM_ROWS) {
            uint32_t end = groups == 1 || r1 - r < STREAM_ROWS ? r1 : r + STREAM_ROWS;
            for (uint32_t g = 0; g < groups; g++) {
                uint32_t j = n * g / groups, j1 = n * (g + 1) / groups;
                stream_rows(m, r, end, x + j, y + j, j1 - j, add);
            }
            if (groups == 1)
                return;
        }
        return;
    }
    for (uint32_t j = 0; j < n; j += BLOCK_X) {
        uint32_t now = n - j < BLOCK_X ? n - j : BLOCK_X;
        blocked(m, r0, r1, x + j, y + j, now, add, scratch);
    }
}

size_t cpu_dot_scratch_bytes(void) {
    return sizeof(struct blocks);
}
