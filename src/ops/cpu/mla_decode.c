/* mla_decode.c: latent attention of single rows, absorbed: one key of C+R values serves all heads
 * of a row. Called through the columns of this folder, in three passes over at most WAVE rows:
 *   query   qa = Qn^T WUK: each head's key rows are read once for all rows of the wave
 *   attend  scores, weights and sums of latents: products of (heads x positions x C), so that a
 *           member reads a piece of history once for all its heads
 *   output  O = WUV ol, each head's value rows read once, and the gate
 * History is cut into chunks at absolute positions. Each chunk is summed by itself, and chunks are
 * merged pairwise along a binary tree over their numbers. Members share out nodes of that tree, at
 * a level low enough that all are busy, and groups of heads: an answer depends neither on the team
 * nor on the batch, because the tree is always the same.
 * Invariant that bites: the last page holds leftovers behind the last position; they may be NaN and
 * are neither scored nor weighted. */
#include "ops/cpu/mla.h"

enum {
    WAVE = 32,        /* rows whose queries and sums are in memory at a time */
    CHUNK = 128,      /* positions, at most */
    SHORT = 256,      /* positions of a history whose chunks are ... */
    CHUNK_SHORT = 32, /* ... so long where all heads are one group, else one member has them all */
    GROUP = 2 * VL,   /* heads of one product: the lanes of its vectors */
    ABSORB_ROWS = 8,  /* of a weight, in registers */
    SCORE_COLS = 192  /* products of a score that are summed in one go: sums of sums err less */
};

/* A weight below this next to one of 1 changes no sum; it becomes zero, because products of
 * subnormal numbers take many times as long. */
#define NOTHING     0x1p-80f
#define NOTHING_LOG (-55.45f) /* a little more than log of it */

/* Sums over some positions, all heads of a row: weights' sum and largest score, latents. */
struct partial {
    float *top, *total; /* [lanes] */
    float *latent;      /* [heads][stride] */
};

/* What all members see, and how large it is. */
struct shape {
    uint32_t groups, lanes; /* lanes: heads in whole groups */
    uint32_t query_stride;  /* C+R in whole vectors, as that of a widened record */
    uint32_t latent_stride;
    size_t query_floats, partial_floats;
};

static struct shape shape_of(const struct op_mla *a) {
    uint32_t group = a->heads > VL ? GROUP : VL, groups = (a->heads + group - 1) / group;
    struct shape s = {.groups = groups,
                      .lanes = groups * group,
                      .query_stride = kv_stride(a->pool),
                      .latent_stride = round_up(a->kv_lora, VL)};
    s.query_floats = (size_t)a->heads * s.query_stride;
    s.partial_floats = 2 * (size_t)s.lanes + (size_t)a->heads * s.latent_stride;
    s.partial_floats = (s.partial_floats + 15) & ~(size_t)15;
    return s;
}

static struct partial partial_at(const struct shape *s, float *base) {
    return (struct partial){base, base + s->lanes, base + 2 * (size_t)s->lanes};
}

/* One row of a wave. */
struct wave_row {
    const struct batch_seq *seq;
    uint32_t row, positions, chunk, chunks; /* chunk: positions of one */
    uint32_t task;                          /* its first one */
};
struct wave {
    uint32_t n, level, tasks; /* tasks are nodes of 2^level chunks */
    struct wave_row row[WAVE];
};

/* By what is the same in every batch and team. */
static uint32_t chunk_of(const struct shape *s, uint32_t positions) {
    return s->groups == 1 && positions <= SHORT ? CHUNK_SHORT : CHUNK;
}

static uint32_t nodes(uint32_t chunks, uint32_t level) {
    return (uint32_t)(((uint64_t)chunks + (1u << level) - 1) >> level);
}

/* Rows [first, first + WAVE) of the class, and how their histories are shared out: in at most
 * `tasks` pieces beyond one a row. */
static void take_wave(struct wave *w, const struct op_mla *a, const struct shape *s,
                      const struct batch *b, uint32_t first, uint32_t tasks) {
    struct span seqs = batch_class(b, a->which);
    *w = (struct wave){0};
    uint32_t at = 0;
    for (uint32_t i = seqs.begin; i < seqs.end && w->n < WAVE; i++) {
        const struct batch_seq *seq = &b->seqs[i];
        uint32_t r = at < first ? first - at : 0;
        at += seq->rows;
        for (; r < seq->rows && w->n < WAVE; r++) {
            uint32_t n = seq->pos0 + r + 1, chunk = chunk_of(s, n);
            w->row[w->n++] =
                (struct wave_row){seq, seq->row0 + r, n, chunk, (n + chunk - 1) / chunk, 0};
        }
    }
    for (;; w->level++) {
        w->tasks = 0;
        for (uint32_t i = 0; i < w->n; i++) {
            w->row[i].task = w->tasks;
            w->tasks += nodes(w->row[i].chunks, w->level);
        }
        if (w->tasks <= w->n + tasks)
            return;
    }
}

