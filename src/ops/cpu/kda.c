/* kda.c: Kimi Delta Attention by its recurrence, and the parts it shares with the chunked form:
 * convolution, norms, gates, gated output norm. Called through the columns of this folder.
 * The state is swept as seldom as the formula allows: with A = diag(exp g),
 *   r = S^T A k and o' = S^T A q in one read, u = beta (v - r), then S = A S + k u^T in one pass
 * of read and write; the read-out after the update is o = o' + (q.k) u. Columns of the state go in
 * blocks that stay in the first-level cache between the two passes.
 * Invariant that bites: `from` and `slot` may be the same slot or not, and the window belongs to
 * the state: both are read before either is written. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vmath.h"

#include <math.h>

enum { COLUMN_VECS = 4 };

static struct tensor projection(const struct op_kda *op, int part) {
    return part == 0 ? op->q : part == 1 ? op->k : op->v;
}

static float *window_of(const struct op_kda *op, int32_t slot) {
    return kda_state(op, slot, 0) + (size_t)op->heads * op->dim * op->dim;
}

size_t cpu_kda_head_bytes(const struct op_kda *op) {
    size_t width = round_up(op->dim, 16);
    return 3 * (op->taps * width * sizeof(float) + 64) +
           3 * (size_t)op->taps * width * sizeof(float) + 64;
}

/* Taps lie channel by channel; the convolution wants them tap by tap. */
static void split_taps(const float *taps, uint32_t n, uint32_t dim, uint32_t width, float *out) {
    uint32_t c = 0;
    if (n == 4)
        for (; c + VL <= dim; c += VL) {
            vf t[4];
            vsplit4(taps + 4 * c, t);
            for (int j = 0; j < 4; j++)
                vstore(out + (size_t)j * width + c, t[j]);
        }
    for (; c < width; c++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)j * width + c] = c < dim ? taps[(size_t)c * n + j] : 0;
}

void cpu_kda_head(struct kda_head *h, const struct op_kda *op, const struct batch_seq *seq,
                  uint32_t head, unsigned char **scratch) {
    uint32_t dim = op->dim, width = round_up(dim, 16), past = op->taps - 1;
    *h = (struct kda_head){.op = op, .seq = seq, .head = head, .dim = dim, .width = width};
    const float *taps[3] = {op->q_taps, op->k_taps, op->v_taps};
    for (int part = 0; part < 3; part++) {
        h->taps[part] = carve(scratch, op->taps * width * sizeof(float));
        split_taps(taps[part] + (size_t)head * dim * op->taps, op->taps, dim, width, h->taps[part]);
    }
    size_t floats = 3 * (size_t)past * width, stride = (size_t)op->heads * dim;
    h->window = carve(scratch, floats * sizeof(float));
    memset(h->window, 0, floats * sizeof(float));
    for (uint32_t i = 0; seq->from >= 0 && i < 3 * past; i++)
        memcpy(h->window + (size_t)i * width,
               window_of(op, seq->from) + i * stride + (size_t)head * dim, dim * sizeof(float));
}

/* The projection of part q, k or v at `row` of the sequence; rows before the first are in the
 * window. Beyond dim the memory is another head's: read it with a mask. */
static const float *input(const struct kda_head *h, int part, int64_t row) {
    if (row >= 0)
        return tensor_row(projection(h->op, part), h->seq->row0 + (size_t)row) +
               (size_t)h->head * h->dim;
    int64_t past = h->op->taps - 1;
    return h->window + (size_t)(part * past + past + row) * h->width;
}

void cpu_kda_put_window(const struct kda_head *h, uint32_t rows, int32_t slot) {
    uint32_t past = h->op->taps - 1;
    size_t stride = (size_t)h->op->heads * h->dim;
    float *to = window_of(h->op, slot) + (size_t)h->head * h->dim;
    for (int part = 0; part < 3; part++)
        for (uint32_t i = 0; i < past; i++, to += stride)
            memcpy(to, input(h, part, (int64_t)rows - past + i), h->dim * sizeof(float));
}

