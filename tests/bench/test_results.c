/* The commands compare, gate and history from outside: what they say, and how they exit. */
#include "tests/cli/program.h"

#include "bench/store.h"
#include "tests/bench/synthetic.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static weir_error err;

/* Writes a run below the scratch directory and, with a history, adds it there. */
static void make_server(const char *name, const struct synthetic *how, const char *history,
                        bool cancelled, const char *server, uint32_t lanes) {
    struct run r;
    struct run_summary *s = calloc(1, sizeof *s);
    char dir[256];
    snprintf(dir, sizeof dir, "%s", scratch(name));
    synthesise(&r, how);
    r.was_cancelled = cancelled;
    if (server)
        assert_non_null(r.server = json_loads(server, 0, NULL));
    if (lanes)
        r.concurrency = lanes;
    if (run_write(&r, dir, &err) || run_summarise(&r, s, &err) ||
        (history && store_record(scratch(history), &r, s, dir, &err)))
        fail_msg("%s: %s", err.where, err.message);
    run_free(&r);
    free(s);
}

static void make(const char *name, const struct synthetic *how, const char *history,
                 bool cancelled) {
    make_server(name, how, history, cancelled, NULL, 0);
}

static const struct synthetic base = {.slower = 1, .lanes = 16, .seconds = 240, .sessions = 3};

static struct synthetic with(uint64_t noise, double slower) {
    struct synthetic how = base;
    how.noise = noise;
    how.slower = slower;
    return how;
}

static const json_t *metric(const json_t *o, size_t i, const char *name) {
    const json_t *c = json_array_get(json_object_get(o, "comparisons"), i);
    const json_t *m = json_object_get(json_object_get(c, "metrics"), name);
    assert_non_null(m);
    return m;
}

