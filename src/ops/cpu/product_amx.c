/* product_amx.c: packed weights times BF16 activations in matrix tiles (AMX), for several rows at
 * once. Called through product_run (acts.c) where there are enough rows.
 * A tile of sums holds 16 activation rows by 16 rows of the weight; 2 x 2 of them are formed at a
 * time. A block of columns of two chunks of the weight stays in the first cache while all
 * activation rows pass by; the sums of a group of chunks wait in the second between two blocks.
 * Invariants that bite: tiles are loaded and stored behind the compiler's back, so that memory
 * written for them, or by them, needs a fence (settle); and the tile registers are let go at the
 * end, or every switch of threads carries 8 KiB more. */
#include "ops/cpu/product.h"

enum {
    TILE = 16,                           /* rows of a tile */
    STEP_COLS = 32,                      /* columns of a tile of activations */
    BLOCK_COLS = AMX_DECODED_BYTES / 64, /* of a weight, in the first cache: 32 rows of 1 KiB */
    GROUP_CHUNKS = AMX_GROUP_ROWS / PANEL_LANES,
    CHUNKS = PANEL_ROWS / PANEL_LANES,
    PAIR_FLOATS = 2 * TILE, /* sums of one activation row with two chunks */
    MXFP4_GROUP = PANEL_ROWS + PANEL_ROWS * 16
};

static inline void settle(void) {
    __asm__ volatile("" ::: "memory");
}

struct setup {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Sums 0, 1: the first rows with both chunks; 2, 3: the second ones. 4, 5: activations. 6, 7:
 * weights. */
static void set_tiles(uint32_t first, uint32_t second) {
    struct setup s = {.palette = 1};
    const uint32_t rows[8] = {first, first, second, second, first, second, TILE, TILE};
    for (int i = 0; i < 8; i++) {
        s.rows[i] = (uint8_t)rows[i];
        s.row_bytes[i] = rows[i] ? 64 : 0;
    }
    settle();
    _tile_loadconfig(&s);
}

/* One block of columns of R chunks of the weight, as tiles want it. */
struct weights {
    const unsigned char *at[2];
    size_t line;                /* bytes from one pair of columns to the next */
    const unsigned char *ahead; /* what comes next, or NULL */
};

/* `steps` tiles of columns for T x R tiles of sums; sums of one activation row stand together. */
ALWAYS void multiply(const unsigned char *x, size_t x_bytes, struct weights w, uint32_t steps,
                     float *sums, bool first, const int T, const int R) {
    const size_t sum_bytes = PAIR_FLOATS * sizeof(float);
    float *second = sums + TILE * PAIR_FLOATS;
    const unsigned char *x1 = x + TILE * x_bytes;
    if (first) {
        _tile_zero(0);
        if (R > 1)
            _tile_zero(1);
        if (T > 1)
            _tile_zero(2);
        if (T > 1 && R > 1)
            _tile_zero(3);
    } else {
        _tile_loadd(0, sums, sum_bytes);
        if (R > 1)
            _tile_loadd(1, sums + TILE, sum_bytes);
        if (T > 1)
            _tile_loadd(2, second, sum_bytes);
        if (T > 1 && R > 1)
            _tile_loadd(3, second + TILE, sum_bytes);
    }
    for (uint32_t s = 0; s < steps; s++) {
        size_t w_at = s * TILE * w.line;
        _tile_loadd(4, x + s * 64, x_bytes);
        _tile_loadd(6, w.at[0] + w_at, w.line);
        _tile_dpbf16ps(0, 4, 6);
        if (T > 1) {
            _tile_loadd(5, x1 + s * 64, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (R > 1) {
            _tile_loadd(7, w.at[1] + w_at, w.line);
            _tile_dpbf16ps(1, 4, 7);
            if (T > 1)
                _tile_dpbf16ps(3, 5, 7);
        }
        if (w.ahead)
            for (uint32_t i = 0; i < TILE; i++) {
                __builtin_prefetch(w.ahead + w_at + i * w.line);
                __builtin_prefetch(w.ahead + w_at + i * w.line + 64);
            }
    }
    _tile_stored(0, sums, sum_bytes);
    if (R > 1)
        _tile_stored(1, sums + TILE, sum_bytes);
    if (T > 1)
        _tile_stored(2, second, sum_bytes);
    if (T > 1 && R > 1)
        _tile_stored(3, second + TILE, sum_bytes);
}

/* All activation rows against one block: tiles of 32 rows, then what is left. */
ALWAYS void all_rows(const struct acts *a, uint32_t k0, struct weights w, uint32_t steps,
                     float *sums, bool first, const int R) {
    const unsigned char *x = a->data + k0 * 2;
    uint32_t whole = a->n / (2 * TILE) * (2 * TILE), left = a->n - whole;
    if (whole && left)
        set_tiles(TILE, TILE);
    for (uint32_t j = 0; j < whole; j += 2 * TILE) {
        multiply(x + j * a->row_bytes, a->row_bytes, w, steps, sums + (size_t)j * PAIR_FLOATS,
                 first, 2, R);
        w.ahead = NULL; /* asked for once */
    }
    if (left == 0)
        return;
    if (whole)
        set_tiles(left < TILE ? left : TILE, left < TILE ? 0 : left - TILE);
    x += whole * a->row_bytes;
    sums += (size_t)whole * PAIR_FLOATS;
    if (left > TILE)
        multiply(x, a->row_bytes, w, steps, sums, first, 2, R);
    else
        multiply(x, a->row_bytes, w, steps, sums, first, 1, R);
}

/* BF16 of the E2M1 codes of one chunk, columns [k0, k1), scale applied: lines of 16 pairs in the
 * order of the activations. A scale moves exponents, exactly; what would leave the range of BF16
 * becomes zero below 2^-125 and stops at the scale 2^125 above. */
static void decode_mxfp4(const unsigned char *panel, uint32_t chunk, uint32_t k0, uint32_t k1,
                         unsigned char *to) {
    const __m512i values = bf16_of_e2m1();
    const __m512i size = _mm512_set1_epi16(0x7FFF);
    for (uint32_t k = k0; k < k1; k += 32) {
        const unsigned char *at = panel + k / 32 * MXFP4_GROUP;
        __m512i scale = _mm512_cvtepu8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)(at + chunk * PANEL_LANES)));
        __mmask16 there = _mm512_cmpge_epi32_mask(scale, _mm512_set1_epi32(2));
        scale = _mm512_min_epi32(scale, _mm512_set1_epi32(252));
        __m512i move = _mm512_slli_epi32(_mm512_sub_epi32(scale, _mm512_set1_epi32(127)), 7);
        move = _mm512_or_si512(_mm512_and_si512(move, _mm512_set1_epi32(0xFFFF)),
                               _mm512_slli_epi32(move, 16));
        for (uint32_t i = 0; i < 4; i++) {
            __m512i codes = viload(at + PANEL_ROWS + chunk * 256 + i * 64);
            for (uint32_t q = 0; q < 4; q++, to += 64) {
                __m512i w = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * q), values);
                w = _mm512_mask_add_epi16(w, _mm512_test_epi16_mask(w, size), w, move);
                _mm512_storeu_si512(to, _mm512_maskz_mov_epi32(there, w));
            }
        }
    }
}

