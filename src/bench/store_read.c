/* store_read.c: rows of the history. */
#include "bench/store_inside.h"

#include <string.h>

static char *column_text(sqlite3_stmt *q, int i, bool *failed) {
    const char *text = (const char *)sqlite3_column_text(q, i);
    char *copy = text ? strdup(text) : NULL;
    *failed = *failed || (text && !copy);
    return copy;
}

static json_t *column_json(sqlite3_stmt *q, int i, bool *failed) {
    const char *text = (const char *)sqlite3_column_text(q, i);
    json_t *v = text ? json_loads(text, 0, NULL) : NULL;
    *failed = *failed || !v;
    return v;
}

static void free_run(struct store_run *r) {
    char *const texts[] = {r->fingerprint, r->version,   r->label,    r->hardware, r->framework,
                           r->model,       r->precision, r->scenario, r->dataset,  r->dir};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        free(texts[i]);
    json_decref(r->row);
    json_decref(r->configuration);
    json_decref(r->invalid);
    json_decref(r->warnings);
}

void store_runs_free(struct store_run *runs, size_t n) {
    for (size_t i = 0; i < n; i++)
        free_run(&runs[i]);
    free(runs);
}

static bool read_row(sqlite3_stmt *q, struct store_run *r) {
    bool failed = false;
    int i = 0;
    r->id = sqlite3_column_int64(q, i++);
    r->started = sqlite3_column_int64(q, i++);
    char **const texts[] = {&r->fingerprint, &r->version, &r->label,     &r->hardware,
                            &r->framework,   &r->model,   &r->precision, &r->scenario,
                            &r->dataset,     &r->dir};
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++)
        *texts[k] = column_text(q, i++, &failed);
    r->concurrency = (uint32_t)sqlite3_column_int64(q, i++);
    r->valid = sqlite3_column_int(q, i++);
    r->cancelled = sqlite3_column_int(q, i++);
    r->scaled = sqlite3_column_int(q, i++);
    r->row = column_json(q, i++, &failed);
    r->configuration = column_json(q, i++, &failed);
    r->invalid = column_json(q, i++, &failed);
    r->warnings = column_json(q, i++, &failed);
    return !failed;
}

weir_status store_runs(struct store *s, const struct store_query *query, struct store_run **out,
                       size_t *n, weir_error *err) {
    /* The last ones first, so that LIMIT keeps those; turned round below. */
    static const char sql[] =
        "SELECT id, started, fingerprint, version, label, hardware, framework, model, precision,"
        " scenario, dataset, dir, concurrency, valid, cancelled, scaled, row, configuration,"
        " invalid, warnings FROM runs WHERE (:label IS NULL OR label = :label)"
        " AND (:fingerprint IS NULL OR fingerprint = :fingerprint)"
        " AND (:version IS NULL OR version = :version) AND (:model IS NULL OR model = :model)"
        " AND (:valid = 0 OR (valid = 1 AND cancelled = 0))"
        " ORDER BY started DESC, id DESC LIMIT :last";
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK)
        return store_sql_fail(s, "cannot be read", err);
    store_bind_text(q, ":label", query->label);
    store_bind_text(q, ":fingerprint", query->fingerprint);
    store_bind_text(q, ":version", query->version);
    store_bind_text(q, ":model", query->model);
    store_bind_number(q, ":valid", query->valid_only);
    store_bind_number(q, ":last", query->last ? (int64_t)query->last : -1);
    struct store_run *runs = NULL;
    size_t count = 0, room = 0;
    weir_status status = WEIR_OK;
    int code = SQLITE_DONE;
    while (!status && (code = sqlite3_step(q)) == SQLITE_ROW) {
        if (count == room) {
            struct store_run *more = realloc(runs, (room * 2 + 16) * sizeof *more);
            if (!more) {
                status = weir_fail(err, WEIR_NO_MEMORY, "history", "no memory");
                break;
            }
            runs = more;
            room = room * 2 + 16;
        }
        runs[count] = (struct store_run){0};
        if (!read_row(q, &runs[count++]))
            status = weir_fail(err, WEIR_BAD_FILE, s->path,
                               "run %" PRId64 ": its row is no JSON; the file is damaged",
                               runs[count - 1].id);
    }
    if (!status && code != SQLITE_DONE)
        status = store_sql_fail(s, "cannot be read", err);
    sqlite3_finalize(q);
    if (status) {
        store_runs_free(runs, count);
        return status;
    }
    for (size_t i = 0; i < count / 2; i++) {
        struct store_run other = runs[i];
        runs[i] = runs[count - 1 - i];
        runs[count - 1 - i] = other;
    }
    *out = runs;
    *n = count;
    return WEIR_OK;
}
