/* tiers.c: fetching units upwards, and the rounds in which moves end. Called by engine/ between
 * steps; what goes downwards is offer.c.
 *
 * Fetching: the largest prefix for which every block and the state at its end are somewhere, device
 * included; each piece comes from the fastest tier that has it, and nothing is published before all
 * of it has arrived. A pair that comes already for one request is not fetched for another that
 * wants the same.
 *
 * Invariant that bites: targets are nobody's but the move's until it was collected, even when the
 * request that wanted them is gone or has lost patience. */
#include "cache/tiers.h"

#include "base/clock.h"
#include "cache/tiers_inside.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A load that takes longer is given up by its request: so many seconds, and one more for each
 * PATIENCE_BYTES. */
enum { PATIENCE_SECONDS = 10, PATIENCE_BYTES = 100 << 20 };

enum load_stage { LOAD_PROBING, LOAD_MOVING, LOAD_DONE };

struct cache_load {
    enum load_stage stage;
    bool ended;    /* the request waits no longer */
    bool given_up; /* it lost patience: as good as done for it, while moves are still under way */
    bool failed;
    double began, deadline, patience; /* patience: seconds that the moves may take */
    uint32_t last;                    /* blocks the prompt may resume after */
    struct cache_key *keys;
    uint32_t resume; /* blocks the device had */

    uint32_t goal;              /* blocks to have in the end */
    struct cache_node **pinned; /* [goal] device blocks that must stay, NULL: not one */
    struct cache_node *pinned_state;
    uint8_t *from;   /* [goal] tier kinds */
    int32_t *page;   /* [goal] targets, -1: none */
    int32_t slot;    /* target of the state, -1: none */
    uint32_t n_open; /* moves under way */
    struct tier_move move[TIER_KINDS];
    struct cache_key *move_keys[TIER_KINDS]; /* what the moves point to */
    int32_t *move_pages[TIER_KINDS];
    uint32_t *probe_positions;
    struct cache_load *lead; /* its moves bring the same: this one has none and waits for them */
    uint32_t position;
    uint32_t tokens[TIER_KINDS];
    enum tier_kind state_from; /* TIER_KINDS: the device */
    enum tier_result trouble;  /* the first that a move met */
    enum tier_kind trouble_in;
    struct cache_load *next;
};

/* --------------------------------------------------------------------------------- opening */

struct cache_tiers *cache_tiers_open(struct cache_index *x, struct tier *const *tiers, uint32_t n) {
    struct cache_tiers *t = calloc(1, sizeof *t);
    if (!t) {
        for (uint32_t i = 0; i < n; i++)
            tiers[i]->close(tiers[i]);
        return NULL;
    }
    t->index = x;
    for (uint32_t i = 0; i < n; i++) {
        WEIR_ASSERT(!t->tier[tiers[i]->kind]);
        t->tier[tiers[i]->kind] = tiers[i];
    }
    for (int k = 0; k < TIER_KINDS; k++)
        t->counts[k].kind = (enum tier_kind)k;
    x->has_tiers = true;
    return t;
}

/* ---------------------------------------------------------------------------------- fetching */

static void free_load(struct cache_tiers *t, struct cache_load *l) {
    struct cache_load **at = &t->loads;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    for (int k = 0; k < TIER_KINDS; k++) {
        free(l->move_keys[k]);
        free(l->move_pages[k]);
    }
    free(l->probe_positions);
    free(l->keys);
    free(l->pinned);
    free(l->from);
    free(l->page);
    free(l);
}

