/* product_bytes.c: packed weights times INT8 activations by AVX2's products of bytes, for
 * processors without dot-product instructions. Called through product_run (acts.c).
 * Invariant that bites: vpmaddubsw adds two products in 16 bits and stops at their ends. MXFP4
 * codes (0 to 24) leave room for four pairs, bytes of an INT8 weight for one, and only as sizes:
 * with the sign at the activation. */
#if defined(WEIR_SMALL_TILES)
enum { TILE_N = 2 };
#else
enum { TILE_N = 4 };
#endif
#include "ops/cpu/product_tile.h"

ALWAYS __m256i spread(const struct tile *t, int j, uint32_t col) {
    int32_t four;
    memcpy(&four, t->x[j] + col, 4);
    return _mm256_set1_epi32(four);
}

/* Sums of neighbouring pairs of 16 bits. */
ALWAYS __m256i pairs(__m256i v) {
    return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

/* Between vectors: activations are read again for each. Kept for all of them they would take the
 * registers of the sums. */
ALWAYS void forget(void) {
    __asm__ volatile("" ::: "memory");
}

/* Twice the E2M1 values, plus 12: unsigned. The twelves are taken off through the sum of the
 * activations, the factor two through the scale. */
ALWAYS void mxfp4_sums(const struct tile *t, const int R, const int N, vf *sum) {
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_set_epi8(0, 4, 6, 8, 9, 10, 11, 12, 24, 20, 18, 16, 15, 14, 13, 12));
    const __m256i low = _mm256_set1_epi8(15);
    const unsigned char *at = t->panel + t->k0 / 32 * MXFP4_GROUP;
    for (uint32_t k = 0, g = 0; k < t->k1 - t->k0; k += 32, g++, at += MXFP4_GROUP) {
        size_t ahead = group_ahead(t, at, MXFP4_GROUP);
#pragma GCC unroll 8
        for (int rv = 0; rv < R * VECTORS; rv++) {
            const unsigned char *lanes = at + PANEL_ROWS +
                                         (t->chunk + (uint32_t)(rv / VECTORS)) * PANEL_LANES * 16 +
                                         (uint32_t)(rv % VECTORS) * VL * 4;
            forget();
            __m256i dot[TILE_N];
#pragma GCC unroll 4
            for (int j = 0; j < N; j++)
                dot[j] = _mm256_set1_epi32(-12 * t->sums[j][g]);
#pragma GCC unroll 2
            for (uint32_t half = 0; half < 2; half++) {
                __m256i part[TILE_N];
#pragma GCC unroll 2
                for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                    __m256i codes = viload(lanes + i * 64);
                    if (rv % VECTORS == 0)
                        ask(ahead, lanes + i * 64);
                    __m256i a = _mm256_shuffle_epi8(values, _mm256_and_si256(codes, low));
                    __m256i b = _mm256_shuffle_epi8(
                        values, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
#pragma GCC unroll 4
                    for (int j = 0; j < N; j++) {
                        __m256i p =
                            _mm256_add_epi16(_mm256_maddubs_epi16(a, spread(t, j, k + 8 * i)),
                                             _mm256_maddubs_epi16(b, spread(t, j, k + 8 * i + 4)));
                        part[j] = i == 2 * half ? p : _mm256_add_epi16(part[j], p);
                    }
                }
#pragma GCC unroll 4
                for (int j = 0; j < N; j++)
                    dot[j] = _mm256_add_epi32(dot[j], pairs(part[j]));
            }
            uint32_t lane = t->chunk * PANEL_LANES + (uint32_t)rv * VL;
            vf scale = vmul(ve8m0(at + lane), vset(0.5f));
#pragma GCC unroll 4
            for (int j = 0; j < N; j++)
                sum[rv * N + j] =
                    vfma(vmul(scale, vset(t->scale[j][g])), vifloat(dot[j]), sum[rv * N + j]);
        }
    }
}

/* 32 columns of one vector: those that share a scale of the activations. */
ALWAYS void byte_dots(const struct tile *t, const unsigned char *lines, uint32_t k, const int N,
                      __m256i *dot) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < ACTS_INT8_GROUP / 4; i++, lines += PANEL_ROWS * 4) {
        __m256i q = vixor(viload(lines), 0x80808080u), size = _mm256_abs_epi8(q);
        ask(t->ahead, lines);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) {
            __m256i x = _mm256_sign_epi8(spread(t, j, k + 4 * i), q);
            __m256i p = pairs(_mm256_maddubs_epi16(size, x));
            dot[j] = i == 0 ? p : _mm256_add_epi32(dot[j], p);
        }
    }
}

ALWAYS void int8_sums(const struct tile *t, const int R, const int N, vf *sum) {
    const unsigned char *at = t->panel + t->k0 / PACK_GROUP * BYTE_GROUP;
    for (uint32_t k = 0; k < t->k1 - t->k0; k += PACK_GROUP, at += BYTE_GROUP) {
#pragma GCC unroll 8
        for (int rv = 0; rv < R * VECTORS; rv++) {
            uint32_t lane = t->chunk * PANEL_LANES + (uint32_t)rv * VL;
            vf part[TILE_N];
            forget();
#pragma GCC unroll 4
            for (int j = 0; j < N; j++)
                part[j] = vset(0);
            for (uint32_t c = 0; c < PACK_GROUP; c += ACTS_INT8_GROUP) {
                __m256i dot[TILE_N];
                byte_dots(t, at + PANEL_ROWS * (4 + (size_t)c) + (size_t)lane * 4, k + c, N, dot);
#pragma GCC unroll 4
                for (int j = 0; j < N; j++)
                    part[j] = vfma(vifloat(dot[j]), vset(t->scale[j][(k + c) / ACTS_INT8_GROUP]),
                                   part[j]);
            }
            vf scale = vload((const float *)(const void *)at + lane);
#pragma GCC unroll 4
            for (int j = 0; j < N; j++)
                sum[rv * N + j] = vfma(part[j], scale, sum[rv * N + j]);
        }
    }
}

enum kernel { MXFP4, INT8 };

ALWAYS void tile_sums(const struct tile *t, const int kernel, const int R, const int N, vf *sum) {
    if (kernel == MXFP4)
        mxfp4_sums(t, R, N, sum);
    else
        int8_sums(t, R, N, sum);
}

ALWAYS void panel_tiles(const struct walk *k, const int kernel) {
    for (uint32_t j = 0; j < k->a->n;) {
        uint32_t have = tile_acts(k->a, j, TILE_N);
        if (have == 1)
            chunk_tiles(k, j, 1, kernel, CHUNKS, 1);
        else if (have == 2)
            chunk_tiles(k, j, 2, kernel, 1, 2);
        else
            chunk_tiles(k, j, have, kernel, 1, TILE_N);
        j += have;
    }
}

static void product_mxfp4(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                          float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, MXFP4);
}
static void product_int8(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                         float *const *y, bool add) {
    walk_panels(w, a, c0, c1, y, add, INT8);
}

void cpu_product_bytes(const struct weight *w, const struct acts *a, uint32_t c0, uint32_t c1,
                       float *const *y, bool add) {
    if (w->packing == PACK_MXFP4)
        product_mxfp4(w, a, c0, c1, y, add);
    else
        product_int8(w, a, c0, c1, y, add);
}
