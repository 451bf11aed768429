/* replay_inside.h: what the files of the replay share. */
#ifndef WEIR_BENCH_REPLAY_INSIDE_H
#define WEIR_BENCH_REPLAY_INSIDE_H

#include "bench/answer.h"
#include "bench/compose.h"
#include "bench/replay.h"

/* One call under way. */
struct flight_http {
    struct replay *r;
    struct call call;
    int64_t could;   /* when it could be sent at the earliest: due, or let go by the limit */
    uint32_t record; /* index in run.records, which move */
    struct exchange *exchange;
    struct answer answer;
    struct body body;
    uint64_t bytes; /* of the answer so far */
    struct talk *talk;
    bool composing;
    struct flight_http *next; /* of those that wait for their bodies, or of free ones */
};

struct id_set {
    uint64_t *slot; /* 0: free */
    size_t n, room; /* room: a power of two */
};

/* Things that cannot be true, or that a careful server does not do. */
struct oddities {
    uint64_t same_id, id_changed, no_usage, few_tokens, many_tokens, prompt_length, cached_more,
        no_end_mark, resent, no_number;
    uint64_t prompt_difference; /* largest */
};

struct rate_window {
    int64_t at[16];
    uint64_t tokens[16];
    uint32_t n;
};

struct replay {
    const struct replay_options *o;
    struct run *run;
    struct client *client;
    struct composer *composer;
    struct schedule *schedule;
    struct body_maker maker;
    struct probe probe;
    struct talks talks;
    int64_t unix_offset; /* Unix time minus the client's clock */
    uint64_t max_context;

    struct flight_http **flight; /* by ticket */
    uint32_t n_flights;
    struct flight_http *composing, *free_flights;
    uint64_t sent, done, failed; /* done, failed: since profiling began */
    uint64_t tokens;             /* of what has come in, answers under way included */
    uint32_t failures_in_a_row;
    bool failed_memory, keeps_text;
    char gone[320]; /* why the run was given up; "" while it goes on */
    char first_failure[256];
    struct id_set ids;
    struct oddities odd;

    uint64_t foreseen; /* plays that are foreseen, open loop: calls */

    struct {
        struct text text;
        struct exchange *exchange; /* NULL: none under way */
        int64_t next, asked;
        uint32_t failures; /* in a row */
        uint32_t failed, unknown,
            too_full; /* all in all; without a name that is known; usage > 1 */
    } scrape;
    struct reservoir *late, *held; /* us; ms. Held: by the limit on calls in flight */
    int64_t freed;                 /* when a call at that limit ended last */
    int64_t cpu_start, profiling_start, last_sent; /* client's clock */
    struct rate_window window;
    int64_t progress_next;
};

/* replay_call.c */
/* Is it longer than the context, or than any body can be? */
bool replay_is_too_long(const struct replay *r, const struct call *call);
/* Sends a call that is due, or ends it at once where it is too long. */
void replay_begin(struct replay *r, const struct call *call, int64_t now);
/* Has the bodies composed with which the plays begin that are to come, from number `from` on. */
void replay_look_ahead(struct replay *r, uint64_t from);
/* Sends those whose bodies have become ready. */
void replay_send_composed(struct replay *r);
void replay_cancel_all(struct replay *r);
void replay_free_calls(struct replay *r);

/* replay_scrape.c */
/* Asks for the server's metrics when it is time; returns when it will be. */
int64_t replay_scrape(struct replay *r, int64_t now);
/* Says what was wrong with them. */
void replay_scrape_warn(struct replay *r);
/* Waits for one more sample, the last. */
void replay_scrape_last(struct replay *r);

static inline int64_t replay_unix(const struct replay *r, int64_t at) {
    return at + r->unix_offset;
}

#endif
