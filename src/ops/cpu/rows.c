/* rows.c: what is done to each row by itself: embedding, norms, the attention-residual mixture,
 * gated activations. Called through the columns of this folder. Invariant that bites: buffers may
 * be shared (y = x, y = gate), so a vector is read whole before its place is written. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vmath.h"

#include <math.h>

static void embed_row(const struct weight *from, int32_t id, float *out) {
    uint32_t cols = from->cols;
    size_t at = (size_t)id * cols;
    if (from->dtype == DTYPE_F32) {
        memcpy(out, (const float *)from->data + at, cols * sizeof *out);
        return;
    }
    const uint16_t *w = (const uint16_t *)from->data + at;
    uint32_t c = 0;
    for (; c + VL <= cols; c += VL)
        vstore(out + c, vwiden(w + c));
    if (c < cols)
        vstorem(out + c, vmask(cols - c), vwidenm(w + c, vmask(cols - c)));
}

void cpu_embed(const struct op_embed *a, const struct batch *b, const int32_t *ids,
               struct work work) {
    for (struct span s; work_next(&work, b->n_rows, &s);)
        for (uint32_t r = s.begin; r < s.end; r++)
            embed_row(&a->w, ids[r], tensor_row(a->out, r));
}

/* y = x * scale * norm. */
static void scale_row(const float *x, float scale, const float *norm, float *y, uint32_t n) {
    vf s = vset(scale);
    uint32_t c = 0;
    for (; c + VL <= n; c += VL)
        vstore(y + c, vload(x + c) * s * vload(norm + c));
    if (c < n) {
        vm m = vmask(n - c);
        vstorem(y + c, m, vloadm(x + c, m) * s * vloadm(norm + c, m));
    }
}

static float sum_of_squares(const float *x, uint32_t n) {
    vf a = vset(0), b = vset(0);
    uint32_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) {
        vf u = vload(x + c), v = vload(x + c + VL);
        a = vfma(u, u, a);
        b = vfma(v, v, b);
    }
    for (; c < n; c += VL) {
        vf u = vloadm(x + c, vmask(n - c));
        a = vfma(u, u, a);
    }
    return vsum(a + b);
}

void cpu_norm(const struct op_norm *a, const struct batch *b, struct work work) {
    uint32_t n = a->x.cols;
    for (struct span s; work_next(&work, b->n_rows, &s);)
        for (uint32_t r = s.begin; r < s.end; r++) {
            const float *x = tensor_row(a->x, r);
            float inv = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + a->eps);
            scale_row(x, inv, a->norm, tensor_row(a->y, r), n);
        }
}

/* Score of one source of the mixture: dot with c, normalised by the source's root mean square. */
static float source_score(const float *v, const float *weight, uint32_t n, float eps) {
    vf dot = vset(0), square = vset(0);
    uint32_t c = 0;
    for (; c + VL <= n; c += VL) {
        vf x = vload(v + c);
        dot = vfma(x, vload(weight + c), dot);
        square = vfma(x, x, square);
    }
    if (c < n) {
        vm m = vmask(n - c);
        vf x = vloadm(v + c, m);
        dot = vfma(x, vloadm(weight + c, m), dot);
        square = vfma(x, x, square);
    }
    return vsum(dot) / sqrtf(vsum(square) / (float)n + eps);
}

/* out = sum_i share_i v_i. `out` may be one of the sources. */
static void mix_sources(const float *const *v, const float *share, uint32_t n, float *out,
                        uint32_t width) {
    for (uint32_t c = 0; c < width; c += VL) {
        vm m = vmask(width - c);
        vf sum = vset(0);
        for (uint32_t i = 0; i < n; i++)
            sum = vfma(vset(share[i]), vloadm(v[i] + c, m), sum);
        vstorem(out + c, m, sum);
    }
}

static void softmax(float *x, uint32_t n) {
    float top = -INFINITY, total = 0;
    for (uint32_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (uint32_t i = 0; i < n; i += VL) {
        vm m = vmask(n - i);
        vstorem(x + i, m, vexp(vloadm(x + i, m) - vset(top)));
    }
    for (uint32_t i = 0; i < n; i++)
        total += x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] /= total;
}

