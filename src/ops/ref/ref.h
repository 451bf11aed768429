/* ref.h: the operations in plain C, one function a record. Other columns may point to one of these
 * where speed does not matter there. */
#ifndef WEIR_OPS_REF_REF_H
#define WEIR_OPS_REF_REF_H

#include "ops/ops.h"

void ref_embed(const struct op_embed *, const struct batch *, const int32_t *ids, struct work);
void ref_mix_norm(const struct op_mix_norm *, const struct batch *, struct work);
void ref_linear(const struct op_linear *, const struct batch *, struct work);
void ref_glu(const struct op_glu *, const struct batch *, struct work);
void ref_norm(const struct op_norm *, const struct batch *, struct work);
void ref_kda_decode(const struct op_kda *, const struct batch *, struct work);
void ref_kda_prefill(const struct op_kda *, const struct batch *, struct work);
void ref_mla_write(const struct op_mla_write *, const struct batch *, struct work);
void ref_mla_decode(const struct op_mla *, const struct batch *, struct work);
void ref_mla_prefill(const struct op_mla *, const struct batch *, struct work);
void ref_route(const struct op_route *, const struct batch *, struct work);
void ref_experts_up(const struct op_experts *, const struct batch *, struct work);
void ref_experts_down(const struct op_experts *, const struct batch *, struct work);
size_t ref_scratch_bytes(const struct op *, uint32_t max_rows, uint32_t max_position);

/* The one order of every dot product of this column: 16 running sums over elements i, i+16, ...,
 * folded by halves at the end. Compilers vectorise it at any width without changing a bit, because
 * no sum is reordered. */
float ref_dot_f32(const float *w, const float *x, uint32_t n);
/* Row `row` of W times x. */
float ref_dot(const struct weight *w, uint32_t row, const float *x);
/* Element i of a history record of `latent` normed values, in a KV pool's format. */
float ref_kv_at(const void *record, enum dtype dtype, uint32_t latent, uint32_t i);
/* Address of the record of position `position` of a sequence. */
void *ref_kv_record(const struct kv_pool *pool, uint32_t latent, uint32_t layer,
                    const int32_t *pages, uint32_t position);

static inline float ref_sigmoid(float x) {
    return 1.0f / (1.0f + __builtin_expf(-x));
}
float ref_glu_one(struct glu a, float gate, float up);

#endif
