/* The tier in host memory. */
#include "tests/cache/tier_case.h"

#include <fcntl.h>
#include <unistd.h>

static struct tier *open_host(struct tier_case *c, uint64_t bytes) {
    struct tier *t;
    weir_error err;
    assert_int_equal(tier_open_host(&c->setup, bytes, &t, &err), WEIR_OK);
    return t;
}

static void what_is_stored_comes_back_bit_for_bit_elsewhere(void **state) {
    struct tier_case c;
    case_open(&c, 8, 3, 4, 576, 3, 8, 128); /* layers as large as those of the real model */
    struct tier *t = open_host(&c, 64 << 20);
    assert_int_equal(case_store(&c, t, 10, 3, 12, true), TIER_OK);
    struct cache_key k = case_key(12);
    assert_int_equal(t->page(t, &k), TIER_PRESENT);
    assert_int_equal(t->state(t, &k, case_position(12)), TIER_PRESENT);
    assert_int_equal(case_load(&c, t, 10, 3, 12, true), TIER_OK);
    assert_int_equal(case_load(&c, t, 11, 1, 0, false), TIER_OK);
    assert_int_equal(case_load(&c, t, 12, 2, 0, false), TIER_GONE); /* 13 is not here */
    t->close(t);
    case_close(&c);
}

static void random_histories_give_no_wrong_bytes(void **state) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct tier_case c;
        case_small(&c);
        struct tier *t = open_host(&c, 4096 * (4 + seed * 3));
        case_history(&c, t, seed, 1000, false);
        t->close(t);
        case_close(&c);
    }
}

/* Both mappings are as large as the budget; what counts is how much of them is really there. */
static size_t resident_kib(void) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    assert_non_null(f);
    char line[256];
    size_t kib = 0, v;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Rss: %zu kB", &v) == 1)
            kib = v;
    fclose(f);
    return kib;
}

static void memory_of_evicted_records_goes_to_the_other_kind(void **state) {
    struct tier_case c;
    case_open(&c, 8, 2, 4, 1024, 4, 16, 128); /* 1 MiB a page, 4.6 MiB a state */
    struct tier *t = open_host(&c, 64 << 20);
    for (uint64_t n = 0; n < 60; n += 4)
        assert_int_equal(case_store(&c, t, n, 4, 0, false), TIER_OK);
    for (uint64_t n = 0; n < 20; n++)
        case_store(&c, t, 0, 0, 100 + n, true);
    size_t before = resident_kib();
    for (int round = 0; round < 3; round++) {
        for (uint64_t n = 0; n < 60; n += 4)
            assert_int_equal(case_store(&c, t, 1000 + n, 4, 0, false), TIER_OK);
        for (uint64_t n = 0; n < 20; n++)
            assert_int_equal(case_store(&c, t, 0, 0, 2000 + n, true), TIER_OK);
        struct tier_usage u;
        t->usage(t, &u);
        assert_true(u.bytes_used <= u.bytes_total);
        assert_true(u.states >= 13);
        t->reset(t, &(uint64_t){0});
    }
    size_t after = resident_kib();
    if (after > before + (8 << 10))
        fail_msg("resident memory grew from %zu to %zu KiB", before, after);
    t->close(t);
    case_close(&c);
}

static void a_unit_larger_than_the_tier_is_declined_and_evicts_nothing(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_host(&c, 4 * 4096);
    assert_int_equal(case_store(&c, t, 0, 3, 0, false), TIER_OK);
    assert_int_equal(case_store(&c, t, 10, 5, 0, false), TIER_DECLINED);
    struct tier_usage u;
    t->usage(t, &u);
    assert_int_equal(u.pages, 3);
    assert_int_equal(u.pages_evicted, 0);
    t->close(t);
    t = open_host(&c, 0);
    assert_int_equal(case_store(&c, t, 0, 1, 0, true), TIER_DECLINED);
    t->close(t);
    case_close(&c);
}

/* A unit names the pages of it that are there (-1): the rest must not push them out. */
static void a_store_fills_holes_and_keeps_what_it_names(void **state) {
    struct tier_case c;
    struct case_unit u;
    case_small(&c);
    struct tier *t = open_host(&c, 4 * 4096);
    assert_int_equal(case_store(&c, t, 0, 1, 0, false), TIER_OK);
    assert_int_equal(case_store(&c, t, 2, 1, 0, false), TIER_OK);
    assert_int_equal(case_store(&c, t, 20, 2, 0, false), TIER_OK); /* now it is full */
    case_unit(&u, TIER_STORE, 0, 4, 0, 0, -1);
    case_unit_fill(&c, &u);
    u.pages[0] = u.pages[2] = -1;
    assert_int_equal(case_run(&c, t, &u), TIER_OK);
    assert_int_equal(case_load(&c, t, 0, 4, 0, false), TIER_OK);
    case_unit(&u, TIER_STORE, 30, 2, 0, 0, -1);
    case_unit_fill(&c, &u);
    u.pages[0] = -1; /* is not there */
    assert_int_equal(case_run(&c, t, &u), TIER_DECLINED);
    t->close(t);
    case_close(&c);
}

