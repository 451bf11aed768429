/* column.c: the table of one instruction set. Chosen by cpu.c. */
#include "ops/cpu/kernels.h"
#include "ops/sample.h"

static size_t scratch_bytes(const struct op *op, uint32_t max_rows, uint32_t max_position) {
    switch (op->kind) {
    case OP_LINEAR: return cpu_linear_scratch(max_rows);
    case OP_KDA_DECODE: return cpu_kda_decode_scratch(&op->u.kda);
    case OP_KDA_PREFILL: return cpu_kda_prefill_scratch(&op->u.kda);
    case OP_MLA_DECODE: return cpu_mla_decode_scratch(&op->u.mla, max_position);
    case OP_MLA_PREFILL: return cpu_mla_prefill_scratch(&op->u.mla, max_rows);
    case OP_ROUTE: return cpu_route_scratch(&op->u.route);
    case OP_EXPERTS_UP:
    case OP_EXPERTS_DOWN: return cpu_experts_scratch(&op->u.experts, max_rows);
    case OP_SAMPLE: return sample_scratch_bytes(op->u.sample.logits.cols);
    case OP_EMBED:
    case OP_MIX_NORM:
    case OP_GLU:
    case OP_NORM:
    case OP_MLA_WRITE:
    case OP_COUNT: break;
    }
    return 0;
}

static size_t shared_bytes(const struct op *op, uint32_t max_rows, uint32_t threads) {
    return op->kind == OP_MLA_DECODE ? cpu_mla_decode_shared(&op->u.mla, max_rows, threads) : 0;
}

static uint32_t passes(const struct op *op, const struct batch *b) {
    return op->kind == OP_MLA_DECODE ? cpu_mla_decode_passes(&op->u.mla, b) : 1;
}

#if defined(WEIR_ISA_AVX512)
#define COLUMN_NAME "avx512"
#elif defined(WEIR_ISA_AVX2)
#define COLUMN_NAME "avx2"
#else
#define COLUMN_NAME "portable"
#endif

const struct column cpu_column = {
    .name = COLUMN_NAME,
    .chunked = true,
    .embed = cpu_embed,
    .mix_norm = cpu_mix_norm,
    .linear = cpu_linear,
    .glu = cpu_glu,
    .norm = cpu_norm,
    .kda_decode = cpu_kda_decode,
    .kda_prefill = cpu_kda_prefill,
    .mla_write = cpu_mla_write,
    .mla_decode = cpu_mla_decode,
    .mla_prefill = cpu_mla_prefill,
    .route = cpu_route,
    .experts_up = cpu_experts_up,
    .experts_down = cpu_experts_down,
    .sample = ref_sample,
    .scratch_bytes = scratch_bytes,
    .shared_bytes = shared_bytes,
    .passes = passes,
};
