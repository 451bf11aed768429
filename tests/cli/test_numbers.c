/* test_numbers.c: `weir cost` and `weir frontier` from outside, with published figures. */
#include "tests/cli/program.h"

#include <math.h>

static double number(const json_t *o, const char *name) {
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v))
        fail_msg("no number %s", name);
    return json_number_value(v);
}

/* Rounded to so many decimals it reads as published. */
static void reads(double x, int decimals, const char *text) {
    char is[64];
    snprintf(is, sizeof is, "%.*f", decimals, x);
    assert_string_equal(is, text);
}

static void says(const char *line, const char *part) {
    succeeds(NULL, line);
    if (!strstr(last_outcome()->out, part))
        fail_msg("'%s' is not in:\n%s", part, last_outcome()->out);
}

static void cost_gives_the_headline(void **state) {
    json_t *o = run_json(NULL, "cost --tokens-per-second-per-gpu 7567 --machine mi355x --prices "
                               "tco-2026-07-owning --versus 6083@b300 --json");
    const json_t *b = json_object_get(o, "versus");
    reads(number(o, "tokens_per_dollar"), 0, "18160800");
    reads(number(b, "tokens_per_dollar"), 1, "9689734.5");
    reads(100 * number(b, "advantage"), 2, "87.42");
    reads(100 * number(b, "saving"), 2, "46.64");
    reads(number(o, "dollars_per_million"), 7, "0.0550637");
    reads(number(o, "joules_per_token"), 6, "0.276199");
    reads(number(o, "tokens_per_second_per_megawatt"), 0, "3620574");
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "prices"), "name")),
                        "tco-2026-07-owning");
    json_decref(o);
    says("cost --tokens-per-second-per-gpu 7567 --machine mi355x --prices tco-2026-07-owning "
         "--versus 6083@b300",
         "tokens per dollar +87.42 %, price of a token -46.64 %");
}

static void cost_takes_a_price_of_ones_own(void **state) {
    json_t *o = run_json(NULL, "cost --tokens-per-second-per-gpu 7567 --price 1.5 "
                               "--output-tokens-per-second-per-gpu 50 --json");
    reads(number(o, "tokens_per_dollar"), 0, "18160800");
    assert_true(json_is_null(json_object_get(o, "joules_per_token")));
    assert_true(json_is_null(json_object_get(o, "input")));
    reads(number(json_object_get(o, "output"), "dollars_per_million"), 4, "8.3333");
    json_decref(o);
    o = run_json(NULL, "cost --tokens-per-second-per-gpu 7567 --price 1.5 --kilowatts 2.09 "
                       "--versus 6083@2.26 --json");
    reads(100 * number(json_object_get(o, "versus"), "advantage"), 2, "87.42");
    reads(number(o, "joules_per_token"), 6, "0.276199");
    json_decref(o);
}

static void cost_lists_its_tables(void **state) {
    json_t *o = run_json(NULL, "cost --list --json");
    assert_int_equal(json_array_size(json_object_get(o, "tables")), 8);
    json_decref(o);
    says("cost --list", "tco-2026-04-neocloud");
    says("cost --list --prices wafer-2026", "mi355x     $  2.500");
}

static void cost_says_what_is_missing_or_contradicts(void **state) {
    fails(2, "cost --price 2", "--tokens-per-second-per-gpu: is missing");
    fails(2, "cost --tokens-per-second-per-gpu 5", "--price: is missing");
    fails(2, "cost --tokens-per-second-per-gpu 0 --price 2", "--tokens-per-second-per-gpu: ");
    fails(2, "cost --tokens-per-second-per-gpu 5 --price 2 --prices wafer-2026", "--price: ");
    fails(2, "cost --tokens-per-second-per-gpu 5 --prices wafer-2026", "--machine: is missing");
    fails(2, "cost --tokens-per-second-per-gpu 5 --prices wafer-2026 --machine h100",
          "which has mi355x, b200, b300");
    fails(2, "cost --tokens-per-second-per-gpu 5 --prices tco --machine h100",
          "tco-2026-07-owning");
    fails(2, "cost --tokens-per-second-per-gpu 5 --price 2 --versus 6083", "--versus: ");
    fails(2, "cost --tokens-per-second-per-gpu 5 --price 2 --versus 6083@b300",
          "names of machines need --prices");
    fails(1, "cost --run %nowhere --price 2", "profile_export.jsonl");
    fails(1, "cost --tokens-per-second-per-gpu 5 --prices %no.json --machine a", "no.json");
}

static void cost_reads_a_table_of_ones_own(void **state) {
    static const char text[] = "{\"name\":\"ours\",\"source\":\"bill\",\"date\":\"2026-09\","
                               "\"machines\":{\"h200\":{\"dollars\":2}}}";
    write_scratch("ours.json", text, strlen(text));
    json_t *o = run_json(NULL, "cost --tokens-per-second-per-gpu 1000 --machine h200 --prices "
                               "%ours.json --json");
    reads(number(o, "tokens_per_dollar"), 0, "1800000");
    json_decref(o);
}