/* Lets go of pins and of targets that were not published. */
static void let_go(struct cache_tiers *t, struct cache_load *l) {
    struct node_table *table = &t->index->table;
    for (uint32_t b = l->goal; b-- > 0;) {
        if (l->page && l->page[b] >= 0)
            id_pool_give(&table->pages, l->page[b]);
        if (l->pinned && l->pinned[b]) {
            node_unpin_page(table, l->pinned[b]);
            node_drop(table, l->pinned[b]);
        }
    }
    if (l->slot >= 0)
        id_pool_give(&table->slots, l->slot);
    if (l->pinned_state) {
        node_unpin_state(table, l->pinned_state);
        node_drop(table, l->pinned_state);
    }
    l->goal = 0;
    l->slot = -1;
    l->pinned_state = NULL;
}

/* Finds the largest complete pair beyond what the device has. Sets goal, from and position (the
 * state's source in *state); goal stays 0 when there is none. */
static void find_goal(const struct cache_tiers *t, struct cache_load *l, int *state) {
    uint32_t history = reach_history(t, l->keys, 0, l->last, l->from);
    l->goal = reach_state(t, l->keys, history, l->resume, state);
    l->position = l->goal * PAGE_TOKENS;
}

/* Pins what the device has and takes targets for the rest. On failure let_go undoes it. */
static bool take_targets(struct cache_tiers *t, struct cache_load *l, int state) {
    struct node_table *table = &t->index->table;
    l->pinned = calloc(l->goal, sizeof(struct cache_node *));
    l->page = malloc(l->goal * sizeof *l->page);
    if (!l->pinned || !l->page)
        return false;
    for (uint32_t b = 0; b < l->goal; b++)
        l->page[b] = -1;
    for (uint32_t b = 0; b < l->goal; b++) {
        if (l->from[b] != FROM_DEVICE)
            continue;
        l->pinned[b] = node_find(table, &l->keys[b]);
        l->pinned[b]->refs++;
        node_pin_page(table, l->pinned[b]);
    }
    if (state == FROM_DEVICE) {
        l->pinned_state = node_find(table, &l->keys[l->goal - 1]);
        l->pinned_state->refs++;
        node_pin_state(table, l->pinned_state);
    } else {
        l->slot = node_take_slot(table);
        if (l->slot < 0)
            return false;
    }
    for (uint32_t b = 0; b < l->goal; b++) {
        if (l->from[b] == FROM_DEVICE)
            continue;
        l->page[b] = node_take_page(table);
        if (l->page[b] < 0)
            return false;
    }
    return true;
}

/* Lays out the move of one tier; false without memory. */
static bool fill_move(struct cache_load *l, int kind, int state) {
    struct tier_move *m = &l->move[kind];
    *m = (struct tier_move){.task = TIER_LOAD, .owner = l};
    struct cache_key *keys = malloc(l->goal * sizeof *keys);
    int32_t *pages = malloc(l->goal * sizeof *pages);
    m->page_keys = l->move_keys[kind] = keys;
    m->pages = l->move_pages[kind] = pages;
    if (!keys || !pages)
        return false;
    for (uint32_t b = 0; b < l->goal; b++) {
        if (l->from[b] != kind)
            continue;
        keys[m->n_pages] = l->keys[b];
        pages[m->n_pages++] = l->page[b];
        l->tokens[kind] += PAGE_TOKENS;
    }
    if (state == kind) {
        m->n_states = 1;
        m->state_keys = &l->keys[l->goal - 1];
        m->positions = &l->position;
        m->slots = &l->slot;
    }
    return true;
}

static void finish_load(struct cache_tiers *t, struct cache_load *l, bool failed) {
    l->failed = failed;
    l->stage = LOAD_DONE;
    let_go(t, l);
}

/* One whose moves will bring the same, NULL: none. */
static struct cache_load *find_lead(const struct cache_tiers *t, const struct cache_load *l) {
    for (struct cache_load *o = t->loads; o; o = o->next)
        if (o != l && o->n_open > 0 && !o->failed && o->stage == LOAD_MOVING &&
            o->goal == l->goal && cache_key_equal(&o->keys[o->goal - 1], &l->keys[l->goal - 1]))
            return o;
    return NULL;
}

/* The lead has come to its end, and so have those who waited for it. Returns whether there were
 * any. */
