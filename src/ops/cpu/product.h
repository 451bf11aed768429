/* product.h: products of packed weights (ops/pack.h) with some activation rows, shared by linear.c
 * and experts.c. First the activations are brought into the form the weight's kernel reads
 * (acts_make), then members multiply whole chunks of PANEL_LANES rows of the weight (product_run).
 */
#ifndef WEIR_OPS_CPU_PRODUCT_H
#define WEIR_OPS_CPU_PRODUCT_H

#include "ops/cpu/kernels.h"
#include "ops/pack.h"

#define cpu_acts_make     ISA_NAME(acts_make)
#define cpu_product_run   ISA_NAME(product_run)
#define cpu_product_f32   BASE_NAME(product_f32)
#define cpu_product_dot   cpu_dots_product_dot /* the tiles' set has it from there */
#define cpu_product_amx   ISA_NAME(product_amx)
#define cpu_product_bytes ISA_NAME(product_bytes)

enum {
    ACTS_INT8_GROUP = 32, /* columns that share a scale of INT8 activations */
    PRODUCT_COLS = 1024,  /* columns of a pass: the activations of a tile stay in the first cache */
    PRODUCT_ROWS = 512,   /* activation rows brought into form at a time, at most ... */
    PRODUCT_ACTS_BYTES = 8 << 20 /* ... and the bytes they may take */
};

/* The rows of a weight whose sums wait together. */
enum { AMX_GROUP_ROWS = 256, AMX_DECODED_BYTES = 512 * 64 };

/* The forms of activations. Rows are row_bytes apart, padded with zeros to pack_cols and to 64
 * bytes. */
enum acts_form {
    ACTS_F32,  /* as they are, or rounded to what BF16 or INT8 would hold */
    ACTS_BF16, /* pairs in the order of the packing's lanes (see acts_pair) */
    ACTS_INT8, /* bytes in order; one scale per ACTS_INT8_GROUP columns */
};

struct acts {
    enum acts_form form;
    uint32_t n, cols; /* rows; padded columns */
    size_t row_bytes;
    const unsigned char *data;
    const float *scale;            /* INT8: [n][cols / ACTS_INT8_GROUP] */
    unsigned char *room;           /* for sums under way (product_amx.c) */
    const int32_t *sum;            /* INT8: [n][cols / ACTS_INT8_GROUP] sums of the bytes */
    const struct cpu_variant *how; /* to multiply; the default's until the caller says otherwise */
    /* The panel that is read behind the product, or NULL: its first lines are asked for while the
     * last ones are multiplied, where else memory would stand idle and then fetch in vain. */
    const unsigned char *next;
};

/* The columns that stand in dword t of a row of BF16 activations: the second one is the first plus
 * acts_gap. MXFP4 lanes give their columns as 0,2 4,6 1,3 5,7; FP8 lanes as 0,2 1,3. */
ALWAYS uint32_t acts_pair(enum packing p, uint32_t t) {
    switch (p) {
    case PACK_MXFP4: return t / 4 * 8 + (t % 4) / 2 + (t % 2) * 4;
    case PACK_FP8: return t / 2 * 4 + t % 2;
    default: return 2 * t;
    }
}
ALWAYS uint32_t acts_gap(enum packing p) {
    return p == PACK_MXFP4 || p == PACK_FP8 ? 2 : 1;
}

/* How activations meet a weight of this packing. */
ALWAYS enum activation activation_for(enum packing p, enum activation a) {
    return a == ACTIVATION_INT8 && p != PACK_MXFP4 && p != PACK_INT8 ? ACTIVATION_BF16 : a;
}
/* Rows of so many columns that are brought into form at a time. */
ALWAYS uint32_t acts_rows(uint32_t cols) {
    uint32_t n = PRODUCT_ACTS_BYTES / (4 * round_up(cols, PACK_GROUP)) / 16 * 16;
    return n < 16 ? 16 : n > PRODUCT_ROWS ? PRODUCT_ROWS : n;
}
/* An odd number of cache lines: rows a multiple of 4096 bytes apart would share one set of the
 * first cache, where a tile of more rows than it has ways finds nothing of what it just read. */
ALWAYS size_t acts_row_bytes(size_t bytes) {
    return ((bytes + 63) / 64 | 1) * 64;
}
/* Scratch for n rows of `cols` columns in any form, and for one padded row on the way there. */
ALWAYS size_t acts_bytes(uint32_t cols, uint32_t n) {
    size_t padded = round_up(cols, PACK_GROUP);
    size_t bytes =
        n * (acts_row_bytes(padded * 4) + padded / ACTS_INT8_GROUP * 8) + padded * 4 + 5 * 64;
#if defined(WEIR_ISA_AMX)
    bytes += n * AMX_GROUP_ROWS * sizeof(float) + AMX_DECODED_BYTES + 2 * 64;
#endif
    return bytes;
}

#if defined(WEIR_HAS_DOTS)
/* BF16 bits of the E2M1 values, twice: a word's fifth bit belongs to the next nibble. */
ALWAYS __m512i bf16_of_e2m1(void) {
    const __m256i v =
        _mm256_set_epi16((short)0xC0C0, (short)0xC080, (short)0xC040, (short)0xC000, (short)0xBFC0,
                         (short)0xBF80, (short)0xBF00, (short)0x8000, 0x40C0, 0x4080, 0x4040,
                         0x4000, 0x3FC0, 0x3F80, 0x3F00, 0x0000);
    return _mm512_broadcast_i64x4(v);
}
#endif

/* Rows x[0..n) of `cols` columns, for weights of this packing, into scratch (advanced). */
void cpu_acts_make(struct acts *to, enum packing p, enum activation a, const float *const *x,
                   uint32_t n, uint32_t cols, unsigned char **scratch);

/* y[j][r] (+)= dot(row r, activation j) for the rows of chunks [c0, c1) of PANEL_LANES rows and j
 * in [0, acts->n). */
void cpu_product_run(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                     float *const *y, bool add);
void cpu_product_f32(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                     float *const *y, bool add);
void cpu_product_dot(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                     float *const *y, bool add);
void cpu_product_bytes(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                       float *const *y, bool add);
void cpu_product_amx(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                     float *const *y, bool add);

ALWAYS uint32_t product_chunks(const struct weight *w) {
    return (w->rows + PANEL_LANES - 1) / PANEL_LANES;
}
/* Chunks that are given out together, of a weight that members share out with others, `chunks` in
 * all: a whole panel is one stream of memory, of which a chunk alone takes a quarter of each
 * kilobyte, and its one chain of sums is slower than memory. Halves of panels or single chunks
 * where else members would get too few to end together. */
ALWAYS uint32_t product_grain(const struct weight *w, uint32_t chunks, uint32_t members,
                              const struct cpu_variant *how) {
    const uint32_t panel = PANEL_ROWS / PANEL_LANES;
    if (how->single)
        return 1;
    if (product_chunks(w) >= 32 * panel || chunks >= 8 * panel * members)
        return panel;
    return chunks >= 4 * panel * members ? panel / 2 : 1;
}
/* The panel of a chunk. */
ALWAYS const unsigned char *product_panel(const struct weight *w, uint32_t chunk) {
    return (const unsigned char *)w->packed +
           (size_t)(chunk / (PANEL_ROWS / PANEL_LANES)) * pack_panel_bytes(w->packing, w->cols);
}

/* That of row `row`, where a member goes on reading; NULL: not packed. */
ALWAYS const unsigned char *product_place(const struct weight *w, uint32_t row) {
    return w->packing == PACK_NONE ? NULL : product_panel(w, row / PANEL_LANES);
}

#endif
