/* The open loop: calls are sent at their times, whatever became of the others. And workloads of
 * chosen lengths. */
#include "tests/test.h"

#include "tests/trace/clock.h"

#include <math.h>

static int64_t serve(void *arg, const struct call *c, enum call_end *how) {
    (void)how;
    return *(const int64_t *)arg + c->request % 3 * MS;
}

struct setup {
    struct trace t;
    struct tree tree;
    struct schedule *s;
    struct play_log log;
};

static void play(struct setup *x, const struct arrivals_options *o, int64_t from, int64_t service) {
    weir_error err = {0};
    if (schedule_arrivals(&x->tree, o, from, &x->s, &err))
        fail_msg("%s: %s", err.where, err.message);
    play_schedule(x->s, from, INT64_MAX, serve, &service, &x->log);
}

static void end_play(struct setup *x) {
    schedule_free(x->s);
    play_log_free(&x->log);
}

static void close_trace(struct setup *x) {
    tree_free(&x->tree);
    trace_free(&x->t);
}

static const char mooncake[] = "{\"timestamp\":5000,\"input_length\":9,\"hash_ids\":[1]}\n"
                               "{\"timestamp\":8000,\"input_length\":9,\"hash_ids\":[1]}\n"
                               "{\"timestamp\":5500,\"input_length\":9,\"hash_ids\":[2]}\n"
                               "{\"timestamp\":8000,\"input_length\":9,\"hash_ids\":[1]}\n";

static void recorded_times_count_from_the_first_request_and_are_scaled(void **state) {
    static const uint32_t order[] = {0, 2, 1, 3};
    static const int64_t at[] = {0, 500 * MS, 3 * SEC, 3 * SEC};
    struct setup x;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    for (int k = 0; k < 3; k++) {
        double scale = (double[]){1, 0.5, 4}[k];
        play(&x, &(struct arrivals_options){.kind = ARRIVALS_RECORDED, .time_scale = scale},
             7 * SEC, 100 * SEC);
        assert_int_equal(x.log.n, 4);
        assert_int_equal(x.log.most_in_flight, 4); /* nobody waits for anybody */
        assert_int_equal(schedule_profiling_start(x.s), 7 * SEC);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(x.log.sent[i].call.request, order[i]);
            assert_int_equal(x.log.sent[i].call.phase, PHASE_PROFILING);
            assert_int_equal(x.log.sent[i].at, 7 * SEC + (int64_t)((double)at[i] * scale));
            assert_int_equal(x.log.sent[i].call.due, x.log.sent[i].at);
        }
        end_play(&x);
    }
    close_trace(&x);
}

static void a_trace_that_begins_anew_is_a_new_play_one_mean_gap_behind(void **state) {
    struct setup x;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    play(&x, &(struct arrivals_options){.kind = ARRIVALS_RECORDED, .time_scale = 1, .calls = 10}, 0,
         SEC);
    assert_int_equal(x.log.n, 10);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(x.log.sent[i].call.play, i / 4); /* blocks are shared in a pass */
        if (i >= 4)
            assert_int_equal(x.log.sent[i].at, x.log.sent[i - 4].at + 4 * SEC);
    }
    end_play(&x);
    close_trace(&x);
}

static void calls_over_the_limit_wait_and_are_late(void **state) {
    struct setup x;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    play(&x,
         &(struct arrivals_options){
             .kind = ARRIVALS_FIXED, .rate = 10, .time_scale = 1, .most = 2, .calls = 5},
         0, SEC);
    assert_int_equal(x.log.most_in_flight, 2);
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(x.log.sent[i].call.due, i * 100 * MS);
    assert_int_equal(x.log.sent[2].at, 1000 * MS); /* request 0 has ended */
    assert_int_equal(x.log.sent[3].at, 1102 * MS); /* request 2 of the trace takes 2 ms more */
    end_play(&x);
    close_trace(&x);
}

static void a_fixed_rate_does_not_drift_and_stops_at_the_duration(void **state) {
    struct setup x;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    play(&x,
         &(struct arrivals_options){.kind = ARRIVALS_FIXED,
                                    .rate = 3,
                                    .time_scale = 1,
                                    .calls = 100000,
                                    .duration = 100 * SEC},
         SEC, MS);
    assert_int_equal(x.log.n, 300);
    for (int64_t i = 0; i < 300; i++)
        assert_int_equal(x.log.sent[i].at, SEC + (i * SEC + 1) / 3);
    end_play(&x);
    close_trace(&x);
}

/* 20,000 gaps: mean and deviation are both 1 / rate, and a gap is longer than t with e^(-rate t).
 * The bounds are five deviations of what is measured. */
