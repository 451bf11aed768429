/* kda_chunk.c: Kimi Delta Attention over chunks of up to 64 tokens of one sequence: a few matrix
 * products per chunk instead of a sweep over the state per token. Called through the columns of
 * this folder. With G_i the cumulative log decay and S the state before the chunk:
 *   Akk_ij = k_i . (k_j exp(G_i - G_j)), j < i;  Aqk_ij = q_i . (k_j exp(G_i - G_j)), j <= i
 *   (I + diag(beta) Akk) R = diag(beta) (V - (K exp G) S)          the corrected values
 *   O = (Q exp G) S + Aqk R;   S' = diag(exp G_C) S + (K exp(G_C - G))^T R
 * The system is solved in blocks of 16 rows by the inverses of its diagonal blocks, in f32.
 *
 * Invariant that bites: exp(G_i) exp(-G_j) overflows after a few strong decays. Every exponential
 * of a difference is re-centred at block borders into factors of at most 1: from the row's block
 * start to the row, from the column to its block's end, and whole blocks between. The factors are
 * running products of the decays themselves, so neither gate needs a bound, and G with its rounding
 * (G may reach -320, where f32 has five digits left) is never formed. Inside a diagonal block the
 * products run row by row from column j. A factor below 2^-50 becomes zero: beside the row's own
 * terms it is lost anyway, and products of two such factors would be subnormal, which costs the
 * processor a hundred cycles each.
 *
 * Chunks end on absolute multiples of 64 and at checkpoints. */
#include "ops/cpu/kernels.h"

enum {
    CHUNK = PAGE_TOKENS,
    BLOCK = 16,
    BLOCKS = CHUNK / BLOCK,
    SHORT = 16 /* shorter sequences are cheaper by the recurrence */
};

/* One chunk of one head; every matrix has rows of `width` floats unless it says otherwise. Rows
 * beyond the chunk's last are zero (decay 1). */
struct chunk {
    uint32_t rows, blocks, width;
    float *q, *k, *v, *decay; /* [CHUNK] */
    float *qf, *kf;   /* times the decays from the block's start to the row, the row's included */
    float *kb;        /* k times the decays behind the row to the block's end */
    float *total;     /* [BLOCKS]: product of a block's decays */
    float *kt;        /* [width][BLOCK] a block of kb transposed, decayed further block by block */
    float *aqk, *akk; /* [CHUNK][CHUNK] */
    float *inverse;   /* [BLOCK][BLOCK] */
    float *rest;      /* [BLOCK] right-hand side of one block */
    float *r, *o;     /* [CHUNK] corrected values, outputs */
    float *state;     /* [width] */
    float *running;   /* [1] */
    float beta[CHUNK];
};

static size_t chunk_bytes(const struct op_kda *op) {
    size_t w = round_up(op->dim, 16);
    size_t floats = 9 * CHUNK * w + BLOCKS * w + BLOCK * w + 2 * CHUNK * CHUNK + BLOCK * BLOCK +
                    BLOCK * w + w * w + w;
    return floats * sizeof(float) + 20 * 64;
}

static void chunk_take(struct chunk *c, uint32_t width, unsigned char **at) {
    size_t rows = CHUNK * (size_t)width * sizeof(float), row = width * sizeof(float);
    c->width = width;
    c->q = carve(at, rows);
    c->k = carve(at, rows);
    c->v = carve(at, rows);
    c->decay = carve(at, rows);
    c->qf = carve(at, rows);
    c->kf = carve(at, rows);
    c->kb = carve(at, rows);
    c->r = carve(at, rows);
    c->o = carve(at, rows);
    c->total = carve(at, BLOCKS * row);
    c->kt = carve(at, BLOCK * row);
    c->aqk = carve(at, CHUNK * CHUNK * sizeof(float));
    c->akk = carve(at, CHUNK * CHUNK * sizeof(float));
    c->inverse = carve(at, BLOCK * BLOCK * sizeof(float));
    c->rest = carve(at, BLOCK * row);
    c->state = carve(at, width * row);
    c->running = carve(at, row);
}

