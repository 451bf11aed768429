/* bench_args.c: the rows of the options that replays share. */
#include "cli/bench_args.h"

#include <math.h>
#include <string.h>

#define AT(field) offsetof(struct bench_args, field)
#define TEXT(NAME, VALUE, FIELD, HELP)                                                             \
    { .name = NAME, .value = VALUE, .type = OPTION_TEXT, .offset = AT(FIELD), .help = HELP }
#define FLAG(NAME, FIELD, HELP)                                                                    \
    { .name = NAME, .type = OPTION_FLAG, .offset = AT(FIELD), .help = HELP }
#define COUNT(NAME, FIELD, LOW, FALLBACK, HELP)                                                    \
    {                                                                                              \
        .name = NAME, .value = "N", .type = OPTION_COUNT, .offset = AT(FIELD), .min = LOW,         \
        .max = 4294967294.0, .fallback = FALLBACK, .help = HELP                                    \
    }
#define WIDE(NAME, FIELD, LOW, FALLBACK, HELP)                                                     \
    {                                                                                              \
        .name = NAME, .value = "N", .type = OPTION_WIDE, .offset = AT(FIELD), .min = LOW,          \
        .max = 9007199254740992.0, .fallback = FALLBACK, .help = HELP                              \
    }
#define REAL(NAME, VALUE, FIELD, LOW, HIGH, FALLBACK, HELP)                                        \
    {                                                                                              \
        .name = NAME, .value = VALUE, .type = OPTION_REAL, .offset = AT(FIELD), .min = LOW,        \
        .max = HIGH, .fallback = FALLBACK, .help = HELP                                            \
    }
#define CHOICE(NAME, VALUE, FIELD, CHOICES, FALLBACK, HELP)                                        \
    {                                                                                              \
        .name = NAME, .value = VALUE, .type = OPTION_CHOICE, .offset = AT(FIELD),                  \
        .choices = CHOICES, .fallback = FALLBACK, .help = HELP                                     \
    }
#define SECONDS(NAME, FIELD, FALLBACK, HELP) REAL(NAME, "S", FIELD, 0, 1e9, FALLBACK, HELP)

const struct option_spec bench_trace_options[] = {
    TEXT("trace", "FILE", trace,
         "Trace to replay; with weka also a directory. Not needed with --random-input-len."),
    CHOICE("format", "F", format, "weka|mooncake|azure|single_turn|multi_turn|sharegpt", "weka",
           "What the trace is."),
    COUNT("block-size", block_size, 0, "0", "Tokens of a block in mooncake traces; 0: 512."),
    {.name = "random-input-len",
     .value = "N",
     .type = OPTION_WIDE,
     .offset = AT(random_in),
     .min = 1,
     .max = 9007199254740992.0,
     .against = "trace",
     .help = "Independent prompts of this many random tokens instead of a trace; at most 2^25, and "
             "2^32 of all prompts."},
    WIDE("random-output-len", random_out, 1, "128", "Tokens of their answers."),
    REAL("random-range-ratio", "R", random_range, 0, 0.999999, "0",
         "Both lengths are drawn evenly from 1 - R to 1 + R times the length."),
    WIDE("random-prefix-len", random_prefix, 0, "0",
         "Tokens in front of --random-input-len that prompts have in common."),
    COUNT("random-prefixes", random_prefixes, 1, "1", "How many different such prefixes."),
    COUNT("num-prompts", num_prompts, 1, "1000",
          "How many random prompts; with a trace in the open loop: calls at most."),
    REAL("length-scale", "X", length_scale, 1e-6, 1000, "1",
         "Prompts and answers X times as long. Results are not comparable then."),
    REAL("time-scale", "X", time_scale, 0, 1000, "1",
         "Recorded waits X times as long. Results are not comparable then."),
    WIDE("max-tokens", max_tokens, 0, "256",
         "Longest answer to calls whose trace gives no length; 0: the server's limit."),
};

