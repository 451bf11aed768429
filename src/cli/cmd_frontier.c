/* cmd_frontier.c: `weir frontier`: which measured points are worth having, and how series compare
 * at equal interactivity and at equal throughput. */
#include "cli/command.h"
#include "cli/frontier_view.h"
#include "cli/io.h"

#include <math.h>
#include <string.h>

struct frontier_args {
    struct option_list results;
    int x, throughput, statistic, interp;
    char *series, *baseline, *prices;
    struct option_list at_interactivity, at_latency, at_throughput;
    double price, kilowatts;
    uint32_t gpus;
    bool extrapolate, same_concurrency, all, json;
};

static const struct option_spec axis_options[] = {
    {.name = "x",
     .value = "AXIS",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct frontier_args, x),
     .choices = "interactivity|ttft|e2el",
     .fallback = "interactivity",
     .help = "What throughput is traded against: tokens per second for one user (more is better), "
             "time to the first token or latency of a call in seconds (less is better)."},
    {.name = "throughput",
     .value = "WHICH",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct frontier_args, throughput),
     .choices = "total|output|input",
     .fallback = "total",
     .help = "Tokens that count into throughput per GPU; total: prompts, reused ones too, and "
             "answers."},
    {.name = "statistic",
     .value = "STAT",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct frontier_args, statistic),
     .choices = "mean|median|p75|p90|p95|p99",
     .fallback = "p90",
     .help = "Statistic of the x axis. Percentiles of interactivity are those of the slow tail."},
    {.name = "series",
     .value = "NAMES",
     .type = OPTION_TEXT,
     .offset = offsetof(struct frontier_args, series),
     .fallback = "label,model,hardware,framework,precision,workload",
     .help = "What keeps two series apart: names out of label, hardware, framework, model, "
             "precision, spec, date, gpus and workload (the data set, or the lengths of prompt and "
             "answer), with commas between. Without label a series spans all configurations of a "
             "system, as published frontiers of AgentX do."},
    {.name = "gpus",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct frontier_args, gpus),
     .min = 1,
     .max = 65536,
     .help = "GPUs of results that do not say how many (those of vLLM's bench serve)."},
};
static const struct option_spec between_options[] = {
    {.name = "at-interactivity",
     .value = "X",
     .type = OPTION_LIST,
     .offset = offsetof(struct frontier_args, at_interactivity),
     .help = "Compare the series at so many tokens per second for one user. May stand several "
             "times."},
    {.name = "at-latency",
     .value = "S",
     .type = OPTION_LIST,
     .offset = offsetof(struct frontier_args, at_latency),
     .help = "The same for --x ttft and --x e2el, in seconds."},
    {.name = "at-throughput",
     .value = "Y",
     .type = OPTION_LIST,
     .offset = offsetof(struct frontier_args, at_throughput),
     .help = "Compare the series at so many tokens per second and GPU. May stand several times."},
    {.name = "interp",
     .value = "HOW",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct frontier_args, interp),
     .choices = "steffen|linear",
     .fallback = "steffen",
     .help = "Curve between the points of a frontier: a monotone cubic, or straight lines."},
    {.name = "extrapolate",
     .type = OPTION_FLAG,
     .offset = offsetof(struct frontier_args, extrapolate),
     .help = "Also beyond the ends, by a straight line through the last two points; such values "
             "are marked."},
    {.name = "same-concurrency",
     .type = OPTION_FLAG,
     .offset = offsetof(struct frontier_args, same_concurrency),
     .help = "Compare the points that were measured at the same concurrency."},
    {.name = "baseline",
     .value = "SERIES",
     .type = OPTION_TEXT,
     .offset = offsetof(struct frontier_args, baseline),
     .help = "Series that ratios are taken to. Default: the first."},
};
static const struct option_spec money_options[] = {
    {.name = "prices",
     .value = "TABLE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct frontier_args, prices),
     .help = "Price each point by its hardware from one table; see weir cost --list."},
    {.name = "price",
     .value = "DOLLARS",
     .type = OPTION_REAL,
     .offset = offsetof(struct frontier_args, price),
     .min = 1e-6,
     .max = 1e6,
     .against = "prices",
     .help = "One price of a GPU-hour for all points."},
    {.name = "kilowatts",
     .value = "KW",
     .type = OPTION_REAL,
     .offset = offsetof(struct frontier_args, kilowatts),
     .min = 1e-6,
     .max = 1e4,
     .against = "prices",
     .help = "With --price: all-in power of one GPU."},
};
static const struct option_spec out_options[] = {
    {.name = "all",
     .type = OPTION_FLAG,
     .offset = offsetof(struct frontier_args, all),
     .help = "Also print the points that are not on the frontier."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct frontier_args, json),
     .help = "Print one JSON object."},
};
static const struct option_group frontier_groups[] = {
    {"Axes and series", axis_options, sizeof axis_options / sizeof *axis_options, 0},
    {"Between points", between_options, sizeof between_options / sizeof *between_options, 0},
    {"Cost", money_options, sizeof money_options / sizeof *money_options, 0},
    {"Output", out_options, sizeof out_options / sizeof *out_options, 0},
};