static void an_open_move_pins_what_it_reads(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_host(&c, 4 * 4096);
    assert_int_equal(case_store(&c, t, 0, 2, 0, false), TIER_OK);
    struct case_unit load, store;
    case_unit(&load, TIER_LOAD, 0, 2, 0, 0, -1);
    case_unit(&store, TIER_STORE, 10, 3, 10, 0, -1);
    case_unit_fill(&c, &store);
    t->submit(t, &load.move);
    t->submit(t, &store.move); /* before the load was collected: room for two */
    case_wait(&c, t, 2);
    assert_int_equal(load.move.result, TIER_OK);
    assert_true(case_unit_holds(&c, &load));
    assert_int_equal(store.move.result, TIER_DECLINED);
    assert_int_equal(case_run(&c, t, &store), TIER_OK);
    t->close(t);
    case_close(&c);
}

static void a_record_being_written_is_coming_and_cannot_be_loaded(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_host(&c, 40 * 4096);
    struct case_unit store, again, load;
    case_unit(&store, TIER_STORE, 0, 2, 0, 1, 0);
    case_unit_fill(&c, &store);
    t->submit(t, &store.move);
    struct cache_key k = case_key(1);
    assert_int_equal(t->page(t, &k), TIER_COMING);
    assert_int_equal(t->state(t, &k, case_position(1)), TIER_COMING);
    case_unit(&load, TIER_LOAD, 0, 2, 10, 1, 1);
    t->submit(t, &load.move);
    case_unit(&again, TIER_STORE, 0, 2, 0, 1, 0);
    t->submit(t, &again.move);
    case_wait(&c, t, 3);
    assert_int_equal(store.move.result, TIER_OK);
    assert_int_equal(load.move.result, TIER_GONE);
    assert_int_equal(again.move.result, TIER_OK);
    assert_int_equal(again.move.bytes, 0); /* not twice */
    assert_int_equal(t->page(t, &k), TIER_PRESENT);
    t->close(t);
    case_close(&c);
}

static void closing_waits_for_what_is_under_way(void **state) {
    for (int i = 0; i < 50; i++) {
        struct tier_case c;
        case_small(&c);
        struct tier *t = open_host(&c, 40 * 4096);
        struct case_unit u;
        case_unit(&u, TIER_STORE, 0, 20, 0, 1, 0);
        case_unit_fill(&c, &u);
        t->submit(t, &u.move);
        t->close(t);
        case_close(&c); /* the pools go: nobody may read them now */
    }
}

/* Where the tier's copy of a device page lies in this process; 0: nowhere. Read through the kernel,
 * because these are mappings of somebody else. */
static off_t copy_of_page(const struct tier_case *c, int32_t page) {
    const unsigned char *want = case_at(c, false, page);
    size_t bytes = case_bytes(c, false);
    unsigned char *got = malloc(bytes);
    int memory = open("/proc/self/mem", O_RDONLY);
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_true(got && memory >= 0 && maps);
    char line[512];
    off_t found = 0;
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long lo, hi;
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &lo, &hi, mode) != 3 || hi - lo > 64 << 20 ||
            memcmp(mode, "rw", 2) != 0)
            continue;
        for (unsigned long p = lo; p < hi && !found; p += 4096)
            if (p != (unsigned long)want && pread(memory, got, bytes, (off_t)p) == (ssize_t)bytes &&
                !memcmp(got, want, bytes))
                found = (off_t)p;
    }
    fclose(maps);
    close(memory);
    free(got);
    return found;
}
static void change_byte(off_t at) {
    int memory = open("/proc/self/mem", O_RDWR);
    unsigned char b;
    assert_int_equal(pread(memory, &b, 1, at), 1);
    b ^= 4;
    assert_int_equal(pwrite(memory, &b, 1, at), 1);
    close(memory);
}

/* F-050: bytes that changed while they lay in the tier are never given. */
static void F050_bytes_changed_in_memory_are_damage(void **state) {
    struct tier_case c;
    case_small(&c);
    struct tier *t = open_host(&c, 16 * 4096);
    assert_int_equal(case_store(&c, t, 7, 1, 7, true), TIER_OK);
    off_t found = copy_of_page(&c, 0);
    assert_true(found > 0);
    change_byte(found + (off_t)case_bytes(&c, false) / 2);
    assert_int_equal(case_load(&c, t, 7, 1, 7, true), TIER_DAMAGED);
    struct cache_key k = case_key(7);
    assert_int_equal(t->page(t, &k), TIER_ABSENT);
    assert_int_equal(t->state(t, &k, case_position(7)), TIER_PRESENT);
    struct tier_usage u;
    t->usage(t, &u);
    assert_int_equal(u.damaged, 1);
    assert_int_equal(case_store(&c, t, 7, 1, 7, false), TIER_OK);
    assert_int_equal(case_load(&c, t, 7, 1, 7, true), TIER_OK);
    t->close(t);
    case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_stored_comes_back_bit_for_bit_elsewhere),
        cmocka_unit_test(random_histories_give_no_wrong_bytes),
        cmocka_unit_test(memory_of_evicted_records_goes_to_the_other_kind),
        cmocka_unit_test(a_unit_larger_than_the_tier_is_declined_and_evicts_nothing),
        cmocka_unit_test(a_store_fills_holes_and_keeps_what_it_names),
        cmocka_unit_test(an_open_move_pins_what_it_reads),
        cmocka_unit_test(a_record_being_written_is_coming_and_cannot_be_loaded),
        cmocka_unit_test(closing_waits_for_what_is_under_way),
        cmocka_unit_test(F050_bytes_changed_in_memory_are_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
