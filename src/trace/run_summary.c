/* run_summary.c: what follows from the records of a run. Called by the writer of its files, the
 * report and comparisons. Invariant that bites: percentiles of interactivity are reciprocals of
 * those of ITL, so that the 90th is the slow tail and not the fast one. */
#include "trace/run_inside.h"

#include "machine/prices.h"

#include <math.h>
#include <string.h>

/* Values of the calls that count. */
struct collected {
    struct values ttft, ttst, latency, itl, full_itl, icl, e2e_norm;
    struct values intvty, full_intvty, e2e_norm_intvty;
    struct values in, out, out_expected, text_out, prefill_rate, user_rate, qps;
};

static void add_positive(struct values *l, double x) {
    if (x > 0)
        values_add(l, x);
}

static void add_reciprocal(struct values *l, double x) {
    if (x > 0)
        values_add(l, 1 / x);
}

static void collect(struct collected *c, const struct call_record *r) {
    struct call_metrics m;
    call_metrics_of(r, &m);
    add_positive(&c->ttft, m.ttft);
    add_positive(&c->ttst, m.ttst);
    add_positive(&c->latency, m.latency);
    add_positive(&c->itl, m.itl);
    add_positive(&c->full_itl, m.full_itl);
    add_positive(&c->e2e_norm, m.normalised_latency);
    add_reciprocal(&c->intvty, m.itl);
    add_reciprocal(&c->full_intvty, m.full_itl);
    add_reciprocal(&c->e2e_norm_intvty, m.normalised_latency);
    add_positive(&c->prefill_rate, m.prefill_rate);
    add_positive(&c->user_rate, m.interactivity);
    for (uint32_t i = 1; !r->ends_only && i < r->n_chunks; i++)
        add_positive(&c->icl, (double)(r->chunk[i] - r->chunk[i - 1]) / 1e9);
    if (r->in_source != COUNT_UNKNOWN)
        add_positive(&c->in, (double)r->in);
    if (r->out_source != COUNT_UNKNOWN) {
        add_positive(&c->out, (double)r->out);
        add_positive(&c->text_out, r->out > r->reasoning ? (double)(r->out - r->reasoning) : 0);
    }
    add_positive(&c->out_expected, (double)r->out_expected);
}

/* Everything but n, std and sum of the reciprocal; those are of the values themselves. */
static void reciprocal(const struct distribution *d, struct distribution *out) {
    out->mean = 1 / d->mean;
    out->min = 1 / d->max;
    out->max = 1 / d->min;
    out->p1 = 1 / d->p1;
    out->p5 = 1 / d->p5;
    out->p10 = 1 / d->p10;
    out->p25 = 1 / d->p25;
    out->p50 = 1 / d->p50;
    out->p75 = 1 / d->p75;
    out->p90 = 1 / d->p90;
    out->p95 = 1 / d->p95;
    out->p99 = 1 / d->p99;
}

static bool distribute(struct collected *c, struct run_summary *s) {
    struct {
        struct values *l;
        struct distribution *d;
    } const all[] = {{&c->ttft, &s->ttft},
                     {&c->ttst, &s->ttst},
                     {&c->latency, &s->latency},
                     {&c->itl, &s->itl},
                     {&c->full_itl, &s->full_itl},
                     {&c->icl, &s->icl},
                     {&c->e2e_norm, &s->e2e_norm},
                     {&c->intvty, &s->intvty},
                     {&c->full_intvty, &s->full_intvty},
                     {&c->e2e_norm_intvty, &s->e2e_norm_intvty},
                     {&c->in, &s->in},
                     {&c->out, &s->out},
                     {&c->out_expected, &s->out_expected},
                     {&c->text_out, &s->text_out},
                     {&c->prefill_rate, &s->prefill_rate},
                     {&c->user_rate, &s->user_rate},
                     {&c->qps, &s->qps}};
    bool ok = true;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ok = ok && !all[i].l->failed;
        distribution_of(all[i].l, all[i].d);
        values_free(all[i].l);
    }
    reciprocal(&s->itl, &s->intvty);
    reciprocal(&s->full_itl, &s->full_intvty);
    reciprocal(&s->e2e_norm, &s->e2e_norm_intvty);
    return ok;
}

