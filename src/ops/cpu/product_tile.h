/* product_tile.h: how a product of a packed weight walks the matrix, whatever its arithmetic:
 * panels one behind the other, blocks of columns within a panel, activations in tiles, and chunks
 * of rows side by side as far as the registers hold. The file that includes this one defines TILE_N
 * (activations of its largest tile), tile_sums and panel_tiles.
 * Invariant that bites: the sum of one row and activation is formed block by block, in the order of
 * the columns, and blocks are added up in y: the same whatever the tile. Without blocks a row of
 * 12,288 columns would run through one chain of sums and lose a bit more than short ones. */
#ifndef WEIR_OPS_CPU_PRODUCT_TILE_H
#define WEIR_OPS_CPU_PRODUCT_TILE_H

#include "ops/cpu/product.h"

enum {
    VECTORS = PANEL_LANES / VL, /* of a chunk */
    CHUNKS = PANEL_ROWS / PANEL_LANES,
    MXFP4_GROUP = PANEL_ROWS + PANEL_ROWS * 16, /* bytes of 32 columns of a panel */
    BYTE_GROUP = PANEL_ROWS * (4 + PACK_GROUP)  /* of PACK_GROUP columns, INT8 and FP8 */
};

/* R chunks from `chunk` on, columns [k0, k1), N activations. */
struct tile {
    const unsigned char *panel;
    uint32_t chunk; /* in the panel */
    uint32_t k0, k1;
    uint32_t ahead;                 /* bytes that are asked for ahead */
    uintptr_t end, behind;          /* what is asked for beyond `end` lies so far from there */
    const unsigned char *x[TILE_N]; /* activations, from column k0 on */
    const float *scale[TILE_N];     /* INT8: of their groups, from that of column k0 on */
    const int32_t *sums[TILE_N];
};

/* A stream is asked for ahead: the processor's own prefetching stops at the end of a page. Also
 * where many activations meet each byte, since the first tile of them waits for memory. */
ALWAYS void ask(size_t ahead, const unsigned char *at) {
    __builtin_prefetch(at + ahead);
}
/* How far ahead for a group of so many bytes at `at`: in whole groups, so that the one behind the
 * last begins where `behind` leads. Once a group, as registers are short within. */
ALWAYS size_t group_ahead(const struct tile *t, const unsigned char *at, uint32_t group_bytes) {
    size_t ahead = (t->ahead + group_bytes - 1) / group_bytes * group_bytes;
    return (uintptr_t)at + ahead < t->end ? ahead : ahead + t->behind;
}

/* Activations of the next tile, of those that are left and of the kernel's largest. */
ALWAYS uint32_t tile_acts(const struct acts *a, uint32_t from, uint32_t most) {
    uint32_t left = a->n - from;
    most = a->how->acts < most ? a->how->acts : most;
    return left < most ? left : most;
}

/* Sums that rest while others are formed: without this the compiler gives them the registers. */
ALWAYS void vin_memory(vf *sum) {
    typedef vf all[CHUNKS * VECTORS * TILE_N];
    __asm__("" : "+m"(*(all *)(void *)sum));
}

/* sum[(r*VECTORS + v)*N + j] += vector v of chunk r times activation j. */
ALWAYS void tile_sums(const struct tile *t, const int kernel, const int R, const int N, vf *sum);

/* Chunks [c0, c1) of one panel, columns [k0, k1), all activations. */
struct walk {
    const struct weight *w;
    const struct acts *a;
    uint32_t c0, c1, k0, k1;
    float *const *y;
    bool add;
    uintptr_t end, behind; /* tile.end, tile.behind */
};

/* Calls chunk_tiles for all activations, with as many chunks and activations at once as suit the
 * kernel. */
ALWAYS void panel_tiles(const struct walk *k, const int kernel);

ALWAYS uint32_t acts_col_bytes(enum acts_form f) {
    return f == ACTS_F32 ? 4 : f == ACTS_BF16 ? 2 : 1;
}

