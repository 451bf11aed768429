/* kernels_check.h: the error of a column against ops/ref on the data of a case. */
#ifndef WEIR_BENCH_KERNELS_CHECK_H
#define WEIR_BENCH_KERNELS_CHECK_H

#include "bench/kernels_build.h"

struct kernel_error {
    double rms;      /* root mean square of the error over that of the exact result */
    double largest;  /* largest error over the same */
    uint64_t values; /* how many results were compared */
    uint64_t wrong;  /* choices (ids) that differ */
};

/* Runs record 0 of the case on the team with `column` and compares slices of what it leaves (first,
 * middle and last rows or heads, as many as `budget` multiply-adds of the exact column allow) with
 * what column_ref makes of the same inputs. WEIR_NO_MEMORY. */
weir_status kernel_check(struct kernel_work *w, const struct column *column, struct team *team,
                         double budget, struct kernel_error *out, weir_error *err);
bool kernel_error_within(const struct kernel_error *e, const struct kernel_limit *limit);

#endif