static double number(const json_t *o, const char *key) {
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static void comparisons_tell_better_from_worse_from_noise(void **state) {
    struct synthetic b = with(11, 1.25), c = with(12, 1);
    struct synthetic a = with(10, 1);
    make("a", &a, NULL, false);
    make("b", &b, NULL, false);
    make("c", &c, NULL, false);
    json_t *o = run_json(NULL, "bench compare %/a %/b %/c --no-history --json");
    const json_t *m = metric(o, 0, "p90_intvty");
    assert_string_equal(json_string_value(json_object_get(m, "verdict")), "worse");
    assert_true(fabs(number(m, "ratio") - 0.8) < 0.04);
    assert_true(number(m, "low") < 0.8 && number(m, "high") > 0.8);
    assert_true(number(m, "plays") > 100);
    m = metric(o, 1, "p90_intvty");
    assert_string_equal(json_string_value(json_object_get(m, "verdict")), "within noise");
    assert_int_equal(json_object_size(json_object_get(o, "configuration_differences")), 0);
    /* The figures are those of the files. */
    json_t *row = json_load_file(scratch("a/inferencex.json"), 0, NULL);
    const json_t *latency = json_object_get(
        json_object_get(json_object_get(row, "request_metrics"), "latency"), "ttft");
    m = metric(o, 0, "p90_ttft");
    assert_float_equal(number(m, "baseline"), number(latency, "p90"), 1e-8);
    json_decref(row);
    json_decref(o);
    succeeds(NULL, "bench compare %/b %/a --no-history --metric p90_itl");
    assert_non_null(strstr(last_outcome()->out, "better"));
    assert_non_null(strstr(last_outcome()->out, "One run a side"));
}

static void repeats_say_how_much_runs_differ(void **state) {
    static const char *const names[] = {"r0", "r1", "r2", "r3"};
    for (uint64_t i = 0; i < 4; i++) {
        struct synthetic how = with(20 + i, i < 2 ? 1 : 1.3);
        how.run_noise = 0.01;
        make(names[i], &how, NULL, false);
    }
    char line[2048], at[256];
    snprintf(at, sizeof at, "%s", scratch("r"));
    snprintf(line, sizeof line, "bench compare %s0,%s1 %s2,%s3 --no-history --json", at, at, at,
             at);
    json_t *o = run_json(NULL, line);
    json_t *p = run_json(NULL, "bench compare --baseline %/r0 --baseline %/r1 --candidate %/r2 "
                               "--candidate %/r3 --no-history --json");
    const json_t *m = metric(o, 0, "median_itl");
    assert_string_equal(json_string_value(json_object_get(m, "interval_from")),
                        "records and repeats");
    assert_true(number(m, "repeat_noise_percent") > 0.1);
    assert_string_equal(json_string_value(json_object_get(m, "verdict")), "worse");
    assert_true(json_equal(json_object_get(o, "comparisons"), json_object_get(p, "comparisons")));
    json_decref(o);
    json_decref(p);
}

static void the_gate_exits_1_and_names_what_regressed(void **state) {
    struct synthetic a = with(30, 1), good = with(31, 1), bad = with(32, 1.15);
    make("main", &a, NULL, false);
    make("good", &good, NULL, false);
    make("bad", &bad, NULL, false);
    make("stopped", &good, NULL, true);
    succeeds(NULL, "bench gate --baseline %/bad --candidate %/main --no-history --metric p90_itl");
    const char *dots = strstr(last_outcome()->out, " .. ");
    assert_non_null(dots);
    const char *from = dots;
    while (from[-1] != ' ')
        from--;
    assert_true(strtod(from, NULL) < strtod(dots + 4, NULL)); /* both better: the lesser first */
    succeeds(NULL, "bench gate --baseline %/main --candidate %/good --no-history");
    assert_int_equal(
        run(NULL, "bench gate --baseline %/main --candidate %/bad --no-history")->status, 1);
    assert_non_null(strstr(last_outcome()->out, "REGRESSED"));
    assert_non_null(strstr(last_outcome()->out, "failed: "));
    assert_non_null(strstr(last_outcome()->out, "p90_intvty"));
    assert_int_equal(last_outcome()->err[0], 0);
    /* A threshold beyond what it lost. */
    succeeds(NULL, "bench gate --baseline %/main --candidate %/bad --no-history --threshold 40");
    assert_int_equal(run(NULL, "bench gate --baseline %/main --candidate %/bad --no-history "
                               "--threshold 40 --metric p90_ttft=1")
                         ->status,
                     1);
    assert_int_equal(
        run(NULL, "bench gate --baseline %/main --candidate %/stopped --no-history --json")->status,
        1);
    json_t *o = json_loads(last_outcome()->out, 0, NULL);
    assert_true(json_is_false(json_object_get(o, "passed")));
    assert_int_equal(json_array_size(json_object_get(o, "regressed")), 0);
    assert_true(json_array_size(json_object_get(o, "faults")) > 0);
    json_decref(o);
}

static void the_gate_judges_against_the_history(void **state) {
    static const char *const names[] = {"h0", "h1", "h2"};
    for (uint64_t i = 0; i < 3; i++) {
        struct synthetic how = with(40 + i, 1);
        how.run_noise = 0.01;
        how.label = "nightly";
        make(names[i], &how, "runs.db", false);
    }
    struct synthetic good = with(45, 1), bad = with(46, 1.2);
    good.label = bad.label = "nightly";
    make("new", &good, "runs.db", false); /* its own row is no baseline */
    make("slow", &bad, NULL, false);
    succeeds(NULL, "bench gate --baseline-label nightly --candidate %/new --history %/runs.db");
    assert_non_null(strstr(last_outcome()->out, "label nightly (3 runs)"));
    assert_int_equal(
        run(NULL, "bench gate --baseline-label nightly --candidate %/slow --history %/runs.db")
            ->status,
        1);
    /* The same with the files of the history gone: repeats alone are left. */
    for (int i = 0; i < 3; i++) {
        char line[300];
        snprintf(line, sizeof line, "rm -r %s", scratch(names[i]));
        assert_int_equal(system(line), 0);
    }
    assert_int_equal(
        run(NULL, "bench gate --baseline-label nightly --candidate %/slow --history %/runs.db")
            ->status,
        1);
    fails(2, "bench gate --baseline-label none --candidate %/slow --history %/runs.db",
          "no valid run labelled 'none'");
}

static bool says(const char *part) {
    return strstr(last_outcome()->out, part);
}

static struct synthetic small(uint64_t noise, double slower) {
    struct synthetic how = with(noise, slower);
    how.lanes = 4;
    how.seconds = 60;
    return how;
}

static void a_server_that_was_set_otherwise_is_a_difference(void **state) {
    struct synthetic how = small(60, 1), other = small(61, 1);
    make_server("one", &how, NULL, false,
                "{\"/get_server_info\": {\"threads\": 1, \"uptime\": 5, \"weight_bytes\": 7}}", 0);
    make_server("two", &other, NULL, false,
                "{\"/get_server_info\": {\"threads\": 2, \"uptime\": 6, \"weight_bytes\": 7, "
                "\"tiers\": {\"disk\": {}, \"list\": [1]}, \"api_key\": \"k\"}}",
                0);
    make_server("again", &other, NULL, false,
                "{\"/get_server_info\": {\"threads\": 1, \"uptime\": 9, \"weight_bytes\": 8}}", 0);
    json_t *o = run_json(NULL, "bench compare %/one %/two --no-history --json");
    const json_t *differ = json_object_get(o, "configuration_differences");
    assert_int_equal(json_object_size(differ), 2);
    assert_non_null(json_object_get(differ, "server.tiers.disk"));
    const json_t *pair = json_object_get(differ, "server.threads");
    assert_int_equal(json_integer_value(json_array_get(pair, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(pair, 1)), 2);
    json_decref(o);
    /* What the server found out by itself makes no other configuration, a setting does. */
    o = run_json(NULL, "bench compare %/one %/two %/again --no-history --json");
    const char *name[3];
    for (size_t i = 0; i < 3; i++) {
        const json_t *side = json_array_get(json_object_get(o, "sides"), i);
        name[i] = json_string_value(
            json_object_get(json_array_get(json_object_get(side, "runs"), 0), "fingerprint"));
    }
    assert_string_equal(name[0], name[2]);
    assert_string_not_equal(name[0], name[1]);
    json_decref(o);
    succeeds(NULL, "bench compare %/one %/two --no-history");
    assert_false(says("are equal"));
}

static void the_gate_shows_both_ends_of_each_interval(void **state) {
    struct synthetic a = small(62, 1), b = small(63, 0.8), c = small(64, 1.3);
    make("gate-a", &a, NULL, false);
    make("gate-b", &b, NULL, false);
    make("gate-c", &c, NULL, false);
    static const char *const lines[] = {
        "bench gate --baseline %/gate-a --candidate %/gate-b --no-history --json",
        "bench gate --baseline %/gate-a --candidate %/gate-c --no-history --json"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run(NULL, lines[i])->status, i);
        json_t *o = json_loads(last_outcome()->out, 0, NULL), *m;
        const char *key;
        json_object_foreach(json_object_get(o, "metrics"), key, m) {
            double worse = number(m, "worse_percent");
            assert_true(number(m, "worse_at_least_percent") < worse);
            assert_true(number(m, "worse_at_most_percent") > worse);
            assert_true(i ? worse > 0 : worse < 0);
        }
        json_decref(o);
    }
    succeeds(NULL, "bench gate --baseline %/gate-a --candidate %/gate-b --no-history");
    assert_true(says("interval of the change") && says(" .. "));
    assert_false(says("at the least"));
}

static void the_gate_refuses_another_workload_and_says_so_last(void **state) {
    struct synthetic how = small(65, 1);
    make("of-4", &how, NULL, false);
    make_server("of-8", &how, NULL, false, NULL, 8);
    assert_int_equal(
        run(NULL, "bench gate --baseline %/of-4 --candidate %/of-8 --no-history")->status, 1);
    const char *last = strstr(last_outcome()->out, "failed: not eligible: ");
    assert_non_null(last);
    assert_non_null(strstr(last, "concurrency is 8, the baseline's 4"));
    succeeds(NULL,
             "bench gate --baseline %/of-4 --candidate %/of-8 --no-history --allow-different");
}

static void history_compares_nothing_with_a_run_that_was_stopped(void **state) {
    const int64_t day = INT64_C(86400) * 1000000000;
    struct synthetic how[] = {small(70, 1), small(71, 5), small(72, 1), small(73, 1)};
    static const char *const names[] = {"w0", "w1", "w2", "w3"};
    for (size_t i = 0; i < 4; i++) {
        how[i].label = "week";
        how[i].started = 1772668800000000000 + (i / 2) * day + (int64_t)i;
        make_server(names[i], &how[i], "week.db", i == 1,
                    i == 3 ? "{\"/get_server_info\": {\"threads\": 4}}" : NULL, 0);
    }
    json_t *o = run_json(NULL, "bench history --history %/week.db --metric median_itl --json");
    const json_t *dates = json_object_get(json_array_get(json_object_get(o, "series"), 0), "dates");
    assert_int_equal(json_array_size(dates), 4);
    const json_t *line[4];
    double value[4];
    for (size_t i = 0; i < 4; i++) {
        line[i] = json_array_get(dates, i);
        const json_t *m = json_object_get(json_object_get(line[i], "metrics"), "median_itl");
        assert_int_equal(number(line[i], "runs"), 1);
        value[i] = number(m, "value");
        if (i < 2)
            assert_true(json_is_null(json_object_get(m, "change_percent")));
        else /* of the line before that is whole */
            assert_float_equal(number(m, "change_percent"),
                               100 * (value[i] / value[i == 2 ? 0 : 2] - 1), 1e-6);
    }
    assert_true(json_is_true(json_object_get(line[1], "incomplete")));
    assert_false(json_is_true(json_object_get(line[2], "incomplete")));
    assert_true(value[1] > 3 * value[0]);
    assert_int_equal(json_object_size(json_object_get(line[2], "changes")), 0);
    assert_non_null(json_object_get(json_object_get(line[3], "changes"), "server.threads"));
    json_decref(o);
    succeeds(NULL, "bench history --history %/week.db");
    assert_true(says("[server.threads: null -> 4]"));
    assert_true(says("[cancelled, compared with nothing]"));
}

static void sweeps_are_compared_point_by_point(void **state) {
    static const struct {
        const char *name;
        uint32_t lanes;
        double slower;
    } points[] = {{"sa/c1", 1, 1},  {"sa/c4", 4, 1},    {"sb/c4", 4, 1}, {"sb/c8", 8, 1},
                  {"sc/x", 4, 1.4}, {"sc/again", 1, 1}, {"sc/c1", 1, 1}};
    static const char *const dirs[] = {"sa", "sb", "sc"};
    for (size_t i = 0; i < 3; i++)
        mkdir(scratch(dirs[i]), 0755);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct synthetic how = small(80 + i, points[i].slower);
        make_server(points[i].name, &how, NULL, false, NULL, points[i].lanes);
    }
    json_t *o = run_json(NULL, "bench compare %/sa %/sb --no-history --metric p90_itl --json");
    const json_t *list = json_object_get(o, "points");
    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(number(json_array_get(list, 0), "concurrency"), 4);
    assert_int_equal(json_array_size(json_object_get(o, "unpaired")), 2);
    json_decref(o);
    /* Runs of one concurrency are repeats; every point must pass. */
    assert_int_equal(
        run(NULL, "bench gate --baseline %/sa --candidate %/sc --no-history --allow-invalid --json "
                  "--resolution 99.9")
            ->status,
        1);
    o = json_loads(last_outcome()->out, 0, NULL);
    list = json_object_get(o, "points");
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *p = json_array_get(list, i), *side = json_object_get(p, "candidate");
        assert_int_equal(json_array_size(json_object_get(side, "runs")), i ? 1 : 2);
        assert_int_equal(json_is_true(json_object_get(p, "passed")), i == 0);
        assert_float_equal(number(p, "confidence"), 0.975, 1e-12);
    }
    assert_int_equal(json_array_size(json_object_get(o, "failed_concurrencies")), 1);
    json_decref(o);
    /* So must every point of the baseline be there. */
    assert_int_equal(run(NULL, "bench gate --baseline %/sa --candidate %/sb --no-history "
                               "--threshold 900")
                         ->status,
                     1);
    assert_true(says("sweep failed; the candidate lacks concurrency 1\n"));
    fails(1, "bench compare %/sa %/sa/c4 --no-history", "sa/c4: is no sweep");
    fails(2, "bench gate --baseline %/sa/ --candidate %/sb/../sb --baseline-label x", "--baseline");
}

