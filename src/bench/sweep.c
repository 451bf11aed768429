/* sweep.c: finds the points of a sweep and writes its summary. Called by `bench sweep`, `bench
 * compare` and `bench gate`. */
#include "bench/sweep.h"

#include "base/file.h"
#include "model/json_fields.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT = 64 << 20 }; /* of run.json */

static weir_status no_memory(const char *path, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for the sweep");
}

/* Names by bytes: the order must not depend on the locale. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_shown(const struct dirent *e) {
    return e->d_name[0] != '.';
}

bool sweep_is(const char *path) {
    struct stat st;
    struct dirent **entry = NULL;
    bool found = false;
    if (stat(path, &st) || !S_ISDIR(st.st_mode) || run_is_dir(path))
        return false;
    int n = scandir(path, &entry, is_shown, by_bytes);
    for (int i = 0; i < n; i++) {
        char *inside = found ? NULL : file_join(path, entry[i]->d_name);
        found = found || (inside && run_is_dir(inside));
        free(inside);
        free(entry[i]);
    }
    free(entry);
    return found;
}

/* Of run.json alone: the records may be many. */
static weir_status concurrency_of(const char *dir, uint32_t *out, weir_error *err) {
    char *path = file_join(dir, "run.json"), *text = NULL;
    size_t bytes;
    json_t *object = NULL;
    weir_status s = path ? file_read(path, LIMIT, &text, &bytes, err) : no_memory(dir, err);
    if (!s)
        s = json_text_parse(text, bytes, path, &object, err);
    json_int_t n = json_integer_value(json_object_get(object, "concurrency"));
    if (!s && (n < 1 || n > UINT32_MAX))
        s = weir_fail(err, WEIR_BAD_FILE, path,
                      "field concurrency: must be at least 1 for the run to be a point of a sweep");
    *out = s ? 0 : (uint32_t)n;
    json_decref(object);
    free(text);
    free(path);
    return s;
}

static int by_concurrency(const void *a, const void *b) {
    const struct sweep_point *x = a, *y = b;
    return (x->concurrency > y->concurrency) - (x->concurrency < y->concurrency);
}

static weir_status add_run(struct sweep *s, const char *dir, weir_error *err) {
    uint32_t concurrency;
    weir_status status = concurrency_of(dir, &concurrency, err);
    size_t k = 0;
    if (status)
        return status;
    while (k < s->n && s->point[k].concurrency != concurrency)
        k++;
    if (k == s->n) {
        struct sweep_point *more = realloc(s->point, (s->n + 1) * sizeof *more);
        if (!more)
            return no_memory(dir, err);
        s->point = more;
        s->point[s->n++] = (struct sweep_point){.concurrency = concurrency};
    }
    struct sweep_point *p = &s->point[k];
    char **dirs = realloc(p->dir, (p->n + 1) * sizeof *dirs);
    char *copy = strdup(dir);
    if (dirs)
        p->dir = dirs;
    if (!dirs || !copy) {
        free(copy);
        return no_memory(dir, err);
    }
    p->dir[p->n++] = copy;
    return WEIR_OK;
}

static weir_status add_directory(struct sweep *s, const char *path, weir_error *err) {
    struct run_folder runs;
    weir_status status = run_folder_read(path, &runs, err);
    for (size_t i = 0; !status && i < runs.n; i++)
        status = add_run(s, runs.dir[i], err);
    run_folder_free(&runs);
    return status;
}

weir_status sweep_add(struct sweep *s, const char *paths, weir_error *err) {
    weir_status status = WEIR_OK;
    if (!s->name && !(s->name = strdup(paths)))
        return no_memory(paths, err);
    for (const char *p = paths; !status && *p;) {
        size_t n = strcspn(p, ",");
        char *one = strndup(p, n);
        if (!one)
            status = no_memory(paths, err);
        else if (access(one, F_OK))
            status = run_input_absent(one, err);
        else if (!sweep_is(one))
            status = weir_fail(err, WEIR_BAD_FILE, one,
                               "is no sweep, and another side is: a directory of runs is compared "
                               "with such directories, point by point");
        else
            status = add_directory(s, one, err);
        free(one);
        p += n + (p[n] == ',');
    }
    if (s->n)
        qsort(s->point, s->n, sizeof *s->point, by_concurrency);
    return status;
}

