/* What a scheduler counts and says of prompts whose prefixes lie in tiers: over tiers made for the
 * test, step by step. */
#include "tests/test.h"

#include "tests/cache/fake_tier.h"

#include "engine/cache_log.h"
#include "engine/scheduler.h"

#include <string.h>

enum { TOKENS = 700, PAGES = 40, SLOTS = 8 };

struct desk {
    struct request_limits limits;
    struct cache_index *index;
    struct cache_tiers *tiers;
    struct scheduler s;
    struct step step;
    struct fake disk, remote;
    enum tier_result probes;    /* how questions to the store end */
    int32_t ids[TOKENS], other; /* what prompts share; the id that the next one goes on with */
    struct cache_lease keys;    /* of the former */
    char line[CACHE_LINE_BYTES];
};

static void open_desk(struct desk *d, uint32_t max_seqs) {
    const struct cache_setup setup = {.pages = PAGES,
                                      .slots = SLOTS,
                                      .enabled = true,
                                      .policy = checkpoint_policy_default(),
                                      .space = {.step_rows = TOKENS}};
    const struct scheduler_limits limits = {
        .max_seqs = max_seqs, .max_rows = TOKENS, .max_waiting = 4, .policy = WEIR_PRIORITY};
    *d = (struct desk){
        .limits = {.vocab = TOKENS + 10, .max_model_len = TOKENS + 4, .space = setup.space},
        .disk = fake_tier(TIER_DISK),
        .remote = fake_tier(TIER_REMOTE),
    };
    struct tier *tier[] = {&d->disk.tier, &d->remote.tier};
    for (int i = 0; i < TOKENS; i++)
        d->ids[i] = i;
    d->index = cache_index_open(&setup);
    d->tiers = cache_tiers_open(d->index, tier, 2);
    assert_true(scheduler_open(&d->s, &limits, d->index, d->tiers));
    assert_true(
        step_open(&d->step, limits.max_seqs, limits.max_rows, scheduler_max_logits(&limits)));
    assert_int_equal(cache_lease_open(&d->keys, &setup.space, TOKENS, NULL), WEIR_OK);
    cache_match(d->index, &d->keys, d->ids, TOKENS, TOKENS - 1, false);
    d->disk.keys = d->remote.keys = d->keys.keys;
}

/* All that is under way ends, loads as told. */
static void end_moves(struct desk *d, enum tier_result loads) {
    struct fake *all[] = {&d->disk, &d->remote};
    for (int i = 0; i < 2; i++) {
        end_all(all[i], TIER_OK);
        for (struct tier_move *m = all[i]->ended; m; m = m->next)
            m->result = m->task == TIER_LOAD ? loads : m->task == TIER_PROBE ? d->probes : TIER_OK;
    }
    cache_tiers_round(d->tiers);
}

static void close_desk(struct desk *d) {
    end_moves(d, TIER_OK);
    cache_lease_close(&d->keys);
    cache_tiers_close(d->tiers);
    assert_int_equal(cache_get_usage(d->index).pages_used, 0);
    cache_index_close(d->index);
    scheduler_close(&d->s);
    step_close(&d->step);
}

/* A request of n tokens: the first `shared` of the ids, then others that nobody else has. */
static struct weir_request *ask(struct desk *d, uint32_t shared, uint32_t n) {
    int32_t ids[TOKENS];
    struct weir_request *r;
    weir_params p = weir_params_default();
    weir_error err;
    p.max_tokens = 1;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i < shared ? d->ids[i] : TOKENS + d->other;
    d->other++;
    assert_int_equal(request_create(&d->limits, ids, n, &p, &r, &err), WEIR_OK);
    scheduler_add(&d->s, r);
    return r;
}

/* Plans until the request runs; all moves end between two tries, loads as told. `lost`: what has
 * come is given up before the next try. Returns the line of --log-cache. */
static const char *admit(struct desk *d, struct weir_request *r, enum tier_result loads,
                         bool lost) {
    for (int tries = 0; r->run.stage != STAGE_RUNNING; tries++) {
        assert_true(tries < 10);
        end_moves(d, loads);
        if (lost)
            cache_evict_all(d->index, false);
        scheduler_plan(&d->s, 0, &d->step);
    }
    cache_line(d->index, r, r->ask.n_prompt - 1, d->line);
    return d->line;
}

