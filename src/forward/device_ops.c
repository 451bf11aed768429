/* device_ops.c: an operation of the list as launches of kernels. Called by device.c.
 * Invariant that bites: a value has the format that its readers want (p->wide), and in place of
 * another in the same buffer it may have a different one: what a norm reads is f32, what it leaves
 * there BF16. */
#include "forward/device_values.h"

#include "ops/gpu/pack.h"

/* Matrices of a layer's experts; `other`: w3, or NULL. */
static const uint8_t *experts(struct device_program *p, const struct weight *w,
                              const struct weight *other, uint32_t n) {
    uint64_t at = device_find(&p->memory, w[0].data, DEVICE_EXPERTS);
    if (!at && !failed(p, device_copy_experts(&p->memory, w, other, n, p->err)))
        at = device_find(&p->memory, w[0].data, DEVICE_EXPERTS);
    return at_address(at);
}

/* --------------------------------------------------------------------------- the list */

/* How the first operation behind i that reads `data` wants it. */
static bool wanted_wide(const struct device_program *p, uint32_t i, const float *data) {
    for (uint32_t k = i + 1; k < p->n_ops; k++) {
        const struct op *op = &p->ops[k];
        switch (op->kind) {
        case OP_MIX_NORM:
            if (op->u.mix_norm.delta.data == data)
                return true;
            break;
        case OP_LINEAR:
            for (uint32_t q = 0; q < op->u.linear.n_parts; q++) {
                const struct linear_part *part = &op->u.linear.part[q];
                if (part->add && part->y.data == data)
                    return true;
                if (part->x.data == data || (part->w2.data && part->x2.data == data))
                    return false;
            }
            break;
        case OP_NORM:
            if (op->u.norm.x.data == data)
                return true;
            break;
        case OP_MLA_WRITE:
            if (op->u.mla_write.kv.data == data)
                return true;
            break;
        case OP_ROUTE:
            if (op->u.route.logits.data == data)
                return true;
            break;
        case OP_SAMPLE:
            if (op->u.sample.logits.data == data)
                return true;
            break;
        case OP_GLU:
            if (op->u.glu.gate.data == data || op->u.glu.up.data == data)
                return false;
            break;
        case OP_KDA_DECODE:
        case OP_KDA_PREFILL: {
            const struct op_kda *a = &op->u.kda;
            if (a->q.data == data || a->k.data == data || a->v.data == data || a->z.data == data ||
                a->b.data == data || a->go.data == data)
                return false;
            break;
        }
        case OP_MLA_DECODE:
        case OP_MLA_PREFILL:
            if (op->u.mla.q.data == data || op->u.mla.g.data == data)
                return false;
            break;
        case OP_EXPERTS_UP:
            if (op->u.experts.z.data == data)
                return false;
            break;
        case OP_EXPERTS_DOWN:
        case OP_EMBED:
        case OP_COUNT: break;
        }
    }
    return true; /* nobody but whoever looks at it */
}

/* The norm behind an operation on experts that the kernel which sums over them does as well. */
static const struct op_norm *fused_norm(const struct device_program *p, uint32_t i) {
    if (i + 1 >= p->n_ops || p->ops[i].kind != OP_EXPERTS_DOWN || p->ops[i + 1].kind != OP_NORM)
        return NULL;
    const struct op_norm *norm = &p->ops[i + 1].u.norm;
    const float *sum = p->ops[i].u.experts.out.data;
    return norm->x.data == sum && norm->y.data == sum ? norm : NULL;
}

void device_read_list(struct device_program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind == OP_LINEAR)
            for (uint32_t k = 0; k < op->u.linear.n_parts; k++)
                p->wide[i] |= (uint8_t)(wanted_wide(p, i, op->u.linear.part[k].y.data) << k);
        if (op->kind == OP_EXPERTS_DOWN)
            p->wide[i] = !fused_norm(p, i) && wanted_wide(p, i, op->u.experts.out.data);
        if (op->kind == OP_MLA_DECODE)
            p->heads = op->u.mla.heads;
    }
}

