/* compare.c: opens sides and judges ratios. Called by the commands compare and gate. */
#include "bench/compare.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct compare_run *next_run(struct compare_side *s, const char *path, weir_error *err) {
    struct compare_run *more = realloc(s->run, (s->n + 1) * sizeof *more);
    char *copy = strdup(path);
    if (more)
        s->run = more;
    if (!s->name)
        s->name = strdup(path);
    if (!more || !copy || !s->name) {
        free(copy);
        weir_fail(err, WEIR_NO_MEMORY, path, "no memory");
        return NULL;
    }
    s->run[s->n] = (struct compare_run){.path = copy, .answer_share = NAN};
    return &s->run[s->n++];
}

/* What a run in memory contributes; its records are not needed afterwards. */
static weir_status take_run(struct compare_run *c, const struct run *r, weir_error *err) {
    struct run_summary *summary = calloc(1, sizeof *summary);
    if (!summary)
        return weir_fail(err, WEIR_NO_MEMORY, c->path, "no memory");
    weir_status status = run_summarise(r, summary, err);
    for (size_t i = 0; !status && metric_at(i); i++)
        c->value[i] = metric_of_summary(metric_at(i), summary);
    if (!status) {
        c->valid = summary->valid;
        c->cancelled = r->was_cancelled;
        c->scaled = !run_is_unscaled(r);
        c->started = r->started;
        c->answer_share = summary->answer_share;
        c->invalid = json_array();
        for (uint32_t i = 0; i < summary->n_invalid; i++)
            json_array_append_new(c->invalid, json_string(summary->invalid[i]));
        c->label = r->subject.label ? strdup(r->subject.label) : NULL;
        c->configuration = configuration_of(r);
        c->version = c->configuration ? configuration_version(c->configuration) : NULL;
        status = c->version && c->invalid
                     ? configuration_fingerprint(c->configuration, c->fingerprint, err)
                     : weir_fail(err, WEIR_NO_MEMORY, c->path, "no memory");
    }
    if (!status) {
        status = sample_of(r, &c->sample, err);
        c->has_sample = !status;
    }
    free(summary);
    return status;
}

/* The same directory, or a copy of it: both would halve a noise that nobody measured. */
static weir_status refuse_twice(const struct compare_side *s, weir_error *err) {
    const struct compare_run *last = &s->run[s->n - 1];
    char *mine = realpath(last->path, NULL);
    weir_status status = WEIR_OK;
    for (size_t i = 0; !status && i + 1 < s->n; i++) {
        const struct compare_run *c = &s->run[i];
        char *other = realpath(c->path, NULL);
        bool same = (mine && other && !strcmp(mine, other)) ||
                    (c->started && c->started == last->started && !c->is_foreign &&
                     !strcmp(c->fingerprint, last->fingerprint));
        free(other);
        if (same)
            status = weir_fail(err, WEIR_BAD_VALUE, last->path,
                               "is the same run as %s on this side: a run is no repeat of itself",
                               c->path);
    }
    free(mine);
    return status;
}

static weir_status add_directory(struct compare_side *s, const char *path, weir_error *err) {
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory");
    weir_status status = run_read(path, r, err);
    if (!status) {
        struct compare_run *c = next_run(s, path, err);
        status = c ? take_run(c, r, err) : WEIR_NO_MEMORY;
        run_free(r);
    }
    if (!status)
        status = refuse_twice(s, err);
    free(r);
    return status;
}

weir_status compare_side_add_one(struct compare_side *s, const char *dir, weir_error *err) {
    return add_directory(s, dir, err);
}

static void put_word(json_t *o, const char *key, const char *text) {
    if (text[0])
        json_object_set_new(o, key, json_string(text));
}

/* The point of a file: its only one, or the one of a concurrency. NULL: *err says why. */
static const struct result_row *choose(const struct results *l, const char *file, double conc,
                                       weir_error *err) {
    const struct result_row *found = NULL;
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (!(conc > 0) || l->row[i].conc == conc) {
            found = &l->row[i];
            n++;
        }
    if (n == 1)
        return found;
    if (n == 0 && conc > 0)
        weir_fail(err, WEIR_BAD_FILE, file, "holds no point of concurrency %g", conc);
    else
        weir_fail(err, WEIR_BAD_FILE, file,
                  "holds %zu points%s; a side is one: name its concurrency as FILE@N", n,
                  conc > 0 ? " of this concurrency" : "");
    return NULL;
}

/* A file that says nothing of it is taken for valid. */
static void take_state(struct compare_run *c, const char *state) {
    c->valid = !state[0];
    c->cancelled = !strcmp(state, "cancelled");
    c->scaled = !strcmp(state, "scaled");
    if (state[0])
        json_array_append_new(c->invalid, json_sprintf("its file says: %s", state));
}

