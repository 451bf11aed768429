/* run_inferencex.c: the aggregate of a run in the form InferenceX collects, and the flat row its
 * charts are drawn from. Called by the writer of a run's files, the frontier and the report. */
#include "trace/run_inside.h"

#include <openssl/evp.h>

#include <math.h>
#include <string.h>

/* What makes two runs comparable in 16 hex digits. NULL without memory; null for no config. */
static json_t *fingerprint(const struct run *r) {
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    char hex[17];
    if (!r->config)
        return json_null();
    char *text = json_dumps(r->config, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17));
    int ok = text && EVP_Digest(text, strlen(text), sum, &n, EVP_sha256(), NULL);
    free(text);
    for (int i = 0; ok && i < 8; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return ok ? json_string(hex) : NULL;
}

static json_t *accounting_json(const struct run_summary *s) {
    json_t *o = json_object(), *errors = json_object();
    bool ok = o && errors;
    for (uint32_t i = 0; i < s->n_errors; i++)
        json_put(errors, s->errors[i].type, json_integer(s->errors[i].n), &ok);
    if (s->cancelled)
        json_put(errors, "cancelled", json_integer(s->cancelled), &ok);
    if (s->skipped)
        json_put(errors, "skipped", json_integer(s->skipped), &ok);
    json_put(o, "records_total", json_integer(s->total), &ok);
    json_put(o, "records_profiled", json_integer(s->profiled), &ok);
    json_put(o, "records_dropped_total", json_integer(s->total - s->kept), &ok);
    json_put(o, "records_warmup_dropped", json_integer(s->warmup), &ok);
    json_put(o, "records_error_dropped", json_integer(s->profiled - s->kept), &ok);
    json_put(o, "error_categories", errors, &ok);
    return json_done(o, ok);
}

static json_t *dataset_json(const struct run *r) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "name", json_text_or_null(r->dataset), &ok);
    json_put(o, "isl", json_count_or_null(r->isl), &ok);
    json_put(o, "osl", json_count_or_null(r->osl), &ok);
    json_put(o, "time_scale", r->time_scale > 0 ? json_real(r->time_scale) : json_null(), &ok);
    json_put(o, "length_scale", r->length_scale > 0 ? json_real(r->length_scale) : json_null(),
             &ok);
    return json_done(o, ok);
}

static json_t *latency_json(const struct run_summary *s) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "ttft", json_statistics(&s->ttft, DECIMALS_S), &ok);
    json_put(o, "e2el", json_statistics(&s->latency, DECIMALS_S), &ok);
    json_put(o, "itl", json_statistics(&s->itl, DECIMALS_S), &ok);
    json_put(o, "tpot", json_statistics(&s->itl, DECIMALS_S), &ok);
    json_put(o, "intvty", json_statistics(&s->intvty, DECIMALS), &ok);
    json_put(o, "e2e_norm_intvty", json_statistics(&s->e2e_norm_intvty, DECIMALS), &ok);
    json_put(o, "full_response_itl", json_statistics(&s->full_itl, DECIMALS_S), &ok);
    json_put(o, "full_response_intvty", json_statistics(&s->full_intvty, DECIMALS), &ok);
    return json_done(o, ok);
}

static json_t *rate_json(double tokens_per_second) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "tokens_per_second", json_rounded(tokens_per_second, DECIMALS), &ok);
    return json_done(o, ok);
}

static json_t *throughput_json(const struct run_summary *s) {
    json_t *o = json_object(), *gpu = json_object();
    bool ok = o && gpu;
    json_put(gpu, "total_tput_tps", json_rounded(s->per_gpu_total, DECIMALS), &ok);
    json_put(gpu, "output_tput_tps", json_rounded(s->per_gpu_out, DECIMALS), &ok);
    json_put(gpu, "input_tput_tps", json_rounded(s->per_gpu_in, DECIMALS), &ok);
    json_put(o, "input", rate_json(s->in_rate), &ok);
    json_put(o, "output", rate_json(s->out_rate), &ok);
    json_put(o, "total", rate_json(s->total_rate), &ok);
    json_put(o, "duration_seconds", json_rounded(s->duration, DECIMALS_S), &ok);
    json_put(o, "per_gpu", gpu, &ok);
    return json_done(o, ok);
}

