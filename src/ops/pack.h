/* pack.h: the layouts in which fast columns read weight matrices, and the functions that make them
 * from the stored form.
 *
 * All of them keep PANEL_ROWS rows together, with the rows of one panel side by side (in the lanes
 * of a vector) and the columns of the matrix one behind the other: a product reads one long stream,
 * needs no sum across lanes, and serves any number of activations in the same order of sums. A lane
 * is 32 bits wide. Rows and columns beyond the matrix are packed as zeros.
 *
 *   PACK_BF16   a lane holds columns 2d, 2d+1 (low half first). Lines of PANEL_ROWS lanes, d
 * ascending. PACK_INT8   a lane holds columns 4d..4d+3 as q + 128 (low byte first). Per PACK_GROUP
 * columns: PANEL_ROWS f32 scales, then PACK_GROUP/4 lines. w = q * scale, q in [-127, 127].
 *   PACK_FP8    the same with E4M3 codes (no infinities, 0x7F never used): w = e4m3(code) * scale.
 *   PACK_MXFP4  per 32 columns: PANEL_ROWS E8M0 scale bytes, then for each 16 rows 4 lines of 16
 *               lanes; line i's lane holds columns 8i..8i+7: nibble 2b is column 8i+b, nibble 2b+1
 *               is column 8i+4+b, b = 0..3. So that the low and the high nibbles of four bytes are
 *               each four neighbouring columns. */
#ifndef WEIR_OPS_PACK_H
#define WEIR_OPS_PACK_H

#include "ops/ops.h"

enum { PANEL_ROWS = 64, PANEL_LANES = 16, PACK_GROUP = 128, PACK_COLS = 32 };

static inline uint32_t pack_panels(uint32_t rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}
/* Columns of the packed form: whole groups of PACK_GROUP (INT8, FP8) or PACK_COLS. */
static inline uint32_t pack_cols(enum packing p, uint32_t cols) {
    uint32_t unit = p == PACK_INT8 || p == PACK_FP8 ? PACK_GROUP : PACK_COLS;
    return (cols + unit - 1) / unit * unit;
}
/* Bytes of one panel; the panels of a matrix follow one another. */
size_t pack_panel_bytes(enum packing p, uint32_t cols);
/* Bytes of the whole matrix; 0: a weight of this dtype has no such form, or no memory could hold
 * it. */
size_t pack_bytes(const struct weight *w, enum packing p);
/* Makes member `work.index`'s share of the panels at `to` (64-byte aligned) from the stored form.
 * INT8 and FP8 round to nearest even; a value that is not finite stays what the scale makes of the
 * largest code. */
void pack_weight(const struct weight *w, enum packing p, void *to, struct work work);

/* The codes of PACK_INT8 or PACK_FP8 of PACK_GROUP columns of one row, from col0 on, and their
 * scale; beyond the matrix as of zeros. */
void pack_group(const struct weight *w, enum packing p, uint32_t row, uint32_t col0,
                unsigned char code[PACK_GROUP], float *scale);

const char *packing_name(enum packing p);

#endif
