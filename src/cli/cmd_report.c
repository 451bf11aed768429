/* cmd_report.c: `weir report`: one page of any number of runs. */
#include "bench/report.h"

#include "cli/command.h"

#include <math.h>

struct report_args {
    struct option_list dirs;
    char *out, *title, *prices;
    double price;
};

static const struct option_spec report_options[] = {
    {.name = "out",
     .value = "FILE.html",
     .type = OPTION_TEXT,
     .offset = offsetof(struct report_args, out),
     .required = true,
     .help = "The page; an existing one is replaced."},
    {.name = "title",
     .value = "TEXT",
     .type = OPTION_TEXT,
     .offset = offsetof(struct report_args, title),
     .help = "Title of the page."},
    {.name = "prices",
     .value = "TABLE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct report_args, prices),
     .help = "A price table by name, or a file of one; the runs' hardware names its row."},
    {.name = "price",
     .value = "P",
     .type = OPTION_REAL,
     .offset = offsetof(struct report_args, price),
     .min = 0,
     .max = 1e6,
     .against = "prices",
     .help = "Dollars per GPU and hour for all runs, in place of a table."},
};

static int run_report(void *record, weir_error *err) {
    const struct report_args *a = record;
    struct price_table table = {0};
    struct report_options o = {.title = a->title, .price = a->price > 0 ? a->price : NAN};
    weir_status status = WEIR_OK;
    if (a->prices && a->price > 0)
        status = weir_fail(err, WEIR_BAD_VALUE, "--price",
                           "stands in place of --prices; give one of the two");
    if (!status && a->prices) {
        status = price_table_open(a->prices, &table, err);
        o.table = &table;
    }
    if (!status)
        status = report_write((const char *const *)a->dirs.item, a->dirs.n, &o, a->out, err);
    price_table_free(&table);
    return status ? command_exit_status(err) : 0;
}

static const struct option_group report_groups[] = {
    {"Options", report_options, sizeof report_options / sizeof report_options[0], 0}};

static const struct command_section report_sections[] = {
    {"DESCRIPTION",
     "Writes one HTML page from result directories of weir bench replay; a directory that is none "
     "itself stands for those in it. The page shows the frontier of throughput against "
     "interactivity, a series for each label, cost and time to first token beside it; the "
     "distributions of latencies; where prompt tokens came from; draft acceptance; timelines; "
     "validity with all reasons and warnings; the configuration and what differs. All figures can "
     "be downloaded from it as CSV and as JSON.\n\n"
     "The page is one file without network: a content security policy admits its own style and "
     "script alone, and it can be read without the script. Runs that are scaled, invalid or "
     "cancelled are marked as not comparable; they stand on a frontier only where their series "
     "has no others. Cost is shown with --prices or --price, and never mixes two tables."},
    {"EXAMPLES", "  weir report results/sweep --out report.html --prices tco-2026-07-owning"},
};

const struct command command_report = {
    .name = "report",
    .synopsis = "DIR... --out FILE.html [OPTIONS]",
    .summary = "write one page of any number of benchmark runs",
    .options = {report_groups, 1, "DIR", offsetof(struct report_args, dirs), true,
                .positional_many = true},
    .record_bytes = sizeof(struct report_args),
    .section = report_sections,
    .n_sections = sizeof report_sections / sizeof report_sections[0],
    .run = run_report,
};
