/* `weir bench step`: times that add up to the step, costs against the checkpoint's own list of
 * weights, and the command. */
#include "tests/test.h"

#include "bench/kernels.h"
#include "bench/step.h"
#include "bench/step_cost.h"
#include "load/check.h"
#include "tests/cli/program.h"

#include <math.h>

static const struct step_row *row_of(const struct step_phase *f, enum op_kind kind) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->row[i].kind == kind)
            return &f->row[i];
    fail_msg("no row %s", op_name(kind));
    return NULL;
}

static struct step_report measure(const char *model, const struct step_options *with) {
    struct step_options o = *with;
    struct step_report r;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(model));
    o.model = dir;
    o.roof_bytes = 1 << 20;
    if (step_measure(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    return r;
}

static const struct step_options one_of_each = {.threads = 2,
                                                .prompt_tokens = 40,
                                                .decode_tokens = 1,
                                                .sequences = 1,
                                                .rows = 16,
                                                .prompts = 1,
                                                .kv_dtype = DTYPE_F32};

static void operations_and_what_is_between_make_up_the_step(void **state) {
    for (int exact = 0; exact < 2; exact++) {
        struct step_options o = one_of_each;
        o.column = exact ? &column_ref : column_fast(ACTIVATION_F32);
        struct step_report r = measure("models/tiny-k3", &o);
        const struct step_phase *phase[] = {&r.decode, &r.prefill};
        for (int i = 0; i < 2; i++) {
            const struct step_phase *f = phase[i];
            double sum = f->between_ms;
            uint32_t calls = 0;
            assert_int_equal(f->samples, 1);
            assert_true(f->ms > 0 && f->between_ms >= 0);
            for (uint32_t k = 0; k < f->n; k++) {
                sum += f->row[k].ms;
                calls += f->row[k].calls;
                assert_true(f->row[k].ms > 0 && f->row[k].roof_ms >= 0 && f->row[k].flops >= 0);
            }
            assert_float_equal(sum, f->ms, 1e-9 * f->ms);
            /* Three steps of 16, 16 and 8 tokens; each runs either form of both mixers, and a
             * column that has one form has no other in its program. */
            uint32_t mixers = row_of(f, i || exact ? OP_MLA_WRITE : OP_MLA_DECODE)->calls +
                              row_of(f, exact || !i ? OP_KDA_DECODE : OP_KDA_PREFILL)->calls;
            assert_int_equal(calls + (exact ? 0 : mixers), (i ? 3 : 1) * r.ops);
        }
        assert_int_equal(r.decode.tokens, 1);
        assert_int_equal(r.prefill.tokens, 40);
        assert_true(r.roof.read > 0 && r.roof.peak[ARITHMETIC_F32] > 0);
        assert_int_equal(r.decode.outside, OP_SAMPLE);
        assert_true(r.decode.outside_share > 0);
    }
}

/* Bytes of the matrices that a token's products read, and of one expert's w1 and w3. */
struct listed {
    double dense, up;
};

static weir_status add_weight(void *arg, const struct weight_spec *spec) {
    struct listed *l = arg;
    double n = (double)spec->rows * spec->cols;
    if (spec->expert >= 0) {
        if (spec->expert == 0 && spec->role != ROLE_EXPERT_W2)
            l->up += n / 2 + n / 32;
    } else if (!role_is_widened(spec->role) && spec->role != ROLE_EMBED &&
               spec->role != ROLE_KV_B) {
        l->dense += 2 * n;
    }
    return WEIR_OK;
}

static void a_token_reads_every_matrix_once_and_its_experts(void **state) {
    struct model m;
    struct listed l = {0};
    weir_error err;
    struct step_options o = one_of_each;
    o.column = column_fast(ACTIVATION_F32);
    assert_int_equal(model_open(source_path("models/tiny-k3"), &m, &err), WEIR_OK);
    assert_int_equal(model_each_weight(&m, add_weight, &l), WEIR_OK);
    struct step_report r = measure("models/tiny-k3", &o);
    assert_float_equal(row_of(&r.decode, OP_LINEAR)->bytes, l.dense, 1);
    assert_float_equal(row_of(&r.decode, OP_EXPERTS_UP)->bytes, l.up * m.top_k, 1);
    /* A prompt's steps read more experts than a token does, and no more than there are. */
    double up = row_of(&r.prefill, OP_EXPERTS_UP)->bytes;
    assert_true(up > 3 * l.up * m.top_k && up <= 3 * l.up * m.experts);
    /* Multiply-adds grow with tokens; the head is there once a step. */
    double head = 2.0 * m.vocab * m.hidden, one = row_of(&r.decode, OP_LINEAR)->flops;
    assert_float_equal(row_of(&r.prefill, OP_LINEAR)->flops, 40 * (one - head) + 3 * head, 1);
    o.sequences = 3;
    r = measure("models/tiny-k3", &o);
    assert_int_equal(r.decode.tokens, 3);
    assert_float_equal(row_of(&r.decode, OP_LINEAR)->bytes, l.dense, 1);
    assert_float_equal(row_of(&r.decode, OP_LINEAR)->flops, 3 * one, 1);
}

static void what_products_read_together_counts_once(void **state) {
    float x[64], y[64];
    struct op op = {.kind = OP_LINEAR, .u.linear.n_parts = 2};
    for (int i = 0; i < 2; i++)
        op.u.linear.part[i] =
            (struct linear_part){.w = {.data = x, .dtype = DTYPE_BF16, .rows = 64, .cols = 32},
                                 .x = {x, 32, 32},
                                 .y = {y, 64, 64}};
    struct step_part part[STEP_PARTS];
    const struct step_shape many = {.rows = 100}, few = {.rows = 2};
    assert_int_equal(step_parts(&op, &many, 0, column_fast(ACTIVATION_F32), part), 2);
    assert_float_equal(part[0].cost.read_bytes, 64 * 32 * 2 + 100 * 32 * 4, 1e-9);
    assert_float_equal(part[1].cost.read_bytes, 64 * 32 * 2, 1e-9);
    step_parts(&op, &few, 0, column_fast(ACTIVATION_F32), part);
    assert_float_equal(part[1].cost.cache_bytes, 2 * 64 * 4, 1e-9);
}

static void the_command_prints_the_documented_keys(void **state) {
    json_t *o = run_json(NULL, "bench step --model @models/tiny-k3 --threads 1 --prompt-tokens 20 "
                               "--max-tokens 2 --rounds 0 --kv-cache-dtype bf16 --json");
    json_t *decode = json_object_get(o, "decode"), *row;
    assert_true(json_is_null(json_object_get(o, "prefill")));
    static const char *const keys[] = {
        "ms",      "ms_per_token",  "between_ms",    "spread",
        "bytes",   "flops",         "memory_ms",     "share_of_memory_roof",
        "roof_ms", "share_of_roof", "share_of_peak", "outside_share"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_is_real(json_object_get(decode, keys[i])))
            fail_msg("no %s", keys[i]);
    assert_int_equal(json_array_size(json_object_get(decode, "samples_ms")), 2);
    size_t i;
    json_array_foreach(json_object_get(decode, "operations"), i, row) {
        assert_true(json_is_string(json_object_get(row, "name")));
        assert_true(json_real_value(json_object_get(row, "ms")) > 0);
        assert_true(json_is_boolean(json_object_get(row, "in_table")));
    }
    assert_true(i > 8);
    json_decref(o);
    fails(2, "bench step --model @models/tiny-k3 --isa sse9", "'sse9' is not on this machine");
    fails(2, "bench step --model @models/tiny-k3 --rounds 0 --max-tokens 0", "nothing to time");
    fails(2, "bench step --model @models/tiny-k3 --isa exact --dense-dtype int8",
          "--dense-dtype: the exact column takes weights as stored");
    fails(1, "bench step --model @models/none", "models/none");
    fails(2, "bench step", "--model");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_and_what_is_between_make_up_the_step),
        cmocka_unit_test(a_token_reads_every_matrix_once_and_its_experts),
        cmocka_unit_test(what_products_read_together_counts_once),
        cmocka_unit_test(the_command_prints_the_documented_keys),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
