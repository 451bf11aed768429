/* mla_share.h: which heads of which sequence a block of latent attention has, and which positions
 * of its history. */
#ifndef WEIR_OPS_GPU_KERNELS_MLA_SHARE_H
#define WEIR_OPS_GPU_KERNELS_MLA_SHARE_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

/* begin >= end: no positions. */
struct mla_share {
    struct gpu_mla_seq seq;
    uint32_t head0, begin, end;
};
/* `heads`: of a block. */
GPU_FN struct mla_share mla_share_of(const struct gpu_mla_decode *a, const uint32_t heads) {
    const uint32_t tiles = (a->heads + heads - 1) / heads;
    struct mla_share m;
    m.seq = a->seqs[gpu_block_y() / tiles];
    m.head0 = gpu_block_y() % tiles * heads;
    m.begin = gpu_block_x() * m.seq.share;
    m.end = m.begin + m.seq.share < m.seq.positions ? m.begin + m.seq.share : m.seq.positions;
    return m;
}

#endif
