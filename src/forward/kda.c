/* kda.c: builds the KDA sublayer.
 * In: normed mixture b->x [rows, H]. Out: b->delta [rows, H]. Called by model.c.
 * Invariant that bites: both the decay gate z and the output gate read the normed mixture, and go
 * through their low-rank pair without an activation in between. Source: docs/model.md, KDA. */
#include "forward/builder.h"

#include <math.h>

static const float *exp_a_log(struct builder *b, int32_t layer) {
    const float *a_log = builder_vector(b, ROLE_A_LOG, layer);
    float *ea = builder_take(b, b->m->kda_heads * sizeof(float));
    for (uint32_t h = 0; ea && h < b->m->kda_heads; h++)
        ea[h] = expf(a_log[h]);
    return ea;
}

static void add_mixer(struct builder *b, int32_t l, enum op_kind kind, const struct op_kda *k,
                      enum seq_class which) {
    struct op *op = builder_op(b, kind, l);
    op->u.kda = *k;
    op->u.kda.which = which;
}

void build_kda(struct builder *b, uint32_t layer) {
    const struct model *m = b->m;
    const struct weights *w = b->w;
    int32_t l = (int32_t)layer;
    uint32_t width = model_kda_width(m);
    builder_begin_sublayer(b);

    struct op_kda k = {
        .out = builder_buffer(b, 1, width),
        .q_taps = builder_vector(b, ROLE_Q_CONV, l),
        .k_taps = builder_vector(b, ROLE_K_CONV, l),
        .v_taps = builder_vector(b, ROLE_V_CONV, l),
        .ea = exp_a_log(b, l),
        .dt = builder_vector(b, ROLE_DT_BIAS, l),
        .o_norm = builder_vector(b, ROLE_O_NORM, l),
        .lower_bound = m->gate_lower_bound,
        .eps = m->eps,
        .heads = m->kda_heads,
        .dim = m->kda_dim,
        .taps = m->conv_taps,
        .pool = b->state,
        .layer = model_kind_index(m, layer),
    };
    struct op *in = builder_op(b, OP_LINEAR, l);
    k.q = builder_product(in, weights_get(w, ROLE_Q, l), b->x, builder_buffer(b, 1, width));
    k.k = builder_product(in, weights_get(w, ROLE_K, l), b->x, builder_buffer(b, 1, width));
    k.v = builder_product(in, weights_get(w, ROLE_V, l), b->x, builder_buffer(b, 1, width));
    k.b = builder_product(in, weights_get(w, ROLE_B, l), b->x, builder_buffer(b, 1, m->kda_heads));
    const struct weight *f_a = weights_get(w, ROLE_F_A, l);
    struct tensor fa = builder_product(in, f_a, b->x, builder_buffer(b, 1, f_a->rows));
    struct tensor ga = {0};
    if (m->full_rank_gate) {
        k.go = builder_product(in, weights_get(w, ROLE_G, l), b->x, builder_buffer(b, 1, width));
    } else {
        const struct weight *g_a = weights_get(w, ROLE_G_A, l);
        ga = builder_product(in, g_a, b->x, builder_buffer(b, 1, g_a->rows));
    }
    struct op *low = builder_op(b, OP_LINEAR, l);
    k.z = builder_product(low, weights_get(w, ROLE_F_B, l), fa, builder_buffer(b, 1, width));
    if (!m->full_rank_gate)
        k.go = builder_product(low, weights_get(w, ROLE_G_B, l), ga, builder_buffer(b, 1, width));

    if (b->column->chunked) {
        add_mixer(b, l, OP_KDA_DECODE, &k, SEQ_DECODE);
        add_mixer(b, l, OP_KDA_PREFILL, &k, SEQ_PREFILL);
    } else {
        add_mixer(b, l, OP_KDA_DECODE, &k, SEQ_ALL);
    }
    struct op *out = builder_op(b, OP_LINEAR, l);
    builder_product(out, weights_get(w, ROLE_O, l), k.out, b->delta);
}
