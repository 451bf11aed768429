/* Whole models on the fast columns: logits beside the exact column's, and the promises that hold
 * bit for bit within a fast column: threads and batch do not show. */
#include "rig.h"

#include "ops/cpu/cpu.h"

static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear",
                                     "models/tiny-k3"};
enum { MODELS = 3, LONGEST = 200 };

static struct runner_options options(const struct column *column, uint32_t threads,
                                     uint32_t sequences, uint32_t rows, enum dtype kv) {
    return (struct runner_options){.column = column,
                                   .threads = threads,
                                   .sequences = sequences,
                                   .positions = LONGEST,
                                   .rows = rows,
                                   .logits = rows,
                                   .kv_dtype = kv};
}

static void open_rig(struct rig *g, const char *name, const struct column *column, uint32_t threads,
                     uint32_t sequences, uint32_t rows, enum dtype kv) {
    struct runner_options o = options(column, threads, sequences, rows, kv);
    rig_open(g, name, &o);
}

/* Logits of all n rows, given in steps of `chunk`. */
static float *all_logits(struct rig *g, const int32_t *ids, uint32_t n, uint32_t chunk) {
    float *out = malloc((size_t)n * g->m.vocab * sizeof(float)), *to = out;
    runner_reset(g->r, 0);
    for (uint32_t done = 0; done < n;) {
        uint32_t now = n - done < chunk ? n - done : chunk;
        uint32_t rows = runner_step(g->r, &(struct runner_feed){0, ids + done, now, true}, 1);
        for (uint32_t i = 0; i < rows; i++, to += g->m.vocab)
            memcpy(to, runner_logits(g->r, i), g->m.vocab * sizeof(float));
        done += now;
    }
    return out;
}

static double rms_difference(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum / (double)n);
}

/* f32 throughout, so far below the bf16 bound of 0.2: what remains is the order of sums. */
static void logits_of_every_fast_column_are_close_to_exact(void **state) {
    static const uint32_t chunks[] = {LONGEST, 1, 37, 64};
    for (int k = 0; k < MODELS; k++) {
        struct rig g;
        int32_t ids[LONGEST];
        open_rig(&g, models[k], &column_ref, 1, 1, LONGEST, DTYPE_F32);
        rig_ids(ids, LONGEST, g.m.vocab, 3);
        float *want = all_logits(&g, ids, LONGEST, LONGEST);
        size_t n = (size_t)LONGEST * g.m.vocab;
        rig_close(&g);
        for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++) {
            if (!column_cpu(l, ACTIVATION_F32))
                continue;
            open_rig(&g, models[k], column_cpu(l, ACTIVATION_F32), 2, 1, LONGEST, DTYPE_F32);
            for (int c = RIG_SLOW ? 3 : 0; c < 4; c++) {
                float *got = all_logits(&g, ids, LONGEST, chunks[c]);
                double e = rms_difference(got, want, n);
                if (!(e < 1e-4))
                    fail_msg("%s, %s, chunks of %u: logits off by %g", models[k], cpu_level_name(l),
                             chunks[c], e);
                free(got);
            }
            rig_close(&g);
        }
        free(want);
    }
}

/* Eight sequences prefilled and decoded together against each alone with other threads: the same
 * bits. */
static void a_batch_of_eight_equals_each_alone(void **state) {
    enum { N = 8, STEPS = 5 };
    for (int k = 0; k < MODELS; k++)
        for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++) {
            if (!column_cpu(l, ACTIVATION_F32))
                continue;
            struct rig together, alone;
            open_rig(&together, models[k], column_cpu(l, ACTIVATION_F32), 3, N, 640, DTYPE_BF16);
            open_rig(&alone, models[k], column_cpu(l, ACTIVATION_F32), 1, 1, LONGEST, DTYPE_BF16);
            uint32_t vocab = together.m.vocab;
            static const uint32_t length[N] = {1, 2, 15, 16, 63, 64, 65, 129};
            int32_t ids[N][LONGEST];
            struct runner_feed feeds[N];
            float *want = malloc((size_t)N * STEPS * vocab * sizeof(float));
            for (uint32_t i = 0; i < N; i++) {
                rig_ids(ids[i], length[i] + STEPS, vocab, i);
                runner_reset(alone.r, 0);
                runner_prefill(alone.r, 0, ids[i], length[i], LONGEST);
                for (uint32_t t = 0; t < STEPS; t++) {
                    memcpy(want + (i * STEPS + t) * (size_t)vocab, runner_logits(alone.r, 0),
                           vocab * sizeof(float));
                    runner_step(alone.r, &(struct runner_feed){0, ids[i] + length[i] + t, 1, false},
                                1);
                }
                feeds[i] = (struct runner_feed){i, ids[i], length[i], false};
            }
            for (uint32_t t = 0; t < STEPS; t++) {
                runner_step(together.r, feeds, N); /* single rows first, so the order stays */
                for (uint32_t i = 0; i < N; i++) {
                    if (memcmp(want + (i * STEPS + t) * (size_t)vocab, runner_logits(together.r, i),
                               vocab * sizeof(float)) != 0)
                        fail_msg("%s, %s: prompt of %u tokens, step %u differs", models[k],
                                 cpu_level_name(l), length[i], t);
                    feeds[i] = (struct runner_feed){i, ids[i] + length[i] + t, 1, false};
                }
            }
            free(want);
            rig_close(&together);
            rig_close(&alone);
        }
}

/* F-066: the KDA states and windows after a prefill in chunks of any size are those of token by
 * token, within 1e-3 of their size, and so are the logits that follow. */
static void F066_states_after_chunked_prefill_equal_token_by_token(void **state) {
    static const uint32_t chunks[] = {LONGEST - 1, 64, 50};
    for (int k = 0; k < MODELS; k++)
        for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++) {
            if (!column_cpu(l, ACTIVATION_F32))
                continue;
            struct rig g;
            int32_t ids[LONGEST];
            open_rig(&g, models[k], column_cpu(l, ACTIVATION_F32), 2, 2, LONGEST, DTYPE_F32);
            rig_ids(ids, LONGEST, g.m.vocab, 77);
            runner_prefill(g.r, 1, ids, LONGEST - 1, 1);
            size_t n = program_state_slot_floats(&g.m);
            double size = 0;
            for (size_t i = 0; i < n; i++)
                size = fmax(size, fabs((double)runner_state(g.r, 1, 0)[i]));
            for (int c = RIG_SLOW ? 2 : 0; c < 3; c++) {
                runner_reset(g.r, 0);
                runner_prefill(g.r, 0, ids, LONGEST - 1, chunks[c]);
                for (size_t i = 0; i < n; i++) {
                    double e =
                        fabs((double)runner_state(g.r, 0, 0)[i] - runner_state(g.r, 1, 0)[i]);
                    if (!(e <= 1e-3 * size))
                        fail_msg("%s, %s, chunks of %u: state value %zu off by %g", models[k],
                                 cpu_level_name(l), chunks[c], i, e);
                }
            }
            rig_close(&g);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_fast_column_are_close_to_exact),
        cmocka_unit_test(a_batch_of_eight_equals_each_alone),
        cmocka_unit_test(F066_states_after_chunked_prefill_equal_token_by_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
