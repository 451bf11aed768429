/* bench_print.c: what is said of a run on a terminal and in the object of --json. */
#include "cli/bench_args.h"

#include "base/plural.h"

#include <math.h>
#include <string.h>

static void row(const char *name, const struct distribution *d, double scale, const char *unit) {
    if (d->n == 0)
        printf("  %-22s %12s\n", name, "-");
    else
        printf("  %-22s %12.3f %12.3f %12.3f %12.3f  %s\n", name, d->mean * scale, d->p50 * scale,
               d->p90 * scale, d->p99 * scale, unit);
}

static void value(const char *name, double x, const char *unit) {
    if (isfinite(x))
        printf("  %-22s %12.3f  %s\n", name, x, unit);
    else
        printf("  %-22s %12s\n", name, "-");
}

static void share(const char *name, const json_t *v) {
    if (json_is_number(v))
        printf("  %-22s %11.2f %%\n", name, json_number_value(v) * 100);
    else
        printf("  %-22s %12s\n", name, "-");
}

/* Interactivities are those of the slow tail: the reciprocals of ITL's percentiles. */
static void print_latency(const struct run_summary *s) {
    printf("  %-22s %12s %12s %12s %12s\n", "", "mean", "p50", "p90", "p99");
    row("TTFT", &s->ttft, 1e3, "ms");
    row("ITL", &s->itl, 1e3, "ms");
    row("full-response ITL", &s->full_itl, 1e3, "ms");
    row("latency", &s->latency, 1e3, "ms");
    row("interactivity", &s->intvty, 1, "tokens/s/user");
    row("prompt", &s->in, 1, "tokens");
    row("answer", &s->out, 1, "tokens");
    puts("  Interactivity is 1 / ITL of its statistic, so percentiles are those of the slow tail; "
         "the "
         "mean of each\n  call's own rate is output_token_throughput_per_user in "
         "profile_export_aiperf.json.");
}

static void print_cache(const struct run *run, const struct run_summary *s) {
    json_t *all = run_inferencex_json(run, s);
    const json_t *cache = json_object_get(json_object_get(all, "server_metrics"), "cache");
    puts("Cache hit rates");
    json_t *theoretical =
        isfinite(s->theoretical_hit_rate) ? json_real(s->theoretical_hit_rate) : json_null();
    json_t *usage = isfinite(s->cached_share) ? json_real(s->cached_share) : json_null();
    share("trace, none forgotten", theoretical);
    share("by answers' usage", usage);
    share("device", json_object_get(cache, "gpu_cache_hit_rate"));
    share("host", json_object_get(cache, "cpu_cache_hit_rate"));
    share("external", json_object_get(cache, "external_cache_hit_rate"));
    share("overall", json_object_get(cache, "overall_cache_hit_rate"));
    json_decref(theoretical);
    json_decref(usage);
    json_decref(all);
}

static void print_overhead(const struct client_overhead *o) {
    printf("Client: %.1f %% of a core, at most %u %s at once\n", o->busy * 100, o->most_streams,
           plural(o->most_streams, "call", "calls"));
    printf("  %-22s %12s %12s %12s %12s\n", "", "mean", "p50", "p99", "max");
    const struct {
        const char *name;
        const struct distribution *d;
    } rows[] = {{"loop turn", &o->turn_us}, {"late sending", &o->late_us}};
    for (size_t i = 0; i < 2; i++)
        if (rows[i].d->n > 0)
            printf("  %-22s %12.1f %12.1f %12.1f %12.1f  us\n", rows[i].name, rows[i].d->mean,
                   rows[i].d->p50, rows[i].d->p99, rows[i].d->max);
    const struct distribution *held = &o->held_ms;
    if (held->n > 0)
        printf("  %-22s %12.1f %12.1f %12.1f %12.1f  ms\n", "held by the limit", held->mean,
               held->p50, held->p99, held->max);
}

/* How the calls were sent: the number of lanes alone says nothing of an open loop. */
static void print_load(const struct run *run) {
    const char *arrivals = json_string_value(json_object_get(run->config, "arrivals"));
    double rate = json_number_value(json_object_get(run->config, "request-rate"));
    if (!arrivals || !strcmp(arrivals, "closed")) {
        printf("concurrency %u", run->concurrency);
        return;
    }
    printf("open loop, %s arrivals", arrivals);
    if (rate >= BENCH_AT_ONCE)
        printf(", all at once");
    else if (rate > 0)
        printf(", %g calls/s", rate);
    if (run->concurrency > 0)
        printf(", at most %u in flight", run->concurrency);
}

/* Of each kind of error the number, the status and the first message. */
static void print_errors(const struct run *run) {
    struct {
        const struct call_record *first;
        uint32_t n;
    } kind[2 * RUN_ERROR_TYPES];
    uint32_t n = 0, others = 0;
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct call_record *c = &run->records[i];
        if (c->phase < PHASE_PROFILING || !c->error_type[0] || c->was_cancelled)
            continue;
        uint32_t k = 0;
        while (k < n && (kind[k].first->error_code != c->error_code ||
                         strcmp(kind[k].first->error_type, c->error_type) != 0))
            k++;
        if (k == sizeof kind / sizeof *kind) {
            others++;
            continue;
        }
        if (k == n) {
            kind[k].first = c;
            kind[n++].n = 0;
        }
        kind[k].n++;
    }
    for (uint32_t k = 0; k < n; k++) {
        const struct call_record *c = kind[k].first;
        char name[48];
        snprintf(name, sizeof name, c->error_code ? "%s %d" : "%s", c->error_type, c->error_code);
        printf("  %-22s %12u  %s\n", name, kind[k].n, c->error_message);
    }
    if (others > 0)
        printf("  %-22s %12u\n", "other", others);
}

void bench_print(const struct run *run, const struct run_summary *s, const char *dir) {
    printf("%s on %s, ", run->dataset, run->subject.framework);
    print_load(run);
    printf(": %u %s kept of %u profiled, %u of the warm-up\n", s->kept,
           plural(s->kept, "call", "calls"), s->profiled, s->warmup);
    print_latency(s);
    value("total throughput", s->per_gpu_total, "tokens/s/GPU");
    value("output throughput", s->per_gpu_out, "tokens/s/GPU");
    value("requests", s->request_rate, "/s");
    value("duration", s->duration, "s");
    print_cache(run, s);
    printf("Errors: %u failed, %u skipped, %u cancelled, %u of another length than asked for\n",
           s->failed, s->skipped, s->cancelled, s->length_missed);
    print_errors(run);
    print_overhead(&run->overhead);
    for (uint32_t i = 0; i < run->n_warnings; i++)
        printf("Warning: %s\n", run->warnings[i]);
    printf("Valid: %s\n", s->valid ? "yes" : "no");
    for (uint32_t i = 0; i < s->n_invalid; i++)
        printf("  %s\n", s->invalid[i]);
    if (dir)
        printf("Files: %s\n", dir);
}

json_t *bench_json(const struct run *run, const struct run_summary *s, const char *dir) {
    json_t *warnings = json_array();
    for (uint32_t i = 0; i < run->n_warnings; i++)
        json_array_append_new(warnings, json_string(run->warnings[i]));
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "out", dir, "concurrency",
                     (int)run->concurrency, "row", run_row_json(run, s), "summary",
                     run_summary_json(run, s), "inferencex", run_inferencex_json(run, s),
                     "warnings", warnings);
}
