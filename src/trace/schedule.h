/* schedule.h: when which call is sent. A state machine without a clock: the caller says what time
 * it is and which calls have ended, so that the replay over HTTP and a simulation on a virtual
 * clock run the very same rules. Single-threaded. Times are int64_t ns of the caller's clock.
 *
 *     for (;;) {
 *         while (schedule_next(s, now, &call)) send(call);
 *         if (schedule_phase(s) == PHASE_ENDED) break;
 *         wait until schedule_wake(s) or the end of a call; schedule_done(s, ticket, now, how);
 *     }
 */
#ifndef WEIR_TRACE_SCHEDULE_H
#define WEIR_TRACE_SCHEDULE_H

#include "trace/tree.h"

enum phase {
    PHASE_PRIMER, /* the call before the one a lane starts with, one token of output */
    PHASE_WARMUP, /* further calls, one token of output, no waits; ends when all have ended */
    PHASE_PROFILING,
    PHASE_DRAINING, /* nothing more is sent, calls under way end and count as profiling */
    PHASE_ENDED,
};
const char *phase_name(enum phase p);

/* One call to be sent. */
struct call {
    uint32_t ticket; /* names it until schedule_done; small numbers, used again */
    enum phase phase;
    uint32_t lane;    /* open loop: 0 */
    uint64_t play;    /* number of the run through the session; calls of different plays share no
                         block. Unique in the schedule, unless sessions share: see there */
    uint32_t request; /* index in trace.requests */
    uint32_t chain, turn;
    bool root;      /* of the session's own chain */
    bool one_token; /* primer and warm-up: the answer's length is 1 */
    int64_t due;    /* planned time of sending */
};

enum call_end { CALL_OK, CALL_FAILED, CALL_SKIPPED /* not sent: longer than the context */ };

/* Closed loop: lanes (live session trees), each playing session after session. */
struct lanes_options {
    uint32_t lanes;
    uint64_t seed;
    int64_t duration;            /* ns of profiling; 0: no limit, needs `once` */
    bool once;                   /* every session is played once; else for as long as it lasts */
    double start_min, start_max; /* share of a session's span at which its lane begins */
    uint32_t warmup_calls;       /* of each lane behind the primer; UINT32_MAX: no primer and no
                                    warm-up, sessions begin at their first call */
    int64_t idle_cap;            /* of one recorded wait; 0: none */
    int64_t system_idle_cap;     /* see schedule_skipped; 0: none */
    double time_scale;           /* of waits, before the cap */
    /* Sessions of one name space share their blocks in each pass through the trace, as the open
     * loop's do: `play` is then the number of (pass, name space). Else every session that a lane
     * plays is a play of its own, as AgentX has it. */
    bool share;
};
/* Those of AgentX: 3600 s, seed 42, 0.25..0.75, 10 warm-up calls, 300 s, 10 s. */
struct lanes_options lanes_options_default(void);

/* Open loop: every request of the trace is sent at its time whatever became of the others. */
enum arrivals { ARRIVALS_RECORDED, ARRIVALS_FIXED, ARRIVALS_POISSON };
struct arrivals_options {
    enum arrivals kind;
    double rate;       /* calls a second, of fixed and Poisson */
    double time_scale; /* of recorded times */
    uint64_t seed;
    int64_t duration; /* 0: until the trace ends */
    uint64_t calls;   /* at most so many; the trace starts anew as a new play; 0: once through */
    uint32_t most;    /* calls in flight; a call over it waits and is late; 0: no limit */
};

struct schedule;

/* `t` must outlive the schedule, which starts at `now`. WEIR_BAD_VALUE names the option;
 * WEIR_NO_MEMORY. */
weir_status schedule_lanes(const struct tree *t, const struct lanes_options *o, int64_t now,
                           struct schedule **out, weir_error *err);
weir_status schedule_arrivals(const struct tree *t, const struct arrivals_options *o, int64_t now,
                              struct schedule **out, weir_error *err);
void schedule_free(struct schedule *s);

/* The next call that is due; false: none at `now`. */
bool schedule_next(struct schedule *s, int64_t now, struct call *out);
/* The call that follows the running `ticket` in its chain and play, so that its prompt can be made
 * ready; `due` is not set. */
bool schedule_following(const struct schedule *s, uint32_t ticket, struct call *out);
/* The first call of the play that will begin next, or after `ahead` others: request and play alone
 * are set. Open loop: the calls that arrive next. False: none will. */
bool schedule_upcoming(const struct schedule *s, uint64_t ahead, struct call *out);
void schedule_done(struct schedule *s, uint32_t ticket, int64_t now, enum call_end how);
/* When to ask again though no call has ended; INT64_MAX: never. Moves timers where nothing is in
 * flight and the next is further away than the system's idle cap. */
int64_t schedule_wake(struct schedule *s, int64_t now);
/* Sends nothing more. */
void schedule_stop(struct schedule *s, int64_t now);

enum phase schedule_phase(const struct schedule *s);
/* Time at which profiling began; INT64_MIN: not yet. */
int64_t schedule_profiling_start(const struct schedule *s);
uint32_t schedule_in_flight(const struct schedule *s);
/* Session trees alive; open loop: calls in flight. */
uint32_t schedule_alive(const struct schedule *s);
/* ns by which the system's idle cap has moved timers so far. */
int64_t schedule_skipped(const struct schedule *s);
/* Why the schedule ended by itself, "" where it ran its course: a root call of the warm-up failed.
 */
const char *schedule_abort_reason(const struct schedule *s);

#endif
