/* mla_prefill_wgmma.c: the attention of mla_prefill.c by products of warpgroups, for 128 key values
 * and 64 more, 128 values: a block has 128 rows, each of its two warpgroups 64, and goes through
 * 128 positions at a time.
 *
 * While a tile is scored and weighed, the product of the weights before it with their values is on
 * its way, and so are the next keys and these values. So there are two stages of either, a step
 * apart: keys of tile t are read in step t, its values in step t + 1. */
#include "ops/gpu/kernels/mla_prefill.h"

enum { WG_THREADS = 256, HIGH = 128, KEY_PANELS = 3, VALUE_PANELS = 2, NOPE = 128, VALUES = 128 };

#ifdef GPU_WARPGROUPS

/* A thread has a piece of every panel, in four rows of 128. */
GPU_FN void fetch_panel(uint16_t (*panel)[64], const uint16_t *from, uint64_t stride, uint32_t n) {
    const uint32_t row = gpu_thread() / 8, piece = gpu_thread() % 8;
    GPU_UNROLL
    for (uint32_t r = 0; r < HIGH; r += WG_THREADS / 8) {
        const bool there = row + r < n;
        gpu_copy16(&panel[0][0] + gpu_panel(row, piece) + r * 64,
                   there ? from + (row + r) * stride + piece * 8 : from, there);
    }
}

/* Keys of the tile of positions from `at` (counted from the piece's first) on. */
GPU_FN void fetch_keys(const struct gpu_mla_prefill *a, const struct mla_rows *m,
                       uint16_t (*key)[HIGH][64], uint32_t at) {
    const uint64_t row = m->span->at + at;
    const uint32_t n = m->end - m->from - at, width = GPU_LATENT_MOST + GPU_EXTRA_MOST;
    const uint16_t *kv = a->kv + row * a->kv_stride + m->head * (NOPE + VALUES);
    fetch_panel(key[0], kv, a->kv_stride, n);
    fetch_panel(key[1], kv + 64, a->kv_stride, n);
    fetch_panel(key[2], a->latents + row * width + GPU_LATENT_MOST, width, n);
}
GPU_FN void fetch_values(const struct gpu_mla_prefill *a, const struct mla_rows *m,
                         uint16_t (*value)[HIGH][64], uint32_t at) {
    const uint64_t row = m->span->at + at;
    const uint32_t n = m->end - m->from - at;
    const uint16_t *kv = a->kv + row * a->kv_stride + m->head * (NOPE + VALUES) + NOPE;
    fetch_panel(value[0], kv, a->kv_stride, n);
    fetch_panel(value[1], kv + 64, a->kv_stride, n);
}

/* Over the four lanes of a row. */
GPU_FN float quad_max(float v) {
    GPU_UNROLL
    for (uint32_t m = 2; m > 0; m /= 2) {
        const float other = gpu_shuffle_xor(v, m);
        v = other > v ? other : v;
    }
    return v;
}
GPU_FN float quad_sum(float v) {
    v += gpu_shuffle_xor(v, 2);
    return v + gpu_shuffle_xor(v, 1);
}

/* The j-th sum of a lane's first (k 0) or second row. */
GPU_FN uint32_t sum_of_row(uint32_t k, uint32_t j) {
    return j / 2 * 4 + 2 * k + j % 2;
}

/* Scores of the tile from position `from` on become weights; `factor`: by which what was summed
 * shrinks. `total` is of this lane's columns alone. */
GPU_FN void weigh(const struct gpu_mla_prefill *a, const struct mla_rows *m, uint32_t from,
                  uint32_t row, float *score, float *top, float *total, float *factor) {
    const float scale = a->scale * 1.44269504f;
    /* Tiles below the diagonal are seen whole by all rows. */
    const bool cut = from + HIGH > m->end || from + HIGH > m->pos0;
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        float most = -GPU_INFINITY;
        const uint32_t last = m->pos0 + row + 8 * k;
        if (cut) {
            GPU_UNROLL
            for (uint32_t j = 0; j < HIGH / 4; j++) {
                const uint32_t i = sum_of_row(k, j), at = from + gpu_wg_col(i);
                score[i] = at <= last && at < m->end ? score[i] : -GPU_INFINITY;
            }
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < HIGH / 4; j++) {
            const uint32_t i = sum_of_row(k, j);
            most = score[i] > most ? score[i] : most;
        }
        most = quad_max(most) * scale;
        most = most > top[k] ? most : top[k];
        const float base = most > -GPU_INFINITY ? most : 0;
        factor[k] = gpu_exp2(top[k] - base);
        top[k] = most;
        float sum = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < HIGH / 4; j++) {
            const uint32_t i = sum_of_row(k, j);
            score[i] = gpu_exp2(score[i] * scale - base);
            sum += score[i];
        }
        total[k] = total[k] * factor[k] + sum;
    }
}

