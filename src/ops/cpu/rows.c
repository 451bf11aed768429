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

/* Sums in flight: enough to hide the latency of a multiply-add. */
enum { SUMS = 4 };

ALWAYS float fold(const vf *sum) {
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float sum_of_squares(const float *x, uint32_t n) {
    vf sum[SUMS] = {vset(0), vset(0), vset(0), vset(0)};
    uint32_t c = 0;
    for (; c + SUMS * VL <= n; c += SUMS * VL)
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) {
            vf v = vload(x + c + i * VL);
            sum[i] = vfma(v, v, sum[i]);
        }
    for (; c < n; c += VL) {
        vf u = vloadm(x + c, vmask(n - c));
        sum[0] = vfma(u, u, sum[0]);
    }
    return fold(sum);
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
    vf dot[SUMS] = {vset(0), vset(0), vset(0), vset(0)}, square[SUMS];
    memcpy(square, dot, sizeof square);
    uint32_t c = 0;
    for (; c + SUMS * VL <= n; c += SUMS * VL)
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) {
            vf x = vload(v + c + i * VL);
            dot[i] = vfma(x, vload(weight + c + i * VL), dot[i]);
            square[i] = vfma(x, x, square[i]);
        }
    for (; c < n; c += VL) {
        vm m = vmask(n - c);
        vf x = vloadm(v + c, m);
        dot[0] = vfma(x, vloadm(weight + c, m), dot[0]);
        square[0] = vfma(x, x, square[0]);
    }
    return fold(dot) / sqrtf(fold(square) / (float)n + eps);
}

/* Masked stores take many times as long as others, so whole vectors go without. */
ALWAYS void store_part(float *p, vm m, vf x, const bool masked) {
    if (masked)
        vstorem(p, m, x);
    else
        vstore(p, x);
}
ALWAYS vf load_part(const float *p, vm m, const bool masked) {
    return masked ? vloadm(p, m) : vload(p);
}

/* SUMS vectors of columns, or one. */
ALWAYS void mix_part(const float *const *v, const float *share, uint32_t n, float *out, uint32_t c,
                     vm m, const bool masked, const int V) {
    vf sum[SUMS] = {vset(0), vset(0), vset(0), vset(0)};
    for (uint32_t i = 0; i < n; i++) {
        vf s = vset(share[i]);
#pragma GCC unroll 4
        for (int k = 0; k < V; k++)
            sum[k] = vfma(s, load_part(v[i] + c + k * VL, m, masked), sum[k]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < V; k++)
        store_part(out + c + k * VL, m, sum[k], masked);
}

/* out = sum_i share_i v_i. `out` may be one of the sources. */
static void mix_sources(const float *const *v, const float *share, uint32_t n, float *out,
                        uint32_t width) {
    uint32_t c = 0;
    for (; c + SUMS * VL <= width; c += SUMS * VL)
        mix_part(v, share, n, out, c, vmask(VL), false, SUMS);
    for (; c < width; c += VL)
        mix_part(v, share, n, out, c, vmask(width - c), true, 1);
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

ALWAYS void delta_part(const struct op_mix_norm *a, const float *p, const float *delta, float *sum,
                       vm m, const bool masked) {
    vf x = load_part(delta, m, masked);
    if (!a->replace)
        x = load_part(p, m, masked) + x;
    store_part(sum, m, x, masked);
}

/* P + delta, or delta alone, into `sum`. */
static void add_delta(const struct op_mix_norm *a, const float *p, const float *delta, float *sum,
                      uint32_t width) {
    uint32_t c = 0;
    for (; c + VL <= width; c += VL)
        delta_part(a, p + c, delta + c, sum + c, vmask(VL), false);
    if (c < width)
        delta_part(a, p + c, delta + c, sum + c, vmask(width - c), true);
    for (c = 0; a->round_prefix && c < width; c++)
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

ALWAYS vf glu_part(struct glu act, vf g, vf u, const bool situ, const bool capped) {
    if (!situ)
        return g * vsigmoid(g) * u;
    vf a = vset(act.beta) * vtanh(g * vset(1.0f / act.beta)) * vsigmoid(g);
    if (capped)
        u = vset(act.linear_beta) * vtanh(u * vset(1.0f / act.linear_beta));
    return a * u;
}

ALWAYS void glu_row(struct glu act, const float *gate, const float *up, float *y, uint32_t n,
                    const bool situ, const bool capped) {
    uint32_t c = 0;
    for (; c + VL <= n; c += VL)
        vstore(y + c, glu_part(act, vload(gate + c), vload(up + c), situ, capped));
    if (c < n) {
        vm m = vmask(n - c);
        vstorem(y + c, m, glu_part(act, vloadm(gate + c, m), vloadm(up + c, m), situ, capped));
    }
}

void cpu_glu_row(struct glu act, const float *gate, const float *up, float *y, uint32_t n) {
    if (!act.situ)
        glu_row(act, gate, up, y, n, false, false);
    else if (act.linear_beta > 0)
        glu_row(act, gate, up, y, n, true, true);
    else
        glu_row(act, gate, up, y, n, true, false);
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
