/* device.c: see device.h. Opened by program_to_device, run by program_run. */
#include "forward/device_draw.h"
#include "forward/device_inside.h"

#include "base/log.h"

#include <stdlib.h>

/* --------------------------------------------------------------------------- launches */

static weir_status find_kernel(struct device_program *p, struct gpu_launch l, weir_error *err) {
    if (p->kernel[l.kernel] && l.shared_bytes <= p->kernel_shared[l.kernel])
        return WEIR_OK;
    weir_status st = gpu_kernel_find(p->device, gpu_kernel_info(l.kernel)->name, l.shared_bytes,
                                     &p->kernel[l.kernel], err);
    if (st)
        p->kernel[l.kernel] = NULL;
    p->kernel_shared[l.kernel] = l.shared_bytes;
    return st;
}

void device_launch(struct device_program *p, const struct op *op, struct gpu_launch l,
                   const void *record, bool early) {
    if (p->status)
        return;
    if (l.kernel == GPU_NO_KERNEL) {
        char shape[OP_SIGNATURE];
        op_signature(op, shape);
        p->status = weir_fail(p->err, WEIR_UNSUPPORTED, op_name(op->kind),
                              "no kernel of this device takes this shape: %s", shape);
        return;
    }
    p->status = find_kernel(p, l, p->err);
    if (p->opening || p->status)
        return;
    p->status = gpu_kernel_launch(p->device, p->kernel[l.kernel], &l, record, early, p->err);
    p->counts.launches++;
}

/* The choices of router i: where they lie as a result, and where they are kept. Both have room to
 * the next 16 bytes, as all pieces of memory do. */
struct choices {
    uint64_t at, kept;
    size_t bytes;
};

static struct choices choices_of(const struct device_program *p, uint32_t i,
                                 const struct batch *b) {
    const struct op_route *a = &p->ops[i].u.route;
    return (struct choices){p->device_buffers + ((uintptr_t)a->ids - p->buffers),
                            p->kept + i * p->kept_each,
                            (size_t)b->n_rows * a->top_k * sizeof *a->ids};
}

static void take_kept(struct device_program *p, uint32_t i, const struct batch *b) {
    if (p->status || !p->timing.kept || p->ops[i].kind != OP_ROUTE)
        return;
    const struct choices c = choices_of(p, i, b);
    const struct gpu_copy record = {(const void *)(uintptr_t)c.kept, (void *)(uintptr_t)c.at,
                                    (c.bytes + 15) / 16};
    device_launch(p, &p->ops[i], gpu_launch_copy(&record), &record, false);
}

static weir_status enqueue_all(struct device_program *p, const struct batch *b, weir_error *err) {
    p->status = WEIR_OK;
    p->err = err;
    for (uint32_t i = 0; i < p->n_ops && !p->status; i++) {
        if (!p->timing.left_out || !p->timing.left_out[i])
            device_enqueue(p, i, b);
        take_kept(p, i, b);
    }
    return p->status;
}

/* Room to keep every router's choices, once it is wanted. */
static weir_status take_room_for_choices(struct device_program *p, weir_error *err) {
    size_t most = 0;
    for (uint32_t i = 0; i < p->n_ops && !p->kept; i++)
        if (p->ops[i].kind == OP_ROUTE && p->ops[i].u.route.top_k > most)
            most = p->ops[i].u.route.top_k;
    if (!most)
        return WEIR_OK;
    p->kept_each = (p->limits.rows * most * sizeof(int32_t) + 15) / 16 * 16;
    return device_take(&p->memory, p->n_ops * p->kept_each, &p->kept, err);
}

static weir_status show_choices(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct choices c = choices_of(p, i, b);
    weir_status st = gpu_copy_out(p->device, p->ops[i].u.route.ids, c.at, c.bytes, p->err);
    return st ? st : gpu_copy_on(p->device, c.kept, c.at, c.bytes, p->err);
}

/* The same for somebody who looks between operations. */
static weir_status enqueue_watched(struct device_program *p, const struct batch *b,
                                   weir_error *err) {
    p->err = err;
    p->status = take_room_for_choices(p, err);
    for (uint32_t i = 0; i < p->n_ops && !p->status; i++) {
        p->watch(p->watch_arg, i);
        device_enqueue(p, i, b);
        if (!p->status && p->ops[i].kind == OP_ROUTE)
            p->status = show_choices(p, i, b);
        if (!p->status)
            p->status = gpu_wait(p->device, err);
    }
    p->watch(p->watch_arg, p->n_ops);
    return p->status;
}

