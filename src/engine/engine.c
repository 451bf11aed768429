/* engine.c: the life of an engine and the loop of its thread.
 *
 * Threads: any number of callers (api.c), one engine thread (this loop, scheduler, batches,
 * outcomes), and behind the executor whatever computes.
 *
 * Locking: one mutex, e->lock, held for moments only and never across a step.
 *   under it: inbox, cancel list, ready list, every request's `pub`, the published stats, draining
 *   and closing. Callers write the inbox and the cancel list; the engine thread empties them once a
 *   round and publishes results once a step.
 *   without it: request.ask is fixed at submit; request.run, scheduler, index and steps are the
 *   engine thread's alone. tokens[], logprobs and prompt_scores are written by the engine side
 *   beyond what was published and read by callers below it; the lock orders the two.
 * A request dies when its caller has released it and the engine thread is done with it (`gone`);
 * whoever comes second frees it.
 *
 * The round: take what callers handed over; plan and submit while fewer than the allowed steps are
 * in flight; collect the oldest; publish. With async_scheduling two steps are in flight, the second
 * planned on tokens yet to be drawn. Nothing here allocates. */
#include "engine/engine.h"

#include "base/clock.h"

#include <stdlib.h>

/* Takes what callers left since the last round. */
static struct weir_request *take_inbox(weir_engine *e, struct weir_request **cancels) {
    struct weir_request *first = e->inbox;
    e->inbox = NULL;
    e->inbox_tail = &e->inbox;
    e->n_inbox = 0;
    *cancels = e->cancels;
    e->cancels = NULL;
    return first;
}

static void cancel_all(weir_engine *e, struct weir_request *r) {
    while (r) {
        pthread_mutex_lock(&e->lock);
        struct weir_request *next = r->pub.cancel_next;
        r->pub.in_cancels = false;
        /* Gone and not yet released, it is the caller's: it may be freed from here on. */
        bool gone = r->pub.gone, dead = gone && r->pub.released;
        pthread_mutex_unlock(&e->lock);
        if (dead)
            request_free(r);
        else if (!gone && r->run.stage != STAGE_ENDED)
            engine_end(e, r, WEIR_FINISH_ABORT, WEIR_OK);
        r = next;
    }
}

static void collect_one(weir_engine *e) {
    struct step_outcome outcome;
    e->setup.executor->collect(e->setup.executor, &outcome);
    engine_apply(e, &e->step[e->collected++ % EXECUTOR_DEPTH], &outcome);
}

static void publish(weir_engine *e) {
    if (engine_publish(e) && e->setup.on_progress)
        e->setup.on_progress(e->setup.on_progress_arg);
}

/* Called by tiers on threads of their own. */
static void tier_notify(void *arg) {
    weir_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    e->tier_news = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* Does what callers of weir_reset_prefix_cache wait for; with the engine closing they are refused.
 */
static void serve_resets(weir_engine *e, struct reset_call *first, bool refuse) {
    if (!first)
        return;
    for (struct reset_call *c = first; c && !refuse; c = c->next) {
        uint64_t dropped[TIER_KINDS] = {0}, left[TIER_KINDS] = {0};
        struct cache_usage before = cache_get_usage(e->index);
        cache_evict_all(e->index, false);
        if (e->tiers)
            cache_tiers_reset(e->tiers, c->tiers, dropped, left);
        struct cache_usage after = cache_get_usage(e->index);
        c->result = (weir_cache_reset){
            .pages = before.pages_cached - after.pages_cached,
            .states = before.slots_cached - after.slots_cached,
            .pages_in_use = after.pages_used,
            .states_in_use = after.slots_used,
        };
        for (int k = 0; k < TIER_KINDS; k++) {
            c->result.records[k + 1] = dropped[k];
            c->result.records_left[k + 1] = left[k];
        }
    }
    pthread_mutex_lock(&e->lock);
    for (struct reset_call *c = first; c;) {
        struct reset_call *next =
            c->next; /* the call is its waiter's again as soon as it is done */
        c->refused = refuse;
        c->done = true;
        c = next;
    }
    pthread_cond_broadcast(&e->was_reset);
    pthread_mutex_unlock(&e->lock);
}

static void submit_steps(weir_engine *e) {
    uint32_t depth = e->setup.async ? EXECUTOR_DEPTH : 1;
    while (e->submitted - e->collected < depth) {
        struct step *step = &e->step[e->submitted % EXECUTOR_DEPTH];
        uint32_t in_flight = (uint32_t)(e->submitted - e->collected);
        scheduler_plan(&e->scheduler, in_flight, step);
        if (step->n_entries == 0) {
            /* Without a step in flight only moves between tiers can be what everybody waits for. */
            WEIR_ASSERT(in_flight > 0 || (e->tiers && cache_tiers_moving(e->tiers) > 0) ||
                        e->scheduler.n_running + e->scheduler.n_waiting + e->scheduler.n_parked ==
                            0);
            e->idle = in_flight == 0;
            return;
        }
        step_build(step, ++e->submitted);
        e->setup.executor->submit(e->setup.executor, &step->batch);
    }
}

static void end_everything(weir_engine *e) {
    while (e->submitted != e->collected)
        collect_one(e);
    while (e->scheduler.n_running)
        engine_end(e, e->scheduler.running[0], WEIR_FINISH_ABORT, WEIR_OK);
    while (e->scheduler.n_waiting)
        engine_end(e, e->scheduler.waiting[0], WEIR_FINISH_ABORT, WEIR_OK);
    while (e->scheduler.n_parked)
        engine_end(e, e->scheduler.parked[0], WEIR_FINISH_ABORT, WEIR_OK);
    if (e->tiers)
        cache_tiers_round(e->tiers); /* offers what the ended ones have left */
    publish(e);
    /* Whatever was cancelled meanwhile; all are gone now, so nobody adds to the list any more. */
    pthread_mutex_lock(&e->lock);
    struct weir_request *cancels = e->cancels;
    struct reset_call *resets = e->resets;
    e->cancels = NULL;
    e->resets = NULL;
    pthread_mutex_unlock(&e->lock);
    cancel_all(e, cancels);
    serve_resets(e, resets, true);
}

/* Sleeps until there is something to do; under the lock. With tiers it looks around once a second,
 * because their condition is part of what is published. */
static void wait_for_work(weir_engine *e) {
    double until = e->tiers ? cache_tiers_deadline(e->tiers) : 0;
    if (e->tiers && (until == 0 || until > clock_seconds() + 1))
        until = clock_seconds() + 1;
    struct timespec at = {.tv_sec = (time_t)until};
    at.tv_nsec = (long)((until - (double)at.tv_sec) * 1e9);
    while (!e->inbox && !e->cancels && !e->closing && !e->resets && !e->tier_news && e->idle)
        if (until == 0)
            pthread_cond_wait(&e->wake, &e->lock);
        else if (pthread_cond_timedwait(&e->wake, &e->lock, &at) != 0)
            return;
}

static void *engine_main(void *arg) {
    weir_engine *e = arg;
    for (;;) {
        struct weir_request *cancels;
        pthread_mutex_lock(&e->lock);
        wait_for_work(e);
        struct reset_call *resets = e->resets;
        e->resets = NULL;
        e->tier_news = e->idle = false;
        struct weir_request *r = take_inbox(e, &cancels);
        bool closing = e->closing;
        pthread_mutex_unlock(&e->lock);

        while (r) {
            struct weir_request *next = r->pub.inbox_next;
            scheduler_add(&e->scheduler, r);
            r = next;
        }
        cancel_all(e, cancels);
        serve_resets(e, resets, closing);
        if (e->tiers)
            cache_tiers_round(e->tiers);
        if (closing) {
            end_everything(e);
            return NULL;
        }
        submit_steps(e);
        publish(e);
        if (e->submitted != e->collected) {
            collect_one(e);
            publish(e);
        }
    }
}

/* ------------------------------------------------------------------------------- opening, closing
 */

static void free_engine(weir_engine *e) {
    e->setup.executor->close(e->setup.executor);
    cache_tiers_close(e->tiers);
    if (e->setup.close)
        e->setup.close(e->setup.close_arg);
    for (int i = 0; i < EXECUTOR_DEPTH; i++)
        step_close(&e->step[i]);
    scheduler_close(&e->scheduler);
    cache_index_close(e->index);
    if (e->has_locks) { /* the tiers' threads took them until just now */
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->wake);
        pthread_cond_destroy(&e->was_reset);
    }
    free(e);
}

