/* report_timelines.c: what happened over each run: in flight, tokens a second, cache use, errors.
 */
#include "bench/report_parts.h"

#include <math.h>
#include <string.h>

struct row {
    const char *id, *title, *unit;
    enum figure kind;
    const double *v;
    bool whole; /* shares: the axis is 0..1 */
};

static void describe(const struct row *w, const struct timeline *t, char *out, size_t cap) {
    double low = INFINITY, high = -INFINITY, sum = 0;
    size_t n = 0;
    char a[FIGURE_BYTES], b[FIGURE_BYTES], c[FIGURE_BYTES];
    for (size_t i = 0; i < t->n; i++)
        if (isfinite(w->v[i])) {
            low = fmin(low, w->v[i]);
            high = fmax(high, w->v[i]);
            sum += w->v[i];
            n++;
        }
    if (!n)
        snprintf(out, cap, "Nothing is known of it.");
    else
        snprintf(out, cap, "From %s to %s, mean %s.", figure_text(low, w->kind, a),
                 figure_text(high, w->kind, b), figure_text(sum / (double)n, w->kind, c));
}

static void draw(struct html *h, const struct timeline *t, size_t point, const struct row *w) {
    char id[64], description[200];
    double x[TIMELINE_MAX + 1], y[TIMELINE_MAX + 1];
    snprintf(id, sizeof id, "tl-%zu-%s", point, w->id);
    describe(w, t, description, sizeof description);
    struct chart c = {.h = h,
                      .id = id,
                      .title = w->title,
                      .description = description,
                      .width = 430,
                      .height = 170,
                      .x = {.kind = FIGURE_CLOCK, .high = t->step * (double)t->n, .exact = true},
                      .y = {.title = w->unit, .kind = w->kind},
                      .reads_lines = true};
    if (w->whole)
        c.y = (struct scale){.title = w->unit, .kind = w->kind, .low = 0, .high = 1, .exact = true};
    for (size_t i = 0; i < t->n; i++) {
        x[i] = t->step * (double)i;
        y[i] = w->v[i];
        scale_include(&c.y, y[i]);
    }
    x[t->n] = t->step * (double)t->n;
    y[t->n] = y[t->n - 1];
    html_format(h, "<figure><figcaption><h4>%s</h4></figcaption>", w->title);
    chart_begin(&c);
    chart_line(&c,
               &(struct line){
                   .x = x, .y = y, .n = t->n + 1, .steps = true, .name = w->title, .point = -1});
    chart_end(&c);
    html_raw(h, "</figure>");
}

static void of_point(struct html *h, const struct report *r, size_t i) {
    const struct report_point *p = &r->point[i];
    const struct timeline *t = &p->timeline;
    double errors = 0;
    for (size_t k = 0; k < t->n; k++)
        errors += t->errors[k];
    const struct row rows[] = {
        {"flight", "Requests in flight", "requests", FIGURE_NUMBER, t->in_flight, false},
        {"out", "Answer tokens", "tokens/s", FIGURE_NUMBER, t->out_rate, false},
        {"in", "Prompt tokens, at their first token", "tokens/s", FIGURE_NUMBER, t->in_rate, false},
        {"kv", "KV cache in use", "share", FIGURE_PERCENT, t->kv_usage, true},
        {"errors", "Failed requests", "requests", FIGURE_NUMBER, t->errors, false},
    };
    html_format(h, "<details class=\"timeline\"%s><summary>", i == 0 ? " open" : "");
    html_text(h, p->name);
    html_raw(h, "</summary>");
    if (!t->n) {
        html_raw(h, "<p class=\"muted\">Nothing was sent.</p></details>");
        return;
    }
    html_raw(h, "<div class=\"figures\">");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        bool is_kv = rows[k].v == t->kv_usage, is_errors = rows[k].v == t->errors;
        if ((is_kv && !t->has_kv) || (is_errors && errors == 0))
            continue;
        draw(h, t, i, &rows[k]);
    }
    html_raw(h, "</div>");
    html_format(h, "<p class=\"muted\">%s%s</p></details>",
                errors == 0 ? "No request failed. " : "",
                t->has_kv ? "" : "The server did not tell the use of its cache.");
}

void part_timelines(struct html *h, const struct report *r) {
    html_raw(h, "<section id=\"s-timelines\"><h2>Over the run</h2><p class=\"muted\">From the "
                "start of profiling, minutes and seconds.</p>");
    for (size_t i = 0; i < r->n; i++)
        of_point(h, r, i);
    html_raw(h, "</section>");
}
