/* op.c: names of operations, and the call from a record to its column's function. */
#include "base/error.h"
#include "ops/ops.h"

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

void column_run(const struct column *c, const struct op *op, const struct batch *b,
                const int32_t *ids, struct work w) {
    if (op->most_rows && b->n_rows > op->most_rows)
        return;
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
