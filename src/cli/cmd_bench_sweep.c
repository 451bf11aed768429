/* cmd_bench_sweep.c: `weir bench sweep`: the same workload at several concurrencies. */
#include "cli/bench_args.h"
#include "cli/command.h"
#include "cli/io.h"

#include "base/plural.h"
#include "bench/sweep.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MOST_POINTS = 256, ANSWER_SECONDS = 10, RETRY_US = 100000 };

struct sweep_args {
    struct bench_args bench;
    char *concurrency, *admin_key;
    bool reset_cache;
};

#define AT(field) offsetof(struct sweep_args, field)

static const struct option_spec sweep_options[] = {
    {.name = "concurrency",
     .value = "LIST",
     .type = OPTION_TEXT,
     .offset = AT(concurrency),
     .fallback = "1,2,4,8,16",
     .against = "request-rate",
     .help = "Points to measure, in this order: numbers of lanes with commas between."},
    {.name = "reset-cache",
     .type = OPTION_FLAG,
     .offset = AT(reset_cache),
     .help = "Empty the server's prefix cache before each point (POST "
             "/reset_prefix_cache?reset_external=true, or /flush_cache)."},
    {.name = "admin-key",
     .value = "K",
     .type = OPTION_TEXT,
     .offset = AT(admin_key),
     .help = "Key for that, where it is another than --api-key."},
};

static weir_status read_points(const char *text, uint32_t *point, uint32_t *n, weir_error *err) {
    for (*n = 0; *text;) {
        char *end;
        text += strspn(text, " "); /* "1, 2" */
        errno = 0;
        unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (v < 1 || v > 1048576 || errno || (*end && *end != ',') || *n == MOST_POINTS ||
            (*end == ',' && !end[1]))
            return weir_fail(err, WEIR_BAD_VALUE, "--concurrency",
                             "must be at most %d numbers from 1 to 1048576 with commas between, "
                             "from here on they are not: %.60s",
                             MOST_POINTS, text);
        for (uint32_t i = 0; i < *n; i++)
            if (point[i] == v)
                return weir_fail(err, WEIR_BAD_VALUE, "--concurrency", "%lu stands there twice", v);
        point[(*n)++] = (uint32_t)v;
        text = end + (*end == ',');
    }
    return *n ? WEIR_OK : weir_fail(err, WEIR_BAD_VALUE, "--concurrency", "names no point");
}

static weir_status reset_cache(const struct sweep_args *a, weir_error *err) {
    static const char *const paths[] = {"/reset_prefix_cache?reset_external=true", "/flush_cache"};
    struct client_options o = {.url = a->bench.url,
                               .api_key = a->admin_key ? a->admin_key : a->bench.api_key,
                               .ca_file = a->bench.ca,
                               .connect_seconds = a->bench.connect_timeout,
                               .streams = 1};
    struct client *c;
    struct client_text t = {0};
    weir_status s = client_open(&o, &c, err);
    if (s)
        return s;
    for (size_t i = 0; i < 2; i++) {
        free(t.text);
        client_fetch(c, paths[i], "{}", 60, &t);
        if (!t.ok || (t.status != 404 && t.status != 405))
            break;
    }
    if (!t.ok)
        s = weir_fail(err, WEIR_CLOSED, "--reset-cache", "the server does not answer: %s",
                      t.message);
    else if (t.status != 200)
        s = weir_fail(err, WEIR_UNSUPPORTED, "--reset-cache",
                      "the server refuses it with status %d%s", t.status,
                      t.status == 404 ? ": it has no such endpoint, or not for this key" : "");
    free(t.text);
    client_close(c);
    return s;
}

/* A server that is being started anew is down for a moment, and then up without its model (status
 * 503): asks it until it answers otherwise, whatever it says, for --connect-timeout at most:
 * without that limit for its default, since a sweep has other points. What it does not answer then
 * the point itself finds out. */
static void await_server(const struct sweep_args *a) {
    const double limit = a->bench.connect_timeout > 0 ? a->bench.connect_timeout : 30;
    const int64_t begun = client_now();
    for (bool up = false; !up && (double)(client_now() - begun) < limit * 1e9;) {
        struct client_options o = {.url = a->bench.url,
                                   .api_key = a->bench.api_key,
                                   .ca_file = a->bench.ca,
                                   .connect_seconds = limit,
                                   .streams = 1};
        struct client *c;
        struct client_text t = {0};
        if (client_open(&o, &c, NULL))
            return;
        client_fetch(c, "/v1/models", NULL, ANSWER_SECONDS, &t);
        up = t.ok && t.status != 503;
        free(t.text);
        client_close(c);
        if (!up)
            usleep(RETRY_US);
    }
}

