/* report_numbers.c: what the page shows, as JSON and as CSV. */
#include "bench/report_parts.h"

#include <math.h>
#include <string.h>

static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

/* Six digits are more than a curve can show. */
static json_t *numbers(const double *v, size_t n) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.5g", v[i]);
        json_array_append_new(a, isfinite(v[i]) ? json_real(strtod(text, NULL)) : json_null());
    }
    return a;
}

static json_t *timeline_json(const struct timeline *t) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "step_seconds", number(t->step), "in_flight",
                     numbers(t->in_flight, t->n), "output_tokens_per_second",
                     numbers(t->out_rate, t->n), "input_tokens_per_second",
                     numbers(t->in_rate, t->n), "kv_usage", numbers(t->kv_usage, t->n), "errors",
                     numbers(t->errors, t->n));
}

static json_t *sources_json(const struct sources *s) {
    json_t *o = json_object();
    for (int i = 0; i < SOURCES; i++)
        json_object_set_new(o, source_name(i), number(s->tokens[i]));
    json_object_set_new(o, "told_by",
                        !(s->total > 0) ? json_null()
                                        : json_string(s->by_usage ? "answers" : "counters"));
    return o;
}

static json_t *reasons_json(const struct run_summary *s) {
    json_t *a = json_array();
    for (uint32_t i = 0; i < s->n_invalid; i++)
        json_array_append_new(a, json_string(s->invalid[i]));
    return a;
}

static json_t *point_json(const struct report_point *p) {
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(p->name));
    json_object_set_new(o, "label", json_string(p->label));
    json_object_set_new(o, "dir", json_string(p->dir));
    json_object_set_new(o, "concurrency", json_integer(p->concurrency));
    json_object_set_new(o, "valid", json_boolean(p->valid));
    json_object_set_new(o, "cancelled", json_boolean(p->cancelled));
    json_object_set_new(o, "aborted", json_boolean(p->aborted));
    json_object_set_new(o, "scaled", json_boolean(p->scaled));
    json_object_set_new(o, "comparable", json_boolean(point_is_comparable(p)));
    json_object_set_new(o, "on_frontier", json_boolean(p->on_frontier));
    json_object_set_new(o, "invalid_reasons", reasons_json(&p->s));
    json_object_set(o, "warnings", p->warnings);
    json_object_set(o, "row", p->row);
    json_object_set_new(o, "requests", json_integer(p->s.kept));
    json_object_set_new(o, "failed", json_integer(p->s.failed));
    json_object_set_new(o, "duration_seconds", number(p->s.duration));
    json_object_set_new(o, "theoretical_cache_hit_rate", number(p->s.theoretical_hit_rate));
    json_object_set_new(o, "cached_share", number(p->s.cached_share));
    json_object_set_new(o, "prompt_tokens_by_source", sources_json(&p->sources));
    json_object_set_new(o, "acceptance_length", number(p->acceptance_length));
    json_object_set_new(o, "dollars_per_gpu_hour", number(p->dollars));
    json_object_set_new(o, "dollars_per_million_tokens", number(p->cost.dollars_per_million));
    json_object_set_new(o, "tokens_per_dollar", number(p->cost.tokens_per_dollar));
    json_object_set_new(o, "joules_per_token", number(p->cost.joules_per_token));
    json_object_set_new(o, "quantiles_seconds",
                        json_pack("{s:o, s:o, s:o}", "ttft",
                                  numbers(p->curve[CURVE_TTFT], CURVE_POINTS), "itl",
                                  numbers(p->curve[CURVE_ITL], CURVE_POINTS), "e2el",
                                  numbers(p->curve[CURVE_E2EL], CURVE_POINTS)));
    json_object_set_new(o, "timeline", timeline_json(&p->timeline));
    json_object_set(o, "configuration", p->configuration);
    return o;
}

json_t *report_json(const struct report *r) {
    json_t *points = json_array();
    double share[CURVE_POINTS];
    for (size_t i = 0; i < CURVE_POINTS; i++)
        share[i] = curve_share(i);
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(points, point_json(&r->point[i]));
    json_t *title = json_string(r->title);
    return json_pack("{s:o, s:s, s:o, s:o}", "title", title ? title : json_string(""), "prices",
                     r->price_note, "quantile_percent", numbers(share, CURVE_POINTS), "runs",
                     points);
}

/* A cell: quoted where it must be; a text that a spreadsheet would compute gets an apostrophe. */
static void cell(struct html *out, const json_t *v, bool first) {
    if (!first)
        html_raw(out, ",");
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        html_raw(out, "\"");
        if (*s && strchr("=+-@\t\r", *s))
            html_raw(out, "'");
        for (; *s; s++)
            html_bytes(out, *s == '"' ? "\"\"" : s, *s == '"' ? 2 : 1);
        html_raw(out, "\"");
    } else if (v && !json_is_null(v)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
        if (!text)
            out->failed = true;
        else
            html_raw(out, text);
        free(text);
    }
}

void report_csv(struct html *out, const struct report *r) {
    static const char *const extra[] = {"name",
                                        "dir",
                                        "valid",
                                        "scaled",
                                        "cancelled",
                                        "aborted",
                                        "requests",
                                        "failed",
                                        "cached_share",
                                        "acceptance_length",
                                        "dollars_per_gpu_hour",
                                        "dollars_per_million_tokens"};
    const char *key;
    json_t *v;
    for (size_t i = 0; i < r->n; i++) {
        json_t *o = point_json(&r->point[i]);
        for (size_t k = 0; i == 0 && k < sizeof extra / sizeof extra[0]; k++)
            html_format(out, "%s%s", k ? "," : "", extra[k]);
        if (i == 0) {
            json_object_foreach(r->point[0].row, key, v) html_format(out, ",%s", key);
            html_raw(out, "\r\n");
        }
        for (size_t k = 0; k < sizeof extra / sizeof extra[0]; k++)
            cell(out, json_object_get(o, extra[k]), k == 0);
        json_object_foreach(r->point[0].row, key, v)
            cell(out, json_object_get(r->point[i].row, key), false);
        html_raw(out, "\r\n");
        json_decref(o);
    }
}
