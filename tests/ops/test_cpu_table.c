/* Every operation of every fast column against the exact one: many shapes, formats and batches, one
 * to three threads. Tolerances are largest error over root mean square of the exact result, and
 * allow only for another order of f32 sums and a few units in the last place of exp. */
#include "ops_case.h"

#include "ops/kv.h"
#include "ops/ref/ref.h"

/* What an operation leaves behind. */
struct view {
    float *data;
    size_t rows, cols, stride;
};
enum { MAX_VIEWS = 8 };
struct ops_case {
    char name[160];
    struct heap heap;
    struct dice dice;
    struct op op;
    struct test_batch t;
    struct view view[MAX_VIEWS];
    int views;
    struct {
        int32_t *data;
        size_t n;
    } ids; /* must be equal */
    struct tensor gaps[MAX_VIEWS];
    uint32_t gap_rows[MAX_VIEWS];
    int n_gaps;
    double tolerance;
};

static void case_open(struct ops_case *c, double tolerance, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->dice.seed = seed;
    c->tolerance = tolerance;
}

static void add_view(struct ops_case *c, float *data, size_t rows, size_t cols, size_t stride) {
    c->view[c->views++] = (struct view){data, rows, cols, stride};
}
static void add_output(struct ops_case *c, struct tensor t, uint32_t rows) {
    add_view(c, t.data, rows, t.cols, t.stride);
    c->gaps[c->n_gaps] = t;
    c->gap_rows[c->n_gaps++] = rows;
}

static size_t view_floats(const struct ops_case *c) {
    size_t n = 0;
    for (int i = 0; i < c->views; i++)
        n += c->view[i].rows * c->view[i].cols;
    return n;
}
static float *read_views(const struct ops_case *c) {
    float *out = malloc((view_floats(c) + 1) * sizeof(float)), *to = out;
    for (int i = 0; i < c->views; i++)
        for (size_t r = 0; r < c->view[i].rows; r++, to += c->view[i].cols)
            memcpy(to, c->view[i].data + r * c->view[i].stride, c->view[i].cols * sizeof(float));
    return out;
}

static unsigned char *heap_save(const struct heap *h) {
    size_t n = 0;
    for (int i = 0; i < h->n; i++)
        n += h->bytes[i];
    unsigned char *copy = malloc(n + 1), *to = copy;
    for (int i = 0; i < h->n; i++, to += h->bytes[i - 1])
        memcpy(to, h->piece[i], h->bytes[i]);
    return copy;
}
static void heap_load(struct heap *h, const unsigned char *copy) {
    for (int i = 0; i < h->n; copy += h->bytes[i], i++)
        memcpy(h->piece[i], copy, h->bytes[i]);
}

static double largest_seen;

static void compare(const struct ops_case *c, const float *want, const float *got,
                    const char *column, uint32_t threads) {
    for (int i = 0; i < c->views; i++) {
        size_t n = c->view[i].rows * c->view[i].cols;
        double e = difference(got, want, n);
        largest_seen = e > largest_seen ? e : largest_seen;
        if (!(e <= c->tolerance))
            fail_msg("%s, seed %llu, %s, %u threads: output %d is off by %g (allowed %g)", c->name,
                     (unsigned long long)c->dice.seed, column, threads, i, e, c->tolerance);
        got += n;
        want += n;
    }
    for (int i = 0; i < c->n_gaps; i++)
        if (!gaps_untouched(c->gaps[i], c->gap_rows[i]))
            fail_msg("%s, %s: wrote between the rows of output %d", c->name, column, i);
}

/* Runs the case on all columns and thread counts, closes it. */
static void case_check(struct ops_case *c) {
    unsigned char *before = heap_save(&c->heap);
    struct op exact = c->op; /* one form of attention is enough for the truth: the quicker one */
    exact.kind = c->op.kind == OP_MLA_PREFILL ? OP_MLA_DECODE : c->op.kind;
    run_op(&column_ref, &exact, &c->t.b, c->t.longest, 1);
    float *want = read_views(c);
    int32_t *ids = malloc((c->ids.n + 1) * sizeof *ids);
    if (c->ids.n)
        memcpy(ids, c->ids.data, c->ids.n * sizeof *ids);
    const struct column *columns[CPU_COLUMNS];
    uint32_t n = fast_columns(columns);
    for (uint32_t k = 0; k < n; k++) {
        float *first = NULL;
        for (uint32_t threads = OPS_SLOW ? 3 : 1; threads <= 3; threads++) {
            heap_load(&c->heap, before);
            run_op(columns[k], &c->op, &c->t.b, c->t.longest, threads);
            float *got = read_views(c);
            compare(c, want, got, columns[k]->name, threads);
            if (c->ids.n && memcmp(ids, c->ids.data, c->ids.n * sizeof *ids) != 0)
                fail_msg("%s, %s: other experts", c->name, columns[k]->name);
            if (first && memcmp(first, got, view_floats(c) * sizeof(float)) != 0)
                fail_msg("%s, seed %llu, %s: %u threads give other bits than one", c->name,
                         (unsigned long long)c->dice.seed, columns[k]->name, threads);
            if (first)
                free(got);
            else
                first = got;
        }
        free(first);
    }
    free(ids);
    free(want);
    free(before);
    heap_free(&c->heap);
}