static void print_head(void) {
    printf("%11s %12s %12s %12s %12s %12s %12s %7s %6s\n", "concurrency", "total/GPU", "output/GPU",
           "TTFT p50", "TTFT p90", "intvty p50", "intvty p90", "failed", "valid");
}

/* One column of a point, "-" where nothing was measured. */
static void print_figure(double v, int decimals, const char *unit) {
    char text[32];
    snprintf(text, sizeof text, "%.*f%s", decimals, v, unit);
    printf(" %12s", isfinite(v) ? text : "-");
}

static void print_point(const struct run *run, const struct run_summary *s) {
    printf("%11u", run->concurrency);
    print_figure(s->per_gpu_total, 1, "");
    print_figure(s->per_gpu_out, 1, "");
    print_figure(s->ttft.p50 * 1e3, 1, " ms");
    print_figure(s->ttft.p90 * 1e3, 1, " ms");
    print_figure(s->intvty.p50, 2, "");
    print_figure(s->intvty.p90, 2, "");
    printf(" %7u %6s\n", s->failed, s->valid ? "yes" : "no");
    for (uint32_t i = 0; i < s->n_invalid; i++)
        printf("%11s not valid: %s\n", "", s->invalid[i]);
    for (uint32_t i = 0; i < run->n_warnings; i++)
        printf("%11s warning: %s\n", "", run->warnings[i]);
    fflush(stdout);
}

/* What a sweep has found so far. */
struct found {
    json_t *points;    /* for --json, or NULL */
    json_t *summaries; /* of the points that were measured */
    json_t *left_out;  /* {"concurrency", "reason"} of those that were not */
    bool bad;          /* some figures do not stand, or are missing */
};

static weir_status leave_out(const struct sweep_args *a, uint32_t lanes, const weir_error *why,
                             struct found *f, weir_error *err) {
    char reason[1024];
    snprintf(reason, sizeof reason, "%s: %s", why->where, why->message);
    fprintf(stderr, "weir: bench sweep: concurrency %u: left out: %s\n", lanes, reason);
    f->bad = true;
    if (json_array_append_new(f->left_out, json_pack("{s:I, s:s}", "concurrency", (json_int_t)lanes,
                                                     "reason", reason)))
        return weir_fail(err, WEIR_NO_MEMORY, "sweep", "no memory");
    if (!f->points)
        printf("%11u left out\n", lanes);
    return sweep_write(a->bench.out, f->summaries, f->left_out, err);
}

static weir_status run_point(const struct sweep_args *a, struct bench_job *job, uint32_t lanes,
                             struct found *f, weir_error *err) {
    char *dir = NULL, name[16];
    snprintf(name, sizeof name, "c%u", lanes);
    if (asprintf(&dir, "%s/%s", a->bench.out, name) < 0)
        return weir_fail(err, WEIR_NO_MEMORY, "sweep", "no memory");
    struct run run = {0};
    struct run_summary *summary = malloc(sizeof *summary);
    weir_status s = summary ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, "sweep", "no memory");
    /* That no server answers the first point is a matter of --url; later on it was there. */
    const bool later = json_array_size(f->summaries) > 0;
    weir_error fault = {0};
    if (!s && later)
        await_server(a);
    if (!s && a->reset_cache)
        s = reset_cache(a, &fault);
    if (!s)
        s = bench_job_run(job, lanes, dir, &run, summary, &fault);
    if (s && fault.code) {
        run_free(&run);
        free(summary);
        free(dir);
        if (s == WEIR_CLOSED && later)
            return leave_out(a, lanes, &fault, f, err);
        return weir_fail(err, s, fault.where, "%s", fault.message);
    }
    /* Anew behind each point: what was measured is there whatever becomes of the next one. */
    if (!s && json_array_append_new(f->summaries, sweep_point_json(&run, summary, name)))
        s = weir_fail(err, WEIR_NO_MEMORY, "sweep", "no memory");
    if (!s)
        s = sweep_write(a->bench.out, f->summaries, f->left_out, err);
    if (!s && f->points)
        json_array_append_new(f->points, bench_json(&run, summary, dir));
    else if (!s)
        print_point(&run, summary);
    char why[1024];
    if (!s && !bench_stands(&run, summary, why, sizeof why)) {
        fprintf(stderr, "weir: bench sweep: concurrency %u: %s\n", lanes, why);
        f->bad = true;
    }
    run_free(&run);
    free(summary);
    free(dir);
    return s;
}