/* The model of a before and after: 25 days apart, new software, the same configuration. */
static void history_shows_what_a_new_version_brought(void **state) {
    const int64_t day = INT64_C(86400) * 1000000000;
    struct synthetic before = with(50, 8), after = with(51, 1);
    before.label = after.label = "k2.5-tp8";
    before.version = "0.16";
    after.version = "0.18";
    before.started = 1772668800000000000; /* 2026-03-05 */
    after.started = before.started + 25 * day;
    make("v16", &before, "dates.db", false);
    make("v18", &after, "dates.db", false);
    after.noise = 52;
    after.started += 5000000000; /* the same day */
    make("v18-again", &after, "dates.db", false);
    json_t *o = run_json(NULL, "bench history --history %/dates.db --label k2.5-tp8 "
                               "--metric median_intvty --json");
    const json_t *series = json_object_get(o, "series");
    assert_int_equal(json_array_size(series), 1);
    const json_t *dates = json_object_get(json_array_get(series, 0), "dates");
    assert_int_equal(json_array_size(dates), 2);
    const json_t *old = json_array_get(dates, 0), *new = json_array_get(dates, 1);
    assert_int_equal(number(new, "started") - number(old, "started"), 25 * 86400);
    assert_true(json_is_false(json_object_get(new, "configuration_changed")));
    const json_t *v = json_object_get(json_object_get(new, "metrics"), "median_intvty");
    assert_true(fabs(number(v, "change_percent") - 700) < 40);
    double spread = number(v, "spread_percent"); /* of its two runs */
    assert_true(spread > 0 && spread < 10);
    assert_true(json_is_null(json_object_get(
        json_object_get(json_object_get(old, "metrics"), "median_intvty"), "spread_percent")));
    assert_float_equal(
        number(v, "change_percent"),
        100 * (number(v, "value") /
                   number(json_object_get(json_object_get(old, "metrics"), "median_intvty"),
                          "value") -
               1),
        1e-6);
    json_decref(o);
    succeeds(NULL, "bench history --history %/dates.db");
    assert_non_null(strstr(last_outcome()->out, "2026-03-04"));
    assert_non_null(strstr(last_outcome()->out, "2026-03-29"));
    assert_non_null(strstr(last_outcome()->out, "date       UTC   runs"));
    struct tm tm; /* of the first of the two */
    const time_t began = (time_t)(after.started / 1000000000 - 5 - 10); /* its preparation */
    char shown[48];
    strftime(shown, sizeof shown, "  %Y-%m-%d %H:%M    2", gmtime_r(&began, &tm));
    assert_non_null(strstr(last_outcome()->out, shown));
    assert_non_null(strstr(last_outcome()->out, "framework_version=0.18  [runs differ by "));
}

