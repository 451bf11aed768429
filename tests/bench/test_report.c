/* The report: what it shows is what the runs' files say, everything that came from a run is text,
 * what must not be compared is marked, and runs of any size make a small page. */
#include "tests/cli/program.h"

#include "bench/report_parts.h"
#include "tests/bench/invented.h"

#include <math.h>
#include <openssl/evp.h>
#include <sys/stat.h>

static weir_error err;
static char *page;

static char *read_all(const char *path, size_t *n) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = NULL;
    size_t size = 0;
    ssize_t got = getdelim(&text, &size, 0, f);
    fclose(f);
    assert_true(got > 0);
    *n = (size_t)got;
    return text;
}

static int setup(void **state) {
    size_t n;
    if (program_setup(state))
        return 1;
    assert_int_equal(invent_sweep(scratch("sweep")), 13);
    succeeds(NULL, "report %/sweep --out %/r.html --title '<i>T</i>' --prices tco-2026-07-owning");
    assert_int_equal(last_outcome()->out_bytes, 0);
    page = read_all(scratch("r.html"), &n);
    return 0;
}

static int teardown(void **state) {
    free(page);
    return program_teardown(state);
}

static unsigned count(const char *text, const char *part) {
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part))
        n++;
    return n;
}

/* The text between two marks, in a new string. */
static char *between(const char *from, const char *to) {
    const char *a = strstr(page, from);
    assert_non_null(a);
    a += strlen(from);
    const char *b = strstr(a, to);
    assert_non_null(b);
    return strndup(a, (size_t)(b - a));
}

static json_t *downloaded(void) {
    char *text = between("href=\"data:application/json;base64,", "\"");
    size_t n = strlen(text);
    unsigned char *out = malloc(n);
    int length = EVP_DecodeBlock(out, (unsigned char *)text, (int)n);
    assert_true(length > 0);
    while (text[n - 1] == '=') {
        n--;
        length--;
    }
    json_error_t e;
    json_t *o = json_loadb((char *)out, (size_t)length, 0, &e);
    if (!o)
        fail_msg("%s", e.text);
    free(out);
    free(text);
    return o;
}

static const json_t *run_of(const json_t *all, const char *name) {
    size_t i;
    json_t *r;
    json_array_foreach(json_object_get(all, "runs"), i, r) {
        const char *dir = json_string_value(json_object_get(r, "dir"));
        if (!strcmp(strrchr(dir, '/') + 1, name))
            return r;
    }
    fail_msg("no run %s", name);
    return NULL;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        fail_msg("no number %s", key);
    return json_number_value(v);
}

static json_t *latency_of(const char *name, const char *metric, json_t **file) {
    char path[128];
    snprintf(path, sizeof path, "sweep/%s/inferencex.json", name);
    *file = json_load_file(scratch(path), 0, NULL);
    json_t *m = json_object_get(*file, "request_metrics");
    return json_object_get(json_object_get(m, "latency"), metric);
}

static void figures_are_those_of_the_files(void **state) {
    static const char *const names[] = {"on-1", "on-16-again", "off-4", "drafts-16"};
    json_t *all = downloaded();
    assert_int_equal(json_array_size(json_object_get(all, "runs")), 13);
    for (size_t i = 0; i < 4; i++) {
        const json_t *r = run_of(all, names[i]);
        json_t *file;
        json_t *ttft = latency_of(names[i], "ttft", &file);
        const json_t *rates = json_object_get(
            json_object_get(json_object_get(file, "request_metrics"), "throughput"), "per_gpu");
        const json_t *row = json_object_get(r, "row");
        assert_float_equal(number(row, "tput_per_gpu"), number(rates, "total_tput_tps"), 1e-5);
        assert_float_equal(number(row, "p90_ttft"), number(ttft, "p90"), 1e-9);
        /* The curve goes through the percentiles. */
        const json_t *curve = json_object_get(json_object_get(r, "quantiles_seconds"), "ttft");
        assert_float_equal(json_number_value(json_array_get(curve, 90)), number(ttft, "p90"),
                           2e-5 * number(ttft, "p90"));
        /* And the table has the figure. */
        char cell[64];
        snprintf(cell, sizeof cell, "data-v=\"%.9g\"", number(row, "tput_per_gpu"));
        cell[14] = 0; /* the file's is rounded */
        assert_non_null(strstr(page, cell));
        json_decref(file);
    }
    const json_t *drafts = run_of(all, "drafts-8");
    assert_float_equal(number(drafts, "acceptance_length"), 3, 1e-9);
    const json_t *from = json_object_get(drafts, "prompt_tokens_by_source");
    assert_float_equal(number(from, "device") / number(from, "computed"), 5.0 / 3, 1e-9);
    from = json_object_get(run_of(all, "off-4"), "prompt_tokens_by_source");
    assert_string_equal(json_string_value(json_object_get(from, "told_by")), "answers");
    assert_true(json_is_null(json_object_get(from, "host")));
    /* Cost by the machine's row of the table: $1.22 and $1.50. */
    const json_t *on = run_of(all, "on-4"), *off = run_of(all, "off-4");
    assert_float_equal(number(on, "dollars_per_gpu_hour"), 1.22, 1e-9);
    assert_float_equal(number(off, "dollars_per_gpu_hour"), 1.5, 1e-9);
    assert_float_equal(number(off, "dollars_per_million_tokens"),
                       1.5 / (number(json_object_get(off, "row"), "tput_per_gpu") * 0.0036), 1e-7);
    json_decref(all);
}

