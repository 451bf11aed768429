/* test_frontier.c: the walks over measured points and interpolation between them. */
#include "tests/test.h"

#include "base/rng.h"
#include "trace/frontier.h"

#include <math.h>

static void near(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%.12g is not %.12g", a, b);
}

static void expect(enum frontier_walk walk, const double (*in)[2], size_t n, const double (*out)[2],
                   size_t kept) {
    struct point p[16];
    bool there[16] = {false};
    for (size_t i = 0; i < n; i++)
        p[i] = (struct point){in[i][0], in[i][1], i};
    assert_int_equal(frontier_of(p, n, walk), kept);
    for (size_t i = 0; i < kept; i++) {
        assert_true(p[i].x == out[i][0] && p[i].y == out[i][1]);
        assert_true(in[p[i].index][0] == p[i].x && in[p[i].index][1] == p[i].y);
    }
    for (size_t i = 0; i < n; i++) { /* no point is lost on the way */
        assert_false(there[p[i].index]);
        there[p[i].index] = true;
    }
}

static void the_walk_keeps_what_nothing_else_beats(void **state) {
    static const double in[][2] = {{10, 5}, {10, 7}, {20, 7}, {30, 6}, {30, 4}, {40, 6.5}, {50, 1}};
    static const double out[][2] = {{20, 7}, {40, 6.5}, {50, 1}};
    expect(FRONTIER_UPPER_RIGHT, in, 7, out, 3);
}

static void one_point_and_none(void **state) {
    static const double in[][2] = {{3, 4}};
    for (int w = 0; w < 4; w++) {
        expect((enum frontier_walk)w, in, 1, in, 1);
        expect((enum frontier_walk)w, in, 0, in, 0);
    }
}

static void ties_and_vertical_pairs_keep_one(void **state) {
    static const double equal[][2] = {{1, 2}, {1, 2}, {1, 2}};
    static const double pair[][2] = {{5, 1}, {5, 9}};
    static const double high[][2] = {{5, 9}}, low[][2] = {{5, 1}};
    static const double level[][2] = {{1, 4}, {2, 4}, {3, 4}}, right[][2] = {{3, 4}},
                        left[][2] = {{1, 4}};
    struct point p[3] = {{1, 2, 0}, {1, 2, 1}, {1, 2, 2}};
    for (int w = 0; w < 4; w++)
        expect((enum frontier_walk)w, equal, 3, equal, 1);
    assert_int_equal(frontier_of(p, 3, FRONTIER_UPPER_RIGHT), 1);
    assert_int_equal(p[0].index, 0); /* the first given of equals */
    expect(FRONTIER_UPPER_RIGHT, pair, 2, high, 1);
    expect(FRONTIER_UPPER_LEFT, pair, 2, high, 1);
    expect(FRONTIER_LOWER_RIGHT, pair, 2, low, 1);
    expect(FRONTIER_LOWER_LEFT, pair, 2, low, 1);
    expect(FRONTIER_UPPER_RIGHT, level, 3, right, 1);
    expect(FRONTIER_LOWER_LEFT, level, 3, left, 1);
}

static void one_point_may_dominate_all(void **state) {
    static const double in[][2] = {{1, 1}, {2, 3}, {9, 9}, {3, 8}, {8, 2}};
    static const double best[][2] = {{9, 9}}, least[][2] = {{1, 1}};
    expect(FRONTIER_UPPER_RIGHT, in, 5, best, 1);
    expect(FRONTIER_LOWER_LEFT, in, 5, least, 1);
}

static void every_walk_is_a_mirror_of_the_first(void **state) {
    static const double in[][2] = {{10, 5}, {20, 7}, {30, 6}, {40, 6.5}, {50, 1}, {15, 2}};
    static const double upper_left[][2] = {{10, 5}, {20, 7}};
    static const double lower_right[][2] = {{50, 1}};
    static const double lower_left[][2] = {{10, 5}, {15, 2}, {50, 1}};
    expect(FRONTIER_UPPER_LEFT, in, 6, upper_left, 2);
    expect(FRONTIER_LOWER_RIGHT, in, 6, lower_right, 1);
    expect(FRONTIER_LOWER_LEFT, in, 6, lower_left, 3);
}

static void what_is_no_number_is_on_no_frontier(void **state) {
    struct point p[4] = {{1, NAN, 0}, {2, 5, 1}, {NAN, 9, 2}, {3, 1, 3}};
    assert_int_equal(frontier_of(p, 4, FRONTIER_UPPER_RIGHT), 2);
    assert_true(p[0].index == 1 && p[1].index == 3);
}

/* The walk against its definition, over random points on a grid that makes ties. */
static void the_frontier_is_what_no_point_dominates(void **state) {
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct point p[12], all[12];
        size_t n = 1 + rng_at(seed, 0, 0) % 12, expected = 0;
        for (size_t i = 0; i < n; i++)
            p[i] = all[i] = (struct point){(double)(rng_at(seed, 1, i) % 6),
                                           (double)(rng_at(seed, 2, i) % 6), i};
        enum frontier_walk walk = seed % 4;
        double sx = walk == FRONTIER_UPPER_LEFT || walk == FRONTIER_LOWER_LEFT ? -1 : 1;
        double sy = walk == FRONTIER_LOWER_RIGHT || walk == FRONTIER_LOWER_LEFT ? -1 : 1;
        size_t kept = frontier_of(p, n, walk);
        for (size_t i = 0; i < n; i++) {
            bool beaten = false;
            for (size_t k = 0; k < n; k++) {
                double dx = sx * (all[k].x - all[i].x), dy = sy * (all[k].y - all[i].y);
                beaten = beaten || (dx >= 0 && dy >= 0 && (dx > 0 || dy > 0 || k < i));
            }
            expected += !beaten;
        }
        if (kept != expected)
            fail_msg("seed %d: %zu points, not %zu", (int)seed, kept, expected);
        for (size_t i = 1; i < kept; i++)
            if (!(p[i].x > p[i - 1].x && sx * sy * (p[i].y - p[i - 1].y) < 0))
                fail_msg("seed %d: not in order", (int)seed);
    }
}

