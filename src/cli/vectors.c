/* vectors.c: reads golden numbers. Called by score.c. */
#include "cli/vectors.h"

#include "base/arena.h"
#include "base/plural.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

weir_status vectors_open(const char *dir, struct vectors *out, weir_error *err) {
    *out = (struct vectors){.dir = strdup(dir), .path = file_join(dir, "manifest.json")};
    if (!out->dir || !out->path) {
        vectors_close(out);
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    }
    char *text;
    size_t n;
    weir_status status = file_read(out->path, (size_t)1 << 30, &text, &n, err);
    if (status) {
        vectors_close(out);
        return status;
    }
    json_error_t fault;
    out->manifest = json_loadb(text, n, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    if (!out->manifest)
        status = weir_fail(err, WEIR_BAD_FILE, out->path, "line %d: %s", fault.line, fault.text);
    else if (!json_is_array(json_object_get(out->manifest, "cases")))
        status = weir_fail(err, WEIR_BAD_FILE, out->path, "has no array 'cases'");
    else if (!(out->model = json_string_value(json_object_get(out->manifest, "model"))))
        status = weir_fail(err, WEIR_BAD_FILE, out->path, "has no text 'model'");
    for (size_t i = 0; !status && i < vectors_cases(out); i++)
        if (!vectors_case_name(vectors_case(out, i)))
            status = weir_fail(err, WEIR_BAD_FILE, out->path, "case %zu has no text 'name'", i);
    if (status)
        vectors_close(out);
    return status;
}

void vectors_close(struct vectors *v) {
    json_decref(v->manifest);
    free(v->dir);
    free(v->path);
    *v = (struct vectors){0};
}

size_t vectors_cases(const struct vectors *v) {
    return json_array_size(json_object_get(v->manifest, "cases"));
}

const json_t *vectors_case(const struct vectors *v, size_t i) {
    return json_array_get(json_object_get(v->manifest, "cases"), i);
}

const char *vectors_case_name(const json_t *c) {
    return json_string_value(json_object_get(c, "name"));
}

/* The SHA-256 of a file in lower-case hexadecimal; false when it cannot be read. */
static bool file_digest(const char *path, char hex[65]) {
    struct mapping map;
    if (file_map(path, &map, NULL))
        return false;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    bool ok = EVP_Digest(map.data, map.bytes, digest, &bytes, EVP_sha256(), NULL) == 1;
    file_unmap(&map);
    for (unsigned i = 0; ok && i < bytes && i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return ok;
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcmp(name + n - m, suffix);
}

bool vectors_belong(const struct vectors *v, const char *model_dir, char why[512]) {
    json_t *digests = json_object_get(v->manifest, "weights_sha256"), *expected;
    const char *name;
    size_t compared = 0;
    json_object_foreach(digests, name, expected) {
        char hex[65];
        if (!has_suffix(name, ".safetensors") || strchr(name, '/') || !json_is_string(expected))
            continue;
        char *path = file_join(model_dir, name);
        bool read = path && file_digest(path, hex);
        free(path);
        if (!read || strcmp(hex, json_string_value(expected))) {
            snprintf(why, 512, read ? "%s/%s has other contents" : "%s has no readable %s",
                     model_dir, name);
            return false;
        }
        compared++;
    }
    if (compared)
        return true;
    snprintf(why, 512, "the manifest names no weights by weights_sha256");
    return false;
}

weir_status vectors_array(const struct vectors *v, const json_t *object, const char *key, char type,
                          struct vector_array *out, weir_error *err) {
    *out = (struct vector_array){0};
    const json_t *entry = json_object_get(object, key);
    if (!entry)
        return WEIR_OK;
    const char *file = json_string_value(json_object_get(entry, "file"));
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    size_t dims = json_array_size(shape), rows = 1;
    if (!file || !*file || strchr(file, '/') || !dtype || dims == 0)
        return weir_fail(err, WEIR_BAD_FILE, v->path,
                         "array %s: needs file (a plain name), dtype and shape", key);
    if (strcmp(dtype, type == 'f' ? "<f4" : "<i4"))
        return weir_fail(err, WEIR_BAD_FILE, v->path, "array %s: dtype is %s, not <%c4", key, dtype,
                         type);
    for (size_t i = 0; i < dims; i++) {
        json_int_t d = json_integer_value(json_array_get(shape, i));
        if (d <= 0 || d > UINT32_MAX)
            return weir_fail(err, WEIR_BAD_FILE, v->path, "array %s: shape[%zu] is no size", key,
                             i);
        if (i + 1 < dims)
            rows = size_mul(rows, (size_t)d);
        else
            out->cols = (size_t)d;
    }
    out->rows = rows;
    char *path = file_join(v->dir, file);
    if (!path)
        return weir_fail(err, WEIR_NO_MEMORY, file, "no memory");
    weir_status status = file_map(path, &out->map, err);
    size_t wanted = size_mul(size_mul(rows, out->cols), 4);
    if (!status && out->map.bytes != wanted) {
        status = weir_fail(err, WEIR_BAD_FILE, path, "has %zu %s, its shape says %zu",
                           out->map.bytes, plural(out->map.bytes, "byte", "bytes"), wanted);
        vectors_array_close(out);
    }
    free(path);
    return status;
}

void vectors_array_close(struct vector_array *a) {
    if (a->map.data)
        file_unmap(&a->map);
    *a = (struct vector_array){0};
}

const float *vector_floats(const struct vector_array *a, size_t row) {
    return (const float *)(const void *)a->map.data + row * a->cols;
}

const int32_t *vector_ints(const struct vector_array *a, size_t row) {
    return (const int32_t *)(const void *)a->map.data + row * a->cols;
}

weir_status vectors_ids(const struct vectors *v, const json_t *object, const char *key,
                        uint32_t vocab, int32_t **out, size_t *n, weir_error *err) {
    const json_t *list = json_object_get(object, key);
    *n = json_array_size(list);
    *out = malloc((*n ? *n : 1) * sizeof **out);
    if (!*out)
        return weir_fail(err, WEIR_NO_MEMORY, v->path, "no memory");
    for (size_t i = 0; i < *n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= vocab) {
            free(*out);
            *out = NULL;
            return weir_fail(err, WEIR_BAD_FILE, v->path,
                             "%s[%zu] is no id from 0 to %u, the model's vocabulary", key, i,
                             vocab - 1);
        }
        (*out)[i] = (int32_t)id;
    }
    return WEIR_OK;
}
