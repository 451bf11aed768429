/* safetensors.c: the header of one shard: a u64 length, that many bytes of JSON, then data. Called
 * by weights.c and by inspect. Invariant that bites: every number comes from a file that may be
 * truncated, half downloaded or hostile, so sums and products are checked before they are used. */
#include "load/safetensors.h"

#include "base/plural.h"
#include "model/json_fields.h"

#include <string.h>

enum { MAX_HEADER = 100000000, LENGTH_BYTES = 8 };

static uint64_t little_endian_64(const unsigned char *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Bits of one element, 0 for a dtype the format does not know. */
static unsigned dtype_bits(const char *dtype) {
    static const struct {
        const char *name;
        unsigned bits;
    } known[] = {{"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
                 {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
                 {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
                 {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(dtype, known[i].name) == 0)
            return known[i].bits;
    return 0;
}

/* What one entry is checked against. */
struct place {
    const char *path;
    uint64_t data_begin, file_bytes;
    weir_error *err;
};

static weir_status bad_entry(const struct place *p, const char *name, const char *what) {
    return weir_fail(p->err, WEIR_BAD_FILE, p->path, "tensor %s: %s", name, what);
}

/* Bytes of the shape in `e`, UINT64_MAX where they do not fit 64 bits. */
static uint64_t shape_bytes(const struct safetensors_entry *e, unsigned bits) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < e->n_dims; i++)
        if (__builtin_mul_overflow(n, e->dims[i], &n))
            return UINT64_MAX;
    if (__builtin_mul_overflow(n, bits, &n))
        return UINT64_MAX;
    return n / 8 + (n % 8 != 0);
}

static weir_status read_shape(const struct place *p, const char *name, const json_t *shape,
                              struct safetensors_entry *e) {
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > SAFETENSORS_MAX_DIMS)
        return bad_entry(p, name, "shape must be a list of at most 8 sizes");
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return bad_entry(p, name, "shape must hold sizes of 0 or more");
        e->dims[i] = (uint64_t)json_integer_value(d);
    }
    e->n_dims = (uint32_t)n;
    return WEIR_OK;
}

static weir_status read_range(const struct place *p, const char *name, const json_t *range,
                              struct safetensors_entry *e) {
    const json_t *lo = json_array_get(range, 0), *hi = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(lo) || !json_is_integer(hi) ||
        json_integer_value(lo) < 0 || json_integer_value(hi) < json_integer_value(lo))
        return bad_entry(p, name, "data_offsets must be two rising byte offsets");
    /* Both are below 2^63, so adding a header of at most 100 MB cannot wrap. */
    e->begin = p->data_begin + (uint64_t)json_integer_value(lo);
    e->end = p->data_begin + (uint64_t)json_integer_value(hi);
    if (e->end > p->file_bytes)
        return weir_fail(p->err, WEIR_BAD_FILE, p->path,
                         "tensor %s: needs bytes %" PRIu64 "..%" PRIu64 ", file ends at %" PRIu64,
                         name, e->begin, e->end, p->file_bytes);
    return WEIR_OK;
}

static weir_status read_entry(const struct place *p, const char *name, const json_t *v,
                              struct safetensors_entry *e) {
    if (!json_is_object(v))
        return bad_entry(p, name, "its header entry must be an object");
    const json_t *dtype = json_object_get(v, "dtype");
    if (!json_is_string(dtype) || json_string_length(dtype) >= sizeof e->dtype)
        return bad_entry(p, name, "dtype is missing or unknown");
    snprintf(e->dtype, sizeof e->dtype, "%s", json_string_value(dtype));
    unsigned bits = dtype_bits(e->dtype);
    if (bits == 0)
        return weir_fail(p->err, WEIR_BAD_FILE, p->path, "tensor %s: unknown dtype %s", name,
                         e->dtype);
    weir_status s = read_shape(p, name, json_object_get(v, "shape"), e);
    if (s == WEIR_OK)
        s = read_range(p, name, json_object_get(v, "data_offsets"), e);
    if (s)
        return s;
    uint64_t want = shape_bytes(e, bits), have = e->end - e->begin;
    if (want != have)
        return weir_fail(p->err, WEIR_BAD_FILE, p->path,
                         "tensor %s: its shape and dtype %s need %" PRIu64
                         " bytes, data_offsets give %" PRIu64,
                         name, e->dtype, want, have);
    e->name = strdup(name);
    return e->name ? WEIR_OK : weir_fail(p->err, WEIR_NO_MEMORY, p->path, "no memory");
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct safetensors_entry *)a)->name,
                  ((const struct safetensors_entry *)b)->name);
}

