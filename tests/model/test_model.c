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

/* ---------------------------------------------------------------------------------------- refusals
 */

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 16);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

/* The real K3 config with one field set to another JSON value (NULL: removed). `where` is the
 * object: "", "text_config", "linear_attn_config" ... */
static char *with_field(const char *where, const char *name, const char *value) {
    char *text = read_text(source_path("tests/model/kimi-k3.config.json"));
    json_t *top = json_loads(text, 0, NULL), *in = top;
    free(text);
    if (strcmp(where, "") != 0 && strcmp(where, "vision_config") != 0)
        in = json_object_get(top, "text_config");
    if (strcmp(where, "") != 0 && strcmp(where, "text_config") != 0)
        in = json_object_get(in == top || strcmp(where, "vision_config") == 0 ? top : in, where);
    assert_non_null(in);
    if (value)
        json_object_set_new(in, name, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(in, name);
    text = json_dumps(top, 0);
    json_decref(top);
    return text;
}

static weir_status parse(const char *text, struct model *m, weir_error *err) {
    *err = (weir_error){0};
    return model_parse(text, strlen(text), "config.json", m, err);
}

struct refusal {
    const char *where, *name, *value;
    weir_status code;
    const char *words[3];
};

static void check_refusals(const struct refusal *r, size_t n) {
    for (; n > 0; n--, r++) {
        struct model m;
        weir_error err;
        char *text = with_field(r->where, r->name, r->value);
        weir_status s = parse(text, &m, &err);
        if (s != r->code)
            fail_msg("%s = %s: status %d, %s", r->name, r->value ? r->value : "(none)", s,
                     err.message);
        for (int i = 0; i < 3 && r->words[i]; i++)
            if (!strstr(err.message, r->words[i]))
                fail_msg("%s = %s: no '%s' in: %s", r->name, r->value ? r->value : "(none)",
                         r->words[i], err.message);
        if (s != WEIR_OK && !strstr(err.message, r->name))
            fail_msg("%s is not named in: %s", r->name, err.message);
        assert_string_equal(s == WEIR_OK ? "config.json" : err.where, "config.json");
        free(text);
    }
}
#define CHECK_REFUSALS(list) check_refusals(list, sizeof list / sizeof list[0])

static void a_required_field_that_is_missing_is_named(void **state) {
    static const char *const text[] = {"hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "intermediate_size",
                                       "kv_lora_rank",
                                       "qk_nope_head_dim",
                                       "qk_rope_head_dim",
                                       "v_head_dim",
                                       "max_position_embeddings",
                                       "num_experts_per_token",
                                       "moe_intermediate_size",
                                       "linear_attn_config"};
    static const char *const linear[] = {"full_attn_layers", "kda_layers", "num_heads", "head_dim",
                                         "short_conv_kernel_size"};
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        const struct refusal r = {"text_config", text[i], NULL, WEIR_BAD_FILE, {"is missing"}};
        check_refusals(&r, 1);
        const struct refusal null = {"text_config", text[i], "null", WEIR_BAD_FILE, {"is missing"}};
        check_refusals(&null, 1);
    }
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
        const struct refusal r = {
            "linear_attn_config", linear[i], NULL, WEIR_BAD_FILE, {"linear_attn_config."}};
        check_refusals(&r, 1);
    }
}

static void an_absent_optional_field_takes_its_default(void **state) {
    struct model m;
    weir_error err;
    char *text = with_field("text_config", "rms_norm_eps", NULL);
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_true(m.eps == 1e-6f);
    free(text);
    text = with_field("text_config", "activation_situ_linear_beta", "null");
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_true(m.situ_linear_beta == 0);
    free(text);
    text = with_field("text_config", "activation_situ_beta", NULL);
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_true(m.situ_beta == 1.0f);
    free(text);
    text = with_field("text_config", "num_experts", "null");
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_int_equal(m.experts, 0);
    assert_false(model_is_moe(&m, 5) || m.mxfp4_experts);
    free(text);
    text = with_field("text_config", "first_k_dense_replace", NULL);
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_true(model_is_moe(&m, 0));
    free(text);
    text = with_field("linear_attn_config", "gate_lower_bound", NULL);
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_true(m.gate_lower_bound == 0);
    free(text);
}

