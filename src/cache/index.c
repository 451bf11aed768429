/* index.c: matching, promising, publishing and giving back. Called by engine/ alone, from one
 * thread; the tree and the pools below it are node.c.
 *
 * A block goes through: promised by a running sequence (pending), put into a step (given), written
 * and collected (published). Only published blocks are matched. Whoever meets a promise that leads
 * further than what is there may wait for it, so that a prefix common to requests that arrive
 * together is computed once.
 *
 * Invariant that bites: a published block that was there already keeps its own page; the lease goes
 * on with its private copy, because a step in flight may name it, and pins both. */
#include "cache/index.h"

#include "cache/index_inside.h"

#include <stdlib.h>
#include <string.h>

enum { TURN_BLOCKS = 4 }; /* of an answer, before its state is worth another's slot */

struct cache_index *cache_index_open(const struct cache_setup *setup) {
    struct cache_index *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->setup = *setup;
    x->hasher = cache_hasher_open();
    if (!node_table_open(&x->table, setup->pages, setup->slots, setup->policy.rederive_tokens) ||
        !x->hasher) {
        cache_index_close(x);
        return NULL;
    }
    return x;
}

void cache_index_close(struct cache_index *x) {
    if (!x)
        return;
    node_table_close(&x->table);
    cache_hasher_close(x->hasher);
    free(x);
}

/* --------------------------------------------------------------------------------------- leases */

weir_status cache_lease_open(struct cache_lease *lease, const struct cache_space *space,
                             uint32_t max_tokens, const char *salt) {
    uint32_t capacity = cache_pages_for(max_tokens);
    *lease = (struct cache_lease){
        .capacity = capacity,
        .slot = -1,
        .from = -1,
        .root = cache_key_root(&space->model, salt),
        /* Two steps in flight, each with a mark at every boundary its rows can cross. */
        .mark_capacity = 2 * (space->step_rows / PAGE_TOKENS + 1),
    };
    size_t n = capacity ? capacity : 1;
    lease->pages = malloc(n * sizeof *lease->pages);
    lease->keys = malloc(n * sizeof *lease->keys);
    lease->nodes = malloc(n * sizeof *lease->nodes);
    lease->marks = malloc(lease->mark_capacity * sizeof *lease->marks);
    if (lease->pages && lease->keys && lease->nodes && lease->marks)
        return WEIR_OK;
    cache_lease_close(lease);
    return WEIR_NO_MEMORY;
}

void cache_lease_close(struct cache_lease *lease) {
    WEIR_ASSERT(lease->n_pages == 0 && lease->n_held == 0 && lease->slot < 0);
    free(lease->pages);
    free(lease->keys);
    free(lease->nodes);
    free(lease->marks);
    *lease = (struct cache_lease){.slot = -1, .from = -1};
}

void index_hash(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n) {
    for (uint32_t b = lease->n_keys; b < n / PAGE_TOKENS; b++) {
        const struct cache_key *before = b ? &lease->keys[b - 1] : &lease->root;
        lease->keys[b] = cache_hasher_block(x->hasher, before, ids + (size_t)b * PAGE_TOKENS);
        lease->n_keys = b + 1;
    }
}

/* ------------------------------------------------------------------------------------- matching */

/* Blocks from the start whose history is here. */
static uint32_t blocks_here(struct cache_index *x, const struct cache_lease *lease, uint32_t n) {
    uint32_t b = 0;
    for (; b < n; b++) {
        struct cache_node *node = node_find(&x->table, &lease->keys[b]);
        if (!node || node->page < 0)
            break;
        lease->nodes[b] = node;
    }
    return b;
}

/* The furthest promise worth waiting for: a block beyond `resume` at which a state is on its way or
 * can still be asked for, all blocks before it here or promised. */
static struct cache_node *promise_beyond(struct cache_index *x, const struct cache_lease *lease,
                                         uint32_t here, uint32_t resume, uint32_t most) {
    struct cache_node *best = NULL;
    bool may_ask = x->setup.policy.keeps[CHECKPOINT_JUNCTION];
    for (uint32_t b = resume; b < most; b++) {
        struct cache_node *node = node_find(&x->table, &lease->keys[b]);
        if (!node || (b >= here && node->page < 0 && node->pending == 0))
            break;
        if (node->expected > 0 || (may_ask && node->ungiven > 0))
            best = node;
    }
    return best;
}

