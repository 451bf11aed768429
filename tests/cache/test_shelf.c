/* The shelf of a tier: budget, pins, order of eviction, places. */
#include "tests/test.h"

#include "base/rng.h"
#include "cache/shelf.h"

enum { KEYS = 60, PAGE_COST = 3, STATE_COST = 10 };
static const uint64_t cost[SHELF_KINDS] = {PAGE_COST, STATE_COST};

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

static struct cache_key key_of(uint32_t n) {
    struct cache_key k = {{0}};
    uint64_t h = rng_mix(n % 7); /* collisions of the hash on purpose */
    memcpy(k.bytes, &h, 8);
    memcpy(k.bytes + 20, &n, 4);
    return k;
}

static struct shelf_record *put(struct shelf *s, enum shelf_kind kind, uint32_t n) {
    struct cache_key k = key_of(n);
    struct shelf_record *r = shelf_take(s, kind, &k, kind == SHELF_STATE ? 64 : 0);
    if (r) {
        shelf_publish(s, r);
        shelf_unpin(s, r);
    }
    return r;
}
static bool here(struct shelf *s, enum shelf_kind kind, uint32_t n) {
    struct cache_key k = key_of(n);
    return shelf_find(s, kind, &k, kind == SHELF_STATE ? 64 : 0) != NULL;
}
static void settle(struct shelf *s) {
    enum shelf_kind k;
    uint32_t place;
    while (shelf_give_back(s, &k, &place))
        shelf_given_back(s, k, place);
}

/* The oracle: which keys may be here and who is pinned, as a plain map. */
struct oracle {
    struct shelf_record *record[SHELF_KINDS][KEYS]; /* as last seen; maybe evicted since */
    uint32_t pins[SHELF_KINDS][KEYS];
    bool lost[SHELF_KINDS][KEYS]; /* lost while pinned */
};

static void check(struct shelf *s, const struct oracle *o, unsigned long long seed) {
    struct shelf_usage u = shelf_get_usage(s);
    if (u.backed > u.budget)
        fail_msg("seed %llu: %llu bytes of %llu", seed, (unsigned long long)u.backed,
                 (unsigned long long)u.budget);
    uint64_t records[SHELF_KINDS] = {0};
    for (int k = 0; k < SHELF_KINDS; k++)
        for (uint32_t n = 0; n < KEYS; n++) {
            struct cache_key key = key_of(n);
            struct shelf_record *r =
                shelf_find(s, (enum shelf_kind)k, &key, k == SHELF_STATE ? 64 : 0);
            records[k] += r != NULL;
            if (o->pins[k][n] && !o->lost[k][n] && r != o->record[k][n])
                fail_msg("seed %llu: pinned record %d/%u is gone", seed, k, n);
            if (r && (!cache_key_equal(&r->key, &key) || r->kind != (enum shelf_kind)k))
                fail_msg("seed %llu: record of another key", seed);
            records[k] += o->lost[k][n];
            for (uint32_t i = 0; r && i < n; i++) { /* a place has one record */
                struct cache_key other = key_of(i);
                const struct shelf_record *q =
                    shelf_find(s, (enum shelf_kind)k, &other, k == SHELF_STATE ? 64 : 0);
                if (q && q->place == r->place)
                    fail_msg("seed %llu: two records in place %u", seed, r->place);
            }
        }
    assert_int_equal(records[0], u.records[0]);
    assert_int_equal(records[1], u.records[1]);
    assert_int_equal(records[0] * PAGE_COST + records[1] * STATE_COST, u.bytes);
}

