/* synthetic.h: replays with known truth: sessions of their own lengths and speeds on lanes of a
 * closed loop, so that calls of a session resemble each other and differ from those of others. */
#ifndef WEIR_TESTS_BENCH_SYNTHETIC_H
#define WEIR_TESTS_BENCH_SYNTHETIC_H

#include "trace/run.h"

struct synthetic {
    uint64_t sessions; /* seed of what is asked for: equal in repeats */
    uint64_t noise;    /* seed of how long it took */
    double slower;     /* factor on every latency; 1: none */
    double run_noise;  /* standard deviation of ln(speed) between runs */
    uint32_t lanes;
    double seconds;  /* of profiling */
    int64_t started; /* Unix time in ns; 0: one that follows from `noise` */
    const char *label, *version;
};

/* A finished, valid run; freed with run_free. */
void synthesise(struct run *out, const struct synthetic *how);
/* A standard normal number of (seed, stream, counter). */
double normal_at(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
