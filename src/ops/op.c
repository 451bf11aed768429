/* op.c: names and signatures of operations, and the call from a record to its column's function. */
#include "base/error.h"
#include "ops/ops.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *op_name(enum op_kind kind) {
    switch (kind) {
    case OP_EMBED: return "embed";
    case OP_MIX_NORM: return "mix_norm";
    case OP_LINEAR: return "linear";
    case OP_GLU: return "glu";
    case OP_NORM: return "norm";
    case OP_KDA_DECODE: return "kda_decode";
    case OP_KDA_PREFILL: return "kda_prefill";
    case OP_MLA_WRITE: return "mla_write";
    case OP_MLA_DECODE: return "mla_decode";
    case OP_MLA_PREFILL: return "mla_prefill";
    case OP_ROUTE: return "route";
    case OP_EXPERTS_UP: return "experts_up";
    case OP_EXPERTS_DOWN: return "experts_down";
    case OP_SAMPLE: return "sample";
    case OP_COUNT: break;
    }
    return "?";
}

enum op_kind op_named(const char *name) {
    enum op_kind k = 0;
    while (k < OP_COUNT && strcmp(op_name(k), name) != 0)
        k++;
    return k;
}

/* ------------------------------------------------------------------------------------ variants */

static uint32_t rows_of_class(enum seq_class which, const struct batch *b) {
    switch (which) {
    case SEQ_ALL: return b->n_rows;
    case SEQ_DECODE: return b->n_decode;
    case SEQ_PREFILL: return b->n_rows - b->n_decode;
    }
    return 0;
}

uint32_t op_rows(const struct op *op, const struct batch *b) {
    if (op->most_rows && b->n_rows > op->most_rows)
        return 0;
    switch (op->kind) {
    case OP_LINEAR: return op->u.linear.logit_rows ? b->n_logits : b->n_rows;
    case OP_MIX_NORM: return op->u.mix_norm.gather ? b->n_logits : b->n_rows;
    case OP_SAMPLE: return b->n_logits;
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL: return rows_of_class(op->u.kda.which, b);
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL: return rows_of_class(op->u.mla.which, b);
    case OP_EMBED:
    case OP_GLU:
    case OP_NORM:
    case OP_MLA_WRITE:
    case OP_ROUTE:
    case OP_EXPERTS_UP:
    case OP_EXPERTS_DOWN:
    case OP_COUNT: break;
    }
    return b->n_rows;
}

enum row_class row_class_of(uint32_t rows) {
    static const uint32_t most[ROW_CLASSES - 1] = {1, 2, 4, 8, 16, 64};
    enum row_class c = 0;
    while (c < ROWS_MORE && rows > most[c])
        c++;
    return c;
}

const char *row_class_name(enum row_class c) {
    static const char *const name[ROW_CLASSES] = {"1", "2", "3-4", "5-8", "9-16", "17-64", "65-"};
    return name[c];
}

enum row_class row_class_named(const char *name) {
    enum row_class c = 0;
    while (c < ROW_CLASSES && strcmp(row_class_name(c), name) != 0)
        c++;
    return c;
}

uint8_t column_variant(const struct column *c, const struct op *op, enum row_class rows,
                       const char *name) {
    struct variant v[OP_VARIANTS];
    uint32_t n = column_variants(c, op, rows, v);
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return v[i].number;
    return 0;
}

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    size_t wrote = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += wrote;
    t->left -= wrote;
}

static const char *format_name(const struct weight *w) {
    switch (w->packing) {
    case PACK_BF16: return "bf16";
    case PACK_INT8: return "int8";
    case PACK_FP8: return "fp8";
    case PACK_MXFP4: return "mxfp4";
    case PACK_NONE: break;
    }
    switch (w->dtype) {
    case DTYPE_F32: return "f32 as stored";
    case DTYPE_BF16: return "bf16 as stored";
    case DTYPE_MXFP4: return "mxfp4 as stored";
    case DTYPE_U8:
    case DTYPE_FP8: break;
    }
    return "?";
}