static void poisson_gaps_are_exponential_and_repeat_for_a_seed(void **state) {
    enum { N = 20000 };
    struct setup x, y;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    struct arrivals_options o = {
        .kind = ARRIVALS_POISSON, .rate = 50, .time_scale = 1, .calls = N, .seed = 7};
    play(&x, &o, 0, 10 * MS);
    double sum = 0, squares = 0, longer = 0;
    for (int i = 1; i < N; i++) {
        double gap = (double)(x.log.sent[i].at - x.log.sent[i - 1].at) * 1e-9 * o.rate;
        sum += gap;
        squares += gap * gap;
        longer += gap > 2;
    }
    double mean = sum / (N - 1), deviation = sqrt(squares / (N - 1) - mean * mean);
    assert_float_equal(mean, 1, 5 / sqrt(N));
    assert_float_equal(deviation, 1, 5 * sqrt(2.0 / N));
    assert_float_equal(longer / (N - 1), exp(-2), 5 * sqrt(exp(-2) / N));
    for (int other = 0; other < 2; other++) {
        o.seed = 7 + (uint64_t)other;
        y = x;
        play(&y, &o, 0, 77 * MS);
        uint32_t same = 0;
        for (int i = 0; i < N; i++)
            same += y.log.sent[i].at == x.log.sent[i].at;
        assert_true(other ? same < N / 100 : same == N);
        end_play(&y);
    }
    end_play(&x);
    close_trace(&x);
}

static void sessions_with_numbers_of_their_own_are_plays_of_their_own(void **state) {
#define ONE                                                                                        \
    "\"requests\":[{\"t\":0,\"type\":\"subagent\",\"requests\":[{\"t\":0,\"type\":\"n\",\"in\":"   \
    "64,"                                                                                          \
    "\"out\":1,\"hash_ids\":[1]}]},{\"t\":1,\"type\":\"n\",\"in\":64,\"out\":1,\"hash_ids\":[1]}]" \
    "}\n"
    struct setup x;
    tree_of_text("{\"id\":\"a\"," ONE "{\"id\":\"b\",\"hash_id_scope\":\"global\"," ONE
                 "{\"id\":\"c\",\"hash_id_scope\":\"global\"," ONE,
                 TRACE_WEKA, &x.t, &x.tree);
    play(&x, &(struct arrivals_options){.kind = ARRIVALS_RECORDED, .time_scale = 1}, 0, SEC);
    assert_int_equal(x.log.n, 6); /* also those of sub-agents that nothing starts */
    uint64_t play_of[3];
    for (uint32_t i = 0; i < 6; i++)
        play_of[x.t.requests[x.log.sent[i].call.request].session] = x.log.sent[i].call.play;
    assert_int_not_equal(play_of[0], play_of[1]);
    assert_int_equal(play_of[1], play_of[2]);
    end_play(&x);
    close_trace(&x);
}

static void options_that_make_no_sense_are_refused_by_name(void **state) {
    static const struct {
        const char *where;
        struct arrivals_options o;
    } cases[] = {
        {"rate", {.kind = ARRIVALS_FIXED, .time_scale = 1}},
        {"rate", {.kind = ARRIVALS_POISSON, .rate = -1, .time_scale = 1}},
        {"rate", {.kind = ARRIVALS_POISSON, .rate = INFINITY, .time_scale = 1}},
        {"time_scale", {.kind = ARRIVALS_RECORDED, .time_scale = -1}},
        {"duration", {.kind = ARRIVALS_RECORDED, .time_scale = 1, .duration = -1}},
        /* All calls of all passes at one moment. */
        {"arrivals",
         {.kind = ARRIVALS_RECORDED, .time_scale = 0, .duration = 1, .calls = UINT64_MAX}},
    };
    struct setup x;
    tree_of_text(mooncake, TRACE_MOONCAKE, &x.t, &x.tree);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_error err = {0};
        assert_int_equal(schedule_arrivals(&x.tree, &cases[i].o, 0, &x.s, &err), WEIR_BAD_VALUE);
        assert_string_equal(err.where, cases[i].where);
        assert_null(x.s);
    }
    close_trace(&x);
}

/* ------------------------------------------------------------------------------ chosen lengths */

static void lengths_are_uniform_within_their_range(void **state) {
    struct trace t;
    weir_error err = {0};
    struct trace_random o = {.requests = 20000, .in = 8192, .out = 10, .range = 0.25, .seed = 3};
    assert_int_equal(trace_random(&o, &t, &err), WEIR_OK);
    double in = 0;
    uint32_t out[16] = {0};
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < t.n_requests; i++) {
        const struct trace_request *r = &t.requests[i];
        in += (double)r->in;
        least = r->in < least ? r->in : least;
        most = r->in > most ? r->in : most;
        assert_true(r->has_out && r->out >= 7 && r->out <= 13); /* floor 7.5, ceil 12.5 */
        out[r->out]++;
        assert_int_equal(r->n_blocks, (r->in + 63) / 64);
        assert_int_equal(t.sessions[r->session].n_requests, 1);
    }
    assert_true(least >= 6144 && least < 6160 && most <= 10240 && most > 10224);
    assert_float_equal(in / t.n_requests, 8192, 5 * 4096 / sqrt(12.0 * 20000));
    for (int k = 7; k <= 13; k++)
        assert_float_equal(out[k], 20000 / 7.0, 5 * sqrt(20000 / 7.0));
    struct trace_stats s;
    assert_int_equal(trace_count(&t, NULL, &s, NULL), WEIR_OK);
    assert_int_equal(s.hits, 0);
    trace_free(&t);
    o.range = 0;
    assert_int_equal(trace_random(&o, &t, &err), WEIR_OK);
    for (uint32_t i = 0; i < t.n_requests; i++)
        assert_true(t.requests[i].in == 8192 && t.requests[i].out == 10);
    trace_free(&t);
}

