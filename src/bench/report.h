/* report.h: one self-contained HTML page of any number of runs. No network, no script needed to
 * read it; a content security policy admits the page's own style and script by their hash alone. */
#ifndef WEIR_BENCH_REPORT_H
#define WEIR_BENCH_REPORT_H

#include "machine/prices.h"

struct report_options {
    const char *title;               /* NULL: a plain one */
    const struct price_table *table; /* NULL: none; machines by the runs' hardware */
    double price;                    /* dollars per GPU and hour; NAN: by the table, or none */
};

/* Writes `out` from result directories; one that is no result directory stands for those directly
 * in it. WEIR_BAD_FILE, WEIR_BAD_VALUE (a machine that the table lacks). */
weir_status report_write(const char *const *dirs, size_t n, const struct report_options *o,
                         const char *out, weir_error *err);

#endif
