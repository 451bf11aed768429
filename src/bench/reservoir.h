/* reservoir.h: an even sample of bounded size from a list of any length. */
#ifndef WEIR_BENCH_RESERVOIR_H
#define WEIR_BENCH_RESERVOIR_H

#include "trace/distribution.h"

#include <stdint.h>

enum { RESERVOIR_ROOM = 65536 };

struct reservoir {
    double v[RESERVOIR_ROOM];
    size_t n; /* values kept */
    uint64_t seen;
    double sum, min, max;
};
void reservoir_clear(struct reservoir *r);
void reservoir_add(struct reservoir *r, double x);
/* n, sum, mean, min and max are those of all values, the rest of the sample. */
void reservoir_distribution(const struct reservoir *r, struct distribution *out);

#endif
