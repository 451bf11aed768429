/* Intervals and gates on replays whose truth is known: equal systems are told apart no more often
 * than the confidence allows, a real regression is found, and figures follow from a seed. */
#include "tests/test.h"

#include "bench/gate.h"
#include "tests/bench/synthetic.h"

#include <math.h>

static weir_error err;

static const struct metric *find(const char *name) {
    const struct metric *m = NULL;
    if (metric_find(name, &m, &err))
        fail_msg("%s: %s", err.where, err.message);
    return m;
}

/* A side of `n` repeats. */
static void side_of(struct compare_side *s, const struct synthetic *how, size_t n) {
    *s = (struct compare_side){.name = strdup("side"), .n = n};
    s->run = calloc(n, sizeof *s->run);
    for (size_t i = 0; i < n; i++) {
        struct run r;
        struct synthetic one = *how;
        one.noise = how->noise * 16 + i;
        synthesise(&r, &one);
        struct run_summary *summary = calloc(1, sizeof *summary);
        assert_int_equal(run_summarise(&r, summary, &err), WEIR_OK);
        struct compare_run *c = &s->run[i];
        for (size_t k = 0; metric_at(k); k++)
            c->value[k] = metric_of_summary(metric_at(k), summary);
        assert_true(summary->valid);
        c->valid = true;
        c->path = strdup("run");
        c->configuration = configuration_of(&r);
        c->invalid = json_array();
        assert_int_equal(sample_of(&r, &c->sample, &err), WEIR_OK);
        c->has_sample = true;
        free(summary);
        run_free(&r);
    }
}

static struct bootstrap_options options(void) {
    struct bootstrap_options o = bootstrap_options_default();
    o.draws = 600;
    return o;
}

enum { RULES = 3 };

/* An alarm is a failure; what cannot be told is none. */
static bool passes(const struct compare_side *a, const struct compare_side *b, double threshold,
                   struct gate_result *kept) {
    struct gate_rule rule[RULES];
    for (size_t i = 0; i < RULES; i++)
        rule[i] = (struct gate_rule){metric_of_gate(i), threshold};
    struct bootstrap_options o = options();
    struct gate g;
    assert_int_equal(
        gate_judge(a, b, rule, RULES, NULL, &o, GATE_RESOLUTION, false, false, &g, &err), WEIR_OK);
    bool passed = g.passed || g.undecided;
    if (kept)
        memcpy(kept, g.result, RULES * sizeof *kept);
    gate_free(&g);
    return passed;
}

/* How many of `pairs` comparisons fail at threshold 0. */
static unsigned alarms(unsigned pairs, struct synthetic a, struct synthetic b, size_t repeats,
                       bool same_sessions) {
    unsigned failed = 0;
    for (unsigned i = 0; i < pairs; i++) {
        struct compare_side x, y;
        a.noise = 1000 + 2 * i;
        b.noise = 1001 + 2 * i;
        a.sessions = 50 + 2 * i;
        b.sessions = same_sessions ? a.sessions : a.sessions + 1;
        side_of(&x, &a, repeats);
        side_of(&y, &b, repeats);
        failed += !passes(&x, &y, 0, NULL);
        compare_side_free(&x);
        compare_side_free(&y);
    }
    return failed;
}

static const struct synthetic plain = {.slower = 1, .lanes = 8, .seconds = 60};

static void equal_systems_fail_no_more_often_than_the_confidence_allows(void **state) {
    struct synthetic noisy = plain;
    noisy.run_noise = 0.015;
    unsigned other = alarms(200, plain, plain, 1, false), same = alarms(200, plain, plain, 1, true),
             repeats = alarms(200, noisy, noisy, 3, true);
    print_message("of 200 equal pairs failed: %u with other sessions, %u with the same, %u with "
                  "three repeats and noise between runs\n",
                  other, same, repeats);
    assert_true(other <= 10);
    assert_true(same <= 10);
    assert_true(repeats <= 10);
    /* The test can fail: noise between runs that no repeat shows is taken for a regression. */
    noisy.run_noise = 0.08;
    assert_true(alarms(60, noisy, noisy, 1, true) > 6);
}

