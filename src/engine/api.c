/* api.c: the calls of weir.h on a running engine. Any thread; what is shared and how it is locked
 * stands in engine.c. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/plural.h"

/* ------------------------------------------------------------------------------------ ready list
 */

void engine_make_ready(weir_engine *e, struct weir_request *r) {
    if (r->pub.in_ready || r->pub.shown)
        return;
    r->pub.in_ready = true;
    r->pub.ready_next = NULL;
    r->pub.ready_previous = e->ready_last;
    if (e->ready_last)
        e->ready_last->pub.ready_next = r;
    else
        e->ready_first = r;
    e->ready_last = r;
}

static void leave_ready(weir_engine *e, struct weir_request *r) {
    struct request_public *p = &r->pub;
    if (!p->in_ready)
        return;
    *(p->ready_previous ? &p->ready_previous->pub.ready_next : &e->ready_first) = p->ready_next;
    *(p->ready_next ? &p->ready_next->pub.ready_previous : &e->ready_last) = p->ready_previous;
    p->in_ready = false;
}

size_t weir_ready(weir_engine *e, weir_request **out, size_t cap) {
    size_t n = 0;
    pthread_mutex_lock(&e->lock);
    while (n < cap && e->ready_first) {
        struct weir_request *r = e->ready_first;
        leave_ready(e, r);
        r->pub.shown = true;
        out[n++] = r;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

/* -------------------------------------------------------------------------------------- requests
 */

weir_status weir_submit(weir_engine *e, const int32_t *ids, size_t n, const weir_params *p,
                        void *user, weir_request **out, weir_error *err) {
    struct weir_request *r;
    *out = NULL;
    weir_status s = request_create(&e->setup.request, ids, n, p, &r, err);
    if (s)
        return s;
    uint64_t longest = (uint64_t)r->ask.n_prompt + r->ask.max_new + r->ask.max_step - 1;
    uint64_t held = (uint64_t)e->setup.info.kv_pages * PAGE_TOKENS;
    if (longest > held) {
        s = weir_fail(err, WEIR_TOO_LONG, p->max_tokens ? "max_tokens" : "prompt",
                      "%zu %s of prompt and %" PRIu32 " of answer can never fit the %" PRIu64
                      " tokens of the cache",
                      n, plural(n, "token", "tokens"), r->ask.max_new, held);
        request_free(r);
        return s;
    }
    r->engine = e;
    r->user = user;
    r->pub.progress.arrived = clock_seconds();
    if (e->setup.schedule.policy != WEIR_PRIORITY)
        r->ask.priority = 0;

    const struct scheduler_limits *l = &e->setup.schedule;
    pthread_mutex_lock(&e->lock);
    if (e->draining || e->closing) {
        s = weir_fail(err, WEIR_CLOSED, "engine", "takes no new requests");
    } else if (e->stats.waiting >= l->max_waiting ||
               e->unfinished >= (uint64_t)l->max_waiting + l->max_seqs) {
        s = weir_fail(err, WEIR_BUSY, "queue", "holds %" PRIu64 " of at most %" PRIu32 " %s",
                      e->stats.waiting, l->max_waiting,
                      plural(l->max_waiting, "request", "requests"));
    } else {
        r->ask.arrival = e->arrivals++;
        *e->inbox_tail = r;
        e->inbox_tail = &r->pub.inbox_next;
        e->n_inbox++;
        e->unfinished++;
        e->stats.waiting++;
        *out = r;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (s)
        request_free(r);
    return s;
}

size_t weir_poll(weir_request *r, weir_token *out, size_t cap, weir_progress *progress) {
    weir_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    struct request_public *p = &r->pub;
    uint32_t first = p->n_taken, there = p->progress.generated_tokens;
    size_t n = there - first < cap ? there - first : cap;
    p->n_taken = first + (uint32_t)n;
    p->shown = false;
    leave_ready(e, r);
    if (progress) {
        *progress = p->progress;
        progress->generated_tokens = p->n_taken;
        if (p->n_taken < there)
            progress->finish = WEIR_RUNNING;
    }
    if (p->n_taken < there)
        engine_make_ready(e, r);
    pthread_mutex_unlock(&e->lock);
    /* Tokens below what was published do not change any more. */
    for (size_t i = 0; i < n; i++)
        request_read(r, first + (uint32_t)i, &out[i]);
    return n;
}

size_t weir_prompt_logprobs(weir_request *r, const weir_token **out) {
    weir_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    bool there = r->ask.prompt_top >= 0 && r->pub.progress.generated_tokens > 0;
    pthread_mutex_unlock(&e->lock);
    *out = there ? r->prompt_scores : NULL;
    return there ? r->ask.n_prompt - 1 : 0;
}

weir_status weir_failure(const weir_request *r, weir_error *out) {
    weir_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    weir_status status = r->pub.progress.error;
    if (status == WEIR_BAD_FILE)
        *out = e->failure;
    pthread_mutex_unlock(&e->lock);
    return status == WEIR_BAD_FILE ? status : WEIR_OK;
}

void *weir_user(const weir_request *r) {
    return r->user;
}

/* Under the lock. */
static void ask_cancel(weir_engine *e, struct weir_request *r) {
    r->pub.cancelled = true;
    if (r->pub.gone || r->pub.in_cancels)
        return;
    r->pub.in_cancels = true;
    r->pub.cancel_next = e->cancels;
    e->cancels = r;
    pthread_cond_signal(&e->wake);
}

void weir_cancel(weir_request *r) {
    weir_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    if (!r->pub.cancelled)
        ask_cancel(e, r);
    pthread_mutex_unlock(&e->lock);
}

void weir_release(weir_request *r) {
    if (!r)
        return;
    weir_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    leave_ready(e, r);
    r->pub.released = true;
    bool mine = r->pub.gone && !r->pub.in_cancels;
    if (!mine)
        ask_cancel(e, r);
    pthread_mutex_unlock(&e->lock);
    if (mine)
        request_free(r);
}

/* ---------------------------------------------------------------------------------------- engine
 */

double weir_now(void) {
    return clock_seconds();
}

void weir_get_info(const weir_engine *e, weir_info *out) {
    *out = e->setup.info;
}

void weir_get_stats(const weir_engine *e, weir_stats *out) {
    pthread_mutex_lock(&e->self->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->self->lock);
}

weir_status weir_reset_prefix_cache(weir_engine *e, bool tiers, weir_cache_reset *out) {
    struct reset_call call = {.tiers = tiers};
    pthread_mutex_lock(&e->lock);
    if (e->closing) {
        pthread_mutex_unlock(&e->lock);
        return WEIR_CLOSED;
    }
    call.next = e->resets;
    e->resets = &call;
    pthread_cond_signal(&e->wake);
    while (!call.done)
        pthread_cond_wait(&e->was_reset, &e->lock);
    pthread_mutex_unlock(&e->lock);
    *out = call.result;
    return call.refused ? WEIR_CLOSED : WEIR_OK;
}

void weir_drain(weir_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    pthread_mutex_unlock(&e->lock);
}
