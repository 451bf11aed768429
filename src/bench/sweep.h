/* sweep.h: a workload measured at several concurrencies: a directory that holds a directory of a
 * run for each, and a summary of all in two files. */
#ifndef WEIR_BENCH_SWEEP_H
#define WEIR_BENCH_SWEEP_H

#include "trace/run.h"

struct sweep_point {
    uint32_t concurrency;
    char **dir; /* repeats, if several */
    size_t n;
};

struct sweep {
    char *name;
    struct sweep_point *point; /* concurrency ascending */
    size_t n;
};

/* Is it a directory that is no run, but holds some? */
bool sweep_is(const char *path);
/* Adds the runs of "DIR" or "DIR,DIR,...", all of them sweeps; runs of one concurrency are repeats.
 * Zero-initialise. WEIR_BAD_FILE: a run that does not say its concurrency; WEIR_NO_MEMORY. */
weir_status sweep_add(struct sweep *s, const char *paths, weir_error *err);
void sweep_free(struct sweep *s);
/* NULL: there is none of this concurrency. */
const struct sweep_point *sweep_at(const struct sweep *s, uint32_t concurrency);

/* One point of the summary: {"dir", "concurrency", "state", "invalid", "row"}; `name` is the run's
 * directory in that of the sweep. NULL without memory. */
json_t *sweep_point_json(const struct run *r, const struct run_summary *s, const char *name);
/* DIR/sweep.json: {"rows": flat rows, each with "dataset", "state" and "dir", "points": the list,
 * "left_out": {"concurrency", "reason"} of those that were not measured}, DIR/sweep.csv: the rows.
 * Both replace older ones in one step. WEIR_BAD_FILE. */
weir_status sweep_write(const char *dir, const json_t *points, const json_t *left_out,
                        weir_error *err);

#endif
