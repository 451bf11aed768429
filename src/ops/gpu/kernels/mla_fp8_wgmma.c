/* mla_fp8_wgmma.c: latent attention of single tokens over FP8 history by products of warpgroups,
 * for latents of 512 with 64 more values: pages come as they are, two ahead. A lane takes 16 codes
 * of two positions, which become BF16 without rounding, are scored where they are, in registers,
 * and go to shared memory for the sum. Scales stay outside of products: a score is the sum of four,
 * each times the scale of its quarter, and weights are multiplied by the scales of the quarter that
 * they weigh.
 *
 * Order of values. Of 64 a lane t of four has 16 t to 16 t + 15, four for each step of a product. A
 * sum does not care, as long as queries lie in that order too. */
#include "ops/gpu/kernels/mla_wgmma.h"

enum {
    HEADS = 16,
    RECORD = LATENT + LATENT / GPU_KV_SCALED * 4 + GPU_EXTRA_MOST * 2,
    PIECES = RECORD / 16,
    SCALES_AT = LATENT,
    EXTRA_AT = LATENT + LATENT / GPU_KV_SCALED * 4,
    QUARTERS = LATENT / GPU_KV_SCALED,
};

#ifdef GPU_WARPGROUPS

/* Asks for a page; of its records those before `n`. */
GPU_FN void fetch(const struct gpu_mla_decode *a, int32_t page, uint8_t (*raw)[GPU_MLA_RAW_ROW],
                  uint32_t n) {
    const uint8_t *from = a->kv + (uint64_t)(uint32_t)page * a->page_bytes;
    GPU_UNROLL
    for (uint32_t u = 0; u < (PAGE * PIECES + WG_THREADS - 1) / WG_THREADS; u++) {
        const uint32_t i = u * WG_THREADS + gpu_thread(), row = i / PIECES;
        if (row < PAGE)
            gpu_copy16(&raw[row][i % PIECES * 16], from + i * 16, row < n);
    }
}

/* Queries of the block's heads, zero where there is no head, in the order of values above. */
GPU_FN void queries(const struct gpu_mla_decode *a, uint16_t *q, const struct wg_share *m) {
    for (uint32_t i = gpu_thread(); i < HEADS * (WIDTH / 2); i += WG_THREADS) {
        const uint32_t h = i / (WIDTH / 2), k = i % (WIDTH / 2) * 2, head = m->head0 + h;
        const uint16_t *from = a->qa + (uint64_t)m->seq.row * a->qa_stride + head * LATENT;
        if (k >= LATENT)
            from = a->q + (uint64_t)m->seq.row * a->q_stride + head * a->q_step + a->nope - LATENT;
        /* Value 16 t + 4 s + e of a panel is element 2 t + e % 2 of step s, of its second half for
         * e above 1. */
        const uint32_t to = k % 16 / 4 * 16 + k % 4 / 2 * 8 + k % 64 / 16 * 2;
        *(uint32_t *)(q + k / 64 * HEADS * 64 + gpu_panel(h, to / 8) + to % 8) =
            head < a->heads ? *(const uint32_t *)(from + k) : 0;
    }
}

/* Four codes as BF16 numbers, the first two in *lo. */
GPU_FN void widen_codes(uint32_t w, uint32_t *lo, uint32_t *hi) {
    const uint32_t x = gpu_spread_bytes(w, false), y = gpu_spread_bytes(w, true);
    /* Exponents begin at 2^-7 with codes, at 2^-127 with BF16. */
    *lo = gpu_bf16_mul((x & 0x80008000u) | (x >> 4 & 0x07F007F0u), 0x7B807B80u);
    *hi = gpu_bf16_mul((y & 0x80008000u) | (y >> 4 & 0x07F007F0u), 0x7B807B80u);
}

/* A panel of latents: codes of this lane's two positions as operands of four steps, and to where
 * sums read them. */
GPU_FN void take_panel(const struct gpu_mla_fp8_wg_shared *s, uint16_t *v,
                       const uint8_t (*raw)[GPU_MLA_RAW_ROW], uint32_t panel, struct gpu_u4 *x) {
    const uint32_t row = gpu_wg_row(0), t = gpu_lane() % 4;
    (void)s;
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const struct gpu_u4 codes = gpu_load16(&raw[row + 8 * r][panel * 64 + t * 16]);
        const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
        uint32_t lo[4], hi[4];
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            widen_codes(word[k], &lo[k], &hi[k]);
            if (r == 0) {
                x[k].x = lo[k];
                x[k].z = hi[k];
            } else {
                x[k].y = lo[k];
                x[k].w = hi[k];
            }
        }
        const struct gpu_u4 first = {lo[0], hi[0], lo[1], hi[1]};
        const struct gpu_u4 second = {lo[2], hi[2], lo[3], hi[3]};
        gpu_store16(v + gpu_panel(row + 8 * r, 2 * t), first);
        gpu_store16(v + gpu_panel(row + 8 * r, 2 * t + 1), second);
    }
}

