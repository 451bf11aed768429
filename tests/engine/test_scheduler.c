/* Scheduler properties over the mirror executor: whatever the workload, the pools and the moment of
 * a cancel, every answer is the one the request gets alone, everything ends, nothing is kept. */
#include "tests/test.h"

#include "tests/engine/mirror.h"

#include "base/clock.h"
#include "base/rng.h"

#include <time.h>

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

enum { MOST = 24, LONGEST = 700 };

struct job {
    int32_t prompt[LONGEST], stop[2], script[64], expect[LONGEST];
    uint32_t steps[8];
    uint32_t n, n_expect;
    weir_params params;
    weir_finish finish;
    weir_request *request;
    uint32_t cancel_after; /* tokens read; UINT32_MAX: never */
    bool abandon;          /* release without waiting */
};

static struct job job[MOST];
static weir_token tokens[LONGEST];

static struct mirror_options random_engine(void) {
    struct mirror_options o = {
        .vocab = 40 + below(200),
        .max_seqs = 1 + below(8),
        .max_rows = 1 + below(below(3) ? 40 : 300),
        .max_model_len = 65 + below(LONGEST - 65),
        .policy = below(2) ? WEIR_FCFS : WEIR_PRIORITY,
        .async = below(3) > 0,
        .eos = 3,
    };
    uint32_t one = (o.max_model_len + 63) / 64 + 1;
    o.pages = one + below(below(3) ? 2 : 3 * one);
    o.slots = o.max_seqs;
    return o;
}

static void random_job(const struct mirror_options *o, struct job *j) {
    *j = (struct job){.params = weir_params_default(), .cancel_after = UINT32_MAX};
    weir_params *p = &j->params;
    j->n = 1 + below(below(3) ? 30 : o->max_model_len - 1);
    if (j->n >= o->max_model_len)
        j->n = o->max_model_len - 1;
    for (uint32_t i = 0; i < j->n; i++)
        j->prompt[i] = (int32_t)below(o->vocab);
    uint32_t room = o->max_model_len - j->n;
    if (below(4))
        p->max_tokens = 1 + below(room < 60 ? room : 60);
    p->has_seed = true;
    p->seed = rng_mix(rng_state++) & 0xFFFFFFFF;
    p->choice = below(3);
    p->priority = (int64_t)below(5) - 2;
    p->ignore_eos = below(2) == 0;
    p->min_tokens = p->max_tokens && below(4) == 0 ? below(p->max_tokens + 1) : 0;
    if (below(3) == 0) {
        j->stop[0] = (int32_t)below(o->vocab);
        j->stop[1] = (int32_t)below(o->vocab);
        p->stop_ids = j->stop;
        p->n_stop_ids = 1 + below(2);
    }
    if (below(5) == 0)
        p->prompt_logprobs = (int32_t)below(4);
    if (below(3) == 0)
        p->logprobs = (int32_t)below(4);
    if (below(6) == 0) {
        p->n_scripted_ids = 1 + below(64);
        for (size_t i = 0; i < p->n_scripted_ids; i++)
            j->script[i] = (int32_t)below(o->vocab);
        p->scripted_ids = j->script;
        p->n_scripted_steps = below(9);
        for (size_t i = 0; i < p->n_scripted_steps; i++)
            j->steps[i] = 1 + below(6);
        p->scripted_steps = j->steps;
    } else if (below(8) == 0) {
        p->seed = MIRROR_FAILS | below(20);
    }
    if (below(4) == 0)
        j->cancel_after = below(20);
    j->abandon = below(12) == 0;
    j->n_expect = mirror_solo(o, j->prompt, j->n, p, j->expect, &j->finish);
}

static void check_scores(struct job *j, unsigned long long seed) {
    const weir_token *scores;
    size_t n = weir_prompt_logprobs(j->request, &scores);
    if (j->params.prompt_logprobs < 0) {
        assert_int_equal(n, 0);
        return;
    }
    if (n != j->n - 1)
        fail_msg("seed %llu: %zu scores of %u prompt tokens", seed, n, j->n);
    for (uint32_t t = 1; t < j->n; t++)
        if (scores[t - 1].id != j->prompt[t] ||
            scores[t - 1].logprob != mirror_logprob(j->prompt, t))
            fail_msg("seed %llu: score of prompt token %u", seed, t);
}