ALWAYS void store_sums(const struct walk *k, uint32_t chunk, uint32_t j0, uint32_t have,
                       const vf *sum, const int R, const int N) {
#pragma GCC unroll 8
    for (int rv = 0; rv < R * VECTORS; rv++) {
        uint32_t row = chunk * PANEL_LANES + (uint32_t)rv * VL;
        if (row >= k->w->rows)
            continue;
        vm rows = vmask(k->w->rows - row);
#pragma GCC unroll 12
        for (int j = 0; j < N; j++)
            if ((uint32_t)j < have) {
                float *y = k->y[j0 + (uint32_t)j] + row;
                vf v = sum[rv * N + j];
                if (k->add)
                    v += vloadm(y, rows);
                vstorem(y, rows, v);
            }
    }
}

/* `have` of the N activations are real; the others repeat the last one and are not stored: fewer
 * kernels, and each of them is small beside memory. */
ALWAYS void one_tile(const struct walk *k, uint32_t chunk, uint32_t j0, uint32_t have,
                     const int kernel, const int R, const int N) {
    struct tile t = {.panel = product_panel(k->w, chunk),
                     .chunk = chunk % CHUNKS,
                     .k0 = k->k0,
                     .k1 = k->k1,
                     .ahead = k->a->how->ahead,
                     .end = k->end,
                     .behind = k->behind};
    vf sum[CHUNKS * VECTORS * TILE_N];
#pragma GCC unroll 12
    for (int j = 0; j < N; j++) {
        const struct acts *a = k->a;
        size_t at = j0 + ((uint32_t)j < have ? (uint32_t)j : have - 1);
        t.x[j] = a->data + at * a->row_bytes + (size_t)k->k0 * acts_col_bytes(a->form);
        if (a->form == ACTS_INT8) {
            size_t group = at * (a->cols / ACTS_INT8_GROUP) + k->k0 / ACTS_INT8_GROUP;
            t.scale[j] = a->scale + group;
            t.sums[j] = a->sum + group;
        }
    }
#pragma GCC unroll 96
    for (int i = 0; i < R * VECTORS * N; i++)
        sum[i] = vset(0);
    tile_sums(&t, kernel, R, N, sum);
    store_sums(k, chunk, j0, have, sum, R, N);
}

/* All chunks for activations [j0, j0 + have). */
ALWAYS void chunk_tiles(const struct walk *k, uint32_t j0, uint32_t have, const int kernel,
                        const int R, const int N) {
    uint32_t c = k->c0;
    for (; (R == 1 || !k->a->how->one_chunk) && c + (uint32_t)R <= k->c1; c += (uint32_t)R)
        one_tile(k, c, j0, have, kernel, R, N);
    /* One vector's chain of sums would keep memory waiting. */
    for (; R == 4 && !k->a->how->one_chunk && c + 2 <= k->c1; c += 2)
        one_tile(k, c, j0, have, kernel, 2, N);
    for (; R > 1 && c < k->c1; c++)
        one_tile(k, c, j0, have, kernel, 1, N);
}

/* Chunks [c0, c1) of the whole weight. */
ALWAYS void walk_panels(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        float *const *y, bool add, const int kernel) {
    uintptr_t end = (uintptr_t)product_panel(w, c1 + CHUNKS - 1);
    uintptr_t behind = a->next ? (uintptr_t)a->next - end : 0;
    for (uint32_t c = c0; c < c1;) {
        uint32_t next = (c / CHUNKS + 1) * CHUNKS, last = next < c1 ? next : c1;
        for (uint32_t k = 0; k < a->cols; k += PRODUCT_COLS) {
            uint32_t k1 = a->cols - k < PRODUCT_COLS ? a->cols : k + PRODUCT_COLS;
            panel_tiles(&(struct walk){w, a, c, last, k, k1, y, add || k > 0, end, behind}, kernel);
        }
        c = last;
    }
}

#endif
