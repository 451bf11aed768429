/* shards.c: finds, maps and cross-checks the shards of a checkpoint. Called by weights.c and
 * inspect.c. Invariant that bites: shard names come from the index alone; composing them from a
 * count would read another download's files. */
#include "load/shards.h"
#include "model/json_fields.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

enum { MAX_INDEX_BYTES = 256 << 20, MAX_NAME_BYTES = 255 };

static weir_status no_memory(weir_error *err, const char *where) {
    return weir_fail(err, WEIR_NO_MEMORY, where, "no memory for its table of tensors");
}

/* 1: a file `name` can be opened in dir; 0: not; -1: no memory. */
static int present(const char *dir, const char *name) {
    char *path = file_join(dir, name);
    if (!path)
        return -1;
    int there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static weir_status open_shard(const char *dir, struct shard *s, weir_error *err) {
    char *path = file_join(dir, s->name);
    if (!path)
        return no_memory(err, s->name);
    weir_status status = file_map(path, &s->map, err);
    free(path);
    if (status)
        return status;
    return safetensors_parse(s->map.data, s->map.bytes, s->map.bytes, s->name, &s->header, err);
}

static int compare_words(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool plain_file_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > MAX_NAME_BYTES || name[0] == '.' || strstr(name, ".."))
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 32)
            return false;
    return true;
}

/* The distinct file names of weight_map, ascending, as shards that are not yet open. */
static weir_status name_shards(json_t *map, struct shards *s, weir_error *err) {
    size_t n = json_object_size(map), i = 0;
    const char **files = malloc((n ? n : 1) * sizeof *files);
    if (!files)
        return no_memory(err, index_name);
    weir_status status = WEIR_OK;
    const char *tensor;
    json_t *v;
    json_object_foreach(map, tensor, v) {
        if (status)
            break;
        if (!json_is_string(v) || !plain_file_name(json_string_value(v)))
            status = weir_fail(err, WEIR_BAD_FILE, index_name,
                               "tensor %s: its shard must be the name of a file in the same "
                               "directory, not \"%s\"",
                               tensor, json_is_string(v) ? json_string_value(v) : "?");
        else
            files[i++] = json_string_value(v);
    }
    qsort(files, i, sizeof *files, compare_words);
    s->shard = calloc(i ? i : 1, sizeof *s->shard);
    if (!s->shard && !status)
        status = no_memory(err, index_name);
    for (size_t k = 0; k < i && !status; k++) {
        if (k > 0 && strcmp(files[k], files[k - 1]) == 0)
            continue;
        s->shard[s->n].name = strdup(files[k]);
        if (!s->shard[s->n].name)
            status = no_memory(err, index_name);
        else
            s->n++;
    }
    free(files);
    return status;
}

static int compare_tensors(const void *a, const void *b) {
    const struct shard_tensor *x = a, *y = b;
    return strcmp(x->entry->name, y->entry->name);
}

static weir_status collect_tensors(struct shards *s, weir_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->shard[i].header.n;
    s->tensor = malloc((n ? n : 1) * sizeof *s->tensor);
    if (!s->tensor)
        return no_memory(err, index_name);
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->shard[i].header.n; k++) {
            const struct safetensors_entry *e = &s->shard[i].header.entry[k];
            s->tensor[s->n_tensors++] = (struct shard_tensor){e, &s->shard[i]};
            s->data_bytes += e->end - e->begin;
        }
    qsort(s->tensor, s->n_tensors, sizeof *s->tensor, compare_tensors);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (compare_tensors(&s->tensor[i - 1], &s->tensor[i]) == 0)
            return weir_fail(err, WEIR_BAD_FILE, s->tensor[i].shard->name,
                             "tensor %s: stands in %s as well", s->tensor[i].entry->name,
                             s->tensor[i - 1].shard->name);
    return WEIR_OK;
}

