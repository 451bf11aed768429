/* vec.h: one vector of f32 lanes and the few operations the kernels are written in. The files of
 * this folder are compiled once per instruction set (-DWEIR_ISA_AVX512, _AVX2, or neither: the
 * portable form on the compiler's vector extension); only this header knows intrinsics.
 * Invariant that bites: everything here is `static`. An inline function with external linkage
 * would be merged by the linker across instruction sets, and an old processor would run into
 * AVX-512 code.
 *
 * A partial vector is described by a mask (vmask); masked loads fill the other lanes with zero and
 * never touch their memory. */
#ifndef WEIR_OPS_CPU_VEC_H
#define WEIR_OPS_CPU_VEC_H

#include "base/dtype.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

/* Bits of the f32 2^(s-127): e8m0_to_f32 without its branches. 255 would be NaN there; loading
 * refuses it. */
ALWAYS int32_t scale_bits(uint8_t s) {
    return (int32_t)((uint32_t)s << 23 | (uint32_t)(s == 0) << 22);
}

/* The files of matrix products exist for more sets than the others: ISA_NAME is their own, and
 * BASE_NAME the set that everything else is taken from. */
#if defined(WEIR_ISA_AMX)
#define ISA_NAME(name)  cpu_amx_##name
#define BASE_NAME(name) cpu_avx512_##name
#define WEIR_HAS_DOTS   1
#define WEIR_HAS_INT8   1
#elif defined(WEIR_ISA_DOTS)
#define ISA_NAME(name)  cpu_dots_##name
#define BASE_NAME(name) cpu_avx512_##name
#define WEIR_HAS_DOTS   1
#define WEIR_HAS_INT8   1
#elif defined(WEIR_ISA_AVX512)
#define ISA_NAME(name) cpu_avx512_##name
#elif defined(WEIR_ISA_AVX2)
#define ISA_NAME(name) cpu_avx2_##name
#define WEIR_HAS_INT8  1
#else
#define ISA_NAME(name) cpu_portable_##name
#endif
#if !defined(BASE_NAME)
#define BASE_NAME(name) ISA_NAME(name)
#endif

#if defined(WEIR_ISA_AVX512)
#include <immintrin.h>

enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

ALWAYS vm vmask(uint32_t n) {
    return (vm)(n >= 16 ? 0xFFFFu : (1u << n) - 1u);
}
ALWAYS vf vset(float x) {
    return _mm512_set1_ps(x);
}
ALWAYS vf vload(const float *p) {
    return _mm512_loadu_ps(p);
}
ALWAYS vf vloadm(const float *p, vm m) {
    return _mm512_maskz_loadu_ps(m, p);
}
ALWAYS void vstore(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
ALWAYS void vstorem(float *p, vm m, vf v) {
    _mm512_mask_storeu_ps(p, m, v);
}
ALWAYS vf vfma(vf a, vf b, vf c) { /* a*b + c */
    return _mm512_fmadd_ps(a, b, c);
}
/* sum += a * b, in asm: compilers copy the sums of large tiles back and forth, or keep them in
 * memory, which costs half the speed. */
#define VFMA_TO(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
ALWAYS vf vnma(vf a, vf b, vf c) { /* c - a*b */
    return _mm512_fnmadd_ps(a, b, c);
}
/* A NaN in b comes through vmin and vmax. */
ALWAYS vf vmin(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
ALWAYS vf vmax(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
/* v where x >= limit (or NaN), else 0. */
ALWAYS vf vkeep_where(vf v, vf x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, vset(limit), _CMP_NLT_UQ), v);
}
/* Bit l: lane l is above the limit. */
ALWAYS uint32_t vabove(vf x, float limit) {
    return _mm512_cmp_ps_mask(x, vset(limit), _CMP_GT_OQ);
}
ALWAYS vf vround(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^n, n integral and the result a normal number. */
ALWAYS vf vscale(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}
ALWAYS vf vabs(vf x) {
    return _mm512_abs_ps(x);
}
/* 1/x within a unit in the last place for |x| from 2^-100 to 2^117: an estimate of 14 bits and one
 * step of Newton's, half a dozen cycles where a division takes sixteen. */
ALWAYS vf vreciprocal(vf x) {
    vf y = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, vset(1)), y);
}
ALWAYS vf vwiden(const uint16_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
ALWAYS vf vwidenm(const uint16_t *p, vm m) {
    __m256i h = _mm256_maskz_loadu_epi16(m, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* VL codes E4M3, all of them numbers. Through half precision, whose exponent is biased by 8 more.
 */
ALWAYS vf vwiden_e4m3(const uint8_t *p) {
    __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x7F)), 7);
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x80)), 8);
    return _mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)) * vset(256);
}

