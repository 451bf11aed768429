/* report_bars.c: where prompt tokens came from, and how many draft tokens were accepted. */
#include "bench/report_parts.h"

#include <math.h>
#include <string.h>

/* Bars are stretched to the width there is, so that their names are text of the page and stay as
 * large as all other. */
enum { BAR_WIDTH = 1000, BAR_HEIGHT = 18 };

static void bar_begin(struct html *h, const char *name) {
    html_raw(h, "<div class=\"barrow\"><span class=\"name\">");
    html_text(h, name);
    html_format(h, "</span><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"group\">",
                BAR_WIDTH, BAR_HEIGHT);
}

static void bar_part(struct html *h, const char *name, const char *what, int colour, double from,
                     double to) {
    html_raw(h, "<g class=\"mark\" tabindex=\"0\" role=\"img\" aria-label=\"");
    html_text(h, name);
    html_raw(h, ": ");
    html_text(h, what);
    html_raw(h, "\"><title>");
    html_text(h, name);
    html_raw(h, ": ");
    html_text(h, what);
    html_format(h, "</title><path class=\"bar b%d\" d=\"M%.1f 0H%.1fV%dH%.1fz\"/></g>", colour,
                from * BAR_WIDTH, fmax(to * BAR_WIDTH, from * BAR_WIDTH + 1), BAR_HEIGHT,
                from * BAR_WIDTH);
}

static void bar_end(struct html *h, const char *text) {
    html_raw(h, "</svg><span class=\"told\">");
    html_text(h, text);
    html_raw(h, "</span></div>");
}

static void legend(struct html *h, const bool *used) {
    html_raw(h, "<ul class=\"legend\">");
    for (int s = 0; s < SOURCES; s++)
        if (used[s])
            html_format(h,
                        "<li><svg class=\"swatch\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">"
                        "<path class=\"bar b%d\" d=\"M1 1h14v14h-14z\"/></svg>%s</li>",
                        s, source_name(s));
    html_raw(h, "</ul>");
}

static void stack(struct html *h, const struct report_point *p) {
    double at = 0;
    char told[400] = "";
    size_t n = 0;
    bar_begin(h, p->name);
    for (int s = 0; s < SOURCES; s++) {
        double share = p->sources.tokens[s] / p->sources.total;
        char percent[FIGURE_BYTES], number[FIGURE_BYTES], what[200];
        if (!(share > 0))
            continue;
        figure_text(share, FIGURE_PERCENT, percent);
        snprintf(what, sizeof what, "%s %s, %s tokens", source_name(s), percent,
                 figure_text(p->sources.tokens[s], FIGURE_COUNT, number));
        bar_part(h, p->name, what, s, at, at + share);
        n += (size_t)snprintf(told + n, sizeof told - n, "%s%s %s", n ? ", " : "", source_name(s),
                              percent);
        at += share;
    }
    bar_end(h, told);
}

static void source_table(struct html *h, const struct report *r) {
    static const char *const columns[] = {"run",  "prompt tokens", "computed", "device",     "host",
                                          "disk", "remote",        "<told by", "ideal cache"};
    html_raw(h, "<details class=\"numbers\"><summary>Tokens as a table</summary>");
    part_table_begin(h, "Where prompt tokens came from");
    part_head(h, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < r->n; i++) {
        const struct report_point *p = &r->point[i];
        html_raw(h, "<tr><th scope=\"row\">");
        html_text(h, p->name);
        html_raw(h, "</th>");
        part_cell(h, p->sources.total > 0 ? p->sources.total : NAN, FIGURE_COUNT);
        for (int s = 0; s < SOURCES; s++)
            part_cell(h, p->sources.tokens[s], FIGURE_COUNT);
        html_format(h, "<td>%s</td>",
                    !(p->sources.total > 0) ? "nobody"
                    : p->sources.by_usage   ? "answers"
                                            : "counters");
        part_cell(h, p->s.theoretical_hit_rate, FIGURE_PERCENT);
        html_raw(h, "</tr>");
    }
    part_table_end(h);
    html_raw(h, "</details>");
}

void part_sources(struct html *h, const struct report *r) {
    bool used[SOURCES] = {0}, by_usage = false;
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        n += r->point[i].sources.total > 0;
        by_usage = by_usage || r->point[i].sources.by_usage;
        for (int s = 0; s < SOURCES; s++)
            used[s] = used[s] || r->point[i].sources.tokens[s] > 0;
    }
    html_raw(h, "<section id=\"s-sources\"><h2>Where prompt tokens came from</h2>");
    if (n) {
        legend(h, used);
        html_raw(h, "<div class=\"bars\" role=\"group\" aria-label=\"A bar a run: shares of prompt "
                    "tokens that were computed and that were reused from each tier\">");
        for (size_t i = 0; i < r->n; i++)
            if (r->point[i].sources.total > 0)
                stack(h, &r->point[i]);
        html_raw(h, "</div>");
    } else {
        html_raw(h, "<p class=\"muted\">Neither answers nor counters of the servers tell.</p>");
    }
    if (by_usage)
        html_raw(h,
                 "<p class=\"muted\">Where only the answers tell, all reused tokens are shown as "
                 "the device's.</p>");
    source_table(h, r);
    html_raw(h, "</section>");
}

void part_acceptance(struct html *h, const struct report *r) {
    double most = 0;
    for (size_t i = 0; i < r->n; i++)
        if (isfinite(r->point[i].acceptance_length))
            most = fmax(most, ceil(r->point[i].acceptance_length));
    if (!(most > 0))
        return;
    html_raw(h, "<section id=\"s-acceptance\"><h2>Draft acceptance</h2><p class=\"muted\">Tokens "
                "committed per draft and verify cycle: 1 + accepted drafts / cycles; the first "
                "token in the lighter colour.</p><div class=\"bars\">");
    for (size_t i = 0; i < r->n; i++) {
        const struct report_point *p = &r->point[i];
        char number[FIGURE_BYTES], told[100];
        double a = p->acceptance_length;
        if (!isfinite(a))
            continue;
        snprintf(told, sizeof told, "%s tokens a cycle", figure_text(a, FIGURE_NUMBER, number));
        bar_begin(h, p->name);
        bar_part(h, p->name, told, SOURCE_HOST, 0, 1 / most);
        if (a > 1)
            bar_part(h, p->name, told, SOURCE_DEVICE, 1 / most, a / most);
        bar_end(h, told);
    }
    html_raw(h, "</div></section>");
}
