/* kernels_build.c: see kernels_build.h. Called by kernels.c and its tests.
 * A case is built twice, as forward/ builds its program: first measuring, then placing, so that all
 * of it lies in one arena with huge pages, as the weights and pools of an engine do.
 * Invariant that bites: copies differ in what must come from memory, never in the activations:
 * those are in the caches in a real step, because the operation before has just written them. */
#include "bench/kernels_build.h"

#include "base/rng.h"
#include "bench/kernels_fill.h"
#include "ops/kv.h"
#include "ops/pack.h"

#include <math.h>
#include <string.h>

enum { TAPS = 4, MOST_COPIES = 4096 };

struct builder {
    struct kernel_work *w;
    struct team *team;
    bool measuring;
    size_t bytes;
    uint64_t seed, pieces;
    double least;
    uint32_t distinct; /* experts that one call reads */
};

static void *take(struct builder *b, size_t bytes) {
    b->bytes += arena_piece(bytes);
    if (b->measuring)
        return NULL;
    void *p = arena_take(&b->w->arena, bytes);
    WEIR_ASSERT(p); /* the first pass has counted it */
    return p;
}

static void *take_filled(struct builder *b, size_t bytes, enum kernel_fill kind, int exponent) {
    void *p = take(b, bytes);
    b->pieces++;
    if (p)
        kernel_fill(b->team, p, bytes, kind, exponent, b->seed + b->pieces);
    return p;
}

static struct tensor tensor_of(struct builder *b, uint32_t rows, uint32_t cols) {
    uint32_t stride = (cols + 15) & ~15u; /* rows start on 64 bytes, as in the step program */
    return (struct tensor){take_filled(b, (size_t)rows * stride * sizeof(float), FILL_F32, -1),
                           cols, stride};
}

static float *vector_of(struct builder *b, size_t n, int exponent) {
    return take_filled(b, n * sizeof(float), FILL_F32, exponent);
}

/* A weight as it stands in a checkpoint. */
static struct weight weight_of(struct builder *b, enum dtype t, uint32_t rows, uint32_t cols) {
    struct weight w = {.dtype = t, .rows = rows, .cols = cols};
    size_t n = (size_t)rows * cols;
    int e = kernel_exponent(cols);
    switch (t) {
    case DTYPE_F32: w.data = take_filled(b, n * 4, FILL_F32, e); break;
    case DTYPE_BF16: w.data = take_filled(b, n * 2, FILL_BF16, e); break;
    case DTYPE_U8: w.data = take_filled(b, n, FILL_CODES, 0); break;
    case DTYPE_FP8: break; /* of history alone */
    case DTYPE_MXFP4:
        w.data = take_filled(b, n / 2, FILL_CODES, 0);
        w.scale = take_filled(b, n / 32, FILL_SCALES, e - 2); /* codes are 2.6 on average */
        break;
    }
    return w;
}

struct packing_job {
    const struct weight *w;
    void *to;
    uint32_t members;
};
static void pack_member(void *arg, uint32_t member) {
    struct packing_job *j = arg;
    pack_weight(j->w, j->w->packing, j->to, (struct work){.index = member, .count = j->members});
}

/* A weight of a product as loading leaves it: in the layout of the fast columns, which is the same
 * for all of them, beside the stored form that the exact one reads. */
static struct weight product_weight(struct builder *b, uint32_t rows, uint32_t cols) {
    const struct kernel_case *c = &b->w->c;
    struct weight w = weight_of(b, c->dtype, rows, cols);
    w.packing = column_fast(ACTIVATION_DEFAULT)->packing(&w, c->dense);
    if (w.packing == PACK_NONE)
        return w;
    void *to = take(b, pack_bytes(&w, w.packing));
    if (to) {
        struct packing_job j = {&w, to, team_threads(b->team)};
        team_run(b->team, pack_member, &j);
    }
    w.packed = to;
    return w;
}

/* As many copies as make the working set large enough, at least two where a call has any. */
static uint32_t copies_for(const struct builder *b, double bytes_each) {
    if (bytes_each <= 0)
        return 1;
    double n = ceil(b->least / bytes_each);
    return n < 1 ? 1 : n > MOST_COPIES ? MOST_COPIES : (uint32_t)n;
}

static struct op *take_ops(struct builder *b, uint32_t n, enum op_kind kind) {
    struct op *op = take(b, n * sizeof *op);
    b->w->n_ops = n;
    b->w->op = op;
    for (uint32_t i = 0; op && i < n; i++)
        op[i] = (struct op){.kind = kind, .layer = -1};
    return op;
}

