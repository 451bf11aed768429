/* mla_prefill_wgmma.c: the attention of mla_prefill.c by products of warpgroups, for 128 key values
 * and 64 more, 128 values: a block has 128 rows, each of two warpgroups 64, and goes through 128
 * positions at a time. A third warpgroup brings keys and values, two tiles of either at a time;
 * gates say when a stage is full and when it is empty again, so that the two that attend need not
 * keep step: one weighs while the other multiplies.
 *
 * While a tile is weighed, the product of the weights before it with their values is on its way:
 * keys of tile t are read in step t, its values in step t + 1. */
#include "ops/gpu/kernels/mla_prefill.h"

enum {
    ATTENDING = 256, /* threads; those behind them bring what they need */
    BRINGING = GPU_MLA_ATTEND_WG_THREADS - ATTENDING,
    HIGH = 128,
    KEY_PANELS = 3,
    VALUE_PANELS = 2,
    NOPE = 128,
    VALUES = 128,
};

#ifdef GPU_WARPGROUPS

/* A thread has a piece of the panel in every 16th row; there are `n` rows. */
GPU_FN void fetch_panel(uint16_t (*panel)[64], const uint16_t *from, uint64_t stride, uint32_t n) {
    const uint32_t thread = gpu_thread() - ATTENDING, row = thread / 8, piece = thread % 8;
    const uint16_t *at = from + row * stride + piece * 8;
    uint16_t *to = &panel[0][0] + gpu_panel(row, piece);
    GPU_UNROLL
    for (uint32_t r = 0; r < HIGH; r += BRINGING / 8) {
        gpu_copy16(to + r * 64, row + r < n ? at : from, row + r < n);
        at += BRINGING / 8 * stride;
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

/* Gates of two stages. */
GPU_FN void wait_empty(uint64_t *empty, uint32_t t) {
    gpu_gate_wait(&empty[t % 2], (t / 2 + 1) % 2);
}
GPU_FN void wait_full(uint64_t *full, uint32_t t) {
    gpu_gate_wait(&full[t % 2], t / 2 % 2);
    gpu_wg_seen();
}
/* Behind gpu_wg_wait(), where a wave meets. */
GPU_FN void say_empty(uint64_t *empty, uint32_t t) {
    if (gpu_lane() == 0)
        gpu_gate_arrive(&empty[t % 2]);
}

/* Queries, then keys and values in turn, as stages become empty. */
GPU_FN void bring(const struct gpu_mla_prefill *a, struct gpu_mla_attend_wg_shared *s,
                  const struct mla_rows *m, uint32_t tiles) {
    const uint16_t *q = a->q + (uint64_t)m->row0 * a->q_stride + m->head * (NOPE + GPU_EXTRA_MOST);
    GPU_UNROLL
    for (uint32_t p = 0; p < KEY_PANELS; p++)
        fetch_panel(s->q[p], q + p * 64, a->q_stride, m->rows);
    gpu_wait_previous(); /* queries are of an earlier kernel */
    gpu_launch_next();
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        wait_empty(s->key_empty, t);
        fetch_keys(a, m, s->key[t % 2], t * HIGH);
        gpu_gate_arrive_copied(&s->key_full[t % 2]);
        wait_empty(s->value_empty, t);
        fetch_values(a, m, s->value[t % 2], t * HIGH);
        gpu_gate_arrive_copied(&s->value_full[t % 2]);
    }
    gpu_copy_commit();
    gpu_copy_wait(0);
}

/* Over the four lanes of a row. */
GPU_FN float quad_max(float v) {
    GPU_UNROLL
    for (uint32_t m = 2; m > 0; m /= 2)
        v = gpu_max(v, gpu_shuffle_xor(v, m));
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
        for (uint32_t j = 0; j < HIGH / 4; j++)
            most = gpu_max(most, score[sum_of_row(k, j)]);
        most = gpu_max(quad_max(most) * scale, top[k]);
        const float base = most > -GPU_INFINITY ? most : 0;
        factor[k] = gpu_exp2_flush(top[k] - base);
        top[k] = most;
        float sum = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < HIGH / 4; j++) {
            const uint32_t i = sum_of_row(k, j);
            score[i] = gpu_exp2_flush(score[i] * scale - base);
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

/* What a lane's two rows have summed before this piece, or nothing. */
GPU_FN void begin_rows(const struct gpu_mla_prefill *a, const struct mla_rows *m, uint32_t row,
                       float *out, float *top, float *total) {
    GPU_UNROLL
    for (uint32_t i = 0; i < VALUES / 2; i++)
        out[i] = 0;
    top[0] = top[1] = -GPU_INFINITY;
    total[0] = total[1] = 0;
    if (m->from == 0)
        return;
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        if (!mla_goes_on(m, row + 8 * k))
            continue;
        const uint64_t at = mla_state_at(a, m, row + 8 * k);
        top[k] = a->state[at * 2];
        /* One of the four lanes has what the row brings along. */
        total[k] = gpu_lane() % 4 == 0 ? a->state[at * 2 + 1] : 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < VALUES / 4; j++)
            out[sum_of_row(k, j)] = a->sum[at * VALUES + gpu_wg_col(sum_of_row(k, j))];
    }
}

/* A lane's sums of its row k (`r` of the block), where they belong; `inverse`: of the row's
 * weights' sum. All that a gate needs is asked for before any is used. */
