/* Damaged checkpoints: each is refused with one line that names file, tensor and numbers, and a
 * good load works afterwards. The cases F-001 to F-005 and every refusal the loader promises. */
#include "tests/load/checkpoint.h"

#define EXPERT_0   "language_model.model.layers.3.block_sparse_moe.experts.0."
#define FIRST_TINY "model-00001-of-000002.safetensors"
#define LAST_TINY  "model-00002-of-000002.safetensors"
#define INDEX      "model.safetensors.index.json"
#define SINGLE     "model.safetensors"
#define NORM       "language_model.model.norm.weight"

/* --------------------------------------------------------------------------- helpers of the cases
 */

static void set_range(json_t *header, const char *tensor, json_int_t begin, json_int_t end) {
    json_t *e = json_object_get(header, tensor);
    assert_non_null(e);
    json_object_set_new(e, "data_offsets", json_pack("[I, I]", begin, end));
}

static json_int_t range(json_t *header, const char *tensor, size_t which) {
    const json_t *r = json_object_get(json_object_get(header, tensor), "data_offsets");
    return json_integer_value(json_array_get(r, which));
}

/* Replaces the text of a config field by another of any type: `value` is JSON. */
static void set_field(const struct scratch *s, bool nested, const char *name, const char *value) {
    char *text;
    size_t n;
    read_whole(scratch_path(s, "config.json"), &text, &n);
    json_t *top = json_loadb(text, n, 0, NULL);
    free(text);
    json_t *in = nested ? json_object_get(top, "text_config") : top;
    if (value)
        json_object_set_new(in, name, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(in, name);
    text = json_dumps(top, 0);
    scratch_write(s, "config.json", text, strlen(text));
    free(text);
    json_decref(top);
}

static void edit_index(const struct scratch *s, const char *tensor, const char *shard) {
    char *text;
    size_t n;
    read_whole(scratch_path(s, INDEX), &text, &n);
    json_t *index = json_loadb(text, n, 0, NULL);
    free(text);
    json_object_set_new(json_object_get(index, "weight_map"), tensor, json_string(shard));
    text = json_dumps(index, 0);
    scratch_write(s, INDEX, text, strlen(text));
    free(text);
    json_decref(index);
}

/* ------------------------------------------------------------------------------------------- files
 */

static void F001_a_shard_cut_short_is_refused_with_bytes_needed_and_present(void **state) {
    static const long cuts[] = {1, 4096, 1000000};
    for (size_t i = 0; i < 3; i++) {
        struct scratch s = scratch_copy("models/tiny-k3");
        struct stat st;
        assert_int_equal(stat(scratch_path(&s, LAST_TINY), &st), 0);
        assert_int_equal(truncate(scratch_path(&s, LAST_TINY), st.st_size - cuts[i]), 0);
        char ends[64];
        snprintf(ends, sizeof ends, "file ends at %ld", (long)st.st_size - cuts[i]);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, LAST_TINY, "tensor language_model.", "needs bytes ", "..",
                       ends);
        scratch_free(&s);
    }
}

static void a_shard_cut_inside_its_header_is_refused(void **state) {
    static const long sizes[] = {0, 1, 7, 8, 9, 5000};
    for (size_t i = 0; i < 6; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        assert_int_equal(truncate(scratch_path(&s, SINGLE), sizes[i]), 0);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE);
        scratch_free(&s);
    }
}

static void F002_a_name_that_stands_twice_is_refused_and_named(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, SINGLE);
    char *text = json_dumps(o.header, JSON_COMPACT), *twice = malloc(strlen(text) + 300);
    sprintf(twice, "%.*s,\"" NORM "\":{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[0,64]}}",
            (int)strlen(text) - 1, text);
    shard_write_text(&s, SINGLE, &o, twice);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, "\"" NORM "\"", "twice");
    json_decref(o.header);
    free(o.file);
    free(text);
    free(twice);
    scratch_free(&s);
}

static void F002_a_tensor_in_two_shards_is_refused(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    struct opened_shard o = shard_read(&s, FIRST_TINY);
    json_t *any = json_object_get(o.header, "language_model.model.layers.0.input_layernorm.weight");
    json_object_set(o.header, NORM, any);
    json_object_del(o.header, "language_model.model.layers.0.input_layernorm.weight");
    shard_write(&s, FIRST_TINY, &o);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, NORM, FIRST_TINY, LAST_TINY);
    scratch_free(&s);
}

static void F003_a_git_lfs_pointer_is_called_one(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 7635904\n";
    scratch_write(&s, LAST_TINY, pointer, sizeof pointer - 1);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, LAST_TINY, "Git LFS pointer", "132 bytes");
    /* half a pointer, or another text, is at least a broken download */
    scratch_write(&s, LAST_TINY, "<html><body>404 Not Found</body></html>", 39);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, LAST_TINY, "broken download");
    scratch_free(&s);
}