static int run_sweep(void *record, weir_error *err) {
    const struct sweep_args *a = record;
    uint32_t point[MOST_POINTS], n;
    struct bench_job job;
    weir_status s = read_points(a->concurrency, point, &n, err);
    if (!s)
        s = bench_job_open(&a->bench, &job, err);
    if (s)
        return command_exit_status(err);
    if (job.open_loop)
        s = weir_fail(err, WEIR_BAD_VALUE,
                      bench_given(&a->bench, "request-rate") ? "--request-rate" : "--arrivals",
                      "a sweep is over lanes; the open loop has none: use `bench replay`");
    if (!s)
        s = run_dir_refuse(a->bench.out, err);
    if (!s)
        s = run_prepare(a->bench.out, err);
    struct found f = {.points = a->bench.json ? json_array() : NULL,
                      .summaries = json_array(),
                      .left_out = json_array()};
    if (!s && isatty(STDERR_FILENO) && !job.is_random && !a->bench.once)
        fprintf(stderr, "%u %s of %g s each: at least %.0f minutes\n", n,
                plural(n, "point", "points"), a->bench.duration, ceil(n * a->bench.duration / 60));
    if (!s && !f.points)
        print_head();
    for (uint32_t i = 0; !s && i < n && !bench_interrupted(); i++)
        s = run_point(a, &job, point[i], &f, err);
    if (!f.points && json_array_size(f.summaries))
        printf("Files: %s/sweep.json, sweep.csv and for each point cN\n", a->bench.out);
    if (!s && f.points)
        s = io_print_json(json_pack("{s:O, s:O}", "points", f.points, "left_out", f.left_out), err);
    json_decref(f.points);
    json_decref(f.summaries);
    json_decref(f.left_out);
    bool bad = f.bad || job.unrecorded;
    bench_job_close(&job);
    return s ? command_exit_status(err) : bad;
}

static const struct option_group sweep_groups[] = {
    {"Points", sweep_options, sizeof sweep_options / sizeof *sweep_options, 0, 0}, BENCH_GROUPS};

static const struct command_section sweep_sections[] = {
    {"DESCRIPTION",
     "Runs `weir bench replay` at each of the concurrencies, one after the other, and writes the "
     "files of the point with N lanes into DIR/cN, where `weir report` and `weir frontier` find "
     "them; `weir bench compare` and `weir bench gate` take two sweeps and pair their points. "
     "DIR/sweep.json and DIR/sweep.csv hold a row for each point, its flat row and whether it is "
     "comparable; they are written anew behind each one, and `weir frontier` reads both. Points "
     "share seed and trace, so that each lane plays the same sessions.\n\n"
     "Each point takes --duration, an hour unless it is given, besides its warm-up and the calls "
     "that are under way at the end: the five points of the default take more than five hours, "
     "with --duration 900, the least for agent sessions that are to be valid, more than 75 "
     "minutes. A terminal is told so at the start. Points that have ended are whole on disk "
     "whatever becomes of the next.\n\n"
     "What earlier points left in the server's prefix cache is of no use to later ones only if "
     "their seeds differ or the cache is emptied in between: --reset-cache.\n\n"
     "The exit status is 1, with a line on standard error for each such point, where nothing was "
     "kept, more than 10 % of the calls failed, or a point was cancelled or aborted, or did not "
     "get "
     "into the run history. A server that does not answer before a later point is asked again for "
     "--connect-timeout; then the point is left out, which is such a line too, and the sweep goes "
     "on with the next."},
    {"JSON", "{\"points\": [...], \"left_out\": [{\"concurrency\", \"reason\"}]}, each point as "
             "`weir bench replay --json` prints it."},
    {"EXAMPLES",
     "  weir bench sweep --trace sessions.jsonl --format weka --url "
     "http://127.0.0.1:8000 --concurrency 1,2,4,8,16 --duration 900 --reset-cache --out "
     "results"},
};

const struct command command_bench_sweep = {
    .name = "bench sweep",
    .synopsis = "--concurrency 1,2,4 (--trace FILE --format F | --random-input-len N) --url URL "
                "--out DIR [options]",
    .summary = "measure a workload at several concurrencies",
    .options = {sweep_groups, sizeof sweep_groups / sizeof *sweep_groups, NULL, 0, false},
    .record_bytes = sizeof(struct sweep_args),
    .section = sweep_sections,
    .n_sections = sizeof sweep_sections / sizeof sweep_sections[0],
    .run = run_sweep,
};
