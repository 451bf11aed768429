/* mla.c: latent attention of single tokens over BF16 history, share by share, and putting the
 * shares together. */
#include "ops/gpu/kernels/mla.h"

enum { MERGE_AHEAD = 8 };

/* Asks for the tile of positions from `from` on, those below `end`. */
GPU_FN void mla_fetch(const struct gpu_mla_decode *a, const int32_t *pages,
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

GPU_KERNEL(weir_mla_split, gpu_mla_decode, MLA_THREADS, 1) {
    GPU_SHARED(mla_shared, s);
    const struct mla_share m = mla_share_of(&a, GPU_MLA_HEADS);
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

/* Asks for 16 bytes of each of MERGE_AHEAD shares, from share i on, every `groups`-th. */
GPU_FN void merge_take(struct gpu_u4 *v, const float *part, uint64_t stride, uint32_t i,
                       uint32_t groups, uint32_t n) {
    GPU_UNROLL
    for (uint32_t k = 0; k < MERGE_AHEAD; k++)
        if (i + k * groups < n)
            v[k] = gpu_load16_stream(part + (i + k * groups) * stride);
}

/* Weights of n shares: every wave has all of their logarithms, and leaves its part of the weights.
 */
GPU_FN void merge_weights(struct gpu_mla_merge_shared *s, const float *lse, uint32_t n) {
    enum { EACH = GPU_SHARES_MOST / GPU_WAVE };
    float mine[EACH], top = -GPU_INFINITY, total = 0;
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++)
        mine[k] = k * GPU_WAVE + gpu_lane() < n ? lse[k * GPU_WAVE + gpu_lane()] : -GPU_INFINITY;
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++)
        top = mine[k] > top ? mine[k] : top;
    top = gpu_wave_max(top);
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++) {
        mine[k] = gpu_exp2(mine[k] - top);
        total += mine[k];
    }
    total = gpu_rcp(gpu_wave_sum(total));
    GPU_UNROLL
    for (uint32_t k = 0; k < EACH; k++)
        if (k % gpu_waves() == gpu_wave())
            s->weight[k * GPU_WAVE + gpu_lane()] = mine[k] * total;
}

/* A block has some latents of a head; groups of threads take a share each, every so manieth. The
 * first of them are on their way while weights are computed. */
GPU_KERNEL(weir_mla_merge, gpu_mla_decode, GPU_MERGE_THREADS, 2) {
    GPU_SHARED(struct gpu_mla_merge_shared, s);
    const uint32_t parts = (a.latent + a.columns - 1) / a.columns;
    const uint32_t head = gpu_block_x() / parts, col0 = gpu_block_x() % parts * a.columns;
    const struct gpu_mla_seq seq = a.seqs[gpu_block_y()];
    const uint32_t n = (seq.positions + seq.share - 1) / seq.share;
    const uint64_t place = ((uint64_t)seq.row * a.heads + head) * a.shares;
    const uint32_t lanes = a.columns / 4, groups = GPU_MERGE_THREADS / lanes;
    const uint32_t group = gpu_thread() / lanes, col = col0 + gpu_thread() % lanes * 4;
    const uint32_t mine = col < a.latent ? n : 0; /* shares that this thread takes of */
    const float *part = a.part + place * a.latent + col;
    struct gpu_u4 v[MERGE_AHEAD];
    float sum[4] = {0, 0, 0, 0};
    gpu_wait_previous();
    gpu_launch_next();
    merge_take(v, part, a.latent, group, groups, mine);
    merge_weights(s, a.lse + place, n);
    gpu_barrier();
    for (uint32_t i = group; i < mine; i += MERGE_AHEAD * groups) {
        GPU_UNROLL
        for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
            float f[4];
            if (i + k * groups >= mine)
                continue;
            widen_f32x4(f, v[k]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                sum[e] += s->weight[i + k * groups] * f[e];
        }
        merge_take(v, part, a.latent, i + MERGE_AHEAD * groups, groups, mine);
    }
    gpu_store16(s->sum + gpu_thread() * 4, f32x4(sum));
    gpu_barrier();
    for (uint32_t c = gpu_thread(); c < a.columns; c += GPU_MERGE_THREADS) {
        float all = 0;
        for (uint32_t g = 0; g < groups; g++)
            all += s->sum[g * a.columns + c];
        if (col0 + c < a.latent)
            a.out[(uint64_t)seq.row * a.out_stride + head * a.latent + col0 + c] = gpu_to_bf16(all);
    }
}