static void what_came_from_a_run_is_text(void **state) {
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<i>T"));
    assert_non_null(strstr(page, "<title>&lt;i&gt;T&lt;/i&gt;</title>"));
    assert_non_null(
        strstr(page, "off &lt;img src=x onerror=alert(1)&gt; &amp; &quot;quotes&quot;"));
    assert_non_null(strstr(page, "late &lt;3&gt; times"));
    assert_non_null(strstr(page, "sweep/on-8</p>")); /* of 50 runs one wants to know which it is */
    struct html h = {0};
    html_text(&h, "a\xff\x01<\xc3\xa4>\xed\xa0\x80");
    assert_string_equal(h.data, "a\xef\xbf\xbd\xef\xbf\xbd&lt;\xc3\xa4&gt;\xef\xbf\xbd\xef\xbf\xbd"
                                "\xef\xbf\xbd");
    free(h.data);
}

static void the_policy_admits_the_pages_own_style_and_script_alone(void **state) {
    char *policy = between("Content-Security-Policy\" content=\"", "\"");
    char *style = between("<style>", "</style>"), *script = between("<script>", "</script>");
    char hash[64];
    assert_non_null(strstr(policy, "default-src 'none'"));
    assert_int_equal(html_hash(style, strlen(style), hash, &err), WEIR_OK);
    assert_non_null(strstr(policy, hash));
    assert_int_equal(html_hash(script, strlen(script), hash, &err), WEIR_OK);
    assert_non_null(strstr(policy, hash));
    assert_null(strstr(policy, "unsafe"));
    assert_int_equal(count(page, "<script"), 1);
    assert_int_equal(count(page, " style=\""), 0);
    assert_int_equal(count(page, "<link"), 0);
    assert_int_equal(count(page, "url("), 0);
    assert_int_equal(count(page, " src="), count(page, "&lt;img src="));
    free(policy);
    free(style);
    free(script);
}

static void what_is_not_comparable_is_marked(void **state) {
    json_t *all = downloaded();
    static const char *const bad[] = {"drafts-2", "drafts-16", "drafts-32"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *r = run_of(all, bad[i]);
        assert_true(json_is_false(json_object_get(r, "comparable")));
        assert_true(json_is_false(json_object_get(r, "on_frontier")));
        assert_true(json_array_size(json_object_get(r, "invalid_reasons")) > 0);
    }
    assert_true(json_is_true(json_object_get(run_of(all, "drafts-8"), "on_frontier")));
    assert_true(json_is_true(json_object_get(run_of(all, "on-1"), "on_frontier")));
    assert_non_null(
        strstr(page, "3 of 13 runs (1 scaled in time or length, 1 invalid, 1 cancelled)"));
    assert_non_null(strstr(page, "<span class=\"bad\">scaled, not comparable</span>"));
    assert_non_null(strstr(page, "time_scale: 0.1"));
    assert_non_null(strstr(page, "failed_request_rate"));
    /* Three charts of points: the first is drawn twice, for wide and for narrow screens. */
    assert_int_equal(count(page, "form c0 hollow\""), 3 * 4 + 3 /* table */);
    json_decref(all);
    /* A series that has nothing else still shows its walk. */
    succeeds(NULL, "report %/sweep/drafts-16 %/sweep/drafts-32 --out %/bad.html");
    size_t n;
    char *text = read_all(scratch("bad.html"), &n);
    assert_non_null(strstr(text, "all runs of this page"));
    assert_true(count(text, "line c0 d0 faint") >= 2);
    assert_non_null(strstr(text, "No price was given"));
    free(text);
}

