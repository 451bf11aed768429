/* node.c: the tree of known blocks, its hash table, and the two orders of eviction. Called by
 * index.c and move.c alone, on the engine thread.
 *
 * Pages go least recently used first. Whoever gives up a prefix gives up its tail first, and
 * whoever uses a block uses all before it, so the oldest page is always a leaf: no block is kept
 * whose beginning is gone.
 *
 * States differ too much for one order of use: the last one of a conversation is almost surely
 * resumed from, one in its middle hardly ever, and whether answers come back as prefixes depends on
 * the clients. So they are kept in classes, each in order of use; among the oldest of all classes
 * the one goes whose loss is expected to cost least: share of its class that is resumed from, times
 * tokens to compute again, by age.
 *
 * Invariant that bites: an idle page or state is in exactly one list, a pinned one in none. */
#include "cache/node.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLAB_NODES = 1024,
    FORGET_AFTER = 1024,
    PRIOR_WEIGHT = 16,
    FAR_BLOCKS = 128, /* a state further from the one before is not worth more */
};

/* ------------------------------------------------------------------------------------- id pools */

bool id_pool_open(struct id_pool *p, uint32_t total) {
    *p = (struct id_pool){.n_free = total, .total = total};
    p->free_ids = calloc(total ? total : 1, sizeof *p->free_ids);
    p->held = calloc(total ? total : 1, sizeof *p->held);
    if (!p->free_ids || !p->held)
        return false;
    for (uint32_t i = 0; i < total; i++)
        p->free_ids[i] = (int32_t)(total - 1 - i);
    return true;
}

void id_pool_close(struct id_pool *p) {
    free(p->free_ids);
    free(p->held);
}

int32_t id_pool_take(struct id_pool *p) {
    WEIR_ASSERT(p->n_free > 0);
    int32_t id = p->free_ids[--p->n_free];
    WEIR_ASSERT(!p->held[id]);
    p->held[id] = true;
    return id;
}

void id_pool_give(struct id_pool *p, int32_t id) {
    WEIR_ASSERT(id >= 0 && (uint32_t)id < p->total && p->held[id]);
    p->held[id] = false;
    p->free_ids[p->n_free++] = id;
}

/* ---------------------------------------------------------------------------------------- lists */

#define DEFINE_LIST(name, link)                                                                    \
    static void name##_append(struct node_list *l, struct cache_node *n) {                         \
        n->link = (struct node_link){.older = l->newest};                                          \
        if (l->newest)                                                                             \
            l->newest->link.newer = n;                                                             \
        else                                                                                       \
            l->oldest = n;                                                                         \
        l->newest = n;                                                                             \
    }                                                                                              \
    static void name##_remove(struct node_list *l, struct cache_node *n) {                         \
        if (n->link.older)                                                                         \
            n->link.older->link.newer = n->link.newer;                                             \
        else                                                                                       \
            l->oldest = n->link.newer;                                                             \
        if (n->link.newer)                                                                         \
            n->link.newer->link.older = n->link.older;                                             \
        else                                                                                       \
            l->newest = n->link.older;                                                             \
        n->link = (struct node_link){0};                                                           \
    }
DEFINE_LIST(page_list, page_link)
DEFINE_LIST(slot_list, slot_link)

/* ---------------------------------------------------------------------------------------- table */

static size_t bucket_of(const struct node_table *t, const struct cache_key *key) {
    uint64_t h;
    memcpy(&h, key->bytes, sizeof h);
    return (size_t)h & (t->n_buckets - 1);
}

static bool add_slab(struct node_table *t) {
    void **slabs = realloc(t->slabs, (t->n_slabs + 1) * sizeof *slabs);
    if (!slabs)
        return false;
    t->slabs = slabs;
    struct cache_node *slab = calloc(SLAB_NODES, sizeof *slab);
    if (!slab)
        return false;
    t->slabs[t->n_slabs++] = slab;
    for (int i = 0; i < SLAB_NODES; i++) {
        slab[i].same_bucket = t->free_nodes;
        t->free_nodes = &slab[i];
    }
    return true;
}

static bool grow_table(struct node_table *t, size_t n_buckets) {
    struct cache_node **bucket = calloc(n_buckets, sizeof(struct cache_node *));
    if (!bucket)
        return false;
    struct cache_node **old = t->bucket;
    size_t n_old = t->n_buckets;
    t->bucket = bucket;
    t->n_buckets = n_buckets;
    for (size_t i = 0; i < n_old; i++)
        while (old[i]) {
            struct cache_node *n = old[i];
            old[i] = n->same_bucket;
            size_t at = bucket_of(t, &n->key);
            n->same_bucket = bucket[at];
            bucket[at] = n;
        }
    free(old);
    return true;
}

