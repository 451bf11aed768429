/* model.c: the whole step program: embedding, layers, head, sampling; and its run on a team.
 * Called by engine (executors) and by the scoring command. Invariant that bites: every operation is
 * called by all members and ends at a barrier; nothing between two barriers may read what another
 * operation of the same step is still writing. */
#include "forward/builder.h"
#include "forward/device.h"
#include "ops/kv.h"

#include <string.h>

struct step_program {
    struct arena arena;
    struct op *op;
    uint32_t n_ops;
    struct tap_point *tap_point;
    uint32_t n_taps;
    struct tensor logits, mixed;
    struct sample_result *results;
    const struct column *column;
    struct step_limits limits;
    uint32_t threads;
    unsigned char *scratch; /* threads times scratch_bytes, then what the members share */
    size_t scratch_bytes, shared_bytes;
    program_tap *tap;
    void *tap_arg;
    program_watch *watch;
    void *watch_arg;
    const struct expert_source *source; /* NULL: all weights are in memory */
    bool failed;                        /* the last run, and why */
    weir_error failure;
    /* of the run in progress */
    struct team *team;
    const struct batch *batch;
    struct device_program *device; /* NULL: this machine computes */
    struct device_left left;       /* rows of logits whose token it did not draw */
};

/* The layers, from the embedding to the logits. */
static void build_steps(struct builder *b) {
    const struct model *m = b->m;
    struct op *embed = builder_op(b, OP_EMBED, -1);
    embed->u.embed = (struct op_embed){*weights_get(b->w, ROLE_EMBED, -1), b->prefix};
    builder_tap(b, b->prefix, "embed", -1);
    for (uint32_t l = 0; l < m->layers; l++) {
        int32_t at = (int32_t)l;
        bool border = m->res_block > 0 && l % m->res_block == 0;
        build_mix_norm(b, at, ROLE_INPUT_NORM, ROLE_ATTN_RES_NORM, ROLE_ATTN_RES_PROJ, border,
                       false, b->x);
        if (l > 0)
            builder_tap(b, b->prefix, "layer%d.out", at - 1);
        builder_tap(b, b->mixed, "layer%d.attn_in", at);
        if (m->layer_is_kda[l])
            build_kda(b, l);
        else
            build_mla(b, l);
        b->pending = true;
        b->replace = border;
        builder_tap(b, b->delta, "layer%d.attn_out", at);

        build_mix_norm(b, at, ROLE_POST_NORM, ROLE_FFN_RES_NORM, ROLE_FFN_RES_PROJ, false, false,
                       b->x);
        builder_tap(b, b->mixed, "layer%d.ffn_in", at);
        build_ffn(b, l);
        b->pending = true;
        builder_tap(b, b->delta, "layer%d.ffn_out", at);
    }
    builder_tap(b, b->x, "layer%d.out", (int32_t)m->layers - 1);
    if (!b->measuring) { /* nobody else needs the last prefix of every row */
        b->tap[b->n_taps - 1].sum[0] = b->prefix;
        b->tap[b->n_taps - 1].sum[1] = b->delta;
    }
    struct tensor last = builder_keep(b, b->limits.logits, m->hidden);
    build_mix_norm(b, -1, ROLE_FINAL_NORM, ROLE_FINAL_RES_NORM, ROLE_FINAL_RES_PROJ, false, true,
                   last);
    builder_tap(b, b->mixed, "final_hidden", -1);
    builder_tap(b, last, "final_normed", -1);
    for (uint32_t i = 1; i <= 2 && !b->measuring; i++)
        b->tap[b->n_taps - i].logit_rows = true;

    struct op *head = builder_op(b, OP_LINEAR, -1);
    head->u.linear.logit_rows = true;
    builder_product(head, weights_get(b->w, ROLE_HEAD, -1), last, b->logits);
    struct op *sample = builder_op(b, OP_SAMPLE, -1);
    sample->u.sample = (struct op_sample){b->logits, b->results};
}

