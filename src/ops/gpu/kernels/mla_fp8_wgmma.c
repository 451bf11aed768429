/* mla_fp8_wgmma.c: latent attention of single tokens over FP8 history by products of warpgroups,
 * for latents of 512 with 64 more values. Positions are the 64 rows of a product, 16 heads its
 * columns. Four further waves copy pages as they are into stages of shared memory; three
 * warpgroups take a page each in turn and keep maxima and sums of their own, which are put together
 * at the end, so that one multiplies while others weigh or move bits.
 *
 * Both products take the codes from registers. Scores are products of F16 numbers, which codes
 * become in one instruction a pair; queries are multiplied by what brings the largest value of a
 * head close to the largest F16 number, and so lose nothing. For sums the scales, which may be of
 * any order, ask for BF16 weights. There the bits of codes are moved and nothing else is done to
 * them: exponents begin at 2^-7 with codes and at 2^-127 with BF16, so what is multiplied are codes
 * times 2^-120, and small ones are denormal numbers; weights are multiplied by 2^100. A sum does
 * not care in which order its terms are named: a lane's terms are those that lie side by side in
 * memory, and queries lie in shared memory in the order that follows. What stands behind the end of
 * a history does no harm: a score is a row's own, a code so moved cannot become infinite or NaN,
 * and scales are taken for zero there.
 *
 * A score is the sum of four products, each times the scale of its quarter of the latents, and
 * weights are multiplied by the scales of the quarter that they weigh. Invariant that bites:
 * whoever writes shared memory that a product reads says gpu_wg_seen() before the meeting; what
 * lane 0 says of a wave it says where the wave has met. */
#include "ops/gpu/kernels/mla_share.h"

enum {
    HEADS = GPU_MLA_HEADS,
    GROUPS = GPU_MLA_FP8_GROUPS,
    GROUP = 128,
    ATTEND = GROUPS * GROUP, /* threads; those behind them copy */
    PRODUCERS = GPU_MLA_FP8_WG_THREADS - ATTEND,
    LATENT = GPU_LATENT_MOST,
    EXTRA = GPU_EXTRA_MOST,
    QUARTER = GPU_KV_SCALED,
    QUARTERS = LATENT / QUARTER, /* of the latents, with a scale each */
    RECORD = LATENT + QUARTERS * 4 + EXTRA * 2,
    STAGES = GPU_MLA_FP8_STAGES,
    PAGE = 64,
    PIECES = (LATENT + EXTRA) / 8, /* of a query */
    COLUMNS = 4,                   /* of a lane, of a product's 16 */
    PARTS = LATENT / 64,           /* sums of 64 latents, two a quarter */
    LIFT = 100,                    /* of weights, as an exponent */
};

#ifdef GPU_WARPGROUPS

/* Pages come as they are, whatever stands behind the end. */
GPU_FN void fill(const struct gpu_mla_decode *a, struct gpu_mla_fp8_wg_shared *s,
                 const struct mla_share *m) {
    const int32_t *pages = a->pages + m->seq.first_page + m->begin / PAGE;
    const uint32_t tiles = (m->end - m->begin + PAGE - 1) / PAGE, thread = gpu_thread() - ATTEND;
    int32_t page = pages[0];
    GPU_ROLLED
    for (uint32_t t = 0; t < tiles; t++) {
        const uint8_t *from = a->kv + (uint64_t)(uint32_t)page * a->page_bytes + thread * 16;
        uint8_t *to = s->raw[t % STAGES] + thread * 16;
        page = t + 1 < tiles ? pages[t + 1] : 0;
        gpu_gate_wait(&s->empty[t % STAGES], (t / STAGES + 1) % 2);
        GPU_UNROLL
        for (uint32_t i = 0; i < PAGE * RECORD / 16; i += PRODUCERS)
            if (i + PRODUCERS <= PAGE * RECORD / 16 || i + thread < PAGE * RECORD / 16)
                gpu_copy16(to + i * 16, from + i * 16, true);
        gpu_gate_arrive_copied(&s->full[t % STAGES]);
    }
}

