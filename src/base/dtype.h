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
    DTYPE_FP8,   /* of history alone: E4M3 codes with f32 scales, see ops/kv.h */
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

/* OCP E4M3 (no infinities, 448 the largest number, 0x7F and 0xFF NaN): round to nearest even; what
 * is larger than 448 becomes 448. Without branches, so that compilers make vectors of a loop. */
static inline uint8_t f32_to_e4m3(float f) {
    const float halves = 0x1p14f; /* adding it leaves multiples of 2^-9, the subnormal step */
    uint32_t u, small, normal;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 24 & 0x80u, a = u & 0x7FFFFFFFu;
    float magnitude, shifted;
    memcpy(&magnitude, &a, 4);
    shifted = magnitude + halves;
    memcpy(&small, &shifted, 4);
    small &= 0xFFu;
    normal = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    normal = a > 0x43E00000u ? 0x7Eu : normal;
    normal = a > 0x7F800000u ? 0x7Fu : normal;
    return (uint8_t)(sign | (a < 0x3C800000u ? small : normal));
}

static inline float e4m3_to_f32(uint8_t code) {
    uint32_t m = code & 7u, e = code >> 3 & 15u, u;
    float f;
    if ((code & 0x7Fu) == 0x7Fu) {
        u = 0x7FC00000u;
        memcpy(&f, &u, 4);
        return f;
    }
    if (e == 0) {
        f = (float)m * 0x1p-9f;
    } else {
        u = (e + 120u) << 23 | m << 20;
        memcpy(&f, &u, 4);
    }
    return code & 0x80u ? -f : f;
}

#endif
