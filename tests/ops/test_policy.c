/* test_policy.c: rows of dispatch against the figures they were published with, at shapes of
 * MI355X, B300 and H200. */
#include "tests/test.h"

#include "machine/occupancy.h"
#include "ops/policy.h"

static const struct occupancy_device mi355x = {256, 160 * 1024, 1280, 0};
static const struct occupancy_device h200 = {132, 228 * 1024, 128, 1024};
static const struct gpu_shape mi355x_shape = {256, 64}, b300_shape = {148, 32},
                              h200_shape = {132, 32};
static const enum policy_machine all[] = {POLICY_SM90, POLICY_SM103, POLICY_GFX950};

static void architectures_have_their_kind(void **state) {
    enum policy_machine m;
    assert_true(policy_machine_of("gfx950", &m) && m == POLICY_GFX950);
    assert_true(policy_machine_of("sm_90", &m) && m == POLICY_SM90);
    assert_true(policy_machine_of("sm_103", &m) && m == POLICY_SM103);
    assert_false(policy_machine_of("gfx90a", &m));
    assert_false(policy_machine_of("", &m));
}

static void pads(enum policy_machine m, uint32_t heads, uint32_t queries, uint32_t to,
                 enum policy_fill fill, uint32_t repeat) {
    struct policy_heads h = policy_heads(m, heads, queries);
    if (h.heads != to || h.fill != fill || h.repeat != repeat || !h.reason[0])
        fail_msg("%u heads, %u queries on %d: %u %s %u", heads, queries, (int)m, h.heads,
                 policy_fill_name(h.fill), h.repeat);
}

static void heads_are_padded_as_the_split_kernel_of_mi355x_wants_them(void **state) {
    pads(POLICY_GFX950, 12, 1, 16, POLICY_FILL_CYCLE, 0);
    pads(POLICY_GFX950, 8, 1, 16, POLICY_FILL_REPEAT, 2);
    pads(POLICY_GFX950, 4, 1, 16, POLICY_FILL_REPEAT, 4);
    pads(POLICY_GFX950, 16, 1, 16, POLICY_FILL_NONE, 0);
    pads(POLICY_GFX950, 24, 1, 24, POLICY_FILL_NONE, 0); /* a build of its own */
    pads(POLICY_GFX950, 23, 1, 32, POLICY_FILL_CYCLE, 0);
    pads(POLICY_GFX950, 25, 1, 32, POLICY_FILL_CYCLE, 0);
    pads(POLICY_GFX950, 48, 1, 48, POLICY_FILL_NONE, 0);
    pads(POLICY_GFX950, 96, 1, 128, POLICY_FILL_ZERO, 0);
    pads(POLICY_GFX950, 96, 4, 128, POLICY_FILL_ZERO, 0); /* queries are no heads there */
    pads(POLICY_GFX950, 128, 1, 128, POLICY_FILL_NONE, 0);
    pads(POLICY_GFX950, 144, 1, 144, POLICY_FILL_NONE, 0);
    pads(POLICY_GFX950, 130, 1, 0, POLICY_FILL_NONE, 0);
    /* All that the published test goes through: from 1 to 15 heads to 16. */
    for (uint32_t h = 1; h < 16; h++)
        pads(POLICY_GFX950, h, 1, 16, 16 % h ? POLICY_FILL_CYCLE : POLICY_FILL_REPEAT,
             16 % h ? 0 : 16 / h);
}

static void heads_fill_matrix_tiles_with_zeros_on_nvidia(void **state) {
    for (int i = 0; i < 2; i++) {
        pads(all[i], 12, 1, 16, POLICY_FILL_ZERO, 0);
        pads(all[i], 8, 1, 16, POLICY_FILL_ZERO, 0);
        pads(all[i], 24, 1, 32, POLICY_FILL_ZERO, 0);
        pads(all[i], 12, 3, 48, POLICY_FILL_ZERO, 0);
        pads(all[i], 12, 4, 64, POLICY_FILL_ZERO, 0); /* 48 rows: the other tile */
        pads(all[i], 96, 1, 128, POLICY_FILL_ZERO, 0);
        assert_int_equal(policy_heads(all[i], 12, 1).tile, 48);
        assert_int_equal(policy_heads(all[i], 96, 1).tile, 64);
    }
    assert_int_equal(policy_heads(POLICY_GFX950, 96, 1).tile, 128);
}

