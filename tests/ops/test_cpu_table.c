/* Operations of every fast column against the exact one: many shapes, formats and batches, one to
 * three threads. Latent attention is in test_cpu_mla.c, KDA in test_cpu_kda.c. */
#include "table_case.h"

/* ------------------------------------------------------------------------------ projections */

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_equals_exact),
        cmocka_unit_test(linear_over_logit_rows),
        cmocka_unit_test(linear_gives_a_row_the_same_bits_alone_and_in_any_batch),
        cmocka_unit_test(experts_equal_exact),
        cmocka_unit_test(embedding_and_norm_equal_exact),
        cmocka_unit_test(mixtures_equal_exact),
        cmocka_unit_test(activations_equal_exact_also_at_the_extremes),
        cmocka_unit_test(routing_equals_exact),
        cmocka_unit_test(a_row_of_nan_is_routed_to_valid_experts_with_nan_weights),
        cmocka_unit_test(report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
