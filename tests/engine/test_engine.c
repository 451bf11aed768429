/* The engine's contract with its callers: refusals with their numbers, order, queue, cancel, drain,
 * and an engine thread that never allocates for a token. */
#include "tests/test.h"

#include "tests/engine/mirror.h"

#include "base/clock.h"
#include "base/rng.h"
#include "engine/options.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>

static void pause_us(long us) {
    nanosleep(&(struct timespec){0, us * 1000}, NULL);
}

/* ------------------------------------------------------------------------ counting allocations */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

static pthread_t main_thread;
static atomic_bool counting;
static atomic_uint allocations;

static void count(void) {
    if (atomic_load(&counting) && !pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&allocations, 1);
}
void *__wrap_malloc(size_t n) {
    count();
    return __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t each) {
    count();
    return __real_calloc(n, each);
}
void *__wrap_realloc(void *p, size_t n) {
    count();
    return __real_realloc(p, n);
}

/* --------------------------------------------------------------------------------------- helpers
 */

static struct mirror_options plain(void) {
    return (struct mirror_options){.vocab = 100,
                                   .pages = 64,
                                   .slots = 4,
                                   .max_seqs = 4,
                                   .max_rows = 128,
                                   .max_model_len = 512,
                                   .async = true,
                                   .eos = 3};
}

static const int32_t hello[] = {10, 11, 12, 13, 14, 15, 16, 17};
static weir_token tokens[4096];

static weir_request *submit(weir_engine *e, const int32_t *ids, size_t n, const weir_params *p) {
    weir_request *r;
    weir_error err;
    if (weir_submit(e, ids, n, p, NULL, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    return r;
}

static weir_params endless(uint32_t max_tokens) {
    weir_params p = weir_params_default();
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    p.has_seed = true;
    return p;
}

static void expect_refusal(weir_engine *e, const int32_t *ids, size_t n, const weir_params *p,
                           weir_status code, const char *where, const char *text) {
    weir_request *r = (weir_request *)tokens;
    weir_error err = {0};
    assert_int_equal(weir_submit(e, ids, n, p, NULL, &r, &err), code);
    assert_null(r);
    assert_int_equal(err.code, code);
    assert_string_equal(err.where, where);
    if (!strstr(err.message, text))
        fail_msg("message of %s: '%s' lacks '%s'", where, err.message, text);
    /* after every refusal a normal request still succeeds */
    weir_params good = endless(3);
    weir_progress progress;
    weir_request *next = submit(e, hello, 8, &good);
    assert_int_equal(wait_end(next, tokens, 10, &progress, "after a refusal"), 3);
    weir_release(next);
}

/* -------------------------------------------------------------------------------------- refusals
 */

static void F036_every_id_is_checked_against_the_vocabulary(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    static const int32_t wrong[] = {100, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        char text[80];
        snprintf(text, sizeof text, "token id %d is outside the vocabulary: 0 to 99", wrong[i]);
        int32_t ids[] = {1, 2, wrong[i], 4};
        weir_params p = weir_params_default();
        expect_refusal(e, ids, 4, &p, WEIR_BAD_ID, "2", text);
        p.stop_ids = ids;
        p.n_stop_ids = 4;
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "stop_ids[2]", text);
        p = weir_params_default();
        p.allowed_ids = ids;
        p.n_allowed_ids = 3;
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "allowed_ids[2]", text);
        p = weir_params_default();
        weir_bias bias[] = {{5, 1}, {wrong[i], 1}};
        p.bias = bias;
        p.n_bias = 2;
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "bias[1]", text);
        p = weir_params_default();
        const int32_t *words[] = {hello, ids};
        size_t lengths[] = {2, 4};
        p.bad_words = words;
        p.bad_word_lengths = lengths;
        p.n_bad_words = 2;
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "bad_words[2]", text);
        p = weir_params_default();
        p.scripted_ids = ids;
        p.n_scripted_ids = 3;
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "scripted_ids[2]", text);
    }
    weir_close(e);
}

