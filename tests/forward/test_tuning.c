/* A program by a table: a variant is used on the batches and operations it is about and on no
 * others, whatever the column. */
#include "rig.h"

#include "base/log.h"
#include "ops/cpu/cpu.h"

/* A column with a variant of its own, that counts its uses. */
enum { ODD = 7 };
static struct column odd;
static uint32_t odd_calls, usual_calls;

static uint32_t odd_variants(const struct op *op, enum row_class rows,
                             struct variant out[OP_VARIANTS]) {
    if (op->kind != OP_LINEAR)
        return 0;
    out[0] = (struct variant){"odd", ODD, true};
    return 1;
}

/* The variant wants memory that the default does without. */
enum { ODD_BYTES = 64 << 20 };
static size_t odd_shared(const struct op *op, uint32_t max_rows, uint32_t threads) {
    for (enum row_class c = 0; c < ROW_CLASSES; c++)
        if (op->variant[c] == ODD)
            return ODD_BYTES;
    return column_cpu(CPU_PORTABLE, ACTIVATION_F32)->shared_bytes(op, max_rows, threads);
}

static void odd_linear(const struct op_linear *a, const struct batch *b, struct work w) {
    if (w.index == 0) {
        assert_true(w.variant == ODD || w.variant == 0);
        odd_calls += w.variant == ODD;
        usual_calls += w.variant == 0;
        if (w.variant == ODD)
            ((unsigned char *)w.shared)[ODD_BYTES - 1] = 1;
    }
    w.variant = 0;
    column_cpu(CPU_PORTABLE, ACTIVATION_F32)->linear(a, b, w);
}

static struct runner_options options(struct tuning *t) {
    odd = *column_cpu(CPU_PORTABLE, ACTIVATION_F32);
    odd.name = "odd";
    odd.variants = odd_variants;
    odd.linear = odd_linear;
    odd.shared_bytes = odd_shared;
    return (struct runner_options){.column = &odd,
                                   .threads = 1,
                                   .sequences = 2,
                                   .positions = 64,
                                   .rows = 8,
                                   .logits = 8,
                                   .kv_dtype = DTYPE_F32,
                                   .tuning = t};
}

static void a_variant_is_used_where_the_table_says_and_nowhere_else(void **state) {
    struct rig g;
    struct tuning *t = tuning_new(1, NULL);
    struct runner_options o = options(NULL);
    struct tuning_row row = {.column = "odd", .kind = OP_LINEAR, .rows = ROWS_2, .variant = "odd"};
    rig_open(&g, "models/tiny-k3", &o);
    uint32_t n, same = 0;
    const struct op *op = program_ops(runner_program(g.r), &n);
    for (uint32_t i = 0; i < n; i++) {
        char shape[OP_SIGNATURE];
        if (op[i].kind != OP_LINEAR)
            continue;
        op_signature(&op[i], shape);
        if (!row.shape[0])
            memcpy(row.shape, shape, sizeof shape);
        same += !strcmp(shape, row.shape);
    }
    rig_close(&g);
    assert_true(same >= 1);
    struct tuning_row others[3] = {row, row, row}; /* none of these is about this program */
    snprintf(others[0].column, sizeof others[0].column, "even");
    snprintf(others[1].shape, sizeof others[1].shape, "1x1 bf16");
    others[2].kind = OP_EXPERTS_UP;
    for (int i = 0; i < 3; i++)
        assert_true(tuning_add(t, &others[i]));
    assert_true(tuning_add(t, &row));

    o = options(t);
    rig_open(&g, "models/tiny-k3", &o);
    int32_t ids[4] = {1, 2, 3, 4};
    const struct runner_feed feeds[] = {
        {0, ids, 1, false}, {0, ids, 2, false}, {0, ids, 3, false}, {0, ids, 2, true}};
    for (int i = 0; i < 4; i++) {
        odd_calls = usual_calls = 0;
        runner_step(g.r, &feeds[i], 1);
        assert_int_equal(odd_calls, feeds[i].n == 2 ? same : 0);
        assert_true(usual_calls > 0);
    }
    rig_close(&g);
    tuning_free(t);
}

/* The operation goes on by default: a table may have been edited. */
static void a_variant_that_the_column_lacks_is_passed_over(void **state) {
    struct rig g;
    struct tuning *t = tuning_new(1, NULL);
    struct tuning_row row = {
        .column = "odd", .kind = OP_KDA_DECODE, .rows = ROWS_1, .variant = "x"};
    struct runner_options o = options(NULL);
    rig_open(&g, "models/tiny-k3", &o);
    uint32_t n;
    const struct op *op = program_ops(runner_program(g.r), &n);
    for (uint32_t i = 0; i < n; i++)
        if (op[i].kind == OP_KDA_DECODE)
            op_signature(&op[i], row.shape);
    rig_close(&g);
    assert_true(tuning_add(t, &row));
    o = options(t);
    rig_open(&g, "models/tiny-k3", &o);
    op = program_ops(runner_program(g.r), &n);
    for (uint32_t i = 0; i < n; i++)
        for (enum row_class c = 0; c < ROW_CLASSES; c++)
            assert_int_equal(op[i].variant[c], 0);
    rig_close(&g);
    tuning_free(t);
}

static void a_program_whose_variants_change_between_steps_keeps_its_bits(void **state) {
    struct rig g;
    enum { POSITIONS = 700 };
    struct runner_options o = options(NULL);
    o.column = column_fast(ACTIVATION_F32);
    o.positions = POSITIONS;
    o.threads = 2;
    o.rows = 128;
    rig_open(&g, "models/tiny-k3", &o);
    struct step_program *p = runner_program(g.r);
    int32_t *ids = malloc(POSITIONS * sizeof *ids);
    float *first = malloc(g.m.vocab * sizeof *first);
    uint32_t n, changed = 0;
    const struct op *op = program_ops(p, &n);
    rig_ids(ids, POSITIONS, g.m.vocab, 5);
    for (uint32_t turn = 0; turn <= OP_VARIANTS; turn++) {
        for (uint32_t i = 0; turn && i < n; i++)
            for (enum row_class c = 0; c < ROW_CLASSES; c++) {
                struct variant v[OP_VARIANTS];
                weir_error err;
                uint32_t have = column_variants(o.column, &op[i], c, v);
                uint8_t number = turn <= have && v[turn - 1].same_bits ? v[turn - 1].number : 0;
                changed += number != 0;
                assert_int_equal(program_choose(p, i, c, number, &err), WEIR_OK);
            }
        runner_reset(g.r, 0);
        runner_prefill(g.r, 0, ids, POSITIONS - 1, 128);
        runner_step(g.r, &(struct runner_feed){0, ids + POSITIONS - 1, 1, false}, 1);
        if (turn == 0)
            memcpy(first, runner_logits(g.r, 0), g.m.vocab * sizeof *first);
        else
            assert_memory_equal(first, runner_logits(g.r, 0), g.m.vocab * sizeof *first);
    }
    assert_true(changed > n);
    free(first);
    free(ids);
    rig_close(&g);
}

static int quiet(void **state) {
    log_set_level(LOG_ERROR);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_variant_is_used_where_the_table_says_and_nowhere_else),
        cmocka_unit_test(a_variant_that_the_column_lacks_is_passed_over),
        cmocka_unit_test(a_program_whose_variants_change_between_steps_keeps_its_bits),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
