/* run_config.c: run.json: who was measured and how, what the server said, how true the client's
 * clock was, validity. Called by the writer and the reader of a run's files. */
#include "trace/run_inside.h"

#include "model/json_fields.h"

#include <math.h>
#include <string.h>

#define TEXT(name)                                                                                 \
    { #name, offsetof(struct run, name) }
#define OF(name)                                                                                   \
    { #name, offsetof(struct run, subject.name) }
static const struct text_field {
    const char *name;
    size_t offset;
} subject_texts[] = {OF(hardware),      OF(framework),    OF(framework_version), OF(model),
                     OF(model_prefix),  OF(image),        OF(precision),         OF(spec_decoding),
                     OF(kv_offloading), OF(offload_name), OF(offload_version),   OF(label)},
  run_texts[] = {TEXT(scenario), TEXT(dataset), TEXT(url), TEXT(metrics_adapter),
                 TEXT(abort_reason)};
#undef TEXT
#undef OF
enum {
    SUBJECT_TEXTS = sizeof subject_texts / sizeof *subject_texts,
    RUN_TEXTS = sizeof run_texts / sizeof *run_texts
};

static char **text_at(const struct run *r, const struct text_field *f) {
    return (char **)(uintptr_t)((uintptr_t)r + f->offset);
}

static json_t *subject_json(const struct run *r) {
    const struct run_subject *s = &r->subject;
    json_t *o = json_object();
    bool ok = o;
    for (int i = 0; i < SUBJECT_TEXTS; i++)
        json_put(o, subject_texts[i].name, json_text_or_null(*text_at(r, &subject_texts[i])), &ok);
    json_put(o, "tp", json_count_or_null(s->tp), &ok);
    json_put(o, "ep", json_count_or_null(s->ep), &ok);
    json_put(o, "pp", json_count_or_null(s->pp), &ok);
    json_put(o, "dcp", json_count_or_null(s->dcp), &ok);
    json_put(o, "pcp", json_count_or_null(s->pcp), &ok);
    json_put(o, "dp_attention", json_boolean(s->dp_attention), &ok);
    json_put(o, "disagg", json_boolean(s->disagg), &ok);
    json_put(o, "is_multinode", json_boolean(s->is_multinode), &ok);
    json_put(o, "allocated_dram_gb", json_rounded(s->allocated_dram_gb, DECIMALS), &ok);
    return json_done(o, ok);
}

static const struct distribution_field {
    const char *name;
    size_t offset;
} distribution_fields[] = {
    {"mean", offsetof(struct distribution, mean)}, {"std", offsetof(struct distribution, std)},
    {"min", offsetof(struct distribution, min)},   {"max", offsetof(struct distribution, max)},
    {"sum", offsetof(struct distribution, sum)},   {"p1", offsetof(struct distribution, p1)},
    {"p5", offsetof(struct distribution, p5)},     {"p10", offsetof(struct distribution, p10)},
    {"p25", offsetof(struct distribution, p25)},   {"p50", offsetof(struct distribution, p50)},
    {"p75", offsetof(struct distribution, p75)},   {"p90", offsetof(struct distribution, p90)},
    {"p95", offsetof(struct distribution, p95)},   {"p99", offsetof(struct distribution, p99)},
};
enum { DISTRIBUTION_FIELDS = sizeof distribution_fields / sizeof *distribution_fields };

static json_t *distribution_json(const struct distribution *d) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "n", json_integer((json_int_t)d->n), &ok);
    for (int i = 0; i < DISTRIBUTION_FIELDS; i++) {
        double x;
        memcpy(&x, (const char *)d + distribution_fields[i].offset, sizeof x);
        json_put(o, distribution_fields[i].name, d->n ? json_rounded(x, DECIMALS) : json_null(),
                 &ok);
    }
    return json_done(o, ok);
}

static json_t *overhead_json(const struct client_overhead *c) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "turn_us", distribution_json(&c->turn_us), &ok);
    json_put(o, "late_us", distribution_json(&c->late_us), &ok);
    json_put(o, "held_ms", distribution_json(&c->held_ms), &ok);
    json_put(o, "busy", json_rounded(c->busy, DECIMALS), &ok);
    json_put(o, "most_streams", json_integer(c->most_streams), &ok);
    return json_done(o, ok);
}

static json_t *list_json(char *const *text, uint32_t n) {
    json_t *a = json_array();
    bool ok = a;
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(a, json_text_or_null(text[i])))
            ok = false;
    return json_done(a, ok);
}

static json_t *energy_json(const struct run_summary *s) {
    json_t *o = json_object();
    bool ok = o;
    uint64_t tokens = s->sum_in + s->sum_out;
    json_put(o, "joules", json_rounded(s->joules, DECIMALS), &ok);
    json_put(o, "joules_per_token",
             json_rounded(tokens ? s->joules / (double)tokens : NAN, DECIMALS), &ok);
    return json_done(o, ok);
}

