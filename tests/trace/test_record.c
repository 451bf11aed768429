/* test_record.c: metrics of one call and statistics of many. */
#include "tests/test.h"
#include "tests/trace/invented_run.h"

#include "trace/run.h"

#include <math.h>

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.12g is not %.12g", a, b);
}

static void percentiles_of_one_two_three_values_and_of_ties(void **state) {
    struct values l = {0};
    struct distribution d;
    values_add(&l, 7);
    distribution_of(&l, &d);
    assert_true(d.n == 1 && d.mean == 7 && d.std == 0 && d.p1 == 7 && d.p50 == 7 && d.p99 == 7);
    values_add(&l, 3);
    distribution_of(&l, &d);
    near(d.p50, 5);
    near(d.p90, 6.6);
    near(d.std, 2);
    values_add(&l, 5);
    distribution_of(&l, &d);
    near(d.p25, 4);
    near(d.p75, 6);
    assert_true(d.min == 3 && d.max == 7 && d.sum == 15);
    for (int i = 0; i < 4; i++)
        values_add(&l, 5);
    distribution_of(&l, &d);
    assert_true(d.p25 == 5 && d.p50 == 5 && d.p75 == 5);
    values_free(&l);
}

static void nothing_has_no_statistics_and_what_is_not_finite_does_not_count(void **state) {
    struct values l = {0};
    struct distribution d;
    values_add(&l, NAN);
    values_add(&l, INFINITY);
    distribution_of(&l, &d);
    assert_int_equal(d.n, 0);
    assert_true(isnan(d.mean) && isnan(d.std) && isnan(d.p50) && isnan(d.min) && isnan(d.sum));
}

static void metrics_of_a_call_follow_its_chunks(void **state) {
    struct run r = {0};
    struct call_record *c = invent_call(&r, 1000000000, 400000000, 16800000, 300, 101);
    struct call_metrics m;
    call_metrics_of(c, &m);
    near(m.ttft, 0.4);
    near(m.latency, 2.08);
    near(m.itl, 0.0168);
    near(m.interactivity, 59.523810);
    near(m.ttst, 0.0168);
    near(m.full_itl, (0.5e-3 + 1.68) / 100);
    near(m.e2e_rate, 101 / 2.08);
    near(m.prefill_rate, 750);
    near(m.normalised_latency, 2.08 / 101);
    /* The same tokens in two chunks: a mean does not see it. */
    c->chunk[1] = c->chunk[100];
    c->n_chunks = 2;
    call_metrics_of(c, &m);
    near(m.itl, 0.0168);
    near(m.ttst, 1.68);
    run_free(&r);
}

static void what_is_not_defined_is_no_number(void **state) {
    struct run r = {0};
    struct call_metrics m;
    struct call_record *c = invent_call(&r, 1000, 400, 10, 300, 1);
    call_metrics_of(c, &m);
    assert_true(isnan(m.itl) && isnan(m.ttst) && isnan(m.interactivity) && !isnan(m.ttft));
    c->out_source = COUNT_UNKNOWN;
    call_metrics_of(c, &m);
    assert_true(isnan(m.normalised_latency) && isnan(m.e2e_rate));
    c->n_chunks = 0;
    call_metrics_of(c, &m);
    assert_true(isnan(m.ttft) && isnan(m.latency) && isnan(m.full_latency));
    c = invent_call(&r, 1000, 400, 0, 300, 5); /* all in one burst: no interactivity, not inf */
    call_metrics_of(c, &m);
    assert_true(m.itl == 0 && isnan(m.interactivity));
    run_free(&r);
}

static void only_answered_calls_of_the_profiling_count(void **state) {
    struct run r = {0};
    struct call_record *c = invent_call(&r, 1000, 400, 10, 300, 5);
    assert_true(call_record_counts(c));
    c->phase = PHASE_WARMUP;
    assert_false(call_record_counts(c));
    c->phase = PHASE_PRIMER;
    assert_false(call_record_counts(c));
    c->phase = PHASE_DRAINING;
    assert_true(call_record_counts(c));
    c->was_cancelled = true;
    assert_false(call_record_counts(c));
    c->was_cancelled = false;
    c->skipped = true;
    assert_false(call_record_counts(c));
    c->skipped = false;
    strcpy(c->error_type, "http");
    assert_false(call_record_counts(c));
    run_free(&r);
}

/* Ten requests whose ITL are known: the percentile of interactivity is that of the slow tail. */
static void interactivity_is_the_reciprocal_of_the_slow_tail(void **state) {
    static const int ms[] = {10, 12, 14, 20, 30, 11, 13, 15, 40, 18};
    struct run r = {0};
    struct run_summary s;
    for (int i = 0; i < 10; i++)
        invent_call(&r, 1000000000ll * (i + 1), 100000000, ms[i] * 1000000ll, 10, 5);
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    near(s.itl.mean, 0.0183);
    near(s.itl.p50, 0.0145);
    near(s.itl.p75, 0.0195);
    near(s.itl.p90, 0.0310);
    near(s.itl.p95, 0.0355);
    near(s.itl.std, 0.009110981);
    near(s.intvty.p90, 32.258065);
    near(s.intvty.mean, 54.644809);
    near(s.intvty.std, 23.096838);
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_of_one_two_three_values_and_of_ties),
        cmocka_unit_test(nothing_has_no_statistics_and_what_is_not_finite_does_not_count),
        cmocka_unit_test(metrics_of_a_call_follow_its_chunks),
        cmocka_unit_test(what_is_not_defined_is_no_number),
        cmocka_unit_test(only_answered_calls_of_the_profiling_count),
        cmocka_unit_test(interactivity_is_the_reciprocal_of_the_slow_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