bool node_table_open(struct node_table *t, uint32_t pages, uint32_t slots,
                     uint32_t rederive_tokens) {
    *t = (struct node_table){.rederive_blocks = rederive_tokens / PAGE_TOKENS};
    bool ok = id_pool_open(&t->pages, pages);
    ok = id_pool_open(&t->slots, slots) && ok;
    t->tag = calloc(slots ? slots : 1, sizeof *t->tag);
    ok = ok && t->tag;
    ok = evicted_open(&t->gone_pages, pages) && ok;
    ok = evicted_open(&t->gone_states, slots) && ok;
    /* One node for each page and as many again for promised blocks, so that steady running does
     * not allocate. */
    size_t want = 2 * (size_t)pages + SLAB_NODES, n_buckets = 1024;
    while (n_buckets < want)
        n_buckets *= 2;
    ok = ok && grow_table(t, n_buckets);
    for (size_t n = 0; ok && n < want; n += SLAB_NODES)
        ok = add_slab(t);
    if (!ok)
        node_table_close(t);
    return ok;
}

void node_table_close(struct node_table *t) {
    id_pool_close(&t->pages);
    id_pool_close(&t->slots);
    for (size_t i = 0; i < t->n_slabs; i++)
        free(t->slabs[i]);
    free(t->slabs);
    free(t->bucket);
    free(t->tag);
    evicted_close(&t->gone_pages);
    evicted_close(&t->gone_states);
    *t = (struct node_table){0};
}

struct cache_node *node_find(const struct node_table *t, const struct cache_key *key) {
    struct cache_node *n = t->bucket[bucket_of(t, key)];
    while (n && !cache_key_equal(&n->key, key))
        n = n->same_bucket;
    return n;
}

struct cache_node *node_hold(struct node_table *t, const struct cache_key *key,
                             struct cache_node *parent) {
    struct cache_node *n = node_find(t, key);
    if (n) {
        n->refs++;
        return n;
    }
    if (!t->free_nodes && !add_slab(t))
        return NULL;
    if (t->n_nodes >= t->n_buckets)
        grow_table(t, 2 * t->n_buckets); /* longer chains are slower, not wrong */
    n = t->free_nodes;
    t->free_nodes = n->same_bucket;
    size_t at = bucket_of(t, key);
    *n = (struct cache_node){.key = *key,
                             .parent = parent,
                             .same_bucket = t->bucket[at],
                             .depth = parent ? parent->depth + 1 : 1,
                             .refs = 1,
                             .page = -1,
                             .slot = -1};
    t->bucket[at] = n;
    t->n_nodes++;
    if (parent)
        parent->refs++;
    return n;
}

/* Frees a node that nothing is left of, and then perhaps its parent, and so on. */
static void free_if_empty(struct node_table *t, struct cache_node *n) {
    while (n && n->refs == 0 && n->page < 0 && n->slot < 0) {
        struct cache_node *parent = n->parent, **at = &t->bucket[bucket_of(t, &n->key)];
        WEIR_ASSERT(n->page_pins == 0 && n->slot_pins == 0 && n->pending == 0 && n->expected == 0);
        while (*at != n)
            at = &(*at)->same_bucket;
        *at = n->same_bucket;
        n->same_bucket = t->free_nodes;
        t->free_nodes = n;
        t->n_nodes--;
        if (parent)
            parent->refs--;
        n = parent;
    }
}

void node_drop(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->refs > 0);
    n->refs--;
    free_if_empty(t, n);
}

/* ----------------------------------------------------------------------------------------- pins */

void node_pin_page(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->page >= 0);
    if (n->page_pins++ == 0) {
        page_list_remove(&t->page_list, n);
        t->n_pages_idle--;
    }
}

static void page_idle(struct node_table *t, struct cache_node *n) {
    page_list_append(&t->page_list, n);
    t->n_pages_idle++;
}

void node_unpin_page(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->page_pins > 0);
    if (--n->page_pins == 0)
        page_idle(t, n);
}

/* The nearest earlier state within so many blocks, NULL: none. */
static struct cache_node *earlier_state(const struct cache_node *n, uint32_t blocks) {
    struct cache_node *a = n->parent;
    for (uint32_t i = 0; a && i < blocks; i++, a = a->parent)
        if (a->slot >= 0)
            return a;
    return NULL;
}

