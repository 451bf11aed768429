/* test_gpu_program.c: whole models on the column for devices, with the emulator behind the driver:
 * logits beside the exact column's, and what may not show: chunks, pages, graphs. */
#include "tests/forward/rig.h"
#include "forward/device.h"
#include "tests/ops/gpu/emulated.h"

#include <jansson.h>

enum { LONGEST = 96 };

/* What is asked of structure alone is asked of a small model: the emulator takes its time. */
#define MODEL "models/micro-kimi-linear"

/* Rows of the long test: the emulator takes half a second for one of tiny-k3. */
static const uint32_t rows_of_vendor[EMULATED_VENDORS] = {RIG_SLOW ? 8 : 68, 8};

static struct runner_options options_of(struct gpu_device *d, uint32_t sequences) {
    return (struct runner_options){.column = d ? &column_gpu : &column_ref,
                                   .threads = 1,
                                   .sequences = sequences,
                                   .positions = LONGEST,
                                   .rows = LONGEST,
                                   .logits = LONGEST,
                                   .kv_dtype = d ? DTYPE_BF16 : DTYPE_F32,
                                   .device = d};
}

/* Logits of all rows of `ids`, fed in pieces of these sizes, the last one again and again. */
static float *logits_of(struct rig *g, const int32_t *ids, uint32_t n, const uint32_t *sizes) {
    float *out = test_malloc((size_t)n * g->m.vocab * sizeof(float)), *to = out;
    for (uint32_t done = 0; done < n;) {
        uint32_t now = n - done < *sizes ? n - done : *sizes;
        uint32_t rows = runner_step(g->r, &(struct runner_feed){0, ids + done, now, true}, 1);
        for (uint32_t i = 0; i < rows; i++, to += g->m.vocab)
            memcpy(to, runner_logits(g->r, i), g->m.vocab * sizeof(float));
        done += now;
        sizes += sizes[1] != 0;
    }
    weir_error err;
    if (runner_failure(g->r, &err))
        fail_msg("%s: %s", err.where, err.message);
    return out;
}

static double rms(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum / (double)n);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* How far rows are apart: the lower median, so that one of two counts, and how many rows by more
 * than 0.2. A router that turns at a near tie, as any other rounding can make it, moves a row or a
 * few by more than all roundings together; what is wrong moves most of them. What is no number is
 * infinitely far. */
struct apart {
    double median;
    uint32_t far;
};
static struct apart rows_apart(const float *a, const float *b, uint32_t rows, uint32_t vocab) {
    struct apart r = {0};
    double *each = test_malloc(rows * sizeof *each);
    for (uint32_t i = 0; i < rows; i++) {
        double e = rms(a + (size_t)i * vocab, b + (size_t)i * vocab, vocab);
        each[i] = e >= 0 ? e : INFINITY;
        r.far += !(e <= 0.2);
    }
    qsort(each, rows, sizeof *each, by_size);
    r.median = each[(rows - 1) / 2];
    test_free(each);
    return r;
}

static uint32_t best(const float *logits, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = logits[i] > logits[at] ? i : at;
    return at;
}

/* The first n ids of a golden prompt of tiny-k3. */
static void golden_ids(const char *name, int32_t *ids, uint32_t n) {
    json_t *manifest = json_load_file(source_path("vectors/tiny-k3/manifest.json"), 0, NULL);
    json_t *cases = json_object_get(manifest, "cases");
    size_t i;
    json_t *c;
    bool found = false;
    json_array_foreach(cases, i, c) {
        if (strcmp(json_string_value(json_object_get(c, "name")), name) != 0)
            continue;
        const json_t *all = json_object_get(c, "ids");
        found = json_array_size(all) >= n;
        for (uint32_t k = 0; k < n && found; k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(all, k));
    }
    assert_true(found);
    json_decref(manifest);
}

