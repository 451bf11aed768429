/* `weir bench kernels`: the whole table at small shapes on every column of this machine, mutants
 * that the check must catch, costs against numbers worked out by hand, and the command. */
#include "tests/test.h"

#include "bench/kernels.h"
#include "bench/kernels_call.h"
#include "bench/kernels_fill.h"
#include "bench/onednn.h"
#include "ops/cpu/cpu.h"
#include "tests/cli/program.h"

#include <math.h>

/* Of a column with rounded activations the products alone: all else is the f32 column's. */
static void every_case_stays_within_its_bound(const struct column *column, uint32_t threads) {
    bool products = column->activation != ACTIVATION_F32;
    struct kernel_options o = {.threads = threads,
                               .column = column,
                               .small = true,
                               .filter = products ? "expert,trunk_in" : NULL};
    struct kernel_report r;
    weir_error err = {0};
    size_t of;
    kernel_table(&of);
    if (kernels_run(&o, &r, &err))
        fail_msg("%s: %s: %s", column->name, err.where, err.message);
    assert_true(products ? r.n >= 20 && r.n < of : r.n == of);
    for (size_t k = 0; k < r.n; k++) {
        const struct kernel_row *row = &r.row[k];
        if (row->skipped[0])
            fail_msg("%s %s: %s", row->c.name, row->shape, row->skipped);
        if (row->exceeded)
            fail_msg("%s: %s %s: error %g rms, %g largest", column->name, row->c.name, row->shape,
                     row->error.rms, row->error.largest);
        assert_true(row->error.values > 0);
        assert_true(row->main.us > 0 && row->share > 0 && row->limit[0]);
        assert_true(row->main.n >= 2);
    }
    kernels_free(&r);
}

static void every_case_on_every_column_stays_within_its_bound(void **state) {
    const struct column *column[CPU_COLUMNS];
    uint32_t columns = column_list(column);
    assert_true(columns >= ACTIVATIONS); /* the portable ones are everywhere */
    every_case_stays_within_its_bound(kernels_column("exact"), 3);
    for (uint32_t i = 0; i < columns; i++)
        every_case_stays_within_its_bound(column[i], 3);
#if !defined(__SANITIZE_ADDRESS__) /* slow there, and the tests of ops have any number of threads  \
                                    */
    every_case_stays_within_its_bound(kernels_column("exact"), 1);
    every_case_stays_within_its_bound(kernels_column("fastest"), 1);
#endif
}

/* ------------------------------------------------------------------------------------ mutants */

/* A column that computes rightly and then spoils one result of the first member. */
static const struct column *real;
static float spoil_by;

static void spoil(float *x) {
    *x += spoil_by;
}

#define MUTANT(OP, RECORD, SPOIL)                                                                  \
    static void wrong_##OP(const struct RECORD *a, const struct batch *b, struct work w) {         \
        real->OP(a, b, w);                                                                         \
        if (w.index == 0)                                                                          \
            SPOIL;                                                                                 \
    }
MUTANT(linear, op_linear, spoil(a->part[0].y.data + 3))
MUTANT(experts_up, op_experts, spoil(a->h.data + 3))
MUTANT(experts_down, op_experts, spoil(a->out.data + 3))
MUTANT(kda_decode, op_kda, spoil(a->pool->data + a->layer * a->pool->layer_floats + 7))
MUTANT(kda_prefill, op_kda, spoil(a->out.data + 5))
MUTANT(mla_decode, op_mla, spoil(a->out.data + 3))
MUTANT(mla_prefill, op_mla, spoil(a->out.data + 3))
MUTANT(mla_write, op_mla_write, spoil_by > 0 ? (void)(a->pool->data[1] ^= 1) : (void)0)
MUTANT(mix_norm, op_mix_norm, spoil(a->prefix.data + 3))
MUTANT(norm, op_norm, spoil(a->y.data + 3))
MUTANT(glu, op_glu, spoil(a->y.data + 3))
MUTANT(route, op_route, spoil_by > 0 ? (void)(a->ids[1] = a->ids[0]) : (void)0)
static void wrong_embed(const struct op_embed *a, const struct batch *b, const int32_t *ids,
                        struct work w) {
    real->embed(a, b, ids, w);
    if (w.index == 0)
        spoil(a->out.data + 3);
}

