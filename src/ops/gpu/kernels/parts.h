/* parts.h: what products of few rows and of many have in common: which of the merged parts a block
 * belongs to, where its operands are, where its results go. */
#ifndef WEIR_OPS_GPU_KERNELS_PARTS_H
#define WEIR_OPS_GPU_KERNELS_PARTS_H

#include "ops/gpu/dialect.h"
#include "ops/gpu/records.h"

/* The part that this block belongs to. */
GPU_FN uint32_t part_of_block(const struct gpu_linear *a) {
    uint32_t p = 0;
    for (uint32_t i = 1; i < a->n_parts; i++)
        p = gpu_block_x() >= a->part[i].first_block ? i : p;
    return p;
}

GPU_FN void put(const struct gpu_linear_part *part, uint32_t x_row, uint32_t w_row, float sum) {
    const uint32_t col = gpu_block_y() * part->y_step + w_row;
    const uint64_t at = (uint64_t)x_row * part->y_stride + col;
    if (part->gate)
        sum *= gpu_sigmoid(gpu_from_bf16(part->gate[(uint64_t)x_row * part->gate_stride + col]));
    if (part->y)
        part->y[at] = part->add ? part->y[at] + sum : sum;
    else
        part->y16[at] = gpu_to_bf16(sum);
}

/* Of a ring of `stages`, each copied as one group, the oldest is there. */
GPU_FN void wait_for_stage(const uint32_t stages) {
    if (stages == 5) /* a constant is wanted */
        gpu_copy_wait(4);
    else if (stages == 4)
        gpu_copy_wait(3);
    else if (stages == 3)
        gpu_copy_wait(2);
    else if (stages == 2)
        gpu_copy_wait(1);
    else
        gpu_copy_wait(0);
}

/* Where the term's matrix begins for this block's step, and its x. */
GPU_FN const uint16_t *matrix_of(const struct gpu_linear_part *part, uint32_t term) {
    return (term ? part->w2 : part->w) + (uint64_t)gpu_block_y() * part->w_step;
}
/* The same of a matrix of codes, which has no steps, and its scales. */
GPU_FN const uint8_t *codes_of(const struct gpu_linear_part *part, uint32_t term) {
    return (const uint8_t *)(term ? part->w2 : part->w);
}
GPU_FN const float *scales_of(const struct gpu_linear_part *part, uint32_t term, uint32_t cols) {
    return (const float *)(codes_of(part, term) + (uint64_t)part->rows * GPU_FP8_ROW(cols));
}
GPU_FN const uint16_t *x_of(const struct gpu_linear_part *part, uint32_t term) {
    return (term ? part->x2 : part->x) + gpu_block_y() * part->x_step;
}

#endif