/* A warpgroup's part of the block's barriers; one more is of all of them. */
GPU_FN void meet_group(uint32_t group) {
    if (group == 0)
        gpu_part_barrier(1, GROUP);
    else if (group == 1)
        gpu_part_barrier(2, GROUP);
    else
        gpu_part_barrier(3, GROUP);
}
GPU_FN void meet_all(void) {
    gpu_part_barrier(4, ATTEND);
}

/* Codes 0, 2 and 1, 3 of four as BF16 numbers, times 2^-120. */
GPU_FN uint32_t even_codes(uint32_t w) {
    return (w << 4 & 0x07F007F0u) | (w << 8 & 0x80008000u);
}
GPU_FN uint32_t odd_codes(uint32_t w) {
    return (w >> 4 & 0x07F007F0u) | (w & 0x80008000u);
}

/* ------------------------------------------------------------------------------------ queries */

GPU_FN void put_pair(struct gpu_mla_fp8_wg_shared *s, uint32_t h, uint32_t k, uint32_t pair) {
    uint16_t *to = &s->q[k / 64][0][0] + gpu_panel(h, k % 64 / 8) + k % 8;
    *(uint32_t *)(void *)to = pair;
}
/* Eight values of head h's query where products find them. Of the 16 bytes that lane j of four
 * reads of every 32 of a quarter of a record, a step of a product has four codes: 0 and 1 as its
 * terms 2j and 2j + 1, 2 and 3 eight further. Of the extra values it has two pairs. */
GPU_FN void put_query(struct gpu_mla_fp8_wg_shared *s, uint32_t h, uint32_t piece,
                      struct gpu_u4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    const bool latents = piece < LATENT / 8;
    const uint32_t chunk = latents ? piece / 2 % 8 : piece % 8, j = chunk / 2;
    const float lift = s->lift[h];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t step = latents ? piece / 16 * 8 + chunk % 2 * 4 + piece % 2 * 2 + i / 2
                                      : LATENT / 16 + chunk % 2 * 2 + i / 2;
        const uint32_t lifted =
            gpu_f16_pair(gpu_bf16_lo(word[i]) * lift, gpu_bf16_hi(word[i]) * lift);
        put_pair(s, h, step * 16 + i % 2 * 8 + j * 2, latents ? lifted : word[i]);
    }
}
/* The largest magnitude of four pairs of BF16. */
GPU_FN float most_of(struct gpu_u4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    float most = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        most = gpu_max(
            most, gpu_max(gpu_bf16_lo(word[i] & 0x7FFF7FFFu), gpu_bf16_hi(word[i] & 0x7FFF7FFFu)));
    return most;
}
/* What queries are multiplied by, powers of two, from the largest value of each piece. */
GPU_FN void find_lifts(struct gpu_mla_fp8_wg_shared *s, const float *most) {
    enum { LATENT_PIECES = LATENT / 8, LARGEST = 127 + 14 };
    for (uint32_t h = gpu_wave(); h < HEADS; h += ATTEND / GPU_WAVE) {
        float all = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < LATENT_PIECES; i += GPU_WAVE)
            all = gpu_max(all, most[h * PIECES + i + gpu_lane()]);
        const uint32_t exponent = gpu_as_u32(gpu_wave_max(all)) >> 23;
        const uint32_t lift = LARGEST + 127 - exponent, at = lift < 254 ? lift : 253;
        if (gpu_lane() == 0) {
            s->lift[h] = gpu_as_f32(at << 23);
            s->sunk[h] = gpu_as_f32((254 - at) << 23);
        }
    }
}
/* Queries of the block's heads, zero where there is no head, all asked for at a time. */
GPU_FN void take_queries(const struct gpu_mla_decode *a, struct gpu_mla_fp8_wg_shared *s,
                         const struct mla_share *m) {
    enum { EACH = (HEADS * PIECES + ATTEND - 1) / ATTEND };
    const uint16_t *qa = a->qa + (uint64_t)m->seq.row * a->qa_stride,
                   *q = a->q + (uint64_t)m->seq.row * a->q_stride + a->nope;
    struct gpu_u4 v[EACH];
    float *most = (float *)(void *)s->p; /* free until there are weights */
    GPU_UNROLL
    for (uint32_t u = 0; u < EACH; u++) {
        const uint32_t i = u * ATTEND + gpu_thread(), head = m->head0 + i / PIECES,
                       piece = i % PIECES;
        const struct gpu_u4 none = {0, 0, 0, 0};
        v[u] = none;
        if (i < HEADS * PIECES && head < a->heads)
            v[u] = gpu_load16(piece < LATENT / 8 ? qa + head * LATENT + piece * 8
                                                 : q + head * a->q_step + piece * 8 - LATENT);
    }
    GPU_UNROLL
    for (uint32_t u = 0; u < EACH; u++) {
        const uint32_t i = u * ATTEND + gpu_thread();
        if (i < HEADS * PIECES)
            most[i] = most_of(v[u]);
    }
    meet_all();
    find_lifts(s, most);
    meet_all();
    GPU_UNROLL
    for (uint32_t u = 0; u < EACH; u++) {
        const uint32_t i = u * ATTEND + gpu_thread();
        if (i < HEADS * PIECES)
            put_query(s, i / PIECES, i % PIECES, v[u]);
    }
}

