/* Between pools and tiers: what is fetched, what is offered, what is known of a prefix. */
#include "tests/test.h"

#include "tests/cache/fake_tier.h"

#include "cache/tiers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 700, PAGES = 40, SLOTS = 8 };

struct world {
    struct cache_setup setup;
    struct cache_index *x;
    struct cache_tiers *t;
    struct fake f;
    struct cache_lease l;
    int32_t ids[TOKENS];
};

static void open_world(struct world *w) {
    *w = (struct world){
        .setup = {.pages = PAGES,
                  .slots = SLOTS,
                  .enabled = true,
                  .policy = checkpoint_policy_default(),
                  .space = {.step_rows = TOKENS}},
        .f = fake_tier(TIER_HOST),
    };
    struct tier *tier = &w->f.tier;
    for (int i = 0; i < TOKENS; i++)
        w->ids[i] = i;
    w->x = cache_index_open(&w->setup);
    w->t = cache_tiers_open(w->x, &tier, 1);
    assert_int_equal(cache_lease_open(&w->l, &w->setup.space, TOKENS, NULL), WEIR_OK);
    assert_int_equal(cache_match(w->x, &w->l, w->ids, TOKENS, TOKENS - 1, true), CACHE_GO);
    w->f.keys = w->l.keys;
}

static void close_world(struct world *w) {
    cache_release(w->x, &w->l);
    cache_lease_close(&w->l);
    cache_tiers_close(w->t);
    struct cache_usage u = cache_get_usage(w->x);
    assert_int_equal(u.pages_used + u.slots_used, 0);
    cache_index_close(w->x);
}

static void F051_history_without_a_state_is_not_fetched(void **state) {
    struct world w;
    open_world(&w);
    w.f.pages = 10;
    assert_null(cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1));
    /* A state beyond the history, neither. */
    w.f.pages = 3;
    w.f.state = 256;
    assert_null(cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1));
    assert_int_equal(w.f.n_loads, 0);
    close_world(&w);
}

static void the_largest_complete_pair_is_fetched(void **state) {
    struct world w;
    struct cache_fetched got;
    open_world(&w);
    w.f.pages = 5;
    w.f.state = 128;
    struct cache_load *l = cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1);
    assert_non_null(l);
    assert_int_equal(w.f.submitted->n_pages, 2);
    assert_int_equal(w.f.submitted->n_states, 1);
    cache_release(w.x, &w.l);
    assert_false(cache_load_done(l));
    cache_load_result(l, &got); /* as for a request that waits no longer */
    assert_int_equal(got.trouble, TIER_FAILED);
    assert_true(got.late && !got.sure && got.position == 0);
    end_all(&w.f, TIER_OK);
    assert_true(cache_tiers_round(w.t));
    assert_true(cache_load_done(l));
    cache_load_result(l, &got);
    assert_int_equal(got.position, 128);
    assert_int_equal(got.tokens[TIER_HOST], 128);
    assert_int_equal(got.state_from, TIER_HOST);
    assert_int_equal(got.trouble, TIER_OK);
    assert_true(got.sure && !got.late && got.best == 128 && got.beyond == 0);
    cache_load_end(w.t, l);
    assert_int_equal(cache_match(w.x, &w.l, w.ids, TOKENS, TOKENS - 1, true), CACHE_GO);
    assert_int_equal(w.l.resume, 128);
    close_world(&w);
}

static void a_load_that_fails_publishes_nothing(void **state) {
    for (int r = TIER_GONE; r <= TIER_FAILED; r++) {
        struct world w;
        open_world(&w);
        w.f.pages = 5;
        w.f.state = 320;
        struct cache_load *l = cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1);
        cache_release(w.x, &w.l);
        end_all(&w.f, (enum tier_result)r);
        assert_true(cache_tiers_round(w.t));
        cache_load_end(w.t, l);
        struct cache_usage u = cache_get_usage(w.x);
        assert_int_equal(u.pages_used + u.slots_used + u.pages_cached + u.slots_cached, 0);
        assert_int_equal(cache_match(w.x, &w.l, w.ids, TOKENS, TOKENS - 1, true), CACHE_GO);
        assert_int_equal(w.l.kept, 0);
        close_world(&w);
    }
}

