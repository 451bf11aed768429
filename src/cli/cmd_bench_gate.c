/* cmd_bench_gate.c: `weir bench gate`: exit status 1 where a run is worse than its baseline. */
#include "bench/gate.h"

#include "cli/command.h"
#include "cli/compare_args.h"
#include "cli/io.h"

#include "bench/sweep.h"

#include <string.h>

struct gate_args {
    struct option_list baseline, candidate, metric;
    char *baseline_label;
    uint32_t last, gpus;
    double threshold, resolution;
    bool allow_invalid, allow_different, json;
    struct history_args history;
    struct statistics_args statistics;
};

static const struct option_spec gate_options[] = {
    {.name = "candidate",
     .value = "DIR",
     .type = OPTION_LIST,
     .offset = offsetof(struct gate_args, candidate),
     .required = true,
     .help = "A run to be judged; may be given several times, for repeats."},
    {.name = "baseline",
     .value = "DIR",
     .type = OPTION_LIST,
     .offset = offsetof(struct gate_args, baseline),
     .help = "A run it is judged against; may be given several times, for repeats."},
    {.name = "baseline-label",
     .value = "L",
     .type = OPTION_TEXT,
     .offset = offsetof(struct gate_args, baseline_label),
     .against = "baseline",
     .help = "Judge against the valid runs of the history with this label and the candidate's "
             "concurrency and dataset."},
    {.name = "last",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct gate_args, last),
     .min = 1,
     .max = 1000,
     .fallback = "5",
     .help = "With --baseline-label: the last N runs."},
    {.name = "metric",
     .value = "NAME[=PERCENT]",
     .type = OPTION_LIST,
     .offset = offsetof(struct gate_args, metric),
     .help = "A figure that may not get worse, with a threshold of its own; may be given several "
             "times. Without it: tput_per_gpu, p90_intvty and p90_ttft."},
    {.name = "threshold",
     .value = "PERCENT",
     .type = OPTION_REAL,
     .offset = offsetof(struct gate_args, threshold),
     .min = 0,
     .max = 1000,
     .fallback = "2",
     .help = "How much worse a figure may get; it fails when the whole interval lies beyond."},
    {.name = "resolution",
     .value = "PERCENT",
     .type = OPTION_REAL,
     .offset = offsetof(struct gate_args, resolution),
     .min = 0,
     .max = 100,
     .fallback = "50",
     .help =
         "How much worse a figure may be and yet go unseen: where its interval reaches further, "
         "the gate is inconclusive and does not pass."},
    {.name = "allow-invalid",
     .type = OPTION_FLAG,
     .offset = offsetof(struct gate_args, allow_invalid),
     .help = "Let a run pass that breaks rules of publishing, such as one that was made short or "
             "scaled for a test. A cancelled one fails all the same."},
    {.name = "allow-different",
     .type = OPTION_FLAG,
     .offset = offsetof(struct gate_args, allow_different),
     .help = "Let a run pass that is of another workload or concurrency than the baseline."},
    {.name = "gpus",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct gate_args, gpus),
     .max = 1048576,
     .help = "GPUs behind results of other tools that do not say how many."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct gate_args, json),
     .help = "Print one JSON object."},
};

static const char *text_of(const struct compare_run *r, const char *key) {
    return json_string_value(json_object_get(r->configuration, key));
}

static bool is_text(const char *a, const char *b) {
    return (!a && !b) || (a && b && !strcmp(a, b));
}