static void special_ids_come_from_the_container_before_text_config(void **state) {
    struct model m;
    weir_error err;
    char *text = with_field("text_config", "eos_token_id", "7");
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_int_equal(m.eos[0], 163586);
    free(text);
    text = with_field("", "eos_token_id", "[163586, 163585]");
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_int_equal(m.n_eos, 2);
    assert_int_equal(m.eos[1], 163585);
    free(text);
}

static void numbers_of_the_wrong_type_or_range_are_refused(void **state) {
    static const struct refusal list[] = {
        {"text_config", "hidden_size", "\"7168\"", WEIR_BAD_FILE, {"integer", "\"7168\""}},
        {"text_config", "hidden_size", "7168.0", WEIR_BAD_FILE, {"integer", "7168.0"}},
        {"text_config", "hidden_size", "true", WEIR_BAD_FILE, {"integer", "true"}},
        {"text_config", "hidden_size", "0", WEIR_BAD_FILE, {"from 1 to"}},
        {"text_config", "hidden_size", "-7168", WEIR_BAD_FILE, {"-7168"}},
        {"text_config", "hidden_size", "4294967297", WEIR_BAD_FILE, {"4294967297"}},
        {"text_config", "vocab_size", "9223372036854775807", WEIR_BAD_FILE, {"from 1"}},
        {"text_config", "num_hidden_layers", "257", WEIR_BAD_FILE, {"257"}},
        {"text_config", "num_attention_heads", "100000", WEIR_BAD_FILE, {"100000"}},
        {"text_config", "num_experts", "1000000", WEIR_BAD_FILE, {"1000000"}},
        {"text_config", "num_experts_per_token", "897", WEIR_BAD_FILE, {"897"}},
        {"text_config", "moe_layer_freq", "0", WEIR_BAD_FILE, {"from 1"}},
        {"text_config", "rms_norm_eps", "0", WEIR_BAD_FILE, {"number"}},
        {"text_config", "rms_norm_eps", "\"1e-5\"", WEIR_BAD_FILE, {"number"}},
        {"text_config", "moe_renormalize", "1", WEIR_BAD_FILE, {"true or false"}},
        {"text_config", "hidden_act", "[\"silu\"]", WEIR_BAD_FILE, {"string"}},
        {"text_config", "quantization_config", "[]", WEIR_BAD_FILE, {"object"}},
        {"text_config", "linear_attn_config", "7", WEIR_BAD_FILE, {"object"}},
        {"linear_attn_config", "gate_lower_bound", "0", WEIR_BAD_FILE, {"below 0"}},
        {"linear_attn_config", "gate_lower_bound", "-5.5", WEIR_BAD_FILE, {"-5.5"}},
        {"linear_attn_config", "short_conv_kernel_size", "1", WEIR_BAD_FILE, {"from 2"}},
        {"", "eos_token_id", "163840", WEIR_BAD_FILE, {"163839"}},
        {"", "eos_token_id", "[]", WEIR_BAD_FILE, {"list"}},
        {"", "eos_token_id", "[163586, \"x\"]", WEIR_BAD_FILE, {"\"x\""}},
        {"", "text_config", "[]", WEIR_BAD_FILE, {"object"}},
        {"vision_config", "vt_hidden_size", "\"1024\"", WEIR_BAD_FILE, {"vision_config."}},
        {"vision_config", "merge_kernel_size", "[2]", WEIR_BAD_FILE, {"two integers"}},
    };
    CHECK_REFUSALS(list);
}

