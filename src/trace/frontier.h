/* frontier.h: which of several measured points are worth having, and what lies between them. */
#ifndef WEIR_TRACE_FRONTIER_H
#define WEIR_TRACE_FRONTIER_H

#include <stdbool.h>
#include <stddef.h>

struct point {
    double x, y;
    size_t index; /* the caller's */
};

enum frontier_walk {
    FRONTIER_UPPER_RIGHT, /* more of x and of y is better: throughput against interactivity */
    FRONTIER_LOWER_RIGHT, /* more of x, less of y: cost against interactivity */
    FRONTIER_UPPER_LEFT,  /* less of x, more of y: throughput against latency */
    FRONTIER_LOWER_LEFT,
};
/* Moves the points of the frontier to the front, x ascending, and returns how many there are. */
size_t frontier_of(struct point *p, size_t n, enum frontier_walk walk);

enum interpolation { INTERPOLATE_STEFFEN, INTERPOLATE_LINEAR };
/* y at x = q over points with x strictly ascending. False outside of their range unless
 * `extrapolate` (linear through the two nearest; *extrapolated says so) and with no points. Steffen
 * is a monotone cubic; two points are joined by a line. Never below 0. */
bool interpolate(const double *x, const double *y, size_t n, double q, enum interpolation how,
                 bool extrapolate, double *out, bool *extrapolated);

#endif