static uint32_t class_rows(const struct op_mla *a, const struct batch *b) {
    struct span seqs = batch_class(b, a->which);
    uint32_t n = 0;
    for (uint32_t i = seqs.begin; i < seqs.end; i++)
        n += b->seqs[i].rows;
    return n;
}

enum { QUERY, ATTEND, OUTPUT, PASSES };

uint32_t cpu_mla_decode_passes(const struct op_mla *a, const struct batch *b) {
    return PASSES * ((class_rows(a, b) + WAVE - 1) / WAVE);
}

size_t cpu_mla_decode_shared(const struct op_mla *a, uint32_t max_rows, uint32_t tasks) {
    struct shape s = shape_of(a);
    size_t rows = max_rows < WAVE ? max_rows : WAVE;
    return (rows * s.query_floats + (rows + (size_t)tasks) * s.partial_floats) * sizeof(float);
}

/* Levels of merged sums that wait for their neighbour. */
static uint32_t depth_of(uint32_t max_position) {
    uint32_t depth = 1, chunks = (max_position < SHORT ? max_position : SHORT) / CHUNK_SHORT;
    chunks = chunks > max_position / CHUNK ? chunks : max_position / CHUNK;
    while (chunks >> depth)
        depth++;
    return depth + 1;
}

size_t cpu_mla_decode_scratch(const struct op_mla *a, uint32_t max_position) {
    struct shape s = shape_of(a);
    size_t attend = (size_t)CHUNK * (s.query_stride + GROUP) + (size_t)s.lanes * s.query_stride +
                    depth_of(max_position) * s.partial_floats;
    size_t output = (size_t)WAVE * a->v_dim;
    return (attend > output ? attend : output) * sizeof(float) + cpu_dot_scratch_bytes() + 4 * 64;
}

/* ------------------------------------------------------------------------------------- query */

/* One vector of columns of R rows: sum[j] += x[j][0..R) times them, for all n of x. */
ALWAYS void absorb_vector(const unsigned char *w, size_t row_bytes, enum dtype t, vm part,
                          const bool masked, const float *const *x, uint32_t d, uint32_t n,
                          float *sum, size_t stride, bool first, const int R) {
    vf v[ABSORB_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const void *at = w + (size_t)r * row_bytes;
        if (t == DTYPE_BF16)
            v[r] = masked ? vwidenm(at, part) : vwiden(at);
        else
            v[r] = masked ? vloadm(at, part) : vload(at);
    }
    for (uint32_t j = 0; j < n; j++) {
        float *to = sum + j * stride;
        vf s = first ? vset(0) : vload(to);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            s = vfma(vset(x[j][d + (uint32_t)r]), v[r], s);
        vstore(to, s);
    }
}

/* sum[j] += x[j][0..R) times R rows of a weight, over `cols` columns in whole vectors; the rows are
 * read once, in the order of memory, for all n of x. `first`: the sums begin here. */
ALWAYS void absorb_tile(const unsigned char *w, size_t row_bytes, enum dtype t, uint32_t cols,
                        const float *const *x, uint32_t d, uint32_t n, float *sum, size_t stride,
                        bool first, const int R) {
    const size_t bytes = t == DTYPE_BF16 ? 2 : 4;
    uint32_t c = 0;
    for (; c + VL <= cols; c += VL) {
        if (c * bytes % 64 == 0) /* once a cache line, the rows behind these */
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                __builtin_prefetch(w + (size_t)(R + r) * row_bytes + c * bytes);
        absorb_vector(w + c * bytes, row_bytes, t, vmask(VL), false, x, d, n, sum + c, stride,
                      first, R);
    }
    if (c < cols)
        absorb_vector(w + c * bytes, row_bytes, t, vmask(cols - c), true, x, d, n, sum + c, stride,
                      first, R);
}

ALWAYS void absorb_rows(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *x,
                        uint32_t n, float *sum, size_t stride, enum dtype t) {
    uint32_t d = 0;
    for (; d + ABSORB_ROWS <= rows; d += ABSORB_ROWS)
        absorb_tile(m->data + d * m->row_bytes, m->row_bytes, t, cols, x, d, n, sum, stride, d == 0,
                    ABSORB_ROWS);
    for (; d < rows; d++)
        absorb_tile(m->data + d * m->row_bytes, m->row_bytes, t, cols, x, d, n, sum, stride, d == 0,
                    1);
}

