/* mla.h: what the files of latent attention share: history records, the running softmax of a row,
 * the gate. Everything is static: see vec.h. */
#ifndef WEIR_OPS_CPU_MLA_H
#define WEIR_OPS_CPU_MLA_H

#include "ops/cpu/kernels.h"
#include "ops/cpu/vmath.h"

#include <math.h>

/* The record of one position. */
ALWAYS unsigned char *kv_record(const struct kv_pool *pool, uint32_t layer, const int32_t *pages,
                                uint32_t position) {
    size_t size = pool->dtype == DTYPE_F32 ? 4 : 2;
    return pool->data + (size_t)pages[position / PAGE_TOKENS] * pool->page_bytes +
           ((size_t)layer * PAGE_TOKENS + position % PAGE_TOKENS) * pool->width * size;
}

/* Floats of a widened record: whole vectors of the widest set, so that a product may run over the
 * end of a row. */
ALWAYS uint32_t kv_stride(const struct kv_pool *pool) {
    return round_up(pool->width, 16);
}

/* n positions from `position` on, all of one page, as f32 rows of kv_stride each; what lies behind
 * a record's values becomes zero. */
ALWAYS void kv_widen(const struct kv_pool *pool, uint32_t layer, const int32_t *pages,
                     uint32_t position, uint32_t n, float *to) {
    const unsigned char *from = kv_record(pool, layer, pages, position);
    uint32_t width = pool->width, stride = kv_stride(pool);
    for (uint32_t t = 0; t < n; t++, to += stride) {
        if (pool->dtype == DTYPE_F32) {
            const float *x = (const float *)(const void *)from + (size_t)t * width;
            for (uint32_t c = 0; c < width; c += VL)
                vstore(to + c, vloadm(x + c, vmask(width - c)));
        } else {
            const uint16_t *x = (const uint16_t *)(const void *)from + (size_t)t * width;
            for (uint32_t c = 0; c < width; c += VL)
                vstore(to + c, vwidenm(x + c, vmask(width - c)));
        }
        for (uint32_t c = round_up(width, VL); c < stride; c++)
            to[c] = 0;
    }
}

/* out = o / total * sigmoid(g). */
ALWAYS void gate_out(const float *o, float total, const float *g, float *out, uint32_t n) {
    vf inv = vset(1.0f / total);
    for (uint32_t c = 0; c < n; c += VL) {
        vm m = vmask(n - c);
        vf x = vloadm(o + c, m) * inv;
        vstorem(out + c, m, g ? vmul(x, vsigmoid(vloadm(g + c, m))) : x);
    }
}

#endif
