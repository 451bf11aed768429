/* engine_args.c: the engine's options as a table, and their way into weir_options. Options of the
 * family of servers that this build does not offer stand here too, so that a script written for
 * them gets a plain refusal and not 'unknown option'. */
#include "cli/engine_args.h"
#include "cli/progress.h"

#include <string.h>

#define AT(field) offsetof(struct engine_args, field)
#define U32_MAX   4294967295.0

const struct option_spec model_option = {
    .name = "model",
    .value = "DIR",
    .type = OPTION_TEXT,
    .offset = AT(model),
    .required = true,
    .help = "The checkpoint: a directory with config.json, safetensors and tiktoken.model.",
};
const struct option_spec model_option_optional = {
    .name = "model",
    .value = "DIR",
    .type = OPTION_TEXT,
    .offset = AT(model),
    .help = "The checkpoint: a directory with config.json, safetensors and tiktoken.model.",
};

const struct option_spec engine_options[] = {
    {.name = "device",
     .value = "D",
     .type = OPTION_CHOICE,
     .offset = AT(device),
     .choices = "cpu|cuda|hip",
     .fallback = "cpu",
     .offered = "cpu",
     .refusal = "this build computes on the CPU only",
     .help = "Where the model runs."},
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
    {.name = "kv-cache-dtype",
     .value = "T",
     .type = OPTION_CHOICE,
     .offset = AT(kv_dtype),
     .choices = "f32|bf16|fp8",
     .fallback = "f32",
     .offered = "f32|bf16",
     .refusal = "this build keeps the attention history as f32 or bf16",
     .help = "Number format of the attention history."},
    {.name = "max-model-len",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_model_len),
     .min = 0,
     .max = U32_MAX,
     .fallback = "0",
     .help = "Tokens of prompt and answer together; 0: what config.json says."},
    {.name = "max-num-seqs",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_num_seqs),
     .min = 0,
     .max = 65536,
     .fallback = "0",
     .help = "Sequences that run at once; 0: chosen."},
    {.name = "max-num-batched-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_num_batched_tokens),
     .min = 0,
     .max = 1048576,
     .fallback = "0",
     .help = "Tokens computed in one step at most; 0: chosen."},
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
    {.name = "no-enable-prefix-caching",
     .type = OPTION_FLAG,
     .offset = AT(no_prefix_caching),
     .help = "Reuse nothing between requests. This build never does, so the option changes "
             "nothing."},
    {.name = "checkpoint-policy",
     .value = "P",
     .type = OPTION_TEXT,
     .offset = AT(checkpoint_policy),
     .offered = "",
     .refusal = "this build keeps no recurrent states for later requests",
     .help = "Which recurrent states are kept for reuse."},
    {.name = "cpu-offload-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(cpu_offload_bytes),
     .fallback = "0",
     .offered = "0",
     .refusal = "this build has no cache tier below the pools; only 0 is offered",
     .help = "Host memory for history that left the pools."},
    {.name = "disk-offload-dir",
     .value = "D",
     .type = OPTION_TEXT,
     .offset = AT(disk_offload_dir),
     .offered = "",
     .refusal = "this build has no cache tier on disk",
     .help = "Directory for history that left memory."},
    {.name = "disk-offload-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(disk_offload_bytes),
     .fallback = "0",
     .offered = "0",
     .refusal = "this build has no cache tier on disk; only 0 is offered",
     .help = "Room in that directory."},
    {.name = "remote-store",
     .value = "redis://H:P",
     .type = OPTION_TEXT,
     .offset = AT(remote_store),
     .offered = "",
     .refusal = "this build has no remote cache tier",
     .help = "A store that several servers share."},
    {.name = "speculative-config",
     .value = "JSON",
     .type = OPTION_TEXT,
     .offset = AT(speculative_config),
     .offered = "",
     .refusal = "this build drafts no tokens",
     .help = "Drafting of tokens ahead."},
};
_Static_assert(sizeof engine_options / sizeof engine_options[0] == N_ENGINE_OPTIONS, "count");

weir_options engine_args_options(const struct engine_args *a) {
    static const enum weir_compute compute[] = {WEIR_COMPUTE_EXACT, WEIR_COMPUTE_FAST,
                                                WEIR_COMPUTE_NULL};
    weir_options o = weir_options_default();
    o.compute = compute[a->compute];
    o.kv_dtype = a->kv_dtype == 1 ? WEIR_KV_BF16 : WEIR_KV_F32;
    o.policy = a->policy == 1 ? WEIR_PRIORITY : WEIR_FCFS;
    if (a->threads)
        o.threads = a->threads;
    if (a->max_model_len)
        o.max_model_len = a->max_model_len;
    if (a->max_num_seqs)
        o.max_num_seqs = a->max_num_seqs;
    if (a->max_num_batched_tokens)
        o.max_num_batched_tokens = a->max_num_batched_tokens;
    if (a->kv_cache_bytes)
        o.kv_cache_bytes = a->kv_cache_bytes;
    if (a->max_queue)
        o.max_queue = a->max_queue;
    if (a->no_async)
        o.async_scheduling = false;
    return o;
}

weir_status engine_args_open(const struct engine_args *a, weir_engine **out, weir_error *err) {
    weir_options o = engine_args_options(a);
    struct progress p;
    progress_begin(&p, "loading", 0);
    weir_status status = weir_open(a->model, &o, out, err);
    progress_end(&p);
    return status;
}
