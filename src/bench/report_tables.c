/* report_tables.c: the figures of all runs, what is wrong with each, and how they were set up. */
#include "bench/configuration.h"

#include "base/plural.h"
#include "bench/report_parts.h"

#include <math.h>
#include <string.h>

void part_cell(struct html *h, double v, enum figure kind) {
    char text[FIGURE_BYTES];
    if (isfinite(v))
        html_format(h, "<td class=\"n\" data-v=\"%.9g\">", v);
    else
        html_raw(h, "<td class=\"n none\">");
    html_text(h, figure_text(v, kind, text));
    html_raw(h, "</td>");
}

void part_head(struct html *h, const char *const *columns, size_t n) {
    html_raw(h, "<thead><tr>");
    for (size_t i = 0; i < n; i++) {
        bool left = i == 0 || columns[i][0] == '<';
        html_raw(h, left ? "<th scope=\"col\">" : "<th scope=\"col\" class=\"n\">");
        html_text(h, columns[i] + (columns[i][0] == '<'));
        html_raw(h, "</th>");
    }
    html_raw(h, "</tr></thead><tbody>");
}

void part_table_begin(struct html *h, const char *name) {
    html_format(h, "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"%s\"><table>",
                name);
}

void part_table_end(struct html *h) {
    html_raw(h, "</tbody></table></div>");
}

static void state(struct html *h, const struct report_point *p) {
    if (p->cancelled)
        html_raw(h, "<span class=\"bad\">cancelled</span>");
    else if (p->aborted)
        html_raw(h, "<span class=\"bad\">aborted</span>");
    else if (p->scaled)
        html_raw(h, "<span class=\"bad\">scaled, not comparable</span>");
    else if (!p->valid)
        html_raw(h, "<span class=\"bad\">invalid, not comparable</span>");
    else
        html_raw(h, "<span class=\"good\">valid</span>");
}

static void point_row(struct html *h, const struct report *r, const struct report_point *p,
                      bool cost) {
    html_raw(h, "<tr><th scope=\"row\" title=\"");
    html_text(h, p->dir);
    html_raw(h, "\">");
    chart_swatch(h, p->series, p->series, !point_is_comparable(p));
    html_text(h, p->name);
    html_raw(h, "</th><td>");
    state(h, p);
    html_format(h, "</td><td>%s</td>", p->on_frontier ? "yes" : "");
    part_cell(h, p->s.per_gpu_total, FIGURE_NUMBER);
    part_cell(h, p->s.per_gpu_out, FIGURE_NUMBER);
    part_cell(h, p->s.intvty.p50, FIGURE_NUMBER);
    part_cell(h, p->s.intvty.p90, FIGURE_NUMBER);
    part_cell(h, p->s.ttft.p50, FIGURE_SECONDS);
    part_cell(h, p->s.ttft.p90, FIGURE_SECONDS);
    part_cell(h, p->s.latency.p50, FIGURE_SECONDS);
    part_cell(h, p->s.latency.p90, FIGURE_SECONDS);
    part_cell(h, p->s.kept, FIGURE_COUNT);
    part_cell(h, p->s.failed, FIGURE_COUNT);
    part_cell(h, p->s.duration, FIGURE_SECONDS);
    part_cell(h, p->s.cached_share, FIGURE_PERCENT);
    part_cell(h, p->acceptance_length, FIGURE_NUMBER);
    if (cost) {
        part_cell(h, p->dollars, FIGURE_DOLLARS);
        part_cell(h, p->cost.dollars_per_million, FIGURE_DOLLARS);
        part_cell(h, p->cost.tokens_per_dollar, FIGURE_NUMBER);
        part_cell(h, p->cost.joules_per_token, FIGURE_NUMBER);
    }
    html_raw(h, "</tr>");
}

void part_points(struct html *h, const struct report *r) {
    static const char *const columns[] = {"run",
                                          "<state",
                                          "<on frontier",
                                          "total tok/s/GPU",
                                          "output tok/s/GPU",
                                          "tok/s/user P50",
                                          "tok/s/user P90",
                                          "TTFT P50",
                                          "TTFT P90",
                                          "E2E P50",
                                          "E2E P90",
                                          "calls",
                                          "failed",
                                          "time",
                                          "prompt cached",
                                          "acc. length",
                                          "$/GPU/h",
                                          "$/M tokens",
                                          "tokens/$",
                                          "J/token"};
    bool cost = r->price_note[0];
    html_raw(h, "<section id=\"s-runs\"><h2>All runs</h2>");
    part_table_begin(h, "All runs");
    part_head(h, columns, sizeof columns / sizeof columns[0] - (cost ? 0 : 4));
    for (size_t i = 0; i < r->n; i++)
        point_row(h, r, &r->point[i], cost);
    part_table_end(h);
    html_raw(
        h, "<p class=\"muted\">Interactivity (tok/s/user) is 1 / time between tokens, so that its "
           "P90 is that of the slow tail; the time to the first token does not enter. Total "
           "tokens are prompt and answer, reused prompt tokens included. Acceptance length: tokens "
           "that "
           "a step with drafts commits.</p></section>");
}

/* ------------------------------------------------------------------------------------------------
 * validity */

static void list(struct html *h, const char *class_name, const json_t *texts) {
    size_t i;
    json_t *v;
    if (!json_array_size(texts))
        return;
    html_format(h, "<ul class=\"%s\">", class_name);
    json_array_foreach(texts, i, v) {
        html_raw(h, "<li>");
        html_text(h, json_string_value(v));
        html_raw(h, "</li>");
    }
    html_raw(h, "</ul>");
}

