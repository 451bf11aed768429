/* lanes.c: the closed loop. Each lane walks the tree of one session at a time: a call follows the
 * end of the one before it after the recorded wait, sub-agents run beside it, and the tree has
 * drained when all its chains have ended; then the lane takes the next session of a seeded shuffle.
 * Before profiling a lane skips into its first session: primer, then warm-up calls without waits.
 * Called through schedule.h.
 * Invariant that bites: waits keep running while the warm-up goes on. What a lane does first in the
 * profiling phase is due one recorded wait after its last warm-up call, or at once if that is over.
 */
#include "trace/schedule_inside.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { STREAM_SHUFFLE = 0x51, STREAM_START = 0x52 };

/* One chain of the session that a lane plays. */
enum strand_state {
    STRAND_WAITS,   /* to be started by a call of the session's own chain */
    STRAND_BLOCKED, /* for chains that its next call joins */
    STRAND_HELD,    /* its next call belongs to the profiling phase */
    STRAND_TIMED,
    STRAND_FLYING,
    STRAND_ENDED,
};

struct strand {
    enum strand_state state;
    bool primer;      /* its next call is one */
    uint32_t turn;    /* of the next call, or of the one under way */
    uint32_t unended; /* chains that a blocked one waits for */
    int64_t ready;    /* of the next call, by its recorded wait */
};

struct lane {
    uint64_t play;
    uint32_t session;     /* TREE_NONE: none is left */
    uint32_t left;        /* strands that have not ended */
    uint32_t warmup_left; /* calls */
    uint32_t room;
    struct strand *strand; /* [0] is the session's own */
};

struct closed_loop {
    struct schedule s;
    struct lanes_options o;
    struct lane *lane;
    uint32_t *order; /* sessions that have calls, shuffled */
    uint32_t n_order, n_spaces, alive;
    uint64_t taken; /* sessions given to lanes */
};

static struct closed_loop *closed_loop_of(struct schedule *s) {
    return (struct closed_loop *)s;
}

static const struct tree_chain *chain_of(const struct closed_loop *x, const struct lane *l,
                                         uint32_t strand) {
    const struct tree *t = x->s.tree;
    return &t->chains[t->sessions[l->session].first_chain + strand];
}

static int64_t wait_before(const struct closed_loop *x, uint32_t call) {
    return scaled_wait(x->s.tree->calls[call].wait, x->o.time_scale, x->o.idle_cap);
}

static bool warms_up(const struct closed_loop *x) {
    return x->s.phase < PHASE_PROFILING;
}

/* ------------------------------------------------------------------------------------- one tree */

/* The strand's next call may be sent from `ready` on; before profiling at once, or not at all. */
static void make_ready(struct closed_loop *x, uint32_t lane, uint32_t strand, int64_t ready,
                       int64_t clock) {
    struct lane *l = &x->lane[lane];
    struct strand *d = &l->strand[strand];
    bool held = warms_up(x) && !d->primer && !l->warmup_left;
    d->ready = ready;
    d->state = held ? STRAND_HELD : STRAND_TIMED;
    if (!held)
        timer_set(&x->s, warms_up(x) ? clock : ready, lane, strand);
}

static int64_t session_time(const struct closed_loop *x, uint32_t call) {
    return x->s.tree->trace->requests[x->s.tree->calls[call].request].t;
}

/* Turn of the first call of the chain at or after the recorded time `t`; n_calls: none. */
static uint32_t turn_at(const struct closed_loop *x, const struct tree_chain *c, double t) {
    uint32_t k = 0;
    while (k < c->n_calls && (double)session_time(x, c->first + k) < t)
        k++;
    return k;
}

/* Places the strands of a lane as they stood at a random moment of the recording. What ran then
 * gets a primer: the call before its next one. */