/* --------------------------------------------------------------------------- opening */

/* What lies between the kernels of latent attention, for as many rows as a launch takes. */
static weir_status take_attention(struct device_program *p, weir_error *err) {
    uint64_t latents = 0, most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_MLA_DECODE)
            latents = (uint64_t)p->ops[i].u.mla.heads * p->ops[i].u.mla.kv_lora;
    if (!latents)
        return WEIR_OK;
    for (uint32_t rows = 1; rows <= DEVICE_ATTENTION_ROWS; rows++) {
        uint64_t shares = (uint64_t)rows * gpu_mla_shares(rows, p->heads, p->shape);
        most = shares > most ? shares : most;
    }
    weir_status st = device_take(&p->memory, DEVICE_ATTENTION_ROWS * latents * 2, &p->queries, err);
    if (!st)
        st = device_take(&p->memory, DEVICE_ATTENTION_ROWS * latents * 2, &p->latents, err);
    if (!st)
        st = device_take(&p->memory, most * latents * sizeof(float), &p->part, err);
    return st ? st : device_take(&p->memory, most * p->heads * sizeof(float), &p->lse, err);
}

/* What lies between the kernels of expanded attention. A step's own rows always have room. */
static weir_status take_expanded(struct device_program *p, weir_error *err) {
    enum { PAGE = PAGE_TOKENS, MOST = 16384 };
    struct device_expanded *e = &p->expanded;
    const struct op_mla *a = NULL;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_MLA_PREFILL)
            a = &p->ops[i].u.mla;
    if (!a)
        return WEIR_OK;
    const struct gpu_mla_prefill probe = device_expanded_record(p, a);
    if (gpu_launch_mla_attend(&probe, p->shape).kernel == GPU_NO_KERNEL)
        return WEIR_OK;
    p->batch.expands = true;
    e->positions = p->limits.rows < MOST ? (p->limits.rows + PAGE - 1) / PAGE * PAGE : MOST;
    const size_t kv = (size_t)e->positions * a->heads * (a->nope_dim + a->v_dim);
    const size_t latents = (size_t)e->positions * (a->kv_lora + a->rope_dim);
    weir_status st = device_take(&p->memory, latents * sizeof(uint16_t), &e->latents, err);
    if (!st)
        st = device_take(&p->memory, kv * sizeof(uint16_t), &e->kv, err);
    if (st || p->limits.position <= e->positions)
        return st;
    const size_t states = (size_t)p->limits.rows * a->heads;
    st = device_take(&p->memory, states * a->v_dim * sizeof(float), &e->sum, err);
    return st ? st : device_take(&p->memory, states * 2 * sizeof(float), &e->state, err);
}

/* What lies between the kernels of KDA, for prompts of all rows or of as many sequences as there
 * can be. */
static weir_status take_kda(struct device_program *p, weir_error *err) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op_kda *a = &p->ops[i].u.kda;
        if (p->ops[i].kind != OP_KDA_PREFILL)
            continue;
        /* Each has two rows at least, or it would decode. */
        uint32_t sequences = p->limits.rows / 2 + 1;
        if (p->limits.sequences && p->limits.sequences < sequences)
            sequences = p->limits.sequences;
        const struct gpu_kda_prefill r = {
            .n_seqs = sequences, .heads = a->heads, .dim = a->dim, .taps = a->taps};
        uint64_t bytes = gpu_kda_prefill_bytes(&r, p->limits.rows, p->shape);
        most = bytes > most ? bytes : most;
    }
    return most ? device_take(&p->memory, most, &p->kda_work, err) : WEIR_OK;
}

/* The choices of a layer, sorted by expert. */
static weir_status take_choices(struct device_program *p, weir_error *err) {
    size_t experts = 0, slots = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op_experts *a = &p->ops[i].u.experts;
        if (p->ops[i].kind != OP_EXPERTS_UP)
            continue;
        experts = a->experts > experts ? a->experts : experts;
        size_t choices = (size_t)p->limits.rows * a->top_k;
        slots = choices > slots ? choices : slots;
    }
    if (!experts)
        return WEIR_OK;
    weir_status st = device_take(&p->memory, (experts + 1) * sizeof(uint32_t), &p->offsets, err);
    return st ? st : device_take(&p->memory, slots * sizeof(uint32_t), &p->order, err);
}