/* P + delta, or delta alone, into `sum`. */
static void add_delta(const struct op_mix_norm *a, const float *p, const float *delta, float *sum,
                      uint32_t width) {
    for (uint32_t c = 0; c < width; c += VL) {
        vm m = vmask(width - c);
        vf x = vloadm(delta + c, m);
        if (!a->replace)
            x = vloadm(p + c, m) + x;
        vstorem(sum + c, m, x);
    }
    for (uint32_t c = 0; a->round_prefix && c < width; c++)
        sum[c] = bf16_round(sum[c]);
}

static void mix_norm_row(const struct op_mix_norm *a, uint32_t r, uint32_t to) {
    uint32_t width = a->prefix.cols;
    float *p = tensor_row(a->prefix, r), *out = tensor_row(a->out, to);
    const float *now = p; /* the prefix after step 1 */
    if (a->delta.data) {
        float *sum = a->gather ? out : p;
        add_delta(a, p, tensor_row(a->delta, r), sum, width);
        now = sum;
    }
    const float *m = now;
    if (a->n_bank) {
        const float *v[OP_MAX_BANK + 1];
        float share[OP_MAX_BANK + 1];
        for (uint32_t i = 0; i <= a->n_bank; i++) {
            v[i] = i < a->n_bank ? tensor_row(a->bank[i], r) : now;
            share[i] = source_score(v[i], a->c, width, a->eps);
        }
        softmax(share, a->n_bank + 1);
        mix_sources(v, share, a->n_bank + 1, out, width);
        m = out;
    }
    /* The prefix before this sublayer is banked, never the mixture. */
    if (a->push)
        memcpy(tensor_row(a->bank[a->n_bank], r), p, width * sizeof(float));
    if (a->mixed.data)
        memcpy(tensor_row(a->mixed, to), m, width * sizeof(float));
    float inv = 1.0f / sqrtf(sum_of_squares(m, width) / (float)width + a->eps);
    scale_row(m, inv, a->norm, out, width);
}

void cpu_mix_norm(const struct op_mix_norm *a, const struct batch *b, struct work work) {
    for (struct span s; work_next(&work, a->gather ? b->n_logits : b->n_rows, &s);)
        for (uint32_t i = s.begin; i < s.end; i++)
            mix_norm_row(a, a->gather ? b->logits[i].row : i, i);
}

ALWAYS vf silu_glu(vf g, vf u) {
    return g * vsigmoid(g) * u;
}
ALWAYS vf situ_glu(vf g, vf u, float beta, float linear_beta) {
    vf a = vset(beta) * vtanh(g * vset(1.0f / beta)) * vsigmoid(g);
    if (linear_beta > 0)
        u = vset(linear_beta) * vtanh(u * vset(1.0f / linear_beta));
    return a * u;
}

void cpu_glu_row(struct glu act, const float *gate, const float *up, float *y, uint32_t n) {
    for (uint32_t c = 0; c < n; c += VL) {
        vm m = vmask(n - c);
        vf g = vloadm(gate + c, m), u = vloadm(up + c, m);
        vstorem(y + c, m, act.situ ? situ_glu(g, u, act.beta, act.linear_beta) : silu_glu(g, u));
    }
}

void cpu_glu(const struct op_glu *a, const struct batch *b, struct work work) {
    /* Columns are shared out as well as rows: a decode step has one row. */
    enum { PIECE = 256 };
    uint32_t cols = a->y.cols, pieces = (cols + PIECE - 1) / PIECE;
    for (struct span s; work_next(&work, b->n_rows * pieces, &s);)
        for (uint32_t unit = s.begin; unit < s.end; unit++) {
            uint32_t r = unit / pieces, c = unit % pieces * PIECE;
            uint32_t n = cols - c < PIECE ? cols - c : PIECE;
            cpu_glu_row(a->act, tensor_row(a->gate, r) + c, tensor_row(a->up, r) + c,
                        tensor_row(a->y, r) + c, n);
        }
}
