/* test_gpu_bench.c: `weir bench step` and `weir tune` on a device that the emulator stands for, and
 * what tuning chooses among. */
#include "bench/step.h"
#include "bench/tune.h"
#include "forward/runner.h"
#include "tests/ops/gpu/emulated.h"

#include <math.h>

static const struct step_row *row_of(const struct step_phase *f, enum op_kind kind) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->row[i].kind == kind)
            return &f->row[i];
    fail_msg("no row %s", op_name(kind));
    return NULL;
}

static struct step_report measured(uint32_t history, uint32_t sequences, uint32_t prompts) {
    struct step_report r;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-kimi-linear"));
    struct gpu_device *d = emulated_open(0);
    const struct step_options o = {.model = dir,
                                   .column = &column_gpu,
                                   .kv_dtype = DTYPE_BF16,
                                   .threads = 1,
                                   .tuning = "none",
                                   .prompt_tokens = 4,
                                   .history = history,
                                   .decode_tokens = 1,
                                   .sequences = sequences,
                                   .rows = 4,
                                   .prompts = prompts,
                                   .roof_bytes = 1 << 18,
                                   .device = d};
    if (step_measure(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    gpu_device_close(d);
    return r;
}

static void every_operation_of_a_step_has_time_and_bytes(void **state) {
    struct step_report r = measured(64, 1, 1);
    static const enum op_kind decoded[] = {OP_LINEAR, OP_KDA_DECODE, OP_MLA_DECODE, OP_EXPERTS_UP,
                                           OP_EXPERTS_DOWN};
    assert_true(r.roof.read > 0);
    assert_true(r.decode.ms > 0 && r.prefill.ms > 0);
    assert_int_equal(r.prefill.tokens, 4);
    for (size_t i = 0; i < sizeof decoded / sizeof *decoded; i++)
        assert_true(row_of(&r.decode, decoded[i])->bytes > 0);
    /* Three quarters of the emulator's time are products: their share is there to be seen. */
    assert_true(row_of(&r.decode, OP_LINEAR)->ms > 0);
    assert_true(row_of(&r.prefill, OP_KDA_PREFILL)->ms > 0);
}

/* A history that nobody computed is read all the same, and each sequence has its own. */
static void invented_histories_cost_what_they_are_long(void **state) {
    struct step_report few = measured(64, 1, 0), many = measured(256, 2, 0);
    double each = row_of(&few.decode, OP_MLA_DECODE)->bytes;
    assert_true(row_of(&many.decode, OP_MLA_DECODE)->bytes > 2 * each);
    assert_true(many.decode.tokens == 2 && many.decode.ms > 0);
    assert_int_equal(row_of(&many.decode, OP_KDA_DECODE)->calls,
                     row_of(&few.decode, OP_KDA_DECODE)->calls);
}

static void every_product_and_the_experts_are_tuned_by_name(void **state) {
    struct tune_report r;
    weir_error err;
    char dir[4096], why[TUNING_WHY];
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-kimi-linear"));
    struct gpu_device *d = emulated_open(0);
    const char *name = gpu_device_facts(d)->name;
    const struct tune_options o = {
        .of = {.model = dir, .column = &column_gpu, .kv = DTYPE_BF16, .threads = 1, .device = name},
        .prompt_tokens = 1,
        .sequences = 1,
        .rows = 1,
        .rounds = 1,
        .device = d};
    if (tune_measure(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    uint32_t products = 0, experts = 0;
    for (uint32_t i = 0; i < r.n; i++) {
        struct variant v[OP_VARIANTS];
        const struct op op = {.kind = r.row[i].kind};
        products += r.row[i].kind == OP_LINEAR;
        experts += r.row[i].kind == OP_EXPERTS_UP;
        assert_true(r.row[i].tried > 1);
        assert_int_equal(r.row[i].tried, column_variants(&column_gpu, &op, ROWS_1, v));
        assert_int_equal(r.row[i].rows, ROWS_1);
    }
    assert_int_equal(products + experts, r.n);
    assert_true(products > 5 && experts == 1);
    assert_int_equal(r.n_steps, 1);
    assert_true(r.steps[0].decode && r.steps[0].default_ms > 0);
    assert_true(tuning_is_ours(r.table, 1, name, why));
    assert_false(tuning_is_ours(r.table, 1, NULL, why));
    assert_non_null(strstr(why, name));
    tune_free(&r);
    gpu_device_close(d);
}

/* Logits of the last of n rows, all operations going by their k-th variant; false: none has one. */
static bool by_variant(struct runner *r, uint32_t vocab, uint32_t n, uint32_t k, float *out) {
    struct variant v[OP_VARIANTS];
    weir_error err;
    int32_t ids[70];
    uint32_t n_ops, any = k == 0;
    const struct op *op = program_ops(runner_program(r), &n_ops);
    for (uint32_t i = 0; i < n_ops; i++)
        for (enum row_class c = 0; c < ROW_CLASSES; c++) {
            const bool has = k && k <= column_variants(&column_gpu, &op[i], c, v);
            any += has && c == row_class_of(n);
            if (program_choose(runner_program(r), i, c, has ? v[k - 1].number : 0, &err))
                fail_msg("%s: %s", err.where, err.message);
        }
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 37 % vocab);
    runner_reset(r, 0);
    runner_step(r, &(struct runner_feed){0, ids, n, false}, 1);
    if (runner_failure(r, &err))
        fail_msg("%s: %s", err.where, err.message);
    memcpy(out, runner_logits(r, 0), vocab * sizeof *out);
    return any;
}

static void variants_differ_by_rounding_alone(void **state) {
    static const uint32_t rows[] = {1, 6, 70};
    struct model m;
    struct weights *w;
    struct runner *r;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-kimi-linear"));
    struct gpu_device *d = emulated_open(0);
    const struct runner_options o = {.column = &column_gpu,
                                     .threads = 1,
                                     .sequences = 1,
                                     .positions = 128,
                                     .rows = 70,
                                     .logits = 1,
                                     .kv_dtype = DTYPE_BF16,
                                     .device = d};
    if (model_open(dir, &m, &err) || weights_open(dir, &m, &w, &err) ||
        runner_open(&m, w, &o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    float *usual = test_malloc(m.vocab * sizeof *usual), *got = test_malloc(m.vocab * sizeof *got);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        by_variant(r, m.vocab, rows[i], 0, usual);
        uint32_t k = 1;
        for (; by_variant(r, m.vocab, rows[i], k, got); k++) {
            double sum = 0;
            for (uint32_t c = 0; c < m.vocab; c++)
                sum += (got[c] - usual[c]) * (got[c] - usual[c]);
            if (!(sqrt(sum / m.vocab) <= 0.05))
                fail_msg("%u rows, variant %u: root mean square difference %g", rows[i], k,
                         sqrt(sum / m.vocab));
        }
        assert_true(k > 2);
    }
    test_free(usual);
    test_free(got);
    runner_close(r);
    weights_close(w);
    gpu_device_close(d);
}

#if defined(__SANITIZE_ADDRESS__)
enum { SLOW = 2 };
#else
enum { SLOW = 0 };
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_of_a_step_has_time_and_bytes),
        cmocka_unit_test(variants_differ_by_rounding_alone),
        /* Under a sanitizer minutes of arithmetic; what they do with memory the others do too, but
         * for two arrays of tune_device.c. */
        cmocka_unit_test(every_product_and_the_experts_are_tuned_by_name),
        cmocka_unit_test(invented_histories_cost_what_they_are_long),
    };
    const size_t n = sizeof tests / sizeof *tests - SLOW;
    return _cmocka_run_group_tests("tests", tests, n, emulated_begin, emulated_end);
}