static int by_begin(const void *a, const void *b) {
    const struct safetensors_entry *x = *(const struct safetensors_entry *const *)a;
    const struct safetensors_entry *y = *(const struct safetensors_entry *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static weir_status check_overlaps(const struct safetensors *s, const struct place *p) {
    const struct safetensors_entry **order = malloc((s->n ? s->n : 1) * sizeof *order);
    if (!order)
        return weir_fail(p->err, WEIR_NO_MEMORY, p->path, "no memory");
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->entry[i].end > s->entry[i].begin) /* an empty tensor overlaps nothing */
            order[n++] = &s->entry[i];
    qsort(order, n, sizeof *order, by_begin);
    weir_status status = WEIR_OK;
    for (size_t i = 1; i < n && !status; i++)
        if (order[i]->begin < order[i - 1]->end)
            status = weir_fail(p->err, WEIR_BAD_FILE, p->path,
                               "tensor %s: bytes %" PRIu64 "..%" PRIu64
                               " overlap those of tensor %s, %" PRIu64 "..%" PRIu64,
                               order[i]->name, order[i]->begin, order[i]->end, order[i - 1]->name,
                               order[i - 1]->begin, order[i - 1]->end);
    free(order);
    return status;
}

static weir_status read_entries(json_t *header, const struct place *p, struct safetensors *out) {
    size_t n = json_object_size(header);
    out->entry = calloc(n ? n : 1, sizeof *out->entry);
    if (!out->entry)
        return weir_fail(p->err, WEIR_NO_MEMORY, p->path, "no memory for %zu tensors", n);
    const char *name;
    json_t *v;
    json_object_foreach(header, name, v) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        weir_status s = read_entry(p, name, v, &out->entry[out->n]);
        if (s)
            return s;
        out->n++;
    }
    qsort(out->entry, out->n, sizeof *out->entry, by_name);
    return check_overlaps(out, p);
}

weir_status safetensors_parse(const unsigned char *data, size_t bytes, uint64_t file_bytes,
                              const char *path, struct safetensors *out, weir_error *err) {
    static const char pointer[] = "version https://git-lfs";
    *out = (struct safetensors){0};
    if (bytes >= sizeof pointer - 1 && memcmp(data, pointer, sizeof pointer - 1) == 0)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "is a Git LFS pointer of %" PRIu64
                         " bytes, not the weights: run `git lfs pull` or download it again",
                         file_bytes);
    if (bytes < LENGTH_BYTES || file_bytes < LENGTH_BYTES)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "has %" PRIu64 " %s, a safetensors file begins with 8 bytes of length: "
                         "broken download?",
                         file_bytes, plural(file_bytes, "byte", "bytes"));
    uint64_t length = little_endian_64(data);
    if (length > MAX_HEADER)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "announces a header of %" PRIu64 " bytes, at most %d are allowed: no "
                         "safetensors file, or a broken download",
                         length, MAX_HEADER);
    if (length > file_bytes - LENGTH_BYTES || length > bytes - LENGTH_BYTES)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "announces a header of %" PRIu64 " bytes, file ends at %" PRIu64
                         ": broken download?",
                         length, file_bytes);
    json_t *header;
    weir_status s =
        json_text_parse((const char *)data + LENGTH_BYTES, (size_t)length, path, &header, err);
    if (s)
        return s;
    const struct place place = {path, LENGTH_BYTES + length, file_bytes, err};
    if (json_is_object(header))
        s = read_entries(header, &place, out);
    else
        s = weir_fail(err, WEIR_BAD_FILE, path, "its header must be a JSON object");
    json_decref(header);
    if (s)
        safetensors_free(out);
    return s;
}

void safetensors_free(struct safetensors *s) {
    for (size_t i = 0; i < s->n; i++)
        free(s->entry[i].name);
    free(s->entry);
    *s = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *s, const char *name) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->entry[mid].name);
        if (c == 0)
            return &s->entry[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
