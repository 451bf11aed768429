/* mla_prefill.c: latent attention of many rows, expanded: a page's keys and values are formed once
 * per head and used by all rows. Called through the columns of this folder. It walks the history
 * page by page with an online softmax: scores of a page, new maximum, what was summed so far scaled
 * down, values added. All of it is products whose right side lies as attention_product.c reads it:
 * a head's rows of kv_b are laid out so once, and keys of a page stand in columns. Pages are
 * absolute, so a row's sums do not depend on how its sequence was cut into steps, and no buffer
 * grows with the history. Invariant that bites: the last page holds leftovers behind the last
 * position; they may be NaN and are neither scored nor weighted. */
#include "ops/cpu/mla.h"

/* ----------------------------------------------------------------------------------- softmax */

/* Running softmax of one row and head. */
struct online {
    float top, total;
};

/* Takes n scores (times `scale`) of one page, leaves their weights in place, gives the factor by
 * which everything summed so far shrinks. Behind them there is room for whole vectors. */
static float online_take(struct online *s, float *score, uint32_t n, float scale) {
    uint32_t whole = n / VL * VL;
    vf top = vset(-INFINITY), sum = vset(0), by = vset(scale);
    if (whole < n) { /* what stands behind the last score is none */
        float last[VL];
        for (uint32_t i = 0; i < VL; i++)
            last[i] = whole + i < n ? score[whole + i] : -INFINITY;
        vstore(score + whole, vload(last));
    }
    for (uint32_t i = 0; i < n; i += VL) {
        vf x = vload(score + i) * by;
        vstore(score + i, x);
        top = vmax(top, x);
    }
    float now = vtop(top);
    now = now > s->top ? now : s->top;
    for (uint32_t i = 0; i < n; i += VL) {
        vf p = vexp(vload(score + i) - vset(now));
        vstore(score + i, p);
        sum = sum + p;
    }
    /* The first page finds top = -inf: exp(-inf) = 0. */
    float keep = s->top == now ? 1.0f : expf(s->top - now);
    s->total = s->total * keep + vsum(sum);
    s->top = now;
    return keep;
}

/* ----------------------------------------------------------------------------------- prefill */

enum {
    ROWS = 64,       /* rows scored at a time */
    MIN_ROWS = 128,  /* a long sequence is not cut into smaller pieces: each expands its history */
    PANEL = 2 * VL,  /* rows of kv_b side by side */
    SUM_TERMS = 256, /* latents of a panel in the first-level cache; sums of sums err less */
};

struct expanded {
    float *weight;         /* [key and value panels][C][PANEL] */
    float *part;           /* [PAGE_TOKENS][PANEL] */
    float *key;            /* [nope+rope][PAGE_TOKENS] */
    float *value;          /* [PAGE_TOKENS][v width] */
    float *history;        /* [PAGE_TOKENS][kv_stride], a page widened */
    float *score;          /* [ROWS][PAGE_TOKENS] */
    float *sum;            /* [rows][v width] */
    struct online *online; /* [rows] */
    uint32_t key_panels, value_panels;
    uint32_t v_width; /* v_dim in whole panels */
};

static struct expanded expanded_of(const struct op_mla *a) {
    struct expanded s = {.key_panels = (a->nope_dim + PANEL - 1) / PANEL,
                         .value_panels = (a->v_dim + PANEL - 1) / PANEL};
    s.v_width = s.value_panels * PANEL;
    return s;
}

static void expanded_take(struct expanded *s, const struct op_mla *a, uint32_t rows,
                          unsigned char **at) {
    *s = expanded_of(a);
    size_t panels = s->key_panels + s->value_panels;
    s->weight = carve(at, panels * PANEL * a->kv_lora * sizeof(float));
    s->part = carve(at, PAGE_TOKENS * PANEL * sizeof(float));
    s->key = carve(at, PAGE_TOKENS * (size_t)(a->nope_dim + a->rope_dim) * sizeof(float));
    s->value = carve(at, PAGE_TOKENS * (size_t)s->v_width * sizeof(float));
    s->history = carve(at, PAGE_TOKENS * (size_t)kv_stride(a->pool) * sizeof(float));
    s->score = carve(at, ROWS * PAGE_TOKENS * sizeof(float));
    s->sum = carve(at, (size_t)rows * s->v_width * sizeof(float));
    s->online = carve(at, rows * sizeof *s->online);
}

size_t cpu_mla_prefill_scratch(const struct op_mla *a, uint32_t max_rows) {
    struct expanded s = expanded_of(a);
    size_t floats = (size_t)(s.key_panels + s.value_panels) * PANEL * a->kv_lora +
                    PAGE_TOKENS * (size_t)(PANEL + a->nope_dim + a->rope_dim + s.v_width +
                                           kv_stride(a->pool) + ROWS) +
                    (size_t)max_rows * (s.v_width + 2);
    return floats * sizeof(float) + 8 * 64;
}

/* Rows [r0, r0 + n) of m, n at most PANEL, as the columns of a panel; columns without one are
 * zero. */
static void weight_panel(const struct mat *m, uint32_t r0, uint32_t n, float *panel) {
    enum { BLOCK = 32 };
    float wide[PANEL][BLOCK] = {{0}};
    for (uint32_t c = 0; c < m->cols; c += BLOCK) {
        uint32_t now = m->cols - c < BLOCK ? m->cols - c : BLOCK;
        for (uint32_t r = 0; r < n; r++)
            mat_widen(m, r0 + r, c, now, wide[r]);
        for (uint32_t i = 0; i < now; i++)
            for (uint32_t r = 0; r < PANEL; r++)
                panel[(size_t)(c + i) * PANEL + r] = wide[r][i];
    }
}

