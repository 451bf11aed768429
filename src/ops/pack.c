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

static uint16_t bf16_at(const struct weight *w, uint32_t row, uint32_t col) {
    uint16_t h = 0;
    if (row < w->rows && col < w->cols)
        memcpy(&h, (const unsigned char *)w->data + ((size_t)row * w->cols + col) * 2, 2);
    return h;
}

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

/* One group of one row as codes of one byte. */
static void group_bytes(const struct weight *w, enum packing p, uint32_t row, uint32_t col0,
                        unsigned char *lines, float *scale) {
    float value[PACK_GROUP], most = 0;
    for (uint32_t c = 0; c < PACK_GROUP; c++) {
        value[c] = bf16_to_f32(bf16_at(w, row, col0 + c));
        float a = fabsf(value[c]);
        most = a > most ? a : most;
    }
    *scale = most / (p == PACK_INT8 ? 127.0f : 448.0f);
    float inverse = *scale > 0 ? 1 / *scale : 0;
    for (uint32_t c = 0; c < PACK_GROUP; c++) {
        float x = value[c] * inverse;
        unsigned char code;
        if (p == PACK_FP8)
            code = f32_to_e4m3(x);
        else
            code = (unsigned char)(128 + (int)rintf(fminf(fmaxf(x, -127), 127)));
        lines[(size_t)(c / 4) * PANEL_ROWS * 4 + c % 4] = code;
    }
}

static void panel_bytes(const struct weight *w, enum packing p, uint32_t row0, unsigned char *to) {
    const size_t group = PANEL_ROWS * sizeof(float) + PANEL_ROWS * PACK_GROUP;
    for (uint32_t c = 0; c < pack_cols(p, w->cols); c += PACK_GROUP, to += group)
        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            float scale;
            group_bytes(w, p, row0 + r, c, to + PANEL_ROWS * sizeof scale + r * 4, &scale);
            memcpy(to + r * sizeof scale, &scale, sizeof scale);
        }
}

/* Four nibbles, each in the low half of a byte. */
static uint32_t spread(uint32_t nibbles) {
    uint32_t x = nibbles & 0xFFFF;
    x = (x | x << 8) & 0x00FF00FFu;
    return (x | x << 4) & 0x0F0F0F0Fu;
}

/* Bytes of a stored row: two neighbouring columns each, the even one low. Lane: the low nibbles of
 * its bytes are columns 0..3, the high ones 4..7. */
static uint32_t lane_mxfp4(uint32_t stored) {
    return spread(stored) | spread(stored >> 16) << 4;
}

static void panel_mxfp4(const struct weight *w, uint32_t row0, unsigned char *to) {
    const size_t group = PANEL_ROWS + PANEL_ROWS * 16;
    const unsigned char *codes = w->data;
    uint32_t n = w->rows - row0 < PANEL_ROWS ? w->rows - row0 : PANEL_ROWS;
    memset(to, 0, pack_panel_bytes(PACK_MXFP4, w->cols));
    for (uint32_t r = 0; r < n; r++) {
        const unsigned char *from = codes + (size_t)(row0 + r) * (w->cols / 2);
        const uint8_t *scale = w->scale + (size_t)(row0 + r) * (w->cols / 32);
        unsigned char *lane = to + PANEL_ROWS + (r / 16) * 256 + (r % 16) * 4;
        for (uint32_t g = 0; g < w->cols / 32; g++) {
            to[g * group + r] = scale[g];
            for (int i = 0; i < 4; i++) {
                uint32_t word;
                memcpy(&word, from + g * 16 + 4 * i, 4);
                word = lane_mxfp4(word);
                memcpy(lane + g * group + i * 64, &word, 4);
            }
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