static void who_wants_what_is_on_its_way_waits_for_it(void **state) {
    for (int r = TIER_OK; r <= TIER_FAILED; r++)
        for (int gone = 0; gone < 3; gone++) { /* nobody; who asked first; who asked then */
            struct world w;
            struct cache_fetched got;
            open_world(&w);
            w.f.pages = 5;
            w.f.state = 320;
            struct cache_load *l[2];
            for (int i = 0; i < 2; i++)
                l[i] = cache_fetch(w.t, &w.l, TOKENS, i ? 400 : TOKENS - 1);
            assert_int_equal(w.f.n_loads, 1);
            assert_int_equal(cache_tiers_moving(w.t), 1);
            cache_release(w.x, &w.l);
            if (gone)
                cache_load_end(w.t, l[gone - 1]);
            end_all(&w.f, (enum tier_result)r);
            assert_true(cache_tiers_round(w.t));
            for (int i = 0; i < 2; i++) {
                if (gone == i + 1)
                    continue;
                assert_true(cache_load_done(l[i]));
                cache_load_result(l[i], &got);
                assert_int_equal(got.trouble, r);
                assert_int_equal(got.position, r ? 0 : 320);
                assert_int_equal(got.tokens[TIER_HOST], r ? 0 : 320);
                assert_true(r || got.state_from == TIER_HOST);
                cache_load_end(w.t, l[i]);
            }
            assert_int_equal(cache_get_usage(w.x).pages_used, 0);
            assert_int_equal(cache_get_usage(w.x).pages_cached, r ? 0 : 5);
            close_world(&w);
        }
}

static void who_wants_less_than_what_is_on_its_way_fetches_it(void **state) {
    struct world w;
    open_world(&w);
    w.f.pages = 5;
    w.f.state = 320;
    struct cache_load *more = cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1);
    w.f.state = 128;
    struct cache_load *less = cache_fetch(w.t, &w.l, TOKENS, 200);
    assert_int_equal(w.f.n_loads, 2);
    cache_release(w.x, &w.l);
    cache_load_end(w.t, more);
    cache_load_end(w.t, less);
    for (int i = 0; i < 2; i++) { /* the loads; what is offered of them */
        end_all(&w.f, TIER_OK);
        cache_tiers_round(w.t);
    }
    close_world(&w);
}

/* The targets stay the move's until it has ended, whoever has gone meanwhile. */
static void a_request_that_goes_leaves_the_targets_to_the_move(void **state) {
    struct world w;
    open_world(&w);
    w.f.pages = 5;
    w.f.state = 320;
    struct cache_load *l = cache_fetch(w.t, &w.l, TOKENS, TOKENS - 1);
    cache_release(w.x, &w.l);
    cache_load_end(w.t, l);
    assert_int_equal(cache_get_usage(w.x).pages_used, 5);
    assert_int_equal(cache_get_usage(w.x).slots_used, 1);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    assert_int_equal(cache_get_usage(w.x).pages_used, 0);
    /* What has arrived is of use to the next one. */
    assert_int_equal(cache_match(w.x, &w.l, w.ids, TOKENS, TOKENS - 1, true), CACHE_GO);
    assert_int_equal(w.l.resume, 320);
    close_world(&w);
}

enum { BLOCKS = TOKENS / 64 };

/* The prompt is computed; one state is kept, at the end of its last block, and offered. */
static void compute(struct world *w) {
    struct batch_checkpoint mark[BLOCKS + 1];
    assert_true(cache_grow(w->x, &w->l, TOKENS));
    cache_admit(w->x, &w->l, w->ids, TOKENS);
    cache_checkpoints(w->x, &w->l, 0, TOKENS, TOKENS, mark);
    cache_computed(w->x, &w->l, w->ids, TOKENS);
    cache_tiers_round(w->t);
}

/* It is resumed from on the device; all moves end at once. Returns how many stores that made. */
static uint32_t resume(struct world *w, enum tier_result result) {
    uint32_t before = w->f.n_stores;
    cache_tiers_touch(w->t, &w->l, BLOCKS * 64);
    end_all(&w->f, result);
    cache_tiers_round(w->t);
    return w->f.n_stores - before;
}