/* ------------------------------------------------------------------------------ projections */

static const char *format_name(enum dtype t) {
    return t == DTYPE_F32 ? "f32" : t == DTYPE_BF16 ? "bf16" : t == DTYPE_FP8 ? "fp8" : "mxfp4";
}

static void set_rows(struct ops_case *c, uint32_t n) {
    make_batch(&c->t, &c->heap, &(struct seq_shape){0, n}, 1, false);
}

static void linear_equals_exact(void **state) {
    static const uint32_t batch[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 49, 97};
    static const struct {
        uint32_t rows[3], cols[3];
    } shape[] = {{{1, 3, 8}, {8, 20, 24}},
                 {{17, 40, 12}, {32, 32, 96}},
                 {{33, 5, 64}, {100, 544, 513}},
                 {{20, 16, 4}, {1088, 64, 16}}};
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_MXFP4};
    for (size_t s = 0; s < 4; s++)
        for (size_t n = 0; n < sizeof batch / sizeof *batch; n++)
            for (int f = 0; f < 3; f++) {
                struct ops_case c;
                case_open(&c, 4e-6, s * 1000 + n * 10 + (size_t)f);
                set_rows(&c, batch[n]);
                c.op.kind = OP_LINEAR;
                struct op_linear *op = &c.op.u.linear;
                op->n_parts = 3;
                for (int p = 0; p < 3; p++) {
                    uint32_t cols = shape[s].cols[p];
                    if (formats[f] == DTYPE_MXFP4)
                        cols = (cols + 31) / 32 * 32;
                    struct linear_part *part = &op->part[p];
                    part->w = random_weight(&c.heap, &c.dice, formats[f], shape[s].rows[p], cols);
                    part->x = random_tensor(&c.heap, &c.dice, batch[n], cols, 1);
                    part->y = p == 1
                                  ? random_tensor(&c.heap, &c.dice, batch[n], shape[s].rows[p], 1)
                                  : new_tensor(&c.heap, batch[n], shape[s].rows[p]);
                    part->add = p == 1;
                    if (p == 2) {
                        part->w2 =
                            random_weight(&c.heap, &c.dice, DTYPE_BF16, shape[s].rows[p], 36);
                        part->x2 = random_tensor(&c.heap, &c.dice, batch[n], 36, 1);
                    }
                    add_output(&c, part->y, batch[n]);
                }
                snprintf(c.name, sizeof c.name, "linear %s, shape %zu, %u rows",
                         format_name(formats[f]), s, batch[n]);
                case_check(&c);
            }
}

static void linear_over_logit_rows(void **state) {
    struct ops_case c;
    case_open(&c, 4e-6, 5);
    set_rows(&c, 9);
    struct batch_logits logits[2] = {{.row = 3}, {.row = 8}};
    c.t.b.logits = logits;
    c.t.b.n_logits = 2;
    c.op.kind = OP_LINEAR;
    c.op.u.linear.n_parts = 1;
    c.op.u.linear.logit_rows = true;
    struct linear_part *p = &c.op.u.linear.part[0];
    p->w = random_weight(&c.heap, &c.dice, DTYPE_BF16, 50, 64);
    p->x = random_tensor(&c.heap, &c.dice, 9, 64, 1);
    p->y = new_tensor(&c.heap, 9, 50);
    add_output(&c, p->y, 9);
    snprintf(c.name, sizeof c.name, "linear over logit rows");
    case_check(&c);
}

/* One row's result must not depend on who else is in the batch. */
static void linear_gives_a_row_the_same_bits_alone_and_in_any_batch(void **state) {
    const struct column *columns[CPU_COLUMNS];
    uint32_t n_columns = fast_columns(columns);
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_MXFP4};
    for (int f = 0; f < 3; f++)
        for (uint32_t cols = 32; cols <= 1120; cols += 544) {
            struct ops_case c;
            enum { N = 53, ROWS = 37 };
            case_open(&c, 0, 77 + cols);
            set_rows(&c, N);
            c.op.kind = OP_LINEAR;
            c.op.u.linear.n_parts = 1;
            struct linear_part *p = &c.op.u.linear.part[0];
            p->w = random_weight(&c.heap, &c.dice, formats[f], ROWS, cols);
            p->x = random_tensor(&c.heap, &c.dice, N, cols, 1);
            p->y = new_tensor(&c.heap, N, ROWS);
            struct tensor x = p->x, alone = new_tensor(&c.heap, N, ROWS), y = p->y;
            for (uint32_t k = 0; k < n_columns; k++) {
                c.t.b.n_rows = N;
                p->x = x;
                p->y = y;
                run_op(columns[k], &c.op, &c.t.b, N, 2);
                for (uint32_t size = 1; size <= 7; size += 1 + OPS_SLOW)
                    for (uint32_t r = 0; r + size <= N; r += size) {
                        c.t.b.n_rows = size;
                        p->x.data = tensor_row(x, r);
                        p->y = alone;
                        p->y.data = tensor_row(alone, r);
                        run_op(columns[k], &c.op, &c.t.b, N, 1);
                        for (uint32_t i = r; i < r + size; i++)
                            assert_memory_equal(tensor_row(alone, i), tensor_row(y, i),
                                                ROWS * sizeof(float));
                    }
            }
            heap_free(&c.heap);
        }
}

