/* remote_value.c: names, headers and checksums of the remote store's values. Called by
 * remote_move.c.
 *
 * Header: 0 magic "weir-rec" | 8 version u32 | 12 kind u32 | 16 model [32] | 48 key [32] |
 * 80 position u32 | 84 layer u32 | 88 payload bytes u64 | 96 parts u32 | 100 zero u32 |
 * 104 payload checksum u64 | 112 zero u64 | 120 checksum of bytes 0..119 u64. XXH3, 64 bits. */
#include "cache/remote_value.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

enum { VERSION = 1 };

static void put32(unsigned char *at, uint32_t v) {
    v = htole32(v);
    memcpy(at, &v, sizeof v);
}

static void put64(unsigned char *at, uint64_t v) {
    v = htole64(v);
    memcpy(at, &v, sizeof v);
}

void remote_value_name(const struct remote_value *v, char out[REMOTE_NAME_BYTES]) {
    char model[CACHE_KEY_HEX], key[CACHE_KEY_HEX];
    cache_key_hex(&v->model, model);
    cache_key_hex(&v->key, key);
    int n = snprintf(out, REMOTE_NAME_BYTES, "weir:1:%.32s:%c:%s", model,
                     v->kind == REMOTE_PAGE ? 'p' : 's', key);
    if (v->kind == REMOTE_LAYER)
        n += snprintf(out + n, REMOTE_NAME_BYTES - (size_t)n, ":%" PRIu32, v->layer);
    WEIR_ASSERT(n > 0 && n < REMOTE_NAME_BYTES);
}

void remote_value_seal(const struct remote_value *v, const void *payload, uint64_t *part_sums,
                       unsigned char header[REMOTE_HEADER_BYTES]) {
    const size_t part = (size_t)(v->payload_bytes / v->parts);
    for (uint32_t i = 0; i < v->parts; i++)
        part_sums[i] = htole64(XXH3_64bits((const char *)payload + i * part, part));
    memset(header, 0, REMOTE_HEADER_BYTES);
    memcpy(header, "weir-rec", 8);
    put32(header + 8, VERSION);
    put32(header + 12, (uint32_t)v->kind);
    memcpy(header + 16, v->model.bytes, CACHE_KEY_BYTES);
    memcpy(header + 48, v->key.bytes, CACHE_KEY_BYTES);
    put32(header + 80, v->position);
    put32(header + 84, v->layer);
    put64(header + 88, v->payload_bytes);
    put32(header + 96, v->parts);
    put64(header + 104, XXH3_64bits(part_sums, v->parts * sizeof *part_sums));
    put64(header + 120, XXH3_64bits(header, 120));
}

bool remote_value_whole(const struct remote_value *v, const unsigned char *value, size_t bytes,
                        uint64_t *part_sums) {
    if (bytes != REMOTE_HEADER_BYTES + v->payload_bytes)
        return false;
    /* The header is a function of what was asked for and of the payload: there is only one. */
    unsigned char header[REMOTE_HEADER_BYTES];
    remote_value_seal(v, value + REMOTE_HEADER_BYTES, part_sums, header);
    return memcmp(header, value, sizeof header) == 0;
}
