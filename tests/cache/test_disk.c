/* The tier in files, through io_uring and through threads. */
#include "tests/cache/tier_case.h"

#include "base/log.h"
#include "cache/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACE = 4096 }; /* of a page and of a state of case_small */

struct ground { /* one test: which way, and where its files are */
    enum disk_way way;
    char dir[96];
};

static int set_up(void **state) {
    struct ground *g = *state;
    snprintf(g->dir, sizeof g->dir, "/tmp/weir-disk-XXXXXX");
    return mkdtemp(g->dir) ? 0 : -1;
}

static void run(const char *format, const char *dir) {
    char command[256];
    snprintf(command, sizeof command, format, dir, dir);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static int tear_down(void **state) {
    struct ground *g = *state;
    run("rm -rf %s", g->dir);
    return 0;
}

static weir_status try_open_pausing(const struct ground *g, const struct tier_case *c,
                                    uint64_t bytes, double pause, struct tier **t,
                                    weir_error *err) {
    const struct disk_tuning tuning = {
        .way = g->way, .pause = pause, .note_every = 0.01, .most_storing_bytes = 64 << 20};
    return disk_open_tuned(&c->setup, g->dir, bytes, &tuning, t, err);
}
static weir_status try_open(const struct ground *g, const struct tier_case *c, uint64_t bytes,
                            struct tier **t, weir_error *err) {
    return try_open_pausing(g, c, bytes, 0.2, t, err);
}
static struct tier *open_disk(const struct ground *g, const struct tier_case *c, uint64_t bytes) {
    struct tier *t;
    weir_error err;
    if (try_open(g, c, bytes, &t, &err) != WEIR_OK)
        fail_msg("%s: %s", err.where, err.message);
    return t;
}

static char *file_of(const struct ground *g, const struct tier_case *c, const char *name) {
    static char path[4][200];
    static unsigned next;
    char hex[CACHE_KEY_HEX], *at = path[next++ % 4];
    cache_key_hex(&c->setup.model, hex);
    snprintf(at, sizeof path[0], "%s/%.16s/%s", g->dir, hex, name);
    return at;
}
static const char *const file_names[] = {"pages", "states", "pages.table", "states.table"};

static struct tier_usage usage_of(const struct tier *t) {
    struct tier_usage u;
    t->usage(t, &u);
    return u;
}
static bool has_page(struct tier *t, uint64_t n) {
    struct cache_key k = case_key(n);
    return t->page(t, &k) == TIER_PRESENT;
}
static bool has_state(struct tier *t, uint64_t n) {
    struct cache_key k = case_key(n);
    return t->state(t, &k, case_position(n)) == TIER_PRESENT;
}

/* What the tier wrote to the log, from begin to end. */
static int saved_stderr = -1, log_file = -1;
static void log_begin(void) {
    saved_stderr = dup(2);
    log_file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    assert_true(log_file >= 0);
    dup2(log_file, 2);
}
static char log_text[1 << 16];
static unsigned log_now(const char *needle) {
    ssize_t n = pread(log_file, log_text, sizeof log_text - 1, 0);
    log_text[n < 0 ? 0 : n] = 0;
    unsigned count = 0;
    for (char *at = log_text; (at = strstr(at, needle)); at++)
        count++;
    return count;
}
static unsigned log_end(const char *needle) {
    dup2(saved_stderr, 2);
    close(saved_stderr);
    unsigned count = log_now(needle);
    close(log_file);
    if (!count)
        print_message("log: %s", log_text);
    return count;
}

/* ------------------------------------------------------------------------------------------------
 * round trips */

static void what_is_stored_comes_back_bit_for_bit_elsewhere(void **state) {
    struct tier_case c;
    /* Layers, and so pieces, as large as those of the real model: 6.7 MB each. */
    case_open(&c, 8, 2, 3, 576, 3, 96, 128);
    struct tier *t = open_disk(*state, &c, 64 << 20);
    assert_int_equal(case_store(&c, t, 10, 3, 12, true), TIER_OK);
    assert_true(has_page(t, 12) && has_state(t, 12));
    assert_int_equal(case_load(&c, t, 10, 3, 12, true), TIER_OK);
    assert_int_equal(case_load(&c, t, 11, 1, 0, false), TIER_OK);
    assert_int_equal(case_load(&c, t, 12, 2, 0, false), TIER_GONE); /* 13 is not here */
    t->close(t);
    t = open_disk(*state, &c, 64 << 20);
    assert_int_equal(case_load(&c, t, 10, 3, 12, true), TIER_OK);
    t->close(t);
    case_close(&c);
}

/* Several layers a piece and a last piece with fewer; sizes that are no multiples of anything. */
static void odd_shapes_come_back(void **state) {
    static const uint32_t shape[][5] = {
        {1, 3, 1, 1, 1}, {3, 7, 5, 3, 20}, {2, 33, 70, 4, 60}, {5, 1, 3, 1, 300}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const uint32_t *s = shape[i];
        struct tier_case c;
        case_open(&c, 8, 2, s[0], s[1], s[2], s[3], s[4]);
        struct tier *t = open_disk(*state, &c, 32 << 20);
        assert_int_equal(case_store(&c, t, 10, 3, 12, true), TIER_OK);
        assert_int_equal(case_load(&c, t, 10, 3, 12, true), TIER_OK);
        t->close(t);
        case_close(&c);
    }
}

static void random_histories_give_no_wrong_bytes(void **state) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct tier_case c;
        case_small(&c);
        c.setup.model = case_key(1000 + seed);
        for (int restart = 0; restart < 2; restart++) {
            struct tier *t = open_disk(*state, &c, PLACE * (4 + seed * 5));
            case_history(&c, t, seed * 2 + restart, 300, false);
            assert_int_equal(usage_of(t).damaged, 0);
            t->close(t);
        }
        case_close(&c);
    }
}

