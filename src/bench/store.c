/* store.c: the history's SQLite file. Called by commands. Invariant that bites: every change is one
 * transaction that begins as a writer (BEGIN IMMEDIATE); one that reads first and writes later can
 * fail at once where two processes do so, whatever the busy timeout says. */
#include "bench/store_inside.h"

#include "base/clock.h"
#include "base/file.h"
#include "bench/configuration.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { STORE_SCHEMA = 1, STORE_ID = 0x77656972 /* "weir" */, STORE_WAIT_MS = 15000 };

static const char schema[] =
    "CREATE TABLE runs(id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, version TEXT NOT NULL,"
    " label TEXT, started INTEGER NOT NULL, added INTEGER NOT NULL, hardware TEXT, framework TEXT,"
    " model TEXT, precision TEXT, concurrency INTEGER NOT NULL, scenario TEXT, dataset TEXT,"
    " valid INTEGER NOT NULL, cancelled INTEGER NOT NULL, scaled INTEGER NOT NULL,"
    " dir TEXT NOT NULL, row TEXT NOT NULL, configuration TEXT NOT NULL, invalid TEXT NOT NULL,"
    " warnings TEXT NOT NULL, UNIQUE(dir, started));"
    "CREATE INDEX runs_by_label ON runs(label, started);"
    "CREATE INDEX runs_by_fingerprint ON runs(fingerprint, started);"
    "PRAGMA application_id=0x77656972;"
    "PRAGMA user_version=1;";

char *store_default_path(void) {
    return file_user_path("XDG_DATA_HOME", ".local/share", "weir/bench.db");
}

weir_status store_sql_fail(const struct store *s, const char *doing, weir_error *err) {
    int code = sqlite3_errcode(s->db), system = sqlite3_system_errno(s->db);
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
        return weir_fail(err, WEIR_BAD_FILE, s->path,
                         "is no run history or is damaged (%s); move it away, or name another "
                         "with --history",
                         sqlite3_errmsg(s->db));
    if (code == SQLITE_BUSY)
        return weir_fail(err, WEIR_BAD_FILE, s->path,
                         "%s: another process has been writing for %d s", doing,
                         STORE_WAIT_MS / 1000);
    /* Of the files beside it SQLite says no more than that there was an error. */
    if (code == SQLITE_FULL || system == ENOSPC || system == EDQUOT)
        return weir_fail(err, WEIR_BAD_FILE, s->path,
                         "%s: %s; make room, or name a file on another disk with --history", doing,
                         strerror(system == EDQUOT ? EDQUOT : ENOSPC));
    return weir_fail(err, WEIR_BAD_FILE, s->path, "%s: %s", doing, sqlite3_errmsg(s->db));
}

static weir_status run_sql(struct store *s, const char *sql, const char *doing, weir_error *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? WEIR_OK
                                                                   : store_sql_fail(s, doing, err);
}

/* A single number of a pragma or a count. */
static weir_status ask(struct store *s, const char *sql, int64_t *out, weir_error *err) {
    sqlite3_stmt *q = NULL;
    bool good =
        sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW;
    weir_status status = good ? WEIR_OK : store_sql_fail(s, "cannot be read", err);
    if (good)
        *out = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return status;
}

struct marks {
    int64_t version, id, tables;
};

