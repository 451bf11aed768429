/* cmd_inspect.c: `weir inspect`: what a checkpoint directory holds. */
#include "cli/command.h"
#include "cli/io.h"
#include "load/inspect.h"

struct inspect_args {
    char *dir;
    bool json;
};

static const struct option_spec inspect_options[] = {
    {.name = "json",
     .type = OPTION_FLAG,
     .offset = offsetof(struct inspect_args, json),
     .help = "Print one JSON object."},
};

static int run_inspect(void *record, weir_error *err) {
    const struct inspect_args *a = record;
    struct inspect_report *r;
    if (inspect_open(a->dir, &r, err))
        return command_exit_status(err);
    weir_status status = WEIR_OK;
    if (a->json)
        status = io_print_json(inspect_json(r), err);
    else
        inspect_print(r, stdout);
    bool good = !r->has_weights || inspect_complete(r);
    free(r);
    return status || !good ? 1 : 0;
}

static const struct option_group inspect_groups[] = {{"Options", inspect_options, 1, 0}};

static const struct command_section inspect_sections[] = {
    {"DESCRIPTION",
     "Says what a checkpoint directory holds: tensors, parameters and bytes by kind, what is "
     "missing "
     "or does not fit the configuration, and how much memory a running sequence needs. Without "
     "safetensors files everything follows from config.json alone. The exit status is 1 when "
     "tensors are missing or of the wrong type or shape."},
    {"JSON",
     "{\"dir\", \"family\", \"model\": {dimensions}, \"expert_dtype\", \"total\": {\"tensors\", "
     "\"parameters\", \"bytes\"}, \"active_parameters\", \"kinds\", \"layers\", \"sequence\": "
     "{\"kv_bytes_per_token_f32\", \"kv_bytes_per_token_bf16\", "
     "\"state_recurrent_bytes\", \"state_conv_bytes\"}, \"has_weights\", \"complete\", "
     "\"shards\", \"shards_absent\", \"stored_bytes\", \"claimed_bytes\", "
     "\"skipped_tensors\", \"missing\", \"unfit\", \"extra\"}"},
    {"EXAMPLES", "  weir inspect models/tiny-k3"},
};

const struct command command_inspect = {
    .name = "inspect",
    .synopsis = "DIR [--json]",
    .summary = "say what a checkpoint holds and what is missing",
    .options = {inspect_groups, 1, "DIR", offsetof(struct inspect_args, dir), true},
    .record_bytes = sizeof(struct inspect_args),
    .section = inspect_sections,
    .n_sections = sizeof inspect_sections / sizeof inspect_sections[0],
    .run = run_inspect,
};