const struct option_spec bench_load_options[] = {
    SECONDS("duration", duration, "3600",
            "Seconds of profiling; calls under way then still end. 0: to the end of the workload, "
            "which is the default of random prompts, --once and the open loop. The default is an "
            "hour, of a sweep for each of its points; less than 900 is for trying things out: "
            "such a run of agent sessions is marked as not valid."),
    WIDE("seed", seed, 0, "42", "Of all draws: order of sessions, starts, tokens, arrivals."),
    WIDE("salt", salt, 0, "0",
         "Of the tokens of prompts. 0: another one every run, so that no run finds in the server's "
         "cache what an earlier one left there."),
    REAL("start-ratio-min", "R", start_min, 0, 1, "0.25",
         "Lanes begin behind this share of their first session (locked)."),
    REAL("start-ratio-max", "R", start_max, 0, 1, "0.75", "And before this one (locked)."),
    COUNT("warmup-requests-per-lane", warmup, 0, "10",
          "Calls of one token a lane sends behind its primer before profiling (locked)."),
    SECONDS("warmup-grace", warmup_grace, "1800", "Seconds the warm-up may take (locked)."),
    SECONDS("idle-gap-cap", idle_cap, "300", "Longest recorded wait that is kept (locked)."),
    SECONDS("system-idle-cap", system_idle_cap, "10",
            "Where nothing is in flight and nothing due for longer, time is skipped (locked)."),
    FLAG("no-warmup", no_warmup,
         "No primer and no warm-up: sessions begin at their start (locked)."),
    FLAG("once", once, "Play each session once and end (locked)."),
    FLAG("share-sessions", share_sessions,
         "Sessions of one name space share their blocks, as the file says, instead of every play "
         "being on its own (locked)."),
    FLAG("unsafe-override", unsafe_override,
         "Allow other values of locked parameters; the result is marked invalid for AgentX."),
    REAL("request-rate", "R", request_rate, 0, HUGE_VAL, NULL,
         "Open loop: so many calls a second, whatever became of the others; inf: all at once."),
    CHOICE("arrivals", "KIND", arrivals, "closed|recorded|fixed|poisson", "closed",
           "closed: lanes. Open loop: at the trace's times, evenly, or at random with "
           "--request-rate (which alone means poisson)."),
    COUNT("max-concurrency", max_concurrency, 0, "0",
          "Open loop: calls in flight at most; those over it wait and are late. 0: no limit."),
};

const struct option_spec bench_server_options[] = {
    {.name = "url",
     .alias = "base-url",
     .value = "URL",
     .type = OPTION_TEXT,
     .offset = AT(url),
     .required = true,
     .help = "Server to measure: http://HOST:PORT or https://..."},
    CHOICE("server", "KIND", server, "auto|weir|vllm|sglang|llama.cpp|openai", "auto",
           "Which fields it knows and how it names its metrics; auto: ask it."),
    CHOICE("endpoint", "E", endpoint, "completions|chat", "completions",
           "completions: prompts as token ids, exact. chat: as messages."),
    TEXT("model-name", "NAME", model_name, "Model to ask for; default: the first it serves."),
    TEXT("api-key", "K", api_key,
         "Key to send. Better in WEIR_API_KEY, where others do not see it."),
    TEXT("ca", "FILE", ca, "Certificates in PEM that a server over TLS is checked against."),
    TEXT("extra-body", "JSON", extra_body,
         "Object with fields that every request gets, or gets instead of ours."),
    TEXT("tokenizer", "DIR", tokenizer,
         "Checkpoint whose tokenizer counts answers without usage and makes chat prompts of exact "
         "length."),
    COUNT("token-low", token_low, 0, "0", "Smallest id of random prompts."),
    COUNT("token-high", token_high, 0, "0",
          "One more than the greatest; 0 for both: the middle of the vocabulary where it is known, "
          "else 10000 to 30000."),
    WIDE("max-context", max_context, 0, "0",
         "Tokens that prompt and answer may have; longer calls are skipped and counted. 0: as the "
         "server says."),
    SECONDS("metrics-interval", metrics_interval, "1",
            "Seconds between looks at the server's metrics; 0: none."),
    SECONDS("connect-timeout", connect_timeout, "30", "Seconds to connect; 0: no limit."),
    SECONDS("silence-timeout", silence_timeout, "600",
            "Seconds without a byte from the server; 0: no limit."),
    SECONDS("request-timeout", request_timeout, "0", "Seconds of a whole call; 0: no limit."),
};

