/* The loader on good checkpoints: every weight in its place, with the numbers of the file. */
#include "tests/load/checkpoint.h"

struct loaded {
    struct model m;
    struct weights *w;
};

static struct loaded load(const char *dir) {
    struct loaded l;
    weir_error err = {0};
    if (model_open(dir, &l.m, &err) || weights_open(dir, &l.m, &l.w, &err))
        fail_msg("%s: %s", err.where, err.message);
    return l;
}

static const struct weight *weight_of(const struct loaded *l, const struct weight_spec *spec) {
    if (spec->expert < 0)
        return weights_get(l->w, spec->role, spec->layer);
    return &weights_experts(l->w, spec->role, (uint32_t)spec->layer)[spec->expert];
}

static weir_status check_present(void *arg, const struct weight_spec *spec) {
    const struct weight *v = weight_of(arg, spec);
    assert_non_null(v->data);
    assert_int_equal(v->rows, spec->rows);
    if (spec->role != ROLE_A_LOG)
        assert_int_equal(v->cols, spec->cols);
    assert_int_equal(v->scale != NULL, spec->dtype == DTYPE_MXFP4);
    assert_int_equal((uintptr_t)v->data % (v->dtype == DTYPE_F32 ? 4 : 2), 0);
    return WEIR_OK;
}

static void every_weight_of_the_bundled_models_is_found(void **state) {
    static const char *const dirs[] = {"models/tiny-k3", "models/micro-k3-odd",
                                       "models/micro-kimi-linear"};
    for (size_t i = 0; i < 3; i++) {
        struct loaded l = load(source_path(dirs[i]));
        assert_int_equal(model_each_weight(&l.m, check_present, &l), WEIR_OK);
        assert_null(weights_get(l.w, ROLE_Q_CONV, (int32_t)l.m.layers - 1)->data);
        assert_null(weights_experts(l.w, ROLE_EXPERT_W1, 0));
        weights_close(l.w);
    }
}

static double element(const struct weight *v, size_t i) {
    uint16_t half;
    float x;
    switch (v->dtype) {
    case DTYPE_F32: memcpy(&x, (const char *)v->data + 4 * i, 4); return x;
    case DTYPE_BF16: memcpy(&half, (const char *)v->data + 2 * i, 2); return bf16_to_f32(half);
    case DTYPE_MXFP4:
        return (double)e2m1_to_f32(((const uint8_t *)v->data)[i / 2] >> (i % 2 * 4)) *
               (double)e8m0_to_f32(v->scale[i / 32]);
    case DTYPE_U8:
    case DTYPE_FP8: break;
    }
    return NAN;
}

/* An odd header length puts every tensor on an odd byte; padding in front moves them further. The
 * same numbers must arrive from there as from an aligned file. */
struct twins {
    struct loaded a, b;
    size_t compared;
};

static weir_status same_numbers(void *arg, const struct weight_spec *spec) {
    struct twins *t = arg;
    const struct weight *a = weight_of(&t->a, spec), *b = weight_of(&t->b, spec);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal((uintptr_t)b->data % (b->dtype == DTYPE_F32 ? 4 : b->scale ? 1 : 2), 0);
    for (size_t i = 0; i < (size_t)a->rows * a->cols; i++)
        assert_true(element(a, i) == element(b, i));
    t->compared++;
    return WEIR_OK;
}

static void misaligned_tensors_arrive_unchanged(void **state) {
    for (int extra = 1; extra <= 3; extra++) {
        struct scratch s = scratch_copy("models/micro-k3-odd");
        struct opened_shard o = shard_read(&s, "model.safetensors");
        char *text = json_dumps(o.header, JSON_COMPACT), *padded = malloc(strlen(text) + 16);
        size_t spaces = (8 - strlen(text) % 8) % 8 + (size_t)extra;
        sprintf(padded, "%s%*s", text, (int)spaces, "");
        shard_write_text(&s, "model.safetensors", &o, padded);
        free(text);
        free(padded);
        json_decref(o.header);
        free(o.file);
        struct twins t = {load(source_path("models/micro-k3-odd")), load(s.dir), 0};
        assert_int_equal(model_each_weight(&t.a.m, same_numbers, &t), WEIR_OK);
        assert_true(t.compared > 100);
        weights_close(t.a.w);
        weights_close(t.b.w);
        scratch_free(&s);
    }
}

/* Every BF16 tensor of a shard rewritten as F32: twice the bytes, the same numbers. */
static void f32_files_load_like_bf16_ones(void **state) {
    struct scratch s = scratch_copy("models/micro-kimi-linear");
    struct opened_shard o = shard_read(&s, "model.safetensors");
    char *data = malloc(4 * o.file_bytes);
    size_t used = 0;
    const char *name;
    json_t *e;
    json_object_foreach(o.header, name, e) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        json_t *r = json_object_get(e, "data_offsets");
        size_t lo = (size_t)json_integer_value(json_array_get(r, 0)),
               hi = (size_t)json_integer_value(json_array_get(r, 1)), at = used;
        bool bf16 = strcmp(json_string_value(json_object_get(e, "dtype")), "BF16") == 0;
        for (size_t i = lo; i < hi; i += bf16 ? 2 : 4) {
            uint16_t half = 0;
            float x;
            if (bf16) {
                memcpy(&half, o.file + o.data_at + i, 2);
                x = bf16_to_f32(half);
            } else {
                memcpy(&x, o.file + o.data_at + i, 4);
            }
            memcpy(data + used, &x, 4);
            used += 4;
        }
        json_object_set_new(e, "dtype", json_string("F32"));
        json_object_set_new(e, "data_offsets",
                            json_pack("[I, I]", (json_int_t)at, (json_int_t)used));
    }
    char *header = json_dumps(o.header, JSON_COMPACT);
    struct opened_shard wide = {NULL, data, used, 0};
    shard_write_text(&s, "model.safetensors", &wide, header);
    struct loaded a = load(source_path("models/micro-kimi-linear")), b = load(s.dir);
    const struct weight *x = weights_get(a.w, ROLE_EMBED, -1),
                        *y = weights_get(b.w, ROLE_EMBED, -1);
    assert_int_equal(x->dtype, DTYPE_BF16);
    assert_int_equal(y->dtype, DTYPE_F32);
    for (size_t i = 0; i < (size_t)x->rows * x->cols; i++)
        assert_true(element(x, i) == element(y, i));
    weights_close(a.w);
    weights_close(b.w);
    free(header);
    free(data);
    json_decref(o.header);
    free(o.file);
    scratch_free(&s);
}

