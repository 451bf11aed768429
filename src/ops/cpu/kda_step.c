/* kda_step.c: Kimi Delta Attention by its recurrence. Called through the columns of this folder for
 * decoding, and by kda_chunk.c where few tokens make no chunk. With A = diag(exp g),
 *   r = S^T A k and o' = S^T A q in one sweep over the old state, u = beta (v - r), then
 *   S = A S + k u^T in another; the read-out after the update is o = o' + (q.k) u.
 * A state comes from memory once and goes there once: between its two sweeps it lies in the
 * second-level cache. The first sweep asks for the rows it will soon read; the second, for which
 * nothing is to come, for what the next head begins with. To ask for the whole next head instead
 * took 5 to 18 % more on Zen 5 (docs/performance.md). */
#include "ops/cpu/kda.h"

/* Rows of a group, and vectors of columns in registers: of sums of two kinds, or of corrections. */
enum { SWEEP_ROWS = 8 };

#if defined(WEIR_ISA_AVX512)
enum { WIDE = 8 };
#else
enum { WIDE = 4 };
#endif
/* A head of 128 begins with 472 lines: its taps, its activations, its window and FIRST_ROWS of its
 * state; the head before asks for four of them with a row of its second sweep (at 512 bits; at 256
 * one with each of four pieces of a row). OWN_ROWS more, 320 lines, are asked for by its
 * convolutions and gates. */
enum { FETCH_LINES = WIDE * VL / 32, OWN_ROWS = 40 };

ALWAYS vf state_load(const float *p, vm m, const bool masked) {
    return masked ? vloadm(p, m) : vload(p);
}
ALWAYS void state_store(float *p, vm m, vf x, const bool masked) {
    if (masked)
        vstorem(p, m, x);
    else
        vstore(p, x);
}

/* The state at V vectors of columns of R rows; masked: V is 1. */
struct block {
    const float *in;
    float *out;
    size_t stride;
    vm m;
};

/* n floats of the row that follows SOON_ROWS behind `in`, which may lie behind the state. */
ALWAYS void read_soon(const float *in, size_t stride, const uint32_t n) {
    const uintptr_t at = (uintptr_t)in + SOON_ROWS * stride * sizeof *in;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n * sizeof *in; i += LINE)
        __builtin_prefetch((const void *)(at + i), 0, 3);
}
/* r += s_d dk_d and o += s_d dq_d. soon: the state comes from memory. Into the first cache: a line
 * asked for SOON_ROWS ahead is still there when it is read. */
ALWAYS void read_block(const struct kda_step *x, struct block b, uint32_t d, uint32_t c,
                       const bool masked, const uint32_t R, const int V, const bool soon) {
    vf r[WIDE], o[WIDE];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
        r[v] = vload(x->u + c + v * VL);
        o[v] = vload(x->o + c + v * VL);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < R; i++, b.in += b.stride) {
        vf dk = vset(x->dk[d + i]), dq = vset(x->dq[d + i]);
        if (soon)
            read_soon(b.in, b.stride, V * VL);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            vf s = state_load(b.in + v * VL, b.m, masked);
            r[v] = vfma(dk, s, r[v]);
            o[v] = vfma(dq, s, o[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
        vstore(x->u + c + v * VL, r[v]);
        vstore(x->o + c + v * VL, o[v]);
    }
}

/* s_d = decay_d s_d + k_d u */
ALWAYS void write_block(const struct kda_step *x, struct block b, uint32_t d, uint32_t c,
                        const bool masked, const uint32_t R, const int V, struct ahead *ahead) {
    vf u[WIDE];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
        u[v] = vload(x->u + c + v * VL);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < R; i++, b.in += b.stride, b.out += b.stride) {
        vf k = vset(x->k[d + i]), decay = vset(x->decay[d + i]);
        if (ahead)
            ahead_fetch(ahead, FETCH_LINES);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            state_store(b.out + v * VL, b.m,
                        vfma(k, u[v], state_load(b.in + v * VL, b.m, masked) * decay), masked);
    }
}

enum sweep { READ, WRITE, BOTH };