/* --------------------------------------------------------------------------------- attending */

/* What a warpgroup has so far. A lane's columns: gpu_wg_col of its sums 0, 1, 4 and 5. */
struct state {
    float sum[PARTS][HEADS / 2];
    float top[COLUMNS], total[COLUMNS]; /* total: of the lane's rows, times 2^LIFT */
};
GPU_FN uint32_t column(uint32_t i) {
    return i / 4 * 2 + i % 2;
}
GPU_FN uint32_t head_of(uint32_t column) {
    return gpu_wg_col(column / 2 * 4 + column % 2);
}

/* Sixteen bytes of each of a lane's two records. */
struct two_rows {
    struct gpu_u4 first, second;
};
GPU_FN struct two_rows bytes_of_rows(const uint8_t *record) {
    const struct two_rows x = {gpu_load16(record), gpu_load16(record + 8 * RECORD)};
    return x;
}
/* Codes of both records as the rows of a step. */
GPU_FN struct gpu_u4 codes_of_rows(uint32_t first, uint32_t second) {
    const struct gpu_u4 v = {gpu_f16_codes(first, false), gpu_f16_codes(second, false),
                             gpu_f16_codes(first, true), gpu_f16_codes(second, true)};
    return v;
}

/* Scores of a page, times `by`, base 2; of its positions those before `n`. While products of some
 * steps are under way, the next ones' codes are moved. */
GPU_FN void score(const struct gpu_mla_fp8_wg_shared *s, const uint8_t *page, uint32_t n, float by,
                  const float (*scale)[QUARTERS], float *out) {
    const uint8_t *record = page + gpu_wg_row(0) * RECORD + gpu_lane() % 4 * 32;
    float lifted[HEADS / 2] = {0, 0, 0, 0, 0, 0, 0, 0};
    gpu_wg_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const struct two_rows x = bytes_of_rows(record + LATENT + QUARTERS * 4 + i * 16);
        const struct gpu_u4 lower = {x.first.x, x.second.x, x.first.y, x.second.y},
                            upper = {x.first.z, x.second.z, x.first.w, x.second.w};
        gpu_wg_rows_of(out, HEADS, lower, &s->q[0][0][0], LATENT / 16 + 2 * i, i > 0);
        gpu_wg_rows_of(out, HEADS, upper, &s->q[0][0][0], LATENT / 16 + 2 * i + 1, true);
    }
    gpu_wg_commit();
    GPU_UNROLL
    for (uint32_t g = 0; g < QUARTERS; g++) {
        float part[HEADS / 2];
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const struct two_rows x = bytes_of_rows(record + g * QUARTER + i * 16);
            const uint32_t first[4] = {x.first.x, x.first.y, x.first.z, x.first.w},
                           second[4] = {x.second.x, x.second.y, x.second.z, x.second.w};
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k += 2) {
                const struct gpu_u4 even = codes_of_rows(first[k], second[k]),
                                    odd = codes_of_rows(first[k + 1], second[k + 1]);
                const uint32_t step = g * 8 + i * 4 + k;
                gpu_wg_begin();
                gpu_wg_rows_of_f16(part, HEADS, even, &s->q[0][0][0], step, i + k > 0);
                gpu_wg_rows_of_f16(part, HEADS, odd, &s->q[0][0][0], step + 1, true);
                gpu_wg_commit();
                gpu_wg_wait(1);
            }
        }
        gpu_wg_wait(0);
        gpu_wg_hold(part, HEADS / 2);
        GPU_UNROLL
        for (uint32_t i = 0; i < HEADS / 2; i++)
            lifted[i] += scale[i / 2 % 2][g] * part[i];
    }
    gpu_wg_hold(out, HEADS / 2);
    GPU_UNROLL
    for (uint32_t i = 0; i < HEADS / 2; i++)
        out[i] =
            gpu_wg_row(i) < n ? (out[i] + lifted[i] * s->sunk[gpu_wg_col(i)]) * by : -GPU_INFINITY;
}