static void random_histories_keep_budget_pins_and_places(void **state) {
    for (uint64_t seed = 1; seed <= 200; seed++) {
        rng_state = seed << 32;
        uint64_t budget = below(150);
        struct shelf *s = shelf_open(cost, budget);
        struct oracle o = {0};
        for (int step = 0; step < 400; step++) {
            enum shelf_kind k = (enum shelf_kind)below(2);
            uint32_t n = below(KEYS);
            struct cache_key key = key_of(n);
            struct shelf_record *r = shelf_find(s, k, &key, k == SHELF_STATE ? 64 : 0);
            switch (below(8)) {
            case 0:
            case 1:
            case 2:
                if (r || o.pins[k][n])
                    break;
                r = shelf_take(s, k, &key, k == SHELF_STATE ? 64 : 0);
                if (r) {
                    assert_int_equal(r->presence, TIER_COMING);
                    assert_true(r->place < shelf_places(s, k));
                    o.record[k][n] = r;
                    o.pins[k][n] = 1;
                    /* Its bytes may be written now: none of its place may be on their way out. */
                    enum shelf_kind gk;
                    uint32_t place;
                    if (below(2))
                        while (shelf_give_back(s, &gk, &place)) {
                            assert_false(gk == k && place == r->place);
                            shelf_given_back(s, gk, place);
                        }
                }
                break;
            case 3:
                if (r) {
                    shelf_pin(r);
                    o.record[k][n] = r;
                    o.pins[k][n]++;
                }
                break;
            case 4:
            case 5:
                if (o.pins[k][n]) {
                    shelf_publish(s, o.record[k][n]);
                    shelf_unpin(s, o.record[k][n]);
                    if (!--o.pins[k][n])
                        o.lost[k][n] = false;
                }
                break;
            case 6:
                if (r && below(4) == 0) {
                    shelf_lose(s, r);
                    o.lost[k][n] = o.pins[k][n] > 0;
                } else if (below(60) == 0) {
                    shelf_reset(s, &(uint64_t){0});
                }
                break;
            case 7: { /* keys in any order, even one that cannot be */
                struct cache_key keys[10];
                uint32_t count = below(10), from = below(KEYS), stride = 1 + below(KEYS - 1);
                for (uint32_t i = 0; i < count; i++)
                    keys[i] = key_of((from + i * stride) % KEYS);
                shelf_use(s, keys, count, below(2) ? &key : NULL, below(2));
                break;
            }
            }
            if (step % 5 == 0)
                check(s, &o, seed);
        }
        for (int k = 0; k < SHELF_KINDS; k++)
            for (uint32_t n = 0; n < KEYS; n++)
                while (o.pins[k][n] && o.pins[k][n]--)
                    shelf_unpin(s, o.record[k][n]);
        shelf_reset(s, &(uint64_t){0});
        struct shelf_usage u = shelf_get_usage(s);
        assert_int_equal(u.records[0] + u.records[1] + u.present[0] + u.present[1] + u.bytes, 0);
        /* All of the budget can be had again, by either kind. */
        for (uint32_t i = 0; i < shelf_places(s, SHELF_STATE); i++)
            assert_non_null(put(s, SHELF_STATE, i));
        settle(s);
        for (uint32_t i = 0; i < shelf_places(s, SHELF_PAGE); i++)
            assert_non_null(put(s, SHELF_PAGE, 1000 + i));
        assert_int_equal(shelf_get_usage(s).present[SHELF_PAGE], shelf_places(s, SHELF_PAGE));
        shelf_close(s);
    }
}

/* Prefixes of two conversations with a common head, random uses: whatever is evicted, no page goes
 * while a later page or a state of its prefix is here. */
