/* attnres.c: the residual stream between sublayers: attention residuals (K3) or plain additions
 * (Kimi-Linear), each fused with the norm that follows. Called by model.c. Invariant that bites:
 * the bank takes the prefix of a layer's *input*, and the prefix starts anew from the attention
 * output of a border layer. Source: docs/model.md. */
#include "forward/builder.h"

/* The two weights of a mixer enter only as their product. */
static const float *mixer_vector(struct builder *b, enum role norm, enum role proj, int32_t layer) {
    const float *wn = builder_vector(b, norm, layer), *wp = builder_vector(b, proj, layer);
    float *c = builder_take(b, b->m->hidden * sizeof(float));
    for (uint32_t i = 0; c && i < b->m->hidden; i++)
        c[i] = wn[i] * wp[i];
    return c;
}

void build_mix_norm(struct builder *b, int32_t layer, enum role norm, enum role res_norm,
                    enum role res_proj, bool push, bool gather, struct tensor out) {
    struct op *op = builder_op(b, OP_MIX_NORM, layer);
    bool mixes = b->m->res_block > 0 && b->n_bank > 0;
    op->u.mix_norm = (struct op_mix_norm){
        .prefix = b->prefix,
        .out = out,
        .bank = b->bank,
        .n_bank = mixes ? b->n_bank : 0,
        .replace = b->replace,
        .push = push,
        .gather = gather,
        .round_prefix = b->column->round_prefix,
        .c = mixes ? mixer_vector(b, res_norm, res_proj, layer) : NULL,
        .norm = builder_vector(b, norm, layer),
        .eps = b->m->eps,
    };
    if (b->pending)
        op->u.mix_norm.delta = b->delta;
    b->pending = b->replace = false;
    if (push)
        b->n_bank++;
}
