/* cmd_bench_step.c: `weir bench step`: where the time of a model's steps goes. */
#include "base/cpu.h"
#include "base/plural.h"
#include "bench/kernels.h"
#include "bench/step.h"
#include "bench/step_cost.h"
#include "cli/command.h"
#include "cli/engine_args.h"
#include "cli/io.h"
#include "cli/measure_args.h"
#include "cli/measure_device.h"
#include "cli/progress.h"

struct bench_step_args {
    char *model, *isa, *tuning, *device_library, *device_modules;
    uint32_t threads, prompt_tokens, history, max_tokens, sequences, rows, rounds;
    int device, dense_dtype, kv_dtype;
    double wait;
    bool json;
};

#define AT(FIELD) offsetof(struct bench_step_args, FIELD)
static const struct option_spec bench_step_options[] = {
    {.name = "model",
     .value = "DIR",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(model),
     .required = true,
     .help = "The checkpoint, perhaps one of `weir synth`."},
    ENGINE_DEVICE(AT(device)),
    ENGINE_DEVICE_LIBRARY(AT(device_library)),
    ENGINE_DEVICE_MODULES(AT(device_modules)),
    MEASURE_THREADS(AT(threads)),
    {.name = "prompt-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(prompt_tokens),
     .min = 1,
     .max = 1 << 20,
     .fallback = "2048",
     .help = "Length of the prompt; decode steps follow it."},
    {.name = "history",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(history),
     .min = 0,
     .max = 1 << 20,
     .fallback = "0",
     .help = "Decode steps follow so many positions of invented history in place of a prompt; 0: a "
             "prompt."},
    {.name = "max-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_tokens),
     .min = 0,
     .max = STEP_SAMPLES,
     .fallback = "16",
     .help = "Decode steps to time; 0: none."},
    {.name = "rounds",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(rounds),
     .min = 0,
     .max = STEP_SAMPLES,
     .fallback = "3",
     .help = "Prompts to time; 0: none. Not beside --max-tokens 0."},
    ENGINE_SEQS(AT(sequences), 1, 1024, "1", "Sequences that decode together."),
    ENGINE_BATCHED_TOKENS(AT(rows), 1, "512", "Tokens of a prompt in one step, at most."),
    MEASURE_ISA(AT(isa)),
    ENGINE_DENSE_DTYPE(AT(dense_dtype)),
    ENGINE_KV_DTYPE(AT(kv_dtype)),
    ENGINE_TUNING(AT(tuning)),
    MEASURE_WAIT(AT(wait), "each step or prompt"),
    MEASURE_JSON(AT(json)),
};
static const struct option_group bench_step_groups[] = {
    {"Options", bench_step_options, sizeof bench_step_options / sizeof bench_step_options[0], 0},
};

static void print_phase(const char *name, const struct step_phase *f, enum arithmetic peak) {
    if (!f->samples)
        return;
    printf("\n%s: %.2f ms, %.3f a token (median of %u, quartiles %.0f %% apart)\n", name, f->ms,
           f->ms_per_token, f->samples, 100 * f->spread);
    printf("%-13s %6s %10s %7s %10s %10s %10s %7s %s\n", "operation", "calls", "ms", "share", "MB",
           "GFLOP", "roof ms", "roof", "by");
    for (uint32_t i = 0; i < f->n; i++) {
        const struct step_row *r = &f->row[i];
        printf("%-13s %6u %10.3f %6.1f%% %10.3f %10.3f %10.3f %6.1f%% %s%s\n", op_name(r->kind),
               r->calls, r->ms, 100 * r->share, r->bytes / 1e6, r->flops / 1e9, r->roof_ms,
               100 * r->of_roof, r->limit,
               step_in_table(r->kind) ? "" : "  not in the kernel table");
    }
    printf("%-13s %6s %10.3f %6.1f%%\n", "between", "", f->between_ms,
           f->ms > 0 ? 100 * f->between_ms / f->ms : 0);
    printf("%-13s %6s %10.3f %7s %10.3f %10.3f %10.3f %6.1f%%\n", "all", "", f->ms, "",
           f->bytes / 1e6, f->flops / 1e9, f->roof_ms, 100 * f->of_roof);
    printf("bytes over the bandwidth of reading: %.3f ms, %.1f %% of the time; all operations over "
           "the peak of %s: %.1f %%\n",
           f->memory_ms, 100 * f->of_memory, arithmetic_name(peak), 100 * f->of_peak);
}

