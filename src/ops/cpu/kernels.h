/* kernels.h: what the files of one instruction set share. Every function here exists once per set
 * under a name of its own (ISA_NAME), so that the sets live side by side in one binary. */
#ifndef WEIR_OPS_CPU_KERNELS_H
#define WEIR_OPS_CPU_KERNELS_H

#include "ops/cpu/vec.h"
#include "ops/ops.h"

#define cpu_dot                 ISA_NAME(dot)
#define cpu_dot_scratch_bytes   ISA_NAME(dot_scratch_bytes)
#define cpu_gemm                ISA_NAME(gemm)
#define cpu_product             ISA_NAME(product)
#define cpu_embed               ISA_NAME(embed)
#define cpu_mix_norm            ISA_NAME(mix_norm)
#define cpu_norm                ISA_NAME(norm)
#define cpu_glu                 ISA_NAME(glu)
#define cpu_glu_row             ISA_NAME(glu_row)
#define cpu_route               ISA_NAME(route)
#define cpu_route_scratch       ISA_NAME(route_scratch)
#define cpu_linear              ISA_NAME(linear)
#define cpu_linear_scratch      ISA_NAME(linear_scratch)
#define cpu_experts_up          ISA_NAME(experts_up)
#define cpu_experts_down        ISA_NAME(experts_down)
#define cpu_experts_scratch     ISA_NAME(experts_scratch)
#define cpu_kda_decode          ISA_NAME(kda_decode)
#define cpu_kda_decode_scratch  ISA_NAME(kda_decode_scratch)
#define cpu_kda_prefill         ISA_NAME(kda_prefill)
#define cpu_kda_prefill_scratch ISA_NAME(kda_prefill_scratch)
#define cpu_mla_write           ISA_NAME(mla_write)
#define cpu_mla_decode          ISA_NAME(mla_decode)
#define cpu_mla_decode_scratch  ISA_NAME(mla_decode_scratch)
#define cpu_mla_decode_shared   ISA_NAME(mla_decode_shared)
#define cpu_mla_decode_passes   ISA_NAME(mla_decode_passes)
#define cpu_mla_prefill         ISA_NAME(mla_prefill)
#define cpu_mla_prefill_scratch ISA_NAME(mla_prefill_scratch)
#define cpu_column              ISA_NAME(column)

/* ------------------------------------------------------------------------------------------- dot.c
 */

/* A matrix of dot-product rows: a weight, some rows of a KV page, or f32 scratch. */
struct mat {
    const unsigned char *data;
    const uint8_t *scale; /* MXFP4 */
    enum dtype dtype;
    uint32_t cols;
    size_t row_bytes;
};

ALWAYS struct mat mat_of(const struct weight *w) {
    size_t bytes = w->dtype == DTYPE_F32    ? (size_t)w->cols * 4
                   : w->dtype == DTYPE_BF16 ? (size_t)w->cols * 2
                                            : w->cols / 2;
    return (struct mat){w->data, w->scale, w->dtype, w->cols, bytes};
}
/* The same matrix from row `row` on. */
ALWAYS struct mat mat_from(struct mat m, size_t row) {
    m.data += row * m.row_bytes;
    if (m.scale)
        m.scale += row * (m.cols / 32);
    return m;
}

/* y[j][r] = dot(row r of m, x[j]) for r in [r0, r1) and j in [0, n); with `add` it is added to what
 * y holds. The sum of one (r, j) is formed in the same order whatever r0, r1 and n are. */
void cpu_dot(const struct mat *m, uint32_t r0, uint32_t r1, const float *const *x, float *const *y,
             uint32_t n, bool add, void *scratch);
size_t cpu_dot_scratch_bytes(void);

/* ------------------------------------------------------------------------------------------ gemm.c
 */

/* C (+-)= A B with C [m, n], A [m, k] whose element (i, l) is a[i*a_row + l*a_col], B [k, n]
 * row-major; n a multiple of VL. sign 0: C = A B, 1: C += A B, -1: C -= A B. */
struct gemm_a {
    const float *a;
    size_t row, col;
};
void cpu_gemm(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b, size_t ldb,
              float *c, size_t ldc, int sign);

/* --------------------------------------------------------------------------------------- product.c
 */

/* C = A B, or C += A B with `add`; for A and B of attention, see there. n a multiple of VL. */
void cpu_product(uint32_t m, uint32_t n, uint32_t k, struct gemm_a a, const float *b, size_t ldb,
                 float *c, size_t ldc, bool add);

/* ------------------------------------------------------------------------------------------ rows.c
 */
void cpu_embed(const struct op_embed *, const struct batch *, const int32_t *ids, struct work);
void cpu_mix_norm(const struct op_mix_norm *, const struct batch *, struct work);
void cpu_norm(const struct op_norm *, const struct batch *, struct work);
void cpu_glu(const struct op_glu *, const struct batch *, struct work);
/* y = act(gate) * up over n neighbouring floats; y may be gate. */
void cpu_glu_row(struct glu act, const float *gate, const float *up, float *y, uint32_t n);

/* ----------------------------------------------------------------------------------------- route.c
 */
void cpu_route(const struct op_route *, const struct batch *, struct work);
size_t cpu_route_scratch(const struct op_route *);

/* ---------------------------------------------------------------------------- linear.c, experts.c
 */
void cpu_linear(const struct op_linear *, const struct batch *, struct work);
size_t cpu_linear_scratch(uint32_t max_rows);
void cpu_experts_up(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_down(const struct op_experts *, const struct batch *, struct work);
size_t cpu_experts_scratch(const struct op_experts *, uint32_t max_rows);

/* ------------------------------------------------------------------- kda_step.c, kda_chunk.c;
 * kda.h
 */
void cpu_kda_decode(const struct op_kda *, const struct batch *, struct work);
size_t cpu_kda_decode_scratch(const struct op_kda *);
void cpu_kda_prefill(const struct op_kda *, const struct batch *, struct work);
size_t cpu_kda_prefill_scratch(const struct op_kda *);

/* ----------------------------------------------------- mla_write.c, mla_decode.c, mla_prefill.c
 */
void cpu_mla_write(const struct op_mla_write *, const struct batch *, struct work);
void cpu_mla_decode(const struct op_mla *, const struct batch *, struct work);
size_t cpu_mla_decode_scratch(const struct op_mla *, uint32_t max_position);
size_t cpu_mla_decode_shared(const struct op_mla *, uint32_t max_rows, uint32_t members);
uint32_t cpu_mla_decode_passes(const struct op_mla *, const struct batch *);
void cpu_mla_prefill(const struct op_mla *, const struct batch *, struct work);
size_t cpu_mla_prefill_scratch(const struct op_mla *, uint32_t max_rows);

extern const struct column cpu_column;

#endif