ALWAYS vf product(vf a, vf b) {
    return vkeep_from(a * b, 0x1p-50f);
}

static void load_rows(struct chunk *c, const struct kda_head *h, uint32_t row, uint32_t rows) {
    uint32_t width = c->width;
    c->rows = rows;
    c->blocks = (rows + BLOCK - 1) / BLOCK;
    for (uint32_t i = 0; i < rows; i++) {
        size_t at = (size_t)i * width;
        struct kda_token t = {c->q + at, c->k + at, c->v + at, c->decay + at, 0};
        cpu_kda_token(h, row + i, &t);
        c->beta[i] = t.beta;
    }
    for (uint32_t i = rows; i < c->blocks * BLOCK; i++) {
        size_t at = (size_t)i * width;
        memset(c->q + at, 0, width * sizeof(float));
        memset(c->k + at, 0, width * sizeof(float));
        memset(c->v + at, 0, width * sizeof(float));
        for (uint32_t d = 0; d < width; d++)
            c->decay[at + d] = 1;
        c->beta[i] = 0;
    }
}

/* qf, kf, kb and the total of block a. */
static void decay_block(struct chunk *c, uint32_t a) {
    uint32_t width = c->width;
    for (uint32_t d = 0; d < width; d += VL) {
        size_t at = (size_t)a * BLOCK * width + d;
        vf f = vset(1);
        for (uint32_t i = 0; i < BLOCK; i++, at += width) {
            f = product(f, vload(c->decay + at));
            vstore(c->qf + at, vload(c->q + at) * f);
            vstore(c->kf + at, vload(c->k + at) * f);
        }
        vstore(c->total + (size_t)a * width + d, f);
        f = vset(1);
        for (uint32_t i = BLOCK; i-- > 0;) {
            at -= width;
            vstore(c->kb + at, vload(c->k + at) * f);
            f = product(f, vload(c->decay + at));
        }
    }
}

/* The diagonal block a of both A matrices; what lies above the diagonal becomes zero. */
static void diagonal(struct chunk *c, uint32_t a) {
    uint32_t width = c->width;
    for (uint32_t j = a * BLOCK; j < (a + 1) * BLOCK; j++) {
        const float *k = c->k + (size_t)j * width;
        memcpy(c->running, k, width * sizeof(float));
        for (uint32_t i = a * BLOCK; i < j; i++)
            c->aqk[i * CHUNK + j] = c->akk[i * CHUNK + j] = 0;
        for (uint32_t i = j; i < (a + 1) * BLOCK; i++) {
            const float *qi = c->q + (size_t)i * width, *ki = c->k + (size_t)i * width;
            const float *decay = c->decay + (size_t)i * width;
            vf qk = vset(0), kk = vset(0);
            for (uint32_t d = 0; d < width; d += VL) {
                vf w = vload(c->running + d);
                if (i > j) {
                    w = product(w, vload(decay + d));
                    vstore(c->running + d, w);
                }
                qk = vfma(vload(qi + d), w, qk);
                kk = vfma(vload(ki + d), w, kk);
            }
            c->aqk[i * CHUNK + j] = vsum(qk);
            c->akk[i * CHUNK + j] = vsum(kk); /* the diagonal itself is never read */
        }
    }
}

/* The blocks of both A matrices below diagonal block b. */
static void below(struct chunk *c, uint32_t b) {
    uint32_t width = c->width;
    for (uint32_t j = 0; j < BLOCK; j++)
        for (uint32_t d = 0; d < width; d++)
            c->kt[d * BLOCK + j] = c->kb[((size_t)b * BLOCK + j) * width + d];
    for (uint32_t a = b + 1; a < c->blocks; a++) {
        size_t row = (size_t)a * BLOCK * width, to = (size_t)a * BLOCK * CHUNK + b * BLOCK;
        cpu_gemm(BLOCK, BLOCK, width, (struct gemm_a){c->qf + row, width, 1}, c->kt, BLOCK,
                 c->aqk + to, CHUNK, 0);
        cpu_gemm(BLOCK, BLOCK, width, (struct gemm_a){c->kf + row, width, 1}, c->kt, BLOCK,
                 c->akk + to, CHUNK, 0);
        for (uint32_t d = 0; a + 1 < c->blocks && d < width; d++) {
            vf f = vset(c->total[(size_t)a * width + d]);
            for (uint32_t j = 0; j < BLOCK; j += VL)
                vstore(c->kt + d * BLOCK + j, product(vload(c->kt + d * BLOCK + j), f));
        }
    }
}

