/* experts.c: the routed experts. Called through the columns of this folder.
 * Rows are grouped by expert, so that an expert's packed weights are decoded once for all rows that
 * chose it. Every member forms the same groups in its own scratch: cheaper than a barrier.
 * Invariant that bites: the sum over a row's experts runs in the order they were chosen, whatever
 * the grouping, so each expert's output is kept apart (`each`) until all are there. */
#include "ops/cpu/product.h"

enum { TAKE_X = 128 }; /* rows of one expert at a time */

/* Pairs (row, choice), numbered row*top_k + choice, in order of their expert. */
struct groups {
    uint32_t *pair;
    uint32_t *expert; /* [active] */
    uint32_t *begin;  /* [active + 1] into pair */
    uint32_t active;
};

static struct groups group(const struct op_experts *a, uint32_t n_rows, unsigned char **at) {
    uint32_t pairs = n_rows * a->top_k, most = pairs < a->experts ? pairs : a->experts;
    struct groups g = {carve(at, pairs * sizeof(uint32_t)), carve(at, most * sizeof(uint32_t)),
                       carve(at, (most + 1) * sizeof(uint32_t)), 0};
    if (n_rows == 1) { /* a row's choices are different experts */
        for (uint32_t j = 0; j < pairs; j++) {
            g.pair[j] = g.begin[j] = j;
            g.expert[j] = (uint32_t)a->ids[j];
        }
        g.begin[pairs] = pairs;
        g.active = pairs;
        return g;
    }
    uint32_t *next = carve(at, a->experts * sizeof(uint32_t));
    memset(next, 0, a->experts * sizeof *next);
    for (uint32_t i = 0; i < pairs; i++)
        next[a->ids[i]]++;
    uint32_t sum = 0;
    for (uint32_t e = 0; e < a->experts; e++) {
        uint32_t count = next[e];
        next[e] = sum;
        if (count) {
            g.expert[g.active] = e;
            g.begin[g.active++] = sum;
            sum += count;
        }
    }
    g.begin[g.active] = sum;
    for (uint32_t i = 0; i < pairs; i++)
        g.pair[next[a->ids[i]]++] = i;
    return g;
}

/* Rows that chose one expert while it is worked on, and the scratch for them. */
struct taken {
    uint32_t n;
    const float *x[TAKE_X];
    float *y[TAKE_X], *up[TAKE_X];
    void *dot;              /* of the stored form */
    unsigned char *acts;    /* of packed ones */
    const float *made_from; /* a single row, in form: every expert it chose reads it */
    struct acts made;
    const struct cpu_variant *how;
    float *up_rows; /* [TAKE_X][PANEL_ROWS] */
};

static struct taken *take_scratch(unsigned char **at, const struct cpu_variant *how) {
    struct taken *t = carve(at, sizeof *t);
    t->dot = carve(at, cpu_dot_scratch_bytes());
    t->up_rows = carve(at, TAKE_X * PANEL_ROWS * sizeof(float));
    t->made_from = NULL;
    t->how = how;
    return t;
}

static void bring_into_form(struct taken *t, const struct weight *w, enum activation mode) {
    if (w->packing == PACK_NONE || (t->n == 1 && t->made_from == t->x[0]))
        return;
    unsigned char *at = t->acts;
    cpu_acts_make(&t->made, w->packing, mode, t->x, t->n, w->cols, &at);
    t->made.how = t->how;
    t->made_from = t->n == 1 ? t->x[0] : NULL;
}

/* y = rows [o0, o1) of w times the rows taken. */
static void multiply(struct taken *t, const struct weight *w, uint32_t o0, uint32_t o1,
                     float *const *y, const unsigned char *next) {
    if (w->packing == PACK_NONE) {
        struct mat m = mat_of(w);
        cpu_dot(&m, o0, o1, t->x, y, t->n, false, t->dot);
    } else {
        t->made.next = next;
        cpu_product_run(w, &t->made, o0 / PANEL_LANES, (o1 + PANEL_LANES - 1) / PANEL_LANES, y,
                        false);
    }
}

/* The weight from row `row` on, a multiple of PANEL_ROWS. */
static struct weight weight_from(const struct weight *w, uint32_t row) {
    struct weight part = *w;
    part.rows -= row;
    if (w->packing == PACK_NONE) {
        struct mat m = mat_from(mat_of(w), row);
        part.data = m.data;
        part.scale = m.scale;
    } else {
        part.packed = product_panel(w, row / PANEL_LANES);
    }
    return part;
}

/* Rows [o0, o1) of one expert's hidden vectors for the rows taken, a panel at a time: the gate of
 * it is still in the cache when the activation is applied. w: its w1 and w3. */
