/* tiers_inside.h: what tiers.c, offer.c and reach.c share. Inside of the cache room. */
#ifndef WEIR_CACHE_TIERS_INSIDE_H
#define WEIR_CACHE_TIERS_INSIDE_H

#include "cache/index_inside.h"
#include "cache/tiers.h"

/* Until when a tier is not offered again what it lacks, because it did not take the last such
 * offer; began: as of then. */
struct offer_pause {
    double until;
    uint64_t began;
};

struct cache_tiers {
    struct cache_index *index;
    struct tier *tier[TIER_KINDS]; /* by kind, NULL: none */
    struct cache_tier_counts counts[TIER_KINDS];
    struct cache_load *loads; /* not freed yet */
    uint32_t moving, pages_in_stores;
    uint64_t stores_lost; /* offers that did not arrive */
    struct offer_pause pause[TIER_KINDS];
};

/* Where a block or a state is: a tier's kind, or: */
enum { FROM_DEVICE = TIER_KINDS, FROM_NOWHERE };

/* How many blocks of the prefix have their history somewhere, `last` at most, if the first b have:
 * where each of the others is goes to from[] (NULL: nowhere). */
uint32_t reach_history(const struct cache_tiers *t, const struct cache_key *keys, uint32_t b,
                       uint32_t last, uint8_t *from);
/* The furthest of these blocks, further than `beyond`, with a state at its end, which is in *from;
 * 0: there is none. */
uint32_t reach_state(const struct cache_tiers *t, const struct cache_key *keys, uint32_t history,
                     uint32_t beyond, int *from);

/* Offers every tier the states published since the last time. */
void offer_fresh(struct cache_tiers *t);
/* The same, without an offer: nobody takes them any more. */
void offer_none(struct cache_tiers *t);
/* The state of this key was resumed from: what of it and its history a tier has lost or never got
 * is offered again, unless nothing can have been lost since the last time. */
void offer_again(struct cache_tiers *t, const struct cache_key *key);
/* A store has ended. */
void offer_ended(struct cache_tiers *t, struct tier *tier, struct tier_move *m);

#endif
