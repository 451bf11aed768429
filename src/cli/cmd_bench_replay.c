/* cmd_bench_replay.c: `weir bench replay`: one run of a workload against a server. */
#include "cli/bench_args.h"
#include "cli/command.h"
#include "cli/io.h"

#include <string.h>

struct replay_args {
    struct bench_args bench;
    uint32_t concurrency;
    bool given[1];
};

static const struct option_spec concurrency_option[] = {
    {.name = "concurrency",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct replay_args, concurrency),
     .min = 1,
     .max = 1048576,
     .fallback = "1",
     .against = "request-rate",
     .help = "Lanes: session trees that are alive at once. Not of the open loop."},
};

static int run_replay(void *record, weir_error *err) {
    const struct replay_args *a = record;
    struct bench_job job;
    struct run run = {0};
    struct run_summary *summary = malloc(sizeof *summary);
    weir_status s = summary ? bench_job_open(&a->bench, &job, err)
                            : weir_fail(err, WEIR_NO_MEMORY, "replay", "no memory");
    if (!s && job.open_loop && a->given[0]) {
        s = weir_fail(err, WEIR_BAD_VALUE, "--concurrency",
                      "belongs to the closed loop; the open loop has --max-concurrency");
        bench_job_close(&job);
    }
    if (!s) {
        s = bench_job_run(&job, a->concurrency, a->bench.out, &run, summary, err);
        if (!s && a->bench.json)
            s = io_print_json(bench_json(&run, summary, a->bench.out), err);
        else if (!s)
            bench_print(&run, summary, a->bench.out);
        char why[1024];
        bool failed = !s && !bench_stands(&run, summary, why, sizeof why);
        if (failed)
            fprintf(stderr, "weir: bench replay: %s\n", why);
        failed = failed || (!s && job.unrecorded);
        run_free(&run);
        bench_job_close(&job);
        free(summary);
        return s ? command_exit_status(err) : failed;
    }
    free(summary);
    return command_exit_status(err);
}

static const struct option_group replay_groups[] = {
    {"Point", concurrency_option, 1, 0, offsetof(struct replay_args, given)}, BENCH_GROUPS};

static const struct command_section replay_sections[] = {
    {"DESCRIPTION",
     "Replays recorded agent sessions, or prompts of chosen lengths, against any server of the "
     "OpenAI API and measures what its users would see.\n\n"
     "In the closed loop each of --concurrency lanes plays one session after the other: a call "
     "follows the end of the one before after the recorded wait, sub-agents run beside it. Before "
     "the clock starts, each lane sends a primer and a warm-up of one-token calls. In the open "
     "loop "
     "(--arrivals, --request-rate) calls are sent at their times whatever became of the others.\n\n"
     "Prompts are token ids that follow from the seed, the play and the recorded block numbers: "
     "what a session shares with itself is shared, and no two plays share a block. Answers have "
     "exactly the recorded length where the server allows to ask for that (min_tokens, "
     "ignore_eos).\n\n"
     "Ctrl-C ends the run as cancelled and still writes its files; a second one ends the "
     "program. The exit status is 0 for a run whose figures stand, and 1, with a line on standard "
     "error that says why, where nothing was kept, more than 10 % of the calls failed, or the run "
     "was cancelled or aborted, or where it did not get into the run history; its files are "
     "written all the same.\n\n"
     "Definitions of all metrics, the files and what makes a run valid: docs/bench.md."},
    {"JSON", "{\"out\", \"concurrency\", \"row\", \"summary\", \"inferencex\", \"warnings\"}: the "
             "directory, the flat row that charts use, and the objects that are also written to "
             "profile_export_aiperf.json and inferencex.json."},
    {"EXAMPLES",
     "  weir bench replay --trace sessions.jsonl --format weka --url http://127.0.0.1:8000 "
     "--concurrency 16 --duration 900 --out results/c16\n"
     "  weir bench replay --random-input-len 8000 --random-output-len 1000 --num-prompts 200 "
     "--url http://127.0.0.1:8000 --concurrency 8 --out results/8k1k\n"
     "  weir bench replay --trace conversation.jsonl --format mooncake --arrivals recorded "
     "--url http://127.0.0.1:8000 --out results/open"},
};

const struct command command_bench_replay = {
    .name = "bench replay",
    .synopsis = "(--trace FILE --format F | --random-input-len N) --url URL --out DIR [options]",
    .summary = "replay agent sessions or fixed lengths against a server and measure",
    .options = {replay_groups, sizeof replay_groups / sizeof *replay_groups, NULL, 0, false},
    .record_bytes = sizeof(struct replay_args),
    .section = replay_sections,
    .n_sections = sizeof replay_sections / sizeof replay_sections[0],
    .run = run_replay,
};
