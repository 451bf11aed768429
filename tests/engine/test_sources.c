/* Where prompt tokens came from: what is counted, and what the line of --log-cache says. */
#include "tests/engine/real.h"

#include "engine/cache_log.h"
#include "engine/engine.h"

#include "base/clock.h"

#include <time.h>

enum { TOKENS = 640, PAGES = 40, SLOTS = 8 };

/* ------------------------------------------------------------------------------------ the
 * sentences
 */

struct desk {
    struct cache_setup setup;
    struct cache_index *index;
    int32_t ids[TOKENS];
    uint32_t unfetched; /* what cache_reach will have found of the next prompt */
    char line[CACHE_LINE_BYTES];
};

static void open_desk(struct desk *d, const char *policy) {
    weir_error err;
    *d = (struct desk){.setup = {.pages = PAGES,
                                 .slots = SLOTS,
                                 .enabled = policy != NULL,
                                 .space = {.step_rows = TOKENS}}};
    assert_int_equal(checkpoint_policy_parse(policy, &d->setup.policy, &err), WEIR_OK);
    for (int i = 0; i < TOKENS; i++)
        d->ids[i] = i;
    d->index = cache_index_open(&d->setup);
}

static void close_desk(struct desk *d) {
    assert_int_equal(cache_get_usage(d->index).pages_used, 0);
    cache_index_close(d->index);
}

/* A prompt of n tokens is looked up and admitted; then its line is written. computed: it also runs
 * to its end. `most`: how far it may resume, 0: to its last token. */
static const char *line_of(struct desk *d, uint32_t n, uint32_t most,
                           const struct cache_fetched *fetched, bool computed) {
    struct batch_checkpoint mark[TOKENS / 64 + 1];
    struct weir_request r = {.ask = {.n_prompt = n, .arrival = 5}};
    most = most ? most : n - 1;
    assert_int_equal(cache_lease_open(&r.run.lease, &d->setup.space, TOKENS, NULL), WEIR_OK);
    assert_int_equal(cache_match(d->index, &r.run.lease, d->ids, n, most, true), CACHE_GO);
    assert_true(cache_grow(d->index, &r.run.lease, n));
    uint32_t from = r.run.lease.resume;
    r.run.lease.unfetched = d->unfetched;
    cache_admit(d->index, &r.run.lease, d->ids, n);
    if (fetched)
        r.run.fetched = *fetched;
    cache_line(d->index, &r, most, d->line);
    if (computed) {
        cache_checkpoints(d->index, &r.run.lease, from, n - from, n, mark);
        cache_computed(d->index, &r.run.lease, d->ids, n);
    }
    cache_release(d->index, &r.run.lease);
    cache_lease_close(&r.run.lease);
    return d->line;
}

static void a_line_says_how_far_and_from_where(void **state) {
    struct desk d;
    open_desk(&d, "default");
    assert_string_equal(line_of(&d, 200, 0, NULL, true),
                        "cache: request 5: prompt 200, history to 0, resumes at 0; no prompt known "
                        "goes on like this one");
    assert_string_equal(line_of(&d, 200, 0, NULL, false),
                        "cache: request 5: prompt 200, history to 192, resumes at 192, state from "
                        "device; the rest is shorter than a block of 64 tokens");
    const struct cache_fetched disk = {
        .position = 192, .tokens = {[TIER_DISK] = 64}, .state_from = TIER_DISK};
    assert_string_equal(line_of(&d, 200, 0, &disk, false),
                        "cache: request 5: prompt 200, history to 192, 64 of it from disk, resumes "
                        "at 192, state from disk; the rest is shorter than a block of 64 tokens");
    struct cache_fetched pages = {
        .position = 192, .tokens = {[TIER_DISK] = 192}, .state_from = TIER_KINDS};
    assert_non_null(
        strstr(line_of(&d, 200, 0, &pages, false),
               "history to 192, 192 of it from disk, resumes at 192, state from device"));
    close_desk(&d);
}