static void F037_an_empty_bad_word_is_refused(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    weir_params p = weir_params_default();
    const int32_t *words[] = {hello, hello};
    size_t lengths[] = {2, 0};
    p.bad_words = words;
    p.bad_word_lengths = lengths;
    p.n_bad_words = 2;
    expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "bad_words", "entry 1 is empty");
    weir_close(e);
}

/* F-029, F-030: also for callers that are not the HTTP server. */
static void F030_numbers_that_are_none_never_reach_the_sampler(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    static const float bad[] = {NAN, INFINITY, -INFINITY, -0.5f};
    for (int i = 0; i < 4; i++) {
        weir_params p = weir_params_default();
        p.temperature = bad[i];
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "temperature", "must be finite");
        p = weir_params_default();
        p.top_p = bad[i];
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "top_p", "must be above 0");
        p = weir_params_default();
        p.min_p = bad[i];
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "min_p", "must be 0 to 1");
        p = weir_params_default();
        p.repetition_penalty = bad[i];
        expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "repetition_penalty", "must be finite");
        weir_bias bias = {4, bad[i]};
        p = weir_params_default();
        p.bias = &bias;
        p.n_bias = 1;
        if (i < 2)
            expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "bias", "of id 4 is no number");
        if (i < 3) {
            p = weir_params_default();
            p.presence_penalty = bad[i];
            expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "presence_penalty", "must be finite");
        }
    }
    weir_params p = weir_params_default();
    p.top_p = 0;
    expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "top_p", "is 0, must be above 0");
    p = weir_params_default();
    p.top_k = -2;
    expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "top_k", "-1, 0 or above");
    p = weir_params_default();
    p.logprobs = 21;
    expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "logprobs", "is 21");
    weir_close(e);
}

static void F027_lengths_are_refused_with_their_numbers(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    static int32_t ids[600];
    weir_params p = weir_params_default();
    expect_refusal(e, ids, 0, &p, WEIR_BAD_VALUE, "prompt", "is empty");
    expect_refusal(e, ids, 512, &p, WEIR_TOO_LONG, "prompt", "has 512 tokens");
    p.max_tokens = 505;
    expect_refusal(e, hello, 8, &p, WEIR_TOO_LONG, "max_tokens",
                   "8 tokens of prompt and 505 of answer exceed the context of 512 tokens");
    p.max_tokens = 10;
    p.min_tokens = 11;
    expect_refusal(e, hello, 8, &p, WEIR_BAD_VALUE, "min_tokens", "more than max_tokens 10");
    p = endless(504);
    weir_progress progress;
    weir_request *r = submit(e, hello, 8, &p);
    assert_int_equal(wait_end(r, tokens, 600, &progress, "exact fit"), 504);
    assert_int_equal(progress.finish, WEIR_FINISH_LENGTH);
    weir_release(r);
    p = endless(0); /* to the end of the context */
    r = submit(e, ids, 511, &p);
    assert_int_equal(wait_end(r, tokens, 600, &progress, "last token"), 1);
    weir_release(r);
    weir_close(e);

    o.pages = 2;
    e = mirror_open(&o);
    p = endless(121);
    expect_refusal(e, hello, 8, &p, WEIR_TOO_LONG, "max_tokens",
                   "8 tokens of prompt and 121 of answer can never fit the 128 tokens");
    weir_close(e);
}