static void disk_space_stays_within_the_budget(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_open(&c, 8, 2, 4, 1024, 4, 16, 128); /* 1 MiB a page, 4.6 MiB a state */
    const uint64_t budget = 40 << 20;
    struct tier *t = open_disk(g, &c, budget);
    for (int round = 0; round < 3; round++) {
        for (uint64_t n = 0; n < 48; n += 4)
            assert_int_equal(case_store(&c, t, 100 * round + n, 4, 0, false), TIER_OK);
        for (uint64_t n = 0; n < 10; n++)
            assert_int_equal(case_store(&c, t, 0, 0, 5000 + 100 * round + n, true), TIER_OK);
        struct stat st;
        uint64_t there = 0;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(stat(file_of(g, &c, file_names[k]), &st), 0);
            there += (uint64_t)st.st_blocks * 512;
        }
        if (there > budget + (64 << 10)) /* the file system's own blocks */
            fail_msg("%llu bytes on disk", (unsigned long long)there);
        assert_true(usage_of(t).states >= 8);
    }
    t->close(t);
    case_close(&c);
}

/* ------------------------------------------------------------------------------------------------
 * restart */

static void a_restart_finds_what_was_published_in_its_order_of_use(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(*state, &c, 10 * PLACE);
    for (uint64_t n = 0; n < 5; n++)
        assert_int_equal(case_store(&c, t, n, 1, n, true), TIER_OK);
    t->close(t);
    t = open_disk(*state, &c, 10 * PLACE);
    assert_int_equal(usage_of(t).pages, 5);
    assert_int_equal(usage_of(t).states, 5);
    static const uint64_t order[] = {3, 0, 4, 2, 1};
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(case_load(&c, t, order[i], 1, order[i], true), TIER_OK);
    t->close(t);
    /* Half the budget: the five used last stay; a page counts as used after its state. */
    t = open_disk(*state, &c, 5 * PLACE);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(has_page(t, order[i]), i >= 2);
        assert_int_equal(has_state(t, order[i]), i >= 3);
        if (i >= 3)
            assert_int_equal(case_load(&c, t, order[i], 1, order[i], true), TIER_OK);
    }
    t->close(t);
    case_close(&c);
}

static void a_use_is_remembered_over_a_restart(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(*state, &c, 6 * PLACE);
    for (uint64_t n = 0; n < 6; n++)
        case_store(&c, t, n, 1, 0, false);
    struct cache_key first = case_key(0);
    t->touch(t, &first, 1, false);
    t->close(t);
    t = open_disk(*state, &c, 6 * PLACE);
    case_store(&c, t, 20, 5, 0, false);
    for (uint64_t n = 0; n < 6; n++)
        assert_int_equal(has_page(t, n), n == 0);
    t->close(t);
    case_close(&c);
}

static void what_was_reset_stays_forgotten(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(*state, &c, 20 * PLACE);
    case_store(&c, t, 0, 5, 4, true);
    uint64_t left = 1;
    assert_int_equal(t->reset(t, &left), 6);
    assert_int_equal(left, 0);
    assert_false(has_page(t, 0));
    assert_int_equal(case_store(&c, t, 10, 2, 0, false), TIER_OK);
    t->close(t);
    for (int again = 0; again < 2; again++) {
        t = open_disk(*state, &c, 20 * PLACE);
        assert_int_equal(usage_of(t).pages, 2 + again);
        assert_int_equal(usage_of(t).states, 0);
        assert_int_equal(case_load(&c, t, 10, 2, 0, false), TIER_OK);
        assert_int_equal(case_store(&c, t, 30 + again, 1, 0, false), TIER_OK);
        t->close(t);
    }
    case_close(&c);
}