static void a_header_longer_than_the_file_or_100_MB_is_refused(void **state) {
    static const uint64_t lengths[] = {300000, 100000001, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < 4; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        char *data, number[32];
        size_t n;
        read_whole(scratch_path(&s, SINGLE), &data, &n);
        memcpy(data, &lengths[i], 8);
        scratch_write(&s, SINGLE, data, n);
        free(data);
        snprintf(number, sizeof number, "%" PRIu64 " bytes", lengths[i]);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, "header of", number);
        scratch_free(&s);
    }
}

static void overlapping_ranges_are_refused(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, SINGLE);
    const char *other = "language_model.model.output_attn_res_norm.weight";
    json_int_t begin = range(o.header, NORM, 0) + 2;
    set_range(o.header, other, begin, begin + 64);
    shard_write(&s, SINGLE, &o);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, NORM, other, "overlap");
    scratch_free(&s);
}

static void a_range_outside_the_file_is_refused(void **state) {
    static const json_int_t begins[] = {300000, INT64_MAX - 64, -64};
    for (size_t i = 0; i < 3; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, SINGLE);
        set_range(o.header, NORM, begins[i], begins[i] + 64);
        shard_write(&s, SINGLE, &o);
        if (begins[i] >= 0)
            ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, NORM, "needs bytes", "file ends at");
        else
            ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, NORM, "data_offsets");
        scratch_free(&s);
    }
}

static void a_range_that_is_not_shape_times_dtype_is_refused(void **state) {
    static const struct {
        const char *entry, *word;
    } cases[] = {
        {"{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[0,62]}", "64 bytes"},
        {"{\"dtype\":\"BF16\",\"shape\":[33],\"data_offsets\":[0,64]}", "66 bytes"},
        {"{\"dtype\":\"F32\",\"shape\":[32],\"data_offsets\":[0,64]}", "128 bytes"},
        {"{\"dtype\":\"BF16\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,64]}",
         "18446744073709551615 bytes"}, /* the product would wrap to 0 */
        {"{\"dtype\":\"Q4_K\",\"shape\":[32],\"data_offsets\":[0,64]}", "unknown dtype Q4_K"},
        {"{\"dtype\":\"BF16\",\"shape\":[-32],\"data_offsets\":[0,64]}", "shape"},
        {"{\"dtype\":\"BF16\",\"shape\":[32.0],\"data_offsets\":[0,64]}", "shape"},
        {"{\"dtype\":\"BF16\",\"shape\":\"32\",\"data_offsets\":[0,64]}", "shape"},
        {"{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,32],\"data_offsets\":[0,64]}", "shape"},
        {"{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[64,0]}", "data_offsets"},
        {"{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[0,64,64]}", "data_offsets"},
        {"{\"dtype\":\"BF16\",\"shape\":[32]}", "data_offsets"},
        {"{\"dtype\":7,\"shape\":[32],\"data_offsets\":[0,64]}", "dtype"},
        {"[1,2]", "object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, SINGLE);
        json_object_set_new(o.header, NORM, json_loads(cases[i].entry, 0, NULL));
        /* make room, so that only the entry itself is at fault */
        json_object_del(o.header, "language_model.model.layers.0.input_layernorm.weight");
        shard_write(&s, SINGLE, &o);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, NORM, cases[i].word);
        scratch_free(&s);
    }
}

static void a_header_that_is_no_json_object_is_refused(void **state) {
    static const char *const headers[] = {"{\"a\":", "[]", "nonsense", "{\"a\\u0000b\":{}}"};
    for (size_t i = 0; i < 4; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, SINGLE);
        shard_write_text(&s, SINGLE, &o, headers[i]);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE);
        json_decref(o.header);
        free(o.file);
        scratch_free(&s);
    }
}

/* ------------------------------------------------------------------------------------------- index
 */

static void an_index_that_names_a_file_that_is_not_there_is_refused(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    unlink(scratch_path(&s, LAST_TINY));
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, LAST_TINY, INDEX, s.dir);
    scratch_free(&s);
}

static void an_index_that_leaves_the_directory_is_refused(void **state) {
    static const char *const names[] = {
        "../secret.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", ".hidden",
        "a\\b.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct scratch s = scratch_copy("models/tiny-k3");
        edit_index(&s, NORM, names[i]);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, INDEX, NORM, names[i], "same directory");
        scratch_free(&s);
    }
}

static void a_tensor_in_another_shard_than_the_index_says_is_refused(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    edit_index(&s, NORM, FIRST_TINY);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, INDEX, NORM, FIRST_TINY, LAST_TINY);
    scratch_free(&s);
}