/* Sums of lanes. Every form folds in one order: l with l+8, l+4, l+2, l+1. A row's sum must not
 * depend on whether it was reduced alone or beside three others. */
ALWAYS __m128 vfold(vf v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
ALWAYS float vsum(vf v) {
    __m128 a = vfold(v);
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
ALWAYS __m128 vsum4(vf a, vf b, vf c, vf d) {
    vf ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    vf cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    vf s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
    const __m512i pick = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, s));
}
ALWAYS float vtop(vf v) {
    return _mm512_reduce_max_ps(v);
}

/* p holds VL groups of four; t[j] becomes element j of every group. */
ALWAYS void vsplit4(const float *p, vf t[4]) {
    vf a = vload(p), b = vload(p + 16), c = vload(p + 32), d = vload(p + 48);
    for (int j = 0; j < 4; j++) {
        const __m512i pick = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 28 + j, 24 + j, 20 + j,
                                              16 + j, 12 + j, 8 + j, 4 + j, j);
        __m512 lo = _mm512_permutex2var_ps(a, pick, b), hi = _mm512_permutex2var_ps(c, pick, d);
        t[j] = _mm512_insertf32x8(lo, _mm512_castps512_ps256(hi), 1);
    }
}

/* Lanes of 32 bits, as packed weights have them. */
ALWAYS vi viload(const void *p) {
    return _mm512_loadu_si512(p);
}
ALWAYS vi vishr(vi v, unsigned n) {
    return _mm512_srli_epi32(v, n);
}
ALWAYS vi visar(vi v, unsigned n) {
    return _mm512_srai_epi32(v, n);
}
ALWAYS vi vishl(vi v, unsigned n) {
    return _mm512_slli_epi32(v, n);
}
ALWAYS vi viand(vi v, uint32_t m) {
    return _mm512_and_si512(v, _mm512_set1_epi32((int)m));
}
ALWAYS vi vixor(vi v, uint32_t m) {
    return _mm512_xor_si512(v, _mm512_set1_epi32((int)m));
}
/* Byte e of each lane as its top byte, zeros below. */
ALWAYS vi vitop(vi v, const int e) {
    const __m128i lane = _mm_set_epi8((char)(12 + e), -1, -1, -1, (char)(8 + e), -1, -1, -1,
                                      (char)(4 + e), -1, -1, -1, (char)e, -1, -1, -1);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(lane));
}
ALWAYS vf vibits(vi v) {
    return _mm512_castsi512_ps(v);
}
ALWAYS vf vifloat(vi v) {
    return _mm512_cvtepi32_ps(v);
}
/* Codes E2M1, eight in a lane: the four low nibbles of its bytes and the four high ones in a form
 * of which ve2m1_at takes values, times 1 / E2M1_UNIT. */
#define E2M1_UNIT 1.0f
ALWAYS void ve2m1_halves(vi v, vi *low, vi *high) {
    *low = v;
    *high = _mm512_srli_epi32(v, 4);
}
ALWAYS vf ve2m1_at(vi half, const int byte) {
    const vf value =
        _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    return _mm512_permutexvar_ps(byte ? _mm512_srli_epi32(half, 8u * (unsigned)byte) : half, value);
}
/* VL neighbouring E8M0 bytes. */
ALWAYS vf ve8m0(const uint8_t *p) {
    vi s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    vi bits = _mm512_slli_epi32(s, 23);
    return vibits(
        _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(s, s), _mm512_set1_epi32(0x00400000)));
}

/* 32 E2M1 codes times one scale. */
ALWAYS void vdecode_mxfp4(const uint8_t *codes, uint8_t scale, vf w[2]) {
    const vf value =
        _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    const __m512i shift =
        _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    vf table = value * _mm512_castsi512_ps(_mm512_set1_epi32(scale_bits(scale)));
    for (int i = 0; i < 2; i++) { /* lanes 0..7 take nibbles of one word, 8..15 of the next */
        int32_t lo, hi;
        memcpy(&lo, codes + 8 * i, 4);
        memcpy(&hi, codes + 8 * i + 4, 4);
        __m512i word = _mm512_mask_set1_epi32(_mm512_set1_epi32(lo), 0xFF00, hi);
        w[i] = _mm512_permutexvar_ps(_mm512_srlv_epi32(word, shift), table);
    }
}