static void what_needs_a_page_goes_before_it(void **state) {
    for (uint64_t seed = 1; seed <= 200; seed++) {
        rng_state = seed << 32;
        struct shelf *s = shelf_open(cost, 40 + below(80));
        for (int step = 0; step < 200; step++) {
            /* Branch b: pages 0..4 are common, then 10*b + 5.. */
            uint32_t b = below(4), n = 1 + below(12);
            struct cache_key keys[12];
            uint32_t number[12];
            for (uint32_t i = 0; i < n; i++) {
                number[i] = i < 5 ? i : 15 * b + i;
                keys[i] = key_of(number[i]);
            }
            bool with_state = below(2), fits = true;
            struct shelf_record *pinned[13];
            uint32_t n_pinned = 0;
            for (uint32_t i = 0; i < n && fits; i++) {
                struct shelf_record *r = shelf_find(s, SHELF_PAGE, &keys[i], 0);
                if (r)
                    shelf_pin(r);
                else
                    r = shelf_take(s, SHELF_PAGE, &keys[i], 0);
                if (r)
                    pinned[n_pinned++] = r;
                fits = r != NULL;
            }
            if (with_state && fits) {
                struct shelf_record *r = shelf_find(s, SHELF_STATE, &keys[n - 1], 64);
                if (!r && (r = shelf_take(s, SHELF_STATE, &keys[n - 1], 64)))
                    pinned[n_pinned++] = r;
            }
            settle(s);
            shelf_use(s, keys, n, with_state ? &keys[n - 1] : NULL, true);
            for (uint32_t i = 0; i < n_pinned; i++) {
                shelf_publish(s, pinned[i]);
                shelf_unpin(s, pinned[i]);
            }
            if (!fits)
                shelf_reset(s, &(uint64_t){0}); /* a partial prefix would prove nothing */
            for (uint32_t c = 0; c < 4; c++) {
                bool all = true;
                for (uint32_t i = 0; i < 12; i++) {
                    uint32_t page = i < 5 ? i : 15 * c + i;
                    if (here(s, SHELF_PAGE, page) && !all)
                        fail_msg("seed %llu: page %u is here, one before it is not",
                                 (unsigned long long)seed, page);
                    all = all && here(s, SHELF_PAGE, page);
                    if (here(s, SHELF_STATE, page) && !all)
                        fail_msg("seed %llu: a state is here and its page is not",
                                 (unsigned long long)seed);
                }
            }
        }
        shelf_close(s);
    }
}

static void the_prefix_used_longest_ago_goes_first_from_its_tail(void **state) {
    struct shelf *s = shelf_open(cost, 10 * PAGE_COST);
    struct cache_key a[5], b[5];
    for (uint32_t i = 0; i < 5; i++) {
        a[i] = key_of(i);
        b[i] = key_of(10 + i);
        put(s, SHELF_PAGE, i);
        put(s, SHELF_PAGE, 10 + i);
    }
    shelf_use(s, b, 5, NULL, true);
    shelf_use(s, a, 5, NULL, true);
    shelf_use(s, b, 2, NULL, true); /* b's head is newer than a, its tail is not */
    static const uint32_t order[] = {14, 13, 12, 4, 3, 2, 1, 0, 11, 10};
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t k = 0; k < 10; k++)
            assert_int_equal(here(s, SHELF_PAGE, order[k]), k >= i);
        put(s, SHELF_PAGE, 100 + i);
    }
    assert_int_equal(shelf_get_usage(s).evicted[SHELF_PAGE], 10);
    shelf_close(s);
}

static void a_pinned_page_keeps_the_history_before_it(void **state) {
    struct shelf *s = shelf_open(cost, 4 * PAGE_COST);
    struct cache_key keys[3];
    for (uint32_t i = 0; i < 3; i++) {
        keys[i] = key_of(i);
        put(s, SHELF_PAGE, i);
    }
    shelf_use(s, keys, 3, NULL, true);
    struct shelf_record *tail = shelf_find(s, SHELF_PAGE, &keys[2], 0);
    shelf_pin(tail);
    for (uint32_t i = 10; i < 20; i++)
        put(s, SHELF_PAGE, i);
    assert_true(here(s, SHELF_PAGE, 0) && here(s, SHELF_PAGE, 1) && here(s, SHELF_PAGE, 2));
    shelf_unpin(s, tail);
    shelf_lose(s, tail); /* damaged, say: now the others may go */
    for (uint32_t i = 20; i < 30; i++)
        put(s, SHELF_PAGE, i);
    assert_false(here(s, SHELF_PAGE, 0) || here(s, SHELF_PAGE, 1));
    shelf_close(s);
}