static uint8_t class_number(enum checkpoint_reason reason, bool superseded, uint32_t hits) {
    return (uint8_t)(1 + ((uint32_t)reason * 2 + superseded) * 3 + (hits < 2 ? hits : 2));
}

static uint8_t class_of(const struct node_table *t, const struct cache_node *n) {
    if (earlier_state(n, t->rederive_blocks))
        return STATE_CHEAP;
    return class_number(n->reason, n->superseded, n->hits);
}

static void enter_class(struct node_table *t, struct cache_node *n, uint8_t class) {
    struct class_record *r = &t->record[class];
    n->state_class = class;
    r->entered++;
    /* The clients of yesterday say less than those of now. */
    if (r->entered > FORGET_AFTER) {
        r->entered /= 2;
        r->resumed /= 2;
    }
}

static void state_idle(struct node_table *t, struct cache_node *n) {
    uint8_t class = class_of(t, n);
    if (class != n->state_class)
        enter_class(t, n, class);
    slot_list_append(&t->state_list[class], n);
    t->n_slots_idle++;
}

static void state_busy(struct node_table *t, struct cache_node *n) {
    slot_list_remove(&t->state_list[n->state_class], n);
    t->n_slots_idle--;
}

void node_pin_state(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->slot >= 0);
    if (n->slot_pins++ == 0)
        state_busy(t, n);
}

void node_unpin_state(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->slot_pins > 0);
    if (--n->slot_pins == 0)
        state_idle(t, n);
}

/* -------------------------------------------------------------------------------------- content */

void node_set_page(struct node_table *t, struct cache_node *n, int32_t page) {
    WEIR_ASSERT(n->page < 0 && page >= 0);
    n->page = page;
    page_idle(t, n);
}

/* The state before this one has been overtaken. */
static void supersede(struct node_table *t, struct cache_node *n) {
    struct cache_node *a = earlier_state(n, UINT32_MAX);
    if (!a || a->superseded)
        return;
    a->superseded = true;
    if (a->slot_pins > 0)
        return;
    /* Last in its new class, although others there were used since: its age counts when it has
     * become the oldest. */
    state_busy(t, a);
    state_idle(t, a);
}

void node_set_state(struct node_table *t, struct cache_node *n, int32_t slot,
                    enum checkpoint_reason reason) {
    WEIR_ASSERT(n->slot < 0 && slot >= 0);
    n->slot = slot;
    n->reason = reason;
    n->wanted = n->superseded = false;
    n->hits = 0;
    n->state_used = t->tick;
    n->state_class = STATE_CLASSES;
    t->tag[slot] =
        (struct slot_tag){.key = n->key, .position = n->depth * PAGE_TOKENS, .written = true};
    state_idle(t, n);
    supersede(t, n);
}

void node_resumed(struct node_table *t, struct cache_node *n) {
    t->record[n->state_class].resumed++;
    n->hits++;
    n->superseded = false;
    n->state_used = t->tick;
}

int32_t node_steal_state(struct node_table *t, struct cache_node *n) {
    WEIR_ASSERT(n->slot >= 0 && n->slot_pins == 0);
    int32_t slot = n->slot;
    state_busy(t, n);
    n->slot = -1;
    t->tag[slot].written = false;
    free_if_empty(t, n);
    return slot;
}

bool node_state_valid(struct node_table *t, const struct cache_node *n) {
    const struct slot_tag *tag = &t->tag[n->slot];
    if (tag->written && tag->position == n->depth * PAGE_TOKENS &&
        cache_key_equal(&tag->key, &n->key))
        return true;
    t->counts.tag_mismatches++;
    return false;
}

/* ------------------------------------------------------------------------------------- eviction */

static void drop_state(struct node_table *t, struct cache_node *n) {
    state_busy(t, n);
    t->tag[n->slot].written = false;
    id_pool_give(&t->slots, n->slot);
    n->slot = -1;
    evicted_add(&t->gone_states, &n->key);
    t->counts.states_evicted++;
}

/* Gives up the oldest idle page; a state at its end is of no use any more and goes with it. */
static void evict_page(struct node_table *t) {
    struct cache_node *n = t->page_list.oldest;
    page_list_remove(&t->page_list, n);
    t->n_pages_idle--;
    id_pool_give(&t->pages, n->page);
    n->page = -1;
    evicted_add(&t->gone_pages, &n->key);
    t->counts.pages_evicted++;
    if (n->slot >= 0 && n->slot_pins == 0)
        drop_state(t, n);
    free_if_empty(t, n);
}

/* The share of a class that is resumed from, before anything was learnt: what traces of coding
 * agents show. `last`: on its path. */