static void another_geometry_or_model_starts_empty_and_deletes_nothing(void **state) {
    struct ground *g = *state;
    struct tier_case c, other;
    case_small(&c);
    case_open(&other, 8, 2, 2, 5, 3, 3, 4);
    struct tier *t = open_disk(g, &c, 20 * PLACE);
    case_store(&c, t, 0, 5, 4, true);
    t->close(t);
    log_begin();
    t = open_disk(g, &other, 20 * PLACE);
    assert_int_equal(log_end("belongs to another model or configuration; it was moved to old-1"),
                     1);
    assert_int_equal(usage_of(t).pages, 0);
    case_store(&other, t, 0, 2, 0, false);
    t->close(t);
    t = open_disk(g, &c, 20 * PLACE); /* old-2 */
    assert_int_equal(usage_of(t).pages, 0);
    t->close(t);
    /* Another model has a directory of its own. */
    c.setup.model = case_key(2);
    t = open_disk(g, &c, 20 * PLACE);
    t->close(t);
    c.setup.model = case_key(1);
    /* What was moved aside is whole. */
    char command[600];
    snprintf(command, sizeof command, "cd %s && rm pages* states* && mv old-1/* .",
             file_of(g, &c, "."));
    assert_int_equal(system(command), 0);
    t = open_disk(g, &c, 20 * PLACE);
    assert_int_equal(case_load(&c, t, 0, 5, 4, true), TIER_OK);
    t->close(t);
    case_close(&other);
    case_close(&c);
}

static void a_second_process_is_told_who_has_the_directory(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    int ready[2], end[2];
    assert_int_equal(pipe(ready) | pipe(end), 0);
    pid_t child = fork();
    if (!child) {
        struct tier *t = open_disk(g, &c, 10 * PLACE);
        char b = 1;
        if (write(ready[1], &b, 1) != 1 || read(end[0], &b, 1) != 1)
            _exit(1);
        t->close(t);
        _exit(0);
    }
    char b;
    assert_int_equal(read(ready[0], &b, 1), 1);
    struct tier *t;
    weir_error err;
    assert_int_equal(try_open(g, &c, 10 * PLACE, &t, &err), WEIR_BAD_VALUE);
    assert_null(t);
    char want[64];
    snprintf(want, sizeof want, "is used by process %d;", (int)child);
    if (!strstr(err.message, want))
        fail_msg("%s", err.message);
    assert_int_equal(write(end[1], &b, 1), 1);
    waitpid(child, NULL, 0);
    t = open_disk(g, &c, 10 * PLACE);
    t->close(t);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(end[i]);
    }
    case_close(&c);
}

/* Only the last part is made. */
static void a_missing_parent_is_named_and_not_made(void **state) {
    struct ground *g = *state, deep = {.way = g->way};
    struct tier_case c;
    case_small(&c);
    struct tier *t;
    weir_error err;
    char want[160];
    snprintf(deep.dir, sizeof deep.dir, "%.60s/typo/deep", g->dir);
    snprintf(want, sizeof want, "%s/typo: does not exist;", g->dir);
    assert_int_equal(try_open(&deep, &c, 10 * PLACE, &t, &err), WEIR_BAD_VALUE);
    if (!strstr(err.message, want))
        fail_msg("%s", err.message);
    run("test ! -e %s/typo", g->dir);
    snprintf(deep.dir, sizeof deep.dir, "%.60s/deep//", g->dir);
    t = open_disk(&deep, &c, 10 * PLACE);
    t->close(t);
    case_close(&c);
}

static void a_lower_limit_and_what_lies_beside_are_told(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(g, &c, 20 * PLACE);
    for (uint64_t n = 0; n < 10; n++)
        assert_int_equal(case_store(&c, t, n, 1, 0, false), TIER_OK);
    t->close(t);
    log_begin();
    t = open_disk(g, &c, 4 * PLACE);
    assert_int_equal(usage_of(t).pages, 4);
    t->close(t);
    assert_int_equal(log_end(": 6 records more than its limit of"), 1);
    /* Once is enough, and what was given up does not come back, damaged, with more room. */
    log_begin();
    t = open_disk(g, &c, 4 * PLACE);
    assert_int_equal(usage_of(t).pages, 4);
    t->close(t);
    t = open_disk(g, &c, 20 * PLACE);
    assert_int_equal(usage_of(t).pages, 4);
    t->close(t);
    assert_int_equal(log_end("more than its limit of"), 0);
    const struct cache_key was = c.setup.model;
    c.setup.model = case_key(99);
    log_begin();
    t = open_disk(g, &c, 4 * PLACE);
    t->close(t);
    char hex[CACHE_KEY_HEX], want[160];
    cache_key_hex(&was, hex);
    snprintf(want, sizeof want, "MiB: %.16s;", hex);
    assert_int_equal(log_end(want), 1);
    case_close(&c);
}

