/* open.c: weir_open: from a directory to a running engine. The only file of this room that knows
 * checkpoints and columns. */
#include "base/cpu.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "load/modules.h"

#include "base/file.h"
#include "base/log.h"
#include "base/plural.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>

/* What lies below the executor. */
struct loaded {
    struct model model;
    struct weights *weights;
    struct cache_store store;
    bool has_store, uses_tiers;
    struct place *place;
    struct gpu_device *device; /* NULL: this machine computes */
    struct record_shape shape;
    struct cache_key fingerprint;
    const weir_options *options; /* of weir_open, while it runs */
};

static void loaded_close(void *arg) {
    struct loaded *l = arg;
    if (!l)
        return;
    if (l->has_store)
        cache_store_close(&l->store);
    if (l->weights)
        weights_close(l->weights);
    place_close(l->place);
    gpu_device_close(l->device);
    free(l);
}

/* The format of history: what was asked for, or what the column likes best. */
static enum weir_kv_dtype kv_choice(const weir_options *o) {
    if (o->kv_dtype != WEIR_KV_AUTO)
        return o->kv_dtype;
    return o->device == WEIR_DEVICE_CPU ? WEIR_KV_F32 : WEIR_KV_BF16;
}

static enum dtype kv_format(const weir_options *o) {
    switch (kv_choice(o)) {
    case WEIR_KV_AUTO:
    case WEIR_KV_F32: return DTYPE_F32;
    case WEIR_KV_BF16: return DTYPE_BF16;
    case WEIR_KV_FP8: return DTYPE_FP8;
    }
    return DTYPE_F32;
}

static enum activation activation_of(enum weir_activation_dtype d) {
    switch (d) {
    case WEIR_ACTIVATION_AUTO: return ACTIVATION_DEFAULT;
    case WEIR_ACTIVATION_F32: return ACTIVATION_F32;
    case WEIR_ACTIVATION_BF16: return ACTIVATION_BF16;
    case WEIR_ACTIVATION_INT8: return ACTIVATION_INT8;
    }
    return ACTIVATION_DEFAULT;
}

static enum dense_form dense_form(enum weir_dense_dtype d) {
    switch (d) {
    case WEIR_DENSE_BF16: return DENSE_BF16;
    case WEIR_DENSE_INT8: return DENSE_INT8;
    case WEIR_DENSE_FP8: return DENSE_FP8;
    }
    return DENSE_BF16;
}

static weir_status check_enums(const weir_options *o, weir_error *err) {
    if (o->compute > WEIR_COMPUTE_NULL)
        return weir_fail(err, WEIR_BAD_VALUE, "compute", "is %d, not one of the columns",
                         (int)o->compute);
    if (o->activation_dtype > WEIR_ACTIVATION_INT8)
        return weir_fail(err, WEIR_BAD_VALUE, "activation_dtype", "is %d, not one of the formats",
                         (int)o->activation_dtype);
    if (o->dense_dtype > WEIR_DENSE_FP8)
        return weir_fail(err, WEIR_BAD_VALUE, "dense_dtype", "is %d, not one of the formats",
                         (int)o->dense_dtype);
    if (o->compute == WEIR_COMPUTE_EXACT &&
        (o->activation_dtype > WEIR_ACTIVATION_F32 || o->dense_dtype != WEIR_DENSE_BF16))
        return weir_fail(err, WEIR_BAD_VALUE, o->dense_dtype ? "dense_dtype" : "activation_dtype",
                         "the exact column takes weights as stored and f32 activations");
    if (o->kv_dtype > WEIR_KV_FP8)
        return weir_fail(err, WEIR_BAD_VALUE, "kv_dtype", "is %d, not one of the formats",
                         (int)o->kv_dtype);
    if (o->device > WEIR_DEVICE_HIP)
        return weir_fail(err, WEIR_BAD_VALUE, "device", "is %d, not one of the devices",
                         (int)o->device);
    if (o->policy > WEIR_PRIORITY)
        return weir_fail(err, WEIR_BAD_VALUE, "policy", "is %d, not one of the policies",
                         (int)o->policy);
    return WEIR_OK;
}

