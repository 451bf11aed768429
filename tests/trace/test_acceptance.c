/* test_acceptance.c: drafts that a model accepts: curves, marginals, draws. */
#include "tests/test.h"

#include "trace/acceptance.h"

#include <math.h>

static void marginals_are_whole_ones_first_then_the_rest(void **state) {
    static const struct {
        double length;
        uint32_t k;
        double r[8];
    } of[] = {{3.36, 4, {1, 1, .36, 0}}, {3.84, 7, {1, 1, .84, 0, 0, 0, 0}},
              {3.00, 3, {1, 1, 0}},      {3.75, 6, {1, 1, .75, 0, 0, 0}},
              {2.51, 2, {1, .51}},       {1.85, 1, {.85}},
              {1, 3, {0, 0, 0}},         {4, 3, {1, 1, 1}},
              {9, 3, {1, 1, 1}},         {0, 2, {0, 0}}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        double r[8], sum = 1;
        acceptance_marginals(of[i].length, of[i].k, r);
        for (uint32_t k = 0; k < of[i].k; k++) {
            assert_true(fabs(r[k] - of[i].r[k]) < 1e-12);
            sum += r[k];
        }
        if (of[i].length >= 1 && of[i].length <= of[i].k + 1)
            assert_true(fabs(sum - of[i].length) < 1e-12);
    }
}

static void a_million_cycles_commit_three_or_four_tokens_and_3_36_on_average(void **state) {
    double r[4];
    struct acceptance_count c = {0};
    uint64_t seen[6] = {0};
    acceptance_marginals(3.36, 4, r);
    for (uint64_t i = 0; i < 1000000; i++)
        seen[acceptance_commit(&c, acceptance_draw(r, 4, 42, i % 100, i / 100), 100)]++;
    assert_true(fabs((double)c.committed / 1e6 - 3.36) < 0.002);
    assert_true(fabs(acceptance_length(&c) - 3.36) < 0.002);
    assert_int_equal(seen[3] + seen[4], 1000000);
    assert_int_equal(c.discarded, 0);
}

static void every_curve_is_drawn_with_its_own_mean(void **state) {
    const struct acceptance_curve *curve;
    for (size_t i = 0; (curve = acceptance_curve_at(i)); i++) {
        assert_true(curve->length[0] == 1);
        for (uint32_t k = 1; k <= ACCEPTANCE_MOST; k++) {
            double r[ACCEPTANCE_MOST], sum = 0;
            uint32_t low = (uint32_t)floor(curve->length[k]);
            acceptance_marginals(curve->length[k], k, r);
            for (uint64_t n = 0; n < 100000; n++) {
                uint32_t committed = 1 + acceptance_draw(r, k, 7, k, n);
                if (committed != low && committed != low + 1)
                    fail_msg("%s, %u drafts: %u tokens", curve->name, k, committed);
                sum += committed;
            }
            if (fabs(sum / 100000 - curve->length[k]) > 0.006)
                fail_msg("%s, %u drafts: %g", curve->name, k, sum / 100000);
        }
    }
}

static void a_draw_depends_on_its_sequence_and_cycle_alone(void **state) {
    double r[2];
    uint32_t first[64];
    acceptance_marginals(2.5, 2, r);
    bool other = false;
    for (uint64_t i = 0; i < 64; i++)
        first[i] = acceptance_draw(r, 2, 5, 9, i);
    for (uint64_t i = 64; i-- > 0;) {
        assert_int_equal(acceptance_draw(r, 2, 5, 9, i), first[i]);
        other = other || acceptance_draw(r, 2, 5, 10, i) != first[i];
    }
    assert_true(other);
}

static void a_sequence_stops_at_its_length_and_counts_what_it_discards(void **state) {
    double r[4];
    struct acceptance_count c = {0};
    acceptance_marginals(3.36, 4, r);
    uint64_t left = 101, cycle = 0;
    while (left)
        left -= acceptance_commit(&c, acceptance_draw(r, 4, 1, 1, cycle++), left);
    assert_int_equal(c.committed, 101);
    assert_int_equal(c.committed + c.discarded, c.accepted + c.cycles);
    assert_int_equal(acceptance_commit(&c, 3, 1), 1);
    assert_true(c.discarded >= 3);
}

static void independent_drafts_keep_the_mean_when_all_are_counted(void **state) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 200000; i++)
        sum += acceptance_draw_independent(3.36, 4, 3, 0, i);
    assert_true(fabs(1 + (double)sum / 200000 - 3.36) < 0.01);
}

static void unknown_curves_are_refused_by_name(void **state) {
    const struct acceptance_curve *c;
    weir_error err;
    assert_int_equal(acceptance_curve_find("kimi-k3", &c, &err), WEIR_OK);
    assert_true(c->length[4] == 3.36);
    assert_int_equal(acceptance_curve_find("kimi-k9", &c, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "kimi-k2.5-thinking"));
    struct acceptance_count none = {0};
    assert_true(isnan(acceptance_length(&none)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marginals_are_whole_ones_first_then_the_rest),
        cmocka_unit_test(a_million_cycles_commit_three_or_four_tokens_and_3_36_on_average),
        cmocka_unit_test(every_curve_is_drawn_with_its_own_mean),
        cmocka_unit_test(a_draw_depends_on_its_sequence_and_cycle_alone),
        cmocka_unit_test(a_sequence_stops_at_its_length_and_counts_what_it_discards),
        cmocka_unit_test(independent_drafts_keep_the_mean_when_all_are_counted),
        cmocka_unit_test(unknown_curves_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
