/* cmd_tune.c: `weir tune`: what is fastest on this machine for the shapes of a model. */
#include "base/cpu.h"
#include "base/plural.h"
#include "bench/tune.h"
#include "cli/command.h"
#include "cli/engine_args.h"
#include "cli/io.h"
#include "cli/measure_args.h"
#include "cli/measure_device.h"
#include "cli/progress.h"

struct tune_args {
    char *model, *out, *device_library, *device_modules;
    uint32_t threads, prompt_tokens, sequences, rows, rounds;
    int device, activation_dtype, dense_dtype, kv_dtype;
    double wait;
    bool json;
};

#define AT(FIELD) offsetof(struct tune_args, FIELD)
static const struct option_spec tune_options[] = {
    {.name = "model",
     .value = "DIR",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(model),
     .required = true,
     .help = "The checkpoint."},
    {.name = "out",
     .value = "FILE",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(out),
     .help = "Where the table goes; if not given, where later starts look for it: "
             "$XDG_CACHE_HOME/weir/tuning or ~/.cache/weir/tuning, under a name that stands for "
             "machine, model, formats and threads."},
    ENGINE_DEVICE(AT(device)),
    ENGINE_DEVICE_LIBRARY(AT(device_library)),
    ENGINE_DEVICE_MODULES(AT(device_modules)),
    MEASURE_THREADS(AT(threads)),
    ENGINE_ACTIVATION_DTYPE(AT(activation_dtype)),
    ENGINE_DENSE_DTYPE(AT(dense_dtype)),
    ENGINE_KV_DTYPE(AT(kv_dtype)),
    {.name = "prompt-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(prompt_tokens),
     .min = 1,
     .max = 1 << 20,
     .fallback = "512",
     .help = "Length of the history that decode steps read."},
    ENGINE_SEQS(AT(sequences), 1, 1024, "8",
                "Sequences that decode together, at most; products of more rows are tuned in "
                "steps of a prompt."),
    ENGINE_BATCHED_TOKENS(AT(rows), 1, "512", "Tokens of a prompt in one step, at most."),
    {.name = "rounds",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(rounds),
     .min = 1,
     .max = TUNE_ROUNDS,
     .fallback = "9",
     .help = "Samples of each variant. Few make chance a winner."},
    MEASURE_WAIT(AT(wait), "each round"),
    MEASURE_JSON(AT(json)),
};
static const struct option_group tune_groups[] = {
    {"Options", tune_options, sizeof tune_options / sizeof tune_options[0], 0},
};

static void print_report(const struct tune_options *o, const struct tune_report *r) {
    uint32_t won = 0;
    printf("%s, column %s, %u %s\n\n%-13s %-6s %12s %12s %7s %-10s %s\n", o->of.model,
           o->of.column->name, o->of.threads, plural(o->of.threads, "thread", "threads"),
           "operation", "rows", "default us", "best us", "", "variant", "shape");
    for (uint32_t i = 0; i < r->n; i++) {
        const struct tune_row *row = &r->row[i];
        won += row->variant != NULL;
        printf("%-13s %-6s %12.1f %12.1f %+6.1f%% %-10s %u x %s\n", op_name(row->kind),
               row_class_name(row->rows), row->default_us, row->best_us,
               row->default_us > 0 ? 100 * (row->best_us / row->default_us - 1) : 0,
               row->variant ? row->variant : "-", row->calls, row->shape);
    }
    printf("\n%-20s %12s %12s\n", "whole steps", "default ms", "tuned ms");
    for (uint32_t i = 0; i < r->n_steps; i++) {
        char name[48];
        const struct tune_steps *s = &r->steps[i];
        snprintf(name, sizeof name, "%s, %u %s", s->decode ? "decode" : "prompt", s->rows,
                 plural(s->rows, "row", "rows"));
        printf("%-20s %12.3f %12.3f\n", name, s->default_ms, s->tuned_ms);
    }
    printf("\n%u of %u %s: another variant is faster by more than %g %% and the noise\n", won, r->n,
           plural(r->n, "case", "cases"), 100 * TUNE_LEAST_GAIN);
}

static void round_done(void *arg, uint32_t done, uint32_t of) {
    struct progress *p = arg;
    p->total = of;
    progress_to(p, done);
}

static weir_status report(const struct tune_args *a, const struct tune_options *o,
                          const struct tune_report *r, const char *path, weir_error *err) {
    if (!r->quiet)
        fprintf(stderr,
                "weir: warning: the machine was busy: others kept %.2f cores, and %.2f were not to "
                "be had; better tune again when it is not\n",
                r->idle.others, r->idle.stolen);
    weir_error fault;
    weir_status written = tuning_write(r->table, path, &fault), s = WEIR_OK;
    if (a->json) {
        s = io_print_json(tune_json(o, r, written ? NULL : path), err);
    } else {
        print_report(o, r);
        if (!written)
            printf("written to %s\n", path);
    }
    if (!s && written) {
        *err = fault;
        s = written;
    }
    return s;
}

static weir_status open_device(const struct tune_args *a, struct tune_options *o, weir_error *err) {
    const struct measure_device m = {.device = a->device,
                                     .library = a->device_library,
                                     .modules = a->device_modules,
                                     .dense_dtype = a->dense_dtype,
                                     .activation_dtype = a->activation_dtype,
                                     .kv_dtype = a->kv_dtype};
    weir_status s = measure_device_open(&m, &o->of.kv, &o->device, err);
    if (o->device) {
        o->of.column = &column_gpu;
        o->of.threads = 1; /* draws tokens */
        o->of.device = gpu_device_facts(o->device)->name;
    }
    return s;
}

