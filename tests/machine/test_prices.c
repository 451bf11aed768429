/* test_prices.c: tables of prices and what tokens cost. */
#include "tests/test.h"

#include "machine/gpus.h"
#include "machine/prices.h"

#include <math.h>
#include <unistd.h>

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.12g is not %.12g", a, b);
}

/* `text` is how the figure was published: so many decimals. */
static void reads(double x, int decimals, const char *text) {
    char is[64];
    snprintf(is, sizeof is, "%.*f", decimals, x);
    assert_string_equal(is, text);
}

static struct price_row row(const char *table, const char *machine) {
    struct price_table t;
    const struct price_row *r = NULL;
    weir_error err;
    if (price_table_open(table, &t, &err) || price_find(&t, machine, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    struct price_row copy = *r;
    price_table_free(&t);
    return copy;
}

static struct cost cost_at(double rate, const char *table, const char *machine) {
    struct price_row r = row(table, machine);
    return cost_of(rate, r.dollars, r.kilowatts);
}

static void the_headline_costs_what_was_published(void **state) {
    struct cost a = cost_at(7567, "tco-2026-07-owning", "mi355x");
    struct cost b = cost_at(6083, "tco-2026-07-owning", "b300");
    near(a.tokens_per_dollar, 18160800);
    near(b.tokens_per_dollar, 9689734.513274);
    double advantage = cost_advantage(a.tokens_per_dollar, b.tokens_per_dollar);
    reads(100 * advantage, 2, "87.42");
    near(advantage, 0.8742309);
    double saving = cost_saving(a.tokens_per_dollar, b.tokens_per_dollar);
    near(saving, 0.4664478);
    reads(100 * saving, 1, "46.6");
    near(saving, 1 - 1 / (1 + advantage));
    near(7567.0 / 6083 - 1, 0.24395857);
    reads(a.dollars_per_million, 7, "0.0550637");
    reads(b.dollars_per_million, 7, "0.1032020");
    reads(a.joules_per_token, 6, "0.276199");
    reads(b.joules_per_token, 6, "0.312346");
    reads(a.tokens_per_second_per_megawatt, 0, "3620574");
    reads(b.tokens_per_second_per_megawatt, 0, "3201579");
}

static void other_tables_give_other_advantages(void **state) {
    static const struct {
        const char *table, *a, *b, *advantage;
        int decimals;
    } rows[] = {{"tco-2026-07-neocloud", "13.0341", "8.6900", "49.99", 2},
                {"tco-2026-07-rental-late", "9.3935", "5.1527", "82.3", 1},
                {"tco-2026-04-owning", "18.4062", "9.3585", "96.7", 1}};
    for (int i = 0; i < 3; i++) {
        double a = cost_at(7567, rows[i].table, "mi355x").tokens_per_dollar;
        double b = cost_at(6083, rows[i].table, "b300").tokens_per_dollar;
        reads(a / 1e6, 4, rows[i].a);
        reads(b / 1e6, 4, rows[i].b);
        reads(100 * cost_advantage(a, b), rows[i].decimals, rows[i].advantage);
    }
}

static void the_article_of_wafer_divides_by_the_price_of_one_gpu(void **state) {
    reads(952.0 / 8 / row("wafer-2026", "mi355x").dollars, 1, "47.6");
    reads(498.0 / 16 / row("wafer-2026", "b200").dollars, 2, "7.32");
    reads(1568.0 / 8 / row("wafer-2026", "b300").dollars, 2, "32.67");
    reads(row("wafer-2026", "b300").dollars / row("wafer-2026", "mi355x").dollars, 1, "2.4");
    reads(row("wafer-2026", "b200").dollars / row("wafer-2026", "mi355x").dollars, 1, "1.7");
    assert_true(isnan(row("wafer-2026", "b300").kilowatts));
    assert_true(isnan(cost_at(100, "wafer-2026", "b300").joules_per_token));
}

static void older_constants_give_the_figures_of_their_time(void **state) {
    static const char table[] = "tco-2026-04-owning";
    reads(cost_at(4020.9, table, "b200").dollars_per_million, 4, "0.1347");
    reads(cost_at(3510.4, table, "mi355x").dollars_per_million, 4, "0.1171");
    reads(cost_at(1149.3, table, "h200").dollars_per_million, 4, "0.3408");
    reads(cost_at(298.4, table, "mi325x").dollars_per_million, 4, "1.1915");
    reads(cost_at(287.0, table, "mi300x").dollars_per_million, 4, "1.0840");
}

static void every_table_in_the_program_is_whole_and_bears_its_name(void **state) {
    size_t n = 0;
    for (; price_table_name(n); n++) {
        struct price_table t;
        weir_error err;
        if (price_table_open(price_table_name(n), &t, &err))
            fail_msg("%s: %s", err.where, err.message);
        assert_string_equal(t.name, price_table_name(n));
        assert_true(t.n >= 3 && t.source[0] && t.date[0]);
        price_table_free(&t);
    }
    assert_int_equal(n, 8);
}

static void undefined_costs_are_no_numbers(void **state) {
    struct cost c = cost_of(0, 1.5, 2);
    assert_true(isnan(c.tokens_per_dollar) && isnan(c.dollars_per_million) &&
                isnan(c.joules_per_token));
    c = cost_of(100, 0, NAN);
    assert_true(isnan(c.tokens_per_dollar) && isnan(c.tokens_per_second_per_megawatt));
}

static void energy_is_the_trapezoid_of_power(void **state) {
    static const double s[] = {0, 1, 4}, w[] = {100, 300, 200};
    near(energy_joules(s, w, 3), 200 + 750);
    assert_true(isnan(energy_joules(s, w, 1)));
    assert_true(energy_joules(s, w, 2) == 200);
}

static void unknown_names_list_what_there_is(void **state) {
    struct price_table t;
    const struct price_row *r;
    weir_error err;
    assert_int_equal(price_table_open("tco-2031", &t, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "tco-2026-04-rental"));
    assert_int_equal(price_table_open("tco-2026-07-owning", &t, &err), WEIR_OK);
    assert_int_equal(price_find(&t, "b400", &r, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "gb300"));
    assert_int_equal(price_find(&t, "MI355X", &r, &err), WEIR_OK);
    price_table_free(&t);
}

static void refuse(const char *text, const char *part) {
    char path[] = "/tmp/weir-prices-XXXXXX.json";
    struct price_table t;
    weir_error err = {0};
    int fd = mkstemps(path, 5);
    FILE *f = fdopen(fd, "w");
    fputs(text, f);
    fclose(f);
    weir_status s = price_table_open(path, &t, &err);
    unlink(path);
    if (!part) {
        assert_int_equal(s, WEIR_OK);
        price_table_free(&t);
        return;
    }
    assert_int_equal(s, WEIR_BAD_FILE);
    assert_string_equal(err.where, path);
    if (!strstr(err.message, part))
        fail_msg("%s", err.message);
}

static void a_table_of_ones_own_is_checked_field_by_field(void **state) {
#define HEAD "{\"name\":\"mine\",\"source\":\"bill\",\"date\":\"2026-09\","
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":2.5}}}", NULL);
    refuse("[]", "not a JSON object");
    refuse("{\"name\":\"mine\",", "not valid JSON");
    refuse("{\"name\":\"mine\",\"date\":\"x\",\"machines\":{\"h\":{\"dollars\":1}}}", "source");
    refuse(HEAD "\"machines\":{}}", "machines");
    refuse(HEAD "\"machines\":{\"h200\":3}}", "machines.h200");
    refuse(HEAD "\"machines\":{\"h200\":{}}}", "machines.h200.dollars is missing");
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":\"2\"}}}", "machines.h200.dollars");
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":-2}}}", "not -2");
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":2,\"kilowatts\":0}}}", "kilowatts");
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":2},\"h200\":{\"dollars\":3}}}", "h200");
    refuse(HEAD "\"machines\":{\"h200\":{\"dollars\":2,\"kilowats\":1}}}",
           "field machines.h200.kilowats is unknown; allowed are dollars, kilowatts");
    refuse(HEAD "\"machine\":{},\"machines\":{\"h200\":{\"dollars\":2}}}",
           "field machine is unknown; allowed are name, date, source, machines");
