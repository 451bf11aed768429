/* schedule_inside.h: what both kinds of schedules are made of: the phase, calls under way by their
 * tickets, and timers. Inside of the trace room.
 * Times of timers count on the schedule's own clock, which runs ahead of the caller's by all the
 * time that was skipped: so that moving every timer at once is one addition. */
#ifndef WEIR_TRACE_SCHEDULE_INSIDE_H
#define WEIR_TRACE_SCHEDULE_INSIDE_H

#include "trace/schedule.h"

struct timer {
    int64_t at;
    uint64_t order; /* of equal times the one set first comes first */
    uint32_t lane, strand;
};

struct flight {
    struct call call;
    uint32_t index; /* tree.calls, or TREE_NONE */
    uint32_t strand;
    uint32_t next_free;
    bool used;
};

struct schedule_kind {
    bool (*next)(struct schedule *s, int64_t now, struct call *out);
    void (*done)(struct schedule *s, const struct flight *f, int64_t now, enum call_end how);
    bool (*following)(const struct schedule *s, const struct flight *f, struct call *out);
    bool (*upcoming)(const struct schedule *s, uint64_t ahead, struct call *out);
    int64_t (*timer)(const struct schedule *s); /* of the next call; INT64_MAX: none */
    uint32_t (*alive)(const struct schedule *s);
    void (*free)(struct schedule *s);
};

struct schedule {
    const struct schedule_kind *kind;
    const struct tree *tree;
    enum phase phase;
    int64_t profiling_start, end; /* the caller's clock; end: INT64_MAX: none */
    int64_t duration, idle_cap;
    int64_t skipped;
    struct timer *timer; /* a heap */
    uint32_t n_timers, timer_room;
    uint64_t n_set;
    struct flight *flight;
    uint32_t n_flights, flight_room, free_flight, in_flight;
    char abort_reason[160];
};

static inline int64_t schedule_clock(const struct schedule *s, int64_t now) {
    return now + s->skipped;
}

void schedule_begin(struct schedule *s, const struct schedule_kind *kind, const struct tree *t,
                    int64_t duration);
/* Sends nothing more; `reason` may be NULL. */
void schedule_end(struct schedule *s, const char *reason);
void schedule_begin_profiling(struct schedule *s, int64_t now);

void timer_set(struct schedule *s, int64_t at, uint32_t lane, uint32_t strand);
/* The first timer that is due at `clock`; false: none. */
bool timer_take(struct schedule *s, int64_t clock, struct timer *out);

/* Fills the call's request, chain and turn from tree.calls[index], and gives it a ticket. False
 * where there is no memory; the schedule has ended then. */
bool flight_start(struct schedule *s, uint32_t index, uint32_t strand, struct call *call);
void call_describe(const struct tree *t, uint32_t index, struct call *call);

/* One more than the greatest number of a name space. */
uint32_t trace_spaces(const struct trace *t);

/* A wait as it is kept: scaled, never beyond `cap` (0: none). */
int64_t scaled_wait(int64_t wait, double scale, int64_t cap);

#endif