/* A prompt across the border of a page, then single tokens, which become a graph. */
static void logits_keep_the_bound_of_bf16(void **state) {
    enum { N = 68 };
    static const uint32_t whole[] = {N, 0}, pieces[] = {3, 58, 5, 1, 0}, few[] = {3, 1, 0};
    struct rig exact;
    struct runner_options o = options_of(NULL, 1);
    int32_t ids[N];
    rig_open(&exact, "models/tiny-k3", &o);
    golden_ids("chat-two-turns", ids, N);
    const uint32_t vocab = exact.m.vocab;
    float *want = logits_of(&exact, ids, N, whole);
    rig_close(&exact);
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        struct rig g;
        o = options_of(emulated_open(v), 1);
        rig_open(&g, "models/tiny-k3", &o);
        const uint32_t n = rows_of_vendor[v];
        float *got = logits_of(&g, ids, n, n == N ? pieces : few);
        double error = rms(got, want, (size_t)n * vocab);
        uint32_t same = 0;
        for (uint32_t i = 0; i < n; i++)
            same += best(got + (size_t)i * vocab, vocab) == best(want + (size_t)i * vocab, vocab);
        if (!(error <= 0.2) || same * 100 < n * 97)
            fail_msg("%s: root mean square error %.4f, the same best id in %u of %u rows",
                     emulated_vendors[v].library, error, same, n);
        test_free(got);
        rig_close(&g);
        gpu_device_close(o.device);
    }
    test_free(want);
}

/* FP8 dense weights: logits are those of the CPU with the same weights and activations, and not
 * those with the weights as stored; and the device holds so many bytes less. By products of one row
 * and of two, by small tiles and, where there is time for them, by large ones. */
static void fp8_weights_are_those_of_the_cpu(void **state) {
    enum { N = 76 };
    static const uint32_t whole[] = {N, 0}, pieces[] = {66, 5, 2, 1, 0}, few[] = {4, 1, 2, 1, 0};
    static const enum dense_form forms[] = {DENSE_FP8, DENSE_BF16};
    int32_t ids[N];
    float *want[2];
    uint32_t vocab = 0;
    golden_ids("kjv-long", ids, N);
    for (int k = 0; k < 2; k++) {
        struct rig cpu;
        struct runner_options o = options_of(NULL, 1);
        o.column = column_fast(ACTIVATION_BF16);
        o.kv_dtype = DTYPE_BF16;
        rig_open_dense(&cpu, "models/tiny-k3", &o, forms[k]);
        vocab = cpu.m.vocab;
        want[k] = logits_of(&cpu, ids, N, whole);
        rig_close(&cpu);
    }
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        struct rig g;
        uint64_t bytes[2], saved = 0;
        const uint32_t n = v == 0 && !RIG_SLOW ? N : 8;
        float *got = NULL;
        for (int k = 0; k < 2; k++) {
            struct runner_options o = options_of(emulated_open(v), 1);
            rig_open_dense(&g, "models/tiny-k3", &o, forms[k]);
            bytes[k] = program_device_counts(runner_program(g.r)).weights;
            if (k == 0) {
                got = logits_of(&g, ids, n, n == N ? pieces : few);
                saved = weights_bytes(g.w) - weights_device_bytes(g.w);
            }
            rig_close(&g);
            gpu_device_close(o.device);
        }
        const struct apart all = rows_apart(got, want[0], n, vocab);
        double error = all.median, other = rows_apart(got, want[1], n, vocab).median;
        if (!(error <= 0.06 && other > 3 * error && all.far <= (n + 9) / 10))
            fail_msg("%s: median of a row's difference %.4f, from weights as stored %.4f, %u far",
                     emulated_vendors[v].library, error, other, all.far);
        /* Each piece by other kernels; a row alone may be one whose router turned. */
        const uint32_t *size = n == N ? pieces : few;
        for (uint32_t done = 0, now; done < n; done += now, size += size[1] != 0) {
            now = n - done < *size ? n - done : *size;
            const size_t at = (size_t)done * vocab;
            double of_piece = rows_apart(got + at, want[0] + at, now, vocab).median;
            if (!(of_piece <= (now > 2 ? 0.06 : 0.2)))
                fail_msg("%s: rows %u to %u: median of a row's difference %.4f",
                         emulated_vendors[v].library, done, done + now, of_piece);
        }
        assert_int_equal(bytes[0] + saved, bytes[1]);
        assert_true(saved > bytes[1] / 4); /* routed experts, head and embedding are the most */
        test_free(got);
    }
    test_free(want[0]);
    test_free(want[1]);
}

/* Two sequences of the same ids: the token of the first goes launch by launch, that of the second,
 * whose pages and slot are others, is the graph that was made of it. */
