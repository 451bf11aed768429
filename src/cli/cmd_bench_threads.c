/* cmd_bench_threads.c: `weir bench threads`: what the thread team costs, alone and beside a busy
 * neighbour. */
#include "base/cpu.h"
#include "base/plural.h"
#include "bench/threads.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/measure_args.h"

struct bench_threads_args {
    uint32_t threads, rounds;
    double seconds, wait;
    bool json;
};

#define AT(FIELD) offsetof(struct bench_threads_args, FIELD)
static const struct option_spec bench_threads_options[] = {
    MEASURE_THREADS(AT(threads)),
    {.name = "rounds",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(rounds),
     .min = 1,
     .max = THREADS_ROUNDS,
     .fallback = "3",
     .help = "Samples of each figure; the median is printed."},
    {.name = "seconds",
     .value = "S",
     .type = OPTION_REAL,
     .offset = AT(seconds),
     .min = 0.001,
     .max = 60,
     .fallback = "0.2",
     .help = "How long a sample takes."},
    MEASURE_WAIT(AT(wait), "each round"),
    MEASURE_JSON(AT(json)),
};
static const struct option_group bench_threads_groups[] = {
    {"Options", bench_threads_options,
     sizeof bench_threads_options / sizeof bench_threads_options[0], 0},
};

static void print_report(const struct threads_report *r) {
    printf("%u %s on %u %s; the neighbour computes on core %u without end\n", r->threads,
           plural(r->threads, "thread", "threads"), r->cores, plural(r->cores, "core", "cores"),
           r->neighbour);
    printf("waking a sleeping team: %.1f us\n\n", r->wake_us);
    printf("%-28s %12s %12s\n", "a barrier, us", "alone", "neighbour");
    for (int k = 0; k < 2; k++)
        printf("  %-26s %12.2f %12.2f\n", k ? "polling without end" : "team",
               r->barrier_us[k].quiet_median, r->barrier_us[k].busy_median);
    printf("\n%-28s %12s %12s %9s %9s %13s\n", "steps a second", "alone", "neighbour", "kept",
           "members", "sleeps/step");
    for (int i = 0; i < THREADS_ITEMS; i++)
        for (int way = 0; way < THREADS_WAYS; way++) {
            const struct threads_pair *p = &r->steps[i][way];
            printf("  %4.0f us of work, %-10s %12.0f %12.0f %8.1f%% %9.2f %13.4f\n", r->item_us[i],
                   threads_way_name((enum threads_way)way), p->quiet_median, p->busy_median,
                   100 * p->busy_median / p->quiet_median, r->members[i][way], r->parks[i][way]);
        }
    if (!idle_is_quiet(&r->before) || !idle_is_quiet(&r->after))
        fprintf(stderr,
                "weir: warning: the machine was busy: others kept %.2f cores before and %.2f "
                "after; do not compare these figures\n",
                r->before.others, r->after.others);
}

static int run_bench_threads(void *record, weir_error *err) {
    const struct bench_threads_args *a = record;
    struct threads_options o = {.threads = a->threads ? a->threads : cpu_count(),
                                .seconds = a->seconds,
                                .wait_seconds = a->wait,
                                .rounds = a->rounds};
    struct threads_report r;
    weir_status s = threads_measure(&o, &r, err);
    if (!s && a->json)
        s = io_print_json(threads_json(&r), err);
    else if (!s)
        print_report(&r);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section bench_threads_sections[] = {
    {"DESCRIPTION",
     "Measures the thread team that runs the steps of an engine: what a barrier costs, how long it "
     "takes to wake a team that has gone to sleep, and how much of its work it keeps doing when "
     "another program computes on one of its cores. The neighbour is a thread of this command, "
     "bound to the first core it may use; samples with and without it alternate.\n\n"
     "Work comes in steps as an engine's does: each member computes for 20, 100 or 1000 "
     "microseconds (at full speed), then all meet. \"claimed\" shares a step out as members come "
     "to its parts, \"fixed\" gives each an equal share, both with the team's own barrier, which "
     "polls for a moment and then sleeps, and with fewer members while a core is taken. "
     "\"polling\" has equal shares, all members and a barrier that polls without end; it is there "
     "for comparison and used nowhere else.\n\n"
     "\"kept\" is the speed beside the neighbour over the speed alone, \"members\" how many took "
     "part there on average. With N members on N cores the neighbour takes half of one, so that "
     "(N - 0.5) / N is the most that can be kept; a team that leaves the core to him keeps "
     "(N - 1) / N and saves the meetings. \"sleeps/step\" counts how often a member went to sleep "
     "in a step, alone: near zero, or the steps are paced by the kernel's waking and not by their "
     "work."},
    {"JSON",
     "{\"machine\": as of `weir bench kernels`, \"threads\", \"neighbour_core\", \"wake_us\", "
     "\"barrier_us\": {\"team\": PAIR, \"polling\": PAIR}, \"steps\": [{\"item_us\", \"claimed\": "
     "PAIR, \"fixed\": PAIR, \"polling\": PAIR}], \"quiet\"}. PAIR is {\"quiet\", \"busy\", "
     "\"samples_quiet\", \"samples_busy\"}, medians and samples without and with the neighbour; "
     "in steps a second below \"steps\", and there with \"kept\", \"members_busy\" and "
     "\"sleeps_per_step\"."},
    {"EXAMPLES", "  weir bench threads\n"
                 "  weir bench threads --threads 8 --rounds 9 --json"},
};

const struct command command_bench_threads = {
    .name = "bench threads",
    .synopsis = "[--threads N] [--rounds N] [--seconds S] [--wait S] [--json]",
    .summary = "measure the thread team, alone and beside a busy neighbour",
    .options = {bench_threads_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct bench_threads_args),
    .section = bench_threads_sections,
    .n_sections = sizeof bench_threads_sections / sizeof bench_threads_sections[0],
    .run = run_bench_threads,
};
