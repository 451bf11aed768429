/* cmd_bench_compare.c: `weir bench compare`: runs side by side. */
#include "cli/command.h"
#include "cli/compare_args.h"
#include "cli/io.h"

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
    if (!status && *n < 2)
        return weir_fail(err, WEIR_BAD_VALUE, "DIR",
                         "two sides are needed: weir bench compare A B, or --baseline A "
                         "--candidate B");
    return status;
}

static weir_status compare_all(const struct compare_args *a, const struct compare_side *side,
                               size_t n, weir_error *err) {
    const struct metric *m[COMPARE_METRICS];
    size_t n_m = 0;
    struct bootstrap_options o = statistics_of(&a->statistics);
    struct store *history = NULL;
    weir_status status = metrics_of(&a->metric, metric_usual, m, &n_m, err);
    struct comparison *all = status ? NULL : calloc(n * n_m, sizeof *all);
    if (!status && !all)
        status = weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
    if (!status)
        status = history_args_open(&a->history, &history, err);
    for (size_t i = 1; !status && i < n; i++) {
        struct run_noise noise[COMPARE_METRICS] = {0};
        if (history)
            status = compare_noise(history, &side[0], &side[i], m, n_m, noise, err);
        if (!status)
            status = compare_sides(&side[0], &side[i], m, n_m, noise, &o, all + (i - 1) * n_m, err);
    }
    if (!status && a->json)
        status = io_print_json(compare_json(side, n, all, n_m, &o), err);
    else if (!status)
        compare_print(stdout, side, n, all, n_m, &o);
    store_close(history);
    free(all);
    return status;
}

static int run_compare(void *record, weir_error *err) {
    const struct compare_args *a = record;
    size_t n = 0, room = a->sides.n + 2;
    struct compare_side *side = calloc(room, sizeof *side);
    weir_status status = side ? open_sides(a, side, &n, err)
                              : weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
    if (!status)
        status = compare_all(a, side, n, err);
    for (size_t i = 0; side && i < room; i++)
        compare_side_free(&side[i]);
    free(side);
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
     "are null. The verdict is better, worse, within noise or no interval."},
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
