/* ref.c: the exact column: weights as stored, f32 activations, no intermediate rounding. */
#include "ops/ref/ref.h"

#include "ops/sample.h"

size_t ref_scratch_bytes(const struct op *op, uint32_t max_rows, uint32_t max_position) {
    size_t floats = 0;
    switch (op->kind) {
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL: floats = 5 * (size_t)op->u.kda.dim; break;
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL:
        floats = 2 * (size_t)op->u.mla.pool->width + op->u.mla.kv_lora + max_position;
        break;
    case OP_ROUTE: floats = 2 * (size_t)op->u.route.experts + op->u.route.groups; break;
    case OP_EXPERTS_UP:
    case OP_EXPERTS_DOWN:
        return op->u.experts.source ? op->u.experts.experts * sizeof(uint32_t) : 0;
    case OP_SAMPLE: return sample_scratch_bytes(op->u.sample.logits.cols);
    case OP_EMBED:
    case OP_MIX_NORM:
    case OP_LINEAR:
    case OP_GLU:
    case OP_NORM:
    case OP_MLA_WRITE:
    case OP_COUNT: break;
    }
    return floats * sizeof(float);
}

const struct column column_ref = {
    .name = "exact",
    .embed = ref_embed,
    .mix_norm = ref_mix_norm,
    .linear = ref_linear,
    .glu = ref_glu,
    .norm = ref_norm,
    .kda_decode = ref_kda_decode,
    .kda_prefill = ref_kda_prefill,
    .mla_write = ref_mla_write,
    .mla_decode = ref_mla_decode,
    .mla_prefill = ref_mla_prefill,
    .route = ref_route,
    .experts_up = ref_experts_up,
    .experts_down = ref_experts_down,
    .sample = ref_sample,
    .scratch_bytes = ref_scratch_bytes,
};
