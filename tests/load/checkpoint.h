/* checkpoint.h: copies of the bundled models in a scratch directory, to be damaged by tests. */
#ifndef WEIR_TESTS_LOAD_CHECKPOINT_H
#define WEIR_TESTS_LOAD_CHECKPOINT_H

#include "tests/test.h"

#include "base/file.h"
#include "load/weights.h"

#include <dirent.h>
#include <math.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

struct scratch {
    char dir[64];
};

static struct scratch scratch_new(void) {
    struct scratch s;
    snprintf(s.dir, sizeof s.dir, "/tmp/weir-test-XXXXXX");
    assert_non_null(mkdtemp(s.dir));
    return s;
}

static const char *scratch_path(const struct scratch *s, const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return path;
}

static void scratch_write(const struct scratch *s, const char *name, const void *data, size_t n) {
    FILE *f = fopen(scratch_path(s, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void scratch_free(const struct scratch *s) {
    DIR *d = opendir(s->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_type == DT_REG || e->d_type == DT_LNK)
            unlink(scratch_path(s, e->d_name));
    closedir(d);
    rmdir(s->dir);
}

static void read_whole(const char *path, char **data, size_t *n) {
    weir_error err = {0};
    if (file_read(path, 1u << 30, data, n, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static struct scratch scratch_copy(const char *model) {
    struct scratch s = scratch_new();
    char from[4096];
    snprintf(from, sizeof from, "%s", source_path(model));
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        char path[8192], *data;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", from, e->d_name);
        read_whole(path, &data, &n);
        scratch_write(&s, e->d_name, data, n);
        free(data);
    }
    closedir(d);
    return s;
}

/* One shard taken apart: change the header, then put it together again. */
struct opened_shard {
    json_t *header;
    char *file;
    size_t file_bytes, data_at;
};

static struct opened_shard shard_read(const struct scratch *s, const char *name) {
    struct opened_shard o;
    read_whole(scratch_path(s, name), &o.file, &o.file_bytes);
    uint64_t length;
    memcpy(&length, o.file, 8);
    o.data_at = 8 + (size_t)length;
    o.header = json_loadb(o.file + 8, (size_t)length, 0, NULL);
    assert_non_null(o.header);
    return o;
}

static void shard_write_text(const struct scratch *s, const char *name,
                             const struct opened_shard *o, const char *header) {
    uint64_t length = strlen(header);
    size_t data = o->file_bytes - o->data_at, n = 8 + (size_t)length + data;
    char *out = malloc(n);
    assert_non_null(out);
    memcpy(out, &length, 8);
    memcpy(out + 8, header, (size_t)length);
    memcpy(out + 8 + length, o->file + o->data_at, data);
    scratch_write(s, name, out, n);
    free(out);
}

static void shard_write(const struct scratch *s, const char *name, struct opened_shard *o) {
    char *text = json_dumps(o->header, JSON_COMPACT);
    shard_write_text(s, name, o, text);
    free(text);
    json_decref(o->header);
    free(o->file);
}

/* The name of a shard that holds routed experts alone. */
static void shard_of_experts(const struct scratch *s, char *name, size_t cap) {
    DIR *d = opendir(s->dir);
    name[0] = 0;
    for (struct dirent *e; (e = readdir(d)) && !name[0];) {
        if (!strstr(e->d_name, ".safetensors") || strstr(e->d_name, ".json"))
            continue;
        struct opened_shard o = shard_read(s, e->d_name);
        bool all = true;
        const char *tensor;
        json_t *v;
        json_object_foreach(o.header, tensor, v) all &=
            strcmp(tensor, "__metadata__") == 0 || strstr(tensor, ".experts.") != NULL;
        if (all)
            snprintf(name, cap, "%s", e->d_name);
        json_decref(o.header);
        free(o.file);
    }
    closedir(d);
    assert_true(name[0] != 0);
}

/* Loads DIR as the engine does. */
static weir_status try_load(const char *dir, weir_error *err) {
    struct model m;
    struct weights *w = NULL;
    *err = (weir_error){0};
    weir_status status = model_open(dir, &m, err);
    if (status == WEIR_OK)
        status = weights_open(dir, &m, &w, err);
    weights_close(w);
    return status;
}

/* The load must fail with this code, and the line must hold every one of the words. A good load
 * must work afterwards. */
static void assert_refused(const struct scratch *s, weir_status code, const char *const *words) {
    weir_error err;
    weir_status status = try_load(s->dir, &err);
    char line[800];
    snprintf(line, sizeof line, "%s: %s", err.where, err.message);
    if (status != code)
        fail_msg("status %d instead of %d: %s", status, code, line);
    for (; *words; words++)
        if (!strstr(line, *words))
            fail_msg("no '%s' in: %s", *words, line);
    if (strchr(line, '\n'))
        fail_msg("more than one line: %s", line);
    if (try_load(source_path("models/micro-k3-odd"), &err) != WEIR_OK)
        fail_msg("a good load failed afterwards: %s: %s", err.where, err.message);
}
#define ASSERT_REFUSED(scratch, code, ...)                                                         \
    assert_refused(scratch, code, (const char *const[]){__VA_ARGS__, NULL})

#pragma GCC diagnostic pop

#endif
