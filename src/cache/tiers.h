/* tiers.h: what moves between the device pools and the tiers below them, and when. States are
 * offered to every tier once they are published, each with the history it needs; a prompt that
 * continues further in a tier than on the device is fetched before it runs. Index and tiers meet
 * here alone. One thread, the engine's. */
#ifndef WEIR_CACHE_TIERS_H
#define WEIR_CACHE_TIERS_H

#include "cache/index.h"
#include "cache/tier.h"

struct cache_tiers;

/* Over `n` open tiers, fastest first, at most one of a kind; takes them over, also on failure.
 * NULL without memory. The index must outlive it. */
struct cache_tiers *cache_tiers_open(struct cache_index *x, struct tier *const *tiers, uint32_t n);
/* Waits for what is under way. Loads must have been ended. */
void cache_tiers_close(struct cache_tiers *t);

/* One request's wait for the tiers. */
struct cache_load;
/* May more than lease->resume be had from the tiers for the first n tokens (at most `most`)? The
 * lease is as cache_match left it and stays so. Returns what to wait for; NULL: nothing, go on. */
struct cache_load *cache_fetch(struct cache_tiers *t, const struct cache_lease *lease, uint32_t n,
                               uint32_t most);
/* Has it come to an end, one way or the other? What arrived is on the device and is found by
 * cache_match. */
bool cache_load_done(const struct cache_load *l);
/* What a load has brought. */
struct cache_fetched {
    uint32_t position;           /* tokens before the state; 0: nothing came */
    uint32_t tokens[TIER_KINDS]; /* of its history, those that came from each tier */
    enum tier_kind state_from;   /* TIER_KINDS: the state was on the device */
    enum tier_result trouble;    /* TIER_OK: none; else why `trouble_in` did not give what it had */
    enum tier_kind trouble_in;
    bool late;       /* of TIER_FAILED: the request went on without it, while it was under way */
    double seconds;  /* that the request waited */
    uint32_t beyond; /* tokens after which the device let it resume when the tiers were asked */
    bool sure;       /* every tier could say what it has: device and tiers together */
    uint32_t best;   /* knew of a pair after so many tokens, and of none further on */
};
void cache_load_result(const struct cache_load *l, struct cache_fetched *out);
/* The request waits no longer. What is under way goes on by itself. */
void cache_load_end(struct cache_tiers *t, struct cache_load *l);

/* The lease, as cache_match left it, is about to be admitted for the first n tokens (it may resume
 * at `most` at the furthest). Extends `matched` by the history that lies in the tiers alone, wants
 * a state where it ends if the policy keeps junctions, and sets `unfetched`. */
void cache_reach(const struct cache_tiers *t, struct cache_lease *lease, uint32_t n, uint32_t most);

/* Takes in moves that have ended and offers fresh states; call once a round. Returns whether a load
 * has come to its end. */
bool cache_tiers_round(struct cache_tiers *t);
/* Moves under way: they hold pages and slots that come back when they end. */
uint32_t cache_tiers_moving(const struct cache_tiers *t);
/* When cache_tiers_round must be called at the latest, in seconds of the monotonic clock; 0: when
 * a tier calls notify. */
double cache_tiers_deadline(const struct cache_tiers *t);

struct cache_tier_counts {
    enum tier_kind kind;
    struct tier_usage usage;
    uint64_t loads[TIER_RESULTS], stores[TIER_RESULTS]; /* loads: questions that failed, too */
    uint64_t loaded_bytes, stored_bytes;
    double load_seconds, store_seconds; /* sums over moves */
};
/* Returns how many tiers there are, in order. */
uint32_t cache_tiers_counts(const struct cache_tiers *t, struct cache_tier_counts out[TIER_KINDS]);
/* Every tier drops what it may, see tier.h; counts of records by kind. drop false: none does. */
void cache_tiers_reset(struct cache_tiers *t, bool drop, uint64_t dropped[TIER_KINDS],
                       uint64_t left[TIER_KINDS]);
/* A prompt resumed after the first n tokens of the lease: lower tiers keep it longer. */
void cache_tiers_touch(struct cache_tiers *t, const struct cache_lease *lease, uint32_t n);

#endif