/* (I + L_aa)^-1 by forward substitution: row i is e_i - sum_m L_im row m. */
static void invert(struct chunk *c, uint32_t a) {
    const float *l = c->akk + (size_t)a * BLOCK * CHUNK + a * BLOCK;
    for (uint32_t i = 0; i < BLOCK; i++)
        for (uint32_t j = 0; j < BLOCK; j += VL) {
            vf x = vset(0);
            for (uint32_t m = 0; m < i; m++)
                x = vnma(vset(l[(size_t)i * CHUNK + m]), vload(c->inverse + m * BLOCK + j), x);
            vstore(c->inverse + i * BLOCK + j, x);
            if (i >= j && i < j + VL)
                c->inverse[i * BLOCK + i] += 1;
        }
}

/* Makes of qf and kf the factors since the chunk's start, and of kb those up to its end. */
static void widen_factors(struct chunk *c) {
    uint32_t width = c->width;
    for (uint32_t d = 0; d < width; d += VL) {
        vf before = vset(1), behind = vset(1);
        for (uint32_t a = 0; a < c->blocks; a++) {
            for (uint32_t i = a * BLOCK; a && i < (a + 1) * BLOCK; i++) {
                size_t at = (size_t)i * width + d;
                vstore(c->qf + at, product(vload(c->qf + at), before));
                vstore(c->kf + at, product(vload(c->kf + at), before));
            }
            before = product(before, vload(c->total + (size_t)a * width + d));
        }
        vstore(c->running + d, before); /* the whole chunk's decay */
        for (uint32_t a = c->blocks; a-- > 0;) {
            for (uint32_t i = a * BLOCK; i < (a + 1) * BLOCK; i++) {
                size_t at = (size_t)i * width + d;
                vstore(c->kb + at, product(vload(c->kb + at), behind));
            }
            behind = product(behind, vload(c->total + (size_t)a * width + d));
        }
    }
}

/* R from v, kf and the state: forward over blocks. */
static void correct_values(struct chunk *c) {
    uint32_t width = c->width, n = c->blocks * BLOCK;
    memcpy(c->r, c->v, (size_t)n * width * sizeof(float));
    cpu_gemm(n, width, width, (struct gemm_a){c->kf, width, 1}, c->state, width, c->r, width, -1);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < width; d += VL)
            vstore(c->r + (size_t)i * width + d,
                   vload(c->r + (size_t)i * width + d) * vset(c->beta[i]));
        for (uint32_t j = 0; j < i / BLOCK * BLOCK + BLOCK; j += VL)
            vstore(c->akk + i * CHUNK + j, vload(c->akk + i * CHUNK + j) * vset(c->beta[i]));
    }
    for (uint32_t a = 0; a < c->blocks; a++) {
        float *r = c->r + (size_t)a * BLOCK * width;
        memcpy(c->rest, r, BLOCK * (size_t)width * sizeof(float));
        cpu_gemm(BLOCK, width, a * BLOCK,
                 (struct gemm_a){c->akk + (size_t)a * BLOCK * CHUNK, CHUNK, 1}, c->r, width,
                 c->rest, width, -1);
        invert(c, a);
        cpu_gemm(BLOCK, width, BLOCK, (struct gemm_a){c->inverse, BLOCK, 1}, c->rest, width, r,
                 width, 0);
    }
}

