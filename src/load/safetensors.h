/* safetensors.h: reads the header of one shard. Nothing in it is believed before it was checked
 * against the file's size. */
#ifndef WEIR_LOAD_SAFETENSORS_H
#define WEIR_LOAD_SAFETENSORS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 8 };

struct safetensors_entry {
    char *name;
    char dtype[8]; /* as written: "BF16", "F32", "U8" ... */
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* bytes within the file (not within the data area) */
};

struct safetensors {
    struct safetensors_entry *entry; /* by name */
    size_t n;
};

/* Parses the header of a file of `file_bytes` bytes whose first `bytes` are at `data` (the whole
 * header must be there). WEIR_BAD_FILE: a Git LFS pointer, header larger than the file or than 100
 * MB, not JSON, duplicate names, a bad entry, a range outside the file, ranges that overlap, a
 * range that is not shape times dtype. */
weir_status safetensors_parse(const unsigned char *data, size_t bytes, uint64_t file_bytes,
                              const char *path, struct safetensors *out, weir_error *err);
void safetensors_free(struct safetensors *s);
const struct safetensors_entry *safetensors_find(const struct safetensors *s, const char *name);

#endif
