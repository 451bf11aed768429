/* index.h: which pages and state slots exist, who holds them, and where a prompt may resume. Ids
 * only: the bytes are the store's. Every rank runs the same index and so takes the same decisions.
 *
 * A lease is what one running sequence holds: its pages in order, its live state slot and the state
 * it starts from. Allocation is all or nothing over both pools, so that two half-served sequences
 * can never wait for each other. */
#ifndef WEIR_CACHE_INDEX_H
#define WEIR_CACHE_INDEX_H

#include "base/error.h"
#include "ops/ops.h"

struct cache_index;

struct cache_lease {
    int32_t *pages; /* [capacity], n_pages in use */
    uint32_t n_pages, capacity;
    int32_t slot; /* live state, -1 before the first grow */
    int32_t from; /* state to start from: -1 = zero state; equals slot once the sequence has run */
    uint32_t resume; /* tokens that need no computation: a multiple of PAGE_TOKENS, < prompt tokens
                      */
};

struct cache_usage {
    uint32_t pages_used, pages_total, slots_used, slots_total;
};

static inline uint32_t cache_pages_for(uint32_t tokens) {
    return tokens / PAGE_TOKENS + (tokens % PAGE_TOKENS != 0);
}

/* `pages` pages and `slots` live state slots. NULL without memory. */
struct cache_index *cache_index_open(uint32_t pages, uint32_t slots);
void cache_index_close(struct cache_index *x);

/* Room for a sequence of up to `max_tokens` tokens in `lease` (its page table is allocated here,
 * once per sequence). */
weir_status cache_lease_open(struct cache_lease *lease, uint32_t max_tokens);
void cache_lease_close(struct cache_lease *lease); /* frees the table; the lease must be empty */

/* Looks up how much of the prompt is cached and pins it: sets lease->resume, from and the pages of
 * [0, resume). `ids` are the n tokens that may be matched (hit <= n - 1), `salt` separates tenants
 * (NULL: common). Nothing is allocated yet. */
void cache_match(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n,
                 const char *salt);
/* Makes the lease cover `tokens` tokens and own a slot. Returns false, with nothing changed, when
 * the pools cannot. */
bool cache_grow(struct cache_index *x, struct cache_lease *lease, uint32_t tokens);
/* The step that computed tokens up to `tokens` has been collected: what it wrote may be offered to
 * others. */
void cache_computed(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                    uint32_t tokens);
/* Gives everything back, tail pages first. */
void cache_release(struct cache_index *x, struct cache_lease *lease);

struct cache_usage cache_get_usage(const struct cache_index *x);
/* Could a sequence of `tokens` tokens ever be held, with every other one gone? */
bool cache_can_hold(const struct cache_index *x, uint32_t tokens);

#endif
