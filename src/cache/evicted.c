/* evicted.c: a table of marks, each a part of a key, at the place that the part names. Called by
 * node.c when it gives something up, and by limit.c. */
#include "cache/evicted.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_EVICTED = 1 << 18 };

bool evicted_open(struct evicted_keys *e, size_t of) {
    size_t n = 64;
    while (n < 4 * of && n < MOST_EVICTED)
        n *= 2;
    e->mask = n - 1;
    e->place = calloc(n, sizeof *e->place);
    return e->place != NULL;
}

void evicted_close(struct evicted_keys *e) {
    free(e->place);
    *e = (struct evicted_keys){0};
}

static uint64_t mark_of(const struct cache_key *key) {
    uint64_t h;
    memcpy(&h, key->bytes, sizeof h);
    return h;
}

void evicted_add(struct evicted_keys *e, const struct cache_key *key) {
    uint64_t h = mark_of(key);
    e->place[h & e->mask] = h;
}

bool evicted_has(const struct evicted_keys *e, const struct cache_key *key) {
    uint64_t h = mark_of(key);
    return e->place[h & e->mask] == h;
}
