/* test_score.c: `weir score` against damaged golden numbers: a comparison that cannot fail proves
 * nothing. Each case changes one thing of a copied vectors directory and must be found out. */
#include "tests/cli/program.h"

#include <math.h>

static const char *const directory = "vec";

static void fresh_copy(void) {
    copy_scratch("vectors/micro-k3-odd", directory);
}

/* Adds `by` to value `index` of a float file. */
static void shift(const char *file, long index, float by) {
    char name[300];
    snprintf(name, sizeof name, "%s/%s", directory, file);
    FILE *f = fopen(scratch(name), "r+b");
    assert_non_null(f);
    float x;
    fseek(f, index * 4, SEEK_SET);
    assert_int_equal(fread(&x, 4, 1, f), 1);
    x += by;
    fseek(f, index * 4, SEEK_SET);
    assert_int_equal(fwrite(&x, 4, 1, f), 1);
    fclose(f);
}

static json_t *load_manifest(void) {
    char name[64];
    snprintf(name, sizeof name, "%s/manifest.json", directory);
    json_t *m = json_load_file(scratch(name), 0, NULL);
    assert_non_null(m);
    return m;
}

static void store_manifest(json_t *m) {
    char name[64];
    snprintf(name, sizeof name, "%s/manifest.json", directory);
    assert_int_equal(json_dump_file(m, scratch(name), JSON_REAL_PRECISION(17)), 0);
    json_decref(m);
}

/* Runs one case on the exact column: exactly the check whose name starts with `what` fails. */
static void found_out(const char *name, const char *what) {
    char line[200];
    snprintf(line, sizeof line,
             "score --model @models/micro-k3-odd --vectors %%%s --case %s --compute exact --json",
             directory, name);
    json_t *got = run_json(NULL, line), *check;
    assert_int_equal(last_outcome()->status, 1);
    assert_true(json_is_false(json_object_get(got, "ok")));
    json_t *checks = json_object_get(json_array_get(json_object_get(got, "cases"), 0), "checks");
    size_t i, failed = 0;
    json_array_foreach(checks, i, check) {
        const char *text = json_string_value(json_object_get(check, "what"));
        if (json_is_true(json_object_get(check, "ok")))
            continue;
        if (strncmp(text, what, strlen(what)))
            fail_msg("%s: '%s' failed, not '%s'", name, text, what);
        failed++;
    }
    if (failed == 0)
        fail_msg("%s: '%s' was not found out", name, what);
    json_decref(got);
}

static void undamaged_numbers_pass_on_both_columns(void **state) {
    fresh_copy();
    static const char *const compute[] = {"exact", "fast"};
    for (int i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "score --model @models/micro-k3-odd --vectors %%vec --compute %s --json",
                 compute[i]);
        json_t *got = run_json(NULL, line);
        assert_int_equal(last_outcome()->status, 0);
        assert_int_equal(json_integer_value(json_object_get(got, "passed")), 5);
        assert_string_equal(json_string_value(json_object_get(got, "compute")), compute[i]);
        json_decref(got);
    }
}

static void a_logit_beyond_its_bound_is_found_out(void **state) {
    fresh_copy();
    shift("len1.logits.f32", 17, 2e-4f);
    found_out("len1", "logits of the prompt");
    fresh_copy();
    shift("len129.logits.f32", 112 * 128 + 5, -2e-3f);
    found_out("len129", "logits of the prompt");
}

/* Good values behind a NaN must not make it forgotten. */
static void a_nan_is_found_out_wherever_it_stands(void **state) {
    fresh_copy();
    shift("len1.logits.f32", 17, NAN);
    found_out("len1", "logits of the prompt");
    fresh_copy();
    shift("len63.logits.f32", 112 * 30 + 5, NAN);
    found_out("len63", "logits of the prompt");
    fresh_copy();
    shift("len65.kda3.S.f32", 500, NAN);
    found_out("len65", "KDA states");
    fresh_copy();
    shift("len1.layer2.attn_out.f32", 3, NAN);
    found_out("len1", "attn_out");
}

static void a_greedy_id_without_its_gap_is_no_tie(void **state) {
    fresh_copy();
    json_t *m = load_manifest(), *c = json_array_get(json_object_get(m, "cases"), 1);
    json_t *greedy = json_object_get(c, "greedy");
    json_array_set_new(json_object_get(greedy, "ids"), 9, json_integer(1));
    json_object_del(greedy, "logit_gap");
    store_manifest(m);
    found_out("len63", "greedy ids");
}

