/* The exact column: every way to the same state gives the same bits. */
#include "rig.h"

static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear",
                                     "models/tiny-k3"};
enum { MODELS = 3, LONGEST = 160 };

/* Everything that must not depend on the way: last logits, states, windows. */
struct outcome {
    float *logits, *state;
    size_t n_state;
};

static struct outcome outcome_of(struct rig *g, uint32_t sequence, const float *logits) {
    struct outcome o;
    size_t layer = program_state_layer_floats(&g->m);
    o.n_state = layer * model_kda_layers(&g->m);
    o.logits = malloc(g->m.vocab * sizeof(float));
    o.state = malloc(o.n_state * sizeof(float));
    memcpy(o.logits, logits, g->m.vocab * sizeof(float));
    memcpy(o.state, runner_state(g->r, sequence, 0), o.n_state * sizeof(float));
    return o;
}

static void outcome_free(struct outcome *o) {
    free(o->logits);
    free(o->state);
}

static void assert_same(const struct rig *g, const struct outcome *a, const struct outcome *b,
                        const char *what, uint32_t n) {
    if (memcmp(a->logits, b->logits, g->m.vocab * sizeof(float)) != 0)
        fail_msg("%s: logits differ at prompt length %u", what, n);
    if (memcmp(a->state, b->state, a->n_state * sizeof(float)) != 0)
        fail_msg("%s: KDA states differ at prompt length %u", what, n);
}

static struct runner_options exact(uint32_t threads, uint32_t sequences, uint32_t rows) {
    return (struct runner_options){.column = &column_ref,
                                   .threads = threads,
                                   .sequences = sequences,
                                   .positions = LONGEST,
                                   .rows = rows,
                                   .logits = 16,
                                   .kv_dtype = DTYPE_F32};
}

/* A row of FP8 history is the same whichever step wrote it, so that bits stay with it too. */
static void chunks_of_a_prompt_do_not_show_with_fp8_history(void **state) {
    struct rig g;
    struct runner_options o = exact(2, 1, LONGEST);
    o.kv_dtype = DTYPE_FP8;
    rig_open(&g, models[0], &o);
    int32_t ids[LONGEST];
    rig_ids(ids, LONGEST - 1, g.m.vocab, 8);
    struct outcome whole = outcome_of(&g, 0, runner_prefill(g.r, 0, ids, LONGEST - 1, LONGEST));
    static const uint32_t chunks[] = {1, 7, 64};
    for (size_t c = 0; c < 3; c++) {
        runner_reset(g.r, 0);
        struct outcome cut = outcome_of(&g, 0, runner_prefill(g.r, 0, ids, LONGEST - 1, chunks[c]));
        assert_same(&g, &whole, &cut, models[0], LONGEST - 1);
        outcome_free(&cut);
    }
    outcome_free(&whole);
    rig_close(&g);
}

static const uint32_t lengths[] = {1, 2, 3, 63, 64, 65, 127, 128, 129};

static void whole_prompt_equals_chunks_equals_token_by_token(void **state) {
    for (int k = 0; k < MODELS; k++) {
        struct rig g;
        struct runner_options o = exact(1, 1, LONGEST);
        rig_open(&g, models[k], &o);
        /* The largest model takes every fourth length: 1, 64, 129; with RIG_SLOW 65 alone. */
        size_t first = RIG_SLOW ? 5 : 0, stride = k == 2 || RIG_SLOW ? 4 : 1;
        for (size_t i = first; i < sizeof lengths / sizeof *lengths; i += stride) {
            uint32_t n = lengths[i];
            int32_t ids[LONGEST];
            rig_ids(ids, n, g.m.vocab, n);
            struct outcome whole = outcome_of(&g, 0, runner_prefill(g.r, 0, ids, n, LONGEST));
            uint32_t chunks[] = {1, 7, 64, 100};
            for (size_t c = RIG_SLOW ? 1 : 0; c < (RIG_SLOW ? 2 : 4); c++) {
                runner_reset(g.r, 0);
                struct outcome cut = outcome_of(&g, 0, runner_prefill(g.r, 0, ids, n, chunks[c]));
                assert_same(&g, &whole, &cut, models[k], n);
                outcome_free(&cut);
            }
            outcome_free(&whole);
            runner_reset(g.r, 0);
        }
        rig_close(&g);
    }
}

static void one_thread_equals_several(void **state) {
    for (int k = 0; k < MODELS; k++) {
        int32_t ids[LONGEST];
        struct outcome first = {0};
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct rig g;
            struct runner_options o = exact(threads, 1, LONGEST);
            rig_open(&g, models[k], &o);
            rig_ids(ids, 70, g.m.vocab, 5);
            struct outcome now = outcome_of(&g, 0, runner_prefill(g.r, 0, ids, 70, 33));
            if (threads == 1) {
                first = now;
            } else {
                assert_same(&g, &first, &now, models[k], threads);
                outcome_free(&now);
            }
            rig_close(&g);
        }
        outcome_free(&first);
    }
}

