/* ffn.c: builds the feed-forward sublayer: a dense MLP, or routed experts (in the latent space
 * where the model has one) beside shared ones. In: normed mixture b->x [rows, H]. Out: b->delta
 * [rows, H]. Called by model.c. Invariant that bites: router and shared experts read the full-width
 * input, experts the latent; the latent norm comes after the sum over experts, never per expert.
 * Source: docs/model.md, LatentMoE. */
#include "forward/builder.h"

/* A guess at the next layer's experts is made for as many rows as a decode step of a few sequences
 * has; a prompt reads most experts anyway. */
enum { AHEAD_ROWS = 8 };

static struct glu glu_of(const struct model *m) {
    return (struct glu){
        .situ = m->act == ACT_SITU, .beta = m->situ_beta, .linear_beta = m->situ_linear_beta};
}

/* Adds gate and up products to `in`; the activation itself is a record of its own, after the team
 * has met. */
struct gate_up {
    struct tensor gate, up;
};
static struct gate_up add_gate_up(struct builder *b, struct op *in, int32_t l) {
    const struct weight *gate = weights_get(b->w, ROLE_GATE_UP_GATE, l);
    const struct weight *up = weights_get(b->w, ROLE_GATE_UP_UP, l);
    return (struct gate_up){
        builder_product(in, gate, b->x, builder_buffer(b, 1, gate->rows)),
        builder_product(in, up, b->x, builder_buffer(b, 1, up->rows)),
    };
}

static struct tensor activate(struct builder *b, struct gate_up x, int32_t l) {
    struct op *op = builder_op(b, OP_GLU, l);
    op->u.glu = (struct op_glu){.act = glu_of(b->m), .gate = x.gate, .up = x.up, .y = x.gate};
    return x.gate;
}

static void build_dense(struct builder *b, int32_t l) {
    struct op *in = builder_op(b, OP_LINEAR, l);
    struct tensor h = activate(b, add_gate_up(b, in, l), l);
    struct op *out = builder_op(b, OP_LINEAR, l);
    builder_product(out, weights_get(b->w, ROLE_DOWN, l), h, b->delta);
}

static struct op_experts experts_of(struct builder *b, int32_t l, struct tensor z,
                                    struct tensor out, const struct op_route *route) {
    const struct model *m = b->m;
    return (struct op_experts){
        .z = z,
        .h = builder_buffer(b, m->top_k, m->moe_inter),
        .each = builder_buffer(b, m->top_k, model_expert_width(m)),
        .out = out,
        .w1 = weights_experts(b->w, ROLE_EXPERT_W1, (uint32_t)l),
        .w2 = weights_experts(b->w, ROLE_EXPERT_W2, (uint32_t)l),
        .w3 = weights_experts(b->w, ROLE_EXPERT_W3, (uint32_t)l),
        .ids = route->ids,
        .weights = route->weights,
        .experts = m->experts,
        .top_k = m->top_k,
        .act = glu_of(m),
        .source = weights_source(b->w),
        .layer = (uint32_t)l,
    };
}

static struct op_route route_of(const struct builder *b, int32_t l, struct tensor logits) {
    const struct model *m = b->m;
    return (struct op_route){
        .logits = logits,
        .bias = builder_vector(b, ROLE_ROUTER_BIAS, l),
        .experts = m->experts,
        .top_k = m->top_k,
        .groups = m->groups,
        .top_groups = m->top_groups,
        .softmax = m->router_softmax,
        .renormalize = m->renormalize,
        .scale = m->route_scale,
    };
}

/* Where experts are read when chosen: a guess at what the next layer will choose, its router
 * applied to this layer's input, so that reading may begin while this one computes. */
static void guess_ahead(struct builder *b, int32_t l, struct op_experts *experts) {
    const struct model *m = b->m;
    uint32_t next = (uint32_t)l + 1;
    while (next < m->layers && !model_is_moe(m, next))
        next++;
    if (!experts->source || next == m->layers)
        return;
    const struct weight *router = weights_get(b->w, ROLE_ROUTER, (int32_t)next);
    struct tensor logits = builder_rows(b, AHEAD_ROWS, m->experts);
    struct op *in = builder_op(b, OP_LINEAR, l);
    in->most_rows = AHEAD_ROWS;
    builder_product(in, router, b->x, logits);
    struct op_route route = route_of(b, (int32_t)next, logits);
    route.ids = builder_layer_bytes(b, AHEAD_ROWS * m->top_k * sizeof(int32_t));
    route.weights = builder_layer_bytes(b, AHEAD_ROWS * m->top_k * sizeof(float));
    struct op *choose = builder_op(b, OP_ROUTE, l);
    choose->most_rows = AHEAD_ROWS;
    choose->u.route = route;
    experts->ahead = route.ids;
    experts->ahead_layer = next;
    experts->ahead_rows = AHEAD_ROWS;
}

static void build_moe(struct builder *b, int32_t l) {
    const struct model *m = b->m;
    struct op *in = builder_op(b, OP_LINEAR, l);
    struct op_route route = route_of(b, l,
                                     builder_product(in, weights_get(b->w, ROLE_ROUTER, l), b->x,
                                                     builder_buffer(b, 1, m->experts)));
    route.ids = builder_layer_bytes(b, (size_t)b->limits.rows * m->top_k * sizeof(int32_t));
    route.weights = builder_layer_bytes(b, (size_t)b->limits.rows * m->top_k * sizeof(float));
    struct tensor z = b->x;
    if (m->latent)
        z = builder_product(in, weights_get(b->w, ROLE_LATENT_DOWN, l), b->x,
                            builder_buffer(b, 1, m->latent));
    struct gate_up shared = {0};
    if (m->shared_experts)
        shared = add_gate_up(b, in, l);

    builder_op(b, OP_ROUTE, l)->u.route = route;
    struct tensor shared_h = {0};
    if (m->shared_experts)
        shared_h = activate(b, shared, l);

    struct tensor sum = m->latent ? builder_buffer(b, 1, m->latent) : b->delta;
    struct op_experts experts = experts_of(b, l, z, sum, &route);
    guess_ahead(b, l, &experts);
    builder_op(b, OP_EXPERTS_UP, l)->u.experts = experts;
    builder_op(b, OP_EXPERTS_DOWN, l)->u.experts = experts;

    if (m->latent && m->latent_norm) {
        struct op *norm = builder_op(b, OP_NORM, l);
        norm->u.norm = (struct op_norm){
            .x = sum, .y = sum, .norm = builder_vector(b, ROLE_LATENT_NORM, l), .eps = m->eps};
    }
    if (!m->latent && !m->shared_experts)
        return;
    struct op *out = builder_op(b, OP_LINEAR, l);
    const struct weight *down = weights_get(b->w, ROLE_DOWN, l);
    if (m->latent) {
        builder_product(out, weights_get(b->w, ROLE_LATENT_UP, l), sum, b->delta);
        if (m->shared_experts) {
            out->u.linear.part[0].w2 = *down;
            out->u.linear.part[0].x2 = shared_h;
        }
    } else {
        builder_product(out, down, shared_h, b->delta);
        out->u.linear.part[0].add = true;
    }
}

void build_ffn(struct builder *b, uint32_t layer) {
    builder_begin_sublayer(b);
    if (model_is_moe(b->m, layer))
        build_moe(b, (int32_t)layer);
    else
        build_dense(b, (int32_t)layer);
}