static void open_locks(weir_engine *e) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, &monotonic);
    pthread_cond_init(&e->was_reset, NULL);
    pthread_condattr_destroy(&monotonic);
    e->has_locks = true;
}

static weir_status open_tiers(weir_engine *e, weir_error *err) {
    struct tier *tier[TIER_KINDS];
    uint32_t n = 0;
    if (!e->setup.open_tiers)
        return WEIR_OK;
    weir_status st = e->setup.open_tiers(e->setup.close_arg, tier_notify, e, tier, &n, err);
    if (st || n == 0)
        return st;
    e->scheduler.tiers = e->tiers = cache_tiers_open(e->index, tier, n);
    return e->tiers ? WEIR_OK
                    : weir_fail(err, WEIR_NO_MEMORY, "engine", "no memory for its cache tiers");
}

weir_status engine_open(const struct engine_setup *setup, weir_engine **out, weir_error *err) {
    const struct scheduler_limits *l = &setup->schedule;
    *out = NULL;
    weir_engine *e = calloc(1, sizeof *e);
    if (!e) {
        setup->executor->close(setup->executor);
        if (setup->close)
            setup->close(setup->close_arg);
        return weir_fail(err, WEIR_NO_MEMORY, "engine", "no memory");
    }
    e->setup = *setup;
    e->self = e;
    e->setup.cache.pages = setup->info.kv_pages;
    e->setup.cache.slots = setup->info.state_slots;
    e->setup.cache.space.step_rows = e->setup.request.space.step_rows = l->max_rows;
    e->setup.request.space.model = e->setup.cache.space.model;
    e->index = cache_index_open(&e->setup.cache);
    bool ok = e->index && scheduler_open(&e->scheduler, l, e->index, NULL);
    for (int i = 0; i < EXECUTOR_DEPTH; i++)
        ok = step_open(&e->step[i], l->max_seqs, l->max_rows, scheduler_max_logits(l)) && ok;
    if (!ok) {
        free_engine(e);
        return weir_fail(err, WEIR_NO_MEMORY, "max_num_seqs",
                         "no memory to schedule %" PRIu32 " sequences and a queue of %" PRIu32,
                         l->max_seqs, l->max_waiting);
    }
    e->inbox_tail = &e->inbox;
    e->stats.pages_total = setup->info.kv_pages;
    e->stats.slots_total = setup->info.state_slots;
    open_locks(e);
    weir_status st = open_tiers(e, err);
    if (!st && pthread_create(&e->thread, NULL, engine_main, e) != 0)
        st = weir_fail(err, WEIR_NO_MEMORY, "engine", "cannot start its thread");
    if (st) {
        free_engine(e);
        return st;
    }
    *out = e;
    return WEIR_OK;
}

void weir_close(weir_engine *e) {
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    free_engine(e);
}
