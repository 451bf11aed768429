/* scheduler.h: decides which requests run, and how many tokens of each go into the next step. Owned
 * and called by the engine thread alone; knows ids and counts, never bytes or text.
 *
 * Order: by arrival, under WEIR_PRIORITY by priority first. Running requests come before waiting
 * ones. The request that is first in order always advances: where memory lacks, the last running
 * one is preempted (gives back everything, keeps its output, and is recomputed later), so neither
 * deadlock nor, under FCFS, starvation is possible. */
#ifndef WEIR_ENGINE_SCHEDULER_H
#define WEIR_ENGINE_SCHEDULER_H

#include "cache/tiers.h"
#include "engine/batch.h"

struct scheduler_limits {
    uint32_t max_seqs, max_rows; /* running at once; token budget of a step */
    uint32_t max_waiting;
    enum weir_policy policy;
    bool log_cache; /* one line for each admitted request: what the cache gave, and why not more */
};

/* Prompt positions scored in one step, all requests together: bounds the logits rows. */
enum { SCORES_A_STEP = PAGE_TOKENS };
static inline uint32_t scheduler_max_logits(const struct scheduler_limits *l) {
    return l->max_seqs + SCORES_A_STEP;
}

struct scheduler {
    struct scheduler_limits limits;
    struct cache_index *index;
    struct cache_tiers *tiers;     /* NULL: none */
    struct weir_request **running; /* in order */
    struct weir_request **waiting; /* binary heap, the first in order on top */
    struct weir_request **parked;  /* in no order: each waits for something of its own */
    uint32_t n_running, n_waiting, n_parked;
    bool wants_rest; /* memory may have to be taken from a request: plan again with no step in
                        flight */
    uint64_t preemptions, queried_tokens, cached_tokens;
    uint64_t tier_tokens[TIER_KINDS]; /* of cached_tokens: the state came from there */
    uint64_t stateless_tokens;        /* history matched, but no state: computed again */
    double now;                       /* of the step being planned */
};

bool scheduler_open(struct scheduler *s, const struct scheduler_limits *limits,
                    struct cache_index *index, struct cache_tiers *tiers);
void scheduler_close(struct scheduler *s);
/* A new request joins the waiting ones. */
void scheduler_add(struct scheduler *s, struct weir_request *r);
/* Takes a request out of running, waiting or parked; its lease stays its own. */
void scheduler_remove(struct scheduler *s, struct weir_request *r);
/* Fills step->entries; 0 entries: nothing can run before a step in flight has been collected, or
 * nothing is there. steps_in_flight: uncollected steps. */
void scheduler_plan(struct scheduler *s, uint32_t steps_in_flight, struct step *step);

#endif