static bool finish_followers(struct cache_tiers *t, const struct cache_load *lead) {
    bool any = false;
    for (struct cache_load *l = t->loads; l; l = l->next) {
        if (l->lead != lead)
            continue;
        if (l->trouble == TIER_OK) {
            l->trouble = lead->trouble;
            l->trouble_in = lead->trouble_in;
        }
        memcpy(l->tokens, lead->tokens, sizeof l->tokens);
        l->state_from = lead->state_from;
        l->lead = NULL;
        finish_load(t, l, lead->failed);
        any = true;
    }
    return any;
}

/* What is there to fetch, now that all tiers know what they have? Ends the load when nothing is. */
static void start_moving(struct cache_tiers *t, struct cache_load *l) {
    int state = FROM_NOWHERE;
    l->stage = LOAD_MOVING;
    find_goal(t, l, &state);
    l->lead = l->goal > 0 ? find_lead(t, l) : NULL;
    if (l->lead) {
        l->patience = l->lead->patience;
        l->deadline = clock_seconds() + l->patience;
        return;
    }
    bool ok = l->goal > 0 && take_targets(t, l, state);
    uint64_t bytes = 0;
    for (int k = 0; ok && k < TIER_KINDS; k++)
        ok = fill_move(l, k, state);
    if (!ok) {
        finish_load(t, l, true);
        return;
    }
    l->state_from = (enum tier_kind)state;
    for (int k = 0; k < TIER_KINDS; k++) {
        struct tier_move *m = &l->move[k];
        if (m->n_pages + m->n_states == 0)
            continue;
        bytes += m->n_pages * t->index->setup.page_bytes + m->n_states * t->index->setup.slot_bytes;
        l->n_open++;
        t->moving++;
        t->tier[k]->submit(t->tier[k], m);
    }
    l->patience = PATIENCE_SECONDS + (double)bytes / PATIENCE_BYTES;
    l->deadline = clock_seconds() + l->patience;
    if (l->n_open == 0)
        finish_load(t, l, false); /* the device had it all, beyond a gap that was just filled */
}

/* Everything has arrived: the nodes of the prefix get it. Last block first, as tails must grow old
 * before heads. */
static void publish_load(struct cache_tiers *t, struct cache_load *l) {
    struct node_table *table = &t->index->table;
    struct cache_node **node = calloc(l->goal, sizeof(struct cache_node *));
    uint32_t n = 0;
    while (node && n < l->goal && (node[n] = node_hold(table, &l->keys[n], n ? node[n - 1] : NULL)))
        n++;
    bool whole = node && n == l->goal;
    if (whole && l->slot >= 0 && node[n - 1]->slot < 0) {
        node_set_state(table, node[n - 1], l->slot, CHECKPOINT_FETCHED);
        t->index->counts.stored[CHECKPOINT_FETCHED]++;
        l->slot = -1;
        index_freshen(t->index, node[n - 1]);
    }
    for (uint32_t b = n; b-- > 0;) {
        if (whole && l->page[b] >= 0 && node[b]->page < 0) {
            node_set_page(table, node[b], l->page[b]);
            l->page[b] = -1;
        }
    }
    for (uint32_t b = n; b-- > 0;)
        node_drop(table, node[b]);
    free(node);
}

static void count_load(struct cache_tiers *t, struct tier *tier, const struct tier_move *m) {
    struct cache_tier_counts *c = &t->counts[tier->kind];
    c->loads[m->result]++;
    c->loaded_bytes += m->bytes;
    c->load_seconds += m->seconds;
}

