/* product_f32.c: packed weights times f32 activations. Called through product_run (acts.c).
 * Invariant that bites: the sum of one row and activation runs over the columns in order, with one
 * partial sum per group of columns that shares a scale, whatever the tile; blocks of columns leave
 * it in y between them. */
#include "ops/cpu/product.h"

/* Activations of a tile, and vectors of rows side by side. A group's partial sums take as many
 * registers as the sums themselves. */
#if defined(WEIR_SMALL_TILES)
enum { TILE_N = 2, TILE_GROUP_N = 2 };
#elif defined(WEIR_ISA_AVX512)
enum { TILE_N = 12, TILE_GROUP_N = 8 };
#else
enum { TILE_N = 4, TILE_GROUP_N = 2 };
#endif
enum { V = PANEL_LANES / VL }; /* vectors of a chunk */

ALWAYS uint32_t packing_lane_cols(enum packing p) {
    return p == PACK_MXFP4 ? 8 : p == PACK_BF16 ? 2 : 4;
}

/* Column e of the columns of these lanes. */
ALWAYS vf lane_value(vi lanes, enum packing p, const int e) {
    switch (p) {
    case PACK_BF16: return vibits(e ? viand(lanes, 0xFFFF0000u) : vishl(lanes, 16));
    case PACK_INT8: return vifloat(viadd(viand(vishr(lanes, 8u * (unsigned)e), 255), -128));
    case PACK_FP8: return ve4m3(viand(vishr(lanes, 8u * (unsigned)e), 255));
    case PACK_MXFP4:
        return ve2m1(viand(vishr(lanes, e < 4 ? 8u * (unsigned)e : 8u * (unsigned)e - 28), 15));
    case PACK_NONE: break;
    }
    return vset(0);
}

/* sum[v * N + j] += lanes of one line times activations at column k. */
ALWAYS void line(const unsigned char *lanes, enum packing p, const float *const *x, uint32_t k,
                 const int N, vf *sum) {
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        vi words = viload(lanes + v * VL * 4);
#pragma GCC unroll 8
        for (int e = 0; e < (int)packing_lane_cols(p); e++) {
            vf w = lane_value(words, p, e);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[v * N + j] = vfma(w, vset(x[j][k + (uint32_t)e]), sum[v * N + j]);
        }
    }
}

/* Columns [k0, k1) of one chunk for N activations. */
ALWAYS void tile(const unsigned char *panel, uint32_t chunk, enum packing p, const float *const *x,
                 uint32_t k0, uint32_t k1, const int N, vf *sum) {
    const uint32_t lane0 = chunk % (PANEL_ROWS / PANEL_LANES) * PANEL_LANES;
    if (p == PACK_BF16) {
        const unsigned char *at = panel + (size_t)k0 * PANEL_ROWS * 2 + lane0 * 4;
        for (uint32_t k = k0; k < k1; k += 2, at += PANEL_ROWS * 4)
            line(at, p, x, k, N, sum);
        return;
    }
    const bool bytes = p != PACK_MXFP4;
    const uint32_t group = bytes ? PACK_GROUP : 32;
    const size_t group_bytes = bytes ? PANEL_ROWS * (4 + PACK_GROUP) : PANEL_ROWS + PANEL_ROWS * 16;
    for (uint32_t k = k0; k < k1; k += group) {
        const unsigned char *at = panel + k / group * group_bytes;
        const unsigned char *lines =
            bytes ? at + PANEL_ROWS * 4 + lane0 * 4 : at + PANEL_ROWS + lane0 * 16;
        const size_t next = bytes ? PANEL_ROWS * 4 : PANEL_LANES * 4;
        const uint32_t step = packing_lane_cols(p);
        vf part[V * TILE_N];
#pragma GCC unroll 48
        for (int i = 0; i < V * N; i++)
            part[i] = vset(0);
        for (uint32_t i = 0; i < group; i += step, lines += next)
            line(lines, p, x, k + i, N, part);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            uint32_t lane = lane0 + (uint32_t)v * VL;
            vf scale = bytes ? vload((const float *)(const void *)at + lane) : ve8m0(at + lane);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[v * N + j] = vfma(part[v * N + j], scale, sum[v * N + j]);
        }
    }
}