static void a_directory_that_cannot_be_made_is_named(void **state) {
    struct ground *g = *state, bad = {.way = g->way, .dir = "/proc/none/here"};
    struct tier_case c;
    case_small(&c);
    struct tier *t;
    weir_error err;
    assert_int_equal(try_open(&bad, &c, 10 * PLACE, &t, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "disk_offload_dir");
    assert_non_null(strstr(err.message, "/proc/none: does not exist"));
    snprintf(bad.dir, sizeof bad.dir, "%.80s/file", g->dir);
    run("touch %s/file", g->dir);
    assert_int_equal(try_open(&bad, &c, 10 * PLACE, &t, &err), WEIR_BAD_VALUE);
    bad.dir[0] = 0;
    assert_int_equal(try_open(&bad, &c, 10 * PLACE, &t, &err), WEIR_BAD_VALUE);
    case_close(&c);
}

/* ------------------------------------------------------------------------------------------------
 * killed */

/* A process that stores until it is killed and says what was published. */
static void writer(const struct ground *g, struct tier_case *c, uint64_t bytes, uint64_t seed,
                   int said) {
    struct tier *t = open_disk(g, c, bytes);
    for (uint64_t i = 0;; i++) {
        uint64_t r = rng_at(seed, 5, i), first = r % 100, n = 1 + (r >> 8) % 4;
        if (case_store(c, t, first, (uint32_t)n, first + n - 1, r >> 16 & 1) == TIER_OK) {
            uint64_t what[3] = {first, n, r >> 16 & 1};
            if (write(said, what, sizeof what) != sizeof what)
                _exit(1);
        }
        if (i % 50 == 49)
            t->reset(t, &(uint64_t){0});
    }
}

static void killed_at_any_moment(struct ground *g, struct tier_case *c, uint64_t bytes,
                                 bool all_stays) {
    const char *more = getenv("WEIR_TEST_KILLS");
    int kills = more ? atoi(more) : 12;
    for (int i = 0; i < kills; i++) {
        int said[2];
        assert_int_equal(pipe(said), 0);
        c->setup.model = case_key(50 + (uint64_t)(i / 3)); /* a fresh directory now and then */
        uint64_t seed = rng_entropy() % 100000;
        pid_t child = fork();
        if (!child) {
            log_set_level(LOG_ERROR);
            close(said[0]);
            writer(g, c, bytes, seed, said[1]);
        }
        close(said[1]);
        uint64_t what[4096][3];
        size_t got = 0;
        /* Not before it has begun. */
        ssize_t n = read(said[0], what, sizeof what[0]);
        usleep((useconds_t)(rng_at(seed, 6, 0) % 20000));
        kill(child, SIGKILL);
        for (; n == sizeof what[0] && got + 1 < 4096; n = read(said[0], what[got], sizeof what[0]))
            got++;
        close(said[0]);
        waitpid(child, NULL, 0);
        if (!got)
            fail_msg("seed %llu: nothing was published", (unsigned long long)seed);
        struct tier *t = open_disk(g, c, bytes);
        for (size_t k = 0; all_stays && k < got && k < 49; k++) {
            enum tier_result r = case_load(c, t, what[k][0], (uint32_t)what[k][1],
                                           what[k][0] + what[k][1] - 1, what[k][2] != 0);
            if (got < 45 && r != TIER_OK) /* no reset came between */
                fail_msg("seed %llu: what was published is %s", (unsigned long long)seed,
                         tier_result_name(r));
        }
        for (uint64_t k = 0; k < 110; k++) {
            if (has_page(t, k) && case_load(c, t, k, 1, 0, false) != TIER_OK)
                fail_msg("seed %llu: page %llu is torn", (unsigned long long)seed,
                         (unsigned long long)k);
            if (has_state(t, k) && case_load(c, t, 0, 0, k, true) != TIER_OK)
                fail_msg("seed %llu: state %llu is torn", (unsigned long long)seed,
                         (unsigned long long)k);
        }
        t->close(t);
    }
}

static void a_killed_process_leaves_all_it_published(void **state) {
    struct tier_case c;
    case_open(&c, 16, 2, 2, 100, 5, 4, 64); /* several pieces a state */
    killed_at_any_moment(*state, &c, 400 << 20, true);
    case_close(&c);
}
static void a_process_killed_while_it_evicts_leaves_nothing_torn(void **state) {
    struct tier_case c;
    case_open(&c, 16, 2, 2, 100, 5, 4, 64);
    killed_at_any_moment(*state, &c, 4 << 20, false);
    case_close(&c);
}

/* ------------------------------------------------------------------------------------------------
 * damage */

/* Flips one bit of a file. */
static void flip(const char *path, uint64_t bit) {
    int fd = open(path, O_RDWR);
    unsigned char b;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, (off_t)(bit / 8)), 1);
    b ^= (unsigned char)(1u << bit % 8);
    assert_int_equal(pwrite(fd, &b, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static void a_flipped_bit_is_damage_or_not_found_and_never_wrong_bytes(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    log_set_level(LOG_ERROR);
    unsigned damaged = 0, missing = 0, fine = 0;
    for (uint64_t seed = 0; seed < 80; seed++) {
        struct tier *t = open_disk(g, &c, 20 * PLACE);
        for (uint64_t n = 0; n < 4; n++) /* whatever is still here is not written again */
            assert_int_equal(case_store(&c, t, n, 1, n, true), TIER_OK);
        t->close(t);
        const char *path = file_of(g, &c, file_names[seed % 4]);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        uint64_t bits = (uint64_t)st.st_size * 8, bit = rng_at(seed, 1, 0) % bits;
        if (seed % 4 < 2) /* within the records, not behind them */
            bit = bit / (PLACE * 8) * (PLACE * 8) + bit % (case_bytes(&c, seed % 4 == 1) * 8);
        else if (seed % 8 < 4) /* within the entries */
            bit = (4096 * 8 + bit % (4 * 128 * 8)) % bits;
        else
            bit %= 128 * 8; /* within the header */
        flip(path, bit);
        t = open_disk(g, &c, 20 * PLACE);
        for (uint64_t n = 0; n < 4; n++)
            for (int s = 0; s < 2; s++) {
                enum tier_result r = case_load(&c, t, n, s ? 0 : 1, n, s);
                damaged += r == TIER_DAMAGED;
                missing += r == TIER_GONE;
                fine += r == TIER_OK;
                assert_true(r == TIER_OK || r == TIER_DAMAGED || r == TIER_GONE);
                if (r == TIER_DAMAGED) {
                    assert_false(s ? has_state(t, n) : has_page(t, n));
                    assert_int_equal(case_load(&c, t, n, s ? 0 : 1, n, s), TIER_GONE);
                }
            }
        t->close(t);
        t = open_disk(g, &c, 20 * PLACE); /* a damaged record is not found again */
        for (uint64_t n = 0; n < 4; n++)
            for (int s = 0; s < 2; s++)
                assert_true(case_load(&c, t, n, s ? 0 : 1, n, s) != TIER_DAMAGED);
        t->close(t);
    }
    log_set_level(LOG_INFO);
    assert_true(damaged > 20 && missing > 20 && fine > 200);
    case_close(&c);
}

/* An entry that is valid in itself but belongs to another place, as after a misdirected write. */
static void an_entry_of_another_place_is_not_believed(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(g, &c, 20 * PLACE);
    for (uint64_t n = 0; n < 4; n++)
        case_store(&c, t, n, 1, 0, false);
    t->close(t);
    int fd = open(file_of(g, &c, "pages.table"), O_RDWR);
    char entry[128];
    assert_int_equal(pread(fd, entry, 128, 4096), 128);
    assert_int_equal(pwrite(fd, entry, 128, 4096 + 128), 128);
    close(fd);
    t = open_disk(g, &c, 20 * PLACE);
    assert_int_equal(usage_of(t).pages, 3);
    for (uint64_t n = 0; n < 4; n++)
        assert_int_equal(case_load(&c, t, n, 1, 0, false), has_page(t, n) ? TIER_OK : TIER_GONE);
    t->close(t);
    case_close(&c);
}

static void files_cut_short_lose_their_ends_only(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    log_set_level(LOG_ERROR);
    for (uint64_t seed = 0; seed < 40; seed++) {
        c.setup.model = case_key(100 + seed);
        struct tier *t = open_disk(g, &c, 30 * PLACE);
        for (uint64_t n = 0; n < 8; n++)
            assert_int_equal(case_store(&c, t, n, 1, n, true), TIER_OK);
        t->close(t);
        const char *path = file_of(g, &c, file_names[seed % 4]);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        uint64_t keep = rng_at(seed, 3, 0) % (uint64_t)st.st_size;
        assert_int_equal(truncate(path, (off_t)keep), 0);
        t = open_disk(g, &c, 30 * PLACE);
        uint64_t there = 0;
        for (uint64_t n = 0; n < 8; n++)
            for (int s = 0; s < 2; s++)
                if (s ? has_state(t, n) : has_page(t, n)) {
                    assert_int_equal(case_load(&c, t, n, s ? 0 : 1, n, s), TIER_OK);
                    there++;
                }
        uint64_t want = seed % 4 < 2  ? 8 + keep / PLACE
                        : keep < 4096 ? 0 /* not even a header */
                                      : 8 + (keep - 4096) / 128;
        if (seed % 4 >= 2 && keep < 4096 && keep >= 200)
            want = there; /* the header's bytes may be whole */
        assert_int_equal(there, want);
        assert_int_equal(case_store(&c, t, 40, 4, 43, true), TIER_OK);
        assert_int_equal(case_load(&c, t, 40, 4, 43, true), TIER_OK);
        t->close(t);
    }
    log_set_level(LOG_INFO);
    case_close(&c);
}

/* ------------------------------------------------------------------------------------------------
 * conditions */

static void pause_over(void) {
    usleep(250000);
}

static void a_full_disk_says_so_once_and_goes_on_in_the_places_it_has(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    struct tier *t;
    weir_error err;
    case_small(&c);
    if (mount("weir", g->dir, "tmpfs", 0, "size=256k") != 0)
        skip();
    log_begin();
    /* Pauses longer than the test: more room is not asked for again. */
    assert_int_equal(try_open_pausing(g, &c, 1000 * PLACE, 60, &t, &err), WEIR_OK);
    unsigned result[TIER_RESULTS] = {0};
    bool takes_when_full = true;
    for (uint64_t n = 0; n < 200; n++) {
        enum tier_result r = case_store(&c, t, n, 1, 0, false);
        if (r == TIER_FAILED)
            takes_when_full = usage_of(t).takes;
        result[r]++;
    }
    struct tier_usage full = usage_of(t);
    /* The other kind in the places of this one: its table has to grow, too. */
    unsigned states[TIER_RESULTS] = {0};
    for (uint64_t n = 300; n < 400; n++)
        states[case_store(&c, t, n, 1, n, true)]++;
    unsigned again = 0, wrong = 0;
    for (uint64_t n = 0; n < 400; n++)
        if (has_page(t, n)) {
            again++;
            wrong += case_load(&c, t, n, 1, n, has_state(t, n)) != TIER_OK;
        }
    bool newest = has_page(t, 399) && has_state(t, 399);
    t->close(t);
    assert_int_equal(umount(g->dir), 0);
    assert_int_equal(log_end("cannot write: No space left on device"), 1);
    assert_int_equal(result[TIER_FAILED], 1);
    assert_int_equal(result[TIER_OK], 199);
    assert_int_equal(states[TIER_DECLINED], 0);
    assert_true(states[TIER_OK] >= 98);
    assert_false(takes_when_full);
    assert_true(full.up && full.takes);
    assert_true(newest && again > 10);
    assert_int_equal(wrong, 0);
    case_close(&c);
}

/* Where even the places there are cannot be written, as on file systems that copy what is
 * overwritten, each store costs records that could still be read. */
static void a_disk_that_is_full_for_the_places_it_has_is_left_alone(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    struct tier *t;
    weir_error err;
    case_small(&c);
    log_begin();
    assert_int_equal(try_open_pausing(g, &c, 40 * PLACE, 60, &t, &err), WEIR_OK);
    for (uint64_t n = 0; n < 40; n++)
        assert_int_equal(case_store(&c, t, n, 1, 0, false), TIER_OK);
    struct rlimit was, low = {4096, RLIM_INFINITY}; /* no row of a table */
    getrlimit(RLIMIT_FSIZE, &was);
    low.rlim_max = was.rlim_max;
    setrlimit(RLIMIT_FSIZE, &low);
    unsigned result[TIER_RESULTS] = {0};
    for (uint64_t n = 100; n < 150; n++)
        result[case_store(&c, t, n, 1, 0, false)]++;
    unsigned left = 0;
    for (uint64_t n = 0; n < 40; n++)
        left += has_page(t, n) && case_load(&c, t, n, 1, 0, false) == TIER_OK;
    setrlimit(RLIMIT_FSIZE, &was);
    t->close(t);
    assert_int_equal(log_end("cannot write: File too large"), 1);
    assert_true(result[TIER_FAILED] >= 1 && result[TIER_FAILED] <= 3);
    assert_int_equal(result[TIER_FAILED] + result[TIER_DECLINED], 50);
    assert_true(left >= 37);
    case_close(&c);
}

/* Units of four records on a disk with room for a few: one that fits the places there are, or the
 * last bytes of the disk, is no sign of room. */
static void a_disk_that_stays_full_is_told_of_once_until_there_is_room(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    if (mount("weir", g->dir, "tmpfs", 0, "size=256k") != 0)
        skip();
    log_begin();
    struct tier *t = open_disk(g, &c, 100 * PLACE);
    unsigned stored = 0;
    uint64_t n = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 30; i++, n += 10)
            stored += case_store(&c, t, n, i % 3 ? 1 : 4, n + 3, i % 2) == TIER_OK;
        pause_over();
        for (int i = 0; i < 30; i++, n += 10)
            stored += case_store(&c, t, n, 1, 0, false) == TIER_OK;
        usleep(1200000); /* then more room is asked for */
    }
    const unsigned while_full = stored;
    bool silent = log_now("writes again") == 0;
    assert_int_equal(mount("weir", g->dir, "tmpfs", MS_REMOUNT, "size=4m"), 0);
    for (int i = 0; i < 60; i++, n += 10)
        stored += case_store(&c, t, n, 4, n + 3, true) == TIER_OK;
    uint64_t pages = usage_of(t).pages + usage_of(t).states;
    bool takes = usage_of(t).takes;
    t->close(t);
    assert_int_equal(umount(g->dir), 0);
    unsigned again = log_now("writes again");
    assert_int_equal(log_end("cannot write: No space left on device"), 1);
    assert_true(silent);
    assert_int_equal(again, 1);
    assert_true(while_full > 20 && stored >= while_full + 50);
    assert_true(pages > 90 && takes);
    case_close(&c);
}