static void build_all(struct builder *b) {
    const struct model *m = b->m;
    uint32_t bank = m->res_block ? (m->layers + m->res_block - 1) / m->res_block : 0;
    b->prefix = builder_keep(b, b->limits.rows, m->hidden);
    b->delta = builder_keep(b, b->limits.rows, m->hidden);
    b->x = builder_keep(b, b->limits.rows, m->hidden);
    b->mixed = builder_keep(b, b->limits.rows, m->hidden);
    b->bank = builder_take(b, bank * sizeof *b->bank);
    for (uint32_t i = 0; i < bank; i++) {
        struct tensor t = builder_keep(b, b->limits.rows, m->hidden);
        if (b->bank)
            b->bank[i] = t;
    }
    b->logits = builder_keep(b, b->limits.logits, m->vocab);
    b->results = builder_take(b, b->limits.logits * sizeof *b->results);
    build_steps(b);
}

/* What the column must offer for this list. */
static weir_status check_column(const struct step_program *p, weir_error *err) {
    const struct column *c = p->column;
    if (c->device) /* found out by program_to_device, which knows the shapes that kernels take */
        return WEIR_OK;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        bool there = false;
        switch (p->op[i].kind) {
        case OP_EMBED: there = c->embed; break;
        case OP_MIX_NORM: there = c->mix_norm; break;
        case OP_LINEAR: there = c->linear; break;
        case OP_GLU: there = c->glu; break;
        case OP_NORM: there = c->norm; break;
        case OP_KDA_DECODE: there = c->kda_decode; break;
        case OP_KDA_PREFILL: there = c->kda_prefill; break;
        case OP_MLA_WRITE: there = c->mla_write; break;
        case OP_MLA_DECODE: there = c->mla_decode; break;
        case OP_MLA_PREFILL: there = c->mla_prefill; break;
        case OP_ROUTE: there = c->route; break;
        case OP_EXPERTS_UP: there = c->experts_up; break;
        case OP_EXPERTS_DOWN: there = c->experts_down; break;
        case OP_SAMPLE: there = c->sample; break;
        case OP_COUNT: break;
        }
        if (!there)
            return weir_fail(err, WEIR_UNSUPPORTED, c->name, "this column has no operation %s",
                             op_name(p->op[i].kind));
    }
    return WEIR_OK;
}

/* Scratch of one member, and what all share. */
struct need {
    size_t each, shared;
};
static struct need need_of(const struct step_program *p, uint32_t i) {
    return (struct need){p->column->scratch_bytes(&p->op[i], p->limits.rows, p->limits.position),
                         column_shared_bytes(p->column, &p->op[i], p->limits.rows, p->threads)};
}

/* Memory for all operations as they are chosen now; what was there before is given back. */
static weir_status take_scratch(struct step_program *p, weir_error *err) {
    size_t most = 0, shared = 0, all;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct need n = need_of(p, i);
        most = n.each > most ? n.each : most;
        shared = n.shared > shared ? n.shared : shared;
    }
    most = (most + 4095) & ~(size_t)4095; /* members write to pages of their own */
    shared = (shared + 4095) & ~(size_t)4095;
    unsigned char *scratch = NULL;
    if ((most || shared) && (__builtin_add_overflow(size_mul(most, p->threads), shared, &all) ||
                             !(scratch = aligned_alloc(4096, all))))
        return weir_fail(err, WEIR_NO_MEMORY, "scratch", "no memory for %u times %zu bytes",
                         p->threads, most);
    free(p->scratch);
    p->scratch = scratch;
    p->scratch_bytes = most;
    p->shared_bytes = shared;
    return WEIR_OK;
}

