/* ways.h: ways to launch an operation: the variants of the column for GPUs (struct variant, ops.h),
 * of which `weir tune` finds the fastest for a shape. Each counts for the numbers of rows that it
 * is offered for; for others, and on a device that lacks it, the rule of launch.c does. */
#ifndef WEIR_OPS_GPU_WAYS_H
#define WEIR_OPS_GPU_WAYS_H

enum gpu_way {
    GPU_WAY_RULE,
    /* Products of 1 or 2 rows: waves that share a group of rows of the matrix. */
    GPU_WAY_SPLIT_1,
    GPU_WAY_SPLIT_2,
    GPU_WAY_SPLIT_4,
    GPU_WAY_SPLIT_8,
    /* Of 3 to 64: rows of the matrix of a block. */
    GPU_WAY_NARROW,
    GPU_WAY_WIDE,
    /* Of more: rows of x of a tile. */
    GPU_WAY_TILES_128,
    GPU_WAY_TILES_192,
    GPU_WAY_WARPGROUPS,
    /* Experts: waves through all chosen ones, or blocks for tiles of an expert's choices. */
    GPU_WAY_STREAMS,
    GPU_WAY_TILES,
};

#endif