static void a_limit_of_file_size_is_no_end_of_the_process(void **state) {
    struct tier_case c;
    case_small(&c);
    log_begin();
    struct tier *t = open_disk(*state, &c, 1000 * PLACE);
    assert_int_equal(case_store(&c, t, 0, 4, 0, false), TIER_OK);
    struct rlimit was, low = {8 * PLACE, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &was);
    low.rlim_max = was.rlim_max;
    setrlimit(RLIMIT_FSIZE, &low);
    enum tier_result over = case_store(&c, t, 10, 10, 0, false);
    enum tier_result within = case_store(&c, t, 20, 1, 0, false);
    enum tier_result load = case_load(&c, t, 0, 3, 0, false);
    setrlimit(RLIMIT_FSIZE, &was);
    pause_over();
    enum tier_result after = case_store(&c, t, 30, 1, 0, false);
    bool early = log_now("writes again") > 0; /* in a place there was */
    usleep(1200000);
    enum tier_result as_much = case_store(&c, t, 40, 10, 0, false);
    t->close(t);
    assert_int_equal(log_end("writes again"), 1);
    assert_int_equal(over, TIER_FAILED);
    assert_int_equal(within, TIER_OK); /* the last of the first four gave way */
    assert_int_equal(load, TIER_OK);
    assert_int_equal(after, TIER_OK);
    assert_false(early);
    assert_int_equal(as_much, TIER_OK);
    case_close(&c);
}