static json_t *requests_json(const struct run_summary *s) {
    json_t *o = json_object(), *tokens = json_object(), *cache = json_object();
    bool ok = o && tokens && cache;
    json_put(tokens, "input", json_statistics(&s->in, DECIMALS), &ok);
    json_put(tokens, "output_actual", json_statistics(&s->out, DECIMALS), &ok);
    json_put(tokens, "output_expected", json_statistics(&s->out_expected, DECIMALS), &ok);
    json_put(cache, "theoretical_cache_hit_rate", json_rounded(s->theoretical_hit_rate, DECIMALS),
             &ok);
    json_put(o, "qps", json_statistics(&s->qps, DECIMALS), &ok);
    json_put(o, "latency", latency_json(s), &ok);
    json_put(o, "tokens", tokens, &ok);
    json_put(o, "throughput", throughput_json(s), &ok);
    json_put(o, "cache", cache, &ok);
    return json_done(o, ok);
}

static json_t *backend_json(const struct run_subject *s) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "name", json_text_or_null(s->offload_name), &ok);
    json_put(o, "version", json_text_or_null(s->offload_version), &ok);
    return json_done(o, ok);
}

static json_t *warnings_json(const struct run *r) {
    json_t *a = json_array();
    bool ok = a;
    for (uint32_t i = 0; i < r->n_warnings; i++)
        if (json_array_append_new(a, json_text_or_null(r->warnings[i])))
            ok = false;
    return json_done(a, ok);
}

static json_t *reasons_json(const struct run_summary *s) {
    json_t *a = json_array();
    bool ok = a;
    for (uint32_t i = 0; ok && i < s->n_invalid; i++)
        ok = !json_array_append_new(a, json_text_or_null(s->invalid[i]));
    return json_done(a, ok);
}

json_t *run_inferencex_json(const struct run *r, const struct run_summary *s) {
    const struct run_subject *who = &r->subject;
    double pool = NAN;
    for (uint32_t i = 0; i < r->n_samples; i++)
        if (isfinite(r->samples[i].kv_total_tokens))
            pool = r->samples[i].kv_total_tokens;
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "hw", json_text_or_null(who->hardware), &ok);
    json_put(o, "conc", json_count_or_null(r->concurrency), &ok);
    json_put(o, "image", json_text_or_null(who->image), &ok);
    json_put(o, "recipe_fingerprint", fingerprint(r), &ok);
    json_put(o, "model", json_text_or_null(who->model), &ok);
    json_put(o, "infmax_model_prefix", json_text_or_null(who->model_prefix), &ok);
    json_put(o, "framework", json_text_or_null(who->framework), &ok);
    json_put(o, "precision", json_text_or_null(who->precision), &ok);
    json_put(o, "spec_decoding", json_text_or_null(who->spec_decoding), &ok);
    json_put(o, "disagg", json_boolean(who->disagg), &ok);
    json_put(o, "scenario_type", json_text_or_null(r->scenario), &ok);
    json_put(o, "is_multinode", json_boolean(who->is_multinode), &ok);
    json_put(o, "tp", json_count_or_null(who->tp), &ok);
    json_put(o, "ep", json_count_or_null(who->ep), &ok);
    json_put(o, "dp_attention", json_boolean(who->dp_attention), &ok);
    json_put(o, "pp", json_count_or_null(who->pp), &ok);
    json_put(o, "dcp_size", json_count_or_null(who->dcp), &ok);
    json_put(o, "pcp_size", json_count_or_null(who->pcp), &ok);
    json_put(o, "kv_offloading", json_text_or_null(who->kv_offloading), &ok);
    json_put(o, "kv_offload_backend", backend_json(who), &ok);
    json_put(o, "allocated_cpu_dram_gb", json_rounded(who->allocated_dram_gb, DECIMALS), &ok);
    json_put(o, "num_requests_total", json_integer(s->profiled), &ok);
    json_put(o, "num_requests_successful", json_integer(s->kept), &ok);
    json_put(o, "kv_cache_pool_tokens", json_rounded(pool, DECIMALS), &ok);
    json_put(o, "warnings", warnings_json(r), &ok);
    json_put(o, "request_accounting", accounting_json(s), &ok);
    json_put(o, "dataset", dataset_json(r), &ok);
    json_put(o, "request_metrics", requests_json(s), &ok);
    json_put(o, "server_metrics", run_server_json(r), &ok);
    /* Ours: whoever reads this file alone must see that it may not be set beside others. */
    const char *state = run_state(r, s);
    json_put(o, "label", json_text_or_null(who->label), &ok);
    json_put(o, "state", json_text_or_null(state[0] ? state : NULL), &ok);
    json_put(o, "submission_valid", json_boolean(s->valid), &ok);
    json_put(o, "submission_invalid_reasons", reasons_json(s), &ok);
    return json_done(o, ok);
}

