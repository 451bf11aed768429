/* mxfp4.h: writes the MXFP4 packs that checkpoints hold: E2M1 codes, two a byte, and one E8M0 scale
 * per 32 elements of a row. Reading them is base/dtype.h. */
#ifndef WEIR_LOAD_MXFP4_H
#define WEIR_LOAD_MXFP4_H

#include <stdint.h>

enum { MXFP4_GROUP_ELEMENTS = 32, MXFP4_GROUP_BYTES = 16 };

/* Quantises 32 finite values: the scale is the power of two that puts the largest magnitude on 4 or
 * 6, every value is rounded to the nearest code, ties to even. A group of zeros gives zero codes
 * and scale byte 127 (1.0); magnitudes below 2^-129 become zero, those above 6 * 2^127 do not
 * exist in f32. The scale byte is never 255. */
void mxfp4_quantise_group(const float *x, uint8_t *codes, uint8_t *scale);

#endif