/* Each trait of a run is counted, and what was stopped stands on no frontier. */
static void runs_that_were_stopped_stand_on_no_frontier(void **state) {
    for (int i = 0; i < 2; i++) {
        struct run r;
        invent(&r, "stopped", 1, 2, 30, i ? TRAIT_SCALED | TRAIT_CANCELLED : 0);
        if (!i)
            r.abort_reason = strdup("the server went away");
        mkdir(scratch("stopped"), 0777);
        assert_int_equal(run_write(&r, scratch(i ? "stopped/b" : "stopped/a"), &err), WEIR_OK);
        run_free(&r);
    }
    succeeds(NULL, "report %/stopped --out %/stopped.html");
    size_t n;
    char *text = read_all(scratch("stopped.html"), &n);
    assert_non_null(strstr(text, "all runs of this page (1 scaled in time or length, 1 cancelled, "
                                 "1 aborted)"));
    assert_int_equal(count(text, "aborted</span></td><td></td>"), 1);
    assert_int_equal(count(text, "cancelled</span></td><td></td>"), 1);
    assert_int_equal(count(text, "</td><td>yes</td>"), 0);
    free(text);
}

static void charts_speak_without_sight(void **state) {
    /* Each chart is named and described; each mark can be reached and says what it is. The bars
     * without axes have their group's name. */
    unsigned charts = count(page, "aria-labelledby=\"");
    assert_true(charts > 10);
    assert_int_equal(count(page, "<desc id="), charts);
    assert_int_equal(count(page, "class=\"mark\" tabindex=\"0\" role=\"img\""),
                     count(page, "class=\"mark\""));
    assert_true(count(page, "<table>") >= 5);
    assert_int_equal(count(page, "<svg"), count(page, "</svg>"));
}

static void the_table_of_the_csv_is_whole(void **state) {
    struct report r;
    struct html csv = {0};
    struct report_options o = {.price = NAN};
    char dir[256];
    snprintf(dir, sizeof dir, "%s", scratch("sweep"));
    const char *dirs[] = {dir};
    assert_int_equal(report_read(dirs, 1, &o, &r, &err), WEIR_OK);
    free(r.point[0].label);
    r.point[0].label = NULL;
    free(r.point[0].name);
    r.point[0].name = strdup("=cmd|\"x\"");
    report_csv(&csv, &r);
    assert_int_equal(count(csv.data, "\r\n"), 14);
    const char *second = strstr(csv.data, "\r\n") + 2;
    assert_int_equal(strncmp(second, "\"'=cmd|\"\"x\"\"\",", 14), 0);
    assert_int_equal(strncmp(csv.data, "name,dir,valid", 14), 0);
    assert_non_null(strstr(csv.data, ",p90_ttft,"));
    free(csv.data);
    report_free(&r);
}

static void timelines_keep_what_they_add_up_to(void **state) {
    struct run r;
    struct timeline t;
    double out = 0, in = 0, busy = 0, got_out = 0, got_in = 0, got_busy = 0, errors = 0;
    invent(&r, "x", 1, 8, 60, TRAIT_FAILING);
    for (uint32_t i = 0; i < r.n_records; i++) {
        r.records[i].ends_only = i % 2; /* gaps known or not */
        out += (double)r.records[i].out;
        in += (double)r.records[i].in;
        busy += (double)(r.records[i].end - r.records[i].start) * 1e-9;
    }
    timeline_of(&r, &t);
    for (size_t i = 0; i < t.n; i++) {
        got_out += t.out_rate[i] * t.step;
        got_in += t.in_rate[i] * t.step;
        got_busy += t.in_flight[i] * t.step;
        errors += t.errors[i];
        assert_true(t.in_flight[i] <= 8 + 1e-9);
    }
    assert_float_equal(got_out, out, 1e-6 * out);
    assert_float_equal(got_in, in, 1e-6 * in);
    assert_float_equal(got_busy, busy, 1e-6 * busy);
    assert_int_equal(errors, (r.n_records + 7) / 8);
    assert_true(t.has_kv);
    run_free(&r);
    r = (struct run){0};
    timeline_of(&r, &t);
    assert_int_equal(t.n, 0);
}

