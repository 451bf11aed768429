/* remote_known.h: what the remote store is known to hold, so that the engine's questions are
 * answered without asking the server. Bounded: what was used longest ago is forgotten first, which
 * costs no more than asking again. Not locked: its owner does that. */
#ifndef WEIR_CACHE_REMOTE_KNOWN_H
#define WEIR_CACHE_REMOTE_KNOWN_H

#include "cache/tier.h"

/* position 0: the page of the key; otherwise the state of the key at that position. */
struct remote_name {
    struct cache_key key;
    uint32_t position;
};

struct remote_known;
/* Room for `most` records, all of it taken at once; NULL without memory. */
struct remote_known *remote_known_open(uint32_t most);
void remote_known_close(struct remote_known *k);

enum tier_presence remote_known_get(const struct remote_known *k, const struct remote_name *n);
/* ABSENT forgets the record; the others make it the last to be forgotten. */
void remote_known_set(struct remote_known *k, const struct remote_name *n, enum tier_presence p);
/* Makes a known record the last to be forgotten. True: it is PRESENT and the last such answer for
 * it is more than `seconds` of `now` ago (seconds of any clock). */
bool remote_known_touch(struct remote_known *k, const struct remote_name *n, uint32_t now,
                        uint32_t seconds);
/* Forgets all that is PRESENT; returns how many that were. */
uint64_t remote_known_reset(struct remote_known *k);
/* How many pages and states are PRESENT. */
void remote_known_count(const struct remote_known *k, uint64_t *pages, uint64_t *states);

#endif
