/* mla_wgmma.c: latent attention of single tokens over BF16 history by products of warpgroups, for
 * latents of 512 with 64 more values: a tile lies in shared memory as panels, which both products
 * read. */
#include "ops/gpu/kernels/mla_wgmma.h"

#ifdef GPU_WARPGROUPS

/* Asks for a page; of its records those before `n`. A thread has the same piece of every panel, in
 * two rows. */
GPU_FN void fetch(const struct gpu_mla_decode *a, int32_t page, uint16_t (*kv)[64][64],
                  uint32_t n) {
    const uint32_t row = gpu_thread() / 8, piece = gpu_thread() % 8;
    const uint16_t *from = (const uint16_t *)(a->kv + (uint64_t)(uint32_t)page * a->page_bytes) +
                           row * WIDTH + piece * 8;
    uint16_t *to = &kv[0][0][0] + gpu_panel(row, piece);
    GPU_UNROLL
    for (uint32_t p = 0; p < GPU_MLA_PANELS; p++) {
        GPU_UNROLL
        for (uint32_t r = 0; r < 64; r += 32)
            gpu_copy16(to + p * 64 * 64 + r * 64, from + r * WIDTH + p * 64, row + r < n);
    }
}

/* Queries of the block's heads, zero where there is no head. */
GPU_FN void queries(const struct gpu_mla_decode *a, uint16_t *q, const struct wg_share *m,
                    const uint32_t heads) {
    const struct gpu_u4 none = {0, 0, 0, 0};
    for (uint32_t i = gpu_thread(); i < heads * (WIDTH / 8); i += WG_THREADS) {
        const uint32_t h = i / (WIDTH / 8), piece = i % (WIDTH / 8), head = m->head0 + h;
        const uint16_t *from = a->qa + (uint64_t)m->seq.row * a->qa_stride + head * LATENT;
        if (piece >= LATENT / 8)
            from = a->q + (uint64_t)m->seq.row * a->q_stride + head * a->q_step + a->nope - LATENT;
        gpu_store16(q + piece / 8 * heads * 64 + gpu_panel(h, piece % 8),
                    head < a->heads ? gpu_load16(from + piece * 8) : none);
    }
}

/* Step i of the 18 that a warpgroup has of a tile's 36: its panels of latents, then half of the
 * extra one. */
GPU_FN uint32_t panel_of_step(uint32_t group, uint32_t i) {
    return i < 16 ? PARTS * group + i / 4 : LATENT_PANELS;
}
GPU_FN uint32_t k_of_step(uint32_t group, uint32_t i) {
    return i < 16 ? i % 4 : 2 * group + i - 16;
}

/* Scores of a tile; those of both warpgroups are left side by side where there is room for two, or
 * one after the other. */
GPU_FN void score_tile(const struct wg_place *w, const uint16_t *q, const uint16_t (*kv)[64][64],
                       uint32_t group, const uint32_t heads, const uint32_t scores) {
    float sum[HEADS_MOST / 2];
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < 18; i++) {
        const uint32_t p = panel_of_step(group, i);
        gpu_wg_rows(sum, heads, &kv[p][0][0], q + p * heads * 64, k_of_step(group, i), i > 0);
    }
    gpu_wg_commit();
    gpu_wg_wait(0);
    gpu_wg_hold(sum, heads / 2);
    if (scores > 1) {
        wg_leave_scores(w->s + group * heads * SCORE_ROW, sum, heads, false);
        return;
    }
    if (group == 0)
        wg_leave_scores(w->s, sum, heads, false);
    gpu_barrier();
    if (group == 1)
        wg_leave_scores(w->s, sum, heads, true);
}

/* sum = sum * factor + weights times latents, for this warpgroup's panels. */
GPU_FN void sum_tile(const struct wg_place *w, const uint16_t (*kv)[64][64], uint32_t group,
                     float *sum, const uint32_t heads) {
    wg_shrink(w, sum, heads);
    gpu_wg_hold(sum, PARTS * (heads / 2));
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            gpu_wg_columns(sum + p * (heads / 2), heads, &kv[PARTS * group + p][0][0], w->p, k);
    }
    gpu_wg_commit();
    gpu_wg_wait(0);
    gpu_wg_hold(sum, PARTS * (heads / 2));
}

GPU_FN void split(const struct gpu_mla_decode *a, const struct wg_place *w, uint16_t *q,
                  uint16_t (*kv)[GPU_MLA_PANELS][64][64], const uint32_t heads,
                  const uint32_t scores) {
    const struct wg_share m = wg_share_of(a, heads);
    const uint32_t group = gpu_wave() / 4;
    gpu_wait_previous();
    gpu_launch_next();
    if (m.begin >= m.seq.positions)
        return;
    const int32_t *pages = a->pages + m.seq.first_page + m.begin / PAGE;
    const uint32_t n = m.end - m.begin, tiles = (n + PAGE - 1) / PAGE;
    float sum[PARTS * HEADS_MOST / 2], top[HEADS_MOST / 16], total[HEADS_MOST / 16];
    fetch(a, pages[0], kv[0], n);
    gpu_copy_commit();
    int32_t page = tiles > 1 ? pages[1] : 0;
    queries(a, q, &m, heads);
    GPU_UNROLL
    for (uint32_t i = 0; i < PARTS * (heads / 2); i++)
        sum[i] = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 16; i++) {
        top[i] = -GPU_INFINITY;
        total[i] = 0;
    }
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        if (t + 1 < tiles)
            fetch(a, page, kv[(t + 1) % 2], n - (t + 1) * PAGE);
        gpu_copy_commit(); /* perhaps of nothing: so that there are always as many behind */
        page = t + 2 < tiles ? pages[t + 2] : 0;
        gpu_copy_wait(1);
        gpu_wg_seen();
        gpu_barrier();
        score_tile(w, q, kv[t % 2], group, heads, scores);
        gpu_barrier();
        wg_weights(a, w, n - t * PAGE, top, total, heads, scores, 1);
        gpu_wg_seen();
        gpu_barrier();
        sum_tile(w, kv[t % 2], group, sum, heads);
        gpu_barrier();
    }
    gpu_copy_wait(0);
    wg_put(a, w, &m, top, total, sum, heads);
}

GPU_KERNEL(weir_mla_split_16, gpu_mla_decode, WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_16_shared, s);
    const struct wg_place w = {&s->p[0][0], &s->s[0][0][0], s->factor, 0};
    split(&a, &w, &s->q[0][0][0], s->kv, 16, 2);
}
GPU_KERNEL(weir_mla_split_48, gpu_mla_decode, WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_48_shared, s);
    const struct wg_place w = {&s->p[0][0], &s->s[0][0][0], s->factor, 0};
    split(&a, &w, &s->q[0][0][0], s->kv, 48, 1);
}

#else

GPU_KERNEL(weir_mla_split_16, gpu_mla_decode, WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}
GPU_KERNEL(weir_mla_split_48, gpu_mla_decode, WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
