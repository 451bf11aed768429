/* test_plan.c: sizes, occupancy and draft cycles against published figures. */
#include "tests/test.h"

#include "model/presets.h"
#include "plan/cycle.h"
#include "plan/memory.h"
#include "machine/occupancy.h"

#include <math.h>

static struct model k3;

static int load(void **state) {
    const char *json = model_preset("kimi-k3");
    return model_parse(json, strlen(json), "kimi-k3", &k3, NULL);
}

static void reads(double x, int decimals, const char *text) {
    char is[64];
    snprintf(is, sizeof is, "%.*f", decimals, x);
    assert_string_equal(is, text);
}

/* ---------------------------------------------------------------------------------------- memory
 */

static void histories_take_what_was_published(void **state) {
    assert_int_equal(memory_mla_bytes(&k3, 142000, 1, 1), 1963008000);
    assert_int_equal(memory_mla_bytes(&k3, 142000, 1, 8), 245376000);
    assert_int_equal(memory_mla_bytes(&k3, 142000, 2, 1), 2 * UINT64_C(1963008000));
    /* The rank that holds most: 9 tokens on 8 ranks are 2 on the first. */
    assert_int_equal(memory_mla_bytes(&k3, 9, 1, 8), 2 * 24 * 576);
}

static void a_checkpoint_takes_what_was_published(void **state) {
    struct memory_state s = memory_kda_state(&k3, 8, 2, 2);
    assert_int_equal(s.recurrent, 54263808);
    assert_int_equal(s.conv, 3179520);
    reads((double)s.recurrent / 1048576, 2, "51.75");
    reads((double)(s.recurrent + s.conv) / 1048576, 2, "54.78");
    assert_int_equal(memory_mla_tokens(&k3, s.recurrent + s.conv, 1), 4155);
}

static void a_sequence_resumes_at_the_last_state_within_its_history(void **state) {
    static const uint64_t at[] = {2048, 1024, 3072, 4096};
    assert_int_equal(memory_resume(3072, at, 2), 2048);
    assert_int_equal(3072 - memory_resume(3072, at, 2), 1024); /* computed again */
    assert_int_equal(memory_resume(3072, at, 3), 3072);
    assert_int_equal(memory_resume(3071, at, 4), 2048);
    assert_int_equal(memory_resume(3072, at + 3, 1), 0); /* a state beyond the history is none */
    assert_int_equal(memory_resume(3072, NULL, 0), 0);
}

static void host_budgets_are_those_of_the_published_runs(void **state) {
    struct memory_host h = memory_host_budget(3095781, 2861022, 0.60, 8, 8);
    assert_int_equal(h.total_gb, 1799);
    reads(h.per_gpu_gb, 3, "224.875");
    h = memory_host_budget(2861022, 2861022, 0.75, 8, 8);
    assert_int_equal(h.total_gb, 2249);
    reads(h.per_gpu_gb, 3, "281.125");
    assert_int_equal(memory_host_budget(3095781, 2861022, 0.80, 4, 8).total_gb, 1199);
    assert_int_equal(memory_host_budget(3095781, 2861022, 0.80, 8, 8).total_gb, 2399);
    assert_int_equal(memory_host_budget(1000000, 2861022, 1, 8, 8).total_gb, 1048);
}

static void cutting_the_latent_projection_saves_what_was_published(void **state) {
    uint64_t trimmed = memory_latent_trim_bytes(&k3, 8, 2);
    reads((double)trimmed / 1073741824, 3, "3.852");
    reads((double)trimmed / 7 * 8 / 1073741824, 3, "4.402");
    reads((double)trimmed / 7 * 8 / 92 / 1048576, 0, "49");
    assert_int_equal(memory_latent_trim_bytes(&k3, 1, 2), 0);
}

/* ------------------------------------------------------------------------------------- occupancy
 */

static const struct occupancy_device mi355x = {256, 160 * 1024, 1280};

static void tiles_make_workgroups(void **state) {
    uint32_t heads = k3.kda_heads / 8;
    assert_int_equal(heads, 12);
    assert_int_equal(occupancy_workgroups(heads, k3.kda_dim, 32), 48);
    assert_int_equal(occupancy_workgroups(heads, k3.kda_dim, 4), 384);
    assert_int_equal(occupancy_workgroups(heads, 129, 32), 60);
    reads(100 * occupancy_share(&mi355x, 48), 2, "18.75");
    assert_true(occupancy_share(&mi355x, 384) == 1);
}