/* The null column computes nothing, wherever. */
static bool uses_device(const weir_options *o) {
    return o->device != WEIR_DEVICE_CPU && o->compute != WEIR_COMPUTE_NULL;
}

/* What a device does not do. */
static weir_status check_device(const weir_options *o, weir_error *err) {
    const struct {
        bool asked;
        const char *option, *why;
    } table[] = {
        {o->compute == WEIR_COMPUTE_EXACT, "compute",
         "the exact column runs on the CPU alone; a device is a fast one"},
        {o->activation_dtype == WEIR_ACTIVATION_F32 || o->activation_dtype == WEIR_ACTIVATION_INT8,
         "activation_dtype", "activations on a device are bf16"},
        {o->dense_dtype == WEIR_DENSE_INT8, "dense_dtype",
         "a device takes dense weights as bf16 or fp8"},
        {kv_choice(o) == WEIR_KV_F32, "kv_dtype", "history on a device is bf16 or fp8"},
        {o->expert_cache_bytes > 0, "expert_cache_bytes", "a device holds all experts"},
        {o->remote_store != NULL, "remote_store",
         "a remote store takes what the CPU computes; below a device are host memory and disk"},
    };
    for (size_t i = 0; uses_device(o) && i < sizeof table / sizeof *table; i++)
        if (table[i].asked)
            return weir_fail(err, WEIR_UNSUPPORTED, table[i].option, "%s", table[i].why);
    return WEIR_OK;
}

/* What the bytes of pages and states depend on: a cache filled by anything else must not match. The
 * columns round differently, so that an exact one never resumes from a fast one's state. */
static weir_status fingerprint(const char *dir, const weir_options *o, struct loaded *l,
                               weir_error *err) {
    char path[PATH_MAX];
    struct mapping config;
    snprintf(path, sizeof path, "%s/config.json", dir);
    weir_status st = file_map(path, &config, err);
    if (st)
        return st;
    uint8_t weights[WEIGHTS_FINGERPRINT_BYTES] = {0};
    if (l->weights)
        weights_fingerprint(l->weights, weights);
    const char kind[] = {'w',
                         'e',
                         'i',
                         'r',
                         '3',
                         (char)kv_choice(o),
                         (char)o->device,
                         (char)o->compute,
                         (char)activation_of(o->activation_dtype),
                         (char)o->dense_dtype};
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    int ok = c && EVP_DigestInit_ex2(c, EVP_sha256(), NULL) &&
             EVP_DigestUpdate(c, kind, sizeof kind) &&
             EVP_DigestUpdate(c, weights, sizeof weights) &&
             EVP_DigestUpdate(c, config.data, config.bytes) &&
             EVP_DigestFinal_ex(c, l->fingerprint.bytes, NULL);
    EVP_MD_CTX_free(c);
    file_unmap(&config);
    return ok ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its fingerprint");
}

/* A tier must hold something to be of use. */
static weir_status check_room(const char *name, uint64_t bytes, const struct loaded *l,
                              weir_error *err) {
    uint64_t least = (uint64_t)l->shape.page_bytes + record_state_bytes(&l->shape);
    if (bytes >= least)
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_VALUE, name,
                     "is %" PRIu64 ", less than one page and one state take: %" PRIu64, bytes,
                     least);
}

