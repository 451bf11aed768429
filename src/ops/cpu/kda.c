/* kda.c: Kimi Delta Attention: the parts that both forms share: convolution, norms, gates, gated
 * output norm. Called by kda_step.c and kda_chunk.c. Rows go four at a time: they share taps and
 * inputs, and the exponentials of one hide the latency of the others'.
 * Invariant that bites: `from` and `slot` may be the same slot or not, and the window belongs to
 * the state: both are read before either is written. A row's bits must not depend on the rows it
 * was grouped with. */
#include "ops/cpu/kda.h"
#include "ops/cpu/vmath.h"

#include <math.h>

enum { TOGETHER = 4, USUAL_TAPS = 4 };

size_t cpu_kda_head_bytes(const struct op_kda *op) {
    size_t width = kda_width(op->dim);
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
    uint32_t dim = op->dim, width = kda_width(dim), past = op->taps - 1;
    *h = (struct kda_head){.op = op, .seq = seq, .head = head, .dim = dim, .width = width};
    const float *taps[3] = {op->q_taps, op->k_taps, op->v_taps};
    bool split = seq->rows > 1 || op->taps != USUAL_TAPS || dim % VL != 0;
    for (int part = 0; part < 3; part++) {
        h->stored_taps[part] = taps[part] + (size_t)head * dim * op->taps;
        h->taps[part] = split ? carve(scratch, op->taps * width * sizeof(float)) : NULL;
        if (split)
            split_taps(h->stored_taps[part], op->taps, dim, width, h->taps[part]);
    }
    size_t floats = 3 * (size_t)past * width;
    float *copy = carve(scratch, floats * sizeof(float));
    h->window_stride = (size_t)op->heads * dim;
    h->window = seq->from < 0 ? NULL : kda_window(op, seq->from) + (size_t)head * dim;
    if (h->window && seq->rows == 1)
        return;
    if (!h->window)
        memset(copy, 0, floats * sizeof(float));
    for (uint32_t i = 0; h->window && i < 3 * past; i++)
        memcpy(copy + (size_t)i * width, h->window + i * h->window_stride, dim * sizeof(float));
    h->window = copy;
    h->window_stride = width;
}

/* The projection of part q, k or v at `row` of the sequence; rows before the first are in the
 * window. Beyond dim the memory is another head's: read it with a mask. */
ALWAYS const float *input(const struct kda_head *h, int part, int64_t row) {
    if (row >= 0)
        return tensor_row(kda_projection(h->op, part), h->seq->row0 + (size_t)row) +
               (size_t)h->head * h->dim;
    int64_t past = h->op->taps - 1;
    return h->window + (size_t)(part * past + past + row) * h->window_stride;
}

void cpu_kda_put_window(const struct kda_head *h, uint32_t rows, int32_t slot) {
    uint32_t past = h->op->taps - 1;
    size_t stride = (size_t)h->op->heads * h->dim;
    float *to = kda_window(h->op, slot) + (size_t)h->head * h->dim;
    /* The oldest row first: what is read may be the row behind the one that is written. */
    for (int part = 0; part < 3; part++)
        for (uint32_t i = 0; i < past; i++, to += stride)
            memcpy(to, input(h, part, (int64_t)rows - past + i), h->dim * sizeof(float));
}

/* A whole vector, or the first lanes of one and zeros. */
ALWAYS vf load_part(const float *p, vm m, const bool masked) {
    return masked ? vloadm(p, m) : vload(p);
}

/* One vector of channels of R rows on their way through a convolution. in: the rows from three
 * before the first one on, at these channels. */
struct channels {
    const float *in[TOGETHER + USUAL_TAPS - 1];
    const float *taps; /* stored (R == 1 alone) or split */
    size_t width;
    bool stored;
};

/* SiLU of the convolution with four taps: every input is loaded once for all rows. */
ALWAYS void silu_usual(const struct channels *h, uint32_t c, vm m, const bool masked, float *y,
                       vf *square, const int R) {
    vf x[TOGETHER + USUAL_TAPS - 1], t[USUAL_TAPS];
    if (R == 1 && h->stored)
        vsplit4(h->taps + (size_t)c * USUAL_TAPS, t);
    else
#pragma GCC unroll 4
        for (int j = 0; j < USUAL_TAPS; j++)
            t[j] = vload(h->taps + (size_t)j * h->width + c);
#pragma GCC unroll 7
    for (int i = 0; i < R + USUAL_TAPS - 1; i++)
        x[i] = load_part(h->in[i] + c, m, masked);
#pragma GCC unroll 4
    for (int i = 0; i < R; i++) {
        vf s = t[0] * x[i];
#pragma GCC unroll 4
        for (int j = 1; j < USUAL_TAPS; j++)
            s = vfma(t[j], x[i + j], s);
        s = vsilu(s);
        vstore(y + (size_t)i * h->width + c, s);
        square[i] = vfma(s, s, square[i]);
    }
}

/* The same with any number of them. */
ALWAYS void silu_any(const struct kda_head *h, int part, uint32_t row, uint32_t c, vm m, float *y,
                     vf *square, const int R) {
    int64_t first = (int64_t)row - h->op->taps + 1;
    for (int i = 0; i < R; i++) {
        vf s = vset(0);
        for (uint32_t j = 0; j < h->op->taps; j++)
            s = vfma(vload(h->taps[part] + (size_t)j * h->width + c),
                     vloadm(input(h, part, first + i + j) + c, m), s);
        s = vsilu(s);
        vstore(y + (size_t)i * h->width + c, s);
        square[i] = vfma(s, s, square[i]);
    }
}