enum cache_answer cache_match(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                              uint32_t n, uint32_t most, bool may_wait) {
    WEIR_ASSERT(lease->n_pages == 0 && lease->n_held == 0 && lease->slot < 0 && !lease->wait_node);
    lease->resume = lease->kept = lease->matched = lease->unfetched = lease->junction = 0;
    lease->from = -1;
    if (!x->setup.enabled)
        return CACHE_GO;
    index_hash(x, lease, ids, n);
    uint32_t whole = n / PAGE_TOKENS, last = (most < n ? most : n - 1) / PAGE_TOKENS;
    uint32_t here = blocks_here(x, lease, whole), resume = here < last ? here : last;
    while (resume > 0 && (lease->nodes[resume - 1]->slot < 0 ||
                          !node_state_valid(&x->table, lease->nodes[resume - 1])))
        resume--;
    if (may_wait) {
        struct cache_node *promise = promise_beyond(x, lease, here, resume, last);
        if (promise) {
            promise->wanted = true;
            promise->refs++;
            lease->wait_node = promise;
            x->counts.waits++;
            return CACHE_WAIT;
        }
    }
    for (uint32_t b = 0; b < here; b++) {
        struct cache_node *node = lease->nodes[b];
        node->refs++;
        node_pin_page(&x->table, node);
        lease->pages[b] = node->page;
    }
    lease->n_pages = lease->n_held = lease->n_published = lease->n_given = here;
    lease->kept = here * PAGE_TOKENS;
    lease->resume = resume * PAGE_TOKENS;
    uint32_t reach = here < last ? here : last;
    lease->matched = reach * PAGE_TOKENS;
    if (reach > resume && x->setup.policy.keeps[CHECKPOINT_JUNCTION])
        lease->junction = lease->matched;
    if (resume > 0) {
        lease->from_node = lease->nodes[resume - 1];
        node_pin_state(&x->table, lease->from_node);
        lease->from = lease->from_node->slot;
    }
    return CACHE_GO;
}

static void stop_waiting(struct cache_index *x, struct cache_lease *lease) {
    if (lease->wait_node)
        node_drop(&x->table, lease->wait_node);
    lease->wait_node = NULL;
}

bool cache_waits(struct cache_index *x, struct cache_lease *lease) {
    const struct cache_node *n = lease->wait_node;
    if (n && n->slot < 0 && (n->expected > 0 || n->ungiven > 0))
        return true;
    stop_waiting(x, lease);
    return false;
}

void cache_admit(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n) {
    x->table.tick++;
    if (lease->from_node) {
        node_resumed(&x->table, lease->from_node);
        x->counts.resumed[lease->from_node->reason]++;
        if (lease->from_node->reason == CHECKPOINT_PREFILL)
            lease->cut_node = lease->from_node;
    }
    if (!x->setup.enabled)
        return;
    index_hash(x, lease, ids, n);
    for (uint32_t b = lease->n_held; b < n / PAGE_TOKENS; b++) {
        struct cache_node *node =
            node_hold(&x->table, &lease->keys[b], b ? lease->nodes[b - 1] : NULL);
        if (!node)
            return; /* without memory nothing is promised */
        node->pending++;
        node->ungiven++;
        lease->nodes[lease->n_held++] = node;
    }
}

/* ----------------------------------------------------------------------------------- allocation */

/* Without a slot for the live state the one it starts from is taken over, if nobody else reads it:
 * one slot must be enough to run. */
static bool take_over_state(struct cache_index *x, struct cache_lease *lease) {
    struct cache_node *from = lease->from_node;
    if (!from || from->slot_pins > 1)
        return false;
    node_unpin_state(&x->table, from);
    lease->slot = node_steal_state(&x->table, from);
    lease->from_node = NULL;
    return true;
}