/* SiLU of the convolution of one part at `row`; gives the sum of squares. */
static float convolve(const struct kda_head *h, int part, uint32_t row, float *y) {
    uint32_t taps = h->op->taps;
    vf square = vset(0);
    for (uint32_t c = 0; c < h->width; c += VL) {
        vm m = vmask(c < h->dim ? h->dim - c : 0);
        vf sum = vset(0);
        for (uint32_t j = 0; j < taps; j++)
            sum = vfma(vload(h->taps[part] + (size_t)j * h->width + c),
                       vloadm(input(h, part, (int64_t)row - taps + 1 + j) + c, m), sum);
        sum = sum * vsigmoid(sum);
        vstore(y + c, sum);
        square = vfma(sum, sum, square);
    }
    return vsum(square);
}

static void scale(float *x, float by, uint32_t n) {
    for (uint32_t c = 0; c < n; c += VL)
        vstore(x + c, vload(x + c) * vset(by));
}

void cpu_kda_token(const struct kda_head *h, uint32_t row, struct kda_token *t) {
    const struct op_kda *op = h->op;
    size_t at = (size_t)h->head * h->dim, r = h->seq->row0 + (size_t)row;
    float qq = convolve(h, 0, row, t->q), kk = convolve(h, 1, row, t->k);
    convolve(h, 2, row, t->v);
    scale(t->q, 1.0f / sqrtf(qq + 1e-6f) / sqrtf((float)h->dim), h->width);
    scale(t->k, 1.0f / sqrtf(kk + 1e-6f), h->width);
    float b = tensor_row(op->b, r)[h->head], ea = op->ea[h->head];
    t->beta = 1.0f / (1.0f + expf(-b));
    const float *z = tensor_row(op->z, r) + at, *dt = op->dt + at;
    for (uint32_t c = 0; c < h->width; c += VL) {
        vm m = vmask(c < h->dim ? h->dim - c : 0);
        vf x = vloadm(z + c, m) + vloadm(dt + c, m);
        vf g = op->lower_bound < 0 ? vset(op->lower_bound) * vsigmoid(vset(ea) * x)
                                   : vset(-ea) * vsoftplus(x);
        vstore(t->decay + c, vexp(g));
    }
}

void cpu_kda_output(const struct kda_head *h, uint32_t row, const float *o) {
    const struct op_kda *op = h->op;
    size_t at = (size_t)h->head * h->dim, r = h->seq->row0 + (size_t)row;
    const float *go = tensor_row(op->go, r) + at;
    float *out = tensor_row(op->out, r) + at;
    vf square = vset(0);
    for (uint32_t c = 0; c < h->dim; c += VL) {
        vf x = vloadm(o + c, vmask(h->dim - c));
        square = vfma(x, x, square);
    }
    float inv = 1.0f / sqrtf(vsum(square) / (float)h->dim + op->eps);
    for (uint32_t c = 0; c < h->dim; c += VL) {
        vm m = vmask(h->dim - c);
        vf x = vloadm(o + c, m) * vset(inv) * vloadm(op->o_norm + c, m);
        vstorem(out + c, m, x * vsigmoid(vloadm(go + c, m)));
    }
}

/* What every block of columns needs of a token: decay*k, decay*q, q.k. */
struct reads {
    float *dk, *dq;
    float qk;
};

static float form_reads(const struct kda_token *t, uint32_t width, float *dk, float *dq) {
    vf qk = vset(0);
    for (uint32_t c = 0; c < width; c += VL) {
        vf q = vload(t->q + c), k = vload(t->k + c), decay = vload(t->decay + c);
        vstore(dk + c, decay * k);
        vstore(dq + c, decay * q);
        qk = vfma(q, k, qk);
    }
    return vsum(qk);
}

/* V vectors of columns from c on; the last (or only) one may be partial. `in` == NULL: zero state.
 */
