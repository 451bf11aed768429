/* acts.c: activations in the form that the products with packed weights read. Called by linear.c
 * and experts.c. Sets without instructions for a form take the same rounded values as f32, so that
 * a mode means the same numbers on every processor. Invariant that bites: the padding behind a row
 * must be zero: the weights there are zero, but zero times what scratch holds (NaN, perhaps) is
 * not. */
#include "ops/cpu/product.h"

#include <math.h>

static void round_bf16(float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = bf16_round(x[i]);
}

/* Largest magnitude of a group. */
static float most_of(const float *x) {
    vf most = vset(0);
    for (uint32_t i = 0; i < ACTS_INT8_GROUP; i += VL)
        most = vmax(most, vabs(vload(x + i)));
    return vtop(most);
}

/* One group as integers in f32; returns the scale. */
static float quantise(const float *x, float *q) {
    float most = most_of(x), inverse = most > 0 ? 127 / most : 0;
    for (uint32_t i = 0; i < ACTS_INT8_GROUP; i += VL)
        vstore(q + i, vround(vmul(vload(x + i), vset(inverse))));
    return most / 127;
}

static void round_int8(float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i += ACTS_INT8_GROUP) {
        float scale = quantise(x + i, x + i);
        for (uint32_t k = 0; k < ACTS_INT8_GROUP; k += VL)
            vstore(x + i + k, vmul(vload(x + i + k), vset(scale)));
    }
}

#if defined(WEIR_HAS_DOTS)
static void pairs_bf16(enum packing p, const float *x, uint32_t cols, unsigned char *to) {
    /* 32 values are rounded at once and then brought into the order of the lanes' pairs. */
    const __m512i natural =
        _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                         12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    uint16_t order[32];
    for (uint32_t t = 0; t < 16; t++) {
        order[2 * t] = (uint16_t)acts_pair(p, t);
        order[2 * t + 1] = (uint16_t)(acts_pair(p, t) + acts_gap(p));
    }
    __m512i pick = p == PACK_BF16 ? natural : _mm512_loadu_si512(order);
    for (uint32_t c = 0; c < cols; c += 32) {
        __m512bh h = _mm512_cvtne2ps_pbh(vload(x + c + 16), vload(x + c));
        _mm512_storeu_si512(to + 2 * (size_t)c, _mm512_permutexvar_epi16(pick, (__m512i)h));
    }
}

#endif

#if defined(WEIR_HAS_INT8)
static void bytes_int8(const float *x, uint32_t cols, unsigned char *to, float *scale,
                       int32_t *sum) {
    float q[ACTS_INT8_GROUP];
    for (uint32_t c = 0; c < cols; c += ACTS_INT8_GROUP) {
        int32_t total = 0;
        scale[c / ACTS_INT8_GROUP] = quantise(x + c, q);
        for (uint32_t i = 0; i < ACTS_INT8_GROUP; i++) {
            int32_t v = (int32_t)q[i];
            to[c + i] = (unsigned char)v;
            total += v;
        }
        sum[c / ACTS_INT8_GROUP] = total;
    }
}
#endif

/* A row with zeros behind it. */
static void pad(const float *x, uint32_t cols, float *to, uint32_t padded) {
    memcpy(to, x, cols * sizeof *x);
    memset(to + cols, 0, (padded - cols) * sizeof *x);
}

void cpu_acts_make(struct acts *to, enum packing p, enum activation mode, const float *const *x,
                   uint32_t n, uint32_t cols, unsigned char **scratch) {
    enum activation a = activation_for(p, mode);
    uint32_t padded = pack_cols(p, cols);
    *to = (struct acts){.form = ACTS_F32,
                        .n = n,
                        .cols = padded,
                        .row_bytes = padded * 4u,
                        .how = &cpu_variants[CPU_DEFAULT]};
#if defined(WEIR_HAS_DOTS)
    /* Bytes of an INT8 weight have no short way to BF16: they meet f32 products. */
    if (a == ACTIVATION_BF16 && p != PACK_INT8) {
        to->form = ACTS_BF16;
        to->row_bytes = padded * 2u;
    }
#endif
#if defined(WEIR_HAS_INT8)
    if (a == ACTIVATION_INT8) {
        to->form = ACTS_INT8;
        to->row_bytes = padded;
    }
#endif
    if (n == 1 && a == ACTIVATION_F32 && padded == cols) { /* read where it lies */
        to->data = (const unsigned char *)x[0];
        to->room = *scratch;
        return;
    }
    to->row_bytes = acts_row_bytes(to->row_bytes);
    unsigned char *data = carve(scratch, n * to->row_bytes);
    to->data = data;
    uint32_t groups = padded / ACTS_INT8_GROUP;
    float *scale = NULL;
    int32_t *sum = NULL;
    if (to->form == ACTS_INT8) {
        scale = carve(scratch, (size_t)n * groups * sizeof *scale);
        sum = carve(scratch, (size_t)n * groups * sizeof *sum);
        to->scale = scale;
        to->sum = sum;
    }
    float *row = to->form == ACTS_F32 ? NULL : carve(scratch, padded * sizeof *row);
    for (uint32_t j = 0; j < n; j++, data += to->row_bytes) {
        float *at = row ? row : (float *)(void *)data;
        const float *from = at;
        if (to->form == ACTS_F32 || padded != cols)
            pad(x[j], cols, at, padded);
        else
            from = x[j];
        switch (to->form) {
        case ACTS_F32:
            if (a == ACTIVATION_BF16)
                round_bf16(at, padded);
            else if (a == ACTIVATION_INT8)
                round_int8(at, padded);
            break;
#if defined(WEIR_HAS_DOTS)
        case ACTS_BF16: pairs_bf16(p, from, padded, data); break;
#else
        case ACTS_BF16: break;
#endif
#if defined(WEIR_HAS_INT8)
        case ACTS_INT8:
            bytes_int8(from, padded, data, scale + (size_t)j * groups, sum + (size_t)j * groups);
            break;
#else
        case ACTS_INT8: (void)from; break;
#endif
        }
    }
    to->room = *scratch;
}

void cpu_product_run(const struct weight *w, const struct acts *acts, uint32_t c0, uint32_t c1,
                     float *const *y, bool add) {
#if defined(WEIR_ISA_AMX)
    if (acts->form == ACTS_BF16 && acts->n >= acts->how->tiles && w->packing != PACK_FP8) {
        cpu_product_amx(w, acts, c0, c1, y, add);
        return;
    }
#endif
#if defined(WEIR_HAS_DOTS)
    if (acts->form != ACTS_F32) {
        cpu_product_dot(w, acts, c0, c1, y, add);
        return;
    }
#elif defined(WEIR_HAS_INT8)
    if (acts->form == ACTS_INT8) {
        cpu_product_bytes(w, acts, c0, c1, y, add);
        return;
    }
#endif
    cpu_product_f32(w, acts, c0, c1, y, add);
}