weir_status program_build(const struct model *m, const struct weights *w,
                          const struct column *column, const struct kv_pool *kv,
                          const struct state_pool *state, struct step_limits limits,
                          uint32_t threads, struct step_program **out, weir_error *err) {
    *out = NULL;
    if (m->res_block && (m->layers + m->res_block - 1) / m->res_block > OP_MAX_BANK)
        return weir_fail(err, WEIR_UNSUPPORTED, "attn_res_block_size",
                         "%u layers in blocks of %u make more than %d bank entries", m->layers,
                         m->res_block, OP_MAX_BANK);
    struct step_program *p = calloc(1, sizeof *p);
    if (!p)
        return weir_fail(err, WEIR_NO_MEMORY, "program", "no memory");
    p->column = column;
    p->limits = limits;
    p->threads = threads;
    p->source = weights_source(w);

    const struct builder empty = {
        .m = m, .w = w, .column = column, .kv = kv, .state = state, .limits = limits};
    struct builder b = empty;
    b.measuring = true;
    build_all(&b);
    p->n_ops = b.n_ops;
    p->n_taps = b.n_taps;
    size_t ops_bytes = b.n_ops * sizeof *p->op, taps_bytes = b.n_taps * sizeof *p->tap_point;
    size_t total =
        b.bytes + arena_piece(b.layer_most) + arena_piece(ops_bytes) + arena_piece(taps_bytes);
    size_t layer_bytes = b.layer_most;
    if (arena_open(&p->arena, total) != 0) {
        program_free(p);
        return weir_fail(err, WEIR_NO_MEMORY, "step buffers",
                         "no memory for %zu bytes: a smaller max_num_batched_tokens needs less",
                         total);
    }
    b = empty;
    b.arena = &p->arena;
    b.op = p->op = arena_take(&p->arena, ops_bytes);
    b.tap = p->tap_point = arena_take(&p->arena, taps_bytes);
    b.layer = arena_take(&p->arena, layer_bytes);
    build_all(&b);
    p->logits = b.logits;
    p->mixed = b.mixed;
    p->results = b.results;

    weir_status s = check_column(p, err);
    if (!s)
        s = take_scratch(p, err);
    if (s) {
        program_free(p);
        return s;
    }
    *out = p;
    return WEIR_OK;
}

void program_free(struct step_program *p) {
    if (!p)
        return;
    device_program_close(p->device);
    free(p->scratch);
    arena_close(&p->arena);
    free(p);
}

/* Shows every value that is ready behind operation i. */
static void show_taps(const struct step_program *p, uint32_t i) {
    for (uint32_t k = 0; k < p->n_taps; k++) {
        const struct tap_point *t = &p->tap_point[k];
        if (t->after != i)
            continue;
        for (uint32_t r = 0; t->sum[0].data && r < p->batch->n_rows; r++)
            for (uint32_t c = 0; c < t->tensor.cols; c++)
                tensor_row(t->tensor, r)[c] =
                    tensor_row(t->sum[0], r)[c] + tensor_row(t->sum[1], r)[c];
        p->tap(p->tap_arg, t->name, t->tensor,
               t->logit_rows ? p->batch->n_logits : p->batch->n_rows);
    }
}

static void run_member(void *arg, uint32_t member) {
    struct step_program *p = arg;
    struct work w = {.index = member, .count = team_present(p->team), .team = p->team};
    if (p->scratch) {
        w.scratch = p->scratch + member * p->scratch_bytes;
        w.shared = p->scratch + p->threads * p->scratch_bytes;
    }
    if (p->watch)
        team_barrier(p->team, member);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->watch && member == 0)
            p->watch(p->watch_arg, i);
        uint32_t passes = column_passes(p->column, &p->op[i], p->batch);
        for (w.pass = 0; w.pass < passes; w.pass++) {
            column_run(p->column, &p->op[i], p->batch, p->batch->ids, w);
            team_barrier(p->team, member);
        }
        if (p->tap) {
            if (member == 0)
                show_taps(p, i);
            team_barrier(p->team, member);
        }
    }
    if (p->watch && member == 0)
        p->watch(p->watch_arg, p->n_ops);
}

weir_status program_to_device(struct step_program *p, struct gpu_device *d, weir_error *err) {
    WEIR_ASSERT(p->column->device && !p->device);
    if (p->source)
        return weir_fail(err, WEIR_UNSUPPORTED, "experts",
                         "stay in their files, but a device holds all of them");
    const struct device_setup setup = {
        .device = d,
        .ops = p->op,
        .n_ops = p->n_ops,
        .buffers = p->arena.base,
        .buffers_bytes = p->arena.size,
        .limits = p->limits,
    };
    return device_program_open(&setup, &p->device, err);
}

