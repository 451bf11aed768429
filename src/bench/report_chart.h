/* report_chart.h: a chart as inline SVG: axes with round ticks, lines, marks, bars. Colours are
 * classes (c0..c7) of the style sheet, so that light, dark and print choose their own; every mark
 * has a form and every line a dash besides, for those who see no colours. */
#ifndef WEIR_BENCH_REPORT_CHART_H
#define WEIR_BENCH_REPORT_CHART_H

#include "bench/report_html.h"

enum { CHART_COLOURS = 8, CHART_TICKS = 12, CHART_LABELS = 256 };

struct scale {
    const char *title;
    enum figure kind;
    bool log;
    double low, high; /* widened to round numbers by chart_begin unless `exact` */
    bool exact;
};

struct chart {
    struct html *h;
    const char *id, *title;  /* id: unique in the page, of the program's own */
    const char *description; /* a sentence for those who do not see it; any text */
    const char *class_name;  /* of the svg element, or NULL */
    double width, height;
    struct scale x, y;
    bool reads_lines; /* the script shows values of the lines under the pointer */
    /* set by chart_begin */
    double left, right, top, bottom;
    /* where labels and marks of marks stand so far */
    struct chart_box {
        double x0, y0, x1, y1;
    } taken[CHART_LABELS];
    size_t n_taken;
};

void chart_begin(struct chart *c);
void chart_end(struct chart *c);
double chart_x(const struct chart *c, double v);
double chart_y(const struct chart *c, double v);
bool chart_holds(const struct chart *c, double x, double y);

/* The range of values for a scale, before chart_begin: call it with each value. Log scales leave
 * out what is not positive. */
void scale_include(struct scale *s, double v);
/* Round values within the scale, at most CHART_TICKS; *step: between them, 0 on a log scale. */
size_t scale_ticks(const struct scale *s, double tick[CHART_TICKS], double *step);

struct line {
    const double *x, *y;
    size_t n;
    size_t colour, dash;
    bool steps;       /* the value holds until the next */
    bool faint;       /* of what cannot be compared */
    const char *name; /* any text */
    long point;       /* >= 0: shown and hidden with this point of the report */
    bool hidden;
};
/* Not finite values interrupt the line. */
void chart_line(struct chart *c, const struct line *l);

struct mark {
    double x, y;
    size_t colour, form;
    bool hollow, crossed; /* not comparable; cancelled or invalid */
    const char *text;     /* what it tells on hover and to screen readers; any text */
    const char *label;    /* beside it where there is room; any text, or NULL */
};
void chart_mark(struct chart *c, const struct mark *m);
/* A mark alone, for legends. */
void chart_swatch(struct html *h, size_t colour, size_t form, bool hollow);
void chart_line_swatch(struct html *h, size_t colour, size_t dash);

#endif