static void absorb_bf16(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *x,
                        uint32_t n, float *sum, size_t stride) {
    absorb_rows(m, rows, cols, x, n, sum, stride, DTYPE_BF16);
}
static void absorb_f32(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *x,
                       uint32_t n, float *sum, size_t stride) {
    absorb_rows(m, rows, cols, x, n, sum, stride, DTYPE_F32);
}
/* No model packs this matrix; right, not fast. */
static void absorb_mxfp4(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *x,
                         uint32_t n, float *sum, size_t stride) {
    for (uint32_t j = 0; j < n; j++)
        memset(sum + j * stride, 0, stride * sizeof *sum);
    for (uint32_t d = 0; d < rows; d++)
        for (uint32_t c = 0; c < cols; c += 32) {
            vf w[32 / VL];
            vdecode_mxfp4(m->data + d * m->row_bytes + c / 2,
                          m->scale[(size_t)d * (m->cols / 32) + c / 32], w);
            for (uint32_t j = 0; j < n; j++)
                for (uint32_t v = 0; v < 32 / VL; v++) {
                    float *to = sum + j * stride + c + v * VL;
                    vstore(to, vfma(vset(x[j][d]), w[v], vload(to)));
                }
        }
}

static void absorb(const struct mat *m, uint32_t rows, uint32_t cols, const float *const *x,
                   uint32_t n, float *sum, size_t stride) {
    switch (m->dtype) {
    case DTYPE_F32: absorb_f32(m, rows, cols, x, n, sum, stride); return;
    case DTYPE_BF16: absorb_bf16(m, rows, cols, x, n, sum, stride); return;
    case DTYPE_MXFP4: absorb_mxfp4(m, rows, cols, x, n, sum, stride); return;
    case DTYPE_U8:
    case DTYPE_FP8: return;
    }
}

/* Queries of one head for all rows of the wave. */
static void absorb_head(const struct op_mla *a, const struct shape *s, const struct wave *w,
                        uint32_t head, float *query) {
    uint32_t key_dim = a->nope_dim + a->rope_dim, behind = a->kv_lora + a->rope_dim;
    struct mat key = mat_from(mat_of(&a->kv_b), (size_t)head * (a->nope_dim + a->v_dim));
    const float *x[WAVE];
    for (uint32_t i = 0; i < w->n; i++)
        x[i] = tensor_row(a->q, w->row[i].row) + (size_t)head * key_dim;
    query += (size_t)head * s->query_stride;
    absorb(&key, a->nope_dim, a->kv_lora, x, w->n, query, s->query_floats);
    for (uint32_t i = 0; i < w->n; i++, query += s->query_floats) {
        memcpy(query + a->kv_lora, x[i] + a->nope_dim, a->rope_dim * sizeof *query);
        memset(query + behind, 0, (s->query_stride - behind) * sizeof *query);
    }
}

/* ------------------------------------------------------------------------------------ attend */

/* to += from, both sums over positions: head `head`, whose latents have n floats. */
static void merge_head(struct partial *to, const struct partial *from, uint32_t head, size_t n) {
    float top = to->top[head] > from->top[head] ? to->top[head] : from->top[head];
    float keep = expf(to->top[head] - top), add = expf(from->top[head] - top);
    keep = keep < NOTHING ? 0 : keep;
    add = add < NOTHING ? 0 : add;
    to->top[head] = top;
    to->total[head] = to->total[head] * keep + from->total[head] * add;
    float *x = to->latent + head * n;
    const float *y = from->latent + head * n;
    for (size_t c = 0; c < n; c += VL)
        vstore(x + c, vfma(vload(y + c), vset(add), vload(x + c) * vset(keep)));
}

/* Scores [n][group] of one chunk become weights; top and total per lane. */
static void weigh(float *score, uint32_t n, uint32_t group, float scale, float *top, float *total) {
    for (uint32_t v = 0; v < group; v += VL) {
        vf most = vset(-INFINITY), sum = vset(0);
        for (uint32_t t = 0; t < n; t++) {
            vf x = vload(score + (size_t)t * group + v) * vset(scale);
            vstore(score + (size_t)t * group + v, x);
            most = vmax(most, x);
        }
        for (uint32_t t = 0; t < n; t++) {
            vf x = vload(score + (size_t)t * group + v) - most;
            vf p = vkeep_where(vexp_near(vmax(vset(-87), x)), x, NOTHING_LOG);
            vstore(score + (size_t)t * group + v, p);
            sum = sum + p;
        }
        vstore(top + v, most);
        vstore(total + v, sum);
    }
}

