/* mla_wgmma.c: latent attention of single tokens over BF16 history by products of warpgroups, for
 * latents of 512 with 64 more values. What mla.h does, with positions as the 64 rows of a product
 * and heads as its columns: so few heads cost what they are, and a block can have many, which read
 * the history once. A tile of 64 positions is a page, in two stages of shared memory as panels,
 * which both products read: further waves of the block fill them (the producers), and two
 * warpgroups attend. Each has half of the values of a score, and half of the latents of a sum.
 * Invariant that bites: whoever writes shared memory that a product reads says gpu_wg_seen() before
 * the meeting; what lane 0 says of a wave it says behind gpu_wg_wait(), where the wave meets. */
#include "ops/gpu/kernels/mla_share.h"

enum {
    WG_THREADS = 256, /* that attend; those behind them fill stages */
    WG_WAVES = WG_THREADS / GPU_WAVE,
    PRODUCERS = GPU_MLA_WG_THREADS - WG_THREADS,
    WG_PART = 1, /* their part of the block's barriers */
    LATENT = GPU_LATENT_MOST,
    WIDTH = GPU_LATENT_MOST + GPU_EXTRA_MOST,
    LATENT_PANELS = LATENT / 64,
    PARTS = LATENT_PANELS / 2, /* panels of a warpgroup's sums */
    PAGE = 64,
    SCORE_ROW = 64 + 4,
    HEADS_MOST = 48,
};

#ifdef GPU_WARPGROUPS

/* Shared memory, whatever the number of heads: stages of panels, queries, weights, scores. */
struct wg_place {
    uint16_t (*kv)[GPU_MLA_PANELS][64][64];
    uint16_t *q, *p;
    float *s, *factor;
    uint64_t *full, *empty; /* gates of the stages */
};

/* A warpgroup's scores into `s`; `add`: to what is there. */
GPU_FN void wg_leave_scores(float *s, const float *sum, const uint32_t heads, const bool add) {
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 2; i++) {
        float *at = s + gpu_wg_col(i) * SCORE_ROW + gpu_wg_row(i);
        *at = add ? *at + sum[i] : sum[i];
    }
}

/* Weights of the tile's positions from their scores, `scores` sums each; 16 lanes have a head, and
 * every 16th further. `top` and `total`: of those heads so far. */
GPU_FN void wg_weights(const struct gpu_mla_decode *a, const struct wg_place *w, uint32_t n,
                       float *top, float *total, const uint32_t heads, const uint32_t scores) {
    const uint32_t lane = gpu_thread() % 16;
    GPU_UNROLL
    for (uint32_t t = 0; t < heads / 16; t++) {
        const uint32_t head = t * 16 + gpu_thread() / 16;
        float score[4], most = top[t], sum = 0;
        widen_f32x4(score, gpu_load16(w->s + head * SCORE_ROW + lane * 4));
        if (scores > 1) {
            float more[4];
            widen_f32x4(more, gpu_load16(w->s + (heads + head) * SCORE_ROW + lane * 4));
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                score[i] += more[i];
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            score[i] = lane * 4 + i < n ? score[i] * (a->scale * 1.44269504f) : -GPU_INFINITY;
            most = gpu_max(most, score[i]);
        }
        GPU_UNROLL
        for (uint32_t m = 8; m > 0; m /= 2)
            most = gpu_max(most, gpu_shuffle_xor(most, m));
        uint32_t *to = (uint32_t *)(w->p + gpu_panel(head, lane / 2) + lane % 2 * 4);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            score[i] = gpu_exp2_flush(score[i] - most);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i += 2) {
            const uint32_t pair = gpu_bf16_pair(score[i], score[i + 1]);
            to[i / 2] = pair;
            sum += gpu_bf16_lo(pair) + gpu_bf16_hi(pair); /* as it will be multiplied */
        }
        const float factor = gpu_exp2_flush(top[t] - most);
        total[t] = total[t] * factor + gpu_sum16(sum);
        top[t] = most;
        if (lane == 0)
            w->factor[head] = factor;
    }
}

