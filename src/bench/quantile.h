/* quantile.h: quantiles of a few samples. */
#ifndef WEIR_BENCH_QUANTILE_H
#define WEIR_BENCH_QUANTILE_H

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum { QUANTILE_SAMPLES = 64 };

static inline int quantile_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at this part (0 to 1) of n sorted samples, at most QUANTILE_SAMPLES; 0 of none. */
static inline double quantile(const double *x, size_t n, double q) {
    double sorted[QUANTILE_SAMPLES];
    WEIR_ASSERT(n <= QUANTILE_SAMPLES);
    if (n == 0)
        return 0;
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, quantile_order);
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

#endif
