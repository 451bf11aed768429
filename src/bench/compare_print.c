/* compare_print.c: a comparison as a table and as JSON. */
#include "bench/compare.h"

#include <math.h>
#include <string.h>

/* A value as people read it: four significant digits, thousands as they are. */
static const char *figure(double v, char out[32]) {
    if (!isfinite(v))
        snprintf(out, 32, "-");
    else if (fabs(v) >= 1000)
        snprintf(out, 32, "%.0f", v);
    else
        snprintf(out, 32, "%.4g", v);
    return out;
}

static char *value_text(const json_t *v) {
    if (!v || json_is_null(v))
        return strdup("-");
    if (json_is_string(v))
        return strdup(json_string_value(v));
    return json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
}

static char letter(size_t i) {
    return (char)('A' + (i < 26 ? i : 25));
}

static void print_sides(FILE *out, const struct compare_side *sides, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct compare_side *s = &sides[i];
        fprintf(out, "%c  %s", letter(i), s->name);
        if (s->n > 1)
            fprintf(out, " (%zu runs)", s->n);
        if (s->run[0].label)
            fprintf(out, "  label %s", s->run[0].label);
        fputc('\n', out);
        for (size_t k = 0; k < s->n; k++) {
            const struct compare_run *r = &s->run[k];
            size_t j;
            json_t *reason;
            if (r->cancelled)
                fprintf(out, "   %s: was cancelled\n", r->path);
            json_array_foreach(r->invalid, j, reason)
                fprintf(out, "   %s: not valid: %s\n", r->path, json_string_value(reason));
            if (r->is_foreign)
                fprintf(out, "   %s: figures alone, no records%s\n", r->path,
                        r->valid ? "; validity unknown" : "");
            if (r->scaled)
                fprintf(out, "   %s: scaled replay, not comparable with unscaled ones\n", r->path);
        }
    }
}

static void print_differences(FILE *out, const struct compare_side *sides, size_t n) {
    json_t *differ = compare_differences(sides, n), *list;
    const char *key;
    if (!json_object_size(differ))
        fputs("\nThe configurations are equal.\n", out);
    else
        fputs("\nConfiguration\n", out);
    json_object_foreach(differ, key, list) {
        size_t i;
        json_t *v;
        fprintf(out, "  %-24s", key);
        json_array_foreach(list, i, v) {
            char *text = value_text(v);
            fprintf(out, "  %c %-16s", letter(i), text ? text : "");
            free(text);
        }
        fputc('\n', out);
    }
    json_decref(differ);
}

void compare_print(FILE *out, const struct compare_side *sides, size_t n,
                   const struct comparison *all, size_t n_m, const struct bootstrap_options *o) {
    print_sides(out, sides, n);
    print_differences(out, sides, n);
    bool unknown_noise = false, no_interval = false;
    for (size_t i = 1; i < n; i++) {
        char percent[32], a[32], b[32];
        snprintf(percent, sizeof percent, "%g %% interval", 100 * o->confidence);
        fprintf(out, "\n%-20s %-10s %12c %12c %9s  %-20s %s\n", "", "", letter(0), letter(i),
                "ratio", percent, "");
        for (size_t k = 0; k < n_m; k++) {
            const struct comparison *c = &all[(i - 1) * n_m + k];
            const struct ratio *r = &c->ratio;
            fprintf(out, "%-20s %-10s %12s %12s ", c->metric->name, metric_shown_unit(c->metric),
                    figure(metric_shown(c->metric, r->baseline), a),
                    figure(metric_shown(c->metric, r->candidate), b));
            if (isfinite(r->value))
                fprintf(out, "%9.4f  ", r->value);
            else
                fprintf(out, "%9s  ", "-");
            if (r->kind != INTERVAL_NONE && isfinite(r->low))
                fprintf(out, "%8.4f .. %-8.4f %s", r->low, r->high, verdict_name(c->verdict));
            else
                fprintf(out, "%-20s %s", "-", isfinite(r->value) ? "no interval" : "no value");
            if (isfinite(r->noise_percent))
                fprintf(out, "  (repeats differ by %.2g %%)", r->noise_percent);
            fputc('\n', out);
            unknown_noise = unknown_noise || r->kind == INTERVAL_RECORDS;
            no_interval = no_interval || r->kind == INTERVAL_NONE;
        }
    }
    if (unknown_noise)
        fputs("\nOne run a side: intervals hold what the sessions played tell, not how much two "
              "runs of the\nsame thing differ. Give repeats (DIR,DIR) or a history of them.\n",
              out);
    if (no_interval)
        fputs("\nWithout records of two sessions or repeats there is no interval.\n", out);
}

static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *compare_side_json(const struct compare_side *s) {
    json_t *runs = json_array();
    for (size_t i = 0; i < s->n; i++) {
        const struct compare_run *r = &s->run[i];
        json_array_append_new(
            runs, json_pack("{s:s, s:s?, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:O}", "path", r->path,
                            "label", r->label, "fingerprint", r->fingerprint, "version",
                            r->version ? r->version : "", "valid", r->valid, "cancelled",
                            r->cancelled, "scaled", r->scaled, "has_records", r->has_sample,
                            "foreign", r->is_foreign, "invalid", r->invalid));
    }
    return json_pack("{s:s, s:o}", "name", s->name, "runs", runs);
}

json_t *compare_json(const struct compare_side *sides, size_t n, const struct comparison *all,
                     size_t n_m, const struct bootstrap_options *o) {
    static const char *const kinds[] = {"none", "records", "repeats", "records and repeats"};
    json_t *list = json_array(), *comparisons = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, compare_side_json(&sides[i]));
    for (size_t i = 1; i < n; i++) {
        json_t *metrics = json_object();
        for (size_t k = 0; k < n_m; k++) {
            const struct comparison *c = &all[(i - 1) * n_m + k];
            const struct ratio *r = &c->ratio;
            json_t *m = json_object();
            json_object_set_new(m, "unit", json_string(c->metric->unit));
            json_object_set_new(m, "higher_is_better", json_boolean(c->metric->higher_better));
            json_object_set_new(m, "baseline", number(r->baseline));
            json_object_set_new(m, "candidate", number(r->candidate));
            json_object_set_new(m, "ratio", number(r->value));
            json_object_set_new(m, "low", number(r->low));
            json_object_set_new(m, "high", number(r->high));
            json_object_set_new(m, "interval_from", json_string(kinds[r->kind]));
            json_object_set_new(m, "plays", json_integer(r->plays));
            json_object_set_new(m, "repeat_noise_percent", number(r->noise_percent));
            json_object_set_new(m, "verdict", json_string(verdict_name(c->verdict)));
            json_object_set_new(metrics, c->metric->name, m);
        }
        json_array_append_new(comparisons, json_pack("{s:i, s:i, s:o}", "baseline", 0, "candidate",
                                                     (int)i, "metrics", metrics));
    }
    return json_pack("{s:f, s:I, s:i, s:o, s:o, s:o}", "confidence", o->confidence, "seed",
                     (json_int_t)o->seed, "draws", (int)o->draws, "sides", list,
                     "configuration_differences", compare_differences(sides, n), "comparisons",
                     comparisons);
}
