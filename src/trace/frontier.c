/* frontier.c: the walk over measured points and what lies between them. Called by the frontier
 * command and the report. Every walk is that to the upper right after mirroring an axis. */
#include "trace/frontier.h"

#include <math.h>
#include <stdlib.h>

static int by_x_then_y(const void *a, const void *b) {
    const struct point *p = a, *q = b;
    if (p->x != q->x)
        return p->x < q->x ? -1 : 1;
    if (p->y != q->y)
        return p->y > q->y ? -1 : 1;
    return (p->index > q->index) - (p->index < q->index);
}

static void mirror(struct point *p, size_t n, bool x, bool y) {
    for (size_t i = 0; i < n; i++) {
        p[i].x = x ? -p[i].x : p[i].x;
        p[i].y = y ? -p[i].y : p[i].y;
    }
}

size_t frontier_of(struct point *p, size_t n, enum frontier_walk walk) {
    bool less_x = walk == FRONTIER_UPPER_LEFT || walk == FRONTIER_LOWER_LEFT;
    bool less_y = walk == FRONTIER_LOWER_RIGHT || walk == FRONTIER_LOWER_LEFT;
    size_t kept = 0, known = 0;
    for (size_t i = 0; i < n; i++) {
        struct point here = p[i];
        if (isnan(here.x) || isnan(here.y))
            continue;
        p[i] = p[known];
        p[known++] = here;
    }
    mirror(p, known, less_x, less_y);
    qsort(p, known, sizeof *p, by_x_then_y);
    for (size_t i = 0; i < known; i++) {
        struct point next = p[i];
        if (kept && p[kept - 1].x == next.x)
            continue; /* of one x the first is the best */
        while (kept && p[kept - 1].y <= next.y)
            kept--;
        /* What is walked over changes places, so that no point is lost. */
        p[i] = p[kept];
        p[kept++] = next;
    }
    mirror(p, known, less_x, less_y);
    for (size_t i = 0; less_x && i < kept / 2; i++) {
        struct point swap = p[i];
        p[i] = p[kept - 1 - i];
        p[kept - 1 - i] = swap;
    }
    return kept;
}

static double slope(const double *x, const double *y, size_t i) {
    return (y[i + 1] - y[i]) / (x[i + 1] - x[i]);
}

static double sign(double s) {
    return s < 0 ? -1 : 1;
}

/* Steffen's tangent at an inner knot. */
static double inner(const double *x, const double *y, size_t i) {
    double a = slope(x, y, i - 1), b = slope(x, y, i);
    double ha = x[i] - x[i - 1], hb = x[i + 1] - x[i];
    double p = (a * hb + b * ha) / (ha + hb);
    return (sign(a) + sign(b)) * fmin(fmin(fabs(a), fabs(b)), fabs(p) / 2);
}

static double tangent(const double *x, const double *y, size_t n, size_t i) {
    if (i == 0)
        return (3 * slope(x, y, 0) - inner(x, y, 1)) / 2;
    if (i == n - 1)
        return (3 * slope(x, y, n - 2) - inner(x, y, n - 2)) / 2;
    return inner(x, y, i);
}

static double line(const double *x, const double *y, size_t i, double q) {
    return y[i] + (q - x[i]) * slope(x, y, i);
}

static double steffen(const double *x, const double *y, size_t n, size_t i, double q) {
    double h = x[i + 1] - x[i], t = (q - x[i]) / h, t2 = t * t, t3 = t2 * t;
    return (2 * t3 - 3 * t2 + 1) * y[i] + (t3 - 2 * t2 + t) * h * tangent(x, y, n, i) +
           (-2 * t3 + 3 * t2) * y[i + 1] + (t3 - t2) * h * tangent(x, y, n, i + 1);
}

bool interpolate(const double *x, const double *y, size_t n, double q, enum interpolation how,
                 bool extrapolate, double *out, bool *extrapolated) {
    if (extrapolated)
        *extrapolated = false;
    if (!n || isnan(q))
        return false;
    bool outside = q < x[0] || q > x[n - 1];
    if (outside && (!extrapolate || n < 2))
        return false;
    size_t i = 0;
    while (i + 1 < n && x[i + 1] <= q)
        i++;
    if (x[i] == q) {
        *out = y[i];
    } else if (outside) {
        *out = line(x, y, q < x[0] ? 0 : n - 2, q);
        if (extrapolated)
            *extrapolated = true;
    } else {
        *out = n == 2 || how == INTERPOLATE_LINEAR ? line(x, y, i, q) : steffen(x, y, n, i, q);
    }
    if (*out < 0)
        *out = 0;
    return true;
}
