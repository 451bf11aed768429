/* mla_prefill.c: latent attention of many rows, expanded: history out of its pages as rows of BF16,
 * and, behind the product that makes keys and values of them, the attention of tiles of 64 rows
 * with a running softmax. A wave has 16 rows of a tile. Invariant that bites: positions beyond the
 * last are zero in a tile, as in mla.h; and a row may see nothing of a tile, or of a piece, so that
 * its maximum stays below all. */
#include "ops/gpu/kernels/mla_prefill.h"

enum {
    PAGE = 64,
    GATHER_THREADS = 256,
    TILE = 16,
    HIGH = 64, /* rows of a tile, and positions */
    THREADS = HIGH / TILE * GPU_WAVE,
    KEY_ROW = GPU_KEY_MOST + 8,
    VALUE_ROW = GPU_VALUE_MOST + 8,
    P_ROW = HIGH + 8,
    PIECES = GPU_KEY_MOST / 32,
    VALUES = GPU_VALUE_MOST / TILE,
    SLOTS = GPU_WAVE == 32 ? 2 : 4, /* rows of a product that a lane has sums of */
};

/* Eight values of a record from k on; FP8 codes with their scale. */
GPU_FN struct gpu_u4 record_values(const struct gpu_mla_prefill *a, const uint8_t *record,
                                   uint32_t k) {
    if (!a->fp8)
        return gpu_load16(record + k * 2);
    if (k >= a->latent) {
        const uint32_t scales = (a->latent + GPU_KV_SCALED - 1) / GPU_KV_SCALED * 4;
        const uint32_t *w = (const uint32_t *)(record + a->latent + scales + (k - a->latent) * 2);
        const struct gpu_u4 v = {w[0], w[1], w[2], w[3]};
        return v;
    }
    const uint32_t *codes = (const uint32_t *)(record + k);
    const float scale = ((const float *)(record + a->latent))[k / GPU_KV_SCALED];
    float f[8];
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        f[e] = gpu_from_e4m3(codes[e / 4] >> e % 4 * 8 & 0xFFu) * scale;
    return narrow_bf16x8(f);
}

/* A block has a page of a span. */
GPU_KERNEL(weir_mla_gather, gpu_mla_prefill, GATHER_THREADS, 1) {
    uint32_t tile = gpu_block_x(), i = 0;
    gpu_wait_previous();
    gpu_launch_next();
    for (; i + 1 < a.n_spans; i++) {
        const uint32_t pages = (a.span[i].end - a.span[i].from + PAGE - 1) / PAGE;
        if (tile < pages)
            break;
        tile -= pages;
    }
    const struct gpu_mla_span *m = &a.span[i];
    const uint32_t first = m->from + tile * PAGE, width = a.latent + a.extra;
    const uint32_t n = m->end - first < PAGE ? m->end - first : PAGE;
    const uint8_t *page =
        a.history + (uint64_t)(uint32_t)a.pages[m->first_page + first / PAGE] * a.page_bytes;
    uint16_t *to = a.latents + (uint64_t)(m->at + tile * PAGE) * width;
    for (uint32_t k = gpu_thread(); k < n * (width / 8); k += GATHER_THREADS) {
        const uint32_t row = k / (width / 8), col = k % (width / 8) * 8;
        gpu_store16(to + (uint64_t)row * width + col,
                    record_values(&a, page + (uint64_t)row * a.record_bytes, col));
    }
}

/* Queries of the tile's rows to where keys will be; zero beyond the last row and value. */
GPU_FN void take_queries(const struct gpu_mla_prefill *a, struct gpu_mla_attend_shared *s,
                         const struct mla_rows *m) {
    const uint32_t width = a->nope + a->extra, pieces = (width + 31) / 32 * 4;
    const struct gpu_u4 none = {0, 0, 0, 0};
    for (uint32_t i = gpu_thread(); i < HIGH * pieces; i += THREADS) {
        const uint32_t r = i / pieces, k = i % pieces * 8;
        const bool there = r < m->rows && k < width;
        const uint16_t *q = a->q;
        if (there)
            q += (uint64_t)(m->row0 + r) * a->q_stride + m->head * width + k;
        gpu_store16(&s->key[r][k], there ? gpu_load16(q) : none);
    }
}

