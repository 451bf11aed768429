/* kernels_check.c: see kernels_check.h. Called by kernels.c and tests.
 * A slice of a case is a case itself: rows of a weight are a smaller weight, heads of a mixer a
 * smaller mixer, tokens of a sequence a later step. So the exact column runs unchanged over records
 * whose pointers are moved, on outputs of its own.
 * Invariant that bites: what an operation changes in place (states, the residual prefix) is copied
 * before the column under test runs; both start from the same bits. */
#include "bench/kernels_check.h"

#include "bench/kernels_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct check {
    struct kernel_work *w;
    struct team *team;
    double budget; /* of one slice, multiply-adds */
    double square, error_square;
    double largest;
    uint64_t values, wrong;
    bool no_memory;
};

static void compare(struct check *k, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (isnan(e))
            e = INFINITY;
        k->square += (double)want[i] * want[i];
        k->error_square += e * e;
        k->largest = e > k->largest ? e : k->largest;
    }
    k->values += n;
}

static void *need(struct check *k, size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        k->no_memory = true;
    return p;
}

/* The exact column over one record and batch, on the team. */
struct exact {
    const struct op *op;
    const struct batch *batch;
    unsigned char *scratch;
    size_t each;
    uint32_t members;
};
static void exact_member(void *arg, uint32_t member) {
    struct exact *e = arg;
    column_run(&column_ref, e->op, e->batch, e->batch->ids,
               (struct work){
                   .index = member, .count = e->members, .scratch = e->scratch + member * e->each});
}
static void run_exact(struct check *k, const struct op *op, const struct batch *b) {
    uint32_t members = team_threads(k->team);
    size_t each = column_ref.scratch_bytes(op, b->n_rows, k->w->max_position);
    each = (each + 63) & ~(size_t)63;
    unsigned char *scratch = need(k, each * members);
    if (!scratch)
        return;
    struct exact e = {op, b, scratch, each, members};
    team_run(k->team, exact_member, &e);
    free(scratch);
}

static uint32_t clamp(double x, uint32_t most) {
    return x < 1 ? 1 : x > most ? most : (uint32_t)x;
}

/* Slice i of 3: `take` of `all` units from the start, the middle or the end; one if that is all. */
static uint32_t slice_at(uint32_t all, uint32_t take, int i) {
    return (uint32_t)((uint64_t)(all - take) * (uint32_t)i / 2);
}
static int slices(uint32_t all, uint32_t take) {
    return take >= all ? 1 : 3;
}

static struct tensor moved(struct tensor t, size_t row, size_t col) {
    if (t.data)
        t.data += row * t.stride + col;
    return t;
}

static struct weight weight_rows(struct weight w, size_t row, uint32_t rows) {
    w.data = (const unsigned char *)w.data +
             row * (size_t)kernel_matrix_bytes(w.dtype == DTYPE_MXFP4 ? DTYPE_U8 : w.dtype, 1,
                                               w.dtype == DTYPE_MXFP4 ? w.cols / 2 : w.cols);
    if (w.scale)
        w.scale += row * (w.cols / 32);
    w.packed = NULL; /* the exact column reads weights as stored */
    w.packing = PACK_NONE;
    w.rows = rows;
    return w;
}

/* ------------------------------------------------------------------------------- projections */

static void check_linear(struct check *k) {
    const struct kernel_case *c = &k->w->c;
    const struct linear_part *p = &k->w->op[0].u.linear.part[0];
    uint32_t tokens = clamp(16, c->n);
    uint32_t rows = clamp(k->budget / tokens / c->in, c->out);
    float *y = need(k, (size_t)tokens * rows * sizeof *y);
    int n = slices(c->out, rows) | slices(c->n, tokens);
    for (int i = 0; y && i < n; i++) {
        uint32_t r = slice_at(c->out, rows, i), t = slice_at(c->n, tokens, i);
        struct op op = k->w->op[0];
        op.u.linear.part[0].w = weight_rows(p->w, r, rows);
        op.u.linear.part[0].x = moved(p->x, t, 0);
        op.u.linear.part[0].y = (struct tensor){y, rows, rows};
        run_exact(k, &op, &(struct batch){.n_rows = tokens});
        for (uint32_t j = 0; j < tokens; j++)
            compare(k, tensor_row(p->y, t + j) + r, y + (size_t)j * rows, rows);
    }
    free(y);
}

