/* offer.c: what of the device pools goes to the tiers below them. Called by tiers.c.
 *
 * A state is offered when it has been published: every tier gets what it lacks of the state and of
 * the history before it, page by page, so that a hole under a state that is there is filled by
 * whoever computes it again. A state that is resumed from on the device is offered anew once
 * something may have been lost since: a tier came up again, evicted, found records gone or damaged,
 * or did not take a store. The sources stay pinned until the move has ended.
 *
 * Invariant that bites: an offer that is made again and again must cost nothing where nothing is
 * lacking, and little where the tier does not take it: see OFFER_AGAIN_SECONDS. */
#include "cache/tiers_inside.h"

#include "base/clock.h"

#include <stdlib.h>

/* Stores may pin this part of the pages (1/n) at most; beyond it states are not offered. */
enum { STORE_PIN_SHARE = 4 };

/* A tier that did not take what it lacked is left alone for so long, unless it comes up meanwhile.
 * The same state is offered again OFFER_BURST times at once and then no more often than this: a
 * tier too small for all that is hot would otherwise be rewritten with every prompt. */
enum { OFFER_AGAIN_SECONDS = 10, OFFER_BURST = 3 };

struct store {
    struct tier_move move;
    struct cache_node *end;    /* held; its state is pinned if it goes along */
    struct cache_node **nodes; /* [n_nodes] pinned pages, last block first */
    uint32_t n_nodes;
    struct cache_key *keys; /* [n_blocks] of the whole prefix, first block first, */
    int32_t *pages;         /* and the pages to be stored, -1: the tier has it */
    uint32_t n_blocks, position;
    int32_t slot;
    bool again; /* offered before */
};

/* What was lost below, in all: a state offered when it was the same lacks nothing since. */
static uint64_t losses(const struct cache_tiers *t) {
    uint64_t n = 1 + t->stores_lost;
    for (int k = 0; k < TIER_KINDS; k++) {
        struct tier_usage u;
        if (!t->tier[k])
            continue;
        t->tier[k]->usage(t->tier[k], &u);
        n += u.began + u.lost + u.pages_evicted + u.states_evicted + u.damaged;
    }
    return n;
}

static void free_store(struct store *s) {
    free(s->nodes);
    free(s->keys);
    free(s->pages);
    free(s);
}

static struct store *new_store(uint32_t blocks) {
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->nodes = malloc(blocks * sizeof(struct cache_node *));
    s->keys = malloc(blocks * sizeof *s->keys);
    s->pages = malloc(blocks * sizeof *s->pages);
    s->n_blocks = blocks;
    if (s->nodes && s->keys && s->pages)
        return s;
    free_store(s);
    return NULL;
}

/* Finds the blocks of the prefix that the tier lacks. Returns false when one is not on the device
 * either: then the unit cannot be complete. */
static bool collect_blocks(const struct cache_tiers *t, struct tier *tier, struct store *s) {
    uint32_t most = t->index->setup.pages / STORE_PIN_SHARE;
    for (struct cache_node *n = s->end; n; n = n->parent) {
        uint32_t block = n->depth - 1;
        s->keys[block] = n->key;
        s->pages[block] = -1;
        if (tier->page(tier, &n->key) != TIER_ABSENT)
            continue;
        /* One unit may always go, however small the pools are. */
        if (n->page < 0 || (t->pages_in_stores > 0 && t->pages_in_stores + s->n_nodes >= most))
            return false;
        s->pages[block] = n->page;
        s->nodes[s->n_nodes++] = n;
    }
    return true;
}

static void pin(struct cache_tiers *t, struct store *s, bool state) {
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        s->nodes[i]->refs++;
        node_pin_page(&t->index->table, s->nodes[i]);
    }
    s->end->refs++;
    if (state)
        node_pin_state(&t->index->table, s->end);
}

static void submit(struct cache_tiers *t, struct tier *tier, struct store *s, bool state) {
    pin(t, s, state);
    s->slot = s->end->slot;
    s->position = s->end->depth * PAGE_TOKENS;
    s->move = (struct tier_move){
        .task = TIER_STORE,
        .n_pages = s->n_blocks,
        .page_keys = s->keys,
        .pages = s->pages,
        .n_states = state,
        .state_keys = &s->end->key,
        .positions = &s->position,
        .slots = &s->slot,
        .owner = s,
    };
    t->moving++;
    t->pages_in_stores += s->n_nodes;
    tier->submit(tier, &s->move);
    /* Its records are given up last, tails before heads, from now on. */
    tier->touch(tier, s->keys, s->n_blocks, true);
}

