/* step_cost.h: what an operation of a step program must move and compute, by the table's costs
 * (kernels_table.h), so that a step and a kernel are judged by one count. */
#ifndef WEIR_BENCH_STEP_COST_H
#define WEIR_BENCH_STEP_COST_H

#include "bench/kernels_table.h"

/* A step as far as costs depend on it: `rows` tokens, one each of as many sequences or all of one,
 * behind `history` positions. */
struct step_shape {
    bool decode;
    uint32_t rows, history, logits;
};

/* One cost with the arithmetic it is computed in. */
struct step_part {
    struct kernel_cost cost;
    enum arithmetic arithmetic;
};
enum { STEP_PARTS = 2 * OP_LINEAR_PARTS };

/* The parts of an operation: one, or one for each matrix of a product; none where it has nothing to
 * do in this step. `distinct`: how many different experts the rows chose (operations on experts).
 */
uint32_t step_parts(const struct op *op, const struct step_shape *s, uint32_t distinct,
                    const struct column *column, struct step_part part[STEP_PARTS]);
/* Does `weir bench kernels` have cases of this operation? */
bool step_in_table(enum op_kind kind);

#endif
