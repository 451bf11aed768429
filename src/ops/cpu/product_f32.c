/* product_f32.c: packed weights times f32 activations. Called through product_run (acts.c).
 * Invariant that bites: columns that share a scale are summed apart and scaled once, in the order
 * of product_tile.h, so that a result does not depend on how many rows came along. */
#if defined(WEIR_SMALL_TILES)
enum { TILE_N = 2, TILE_N_BF16 = 2 };
#elif defined(WEIR_ISA_AVX512)
enum { TILE_N = 8, TILE_N_BF16 = 8 };
#elif defined(WEIR_ISA_AVX2)
enum { TILE_N = 8, TILE_N_BF16 = 6 };
#else
enum { TILE_N = 2, TILE_N_BF16 = 2 };
#endif
#include "ops/cpu/product_tile.h"

ALWAYS vf spread(const struct tile *t, int j, uint32_t col) {
    return vset(((const float *)(const void *)t->x[j])[col]);
}

/* --------------------------------------------------------------------------------------- BF16 */

/* A tile's pass over lines of 2 columns: first the low halves of the lanes, then the high ones. */
ALWAYS void bf16_sums(const struct tile *t, const int R, const int N, vf *sum) {
    const unsigned char *at =
        t->panel + (size_t)t->k0 * PANEL_ROWS * 2 + t->chunk * PANEL_LANES * 4;
    for (uint32_t k = 0; k < t->k1 - t->k0; k += 2, at += PANEL_ROWS * 4) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            ask(t->ahead, at + r * 64);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            vf w[CHUNKS * VECTORS];
#pragma GCC unroll 8
            for (int rv = 0; rv < R * VECTORS; rv++) {
                vi words = viload(at + rv * VL * 4);
                w[rv] = vibits(half ? viand(words, 0xFFFF0000u) : vishl(words, 16));
            }
#pragma GCC unroll 12
            for (int j = 0; j < N; j++) {
                vf x = spread(t, j, k + (uint32_t)half);
#pragma GCC unroll 8
                for (int rv = 0; rv < R * VECTORS; rv++)
                    VFMA_TO(sum[rv * N + j], w[rv], x);
            }
        }
    }
}

/* ---------------------------------------------------------------------- weights with scales */

enum kernel { BF16, INT8, FP8, MXFP4 };

ALWAYS uint32_t lane_cols(const int kernel) {
    return kernel == MXFP4 ? 8 : 4;
}

/* The columns of one vector of lanes, times a power of two (value_unit undoes it). */
struct values {
    vi words, high; /* MXFP4: the low and the high nibbles */
};
ALWAYS struct values values_of(const unsigned char *lanes, const int kernel) {
    struct values v = {viload(lanes), viload(lanes)};
    if (kernel == INT8)
        v.words = vixor(v.words, 0x80808080u); /* q + 128 as a signed byte */
    if (kernel == MXFP4)
        ve2m1_halves(v.words, &v.words, &v.high);
    return v;
}
ALWAYS vf value(struct values v, const int kernel, const int e) {
    switch (kernel) {
    case INT8: return vifloat(vitop(v.words, e));
    case FP8: return ve4m3_at(v.words, e);
    default: return ve2m1_at(e < 4 ? v.words : v.high, e % 4);
    }
}
ALWAYS float value_unit(const int kernel) {
    return kernel == INT8 ? 0x1p-24f : kernel == MXFP4 ? E2M1_UNIT : 1;
}

/* Vectors v0 .. v0+B-1 of the tile, one line, all activations. */
ALWAYS void line_sums(const struct tile *t, const unsigned char *line, size_t ahead,
                      size_t chunk_bytes, const int v0, uint32_t col, const int kernel, const int N,
                      const int B, vf *part) {
    struct values v[4];
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) {
        const unsigned char *lanes = line + (size_t)((v0 + b) / VECTORS) * chunk_bytes;
        if ((v0 + b) % VECTORS == 0)
            ask(ahead, lanes);
        v[b] = values_of(lanes + (size_t)((v0 + b) % VECTORS) * VL * 4, kernel);
    }
#pragma GCC unroll 8
    for (int e = 0; e < (int)lane_cols(kernel); e++) {
        vf w[4];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++)
            w[b] = value(v[b], kernel, e);
#pragma GCC unroll 12
        for (int j = 0; j < N; j++) {
            vf x = spread(t, j, col + (uint32_t)e);
#pragma GCC unroll 4
            for (int b = 0; b < B; b++)
                VFMA_TO(part[b * N + j], w[b], x);
        }
    }
}

/* Groups of columns that share a scale, B vectors at a time: as many as make eight sums in
 * progress, for with more of them the sums of one vector would make room for those of the next in
 * each line.
 */
