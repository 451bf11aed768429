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
    char *device_library, *device_modules, *disk_offload_dir, *remote_store, *speculative_config,
        *tuning;
};

enum { ENGINE_DEVICE_CPU, ENGINE_DEVICE_CUDA, ENGINE_DEVICE_HIP };
enum { ENGINE_COMPUTE_EXACT, ENGINE_COMPUTE_FAST, ENGINE_COMPUTE_NULL };

/* Rows that commands which measure a model share with those which serve one. OFFSET: of the field
 * in the command's record. */
#define ENGINE_DEVICE(OFFSET)                                                                      \
    {                                                                                              \
        .name = "device", .value = "D", .type = OPTION_CHOICE, .offset = (OFFSET),                 \
        .choices = "cpu|cuda|hip", .fallback = "cpu",                                              \
        .help = "Where the model runs: cuda and hip are GPUs of NVIDIA and AMD (docs/gpu.md)."     \
    }
#define ENGINE_DEVICE_LIBRARY(OFFSET)                                                              \
    {                                                                                              \
        .name = "device-library", .value = "FILE", .type = OPTION_TEXT, .min = 1,                  \
        .offset = (OFFSET),                                                                        \
        .help = "The library of the GPU's driver, if it is not the usual libcuda.so.1 or "         \
                "libamdhip64.so."                                                                  \
    }
#define ENGINE_DEVICE_MODULES(OFFSET)                                                              \
    {                                                                                              \
        .name = "device-modules", .value = "DIR", .type = OPTION_TEXT, .min = 1,                   \
        .offset = (OFFSET),                                                                        \
        .help = "Directory of the modules of kernels, if it is not lib/weir beside the program's." \
    }
#define ENGINE_ACTIVATION_DTYPE(OFFSET)                                                            \
    {                                                                                              \
        .name = "activation-dtype", .value = "T", .type = OPTION_CHOICE, .offset = (OFFSET),       \
        .choices = "auto|f32|bf16|int8", .fallback = "auto",                                       \
        .help = "How activations enter a product with a weight under --compute fast. int8: in "    \
                "groups of 32 where the weight is MXFP4 or int8, bf16 elsewhere. auto: f32, the "  \
                "fastest that keeps the logits within the bound of bf16."                          \
    }
#define ENGINE_DENSE_DTYPE(OFFSET)                                                                 \
    {                                                                                              \
        .name = "dense-dtype", .value = "T", .type = OPTION_CHOICE, .offset = (OFFSET),            \
        .choices = "bf16|int8|fp8", .fallback = "bf16",                                            \
        .help = "What BF16 matrices but router and head become at load on fast columns: int8 or "  \
                "fp8 (E4M3) halve the bytes that a token reads, at some cost in accuracy "         \
                "(docs/performance.md). On a device bf16 or fp8."                                  \
    }
#define ENGINE_KV_DTYPE(OFFSET)                                                                    \
    {                                                                                              \
        .name = "kv-cache-dtype", .value = "T", .type = OPTION_CHOICE, .offset = (OFFSET),         \
        .choices = "auto|f32|bf16|fp8", .fallback = "auto",                                        \
        .help = "Number format of the attention history. auto: f32, on a device bf16. fp8: E4M3 "  \
                "with one scale for 128 "                                                          \
                "values, the "                                                                     \
                "extra key values bf16; for Kimi K3 656 bytes for each token and layer, against "  \
                "1152 as "                                                                         \
                "bf16 and 2304 as f32."                                                            \
    }
#define ENGINE_SEQS(OFFSET, MIN, MAX, FALLBACK, HELP)                                              \
    {                                                                                              \
        .name = "max-num-seqs", .value = "N", .type = OPTION_COUNT, .offset = (OFFSET),            \
        .min = (MIN), .max = (MAX), .fallback = FALLBACK, .help = HELP                             \
    }
#define ENGINE_BATCHED_TOKENS(OFFSET, MIN, FALLBACK, HELP)                                         \
    {                                                                                              \
        .name = "max-num-batched-tokens", .value = "N", .type = OPTION_COUNT, .offset = (OFFSET),  \
        .min = (MIN), .max = 1 << 20, .fallback = FALLBACK, .help = HELP                           \
    }
#define ENGINE_TUNING(OFFSET)                                                                      \
    {                                                                                              \
        .name = "tuning", .value = "FILE", .type = OPTION_TEXT, .min = 1, .offset = (OFFSET),      \
        .fallback = "auto",                                                                        \
        .help = "Table of what `weir tune` found fastest on this machine; auto: the one in its "   \
                "default place, if there is one; none: everything as it is built."                 \
    }

/* The rows, for a command whose --model may be left out, and for the others. */
extern const struct option_spec engine_options[];
enum { N_ENGINE_OPTIONS = 31 };
extern const struct option_spec model_option, model_option_optional;

/* What the library wants to hear. */
weir_options engine_args_options(const struct engine_args *a);

/* weir_open with a note on a terminal's standard error while it loads. */
weir_status engine_args_open(const struct engine_args *a, void (*on_progress)(void *arg), void *arg,
                             weir_engine **out, weir_error *err);

#endif