/* ---------------------------------------------------------------------------------- questions */

static weir_status add_questions(const struct option_list *from, const char *option,
                                 const char *key, bool along_x, struct frontier_question *out,
                                 size_t *n, weir_error *err) {
    for (size_t i = 0; i < from->n; i++) {
        json_t *v = json_loads(from->item[i], JSON_DECODE_ANY, NULL);
        double x = json_is_number(v) ? json_number_value(v) : 0;
        json_decref(v);
        if (!(x > 0))
            return weir_fail(err, WEIR_BAD_VALUE, option, "'%.60s' is not a number above 0",
                             from->item[i]);
        out[(*n)++] = (struct frontier_question){key, along_x, x};
    }
    return WEIR_OK;
}

static weir_status questions_of(const struct frontier_args *a, struct frontier_question *out,
                                size_t *n, weir_error *err) {
    *n = 0;
    if (a->at_interactivity.n && a->x != SERIES_INTERACTIVITY)
        return weir_fail(err, WEIR_BAD_VALUE, "--at-interactivity",
                         "goes with --x interactivity, not %s",
                         frontier_x_name((enum series_x)a->x));
    if (a->at_latency.n && a->x == SERIES_INTERACTIVITY)
        return weir_fail(err, WEIR_BAD_VALUE, "--at-latency", "goes with --x ttft or e2el");
    weir_status s = add_questions(&a->at_interactivity, "--at-interactivity", "at_interactivity",
                                  true, out, n, err);
    if (!s)
        s = add_questions(&a->at_latency, "--at-latency", "at_latency", true, out, n, err);
    if (!s)
        s = add_questions(&a->at_throughput, "--at-throughput", "at_throughput", false, out, n,
                          err);
    return s;
}

static weir_status choose_baseline(struct frontier_view *c, const char *name, weir_error *err) {
    if (!name)
        return WEIR_OK;
    while (c->baseline < c->set.n && strcmp(c->set.series[c->baseline].name, name))
        c->baseline++;
    if (c->baseline < c->set.n)
        return WEIR_OK;
    char list[400] = "";
    for (size_t i = 0, n = 0; i < c->set.n && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s'%s'", i ? ", " : "",
                              c->set.series[i].name);
    c->baseline = 0;
    return weir_fail(err, WEIR_BAD_VALUE, "--baseline", "'%.60s' is no series; there are %s", name,
                     list);
}