static void a_graph_gives_the_bits_of_single_launches(void **state) {
    enum { N = 5 };
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        struct rig g;
        int32_t ids[N + 1];
        struct runner_options o = options_of(emulated_open(v), 2);
        rig_open(&g, MODEL, &o);
        rig_ids(ids, N + 1, g.m.vocab, 5);
        float *first = test_malloc(g.m.vocab * sizeof(float));
        for (uint32_t s = 0; s < 2; s++)
            runner_prefill(g.r, s, ids, N, N);
        for (uint32_t s = 0; s < 2; s++) {
            runner_step(g.r, &(struct runner_feed){s, ids + N, 1, false}, 1);
            if (s == 0)
                memcpy(first, runner_logits(g.r, 0), g.m.vocab * sizeof(float));
        }
        weir_error err;
        if (runner_failure(g.r, &err))
            fail_msg("%s: %s", err.where, err.message);
        assert_memory_equal(first, runner_logits(g.r, 0), g.m.vocab * sizeof(float));
        struct device_counts counts = program_device_counts(runner_program(g.r));
        assert_int_equal(counts.graphs, 1);
        assert_int_equal(counts.graph_launches, 1);
        test_free(first);
        rig_close(&g);
        gpu_device_close(o.device);
    }
}

/* One batch of sequences that decode and of prompts, beside each of them alone. */
static void sequences_of_a_batch_do_not_touch_each_other(void **state) {
    enum { N = 4, SEQUENCES = 3 };
    struct rig g;
    int32_t ids[SEQUENCES][N + 1];
    struct runner_options o = options_of(emulated_open(0), 2 * SEQUENCES);
    rig_open(&g, MODEL, &o);
    const uint32_t vocab = g.m.vocab;
    float *alone[SEQUENCES];
    struct runner_feed together[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        rig_ids(ids[s], N + 1, vocab, 7 + s);
        /* The last of them is a prompt, the others decode. */
        uint32_t n = s + 1 < SEQUENCES ? 1 : N + 1;
        for (uint32_t k = 0; k < 2; k++)
            if (n == 1)
                runner_prefill(g.r, s + k * SEQUENCES, ids[s], N, N);
        together[s] = (struct runner_feed){s + SEQUENCES, ids[s] + (n == 1 ? N : 0), n, false};
        struct runner_feed one = together[s];
        one.sequence = s;
        runner_step(g.r, &one, 1);
        alone[s] = test_malloc(vocab * sizeof(float));
        memcpy(alone[s], runner_logits(g.r, 0), vocab * sizeof(float));
    }
    assert_int_equal(runner_step(g.r, together, SEQUENCES), SEQUENCES);
    weir_error err;
    if (runner_failure(g.r, &err))
        fail_msg("%s: %s", err.where, err.message);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        double error = rms(runner_logits(g.r, s), alone[s], vocab);
        if (!(error <= 0.1))
            fail_msg("sequence %u: root mean square difference %.4f from itself alone", s, error);
        test_free(alone[s]);
    }
    rig_close(&g);
    gpu_device_close(o.device);
}

/* A device has room for the expanded history of as many positions as a step has rows: two steps of
 * 64 rows, the second of which needs two pieces, beside one step of all. */
static void a_history_longer_than_the_room_is_expanded_in_pieces(void **state) {
    enum { N = 128, HALF = 64 };
    static const uint32_t whole[] = {N, 0}, halves[] = {HALF, 0};
    for (int v = 0; v < (RIG_SLOW ? 1 : EMULATED_VENDORS); v++) {
        float *logits[2];
        int32_t ids[N];
        uint32_t vocab = 0;
        for (int k = 0; k < 2; k++) {
            struct rig g;
            struct runner_options o = options_of(emulated_open(v), 1);
            o.positions = N;
            o.rows = o.logits = k ? HALF : N;
            rig_open(&g, MODEL, &o);
            vocab = g.m.vocab;
            rig_ids(ids, N, vocab, 11);
            logits[k] = logits_of(&g, ids, N, k ? halves : whole);
            rig_close(&g);
            gpu_device_close(o.device);
        }
        const size_t first = (size_t)HALF * vocab; /* those before have no history */
        const struct apart r = rows_apart(logits[0] + first, logits[1] + first, N - HALF, vocab);
        if (!(r.median <= 0.1 && r.far <= HALF / 8))
            fail_msg("%s: median of a row's difference %.4f, %u of %u far",
                     emulated_vendors[v].library, r.median, r.far, N - HALF);
        test_free(logits[0]);
        test_free(logits[1]);
    }
}