static void finish_job(struct job *j, uint32_t index, unsigned long long seed) {
    char what[80];
    snprintf(what, sizeof what, "seed %llu, request %u", seed, index);
    weir_progress p;
    uint32_t n = 0;
    if (j->cancel_after != UINT32_MAX) {
        while (n < j->cancel_after) {
            n += (uint32_t)weir_poll(j->request, tokens + n, 1, &p);
            if (p.finish != WEIR_RUNNING)
                break;
        }
        weir_cancel(j->request);
    }
    n += wait_end(j->request, tokens + n, LONGEST - n, &p, what);
    if (p.finish == WEIR_FINISH_ABORT && j->cancel_after != UINT32_MAX) {
        if (n > j->n_expect)
            fail_msg("%s: %u tokens, alone it has %u", what, n, j->n_expect);
    } else {
        if (n != j->n_expect || p.finish != j->finish)
            fail_msg("%s: %u tokens and end %d, alone %u and %d", what, n, p.finish, j->n_expect,
                     j->finish);
        if (n > 0)
            check_scores(j, seed);
    }
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i].id != j->expect[i])
            fail_msg("%s: token %u is %d, alone %d", what, i, tokens[i].id, j->expect[i]);
    assert_int_equal(p.generated_tokens, n);
    assert_int_equal(p.prompt_tokens, j->n);
    if (p.finish == WEIR_FINISH_STOP && n && !j->params.n_scripted_ids)
        assert_int_equal(p.stop_id, tokens[n - 1].id);
    if (n) {
        assert_true(p.arrived <= p.scheduled && p.scheduled <= p.first_token &&
                    p.first_token <= p.last_token);
    }
    weir_release(j->request);
}

/* All counts add up and both pools are empty, once the last step is over. */
static uint64_t check_empty(weir_engine *e, uint32_t accepted, unsigned long long seed) {
    weir_stats s;
    double limit = clock_seconds() + 60;
    for (;;) {
        weir_get_stats(e, &s);
        uint64_t ended = 0;
        for (int i = 0; i < 5; i++)
            ended += s.finished[i];
        if (ended + s.running + s.waiting != accepted && clock_seconds() > limit)
            fail_msg("seed %llu: %u accepted, %llu ended", seed, accepted,
                     (unsigned long long)ended);
        if (ended == accepted && s.pages_used + s.slots_used == 0)
            break;
        if (clock_seconds() > limit)
            fail_msg("seed %llu: %llu of %u ended, %llu pages and %llu slots kept", seed,
                     (unsigned long long)ended, accepted, (unsigned long long)s.pages_used,
                     (unsigned long long)s.slots_used);
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    assert_int_equal(s.running + s.waiting, 0);
    return s.preemptions;
}

static uint64_t run_workload(uint64_t seed) {
    rng_state = seed << 24;
    struct mirror_options o = random_engine();
    weir_engine *e = mirror_open(&o);
    uint32_t n = 1 + below(MOST);
    for (uint32_t i = 0; i < n; i++) {
        struct job *j = &job[i];
        random_job(&o, j);
        weir_error err;
        if (weir_submit(e, j->prompt, j->n, &j->params, j, &j->request, &err))
            fail_msg("seed %llu, request %u: %s: %s", (unsigned long long)seed, i, err.where,
                     err.message);
        assert_ptr_equal(weir_user(j->request), j);
        if (j->abandon) {
            if (below(2))
                nanosleep(&(struct timespec){0, 50000}, NULL);
            if (below(2))
                weir_cancel(j->request);
            weir_release(j->request);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (!job[i].abandon)
            finish_job(&job[i], i, seed);
    uint64_t preemptions = check_empty(e, n, seed);
    weir_close(e);
    return preemptions;
}

static void any_workload_answers_as_alone_and_gives_everything_back(void **state) {
    const char *from = getenv("WEIR_TEST_SEED");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    uint64_t n = from ? 1 : 3000, preemptions = 0;
    for (uint64_t seed = first; seed < first + n; seed++)
        preemptions += run_workload(seed);
    print_message("%llu workloads, %llu preemptions\n", (unsigned long long)n,
                  (unsigned long long)preemptions);
    if (!from)
        assert_true(preemptions > n / 2); /* the workloads must reach what they are for */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_workload_answers_as_alone_and_gives_everything_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