/* The last runs with the label that are neither invalid nor the candidate itself. */
static weir_status add_labelled(const struct gate_args *a, struct store *history,
                                const struct compare_side *candidate, struct compare_side *out,
                                weir_error *err) {
    if (!history)
        return weir_fail(err, WEIR_BAD_VALUE, "--baseline-label",
                         "there is no run history; name one with --history");
    const struct compare_run *c = &candidate->run[0];
    struct store_query q = {.label = a->baseline_label, .valid_only = !a->allow_invalid};
    struct store_run *runs = NULL;
    size_t n = 0, kept = 0;
    weir_status status = store_runs(history, &q, &runs, &n, err);
    if (status)
        return status;
    uint32_t concurrency =
        (uint32_t)json_integer_value(json_object_get(c->configuration, "concurrency"));
    struct store_run *fit = calloc(n + 1, sizeof *fit);
    for (size_t i = 0; fit && i < n; i++) {
        bool mine = false;
        for (size_t k = 0; k < candidate->n; k++)
            mine = mine || candidate->run[k].started == runs[i].started;
        if (!mine && !runs[i].cancelled && runs[i].concurrency == concurrency &&
            is_text(runs[i].dataset, text_of(c, "dataset")))
            fit[kept++] = runs[i];
    }
    size_t skip = kept > a->last ? kept - a->last : 0;
    if (!fit)
        status = weir_fail(err, WEIR_NO_MEMORY, "gate", "no memory");
    else if (!kept)
        status = weir_fail(err, WEIR_BAD_VALUE, "--baseline-label",
                           "the history holds no valid run labelled '%s' with the candidate's "
                           "concurrency %u and dataset",
                           a->baseline_label, concurrency);
    else
        status = compare_side_add_history(out, fit + skip, kept - skip, err);
    if (!status) {
        free(out->name);
        if (asprintf(&out->name, "label %s", a->baseline_label) < 0)
            out->name = NULL;
    }
    free(fit);
    store_runs_free(runs, n);
    return status;
}

static weir_status rules_of(const struct gate_args *a, struct gate_rule *rule, size_t *n,
                            weir_error *err) {
    *n = 0;
    if (a->metric.n > COMPARE_METRICS)
        return weir_fail(err, WEIR_BAD_VALUE, "--metric", "is given more than %d times",
                         COMPARE_METRICS);
    for (size_t i = 0; i < a->metric.n; i++) {
        weir_status status = gate_rule_parse(a->metric.item[i], a->threshold, &rule[(*n)++], err);
        if (status)
            return status;
    }
    for (size_t i = 0; !a->metric.n && metric_of_gate(i); i++)
        rule[(*n)++] = (struct gate_rule){metric_of_gate(i), a->threshold};
    return WEIR_OK;
}

/* Exit statuses; 2 is that of options that make no sense. */
enum end { END_PASSED = 0, END_FAILED = 1, END_UNDECIDED = 3 };

/* `of` so many points of sweeps: each is judged the more carefully, so that the chance of a false
 * alarm stays that of all together. One table, or with `json` one object. */
static weir_status judge(const struct gate_args *a, const struct compare_side *side, size_t of,
                         struct store *history, enum end *end, json_t **json, weir_error *err) {
    struct gate_rule rule[COMPARE_METRICS];
    const struct metric *m[COMPARE_METRICS];
    struct run_noise noise[COMPARE_METRICS] = {0};
    struct bootstrap_options o = statistics_of(&a->statistics);
    struct gate g;
    size_t n;
    o.confidence = 1 - (1 - o.confidence) / (double)of;
    weir_status status = rules_of(a, rule, &n, err);
    for (size_t i = 0; !status && i < n; i++)
        m[i] = rule[i].metric;
    if (!status && history)
        status = compare_noise(history, &side[0], &side[1], m, n, noise, err);
    if (!status)
        status = gate_judge(&side[0], &side[1], rule, n, noise, &o, a->resolution, a->allow_invalid,
                            a->allow_different, &g, err);
    if (status)
        return status;
    *end = g.passed ? END_PASSED : g.undecided ? END_UNDECIDED : END_FAILED;
    if (json)
        *json = gate_json(&g, &side[0], &side[1], &o);
    else
        gate_print(stdout, &g, &side[0], &side[1]);
    gate_free(&g);
    return json && !*json ? weir_fail(err, WEIR_NO_MEMORY, "gate", "no memory") : WEIR_OK;
}

static weir_status gate_runs(const struct gate_args *a, struct store *history, enum end *end,
                             weir_error *err) {
    struct compare_side side[2] = {{0}};
    json_t *json = NULL;
    weir_status status = WEIR_OK;
    for (size_t i = 0; !status && i < a->candidate.n; i++)
        status = compare_side_add(&side[1], a->candidate.item[i], a->gpus, err);
    for (size_t i = 0; !status && i < a->baseline.n; i++)
        status = compare_side_add(&side[0], a->baseline.item[i], a->gpus, err);
    if (!status && a->baseline_label)
        status = add_labelled(a, history, &side[1], &side[0], err);
    if (!status)
        status = judge(a, side, 1, history, end, a->json ? &json : NULL, err);
    if (!status && a->json)
        status = io_print_json(json, err);
    compare_side_free(&side[0]);
    compare_side_free(&side[1]);
    return status;
}