static void expert_up_taken(const struct op_experts *a, struct taken *t,
                            const struct weight *const w[2], uint32_t o0, uint32_t o1,
                            const unsigned char *next, enum activation mode) {
    bring_into_form(t, w[0], mode);
    for (uint32_t o = o0; o < o1;) {
        uint32_t panel = o / PANEL_ROWS * PANEL_ROWS;
        uint32_t end = panel + PANEL_ROWS < o1 ? panel + PANEL_ROWS : o1;
        struct weight part = weight_from(w[1], panel);
        for (uint32_t j = 0; j < t->n; j++)
            t->up[j] = t->up_rows + (size_t)j * PANEL_ROWS;
        multiply(t, w[0], o, end, t->y, product_place(w[1], o));
        multiply(t, &part, o - panel, end - panel, t->up,
                 end < o1 ? product_place(w[0], end) : next);
        for (uint32_t j = 0; j < t->n; j++)
            cpu_glu_row(a->act, t->y[j] + o, t->up[j] + (o - panel), t->y[j] + o, end - o);
        o = end;
    }
}

/* The same for all rows that chose expert i of the groups. */
static void expert_up(const struct op_experts *a, struct taken *t, const struct weight *const w[2],
                      const struct groups *g, uint32_t i, uint32_t o0, uint32_t o1,
                      const unsigned char *next, enum activation mode) {
    for (uint32_t p = g->begin[i]; p < g->begin[i + 1]; p += TAKE_X) {
        t->n = g->begin[i + 1] - p < TAKE_X ? g->begin[i + 1] - p : TAKE_X;
        for (uint32_t j = 0; j < t->n; j++) {
            t->x[j] = tensor_row(a->z, g->pair[p + j] / a->top_k);
            t->y[j] = tensor_row(a->h, g->pair[p + j]);
        }
        expert_up_taken(a, t, w, o0, o1, next, mode);
    }
}

/* Rows of this member where all are on one expert at a time. */
static struct span share_of_rows(struct work work, const struct weight *w) {
    struct span s = work_span(work, product_chunks(w));
    uint32_t end = s.end * PANEL_LANES;
    return (struct span){s.begin * PANEL_LANES, end < w->rows ? end : w->rows};
}

/* All members on one expert at a time: one that is being read keeps nobody from those before it,
 * and memory need not hold more than a few. */
static void up_from_source(const struct op_experts *a, uint32_t n_rows, struct work work,
                           const struct groups *g, struct taken *t, enum activation mode) {
    struct span o = share_of_rows(work, &a->w1[0]);
    const uint32_t *order =
        a->source->begin(a->source->self, a, EXPERT_UP, g->expert, g->active, n_rows, work);
    for (uint32_t k = 0; k < g->active; k++) {
        uint32_t i = order[k];
        const struct weight *w[2];
        if (o.begin < o.end && expert_acquire(a, EXPERT_UP, g->expert[i], w))
            expert_up(a, t, w, g, i, o.begin, o.end, NULL, mode);
        expert_release(a, EXPERT_UP, g->expert[i]);
    }
}

static void experts_up(const struct op_experts *a, const struct batch *b, struct work work,
                       enum activation mode) {
    unsigned char *at = work.scratch;
    struct taken *t = take_scratch(&at, variant_of(&work));
    struct groups g = group(a, b->n_rows, &at);
    t->acts = at;
    if (a->source) {
        up_from_source(a, b->n_rows, work, &g, t, mode);
        return;
    }
    uint32_t inter = a->w1[0].rows, chunks = product_chunks(&a->w1[0]);
    uint32_t grain = product_grain(&a->w1[0], g.active * chunks, work.count, t->how);
    /* Shares count activations too: an expert chosen by many rows is that much more work. */
    uint32_t units = b->n_rows * a->top_k * chunks;
    for (struct span s; work_next(&work, units, &s);) {
        uint64_t begin = 0;
        for (uint32_t i = 0; i < g.active && begin < s.end; i++) {
            uint64_t n = g.begin[i + 1] - g.begin[i], end = begin + n * chunks;
            /* Chunks that go together belong to the range in which the first begins. */
            uint64_t part = n * grain;
            uint64_t c0 = s.begin > begin ? (s.begin - begin + part - 1) / part * grain : 0;
            uint64_t c1 = s.end < end ? (s.end - begin + part - 1) / part * grain : chunks;
            c1 = c1 < chunks ? c1 : chunks;
            begin = end;
            const struct weight *w[2];
            if (c0 >= c1 || !expert_acquire(a, EXPERT_UP, g.expert[i], w))
                continue;
            uint32_t o1 = (uint32_t)c1 * PANEL_LANES;
            const unsigned char *next =
                i + 1 < g.active ? product_place(&a->w1[g.expert[i + 1]], 0) : NULL;
            expert_up(a, t, w, &g, i, (uint32_t)c0 * PANEL_LANES, o1 < inter ? o1 : inter,
                      c1 == chunks ? next : product_place(w[0], o1), mode);
        }
    }
}

