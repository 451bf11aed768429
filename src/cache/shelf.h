/* shelf.h: what a tier of this process holds, by key: records of pages and of states in numbered
 * places of fixed size, who uses them, and in which order they are given up. Knows no bytes: host.c
 * and disk.c own those. Inside of the cache room; one thread calls it.
 *
 * One byte budget covers both kinds. A place is backed while it costs bytes, whether a record lies
 * in it or not; backed places that nobody needs are given back when the other kind wants the room.
 *
 * Order of eviction: the record used longest ago, of either kind, but never a page while a record
 * that needs it is here: a state, or a later page, without the history before it is worth nothing.
 * What needs what is learned from the prefixes that are stored and used. */
#ifndef WEIR_CACHE_SHELF_H
#define WEIR_CACHE_SHELF_H

#include "cache/tier.h"

enum shelf_kind { SHELF_PAGE, SHELF_STATE, SHELF_KINDS };

struct shelf_record {
    struct cache_key key;
    enum shelf_kind kind;
    enum tier_presence presence; /* ABSENT: the place is free, or the record is lost and its place
                                    becomes free with the last pin */
    uint32_t place;              /* number among the places of its kind */
    uint32_t position;           /* states: tokens before it; pages: 0 */
    uint32_t pins;               /* moves that read or write it */
    uint64_t use;                /* larger: used later */
    uint64_t sum[2];             /* the owner's: checksum of the bytes */

    /* The shelf's own. */
    uint32_t below; /* records here that need this one */
    uint32_t depth; /* less than the depth of every record that needs it, so that links never form a
                       circle, whatever keys are given */
    uint64_t born;  /* 0: never used; otherwise tells one record of the place from the next */
    struct shelf_record *needs; /* an earlier page of the same prefix; valid while it is as old as
                                 */
    uint64_t needs_born;        /* this says */
    struct shelf_record *older, *newer, *same_bucket; /* same_bucket also links free places */
};

struct shelf;
/* record_bytes: what a place of each kind costs, > 0. NULL without memory. */
struct shelf *shelf_open(const uint64_t record_bytes[SHELF_KINDS], uint64_t budget);
void shelf_close(struct shelf *s);
/* Places of a kind that the budget can hold: their numbers are below this. */
uint32_t shelf_places(const struct shelf *s, enum shelf_kind kind);

uint64_t shelf_record_bytes(const struct shelf *s, enum shelf_kind kind);

/* NULL: not here, or lost. A state of another position than the one asked for is not here. */
struct shelf_record *shelf_find(const struct shelf *s, enum shelf_kind kind,
                                const struct cache_key *key, uint32_t position);
/* A place for a record that is not here: COMING, with one pin. Evicts what it must. NULL: no room
 * beside what is pinned, or no memory. */
struct shelf_record *shelf_take(struct shelf *s, enum shelf_kind kind, const struct cache_key *key,
                                uint32_t position);
/* Puts a record found in a place onto a shelf that nothing was taken from yet, PRESENT, unpinned
 * and the last to be evicted so far. NULL: beyond the budget, twice, or without memory. */
struct shelf_record *shelf_adopt(struct shelf *s, enum shelf_kind kind, uint32_t place,
                                 const struct cache_key *key, uint32_t position, uint64_t use);
bool shelf_holds(struct shelf *s, enum shelf_kind kind, uint32_t place); /* a record is there */
void shelf_pin(struct shelf_record *r);
void shelf_unpin(struct shelf *s, struct shelf_record *r);
void shelf_publish(struct shelf *s, struct shelf_record *r); /* COMING to PRESENT */
/* The record is not found any more; its place is free once nobody pins it. */
void shelf_lose(struct shelf *s, struct shelf_record *r);

/* The prefix of these page keys, first block first, was used; state: the key of the one that goes
 * with it, or NULL. Keys that are not here are passed over. whole: keys[0] is the first block. */
void shelf_use(struct shelf *s, const struct cache_key *keys, uint32_t n,
               const struct cache_key *state, bool whole);

/* Places that were taken from one kind to make room for the other: their bytes must be given back
 * before anything is written to the places taken since, and the shelf be told afterwards. False:
 * none is left. */
bool shelf_give_back(struct shelf *s, enum shelf_kind *kind, uint32_t *place);
void shelf_given_back(struct shelf *s, enum shelf_kind kind, uint32_t place);
void shelf_keep_leaving(struct shelf *s, enum shelf_kind kind, uint32_t place); /* not done yet */

/* Loses all that is not pinned; returns how many records that were, *left: how many were pinned. */
uint64_t shelf_reset(struct shelf *s, uint64_t *left);

struct shelf_usage {
    uint64_t records[SHELF_KINDS], present[SHELF_KINDS], evicted[SHELF_KINDS];
    uint64_t bytes;  /* of records, those that are coming included */
    uint64_t backed; /* of places that cost bytes; at most the budget */
    uint64_t budget;
};
struct shelf_usage shelf_get_usage(const struct shelf *s);
void shelf_tell(const struct shelf *s, struct tier_usage *out); /* all but damaged and up */
/* The record used last; the others follow by `older`. Their `use` falls along the way. */
const struct shelf_record *shelf_newest(const struct shelf *s);

/* The bytes could not be had: keeps to what is backed now, without free places. Grow: back to the
 * budget. */
void shelf_shrink(struct shelf *s);
void shelf_grow(struct shelf *s);
/* Is so much of the budget backed that no place fits what is left? */
bool shelf_filled(const struct shelf *s);
/* The bytes of all places are gone: loses every record; none may be pinned. */
void shelf_forget(struct shelf *s);

#endif
