/* engine_args.h: the options that say how a model is loaded and run, shared by every command that
 * runs one (serve, generate, score, chat). */
#ifndef WEIR_CLI_ENGINE_ARGS_H
#define WEIR_CLI_ENGINE_ARGS_H

#include "cli/options.h"
#include "weir.h"

struct engine_args {
    char *model;
    int device, compute, activation_dtype, dense_dtype, kv_dtype, policy;
    uint32_t tensor_parallel, decode_context_parallel;
    bool expert_parallel;
    uint32_t threads, max_model_len, max_num_seqs, max_num_batched_tokens, max_queue,
        max_checkpoints;
    uint64_t kv_cache_bytes;
    bool prefix_caching, no_prefix_caching, no_async, log_cache;
    uint32_t cpu_offload_gb;
    char *checkpoint_policy;
    uint64_t cpu_offload_bytes, disk_offload_bytes, expert_cache_bytes;
    char *disk_offload_dir, *remote_store, *speculative_config;
};

enum { ENGINE_COMPUTE_EXACT, ENGINE_COMPUTE_FAST, ENGINE_COMPUTE_NULL };

/* The rows, for a command whose --model may be left out, and for the others. */
extern const struct option_spec engine_options[];
enum { N_ENGINE_OPTIONS = 28 };
extern const struct option_spec model_option, model_option_optional;

/* What the library wants to hear. */
weir_options engine_args_options(const struct engine_args *a);

/* weir_open with a note on a terminal's standard error while it loads. */
weir_status engine_args_open(const struct engine_args *a, void (*on_progress)(void *arg), void *arg,
                             weir_engine **out, weir_error *err);

#endif
