/* kv.h: one record of attention history: C latent values and R extra ones of one position, in the
 * pool's format. What writes, reads, sizes or moves history agrees on it here.
 *   F32, BF16   C+R values
 *   FP8         C E4M3 codes; one f32 scale for each 128 of them; R extra values BF16. A value is
 * its code times its scale; the scale is the largest magnitude over 448. The extra values are raw,
 * reach far and are few: eight bits would cost more there than they save. Codes, scales and the
 * whole record are padded to four bytes. */
#ifndef WEIR_OPS_KV_H
#define WEIR_OPS_KV_H

#include "base/dtype.h"

#include <math.h>
#include <stddef.h>

enum { KV_SCALED = 128 }; /* values that share a scale */

static inline size_t kv_scales_at(uint32_t latent) {
    return (latent + 3) & ~(size_t)3;
}
static inline size_t kv_extra_at(uint32_t latent) {
    return kv_scales_at(latent) + (latent + KV_SCALED - 1) / KV_SCALED * sizeof(float);
}

static inline size_t kv_record_bytes(enum dtype t, uint32_t latent, uint32_t extra) {
    switch (t) {
    case DTYPE_F32: return ((size_t)latent + extra) * 4;
    case DTYPE_BF16: return ((size_t)latent + extra) * 2;
    case DTYPE_FP8: return (kv_extra_at(latent) + (size_t)extra * 2 + 3) & ~(size_t)3;
    case DTYPE_U8:
    case DTYPE_MXFP4: break;
    }
    return 0;
}

/* The scale of n values that share it. Values that are no numbers make it NaN, and with it all of
 * them: a code cannot say infinity. */
static inline float kv_scale(const float *x, uint32_t n) {
    float most = 0;
    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        most = a > most || isnan(a) ? a : most;
    }
    return isfinite(most) ? most * (1.0f / 448) : NAN;
}

/* Codes of n values under `scale`. */
static inline void kv_encode(const float *x, uint32_t n, float scale, uint8_t *codes) {
    /* A scale of zero, or so small that it has no inverse: everything is zero. */
    float inverse = scale > 0x1p-120f ? 1.0f / scale : 0;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = f32_to_e4m3(x[i] * inverse);
}

#endif
