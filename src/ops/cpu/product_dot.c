/* product_dot.c: packed weights times BF16 or INT8 activations by the processor's dot-product
 * instructions (AVX512_BF16, AVX512_VNNI). Called through product_run (acts.c).
 * Invariant that bites: as in product_f32.c the sum of a row and an activation does not depend on
 * the tile. The instructions stand in asm: compilers copy the sums of their intrinsics back and
 * forth, which costs half the speed. */
#define DOT_BF16(sum, w, x) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x))
/* Unsigned bytes times signed bytes. */
#define DOT_INT8(sum, u, s) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s))

#if defined(WEIR_SMALL_TILES)
enum { TILE_N = 2 };
#else
enum { TILE_N = 12 };
#endif
#include "ops/cpu/product_tile.h"

/* Dword d of activation j. */
ALWAYS __m512i spread(const struct tile *t, int j, uint32_t d) {
    int32_t dword;
    memcpy(&dword, t->x[j] + 4 * (size_t)d, 4);
    return _mm512_set1_epi32(dword);
}

/* ------------------------------------------------------------------------------------- BF16 */

ALWAYS void bf16_bf16(const struct tile *t, const int R, const int N, vf *sum) {
    const unsigned char *at =
        t->panel + (size_t)t->k0 * PANEL_ROWS * 2 + t->chunk * PANEL_LANES * 4;
    const uint32_t pairs = (t->k1 - t->k0) / 2;
    for (uint32_t d = 0; d < pairs; d++, at += PANEL_ROWS * 4) {
        __m512i w[CHUNKS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            w[r] = viload(at + r * 64);
            ask(t->ahead, at + r * 64);
        }
#pragma GCC unroll 12
        for (int j = 0; j < N; j++) {
            __m512i x = spread(t, j, d);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                DOT_BF16(sum[r * N + j], w[r], x);
        }
    }
}

/* ------------------------------------------------------------------------------------ MXFP4 */

ALWAYS void mxfp4_bf16(const struct tile *t, const int R, const int N, vf *sum) {
    const __m512i values = bf16_of_e2m1();
    const unsigned char *at = t->panel + t->k0 / 32 * MXFP4_GROUP;
    for (uint32_t k = t->k0, d = 0; k < t->k1; k += 32, d += 16, at += MXFP4_GROUP) {
        size_t ahead = group_ahead(t, at, MXFP4_GROUP);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const unsigned char *lines = at + PANEL_ROWS + (t->chunk + (uint32_t)r) * 256;
            vf part[TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                part[j] = vset(0);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                __m512i codes = viload(lines + i * 64);
                ask(ahead, lines + i * 64);
#pragma GCC unroll 4
                for (uint32_t q = 0; q < 4; q++) {
                    __m512i w = _mm512_permutexvar_epi16(
                        q ? _mm512_srli_epi16(codes, 4 * q) : codes, values);
#pragma GCC unroll 12
                    for (int j = 0; j < N; j++)
                        DOT_BF16(part[j], w, spread(t, j, d + 4 * i + q));
                }
            }
            vf scale = ve8m0(at + (t->chunk + (uint32_t)r) * PANEL_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(part[j], scale, sum[r * N + j]);
        }
    }
}

/* Twice the E2M1 values, plus 12: unsigned. The twelves are taken off through the sum of the
 * activations, the factor two through the scale. */
ALWAYS void mxfp4_int8(const struct tile *t, const int R, const int N, vf *sum) {
    const __m512i values = _mm512_broadcast_i32x4(
        _mm_set_epi8(0, 4, 6, 8, 9, 10, 11, 12, 24, 20, 18, 16, 15, 14, 13, 12));
    const __m512i low = _mm512_set1_epi8(15);
    const unsigned char *at = t->panel + t->k0 / 32 * MXFP4_GROUP;
    for (uint32_t k = t->k0, d = 0, g = 0; k < t->k1; k += 32, d += 8, g++, at += MXFP4_GROUP) {
        size_t ahead = group_ahead(t, at, MXFP4_GROUP);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const unsigned char *lines = at + PANEL_ROWS + (t->chunk + (uint32_t)r) * 256;
            __m512i part[TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                part[j] = _mm512_set1_epi32(-12 * t->sums[j][g]);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                __m512i codes = viload(lines + i * 64);
                ask(ahead, lines + i * 64);
                __m512i a = _mm512_shuffle_epi8(values, _mm512_and_si512(codes, low));
                __m512i b =
                    _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(codes, 4), low));
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    DOT_INT8(part[j], a, spread(t, j, d + 2 * i));
                    DOT_INT8(part[j], b, spread(t, j, d + 2 * i + 1));
                }
            }
            vf half = vmul(ve8m0(at + (t->chunk + (uint32_t)r) * PANEL_LANES), vset(0.5f));
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] =
                    vfma(vmul(half, vset(t->scale[j][g])), vifloat(part[j]), sum[r * N + j]);
        }
    }
}

/* ------------------------------------------------------------------------------- INT8 and FP8 */