/* Asks for keys and values of 64 positions from `from` on, those below `end`. */
GPU_FN void fetch(const struct gpu_mla_prefill *a, struct gpu_mla_attend_shared *s,
                  const struct mla_rows *m, uint32_t from) {
    const uint32_t keys = (a->nope + a->extra + 31) / 32 * 4;
    const uint32_t pieces = keys + (a->v_dim + 15) / 16 * 2, head = m->head * (a->nope + a->v_dim);
    for (uint32_t i = gpu_thread(); i < HIGH * pieces; i += THREADS) {
        const uint32_t at = i / pieces, k = i % pieces * 8;
        const uint64_t row = m->span->at + (from - m->from) + at;
        const uint16_t *value = a->kv + row * a->kv_stride + head, *from16 = a->kv;
        uint16_t *to = k < keys * 8 ? &s->key[at][k] : &s->value[at][k - keys * 8];
        bool there = from + at < m->end;
        if (k < a->nope)
            from16 = value + k;
        else if (k < a->nope + a->extra)
            from16 = a->latents + row * (a->latent + a->extra) + a->latent + k - a->nope;
        else if (k < keys * 8)
            there = false;
        else {
            there = there && k - keys * 8 < a->v_dim;
            from16 = value + a->nope + k - keys * 8;
        }
        gpu_copy16(to, there ? from16 : a->kv, there);
    }
    gpu_copy_commit();
}

/* Which of a lane's rows sum i is of. */
GPU_FN uint32_t slot_of(uint32_t i) {
    return GPU_WAVE == 32 ? i / 2 % 2 : i;
}
/* The row of the tile. */
GPU_FN uint32_t row_of_slot(uint32_t slot) {
    return gpu_wave() * TILE + gpu_sum_row(GPU_WAVE == 32 ? slot * 2 : slot);
}
/* Over the lanes that share their rows. */
GPU_FN float lanes_max(float v) {
    GPU_UNROLL
    for (uint32_t m = GPU_WAVE == 32 ? 2 : 8; m > 0; m /= 2) {
        const float other = gpu_shuffle_xor(v, m);
        v = other > v ? other : v;
    }
    return v;
}
GPU_FN float lanes_sum(float v) {
    GPU_UNROLL
    for (uint32_t m = GPU_WAVE == 32 ? 2 : 8; m > 0; m /= 2)
        v += gpu_shuffle_xor(v, m);
    return v;
}

/* Scores become weights, in shared memory; what was summed shrinks. */
GPU_FN void weigh(const struct gpu_mla_prefill *a, struct gpu_mla_attend_shared *s,
                  const struct mla_rows *m, uint32_t from, struct gpu_sums *score,
                  struct gpu_sums *out, float *top, float *total) {
    float factor[SLOTS], base[SLOTS], sum[SLOTS];
    GPU_UNROLL
    for (uint32_t k = 0; k < SLOTS; k++) {
        const uint32_t last = m->pos0 + row_of_slot(k);
        float most = top[k];
        GPU_UNROLL
        for (uint32_t t = 0; t < HIGH / TILE; t++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_SUMS; i++) {
                const uint32_t at = from + t * TILE + gpu_sum_col(i);
                if (slot_of(i) != k)
                    continue;
                score[t].at[i] = at <= last && at < m->end ? score[t].at[i] * a->scale * 1.44269504f
                                                           : -GPU_INFINITY;
                most = score[t].at[i] > most ? score[t].at[i] : most;
            }
        }
        most = lanes_max(most);
        base[k] = most > -GPU_INFINITY ? most : 0;
        factor[k] = gpu_exp2(top[k] - base[k]);
        top[k] = most;
        sum[k] = 0;
    }
    GPU_UNROLL
    for (uint32_t t = 0; t < HIGH / TILE; t++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++) {
            const uint16_t p = gpu_to_bf16(gpu_exp2(score[t].at[i] - base[slot_of(i)]));
            s->p[gpu_wave()][gpu_sum_row(i)][t * TILE + gpu_sum_col(i)] = p;
            sum[slot_of(i)] += gpu_from_bf16(p);
        }
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < SLOTS; k++)
        total[k] = total[k] * factor[k] + lanes_sum(sum[k]);
    GPU_UNROLL
    for (uint32_t c = 0; c < VALUES; c++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++)
            out[c].at[i] *= factor[slot_of(i)];
    }
}