void sweep_free(struct sweep *s) {
    for (size_t i = 0; i < s->n; i++) {
        for (size_t k = 0; k < s->point[i].n; k++)
            free(s->point[i].dir[k]);
        free(s->point[i].dir);
    }
    free(s->point);
    free(s->name);
    *s = (struct sweep){0};
}

const struct sweep_point *sweep_at(const struct sweep *s, uint32_t concurrency) {
    for (size_t i = 0; i < s->n; i++)
        if (s->point[i].concurrency == concurrency)
            return &s->point[i];
    return NULL;
}

/* -------------------------------------------------------------------------------------- summary */

json_t *sweep_point_json(const struct run *r, const struct run_summary *s, const char *name) {
    const char *state = run_state(r, s);
    json_t *row = run_row_json(r, s), *invalid = json_array();
    for (uint32_t i = 0; i < s->n_invalid; i++)
        json_array_append_new(invalid, json_string(s->invalid[i]));
    if (row) {
        json_object_set_new(row, "dataset", r->dataset ? json_string(r->dataset) : json_null());
        json_object_set_new(row, "state", state[0] ? json_string(state) : json_null());
        json_object_set_new(row, "requests", json_integer(s->kept));
        json_object_set_new(row, "failed", json_integer(s->failed));
        json_object_set_new(row, "dir", json_string(name));
    }
    return json_pack("{s:s, s:i, s:s?, s:o, s:o}", "dir", name, "concurrency", (int)r->concurrency,
                     "state", state[0] ? state : NULL, "invalid", invalid, "row", row);
}

static void put_cell(FILE *f, const json_t *v) {
    if (json_is_string(v)) {
        fputc('"', f);
        for (const char *c = json_string_value(v); *c; c++) {
            if (*c == '"')
                fputc('"', f);
            fputc(*c == '\n' || *c == '\r' ? ' ' : *c, f);
        }
        fputc('"', f);
    } else if (v && !json_is_null(v)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        fputs(text ? text : "", f);
        free(text);
    }
}

static bool put_rows(FILE *f, const json_t *points, const json_t *left_out) {
    const json_t *first = json_object_get(json_array_get(points, 0), "row");
    const char *key;
    json_t *v, *point;
    size_t i, k = 0;
    json_object_foreach((json_t *)(uintptr_t)first, key, v) fprintf(f, "%s%s", k++ ? "," : "", key);
    fputc('\n', f);
    json_array_foreach(points, i, point) {
        k = 0;
        json_object_foreach((json_t *)(uintptr_t)first, key, v) {
            if (k++)
                fputc(',', f);
            put_cell(f, json_object_get(json_object_get(point, "row"), key));
        }
        fputc('\n', f);
    }
    return true;
}

static bool put_json(FILE *f, const json_t *points, const json_t *left_out) {
    json_t *rows = json_array(), *list = json_array(), *point;
    size_t i;
    json_array_foreach(points, i, point) {
        json_t *copy = json_copy(point);
        json_array_append(rows, json_object_get(point, "row"));
        json_object_del(copy, "row");
        json_array_append_new(list, copy);
    }
    json_t *all = json_pack("{s:o, s:o, s:O}", "rows", rows, "points", list, "left_out", left_out);
    bool good = all && !json_dumpf(all, f, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    fputc('\n', f);
    json_decref(all);
    return good;
}

/* Beside the final name and then renamed, so that nobody reads half of it. */
static weir_status save(const char *dir, const char *name,
                        bool (*put)(FILE *, const json_t *, const json_t *), const json_t *points,
                        const json_t *left_out, weir_error *err) {
    char *path = file_join(dir, name), *beside = NULL;
    if (!path || asprintf(&beside, "%s.part", path) < 0) {
        free(path);
        return no_memory(dir, err);
    }
    FILE *f = fopen(beside, "we");
    bool good = f && put(f, points, left_out) && !ferror(f);
    good = f && !fclose(f) && good && !rename(beside, path);
    weir_status s =
        good ? WEIR_OK
             : weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
    if (!good && f)
        unlink(beside);
    free(beside);
    free(path);
    return s;
}

weir_status sweep_write(const char *dir, const json_t *points, const json_t *left_out,
                        weir_error *err) {
    weir_status s = save(dir, "sweep.json", put_json, points, left_out, err);
    return s ? s : save(dir, "sweep.csv", put_rows, points, left_out, err);
}
