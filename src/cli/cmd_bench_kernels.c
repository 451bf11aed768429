/* cmd_bench_kernels.c: `weir bench kernels`: how near each operation comes to what the machine can
 * do. */
#include "base/cpu.h"
#include "base/plural.h"
#include "bench/kernels.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/measure_args.h"
#include "cli/progress.h"

#include <string.h>
#include <unistd.h>

struct bench_kernels_args {
    int device;
    uint32_t threads;
    char *filter, *isa, *baseline;
    double wait;
    bool quick, list, small, json;
};

#define AT(FIELD) offsetof(struct bench_kernels_args, FIELD)
static const struct option_spec bench_kernels_options[] = {
    {.name = "device",
     .value = "D",
     .type = OPTION_CHOICE,
     .offset = AT(device),
     .choices = "cpu|cuda|hip",
     .fallback = "cpu",
     .offered = "cpu",
     .refusal = "kernels of this device are not in the table of this version; use cpu",
     .help = "Whose kernels."},
    MEASURE_THREADS(AT(threads)),
    {.name = "filter",
     .value = "F",
     .type = OPTION_TEXT,
     .offset = AT(filter),
     .help = "Only cases whose name, shape and format contain one of these words, separated by "
             "commas: kda_step, mxfp4, \"expert_w1 3072x3584 n=8\"; \"n=1 \" with a space is not "
             "n=16."},
    MEASURE_ISA(AT(isa)),
    {.name = "baseline",
     .value = "NAME",
     .type = OPTION_TEXT,
     .offset = AT(baseline),
     .help =
         "Measure another of these in turn with it and print how many times as long that "
         "takes; fastest: whichever of the others is quickest in each case; onednn: the library "
         "of that name, where it is installed, on BF16 matrices, in BF16 or, where it has no "
         "such product for this processor, in f32, conversions left out."},
    {.name = "quick",
     .type = OPTION_FLAG,
     .offset = AT(quick),
     .help = "Fewer samples, and without the cases that take seconds or gigabytes."},
    MEASURE_WAIT(AT(wait), "each case"),
    {.name = "small",
     .type = OPTION_FLAG,
     .offset = AT(small),
     .help = "The whole table at small shapes in a few seconds: for errors only, its times mean "
             "nothing."},
};
static const struct option_spec bench_kernels_output[] = {
    {.name = "list",
     .type = OPTION_FLAG,
     .offset = AT(list),
     .help = "Measure nothing: print the cases with what they must move and compute, and how far "
             "a result may lie from the exact one."},
    MEASURE_JSON(AT(json)),
};
static const struct option_group bench_kernels_groups[] = {
    {"What", bench_kernels_options, sizeof bench_kernels_options / sizeof bench_kernels_options[0],
     0},
    {"Output", bench_kernels_output, 2, 0},
};

/* ------------------------------------------------------------------------------------- printing
 */

static void print_head(bool baseline) {
    printf("%-13s %-29s %-5s %11s %7s %8s %6s %-6s %8s%s\n", "kernel", "shape", "type", "us",
           "GB/s", "GFLOP/s", "roof", "by", "error", baseline ? "  baseline" : "");
}

static void print_row(const struct kernel_row *r) {
    if (r->skipped[0]) {
        printf("%-13s %-29s %-5s skipped: %s\n", r->c.name, r->shape, kernel_format(&r->c),
               r->skipped);
        return;
    }
    printf("%-13s %-29s %-5s %11.1f %7.1f %8.1f %5.1f%% %-6s %8.1e", r->c.name, r->shape,
           kernel_format(&r->c), r->main.us, r->main.gbps, r->main.gflops, 100 * r->share, r->limit,
           r->error.rms);
    if (r->base.variant)
        printf("  %s %.2fx", r->base.variant, r->base.us / r->main.us);
    printf("%s%s\n", r->busy ? "  busy" : "", r->exceeded ? "  WRONG" : "");
}