/* Returns whether a request that waits has its answer. */
static bool load_move_ended(struct cache_tiers *t, struct tier *tier, struct tier_move *m) {
    struct cache_load *l = m->owner;
    bool waited = !l->ended && !l->given_up && l->stage != LOAD_DONE, news = false;
    l->n_open--;
    if (m->result != TIER_OK && l->trouble == TIER_OK) {
        l->trouble = m->result;
        l->trouble_in = tier->kind;
    }
    if (m->task == TIER_PROBE) {
        if (m->result != TIER_OK)
            count_load(t, tier, m);
        m->n_pages = m->n_states = 0; /* what slowest goes by */
        if (l->n_open == 0 && waited)
            start_moving(t, l);
    } else {
        m->n_pages = m->n_states = 0;
        count_load(t, tier, m);
        l->failed |= m->result != TIER_OK;
        if (l->n_open == 0) {
            if (!l->failed)
                publish_load(t, l);
            finish_load(t, l, l->failed);
            news = finish_followers(t, l);
        }
    }
    news |= waited && l->stage == LOAD_DONE;
    if (l->ended && l->n_open == 0) {
        if (l->stage != LOAD_DONE)
            let_go(t, l);
        free_load(t, l);
    }
    return news;
}

/* Asks the tiers that cannot know by themselves. */
static bool start_probe(struct cache_tiers *t, struct cache_load *l) {
    struct tier *tier = t->tier[TIER_REMOTE];
    struct tier_move *m = &l->move[TIER_REMOTE];
    uint32_t *positions = l->probe_positions = malloc(l->last * sizeof *positions);
    if (!positions)
        return false;
    for (uint32_t b = 0; b < l->last; b++)
        positions[b] = (b + 1) * PAGE_TOKENS;
    /* Keys are shared with the load, which outlives the move. */
    *m = (struct tier_move){
        .task = TIER_PROBE,
        .n_pages = l->last,
        .page_keys = l->keys,
        .n_states = l->last,
        .state_keys = l->keys,
        .positions = positions,
        .owner = l,
    };
    l->deadline = clock_seconds() + PATIENCE_SECONDS;
    l->n_open = 1;
    t->moving++;
    tier->submit(tier, m);
    return true;
}

struct cache_load *cache_fetch(struct cache_tiers *t, const struct cache_lease *lease, uint32_t n,
                               uint32_t most) {
    uint32_t last = (most < n ? most : n - 1) / PAGE_TOKENS;
    last = last < lease->n_keys ? last : lease->n_keys;
    if (last <= lease->resume / PAGE_TOKENS)
        return NULL;
    struct cache_load *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct cache_load){
        .last = last, .slot = -1, .resume = lease->resume / PAGE_TOKENS, .began = clock_seconds()};
    l->keys = malloc(last * sizeof *l->keys);
    l->from = malloc(last);
    l->next = t->loads;
    t->loads = l;
    if (!l->keys || !l->from) {
        free_load(t, l);
        return NULL;
    }
    memcpy(l->keys, lease->keys, last * sizeof *l->keys);
    if (!t->tier[TIER_REMOTE] || !start_probe(t, l))
        start_moving(t, l);
    if (l->stage == LOAD_DONE) {
        free_load(t, l);
        return NULL;
    }
    return l;
}

bool cache_load_done(const struct cache_load *l) {
    return l->stage == LOAD_DONE || l->given_up;
}

/* Where a load that a request lost patience with hangs: its first tier that has yet to answer. */
static enum tier_kind slowest(const struct cache_load *l) {
    l = l->lead ? l->lead : l;
    for (int k = TIER_KINDS - 1; k > 0; k--)
        if (l->move[k].n_pages + l->move[k].n_states > 0)
            return (enum tier_kind)k;
    return TIER_HOST;
}

void cache_load_result(const struct cache_load *l, struct cache_fetched *out) {
    *out = (struct cache_fetched){
        .state_from = TIER_KINDS,
        .trouble = l->trouble,
        .trouble_in = l->trouble_in,
        .seconds = clock_seconds() - l->began,
        .beyond = l->resume * PAGE_TOKENS,
    };
    if (l->stage != LOAD_DONE && l->trouble == TIER_OK) {
        out->trouble = TIER_FAILED;
        out->trouble_in = slowest(l);
        out->late = true;
    }
    out->sure = out->trouble == TIER_OK;
    out->best = l->position ? l->position : out->beyond;
    if (l->failed || l->stage != LOAD_DONE)
        return;
    out->position = l->position;
    out->state_from = l->state_from;
    memcpy(out->tokens, l->tokens, sizeof out->tokens);
}

