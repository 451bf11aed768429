/* experts.c: the routed experts. Called through the columns of this folder.
 * Rows are grouped by expert, so that an expert's packed weights are decoded once for all rows that
 * chose it. Every member forms the same groups in its own scratch: cheaper than a barrier.
 * Invariant that bites: the sum over a row's experts runs in the order they were chosen, whatever
 * the grouping, so each expert's output is kept apart (`each`) until all are there. */
#include "ops/cpu/kernels.h"

enum {
    TAKE_X = 48, /* rows of one expert at a time; what one widening of dot.c serves */
    TAKE_ROWS = 64
};

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

struct up_scratch {
    void *blocks;
    float *up; /* [TAKE_X][TAKE_ROWS] */
};

/* Rows [o0, o1) of one expert's hidden vector for the rows that chose it; w: its w1 and w3. */
static void expert_up(const struct op_experts *a, const struct weight *const w[2],
                      const struct groups *g, uint32_t i, uint32_t o0, uint32_t o1,
                      struct up_scratch s) {
    struct mat w1 = mat_of(w[0]), w3 = mat_of(w[1]);
    for (uint32_t p = g->begin[i]; p < g->begin[i + 1]; p += TAKE_X) {
        uint32_t n = g->begin[i + 1] - p < TAKE_X ? g->begin[i + 1] - p : TAKE_X;
        const float *x[TAKE_X];
        float *gate[TAKE_X], *up[TAKE_X];
        for (uint32_t j = 0; j < n; j++) {
            x[j] = tensor_row(a->z, g->pair[p + j] / a->top_k);
            gate[j] = tensor_row(a->h, g->pair[p + j]);
        }
        for (uint32_t o = o0; o < o1; o += TAKE_ROWS) {
            uint32_t rows = o1 - o < TAKE_ROWS ? o1 - o : TAKE_ROWS;
            struct mat part = mat_from(w3, o);
            for (uint32_t j = 0; j < n; j++)
                up[j] = s.up + (size_t)j * TAKE_ROWS;
            cpu_dot(&w1, o, o + rows, x, gate, n, false, s.blocks);
            cpu_dot(&part, 0, rows, x, up, n, false, s.blocks);
            for (uint32_t j = 0; j < n; j++)
                cpu_glu_row(a->act, gate[j] + o, up[j], gate[j] + o, rows);
        }
    }
}

/* All members on one expert at a time: one that is being read keeps nobody from those before it,
 * and memory need not hold more than a few. */
static void up_from_source(const struct op_experts *a, uint32_t n_rows, struct work work,
                           const struct groups *g, struct up_scratch s) {
    uint32_t inter = a->w1[0].rows;
    struct span octets = work_span(work, (inter + 7) / 8);
    uint32_t o0 = octets.begin * 8, o1 = octets.end * 8 < inter ? octets.end * 8 : inter;
    const uint32_t *order =
        a->source->begin(a->source->self, a, EXPERT_UP, g->expert, g->active, n_rows, work);
    for (uint32_t k = 0; k < g->active; k++) {
        uint32_t i = order[k];
        const struct weight *w[2];
        if (o0 < o1 && expert_acquire(a, EXPERT_UP, g->expert[i], w))
            expert_up(a, w, g, i, o0, o1, s);
        expert_release(a, EXPERT_UP, g->expert[i]);
    }
}

void cpu_experts_up(const struct op_experts *a, const struct batch *b, struct work work) {
    unsigned char *at = work.scratch;
    struct up_scratch s = {carve(&at, cpu_dot_scratch_bytes()),
                           carve(&at, TAKE_X * TAKE_ROWS * sizeof(float))};
    struct groups g = group(a, b->n_rows, &at);
    if (a->source) {
        up_from_source(a, b->n_rows, work, &g, s);
        return;
    }
    uint32_t inter = a->w1[0].rows, octets = (inter + 7) / 8;
    /* Shares count activations too: an expert chosen by many rows is that much more work. */
    uint64_t total = (uint64_t)b->n_rows * a->top_k * octets, begin = 0;
    uint64_t lo = total * work.index / work.count, hi = total * (work.index + 1) / work.count;
    for (uint32_t i = 0; i < g.active && begin < hi; i++) {
        uint64_t n = g.begin[i + 1] - g.begin[i], end = begin + n * octets;
        /* An octet belongs to the member in whose share it begins. */
        uint64_t o0 = lo > begin ? (lo - begin + n - 1) / n : 0;
        uint64_t o1 = hi < end ? (hi - begin + n - 1) / n : octets;
        const struct weight *w[2];
        if (o0 < o1 && expert_acquire(a, EXPERT_UP, g.expert[i], w))
            expert_up(a, w, &g, i, (uint32_t)o0 * 8,
                      (uint32_t)o1 * 8 < inter ? (uint32_t)o1 * 8 : inter, s);
        begin = end;
    }
}

static void expert_down(const struct op_experts *a, const struct weight *w, const struct groups *g,
                        uint32_t i, uint32_t o0, uint32_t o1, void *blocks) {
    struct mat w2 = mat_of(w);
    for (uint32_t p = g->begin[i]; p < g->begin[i + 1]; p += TAKE_X) {
        uint32_t n = g->begin[i + 1] - p < TAKE_X ? g->begin[i + 1] - p : TAKE_X;
        const float *x[TAKE_X];
        float *y[TAKE_X];
        for (uint32_t j = 0; j < n; j++) {
            x[j] = tensor_row(a->h, g->pair[p + j]);
            y[j] = tensor_row(a->each, g->pair[p + j]);
        }
        cpu_dot(&w2, o0, o1, x, y, n, false, blocks);
    }
}

void cpu_experts_down(const struct op_experts *a, const struct batch *b, struct work work) {
    unsigned char *at = work.scratch;
    void *blocks = carve(&at, cpu_dot_scratch_bytes());
    struct groups g = group(a, b->n_rows, &at);
    uint32_t width = a->w2[0].rows;
    struct span s = work_span(work, (width + 7) / 8);
    uint32_t o0 = s.begin * 8, o1 = s.end * 8 < width ? s.end * 8 : width;
    const uint32_t *order = NULL; /* as they come */
    if (a->source)
        order =
            a->source->begin(a->source->self, a, EXPERT_DOWN, g.expert, g.active, b->n_rows, work);
    for (uint32_t k = 0; k < g.active; k++) {
        uint32_t i = order ? order[k] : k;
        const struct weight *w[2];
        if (o0 < o1 && expert_acquire(a, EXPERT_DOWN, g.expert[i], w))
            expert_down(a, w[0], &g, i, o0, o1, blocks);
        expert_release(a, EXPERT_DOWN, g.expert[i]);
    }
    if (o0 >= o1)
        return;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const float *weight = a->weights + (size_t)r * a->top_k;
        float *out = tensor_row(a->out, r);
        for (uint32_t o = o0; o < o1; o += VL) {
            vm part = vmask(o1 - o);
            vf sum = vset(0);
            for (uint32_t j = 0; j < a->top_k; j++)
                sum = vfma(vset(weight[j]),
                           vloadm(tensor_row(a->each, (size_t)r * a->top_k + j) + o, part), sum);
            vstorem(out + o, part, sum);
        }
    }
}

size_t cpu_experts_scratch(const struct op_experts *a, uint32_t max_rows) {
    size_t pairs = (size_t)max_rows * a->top_k;
    return cpu_dot_scratch_bytes() + TAKE_X * TAKE_ROWS * sizeof(float) +
           (3 * pairs + 2 * (size_t)a->experts + 2) * sizeof(uint32_t) + 8 * 64;
}