static void one_wrong_value_of_any_operation_is_caught(void **state) {
    real = kernels_column("fastest");
    struct column mutant = *real;
    mutant.linear = wrong_linear;
    mutant.experts_up = wrong_experts_up;
    mutant.experts_down = wrong_experts_down;
    mutant.kda_decode = wrong_kda_decode;
    mutant.kda_prefill = wrong_kda_prefill;
    mutant.mla_decode = wrong_mla_decode;
    mutant.mla_prefill = wrong_mla_prefill;
    mutant.mla_write = wrong_mla_write;
    mutant.mix_norm = wrong_mix_norm;
    mutant.norm = wrong_norm;
    mutant.glu = wrong_glu;
    mutant.route = wrong_route;
    mutant.embed = wrong_embed;
    struct team *team = team_open(1);
    size_t n;
    const struct kernel_case *table = kernel_table(&n);
    for (int wrong = 0; wrong < 2; wrong++) {
        for (size_t i = 0; i < n; i++) {
            struct kernel_case c = kernel_case_small(table[i]);
            struct kernel_work w;
            struct kernel_error e;
            struct kernel_limit limit = kernel_limit(&c, mutant.activation);
            spoil_by = wrong ? fmaxf(1e-2f, 3 * (float)limit.largest) : 0;
            assert_int_equal(kernel_build(&c, 1, 1e9, team, 5, &w, NULL), WEIR_OK);
            assert_int_equal(kernel_check(&w, &mutant, team, 2e5, &e, NULL), WEIR_OK);
            if (kernel_error_within(&e, &limit) != !wrong)
                fail_msg("%s n=%u: error %g rms, %g largest is %s", c.name, c.n, e.rms, e.largest,
                         wrong ? "not seen" : "too much for a right result");
            kernel_free(&w);
        }
    }
    team_close(team);
}

static void a_result_that_is_not_a_number_is_caught(void **state) {
    real = kernels_column("fastest");
    struct column mutant = *real;
    mutant.linear = wrong_linear;
    spoil_by = NAN;
    struct team *team = team_open(1);
    struct kernel_case c = kernel_case_small(kernel_table(&(size_t){0})[0]);
    struct kernel_work w;
    struct kernel_error e;
    assert_int_equal(kernel_build(&c, 1, 1e9, team, 5, &w, NULL), WEIR_OK);
    assert_int_equal(kernel_check(&w, &mutant, team, 2e5, &e, NULL), WEIR_OK);
    struct kernel_limit loose = kernel_limit(&c, ACTIVATION_INT8);
    assert_false(kernel_error_within(&e, &loose));
    kernel_free(&w);
    team_close(team);
}

/* -------------------------------------------------------------------------------------- costs */

static struct kernel_cost cost_of(const char *filter) {
    size_t n;
    const struct kernel_case *t = kernel_table(&n);
    for (size_t i = 0; i < n; i++)
        if (kernel_selected(&t[i], filter))
            return kernel_cost(&t[i], t[i].top_k);
    fail_msg("no case %s", filter);
    return (struct kernel_cost){0};
}

