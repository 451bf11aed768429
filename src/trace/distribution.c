/* distribution.c: statistics of a list. Called by the summary of a run and by reports. */
#include "trace/distribution.h"

#include <math.h>
#include <stdlib.h>

void values_add(struct values *l, double x) {
    if (!isfinite(x) || l->failed)
        return;
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        double *more = realloc(l->v, room * sizeof *more);
        if (!more) {
            l->failed = true;
            return;
        }
        l->v = more;
        l->room = room;
    }
    l->v[l->n++] = x;
}

void values_free(struct values *l) {
    free(l->v);
    *l = (struct values){0};
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double percentile(const double *sorted, size_t n, double p) {
    double k = (double)(n - 1) * p / 100;
    size_t f = (size_t)k;
    if (f + 1 >= n)
        return sorted[n - 1];
    return sorted[f] + (k - (double)f) * (sorted[f + 1] - sorted[f]);
}

void distribution_of(struct values *l, struct distribution *out) {
    size_t n = l->n;
    *out = (struct distribution){n,   NAN, NAN, NAN, NAN, NAN, NAN, NAN,
                                 NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (!n)
        return;
    qsort(l->v, n, sizeof *l->v, ascending);
    out->sum = 0;
    for (size_t i = 0; i < n; i++)
        out->sum += l->v[i];
    out->mean = out->sum / (double)n;
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (l->v[i] - out->mean) * (l->v[i] - out->mean);
    out->std = sqrt(square / (double)n);
    out->min = l->v[0];
    out->max = l->v[n - 1];
    out->p1 = percentile(l->v, n, 1);
    out->p5 = percentile(l->v, n, 5);
    out->p10 = percentile(l->v, n, 10);
    out->p25 = percentile(l->v, n, 25);
    out->p50 = percentile(l->v, n, 50);
    out->p75 = percentile(l->v, n, 75);
    out->p90 = percentile(l->v, n, 90);
    out->p95 = percentile(l->v, n, 95);
    out->p99 = percentile(l->v, n, 99);
}