static void print_list(const char *filter, bool small) {
    size_t n;
    const struct kernel_case *table = kernel_table(&n);
    char shape[96];
    const char *last = "";
    double rms = 0;
    for (size_t i = 0; i < n; i++) {
        if (!kernel_selected(&table[i], filter))
            continue;
        struct kernel_case c = small ? kernel_case_small(table[i]) : table[i];
        struct kernel_limit l = kernel_limit(&c, ACTIVATION_F32);
        uint32_t pairs = c.n * c.top_k;
        struct kernel_cost k = kernel_cost(&c, pairs < c.count ? pairs : c.count);
        if (strcmp(last, l.reason) || l.rms != rms)
            printf("error at most %.1e rms, %.1e largest: %s\n", l.rms, l.largest, l.reason);
        last = l.reason;
        rms = l.rms;
        printf("  %-13s %-29s %-5s reads %9.3f MB, changes %8.3f, writes %8.3f; %12.3f MFLOP%s\n",
               c.name, kernel_shape(&c, shape, sizeof shape), kernel_format(&c), k.read_bytes / 1e6,
               k.modify_bytes / 1e6, k.write_bytes / 1e6, k.flops / 1e6,
               table[i].slow ? "; not with --quick" : "");
    }
}

struct watch {
    bool json;
    struct progress bar;
};

static void case_done(void *arg, const struct kernel_row *row, size_t done, size_t of) {
    struct watch *w = arg;
    if (row->exceeded)
        fprintf(stderr,
                "weir: %s %s: error %.2e rms (%.1e allowed), %.2e largest (%.1e allowed), %llu "
                "wrong choices\n",
                row->c.name, row->shape, row->error.rms, row->bound.rms, row->error.largest,
                row->bound.largest, (unsigned long long)row->error.wrong);
    if (w->json) {
        w->bar.total = of;
        progress_to(&w->bar, done);
    } else {
        print_row(row);
        fflush(stdout);
    }
}

static void print_end(const struct kernel_report *r) {
    const struct roof *f = &r->roof;
    printf("\nroof at %u %s: read %.1f, modify %.1f, copy %.1f GB/s of memory; %.0f GB/s of "
           "cache; f32 %.0f",
           r->threads, plural(r->threads, "thread", "threads"), f->read, f->modify, f->copy,
           f->cache, f->peak[ARITHMETIC_F32]);
    for (enum arithmetic i = ARITHMETIC_BF16; i < ARITHMETICS; i++)
        if (f->peak[i] > 0)
            printf(", %s %.0f", arithmetic_name(i), f->peak[i]);
    printf(" GFLOP/s; a barrier %.2f us\n", r->barrier_us);
}

static int run_bench_kernels(void *record, weir_error *err) {
    struct bench_kernels_args *a = record;
    if (a->list) {
        print_list(a->filter, a->small);
        return 0;
    }
    const struct column *column = kernels_column(a->isa);
    if (!column) {
        char names[256];
        weir_fail(err, WEIR_BAD_VALUE, "--isa", "'%.40s' is not on this machine: fastest, %s",
                  a->isa, kernels_columns(names, sizeof names));
        return command_exit_status(err);
    }
    struct watch watch = {.json = a->json};
    struct kernel_options o = {.threads = a->threads ? a->threads : cpu_count(),
                               .filter = a->filter,
                               .column = column,
                               .baseline = a->baseline,
                               .quick = a->quick,
                               .small = a->small,
                               .wait_seconds = a->wait,
                               .done = case_done,
                               .arg = &watch};
    if (a->json)
        progress_begin(&watch.bar, "kernels", 1);
    else
        print_head(a->baseline != NULL);
    struct kernel_report report;
    weir_status s = kernels_run(&o, &report, err);
    if (a->json)
        progress_end(&watch.bar);
    if (s)
        return command_exit_status(err);
    char line[256];
    if (*kernels_warning(&report, line, sizeof line))
        fprintf(stderr, "weir: warning: %s\n", line);
    if (a->json)
        s = io_print_json(kernels_json(&report), err);
    else
        print_end(&report);
    int status = s ? command_exit_status(err) : report.exceeded ? 1 : 0;
    kernels_free(&report);
    return status;
}