static void costs_are_those_of_the_published_shapes(void **state) {
    struct kernel_cost k = cost_of("expert_w1 3072x3584 n=1");
    assert_float_equal(k.read_bytes, 3072 * 3584 * 4.25 / 8, 1); /* 4 bits, and 8 a group of 32 */
    assert_float_equal(k.flops, 2.0 * 3072 * 3584, 1);
    k = cost_of("expert_w1 3072x3584 n=8");
    assert_float_equal(k.read_bytes, 3072 * 3584 * 4.25 / 8, 1);
    assert_float_equal(k.flops, 16.0 * 3072 * 3584, 1);
    k = cost_of("trunk_in 12288x7168 n=1 ");
    assert_float_equal(k.read_bytes, 12288.0 * 7168 * 2, 1);
    k = cost_of("trunk_in 12288x7168 n=512"); /* activations no longer fit the caches */
    assert_float_equal(k.read_bytes, 12288.0 * 7168 * 2 + 512 * 7168 * 4.0, 1);
    assert_float_equal(k.write_bytes, 512 * 12288 * 4.0, 1);
    k = cost_of("kda_step 96x128x128 of 69 layers n=1");
    /* 434 MB of states in 69 layers, and the windows. */
    assert_float_equal(69 * k.modify_bytes, 69.0 * (96 * 128 * 128 * 4 + 9 * 96 * 128 * 4), 1);
    k = cost_of("mla_decode 96 heads 2048 positions n=1 f32");
    assert_float_equal(k.read_bytes, 2048 * 576 * 4.0 + 24576 * 512 * 2.0, 1);
    assert_float_equal(k.flops, 96 * (2048 * 1088 * 2.0 + 2 * 128 * 512 * 2.0), 1);
    k = cost_of("experts_up 16 of 64 2x3072x3584 n=1");
    assert_float_equal(k.read_bytes, 32 * 3072 * 3584 * 4.25 / 8, 1);
}

static void bounds_grow_with_the_root_of_a_long_history(void **state) {
    struct kernel_case c = {.family = KERNEL_MLA_DECODE, .bound = BOUND_SOFTMAX, .history = 4096};
    struct kernel_limit base = kernel_limit(&c, ACTIVATION_F32);
    c.history = 16 * 4096;
    /* Attention takes its operands as they are, whatever the products do. */
    for (enum activation a = ACTIVATION_F32; a < ACTIVATIONS; a++) {
        assert_float_equal(kernel_limit(&c, a).rms, 4 * base.rms, 1e-12);
        assert_float_equal(kernel_limit(&c, a).largest, 4 * base.largest, 1e-12);
    }
}

static void bounds_follow_what_is_rounded(void **state) {
    struct kernel_case c = {.family = KERNEL_LINEAR, .dtype = DTYPE_MXFP4, .bound = BOUND_DOT};
    double f32 = kernel_limit(&c, ACTIVATION_F32).rms, bf16 = kernel_limit(&c, ACTIVATION_BF16).rms;
    double int8 = kernel_limit(&c, ACTIVATION_INT8).rms;
    assert_true(f32 < bf16 && bf16 < int8);
    c.dtype = DTYPE_BF16; /* whose activations int8 leaves at bf16 */
    assert_float_equal(kernel_limit(&c, ACTIVATION_INT8).rms, bf16, 1e-12);
    c.dtype = DTYPE_F32; /* and f32 weights take no rounded ones at all */
    assert_float_equal(kernel_limit(&c, ACTIVATION_INT8).rms, f32, 1e-12);
    c.dtype = DTYPE_BF16;
    c.dense = DENSE_INT8;
    assert_true(kernel_limit(&c, ACTIVATION_F32).rms > bf16);
}

static void the_slower_of_memory_and_arithmetic_binds(void **state) {
    struct roof r = {.read = 40, .modify = 50, .copy = 40, .cache = 100, .peak = {200, 400, 800}};
    const char *limit;
    struct kernel_cost k = {.read_bytes = 40e6, .flops = 1e6};
    assert_float_equal(roof_seconds(&r, &k, ARITHMETIC_F32, &limit), 1e-3, 1e-9);
    assert_string_equal(limit, "read");
    k.modify_bytes = 100e6; /* there and back: 200 MB at 50 GB/s */
    assert_float_equal(roof_seconds(&r, &k, ARITHMETIC_F32, &limit), 5e-3, 1e-9);
    assert_string_equal(limit, "modify");
    k.flops = 2e9;
    assert_float_equal(roof_seconds(&r, &k, ARITHMETIC_F32, &limit), 10e-3, 1e-9);
    assert_string_equal(limit, "f32");
    k = (struct kernel_cost){.cache_bytes = 1e6, .flops = 1};
    assert_float_equal(roof_seconds(&r, &k, ARITHMETIC_F32, &limit), 10e-6, 1e-9);
    assert_string_equal(limit, "cache");
}