static void expert_down(const struct op_experts *a, struct taken *t, const struct weight *w,
                        const struct groups *g, uint32_t i, uint32_t o0, uint32_t o1,
                        const unsigned char *next, enum activation mode) {
    for (uint32_t p = g->begin[i]; p < g->begin[i + 1]; p += TAKE_X) {
        t->n = g->begin[i + 1] - p < TAKE_X ? g->begin[i + 1] - p : TAKE_X;
        for (uint32_t j = 0; j < t->n; j++) {
            t->x[j] = tensor_row(a->h, g->pair[p + j]);
            t->y[j] = tensor_row(a->each, g->pair[p + j]);
        }
        bring_into_form(t, w, mode);
        multiply(t, w, o0, o1, t->y, next);
    }
}

static void weighted_sum(const struct op_experts *a, uint32_t row, uint32_t o0, uint32_t o1) {
    const float *weight = a->weights + (size_t)row * a->top_k;
    float *out = tensor_row(a->out, row);
    for (uint32_t o = o0; o < o1; o += VL) {
        vm part = vmask(o1 - o);
        vf sum = vset(0);
        for (uint32_t j = 0; j < a->top_k; j++)
            sum = vfma(vset(weight[j]),
                       vloadm(tensor_row(a->each, (size_t)row * a->top_k + j) + o, part), sum);
        vstorem(out + o, part, sum);
    }
}

static void experts_down(const struct op_experts *a, const struct batch *b, struct work work,
                         enum activation mode) {
    unsigned char *at = work.scratch;
    struct taken *t = take_scratch(&at, variant_of(&work));
    struct groups g = group(a, b->n_rows, &at);
    t->acts = at;
    if (!a->source) {
        uint32_t width = a->w2[0].rows, chunks = product_chunks(&a->w2[0]);
        uint32_t unit = PANEL_LANES * product_grain(&a->w2[0], chunks, work.count, t->how);
        for (struct span s; work_next(&work, (width + unit - 1) / unit, &s);) {
            uint32_t o0 = s.begin * unit, o1 = s.end * unit;
            o1 = o1 < width ? o1 : width;
            for (uint32_t i = 0; i < g.active; i++) {
                const unsigned char *next = i + 1 < g.active
                                                ? product_place(&a->w2[g.expert[i + 1]], o0)
                                            : o1 < width ? product_place(&a->w2[g.expert[0]], o1)
                                                         : NULL;
                expert_down(a, t, &a->w2[g.expert[i]], &g, i, o0, o1, next, mode);
            }
            for (uint32_t r = 0; r < b->n_rows; r++)
                weighted_sum(a, r, o0, o1);
        }
        return;
    }
    struct span o = share_of_rows(work, &a->w2[0]);
    const uint32_t *order =
        a->source->begin(a->source->self, a, EXPERT_DOWN, g.expert, g.active, b->n_rows, work);
    for (uint32_t k = 0; k < g.active; k++) {
        uint32_t i = order[k];
        const struct weight *w[2];
        if (o.begin < o.end && expert_acquire(a, EXPERT_DOWN, g.expert[i], w))
            expert_down(a, t, w[0], &g, i, o.begin, o.end, NULL, mode);
        expert_release(a, EXPERT_DOWN, g.expert[i]);
    }
    for (uint32_t r = 0; o.begin < o.end && r < b->n_rows; r++)
        weighted_sum(a, r, o.begin, o.end);
}

void cpu_experts_up_f32(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_up(a, b, w, ACTIVATION_F32);
}
void cpu_experts_down_f32(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_down(a, b, w, ACTIVATION_F32);
}
void cpu_experts_up_bf16(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_up(a, b, w, ACTIVATION_BF16);
}
void cpu_experts_down_bf16(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_down(a, b, w, ACTIVATION_BF16);
}
void cpu_experts_up_int8(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_up(a, b, w, ACTIVATION_INT8);
}
void cpu_experts_down_int8(const struct op_experts *a, const struct batch *b, struct work w) {
    experts_down(a, b, w, ACTIVATION_INT8);
}

size_t cpu_experts_scratch(const struct op_experts *a, uint32_t max_rows) {
    size_t pairs = (size_t)max_rows * a->top_k;
    uint32_t cols = a->w1[0].cols > a->w2[0].cols ? a->w1[0].cols : a->w2[0].cols;
    uint32_t rows = pairs < TAKE_X ? (uint32_t)pairs : TAKE_X;
    return cpu_dot_scratch_bytes() + sizeof(struct taken) + TAKE_X * PANEL_ROWS * sizeof(float) +
           acts_bytes(cols, rows) + (3 * pairs + 2 * (size_t)a->experts + 2) * sizeof(uint32_t) +
           12 * 64;
}
