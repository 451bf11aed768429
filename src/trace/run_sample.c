/* run_sample.c: what a server's own counters say of a run. Called by the writers of its files.
 * Every counter may be absent; an unknown stays unknown (null), since 0 would be a finding. */
#include "trace/run_inside.h"

#include <math.h>
#include <string.h>

#define COUNTER(name)                                                                              \
    { #name, offsetof(struct server_sample, name), true }
#define GAUGE(name)                                                                                \
    { #name, offsetof(struct server_sample, name), false }
static const struct sample_field fields[] = {
    COUNTER(prompt_tokens),
    COUNTER(generated_tokens),
    COUNTER(requests_done),
    COUNTER(hit_tokens),
    COUNTER(query_tokens),
    COUNTER(external_hit_tokens),
    COUNTER(external_query_tokens),
    COUNTER(device_tokens),
    COUNTER(host_tokens),
    COUNTER(disk_tokens),
    COUNTER(remote_tokens),
    COUNTER(computed_tokens),
    GAUGE(running),
    GAUGE(waiting),
    GAUGE(kv_usage),
    GAUGE(kv_total_tokens),
    GAUGE(host_usage),
    GAUGE(host_used_tokens),
    GAUGE(host_total_tokens),
    COUNTER(bytes_out),
    COUNTER(bytes_in),
    COUNTER(seconds_out),
    COUNTER(seconds_in),
    COUNTER(drafts),
    COUNTER(drafted_tokens),
    COUNTER(accepted_tokens),
    GAUGE(power_watts),
};
enum { FIELDS = sizeof fields / sizeof *fields };
_Static_assert(sizeof(struct server_sample) == sizeof(int64_t) + FIELDS * sizeof(double),
               "every number of a sample is in the table");

const struct sample_field *sample_fields(size_t *n) {
    *n = FIELDS;
    return fields;
}

double *sample_number(struct server_sample *s, const struct sample_field *f) {
    return (double *)(void *)((char *)s + f->offset);
}

static double number(const struct server_sample *s, const struct sample_field *f) {
    return *(const double *)(const void *)((const char *)s + f->offset);
}

static double mean_of(const struct run *r, const struct sample_field *f) {
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_samples; i++) {
        double x = number(&r->samples[i], f);
        if (isfinite(x)) {
            sum += x;
            n++;
        }
    }
    return n ? sum / n : NAN;
}

static double or_zero(double x) {
    return isfinite(x) ? x : 0;
}

/* The first that is known. */
static double either(double a, double b) {
    return isfinite(a) ? a : b;
}

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : NAN;
}

/* What a counter grew by. One that fell on the way has begun anew: then nobody knows. */
static double growth(const struct run *r, const struct sample_field *f) {
    double first = number(&r->samples[0], f), before = first, last = NAN;
    for (uint32_t i = 1; i < r->n_samples; i++) {
        last = number(&r->samples[i], f);
        if (last < before)
            return NAN;
        before = isfinite(last) ? last : before;
    }
    return last - first;
}

void server_totals_of(const struct run *r, struct server_totals *out) {
    *out = (struct server_totals){0};
    server_sample_clear(&out->delta);
    server_sample_clear(&out->last);
    for (size_t i = 0; r->n_samples && i < FIELDS; i++) {
        double last = number(&r->samples[r->n_samples - 1], &fields[i]);
        out->known += isfinite(last);
        *sample_number(&out->last, &fields[i]) = last;
        double *to = sample_number(&out->delta, &fields[i]);
        *to = fields[i].counter ? growth(r, &fields[i]) : mean_of(r, &fields[i]);
    }
    const struct server_sample *d = &out->delta;
    double prompt = either(d->prompt_tokens, d->query_tokens);
    out->local_hit = either(d->device_tokens, d->hit_tokens);
    bool by_tier =
        isfinite(d->host_tokens) || isfinite(d->disk_tokens) || isfinite(d->remote_tokens);
    out->external_hit =
        by_tier ? or_zero(d->host_tokens) + or_zero(d->disk_tokens) + or_zero(d->remote_tokens)
                : d->external_hit_tokens;
    out->gpu_rate = ratio(out->local_hit, prompt);
    out->cpu_rate = ratio(d->host_tokens, prompt);
    out->external_rate = ratio(out->external_hit, prompt);
    out->overall_rate = isfinite(out->external_hit)
                            ? ratio(out->local_hit + out->external_hit, prompt)
                            : ratio(d->hit_tokens, d->query_tokens);
}

/* ------------------------------------------------------------------------------- server_metrics */

