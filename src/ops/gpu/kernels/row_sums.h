/* row_sums.h: sums over a row whose columns lie with the threads of a block, or of all blocks of a
 * cluster: every member gets the parts of all, and adds them in the same order. */
#ifndef WEIR_OPS_GPU_KERNELS_ROW_SUMS_H
#define WEIR_OPS_GPU_KERNELS_ROW_SUMS_H

#include "ops/gpu/kernels/rows.h"

/* Before the first and behind the last statement of a kernel's own: the other blocks of the cluster
 * may be written to from members_there() on. */
GPU_FN void members_begin(void) {
    if (gpu_cluster_blocks() > 1)
        gpu_cluster_arrive();
}
GPU_FN void members_there(void) {
    if (gpu_cluster_blocks() > 1)
        gpu_cluster_wait();
}
/* Waves of all members, and the number of this one among them. */
GPU_FN uint32_t member_waves(void) {
    return gpu_cluster_blocks() * gpu_waves();
}
GPU_FN uint32_t member_wave(void) {
    return gpu_cluster_rank() * gpu_waves() + gpu_wave();
}
/* *p = v in the shared memory of every member. */
GPU_FN void to_members(float *p, float v) {
    for (uint32_t m = 0; m < gpu_cluster_blocks(); m++)
        gpu_cluster_store(p, m, v);
}
/* Over all members; of no more waves than a wave has lanes. `part`: a float for each wave, used by
 * nothing else between the meetings around this one. */
GPU_FN float sum_of_members(float v, float *part) {
    const uint32_t lane = gpu_lane();
    v = gpu_wave_sum(v);
    if (lane < gpu_cluster_blocks())
        gpu_cluster_store(&part[member_wave()], lane, v);
    gpu_cluster_barrier();
    return gpu_wave_sum(lane < member_waves() ? part[lane] : 0);
}

#endif