/* sum *= factor, a head's. */
GPU_FN void wg_shrink(const struct wg_place *w, float *sum, const uint32_t heads) {
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 2; i++) {
        const float factor = w->factor[gpu_wg_col(i)];
        GPU_UNROLL
        for (uint32_t p = 0; p < PARTS; p++)
            sum[p * (heads / 2) + i] *= factor;
    }
}

/* The share's results. */
GPU_FN void wg_put(const struct gpu_mla_decode *a, const struct wg_place *w,
                   const struct mla_share *m, const float *top, const float *total,
                   const float *sum, const uint32_t heads) {
    const uint64_t place = ((uint64_t)m->seq.row * a->heads + m->head0) * a->shares + gpu_block_x();
    GPU_UNROLL
    for (uint32_t t = 0; t < heads / 16; t++) {
        const uint32_t head = t * 16 + gpu_thread() / 16;
        if (gpu_thread() % 16)
            continue;
        w->factor[head] = gpu_rcp(total[t]);
        if (m->head0 + head < a->heads)
            a->lse[place + (uint64_t)head * a->shares] = top[t] + gpu_log2(total[t]);
    }
    gpu_part_barrier(WG_PART, WG_THREADS);
    const uint32_t group = gpu_uniform(gpu_wave()) / 4;
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < heads / 2; i++) {
            const uint32_t h = gpu_wg_col(i);
            const uint32_t col = (PARTS * group + p) * 64 + gpu_wg_row(i);
            if (m->head0 + h < a->heads)
                a->part[(place + (uint64_t)h * a->shares) * LATENT + col] =
                    sum[p * (heads / 2) + i] * w->factor[h];
        }
    }
}

/* Gates, by one thread before all meet. */
GPU_FN void wg_set_gates(const struct wg_place *w, uint32_t producers) {
    if (gpu_thread() != 0)
        return;
    for (uint32_t i = 0; i < 2; i++) {
        gpu_gate_set(&w->full[i], producers);
        gpu_gate_set(&w->empty[i], WG_WAVES);
    }
}
/* Producers wait for the stage of tile t. */
GPU_FN void wg_wait_empty(const struct wg_place *w, uint32_t t) {
    gpu_gate_wait(&w->empty[t % 2], (t / 2 + 1) % 2);
}

/* Asks for queries of the block's heads, zero where there is no head, all at a time. */
GPU_FN void wg_queries(const struct gpu_mla_decode *a, uint16_t *q, const struct mla_share *m,
                       const uint32_t heads) {
    for (uint32_t i = gpu_thread(); i < heads * (WIDTH / 8); i += WG_THREADS) {
        const uint32_t h = i / (WIDTH / 8), piece = i % (WIDTH / 8), head = m->head0 + h;
        const uint16_t *from = a->qa + (uint64_t)m->seq.row * a->qa_stride + head * LATENT;
        if (piece >= LATENT / 8)
            from = a->q + (uint64_t)m->seq.row * a->q_stride + head * a->q_step + a->nope - LATENT;
        gpu_copy16(q + piece / 8 * heads * 64 + gpu_panel(h, piece % 8),
                   head < a->heads ? from + piece * 8 : a->qa, head < a->heads);
    }
    gpu_copy_commit();
}

/* Scores of a tile, this warpgroup's half of the values: panels of latents, then half of the extra
 * one. A product does not wait for the one just begun, here and below. Those of both warpgroups are
 * left side by side where there is room for two (`scores`), or one after the other. */
GPU_FN void wg_score(const struct wg_place *w, const uint16_t (*kv)[64][64], uint32_t group,
                     const uint32_t heads, const uint32_t scores) {
    enum { STEPS = 4 * PARTS };
    float sum[HEADS_MOST / 2], more[HEADS_MOST / 2];
    const uint16_t *q = w->q + PARTS * group * heads * 64;
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < STEPS; i++)
        gpu_wg_rows(i % 2 ? more : sum, heads, &kv[PARTS * group][0][0], q, i, i > 1);
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        gpu_wg_rows(i % 2 ? more : sum, heads, &kv[LATENT_PANELS][0][0],
                    w->q + LATENT_PANELS * heads * 64, 2 * group + i, true);
    gpu_wg_commit();
    gpu_wg_wait(0);
    gpu_wg_hold(sum, heads / 2);
    gpu_wg_hold(more, heads / 2);
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 2; i++)
        sum[i] += more[i];
    if (scores > 1) {
        wg_leave_scores(w->s + group * heads * SCORE_ROW, sum, heads, false);
        return;
    }
    if (group == 0)
        wg_leave_scores(w->s, sum, heads, false);
    gpu_part_barrier(WG_PART, WG_THREADS);
    if (group == 1)
        wg_leave_scores(w->s, sum, heads, true);
}

