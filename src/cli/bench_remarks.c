/* bench_remarks.c: what a reader of a run's figures has to know and would not see in them, as
 * warnings; and whether there are figures at all. Called by bench_job.c and the commands. */
#include "cli/bench_args.h"

#include "base/plural.h"

#include <math.h>
#include <string.h>

/* A prompt or an answer off by more than this on average is another workload. */
#define LENGTH_SLACK 0.02
/* Of the answer's time: what may pass behind the last chunk with text. */
#define TAIL_SHARE 0.10
#define SHORT_S    30.0
/* Of sending: in all, and of the time of a call. */
#define LATE_US    20000.0
#define LATE_SHARE 0.02
/* A block more or less, a template's own tokens. */
#define CACHE_SLACK 0.05

/* Means over the calls that count. */
struct means {
    double in_asked, in_got;   /* of calls whose prompt's length is known and told */
    double out_asked, out_got; /* of those of another length */
    uint32_t n_in, n_out, n_no_ttft, n_no_itl;
};

static void means_of(const struct run *run, struct means *m) {
    *m = (struct means){0};
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct call_record *c = &run->records[i];
        struct call_metrics t;
        if (!call_record_counts(c))
            continue;
        if (c->in_source == COUNT_USAGE && c->in_expected > 0) {
            m->in_asked += (double)c->in_expected;
            m->in_got += (double)c->in;
            m->n_in++;
        }
        if (c->length_missed) {
            m->out_asked += (double)c->out_expected;
            m->out_got += (double)c->out;
            m->n_out++;
        }
        call_metrics_of(c, &t);
        m->n_no_ttft += !(t.ttft > 0);
        m->n_no_itl += c->out >= 2 && !(t.itl > 0);
    }
    m->in_asked /= m->n_in ? m->n_in : 1;
    m->in_got /= m->n_in ? m->n_in : 1;
    m->out_asked /= m->n_out ? m->n_out : 1;
    m->out_got /= m->n_out ? m->n_out : 1;
}

/* Prompts of words have the length that was asked for only where the tokenizer is known. A workload
 * of fixed lengths is then recorded under those it really had. */
static void remark_prompts(const struct bench_args *a, const struct means *m, struct run *run) {
    if (m->n_in == 0 || fabs(m->in_got / m->in_asked - 1) <= LENGTH_SLACK)
        return;
    run_warn(run, "prompts had %.1f tokens by the server's count where %.1f were asked for%s",
             m->in_got, m->in_asked,
             a->tokenizer ? ": its chat template comes on top, or it has another tokenizer"
                          : "; --tokenizer makes chat prompts of exact length");
    if (run->isl > 0)
        run->isl = (uint64_t)llround(m->in_got);
}

static void remark_answers(const struct bench_args *a, const struct means *m, struct run *run,
                           const struct run_summary *s) {
    if (s->assumed > 0)
        run_warn(run, "%u of %u %s counted as one token a chunk, which need not be so%s",
                 s->assumed, s->kept, plural(s->kept, "answer was", "answers were"),
                 a->tokenizer ? "" : "; --tokenizer counts their text");
    if (m->n_out > 0)
        run_warn(run,
                 "%u %s had another length: %.1f tokens where %.1f were asked for, on "
                 "average",
                 m->n_out, plural(m->n_out, "answer", "answers"), m->out_got, m->out_asked);
}

static void remark_times(const struct means *m, struct run *run, const struct run_summary *s) {
    if (s->itl.n > 0 && s->full_itl.mean > (1 + TAIL_SHARE) * s->itl.mean)
        run_warn(run,
                 "%.0f %% of the answers' time passed behind their last text: ITL %.3f ms leaves "
                 "it out while its tokens count, full-response ITL is %.3f ms",
                 (1 - s->itl.mean / s->full_itl.mean) * 100, s->itl.mean * 1e3,
                 s->full_itl.mean * 1e3);
    if (m->n_no_ttft > 0)
        run_warn(run, "%u %s held no text: no TTFT, and means leave %s out", m->n_no_ttft,
                 plural(m->n_no_ttft, "answer", "answers"), plural(m->n_no_ttft, "it", "them"));
    const uint32_t one_piece = m->n_no_itl > m->n_no_ttft ? m->n_no_itl - m->n_no_ttft : 0;
    if (one_piece > 0)
        run_warn(run, "%u %s came in one piece: no ITL, and means leave %s out", one_piece,
                 plural(one_piece, "answer", "answers"), plural(one_piece, "it", "them"));
    if (s->kept > 0 && s->duration < SHORT_S)
        run_warn(run,
                 "only %.1f s were measured: figures of so short a run vary from one to the next",
                 s->duration);
}