#undef HEAD
}

static void specifications_are_those_of_the_file(void **state) {
    struct gpu_spec *list, one;
    size_t n;
    weir_error err;
    if (gpu_specs_open(&list, &n, &err))
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(n, 9);
    free(list);
    assert_int_equal(gpu_spec_find("mi355x", &one, &err), WEIR_OK);
    assert_true(one.fp4_tflops == 10066 && one.memory_gb == 288 && one.memory_tb_per_s == 8);
    assert_int_equal(gpu_spec_find("h100", &one, &err), WEIR_OK);
    assert_true(isnan(one.fp4_tflops) && one.tdp_watts == 700);
    assert_true(isnan(one.compute_units) && !one.architecture[0]); /* nobody has looked */
    assert_int_equal(gpu_spec_find("h200", &one, &err), WEIR_OK);
    assert_true(one.compute_units == 132 && one.local_bytes == 228 * 1024 &&
                one.local_reserved_bytes == 1024);
    assert_string_equal(one.architecture, "sm_90");
    assert_int_equal(gpu_spec_find("h800", &one, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "mi355x"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_headline_costs_what_was_published),
        cmocka_unit_test(other_tables_give_other_advantages),
        cmocka_unit_test(the_article_of_wafer_divides_by_the_price_of_one_gpu),
        cmocka_unit_test(older_constants_give_the_figures_of_their_time),
        cmocka_unit_test(every_table_in_the_program_is_whole_and_bears_its_name),
        cmocka_unit_test(undefined_costs_are_no_numbers),
        cmocka_unit_test(energy_is_the_trapezoid_of_power),
        cmocka_unit_test(unknown_names_list_what_there_is),
        cmocka_unit_test(a_table_of_ones_own_is_checked_field_by_field),
        cmocka_unit_test(specifications_are_those_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