/* Opens one tier after the other; on failure those before it are closed again. */
static weir_status open_tiers(void *arg, void (*notify)(void *), void *notify_arg,
                              struct tier **out, uint32_t *n, weir_error *err) {
    struct loaded *l = arg;
    const weir_options *o = l->options;
    const struct tier_setup setup = {.store = &l->store,
                                     .shape = &l->shape,
                                     .model = l->fingerprint,
                                     .notify = notify,
                                     .notify_arg = notify_arg};
    weir_status st = WEIR_OK;
    *n = 0;
    if (!l->uses_tiers)
        return WEIR_OK;
    if (o->cpu_offload_bytes) {
        st = check_room("cpu_offload_bytes", o->cpu_offload_bytes, l, err);
        if (!st)
            st = tier_open_host(&setup, o->cpu_offload_bytes, &out[*n], err);
        *n += !st;
    }
    if (!st && o->disk_offload_dir) {
        st = check_room("disk_offload_bytes", o->disk_offload_bytes, l, err);
        if (!st)
            st = tier_open_disk(&setup, o->disk_offload_dir, o->disk_offload_bytes, &out[*n], err);
        *n += !st;
    }
    if (!st && o->remote_store) {
        st = tier_open_remote(&setup, o->remote_store, &out[*n], err);
        *n += !st;
    }
    while (st && *n > 0) {
        --*n;
        out[*n]->close(out[*n]);
    }
    return st;
}

/* Several memory nodes: members stay on theirs, and the pools are spread over all, since which
 * member comes to a page or a state changes with the batch. Everything else lies where it is
 * touched first: scratch with its member, and weights, whose shares are the same in every step,
 * with the member that reads them first, unless the system has them in its cache from before. */
static void place_memory(struct loaded *l, uint32_t threads) {
    l->place = place_open(threads, NULL);
    if (place_nodes(l->place) == 1)
        return;
    bool spread = place_spread(l->place, l->store.memory.base, l->store.memory.size);
    log_line(LOG_INFO, "%" PRIu32 " %s on %" PRIu32 " memory nodes; pools %s", threads,
             plural(threads, "thread", "threads"), place_nodes(l->place),
             spread ? "spread over them" : "not spread: the system refused");
}

/* The weights, mapped; experts may stay in their files. */
static weir_status open_weights(const char *dir, const weir_options *o, struct loaded *l,
                                const struct column *column, uint32_t threads, weir_error *err) {
    const struct expert_setup experts = {.bytes = o->expert_cache_bytes,
                                         .members = threads,
                                         .guess = true,
                                         .column = column,
                                         .dense = dense_form(o->dense_dtype)};
    return weights_open_reading(dir, &l->model, o->expert_cache_bytes ? &experts : NULL,
                                &l->weights, err);
}

/* Bytes for pools beside the weights; what steps need comes out of what a plan leaves. */
static uint64_t device_room(const struct loaded *l) {
    uint64_t left = gpu_device_facts(l->device)->memory_left;
    uint64_t weights = weights_device_bytes(l->weights);
    return left > weights ? left - weights : 0;
}

/* What was found fastest for this model, if somebody has looked. */
static weir_status tune(struct step_program *program, const char *choice,
                        const struct tuning_for *of, weir_error *err) {
    struct tuning *tuning;
    weir_status st = tuning_choose(choice, of, &tuning, err);
    if (!st && tuning)
        st = program_tune(program, tuning, err);
    tuning_free(tuning);
    return st;
}

/* Weights, pools and program on a device. */
static weir_status open_on_device(const char *dir, struct loaded *l, const weir_options *o,
                                  const struct engine_sizes *s, struct step_limits limits,
                                  struct executor **out, weir_error *err) {
    const struct model *m = &l->model;
    enum dtype format = kv_format(o);
    weir_status st = cache_store_open_device(
        &l->store, l->device, s->pages, program_kv_page_bytes(m, format), m->kv_lora + m->rope_dim,
        format, s->slots, program_state_slot_floats(m), program_state_layer_floats(m), err);
    if (st)
        return st;
    l->has_store = true;
    struct step_program *program;
    st = program_build(m, l->weights, &column_gpu, &l->store.kv, &l->store.state, limits,
                       s->threads, &program, err);
    if (st)
        return st;
    const struct tuning_for of = {dir,    &column_gpu, dense_form(o->dense_dtype),
                                  format, 1,           gpu_device_facts(l->device)->name};
    st = tune(program, o->tuning, &of, err);
    if (!st)
        st = program_to_device(program, l->device, err);
    if (st) {
        program_free(program);
        return st;
    }
    return executor_open_program(program, s->threads, NULL, limits, out, err);
}