static void of_point(struct html *h, const struct report_point *p) {
    char late[FIGURE_BYTES], busy[FIGURE_BYTES];
    html_raw(h, "<article class=\"check\"><h3>");
    html_text(h, p->name);
    html_raw(h, " ");
    state(h, p);
    html_raw(h, "</h3><p class=\"muted\">");
    html_text(h, p->dir);
    html_raw(h, "</p>");
    if (p->s.n_invalid) {
        html_raw(h, "<ul class=\"reasons\">");
        for (uint32_t i = 0; i < p->s.n_invalid; i++) {
            html_raw(h, "<li>");
            html_text(h, p->s.invalid[i]);
            html_raw(h, "</li>");
        }
        html_raw(h, "</ul>");
    }
    list(h, "warnings", p->warnings);
    if (p->s.n_errors) {
        html_raw(h, "<p>Failed:");
        for (uint32_t i = 0; i < p->s.n_errors; i++) {
            html_format(h, "%s %u ", i ? "," : "", p->s.errors[i].n);
            html_text(h, p->s.errors[i].type);
        }
        html_raw(h, ".</p>");
    }
    html_format(h,
                "<p class=\"muted\">%u %s, %u of warm-up, %u kept, %u failed, %u skipped, %u "
                "cancelled; answers of another length than asked for: %u.",
                p->s.total, plural(p->s.total, "call", "calls"), p->s.warmup, p->s.kept,
                p->s.failed, p->s.skipped, p->s.cancelled, p->s.length_missed);
    if (isfinite(p->lateness_p99_us))
        html_format(h,
                    " The client sent 99 %% of its requests within %s of the plan and used %s of "
                    "a core.",
                    figure_text(p->lateness_p99_us * 1e-6, FIGURE_SECONDS, late),
                    figure_text(p->client_busy, FIGURE_PERCENT, busy));
    html_raw(h, "</p></article>");
}

void part_validity(struct html *h, const struct report *r) {
    html_raw(h, "<section id=\"s-validity\"><h2>Validity</h2><div class=\"checks\">");
    for (size_t i = 0; i < r->n; i++)
        of_point(h, &r->point[i]);
    html_raw(h, "</div></section>");
}

/* ------------------------------------------------------------------------------------------------
 * configuration */

static void value(struct html *h, const json_t *v) {
    char *text = json_is_string(v) ? strdup(json_string_value(v))
                 : v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6))
                     : strdup("\xe2\x80\x93");
    if (!text)
        h->failed = true;
    html_text(h, text);
    free(text);
}

static bool differs(const struct report *r, const char *key) {
    const json_t *first = json_object_get(r->point[0].configuration, key);
    for (size_t i = 1; i < r->n; i++) {
        const json_t *v = json_object_get(r->point[i].configuration, key);
        if (!v != !first || (v && !json_equal(v, first)))
            return true;
    }
    return false;
}

/* All keys of all runs, in the order in which they first appear. */
static json_t *keys_of(const struct report *r) {
    json_t *all = json_object();
    for (size_t i = 0; i < r->n; i++) {
        const char *key;
        json_t *v;
        json_object_foreach(r->point[i].configuration, key, v) if (!json_object_get(all, key))
            json_object_set_new(all, key, json_true());
    }
    return all;
}

static void differing(struct html *h, const struct report *r, json_t *keys) {
    const char *key;
    json_t *v;
    html_raw(h, "<h3>What differs</h3>");
    part_table_begin(h, "What differs between the runs");
    html_raw(h, "<thead><tr><th scope=\"col\">run</th>");
    json_object_foreach(keys, key, v) if (differs(r, key)) {
        html_raw(h, "<th scope=\"col\">");
        html_text(h, key);
        html_raw(h, "</th>");
    }
    html_raw(h, "</tr></thead><tbody>");
    for (size_t i = 0; i < r->n; i++) {
        html_raw(h, "<tr><th scope=\"row\">");
        html_text(h, r->point[i].name);
        html_raw(h, "</th>");
        json_object_foreach(keys, key, v) if (differs(r, key)) {
            const json_t *mine = json_object_get(r->point[i].configuration, key);
            const json_t *before = i ? json_object_get(r->point[i - 1].configuration, key) : mine;
            bool new = i && (!mine != !before || (mine && !json_equal(mine, before)));
            html_raw(h, new ? "<td class=\"new\">" : "<td>");
            value(h, mine);
            html_raw(h, "</td>");
        }
        html_raw(h, "</tr>");
    }
    part_table_end(h);
    html_raw(h, "<p class=\"muted\">Marked where a value changes from the run above.</p>");
}

void part_configuration(struct html *h, const struct report *r) {
    json_t *keys = keys_of(r), *v;
    const char *key;
    bool any = false;
    if (!keys) {
        h->failed = true;
        return;
    }
    json_object_foreach(keys, key, v) any = any || differs(r, key);
    html_raw(h, "<section id=\"s-configuration\"><h2>Configuration</h2>");
    if (any)
        differing(h, r, keys);
    html_format(h, "<h3>%s</h3>", r->n > 1 ? "Equal in all runs" : "Of the run");
    html_raw(h, "<div class=\"pairs\">");
    part_table_begin(h, "Equal in all runs");
    html_raw(h, "<tbody>");
    json_object_foreach(keys, key, v) if (!differs(r, key)) {
        html_raw(h, "<tr><th scope=\"row\">");
        html_text(h, key);
        html_raw(h, "</th><td>");
        value(h, json_object_get(r->point[0].configuration, key));
        html_raw(h, "</td></tr>");
    }
    part_table_end(h);
    html_raw(h, "</div></section>");
    json_decref(keys);
}
