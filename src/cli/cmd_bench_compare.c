/* cmd_bench_compare.c: `weir bench compare`: runs side by side. */
#include "cli/command.h"
#include "cli/compare_args.h"
#include "cli/io.h"

#include "bench/sweep.h"

struct compare_args {
    struct option_list sides, baseline, candidate, metric;
    uint32_t gpus;
    bool json;
    struct history_args history;
    struct statistics_args statistics;
};

static const struct option_spec compare_options[] = {
    {.name = "baseline",
     .value = "DIR",
     .type = OPTION_LIST,
     .offset = offsetof(struct compare_args, baseline),
     .help = "A run of the baseline; may be given several times, for repeats."},
    {.name = "candidate",
     .value = "DIR",
     .type = OPTION_LIST,
     .offset = offsetof(struct compare_args, candidate),
     .help = "A run of what is compared with it; may be given several times, for repeats."},
    {.name = "metric",
     .value = "NAME",
     .type = OPTION_LIST,
     .offset = offsetof(struct compare_args, metric),
     .help = "A figure to compare, such as p90_ttft; may be given several times. Without it: the "
             "usual ones."},
    {.name = "gpus",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct compare_args, gpus),
     .max = 1048576,
     .help = "GPUs behind results of other tools that do not say how many."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct compare_args, json),
     .help = "Print one JSON object."},
};

static weir_status no_memory(weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
}

static weir_status too_few(weir_error *err) {
    return weir_fail(err, WEIR_BAD_VALUE, "DIR",
                     "two sides are needed: weir bench compare A B, or --baseline A --candidate B");
}

/* Sides of the options first, then one side for each positional argument. */
static weir_status open_sides(const struct compare_args *a, struct compare_side *side, size_t *n,
                              weir_error *err) {
    weir_status status = WEIR_OK;
    *n = 0;
    for (size_t i = 0; !status && i < a->baseline.n; i++)
        status = compare_side_add(&side[0], a->baseline.item[i], a->gpus, err);
    *n += a->baseline.n > 0;
    for (size_t i = 0; !status && i < a->candidate.n; i++)
        status = compare_side_add(&side[*n], a->candidate.item[i], a->gpus, err);
    *n += a->candidate.n > 0;
    for (size_t i = 0; !status && i < a->sides.n; i++)
        status = compare_side_add(&side[(*n)++], a->sides.item[i], a->gpus, err);
    return !status && *n < 2 ? too_few(err) : status;
}

/* One table, or with `json` one object. */
static weir_status compare_all(const struct compare_args *a, const struct compare_side *side,
                               size_t n, json_t **json, weir_error *err) {
    const struct metric *m[COMPARE_METRICS];
    size_t n_m = 0;
    struct bootstrap_options o = statistics_of(&a->statistics);
    struct store *history = NULL;
    weir_status status = metrics_of(&a->metric, metric_usual, m, &n_m, err);
    struct comparison *all = status ? NULL : calloc(n * n_m, sizeof *all);
    if (!status && !all)
        status = no_memory(err);
    if (!status)
        status = history_args_open(&a->history, &history, err);
    for (size_t i = 1; !status && i < n; i++) {
        struct run_noise noise[COMPARE_METRICS] = {0};
        if (history)
            status = compare_noise(history, &side[0], &side[i], m, n_m, noise, err);
        if (!status)
            status = compare_sides(&side[0], &side[i], m, n_m, noise, &o, all + (i - 1) * n_m, err);
    }
    if (!status && json && !(*json = compare_json(side, n, all, n_m, &o)))
        status = no_memory(err);
    else if (!status && !json)
        compare_print(stdout, side, n, all, n_m, &o);
    store_close(history);
    free(all);
    return status;
}