/* The address of a server that prints "ready: URL" to a file of the scratch directory. */
static void wait_ready(const char *name, char *url, size_t cap) {
    for (int i = 0; i < 300; i++) {
        FILE *f = fopen(scratch(name), "r");
        char line[256] = "";
        bool got = f && fgets(line, sizeof line, f) && !strncmp(line, "ready: ", 7);
        if (f)
            fclose(f);
        if (got) {
            line[strcspn(line, "\n")] = 0;
            snprintf(url, cap, "%.200s", line + 7);
            return;
        }
        usleep(100000);
    }
    fail_msg("the server did not become ready");
}

static void a_replay_joins_the_history_and_is_whole_without(void **state) {
    char url[256], line[768];
    pid_t server = start("serve --model @models/tiny-k3 --port 0", "served");
    wait_ready("served", url, sizeof url);
    static const char *const rest[] = {"--out %/w1 --history %/replays.db --label w",
                                       "--out %/w2 --history %/replays.db --label w",
                                       "--out %/w3 --no-history --label w",
                                       "--out %/w4 --history %/text.db --label w"};
    write_scratch("text.db", "this is no database, not at all, but only text\n", 47);
    for (int i = 0; i < 4; i++) {
        snprintf(
            line, sizeof line,
            "bench replay --url %s --random-input-len 60 --random-output-len 4 --num-prompts 6 "
            "--concurrency 2 --once --unsafe-override --no-warmup %s",
            url, rest[i]);
        assert_int_equal(run(NULL, line)->status, i == 3); /* whoever relies on it must notice */
        bool told = strstr(last_outcome()->err, "not in the history");
        assert_int_equal(told, i == 3);
        snprintf(line, sizeof line, "w%d/run.json", i + 1);
        assert_int_equal(access(scratch(line), R_OK), 0);
    }
    /* A sweep leaves a summary behind that the frontier reads as it reads the runs. */
    snprintf(line, sizeof line,
             "bench sweep --url %s --random-input-len 60 --random-output-len 4 --num-prompts 6 "
             "--concurrency 2,1 --unsafe-override --no-warmup --out %%/swept --no-history",
             url);
    succeeds(NULL, line);
    assert_true(says("/swept/sweep.json"));
    assert_int_equal(finish(server, SIGTERM), 0);
    static const char *const forms[] = {"swept", "swept/sweep.json", "swept/sweep.csv"};
    double y[3][2];
    for (size_t i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "frontier %%/%s --json", forms[i]);
        json_t *f = run_json(NULL, line), *list = json_object_get(f, "series");
        assert_int_equal(json_array_size(list), 1);
        const json_t *points = json_object_get(json_array_get(list, 0), "points");
        assert_int_equal(json_array_size(points), 2);
        for (size_t k = 0; k < 2; k++) {
            const json_t *p = json_array_get(points, k);
            assert_string_equal(json_string_value(json_object_get(p, "workload")), "60/4");
            y[i][number(p, "concurrency") == 2] = number(p, "throughput_per_gpu");
        }
        for (size_t k = 0; k < 2; k++) /* but for the rounding of the files */
            assert_true(fabs(y[i][k] - y[0][k]) <= 1e-5);
        json_decref(f);
    }
    succeeds(NULL, "bench compare %/swept %/swept --no-history --metric p90_ttft");
    assert_true(says("== concurrency 1\n") && says("== concurrency 2\n"));
    json_t *o = run_json(NULL, "bench history --history %/replays.db --label w --json");
    const json_t *series = json_object_get(o, "series");
    assert_int_equal(json_array_size(series), 1);
    /* Repeats: one configuration, one version. Runs this short may be valid or not. */
    const json_t *dates = json_object_get(json_array_get(series, 0), "dates"), *day;
    int runs = 0;
    for (size_t i = 0; (day = json_array_get(dates, i)); i++) {
        runs += (int)number(day, "runs");
        assert_true(json_is_false(json_object_get(day, "configuration_changed")));
    }
    assert_int_equal(runs, 2);
    assert_true(json_array_size(dates) == 1 ||
                json_object_get(json_array_get(dates, 0), "valid") !=
                    json_object_get(json_array_get(dates, 1), "valid"));
    json_decref(o);
    o = run_json(NULL, "bench compare %/w1 %/w3 --history %/replays.db --json");
    assert_int_equal(json_object_size(json_object_get(o, "configuration_differences")), 0);
    json_decref(o);
}

