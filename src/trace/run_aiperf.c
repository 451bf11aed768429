/* run_aiperf.c: the summary of a run, one row of statistics a metric, as JSON and as CSV. Called by
 * the writer of a run's files. Both come from one list of rows, so that they cannot disagree. */
#include "trace/run_inside.h"

#include <math.h>
#include <string.h>

struct row {
    const char *key, *unit;
    struct distribution d; /* in `unit` */
    int decimals;
    bool single; /* one number: d.mean alone */
};
enum { MOST_ROWS = 40, STATS = 13 };

struct rows {
    struct row row[MOST_ROWS];
    size_t n;
};

static void add(struct rows *l, const char *key, const char *unit, const struct distribution *d,
                double scale, int decimals) {
    WEIR_ASSERT(l->n < MOST_ROWS);
    struct row *r = &l->row[l->n++];
    *r = (struct row){key, unit, *d, decimals, false};
    double *const x[] = {&r->d.mean, &r->d.std, &r->d.min, &r->d.max, &r->d.sum,
                         &r->d.p1,   &r->d.p5,  &r->d.p10, &r->d.p25, &r->d.p50,
                         &r->d.p75,  &r->d.p90, &r->d.p95, &r->d.p99};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        *x[i] *= scale;
}

static void add_one(struct rows *l, const char *key, const char *unit, double x, int decimals) {
    struct distribution d = {0, x, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    add(l, key, unit, &d, 1, decimals);
    l->row[l->n - 1].single = true;
}

static void fill(struct rows *l, const struct run_summary *s) {
    l->n = 0;
    add_one(l, "request_throughput", "requests/sec", s->request_rate, DECIMALS);
    add(l, "request_latency", "ms", &s->latency, 1e3, DECIMALS_MS);
    add_one(l, "request_count", "requests", s->kept, 0);
    add(l, "time_to_first_token", "ms", &s->ttft, 1e3, DECIMALS_MS);
    add(l, "time_to_second_token", "ms", &s->ttst, 1e3, DECIMALS_MS);
    add(l, "inter_token_latency", "ms", &s->itl, 1e3, DECIMALS_MS);
    add(l, "full_response_inter_token_latency", "ms", &s->full_itl, 1e3, DECIMALS_MS);
    add(l, "inter_chunk_latency", "ms", &s->icl, 1e3, DECIMALS_MS);
    add_one(l, "output_token_throughput", "tokens/sec", s->out_rate, DECIMALS);
    add(l, "output_token_throughput_per_user", "tokens/sec/user", &s->user_rate, 1, DECIMALS);
    add(l, "prefill_throughput", "tokens/sec/user", &s->prefill_rate, 1, DECIMALS);
    add_one(l, "total_token_throughput", "tokens/sec", s->total_rate, DECIMALS);
    add(l, "output_sequence_length", "tokens", &s->out, 1, DECIMALS);
    add(l, "output_token_count", "tokens", &s->text_out, 1, DECIMALS);
    add(l, "input_sequence_length", "tokens", &s->in, 1, DECIMALS);
    add_one(l, "total_isl", "tokens", (double)s->sum_in, 0);
    add_one(l, "total_osl", "tokens", (double)s->sum_out, 0);
    /* Without a service level to meet, nobody knows which requests were good. */
    add_one(l, "goodput", "requests/sec", NAN, DECIMALS);
    add_one(l, "good_request_count", "requests", NAN, 0);
    add_one(l, "benchmark_duration", "sec", s->duration, DECIMALS_S);
    add_one(l, "error_request_count", "requests", s->failed, 0);
}

static const char *const stat_names[STATS] = {"avg", "min", "max", "p1",  "p5",  "p10", "p25",
                                              "p50", "p75", "p90", "p95", "p99", "std"};

static json_t *stat(const struct row *r, int i) {
    const struct distribution *d = &r->d;
    const double x[STATS] = {d->mean, d->min, d->max, d->p1,  d->p5,  d->p10, d->p25,
                             d->p50,  d->p75, d->p90, d->p95, d->p99, d->std};
    return json_rounded(x[i], r->decimals);
}

static json_t *row_json(const struct row *r) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "unit", json_string(r->unit), &ok);
    for (int i = 0; i < STATS; i++)
        json_put(o, stat_names[i], stat(r, i), &ok);
    if (!r->single) {
        json_put(o, "sum", json_rounded(r->d.sum, r->decimals), &ok);
        json_put(o, "count", json_integer((json_int_t)r->d.n), &ok);
    }
    return json_done(o, ok);
}

