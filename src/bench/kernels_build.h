/* kernels_build.h: a case of the table made real: weights, activations, pools and the operation
 * records over them, as the step program would hold them. */
#ifndef WEIR_BENCH_KERNELS_BUILD_H
#define WEIR_BENCH_KERNELS_BUILD_H

#include "base/arena.h"
#include "base/error.h"
#include "base/team.h"
#include "bench/kernels_table.h"

/* One case in memory. `op` holds the record once for each distinct copy of what it reads (weights,
 * layers of state or history); a run goes through them in turn, so that no copy is still in the
 * caches when its turn comes again. */
struct kernel_work {
    struct kernel_case c;
    struct kernel_cost cost;
    struct arena arena;
    struct op *op;
    uint32_t n_ops;
    struct batch batch;
    uint32_t max_position;
    double bytes; /* in the arena */
};

/* Builds the case with working sets of at least `least_bytes`; the team fills them with numbers
 * that depend on `seed` alone. WEIR_NO_MEMORY, also where the case takes more than `most_bytes`. */
weir_status kernel_build(const struct kernel_case *c, double least_bytes, double most_bytes,
                         struct team *team, uint64_t seed, struct kernel_work *out,
                         weir_error *err);
void kernel_free(struct kernel_work *w);

/* The record a column runs for `op`, as forward/ builds it: a column without chunks takes the
 * recurrent and the absorbed form for every row, and the column says whether the residual prefix is
 * rounded. `other` serves where that is not `op` itself. */
const struct op *kernel_op_for(const struct column *column, const struct op *op, struct op *other);

#endif
