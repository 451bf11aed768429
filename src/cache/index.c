/* index.c: hands out pages and state slots. Called by engine/scheduler alone, from one thread.
 *
 * Two pools of ids with a geometry of their own, each a stack: what was given back last is handed
 * out first, while its bytes are warm. Invariant that bites: an id is held by at most one lease;
 * `held` proves it on every move, because a page held twice shows up as another user's text. */
#include "cache/index.h"

#include <stdlib.h>

struct id_pool {
    int32_t *free_ids; /* stack; the top is at n_free - 1 */
    bool *held;
    uint32_t n_free, total;
};

struct cache_index {
    struct id_pool pages, slots;
};

static bool pool_open(struct id_pool *p, uint32_t total) {
    *p = (struct id_pool){.n_free = total, .total = total};
    p->free_ids = calloc(total ? total : 1, sizeof *p->free_ids);
    p->held = calloc(total ? total : 1, sizeof *p->held);
    if (!p->free_ids || !p->held)
        return false;
    for (uint32_t i = 0; i < total; i++)
        p->free_ids[i] = (int32_t)(total - 1 - i);
    return true;
}

static void pool_close(struct id_pool *p) {
    free(p->free_ids);
    free(p->held);
}

static int32_t pool_take(struct id_pool *p) {
    WEIR_ASSERT(p->n_free > 0);
    int32_t id = p->free_ids[--p->n_free];
    WEIR_ASSERT(!p->held[id]);
    p->held[id] = true;
    return id;
}

static void pool_give(struct id_pool *p, int32_t id) {
    WEIR_ASSERT(id >= 0 && (uint32_t)id < p->total && p->held[id]);
    p->held[id] = false;
    p->free_ids[p->n_free++] = id;
}

struct cache_index *cache_index_open(uint32_t pages, uint32_t slots) {
    struct cache_index *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    bool ok = pool_open(&x->pages, pages);
    ok = pool_open(&x->slots, slots) && ok;
    if (!ok) {
        cache_index_close(x);
        return NULL;
    }
    return x;
}

void cache_index_close(struct cache_index *x) {
    if (!x)
        return;
    pool_close(&x->pages);
    pool_close(&x->slots);
    free(x);
}

weir_status cache_lease_open(struct cache_lease *lease, uint32_t max_tokens) {
    *lease = (struct cache_lease){.capacity = cache_pages_for(max_tokens), .slot = -1, .from = -1};
    lease->pages = malloc((lease->capacity ? lease->capacity : 1) * sizeof *lease->pages);
    return lease->pages ? WEIR_OK : WEIR_NO_MEMORY;
}

void cache_lease_close(struct cache_lease *lease) {
    WEIR_ASSERT(lease->n_pages == 0 && lease->slot < 0);
    free(lease->pages);
    lease->pages = NULL;
}

void cache_match(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n,
                 const char *salt) {
    WEIR_ASSERT(lease->n_pages == 0 && lease->slot < 0);
    lease->resume = 0;
    lease->from = -1;
}

bool cache_grow(struct cache_index *x, struct cache_lease *lease, uint32_t tokens) {
    uint32_t want = cache_pages_for(tokens);
    uint32_t pages = want > lease->n_pages ? want - lease->n_pages : 0;
    bool slot = lease->slot < 0;
    WEIR_ASSERT(want <= lease->capacity);
    if (pages > x->pages.n_free || (slot && x->slots.n_free == 0))
        return false;
    while (lease->n_pages < want)
        lease->pages[lease->n_pages++] = pool_take(&x->pages);
    if (slot)
        lease->slot = pool_take(&x->slots);
    return true;
}

void cache_computed(struct cache_index *x, struct cache_lease *lease, const int32_t *ids,
                    uint32_t tokens) {
    WEIR_ASSERT(cache_pages_for(tokens) <= lease->n_pages);
}

void cache_release(struct cache_index *x, struct cache_lease *lease) {
    while (lease->n_pages > 0)
        pool_give(&x->pages, lease->pages[--lease->n_pages]);
    if (lease->slot >= 0)
        pool_give(&x->slots, lease->slot);
    lease->slot = lease->from = -1;
    lease->resume = 0;
}

struct cache_usage cache_get_usage(const struct cache_index *x) {
    return (struct cache_usage){
        .pages_used = x->pages.total - x->pages.n_free,
        .pages_total = x->pages.total,
        .slots_used = x->slots.total - x->slots.n_free,
        .slots_total = x->slots.total,
    };
}

bool cache_can_hold(const struct cache_index *x, uint32_t tokens) {
    return cache_pages_for(tokens) <= x->pages.total && x->slots.total > 0;
}
