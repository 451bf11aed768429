/* index_inside.h: the index as the files of this room see it. */
#ifndef WEIR_CACHE_INDEX_INSIDE_H
#define WEIR_CACHE_INDEX_INSIDE_H

#include "cache/index.h"
#include "cache/node.h"

struct cache_index {
    struct cache_setup setup;
    struct node_table table;
    struct cache_hasher *hasher;
    struct cache_counts counts;
    /* States published since the tiers were last offered some, each held; kept only with tiers. */
    bool has_tiers;
    struct cache_node *fresh;
};

/* Makes the keys of the whole blocks of n tokens known to the lease. */
void index_hash(struct cache_index *x, struct cache_lease *lease, const int32_t *ids, uint32_t n);

/* Puts a published state on the list for lower tiers. */
void index_freshen(struct cache_index *x, struct cache_node *n);

#endif
