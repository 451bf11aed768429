/* Synthetic checkpoints and the MXFP4 quantiser behind them. */
#include "tests/load/checkpoint.h"

#include "base/rng.h"
#include "load/inspect.h"
#include "load/mxfp4.h"
#include "load/synth.h"
#include "text/tokenizer.h"

/* --------------------------------------------------------------------------------------- quantiser
 */

static void dequantise(const uint8_t *codes, uint8_t scale, float *out) {
    for (int i = 0; i < 32; i++)
        out[i] = e2m1_to_f32(codes[i / 2] >> (i % 2 * 4)) * e8m0_to_f32(scale);
}

static void F006_a_zero_group_is_exactly_zero_with_a_valid_scale(void **state) {
    float x[32] = {0}, y[32];
    uint8_t codes[16], scale;
    x[3] = -0.0f;
    memset(codes, 0xAA, sizeof codes);
    mxfp4_quantise_group(x, codes, &scale);
    assert_true(scale != 255);
    dequantise(codes, scale, y);
    for (int i = 0; i < 32; i++)
        assert_true(y[i] == 0);
}

/* Every magnitude f32 has, down to where the smallest scale ends. */
static void F006_tiny_and_huge_groups_keep_the_formats_relative_error(void **state) {
    for (int e = -125; e <= 127; e++) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            float x[32], y[32], largest = 0;
            uint8_t codes[16], scale;
            for (int i = 0; i < 32; i++) {
                x[i] = ldexpf((float)(2 * rng_unit(rng_at(seed, 6, (uint64_t)i)) - 1), e);
                largest = fmaxf(largest, fabsf(x[i]));
            }
            mxfp4_quantise_group(x, codes, &scale);
            assert_true(scale != 255);
            dequantise(codes, scale, y);
            for (int i = 0; i < 32; i++) {
                assert_true(isfinite(y[i]));
                /* half the widest gap (4 to 6) of a scale of at most largest / 3.5 */
                if (fabsf(x[i] - y[i]) > largest / 3.5f)
                    fail_msg("2^%d: %g became %g", e, (double)x[i], (double)y[i]);
                if (fabsf(x[i]) == largest && fabsf(x[i] - y[i]) > 0.2f * largest)
                    fail_msg("2^%d: the largest, %g, became %g", e, (double)x[i], (double)y[i]);
            }
        }
    }
}

static void F006_a_group_below_1e_30_stays_finite_and_right(void **state) {
    float x[32], y[32];
    uint8_t codes[16], scale;
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i - 16) * 5e-32f;
    mxfp4_quantise_group(x, codes, &scale);
    dequantise(codes, scale, y);
    for (int i = 0; i < 32; i++)
        assert_true(fabsf(x[i] - y[i]) <= 16 * 5e-32f / 3.5f);
    assert_true(y[0] < 0 && fabsf(y[0] / x[0] - 1) < 0.2f);
    /* subnormals far below the smallest scale may only vanish, never become NaN */
    for (int i = 0; i < 32; i++)
        x[i] = 1e-45f * (float)(i % 5);
    mxfp4_quantise_group(x, codes, &scale);
    dequantise(codes, scale, y);
    for (int i = 0; i < 32; i++)
        assert_true(y[i] == 0);
}

/* Whatever is representable comes back as it was; the largest code of a group is 4 or 6. */
static void quantising_what_was_quantised_changes_nothing(void **state) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint8_t codes[16], again[16], scale, scale2;
        float x[32], y[32];
        for (int i = 0; i < 16; i++)
            codes[i] = (uint8_t)rng_at(seed, 1, (uint64_t)i);
        codes[0] = 0x76; /* a 4 and a 6 */
        dequantise(codes, (uint8_t)(seed + 1), x);
        mxfp4_quantise_group(x, again, &scale2);
        dequantise(again, scale2, y);
        for (int i = 0; i < 32; i++)
            assert_true(x[i] == y[i]);
        assert_int_equal(scale2, seed + 1);
        for (int i = 0; i < 32; i++)
            x[i] = (float)(2 * rng_unit(rng_at(seed, 2, (uint64_t)i)) - 1);
        mxfp4_quantise_group(x, codes, &scale);
        unsigned largest = 0;
        for (int i = 0; i < 16; i++) {
            largest = (codes[i] & 7u) > largest ? codes[i] & 7u : largest;
            largest = (codes[i] >> 4 & 7u) > largest ? codes[i] >> 4 & 7u : largest;
        }
        assert_true(largest >= 6);
    }
}

