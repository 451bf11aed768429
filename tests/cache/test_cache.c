/* The cache room: no id is ever held twice, allocation is all or nothing, and the pools are
 * balanced after any history of allocation. What is matched is test_index.c. */
#include "tests/test.h"

#include "base/rng.h"
#include "cache/index.h"
#include "cache/store.h"

enum { LEASES = 12, MAX_TOKENS = 2000 };

static const struct cache_space space = {.step_rows = 64};

/* Allocation alone: nothing is kept. */
static struct cache_index *open_index(uint32_t pages, uint32_t slots) {
    return cache_index_open(&(struct cache_setup){.pages = pages, .slots = slots, .space = space});
}

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

/* Who holds what, counted anew from all leases. */
static void check_held(struct cache_index *x, struct cache_lease *lease, const uint32_t *tokens,
                       uint32_t pages, uint32_t slots, unsigned long long seed) {
    uint8_t *page = calloc(pages, 1), *slot = calloc(slots, 1);
    uint32_t pages_used = 0, slots_used = 0;
    for (uint32_t i = 0; i < LEASES; i++) {
        if (lease[i].n_pages != (tokens[i] + 63) / 64)
            fail_msg("seed %llu: %u tokens in %u pages", seed, tokens[i], lease[i].n_pages);
        for (uint32_t k = 0; k < lease[i].n_pages; k++)
            if (page[lease[i].pages[k]]++)
                fail_msg("seed %llu: page %d held twice", seed, lease[i].pages[k]);
        if (lease[i].slot >= 0 && slot[lease[i].slot]++)
            fail_msg("seed %llu: slot %d held twice", seed, lease[i].slot);
        pages_used += lease[i].n_pages;
        slots_used += lease[i].slot >= 0;
    }
    struct cache_usage u = cache_get_usage(x);
    assert_int_equal(u.pages_used, pages_used);
    assert_int_equal(u.slots_used, slots_used);
    assert_int_equal(u.pages_total, pages);
    assert_int_equal(u.slots_total, slots);
    free(page);
    free(slot);
}

static void random_histories_never_hold_an_id_twice_and_end_balanced(void **state) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        rng_state = seed << 32;
        uint32_t pages = 1 + below(100), slots = 1 + below(LEASES), tokens[LEASES] = {0};
        struct cache_index *x = open_index(pages, slots);
        struct cache_lease lease[LEASES];
        for (int i = 0; i < LEASES; i++)
            assert_int_equal(cache_lease_open(&lease[i], &space, MAX_TOKENS, NULL), WEIR_OK);
        for (int step = 0; step < 300; step++) {
            uint32_t i = below(LEASES);
            if (below(4) == 0) {
                cache_release(x, &lease[i]);
                tokens[i] = 0;
            } else {
                struct cache_usage before = cache_get_usage(x);
                struct cache_lease was = lease[i];
                uint32_t want = tokens[i] + below(MAX_TOKENS - tokens[i] + 1);
                want = want ? want : 1;
                if (was.slot < 0)
                    cache_match(x, &lease[i], NULL, 1, 0, true);
                uint32_t need = (want + 63) / 64 - was.n_pages;
                bool fits = need <= pages - before.pages_used &&
                            (was.slot >= 0 || before.slots_used < slots);
                assert_int_equal(cache_grow(x, &lease[i], want), fits);
                if (fits) {
                    tokens[i] = want;
                    assert_true(lease[i].slot >= 0);
                } else { /* nothing may have moved */
                    assert_int_equal(lease[i].n_pages, was.n_pages);
                    assert_int_equal(lease[i].slot, was.slot);
                }
            }
            check_held(x, lease, tokens, pages, slots, seed);
        }
        for (int i = 0; i < LEASES; i++) {
            cache_release(x, &lease[i]);
            cache_lease_close(&lease[i]);
        }
        struct cache_usage u = cache_get_usage(x);
        assert_int_equal(u.pages_used + u.slots_used, 0);
        cache_index_close(x);
    }
}

static void growing_keeps_the_pages_that_are_there(void **state) {
    struct cache_index *x = open_index(10, 1);
    struct cache_lease l;
    assert_int_equal(cache_lease_open(&l, &space, 640, NULL), WEIR_OK);
    int32_t seen[10];
    for (uint32_t tokens = 1; tokens <= 640; tokens++) {
        assert_true(cache_grow(x, &l, tokens));
        seen[(tokens - 1) / 64] =
            tokens % 64 == 1 ? l.pages[(tokens - 1) / 64] : seen[(tokens - 1) / 64];
        assert_memory_equal(seen, l.pages, l.n_pages * sizeof *seen);
        assert_int_equal(l.n_pages, (tokens + 63) / 64);
    }
    cache_release(x, &l);
    cache_lease_close(&l);
    cache_index_close(x);
}

static void a_store_that_cannot_be_names_its_numbers(void **state) {
    struct cache_store s;
    weir_error err;
    assert_int_equal(
        cache_store_open(&s, 4000000000u, (size_t)1 << 40, 10, DTYPE_F32, 7, 90, 30, &err),
        WEIR_NO_MEMORY);
    assert_string_equal(err.where, "kv_cache_bytes");
    assert_non_null(strstr(err.message, "4000000000 pages of 1099511627776 bytes"));
    assert_non_null(strstr(err.message, "7 state slots of 360 bytes"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_never_hold_an_id_twice_and_end_balanced),
        cmocka_unit_test(growing_keeps_the_pages_that_are_there),
        cmocka_unit_test(a_store_that_cannot_be_names_its_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
