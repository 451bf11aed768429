/* mla.h: what the files of latent attention share: history records, the running softmax of a row,
 * the gate. Everything is static: see vec.h. */
#ifndef WEIR_OPS_CPU_MLA_H
#define WEIR_OPS_CPU_MLA_H

#include "ops/cpu/kernels.h"
#include "ops/cpu/vmath.h"
#include "ops/kv.h"

#include <math.h>

/* The record of one position: `latent` normed values and the extra ones. */
ALWAYS unsigned char *kv_record(const struct kv_pool *pool, uint32_t latent, uint32_t layer,
                                const int32_t *pages, uint32_t position) {
    return pool->data + (size_t)pages[position / PAGE_TOKENS] * pool->page_bytes +
           ((size_t)layer * PAGE_TOKENS + position % PAGE_TOKENS) *
               kv_record_bytes(pool->dtype, latent, pool->width - latent);
}

/* Floats of a widened record: whole vectors of the widest set, so that a product may run over the
 * end of a row, and an odd number of cache lines, so that a chunk of rows lies on all sets of the
 * first cache. */
ALWAYS uint32_t kv_stride(const struct kv_pool *pool) {
    return (round_up(pool->width, 16) / 16 | 1) * 16;
}

/* The first `latent` values of an FP8 record. */
ALWAYS void kv_widen_codes(const unsigned char *record, uint32_t latent, float *to) {
    for (uint32_t c = 0; c < latent; c += VL) {
        float scale;
        memcpy(&scale, record + kv_scales_at(latent) + c / KV_SCALED * sizeof scale, sizeof scale);
        if (c + VL <= latent) {
            vstore(to + c, vwiden_e4m3(record + c) * vset(scale));
            continue;
        }
        uint8_t rest[VL] = {0}; /* the record may end before a vector does */
        memcpy(rest, record + c, latent - c);
        vstorem(to + c, vmask(latent - c), vwiden_e4m3(rest) * vset(scale));
    }
}

ALWAYS void widen_bf16(const unsigned char *from, uint32_t n, float *to) {
    const uint16_t *x = (const uint16_t *)(const void *)from;
    uint32_t c = 0;
    for (; c + VL <= n; c += VL)
        vstore(to + c, vwiden(x + c));
    if (c < n)
        vstorem(to + c, vmask(n - c), vwidenm(x + c, vmask(n - c)));
}

/* n positions from `position` on, all of one page, as f32 rows of kv_stride each; what lies behind
 * a record's values becomes zero. */
ALWAYS void kv_widen(const struct kv_pool *pool, uint32_t latent, uint32_t layer,
                     const int32_t *pages, uint32_t position, uint32_t n, float *to) {
    const unsigned char *from = kv_record(pool, latent, layer, pages, position);
    uint32_t width = pool->width, stride = kv_stride(pool);
    size_t bytes = kv_record_bytes(pool->dtype, latent, width - latent);
    for (uint32_t t = 0; t < n; t++, to += stride, from += bytes) {
        if (pool->dtype == DTYPE_FP8) {
            kv_widen_codes(from, latent, to);
            widen_bf16(from + kv_extra_at(latent), width - latent, to + latent);
        } else if (pool->dtype == DTYPE_BF16) {
            widen_bf16(from, width, to);
        } else {
            memcpy(to, from, bytes);
        }
        memset(to + width, 0, (stride - width) * sizeof *to);
    }
}

/* Columns [c, c + n) of a row of a weight; of MXFP4 whole scales, c and n multiples of 32. */
ALWAYS void mat_widen(const struct mat *m, size_t row, uint32_t c, uint32_t n, float *to) {
    const unsigned char *from = m->data + row * m->row_bytes;
    switch (m->dtype) {
    case DTYPE_F32: memcpy(to, from + (size_t)c * 4, n * sizeof *to); return;
    case DTYPE_BF16: widen_bf16(from + (size_t)c * 2, n, to); return;
    case DTYPE_MXFP4:
        for (uint32_t i = 0; i < n; i += 32) {
            vf w[32 / VL];
            vdecode_mxfp4(from + (c + i) / 2, m->scale[row * (m->cols / 32) + (c + i) / 32], w);
            for (uint32_t v = 0; v < 32 / VL; v++)
                vstore(to + i + v * VL, w[v]);
        }
        return;
    case DTYPE_U8:
    case DTYPE_FP8: return;
    }
}

/* out = o / total * sigmoid(g). */
ALWAYS void gate_out(const float *o, float total, const float *g, float *out, uint32_t n) {
    vf inv = vset(1.0f / total);
    uint32_t c = 0;
    for (; c + VL <= n; c += VL) {
        vf x = vload(o + c) * inv;
        vstore(out + c, g ? vmul(x, vsigmoid(vload(g + c))) : x);
    }
    if (c < n) {
        vm m = vmask(n - c);
        vf x = vloadm(o + c, m) * inv;
        vstorem(out + c, m, g ? vmul(x, vsigmoid(vloadm(g + c, m))) : x);
    }
}

#endif
