/* remote_value.h: how a page and a state read in the remote store. Strings of Redis, named after
 * the model's fingerprint (its first 16 bytes) and the key of the block they end with:
 *
 *   weir:1:FINGERPRINT:p:KEY        a page record (record.h)
 *   weir:1:FINGERPRINT:s:KEY:LAYER  the record of one KDA layer of a state
 *   weir:1:FINGERPRINT:s:KEY        the state's manifest, written when all layers are there: the
 *                                   checksum of each head of each layer, [layers][heads] u64
 *
 * One value per layer, because a state as a whole can outgrow the 512 MB a value may have. Each
 * value is a header of REMOTE_HEADER_BYTES and its payload. The header says what the payload is,
 * the whole key included, so that a value under a wrong name is noticed. The checksum of a payload
 * is that of the checksums of its parts (a layer: its heads; otherwise one part), so that a reader
 * of a few heads (GETRANGE) can check them against the manifest alone. All numbers little endian.
 */
#ifndef WEIR_CACHE_REMOTE_VALUE_H
#define WEIR_CACHE_REMOTE_VALUE_H

#include "cache/tier.h"

enum remote_kind { REMOTE_PAGE = 1, REMOTE_LAYER, REMOTE_MANIFEST };
enum {
    REMOTE_HEADER_BYTES = 128,
    REMOTE_NAME_BYTES = 128, /* a name with its end mark */
};

/* What a value must be: all of it stands in the header. */
struct remote_value {
    enum remote_kind kind;
    struct cache_key model, key;
    uint32_t position; /* tokens before the state; pages: 0 */
    uint32_t layer;    /* REMOTE_LAYER: which; REMOTE_MANIFEST: how many; pages: 0 */
    uint32_t parts;    /* the payload's, of equal length */
    uint64_t payload_bytes;
};

void remote_value_name(const struct remote_value *v, char out[REMOTE_NAME_BYTES]);
/* Fills the header for `payload`; part_sums[v->parts] receives the checksums of the parts. */
void remote_value_seal(const struct remote_value *v, const void *payload, uint64_t *part_sums,
                       unsigned char header[REMOTE_HEADER_BYTES]);
/* Whether `bytes` of `value`, header included, are what `v` says, whole and unharmed. part_sums as
 * above. */
bool remote_value_whole(const struct remote_value *v, const unsigned char *value, size_t bytes,
                        uint64_t *part_sums);

#endif
