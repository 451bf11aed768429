/* attention_product.c: C = A B with a few dozen rows and columns and B in the first-level cache:
 * scores and sums of attention, keys and values of expanded attention. Called by mla_decode.c and
 * mla_prefill.c. Invariants that bite: each element adds its terms in ascending order whatever the
 * tile is, so that blocking never shows in a result; and the k terms are summed from zero before
 * they go to C, or a sum over 131,072 positions would be one chain and lose three bits more. */
#include "ops/cpu/kernels.h"

/* 12 x 2 sums, 2 of B and 1 of A fill the registers of 512 bits but for five. */
#if defined(WEIR_SMALL_TILES)
enum { TALL = 2, MIDDLE = 2 };
#elif defined(WEIR_ISA_AVX512)
enum { TALL = 12, MIDDLE = 8 };
#elif defined(WEIR_ISA_AVX2)
enum { TALL = 6, MIDDLE = 4 };
#else
enum { TALL = 4, MIDDLE = 4 };
#endif
enum { WIDE = 2 };

/* R rows x V vectors of C. */
ALWAYS void tile(uint32_t k, struct factor a, const float *b, size_t ldb, float *c, size_t ldc,
                 bool add, const int R, const int V) {
    vf sum[TALL * WIDE];
#pragma GCC unroll 12
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            sum[i * V + v] = vset(0);
    for (uint32_t l = 0; l < k; l++, a.a += a.col, b += ldb) {
        vf bv[WIDE];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            bv[v] = vload(b + v * VL);
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            vf x = vset(a.a[(size_t)i * a.row]);
#pragma GCC unroll 2
            for (int v = 0; v < V; v++)
                sum[i * V + v] = vfma(x, bv[v], sum[i * V + v]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            float *to = c + (size_t)i * ldc + v * VL;
            vf total = sum[i * V + v];
            if (add)
                total += vload(to);
            vstore(to, total);
        }
}

/* All m rows of V vectors of columns: B's panel stays in the first-level cache. */
ALWAYS void panel(uint32_t m, uint32_t k, struct factor a, const float *b, size_t ldb, float *c,
                  size_t ldc, bool add, const int V) {
    uint32_t i = 0;
    for (; i + TALL <= m; i += TALL, a.a += TALL * a.row, c += TALL * ldc)
        tile(k, a, b, ldb, c, ldc, add, TALL, V);
    for (; i + MIDDLE <= m; i += MIDDLE, a.a += MIDDLE * a.row, c += MIDDLE * ldc)
        tile(k, a, b, ldb, c, ldc, add, MIDDLE, V);
    for (; i + 2 <= m; i += 2, a.a += 2 * a.row, c += 2 * ldc)
        tile(k, a, b, ldb, c, ldc, add, 2, V);
    if (i < m)
        tile(k, a, b, ldb, c, ldc, add, 1, V);
}

/* One copy of the tiles each, so that `add` and strides of one are constants in the loops. */
static void set_two(uint32_t m, uint32_t k, struct factor a, const float *b, size_t ldb, float *c,
                    size_t ldc) {
    panel(m, k, a, b, ldb, c, ldc, false, 2);
}
static void add_two(uint32_t m, uint32_t k, struct factor a, const float *b, size_t ldb, float *c,
                    size_t ldc) {
    panel(m, k, a, b, ldb, c, ldc, true, 2);
}
static void any_one(uint32_t m, uint32_t k, struct factor a, const float *b, size_t ldb, float *c,
                    size_t ldc, bool add) {
    panel(m, k, a, b, ldb, c, ldc, add, 1);
}

void cpu_attention_product(uint32_t m, uint32_t n, uint32_t k, struct factor a, const float *b,
                           size_t ldb, float *c, size_t ldc, bool add) {
    uint32_t j = 0;
    for (; j + WIDE * VL <= n; j += WIDE * VL)
        (add ? add_two : set_two)(m, k, a, b + j, ldb, c + j, ldc);
    for (; j < n; j += VL)
        any_one(m, k, a, b + j, ldb, c + j, ldc, add);
}
