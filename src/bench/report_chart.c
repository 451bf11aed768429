/* report_chart.c: draws charts. Called by the files of each picture. Coordinates are written with
 * one decimal: a tenth of a pixel is less than anyone sees, and more would be a third of the page.
 */
#include "bench/report_chart.h"

#include <math.h>
#include <string.h>

void scale_include(struct scale *s, double v) {
    if (!isfinite(v) || (s->log && v <= 0))
        return;
    bool first = s->low == 0 && s->high == 0 && s->log;
    if (first)
        s->low = s->high = v;
    s->low = fmin(s->low, v);
    s->high = fmax(s->high, v);
}

/* The step of 1, 2, 2.5 or 5 times a power of ten that cuts the range into about `parts`; clocks
 * in their own units. */
static double round_step(double range, double parts, enum figure kind) {
    static const double clock[] = {1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200};
    double raw = range / parts;
    if (kind == FIGURE_CLOCK) {
        for (size_t i = 0; i < sizeof clock / sizeof clock[0]; i++)
            if (clock[i] >= raw)
                return clock[i];
        return 7200 * ceil(raw / 7200);
    }
    double power = pow(10, floor(log10(raw))), x = raw / power;
    double step = x <= 1.0000001 ? 1 : x <= 2 ? 2 : x <= 2.5 ? 2.5 : x <= 5 ? 5 : 10;
    return step * power;
}

static void widen(struct scale *s, double parts) {
    if (s->log) {
        if (!(s->high > 0)) {
            s->low = 0.001;
            s->high = 1;
        }
        if (s->exact)
            return;
        static const double nice[] = {1, 2, 5, 10};
        double down = pow(10, floor(log10(s->low) + 1e-9)),
               up = pow(10, floor(log10(s->high) + 1e-9));
        double low = down, high = 10 * up;
        for (int i = 3; i >= 0; i--)
            if (nice[i] * up >= s->high * 0.9999999)
                high = nice[i] * up;
        for (int i = 0; i < 3; i++)
            if (nice[i] * down <= s->low * 1.0000001)
                low = nice[i] * down;
        s->low = low;
        s->high = high > low ? high : 10 * low;
        return;
    }
    if (!(s->high > s->low))
        s->high = s->low + 1;
    if (s->exact)
        return;
    double step = round_step(s->high - s->low, parts, s->kind);
    s->low = floor(s->low / step + 1e-9) * step;
    s->high = ceil(s->high / step - 1e-9) * step;
}

static size_t log_ticks(const struct scale *s, double tick[CHART_TICKS]) {
    double decades = log10(s->high / s->low);
    size_t n = 0;
    int every = decades > 10 ? (int)ceil(decades / 6) : 1;
    for (int e = (int)floor(log10(s->low) + 1e-9); pow(10, e) <= s->high * 1.0000001; e += every)
        for (int i = 0; i < 3; i++) {
            static const double part[] = {1, 2, 5};
            double v = part[i] * pow(10, e);
            bool wanted = i == 0 || (decades <= 2.3 && every == 1);
            if (wanted && v >= s->low * 0.9999999 && v <= s->high * 1.0000001 && n < CHART_TICKS)
                tick[n++] = v;
        }
    return n;
}

size_t scale_ticks(const struct scale *s, double tick[CHART_TICKS], double *out_step) {
    *out_step = 0;
    if (s->log)
        return log_ticks(s, tick);
    double step = *out_step = round_step(s->high - s->low, 5, s->kind);
    size_t n = 0;
    for (double i = ceil(s->low / step - 1e-9); i * step <= s->high * (1 + 1e-9) && n < CHART_TICKS;
         i++)
        tick[n++] = i * step;
    return n;
}

static double share(const struct scale *s, double v) {
    return s->log ? log(v / s->low) / log(s->high / s->low) : (v - s->low) / (s->high - s->low);
}

double chart_x(const struct chart *c, double v) {
    return c->left + share(&c->x, v) * (c->right - c->left);
}

double chart_y(const struct chart *c, double v) {
    return c->bottom - share(&c->y, v) * (c->bottom - c->top);
}

bool chart_holds(const struct chart *c, double x, double y) {
    return isfinite(x) && isfinite(y) && (!c->x.log || x > 0) && (!c->y.log || y > 0);
}