/* Scores to weights, in place, with the warpgroup's maxima; `factor`: of what has been summed. */
GPU_FN void weigh(struct gpu_mla_fp8_wg_shared *s, uint32_t group, struct state *x, float *v,
                  float *factor) {
    float most[COLUMNS];
    GPU_UNROLL
    for (uint32_t c = 0; c < COLUMNS; c++) {
        const uint32_t i = c / 2 * 4 + c % 2;
        most[c] = gpu_max(gpu_max(x->top[c], v[i]), v[i + 2]);
        GPU_UNROLL
        for (uint32_t k = 4; k < GPU_WAVE; k *= 2)
            most[c] = gpu_max(most[c], gpu_shuffle_xor(most[c], k));
        if (gpu_lane() < 4)
            s->top[group][head_of(c)][gpu_wave() % 4] = most[c];
    }
    meet_group(group);
    GPU_UNROLL
    for (uint32_t c = 0; c < COLUMNS; c++) {
        float of[4];
        widen_f32x4(of, gpu_load16(s->top[group][head_of(c)]));
        most[c] = gpu_max(gpu_max(of[0], of[1]), gpu_max(of[2], of[3]));
        factor[c] = gpu_exp2_flush(x->top[c] - most[c]);
        x->top[c] = most[c];
        x->total[c] *= factor[c];
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < HEADS / 2; i++) {
        v[i] = gpu_exp2_flush(v[i] - (most[column(i)] - LIFT));
        x->total[column(i)] += v[i];
    }
}

/* Two positions' codes of two latents, side by side. */
GPU_FN uint32_t pair_lower(uint32_t x, uint32_t y) {
    return (x & 0xFFFFu) | y << 16;
}
GPU_FN uint32_t pair_upper(uint32_t x, uint32_t y) {
    return x >> 16 | (y & 0xFFFF0000u);
}
/* Of four latents of a quarter (a lane's) and the positions of step k, the rows of both parts. */
GPU_FN void codes_of_latents(const uint8_t *code, uint32_t k, struct gpu_u4 *out) {
    uint32_t w[4];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        w[i] = *(const uint32_t *)(const void *)(code + (k * 16 + i / 2 * 8 + i % 2) * RECORD);
    GPU_UNROLL
    for (uint32_t p = 0; p < 2; p++) {
        const uint32_t x = p ? pair_upper(w[0], w[1]) : pair_lower(w[0], w[1]),
                       y = p ? pair_upper(w[2], w[3]) : pair_lower(w[2], w[3]);
        out[p].x = even_codes(x);
        out[p].y = odd_codes(x);
        out[p].z = even_codes(y);
        out[p].w = odd_codes(y);
    }
}
/* Adds weights times latents. */
GPU_FN void add_latents(const struct gpu_mla_fp8_wg_shared *s, const uint8_t *page, uint32_t group,
                        struct state *x) {
    const uint8_t *code = page + gpu_lane() % 4 * 2 * RECORD + gpu_thread() % GROUP / 4 * 4;
    gpu_wg_hold(x->sum[0], PARTS * (HEADS / 2));
    GPU_UNROLL
    for (uint32_t run = 0; run < PAGE / 16 * QUARTERS; run++) {
        const uint32_t k = run / QUARTERS, g = run % QUARTERS;
        struct gpu_u4 a[2];
        codes_of_latents(code + g * QUARTER, k, a);
        gpu_wg_begin();
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++)
            gpu_wg_rows_of(x->sum[2 * g + i], HEADS, a[i], &s->p[group][0][0][0], g * 4 + k, true);
        gpu_wg_commit();
        gpu_wg_wait(1);
    }
    gpu_wg_wait(0);
    gpu_wg_hold(x->sum[0], PARTS * (HEADS / 2));
}

