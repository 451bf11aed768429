/* evicted.h: remembers the keys of what was given up, to tell it from what never was there.
 * Forgets: one place for each of many keys, the last one counts. For explanations, not for
 * decisions. */
#ifndef WEIR_CACHE_EVICTED_H
#define WEIR_CACHE_EVICTED_H

#include "cache/key.h"

struct evicted_keys {
    uint64_t *place; /* [mask + 1] */
    size_t mask;
};

/* Room for some times as many keys as there are places of content (`of`). False without memory. */
bool evicted_open(struct evicted_keys *e, size_t of);
void evicted_close(struct evicted_keys *e);
void evicted_add(struct evicted_keys *e, const struct cache_key *key);
bool evicted_has(const struct evicted_keys *e, const struct cache_key *key);

#endif