#elif defined(WEIR_ISA_AVX2)
#include <immintrin.h>

enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vm;

ALWAYS vm vmask(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n > 8 ? 8 : n)),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}
ALWAYS vf vset(float x) {
    return _mm256_set1_ps(x);
}
ALWAYS vf vload(const float *p) {
    return _mm256_loadu_ps(p);
}
ALWAYS vf vloadm(const float *p, vm m) {
    return _mm256_maskload_ps(p, m);
}
ALWAYS void vstore(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
ALWAYS void vstorem(float *p, vm m, vf v) {
    _mm256_maskstore_ps(p, m, v);
}
ALWAYS vf vfma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
#if defined(__clang__)
#define VFMA_TO(sum, a, b) ((sum) = vfma(a, b, sum))
#else
#define VFMA_TO(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#endif
ALWAYS vf vnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
ALWAYS vf vmin(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
ALWAYS vf vmax(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
ALWAYS vf vkeep_where(vf v, vf x, float limit) {
    return _mm256_and_ps(_mm256_cmp_ps(x, vset(limit), _CMP_NLT_UQ), v);
}
ALWAYS uint32_t vabove(vf x, float limit) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x, vset(limit), _CMP_GT_OQ));
}
ALWAYS vf vround(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS vf vscale(vf x, vf n) {
    __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), bits));
}
ALWAYS vf vabs(vf x) {
    return _mm256_andnot_ps(vset(-0.0f), x);
}
/* The estimate has 12 bits here: two steps would cost as much as the division. */
ALWAYS vf vreciprocal(vf x) {
    return _mm256_div_ps(vset(1), x);
}
ALWAYS vf vwiden(const uint16_t *p) {
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* The set lanes of a mask are its first ones. */
ALWAYS vf vwidenm(const uint16_t *p, vm m) {
    uint16_t h[8] = {0};
    size_t n = (size_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(m)));
    memcpy(h, p, n * sizeof *h);
    return vwiden(h);
}
/* Subnormal codes as the step above the smallest normal number, which is taken off again. */
ALWAYS vf vwiden_e4m3(const uint8_t *p) {
    __m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(i, _mm256_set1_epi32(0x7F)), 20);
    vf normal = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(120 << 23)));
    vf small = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(121 << 23))) -
               vset(0x1p-6f);
    __m256i is_small =
        _mm256_cmpeq_epi32(_mm256_and_si256(i, _mm256_set1_epi32(0x78)), _mm256_setzero_si256());
    vf sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(i, 7), 31));
    return _mm256_xor_ps(_mm256_blendv_ps(normal, small, _mm256_castsi256_ps(is_small)), sign);
}
ALWAYS __m128 vfold(vf v) {
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
ALWAYS float vsum(vf v) {
    __m128 a = vfold(v);
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
ALWAYS __m128 vsum4(vf a, vf b, vf c, vf d) {
    vf ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    vf cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    vf s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0xB1)); /* a a c c | b b d d */
    return _mm_unpacklo_ps(
        _mm_shuffle_ps(_mm256_castps256_ps128(s), _mm256_castps256_ps128(s), 8),
        _mm_shuffle_ps(_mm256_extractf128_ps(s, 1), _mm256_extractf128_ps(s, 1), 8));
}
ALWAYS float vtop(vf v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
ALWAYS void vsplit4(const float *p, vf t[4]) {
    vf r[4]; /* groups i and i+4 side by side, then two 4x4 transposes at once */
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * i)),
                                    _mm_loadu_ps(p + 16 + 4 * i), 1);
    vf a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    vf c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    t[0] = _mm256_shuffle_ps(a, c, 0x44);
    t[1] = _mm256_shuffle_ps(a, c, 0xEE);
    t[2] = _mm256_shuffle_ps(b, d, 0x44);
    t[3] = _mm256_shuffle_ps(b, d, 0xEE);
}
ALWAYS vi viload(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
ALWAYS vi vishr(vi v, unsigned n) {
    return _mm256_srli_epi32(v, (int)n);
}
ALWAYS vi visar(vi v, unsigned n) {
    return _mm256_srai_epi32(v, (int)n);
}
ALWAYS vi vishl(vi v, unsigned n) {
    return _mm256_slli_epi32(v, (int)n);
}
ALWAYS vi viand(vi v, uint32_t m) {
    return _mm256_and_si256(v, _mm256_set1_epi32((int)m));
}
ALWAYS vi vixor(vi v, uint32_t m) {
    return _mm256_xor_si256(v, _mm256_set1_epi32((int)m));
}
ALWAYS vi vitop(vi v, const int e) {
    const __m128i lane = _mm_set_epi8((char)(12 + e), -1, -1, -1, (char)(8 + e), -1, -1, -1,
                                      (char)(4 + e), -1, -1, -1, (char)e, -1, -1, -1);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(lane));
}
ALWAYS vf vibits(vi v) {
    return _mm256_castsi256_ps(v);
}
ALWAYS vf vifloat(vi v) {
    return _mm256_cvtepi32_ps(v);
}
/* A table of f32 values holds eight; one of bytes all sixteen, doubled, and a conversion from the
 * top byte costs no more than finding the sign would. */