const struct option_spec bench_subject_options[] = {
    TEXT("hardware", "NAME", hardware, "What the server runs on: mi355x, h200 ..."),
    TEXT("framework", "NAME", framework, "What serves; default: as found."),
    TEXT("framework-version", "V", framework_version, "Its version; default: as found."),
    TEXT("precision", "P", precision, "Of the weights: fp4, fp8, bf16 ..."),
    TEXT("spec-decoding", "S", spec_decoding, "none or mtp."),
    COUNT("tp", tp, 0, "0", "Tensor-parallel ranks; 0: unknown, counts as 1."),
    COUNT("ep", ep, 0, "0", "Expert-parallel ranks."),
    COUNT("pp", pp, 0, "0", "Pipeline stages."),
    COUNT("dcp", dcp, 0, "0", "Decode-context-parallel ranks; adds no GPUs."),
    COUNT("pcp", pcp, 0, "0", "Prefill-context-parallel ranks."),
    FLAG("dp-attention", dp_attention, "Attention is data-parallel."),
    FLAG("disagg", disagg, "Prefill and decode run on different machines."),
    FLAG("multinode", multinode, "The server spans several nodes."),
    TEXT("kv-offloading", "K", kv_offloading, "none or dram."),
    TEXT("offload-backend", "NAME", offload_backend, "What moves it."),
    TEXT("offload-version", "V", offload_version, "Its version."),
    REAL("dram-gb", "GB", dram_gb, 0, 1e9, NULL, "Host memory given to it, in 10^9 bytes."),
    TEXT("image", "NAME", image, "Container image."),
    TEXT("model-prefix", "NAME", model_prefix, "Short name of the model in tables."),
    TEXT("label", "NAME", label, "Name of the configuration; runs of one label are repeats."),
};

const struct option_spec bench_output_options[] = {
    {.name = "out",
     .value = "DIR",
     .type = OPTION_TEXT,
     .offset = AT(out),
     .required = true,
     .help = "Directory for the files of the result; made, existing files are replaced."},
    {.name = "history",
     .value = "FILE",
     .type = OPTION_TEXT,
     .offset = AT(history),
     .help = "The run history to add the run to, an SQLite file; without it "
             "$XDG_DATA_HOME/weir/bench.db or ~/.local/share/weir/bench.db."},
    {.name = "no-history",
     .type = OPTION_FLAG,
     .offset = AT(no_history),
     .against = "history",
     .help = "Do not add the run to the history."},
    FLAG("json", json, "Print one JSON object."),
};

#define N(ARRAY) (sizeof ARRAY / sizeof *ARRAY)
_Static_assert(N(bench_trace_options) == N_BENCH_TRACE && N(bench_load_options) == N_BENCH_LOAD &&
                   N(bench_server_options) == N_BENCH_SERVER &&
                   N(bench_subject_options) == N_BENCH_SUBJECT &&
                   N(bench_output_options) == N_BENCH_OUTPUT,
               "counted in bench_args.h");
_Static_assert(N_BENCH_OPTIONS <= sizeof((struct bench_args *)0)->given, "a place for each");
static const struct option_group bench_groups[] = {BENCH_GROUPS};

bool bench_given(const struct bench_args *a, const char *name) {
    for (size_t g = 0; g < N(bench_groups); g++)
        for (size_t i = 0; i < bench_groups[g].n; i++)
            if (!strcmp(bench_groups[g].option[i].name, name))
                return ((const bool *)((const char *)a + bench_groups[g].given))[i];
    WEIR_ASSERT(!"an option of the table");
    return false;
}

static json_t *text_json(const char *text) {
    return text ? json_string(text) : json_null();
}

static json_t *value_json(const struct option_spec *s, const void *target) {
    switch (s->type) {
    case OPTION_FLAG: return json_boolean(*(const bool *)target);
    case OPTION_TEXT: return text_json(*(char *const *)target);
    case OPTION_COUNT: return json_integer(*(const uint32_t *)target);
    case OPTION_BYTES:
    case OPTION_WIDE: return json_integer((json_int_t) * (const uint64_t *)target);
    case OPTION_INT: return json_integer(*(const int64_t *)target);
    case OPTION_REAL: return json_real(*(const double *)target);
    case OPTION_LIST: return json_null();
    case OPTION_CHOICE: break;
    }
    const char *word = s->choices;
    for (int i = *(const int *)target; i > 0; i--)
        word = strchr(word, '|') + 1;
    return json_stringn(word, strcspn(word, "|"));
}

json_t *bench_config(const struct bench_args *a) {
    /* What names the run, where it was or who may ask makes no two runs different. */
    static const char *const left_out[] = {"url",   "api-key", "ca",      "out",       "json",
                                           "label", "salt",    "history", "no-history"};
    json_t *o = json_object();
    for (size_t g = 0; g < N(bench_groups); g++)
        for (size_t i = 0; i < bench_groups[g].n; i++) {
            const struct option_spec *s = &bench_groups[g].option[i];
            bool skip = false;
            for (size_t k = 0; k < N(left_out); k++)
                skip |= !strcmp(s->name, left_out[k]);
            if (!skip)
                json_object_set_new(o, s->name, value_json(s, (const char *)a + s->offset));
        }
    return o;
}