/* -------------------------------------------------------------------------------------- sweeps */

/* What is found of the points, for the end. */
struct verdicts {
    json_t *points, *failed, *undecided, *missing; /* points: NULL without --json */
};

static weir_status add_point(struct compare_side *side, const struct sweep_point *p,
                             weir_error *err) {
    weir_status status = WEIR_OK;
    for (size_t k = 0; !status && p && k < p->n; k++)
        status = compare_side_add_one(side, p->dir[k], err);
    return status;
}

static weir_status gate_point(const struct gate_args *a, const struct sweep_point *base,
                              const struct sweep_point *candidate, size_t of, struct store *history,
                              struct verdicts *v, weir_error *err) {
    struct compare_side side[2] = {{0}};
    json_t *json = NULL;
    enum end end = END_FAILED;
    weir_status status = add_point(&side[1], candidate, err);
    if (!status)
        status = add_point(&side[0], base, err);
    if (!status && a->baseline_label)
        status = add_labelled(a, history, &side[1], &side[0], err);
    if (!status && !v->points)
        printf("== concurrency %" PRIu32 "\n", candidate->concurrency);
    if (!status)
        status = judge(a, side, of, history, &end, v->points ? &json : NULL, err);
    if (!status && end != END_PASSED)
        json_array_append_new(end == END_FAILED ? v->failed : v->undecided,
                              json_integer(candidate->concurrency));
    if (json) {
        json_object_set_new(json, "concurrency", json_integer(candidate->concurrency));
        json_array_append_new(v->points, json);
    }
    if (!status && !v->points)
        putchar('\n');
    compare_side_free(&side[0]);
    compare_side_free(&side[1]);
    return status;
}

static weir_status gate_points(const struct gate_args *a, const struct sweep *base,
                               const struct sweep *candidate, struct store *history,
                               struct verdicts *v, weir_error *err) {
    size_t of = 0, done = 0;
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < candidate->n; i++)
        of += a->baseline_label || sweep_at(base, candidate->point[i].concurrency);
    for (size_t i = 0; !status && i < candidate->n; i++) {
        const struct sweep_point *p = sweep_at(base, candidate->point[i].concurrency);
        if (p || a->baseline_label) {
            status = gate_point(a, p, &candidate->point[i], of, history, v, err);
            done++;
        } else if (!v->points) {
            printf("concurrency %" PRIu32 " is not judged: the baseline lacks it\n",
                   candidate->point[i].concurrency);
        }
    }
    for (size_t i = 0; i < base->n; i++)
        if (!sweep_at(candidate, base->point[i].concurrency))
            json_array_append_new(v->missing, json_integer(base->point[i].concurrency));
    if (!status && !done)
        status = weir_fail(err, WEIR_BAD_VALUE, candidate->name,
                           "has no concurrency in common with the baseline");
    return status;
}

static void print_list(const char *before, const json_t *list) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
        printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : before, json_integer_value(v));
}

static weir_status gate_sweeps(const struct gate_args *a, struct store *history, enum end *end,
                               weir_error *err) {
    struct sweep base = {0}, candidate = {0};
    struct verdicts v = {a->json ? json_array() : NULL, json_array(), json_array(), json_array()};
    weir_status status = WEIR_OK;
    for (size_t i = 0; !status && i < a->candidate.n; i++)
        status = sweep_add(&candidate, a->candidate.item[i], err);
    for (size_t i = 0; !status && i < a->baseline.n; i++)
        status = sweep_add(&base, a->baseline.item[i], err);
    if (!status)
        status = gate_points(a, &base, &candidate, history, &v, err);
    *end = status || json_array_size(v.failed) || json_array_size(v.missing) ? END_FAILED
           : json_array_size(v.undecided)                                    ? END_UNDECIDED
                                                                             : END_PASSED;
    if (!status && a->json) {
        status =
            io_print_json(json_pack("{s:b, s:b, s:O, s:O, s:O, s:O}", "passed", *end == END_PASSED,
                                    "inconclusive", *end == END_UNDECIDED, "points", v.points,
                                    "failed_concurrencies", v.failed, "undecided_concurrencies",
                                    v.undecided, "missing_concurrencies", v.missing),
                          err);
    } else if (!status) {
        printf("sweep %s", *end == END_PASSED      ? "passed"
                           : *end == END_UNDECIDED ? "inconclusive"
                                                   : "failed");
        print_list(" at concurrency ", v.failed);
        print_list(*end == END_UNDECIDED ? " at concurrency " : "; inconclusive at concurrency ",
                   v.undecided);
        print_list("; the candidate lacks concurrency ", v.missing);
        putchar('\n');
    }
    json_decref(v.points);
    json_decref(v.failed);
    json_decref(v.undecided);
    json_decref(v.missing);
    sweep_free(&base);
    sweep_free(&candidate);
    return status;
}