static void axes(struct chart *c) {
    double tick[CHART_TICKS], step;
    char text[FIGURE_BYTES];
    html_raw(c->h, "<g class=\"grid\" aria-hidden=\"true\">");
    size_t n = scale_ticks(&c->y, tick, &step);
    for (size_t i = 0; i < n; i++) {
        double y = chart_y(c, tick[i]);
        html_format(c->h, "<path d=\"M%.1f %.1fH%.1f\"/><text x=\"%.1f\" y=\"%.1f\" class=\"ty\">",
                    c->left, y, c->right, c->left - 6, y + 4);
        html_text(c->h, figure_tick(tick[i], c->y.kind, step, text));
        html_raw(c->h, "</text>");
    }
    n = scale_ticks(&c->x, tick, &step);
    for (size_t i = 0; i < n; i++) {
        double x = chart_x(c, tick[i]);
        html_format(c->h, "<path d=\"M%.1f %.1fV%.1f\"/><text x=\"%.1f\" y=\"%.1f\" class=\"tx\">",
                    x, c->top, c->bottom, x, c->bottom + 16);
        html_text(c->h, figure_tick(tick[i], c->x.kind, step, text));
        html_raw(c->h, "</text>");
    }
    html_format(c->h, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", c->left, c->top,
                c->bottom, c->right);
    if (c->x.title) {
        html_format(c->h, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">",
                    c->right, c->height - 5);
        html_text(c->h, c->x.title);
        html_raw(c->h, "</text>");
    }
    if (c->y.title) {
        html_format(c->h, "<text class=\"name\" x=\"4\" y=\"13\">");
        html_text(c->h, c->y.title);
        html_raw(c->h, "</text>");
    }
    html_raw(c->h, "</g>");
}

void chart_begin(struct chart *c) {
    c->left = 52;
    c->right = c->width - 14;
    c->top = c->y.title ? 26 : 10;
    c->bottom = c->height - (c->x.title ? 40 : 22);
    widen(&c->x, 6);
    widen(&c->y, 5);
    html_format(c->h, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"group\" aria-labelledby=\"%s-t %s-d\"",
                c->width, c->height, c->id, c->id);
    if (c->class_name)
        html_format(c->h, " class=\"%s\"", c->class_name);
    if (c->reads_lines)
        html_format(c->h,
                    " data-plot=\"%.1f %.1f %.1f %.1f\" data-x=\"%d %d %.9g %.9g\" "
                    "data-y=\"%d %d %.9g %.9g\"",
                    c->left, c->top, c->right, c->bottom, c->x.kind, c->x.log, c->x.low, c->x.high,
                    c->y.kind, c->y.log, c->y.low, c->y.high);
    html_format(c->h, "><title id=\"%s-t\">", c->id);
    html_text(c->h, c->title);
    html_format(c->h, "</title><desc id=\"%s-d\">", c->id);
    html_text(c->h, c->description);
    html_raw(c->h, "</desc>");
    axes(c);
}

void chart_end(struct chart *c) {
    html_raw(c->h, "</svg>");
}

void chart_line(struct chart *c, const struct line *l) {
    html_format(c->h, "<path class=\"line c%zu d%zu%s%s\"", l->colour % CHART_COLOURS, l->dash % 4,
                l->faint ? " faint" : "", l->hidden ? " off" : "");
    if (l->point >= 0)
        html_format(c->h, " data-point=\"%ld\"", l->point);
    if (l->name) {
        html_raw(c->h, " data-name=\"");
        html_text(c->h, l->name);
        html_raw(c->h, "\"");
    }
    html_raw(c->h, " d=\"");
    bool drawn = false;
    double last_x = 0, last_y = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!chart_holds(c, l->x[i], l->y[i])) {
            drawn = false;
            continue;
        }
        double x = chart_x(c, l->x[i]), y = chart_y(c, l->y[i]);
        if (!drawn)
            html_format(c->h, "M%.1f %.1f", x, y);
        else if (l->steps)
            html_format(c->h, "H%.1fV%.1f", x, y);
        else if (fabs(x - last_x) >= 0.05 || fabs(y - last_y) >= 0.05)
            html_format(c->h, "L%.1f %.1f", x, y);
        last_x = x;
        last_y = y;
        drawn = true;
    }
    html_raw(c->h, "\"/>");
}

