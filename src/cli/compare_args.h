/* compare_args.h: options that compare, gate and history share. */
#ifndef WEIR_CLI_COMPARE_ARGS_H
#define WEIR_CLI_COMPARE_ARGS_H

#include "bench/compare.h"
#include "cli/options.h"

struct history_args {
    char *history;
    bool no_history;
};
extern const struct option_spec history_option[];
enum { HISTORY_OPTIONS = 2 };

struct statistics_args {
    double confidence;
    uint64_t seed;
    uint32_t draws;
};
extern const struct option_spec statistics_option[];
enum { STATISTICS_OPTIONS = 3 };

struct bootstrap_options statistics_of(const struct statistics_args *a);

/* Opens the history for reading. *out is NULL with --no-history, and where none was named and the
 * default one does not exist. */
weir_status history_args_open(const struct history_args *a, struct store **out, weir_error *err);

/* Is a directory among "DIR,DIR" of the list a sweep (bench/sweep.h)? */
bool names_sweep(const struct option_list *l);

/* The metrics of a list of names, or the usual ones by `usual`. At most COMPARE_METRICS. */
weir_status metrics_of(const struct option_list *names, const struct metric *(*usual)(size_t),
                       const struct metric **out, size_t *n, weir_error *err);

#endif