static void files_of_other_tools_are_compared_by_their_figures(void **state) {
    static const char vllm[] =
        "{\"model_id\": \"m\", \"max_concurrency\": 16, \"duration\": 100, \"completed\": 50, "
        "\"output_throughput\": 800, \"total_input_tokens\": 720000, \"total_output_tokens\": "
        "80000, "
        "\"total_token_throughput\": 8000, "
        "\"median_ttft_ms\": 500, \"median_tpot_ms\": 20, \"median_itl_ms\": 99}";
    static const char rows[] = "label,conc,tput_per_gpu,p90_ttft\nx,4,100,1\nx,8,200,2\n";
    write_scratch("vllm.json", vllm, sizeof vllm - 1);
    write_scratch("rows.csv", rows, sizeof rows - 1);
    struct synthetic a = with(60, 1);
    make("mine", &a, NULL, false);
    json_t *o = run_json(NULL, "bench compare %/vllm.json %/mine --gpus 4 --no-history --json");
    const json_t *m = metric(o, 0, "tput_per_gpu");
    assert_float_equal(number(m, "baseline"), 2000, 1e-9);
    assert_true(json_is_null(json_object_get(m, "low")));
    assert_string_equal(json_string_value(json_object_get(m, "verdict")), "no interval");
    /* Its TPOT is our ITL; its ITL pools the gaps of all chunks. */
    assert_float_equal(number(metric(o, 0, "median_itl"), "baseline"), 0.02, 1e-12);
    assert_null(json_object_get(json_object_get(o, "configuration_differences"), "trace"));
    json_decref(o);
    fails(1, "bench compare %/vllm.json %/mine --no-history", "vllm.json");
    static const char *const inputs[] = {"bench compare zzz: %/mine --no-history",
                                         "bench compare zzz:%/mine %/mine --no-history",
                                         "bench gate --baseline zzz: --candidate %/mine",
                                         "frontier zzz:", "report zzz: --out %/page.html"};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        fails(1, inputs[i],
              "': cannot be read: No such file or directory; an input is a path alone");
    fails(1, "bench compare %/absent %/mine --no-history", "absent: cannot be read: No such file");
    fails(1, "bench compare %/rows.csv %/mine --no-history", "holds 2 points");
    fails(1, "bench compare %/rows.csv@5 %/mine --no-history", "no point of concurrency 5");
    o = run_json(NULL, "bench compare %/rows.csv@8 %/rows.csv@4 --no-history --json");
    assert_float_equal(number(metric(o, 0, "tput_per_gpu"), "ratio"), 0.5, 1e-12);
    json_decref(o);
    assert_int_equal(run(NULL, "bench gate --baseline %/rows.csv@8 --candidate %/rows.csv@4 "
                               "--metric tput_per_gpu --no-history")
                         ->status,
                     1);
    assert_true(says("no interval: judged by the figure alone"));
}