static void experts_case(struct ops_case *c, enum op_kind kind, enum dtype f, uint32_t n,
                         uint32_t experts, uint32_t top_k, uint32_t width, uint32_t inter) {
    set_rows(c, n);
    c->op.kind = kind;
    struct op_experts *op = &c->op.u.experts;
    struct weight *w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = heap_take(&c->heap, experts * sizeof **w);
        for (uint32_t e = 0; e < experts; e++)
            w[i][e] = random_weight(&c->heap, &c->dice, f, i == 1 ? width : inter,
                                    i == 1 ? inter : width);
    }
    int32_t *ids = heap_take(&c->heap, n * top_k * sizeof *ids);
    for (uint32_t r = 0; r < n; r++) /* different experts within a row, some never chosen */
        for (uint32_t j = 0; j < top_k; j++)
            ids[r * top_k + j] = (int32_t)((dice_below(&c->dice, 2) + r + 2 * j) % experts);
    *op = (struct op_experts){.w1 = w[0],
                              .w2 = w[1],
                              .w3 = w[2],
                              .ids = ids,
                              .weights = random_vector(&c->heap, &c->dice, n * top_k, 0.2f, 0.4f),
                              .experts = experts,
                              .top_k = top_k,
                              .act = {true, 4, 25}};
    op->z = random_tensor(&c->heap, &c->dice, n, width, 1);
    op->h = random_tensor(&c->heap, &c->dice, n * top_k, inter, 1);
    op->out = new_tensor(&c->heap, n, width);
    op->each = new_tensor(&c->heap, n * top_k, width);
    if (kind == OP_EXPERTS_UP)
        add_output(c, op->h, n * top_k);
    else
        add_output(c, op->out, n);
    snprintf(c->name, sizeof c->name, "%s %s, %u rows, top %u of %u, width %u, inter %u",
             op_name(kind), format_name(f), n, top_k, experts, width, inter);
}

static void experts_equal_exact(void **state) {
    static const uint32_t rows[] = {1, 2, 5, 17, 64, 130};
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_MXFP4};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int f = 0; f < 3; f++)
            for (int kind = OP_EXPERTS_UP; kind <= OP_EXPERTS_DOWN; kind++) {
                struct ops_case c;
                case_open(&c, 1e-5, n * 10 + (size_t)f);
                experts_case(&c, (enum op_kind)kind, formats[f], rows[n], 9, 4, 96, 64);
                case_check(&c);
                case_open(&c, 1e-5, n * 10 + (size_t)f + 500);
                uint32_t odd = formats[f] == DTYPE_MXFP4 ? 32 : 20;
                experts_case(&c, (enum op_kind)kind, formats[f], rows[n], 6, 3, 32, odd);
                case_check(&c);
            }
}

/* --------------------------------------------------------------------------------- rows */

static void embedding_and_norm_equal_exact(void **state) {
    static const uint32_t widths[] = {8, 20, 32, 100, 256};
    for (size_t i = 0; i < 5; i++)
        for (int f = 0; f < 2; f++) {
            uint32_t width = widths[i], n = 7;
            struct ops_case c;
            case_open(&c, 0, i);
            set_rows(&c, n);
            int32_t *ids = heap_take(&c.heap, n * sizeof *ids);
            for (uint32_t r = 0; r < n; r++)
                ids[r] = (int32_t)dice_below(&c.dice, 11);
            c.t.b.ids = ids;
            c.op.kind = OP_EMBED;
            c.op.u.embed.w = random_weight(&c.heap, &c.dice, f ? DTYPE_F32 : DTYPE_BF16, 11, width);
            c.op.u.embed.out = new_tensor(&c.heap, n, width);
            add_output(&c, c.op.u.embed.out, n);
            snprintf(c.name, sizeof c.name, "embed %u", width);
            case_check(&c);

            case_open(&c, 2e-6, i);
            set_rows(&c, n);
            c.op.kind = OP_NORM;
            struct tensor x = random_tensor(&c.heap, &c.dice, n, width, 3);
            memset(x.data, 0, width * sizeof(float)); /* a row of zeros stays zeros */
            c.op.u.norm = (struct op_norm){.x = x,
                                           .y = f ? x : new_tensor(&c.heap, n, width),
                                           .norm = random_vector(&c.heap, &c.dice, width, 0.3f, 1),
                                           .eps = 1e-5f};
            add_output(&c, c.op.u.norm.y, n);
            snprintf(c.name, sizeof c.name, "norm %u", width);
            case_check(&c);
        }
}

