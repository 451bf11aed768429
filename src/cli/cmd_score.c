/* cmd_score.c: `weir score`: finds the golden cases that belong to a model, runs them, prints every
 * comparison beside its bound. */
#include "base/cpu.h"
#include "base/plural.h"
#include "cli/command.h"
#include "cli/engine_args.h"
#include "cli/progress.h"
#include "cli/score.h"
#include "load/modules.h"

#include <dirent.h>
#include <math.h>
#include <string.h>

struct score_args {
    struct engine_args engine;
    char *vectors, *only;
    bool json;
};

#define AT(field) offsetof(struct score_args, field)

static const struct option_spec score_options[] = {
    {.name = "vectors",
     .value = "DIR",
     .type = OPTION_TEXT,
     .offset = AT(vectors),
     .required = true,
     .help = "A directory of golden numbers with a manifest.json, or one that holds several such "
             "directories: those made for this model's weights are run."},
    {.name = "case",
     .value = "NAME",
     .type = OPTION_TEXT,
     .offset = AT(only),
     .help = "Run this case only."},
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object."},
};

/* Everything a run accumulates. */
struct total {
    json_t *cases;
    size_t directories;          /* that were made for these weights */
    size_t n, failed, off_track; /* off_track: greedy continuations outside the gap rule */
    double nll, reference_nll;
    size_t nll_positions;
    bool json;
};

static void print_case(const struct score_case *c) {
    printf("%s (%zu %s, then %zu)\n", c->name, c->n_prompt, plural(c->n_prompt, "token", "tokens"),
           c->n_greedy);
    for (size_t i = 0; i < c->n_checks; i++)
        printf("  %-44s %10.3g  of %-10.3g %s\n", c->check[i].what, c->check[i].error,
               c->check[i].bound, c->check[i].ok ? "ok" : "BEYOND");
}

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *case_json(const struct score_case *c) {
    json_t *checks = json_array();
    for (size_t i = 0; i < c->n_checks; i++)
        json_array_append_new(checks, json_pack("{s:s, s:o, s:o, s:b}", "what", c->check[i].what,
                                                "error", number(c->check[i].error), "bound",
                                                number(c->check[i].bound), "ok", c->check[i].ok));
    return json_pack("{s:s, s:I, s:I, s:o, s:b, s:b}", "name", c->name, "prompt_tokens",
                     (json_int_t)c->n_prompt, "greedy_tokens", (json_int_t)c->n_greedy, "checks",
                     checks, "greedy_as_it_must_be", c->keeps_gap_rule, "ok", c->ok);
}

static weir_status run_directory(const struct score_settings *s, const struct vectors *v,
                                 const char *only, struct total *t, weir_error *err) {
    size_t n = vectors_cases(v);
    struct progress p;
    progress_begin(&p, "scoring", n);
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *json = vectors_case(v, i);
        struct score_case c;
        progress_to(&p, i);
        if (only && strcmp(only, vectors_case_name(json)))
            continue;
        status = score_run(s, v, json, &c, err);
        if (status)
            break;
        t->n++;
        t->failed += !c.ok;
        t->off_track += !c.keeps_gap_rule;
        t->nll += c.nll;
        t->reference_nll += c.reference_nll;
        t->nll_positions += c.nll_positions;
        if (t->json) {
            json_array_append_new(t->cases, case_json(&c));
        } else {
            progress_end(&p);
            print_case(&c);
            if (s->fast && !c.keeps_gap_rule)
                puts("  leaves the exact continuation before a close call");
            progress_begin(&p, "scoring", n);
        }
        score_free(&c);
    }
    progress_end(&p);
    return status;
}

static bool has_manifest(const char *dir) {
    char *path = file_join(dir, "manifest.json");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (f)
        fclose(f);
    free(path);
    return f != NULL;
}

/* Runs one directory if it was made for the model; *why keeps the last reason why not. */
static weir_status consider(const struct score_settings *s, const struct score_args *a,
                            const char *dir, char *why, struct total *t, weir_error *err) {
    struct vectors v;
    weir_status status = vectors_open(dir, &v, err);
    if (status)
        return status;
    if (vectors_belong(&v, a->engine.model, why)) {
        t->directories++;
        status = run_directory(s, &v, a->only, t, err);
    }
    vectors_close(&v);
    return status;
}

