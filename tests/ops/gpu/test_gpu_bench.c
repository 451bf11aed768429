/* test_gpu_bench.c: `weir bench step` on a device that the emulator stands for. */
#include "bench/step.h"
#include "tests/ops/gpu/emulated.h"

static const struct step_row *row_of(const struct step_phase *f, enum op_kind kind) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->row[i].kind == kind)
            return &f->row[i];
    fail_msg("no row %s", op_name(kind));
    return NULL;
}

static struct step_report measured(uint32_t history, uint32_t sequences) {
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
                                   .prompts = 1,
                                   .roof_bytes = 1 << 18,
                                   .device = d};
    if (step_measure(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    gpu_device_close(d);
    return r;
}

static void every_operation_of_a_step_has_time_and_bytes(void **state) {
    struct step_report r = measured(0, 1);
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
    struct step_report few = measured(64, 1), many = measured(256, 2);
    double each = row_of(&few.decode, OP_MLA_DECODE)->bytes;
    assert_true(row_of(&many.decode, OP_MLA_DECODE)->bytes > 2 * each);
    assert_true(many.decode.tokens == 2 && many.decode.ms > few.decode.ms);
    assert_int_equal(row_of(&many.decode, OP_KDA_DECODE)->calls,
                     row_of(&few.decode, OP_KDA_DECODE)->calls);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_of_a_step_has_time_and_bytes),
        cmocka_unit_test(invented_histories_cost_what_they_are_long),
    };
    return cmocka_run_group_tests(tests, emulated_begin, emulated_end);
}