/* Exactly the prefix is shared, whatever its length, and only with requests of the same prefix. */
static void prompts_share_their_prefix_and_nothing_else(void **state) {
    static const uint64_t lengths[] = {1, 7, 63, 64, 65, 100, 997, 1000};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        struct trace t;
        struct trace_random o = {
            .requests = 6, .in = 50, .out = 1, .prefix_len = lengths[k], .prefixes = 2, .seed = 9};
        assert_int_equal(trace_random(&o, &t, NULL), WEIR_OK);
        int32_t ids[6][1100];
        struct trace_play play = {1, 0, 1000000000, 1};
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(t.requests[i].in, lengths[k] + 50);
            trace_prompt_ids(&t, &t.requests[i], &play, 0, t.requests[i].in, ids[i]);
        }
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t j = 0; j < i; j++) {
                uint64_t same = 0;
                while (same < lengths[k] + 50 && ids[i][same] == ids[j][same])
                    same++;
                assert_int_equal(same, i % 2 == j % 2 ? lengths[k] : 0);
            }
        struct trace_stats s;
        assert_int_equal(trace_count(&t, NULL, &s, NULL), WEIR_OK);
        assert_int_equal(s.hit_tokens, 4 * lengths[k]);
        trace_free(&t);
    }
}

static void the_prefix_stays_shared_on_lanes_when_sessions_share(void **state) {
    struct setup x = {0};
    struct trace_random o = {.requests = 10, .in = 50, .out = 1, .prefix_len = 64, .seed = 9};
    assert_int_equal(trace_random(&o, &x.t, NULL), WEIR_OK);
    assert_int_equal(tree_build(&x.t, &x.tree, NULL), WEIR_OK);
    for (int share = 0; share < 2; share++) {
        struct lanes_options l = lanes_options_default();
        int64_t service = SEC;
        l.lanes = 3;
        l.warmup_calls = UINT32_MAX;
        l.duration = 9 * SEC;
        l.share = share;
        assert_int_equal(schedule_lanes(&x.tree, &l, 0, &x.s, NULL), WEIR_OK);
        play_schedule(x.s, 0, INT64_MAX, serve, &service, &x.log);
        assert_true(x.log.n > 20);
        for (uint32_t i = 0; i < x.log.n; i++)
            assert_int_equal(x.log.sent[i].call.play, share ? i / 10 : i);
        end_play(&x);
    }
    close_trace(&x);
}

static void workloads_that_make_no_sense_are_refused_by_name(void **state) {
    static const struct {
        const char *where;
        struct trace_random o;
    } cases[] = {
        {"requests", {.in = 1, .out = 1}},
        {"in", {.requests = 1, .in = UINT64_MAX}},
        {"out", {.requests = 1, .out = UINT64_MAX}},
        {"prefix_len", {.requests = 1, .prefix_len = UINT64_MAX}},
        {"range", {.requests = 1, .range = 1}},
        {"range", {.requests = 1, .range = -0.1}},
        {"range", {.requests = 1, .range = NAN}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace t;
        weir_error err = {0};
        assert_int_equal(trace_random(&cases[i].o, &t, &err), WEIR_BAD_VALUE);
        assert_string_equal(err.where, cases[i].where);
        assert_null(t.requests);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_times_count_from_the_first_request_and_are_scaled),
        cmocka_unit_test(a_trace_that_begins_anew_is_a_new_play_one_mean_gap_behind),
        cmocka_unit_test(calls_over_the_limit_wait_and_are_late),
        cmocka_unit_test(a_fixed_rate_does_not_drift_and_stops_at_the_duration),
        cmocka_unit_test(poisson_gaps_are_exponential_and_repeat_for_a_seed),
        cmocka_unit_test(sessions_with_numbers_of_their_own_are_plays_of_their_own),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
        cmocka_unit_test(lengths_are_uniform_within_their_range),
        cmocka_unit_test(prompts_share_their_prefix_and_nothing_else),
        cmocka_unit_test(the_prefix_stays_shared_on_lanes_when_sessions_share),
        cmocka_unit_test(workloads_that_make_no_sense_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