static void a_log_keeps_its_heads_and_drops_the_padding(void **state) {
    struct loaded l = load(source_path("models/tiny-k3"));
    const struct weight *a = weights_get(l.w, ROLE_A_LOG, 1);
    assert_int_equal(a->rows * a->cols, 8);
    for (size_t i = 0; i < 8; i++) /* the tail of the file's 32 values is zero */
        assert_true(element(a, i) != 0);
    weights_close(l.w);
}

/* F-004: codes and scales of one row, as the file's bytes say. */
static void F004_mxfp4_rows_decode_to_code_times_scale(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, "model.safetensors");
    const char *base = "language_model.model.layers.3.block_sparse_moe.experts.0.w1.weight";
    char name[200];
    snprintf(name, sizeof name, "%s_packed", base);
    json_t *r = json_object_get(json_object_get(o.header, name), "data_offsets");
    size_t codes = o.data_at + (size_t)json_integer_value(json_array_get(r, 0));
    snprintf(name, sizeof name, "%s_scale", base);
    r = json_object_get(json_object_get(o.header, name), "data_offsets");
    size_t scales = o.data_at + (size_t)json_integer_value(json_array_get(r, 0));
    o.file[codes] = (char)0x7A; /* element 0: code 10 = -1; element 1: code 7 = 6 */
    o.file[scales] = (char)128; /* 2 */
    o.file[codes + 16] = 0x01;  /* row 1, element 0: 0.5 */
    o.file[scales + 1] = 0;     /* 2^-127 */
    scratch_write(&s, "model.safetensors", o.file, o.file_bytes);
    struct loaded l = load(s.dir);
    const struct weight *w = &weights_experts(l.w, ROLE_EXPERT_W1, 3)[0];
    assert_true(element(w, 0) == -2.0);
    assert_true(element(w, 1) == 12.0);
    assert_true(element(w, 32) == 0x1p-128);
    weights_close(l.w);
    json_decref(o.header);
    free(o.file);
    scratch_free(&s);
}

static void a_tied_head_is_the_embedding(void **state) {
    struct scratch s = scratch_copy("models/micro-kimi-linear");
    char *text;
    size_t n;
    read_whole(scratch_path(&s, "config.json"), &text, &n);
    json_t *c = json_loadb(text, n, 0, NULL);
    free(text);
    json_object_set_new(c, "tie_word_embeddings", json_true());
    text = json_dumps(c, 0);
    scratch_write(&s, "config.json", text, strlen(text));
    free(text);
    json_decref(c);
    struct loaded l = load(s.dir);
    assert_ptr_equal(weights_get(l.w, ROLE_HEAD, -1), weights_get(l.w, ROLE_EMBED, -1));
    weights_close(l.w);
    scratch_free(&s);
}

/* A K3 whose text_config was lifted to the top; names with and without the wrapper's prefix. */
static void a_flattened_k3_loads_whatever_its_prefix(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    char *text;
    size_t n;
    read_whole(scratch_path(&s, "config.json"), &text, &n);
    json_t *c = json_loadb(text, n, 0, NULL), *flat = json_object_get(c, "text_config");
    free(text);
    text = json_dumps(flat, 0);
    scratch_write(&s, "config.json", text, strlen(text));
    free(text);
    json_decref(c);
    struct loaded l = load(s.dir);
    assert_int_equal(l.m.family, FAMILY_KIMI_K3);
    weights_close(l.w);
    struct opened_shard o = shard_read(&s, "model.safetensors");
    json_t *bare = json_object(), *e;
    const char *name;
    json_object_foreach(o.header, name, e) {
        json_object_set(bare, strncmp(name, "language_model.", 15) ? name : name + 15, e);
    }
    json_decref(o.header);
    o.header = bare;
    shard_write(&s, "model.safetensors", &o);
    l = load(s.dir);
    weights_close(l.w);
    scratch_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_of_the_bundled_models_is_found),
        cmocka_unit_test(misaligned_tensors_arrive_unchanged),
        cmocka_unit_test(f32_files_load_like_bf16_ones),
        cmocka_unit_test(a_log_keeps_its_heads_and_drops_the_padding),
        cmocka_unit_test(F004_mxfp4_rows_decode_to_code_times_scale),
        cmocka_unit_test(a_tied_head_is_the_embedding),
        cmocka_unit_test(a_flattened_k3_loads_whatever_its_prefix),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
