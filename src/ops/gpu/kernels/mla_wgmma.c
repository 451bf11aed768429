/* mla_wgmma.c: latent attention of single tokens over BF16 history by products of warpgroups, for
 * latents of 512 with 64 more values: records lie in shared memory as panels, which both products
 * read. */
#include "ops/gpu/kernels/mla_wgmma.h"

enum { PRODUCERS = GPU_MLA_WG_THREADS - WG_THREADS };

#ifdef GPU_WARPGROUPS

/* Asks for a page; of its records those before `n`. A thread has the same piece of every panel, in
 * four rows. */
GPU_FN void fetch(const struct gpu_mla_decode *a, int32_t page, uint16_t (*kv)[64][64],
                  uint32_t n) {
    const uint32_t thread = gpu_thread() - WG_THREADS, row = thread / 8, piece = thread % 8;
    const uint16_t *from = (const uint16_t *)(a->kv + (uint64_t)(uint32_t)page * a->page_bytes) +
                           row * WIDTH + piece * 8;
    uint16_t *to = &kv[0][0][0] + gpu_panel(row, piece);
    GPU_UNROLL
    for (uint32_t p = 0; p < GPU_MLA_PANELS; p++) {
        GPU_UNROLL
        for (uint32_t r = 0; r < 64; r += PRODUCERS / 8)
            gpu_copy16(to + p * 64 * 64 + r * 64, from + r * WIDTH + p * 64, row + r < n);
    }
}

/* Two tiles are on their way at a time. */
GPU_FN void fill(const struct gpu_mla_decode *a, const struct wg_place *w,
                 const struct mla_share *m) {
    const int32_t *pages = a->pages + m->seq.first_page + m->begin / PAGE;
    const uint32_t n = m->end - m->begin, tiles = (n + PAGE - 1) / PAGE;
    int32_t page = pages[0];
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        const int32_t next = t + 1 < tiles ? pages[t + 1] : 0;
        wg_wait_empty(w, t);
        fetch(a, page, w->kv[t % 2], n - t * PAGE);
        gpu_copy_commit();
        page = next;
        if (t == 0)
            continue;
        gpu_copy_wait(1);
        gpu_wg_seen();
        gpu_gate_arrive(&w->full[(t - 1) % 2]);
    }
    gpu_copy_wait(0);
    gpu_wg_seen();
    gpu_gate_arrive(&w->full[(tiles - 1) % 2]);
}

GPU_FN void split(const struct gpu_mla_decode *a, const struct wg_place *w, const uint32_t heads,
                  const uint32_t scores) {
    const struct mla_share m = mla_share_of(a, heads);
    wg_set_gates(w, PRODUCERS);
    gpu_barrier();
    if (m.begin >= m.seq.positions) {
        gpu_wait_previous();
        return;
    }
    /* The kernel directly before makes queries; history is of one before it. */
    if (gpu_wave() >= WG_WAVES) {
        fill(a, w, &m);
        gpu_wait_previous();
        return;
    }
    gpu_wait_previous();
    gpu_launch_next();
    wg_attend(a, w, &m, heads, scores, 1);
}

GPU_KERNEL(weir_mla_split_16, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_16_shared, s);
    const struct wg_place w = {s->kv, &s->q[0][0][0], &s->p[0][0], &s->s[0][0][0], s->factor,
                               0,     s->gate,        s->gate + 2};
    split(&a, &w, 16, 2);
}
GPU_KERNEL(weir_mla_split_48, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_48_shared, s);
    const struct wg_place w = {s->kv, &s->q[0][0][0], &s->p[0][0], &s->s[0][0][0], s->factor,
                               0,     s->gate,        s->gate + 2};
    split(&a, &w, 48, 1);
}

#else

GPU_KERNEL(weir_mla_split_16, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}
GPU_KERNEL(weir_mla_split_48, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
