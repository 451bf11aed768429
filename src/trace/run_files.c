/* run_files.c: writes the files of a run. Called by the replay and the simulator. Each file is
 * written beside its name and moved there when it is whole, so that nobody reads half of one. */
#include "trace/run_inside.h"

#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writer {
    const char *dir;
    weir_error *err;
    char *path, *beside;
    FILE *f;
};

static weir_status no_memory(struct writer *w) {
    return weir_fail(w->err, WEIR_NO_MEMORY, w->dir, "no memory to write it");
}

static weir_status begin(struct writer *w, const char *name) {
    w->path = file_join(w->dir, name);
    w->beside = NULL;
    w->f = NULL;
    if (!w->path || asprintf(&w->beside, "%s.part", w->path) < 0) {
        w->beside = NULL;
        return no_memory(w);
    }
    w->f = fopen(w->beside, "we");
    return w->f ? WEIR_OK
                : weir_fail(w->err, WEIR_BAD_FILE, w->path, "cannot be written: %s",
                            strerror(errno));
}

static weir_status end(struct writer *w, weir_status status) {
    bool bad = w->f && ferror(w->f);
    if (w->f)
        bad = fclose(w->f) || bad;
    if (!status && (bad || rename(w->beside, w->path)))
        status =
            weir_fail(w->err, WEIR_BAD_FILE, w->path, "cannot be written: %s", strerror(errno));
    if (status && w->beside)
        unlink(w->beside);
    free(w->path);
    free(w->beside);
    return status;
}

/* One value and a line break. `value` is taken over. 15 digits show a rounded number as it was
 * meant; 17 keep any other. */
static weir_status put(struct writer *w, json_t *value, size_t flags) {
    if (!value)
        return no_memory(w);
    json_dumpf(value, w->f, flags); /* end() looks at the stream's error */
    fputc('\n', w->f);
    json_decref(value);
    return WEIR_OK;
}

static weir_status write_object(struct writer *w, const char *name, json_t *value, size_t flags) {
    weir_status s = begin(w, name);
    if (s)
        json_decref(value);
    else
        s = put(w, value, flags | JSON_INDENT(2));
    return end(w, s);
}

static weir_status write_records(struct writer *w, const struct run *r) {
    weir_status s = begin(w, "profile_export.jsonl");
    for (uint32_t i = 0; !s && i < r->n_records; i++)
        s = put(w, record_json(&r->records[i]), JSON_COMPACT | JSON_REAL_PRECISION(15));
    return end(w, s);
}

static json_t *sample_json(struct server_sample *x) {
    size_t n;
    const struct sample_field *f = sample_fields(&n);
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "at_ns", json_integer(x->at), &ok);
    for (size_t i = 0; i < n; i++) {
        double v = *sample_number(x, &f[i]);
        /* json_real refuses what is not finite. */
        json_put(o, f[i].name, v - v == 0 ? json_real(v) : json_null(), &ok);
    }
    return json_done(o, ok);
}

static weir_status write_timeline(struct writer *w, const struct run *r) {
    weir_status s = begin(w, "timeline.jsonl");
    for (uint32_t i = 0; !s && i < r->n_samples; i++)
        s = put(w, sample_json(&r->samples[i]), JSON_COMPACT | JSON_REAL_PRECISION(17));
    return end(w, s);
}

static weir_status write_csv(struct writer *w, const struct run *r, const struct run_summary *s) {
    weir_status status = begin(w, "profile_export_aiperf.csv");
    if (!status) {
        char *text = run_summary_csv(r, s);
        if (text)
            fputs(text, w->f);
        else
            status = no_memory(w);
        free(text);
    }
    return end(w, status);
}

/* Also the folders above it. */
static weir_status make_dir(const char *dir, weir_error *err) {
    char *path = strdup(dir);
    weir_status s = path ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, dir, "no memory to write it");
    for (char *at = path; !s && at; at = at ? at + 1 : NULL) {
        at = strchr(at, '/');
        if (at)
            *at = 0;
        if (*path && mkdir(path, 0777) && errno != EEXIST)
            s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be made: %s", strerror(errno));
        if (at)
            *at = '/';
        else
            break;
    }
    struct stat is;
    if (!s && (stat(dir, &is) || !S_ISDIR(is.st_mode)))
        s = weir_fail(err, WEIR_BAD_FILE, dir, "is not a directory");
    free(path);
    return s;
}

weir_status run_prepare(const char *dir, weir_error *err) {
    struct writer w = {.dir = dir, .err = err};
    weir_status s = make_dir(dir, err);
    if (s)
        return s;
    s = begin(&w, "run.json");
    if (w.f)
        fclose(w.f);
    if (w.f)
        unlink(w.beside);
    free(w.path);
    free(w.beside);
    return s;
}

weir_status run_write(const struct run *r, const char *dir, weir_error *err) {
    struct run_summary *s = malloc(sizeof *s);
    struct writer w = {.dir = dir, .err = err};
    weir_status status = s ? run_summarise(r, s, err) : no_memory(&w);
    if (!status)
        status = make_dir(dir, err);
    if (!status)
        status = write_records(&w, r);
    if (!status)
        status = write_timeline(&w, r);
    if (!status)
        status = write_object(&w, "profile_export_aiperf.json", run_summary_json(r, s),
                              JSON_REAL_PRECISION(15));
    if (!status)
        status = write_csv(&w, r, s);
    if (!status)
        status =
            write_object(&w, "inferencex.json", run_inferencex_json(r, s), JSON_REAL_PRECISION(15));
    if (!status)
        status = write_object(&w, "run.json", run_config_json(r, s), JSON_REAL_PRECISION(15));
    free(s);
    return status;
}