static void enter_midway(struct closed_loop *x, uint32_t lane) {
    struct lane *l = &x->lane[lane];
    const struct tree *t = x->s.tree;
    const struct tree_chain *own = chain_of(x, l, 0);
    double u = rng_unit(rng_at(x->o.seed, STREAM_START, lane));
    double share = x->o.start_min + u * (x->o.start_max - x->o.start_min);
    double moment =
        (double)session_time(x, own->first) + share * (double)t->sessions[l->session].span;
    uint32_t start = turn_at(x, own, moment);
    start = start < 1 ? 1 : start < own->n_calls ? start : own->n_calls - 1;
    uint32_t before = own->first + start - 1;
    l->strand[0].turn = start - 1;
    l->strand[0].primer = true;
    for (uint32_t i = 1; i < t->sessions[l->session].n_chains; i++) {
        const struct tree_chain *c = chain_of(x, l, i);
        uint32_t k = c->spawned_by < before    ? c->n_calls /* joined by `before` or earlier */
                     : c->spawned_by == before ? turn_at(x, c, moment)
                                               : 0;
        struct strand *d = &l->strand[i];
        if (k == c->n_calls) {
            d->state = STRAND_ENDED;
            l->left--;
        } else if (k > 0) {
            d->turn = k - 1;
            d->primer = true;
        }
    }
}

/* Session and play that are given to a lane as number `i` of all. */
static bool session_at(const struct closed_loop *x, uint64_t i, uint32_t *session, uint64_t *play) {
    if (x->o.once && i >= x->n_order)
        return false;
    *session = x->order[i % x->n_order];
    *play = i;
    if (x->o.share)
        *play = i / x->n_order * x->n_spaces + x->s.tree->trace->sessions[*session].space;
    return true;
}

/* Takes the next session of the shuffle; leaves the lane empty where there is none. */
static void begin_play(struct closed_loop *x, uint32_t lane, bool midway, int64_t clock) {
    struct lane *l = &x->lane[lane];
    l->session = TREE_NONE;
    uint32_t session;
    uint64_t play;
    if (!session_at(x, x->taken, &session, &play))
        return;
    x->taken++;
    const struct tree_session *t = &x->s.tree->sessions[session];
    if (t->n_chains > l->room) {
        struct strand *more = realloc(l->strand, t->n_chains * sizeof *more);
        if (!more) {
            schedule_end(&x->s, "no memory for a session");
            return;
        }
        l->strand = more;
        l->room = t->n_chains;
    }
    memset(l->strand, 0, t->n_chains * sizeof *l->strand);
    l->session = session;
    l->left = t->n_chains;
    l->play = play;
    x->alive++;
    if (midway && chain_of(x, l, 0)->n_calls > 1)
        enter_midway(x, lane);
    for (uint32_t i = 0; i < t->n_chains; i++)
        if (i == 0 || l->strand[i].primer)
            make_ready(x, lane, i, clock, clock);
}

static void end_strand(struct closed_loop *x, uint32_t lane, uint32_t strand, int64_t clock) {
    struct lane *l = &x->lane[lane];
    const struct tree_chain *own = chain_of(x, l, 0), *c = chain_of(x, l, strand);
    struct strand *root = &l->strand[0];
    l->strand[strand].state = STRAND_ENDED;
    l->left--;
    if (root->state == STRAND_BLOCKED && c->joined_by == own->first + root->turn &&
        --root->unended == 0)
        make_ready(x, lane, 0, root->ready > clock ? root->ready : clock, clock);
    if (l->left)
        return;
    x->alive--; /* the tree has drained */
    begin_play(x, lane, false, clock);
}

/* Starts the chains that the end of `call` spawns. */
static void spawn(struct closed_loop *x, uint32_t lane, uint32_t call, int64_t clock) {
    struct lane *l = &x->lane[lane];
    const struct tree *t = x->s.tree;
    const struct tree_call *c = &t->calls[call];
    for (uint32_t i = 0; i < c->n_spawns; i++) {
        uint32_t chain = t->spawns[c->first_spawn + i];
        uint32_t strand = chain - t->sessions[l->session].first_chain;
        if (l->strand[strand].state == STRAND_WAITS)
            make_ready(x, lane, strand, clock + wait_before(x, t->chains[chain].first), clock);
    }
}

static uint32_t unended_joins(const struct closed_loop *x, const struct lane *l, uint32_t call) {
    const struct tree *t = x->s.tree;
    const struct tree_call *c = &t->calls[call];
    uint32_t n = 0, first = t->sessions[l->session].first_chain;
    for (uint32_t i = 0; i < c->n_joins; i++)
        n += l->strand[t->joins[c->first_join + i] - first].state != STRAND_ENDED;
    return n;
}

