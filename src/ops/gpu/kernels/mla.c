/* mla.c: latent attention of single tokens over BF16 history, share by share, and putting the
 * shares together. */
#include "ops/gpu/kernels/mla.h"

/* Asks for the tile of positions from `from` on, those below `end`. */
GPU_FN void mla_fetch(const struct gpu_mla_split *a, const int32_t *pages,
                      uint16_t (*tile)[GPU_MLA_ROW], uint32_t from, uint32_t end) {
    const uint32_t width = a->latent + a->extra, pieces = (width + 31) / 32 * 4;
    for (uint32_t i = gpu_thread(); i < MLA_POSITIONS * pieces; i += MLA_THREADS) {
        const uint32_t at = i / pieces, k = i % pieces * 8, position = from + at;
        const bool there = position < end && k < width;
        const uint8_t *record = a->kv;
        if (there)
            record += (uint64_t)(uint32_t)pages[position / PAGE] * a->page_bytes +
                      ((uint64_t)(position % PAGE) * width + k) * 2;
        gpu_copy16(&tile[at][k], record, there);
    }
}

GPU_KERNEL(weir_mla_split, gpu_mla_split, MLA_THREADS, 1) {
    GPU_SHARED(mla_shared, s);
    const struct mla_share m = mla_share_of(&a);
    gpu_wait_previous();
    gpu_launch_next();
    if (m.begin >= m.seq.positions)
        return;
    const int32_t *pages = a.pages + m.seq.first_page;
    if (MLA_STAGES > 1) {
        mla_fetch(&a, pages, s->kv[0], m.begin, m.end);
        gpu_copy_commit();
    }
    mla_queries(&a, s, m.seq.row, m.head0);
    struct gpu_sums sum[MLA_PART];
    float top = -GPU_INFINITY, total = 0;
    mla_clear(sum);
    uint32_t stage = 0;
    for (uint32_t from = m.begin; from < m.end; from += MLA_POSITIONS) {
        const uint32_t next = from + (MLA_STAGES - 1) * MLA_POSITIONS;
        if (next < m.end)
            mla_fetch(&a, pages, s->kv[(stage + MLA_STAGES - 1) % MLA_STAGES], next, m.end);
        gpu_copy_commit(); /* perhaps of nothing: so that there are always as many behind */
        gpu_copy_wait(MLA_STAGES - 1);
        gpu_barrier();
        mla_tile(&a, s, s->kv[stage], from, m.end, &top, &total, sum);
        stage = (stage + 1) % MLA_STAGES;
    }
    mla_put(&a, s, &m, top, total, sum);
}

enum { MERGE_THREADS = 512, MERGE_GROUPS = 4, MERGE_LANES = MERGE_THREADS / MERGE_GROUPS };

GPU_KERNEL(weir_mla_merge, gpu_mla_merge, MERGE_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_merge_shared, s);
    const struct gpu_mla_seq seq = a.seqs[gpu_block_y()];
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t n = (seq.positions + seq.share - 1) / seq.share;
    const uint64_t place = ((uint64_t)seq.row * a.heads + gpu_block_x()) * a.shares;
    const float *lse = a.lse + place;
    float top = -GPU_INFINITY, total = 0;
    for (uint32_t i = gpu_lane(); i < n; i += GPU_WAVE)
        top = lse[i] > top ? lse[i] : top;
    top = gpu_wave_max(top);
    for (uint32_t i = gpu_lane(); i < n; i += GPU_WAVE)
        total += gpu_exp2(lse[i] - top);
    total = gpu_wave_sum(total);
    for (uint32_t i = gpu_thread(); i < n; i += MERGE_THREADS)
        s->weight[i] = gpu_exp2(lse[i] - top) * gpu_rcp(total);
    gpu_barrier();
    /* Four groups of threads take every fourth share each. */
    const uint32_t group = gpu_thread() / MERGE_LANES, col = gpu_thread() % MERGE_LANES * 4;
    float sum[4] = {0, 0, 0, 0};
    if (col < a.latent)
        for (uint32_t i = group; i < n; i += MERGE_GROUPS) {
            float f[4];
            widen_f32x4(f, gpu_load16(a.part + (place + i) * a.latent + col));
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                sum[e] += s->weight[i] * f[e];
        }
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++)
        if (col < a.latent)
            s->sum[group][col + e] = sum[e];
    gpu_barrier();
    for (uint32_t c = gpu_thread(); c < a.latent; c += MERGE_THREADS)
        a.out[(uint64_t)seq.row * a.out_stride + gpu_block_x() * a.latent + c] =
            gpu_to_bf16(s->sum[0][c] + s->sum[1][c] + s->sum[2][c] + s->sum[3][c]);
}