/* Sixteen prompts of different lengths, prefilled and decoded together and each alone. */
static void a_batch_of_sixteen_equals_each_alone(void **state) {
    enum { N = 16, STEPS = 4 };
    for (int k = 0; k < MODELS; k++) {
        struct rig g;
        struct runner_options o = exact(2, N, 640);
        rig_open(&g, models[k], &o);
        int32_t ids[N][LONGEST];
        uint32_t length[N];
        struct outcome alone[N];
        for (uint32_t i = 0; i < N; i++) {
            length[i] = 1 + i * 5;
            rig_ids(ids[i], length[i] + STEPS, g.m.vocab, i + 100);
            const float *logits = runner_prefill(g.r, i, ids[i], length[i], LONGEST);
            for (uint32_t t = 0; t < STEPS; t++)
                logits = runner_prefill(g.r, i, ids[i] + length[i] + t, 1, 1);
            alone[i] = outcome_of(&g, i, logits);
            runner_reset(g.r, i);
        }
        struct runner_feed feeds[N];
        for (uint32_t i = 0; i < N; i++)
            feeds[i] = (struct runner_feed){i, ids[i], length[i], false};
        runner_step(g.r, feeds, N);
        for (uint32_t t = 0; t < STEPS; t++) {
            for (uint32_t i = 0; i < N; i++)
                feeds[i] = (struct runner_feed){i, ids[i] + length[i] + t, 1, false};
            assert_int_equal(runner_step(g.r, feeds, N), N);
        }
        for (uint32_t i = 0; i < N; i++) {
            struct outcome together = outcome_of(&g, i, runner_logits(g.r, i));
            assert_same(&g, &alone[i], &together, models[k], length[i]);
            outcome_free(&together);
            outcome_free(&alone[i]);
        }
        rig_close(&g);
    }
}

/* F-048: a slot that held a long sequence starts a one-token prompt from nothing. */
static void F048_a_one_token_prompt_in_a_used_slot_equals_a_fresh_start(void **state) {
    struct rig g;
    struct runner_options o = exact(1, 2, LONGEST);
    rig_open(&g, "models/tiny-k3", &o);
    int32_t ids[LONGEST], one[1] = {447};
    rig_ids(ids, 150, g.m.vocab, 9);
    runner_prefill(g.r, 0, ids, 150, LONGEST);
    runner_reset(g.r, 0);
    struct outcome used = outcome_of(&g, 0, runner_prefill(g.r, 0, one, 1, 1));
    struct outcome fresh = outcome_of(&g, 1, runner_prefill(g.r, 1, one, 1, 1));
    assert_same(&g, &fresh, &used, "tiny-k3", 1);
    outcome_free(&used);
    outcome_free(&fresh);
    rig_close(&g);
}

/* The two forms of attention agree; the exact column runs the absorbed one only. */
static void expanded_attention_equals_absorbed(void **state) {
    for (int k = 0; k < MODELS; k++) {
        struct column expanded = column_ref;
        expanded.mla_decode = column_ref.mla_prefill;
        struct runner_options o = exact(1, 1, LONGEST);
        struct rig a, b;
        rig_open(&a, models[k], &o);
        o.column = &expanded;
        rig_open(&b, models[k], &o);
        int32_t ids[LONGEST];
        rig_ids(ids, 130, a.m.vocab, 3);
        const float *x = runner_prefill(a.r, 0, ids, 130, 50);
        const float *y = runner_prefill(b.r, 0, ids, 130, 50);
        double most = 0;
        for (uint32_t i = 0; i < a.m.vocab; i++)
            most = x[i] == x[i] && y[i] == y[i] ? fmax(most, fabs((double)x[i] - y[i])) : INFINITY;
        assert_true(most < 2e-4);
        assert_true(most > 0); /* else both ran the same form */
        rig_close(&a);
        rig_close(&b);
    }
}

/* A checkpoint taken inside a prefill is the state a run to that position would have. */
static void a_checkpoint_equals_the_state_of_a_run_that_stops_there(void **state) {
    struct rig g;
    struct runner_options o = exact(2, 3, LONGEST);
    rig_open(&g, "models/micro-k3-odd", &o);
    int32_t ids[LONGEST];
    rig_ids(ids, 150, g.m.vocab, 21);
    runner_prefill(g.r, 0, ids, 128, LONGEST); /* the wanted state, in slot 0 */
    int32_t pages[3] = {3, 4, 5};
    struct batch_checkpoint point = {128, 2};
    struct batch_seq seq = {.rows = 150,
                            .pages = pages,
                            .slot = 1,
                            .from = -1,
                            .n_checkpoints = 1,
                            .checkpoints = &point};
    struct batch_logits want = {.row = 149, .n_top = -1};
    struct batch b = {
        .n_rows = 150, .ids = ids, .n_seqs = 1, .seqs = &seq, .n_logits = 1, .logits = &want};
    struct team *team = team_open(2);
    program_run(runner_program(g.r), team, &b);
    team_close(team);
    size_t bytes = program_state_slot_floats(&g.m) * sizeof(float);
    assert_memory_equal(runner_state(g.r, 0, 0), runner_state(g.r, 2, 0), bytes);
    assert_true(memcmp(runner_state(g.r, 0, 0), runner_state(g.r, 1, 0), bytes) != 0);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_a_prompt_do_not_show_with_fp8_history),
        cmocka_unit_test(whole_prompt_equals_chunks_equals_token_by_token),
        cmocka_unit_test(one_thread_equals_several),
        cmocka_unit_test(a_batch_of_sixteen_equals_each_alone),
        cmocka_unit_test(F048_a_one_token_prompt_in_a_used_slot_equals_a_fresh_start),
        cmocka_unit_test(expanded_attention_equals_absorbed),
        cmocka_unit_test(a_checkpoint_equals_the_state_of_a_run_that_stops_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
