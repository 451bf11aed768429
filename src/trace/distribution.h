/* distribution.h: percentiles, mean and deviation of a list of values. */
#ifndef WEIR_TRACE_DISTRIBUTION_H
#define WEIR_TRACE_DISTRIBUTION_H

#include <stdbool.h>
#include <stddef.h>

/* A growing list; zero-initialise. */
struct values {
    double *v;
    size_t n, room;
    bool failed; /* out of memory at some time */
};
void values_add(struct values *l, double x); /* not finite: ignored */
void values_free(struct values *l);

/* NAN everywhere where n is 0. std is that of the population. */
struct distribution {
    size_t n;
    double mean, std, min, max, sum;
    double p1, p5, p10, p25, p50, p75, p90, p95, p99;
};
/* Sorts the list. */
void distribution_of(struct values *l, struct distribution *out);
/* Linear between ranks: k = (n - 1) p / 100. `sorted` ascending, n > 0. */
double percentile(const double *sorted, size_t n, double p);

#endif