static void local_memory_is_given_out_in_units(void **state) {
    struct occupancy_local l = occupancy_local(&mi355x, 81408);
    assert_int_equal(l.units, 64);
    assert_int_equal(l.bytes, 80 * 1024);
    assert_int_equal(l.resident, 2);
    l = occupancy_local(&mi355x, 81920);
    assert_int_equal(l.units, 64);
    assert_int_equal(l.resident, 2);
    l = occupancy_local(&mi355x, 81921); /* one unit more halves what runs */
    assert_int_equal(l.units, 65);
    assert_int_equal(l.bytes, 83200);
    assert_int_equal(l.resident, 1);
}

static void triangles_and_padding(void **state) {
    assert_int_equal(occupancy_triangle(4), 10);
    assert_int_equal(occupancy_padded(12, 16), 16);
    assert_int_equal(occupancy_padded(16, 16), 16);
    assert_int_equal(occupancy_padded(17, 16), 32);
}

/* ---------------------------------------------------------------------------------------- cycles
 */

static const struct acceptance_curve *curve(void) {
    const struct acceptance_curve *c;
    assert_int_equal(acceptance_curve_find("kimi-k3", &c, NULL), WEIR_OK);
    return c;
}

static void another_draft_may_cost_as_much_as_it_brings(void **state) {
    static const char *const percent[] = {"35.68", "19.52", "12.00", "7.74",
                                          "3.59",  "2.40",  "4.17"};
    for (uint32_t k = 1; k < 8; k++)
        reads(100 * cycle_budget(curve(), k, k + 1), 2, percent[k - 1]);
    reads(20 * (1 + cycle_budget(curve(), 3, 4)), 1, "22.4");
    assert_true(cycle_pays(curve(), 3, 20, 4, 22.39));
    assert_false(cycle_pays(curve(), 3, 20, 4, 22.41));
}

static const double measured[] = {16.42, 12.29, 10.44, 9.46, 8.91, 8.72, 8.64, 8.41};

static void the_cycle_model_meets_the_measured_times(void **state) {
    static const char *const modelled[] = {"16.42", "12.28", "10.43", "9.45",
                                           "8.90",  "8.72",  "8.64",  "8.41"};
    const struct cycle_model m = {29.44, 0.465};
    for (uint32_t k = 1; k <= 8; k++) {
        double ms = cycle_tpot_ms(&m, curve(), k);
        reads(ms, 2, modelled[k - 1]);
        assert_true(fabs(ms - measured[k - 1]) <= 0.015);
    }
    assert_int_equal(cycle_best_drafts(&m, curve(), 8), 8);
    assert_int_equal(cycle_best_drafts(&m, curve(), 5), 5);
    const struct cycle_model dear = {10, 5}; /* rows that cost as much as half a cycle */
    assert_int_equal(cycle_best_drafts(&dear, curve(), 8), 2);
}

static void a_fit_finds_the_model_again(void **state) {
    static const uint32_t drafts[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct cycle_model m;
    assert_true(cycle_fit(curve(), drafts, measured, 8, &m));
    assert_true(fabs(m.base_ms - 29.44) < 0.05 && fabs(m.row_ms - 0.465) < 0.01);
    for (uint32_t k = 1; k <= 8; k++)
        assert_true(fabs(cycle_tpot_ms(&m, curve(), k) - measured[k - 1]) <= 0.015);
    assert_false(cycle_fit(curve(), drafts, measured, 1, &m));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histories_take_what_was_published),
        cmocka_unit_test(a_checkpoint_takes_what_was_published),
        cmocka_unit_test(a_sequence_resumes_at_the_last_state_within_its_history),
        cmocka_unit_test(host_budgets_are_those_of_the_published_runs),
        cmocka_unit_test(cutting_the_latent_projection_saves_what_was_published),
        cmocka_unit_test(tiles_make_workgroups),
        cmocka_unit_test(local_memory_is_given_out_in_units),
        cmocka_unit_test(triangles_and_padding),
        cmocka_unit_test(another_draft_may_cost_as_much_as_it_brings),
        cmocka_unit_test(the_cycle_model_meets_the_measured_times),
        cmocka_unit_test(a_fit_finds_the_model_again),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