static void a_page_that_a_tier_lacks_is_offered_under_a_state_it_has(void **state) {
    for (uint32_t hole = 1; hole <= BLOCKS; hole++) {
        struct world w;
        open_world(&w);
        w.f.pages = BLOCKS;
        w.f.state = BLOCKS * 64;
        w.f.hole = hole;
        compute(&w);
        assert_int_equal(w.f.n_stores, 1);
        const struct tier_move *m = w.f.submitted;
        assert_int_equal(m->n_states, 0);
        assert_int_equal(m->n_pages, BLOCKS);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            assert_true(cache_key_equal(&m->page_keys[b], &w.l.keys[b])); /* first block first */
            assert_int_equal(m->pages[b], b + 1 == hole ? w.l.pages[b] : -1);
        }
        end_all(&w.f, TIER_OK);
        cache_tiers_round(w.t);
        close_world(&w);
    }
}

static void what_a_tier_lost_is_offered_again_when_it_is_used(void **state) {
    struct world w;
    open_world(&w);
    compute(&w);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    w.f.pages = BLOCKS;
    w.f.state = BLOCKS * 64;
    assert_int_equal(resume(&w, TIER_OK), 0); /* nothing was lost */
    w.f.pages = w.f.state = 0;
    assert_int_equal(resume(&w, TIER_OK), 0); /* it does not say so: nobody looks */
    w.f.began++;
    w.f.off = true;
    assert_int_equal(resume(&w, TIER_OK), 0); /* it would not take it */
    w.f.off = false;
    assert_int_equal(resume(&w, TIER_OK), 1);
    assert_int_equal(resume(&w, TIER_OK), 0); /* once for each loss */
    w.f.pages = BLOCKS;
    w.f.state = BLOCKS * 64;
    w.f.began++;
    assert_int_equal(resume(&w, TIER_OK), 0); /* it has it all */
    close_world(&w);
}

static void a_tier_that_keeps_nothing_is_not_written_with_every_prompt(void **state) {
    struct world w;
    uint32_t stores = 0;
    open_world(&w);
    compute(&w);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    for (int i = 0; i < 100; i++) {
        w.f.began++;
        stores += resume(&w, TIER_OK);
    }
    assert_true(stores >= 1 && stores <= 4);
    close_world(&w);
}

static void a_store_that_is_not_taken_is_offered_again_but_not_at_once(void **state) {
    struct world w;
    uint32_t stores = 0;
    open_world(&w);
    compute(&w);
    end_all(&w.f, TIER_DECLINED);
    cache_tiers_round(w.t);
    for (int i = 0; i < 100; i++)
        stores += resume(&w, TIER_DECLINED);
    assert_int_equal(stores, 1);
    w.f.began++; /* it has come up: it may take it now */
    assert_int_equal(resume(&w, TIER_OK), 1);
    close_world(&w);
}

static void a_kept_state_is_offered_with_all_of_its_history(void **state) {
    struct world w;
    open_world(&w);
    compute(&w);
    assert_int_equal(w.f.n_stores, 1);
    assert_int_equal(w.f.submitted->n_pages, TOKENS / 64);
    assert_int_equal(w.f.submitted->positions[0], TOKENS / 64 * 64);
    cache_release(w.x, &w.l);
    /* Sources are not given up while they are read. */
    cache_evict_all(w.x, false);
    assert_int_equal(cache_get_usage(w.x).pages_used, TOKENS / 64);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    cache_evict_all(w.x, false);
    assert_int_equal(cache_get_usage(w.x).pages_used + cache_get_usage(w.x).pages_cached, 0);
    assert_int_equal(cache_match(w.x, &w.l, w.ids, TOKENS, TOKENS - 1, true), CACHE_GO);
    close_world(&w);
}

/* The prompt of the world, about to be admitted; it may resume at `most` at the furthest. */
static void match(struct world *w, uint32_t most) {
    cache_release(w->x, &w->l);
    assert_int_equal(cache_match(w->x, &w->l, w->ids, TOKENS, most, true), CACHE_GO);
    cache_reach(w->t, &w->l, TOKENS, most);
}