static void an_activation_beyond_its_bound_is_found_out(void **state) {
    static const char *const name[] = {"embed",         "layer0.attn_in", "layer2.attn_out",
                                       "layer3.ffn_in", "layer4.ffn_out", "layer1.out",
                                       "final_hidden",  "final_normed"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        char file[80];
        const char *dot = strchr(name[i], '.');
        fresh_copy();
        snprintf(file, sizeof file, "len1.%s.f32", name[i]);
        shift(file, 3, 0.01f);
        found_out("len1", dot ? dot + 1 : name[i]);
    }
}

static void a_state_beyond_its_bound_is_found_out(void **state) {
    fresh_copy();
    shift("len65.kda3.S.f32", 500, 0.01f);
    found_out("len65", "KDA states");
    fresh_copy();
    shift("len65.kda3.conv.f32", 4, 0.01f);
    found_out("len65", "KDA windows");
}

static void another_expert_or_id_is_found_out(void **state) {
    fresh_copy();
    json_t *m = load_manifest(), *c = json_array_get(json_object_get(m, "cases"), 0);
    json_t *router = json_object_get(
        json_object_get(json_object_get(c, "router"), "model.layers.3.block_sparse_moe"), "ids");
    json_array_set_new(json_array_get(router, 0), 1, json_integer(5));
    store_manifest(m);
    found_out("len1", "choices of experts");

    fresh_copy();
    m = load_manifest();
    c = json_array_get(json_object_get(m, "cases"), 1);
    json_array_set_new(json_object_get(json_object_get(c, "greedy"), "ids"), 9, json_integer(1));
    store_manifest(m);
    found_out("len63", "greedy ids");
}

static void a_fast_continuation_must_be_the_exact_one(void **state) {
    fresh_copy();
    json_t *m = load_manifest(), *c = json_array_get(json_object_get(m, "cases"), 1);
    json_array_set_new(json_object_get(json_object_get(c, "greedy"), "ids"), 0, json_integer(1));
    store_manifest(m);
    json_t *got = run_json(
        NULL,
        "score --model @models/micro-k3-odd --vectors %vec --case len63 --compute fast --json");
    assert_int_equal(last_outcome()->status, 1);
    assert_int_equal(json_integer_value(json_object_get(got, "astray")), 1);
    json_decref(got);
}

static void vectors_that_contradict_themselves_are_refused(void **state) {
    static const char *const line =
        "score --model @models/micro-k3-odd --vectors %vec --case len1 --compute exact";
    fresh_copy();
    write_scratch("vec/len1.logits.f32", "abc", 3);
    fails(1, line, "len1.logits.f32: has 3 bytes, its shape says 448");
    fresh_copy();
    write_scratch("vec/manifest.json", "{", 1);
    fails(1, line, "manifest.json: line 1");

    fresh_copy();
    json_t *m = load_manifest(), *c = json_array_get(json_object_get(m, "cases"), 0);
    json_array_set_new(json_object_get(c, "ids"), 0, json_integer(112));
    store_manifest(m);
    fails(1, line, "ids[0] is no id from 0 to 111");

    fresh_copy();
    m = load_manifest();
    json_object_set_new(json_object_get(m, "weights_sha256"), "model.safetensors",
                        json_string("00"));
    store_manifest(m);
    fails(1, line, "has other contents");

    fresh_copy();
    m = load_manifest();
    json_array_clear(json_object_get(m, "cases"));
    store_manifest(m);
    fails(1, line, "no case 'len1'");
}

/* Two columns read the same experts then, each in its own way. */
static void experts_that_stay_in_their_files_score_on_both_columns(void **state) {
    for (int fast = 0; fast < 2; fast++) {
        char line[200];
        snprintf(line, sizeof line,
                 "score --model @models/micro-k3-odd --vectors @vectors/micro-k3-odd --case len1 "
                 "--compute %s --expert-cache-bytes 40000",
                 fast ? "fast" : "exact");
        succeeds(NULL, line);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undamaged_numbers_pass_on_both_columns),
        cmocka_unit_test(experts_that_stay_in_their_files_score_on_both_columns),
        cmocka_unit_test(a_logit_beyond_its_bound_is_found_out),
        cmocka_unit_test(a_nan_is_found_out_wherever_it_stands),
        cmocka_unit_test(a_greedy_id_without_its_gap_is_no_tie),
        cmocka_unit_test(an_activation_beyond_its_bound_is_found_out),
        cmocka_unit_test(a_state_beyond_its_bound_is_found_out),
        cmocka_unit_test(another_expert_or_id_is_found_out),
        cmocka_unit_test(a_fast_continuation_must_be_the_exact_one),
        cmocka_unit_test(vectors_that_contradict_themselves_are_refused),
    };
    return cmocka_run_group_tests_name("score", tests, program_setup, program_teardown);
}