/* ---------------------------------------------------------------------------------- accounting */

static void count_error(struct run_summary *s, const char *type) {
    uint32_t i = 0;
    while (i < s->n_errors && strcmp(s->errors[i].type, type))
        i++;
    if (i == RUN_ERROR_TYPES) /* the last row stands for all that found none */
        snprintf(s->errors[--i].type, sizeof s->errors[i].type, "other");
    else if (i == s->n_errors)
        snprintf(s->errors[s->n_errors++].type, sizeof s->errors[i].type, "%s", type);
    s->errors[i].n++;
}

static void account(const struct call_record *r, struct run_summary *s) {
    s->total++;
    if (r->phase == PHASE_PRIMER || r->phase == PHASE_WARMUP) {
        s->warmup++;
        return;
    }
    s->profiled++;
    s->skipped += r->skipped;
    if (call_record_counts(r)) {
        s->kept++;
        s->length_missed += r->length_missed;
        s->assumed += r->out_source == COUNT_CHUNKS;
    } else if (r->was_cancelled || !strcmp(r->error_type, "cancelled")) {
        s->cancelled++;
    } else if (!r->skipped) {
        s->failed++;
        count_error(s, r->error_type[0] ? r->error_type : "incomplete");
    }
}

/* Counts of a record are at most 2^53 each; their sum stays one that JSON holds. */
static void add_up(uint64_t *sum, uint64_t n) {
    const uint64_t most = UINT64_C(1) << 62;
    *sum = *sum + n < most ? *sum + n : most;
}

static void add_tokens(const struct run *r, struct run_summary *s) {
    uint64_t blocks = 0, hits = 0, hit_tokens = 0, expected = 0, in_told = 0;
    double asked = 0, answered = 0, missed = 0;
    bool told = false;
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (!call_record_counts(c))
            continue;
        add_up(&s->sum_in, c->in_source != COUNT_UNKNOWN ? c->in : 0);
        add_up(&s->sum_out, c->out_source != COUNT_UNKNOWN ? c->out : 0);
        blocks += c->blocks;
        hits += c->hit_blocks;
        add_up(&hit_tokens, c->hit_tokens);
        add_up(&expected, c->in_expected);
        if (c->out_expected && c->out_source != COUNT_UNKNOWN) {
            asked += (double)c->out_expected;
            answered += (double)c->out;
            missed += fabs((double)c->out - (double)c->out_expected);
        }
        if (c->has_cached) {
            told = true;
            add_up(&s->sum_cached, c->cached);
            add_up(&in_told, c->in);
        }
    }
    s->answer_share = asked > 0 ? answered / asked : NAN;
    s->answer_miss = asked > 0 ? missed / asked : NAN;
    s->theoretical_hit_rate = blocks ? (double)hits / (double)blocks : NAN;
    s->theoretical_hit_tokens = blocks && expected ? (double)hit_tokens / (double)expected : NAN;
    s->cached_share = told && in_told ? (double)s->sum_cached / (double)in_told : NAN;
}

/* ----------------------------------------------------------------------------------- in time */

struct interval {
    int64_t from, to;
};

static void widen(struct interval *i, const struct call_record *r) {
    if (r->start < i->from)
        i->from = r->start;
    if (r->end > i->to)
        i->to = r->end;
}

static double share(struct interval seen, struct interval phase) {
    int64_t from = seen.from > phase.from ? seen.from : phase.from;
    int64_t to = seen.to < phase.to ? seen.to : phase.to;
    return to > from ? (double)(to - from) / (double)(phase.to - phase.from) : 0;
}

/* How much of the phase lies between the first and the last call that gave a TTFT, and that gave an
 * ITL; the lesser of the two. A server that died half-way shows here. */