/* Its prompt is computed, and it goes. */
static void finish(struct desk *d, struct weir_request *r) {
    cache_computed(d->index, &r->run.lease, r->tokens, r->ask.n_prompt);
    scheduler_remove(&d->s, r);
    cache_release(d->index, &r->run.lease);
    request_free(r);
    end_moves(d, TIER_OK);
}

static void the_first_prompt_that_parts_from_history_in_a_tier_leaves_a_junction(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 10;
    struct weir_request *r = ask(&d, 400, 600);
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 384, resumes at 0; no state is kept further on"));
    assert_int_equal(d.s.stateless_tokens, 384);
    assert_int_equal(d.disk.n_loads, 0); /* useless without a state */
    finish(&d, r);
    assert_int_equal(cache_get_counts(d.index).stored[CHECKPOINT_JUNCTION], 1);
    r = ask(&d, 400, 500);
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 384, resumes at 384, state from device; no prompt known"));
    assert_int_equal(d.s.stateless_tokens, 384);
    assert_int_equal(d.s.cached_tokens, 384);
    finish(&d, r);
    close_desk(&d);
}

static void what_a_tier_has_and_did_not_give_is_not_counted_as_stateless(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 8;
    d.disk.state = 320;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    assert_non_null(strstr(admit(&d, r, TIER_FAILED, false),
                           "history to 512, resumes at 0; its load from disk failed after "));
    assert_int_equal(d.s.stateless_tokens, 512 - 320);
    assert_int_equal(d.s.cached_tokens, 0);
    finish(&d, r);
    close_desk(&d);
}

static void a_hit_counts_for_the_store_that_is_asked_once(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.remote.pages = 8;
    d.remote.state = 320;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 512, 320 of it from remote, resumes at 320, state from "
                           "remote; no state is kept further on"));
    assert_int_equal(d.remote.n_probes, 1);
    assert_int_equal(d.s.cached_tokens, 320);
    assert_int_equal(d.s.tier_tokens[TIER_REMOTE], 320);
    assert_int_equal(d.s.stateless_tokens, 512 - 320);
    finish(&d, r);
    close_desk(&d);
}

static void a_hit_counts_for_the_disk_while_the_store_is_away(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 8;
    d.disk.state = 320;
    d.probes = TIER_DECLINED;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 512, 320 of it from disk, resumes at 320, state from disk; "
                           "remote is off for now and may have more"));
    assert_int_equal(d.remote.n_probes, 2);
    assert_int_equal(d.s.tier_tokens[TIER_DISK], 320);
    finish(&d, r);
    close_desk(&d);
}

/* The store answers the second question only: its load goes on from where the disk's has led. */
static void two_loads_of_one_request_add_up(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 2;
    d.disk.state = 128;
    d.probes = TIER_FAILED;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    for (int i = 0; i < 2; i++) { /* the question, the load */
        scheduler_plan(&d.s, 0, &d.step);
        end_moves(&d, TIER_OK);
    }
    assert_int_equal(d.disk.n_loads, 1);
    d.probes = TIER_OK;
    d.remote.pages = 5;
    d.remote.state = 320;
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 320, 128 of it from disk, 192 of it from remote, resumes at "
                           "320, state from remote; no prompt known goes on like this one"));
    assert_int_equal(d.s.tier_tokens[TIER_REMOTE], 320); /* the state decides */
    assert_int_equal(d.s.tier_tokens[TIER_DISK], 0);
    finish(&d, r);
    close_desk(&d);
}

static void a_load_that_failed_is_no_excuse_once_it_has_come(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 8;
    d.disk.state = 320;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    for (int i = 0; i < 2; i++) { /* the question, the load */
        scheduler_plan(&d.s, 0, &d.step);
        end_moves(&d, TIER_FAILED);
    }
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 512, 320 of it from disk, resumes at 320, state from disk; "
                           "no state is kept further on"));
    assert_int_equal(d.disk.n_loads, 2);
    finish(&d, r);
    close_desk(&d);
}

