/* mla_prefill.c: latent attention of many rows, expanded: a page's keys and values are formed once
 * per head and used by all rows. Called through the columns of this folder. It walks the history
 * page by page with an online softmax: scores of a page, new maximum, what was summed so far scaled
 * down, values added. Pages are absolute, so a row's sums do not depend on how its sequence was cut
 * into steps, and no buffer grows with the history.
 * Invariant that bites: the last page holds leftovers behind the last position; they may be NaN and
 * are neither scored nor weighted. */
#include "ops/cpu/mla.h"

/* ----------------------------------------------------------------------------------- softmax */

/* Running softmax of one row and head. */
struct online {
    float top, total;
};

/* Takes n scores (times `scale`) of one page, leaves their weights in place, gives the factor by
 * which everything summed so far shrinks. */
static float online_take(struct online *s, float *score, uint32_t n, float scale) {
    vf top = vset(-INFINITY), sum = vset(0);
    uint32_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf x = vload(score + i) * vset(scale);
        vstore(score + i, x);
        top = vmax(top, x);
    }
    float now = vtop(top);
    for (; i < n; i++) {
        score[i] *= scale;
        now = score[i] > now ? score[i] : now;
    }
    now = now > s->top ? now : s->top;
    for (i = 0; i < n; i += VL) {
        vm m = vmask(n - i);
        vf p = vexp(vloadm(score + i, m) - vset(now));
        vstorem(score + i, m, p);
        sum = sum + vloadm(score + i, m);
    }
    /* The first page finds top = -inf: exp(-inf) = 0. */
    float keep = s->top == now ? 1.0f : expf(s->top - now);
    s->total = s->total * keep + vsum(sum);
    s->top = now;
    return keep;
}

/* ----------------------------------------------------------------------------------- prefill */

enum {
    ROWS = 64,      /* rows scored at a time */
    MIN_ROWS = 128, /* a long sequence is not cut into smaller pieces: each expands its history */
};

struct expanded {
    float *key;            /* [PAGE_TOKENS][nope+rope] */
    float *value;          /* [PAGE_TOKENS][v width] */
    float *history;        /* [PAGE_TOKENS][kv_stride], a page widened */
    float *score;          /* [ROWS][PAGE_TOKENS] */
    float *sum;            /* [rows][v width] */
    struct online *online; /* [rows] */
    void *blocks;
    uint32_t v_width; /* v_dim in whole vectors */
};

static void expanded_take(struct expanded *s, const struct op_mla *a, uint32_t rows,
                          unsigned char **at) {
    s->v_width = round_up(a->v_dim, 16);
    s->key = carve(at, PAGE_TOKENS * (size_t)(a->nope_dim + a->rope_dim) * sizeof(float));
    s->value = carve(at, PAGE_TOKENS * (size_t)s->v_width * sizeof(float));
    s->history = carve(at, PAGE_TOKENS * (size_t)kv_stride(a->pool) * sizeof(float));
    s->score = carve(at, ROWS * PAGE_TOKENS * sizeof(float));
    s->sum = carve(at, (size_t)rows * s->v_width * sizeof(float));
    s->online = carve(at, rows * sizeof *s->online);
    s->blocks = carve(at, cpu_dot_scratch_bytes());
}

size_t cpu_mla_prefill_scratch(const struct op_mla *a, uint32_t max_rows) {
    size_t v = round_up(a->v_dim, 16);
    size_t floats = PAGE_TOKENS * (a->nope_dim + a->rope_dim + v + kv_stride(a->pool) + ROWS) +
                    max_rows * (v + 2);
    return floats * sizeof(float) + cpu_dot_scratch_bytes() + 8 * 64;
}

/* Keys and values of n positions from t on for one head. */
static void expand_page(const struct op_mla *a, struct expanded *s, const int32_t *pages,
                        uint32_t t, uint32_t n, uint32_t head) {
    uint32_t stride = kv_stride(a->pool), key_dim = a->nope_dim + a->rope_dim;
    const float *x[PAGE_TOKENS];
    float *key[PAGE_TOKENS], *value[PAGE_TOKENS];
    kv_widen(a->pool, a->kv_lora, a->layer, pages, t, n, s->history);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = s->history + (size_t)i * stride;
        key[i] = s->key + (size_t)i * key_dim;
        value[i] = s->value + (size_t)i * s->v_width;
        memcpy(key[i] + a->nope_dim, x[i] + a->kv_lora, a->rope_dim * sizeof(float));
    }
    struct mat kv_b = mat_from(mat_of(&a->kv_b), (size_t)head * (a->nope_dim + a->v_dim));
    struct mat v = mat_from(kv_b, a->nope_dim);
    cpu_dot(&kv_b, 0, a->nope_dim, x, key, n, false, s->blocks);
    cpu_dot(&v, 0, a->v_dim, x, value, n, false, s->blocks);
}

