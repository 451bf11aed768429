/* index.h: which pages and state slots exist, who holds them, what prefixes they hold, and where a
 * prompt may resume. Ids only: the bytes are the store's. Every rank runs the same index and so
 * takes the same decisions. One thread calls it.
 *
 * A prompt resumes at p only where the history of [0, p) and a state of exactly p are there; p is a
 * multiple of 64, at most one less than the tokens known. Both are found by the key of the prefix
 * (key.h) and never by position.
 *
 * A lease is what one running sequence holds: its pages in order, its live state slot and the state
 * it starts from. Allocation is all or nothing over both pools, so that two half-served sequences
 * can never wait for each other. Pages that hold a whole block are shared as soon as the step that
 * wrote them was collected; they are complete, so nobody ever writes to a shared page. */
#ifndef WEIR_CACHE_INDEX_H
#define WEIR_CACHE_INDEX_H

#include "cache/key.h"
#include "cache/policy.h"

struct cache_index;
struct cache_node;

/* What all leases of an engine have in common. */
struct cache_space {
    struct cache_key model; /* fingerprint of all that history and states depend on */
    uint32_t step_rows;     /* most rows of a step */
};

struct cache_setup {
    uint32_t pages, slots; /* slots: live states and checkpoints together */
    bool enabled;          /* false: nothing is matched and nothing kept */
    struct checkpoint_policy policy;
    struct cache_space space;
    size_t page_bytes, slot_bytes; /* of one unit, for estimates of time */
};

/* A state that a step in flight was asked for. */
struct cache_mark {
    uint32_t position;
    int32_t slot;
    enum checkpoint_reason reason;
    bool promised; /* others were told */
};

struct cache_lease {
    int32_t *pages; /* [capacity], n_pages in use */
    uint32_t n_pages, capacity;
    int32_t slot; /* live state, -1 before the first grow */
    int32_t from; /* state to start from: -1 = zero state; equals slot once the sequence has run */
    uint32_t resume;  /* tokens that need no computation: a multiple of PAGE_TOKENS, < known tokens
                       */
    uint32_t kept;    /* history of tokens below is shared: a step reads it and does not write it */
    uint32_t matched; /* tokens whose history is known, resume <= matched: here, and once
                         cache_reach was asked also in the tiers */
    uint32_t unfetched; /* 0, or tokens beyond resume up to which history and state were in the
                           tiers, and have not come from there */

    /* The index's own. */
    struct cache_key root, *keys; /* [capacity], n_keys known */
    struct cache_node **nodes;    /* [capacity], n_held; the first n_published are pinned */
    uint32_t n_keys, n_held, n_published, n_given;
    struct cache_mark *marks; /* [mark_capacity], a queue of n_marks */
    uint32_t n_marks, mark_capacity;
    struct cache_node *from_node; /* pinned until the first step was collected */
    struct cache_node *turn_node; /* the last state of the answer, replaced by the next */
    struct cache_node *cut_node;  /* the state it started from, left by a try that was cut short */
    struct cache_node *wait_node; /* a promise this one waits for */
    uint32_t junction;            /* a state is wanted here, 0: nowhere */
    uint32_t n_prompt, computed;  /* where the prompt ends; tokens of collected steps */
};

struct cache_usage {
    uint32_t pages_used, pages_total, slots_used, slots_total; /* used: held by leases and moves */
    uint32_t pages_cached, slots_cached; /* idle content, given up when room is needed */
};

static inline uint32_t cache_pages_for(uint32_t tokens) {
    return tokens / PAGE_TOKENS + (tokens % PAGE_TOKENS != 0);
}

/* NULL without memory. */
struct cache_index *cache_index_open(const struct cache_setup *setup);
void cache_index_close(struct cache_index *x);

/* Room for a sequence of up to `max_tokens` tokens, allocated once; may run on any thread. `salt`
 * separates tenants (NULL: common). */
weir_status cache_lease_open(struct cache_lease *lease, const struct cache_space *space,
                             uint32_t max_tokens, const char *salt);
void cache_lease_close(struct cache_lease *lease); /* frees the tables; the lease must be empty */

enum cache_answer {
    CACHE_GO,  /* matched and pinned, perhaps nothing */
    CACHE_WAIT /* a running sequence is about to leave what this one needs: no page or slot is held.
                  Worth asking again when cache_waits says no */
};
/* Looks up how much of the n known tokens `ids` is cached and pins it: sets resume, kept, matched,
 * from and the first pages. Resumes at `most` at the furthest (and below n). Nothing is allocated
 * from the pools. may_wait false: always CACHE_GO. */
enum cache_answer cache_match(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                              uint32_t n, uint32_t most, bool may_wait);
/* Is what the lease waits for still on its way? Once it is not, cache_match may be asked again. */
bool cache_waits(struct cache_index *x, struct cache_lease *lease);
/* The matched sequence runs from now on: its n known tokens are promised to others. */
void cache_admit(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n);
/* Makes the lease cover `tokens` tokens and own a slot, evicting idle content. Returns false, with
 * nothing changed, when the pools cannot. */
bool cache_grow(struct cache_index *x, struct cache_lease *lease, uint32_t tokens);
/* Which states the step of rows [from, from + rows) shall leave, in slots set aside here,
 * ascending; at most rows / 64 + 1. Called once for each step, in order. `n_prompt`: where the
 * answer begins.
 */
uint32_t cache_checkpoints(struct cache_index *x, struct cache_lease *lease, uint32_t from,
                           uint32_t rows, uint32_t n_prompt, struct batch_checkpoint *out);
/* The step that computed tokens up to `tokens` has been collected: whole blocks and the states it
 * was asked for are offered to others. */
void cache_computed(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                    uint32_t tokens);
/* A step has run that cache_computed is not told of, or went wrong: nobody may go on from the
 * lease's live state. */
void cache_spoil(struct cache_lease *lease);
/* Gives everything back, tail pages first. What was published stays as idle content, and so does
 * the live state of a prompt that has not come to its end. No step in flight may name the lease. */
void cache_release(struct cache_index *x, struct cache_lease *lease);

struct cache_usage cache_get_usage(const struct cache_index *x);
/* Pages and slots that could be had now, by evicting all that is idle. */
uint32_t cache_pages_available(const struct cache_index *x);
uint32_t cache_slots_available(const struct cache_index *x);

struct cache_counts {
    uint64_t stored[CHECKPOINT_REASONS], resumed[CHECKPOINT_REASONS]; /* states, by reason */
    uint64_t unplaced; /* states that found no slot */
    uint64_t pages_evicted, states_evicted, cheap_states_evicted;
    uint64_t waits;          /* requests that waited for a running one to leave a state */
    uint64_t tag_mismatches; /* states refused because their slot held something else: a fault */
};
struct cache_counts cache_get_counts(const struct cache_index *x);

/* Gives up all idle content (states_only: of states). */
void cache_evict_all(struct cache_index *x, bool states_only);

#endif