struct attend {
    const struct op_mla *op;
    struct shape s;
    float *history;            /* [CHUNK][query_stride], a chunk widened */
    float *score;              /* [CHUNK][GROUP] */
    float *packed;             /* queries [groups][query_stride][group]: heads are lanes */
    const float *packed_from;  /* of which row */
    uint32_t packed0, packed1; /* which groups of it */
    float *waiting;            /* partials of finished nodes, the larger ones first */
};

/* Heads of group g become lanes; lanes without a head are computed with and thrown away, but must
 * not be slow numbers. */
static void pack_group(struct attend *t, const float *query, uint32_t g) {
    enum { BLOCK = 16 }; /* columns whose lanes stay in the first-level cache */
    uint32_t group = t->s.lanes / t->s.groups, stride = t->s.query_stride;
    float *to = t->packed + (size_t)g * group * stride;
    for (uint32_t c0 = 0; c0 < stride; c0 += BLOCK)
        for (uint32_t l = 0; l < group; l++) {
            bool there = g * group + l < t->op->heads;
            const float *from = query + (size_t)(g * group + l) * stride;
            for (uint32_t c = c0; c < c0 + BLOCK; c++)
                to[(size_t)c * group + l] = there ? from[c] : 0;
        }
}

/* What is packed of a row stays for the next node of it. */
static void pack_groups(struct attend *t, const float *query, uint32_t g0, uint32_t g1) {
    if (t->packed_from != query || g1 < t->packed0 || g0 > t->packed1)
        t->packed0 = t->packed1 = g0;
    t->packed_from = query;
    for (; t->packed0 > g0; t->packed0--)
        pack_group(t, query, t->packed0 - 1);
    for (; t->packed1 < g1; t->packed1++)
        pack_group(t, query, t->packed1);
}

/* Positions of the chunk as f32 rows. */
static void load_chunk(struct attend *t, const struct wave_row *row, uint32_t first, uint32_t n) {
    for (uint32_t p = 0; p < n; p += PAGE_TOKENS)
        kv_widen(t->op->pool, t->op->kv_lora, t->op->layer, row->seq->pages, first + p,
                 n - p < PAGE_TOKENS ? n - p : PAGE_TOKENS,
                 t->history + (size_t)p * t->s.query_stride);
}

/* Group g over the loaded chunk of n positions. */
static void attend_group(struct attend *t, uint32_t g, uint32_t n, struct partial *out) {
    const struct op_mla *a = t->op;
    uint32_t group = t->s.lanes / t->s.groups, stride = t->s.query_stride;
    uint32_t heads = a->heads - g * group < group ? a->heads - g * group : group;
    const float *query = t->packed + (size_t)g * group * stride;
    for (uint32_t c = 0; c < a->pool->width; c += SCORE_COLS) {
        uint32_t now = a->pool->width - c < SCORE_COLS ? a->pool->width - c : SCORE_COLS;
        if (c == 0) {
            cpu_attention_product(n, group, now, (struct factor){t->history, stride, 1}, query,
                                  group, t->score, group, false);
            continue;
        }
        cpu_attention_product(n, group, now, (struct factor){t->history + c, stride, 1},
                              query + (size_t)c * group, group, t->score, group, true);
    }
    weigh(t->score, n, group, a->scale, out->top + g * group, out->total + g * group);
    cpu_attention_product(heads, t->s.latent_stride, n, (struct factor){t->score, 1, group},
                          t->history, stride, out->latent + (size_t)g * group * t->s.latent_stride,
                          t->s.latent_stride, false);
}

/* Groups [g0, g1) of one row over node `node` of the wave's level, into `out`. */
static void attend_node(struct attend *t, const struct wave_row *row, uint32_t level, uint32_t node,
                        uint32_t g0, uint32_t g1, const float *query, float *out) {
    uint32_t group = t->s.lanes / t->s.groups;
    uint32_t h0 = g0 * group, h1 = g1 * group < t->op->heads ? g1 * group : t->op->heads;
    uint32_t first = node << level, end = first + (1u << level);
    end = end < row->chunks ? end : row->chunks;
    pack_groups(t, query, g0, g1);
    uint32_t n = 0; /* nodes that wait, in out and t->waiting */
    for (uint32_t chunk = first; chunk < end; chunk++) {
        uint32_t begin = chunk * row->chunk, count = row->positions - begin;
        count = count < row->chunk ? count : row->chunk;
        struct partial p =
            partial_at(&t->s, n ? t->waiting + (size_t)(n - 1) * t->s.partial_floats : out);
        load_chunk(t, row, begin, count);
        for (uint32_t g = g0; g < g1; g++)
            attend_group(t, g, count, &p);
        n++;
        /* Equal neighbours merge; behind the last chunk all do. */
        for (uint32_t k = chunk - first; n > 1 && (k & 1 || chunk + 1 == end); k >>= 1, n--) {
            struct partial from =
                partial_at(&t->s, t->waiting + (size_t)(n - 2) * t->s.partial_floats);
            struct partial to =
                partial_at(&t->s, n > 2 ? t->waiting + (size_t)(n - 3) * t->s.partial_floats : out);
            for (uint32_t h = h0; h < h1; h++)
                merge_head(&to, &from, h, t->s.latent_stride);
        }
    }
}