static weir_status compare_runs(const struct compare_args *a, weir_error *err) {
    size_t n = 0, room = a->sides.n + 2;
    struct compare_side *side = calloc(room, sizeof *side);
    json_t *json = NULL;
    weir_status status = side ? open_sides(a, side, &n, err) : no_memory(err);
    if (!status)
        status = compare_all(a, side, n, a->json ? &json : NULL, err);
    if (!status && a->json)
        status = io_print_json(json, err);
    for (size_t i = 0; side && i < room; i++)
        compare_side_free(&side[i]);
    free(side);
    return status;
}

/* -------------------------------------------------------------------------------------- sweeps */

static weir_status open_sweeps(const struct compare_args *a, struct sweep *sweep, size_t *n,
                               weir_error *err) {
    weir_status status = WEIR_OK;
    *n = 0;
    for (size_t i = 0; !status && i < a->baseline.n; i++)
        status = sweep_add(&sweep[0], a->baseline.item[i], err);
    *n += a->baseline.n > 0;
    for (size_t i = 0; !status && i < a->candidate.n; i++)
        status = sweep_add(&sweep[*n], a->candidate.item[i], err);
    *n += a->candidate.n > 0;
    for (size_t i = 0; !status && i < a->sides.n; i++)
        status = sweep_add(&sweep[(*n)++], a->sides.item[i], err);
    return !status && *n < 2 ? too_few(err) : status;
}

static weir_status compare_point(const struct compare_args *a, const struct sweep *sweep, size_t n,
                                 uint32_t concurrency, json_t *points, weir_error *err) {
    struct compare_side *side = calloc(n, sizeof *side);
    json_t *json = NULL;
    weir_status status = side ? WEIR_OK : no_memory(err);
    for (size_t i = 0; !status && i < n; i++) {
        const struct sweep_point *p = sweep_at(&sweep[i], concurrency);
        for (size_t k = 0; !status && k < p->n; k++)
            status = compare_side_add_one(&side[i], p->dir[k], err);
    }
    if (!status && !points)
        printf("== concurrency %" PRIu32 "\n", concurrency);
    if (!status)
        status = compare_all(a, side, n, points ? &json : NULL, err);
    if (json) {
        json_object_set_new(json, "concurrency", json_integer(concurrency));
        json_array_append_new(points, json);
    }
    if (!status && !points)
        putchar('\n');
    for (size_t i = 0; side && i < n; i++)
        compare_side_free(&side[i]);
    free(side);
    return status;
}

static bool all_have(const struct sweep *sweep, size_t n, uint32_t concurrency) {
    for (size_t i = 0; i < n; i++)
        if (!sweep_at(&sweep[i], concurrency))
            return false;
    return true;
}

/* Points that some side lacks are named once, under the first side that has them. */
static void list_unpaired(const struct sweep *sweep, size_t n, json_t *unpaired, bool print) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sweep[i].n; k++) {
            uint32_t concurrency = sweep[i].point[k].concurrency;
            if (all_have(sweep, n, concurrency))
                continue;
            if (print)
                printf("%s: concurrency %" PRIu32 " is not compared: another side lacks it\n",
                       sweep[i].name, concurrency);
            json_array_append_new(unpaired, json_pack("{s:s, s:i}", "sweep", sweep[i].name,
                                                      "concurrency", (int)concurrency));
        }
}

static weir_status compare_sweeps(const struct compare_args *a, weir_error *err) {
    size_t n = 0, room = a->sides.n + 2, done = 0;
    struct sweep *sweep = calloc(room, sizeof *sweep);
    json_t *points = a->json ? json_array() : NULL, *unpaired = json_array();
    weir_status status = sweep ? open_sweeps(a, sweep, &n, err) : no_memory(err);
    for (size_t k = 0; !status && k < sweep[0].n; k++)
        if (all_have(sweep, n, sweep[0].point[k].concurrency)) {
            status = compare_point(a, sweep, n, sweep[0].point[k].concurrency, points, err);
            done++;
        }
    if (!status && !done)
        status = weir_fail(err, WEIR_BAD_VALUE, sweep[0].name,
                           "has no concurrency in common with all other sides");
    if (!status)
        list_unpaired(sweep, n, unpaired, !points);
    if (!status && points)
        status =
            io_print_json(json_pack("{s:O, s:O}", "points", points, "unpaired", unpaired), err);
    for (size_t i = 0; sweep && i < room; i++)
        sweep_free(&sweep[i]);
    free(sweep);
    json_decref(points);
    json_decref(unpaired);
    return status;
}

