/* configuration.c: flattens a run's configuration and hashes it. */
#include "bench/configuration.h"

#include <math.h>
#include <openssl/evp.h>
#include <string.h>

bool configuration_is_version(const char *key) {
    static const char *const keys[] = {"framework_version", "image", "offload_version"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

bool configuration_is_incidental(const char *key) {
    static const char *const keys[] = {"label", "out",  "history", "no_history",  "url",  "api_key",
                                       "ca",    "salt", "json",    "metrics_url", "title"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

static void put(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, value);
}

static void put_text(json_t *o, const char *key, const char *text) {
    if (text)
        put(o, key, json_string(text));
}

static void put_count(json_t *o, const char *key, uint64_t n) {
    if (n)
        put(o, key, json_integer((json_int_t)n));
}

/* Options stand with underscores like everything else; those that name the subject are there
 * already, as they were found out or given. */
static void flatten(json_t *out, const char *before, const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char name[256];
        snprintf(name, sizeof name, "%s%s%s", before, *before ? "." : "", key);
        for (char *c = name; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (json_is_object(value))
            flatten(out, name, value);
        else if (!json_is_null(value) && !json_object_get(out, name))
            json_object_set(out, name, value);
    }
}

/* What a server tells of itself changes from start to start, or from question to question, without
 * being a setting; and a key is nobody's business. */
static bool is_passing(const char *key) {
    static const char *const names[] = {"created", "host", "port", "pid", "url", "version"};
    static const char *const endings[] = {"time", "_port", "seed", "_key", "_id", "path"};
    static const char *const parts[] = {"throughput", "usage", "available"};
    size_t n = strlen(key);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(key, names[i]))
            return true;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t of = strlen(endings[i]);
        if (n >= of && !strcmp(key + n - of, endings[i]))
            return true;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(key, parts[i]))
            return true;
    return false;
}

/* Lists are left out: they hold models, slots and states. */
static void flatten_server(json_t *out, const char *before, const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char name[256];
        snprintf(name, sizeof name, "%s.%s", before, key);
        if (json_object_size(value)) /* an empty one says that something is there */
            flatten_server(out, name, value);
        else if (!json_is_array(value) && !json_is_null(value) && !is_passing(key) &&
                 !json_object_get(out, name))
            json_object_set(out, name, value);
    }
}

/* `server` holds the answers of its endpoints under their paths. */
static void put_server(json_t *out, const json_t *server) {
    const char *path;
    json_t *answer;
    json_object_foreach((json_t *)(uintptr_t)server, path, answer) {
        const json_t *model = json_array_get(json_object_get(answer, "data"), 0);
        json_t *length = json_object_get(model, "max_model_len");
        if (json_is_integer(length) && !json_object_get(out, "server.max_model_len"))
            json_object_set(out, "server.max_model_len", length);
        if (json_is_object(answer) && !model)
            flatten_server(out, "server", answer);
    }
}

static bool is_of_server(const char *key) {
    return !strncmp(key, "server.", 7);
}

/* Of what a server tells these are settings that make two runs no repeats of each other. */
static bool is_server_setting(const char *key) {
    static const char *const keys[] = {"threads",
                                       "max_model_len",
                                       "max_num_seqs",
                                       "max_num_batched_tokens",
                                       "max_running_requests",
                                       "tp_size",
                                       "dp_size",
                                       "ep_size",
                                       "chunked_prefill_size",
                                       "mem_fraction_static",
                                       "attention_backend",
                                       "kv_cache_dtype",
                                       "quantization",
                                       "speculative_algorithm",
                                       "speculative_num_draft_tokens",
                                       "disable_radix_cache",
                                       "kv_pages",
                                       "state_slots",
                                       "prefix_caching",
                                       "checkpoint_policy",
                                       "total_slots",
                                       "default_generation_settings.n_ctx"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!strcmp(key + 7, keys[i]))
            return true;
    return !strncmp(key + 7, "tiers.", 6);
}

json_t *configuration_of(const struct run *r) {
    const struct run_subject *s = &r->subject;
    json_t *o = json_object();
    if (!o)
        return NULL;
    put_text(o, "label", s->label);
    put_text(o, "hardware", s->hardware);
    put_text(o, "framework", s->framework);
    put_text(o, "framework_version", s->framework_version);
    put_text(o, "image", s->image);
    put_text(o, "model", s->model);
    put_text(o, "precision", s->precision);
    put_text(o, "spec_decoding", s->spec_decoding);
    put_text(o, "kv_offloading", s->kv_offloading);
    put_text(o, "offload_name", s->offload_name);
    put_text(o, "offload_version", s->offload_version);
    put_count(o, "tp", s->tp);
    put_count(o, "ep", s->ep);
    put_count(o, "pp", s->pp);
    put_count(o, "dcp", s->dcp);
    put_count(o, "pcp", s->pcp);
    put(o, "dp_attention", json_boolean(s->dp_attention));
    put(o, "disagg", json_boolean(s->disagg));
    put(o, "is_multinode", json_boolean(s->is_multinode));
    if (isfinite(s->allocated_dram_gb))
        put(o, "allocated_dram_gb", json_real(s->allocated_dram_gb));
    put_count(o, "concurrency", r->concurrency);
    put_text(o, "scenario", r->scenario);
    put_text(o, "dataset", r->dataset);
    put_count(o, "isl", r->isl);
    put_count(o, "osl", r->osl);
    put(o, "time_scale", json_real(r->time_scale));
    put(o, "length_scale", json_real(r->length_scale));
    if (json_is_object(r->config))
        flatten(o, "", r->config);
    put_server(o, r->server);
    return o;
}

weir_status configuration_fingerprint(const json_t *configuration, char out[FINGERPRINT_BYTES],
                                      weir_error *err) {
    json_t *kept = json_copy((json_t *)(uintptr_t)configuration);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)configuration, key, value) {
        if (configuration_is_version(key) || configuration_is_incidental(key) ||
            (is_of_server(key) && !is_server_setting(key)))
            json_object_del(kept, key);
    }
    char *text =
        kept ? json_dumps(kept, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(kept);
    unsigned char hash[EVP_MAX_MD_SIZE];
    bool good = text && EVP_Digest(text, strlen(text), hash, NULL, EVP_sha256(), NULL);
    free(text);
    if (!good)
        return weir_fail(err, WEIR_NO_MEMORY, "configuration", "no memory");
    for (int i = 0; i < (FINGERPRINT_BYTES - 1) / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    return WEIR_OK;
}

char *configuration_version(const json_t *configuration) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    const char *key;
    json_t *value;
    bool any = false;
    json_object_foreach((json_t *)(uintptr_t)configuration, key,
                        value) if (configuration_is_version(key) && json_is_string(value)) {
        fprintf(f, "%s%s=%s", any ? ";" : "", key, json_string_value(value));
        any = true;
    }
    return fclose(f) ? NULL : text;
}

bool run_is_unscaled(const struct run *r) {
    return (r->time_scale == 1 || r->time_scale == 0) &&
           (r->length_scale == 1 || r->length_scale == 0);
}
