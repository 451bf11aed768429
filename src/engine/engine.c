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

static void submit_steps(weir_engine *e) {
    uint32_t depth = e->setup.async ? EXECUTOR_DEPTH : 1;
    while (e->submitted - e->collected < depth) {
        struct step *step = &e->step[e->submitted % EXECUTOR_DEPTH];
        uint32_t in_flight = (uint32_t)(e->submitted - e->collected);
        scheduler_plan(&e->scheduler, in_flight, step);
        if (step->n_entries == 0) {
            WEIR_ASSERT(in_flight > 0 || e->scheduler.n_running + e->scheduler.n_waiting == 0);
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
    publish(e);
    /* Whatever was cancelled meanwhile; all are gone now, so nobody adds to the list any more. */
    pthread_mutex_lock(&e->lock);
    struct weir_request *cancels = e->cancels;
    e->cancels = NULL;
    pthread_mutex_unlock(&e->lock);
    cancel_all(e, cancels);
}

static void *engine_main(void *arg) {
    weir_engine *e = arg;
    for (;;) {
        struct weir_request *cancels;
        pthread_mutex_lock(&e->lock);
        while (!e->inbox && !e->cancels && !e->closing && e->submitted == e->collected &&
               e->scheduler.n_running + e->scheduler.n_waiting == 0)
            pthread_cond_wait(&e->wake, &e->lock);
        struct weir_request *r = take_inbox(e, &cancels);
        bool closing = e->closing;
        pthread_mutex_unlock(&e->lock);

        while (r) {
            struct weir_request *next = r->pub.inbox_next;
            scheduler_add(&e->scheduler, r);
            r = next;
        }
        cancel_all(e, cancels);
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
    if (e->setup.close)
        e->setup.close(e->setup.close_arg);
    for (int i = 0; i < EXECUTOR_DEPTH; i++)
        step_close(&e->step[i]);
    scheduler_close(&e->scheduler);
    cache_index_close(e->index);
    free(e);
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
    e->index = cache_index_open(setup->info.kv_pages, setup->info.state_slots);
    bool ok = e->index && scheduler_open(&e->scheduler, l, e->index);
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
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->wake);
        free_engine(e);
        return weir_fail(err, WEIR_NO_MEMORY, "engine", "cannot start its thread");
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
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    free_engine(e);
}
