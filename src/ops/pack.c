/* pack.c: see pack.h. Called while weights are loaded, by the expert cache and by benches; the
 * layouts are the same for every instruction set.
 * Invariant that bites: padding must be zero in value, not in bits: the byte of an INT8 zero is
 * 128. */
#include "ops/pack.h"

#include "base/arena.h"

#include <math.h>

/* ---------------------------------------------------------------------------------- sizes */

size_t pack_panel_bytes(enum packing p, uint32_t cols) {
    size_t n = pack_cols(p, cols);
    switch (p) {
    case PACK_NONE: return 0;
    case PACK_BF16: return n * PANEL_ROWS * 2;
    case PACK_INT8:
    case PACK_FP8: return n / PACK_GROUP * (PANEL_ROWS * sizeof(float) + PANEL_ROWS * PACK_GROUP);
    case PACK_MXFP4: return n / 32 * (PANEL_ROWS + PANEL_ROWS * 16);
    }
    return 0;
}

size_t pack_bytes(const struct weight *w, enum packing p) {
    bool fits = p == PACK_MXFP4 ? w->dtype == DTYPE_MXFP4 : w->dtype == DTYPE_BF16;
    if (!fits || p == PACK_NONE)
        return 0;
    size_t n = size_mul(pack_panel_bytes(p, w->cols), pack_panels(w->rows));
    return n == SIZE_MAX ? 0 : n;
}

const char *packing_name(enum packing p) {
    static const char *const names[] = {"stored", "bf16", "int8", "fp8", "mxfp4"};
    return names[p];
}

/* ---------------------------------------------------------------------------------- panels */

static void panel_bf16(const struct weight *w, uint32_t row0, unsigned char *to) {
    enum {
        BLOCK = 64
    }; /* lanes of a row at a time: lines written again by the next row stay near */
    uint32_t whole = w->cols / 2, all = pack_cols(PACK_BF16, w->cols) / 2;
    uint32_t n = w->rows - row0 < PANEL_ROWS ? w->rows - row0 : PANEL_ROWS;
    const unsigned char *from = (const unsigned char *)w->data + (size_t)row0 * w->cols * 2;
    if (n < PANEL_ROWS || whole < all)
        memset(to, 0, pack_panel_bytes(PACK_BF16, w->cols));
    for (uint32_t d0 = 0; d0 < whole; d0 += BLOCK) {
        uint32_t d1 = whole - d0 < BLOCK ? whole : d0 + BLOCK;
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t d = d0; d < d1; d++)
                memcpy(to + ((size_t)d * PANEL_ROWS + r) * 4,
                       from + (size_t)r * w->cols * 2 + d * 4, 4);
    }
    if (w->cols % 2) /* the last column has no partner */
        for (uint32_t r = 0; r < n; r++)
            memcpy(to + ((size_t)whole * PANEL_ROWS + r) * 4,
                   from + ((size_t)(r + 1) * w->cols - 1) * 2, 2);
}

/* To the nearest integer, even where two are as near: the sum has no bits below one. For |x| <=
 * 127, plus 128. */
static unsigned char int8_code(float x) {
    float sum = x + 0x1.8p23f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (unsigned char)(bits + 128);
}

/* In loops of one kind of work each, which compilers turn into vectors. */
void pack_group(const struct weight *w, enum packing p, uint32_t row, uint32_t col0,
                unsigned char code[PACK_GROUP], float *scale) {
    uint16_t stored[PACK_GROUP] = {0};
    float value[PACK_GROUP], most = 0;
    if (row < w->rows && col0 < w->cols) {
        uint32_t n = w->cols - col0 < PACK_GROUP ? w->cols - col0 : PACK_GROUP;
        memcpy(stored, (const unsigned char *)w->data + ((size_t)row * w->cols + col0) * 2, 2 * n);
    }
    for (uint32_t c = 0; c < PACK_GROUP; c++)
        value[c] = bf16_to_f32(stored[c]);
    for (uint32_t c = 0; c < PACK_GROUP; c++) {
        float a = fabsf(value[c]);
        most = a > most ? a : most;
    }
    *scale = most / (p == PACK_INT8 ? 127.0f : 448.0f);
    float inverse = *scale > 0 ? 1 / *scale : 0;
    for (uint32_t c = 0; c < PACK_GROUP; c++)
        value[c] *= inverse;
    if (p == PACK_INT8) {
        for (uint32_t c = 0; c < PACK_GROUP; c++) {
            float x = value[c] > -127 ? value[c] : -127; /* what is no number too */
            code[c] = int8_code(x < 127 ? x : 127);
        }
    } else {
        for (uint32_t c = 0; c < PACK_GROUP; c++)
            code[c] = f32_to_e4m3(value[c]);
    }
}