bool cache_grow(struct cache_index *x, struct cache_lease *lease, uint32_t tokens) {
    uint32_t want = cache_pages_for(tokens);
    uint32_t pages = want > lease->n_pages ? want - lease->n_pages : 0;
    WEIR_ASSERT(want <= lease->capacity);
    if (pages > node_pages_available(&x->table))
        return false;
    if (lease->slot < 0) {
        if (node_slots_available(&x->table) > 0)
            lease->slot = node_take_slot(&x->table);
        else if (!take_over_state(x, lease))
            return false;
    }
    while (lease->n_pages < want)
        lease->pages[lease->n_pages++] = node_take_page(&x->table);
    return true;
}

/* ---------------------------------------------------------------------------------- checkpoints */

/* Why a state is wanted after `position` tokens; CHECKPOINT_REASONS: it is not. */
static enum checkpoint_reason wanted_for(const struct cache_index *x,
                                         const struct cache_lease *lease, uint32_t position,
                                         uint32_t n_prompt) {
    const struct checkpoint_policy *p = &x->setup.policy;
    uint32_t block = position / PAGE_TOKENS;
    const struct cache_node *node = block <= lease->n_held ? lease->nodes[block - 1] : NULL;
    if (node && (node->slot >= 0 || node->expected > 0))
        return CHECKPOINT_REASONS;
    if (p->keeps[CHECKPOINT_JUNCTION] && (position == lease->junction || (node && node->wanted)))
        return CHECKPOINT_JUNCTION;
    /* Below the end for the same prompt again, at the end for one that goes on. */
    if (p->keeps[CHECKPOINT_PROMPT] && n_prompt > 0 &&
        (position == n_prompt || position == (n_prompt - 1) / PAGE_TOKENS * PAGE_TOKENS))
        return CHECKPOINT_PROMPT;
    if (p->keeps[CHECKPOINT_INTERVAL] && position % p->interval == 0)
        return CHECKPOINT_INTERVAL;
    if (p->keeps[CHECKPOINT_TURN] && position > n_prompt)
        return CHECKPOINT_TURN;
    return CHECKPOINT_REASONS;
}

/* The answer has moved on: its last state gives its place to the next, unless somebody uses it. */
static int32_t replace_turn_state(struct cache_index *x, struct cache_lease *lease) {
    struct cache_node *n = lease->turn_node;
    lease->turn_node = NULL;
    if (!n || n->slot < 0 || n->slot_pins > 0 || n->hits > 0 || n->reason != CHECKPOINT_TURN)
        return -1;
    return node_steal_state(&x->table, n);
}

/* A slot for a state after `block` blocks. Prompts are resumed from so often that their states
 * always get one; answers and intervals only where nothing better has to go, beside them. */
static int32_t take_slot(struct cache_index *x, enum checkpoint_reason why, uint32_t block,
                         uint32_t n_prompt) {
    const struct checkpoint_policy *p = &x->setup.policy;
    uint32_t beyond = block - n_prompt / PAGE_TOKENS;
    /* Where slots are short, a short answer is sooner computed again than kept. */
    if (p->keeps[CHECKPOINT_PROMPT] && why == CHECKPOINT_TURN)
        return beyond < TURN_BLOCKS && x->table.slots.n_free == 0
                   ? -1
                   : node_take_slot_worth(&x->table, why, true, beyond);
    if (p->keeps[CHECKPOINT_PROMPT] && why == CHECKPOINT_INTERVAL)
        return node_take_slot_worth(&x->table, why, block * PAGE_TOKENS > n_prompt,
                                    p->interval / PAGE_TOKENS);
    return node_take_slot(&x->table);
}

