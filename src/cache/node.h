/* node.h: what the index knows of one block of 64 tokens under its key: where its history lies and
 * where the state at its end lies, who uses them, and in which order they are given up. Inside of
 * the cache room; ids only. */
#ifndef WEIR_CACHE_NODE_H
#define WEIR_CACHE_NODE_H

#include "cache/evicted.h"
#include "cache/policy.h"

/* States that are alike in why they were kept, whether a later one on the same path has been kept
 * since, and how often they were resumed from: how many of a class are ever used again is learnt as
 * the cache runs. Class 0: an earlier state lies within rederive_tokens. */
enum { STATE_CHEAP, STATE_CLASSES = 1 + CHECKPOINT_REASONS * 2 * 3 };

struct cache_node;
struct node_link {
    struct cache_node *older, *newer;
};
struct node_list {
    struct cache_node *oldest, *newest;
};

/* The block that ends at 64 * depth tokens. Lives while it has history or a state in the device
 * pools, or somebody refers to it: a lease, a move between tiers, a child. */
struct cache_node {
    struct cache_key key;
    struct cache_node *parent, *same_bucket; /* also links free nodes */
    uint32_t depth, refs;

    int32_t page, slot;                    /* -1: not here */
    uint32_t page_pins, slot_pins;         /* users that must not lose it */
    struct node_link page_link, slot_link; /* linked while unpinned and here */
    enum checkpoint_reason reason;
    uint8_t state_class;
    bool superseded;     /* a later state on the same path was kept since this one was used */
    uint32_t hits;       /* how often the state was resumed from */
    uint64_t state_used; /* tick of its last use */
    bool fresh;          /* in the list of states that lower tiers have yet to be offered */
    struct cache_node *next_fresh;
    uint64_t offered;   /* what those had lost, in all, when they were offered it */
    double offer_again; /* see offer.c */

    /* Promises of running sequences. */
    uint32_t pending;  /* leases that will publish this block */
    uint32_t ungiven;  /* of those, how many have not put it into a step yet */
    uint32_t expected; /* states on the way: asked of a step that was not collected */
    bool wanted;       /* a waiting request asks for the state here */
};

/* Ids of one pool. Who takes or gives is checked: an id held twice shows up as another user's
 * text. */
struct id_pool {
    int32_t *free_ids; /* stack; the top is at n_free - 1 */
    bool *held;
    uint32_t n_free, total;
};
bool id_pool_open(struct id_pool *p, uint32_t total);
void id_pool_close(struct id_pool *p);
int32_t id_pool_take(struct id_pool *p); /* n_free > 0 */
void id_pool_give(struct id_pool *p, int32_t id);

/* What a slot holds; compared before it is resumed from, so that a mistake in the index costs time
 * and not text. */
struct slot_tag {
    struct cache_key key;
    uint32_t position;
    bool written;
};

/* How a class of states has fared: how many entered it and how many of those were resumed from. */
struct class_record {
    double entered, resumed;
};

struct node_counts {
    uint64_t pages_evicted, states_evicted, cheap_states_evicted;
    uint64_t tag_mismatches;
};

struct node_table {
    struct cache_node **bucket;
    size_t n_buckets, n_nodes; /* n_buckets: a power of two */
    struct cache_node *free_nodes;
    void **slabs;
    size_t n_slabs;

    struct id_pool pages, slots;
    struct slot_tag *tag;                       /* [slots] */
    struct node_list page_list;                 /* evictable, least recently used first, tails
                                                   before heads */
    struct node_list state_list[STATE_CLASSES]; /* evictable, least recently used first */
    struct class_record record[STATE_CLASSES];
    uint64_t tick;                       /* counts uses of states */
    uint32_t n_pages_idle, n_slots_idle; /* lengths of the lists */
    uint32_t rederive_blocks;
    struct node_counts counts;
    struct evicted_keys gone_pages, gone_states;
};

bool node_table_open(struct node_table *t, uint32_t pages, uint32_t slots,
                     uint32_t rederive_tokens);
void node_table_close(struct node_table *t);

struct cache_node *node_find(const struct node_table *t, const struct cache_key *key);
/* The node of `key`, made if it is not there, with one reference more. parent NULL: the first
 * block. NULL without memory. */
struct cache_node *node_hold(struct node_table *t, const struct cache_key *key,
                             struct cache_node *parent);
void node_drop(struct node_table *t, struct cache_node *n);

void node_pin_page(struct node_table *t, struct cache_node *n);
void node_unpin_page(struct node_table *t, struct cache_node *n);
void node_pin_state(struct node_table *t, struct cache_node *n);
void node_unpin_state(struct node_table *t, struct cache_node *n);

/* Gives a node its history or state: the id, held by the caller so far, belongs to the node from
 * now on, with no pin. */
void node_set_page(struct node_table *t, struct cache_node *n, int32_t page);
void node_set_state(struct node_table *t, struct cache_node *n, int32_t slot,
                    enum checkpoint_reason reason);
/* The state was resumed from. Pinned. */
void node_resumed(struct node_table *t, struct cache_node *n);
/* Takes the unpinned state away from the node and returns its slot, held by the caller. */
int32_t node_steal_state(struct node_table *t, struct cache_node *n);
/* Is what the slot is tagged with what this node is? Counts a mismatch. */
bool node_state_valid(struct node_table *t, const struct cache_node *n);

/* Ids for new content, evicting what is idle; -1 when all are in use. */
int32_t node_take_page(struct node_table *t);
int32_t node_take_slot(struct node_table *t);
/* The same for a state that is not sure to be of use: only where it is worth more than what would
 * have to go. last: no later one on its path is on the way; blocks: how far it would be from the
 * state before it. */
int32_t node_take_slot_worth(struct node_table *t, enum checkpoint_reason reason, bool last,
                             uint32_t blocks);
/* Free or evictable. */
static inline uint32_t node_pages_available(const struct node_table *t) {
    return t->pages.n_free + t->n_pages_idle;
}
static inline uint32_t node_slots_available(const struct node_table *t) {
    return t->slots.n_free + t->n_slots_idle;
}
/* Gives up all that is idle, or the states alone. */
void node_evict_all(struct node_table *t, bool states_only);

#endif