static json_t *counts_json(const struct run_summary *s) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "total", json_integer(s->total), &ok);
    json_put(o, "warmup", json_integer(s->warmup), &ok);
    json_put(o, "profiled", json_integer(s->profiled), &ok);
    json_put(o, "kept", json_integer(s->kept), &ok);
    json_put(o, "failed", json_integer(s->failed), &ok);
    json_put(o, "skipped", json_integer(s->skipped), &ok);
    json_put(o, "cancelled", json_integer(s->cancelled), &ok);
    json_put(o, "length_missed", json_integer(s->length_missed), &ok);
    json_put(o, "length_assumed", json_integer(s->assumed), &ok);
    return json_done(o, ok);
}

static json_t *validity_json(const struct run_summary *s) {
    json_t *o = json_object(), *reasons = json_array();
    bool ok = o && reasons;
    for (uint32_t i = 0; ok && i < s->n_invalid; i++)
        ok = !json_array_append_new(reasons, json_text_or_null(s->invalid[i]));
    json_put(o, "submission_valid", json_boolean(s->valid), &ok);
    json_put(o, "submission_invalid_reasons", reasons, &ok);
    json_put(o, "coverage", json_rounded(s->coverage, DECIMALS), &ok);
    return json_done(o, ok);
}

json_t *run_config_json(const struct run *r, const struct run_summary *s) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "format", json_string("weir-run-1"), &ok);
    json_put(o, "subject", subject_json(r), &ok);
    json_put(o, "config", r->config ? json_deep_copy(r->config) : json_null(), &ok);
    json_put(o, "server", r->server ? json_deep_copy(r->server) : json_null(), &ok);
    for (int i = 0; i < RUN_TEXTS; i++)
        json_put(o, run_texts[i].name, json_text_or_null(*text_at(r, &run_texts[i])), &ok);
    json_put(o, "concurrency", json_count_or_null(r->concurrency), &ok);
    json_put(o, "salt", json_count_or_null(r->salt), &ok);
    json_put(o, "max_context", json_count_or_null(r->max_context), &ok);
    json_put(o, "isl", json_count_or_null(r->isl), &ok);
    json_put(o, "osl", json_count_or_null(r->osl), &ok);
    json_put(o, "time_scale", json_real(r->time_scale), &ok);
    json_put(o, "length_scale", json_real(r->length_scale), &ok);
    json_put(o, "started_ns", json_ns_or_null(r->started), &ok);
    json_put(o, "profiling_started_ns", json_ns_or_null(r->profiling_started), &ok);
    json_put(o, "profiling_ended_ns", json_ns_or_null(r->profiling_ended), &ok);
    json_put(o, "ended_ns", json_ns_or_null(r->ended), &ok);
    json_put(o, "was_cancelled", json_boolean(r->was_cancelled), &ok);
    json_put(o, "warnings", list_json(r->warnings, r->n_warnings), &ok);
    json_put(o, "overrides", list_json(r->overrides, r->n_overrides), &ok);
    json_put(o, "client", overhead_json(&r->overhead), &ok);
    /* These follow from the records; they stand here for the eye. */
    json_put(o, "calls", counts_json(s), &ok);
    json_put(o, "energy", energy_json(s), &ok);
    json_put(o, "theoretical_hit_tokens", json_rounded(s->theoretical_hit_tokens, DECIMALS), &ok);
    json_put(o, "cached_share", json_rounded(s->cached_share, DECIMALS), &ok);
    json_put(o, "validity", validity_json(s), &ok);
    return json_done(o, ok);
}

/* ------------------------------------------------------------------------------------- read back
 */

static void read_text(struct json_fields *f, const char *name, char **out) {
    const char *text = json_field_string(f, name, false);
    if (!text || f->status)
        return;
    *out = strdup(text);
    if (!*out)
        f->status = weir_fail(f->err, WEIR_NO_MEMORY, f->path, "no memory for its texts");
}

static void read_list(struct json_fields *f, const char *name, char ***out, uint32_t *n) {
    const json_t *a = json_field(f, name);
    if (f->status || !a)
        return;
    if (!json_is_array(a)) {
        json_field_refuse(f, name, a, WEIR_BAD_FILE, "must be an array of strings");
        return;
    }
    *out = calloc(json_array_size(a) + 1, sizeof **out);
    for (size_t i = 0; *out && i < json_array_size(a); i++) {
        const json_t *v = json_array_get(a, i);
        if (!json_is_string(v)) {
            json_field_refuse(f, name, v, WEIR_BAD_FILE, "must hold strings alone");
            return;
        }
        (*out)[*n] = strdup(json_string_value(v));
        if (!(*out)[*n])
            break;
        ++*n;
    }
    if (!*out || *n < json_array_size(a))
        f->status = weir_fail(f->err, WEIR_NO_MEMORY, f->path, "no memory for its texts");
}