/* Weights, pools and program of a column that computes here. */
static weir_status open_computing(const char *dir, const weir_options *o, struct loaded *l,
                                  const struct column *column, const struct engine_sizes *s,
                                  struct step_limits limits, struct executor **out,
                                  weir_error *err) {
    const struct model *m = &l->model;
    enum dtype format = kv_format(o);
    weir_status st = open_weights(dir, o, l, column, s->threads, err);
    if (st)
        return st;
    st = cache_store_open(&l->store, s->pages, program_kv_page_bytes(m, format),
                          m->kv_lora + m->rope_dim, format, s->slots, program_state_slot_floats(m),
                          program_state_layer_floats(m), err);
    if (st)
        return st;
    l->has_store = true;
    uint64_t others = l->store.memory.size + o->expert_cache_bytes + o->cpu_offload_bytes;
    st = weights_pack(l->weights, column, dense_form(o->dense_dtype), others, s->threads, err);
    if (st)
        return st;
    place_memory(l, s->threads);
    struct step_program *program;
    st = program_build(m, l->weights, column, &l->store.kv, &l->store.state, limits, s->threads,
                       &program, err);
    if (st)
        return st;
    const struct tuning_for of = {dir,    column,     dense_form(o->dense_dtype),
                                  format, s->threads, NULL};
    st = tune(program, o->tuning, &of, err);
    if (st) {
        program_free(program);
        return st;
    }
    return executor_open_program(program, s->threads, l->place, limits, out, err);
}

static void count_experts(void *arg, weir_stats *out) {
    const struct loaded *l = arg;
    if (l->weights)
        weights_count_experts(l->weights, &out->experts);
}

static void describe_cache(const weir_options *o, const struct checkpoint_policy *policy,
                           bool uses_tiers, weir_info *info) {
    const bool asked[WEIR_SOURCES] = {[WEIR_HOST] = o->cpu_offload_bytes > 0,
                                      [WEIR_DISK] = o->disk_offload_dir != NULL,
                                      [WEIR_REMOTE] = o->remote_store != NULL};
    const uint64_t bytes[WEIR_SOURCES] = {
        [WEIR_HOST] = o->cpu_offload_bytes, [WEIR_DISK] = o->disk_offload_bytes};
    info->prefix_caching = o->prefix_caching;
    checkpoint_policy_print(policy, info->checkpoint_policy, sizeof info->checkpoint_policy);
    for (int i = 0; i < WEIR_SOURCES; i++) {
        info->tier_open[i] = asked[i] && uses_tiers;
        info->tier_bytes[i] = info->tier_open[i] ? bytes[i] : 0;
    }
}