static int run_compare(void *record, weir_error *err) {
    const struct compare_args *a = record;
    bool sweeps = names_sweep(&a->baseline) || names_sweep(&a->candidate) || names_sweep(&a->sides);
    weir_status status = sweeps ? compare_sweeps(a, err) : compare_runs(a, err);
    return status ? command_exit_status(err) : 0;
}

static const struct option_group compare_groups[] = {
    {"Options", compare_options, sizeof compare_options / sizeof compare_options[0], 0},
    {"Statistics", statistics_option, STATISTICS_OPTIONS,
     offsetof(struct compare_args, statistics)},
    {"History", history_option, HISTORY_OPTIONS, offsetof(struct compare_args, history)},
};

static const struct command_section compare_sections[] = {
    {"DESCRIPTION",
     "Puts result directories of weir bench replay side by side, the first against each other "
     "one: how their configurations differ, each figure of both, their ratio with an interval, "
     "and whether it leaves the noise. Repeats of one configuration are given as DIR,DIR; their "
     "figure is the geometric mean.\n\n"
     "The interval comes from two sources. Sessions are drawn anew from the records, each play of "
     "a session as a whole, because its calls are not independent; a session that both sides "
     "played is drawn equally often for both. What differs from run to run is taken from repeats: "
     "those given, and those that the run history holds of the same configuration and version. "
     "Without repeats the interval is that of the sessions alone, and the output says so.\n\n"
     "Directories of weir bench sweep are compared point by point: those of one concurrency "
     "are a table, several sweeps of a side (DIR,DIR) are repeats, and points that a side lacks "
     "are "
     "named at the end.\n\n"
     "A file in place of a directory is another tool's result: an InferenceX aggregate, flat rows, "
     "CSV, or the JSON of vLLM's bench serve; FILE@N is its point of concurrency N. It has no "
     "records, so that only repeats can give an interval."},
    {"JSON",
     "{\"confidence\", \"seed\", \"draws\", \"sides\": [{\"name\", \"runs\": [{\"path\", "
     "\"label\", \"fingerprint\", \"version\", \"valid\", \"cancelled\", \"scaled\", "
     "\"has_records\", \"foreign\", \"invalid\"}]}], \"configuration_differences\": {KEY: [VALUE, "
     "...]}, "
     "\"comparisons\": [{\"baseline\", \"candidate\", \"metrics\": {NAME: {\"unit\", "
     "\"higher_is_better\", \"baseline\", \"candidate\", \"ratio\", \"low\", \"high\", "
     "\"interval_from\", \"plays\", \"repeat_noise_percent\", \"verdict\"}}}]}. Unknown values "
     "are null. The verdict is better, worse, within noise or no interval. For sweeps "
     "{\"points\": [the same with \"concurrency\"], \"unpaired\": [{\"sweep\", "
     "\"concurrency\"}]}."},
    {"EXAMPLES", "  weir bench compare results/before results/after\n\n"
                 "  weir bench compare a1,a2,a3 b1,b2,b3 --metric p90_ttft --json"},
};

const struct command command_bench_compare = {
    .name = "bench compare",
    .synopsis = "A B [C...] [OPTIONS]",
    .summary = "put runs side by side, with ratios and their noise",
    .options = {compare_groups, sizeof compare_groups / sizeof compare_groups[0], "DIR",
                offsetof(struct compare_args, sides), .positional_many = true},
    .record_bytes = sizeof(struct compare_args),
    .section = compare_sections,
    .n_sections = sizeof compare_sections / sizeof compare_sections[0],
    .run = run_compare,
};