static void layer_lists_must_share_out_all_layers(void **state) {
    static const struct refusal list[] = {
        {"linear_attn_config", "full_attn_layers", "[4, 94]", WEIR_BAD_FILE, {"94", "1 to 93"}},
        {"linear_attn_config", "full_attn_layers", "[0]", WEIR_BAD_FILE, {"first layer is 1"}},
        {"linear_attn_config", "full_attn_layers", "[4, 4]", WEIR_BAD_FILE, {"layer 4", "twice"}},
        {"linear_attn_config", "full_attn_layers", "[\"4\"]", WEIR_BAD_FILE, {"\"4\""}},
        {"linear_attn_config", "full_attn_layers", "4", WEIR_BAD_FILE, {"list"}},
    };
    CHECK_REFUSALS(list);
    /* the lists are each fine, but together they leave a layer out or claim it twice */
    static const struct refusal sums[] = {
        {"linear_attn_config", "kda_layers", "[1, 2, 3]", WEIR_BAD_FILE, {"layer 5", "neither"}},
        {"linear_attn_config", "kda_layers", "[1, 2, 3, 4]", WEIR_BAD_FILE, {"layer 4", "twice"}},
    };
    CHECK_REFUSALS(sums);
}

static void what_this_build_does_not_run_is_refused_by_name(void **state) {
    static const struct refusal list[] = {
        {"", "model_type", "\"kimi_k2\"", WEIR_UNSUPPORTED, {"kimi_k2 models"}},
        {"", "model_type", "\"kimi_k25\"", WEIR_UNSUPPORTED, {"kimi_k25 models"}},
        {"", "model_type", "\"llama\"", WEIR_UNSUPPORTED, {"\"llama\"", "kimi_linear"}},
        {"", "model_type", NULL, WEIR_BAD_FILE, {"missing"}},
        {"text_config", "mla_use_nope", "false", WEIR_UNSUPPORTED, {"rotary"}},
        {"text_config", "mla_use_nope", NULL, WEIR_UNSUPPORTED, {"rotary"}}, /* default: false */
        {"text_config", "hidden_act", "\"gelu\"", WEIR_UNSUPPORTED, {"\"gelu\""}},
        {"text_config", "topk_method", "\"greedy\"", WEIR_UNSUPPORTED, {"\"greedy\""}},
        {"text_config", "moe_router_activation_func", "\"relu\"", WEIR_UNSUPPORTED, {"\"relu\""}},
        {"quantization_config",
         "quant_method",
         "\"fp8\"",
         WEIR_UNSUPPORTED,
         {"unknown quantisation", "\"fp8\""}},
        {"quantization_config",
         "format",
         "\"pack-quantized\"",
         WEIR_UNSUPPORTED,
         {"unknown quantisation", "\"pack-quantized\""}},
        {"quantization_config", "config_groups", "{}", WEIR_UNSUPPORTED, {"one group"}},
        {"quantization_config",
         "config_groups",
         "{\"g\":{\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":16}}}",
         WEIR_UNSUPPORTED,
         {"unknown quantisation"}},
        {"quantization_config",
         "config_groups",
         "{\"g\":{\"weights\":{\"num_bits\":8,\"type\":\"float\",\"group_size\":32}}}",
         WEIR_UNSUPPORTED,
         {"unknown quantisation"}},
        {"quantization_config",
         "config_groups",
         "{\"g\":{\"input_activations\":{\"num_bits\":8},\"weights\":{\"num_bits\":4,\"type\":"
         "\"float\",\"group_size\":32}}}",
         WEIR_UNSUPPORTED,
         {"unknown quantisation"}},
    };
    CHECK_REFUSALS(list);
}

static void expert_groups_must_divide_the_experts(void **state) {
    char *text = with_field("text_config", "num_expert_group", "9");
    struct model m;
    weir_error err;
    assert_int_equal(parse(text, &m, &err), WEIR_BAD_FILE); /* 896 / 9 */
    assert_non_null(strstr(err.message, "num_expert_group"));
    free(text);
    text = with_field("text_config", "num_expert_group", "112");
    assert_int_equal(parse(text, &m, &err), WEIR_BAD_FILE); /* one group of 8 for 16 experts */
    assert_non_null(strstr(err.message, "num_experts_per_token"));
    free(text);
    text = with_field("text_config", "num_expert_group", "8");
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    assert_int_equal(m.groups, 8);
    assert_int_equal(m.top_groups, 1);
    free(text);
}