/* The key and value rows of one head. */
static void take_weights(const struct op_mla *a, struct expanded *s, uint32_t head) {
    struct mat m = mat_from(mat_of(&a->kv_b), (size_t)head * (a->nope_dim + a->v_dim));
    float *panel = s->weight;
    size_t size = (size_t)PANEL * a->kv_lora;
    for (uint32_t r = 0; r < a->nope_dim; r += PANEL, panel += size)
        weight_panel(&m, r, a->nope_dim - r < PANEL ? a->nope_dim - r : PANEL, panel);
    m = mat_from(m, a->nope_dim);
    for (uint32_t r = 0; r < a->v_dim; r += PANEL, panel += size)
        weight_panel(&m, r, a->v_dim - r < PANEL ? a->v_dim - r : PANEL, panel);
}

/* n positions of the widened page times one panel. */
static void expand_panel(const struct op_mla *a, const struct expanded *s, uint32_t panel,
                         uint32_t n, float *to, size_t stride) {
    const float *w = s->weight + (size_t)panel * PANEL * a->kv_lora;
    size_t row = kv_stride(a->pool);
    for (uint32_t c = 0; c < a->kv_lora; c += SUM_TERMS) {
        uint32_t now = a->kv_lora - c < SUM_TERMS ? a->kv_lora - c : SUM_TERMS;
        cpu_attention_product(n, PANEL, now, (struct factor){s->history + c, row, 1},
                              w + (size_t)c * PANEL, PANEL, to, stride, c > 0);
    }
}

/* Keys and values of n positions from t on for one head. Keys behind them are zero. */
static void expand_page(const struct op_mla *a, struct expanded *s, const int32_t *pages,
                        uint32_t t, uint32_t n) {
    uint32_t stride = kv_stride(a->pool);
    kv_widen(a->pool, a->kv_lora, a->layer, pages, t, n, s->history);
    if (n < PAGE_TOKENS)
        memset(s->key, 0, PAGE_TOKENS * (size_t)(a->nope_dim + a->rope_dim) * sizeof(float));
    for (uint32_t p = 0; p < s->key_panels; p++) {
        uint32_t d0 = p * PANEL, cols = a->nope_dim - d0 < PANEL ? a->nope_dim - d0 : PANEL;
        expand_panel(a, s, p, n, s->part, PANEL);
        for (uint32_t d = 0; d < cols; d++)
            for (uint32_t i = 0; i < n; i++)
                s->key[(size_t)(d0 + d) * PAGE_TOKENS + i] = s->part[(size_t)i * PANEL + d];
    }
    for (uint32_t d = 0; d < a->rope_dim; d++)
        for (uint32_t i = 0; i < n; i++)
            s->key[(size_t)(a->nope_dim + d) * PAGE_TOKENS + i] =
                s->history[(size_t)i * stride + a->kv_lora + d];
    for (uint32_t p = 0; p < s->value_panels; p++)
        expand_panel(a, s, s->key_panels + p, n, s->value + (size_t)p * PANEL, s->v_width);
}

/* Rows [r0, r1) of the sequence (at most ROWS) over the expanded page of positions t .. t+63. */
static void attend_page(const struct op_mla *a, const struct batch_seq *seq, struct expanded *s,
                        uint32_t head, uint32_t r0, uint32_t r1, uint32_t t, uint32_t first) {
    uint32_t key_dim = a->nope_dim + a->rope_dim, last = seq->pos0 + r1 - 1;
    uint32_t n = last - t + 1 < PAGE_TOKENS ? last - t + 1 : PAGE_TOKENS;
    const float *q = tensor_row(a->q, seq->row0 + (size_t)r0) + (size_t)head * key_dim;
    cpu_attention_product(r1 - r0, round_up(n, VL), key_dim, (struct factor){q, a->q.stride, 1},
                          s->key, PAGE_TOKENS, s->score, PAGE_TOKENS, false);
    for (uint32_t r = r0; r < r1; r++) {
        float *p = s->score + (size_t)(r - r0) * PAGE_TOKENS;
        float *sum = s->sum + (size_t)(r - first) * s->v_width;
        uint32_t sees = seq->pos0 + r - t + 1; /* causal */
        sees = sees < n ? sees : n;
        float keep = online_take(&s->online[r - first], p, sees, a->scale);
        for (uint32_t c = 0; keep != 1 && c < s->v_width; c += VL)
            vstore(sum + c, vload(sum + c) * vset(keep));
        memset(p + sees, 0, (PAGE_TOKENS - sees) * sizeof(float));
    }
    cpu_attention_product(r1 - r0, s->v_width, n, (struct factor){s->score, PAGE_TOKENS, 1},
                          s->value, s->v_width, s->sum + (size_t)(r0 - first) * s->v_width,
                          s->v_width, true);
}

/* One head for rows [r0, r1) of a sequence. */
static void expanded_rows(const struct op_mla *a, const struct batch_seq *seq, uint32_t head,
                          uint32_t r0, uint32_t r1, struct expanded *s) {
    memset(s->sum, 0, (size_t)(r1 - r0) * s->v_width * sizeof(float));
    take_weights(a, s, head);
    for (uint32_t r = r0; r < r1; r++)
        s->online[r - r0] = (struct online){-INFINITY, 0};
    uint32_t n = seq->pos0 + r1;
    for (uint32_t t = 0; t < n; t += PAGE_TOKENS) {
        expand_page(a, s, seq->pages, t, n - t < PAGE_TOKENS ? n - t : PAGE_TOKENS);
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
