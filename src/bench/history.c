/* history.c: groups the history's runs by configuration and date. Called by `weir bench history`.
 * Everything is built as JSON once; the table is printed from that, so that the two agree. */
#include "bench/history.h"

#include <math.h>
#include <string.h>
#include <time.h>

static bool same_text(const char *a, const char *b) {
    return (!a && !b) || (a && b && !strcmp(a, b));
}

static bool same_series(const struct store_run *a, const struct store_run *b) {
    if (!a->label || !b->label)
        return !a->label && !b->label && !strcmp(a->fingerprint, b->fingerprint);
    return !strcmp(a->label, b->label) && a->concurrency == b->concurrency &&
           same_text(a->dataset, b->dataset);
}

static void started_as(const struct store_run *r, const char *format, char out[16]) {
    time_t t = (time_t)(r->started / 1000000000);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(out, 16, format, &tm);
}

static void date_of(const struct store_run *r, char out[16]) {
    started_as(r, "%Y-%m-%d", out);
}

/* Was it stopped in the middle? Its figures are not those of its configuration. */
static bool is_incomplete(const struct store_run *r) {
    size_t i;
    json_t *reason;
    json_array_foreach(r->invalid, i, reason) {
        const char *text = json_string_value(reason);
        if (text && !strncmp(text, "aborted", 7))
            return true;
    }
    return r->cancelled;
}

static bool same_date(const struct store_run *a, const struct store_run *b) {
    char x[16], y[16];
    date_of(a, x);
    date_of(b, y);
    return !strcmp(x, y) && !strcmp(a->version, b->version) &&
           !strcmp(a->fingerprint, b->fingerprint) && a->valid == b->valid &&
           is_incomplete(a) == is_incomplete(b);
}

static json_t *value_or_null(const json_t *configuration, const char *key) {
    json_t *v = json_object_get(configuration, key);
    return v ? json_incref(v) : json_null();
}

/* What was set otherwise: {key: [before, now]}. */
static json_t *changes_of(const struct store_run *before, const struct store_run *now) {
    json_t *out = json_object();
    const struct store_run *const side[] = {before, now};
    for (size_t i = 0; before && i < 2; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(side[i]->configuration, key, value) {
            const json_t *other = json_object_get(side[1 - i]->configuration, key);
            if (configuration_is_version(key) || configuration_is_incidental(key) ||
                json_object_get(out, key) || (other && json_equal(other, value)))
                continue;
            json_object_set_new(out, key,
                                json_pack("[o, o]", value_or_null(before->configuration, key),
                                          value_or_null(now->configuration, key)));
        }
    }
    return out;
}

/* Percent by which `now` differs from `before`. */
static json_t *change_of(double now, const json_t *before) {
    double old = json_is_number(before) ? json_number_value(before) : NAN;
    return now > 0 && old > 0 ? json_real(100 * (now / old - 1)) : json_null();
}

static json_t *values_of(const struct store_run *const *run, size_t n,
                         const struct metric *const *m, size_t n_m, const json_t *first,
                         const json_t *previous) {
    json_t *out = json_object();
    for (size_t k = 0; k < n_m; k++) {
        double sum = 0, squares = 0;
        size_t used = 0;
        for (size_t i = 0; i < n; i++) {
            double v = metric_of_row(m[k], run[i]->row);
            if (v > 0) {
                sum += log(v);
                squares += log(v) * log(v);
                used++;
            }
        }
        double v = used ? exp(sum / (double)used) : NAN;
        double many = (double)used, off = squares - sum * sum / fmax(many, 1);
        json_t *spread = used > 1 ? json_real(100 * sqrt(fmax(off, 0) / (many - 1))) : json_null();
        const json_t *a = json_object_get(json_object_get(first, m[k]->name), "value");
        const json_t *b = json_object_get(json_object_get(previous, m[k]->name), "value");
        json_object_set_new(out, m[k]->name,
                            json_pack("{s:o, s:s, s:o, s:o, s:o}", "value",
                                      used ? json_real(v) : json_null(), "unit", m[k]->unit,
                                      "spread_percent", spread, "change_percent", change_of(v, b),
                                      "change_from_first_percent", change_of(v, a)));
    }
    return out;
}

static json_t *opt_text(const char *s) {
    return s ? json_string(s) : json_null();
}

