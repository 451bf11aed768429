/* Servers that lie or fail: each way is counted under its own name, none of them ends the run, and
 * what the honest ones said stays as it is. */
#include "tests/bench/rig.h"

enum { CALLS_EACH = 3, OUT = 12 };

/* What becomes of a call that meets a lie. type "": it counts. */
static const struct expected {
    const char *lie, *type, *message; /* message: part of it */
    int code;
    bool length_missed;
    const char *warning; /* part of one, or NULL */
    uint64_t out;        /* of calls that count */
    enum count_source source;
} expected[] = {
    {"ok", "", "", 0, false, NULL, OUT, COUNT_USAGE},
    {"wrong_usage", "", "", 0, false, "more tokens than were asked for", OUT, COUNT_CHUNKS},
    {"few_usage", "", "", 0, false, "fewer tokens than half the pieces", OUT, COUNT_CHUNKS},
    {"no_usage", "", "", 0, false, "answers had no usage", OUT, COUNT_CHUNKS},
    {"dropped", "closed", "", 0, false, NULL, 0, COUNT_CHUNKS},
    {"half_closed", "closed", "", 0, false, NULL, 0, COUNT_CHUNKS},
    {"no_answer", "closed", "", 0, false, NULL, 0, COUNT_CHUNKS},
    {"same_id", "", "", 0, false, "the id of another answer", OUT, COUNT_USAGE},
    {"429", "http", "slow down", 429, false, NULL, 0, COUNT_CHUNKS},
    {"500_html", "http", "<html>broken", 500, false, NULL, 0, COUNT_CHUNKS},
    {"garbage", "protocol", "no JSON object", 0, false, NULL, 0, COUNT_CHUNKS},
    {"no_http", "protocol", "", 0, false, NULL, 0, COUNT_CHUNKS},
    {"slow_headers", "", "", 0, false, NULL, OUT, COUNT_USAGE},
    {"short", "", "", 0, true, NULL, OUT / 2, COUNT_USAGE},
    {"long", "", "", 0, true, NULL, 2 * OUT, COUNT_USAGE},
    {"error_mid", "server", "the engine died", 500, false, NULL, 0, COUNT_CHUNKS},
    {"huge", "", "", 0, false, NULL, OUT, COUNT_USAGE},
    {"no_done", "", "", 0, false, "without the end mark", OUT, COUNT_USAGE},
    {"broken_end", "", "", 0, false, NULL, OUT, COUNT_USAGE},
    {"no_finish", "closed", "without a finish reason", 0, false, NULL, 0, COUNT_CHUNKS},
    {"silent", "timeout", "nothing came for", 0, false, NULL, 0, COUNT_CHUNKS},
    {"plain", "", "", 0, false, NULL, OUT, COUNT_USAGE},
    {"torn", "", "", 0, false, NULL, OUT, COUNT_USAGE},
};
enum { LIES = sizeof expected / sizeof *expected };

static bool has_warning(const struct run *run, const char *part) {
    for (uint32_t i = 0; i < run->n_warnings; i++)
        if (strstr(run->warnings[i], part))
            return true;
    return false;
}

static uint32_t errors_of(const struct run_summary *s, const char *type) {
    for (uint32_t i = 0; i < s->n_errors; i++)
        if (!strcmp(s->errors[i].type, type))
            return s->errors[i].n;
    return 0;
}

/* One kind of liar at a time, so that nothing can be counted under another's name. */
static void each_lie_is_counted_under_its_name(void **state) {
    for (int i = 0; i < LIES; i++) {
        const struct expected *e = &expected[i];
        char arguments[80];
        struct rig rig;
        snprintf(arguments, sizeof arguments, "--ttft-us 2000 --itl-us 500 --lies %s", e->lie);
        rig_start(&rig, arguments);
        rig_random(&rig, 2, CALLS_EACH, 200, OUT, 0);
        rig.options.client.silence_seconds = 0.4;
        rig_run(&rig);
        bool counts = !e->type[0];
        assert_int_equal(rig.run.n_records, CALLS_EACH);
        assert_null(rig.run.abort_reason);
        assert_int_equal(rig.summary.kept, counts ? CALLS_EACH : 0);
        assert_int_equal(rig.summary.failed, counts ? 0 : CALLS_EACH);
        if (!counts)
            assert_int_equal(errors_of(&rig.summary, e->type), CALLS_EACH);
        assert_int_equal(rig.summary.length_missed, e->length_missed ? CALLS_EACH : 0);
        for (uint32_t k = 0; k < CALLS_EACH; k++) {
            const struct call_record *c = &rig.run.records[k];
            if (strcmp(c->error_type, e->type) || c->error_code != e->code ||
                !strstr(c->error_message, e->message))
                fail_msg("%s: error %s %d '%s', not %s %d '%s'", e->lie, c->error_type,
                         c->error_code, c->error_message, e->type, e->code, e->message);
            if (counts && (c->out != e->out || c->out_source != e->source))
                fail_msg("%s: %" PRIu64 " tokens by %d, not %" PRIu64 " by %d", e->lie, c->out,
                         (int)c->out_source, e->out, (int)e->source);
            assert_true(c->start > 0 && c->end >= c->start);
        }
        if (e->warning && !has_warning(&rig.run, e->warning))
            fail_msg("%s: no warning says '%s'", e->lie, e->warning);
        if (!strcmp(e->lie, "ok"))
            assert_int_equal(rig.run.n_warnings, 0);
        rig_free(&rig);
    }
}

