/* engine_args.c: the engine's options as a table, shared by every command that runs a
 * model. Options of the
 * family of servers that this build does not offer stand here too, so that a script written for
 * them gets a plain refusal and not 'unknown option'. */
#include "cli/engine_args.h"

#define AT(field) offsetof(struct engine_args, field)
#define U32_MAX   4294967295.0

const struct option_spec model_option = {
    .name = "model",
    .value = "DIR",
    .type = OPTION_TEXT,
    .min = 1,
    .offset = AT(model),
    .required = true,
    .help = "The checkpoint: a directory with config.json, safetensors and tiktoken.model.",
};
const struct option_spec model_option_optional = {
    .name = "model",
    .value = "DIR",
    .type = OPTION_TEXT,
    .min = 1,
    .offset = AT(model),
    .help = "The checkpoint: a directory with config.json, safetensors and tiktoken.model.",
};

const struct option_spec engine_options[] = {
    ENGINE_DEVICE(AT(device)),
    ENGINE_DEVICE_LIBRARY(AT(device_library)),
    ENGINE_DEVICE_MODULES(AT(device_modules)),
    {.name = "compute",
     .value = "C",
     .type = OPTION_CHOICE,
     .offset = AT(compute),
     .choices = "exact|fast|null",
     .fallback = "fast",
     .help =
         "exact: single precision in a fixed order of sums, the same bits whatever the threads, "
         "batch or chunking. fast: the fastest this processor does. null: computes nothing and "
         "answers with the ids of the request's field weir_output_ids, for tests of what "
         "stands around the model."},
    {.name = "threads",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(threads),
     .min = 0,
     .max = 1024,
     .fallback = "0",
     .help = "Threads that compute; 0: one for each core this process may use."},
    ENGINE_ACTIVATION_DTYPE(AT(activation_dtype)),
    ENGINE_DENSE_DTYPE(AT(dense_dtype)),
    ENGINE_KV_DTYPE(AT(kv_dtype)),
    {.name = "max-model-len",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_model_len),
     .min = 0,
     .max = U32_MAX,
     .fallback = "0",
     .help = "Tokens of prompt and answer together; 0: what config.json says."},
    ENGINE_SEQS(AT(max_num_seqs), 0, 65536, "0", "Sequences that run at once; 0: chosen."),
    ENGINE_BATCHED_TOKENS(AT(max_num_batched_tokens), 0, "0",
                          "Tokens computed in one step at most; 0: chosen."),
    {.name = "kv-cache-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(kv_cache_bytes),
     .fallback = "0",
     .help = "Memory for attention history and recurrent states together, such as 512MiB or 2G; 0: "
             "enough for max-num-seqs sequences of a quarter of the context."},
    {.name = "max-queue",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_queue),
     .min = 0,
     .max = 16777216,
     .fallback = "0",
     .help = "Requests that may wait before further ones are refused; 0: 4096."},
    {.name = "scheduling-policy",
     .value = "P",
     .type = OPTION_CHOICE,
     .offset = AT(policy),
     .choices = "fcfs|priority",
     .fallback = "fcfs",
     .help = "fcfs: first come, first served. priority: lower values of the request's field "
             "priority run earlier."},
    {.name = "no-async-scheduling",
     .type = OPTION_FLAG,
     .offset = AT(no_async),
     .help = "Decide about a step only when the one before it has ended."},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(tensor_parallel),
     .min = 1,
     .max = U32_MAX,
     .fallback = "1",
     .offered = "1",
     .refusal = "this build runs a model in one process; only 1 is offered",
     .help = "Ranks that share each layer."},
    {.name = "decode-context-parallel-size",
     .alias = "dcp",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(decode_context_parallel),
     .min = 1,
     .max = U32_MAX,
     .fallback = "1",
     .offered = "1",
     .refusal = "this build runs a model in one process; only 1 is offered",
     .help = "Ranks that share the attention history of a sequence."},
    {.name = "enable-expert-parallel",
     .type = OPTION_FLAG,
     .offset = AT(expert_parallel),
     .offered = "false",
     .refusal =
         "this build runs a model in one process; there are no ranks to share experts out to",
     .help = "Share experts out whole among ranks."},
    {.name = "enable-prefix-caching",
     .type = OPTION_FLAG,
     .offset = AT(prefix_caching),
     .help = "What is done anyway; taken so that command lines of vLLM work."},
    {.name = "no-enable-prefix-caching",
     .type = OPTION_FLAG,
     .offset = AT(no_prefix_caching),
     .help = "Reuse nothing between requests."},
    {.name = "checkpoint-policy",
     .value = "P",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(checkpoint_policy),
     .fallback = "default",
     .help =
         "Which recurrent states are kept for reuse: names joined by '+' of end-of-prompt, "
         "junction (where a prompt leaves the path of an earlier one), end-of-turn (the last "
         "boundary of an answer), interval:R (every R tokens, a multiple of 64) and default (all "
         "four, R = 8192); or none."},
    {.name = "max-checkpoints",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_checkpoints),
     .max = 1048576,
     .fallback = "0",
     .help =
         "Slots for kept recurrent states beside one for each sequence of --max-num-seqs; slots "
         "of sequences that do not run hold kept states too. 0: as many as half of the cache "
         "holds that is left beside one whole context."},
    {.name = "log-cache",
     .type = OPTION_FLAG,
     .offset = AT(log_cache),
     .help = "Log for each request how much of its prompt was known, where it resumed, from which "
             "tier, and why not further on."},
    {.name = "cpu-offload-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(cpu_offload_bytes),
     .fallback = "0",
     .help =
         "Host memory for history and states that leave the pools, at most what the machine has; "
         "0: none."},
    {.name = "cpu-offload-gb",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(cpu_offload_gb),
     .max = U32_MAX,
     .fallback = "0",
     .offered = "0",
     .refusal = "weights are mapped, and need no room of their own; experts larger than memory are "
                "--expert-cache-bytes, host memory for the prefix cache is --cpu-offload-bytes",
     .help = "Weights kept in host memory; not needed here."},
    {.name = "disk-offload-dir",
     .value = "D",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(disk_offload_dir),
     .help =
         "Directory for the same, made if its parent exists; what is there is found again after a "
         "restart."},
    {.name = "disk-offload-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(disk_offload_bytes),
     .fallback = "0",
     .help = "Bytes used there at most, by this model with these settings; 0: 10GiB."},
    {.name = "remote-store",
     .value = "URL",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(remote_store),
     .help =
         "Redis server for the same, which several servers may share: "
         "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]. A password on the command line is seen by "
         "every user of the machine: give the URL as WEIR_REMOTE_STORE or with --config."},
    {.name = "expert-cache-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(expert_cache_bytes),
     .fallback = "0",
     .help = "For models whose routed experts are larger than memory: they stay in the "
             "checkpoint's files and are read when they are chosen, past the page cache; this much "
             "memory, such as 64GiB, keeps those used most. 0: all are mapped."},
    ENGINE_TUNING(AT(tuning)),
    {.name = "speculative-config",
     .value = "JSON",
     .type = OPTION_TEXT,
     .offset = AT(speculative_config),
     .offered = "",
     .refusal = "this build drafts no tokens",
     .help = "Drafting of tokens ahead."},
};
_Static_assert(sizeof engine_options / sizeof engine_options[0] == N_ENGINE_OPTIONS, "count");