GPU_FN void attend_tile(const struct gpu_mla_decode *a, struct gpu_mla_fp8_wg_shared *s,
                        uint32_t group, uint32_t t, uint32_t n, struct state *x) {
    const uint8_t *page = s->raw[t % STAGES];
    float scale[2][QUARTERS], v[HEADS / 2], factor[COLUMNS];
    gpu_gate_wait(&s->full[t % STAGES], t / STAGES % 2);
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = gpu_wg_row(2 * r);
        widen_f32x4(scale[r], gpu_load16(page + row * RECORD + LATENT));
        GPU_UNROLL
        for (uint32_t g = 0; g < QUARTERS; g++)
            scale[r][g] = row < n ? scale[r][g] : 0;
    }
    score(s, page, n, a->scale * 1.44269504f, scale, v);
    weigh(s, group, x, v, factor);
    GPU_UNROLL
    for (uint32_t g = 0; g < QUARTERS; g++) {
        float scaled[HEADS / 2];
        GPU_UNROLL
        for (uint32_t i = 0; i < HEADS / 2; i++)
            scaled[i] = v[i] * scale[i / 2 % 2][g];
        gpu_wg_leave(&s->p[group][g][0][0], scaled);
    }
    GPU_UNROLL
    for (uint32_t p = 0; p < PARTS; p++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < HEADS / 2; i++)
            x->sum[p][i] *= factor[column(i)];
    }
    gpu_wg_seen();
    meet_group(group);
    add_latents(s, page, group, x);
    if (gpu_lane() == 0)
        gpu_gate_arrive(&s->empty[t % STAGES]);
}

/* The share's results: warpgroups leave their sums in the stages, and all put them together. A
 * lane has four latents of each quarter, of four heads. */