GPU_FN void end_row(const struct gpu_mla_prefill *a, const struct mla_rows *m, uint32_t r,
                    uint32_t k, const float *out, float inverse) {
    enum { PAIRS = VALUES / 8 };
    const uint32_t col = m->head * VALUES + gpu_wg_col(0);
    if (r >= m->rows || m->pos0 + r < m->from)
        return;
    if (m->pos0 + r >= m->span->end) {
        float *sum = a->sum + mla_state_at(a, m, r) * VALUES + gpu_wg_col(0);
        GPU_UNROLL
        for (uint32_t j = 0; j < PAIRS; j++) {
            sum[8 * j] = out[4 * j + 2 * k];
            sum[8 * j + 1] = out[4 * j + 2 * k + 1];
        }
        return;
    }
    const uint16_t *gate = a->gate + (uint64_t)(m->row0 + r) * a->gate_stride + col;
    uint16_t *to = a->out + (uint64_t)(m->row0 + r) * a->out_stride + col;
    uint32_t g[PAIRS];
    GPU_UNROLL
    for (uint32_t j = 0; j < PAIRS; j++)
        g[j] = a->gate ? *(const uint32_t *)(gate + 8 * j) : 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < PAIRS; j++) {
        float x = out[4 * j + 2 * k] * inverse, y = out[4 * j + 2 * k + 1] * inverse;
        if (a->gate) {
            x *= gpu_sigmoid(gpu_bf16_lo(g[j]));
            y *= gpu_sigmoid(gpu_bf16_hi(g[j]));
        }
        *(uint32_t *)(to + 8 * j) = gpu_bf16_pair(x, y);
    }
}

/* Weights as operands of the next product, to which its sums are shrunk. */
GPU_FN void take_weights(const float *score, const float *factor, struct gpu_u4 *p, float *out) {
    GPU_UNROLL
    for (uint32_t i = 0; i < VALUES / 2; i++)
        out[i] *= factor[i / 2 % 2];
    GPU_UNROLL
    for (uint32_t k = 0; k < HIGH / 16; k++)
        p[k] = gpu_wg_operand(score + 8 * k);
}

GPU_FN void attend(const struct gpu_mla_prefill *a, struct gpu_mla_attend_wg_shared *s,
                   const struct mla_rows *m, uint32_t tiles) {
    const uint32_t group = gpu_uniform(gpu_wave()) / 4, row = group * 64 + gpu_wg_row(0);
    float out[VALUES / 2], top[2], total[2], score[HIGH / 2], factor[2];
    struct gpu_u4 p[HIGH / 16];
    begin_rows(a, m, row, out, top, total);
    wait_full(s->key_full, 0);
    gpu_wg_begin();
    scores(s, 0, group, score);
    gpu_wg_wait(0);
    gpu_wg_hold(score, HIGH / 2);
    say_empty(s->key_empty, 0);
    weigh(a, m, m->from, row, score, top, total, factor);
    take_weights(score, factor, p, out);
    GPU_ROLLED
    for (uint32_t t = 1; t < tiles; t++) {
        wait_full(s->key_full, t);
        wait_full(s->value_full, t - 1);
        gpu_wg_hold(out, VALUES / 2);
        gpu_wg_begin();
        scores(s, t % 2, group, score);
        add_values(s, (t - 1) % 2, p, out);
        gpu_wg_wait(1);
        gpu_wg_hold(score, HIGH / 2);
        say_empty(s->key_empty, t);
        weigh(a, m, m->from + t * HIGH, row, score, top, total, factor);
        gpu_wg_wait(0);
        gpu_wg_hold(out, VALUES / 2);
        say_empty(s->value_empty, t - 1);
        take_weights(score, factor, p, out);
    }
    wait_full(s->value_full, tiles - 1);
    gpu_wg_hold(out, VALUES / 2);
    gpu_wg_begin();
    add_values(s, (tiles - 1) % 2, p, out);
    gpu_wg_wait(0);
    gpu_wg_hold(out, VALUES / 2);
    GPU_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        total[k] = quad_sum(total[k]);
        if (gpu_lane() % 4 == 0)
            mla_put_state(a, m, row + 8 * k, top[k], total[k]);
        end_row(a, m, row + 8 * k, k, out, gpu_rcp(total[k]));
    }
}

GPU_KERNEL(weir_mla_attend_wg, gpu_mla_prefill, GPU_MLA_ATTEND_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_attend_wg_shared, s);
    const struct mla_rows m = mla_rows_of(&a, HIGH);
    const uint32_t tiles = m.from < m.end ? (m.end - m.from + HIGH - 1) / HIGH : 0;
    if (gpu_thread() == 0)
        for (uint32_t i = 0; i < 2; i++) {
            gpu_gate_set(&s->key_full[i], BRINGING);
            gpu_gate_set(&s->value_full[i], BRINGING);
            gpu_gate_set(&s->key_empty[i], ATTENDING / GPU_WAVE);
            gpu_gate_set(&s->value_empty[i], ATTENDING / GPU_WAVE);
        }
    gpu_barrier();
    if (!tiles) { /* all of these rows are done */
        gpu_wait_previous();
        return;
    }
    if (gpu_wave() >= ATTENDING / GPU_WAVE) {
        gpu_fewer_registers(40);
        bring(&a, s, &m, tiles);
    } else {
        gpu_more_registers(232);
        gpu_wait_previous();
        attend(&a, s, &m, tiles);
    }
}

#else

GPU_KERNEL(weir_mla_attend_wg, gpu_mla_prefill, GPU_MLA_ATTEND_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