/* Every name of the index must lie in the shard the index gives for it. */
static weir_status check_map(json_t *map, const struct shards *s, weir_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);
        const struct shard_tensor *t = shards_find(s, name);
        if (t && strcmp(t->shard->name, file) == 0)
            continue;
        if (t)
            return weir_fail(err, WEIR_BAD_FILE, index_name,
                             "tensor %s: the index puts it into %s, but it lies in %s", name, file,
                             t->shard->name);
        bool absent = false;
        for (size_t i = 0; i < s->n; i++)
            absent |= !s->shard[i].map.data && strcmp(s->shard[i].name, file) == 0;
        if (!absent)
            return weir_fail(err, WEIR_BAD_FILE, file,
                             "tensor %s: the index puts it here, but the file does not hold it",
                             name);
    }
    return WEIR_OK;
}

static weir_status open_named(const char *dir, bool partial, json_t *map, struct shards *s,
                              weir_error *err) {
    weir_status status = name_shards(map, s, err);
    for (size_t i = 0; i < s->n && !status; i++) {
        int there = present(dir, s->shard[i].name);
        if (there < 0)
            return no_memory(err, dir);
        if (!there)
            s->n_absent++;
        if (there || !partial)
            status = there ? open_shard(dir, &s->shard[i], err)
                           : weir_fail(err, WEIR_BAD_FILE, s->shard[i].name,
                                       "is named by %s but is not in %s", index_name, dir);
    }
    if (status == WEIR_OK)
        status = collect_tensors(s, err);
    if (status == WEIR_OK)
        status = check_map(map, s, err);
    return status;
}

static weir_status open_index(const char *dir, bool partial, struct shards *s, weir_error *err) {
    char *path = file_join(dir, index_name), *text;
    size_t bytes;
    if (!path)
        return no_memory(err, dir);
    weir_status status = file_read(path, MAX_INDEX_BYTES, &text, &bytes, err);
    free(path);
    if (status)
        return status;
    json_t *index;
    status = json_text_parse(text, bytes, index_name, &index, err);
    free(text);
    if (status)
        return status;
    s->has_index = true;
    const json_t *claimed = json_object_get(json_object_get(index, "metadata"), "total_size");
    if (json_is_integer(claimed) && json_integer_value(claimed) > 0)
        s->claimed_bytes = (uint64_t)json_integer_value(claimed);
    json_t *map = json_object_get(index, "weight_map");
    if (json_is_object(map) && json_object_size(map) > 0)
        status = open_named(dir, partial, map, s, err);
    else
        status = weir_fail(err, WEIR_BAD_FILE, index_name,
                           "weight_map must be an object that names a shard for every tensor");
    json_decref(index);
    return status;
}

static weir_status open_single(const char *dir, struct shards *s, weir_error *err) {
    s->shard = calloc(1, sizeof *s->shard);
    if (!s->shard || !(s->shard[0].name = strdup(single_name)))
        return no_memory(err, dir);
    s->n = 1;
    weir_status status = open_shard(dir, &s->shard[0], err);
    return status ? status : collect_tensors(s, err);
}

weir_status shards_open(const char *dir, bool partial, struct shards *out, weir_error *err) {
    struct shards s = {0};
    weir_status status;
    if (present(dir, index_name) == 1)
        status = open_index(dir, partial, &s, err);
    else if (present(dir, single_name) == 1)
        status = open_single(dir, &s, err);
    else
        status =
            weir_fail(err, WEIR_BAD_FILE, dir, "holds neither %s nor %s", index_name, single_name);
    if (status)
        shards_close(&s);
    *out = s;
    return status;
}

void shards_close(struct shards *s) {
    for (size_t i = 0; s->shard && i < s->n; i++) {
        safetensors_free(&s->shard[i].header);
        file_unmap(&s->shard[i].map);
        free(s->shard[i].name);
    }
    free(s->shard);
    free(s->tensor);
    *s = (struct shards){0};
}

const struct shard_tensor *shards_find(const struct shards *s, const char *name) {
    size_t lo = 0, hi = s->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->tensor[mid].entry->name);
        if (c == 0)
            return &s->tensor[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