/* --------------------------------------------------------------------------- operations */

static void embed(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_embed *a = &op->u.embed;
    const struct gpu_embed r = {matrix(p, &a->w), half(p, a->out, 0),
                                (const int32_t *)of_batch(p, p->batch.ids), a->out.cols,
                                a->out.stride * 2};
    device_launch(p, op, gpu_launch_embed(&r, b->n_rows), &r, true);
}

static void mix_norm(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_mix_norm *a = &op->u.mix_norm;
    const uint32_t rows = a->gather ? b->n_logits : b->n_rows, entries = a->n_bank + a->push;
    if (!rows)
        return;
    struct gpu_mix_norm r = {
        .prefix = half(p, a->prefix, 0),
        .delta = a->delta.data ? full(p, a->delta, 0) : NULL,
        .out = half(p, a->out, 0),
        .c = vector(p, a->c, a->prefix.cols),
        .norm = vector(p, a->norm, a->prefix.cols),
        .gather = a->gather ? (const int32_t *)of_batch(p, p->batch.gather) : NULL,
        .rows = rows,
        .cols = a->prefix.cols,
        .stride = a->prefix.stride * 2,
        .delta_stride = a->delta.stride,
        .out_stride = a->out.stride * 2,
        .n_bank = a->n_bank,
        .replace = a->replace,
        .push = a->push,
        .eps = a->eps,
    };
    if (entries)
        r.bank = half(p, a->bank[0], 0);
    if (entries > 1)
        r.bank_stride = (uint64_t)(half(p, a->bank[1], 0) - r.bank);
    for (uint32_t i = 0; i < entries; i++) /* the kernel counts in equal steps */
        WEIR_ASSERT(half(p, a->bank[i], 0) == r.bank + i * r.bank_stride &&
                    a->bank[i].stride == a->prefix.stride);
    device_launch(p, op, gpu_launch_mix_norm(&r, p->shape), &r, true);
}

static void glu(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_glu *a = &op->u.glu;
    for (uint32_t row = 0; row < b->n_rows; row += GPU_GLU_ROWS) {
        const struct gpu_glu r = {
            .gate = half(p, a->gate, row),
            .up = half(p, a->up, row),
            .y = half(p, a->y, row),
            .cols = a->y.cols,
            .gate_stride = a->gate.stride * 2,
            .up_stride = a->up.stride * 2,
            .y_stride = a->y.stride * 2,
            .situ = a->act.situ,
            .beta = a->act.beta,
            .linear_beta = a->act.linear_beta,
        };
        const uint32_t rows = b->n_rows - row < GPU_GLU_ROWS ? b->n_rows - row : GPU_GLU_ROWS;
        device_launch(p, op, gpu_launch_glu(&r, rows), &r, true);
    }
}

static void norm(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op_norm *a = &p->ops[i].u.norm;
    if (i > 0 && fused_norm(p, i - 1))
        return;
    const struct gpu_norm r = {full(p, a->x, 0),
                               half(p, a->y, 0),
                               vector(p, a->norm, a->x.cols),
                               a->x.cols,
                               a->x.stride,
                               a->y.stride * 2,
                               a->eps};
    device_launch(p, &p->ops[i], gpu_launch_norm(&r, b->n_rows, p->shape), &r, true);
}

/* What both records of KDA have of an operation, under the same names. */
#define KDA_FIELDS(P, A)                                                                           \
    .q = half(P, (A)->q, 0), .k = half(P, (A)->k, 0), .v = half(P, (A)->v, 0),                     \
    .go = half(P, (A)->go, 0), .b = half(P, (A)->b, 0), .z = half(P, (A)->z, 0),                   \
    .out = half(P, (A)->out, 0), .q_taps = taps_of(P, A, (A)->q_taps),                             \
    .k_taps = taps_of(P, A, (A)->k_taps), .v_taps = taps_of(P, A, (A)->v_taps),                    \
    .ea = vector(P, (A)->ea, (A)->heads), .dt = vector(P, (A)->dt, (A)->heads * (A)->dim),         \
    .o_norm = vector(P, (A)->o_norm, (A)->dim),                                                    \
    .state = (A)->pool->data + (size_t)(A)->layer * (A)->pool->layer_floats,                       \
    .slot_floats = (A)->pool->slot_floats, .heads = (A)->heads, .taps = (A)->taps,                 \
    .stride = (A)->q.stride * 2, .b_stride = (A)->b.stride * 2, .z_stride = (A)->z.stride * 2,     \
    .out_stride = (A)->out.stride * 2, .lower_bound = (A)->lower_bound, .eps = (A)->eps