static void unreadable_records_are_dropped_and_the_rest_stays(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(g, &c, 100 * PLACE);
    assert_int_equal(case_store(&c, t, 0, 10, 9, true), TIER_OK);
    log_begin();
    assert_int_equal(truncate(file_of(g, &c, "pages"), 8 * PLACE), 0);
    enum tier_result one = case_load(&c, t, 8, 1, 0, false);
    bool dropped = !has_page(t, 8);
    enum tier_result other = case_load(&c, t, 0, 8, 9, true);
    enum tier_result again = case_store(&c, t, 8, 1, 0, false);
    enum tier_result now = case_load(&c, t, 8, 1, 0, false);
    t->close(t);
    assert_int_equal(log_end("cannot read: Input/output error"), 1);
    assert_int_equal(one, TIER_FAILED);
    assert_true(dropped);
    assert_int_equal(other, TIER_OK);
    assert_int_equal(again, TIER_OK);
    assert_int_equal(now, TIER_OK);
    case_close(&c);
}

static void a_disk_that_cannot_be_read_is_left_alone_for_a_while(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_disk(g, &c, 100 * PLACE);
    for (uint64_t n = 0; n < 10; n++)
        assert_int_equal(case_store(&c, t, n, 1, 0, false), TIER_OK);
    log_begin();
    assert_int_equal(truncate(file_of(g, &c, "pages"), 0), 0);
    unsigned result[TIER_RESULTS] = {0};
    for (uint64_t n = 0; n < 10; n++)
        result[case_load(&c, t, n, 1, 0, false)]++;
    uint64_t kept = usage_of(t).pages;
    bool up = usage_of(t).up;
    pause_over();
    case_store(&c, t, 20, 1, 0, false);
    enum tier_result later = case_load(&c, t, 20, 1, 0, false);
    t->close(t);
    assert_int_equal(log_end("cannot read"), 1);
    assert_int_equal(result[TIER_FAILED], 3);
    assert_int_equal(result[TIER_DECLINED], 7);
    assert_int_equal(kept, 7); /* three were tried */
    assert_false(up);
    assert_int_equal(later, TIER_OK);
    case_close(&c);
}

