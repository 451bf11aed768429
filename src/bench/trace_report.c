/* trace_report.c: counts a trace and prints what was counted. Called by the command. */
#include "bench/trace_report.h"

#include "base/plural.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- counting
 */

struct lists {
    struct values input, output, calls, wait, session_seconds;
};

static size_t text_bytes(const struct trace_request *r) {
    size_t all = 0, at = 0;
    for (uint32_t i = 0; i < r->n_texts; i++) {
        size_t n = strlen(r->text + at);
        all += n;
        at += n + 1;
    }
    return all + (r->system ? strlen(r->system) : 0);
}

static void count_requests(struct trace_report *r, struct lists *l) {
    const struct trace *t = r->trace;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *q = &t->requests[i];
        first = q->t < first ? q->t : first;
        last = q->t > last ? q->t : last;
        r->texts += q->n_texts > 0;
        r->text_bytes += text_bytes(q);
        r->without_out += !q->has_out;
        if (!q->n_texts)
            values_add(&l->input, (double)q->in);
        if (q->has_out)
            values_add(&l->output, (double)q->out);
    }
    r->span_seconds = t->format == TRACE_WEKA ? NAN : (double)(last - first) * 1e-9;
}

static void count_sessions(struct trace_report *r, struct lists *l) {
    const struct trace *t = r->trace;
    for (uint32_t i = 0; i < t->n_sessions; i++) {
        const struct trace_session *s = &t->sessions[i];
        if (i == 0)
            r->block_tokens = s->block_tokens;
        if (s->block_tokens != r->block_tokens)
            r->block_tokens = 0;
        values_add(&l->calls, s->n_requests);
        values_add(&l->session_seconds, (double)r->tree->sessions[i].span * 1e-9);
    }
    uint32_t agents = 0;
    for (uint32_t i = 0; i < t->n_agents; i++)
        agents += t->agents[i].after > 0 && t->agents[i].n_requests > 0;
    uint32_t chains = 0;
    for (uint32_t i = 0; i < r->tree->n_chains; i++) {
        const struct tree_chain *c = &r->tree->chains[i];
        chains += c->agent >= 0;
        for (uint32_t k = c->agent < 0; k < c->n_calls; k++)
            values_add(&l->wait, (double)r->tree->calls[c->first + k].wait * 1e-9);
    }
    r->parallel_chains = chains - agents;
}

weir_status trace_report_make(const struct trace *t, const struct tree *tree,
                              struct trace_report *out, weir_error *err) {
    struct lists l = {0};
    *out = (struct trace_report){.trace = t, .tree = tree};
    out->session = calloc((size_t)t->n_sessions + 1, sizeof *out->session);
    weir_status s = out->session ? trace_count(t, out->session, &out->total, err) : WEIR_NO_MEMORY;
    if (!s) {
        count_requests(out, &l);
        count_sessions(out, &l);
        distribution_of(&l.input, &out->input);
        distribution_of(&l.output, &out->output);
        distribution_of(&l.calls, &out->calls);
        distribution_of(&l.wait, &out->wait);
        distribution_of(&l.session_seconds, &out->session_seconds);
    }
    if (!out->session || l.input.failed || l.output.failed || l.calls.failed || l.wait.failed ||
        l.session_seconds.failed)
        s = weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its counts");
    values_free(&l.input);
    values_free(&l.output);
    values_free(&l.calls);
    values_free(&l.wait);
    values_free(&l.session_seconds);
    if (s)
        trace_report_free(out);
    return s;
}

void trace_report_free(struct trace_report *r) {
    free(r->session);
    r->session = NULL;
}

/* -1: not known. */
static double rate_of(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : -1;
}

/* ------------------------------------------------------------------------------------------ JSON
 */

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *count(uint64_t n, bool known) {
    return known ? json_integer((json_int_t)n) : json_null();
}

static json_t *rate(uint64_t part, uint64_t whole, bool known) {
    return known && whole ? json_real(rate_of(part, whole)) : json_null();
}

static json_t *distribution_json(const struct distribution *d) {
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "count", (json_int_t)d->n,
                     "mean", number(d->mean), "std", number(d->std), "min", number(d->min), "p50",
                     number(d->p50), "p90", number(d->p90), "p95", number(d->p95), "p99",
                     number(d->p99), "max", number(d->max));
}