static void history_that_only_a_tier_has_is_known(void **state) {
    struct world w;
    open_world(&w);
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.matched + w.l.unfetched + w.l.junction, 0);
    w.f.pages = 6;
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.matched, 384);
    assert_int_equal(w.l.junction, 384); /* here the prompt leaves the path of an earlier one */
    assert_int_equal(w.l.unfetched, 0);
    assert_int_equal(w.l.resume + w.l.kept + w.l.n_pages, 0); /* it is known, not here */
    match(&w, 200);
    assert_int_equal(w.l.matched, 192); /* beyond it would not have been used */
    match(&w, 1);
    assert_int_equal(w.l.matched, 0);
    /* What is known ends at the first gap. */
    w.f.hole = 3;
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.matched, 128);
    cache_release(w.x, &w.l);
    assert_int_equal(w.l.matched + w.l.junction, 0);
    close_world(&w);
}

static void a_policy_without_junctions_leaves_none_where_a_tier_knows_more(void **state) {
    struct world w;
    weir_error err;
    open_world(&w);
    assert_int_equal(checkpoint_policy_parse("end-of-prompt", &w.setup.policy, &err), WEIR_OK);
    cache_release(w.x, &w.l);
    cache_tiers_close(w.t);
    cache_index_close(w.x);
    struct tier *tier = &w.f.tier;
    w.x = cache_index_open(&w.setup);
    w.t = cache_tiers_open(w.x, &tier, 1);
    w.f.pages = 6;
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.matched, 384);
    assert_int_equal(w.l.junction, 0);
    close_world(&w);
}

static void a_pair_that_did_not_come_is_told_from_history_without_a_state(void **state) {
    struct world w;
    open_world(&w);
    w.f.pages = 6;
    w.f.state = 256;
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.unfetched, 256);
    assert_int_equal(w.l.matched, 384);
    w.f.state = 448; /* beyond the history: no pair */
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.unfetched, 0);
    /* All the history is here, and the tier has the state alone. */
    compute(&w);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    cache_release(w.x, &w.l);
    cache_evict_all(w.x, true);
    w.f.pages = 0;
    match(&w, TOKENS - 1);
    assert_int_equal(w.l.matched, 640);
    assert_int_equal(w.l.unfetched, 448);
    cache_release(w.x, &w.l);
    assert_int_equal(w.l.unfetched, 0);
    close_world(&w);
}

/* Evictions say that pools are too small. */
static void what_is_dropped_by_hand_does_not_count_as_evicted(void **state) {
    struct world w;
    open_world(&w);
    compute(&w);
    end_all(&w.f, TIER_OK);
    cache_tiers_round(w.t);
    cache_release(w.x, &w.l);
    assert_int_equal(cache_get_usage(w.x).pages_cached, BLOCKS);
    cache_evict_all(w.x, false);
    const struct cache_counts c = cache_get_counts(w.x);
    assert_int_equal(cache_get_usage(w.x).pages_cached + cache_get_usage(w.x).slots_cached, 0);
    assert_int_equal(c.pages_evicted + c.states_evicted + c.cheap_states_evicted, 0);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(history_that_only_a_tier_has_is_known),
        cmocka_unit_test(a_policy_without_junctions_leaves_none_where_a_tier_knows_more),
        cmocka_unit_test(what_is_dropped_by_hand_does_not_count_as_evicted),
        cmocka_unit_test(a_pair_that_did_not_come_is_told_from_history_without_a_state),
        cmocka_unit_test(F051_history_without_a_state_is_not_fetched),
        cmocka_unit_test(the_largest_complete_pair_is_fetched),
        cmocka_unit_test(a_load_that_fails_publishes_nothing),
        cmocka_unit_test(who_wants_what_is_on_its_way_waits_for_it),
        cmocka_unit_test(who_wants_less_than_what_is_on_its_way_fetches_it),
        cmocka_unit_test(a_request_that_goes_leaves_the_targets_to_the_move),
        cmocka_unit_test(a_kept_state_is_offered_with_all_of_its_history),
        cmocka_unit_test(a_page_that_a_tier_lacks_is_offered_under_a_state_it_has),
        cmocka_unit_test(what_a_tier_lost_is_offered_again_when_it_is_used),
        cmocka_unit_test(a_tier_that_keeps_nothing_is_not_written_with_every_prompt),
        cmocka_unit_test(a_store_that_is_not_taken_is_offered_again_but_not_at_once),
    };
    return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
