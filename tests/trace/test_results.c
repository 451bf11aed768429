/* test_results.c: measured points out of the files of several tools, and series of them. */
#include "tests/test.h"
#include "tests/trace/invented_run.h"

#include "trace/series.h"

#include <math.h>
#include <unistd.h>

static char path[64];

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.12g is not %.12g", a, b);
}

static void write_file(const char *ending, const char *text) {
    snprintf(path, sizeof path, "/tmp/weir-results-XXXXXX%s", ending);
    int fd = mkstemps(path, (int)strlen(ending));
    FILE *f = fdopen(fd, "w");
    fputs(text, f);
    fclose(f);
}

static void read_text(const char *ending, const char *text, uint32_t gpus, struct results *out) {
    weir_error err;
    write_file(ending, text);
    *out = (struct results){0};
    weir_status s = results_read(path, gpus, out, &err);
    unlink(path);
    if (s)
        fail_msg("%s: %s", err.where, err.message);
}

static void refuse(const char *ending, const char *text, const char *part) {
    weir_error err = {0};
    struct results l = {0};
    char all[1024];
    write_file(ending, text);
    weir_status s = results_read(path, 0, &l, &err);
    unlink(path);
    snprintf(all, sizeof all, "%s: %s", err.where, err.message);
    assert_int_equal(s, WEIR_BAD_FILE);
    assert_int_equal(l.n, 0);
    if (!strstr(all, part) || !strstr(all, path))
        fail_msg("%s", all);
    results_free(&l);
}

static void flat_rows_give_seconds_and_the_missing_one_of_tpot_and_interactivity(void **state) {
    struct results l;
    read_text(".json",
              "[{\"hw\":\"b300\",\"framework\":\"sglang\",\"conc\":16,\"tp\":4,\"pp\":2,"
              "\"tput_per_gpu\":812.5,\"median_tpot\":0.02,\"p90_tpot_ms\":40,\"std_tpot\":0.001,"
              "\"mean_intvty\":25,\"p90_ttft\":1.25,\"spec\":\"mtp\",\"odd\":{}},{\"conc\":1}]",
              0, &l);
    assert_int_equal(l.n, 2);
    struct result_row *r = &l.row[0];
    assert_string_equal(r->hardware, "b300");
    assert_string_equal(r->spec, "mtp");
    near(r->gpus, 8);
    near(r->total_rate, 812.5);
    near(r->intvty[STATISTIC_MEDIAN], 50);
    near(r->intvty[STATISTIC_P90], 25);
    near(r->tpot[STATISTIC_MEAN], 0.04);
    assert_true(isnan(r->intvty[STATISTIC_STD])); /* no reciprocal of a deviation */
    assert_true(isnan(r->out_rate) && isnan(l.row[1].total_rate) && l.row[1].hardware[0] == 0);
    results_free(&l);
}

static void results_of_vllm_give_interactivity_by_tpot_not_by_chunk_gaps(void **state) {
    static const char text[] =
        "{\"date\":\"20260830\",\"backend\":\"vllm\",\"label\":null,\"model_id\":\"kimi\","
        "\"num_prompts\":10,\"request_rate\":\"inf\",\"max_concurrency\":4,\"duration\":20.0,"
        "\"completed\":10,\"total_input_tokens\":80000,\"total_output_tokens\":10000,"
        "\"request_throughput\":0.5,\"output_throughput\":500.0,\"total_token_throughput\":4500.0,"
        "\"mean_ttft_ms\":400,\"median_ttft_ms\":380,\"mean_tpot_ms\":20,\"median_tpot_ms\":16,"
        "\"p99_tpot_ms\":50,\"mean_itl_ms\":60,\"median_itl_ms\":55}";
    struct results l;
    read_text(".json", text, 8, &l);
    near(l.row[0].intvty[STATISTIC_MEDIAN], 62.5);
    near(l.row[0].intvty[STATISTIC_P99], 20);
    near(l.row[0].itl[STATISTIC_MEAN], 0.06);
    near(l.row[0].total_rate, 4500.0 / 8);
    near(l.row[0].out_rate, 500.0 / 8);
    near(l.row[0].conc, 4);
    near(l.row[0].isl, 8000);
    assert_string_equal(l.row[0].model, "kimi");
    results_free(&l);
    refuse(".json", text, "how many GPUs");
}