static void print_report(const struct step_report *r) {
    const struct roof *f = &r->roof;
    enum arithmetic peak = roof_has(r->arithmetic) ? r->arithmetic : ARITHMETIC_F32;
    printf("%s, column %s, %u %s, %u operations a step\n", r->model, r->column, r->threads,
           plural(r->threads, "thread", "threads"), r->ops);
    printf("roof: read %.1f, modify %.1f, copy %.1f GB/s of memory; %s %.0f GFLOP/s\n", f->read,
           f->modify, f->copy, arithmetic_name(peak), f->peak[peak]);
    print_phase("decode", &r->decode, peak);
    print_phase("prefill", &r->prefill, peak);
}

static void sample_done(void *arg, uint32_t done, uint32_t of) {
    struct progress *p = arg;
    p->total = of;
    progress_to(p, done);
}

static weir_status open_device(const struct bench_step_args *a, struct step_options *o,
                               weir_error *err) {
    const struct measure_device m = {.device = a->device,
                                     .library = a->device_library,
                                     .modules = a->device_modules,
                                     .dense_dtype = a->dense_dtype,
                                     .kv_dtype = a->kv_dtype};
    if (a->device != ENGINE_DEVICE_CPU && strcmp(a->isa, "fastest") != 0)
        return weir_fail(err, WEIR_BAD_VALUE, "--isa", "is about this machine's processor");
    weir_status s = measure_device_open(&m, &o->kv_dtype, &o->device, err);
    if (o->device) {
        o->column = &column_gpu;
        o->threads = 1; /* draws tokens */
    }
    return s;
}