#define E2M1_UNIT 0x1p-25f
ALWAYS void ve2m1_halves(vi v, vi *low, vi *high) {
    const __m256i twice = _mm256_broadcastsi128_si256(
        _mm_set_epi8(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    *low = _mm256_shuffle_epi8(twice, _mm256_and_si256(v, nibble));
    *high = _mm256_shuffle_epi8(twice, _mm256_and_si256(_mm256_srli_epi32(v, 4), nibble));
}
ALWAYS vf ve2m1_at(vi half, const int byte) {
    return vifloat(vitop(half, byte));
}
ALWAYS vf ve8m0(const uint8_t *p) {
    vi s = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    vi zero = _mm256_cmpeq_epi32(s, _mm256_setzero_si256());
    return vibits(_mm256_or_si256(_mm256_slli_epi32(s, 23), viand(zero, 0x00400000)));
}
ALWAYS void vdecode_mxfp4(const uint8_t *codes, uint8_t scale, vf w[4]) {
    const vf value = _mm256_set_ps(6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    const __m256i shift = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000u);
    vf table = value * _mm256_castsi256_ps(_mm256_set1_epi32(scale_bits(scale)));
    for (int i = 0; i < 4; i++) {
        int32_t word;
        memcpy(&word, codes + 4 * i, 4);
        __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
        __m256i minus = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign);
        w[i] = _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(minus));
    }
}