/* sum = sum * factor + weights times latents, for this warpgroup's panels. */
GPU_FN void wg_sum(const struct wg_place *w, const uint16_t (*kv)[64][64], uint32_t group,
                   float *sum, const uint32_t heads) {
    wg_shrink(w, sum, heads);
    gpu_wg_hold(sum, PARTS * (heads / 2));
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * PARTS; i++)
        gpu_wg_columns(sum + i % PARTS * (heads / 2), heads, &kv[PARTS * group][0][0], w->p,
                       i % PARTS * 4 + i / PARTS, i / PARTS);
    gpu_wg_commit();
    gpu_wg_wait(0);
    gpu_wg_hold(sum, PARTS * (heads / 2));
}

/* What the two warpgroups do with the share `m`, whose stages others fill. */
GPU_FN void wg_attend(const struct gpu_mla_decode *a, const struct wg_place *w,
                      const struct mla_share *m, const uint32_t heads, const uint32_t scores) {
    const uint32_t group = gpu_uniform(gpu_wave()) / 4, n = m->end - m->begin,
                   tiles = (n + PAGE - 1) / PAGE;
    float sum[PARTS * HEADS_MOST / 2], top[HEADS_MOST / 16], total[HEADS_MOST / 16];
    wg_queries(a, w->q, m, heads);
    GPU_UNROLL
    for (uint32_t i = 0; i < PARTS * (heads / 2); i++)
        sum[i] = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < heads / 16; i++) {
        top[i] = -GPU_INFINITY;
        total[i] = 0;
    }
    gpu_copy_wait(0);
    gpu_wg_seen();
    gpu_part_barrier(WG_PART, WG_THREADS);
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        const uint16_t(*kv)[64][64] = w->kv[t % 2];
        gpu_gate_wait(&w->full[t % 2], t / 2 % 2);
        gpu_wg_seen();
        wg_score(w, kv, group, heads, scores);
        gpu_part_barrier(WG_PART, WG_THREADS);
        wg_weights(a, w, n - t * PAGE, top, total, heads, scores);
        gpu_wg_seen();
        gpu_part_barrier(WG_PART, WG_THREADS);
        wg_sum(w, kv, group, sum, heads);
        if (gpu_lane() == 0)
            gpu_gate_arrive(&w->empty[t % 2]);
    }
    gpu_part_barrier(WG_PART, WG_THREADS); /* nobody reads factors */
    wg_put(a, w, m, top, total, sum, heads);
}

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
    const bool many = heads > 16; /* which two warpgroups have too few registers for */
    wg_set_gates(w, PRODUCERS);
    gpu_barrier();
    if (m.begin >= m.seq.positions) {
        gpu_wait_previous();
        return;
    }
    /* The kernel directly before makes queries; history is of one before it. */
    if (gpu_wave() >= WG_WAVES) {
        if (many)
            gpu_fewer_registers(104);
        fill(a, w, &m);
        gpu_wait_previous();
    } else {
        if (many)
            gpu_more_registers(200);
        gpu_wait_previous();
        gpu_launch_next();
        wg_attend(a, w, &m, heads, scores);
    }
}

GPU_KERNEL(weir_mla_split_16, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_16_shared, s);
    const struct wg_place w = {s->kv,     &s->q[0][0][0], &s->p[0][0], &s->s[0][0][0],
                               s->factor, s->gate,        s->gate + 2};
    split(&a, &w, 16, 2);
}
GPU_KERNEL(weir_mla_split_48, gpu_mla_decode, GPU_MLA_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_wg_48_shared, s);
    const struct wg_place w = {s->kv,     &s->q[0][0][0], &s->p[0][0], &s->s[0][0][0],
                               s->factor, s->gate,        s->gate + 2};
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