static void ties_go_to_the_even_code(void **state) {
    static const float in[32] = {6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -5, 0.26f};
    static const float want[11] = {6, 0, 1, 1, 2, 2, 4, 4, 0, -4, 0.5f};
    float y[32];
    uint8_t codes[16], scale;
    mxfp4_quantise_group(in, codes, &scale);
    assert_int_equal(scale, 127);
    dequantise(codes, scale, y);
    for (int i = 0; i < 11; i++)
        assert_true(y[i] == want[i]);
}

/* ------------------------------------------------------------------------------------- checkpoints
 */

static weir_status synth(const struct scratch *s, struct synth_options o, weir_error *err) {
    struct synth_result r;
    *err = (weir_error){0};
    o.out = s->dir;
    return synth_write(&o, &r, err);
}

static struct scratch synthetic(struct synth_options o) {
    struct scratch s = scratch_new();
    weir_error err;
    if (synth(&s, o, &err))
        fail_msg("%s: %s", err.where, err.message);
    return s;
}

static bool same_files(const struct scratch *a, const struct scratch *b) {
    bool same = true;
    DIR *d = opendir(a->dir);
    for (struct dirent *e; (e = readdir(d));) {
        char *x, *y;
        size_t n, m;
        if (e->d_name[0] == '.')
            continue;
        read_whole(scratch_path(a, e->d_name), &x, &n);
        read_whole(scratch_path(b, e->d_name), &y, &m);
        same &= n == m && memcmp(x, y, n) == 0;
        free(x);
        free(y);
    }
    closedir(d);
    return same;
}

static void the_files_depend_on_the_seed_alone(void **state) {
    struct synth_options o = {.preset = "tiny", .seed = 7, .layers = 3, .experts = 6, .threads = 1};
    struct scratch a = synthetic(o);
    o.threads = 3;
    struct scratch b = synthetic(o);
    o.seed = 8;
    struct scratch c = synthetic(o);
    assert_true(same_files(&a, &b));
    assert_false(same_files(&a, &c));
    scratch_free(&a);
    scratch_free(&b);
    scratch_free(&c);
}

static void what_is_written_is_complete_and_loads(void **state) {
    static const struct synth_options options[] = {
        {.preset = "tiny", .seed = 1},
        {.preset = "tiny", .seed = 1, .layers = 2, .vocab = 512},
        {.preset = "tiny", .seed = 1, .layers = 5, .experts = 3, .shard_bytes = 400000},
        {.preset = "mid", .seed = 1, .layers = 2, .experts = 2, .vocab = 512},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct scratch s = synthetic(options[i]);
        struct inspect_report *r = NULL;
        weir_error err;
        if (try_load(s.dir, &err) || inspect_open(s.dir, &r, &err))
            fail_msg("%s: %s", err.where, err.message);
        assert_true(inspect_complete(r));
        assert_int_equal(r->extra.count, 0);
        assert_true(r->claimed_bytes == r->stored_bytes);
        const struct model *m = &r->model;
        assert_false(m->layer_is_kda[m->layers - 1]);
        assert_true(m->layer_is_kda[0] && !model_is_moe(m, 0) && model_is_moe(m, 1));
        if (options[i].layers)
            assert_int_equal(m->layers, options[i].layers);
        if (options[i].experts)
            assert_int_equal(m->experts, options[i].experts);
        if (options[i].vocab)
            assert_int_equal(m->vocab, options[i].vocab);
        if (options[i].shard_bytes) {
            assert_true(r->shards > 3);
            struct stat st;
            char name[64];
            snprintf(name, sizeof name, "model-00002-of-%06u.safetensors", r->shards);
            assert_int_equal(stat(scratch_path(&s, name), &st), 0);
            assert_true(st.st_size < 500000);
        }
        free(r);
        scratch_free(&s);
    }
}

static struct weights *opened(const char *dir, struct model *m) {
    struct weights *w = NULL;
    weir_error err;
    if (model_open(dir, m, &err) || weights_open(dir, m, &w, &err))
        fail_msg("%s: %s", err.where, err.message);
    return w;
}

static void moments(const struct weight *w, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    const size_t n = (size_t)w->rows * w->cols;
    for (size_t i = 0; i < n; i++) {
        double x;
        if (w->dtype == DTYPE_MXFP4)
            x = (double)e2m1_to_f32(((const uint8_t *)w->data)[i / 2] >> (i % 2 * 4)) *
                (double)e8m0_to_f32(w->scale[i / 32]);
        else if (w->dtype == DTYPE_BF16)
            x = bf16_to_f32(((const uint16_t *)w->data)[i]);
        else
            x = ((const float *)w->data)[i];
        assert_true(isfinite(x));
        sum += x;
        squares += x * x;
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n - *mean * *mean);
}