/* Where tokens go that are drawn there, if a kernel takes the vocabulary. */
static weir_status take_draws(struct device_program *p, weir_error *err) {
    const struct op *last = &p->ops[p->n_ops - 1];
    struct gpu_sample r = {.vocab = last->u.sample.logits.cols};
    WEIR_ASSERT(last->kind == OP_SAMPLE);
    if (gpu_launch_sample(&r, 1, p->shape).kernel != GPU_NO_KERNEL)
        p->vocab = r.vocab;
    p->drawn_here = calloc(p->limits.logits, sizeof *p->drawn_here);
    p->left = calloc(p->limits.logits, sizeof *p->left);
    if (!p->drawn_here || !p->left)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for tokens");
    return device_take(&p->memory, p->limits.logits * sizeof *p->drawn_here, &p->drawn, err);
}

static weir_status take_batch(struct device_program *p, weir_error *err) {
    struct device_batch *d = &p->batch;
    d->room = device_batch_bytes(p->limits.rows, p->limits.logits);
    d->host = calloc(1, d->room);
    if (!d->host)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for batches");
    return device_take(&p->memory, d->room, &d->device, err);
}

/* Every operation once on batches of all sizes that kernels differ by, without a launch: so that
 * what is missing, a kernel or memory, comes up now. */
static weir_status rehearse(struct device_program *p, weir_error *err) {
    const uint32_t sizes[] = {1, 2, 3, 5, 17, 33, 65, 257, p->limits.rows};
    weir_status st = WEIR_OK;
    struct batch_seq *tokens = calloc(p->limits.rows, sizeof *tokens);
    if (!tokens)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for batches");
    for (uint32_t i = 0; i < p->limits.rows; i++)
        tokens[i] = (struct batch_seq){.row0 = i, .rows = 1};
    p->opening = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !st; i++) {
        const uint32_t rows = sizes[i] < p->limits.rows ? sizes[i] : p->limits.rows;
        const uint32_t logits = rows < p->limits.logits ? rows : p->limits.logits;
        const struct batch_seq seq = {.rows = rows};
        const struct batch prefill = {
            .n_rows = rows, .n_seqs = 1, .n_logits = logits, .seqs = &seq};
        struct batch decode = {.n_rows = rows, .seqs = tokens};
        if (p->limits.sequences && p->limits.sequences < rows)
            decode.n_rows = p->limits.sequences;
        decode.n_logits = logits < decode.n_rows ? logits : decode.n_rows;
        decode.n_seqs = decode.n_decode = decode.n_rows;
        st = enqueue_all(p, &decode, err);
        if (!st)
            st = enqueue_all(p, &prefill, err);
    }
    free(tokens);
    p->opening = false;
    return st ? st : gpu_wait(p->device, err);
}

weir_status device_program_open(const struct device_setup *s, struct device_program **out,
                                weir_error *err) {
    *out = NULL;
    struct device_program *p = calloc(1, sizeof *p);
    if (!p)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory");
    p->device = p->memory.device = s->device;
    p->ops = s->ops;
    p->n_ops = s->n_ops;
    p->buffers = (uintptr_t)s->buffers;
    p->buffers_bytes = s->buffers_bytes;
    p->limits = s->limits;
    p->shape = gpu_device_shape(s->device);
    p->wide = calloc(s->n_ops, 1);
    weir_status st = gpu_device_enter(s->device, err);
    if (!st && !p->wide)
        st = weir_fail(err, WEIR_NO_MEMORY, "device", "no memory");
    if (!st) {
        device_read_list(p);
        st = device_take(&p->memory, s->buffers_bytes, &p->device_buffers, err);
    }
    if (!st)
        st = take_attention(p, err);
    if (!st)
        st = take_expanded(p, err);
    if (!st)
        st = take_kda(p, err);
    if (!st)
        st = take_choices(p, err);
    if (!st)
        st = device_take_widened(p, err);
    if (!st)
        st = take_draws(p, err);
    if (!st)
        st = take_batch(p, err);
    if (!st)
        st = rehearse(p, err);
    if (st) {
        device_program_close(p);
        return st;
    }
    *out = p;
    return WEIR_OK;
}

static void drop_graphs(struct device_program *p) {
    for (uint32_t i = 0; i <= DEVICE_GRAPH_ROWS; i++) {
        if (p->graph[i])
            p->seen[i] = SEEN_ONCE;
        gpu_graph_free(p->device, p->graph[i]);
        p->graph[i] = NULL;
    }
}

