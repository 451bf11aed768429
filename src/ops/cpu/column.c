/* column.c: the table of one instruction set. Chosen by cpu.c. */
#include "ops/cpu/kernels.h"
#include "ops/pack.h"
#include "ops/sample.h"

static size_t scratch_bytes(const struct op *op, uint32_t max_rows, uint32_t max_position) {
    switch (op->kind) {
    case OP_LINEAR: return cpu_linear_scratch(&op->u.linear, max_rows);
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

/* What loading lays out anew for products; F32 matrices stay as they are stored. */
static enum packing packing_for(const struct weight *w, enum dense_form dense) {
    if (w->dtype == DTYPE_MXFP4)
        return PACK_MXFP4;
    if (w->dtype != DTYPE_BF16)
        return PACK_NONE;
    switch (dense) {
    case DENSE_BF16: return PACK_BF16;
    case DENSE_INT8: return PACK_INT8;
    case DENSE_FP8: return PACK_FP8;
    }
    return PACK_NONE;
}

#if defined(WEIR_ISA_AMX)
#define SET "amx"
#elif defined(WEIR_ISA_DOTS)
#define SET "avx512dots"
#elif defined(WEIR_ISA_AVX512)
#define SET "avx512"
#elif defined(WEIR_ISA_AVX2)
#define SET "avx2"
#else
#define SET "portable"
#endif
#if defined(WEIR_ISA_AMX)
#define ON_BF16 ARITHMETIC_AMX_BF16
#define ON_INT8 ARITHMETIC_INT8 /* groups of 32 columns have scales: too short for tiles */
#elif defined(WEIR_HAS_DOTS)
#define ON_BF16 ARITHMETIC_BF16
#define ON_INT8 ARITHMETIC_INT8
#else
#define ON_BF16 ARITHMETIC_F32
#if defined(WEIR_HAS_INT8)
#define ON_INT8 ARITHMETIC_INT8
#else
#define ON_INT8 ARITHMETIC_F32
#endif
#endif

/* The columns of a set differ in their products alone. */
#define COLUMN(NAME, MODE, LINEAR, UP, DOWN)                                                       \
    {                                                                                              \
        .name = NAME, .activation = MODE, .arithmetic = {ARITHMETIC_F32, ON_BF16, ON_INT8},        \
        .packing = packing_for, .chunked = true, .embed = cpu_embed, .mix_norm = cpu_mix_norm,     \
        .linear = LINEAR, .glu = cpu_glu, .norm = cpu_norm, .kda_decode = cpu_kda_decode,          \
        .kda_prefill = cpu_kda_prefill, .mla_write = cpu_mla_write, .mla_decode = cpu_mla_decode,  \
        .mla_prefill = cpu_mla_prefill, .route = cpu_route, .experts_up = UP,                      \
        .experts_down = DOWN, .sample = ref_sample, .scratch_bytes = scratch_bytes,                \
        .shared_bytes = shared_bytes, .passes = passes                                             \
    }

const struct column cpu_columns[ACTIVATIONS] = {
    [ACTIVATION_F32] =
        COLUMN(SET, ACTIVATION_F32, cpu_linear_f32, cpu_experts_up_f32, cpu_experts_down_f32),
    [ACTIVATION_BF16] = COLUMN(SET "-bf16", ACTIVATION_BF16, cpu_linear_bf16, cpu_experts_up_bf16,
                               cpu_experts_down_bf16),
    [ACTIVATION_INT8] = COLUMN(SET "-int8", ACTIVATION_INT8, cpu_linear_int8, cpu_experts_up_int8,
                               cpu_experts_down_int8),
};