static void panel_bytes(const struct weight *w, enum packing p, uint32_t row0, unsigned char *to) {
    const size_t group = PANEL_ROWS * sizeof(float) + PANEL_ROWS * PACK_GROUP;
    for (uint32_t c = 0; c < pack_cols(p, w->cols); c += PACK_GROUP, to += group)
        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            unsigned char code[PACK_GROUP], *lines = to + PANEL_ROWS * sizeof(float) + r * 4;
            float scale;
            pack_group(w, p, row0 + r, c, code, &scale);
            memcpy(to + r * sizeof scale, &scale, sizeof scale);
            for (uint32_t k = 0; k < PACK_GROUP; k += 4)
                memcpy(lines + (size_t)k * PANEL_ROWS, code + k, 4);
        }
}

/* Four lanes. Words of 16 bytes, so that every processor has instructions for them: packing must
 * not be slower than experts are read from a disk. */
typedef uint32_t quad __attribute__((vector_size(16)));

static quad quad_load(const unsigned char *from) {
    quad q;
    memcpy(&q, from, sizeof q);
    return q;
}

/* A stored word is eight columns, ascending from the lowest nibble. Lane: the low nibbles of its
 * bytes are columns 0..3, the high ones 4..7. The middle bytes change places, then the middle
 * nibbles of both halves. */
static quad lanes_mxfp4(quad x) {
    quad swap = (x ^ x >> 8) & 0x0000FF00u;
    x ^= swap ^ swap << 8;
    swap = (x ^ x >> 4) & 0x00F000F0u;
    return x ^ swap ^ swap << 4;
}

/* The 32 columns of four rows: word i of each goes side by side into line i. */
static void four_rows_mxfp4(const unsigned char *const from[4], unsigned char *to) {
    quad a = lanes_mxfp4(quad_load(from[0])), b = lanes_mxfp4(quad_load(from[1]));
    quad c = lanes_mxfp4(quad_load(from[2])), d = lanes_mxfp4(quad_load(from[3]));
    quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    quad ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    quad cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const quad line[4] = {__builtin_shufflevector(ab0, cd0, 0, 1, 4, 5),
                          __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7),
                          __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5),
                          __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        memcpy(to + (size_t)i * 64, &line[i], sizeof line[i]);
}

/* Asks for the lines that the next rows are read from and written to: a panel is a long step from
 * row to row, which processors do not foresee. Without it packing is half as fast. */
static void expect_mxfp4(const struct weight *w, size_t row, uint32_t g, const unsigned char *to) {
    enum { GROUPS = 8 };
    const size_t group = PANEL_ROWS + PANEL_ROWS * 16;
    uintptr_t read = (uintptr_t)w->data + ((row + 16) * (w->cols / 32) + 16 * (size_t)g) * 16;
    for (int i = 0; i < 4; i++) {
        __builtin_prefetch((const void *)(read + 64 * (uintptr_t)i), 0, 2);
        __builtin_prefetch((const void *)((uintptr_t)to + GROUPS * group + 64 * (uintptr_t)i), 1,
                           3);
    }
}

static void panel_mxfp4(const struct weight *w, uint32_t row0, unsigned char *to) {
    static const unsigned char none[16];
    const size_t group = PANEL_ROWS + PANEL_ROWS * 16;
    const uint32_t groups = w->cols / 32;
    for (uint32_t g = 0; g < groups; g++)
        __builtin_prefetch(to + g * group, 1, 2);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        size_t row = row0 + r;
        for (uint32_t g = 0; g < groups; g++)
            to[g * group + r] = row < w->rows ? w->scale[row * groups + g] : 0;
    }
    for (uint32_t r0 = 0; r0 < PANEL_ROWS; r0 += 16)
        for (uint32_t g = 0; g < groups; g++) {
            unsigned char *line = to + g * group + PANEL_ROWS + r0 * 16;
            expect_mxfp4(w, row0 + r0, g, line);
            for (uint32_t r = r0; r < r0 + 16; r += 4) {
                const unsigned char *from[4];
                for (uint32_t i = 0; i < 4; i++) {
                    size_t row = row0 + r + i;
                    from[i] = row < w->rows
                                  ? (const unsigned char *)w->data + (row * groups + g) * 16
                                  : none;
                }
                four_rows_mxfp4(from, line + (r - r0) * 4);
            }
        }
}

void pack_weight(const struct weight *w, enum packing p, void *to, struct work work) {
    struct span s = work_span(work, pack_panels(w->rows));
    size_t bytes = pack_panel_bytes(p, w->cols);
    for (uint32_t i = s.begin; i < s.end; i++) {
        unsigned char *panel = (unsigned char *)to + i * bytes;
        switch (p) {
        case PACK_NONE: break;
        case PACK_BF16: panel_bf16(w, i * PANEL_ROWS, panel); break;
        case PACK_INT8:
        case PACK_FP8: panel_bytes(w, p, i * PANEL_ROWS, panel); break;
        case PACK_MXFP4: panel_mxfp4(w, i * PANEL_ROWS, panel); break;
        }
    }
}
