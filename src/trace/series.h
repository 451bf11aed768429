/* series.h: measured points grouped into series, the frontier of each, and what lies between its
 * points: at equal interactivity, or at equal throughput. Called by the frontier command. */
#ifndef WEIR_TRACE_SERIES_H
#define WEIR_TRACE_SERIES_H

#include "machine/prices.h"
#include "trace/frontier.h"
#include "trace/read_results.h"

enum series_x { SERIES_INTERACTIVITY, SERIES_TTFT, SERIES_E2EL };
enum series_y { SERIES_TOTAL, SERIES_OUTPUT, SERIES_INPUT };

struct series_options {
    enum series_x x;
    enum series_y y;
    enum statistic statistic; /* of x */
    /* Names of what keeps two series apart, with commas between: label, hardware, framework,
     * model, precision, spec, date, gpus, workload. A workload that is one and the same in all
     * rows is left out of names. */
    const char *by;
    const struct price_table *prices; /* by hardware; NULL: the two below */
    double dollars, kilowatts;        /* 0 and NAN: no costs */
};

struct series_point {
    const struct result_row *row;
    double x;     /* tokens/s/user or seconds */
    double y;     /* tokens/s and GPU */
    double price; /* dollars per GPU-hour, NAN: none given */
    struct cost cost;
    bool on_frontier;
};

struct series {
    char name[256];
    struct series_point *point; /* those of the frontier first, x ascending */
    size_t n, n_frontier;
    /* The frontier is one of runs that may not be set beside others (result_row.state): it has no
     * others. Cancelled and aborted ones stand on none. */
    bool not_comparable;
};

struct series_set {
    struct series *series; /* in order of first appearance */
    size_t n;
    size_t left_out; /* rows that have no x or no y */
};
/* `rows` must outlive *out. WEIR_BAD_VALUE: a name in `by`, hardware that the table lacks, or no
 * row that has both x and y. */
weir_status series_group(const struct results *rows, const struct series_options *o,
                         struct series_set *out, weir_error *err);
void series_free(struct series_set *s);

/* Between the points of a frontier. Everything is interpolated over the same points, along the axis
 * that was asked for; NAN where one of them does not tell. */
struct series_at {
    bool found, extrapolated;
    double x, y, concurrency, ttft, dollars_per_million;
    /* What the price comes to at y as it was interpolated: curves through throughput and through
     * cost are not reciprocals of each other between points. NAN where prices differ. */
    double dollars_at_y;
};
void series_at_x(const struct series *s, const struct series_options *o, double x,
                 enum interpolation how, bool extrapolate, struct series_at *out);
void series_at_y(const struct series *s, const struct series_options *o, double y,
                 enum interpolation how, bool extrapolate, struct series_at *out);

#endif
