/* kda.c: Kimi Delta Attention by its recurrence, token by token, for one sequence and head at a
 * time. Called through column_ref for decode and prefill alike: that is what makes chunked prefill
 * equal token by token, bit for bit. Invariant that bites: the window keeps *pre-activation*
 * projections, and it belongs to the state: a checkpoint without its window is worthless. */
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

/* One head's part of a state slot: S [dim][dim] and three windows whose rows lie `stride` floats
 * apart. */
struct head_state {
    float *s;
    float *window;
};

static struct head_state head_of(const struct op_kda *a, int32_t slot, uint32_t head) {
    float *layer = a->pool->data + (size_t)slot * a->pool->slot_floats +
                   (size_t)a->layer * a->pool->layer_floats;
    size_t square = (size_t)a->dim * a->dim;
    return (struct head_state){layer + head * square,
                               layer + a->heads * square + (size_t)head * a->dim};
}

static void copy_head(const struct op_kda *a, struct head_state to, struct head_state from) {
    size_t stride = (size_t)a->heads * a->dim;
    memcpy(to.s, from.s, (size_t)a->dim * a->dim * sizeof(float));
    for (uint32_t i = 0; i < 3 * (a->taps - 1); i++)
        memcpy(to.window + i * stride, from.window + i * stride, a->dim * sizeof(float));
}

static void clear_head(const struct op_kda *a, struct head_state h) {
    size_t stride = (size_t)a->heads * a->dim;
    memset(h.s, 0, (size_t)a->dim * a->dim * sizeof(float));
    for (uint32_t i = 0; i < 3 * (a->taps - 1); i++)
        memset(h.window + i * stride, 0, a->dim * sizeof(float));
}

/* y = SiLU(sum_j taps[j] u_{t-taps+1+j}) for the channels of one head; then the window moves on by
 * this token. */
static void convolve(const struct op_kda *a, float *window, const float *u, const float *taps,
                     float *y) {
    size_t stride = (size_t)a->heads * a->dim;
    uint32_t n = a->taps;
    for (uint32_t c = 0; c < a->dim; c++) {
        float sum = 0;
        for (uint32_t j = 0; j + 1 < n; j++)
            sum += taps[c * n + j] * window[j * stride + c];
        sum += taps[c * n + n - 1] * u[c];
        y[c] = sum * ref_sigmoid(sum);
        for (uint32_t j = 0; j + 2 < n; j++)
            window[j * stride + c] = window[(j + 1) * stride + c];
        if (n > 1)
            window[(n - 2) * stride + c] = u[c];
    }
}

static void l2_normalise(float *x, uint32_t n, float scale) {
    float inv = 1.0f / sqrtf(ref_dot_f32(x, x, n) + 1e-6f);
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * inv * scale;
}

static float log_decay(const struct op_kda *a, uint32_t head, float z) {
    if (a->lower_bound < 0)
        return a->lower_bound * ref_sigmoid(a->ea[head] * z);
    /* softplus as max(z,0) + log1p(exp(-|z|)): the plain form overflows for large z. */
    return -a->ea[head] * (fmaxf(z, 0) + log1pf(expf(-fabsf(z))));
}

static void step(const struct op_kda *a, uint32_t head, size_t row, struct head_state st,
                 float *scratch) {
    uint32_t dim = a->dim;
    size_t at = (size_t)head * dim;
    float *q = scratch, *k = q + dim, *v = k + dim, *u = v + dim, *o = u + dim;
    size_t part = (size_t)(a->taps - 1) * a->heads * dim;
    convolve(a, st.window, tensor_row(a->q, row) + at, a->q_taps + at * a->taps, q);
    convolve(a, st.window + part, tensor_row(a->k, row) + at, a->k_taps + at * a->taps, k);
    convolve(a, st.window + 2 * part, tensor_row(a->v, row) + at, a->v_taps + at * a->taps, v);
    l2_normalise(q, dim, 1.0f / sqrtf((float)dim));
    l2_normalise(k, dim, 1.0f);
    float beta = ref_sigmoid(tensor_row(a->b, row)[head]);
    const float *z = tensor_row(a->z, row) + at;
    for (uint32_t d = 0; d < dim; d++) {
        float decay = expf(log_decay(a, head, z[d] + a->dt[at + d]));
        for (uint32_t e = 0; e < dim; e++)
            st.s[(size_t)d * dim + e] *= decay;
    }
    memset(u, 0, dim * sizeof *u);
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t e = 0; e < dim; e++)
            u[e] += st.s[(size_t)d * dim + e] * k[d];
    for (uint32_t e = 0; e < dim; e++)
        u[e] = beta * (v[e] - u[e]);
    memset(o, 0, dim * sizeof *o);
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t e = 0; e < dim; e++) {
            st.s[(size_t)d * dim + e] += k[d] * u[e];
            o[e] += st.s[(size_t)d * dim + e] * q[d];
        }
    float inv = 1.0f / sqrtf(ref_dot_f32(o, o, dim) / (float)dim + a->eps);
    const float *go = tensor_row(a->go, row) + at;
    float *out = tensor_row(a->out, row) + at;
    for (uint32_t d = 0; d < dim; d++)
        out[d] = o[d] * inv * a->o_norm[d] * ref_sigmoid(go[d]);
}

void ref_kda_decode(const struct op_kda *a, const struct batch *b, struct work work) {
    struct span seqs = batch_class(b, a->which);
    struct span s = work_span(work, (seqs.end - seqs.begin) * a->heads);
    for (uint32_t unit = s.begin; unit < s.end; unit++) {
        const struct batch_seq *seq = &b->seqs[seqs.begin + unit / a->heads];
        uint32_t head = unit % a->heads;
        if (seq->slot < 0)
            continue;
        struct head_state live = head_of(a, seq->slot, head);
        if (seq->from < 0)
            clear_head(a, live); /* a slot that was somebody else's, possibly poisoned by a NaN */
        else if (seq->from != seq->slot)
            copy_head(a, live, head_of(a, seq->from, head));
        uint32_t next = 0;
        for (uint32_t r = 0; r < seq->rows; r++) {
            step(a, head, (size_t)seq->row0 + r, live, work.scratch);
            while (next < seq->n_checkpoints &&
                   seq->checkpoints[next].position == seq->pos0 + r + 1)
                copy_head(a, head_of(a, seq->checkpoints[next++].slot, head), live);
        }
    }
}

/* The exact column has one form only. */
void ref_kda_prefill(const struct op_kda *a, const struct batch *b, struct work work) {
    ref_kda_decode(a, b, work);
}