/* Making a connection is no part of TTFT, so a server that is slow to take one must be said. */
static void remark_lateness(struct run *run, const struct run_summary *s) {
    const struct distribution *late = &run->overhead.late_us;
    if (late->n && late->mean > LATE_US && late->mean * 1e-6 > LATE_SHARE * s->latency.mean)
        run_warn(
            run,
            "calls left %.0f ms after they could on average (p99: %.0f ms), which TTFT does not "
            "hold: the server was slow to take connections, or the client was busy",
            late->mean * 1e-3, late->p99 * 1e-3);
}

/* Lanes beyond the workload have nothing to do, and the point is not the one it is called. */
static void remark_lanes(struct run *run) {
    const char *arrivals = json_string_value(json_object_get(run->config, "arrivals"));
    uint32_t used = 0;
    for (uint32_t i = 0; i < run->n_records; i++)
        if (run->records[i].lane >= used)
            used = run->records[i].lane + 1;
    if (used > 0 && used < run->concurrency && (!arrivals || !strcmp(arrivals, "closed")))
        run_warn(run, "only %u of %u %s had anything to play: the workload has no more", used,
                 run->concurrency, plural(run->concurrency, "lane", "lanes"));
}

/* Fresh prompts that share nothing cannot have been cached. */
static void remark_cache(struct run *run, const struct run_summary *s) {
    double shared = s->theoretical_hit_tokens;
    if (isfinite(shared) && s->cached_share > shared + CACHE_SLACK)
        run_warn(
            run,
            "answers report %.1f %% of the prompts' tokens as cached where the workload shares "
            "%.1f %%: they were not fresh to this server, or it counts otherwise",
            100 * s->cached_share, 100 * shared);
}

void bench_remark(const struct bench_args *a, struct run *run, const struct run_summary *s) {
    struct means m;
    means_of(run, &m);
    remark_prompts(a, &m, run);
    remark_answers(a, &m, run, s);
    remark_times(&m, run, s);
    remark_cache(run, s);
    remark_lateness(run, s);
    remark_lanes(run);
}

/* ------------------------------------------------------------------------------------- verdict */

/* Why not one call counts, in a run that ran its course. */
static void say_nothing_kept(const struct run *run, const struct run_summary *s, char *out,
                             size_t cap) {
    uint64_t longest = 0, in = 0;
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct call_record *c = &run->records[i];
        if (c->skipped && c->in_expected + c->out_expected > longest) {
            longest = c->in_expected + c->out_expected;
            in = c->in_expected;
        }
    }
    if (s->skipped > 0 && s->skipped == s->profiled)
        snprintf(out, cap,
                 "nothing was measured: %s %u %s the context of %" PRIu64
                 " tokens (the longest has %" PRIu64 " and asks for %" PRIu64
                 "); --max-context says otherwise, --length-scale makes them shorter",
                 plural(s->skipped, "the", "all"), s->skipped,
                 plural(s->skipped, "call exceeds", "calls exceed"), run->max_context, in,
                 longest - in);
    else if (s->profiled == 0 && s->warmup > 0)
        snprintf(out, cap,
                 "nothing was measured: all sessions ended in the warm-up, or none had a call due "
                 "within the duration; --no-warmup begins at their start");
    else if (s->profiled == 0)
        snprintf(out, cap, "nothing was measured: no call was due within the duration");
    else
        snprintf(out, cap, "nothing was measured: of %u %s %u failed, %u %s skipped", s->profiled,
                 plural(s->profiled, "call", "calls"), s->failed, s->skipped,
                 plural(s->skipped, "was", "were"));
}

static const struct call_record *first_failure(const struct run *run) {
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct call_record *c = &run->records[i];
        if (c->phase >= PHASE_PROFILING && c->error_type[0] && !c->was_cancelled)
            return c;
    }
    return NULL;
}

bool bench_stands(const struct run *run, const struct run_summary *s, char *out, size_t cap) {
    uint32_t ended = s->kept + s->failed;
    const struct call_record *c = first_failure(run);
    size_t n;
    out[0] = 0;
    if (run->abort_reason)
        snprintf(out, cap, "aborted: %s", run->abort_reason);
    else if (run->was_cancelled)
        snprintf(out, cap, "cancelled after %u %s", s->kept, plural(s->kept, "call", "calls"));
    else if (ended > 0 && (double)s->failed / ended > RUN_MOST_FAILED)
        snprintf(out, cap, "%u of %u %s failed (at most %g %% may)", s->failed, ended,
                 plural(ended, "call", "calls"), RUN_MOST_FAILED * 100);
    else if (s->kept == 0)
        say_nothing_kept(run, s, out, cap);
    size_t before = n = strlen(out);
    if (n > 0 && c && !run->abort_reason && s->failed > 0 && n < cap)
        n += (size_t)snprintf(out + n, cap - n, "; the first: %s", c->error_type);
    if (n > before && n < cap && c->error_code)
        n += (size_t)snprintf(out + n, cap - n, " %d", c->error_code);
    if (n > before && n < cap)
        snprintf(out + n, cap - n, ": %s", c->error_message);
    return before == 0;
}