/* Group of R rows from d on, over all columns. */
ALWAYS void group(const enum sweep what, const struct kda_step *last, const struct kda_step *next,
                  const float *in, float *out, size_t stride, uint32_t d, uint32_t cols,
                  struct ahead *ahead, const uint32_t R) {
    struct block b = {in + d * stride, out + d * stride, stride, vmask(VL)};
    uint32_t c = 0;
    for (; c + WIDE * VL <= cols; c += WIDE * VL, b.in += WIDE * VL, b.out += WIDE * VL) {
        if (what != READ)
            write_block(last, b, d, c, false, R, WIDE, ahead);
        if (what != WRITE)
            read_block(next, what == READ ? b : (struct block){b.out, b.out, stride, b.m}, d, c,
                       false, R, WIDE, what == READ && ahead);
    }
    for (; c < cols; c += VL, b.in += VL, b.out += VL) {
        b.m = vmask(cols - c);
        if (what != READ)
            write_block(last, b, d, c, true, R, 1, NULL);
        if (what != WRITE)
            read_block(next, what == READ ? b : (struct block){b.out, b.out, stride, b.m}, d, c,
                       true, R, 1, false);
    }
}

ALWAYS void sweep(const enum sweep what, const struct kda_step *last, const struct kda_step *next,
                  const float *in, float *out, size_t stride, uint32_t rows, uint32_t cols,
                  struct ahead *ahead) {
    uint32_t d = 0;
    for (; d + SWEEP_ROWS <= rows; d += SWEEP_ROWS)
        group(what, last, next, in, out, stride, d, cols, ahead, SWEEP_ROWS);
    for (; d < rows; d++)
        group(what, last, next, in, out, stride, d, cols, ahead, 1);
}

static void sweep_read(const struct kda_step *next, const float *in, size_t stride, uint32_t rows,
                       uint32_t cols, struct ahead *ahead) {
    sweep(READ, NULL, next, in, NULL, stride, rows, cols, ahead);
}
static void sweep_write(const struct kda_step *last, const float *in, float *out, size_t stride,
                        uint32_t rows, uint32_t cols, struct ahead *ahead) {
    sweep(WRITE, last, NULL, in, out, stride, rows, cols, ahead);
}
static void sweep_both(const struct kda_step *last, const struct kda_step *next, const float *in,
                       float *out, size_t stride, uint32_t rows, uint32_t cols,
                       struct ahead *ahead) {
    sweep(BOTH, last, next, in, out, stride, rows, cols, ahead);
}

void cpu_kda_reads(const struct kda_tokens *t, uint32_t i, uint32_t width, struct kda_step *s) {
    size_t at = (size_t)i * width;
    s->k = t->k + at;
    s->v = t->v + at;
    s->decay = t->decay + at;
    s->beta = t->beta[i];
    vf qk = vset(0);
    for (uint32_t c = 0; c < width; c += VL) {
        vf q = vload(t->q + at + c), k = vload(s->k + c), decay = vload(s->decay + c);
        vstore(s->dk + c, decay * k);
        vstore(s->dq + c, decay * q);
        qk = vfma(q, k, qk);
    }
    s->qk = vsum(qk);
}

void cpu_kda_sweep(const struct kda_step *last, const struct kda_step *next, const float *in,
                   float *out, size_t stride, uint32_t rows, uint32_t cols, struct ahead *ahead) {
    for (uint32_t c = 0; next && c < cols; c += VL) {
        vstore(next->u + c, vset(0));
        vstore(next->o + c, vset(0));
    }
    if (last && next)
        sweep_both(last, next, in, out, stride, rows, cols, ahead);
    else if (last)
        sweep_write(last, in, out, stride, rows, cols, ahead);
    else
        sweep_read(next, in, stride, rows, cols, ahead);
    for (uint32_t c = 0; next && c < cols; c += VL) {
        vf x = vset(next->beta) * (vload(next->v + c) - vload(next->u + c));
        vstore(next->o + c, vfma(vset(next->qk), x, vload(next->o + c)));
        vstore(next->u + c, x);
    }
}

/* ------------------------------------------------------------------------------------ sequences */

static size_t token_bytes(uint32_t width) {
    return 8 * (width * sizeof(float) + 64);
}

size_t cpu_kda_decode_scratch(const struct op_kda *op) {
    return cpu_kda_head_bytes(op) + 2 * token_bytes(kda_width(op->dim)) + 64;
}

static void put_checkpoint(const struct kda_head *h, uint32_t rows, int32_t slot,
                           const float *state) {
    float *to = kda_state(h->op, slot, h->head);
    if (to != state)
        memcpy(to, state, (size_t)h->dim * h->dim * sizeof(float));
    cpu_kda_put_window(h, rows, slot);
}

/* Row r of a head as a step in one of two places: its u is still wanted when the next row's comes.
 */