static const float *taps_of(struct device_program *p, const struct op_kda *a, const float *taps) {
    return vector(p, taps, (size_t)a->heads * a->dim * a->taps);
}

static void kda_decode(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_kda *a = &op->u.kda;
    const struct gpu_kda_step r = {KDA_FIELDS(p, a), .seqs = of_batch(p, p->batch.kda)};
    device_launch(p, op, gpu_launch_kda_step(&r, a->dim, b->n_decode, p->shape), &r, true);
}

static void kda_prefill(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_kda *a = &op->u.kda;
    const uint32_t rows = b->n_rows - b->n_decode;
    const struct gpu_kda_prefill r = {
        KDA_FIELDS(p, a),
        .seqs = of_batch(p, p->batch.spans),
        .checkpoints = of_batch(p, p->batch.checkpoints),
        .work = at_address(p->kda_work),
        .n_seqs = b->n_seqs - b->n_decode,
        .dim = a->dim,
    };
    device_launch(p, op, gpu_launch_kda_prefill_chunks(&r, rows, p->shape), &r, true);
    device_launch(p, op, gpu_launch_kda_prefill_states(&r, rows, p->shape), &r, true);
    device_launch(p, op, gpu_launch_kda_prefill_out(&r, rows, p->shape), &r, true);
}

static void kda(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_kda *a = &op->u.kda;
    WEIR_ASSERT(a->k.stride == a->q.stride && a->v.stride == a->q.stride &&
                a->go.stride == a->q.stride);
    if (a->which == SEQ_DECODE && b->n_decode)
        kda_decode(p, op, b);
    if (a->which == SEQ_PREFILL && b->n_seqs > b->n_decode)
        kda_prefill(p, op, b);
}

static void route(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_route *a = &op->u.route;
    const struct gpu_route r = {
        .logits = full(p, a->logits, 0),
        .bias = vector(p, a->bias, a->experts),
        .ids = at_address(place_of(p, a->ids)),
        .weights = at_address(place_of(p, a->weights)),
        .rows = b->n_rows,
        .stride = a->logits.stride,
        .experts = a->experts,
        .top_k = a->top_k,
        .groups = a->groups,
        .top_groups = a->top_groups,
        .softmax = a->softmax,
        .renormalize = a->renormalize,
        .scale = a->scale,
    };
    device_launch(p, op, gpu_launch_route(&r), &r, true);
}

/* Both operations of a layer go by the way of the first, which groups the choices for both. */
static bool many_choices(const struct device_program *p, uint32_t i, uint32_t rows) {
    const struct op_experts *a = &p->ops[i].u.experts;
    while (p->ops[i].kind != OP_EXPERTS_UP)
        i--;
    return gpu_experts_many((uint64_t)rows * a->top_k, a->experts,
                            (enum gpu_way)p->ops[i].variant[row_class_of(rows)]);
}

static struct gpu_experts experts_record(struct device_program *p, const struct op_experts *a,
                                         const struct weight *w, const struct weight *other,
                                         struct tensor x, uint32_t rows) {
    return (struct gpu_experts){
        .w = experts(p, w, other, a->experts),
        .x = half(p, x, 0),
        .x_stride = x.stride * 2,
        .ids = at_address(place_of(p, a->ids)),
        .w_stride = gpu_pack_bytes(w, other != NULL),
        .slots = rows * a->top_k,
        .top_k = a->top_k,
        .rows = w->rows,
        .cols = w->cols,
        .situ = a->act.situ,
        .beta = a->act.beta,
        .linear_beta = a->act.linear_beta,
        .bf16 = w->dtype == DTYPE_BF16,
        .offsets = at_address(p->offsets),
        .order = at_address(p->order),
        .experts = a->experts,
    };
}

