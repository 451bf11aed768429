/* mla_prefill.h: what kernels of expanded latent attention have in common: which rows a block has,
 * which positions they see, where their sums go. */
#ifndef WEIR_OPS_GPU_KERNELS_MLA_PREFILL_H
#define WEIR_OPS_GPU_KERNELS_MLA_PREFILL_H

#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

/* Rows [row0, row0 + rows) of step buffers, the first of them at position `pos0`, and what they see
 * of the span's piece: positions [from, end). */
struct mla_rows {
    const struct gpu_mla_span *span;
    uint32_t head, row0, rows, pos0, from, end;
};

/* Blocks are heads of tiles of `high` rows. Later rows see more and come first, so that what is
 * left at the end is short. */
GPU_FN struct mla_rows mla_rows_of(const struct gpu_mla_prefill *a, const uint32_t high) {
    struct mla_rows m;
    uint32_t tile = (gpu_blocks_x() - 1 - gpu_block_x()) / a->heads, i = 0;
    m.head = gpu_block_x() % a->heads;
    for (; i + 1 < a->n_spans && tile >= (a->span[i].rows + high - 1) / high; i++)
        tile -= (a->span[i].rows + high - 1) / high;
    m.span = &a->span[i];
    m.row0 = m.span->row0 + tile * high;
    m.rows = m.span->rows - tile * high < high ? m.span->rows - tile * high : high;
    m.pos0 = m.span->pos0 + tile * high;
    m.from = m.span->from;
    m.end = m.pos0 + m.rows < m.span->end ? m.pos0 + m.rows : m.span->end;
    return m;
}

/* Where row r of the block has its sums between two pieces. */
GPU_FN uint64_t mla_state_at(const struct gpu_mla_prefill *a, const struct mla_rows *m,
                             uint32_t r) {
    return (uint64_t)(m->row0 + r) * a->heads + m->head;
}
/* Whether row r has summed something before this piece: then it is a row that is not done. */
GPU_FN bool mla_goes_on(const struct mla_rows *m, uint32_t r) {
    return r < m->rows && m->from > 0 && m->pos0 + r >= m->from;
}

/* Two sums of row r, columns col and col + 1, where they belong; `inverse`: of its weights' sum. */
GPU_FN void mla_put_pair(const struct gpu_mla_prefill *a, const struct mla_rows *m, uint32_t r,
                         uint32_t col, float x, float y, float inverse) {
    if (r >= m->rows || m->pos0 + r < m->from || col >= a->v_dim)
        return;
    if (m->pos0 + r >= m->span->end) {
        float *sum = a->sum + mla_state_at(a, m, r) * a->v_dim + col;
        sum[0] = x;
        sum[1] = y;
        return;
    }
    const uint32_t at = m->head * a->v_dim + col;
    x *= inverse;
    y *= inverse;
    if (a->gate) {
        const uint32_t g =
            *(const uint32_t *)(a->gate + (uint64_t)(m->row0 + r) * a->gate_stride + at);
        x *= gpu_sigmoid(gpu_bf16_lo(g));
        y *= gpu_sigmoid(gpu_bf16_hi(g));
    }
    *(uint32_t *)(a->out + (uint64_t)(m->row0 + r) * a->out_stride + at) = gpu_bf16_pair(x, y);
}
GPU_FN void mla_put_state(const struct gpu_mla_prefill *a, const struct mla_rows *m, uint32_t r,
                          float top, float total) {
    if (r >= m->rows || m->pos0 + r < m->span->end)
        return;
    float *state = a->state + mla_state_at(a, m, r) * 2;
    state[0] = top;
    state[1] = total;
}

#endif