static void attend_share(const struct op_mla *a, const struct shape *s, const struct wave *w,
                         const float *queries, float *partials, struct work work) {
    unsigned char *at = work.scratch;
    struct attend t = {.op = a, .s = *s};
    t.history = carve(&at, (size_t)CHUNK * s->query_stride * sizeof(float));
    t.score = carve(&at, (size_t)CHUNK * GROUP * sizeof(float));
    t.packed = carve(&at, (size_t)s->lanes * s->query_stride * sizeof(float));
    t.waiting = (float *)(void *)at;
    for (struct span span; work_next(&work, w->tasks * s->groups, &span);) {
        for (uint32_t unit = span.begin; unit < span.end;) {
            uint32_t task = unit / s->groups, g0 = unit % s->groups, i = 0;
            uint32_t g1 = span.end - task * s->groups;
            g1 = g1 < s->groups ? g1 : s->groups;
            while (i + 1 < w->n && task >= w->row[i + 1].task)
                i++;
            attend_node(&t, &w->row[i], w->level, task - w->row[i].task, g0, g1,
                        queries + i * s->query_floats, partials + task * s->partial_floats);
            unit += g1 - g0;
        }
    }
}

/* ------------------------------------------------------------------------------------ output */

/* The rest of the tree, the value rows and the gate of one head for all rows of the wave. */
static void output_head(const struct op_mla *a, const struct shape *s, const struct wave *w,
                        uint32_t head, float *partials, unsigned char *at) {
    const float *latent[WAVE];
    float *value[WAVE], total[WAVE];
    float *values = carve(&at, (size_t)WAVE * a->v_dim * sizeof *values);
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t n = nodes(w->row[i].chunks, w->level);
        for (uint32_t step = 1; step < n; step *= 2)
            for (uint32_t k = 0; k + step < n; k += 2 * step) {
                struct partial to = partial_at(s, partials + k * s->partial_floats);
                struct partial from = partial_at(s, partials + (k + step) * s->partial_floats);
                merge_head(&to, &from, head, s->latent_stride);
            }
        struct partial all = partial_at(s, partials);
        latent[i] = all.latent + (size_t)head * s->latent_stride;
        total[i] = all.total[head];
        value[i] = values + (size_t)i * a->v_dim;
        partials += n * s->partial_floats;
    }
    struct mat m =
        mat_from(mat_of(&a->kv_b), (size_t)head * (a->nope_dim + a->v_dim) + a->nope_dim);
    cpu_dot(&m, 0, a->v_dim, latent, value, w->n, false, at);
    for (uint32_t i = 0; i < w->n; i++)
        gate_out(value[i], total[i],
                 a->g.data ? tensor_row(a->g, w->row[i].row) + (size_t)head * a->v_dim : NULL,
                 tensor_row(a->out, w->row[i].row) + (size_t)head * a->v_dim, a->v_dim);
}

void cpu_mla_decode(const struct op_mla *a, const struct batch *b, struct work work) {
    struct shape s = shape_of(a);
    struct wave w;
    const struct cpu_variant *how = variant_of(&work);
    take_wave(&w, a, &s, b, work.pass / PASSES * WAVE, how->tasks * work.count);
    if (w.n == 0)
        return;
    float *queries = work.shared, *partials = queries + w.n * s.query_floats;
    struct span heads;
    switch (work.pass % PASSES) {
    case QUERY:
        while (work_next(&work, a->heads, &heads))
            for (uint32_t h = heads.begin; h < heads.end; h++)
                absorb_head(a, &s, &w, h, queries);
        return;
    case ATTEND: attend_share(a, &s, &w, queries, partials, work); return;
    case OUTPUT:
        while (work_next(&work, a->heads, &heads))
            for (uint32_t h = heads.begin; h < heads.end; h++)
                output_head(a, &s, &w, h, partials, work.scratch);
        return;
    }
}