/* The aggregate of a run, taken by itself, may not lose what is wrong with the run. */
static void an_aggregate_says_what_is_wrong_with_its_run(void **state) {
    struct synthetic a = with(61, 1);
    make("whole", &a, NULL, false);
    make("stopped", &a, NULL, true);
    succeeds(NULL, "bench gate --baseline %/whole/inferencex.json --candidate "
                   "%/whole/inferencex.json --no-history");
    assert_int_equal(run(NULL, "bench gate --baseline %/stopped/inferencex.json --candidate "
                               "%/stopped/inferencex.json --no-history --allow-invalid")
                         ->status,
                     1);
    assert_true(says("was cancelled"));
    succeeds(NULL, "frontier %/stopped/inferencex.json");
    assert_false(says("1 of 1 point on the frontier"));
    /* Of an older file the scales alone say it. */
    json_t *o = json_load_file(scratch("whole/inferencex.json"), 0, NULL);
    json_object_del(o, "state");
    json_object_set_new(json_object_get(o, "dataset"), "time_scale", json_real(0.5));
    assert_int_equal(json_dump_file(o, scratch("scaled.json"), 0), 0);
    json_decref(o);
    assert_int_equal(run(NULL, "bench gate --baseline %/whole/inferencex.json --candidate "
                               "%/scaled.json --no-history")
                         ->status,
                     1);
    assert_true(says("its file says: scaled"));
}