static void what_a_tier_lost_meanwhile_is_why_less_came(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 8;
    d.disk.state = 512;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    for (int i = 0; i < 2; i++) {
        scheduler_plan(&d.s, 0, &d.step);
        end_moves(&d, TIER_GONE);
    }
    d.disk.pages = 5;
    d.disk.state = 320;
    assert_non_null(strstr(admit(&d, r, TIER_OK, false),
                           "history to 320, 320 of it from disk, resumes at 320, state from disk; "
                           "what disk had further on was gone when it was loaded"));
    finish(&d, r);
    close_desk(&d);
}

static void one_load_is_a_hit_for_all_who_waited_for_it(void **state) {
    struct desk d;
    open_desk(&d, 2);
    d.disk.pages = 8;
    d.disk.state = 320;
    struct weir_request *r[] = {ask(&d, TOKENS, TOKENS), ask(&d, 400, 500)};
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(admit(&d, r[i], TIER_OK, false),
                               "320 of it from disk, resumes at 320, state from disk; "));
    assert_int_equal(d.disk.n_loads, 1);
    assert_int_equal(d.s.tier_tokens[TIER_DISK], 640);
    for (int i = 0; i < 2; i++)
        finish(&d, r[i]);
    close_desk(&d);
}

static void what_is_given_up_before_it_can_run_is_no_hit(void **state) {
    struct desk d;
    open_desk(&d, 2);
    /* Nobody lacks what the load has brought: no store pins it. */
    d.disk.pages = d.remote.pages = 8;
    d.disk.state = d.remote.state = 320;
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    assert_non_null(strstr(admit(&d, r, TIER_OK, true),
                           "history to 512, resumes at 0; what was fetched up to 320 was given up "
                           "before it could run"));
    assert_int_equal(d.disk.n_loads, 2);
    assert_int_equal(d.s.cached_tokens + d.s.tier_tokens[TIER_DISK], 0);
    assert_int_equal(d.s.stateless_tokens, 512 - 320);
    finish(&d, r);
    close_desk(&d);
}

/* What it has left itself may be in a tier by then, and gone from the device. */
static void who_is_preempted_asks_the_tiers_again(void **state) {
    struct desk d;
    open_desk(&d, 1);
    struct weir_request *r = ask(&d, TOKENS, TOKENS);
    for (uint32_t i = 1; i <= 2; i++) {
        admit(&d, r, TIER_OK, false);
        assert_int_equal(r->run.lease.resume, 0);
        struct weir_request *urgent = ask(&d, 0, 100);
        scheduler_remove(&d.s, urgent);
        urgent->ask.priority = -1;
        scheduler_add(&d.s, urgent);
        admit(&d, urgent, TIER_OK, false);
        assert_int_equal(r->run.preemptions, i);
        finish(&d, urgent);
    }
    d.disk.pages = 10;
    d.disk.state = 640;
    admit(&d, r, TIER_OK, false);
    assert_int_equal(r->run.lease.resume, 640);
    assert_int_equal(d.s.cached_tokens, 0); /* counted when it first ran */
    finish(&d, r);
    close_desk(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_prompt_that_parts_from_history_in_a_tier_leaves_a_junction),
        cmocka_unit_test(what_a_tier_has_and_did_not_give_is_not_counted_as_stateless),
        cmocka_unit_test(a_hit_counts_for_the_store_that_is_asked_once),
        cmocka_unit_test(a_hit_counts_for_the_disk_while_the_store_is_away),
        cmocka_unit_test(two_loads_of_one_request_add_up),
        cmocka_unit_test(a_load_that_failed_is_no_excuse_once_it_has_come),
        cmocka_unit_test(what_a_tier_lost_meanwhile_is_why_less_came),
        cmocka_unit_test(one_load_is_a_hit_for_all_who_waited_for_it),
        cmocka_unit_test(what_is_given_up_before_it_can_run_is_no_hit),
        cmocka_unit_test(who_is_preempted_asks_the_tiers_again),
    };
    return cmocka_run_group_tests_name("reach", tests, NULL, NULL);
}
