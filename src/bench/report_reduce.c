/* report_reduce.c: records and samples reduced to curves. Called by report_data.c. */
#include "bench/report_data.h"

#include <math.h>
#include <string.h>

double curve_share(size_t i) {
    static const double tail[] = {99.5, 99.75, 99.9, 100};
    return i <= 99 ? (double)i : i == 100 ? 99.25 : tail[i - 101];
}

weir_status curves_of(const struct run *r, double curve[CURVES][CURVE_POINTS], weir_error *err) {
    struct values v[CURVES] = {{0}};
    for (uint32_t i = 0; i < r->n_records; i++)
        if (call_record_counts(&r->records[i])) {
            struct call_metrics m;
            call_metrics_of(&r->records[i], &m);
            const double x[CURVES] = {m.ttft, m.itl, m.latency};
            for (int k = 0; k < CURVES; k++)
                if (x[k] > 0)
                    values_add(&v[k], x[k]);
        }
    bool failed = false;
    for (int k = 0; k < CURVES; k++) {
        struct distribution d;
        failed = failed || v[k].failed;
        distribution_of(&v[k], &d);
        for (size_t i = 0; i < CURVE_POINTS; i++)
            curve[k][i] = v[k].n ? percentile(v[k].v, v[k].n, curve_share(i)) : NAN;
        values_free(&v[k]);
    }
    return failed ? weir_fail(err, WEIR_NO_MEMORY, "report", "no memory") : WEIR_OK;
}

/* Adds `amount` spread evenly over [from, to] seconds to parts of `step` seconds. */
static void spread(double *part, size_t n, double step, double from, double to, double amount) {
    if (!(to > from)) {
        double i = from / step;
        if (i >= 0 && i < (double)n)
            part[(size_t)i] += amount;
        return;
    }
    double begin = fmax(from, 0), end = fmin(to, step * (double)n);
    for (size_t i = begin < end ? (size_t)(begin / step) : n; i < n && step * (double)i < end;
         i++) {
        double low = fmax(begin, step * (double)i), high = fmin(end, step * (double)(i + 1));
        part[i] += amount * (high - low) / (to - from);
    }
}

static void add_record(struct timeline *t, const struct call_record *r, int64_t zero) {
#define AT(x) ((double)((x)-zero) * 1e-9)
    if (!r->start || !r->end)
        return;
    spread(t->in_flight, t->n, t->step, AT(r->start), AT(r->end), AT(r->end) - AT(r->start));
    if (r->error_type[0] && !r->was_cancelled)
        spread(t->errors, t->n, t->step, AT(r->end), AT(r->end), 1);
    if (!r->n_chunks)
        return;
    spread(t->in_rate, t->n, t->step, AT(r->chunk[0]), AT(r->chunk[0]), (double)r->in);
    if (r->ends_only) { /* first and last alone are known */
        spread(t->out_rate, t->n, t->step, AT(r->chunk[0]), AT(r->chunk[r->n_chunks - 1]),
               (double)r->out);
        return;
    }
    double each = (double)r->out / r->n_chunks;
    for (uint32_t i = 0; i < r->n_chunks; i++)
        spread(t->out_rate, t->n, t->step, AT(r->chunk[i]), AT(r->chunk[i]), each);
}

static void add_samples(struct timeline *t, const struct run *r, int64_t zero) {
    double count[TIMELINE_MAX] = {0}, last = NAN;
    for (size_t i = 0; i < t->n; i++)
        t->kv_usage[i] = 0;
    for (uint32_t i = 0; i < r->n_samples; i++) {
        double usage = r->samples[i].kv_usage, at = AT(r->samples[i].at) / t->step;
        if (!isfinite(usage) || at < 0 || at >= (double)t->n)
            continue;
        t->kv_usage[(size_t)at] += usage;
        count[(size_t)at]++;
        t->has_kv = true;
    }
    /* Between two samples the last one stands. */
    for (size_t i = 0; i < t->n; i++)
        last = t->kv_usage[i] = count[i] > 0 ? t->kv_usage[i] / count[i] : last;
}