void device_program_close(struct device_program *p) {
    if (!p)
        return;
    weir_error ignored;
    gpu_device_enter(p->device, &ignored);
    drop_graphs(p);
    device_memory_free(&p->memory);
    gpu_memory_free(p->device, p->batch.pages_at);
    free(p->batch.host);
    free(p->batch.pages);
    free(p->drawn_here);
    free(p->left);
    free(p->wide);
    free(p);
}

struct device_counts device_program_counts(const struct device_program *p) {
    struct device_counts c = p->counts;
    c.bytes = p->memory.bytes + p->batch.room_pages * sizeof(int32_t);
    c.weights = p->memory.copied;
    return c;
}

/* --------------------------------------------------------------------------- a step */

/* Room for the page tables of the batch at hand. Graphs know where they were. */
static weir_status grow_pages(struct device_program *p, weir_error *err) {
    struct device_batch *d = &p->batch;
    size_t room = d->room_pages ? d->room_pages : 1024;
    while (room < d->n_pages)
        room *= 2;
    drop_graphs(p);
    gpu_memory_free(p->device, d->pages_at);
    d->pages_at = 0;
    d->room_pages = 0;
    int32_t *pages = realloc(d->pages, room * sizeof *pages);
    if (!pages)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for page tables");
    d->pages = pages;
    weir_status st = gpu_memory_take(p->device, room * sizeof *pages, &d->pages_at, err);
    if (!st)
        d->room_pages = room;
    return st;
}

static weir_status send_batch(struct device_program *p, const struct batch *b, weir_error *err) {
    struct device_batch *d = &p->batch;
    device_batch_fill(d, b, p->heads, p->vocab, p->shape);
    if (d->n_pages > d->room_pages) {
        weir_status st = grow_pages(p, err);
        if (st)
            return st;
        device_batch_fill(d, b, p->heads, p->vocab, p->shape);
    }
    weir_status st = gpu_copy_in(p->device, d->device, d->host, d->used, err);
    if (!st && d->n_pages)
        st = gpu_copy_in(p->device, d->pages_at, d->pages, d->n_pages * sizeof *d->pages, err);
    return st;
}

/* Single tokens of sequences that all want their logits: what a step is when nothing is prefilled.
 */
static bool has_graph(const struct device_program *p, const struct batch *b) {
    return b->n_decode == b->n_seqs && b->n_logits == b->n_rows && b->n_rows <= DEVICE_GRAPH_ROWS;
}

/* NULL where the driver makes none: for want of memory, or because it cannot. */
static struct gpu_graph *make_graph(struct device_program *p, const struct batch *b) {
    struct gpu_graph *g = NULL;
    weir_error why;
    weir_status st = gpu_graph_begin(p->device, &why);
    if (!st) {
        st = enqueue_all(p, b, &why);
        weir_error second;
        weir_status ended = gpu_graph_end(p->device, &g, st ? &second : &why);
        st = st ? st : ended;
    }
    if (st) {
        gpu_graph_free(p->device, g);
        log_line(LOG_WARN, "batches of %" PRIu32 " go launch by launch: %s: %s", b->n_rows,
                 why.where, why.message);
        return NULL;
    }
    p->counts.graphs++;
    return g;
}

static weir_status compute(struct device_program *p, const struct batch *b, weir_error *err) {
    const uint32_t n = b->n_rows;
    if (p->watch)
        return enqueue_watched(p, b, err);
    if (!has_graph(p, b))
        return enqueue_all(p, b, err);
    /* A size that comes once is not worth one, and one that failed stays without. */
    if (!p->graph[n] && p->seen[n] == SEEN_ONCE)
        p->graph[n] = make_graph(p, b);
    if (p->seen[n] < SEEN_TWICE)
        p->seen[n]++;
    if (!p->graph[n])
        return enqueue_all(p, b, err);
    weir_status st = gpu_graph_launch(p->device, p->graph[n], err);
    p->counts.graph_launches += !st;
    return st;
}