ALWAYS void chunk_tile(const struct weight *w, const struct acts *a, enum packing p, uint32_t chunk,
                       uint32_t j0, uint32_t k0, uint32_t k1, float *const *y, bool add,
                       const int N) {
    vf sum[V * TILE_N];
    const float *x[TILE_N];
    uint32_t row = chunk * PANEL_LANES, rows = w->rows - row;
#pragma GCC unroll 12
    for (int j = 0; j < N; j++)
        x[j] = (const float *)(const void *)(a->data + (j0 + (uint32_t)j) * a->row_bytes);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
#pragma GCC unroll 12
        for (int j = 0; j < N; j++)
            sum[v * N + j] =
                add ? vloadm(y[j0 + (uint32_t)j] + row + v * VL,
                             vmask(rows > (uint32_t)v * VL ? rows - (uint32_t)v * VL : 0))
                    : vset(0);
    tile(product_panel(w, chunk), chunk, p, x, k0, k1, N, sum);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
#pragma GCC unroll 12
        for (int j = 0; j < N; j++)
            if (rows > (uint32_t)v * VL)
                vstorem(y[j0 + (uint32_t)j] + row + v * VL, vmask(rows - (uint32_t)v * VL),
                        sum[v * N + j]);
}

/* All chunks of one panel, activations in tiles. */
ALWAYS void panel_block(const struct weight *w, const struct acts *a, enum packing p, uint32_t c0,
                        uint32_t c1, uint32_t k0, uint32_t k1, float *const *y, bool add,
                        const int N) {
    uint32_t j = 0;
    for (; j + (uint32_t)N <= a->n; j += (uint32_t)N)
        for (uint32_t c = c0; c < c1; c++)
            chunk_tile(w, a, p, c, j, k0, k1, y, add, N);
    for (; j + 2 <= a->n; j += 2)
        for (uint32_t c = c0; c < c1; c++)
            chunk_tile(w, a, p, c, j, k0, k1, y, add, 2);
    for (; j < a->n; j++)
        for (uint32_t c = c0; c < c1; c++)
            chunk_tile(w, a, p, c, j, k0, k1, y, add, 1);
}

ALWAYS void product(const struct weight *w, const struct acts *a, enum packing p, uint32_t c0,
                    uint32_t c1, float *const *y, bool add, const int N) {
    const uint32_t chunks = PANEL_ROWS / PANEL_LANES;
    uint32_t block = a->n > 2 * (uint32_t)N ? PRODUCT_COLS : a->cols;
    for (uint32_t c = c0; c < c1;) {
        uint32_t end = (c / chunks + 1) * chunks < c1 ? (c / chunks + 1) * chunks : c1;
        for (uint32_t k = 0; k < a->cols; k += block) {
            uint32_t k1 = a->cols - k < block ? a->cols : k + block;
            panel_block(w, a, p, c, end, k, k1, y, add || k > 0, N);
        }
        c = end;
    }
}

/* One function each, so that registers are given out for one kernel at a time. */
static void product_bf16(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    product(w, a, PACK_BF16, c0, c1, y, add, TILE_N);
}
static void product_int8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    product(w, a, PACK_INT8, c0, c1, y, add, TILE_GROUP_N);
}
static void product_fp8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        float *const *y, bool add) {
    product(w, a, PACK_FP8, c0, c1, y, add, TILE_GROUP_N);
}
static void product_mxfp4(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                          float *const *y, bool add) {
    product(w, a, PACK_MXFP4, c0, c1, y, add, TILE_GROUP_N);
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
