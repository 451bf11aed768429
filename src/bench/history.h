/* history.h: one configuration over dates, out of the run history. Runs of one day and version are
 * one line, their figure the geometric mean. */
#ifndef WEIR_BENCH_HISTORY_H
#define WEIR_BENCH_HISTORY_H

#include "bench/configuration.h"
#include "bench/metric.h"
#include "bench/store.h"

/* Runs with a label belong together by label, concurrency and dataset, runs without by their
 * fingerprint. `m` holds n_m metrics. */
void history_print(FILE *out, const struct store_run *runs, size_t n, const struct metric *const *m,
                   size_t n_m);
json_t *history_json(const struct store_run *runs, size_t n, const struct metric *const *m,
                     size_t n_m);

#endif
