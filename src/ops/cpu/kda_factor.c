/* kda_factor.c: what the tokens of a KDA chunk have to do with one another: decayed factors,
 * products between tokens, and the inverse that corrects the values, all in f32. Called by
 * kda_chunk.c, whose head states the formulas.
 *
 * Invariant that bites: exp(G_i) exp(-G_j) overflows after a few strong decays. Factors are running
 * products of the decays themselves, each at most 1: from the chunk's start to the row, from the
 * row to the chunk's end, and between two tokens row by row from the earlier one. So neither gate
 * needs a bound, and G with its rounding is never formed. What underflows becomes zero (vflush): it
 * would be lost beside the row's own terms. */
#include "ops/cpu/kda_chunk.h"

enum { GROUP = 4 };

static void decay_rows(struct chunk *c) {
    uint32_t width = c->width, n = c->n;
    for (uint32_t d = 0; d < width; d += VL) {
        size_t at = d;
        vf f = vset(1), b = vset(1);
        for (uint32_t i = 0; i < n; i++, at += width) {
            f = f * vload(c->t.decay + at);
            vstore(c->qf + at, vload(c->t.q + at) * f);
            vstore(c->kf + at, vload(c->t.k + at) * f);
        }
        vstore(c->decay + d, f);
        for (uint32_t i = n; i-- > 0;) {
            at -= width;
            vstore(c->kb + at, vload(c->t.k + at) * b);
            b = b * vload(c->t.decay + at);
        }
    }
}

/* Adds to qk[i] and kk[i] the parts of rows i >= j at V vectors from d on. */
ALWAYS void pair_part(const struct chunk *c, uint32_t j, uint32_t d, vf *qk, vf *kk, const int V) {
    size_t at = (size_t)j * c->width + d;
    vf w[GROUP];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
        w[v] = vload(c->t.k + at + v * VL);
    for (uint32_t i = j;;) {
        vf a = qk[i], b = kk[i];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            a = vfma(vload(c->t.q + at + v * VL), w[v], a);
            b = vfma(vload(c->t.k + at + v * VL), w[v], b);
        }
        qk[i] = a;
        kk[i] = b;
        if (++i == c->n)
            return;
        at += c->width;
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            w[v] = w[v] * vload(c->t.decay + at + v * VL);
    }
}

/* Aqk to its place and L = diag(beta) Akk to l, column by column; what lies above the diagonal is
 * zero, the diagonal of l is never read. */
static void pairs(struct chunk *c, float *l) {
    uint32_t width = c->width;
    for (uint32_t j = 0; j < c->n; j++) {
        vf qk[CHUNK], kk[CHUNK];
        float sums[2][CHUNK];
        for (uint32_t i = 0; i < CHUNK; i++)
            qk[i] = kk[i] = vset(0);
        uint32_t d = 0;
        for (; d + GROUP * VL <= width; d += GROUP * VL)
            pair_part(c, j, d, qk, kk, GROUP);
        for (; d < width; d += VL)
            pair_part(c, j, d, qk, kk, 1);
        for (uint32_t i = 0; i < c->n; i += 4) {
            vsum4_store(sums[0] + i, qk[i], qk[i + 1], qk[i + 2], qk[i + 3], false);
            vsum4_store(sums[1] + i, kk[i], kk[i + 1], kk[i + 2], kk[i + 3], false);
        }
        for (uint32_t i = 0; i < c->n; i++) {
            c->aqk[i * CHUNK + j] = sums[0][i];
            l[i * CHUNK + j] = sums[1][i] * c->t.beta[i];
        }
    }
}

/* VL columns from c on of (I + L)^-1 diag(beta), by forward substitution: row i of the inverse is
 * e_i - sum_m L_im row m. All rows in registers: each waits for the one before it. */
ALWAYS void invert_columns(const struct chunk *c, const float *l, uint32_t at) {
    vf x[CHUNK];
    vf beta = vload(c->t.beta + at);
#pragma GCC unroll 16
    for (uint32_t i = 0; i < CHUNK; i++) {
        float unit[VL] = {0};
        if (i >= at && i < at + VL)
            unit[i - at] = 1;
        x[i] = vload(unit);
#pragma GCC unroll 16
        for (uint32_t m = 0; m < i; m++)
            x[i] = vnma(vset(l[i * CHUNK + m]), x[m], x[i]);
        vstore(c->solve + i * CHUNK + at, x[i] * beta);
    }
}

void cpu_kda_factors(struct chunk *c) {
    float l[CHUNK * CHUNK] = {0};
    decay_rows(c);
    pairs(c, l);
    for (uint32_t at = 0; at < c->n; at += VL)
        invert_columns(c, l, at);
}
