/* engine.h: the inside of a weir_engine, shared by the files of this room; tests open one over an
 * executor of their own with engine_open. */
#ifndef WEIR_ENGINE_ENGINE_H
#define WEIR_ENGINE_ENGINE_H

#include "engine/executor.h"
#include "engine/scheduler.h"

#include <pthread.h>

/* Everything an engine stands on. `info` holds its sizes. */
struct engine_setup {
    weir_info info;
    struct request_limits request;
    struct scheduler_limits schedule;
    struct cache_setup cache; /* pages, slots and step_rows are filled by engine_open */
    /* Opens the tiers below the device pools, which call notify(notify_arg); NULL: none. */
    weir_status (*open_tiers)(void *arg, void (*notify)(void *), void *notify_arg,
                              struct tier **out, uint32_t *n, weir_error *err);
    /* What else is worth counting, called between steps; NULL: nothing. */
    void (*count)(void *arg, weir_stats *out);
    bool async;
    void (*on_progress)(void *arg);
    void *on_progress_arg;
    struct executor *executor; /* taken over, also on failure */
    void (*close)(void *arg);  /* frees what the executor worked on; NULL: nothing */
    void *close_arg;           /* also the argument of open_tiers and count */
};

/* A caller waiting in weir_reset_prefix_cache. */
struct reset_call {
    weir_cache_reset result;
    bool tiers, done, refused;
    struct reset_call *next;
};

struct weir_engine {
    struct engine_setup setup;
    struct weir_engine *self; /* for readers of a const engine, who still have to lock */

    /* engine thread */
    struct scheduler scheduler;
    struct cache_index *index;
    struct cache_tiers *tiers; /* NULL: none */
    bool idle;                 /* the last plan found nothing to run and nothing is in flight */
    struct step step[EXECUTOR_DEPTH];
    uint64_t submitted, collected; /* steps */
    struct weir_request *touched;  /* requests with news to publish */
    weir_stats totals;             /* counters; gauges are set when published */

    pthread_t thread;
    bool has_locks;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the engine thread waits here while there is nothing to do */
    pthread_cond_t was_reset;

    /* under the lock */
    struct weir_request *inbox, **inbox_tail, *cancels;
    struct weir_request *ready_first, *ready_last;
    uint64_t arrivals;
    uint32_t n_inbox;
    uint32_t unfinished; /* accepted and not published as finished: bounds the waiting heap */
    struct reset_call *resets;
    bool draining, closing;
    bool tier_news; /* a move has ended */
    weir_stats stats;
    weir_error failure; /* of the last step that failed */
};

weir_status engine_open(const struct engine_setup *setup, weir_engine **out, weir_error *err);

/* outcome.c: what a collected step means for its requests; engine thread. */
void engine_apply(weir_engine *e, const struct step *step, const struct step_outcome *outcome);
/* Ends a request for good; its lease is freed as soon as no step in flight names it. */
void engine_end(weir_engine *e, struct weir_request *r, weir_finish finish, weir_status error);
/* stats.c: brings the gauges and counters of scheduler, index and tiers into e->totals. */
void engine_count(weir_engine *e);
/* Makes news visible to callers; returns whether there were any. */
bool engine_publish(weir_engine *e);

/* api.c: links a request into the ready list; under the lock. */
void engine_make_ready(weir_engine *e, struct weir_request *r);

#endif
