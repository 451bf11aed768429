/* kda_chunk.c: Kimi Delta Attention over chunks of up to 16 tokens of one sequence: a few matrix
 * products per chunk instead of a sweep over the state per token. Called through the columns of
 * this folder. With G_i the cumulative log decay and S the state before the chunk:
 *   Akk_ij = k_i . (k_j exp(G_i - G_j)), j < i;  Aqk_ij = q_i . (k_j exp(G_i - G_j)), j <= i
 *   R = (I + diag(beta) Akk)^-1 diag(beta) (V - (K exp G) S)       the corrected values
 *   O = (Q exp G) S + Aqk R;   S' = diag(exp G_C) S + (K exp(G_C - G))^T R
 * All of it in f32. kda_factor.c forms what stands before V, S and R; here the values pass.
 *
 * Chunks end on absolute multiples of 16 and at checkpoints, and the form of a chunk depends on its
 * length alone, so that a sequence cut on a multiple of 64 keeps its bits, unless a tail so short
 * that it goes by the recurrence is left. */
#include "ops/cpu/kda_chunk.h"

/* Fewer tokens are cheaper by the recurrence: as a chunk, and as a sequence (cpu_variant.chunks),
 * which then stays where its state is. */
enum { SHORT_CHUNK = 4, FETCH_LINES = 20 };

static size_t chunk_bytes(const struct op_kda *op) {
    size_t w = kda_width(op->dim);
    size_t floats = 8 * CHUNK * w + CHUNK + w + 2 * CHUNK * CHUNK + 2 * CHUNK * PANEL + w * w;
    return floats * sizeof(float) + 15 * 64;
}

static void chunk_take(struct chunk *c, uint32_t width, unsigned char **at) {
    size_t row = width * sizeof(float), rows = CHUNK * row, square = CHUNK * CHUNK * sizeof(float);
    c->width = width;
    c->t.q = carve(at, rows);
    c->t.k = carve(at, rows);
    c->t.v = carve(at, rows);
    c->t.decay = carve(at, rows);
    c->t.beta = carve(at, CHUNK * sizeof(float));
    c->qf = carve(at, rows);
    c->kf = carve(at, rows);
    c->kb = carve(at, rows);
    c->o = carve(at, rows);
    c->decay = carve(at, row);
    c->aqk = carve(at, square);
    c->solve = carve(at, square);
    c->rest = carve(at, CHUNK * PANEL * sizeof(float));
    c->r = carve(at, CHUNK * PANEL * sizeof(float));
    c->state = carve(at, width * row);
}

/* Tokens without effect from `rows` up to a whole tile. */
static void pad_rows(struct chunk *c, uint32_t rows) {
    uint32_t width = c->width;
    c->n = round_up(rows, TILE);
    for (uint32_t i = rows; i < c->n; i++) {
        size_t at = (size_t)i * width;
        memset(c->t.q + at, 0, width * sizeof(float));
        memset(c->t.k + at, 0, width * sizeof(float));
        memset(c->t.v + at, 0, width * sizeof(float));
        for (uint32_t d = 0; d < width; d++)
            c->t.decay[at + d] = 1;
    }
    for (uint32_t i = rows; i < CHUNK; i++)
        c->t.beta[i] = 0;
}

/* R x PANEL sums of A(i, l) b[l]; b is a panel. */
ALWAYS void add_products(vf *sum, uint32_t k, const float *a, size_t row, size_t col,
                         const float *b, const bool minus, const int R) {
    for (uint32_t l = 0; l < k; l++, a += col, b += PANEL) {
        vf lo = vload(b), hi = vload(b + VL);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            vf x = vset(a[(size_t)i * row]);
            sum[2 * i] = minus ? vnma(x, lo, sum[2 * i]) : vfma(x, lo, sum[2 * i]);
            sum[2 * i + 1] = minus ? vnma(x, hi, sum[2 * i + 1]) : vfma(x, hi, sum[2 * i + 1]);
        }
    }
}
ALWAYS void load_tile(vf *sum, const float *p, size_t row, const int R) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        sum[2 * i] = vload(p + (size_t)i * row);
        sum[2 * i + 1] = vload(p + (size_t)i * row + VL);
    }
}
ALWAYS void store_tile(const vf *sum, float *p, size_t row, const int R) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        vstore(p + (size_t)i * row, sum[2 * i]);
        vstore(p + (size_t)i * row + VL, sum[2 * i + 1]);
    }
}
ALWAYS void clear_tile(vf *sum, const int R) {
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; i++)
        sum[i] = vset(0);
}

/* One panel of values on its way: what is right of the products, from row i on. */
struct pass {
    const struct chunk *c;
    float *state;   /* [width][PANEL] */
    const float *v; /* of row 0, as o */
    float *o;
    struct ahead *ahead;
};