static void a_full_queue_is_busy_and_a_draining_engine_is_closed(void **state) {
    struct mirror_options o = plain();
    o.max_seqs = o.slots = 1;
    o.max_waiting = 3;
    o.step_us = 2000;
    weir_engine *e = mirror_open(&o);
    weir_params p = endless(200);
    weir_request *r[4], *more;
    weir_error err;
    r[0] = submit(e, hello, 8, &p);
    weir_stats s;
    do
        weir_get_stats(e, &s);
    while (s.running == 0);
    p = endless(2);
    for (int i = 1; i < 4; i++)
        r[i] = submit(e, hello, 8, &p);
    weir_get_stats(e, &s);
    assert_int_equal(s.waiting, 3);
    assert_int_equal(weir_submit(e, hello, 8, &p, NULL, &more, &err), WEIR_BUSY);
    assert_null(more);
    assert_non_null(strstr(err.message, "holds 3 of at most 3 requests"));
    weir_drain(e);
    assert_int_equal(weir_submit(e, hello, 8, &p, NULL, &more, &err), WEIR_CLOSED);
    weir_cancel(r[0]);
    weir_progress progress;
    wait_end(r[0], tokens, 300, &progress, "cancelled");
    assert_int_equal(progress.finish, WEIR_FINISH_ABORT);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(wait_end(r[i], tokens, 10, &progress, "what was queued goes on"), 2);
        assert_int_equal(progress.finish, WEIR_FINISH_LENGTH);
    }
    for (int i = 0; i < 4; i++)
        weir_release(r[i]);
    weir_close(e);
}

/* ----------------------------------------------------------------------------------------- order
 */

static double scheduled_at(weir_request *r, uint32_t *preemptions) {
    weir_progress p;
    wait_end(r, tokens, 600, &p, "order");
    if (preemptions)
        *preemptions = p.preemptions;
    return p.scheduled;
}

static void fcfs_runs_in_order_of_arrival_and_ignores_priority(void **state) {
    struct mirror_options o = plain();
    o.max_seqs = o.slots = 1;
    weir_engine *e = mirror_open(&o);
    weir_request *r[50];
    for (int i = 0; i < 50; i++) {
        weir_params p = endless(1 + (uint32_t)i % 3);
        p.priority = -i;
        r[i] = submit(e, hello, 8, &p);
    }
    double last = 0;
    for (int i = 0; i < 50; i++) {
        double at = scheduled_at(r[i], NULL);
        assert_true(at >= last);
        last = at;
        weir_release(r[i]);
    }
    weir_close(e);
}

static void priority_runs_the_lowest_value_first_and_takes_the_seat_of_a_higher_one(void **state) {
    struct mirror_options o = plain();
    o.max_seqs = o.slots = 1;
    o.policy = WEIR_PRIORITY;
    o.step_us = 200;
    weir_engine *e = mirror_open(&o);
    weir_params p = endless(100);
    p.priority = 1000;
    weir_request *low = submit(e, hello, 8, &p), *r[30];
    weir_stats s;
    do
        weir_get_stats(e, &s);
    while (s.generated_tokens < 5);
    uint32_t order[30];
    for (uint32_t i = 0; i < 30; i++) {
        order[i] = i * 7 % 30; /* every priority once, mixed */
        p = endless(3);
        p.priority = order[i];
        r[order[i]] = submit(e, hello, 8, &p);
    }
    /* The first submitted ones may have got their turn before the more urgent ones came. */
    uint32_t preemptions, disorder = 0;
    double at[30];
    for (int i = 0; i < 30; i++) {
        at[i] = scheduled_at(r[i], NULL);
        weir_release(r[i]);
    }
    for (int i = 1; i < 30; i++)
        disorder += at[i] < at[i - 1];
    assert_in_range(disorder, 0, 5);
    scheduled_at(low, &preemptions);
    assert_true(preemptions >= 1);
    int32_t alone[100];
    weir_finish finish;
    p = endless(100);
    assert_int_equal(mirror_solo(&o, hello, 8, &p, alone, &finish), 100);
    weir_release(low);
    weir_close(e);
}