static weir_status settle(const struct frontier_args *a, struct frontier_view *c,
                          struct price_table *table, weir_error *err) {
    if (a->price > 0 && a->prices)
        return weir_fail(err, WEIR_BAD_VALUE, "--price",
                         "is a price of one's own: it cannot stand beside --prices");
    if (a->kilowatts > 0 && !(a->price > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--kilowatts",
                         "goes with --price; a table has its own");
    c->how = a->interp == 0 ? INTERPOLATE_STEFFEN : INTERPOLATE_LINEAR;
    c->extrapolate = a->extrapolate;
    c->all = a->all;
    c->same_concurrency = a->same_concurrency;
    c->priced = a->prices || a->price > 0;
    c->o = (struct series_options){.x = (enum series_x)a->x,
                                   .y = (enum series_y)a->throughput,
                                   .statistic = (enum statistic)a->statistic,
                                   .by = a->series,
                                   .dollars = a->price,
                                   .kilowatts = a->kilowatts > 0 ? a->kilowatts : NAN};
    if (!a->prices)
        return WEIR_OK;
    c->o.prices = table;
    return price_table_open(a->prices, table, err);
}

static int run_frontier(void *record, weir_error *err) {
    const struct frontier_args *a = record;
    struct frontier_view c = {0};
    struct price_table table = {0};
    struct results rows = {0};
    size_t n = 0;
    struct frontier_question *q =
        calloc(a->at_interactivity.n + a->at_latency.n + a->at_throughput.n + 1, sizeof *q);
    weir_status s =
        q ? questions_of(a, q, &n, err) : weir_fail(err, WEIR_NO_MEMORY, "frontier", "no memory");
    c.question = q;
    c.n_questions = n;
    if (!s)
        s = settle(a, &c, &table, err);
    for (size_t i = 0; !s && i < a->results.n; i++)
        s = results_read(a->results.item[i], a->gpus, &rows, err);
    if (!s)
        s = series_group(&rows, &c.o, &c.set, err);
    if (!s)
        s = choose_baseline(&c, a->baseline, err);
    if (!s && a->json)
        s = io_print_json(frontier_json(&c), err);
    else if (!s)
        frontier_print(&c);
    series_free(&c.set);
    results_free(&rows);
    price_table_free(&table);
    free(q);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section frontier_sections[] = {
    {"DESCRIPTION",
     "Of the points of each series keeps those that no other beats in both throughput per GPU and "
     "what it is traded against, and compares the series between their points. RESULTS are "
     "directories of runs (or a directory of such), InferenceX aggregates, JSON arrays of flat "
     "rows, results of vLLM's bench serve, or CSV with a line of names: label, hw, framework, "
     "model, precision, spec, date, dataset, isl, osl, conc, tp, gpus, tput_per_gpu, "
     "output_tput_per_gpu, "
     "input_tput_per_gpu and {mean,median,p75,p90,p95,p99}_{ttft,tpot,e2el,intvty}, times in "
     "seconds or, with _ms behind the name, milliseconds. Interactivity is 1 / TPOT of the same "
     "statistic where a file has but one of them.\n\n"
     "Between two points every quantity is interpolated over the same points of the frontier, "
     "nothing is said beyond its ends unless --extrapolate, and what was extrapolated is marked. "
     "At "
     "an interactivity, throughput and cost are two such curves, not reciprocals of each other; "
     "what the price comes to at the throughput stands beside. "
     "Ratios are those of the quantity that was not held equal; above 1 is better than the "
     "baseline.\n\n"
     "Runs that are scaled, invalid, cancelled or aborted are marked. They stand on a frontier "
     "only "
     "where their series has nothing else, cancelled and aborted ones on none."},
    {"JSON",
     "{\"x\", \"statistic\", \"throughput\", \"interpolation\", \"left_out\", \"prices\", "
     "\"series\": [{\"name\", \"comparable\", \"points\", \"frontier\": [{\"interactivity\" (or "
     "\"ttft\", "
     "\"e2el\"), \"throughput_per_gpu\", \"concurrency\", \"ttft_seconds\", "
     "\"dollars_per_million\", \"tokens_per_dollar\", \"tokens_per_second_per_megawatt\", "
     "\"joules_per_token\", \"on_frontier\", \"label\", \"workload\", "
     "\"state\" (null, or why it is not comparable), \"source\"}]}], \"at_interactivity\", "
     "\"at_latency\", \"at_throughput\": [{\"value\", \"baseline\", \"series\": [{\"series\", "
     "\"found\", \"extrapolated\", \"comparable\", \"interactivity\", \"throughput_per_gpu\", "
     "\"concurrency\", "
     "\"ttft_seconds\", \"dollars_per_million\", \"tokens_per_dollar\", "
     "\"dollars_per_million_at_throughput\", \"ratio\"}]}], "
     "\"same_concurrency\": "
     "[{\"concurrency\", \"series\": [{\"series\", \"interactivity\", "
     "\"throughput_per_gpu\", \"ratio\", \"throughput_ratio\"}]}]}. Unknown "
     "is null."},
    {"EXAMPLES",
     "  weir frontier results/c1 results/c4 results/c16 --prices tco-2026-07-owning\n"
     "  weir frontier old.csv new.csv --statistic median --at-throughput 337 --interp linear\n"
     "  weir frontier sweep/ --x ttft --at-latency 2 --series label --json"},
};

const struct command command_frontier = {
    .name = "frontier",
    .synopsis = "RESULTS... [--at-interactivity X] [--at-throughput Y] [--prices TABLE] [--json]",
    .summary = "show which measured points are worth having, and what lies between",
    .options = {frontier_groups, sizeof frontier_groups / sizeof *frontier_groups, "RESULTS",
                offsetof(struct frontier_args, results), true, true},
    .record_bytes = sizeof(struct frontier_args),
    .section = frontier_sections,
    .n_sections = sizeof frontier_sections / sizeof frontier_sections[0],
    .run = run_frontier,
};