static void time_of_others_is_what_this_process_did_not_spend(void **state) {
    struct idle_mark a = {true, 10, 100, 1, 5}, b = {true, 12, 103, 1.5, 7};
    struct idle_share s = idle_between(&a, &b);
    assert_true(s.known);
    assert_float_equal(s.others, 0.5, 1e-9); /* 3 s busy, 2 s ours, in 2 s */
    assert_float_equal(s.stolen, 0.25, 1e-9);
    assert_false(idle_is_quiet(&s));
    b = (struct idle_mark){true, 12, 102.05, 1, 7};
    s = idle_between(&a, &b);
    assert_true(idle_is_quiet(&s));
    struct idle_mark now = idle_mark();
    assert_true(now.known && now.busy > 0 && now.own > 0);
}

static void waiting_for_an_idle_machine_ends(void **state) {
    struct idle_mark a = idle_mark();
    idle_wait(0);
    struct idle_mark b = idle_mark();
    assert_true(b.seconds - a.seconds < 0.4); /* less than one probe */
    idle_wait(0.1);
    a = idle_mark();
    struct idle_share s = idle_between(&b, &a);
    assert_true(s.seconds >= 0.5); /* one probe, whatever it says */
}

static void numbers_do_not_depend_on_the_team_and_are_no_subnormals(void **state) {
    enum { N = 1003 };
    static const enum kernel_fill kinds[] = {FILL_F32, FILL_BF16, FILL_CODES, FILL_SCALES};
    struct team *one = team_open(1), *three = team_open(3);
    for (int k = 0; k < 4; k++) {
        unsigned char a[4 * N], b[4 * N];
        kernel_fill(one, a, sizeof a, kinds[k], -2, 9);
        kernel_fill(three, b, sizeof b, kinds[k], -2, 9);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < N; i++) {
            float f;
            uint16_t h;
            memcpy(&f, a + 4 * i, 4);
            memcpy(&h, a + 4 * i, 2);
            float g = bf16_to_f32(h);
            if (kinds[k] == FILL_F32)
                assert_true(fabsf(f) >= 0.125f && fabsf(f) < 0.5f);
            if (kinds[k] == FILL_BF16)
                assert_true(fabsf(g) >= 0.125f && fabsf(g) < 0.5f);
            if (kinds[k] == FILL_SCALES)
                assert_true(a[i] == 125 || a[i] == 126);
        }
    }
    team_close(one);
    team_close(three);
}

static void each_copy_of_a_lone_row_takes_other_experts(void **state) {
    struct kernel_case c = {.name = "experts_up",
                            .family = KERNEL_EXPERTS_UP,
                            .dtype = DTYPE_MXFP4,
                            .n = 1,
                            .out = 32,
                            .in = 32,
                            .count = 12,
                            .top_k = 4};
    struct team *team = team_open(1);
    struct kernel_work w;
    assert_int_equal(kernel_build(&c, 1, 1e9, team, 5, &w, NULL), WEIR_OK);
    assert_int_equal(w.n_ops, 3);
    bool seen[12] = {false};
    for (uint32_t i = 0; i < 12; i++) {
        int32_t e = w.op[i / 4].u.experts.ids[i % 4];
        assert_false(seen[e]);
        seen[e] = true;
    }
    assert_float_equal(w.cost.read_bytes, 4 * 2 * (32 * 16 + 32), 1e-9);
    kernel_free(&w);
    c.n = 3; /* rows choose by chance, each row different ones */
    assert_int_equal(kernel_build(&c, 1, 1e9, team, 5, &w, NULL), WEIR_OK);
    for (uint32_t r = 0; r < 3; r++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t j = 0; j < i; j++)
                assert_int_not_equal(w.op[0].u.experts.ids[4 * r + i],
                                     w.op[0].u.experts.ids[4 * r + j]);
    kernel_free(&w);
    team_close(team);
}