/* One part of R rows; gives the sums of squares. */
ALWAYS void convolve(const struct kda_head *h, int part, uint32_t row, float *y, float *squares,
                     struct ahead *ahead, const int R) {
    vf square[TOGETHER];
#pragma GCC unroll 4
    for (int i = 0; i < R; i++)
        square[i] = vset(0);
    uint32_t c = 0;
    if (h->op->taps == USUAL_TAPS) {
        bool stored = !h->taps[part];
        struct channels of = {.taps = stored ? h->stored_taps[part] : h->taps[part],
                              .width = h->width,
                              .stored = stored};
        for (int i = 0; i < R + USUAL_TAPS - 1; i++)
            of.in[i] = input(h, part, (int64_t)row - USUAL_TAPS + 1 + i);
        for (; c + VL <= h->dim; c += VL) {
            ahead_fetch(ahead, 5 * VL / 8);
            silu_usual(&of, c, vmask(VL), false, y, square, R);
        }
        if (c < h->dim)
            silu_usual(&of, c, vmask(h->dim - c), true, y, square, R);
    } else {
        for (; c < h->dim; c += VL)
            silu_any(h, part, row, c, vmask(h->dim - c), y, square, R);
    }
    for (c = round_up(h->dim, VL); c < h->width; c += VL)
        for (int i = 0; i < R; i++)
            vstore(y + (size_t)i * h->width + c, vset(0));
#pragma GCC unroll 4
    for (int i = 0; i < R; i++)
        squares[i] = vsum(square[i]);
}

static void scale(float *x, float by, uint32_t n) {
    for (uint32_t c = 0; c < n; c += VL)
        vstore(x + c, vload(x + c) * vset(by));
}

/* exp of the log decay: bounded, L sigmoid(ea x), or -ea softplus(x). */
ALWAYS vf decay_of(float bound, vf ea, vf x) {
    if (bound >= 0)
        return vexp((vset(0) - ea) * vsoftplus(x));
    vf e = vexp_near(vmax(vset(-87), vmin(vset(87), vset(0) - ea * x)));
    return vexp(vset(bound) / (vset(1) + e));
}

/* Sigmoids of the R values of beta, all at once. */
ALWAYS void betas(const struct kda_head *h, size_t r, float *to, const int R) {
    float x[VL] = {0};
    for (int i = 0; i < R; i++)
        x[i] = tensor_row(h->op->b, r + (size_t)i)[h->head];
    vstore(x, vsigmoid(vload(x)));
    for (int i = 0; i < R; i++)
        to[i] = x[i];
}

ALWAYS void token_rows(const struct kda_head *h, uint32_t row, const struct kda_tokens *t,
                       struct ahead *ahead, const int R) {
    const struct op_kda *op = h->op;
    size_t at = (size_t)h->head * h->dim, r = h->seq->row0 + (size_t)row;
    uint32_t width = h->width;
    float qq[TOGETHER], kk[TOGETHER], vv[TOGETHER], root = 1.0f / sqrtf((float)h->dim);
    convolve(h, 0, row, t->q, qq, ahead, R);
    convolve(h, 1, row, t->k, kk, ahead, R);
    convolve(h, 2, row, t->v, vv, ahead, R);
    betas(h, r, t->beta, R);
    const float *dt = op->dt + at, *z[TOGETHER];
    for (int i = 0; i < R; i++)
        z[i] = tensor_row(op->z, r + (size_t)i) + at;
    vf ea = vset(op->ea[h->head]);
    float bound = op->lower_bound;
    for (uint32_t c = 0; c < width; c += VL) {
        vm m = vmask(c < h->dim ? h->dim - c : 0);
        ahead_fetch(ahead, 5 * VL / 8);
        vf bias = vloadm(dt + c, m);
#pragma GCC unroll 4
        for (int i = 0; i < R; i++)
            vstore(t->decay + (size_t)i * width + c,
                   decay_of(bound, ea, vloadm(z[i] + c, m) + bias));
    }
    for (int i = 0; i < R; i++) {
        scale(t->q + (size_t)i * width, root / sqrtf(qq[i] + 1e-6f), width);
        scale(t->k + (size_t)i * width, 1.0f / sqrtf(kk[i] + 1e-6f), width);
    }
}

void cpu_kda_tokens(const struct kda_head *h, uint32_t row, uint32_t rows,
                    const struct kda_tokens *t, struct ahead *ahead) {
    struct kda_tokens to = *t;
    uint32_t i = 0;
    size_t width = h->width;
    for (; i + TOGETHER <= rows; i += TOGETHER) {
        token_rows(h, row + i, &to, ahead, TOGETHER);
        to = (struct kda_tokens){to.q + TOGETHER * width, to.k + TOGETHER * width,
                                 to.v + TOGETHER * width, to.decay + TOGETHER * width,
                                 to.beta + TOGETHER};
    }
    for (; i < rows; i++) {
        token_rows(h, row + i, &to, ahead, 1);
        to = (struct kda_tokens){to.q + width, to.k + width, to.v + width, to.decay + width,
                                 to.beta + 1};
    }
}

/* One vector of the gated norm. */
ALWAYS void output_part(const struct op_kda *op, const float *o, const float *go, float inv,
                        uint32_t c, vm m, const bool masked, float *out) {
    vf x = load_part(o + c, m, masked) * vset(inv) * load_part(op->o_norm + c, m, masked);
    x = x * vsigmoid(load_part(go + c, m, masked));
    if (masked)
        vstorem(out + c, m, x);
    else
        vstore(out + c, x);
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
    uint32_t c = 0;
    for (; c + VL <= h->dim; c += VL)
        output_part(op, o, go, inv, c, vmask(VL), false, out);
    if (c < h->dim)
        output_part(op, o, go, inv, c, vmask(h->dim - c), true, out);
}
