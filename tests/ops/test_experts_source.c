/* Experts that come from a source one at a time give the bits of experts in memory, in every
 * column; and the operations keep the rules a source relies on: one begin, the order it gave, one
 * release of every expert by every member, no use of a weight before or after. */
#include "ops_case.h"

#include <pthread.h>

enum { MOST_EXPERTS = 9, MOST_MEMBERS = 4 };

/* Holds copies of the weights only from the first acquire until all have released; the record of
 * the operation has none. */
struct giver {
    struct expert_source source;
    pthread_mutex_t lock;
    struct dice dice;
    const struct weight *all[3]; /* w1, w2, w3 */
    uint32_t members, begun, n, active[MOST_EXPERTS], order[MOST_EXPERTS];
    uint32_t at[MOST_MEMBERS]; /* experts a member has passed; by the order of its calls */
    struct weight copy[MOST_EXPERTS][2];
    uint32_t left[MOST_EXPERTS];
    int32_t missing; /* this expert cannot be read; -1: all can */
};

static _Thread_local uint32_t self_index;

static const uint32_t *giver_begin(void *self, const struct op_experts *a, enum expert_part part,
                                   const uint32_t *experts, uint32_t n, uint32_t n_rows,
                                   struct work w) {
    struct giver *g = self;
    self_index = w.index;
    pthread_mutex_lock(&g->lock);
    assert_int_equal(w.count, g->members);
    assert_null(a->w1[0].data); /* the shapes alone */
    if (g->begun++ == 0) {
        g->n = n;
        for (uint32_t i = 0; i < n; i++) {
            g->active[i] = experts[i];
            g->left[experts[i]] = g->members;
            g->order[i] = i;
        }
        for (uint32_t i = n; i > 1; i--) {
            uint32_t k = dice_below(&g->dice, i), t = g->order[k];
            g->order[k] = g->order[i - 1];
            g->order[i - 1] = t;
        }
    }
    assert_int_equal(n, g->n);
    assert_memory_equal(experts, g->active, n * sizeof *experts);
    pthread_mutex_unlock(&g->lock);
    return g->order;
}

static struct weight copied(const struct weight *w) {
    size_t n = (size_t)w->rows * w->cols;
    struct weight c = *w;
    size_t bytes = w->dtype == DTYPE_F32 ? 4 * n : w->dtype == DTYPE_BF16 ? 2 * n : n / 2;
    c.data = memcpy(malloc(bytes), w->data, bytes);
    if (w->scale)
        c.scale = memcpy(malloc(n / 32), w->scale, n / 32);
    return c;
}

static bool giver_acquire(void *self, const struct op_experts *a, enum expert_part part,
                          uint32_t expert, const struct weight *w[2]) {
    struct giver *g = self;
    pthread_mutex_lock(&g->lock);
    assert_int_equal(expert, g->active[g->order[g->at[self_index]]]);
    bool there = (int32_t)expert != g->missing;
    for (int i = 0; i < 2 && there; i++) {
        const struct weight *from = part == EXPERT_UP ? &g->all[2 * i][expert]
                                    : i == 0          ? &g->all[1][expert]
                                                      : NULL;
        if (from && !g->copy[expert][i].data)
            g->copy[expert][i] = copied(from);
        w[i] = &g->copy[expert][i];
    }
    pthread_mutex_unlock(&g->lock);
    return there;
}

static void giver_release(void *self, const struct op_experts *a, enum expert_part part,
                          uint32_t expert) {
    struct giver *g = self;
    pthread_mutex_lock(&g->lock);
    assert_int_equal(expert, g->active[g->order[g->at[self_index]++]]);
    assert_true(g->left[expert] > 0);
    for (int i = 0; i < 2 && g->left[expert] == 1; i++) {
        free((void *)(uintptr_t)g->copy[expert][i].data);
        free((void *)(uintptr_t)g->copy[expert][i].scale);
        g->copy[expert][i] = (struct weight){0};
    }
    g->left[expert]--;
    pthread_mutex_unlock(&g->lock);
}

struct experts_case {
    struct heap heap;
    struct dice dice;
    struct test_batch t;
    struct op op;
    struct weight *w[3];
    size_t floats; /* of what it leaves */
};

static void make(struct experts_case *c, uint64_t seed, enum op_kind kind, enum dtype f,
                 uint32_t rows, uint32_t experts, uint32_t top_k) {
    uint32_t width = 96, inter = f == DTYPE_MXFP4 ? 64 : 20;
    memset(c, 0, sizeof *c);
    c->dice.seed = seed;
    make_batch(&c->t, &c->heap, &(struct seq_shape){0, rows}, 1, false);
    for (int i = 0; i < 3; i++) {
        c->w[i] = heap_take(&c->heap, experts * sizeof(struct weight));
        for (uint32_t e = 0; e < experts; e++)
            c->w[i][e] = random_weight(&c->heap, &c->dice, f, i == 1 ? width : inter,
                                       i == 1 ? inter : width);
    }
    int32_t *ids = heap_take(&c->heap, (size_t)rows * top_k * sizeof *ids);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < top_k; j++)
            ids[r * top_k + j] = (int32_t)((dice_below(&c->dice, 2) + r + 2 * j) % experts);
    c->op.kind = kind;
    struct op_experts *op = &c->op.u.experts;
    *op =
        (struct op_experts){.w1 = c->w[0],
                            .w2 = c->w[1],
                            .w3 = c->w[2],
                            .ids = ids,
                            .weights = random_vector(&c->heap, &c->dice, rows * top_k, 0.2f, 0.4f),
                            .experts = experts,
                            .top_k = top_k,
                            .act = {true, 4, 25}};
    op->z = random_tensor(&c->heap, &c->dice, rows, width, 1);
    op->h = random_tensor(&c->heap, &c->dice, rows * top_k, inter, 1);
    op->out = new_tensor(&c->heap, rows, width);
    op->each = new_tensor(&c->heap, rows * top_k, width);
    c->floats =
        kind == OP_EXPERTS_UP ? (size_t)rows * top_k * op->h.stride : (size_t)rows * op->out.stride;
}