ALWAYS void rest_tile(const struct pass *p, uint32_t i, const int R) {
    const struct chunk *c = p->c;
    vf sum[2 * TALL];
    ahead_fetch(p->ahead, FETCH_LINES);
    load_tile(sum, p->v + (size_t)i * c->width, c->width, R);
    add_products(sum, c->width, c->kf + (size_t)i * c->width, c->width, 1, p->state, true, R);
    store_tile(sum, c->rest + (size_t)i * PANEL, PANEL, R);
}
/* Triangles are read up to the end of a tile's rows. */
ALWAYS void solve_tile(const struct pass *p, uint32_t i, const int R) {
    const struct chunk *c = p->c;
    vf sum[2 * TALL];
    clear_tile(sum, R);
    add_products(sum, i + R, c->solve + (size_t)i * CHUNK, CHUNK, 1, c->rest, false, R);
    store_tile(sum, c->r + (size_t)i * PANEL, PANEL, R);
}
ALWAYS void out_tile(const struct pass *p, uint32_t i, const int R) {
    const struct chunk *c = p->c;
    vf sum[2 * TALL];
    ahead_fetch(p->ahead, FETCH_LINES);
    clear_tile(sum, R);
    add_products(sum, c->width, c->qf + (size_t)i * c->width, c->width, 1, p->state, false, R);
    add_products(sum, i + R, c->aqk + (size_t)i * CHUNK, CHUNK, 1, c->r, false, R);
    store_tile(sum, p->o + (size_t)i * c->width, c->width, R);
}
ALWAYS void state_tile(const struct pass *p, uint32_t d, const int R) {
    const struct chunk *c = p->c;
    float *s = p->state + (size_t)d * PANEL;
    vf sum[2 * TALL];
    load_tile(sum, s, PANEL, R);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        vf f = vset(c->decay[d + (uint32_t)i]);
        sum[2 * i] = sum[2 * i] * f;
        sum[2 * i + 1] = sum[2 * i + 1] * f;
    }
    add_products(sum, c->n, c->kb + d, 1, c->width, c->r, false, R);
    store_tile(sum, s, PANEL, R);
}

/* Rows of the next tile where `left` of them, whole TILEs, are still to come. */
ALWAYS bool tall(uint32_t left) {
    return left % TALL == 0 || left >= TALL + TILE;
}
#define TILES(ROWS, TILE_OF)                                                                       \
    for (uint32_t i = 0; i < (ROWS);) {                                                            \
        if (tall((ROWS)-i)) {                                                                      \
            TILE_OF(p, i, TALL);                                                                   \
            i += TALL;                                                                             \
        } else {                                                                                   \
            TILE_OF(p, i, TILE);                                                                   \
            i += TILE;                                                                             \
        }                                                                                          \
    }

static void pass_rest(const struct pass *p) {
    TILES(p->c->n, rest_tile)
}
static void pass_solve(const struct pass *p) {
    TILES(p->c->n, solve_tile)
}
static void pass_out(const struct pass *p) {
    TILES(p->c->n, out_tile)
}
static void pass_state(const struct pass *p) {
    TILES(p->c->width, state_tile)
}

static void pass_panel(struct chunk *c, uint32_t panel, struct ahead *ahead) {
    size_t at = (size_t)panel * PANEL;
    struct pass p = {c, c->state + at * c->width, c->t.v + at, c->o + at, ahead};
    pass_rest(&p);
    pass_solve(&p);
    pass_out(&p);
    pass_state(&p);
}

/* What the chunk's output and the start of the next chunk will read, of a sequence whose rows end
 * at `end`. */
static void list_ahead(struct ahead *a, const struct kda_head *h, uint32_t row, uint32_t rows) {
    const struct op_kda *op = h->op;
    size_t at = (size_t)h->head * h->dim, first = h->seq->row0 + (size_t)row;
    ahead_open(a);
    for (uint32_t i = 0; i < rows; i++)
        ahead_add(a, tensor_row(op->go, first + i) + at, h->dim);
    for (uint32_t i = 0; i < rows; i++)
        ahead_add(a, tensor_row(op->out, first + i) + at, h->dim);
    for (uint32_t i = rows; i < rows + CHUNK && row + i < h->seq->rows; i++) {
        for (int part = 0; part < 3; part++)
            ahead_add(a, tensor_row(kda_projection(op, part), first + i) + at, h->dim);
        ahead_add(a, tensor_row(op->z, first + i) + at, h->dim);
    }
}

/* The chunk's tokens by the recurrence, panel by panel. */
static void run_tokens(struct chunk *c, uint32_t rows) {
    struct kda_step s[SHORT_CHUNK];
    uint32_t width = c->width;
    for (uint32_t i = 0; i < rows; i++) {
        s[i] = (struct kda_step){.dk = c->kf + i * width, .dq = c->qf + i * width};
        cpu_kda_reads(&c->t, i, width, &s[i]);
    }
    for (uint32_t p = 0; p < width; p += PANEL) {
        float *state = c->state + (size_t)p * width;
        for (uint32_t i = 0; i < rows; i++) {
            s[i].v = c->t.v + i * width + p;
            s[i].u = c->r + i * PANEL;
            s[i].o = c->o + i * width + p;
            cpu_kda_sweep(i ? &s[i - 1] : NULL, &s[i], state, state, PANEL, width, PANEL, NULL);
        }
        cpu_kda_sweep(&s[rows - 1], NULL, state, state, PANEL, width, PANEL, NULL);
    }
}