/* A date's line: `run` are its runs. */
static json_t *line_of(const struct store_run *const *run, size_t n, const struct metric *const *m,
                       size_t n_m, const json_t *first, const json_t *previous,
                       const struct store_run *before) {
    char date[16], time[16];
    date_of(run[0], date);
    started_as(run[0], "%H:%M", time);
    bool valid = true, scaled = false, cancelled = false;
    json_t *dirs = json_array();
    for (size_t i = 0; i < n; i++) {
        valid = valid && run[i]->valid;
        scaled = scaled || run[i]->scaled;
        cancelled = cancelled || run[i]->cancelled;
        json_array_append_new(dirs, json_string(run[i]->dir));
    }
    bool changed = before && strcmp(before->fingerprint, run[0]->fingerprint);
    json_t *changes = changed ? changes_of(before, run[0]) : json_object();
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:b, s:b, s:b, s:b, s:b, s:o, s:o, s:o}", "date",
                     date, "time", time, "started", (json_int_t)(run[0]->started / 1000000000),
                     "version", run[0]->version, "runs", (int)n, "valid", valid, "cancelled",
                     cancelled, "scaled", scaled, "incomplete", is_incomplete(run[0]),
                     "configuration_changed", changed, "changes", changes, "metrics",
                     values_of(run, n, m, n_m, first, previous), "dirs", dirs);
}

static json_t *series_of(const struct store_run *runs, size_t n, size_t start, bool *used,
                         const struct store_run **line, const struct metric *const *m, size_t n_m) {
    const struct store_run *head = &runs[start];
    json_t *dates = json_array(), *first = NULL, *previous = NULL;
    const struct store_run *before = NULL;
    for (size_t i = start; i < n; i++) {
        if (used[i] || !same_series(head, &runs[i]))
            continue;
        size_t k = 0;
        for (size_t j = i; j < n; j++)
            if (!used[j] && same_series(head, &runs[j]) && same_date(&runs[i], &runs[j])) {
                line[k++] = &runs[j];
                used[j] = true;
            }
        /* A line of stopped runs is compared with nothing, and nothing with it. */
        bool whole = !is_incomplete(&runs[i]);
        json_t *l = line_of(line, k, m, n_m, whole ? first : NULL, whole ? previous : NULL, before);
        if (whole) {
            before = &runs[i];
            previous = json_object_get(l, "metrics");
            first = first ? first : previous;
        }
        json_array_append_new(dates, l);
    }
    return json_pack("{s:o, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "label",
                     opt_text(head->label), "fingerprint", head->fingerprint, "concurrency",
                     (int)head->concurrency, "hardware", opt_text(head->hardware), "framework",
                     opt_text(head->framework), "model", opt_text(head->model), "precision",
                     opt_text(head->precision), "dataset", opt_text(head->dataset), "dates", dates);
}

json_t *history_json(const struct store_run *runs, size_t n, const struct metric *const *m,
                     size_t n_m) {
    bool *used = calloc(n + 1, sizeof *used);
    const struct store_run **line = calloc(n + 1, sizeof *line);
    json_t *list = json_array();
    for (size_t i = 0; used && line && i < n; i++)
        if (!used[i])
            json_array_append_new(list, series_of(runs, n, i, used, line, m, n_m));
    bool good = used && line && list;
    free(used);
    free(line);
    if (good)
        return json_pack("{s:o}", "series", list);
    json_decref(list);
    return NULL;
}

static const char *text_at(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "?";
}

/* "+12.3 %", or "11.7x" where a percentage would be hard to read. */
static void print_change(FILE *out, const json_t *percent) {
    char text[32] = "";
    if (json_is_number(percent)) {
        double p = json_number_value(percent);
        if (p >= 900)
            snprintf(text, sizeof text, "%.1fx", p / 100 + 1);
        else
            snprintf(text, sizeof text, "%+.1f %%", p);
    }
    fprintf(out, " %9s", text);
}

static int width_of(const struct metric *m) {
    int n = (int)strlen(m->name);
    return n < 12 ? 12 : n;
}