/* `n` sequences of `rows` rows each, of which the last one stands at `positions` - 1; each with
 * pages of its own, scattered, and a state slot. */
static void set_sequences(struct builder *b, uint32_t n, uint32_t rows, uint32_t positions) {
    struct kernel_work *w = b->w;
    uint32_t pages = (positions + PAGE_TOKENS - 1) / PAGE_TOKENS;
    struct batch_seq *seqs = take(b, n * sizeof *seqs);
    int32_t *list = take(b, (size_t)n * pages * sizeof *list);
    int32_t *ids = take(b, (size_t)n * rows * sizeof *ids);
    w->max_position = positions;
    w->batch = (struct batch){
        .n_rows = n * rows, .ids = ids, .n_seqs = n, .seqs = seqs, .n_decode = rows == 1 ? n : 0};
    if (b->measuring)
        return;
    for (uint32_t i = 0; i < n * pages; i++) /* neighbours of a sequence lie n pages apart */
        list[(size_t)(i % n) * pages + i / n] = (int32_t)i;
    for (uint32_t i = 0; i < n; i++)
        seqs[i] = (struct batch_seq){.row0 = i * rows,
                                     .rows = rows,
                                     .pos0 = positions - rows,
                                     .pages = list + (size_t)i * pages,
                                     .slot = (int32_t)i,
                                     .from = (int32_t)i};
}

/* ------------------------------------------------------------------------------- projections */

static void build_linear(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    uint32_t n = copies_for(b, b->w->cost.read_bytes);
    struct op *op = take_ops(b, n, OP_LINEAR);
    struct tensor x = tensor_of(b, c->n, c->in), y = tensor_of(b, c->n, c->out);
    for (uint32_t i = 0; i < n; i++) {
        struct weight w = product_weight(b, c->out, c->in);
        if (!op)
            continue;
        op[i].u.linear.n_parts = 1;
        op[i].u.linear.part[0] = (struct linear_part){.w = w, .x = x, .y = y};
    }
}

/* Choices of one copy: each row takes top_k different experts. A single row goes on where the copy
 * before stopped, so that it meets every expert before any comes again; many rows meet where chance
 * wants it. Returns how many different experts there are. */
static uint32_t choose(int32_t *ids, uint32_t rows, uint32_t top_k, uint32_t experts, uint32_t copy,
                       uint64_t seed) {
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < rows * top_k; i++) {
        uint32_t row0 = i / top_k * top_k;
        int32_t e = rows == 1 ? (int32_t)((copy * top_k + i) % experts)
                              : (int32_t)(rng_at(seed, copy, i) % experts);
        for (uint32_t k = row0; k < i; k++)
            if (ids[k] == e) { /* taken: the next one, and look again from the start */
                e = (e + 1) % (int32_t)experts;
                k = row0 - 1;
            }
        ids[i] = e;
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = ids[k] == e;
        distinct += !seen;
    }
    return distinct;
}

static void build_experts(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    bool up = c->family == KERNEL_EXPERTS_UP;
    set_sequences(b, 1, c->n, c->n);
    uint32_t copies = c->n == 1 ? (c->count + c->top_k - 1) / c->top_k : 4;
    struct op *op = take_ops(b, copies, up ? OP_EXPERTS_UP : OP_EXPERTS_DOWN);
    struct weight *w[2] = {take(b, c->count * sizeof(struct weight)),
                           take(b, c->count * sizeof(struct weight))};
    for (uint32_t e = 0; e < c->count; e++)
        for (int k = 0; k < (up ? 2 : 1); k++) {
            struct weight one = product_weight(b, c->out, c->in);
            if (op)
                w[k][e] = one;
        }
    uint32_t width = up ? c->in : c->out, inter = up ? c->out : c->in, pairs = c->n * c->top_k;
    struct op_experts a = {.z = tensor_of(b, c->n, width),
                           .h = tensor_of(b, pairs, inter),
                           .out = tensor_of(b, c->n, width),
                           .each = tensor_of(b, pairs, width),
                           .w1 = w[0],
                           .w2 = w[0],
                           .w3 = w[1],
                           .weights = vector_of(b, pairs, -4),
                           .experts = c->count,
                           .top_k = c->top_k,
                           .act = {true, 4, 25}};
    for (uint32_t i = 0; i < copies; i++) {
        int32_t *ids = take(b, pairs * sizeof *ids);
        if (!op)
            continue;
        uint32_t distinct = choose(ids, c->n, c->top_k, c->count, i, b->seed);
        b->distinct += distinct; /* the mean over copies, below */
        op[i].u.experts = a;
        op[i].u.experts.ids = ids;
    }
    b->distinct = (b->distinct + copies / 2) / copies;
}