static void mixtures_equal_exact(void **state) {
    /* bank entries, delta present, replace, push, gather, round */
    static const struct {
        uint32_t n;
        bool delta, replace, push, gather, round;
    } kind[] = {{0, false, false, true, false, false}, {0, true, false, false, false, false},
                {1, true, true, false, false, false},  {3, true, false, true, false, false},
                {8, true, false, false, true, false},  {20, true, false, true, false, false},
                {2, false, false, true, false, false}, {4, true, false, false, true, true},
                {5, true, false, true, false, true}};
    static const uint32_t widths[] = {8, 20, 32, 256};
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++)
        for (size_t w = 0; w < 4; w++) {
            struct ops_case c;
            uint32_t n = 6, width = widths[w], entries = kind[k].n + kind[k].push;
            case_open(&c, 1e-5, k * 10 + w);
            set_rows(&c, n);
            struct batch_logits logits[] = {{.row = 5}, {.row = 0}, {.row = 2}};
            c.t.b.logits = logits;
            c.t.b.n_logits = 3;
            struct tensor *bank = heap_take(&c.heap, (entries + 1) * sizeof *bank);
            for (uint32_t i = 0; i < entries; i++)
                bank[i] = random_tensor(&c.heap, &c.dice, n, width, 1 + (float)i);
            struct tensor prefix = random_tensor(&c.heap, &c.dice, n, width, 1);
            uint32_t rows = kind[k].gather ? 3 : n;
            c.op.kind = OP_MIX_NORM;
            c.op.u.mix_norm = (struct op_mix_norm){
                .prefix = prefix,
                .delta = kind[k].delta ? random_tensor(&c.heap, &c.dice, n, width, 1)
                                       : (struct tensor){0},
                .out = new_tensor(&c.heap, n, width),
                .mixed = new_tensor(&c.heap, n, width),
                .bank = bank,
                .n_bank = kind[k].n,
                .replace = kind[k].replace,
                .push = kind[k].push,
                .gather = kind[k].gather,
                .round_prefix = kind[k].round,
                .c = random_vector(&c.heap, &c.dice, width, 0.5f, 0),
                .norm = random_vector(&c.heap, &c.dice, width, 0.3f, 1),
                .eps = 1e-5f};
            add_output(&c, c.op.u.mix_norm.out, rows);
            add_output(&c, c.op.u.mix_norm.mixed, rows);
            add_output(&c, prefix, n);
            if (kind[k].push)
                add_output(&c, bank[kind[k].n], n);
            snprintf(c.name, sizeof c.name, "mix_norm %zu, width %u", k, width);
            case_check(&c);
        }
}

static void activations_equal_exact_also_at_the_extremes(void **state) {
    static const float special[] = {0,     -0.0f, 1e-30f, -1e-6f, 1e-3f,  0.1f,
                                    -0.5f, 9,     -20,    88.8f,  -89,    104,
                                    -104,  1e4f,  -1e4f,  1e30f,  -1e30f, INFINITY};
    static const struct glu acts[] = {{false, 0, 0}, {true, 4, 25}, {true, 1.5f, 0}};
    for (int a = 0; a < 3; a++)
        for (uint32_t cols = 8; cols <= 600; cols += 148) {
            struct ops_case c;
            case_open(&c, 0, cols);
            set_rows(&c, 5);
            c.op.kind = OP_GLU;
            struct tensor gate = random_tensor(&c.heap, &c.dice, 5, cols, 4);
            struct tensor up = random_tensor(&c.heap, &c.dice, 5, cols, 20);
            uint32_t n = sizeof special / sizeof *special;
            for (uint32_t i = 0; i < n && i < cols; i++) {
                tensor_row(gate, 0)[i] = special[i];
                tensor_row(up, 1)[i] = special[i];
            }
            tensor_row(gate, 2)[1] = NAN;
            tensor_row(up, 3)[2] = NAN;
            c.op.u.glu = (struct op_glu){.act = acts[a], .gate = gate, .up = up, .y = gate};
            unsigned char *before = heap_save(&c.heap);
            run_op(&column_ref, &c.op, &c.t.b, 5, 1);
            float *want = malloc(5 * cols * sizeof *want);
            for (uint32_t r = 0; r < 5; r++)
                memcpy(want + r * cols, tensor_row(gate, r), cols * sizeof *want);
            const struct column *columns[CPU_COLUMNS];
            uint32_t k = fast_columns(columns);
            while (k-- > 0) {
                heap_load(&c.heap, before);
                run_op(columns[k], &c.op, &c.t.b, 5, 2);
                for (uint32_t i = 0; i < 5 * cols; i++) {
                    float got = tensor_row(gate, i / cols)[i % cols];
                    /* Each element by itself: within 16 units of its own last place. Below 1e-37
                     * the exact one divides by an infinite exponential and gives zero. */
                    bool same = isnan(want[i]) ? isnan(got)
                                : isinf(want[i])
                                    ? got == want[i]
                                    : fabsf(got - want[i]) <= 1e-6f * fabsf(want[i]) + 1e-34f;
                    if (!same)
                        fail_msg("glu %d, %s: element %u is %g, not %g", a, columns[k]->name, i,
                                 got, want[i]);
                }
                assert_true(gaps_untouched(gate, 5));
            }
            free(want);
            free(before);
            heap_free(&c.heap);
        }
}