static void a_deleted_directory_stops_stores_until_it_can_be_made_anew(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    log_begin();
    struct tier *t = open_disk(g, &c, 6 * PLACE);
    assert_int_equal(case_store(&c, t, 0, 4, 3, true), TIER_OK);
    run("rm -rf %s && touch %s", g->dir); /* and nothing can be made there */
    enum tier_result store = case_store(&c, t, 10, 1, 0, false);
    enum tier_result next = case_store(&c, t, 10, 1, 0, false);
    enum tier_result load = case_load(&c, t, 0, 4, 3, true);
    pause_over();
    enum tier_result vain = case_store(&c, t, 10, 1, 0, false); /* tries to make it */
    for (int i = 0; i < 100 && !usage_of(t).up; i++) {          /* while it tries, nothing moves */
        usleep(10000);
        t->collect(t);
    }
    bool takes = usage_of(t).takes;
    enum tier_result still = case_load(&c, t, 0, 4, 3, true);
    run("rm -f %s", g->dir);
    enum tier_result later = TIER_DECLINED, found = TIER_RESULTS;
    for (int i = 0; i < 200 && later == TIER_DECLINED; i++) {
        usleep(20000);
        t->collect(t);
        later = case_store(&c, t, 20, 5, 24, true);
    }
    bool forgotten = !has_page(t, 0);
    enum tier_result back = case_load(&c, t, 20, 5, 24, true);
    t->close(t);
    t = open_disk(g, &c, 6 * PLACE);
    found = case_load(&c, t, 20, 5, 24, true);
    t->close(t);
    assert_int_equal(log_end("its files were deleted"), 1);
    assert_int_equal(store, TIER_FAILED);
    assert_int_equal(next, TIER_DECLINED);
    assert_int_equal(load, TIER_OK); /* the open files still hold it */
    assert_int_equal(vain, TIER_DECLINED);
    assert_false(takes);
    assert_int_equal(still, TIER_OK);
    assert_int_equal(later, TIER_OK);
    assert_true(forgotten);
    assert_int_equal(back, TIER_OK);
    assert_int_equal(found, TIER_OK);
    case_close(&c);
}