/* A sweep made anew into its directory with fewer points leaves those of the first. */
static void points_that_an_earlier_sweep_left_are_not_read(void **state) {
    struct synthetic a = with(62, 1);
    mkdir(scratch("swp"), 0777);
    make("swp/c2", &a, NULL, false);
    make("swp/c4", &a, NULL, false);
    succeeds(NULL, "report %/swp --out %/swp.html");
    assert_string_equal(last_outcome()->err, "");
    succeeds(NULL, "frontier %/swp --all"); /* two of one concurrency: which is which */
    assert_true(says("swp/c2") && says("swp/c4"));
    static const char only[] = "{\"rows\":[],\"points\":[{\"dir\":\"c2\",\"concurrency\":2}]}";
    write_scratch("swp/sweep.json", only, sizeof only - 1);
    succeeds(NULL, "report %/swp --out %/swp.html");
    assert_non_null(strstr(last_outcome()->err, "c4: is not of the sweep"));
    succeeds(NULL, "frontier %/swp --json");
    assert_true(says("swp/c2"));
    assert_false(says("swp/c4"));
    static const char gone[] = "{\"rows\":[],\"points\":[{\"dir\":\"c8\",\"concurrency\":8}]}";
    write_scratch("swp/sweep.json", gone, sizeof gone - 1);
    fails(1, "frontier %/swp", "its sweep.json lists c8");
    fails(1, "bench compare %/swp %/swp --no-history", "its sweep.json lists c8");
    write_scratch("swp/sweep.json", "{\"points\":[{\"dir\":\"../c2\"}]}", 28);
    fails(1, "report %/swp --out %/swp.html", "points[0].dir");
}

