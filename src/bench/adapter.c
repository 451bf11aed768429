/* adapter.c: one table of metric names for all kinds of servers. Called by probe.c and replay.c.
 * Invariant that bites: tensor-parallel ranks of one engine each report the whole engine, while
 * data-parallel engines report their own share. So of samples that differ in the rank alone the
 * largest counts, and the rest is added up (or, where it is a share, averaged). */
#include "bench/adapter.h"

#include "bench/prometheus.h"

#include <math.h>
#include <string.h>

enum how { ADD, AVERAGE };

struct rule {
    const char *name;         /* of the family; a counter may have _total behind it */
    const char *label, *want; /* only samples with this label; NULL: all */
    size_t offset;            /* in server_sample */
    enum how how;
    double scale;
};

#define TO(field) offsetof(struct server_sample, field)

/* A field with several names: releases changed them, and the first that is found counts. */
static const struct rule weir_rules[] = {
    {"vllm:prompt_tokens", 0, 0, TO(prompt_tokens), ADD, 1},
    {"vllm:generation_tokens", 0, 0, TO(generated_tokens), ADD, 1},
    {"vllm:request_success", 0, 0, TO(requests_done), ADD, 1},
    {"vllm:prefix_cache_hits", 0, 0, TO(hit_tokens), ADD, 1},
    {"vllm:prefix_cache_queries", 0, 0, TO(query_tokens), ADD, 1},
    {"weir_prompt_tokens_by_source", "source", "device", TO(device_tokens), ADD, 1},
    {"weir_prompt_tokens_by_source", "source", "host", TO(host_tokens), ADD, 1},
    {"weir_prompt_tokens_by_source", "source", "disk", TO(disk_tokens), ADD, 1},
    {"weir_prompt_tokens_by_source", "source", "remote", TO(remote_tokens), ADD, 1},
    {"weir_prompt_tokens_by_source", "source", "computed", TO(computed_tokens), ADD, 1},
    {"vllm:num_requests_running", 0, 0, TO(running), ADD, 1},
    {"vllm:num_requests_waiting", 0, 0, TO(waiting), ADD, 1},
    {"vllm:kv_cache_usage_perc", 0, 0, TO(kv_usage), AVERAGE, 1},
    {"weir_kv_pages", 0, 0, TO(kv_total_tokens), ADD, 64},
    {"weir_tier_moved_bytes", "task", "store", TO(bytes_out), ADD, 1},
    {"weir_tier_moved_bytes", "task", "load", TO(bytes_in), ADD, 1},
    {"weir_tier_move_seconds", "task", "store", TO(seconds_out), ADD, 1},
    {"weir_tier_move_seconds", "task", "load", TO(seconds_in), ADD, 1},
    {"vllm:spec_decode_num_drafts", 0, 0, TO(drafts), ADD, 1},
    {"vllm:spec_decode_num_draft_tokens", 0, 0, TO(drafted_tokens), ADD, 1},
    {"vllm:spec_decode_num_accepted_tokens", 0, 0, TO(accepted_tokens), ADD, 1},
};

static const struct rule vllm_rules[] = {
    {"vllm:prompt_tokens", 0, 0, TO(prompt_tokens), ADD, 1},
    {"vllm:generation_tokens", 0, 0, TO(generated_tokens), ADD, 1},
    {"vllm:request_success", 0, 0, TO(requests_done), ADD, 1},
    {"vllm:prefix_cache_hits", 0, 0, TO(hit_tokens), ADD, 1},
    {"vllm:prefix_cache_queries", 0, 0, TO(query_tokens), ADD, 1},
    {"vllm:gpu_prefix_cache_hits", 0, 0, TO(hit_tokens), ADD, 1},
    {"vllm:gpu_prefix_cache_queries", 0, 0, TO(query_tokens), ADD, 1},
    {"vllm:external_prefix_cache_hits", 0, 0, TO(external_hit_tokens), ADD, 1},
    {"vllm:external_prefix_cache_queries", 0, 0, TO(external_query_tokens), ADD, 1},
    {"vllm:prompt_tokens_by_source", "source", "local_cache_hit", TO(device_tokens), ADD, 1},
    {"vllm:prompt_tokens_by_source", "source", "external_kv_transfer", TO(remote_tokens), ADD, 1},
    {"vllm:prompt_tokens_by_source", "source", "local_compute", TO(computed_tokens), ADD, 1},
    {"vllm:num_requests_running", 0, 0, TO(running), ADD, 1},
    {"vllm:num_requests_waiting", 0, 0, TO(waiting), ADD, 1},
    {"vllm:kv_cache_usage_perc", 0, 0, TO(kv_usage), AVERAGE, 1},
    {"vllm:gpu_cache_usage_perc", 0, 0, TO(kv_usage), AVERAGE, 1},
    {"vllm:cpu_cache_usage_perc", 0, 0, TO(host_usage), AVERAGE, 1},
    {"vllm:kv_offload_cpu_cache_usage_perc", 0, 0, TO(host_usage), AVERAGE, 1},
    {"vllm:kv_offload_total_bytes", "transfer_type", "GPU_to_CPU", TO(bytes_out), ADD, 1},
    {"vllm:kv_offload_total_bytes", "transfer_type", "CPU_to_GPU", TO(bytes_in), ADD, 1},
    {"vllm:kv_offload_total_time", "transfer_type", "GPU_to_CPU", TO(seconds_out), ADD, 1},
    {"vllm:kv_offload_total_time", "transfer_type", "CPU_to_GPU", TO(seconds_in), ADD, 1},
    {"vllm:spec_decode_num_drafts", 0, 0, TO(drafts), ADD, 1},
    {"vllm:spec_decode_num_draft_tokens", 0, 0, TO(drafted_tokens), ADD, 1},
    {"vllm:spec_decode_num_accepted_tokens", 0, 0, TO(accepted_tokens), ADD, 1},
};

