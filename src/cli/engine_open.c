/* engine_open.c: from the engine's options to a loaded engine. Called by generate, serve and chat.
 */
#include "cli/engine_args.h"
#include "cli/progress.h"

#include "base/log.h"

#include <string.h>

#define DEFAULT_DISK_BYTES (10ull << 30)

static void warn_if(bool given, const char *option, const char *why) {
    if (given)
        log_line(LOG_WARN, "%s has no effect %s", option, why);
}

/* Options that do nothing because of another: one line each, or somebody believes in a cache that
 * is not there. */
static void warn_of_idle_options(const struct engine_args *a) {
    const char *policy = a->checkpoint_policy;
    bool none = policy && !strcmp(policy, "none");
    const char *why = a->no_prefix_caching ? "with --no-enable-prefix-caching"
                      : none               ? "with --checkpoint-policy none"
                                           : NULL;
    warn_if(a->disk_offload_bytes && !a->disk_offload_dir, "--disk-offload-bytes",
            "without --disk-offload-dir");
    warn_if(a->device != ENGINE_DEVICE_CPU && a->compute == ENGINE_COMPUTE_NULL, "--device",
            "with --compute null");
    warn_if((a->device_library || a->device_modules) && a->device == ENGINE_DEVICE_CPU,
            a->device_library ? "--device-library" : "--device-modules", "with --device cpu");
    warn_if(a->expert_cache_bytes && a->compute == ENGINE_COMPUTE_NULL, "--expert-cache-bytes",
            "with --compute null");
    warn_if(strcmp(a->tuning, "auto") && strcmp(a->tuning, "none") &&
                a->compute != ENGINE_COMPUTE_FAST,
            "--tuning", "without --compute fast");
    if (!why)
        return;
    warn_if(a->max_checkpoints, "--max-checkpoints", why);
    warn_if(a->cpu_offload_bytes, "--cpu-offload-bytes", why);
    warn_if(a->disk_offload_dir, "--disk-offload-dir", why);
    warn_if(a->remote_store, "--remote-store", why);
    if (!a->no_prefix_caching)
        return;
    warn_if(a->prefix_caching, "--enable-prefix-caching", why);
    warn_if(policy && strcmp(policy, "default"), "--checkpoint-policy", why);
    warn_if(a->log_cache, "--log-cache", why);
}

weir_options engine_args_options(const struct engine_args *a) {
    static const enum weir_compute compute[] = {WEIR_COMPUTE_EXACT, WEIR_COMPUTE_FAST,
                                                WEIR_COMPUTE_NULL};
    weir_options o = weir_options_default();
    warn_of_idle_options(a);
    o.compute = compute[a->compute];
    o.activation_dtype = (enum weir_activation_dtype)a->activation_dtype; /* in the same order */
    o.dense_dtype = (enum weir_dense_dtype)a->dense_dtype;
    o.kv_dtype = (enum weir_kv_dtype)a->kv_dtype;
    o.device = (enum weir_device)a->device;
    o.device_library = a->device_library;
    o.device_modules = a->device_modules;
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
    o.prefix_caching = !a->no_prefix_caching;
    o.log_cache = a->log_cache;
    o.checkpoint_policy = a->checkpoint_policy;
    if (a->max_checkpoints)
        o.max_checkpoints = a->max_checkpoints;
    o.cpu_offload_bytes = a->cpu_offload_bytes;
    o.disk_offload_dir = a->disk_offload_dir;
    o.disk_offload_bytes = a->disk_offload_bytes ? a->disk_offload_bytes : DEFAULT_DISK_BYTES;
    o.remote_store = a->remote_store;
    o.tuning = a->tuning;
    o.expert_cache_bytes = a->expert_cache_bytes;
    if (a->no_async)
        o.async_scheduling = false;
    return o;
}

weir_status engine_args_open(const struct engine_args *a, void (*on_progress)(void *arg), void *arg,
                             weir_engine **out, weir_error *err) {
    weir_options o = engine_args_options(a);
    o.on_progress = on_progress;
    o.on_progress_arg = arg;
    struct progress p;
    progress_begin(&p, "loading", 0);
    weir_status status = weir_open(a->model, &o, out, err);
    progress_end(&p);
    return status;
}
