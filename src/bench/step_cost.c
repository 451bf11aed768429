/* step_cost.c: see step_cost.h. Called by step.c.
 * Invariant that bites: what several products of one record read together, their input, is counted
 * once; counted for each it would make a step look faster than memory. */
#include "bench/step_cost.h"

static enum dense_form dense_of(const struct weight *w) {
    return w->packing == PACK_INT8 ? DENSE_INT8 : w->packing == PACK_FP8 ? DENSE_FP8 : DENSE_BF16;
}

static struct step_part part_of(const struct kernel_case *c, uint32_t experts,
                                const struct column *column) {
    return (struct step_part){kernel_cost(c, experts), kernel_arithmetic(c, column)};
}

/* A matrix that was not laid out anew meets f32 activations. */
static struct step_part product(const struct weight *w, uint32_t n, const struct column *column) {
    const struct kernel_case c = {.family = KERNEL_LINEAR,
                                  .dtype = w->dtype,
                                  .dense = dense_of(w),
                                  .n = n,
                                  .out = w->rows,
                                  .in = w->cols};
    struct step_part p = part_of(&c, 0, column);
    if (w->packing == PACK_NONE)
        p.arithmetic = ARITHMETIC_F32;
    return p;
}

/* Takes back the input, which a product before has read. */
static void same_input(struct kernel_cost *k, uint32_t n, uint32_t cols) {
    double bytes = 4.0 * n * cols;
    if (k->cache_bytes >= bytes)
        k->cache_bytes -= bytes;
    else
        k->read_bytes -= bytes;
}

static uint32_t linear_parts(const struct op_linear *a, uint32_t n, const struct column *column,
                             struct step_part *part) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const struct linear_part *p = &a->part[i];
        part[at] = product(&p->w, n, column);
        for (uint32_t k = 0; k < i; k++)
            if (a->part[k].x.data == p->x.data) {
                same_input(&part[at].cost, n, p->w.cols);
                break;
            }
        at++;
        if (p->w2.data)
            part[at++] = product(&p->w2, n, column);
    }
    return at;
}

/* Sequences of one token and those of several are two operations, or one that takes all. */
static bool serves(enum seq_class which, const struct step_shape *s) {
    return which == SEQ_ALL || (which == SEQ_DECODE) == s->decode;
}

static struct kernel_case kda_case(const struct op_kda *a, const struct op *op,
                                   const struct step_shape *s) {
    enum kernel_family prefill = op->kind == OP_KDA_DECODE ? KERNEL_KDA_TOKENS : KERNEL_KDA_PREFILL;
    return (struct kernel_case){.family = s->decode ? KERNEL_KDA_STEP : prefill,
                                .dtype = DTYPE_F32,
                                .n = s->rows,
                                .heads = a->heads,
                                .dim = a->dim};
}

static struct kernel_case mla_case(const struct op_mla *a, const struct step_shape *s) {
    return (struct kernel_case){.family = s->decode ? KERNEL_MLA_DECODE : KERNEL_MLA_PREFILL,
                                .dtype = a->pool->dtype,
                                .n = s->rows,
                                .heads = a->heads,
                                .dim = a->nope_dim,
                                .latent = a->kv_lora,
                                .extra = a->rope_dim,
                                .history = s->history};
}

static struct kernel_case experts_case(const struct op_experts *a, enum kernel_family family,
                                       const struct step_shape *s) {
    const struct weight *w = family == KERNEL_EXPERTS_UP ? a->w1 : a->w2;
    return (struct kernel_case){.family = family,
                                .dtype = w->dtype,
                                .n = s->rows,
                                .out = w->rows,
                                .in = w->cols,
                                .count = a->experts,
                                .top_k = a->top_k};
}

/* Everything but products; false: nothing to do. */
static bool case_of(const struct op *op, const struct step_shape *s, struct kernel_case *c) {
    switch (op->kind) {
    case OP_EMBED:
        *c = (struct kernel_case){.family = KERNEL_EMBED,
                                  .dtype = op->u.embed.w.dtype,
                                  .n = s->rows,
                                  .out = op->u.embed.w.cols};
        return true;
    case OP_MIX_NORM:
        *c = (struct kernel_case){.family = KERNEL_MIX_NORM,
                                  .n = op->u.mix_norm.gather ? s->logits : s->rows,
                                  .out = op->u.mix_norm.out.cols,
                                  .count = op->u.mix_norm.n_bank};
        return true;
    case OP_GLU:
        *c = (struct kernel_case){.family = KERNEL_GLU, .n = s->rows, .out = op->u.glu.y.cols};
        return true;
    case OP_NORM:
        *c = (struct kernel_case){.family = KERNEL_NORM, .n = s->rows, .out = op->u.norm.y.cols};
        return true;
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL: *c = kda_case(&op->u.kda, op, s); return serves(op->u.kda.which, s);
    case OP_MLA_WRITE:
        *c = (struct kernel_case){.family = KERNEL_MLA_WRITE,
                                  .dtype = op->u.mla_write.pool->dtype,
                                  .n = s->rows,
                                  .dim = op->u.mla_write.kv_lora / 4,
                                  .latent = op->u.mla_write.kv_lora,
                                  .extra = op->u.mla_write.pool->width - op->u.mla_write.kv_lora};
        return true;
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL: *c = mla_case(&op->u.mla, s); return serves(op->u.mla.which, s);
    case OP_ROUTE:
        *c = (struct kernel_case){.family = KERNEL_ROUTE,
                                  .n = s->rows,
                                  .count = op->u.route.experts,
                                  .top_k = op->u.route.top_k};
        return true;
    case OP_EXPERTS_UP: *c = experts_case(&op->u.experts, KERNEL_EXPERTS_UP, s); return true;
    case OP_EXPERTS_DOWN: *c = experts_case(&op->u.experts, KERNEL_EXPERTS_DOWN, s); return true;
    case OP_LINEAR:
    case OP_SAMPLE:
    case OP_COUNT: break;
    }
    return false;
}

bool step_in_table(enum op_kind kind) {
    return kind != OP_SAMPLE;
}

uint32_t step_parts(const struct op *op, const struct step_shape *s, uint32_t distinct,
                    const struct column *column, struct step_part part[STEP_PARTS]) {
    struct kernel_case c;
    if (op->most_rows && s->rows > op->most_rows)
        return 0;
    if (op->kind == OP_LINEAR)
        return linear_parts(&op->u.linear, op->u.linear.logit_rows ? s->logits : s->rows, column,
                            part);
    if (op->kind == OP_SAMPLE) { /* the greatest of the logits, and the sum of their exponentials */
        double n = (double)s->logits * op->u.sample.logits.cols;
        part[0] = (struct step_part){{.cache_bytes = 4 * n, .flops = 15 * n}, ARITHMETIC_F32};
        return s->logits > 0;
    }
    if (!case_of(op, s, &c))
        return 0;
    part[0] = part_of(&c, distinct, column);
    return 1;
}
