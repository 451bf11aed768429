/* reservoir.c: keeps value number i with probability room / i. Called by the client's clocks. */
#include "bench/reservoir.h"

#include "base/rng.h"

#include <math.h>

void reservoir_clear(struct reservoir *r) {
    r->n = 0;
    r->seen = 0;
    r->sum = 0;
    r->min = INFINITY;
    r->max = -INFINITY;
}

void reservoir_add(struct reservoir *r, double x) {
    if (!isfinite(x))
        return;
    r->sum += x;
    r->min = x < r->min ? x : r->min;
    r->max = x > r->max ? x : r->max;
    size_t at = r->n;
    if (r->n < RESERVOIR_ROOM)
        r->n++;
    else
        at = rng_mix(r->seen) % (r->seen + 1);
    r->seen++;
    if (at < RESERVOIR_ROOM)
        r->v[at] = x;
}

void reservoir_distribution(const struct reservoir *r, struct distribution *out) {
    struct values all = {0};
    for (size_t i = 0; i < r->n; i++)
        values_add(&all, r->v[i]);
    distribution_of(&all, out);
    values_free(&all);
    if (r->seen == 0)
        return;
    out->n = (size_t)r->seen;
    out->sum = r->sum;
    out->mean = r->sum / (double)r->seen;
    out->min = r->min;
    out->max = r->max;
}
