/* compare.h: runs side by side: what differs in their configuration, every figure as a ratio with
 * its interval, and whether it leaves the noise. A side is one run or several repeats. */
#ifndef WEIR_BENCH_COMPARE_H
#define WEIR_BENCH_COMPARE_H

#include "bench/bootstrap.h"
#include "bench/configuration.h"
#include "bench/store.h"

enum { COMPARE_METRICS = 32 }; /* room for all of metric_at */

struct compare_run {
    char *path, *label;
    json_t *configuration, *invalid; /* flat object; list of reasons */
    char fingerprint[FINGERPRINT_BYTES];
    char *version;
    double value[COMPARE_METRICS]; /* in the order of metric_at */
    struct sample sample;
    bool has_sample;
    bool is_foreign; /* a file of another tool: nothing is known of its validity */
    bool valid, cancelled, scaled;
    double answer_share; /* tokens of answers by those asked for; NAN: unknown */
    int64_t started;     /* Unix time in ns; 0: unknown */
};

struct compare_side {
    char *name;
    struct compare_run *run;
    size_t n;
};

/* Adds the result directories of "DIR" or "DIR,DIR,...". A file among them is another tool's result
 * (trace/read_results.h): figures without records; of one that holds several points, FILE@N is the
 * one of concurrency N. `gpus`: of files that do not say how many, 0: such are refused.
 * A run that is there already is
 * refused: it is no repeat of itself. WEIR_BAD_FILE, WEIR_BAD_VALUE. */
weir_status compare_side_add(struct compare_side *s, const char *paths, uint32_t gpus,
                             weir_error *err);
/* Adds the run of one directory, whose name may hold commas. */
weir_status compare_side_add_one(struct compare_side *s, const char *dir, weir_error *err);
/* Adds runs of the history; records are used where their files are still there. Takes nothing
 * over. */
weir_status compare_side_add_history(struct compare_side *s, const struct store_run *runs, size_t n,
                                     weir_error *err);
void compare_side_free(struct compare_side *s);

enum verdict { VERDICT_NONE /* no interval */, VERDICT_NOISE, VERDICT_BETTER, VERDICT_WORSE };
const char *verdict_name(enum verdict v);

struct comparison {
    const struct metric *metric;
    struct ratio ratio;
    enum verdict verdict;
};

/* out[i] for m[i]. `noise` in the order of m, may be NULL. WEIR_NO_MEMORY. */
weir_status compare_sides(const struct compare_side *a, const struct compare_side *b,
                          const struct metric *const *m, size_t n_m, const struct run_noise *noise,
                          const struct bootstrap_options *o, struct comparison *out,
                          weir_error *err);

/* Repeats found in a history: groups of valid runs that agree in configuration and version with a
 * run of either side, those of the sides themselves left out. Adds to noise[i] of m[i]. */
weir_status compare_noise(struct store *s, const struct compare_side *a,
                          const struct compare_side *b, const struct metric *const *m, size_t n_m,
                          struct run_noise *noise, weir_error *err);

/* Keys whose values differ between sides, incidental ones and those that a file of another tool
 * does not tell left out: {key: [value of side 0, ...]}, null where absent. */
json_t *compare_differences(const struct compare_side *sides, size_t n);

/* Prints the table, side 0 against each other one; all[i * n_m + k] compares side i + 1. */
void compare_print(FILE *out, const struct compare_side *sides, size_t n,
                   const struct comparison *all, size_t n_m, const struct bootstrap_options *o);
json_t *compare_json(const struct compare_side *sides, size_t n, const struct comparison *all,
                     size_t n_m, const struct bootstrap_options *o);
/* What both printers and the gate say about a side's runs: dirs, validity. */
json_t *compare_side_json(const struct compare_side *s);

#endif
