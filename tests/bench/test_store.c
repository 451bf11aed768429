/* The run history: what was added is found again, several writers at once lose nothing, and a file
 * that is damaged, newer or somebody else's is refused by one line and left as it is. */
#include "tests/test.h"

#include "bench/store.h"
#include "tests/bench/synthetic.h"

#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], db[128];
static weir_error err;

static int setup(void **state) {
    snprintf(dir, sizeof dir, "/tmp/weir-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(db, sizeof db, "%s/a/b/bench.db", dir);
    return 0;
}

static int teardown(void **state) {
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", dir);
    return system(line);
}

static weir_status add(const char *path, const struct synthetic *how, const char *where,
                       bool cancelled) {
    struct run r;
    struct run_summary *s = calloc(1, sizeof *s);
    synthesise(&r, how);
    r.was_cancelled = cancelled;
    assert_true(run_warn(&r, "a \"quoted\" warning"));
    assert_int_equal(run_summarise(&r, s, &err), WEIR_OK);
    weir_status status = store_record(path, &r, s, where, &err);
    run_free(&r);
    free(s);
    return status;
}

static struct synthetic one(uint64_t noise, const char *label) {
    return (struct synthetic){
        .slower = 1, .lanes = 2, .seconds = 10, .noise = noise, .label = label};
}

static struct store_run *rows(const struct store_query *q, size_t *n) {
    struct store *s;
    struct store_run *runs = NULL;
    if (store_open(db, false, &s, &err) || store_runs(s, q, &runs, n, &err))
        fail_msg("%s: %s", err.where, err.message);
    store_close(s);
    return runs;
}

static void what_was_added_is_found_again(void **state) {
    size_t n;
    for (uint64_t i = 0; i < 5; i++) {
        struct synthetic how = one(5 - i, i % 2 ? "odd" : "even");
        how.version = i == 4 ? "0.2" : "0.1";
        assert_int_equal(add(db, &how, dir, i == 3), WEIR_OK);
    }
    struct store_run *all = rows(&(struct store_query){0}, &n);
    assert_int_equal(n, 5);
    for (size_t i = 1; i < n; i++)
        assert_true(all[i - 1].started < all[i].started);
    const struct store_run *r = &all[4]; /* noise 5: i = 0 */
    assert_string_equal(r->label, "even");
    assert_string_equal(r->hardware, "h200");
    assert_int_equal(r->concurrency, 2);
    assert_true(r->valid && !r->cancelled && !r->scaled);
    assert_true(json_number_value(json_object_get(r->row, "tput_per_gpu")) > 0);
    assert_string_equal(json_string_value(json_array_get(r->warnings, 0)), "a \"quoted\" warning");
    assert_string_equal(json_string_value(json_object_get(r->configuration, "trace")), "s.jsonl");
    assert_string_equal(r->version, "framework_version=0.1");
    /* A new version of the software is the same configuration, also where an option named it. */
    assert_null(json_object_get(r->configuration, "framework-version"));
    assert_string_equal(all[0].fingerprint, r->fingerprint);
    assert_string_equal(all[0].version, "framework_version=0.2");
    store_runs_free(all, n);

    struct store_run *some = rows(&(struct store_query){.label = "odd", .valid_only = true}, &n);
    assert_int_equal(n, 1);
    store_runs_free(some, n);
    some = rows(&(struct store_query){.last = 2}, &n);
    assert_int_equal(n, 2);
    assert_string_equal(some[1].label, "even");
    store_runs_free(some, n);
}

static void a_run_that_is_added_again_stands_once(void **state) {
    struct synthetic how = one(1, "x");
    size_t n;
    assert_int_equal(add(db, &how, dir, true), WEIR_OK);
    assert_int_equal(add(db, &how, dir, false), WEIR_OK);
    struct store_run *all = rows(&(struct store_query){0}, &n);
    assert_int_equal(n, 1);
    assert_false(all[0].cancelled);
    store_runs_free(all, n);
}

static void several_writers_at_once_lose_nothing(void **state) {
    enum { WRITERS = 6, EACH = 12 };
    pid_t child[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        child[w] = fork();
        assert_true(child[w] >= 0);
        if (child[w])
            continue;
        int failed = 0;
        for (int i = 0; i < EACH; i++) {
            struct synthetic how = one((uint64_t)(1 + w * EACH + i), "many");
            how.seconds = 3;
            failed += add(db, &how, dir, false) != WEIR_OK;
        }
        if (failed)
            fprintf(stderr, "writer %d: %d failed: %s: %s\n", w, failed, err.where, err.message);
        _exit(failed != 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_int_equal(waitpid(child[w], &status, 0), child[w]);
        assert_int_equal(status, 0);
    }
    size_t n;
    struct store_run *all = rows(&(struct store_query){.label = "many"}, &n);
    assert_int_equal(n, WRITERS * EACH);
    store_runs_free(all, n);
}

static void refused(const char *path, bool write, const char *part) {
    struct store *s;
    err = (weir_error){0};
    assert_int_equal(store_open(path, write, &s, &err), WEIR_BAD_FILE);
    if (!strstr(err.message, part) || strchr(err.message, '\n'))
        fail_msg("'%s' has no '%s'", err.message, part);
    assert_string_equal(err.where, path);
}

static void sql(const char *path, const char *text) {
    sqlite3 *d;
    assert_int_equal(sqlite3_open(path, &d), SQLITE_OK);
    assert_int_equal(sqlite3_exec(d, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(d);
}

static void a_file_that_is_no_history_is_refused_and_left_alone(void **state) {
    char path[128];
    snprintf(path, sizeof path, "%s/text.db", dir);
    refused(path, false, "no history of runs: No such file");
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 400; i++)
        fputs("this is no database\n", f);
    fclose(f);
    refused(path, true, "is no run history or is damaged");
    refused(path, false, "is no run history or is damaged");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 8000);

    snprintf(path, sizeof path, "%s/other.db", dir);
    sql(path, "CREATE TABLE t(x)");
    refused(path, true, "is a database of another program");

    struct synthetic how = one(1, "x");
    assert_int_equal(add(db, &how, dir, false), WEIR_OK);
    sql(db, "PRAGMA user_version=2");
    refused(db, true, "was written by a newer weir (schema 2, this one knows 1)");
    refused(db, false, "was written by a newer weir (schema 2, this one knows 1)");
}

static void damage_within_is_told(void **state) {
    struct synthetic how = one(1, "x");
    assert_int_equal(add(db, &how, dir, false), WEIR_OK);
    sql(db, "UPDATE runs SET row = '{'");
    struct store *s;
    struct store_run *runs;
    size_t n;
    assert_int_equal(store_open(db, false, &s, &err), WEIR_OK);
    assert_int_equal(store_runs(s, &(struct store_query){0}, &runs, &n, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "run 1"));
    store_close(s);
}

/* At every size of disk: SQLite may fail at the file itself, at its log or at its index. */
static void a_full_disk_is_told_as_such(void **state) {
    struct synthetic how = one(1, "x");
    char path[80];
    snprintf(path, sizeof path, "%s/runs.db", dir);
    unsigned told = 0;
    for (int kib = 4; kib <= 160; kib += 12) {
        char size[24];
        snprintf(size, sizeof size, "size=%dk", kib);
        if (mount("weir", dir, "tmpfs", 0, size) != 0)
            skip();
        weir_status status = add(path, &how, dir, false);
        assert_int_equal(umount(dir), 0);
        if (status == WEIR_OK)
            continue;
        told++;
        if (!strstr(err.message, "No space left on device; make room, or name a file on another"))
            fail_msg("%d KiB: %s: %s", kib, err.where, err.message);
    }
    assert_true(told > 3);
}

static void the_default_file_follows_the_base_directories(void **state) {
    setenv("XDG_DATA_HOME", "/x/data", 1);
    char *p = store_default_path();
    assert_string_equal(p, "/x/data/weir/bench.db");
    free(p);
    setenv("XDG_DATA_HOME", "relative", 1);
    setenv("HOME", "/home/someone", 1);
    p = store_default_path();
    assert_string_equal(p, "/home/someone/.local/share/weir/bench.db");
    free(p);
    unsetenv("XDG_DATA_HOME");
    unsetenv("HOME");
    assert_null(store_default_path());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_added_is_found_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_that_is_added_again_stands_once, setup, teardown),
        cmocka_unit_test_setup_teardown(several_writers_at_once_lose_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_no_history_is_refused_and_left_alone, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(damage_within_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_is_told_as_such, setup, teardown),
        cmocka_unit_test(the_default_file_follows_the_base_directories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
