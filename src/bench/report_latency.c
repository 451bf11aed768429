/* report_latency.c: distributions of latencies, a curve a run. */
#include "bench/report_parts.h"

#include <math.h>
#include <string.h>

static const char *const titles[CURVES] = {"Time to first token", "Time between tokens",
                                           "Whole request"};
static const char *const ids[CURVES] = {"cdf-ttft", "cdf-itl", "cdf-e2el"};

enum { SHOWN_AT_FIRST = 6 };

/* Of many runs, some spread over all are shown until the reader chooses. */
static bool is_shown(const struct report *r, size_t i) {
    if (r->n <= SHOWN_AT_FIRST)
        return true;
    for (size_t k = 0; k < SHOWN_AT_FIRST; k++)
        if (k * (r->n - 1) / (SHOWN_AT_FIRST - 1) == i)
            return true;
    return false;
}

static void draw(struct html *h, const struct report *r, enum curve_of k) {
    double share[CURVE_POINTS];
    char description[200];
    for (size_t i = 0; i < CURVE_POINTS; i++)
        share[i] = curve_share(i) / 100;
    snprintf(description, sizeof description,
             "Share of requests that took at most so long, a curve a run. Percentiles stand in "
             "the table below.");
    struct chart c = {.h = h,
                      .id = ids[k],
                      .title = titles[k],
                      .description = description,
                      .width = 430,
                      .height = 300,
                      .x = {.title = "at most", .kind = FIGURE_SECONDS, .log = true},
                      .y = {.title = "share of requests",
                            .kind = FIGURE_PERCENT,
                            .low = 0,
                            .high = 1,
                            .exact = true},
                      .reads_lines = true};
    for (size_t i = 0; i < r->n; i++) {
        scale_include(&c.x, r->point[i].curve[k][1]); /* the least of all may be far off */
        scale_include(&c.x, r->point[i].curve[k][CURVE_POINTS - 1]);
    }
    html_format(h, "<figure><figcaption><h3>%s</h3></figcaption>", titles[k]);
    chart_begin(&c);
    for (size_t i = 0; i < r->n; i++)
        chart_line(&c, &(struct line){.x = r->point[i].curve[k] + 1,
                                      .y = share + 1,
                                      .n = CURVE_POINTS - 1,
                                      .colour = i,
                                      .dash = i / CHART_COLOURS,
                                      .faint = false,
                                      .name = r->point[i].name,
                                      .point = (long)i,
                                      .hidden = !is_shown(r, i)});
    chart_end(&c);
    html_raw(h, "</figure>");
}

static void choice(struct html *h, const struct report *r) {
    html_raw(h, "<fieldset class=\"choice\" id=\"choice\"><legend>Runs shown</legend>");
    for (size_t i = 0; i < r->n; i++) {
        html_format(h, "<label%s><input type=\"checkbox\" data-choose=\"%zu\"%s>",
                    is_shown(r, i) ? "" : " class=\"unshown\"", i,
                    is_shown(r, i) ? " checked" : "");
        chart_line_swatch(h, i, i / CHART_COLOURS);
        html_text(h, r->point[i].name);
        if (!point_is_comparable(&r->point[i]))
            html_raw(h, " <small>not comparable</small>");
        html_raw(h, "</label>");
    }
    html_raw(h, "<span class=\"buttons\"><button type=\"button\" data-choose-all=\"1\">all</button>"
                "<button type=\"button\" data-choose-all=\"0\">none</button></span></fieldset>");
}

static void table(struct html *h, const struct report *r) {
    static const char *const columns[] = {"run", "calls", "TTFT P50", "P90", "P99", "ITL P50",
                                          "P90", "P99",   "E2E P50",  "P90", "P99"};
    html_raw(h, "<details class=\"numbers\"><summary>Percentiles as a table</summary>");
    part_table_begin(h, "Percentiles");
    part_head(h, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < r->n; i++) {
        const struct report_point *p = &r->point[i];
        const struct distribution *const d[CURVES] = {&p->s.ttft, &p->s.itl, &p->s.latency};
        html_raw(h, "<tr><th scope=\"row\">");
        html_text(h, p->name);
        html_raw(h, "</th>");
        part_cell(h, p->s.kept, FIGURE_COUNT);
        for (int k = 0; k < CURVES; k++) {
            part_cell(h, d[k]->p50, FIGURE_SECONDS);
            part_cell(h, d[k]->p90, FIGURE_SECONDS);
            part_cell(h, d[k]->p99, FIGURE_SECONDS);
        }
        html_raw(h, "</tr>");
    }
    part_table_end(h);
    html_raw(h, "</details>");
}

void part_latency(struct html *h, const struct report *r) {
    html_raw(h, "<section id=\"s-latency\"><h2>Latency</h2>");
    choice(h, r);
    html_raw(h, "<div class=\"figures\">");
    for (int k = 0; k < CURVES; k++)
        draw(h, r, k);
    html_raw(h, "</div>");
    table(h, r);
    html_raw(h, "</section>");
}