static const struct rule sglang_rules[] = {
    {"sglang:prompt_tokens", 0, 0, TO(prompt_tokens), ADD, 1},
    {"sglang:generation_tokens", 0, 0, TO(generated_tokens), ADD, 1},
    {"sglang:num_requests", 0, 0, TO(requests_done), ADD, 1},
    {"sglang:cached_tokens", 0, 0, TO(hit_tokens), ADD, 1},
    {"sglang:cached_tokens", "cache_source", "device", TO(device_tokens), ADD, 1},
    {"sglang:cached_tokens", "cache_source", "host", TO(host_tokens), ADD, 1},
    {"sglang:realtime_tokens", "mode", "prefill_compute", TO(computed_tokens), ADD, 1},
    {"sglang:num_running_reqs", 0, 0, TO(running), ADD, 1},
    {"sglang:num_queue_reqs", 0, 0, TO(waiting), ADD, 1},
    {"sglang:token_usage", 0, 0, TO(kv_usage), AVERAGE, 1},
    {"sglang:max_total_num_tokens", 0, 0, TO(kv_total_tokens), ADD, 1},
    {"sglang:hicache_host_used_tokens", 0, 0, TO(host_used_tokens), ADD, 1},
    {"sglang:hicache_host_total_tokens", 0, 0, TO(host_total_tokens), ADD, 1},
    {"sglang:hicache_backup_bytes", 0, 0, TO(bytes_out), ADD, 1},
    {"sglang:load_back_bytes", 0, 0, TO(bytes_in), ADD, 1},
};

static const struct rule llama_rules[] = {
    {"llamacpp:prompt_tokens", 0, 0, TO(computed_tokens), ADD, 1}, /* cached ones not included */
    {"llamacpp:prompt_tokens_cached", 0, 0, TO(device_tokens), ADD, 1},
    {"llamacpp:tokens_predicted", 0, 0, TO(generated_tokens), ADD, 1},
    {"llamacpp:requests_processing", 0, 0, TO(running), ADD, 1},
    {"llamacpp:requests_deferred", 0, 0, TO(waiting), ADD, 1},
    {"llamacpp:kv_cache_usage_ratio", 0, 0, TO(kv_usage), AVERAGE, 1},
    {"llamacpp:spec_decode_num_drafts", 0, 0, TO(drafts), ADD, 1},
    {"llamacpp:spec_decode_num_draft_tokens", 0, 0, TO(drafted_tokens), ADD, 1},
    {"llamacpp:spec_decode_num_accepted_tokens", 0, 0, TO(accepted_tokens), ADD, 1},
};

static const struct {
    const struct rule *rule;
    size_t n;
    const char *prefix[3];
} adapters[SERVER_KINDS] = {
#define RULES(NAME) NAME, sizeof NAME / sizeof *NAME
    [SERVER_WEIR] = {RULES(weir_rules), {"vllm:", "weir_"}},
    [SERVER_VLLM] = {RULES(vllm_rules), {"vllm:"}},
    [SERVER_SGLANG] = {RULES(sglang_rules), {"sglang:"}},
    [SERVER_LLAMA_CPP] = {RULES(llama_rules), {"llamacpp:"}},
#undef RULES
};

enum { MOST_RULES = 32, MOST_GROUPS = 64 };

/* Samples of one rule that differ in the rank alone. */
struct group {
    uint64_t key;
    double value;
};

struct gathered {
    struct group group[MOST_GROUPS];
    uint32_t n;
};

static uint64_t add_bytes(uint64_t h, struct span_text s) {
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.at[i]) * 0x100000001B3u;
    return h;
}

/* Everything that makes two samples different shares of one number, the ranks of one engine left
 * out. A data-parallel engine with its own tensor-parallel ranks has its own dp_rank. */
static uint64_t key_of(const struct prometheus_sample *s) {
    static const char *const labels[] = {"engine",       "dp_rank",    "finished_reason",
                                         "cache_source", "tier",       "instance",
                                         "engine_type",  "model_name", "pool"};
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        struct span_text v;
        h = (h ^ i) * 0x100000001B3u;
        if (prometheus_label(s, labels[i], &v))
            h = add_bytes(h, v);
    }
    return h;
}