static void broken_json_and_double_names_are_refused(void **state) {
    static const struct {
        const char *text, *word;
    } cases[] = {{"", "not valid JSON"},
                 {"{", "not valid JSON"},
                 {"[]", "object"},
                 {"{\"model_type\":\"kimi_k3\",\"model_type\":\"kimi_k2\"}", "\"model_type\""},
                 {"{\"a\":{\"b \\\" c\":1,\"b \\\" c\":2}}", "\"b \\\" c\" stands twice"},
                 {"{\"hidden_size\":1e999}", "not valid JSON"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model m;
        weir_error err;
        assert_int_equal(parse(cases[i].text, &m, &err), WEIR_BAD_FILE);
        if (!strstr(err.message, cases[i].word))
            fail_msg("no '%s' in: %s", cases[i].word, err.message);
    }
}

/* ------------------------------------------------------------------------------------ tensor list
 */

struct tally {
    uint64_t bytes;
    size_t n;
    uint32_t stop_at;
    char last[192];
};

static weir_status count_weight(void *arg, const struct weight_spec *w) {
    struct tally *t = arg;
    t->bytes += w->bytes;
    snprintf(t->last, sizeof t->last, "%s", w->name);
    return ++t->n == t->stop_at ? WEIR_BAD_VALUE : WEIR_OK;
}

static void the_walk_over_weights_stops_at_the_first_failure(void **state) {
    struct model m = opened("models/tiny-k3");
    struct tally all = {0}, some = {.stop_at = 40};
    assert_int_equal(model_each_weight(&m, count_weight, &all), WEIR_OK);
    assert_int_equal(all.bytes, 13655744); /* metadata.total_size of its index */
    assert_int_equal(model_each_weight(&m, count_weight, &some), WEIR_BAD_VALUE);
    assert_int_equal(some.n, 40);
}

/* The largest dimensions each field allows must still give byte counts that fit. */
static void the_largest_allowed_model_does_not_overflow(void **state) {
    char *text = with_field("text_config", "hidden_size", "65536");
    json_t *top = json_loads(text, 0, NULL), *t = json_object_get(top, "text_config");
    free(text);
    json_object_set_new(t, "num_experts", json_integer(16384));
    json_object_set_new(t, "moe_intermediate_size", json_integer(1 << 19));
    json_object_set_new(t, "routed_expert_hidden_size", json_integer(1 << 16));
    json_object_set_new(t, "num_shared_experts", json_integer(64));
    json_object_set_new(t, "intermediate_size", json_integer(1 << 19));
    json_object_set_new(t, "vocab_size", json_integer(1 << 22));
    json_object_del(t, "quantization_config");
    text = json_dumps(top, 0);
    json_decref(top);
    struct model m;
    weir_error err;
    assert_int_equal(parse(text, &m, &err), WEIR_OK);
    free(text);
    struct tally all = {0};
    m.experts = 1; /* the walk over all of them takes minutes; multiply instead */
    assert_int_equal(model_each_weight(&m, count_weight, &all), WEIR_OK);
    const double expert = 3.0 * 2 * 65536.0 * 524288.0;
    assert_true((double)all.bytes + expert * 16383 * MODEL_MAX_LAYERS < 1.8e19);
    assert_true((double)all.bytes > expert * 92);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_k3_is_read_as_its_config_says),
        cmocka_unit_test(kimi_linear_differs_where_the_family_does),
        cmocka_unit_test(a_required_field_that_is_missing_is_named),
        cmocka_unit_test(an_absent_optional_field_takes_its_default),
        cmocka_unit_test(special_ids_come_from_the_container_before_text_config),
        cmocka_unit_test(numbers_of_the_wrong_type_or_range_are_refused),
        cmocka_unit_test(layer_lists_must_share_out_all_layers),
        cmocka_unit_test(what_this_build_does_not_run_is_refused_by_name),
        cmocka_unit_test(expert_groups_must_divide_the_experts),
        cmocka_unit_test(broken_json_and_double_names_are_refused),
        cmocka_unit_test(the_walk_over_weights_stops_at_the_first_failure),
        cmocka_unit_test(the_largest_allowed_model_does_not_overflow),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