/* Forms of about equal area around (0, 0). */
static const char *const forms[CHART_COLOURS] = {
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.5L5.2 4h-10.4z",
    "M0 -5.8L5.8 0L0 5.8L-5.8 0z",
    "M0 5.5L5.2 -4h-10.4z",
    "M-1.8 -5.5h3.6v3.7h3.7v3.6h-3.7v3.7h-3.6v-3.7h-3.7v-3.6h3.7z",
    "M-5.5 -3.2L0 -6L5.5 -3.2V3.2L0 6L-5.5 3.2z",
    "M-6 -2.6h12v5.2h-12z",
};

static void form(struct html *h, size_t colour, size_t f, bool hollow, bool crossed) {
    html_format(h, "<path class=\"form c%zu%s\" d=\"%s\"/>", colour % CHART_COLOURS,
                hollow ? " hollow" : "", forms[f % CHART_COLOURS]);
    if (crossed)
        html_format(h, "<path class=\"cross c%zu\" d=\"M-6.5 -6.5L6.5 6.5M6.5 -6.5L-6.5 6.5\"/>",
                    colour % CHART_COLOURS);
}

static bool is_free(const struct chart *c, struct chart_box b) {
    for (size_t i = 0; i < c->n_taken; i++) {
        struct chart_box t = c->taken[i];
        if (b.x0 < t.x1 && t.x0 < b.x1 && b.y0 < t.y1 && t.y0 < b.y1)
            return false;
    }
    return true;
}

static void take(struct chart *c, struct chart_box b) {
    if (c->n_taken < CHART_LABELS)
        c->taken[c->n_taken++] = b;
}

/* Beside the mark at (x, y), where nothing stands yet: right or left of it, above or below. A label
 * without room is left out, since two over each other say less than one; the mark's text has it.
 */
static void label(struct chart *c, double x, double y, const char *text) {
    const double wide = 6.5 * (double)strlen(text), high = 10;
    const double place[][2] = {{7, -6}, {7, 14}, {-7 - wide, -6}, {-7 - wide, 14}};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        double x0 = x + place[i][0], y1 = y + place[i][1];
        struct chart_box b = {x0, y1 - high, x0 + wide, y1};
        if (b.x0 < c->left || b.x1 > c->width || !is_free(c, b))
            continue;
        take(c, b);
        html_format(c->h, "<text class=\"tag\" x=\"%.1f\" y=\"%.1f\" aria-hidden=\"true\">",
                    place[i][0], place[i][1]);
        html_text(c->h, text);
        html_raw(c->h, "</text>");
        return;
    }
}

void chart_mark(struct chart *c, const struct mark *m) {
    if (!chart_holds(c, m->x, m->y))
        return;
    double x = chart_x(c, m->x), y = chart_y(c, m->y);
    html_format(c->h,
                "<g class=\"mark\" tabindex=\"0\" role=\"img\" transform=\"translate(%.1f %.1f)\" "
                "aria-label=\"",
                x, y);
    html_text(c->h, m->text);
    html_raw(c->h, "\"><title>");
    html_text(c->h, m->text);
    html_raw(c->h, "</title><circle class=\"hit\" r=\"11\"/>");
    form(c->h, m->colour, m->form, m->hollow, m->crossed);
    take(c, (struct chart_box){x - 5, y - 5, x + 5, y + 5});
    if (m->label)
        label(c, x, y, m->label);
    html_raw(c->h, "</g>");
}

void chart_swatch(struct html *h, size_t colour, size_t f, bool hollow) {
    html_raw(h, "<svg class=\"swatch\" viewBox=\"-8 -8 16 16\" aria-hidden=\"true\">");
    form(h, colour, f, hollow, false);
    html_raw(h, "</svg>");
}

void chart_line_swatch(struct html *h, size_t colour, size_t dash) {
    html_format(h,
                "<svg class=\"swatch long\" viewBox=\"0 0 28 16\" aria-hidden=\"true\"><path "
                "class=\"line c%zu d%zu\" d=\"M1 8H27\"/></svg>",
                colour % CHART_COLOURS, dash % 4);
}