void timeline_of(const struct run *r, struct timeline *t) {
    int64_t zero = r->profiling_started, end = r->profiling_ended;
    *t = (struct timeline){0};
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (c->phase == PHASE_PRIMER || c->phase == PHASE_WARMUP)
            continue;
        if (!r->profiling_started && c->start && (!zero || c->start < zero))
            zero = c->start;
        end = c->end > end ? c->end : end;
    }
    if (!zero || end <= zero)
        return;
    double seconds = AT(end);
    t->n = TIMELINE_MAX;
    if (seconds < TIMELINE_MAX / 4.0) /* parts of at least a quarter of a second */
        t->n = (size_t)ceil(seconds * 4);
    t->step = seconds / (double)t->n * (1 + 1e-12);
    for (uint32_t i = 0; i < r->n_records; i++)
        add_record(t, &r->records[i], zero);
    for (size_t i = 0; i < t->n; i++) {
        t->in_flight[i] /= t->step;
        t->in_rate[i] /= t->step;
        t->out_rate[i] /= t->step;
    }
    add_samples(t, r, zero);
#undef AT
}

static double number_at(const struct server_sample *s, size_t offset) {
    double v;
    memcpy(&v, (const char *)s + offset, sizeof v);
    return v;
}

double counter_of(const struct run *r, size_t offset) {
    double first = NAN, last = NAN;
    for (uint32_t i = 0; i < r->n_samples; i++) {
        double v = number_at(&r->samples[i], offset);
        if (!isfinite(v))
            continue;
        if (!isfinite(first))
            first = v;
        else if (v < last)
            return NAN;
        last = v;
    }
    return r->n_samples < 2 ? NAN : last - first;
}

const char *source_name(enum source s) {
    static const char *const names[] = {"computed", "device", "host", "disk", "remote"};
    return names[s];
}

void sources_of(const struct run *r, const struct run_summary *s, struct sources *out) {
#define COUNTER(name) counter_of(r, offsetof(struct server_sample, name))
    *out = (struct sources){.tokens = {COUNTER(computed_tokens), COUNTER(device_tokens),
                                       COUNTER(host_tokens), COUNTER(disk_tokens),
                                       COUNTER(remote_tokens)}};
    double prompt = COUNTER(prompt_tokens);
    if (!isfinite(out->tokens[SOURCE_DEVICE])) /* servers that know hits of the prefix cache alone
                                                */
        out->tokens[SOURCE_DEVICE] = COUNTER(hit_tokens);
    if (!isfinite(out->tokens[SOURCE_HOST]) && !isfinite(out->tokens[SOURCE_DISK]) &&
        !isfinite(out->tokens[SOURCE_REMOTE]))
        out->tokens[SOURCE_REMOTE] = COUNTER(external_hit_tokens);
#undef COUNTER
    double reused = 0;
    for (int i = SOURCE_DEVICE; i < SOURCES; i++)
        reused += isfinite(out->tokens[i]) ? out->tokens[i] : 0;
    if (!isfinite(out->tokens[SOURCE_COMPUTED]) && isfinite(out->tokens[SOURCE_DEVICE]) &&
        prompt >= reused)
        out->tokens[SOURCE_COMPUTED] = prompt - reused;
    if (!isfinite(out->tokens[SOURCE_COMPUTED]) && isfinite(s->cached_share)) {
        *out = (struct sources){.tokens = {(double)(s->sum_in) * (1 - s->cached_share),
                                           (double)s->sum_in * s->cached_share, NAN, NAN, NAN},
                                .by_usage = true};
    }
    if (!isfinite(out->tokens[SOURCE_COMPUTED]))
        return;
    for (int i = 0; i < SOURCES; i++)
        out->total += isfinite(out->tokens[i]) ? out->tokens[i] : 0;
}
