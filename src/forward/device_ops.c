/* device_ops.c: an operation of the list as launches of kernels. Called by device.c.
 * Invariant that bites: a value has the format that its readers want (p->wide), and in place of
 * another in the same buffer it may have a different one: what a norm reads is f32, what it leaves
 * there BF16. */
#include "forward/device_inside.h"

#include "ops/gpu/pack.h"
#include "ops/kv.h"

/* --------------------------------------------------------------------------- addresses */

static void *at_address(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static uint64_t place_of(const struct device_program *p, const void *host) {
    uintptr_t at = (uintptr_t)host - p->buffers;
    WEIR_ASSERT(at < p->buffers_bytes);
    return p->device_buffers + at;
}

/* Row `row` of a step buffer as BF16 or f32; rows are `stride` f32 apart, so 2 * stride BF16. */
static uint16_t *half(const struct device_program *p, struct tensor t, uint32_t row) {
    return (uint16_t *)at_address(place_of(p, t.data) + (uint64_t)row * t.stride * sizeof(float));
}
static float *full(const struct device_program *p, struct tensor t, uint32_t row) {
    return (float *)at_address(place_of(p, t.data) + (uint64_t)row * t.stride * sizeof(float));
}

static bool failed(struct device_program *p, weir_status st) {
    if (st)
        p->status = st;
    return p->status != WEIR_OK;
}

/* A vector of the model or of the list; NULL stays NULL. */
static const float *vector(struct device_program *p, const float *host, size_t n) {
    if (!host)
        return NULL;
    uint64_t at = device_find(&p->memory, host, DEVICE_PLAIN);
    if (!at && !failed(p, device_copy_plain(&p->memory, host, n * sizeof *host, p->err)))
        at = device_find(&p->memory, host, DEVICE_PLAIN);
    return at_address(at);
}

static const uint16_t *matrix(struct device_program *p, const struct weight *w) {
    enum device_form form = w->dtype == DTYPE_F32 ? DEVICE_BF16 : DEVICE_PLAIN;
    uint64_t at = device_find(&p->memory, w->data, form);
    if (!at && !failed(p, device_copy_matrix(&p->memory, w, p->err)))
        at = device_find(&p->memory, w->data, form);
    return at_address(at);
}

static const uint16_t *keys(struct device_program *p, const struct op_mla *a) {
    uint64_t at = device_find(&p->memory, a->kv_b.data, DEVICE_KEYS);
    if (!at && !failed(p, device_copy_keys(&p->memory, a, p->err)))
        at = device_find(&p->memory, a->kv_b.data, DEVICE_KEYS);
    return at_address(at);
}

/* Matrices of a layer's experts; `other`: w3, or NULL. */
static const uint8_t *experts(struct device_program *p, const struct weight *w,
                              const struct weight *other, uint32_t n) {
    uint64_t at = device_find(&p->memory, w[0].data, DEVICE_EXPERTS);
    if (!at && !failed(p, device_copy_experts(&p->memory, w, other, n, p->err)))
        at = device_find(&p->memory, w[0].data, DEVICE_EXPERTS);
    return at_address(at);
}

static const void *of_batch(const struct device_program *p, size_t offset) {
    return at_address(p->batch.device + offset);
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

static struct gpu_linear_part product(struct device_program *p, const struct linear_part *a,
                                      bool wide) {
    struct gpu_linear_part r = {
        .w = matrix(p, &a->w),
        .x = half(p, a->x, 0),
        .rows = a->w.rows,
        .cols = a->w.cols,
        .x_stride = a->x.stride * 2,
        .add = a->add,
    };
    if (wide)
        r.y = full(p, a->y, 0);
    else
        r.y16 = half(p, a->y, 0);
    r.y_stride = wide ? a->y.stride : a->y.stride * 2;
    if (a->w2.data) {
        r.w2 = matrix(p, &a->w2);
        r.x2 = half(p, a->x2, 0);
        r.cols2 = a->w2.cols;
        r.x2_stride = a->x2.stride * 2;
    }
    return r;
}

static void linear(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op_linear *a = &p->ops[i].u.linear;
    const uint32_t rows = a->logit_rows ? b->n_logits : b->n_rows;
    struct gpu_linear r = {.n_parts = a->n_parts, .x_rows = rows};
    if (!rows)
        return;
    for (uint32_t k = 0; k < a->n_parts; k++)
        r.part[k] = product(p, &a->part[k], p->wide[i] >> k & 1);
    const enum gpu_way way = (enum gpu_way)p->ops[i].variant[row_class_of(rows)];
    device_launch(p, &p->ops[i], gpu_launch_linear_by(&r, p->shape, way), &r, true);
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

static void kda_decode(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_kda *a = &op->u.kda;
    const uint32_t width = a->heads * a->dim;
    const struct gpu_kda_step r = {
        .q = half(p, a->q, 0),
        .k = half(p, a->k, 0),
        .v = half(p, a->v, 0),
        .go = half(p, a->go, 0),
        .b = half(p, a->b, 0),
        .z = half(p, a->z, 0),
        .out = half(p, a->out, 0),
        .q_taps = vector(p, a->q_taps, (size_t)width * a->taps),
        .k_taps = vector(p, a->k_taps, (size_t)width * a->taps),
        .v_taps = vector(p, a->v_taps, (size_t)width * a->taps),
        .ea = vector(p, a->ea, a->heads),
        .dt = vector(p, a->dt, width),
        .o_norm = vector(p, a->o_norm, a->dim),
        .state = a->pool->data + (size_t)a->layer * a->pool->layer_floats,
        .slot_floats = a->pool->slot_floats,
        .seqs = of_batch(p, p->batch.kda),
        .heads = a->heads,
        .taps = a->taps,
        .stride = a->q.stride * 2,
        .b_stride = a->b.stride * 2,
        .z_stride = a->z.stride * 2,
        .out_stride = a->out.stride * 2,
        .lower_bound = a->lower_bound,
        .eps = a->eps,
    };
    device_launch(p, op, gpu_launch_kda_step(&r, a->dim, b->n_decode, p->shape), &r, true);
}

static void kda_prefill(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_kda *a = &op->u.kda;
    const uint32_t width = a->heads * a->dim, rows = b->n_rows - b->n_decode;
    const struct gpu_kda_prefill r = {
        .q = half(p, a->q, 0),
        .k = half(p, a->k, 0),
        .v = half(p, a->v, 0),
        .go = half(p, a->go, 0),
        .b = half(p, a->b, 0),
        .z = half(p, a->z, 0),
        .out = half(p, a->out, 0),
        .q_taps = vector(p, a->q_taps, (size_t)width * a->taps),
        .k_taps = vector(p, a->k_taps, (size_t)width * a->taps),
        .v_taps = vector(p, a->v_taps, (size_t)width * a->taps),
        .ea = vector(p, a->ea, a->heads),
        .dt = vector(p, a->dt, width),
        .o_norm = vector(p, a->o_norm, a->dim),
        .state = a->pool->data + (size_t)a->layer * a->pool->layer_floats,
        .slot_floats = a->pool->slot_floats,
        .seqs = of_batch(p, p->batch.spans),
        .checkpoints = of_batch(p, p->batch.checkpoints),
        .work = at_address(p->kda_work),
        .n_seqs = b->n_seqs - b->n_decode,
        .heads = a->heads,
        .dim = a->dim,
        .taps = a->taps,
        .stride = a->q.stride * 2,
        .b_stride = a->b.stride * 2,
        .z_stride = a->z.stride * 2,
        .out_stride = a->out.stride * 2,
        .lower_bound = a->lower_bound,
        .eps = a->eps,
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

static void mla_write(struct device_program *p, const struct op *op, const struct batch *b) {
    const struct op_mla_write *a = &op->u.mla_write;
    const uint32_t extra = a->pool->width - a->kv_lora;
    const size_t record = kv_record_bytes(a->pool->dtype, a->kv_lora, extra);
    const struct gpu_mla_write r = {
        .kv = full(p, a->kv, 0),
        .norm = vector(p, a->norm, a->kv_lora),
        .pool = a->pool->data + (size_t)a->layer * PAGE_TOKENS * record,
        .places = of_batch(p, p->batch.places),
        .page_bytes = a->pool->page_bytes,
        .record_bytes = (uint32_t)record,
        .fp8 = a->pool->dtype == DTYPE_FP8,
        .kv_stride = a->kv.stride,
        .latent = a->kv_lora,
        .extra = extra,
        .eps = a->eps,
    };
    device_launch(p, op, gpu_launch_mla_write(&r, b->n_rows), &r, true);
}

/* Queries into latent space, attention over the latents, values out of them: all heads of up to
 * DEVICE_ATTENTION_ROWS rows from `row` on. */
static void attend(struct device_program *p, const struct op *op, uint32_t row, uint32_t rows) {
    const struct op_mla *a = &op->u.mla;
    const uint32_t q_step = a->nope_dim + a->rope_dim, head_rows = a->nope_dim + a->v_dim;
    const uint32_t latents = a->heads * a->kv_lora;
    const size_t record = kv_record_bytes(a->pool->dtype, a->kv_lora, a->rope_dim);
    struct gpu_linear in = {.n_parts = 1, .x_rows = rows, .steps = a->heads};
    in.part[0] = (struct gpu_linear_part){
        .w = keys(p, a),
        .x = half(p, a->q, row),
        .y16 = at_address(p->queries),
        .rows = a->kv_lora,
        .cols = a->nope_dim,
        .x_stride = a->q.stride * 2,
        .y_stride = latents,
        .w_step = a->kv_lora * a->nope_dim,
        .x_step = q_step,
        .y_step = a->kv_lora,
    };
    device_launch(p, op, gpu_launch_linear(&in, p->shape), &in, true);
    /* The kernels find their rows through seqs[i].row, counted from the batch's first. */
    const struct gpu_mla_seq *seqs = of_batch(p, p->batch.mla);
    struct gpu_mla_decode r = {
        .qa = (uint16_t *)at_address(p->queries) - (uint64_t)row * latents,
        .q = half(p, a->q, 0),
        .kv = a->pool->data + (size_t)a->layer * PAGE_TOKENS * record,
        .seqs = seqs + row,
        .pages = at_address(p->batch.pages_at),
        .out = (uint16_t *)at_address(p->latents) - (uint64_t)row * latents,
        .page_bytes = a->pool->page_bytes,
        .record_bytes = (uint32_t)record,
        .fp8 = a->pool->dtype == DTYPE_FP8,
        .heads = a->heads,
        .latent = a->kv_lora,
        .extra = a->rope_dim,
        .nope = a->nope_dim,
        .qa_stride = latents,
        .q_stride = a->q.stride * 2,
        .q_step = q_step,
        .shares = gpu_mla_shares(rows, a->heads, p->shape),
        .out_stride = latents,
        .scale = a->scale,
    };
    r.part = (float *)at_address(p->part) - (uint64_t)row * r.shares * latents;
    r.lse = (float *)at_address(p->lse) - (uint64_t)row * r.shares * a->heads;
    const struct gpu_launch merge = gpu_launch_mla_merge(&r, rows, p->shape);
    device_launch(p, op, gpu_launch_mla_split(&r, rows, p->shape), &r, true);
    device_launch(p, op, merge, &r, true);
    struct gpu_linear out = {.n_parts = 1, .x_rows = rows, .steps = a->heads};
    out.part[0] = (struct gpu_linear_part){
        .w = matrix(p, &a->kv_b) + (size_t)a->nope_dim * a->kv_lora,
        .x = at_address(p->latents),
        .y16 = half(p, a->out, row),
        .rows = a->v_dim,
        .cols = a->kv_lora,
        .x_stride = latents,
        .y_stride = a->out.stride * 2,
        .w_step = head_rows * a->kv_lora,
        .x_step = a->kv_lora,
        .y_step = a->v_dim,
        .gate = a->g.data ? half(p, a->g, row) : NULL,
        .gate_stride = a->g.stride * 2,
    };
    device_launch(p, op, gpu_launch_linear(&out, p->shape), &out, true);
}

struct gpu_mla_prefill device_expanded_record(struct device_program *p, const struct op_mla *a) {
    const size_t record = kv_record_bytes(a->pool->dtype, a->kv_lora, a->rope_dim);
    const struct device_expanded *e = &p->expanded;
    return (struct gpu_mla_prefill){
        .history = a->pool->data + (size_t)a->layer * PAGE_TOKENS * record,
        .pages = at_address(p->batch.pages_at),
        .latents = at_address(e->latents),
        .kv = at_address(e->kv),
        .q = half(p, a->q, 0),
        .gate = a->g.data ? half(p, a->g, 0) : NULL,
        .out = half(p, a->out, 0),
        .sum = at_address(e->sum),
        .state = at_address(e->state),
        .page_bytes = a->pool->page_bytes,
        .record_bytes = (uint32_t)record,
        .fp8 = a->pool->dtype == DTYPE_FP8,
        .heads = a->heads,
        .latent = a->kv_lora,
        .extra = a->rope_dim,
        .nope = a->nope_dim,
        .v_dim = a->v_dim,
        .kv_stride = a->heads * (a->nope_dim + a->v_dim),
        .q_stride = a->q.stride * 2,
        .gate_stride = a->g.stride * 2,
        .out_stride = a->out.stride * 2,
        .n_spans = 1,
        .scale = a->scale,
        .span = {{.rows = 1, .end = 1}},
    };
}

/* The pieces of history that `r` has: out of their pages, to keys and values, attended over. */
static void attend_expanded(struct device_program *p, const struct op *op,
                            const struct gpu_mla_prefill *r) {
    const struct op_mla *a = &op->u.mla;
    const struct gpu_mla_span *last = &r->span[r->n_spans - 1];
    struct gpu_linear up = {.n_parts = 1, .x_rows = last->at + last->end - last->from};
    up.part[0] = (struct gpu_linear_part){
        .w = matrix(p, &a->kv_b),
        .x = r->latents,
        .y16 = at_address(p->expanded.kv),
        .rows = a->kv_b.rows,
        .cols = a->kv_lora,
        .x_stride = a->kv_lora + a->rope_dim,
        .y_stride = r->kv_stride,
    };
    device_launch(p, op, gpu_launch_mla_gather(r), r, true);
    device_launch(p, op, gpu_launch_linear(&up, p->shape), &up, true);
    device_launch(p, op, gpu_launch_mla_attend(r, p->shape), r, true);
}

static uint32_t whole_pages(uint32_t positions) {
    return (positions + PAGE_TOKENS - 1) / PAGE_TOKENS * PAGE_TOKENS;
}

/* Sequences whose history is expanded, as many at a time as there is room for; a history longer
 * than the room in pieces. */
static void mla_expanded(struct device_program *p, const struct op *op, const struct batch *b) {
    const uint32_t room = p->expanded.positions;
    struct gpu_mla_prefill r = device_expanded_record(p, &op->u.mla);
    uint32_t used = 0, first_page = 0;
    r.n_spans = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *q = &b->seqs[s];
        const uint32_t n = q->pos0 + q->rows;
        for (uint32_t from = 0; device_expands(&p->batch, b, s) && from < n;) {
            if (r.n_spans == GPU_MLA_SPANS || used == room || (n <= room && used + n > room)) {
                attend_expanded(p, op, &r);
                r.n_spans = used = 0;
            }
            const uint32_t end = n - from < room - used ? n : from + room - used;
            r.span[r.n_spans++] = (struct gpu_mla_span){.row0 = q->row0,
                                                        .rows = q->rows,
                                                        .pos0 = q->pos0,
                                                        .first_page = first_page,
                                                        .from = from,
                                                        .end = end,
                                                        .at = used};
            used += whole_pages(end - from);
            from = end;
        }
        first_page += whole_pages(n) / PAGE_TOKENS;
    }
    if (r.n_spans)
        attend_expanded(p, op, &r);
}

static void mla(struct device_program *p, const struct op *op, const struct batch *b) {
    const bool decode = op->u.mla.which == SEQ_DECODE;
    struct device_absorbed a = device_absorbed_begin(b, decode);
    while (device_absorbed_next(&p->batch, b, &a))
        attend(p, op, a.row, a.rows);
    if (!decode)
        mla_expanded(p, op, b);
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
                                         uint32_t rows) {
    struct gpu_experts r = {
        .w = experts(p, w, other, a->experts),
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
    return r;
}

static void experts_up(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op *op = &p->ops[i];
    const struct op_experts *a = &op->u.experts;
    const bool many = many_choices(p, i, b->n_rows);
    struct gpu_experts r = experts_record(p, a, a->w1, a->w3, b->n_rows);
    r.x = half(p, a->z, 0);
    r.x_stride = a->z.stride * 2;
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
    struct gpu_experts r = experts_record(p, a, a->w2, NULL, b->n_rows);
    r.x = half(p, a->h, 0);
    r.x_stride = a->h.stride * 2;
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
    case OP_LINEAR: linear(p, i, b); break;
    case OP_GLU: glu(p, op, b); break;
    case OP_NORM: norm(p, i, b); break;
    case OP_KDA_DECODE:
    case OP_KDA_PREFILL: kda(p, op, b); break;
    case OP_MLA_WRITE: mla_write(p, op, b); break;
    case OP_MLA_DECODE:
    case OP_MLA_PREFILL: mla(p, op, b); break;
    case OP_ROUTE: route(p, op, b); break;
    case OP_EXPERTS_UP: experts_up(p, i, b); break;
    case OP_EXPERTS_DOWN: experts_down(p, i, b); break;
    case OP_SAMPLE: sample(p, op, b); break;
    case OP_COUNT: break;
    }
}