static void ticks_are_round_and_within(void **state) {
    double tick[CHART_TICKS], step;
    char text[FIGURE_BYTES];
    struct scale s = {.low = 0, .high = 0.15, .kind = FIGURE_DOLLARS};
    size_t n = scale_ticks(&s, tick, &step);
    assert_int_equal(n, 4);
    assert_string_equal(figure_tick(tick[2], s.kind, step, text), "$0.10");
    s = (struct scale){.low = 0.1, .high = 20, .log = true};
    n = scale_ticks(&s, tick, &step);
    for (size_t i = 0; i < n; i++)
        assert_true(tick[i] >= 0.1 - 1e-9 && tick[i] <= 20);
    assert_string_equal(figure_tick(0.1, FIGURE_SECONDS, 0, text), "100 ms");
    assert_string_equal(figure_tick(0, FIGURE_PERCENT, 0.2, text), "0 %");
    assert_string_equal(figure_tick(-1e-18, FIGURE_NUMBER, 20, text), "0");
    assert_string_equal(figure_tick(12500, FIGURE_NUMBER, 2500, text), "12.5k");
    for (double range = 1e-6; range < 1e12; range *= 3.7) {
        s = (struct scale){.high = range};
        n = scale_ticks(&s, tick, &step);
        assert_true(n >= 3 && n <= 7);
    }
    assert_string_equal(figure_text(7566.6, FIGURE_NUMBER, text), "7,567");
    assert_string_equal(figure_text(0.0550637, FIGURE_DOLLARS, text), "$0.0551");
    assert_string_equal(figure_text(0.0000832, FIGURE_SECONDS, text), "83.2 \xc2\xb5s");
    assert_string_equal(figure_text(0.9996, FIGURE_SECONDS, text), "1.00 s");
    assert_string_equal(figure_text(NAN, FIGURE_NUMBER, text), "\xe2\x80\x93");
    assert_string_equal(figure_text(1234567, FIGURE_COUNT, text), "1,234,567");
}

static void a_hundred_thousand_records_make_a_small_page(void **state) {
    struct run r;
    char dir[256];
    snprintf(dir, sizeof dir, "%s", scratch("big"));
    invent(&r, "big", 0.2, 128, 380, 0);
    assert_true(r.n_records > 100000);
    assert_int_equal(run_write(&r, dir, &err), WEIR_OK);
    run_free(&r);
    succeeds(NULL, "report %/big %/sweep --out %/big.html");
    struct stat st;
    assert_int_equal(stat(scratch("big.html"), &st), 0);
    print_message("page of 14 runs, one of more than 100,000 records: %ld KB\n",
                  (long)st.st_size / 1024);
    assert_true(st.st_size < 1500 * 1024);
}

static void what_makes_no_page_is_refused_by_one_line(void **state) {
    fails(2, "report --out %/x.html", "DIR");
    fails(2, "report %/sweep", "--out");
    fails(1, "report %/nowhere --out %/x.html", "nowhere");
    write_scratch("plain.txt", "x", 1);
    fails(1, "report %/plain.txt --out %/x.html", "cannot be read");
    mkdir(scratch("empty"), 0777);
    fails(1, "report %/empty --out %/x.html", "holds no profile_export.jsonl");
    fails(2, "report %/sweep --out %/x.html --prices none-such", "none-such");
    fails(2, "report %/sweep --out %/x.html --prices wafer-2026", "h200");
    fails(2, "report %/sweep --out %/x.html --prices tco-2026-07-owning --price 2", "--price");
    fails(1, "report %/sweep --out %/no/such/x.html", "cannot be written");
    struct stat st;
    assert_int_not_equal(stat(scratch("x.html"), &st), 0);
    assert_int_not_equal(stat(scratch("x.html.part"), &st), 0);
    /* A name too few on the line must not cost a file of the run. */
    fails(1, "report %/sweep/on-1 --out %/sweep/on-1/run.json", "is not overwritten");
    fails(1, "report %/sweep/on-1 --out /dev/null", "is not overwritten");
    succeeds(NULL, "report %/sweep/on-1 --out %/x.html");
    succeeds(NULL, "report %/sweep/on-1 --out %/x.html");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_round_and_within),
        cmocka_unit_test(timelines_keep_what_they_add_up_to),
        cmocka_unit_test(figures_are_those_of_the_files),
        cmocka_unit_test(what_came_from_a_run_is_text),
        cmocka_unit_test(the_policy_admits_the_pages_own_style_and_script_alone),
        cmocka_unit_test(what_is_not_comparable_is_marked),
        cmocka_unit_test(runs_that_were_stopped_stand_on_no_frontier),
        cmocka_unit_test(charts_speak_without_sight),
        cmocka_unit_test(the_table_of_the_csv_is_whole),
        cmocka_unit_test(a_hundred_thousand_records_make_a_small_page),
        cmocka_unit_test(what_makes_no_page_is_refused_by_one_line),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