static void two_and_three_queries_are_four_where_only_those_have_a_build(void **state) {
    static const uint32_t to[] = {0, 1, 4, 4, 4, 5, 6};
    for (uint32_t q = 1; q <= 6; q++) {
        struct policy_queries r = policy_queries(POLICY_GFX950, q);
        assert_int_equal(r.queries, to[q]);
        assert_true(r.own_sequence == (q > 4));
        assert_int_equal(policy_queries(POLICY_SM90, q).queries, q);
        assert_false(policy_queries(POLICY_SM103, q).own_sequence);
    }
}

static void histories_are_cut_into_16_or_as_many_as_fill_the_device(void **state) {
    assert_int_equal(policy_splits(POLICY_GFX950, 1, mi355x_shape).splits, 16);
    assert_int_equal(policy_splits(POLICY_GFX950, 64, mi355x_shape).splits, 16);
    assert_int_equal(policy_splits(POLICY_SM90, 1, h200_shape).splits, 132);
    assert_int_equal(policy_splits(POLICY_SM90, 8, h200_shape).splits, 16);
    assert_int_equal(policy_splits(POLICY_SM90, 133, h200_shape).splits, 1);
    assert_int_equal(policy_splits(POLICY_SM103, 1, b300_shape).splits, 148);
    /* The very rule of weir's launches. */
    for (uint32_t n = 1; n < 300; n += 7)
        assert_int_equal(policy_splits(POLICY_SM90, n, h200_shape).splits,
                         gpu_mla_shares(n, GPU_MLA_HEADS, h200_shape));
}

static void narrow_tiles_verify_few_heads(void **state) {
    static const struct {
        uint32_t heads, sequences, columns, waves, workgroups;
    } rows[] = {
        {12, 1, 4, 1, 384},  {12, 2, 4, 1, 768},  {24, 1, 4, 1, 768},           {25, 1, 8, 1, 400},
        {12, 3, 8, 1, 576},  {12, 8, 8, 1, 1536}, {97, 1, 32, 4, 388},          {12, 9, 32, 4, 432},
        {96, 1, 8, 1, 1536}, {1, 24, 4, 1, 768},  {96, 65536, 32, 4, 25165824},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct policy_tile t = policy_verify_tile(rows[i].heads, rows[i].sequences);
        assert_int_equal(t.columns, rows[i].columns);
        assert_int_equal(t.waves, rows[i].waves);
        assert_int_equal(occupancy_workgroups(rows[i].heads, 128, t.columns) * rows[i].sequences,
                         rows[i].workgroups);
    }
    assert_int_equal(occupancy_workgroups(12, 128, 32), 48); /* what 384 take the place of */
}

static uint32_t groups(enum policy_machine m, uint32_t units, uint32_t heads, uint32_t sequences,
                       uint32_t tokens) {
    return policy_prefill_groups(m, units, heads, sequences, tokens).groups;
}

static void chunks_of_a_prompt_are_grouped_as_published_for_mi355x(void **state) {
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 1, 8192), 10);
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 1, 16384), 21);
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 2, 8192), 10);
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 5, 8192), 4);
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 6, 8192), 1);
    assert_int_equal(groups(POLICY_GFX950, 256, 96, 1, 16384), 1);
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 1, 1024), 4); /* 4 chunks each */
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 1, 1023), 4); /* the last of them short */
    assert_int_equal(groups(POLICY_GFX950, 256, 12, 1, 960), 1);  /* 15 chunks: 3, not worth it */
    assert_int_equal(groups(POLICY_GFX950, 256, 2, 1, 65536), 32);
    assert_int_equal(groups(POLICY_GFX950, 256, 257, 1, 65536), 1);
    struct policy_groups g = policy_prefill_groups(POLICY_GFX950, 256, 12, 1, 16384);
    assert_int_equal(g.first, 2 * 12 * 21);
    assert_int_equal(g.second, 12 * 21); /* 252: the device but four units */
    g = policy_prefill_groups(POLICY_GFX950, 256, 12, 6, 8192);
    assert_int_equal(g.first, 0);
    assert_int_equal(g.second, 72);
}

static void chunks_of_a_prompt_fill_nvidia_devices_twice(void **state) {
    assert_int_equal(groups(POLICY_SM90, 132, 12, 1, 16384), 11);
    assert_int_equal(groups(POLICY_SM90, 132, 12, 1, 4096), 8); /* 64 chunks, 8 a group */
    assert_int_equal(groups(POLICY_SM90, 132, 12, 1, 1024), 2);
    assert_int_equal(groups(POLICY_SM90, 132, 12, 1, 512), 1);
    assert_int_equal(groups(POLICY_SM90, 132, 12, 8, 16384), 1);
    assert_int_equal(groups(POLICY_SM103, 148, 12, 1, 16384), 12);
    assert_int_equal(policy_prefill_groups(POLICY_SM90, 132, 12, 1, 16384).first, 264);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(groups(all[i], 132, 12, 1, 0), 1);
        assert_int_equal(groups(all[i], 132, 12, 1, UINT32_MAX) > 1, 1);
    }
}

