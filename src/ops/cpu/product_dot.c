/* product_dot.c: packed weights times BF16 or INT8 activations by the processor's dot-product
 * instructions (AVX512_BF16, AVX512_VNNI). Called through product_run (acts.c).
 * Invariant that bites: as in product_f32.c the sum of a row and an activation does not depend on
 * the tile. The instructions stand in asm: compilers copy the sums of their intrinsics back and
 * forth, which costs half the speed. */
#include "ops/cpu/product.h"

#define DOT_BF16(sum, w, x) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x))
/* Unsigned bytes times signed bytes. */
#define DOT_INT8(sum, u, s) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s))

#if defined(WEIR_SMALL_TILES)
enum { TILE_N = 2 };
#else
enum { TILE_N = 12 };
#endif
enum { CHUNKS = PANEL_ROWS / PANEL_LANES };

/* A kernel works on R chunks side by side of one panel, for N activations. Each gets: lanes of the
 * chunks' first line, columns [k0, k1), dwords of the activations. */
struct span_of {
    const unsigned char *panel;
    uint32_t chunk; /* in the panel */
    uint32_t k0, k1;
    const uint32_t *x[TILE_N]; /* dwords from column k0 on */
};

ALWAYS __m512i spread(const uint32_t *p) {
    return _mm512_set1_epi32((int)*p);
}

/* ------------------------------------------------------------------------------------- BF16 */

ALWAYS void bf16_bf16(const struct span_of *s, const int R, const int N, vf *sum) {
    const unsigned char *at =
        s->panel + (size_t)s->k0 * PANEL_ROWS * 2 + s->chunk * PANEL_LANES * 4;
    const uint32_t pairs = (s->k1 - s->k0) / 2;
    for (uint32_t d = 0; d < pairs; d++, at += PANEL_ROWS * 4) {
        __m512i w[CHUNKS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            w[r] = viload(at + r * 64);
            if (N <= 2)
                __builtin_prefetch(at + r * 64 + 4096);
        }
#pragma GCC unroll 12
        for (int j = 0; j < N; j++) {
            __m512i x = spread(s->x[j] + d);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                DOT_BF16(sum[r * N + j], w[r], x);
        }
    }
}

/* ------------------------------------------------------------------------------------ MXFP4 */

enum { MXFP4_GROUP = PANEL_ROWS + PANEL_ROWS * 16 };

/* BF16 bits of the E2M1 values, twice: a word's fifth bit belongs to the next nibble. */
ALWAYS __m512i bf16_of_e2m1(void) {
    const __m256i v =
        _mm256_set_epi16((short)0xC0C0, (short)0xC080, (short)0xC040, (short)0xC000, (short)0xBFC0,
                         (short)0xBF80, (short)0xBF00, (short)0x8000, 0x40C0, 0x4080, 0x4040,
                         0x4000, 0x3FC0, 0x3F80, 0x3F00, 0x0000);
    return _mm512_broadcast_i64x4(v);
}

ALWAYS void mxfp4_bf16(const struct span_of *s, const int R, const int N, vf *sum) {
    const __m512i values = bf16_of_e2m1();
    const unsigned char *at = s->panel + s->k0 / 32 * MXFP4_GROUP;
    for (uint32_t k = s->k0, d = 0; k < s->k1; k += 32, d += 16, at += MXFP4_GROUP) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const unsigned char *lines = at + PANEL_ROWS + (s->chunk + (uint32_t)r) * 256;
            vf part[TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                part[j] = vset(0);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                __m512i codes = viload(lines + i * 64);
                if (N <= 2)
                    __builtin_prefetch(lines + i * 64 + 4 * MXFP4_GROUP);
#pragma GCC unroll 4
                for (uint32_t q = 0; q < 4; q++) {
                    __m512i w = _mm512_permutexvar_epi16(
                        q ? _mm512_srli_epi16(codes, 4 * q) : codes, values);
#pragma GCC unroll 12
                    for (int j = 0; j < N; j++)
                        DOT_BF16(part[j], w, spread(s->x[j] + d + 4 * i + q));
                }
            }
            vf scale = ve8m0(at + (s->chunk + (uint32_t)r) * PANEL_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(part[j], scale, sum[r * N + j]);
        }
    }
}

