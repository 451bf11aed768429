/* record_json.c: one line of profile_export.jsonl, written and read back. Called by the writer and
 * the reader of a run's files. The fields outside of "weir" are those other tools write and read;
 * a line without "weir" is theirs. Times are whole ns, and milliseconds with 6 decimals are too, so
 * that what is read back is what was written. */
#include "trace/run_inside.h"

#include "model/json_fields.h"

#include <math.h>
#include <string.h>

static const char *const sources[] = {"unknown", "usage", "tokens", "chunks", "expected"};
static const char *const phases[] = {"primer", "warmup", "profiling", "draining", "ended"};

static void metric(json_t *metrics, const char *name, json_t *value, const char *unit, bool *ok) {
    json_t *o = json_object();
    json_put(o, "value", value, ok);
    json_put(o, "unit", json_string(unit), ok);
    json_put(metrics, name, o, ok);
}

static void milliseconds(json_t *metrics, const char *name, double seconds, bool *ok) {
    metric(metrics, name, json_rounded(seconds * 1e3, DECIMALS_MS), "ms", ok);
}

static json_t *count(uint64_t n, enum count_source source) {
    return source == COUNT_UNKNOWN ? json_null() : json_integer((json_int_t)n);
}

static json_t *gaps(const struct call_record *r) {
    if (r->ends_only || r->n_chunks < 2)
        return json_null();
    json_t *a = json_array();
    for (uint32_t i = 1; i < r->n_chunks; i++)
        if (json_array_append_new(
                a, json_rounded((double)(r->chunk[i] - r->chunk[i - 1]) / 1e6, DECIMALS_MS))) {
            json_decref(a);
            return NULL;
        }
    return a;
}

static json_t *metrics_json(const struct call_record *r) {
    struct call_metrics m;
    call_metrics_of(r, &m);
    json_t *o = json_object();
    bool ok = o;
    milliseconds(o, "time_to_first_token", m.ttft, &ok);
    milliseconds(o, "time_to_second_token", m.ttst, &ok);
    milliseconds(o, "request_latency", m.latency, &ok);
    milliseconds(o, "inter_token_latency", m.itl, &ok);
    milliseconds(o, "full_response_inter_token_latency", m.full_itl, &ok);
    metric(o, "inter_chunk_latency", gaps(r), "ms", &ok);
    metric(o, "input_sequence_length", count(r->in, r->in_source), "tokens", &ok);
    metric(o, "output_sequence_length", count(r->out, r->out_source), "tokens", &ok);
    metric(o, "output_token_throughput_per_user", json_rounded(m.interactivity, DECIMALS),
           "tokens/sec/user", &ok);
    metric(o, "e2e_output_token_throughput", json_rounded(m.e2e_rate, DECIMALS), "tokens/sec/user",
           &ok);
    metric(o, "prefill_throughput_per_user", json_rounded(m.prefill_rate, DECIMALS),
           "tokens/sec/user", &ok);
    metric(o, "normalised_latency", json_rounded(m.normalised_latency * 1e3, DECIMALS_MS),
           "ms/token", &ok);
    metric(o, "reasoning_token_count", count(r->reasoning, r->out_source), "tokens", &ok);
    return json_done(o, ok);
}

static json_t *metadata_json(const struct call_record *r) {
    char id[32], play[256];
    bool warm = r->phase == PHASE_PRIMER || r->phase == PHASE_WARMUP;
    snprintf(id, sizeof id, "r-%" PRIu64, r->number);
    snprintf(play, sizeof play, "%.200s-p%" PRIu64, r->conversation ? r->conversation : "",
             r->play);
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "session_num", json_integer((json_int_t)r->number), &ok);
    json_put(o, "x_request_id", json_string(id), &ok);
    json_put(o, "x_correlation_id", json_text_or_null(play), &ok);
    json_put(o, "conversation_id", json_text_or_null(r->conversation), &ok);
    json_put(o, "turn_index", json_integer(r->turn), &ok);
    json_put(o, "request_start_ns", json_ns_or_null(r->start), &ok);
    json_put(o, "request_ack_ns", json_ns_or_null(r->ack), &ok);
    json_put(o, "request_end_ns", json_ns_or_null(r->end), &ok);
    json_put(o, "worker_id", json_string("w0"), &ok);
    json_put(o, "record_processor_id", json_string("p0"), &ok);
    json_put(o, "benchmark_phase", json_string(warm ? "warmup" : "profiling"), &ok);
    json_put(o, "was_cancelled", json_boolean(r->was_cancelled), &ok);
    json_put(o, "cancellation_time_ns", json_ns_or_null(r->cancelled), &ok);
    return json_done(o, ok);
}

