/* column.c: the table of one instruction set. Chosen by cpu.c. */
#include "base/error.h"
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
    if (op->kind != OP_MLA_DECODE)
        return 0;
    uint32_t tasks = cpu_variants[CPU_DEFAULT].tasks;
    for (enum row_class c = 0; c < ROW_CLASSES; c++)
        if (cpu_variants[op->variant[c]].tasks > tasks)
            tasks = cpu_variants[op->variant[c]].tasks;
    return cpu_mla_decode_shared(&op->u.mla, max_rows, tasks * threads);
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

/* ------------------------------------------------------------------------------------ variants */

#if defined(WEIR_SMALL_TILES)
enum { MOST_ACTS = 2 };
#elif defined(WEIR_HAS_DOTS)
enum { MOST_ACTS = 12 };
#elif defined(WEIR_ISA_AVX512) || defined(WEIR_ISA_AVX2)
enum { MOST_ACTS = 8 };
#else
enum { MOST_ACTS = 2 };
#endif

struct list {
    struct variant *to;
    uint32_t n;
};

static void offer(struct list *l, uint8_t number) {
    WEIR_ASSERT(l->n < OP_VARIANTS);
    l->to[l->n++] =
        (struct variant){cpu_variants[number].name, number,
                         number != CPU_DOTS && number != CPU_CHUNKS && number != CPU_TOKENS};
}

/* Products of stored matrices have no tiles to choose. */
static bool is_packed(const struct op *op) {
    if (op->kind != OP_LINEAR)
        return op->u.experts.w1[0].packing != PACK_NONE;
    bool any = false;
    for (uint32_t i = 0; i < op->u.linear.n_parts; i++)
        any |= op->u.linear.part[i].w.packing != PACK_NONE;
    return any;
}

/* Where many activations meet each byte how far ahead it is asked for hardly counts; experts have
 * few of the batch's rows each. Smaller tiles of activations are of use where there are more. */
static void product_variants(const struct op *op, enum row_class rows, struct list *l) {
    bool experts = op->kind != OP_LINEAR;
    offer(l, CPU_FIXED);
    offer(l, CPU_SINGLE);
    if (!is_packed(op))
        return;
    if (rows <= ROWS_8 || (experts && rows <= ROWS_16)) {
        offer(l, CPU_AHEAD_0);
        offer(l, CPU_AHEAD_2K);
        offer(l, CPU_AHEAD_16K);
    }
    if (rows <= ROWS_2 || VL >= 16)
        offer(l, CPU_CHUNK_1);
    if (MOST_ACTS > 2 && rows == ROWS_4)
        offer(l, CPU_ACTS_2);
    if (MOST_ACTS > 4 && rows >= ROWS_8)
        offer(l, CPU_ACTS_4);
    /* Of BF16 the default takes four of up to eight (product_f32.c). */
    if ((MOST_ACTS > 8 && rows >= ROWS_16) || (MOST_ACTS > 4 && VL >= 16 && rows == ROWS_8))
        offer(l, CPU_ACTS_8);
#if defined(WEIR_ISA_AMX)
    if (rows >= ROWS_4)
        offer(l, CPU_DOTS);
#endif
}

static uint32_t variants(const struct op *op, enum row_class rows,
                         struct variant out[OP_VARIANTS]) {
    struct list l = {out, 0};
    switch (op->kind) {
    case OP_LINEAR:
    case OP_EXPERTS_UP:
    case OP_EXPERTS_DOWN: product_variants(op, rows, &l); break;
    case OP_KDA_DECODE: offer(&l, CPU_FIXED); break;
    case OP_KDA_PREFILL:
        offer(&l, CPU_FIXED);
        /* Not beyond: whole chunks of a prompt keep their bits however it is cut. */
        if (rows <= ROWS_8)
            offer(&l, CPU_CHUNKS);
        if (rows == ROWS_8 || rows == ROWS_16)
            offer(&l, CPU_TOKENS);
        break;
    case OP_MLA_DECODE:
        offer(&l, CPU_FIXED);
        offer(&l, CPU_TASKS_1);
        offer(&l, CPU_TASKS_8);
        break;
    case OP_EMBED:
    case OP_MIX_NORM:
    case OP_GLU:
    case OP_NORM:
    case OP_MLA_WRITE:
    case OP_MLA_PREFILL:
    case OP_ROUTE:
    case OP_SAMPLE:
    case OP_COUNT: break;
    }
    return l.n;
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
        .shared_bytes = shared_bytes, .passes = passes, .variants = variants                       \
    }

const struct column cpu_columns[ACTIVATIONS] = {
    [ACTIVATION_F32] =
        COLUMN(SET, ACTIVATION_F32, cpu_linear_f32, cpu_experts_up_f32, cpu_experts_down_f32),
    [ACTIVATION_BF16] = COLUMN(SET "-bf16", ACTIVATION_BF16, cpu_linear_bf16, cpu_experts_up_bf16,
                               cpu_experts_down_bf16),
    [ACTIVATION_INT8] = COLUMN(SET "-int8", ACTIVATION_INT8, cpu_linear_int8, cpu_experts_up_int8,
                               cpu_experts_down_int8),
};
