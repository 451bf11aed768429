/* report_frontier.c: throughput, cost and TTFT against interactivity, one series a label, the walk
 * along its best points drawn as the curve that `weir frontier` interpolates on. */
#include "bench/report_parts.h"
#include "trace/frontier.h"

#include <math.h>
#include <string.h>

struct picture {
    const char *id, *title, *note; /* note: one sentence of the program's own */
    struct scale x, y;
    double (*get_x)(const struct report_point *p), (*get_y)(const struct report_point *p);
    enum frontier_walk walk;
};

static double interactivity(const struct report_point *p) {
    return p->s.intvty.p90;
}

static double throughput(const struct report_point *p) {
    return p->s.per_gpu_total;
}

static double first_token(const struct report_point *p) {
    return p->s.ttft.p90;
}

static double dollars(const struct report_point *p) {
    return p->cost.dollars_per_million;
}

static bool has_point(const struct picture *k, const struct report_point *p) {
    return k->get_x(p) > 0 && k->get_y(p) > 0;
}

/* The walk of a series: over comparable points where it has some, else over the others. */
static size_t walk_of(const struct report *r, const struct picture *k, size_t series,
                      struct point *out, bool *faint) {
    size_t n = 0;
    for (int comparable = 1; comparable >= 0 && !n; comparable--)
        for (size_t i = 0; i < r->n; i++) {
            const struct report_point *p = &r->point[i];
            if (p->series != series || point_is_comparable(p) != comparable ||
                point_was_stopped(p) || !has_point(k, p))
                continue;
            *faint = !comparable;
            out[n++] = (struct point){k->get_x(p), k->get_y(p), i};
        }
    return frontier_of(out, n, k->walk);
}

enum { CURVE_STEPS = 12 };

static void draw_walk(struct chart *c, const struct report *r, const struct picture *k,
                      size_t series) {
    struct point *p = calloc(r->n + 1, sizeof *p);
    double *x = calloc(r->n + 1, sizeof *x), *y = calloc(r->n + 1, sizeof *y);
    double *fine_x = calloc(r->n * CURVE_STEPS + 1, sizeof *fine_x);
    double *fine_y = calloc(r->n * CURVE_STEPS + 1, sizeof *fine_y);
    bool faint = false, ignored;
    if (!p || !x || !y || !fine_x || !fine_y) {
        c->h->failed = true;
    } else {
        size_t n = walk_of(r, k, series, p, &faint), m = 0;
        for (size_t i = 0; i < n; i++) {
            x[i] = p[i].x;
            y[i] = p[i].y;
        }
        for (size_t i = 0; i + 1 < n; i++)
            for (int s = 0; s < CURVE_STEPS + (i + 2 == n); s++) {
                double q = s == CURVE_STEPS ? x[i + 1] : x[i] + (x[i + 1] - x[i]) * s / CURVE_STEPS;
                double v;
                if (interpolate(x, y, n, q, INTERPOLATE_STEFFEN, false, &v, &ignored)) {
                    fine_x[m] = q;
                    fine_y[m++] = v;
                }
            }
        chart_line(c, &(struct line){.x = fine_x,
                                     .y = fine_y,
                                     .n = m,
                                     .colour = series,
                                     .dash = series / CHART_COLOURS,
                                     .faint = faint,
                                     .point = -1});
    }
    free(p);
    free(x);
    free(y);
    free(fine_x);
    free(fine_y);
}

static void tell(const struct report_point *p, char *out, size_t cap) {
    char a[FIGURE_BYTES], b[FIGURE_BYTES], c[FIGURE_BYTES], d[FIGURE_BYTES];
    snprintf(out, cap, "%s: %s tok/s/GPU, P90 interactivity %s tok/s/user, P90 TTFT %s%s%s%s%s%s",
             p->name, figure_text(p->s.per_gpu_total, FIGURE_NUMBER, a),
             figure_text(p->s.intvty.p90, FIGURE_NUMBER, b),
             figure_text(p->s.ttft.p90, FIGURE_SECONDS, c),
             isfinite(p->cost.dollars_per_million) ? ", " : "",
             isfinite(p->cost.dollars_per_million)
                 ? figure_text(p->cost.dollars_per_million, FIGURE_DOLLARS, d)
                 : "",
             isfinite(p->cost.dollars_per_million) ? " per million tokens" : "",
             point_is_comparable(p) ? "" : ". Not comparable: ",
             point_is_comparable(p) ? ""
             : p->s.n_invalid       ? p->s.invalid[0]
                                    : "scaled");
}

static void draw_points(struct chart *c, const struct report *r, const struct picture *k,
                        bool labels) {
    for (size_t i = 0; i < r->n; i++) {
        const struct report_point *p = &r->point[i];
        char text[800], label[16];
        if (!has_point(k, p))
            continue;
        tell(p, text, sizeof text);
        snprintf(label, sizeof label, "%u", p->concurrency);
        chart_mark(c, &(struct mark){.x = k->get_x(p),
                                     .y = k->get_y(p),
                                     .colour = p->series,
                                     .form = p->series,
                                     .hollow = !point_is_comparable(p),
                                     .crossed = point_was_stopped(p),
                                     .text = text,
                                     .label = labels && p->concurrency ? label : NULL});
    }
}

