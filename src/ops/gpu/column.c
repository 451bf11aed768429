/* column.c: what the program's builder asks about a column that runs on a GPU. Its operations are
 * kernels (launch.h), not functions; only drawing tokens is left to this machine. */
#include "ops/ref/ref.h"

#include "ops/gpu/ways.h"
#include "ops/sample.h"

#include <string.h>

static size_t scratch_bytes(const struct op *op, uint32_t max_rows, uint32_t max_position) {
    return op->kind == OP_SAMPLE ? sample_scratch_bytes(op->u.sample.logits.cols) : 0;
}

/* Kernels take FP8 matrices beside those as stored; the device's program makes them when it copies
 * (gpu_pack_fp8), so that nothing is packed here. */
static enum packing packing(const struct weight *w, enum dense_form dense) {
    return w->dtype == DTYPE_BF16 && dense == DENSE_FP8 ? PACK_FP8 : PACK_NONE;
}

static bool has_fp8(const struct op *op) {
    bool any = false;
    for (uint32_t i = 0; op->kind == OP_LINEAR && i < op->u.linear.n_parts; i++)
        any |= op->u.linear.part[i].w.packing == PACK_FP8;
    return any;
}

/* All of them sum in another order than the rule's choice may. FP8 matrices have one kernel for
 * many rows. */
static uint32_t variants(const struct op *op, enum row_class rows,
                         struct variant out[OP_VARIANTS]) {
    static const struct variant few[] = {{"split-1", GPU_WAY_SPLIT_1, false},
                                         {"split-2", GPU_WAY_SPLIT_2, false},
                                         {"split-4", GPU_WAY_SPLIT_4, false},
                                         {"split-8", GPU_WAY_SPLIT_8, false}},
                                some[] = {{"narrow", GPU_WAY_NARROW, false},
                                          {"wide", GPU_WAY_WIDE, false}},
                                many[] = {{"tiles-128", GPU_WAY_TILES_128, false},
                                          {"tiles-192", GPU_WAY_TILES_192, false},
                                          {"warpgroups", GPU_WAY_WARPGROUPS, false}},
                                experts[] = {{"streams", GPU_WAY_STREAMS, false},
                                             {"tiles", GPU_WAY_TILES, false}};
    const struct variant *list = op->kind == OP_EXPERTS_UP ? experts
                                 : rows <= ROWS_2          ? few
                                 : rows <= ROWS_64         ? some
                                                           : many;
    const uint32_t n = list == few ? 4 : list == many ? 3 : 2;
    if ((op->kind != OP_LINEAR && op->kind != OP_EXPERTS_UP) || (list == many && has_fp8(op)))
        return 0;
    memcpy(out, list, n * sizeof *list);
    return n;
}

const struct column column_gpu = {
    .name = "gpu",
    .activation = ACTIVATION_BF16,
    .arithmetic = {ARITHMETIC_BF16, ARITHMETIC_BF16, ARITHMETIC_BF16},
    .chunked = true,
    .round_prefix = true,
    .device = true,
    .packing = packing,
    .sample = ref_sample,
    .scratch_bytes = scratch_bytes,
    .variants = variants,
};
