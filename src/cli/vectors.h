/* vectors.h: a directory of golden numbers: manifest.json and raw little-endian arrays beside it.
 * Layout: vectors/README.md. Nothing in a manifest is believed: shapes are checked against file
 * sizes, names must not leave the directory. */
#ifndef WEIR_CLI_VECTORS_H
#define WEIR_CLI_VECTORS_H

#include "base/error.h"
#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>

struct vectors {
    char *dir, *path; /* path: of the manifest, for messages */
    json_t *manifest;
    const char *model;
};

/* [rows, cols] of f32 or i32, mapped. data NULL: the manifest has none. */
struct vector_array {
    struct mapping map;
    size_t rows, cols;
};

weir_status vectors_open(const char *dir, struct vectors *out, weir_error *err);
void vectors_close(struct vectors *v);
/* Whether the safetensors files of a checkpoint are those the manifest names by SHA-256. A file
 * that is not there or differs: no, and *why (static for this call's caller: 512 bytes) says which.
 */
bool vectors_belong(const struct vectors *v, const char *model_dir, char why[512]);

size_t vectors_cases(const struct vectors *v);
const json_t *vectors_case(const struct vectors *v, size_t i);
const char *vectors_case_name(const json_t *c);

/* Maps the array under `key` of an object of the manifest. Leading dimensions are folded into rows.
 * `type` is 'f' or 'i'. Absent: WEIR_OK and an empty array. */
weir_status vectors_array(const struct vectors *v, const json_t *object, const char *key, char type,
                          struct vector_array *out, weir_error *err);
void vectors_array_close(struct vector_array *a);
const float *vector_floats(const struct vector_array *a, size_t row);
const int32_t *vector_ints(const struct vector_array *a, size_t row);

/* A list of ids, each below `vocab`, in a new array; *n its length. */
weir_status vectors_ids(const struct vectors *v, const json_t *object, const char *key,
                        uint32_t vocab, int32_t **out, size_t *n, weir_error *err);

#endif