/* Small requests keep coming; a large one that needs nearly the whole pool still gets its turn. */
static void a_large_request_is_not_starved_by_small_ones(void **state) {
    struct mirror_options o = plain();
    o.pages = 8;
    weir_engine *e = mirror_open(&o);
    static int32_t ids[500];
    weir_params small = endless(20), large = endless(10);
    weir_request *s[4], *big;
    weir_progress p;
    for (int i = 0; i < 4; i++)
        s[i] = submit(e, hello, 8, &small);
    big = submit(e, ids, 490, &large);
    double limit = clock_seconds() + 30;
    uint32_t others = 0;
    for (;;) {
        weir_poll(big, tokens, 100, &p);
        if (p.finish != WEIR_RUNNING)
            break;
        for (int i = 0; i < 4; i++) {
            weir_progress q;
            weir_poll(s[i], tokens, 100, &q);
            if (q.finish != WEIR_RUNNING) {
                weir_release(s[i]);
                s[i] = submit(e, hello, 8, &small);
                others++;
            }
        }
        if (clock_seconds() > limit)
            fail_msg("the large request waits since %u small ones", others);
    }
    assert_int_equal(p.finish, WEIR_FINISH_LENGTH);
    for (int i = 0; i < 4; i++)
        weir_release(s[i]);
    weir_release(big);
    weir_close(e);
}

/* -------------------------------------------------------------------------------- cancel and ends
 */

static void a_cancel_frees_everything_within_a_step_queued_or_running(void **state) {
    struct mirror_options o = plain();
    o.max_seqs = o.slots = 2;
    o.step_us = 3000;
    weir_engine *e = mirror_open(&o);
    weir_params p = endless(400);
    weir_request *r[4];
    weir_stats s;
    for (int i = 0; i < 4; i++)
        r[i] = submit(e, hello, 8, &p);
    do
        weir_get_stats(e, &s);
    while (s.generated_tokens < 4);
    assert_int_equal(s.running, 2);
    uint64_t steps = s.steps;
    for (int i = 3; i >= 0; i--) {
        weir_cancel(r[i]);
        weir_cancel(r[i]); /* twice is once */
    }
    do
        weir_get_stats(e, &s);
    while (s.finished[WEIR_FINISH_ABORT] < 4 || s.slots_used > 0);
    assert_in_range(s.steps - steps, 0, 4); /* those in flight, and the one being planned */
    assert_int_equal(s.pages_used + s.running + s.waiting, 0);
    for (int i = 0; i < 4; i++)
        weir_release(r[i]);
    weir_close(e);
}

/* F-067: the engine's part. */
static void F067_a_row_that_is_not_finite_ends_its_request_alone(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    weir_params good = endless(60), bad = endless(60);
    bad.seed = MIRROR_FAILS | 7;
    weir_request *a = submit(e, hello, 8, &good), *b = submit(e, hello, 8, &bad),
                 *c = submit(e, hello, 8, &good);
    int32_t alone[60];
    weir_finish finish;
    mirror_solo(&o, hello, 8, &good, alone, &finish);
    weir_progress p;
    assert_int_equal(wait_end(b, tokens, 100, &p, "poisoned"), 7);
    assert_int_equal(p.finish, WEIR_FINISH_ERROR);
    assert_int_equal(p.error, WEIR_NO_TOKEN);
    for (int i = 0; i < 3; i++) { /* the third one reuses the poisoned slot */
        weir_request *r = i == 0 ? a : i == 1 ? c : submit(e, hello, 8, &good);
        assert_int_equal(wait_end(r, tokens, 100, &p, "neighbour"), 60);
        for (int k = 0; k < 60; k++)
            assert_int_equal(tokens[k].id, alone[k]);
        weir_release(r);
    }
    weir_stats s;
    weir_get_stats(e, &s);
    assert_int_equal(s.nan_guards, 1);
    assert_int_equal(s.finished[WEIR_FINISH_ERROR], 1);
    weir_release(b);
    weir_close(e);
}