/* Adds the keys that the whole and each session have. */
static int add_counts(json_t *o, const struct trace_stats *s, bool has_in, bool has_out) {
    json_t *more = json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "requests",
        (json_int_t)s->requests, "sub_agents", (json_int_t)s->agents, "sub_agent_requests",
        (json_int_t)s->agent_requests, "sum_input", count(s->sum_in, has_in), "sum_output",
        count(s->sum_out, has_out), "max_input", count(s->max_in, has_in), "blocks",
        count(s->blocks, s->blocks), "hits", count(s->hits, s->blocks), "hit_rate",
        rate(s->hits, s->blocks, true), "hit_tokens", count(s->hit_tokens, s->blocks),
        "hit_token_rate", rate(s->hit_tokens, s->sum_in, s->blocks));
    int failed = !more || json_object_update(o, more);
    json_decref(more);
    return failed;
}

static json_t *session_json(const struct trace_report *r, uint32_t i) {
    const struct trace_session *s = &r->trace->sessions[i];
    bool has_in = false, has_out = false;
    for (uint32_t k = s->first; k < s->first + s->n_requests; k++) {
        has_in |= !r->trace->requests[k].n_texts;
        has_out |= r->trace->requests[k].has_out;
    }
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:f}", "id", s->id, "block_tokens", (json_int_t)s->block_tokens,
                  "dropped_sub_agents", (json_int_t)r->tree->sessions[i].dropped_agents, "seconds",
                  (double)r->tree->sessions[i].span * 1e-9);
    if (o && add_counts(o, &r->session[i], has_in, has_out)) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

json_t *trace_report_json(const struct trace_report *r, bool sessions) {
    const struct trace *t = r->trace;
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:s?}",
        "format", trace_format_name(t->format), "sessions", (json_int_t)t->n_sessions,
        "dropped_sub_agents", (json_int_t)r->tree->dropped_agents, "dropped_requests",
        (json_int_t)r->tree->dropped_calls, "odd_waits", (json_int_t)r->tree->odd_waits,
        "parallel_chains", (json_int_t)r->parallel_chains, "block_tokens",
        count(r->block_tokens, r->block_tokens && r->total.blocks), "texts", (json_int_t)r->texts,
        "text_bytes", (json_int_t)r->text_bytes, "span_seconds", number(r->span_seconds),
        "input_tokens", distribution_json(&r->input), "output_tokens",
        distribution_json(&r->output), "requests_per_session", distribution_json(&r->calls),
        "wait_seconds", distribution_json(&r->wait), "session_seconds",
        distribution_json(&r->session_seconds), "warnings", (json_int_t)t->n_warnings,
        "first_warning", t->n_warnings ? t->warning : NULL);
    int failed =
        !o || add_counts(o, &r->total, r->texts < t->n_requests, r->without_out < t->n_requests);
    json_t *list = sessions ? json_array() : NULL;
    for (uint32_t i = 0; list && !failed && i < t->n_sessions; i++)
        failed = json_array_append_new(list, session_json(r, i));
    if (sessions && !failed)
        failed = json_object_set(o, "per_session", list);
    json_decref(list);
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

/* ----------------------------------------------------------------------------------------- table
 */

/* 27,390,656 */
static const char *grouped(uint64_t n, char out[32]) {
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;
    for (int i = 0; i < len; i++) {
        out[at++] = digits[i];
        if ((len - i) % 3 == 1 && i + 1 < len)
            out[at++] = ',';
    }
    out[at] = 0;
    return out;
}