GPU_FN void put(const struct gpu_mla_decode *a, struct gpu_mla_fp8_wg_shared *s,
                const struct mla_share *m, uint32_t group, struct state *x) {
    enum { FOURS = COLUMNS * QUARTERS };
    float *left = (float *)(void *)s->raw;
    const uint64_t place = ((uint64_t)m->seq.row * a->heads + m->head0) * a->shares + gpu_block_x();
    GPU_UNROLL
    for (uint32_t c = 0; c < COLUMNS; c++) {
        GPU_UNROLL
        for (uint32_t k = 4; k < GPU_WAVE; k *= 2)
            x->total[c] += gpu_shuffle_xor(x->total[c], k);
        if (gpu_lane() < 4) {
            s->top[group][head_of(c)][gpu_wave() % 4] = x->top[c];
            s->total[group][head_of(c)][gpu_wave() % 4] = x->total[c];
        }
    }
    meet_all(); /* nobody reads stages */
    GPU_UNROLL
    for (uint32_t c = 0; c < COLUMNS; c++) {
        const uint32_t h = head_of(c), i = c / 2 * 4 + c % 2;
        float most = x->top[c], sum = 0;
        GPU_UNROLL
        for (uint32_t g = 0; g < GROUPS; g++)
            most = gpu_max(most, s->top[g][h][0]);
        GPU_UNROLL
        for (uint32_t g = 0; g < GROUPS; g++) {
            float total[4];
            widen_f32x4(total, gpu_load16(s->total[g][h]));
            sum += (total[0] + total[1] + total[2] + total[3]) *
                   gpu_exp2_flush(s->top[g][h][0] - most);
        }
        if (gpu_thread() < 4 && m->head0 + h < a->heads)
            a->lse[place + (uint64_t)h * a->shares] = most + (gpu_log2(sum) - LIFT);
        const float by = gpu_exp2_flush(x->top[c] - most) * (gpu_rcp(sum) * 0x1p120f);
        GPU_UNROLL
        for (uint32_t q = 0; q < QUARTERS; q++) {
            const float four[4] = {x->sum[2 * q][i] * by, x->sum[2 * q][i + 2] * by,
                                   x->sum[2 * q + 1][i] * by, x->sum[2 * q + 1][i + 2] * by};
            gpu_store16(
                left + (((group * FOURS + c * QUARTERS + q) * GROUP) + gpu_thread() % GROUP) * 4,
                f32x4(four));
        }
    }
    meet_all();
    for (uint32_t i = gpu_thread(); i < FOURS * GROUP; i += ATTEND) {
        const uint32_t lane = i % GROUP, q = i / GROUP % QUARTERS, c = i / GROUP / QUARTERS;
        const uint32_t h = c / 2 * 8 + lane % 4 * 2 + c % 2;
        float all[4] = {0, 0, 0, 0};
        GPU_UNROLL
        for (uint32_t g = 0; g < GROUPS; g++) {
            float f[4];
            widen_f32x4(f, gpu_load16(left + (g * FOURS * GROUP + i) * 4));
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                all[e] += f[e];
        }
        if (m->head0 + h < a->heads)
            gpu_store16(a->part + (place + (uint64_t)h * a->shares) * LATENT + q * QUARTER +
                            lane / 4 * 4,
                        f32x4(all));
    }
}

GPU_FN void attend(const struct gpu_mla_decode *a, struct gpu_mla_fp8_wg_shared *s,
                   const struct mla_share *m) {
    const uint32_t group = gpu_uniform(gpu_wave()) / 4, n = m->end - m->begin,
                   tiles = (n + PAGE - 1) / PAGE;
    struct state x;
    GPU_UNROLL
    for (uint32_t i = 0; i < PARTS * (HEADS / 2); i++)
        x.sum[i / (HEADS / 2)][i % (HEADS / 2)] = 0;
    GPU_UNROLL
    for (uint32_t c = 0; c < COLUMNS; c++) {
        x.top[c] = -GPU_INFINITY;
        x.total[c] = 0;
    }
    take_queries(a, s, m);
    gpu_wg_seen();
    meet_all();
    GPU_ROLLED
    for (uint32_t t = group; t < tiles; t += GROUPS)
        attend_tile(a, s, group, t, n - t * PAGE, &x);
    put(a, s, m, group, &x);
}

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, GPU_MLA_FP8_WG_THREADS, 1) {
    GPU_SHARED(struct gpu_mla_fp8_wg_shared, s);
    const struct mla_share m = mla_share_of(&a, HEADS);
    if (gpu_thread() == 0) {
        GPU_UNROLL
        for (uint32_t i = 0; i < STAGES; i++) {
            gpu_gate_set(&s->full[i], PRODUCERS);
            gpu_gate_set(&s->empty[i], GROUP / GPU_WAVE);
        }
    }
    gpu_barrier();
    if (m.begin >= m.seq.positions) {
        gpu_wait_previous();
        return;
    }
    /* The kernel directly before makes queries; history is of one before it. */
    if (gpu_wave() >= ATTEND / GPU_WAVE) {
        gpu_fewer_registers(24);
        fill(&a, s, &m);
        gpu_wait_previous();
    } else {
        gpu_more_registers(160);
        gpu_wait_previous();
        gpu_launch_next();
        attend(&a, s, &m);
    }
}

#else

GPU_KERNEL(weir_mla_split_fp8_16, gpu_mla_decode, GPU_MLA_FP8_WG_THREADS, 1) {
    (void)a;
    gpu_fail();
}

#endif
