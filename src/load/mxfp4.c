/* mxfp4.c: the quantiser behind synthetic checkpoints. Invariant that bites: a group of zeros or of
 * subnormals has no useful logarithm; dividing by its largest magnitude would give NaN weights. */
#include "load/mxfp4.h"
#include "base/dtype.h"

#include <math.h>

/* Code of a magnitude in units of the scale: 0 .5 1 1.5 2 3 4 6, ties to the even code, which is
 * why the comparisons alternate between > and >=. */
static unsigned code_of(float a) {
    return (unsigned)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
           (a >= 3.5f) + (a > 5.0f);
}

void mxfp4_quantise_group(const float *x, uint8_t *codes, uint8_t *scale) {
    float largest = 0;
    for (int i = 0; i < MXFP4_GROUP_ELEMENTS; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    int exponent = 0;
    if (largest > 0) {
        /* largest = m * 2^e with m in [0.5, 1): 8m lies in [4, 8); from 7 on 4 of the next scale is
         * as near as 6 of this one or nearer */
        int e;
        const float m = frexpf(largest, &e);
        exponent = e - 3 + (m >= 0.875f);
        exponent = exponent < -127 ? -127 : exponent;
    }
    *scale = (uint8_t)(exponent + 127);
    /* 2^-exponent may exceed f32 when the scale is subnormal; two factors never do */
    const float half = ldexpf(1.0f, -(exponent / 2)), rest = ldexpf(1.0f, exponent / 2 - exponent);
    for (int i = 0; i < MXFP4_GROUP_BYTES; i++) {
        const float lo = x[2 * i] * half * rest, hi = x[2 * i + 1] * half * rest;
        codes[i] = (uint8_t)(code_of(fabsf(lo)) | (unsigned)(lo < 0) << 3 |
                             code_of(fabsf(hi)) << 4 | (unsigned)(hi < 0) << 7);
    }
}