static void closing_ends_what_still_runs(void **state) {
    for (int i = 0; i < 50; i++) {
        struct mirror_options o = plain();
        weir_engine *e = mirror_open(&o);
        weir_params p = endless(400);
        for (int k = 0; k < 10; k++)
            weir_release(submit(e, hello, 8, &p));
        if (i % 2)
            pause_us(i * 10);
        weir_close(e);
    }
}

static void ready_names_each_request_once_until_it_is_polled(void **state) {
    struct mirror_options o = plain();
    weir_engine *e = mirror_open(&o);
    weir_params p = endless(5);
    weir_request *r[6], *ready[10];
    for (int i = 0; i < 6; i++)
        r[i] = submit(e, hello, 8, &p);
    weir_stats s;
    do
        weir_get_stats(e, &s);
    while (s.finished[WEIR_FINISH_LENGTH] < 6);
    assert_int_equal(weir_ready(e, ready, 4), 4);
    assert_int_equal(weir_ready(e, ready + 4, 6), 2);
    assert_int_equal(weir_ready(e, ready, 10), 0);
    weir_progress progress;
    assert_int_equal(weir_poll(r[0], tokens, 2, &progress), 2);
    assert_int_equal(progress.finish, WEIR_RUNNING);
    assert_int_equal(progress.generated_tokens, 2);
    assert_int_equal(weir_ready(e, ready, 10), 1); /* unread tokens are left */
    assert_ptr_equal(ready[0], r[0]);
    assert_int_equal(weir_poll(r[0], tokens, 10, &progress), 3);
    assert_int_equal(progress.finish, WEIR_FINISH_LENGTH);
    assert_int_equal(weir_ready(e, ready, 10), 0);
    for (int i = 0; i < 6; i++)
        weir_release(r[i]);
    weir_close(e);
}

/* --------------------------------------------------------------------------- the engine's thread
 */

static void *allocate_once(void *arg) {
    return malloc(16);
}

static void no_token_costs_an_allocation(void **state) {
    struct mirror_options o = plain();
    o.pages = 18; /* with preemption */
    o.max_model_len = 500;
    o.step_us = 50;
    weir_engine *e = mirror_open(&o);
    weir_params p = endless(400);
    p.logprobs = 2;
    weir_request *r[6];
    weir_stats s;
    atomic_store(&counting, true); /* of all threads but this one, which submits */
    for (int i = 0; i < 6; i++)
        r[i] = submit(e, hello, 8, &p);
    do
        weir_get_stats(e, &s);
    while (s.finished[WEIR_FINISH_LENGTH] < 6);
    atomic_store(&counting, false);
    assert_int_equal(s.generated_tokens, 2400);
    assert_true(s.preemptions > 0);
    assert_int_equal(atomic_load(&allocations), 0);
    for (int i = 0; i < 6; i++)
        weir_release(r[i]);
    weir_close(e);
    /* the count itself works */
    atomic_store(&counting, true);
    pthread_t t;
    void *block = NULL;
    assert_int_equal(pthread_create(&t, NULL, allocate_once, NULL), 0);
    pthread_join(t, &block);
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&allocations), 1);
    free(block);
}

/* ----------------------------------------------------------------------------------------- sizes
 */

