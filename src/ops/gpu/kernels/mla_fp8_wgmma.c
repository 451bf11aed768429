/* mla_fp8_wgmma.c: latent attention of single tokens over FP8 history by products of warpgroups,
 * for latents of 512 with 64 more values: codes become BF16 numbers, without rounding, on their way
 * into the panels of mla_wgmma.h; scales go beside them. A tile is on its way in registers while
 * the one before it is put down. */
#include "ops/gpu/kernels/codes.h"
#include "ops/gpu/kernels/mla_wgmma.h"

enum {
    HEADS = 16,
    PRODUCERS = GPU_MLA_FP8_WG_THREADS - WG_THREADS,
    RECORD = LATENT + QUARTERS * 4 + GPU_EXTRA_MOST * 2,
    CODES = 64 * LATENT / 16 / PRODUCERS, /* 16-byte pieces of a tile that a thread has */
    REST = 1 + GPU_EXTRA_MOST / 8,        /* pieces of a record behind its codes: scales, extra */
    RESTS = (64 * REST + PRODUCERS - 1) / PRODUCERS,
};

#ifdef GPU_WARPGROUPS

struct codes {
    struct gpu_u4 code[CODES], rest[RESTS];
};

/* Where piece u of this thread lies: eight lanes have four pieces of a panel of two rows, which are
 * then in different banks of shared memory. */
struct code_place {
    uint32_t row, panel, piece;
};
GPU_FN struct code_place code_place(uint32_t u) {
    const uint32_t i = u * (PRODUCERS / 8) + (gpu_thread() - WG_THREADS) / 8, l = gpu_thread() % 8;
    const struct code_place c = {i / LATENT_PANELS * 2 + l / 4, i % LATENT_PANELS, l % 4};
    return c;
}

/* Asks for piece u of a page's codes; of its records those before `n`. */
GPU_FN void take_code(struct codes *x, uint32_t u, const uint8_t *page, uint32_t n) {
    const struct code_place c = code_place(u);
    const struct gpu_u4 none = {0, 0, 0, 0};
    x->code[u] =
        c.row < n ? gpu_load16_stream(page + c.row * RECORD + c.panel * 64 + c.piece * 16) : none;
}
GPU_FN void take_rest(struct codes *x, uint32_t u, const uint8_t *page, uint32_t n) {
    const uint32_t i = u * PRODUCERS + gpu_thread() - WG_THREADS, row = i / REST;
    const struct gpu_u4 none = {0, 0, 0, 0};
    x->rest[u] = row < n && row < PAGE
                     ? gpu_load16_stream(page + row * RECORD + LATENT + i % REST * 16)
                     : none;
}

GPU_FN void put_code(uint16_t (*kv)[64][64], const struct codes *x, uint32_t u) {
    const struct code_place c = code_place(u);
    struct gpu_u4 first, second;
    uint16_t *to = &kv[c.panel][0][0];
    widen_codes(x->code[u].x, &first.x, &first.y);
    widen_codes(x->code[u].y, &first.z, &first.w);
    widen_codes(x->code[u].z, &second.x, &second.y);
    widen_codes(x->code[u].w, &second.z, &second.w);
    gpu_store16(to + gpu_panel(c.row, 2 * c.piece), first);
    gpu_store16(to + gpu_panel(c.row, 2 * c.piece + 1), second);
}
GPU_FN void put_rest(uint16_t (*kv)[64][64], float *scale, const struct codes *x, uint32_t u) {
    const uint32_t i = u * PRODUCERS + gpu_thread() - WG_THREADS, row = i / REST, piece = i % REST;
    float f[QUARTERS];
    if (row >= PAGE)
        return;
    if (piece > 0) {
        gpu_store16(&kv[LATENT_PANELS][0][0] + gpu_panel(row, piece - 1), x->rest[u]);
        return;
    }
    widen_f32x4(f, x->rest[u]);
    GPU_UNROLL
    for (uint32_t k = 0; k < QUARTERS; k++)
        scale[k * 64 + row] = f[k];
}

/* Asks for the whole of page `page` into x, of its records those before `n`. */
GPU_FN void take_tile(const struct gpu_mla_decode *a, struct codes *x, int32_t page, uint32_t n) {
    const uint8_t *from = a->kv + (uint64_t)(uint32_t)page * a->page_bytes;
    GPU_UNROLL
    for (uint32_t u = 0; u < CODES; u++)
        take_code(x, u, from, n);
    GPU_UNROLL
    for (uint32_t u = 0; u < RESTS; u++)
        take_rest(x, u, from, n);
}

/* Puts tile t down, and asks for the one that comes two further, at `page`. */
GPU_FN void put_tile(const struct gpu_mla_decode *a, const struct wg_place *w, struct codes *x,
                     uint32_t t, int32_t page, uint32_t more) {
    const uint8_t *from = a->kv + (uint64_t)(uint32_t)page * a->page_bytes;
    wg_wait_empty(w, t);
    GPU_UNROLL
    for (uint32_t u = 0; u < CODES; u++) {
        put_code(w->kv[t % 2], x, u);
        take_code(x, u, from, more);
    }
    GPU_UNROLL
    for (uint32_t u = 0; u < RESTS; u++) {
        put_rest(w->kv[t % 2], w->scale + t % 2 * QUARTERS * 64, x, u);
        take_rest(x, u, from, more);
    }
    gpu_gate_arrive(&w->full[t % 2]);
}

/* Of tile t, how many records are left from there on. */
GPU_FN uint32_t left(uint32_t n, uint32_t t) {
    return n > t * PAGE ? n - t * PAGE : 0;
}
GPU_FN int32_t page_of(const int32_t *pages, uint32_t tiles, uint32_t t) {
    return t < tiles ? pages[t] : 0;
}

GPU_FN void fill(const struct gpu_mla_decode *a, const struct wg_place *w,
                 const struct mla_share *m) {
    const int32_t *pages = a->pages + m->seq.first_page + m->begin / PAGE;
    const uint32_t n = m->end - m->begin, tiles = (n + PAGE - 1) / PAGE;
    struct codes even, odd;
    take_tile(a, &even, pages[0], n);
    take_tile(a, &odd, page_of(pages, tiles, 1), left(n, 1));
    int32_t page = page_of(pages, tiles, 2), next = page_of(pages, tiles, 3);
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t += 2) {
        const int32_t pages0 = page, pages1 = next;
        page = page_of(pages, tiles, t + 4);
        next = page_of(pages, tiles, t + 5);
        put_tile(a, w, &even, t, pages0, left(n, t + 2));
        if (t + 1 < tiles)
            put_tile(a, w, &odd, t + 1, pages1, left(n, t + 3));
    }
}

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, GPU_MLA_FP8_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_fp8_wg_shared, s);
    const struct wg_place w = {s->kv,     &s->q[0][0][0],     &s->p[0][0][0], &s->s[0][0][0],
                               s->factor, &s->scale[0][0][0], s->gate,        s->gate + 2};
    const struct mla_share m = mla_share_of(&a, HEADS);
    wg_set_gates(&w, PRODUCERS);
    gpu_barrier();
    if (m.begin >= m.seq.positions) {
        gpu_wait_previous();
        return;
    }
    /* The kernel directly before makes queries; history is of one before it. */
    if (gpu_wave() >= WG_WAVES) {
        gpu_more_registers(144);
        fill(&a, &w, &m);
        gpu_wait_previous();
    } else {
        gpu_fewer_registers(112);
        gpu_wait_previous();
        gpu_launch_next();
        wg_attend(&a, &w, &m, HEADS, 2, QUARTERS);
    }
}

#else

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, GPU_MLA_FP8_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
