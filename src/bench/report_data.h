/* report_data.h: what a report shows of each run: its figures, and its records reduced to curves
 * of bounded length, so that a page of runs with 100,000 records stays small. */
#ifndef WEIR_BENCH_REPORT_DATA_H
#define WEIR_BENCH_REPORT_DATA_H

#include "bench/report.h"
#include "trace/run.h"

enum curve_of { CURVE_TTFT, CURVE_ITL, CURVE_E2EL, CURVES };
enum { CURVE_POINTS = 105, TIMELINE_MAX = 160 };
/* Shares of the points of a curve, in percent, ascending. */
double curve_share(size_t i);

/* Means over equal parts of the profiling phase and the draining behind it. */
struct timeline {
    size_t n;
    double step; /* seconds */
    double in_flight[TIMELINE_MAX], out_rate[TIMELINE_MAX], in_rate[TIMELINE_MAX];
    double kv_usage[TIMELINE_MAX]; /* 0..1, NAN: not told */
    double errors[TIMELINE_MAX];   /* count */
    bool has_kv;
};

/* Prompt tokens by where they came from; NAN: not told. */
enum source { SOURCE_COMPUTED, SOURCE_DEVICE, SOURCE_HOST, SOURCE_DISK, SOURCE_REMOTE, SOURCES };
const char *source_name(enum source s);
struct sources {
    double tokens[SOURCES];
    double total;  /* of those that are known; 0: nothing is */
    bool by_usage; /* by what answers say: all reuse stands under device */
};

struct report_point {
    char *dir, *label, *name; /* name: label and concurrency, unique in the report */
    size_t series;            /* of its label */
    uint32_t concurrency;
    int64_t started;
    struct run_summary s;
    json_t *configuration, *row, *warnings;
    double curve[CURVES][CURVE_POINTS]; /* seconds; NAN without calls */
    struct timeline timeline;
    struct sources sources;
    double drafts, accepted; /* NAN: not told */
    double acceptance_length;
    double lateness_p99_us, client_busy;
    bool valid, cancelled, aborted, scaled;
    double dollars; /* per GPU and hour, NAN: none */
    double kilowatts;
    struct cost cost; /* of total tokens */
    bool on_frontier; /* throughput against interactivity, within its series */
};

struct report {
    const char *title;
    char price_note[400];       /* "": no prices */
    struct report_point *point; /* by series, then concurrency */
    size_t n;
    char **series;
    size_t n_series;
};

weir_status report_read(const char *const *dirs, size_t n, const struct report_options *o,
                        struct report *out, weir_error *err);
void report_free(struct report *r);

/* Neither valid by the rules of publishing nor unscaled: not to be set beside others. */
bool point_is_comparable(const struct report_point *p);
/* Cancelled or aborted: its figures are those of a part, and it stands on no frontier. */
bool point_was_stopped(const struct report_point *p);

/* report_reduce.c */
void timeline_of(const struct run *r, struct timeline *out);
void sources_of(const struct run *r, const struct run_summary *s, struct sources *out);
/* Fills `curve` for the three latencies. WEIR_NO_MEMORY. */
weir_status curves_of(const struct run *r, double curve[CURVES][CURVE_POINTS], weir_error *err);
/* Last - first of a counter of the samples; NAN: not told, or it began anew. */
double counter_of(const struct run *r, size_t offset);

#endif