/* What only weir knows of a call. */
static json_t *own_json(const struct call_record *r) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "phase", json_string(phases[r->phase]), &ok);
    json_put(o, "lane", json_integer(r->lane), &ok);
    json_put(o, "play", json_integer((json_int_t)r->play), &ok);
    json_put(o, "request", json_integer(r->request), &ok);
    json_put(o, "root", json_boolean(r->root), &ok);
    json_put(o, "skipped", json_boolean(r->skipped), &ok);
    json_put(o, "server_id", json_text_or_null(r->server_id[0] ? r->server_id : NULL), &ok);
    json_put(o, "due_ns", json_ns_or_null(r->due), &ok);
    json_put(o, "chunks", json_integer(r->n_chunks), &ok);
    json_put(o, "input_expected", json_integer((json_int_t)r->in_expected), &ok);
    json_put(o, "output_expected", json_integer((json_int_t)r->out_expected), &ok);
    json_put(o, "input_counted_by", json_string(sources[r->in_source]), &ok);
    json_put(o, "output_counted_by", json_string(sources[r->out_source]), &ok);
    json_put(o, "cached_tokens", r->has_cached ? json_integer((json_int_t)r->cached) : json_null(),
             &ok);
    json_put(o, "blocks", json_integer(r->blocks), &ok);
    json_put(o, "hit_blocks", json_integer(r->hit_blocks), &ok);
    json_put(o, "hit_tokens", json_integer((json_int_t)r->hit_tokens), &ok);
    json_put(o, "length_missed", json_boolean(r->length_missed), &ok);
    return json_done(o, ok);
}

json_t *record_json(const struct call_record *r) {
    json_t *o = json_object(), *error = json_null();
    bool ok = o;
    if (r->error_type[0]) {
        error = json_object();
        json_put(error, "code", json_integer(r->error_code), &ok);
        json_put(error, "type", json_text_or_null(r->error_type), &ok);
        json_put(error, "message", json_text_or_null(r->error_message), &ok);
    }
    json_put(o, "metadata", metadata_json(r), &ok);
    json_put(o, "metrics", metrics_json(r), &ok);
    json_put(o, "error", error, &ok);
    json_put(o, "weir", own_json(r), &ok);
    return json_done(o, ok);
}

/* ------------------------------------------------------------------------------------- read back
 */

static struct json_fields part(struct json_fields *whole, const char *name, const char *scope,
                               bool required) {
    struct json_fields f = *whole;
    f.first = json_field_object(whole, name, required);
    f.status = whole->status;
    f.second = NULL;
    f.scope = scope;
    return f;
}

/* Times of up to 2^62 ns: integers, or the floats some tools write. */
static int64_t time_field(struct json_fields *f, const char *name) {
    const json_t *v = json_field(f, name);
    if (v && json_is_real(v))
        return llround(json_field_number(f, name, false, 0, 0, 4e18));
    return json_field_integer(f, name, false, 0, 0, INT64_C(1) << 62);
}

static int word_field(struct json_fields *f, const char *name, const char *const *words, int n) {
    const char *word = json_field_string(f, name, false);
    for (int i = 0; word && i < n; i++)
        if (!strcmp(word, words[i]))
            return i;
    if (word)
        json_field_refuse(f, name, json_field(f, name), WEIR_BAD_FILE, "must be one of %s ... %s",
                          words[0], words[n - 1]);
    return -1;
}

/* Some 31 years: a latency beyond it is none, and sums of times stay within 64 bits. */
#define MOST_NS 1e18

/* What stands before the name of a metric's field in messages. */
struct scope {
    char text[64];
};
static struct scope scope_of(const char *metric) {
    struct scope s;
    snprintf(s.text, sizeof s.text, "metrics.%s.", metric);
    return s;
}