static void routing_equals_exact(void **state) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct ops_case c;
        case_open(&c, 2e-6, seed);
        uint32_t experts = seed % 3 == 0 ? 6 : seed % 3 == 1 ? 24 : 896;
        uint32_t n = 1 + seed % 5, top_k = experts == 6 ? 3 : experts == 24 ? 4 : 16;
        set_rows(&c, n);
        c.op.kind = OP_ROUTE;
        struct op_route *op = &c.op.u.route;
        *op = (struct op_route){.logits = random_tensor(&c.heap, &c.dice, n, experts, 1),
                                .bias = seed & 1 ? random_vector(&c.heap, &c.dice, experts, 0.3f, 0)
                                                 : NULL,
                                .ids = heap_take(&c.heap, n * top_k * sizeof(int32_t)),
                                .weights = heap_take(&c.heap, n * top_k * sizeof(float)),
                                .experts = experts,
                                .top_k = top_k,
                                .groups = experts == 24 && seed % 2 ? 6 : 1,
                                .top_groups = experts == 24 && seed % 2 ? 3 : 1,
                                .softmax = seed % 4 == 3,
                                .renormalize = seed % 5 != 0,
                                .scale = seed % 5 == 1 ? 2.446f : 1};
        if (seed % 7 == 0) /* ties go to the lower index */
            for (uint32_t e = 0; e < experts; e++)
                tensor_row(op->logits, 0)[e] = (float)(e % 2);
        add_view(&c, op->weights, n, top_k, top_k);
        c.ids.data = op->ids;
        c.ids.n = n * top_k;
        snprintf(c.name, sizeof c.name, "route of %u experts", experts);
        case_check(&c);
    }
}

static void a_row_of_nan_is_routed_to_valid_experts_with_nan_weights(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;) {
        struct ops_case c;
        case_open(&c, 0, 1);
        set_rows(&c, 1);
        int32_t ids[4] = {-7, -7, -7, -7};
        float weights[4] = {0};
        c.op.kind = OP_ROUTE;
        c.op.u.route = (struct op_route){.logits = new_tensor(&c.heap, 1, 24),
                                         .ids = ids,
                                         .weights = weights,
                                         .experts = 24,
                                         .top_k = 4,
                                         .groups = 1,
                                         .top_groups = 1,
                                         .renormalize = true,
                                         .scale = 1};
        for (uint32_t e = 0; e < 24; e++)
            c.op.u.route.logits.data[e] = NAN;
        run_op(columns[k], &c.op, &c.t.b, 1, 1);
        for (int j = 0; j < 4; j++) {
            assert_true(ids[j] >= 0 && ids[j] < 24);
            assert_true(isnan(weights[j]));
            for (int i = 0; i < j; i++)
                assert_int_not_equal(ids[i], ids[j]);
        }
        heap_free(&c.heap);
    }
}

/* ---------------------------------------------------------------------------------- MLA */

struct mla_shape {
    uint32_t heads, nope, rope, v, latent;
};
static const struct mla_shape mla_shapes[] = {
    {12, 8, 4, 8, 16}, {4, 16, 8, 16, 24}, {8, 32, 16, 32, 64}, {3, 128, 64, 128, 512}};
static const struct {
    uint32_t n;
    struct seq_shape seq[MAX_SEQS];
} batches[] = {
    {1, {{0, 1}}},
    {4, {{0, 1}, {62, 1}, {63, 1}, {64, 1}}},
    {2, {{128, 1}, {200, 1}}},
    {1, {{0, 64}}},
    {1, {{0, 65}}},
    {1, {{63, 66}}},
    {1, {{0, 129}}},
    {5, {{5, 1}, {127, 1}, {0, 17}, {100, 64}, {64, 3}}},
    {3, {{0, 127}, {64, 64}, {1, 128}}},
    {1, {{30, 300}}},
    {4, {{1000, 1}, {330, 1}, {127, 1}, {1900, 1}}},
    {1, {{2999, 1}}},
};
enum { BATCHES = sizeof batches / sizeof *batches };

static const enum dtype histories[] = {DTYPE_F32, DTYPE_BF16, DTYPE_FP8};
enum { HISTORIES = 3, POOL_LAYERS = 2 };

/* One record of random values, as the write operation would leave it. */
static void random_record(struct ops_case *c, enum dtype t, uint32_t latent, uint32_t width,
                          unsigned char *record) {
    for (uint32_t k = 0; k < width; k++) {
        float v = dice_float(&c->dice, 1);
        uint16_t half = f32_to_bf16(v);
        if (t == DTYPE_F32) {
            memcpy(record + 4 * k, &v, 4);
        } else if (t == DTYPE_BF16) {
            memcpy(record + 2 * k, &half, 2);
        } else if (k >= latent) {
            memcpy(record + kv_extra_at(latent) + 2 * (k - latent), &half, 2);
        } else {
            float scale = 0.01f * (float)(1 + k / KV_SCALED);
            kv_encode(&v, 1, scale, record + k);
            memcpy(record + kv_scales_at(latent) + k / KV_SCALED * 4, &scale, 4);
        }
    }
}

/* Pages of two layers; poison: NaN throughout. */
static struct kv_pool *random_pages(struct ops_case *c, const struct mla_shape *s, enum dtype t,
                                    bool poison) {
    struct kv_pool *pool = heap_take(&c->heap, sizeof *pool);
    size_t record = kv_record_bytes(t, s->latent, s->rope), n = c->t.pages * POOL_LAYERS;
    *pool = (struct kv_pool){.data = heap_take(&c->heap, n * PAGE_TOKENS * record),
                             .dtype = t,
                             .page_bytes = POOL_LAYERS * PAGE_TOKENS * record,
                             .width = s->latent + s->rope};
    memset(pool->data, 0xFF, n * PAGE_TOKENS * record);
    for (size_t i = 0; !poison && i < n * PAGE_TOKENS; i++)
        random_record(c, t, s->latent, pool->width, pool->data + i * record);
    return pool;
}

