/* cmd_bench_history.c: `weir bench history`: configurations over dates. */
#include "bench/history.h"

#include "cli/command.h"
#include "cli/compare_args.h"
#include "cli/io.h"

struct list_args {
    char *label, *file;
    struct option_list metric;
    uint32_t last;
    bool valid_only, json;
};

static const struct option_spec list_options[] = {
    {.name = "label",
     .value = "L",
     .type = OPTION_TEXT,
     .offset = offsetof(struct list_args, label),
     .help = "Runs with this label alone."},
    {.name = "metric",
     .value = "NAME",
     .type = OPTION_LIST,
     .offset = offsetof(struct list_args, metric),
     .help = "A figure to show; may be given several times. Without it: tput_per_gpu, "
             "median_intvty and p90_ttft."},
    {.name = "last",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct list_args, last),
     .max = 1000000,
     .help = "The last N runs alone; 0: all."},
    {.name = "valid-only",
     .type = OPTION_FLAG,
     .offset = offsetof(struct list_args, valid_only),
     .help = "Leave out runs that are not valid or were cancelled."},
    {.name = "history",
     .value = "FILE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct list_args, file),
     .help = "The run history, an SQLite file; without it $XDG_DATA_HOME/weir/bench.db or "
             "~/.local/share/weir/bench.db."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct list_args, json),
     .help = "Print one JSON object."},
};

static const struct metric *usual(size_t i) {
    static const char *const names[] = {"tput_per_gpu", "median_intvty", "p90_ttft"};
    const struct metric *m = NULL;
    if (i < sizeof names / sizeof names[0])
        metric_find(names[i], &m, NULL);
    return m;
}

static int run_history(void *record, weir_error *err) {
    const struct list_args *a = record;
    const struct metric *m[COMPARE_METRICS];
    struct store *s = NULL;
    struct store_run *runs = NULL;
    size_t n = 0, n_m = 0;
    struct store_query q = {.label = a->label, .valid_only = a->valid_only, .last = a->last};
    weir_status status = metrics_of(&a->metric, usual, m, &n_m, err);
    if (!status)
        status = store_open(a->file, false, &s, err);
    if (!status)
        status = store_runs(s, &q, &runs, &n, err);
    if (!status && !n && a->label)
        status = weir_fail(err, WEIR_BAD_FILE, a->label, "the history holds no run of this label");
    if (!status && a->json)
        status = io_print_json(history_json(runs, n, m, n_m), err);
    else if (!status)
        history_print(stdout, runs, n, m, n_m);
    store_runs_free(runs, n);
    store_close(s);
    return status ? command_exit_status(err) : 0;
}

static const struct option_group list_groups[] = {
    {"Options", list_options, sizeof list_options / sizeof list_options[0], 0}};

static const struct command_section list_sections[] = {
    {"DESCRIPTION",
     "Shows what the run history holds: for each configuration a line a day and version, with the "
     "change against the line before. Runs with a label belong together by label, concurrency and "
     "data set, so that a configuration keeps its line while software changes; runs without one "
     "by everything that was set. Several runs of a day are one line with their geometric mean; "
     "those that are not valid have a line of their own, and so have those that were cancelled or "
     "aborted, which are compared with nothing. Days and times are those of UTC, the time is that "
     "of the line's first run. Where a setting differs "
     "from the line before, the line says which."},
    {"JSON",
     "{\"series\": [{\"label\", \"fingerprint\", \"concurrency\", \"hardware\", "
     "\"framework\", \"model\", \"precision\", \"dataset\", \"dates\": [{\"date\", \"time\", "
     "\"started\", \"version\", \"runs\", \"valid\", \"cancelled\", \"scaled\", "
     "\"incomplete\", "
     "\"configuration_changed\", \"changes\": {KEY: [BEFORE, NOW]}, \"metrics\": {NAME: "
     "{\"value\", \"unit\", \"spread_percent\" (standard deviation between its runs), "
     "\"change_percent\", \"change_from_first_percent\"}}, \"dirs\"}]}]}"},
    {"EXAMPLES", "  weir bench history --label k2.5-tp8 --metric tput_per_gpu"},
};

const struct command command_bench_history = {
    .name = "bench history",
    .synopsis = "[--label L] [--metric NAME] [--json]",
    .summary = "show one configuration over dates",
    .options = {list_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct list_args),
    .section = list_sections,
    .n_sections = sizeof list_sections / sizeof list_sections[0],
    .run = run_history,
};