static void advance(struct closed_loop *x, uint32_t lane, uint32_t strand, int64_t clock) {
    struct lane *l = &x->lane[lane];
    struct strand *d = &l->strand[strand];
    const struct tree_chain *c = chain_of(x, l, strand);
    uint32_t call = c->first + d->turn;
    d->primer = false;
    spawn(x, lane, call, clock);
    if (++d->turn == c->n_calls) {
        end_strand(x, lane, strand, clock);
        return;
    }
    int64_t ready = clock + wait_before(x, call + 1);
    d->unended = unended_joins(x, l, call + 1);
    if (d->unended) {
        d->state = STRAND_BLOCKED;
        d->ready = ready;
    } else {
        make_ready(x, lane, strand, ready, clock);
    }
}

/* --------------------------------------------------------------------------------------- phases */

static void begin_profiling(struct closed_loop *x, int64_t now) {
    int64_t clock = schedule_clock(&x->s, now);
    schedule_begin_profiling(&x->s, now);
    for (uint32_t i = 0; i < x->o.lanes; i++) {
        struct lane *l = &x->lane[i];
        uint32_t n = l->session == TREE_NONE ? 0 : x->s.tree->sessions[l->session].n_chains;
        for (uint32_t k = 0; k < n; k++)
            if (l->strand[k].state == STRAND_HELD)
                make_ready(x, i, k, l->strand[k].ready > clock ? l->strand[k].ready : clock, clock);
    }
}

/* The warm-up has no waits: where nothing is under way and nothing is due, it has drained. */
static void settle(struct closed_loop *x, int64_t now) {
    if (warms_up(x) && !x->s.n_timers && !x->s.in_flight)
        begin_profiling(x, now);
    if (x->s.phase == PHASE_PROFILING && !x->alive)
        schedule_end(&x->s, NULL);
}

static bool start_call(struct closed_loop *x, const struct timer *timer, struct call *out) {
    struct lane *l = &x->lane[timer->lane];
    struct strand *d = &l->strand[timer->strand];
    if (warms_up(x) && !d->primer) {
        if (!l->warmup_left) {
            d->state = STRAND_HELD;
            return false;
        }
        l->warmup_left--;
        x->s.phase = x->s.phase == PHASE_PRIMER ? PHASE_WARMUP : x->s.phase;
    }
    struct call call = {
        .phase = d->primer ? PHASE_PRIMER : x->s.phase,
        .lane = timer->lane,
        .play = l->play,
        .one_token = warms_up(x),
        .due = timer->at - x->s.skipped,
    };
    if (!flight_start(&x->s, chain_of(x, l, timer->strand)->first + d->turn, timer->strand, &call))
        return false;
    d->state = STRAND_FLYING;
    *out = call;
    return true;
}

static bool lanes_next(struct schedule *s, int64_t now, struct call *out) {
    struct closed_loop *x = closed_loop_of(s);
    struct timer timer;
    for (;;) {
        while (timer_take(s, schedule_clock(s, now), &timer))
            if (start_call(x, &timer, out))
                return true;
        bool warm = warms_up(x);
        settle(x, now);
        if (!warm || s->phase != PHASE_PROFILING)
            return false;
    }
}

static void lanes_done(struct schedule *s, const struct flight *f, int64_t now, enum call_end how) {
    struct closed_loop *x = closed_loop_of(s);
    const struct call *c = &f->call;
    if (how == CALL_FAILED && c->root && c->one_token) {
        char reason[sizeof s->abort_reason];
        const struct trace *t = s->tree->trace;
        snprintf(reason, sizeof reason,
                 "a call of the warm-up failed: session %.60s, turn %" PRIu32 ", lane %" PRIu32,
                 t->sessions[t->requests[c->request].session].id, c->turn, c->lane);
        schedule_end(s, reason);
        return;
    }
    advance(x, c->lane, f->strand, schedule_clock(s, now));
    settle(x, now);
}

static bool lanes_following(const struct schedule *s, const struct flight *f, struct call *out) {
    const struct tree_chain *c = &s->tree->chains[f->call.chain];
    if (f->call.turn + 1 == c->n_calls)
        return false;
    *out = f->call;
    out->phase = s->phase;
    call_describe(s->tree, f->index + 1, out);
    return true;
}

static bool lanes_upcoming(const struct schedule *s, uint64_t ahead, struct call *out) {
    const struct closed_loop *x = (const struct closed_loop *)s;
    const struct tree *t = s->tree;
    uint32_t session;
    *out = (struct call){.phase = PHASE_PROFILING};
    if (!session_at(x, x->taken + ahead, &session, &out->play))
        return false;
    call_describe(t, t->chains[t->sessions[session].first_chain].first, out);
    return true;
}

