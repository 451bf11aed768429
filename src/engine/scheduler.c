/* scheduler.c: continuous batching under one token budget.
 *
 * A step is filled in two passes: running requests in order, each with what it still has to compute
 * (one token when decoding, a chunk of its prompt otherwise), then waiting ones while budget, seats
 * and memory last. There are no prefill and decode phases.
 *
 * Chunks end on multiples of PAGE_TOKENS unless they reach the end: states are kept at those
 * positions only, and a chunk that starts inside a block costs a partial block twice. A chunk
 * too short to reach the next border is taken as it is, so that a small budget still advances.
 *
 * Invariant that bites: a request may be preempted only while no step in flight names it, because
 * its pages go to others at once. So whoever would have to preempt asks for rest first
 * (wants_rest), and the engine collects everything before it plans again. */
#include "engine/scheduler.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/cache_log.h"

#include <stdlib.h>
#include <string.h>

bool scheduler_open(struct scheduler *s, const struct scheduler_limits *limits,
                    struct cache_index *index, struct cache_tiers *tiers) {
    size_t unfinished = (size_t)limits->max_waiting + limits->max_seqs;
    *s = (struct scheduler){.limits = *limits, .index = index, .tiers = tiers};
    s->running = calloc(limits->max_seqs, sizeof(struct weir_request *));
    s->waiting = calloc(unfinished, sizeof(struct weir_request *));
    s->parked = calloc(unfinished, sizeof(struct weir_request *));
    return s->running && s->waiting && s->parked;
}

void scheduler_close(struct scheduler *s) {
    free(s->running);
    free(s->waiting);
    free(s->parked);
}

/* ------------------------------------------------------------------------------ the waiting heap
 */

static void heap_put(struct scheduler *s, uint32_t at, struct weir_request *r) {
    s->waiting[at] = r;
    r->run.list_at = at;
}