static void a_tensor_of_the_index_that_no_shard_holds_is_refused(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    edit_index(&s, "language_model.model.ghost.weight", FIRST_TINY);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, FIRST_TINY, "language_model.model.ghost.weight");
    scratch_free(&s);
}

static void an_index_without_a_weight_map_is_refused(void **state) {
    static const char *const texts[] = {"{}", "{\"weight_map\":{}}",        "{\"weight_map\":[]}",
                                        "[]", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\""};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct scratch s = scratch_copy("models/tiny-k3");
        scratch_write(&s, INDEX, texts[i], strlen(texts[i]));
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, INDEX);
        scratch_free(&s);
    }
}

static void a_directory_without_weights_or_config_is_refused_by_path(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    unlink(scratch_path(&s, SINGLE));
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, s.dir, INDEX, SINGLE);
    unlink(scratch_path(&s, "config.json"));
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, s.dir, "config.json", "No such file");
    scratch_free(&s);
}

/* ----------------------------------------------------------------------------------------- tensors
 */

/* Every kind of weight in turn is taken away, in the model where it occurs. */
static void any_missing_tensor_is_refused_by_name(void **state) {
    static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear"};
    size_t tried = 0;
    for (size_t k = 0; k < 2; k++) {
        struct scratch s = scratch_copy(models[k]);
        struct opened_shard o = shard_read(&s, SINGLE);
        json_t *whole = json_deep_copy(o.header);
        const char *name;
        json_t *v;
        json_object_foreach(whole, name, v) {
            /* one expert of one layer stands for all */
            if (strcmp(name, "__metadata__") == 0 ||
                (strstr(name, ".experts.") && !strstr(name, ".layers.4.") &&
                 !strstr(name, ".experts.1.")))
                continue;
            json_t *less = json_copy(whole);
            json_object_del(less, name);
            char *text = json_dumps(less, JSON_COMPACT), *where;
            shard_write_text(&s, SINGLE, &o, text);
            weir_error err;
            assert_int_equal(try_load(s.dir, &err), WEIR_BAD_FILE);
            where = strstr(err.message, name);
            if (!where || !strstr(err.message, "missing"))
                fail_msg("%s: got %s: %s", name, err.where, err.message);
            free(text);
            json_decref(less);
            tried++;
        }
        json_decref(whole);
        json_decref(o.header);
        free(o.file);
        scratch_free(&s);
    }
    assert_true(tried > 150);
}

static void a_wrong_shape_is_refused_with_both_shapes(void **state) {
    static const struct {
        const char *tensor, *shape, *has, *wants;
    } cases[] = {
        {"language_model.model.layers.0.self_attn.q_proj.weight", "[32,96]", "[32, 96]",
         "[96, 32]"},
        {"language_model.model.layers.0.self_attn.q_proj.weight", "[3072]", "[3072]", "[96, 32]"},
        {"language_model.model.layers.0.self_attn.q_proj.weight", "[1,96,32]", "[1, 96, 32]",
         "[96, 32]"},
        {"language_model.model.layers.0.self_attn.q_conv1d.weight", "[4,96]", "[4, 96]", "[96, 4]"},
        {"language_model.model.layers.0.self_attn.q_conv1d.weight", "[96,4,1]", NULL, NULL},
        {"language_model.model.layers.0.self_attn.q_conv1d.weight", "[96,4]", NULL, NULL},
        {"language_model.model.layers.0.self_attn.A_log", "[1,1,12,1]", NULL, NULL},
        {"language_model.model.layers.0.self_attn.A_log", "[3,4]", "[3, 4]", "12 heads"},
        {NORM, "[2,16]", "[2, 16]", "[32]"},
        {NORM, "[1,32]", NULL, NULL},
        {EXPERT_0 "w1.weight_packed", "[16,32]", "[16, 32]", "[32, 16]"},
        {EXPERT_0 "w1.weight_scale", "[32]", "[32]", "[32, 1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, SINGLE);
        json_object_set_new(json_object_get(o.header, cases[i].tensor), "shape",
                            json_loads(cases[i].shape, 0, NULL));
        shard_write(&s, SINGLE, &o);
        weir_error err;
        if (cases[i].has)
            ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, cases[i].tensor, cases[i].has,
                           cases[i].wants);
        else if (try_load(s.dir, &err))
            fail_msg("%s as %s: %s", cases[i].tensor, cases[i].shape, err.message);
        scratch_free(&s);
    }
}

static void a_wrong_dtype_is_refused(void **state) {
    static const struct {
        const char *tensor, *dtype;
    } cases[] = {
        {NORM, "F16"},
        {"language_model.model.layers.0.self_attn.q_proj.weight", "I16"},
        {EXPERT_0 "w1.weight_packed", "I8"},
        {EXPERT_0 "w1.weight_scale", "F8_E8M0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, SINGLE);
        json_object_set_new(json_object_get(o.header, cases[i].tensor), "dtype",
                            json_string(cases[i].dtype));
        shard_write(&s, SINGLE, &o);
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, cases[i].tensor, cases[i].dtype);
        scratch_free(&s);
    }
}

