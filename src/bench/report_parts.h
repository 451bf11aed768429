/* report_parts.h: the parts of the page. Each writes its section, or nothing where no run has what
 * it shows. Inside of the report. */
#ifndef WEIR_BENCH_REPORT_PARTS_H
#define WEIR_BENCH_REPORT_PARTS_H

#include "bench/report_chart.h"
#include "bench/report_data.h"

void part_frontier(struct html *h, const struct report *r); /* throughput, cost, TTFT */
void part_points(struct html *h, const struct report *r);   /* the table of all figures */
void part_latency(struct html *h, const struct report *r);  /* distributions */
void part_sources(struct html *h, const struct report *r);  /* where prompt tokens came from */
void part_acceptance(struct html *h, const struct report *r);
void part_timelines(struct html *h, const struct report *r);
void part_validity(struct html *h, const struct report *r);
void part_configuration(struct html *h, const struct report *r);

/* The runs as one JSON object with everything the page shows, and their flat rows as CSV. The CSV
 * escapes what a spreadsheet would take for a formula. */
json_t *report_json(const struct report *r);
void report_csv(struct html *out, const struct report *r);

/* A figure in a cell: <td>...</td>, with its full value for scripts in data-v. */
void part_cell(struct html *h, double v, enum figure kind);
/* Names of columns; all but the first are figures, except those that begin with '<'. */
void part_head(struct html *h, const char *const *columns, size_t n);
/* <div class="wide"> that scrolls by keyboard, too; `name` of the program's own. */
void part_table_begin(struct html *h, const char *name);
void part_table_end(struct html *h);

#endif