static void what_waits_to_be_stored_is_bounded(void **state) {
    struct tier_case c;
    case_open(&c, 16, 4, 4, 1024, 1, 96, 128); /* 6.7 MB a state */
    struct tier *t = open_disk(*state, &c, (uint64_t)1 << 30);
    enum { MANY = 30 };
    struct case_unit *u = calloc(MANY, sizeof *u);
    unsigned declined = 0;
    for (int i = 0; i < MANY; i++) {
        case_unit(&u[i], TIER_STORE, 0, 0, 0, 100 + (uint64_t)i, 0);
        t->submit(t, &u[i].move);
    }
    for (unsigned left = MANY; left;)
        for (struct tier_move *m = case_wait(&c, t, 1); m; m = m->next, left--) {
            assert_true(m->result == TIER_OK || m->result == TIER_DECLINED);
            declined += m->result == TIER_DECLINED;
        }
    assert_true(declined > 0 && declined <= MANY - 9); /* nine fit into 64 MB */
    assert_int_equal(usage_of(t).states, MANY - declined);
    free(u);
    t->close(t);
    case_close(&c);
}

static void the_usual_way_is_found_by_trying(void **state) {
    struct ground *g = *state;
    struct tier_case c;
    case_small(&c);
    struct tier *t;
    weir_error err;
    log_begin();
    assert_int_equal(tier_open_disk(&c.setup, g->dir, 100 * PLACE, &t, &err), WEIR_OK);
    assert_int_equal(log_end("disk cache "), 1);
    assert_int_equal(case_store(&c, t, 0, 4, 3, true), TIER_OK);
    assert_int_equal(case_load(&c, t, 0, 4, 3, true), TIER_OK);
    t->close(t);
    case_close(&c);
}

int main(void) {
    static struct ground ring = {.way = DISK_RING}, threads = {.way = DISK_THREADS};
#define BOTH(test)                                                                                 \
    {"io_uring: " #test, test, set_up, tear_down, &ring}, {                                        \
        "threads: " #test, test, set_up, tear_down, &threads                                       \
    }
    const struct CMUnitTest tests[] = {
        BOTH(what_is_stored_comes_back_bit_for_bit_elsewhere),
        BOTH(odd_shapes_come_back),
        BOTH(random_histories_give_no_wrong_bytes),
        BOTH(disk_space_stays_within_the_budget),
        BOTH(a_restart_finds_what_was_published_in_its_order_of_use),
        BOTH(a_use_is_remembered_over_a_restart),
        BOTH(what_was_reset_stays_forgotten),
        BOTH(another_geometry_or_model_starts_empty_and_deletes_nothing),
        BOTH(a_second_process_is_told_who_has_the_directory),
        BOTH(a_directory_that_cannot_be_made_is_named),
        BOTH(a_missing_parent_is_named_and_not_made),
        BOTH(a_lower_limit_and_what_lies_beside_are_told),
        BOTH(a_killed_process_leaves_all_it_published),
        BOTH(a_process_killed_while_it_evicts_leaves_nothing_torn),
        BOTH(a_flipped_bit_is_damage_or_not_found_and_never_wrong_bytes),
        BOTH(an_entry_of_another_place_is_not_believed),
        BOTH(files_cut_short_lose_their_ends_only),
        BOTH(a_full_disk_says_so_once_and_goes_on_in_the_places_it_has),
        BOTH(a_disk_that_is_full_for_the_places_it_has_is_left_alone),
        BOTH(a_disk_that_stays_full_is_told_of_once_until_there_is_room),
        BOTH(a_limit_of_file_size_is_no_end_of_the_process),
        BOTH(unreadable_records_are_dropped_and_the_rest_stays),
        BOTH(a_disk_that_cannot_be_read_is_left_alone_for_a_while),
        BOTH(a_deleted_directory_stops_stores_until_it_can_be_made_anew),
        BOTH(what_waits_to_be_stored_is_bounded),
        BOTH(the_usual_way_is_found_by_trying),
    };
    log_set_level(LOG_INFO);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
