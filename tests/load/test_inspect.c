/* The report on a checkpoint: totals by kind, sizes of states, what is missing. */
#include "tests/load/checkpoint.h"

#include "load/inspect.h"
#include "model/presets.h"

static struct inspect_report *inspected(const char *dir) {
    struct inspect_report *r;
    weir_error err = {0};
    if (inspect_open(dir, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    return r;
}

static struct inspect_report *config_alone(const char *relative) {
    struct scratch s = scratch_new();
    char *text;
    size_t n;
    read_whole(source_path(relative), &text, &n);
    scratch_write(&s, "config.json", text, n);
    free(text);
    struct inspect_report *r = inspected(s.dir);
    scratch_free(&s);
    return r;
}

static void the_real_k3_accounts_for_its_published_bytes(void **state) {
    struct inspect_report *r = config_alone("tests/model/kimi-k3.config.json");
    assert_false(r->has_weights);
    assert_true(r->all.bytes == 1560860324864u);
    assert_true(r->kind[INSPECT_ROUTED].bytes == 1446456066048u);
    assert_true(r->kind[INSPECT_VISION].bytes == 894717952u);
    assert_true(r->all.bytes - r->kind[INSPECT_ROUTED].bytes - r->kind[INSPECT_VISION].bytes ==
                113509540864u);
    assert_true(r->kind[INSPECT_KDA].bytes == 69 * UINT64_C(887800832));
    assert_true(r->kind[INSPECT_MLA].bytes == 24 * UINT64_C(464392192));
    /* one MoE layer outside its experts */
    assert_true(r->kind[INSPECT_SHARED].bytes + r->kind[INSPECT_ROUTER].bytes +
                    r->kind[INSPECT_LATENT].bytes ==
                92 * UINT64_C(379857408));
    assert_int_equal(r->kv_bytes_per_token_bf16, 27648);
    assert_int_equal(r->state_recurrent_bytes, 434110464);
    assert_int_equal(r->state_conv_bytes, 30523392);
    free(r);
}

static void kimi_linear_has_48_billion_parameters_and_3_active(void **state) {
    struct inspect_report *r = config_alone("tests/model/kimi-linear.config.json");
    assert_true(r->all.parameters > 47000000000u && r->all.parameters < 50000000000u);
    assert_true(r->active_parameters > 2500000000u && r->active_parameters < 3500000000u);
    assert_true(r->kind[INSPECT_VISION].bytes == 0 && r->kind[INSPECT_LATENT].bytes == 0);
    free(r);
}

static void the_presets_are_the_published_configurations(void **state) {
    static const char *const names[] = {"kimi-k3", "kimi-linear"};
    for (size_t i = 0; i < 2; i++) {
        char file[64], *text;
        size_t n;
        snprintf(file, sizeof file, "tests/model/%s.config.json", names[i]);
        read_whole(source_path(file), &text, &n);
        json_t *a = json_loadb(text, n, 0, NULL);
        json_t *b = json_loads(model_preset(names[i]), 0, NULL);
        assert_true(json_equal(a, b));
        json_decref(a);
        json_decref(b);
        free(text);
    }
    assert_null(model_preset("kimi-k2"));
}

static void a_whole_checkpoint_is_complete_and_its_sums_agree(void **state) {
    static const char *const dirs[] = {"models/tiny-k3", "models/micro-k3-odd",
                                       "models/micro-kimi-linear"};
    for (size_t i = 0; i < 3; i++) {
        struct inspect_report *r = inspected(source_path(dirs[i]));
        assert_true(inspect_complete(r));
        assert_int_equal(r->extra.count, 0);
        assert_true(r->all.bytes == r->stored_bytes);
        uint64_t kinds = 0, layers = 0;
        for (int k = 0; k < INSPECT_KINDS; k++)
            kinds += r->kind[k].bytes;
        for (uint32_t l = 0; l < r->model.layers; l++)
            layers += r->layer[l].total.bytes;
        assert_true(kinds == r->all.bytes);
        assert_true(layers < kinds);
        free(r);
    }
}

static void missing_unfit_and_unknown_tensors_are_told_apart(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, "model.safetensors");
    json_t *norm = json_incref(json_object_get(o.header, "language_model.model.norm.weight"));
    json_object_set(o.header, "language_model.model.other.weight", norm);
    json_object_del(o.header, "language_model.model.norm.weight");
    json_decref(norm);
    json_t *q = json_object_get(o.header, "language_model.model.layers.0.self_attn.q_proj.weight");
    json_object_set_new(q, "shape", json_pack("[i, i]", 32, 96));
    json_object_del(o.header,
                    "language_model.model.layers.3.block_sparse_moe.experts.2.w1.weight_scale");
    shard_write(&s, "model.safetensors", &o);
    struct inspect_report *r = inspected(s.dir);
    assert_false(inspect_complete(r));
    assert_int_equal(r->missing.count, 2);
    assert_int_equal(r->unfit.count, 1);
    assert_int_equal(r->extra.count, 1);
    assert_string_equal(r->missing.name[0],
                        "language_model.model.layers.3.block_sparse_moe.experts.2.w1.weight_scale");
    assert_non_null(strstr(r->unfit.name[0], "q_proj.weight: has shape [32, 96]"));
    assert_string_equal(r->extra.name[0], "language_model.model.other.weight");
    free(r);
    scratch_free(&s);
}

/* What weir leaves out on purpose is neither missing nor unknown; the tower is counted by itself.
 */
static void vision_rotary_and_prediction_tensors_are_skipped(void **state) {
    static const char *const skipped[] = {
        "language_model.model.layers.5.eh_proj.weight",
        "language_model.model.layers.17.mlp.gate_proj.weight",
        "language_model.model.layers.1.self_attn.rotary_emb.inv_freq"};
    static const char *const unknown[] = {"language_model.model.layers.4.mlp.new.weight",
                                          "language_model.model.layers.5x.weight",
                                          "language_model.vision_tower.weight"};
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, "model.safetensors");
    for (size_t i = 0; i < 3; i++) {
        json_t *empty =
            json_pack("{s:s, s:[i], s:[i, i]}", "dtype", "BF16", "shape", 0, "data_offsets", 0, 0);
        json_object_set(o.header, skipped[i], empty);
        json_object_set_new(o.header, unknown[i], empty);
    }
    /* 8 bytes behind the rest */
    o.file = realloc(o.file, o.file_bytes + 8);
    memset(o.file + o.file_bytes, 0, 8);
    const json_int_t end = (json_int_t)(o.file_bytes - o.data_at);
    o.file_bytes += 8;
    json_object_set_new(o.header, "vision_tower.patch_embed.proj.weight",
                        json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "BF16", "shape", 4,
                                  "data_offsets", end, end + 8));
    shard_write(&s, "model.safetensors", &o);
    struct inspect_report *r = inspected(s.dir);
    assert_true(inspect_complete(r));
    assert_int_equal(r->skipped, 3);
    assert_int_equal(r->extra.count, 3);
    assert_int_equal(r->kind[INSPECT_VISION].bytes, 8);
    assert_true(r->all.bytes == r->stored_bytes);
    free(r);
    weir_error err;
    assert_int_equal(try_load(s.dir, &err), WEIR_OK);
    scratch_free(&s);
}

