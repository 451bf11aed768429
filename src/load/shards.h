/* shards.h: the safetensors files of one checkpoint directory, mapped, with one table of all their
 * tensors. */
#ifndef WEIR_LOAD_SHARDS_H
#define WEIR_LOAD_SHARDS_H

#include "base/file.h"
#include "load/safetensors.h"

#include <stdbool.h>

struct shard {
    char *name; /* file name inside the directory; messages call the shard by it */
    struct mapping map;
    struct safetensors header;
};

struct shard_tensor {
    const struct safetensors_entry *entry;
    const struct shard *shard;
};

struct shards {
    struct shard *shard;
    size_t n;
    struct shard_tensor *tensor; /* by name */
    size_t n_tensors;
    uint64_t data_bytes;    /* of all tensors */
    bool has_index;         /* false: a single model.safetensors */
    uint64_t claimed_bytes; /* metadata.total_size of the index; 0: not given */
    size_t n_absent;        /* shards that the index names and the directory lacks */
};

/* Opens the shards that DIR/model.safetensors.index.json names, or DIR/model.safetensors. Every
 * header is checked as in safetensors_parse; besides, a shard name that leaves the directory, a
 * shard that is not there (unless `partial`: it then has no map and no tensors), a tensor in two
 * shards and a tensor that is not in the shard the index names are refused. */
weir_status shards_open(const char *dir, bool partial, struct shards *out, weir_error *err);
void shards_close(struct shards *s);
/* NULL: no such tensor. */
const struct shard_tensor *shards_find(const struct shards *s, const char *name);

static inline const unsigned char *shard_tensor_data(const struct shard_tensor *t) {
    return t->shard->map.data + t->entry->begin;
}

#endif