static json_t *cache_json(const struct server_totals *t) {
    const struct server_sample *d = &t->delta;
    json_t *o = json_object(), *by = json_object();
    bool ok = o && by;
    json_put(o, "gpu_cache_hit_rate", json_rounded(t->gpu_rate, DECIMALS), &ok);
    json_put(o, "cpu_cache_hit_rate", json_rounded(t->cpu_rate, DECIMALS), &ok);
    json_put(o, "external_cache_hit_rate", json_rounded(t->external_rate, DECIMALS), &ok);
    json_put(o, "overall_cache_hit_rate", json_rounded(t->overall_rate, DECIMALS), &ok);
    json_put(o, "prefix_cache_hits", json_rounded(d->hit_tokens, DECIMALS), &ok);
    json_put(o, "prefix_cache_queries", json_rounded(d->query_tokens, DECIMALS), &ok);
    json_put(o, "external_prefix_cache_hits", json_rounded(d->external_hit_tokens, DECIMALS), &ok);
    json_put(o, "external_prefix_cache_queries", json_rounded(d->external_query_tokens, DECIMALS),
             &ok);
    static const char *const sources[] = {"device", "host", "disk", "remote"};
    const double tokens[] = {d->device_tokens, d->host_tokens, d->disk_tokens, d->remote_tokens};
    for (int i = 0; i < 4; i++)
        if (isfinite(tokens[i]))
            json_put(by, sources[i], json_rounded(tokens[i], DECIMALS), &ok);
    json_put(o, "cached_tokens_by_source", by, &ok);
    /* Of routers and frontends in front of several engines; no adapter knows them. */
    json_put(o, "frontend_cache_hit_rate", json_null(), &ok);
    json_put(o, "router_kv_hit_rate", json_null(), &ok);
    json_put(o, "router_shared_cache_hit_rate", json_null(), &ok);
    json_put(o, "frontend_cached_tokens", json_null(), &ok);
    json_put(o, "frontend_input_tokens", json_null(), &ok);
    return json_done(o, ok);
}

static json_t *kv_cache_json(const struct server_totals *t) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "gpu_usage_pct", json_rounded(100 * t->delta.kv_usage, DECIMALS), &ok);
    json_put(o, "gpu_total_tokens", json_rounded(t->last.kv_total_tokens, DECIMALS), &ok);
    json_put(o, "cpu_usage_pct", json_rounded(100 * t->delta.host_usage, DECIMALS), &ok);
    json_put(o, "cpu_used_tokens", json_rounded(t->last.host_used_tokens, DECIMALS), &ok);
    json_put(o, "cpu_total_tokens", json_rounded(t->last.host_total_tokens, DECIMALS), &ok);
    return json_done(o, ok);
}

static json_t *offload_json(const struct server_totals *t) {
    const struct server_sample *d = &t->delta;
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "bytes_gpu_to_cpu", json_rounded(d->bytes_out, DECIMALS), &ok);
    json_put(o, "bytes_cpu_to_gpu", json_rounded(d->bytes_in, DECIMALS), &ok);
    json_put(o, "time_gpu_to_cpu", json_rounded(d->seconds_out, DECIMALS_S), &ok);
    json_put(o, "time_cpu_to_gpu", json_rounded(d->seconds_in, DECIMALS_S), &ok);
    json_put(o, "bandwidth_gpu_to_cpu_bytes_per_second",
             json_rounded(ratio(d->bytes_out, d->seconds_out), DECIMALS), &ok);
    json_put(o, "bandwidth_cpu_to_gpu_bytes_per_second",
             json_rounded(ratio(d->bytes_in, d->seconds_in), DECIMALS), &ok);
    return json_done(o, ok);
}

static json_t *tokens_json(const struct server_totals *t) {
    const struct server_sample *d = &t->delta;
    json_t *o = json_object(), *by = json_object(), *raw = json_object();
    bool ok = o && by && raw;
    json_put(o, "prompt_total", json_rounded(d->prompt_tokens, DECIMALS), &ok);
    json_put(o, "generation_total", json_rounded(d->generated_tokens, DECIMALS), &ok);
    json_put(o, "requests_completed", json_rounded(d->requests_done, DECIMALS), &ok);
    json_put(by, "gpu_cache_hit", json_rounded(t->local_hit, DECIMALS), &ok);
    json_put(by, "cpu_or_external_cache_hit", json_rounded(t->external_hit, DECIMALS), &ok);
    json_put(by, "computed", json_rounded(d->computed_tokens, DECIMALS), &ok);
    for (size_t i = 0; i < FIELDS; i++)
        if (strstr(fields[i].name, "_tokens") && fields[i].counter &&
            isfinite(number(d, &fields[i])))
            json_put(raw, fields[i].name, json_rounded(number(d, &fields[i]), DECIMALS), &ok);
    json_put(by, "raw", raw, &ok);
    json_put(o, "prompt_by_source", by, &ok);
    return json_done(o, ok);
}

json_t *run_server_json(const struct run *r) {
    struct server_totals t;
    server_totals_of(r, &t);
    json_t *o = json_object(), *sources = json_array();
    bool ok = o && sources;
    json_put(o, "present", json_boolean(t.known > 0), &ok);
    json_put(o, "adapter", json_text_or_null(r->metrics_adapter), &ok);
    json_put(o, "metric_count", json_integer(t.known), &ok);
    json_put(o, "cache", cache_json(&t), &ok);
    json_put(o, "kv_cache", kv_cache_json(&t), &ok);
    json_put(o, "kv_offload", offload_json(&t), &ok);
    json_put(o, "tokens", tokens_json(&t), &ok);
    if (r->metrics_adapter && r->url)
        ok = ok && !json_array_append_new(sources, json_text_or_null(r->url));
    json_put(o, "sources", sources, &ok);
    return json_done(o, ok);
}