/* ----------------------------------------------------------------------------------- mixers */

static void build_kda(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    bool step = c->family == KERNEL_KDA_STEP, prefill = c->family == KERNEL_KDA_PREFILL;
    uint32_t slots = step ? c->n : 1, width = c->heads * c->dim;
    set_sequences(b, slots, step ? 1 : c->n, step ? 100 : c->n);
    size_t layer = (size_t)width * c->dim + 3 * (TAPS - 1) * (size_t)width;
    struct op *op = take_ops(b, c->count, prefill ? OP_KDA_PREFILL : OP_KDA_DECODE);
    struct state_pool *pool = take(b, sizeof *pool);
    float *data = take_filled(b, slots * c->count * layer * sizeof(float), FILL_F32, -3);
    struct op_kda k = {.which = step ? SEQ_DECODE : SEQ_PREFILL,
                       .q = tensor_of(b, b->w->batch.n_rows, width),
                       .k = tensor_of(b, b->w->batch.n_rows, width),
                       .v = tensor_of(b, b->w->batch.n_rows, width),
                       .z = tensor_of(b, b->w->batch.n_rows, width),
                       .b = tensor_of(b, b->w->batch.n_rows, c->heads),
                       .go = tensor_of(b, b->w->batch.n_rows, width),
                       .out = tensor_of(b, b->w->batch.n_rows, width),
                       .q_taps = vector_of(b, (size_t)width * TAPS, -1),
                       .k_taps = vector_of(b, (size_t)width * TAPS, -1),
                       .v_taps = vector_of(b, (size_t)width * TAPS, -1),
                       .ea = vector_of(b, c->heads, 0),
                       .dt = vector_of(b, width, 0),
                       .o_norm = vector_of(b, c->dim, 0),
                       .lower_bound = -5,
                       .eps = 1e-5f,
                       .heads = c->heads,
                       .dim = c->dim,
                       .taps = TAPS,
                       .pool = pool};
    if (!op)
        return;
    *pool =
        (struct state_pool){.data = data, .slot_floats = c->count * layer, .layer_floats = layer};
    float *ea = (float *)(uintptr_t)k.ea, *dt = (float *)(uintptr_t)k.dt;
    for (uint32_t h = 0; h < c->heads; h++)
        ea[h] = fabsf(ea[h]);
    for (uint32_t i = 0; i < width; i++)
        dt[i] = 2 * dt[i] - 4; /* decays from nearly 1 down to about a third, as trained ones */
    for (uint32_t i = 0; i < c->count; i++) {
        op[i].u.kda = k;
        op[i].u.kda.layer = i;
    }
}

static enum kernel_fill history_fill(enum dtype t) {
    return t == DTYPE_F32 ? FILL_F32 : t == DTYPE_FP8 ? FILL_RECORDS : FILL_BF16;
}

static void build_mla(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    bool decode = c->family == KERNEL_MLA_DECODE;
    uint32_t rope = c->dim / 2, latent = 4 * c->dim, width = latent + rope;
    uint32_t positions = decode ? c->history : c->history + c->n;
    set_sequences(b, decode ? c->n : 1, decode ? 1 : c->n, positions);
    uint32_t pages = (positions + PAGE_TOKENS - 1) / PAGE_TOKENS * b->w->batch.n_seqs;
    size_t layer = PAGE_TOKENS * kv_record_bytes(c->dtype, latent, rope);
    double kv_b = kernel_matrix_bytes(DTYPE_BF16, 2.0 * c->heads * c->dim, latent);
    uint32_t copies = copies_for(b, (double)pages * (double)layer + kv_b);
    struct op *op = take_ops(b, copies, decode ? OP_MLA_DECODE : OP_MLA_PREFILL);
    struct kv_pool *pool = take(b, sizeof *pool);
    unsigned char *data = take_filled(b, pages * layer * copies, history_fill(c->dtype), -1);
    uint32_t rows = b->w->batch.n_rows;
    struct op_mla a = {.which = decode ? SEQ_DECODE : SEQ_PREFILL,
                       .q = tensor_of(b, rows, c->heads * (c->dim + rope)),
                       .g = tensor_of(b, rows, c->heads * c->dim),
                       .out = tensor_of(b, rows, c->heads * c->dim),
                       .scale = 1.0f / sqrtf((float)(c->dim + rope)),
                       .pool = pool,
                       .heads = c->heads,
                       .nope_dim = c->dim,
                       .rope_dim = rope,
                       .v_dim = c->dim,
                       .kv_lora = latent};
    if (op)
        *pool = (struct kv_pool){data, c->dtype, layer * copies, width};
    for (uint32_t i = 0; i < copies; i++) {
        a.kv_b = weight_of(b, DTYPE_BF16, 2 * c->heads * c->dim, latent);
        a.layer = i;
        if (op)
            op[i].u.mla = a;
    }
}

