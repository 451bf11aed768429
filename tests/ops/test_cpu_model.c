/* Whole models on the fast columns: logits beside the exact column's, and the promises that hold
 * bit for bit within a fast column: threads and batch do not show. */
#include "tests/test.h"

#include "forward/runner.h"
#include "ops/cpu/cpu.h"

#include <math.h>

static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear",
                                     "models/tiny-k3"};
enum { MODELS = 3, LONGEST = 200 };

struct rig {
    struct model m;
    struct weights *w;
    struct runner *r;
};

static void rig_open(struct rig *g, const char *name, const struct column *column, uint32_t threads,
                     uint32_t sequences, uint32_t rows, enum dtype kv) {
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(name));
    struct runner_options o = {.column = column,
                               .threads = threads,
                               .sequences = sequences,
                               .positions = LONGEST,
                               .rows = rows,
                               .logits = rows,
                               .kv_dtype = kv};
    if (model_open(dir, &g->m, &err) || weights_open(dir, &g->m, &g->w, &err) ||
        runner_open(&g->m, g->w, &o, &g->r, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static void rig_close(struct rig *g) {
    runner_close(g->r);
    weights_close(g->w);
}

static void fill_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed * 7919u + i * 104729u + i * i * 31u) % vocab);
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
        rig_open(&g, models[k], &column_ref, 1, 1, LONGEST, DTYPE_F32);
        fill_ids(ids, LONGEST, g.m.vocab, 3);
        float *want = all_logits(&g, ids, LONGEST, LONGEST);
        size_t n = (size_t)LONGEST * g.m.vocab;
        rig_close(&g);
        for (enum cpu_level l = CPU_PORTABLE; l <= CPU_AVX512; l++) {
            if (!column_cpu(l))
                continue;
            rig_open(&g, models[k], column_cpu(l), 2, 1, LONGEST, DTYPE_F32);
            for (int c = 0; c < 4; c++) {
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
        for (enum cpu_level l = CPU_PORTABLE; l <= CPU_AVX512; l++) {
            if (!column_cpu(l))
                continue;
            struct rig together, alone;
            rig_open(&together, models[k], column_cpu(l), 3, N, 640, DTYPE_BF16);
            rig_open(&alone, models[k], column_cpu(l), 1, 1, LONGEST, DTYPE_BF16);
            uint32_t vocab = together.m.vocab;
            static const uint32_t length[N] = {1, 2, 15, 16, 63, 64, 65, 129};
            int32_t ids[N][LONGEST];
            struct runner_feed feeds[N];
            float *want = malloc((size_t)N * STEPS * vocab * sizeof(float));
            for (uint32_t i = 0; i < N; i++) {
                fill_ids(ids[i], length[i] + STEPS, vocab, i);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_fast_column_are_close_to_exact),
        cmocka_unit_test(a_batch_of_eight_equals_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