static const struct command_section bench_kernels_sections[] = {
    {"DESCRIPTION",
     "Runs the operations a step of Kimi K3 consists of, each at its true shape and through the "
     "very code an engine runs, and says for each how long it takes, how near that is to what the "
     "machine could do at best, and how far the result lies from the exact one.\n\n"
     "The roof is measured by the same threads, from other buffers, before and after every sample: "
     "bandwidth of reading, of changing in place and of copying, and the peak of multiply-adds in "
     "registers (f32; with bf16 and int8 dot products where the processor has them). From these "
     "and from what an operation must at least move and compute comes its least time; the share is "
     "that time over the one measured, the median over samples, and \"by\" names what binds: read, "
     "modify, copy, an arithmetic, or cache for operations on a few rows, whose data the operation "
     "before has just written. Working sets are at least eight times the last cache and lie on "
     "huge pages, except for those.\n\n"
     "A case is marked busy when other processes or the hypervisor took processor time, or when "
     "samples or roofs lie more than 15 % apart (quartiles); figures of a busy machine are not "
     "worth comparing.\n\n"
     "Exit status 1 when a result lies further from the exact one than the table allows; the row "
     "says WRONG. --list shows the bounds and their reasons."},
    {"JSON",
     "{\"machine\": {\"model\", \"cores\", \"usable_cores\", \"threads\", \"isa\", \"extensions\", "
     "\"kernel\", \"memory_bytes\", \"huge_pages\", \"caches\": [{\"level\", \"type\", \"bytes\", "
     "\"shared_by\"}]}, \"roof\": {\"read_gbps\", \"modify_gbps\", \"copy_gbps\", \"cache_gbps\", "
     "\"f32_gflops\", \"bf16_gflops\", \"int8_gflops\", \"buffer_bytes\", \"barrier_us\"}, "
     "\"kernels\": [...], \"quiet\", \"idle_before\", \"idle_after\", \"exceeded\", "
     "\"warnings\"}.\n\n"
     "A kernel: {\"name\", \"shape\", \"dtype\", \"rows\", \"arithmetic\", \"variant\", \"us\", "
     "\"gbps\", "
     "\"gflops\", \"best_us\", \"spread\", \"samples_us\", \"share_of_roof\", "
     "\"best_share_of_roof\", \"limit\", \"error\", "
     "\"error_detail\": {\"rms\", \"largest\", \"values\", \"wrong_ids\", \"rms_bound\", "
     "\"largest_bound\", \"reason\"}, \"exceeded\", \"busy\", \"idle\": {\"others_cores\", "
     "\"stolen_cores\", \"seconds\"}, \"read_bytes\", \"modify_bytes\", \"write_bytes\", "
     "\"cache_bytes\", \"flops\", \"working_set_bytes\", \"copies\", \"calls_per_sample\", "
     "\"samples_share\", \"samples_roof\", \"baseline\": {\"variant\", \"us\", \"gbps\", "
     "\"gflops\", \"best_us\", \"spread\", \"samples_us\", \"times_as_fast\"}}. Errors are "
     "relative to the root "
     "mean square of the exact results. A case that was not measured has \"skipped\", the reason, "
     "behind its variant and nothing else. Bandwidths count what is changed in place twice."},
    {"EXAMPLES", "  weir bench kernels --quick\n"
                 "  weir bench kernels --threads 2 --filter expert_w1,trunk_in --json\n"
                 "  weir bench kernels --filter kda_step --isa avx2 --baseline fastest"},
};

const struct command command_bench_kernels = {
    .name = "bench kernels",
    .synopsis = "[--device D] [--threads N] [--filter F] [--isa NAME] [--quick] [--json]",
    .summary = "measure operations against the limits of the machine",
    .options = {bench_kernels_groups, 2, NULL, 0, false},
    .record_bytes = sizeof(struct bench_kernels_args),
    .section = bench_kernels_sections,
    .n_sections = sizeof bench_kernels_sections / sizeof bench_kernels_sections[0],
    .run = run_bench_kernels,
};