/* next: what comes behind the last chunk of a sequence. */
static void run_chunk(struct chunk *c, const struct kda_head *h, uint32_t row, uint32_t rows,
                      const struct kda_unit *next, struct ahead *ahead) {
    cpu_kda_tokens(h, row, rows, &c->t, ahead);
    list_ahead(ahead, h, row, rows);
    if (next && next->seq && next->seq->slot >= 0)
        cpu_kda_list_ahead(ahead, h->op, *next, h->dim);
    if (rows < SHORT_CHUNK) {
        run_tokens(c, rows);
    } else {
        pad_rows(c, rows);
        cpu_kda_factors(c);
        for (uint32_t p = 0; p < c->width / PANEL; p++)
            pass_panel(c, p, ahead);
    }
    for (uint32_t i = 0; i < rows; i++)
        cpu_kda_output(h, row + i, c->o + (size_t)i * c->width);
}

/* n floats of a panel's row, at most a whole one. */
ALWAYS void copy_row(float *to, const float *from, uint32_t n) {
    if (n < PANEL) {
        memcpy(to, from, n * sizeof(float));
        return;
    }
    vstore(to, vload(from));
    vstore(to + VL, vload(from + VL));
}

/* Rows of the pool are walked whole, into panels and out of them: that is how memory is fast. What
 * lies beyond dim is zero. */
static void get_state(struct chunk *c, const struct kda_head *h) {
    uint32_t dim = h->dim;
    const float *s = h->seq->from < 0 ? NULL : kda_state(h->op, h->seq->from, h->head);
    if (!s || dim < c->width)
        memset(c->state, 0, (size_t)c->width * c->width * sizeof(float));
    for (uint32_t d = 0; s && d < dim; d++)
        for (uint32_t p = 0; p < dim; p += PANEL)
            copy_row(c->state + (size_t)p * c->width + (size_t)d * PANEL, s + (size_t)d * dim + p,
                     dim - p);
}

static void put_state(const struct chunk *c, const struct kda_head *h, uint32_t rows,
                      int32_t slot) {
    float *s = kda_state(h->op, slot, h->head);
    uint32_t dim = h->dim;
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t p = 0; p < dim; p += PANEL)
            copy_row(s + (size_t)d * dim + p, c->state + (size_t)p * c->width + (size_t)d * PANEL,
                     dim - p);
    cpu_kda_put_window(h, rows, slot);
}

static void chunked(const struct op_kda *op, struct kda_unit u, struct kda_unit next_unit,
                    void *scratch) {
    const struct batch_seq *seq = u.seq;
    unsigned char *at = scratch;
    struct kda_head h;
    struct chunk c;
    struct ahead ahead;
    cpu_kda_head(&h, op, seq, u.head, &at);
    chunk_take(&c, h.width, &at);
    get_state(&c, &h);
    ahead_open(&ahead);
    uint32_t next = 0;
    for (uint32_t row = 0; row < seq->rows;) {
        uint32_t position = seq->pos0 + row, rows = CHUNK - position % CHUNK;
        if (rows > seq->rows - row)
            rows = seq->rows - row;
        if (next < seq->n_checkpoints && seq->checkpoints[next].position - position < rows)
            rows = seq->checkpoints[next].position - position;
        run_chunk(&c, &h, row, rows, row + rows == seq->rows ? &next_unit : NULL, &ahead);
        row += rows;
        for (; next < seq->n_checkpoints && seq->checkpoints[next].position == seq->pos0 + row;
             next++)
            put_state(&c, &h, row, seq->checkpoints[next].slot);
    }
    put_state(&c, &h, seq->rows, seq->slot);
}

static void run_unit(const struct op_kda *op, struct kda_unit u, struct kda_unit next,
                     uint32_t least, void *scratch) {
    if (u.seq->slot < 0)
        return;
    if (u.seq->rows >= least) {
        chunked(op, u, next, scratch);
        return;
    }
    cpu_kda_recur(op, u, next, next.seq && next.seq->rows >= least ? op->dim : FIRST_ROWS, scratch);
}

/* Units go through the sequences of one head, then of the next: long sequences and short ones are
 * spread alike over the members. */
void cpu_kda_prefill(const struct op_kda *op, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, op->which), s;
    uint32_t n = seqs.end - seqs.begin, units = n * op->heads;
    const struct cpu_variant *how = variant_of(&work);
    unsigned before = vflush();
    while (work_next(&work, units, &s))
        for (uint32_t i = s.begin; i < s.end; i++) {
            struct kda_unit u = {&b->seqs[seqs.begin + i % n], i / n}, next = {0};
            if (i + 1 < units)
                next = (struct kda_unit){&b->seqs[seqs.begin + (i + 1) % n], (i + 1) / n};
            run_unit(op, u, next, how->chunks, work.scratch);
        }
    vunflush(before);
}

size_t cpu_kda_prefill_scratch(const struct op_kda *op) {
    size_t chunk = cpu_kda_head_bytes(op) + chunk_bytes(op), decode = cpu_kda_decode_scratch(op);
    return (chunk > decode ? chunk : decode) + 64;
}
