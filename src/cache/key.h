/* key.h: names of prefixes. The key of block i is the SHA-256 of the key of block i-1 and the 64
 * token ids of block i (little endian), so equal keys mean equal tokens from the very first. The
 * chain starts at the root of a name space: what computed the history (model, formats, column) and
 * the tenant's salt. The same on every rank, on every host and after a restart: nothing random goes
 * in. */
#ifndef WEIR_CACHE_KEY_H
#define WEIR_CACHE_KEY_H

#include "ops/ops.h"

enum { CACHE_KEY_BYTES = 32, CACHE_KEY_HEX = 2 * CACHE_KEY_BYTES + 1 };

struct cache_key {
    uint8_t bytes[CACHE_KEY_BYTES];
};

bool cache_key_equal(const struct cache_key *a, const struct cache_key *b);
/* Lower-case hexadecimal, with its end mark. */
void cache_key_hex(const struct cache_key *k, char out[CACHE_KEY_HEX]);

/* Root of a name space. `model` is the model's fingerprint (struct cache_key of all that the bytes
 * depend on); salt NULL: the space common to all. No salt equals any other, the empty one
 * included. */
struct cache_key cache_key_root(const struct cache_key *model, const char *salt);

/* Hashes blocks one after another without allocating. One user at a time. */
struct cache_hasher;
struct cache_hasher *cache_hasher_open(void); /* NULL without memory */
void cache_hasher_close(struct cache_hasher *h);
/* The key of the block that follows `before`. ids: PAGE_TOKENS of them. */
struct cache_key cache_hasher_block(struct cache_hasher *h, const struct cache_key *before,
                                    const int32_t *ids);

#endif