static void heap_up(struct scheduler *s, uint32_t at) {
    struct weir_request *r = s->waiting[at];
    for (; at > 0 && request_before(r, s->waiting[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(s, at, s->waiting[(at - 1) / 2]);
    heap_put(s, at, r);
}

static void heap_down(struct scheduler *s, uint32_t at) {
    struct weir_request *r = s->waiting[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->n_waiting)
            break;
        if (child + 1 < s->n_waiting && request_before(s->waiting[child + 1], s->waiting[child]))
            child++;
        if (!request_before(s->waiting[child], r))
            break;
        heap_put(s, at, s->waiting[child]);
        at = child;
    }
    heap_put(s, at, r);
}

void scheduler_add(struct scheduler *s, struct weir_request *r) {
    WEIR_ASSERT(s->n_waiting < s->limits.max_waiting + s->limits.max_seqs);
    r->run.stage = STAGE_WAITING;
    heap_put(s, s->n_waiting++, r);
    heap_up(s, s->n_waiting - 1);
}

static void heap_remove(struct scheduler *s, uint32_t at) {
    struct weir_request *last = s->waiting[--s->n_waiting];
    if (at == s->n_waiting)
        return;
    heap_put(s, at, last);
    heap_up(s, at);
    heap_down(s, last->run.list_at);
}

/* ------------------------------------------------------------------------------------ the parked
 */

static void park(struct scheduler *s, struct weir_request *r) {
    heap_remove(s, r->run.list_at);
    r->run.stage = STAGE_PARKED;
    r->run.list_at = s->n_parked;
    s->parked[s->n_parked++] = r;
}

static void parked_remove(struct scheduler *s, struct weir_request *r) {
    struct weir_request *last = s->parked[--s->n_parked];
    s->parked[r->run.list_at] = last;
    last->run.list_at = r->run.list_at;
    if (r->run.load)
        cache_load_end(s->tiers, r->run.load);
    r->run.load = NULL;
}

/* Adds the answer of the tiers to the one before: what that brought is on the device now and not
 * asked for again. What went wrong the first time says why the second brought less, if it did. */
static void take_result(struct weir_request *r) {
    const struct cache_fetched before = r->run.fetched;
    struct cache_fetched *now = &r->run.fetched;
    cache_load_result(r->run.load, now);
    if (now->position == 0) {
        now->position = before.position;
        now->state_from = before.state_from;
        memcpy(now->tokens, before.tokens, sizeof now->tokens);
    } else if (now->beyond >= before.position) { /* else it was given up, and came anew */
        for (int k = 0; k < TIER_KINDS; k++)
            now->tokens[k] += before.tokens[k];
    }
    if (before.trouble == TIER_OK || (now->sure && now->best >= before.best))
        return;
    now->trouble = before.trouble;
    now->trouble_in = before.trouble_in;
    now->late = before.late;
    now->seconds += before.seconds;
}

/* Those whose wait is over wait for admission again, at their old place in order. */
static void unpark(struct scheduler *s) {
    for (uint32_t i = 0; i < s->n_parked;) {
        struct weir_request *r = s->parked[i];
        if (r->run.load ? !cache_load_done(r->run.load) : cache_waits(s->index, &r->run.lease)) {
            i++;
            continue;
        }
        if (r->run.load)
            take_result(r);
        parked_remove(s, r);
        scheduler_add(s, r);
    }
}

/* ------------------------------------------------------------------------------ the running list
 */

static void running_insert(struct scheduler *s, struct weir_request *r) {
    uint32_t at = s->n_running++;
    for (; at > 0 && request_before(r, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = r;
    r->run.stage = STAGE_RUNNING;
}

static void running_remove(struct scheduler *s, struct weir_request *r) {
    uint32_t at = 0;
    while (s->running[at] != r)
        at++;
    memmove(&s->running[at], &s->running[at + 1],
            (--s->n_running - at) * sizeof(struct weir_request *));
}

void scheduler_remove(struct scheduler *s, struct weir_request *r) {
    switch (r->run.stage) {
    case STAGE_RUNNING: running_remove(s, r); break;
    case STAGE_WAITING: heap_remove(s, r->run.list_at); break;
    case STAGE_PARKED: parked_remove(s, r); break;
    case STAGE_INBOX:
    case STAGE_ENDED: break;
    }
}

/* The last in order gives everything back and waits again; what it has drawn stays. */
static void preempt_last(struct scheduler *s) {
    struct weir_request *r = s->running[s->n_running - 1];
    WEIR_ASSERT(r->run.in_flight == 0);
    running_remove(s, r);
    cache_release(s->index, &r->run.lease);
    r->run.computed = 0;
    r->run.preemptions++;
    r->run.fetches = 0; /* the tiers may have by now what it has left itself */
    r->run.fetched = (struct cache_fetched){0};
    s->preemptions++;
    scheduler_add(s, r);
}

/* ------------------------------------------------------------------------------- sizing one chunk
 */

struct allowance {
    uint32_t rows, scores;
};

/* The next rows of a request under what is left of the step; 0: nothing to do or no room. */
static struct step_entry next_chunk(struct weir_request *r, struct allowance left) {
    struct step_entry e = {.request = r};
    uint32_t from = r->run.computed, want = request_known(r) - from;
    uint32_t rows = want < left.rows ? want : left.rows;
    if (step_scores(r, from, rows) > left.scores) {
        /* Rows up to the first that may be scored need no logits; each further one needs one. */
        uint32_t unscored = r->run.scored_to > from + 1 ? r->run.scored_to - 1 - from : 0;
        rows = unscored + left.scores;
    }
    if (rows < want) {
        uint32_t border = (from + rows) / PAGE_TOKENS * PAGE_TOKENS;
        if (border > from)
            rows = border - from;
    }
    e.rows = rows;
    e.n_scores = step_scores(r, from, rows);
    e.draws = rows > 0 && rows == want;
    return e;
}

/* Tokens the lease must cover for this entry: what a step yields beyond one token has its history
 * written by the same step. */
static uint32_t tokens_to_cover(const struct step_entry *e) {
    return e->request->run.computed + e->rows + (e->draws ? e->request->ask.max_step - 1 : 0);
}

static void take_entry(struct scheduler *s, struct step *step, struct allowance *left,
                       const struct step_entry *e) {
    struct weir_request *r = e->request;
    struct step_entry *to = &step->entries[step->n_entries++];
    *to = *e;
    to->checkpoints = step->checkpoints + step->n_checkpoints;
    to->n_checkpoints = cache_checkpoints(s->index, &r->run.lease, r->run.computed, e->rows,
                                          r->ask.n_prompt, step->checkpoints + step->n_checkpoints);
    step->n_checkpoints += to->n_checkpoints;
    left->rows -= e->rows;
    left->scores -= e->n_scores;
}

/* ------------------------------------------------------------------------------------- the passes
 */

/* Draws in flight may already be the last ones; and where a step may yield several tokens the
 * position after it is not known before it was collected. */
static bool may_advance(const struct weir_request *r) {
    if (r->run.n_output + r->run.drawing >= r->ask.max_new)
        return false;
    return r->ask.max_step == 1 || r->run.in_flight == 0;
}

/* Returns false when a request was preempted or one had to be left behind for want of memory: then
 * nobody may be admitted in this step. */
static bool plan_running(struct scheduler *s, uint32_t steps_in_flight, struct step *step,
                         struct allowance *left) {
    bool undisturbed = true;
    for (uint32_t i = 0; i < s->n_running && left->rows > 0; i++) {
        struct weir_request *r = s->running[i];
        if (!may_advance(r))
            continue;
        struct step_entry e = next_chunk(r, *left);
        if (e.rows == 0)
            continue;
        while (!cache_grow(s->index, &r->run.lease, tokens_to_cover(&e))) {
            undisturbed = false;
            if (steps_in_flight > 0) {
                s->wants_rest = true;
                return false;
            }
            /* Nobody behind r is part of this step yet, so the last one can go. */
            bool itself = s->running[s->n_running - 1] == r;
            preempt_last(s);
            /* One that runs alone lacks room only because others, gone since, published history
             * that it holds a second time. Admitted anew it shares that. */
            if (itself)
                return s->n_running == 0;
        }
        take_entry(s, step, left, &e);
    }
    return undisturbed;
}

/* Pages that running requests will need to get through the tokens they know of. */
static uint64_t promised_pages(const struct scheduler *s) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct weir_request *r = s->running[i];
        uint32_t need = cache_pages_for(request_known(r) + r->ask.max_step);
        pages += need > r->run.lease.n_pages ? need - r->run.lease.n_pages : 0;
    }
    return pages;
}

/* Is there room for all this request knows of, beside what the running ones were promised? Anything
 * less would be admitted only to be preempted. Alone it may always try. What its lease has matched
 * counts as had. */
static bool memory_allows(const struct scheduler *s, const struct weir_request *r) {
    if (s->n_running == 0)
        return true;
    uint64_t need = cache_pages_for(request_known(r) + r->ask.max_step) - r->run.lease.n_pages;
    return cache_slots_available(s->index) > 0 &&
           promised_pages(s) + need <= cache_pages_available(s->index);
}

/* ------------------------------------------------------------------------------------ admission
 */

/* How far a request may resume: rows that are still to be scored must be computed, whatever is
 * cached. */
static uint32_t resume_limit(const struct weir_request *r) {
    bool scores = r->ask.prompt_top >= 0 && r->run.scored_to < r->ask.n_prompt;
    return scores ? r->run.scored_to - 1 : request_known(r) - 1;
}

static void count_hit(struct scheduler *s, struct weir_request *r) {
    const struct cache_lease *lease = &r->run.lease;
    const struct cache_fetched *f = &r->run.fetched;
    s->queried_tokens += r->ask.n_prompt;
    s->cached_tokens += lease->resume;
    s->stateless_tokens += lease->matched - (lease->unfetched ? lease->unfetched : lease->resume);
    /* The state decides, as the rarer part: a prompt may resume from another one than was fetched.
     */
    if (f->state_from < TIER_KINDS && f->position == lease->resume)
        s->tier_tokens[f->state_from] += lease->resume;
}

static void log_hit(const struct scheduler *s, const struct weir_request *r) {
    char line[CACHE_LINE_BYTES];
    cache_line(s->index, r, resume_limit(r), line);
    log_line(LOG_INFO, "%s", line);
}

static void admit(struct scheduler *s, struct weir_request *r) {
    heap_remove(s, 0);
    running_insert(s, r);
    r->run.computed = r->run.lease.resume;
    if (s->tiers)
        cache_reach(s->tiers, &r->run.lease, request_known(r), resume_limit(r));
    cache_admit(s->index, &r->run.lease, r->tokens, request_known(r));
    if (s->tiers && r->run.lease.resume)
        cache_tiers_touch(s->tiers, &r->run.lease, r->run.lease.resume);
    if (r->run.admitted)
        return; /* a recomputation: counted the first time */
    r->run.admitted = true;
    r->run.scheduled = s->now;
    r->run.cached = r->run.lease.resume;
    if (!r->ask.repeats)
        count_hit(s, r);
    if (s->limits.log_cache)
        log_hit(s, r);
}

/* A request asks the tiers when it first comes up, and once more unless all that they have has come
 * and is still there. */
enum { MOST_FETCHES = 2 };

static bool may_fetch(const struct weir_request *r) {
    const struct cache_fetched *f = &r->run.fetched;
    return r->run.fetches < MOST_FETCHES && !(f->sure && r->run.lease.resume >= f->best);
}

/* Looks up what is cached. Returns false when the request was parked: somebody else is about to
 * bring more than is there. The tiers are asked when it can run at once, or `anyway`. */
static bool match(struct scheduler *s, struct weir_request *r, bool anyway) {
    struct cache_lease *lease = &r->run.lease;
    uint32_t known = request_known(r), most = resume_limit(r);
    if (cache_match(s->index, lease, r->tokens, known, most, true) == CACHE_WAIT) {
        park(s, r);
        return false;
    }
    if (!s->tiers || !may_fetch(r) || !(anyway || memory_allows(s, r)))
        return true;
    r->run.fetches++;
    r->run.load = cache_fetch(s->tiers, lease, known, most);
    if (!r->run.load)
        return true;
    cache_release(s->index, lease);
    park(s, r);
    return false;
}

/* Under WEIR_PRIORITY a more urgent request does not wait for less urgent ones to end. */
static void make_way(struct scheduler *s, uint32_t steps_in_flight) {
    while (s->n_waiting > 0 && s->n_running > 0) {
        struct weir_request *first = s->waiting[0];
        if (first->ask.priority >= s->running[s->n_running - 1]->ask.priority)
            return;
        if (s->n_running < s->limits.max_seqs && memory_allows(s, first))
            return;
        /* What the tiers have comes first: preempting for one that then waits for them is in vain.
         */
        if (s->tiers && first->run.fetches < MOST_FETCHES) {
            if (!match(s, first, true))
                continue;
            cache_release(s->index, &first->run.lease);
        }
        if (steps_in_flight > 0) {
            s->wants_rest = true;
            return;
        }
        preempt_last(s);
    }
}

static void plan_waiting(struct scheduler *s, struct step *step, struct allowance *left) {
    while (s->n_waiting > 0 && s->n_running < s->limits.max_seqs && left->rows > 0) {
        struct weir_request *r = s->waiting[0];
        if (!match(s, r, false))
            continue;
        r->run.computed = r->run.lease.resume;
        struct step_entry e = next_chunk(r, *left);
        if (e.rows == 0 || !memory_allows(s, r) ||
            !cache_grow(s->index, &r->run.lease, tokens_to_cover(&e))) {
            cache_release(s->index, &r->run.lease);
            return; /* nobody overtakes: small ones would keep a large one out for ever */
        }
        admit(s, r);
        take_entry(s, step, left, &e);
    }
}

void scheduler_plan(struct scheduler *s, uint32_t steps_in_flight, struct step *step) {
    step->n_entries = step->n_checkpoints = 0;
    if (s->wants_rest && steps_in_flight > 0)
        return;
    s->wants_rest = false;
    s->now = clock_seconds();
    unpark(s);
    struct allowance left = {s->limits.max_rows, SCORES_A_STEP};
    if (s->limits.policy == WEIR_PRIORITY)
        make_way(s, steps_in_flight);
    if (plan_running(s, steps_in_flight, step, &left) && !s->wants_rest)
        plan_waiting(s, step, &left);
}