/* Failures of one kind: [{"error_details": {code, type, message}, "count"}], the message being that
 * of the first. */
static json_t *errors_json(const struct run *r) {
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (!c->error_type[0] || c->phase == PHASE_PRIMER || c->phase == PHASE_WARMUP)
            continue;
        json_t *same = NULL;
        for (size_t k = 0; !same && k < json_array_size(list); k++) {
            json_t *o = json_array_get(list, k), *d = json_object_get(o, "error_details");
            const char *type = json_string_value(json_object_get(d, "type"));
            if (json_integer_value(json_object_get(d, "code")) == c->error_code && type &&
                !strcmp(type, c->error_type))
                same = o;
        }
        if (same) {
            json_t *n = json_object_get(same, "count");
            ok = !json_integer_set(n, json_integer_value(n) + 1);
            continue;
        }
        json_t *o = json_object(), *d = json_object();
        json_put(d, "code", json_integer(c->error_code), &ok);
        json_put(d, "type", json_text_or_null(c->error_type), &ok);
        json_put(d, "message", json_text_or_null(c->error_message), &ok);
        json_put(o, "error_details", d, &ok);
        json_put(o, "count", json_integer(1), &ok);
        ok = !json_array_append_new(list, o) && ok;
    }
    return json_done(list, ok);
}

static json_t *metadata_json(const struct run *r, const struct run_summary *s) {
    json_t *o = json_object(), *reasons = json_array();
    bool ok = o && reasons;
    for (uint32_t i = 0; ok && i < s->n_invalid; i++)
        ok = !json_array_append_new(reasons, json_text_or_null(s->invalid[i]));
    json_put(o, "scenario", json_text_or_null(r->scenario), &ok);
    json_put(o, "submission_valid", json_boolean(s->valid), &ok);
    json_put(o, "submission_invalid_reasons", reasons, &ok);
    json_put(o, "dataset", json_text_or_null(r->dataset), &ok);
    return json_done(o, ok);
}

json_t *run_summary_json(const struct run *r, const struct run_summary *s) {
    struct rows *l = malloc(sizeof *l);
    json_t *o = json_object();
    bool ok = l && o;
    if (!ok) {
        free(l);
        json_decref(o);
        return NULL;
    }
    fill(l, s);
    for (size_t i = 0; i < l->n; i++)
        json_put(o, l->row[i].key, row_json(&l->row[i]), &ok);
    free(l);
    char from[32], to[32];
    utc_text(r->profiling_started ? r->profiling_started : r->started, from);
    utc_text(r->profiling_ended ? r->profiling_ended : r->ended, to);
    json_put(o, "input_config", r->config ? json_deep_copy(r->config) : json_null(), &ok);
    json_put(o, "was_cancelled", json_boolean(r->was_cancelled), &ok);
    json_put(o, "error_summary", errors_json(r), &ok);
    json_put(o, "start_time", json_text_or_null(from[0] ? from : NULL), &ok);
    json_put(o, "end_time", json_text_or_null(to[0] ? to : NULL), &ok);
    json_put(o, "metadata", metadata_json(r, s), &ok);
    return json_done(o, ok);
}

char *run_summary_csv(const struct run *r, const struct run_summary *s) {
    struct rows *l = malloc(sizeof *l);
    char *text = NULL;
    size_t bytes;
    FILE *f = l ? open_memstream(&text, &bytes) : NULL;
    bool ok = f;
    if (f) {
        fill(l, s);
        fputs("Metric", f);
        for (int i = 0; i < STATS; i++)
            fprintf(f, ",%s", stat_names[i]);
        fputc('\n', f);
        for (size_t i = 0; i < l->n; i++) {
            fprintf(f, "%s (%s)", l->row[i].key, l->row[i].unit);
            for (int k = 0; k < STATS; k++) {
                json_t *v = stat(&l->row[i], k);
                char *shown = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
                ok = ok && shown;
                fprintf(f, ",%s", shown && !json_is_null(v) ? shown : "");
                free(shown);
                json_decref(v);
            }
            fputc('\n', f);
        }
        ok = !ferror(f) && ok;
        ok = !fclose(f) && ok;
    }
    free(l);
    if (ok)
        return text;
    free(text);
    return NULL;
}
