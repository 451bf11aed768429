/* kda_step.c: Kimi Delta Attention by its recurrence. Called through the columns of this folder for
 * decoding, and by kda_chunk.c where few tokens make no chunk. With A = diag(exp g),
 *   r = S^T A k and o' = S^T A q in one sweep over the old state, u = beta (v - r), then
 *   S = A S + k u^T; the read-out after the update is o = o' + (q.k) u.
 * The update waits for the sweep that reads for the next token, of the same head or of the one
 * behind it. So a state comes from memory once and goes there once, the head that is updated lies
 * in the second-level cache, and memory works all the time: a core that goes over cached rows alone
 * asks it for nothing. Rows are walked whole, a few at a time, as one long stream. */
#include "ops/cpu/kda.h"

enum { AHEAD_FLOATS = 512 }; /* four rows of a head of 128 */
#if defined(WEIR_ISA_AVX512)
enum { SWEEP_ROWS = 8, WIDE = 8 };
#else
enum { SWEEP_ROWS = 4, WIDE = 4 };
#endif

ALWAYS vf state_load(const float *p, vm m, const bool masked) {
    return masked ? vloadm(p, m) : vload(p);
}

/* r += s_d dk_d and o += s_d dq_d at one vector of columns of R rows. */
ALWAYS void read_vector(const float *s, size_t stride, const vf *dk, const vf *dq, float *r,
                        float *o, vm m, const bool masked, const int R) {
    vf a = vload(r), b = vload(o);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        vf x = state_load(s + (size_t)i * stride, m, masked);
        a = vfma(dk[i], x, a);
        b = vfma(dq[i], x, b);
    }
    vstore(r, a);
    vstore(o, b);
}

ALWAYS void read_rows(const struct kda_step *x, size_t stride, uint32_t cols, uint32_t d,
                      const bool far, const int R) {
    vf dk[SWEEP_ROWS], dq[SWEEP_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        dk[i] = vset(x->dk[d + (uint32_t)i]);
        dq[i] = vset(x->dq[d + (uint32_t)i]);
    }
    const float *s = x->in + d * stride;
    uint32_t c = 0;
    for (; c + VL <= cols; c += VL) {
        if (far && c % 16 == 0)
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) /* a line of each row of the group to come */
                __builtin_prefetch(s + (size_t)(R + i) * stride + c);
        read_vector(s + c, stride, dk, dq, x->u + c, x->o + c, vmask(VL), false, R);
    }
    if (c < cols)
        read_vector(s + c, stride, dk, dq, x->u + c, x->o + c, vmask(cols - c), true, R);
}

/* s_d = decay_d s_d + k_d u */
ALWAYS void write_vector(const float *in, float *out, size_t stride, const vf *decay, const vf *k,
                         vf u, vm m, const bool masked, const int R) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        vf x = vfma(k[i], u, state_load(in + (size_t)i * stride, m, masked) * decay[i]);
        if (masked)
            vstorem(out + (size_t)i * stride, m, x);
        else
            vstore(out + (size_t)i * stride, x);
    }
}

ALWAYS void write_rows(const struct kda_step *x, size_t stride, uint32_t cols, uint32_t d,
                       const int R) {
    vf decay[SWEEP_ROWS], k[SWEEP_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        decay[i] = vset(x->decay[d + (uint32_t)i]);
        k[i] = vset(x->k[d + (uint32_t)i]);
    }
    const float *in = x->in + d * stride;
    float *out = x->out + d * stride;
    uint32_t c = 0;
    for (; c + VL <= cols; c += VL)
        write_vector(in + c, out + c, stride, decay, k, vload(x->u + c), vmask(VL), false, R);
    if (c < cols)
        write_vector(in + c, out + c, stride, decay, k, vload(x->u + c), vmask(cols - c), true, R);
}

/* The same over rows of exactly WIDE vectors, row by row with the sums in registers: lines come in
 * the order of memory, which is what a processor's own prefetching follows. */