/* F-085 */
static void F085_impossible_sizes_are_refused_with_numbers_before_anything_is_allocated(void **st) {
    struct unit_sizes unit = {.page_bytes = 1000, .slot_bytes = 50000, .max_position = 8192};
    struct engine_sizes s;
    weir_error err;
    weir_options o = weir_options_default();
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.max_model_len, 8192);
    assert_int_equal(s.slots, 5 * s.max_num_seqs);  /* a live state and four to be kept */
    assert_int_equal(s.pages, s.max_num_seqs * 32); /* a quarter of 128 pages each */
    o.prefix_caching = false;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.slots, s.max_num_seqs);
    o.prefix_caching = true;
    o.max_checkpoints = 7;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.slots, s.max_num_seqs + 7);
    o.cpu_offload_bytes = (1ull << 34) + 1;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);
    assert_string_equal(err.where, "cpu_offload_bytes");
    o.cpu_offload_bytes = 1ull << 34;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    o.max_checkpoints = UINT32_MAX;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);
    assert_string_equal(err.where, "max_checkpoints");
    o.max_checkpoints = 0;
    /* Kept states take half of what is left beside the live ones and a whole context. */
    o.max_num_seqs = 64;
    o.kv_cache_bytes = 64 * 50000 + 128 * 1000 + 10 * 50000;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.slots, s.max_num_seqs + 5);
    assert_int_equal(s.pages, 128 + 250);

    o.max_num_seqs = 4;
    o.kv_cache_bytes = 200000;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);
    assert_string_equal(err.where, "kv_cache_bytes");
    assert_non_null(strstr(err.message, "is 200000, but 4 state slots of 50000 bytes"));
    assert_non_null(strstr(err.message, "take 201000"));

    o.kv_cache_bytes = 210000; /* ten pages: the context is shortened ... */
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.pages, 10);
    assert_int_equal(s.max_model_len, 640);
    o.max_model_len = 641; /* ... unless it was asked for */
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "10 pages of 1000 bytes, which is 640 tokens"));
    assert_non_null(strstr(err.message, "max_model_len 641 needs 211000 bytes in all"));
    o.max_model_len = 640;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);

    o.max_model_len = 8193;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);
    assert_string_equal(err.where, "max_model_len");
    assert_non_null(strstr(err.message, "max_position_embeddings 8192"));
    o.max_model_len = 1;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err),
                     WEIR_BAD_VALUE);

    /* Nothing given: never more than half of the memory. */
    o = weir_options_default();
    for (uint64_t memory = 102000; memory < 1u << 31; memory += memory / 3) {
        assert_int_equal(engine_sizes_plan(&o, &unit, memory, memory, &s, &err), WEIR_OK);
        assert_true(s.max_num_seqs >= 1 && s.pages * 64 >= s.max_model_len);
        assert_true(s.slots * 50000ull + s.pages * 1000ull <= memory / 2);
    }
    assert_int_equal(engine_sizes_plan(&o, &unit, 101999, 101999, &s, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "is 50999 (half of the memory there is), but 1 state"));
    o.kv_cache_bytes = 1u << 20;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1 << 19, 1 << 19, &s, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "is 1048576, more than the 524288 bytes"));
    /* What lies in this machine's memory has nothing to do with where the pools are. */
    o.cpu_offload_bytes = 1u << 21;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1u << 20, 1u << 21, &s, &err), WEIR_OK);
    assert_int_equal(engine_sizes_plan(&o, &unit, 1u << 22, 1u << 20, &s, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "cpu_offload_bytes");
    o.max_num_seqs = 1u << 31;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1000, 1000, &s, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "max_num_seqs");
}

static void few_sequences_go_before_a_short_context_or_no_kept_states(void **state) {
    struct unit_sizes unit = {.page_bytes = 1000, .slot_bytes = 5000, .max_position = 8192};
    struct engine_sizes s;
    weir_error err;
    weir_options o = weir_options_default();
    /* A whole context of 128 pages; what is beside it goes to live and kept states alike. */
    for (uint64_t beside = 1; beside < 200; beside++) {
        o.kv_cache_bytes = 128 * 1000 + beside * 5000;
        assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
        assert_int_equal(s.max_model_len, 8192);
        uint64_t seqs = beside / 2 ? beside / 2 : 1, half = o.kv_cache_bytes / 2 / 5000;
        seqs = seqs < 64 ? seqs : 64;
        assert_int_equal(s.max_num_seqs, seqs < half ? seqs : half);
        if (beside > 1)
            assert_true(s.slots >= 2 * s.max_num_seqs);
    }
    /* Not even one sequence: the context is cut, and one state can still be kept. */
    o.kv_cache_bytes = 100 * 1000;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.max_num_seqs, 1);
    assert_int_equal(s.slots, 2);
    assert_int_equal(s.max_model_len, 64 * 90);
    /* What was asked for stays. */
    o.max_checkpoints = 4;
    o.kv_cache_bytes = 128 * 1000 + 10 * 5000;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.slots, 6 + 4);
    o.prefix_caching = false;
    assert_int_equal(engine_sizes_plan(&o, &unit, 1ull << 34, 1ull << 34, &s, &err), WEIR_OK);
    assert_int_equal(s.slots, 10);
    assert_int_equal(s.max_model_len, 8192);
}

