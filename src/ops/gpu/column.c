/* column.c: what the program's builder asks about a column that runs on a GPU. Its operations are
 * kernels (launch.h), not functions; only drawing tokens is left to this machine. */
#include "ops/ref/ref.h"

#include "ops/sample.h"

static size_t scratch_bytes(const struct op *op, uint32_t max_rows, uint32_t max_position) {
    return op->kind == OP_SAMPLE ? sample_scratch_bytes(op->u.sample.logits.cols) : 0;
}

const struct column column_gpu = {
    .name = "gpu",
    .activation = ACTIVATION_BF16,
    .arithmetic = {ARITHMETIC_BF16, ARITHMETIC_BF16, ARITHMETIC_BF16},
    .chunked = true,
    .round_prefix = true,
    .device = true,
    .sample = ref_sample,
    .scratch_bytes = scratch_bytes,
};
