/* dtype.h: the number formats of checkpoints and caches, and exact conversions between them. */
#ifndef WEIR_BASE_DTYPE_H
#define WEIR_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_U8,
    DTYPE_MXFP4, /* two E2M1 codes a byte (low nibble = even element), one E8M0 scale byte per 32
                    elements of a row */
};

static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays NaN (rounding its mantissa up could make it infinite). */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static inline float bf16_round(float f) {
    return bf16_to_f32(f32_to_bf16(f));
}

/* E8M0 scale byte: 2^(s-127). 0 is 2^-127, a subnormal that the shift alone would turn into zero;
 * 255 is NaN by the OCP definition and is refused when a checkpoint is loaded. */
static inline float e8m0_to_f32(uint8_t s) {
    uint32_t u = s == 0 ? 0x00400000u : s == 255 ? 0x7FC00000u : (uint32_t)s << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* E2M1 code 0..15. */
static inline float e2m1_to_f32(unsigned code) {
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[code & 15u];
}

#endif