/* This warpgroup's half of the scores of a tile, and its panels of latents for the sum. */
GPU_FN void score_tile(struct gpu_mla_fp8_wg_shared *s, const struct wg_place *w,
                       const uint8_t (*raw)[GPU_MLA_RAW_ROW], uint32_t group) {
    const uint32_t row = gpu_wg_row(0), t = gpu_lane() % 4;
    float sum[3][HEADS / 2]; /* of two quarters, and of the extra values */
    struct gpu_u4 x[2][4], extra[2];
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const struct gpu_u4 v = gpu_load16(&raw[row + 8 * r][EXTRA_AT + t * 32 + group * 16]);
        if (r == 0) {
            extra[0].x = v.x;
            extra[0].z = v.y;
            extra[1].x = v.z;
            extra[1].z = v.w;
        } else {
            extra[0].y = v.x;
            extra[0].w = v.y;
            extra[1].y = v.z;
            extra[1].w = v.w;
        }
    }
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        gpu_wg_rows_of(sum[2], HEADS, extra[i], &s->q[LATENT_PANELS][0][0], 2 * group + i, i > 0);
    gpu_wg_commit();
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        const uint32_t panel = PARTS * group + p;
        if (p >= 2)
            gpu_wg_wait(1); /* the product of x[p % 2] is done */
        take_panel(s, &s->v[panel][0][0], raw, panel, x[p % 2]);
        gpu_wg_begin();
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            gpu_wg_rows_of(sum[p / 2], HEADS, x[p % 2][k], &s->q[panel][0][0], k, p % 2 || k);
        gpu_wg_commit();
    }
    float scale[2][2];
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            scale[r][i] =
                *(const float *)&raw[row + 8 * r][SCALES_AT + (QUARTERS / 2 * group + i) * 4];
            if (t == 0)
                s->scale[QUARTERS / 2 * group + i][row + 8 * r] = scale[r][i];
        }
    }
    gpu_wg_wait(0);
    gpu_wg_hold(sum[0], HEADS / 2);
    gpu_wg_hold(sum[1], HEADS / 2);
    gpu_wg_hold(sum[2], HEADS / 2);
    GPU_UNROLL
    for (uint32_t i = 0; i < HEADS / 2; i++)
        sum[2][i] += scale[i / 2 % 2][0] * sum[0][i] + scale[i / 2 % 2][1] * sum[1][i];
    wg_leave_scores(w->s + group * HEADS * SCORE_ROW, sum[2], HEADS, false);
}

/* sum = sum * factor + weights times latents, for this warpgroup's panels. */
GPU_FN void sum_tile(const struct gpu_mla_fp8_wg_shared *s, const struct wg_place *w,
                     uint32_t group, float *sum) {
    wg_shrink(w, sum, HEADS);
    gpu_wg_hold(sum, PARTS * (HEADS / 2));
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        const uint32_t panel = PARTS * group + p;
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            gpu_wg_columns(sum + p * (HEADS / 2), HEADS, &s->v[panel][0][0], &s->p[panel / 2][0][0],
                           k);
    }
    gpu_wg_commit();
    gpu_wg_wait(0);
    gpu_wg_hold(sum, PARTS * (HEADS / 2));
}

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_fp8_wg_shared, s);
    const struct wg_place w = {&s->p[0][0][0], &s->s[0][0][0], s->factor, &s->scale[0][0]};
    const struct wg_share m = wg_share_of(&a, HEADS);
    const uint32_t group = gpu_wave() / 4;
    gpu_wait_previous();
    gpu_launch_next();
    if (m.begin >= m.seq.positions)
        return;
    const int32_t *pages = a.pages + m.seq.first_page + m.begin / PAGE;
    const uint32_t n = m.end - m.begin, tiles = (n + PAGE - 1) / PAGE;
    float sum[PARTS * HEADS / 2], top[1] = {-GPU_INFINITY}, total[1] = {0};
    fetch(&a, pages[0], s->raw[0], n);
    gpu_copy_commit();
    if (tiles > 1)
        fetch(&a, pages[1], s->raw[1], n - PAGE);
    gpu_copy_commit();
    int32_t page = tiles > 2 ? pages[2] : 0;
    queries(&a, &s->q[0][0][0], &m);
    GPU_UNROLL
    for (uint32_t i = 0; i < PARTS * HEADS / 2; i++)
        sum[i] = 0;
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        gpu_copy_wait(1);
        gpu_wg_seen();
        gpu_barrier(); /* and nobody sums up the latents of the tile before */
        score_tile(s, &w, s->raw[t % 2], group);
        gpu_wg_seen();
        gpu_barrier();
        if (t + 2 < tiles)
            fetch(&a, page, s->raw[t % 2], n - (t + 2) * PAGE);
        gpu_copy_commit(); /* perhaps of nothing: so that there are always as many behind */
        page = t + 3 < tiles ? pages[t + 3] : 0;
        wg_weights(&a, &w, n - t * PAGE, top, total, HEADS, 2, QUARTERS);
        gpu_wg_seen();
        gpu_barrier();
        sum_tile(s, &w, group, sum);
    }
    gpu_copy_wait(0);
    gpu_barrier();
    wg_put(&a, &w, &m, top, total, sum, HEADS);
}

#else

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