/* Fills layer 1 of the pages of every sequence up to its length; all else stays NaN. */
static void fill_history(struct ops_case *c, struct kv_pool *pool, uint32_t latent) {
    for (uint32_t i = 0; i < c->t.b.n_seqs; i++)
        for (uint32_t p = 0; p < c->t.seqs[i].pos0 + c->t.seqs[i].rows; p++)
            random_record(c, pool->dtype, latent, pool->width,
                          ref_kv_record(pool, latent, 1, c->t.seqs[i].pages, p));
}

static void mla_case(struct ops_case *c, enum op_kind kind, const struct mla_shape *s, size_t batch,
                     enum dtype kv, enum dtype weights, enum seq_class which, bool gated) {
    make_batch(&c->t, &c->heap, batches[batch].seq, batches[batch].n, false);
    struct kv_pool *pool = random_pages(c, s, kv, true);
    fill_history(c, pool, s->latent);
    uint32_t n = c->t.b.n_rows;
    c->op.kind = kind;
    c->op.u.mla = (struct op_mla){
        .which = which,
        .q = random_tensor(&c->heap, &c->dice, n, s->heads * (s->nope + s->rope), 1),
        .g = gated ? random_tensor(&c->heap, &c->dice, n, s->heads * s->v, 2) : (struct tensor){0},
        .out = random_tensor(&c->heap, &c->dice, n, s->heads * s->v, 1),
        .kv_b = random_weight(&c->heap, &c->dice, weights, s->heads * (s->nope + s->v), s->latent),
        .scale = 1.0f / sqrtf((float)(s->nope + s->rope)),
        .pool = pool,
        .layer = 1,
        .heads = s->heads,
        .nope_dim = s->nope,
        .rope_dim = s->rope,
        .v_dim = s->v,
        .kv_lora = s->latent};
    add_output(c, c->op.u.mla.out, n);
    snprintf(c->name, sizeof c->name, "%s, %u heads of %u+%u/%u, latent %u, batch %zu, kv %s",
             op_name(kind), s->heads, s->nope, s->rope, s->v, s->latent, batch, format_name(kv));
}

static void latent_attention_equals_exact(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = 0; b < BATCHES; b++)
            for (int kv = 0; kv < HISTORIES; kv++)
                for (int which = SEQ_ALL; which <= SEQ_PREFILL; which++) {
                    if (s == 3 && (b > 5 || which == SEQ_ALL)) /* the exact one takes long there */
                        continue;
                    struct ops_case c;
                    case_open(&c, 2e-5, s * 100 + b * 10 + (size_t)kv);
                    mla_case(&c, which == SEQ_PREFILL ? OP_MLA_PREFILL : OP_MLA_DECODE,
                             &mla_shapes[s], b, histories[kv], b % 2 ? DTYPE_BF16 : DTYPE_F32,
                             (enum seq_class)which, b % 3 != 0);
                    case_check(&c);
                }
}

/* Pieces of a history go to as many members as there are, and the answer keeps its bits: one head
 * and many members, many heads and few. */
static void long_histories_are_shared_out_without_a_trace(void **state) {
    static const struct mla_shape shapes[] = {{1, 16, 8, 16, 32}, {40, 8, 4, 8, 16}};
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (int s = 0; s < 2; s++)
            for (size_t b = 10; b < BATCHES; b++) {
                struct ops_case c;
                case_open(&c, 0, 60 + b);
                mla_case(&c, OP_MLA_DECODE, &shapes[s], b, s ? DTYPE_FP8 : DTYPE_BF16, DTYPE_BF16,
                         SEQ_DECODE, true);
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
                float *want = read_views(&c);
                for (uint32_t threads = 2; threads <= 17; threads += 5) {
                    run_op(columns[k], &c.op, &c.t.b, c.t.longest, threads);
                    float *got = read_views(&c);
                    if (memcmp(want, got, view_floats(&c) * sizeof(float)) != 0)
                        fail_msg("%s, %s: %u members give other bits than one", c.name,
                                 columns[k]->name, threads);
                    free(got);
                }
                free(want);
                heap_free(&c.heap);
            }
}

/* Scores so far apart that most weights are zero or would be subnormal numbers. */
static void attention_to_a_single_position_equals_exact(void **state) {
    for (int form = 0; form < 2; form++)
        for (size_t b = 9; b < BATCHES; b++) {
            struct ops_case c;
            case_open(&c, 2e-3, 900 + b);
            mla_case(&c, form ? OP_MLA_PREFILL : OP_MLA_DECODE, &mla_shapes[2], b, DTYPE_BF16,
                     DTYPE_BF16, SEQ_ALL, true);
            c.op.u.mla.scale *= 30;
            case_check(&c);
        }
}