static void check_experts(struct check *k) {
    const struct kernel_case *c = &k->w->c;
    bool up = c->family == KERNEL_EXPERTS_UP;
    const struct op_experts *a = &k->w->op[0].u.experts;
    uint32_t tokens = clamp(4, c->n), pairs = tokens * c->top_k;
    uint32_t rows = clamp(k->budget / pairs / c->in, c->out);
    uint32_t results = up ? pairs : tokens;
    float *y = need(k, (size_t)results * rows * sizeof *y);
    struct weight *w1 = need(k, c->count * sizeof *w1), *w3 = need(k, c->count * sizeof *w3);
    int n = slices(c->out, rows) | slices(c->n, tokens);
    for (int i = 0; y && w1 && w3 && i < n; i++) {
        uint32_t r = slice_at(c->out, rows, i), t = slice_at(c->n, tokens, i);
        struct op op = k->w->op[0];
        struct op_experts *e = &op.u.experts;
        for (uint32_t x = 0; x < c->count; x++) {
            w1[x] = weight_rows(a->w1[x], r, rows);
            if (up)
                w3[x] = weight_rows(a->w3[x], r, rows);
        }
        e->w1 = e->w2 = w1;
        e->w3 = w3;
        e->ids = a->ids + (size_t)t * c->top_k;
        e->weights = a->weights + (size_t)t * c->top_k;
        e->z = moved(a->z, t, 0);
        e->h = up ? (struct tensor){y, rows, rows} : moved(a->h, (size_t)t * c->top_k, 0);
        e->out = (struct tensor){y, rows, rows};
        run_exact(k, &op, &(struct batch){.n_rows = tokens});
        for (uint32_t j = 0; j < results; j++)
            compare(k,
                    (up ? tensor_row(a->h, (size_t)t * c->top_k + j) : tensor_row(a->out, t + j)) +
                        r,
                    y + (size_t)j * rows, rows);
    }
    free(y);
    free(w1);
    free(w3);
}

/* ------------------------------------------------------------------------------------- mixers */

/* States of `heads` heads from h on, in a pool of their own. */
struct head_pool {
    struct state_pool pool;
    uint32_t head, heads;
};

static void pick_heads(const struct op_kda *a, uint32_t slots, struct head_pool *p) {
    size_t square = (size_t)a->dim * a->dim, wide = (size_t)a->heads * a->dim;
    for (uint32_t s = 0; s < slots; s++) {
        const float *from =
            a->pool->data + s * a->pool->slot_floats + (size_t)a->layer * a->pool->layer_floats;
        float *to = p->pool.data + s * p->pool.slot_floats;
        memcpy(to, from + p->head * square, p->heads * square * sizeof *to);
        from += a->heads * square + (size_t)p->head * a->dim;
        to += p->heads * square;
        for (uint32_t i = 0; i < 3 * (a->taps - 1); i++)
            memcpy(to + (size_t)i * p->heads * a->dim, from + i * wide,
                   (size_t)p->heads * a->dim * sizeof *to);
    }
}