static float *output(struct experts_case *c) {
    return c->op.kind == OP_EXPERTS_UP ? c->op.u.experts.h.data : c->op.u.experts.out.data;
}

static void run_from(struct experts_case *c, struct giver *g, const struct column *column,
                     uint32_t threads, uint64_t seed) {
    static struct weight shapes[3][MOST_EXPERTS];
    struct op op = c->op;
    *g = (struct giver){.source = {g, giver_begin, giver_acquire, giver_release},
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .dice = {.seed = seed},
                        .all = {c->w[0], c->w[1], c->w[2]},
                        .members = threads,
                        .missing = g->missing};
    for (int i = 0; i < 3; i++)
        for (uint32_t e = 0; e < op.u.experts.experts; e++) {
            shapes[i][e] = c->w[i][e];
            shapes[i][e].data = NULL;
            shapes[i][e].scale = NULL;
        }
    op.u.experts.w1 = shapes[0];
    op.u.experts.w2 = shapes[1];
    op.u.experts.w3 = shapes[2];
    op.u.experts.source = &g->source;
    run_op(column, &op, &c->t.b, c->t.longest, threads);
    assert_int_equal(g->begun, threads);
    for (uint32_t m = 0; m < threads; m++)
        assert_int_equal(g->at[m], g->n);
    for (uint32_t i = 0; i < g->n; i++)
        assert_int_equal(g->left[g->active[i]], 0);
}

static uint32_t all_columns(const struct column *out[1 + CPU_COLUMNS]) {
    out[0] = &column_ref;
    return 1 + fast_columns(out + 1);
}

static void experts_from_a_source_give_the_bits_of_experts_in_memory(void **state) {
    static const uint32_t rows[] = {1, 2, 7, 60};
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_MXFP4};
    const struct column *columns[1 + CPU_COLUMNS];
    uint32_t n = all_columns(columns);
    for (uint64_t seed = 0; seed < 4 * 3 * 2; seed++)
        for (uint32_t k = 0; k < n; k++) {
            struct experts_case c;
            make(&c, seed, seed % 2 ? OP_EXPERTS_UP : OP_EXPERTS_DOWN, formats[seed / 2 % 3],
                 rows[seed / 6], MOST_EXPERTS, 4);
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
            float *want = malloc(c.floats * sizeof *want);
            memcpy(want, output(&c), c.floats * sizeof *want);
            for (uint32_t threads = 1; threads <= MOST_MEMBERS; threads++) {
                struct giver g = {.missing = -1};
                for (size_t i = 0; i < c.floats; i++)
                    output(&c)[i] = want[i] == SENTINEL ? SENTINEL : 0;
                run_from(&c, &g, columns[k], threads, seed);
                if (memcmp(want, output(&c), c.floats * sizeof *want) != 0)
                    fail_msg("seed %llu, %s, %u threads: other bits", (unsigned long long)seed,
                             columns[k]->name, threads);
            }
            free(want);
            heap_free(&c.heap);
        }
}

/* What cannot be read is passed over, and everybody comes to the end. */
static void an_expert_that_cannot_be_read_is_passed_by_all(void **state) {
    const struct column *columns[1 + CPU_COLUMNS];
    uint32_t n = all_columns(columns);
    for (uint32_t k = 0; k < n; k++)
        for (int kind = OP_EXPERTS_UP; kind <= OP_EXPERTS_DOWN; kind++) {
            struct experts_case c;
            struct giver g = {.missing = 2};
            make(&c, 5, (enum op_kind)kind, DTYPE_MXFP4, 7, MOST_EXPERTS, 4);
            run_from(&c, &g, columns[k], 3, 5);
            heap_free(&c.heap);
        }
}

/* Fewer blocks of rows than members: some have no share and must pass all the same. */
static void a_member_without_a_share_passes_too(void **state) {
    const struct column *columns[1 + CPU_COLUMNS];
    uint32_t n = all_columns(columns);
    for (uint32_t k = 0; k < n; k++)
        for (int kind = OP_EXPERTS_UP; kind <= OP_EXPERTS_DOWN; kind++) {
            struct experts_case c;
            struct giver g = {.missing = -1};
            make(&c, 6, (enum op_kind)kind, DTYPE_F32, 1, 4, 2);
            run_from(&c, &g, columns[k], 4, 6);
            heap_free(&c.heap);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_from_a_source_give_the_bits_of_experts_in_memory),
        cmocka_unit_test(an_expert_that_cannot_be_read_is_passed_by_all),
        cmocka_unit_test(a_member_without_a_share_passes_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
