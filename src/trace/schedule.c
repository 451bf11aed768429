/* schedule.c: what lanes and arrivals share: phases, tickets, timers and the system's idle cap.
 * Called by bench and by plan. */
#include "trace/schedule_inside.h"

#include <string.h>

/* No wait is longer, so that sums of times stay within 64 bits. */
#define WAIT_MAX INT64_C(3000000000000000000)

const char *phase_name(enum phase p) {
    switch (p) {
    case PHASE_PRIMER: return "primer";
    case PHASE_WARMUP: return "warmup";
    case PHASE_PROFILING: return "profiling";
    case PHASE_DRAINING: return "draining";
    case PHASE_ENDED: return "ended";
    }
    return "";
}

int64_t scaled_wait(int64_t wait, double scale, int64_t cap) {
    if (scale != 1) {
        double x = (double)wait * scale + 0.5;
        wait = x < (double)WAIT_MAX ? (int64_t)x : WAIT_MAX;
    }
    int64_t most = cap ? cap : WAIT_MAX;
    return wait < most ? wait : most;
}

uint32_t trace_spaces(const struct trace *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_sessions; i++)
        n = t->sessions[i].space >= n ? t->sessions[i].space + 1 : n;
    return n;
}

/* --------------------------------------------------------------------------------------- phases */

void schedule_begin(struct schedule *s, const struct schedule_kind *kind, const struct tree *t,
                    int64_t duration) {
    s->kind = kind;
    s->tree = t;
    s->duration = duration;
    s->profiling_start = INT64_MIN;
    s->end = INT64_MAX;
    s->free_flight = TREE_NONE;
}

void schedule_begin_profiling(struct schedule *s, int64_t now) {
    s->phase = PHASE_PROFILING;
    s->profiling_start = now;
    if (s->duration)
        s->end = now + s->duration;
}

void schedule_end(struct schedule *s, const char *reason) {
    if (reason && !s->abort_reason[0])
        snprintf(s->abort_reason, sizeof s->abort_reason, "%s", reason);
    if (s->phase != PHASE_ENDED)
        s->phase = s->in_flight ? PHASE_DRAINING : PHASE_ENDED;
    s->n_timers = 0;
}

static bool sends(const struct schedule *s) {
    return s->phase < PHASE_DRAINING;
}

bool schedule_next(struct schedule *s, int64_t now, struct call *out) {
    if (sends(s) && now >= s->end)
        schedule_end(s, NULL);
    return sends(s) && s->kind->next(s, now, out);
}

void schedule_done(struct schedule *s, uint32_t ticket, int64_t now, enum call_end how) {
    WEIR_ASSERT(ticket < s->n_flights && s->flight[ticket].used);
    struct flight f = s->flight[ticket];
    s->flight[ticket].used = false;
    s->flight[ticket].next_free = s->free_flight;
    s->free_flight = ticket;
    s->in_flight--;
    if (sends(s) && now >= s->end)
        schedule_end(s, NULL);
    if (sends(s))
        s->kind->done(s, &f, now, how);
    else if (!s->in_flight)
        s->phase = PHASE_ENDED;
}

bool schedule_following(const struct schedule *s, uint32_t ticket, struct call *out) {
    WEIR_ASSERT(ticket < s->n_flights && s->flight[ticket].used);
    return sends(s) && s->kind->following(s, &s->flight[ticket], out);
}

bool schedule_upcoming(const struct schedule *s, uint64_t ahead, struct call *out) {
    return sends(s) && s->kind->upcoming(s, ahead, out);
}

int64_t schedule_wake(struct schedule *s, int64_t now) {
    if (!sends(s))
        return INT64_MAX;
    int64_t at = s->kind->timer(s), clock = schedule_clock(s, now);
    if (at == INT64_MAX)
        return s->end;
    if (s->idle_cap && !s->in_flight && at > clock && at - clock > s->idle_cap)
        s->skipped += at - clock - s->idle_cap;
    return at - s->skipped < s->end ? at - s->skipped : s->end;
}

void schedule_stop(struct schedule *s, int64_t now) {
    (void)now;
    schedule_end(s, NULL);
}

enum phase schedule_phase(const struct schedule *s) {
    return s->phase;
}

int64_t schedule_profiling_start(const struct schedule *s) {
    return s->profiling_start;
}

uint32_t schedule_in_flight(const struct schedule *s) {
    return s->in_flight;
}

uint32_t schedule_alive(const struct schedule *s) {
    return s->kind->alive(s);
}

int64_t schedule_skipped(const struct schedule *s) {
    return s->skipped;
}

const char *schedule_abort_reason(const struct schedule *s) {
    return s->abort_reason;
}

void schedule_free(struct schedule *s) {
    if (!s)
        return;
    free(s->timer);
    free(s->flight);
    s->kind->free(s);
}

/* -------------------------------------------------------------------------------------- tickets */

void call_describe(const struct tree *t, uint32_t index, struct call *call) {
    const struct tree_call *c = &t->calls[index];
    call->request = c->request;
    call->chain = c->chain;
    call->turn = c->turn;
    call->root = t->chains[c->chain].agent < 0;
}

/* Doubles an array; false, and the schedule has ended, where there is no memory. */
static bool grow(struct schedule *s, void *array, uint32_t *room, size_t each) {
    uint32_t more = *room ? 2 * *room : 64;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    p = *room < UINT32_MAX / 2 ? realloc(old, more * each) : NULL;
    if (!p) {
        schedule_end(s, "no memory for the calls under way");
        return false;
    }
    memcpy(array, &p, sizeof p);
    *room = more;
    return true;
}

bool flight_start(struct schedule *s, uint32_t index, uint32_t strand, struct call *call) {
    uint32_t ticket = s->free_flight;
    if (ticket != TREE_NONE) {
        s->free_flight = s->flight[ticket].next_free;
    } else {
        if (s->n_flights == s->flight_room &&
            !grow(s, &s->flight, &s->flight_room, sizeof *s->flight))
            return false;
        ticket = s->n_flights++;
    }
    if (index != TREE_NONE)
        call_describe(s->tree, index, call);
    call->ticket = ticket;
    s->flight[ticket] =
        (struct flight){.call = *call, .index = index, .strand = strand, .used = true};
    s->in_flight++;
    return true;
}

/* --------------------------------------------------------------------------------------- timers */

static bool before(const struct timer *a, const struct timer *z) {
    return a->at != z->at ? a->at < z->at : a->order < z->order;
}

void timer_set(struct schedule *s, int64_t at, uint32_t lane, uint32_t strand) {
    if (s->n_timers == s->timer_room && !grow(s, &s->timer, &s->timer_room, sizeof *s->timer))
        return;
    struct timer t = {at, s->n_set++, lane, strand};
    uint32_t i = s->n_timers++;
    for (; i && before(&t, &s->timer[(i - 1) / 2]); i = (i - 1) / 2)
        s->timer[i] = s->timer[(i - 1) / 2];
    s->timer[i] = t;
}

bool timer_take(struct schedule *s, int64_t clock, struct timer *out) {
    if (!s->n_timers || s->timer[0].at > clock)
        return false;
    *out = s->timer[0];
    struct timer last = s->timer[--s->n_timers];
    uint32_t i = 0, child;
    for (; (child = 2 * i + 1) < s->n_timers; i = child) {
        child += child + 1 < s->n_timers && before(&s->timer[child + 1], &s->timer[child]);
        if (!before(&s->timer[child], &last))
            break;
        s->timer[i] = s->timer[child];
    }
    s->timer[i] = last;
    return true;
}