ALWAYS void read_wide(const struct kda_step *x, size_t stride, uint32_t d) {
    vf r[WIDE], o[WIDE];
#pragma GCC unroll 8
    for (int v = 0; v < WIDE; v++) {
        r[v] = vload(x->u + v * VL);
        o[v] = vload(x->o + v * VL);
    }
    for (uint32_t i = 0; i < SWEEP_ROWS; i++) {
        const float *s = x->in + (d + i) * stride;
        vf dk = vset(x->dk[d + i]), dq = vset(x->dq[d + i]);
#pragma GCC unroll 8
        for (int v = 0; v < WIDE; v++) {
            __builtin_prefetch(s + v * VL + AHEAD_FLOATS);
            vf y = vload(s + v * VL);
            r[v] = vfma(dk, y, r[v]);
            o[v] = vfma(dq, y, o[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < WIDE; v++) {
        vstore(x->u + v * VL, r[v]);
        vstore(x->o + v * VL, o[v]);
    }
}
ALWAYS void write_wide(const struct kda_step *x, size_t stride, uint32_t d) {
    vf u[WIDE];
#pragma GCC unroll 8
    for (int v = 0; v < WIDE; v++)
        u[v] = vload(x->u + v * VL);
    for (uint32_t i = 0; i < SWEEP_ROWS; i++) {
        const float *in = x->in + (d + i) * stride;
        float *out = x->out + (d + i) * stride;
        vf k = vset(x->k[d + i]), decay = vset(x->decay[d + i]);
#pragma GCC unroll 8
        for (int v = 0; v < WIDE; v++)
            vstore(out + v * VL, vfma(k, u[v], vload(in + v * VL) * decay));
    }
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

ALWAYS void sweep(const struct kda_step *last, const struct kda_step *next, size_t stride,
                  uint32_t rows, uint32_t cols, struct ahead *ahead, const bool far) {
    uint32_t d = 0;
    for (; d + SWEEP_ROWS <= rows; d += SWEEP_ROWS) {
        if (far)
            ahead_fetch(ahead);
        bool wide = far && cols == WIDE * VL;
        if (last && wide)
            write_wide(last, stride, d);
        else if (last)
            write_rows(last, stride, cols, d, SWEEP_ROWS);
        if (next && wide)
            read_wide(next, stride, d);
        else if (next)
            read_rows(next, stride, cols, d, far, SWEEP_ROWS);
    }
    for (; d < rows; d++) {
        if (last)
            write_rows(last, stride, cols, d, 1);
        if (next)
            read_rows(next, stride, cols, d, far, 1);
    }
}

void cpu_kda_sweep(const struct kda_step *last, const struct kda_step *next, size_t stride,
                   uint32_t rows, uint32_t cols, struct ahead *ahead) {
    for (uint32_t c = 0; next && c < cols; c += VL) {
        vstore(next->u + c, vset(0));
        vstore(next->o + c, vset(0));
    }
    if (ahead)
        sweep(last, next, stride, rows, cols, ahead, true);
    else
        sweep(last, next, stride, rows, cols, NULL, false);
    for (uint32_t c = 0; next && c < cols; c += VL) {
        vf x = vset(next->beta) * (vload(next->v + c) - vload(next->u + c));
        vstore(next->o + c, vfma(vset(next->qk), x, vload(next->o + c)));
        vstore(next->u + c, x);
    }
}

/* ---------------------------------------------------------------------------------------- flow */

static size_t token_bytes(uint32_t width) {
    return 8 * (width * sizeof(float) + 64);
}

size_t cpu_kda_flow_bytes(const struct op_kda *op) {
    return cpu_kda_head_bytes(op) + 2 * token_bytes(kda_width(op->dim)) + 64;
}

void cpu_kda_flow_open(struct kda_flow *f, const struct op_kda *op, void *scratch) {
    f->op = op;
    f->at = 0;
    f->pending = NULL;
    f->scratch = scratch;
    ahead_open(&f->ahead, 0);
}

void cpu_kda_flow_close(struct kda_flow *f) {
    uint32_t dim = f->op->dim;
    if (f->pending)
        cpu_kda_sweep(f->pending, NULL, dim, dim, dim, &f->ahead);
    f->pending = NULL;
}

static void put_checkpoint(const struct kda_head *h, uint32_t rows, int32_t slot,
                           const float *state) {
    float *to = kda_state(h->op, slot, h->head);
    if (to != state)
        memcpy(to, state, (size_t)h->dim * h->dim * sizeof(float));
    cpu_kda_put_window(h, rows, slot);
}

void cpu_kda_flow_head(struct kda_flow *f, const struct batch_seq *seq, uint32_t head) {
    const struct op_kda *op = f->op;
    uint32_t dim = op->dim, width = kda_width(dim), next = 0;
    size_t bytes = width * sizeof(float);
    float *out = kda_state(op, seq->slot, head), beta;
    const float *in = seq->from < 0 ? out : kda_state(op, seq->from, head);
    unsigned char *tokens = f->scratch;
    struct kda_head h;
    cpu_kda_head(&h, op, seq, head, &tokens);
    if (seq->from < 0) /* whatever the slot held, a NaN included, is gone */
        memset(out, 0, (size_t)dim * dim * sizeof(float));
    for (uint32_t r = 0; r < seq->rows; r++) {
        struct kda_step *s = &f->s[f->at];
        unsigned char *at = tokens + f->at * token_bytes(width);
        struct kda_tokens t = {carve(&at, bytes), carve(&at, bytes), carve(&at, bytes),
                               carve(&at, bytes), &beta};
        *s = (struct kda_step){.in = in,
                               .out = out,
                               .dk = carve(&at, bytes),
                               .dq = carve(&at, bytes),
                               .u = carve(&at, bytes),
                               .o = carve(&at, bytes)};
        cpu_kda_tokens(&h, r, 1, &t, &f->ahead);
        cpu_kda_reads(&t, 0, width, s);
        cpu_kda_sweep(f->pending, s, dim, dim, dim, &f->ahead);
        cpu_kda_output(&h, r, s->o);
        f->pending = s;
        f->at = !f->at;
        in = out;
        for (; next < seq->n_checkpoints && seq->checkpoints[next].position == seq->pos0 + r + 1;
             next++) {
            cpu_kda_flow_close(f);
            put_checkpoint(&h, r + 1, seq->checkpoints[next].slot, out);
        }
    }
    cpu_kda_put_window(&h, seq->rows, seq->slot);
}

/* What the first token of a head reads beside its state: window, taps and activations. */
static void list_ahead(struct ahead *a, const struct op_kda *op, const struct batch_seq *seq,
                       uint32_t head) {
    uint32_t dim = op->dim, past = 3 * (op->taps - 1);
    size_t width = (size_t)op->heads * dim, at = (size_t)head * dim;
    ahead_open(a, dim);
    if (seq->slot < 0)
        return;
    if (seq->from >= 0)
        ahead_rows(a, kda_window(op, seq->from) + at, width, past);
    const float *taps[3] = {op->q_taps, op->k_taps, op->v_taps};
    for (int part = 0; part < 3; part++) {
        ahead_rows(a, taps[part] + at * op->taps, dim, op->taps);
        ahead_add(a, tensor_row(kda_projection(op, part), seq->row0) + at);
    }
    ahead_add(a, tensor_row(op->z, seq->row0) + at);
    ahead_add(a, tensor_row(op->go, seq->row0) + at);
}

void cpu_kda_decode(const struct op_kda *op, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, op->which), s;
    struct kda_flow f;
    unsigned before = vflush();
    cpu_kda_flow_open(&f, op, work.scratch);
    while (work_next(&work, (seqs.end - seqs.begin) * op->heads, &s))
        for (uint32_t unit = s.begin; unit < s.end; unit++) {
            const struct batch_seq *seq = &b->seqs[seqs.begin + unit / op->heads];
            ahead_open(&f.ahead, 0);
            if (unit + 1 < s.end)
                list_ahead(&f.ahead, op, &b->seqs[seqs.begin + (unit + 1) / op->heads],
                           (unit + 1) % op->heads);
            if (seq->slot >= 0)
                cpu_kda_flow_head(&f, seq, unit % op->heads);
        }
    cpu_kda_flow_close(&f);
    vunflush(before);
}

size_t cpu_kda_decode_scratch(const struct op_kda *op) {
    return cpu_kda_flow_bytes(op);
}