static void an_aggregate_gives_the_row_of_its_run(void **state) {
    struct run r;
    struct run_summary s;
    struct result_row own;
    struct results l;
    invent_run(&r, 5, 200);
    r.subject.tp = 8;
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    json_t *o = run_inferencex_json(&r, &s);
    char *text = json_dumps(o, JSON_REAL_PRECISION(15));
    read_text(".json", text, 0, &l);
    result_of_run(&r, &s, "x", &own);
    assert_int_equal(l.n, 1);
    for (int i = 0; i < STATISTICS; i++) {
        near(l.row[0].ttft[i], own.ttft[i]);
        near(l.row[0].e2el[i], own.e2el[i]);
        near(l.row[0].tpot[i], own.tpot[i]);
        near(l.row[0].intvty[i], own.intvty[i]);
    }
    near(l.row[0].total_rate, own.total_rate);
    near(l.row[0].gpus, own.gpus);
    assert_string_equal(l.row[0].hardware, "h200");
    assert_string_equal(own.date, "2025-10-09");
    results_free(&l);
    free(text);
    json_decref(o);
    /* The flat row of the run is read by the same names. */
    o = run_row_json(&r, &s);
    text = json_dumps(o, JSON_REAL_PRECISION(15));
    char *list;
    assert_true(asprintf(&list, "{\"rows\":[%s]}", text) > 0);
    read_text(".json", list, 0, &l);
    for (int i = 0; i < STATISTICS; i++) {
        near(l.row[0].ttft[i], own.ttft[i]);
        near(l.row[0].intvty[i], own.intvty[i]);
    }
    near(l.row[0].total_rate, own.total_rate);
    near(l.row[0].conc, 4);
    results_free(&l);
    free(list);
    free(text);
    json_decref(o);
    run_free(&r);
}

static void csv_has_quotes_remarks_empty_cells_and_any_line_ends(void **state) {
    struct results l;
    read_text(".csv",
              "# remark, with commas\r\nlabel, hw,conc,tput_per_gpu,median_intvty,unknown\r\n"
              "\"a, \"\"b\"\"\" ,mi355x, 4 ,100.5,50,x\r\n\r\n2,,,7,,\n",
              0, &l);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.row[0].label, "a, \"b\"");
    assert_string_equal(l.row[0].hardware, "mi355x");
    near(l.row[0].conc, 4);
    near(l.row[0].total_rate, 100.5);
    assert_string_equal(l.row[1].label, "2"); /* a name may be a number */
    assert_true(isnan(l.row[1].conc));
    near(l.row[1].total_rate, 7);
    results_free(&l);
}

static void faulty_results_are_refused_with_their_place(void **state) {
    refuse(".json", "{}", "request_metrics");
    refuse(".json", "[1]", "row 1: is not a JSON object");
    refuse(".json", "[{\"conc\":1},{\"conc\":\"4\"}]", "row 2: field conc");
    refuse(".json", "[{\"median_ttft\":-1}]", "median_ttft");
    refuse(".json", "{\"request_metrics\":{\"latency\":{}}}", "request_metrics.throughput");
    refuse(".json", "[", "not valid JSON");
    refuse(".csv", "", "no line of names");
    refuse(".csv", "a,b\n1,2,3\n", ":2: has 3 cells");
    refuse(".csv", "conc\nfour\n", ":2: field conc");
    refuse(".csv", "conc\n\"4\n", ":2: a quote is not closed");
    refuse(".csv", "conc,tput_per_gpu,conc\n1,2,3\n", ":1: names the column conc twice");
    refuse(".csv", "hw;conc;tput_per_gpu\na;4;5\n", ":1: has semicolons");
    refuse(".json", "{\"output_throughput\":1}", "--gpus");
    struct results l = {0};
    weir_error err;
    assert_int_equal(results_read("/nowhere.json", 0, &l, &err), WEIR_BAD_FILE);
    assert_int_equal(results_read("/proc/self/task", 0, &l, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "profile_export.jsonl"));
}

