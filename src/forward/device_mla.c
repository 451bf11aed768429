/* device_mla.c: the operations of latent attention as launches of kernels: history written; single
 * tokens, and rows of prompts behind short histories, attend over latents (absorbed), the others
 * over keys and values of their history (expanded). Called by device_ops.c; which rows go which way
 * is device_batch.c's. */
#include "forward/device_values.h"

#include "ops/kv.h"

static const uint16_t *keys(struct device_program *p, const struct op_mla *a) {
    uint64_t at = device_find(&p->memory, a->kv_b.data, DEVICE_KEYS);
    if (!at && !failed(p, device_copy_keys(&p->memory, a, p->err)))
        at = device_find(&p->memory, a->kv_b.data, DEVICE_KEYS);
    return at_address(at);
}

void device_mla_write(struct device_program *p, const struct op *op, const struct batch *b) {
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

void device_mla(struct device_program *p, const struct op *op, const struct batch *b) {
    const bool decode = op->u.mla.which == SEQ_DECODE;
    struct device_absorbed a = device_absorbed_begin(b, decode);
    while (device_absorbed_next(&p->batch, b, &a))
        attend(p, op, a.row, a.rows);
    if (!decode)
        mla_expanded(p, op, b);
}