/* Where the sums of a group wait, and decoded weights: behind the activations (acts_make). */
struct room {
    float *sums;            /* [GROUP_CHUNKS / 2][n][PAIR_FLOATS] */
    unsigned char *decoded; /* [2][BLOCK_COLS / 2][64] */
};

/* Columns [k, k1) of chunks c and, if R is 2, c + 1. */
ALWAYS void chunk_block(const struct weight *w, const struct acts *a, uint32_t c, uint32_t k,
                        uint32_t k1, bool more, struct room room, float *sums, const int R) {
    struct weights from = {.line = PANEL_ROWS * 4};
    for (int r = 0; r < R; r++) {
        uint32_t chunk = c + (uint32_t)r;
        const unsigned char *panel = product_panel(w, chunk);
        if (w->packing == PACK_BF16) {
            from.at[r] = panel + (size_t)k * PANEL_ROWS * 2 + chunk % CHUNKS * 64;
        } else {
            unsigned char *to = room.decoded + (size_t)r * (BLOCK_COLS / 2) * 64;
            decode_mxfp4(panel, chunk % CHUNKS, k, k1, to);
            from.at[r] = to;
            from.line = 64;
        }
    }
    if (w->packing == PACK_BF16 && more && R == 2)
        from.ahead = product_panel(w, c + 2) + (size_t)k * PANEL_ROWS * 2 + (c + 2) % CHUNKS * 64;
    settle();
    all_rows(a, k, from, (k1 - k) / STEP_COLS, sums, k == 0, R);
}

static void store_group(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        const float *sums, float *const *y, bool add) {
    for (uint32_t c = c0; c < c1; c++) {
        const float *from =
            sums + (size_t)((c - c0) / 2) * a->n * PAIR_FLOATS + (c - c0) % 2 * TILE;
        uint32_t row = c * PANEL_LANES;
        vm rows = vmask(w->rows - row);
        for (uint32_t j = 0; j < a->n; j++) {
            vf v = vload(from + (size_t)j * PAIR_FLOATS);
            if (add)
                v += vloadm(y[j] + row, rows);
            vstorem(y[j] + row, rows, v);
        }
    }
}

void cpu_product_amx(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                     float *const *y, bool add) {
    unsigned char *at = a->room;
    struct room room = {carve(&at, (size_t)a->n * AMX_GROUP_ROWS * sizeof(float)), NULL};
    room.decoded = carve(&at, AMX_DECODED_BYTES);
    uint32_t left = a->n % (2 * TILE);
    /* With both kinds of tiles all_rows sets them as it goes. */
    if (left == 0)
        set_tiles(TILE, TILE);
    else if (a->n < 2 * TILE)
        set_tiles(left < TILE ? left : TILE, left < TILE ? 0 : left - TILE);
    for (uint32_t g = c0; g < c1; g += GROUP_CHUNKS) {
        uint32_t end = c1 - g < GROUP_CHUNKS ? c1 : g + GROUP_CHUNKS;
        for (uint32_t k = 0; k < a->cols; k += BLOCK_COLS) {
            uint32_t k1 = a->cols - k < BLOCK_COLS ? a->cols : k + BLOCK_COLS;
            for (uint32_t c = g; c < end; c += 2) {
                float *sums = room.sums + (size_t)((c - g) / 2) * a->n * PAIR_FLOATS;
                if (c + 1 < end)
                    chunk_block(w, a, c, k, k1, c + 2 < end, room, sums, 2);
                else
                    chunk_block(w, a, c, k, k1, false, room, sums, 1);
            }
        }
        settle();
        store_group(w, a, g, end, room.sums, y, add);
    }
    _tile_release();
}