/* F-063: any number of heads on a rank, in both forms and both history formats. */
static void F063_latent_attention_takes_any_number_of_heads(void **state) {
    static const uint32_t heads[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96};
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
        for (int form = 0; form < 2; form++)
            for (int kv = 0; kv < HISTORIES; kv++) {
                struct mla_shape s = {heads[h], 16, 8, 16, 32};
                struct ops_case c;
                case_open(&c, 2e-5, 5000 + heads[h]);
                mla_case(&c, form ? OP_MLA_PREFILL : OP_MLA_DECODE, &s, 7, histories[kv],
                         DTYPE_BF16, form ? SEQ_PREFILL : SEQ_DECODE, true);
                case_check(&c);
            }
}

/* The same rows in the other form, and each sequence of a batch by itself: same bits within a form,
 * rounding between the forms. */
static void attention_does_not_depend_on_the_batch_and_both_forms_agree(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;) {
        struct ops_case c;
        case_open(&c, 0, 9);
        mla_case(&c, OP_MLA_DECODE, &mla_shapes[2], 7, DTYPE_BF16, DTYPE_BF16, SEQ_ALL, true);
        struct tensor out = c.op.u.mla.out;
        uint32_t n = c.t.b.n_rows;
        float *form[2];
        for (int f = 0; f < 2; f++) {
            c.op.kind = f ? OP_MLA_PREFILL : OP_MLA_DECODE;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 3);
            form[f] = malloc(n * out.cols * sizeof(float));
            for (uint32_t r = 0; r < n; r++)
                memcpy(form[f] + r * out.cols, tensor_row(out, r), out.cols * sizeof(float));
            for (uint32_t i = 0; i < c.t.b.n_seqs; i++) {
                struct batch one = c.t.b;
                one.seqs = &c.t.seqs[i];
                one.n_seqs = 1;
                one.n_decode = 0;
                run_op(columns[k], &c.op, &one, c.t.longest, 1);
            }
            for (uint32_t r = 0; r < n; r++)
                assert_memory_equal(form[f] + r * out.cols, tensor_row(out, r),
                                    out.cols * sizeof(float));
        }
        assert_true(difference(form[1], form[0], n * out.cols) < 2e-5);
        free(form[0]);
        free(form[1]);
        heap_free(&c.heap);
    }
}

static void history_is_written_as_the_exact_column_writes_it(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = 0; b < BATCHES; b++)
            for (int kv = 0; kv < 2; kv++) {
                struct ops_case c;
                case_open(&c, kv ? 1e-2 : 2e-6, s * 10 + b);
                make_batch(&c.t, &c.heap, batches[b].seq, batches[b].n, false);
                struct kv_pool *pool =
                    random_pages(&c, &mla_shapes[s], kv ? DTYPE_BF16 : DTYPE_F32, false);
                c.op.kind = OP_MLA_WRITE;
                c.op.u.mla_write = (struct op_mla_write){
                    .kv = random_tensor(&c.heap, &c.dice, c.t.b.n_rows, pool->width, 2),
                    .norm = random_vector(&c.heap, &c.dice, mla_shapes[s].latent, 0.2f, 1),
                    .eps = 1e-6f,
                    .pool = pool,
                    .layer = 1,
                    .kv_lora = mla_shapes[s].latent};
                size_t floats = c.t.pages * pool->page_bytes / 4;
                if (!kv) {
                    add_view(&c, (float *)(void *)pool->data, 1, floats, floats);
                    snprintf(c.name, sizeof c.name, "mla_write %zu/%zu", s, b);
                    case_check(&c);
                    continue;
                }
                /* BF16: at most one unit in the last place where f32 rounding tips the scale. */
                unsigned char *before = heap_save(&c.heap);
                run_op(&column_ref, &c.op, &c.t.b, c.t.longest, 1);
                size_t n = floats * 2;
                uint16_t *want = malloc(n * 2), *got = (uint16_t *)(void *)pool->data;
                memcpy(want, got, n * 2);
                const struct column *columns[CPU_COLUMNS];
                for (uint32_t k = fast_columns(columns); k-- > 0;) {
                    heap_load(&c.heap, before);
                    run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
                    size_t off = 0;
                    for (size_t i = 0; i < n; i++) {
                        assert_in_range((uint16_t)(got[i] - want[i] + 1), 0, 2);
                        off += got[i] != want[i];
                    }
                    assert_true(off * 1000 <= n);
                }
                free(want);
                free(before);
                heap_free(&c.heap);
            }
}

/* FP8: the records of all columns mean the same numbers but for a few that rounding tips to the
 * next code, and none is further from what was to be kept than the format says: 2^-4 of a value, or
 * half a subnormal step of its scale; the extra values 2^-8. */