GPU_FN void scores(const struct gpu_mla_attend_wg_shared *s, uint32_t stage, uint32_t group,
                   float *score) {
    GPU_UNROLL
    for (uint32_t i = 0; i < KEY_PANELS * 4; i++)
        gpu_wg_rows(score, HIGH, &s->q[i / 4][group * 64][0], &s->key[stage][i / 4][0][0], i % 4,
                    i > 0);
    gpu_wg_commit();
}
GPU_FN void add_values(const struct gpu_mla_attend_wg_shared *s, uint32_t stage,
                       const struct gpu_u4 *p, float *out) {
    GPU_UNROLL
    for (uint32_t k = 0; k < HIGH / 16; k++)
        gpu_wg_values(out, VALUES, p[k], &s->value[stage][0][0][0], k, HIGH);
    gpu_wg_commit();
}

GPU_KERNEL(weir_mla_attend_wg, gpu_mla_prefill, WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_attend_wg_shared, s);
    const struct mla_rows m = mla_rows_of(&a, HIGH);
    const uint32_t group = gpu_wave() / 4, row = group * 64 + gpu_wg_row(0);
    gpu_wait_previous();
    gpu_launch_next();
    if (m.from >= m.end)
        return; /* all of these rows are done */
    const uint32_t tiles = (m.end - m.from + HIGH - 1) / HIGH;
    const uint16_t *q = a.q + (uint64_t)m.row0 * a.q_stride + m.head * (NOPE + GPU_EXTRA_MOST);
    GPU_UNROLL
    for (uint32_t p = 0; p < KEY_PANELS; p++)
        fetch_panel(s->q[p], q + p * 64, a.q_stride, m.rows);
    fetch_keys(&a, &m, s->key[0], 0);
    gpu_copy_commit();
    float out[VALUES / 2], top[2], total[2];
    struct gpu_u4 p[HIGH / 16];
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        const bool more = mla_goes_on(&m, row + 8 * k);
        const float *state = a.state + (more ? mla_state_at(&a, &m, row + 8 * k) * 2 : 0);
        top[k] = more ? state[0] : -GPU_INFINITY;
        /* One of the four lanes has what the row brings along. */
        total[k] = more && gpu_lane() % 4 == 0 ? state[1] : 0;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < VALUES / 2; i++) {
        const uint32_t r = row + i / 2 % 2 * 8;
        out[i] = 0;
        if (mla_goes_on(&m, r))
            out[i] = a.sum[mla_state_at(&a, &m, r) * VALUES + gpu_wg_col(i)];
    }
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        float score[HIGH / 2], factor[2];
        gpu_copy_wait(0);
        gpu_wg_seen();
        gpu_barrier();
        fetch_values(&a, &m, s->value[t % 2], t * HIGH);
        if (t + 1 < tiles)
            fetch_keys(&a, &m, s->key[(t + 1) % 2], (t + 1) * HIGH);
        gpu_copy_commit();
        gpu_wg_hold(out, VALUES / 2);
        gpu_wg_begin();
        scores(s, t % 2, group, score);
        if (t > 0) {
            add_values(s, (t - 1) % 2, p, out);
            gpu_wg_wait(1);
        } else {
            gpu_wg_wait(0);
        }
        gpu_wg_hold(score, HIGH / 2);
        weigh(&a, &m, m.from + t * HIGH, row, score, top, total, factor);
        gpu_wg_wait(0);
        gpu_wg_hold(out, VALUES / 2);
        GPU_UNROLL
        for (uint32_t i = 0; i < VALUES / 2; i++)
            out[i] *= factor[i / 2 % 2];
        GPU_UNROLL
        for (uint32_t k = 0; k < HIGH / 16; k++)
            p[k] = gpu_wg_operand(score + 8 * k);
    }
    gpu_copy_wait(0);
    gpu_wg_seen();
    gpu_barrier();
    gpu_wg_hold(out, VALUES / 2);
    gpu_wg_begin();
    add_values(s, (tiles - 1) % 2, p, out);
    gpu_wg_wait(0);
    gpu_wg_hold(out, VALUES / 2);
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        total[k] = quad_sum(total[k]);
        if (gpu_lane() % 4 == 0)
            mla_put_state(&a, &m, row + 8 * k, top[k], total[k]);
        total[k] = gpu_rcp(total[k]);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < VALUES / 2; i += 2)
        mla_put_pair(&a, &m, row + i / 2 % 2 * 8, gpu_wg_col(i), out[i], out[i + 1],
                     total[i / 2 % 2]);
}

#else

GPU_KERNEL(weir_mla_attend_wg, gpu_mla_prefill, WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