static void experts_up(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op *op = &p->ops[i];
    const struct op_experts *a = &op->u.experts;
    const bool many = many_choices(p, i, b->n_rows);
    struct gpu_experts r = experts_record(p, a, a->w1, a->w3, a->z, b->n_rows);
    r.h = half(p, a->h, 0);
    r.out_stride = a->h.stride * 2;
    if (many) {
        const struct gpu_group group = {.ids = r.ids,
                                        .offsets = at_address(p->offsets),
                                        .order = at_address(p->order),
                                        .slots = r.slots,
                                        .experts = a->experts};
        device_launch(p, op, gpu_launch_group(&group), &group, true);
    }
    device_launch(p, op,
                  many ? gpu_launch_experts_up_many(&r, p->shape)
                       : gpu_launch_experts_up(&r, p->shape),
                  &r, true);
}

/* The choices are grouped as they were for experts_up. */
static void experts_down(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op *op = &p->ops[i];
    const struct op_experts *a = &op->u.experts;
    const struct op_norm *norm = fused_norm(p, i);
    const bool many = many_choices(p, i, b->n_rows);
    struct gpu_experts r = experts_record(p, a, a->w2, NULL, a->h, b->n_rows);
    r.each = full(p, a->each, 0);
    r.out_stride = a->each.stride;
    device_launch(p, op,
                  many ? gpu_launch_experts_down_many(&r, p->shape)
                       : gpu_launch_experts_down(&r, p->shape),
                  &r, true);
    struct gpu_combine sum = {
        .each = full(p, a->each, 0),
        .weights = at_address(place_of(p, a->weights)),
        .norm = norm ? vector(p, norm->norm, a->out.cols) : NULL,
        .top_k = a->top_k,
        .cols = a->out.cols,
        .each_stride = a->each.stride,
        .out_stride = p->wide[i] ? a->out.stride : a->out.stride * 2,
        .eps = norm ? norm->eps : 0,
    };
    if (p->wide[i])
        sum.out32 = full(p, a->out, 0);
    else
        sum.out = half(p, a->out, 0);
    device_launch(p, op, gpu_launch_combine(&sum, b->n_rows, p->shape), &sum, true);
}

/* Where no kernel takes the vocabulary, logits are brought to this machine. */
static void sample(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_sample *a = &op->u.sample;
    struct gpu_sample r = {
        .logits = full(p, a->logits, 0),
        .draws = of_batch(p, p->batch.draws),
        .drawn = at_address(p->drawn),
        .vocab = a->logits.cols,
        .stride = a->logits.stride,
    };
    if (p->vocab && b->n_logits)
        device_launch(p, op, gpu_launch_sample(&r, b->n_logits, p->shape), &r, true);
}

void device_enqueue(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op *op = &p->ops[i];
    if (op->most_rows && b->n_rows > op->most_rows)
        return;
    switch (op->kind) {
    case OP_EMBED: embed(p, op, b); break;
    case OP_MIX_NORM: mix_norm(p, op, b); break;
    case OP_LINEAR: device_linear(p, i, b); break;
    case OP_GLU: glu(p, op, b); break;
    case OP_NORM: norm(p, i, b); break;
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL: kda(p, op, b); break;
    case OP_MLA_WRITE: device_mla_write(p, op, b); break;
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL: device_mla(p, op, b); break;
    case OP_ROUTE: route(p, op, b); break;
    case OP_EXPERTS_UP: experts_up(p, i, b); break;
    case OP_EXPERTS_DOWN: experts_down(p, i, b); break;
    case OP_SAMPLE: sample(p, op, b); break;
    case OP_COUNT: break;
    }
}