/* -------------------------------------------------------------------------------- null executor */

static void the_null_executor_answers_by_script_in_steps_or_by_hash(void **state) {
    struct step_limits limits = {.rows = 8, .logits = 4, .position = 100};
    struct executor *x;
    assert_int_equal(executor_open_null(50, limits, &x, NULL), WEIR_OK);
    static const int32_t script[] = {5, 6, 7, 8, 9, 10};
    static const uint32_t steps[] = {2, 1, 9};
    int32_t out[2][40];
    struct sample_state a = {.output = out[0], .script = {script, 6, steps, 3}},
                        b = {.output = out[1], .rules = {.seed = 4}};
    struct batch_logits want[] = {{.row = 0, .state = &a, .n_top = -1},
                                  {.row = 1, .state = &b, .n_top = -1},
                                  {.row = 2, .target = 17, .n_top = 0}};
    struct batch batch = {.n_logits = 3, .logits = want};
    static const uint32_t expect[] = {2, 1, 3, 1, 1};
    for (int round = 0; round < 5; round++) {
        struct step_outcome o;
        x->submit(x, &batch);
        x->collect(x, &o);
        assert_int_equal(o.n_results, 3);
        assert_int_equal(o.results[0].n_tokens, expect[round]);
        assert_int_equal(o.results[1].n_tokens, 1);
        assert_int_equal(o.results[2].tokens[0].token.id, 17);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(o.results[i].tokens[0].status, WEIR_OK);
    }
    assert_memory_equal(out[0], script, sizeof script);
    assert_int_equal(a.n_output, 8);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(out[1][i], rng_at(4, 0, (uint64_t)i) % 50);
        assert_in_range(out[1][i], 0, 49);
    }
    x->close(x);
}

int main(void) {
    main_thread = pthread_self();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F036_every_id_is_checked_against_the_vocabulary),
        cmocka_unit_test(F037_an_empty_bad_word_is_refused),
        cmocka_unit_test(F030_numbers_that_are_none_never_reach_the_sampler),
        cmocka_unit_test(F027_lengths_are_refused_with_their_numbers),
        cmocka_unit_test(a_full_queue_is_busy_and_a_draining_engine_is_closed),
        cmocka_unit_test(fcfs_runs_in_order_of_arrival_and_ignores_priority),
        cmocka_unit_test(priority_runs_the_lowest_value_first_and_takes_the_seat_of_a_higher_one),
        cmocka_unit_test(a_large_request_is_not_starved_by_small_ones),
        cmocka_unit_test(a_cancel_frees_everything_within_a_step_queued_or_running),
        cmocka_unit_test(F067_a_row_that_is_not_finite_ends_its_request_alone),
        cmocka_unit_test(closing_ends_what_still_runs),
        cmocka_unit_test(ready_names_each_request_once_until_it_is_polled),
        cmocka_unit_test(no_token_costs_an_allocation),
        cmocka_unit_test(
            F085_impossible_sizes_are_refused_with_numbers_before_anything_is_allocated),
        cmocka_unit_test(few_sequences_go_before_a_short_context_or_no_kept_states),
        cmocka_unit_test(the_null_executor_answers_by_script_in_steps_or_by_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