/* One answer of a comparison: the series `name` in question i of `key`. */
static const json_t *answer(const json_t *o, const char *key, size_t i, const char *name) {
    const json_t *q = json_array_get(json_object_get(o, key), i);
    const json_t *list = json_object_get(q, "series"), *s;
    for (size_t k = 0; (s = json_array_get(list, k)); k++)
        if (!strcmp(json_string_value(json_object_get(s, "series")), name))
            return s;
    fail_msg("no %s in %s", name, key);
    return NULL;
}

#define K25 "@tests/trace/data/kimi-k25-8k1k.csv --statistic median "
static const char old[] = "mi355x vllm 0.16", new[] = "mi355x vllm 0.18";

static void frontier_gives_the_interpolations_of_the_k25_article(void **state) {
    json_t *o = run_json(NULL, "frontier " K25 "--interp linear --extrapolate --at-throughput 337 "
                               "--at-throughput 380 --json");
    const json_t *a = answer(o, "at_throughput", 0, old), *b = answer(o, "at_throughput", 0, new);
    reads(number(a, "interactivity"), 6, "5.066174");
    assert_int_equal(json_integer_value(json_object_get(a, "concurrency")), 62);
    assert_true(json_is_false(json_object_get(a, "extrapolated")));
    reads(number(b, "ratio"), 3, "15.574");
    reads(number(b, "ratio"), 1, "15.6");
    a = answer(o, "at_throughput", 1, old);
    b = answer(o, "at_throughput", 1, new);
    reads(number(a, "interactivity"), 5, "4.91269");
    assert_true(json_is_true(json_object_get(a, "extrapolated")));
    reads(number(b, "interactivity"), 4, "74.6701");
    assert_int_equal(json_integer_value(json_object_get(b, "concurrency")), 5);
    assert_true(json_is_false(json_object_get(b, "extrapolated")));
    reads(number(b, "ratio"), 1, "15.2");
    json_decref(o);
}

static void frontier_does_not_extrapolate_unless_asked(void **state) {
    json_t *o = run_json(NULL, "frontier " K25 "--interp linear --at-throughput 380 --json");
    const json_t *a = answer(o, "at_throughput", 0, old);
    assert_true(json_is_false(json_object_get(a, "found")));
    assert_true(json_is_null(json_object_get(a, "interactivity")));
    assert_true(json_is_null(json_object_get(answer(o, "at_throughput", 0, new), "ratio")));
    json_decref(o);
}

static void the_spline_gives_other_figures_than_the_article(void **state) {
    json_t *o = run_json(NULL, "frontier " K25 "--at-throughput 337 --at-throughput 380 --json");
    const json_t *a = answer(o, "at_throughput", 0, old);
    reads(number(a, "interactivity"), 2, "5.06");
    reads(number(answer(o, "at_throughput", 1, new), "interactivity"), 1, "73.9");
    json_decref(o);
}

static void gains_at_the_same_concurrency_are_those_of_the_article(void **state) {
    /* Published from rates that were rounded before. */
    static const char text[] = "series,conc,tput_per_gpu,median_intvty\n"
                               "old,4,28.7,6.6\nold,8,55.0,6.3\nold,16,104.8,6.1\n"
                               "old,32,191.2,5.6\nold,64,348.5,5.0\n"
                               "new,4,337,78.9\nnew,8,521,60.8\nnew,16,870,50.5\n"
                               "new,32,1255,36.4\nnew,64,1647,23.3\n";
    static const char *const gains[] = {"12.0", "9.7", "8.3", "6.5", "4.7"};
    write_scratch("rounded.csv", text, strlen(text));
    json_t *o = run_json(NULL, "frontier %rounded.csv --statistic median --series label "
                               "--same-concurrency --json");
    for (size_t i = 0; i < 5; i++) {
        const json_t *q = json_array_get(json_object_get(o, "same_concurrency"), i);
        assert_int_equal(json_integer_value(json_object_get(q, "concurrency")), 4 << i);
        reads(number(answer(o, "same_concurrency", i, "new"), "ratio"), 1, gains[i]);
    }
    assert_null(json_array_get(json_object_get(o, "same_concurrency"), 5));
    json_decref(o);
}

/* One variable of the environment is set while `line` runs. */
static void with_variable(const char *name, const char *value, int status, const char *line,
                          const char *part) {
    assert_int_equal(setenv(name, value, 1), 0);
    if (status)
        fails(status, line, part);
    else
        says(line, part);
    assert_int_equal(unsetenv(name), 0);
}