static void run_chunk(struct chunk *c, const struct kda_head *h, uint32_t row, uint32_t rows) {
    uint32_t width = c->width;
    load_rows(c, h, row, rows);
    for (uint32_t a = 0; a < c->blocks; a++) {
        decay_block(c, a);
        diagonal(c, a);
    }
    for (uint32_t b = 0; b + 1 < c->blocks; b++)
        below(c, b);
    widen_factors(c);
    correct_values(c);
    cpu_gemm(rows, width, width, (struct gemm_a){c->qf, width, 1}, c->state, width, c->o, width, 0);
    for (uint32_t a = 0; a < c->blocks; a++) {
        uint32_t i = a * BLOCK, m = rows - i < BLOCK ? rows - i : BLOCK;
        cpu_gemm(m, width, i + BLOCK, (struct gemm_a){c->aqk + (size_t)i * CHUNK, CHUNK, 1}, c->r,
                 width, c->o + (size_t)i * width, width, 1);
    }
    for (uint32_t d = 0; d < width; d++)
        for (uint32_t e = 0; e < width; e += VL)
            vstore(c->state + (size_t)d * width + e,
                   vload(c->state + (size_t)d * width + e) * vset(c->running[d]));
    cpu_gemm(width, width, c->blocks * BLOCK, (struct gemm_a){c->kb, 1, width}, c->r, width,
             c->state, width, 1);
    for (uint32_t i = 0; i < rows; i++)
        cpu_kda_output(h, row + i, c->o + (size_t)i * width);
}

static void get_state(struct chunk *c, const struct kda_head *h) {
    memset(c->state, 0, (size_t)c->width * c->width * sizeof(float));
    if (h->seq->from < 0)
        return;
    const float *s = kda_state(h->op, h->seq->from, h->head);
    for (uint32_t d = 0; d < h->dim; d++)
        memcpy(c->state + (size_t)d * c->width, s + (size_t)d * h->dim, h->dim * sizeof(float));
}

static void put_state(const struct chunk *c, const struct kda_head *h, uint32_t rows,
                      int32_t slot) {
    float *s = kda_state(h->op, slot, h->head);
    for (uint32_t d = 0; d < h->dim; d++)
        memcpy(s + (size_t)d * h->dim, c->state + (size_t)d * c->width, h->dim * sizeof(float));
    cpu_kda_put_window(h, rows, slot);
}

static void chunked(const struct op_kda *op, const struct batch_seq *seq, uint32_t head,
                    void *scratch) {
    unsigned char *at = scratch;
    struct kda_head h;
    struct chunk c;
    cpu_kda_head(&h, op, seq, head, &at);
    chunk_take(&c, h.width, &at);
    get_state(&c, &h);
    uint32_t next = 0;
    for (uint32_t row = 0; row < seq->rows;) {
        uint32_t position = seq->pos0 + row, rows = CHUNK - position % CHUNK;
        if (rows > seq->rows - row)
            rows = seq->rows - row;
        if (next < seq->n_checkpoints && seq->checkpoints[next].position - position < rows)
            rows = seq->checkpoints[next].position - position;
        run_chunk(&c, &h, row, rows);
        row += rows;
        for (; next < seq->n_checkpoints && seq->checkpoints[next].position == seq->pos0 + row;
             next++)
            put_state(&c, &h, row, seq->checkpoints[next].slot);
    }
    put_state(&c, &h, seq->rows, seq->slot);
}

void cpu_kda_prefill(const struct op_kda *op, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, op->which);
    uint64_t total = 0, begin = 0;
    for (uint32_t i = seqs.begin; i < seqs.end; i++)
        total += (uint64_t)b->seqs[i].rows * op->heads;
    uint64_t lo = total * work.index / work.count, hi = total * (work.index + 1) / work.count;
    for (uint32_t i = seqs.begin; i < seqs.end; i++) {
        const struct batch_seq *seq = &b->seqs[i];
        for (uint32_t head = 0; head < op->heads; head++, begin += seq->rows) {
            if (begin < lo || begin >= hi || seq->slot < 0)
                continue;
            if (seq->rows < SHORT)
                cpu_kda_sequence(op, seq, head, work.scratch);
            else
                chunked(op, seq, head, work.scratch);
        }
    }
}

size_t cpu_kda_prefill_scratch(const struct op_kda *op) {
    size_t chunk = cpu_kda_head_bytes(op) + chunk_bytes(op), decode = cpu_kda_decode_scratch(op);
    return (chunk > decode ? chunk : decode) + 64;
}