static int run_bench_step(void *record, weir_error *err) {
    static const enum dtype kv[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_FP8};
    static const enum dense_form dense[] = {DENSE_BF16, DENSE_INT8, DENSE_FP8};
    struct bench_step_args *a = record;
    struct progress bar;
    char names[256];
    const struct column *column = kernels_column(a->isa);
    if (!column) {
        weir_fail(err, WEIR_BAD_VALUE, "--isa", "'%.40s' is not on this machine: fastest, %s",
                  a->isa, kernels_columns(names, sizeof names));
        return command_exit_status(err);
    }
    if (!a->rounds && !a->max_tokens) {
        weir_fail(err, WEIR_BAD_VALUE, "--rounds", "0 beside --max-tokens 0: nothing to time");
        return command_exit_status(err);
    }
    if (!column->packing && a->dense_dtype != 0) {
        weir_fail(err, WEIR_BAD_VALUE, "--dense-dtype",
                  "the exact column takes weights as stored and f32 activations");
        return command_exit_status(err);
    }
    struct step_options o = {.model = a->model,
                             .column = column,
                             .dense = dense[a->dense_dtype],
                             .kv_dtype = kv[a->kv_dtype],
                             .threads = a->threads ? a->threads : cpu_count(),
                             .prompt_tokens = a->prompt_tokens,
                             .history = a->history,
                             .decode_tokens = a->max_tokens,
                             .sequences = a->sequences,
                             .rows = a->rows,
                             .prompts = a->rounds,
                             .wait_seconds = a->wait,
                             .tuning = a->tuning,
                             .done = sample_done,
                             .arg = &bar};
    struct step_report r;
    weir_status s = open_device(a, &o, err);
    if (!s) {
        progress_begin(&bar, "steps", 1);
        s = step_measure(&o, &r, err);
        progress_end(&bar);
    }
    gpu_device_close(o.device);
    if (s)
        return command_exit_status(err);
    if (!r.quiet)
        fprintf(stderr,
                "weir: warning: the machine was busy: others kept %.2f cores, and %.2f were not to "
                "be had; do not compare these figures\n",
                r.idle.others, r.idle.stolen);
    if (a->json)
        s = io_print_json(step_json(&r), err);
    else
        print_report(&r);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section bench_step_sections[] = {
    {"DESCRIPTION",
     "Runs a model's own step program and says where the time goes: decode steps behind a prompt, "
     "then whole prompts in steps of --max-num-batched-tokens. Each kind of operation has a row: "
     "how often it runs, its time (median over steps or prompts) and share, the bytes it must move "
     "and the operations it must compute, by the same count as `weir bench kernels`, and how long "
     "that takes at the roof, which is measured before every sample. \"by\" names what binds. "
     "Operations that the table of kernels lacks are marked.\n\n"
     "\"between\" is time of a step outside its operations: waking the team, and the caller. The "
     "last line compares the whole with all bytes over the bandwidth of reading, which a decode "
     "step cannot beat, and with all operations over the peak of the column's arithmetic, which a "
     "prompt cannot beat.\n\n"
     "Activations of 64 rows or more count as traffic of memory, as in the kernel table; a large "
     "last cache may still hold them, so that small operations of a prompt can come out above "
     "100 %.\n\n"
     "The clock is read once an operation, some 50 ns. The weights of a synthetic model "
     "choose experts nearly evenly; bytes count the experts that were chosen.\n\n"
     "On a device (--device) a decode step is a graph, launched many times in a row, and an "
     "operation's time is what the graph is shorter by without operations of its kind, with the "
     "same experts chosen; so \"between\" is what they hide of each other, and can be negative. "
     "The "
     "roof is the rate of a copying kernel, bytes read and written; arithmetic has none. Prompts "
     "are timed as a whole, their operations one behind the end of the other."},
    {"JSON",
     "{\"machine\": as of `weir bench kernels`, \"model\", \"column\", \"arithmetic\", "
     "\"operations\", \"roof\": {\"read_gbps\", \"modify_gbps\", \"copy_gbps\", \"cache_gbps\", "
     "\"peak_gflops\"}, \"decode\": PHASE, \"prefill\": PHASE, \"quiet\"}. PHASE is null or "
     "{\"tokens\", \"ms\", \"ms_per_token\", \"between_ms\", \"spread\", \"bytes\", \"flops\", "
     "\"memory_ms\", \"share_of_memory_roof\", \"roof_ms\", \"share_of_roof\", "
     "\"share_of_peak\", \"outside_share\", \"operations\": [{\"name\", \"calls\", \"ms\", "
     "\"share\", \"bytes\", \"flops\", \"roof_ms\", \"share_of_roof\", \"limit\", "
     "\"in_table\"}], \"samples_ms\"}; \"outside_share\" is the largest share of an operation "
     "outside the table. What is changed in place counts twice in \"bytes\"."},
    {"EXAMPLES", "  weir synth --preset kimi-k3 --layers 4 --experts 64 --seed 1 --out k3\n"
                 "  weir bench step --model k3\n"
                 "  weir bench step --model k3 --rounds 0 --max-num-seqs 8 --json\n"
                 "  weir bench step --model k3 --device cuda --history 32768 --rounds 0"},
};

const struct command command_bench_step = {
    .name = "bench step",
    .synopsis =
        "--model DIR [--device D] [--threads N] [--prompt-tokens N] [--max-tokens N] [--json]",
    .summary = "profile the steps of a model against the limits of the machine",
    .options = {bench_step_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct bench_step_args),
    .section = bench_step_sections,
    .n_sections = sizeof bench_step_sections / sizeof bench_step_sections[0],
    .run = run_bench_step,
};
