/* pack.c: see pack.h. */
#include "ops/gpu/pack.h"

#include "ops/gpu/records.h"
#include "ops/pack.h"

#include <string.h>

enum { TILE = 16, VECTOR = 16 };

static uint32_t piece_cols(const struct weight *w) {
    return w->dtype == DTYPE_BF16 ? GPU_PIECE_COLS_BF16 : GPU_PIECE_COLS;
}
static size_t piece_bytes(const struct weight *w) {
    return w->dtype == DTYPE_BF16 ? GPU_PIECE_BYTES_BF16 : GPU_PIECE_BYTES;
}
static uint32_t up(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

size_t gpu_pack_bytes(const struct weight *w, bool two) {
    return piece_bytes(w) * up(w->rows, two ? TILE : 2 * TILE) * up(w->cols, piece_cols(w));
}

/* What each byte of a word of codes, two columns, becomes. */
struct table {
    uint32_t of[4][256];
};
/* Bits of a code are s m2 m1 m0. Sign and magnitudes of the two codes of byte q go to bits 15, 8,
 * 7, 6 and 31, 24, 23, 22 when the word is rotated right by 3 q; there is room for three such
 * pairs, and the fourth lies in what they leave. */
static void fill(struct table *t) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t pair = 0, last = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t c = b >> 4 * i & 15;
            pair |= ((c & 8) << 12 | (c & 7) << 6) << 16 * i;
            last |= ((c & 4) >> 2 | (c & 8) >> 2 | (c & 3) << 3) << 16 * i;
        }
        t->of[0][b] = pair;
        t->of[1][b] = pair << 3 | pair >> 29;
        t->of[2][b] = pair << 6 | pair >> 26;
        t->of[3][b] = last;
    }
}

static void pack_vector(uint8_t *to, const struct table *t, const struct weight *w, uint32_t row,
                        uint32_t col) {
    const size_t at = (size_t)row * w->cols + col;
    if (w->dtype == DTYPE_BF16) {
        const uint32_t n = w->cols - col < 8 ? w->cols - col : 8;
        memcpy(to, (const uint16_t *)w->data + at, n * 2);
        return;
    }
    const uint8_t *codes = (const uint8_t *)w->data + at / 2;
    for (int i = 0; i < VECTOR; i += 4) {
        const uint32_t word = t->of[0][codes[i]] | t->of[1][codes[i + 1]] | t->of[2][codes[i + 2]] |
                              t->of[3][codes[i + 3]];
        memcpy(to + i, &word, sizeof word);
    }
}

void gpu_pack(uint8_t *to, const struct weight *w, const struct weight *other) {
    const bool bf16 = w->dtype == DTYPE_BF16;
    const uint32_t rows = other ? TILE : 2 * TILE, each = piece_cols(w) / 4;
    struct table table;
    fill(&table);
    memset(to, 0, gpu_pack_bytes(w, other != NULL));
    for (uint32_t row0 = 0; row0 < w->rows; row0 += rows)
        for (uint32_t col0 = 0; col0 < w->cols; col0 += piece_cols(w), to += piece_bytes(w))
            for (uint32_t v = 0; v < 2 * TILE * 4; v++) {
                const uint32_t tile = v / (4 * TILE), r = v / 4 % TILE, col = col0 + v % 4 * each;
                const struct weight *of = tile && other ? other : w;
                const uint32_t row = row0 + (other ? 0 : tile * TILE) + r;
                if (row >= w->rows || col >= w->cols)
                    continue;
                pack_vector(to + (size_t)v * VECTOR, &table, of, row, col);
                if (!bf16)
                    to[2 * TILE * 4 * VECTOR + v] = of->scale[((size_t)row * w->cols + col) / 32];
            }
}

_Static_assert((int)GPU_FP8_SCALED == (int)PACK_GROUP, "the same quantised weights on all columns");

size_t gpu_pack_fp8_bytes(const struct weight *w) {
    if (w->dtype != DTYPE_BF16)
        return 0;
    return w->rows *
           (GPU_FP8_ROW((size_t)w->cols) + GPU_FP8_SCALES((size_t)w->cols) * sizeof(float));
}

void gpu_pack_fp8(uint8_t *to, const struct weight *w) {
    const size_t row_bytes = GPU_FP8_ROW((size_t)w->cols), scales = GPU_FP8_SCALES((size_t)w->cols);
    for (size_t r = 0; r < w->rows; r++)
        for (uint32_t c = 0; c < w->cols; c += PACK_GROUP) {
            unsigned char code[PACK_GROUP];
            float scale;
            pack_group(w, PACK_FP8, (uint32_t)r, c, code, &scale);
            memcpy(to + r * row_bytes + c, code,
                   row_bytes - c < PACK_GROUP ? row_bytes - c : PACK_GROUP);
            memcpy(to + w->rows * row_bytes + (r * scales + c / PACK_GROUP) * sizeof scale, &scale,
                   sizeof scale);
        }
}