ALWAYS void group_sums(const struct tile *t, const int kernel, const int R, const int N,
                       const int B, vf *sum) {
    const bool bytes = kernel != MXFP4;
    const uint32_t group = bytes ? PACK_GROUP : 32;
    const size_t group_bytes = bytes ? BYTE_GROUP : MXFP4_GROUP;
    const size_t line = bytes ? PANEL_ROWS * 4 : PANEL_LANES * 4;
    const size_t chunk_bytes = bytes ? PANEL_LANES * 4 : PANEL_LANES * 16;
    const unsigned char *at = t->panel + t->k0 / group * group_bytes;
    for (uint32_t k = 0; k < t->k1 - t->k0; k += group, at += group_bytes) {
        vin_memory(sum);
        size_t ahead = bytes ? t->ahead : group_ahead(t, at, MXFP4_GROUP);
        if (!bytes)
            ask(ahead, at); /* the scales */
        const unsigned char *first =
            at + PANEL_ROWS * (bytes ? 4 : 1) + (size_t)t->chunk * chunk_bytes;
#pragma GCC unroll 8
        for (int rv = 0; rv < R * VECTORS; rv += B) {
            vf part[4 * TILE_N];
#pragma GCC unroll 24
            for (int i = 0; i < B * N; i++)
                part[i] = vset(0);
            const unsigned char *lines = first;
            for (uint32_t i = 0; i < group; i += lane_cols(kernel), lines += line)
                line_sums(t, lines, ahead, chunk_bytes, rv, k + i, kernel, N, B, part);
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) {
                uint32_t lane = t->chunk * PANEL_LANES + (uint32_t)(rv + b) * VL;
                vf scale = bytes ? vload((const float *)(const void *)at + lane) : ve8m0(at + lane);
#pragma GCC unroll 12
                for (int j = 0; j < N; j++)
                    sum[(rv + b) * N + j] = vfma(vmul(part[b * N + j], vset(value_unit(kernel))),
                                                 scale, sum[(rv + b) * N + j]);
            }
        }
    }
}

/* -------------------------------------------------------------------------------------- tiles */

ALWAYS void tile_sums(const struct tile *t, const int kernel, const int R, const int N, vf *sum) {
    if (kernel == BF16)
        bf16_sums(t, R, N, sum);
    else if (VECTORS == 1)
        group_sums(t, kernel, R, N, N <= 8 ? R : 1, sum);
    else /* a chunk alone, at the end of a range, has fewer vectors than would suit */
        group_sums(t, kernel, R, N, N > 4 ? 1 : N == 1 && R * VECTORS >= 4 ? 4 : 2, sum);
}

/* A multiply-add takes four cycles and two begin in each: less than eight sums at once would wait
 * for themselves. Four vectors of 16 registers must be left for weights and activations. */
ALWAYS void panel_tiles(const struct walk *k, const int kernel) {
    const uint32_t n = k->a->n;
    uint32_t most = kernel == BF16 ? TILE_N_BF16 : TILE_N;
    /* All chunks of a panel with few activations read memory in one stream; that goes before the
     * bytes being brought to more activations at once, until those are many. */
    if (kernel == BF16 && VECTORS == 1 && n <= 8 && most > 4 && k->a->how->acts > 8)
        most = 4;
    for (uint32_t j = 0; j < n;) {
        uint32_t have = tile_acts(k->a, j, most);
        if (have == 1)
            chunk_tiles(k, j, 1, kernel, VECTORS > 2 ? 2 : 4, 1);
        else if (have == 2)
            chunk_tiles(k, j, 2, kernel, VECTORS > 2 ? 1 : VECTORS > 1 ? 2 : 4, 2);
#if !defined(WEIR_SMALL_TILES) && (defined(WEIR_ISA_AVX2) || defined(WEIR_ISA_AVX512))
        else if (have <= 4)
            chunk_tiles(k, j, have, kernel, VECTORS > 1 ? 1 : kernel == BF16 ? 4 : 2, 4);
        else if (VECTORS > 1)
            chunk_tiles(k, j, have, kernel, 1, kernel == BF16 ? TILE_N_BF16 : TILE_N);
        else
            chunk_tiles(k, j, have, kernel, 2, TILE_N);
#endif
        j += have;
    }
}

/* One function each, so that registers are given out for one kernel at a time. */
static void product_bf16(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, BF16);
}
static void product_int8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, INT8);
}
static void product_fp8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, FP8);
}
static void product_mxfp4(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                          float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, MXFP4);
}

void cpu_product_f32(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                     float *const *y, bool add) {
    switch (w->packing) {
    case PACK_BF16: product_bf16(w, a, c0, c1, y, add); return;
    case PACK_INT8: product_int8(w, a, c0, c1, y, add); return;
    case PACK_FP8: product_fp8(w, a, c0, c1, y, add); return;
    case PACK_MXFP4: product_mxfp4(w, a, c0, c1, y, add); return;
    case PACK_NONE: return;
    }
}