/* Twice the E2M1 values, plus 12: unsigned. The twelves are taken off through the sum of the
 * activations, the factor two through the scale. */
ALWAYS void mxfp4_int8(const struct span_of *s, const float *const *scale,
                       const int32_t *const *sums, const int R, const int N, vf *sum) {
    const __m512i values = _mm512_broadcast_i32x4(
        _mm_set_epi8(0, 4, 6, 8, 9, 10, 11, 12, 24, 20, 18, 16, 15, 14, 13, 12));
    const __m512i low = _mm512_set1_epi8(15);
    const unsigned char *at = s->panel + s->k0 / 32 * MXFP4_GROUP;
    for (uint32_t k = s->k0, d = 0, g = s->k0 / 32; k < s->k1;
         k += 32, d += 8, g++, at += MXFP4_GROUP) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const unsigned char *lines = at + PANEL_ROWS + (s->chunk + (uint32_t)r) * 256;
            __m512i part[TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                part[j] = _mm512_set1_epi32(-12 * sums[j][g]);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                __m512i codes = viload(lines + i * 64);
                if (N <= 2)
                    __builtin_prefetch(lines + i * 64 + 4 * MXFP4_GROUP);
                __m512i a = _mm512_shuffle_epi8(values, _mm512_and_si512(codes, low));
                __m512i b =
                    _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(codes, 4), low));
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    DOT_INT8(part[j], a, spread(s->x[j] + d + 2 * i));
                    DOT_INT8(part[j], b, spread(s->x[j] + d + 2 * i + 1));
                }
            }
            vf half = vmul(ve8m0(at + (s->chunk + (uint32_t)r) * PANEL_LANES), vset(0.5f));
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] =
                    vfma(vmul(half, vset(scale[j][g])), vifloat(part[j]), sum[r * N + j]);
        }
    }
}

/* ------------------------------------------------------------------------------- INT8 and FP8 */

enum { BYTE_GROUP = PANEL_ROWS * (4 + PACK_GROUP) };

ALWAYS void int8_int8(const struct span_of *s, const float *const *scale,
                      const int32_t *const *sums, const int R, const int N, vf *sum) {
    const unsigned char *at = s->panel + s->k0 / PACK_GROUP * BYTE_GROUP;
    for (uint32_t k = s->k0, d = 0, g = s->k0 / ACTS_INT8_GROUP; k < s->k1;
         k += PACK_GROUP, at += BYTE_GROUP) {
        const unsigned char *lines = at + PANEL_ROWS * 4 + s->chunk * PANEL_LANES * 4;
        vf part[CHUNKS * TILE_N];
#pragma GCC unroll 48
        for (int i = 0; i < R * N; i++)
            part[i] = vset(0);
        for (uint32_t t = 0; t < PACK_GROUP / ACTS_INT8_GROUP; t++, g++) {
            __m512i dots[CHUNKS * TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++) {
                __m512i bias = _mm512_set1_epi32(-128 * sums[j][g]);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
                    dots[r * N + j] = bias;
            }
#pragma GCC unroll 8
            for (uint32_t i = 0; i < ACTS_INT8_GROUP / 4; i++, d++, lines += PANEL_ROWS * 4) {
                __m512i w[CHUNKS];
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    w[r] = viload(lines + r * 64);
                    if (N <= 2)
                        __builtin_prefetch(lines + r * 64 + 4096);
                }
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    __m512i x = spread(s->x[j] + d);
#pragma GCC unroll 4
                    for (int r = 0; r < R; r++)
                        DOT_INT8(dots[r * N + j], w[r], x);
                }
            }
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
                    part[r * N + j] =
                        vfma(vifloat(dots[r * N + j]), vset(scale[j][g]), part[r * N + j]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf row =
                vload((const float *)(const void *)at + (s->chunk + (uint32_t)r) * PANEL_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(part[r * N + j], row, sum[r * N + j]);
        }
    }
}

/* E4M3 codes in the low bytes of words as BF16: the exponent moved, the steps of subnormal codes
 * looked up. */
ALWAYS __m512i bf16_of_e4m3(__m512i code) {
    const __m512i tiny = _mm512_castsi128_si512(
        _mm_set_epi16(0x3C60, 0x3C40, 0x3C20, 0x3C00, 0x3BC0, 0x3B80, 0x3B00, 0x0000));
    __m512i size = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
    __m512i value = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    value = _mm512_mask_permutexvar_epi16(
        value, _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8)), size, tiny);
    __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16((short)0x8000));
    return _mm512_or_si512(value, sign);
}

