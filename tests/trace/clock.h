/* clock.h: plays a schedule against a server that answers after given times, on a virtual clock,
 * and keeps what was sent. */
#ifndef WEIR_TESTS_TRACE_CLOCK_H
#define WEIR_TESTS_TRACE_CLOCK_H

#include "trace/schedule.h"

#define MS  INT64_C(1000000)
#define SEC INT64_C(1000000000)

struct sent {
    struct call call;
    int64_t at, end;                    /* of the caller's clock; end: INT64_MAX, under way */
    int64_t due_on_clock, end_on_clock; /* with all that was skipped until then */
    enum call_end how;
};

struct play_log {
    struct sent *sent;
    uint32_t n, room;
    uint32_t most_alive, most_in_flight;
    int64_t ended; /* when the last call had ended */
};

/* How long a call takes and how it ends. */
typedef int64_t service_fn(void *arg, const struct call *c, enum call_end *how);

/* Plays until the schedule has ended, or to the time `until` (INT64_MAX: none), when it is stopped.
 * Fails the test where the schedule breaks its contract. */
void play_schedule(struct schedule *s, int64_t from, int64_t until, service_fn *service, void *arg,
                   struct play_log *log);
void play_log_free(struct play_log *log);

/* Reads a weka or other trace from text; the tree of it. Fails the test where it does not read. */
void tree_of_text(const char *text, enum trace_format format, struct trace *t, struct tree *tree);

#endif
