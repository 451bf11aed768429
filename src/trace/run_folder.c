/* run_folder.c: which runs a directory of runs holds. Called by the frontier, the report and
 * comparisons, so that all of them read the same ones. Invariant that bites: a sweep that is made
 * anew into its directory may have fewer points than before, and those that it left are of another
 * time. */
#include "trace/run.h"

#include "base/file.h"
#include "base/log.h"
#include "model/json_fields.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { LIMIT = 64 << 20 }; /* of sweep.json */

static weir_status no_memory(const char *path, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its runs");
}

static bool holds(const char *dir, const char *name) {
    char *path = file_join(dir, name);
    bool there = path && !access(path, F_OK);
    free(path);
    return there;
}

weir_status run_input_absent(const char *path, weir_error *err) {
    const char *why = strerror(errno);
    char where[160];
    bool odd = !*path || strchr(path, ':');
    snprintf(where, sizeof where, odd ? "'%.150s'" : "%.150s", path);
    return weir_fail(err, WEIR_BAD_FILE, where, "cannot be read: %s%s", why,
                     odd ? "; an input is a path alone, its label is the one that the run was made "
                           "with (bench replay --label)"
                         : "");
}

bool run_is_dir(const char *dir) {
    return holds(dir, "profile_export.jsonl");
}

weir_status run_dir_refuse(const char *dir, weir_error *err) {
    static const char *const files[] = {"profile_export.jsonl", "run.json", "inferencex.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (holds(dir, files[i]))
            return weir_fail(err, WEIR_BAD_FILE, dir,
                             "holds a run already (%s), and a sweep beside it would not be read; "
                             "give the sweep a directory of its own",
                             files[i]);
    return WEIR_OK;
}

void run_folder_free(struct run_folder *f) {
    for (size_t i = 0; i < f->n; i++)
        free(f->dir[i]);
    free(f->dir);
    *f = (struct run_folder){0};
}

/* Takes over `path`. */
static weir_status add(struct run_folder *f, char *path, weir_error *err) {
    char **more = path ? realloc(f->dir, (f->n + 1) * sizeof *more) : NULL;
    if (!more) {
        free(path);
        return no_memory("runs", err);
    }
    f->dir = more;
    f->dir[f->n++] = path;
    return WEIR_OK;
}

/* ---------------------------------------------------------------------------------- the summary */

static weir_status read_summary(const char *path, json_t **names, weir_error *err) {
    char *text = NULL;
    size_t bytes, i;
    json_t *all = NULL, *point;
    weir_status s = file_read(path, LIMIT, &text, &bytes, err);
    if (!s)
        s = json_text_parse(text, bytes, path, &all, err);
    free(text);
    const json_t *points = json_object_get(all, "points");
    if (!s && !json_is_array(points))
        s = weir_fail(err, WEIR_BAD_FILE, path, "is no summary of a sweep: it lists no \"points\"");
    *names = json_object();
    json_array_foreach(points, i, point) {
        const char *name = json_string_value(json_object_get(point, "dir"));
        if (!s && (!name || !*name || strchr(name, '/') || !strcmp(name, "..")))
            s = weir_fail(err, WEIR_BAD_FILE, path,
                          "field points[%zu].dir: must name a directory in it", i);
        if (!s && json_object_set_new(*names, name, json_true()))
            s = no_memory(path, err);
    }
    json_decref(all);
    return s;
}

static weir_status check_listed(const char *dir, const json_t *names, weir_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)names, name, v) {
        char *path = file_join(dir, name);
        bool there = path && run_is_dir(path);
        free(path);
        if (!there)
            return weir_fail(err, WEIR_BAD_FILE, dir,
                             "its sweep.json lists %s, which is no directory of a run there", name);
    }
    return WEIR_OK;
}

/* -------------------------------------------------------------------------------- the directory */

static int is_shown(const struct dirent *e) {
    return e->d_name[0] != '.';
}

/* Names by bytes: the order must not depend on the locale. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

weir_status run_folder_refuse(const char *dir, weir_error *err) {
    struct dirent **entry = NULL;
    char found[300] = "";
    int n = scandir(dir, &entry, is_shown, by_bytes);
    if (holds(dir, "sweep.json"))
        snprintf(found, sizeof found, "sweep.json");
    for (int i = 0; i < n; i++) {
        char *inside = *found ? NULL : file_join(dir, entry[i]->d_name);
        if (inside && run_is_dir(inside))
            snprintf(found, sizeof found, "%s", entry[i]->d_name);
        free(inside);
        free(entry[i]);
    }
    free(entry);
    if (*found)
        return weir_fail(err, WEIR_BAD_FILE, dir,
                         "holds runs of a sweep or of other replays (%s), which would not be read "
                         "beside a run; give the run a directory of its own",
                         found);
    return WEIR_OK;
}

/* `names`: NULL where there is no summary. */
static weir_status list(const char *dir, const json_t *names, struct run_folder *out,
                        weir_error *err) {
    struct dirent **entry = NULL;
    int n = scandir(dir, &entry, is_shown, by_bytes);
    weir_status s =
        n < 0 ? weir_fail(err, WEIR_BAD_FILE, dir, "cannot be read: %s", strerror(errno)) : WEIR_OK;
    for (int i = 0; i < n; i++) {
        char *inside = s ? NULL : file_join(dir, entry[i]->d_name);
        if (inside && run_is_dir(inside) && names && !json_object_get(names, entry[i]->d_name)) {
            log_line(LOG_WARN,
                     "%s: is not of the sweep that its directory was last used for, and is "
                     "left out; give it by itself to have it read",
                     inside);
        } else if (inside && run_is_dir(inside)) {
            s = add(out, inside, err);
            inside = NULL;
        }
        free(inside);
        free(entry[i]);
    }
    free(entry);
    return s;
}

weir_status run_folder_read(const char *dir, struct run_folder *out, weir_error *err) {
    json_t *names = NULL;
    char *summary = file_join(dir, "sweep.json");
    *out = (struct run_folder){0};
    weir_status s = summary ? WEIR_OK : no_memory(dir, err);
    if (!s && !access(summary, F_OK)) {
        s = read_summary(summary, &names, err);
        if (!s)
            s = check_listed(dir, names, err);
    }
    if (!s)
        s = list(dir, names, out, err);
    if (!s && !out->n)
        s = weir_fail(err, WEIR_BAD_FILE, dir,
                      names ? "its sweep.json lists no point: the sweep had not measured one"
                            : "holds no profile_export.jsonl, nor a directory that does");
    if (s)
        run_folder_free(out);
    json_decref(names);
    free(summary);
    return s;
}