ALWAYS void fp8_bf16(const struct span_of *s, const int R, const int N, vf *sum) {
    const unsigned char *at = s->panel + s->k0 / PACK_GROUP * BYTE_GROUP;
    for (uint32_t k = s->k0, d = 0; k < s->k1; k += PACK_GROUP, at += BYTE_GROUP) {
        const unsigned char *lines = at + PANEL_ROWS * 4 + s->chunk * PANEL_LANES * 4;
        vf part[CHUNKS * TILE_N];
#pragma GCC unroll 48
        for (int i = 0; i < R * N; i++)
            part[i] = vset(0);
        for (uint32_t i = 0; i < PACK_GROUP / 4; i++, d += 2, lines += PANEL_ROWS * 4) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m512i codes = viload(lines + r * 64);
                if (N <= 2)
                    __builtin_prefetch(lines + r * 64 + 4096);
                __m512i even = bf16_of_e4m3(codes);
                __m512i odd = bf16_of_e4m3(_mm512_srli_epi16(codes, 8));
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    DOT_BF16(part[r * N + j], even, spread(s->x[j] + d));
                    DOT_BF16(part[r * N + j], odd, spread(s->x[j] + d + 1));
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf row =
                vload((const float *)(const void *)at + (s->chunk + (uint32_t)r) * PANEL_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(part[r * N + j], row, sum[r * N + j]);
        }
    }
}

/* ------------------------------------------------------------------------------------- tiles */

enum kernel { BF16_BF16, MXFP4_BF16, MXFP4_INT8, INT8_INT8, FP8_BF16 };

ALWAYS uint32_t dword_cols(const enum kernel kernel) {
    return kernel == MXFP4_INT8 || kernel == INT8_INT8 ? 4 : 2;
}

ALWAYS void store_sums(const struct weight *w, uint32_t chunk, const int R, const int N,
                       uint32_t have, float *const *y, const vf *sum) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        uint32_t row = (chunk + (uint32_t)r) * PANEL_LANES;
        vm rows = vmask(w->rows - row);
#pragma GCC unroll 12
        for (int j = 0; j < N; j++)
            if ((uint32_t)j < have)
                vstorem(y[j] + row, rows, sum[r * N + j]);
    }
}

/* `have` of the N activations are real; the others repeat the last one and are not stored: fewer
 * kernels, and each of them is small beside memory. */