static void what_makes_no_sense_is_refused_by_one_line(void **state) {
    fails(2, "bench compare --no-history", "two sides are needed");
    fails(1, "bench compare %/nowhere %/nowhere --no-history", "nowhere");
    fails(2, "bench gate --candidate %/main", "--baseline DIR or --baseline-label L");
    fails(2, "bench gate --baseline %/main --candidate %/main --no-history --metric speed",
          "'speed' is none of");
    fails(2, "bench gate --baseline %/main --baseline %/main/ --candidate %/good --no-history",
          "is the same run as");
    fails(2, "bench gate --baseline %/main --candidate %/good --candidate %/good --no-history",
          "a run is no repeat of itself");
    fails(1, "bench history --history %/no.db", "no history of runs");
    fails(1, "bench history --history %/runs.db --label none", "no run of this label");
    write_scratch("text.db", "this is no database, not at all, but only text\n", 47);
    fails(1, "bench history --history %/text.db", "is no run history or is damaged");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons_tell_better_from_worse_from_noise),
        cmocka_unit_test(repeats_say_how_much_runs_differ),
        cmocka_unit_test(the_gate_exits_1_and_names_what_regressed),
        cmocka_unit_test(the_gate_judges_against_the_history),
        cmocka_unit_test(a_server_that_was_set_otherwise_is_a_difference),
        cmocka_unit_test(the_gate_shows_both_ends_of_each_interval),
        cmocka_unit_test(the_gate_refuses_another_workload_and_says_so_last),
        cmocka_unit_test(history_compares_nothing_with_a_run_that_was_stopped),
        cmocka_unit_test(sweeps_are_compared_point_by_point),
        cmocka_unit_test(history_shows_what_a_new_version_brought),
        cmocka_unit_test(a_replay_joins_the_history_and_is_whole_without),
        cmocka_unit_test(files_of_other_tools_are_compared_by_their_figures),
        cmocka_unit_test(an_aggregate_says_what_is_wrong_with_its_run),
        cmocka_unit_test(points_that_an_earlier_sweep_left_are_not_read),
        cmocka_unit_test(what_makes_no_sense_is_refused_by_one_line),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