static int run_tune(void *record, weir_error *err) {
    static const enum dtype kv[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_FP8};
    struct tune_args *a = record;
    struct progress bar;
    struct tune_options o = {
        .of = {.model = a->model,
               .column =
                   column_fast(a->activation_dtype ? (enum activation)(a->activation_dtype - 1)
                                                   : ACTIVATION_DEFAULT),
               .dense = (enum dense_form)a->dense_dtype,
               .kv = kv[a->kv_dtype],
               .threads = a->threads ? a->threads : cpu_count()},
        .prompt_tokens = a->prompt_tokens,
        .sequences = a->sequences,
        .rows = a->rows,
        .rounds = a->rounds,
        .wait_seconds = a->wait,
        .done = round_done,
        .arg = &bar};
    struct tune_report r = {0};
    char *chosen = NULL;
    weir_status s = open_device(a, &o, err);
    if (!s && !a->out && !(chosen = tuning_default_path(&o.of, err)))
        s = err->code;
    if (!s) {
        progress_begin(&bar, "rounds", 1);
        s = tune_measure(&o, &r, err);
        progress_end(&bar);
    }
    if (!s)
        s = report(a, &o, &r, a->out ? a->out : chosen, err);
    gpu_device_close(o.device);
    tune_free(&r);
    free(chosen);
    return s ? command_exit_status(err) : 0;
}

static const struct command_section tune_sections[] = {
    {"DESCRIPTION",
     "Finds out which variant of each operation is fastest on this machine for the shapes of a "
     "model, and writes the winners to a table that later starts of serve, generate, chat, score "
     "and bench step use (--tuning). Without a table everything goes by defaults that are sane on "
     "every machine.\n\n"
     "The model's own step program runs with its own weights: decode steps of 1, 2, 4 and more "
     "sequences up to --max-num-seqs, then prompts of 2, 4 and more rows up to "
     "--max-num-batched-tokens. Operations of one kind and shape go by a variant together; "
     "variants and default take turns within each round. The fastest must be faster than the "
     "default by 2 % and its third quartile below the default's first, and so again in as many "
     "rounds beside the default alone; otherwise the default stays. Times are of all operations "
     "of that shape in a step.\n\n"
     "On a device (--device) a sample is the time of the step's graph with one group of operations "
     "by "
     "one variant, less that of the graph without the group, and a table serves devices of that "
     "name.\n\n"
     "The last table shows whole steps, by default and by what won in them.\n\n"
     "A table serves the model, formats and number of threads it was made with, on a processor "
     "of the same name and model, and this version of weir; others are left with one line. It is "
     "best made "
     "while nothing else runs; a busy machine is warned of."},
    {"VARIANTS",
     "Of products: fixed (members have equal shares, always the same; by default one that comes "
     "further takes more), single (given out by 16 rows of the weight, by default by 64 of large "
     "ones), chunk-1 (tiles of 16 rows of the weight), acts-2, acts-4, acts-8 "
     "(tiles of so many activations at most), ahead-0, ahead-2k, ahead-16k (bytes that weights are "
     "asked for ahead, by default 4k), dots (dot products where matrix tiles are the default). Of "
     "latent attention: fixed, tasks-1 and tasks-8 (pieces of histories for each member, by "
     "default 4). Of KDA: fixed, chunks and tokens (the form of prompts of few rows).\n\n"
     "On a device, of products: split-1 to split-8 (waves that share rows of the weight, 1 or 2 "
     "rows), "
     "narrow and wide (rows of the weight of a block, up to 64), tiles-128, tiles-192 and "
     "warpgroups "
     "(beyond); of experts: streams (waves through all chosen ones) and tiles (of one's "
     "choices).\n\n"
     "All but those, dots, chunks and tokens give the same bits as the default; they round "
     "differently, within the bounds of their column. The exact column has no variants."},
    {"JSON",
     "{\"machine\": as of `weir bench kernels`, \"model\", \"column\", \"rows\": [{\"operation\", "
     "\"shape\", \"rows\", \"calls\", \"tried\", \"default_us\", \"best_us\", \"best\", "
     "\"variant\"}], \"steps\": [{\"decode\", \"rows\", \"default_ms\", \"tuned_ms\"}], \"file\", "
     "\"quiet\"}. \"variant\" is null where the default stays, \"best\" the fastest all the same; "
     "\"file\" is null if the table could not be written."},
    {"EXAMPLES", "  weir tune --model models/tiny-k3\n"
                 "  weir tune --model k3 --threads 8 --kv-cache-dtype bf16 --out k3.json\n"
                 "  weir serve --model k3 --threads 8 --kv-cache-dtype bf16 --tuning k3.json"},
};

const struct command command_tune = {
    .name = "tune",
    .synopsis = "--model DIR [--device D] [--out FILE] [--threads N] [--rounds N] [--json]",
    .summary = "find what is fastest on this machine for a model",
    .options = {tune_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct tune_args),
    .section = tune_sections,
    .n_sections = sizeof tune_sections / sizeof tune_sections[0],
    .run = run_tune,
};