static weir_status run_all(const struct score_settings *s, const struct score_args *a, char *why,
                           struct total *t, weir_error *err) {
    if (has_manifest(a->vectors))
        return consider(s, a, a->vectors, why, t, err);
    struct dirent **entry;
    int n = scandir(a->vectors, &entry, NULL, alphasort);
    if (n < 0)
        return weir_fail(err, WEIR_BAD_FILE, a->vectors, "cannot be read: %m");
    weir_status status = WEIR_OK;
    for (int i = 0; i < n; i++) {
        char *dir = entry[i]->d_name[0] == '.' ? NULL : file_join(a->vectors, entry[i]->d_name);
        if (dir && !status && has_manifest(dir))
            status = consider(s, a, dir, why, t, err);
        free(dir);
        free(entry[i]);
    }
    free(entry);
    return status;
}

/* On the fast column one continuation in ten may leave the exact one early: a flipped expert can
 * move one position further than the error of the logits says. */
static bool print_total(const struct total *t, const struct score_args *a, bool fast) {
    size_t may_stray = fast ? t->n / 10 : 0;
    double drift =
        t->nll_positions ? fabs(t->nll / t->reference_nll - 1) : 0; /* share of the exact NLL */
    bool judge_drift = fast && t->nll_positions >= 256;
    bool ok = t->failed == 0 && t->off_track <= may_stray && !(judge_drift && drift > 0.005);
    if (a->json) {
        json_t *out =
            json_pack("{s:s, s:s, s:O, s:I, s:I, s:I, s:I, s:b}", "model", a->engine.model,
                      "compute", fast ? "fast" : "exact", "cases", t->cases, "passed",
                      (json_int_t)(t->n - t->failed), "failed", (json_int_t)t->failed, "astray",
                      (json_int_t)t->off_track, "may_stray", (json_int_t)may_stray, "ok", ok);
        if (fast)
            json_object_set_new(out, "nll_drift", number(drift));
        json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(out);
        return ok;
    }
    if (fast)
        printf("continuations that leave the exact one before a close call: %zu, allowed %zu\n"
               "mean NLL over %zu %s: %.4f %% from the exact column's, allowed 0.5 %%%s\n",
               t->off_track, may_stray, t->nll_positions,
               plural(t->nll_positions, "position", "positions"), 100 * drift,
               judge_drift ? "" : " (too few to judge)");
    printf("%zu of %zu %s: %s\n", t->n - t->failed, t->n,
           plural(t->n, "case within its bounds", "cases within their bounds"),
           ok ? "good" : "NOT GOOD");
    return ok;
}