static void cover(const struct run *r, struct run_summary *s) {
    const struct interval none = {INT64_MAX, INT64_MIN};
    struct interval ttft = none, itl = none, phase = none;
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (c->phase != PHASE_PRIMER && c->phase != PHASE_WARMUP && c->start)
            widen(&phase, c);
        if (!call_record_counts(c))
            continue;
        struct call_metrics m;
        call_metrics_of(c, &m);
        if (m.ttft > 0)
            widen(&ttft, c);
        if (m.itl > 0)
            widen(&itl, c);
    }
    if (r->profiling_started)
        phase.from = r->profiling_started;
    if (r->profiling_ended)
        phase.to = r->profiling_ended;
    s->coverage = NAN;
    if (phase.to > phase.from)
        s->coverage = fmin(share(ttft, phase), share(itl, phase));
}

/* Completions in every second from the first start on, the last and begun one included. */
static bool windows(const struct run *r, struct interval span, struct values *qps) {
    enum { MOST = 10000000 }; /* 115 days: times that far apart are no run */
    int64_t n = (span.to - span.from) / 1000000000 + 1;
    if (n > MOST)
        return true;
    uint32_t *count = calloc((size_t)n, sizeof *count);
    if (!count)
        return false;
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (call_record_counts(c) && c->end >= span.from)
            count[(c->end - span.from) / 1000000000]++;
    }
    for (int64_t i = 0; i < n; i++)
        values_add(qps, count[i]);
    free(count);
    return true;
}

static void rates(const struct run *r, struct interval span, struct run_summary *s) {
    double gpus = run_gpus(&r->subject);
    s->duration = (double)(span.to - span.from) / 1e9;
    double d = s->duration > 0 ? s->duration : NAN;
    s->in_rate = (double)s->sum_in / d;
    s->out_rate = (double)s->sum_out / d;
    s->total_rate = (double)(s->sum_in + s->sum_out) / d;
    s->request_rate = s->kept / d;
    s->per_gpu_in = s->in_rate / gpus;
    s->per_gpu_out = s->out_rate / gpus;
    s->per_gpu_total = s->total_rate / gpus;
}

static bool energy(const struct run *r, struct run_summary *s) {
    double *seconds = calloc(r->n_samples + 1, sizeof *seconds);
    double *watts = calloc(r->n_samples + 1, sizeof *watts);
    bool ok = seconds && watts;
    size_t n = 0;
    for (uint32_t i = 0; ok && i < r->n_samples; i++)
        if (isfinite(r->samples[i].power_watts)) {
            seconds[n] = (double)(r->samples[i].at - r->samples[0].at) / 1e9;
            watts[n++] = r->samples[i].power_watts;
        }
    s->joules = ok ? energy_joules(seconds, watts, n) : NAN;
    free(seconds);
    free(watts);
    return ok;
}

weir_status run_summarise(const struct run *r, struct run_summary *out, weir_error *err) {
    struct collected c = {0};
    struct interval span = {INT64_MAX, INT64_MIN};
    bool ok = true;
    *out = (struct run_summary){0};
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *x = &r->records[i];
        account(x, out);
        if (call_record_counts(x)) {
            collect(&c, x);
            widen(&span, x);
        }
    }
    add_tokens(r, out);
    if (out->kept && span.to >= span.from) {
        ok = windows(r, span, &c.qps);
        rates(r, span, out);
    } else {
        out->duration = out->in_rate = out->out_rate = out->total_rate = out->request_rate = NAN;
        out->per_gpu_in = out->per_gpu_out = out->per_gpu_total = NAN;
    }
    cover(r, out);
    ok = energy(r, out) && ok;
    ok = distribute(&c, out) && ok;
    if (!ok)
        return weir_fail(err, WEIR_NO_MEMORY, "run", "no memory to sum up %" PRIu32 " records",
                         r->n_records);
    run_judge(r, out);
    return WEIR_OK;
}