static void draw(struct html *h, const struct report *r, const struct picture *k, double width,
                 double height, const char *class_name) {
    char id[64], description[300];
    snprintf(id, sizeof id, "%s-%.0f", k->id, width);
    snprintf(description, sizeof description,
             "%s Each mark is a run, each line the walk along the best runs of a series. The "
             "figures stand in the table of all runs.",
             k->note);
    struct chart c = {.h = h,
                      .id = id,
                      .title = k->title,
                      .description = description,
                      .class_name = class_name,
                      .width = width,
                      .height = height,
                      .x = k->x,
                      .y = k->y};
    for (size_t i = 0; i < r->n; i++)
        if (has_point(k, &r->point[i])) {
            scale_include(&c.x, k->get_x(&r->point[i]));
            scale_include(&c.y, k->get_y(&r->point[i]));
        }
    chart_begin(&c);
    for (size_t s = 0; s < r->n_series; s++)
        draw_walk(&c, r, k, s);
    draw_points(&c, r, k, width >= 500 || r->n <= 24);
    chart_end(&c);
}

static bool has_any(const struct report *r, const struct picture *k) {
    for (size_t i = 0; i < r->n; i++)
        if (has_point(k, &r->point[i]))
            return true;
    return false;
}

static void legend(struct html *h, const struct report *r) {
    bool hollow = false, crossed = false;
    html_raw(h, "<ul class=\"legend\">");
    for (size_t s = 0; s < r->n_series; s++) {
        html_raw(h, "<li>");
        chart_swatch(h, s, s, false);
        html_text(h, r->series[s]);
        html_raw(h, "</li>");
    }
    for (size_t i = 0; i < r->n; i++) {
        hollow = hollow || !point_is_comparable(&r->point[i]);
        crossed = crossed || point_was_stopped(&r->point[i]);
    }
    if (hollow)
        html_format(h, "<li class=\"muted\">hollow: not comparable%s</li>",
                    crossed ? ", crossed: cancelled or aborted" : "");
    html_raw(h, "<li class=\"muted\">numbers: sessions at a time</li></ul>");
}

static void figure(struct html *h, const struct report *r, const struct picture *k) {
    if (!has_any(r, k))
        return;
    html_format(h, "<figure><figcaption><h3>%s</h3><p>%s</p></figcaption>", k->title, k->note);
    draw(h, r, k, 430, 320, NULL);
    html_raw(h, "</figure>");
}

void part_frontier(struct html *h, const struct report *r) {
    const struct picture main_one = {
        "frontier",
        "Throughput against interactivity",
        "Up and to the right is better.",
        {.title = "P90 interactivity, tokens/s for one user", .kind = FIGURE_NUMBER},
        {.title = "total tokens/s per GPU", .kind = FIGURE_NUMBER},
        interactivity,
        throughput,
        FRONTIER_UPPER_RIGHT};
    const struct picture cost = {
        "cost",
        "Cost against interactivity",
        "Down and to the right is better.",
        {.title = "P90 interactivity, tokens/s for one user", .kind = FIGURE_NUMBER},
        {.title = "dollars per million tokens", .kind = FIGURE_DOLLARS},
        interactivity,
        dollars,
        FRONTIER_LOWER_RIGHT};
    const struct picture first = {
        "first",
        "Throughput against time to first token",
        "Up and to the left is better.",
        {.title = "P90 time to first token", .kind = FIGURE_SECONDS, .log = true},
        {.title = "total tokens/s per GPU", .kind = FIGURE_NUMBER},
        first_token,
        throughput,
        FRONTIER_UPPER_LEFT};
    html_raw(h, "<section id=\"s-frontier\"><h2>Frontier</h2>");
    if (has_any(r, &main_one)) {
        html_format(h, "<figure class=\"hero\"><figcaption><h3>%s</h3><p>%s</p></figcaption>",
                    main_one.title, main_one.note);
        legend(h, r);
        draw(h, r, &main_one, 900, 400, "large");
        draw(h, r, &main_one, 430, 340, "small");
        html_raw(h, "</figure>");
    } else {
        html_raw(h, "<p class=\"muted\">No run has both a throughput and an interactivity.</p>");
    }
    html_raw(h, "<div class=\"figures\">");
    figure(h, r, &cost);
    figure(h, r, &first);
    html_raw(h, "</div>");
    if (r->price_note[0]) {
        html_raw(h, "<p class=\"muted\">Cost: ");
        html_text(h, r->price_note);
        html_raw(h, ".</p>");
    } else {
        html_raw(h, "<p class=\"muted\">No price was given, so cost is not shown (--prices or "
                    "--price).</p>");
    }
    html_raw(h, "</section>");
}