#else
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { VL = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vm; /* how many lanes, from the first */

ALWAYS vm vmask(uint32_t n) {
    return n > 4 ? 4 : n;
}
ALWAYS vf vset(float x) {
    return (vf){x, x, x, x};
}
ALWAYS vf vload(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS vf vloadm(const float *p, vm m) {
    vf v = vset(0);
    for (uint32_t i = 0; i < 4; i++)
        if (i < m)
            v[i] = p[i];
    return v;
}
ALWAYS void vstore(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}
ALWAYS void vstorem(float *p, vm m, vf v) {
    for (uint32_t i = 0; i < 4; i++)
        if (i < m)
            p[i] = v[i];
}
ALWAYS vf vfma(vf a, vf b, vf c) {
    return a * b + c;
}
#define VFMA_TO(sum, a, b) ((sum) = vfma(a, b, sum))
ALWAYS vf vnma(vf a, vf b, vf c) {
    return c - a * b;
}
ALWAYS vf vselect(vi take, vf a, vf b) {
    return (vf)((take & (vi)a) | (~take & (vi)b));
}
ALWAYS vf vmin(vf a, vf b) {
    return vselect(a < b, a, b);
}
ALWAYS vf vmax(vf a, vf b) {
    return vselect(a > b, a, b);
}
ALWAYS vf vkeep_where(vf v, vf x, float limit) {
    return vselect(x < vset(limit), vset(0), v);
}
ALWAYS uint32_t vabove(vf x, float limit) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= (uint32_t)(x[i] > limit) << i;
    return bits;
}
ALWAYS vf vround(vf x) { /* |x| < 2^22 */
    const vf magic = vset(0x1.8p23f);
    return x + magic - magic;
}
ALWAYS vf vscale(vf x, vf n) {
    const vf magic = vset(0x1.8p23f);
    vi i = (vi)(n + magic) - (vi)magic, bias = {127, 127, 127, 127};
    return x * (vf)((i + bias) << 23);
}
ALWAYS vf vabs(vf x) {
    return (vf)((vi)x & 0x7FFFFFFF);
}
ALWAYS vf vreciprocal(vf x) {
    return vset(1) / x;
}
ALWAYS vf vwiden(const uint16_t *p) {
    return (vf){bf16_to_f32(p[0]), bf16_to_f32(p[1]), bf16_to_f32(p[2]), bf16_to_f32(p[3])};
}
ALWAYS vf vwidenm(const uint16_t *p, vm m) {
    vf v = vset(0);
    for (uint32_t i = 0; i < 4; i++)
        if (i < m)
            v[i] = bf16_to_f32(p[i]);
    return v;
}
ALWAYS vf vwiden_e4m3(const uint8_t *p) {
    return (vf){e4m3_to_f32(p[0]), e4m3_to_f32(p[1]), e4m3_to_f32(p[2]), e4m3_to_f32(p[3])};
}
ALWAYS float vsum(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
ALWAYS vf vsum4(vf a, vf b, vf c, vf d) {
    return (vf){vsum(a), vsum(b), vsum(c), vsum(d)};
}
ALWAYS float vtop(vf v) {
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}
ALWAYS void vsplit4(const float *p, vf t[4]) {
    for (int j = 0; j < 4; j++)
        t[j] = (vf){p[j], p[4 + j], p[8 + j], p[12 + j]};
}
ALWAYS vi viload(const void *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS vi vishr(vi v, unsigned n) {
    typedef uint32_t vu __attribute__((vector_size(16)));
    return (vi)((vu)v >> n);
}
ALWAYS vi visar(vi v, unsigned n) {
    return v >> (int)n;
}
ALWAYS vi vishl(vi v, unsigned n) {
    return v << (int)n;
}
ALWAYS vi viand(vi v, uint32_t m) {
    return v & (int32_t)m;
}
ALWAYS vi vixor(vi v, uint32_t m) {
    return v ^ (int32_t)m;
}
ALWAYS vi vitop(vi v, const int e) {
    return viand(vishl(v, 24u - 8u * (unsigned)e), 0xFF000000u);
}
ALWAYS vf vibits(vi v) {
    return (vf)v;
}
ALWAYS vf vifloat(vi v) {
    return __builtin_convertvector(v, vf);
}
#define E2M1_UNIT          1.0f
ALWAYS void ve2m1_halves(vi v, vi *low, vi *high) {
    *low = v;
    *high = vishr(v, 4);
}
ALWAYS vf ve2m1_at(vi half, const int byte) {
    vf w;
    for (int i = 0; i < 4; i++)
        w[i] = e2m1_to_f32((unsigned)half[i] >> (8 * byte) & 15u);
    return w;
}
ALWAYS vf ve8m0(const uint8_t *p) {
    return (vf){e8m0_to_f32(p[0]), e8m0_to_f32(p[1]), e8m0_to_f32(p[2]), e8m0_to_f32(p[3])};
}
ALWAYS void vdecode_mxfp4(const uint8_t *codes, uint8_t scale, vf w[8]) {
    float s = e8m0_to_f32(scale);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) {
            unsigned byte = codes[2 * i + j / 2];
            w[i][j] = e2m1_to_f32(j & 1 ? byte >> 4 : byte) * s;
        }
}
#endif

/* Byte e of each lane as an E4M3 code: its bits where f32 has sign and exponent, whose bias is 120
 * more. A subnormal code is subnormal there too: not within vflush. */
ALWAYS vf ve4m3_at(vi lanes, const int e) {
    return vibits(viand(visar(vitop(lanes, e), 4), 0x87F00000u)) * vset(0x1p120f);
}

/* Subnormal results and operands count as zero from vflush on until vunflush has its answer back:
 * a processor takes a hundred cycles for each. Elsewhere than on x86 they are only slow. */
ALWAYS unsigned vflush(void) {
#if defined(__SSE__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}
ALWAYS void vunflush(unsigned before) {
#if defined(__SSE__)
    _mm_setcsr(before);
#endif
}

/* a * b where a conditional needs the exact type: an operator's result is a bare vector to gcc. */
ALWAYS vf vmul(vf a, vf b) {
    return a * b;
}

/* Four sums to four neighbouring floats. */
ALWAYS void vsum4_store(float *p, vf a, vf b, vf c, vf d, _Bool add) {
#if defined(WEIR_ISA_AVX512) || defined(WEIR_ISA_AVX2)
    __m128 s = vsum4(a, b, c, d);
    _mm_storeu_ps(p, add ? _mm_add_ps(_mm_loadu_ps(p), s) : s);
#else
    vf s = vsum4(a, b, c, d);
    vstore(p, add ? vload(p) + s : s);
#endif
}

ALWAYS uint32_t round_up(uint32_t n, uint32_t to) {
    return (n + to - 1) / to * to;
}

/* Pieces of a member's scratch, each on a cache line of its own. */
ALWAYS void *carve(unsigned char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

#endif