static void gather(struct gathered *g, uint64_t key, double value) {
    for (uint32_t i = 0; i < g->n; i++)
        if (g->group[i].key == key) {
            g->group[i].value = fmax(g->group[i].value, value);
            return;
        }
    if (g->n < MOST_GROUPS)
        g->group[g->n++] = (struct group){key, value};
}

static bool is_named(struct span_text name, const char *want) {
    size_t n = strlen(want);
    return name.n >= n && !memcmp(name.at, want, n) &&
           (name.n == n || (name.n == n + 6 && !memcmp(name.at + n, "_total", 6)));
}

static bool matches(const struct rule *r, const struct prometheus_sample *s) {
    struct span_text v;
    return is_named(s->name, r->name) &&
           (!r->label || (prometheus_label(s, r->label, &v) && span_is(v, r->want)));
}

static double total_of(const struct rule *r, const struct gathered *g) {
    double sum = 0;
    for (uint32_t i = 0; i < g->n; i++)
        sum += g->group[i].value;
    double all = (r->how == AVERAGE ? sum / g->n : sum) * r->scale;
    /* No counter is that great, and the files of a run hold none that is. */
    return fabs(all) < 1e200 ? all : NAN;
}

/* Numbers that follow from others. */
static void derive(enum server_kind kind, struct server_sample *s) {
    if (kind == SERVER_SGLANG) {
        s->query_tokens = s->prompt_tokens;
        if (isnan(s->computed_tokens))
            s->computed_tokens = s->prompt_tokens - s->hit_tokens;
    }
    if (kind == SERVER_LLAMA_CPP) {
        /* Releases without a count of cached tokens leave the whole length of prompts unknown. */
        s->prompt_tokens = s->computed_tokens + s->device_tokens;
        s->hit_tokens = s->device_tokens;
        s->query_tokens = s->prompt_tokens;
    }
}

/* vLLM tells the size of its cache in labels only: blocks and tokens of each. */
static void read_config(const struct prometheus_sample *s, struct server_sample *out) {
    struct span_text blocks, size;
    if (!span_is(s->name, "vllm:cache_config_info") ||
        !prometheus_label(s, "num_gpu_blocks", &blocks) ||
        !prometheus_label(s, "block_size", &size) || blocks.n > 15 || size.n > 15)
        return;
    char a[16], b[16];
    snprintf(a, sizeof a, "%.*s", (int)blocks.n, blocks.at);
    snprintf(b, sizeof b, "%.*s", (int)size.n, size.at);
    double tokens = strtod(a, NULL) * strtod(b, NULL);
    if (tokens > 0)
        out->kv_total_tokens = (isnan(out->kv_total_tokens) ? 0 : out->kv_total_tokens) + tokens;
}

uint32_t adapter_read(enum server_kind kind, const char *text, size_t n,
                      struct server_sample *out) {
    int64_t at = out->at;
    server_sample_clear(out);
    out->at = at;
    if (!adapters[kind].rule)
        return 0;
    struct gathered *found = calloc(MOST_RULES, sizeof *found);
    struct prometheus_sample s;
    uint32_t names = 0;
    if (!found)
        return 0;
    for (const char *p = text, *end = text + n;
         prometheus_next(&p, end, adapters[kind].prefix, &s);) {
        for (size_t i = 0; i < adapters[kind].n; i++)
            if (matches(&adapters[kind].rule[i], &s))
                gather(&found[i], key_of(&s), s.value);
        if (kind == SERVER_VLLM)
            read_config(&s, out);
    }
    for (size_t i = 0; i < adapters[kind].n; i++) {
        const struct rule *r = &adapters[kind].rule[i];
        double *field = (double *)((char *)out + r->offset);
        if (found[i].n > 0 && isnan(*field)) {
            *field = total_of(r, &found[i]);
            names++;
        }
    }
    free(found);
    derive(kind, out);
    return names;
}

enum server_kind adapter_of_metrics(const char *text, size_t n) {
    struct prometheus_sample s;
    enum server_kind kind = SERVER_AUTO;
    for (const char *p = text, *end = text + n; prometheus_next(&p, end, NULL, &s);) {
        static const struct {
            const char *prefix;
            enum server_kind kind;
        } known[] = {{"weir_", SERVER_WEIR},
                     {"sglang:", SERVER_SGLANG},
                     {"llamacpp:", SERVER_LLAMA_CPP},
                     {"vllm:", SERVER_VLLM}};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (s.name.n > strlen(known[i].prefix) &&
                !memcmp(s.name.at, known[i].prefix, strlen(known[i].prefix)))
                /* weir writes vLLM's names too: its own decide. */
                if (kind == SERVER_AUTO || known[i].kind == SERVER_WEIR)
                    kind = known[i].kind;
    }
    return kind;
}