ALWAYS void step_columns(const float *in, float *out, uint32_t dim, uint32_t c,
                         const struct kda_token *t, const struct reads *x, float *o, vm part,
                         const bool masked, const int V) {
    vf r[COLUMN_VECS], q[COLUMN_VECS];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
        r[v] = q[v] = vset(0);
    if (in)
        for (uint32_t d = 0; d < dim; d++) {
            const float *s = in + (size_t)d * dim + c;
            vf dk = vset(x->dk[d]), dq = vset(x->dq[d]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                vf sv = masked ? vloadm(s + v * VL, part) : vload(s + v * VL);
                r[v] = vfma(dk, sv, r[v]);
                q[v] = vfma(dq, sv, q[v]);
            }
        }
    vf u[COLUMN_VECS];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        u[v] = vset(t->beta) * (vload(t->v + c + v * VL) - r[v]);
        vstore(o + c + v * VL, vfma(vset(x->qk), u[v], q[v]));
    }
    for (uint32_t d = 0; d < dim; d++) {
        vf k = vset(t->k[d]), decay = vset(t->decay[d]);
        size_t at = (size_t)d * dim + c;
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            vf s = vset(0);
            if (in)
                s = (masked ? vloadm(in + at + v * VL, part) : vload(in + at + v * VL)) * decay;
            s = vfma(k, u[v], s);
            if (masked)
                vstorem(out + at + v * VL, part, s);
            else
                vstore(out + at + v * VL, s);
        }
    }
}

/* One token: reads `in`, writes `out` (they may be the same), read-out into o [width]. */
static void step(const float *in, float *out, uint32_t dim, const struct kda_token *t,
                 const struct reads *x, float *o) {
    uint32_t c = 0;
    for (; c + COLUMN_VECS * VL <= dim; c += COLUMN_VECS * VL)
        step_columns(in, out, dim, c, t, x, o, vmask(VL), false, COLUMN_VECS);
    for (; c + 2 * VL <= dim; c += 2 * VL)
        step_columns(in, out, dim, c, t, x, o, vmask(VL), false, 2);
    for (; c < dim; c += VL)
        step_columns(in, out, dim, c, t, x, o, vmask(dim - c), true, 1);
}

static void put_checkpoint(const struct kda_head *h, uint32_t rows, int32_t slot,
                           const float *state) {
    float *to = kda_state(h->op, slot, h->head);
    if (to != state)
        memcpy(to, state, (size_t)h->dim * h->dim * sizeof(float));
    cpu_kda_put_window(h, rows, slot);
}

void cpu_kda_sequence(const struct op_kda *op, const struct batch_seq *seq, uint32_t head,
                      void *scratch) {
    unsigned char *at = scratch;
    struct kda_head h;
    cpu_kda_head(&h, op, seq, head, &at);
    size_t bytes = h.width * sizeof(float);
    struct kda_token t = {carve(&at, bytes), carve(&at, bytes), carve(&at, bytes),
                          carve(&at, bytes), 0};
    struct reads x = {carve(&at, bytes), carve(&at, bytes), 0};
    float *o = carve(&at, bytes);
    float *out = kda_state(op, seq->slot, head);
    const float *in = seq->from < 0 ? NULL : kda_state(op, seq->from, head);
    uint32_t next = 0;
    for (uint32_t r = 0; r < seq->rows; r++) {
        cpu_kda_token(&h, r, &t);
        x.qk = form_reads(&t, h.width, x.dk, x.dq);
        step(in, out, h.dim, &t, &x, o);
        cpu_kda_output(&h, r, o);
        in = out;
        for (; next < seq->n_checkpoints && seq->checkpoints[next].position == seq->pos0 + r + 1;
             next++)
            put_checkpoint(&h, r + 1, seq->checkpoints[next].slot, out);
    }
    cpu_kda_put_window(&h, seq->rows, seq->slot);
}

void cpu_kda_decode(const struct op_kda *op, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, op->which);
    struct span s = work_span(work, (seqs.end - seqs.begin) * op->heads);
    for (uint32_t unit = s.begin; unit < s.end; unit++) {
        const struct batch_seq *seq = &b->seqs[seqs.begin + unit / op->heads];
        if (seq->slot >= 0)
            cpu_kda_sequence(op, seq, unit % op->heads, work.scratch);
    }
}

size_t cpu_kda_decode_scratch(const struct op_kda *op) {
    return cpu_kda_head_bytes(op) + 7 * (round_up(op->dim, 16) * sizeof(float) + 64) + 64;
}