static struct op exact_heads(const struct op *op, const struct head_pool *p, struct tensor out) {
    struct op one = *op;
    one.kind = OP_KDA_DECODE;
    struct op_kda *a = &one.u.kda;
    size_t at = (size_t)p->head * a->dim;
    a->which = SEQ_ALL;
    a->q = moved(a->q, 0, at);
    a->k = moved(a->k, 0, at);
    a->v = moved(a->v, 0, at);
    a->z = moved(a->z, 0, at);
    a->go = moved(a->go, 0, at);
    a->b = moved(a->b, 0, p->head);
    a->out = out;
    a->q_taps += at * a->taps;
    a->k_taps += at * a->taps;
    a->v_taps += at * a->taps;
    a->ea += p->head;
    a->dt += at;
    a->heads = p->heads;
    a->pool = &p->pool;
    a->layer = 0;
    return one;
}

enum { MOST_SLICES = 3 };

static void check_kda(struct check *k, const struct column *column, void *scratch) {
    const struct kernel_case *c = &k->w->c;
    const struct op *op = &k->w->op[0];
    const struct op_kda *a = &op->u.kda;
    uint32_t rows = k->w->batch.n_rows, slots = k->w->batch.n_seqs;
    uint32_t heads = clamp(k->budget / (4.0 * rows * c->dim * c->dim), c->heads);
    size_t floats = (size_t)heads * c->dim * (c->dim + 3 * (a->taps - 1));
    struct head_pool p[MOST_SLICES] = {{{0}, 0, 0}};
    int n = slices(c->heads, heads);
    float *out = need(k, (size_t)rows * heads * c->dim * sizeof *out);
    float *after = need(k, slots * floats * sizeof *after);
    for (int i = 0; i < n; i++) {
        p[i] = (struct head_pool){{need(k, slots * floats * sizeof(float)), floats, floats},
                                  slice_at(c->heads, heads, i),
                                  heads};
        if (!k->no_memory)
            pick_heads(a, slots, &p[i]);
    }
    if (!k->no_memory)
        kernel_call(k->w, column, k->team, scratch, 0, 1);
    for (int i = 0; i < n && !k->no_memory; i++) {
        struct op one =
            exact_heads(op, &p[i], (struct tensor){out, heads * c->dim, heads * c->dim});
        run_exact(k, &one, &k->w->batch);
        for (uint32_t r = 0; r < rows; r++)
            compare(k, tensor_row(a->out, r) + (size_t)p[i].head * c->dim,
                    out + (size_t)r * heads * c->dim, (size_t)heads * c->dim);
        struct head_pool got = {{after, floats, floats}, p[i].head, heads};
        pick_heads(a, slots, &got);
        compare(k, after, p[i].pool.data, slots * floats);
    }
    for (int i = 0; i < n; i++)
        free(p[i].pool.data);
    free(out);
    free(after);
}

static void check_mla(struct check *k) {
    const struct kernel_case *c = &k->w->c;
    const struct op_mla *a = &k->w->op[0].u.mla;
    bool decode = c->family == KERNEL_MLA_DECODE;
    uint32_t tokens = decode ? 1 : clamp(4, c->n), heads = c->heads, sequences = decode ? c->n : 1;
    double one = (double)k->w->max_position * (2 * a->kv_lora + a->rope_dim) * tokens;
    heads = clamp(k->budget / one, c->heads);
    uint32_t key = a->nope_dim + a->rope_dim, per_head = a->nope_dim + a->v_dim;
    float *out = need(k, (size_t)tokens * heads * a->v_dim * sizeof *out);
    for (int i = 0; out && i < 3; i++) {
        const struct batch_seq *seq = &k->w->batch.seqs[slice_at(sequences, 1, i)];
        uint32_t h = slice_at(c->heads, heads, i), t = slice_at(seq->rows, tokens, i);
        struct op op = k->w->op[0];
        op.kind = OP_MLA_DECODE;
        struct op_mla *e = &op.u.mla;
        e->which = SEQ_ALL;
        e->q = moved(a->q, seq->row0 + t, (size_t)h * key);
        e->g = moved(a->g, seq->row0 + t, (size_t)h * a->v_dim);
        e->out = (struct tensor){out, heads * a->v_dim, heads * a->v_dim};
        e->kv_b = weight_rows(a->kv_b, (size_t)h * per_head, heads * per_head);
        e->heads = heads;
        struct batch_seq part = *seq;
        part.row0 = 0;
        part.rows = tokens;
        part.pos0 = seq->pos0 + t;
        run_exact(k, &op, &(struct batch){.n_rows = tokens, .n_seqs = 1, .seqs = &part});
        for (uint32_t j = 0; j < tokens; j++)
            compare(k, tensor_row(a->out, seq->row0 + t + j) + (size_t)h * a->v_dim,
                    out + (size_t)j * heads * a->v_dim, (size_t)heads * a->v_dim);
    }
    free(out);
}