static void what_was_typed_wins_over_its_opposite_in_the_environment(void **state) {
    static const char text[] = "hw,framework,conc,tput_per_gpu,p90_intvty\nb300,vllm,16,7567,50\n";
    static const char rate[] = "cost --tokens-per-second-per-gpu 100";
    char own[128], table[128];
    write_scratch("one.csv", text, strlen(text));
    snprintf(own, sizeof own, "%s --price 2", rate);
    snprintf(table, sizeof table, "%s --machine b300 --prices wafer-2026", rate);
    with_variable("WEIR_PRICES", "nope", 0, own, "at $2 per GPU-hour");
    with_variable("WEIR_MACHINE", "b300", 0, own, "at $2 per GPU-hour");
    with_variable("WEIR_PRICE", "3", 0, table, "Prices: wafer-2026");
    with_variable("WEIR_KILOWATTS", "3", 0, table, "Prices: wafer-2026");
    with_variable("WEIR_PRICE", "3", 0, "frontier %one.csv --prices wafer-2026", "wafer-2026");
    with_variable("WEIR_PRICES", "nope", 0, "frontier %one.csv --price 2", "50");
    with_variable("WEIR_PRICE", "3", 1, "report %nowhere --out %r.html --prices wafer-2026",
                  "nowhere");
    /* What stands without an opposite is named by where it stands. */
    with_variable("WEIR_PRICES", "nope", 2, rate, "WEIR_PRICES: ");
    with_variable("WEIR_KILOWATTS", "2", 2, rate, "WEIR_KILOWATTS: ");
}

static void frontier_prices_points_by_one_table(void **state) {
    static const char text[] = "hw,framework,conc,tput_per_gpu,p90_intvty\n"
                               "mi355x,vllm,16,7567,50\nb300,vllm,16,6083,50\n"
                               "mi355x,vllm,48,9000,30\nb300,vllm,48,9000,30\n";
    write_scratch("k3.csv", text, strlen(text));
    json_t *o = run_json(NULL, "frontier %k3.csv --prices tco-2026-07-owning --baseline "
                               "'b300 vllm' --at-interactivity 50 --json");
    const json_t *a = answer(o, "at_interactivity", 0, "mi355x vllm");
    const json_t *b = answer(o, "at_interactivity", 0, "b300 vllm");
    reads(number(a, "tokens_per_dollar") / 1e6, 4, "18.1608");
    reads(number(b, "tokens_per_dollar") / 1e6, 4, "9.6897");
    reads(number(a, "ratio"), 4, "1.2440");
    json_decref(o);
    says("frontier %k3.csv --prices tco-2026-07-owning", "18.1608");
    says("frontier %k3.csv --prices tco-2026-07-owning", "J/token");
    says("frontier %k3.csv --price 2 --kilowatts 2 --at-interactivity 40", "at that throughput)");
    says("frontier %k3.csv --at-interactivity 90",
         "beyond the end of its frontier (7567.0 tokens/s/GPU at 50 tokens/s/user)");
    fails(1, "frontier @tests/trace/data/kimi-k25-8k1k.csv",
          "there is median_intvty (--statistic)");
    fails(2, "frontier %k3.csv --prices wafer-2026 --price 2", "--price");
    static const char nameless[] = "framework,conc,tput_per_gpu,p90_intvty\nvllm,16,7567,50\n";
    write_scratch("nameless.csv", nameless, strlen(nameless));
    fails(2, "frontier %nameless.csv --prices wafer-2026",
          "nameless.csv: does not say its hardware, so no price of table wafer-2026 fits it; give "
          "--price");
    fails(2, "frontier %k3.csv --baseline nobody", "'b300 vllm'");
    fails(2, "frontier %k3.csv --at-interactivity fast", "'fast' is not a number");
    fails(2, "frontier %k3.csv --x ttft --at-interactivity 5", "--at-interactivity");
    fails(2, "frontier %k3.csv --series colour", "'colour'");
    fails(1, "frontier %k3.csv --statistic p99", "p99_intvty");
    fails(1, "frontier %nowhere.csv", "nowhere.csv");
    fails(2, "frontier", "RESULTS: is missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cost_gives_the_headline),
        cmocka_unit_test(cost_takes_a_price_of_ones_own),
        cmocka_unit_test(cost_lists_its_tables),
        cmocka_unit_test(cost_says_what_is_missing_or_contradicts),
        cmocka_unit_test(cost_reads_a_table_of_ones_own),
        cmocka_unit_test(frontier_gives_the_interpolations_of_the_k25_article),
        cmocka_unit_test(frontier_does_not_extrapolate_unless_asked),
        cmocka_unit_test(the_spline_gives_other_figures_than_the_article),
        cmocka_unit_test(gains_at_the_same_concurrency_are_those_of_the_article),
        cmocka_unit_test(what_was_typed_wins_over_its_opposite_in_the_environment),
        cmocka_unit_test(frontier_prices_points_by_one_table),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
