/* reach.c: how far a prefix is known, in the device pools and in the tiers together. Called by
 * tiers.c to find what to fetch and by engine/ to tell what was lost. Looks things up and moves
 * nothing.
 *
 * Invariant that bites: a block or a state that a tier is still being given counts for nothing; its
 * source is pinned on the device until the move has ended and is found there. */
#include "cache/tiers_inside.h"

static int page_source(const struct cache_tiers *t, const struct cache_key *key) {
    const struct cache_node *n = node_find(&t->index->table, key);
    if (n && n->page >= 0)
        return FROM_DEVICE;
    for (int k = 0; k < TIER_KINDS; k++)
        if (t->tier[k] && t->tier[k]->page(t->tier[k], key) == TIER_PRESENT)
            return k;
    return FROM_NOWHERE;
}

static int state_source(const struct cache_tiers *t, const struct cache_key *key,
                        uint32_t position) {
    struct cache_node *n = node_find(&t->index->table, key);
    if (n && n->slot >= 0 && node_state_valid(&t->index->table, n))
        return FROM_DEVICE;
    for (int k = 0; k < TIER_KINDS; k++)
        if (t->tier[k] && t->tier[k]->state(t->tier[k], key, position) == TIER_PRESENT)
            return k;
    return FROM_NOWHERE;
}

uint32_t reach_history(const struct cache_tiers *t, const struct cache_key *keys, uint32_t b,
                       uint32_t last, uint8_t *from) {
    for (; b < last; b++) {
        int source = page_source(t, &keys[b]);
        if (source == FROM_NOWHERE)
            break;
        if (from)
            from[b] = (uint8_t)source;
    }
    return b;
}

uint32_t reach_state(const struct cache_tiers *t, const struct cache_key *keys, uint32_t history,
                     uint32_t beyond, int *from) {
    for (uint32_t b = history; b > beyond; b--) {
        *from = state_source(t, &keys[b - 1], b * PAGE_TOKENS);
        if (*from != FROM_NOWHERE)
            return b;
    }
    *from = FROM_NOWHERE;
    return 0;
}

void cache_reach(const struct cache_tiers *t, struct cache_lease *lease, uint32_t n,
                 uint32_t most) {
    uint32_t last = (most < n ? most : n - 1) / PAGE_TOKENS, here = lease->matched / PAGE_TOKENS;
    last = last < lease->n_keys ? last : lease->n_keys;
    uint32_t history = reach_history(t, lease->keys, here, last, NULL);
    int from;
    lease->unfetched =
        PAGE_TOKENS * reach_state(t, lease->keys, history, lease->resume / PAGE_TOKENS, &from);
    if (history <= here)
        return;
    lease->matched = history * PAGE_TOKENS;
    if (t->index->setup.policy.keeps[CHECKPOINT_JUNCTION])
        lease->junction = lease->matched;
}