static const char *pool_format(const struct kv_pool *p) {
    return p->dtype == DTYPE_FP8 ? "fp8" : p->dtype == DTYPE_BF16 ? "bf16" : "f32";
}

void op_signature(const struct op *op, char out[OP_SIGNATURE]) {
    struct text t = {out, OP_SIGNATURE};
    out[0] = 0;
    switch (op->kind) {
    case OP_LINEAR:
        for (uint32_t i = 0; i < op->u.linear.n_parts; i++) {
            const struct linear_part *p = &op->u.linear.part[i];
            add(&t, "%s%ux%u %s", i ? ", " : "", p->w.rows, p->w.cols, format_name(&p->w));
            if (p->w2.data)
                add(&t, " + %ux%u %s", p->w2.rows, p->w2.cols, format_name(&p->w2));
        }
        return;
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL:
        add(&t, "%u heads of %u, %u taps", op->u.kda.heads, op->u.kda.dim, op->u.kda.taps);
        return;
    case OP_MLA_WRITE: {
        const struct op_mla_write *a = &op->u.mla_write;
        add(&t, "latent %u of %u %s", a->kv_lora, a->pool->width, pool_format(a->pool));
        return;
    }
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL: {
        const struct op_mla *a = &op->u.mla;
        add(&t, "%u heads of %u+%u and %u, latent %u %s", a->heads, a->nope_dim, a->rope_dim,
            a->v_dim, a->kv_lora, pool_format(a->pool));
        return;
    }
    case OP_EXPERTS_UP:
    case OP_EXPERTS_DOWN: {
        const struct op_experts *a = &op->u.experts;
        const struct weight *w = op->kind == OP_EXPERTS_UP ? a->w1 : a->w2;
        add(&t, "%u of %u, %ux%u %s", a->top_k, a->experts, w->rows, w->cols, format_name(w));
        return;
    }
    case OP_EMBED:
    case OP_MIX_NORM:
    case OP_GLU:
    case OP_NORM:
    case OP_ROUTE:
    case OP_SAMPLE:
    case OP_COUNT: return; /* no column has variants of these */
    }
}

void column_run(const struct column *c, const struct op *op, const struct batch *b,
                const int32_t *ids, struct work w) {
    if (op->most_rows && b->n_rows > op->most_rows)
        return;
    uint32_t rows = op_rows(op, b);
    w.variant = rows ? op->variant[row_class_of(rows)] : 0;
    switch (op->kind) {
    case OP_EMBED: c->embed(&op->u.embed, b, ids, w); return;
    case OP_MIX_NORM: c->mix_norm(&op->u.mix_norm, b, w); return;
    case OP_LINEAR: c->linear(&op->u.linear, b, w); return;
    case OP_GLU: c->glu(&op->u.glu, b, w); return;
    case OP_NORM: c->norm(&op->u.norm, b, w); return;
    case OP_KDA_DECODE: c->kda_decode(&op->u.kda, b, w); return;
    case OP_KDA_PREFILL: c->kda_prefill(&op->u.kda, b, w); return;
    case OP_MLA_WRITE: c->mla_write(&op->u.mla_write, b, w); return;
    case OP_MLA_DECODE: c->mla_decode(&op->u.mla, b, w); return;
    case OP_MLA_PREFILL: c->mla_prefill(&op->u.mla, b, w); return;
    case OP_ROUTE: c->route(&op->u.route, b, w); return;
    case OP_EXPERTS_UP: c->experts_up(&op->u.experts, b, w); return;
    case OP_EXPERTS_DOWN: c->experts_down(&op->u.experts, b, w); return;
    case OP_SAMPLE: c->sample(&op->u.sample, b, w); return;
    case OP_COUNT: break;
    }
    WEIR_ASSERT(!"unknown operation");
}