/* Rules of a row, and whether its logits must come here for them. */
static const struct {
    float temperature, top_p, min_p, repetition;
    int32_t top_k, n_top;
    uint32_t min_tokens;
    bool bias, brought;
} rules_of_row[] = {
    {.temperature = 0, .top_p = 1, .n_top = -1},
    {.temperature = 1, .top_p = 1, .n_top = -1},
    {.temperature = 0.7f, .top_p = 1, .top_k = 5, .n_top = -1},
    {.temperature = 1, .top_p = 0.9f, .n_top = -1},
    {.temperature = 2, .top_p = 1, .min_p = 0.1f, .n_top = -1},
    {.temperature = 1, .top_p = 1, .n_top = 2, .brought = true},
    {.temperature = 1, .top_p = 1, .bias = true, .n_top = -1, .brought = true},
    {.temperature = 0, .top_p = 1, .repetition = 1.5f, .n_top = -1, .brought = true},
    {.temperature = 0, .top_p = 1, .min_tokens = 1, .n_top = -1, .brought = true},
    {.temperature = 1, .top_p = 0.5f, .top_k = 200, .n_top = -1}, /* more than there are */
};
enum { RULES = sizeof rules_of_row / sizeof *rules_of_row };

/* As a request of its own: a token in its answer is the one before the row's. */
static void draw_by_rules(struct sample_state *s, uint32_t i, int32_t *output, uint8_t *seen) {
    static const weir_bias bias = {3, 100};
    static const int32_t end = 7;
    *s = (struct sample_state){
        .rules = {.temperature = rules_of_row[i].temperature,
                  .top_p = rules_of_row[i].top_p,
                  .min_p = rules_of_row[i].min_p,
                  .top_k = rules_of_row[i].top_k,
                  .repetition_penalty =
                      rules_of_row[i].repetition > 0 ? rules_of_row[i].repetition : 1,
                  .seed = 11,
                  .stream = i,
                  .min_tokens = rules_of_row[i].min_tokens,
                  .end_ids = &end,
                  .n_end_ids = 1,
                  .bias = &bias,
                  .n_bias = rules_of_row[i].bias},
        .output = output,
        .seen = rules_of_row[i].repetition > 0 ? seen : NULL,
    };
}

/* Tokens of the device are those that the sampler draws of its logits; rows by rules that it does
 * not know come here, and no others. */
static void tokens_are_those_of_the_sampler(void **state) {
    static const int32_t pages[] = {0, 1};
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        struct rig g;
        struct runner_options o = options_of(emulated_open(v), 1);
        rig_open(&g, MODEL, &o);
        const uint32_t vocab = g.m.vocab;
        struct step_program *p = runner_program(g.r);
        struct team *team = team_open(1);
        int32_t ids[RULES], output[2][RULES];
        rig_ids(ids, RULES, vocab, 3);
        const struct batch_seq seq = {.rows = RULES, .pages = pages, .from = -1};
        struct batch_logits want[RULES];
        const struct batch b = {RULES, ids, 1, 0, &seq, RULES, want};
        for (uint32_t i = 0; i < RULES; i++)
            want[i] = (struct batch_logits){.row = i, .target = ids[i], .n_top = -1};
        program_run(p, team, &b);
        float *logits = test_malloc(RULES * vocab * sizeof *logits);
        for (uint32_t i = 0; i < RULES; i++)
            memcpy(logits + i * vocab, program_logits(p, i), vocab * sizeof *logits);
        struct device_counts counts = program_device_counts(p);
        assert_int_equal(counts.brought, RULES);
        assert_int_equal(counts.drawn, 0);

        struct sample_state there[RULES], here;
        uint8_t *seen = test_calloc(3, vocab);
        uint32_t brought = 0;
        for (uint32_t i = 0; i < RULES; i++) {
            draw_by_rules(&there[i], i, &output[0][i], seen + vocab);
            want[i] =
                (struct batch_logits){.row = i, .state = &there[i], .n_top = rules_of_row[i].n_top};
            brought += rules_of_row[i].brought;
        }
        program_run(p, team, &b);
        weir_error err;
        if (program_failure(p, &err))
            fail_msg("%s: %s", err.where, err.message);
        counts = program_device_counts(p);
        assert_int_equal(counts.brought, RULES + brought);
        assert_int_equal(counts.drawn, RULES - brought);
        void *scratch = aligned_alloc(64, (sample_scratch_bytes(vocab) + 63) / 64 * 64);
        for (uint32_t i = 0; i < RULES; i++) {
            struct sample_result r;
            draw_by_rules(&here, i, &output[1][i], seen);
            sample_draw(&here, logits + i * vocab, vocab, rules_of_row[i].n_top, scratch, &r);
            const struct sample_result *got = &program_results(p)[i];
            if (got->status != WEIR_OK || got->token.id != r.token.id ||
                output[0][i] != r.token.id || there[i].n_output != 1 || there[i].n_steps != 1)
                fail_msg("%s: rules %u: token %d, not %d", emulated_vendors[v].library, i,
                         got->token.id, r.token.id);
        }
        free(scratch);
        test_free(seen);
        test_free(logits);
        team_close(team);
        rig_close(&g);
        gpu_device_close(o.device);
    }
}