static void a_shard_that_is_not_there_is_reported_not_fatal(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    unlink(scratch_path(&s, "model-00002-of-000002.safetensors"));
    struct inspect_report *r = inspected(s.dir);
    assert_int_equal(r->shards, 2);
    assert_int_equal(r->shards_absent, 1);
    assert_true(r->missing.count > INSPECT_MAX_NAMES);
    assert_int_equal(r->missing.kept, INSPECT_MAX_NAMES);
    assert_false(inspect_complete(r));
    json_t *j = inspect_json(r);
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "missing"), "first")),
                     INSPECT_MAX_NAMES);
    json_decref(j);
    free(r);
    scratch_free(&s);
}

static void text_and_json_carry_the_same_numbers(void **state) {
    struct inspect_report *r = inspected(source_path("models/tiny-k3"));
    char *text = NULL, number[32];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    inspect_print(r, f);
    fclose(f);
    json_t *j = inspect_json(r);
    json_t *kinds = json_object_get(j, "kinds"), *k;
    const char *name;
    assert_int_equal(json_object_size(kinds), INSPECT_KINDS);
    json_object_foreach(kinds, name, k) {
        json_int_t bytes = json_integer_value(json_object_get(k, "bytes"));
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, bytes);
        if (bytes > 0 && (!strstr(text, name) || !strstr(text, number)))
            fail_msg("%s %s not in:\n%s", name, number, text);
    }
    assert_true(json_is_true(json_object_get(j, "complete")));
    assert_int_equal(json_array_size(json_object_get(j, "layers")), 9);
    json_decref(j);
    free(text);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_k3_accounts_for_its_published_bytes),
        cmocka_unit_test(kimi_linear_has_48_billion_parameters_and_3_active),
        cmocka_unit_test(the_presets_are_the_published_configurations),
        cmocka_unit_test(a_whole_checkpoint_is_complete_and_its_sums_agree),
        cmocka_unit_test(missing_unfit_and_unknown_tensors_are_told_apart),
        cmocka_unit_test(vision_rotary_and_prediction_tensors_are_skipped),
        cmocka_unit_test(a_shard_that_is_not_there_is_reported_not_fatal),
        cmocka_unit_test(text_and_json_carry_the_same_numbers),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