/* All of them at once, many lanes: the sums are right, and the honest calls are untouched. */
static void a_run_through_all_lies_ends_well(void **state) {
    char arguments[512] = "--ttft-us 2000 --itl-us 500 --lies ";
    struct rig rig;
    for (int i = 0; i < LIES; i++) {
        strcat(arguments, i ? "," : "");
        strcat(arguments, expected[i].lie);
    }
    rig_start(&rig, arguments);
    rig_random(&rig, 16, CALLS_EACH * LIES, 200, OUT, 0);
    rig.options.client.silence_seconds = 0.6;
    rig_run(&rig);
    /* A call whose connection dies before a byte of the answer may be sent again by the HTTP
     * client, and then meets another lie: so the counts are those of the mock's log where they
     * differ. */
    uint32_t met[LIES] = {0};
    for (uint32_t i = 0; i < rig.n_requests; i++)
        for (int k = 0; k < LIES; k++)
            met[k] += !strcmp(rig.request[i].lie, expected[k].lie);
    assert_int_equal(rig.run.n_records, CALLS_EACH * LIES);
    assert_null(rig.run.abort_reason);
    assert_int_equal(rig.summary.kept + rig.summary.failed, CALLS_EACH * LIES);
    assert_false(rig.summary.valid);
    for (int k = 0; k < LIES; k++) {
        uint32_t n = 0;
        if (!expected[k].type[0] || !strcmp(expected[k].lie, "no_answer"))
            continue;
        for (int j = 0; j < LIES; j++)
            if (!strcmp(expected[j].type, expected[k].type))
                n += met[j];
        uint32_t resent = met[6]; /* no_answer */
        uint32_t counted = errors_of(&rig.summary, expected[k].type);
        assert_true(counted <= n && counted + resent >= n);
    }
    for (uint32_t i = 0; i < rig.run.n_records; i++) {
        const struct mock_request *r = rig_request(&rig, &rig.run.records[i]);
        if (r && !strcmp(r->lie, "ok")) {
            assert_int_equal(rig.run.records[i].out, OUT);
            assert_string_equal(rig.run.records[i].error_type, "");
        }
    }
    rig_free(&rig);
}

/* A server that is gone must not have the whole trace run through it in a second. */
static void a_server_that_refuses_everything_ends_the_run(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 100 --lies 429");
    rig_random(&rig, 4, 5000, 64, 4, 0);
    rig_run(&rig);
    assert_non_null(rig.run.abort_reason);
    assert_non_null(strstr(rig.run.abort_reason, "slow down"));
    assert_true(rig.run.n_records < 200);
    rig_free(&rig);
}

static const char one_turn[] =
    "{\"id\":\"a\",\"requests\":[{\"t\":0,\"type\":\"s\",\"in\":130,\"out\":5,\"hash_ids\":[1,2]},"
    "{\"t\":1,\"type\":\"s\",\"in\":200,\"out\":5,\"hash_ids\":[1,2,3]},"
    "{\"t\":2,\"type\":\"s\",\"in\":200000,\"out\":5,\"hash_ids\":[1,2,3]}]}\n";

static void a_failing_warm_up_aborts_with_the_reason(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 100 --lies error_mid");
    rig_weka(&rig, one_turn, 2, 1);
    rig_run(&rig);
    assert_non_null(rig.run.abort_reason);
    assert_non_null(strstr(rig.run.abort_reason, "the engine died"));
    assert_true(rig.run.n_records > 0);
    assert_int_equal(rig.summary.profiled, 0);
    assert_false(rig.summary.valid);
    rig_free(&rig);
}

/* The mock says that calls may have 100000 tokens. */
static void calls_beyond_the_context_are_skipped_and_counted(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 5000 --itl-us 500");
    rig_weka(&rig, one_turn, 1, 0.5);
    rig.options.lanes.warmup_calls = UINT32_MAX;
    rig.options.lanes.idle_cap = 10000000;
    rig_run(&rig);
    assert_true(rig.summary.skipped > 0);
    for (uint32_t i = 0; i < rig.run.n_records; i++) {
        const struct call_record *c = &rig.run.records[i];
        assert_int_equal(c->skipped, c->turn == 2);
        assert_int_equal(c->start != 0, c->turn != 2);
    }
    rig_free(&rig);
}