static void fp8_histories_fall_back_where_nothing_reads_them(void **state) {
    assert_string_equal(policy_fp8_history(POLICY_GFX950, 1).variant, "fp8_asm_fp8_query");
    assert_true(policy_fp8_history(POLICY_GFX950, 1).fallback);
    assert_string_equal(policy_fp8_history(POLICY_GFX950, 4).variant, "fp8_asm");
    assert_false(policy_fp8_history(POLICY_GFX950, 4).fallback);
    assert_string_equal(policy_fp8_history(POLICY_SM90, 1).variant, "bf16_in_shared");
    assert_true(policy_fp8_history(POLICY_SM90, 1).fallback);
    assert_false(policy_fp8_history(POLICY_SM103, 1).fallback);
}

static void two_workgroups_share_the_lds_of_a_unit_up_to_80_kib(void **state) {
    struct policy_local asked = policy_kda_prepare_local(POLICY_GFX950);
    assert_int_equal(asked.bytes, 81408); /* 79.5 KiB */
    struct occupancy_local l = occupancy_local(&mi355x, asked.bytes);
    assert_int_equal(l.bytes, 80 * 1024);
    assert_int_equal(l.resident, 2);
    assert_int_equal(occupancy_local(&mi355x, 83200).resident, 1); /* 81.25 KiB */
    assert_int_equal(occupancy_local_budget(&mi355x, 2), 80 * 1024);
    assert_int_equal(occupancy_local_budget(&mi355x, 1), 160 * 1024);
    assert_int_equal(occupancy_local_budget(&mi355x, 200), 0);
    assert_int_equal(occupancy_local_budget(&mi355x, 0), 0);
    assert_int_equal(policy_kda_prepare_local(POLICY_SM90).bytes, 0); /* not known */
    /* A tile of latents fits twice there; three times on an H200, which has 228 KiB. */
    const uint32_t tile = 576 * 64 * 2;
    assert_int_equal(occupancy_local(&mi355x, tile).resident, 2);
    assert_int_equal(occupancy_local(&h200, tile).resident, 3);
}

static void the_system_keeps_a_share_of_each_workgroups_memory(void **state) {
    assert_int_equal(occupancy_local_budget(&h200, 1), 227 * 1024);
    assert_int_equal(occupancy_local_budget(&h200, 2), 113 * 1024);
    assert_int_equal(occupancy_local(&h200, 113 * 1024).resident, 2);
    assert_int_equal(occupancy_local(&h200, 113 * 1024 + 1).resident, 1);
    assert_int_equal(occupancy_local(&h200, 227 * 1024 + 1).resident, 0);
    assert_int_equal(occupancy_local(&h200, 0).bytes, 0);
}

static void sums_of_few_rows_take_one_exchange(void **state) {
    assert_string_equal(policy_reduce(1).variant, "one_shot");
    assert_string_equal(policy_reduce(64).variant, "one_shot");
    assert_string_equal(policy_reduce(65).variant, "two_shot");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures_have_their_kind),
        cmocka_unit_test(heads_are_padded_as_the_split_kernel_of_mi355x_wants_them),
        cmocka_unit_test(heads_fill_matrix_tiles_with_zeros_on_nvidia),
        cmocka_unit_test(two_and_three_queries_are_four_where_only_those_have_a_build),
        cmocka_unit_test(histories_are_cut_into_16_or_as_many_as_fill_the_device),
        cmocka_unit_test(narrow_tiles_verify_few_heads),
        cmocka_unit_test(chunks_of_a_prompt_are_grouped_as_published_for_mi355x),
        cmocka_unit_test(chunks_of_a_prompt_fill_nvidia_devices_twice),
        cmocka_unit_test(fp8_histories_fall_back_where_nothing_reads_them),
        cmocka_unit_test(two_workgroups_share_the_lds_of_a_unit_up_to_80_kib),
        cmocka_unit_test(the_system_keeps_a_share_of_each_workgroups_memory),
        cmocka_unit_test(sums_of_few_rows_take_one_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
