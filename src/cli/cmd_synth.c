/* cmd_synth.c: `weir synth`: writes a checkpoint of any shape with seeded weights. */
#include "cli/command.h"

#include "base/plural.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "load/synth.h"

struct synth_args {
    int preset;
    uint32_t layers, experts, vocab, tp, rank, threads;
    uint64_t seed, shard_bytes;
    char *out;
    bool json;
};

#define AT(field) offsetof(struct synth_args, field)

static const struct option_spec synth_options[] = {
    {.name = "preset",
     .value = "P",
     .type = OPTION_CHOICE,
     .offset = AT(preset),
     .choices = "kimi-k3|kimi-linear|kimi-k2|mid|tiny",
     .offered = "kimi-k3|kimi-linear|mid|tiny",
     .refusal = "this build does not run that family",
     .required = true,
     .help = "The shape to start from."},
    {.name = "layers",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(layers),
     .min = 0,
     .max = 256,
     .fallback = "0",
     .help = "Number of layers, the last of them always MLA; 0: the preset's."},
    {.name = "experts",
     .value = "E",
     .type = OPTION_COUNT,
     .offset = AT(experts),
     .min = 0,
     .max = 65536,
     .fallback = "0",
     .help = "Routed experts of a layer; 0: the preset's."},
    {.name = "vocab",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(vocab),
     .min = 0,
     .max = 1048576,
     .fallback = "0",
     .help = "Vocabulary, at least 512; 0: the preset's."},
    {.name = "tp",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(tp),
     .min = 1,
     .max = 1024,
     .fallback = "1",
     .help = "The widths that one of so many tensor-parallel ranks has: heads, feed-forward widths "
             "and vocabulary divided. For timing: numbers of its own, not a slice of others."},
    {.name = "rank",
     .value = "R",
     .type = OPTION_COUNT,
     .offset = AT(rank),
     .min = 0,
     .max = 4294967295.0,
     .fallback = "0",
     .offered = "0",
     .refusal = "this build writes no slices of a whole checkpoint's numbers; only 0 is offered",
     .help = "Which rank's slice of a whole checkpoint's numbers."},
    {.name = "seed",
     .value = "S",
     .type = OPTION_WIDE,
     .offset = AT(seed),
     .required = true,
     .help = "The same seed writes the same bytes."},
    {.name = "shard-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(shard_bytes),
     .fallback = "0",
     .help = "Largest file; 0: 4,900,000,000 bytes."},
    {.name = "threads",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(threads),
     .min = 0,
     .max = 1024,
     .fallback = "0",
     .help = "Threads that write; 0: one for each core this process may use."},
    {.name = "out",
     .value = "DIR",
     .type = OPTION_TEXT,
     .offset = AT(out),
     .required = true,
     .help = "Where to write; made if need be, and must be empty."},
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object."},
};

static void on_progress(void *arg, uint64_t done, uint64_t total) {
    struct progress *p = arg;
    p->total = total;
    progress_to(p, done);
}

static int run_synth(void *record, weir_error *err) {
    static const char *const preset[] = {"kimi-k3", "kimi-linear", "kimi-k2", "mid", "tiny"};
    const struct synth_args *a = record;
    struct progress p;
    struct synth_options o = {.preset = preset[a->preset],
                              .out = a->out,
                              .seed = a->seed,
                              .layers = a->layers,
                              .experts = a->experts,
                              .vocab = a->vocab,
                              .ranks = a->tp,
                              .threads = a->threads,
                              .shard_bytes = a->shard_bytes,
                              .progress = on_progress,
                              .progress_arg = &p};
    struct synth_result r;
    progress_begin(&p, "writing", 1);
    weir_status status = synth_write(&o, &r, err);
    progress_end(&p);
    if (status)
        return command_exit_status(err);
    if (a->json)
        return io_print_json(json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:i}", "out", a->out,
                                       "preset", o.preset, "bytes", (json_int_t)r.bytes, "shards",
                                       (int)r.shards, "layers", (int)r.layers, "experts",
                                       (int)r.experts, "vocab", (int)r.vocab),
                             err)
                   ? 1
                   : 0;
    printf("%s: %u %s, %u %s, vocabulary %u, %.2f MB in %u %s\n", a->out, r.layers,
           plural(r.layers, "layer", "layers"), r.experts, plural(r.experts, "expert", "experts"),
           r.vocab, (double)r.bytes / 1e6, r.shards, plural(r.shards, "file", "files"));
    return 0;
}

static const struct option_group synth_groups[] = {
    {"Options", synth_options, sizeof synth_options / sizeof synth_options[0], 0},
};

static const struct command_section synth_sections[] = {
    {"DESCRIPTION",
     "Writes a checkpoint with the true widths of a published model and seeded random weights, in "
     "the original file format: configuration, index, shards and a byte-level tokenizer. It "
     "answers nonsense, but loads, takes memory and time, and runs like a real one."},
    {"JSON", "{\"out\", \"preset\", \"bytes\", \"shards\", \"layers\", \"experts\", \"vocab\"}."},
    {"EXAMPLES", "  weir synth --preset kimi-k3 --layers 3 --experts 16 --seed 1 --out /tmp/k3"},
};

const struct command command_synth = {
    .name = "synth",
    .synopsis = "--preset P [--layers N] [--experts E] [--tp N] --seed S --out DIR [--json]",
    .summary = "write a checkpoint of any shape with seeded weights",
    .options = {synth_groups, 1, NULL, 0, false},
    .record_bytes = sizeof(struct synth_args),
    .section = synth_sections,
    .n_sections = sizeof synth_sections / sizeof synth_sections[0],
    .run = run_synth,
};