/* What rows have summed before this piece, or nothing. */
GPU_FN void begin_rows(const struct gpu_mla_prefill *a, const struct mla_rows *m,
                       struct gpu_sums *out, float *top, float *total) {
    GPU_UNROLL
    for (uint32_t k = 0; k < SLOTS; k++) {
        const uint32_t r = row_of_slot(k);
        const bool more = mla_goes_on(m, r);
        const float *state = a->state + (more ? mla_state_at(a, m, r) * 2 : 0);
        top[k] = more ? state[0] : -GPU_INFINITY;
        total[k] = more ? state[1] : 0;
    }
    GPU_UNROLL
    for (uint32_t c = 0; c < VALUES; c++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++) {
            const uint32_t r = row_of_slot(slot_of(i)), col = c * TILE + gpu_sum_col(i);
            out[c].at[i] = 0;
            if (col < a->v_dim && mla_goes_on(m, r))
                out[c].at[i] = a->sum[mla_state_at(a, m, r) * a->v_dim + col];
        }
    }
}

/* Results go through shared memory, as pairs of columns lie in one lane with waves of 32 alone. */
GPU_FN void end_rows(const struct gpu_mla_prefill *a, struct gpu_mla_attend_shared *s,
                     const struct mla_rows *m, const struct gpu_sums *out, const float *top,
                     const float *total) {
    float *band = (float *)&s->key[0][0] + gpu_wave() * TILE * (2 * TILE + 4);
    GPU_UNROLL
    for (uint32_t k = 0; k < SLOTS; k++)
        mla_put_state(a, m, row_of_slot(k), top[k], total[k]);
    GPU_UNROLL
    for (uint32_t c = 0; c < VALUES; c++) {
        gpu_barrier(); /* keys, or the band before, are no longer read */
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_SUMS; i++) {
            band[gpu_sum_row(i) * (TILE + 1) + gpu_sum_col(i)] = out[c].at[i];
            if (gpu_sum_col(i) == 0)
                band[gpu_sum_row(i) * (TILE + 1) + TILE] = gpu_rcp(total[slot_of(i)]);
        }
        gpu_barrier();
        for (uint32_t i = gpu_lane(); i < TILE * TILE / 2; i += GPU_WAVE) {
            const float *row = band + i / (TILE / 2) * (TILE + 1);
            const uint32_t col = i % (TILE / 2) * 2;
            mla_put_pair(a, m, gpu_wave() * TILE + i / (TILE / 2), c * TILE + col, row[col],
                         row[col + 1], row[TILE]);
        }
    }
}

GPU_KERNEL(weir_mla_attend, gpu_mla_prefill, THREADS, 1) {
    GPU_SHARED(struct gpu_mla_attend_shared, s);
    const struct mla_rows m = mla_rows_of(&a, HIGH);
    const uint32_t pieces = (a.nope + a.extra + 31) / 32, values = (a.v_dim + 15) / 16;
    gpu_wait_previous();
    gpu_launch_next();
    if (m.from >= m.end)
        return; /* all of these rows are done */
    take_queries(&a, s, &m);
    gpu_barrier();
    struct gpu_strips q[PIECES];
    struct gpu_sums out[VALUES];
    float top[SLOTS], total[SLOTS];
    GPU_UNROLL
    for (uint32_t k = 0; k < PIECES; k++)
        if (k < pieces)
            gpu_strips_shared(&q[k], &s->key[gpu_wave() * TILE][k * 32], KEY_ROW);
    begin_rows(&a, &m, out, top, total);
    GPU_ROLLED
    for (uint32_t from = m.from; from < m.end; from += HIGH) {
        struct gpu_sums score[HIGH / TILE];
        gpu_barrier(); /* nobody reads what comes now */
        fetch(&a, s, &m, from);
        gpu_copy_wait(0);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t t = 0; t < HIGH / TILE; t++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_SUMS; i++)
                score[t].at[i] = 0;
            GPU_UNROLL
            for (uint32_t k = 0; k < PIECES; k++) {
                struct gpu_strips key;
                if (k >= pieces)
                    continue; /* the same for all */
                gpu_strips_shared(&key, &s->key[t * TILE][k * 32], KEY_ROW);
                gpu_mma16(&score[t], &q[k], &key);
            }
        }
        weigh(&a, s, &m, from, score, out, top, total);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t k = 0; k < HIGH; k += 32) {
            struct gpu_strips p;
            gpu_strips_shared(&p, &s->p[gpu_wave()][0][k], P_ROW);
            GPU_UNROLL
            for (uint32_t c = 0; c < VALUES; c++) {
                struct gpu_strips v;
                if (c >= values)
                    continue;
                gpu_strips_transposed(&v, &s->value[k][c * TILE], VALUE_ROW);
                gpu_mma16(&out[c], &p, &v);
            }
        }
    }
    end_rows(&a, s, &m, out, top, total);
}
