/* sample.h: a run reduced to what statistics need of it: the latencies of its calls and which calls
 * belong together. Calls of one session share its history, its lengths and the moment it ran, so
 * the session's play is the unit that is drawn, never the single call. */
#ifndef WEIR_BENCH_SAMPLE_H
#define WEIR_BENCH_SAMPLE_H

#include "bench/metric.h"

struct sample_value {
    double v; /* seconds */
    uint32_t unit;
};

/* One play of a session: the calls of a session id in one play on one lane. */
struct sample_unit {
    uint64_t key; /* of the session's id and how many plays of it came before in the run: the same
                     in two runs of one trace, which are thereby compared pair by pair */
    double span;  /* seconds of its lane's time that it took up; of no use in an open loop */
    double in, out;
    uint32_t calls[QUANTITY_LATENCIES]; /* that have the latency */
    double sum[QUANTITY_LATENCIES];
};

struct sample {
    struct sample_unit *unit;
    uint32_t n_units;
    struct sample_value *sorted[QUANTITY_LATENCIES]; /* ascending */
    size_t n[QUANTITY_LATENCIES];
    bool open_loop;
};

/* WEIR_NO_MEMORY; *out is empty then. */
weir_status sample_of(const struct run *r, struct sample *out, weir_error *err);
void sample_free(struct sample *s);

/* ln(metric of the sample with each unit counted weight[unit] times). NAN where nothing is left of
 * it, and for the throughput of an open loop: that is its arrivals', and single plays say nothing
 * of it. Throughput is up to a factor that does not depend on the weights: only differences of two
 * results mean something. */
double sample_log(const struct sample *s, const struct metric *m, const uint8_t *weight);

#endif