ALWAYS void int8_int8(const struct tile *t, const int R, const int N, vf *sum) {
    const unsigned char *at = t->panel + t->k0 / PACK_GROUP * BYTE_GROUP;
    for (uint32_t k = t->k0, d = 0, g = 0; k < t->k1; k += PACK_GROUP, at += BYTE_GROUP) {
        const unsigned char *lines = at + PANEL_ROWS * 4 + t->chunk * PANEL_LANES * 4;
        vf part[CHUNKS * TILE_N];
#pragma GCC unroll 48
        for (int i = 0; i < R * N; i++)
            part[i] = vset(0);
        for (uint32_t c = 0; c < PACK_GROUP; c += ACTS_INT8_GROUP, g++) {
            __m512i dots[CHUNKS * TILE_N];
#pragma GCC unroll 12
            for (int j = 0; j < N; j++) {
                __m512i bias = _mm512_set1_epi32(-128 * t->sums[j][g]);
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
                    ask(t->ahead, lines + r * 64);
                }
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    __m512i x = spread(t, j, d);
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
                        vfma(vifloat(dots[r * N + j]), vset(t->scale[j][g]), part[r * N + j]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf row =
                vload((const float *)(const void *)at + (t->chunk + (uint32_t)r) * PANEL_LANES);
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

ALWAYS void fp8_bf16(const struct tile *t, const int R, const int N, vf *sum) {
    const unsigned char *at = t->panel + t->k0 / PACK_GROUP * BYTE_GROUP;
    for (uint32_t k = t->k0, d = 0; k < t->k1; k += PACK_GROUP, at += BYTE_GROUP) {
        const unsigned char *lines = at + PANEL_ROWS * 4 + t->chunk * PANEL_LANES * 4;
        vf part[CHUNKS * TILE_N];
#pragma GCC unroll 48
        for (int i = 0; i < R * N; i++)
            part[i] = vset(0);
        for (uint32_t i = 0; i < PACK_GROUP / 4; i++, d += 2, lines += PANEL_ROWS * 4) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m512i codes = viload(lines + r * 64);
                ask(t->ahead, lines + r * 64);
                __m512i even = bf16_of_e4m3(codes);
                __m512i odd = bf16_of_e4m3(_mm512_srli_epi16(codes, 8));
#pragma GCC unroll 12
                for (int j = 0; j < N; j++) {
                    DOT_BF16(part[r * N + j], even, spread(t, j, d));
                    DOT_BF16(part[r * N + j], odd, spread(t, j, d + 1));
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf row =
                vload((const float *)(const void *)at + (t->chunk + (uint32_t)r) * PANEL_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < N; j++)
                sum[r * N + j] = vfma(part[r * N + j], row, sum[r * N + j]);
        }
    }
}

/* ------------------------------------------------------------------------------------- tiles */

enum kernel { BF16_BF16, MXFP4_BF16, MXFP4_INT8, INT8_INT8, FP8_BF16 };

ALWAYS void tile_sums(const struct tile *t, const int kernel, const int R, const int N, vf *sum) {
    switch ((enum kernel)kernel) {
    case BF16_BF16: bf16_bf16(t, R, N, sum); break;
    case MXFP4_BF16: mxfp4_bf16(t, R, N, sum); break;
    case MXFP4_INT8: mxfp4_int8(t, R, N, sum); break;
    case INT8_INT8: int8_int8(t, R, N, sum); break;
    case FP8_BF16: fp8_bf16(t, R, N, sum); break;
    }
}

/* INT8 keeps two sums for one row and activation: those that share a scale are apart. */
ALWAYS void panel_tiles(const struct walk *k, const int kernel) {
    const bool twice = kernel == INT8_INT8, plain = kernel == BF16_BF16;
    uint32_t most = twice && TILE_N > 8 ? 8 : TILE_N;
    if (plain && k->a->n <= 8 && most > 4 && k->a->how->acts > 8) /* as in product_f32.c: one stream
                                                                     of memory */
        most = 4;
    for (uint32_t j = 0; j < k->a->n;) {
        uint32_t have = tile_acts(k->a, j, most);
        if (have == 1)
            chunk_tiles(k, j, 1, kernel, 4, 1);
        else if (have == 2)
            chunk_tiles(k, j, have, kernel, twice ? 2 : 4, 2);
#if !defined(WEIR_SMALL_TILES)
        else if (have <= 4)
            chunk_tiles(k, j, have, kernel, twice ? 1 : plain ? 4 : 2, 4);
        else if (have <= 8)
            chunk_tiles(k, j, have, kernel, plain ? 2 : 1, 8);
        else if (!twice)
            chunk_tiles(k, j, have, kernel, plain ? 2 : 1, TILE_N);
#else
        (void)plain;
#endif
        j += have;
    }
}

static void product_bf16(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, BF16_BF16);
}
static void product_mxfp4_bf16(const struct weight *w, const struct acts *a, uint32_t c0,
                               uint32_t c1, float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, MXFP4_BF16);
}
static void product_mxfp4_int8(const struct weight *w, const struct acts *a, uint32_t c0,
                               uint32_t c1, float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, MXFP4_INT8);
}
static void product_int8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, INT8_INT8);
}
static void product_fp8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                        float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, FP8_BF16);
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
