/* gemm.c: sums of rows weighted by numbers: the other half of attention (values) and everything in
 * a KDA chunk. Called by mla.c and kda_chunk.c. Invariant that bites: each output lane adds its
 * terms in ascending order whatever the tile is, so that blocking never shows in a result. */
#include "ops/cpu/kernels.h"

#if defined(WEIR_ISA_AVX512)
enum { GEMM_ROWS = 8, COMBINE_X = 6 };
#elif defined(WEIR_ISA_AVX2)
enum { GEMM_ROWS = 4, COMBINE_X = 3 };
#else
enum { GEMM_ROWS = 4, COMBINE_X = 2 };
#endif
enum { GEMM_VECS = 2, COMBINE_VECS = 4 };

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

/* ------------------------------------------------------------------------------------- combine */

ALWAYS vf element(const unsigned char *row, enum dtype t, uint32_t c) {
    return t == DTYPE_BF16 ? vwiden((const uint16_t *)(const void *)row + c)
                           : vload((const float *)(const void *)row + c);
}
ALWAYS vf element_part(const unsigned char *row, enum dtype t, uint32_t c, vm m) {
    return t == DTYPE_BF16 ? vwidenm((const uint16_t *)(const void *)row + c, m)
                           : vloadm((const float *)(const void *)row + c, m);
}

/* V whole vectors of N outputs from column c on. */
ALWAYS void combine_tile(const struct mat *m, uint32_t rows, uint32_t c, const float *const *p,
                         const float *keep, float *const *out, enum dtype t, const int N,
                         const int V) {
    vf sum[COMBINE_X * COMBINE_VECS];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[j * V + v] = keep ? vmul(vload(out[j] + c + v * VL), vset(keep[j])) : vset(0);
    const unsigned char *row = m->data;
    for (uint32_t r = 0; r < rows; r++, row += m->row_bytes) {
        vf w[COMBINE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            w[v] = element(row, t, c + v * VL);
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            vf x = vset(p[j][r]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                sum[j * V + v] = vfma(x, w[v], sum[j * V + v]);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; j++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            vstore(out[j] + c + v * VL, sum[j * V + v]);
}

ALWAYS void combine_part(const struct mat *m, uint32_t rows, uint32_t c, vm part,
                         const float *const *p, const float *keep, float *const *out, enum dtype t,
                         const int N) {
    vf sum[COMBINE_X];
    for (int j = 0; j < N; j++)
        sum[j] = keep ? vmul(vloadm(out[j] + c, part), vset(keep[j])) : vset(0);
    const unsigned char *row = m->data;
    for (uint32_t r = 0; r < rows; r++, row += m->row_bytes) {
        vf w = element_part(row, t, c, part);
        for (int j = 0; j < N; j++)
            sum[j] = vfma(vset(p[j][r]), w, sum[j]);
    }
    for (int j = 0; j < N; j++)
        vstorem(out[j] + c, part, sum[j]);
}

ALWAYS void combine(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                    const float *keep, float *const *out, enum dtype t, const int N) {
    uint32_t c = 0;
    for (; c + COMBINE_VECS * VL <= cols; c += COMBINE_VECS * VL)
        combine_tile(m, rows, c, p, keep, out, t, N, COMBINE_VECS);
    for (; c + VL <= cols; c += VL)
        combine_tile(m, rows, c, p, keep, out, t, N, 1);
    if (c < cols)
        combine_part(m, rows, c, vmask(cols - c), p, keep, out, t, N);
}

ALWAYS void combine_any(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                        const float *keep, float *const *out, uint32_t n, enum dtype t) {
    uint32_t j = 0;
    for (; j + COMBINE_X <= n; j += COMBINE_X)
        combine(m, rows, cols, p + j, keep ? keep + j : NULL, out + j, t, COMBINE_X);
    for (; j < n; j++)
        combine(m, rows, cols, p + j, keep ? keep + j : NULL, out + j, t, 1);
}

static void combine_f32(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                        const float *keep, float *const *out, uint32_t n) {
    combine_any(m, rows, cols, p, keep, out, n, DTYPE_F32);
}
static void combine_bf16(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                         const float *keep, float *const *out, uint32_t n) {
    combine_any(m, rows, cols, p, keep, out, n, DTYPE_BF16);
}

/* No model packs the matrices this is used for; right, not fast. */
static void combine_mxfp4(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                          const float *keep, float *const *out, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t c = 0; c < cols; c++)
            out[j][c] = keep ? out[j][c] * keep[j] : 0;
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = 0; c < cols; c += 32) {
                vf w[32 / VL];
                vdecode_mxfp4(m->data + r * m->row_bytes + c / 2,
                              m->scale[(size_t)r * (m->cols / 32) + c / 32], w);
                for (int v = 0; v < 32 / VL; v++)
                    vstore(out[j] + c + v * VL,
                           vfma(vset(p[j][r]), w[v], vload(out[j] + c + v * VL)));
            }
    }
}

void cpu_combine(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *p,
                 const float *keep, float *const *out, uint32_t n) {
    switch (m->dtype) {
    case DTYPE_F32: combine_f32(m, rows, cols, p, keep, out, n); return;
    case DTYPE_BF16: combine_bf16(m, rows, cols, p, keep, out, n); return;
    case DTYPE_MXFP4: combine_mxfp4(m, rows, cols, p, keep, out, n); return;
    case DTYPE_U8: return;
    }
}