/* Reads and allocates everything an engine needs; on failure `l` is the caller's to free. */
static weir_status prepare(const char *dir, const weir_options *o, struct loaded *l,
                           struct engine_setup *out, weir_error *err) {
    struct model *m = &l->model;
    weir_status st = model_open(dir, m, err);
    if (st)
        return st;
    enum dtype format = kv_format(o);
    struct unit_sizes unit = {
        .page_bytes = program_kv_page_bytes(m, format),
        .slot_bytes = program_state_slot_floats(m) * sizeof(float),
        .max_position = m->max_position,
    };
    struct checkpoint_policy policy;
    struct engine_sizes s;
    st = checkpoint_policy_parse(o->checkpoint_policy, &policy, err);
    if (st)
        return st;
    uint64_t memory = memory_limit();
    if (uses_device(o)) {
        st = modules_open(o->device == WEIR_DEVICE_CUDA ? GPU_CUDA : GPU_HIP, o->device_library,
                          o->device_modules, &l->device, err);
        if (!st)
            st = open_weights(dir, o, l, &column_gpu, 1, err);
        if (!st)
            st = weights_pack(l->weights, &column_gpu, dense_form(o->dense_dtype), 0, 1, err);
        if (st)
            return st;
        memory = device_room(l);
    }
    st = engine_sizes_plan(o, &unit, memory, memory_limit(), &s, err);
    if (st)
        return st;

    struct engine_setup setup = {
        .request = {.vocab = m->vocab,
                    .max_model_len = s.max_model_len,
                    .eos = m->eos,
                    .n_eos = m->n_eos,
                    .scripts = o->compute == WEIR_COMPUTE_NULL},
        .schedule = {.max_seqs = s.max_num_seqs,
                     .max_rows = s.max_num_batched_tokens,
                     .max_waiting = s.max_queue,
                     .policy = o->policy,
                     .log_cache = o->log_cache},
        .cache = {.enabled = o->prefix_caching,
                  .policy = policy,
                  .page_bytes = unit.page_bytes,
                  .slot_bytes = unit.slot_bytes},
        .open_tiers = open_tiers,
        .count = count_experts,
        .async = o->async_scheduling,
        .on_progress = o->on_progress,
        .on_progress_arg = o->on_progress_arg,
        .close = loaded_close,
        .close_arg = l,
    };
    struct step_limits limits = {
        .rows = s.max_num_batched_tokens,
        .logits = scheduler_max_logits(&setup.schedule),
        .position = s.max_model_len,
        .sequences = s.max_num_seqs,
    };
    const struct column *column = NULL;
    switch (o->compute) {
    case WEIR_COMPUTE_FAST:
        column = l->device ? &column_gpu : column_fast(activation_of(o->activation_dtype));
        break;
    case WEIR_COMPUTE_EXACT: column = &column_ref; break;
    case WEIR_COMPUTE_NULL: break;
    }
    st = l->device ? open_on_device(dir, l, o, &s, limits, &setup.executor, err)
         : column  ? open_computing(dir, o, l, column, &s, limits, &setup.executor, err)
                   : executor_open_null(m->vocab, limits, &setup.executor, err);
    if (!st)
        st = fingerprint(dir, o, l, err);
    if (st) {
        if (setup.executor)
            setup.executor->close(setup.executor);
        return st;
    }
    setup.cache.space.model = l->fingerprint;
    /* The null column has no bytes to keep. Who keeps no states may not resume from those that a
     * server with another policy has left in a tier either. */
    l->uses_tiers = l->has_store && o->prefix_caching && checkpoint_policy_keeps_states(&policy);
    l->shape = (struct record_shape){
        .page_bytes = unit.page_bytes,
        .layers = model_kda_layers(m),
        .heads = m->kda_heads,
        .dim = m->kda_dim,
        .window = m->conv_taps - 1,
    };
    setup.info = (weir_info){
        .family = model_family_name(m->family),
        .column = column ? column->name : "null",
        .kv_dtype = kv_choice(o),
        .vocab_size = m->vocab,
        .max_model_len = s.max_model_len,
        .max_num_seqs = s.max_num_seqs,
        .max_num_batched_tokens = s.max_num_batched_tokens,
        .page_tokens = PAGE_TOKENS,
        .threads = column ? s.threads : 0,
        .kv_pages = s.pages,
        .state_slots = s.slots,
        .kv_page_bytes = unit.page_bytes,
        .state_slot_bytes = unit.slot_bytes,
        .weight_bytes = l->weights ? weights_bytes(l->weights) : 0,
    };
    describe_cache(o, &policy, l->uses_tiers, &setup.info);
    _Static_assert(sizeof setup.info.fingerprint == CACHE_KEY_HEX, "all of it");
    cache_key_hex(&l->fingerprint, setup.info.fingerprint);
    *out = setup;
    return WEIR_OK;
}

weir_status weir_open(const char *dir, const weir_options *options, weir_engine **out,
                      weir_error *err) {
    *out = NULL;
    weir_status st = check_enums(options, err);
    if (!st)
        st = check_device(options, err);
    if (st)
        return st;
    struct loaded *l = calloc(1, sizeof *l);
    if (!l)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    struct engine_setup setup;
    l->options = options;
    st = prepare(dir, options, l, &setup, err);
    if (st) {
        loaded_close(l);
        return st;
    }
    st = engine_open(&setup, out, err);
    if (!st)
        l->options = NULL;
    return st;
}