/* Asks for the logits of these rows, which rise: neighbours at once. */
static weir_status bring_logits(struct device_program *p, struct tensor logits,
                                const uint32_t *rows, uint32_t n, weir_error *err) {
    weir_status st = WEIR_OK;
    for (uint32_t i = 0, k; i < n && !st; i += k) {
        for (k = 1; i + k < n && rows[i + k] == rows[i] + k;)
            k++;
        float *to = tensor_row(logits, rows[i]);
        const uint64_t from = p->device_buffers + ((uintptr_t)to - p->buffers);
        const size_t floats = (size_t)(k - 1) * logits.stride + logits.cols;
        st = gpu_copy_out(p->device, to, from, floats * sizeof(float), err);
    }
    p->counts.brought += n;
    return st;
}

/* What is known to be drawn here comes along with the tokens; rows that the kernel left undecided
 * come in a second round. */
static weir_status bring_tokens(struct device_program *p, const struct batch *b,
                                const struct op_sample *a, struct device_left *left,
                                weir_error *err) {
    const struct gpu_draw *draws =
        (const struct gpu_draw *)(const void *)(p->batch.host + p->batch.draws);
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_logits; i++)
        if (draws[i].how == GPU_DRAW_NOT)
            p->left[n++] = i;
    weir_status st = bring_logits(p, a->logits, p->left, n, err);
    if (!st && n < b->n_logits)
        st = gpu_copy_out(p->device, p->drawn_here, p->drawn, b->n_logits * sizeof *p->drawn_here,
                          err);
    if (!st)
        st = gpu_wait(p->device, err);
    if (st)
        return st;
    const uint32_t known = n;
    n = 0;
    for (uint32_t i = 0; i < b->n_logits && known < b->n_logits; i++)
        if (draws[i].how != GPU_DRAW_NOT && p->drawn_here[i].state == GPU_DRAWN_UNDECIDED)
            p->left[n++] = i;
    if (n)
        st = bring_logits(p, a->logits, p->left, n, err);
    n = 0;
    for (uint32_t i = 0; i < b->n_logits; i++)
        if (draws[i].how == GPU_DRAW_NOT ||
            !device_drew(&p->drawn_here[i], &b->logits[i], &a->results[i]))
            p->left[n++] = i;
    p->counts.drawn += b->n_logits - n;
    *left = (struct device_left){p->left, n};
    return st;
}

weir_status device_program_run(struct device_program *p, const struct batch *b,
                               const struct op_sample *a, struct device_left *left,
                               weir_error *err) {
    *left = (struct device_left){NULL, 0};
    weir_status st = gpu_device_enter(p->device, err);
    if (!st)
        st = send_batch(p, b, err);
    if (!st)
        st = compute(p, b, err);
    if (!st && b->n_logits)
        st = bring_tokens(p, b, a, left, err);
    /* Also of what failed: nobody may take its pages while kernels still write to them. */
    weir_error second;
    weir_status ended = gpu_wait(p->device, st ? &second : err);
    return st ? st : ended;
}

/* --------------------------------------------------------------------------- benches */

void device_program_watch(struct device_program *p, program_watch *watch, void *arg) {
    p->watch = watch;
    p->watch_arg = arg;
}

static weir_status time_graph(struct device_program *p, struct gpu_graph *g, uint32_t launches,
                              double *us, weir_error *err) {
    weir_status st = gpu_graph_launch(p->device, g, err); /* the first brings code along */
    if (!st)
        st = gpu_mark(p->device, 0, err);
    for (uint32_t i = 0; i < launches && !st; i++)
        st = gpu_graph_launch(p->device, g, err);
    if (!st)
        st = gpu_mark(p->device, 1, err);
    if (!st)
        st = gpu_marked_us(p->device, us, err);
    *us /= launches;
    return st;
}

weir_status device_program_time(struct device_program *p, const struct batch *b,
                                struct device_timing t, double *us, weir_error *err) {
    struct gpu_graph *g = NULL;
    weir_error second;
    *us = 0;
    weir_status st = gpu_device_enter(p->device, err);
    if (!st)
        st = send_batch(p, b, err);
    if (!st)
        st = gpu_wait(p->device, err);
    if (!st)
        st = gpu_graph_begin(p->device, err);
    if (!st) {
        p->timing = t;
        st = enqueue_all(p, b, err);
        p->timing = (struct device_timing){0};
        weir_status ended = gpu_graph_end(p->device, &g, st ? &second : err);
        st = st ? st : ended;
    }
    if (!st)
        st = time_graph(p, g, t.launches, us, err);
    weir_status ended = gpu_wait(p->device, st ? &second : err);
    gpu_graph_free(p->device, g);
    return st ? st : ended;
}