static int run_score(void *record, weir_error *err) {
    struct score_args *a = record;
    if (a->engine.compute == ENGINE_COMPUTE_NULL) {
        weir_fail(err, WEIR_BAD_VALUE, "--compute", "'null' computes nothing to score");
        return 2;
    }
    struct model m;
    struct weights *w = NULL;
    weir_status status = model_open(a->engine.model, &m, err);
    uint32_t threads = a->engine.threads ? a->engine.threads : cpu_count();
    bool fast = a->engine.compute == ENGINE_COMPUTE_FAST;
    bool device = a->engine.device != ENGINE_DEVICE_CPU;
    if (device && !fast)
        status = weir_fail(err, WEIR_BAD_VALUE, "--compute",
                           "the exact column runs on the CPU alone; a device is a fast one");
    else if (device && a->engine.dense_dtype == DENSE_INT8)
        status = weir_fail(err, WEIR_BAD_VALUE, "--dense-dtype",
                           "a device takes dense weights as bf16 or fp8");
    else if (device && a->engine.activation_dtype)
        status =
            weir_fail(err, WEIR_BAD_VALUE, "--activation-dtype", "a device computes with bf16");
    const struct column *column =
        device ? &column_gpu
               : column_fast(a->engine.activation_dtype
                                 ? (enum activation)(a->engine.activation_dtype - 1)
                                 : ACTIVATION_DEFAULT);
    /* As they are stored, whatever the column wants: the exact one reads the same experts. */
    const struct expert_setup experts = {
        .bytes = a->engine.expert_cache_bytes, .members = threads, .guess = true};
    if (!status)
        status =
            weights_open_reading(a->engine.model, &m, experts.bytes ? &experts : NULL, &w, err);
    if (status)
        return command_exit_status(err);
    static const enum dtype kv[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_FP8};
    struct tuning_for of = {a->engine.model,
                            column,
                            (enum dense_form)a->engine.dense_dtype,
                            device && !a->engine.kv_dtype ? DTYPE_BF16 : kv[a->engine.kv_dtype],
                            device ? 1 : threads,
                            NULL};
    struct tuning *tuning = NULL;
    struct gpu_device *gpu = NULL;
    if (device)
        status = modules_open(a->engine.device == ENGINE_DEVICE_CUDA ? GPU_CUDA : GPU_HIP,
                              a->engine.device_library, a->engine.device_modules, &gpu, err);
    if (gpu)
        of.device = gpu_device_facts(gpu)->name;
    if (fast && !status)
        status = weights_pack(w, column, of.dense, experts.bytes, threads, err);
    if (fast && !status)
        status = tuning_choose(a->engine.tuning, &of, &tuning, err);
    if (status) {
        weights_close(w);
        return command_exit_status(err);
    }
    struct score_settings s = {
        .model = &m,
        .weights = w,
        .column = column,
        .fast = fast,
        .threads = threads,
        /* All logits of a step are kept: 64 MiB of them at most. */
        .rows = a->engine.max_num_batched_tokens ? a->engine.max_num_batched_tokens
                                                 : (uint32_t)fmin(256, 16777216.0 / m.vocab),
        .kv_dtype = of.kv,
        .tuning = tuning,
        .device = gpu,
    };
    char why[512] = "no manifest.json is in it or below it";
    struct total t = {.cases = json_array(), .json = a->json};
    status = run_all(&s, a, why, &t, err);
    bool ok = false;
    if (!status && t.directories == 0)
        status = weir_fail(err, WEIR_BAD_FILE, a->vectors, "no case belongs to %s: %s",
                           a->engine.model, why);
    else if (!status && t.n == 0)
        status = weir_fail(err, WEIR_BAD_FILE, a->vectors, "no case '%s' that belongs to %s",
                           a->only ? a->only : "", a->engine.model);
    if (!status)
        ok = print_total(&t, a, s.fast);
    json_decref(t.cases);
    tuning_free(tuning);
    weights_close(w);
    gpu_device_close(gpu);
    return status ? command_exit_status(err) : ok ? 0 : 1;
}

static const struct option_group score_groups[] = {
    {"Model", &model_option, 1, AT(engine)},
    {"What to compare", score_options, sizeof score_options / sizeof score_options[0], 0},
    {"Engine", engine_options, N_ENGINE_OPTIONS, AT(engine)},
};

static const struct command_section score_sections[] = {
    {"DESCRIPTION",
     "Runs the cases of a vectors directory that were made for this model's weights and prints the "
     "largest error of each comparison beside its bound. Which weights a directory was made for "
     "stands in its manifest as SHA-256 sums.\n\n"
     "With --compute exact the numbers are compared with the files: logits within max(1e-4, 8 "
     "times "
     "the case's noise_float32), log probabilities within twice that, activations, KDA states and "
     "windows within it times the largest magnitude, the same experts, and the same greedy "
     "continuation. With --compute fast they are compared with the exact column, which runs beside "
     "it and is held to its own bound: root mean square logit error at most 0.2, mean KL at most "
     "1.5e-3, the same top-1 id at 97 % of the positions, the greedy continuation equal up to the "
     "first step whose two best logits are nearer than four times the root mean square error (one "
     "case in ten may leave earlier), and the mean NLL within 0.5 %.\n\n"
     "The exit status is 1 when an error is beyond its bound, and when no case ran."},
    {"JSON",
     "{\"model\", \"compute\", \"cases\": [{\"name\", \"prompt_tokens\", \"greedy_tokens\", "
     "\"checks\": [{\"what\", \"error\", \"bound\", \"ok\"}], \"greedy_as_it_must_be\", \"ok\"}], "
     "\"passed\", \"failed\", \"astray\", \"may_stray\", \"ok\"} and, on the fast column, "
     "\"nll_drift\". An error that is not finite is null."},
    {"EXAMPLES", "  weir score --model models/tiny-k3 --vectors vectors --compute exact"},
};

const struct command command_score = {
    .name = "score",
    .synopsis = "--model DIR --vectors DIR [--case NAME] [--json]",
    .summary = "compare a model with golden numbers",
    .options = {score_groups, 3, NULL, 0, false},
    .record_bytes = sizeof(struct score_args),
    .section = score_sections,
    .n_sections = sizeof score_sections / sizeof score_sections[0],
    .run = run_score,
};
