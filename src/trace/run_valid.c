/* run_valid.c: may the figures of a run be published, and if not, why. Called by the summary. */
#include "trace/run_inside.h"

#include "base/plural.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* Of AgentX; sources: docs/bench.md. */
#define MOST_OVERFLOWED  0.01
#define MOST_ASSUMED     0.01
#define LEAST_COVERED    0.98
#define LEAST_PROFILED_S 900.0

static void __attribute__((format(printf, 2, 3)))
reason(struct run_summary *s, const char *format, ...) {
    s->valid = false;
    if (s->n_invalid == RUN_REASONS) {
        snprintf(s->invalid[RUN_REASONS - 1], sizeof *s->invalid, "and others");
        return;
    }
    va_list ap;
    va_start(ap, format);
    vsnprintf(s->invalid[s->n_invalid++], sizeof *s->invalid, format, ap);
    va_end(ap);
}

static double overflow_rate(const struct run *r, const struct run_summary *s) {
    uint32_t overflowed = 0;
    for (uint32_t i = 0; i < r->n_records; i++) {
        const struct call_record *c = &r->records[i];
        if (c->phase != PHASE_PRIMER && c->phase != PHASE_WARMUP)
            overflowed += call_record_overflowed(c);
    }
    uint32_t all = s->kept + s->failed + s->skipped;
    return all ? (double)overflowed / all : 0;
}

const char *run_state(const struct run *r, const struct run_summary *s) {
    bool scaled = (r->time_scale != 0 && r->time_scale != 1) ||
                  (r->length_scale != 0 && r->length_scale != 1);
    return r->was_cancelled  ? "cancelled"
           : r->abort_reason ? "aborted"
           : scaled          ? "scaled"
           : s->valid        ? ""
                             : "invalid";
}

void run_judge(const struct run *r, struct run_summary *s) {
    s->valid = true;
    s->n_invalid = 0;
    if (r->was_cancelled)
        reason(s, "cancelled");
    if (r->abort_reason)
        reason(s, "aborted: %s", r->abort_reason);
    for (uint32_t i = 0; i < r->n_overrides; i++)
        reason(s, "unsafe_override: %s", r->overrides[i]);
    /* Scales of 0 are those of a run read from a file that does not say. */
    if (r->time_scale != 0 && r->time_scale != 1)
        reason(s, "time_scale: %g, not comparable with recorded time", r->time_scale);
    if (r->length_scale != 0 && r->length_scale != 1)
        reason(s, "length_scale: %g, not comparable with recorded lengths", r->length_scale);
    double profiled = (double)(r->profiling_ended - r->profiling_started) / 1e9;
    bool agentic = r->scenario && !strcmp(r->scenario, "agentic-coding");
    if (agentic && r->profiling_started && profiled < LEAST_PROFILED_S)
        reason(s, "profiling_too_short: %.1f s of at least %g s", profiled, LEAST_PROFILED_S);
    double rate = overflow_rate(r, s);
    if (rate > MOST_OVERFLOWED)
        reason(s, "context_overflow_rate: %.4f over %g", rate, MOST_OVERFLOWED);
    uint32_t ended = s->kept + s->failed;
    if (ended && (double)s->failed / ended > RUN_MOST_FAILED)
        reason(s, "failed_request_rate: %.4f over %g", (double)s->failed / ended, RUN_MOST_FAILED);
    if (s->kept && (double)s->assumed / s->kept > MOST_ASSUMED)
        reason(s,
               "answer_tokens_assumed: one token a chunk in %u of %u %s, the server did not "
               "say how many",
               s->assumed, s->kept, plural(s->kept, "answer", "answers"));
    if (s->answer_miss > RUN_LENGTH_SLACK)
        reason(s,
               "answer_lengths: %u of %u %s had another length than was asked for, together "
               "%.1f %% of the tokens",
               s->length_missed, s->kept, plural(s->kept, "answer", "answers"),
               100 * s->answer_share);
    if (!(s->coverage >= LEAST_COVERED))
        reason(s, "insufficient_profile_metric_coverage: %.4f below %g",
               isfinite(s->coverage) ? s->coverage : 0.0, LEAST_COVERED);
}
