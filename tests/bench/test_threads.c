/* `weir bench threads`: figures that cannot be too good, and an object that says what it promises.
 */
#include "tests/test.h"

#include "bench/threads.h"

static void no_step_is_faster_than_its_work(void **state) {
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct threads_options o = {.threads = threads, .seconds = 0.003, .rounds = 1};
        struct threads_report r;
        assert_int_equal(threads_measure(&o, &r, NULL), WEIR_OK);
        for (int i = 0; i < THREADS_ITEMS; i++)
            for (int way = 0; way < THREADS_WAYS; way++) {
                const struct threads_pair *p = &r.steps[i][way];
                for (uint32_t k = 0; k < r.rounds; k++) {
                    double busy_share = p->quiet[k] * r.item_us[i] * 1e-6;
                    assert_true(busy_share > 0 && busy_share < 1.25);
                    assert_true(p->busy[k] > 0 && p->busy[k] * r.item_us[i] * 1e-6 < 1.25);
                }
                assert_true(p->quiet_median > 0 && p->busy_median > 0);
            }
        for (int k = 0; k < 2; k++)
            assert_true(r.barrier_us[k].quiet_median > 0 && r.barrier_us[k].busy_median > 0);
        assert_true((r.wake_us > 0) == (threads > 1));
    }
}

static void the_object_has_every_figure_with_its_samples(void **state) {
    struct threads_options o = {.threads = 2, .seconds = 0.002, .rounds = 2};
    struct threads_report r;
    assert_int_equal(threads_measure(&o, &r, NULL), WEIR_OK);
    json_t *j = threads_json(&r), *steps = json_object_get(j, "steps");
    assert_non_null(j);
    assert_int_equal(json_array_size(steps), THREADS_ITEMS);
    for (size_t i = 0; i < THREADS_ITEMS; i++)
        for (int way = 0; way < THREADS_WAYS; way++) {
            json_t *p =
                json_object_get(json_array_get(steps, i), threads_way_name((enum threads_way)way));
            double quiet = json_real_value(json_object_get(p, "quiet"));
            double busy = json_real_value(json_object_get(p, "busy"));
            double kept = json_real_value(json_object_get(p, "kept"));
            assert_true(quiet > 0 && kept > 0 && kept == busy / quiet);
            assert_int_equal(json_array_size(json_object_get(p, "samples_busy")), 2);
            assert_true(json_is_real(json_object_get(p, "sleeps_per_step")));
        }
    json_t *barrier = json_object_get(j, "barrier_us");
    assert_true(json_is_object(json_object_get(barrier, "team")));
    assert_true(json_is_object(json_object_get(barrier, "polling")));
    assert_true(json_is_real(json_object_get(j, "wake_us")));
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_is_faster_than_its_work),
        cmocka_unit_test(the_object_has_every_figure_with_its_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
