/* metrics_histogram.h: one Prometheus histogram. Called by metrics*.c. */
#ifndef WEIR_SERVE_METRICS_HISTOGRAM_H
#define WEIR_SERVE_METRICS_HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

enum { HISTOGRAM_MAX_EDGES = 32 };

struct histogram {
    uint32_t n;                               /* edges */
    const double *edges;                      /* rising */
    uint64_t counts[HISTOGRAM_MAX_EDGES + 1]; /* of each bucket alone; the last is +Inf */
    uint64_t total;
    double sum;
};

void histogram_observe(struct histogram *h, double value, uint64_t times);
/* The _bucket, _sum and _count lines; `labels` without braces, may be "". */
void histogram_write(const struct histogram *h, FILE *out, const char *name, const char *labels);

#endif