static void build_mla_write(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    uint32_t rope = c->dim / 2, latent = 4 * c->dim, width = latent + rope;
    set_sequences(b, 1, c->n, c->n);
    uint32_t pages = (c->n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    size_t layer = PAGE_TOKENS * kv_record_bytes(c->dtype, latent, rope);
    uint32_t copies = copies_for(b, (double)pages * (double)layer);
    struct op *op = take_ops(b, copies, OP_MLA_WRITE);
    struct kv_pool *pool = take(b, sizeof *pool);
    unsigned char *data = take_filled(b, pages * layer * copies, history_fill(c->dtype), -1);
    struct op_mla_write a = {.kv = tensor_of(b, c->n, width),
                             .norm = vector_of(b, latent, 0),
                             .eps = 1e-5f,
                             .pool = pool,
                             .kv_lora = latent};
    if (op)
        *pool = (struct kv_pool){data, c->dtype, layer * copies, width};
    for (uint32_t i = 0; op && i < copies; i++) {
        op[i].u.mla_write = a;
        op[i].u.mla_write.layer = i;
    }
}

/* --------------------------------------------------------------------------------- the rest */

/* Operations on activations alone: few rows are in the caches, many are rotated over copies. */
static uint32_t row_copies(const struct builder *b, double floats_of_a_row) {
    double bytes = b->w->c.n * floats_of_a_row * 4;
    return b->w->cost.cache_bytes > 0 ? 1 : copies_for(b, bytes);
}

static void build_mix_norm(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    uint32_t copies = row_copies(b, (c->count + 4.0) * c->out);
    struct op *op = take_ops(b, copies, OP_MIX_NORM);
    const float *score = vector_of(b, c->out, kernel_exponent(c->out));
    const float *norm = vector_of(b, c->out, 0);
    for (uint32_t i = 0; i < copies; i++) {
        struct tensor *bank = take(b, (c->count + 1) * sizeof *bank);
        for (uint32_t k = 0; k < c->count; k++) {
            struct tensor t = tensor_of(b, c->n, c->out);
            if (bank)
                bank[k] = t;
        }
        struct op_mix_norm a = {.prefix = tensor_of(b, c->n, c->out),
                                .delta = tensor_of(b, c->n, c->out),
                                .out = tensor_of(b, c->n, c->out),
                                .bank = bank,
                                .n_bank = c->count,
                                .c = score,
                                .norm = norm,
                                .eps = 1e-5f};
        if (op)
            op[i].u.mix_norm = a;
    }
}

static void build_norm(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    uint32_t copies = row_copies(b, 2.0 * c->out);
    struct op *op = take_ops(b, copies, OP_NORM);
    const float *norm = vector_of(b, c->out, 0);
    for (uint32_t i = 0; i < copies; i++) {
        struct op_norm a = {tensor_of(b, c->n, c->out), tensor_of(b, c->n, c->out), norm, 1e-5f};
        if (op)
            op[i].u.norm = a;
    }
}

static void build_glu(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    uint32_t copies = row_copies(b, 3.0 * c->out);
    struct op *op = take_ops(b, copies, OP_GLU);
    for (uint32_t i = 0; i < copies; i++) {
        struct op_glu a = {.act = {true, 4, 25},
                           .gate = tensor_of(b, c->n, c->out),
                           .up = tensor_of(b, c->n, c->out),
                           .y = tensor_of(b, c->n, c->out)};
        if (op)
            op[i].u.glu = a;
    }
}

static void build_route(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    struct op *op = take_ops(b, 1, OP_ROUTE);
    struct op_route a = {.logits = tensor_of(b, c->n, c->count),
                         .bias = vector_of(b, c->count, -4),
                         .ids = take(b, (size_t)c->n * c->top_k * sizeof(int32_t)),
                         .weights = take(b, (size_t)c->n * c->top_k * sizeof(float)),
                         .experts = c->count,
                         .top_k = c->top_k,
                         .groups = 1,
                         .top_groups = 1,
                         .renormalize = true,
                         .scale = 2.5f};
    if (op)
        op[0].u.route = a;
}

/* Copies are neighbouring pieces of one table. */
static void build_embed(struct builder *b) {
    const struct kernel_case *c = &b->w->c;
    set_sequences(b, 1, c->n, c->n);
    uint32_t copies = c->count / (4 * c->n);
    copies = copies < 1 ? 1 : copies > MOST_COPIES ? MOST_COPIES : copies;
    uint32_t rows = c->count / copies;
    struct op *op = take_ops(b, copies, OP_EMBED);
    struct op_embed a = {weight_of(b, c->dtype, c->count, c->out), tensor_of(b, c->n, c->out)};
    if (!op)
        return;
    for (uint32_t i = 0; i < copies; i++) {
        op[i].u.embed = a;
        op[i].u.embed.w.rows = rows;
        op[i].u.embed.w.data = (const unsigned char *)a.w.data +
                               (size_t)i * rows * (size_t)kernel_matrix_bytes(c->dtype, 1, c->out);
    }
    int32_t *ids = (int32_t *)(uintptr_t)b->w->batch.ids;
    for (uint32_t i = 0; i < c->n; i++)
        ids[i] = (int32_t)(rng_at(b->seed, 1, i) % rows);
}

static void build(struct builder *b) {
    switch (b->w->c.family) {
    case KERNEL_LINEAR: build_linear(b); return;
    case KERNEL_EXPERTS_UP:
    case KERNEL_EXPERTS_DOWN: build_experts(b); return;
    case KERNEL_KDA_STEP:
    case KERNEL_KDA_PREFILL:
    case KERNEL_KDA_TOKENS: build_kda(b); return;
    case KERNEL_MLA_DECODE:
    case KERNEL_MLA_PREFILL: build_mla(b); return;
    case KERNEL_MLA_WRITE: build_mla_write(b); return;
    case KERNEL_MIX_NORM: build_mix_norm(b); return;
    case KERNEL_NORM: build_norm(b); return;
    case KERNEL_GLU: build_glu(b); return;
    case KERNEL_ROUTE: build_route(b); return;
    case KERNEL_EMBED: build_embed(b); return;
    }
}

weir_status kernel_build(const struct kernel_case *c, double least_bytes, double most_bytes,
                         struct team *team, uint64_t seed, struct kernel_work *out,
                         weir_error *err) {
    *out = (struct kernel_work){.c = *c, .cost = kernel_cost(c, c->count)};
    struct builder b = {
        .w = out, .team = team, .measuring = true, .seed = rng_mix(seed), .least = least_bytes};
    build(&b);
    size_t bytes = b.bytes;
    if ((double)bytes > most_bytes || arena_open(&out->arena, bytes) != 0) {
        char shape[96];
        return weir_fail(err, WEIR_NO_MEMORY, c->name, "%s: no memory for %zu bytes",
                         kernel_shape(c, shape, sizeof shape), bytes);
    }
    b.measuring = false;
    b.bytes = b.pieces = 0;
    b.distinct = 0;
    build(&b);
    out->bytes = (double)bytes;
    out->cost = kernel_cost(c, b.distinct);
    return WEIR_OK;
}

void kernel_free(struct kernel_work *w) {
    arena_close(&w->arena);
    *w = (struct kernel_work){0};
}

const struct op *kernel_op_for(const struct column *column, const struct op *op, struct op *other) {
    if (op->kind == OP_MIX_NORM && op->u.mix_norm.round_prefix != column->round_prefix) {
        *other = *op;
        other->u.mix_norm.round_prefix = column->round_prefix;
        return other;
    }
    if (column->chunked)
        return op;
    if (op->kind == OP_KDA_PREFILL) {
        *other = *op;
        other->kind = OP_KDA_DECODE;
        other->u.kda.which = SEQ_ALL;
        return other;
    }
    if (op->kind == OP_MLA_PREFILL) {
        *other = *op;
        other->kind = OP_MLA_DECODE;
        other->u.mla.which = SEQ_ALL;
        return other;
    }
    return op;
}