static void what_a_device_cannot_do_is_said_when_it_is_opened(void **state) {
    struct gpu_device *d;
    weir_error err;
    assert_int_equal(modules_open(GPU_CUDA, "/nowhere/libcuda.so", emulated_modules, &d, &err),
                     WEIR_UNSUPPORTED);
    assert_string_equal(err.where, "/nowhere/libcuda.so");
    assert_null(d);
    assert_int_equal(modules_open(GPU_CUDA, emulated_file(0), "/nowhere", &d, &err),
                     WEIR_UNSUPPORTED);
    assert_string_equal(err.where, "/nowhere");
    assert_non_null(strstr(err.message, "*.cubin"));

    /* Latents of 16 with 4 more dimensions: not pieces of 16 bytes. */
    struct rig g;
    char dir[4096];
    struct runner_options o = options_of(emulated_open(0), 1);
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-k3-odd"));
    assert_int_equal(model_open(dir, &g.m, &err), WEIR_OK);
    assert_int_equal(weights_open(dir, &g.m, &g.w, &err), WEIR_OK);
    assert_int_equal(runner_open(&g.m, g.w, &o, &g.r, &err), WEIR_UNSUPPORTED);
    assert_string_equal(err.where, "mla_write");
    assert_non_null(strstr(err.message, "latent 16 of 20 bf16"));
    weights_close(g.w);
    gpu_device_close(o.device);

    /* The CPU makes FP8 of experts that are BF16. */
    o = options_of(emulated_open(0), 1);
    snprintf(dir, sizeof dir, "%s", source_path(MODEL));
    assert_int_equal(model_open(dir, &g.m, &err), WEIR_OK);
    assert_int_equal(weights_open(dir, &g.m, &g.w, &err), WEIR_OK);
    assert_int_equal(weights_pack(g.w, &column_gpu, DENSE_FP8, 0, 1, &err), WEIR_OK);
    assert_int_equal(runner_open(&g.m, g.w, &o, &g.r, &err), WEIR_UNSUPPORTED);
    assert_string_equal(err.where, "dense_dtype");
    assert_non_null(strstr(err.message, "no kernel of a device takes those as fp8"));
    weights_close(g.w);
    gpu_device_close(o.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_keep_the_bound_of_bf16),
        cmocka_unit_test(fp8_weights_are_those_of_the_cpu),
        cmocka_unit_test(a_graph_gives_the_bits_of_single_launches),
        cmocka_unit_test(tokens_are_those_of_the_sampler),
        cmocka_unit_test(sequences_of_a_batch_do_not_touch_each_other),
        cmocka_unit_test(a_history_longer_than_the_room_is_expanded_in_pieces),
        cmocka_unit_test(what_a_device_cannot_do_is_said_when_it_is_opened),
    };
    cmocka_set_test_filter(getenv("FILTER"));
    return cmocka_run_group_tests(tests, emulated_begin, emulated_end);
}