static void line(FILE *out, const char *name, uint64_t n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void line(FILE *out, const char *name, uint64_t n, const char *format, ...) {
    char text[32];
    fprintf(out, "%-14s %14s", name, grouped(n, text));
    va_list ap;
    va_start(ap, format);
    vfprintf(out, format, ap);
    va_end(ap);
    fputc('\n', out);
}

static void print_reuse(const struct trace_report *r, FILE *out) {
    const struct trace_stats *s = &r->total;
    if (!s->blocks) {
        fputs("The trace has no block numbers: nothing is known of shared prefixes.\n", out);
        return;
    }
    if (r->block_tokens)
        line(out, "blocks", s->blocks, "  of %" PRIu32 " %s", r->block_tokens,
             plural(r->block_tokens, "token", "tokens"));
    else
        line(out, "blocks", s->blocks, "  of sizes that differ between sessions");
    line(out, "hits", s->hits, "  %.6f of the blocks: a cache that never forgets",
         rate_of(s->hits, s->blocks));
    line(out, "hit tokens", s->hit_tokens, "  %.6f of the input tokens",
         rate_of(s->hit_tokens, s->sum_in));
}

static void print_sums(const struct trace_report *r, FILE *out) {
    const struct trace *t = r->trace;
    const struct trace_stats *s = &r->total;
    char largest[32];
    line(out, "sessions", t->n_sessions, "  %s", trace_format_name(t->format));
    if (s->agents)
        line(out, "requests", s->requests, "  %" PRIu64 " of them by %" PRIu64 " %s",
             s->agent_requests, s->agents, plural(s->agents, "sub-agent", "sub-agents"));
    else
        line(out, "requests", s->requests, "%s", "");
    if (r->tree->dropped_agents)
        line(out, "dropped", r->tree->dropped_agents,
             "  %s with %" PRIu32 " %s: no turn before would start %s",
             plural(r->tree->dropped_agents, "sub-agent", "sub-agents"), r->tree->dropped_calls,
             plural(r->tree->dropped_calls, "request", "requests"),
             plural(r->tree->dropped_agents, "it", "them"));
    if (r->parallel_chains)
        line(out, "parallel", r->parallel_chains, "  further %s of sub-agents whose calls overlap",
             plural(r->parallel_chains, "chain", "chains"));
    if (r->tree->odd_waits)
        line(out, "odd waits", r->tree->odd_waits,
             "  think %s more than a second from what the calls' times say",
             plural(r->tree->odd_waits, "time", "times"));
    if (r->texts < t->n_requests)
        line(out, "input tokens", s->sum_in, "  largest %s", grouped(s->max_in, largest));
    if (r->without_out < t->n_requests)
        line(out, "output tokens", s->sum_out, "%s", "");
    if (r->texts)
        line(out, "texts", r->texts, "  %s as text, %s bytes: tokens are not counted",
             plural(r->texts, "prompt", "prompts"), grouped(r->text_bytes, largest));
    print_reuse(r, out);
    if (r->span_seconds > 0)
        fprintf(out, "%-14s %14.1f  seconds: %.3f requests a second\n", "arrivals", r->span_seconds,
                (double)(s->requests - 1) / r->span_seconds);
}

static void print_spread(const char *name, const struct distribution *d, int decimals, FILE *out) {
    if (!d->n)
        return;
    fprintf(out, "%-20s %10.*f %10.*f %10.*f %10.*f %10.*f\n", name, decimals, d->mean, decimals,
            d->p50, decimals, d->p90, decimals, d->p99, decimals, d->max);
}

/* A name from a file, without what a terminal would act on. */
static void print_name(const char *id, FILE *out) {
    int n = 0;
    for (; *id && n < 28; id++) {
        bool plain = (unsigned char)*id >= ' ' && *id != 127;
        fputc(plain ? *id : '?', out);
        n += ((unsigned char)*id & 0xC0) != 0x80;
    }
    fprintf(out, "%*s", 28 - n, "");
}

static void print_sessions(const struct trace_report *r, FILE *out) {
    fprintf(out, "\n%-28s %8s %6s %14s %10s %10s %9s %9s %8s %9s\n", "session", "requests",
            "agents", "input", "output", "largest", "blocks", "hits", "rate", "seconds");
    for (uint32_t i = 0; i < r->trace->n_sessions; i++) {
        const struct trace_stats *s = &r->session[i];
        char in[32], o[32], most[32], share[16] = "-";
        if (s->blocks)
            snprintf(share, sizeof share, "%.6f", rate_of(s->hits, s->blocks));
        print_name(r->trace->sessions[i].id, out);
        fprintf(out,
                " %8" PRIu64 " %6" PRIu64 " %14s %10s %10s %9" PRIu64 " %9" PRIu64 " %8s %9.1f\n",
                s->requests, s->agents, grouped(s->sum_in, in), grouped(s->sum_out, o),
                grouped(s->max_in, most), s->blocks, s->hits, share,
                (double)r->tree->sessions[i].span * 1e-9);
    }
}

void trace_report_print(const struct trace_report *r, bool sessions, FILE *out) {
    print_sums(r, out);
    fprintf(out, "\n%-20s %10s %10s %10s %10s %10s\n", "", "mean", "p50", "p90", "p99", "largest");
    print_spread("input tokens", &r->input, 0, out);
    print_spread("output tokens", &r->output, 0, out);
    if (r->calls.max > 1) /* else each session is one call, and there is nothing to tell of it */
        print_spread("calls a session", &r->calls, 1, out);
    print_spread("wait, s", &r->wait, 2, out);
    if (r->session_seconds.max > 0)
        print_spread("session, s", &r->session_seconds, 1, out);
    if (sessions)
        print_sessions(r, out);
    if (r->trace->n_warnings)
        fprintf(out, "\n%" PRIu32 " odd %s accepted, first: %s\n", r->trace->n_warnings,
                plural(r->trace->n_warnings, "place", "places"), r->trace->warning);
}