static uint32_t small_count(struct json_fields *f, const char *name) {
    return (uint32_t)json_field_integer(f, name, false, 0, 0, UINT32_MAX);
}

static void read_subject(struct json_fields *f, struct run *out) {
    struct run_subject *s = &out->subject;
    for (int i = 0; i < SUBJECT_TEXTS; i++)
        read_text(f, subject_texts[i].name, text_at(out, &subject_texts[i]));
    s->tp = small_count(f, "tp");
    s->ep = small_count(f, "ep");
    s->pp = small_count(f, "pp");
    s->dcp = small_count(f, "dcp");
    s->pcp = small_count(f, "pcp");
    s->dp_attention = json_field_bool(f, "dp_attention", false);
    s->disagg = json_field_bool(f, "disagg", false);
    s->is_multinode = json_field_bool(f, "is_multinode", false);
    s->allocated_dram_gb = json_field_number(f, "allocated_dram_gb", false, NAN, 0, 1e12);
}

static void read_distribution(struct json_fields *f, const char *name, struct distribution *d) {
    struct json_fields in = *f;
    char scope[64];
    snprintf(scope, sizeof scope, "%s%s.", f->scope, name);
    in.first = json_field_object(f, name, false);
    in.second = NULL;
    in.scope = scope;
    in.status = f->status;
    d->n = in.first ? (size_t)json_field_integer(&in, "n", true, 0, 0, INT64_C(1) << 53) : 0;
    for (int i = 0; i < DISTRIBUTION_FIELDS; i++) {
        double x = in.first ? json_field_number(&in, distribution_fields[i].name, false, NAN,
                                                -1e300, 1e300)
                            : NAN;
        memcpy((char *)d + distribution_fields[i].offset, &x, sizeof x);
    }
    f->status = in.status;
}

static void read_overhead(struct json_fields *f, struct client_overhead *c) {
    read_distribution(f, "turn_us", &c->turn_us);
    read_distribution(f, "late_us", &c->late_us);
    read_distribution(f, "held_ms", &c->held_ms);
    c->busy = json_field_number(f, "busy", false, NAN, 0, 1e6);
    c->most_streams = small_count(f, "most_streams");
}

weir_status run_of_json(const json_t *object, const char *place, struct run *out, weir_error *err) {
    struct json_fields f = {object, NULL, "", place, err, WEIR_OK};
    const int64_t late = INT64_C(1) << 62, big = INT64_C(1) << 53;
    const char *format = json_field_string(&f, "format", true);
    if (!f.status && strcmp(format, "weir-run-1"))
        json_field_refuse(&f, "format", json_field(&f, "format"), WEIR_BAD_FILE,
                          "must be \"weir-run-1\"");
    struct json_fields in = f;
    in.first = json_field_object(&f, "subject", true);
    in.scope = "subject.";
    in.status = f.status;
    read_subject(&in, out);
    f.status = in.status;
    in.first = json_field_object(&f, "client", false);
    in.scope = "client.";
    in.status = f.status;
    read_overhead(&in, &out->overhead);
    f.status = in.status;
    for (int i = 0; i < RUN_TEXTS; i++)
        read_text(&f, run_texts[i].name, text_at(out, &run_texts[i]));
    const json_t *config = json_field_object(&f, "config", false);
    const json_t *server = json_field_object(&f, "server", false);
    out->config = config ? json_deep_copy(config) : NULL;
    out->server = server ? json_deep_copy(server) : NULL;
    out->concurrency = small_count(&f, "concurrency");
    out->salt = (uint64_t)json_field_integer(&f, "salt", false, 0, 0, big);
    out->max_context = (uint64_t)json_field_integer(&f, "max_context", false, 0, 0, big);
    out->isl = (uint64_t)json_field_integer(&f, "isl", false, 0, 0, big);
    out->osl = (uint64_t)json_field_integer(&f, "osl", false, 0, 0, big);
    out->time_scale = json_field_number(&f, "time_scale", false, 0, 0, 1e12);
    out->length_scale = json_field_number(&f, "length_scale", false, 0, 0, 1e12);
    out->started = json_field_integer(&f, "started_ns", false, 0, 0, late);
    out->profiling_started = json_field_integer(&f, "profiling_started_ns", false, 0, 0, late);
    out->profiling_ended = json_field_integer(&f, "profiling_ended_ns", false, 0, 0, late);
    out->ended = json_field_integer(&f, "ended_ns", false, 0, 0, late);
    out->was_cancelled = json_field_bool(&f, "was_cancelled", false);
    json_field_object(&f, "validity", false); /* it is judged anew, but may not be anything */
    read_list(&f, "warnings", &out->warnings, &out->n_warnings);
    read_list(&f, "overrides", &out->overrides, &out->n_overrides);
    return f.status;
}