static void a_line_names_what_kept_the_prompt_from_resuming_further_on(void **state) {
    struct desk d;
    open_desk(&d, "end-of-prompt");
    assert_non_null(strstr(line_of(&d, 63, 0, NULL, true),
                           "resumes at 0; the prompt is shorter than a block of 64 tokens"));
    assert_non_null(strstr(line_of(&d, 64, 0, NULL, true),
                           "resumes at 0; the last block is computed because its last token must"));
    line_of(&d, 128, 0, NULL, true);
    assert_non_null(strstr(line_of(&d, 128, 0, NULL, false),
                           "history to 64, resumes at 64, state from device; the last block is "
                           "computed because its last token must be"));
    assert_non_null(strstr(line_of(&d, 128, 1, NULL, false),
                           "resumes at 0; all is computed because the prompt's log "
                           "probabilities are wanted"));
    /* History of 512 tokens, states at 64 and 512 only. */
    line_of(&d, 512, 0, NULL, true);
    assert_non_null(strstr(line_of(&d, 400, 0, NULL, false),
                           "history to 384, resumes at 128, state from device; no state is kept "
                           "further on"));
    cache_evict_all(d.index, true);
    assert_non_null(strstr(line_of(&d, 520, 0, NULL, false),
                           "history to 512, resumes at 0; the state at 512 was given up"));
    cache_evict_all(d.index, false);
    assert_non_null(strstr(line_of(&d, 520, 0, NULL, false),
                           "history to 0, resumes at 0; the history further on was given up"));
    close_desk(&d);

    open_desk(&d, "none");
    line_of(&d, 200, 0, NULL, true);
    assert_non_null(strstr(line_of(&d, 200, 0, NULL, false),
                           "history to 192, resumes at 0; the policy keeps no states"));
    close_desk(&d);
    open_desk(&d, NULL);
    assert_string_equal(line_of(&d, 200, 0, NULL, true),
                        "cache: request 5: prompt 200, resumes at 0; prefix caching is off");
    close_desk(&d);
}

static void a_line_names_the_tier_that_did_not_give_what_it_had(void **state) {
    static const char *const words[TIER_RESULTS] = {
        [TIER_GONE] = "what remote had further on was gone when it was loaded",
        [TIER_DAMAGED] = "what remote had further on was damaged",
        [TIER_FAILED] = "its load from remote failed after 0.0 s",
        [TIER_DECLINED] = "remote is off for now and may have more",
    };
    struct desk d;
    open_desk(&d, "default");
    for (int t = TIER_GONE; t < TIER_RESULTS; t++) {
        const struct cache_fetched f = {
            .state_from = TIER_KINDS, .trouble = (enum tier_result)t, .trouble_in = TIER_REMOTE};
        assert_non_null(strstr(line_of(&d, 200, 0, &f, false), words[t]));
    }
    const struct cache_fetched slow = {.state_from = TIER_KINDS,
                                       .trouble = TIER_FAILED,
                                       .trouble_in = TIER_DISK,
                                       .late = true,
                                       .seconds = 10.3};
    assert_non_null(
        strstr(line_of(&d, 200, 0, &slow, false), "its load from disk took longer than 10.3 s"));
    /* All was had in the end: no complaint. */
    line_of(&d, 200, 0, NULL, true);
    const struct cache_fetched lost = {
        .state_from = TIER_KINDS, .trouble = TIER_GONE, .trouble_in = TIER_DISK};
    assert_null(strstr(line_of(&d, 200, 0, &lost, false), "gone"));
    close_desk(&d);
}

static void a_line_names_what_the_tiers_have_and_did_not_bring(void **state) {
    struct desk d;
    open_desk(&d, "none");
    line_of(&d, 512, 0, NULL, true);
    d.unfetched = 448;
    assert_non_null(strstr(line_of(&d, 520, 0, NULL, false),
                           "history to 512, resumes at 0; what the tiers have up to 448 was not "
                           "fetched"));
    struct cache_fetched f = {
        .position = 320, .tokens = {[TIER_DISK] = 320}, .state_from = TIER_DISK};
    assert_non_null(strstr(line_of(&d, 520, 0, &f, false),
                           "history to 512, 320 of it from disk, resumes at 0; what the tiers have "
                           "up to 448 was not fetched"));
    f.position = f.tokens[TIER_DISK] = 448;
    assert_non_null(strstr(line_of(&d, 520, 0, &f, false),
                           "what was fetched up to 448 was given up before it could run"));
    f.trouble = TIER_DAMAGED;
    f.trouble_in = TIER_DISK;
    assert_non_null(strstr(line_of(&d, 520, 0, &f, false), "what disk had further on was damaged"));
    close_desk(&d);
}

