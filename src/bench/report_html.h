/* report_html.h: text of the page while it is written. Whatever came from a run goes through
 * html_text, never through html_raw or a format. */
#ifndef WEIR_BENCH_REPORT_HTML_H
#define WEIR_BENCH_REPORT_HTML_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise; free data. */
struct html {
    char *data;
    size_t n, room;
    bool failed; /* out of memory at some time */
};

void html_bytes(struct html *h, const char *bytes, size_t n);
/* Markup of the program's own. */
void html_raw(struct html *h, const char *markup);
void html_format(struct html *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Any text, for elements and for attributes in double quotes. NULL writes nothing. */
void html_text(struct html *h, const char *text);
void html_base64(struct html *h, const void *bytes, size_t n);
/* "sha256-..." as a content security policy wants it. */
weir_status html_hash(const void *bytes, size_t n, char out[64], weir_error *err);

/* How figures are written. FIGURE_NUMBER: 7,567 or 3.21; seconds: "412 ms", "3.2 s"; percent: of a
 * share 0..1; clock: "3:20" of seconds; dollars: "$0.0551"; count: 97. Not finite: an en dash. The
 * script of the page knows them by number. */
enum figure {
    FIGURE_NUMBER,
    FIGURE_SECONDS,
    FIGURE_PERCENT,
    FIGURE_CLOCK,
    FIGURE_DOLLARS,
    FIGURE_COUNT,
};
enum { FIGURE_BYTES = 48 };
const char *figure_text(double v, enum figure kind, char out[FIGURE_BYTES]);
/* Shorter, for ticks: "12k". With `step`, all ticks of an axis have the decimals that it needs. */
const char *figure_tick(double v, enum figure kind, double step, char out[FIGURE_BYTES]);

#endif