static void fp8_history_is_within_its_bound_and_equals_exact(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = 0; b < BATCHES; b++) {
            struct ops_case c;
            const struct mla_shape *shape = &mla_shapes[s];
            case_open(&c, 0, 40 + s * 10 + b);
            make_batch(&c.t, &c.heap, batches[b].seq, batches[b].n, false);
            uint32_t n = c.t.b.n_rows, latent = shape->latent;
            struct kv_pool *pool = random_pages(&c, shape, DTYPE_FP8, false);
            struct kv_pool *plain = random_pages(&c, shape, DTYPE_F32, false);
            struct op_mla_write a = {.kv = random_tensor(&c.heap, &c.dice, n, pool->width, 2),
                                     .norm = random_vector(&c.heap, &c.dice, latent, 0.2f, 1),
                                     .eps = 1e-6f,
                                     .pool = plain,
                                     .layer = 1,
                                     .kv_lora = latent};
            c.op.kind = OP_MLA_WRITE;
            c.op.u.mla_write = a;
            run_op(&column_ref, &c.op, &c.t.b, c.t.longest, 1);
            c.op.u.mla_write.pool = pool;
            const struct column *columns[1 + CPU_COLUMNS] = {&column_ref};
            uint32_t n_columns = 1 + fast_columns(columns + 1);
            float *exact = malloc((size_t)n * pool->width * sizeof *exact);
            for (uint32_t k = 0; k < n_columns; k++) {
                size_t tipped = 0, at = 0;
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
                for (uint32_t i = 0; i < c.t.b.n_seqs; i++)
                    for (uint32_t r = 0; r < c.t.seqs[i].rows; r++) {
                        const struct batch_seq *q = &c.t.seqs[i];
                        const unsigned char *got =
                            ref_kv_record(pool, latent, 1, q->pages, q->pos0 + r);
                        const float *want = ref_kv_record(plain, latent, 1, q->pages, q->pos0 + r);
                        for (uint32_t e = 0; e < pool->width; e++, at++) {
                            float scale, x = ref_kv_at(got, DTYPE_FP8, latent, e);
                            memcpy(&scale, got + kv_scales_at(latent) + e / KV_SCALED * 4, 4);
                            float bound =
                                e < latent ? fmaxf(fabsf(want[e]) * 0x1.0001p-4f, scale * 0x1p-10f)
                                           : fabsf(want[e]) * 0x1p-8f + 0x1p-130f;
                            if (!(fabsf(x - want[e]) <= bound))
                                fail_msg("%s, shape %zu, batch %zu: value %u is %g for %g",
                                         columns[k]->name, s, b, e, (double)x, (double)want[e]);
                            if (k == 0)
                                exact[at] = x;
                            tipped += fabsf(x - exact[at]) > 1e-5f * fabsf(x);
                            if (k > 0 && !(fabsf(x - exact[at]) <= 2 * bound))
                                fail_msg("%s and exact are further apart than a code",
                                         columns[k]->name);
                        }
                    }
                assert_true(tipped * 500 <= at);
            }
            free(exact);
            heap_free(&c.heap);
        }
}

/* One value that is no number must not come back as one, in whatever format. */
static void a_nan_of_the_history_is_still_one_when_it_is_read(void **state) {
    const struct column *columns[1 + CPU_COLUMNS] = {&column_ref};
    uint32_t n_columns = 1 + fast_columns(columns + 1);
    for (uint32_t k = 0; k < n_columns; k++)
        for (int kv = 0; kv < HISTORIES; kv++)
            for (int bad = 0; bad < 2; bad++) {
                struct ops_case c;
                case_open(&c, 0, 3);
                make_batch(&c.t, &c.heap, batches[0].seq, batches[0].n, false);
                const struct mla_shape *shape = &mla_shapes[3];
                struct kv_pool *pool = random_pages(&c, shape, histories[kv], false);
                struct op_mla_write a = {
                    .kv = random_tensor(&c.heap, &c.dice, 1, pool->width, 2),
                    .norm = random_vector(&c.heap, &c.dice, shape->latent, 0.2f, 1),
                    .eps = 1e-6f,
                    .pool = pool,
                    .layer = 1,
                    .kv_lora = shape->latent};
                a.kv.data[130] = bad ? NAN : INFINITY;
                c.op.kind = OP_MLA_WRITE;
                c.op.u.mla_write = a;
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
                const void *got = ref_kv_record(pool, shape->latent, 1, c.t.seqs[0].pages, 0);
                assert_true(isnan(ref_kv_at(got, histories[kv], shape->latent, 130)));
                heap_free(&c.heap);
            }
}

/* Says how far the columns really are apart; the tolerances above were set from it. */
static void report(void **state) {
    print_message("largest error seen, relative to the root mean square: %.2e\n", largest_seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_equals_exact),
        cmocka_unit_test(report),
        cmocka_unit_test(linear_over_logit_rows),
        cmocka_unit_test(linear_gives_a_row_the_same_bits_alone_and_in_any_batch),
        cmocka_unit_test(experts_equal_exact),
        cmocka_unit_test(embedding_and_norm_equal_exact),
        cmocka_unit_test(mixtures_equal_exact),
        cmocka_unit_test(activations_equal_exact_also_at_the_extremes),
        cmocka_unit_test(routing_equals_exact),
        cmocka_unit_test(a_row_of_nan_is_routed_to_valid_experts_with_nan_weights),
        cmocka_unit_test(latent_attention_equals_exact),
        cmocka_unit_test(long_histories_are_shared_out_without_a_trace),
        cmocka_unit_test(attention_to_a_single_position_equals_exact),
        cmocka_unit_test(F063_latent_attention_takes_any_number_of_heads),
        cmocka_unit_test(attention_does_not_depend_on_the_batch_and_both_forms_agree),
        cmocka_unit_test(history_is_written_as_the_exact_column_writes_it),
        cmocka_unit_test(fp8_history_is_within_its_bound_and_equals_exact),
        cmocka_unit_test(a_nan_of_the_history_is_still_one_when_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