static weir_status add_file(struct compare_side *s, const char *path, uint32_t gpus,
                            weir_error *err) {
    struct results l = {0};
    char *file = strdup(path), *at = file ? strrchr(file, '@') : NULL;
    double conc = NAN;
    if (!file)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory");
    if (at && at[1] && strspn(at + 1, "0123456789") == strlen(at + 1)) {
        conc = strtod(at + 1, NULL);
        *at = 0;
    }
    weir_status status = results_read(file, gpus, &l, err);
    const struct result_row *row = status ? NULL : choose(&l, path, conc, err);
    struct compare_run *c = row ? next_run(s, path, err) : NULL;
    if (c) {
        for (size_t i = 0; metric_at(i); i++)
            c->value[i] = metric_of_result(metric_at(i), row);
        c->is_foreign = true;
        c->invalid = json_array();
        take_state(c, row->state);
        c->label = row->label[0] ? strdup(row->label) : NULL;
        c->version = strdup("");
        c->configuration = json_object();
        put_word(c->configuration, "hardware", row->hardware);
        put_word(c->configuration, "framework", row->framework);
        put_word(c->configuration, "model", row->model);
        put_word(c->configuration, "precision", row->precision);
        put_word(c->configuration, "spec_decoding", row->spec);
        if (row->conc > 0)
            json_object_set_new(c->configuration, "concurrency",
                                json_integer((json_int_t)row->conc));
    } else if (!status) {
        status = err->code;
    }
    results_free(&l);
    free(file);
    return status;
}

/* A path as it stands is a directory, or nothing at all: its own reader says what is wrong. */
static bool is_file(const char *path) {
    struct stat st;
    const char *at = strrchr(path, '@');
    char *before = at ? strndup(path, (size_t)(at - path)) : NULL;
    bool file = (!stat(path, &st) || (before && !stat(before, &st))) && !S_ISDIR(st.st_mode);
    free(before);
    return file;
}

static bool is_absent(const char *path) {
    struct stat st;
    return stat(path, &st) != 0 && !is_file(path);
}

weir_status compare_side_add(struct compare_side *s, const char *paths, uint32_t gpus,
                             weir_error *err) {
    if (!*paths)
        return weir_fail(err, WEIR_BAD_VALUE, "DIR", "is empty");
    for (const char *p = paths; *p;) {
        size_t n = strcspn(p, ",");
        char *one = strndup(p, n);
        weir_status status;
        if (!one)
            return weir_fail(err, WEIR_NO_MEMORY, paths, "no memory");
        if (!n)
            status = weir_fail(err, WEIR_BAD_VALUE, paths, "has an empty name between commas");
        else if (is_absent(one))
            status = run_input_absent(one, err);
        else if (is_file(one))
            status = add_file(s, one, gpus, err);
        else
            status = add_directory(s, one, err);
        free(one);
        if (status)
            return status;
        p += n + (p[n] == ',');
    }
    return WEIR_OK;
}

/* Records of a run of the history, where its files are still the ones it was recorded with. */
static void try_records(struct compare_run *c, int64_t started) {
    struct run *r = calloc(1, sizeof *r);
    weir_error ignored = {0};
    if (r && !access(c->path, R_OK) && !run_read(c->path, r, &ignored)) {
        struct run_summary *sum = r->started == started ? calloc(1, sizeof *sum) : NULL;
        if (r->started == started)
            c->has_sample = !sample_of(r, &c->sample, &ignored);
        if (sum && !run_summarise(r, sum, &ignored))
            c->answer_share = sum->answer_share;
        free(sum);
        run_free(r);
    }
    free(r);
}

weir_status compare_side_add_history(struct compare_side *s, const struct store_run *runs, size_t n,
                                     weir_error *err) {
    for (size_t i = 0; i < n; i++) {
        const struct store_run *h = &runs[i];
        struct compare_run *c = next_run(s, h->dir, err);
        if (!c)
            return WEIR_NO_MEMORY;
        for (size_t k = 0; metric_at(k); k++)
            c->value[k] = metric_of_row(metric_at(k), h->row);
        c->label = h->label ? strdup(h->label) : NULL;
        c->version = strdup(h->version);
        c->configuration = json_incref(h->configuration);
        c->invalid = json_incref(h->invalid);
        c->valid = h->valid;
        c->cancelled = h->cancelled;
        c->scaled = h->scaled;
        c->started = h->started;
        snprintf(c->fingerprint, sizeof c->fingerprint, "%s", h->fingerprint);
        try_records(c, h->started);
    }
    return WEIR_OK;
}

void compare_side_free(struct compare_side *s) {
    for (size_t i = 0; i < s->n; i++) {
        struct compare_run *c = &s->run[i];
        free(c->path);
        free(c->label);
        free(c->version);
        json_decref(c->configuration);
        json_decref(c->invalid);
        sample_free(&c->sample);
    }
    free(s->run);
    free(s->name);
    *s = (struct compare_side){0};
}