static void too_large_a_case_is_refused_before_it_takes_memory(void **state) {
    struct team *team = team_open(1);
    struct kernel_case c = kernel_case_small(kernel_table(&(size_t){0})[0]);
    struct kernel_work w;
    weir_error err = {0};
    assert_int_equal(kernel_build(&c, 1, 1000, team, 5, &w, &err), WEIR_NO_MEMORY);
    assert_non_null(strstr(err.message, "no memory for "));
    team_close(team);
}

#if defined(WEIR_ONEDNN_HEADERS)
static void a_library_as_baseline_computes_the_same_products(void **state) {
    const struct kernel_case c = {.name = "trunk",
                                  .family = KERNEL_LINEAR,
                                  .dtype = DTYPE_BF16,
                                  .n = 5,
                                  .out = 96,
                                  .in = 160};
    struct team *team = team_open(1);
    struct kernel_work w;
    weir_error err = {0};
    if (onednn_load(1, &err))
        fail_msg("%s: %s", err.where, err.message);
    assert_true(onednn_takes(&c));
    assert_int_equal(kernel_build(&c, 2 * 96 * 160 * 2, 1e9, team, 5, &w, NULL), WEIR_OK);
    assert_true(w.n_ops >= 2);
    struct onednn *library = onednn_open(&w);
    assert_non_null(library);
    void *scratch = aligned_alloc(4096, kernel_scratch_bytes(&w, &column_ref, 1) + 4096);
    for (uint32_t i = 0; i < 2; i++) {
        double error = 0, size = 0;
        kernel_call(&w, &column_ref, team, scratch, i, 1);
        assert_true(onednn_call(library, i, 1) > 0);
        const float *got = onednn_results(library);
        const float *want = w.op[i].u.linear.part[0].y.data;
        for (uint32_t k = 0; k < c.n * c.out; k++) {
            error += pow((double)got[k] - (double)want[k], 2);
            size += pow((double)want[k], 2);
        }
        assert_true(sqrt(error / size) <
                    (strcmp(onednn_name(library), "onednn f32") ? 1e-2 : 1e-5));
    }
    free(scratch);
    onednn_close(library);
    kernel_free(&w);
    team_close(team);
}
#else
static void a_library_as_baseline_computes_the_same_products(void **state) {
    fails(1, "bench kernels --small --filter trunk_in --baseline onednn",
          "built without its headers");
}
#endif

/* ------------------------------------------------------------------------------------ command */

static void json_has_the_documented_keys(void **state) {
    json_t *o = run_json(NULL, "bench kernels --small --threads 2 --filter expert_w1,route "
                               "--isa portable --baseline exact --json");
    json_t *machine = json_object_get(o, "machine"), *roof = json_object_get(o, "roof");
    assert_true(json_is_string(json_object_get(machine, "kernel")));
    assert_int_equal(json_integer_value(json_object_get(machine, "threads")), 2);
    assert_true(json_integer_value(json_object_get(machine, "memory_bytes")) > 0);
    static const char *const rates[] = {"read_gbps", "modify_gbps", "copy_gbps", "cache_gbps",
                                        "f32_gflops"};
    for (size_t i = 0; i < 5; i++)
        assert_true(json_real_value(json_object_get(roof, rates[i])) > 0);
    json_t *rows = json_object_get(o, "kernels"), *row;
    assert_int_equal(json_array_size(rows), 11); /* six of expert_w1, two of route, three of router
                                                  */
    size_t i;
    json_array_foreach(rows, i, row) {
        static const char *const keys[] = {"us", "gbps", "gflops", "share_of_roof", "error"};
        for (size_t k = 0; k < 5; k++)
            assert_true(json_is_real(json_object_get(row, keys[k])));
        assert_string_equal(json_string_value(json_object_get(row, "variant")), "portable");
        assert_true(json_is_string(json_object_get(row, "name")));
        assert_true(json_is_string(json_object_get(row, "shape")));
        assert_true(json_is_string(json_object_get(row, "limit")));
        assert_true(json_is_boolean(json_object_get(row, "busy")));
        size_t samples = json_array_size(json_object_get(row, "samples_us"));
        assert_true(samples >= 2);
        assert_int_equal(json_array_size(json_object_get(row, "samples_share")), samples);
        assert_int_equal(json_array_size(json_object_get(row, "samples_roof")), samples);
        json_t *base = json_object_get(row, "baseline");
        assert_string_equal(json_string_value(json_object_get(base, "variant")), "exact");
        assert_true(json_real_value(json_object_get(base, "times_as_fast")) > 0);
    }
    assert_true(json_is_boolean(json_object_get(o, "quiet")));
    json_decref(o);
}

