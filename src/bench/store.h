/* store.h: the history of runs: one SQLite file with a row for each finished run, what it was, what
 * came out and where its files lie. Several processes may write at once; readers never wait.
 *
 * Schema 1, table runs: id, fingerprint, version, label, started (Unix ns), added (Unix s),
 * hardware, framework, model, precision, concurrency, scenario, dataset, valid, cancelled, scaled,
 * dir (absolute), and as JSON text: row (the flat row), configuration, invalid (reasons), warnings.
 * A run is named by dir and started: adding it again replaces its row. */
#ifndef WEIR_BENCH_STORE_H
#define WEIR_BENCH_STORE_H

#include "trace/run.h"

struct store;

/* $XDG_DATA_HOME/weir/bench.db, or ~/.local/share/weir/bench.db; free(). NULL where neither
 * variable is set. */
char *store_default_path(void);

/* `path` NULL: the default one. A file to be written is made with its directories; one to be read
 * must exist. WEIR_BAD_FILE: no history, damaged, or of a newer weir. */
weir_status store_open(const char *path, bool write, struct store **out, weir_error *err);
void store_close(struct store *s);

/* `dir` is where run_write put the files. */
weir_status store_add(struct store *s, const struct run *r, const struct run_summary *summary,
                      const char *dir, weir_error *err);
/* Opens, adds, closes: what a replay does behind run_write. `path` NULL: the default one. */
weir_status store_record(const char *path, const struct run *r, const struct run_summary *summary,
                         const char *dir, weir_error *err);

struct store_run {
    int64_t id, started; /* Unix time in ns */
    char *fingerprint, *version, *label, *hardware, *framework, *model, *precision, *scenario,
        *dataset, *dir; /* NULL: unknown */
    uint32_t concurrency;
    bool valid, cancelled, scaled;
    json_t *row, *configuration, *invalid, *warnings;
};
/* Which ones; NULL and 0: all. In order of `started`. */
struct store_query {
    const char *label, *fingerprint, *version, *model;
    bool valid_only;
    uint32_t last; /* at most the last so many */
};
weir_status store_runs(struct store *s, const struct store_query *q, struct store_run **out,
                       size_t *n, weir_error *err);
void store_runs_free(struct store_run *runs, size_t n);

#endif