static void room_moves_between_pages_and_states(void **state) {
    struct shelf *s = shelf_open(cost, 10 * PAGE_COST);
    for (uint32_t i = 0; i < 10; i++)
        put(s, SHELF_PAGE, i);
    put(s, SHELF_STATE, 50); /* 10 of 30: four pages go */
    struct shelf_usage u = shelf_get_usage(s);
    assert_int_equal(u.records[SHELF_PAGE], 6);
    assert_int_equal(u.records[SHELF_STATE], 1);
    enum shelf_kind k;
    uint32_t place, n = 0;
    bool gone[10] = {false};
    while (shelf_give_back(s, &k, &place)) {
        assert_int_equal(k, SHELF_PAGE);
        gone[place] = true;
        n++;
    }
    assert_int_equal(n, 4);
    /* Until their bytes are back, these places are nobody's. */
    struct cache_key key = key_of(50);
    shelf_lose(s, shelf_find(s, SHELF_STATE, &key, 64));
    for (uint32_t i = 20; i < 40; i++) {
        struct shelf_record *r = put(s, SHELF_PAGE, i);
        assert_non_null(r);
        assert_false(gone[r->place]);
    }
    for (uint32_t i = 0; i < 10; i++)
        if (gone[i])
            shelf_given_back(s, SHELF_PAGE, i);
    for (uint32_t i = 40; i < 60; i++)
        assert_non_null(put(s, SHELF_PAGE, i));
    assert_int_equal(shelf_get_usage(s).records[SHELF_PAGE], 10);
    shelf_close(s);
}

static void a_state_of_another_position_is_not_here(void **state) {
    struct shelf *s = shelf_open(cost, 100);
    put(s, SHELF_STATE, 1);
    struct cache_key key = key_of(1);
    assert_non_null(shelf_find(s, SHELF_STATE, &key, 64));
    assert_null(shelf_find(s, SHELF_STATE, &key, 128));
    struct shelf_record *r = shelf_take(s, SHELF_STATE, &key, 128);
    assert_non_null(r);
    assert_null(shelf_find(s, SHELF_STATE, &key, 64));
    assert_null(shelf_take(s, SHELF_STATE, &key, 64)); /* the other is being written */
    shelf_unpin(s, r);
    shelf_close(s);
}

static void places_of_an_earlier_process_are_adopted_once(void **state) {
    struct shelf *s = shelf_open(cost, 5 * PAGE_COST);
    struct cache_key a = key_of(1), b = key_of(2);
    assert_non_null(shelf_adopt(s, SHELF_PAGE, 3, &a, 0, 9));
    assert_null(shelf_adopt(s, SHELF_PAGE, 3, &b, 0, 9)); /* the place is taken */
    assert_null(shelf_adopt(s, SHELF_PAGE, 4, &a, 0, 9)); /* the key is here */
    assert_null(shelf_adopt(s, SHELF_PAGE, 5, &b, 0, 9)); /* beyond the budget */
    assert_null(shelf_adopt(s, SHELF_STATE, 1, &b, 0, 9));
    assert_non_null(shelf_adopt(s, SHELF_PAGE, 0, &b, 0, 9));
    for (uint32_t i = 10; i < 13; i++) {
        struct shelf_record *r = put(s, SHELF_PAGE, i);
        assert_true(r->place != 0 && r->place != 3);
    }
    assert_int_equal(shelf_get_usage(s).evicted[SHELF_PAGE], 0);
    put(s, SHELF_PAGE, 20);
    assert_false(here(s, SHELF_PAGE, 1)); /* adopted first, used longest ago */
    assert_true(here(s, SHELF_PAGE, 2));
    shelf_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_keep_budget_pins_and_places),
        cmocka_unit_test(what_needs_a_page_goes_before_it),
        cmocka_unit_test(the_prefix_used_longest_ago_goes_first_from_its_tail),
        cmocka_unit_test(a_pinned_page_keeps_the_history_before_it),
        cmocka_unit_test(room_moves_between_pages_and_states),
        cmocka_unit_test(a_state_of_another_position_is_not_here),
        cmocka_unit_test(places_of_an_earlier_process_are_adopted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