ALWAYS void tile(const struct weight *w, const struct acts *a, uint32_t chunk, uint32_t j0,
                 uint32_t have, uint32_t k0, uint32_t k1, float *const *y, bool add,
                 const enum kernel kernel, const int R, const int N) {
    struct span_of s = {product_panel(w, chunk), chunk % CHUNKS, k0, k1, {0}};
    const float *scale[TILE_N];
    const int32_t *sums[TILE_N];
    vf sum[CHUNKS * TILE_N];
#pragma GCC unroll 12
    for (int j = 0; j < N; j++) {
        uint32_t at = j0 + ((uint32_t)j < have ? (uint32_t)j : have - 1);
        s.x[j] =
            (const uint32_t *)(const void *)(a->data + at * a->row_bytes) + k0 / dword_cols(kernel);
        if (kernel == MXFP4_INT8 || kernel == INT8_INT8) {
            scale[j] = a->scale + (size_t)at * (a->cols / ACTS_INT8_GROUP);
            sums[j] = a->sum + (size_t)at * (a->cols / ACTS_INT8_GROUP);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        uint32_t row = (chunk + (uint32_t)r) * PANEL_LANES;
        vm rows = vmask(w->rows - row);
#pragma GCC unroll 12
        for (int j = 0; j < N; j++)
            sum[r * N + j] =
                add && (uint32_t)j < have ? vloadm(y[j0 + (uint32_t)j] + row, rows) : vset(0);
    }
    switch (kernel) {
    case BF16_BF16: bf16_bf16(&s, R, N, sum); break;
    case MXFP4_BF16: mxfp4_bf16(&s, R, N, sum); break;
    case MXFP4_INT8: mxfp4_int8(&s, scale, sums, R, N, sum); break;
    case INT8_INT8: int8_int8(&s, scale, sums, R, N, sum); break;
    case FP8_BF16: fp8_bf16(&s, R, N, sum); break;
    }
    store_sums(w, chunk, R, N, have, y + j0, sum);
}

/* Chunks [c0, c1) of one panel for `have` activations: as many chunks side by side as the registers
 * hold. */
ALWAYS void chunks(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                   uint32_t j0, uint32_t have, uint32_t k0, uint32_t k1, float *const *y, bool add,
                   const enum kernel kernel, const int R, const int N) {
    uint32_t c = c0;
    for (; c + (uint32_t)R <= c1; c += (uint32_t)R)
        tile(w, a, c, j0, have, k0, k1, y, add, kernel, R, N);
    for (; R > 1 && c < c1; c++)
        tile(w, a, c, j0, have, k0, k1, y, add, kernel, 1, N);
}

/* Sums a kernel keeps for one row and activation: those that share a scale are apart. */
ALWAYS void panel_block(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        uint32_t k0, uint32_t k1, float *const *y, bool add,
                        const enum kernel kernel) {
    const bool twice = kernel == INT8_INT8, plain = kernel == BF16_BF16;
    for (uint32_t j = 0; j < a->n;) {
        uint32_t left = a->n - j, have = left < TILE_N ? left : TILE_N;
        if (twice && have > 8)
            have = 8;
        if (have == 1)
            chunks(w, a, c0, c1, j, 1, k0, k1, y, add, kernel, 4, 1);
        else if (have == 2)
            chunks(w, a, c0, c1, j, have, k0, k1, y, add, kernel, twice ? 2 : 4, 2);
#if !defined(WEIR_SMALL_TILES)
        else if (have <= 4)
            chunks(w, a, c0, c1, j, have, k0, k1, y, add, kernel, twice ? 1 : 2, 4);
        else if (have <= 8)
            chunks(w, a, c0, c1, j, have, k0, k1, y, add, kernel, plain ? 2 : 1, 8);
        else if (!twice)
            chunks(w, a, c0, c1, j, have, k0, k1, y, add, kernel, plain ? 2 : 1, TILE_N);
#else
        (void)plain;
#endif
        j += have;
    }
}

ALWAYS void product(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                    float *const *y, bool add, const enum kernel kernel) {
    uint32_t block = a->n > 2 * TILE_N ? PRODUCT_COLS : a->cols;
    for (uint32_t c = c0; c < c1;) {
        uint32_t end = (c / CHUNKS + 1) * CHUNKS < c1 ? (c / CHUNKS + 1) * CHUNKS : c1;
        for (uint32_t k = 0; k < a->cols; k += block) {
            uint32_t k1 = a->cols - k < block ? a->cols : k + block;
            panel_block(w, a, c, end, k, k1, y, add || k > 0, kernel);
        }
        c = end;
    }
}

static void product_bf16(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    product(w, a, c0, c1, y, add, BF16_BF16);
}
static void product_mxfp4_bf16(const struct weight *w, const struct acts *a, uint32_t c0,
                               uint32_t c1, float *const *y, bool add) {
    product(w, a, c0, c1, y, add, MXFP4_BF16);
}
static void product_mxfp4_int8(const struct weight *w, const struct acts *a, uint32_t c0,
                               uint32_t c1, float *const *y, bool add) {
    product(w, a, c0, c1, y, add, MXFP4_INT8);
}
static void product_int8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    product(w, a, c0, c1, y, add, INT8_INT8);
}
static void product_fp8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        float *const *y, bool add) {
    product(w, a, c0, c1, y, add, FP8_BF16);
}

void cpu_product_dot(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                     float *const *y, bool add) {
    switch (w->packing) {
    case PACK_BF16: product_bf16(w, a, c0, c1, y, add); return;
    case PACK_MXFP4:
        (a->form == ACTS_INT8 ? product_mxfp4_int8 : product_mxfp4_bf16)(w, a, c0, c1, y, add);
        return;
    case PACK_INT8: product_int8(w, a, c0, c1, y, add); return;
    case PACK_FP8: product_fp8(w, a, c0, c1, y, add); return;
    case PACK_NONE: return;
    }
}