const char *verdict_name(enum verdict v) {
    switch (v) {
    case VERDICT_NONE: return "no interval";
    case VERDICT_NOISE: return "within noise";
    case VERDICT_BETTER: return "better";
    case VERDICT_WORSE: return "worse";
    }
    return "";
}

static enum verdict judge(const struct metric *m, const struct ratio *r) {
    if (!(r->low <= r->high)) /* an unknown one, too */
        return VERDICT_NONE;
    if (r->low <= 1 && r->high >= 1)
        return VERDICT_NOISE;
    return (r->low > 1) == m->higher_better ? VERDICT_BETTER : VERDICT_WORSE;
}

static size_t place_of(const struct metric *m) {
    return (size_t)(m - metric_at(0));
}

/* runs of one side for each metric, [metric][run] */
static struct measured *measured_of(const struct compare_side *s, const struct metric *const *m,
                                    size_t n_m) {
    struct measured *out = calloc(s->n * n_m + 1, sizeof *out);
    for (size_t k = 0; out && k < n_m; k++)
        for (size_t i = 0; i < s->n; i++)
            out[k * s->n + i] = (struct measured){s->run[i].value[place_of(m[k])],
                                                  s->run[i].has_sample ? &s->run[i].sample : NULL};
    return out;
}

weir_status compare_sides(const struct compare_side *a, const struct compare_side *b,
                          const struct metric *const *m, size_t n_m, const struct run_noise *noise,
                          const struct bootstrap_options *o, struct comparison *out,
                          weir_error *err) {
    struct measured *of_a = measured_of(a, m, n_m), *of_b = measured_of(b, m, n_m);
    struct ratio *ratio = calloc(n_m + 1, sizeof *ratio);
    weir_status status =
        of_a && of_b && ratio
            ? bootstrap_ratios(m, n_m, of_a, a->n, of_b, b->n, noise, o, ratio, err)
            : weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
    for (size_t k = 0; !status && k < n_m; k++)
        out[k] = (struct comparison){m[k], ratio[k], judge(m[k], &ratio[k])};
    free(of_a);
    free(of_b);
    free(ratio);
    return status;
}

static bool is_in(const struct compare_side *s, const struct store_run *h) {
    for (size_t i = 0; i < s->n; i++)
        if (s->run[i].started == h->started)
            return true;
    return false;
}

weir_status compare_noise(struct store *s, const struct compare_side *a,
                          const struct compare_side *b, const struct metric *const *m, size_t n_m,
                          struct run_noise *noise, weir_error *err) {
    const struct compare_side *const sides[] = {a, b};
    const struct compare_run *seen[64];
    size_t n_seen = 0;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < sides[k]->n && n_seen < 64; i++) {
            const struct compare_run *c = &sides[k]->run[i];
            bool again = !c->fingerprint[0];
            for (size_t j = 0; j < n_seen; j++)
                again = again || (!strcmp(seen[j]->fingerprint, c->fingerprint) &&
                                  !strcmp(seen[j]->version, c->version));
            if (again)
                continue;
            seen[n_seen++] = c;
            struct store_query q = {.fingerprint = c->fingerprint,
                                    .version = c->version,
                                    .valid_only = true,
                                    .last = 64};
            struct store_run *runs = NULL;
            size_t n = 0, kept = 0;
            double value[64];
            weir_status status = store_runs(s, &q, &runs, &n, err);
            if (status)
                return status;
            for (size_t metric = 0; metric < n_m; metric++) {
                kept = 0;
                for (size_t r = 0; r < n; r++)
                    if (!is_in(a, &runs[r]) && !is_in(b, &runs[r]))
                        value[kept++] = metric_of_row(m[metric], runs[r].row);
                run_noise_add(&noise[metric], value, kept);
            }
            store_runs_free(runs, n);
        }
    return WEIR_OK;
}

static const json_t *value_at(const struct compare_side *s, const char *key) {
    return s->n ? json_object_get(s->run[0].configuration, key) : NULL;
}

json_t *compare_differences(const struct compare_side *sides, size_t n) {
    json_t *out = json_object();
    for (size_t i = 0; i < n; i++) {
        const char *key;
        json_t *value;
        if (!sides[i].n)
            continue;
        json_object_foreach(sides[i].run[0].configuration, key, value) {
            bool differs = false;
            for (size_t k = 0; k < n; k++) {
                const json_t *other = value_at(&sides[k], key);
                bool silent = !other && sides[k].n && sides[k].run[0].is_foreign;
                differs = differs || (!silent && (!other || !json_equal(other, value)));
            }
            if (!differs || configuration_is_incidental(key) || json_object_get(out, key))
                continue;
            json_t *list = json_array();
            for (size_t k = 0; k < n; k++) {
                const json_t *v = value_at(&sides[k], key);
                json_array_append_new(list, v ? json_deep_copy(v) : json_null());
            }
            json_object_set_new(out, key, list);
        }
    }
    return out;
}