static void fastest_baseline_is_another_column(void **state) {
    json_t *o = run_json(NULL, "bench kernels --small --filter norm --isa exact --baseline fastest "
                               "--json");
    json_t *row = json_array_get(json_object_get(o, "kernels"), 0);
    const char *base =
        json_string_value(json_object_get(json_object_get(row, "baseline"), "variant"));
    assert_non_null(base);
    assert_string_not_equal(base, "exact");
    json_decref(o);
}

static void what_is_not_there_is_refused_in_one_line(void **state) {
    fails(2, "bench kernels --small --isa sse9", "'sse9' is not on this machine: fastest, exact");
    fails(2, "bench kernels --small --filter nothing", "'nothing' meets no case");
    fails(2, "bench kernels --small --baseline sse9", "--baseline: 'sse9' is not on this machine");
    fails(2, "bench kernels --device tpu", "--device");
    fails(2, "bench kernels --device cuda", "use cpu");
}

static void the_list_shows_bounds_and_their_reasons(void **state) {
    succeeds(NULL, "bench kernels --list");
    const char *out = last_outcome()->out;
    assert_non_null(strstr(out, "the same products in another order of f32 sums"));
    assert_non_null(strstr(out, "head          163840x7168 n=1"));
    assert_non_null(strstr(out, "kda_prefill   96x128x128 n=16384"));
    succeeds(NULL, "bench kernels --list --small");
    out = last_outcome()->out;
    assert_non_null(strstr(out, "expert_w1     81x160 n=1"));
    assert_null(strstr(out, "163840x7168"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_on_every_column_stays_within_its_bound),
        cmocka_unit_test(one_wrong_value_of_any_operation_is_caught),
        cmocka_unit_test(a_result_that_is_not_a_number_is_caught),
        cmocka_unit_test(costs_are_those_of_the_published_shapes),
        cmocka_unit_test(bounds_grow_with_the_root_of_a_long_history),
        cmocka_unit_test(bounds_follow_what_is_rounded),
        cmocka_unit_test(the_slower_of_memory_and_arithmetic_binds),
        cmocka_unit_test(time_of_others_is_what_this_process_did_not_spend),
        cmocka_unit_test(waiting_for_an_idle_machine_ends),
        cmocka_unit_test(numbers_do_not_depend_on_the_team_and_are_no_subnormals),
        cmocka_unit_test(each_copy_of_a_lone_row_takes_other_experts),
        cmocka_unit_test(too_large_a_case_is_refused_before_it_takes_memory),
        cmocka_unit_test(a_library_as_baseline_computes_the_same_products),
        cmocka_unit_test(json_has_the_documented_keys),
        cmocka_unit_test(fastest_baseline_is_another_column),
        cmocka_unit_test(what_is_not_there_is_refused_in_one_line),
        cmocka_unit_test(the_list_shows_bounds_and_their_reasons),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