static int64_t lanes_timer(const struct schedule *s) {
    return s->n_timers ? s->timer[0].at : INT64_MAX;
}

static uint32_t lanes_alive(const struct schedule *s) {
    return s->phase == PHASE_ENDED ? 0 : ((const struct closed_loop *)s)->alive;
}

static void lanes_free(struct schedule *s) {
    struct closed_loop *x = closed_loop_of(s);
    for (uint32_t i = 0; x->lane && i < x->o.lanes; i++)
        free(x->lane[i].strand);
    free(x->lane);
    free(x->order);
    free(x);
}

static const struct schedule_kind lanes_kind = {
    lanes_next, lanes_done, lanes_following, lanes_upcoming, lanes_timer, lanes_alive, lanes_free,
};

/* -------------------------------------------------------------------------------------- opening */

struct lanes_options lanes_options_default(void) {
    return (struct lanes_options){
        .lanes = 1,
        .seed = 42,
        .duration = INT64_C(3600000000000),
        .start_min = 0.25,
        .start_max = 0.75,
        .warmup_calls = 10,
        .idle_cap = INT64_C(300000000000),
        .system_idle_cap = INT64_C(10000000000),
        .time_scale = 1,
    };
}

static weir_status check(const struct lanes_options *o, weir_error *err) {
    if (o->lanes == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "lanes", "must be 1 or more, not 0");
    if (o->duration < 0 || o->idle_cap < 0 || o->system_idle_cap < 0)
        return weir_fail(err, WEIR_BAD_VALUE,
                         o->duration < 0   ? "duration"
                         : o->idle_cap < 0 ? "idle_cap"
                                           : "system_idle_cap",
                         "must be 0 or more");
    if (o->duration == 0 && !o->once)
        return weir_fail(err, WEIR_BAD_VALUE, "duration",
                         "must be above 0 unless every session is played once");
    if (!(o->start_min >= 0 && o->start_min <= o->start_max && o->start_max <= 1))
        return weir_fail(err, WEIR_BAD_VALUE, "start_ratio",
                         "must be a range within 0 and 1, not %g to %g", o->start_min,
                         o->start_max);
    if (!(o->time_scale >= 0 && isfinite(o->time_scale)))
        return weir_fail(err, WEIR_BAD_VALUE, "time_scale", "must be 0 or more, not %g",
                         o->time_scale);
    return WEIR_OK;
}

static void shuffle(struct closed_loop *x) {
    for (uint32_t i = x->n_order; i > 1; i--) {
        uint32_t k = (uint32_t)(rng_at(x->o.seed, STREAM_SHUFFLE, i) % i), keep = x->order[i - 1];
        x->order[i - 1] = x->order[k];
        x->order[k] = keep;
    }
}

weir_status schedule_lanes(const struct tree *t, const struct lanes_options *o, int64_t now,
                           struct schedule **out, weir_error *err) {
    *out = NULL;
    weir_status status = check(o, err);
    if (status)
        return status;
    struct closed_loop *x = calloc(1, sizeof *x);
    if (!x)
        return weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its schedule");
    schedule_begin(&x->s, &lanes_kind, t, o->duration);
    x->s.idle_cap = o->system_idle_cap;
    x->o = *o;
    x->lane = calloc(o->lanes, sizeof *x->lane);
    x->order = malloc(((size_t)t->trace->n_sessions + 1) * sizeof *x->order);
    if (!x->lane || !x->order) {
        schedule_free(&x->s);
        return weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its schedule");
    }
    for (uint32_t i = 0; i < t->trace->n_sessions; i++)
        if (t->sessions[i].n_chains)
            x->order[x->n_order++] = i;
    if (x->n_order == 0) {
        schedule_free(&x->s);
        return weir_fail(err, WEIR_BAD_VALUE, "trace", "holds no session with a call of its own");
    }
    x->n_spaces = trace_spaces(t->trace);
    shuffle(x);
    bool warm = o->warmup_calls != UINT32_MAX;
    if (!warm)
        schedule_begin_profiling(&x->s, now);
    for (uint32_t i = 0; i < o->lanes; i++) {
        x->lane[i].warmup_left = warm ? o->warmup_calls : 0;
        begin_play(x, i, warm, now);
    }
    settle(x, now);
    *out = &x->s;
    return WEIR_OK;
}