/* ------------------------------------------------------------------------------------- the figures
 */

static void run_alone(weir_engine *e, const int32_t *ids, uint32_t n, weir_params p,
                      weir_progress *end) {
    weir_request *r;
    weir_error err;
    weir_token t[64];
    p.ignore_eos = true;
    if (weir_submit(e, ids, n, &p, NULL, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    double limit = clock_seconds() + 100;
    do {
        assert_true(clock_seconds() < limit);
        weir_poll(r, t, 64, end);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    } while (end->finish == WEIR_RUNNING);
    weir_release(r);
}

static weir_options small_engine(void) {
    weir_options o = weir_options_default();
    o.threads = 1;
    o.max_model_len = 512;
    o.max_num_seqs = 1;
    o.max_checkpoints = 1;
    o.max_num_batched_tokens = 128;
    return o;
}

/* Waits until the tier has nothing under way. */
static void settle(weir_engine *e, int tier) {
    weir_stats s;
    uint64_t last = 0;
    for (int quiet = 0; quiet < 50; quiet++) {
        weir_get_stats(e, &s);
        if (s.tier[tier].stored_bytes != last)
            quiet = 0;
        last = s.tier[tier].stored_bytes;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* Where states are short and pages are not, the history is still on the device when its state has
 * to come from disk: that counts as disk. */
static void hits_are_counted_by_where_the_state_was(void **state) {
    char directory[] = "/tmp/weir-sources-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    weir_options o = small_engine();
    o.disk_offload_dir = directory;
    o.disk_offload_bytes = 64 << 20;
    weir_engine *e = open_engine("models/micro-k3-odd", &o);
    weir_params p = weir_params_default();
    weir_progress end;
    weir_stats s;
    int32_t ids[300];
    uint64_t cached = 0;
    p.max_tokens = 2;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < 300; i++)
                ids[i] = (i + 7 * k) % 90;
            run_alone(e, ids, 300, p, &end);
            settle(e, WEIR_DISK);
            if (pass)
                cached += end.cached_tokens;
            assert_true(!pass || end.cached_tokens == 256);
        }
    weir_get_stats(e, &s);
    assert_int_equal(s.cached_tokens, cached);
    assert_int_equal(s.sourced_tokens[WEIR_DISK], cached);
    assert_int_equal(s.sourced_tokens[WEIR_DEVICE], 0);
    /* What was asked for last is still on the device. */
    run_alone(e, ids, 300, p, &end);
    weir_get_stats(e, &s);
    assert_int_equal(s.sourced_tokens[WEIR_DISK], cached);
    assert_int_equal(s.sourced_tokens[WEIR_DEVICE], 256);
    weir_close(e);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* 800 ids, the first 400 of them the same for all k. */
static void run_parting(weir_engine *e, int k, weir_progress *end) {
    weir_params p = weir_params_default();
    int32_t ids[800];
    for (int i = 0; i < 800; i++)
        ids[i] = (i * i + (i < 400 ? 0 : 1 + 7 * k)) % 90;
    p.max_tokens = 2;
    run_alone(e, ids, 800, p, end);
}

/* After a restart the first prompt that parts from an old one is what it was before: history
 * without a state, and a reason to keep one. */
static void history_that_only_the_disk_has_is_known(void **state) {
    char directory[] = "/tmp/weir-sources-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    weir_options o = small_engine();
    o.max_model_len = 1024;
    o.max_checkpoints = 4;
    o.disk_offload_dir = directory;
    o.disk_offload_bytes = 64 << 20;
    weir_progress end;
    weir_stats s;
    weir_engine *e = open_engine("models/micro-k3-odd", &o);
    run_parting(e, 0, &end);
    settle(e, WEIR_DISK);
    weir_close(e);
    e = open_engine("models/micro-k3-odd", &o);
    run_parting(e, 1, &end);
    assert_int_equal(end.cached_tokens, 0);
    weir_get_stats(e, &s);
    assert_int_equal(s.stateless_tokens, 384);
    assert_int_equal(s.checkpoints_stored[CHECKPOINT_JUNCTION], 1);
    run_parting(e, 2, &end);
    assert_int_equal(end.cached_tokens, 384);
    weir_get_stats(e, &s);
    assert_int_equal(s.stateless_tokens, 384);
    weir_close(e);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* Usage tells a prompt's tokens once for all choices, and so do the figures. */
static void a_prompt_counts_once_for_all_its_choices(void **state) {
    weir_options o = small_engine();
    o.max_num_seqs = 4;
    weir_engine *e = open_engine("models/micro-k3-odd", &o);
    weir_params p = weir_params_default();
    weir_progress end;
    weir_stats s;
    int32_t ids[300];
    for (int i = 0; i < 300; i++)
        ids[i] = i % 90;
    p.max_tokens = 2;
    for (p.choice = 0; p.choice < 4; p.choice++)
        run_alone(e, ids, 300, p, &end);
    assert_int_equal(end.cached_tokens, 256);
    weir_get_stats(e, &s);
    assert_int_equal(s.queried_tokens, 300);
    assert_int_equal(s.cached_tokens, 0);
    assert_int_equal(s.prompt_tokens, 300);
    assert_int_equal(s.generated_tokens, 8);
    weir_close(e);
}

/* -------------------------------------------------------------------------------- cut-short
 * prompts
 */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONG = 1100 };
#else
enum { LONG = 2000 };
#endif

static void long_prompt(int32_t ids[LONG]) {
    for (int i = 0; i < LONG; i++)
        ids[i] = (i * i + i / 7) % 90;
}

/* Submits the long prompt and waits until part of it is computed. */
static weir_request *start_long(weir_engine *e, const int32_t *ids) {
    weir_params p = weir_params_default();
    weir_request *r;
    weir_error err;
    weir_stats s;
    p.max_tokens = 4;
    p.ignore_eos = true;
    assert_int_equal(weir_submit(e, ids, LONG, &p, NULL, &r, &err), WEIR_OK);
    do {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        weir_get_stats(e, &s);
    } while (s.step_rows < 640);
    return r;
}

/* What a client that ran out of patience finds when it asks again. */
static void a_cancelled_prompt_goes_on_where_it_was(void **state) {
    int32_t ids[LONG];
    weir_progress end;
    weir_stats s;
    weir_params p = weir_params_default();
    long_prompt(ids);
    for (int async = 0; async < 2; async++) {
        weir_options o = small_engine();
        o.max_model_len = LONG + 100;
        o.async_scheduling = async;
        weir_engine *e = open_engine("models/tiny-k3", &o);
        weir_release(start_long(e, ids));
        p.max_tokens = 4;
        run_alone(e, ids, LONG, p, &end);
        assert_true(end.cached_tokens >= 512 && end.cached_tokens % 64 == 0);
        weir_get_stats(e, &s);
        /* All that was computed was kept. */
        assert_int_equal(s.step_rows, LONG + 4 - 1);
        weir_close(e);
    }
}

/* The same when the server went down meanwhile, and another one finds it on disk. */
static void a_prompt_cut_short_by_the_end_of_the_server_goes_on_from_disk(void **state) {
    char directory[] = "/tmp/weir-sources-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    int32_t ids[LONG];
    weir_progress end;
    weir_params p = weir_params_default();
    long_prompt(ids);
    weir_options o = small_engine();
    o.max_model_len = LONG + 100;
    o.disk_offload_dir = directory;
    o.disk_offload_bytes = 64 << 20;
    weir_engine *e = open_engine("models/tiny-k3", &o);
    weir_release(start_long(e, ids));
    weir_close(e);
    e = open_engine("models/tiny-k3", &o);
    p.max_tokens = 4;
    run_alone(e, ids, LONG, p, &end);
    assert_true(end.cached_tokens >= 512);
    weir_close(e);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_how_far_and_from_where),
        cmocka_unit_test(a_line_names_what_kept_the_prompt_from_resuming_further_on),
        cmocka_unit_test(a_line_names_the_tier_that_did_not_give_what_it_had),
        cmocka_unit_test(a_line_names_what_the_tiers_have_and_did_not_bring),
        cmocka_unit_test(hits_are_counted_by_where_the_state_was),
        cmocka_unit_test(history_that_only_the_disk_has_is_known),
        cmocka_unit_test(a_prompt_counts_once_for_all_its_choices),
        cmocka_unit_test(a_cancelled_prompt_goes_on_where_it_was),
        cmocka_unit_test(a_prompt_cut_short_by_the_end_of_the_server_goes_on_from_disk),
    };
    return cmocka_run_group_tests_name("sources", tests, NULL, NULL);
}