uint32_t cache_checkpoints(struct cache_index *x, struct cache_lease *lease, uint32_t from,
                           uint32_t rows, uint32_t n_prompt, struct batch_checkpoint *out) {
    uint32_t n = 0;
    if (!x->setup.enabled)
        return 0;
    lease->n_prompt = n_prompt;
    for (uint32_t p = (from / PAGE_TOKENS + 1) * PAGE_TOKENS; p <= from + rows; p += PAGE_TOKENS) {
        uint32_t block = p / PAGE_TOKENS;
        enum checkpoint_reason why = wanted_for(x, lease, p, n_prompt);
        struct cache_node *node = block <= lease->n_held ? lease->nodes[block - 1] : NULL;
        if (node && block > lease->n_given) {
            node->ungiven--;
            lease->n_given = block;
        }
        if (why == CHECKPOINT_REASONS)
            continue;
        int32_t slot = why == CHECKPOINT_TURN ? replace_turn_state(x, lease) : -1;
        if (slot < 0)
            slot = take_slot(x, why, block, n_prompt);
        if (slot < 0) {
            x->counts.unplaced++;
            continue;
        }
        WEIR_ASSERT(lease->n_marks < lease->mark_capacity);
        lease->marks[lease->n_marks++] =
            (struct cache_mark){.position = p, .slot = slot, .reason = why, .promised = node};
        if (node)
            node->expected++;
        out[n++] = (struct batch_checkpoint){.position = p, .slot = slot};
    }
    return n;
}

/* ----------------------------------------------------------------------------------- publishing */

static void publish_block(struct cache_index *x, struct cache_lease *lease, uint32_t b) {
    struct cache_node *node = lease->nodes[b];
    if (node->page < 0)
        node_set_page(&x->table, node, lease->pages[b]);
    node_pin_page(&x->table, node);
    lease->n_published = b + 1;
}

/* The nodes of blocks that the answer has filled since; promised ones are there already. */
static bool hold_block(struct cache_index *x, struct cache_lease *lease, uint32_t b) {
    if (b < lease->n_held) {
        lease->nodes[b]->pending--;
        if (b >= lease->n_given) {
            lease->nodes[b]->ungiven--;
            lease->n_given = b + 1;
        }
        return true;
    }
    struct cache_node *node = node_hold(&x->table, &lease->keys[b], b ? lease->nodes[b - 1] : NULL);
    if (!node)
        return false;
    lease->nodes[lease->n_held++] = node;
    lease->n_given = b + 1;
    return true;
}

void index_freshen(struct cache_index *x, struct cache_node *n) {
    if (!x->has_tiers || n->fresh)
        return;
    n->fresh = true;
    n->refs++;
    n->next_fresh = x->fresh;
    x->fresh = n;
}

static void end_promise(const struct cache_lease *lease, const struct cache_mark *m) {
    if (m->promised)
        lease->nodes[m->position / PAGE_TOKENS - 1]->expected--;
}

/* What an earlier try at this prompt had left is of no more use once a later state is kept; where
 * others have parted from it there is a junction. */
static void drop_cut_state(struct cache_index *x, struct cache_lease *lease) {
    struct cache_node *n = lease->cut_node;
    if (!n || n->slot_pins > 0)
        return;
    lease->cut_node = NULL;
    if (n->slot >= 0 && n->reason == CHECKPOINT_PREFILL && n->superseded)
        id_pool_give(&x->table.slots, node_steal_state(&x->table, n));
}

static void publish_state(struct cache_index *x, struct cache_lease *lease,
                          const struct cache_mark *m) {
    uint32_t block = m->position / PAGE_TOKENS;
    struct cache_node *node = block <= lease->n_published ? lease->nodes[block - 1] : NULL;
    if (!node || node->slot >= 0) {
        id_pool_give(&x->table.slots, m->slot);
        return;
    }
    node_set_state(&x->table, node, m->slot, m->reason);
    x->counts.stored[m->reason]++;
    drop_cut_state(x, lease);
    if (m->reason == CHECKPOINT_TURN)
        lease->turn_node = node; /* the next one may replace it: not yet for the tiers */
    else
        index_freshen(x, node);
}

void cache_computed(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                    uint32_t tokens) {
    WEIR_ASSERT(cache_pages_for(tokens) <= lease->n_pages);
    if (lease->from_node) {
        node_unpin_state(&x->table, lease->from_node);
        lease->from_node = NULL;
    }
    if (!x->setup.enabled)
        return;
    lease->computed = tokens;
    index_hash(x, lease, ids, tokens);
    for (uint32_t b = lease->n_published; b < tokens / PAGE_TOKENS; b++) {
        if (!hold_block(x, lease, b))
            break;
        publish_block(x, lease, b);
    }
    uint32_t done = 0;
    for (; done < lease->n_marks && lease->marks[done].position <= tokens; done++) {
        end_promise(lease, &lease->marks[done]);
        publish_state(x, lease, &lease->marks[done]);
    }
    lease->n_marks -= done;
    memmove(lease->marks, lease->marks + done, lease->n_marks * sizeof *lease->marks);
}