static int run_gate(void *record, weir_error *err) {
    const struct gate_args *a = record;
    struct store *history = NULL;
    enum end end = END_FAILED;
    weir_status status = WEIR_OK;
    if (!a->baseline.n == !a->baseline_label)
        status = weir_fail(err, WEIR_BAD_VALUE, "--baseline",
                           "give either --baseline DIR or --baseline-label L");
    if (!status)
        status = history_args_open(&a->history, &history, err);
    bool sweeps = names_sweep(&a->candidate) || names_sweep(&a->baseline);
    if (!status)
        status = (sweeps ? gate_sweeps : gate_runs)(a, history, &end, err);
    store_close(history);
    return status ? command_exit_status(err) : (int)end;
}

static const struct option_group gate_groups[] = {
    {"Options", gate_options, sizeof gate_options / sizeof gate_options[0], 0},
    {"Statistics", statistics_option, STATISTICS_OPTIONS, offsetof(struct gate_args, statistics)},
    {"History", history_option, HISTORY_OPTIONS, offsetof(struct gate_args, history)},
};

static const struct command_section gate_sections[] = {
    {"DESCRIPTION",
     "Judges a run for use in continuous integration. The exit status is 1 when a figure is worse "
     "than the baseline's by more than the threshold and beyond noise (its whole interval lies "
     "beyond the threshold; where there is no interval, as of a single play without repeats, the "
     "figure itself), when the candidate lacks a figure that the baseline has, when it was "
     "cancelled, is not valid, is of another concurrency or workload, or is a scaled replay where "
     "the baseline is none, or when its answers are shorter or longer than the baseline's by more "
     "than 2 % of what was asked for. It is 3 when nothing of this is so, but a figure's interval "
     "reaches beyond --resolution to the worse: the gate cannot tell a regression from noise then, "
     "and does not pass. It is 0 otherwise, and 2 when the options make no sense.\n\n"
     "Intervals are made as weir bench compare makes them, each so much wider that with equal "
     "systems the chance of any false alarm is at most 1 - confidence however many figures are "
     "judged. What differs from run to run is known from repeats alone: without any, the "
     "threshold has to make up for it.\n\n"
     "Two directories of weir bench sweep are judged point by point; one that the candidate lacks "
     "fails it, and intervals are so much wider that the chance of a false alarm is that of all "
     "points together."},
    {"JSON", "{\"passed\", \"inconclusive\", \"confidence\", \"regressed\": [NAME], \"undecided\": "
             "[NAME], \"faults\": [TEXT], \"metrics\": "
             "{NAME: {\"baseline\", \"candidate\", \"ratio\", \"low\", \"high\", "
             "\"worse_percent\", \"worse_at_least_percent\", \"worse_at_most_percent\", "
             "\"threshold_percent\", "
             "\"outcome\"}}, \"baseline\", \"candidate\"}; the last two as a side of weir bench "
             "compare. The outcome is passed, regressed, inconclusive, no value or not judged. For "
             "sweeps {\"passed\", \"inconclusive\", \"points\": [the same with \"concurrency\"], "
             "\"failed_concurrencies\", \"undecided_concurrencies\", \"missing_concurrencies\"}."},
    {"EXAMPLES", "  weir bench gate --baseline results/main --candidate results/branch\n\n"
                 "  weir bench gate --baseline-label nightly --candidate out --metric "
                 "p90_ttft=5 --metric tput_per_gpu"},
};

const struct command command_bench_gate = {
    .name = "bench gate",
    .synopsis = "(--baseline DIR | --baseline-label L) --candidate DIR [OPTIONS]",
    .summary = "fail where a run is worse than its baseline beyond noise",
    .options = {gate_groups, sizeof gate_groups / sizeof gate_groups[0], NULL, 0, false},
    .record_bytes = sizeof(struct gate_args),
    .section = gate_sections,
    .n_sections = sizeof gate_sections / sizeof gate_sections[0],
    .run = run_gate,
};
