/* gemm.c: C = A B for everything in a KDA chunk and the values of expanded attention. Called by
 * kda_chunk.c and mla_prefill.c. Invariant that bites: each output lane adds its
 * terms in ascending order whatever the tile is, so that blocking never shows in a result. */
#include "ops/cpu/kernels.h"

#if defined(WEIR_ISA_AVX512)
enum { GEMM_ROWS = 8 };
#elif defined(WEIR_ISA_AVX2)
enum { GEMM_ROWS = 4 };
#else
enum { GEMM_ROWS = 4 };
#endif
enum { GEMM_VECS = 2 };

/* R rows x V vectors of C. */
ALWAYS void gemm_tile(uint32_t k, struct gemm_a a, const float *b, size_t ldb, float *c, size_t ldc,
                      int sign, const int R, const int V) {
    vf sum[GEMM_ROWS * GEMM_VECS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            sum[i * V + v] = sign ? vload(c + (size_t)i * ldc + v * VL) : vset(0);
    for (uint32_t l = 0; l < k; l++) {
        vf bv[GEMM_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            bv[v] = vload(b + l * ldb + v * VL);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            vf x = vset(a.a[(size_t)i * a.row + l * a.col]);
#pragma GCC unroll 2
            for (int v = 0; v < V; v++)
                sum[i * V + v] =
                    sign < 0 ? vnma(x, bv[v], sum[i * V + v]) : vfma(x, bv[v], sum[i * V + v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            vstore(c + (size_t)i * ldc + v * VL, sum[i * V + v]);
}

ALWAYS void gemm_columns(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b,
                         size_t ldb, float *c, size_t ldc, int sign, const int R) {
    for (uint32_t i = 0; i + R <= m; i += R, a.a += R * a.row, c += R * ldc) {
        uint32_t j = 0;
        for (; j + 2 * VL <= n; j += 2 * VL)
            gemm_tile(k, a, b + j, ldb, c + j, ldc, sign, R, 2);
        if (j < n)
            gemm_tile(k, a, b + j, ldb, c + j, ldc, sign, R, 1);
    }
}

ALWAYS void gemm_signed(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b,
                        size_t ldb, float *c, size_t ldc, int sign) {
    uint32_t most = m / GEMM_ROWS * GEMM_ROWS;
    gemm_columns(most, n, k, a, b, ldb, c, ldc, sign, GEMM_ROWS);
    a.a += most * a.row;
    gemm_columns(m - most, n, k, a, b, ldb, c + most * ldc, ldc, sign, 1);
}

static void gemm_set(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b,
                     size_t ldb, float *c, size_t ldc) {
    gemm_signed(m, n, k, a, b, ldb, c, ldc, 0);
}
static void gemm_add(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b,
                     size_t ldb, float *c, size_t ldc) {
    gemm_signed(m, n, k, a, b, ldb, c, ldc, 1);
}
static void gemm_subtract(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b,
                          size_t ldb, float *c, size_t ldc) {
    gemm_signed(m, n, k, a, b, ldb, c, ldc, -1);
}

void cpu_gemm(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b, size_t ldb,
              float *c, size_t ldc, int sign) {
    if (sign == 0)
        gemm_set(m, n, k, a, b, ldb, c, ldc);
    else if (sign > 0)
        gemm_add(m, n, k, a, b, ldb, c, ldc);
    else
        gemm_subtract(m, n, k, a, b, ldb, c, ldc);
}