static const double knots_x[] = {20, 30, 50, 80}, knots_y[] = {9000, 8000, 6000, 2000};

static double at(double q, enum interpolation how) {
    double y;
    bool far;
    assert_true(interpolate(knots_x, knots_y, 4, q, how, false, &y, &far));
    assert_false(far);
    return y;
}

static void steffen_gives_the_worked_example(void **state) {
    near(at(25, INTERPOLATE_STEFFEN), 8500, 1e-6);
    near(at(40, INTERPOLATE_STEFFEN), 7033.3333, 1e-4);
    near(at(60, INTERPOLATE_STEFFEN), 4777.7778, 1e-4);
    near(at(80, INTERPOLATE_STEFFEN), 2000, 0);
    near(at(40, INTERPOLATE_LINEAR), 7000, 1e-9);
    near(at(60, INTERPOLATE_LINEAR), 4666.6667, 1e-4);
    for (int i = 0; i < 4; i++)
        assert_true(at(knots_x[i], INTERPOLATE_STEFFEN) == knots_y[i]);
}

static void nothing_is_said_outside_unless_asked_and_then_it_is_marked(void **state) {
    double y = -1;
    bool far;
    for (int how = 0; how < 2; how++) {
        assert_false(interpolate(knots_x, knots_y, 4, 81, how, false, &y, &far));
        assert_false(interpolate(knots_x, knots_y, 4, 19, how, false, &y, &far));
        assert_true(y == -1);
        assert_true(interpolate(knots_x, knots_y, 4, 83, how, true, &y, &far));
        assert_true(far);
        near(y, 1600, 1e-9);
        assert_true(interpolate(knots_x, knots_y, 4, 10, how, true, &y, &far));
        near(y, 10000, 1e-9);
        assert_true(interpolate(knots_x, knots_y, 4, 200, how, true, &y, &far));
        assert_true(far && y == 0); /* not below 0 */
        y = -1;
    }
}

static void one_point_is_that_point_two_are_a_line_and_none_is_nothing(void **state) {
    double y;
    bool far;
    assert_true(interpolate(knots_x, knots_y, 1, 20, INTERPOLATE_STEFFEN, true, &y, &far));
    assert_true(y == 9000 && !far);
    assert_false(interpolate(knots_x, knots_y, 1, 21, INTERPOLATE_STEFFEN, true, &y, &far));
    assert_true(interpolate(knots_x, knots_y, 2, 22, INTERPOLATE_STEFFEN, false, &y, &far));
    near(y, 8800, 1e-9);
    assert_false(interpolate(knots_x, knots_y, 0, 22, INTERPOLATE_STEFFEN, true, &y, &far));
}

static void monotone_points_give_a_monotone_curve_that_stays_between_them(void **state) {
    for (uint64_t seed = 0; seed < 1000; seed++) {
        double x[10], y[10], last = INFINITY, v;
        size_t n = 3 + rng_at(seed, 3, 0) % 8;
        x[0] = 1;
        y[0] = 1000;
        for (size_t i = 1; i < n; i++) {
            x[i] = x[i - 1] + 0.01 + 10 * rng_unit(rng_at(seed, 4, i));
            double drop = rng_unit(rng_at(seed, 5, i));
            y[i] = y[i - 1] * (drop < 0.2 ? 1 : 1 - drop * drop);
        }
        for (size_t i = 0; i + 1 < n; i++)
            for (int k = 0; k <= 50; k++) {
                double q = x[i] + (x[i + 1] - x[i]) * k / 50;
                assert_true(interpolate(x, y, n, q, INTERPOLATE_STEFFEN, false, &v, NULL));
                if (v > last + 1e-9 || v > y[i] + 1e-9 || v < y[i + 1] - 1e-9)
                    fail_msg("seed %d: %g at %g", (int)seed, v, q);
                last = v;
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_walk_keeps_what_nothing_else_beats),
        cmocka_unit_test(one_point_and_none),
        cmocka_unit_test(ties_and_vertical_pairs_keep_one),
        cmocka_unit_test(one_point_may_dominate_all),
        cmocka_unit_test(every_walk_is_a_mirror_of_the_first),
        cmocka_unit_test(what_is_no_number_is_on_no_frontier),
        cmocka_unit_test(the_frontier_is_what_no_point_dominates),
        cmocka_unit_test(steffen_gives_the_worked_example),
        cmocka_unit_test(nothing_is_said_outside_unless_asked_and_then_it_is_marked),
        cmocka_unit_test(one_point_is_that_point_two_are_a_line_and_none_is_nothing),
        cmocka_unit_test(monotone_points_give_a_monotone_curve_that_stays_between_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