static void F005_a_scale_byte_255_is_refused_with_tensor_and_group(void **state) {
    struct scratch s = scratch_copy("models/tiny-k3");
    static const char tensor[] =
        "language_model.model.layers.8.block_sparse_moe.experts.23.w2.weight_scale";
    struct opened_shard o = shard_read(&s, LAST_TINY);
    /* w2 is [128, 64]: two groups a row; byte 2*77+1 is row 77, group 1 */
    o.file[o.data_at + (size_t)range(o.header, tensor, 0) + 155] = (char)255;
    scratch_write(&s, LAST_TINY, o.file, o.file_bytes);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, LAST_TINY, tensor, "row 77", "group 1", "32..63", "255");
    o.file[o.data_at + (size_t)range(o.header, tensor, 0) + 155] =
        (char)254; /* large, but a number */
    scratch_write(&s, LAST_TINY, o.file, o.file_bytes);
    weir_error err;
    assert_int_equal(try_load(s.dir, &err), WEIR_OK);
    json_decref(o.header);
    free(o.file);
    scratch_free(&s);
}

static void F004_widths_that_cut_a_scale_group_are_refused(void **state) {
    static const char *const fields[] = {"moe_intermediate_size", "routed_expert_hidden_size"};
    for (size_t i = 0; i < 2; i++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        set_field(&s, true, fields[i], "48");
        ASSERT_REFUSED(&s, WEIR_BAD_FILE, "config.json", fields[i], "48", "32", "scale group");
        scratch_free(&s);
    }
}

static void packed_experts_and_config_must_agree(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    set_field(&s, true, "quantization_config", NULL);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, EXPERT_0 "w1.weight is missing", "packed");
    scratch_free(&s);
    /* the other way: an expert that is not packed under a config that announces packs */
    s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, SINGLE);
    json_object_set(o.header, EXPERT_0 "w1.weight",
                    json_object_get(o.header, EXPERT_0 "w1.weight_packed"));
    json_object_del(o.header, EXPERT_0 "w1.weight_packed");
    shard_write(&s, SINGLE, &o);
    ASSERT_REFUSED(&s, WEIR_BAD_FILE, SINGLE, EXPERT_0 "w1.weight_packed is missing", "unpacked");
    scratch_free(&s);
}

static void config_faults_are_refused_before_any_weight_is_read(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    unlink(scratch_path(&s, SINGLE));
    set_field(&s, true, "mla_use_nope", "false");
    ASSERT_REFUSED(&s, WEIR_UNSUPPORTED, "config.json", "mla_use_nope");
    set_field(&s, false, "model_type", "\"kimi_k2\"");
    ASSERT_REFUSED(&s, WEIR_UNSUPPORTED, "config.json", "kimi_k2");
    scratch_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F001_a_shard_cut_short_is_refused_with_bytes_needed_and_present),
        cmocka_unit_test(a_shard_cut_inside_its_header_is_refused),
        cmocka_unit_test(F002_a_name_that_stands_twice_is_refused_and_named),
        cmocka_unit_test(F002_a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(F003_a_git_lfs_pointer_is_called_one),
        cmocka_unit_test(a_header_longer_than_the_file_or_100_MB_is_refused),
        cmocka_unit_test(overlapping_ranges_are_refused),
        cmocka_unit_test(a_range_outside_the_file_is_refused),
        cmocka_unit_test(a_range_that_is_not_shape_times_dtype_is_refused),
        cmocka_unit_test(a_header_that_is_no_json_object_is_refused),
        cmocka_unit_test(an_index_that_names_a_file_that_is_not_there_is_refused),
        cmocka_unit_test(an_index_that_leaves_the_directory_is_refused),
        cmocka_unit_test(a_tensor_in_another_shard_than_the_index_says_is_refused),
        cmocka_unit_test(a_tensor_of_the_index_that_no_shard_holds_is_refused),
        cmocka_unit_test(an_index_without_a_weight_map_is_refused),
        cmocka_unit_test(a_directory_without_weights_or_config_is_refused_by_path),
        cmocka_unit_test(any_missing_tensor_is_refused_by_name),
        cmocka_unit_test(a_wrong_shape_is_refused_with_both_shapes),
        cmocka_unit_test(a_wrong_dtype_is_refused),
        cmocka_unit_test(F005_a_scale_byte_255_is_refused_with_tensor_and_group),
        cmocka_unit_test(F004_widths_that_cut_a_scale_group_are_refused),
        cmocka_unit_test(packed_experts_and_config_must_agree),
        cmocka_unit_test(config_faults_are_refused_before_any_weight_is_read),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
