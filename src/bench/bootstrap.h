/* bootstrap.h: how far a ratio of two measurements may be off. Two sources of error are told
 * apart: the sessions that happened to be played (drawn anew from the records, a play at a time,
 * with equal weights where both runs played the same session), and what differs from run to run
 * (from repeats). Everything follows from a seed. */
#ifndef WEIR_BENCH_BOOTSTRAP_H
#define WEIR_BENCH_BOOTSTRAP_H

#include "bench/sample.h"

/* Quantile p (0 < p < 1) of Student's t with df > 0 degrees of freedom; df = INFINITY: normal. */
double student_quantile(double p, double df);

/* One run: its figure, and its records where it has any. */
struct measured {
    double value;                /* NAN: none */
    const struct sample *sample; /* NULL: a figure alone */
};

struct bootstrap_options {
    uint64_t seed;
    uint32_t draws;    /* 2000 by default */
    double confidence; /* two-sided, 0.95 */
};
struct bootstrap_options bootstrap_options_default(void);

/* Standard deviation of ln(value) between repeats, from groups of them. */
struct run_noise {
    double sum;  /* of squared deviations from the group's mean */
    uint32_t df; /* runs less groups */
};
void run_noise_add(struct run_noise *n, const double *values, size_t count);

enum interval_kind {
    INTERVAL_NONE,    /* neither records nor repeats */
    INTERVAL_RECORDS, /* sessions drawn anew; noise between runs unknown */
    INTERVAL_REPEATS, /* noise between runs alone */
    INTERVAL_BOTH,
};

/* candidate / baseline. With several runs a side its figure is their geometric mean. */
struct ratio {
    double baseline, candidate, value;
    double low, high; /* NAN without an interval */
    enum interval_kind kind;
    uint32_t plays;       /* of the side with fewer */
    double noise_percent; /* standard deviation between repeats; NAN: none */
};

/* Several metrics at once, out[i] of m[i]. a[i * n_a ..] are the runs of the baseline for m[i].
 * noise[i] holds what other repeats have shown (NULL: nothing); those of a and b are added by this.
 * WEIR_NO_MEMORY. */
weir_status bootstrap_ratios(const struct metric *const *m, size_t n_m, const struct measured *a,
                             size_t n_a, const struct measured *b, size_t n_b,
                             const struct run_noise *noise, const struct bootstrap_options *o,
                             struct ratio *out, weir_error *err);

#endif