/* The last operation of every program. */
static const struct op_sample *sample_of(const struct step_program *p) {
    const struct op *op = &p->op[p->n_ops - 1];
    WEIR_ASSERT(op->kind == OP_SAMPLE);
    return &op->u.sample;
}

/* Rows that the device has not drawn the token of. */
static void draw_member(void *arg, uint32_t member) {
    struct step_program *p = arg;
    const struct work w = {.index = member, .count = team_present(p->team)};
    const struct span rows = work_span(w, p->left.n);
    for (uint32_t i = rows.begin; i < rows.end; i++)
        sample_row(sample_of(p), p->batch, p->left.rows[i], p->scratch + member * p->scratch_bytes);
    team_barrier(p->team, member);
}

struct device_counts program_device_counts(const struct step_program *p) {
    return device_program_counts(p->device);
}

static void run_on_device(struct step_program *p) {
    p->failed =
        device_program_run(p->device, p->batch, sample_of(p), &p->left, &p->failure) != WEIR_OK;
    if (!p->failed && p->left.n)
        team_run_present(p->team, draw_member, p);
}

void program_run(struct step_program *p, struct team *team, const struct batch *b) {
    WEIR_ASSERT(team_threads(team) == p->threads && b->n_rows <= p->limits.rows &&
                b->n_logits <= p->limits.logits);
    p->team = team;
    p->batch = b;
    if (p->column->device) {
        WEIR_ASSERT(p->device);
        run_on_device(p);
        return;
    }
    if (p->source) /* it counts the members that come and go */
        team_run(team, run_member, p);
    else
        team_run_present(team, run_member, p);
    p->failed = p->source && !p->source->settle(p->source->self, &p->failure);
}

weir_status program_failure(const struct step_program *p, weir_error *err) {
    return p->failed ? weir_fail(err, p->failure.code, p->failure.where, "%s", p->failure.message)
                     : WEIR_OK;
}

const struct sample_result *program_results(const struct step_program *p) {
    return p->results;
}

const float *program_logits(const struct step_program *p, uint32_t i) {
    return tensor_row(p->logits, i);
}

const struct op *program_ops(const struct step_program *p, uint32_t *n) {
    *n = p->n_ops;
    return p->op;
}

weir_status program_choose(struct step_program *p, uint32_t i, enum row_class rows, uint8_t variant,
                           weir_error *err) {
    uint8_t before = p->op[i].variant[rows];
    p->op[i].variant[rows] = variant;
    struct need n = need_of(p, i);
    if (n.each <= p->scratch_bytes && n.shared <= p->shared_bytes)
        return WEIR_OK;
    weir_status s = take_scratch(p, err);
    if (s)
        p->op[i].variant[rows] = before;
    return s;
}

void program_set_tap(struct step_program *p, program_tap *tap, void *arg) {
    p->tap = tap;
    p->tap_arg = arg;
    for (uint32_t i = 0; i < p->n_ops; i++) /* the mixture is written out only when someone looks */
        if (p->op[i].kind == OP_MIX_NORM)
            p->op[i].u.mix_norm.mixed = tap ? p->mixed : (struct tensor){0};
}

const struct column *program_column(const struct step_program *p) {
    return p->column;
}

void program_set_watch(struct step_program *p, program_watch *watch, void *arg) {
    p->watch = watch;
    p->watch_arg = arg;
    if (p->device)
        device_program_watch(p->device, watch, arg);
}

weir_status program_time(struct step_program *p, const struct batch *b,
                         const struct device_timing *t, double *us, weir_error *err) {
    WEIR_ASSERT(p->device);
    return device_program_time(p->device, b, *t, us, err);
}

size_t program_kv_page_bytes(const struct model *m, enum dtype dtype) {
    return (size_t)model_mla_layers(m) * PAGE_TOKENS *
           kv_record_bytes(dtype, m->kv_lora, m->rope_dim);
}

size_t program_state_layer_floats(const struct model *m) {
    size_t width = model_kda_width(m);
    return width * m->kda_dim + 3 * (size_t)(m->conv_taps - 1) * width;
}

size_t program_state_slot_floats(const struct model *m) {
    return model_kda_layers(m) * program_state_layer_floats(m);
}
