/* cmd_bench_inspect.c: `weir bench inspect`: what a trace holds. */
#include "bench/trace_report.h"

#include "cli/command.h"
#include "cli/io.h"

#include <string.h>

struct bench_inspect_args {
    char *trace;
    int format;
    uint32_t block_size;
    bool sessions, json;
};

static const struct option_spec bench_inspect_options[] = {
    {.name = "trace",
     .value = "FILE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct bench_inspect_args, trace),
     .required = true,
     .help = "The trace. For weka also a directory: all its *.json and *.jsonl."},
    {.name = "format",
     .value = "FORMAT",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct bench_inspect_args, format),
     .choices = "weka|mooncake|azure|single_turn|multi_turn|sharegpt", /* as enum trace_format */
     .required = true,
     .help = "What is in it."},
    {.name = "block-size",
     .value = "TOKENS",
     .type = OPTION_COUNT,
     .offset = offsetof(struct bench_inspect_args, block_size),
     .min = 1,
     .max = 1 << 30,
     .fallback = "512",
     .help = "Tokens of a block of mooncake traces. Other formats say it themselves, or have no "
             "blocks."},
    {.name = "sessions",
     .type = OPTION_FLAG,
     .offset = offsetof(struct bench_inspect_args, sessions),
     .help = "Also one line for each session."},
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct bench_inspect_args, json),
     .help = "Print one JSON object."},
};

static weir_status print(const struct bench_inspect_args *a, const struct trace_report *r,
                         weir_error *err) {
    if (!a->json) {
        trace_report_print(r, a->sessions, stdout);
        return WEIR_OK;
    }
    json_t *o = trace_report_json(r, a->sessions);
    if (o && json_object_set_new(o, "trace", io_json_text(a->trace, strlen(a->trace)))) {
        json_decref(o);
        o = NULL;
    }
    return io_print_json(o, err);
}

static int run_bench_inspect(void *record, weir_error *err) {
    const struct bench_inspect_args *a = record;
    struct trace t = {0};
    struct tree tree = {0};
    struct trace_report r = {0};
    weir_status s = trace_read(a->trace, (enum trace_format)a->format,
                               &(struct trace_options){.block_tokens = a->block_size}, &t, err);
    if (!s)
        s = tree_build(&t, &tree, err);
    if (!s)
        s = trace_report_make(&t, &tree, &r, err);
    if (!s)
        s = print(a, &r, err);
    trace_report_free(&r);
    tree_free(&tree);
    trace_free(&t);
    return s ? command_exit_status(err) : 0;
}

static const struct option_group bench_inspect_groups[] = {
    {"Options", bench_inspect_options,
     sizeof bench_inspect_options / sizeof bench_inspect_options[0], 0}};

static const struct command_section bench_inspect_sections[] = {
    {"DESCRIPTION",
     "Reads a request trace and says what it holds: sessions, requests, sub-agents, tokens, how "
     "lengths and waits are spread, and how much of the prompts a prefix cache could have had.\n\n"
     "A hit is a block of the leading run of a prompt's blocks that an earlier request of the same "
     "name space had brought; the rate is that of a cache that never forgets. In tokens a hit "
     "counts its block, but never more than the prompt has.\n\n"
     "A wait lies between the end of a call and the start of the one that follows it, as a replay "
     "keeps it before any cap. Sub-agents that no turn would start are counted as dropped: a "
     "replay leaves them out. Odd waits are recorded think times that differ by more than a second "
     "from what the times of the calls say: some recorders count them from the last call whose end "
     "they know, not from the call before.\n\n"
     "What breaks the rules of the format is refused with file, line and field."},
    {"JSON",
     "{\"trace\", \"format\", \"sessions\", \"requests\", \"sub_agents\", "
     "\"sub_agent_requests\", \"dropped_sub_agents\", \"dropped_requests\", \"odd_waits\", "
     "\"parallel_chains\", "
     "\"sum_input\", \"sum_output\", \"max_input\", \"block_tokens\", \"blocks\", \"hits\", "
     "\"hit_rate\", \"hit_tokens\", \"hit_token_rate\", \"texts\", \"text_bytes\", "
     "\"span_seconds\", \"input_tokens\", \"output_tokens\", \"requests_per_session\", "
     "\"wait_seconds\", \"session_seconds\", \"warnings\", \"first_warning\"}, and with --sessions "
     "\"per_session\": [{\"id\", \"requests\", \"sub_agents\", \"sub_agent_requests\", "
     "\"dropped_sub_agents\", \"sum_input\", \"sum_output\", \"max_input\", \"block_tokens\", "
     "\"blocks\", \"hits\", \"hit_rate\", \"hit_tokens\", \"hit_token_rate\", \"seconds\"}]. The "
     "five distributions are {\"count\", \"mean\", \"std\", \"min\", \"p50\", \"p90\", \"p95\", "
     "\"p99\", \"max\"}. What the trace does not tell is null: blocks without block numbers, sums "
     "of lengths where there is only text."},
    {"EXAMPLES", "  weir bench inspect --trace sessions.jsonl --format weka --sessions\n"
                 "  weir bench inspect --trace trace.jsonl --format mooncake --json"},
};

const struct command command_bench_inspect = {
    .name = "bench inspect",
    .synopsis = "--trace FILE --format FORMAT [--sessions] [--json]",
    .summary = "say what a request trace holds",
    .options = {bench_inspect_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct bench_inspect_args),
    .section = bench_inspect_sections,
    .n_sections = sizeof bench_inspect_sections / sizeof bench_inspect_sections[0],
    .run = run_bench_inspect,
};