/* Unit input gives unit output: what keeps activations sane through any number of layers. */
static void matrices_are_centred_with_deviation_one_over_root_of_columns(void **state) {
    struct scratch s = synthetic((struct synth_options){.preset = "tiny", .seed = 3, .layers = 3});
    struct model m;
    struct weights *w = opened(s.dir, &m);
    const struct weight *list[] = {weights_get(w, ROLE_Q, 1),
                                   weights_get(w, ROLE_DOWN, 0),
                                   weights_get(w, ROLE_KV_B, 2),
                                   weights_get(w, ROLE_HEAD, -1),
                                   &weights_experts(w, ROLE_EXPERT_W1, 1)[0],
                                   &weights_experts(w, ROLE_EXPERT_W2, 2)[23]};
    double mean, deviation;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        moments(list[i], &mean, &deviation);
        const double want = 1 / sqrt(list[i]->cols);
        assert_true(fabs(mean) < 0.1 * want);
        assert_true(fabs(deviation / want - 1) < 0.05);
    }
    const struct weight *a = weights_get(w, ROLE_A_LOG, 0), *dt = weights_get(w, ROLE_DT_BIAS, 0);
    for (size_t i = 0; i < a->cols; i++)
        assert_true(fabsf(((const float *)a->data)[i] + 0.2f) <= 0.4f);
    for (size_t i = 0; i < dt->cols; i++)
        assert_true(((const float *)dt->data)[i] <= -1 && ((const float *)dt->data)[i] >= -7);
    /* no two weights may share a stream */
    assert_memory_not_equal(weights_get(w, ROLE_Q, 0)->data, weights_get(w, ROLE_Q, 1)->data, 512);
    assert_memory_not_equal(weights_get(w, ROLE_Q, 0)->data, weights_get(w, ROLE_K, 0)->data, 512);
    assert_memory_not_equal(weights_experts(w, ROLE_EXPERT_W1, 1)[0].data,
                            weights_experts(w, ROLE_EXPERT_W1, 1)[1].data, 512);
    weights_close(w);
    scratch_free(&s);
}

/* F-010: the directory holds a rank file and no tokenizer.json. */
static void F010_text_works_from_the_rank_file_alone(void **state) {
    static const uint32_t vocabs[] = {512, 2816, 70000};
    for (size_t i = 0; i < 3; i++) {
        struct scratch s = synthetic(
            (struct synth_options){.preset = "tiny", .seed = 1, .layers = 2, .vocab = vocabs[i]});
        struct stat st;
        assert_int_not_equal(stat(scratch_path(&s, "tokenizer.json"), &st), 0);
        struct tokenizer *t;
        weir_error err = {0};
        if (tokenizer_open(s.dir, vocabs[i], &t, &err))
            fail_msg("%s: %s", err.where, err.message);
        assert_int_equal(tokenizer_ranks(t), vocabs[i] - 256);
        assert_int_equal(tokenizer_special(t, "<|end_of_msg|>"), (int)vocabs[i] - 254);
        assert_int_equal(tokenizer_kind(t, (int32_t)vocabs[i] - 253), TOKEN_MARKER); /* open */
        static const char text[] = "the rate you choose: \xE5\xA4\xA9\xE6\xB0\x94 42\n";
        struct ids ids = {0};
        struct text back = {0};
        tokenizer_encode(t, text, strlen(text), &ids);
        tokenizer_decode(t, ids.data, ids.n, true, &back);
        assert_string_equal(back.data, text);
        if (vocabs[i] > 512)
            assert_true(ids.n + 5 < strlen(text));
        ids_free(&ids);
        text_free(&back);
        tokenizer_close(t);
        scratch_free(&s);
    }
}

static void kimi_linear_gets_its_own_markers_and_shapes(void **state) {
    /* true widths, but few experts and words: 2 layers are about 400 MB */
    struct scratch s = synthetic((struct synth_options){
        .preset = "kimi-linear", .seed = 1, .layers = 2, .experts = 2, .vocab = 1024});
    struct model m;
    struct weights *w = opened(s.dir, &m);
    assert_int_equal(m.family, FAMILY_KIMI_LINEAR);
    assert_int_equal(m.hidden, 2304);
    assert_int_equal(m.top_k, 2);
    assert_int_equal(m.eos[0], 770);
    assert_int_equal(weights_experts(w, ROLE_EXPERT_W1, 1)[0].dtype, DTYPE_BF16);
    struct tokenizer *t;
    weir_error err;
    assert_int_equal(tokenizer_open(s.dir, m.vocab, &t, &err), WEIR_OK);
    assert_int_equal(tokenizer_special(t, "<|im_end|>"), 770);
    assert_int_equal(tokenizer_special(t, "<|im_middle|>"), 785);
    tokenizer_close(t);
    weights_close(w);
    scratch_free(&s);
}

