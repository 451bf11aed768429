/* mla.c: builds the MLA sublayer.
 * In: normed mixture b->x [rows, H]. Out: b->delta [rows, H]. Called by model.c.
 * Invariant that bites: history is written before it is read in the same step, so that a row sees
 * itself and earlier rows of its own chunk through the pages. Source: docs/model.md, MLA. */
#include "forward/builder.h"

#include <math.h>

static struct tensor queries(struct builder *b, int32_t l, struct op *in) {
    const struct model *m = b->m;
    uint32_t width = m->heads * (m->nope_dim + m->rope_dim);
    struct tensor q = builder_buffer(b, 1, width);
    if (!m->q_lora) {
        builder_product(in, weights_get(b->w, ROLE_Q, l), b->x, q);
        return q;
    }
    builder_product(in, weights_get(b->w, ROLE_Q_A, l), b->x, builder_buffer(b, 1, m->q_lora));
    return q;
}

void build_mla(struct builder *b, uint32_t layer) {
    const struct model *m = b->m;
    int32_t l = (int32_t)layer;
    builder_begin_sublayer(b);

    struct op *in = builder_op(b, OP_LINEAR, l);
    struct tensor q = queries(b, l, in);
    struct tensor low = in->u.linear.part[0].y; /* of q_a, where there is one */
    struct tensor kv = builder_product(in, weights_get(b->w, ROLE_KV_A, l), b->x,
                                       builder_buffer(b, 1, m->kv_lora + m->rope_dim));
    struct tensor g = {0};
    if (m->mla_gate)
        g = builder_product(in, weights_get(b->w, ROLE_G, l), b->x,
                            builder_buffer(b, 1, model_mla_width(m)));

    struct op *write = builder_op(b, OP_MLA_WRITE, l);
    write->u.mla_write = (struct op_mla_write){
        .kv = kv,
        .norm = builder_vector(b, ROLE_KV_A_NORM, l),
        .eps = m->lora_eps,
        .pool = b->kv,
        .layer = model_kind_index(m, layer),
        .kv_lora = m->kv_lora,
    };
    if (m->q_lora) {
        struct op *norm = builder_op(b, OP_NORM, l);
        norm->u.norm = (struct op_norm){
            .x = low, .y = low, .norm = builder_vector(b, ROLE_Q_A_NORM, l), .eps = m->lora_eps};
        struct op *up = builder_op(b, OP_LINEAR, l);
        builder_product(up, weights_get(b->w, ROLE_Q_B, l), low, q);
    }
    struct op_mla a = {
        .q = q,
        .g = g,
        .out = builder_buffer(b, 1, model_mla_width(m)),
        .kv_b = *weights_get(b->w, ROLE_KV_B, l),
        .scale = 1.0f / sqrtf((float)(m->nope_dim + m->rope_dim)),
        .pool = b->kv,
        .layer = model_kind_index(m, layer),
        .heads = m->heads,
        .nope_dim = m->nope_dim,
        .rope_dim = m->rope_dim,
        .v_dim = m->v_dim,
        .kv_lora = m->kv_lora,
    };
    struct op *decode = builder_op(b, OP_MLA_DECODE, l);
    decode->u.mla = a;
    decode->u.mla.which = b->column->chunked ? SEQ_DECODE : SEQ_ALL;
    if (b->column->chunked) {
        struct op *prefill = builder_op(b, OP_MLA_PREFILL, l);
        prefill->u.mla = a;
        prefill->u.mla.which = SEQ_PREFILL;
    }
    struct op *out = builder_op(b, OP_LINEAR, l);
    builder_product(out, weights_get(b->w, ROLE_O, l), a.out, b->delta);
}