void cache_load_end(struct cache_tiers *t, struct cache_load *l) {
    l->ended = true;
    if (l->n_open == 0)
        free_load(t, l);
}

/* ------------------------------------------------------------------------------------- rounds */

/* Requests whose tier takes too long go on without it; the move keeps its targets till it ends. */
static bool lose_patience(struct cache_tiers *t) {
    double now = clock_seconds();
    bool news = false;
    for (struct cache_load *l = t->loads; l; l = l->next)
        if (!cache_load_done(l) && !l->ended && now >= l->deadline)
            l->given_up = news = true;
    return news;
}

bool cache_tiers_round(struct cache_tiers *t) {
    bool news = false;
    for (int k = 0; k < TIER_KINDS; k++) {
        struct tier *tier = t->tier[k];
        struct tier_move *m = tier ? tier->collect(tier) : NULL;
        while (m) {
            struct tier_move *next = m->next;
            t->moving--;
            if (m->task == TIER_STORE)
                offer_ended(t, tier, m);
            else
                news |= load_move_ended(t, tier, m);
            m = next;
        }
    }
    news |= lose_patience(t);
    offer_fresh(t);
    return news;
}

uint32_t cache_tiers_moving(const struct cache_tiers *t) {
    return t->moving;
}

double cache_tiers_deadline(const struct cache_tiers *t) {
    double first = 0;
    for (const struct cache_load *l = t->loads; l; l = l->next)
        if (!cache_load_done(l) && !l->ended && (first == 0 || l->deadline < first))
            first = l->deadline;
    return first;
}

void cache_tiers_close(struct cache_tiers *t) {
    if (!t)
        return;
    struct cache_index *x = t->index;
    /* Everything under way ends within the tiers' own limits. */
    while (t->moving > 0) {
        cache_tiers_round(t);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    x->has_tiers = false;
    offer_none(t);
    for (int k = 0; k < TIER_KINDS; k++)
        if (t->tier[k])
            t->tier[k]->close(t->tier[k]);
    free(t);
}

/* ------------------------------------------------------------------------------------ figures */

uint32_t cache_tiers_counts(const struct cache_tiers *t, struct cache_tier_counts out[TIER_KINDS]) {
    uint32_t n = 0;
    for (int k = 0; k < TIER_KINDS; k++) {
        if (!t->tier[k])
            continue;
        out[n] = t->counts[k];
        t->tier[k]->usage(t->tier[k], &out[n++].usage);
    }
    return n;
}

void cache_tiers_reset(struct cache_tiers *t, bool drop, uint64_t dropped[TIER_KINDS],
                       uint64_t left[TIER_KINDS]) {
    for (int k = 0; k < TIER_KINDS; k++) {
        struct tier_usage u = {0};
        dropped[k] = 0;
        if (t->tier[k] && drop)
            dropped[k] = t->tier[k]->reset(t->tier[k], &left[k]);
        else if (t->tier[k])
            t->tier[k]->usage(t->tier[k], &u);
        if (!t->tier[k] || !drop)
            left[k] = u.pages + u.states;
    }
}

void cache_tiers_touch(struct cache_tiers *t, const struct cache_lease *lease, uint32_t n) {
    if (n < PAGE_TOKENS)
        return;
    for (int k = 0; k < TIER_KINDS; k++)
        if (t->tier[k])
            t->tier[k]->touch(t->tier[k], lease->keys, n / PAGE_TOKENS, true);
    offer_again(t, &lease->keys[n / PAGE_TOKENS - 1]);
}