/* All three as of one moment: another process may be setting the file up. */
static weir_status read_marks(struct store *s, struct marks *m, weir_error *err) {
    bool alone = sqlite3_get_autocommit(s->db);
    weir_status status = alone ? run_sql(s, "BEGIN", "cannot be read", err) : WEIR_OK;
    if (status)
        return status;
    status = ask(s, "PRAGMA user_version", &m->version, err);
    if (!status)
        status = ask(s, "PRAGMA application_id", &m->id, err);
    if (!status)
        status = ask(s, "SELECT count(*) FROM sqlite_master", &m->tables, err);
    if (alone)
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static weir_status check_schema(struct store *s, bool *is_new, weir_error *err) {
    struct marks m = {0};
    weir_status status = read_marks(s, &m, err);
    if (status)
        return status;
    *is_new = m.version == 0 && m.id == 0 && m.tables == 0;
    if (*is_new)
        return WEIR_OK;
    if (m.id != STORE_ID)
        return weir_fail(err, WEIR_BAD_FILE, s->path,
                         "is a database of another program; name another file with --history");
    if (m.version != STORE_SCHEMA)
        return weir_fail(err, WEIR_BAD_FILE, s->path,
                         "was written by a newer weir (schema %" PRId64 ", this one knows %d)",
                         m.version, STORE_SCHEMA);
    return WEIR_OK;
}

/* Another process may be switching to WAL, too, for which SQLite does not wait by itself. */
static weir_status use_wal(struct store *s, weir_error *err) {
    for (int i = 0;; i++) {
        int code = sqlite3_exec(s->db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
        if (code == SQLITE_OK)
            return WEIR_OK;
        if (code != SQLITE_BUSY || i == STORE_WAIT_MS / 10)
            return store_sql_fail(s, "cannot be opened for writing", err);
        usleep(10000);
    }
}

static weir_status prepare_to_write(struct store *s, weir_error *err) {
    bool is_new;
    weir_status status = check_schema(s, &is_new, err); /* before anything of it is changed */
    if (!status)
        status = use_wal(s, err);
    if (!status && is_new) {
        status = run_sql(s, "BEGIN IMMEDIATE", "cannot be opened for writing", err);
        if (!status)
            status = check_schema(s, &is_new, err); /* another process may have been first */
        if (!status && is_new)
            status = run_sql(s, schema, "cannot be set up", err);
        if (!status)
            status = run_sql(s, "COMMIT", "cannot be set up", err);
    }
    return status;
}

weir_status store_open(const char *path, bool write, struct store **out, weir_error *err) {
    char *own = path ? NULL : store_default_path();
    if (!path && !own)
        return weir_fail(err, WEIR_BAD_VALUE, "--history",
                         "is needed where neither XDG_DATA_HOME nor HOME is set");
    struct store *s = calloc(1, sizeof *s);
    if (!s) {
        free(own);
        return weir_fail(err, WEIR_NO_MEMORY, "history", "no memory");
    }
    snprintf(s->path, sizeof s->path, "%s", path ? path : own);
    free(own);
    weir_status status = WEIR_OK;
    if (!write && access(s->path, F_OK))
        status = weir_fail(err, WEIR_BAD_FILE, s->path, "no history of runs: %s", strerror(errno));
    else if (write)
        status = file_make_directories(s->path, err);
    if (!status) {
        int flags = write ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
        if (sqlite3_open_v2(s->path, &s->db, flags, NULL) != SQLITE_OK)
            status = store_sql_fail(s, "cannot be opened", err);
    }
    if (!status) {
        bool is_new;
        sqlite3_busy_timeout(s->db, STORE_WAIT_MS);
        status = write ? prepare_to_write(s, err) : check_schema(s, &is_new, err);
        if (!status && !write && is_new)
            status = weir_fail(err, WEIR_BAD_FILE, s->path, "no history of runs: it is empty");
    }
    if (status) {
        store_close(s);
        return status;
    }
    *out = s;
    return WEIR_OK;
}

void store_close(struct store *s) {
    if (!s)
        return;
    sqlite3_close(s->db);
    free(s);
}

void store_bind_text(sqlite3_stmt *q, const char *name, const char *text) {
    sqlite3_bind_text(q, sqlite3_bind_parameter_index(q, name), text, -1, SQLITE_TRANSIENT);
}

void store_bind_number(sqlite3_stmt *q, const char *name, int64_t v) {
    sqlite3_bind_int64(q, sqlite3_bind_parameter_index(q, name), v);
}

/* Takes over the value. False without memory. */
static bool bind_json(sqlite3_stmt *q, const char *name, json_t *v) {
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(v);
    if (text)
        store_bind_text(q, name, text);
    free(text);
    return text != NULL;
}

static json_t *text_list(char *const *text, uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(text[i]));
    return list;
}

static json_t *reason_list(const struct run_summary *summary) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < summary->n_invalid; i++)
        json_array_append_new(list, json_string(summary->invalid[i]));
    return list;
}

weir_status store_add(struct store *s, const struct run *r, const struct run_summary *summary,
                      const char *dir, weir_error *err) {
    static const char sql[] =
        "INSERT OR REPLACE INTO runs(fingerprint, version, label, started, added, hardware,"
        " framework, model, precision, concurrency, scenario, dataset, valid, cancelled, scaled,"
        " dir, row, configuration, invalid, warnings) VALUES(:fingerprint, :version, :label,"
        " :started, :added, :hardware, :framework, :model, :precision, :concurrency, :scenario,"
        " :dataset, :valid, :cancelled, :scaled, :dir, :row, :configuration, :invalid, :warnings)";
    char fingerprint[FINGERPRINT_BYTES];
    json_t *configuration = configuration_of(r);
    char *version = configuration ? configuration_version(configuration) : NULL;
    char *full = realpath(dir, NULL);
    sqlite3_stmt *q = NULL;
    weir_status status = version ? configuration_fingerprint(configuration, fingerprint, err)
                                 : weir_fail(err, WEIR_NO_MEMORY, "history", "no memory");
    if (!status && sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK)
        status = store_sql_fail(s, "cannot be written", err);
    if (!status) {
        store_bind_text(q, ":fingerprint", fingerprint);
        store_bind_text(q, ":version", version);
        store_bind_text(q, ":label", r->subject.label);
        store_bind_number(q, ":started", r->started);
        store_bind_number(q, ":added", clock_unix());
        store_bind_text(q, ":hardware", r->subject.hardware);
        store_bind_text(q, ":framework", r->subject.framework);
        store_bind_text(q, ":model", r->subject.model);
        store_bind_text(q, ":precision", r->subject.precision);
        store_bind_number(q, ":concurrency", r->concurrency);
        store_bind_text(q, ":scenario", r->scenario);
        store_bind_text(q, ":dataset", r->dataset);
        store_bind_number(q, ":valid", summary->valid);
        store_bind_number(q, ":cancelled", r->was_cancelled);
        store_bind_number(q, ":scaled", !run_is_unscaled(r));
        store_bind_text(q, ":dir", full ? full : dir);
        bool good = bind_json(q, ":row", run_row_json(r, summary));
        good = bind_json(q, ":configuration", json_incref(configuration)) && good;
        good = bind_json(q, ":invalid", reason_list(summary)) && good;
        good = bind_json(q, ":warnings", text_list(r->warnings, r->n_warnings)) && good;
        if (!good)
            status = weir_fail(err, WEIR_NO_MEMORY, "history", "no memory");
        else if (sqlite3_step(q) != SQLITE_DONE)
            status = store_sql_fail(s, "cannot be written", err);
    }
    sqlite3_finalize(q);
    json_decref(configuration);
    free(version);
    free(full);
    return status;
}

weir_status store_record(const char *path, const struct run *r, const struct run_summary *summary,
                         const char *dir, weir_error *err) {
    struct store *s;
    weir_status status = store_open(path, true, &s, err);
    if (status)
        return status;
    status = store_add(s, r, summary, dir, err);
    store_close(s);
    return status;
}
