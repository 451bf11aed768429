/* The model room: config.json to description, and the list of weights that follows. */
#include "tests/test.h"

#include "model/model.h"

#include <jansson.h>

static struct model opened(const char *relative) {
    struct model m;
    weir_error err = {0};
    weir_status s = model_open(source_path(relative), &m, &err);
    if (s)
        fail_msg("%s: %s", err.where, err.message);
    return m;
}

static void tiny_k3_is_read_as_its_config_says(void **state) {
    struct model m = opened("models/tiny-k3");
    assert_int_equal(m.family, FAMILY_KIMI_K3);
    assert_string_equal(m.prefix, "language_model.");
    assert_int_equal(m.vocab, 2816);
    assert_int_equal(m.layers, 9);
    /* 1-based 4, 8 and 9 are MLA: an off-by-one would swap kinds everywhere */
    const bool kda[9] = {1, 1, 1, 0, 1, 1, 1, 0, 0};
    for (int l = 0; l < 9; l++)
        assert_int_equal(m.layer_is_kda[l], kda[l]);
    assert_int_equal(model_kda_layers(&m), 6);
    assert_int_equal(model_mla_layers(&m), 3);
    assert_int_equal(model_kind_index(&m, 8), 2);
    assert_int_equal(model_kind_index(&m, 4), 3);
    assert_int_equal(m.res_block, 4);
    assert_true(m.gate_lower_bound == -5.0f);
    assert_true(m.eps == 1e-5f && m.lora_eps == 1e-6f);
    assert_int_equal(m.act, ACT_SITU);
    assert_true(m.situ_beta == 4.0f && m.situ_linear_beta == 25.0f);
    assert_true(m.mla_gate && m.full_rank_gate && m.latent_norm && m.mxfp4_experts);
    assert_int_equal(m.latent, 128);
    assert_int_equal(m.eos[0], 2562);
    assert_int_equal(m.pad, 2815);
    assert_false(model_is_moe(&m, 0));
    assert_true(model_is_moe(&m, 1));
}

static void kimi_linear_differs_where_the_family_does(void **state) {
    struct model m = opened("models/micro-kimi-linear");
    assert_int_equal(m.family, FAMILY_KIMI_LINEAR);
    assert_string_equal(m.prefix, "");
    assert_true(m.gate_lower_bound == 0);
    assert_int_equal(m.res_block, 0);
    assert_int_equal(m.q_lora, 0);
    assert_int_equal(m.latent, 0);
    assert_int_equal(model_expert_width(&m), 32);
    assert_int_equal(m.act, ACT_SILU);
    assert_false(m.full_rank_gate || m.mla_gate || m.mxfp4_experts);
    assert_true(m.route_scale == 2.446f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_k3_is_read_as_its_config_says),
        cmocka_unit_test(kimi_linear_differs_where_the_family_does),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
