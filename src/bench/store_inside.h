/* store_inside.h: shared by the writing and the reading file of the store. */
#ifndef WEIR_BENCH_STORE_INSIDE_H
#define WEIR_BENCH_STORE_INSIDE_H

#include "bench/store.h"

#include <limits.h>
#include <sqlite3.h>

struct store {
    sqlite3 *db;
    char path[PATH_MAX];
};

/* What SQLite has just complained about, as a sentence behind the file's name. */
weir_status store_sql_fail(const struct store *s, const char *doing, weir_error *err);
/* NULL binds NULL. */
void store_bind_text(sqlite3_stmt *q, const char *name, const char *text);
void store_bind_number(sqlite3_stmt *q, const char *name, int64_t v);

#endif
