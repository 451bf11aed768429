/* outcome.c: takes a collected step apart: which tokens count, which requests end and why, what is
 * given back. Called by the engine thread behind every collect.
 *
 * Invariants that bite: with a second step in flight, the row of a request that has just ended is
 * computed in vain: its draw is dropped, and pages and slot are given back only when that step has
 * been collected too. And every request ends exactly once, through engine_end. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>

static void touch(weir_engine *e, struct weir_request *r) {
    if (r->run.touched)
        return;
    r->run.touched = true;
    r->run.touched_next = e->touched;
    e->touched = r;
}

static void give_back(weir_engine *e, struct weir_request *r) {
    cache_release(e->index, &r->run.lease);
    touch(e, r);
}

void engine_end(weir_engine *e, struct weir_request *r, weir_finish finish, weir_status error) {
    WEIR_ASSERT(r->run.stage != STAGE_ENDED);
    scheduler_remove(&e->scheduler, r);
    r->run.stage = STAGE_ENDED;
    r->run.finish = finish;
    r->run.error = error;
    e->totals.finished[finish]++;
    touch(e, r);
    if (finish == WEIR_FINISH_ERROR)
        cache_spoil(&r->run.lease);
    if (r->run.in_flight == 0)
        give_back(e, r);
}

/* One more token of the answer. Returns false when it was the last. */
static bool accept(weir_engine *e, struct weir_request *r, const struct sample_result *drawn,
                   double now) {
    struct request_run *run = &r->run;
    if (drawn->status != WEIR_OK) {
        e->totals.nan_guards += drawn->not_finite;
        engine_end(e, r, WEIR_FINISH_ERROR, drawn->status);
        return false;
    }
    request_keep(r, run->n_output, &drawn->token);
    run->n_output++;
    e->totals.generated_tokens++;
    if (run->n_output == 1) {
        run->first_token = now;
        e->totals.prompt_tokens += r->ask.repeats ? 0 : r->ask.n_prompt;
    }
    run->last_token = now;
    touch(e, r);
    if (run->n_output > r->ask.min_tokens && request_ends_at(r, drawn->token.id)) {
        run->stop_id = drawn->token.id;
        engine_end(e, r, WEIR_FINISH_STOP, WEIR_OK);
    } else if (run->n_output == r->ask.max_new) {
        engine_end(e, r, WEIR_FINISH_LENGTH, WEIR_OK);
    } else if (r->sample.script.n && run->n_output == r->sample.script.n) {
        engine_end(e, r, WEIR_FINISH_STOP, WEIR_OK); /* the script has no more to say */
    } else {
        return true;
    }
    return false;
}

static void apply_draw(weir_engine *e, struct weir_request *r, const struct step_result *result,
                       double now) {
    r->run.drawing--;
    if (r->run.stage == STAGE_ENDED)
        return;
    for (uint32_t i = 0; i < result->n_tokens; i++) {
        if (!accept(e, r, &result->tokens[i], now))
            return;
        if (i > 0)
            r->run.computed++; /* a step that yields several tokens wrote the history of all but
                                  the last */
    }
}

static void apply_score(weir_engine *e, struct weir_request *r, uint32_t target,
                        const struct step_result *result) {
    if (r->run.stage == STAGE_ENDED)
        return;
    if (result->tokens[0].status != WEIR_OK) {
        e->totals.nan_guards += result->tokens[0].not_finite;
        engine_end(e, r, WEIR_FINISH_ERROR, result->tokens[0].status);
        return;
    }
    const weir_token *from = &result->tokens[0].token;
    weir_token *to = &r->prompt_scores[target - 1];
    to->id = from->id;
    to->logprob = from->logprob;
    to->rank = from->rank;
    to->n_top = from->n_top;
    for (uint32_t i = 0; i < from->n_top; i++)
        to->top[i] = from->top[i];
}

/* Nothing of the step counts: whoever is in it ends, also where no token was to be drawn, because
 * the history it wrote is worth nothing either. */