static void take_step(struct kda_step *s, const struct kda_head *h, uint32_t r, unsigned char *at,
                      struct ahead *ahead) {
    size_t bytes = h->width * sizeof(float);
    float beta;
    struct kda_tokens t = {carve(&at, bytes), carve(&at, bytes), carve(&at, bytes),
                           carve(&at, bytes), &beta};
    s->dk = carve(&at, bytes);
    s->dq = carve(&at, bytes);
    s->u = carve(&at, bytes);
    s->o = carve(&at, bytes);
    cpu_kda_tokens(h, r, 1, &t, ahead);
    cpu_kda_reads(&t, 0, h->width, s);
}

void cpu_kda_recur(const struct op_kda *op, struct kda_unit unit, struct kda_unit next_unit,
                   uint32_t next_rows, void *scratch) {
    const struct batch_seq *seq = unit.seq;
    uint32_t dim = op->dim, head = unit.head, next = 0;
    struct ahead ahead;
    ahead_open(&ahead);
    if (seq->from >= 0 && dim > FIRST_ROWS)
        ahead_add(&ahead, kda_state(op, seq->from, head) + FIRST_ROWS * dim,
                  (size_t)dim * (dim - FIRST_ROWS < OWN_ROWS ? dim - FIRST_ROWS : OWN_ROWS));
    if (next_unit.seq && next_unit.seq->slot >= 0)
        cpu_kda_list_ahead(&ahead, op, next_unit, next_rows);
    float *out = kda_state(op, seq->slot, head);
    const float *in = seq->from < 0 ? out : kda_state(op, seq->from, head);
    unsigned char *tokens = scratch;
    struct kda_head h;
    struct kda_step step[2], *last = NULL; /* last: not yet in the state */
    cpu_kda_head(&h, op, seq, head, &tokens);
    if (seq->from < 0) /* whatever the slot held, a NaN included, is gone */
        memset(out, 0, (size_t)dim * dim * sizeof(float));
    for (uint32_t r = 0; r < seq->rows; r++) {
        struct kda_step *s = &step[r % 2];
        take_step(s, &h, r, tokens + r % 2 * token_bytes(h.width), &ahead);
        cpu_kda_sweep(last, s, in, out, dim, dim, dim, &ahead);
        cpu_kda_output(&h, r, s->o);
        in = last ? out : in;
        last = s;
        for (; next < seq->n_checkpoints && seq->checkpoints[next].position == seq->pos0 + r + 1;
             next++) {
            if (last)
                cpu_kda_sweep(last, NULL, in, out, dim, dim, dim, &ahead);
            in = out;
            last = NULL;
            put_checkpoint(&h, r + 1, seq->checkpoints[next].slot, out);
        }
    }
    if (last)
        cpu_kda_sweep(last, NULL, in, out, dim, dim, dim, &ahead);
    cpu_kda_put_window(&h, seq->rows, seq->slot);
}

void cpu_kda_list_ahead(struct ahead *a, const struct op_kda *op, struct kda_unit u,
                        uint32_t rows) {
    const struct batch_seq *seq = u.seq;
    uint32_t dim = op->dim, past = 3 * (op->taps - 1);
    size_t width = (size_t)op->heads * dim, at = (size_t)u.head * dim;
    const float *taps[3] = {op->q_taps, op->k_taps, op->v_taps};
    for (int part = 0; part < 3; part++) {
        ahead_add(a, taps[part] + at * op->taps, (size_t)dim * op->taps);
        ahead_add(a, tensor_row(kda_projection(op, part), seq->row0) + at, dim);
    }
    ahead_add(a, op->dt + at, dim);
    ahead_add(a, tensor_row(op->z, seq->row0) + at, dim);
    ahead_add(a, tensor_row(op->go, seq->row0) + at, dim);
    if (seq->from < 0)
        return;
    ahead_rows(a, kda_window(op, seq->from) + at, dim, width, past);
    ahead_add(a, kda_state(op, seq->from, u.head), (size_t)dim * (rows < dim ? rows : dim));
}

void cpu_kda_decode(const struct op_kda *op, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, op->which), s;
    uint32_t units = (seqs.end - seqs.begin) * op->heads;
    uint32_t others = work_span(work, units).end; /* whose head that is fetches it */
    variant_of(&work);
    unsigned before = vflush();
    while (work_next(&work, units, &s))
        for (uint32_t i = s.begin; i < s.end; i++) {
            struct kda_unit u = {&b->seqs[seqs.begin + i / op->heads], i % op->heads}, next = {0};
            if (i + 1 < units && i + 1 != others)
                next = (struct kda_unit){&b->seqs[seqs.begin + (i + 1) / op->heads],
                                         (i + 1) % op->heads};
            if (u.seq->slot >= 0)
                cpu_kda_recur(op, u, next, FIRST_ROWS, work.scratch);
        }
    vunflush(before);
}