static void not_taken(struct cache_tiers *t, struct tier *tier, bool again) {
    struct tier_usage u;
    t->stores_lost++;
    if (!again)
        return;
    tier->usage(tier, &u);
    t->pause[tier->kind] = (struct offer_pause){clock_seconds() + OFFER_AGAIN_SECONDS, u.began};
}

static bool lacks_state(struct tier *tier, const struct cache_node *n) {
    return tier->state(tier, &n->key, n->depth * PAGE_TOKENS) == TIER_ABSENT;
}

static bool lacks_any(struct tier *tier, const struct cache_node *end) {
    const struct cache_node *n = end;
    if (lacks_state(tier, end))
        return true;
    while (n && tier->page(tier, &n->key) != TIER_ABSENT)
        n = n->parent;
    return n != NULL;
}

/* Returns whether the tier lacked something. */
static bool offer_to(struct cache_tiers *t, struct tier *tier, struct cache_node *n, bool again) {
    if (!lacks_any(tier, n))
        return false;
    struct store *s = new_store(n->depth);
    if (s) {
        s->end = n;
        s->again = again;
    }
    if (s && collect_blocks(t, tier, s)) {
        submit(t, tier, s, lacks_state(tier, n));
        return true;
    }
    t->counts[tier->kind].stores[TIER_DECLINED]++;
    not_taken(t, tier, again);
    if (s)
        free_store(s);
    return true;
}

/* The next fresh state, still held; NULL: none is left. */
static struct cache_node *take_fresh(struct cache_index *x) {
    struct cache_node *n = x->fresh;
    if (n) {
        x->fresh = n->next_fresh;
        n->fresh = false;
    }
    return n;
}

void offer_fresh(struct cache_tiers *t) {
    struct cache_index *x = t->index;
    struct cache_node *n;
    while ((n = take_fresh(x))) {
        n->offered = losses(t);
        n->offer_again = 0;
        for (int k = 0; k < TIER_KINDS && n->slot >= 0; k++)
            if (t->tier[k])
                offer_to(t, t->tier[k], n, false);
        node_drop(&x->table, n);
    }
}

void offer_none(struct cache_tiers *t) {
    struct cache_node *n;
    while ((n = take_fresh(t->index)))
        node_drop(&t->index->table, n);
}

void offer_again(struct cache_tiers *t, const struct cache_key *key) {
    struct cache_node *n = node_find(&t->index->table, key);
    if (!n || n->slot < 0 || n->fresh)
        return;
    uint64_t lost = losses(t);
    double now = clock_seconds(), earliest = now - (OFFER_BURST - 1) * OFFER_AGAIN_SECONDS;
    if (n->offered == lost || now < n->offer_again)
        return;
    bool waits = false, offered = false;
    for (int k = 0; k < TIER_KINDS; k++) {
        struct tier_usage u;
        if (!t->tier[k])
            continue;
        t->tier[k]->usage(t->tier[k], &u);
        if (!u.up || (now < t->pause[k].until && t->pause[k].began == u.began))
            waits = true;
        else
            offered |= offer_to(t, t->tier[k], n, true);
    }
    if (offered)
        n->offer_again =
            (n->offer_again > earliest ? n->offer_again : earliest) + OFFER_AGAIN_SECONDS;
    if (!waits)
        n->offered = lost;
}

void offer_ended(struct cache_tiers *t, struct tier *tier, struct tier_move *m) {
    struct store *s = m->owner;
    struct cache_tier_counts *c = &t->counts[tier->kind];
    struct node_table *table = &t->index->table;
    c->stores[m->result]++;
    c->stored_bytes += m->bytes;
    c->store_seconds += m->seconds;
    if (m->result != TIER_OK)
        not_taken(t, tier, s->again);
    t->pages_in_stores -= s->n_nodes;
    /* Last block first, as the tails must grow old before the heads. */
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        node_unpin_page(table, s->nodes[i]);
        node_drop(table, s->nodes[i]);
    }
    if (m->n_states)
        node_unpin_state(table, s->end);
    node_drop(table, s->end);
    free_store(s);
}