static void fail_step(weir_engine *e, const struct step *step, const weir_error *why) {
    log_line(LOG_ERROR, "a step failed, its requests end: %s: %s", why->where, why->message);
    e->totals.failed_steps++;
    pthread_mutex_lock(&e->lock);
    e->failure = *why;
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < step->batch.n_logits; i++)
        step->owners[i].request->run.drawing -= step->owners[i].target == 0;
    for (uint32_t i = 0; i < step->n_entries; i++) {
        struct weir_request *r = step->entries[i].request;
        cache_spoil(&r->run.lease);
        if (r->run.stage != STAGE_ENDED)
            engine_end(e, r, WEIR_FINISH_ERROR, why->code);
    }
}

void engine_apply(weir_engine *e, const struct step *step, const struct step_outcome *outcome) {
    double now = clock_seconds();
    WEIR_ASSERT(outcome->n_results == step->batch.n_logits);
    for (uint32_t i = 0; i < step->n_entries; i++) {
        struct weir_request *r = step->entries[i].request;
        r->run.in_flight--;
        if (outcome->failure)
            continue;
        /* One that ended meanwhile leaves what the step computed, as far as its tokens are known:
         * a client that gave up on a long prompt will be back. */
        bool known = r->run.finish != WEIR_FINISH_ERROR &&
                     step->entries[i].end <= r->ask.n_prompt + r->run.n_output;
        if (r->run.stage == STAGE_RUNNING || known)
            cache_computed(e->index, &r->run.lease, r->tokens, step->entries[i].end);
        else
            cache_spoil(&r->run.lease);
    }
    if (outcome->failure)
        fail_step(e, step, outcome->failure);
    for (uint32_t i = 0; i < outcome->n_results && !outcome->failure; i++) {
        const struct logits_owner *o = &step->owners[i];
        if (o->target)
            apply_score(e, o->request, o->target, &outcome->results[i]);
        else
            apply_draw(e, o->request, &outcome->results[i], now);
    }
    /* Who had ended before this step came back: nothing names it any more. */
    for (uint32_t i = 0; i < step->n_entries; i++) {
        struct weir_request *r = step->entries[i].request;
        if (r->run.stage == STAGE_ENDED && r->run.in_flight == 0 && r->run.lease.slot >= 0)
            give_back(e, r);
    }
    e->totals.steps++;
    e->totals.step_rows += step->n_rows;
    e->totals.busy_seconds += outcome->seconds;
    e->totals.last_step = now;
}

/* Returns whether the caller has something new to read. */
static bool publish_one(weir_engine *e, struct weir_request *r) {
    const struct request_run *run = &r->run;
    weir_progress *p = &r->pub.progress;
    bool news = p->generated_tokens != run->n_output || p->finish != run->finish;
    if (p->finish != run->finish)
        e->unfinished--;
    p->generated_tokens = run->n_output;
    p->cached_tokens = run->cached;
    p->preemptions = run->preemptions;
    p->scheduled = run->scheduled;
    p->first_token = run->first_token;
    p->last_token = run->last_token;
    p->finish = run->finish;
    p->error = run->error;
    p->stop_id = run->stop_id;
    r->pub.gone = run->stage == STAGE_ENDED && run->in_flight == 0;
    if (r->pub.released)
        return false;
    if (news)
        engine_make_ready(e, r);
    return news;
}

bool engine_publish(weir_engine *e) {
    struct weir_request *touched = e->touched, *dead = NULL;
    e->touched = NULL;
    weir_stats *t = &e->totals;
    engine_count(e);

    pthread_mutex_lock(&e->lock);
    bool news = false;
    t->waiting = (uint64_t)e->n_inbox + e->scheduler.n_waiting + e->scheduler.n_parked;
    e->stats = *t;
    while (touched) {
        struct weir_request *r = touched;
        touched = r->run.touched_next;
        r->run.touched = false;
        news |= publish_one(e, r);
        if (r->pub.gone && r->pub.released && !r->pub.in_cancels) {
            r->run.touched_next = dead;
            dead = r;
        }
    }
    pthread_mutex_unlock(&e->lock);
    while (dead) {
        struct weir_request *r = dead;
        dead = r->run.touched_next;
        request_free(r);
    }
    return news;
}