static double expected_share(enum checkpoint_reason reason, bool last, uint32_t hits) {
    static const double share[CHECKPOINT_REASONS] = {
        [CHECKPOINT_PROMPT] = 0.8,   [CHECKPOINT_JUNCTION] = 0.5, [CHECKPOINT_TURN] = 0.5,
        [CHECKPOINT_INTERVAL] = 0.2, [CHECKPOINT_PREFILL] = 0.5,  [CHECKPOINT_FETCHED] = 0.8,
    };
    if (last)
        return share[reason];
    return hits < 2 ? 0.03 : 0.2;
}

static double learnt_share(const struct node_table *t, enum checkpoint_reason reason, bool last,
                           uint32_t hits) {
    const struct class_record *r = &t->record[class_number(reason, !last, hits)];
    return (r->resumed + PRIOR_WEIGHT * expected_share(reason, last, hits)) /
           (r->entered + PRIOR_WEIGHT);
}

/* What losing the state is expected to cost while it is as young as others that are resumed from.
 */
static double worth(const struct node_table *t, const struct cache_node *n) {
    const struct cache_node *earlier = earlier_state(n, FAR_BLOCKS);
    uint32_t blocks = n->depth - (earlier ? earlier->depth : 0);
    return learnt_share(t, n->reason, !n->superseded, n->hits) *
           (blocks < FAR_BLOCKS ? blocks : FAR_BLOCKS);
}

static double aged_worth(const struct node_table *t, const struct cache_node *n) {
    return worth(t, n) / (double)(t->tick - n->state_used + 1);
}

/* The state to give up next. A cheap one was so when it fell idle; the earlier state may have gone
 * since. */
static struct cache_node *state_victim(struct node_table *t) {
    struct cache_node *n, *least = NULL;
    while ((n = t->state_list[STATE_CHEAP].oldest)) {
        if (earlier_state(n, t->rederive_blocks))
            return n;
        state_busy(t, n);
        state_idle(t, n);
    }
    double least_worth = 0;
    for (int class = 1; class < STATE_CLASSES; class ++) {
        n = t->state_list[class].oldest;
        double w = n ? aged_worth(t, n) : 0;
        if (n && (!least || w < least_worth)) {
            least = n;
            least_worth = w;
        }
    }
    return least;
}

/* Whoever would have resumed from a lost state will resume from the one before it, which takes over
 * its prospects. */
static void pass_on(struct node_table *t, const struct cache_node *n) {
    struct cache_node *a = earlier_state(n, FAR_BLOCKS);
    if (!a || (a->superseded <= n->superseded && a->state_used >= n->state_used))
        return;
    a->superseded &= n->superseded;
    if (a->state_used < n->state_used)
        a->state_used = n->state_used;
    if (a->slot_pins > 0)
        return;
    state_busy(t, a);
    state_idle(t, a);
}

static void evict_state(struct node_table *t) {
    struct cache_node *n = state_victim(t);
    pass_on(t, n);
    drop_state(t, n);
    t->counts.cheap_states_evicted += n->state_class == STATE_CHEAP;
    free_if_empty(t, n);
}

int32_t node_take_page(struct node_table *t) {
    if (t->pages.n_free == 0) {
        if (!t->page_list.oldest)
            return -1;
        evict_page(t);
    }
    return id_pool_take(&t->pages);
}

int32_t node_take_slot(struct node_table *t) {
    if (t->slots.n_free == 0) {
        if (t->n_slots_idle == 0)
            return -1;
        evict_state(t);
    }
    int32_t slot = id_pool_take(&t->slots);
    t->tag[slot].written = false;
    return slot;
}

int32_t node_take_slot_worth(struct node_table *t, enum checkpoint_reason reason, bool last,
                             uint32_t blocks) {
    if (t->slots.n_free > 0)
        return node_take_slot(t);
    if (t->n_slots_idle == 0)
        return -1;
    const struct cache_node *victim = state_victim(t);
    /* Never the last state of a path: who comes back to it would compute all of it again. */
    if (victim->state_class != STATE_CHEAP &&
        (!victim->superseded || worth(t, victim) >= learnt_share(t, reason, last, 0) * blocks))
        return -1;
    return node_take_slot(t);
}

void node_evict_all(struct node_table *t, bool states_only) {
    const struct node_counts before = t->counts; /* of what had to go for want of room */
    while (t->n_slots_idle)
        evict_state(t);
    while (!states_only && t->n_pages_idle)
        evict_page(t);
    t->counts = before;
}