/* ------------------------------------------------------------------------------------ flat row */

static void flat(json_t *o, const char *name, const struct distribution *d, int decimals,
                 bool *ok) {
    const struct {
        const char *name;
        double x;
    } stat[] = {{"mean", d->mean}, {"median", d->p50}, {"p75", d->p75}, {"p90", d->p90},
                {"p95", d->p95},   {"p99", d->p99},    {"std", d->std}};
    char key[64];
    for (size_t i = 0; i < sizeof stat / sizeof *stat; i++) {
        snprintf(key, sizeof key, "%s_%s", stat[i].name, name);
        json_put(o, key, json_rounded(stat[i].x, decimals), ok);
    }
}

json_t *run_row_json(const struct run *r, const struct run_summary *s) {
    const struct run_subject *who = &r->subject;
    char date[32];
    utc_text(r->profiling_started ? r->profiling_started : r->started, date);
    if (date[0])
        date[10] = 0;
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "hw", json_text_or_null(who->hardware), &ok);
    json_put(o, "framework", json_text_or_null(who->framework), &ok);
    json_put(o, "model", json_text_or_null(who->model), &ok);
    json_put(o, "precision", json_text_or_null(who->precision), &ok);
    json_put(o, "spec", json_text_or_null(who->spec_decoding), &ok);
    json_put(o, "label", json_text_or_null(who->label), &ok);
    json_put(o, "disagg", json_boolean(who->disagg), &ok);
    json_put(o, "tp", json_count_or_null(who->tp), &ok);
    json_put(o, "ep", json_count_or_null(who->ep), &ok);
    json_put(o, "pp", json_count_or_null(who->pp), &ok);
    json_put(o, "dcp_size", json_count_or_null(who->dcp), &ok);
    json_put(o, "pcp_size", json_count_or_null(who->pcp), &ok);
    json_put(o, "dp_attention", json_boolean(who->dp_attention), &ok);
    json_put(o, "conc", json_count_or_null(r->concurrency), &ok);
    json_put(o, "date", json_text_or_null(date[0] ? date : NULL), &ok);
    json_put(o, "isl", json_count_or_null(r->isl), &ok);
    json_put(o, "osl", json_count_or_null(r->osl), &ok);
    json_put(o, "tput_per_gpu", json_rounded(s->per_gpu_total, DECIMALS), &ok);
    json_put(o, "input_tput_per_gpu", json_rounded(s->per_gpu_in, DECIMALS), &ok);
    json_put(o, "output_tput_per_gpu", json_rounded(s->per_gpu_out, DECIMALS), &ok);
    flat(o, "ttft", &s->ttft, DECIMALS_S, &ok);
    flat(o, "tpot", &s->itl, DECIMALS_S, &ok);
    flat(o, "itl", &s->itl, DECIMALS_S, &ok);
    flat(o, "e2el", &s->latency, DECIMALS_S, &ok);
    flat(o, "intvty", &s->intvty, DECIMALS, &ok);
    return json_done(o, ok);
}