static void a_byte_order_mark_is_no_part_of_a_name(void **state) {
    struct results l;
    read_text(".csv",
              "\xef\xbb\xbf"
              "conc,hw\n4,a\n",
              0, &l);
    near(l.row[0].conc, 4);
    results_free(&l);
    read_text(".json", "\xef\xbb\xbf[{\"conc\":5}]", 0, &l);
    near(l.row[0].conc, 5);
    results_free(&l);
}

/* ----------------------------------------------------------------------------------------- series
 */

static const struct series_options by_hardware = {
    .statistic = STATISTIC_P90, .by = "hardware", .kilowatts = NAN};

static void rows_without_both_figures_are_left_out_and_counted(void **state) {
    struct results l;
    struct series_set set;
    weir_error err;
    read_text(".csv", "hw,tput_per_gpu,p90_intvty\na,10,5\na,20,\nb,7,3\na,,4\na,12,4\na,9,4.5\n",
              0, &l);
    assert_int_equal(series_group(&l, &by_hardware, &set, &err), WEIR_OK);
    assert_int_equal(set.n, 2);
    assert_int_equal(set.left_out, 2);
    assert_string_equal(set.series[0].name, "a");
    assert_int_equal(set.series[0].n, 3);
    assert_int_equal(set.series[0].n_frontier, 2);
    assert_true(set.series[0].point[0].x == 4 && set.series[0].point[1].x == 5);
    assert_false(set.series[0].point[2].on_frontier);
    series_free(&set);
    struct series_options o = by_hardware;
    o.statistic = STATISTIC_P99;
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "p99_intvty"));
    assert_non_null(strstr(err.message, "there is p90_intvty (--statistic)"));
    o = by_hardware;
    o.by = "hardware,colour";
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "'colour'"));
    results_free(&l);
}

static void workloads_are_series_of_their_own_and_named_where_there_are_several(void **state) {
    struct results l;
    struct series_set set;
    weir_error err;
    struct series_options o = by_hardware;
    o.by = "label,hardware,workload";
    read_text(".csv",
              "label,hw,dataset,isl,osl,tput_per_gpu,p90_intvty\n"
              "x,a,t.jsonl,,,10,5\nx,a,,1024,128,11,5\ny,a,t.jsonl,,,12,5\nx,a,t.jsonl,,,9,6\n",
              0, &l);
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_OK);
    assert_int_equal(set.n, 3);
    assert_string_equal(set.series[0].name, "x a t.jsonl");
    assert_int_equal(set.series[0].n, 2);
    assert_string_equal(set.series[1].name, "x a 1024/128");
    assert_string_equal(set.series[2].name, "y a t.jsonl");
    series_free(&set);
    results_free(&l);
    read_text(".csv", "hw,isl,osl,tput_per_gpu,p90_intvty\na,1,2,10,5\n", 0, &l);
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_OK);
    assert_string_equal(set.series[0].name, "a");
    series_free(&set);
    results_free(&l);
}