static void check_mla_write(struct check *k) {
    const struct op_mla_write *a = &k->w->op[0].u.mla_write;
    size_t size = a->pool->dtype == DTYPE_F32 ? 4 : 2, width = a->pool->width;
    const struct batch *b = &k->w->batch;
    uint32_t pages = (b->n_rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    struct kv_pool own = {need(k, pages * PAGE_TOKENS * width * size), a->pool->dtype,
                          PAGE_TOKENS * width * size, a->pool->width};
    float *both = need(k, 2 * width * sizeof *both);
    if (own.data && both) {
        struct op op = k->w->op[0];
        op.u.mla_write.pool = &own;
        op.u.mla_write.layer = 0;
        run_exact(k, &op, b);
        for (uint32_t t = 0; t < b->n_rows; t++) {
            size_t page = (size_t)b->seqs[0].pages[t / PAGE_TOKENS], at = t % PAGE_TOKENS;
            const unsigned char *got =
                a->pool->data + page * a->pool->page_bytes + at * width * size;
            const unsigned char *want = own.data + page * own.page_bytes + at * width * size;
            for (size_t c = 0; c < width; c++) {
                uint16_t h[2];
                if (size == 4) {
                    memcpy(&both[c], got + 4 * c, 4);
                    memcpy(&both[width + c], want + 4 * c, 4);
                    continue;
                }
                memcpy(&h[0], got + 2 * c, 2);
                memcpy(&h[1], want + 2 * c, 2);
                /* Sums in another order may round a value to its neighbour: that is no error. */
                both[c] = bf16_to_f32(h[0]);
                both[width + c] = abs(h[0] - h[1]) <= 1 ? both[c] : bf16_to_f32(h[1]);
            }
            compare(k, both, both + width, width);
        }
    }
    free(own.data);
    free(both);
}

/* ------------------------------------------------------------------------------------ the rest */

static void check_mix_norm(struct check *k, const struct column *column, void *scratch) {
    const struct kernel_case *c = &k->w->c;
    const struct op_mix_norm *a = &k->w->op[0].u.mix_norm;
    float *prefix = need(k, (size_t)c->n * c->out * sizeof *prefix);
    float *out = need(k, (size_t)c->n * c->out * sizeof *out);
    if (prefix && out) {
        for (uint32_t r = 0; r < c->n; r++)
            memcpy(prefix + (size_t)r * c->out, tensor_row(a->prefix, r), c->out * sizeof *prefix);
        kernel_call(k->w, column, k->team, scratch, 0, 1);
        struct op op = k->w->op[0];
        op.u.mix_norm.prefix = (struct tensor){prefix, c->out, c->out};
        op.u.mix_norm.out = (struct tensor){out, c->out, c->out};
        op.u.mix_norm.round_prefix = column->round_prefix;
        run_exact(k, &op, &k->w->batch);
        for (uint32_t r = 0; r < c->n; r++) {
            compare(k, tensor_row(a->out, r), out + (size_t)r * c->out, c->out);
            compare(k, tensor_row(a->prefix, r), prefix + (size_t)r * c->out, c->out);
        }
    }
    free(prefix);
    free(out);
}

/* Operations whose rows stand alone and that change nothing in place. */
static void check_rows(struct check *k) {
    const struct kernel_case *c = &k->w->c;
    struct op op = k->w->op[0];
    struct tensor got = {0};
    float *y = need(k, (size_t)c->n * c->out * sizeof *y);
    struct tensor own = {y, c->out, c->out};
    if (op.kind == OP_NORM) {
        got = op.u.norm.y;
        op.u.norm.y = own;
    } else if (op.kind == OP_GLU) {
        got = op.u.glu.y;
        op.u.glu.y = own;
    } else {
        got = op.u.embed.out;
        op.u.embed.out = own;
    }
    if (y) {
        run_exact(k, &op, &k->w->batch);
        for (uint32_t r = 0; r < c->n; r++)
            compare(k, tensor_row(got, r), y + (size_t)r * c->out, c->out);
    }
    free(y);
}

static void check_route(struct check *k) {
    const struct kernel_case *c = &k->w->c;
    struct op op = k->w->op[0];
    const struct op_route *a = &k->w->op[0].u.route;
    size_t n = (size_t)c->n * c->top_k;
    int32_t *ids = op.u.route.ids = need(k, n * sizeof *ids);
    float *weights = op.u.route.weights = need(k, n * sizeof *weights);
    if (ids && weights) {
        run_exact(k, &op, &k->w->batch);
        for (size_t i = 0; i < n; i++)
            k->wrong += ids[i] != a->ids[i];
        compare(k, a->weights, weights, n);
    }
    free(ids);
    free(weights);
}

weir_status kernel_check(struct kernel_work *w, const struct column *column, struct team *team,
                         double budget, struct kernel_error *out, weir_error *err) {
    struct check k = {.w = w, .team = team, .budget = budget};
    size_t bytes = kernel_scratch_bytes(w, column, team_threads(team));
    void *scratch = bytes ? aligned_alloc(4096, bytes) : NULL;
    if (bytes && !scratch)
        return weir_fail(err, WEIR_NO_MEMORY, w->c.name, "no memory for scratch");
    bool in_place = w->c.family == KERNEL_KDA_STEP || w->c.family == KERNEL_KDA_PREFILL ||
                    w->c.family == KERNEL_KDA_TOKENS || w->c.family == KERNEL_MIX_NORM;
    if (!in_place)
        kernel_call(w, column, team, scratch, 0, 1);
    switch (w->c.family) {
    case KERNEL_LINEAR: check_linear(&k); break;
    case KERNEL_EXPERTS_UP:
    case KERNEL_EXPERTS_DOWN: check_experts(&k); break;
    case KERNEL_KDA_STEP:
    case KERNEL_KDA_PREFILL:
    case KERNEL_KDA_TOKENS: check_kda(&k, column, scratch); break;
    case KERNEL_MLA_DECODE:
    case KERNEL_MLA_PREFILL: check_mla(&k); break;
    case KERNEL_MLA_WRITE: check_mla_write(&k); break;
    case KERNEL_MIX_NORM: check_mix_norm(&k, column, scratch); break;
    case KERNEL_NORM:
    case KERNEL_GLU:
    case KERNEL_EMBED: check_rows(&k); break;
    case KERNEL_ROUTE: check_route(&k); break;
    }
    free(scratch);
    if (k.no_memory)
        return weir_fail(err, WEIR_NO_MEMORY, w->c.name, "no memory to compare with ops/ref");
    double rms = sqrt(k.square / (double)(k.values ? k.values : 1));
    rms = rms > 1e-30 ? rms : 1e-30;
    *out = (struct kernel_error){sqrt(k.error_square / (double)(k.values ? k.values : 1)) / rms,
                                 k.largest / rms, k.values, k.wrong};
    return WEIR_OK;
}

bool kernel_error_within(const struct kernel_error *e, const struct kernel_limit *limit) {
    return e->values > 0 && e->wrong == 0 && e->rms <= limit->rms && e->largest <= limit->largest;
}