/* Lanes without waits would go round for ever at one moment. */
static void a_context_that_no_call_fits_into_is_refused(void **state) {
    struct rig rig;
    struct run run = {0};
    weir_error err = {0};
    rig_start(&rig, "--ttft-us 100");
    rig_weka(&rig, one_turn, 2, 1);
    rig.options.lanes.warmup_calls = UINT32_MAX;
    rig.options.lanes.time_scale = 0;
    rig.options.max_context = 134; /* the shortest has 130 and 5 tokens */
    assert_int_equal(replay_run(&rig.options, &run, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "--max-context");
    assert_non_null(strstr(err.message, "no call of the trace fits into 134 tokens"));
    run_free(&run);
    rig.options.max_context = 135; /* the first fits */
    rig.options.lanes.duration = 500000000;
    rig_run(&rig);
    assert_true(rig.summary.kept > 0 && rig.summary.skipped > 0);
    rig_free(&rig);
}

/* Composed ahead, such a prompt would take all memory there is. */
static void a_prompt_that_no_memory_holds_is_skipped(void **state) {
    static const char trace[] =
        "{\"id\":\"a\",\"requests\":[{\"t\":0,\"type\":\"s\",\"in\":130,\"out\":5,"
        "\"hash_ids\":[1,2]},{\"t\":0,\"type\":\"s\",\"in\":9000000000000000,\"out\":5,"
        "\"hash_ids\":[1,2]}]}\n";
    struct rig rig;
    rig_start(&rig, "--ttft-us 1000");
    rig_weka(&rig, trace, 2, 0.2);
    rig.options.max_context = UINT64_C(1) << 60;
    rig_run(&rig);
    assert_null(rig.run.abort_reason);
    assert_true(rig.summary.kept > 0 && rig.summary.skipped > 0);
    assert_int_equal(rig.summary.failed, 0);
    rig_free(&rig);
}

static void stop_when_busy(void *user, const struct replay_progress *p) {
    volatile sig_atomic_t *stop = user;
    *stop = p->seconds > 0.3;
}

static void an_interrupted_run_keeps_what_it_has(void **state) {
    volatile sig_atomic_t stop = 0;
    struct rig rig;
    rig_start(&rig, "--ttft-us 5000 --itl-us 20000");
    rig_random(&rig, 4, 1000, 100, 20, 0);
    rig.options.stop = &stop;
    rig.options.progress = stop_when_busy;
    rig.options.progress_user = (void *)(uintptr_t)&stop;
    rig_run(&rig);
    assert_true(rig.run.was_cancelled);
    assert_int_equal(rig.summary.cancelled, 4);
    assert_int_equal(rig.summary.failed, 0);
    for (uint32_t i = 0; i < rig.run.n_records; i++)
        assert_true(rig.run.records[i].was_cancelled == (rig.run.records[i].cancelled != 0));
    assert_false(rig.summary.valid);
    rig_free(&rig);
}

static void a_server_that_is_not_there_is_named(void **state) {
    struct rig rig;
    struct run run = {0};
    weir_error err = {0};
    rig_start(&rig, "");
    rig_random(&rig, 1, 1, 10, 1, 0);
    rig.options.client.url = "http://127.0.0.1:1";
    assert_int_equal(replay_run(&rig.options, &run, &err), WEIR_CLOSED);
    assert_string_equal(err.where, "--url");
    assert_non_null(strstr(err.message, "does not answer"));
    rig.options.client.url = "127.0.0.1:8000";
    assert_int_equal(replay_run(&rig.options, &run, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "--url");
    rig.options.client.url = rig.url;
    rig.options.model_name = "other";
    assert_int_equal(replay_run(&rig.options, &run, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.message, "the server has no model other; it serves mock");
    run_free(&run);
    rig_free(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_lie_is_counted_under_its_name),
        cmocka_unit_test(a_run_through_all_lies_ends_well),
        cmocka_unit_test(a_server_that_refuses_everything_ends_the_run),
        cmocka_unit_test(a_failing_warm_up_aborts_with_the_reason),
        cmocka_unit_test(calls_beyond_the_context_are_skipped_and_counted),
        cmocka_unit_test(a_context_that_no_call_fits_into_is_refused),
        cmocka_unit_test(a_prompt_that_no_memory_holds_is_skipped),
        cmocka_unit_test(an_interrupted_run_keeps_what_it_has),
        cmocka_unit_test(a_server_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