static void ten_percent_slower_is_caught(void **state) {
    /* 4 minutes of 16 lanes: a shorter run than one would publish. */
    struct synthetic base = {.slower = 1, .lanes = 16, .seconds = 240};
    struct synthetic slow = base, noisy = base, noisy_slow;
    slow.slower = 1.1;
    noisy.run_noise = 0.01;
    noisy_slow = noisy;
    noisy_slow.slower = 1.1;
    unsigned single = alarms(40, base, slow, 1, true),
             repeats = alarms(40, noisy, noisy_slow, 3, true);
    print_message("of 40 pairs with a regression of 10 %% were caught: %u of single runs, %u of "
                  "three repeats\n",
                  single, repeats);
    assert_true(single >= 36);
    assert_true(repeats >= 36);
}

static void an_interval_holds_the_truth(void **state) {
    /* Interactivity of the slower system is 1/1.25 of the other's whatever the sessions are. */
    struct synthetic slow = plain;
    slow.slower = 1.25;
    unsigned held = 0, n = 100;
    double width = 0;
    const struct metric *m[] = {find("median_intvty"), find("mean_ttft")};
    for (unsigned i = 0; i < n; i++) {
        struct synthetic a = plain, b = slow;
        struct compare_side x, y;
        struct comparison c[2];
        struct bootstrap_options o = options();
        a.noise = 5000 + 2 * i;
        b.noise = 5001 + 2 * i;
        a.sessions = b.sessions = 900 + i;
        side_of(&x, &a, 1);
        side_of(&y, &b, 1);
        assert_int_equal(compare_sides(&x, &y, m, 2, NULL, &o, c, &err), WEIR_OK);
        held += c[0].ratio.low <= 0.8 && c[0].ratio.high >= 0.8;
        width += c[0].ratio.high / c[0].ratio.low - 1;
        assert_int_equal(c[0].ratio.kind, INTERVAL_RECORDS);
        assert_true(c[0].ratio.low < c[0].ratio.value && c[0].ratio.value < c[0].ratio.high);
        compare_side_free(&x);
        compare_side_free(&y);
    }
    print_message("%u of %u intervals of 95 %% hold the true ratio; mean width %.1f %%\n", held, n,
                  100 * width / n);
    assert_true(held >= 90);
    assert_true(width / n < 0.15);
}

static void the_threshold_counts_at_its_edge(void **state) {
    struct synthetic slow = plain;
    slow.slower = 1.2;
    slow.noise = 3;
    slow.sessions = 7;
    struct synthetic base = plain;
    base.noise = 2;
    base.sessions = 7;
    struct compare_side a, b;
    struct gate_result r[RULES];
    side_of(&a, &base, 1);
    side_of(&b, &slow, 1);
    assert_false(passes(&a, &b, 0, r));
    double least = r[1].worse_at_least; /* of p90_intvty */
    assert_string_equal(r[1].comparison.metric->name, "p90_intvty");
    assert_true(least > 0 && least < r[1].worse);
    struct gate_rule rule = {find("p90_intvty"), 0};
    struct bootstrap_options o = options();
    o.confidence = 1 - (1 - o.confidence) / RULES; /* as wide as among three */
    for (int beyond = 0; beyond < 2; beyond++) {
        struct gate g;
        rule.threshold = beyond ? nextafter(least, 0) : least;
        assert_int_equal(
            gate_judge(&a, &b, &rule, 1, NULL, &o, GATE_RESOLUTION, false, false, &g, &err),
            WEIR_OK);
        assert_float_equal(g.result[0].worse_at_least, least, 1e-9);
        assert_int_equal(g.passed, !beyond);
        gate_free(&g);
    }
    compare_side_free(&a);
    compare_side_free(&b);
}

/* Two baselines that differ have one degree of freedom: the interval of a candidate at half the
 * speed then holds a halving and a doubling. */
