/* arrivals.c: the open loop: every request of the trace is sent at its time, whatever became of the
 * others. Called through schedule.h.
 * A pass through the trace is one play of each of its name spaces: sessions that share block
 * numbers share them in the replay too, and two passes share nothing. */
#include "trace/schedule_inside.h"

#include "base/rng.h"

#include <math.h>

enum { STREAM_ARRIVALS = 0x41 };

struct open_loop {
    struct schedule s;
    struct arrivals_options o;
    uint32_t *order; /* requests by time */
    uint32_t *call;  /* tree.calls of each request; TREE_NONE: its sub-agent was dropped */
    uint32_t n_spaces;
    uint64_t sent, calls;
    int64_t start, next_at;
};

static struct open_loop *open_loop_of(struct schedule *s) {
    return (struct open_loop *)s;
}

/* Time of arrival `i` from the start, which is the first's; `before`: that of the one before. */
static int64_t arrival_time(const struct open_loop *x, uint64_t i, int64_t before) {
    const struct trace *t = x->s.tree->trace;
    switch (x->o.kind) {
    case ARRIVALS_FIXED: return scaled_wait(1, (double)i * 1e9 / x->o.rate, 0);
    case ARRIVALS_POISSON: {
        double u = rng_unit(rng_at(x->o.seed, STREAM_ARRIVALS, i));
        int64_t gap = scaled_wait(1, -log1p(-u) * 1e9 / x->o.rate, 0);
        return scaled_wait(before + gap, 1, 0);
    }
    case ARRIVALS_RECORDED: break;
    }
    /* The trace begins anew one mean gap behind its last request. */
    uint32_t n = t->n_requests;
    int64_t first = t->requests[x->order[0]].t, span = t->requests[x->order[n - 1]].t - first;
    double period = n > 1 ? (double)span * n / (n - 1) : 0;
    int64_t at = t->requests[x->order[i % n]].t - first;
    int64_t passes = scaled_wait(1, (double)(i / n) * period * x->o.time_scale, 0);
    return scaled_wait((i >= n ? passes : 0) + scaled_wait(at, x->o.time_scale, 0), 1, 0);
}

static bool is_full(const struct open_loop *x) {
    return x->o.most && x->s.in_flight >= x->o.most;
}

/* Play of arrival `i`: its pass through the trace, and its name space. */
static uint64_t play_of(const struct open_loop *x, uint64_t i) {
    const struct trace *t = x->s.tree->trace;
    const struct trace_request *r = &t->requests[x->order[i % t->n_requests]];
    return i / t->n_requests * x->n_spaces + t->sessions[r->session].space;
}

static bool open_next(struct schedule *s, int64_t now, struct call *out) {
    struct open_loop *x = open_loop_of(s);
    const struct trace *t = s->tree->trace;
    if (is_full(x) || now < x->start + x->next_at)
        return false;
    uint32_t request = x->order[x->sent % t->n_requests];
    const struct trace_request *r = &t->requests[request];
    struct call call = {
        .phase = PHASE_PROFILING,
        .play = play_of(x, x->sent),
        .request = request,
        .chain = TREE_NONE,
        .root = r->agent < 0,
        .due = x->start + x->next_at,
    };
    if (!flight_start(s, x->call[request], 0, &call))
        return false;
    *out = call;
    if (++x->sent == x->calls)
        schedule_end(s, NULL);
    else
        x->next_at = arrival_time(x, x->sent, x->next_at);
    return true;
}

static void open_done(struct schedule *s, const struct flight *f, int64_t now, enum call_end how) {
    (void)s, (void)f, (void)now, (void)how;
}

static bool open_following(const struct schedule *s, const struct flight *f, struct call *out) {
    (void)s, (void)f, (void)out;
    return false; /* nothing follows from a call's end */
}

static bool open_upcoming(const struct schedule *s, uint64_t ahead, struct call *out) {
    const struct open_loop *x = (const struct open_loop *)s;
    const struct trace *t = s->tree->trace;
    uint64_t i = x->sent + ahead;
    if (i >= x->calls)
        return false;
    uint32_t request = x->order[i % t->n_requests];
    *out = (struct call){.phase = PHASE_PROFILING, .play = play_of(x, i), .request = request};
    return true;
}

static int64_t open_timer(const struct schedule *s) {
    const struct open_loop *x = (const struct open_loop *)s;
    return is_full(x) ? INT64_MAX : x->start + x->next_at;
}

static void open_free(struct schedule *s) {
    struct open_loop *x = open_loop_of(s);
    free(x->order);
    free(x->call);
    free(x);
}

static const struct schedule_kind open_kind = {
    open_next, open_done, open_following, open_upcoming, open_timer, schedule_in_flight, open_free,
};

/* Does the trace last, so that its second pass comes after its first? */
static bool spans_time(const struct trace *t, double scale) {
    bool spans = false;
    for (uint32_t i = 1; i < t->n_requests; i++)
        spans = spans || t->requests[i].t != t->requests[0].t;
    return spans && scale > 0;
}

static weir_status check(const struct tree *t, const struct arrivals_options *o, weir_error *err) {
    if (t->trace->n_requests == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "trace", "holds no request");
    if (o->kind != ARRIVALS_RECORDED && !(o->rate > 0 && isfinite(o->rate)))
        return weir_fail(err, WEIR_BAD_VALUE, "rate", "must be above 0 calls a second, not %g",
                         o->rate);
    if (!(o->time_scale >= 0 && isfinite(o->time_scale)))
        return weir_fail(err, WEIR_BAD_VALUE, "time_scale", "must be 0 or more, not %g",
                         o->time_scale);
    if (o->kind == ARRIVALS_RECORDED && o->calls == UINT64_MAX &&
        !spans_time(t->trace, o->time_scale))
        return weir_fail(err, WEIR_BAD_VALUE, "arrivals",
                         "recorded times are all one moment, at which the trace would begin anew "
                         "for ever: give a number of calls");
    if (o->duration < 0)
        return weir_fail(err, WEIR_BAD_VALUE, "duration", "must be 0 or more, not %" PRId64 " ns",
                         o->duration);
    return WEIR_OK;
}

weir_status schedule_arrivals(const struct tree *t, const struct arrivals_options *o, int64_t now,
                              struct schedule **out, weir_error *err) {
    *out = NULL;
    weir_status status = check(t, o, err);
    if (status)
        return status;
    const struct trace *trace = t->trace;
    struct open_loop *x = calloc(1, sizeof *x);
    if (!x)
        return weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its schedule");
    schedule_begin(&x->s, &open_kind, t, o->duration);
    x->o = *o;
    x->start = now;
    x->calls = o->calls ? o->calls : trace->n_requests;
    x->order = trace_by_time(trace);
    x->call = malloc(trace->n_requests * sizeof *x->call);
    if (!x->order || !x->call) {
        schedule_free(&x->s);
        return weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its schedule");
    }
    for (uint32_t i = 0; i < trace->n_requests; i++)
        x->call[i] = TREE_NONE;
    for (uint32_t i = 0; i < t->n_calls; i++)
        x->call[t->calls[i].request] = i;
    x->n_spaces = trace_spaces(trace);
    schedule_begin_profiling(&x->s, now);
    x->next_at = arrival_time(x, 0, 0);
    *out = &x->s;
    return WEIR_OK;
}