/* Marked ones stand on a frontier where there is nothing else; stopped ones never. */
static void what_is_not_comparable_gives_way(void **state) {
    static const char head[] = "hw,state,tput_per_gpu,p90_intvty\n";
    static const struct {
        const char *rows;
        size_t on;
        bool comparable;
    } cases[] = {{"a,scaled,100,50\na,,10,5\na,cancelled,200,90\n", 1, true},
                 {"a,scaled,100,50\na,invalid,110,40\na,cancelled,200,90\n", 2, false},
                 {"a,aborted,100,50\na,cancelled,200,90\n", 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct results l;
        struct series_set set;
        struct series_at at;
        weir_error err;
        char text[256];
        snprintf(text, sizeof text, "%s%s", head, cases[i].rows);
        read_text(".csv", text, 0, &l);
        assert_int_equal(series_group(&l, &by_hardware, &set, &err), WEIR_OK);
        assert_int_equal(set.series[0].n_frontier, cases[i].on);
        assert_int_equal(!set.series[0].not_comparable, cases[i].comparable);
        series_at_x(&set.series[0], &by_hardware, 5, INTERPOLATE_LINEAR, false, &at);
        assert_int_equal(at.found, i == 0);
        series_free(&set);
        results_free(&l);
    }
}

static void equal_throughput_swaps_the_axes(void **state) {
    struct results l;
    struct series_set set;
    struct series_at at;
    weir_error err;
    read_text(".csv", "hw,conc,tput_per_gpu,p90_intvty,p90_ttft\na,4,100,50,1\na,8,200,30,\n", 0,
              &l);
    struct series_options o = by_hardware;
    o.dollars = 3.6;
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_OK);
    series_at_y(&set.series[0], &o, 125, INTERPOLATE_LINEAR, false, &at);
    assert_true(at.found && !at.extrapolated);
    near(at.x, 45);
    near(at.concurrency, 5);
    near(at.dollars_per_million, 8);
    assert_true(isnan(at.ttft)); /* one of the two points does not tell */
    series_at_x(&set.series[0], &o, 45, INTERPOLATE_LINEAR, false, &at);
    near(at.y, 125);
    /* Along interactivity cost is a curve through the costs of the points. */
    near(at.dollars_per_million, 10 + (5 - 10) * 0.25);
    near(at.dollars_at_y, 8); /* and the price over the interpolated throughput is another figure */
    series_at_y(&set.series[0], &o, 250, INTERPOLATE_STEFFEN, false, &at);
    assert_false(at.found);
    series_at_y(&set.series[0], &o, 250, INTERPOLATE_STEFFEN, true, &at);
    assert_true(at.found && at.extrapolated);
    near(at.x, 20);
    series_free(&set);
    results_free(&l);
}

static void less_latency_is_better_on_a_latency_axis(void **state) {
    struct results l;
    struct series_set set;
    struct series_at at;
    weir_error err;
    read_text(".csv", "hw,tput_per_gpu,p90_ttft\na,100,1\na,200,3\na,90,2\na,250,4\n", 0, &l);
    struct series_options o = by_hardware;
    o.x = SERIES_TTFT;
    assert_int_equal(series_group(&l, &o, &set, &err), WEIR_OK);
    assert_int_equal(set.series[0].n_frontier, 3);
    assert_true(set.series[0].point[0].x == 1 && set.series[0].point[2].x == 4);
    series_at_y(&set.series[0], &o, 150, INTERPOLATE_LINEAR, false, &at);
    assert_true(at.found);
    near(at.x, 2);
    series_at_x(&set.series[0], &o, 2, INTERPOLATE_LINEAR, false, &at);
    near(at.y, 150);
    series_free(&set);
    results_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_rows_give_seconds_and_the_missing_one_of_tpot_and_interactivity),
        cmocka_unit_test(results_of_vllm_give_interactivity_by_tpot_not_by_chunk_gaps),
        cmocka_unit_test(an_aggregate_gives_the_row_of_its_run),
        cmocka_unit_test(csv_has_quotes_remarks_empty_cells_and_any_line_ends),
        cmocka_unit_test(faulty_results_are_refused_with_their_place),
        cmocka_unit_test(rows_without_both_figures_are_left_out_and_counted),
        cmocka_unit_test(a_byte_order_mark_is_no_part_of_a_name),
        cmocka_unit_test(workloads_are_series_of_their_own_and_named_where_there_are_several),
        cmocka_unit_test(what_is_not_comparable_gives_way),
        cmocka_unit_test(equal_throughput_swaps_the_axes),
        cmocka_unit_test(less_latency_is_better_on_a_latency_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