static void print_changes(FILE *out, const json_t *changes) {
    enum { MOST = 4 };
    const char *key;
    json_t *pair;
    int n = 0;
    fputs("  [", out);
    json_object_foreach((json_t *)(uintptr_t)changes, key, pair) {
        if (n++ >= MOST)
            continue;
        char *old = json_dumps(json_array_get(pair, 0), JSON_ENCODE_ANY);
        char *new = json_dumps(json_array_get(pair, 1), JSON_ENCODE_ANY);
        fprintf(out, "%s%s: %s -> %s", n > 1 ? ", " : "", key, old ? old : "", new ? new : "");
        free(old);
        free(new);
    }
    if (n > MOST)
        fprintf(out, " and %d more", n - MOST);
    fputs(n ? "]" : "configuration changed]", out);
}

/* How much the runs of a line differ among themselves, in the first figure. */
static void print_spread(FILE *out, const json_t *line, const struct metric *m) {
    const json_t *of = json_object_get(json_object_get(line, "metrics"), m->name);
    const json_t *spread = json_object_get(of, "spread_percent");
    if (json_is_number(spread))
        fprintf(out, "  [runs differ by %.2g %%]", json_number_value(spread));
}

static void print_line(FILE *out, const json_t *line, const struct metric *const *m, size_t n_m) {
    fprintf(out, "  %-10s %-5s %4d", text_at(line, "date"), text_at(line, "time"),
            (int)json_integer_value(json_object_get(line, "runs")));
    for (size_t k = 0; k < n_m; k++) {
        const json_t *v = json_object_get(json_object_get(line, "metrics"), m[k]->name);
        const json_t *value = json_object_get(v, "value");
        if (json_is_number(value))
            fprintf(out, "  %*.5g", width_of(m[k]), metric_shown(m[k], json_number_value(value)));
        else
            fprintf(out, "  %*s", width_of(m[k]), "-");
        print_change(out, json_object_get(v, "change_percent"));
    }
    fprintf(out, "  %s", text_at(line, "version"));
    print_spread(out, line, m[0]);
    if (json_is_true(json_object_get(line, "configuration_changed")))
        print_changes(out, json_object_get(line, "changes"));
    if (json_is_true(json_object_get(line, "cancelled")))
        fputs("  [cancelled, compared with nothing]", out);
    else if (json_is_true(json_object_get(line, "incomplete")))
        fputs("  [aborted, compared with nothing]", out);
    else if (!json_is_true(json_object_get(line, "valid")))
        fputs("  [not valid]", out);
    if (json_is_true(json_object_get(line, "scaled")))
        fputs("  [scaled]", out);
    fputc('\n', out);
}

/* Who it is, and the names and units of the columns. */
static void print_head(FILE *out, const json_t *series, bool more, const struct metric *const *m,
                       size_t n_m) {
    fputs(more ? "\n" : "", out);
    if (json_is_string(json_object_get(series, "label")))
        fputs(text_at(series, "label"), out);
    else
        fprintf(out, "%s (no label, configuration %.8s)", text_at(series, "dataset"),
                text_at(series, "fingerprint"));
    fprintf(out, ", concurrency %d: %s, %s, %s, %s\n",
            (int)json_integer_value(json_object_get(series, "concurrency")),
            text_at(series, "hardware"), text_at(series, "framework"), text_at(series, "model"),
            text_at(series, "precision"));
    fprintf(out, "  %-10s %-5s %4s", "date", "UTC", "runs");
    for (size_t k = 0; k < n_m; k++)
        fprintf(out, "  %*s %9s", width_of(m[k]), m[k]->name, "change");
    fprintf(out, "  version\n  %-10s %-5s %4s", "", "", "");
    for (size_t k = 0; k < n_m; k++)
        fprintf(out, "  %*s %9s", width_of(m[k]), metric_shown_unit(m[k]), "");
    fputc('\n', out);
}

void history_print(FILE *out, const struct store_run *runs, size_t n, const struct metric *const *m,
                   size_t n_m) {
    json_t *all = history_json(runs, n, m, n_m), *series, *line;
    size_t i, k;
    json_array_foreach(json_object_get(all, "series"), i, series) {
        print_head(out, series, i > 0, m, n_m);
        json_array_foreach(json_object_get(series, "dates"), k, line) print_line(out, line, m, n_m);
    }
    if (!json_array_size(json_object_get(all, "series")))
        fputs("no runs\n", out);
    json_decref(all);
}