/* A prompt that is cut short while it is computed, because its client left or its pages went to
 * others, is likely to come again. Its live state is that of the prefix computed so far, and the
 * slot would be free: it becomes a kept one. Between blocks there is no such state. */
static void keep_live_state(struct cache_index *x, struct cache_lease *lease) {
    uint32_t block = lease->computed / PAGE_TOKENS;
    if (lease->slot < 0 || block == 0 || lease->computed % PAGE_TOKENS ||
        lease->computed >= lease->n_prompt || block > lease->n_published ||
        lease->nodes[block - 1]->slot >= 0 || !x->setup.policy.keeps[CHECKPOINT_PROMPT])
        return;
    struct cache_node *node = lease->nodes[block - 1];
    node_set_state(&x->table, node, lease->slot, CHECKPOINT_PREFILL);
    lease->slot = -1;
    x->counts.stored[CHECKPOINT_PREFILL]++;
    index_freshen(x, node);
    drop_cut_state(x, lease);
}

void cache_spoil(struct cache_lease *lease) {
    lease->n_prompt = 0;
}

void cache_release(struct cache_index *x, struct cache_lease *lease) {
    struct node_table *t = &x->table;
    stop_waiting(x, lease);
    for (uint32_t i = 0; i < lease->n_marks; i++) {
        end_promise(lease, &lease->marks[i]);
        id_pool_give(&t->slots, lease->marks[i].slot);
    }
    lease->n_marks = 0;
    if (lease->from_node)
        node_unpin_state(t, lease->from_node);
    if (lease->turn_node && lease->turn_node->slot >= 0)
        index_freshen(x, lease->turn_node);
    keep_live_state(x, lease);
    lease->from_node = lease->turn_node = lease->cut_node = NULL;
    for (uint32_t b = lease->n_pages > lease->n_held ? lease->n_pages : lease->n_held; b-- > 0;) {
        struct cache_node *node = b < lease->n_held ? lease->nodes[b] : NULL;
        bool published = b < lease->n_published;
        if (b < lease->n_pages && !(published && node->page == lease->pages[b]))
            id_pool_give(&t->pages, lease->pages[b]);
        if (!node)
            continue;
        if (published) {
            node_unpin_page(t, node);
        } else {
            node->pending--;
            node->ungiven -= b >= lease->n_given;
        }
        node_drop(t, node);
    }
    if (lease->slot >= 0)
        id_pool_give(&t->slots, lease->slot);
    lease->n_pages = lease->n_held = lease->n_published = lease->n_given = 0;
    lease->slot = lease->from = -1;
    lease->resume = lease->kept = lease->matched = lease->unfetched = lease->junction = 0;
    lease->n_prompt = lease->computed = 0;
}

/* -------------------------------------------------------------------------------------- figures */

struct cache_usage cache_get_usage(const struct cache_index *x) {
    const struct node_table *t = &x->table;
    return (struct cache_usage){
        .pages_used = t->pages.total - node_pages_available(t),
        .pages_total = t->pages.total,
        .slots_used = t->slots.total - node_slots_available(t),
        .slots_total = t->slots.total,
        .pages_cached = t->n_pages_idle,
        .slots_cached = t->n_slots_idle,
    };
}

uint32_t cache_pages_available(const struct cache_index *x) {
    return node_pages_available(&x->table);
}

uint32_t cache_slots_available(const struct cache_index *x) {
    return node_slots_available(&x->table);
}

struct cache_counts cache_get_counts(const struct cache_index *x) {
    struct cache_counts c = x->counts;
    c.pages_evicted = x->table.counts.pages_evicted;
    c.states_evicted = x->table.counts.states_evicted;
    c.cheap_states_evicted = x->table.counts.cheap_states_evicted;
    c.tag_mismatches = x->table.counts.tag_mismatches;
    return c;
}

void cache_evict_all(struct cache_index *x, bool states_only) {
    node_evict_all(&x->table, states_only);
}
