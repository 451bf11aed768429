/* metric.h: the figures that runs are compared by, under their names in the flat row. */
#ifndef WEIR_BENCH_METRIC_H
#define WEIR_BENCH_METRIC_H

#include "trace/read_results.h"

enum quantity {
    QUANTITY_TTFT,
    QUANTITY_ITL,
    QUANTITY_E2EL,
    QUANTITY_LATENCIES,                  /* those before are latencies of one call, in seconds */
    QUANTITY_TOTAL = QUANTITY_LATENCIES, /* tokens per second and GPU */
    QUANTITY_OUTPUT,
    QUANTITY_INPUT,
};

enum { METRIC_MEAN = 0 };

struct metric {
    const char *name; /* "p90_ttft"; of the program's own list */
    const char *unit; /* "s", "tok/s/user", "tok/s/GPU" */
    enum quantity quantity;
    int statistic;      /* METRIC_MEAN or a percentile; of throughput not used */
    bool reciprocal;    /* interactivity: 1 / the statistic of ITL */
    bool higher_better; /* else lower is */
};

/* WEIR_BAD_VALUE, where = "--metric", lists what there is. "p50" stands for "median", "tpot" for
 * "itl". */
weir_status metric_find(const char *name, const struct metric **out, weir_error *err);
/* All of them; NULL at the end. */
const struct metric *metric_at(size_t i);
/* The usual choice of a comparison and of a gate; NULL at the end. */
const struct metric *metric_usual(size_t i);
const struct metric *metric_of_gate(size_t i);

/* How tables for people print it: latencies in milliseconds, as replays do. */
const char *metric_shown_unit(const struct metric *m);
double metric_shown(const struct metric *m, double v);

/* NAN: the run has no such value. */
double metric_of_summary(const struct metric *m, const struct run_summary *s);
/* The same out of another tool's result. */
double metric_of_result(const struct metric *m, const struct result_row *row);
/* The same out of a flat row. */
double metric_of_row(const struct metric *m, const json_t *row);
/* Is `ratio` = candidate / baseline an improvement? By how many percent is it worse: negative where
 * it is better. */
double metric_worse_percent(const struct metric *m, double ratio);

#endif
