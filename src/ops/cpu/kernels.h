/* kernels.h: what the files of one instruction set share. Every function here exists once per set
 * under a name of its own (ISA_NAME), so that the sets live side by side in one binary. */
#ifndef WEIR_OPS_CPU_KERNELS_H
#define WEIR_OPS_CPU_KERNELS_H

#include "ops/cpu/variant.h"
#include "ops/cpu/vec.h"
#include "ops/ops.h"

#define cpu_dot                 BASE_NAME(dot)
#define cpu_dot_scratch_bytes   BASE_NAME(dot_scratch_bytes)
#define cpu_attention_product   BASE_NAME(attention_product)
#define cpu_embed               BASE_NAME(embed)
#define cpu_mix_norm            BASE_NAME(mix_norm)
#define cpu_norm                BASE_NAME(norm)
#define cpu_glu                 BASE_NAME(glu)
#define cpu_glu_row             BASE_NAME(glu_row)
#define cpu_route               BASE_NAME(route)
#define cpu_route_scratch       BASE_NAME(route_scratch)
#define cpu_linear_f32          ISA_NAME(linear_f32)
#define cpu_linear_bf16         ISA_NAME(linear_bf16)
#define cpu_linear_int8         ISA_NAME(linear_int8)
#define cpu_linear_scratch      ISA_NAME(linear_scratch)
#define cpu_experts_up_f32      ISA_NAME(experts_up_f32)
#define cpu_experts_up_bf16     ISA_NAME(experts_up_bf16)
#define cpu_experts_up_int8     ISA_NAME(experts_up_int8)
#define cpu_experts_down_f32    ISA_NAME(experts_down_f32)
#define cpu_experts_down_bf16   ISA_NAME(experts_down_bf16)
#define cpu_experts_down_int8   ISA_NAME(experts_down_int8)
#define cpu_experts_scratch     ISA_NAME(experts_scratch)
#define cpu_kda_decode          BASE_NAME(kda_decode)
#define cpu_kda_decode_scratch  BASE_NAME(kda_decode_scratch)
#define cpu_kda_prefill         BASE_NAME(kda_prefill)
#define cpu_kda_prefill_scratch BASE_NAME(kda_prefill_scratch)
#define cpu_mla_write           BASE_NAME(mla_write)
#define cpu_mla_decode          BASE_NAME(mla_decode)
#define cpu_mla_decode_scratch  BASE_NAME(mla_decode_scratch)
#define cpu_mla_decode_shared   BASE_NAME(mla_decode_shared)
#define cpu_mla_decode_passes   BASE_NAME(mla_decode_passes)
#define cpu_mla_prefill         BASE_NAME(mla_prefill)
#define cpu_mla_prefill_scratch BASE_NAME(mla_prefill_scratch)
#define cpu_columns             ISA_NAME(columns)

/* How this operation is to be done, beginning with how it is shared out. */
ALWAYS const struct cpu_variant *variant_of(struct work *w) {
    const struct cpu_variant *v = &cpu_variants[w->variant];
    if (v->fixed)
        w->team = NULL;
    return v;
}

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

/* ----------------------------------------------------------------------------- attention_product.c
 */

/* C = A B, or C += A B with `add`: C [m, n], A [m, k] whose element (i, l) is a[i*row + l*col],
 * B [k, n] row-major; n a multiple of VL. */
struct factor {
    const float *a;
    size_t row, col;
};
void cpu_attention_product(uint32_t m, uint32_t n, uint32_t k, struct factor a, const float *b,
                           size_t ldb, float *c, size_t ldc, bool add);

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
/* One function for each kind of activations. */
void cpu_linear_f32(const struct op_linear *, const struct batch *, struct work);
void cpu_linear_bf16(const struct op_linear *, const struct batch *, struct work);
void cpu_linear_int8(const struct op_linear *, const struct batch *, struct work);
size_t cpu_linear_scratch(const struct op_linear *, uint32_t max_rows);
void cpu_experts_up_f32(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_up_bf16(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_up_int8(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_down_f32(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_down_bf16(const struct op_experts *, const struct batch *, struct work);
void cpu_experts_down_int8(const struct op_experts *, const struct batch *, struct work);
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
/* tasks: pieces of histories beyond one a row. */
size_t cpu_mla_decode_shared(const struct op_mla *, uint32_t max_rows, uint32_t tasks);
uint32_t cpu_mla_decode_passes(const struct op_mla *, const struct batch *);
void cpu_mla_prefill(const struct op_mla *, const struct batch *, struct work);
size_t cpu_mla_prefill_scratch(const struct op_mla *, uint32_t max_rows);

/* By kind of activations. */
extern const struct column cpu_columns[ACTIVATIONS];

#endif