/* Rows [r0, r1) of the sequence (at most ROWS) over the expanded page of positions t .. t+63. */
static void attend_page(const struct op_mla *a, const struct batch_seq *seq, struct expanded *s,
                        uint32_t head, uint32_t r0, uint32_t r1, uint32_t t, uint32_t first) {
    uint32_t key_dim = a->nope_dim + a->rope_dim, last = seq->pos0 + r1 - 1;
    uint32_t n = last - t + 1 < PAGE_TOKENS ? last - t + 1 : PAGE_TOKENS;
    struct mat keys = {(const unsigned char *)s->key, NULL, DTYPE_F32, key_dim, key_dim * 4};
    const float *q[ROWS] = {0};
    float *score[ROWS] = {0};
    for (uint32_t r = r0; r < r1; r++) {
        q[r - r0] = tensor_row(a->q, seq->row0 + (size_t)r) + (size_t)head * key_dim;
        score[r - r0] = s->score + (size_t)(r - r0) * PAGE_TOKENS;
    }
    cpu_dot(&keys, 0, n, q, score, r1 - r0, false, s->blocks);
    for (uint32_t r = r0; r < r1; r++) {
        float *p = score[r - r0], *sum = s->sum + (size_t)(r - first) * s->v_width;
        uint32_t sees = seq->pos0 + r - t + 1; /* causal */
        sees = sees < n ? sees : n;
        vf keep = vset(online_take(&s->online[r - first], p, sees, a->scale));
        for (uint32_t c = 0; c < s->v_width; c += VL)
            vstore(sum + c, vload(sum + c) * keep);
        memset(p + sees, 0, (PAGE_TOKENS - sees) * sizeof(float));
    }
    cpu_gemm(r1 - r0, s->v_width, n, (struct gemm_a){s->score, PAGE_TOKENS, 1}, s->value,
             s->v_width, s->sum + (size_t)(r0 - first) * s->v_width, s->v_width, 1);
}

/* One head for rows [r0, r1) of a sequence. */
static void expanded_rows(const struct op_mla *a, const struct batch_seq *seq, uint32_t head,
                          uint32_t r0, uint32_t r1, struct expanded *s) {
    memset(s->sum, 0, (size_t)(r1 - r0) * s->v_width * sizeof(float));
    /* Lanes beyond v_dim are never written by the products. */
    memset(s->value, 0, PAGE_TOKENS * (size_t)s->v_width * sizeof(float));
    for (uint32_t r = r0; r < r1; r++)
        s->online[r - r0] = (struct online){-INFINITY, 0};
    uint32_t n = seq->pos0 + r1;
    for (uint32_t t = 0; t < n; t += PAGE_TOKENS) {
        expand_page(a, s, seq->pages, t, n - t < PAGE_TOKENS ? n - t : PAGE_TOKENS, head);
        uint32_t from = t > seq->pos0 + r0 ? t - seq->pos0 : r0; /* rows that see this page */
        for (uint32_t r = from; r < r1; r += ROWS)
            attend_page(a, seq, s, head, r, r1 - r < ROWS ? r1 : r + ROWS, t, r0);
    }
    for (uint32_t r = r0; r < r1; r++) {
        size_t row = seq->row0 + (size_t)r;
        gate_out(s->sum + (size_t)(r - r0) * s->v_width, s->online[r - r0].total,
                 a->g.data ? tensor_row(a->g, row) + (size_t)head * a->v_dim : NULL,
                 tensor_row(a->out, row) + (size_t)head * a->v_dim, a->v_dim);
    }
}

/* Pieces of a sequence's rows: one, unless there are fewer (sequence, head) pairs than members. */
static uint32_t pieces_of(const struct batch_seq *seq, uint32_t heads, uint32_t members) {
    uint32_t wanted = (members + heads - 1) / heads, most = (seq->rows + MIN_ROWS - 1) / MIN_ROWS;
    return wanted < most ? wanted : most;
}

void cpu_mla_prefill(const struct op_mla *a, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, a->which);
    uint64_t total = 0, begin = 0;
    for (uint32_t i = seqs.begin; i < seqs.end; i++)
        total += (uint64_t)a->heads * b->seqs[i].rows;
    uint64_t lo = total * work.index / work.count, hi = total * (work.index + 1) / work.count;
    for (uint32_t i = seqs.begin; i < seqs.end; i++) {
        const struct batch_seq *seq = &b->seqs[i];
        uint32_t pieces = pieces_of(seq, a->heads, work.count);
        for (uint32_t unit = 0; unit < a->heads * pieces; unit++) {
            struct span rows =
                work_span((struct work){.index = unit % pieces, .count = pieces}, seq->rows);
            if (begin >= lo && begin < hi) {
                unsigned char *at = work.scratch;
                struct expanded s;
                expanded_take(&s, a, rows.end - rows.begin, &at);
                expanded_rows(a, seq, unit / pieces, rows.begin, rows.end, &s);
            }
            begin += rows.end - rows.begin;
        }
    }
}