/* metrics.NAME.value in ns, not negative; INT64_MIN where it is not there. */
static int64_t metric_ns(struct json_fields *metrics, const char *name) {
    struct scope scope = scope_of(name);
    struct json_fields f = part(metrics, name, scope.text, false);
    int64_t ns = INT64_MIN;
    if (f.first && json_field(&f, "value")) {
        const char *unit = json_field_string(&f, "unit", false);
        double scale = unit && !strcmp(unit, "s") ? 1e9 : unit && !strcmp(unit, "ns") ? 1 : 1e6;
        double most = MOST_NS / scale;
        ns = llround(json_field_number(&f, "value", true, 0, 0, most) * scale);
    }
    metrics->status = f.status;
    return ns;
}

static bool metric_count(struct json_fields *metrics, const char *name, uint64_t *out) {
    struct scope scope = scope_of(name);
    struct json_fields f = part(metrics, name, scope.text, false);
    const json_t *v = f.first ? json_field(&f, "value") : NULL;
    if (v)
        *out = json_is_integer(v)
                   ? (uint64_t)json_field_integer(&f, "value", true, 0, 0, INT64_C(1) << 53)
                   : (uint64_t)llround(json_field_number(&f, "value", true, 0, 0, 9e15));
    metrics->status = f.status;
    return v;
}

/* Arrivals from the first one and the gaps; without gaps the first and the last alone. */
static void chunks_of(struct json_fields *metrics, struct call_record *out) {
    int64_t ttft = metric_ns(metrics, "time_to_first_token");
    int64_t latency = metric_ns(metrics, "request_latency");
    const json_t *icl = json_object_get(metrics->first, "inter_chunk_latency");
    const json_t *list = json_object_get(icl, "value");
    bool ok = true;
    if (metrics->status || !out->start || ttft == INT64_MIN)
        return;
    int64_t at = out->start + ttft;
    ok = call_record_chunk(out, at);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *gap = json_array_get(list, i);
        double ns = json_number_value(gap) * 1e6; /* 0 where it is no number */
        if (!json_is_number(gap) || ns < 0 || (double)(at - out->start) + ns > MOST_NS) {
            json_field_refuse(metrics, "inter_chunk_latency", gap, WEIR_BAD_FILE,
                              "value %zu must be a number of milliseconds from 0 on, the sum at "
                              "most %g",
                              i, MOST_NS / 1e6);
            return;
        }
        at += llround(ns);
        ok = call_record_chunk(out, at);
    }
    if (ok && !json_array_size(list) && latency != INT64_MIN && latency > ttft) {
        ok = call_record_chunk(out, out->start + latency);
        out->ends_only = true;
    }
    if (!ok)
        metrics->status =
            weir_fail(metrics->err, WEIR_NO_MEMORY, metrics->path, "no memory for its chunks");
}

static void read_metadata(struct json_fields *f, struct call_record *out) {
    static const char *const words[] = {"warmup", "profiling"};
    int phase = word_field(f, "benchmark_phase", words, 2);
    out->phase = phase == 0 ? PHASE_WARMUP : PHASE_PROFILING;
    out->number = (uint64_t)json_field_integer(f, "session_num", false, 0, 0, INT64_C(1) << 53);
    out->conversation = json_field_string(f, "conversation_id", false);
    out->turn = (uint32_t)json_field_integer(f, "turn_index", false, 0, 0, UINT32_MAX);
    out->start = time_field(f, "request_start_ns");
    out->ack = time_field(f, "request_ack_ns");
    out->end = time_field(f, "request_end_ns");
    out->cancelled = time_field(f, "cancellation_time_ns");
    out->was_cancelled = json_field_bool(f, "was_cancelled", false);
}

/* Times run forwards: an end before the start would be counted in a second before the first. */
static void check_order(struct json_fields *metadata, const struct call_record *r) {
    if (!metadata->status && r->start && r->ack && r->ack < r->start)
        json_field_refuse(metadata, "request_ack_ns", json_field(metadata, "request_ack_ns"),
                          WEIR_BAD_FILE, "must not lie before request_start_ns");
    if (!metadata->status && r->start && r->end && r->end < r->start)
        json_field_refuse(metadata, "request_end_ns", json_field(metadata, "request_end_ns"),
                          WEIR_BAD_FILE, "must not lie before request_start_ns");
}

/* Other tools may take the end from another clock than the latencies. */
static void check_end(struct json_fields *metadata, const struct call_record *r) {
    enum { ROUNDING = 1000 }; /* ns */
    if (!metadata->status && r->end && r->n_chunks && r->end + ROUNDING < r->chunk[r->n_chunks - 1])
        json_field_refuse(metadata, "request_end_ns", json_field(metadata, "request_end_ns"),
                          WEIR_BAD_FILE, "must not lie before the answer's last chunk");
}