static void a_gate_that_cannot_tell_does_not_pass(void **state) {
    struct gate_rule rule = {find("tput_per_gpu"), 2};
    struct compare_run runs[3] = {{.value = {0}}, {.value = {0}}, {.value = {0}}};
    struct compare_side a = {.name = (char *)(uintptr_t) "a", .run = runs, .n = 2},
                        b = {.name = (char *)(uintptr_t) "b", .run = runs + 2, .n = 1};
    struct bootstrap_options o = options();
    static const struct {
        double base[2], candidate;
        bool passed, undecided;
    } cases[] = {{{100, 110}, 50, false, true},
                 {{100, 105}, 103, true, false},
                 {{100, 130}, 150, false, true}, /* better by its figure, but nothing is known */
                 {{100, 100.1}, 50, false, false},
                 {{100, 100.1}, 99.9, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gate g;
        for (int k = 0; k < 3; k++) {
            runs[k].path = (char *)(uintptr_t) "run";
            runs[k].valid = true;
            for (size_t m = 0; metric_at(m); m++)
                runs[k].value[m] = k < 2 ? cases[i].base[k] : cases[i].candidate;
        }
        assert_int_equal(
            gate_judge(&a, &b, &rule, 1, NULL, &o, GATE_RESOLUTION, false, false, &g, &err),
            WEIR_OK);
        if (g.passed != cases[i].passed || g.undecided != cases[i].undecided)
            fail_msg("case %zu: %d %d, %g to %g %% worse", i, g.passed, g.undecided,
                     g.result[0].worse_at_least, g.result[0].worse_at_most);
        gate_free(&g);
    }
    /* A regression of one figure fails the gate whatever is not known of another. */
    runs[0].answer_share = runs[1].answer_share = 1;
    runs[2].answer_share = 0.5;
    struct gate g;
    assert_int_equal(gate_judge(&a, &b, &rule, 1, NULL, &o, GATE_RESOLUTION, true, false, &g, &err),
                     WEIR_OK);
    assert_true(!g.passed && !g.undecided && g.n_faults == 1);
    assert_non_null(strstr(g.fault[0], "answers had 50.0 % of the tokens asked for"));
    gate_free(&g);
}

static void what_must_not_pass_fails_whatever_its_figures(void **state) {
    struct compare_side a, b;
    struct synthetic how = plain;
    how.noise = 4;
    side_of(&a, &how, 1);
    side_of(&b, &how, 1);
    assert_true(passes(&a, &b, 0, NULL));
    b.run[0].cancelled = true;
    assert_false(passes(&a, &b, 100, NULL));
    b.run[0].cancelled = false;
    b.run[0].valid = false;
    assert_false(passes(&a, &b, 100, NULL));
    struct gate_rule rule = {find("p90_ttft"), 100};
    struct bootstrap_options o = options();
    struct gate g;
    assert_int_equal(gate_judge(&a, &b, &rule, 1, NULL, &o, GATE_RESOLUTION, true, false, &g, &err),
                     WEIR_OK);
    assert_true(g.passed); /* allowed by hand */
    gate_free(&g);
    b.run[0].valid = b.run[0].scaled = true;
    assert_false(passes(&a, &b, 100, NULL));
    b.run[0].scaled = false;
    for (size_t i = 0; metric_at(i); i++)
        b.run[0].value[i] = NAN;
    assert_false(passes(&a, &b, 100, NULL));
    for (size_t i = 0; metric_at(i); i++)
        a.run[0].value[i] = NAN;
    assert_false(passes(&a, &b, 100, NULL)); /* nothing was judged */
    compare_side_free(&a);
    compare_side_free(&b);
}

static void a_seed_gives_the_same_intervals(void **state) {
    struct compare_side a, b;
    struct synthetic x = plain, y = plain;
    x.noise = 1;
    y.noise = 2;
    side_of(&a, &x, 1);
    side_of(&b, &y, 1);
    const struct metric *m[] = {find("tput_per_gpu"), find("p90_ttft"), find("p99_itl")};
    struct comparison c[3], d[3], e[3];
    struct bootstrap_options o = options();
    assert_int_equal(compare_sides(&a, &b, m, 3, NULL, &o, c, &err), WEIR_OK);
    assert_int_equal(compare_sides(&a, &b, m, 3, NULL, &o, d, &err), WEIR_OK);
    o.seed++;
    assert_int_equal(compare_sides(&a, &b, m, 3, NULL, &o, e, &err), WEIR_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(c[i].ratio.low == d[i].ratio.low && c[i].ratio.high == d[i].ratio.high);
        assert_true(c[i].ratio.low != e[i].ratio.low);
        assert_true(c[i].ratio.value == e[i].ratio.value);
    }
    compare_side_free(&a);
    compare_side_free(&b);
}

/* A run against itself: every draw is the same on both sides. */
static void sessions_of_both_sides_cancel(void **state) {
    struct compare_side a, b;
    struct synthetic how = plain;
    side_of(&a, &how, 1);
    side_of(&b, &how, 1);
    struct comparison c;
    const struct metric *m[] = {find("p90_ttft")};
    struct bootstrap_options o = options();
    assert_int_equal(compare_sides(&a, &b, m, 1, NULL, &o, &c, &err), WEIR_OK);
    assert_float_equal(c.ratio.low, 1, 1e-12);
    assert_float_equal(c.ratio.high, 1, 1e-12);
    for (uint32_t i = 0; i < b.run[0].sample.n_units; i++)
        b.run[0].sample.unit[i].key ^= 1; /* sessions that differ by name: no longer */
    assert_int_equal(compare_sides(&a, &b, m, 1, NULL, &o, &c, &err), WEIR_OK);
    assert_true(c.ratio.high - c.ratio.low > 0.02);
    compare_side_free(&a);
    compare_side_free(&b);
}

static void weights_count_like_copies(void **state) {
    /* Figures with weights equal those of the list in which units stand as often as they weigh. */
    struct compare_side a;
    struct synthetic how = plain;
    side_of(&a, &how, 1);
    const struct sample *s = &a.run[0].sample;
    uint8_t *w = malloc(s->n_units);
    for (uint32_t i = 0; i < s->n_units; i++)
        w[i] = (uint8_t)(i % 4);
    static const char *const name[] = {"median_ttft", "p90_itl", "p99_e2el", "mean_ttft"};
    for (size_t k = 0; k < 4; k++) {
        const struct metric *m = find(name[k]);
        struct values v = {0};
        for (size_t i = 0; i < s->n[m->quantity]; i++)
            for (int j = 0; j < w[s->sorted[m->quantity][i].unit]; j++)
                values_add(&v, s->sorted[m->quantity][i].v);
        struct distribution d;
        distribution_of(&v, &d);
        double truth = k == 0 ? d.p50 : k == 1 ? d.p90 : k == 2 ? d.p99 : d.mean;
        assert_float_equal(exp(sample_log(s, m, w)), truth, 1e-9 * truth);
        values_free(&v);
    }
    memset(w, 0, s->n_units);
    assert_true(isnan(sample_log(s, find("p90_itl"), w)));
    free(w);
    compare_side_free(&a);
}

/* A workload of single prompts has one number of play for all of them: each prompt is a unit. */
static void prompts_of_one_play_are_units_of_their_own(void **state) {
    struct run r;
    struct sample s;
    synthesise(&r, &plain);
    for (uint32_t i = 0; i < r.n_records; i++)
        r.records[i].play = 0;
    assert_int_equal(sample_of(&r, &s, &err), WEIR_OK);
    assert_true(s.n_units > 30);
    assert_false(s.open_loop);
    double span = 0, first = 1e300, last = 0;
    for (uint32_t i = 0; i < s.n_units; i++)
        span += s.unit[i].span;
    for (uint32_t i = 0; i < r.n_records; i++) {
        first = fmin(first, (double)r.records[i].start);
        last = fmax(last, (double)r.records[i].end);
    }
    assert_float_equal(span, 8 * (last - first) * 1e-9, 1e-3); /* the time of all lanes */
    sample_free(&s);
    for (uint32_t i = 0; i < r.n_records; i++)
        r.records[i].lane = 0; /* overlapping: no lanes, an open loop */
    assert_int_equal(sample_of(&r, &s, &err), WEIR_OK);
    assert_true(s.open_loop);
    uint8_t *w = calloc(s.n_units, 1);
    memset(w, 1, s.n_units);
    assert_true(isnan(sample_log(&s, find("tput_per_gpu"), w)));
    assert_true(isfinite(sample_log(&s, find("p90_ttft"), w)));
    free(w);
    sample_free(&s);
    run_free(&r);
}

/* All plays are equally fast, some are long: throughput does not depend on which are drawn. */
static void a_long_play_is_not_a_fast_one(void **state) {
    struct sample_unit unit[6];
    struct sample s = {.unit = unit, .n_units = 6};
    uint8_t w[6];
    for (uint32_t i = 0; i < 6; i++)
        unit[i] = (struct sample_unit){.span = i + 1, .in = 90 * (i + 1), .out = 10 * (i + 1)};
    for (int draw = 0; draw < 50; draw++) {
        for (uint32_t i = 0; i < 6; i++)
            w[i] = (uint8_t)((draw * 7 + (int)i * 5) % 4 + (i == 0));
        assert_float_equal(sample_log(&s, find("tput_per_gpu"), w), log(100), 1e-12);
        assert_float_equal(sample_log(&s, find("output_tput_per_gpu"), w), log(10), 1e-12);
        assert_float_equal(sample_log(&s, find("input_tput_per_gpu"), w), log(90), 1e-12);
    }
}

static void repeats_alone_give_an_interval(void **state) {
    /* Hand-made: ln values 0 and 0.02 on each side, so s^2 = 0.0002, df = 2, t = 4.302653. */
    const struct metric *m[] = {find("tput_per_gpu")};
    struct measured a[] = {{1, NULL}, {exp(0.02), NULL}}, b[] = {{2, NULL}, {2 * exp(0.02), NULL}};
    struct ratio r;
    struct bootstrap_options o = options();
    assert_int_equal(bootstrap_ratios(m, 1, a, 2, b, 2, NULL, &o, &r, &err), WEIR_OK);
    assert_int_equal(r.kind, INTERVAL_REPEATS);
    assert_float_equal(r.value, 2, 1e-12);
    double half = 4.302652729911 * sqrt(0.0002 * (0.5 + 0.5));
    assert_float_equal(log(r.high / 2), half, 1e-9);
    assert_float_equal(log(r.low / 2), -half, 1e-9);
    assert_float_equal(r.noise_percent, 100 * sqrt(0.0002), 1e-9);
    assert_int_equal(bootstrap_ratios(m, 1, a, 1, b, 1, NULL, &o, &r, &err), WEIR_OK);
    assert_int_equal(r.kind, INTERVAL_NONE);
    assert_true(isnan(r.low) && r.value == 2);
}

static void students_quantiles_are_those_of_the_tables(void **state) {
    assert_float_equal(student_quantile(0.975, 1), 12.706204736, 1e-7);
    assert_float_equal(student_quantile(0.975, 2), 4.30265272991, 1e-8);
    assert_float_equal(student_quantile(0.95, 10), 1.81246112281, 1e-8);
    assert_float_equal(student_quantile(0.995, 30), 2.74999565357, 1e-8);
    assert_float_equal(student_quantile(0.025, 5), -2.57058183661, 1e-8);
    assert_float_equal(student_quantile(0.975, INFINITY), 1.95996398454, 1e-9);
}

static void metric_names_and_directions(void **state) {
    assert_ptr_equal(find("p50_tpot"), find("median_itl"));
    assert_true(find("p90_intvty")->higher_better);
    assert_false(find("p90_itl")->higher_better);
    assert_float_equal(metric_worse_percent(find("tput_per_gpu"), 0.9), 10, 1e-9);
    assert_float_equal(metric_worse_percent(find("p90_ttft"), 1.1), 10, 1e-9);
    const struct metric *m;
    assert_int_equal(metric_find("speed", &m, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "'speed' is none of tput_per_gpu"));
    struct gate_rule rule;
    assert_int_equal(gate_rule_parse("p90_ttft=5.5", 2, &rule, &err), WEIR_OK);
    assert_float_equal(rule.threshold, 5.5, 0);
    assert_int_equal(gate_rule_parse("p90_ttft", 2, &rule, &err), WEIR_OK);
    assert_float_equal(rule.threshold, 2, 0);
    assert_int_equal(gate_rule_parse("p90_ttft=-1", 2, &rule, &err), WEIR_BAD_VALUE);
    assert_int_equal(gate_rule_parse("p90_ttft=x", 2, &rule, &err), WEIR_BAD_VALUE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(students_quantiles_are_those_of_the_tables),
        cmocka_unit_test(metric_names_and_directions),
        cmocka_unit_test(weights_count_like_copies),
        cmocka_unit_test(sessions_of_both_sides_cancel),
        cmocka_unit_test(a_seed_gives_the_same_intervals),
        cmocka_unit_test(prompts_of_one_play_are_units_of_their_own),
        cmocka_unit_test(a_long_play_is_not_a_fast_one),
        cmocka_unit_test(repeats_alone_give_an_interval),
        cmocka_unit_test(the_threshold_counts_at_its_edge),
        cmocka_unit_test(a_gate_that_cannot_tell_does_not_pass),
        cmocka_unit_test(what_must_not_pass_fails_whatever_its_figures),
        cmocka_unit_test(an_interval_holds_the_truth),
        cmocka_unit_test(ten_percent_slower_is_caught),
        cmocka_unit_test(equal_systems_fail_no_more_often_than_the_confidence_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