static void a_rank_has_its_share_of_heads_widths_and_words(void **state) {
    struct model whole, m;
    weir_error err;
    assert_int_equal(model_open(source_path("models/tiny-k3"), &whole, &err), WEIR_OK);
    struct scratch s = synthetic((struct synth_options){
        .preset = "tiny", .seed = 1, .layers = 3, .vocab = 2048, .ranks = 2});
    struct weights *w = opened(s.dir, &m);
    assert_int_equal(m.heads, whole.heads / 2);
    assert_int_equal(m.kda_heads, whole.kda_heads / 2);
    assert_int_equal(m.dense_inter, whole.dense_inter / 2);
    assert_int_equal(m.moe_inter, whole.moe_inter / 2);
    assert_int_equal(m.vocab, 1024);
    assert_int_equal(m.hidden, whole.hidden);
    assert_int_equal(m.kv_lora, whole.kv_lora);
    assert_int_equal(m.experts, whole.experts);
    assert_int_equal(weights_experts(w, ROLE_EXPERT_W2, 1)[0].cols, m.moe_inter);
    struct tokenizer *t;
    assert_int_equal(tokenizer_open(s.dir, m.vocab, &t, &err), WEIR_OK);
    tokenizer_close(t);
    weights_close(w);
    scratch_free(&s);
}

static void options_that_cannot_be_met_are_refused_by_name(void **state) {
    static const struct {
        struct synth_options o;
        weir_status code;
        const char *where, *word;
    } cases[] = {
        {{.preset = "kimi-k2"}, WEIR_UNSUPPORTED, "--preset", "kimi-k2"},
        {{.preset = "llama"}, WEIR_BAD_VALUE, "--preset", "llama"},
        {{.preset = "tiny", .ranks = 3}, WEIR_BAD_VALUE, "--tp", "does not divide num_heads, 8"},
        {{.preset = "tiny", .vocab = 1020, .ranks = 8}, WEIR_BAD_VALUE, "--tp", "vocabulary"},
        {{.preset = "tiny", .ranks = 8}, WEIR_BAD_VALUE, "--tp", "at least 512"},
        {{.preset = "tiny", .layers = 1}, WEIR_BAD_VALUE, "--layers", "2 to 256, not 1"},
        {{.preset = "tiny", .layers = 257}, WEIR_BAD_VALUE, "--layers", "not 257"},
        {{.preset = "tiny", .experts = 20000}, WEIR_BAD_VALUE, "--experts", "not 20000"},
        {{.preset = "tiny", .vocab = 511}, WEIR_BAD_VALUE, "--vocab", "not 511"},
    };
    struct scratch s = scratch_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weir_error err;
        assert_int_equal(synth(&s, cases[i].o, &err), cases[i].code);
        assert_string_equal(err.where, cases[i].where);
        assert_non_null(strstr(err.message, cases[i].word));
    }
    /* nothing was written by any of them, and nothing is ever written over */
    scratch_write(&s, "config.json", "{}", 2);
    weir_error err;
    assert_int_equal(synth(&s, (struct synth_options){.preset = "tiny"}, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "not empty"));
    scratch_free(&s);
}

struct seen {
    uint64_t last, total;
    size_t calls;
};

static void note_progress(void *arg, uint64_t done, uint64_t total) {
    struct seen *s = arg;
    assert_true(done >= s->last && done <= total);
    *s = (struct seen){done, total, s->calls + 1};
}

static void progress_ends_at_the_total(void **state) {
    struct seen seen = {0};
    struct scratch s = synthetic((struct synth_options){
        .preset = "tiny", .threads = 2, .progress = note_progress, .progress_arg = &seen});
    assert_true(seen.calls > 0 && seen.last == seen.total && seen.total > 13000000);
    scratch_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F006_a_zero_group_is_exactly_zero_with_a_valid_scale),
        cmocka_unit_test(F006_tiny_and_huge_groups_keep_the_formats_relative_error),
        cmocka_unit_test(F006_a_group_below_1e_30_stays_finite_and_right),
        cmocka_unit_test(quantising_what_was_quantised_changes_nothing),
        cmocka_unit_test(ties_go_to_the_even_code),
        cmocka_unit_test(the_files_depend_on_the_seed_alone),
        cmocka_unit_test(what_is_written_is_complete_and_loads),
        cmocka_unit_test(matrices_are_centred_with_deviation_one_over_root_of_columns),
        cmocka_unit_test(F010_text_works_from_the_rank_file_alone),
        cmocka_unit_test(kimi_linear_gets_its_own_markers_and_shapes),
        cmocka_unit_test(a_rank_has_its_share_of_heads_widths_and_words),
        cmocka_unit_test(options_that_cannot_be_met_are_refused_by_name),
        cmocka_unit_test(progress_ends_at_the_total),
    };
    return cmocka_run_group_tests_name("synth", tests, NULL, NULL);
}