static void read_error(const json_t *error, struct json_fields *f, struct call_record *out) {
    if (!error || json_is_null(error))
        return;
    if (!json_is_object(error)) {
        json_field_refuse(f, "error", error, WEIR_BAD_FILE, "must be null or an object");
        return;
    }
    struct json_fields e = *f;
    e.first = error;
    e.second = NULL;
    e.scope = "error.";
    out->error_code = (int)json_field_integer(&e, "code", false, 0, INT32_MIN, INT32_MAX);
    const char *type = json_field_string(&e, "type", false);
    const char *message = json_field_string(&e, "message", false);
    snprintf(out->error_type, sizeof out->error_type, "%s", type && *type ? type : "unknown");
    snprintf(out->error_message, sizeof out->error_message, "%s", message ? message : "");
    f->status = e.status;
}

static void read_own(struct json_fields *f, struct call_record *out) {
    const int64_t big = INT64_C(1) << 53;
    int phase = word_field(f, "phase", phases, 5);
    if (phase >= 0)
        out->phase = (enum phase)phase;
    out->lane = (uint32_t)json_field_integer(f, "lane", false, 0, 0, UINT32_MAX);
    out->play = (uint64_t)json_field_integer(f, "play", false, 0, 0, big);
    out->request = (uint32_t)json_field_integer(f, "request", false, 0, 0, UINT32_MAX);
    out->root = json_field_bool(f, "root", false);
    out->skipped = json_field_bool(f, "skipped", false);
    const char *id = json_field_string(f, "server_id", false);
    snprintf(out->server_id, sizeof out->server_id, "%s", id ? id : "");
    out->due = time_field(f, "due_ns");
    out->in_expected = (uint64_t)json_field_integer(f, "input_expected", false, 0, 0, big);
    out->out_expected = (uint64_t)json_field_integer(f, "output_expected", false, 0, 0, big);
    int in = word_field(f, "input_counted_by", sources, 5);
    int made = word_field(f, "output_counted_by", sources, 5);
    if (in >= 0)
        out->in_source = (enum count_source)in;
    if (made >= 0)
        out->out_source = (enum count_source)made;
    out->has_cached = json_field(f, "cached_tokens");
    out->cached = (uint64_t)json_field_integer(f, "cached_tokens", false, 0, 0, big);
    out->blocks = (uint32_t)json_field_integer(f, "blocks", false, 0, 0, UINT32_MAX);
    out->hit_blocks = (uint32_t)json_field_integer(f, "hit_blocks", false, 0, 0, UINT32_MAX);
    out->hit_tokens = (uint64_t)json_field_integer(f, "hit_tokens", false, 0, 0, big);
    out->length_missed = json_field_bool(f, "length_missed", false);
    if (!f->status && out->hit_blocks > out->blocks)
        json_field_refuse(f, "hit_blocks", json_field(f, "hit_blocks"), WEIR_BAD_FILE,
                          "must be at most blocks");
}

weir_status record_of_json(const json_t *object, const char *place, struct call_record *out,
                           weir_error *err) {
    struct json_fields f = {object, NULL, "", place, err, WEIR_OK};
    *out = (struct call_record){0};
    struct json_fields metadata = part(&f, "metadata", "metadata.", true);
    read_metadata(&metadata, out);
    check_order(&metadata, out);
    f.status = metadata.status;
    struct json_fields metrics = part(&f, "metrics", "metrics.", false);
    if (!metrics.status && metrics.first) {
        chunks_of(&metrics, out);
        if (metric_count(&metrics, "input_sequence_length", &out->in))
            out->in_source = COUNT_TOKENS;
        if (metric_count(&metrics, "output_sequence_length", &out->out))
            out->out_source = COUNT_TOKENS;
        metric_count(&metrics, "reasoning_token_count", &out->reasoning);
    }
    f.status = metrics.status;
    read_error(json_object_get(object, "error"), &f, out);
    struct json_fields own = part(&f, "weir", "weir.", false);
    if (own.first) {
        read_own(&own, out);
        metadata.status = own.status;
        check_end(&metadata, out);
        own.status = metadata.status;
    }
    if (own.status)
        call_record_free(out);
    return own.status;
}
