/* case_kda.c: one token of Kimi Delta Attention: states kept, taken from elsewhere, new, absent and
 * copied to a checkpoint. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

enum { LAYERS = 2, LAYER = 1 }; /* the kernel works on the second of two */

struct own {
    struct case_rows out;
    struct state_pool host; /* as the reference leaves it */
    float *device;
    uint32_t heads, dim, taps, slots;
    size_t slot_floats, layer_floats; /* of the device's layout */
};

static size_t window_at(const struct own *o) {
    return (size_t)o->heads * o->dim * o->dim;
}

/* Compares all slots: what nobody wrote is as it was. */
static double worst_kda(const struct gpu_case *c) {
    const struct own *o = c->own;
    double worst = case_error_rows(&o->out, 1e-4);
    size_t n = window_at(o), window = 3 * (size_t)(o->taps - 1) * o->heads * o->dim;
    float *got = malloc((n + window) * sizeof *got);
    for (uint32_t s = 0; s < o->slots && got; s++) {
        const float *want = o->host.data + s * o->host.slot_floats + LAYER * o->host.layer_floats;
        const float *have = o->device + s * o->slot_floats + LAYER * o->layer_floats;
        const uint16_t *rows = (const uint16_t *)(have + n);
        for (uint32_t h = 0; h < o->heads; h++)
            for (uint32_t v = 0; v < o->dim; v++)
                for (uint32_t k = 0; k < o->dim; k++)
                    got[((size_t)h * o->dim + k) * o->dim + v] =
                        have[((size_t)h * o->dim + v) * o->dim + k];
        for (size_t i = 0; i < window; i++)
            got[n + i] = bf16_to_f32(rows[i]);
        worst = fmax(worst, case_error(got, want, n, 1e-4));
        worst = fmax(worst, case_error(got + n, want + n, window, 1e-7));
    }
    free(got);
    return worst;
}

/* A slot of random numbers, the same in both layouts. */
static void fill_slot(struct gpu_case *c, struct own *o, uint32_t s) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        float *host = o->host.data + s * o->host.slot_floats + l * o->host.layer_floats;
        float *device = o->device + s * o->slot_floats + l * o->layer_floats;
        size_t n = window_at(o), window = 3 * (size_t)(o->taps - 1) * o->heads * o->dim;
        uint16_t *rows = (uint16_t *)(device + n);
        for (uint32_t h = 0; h < o->heads; h++)
            for (uint32_t k = 0; k < o->dim; k++)
                for (uint32_t v = 0; v < o->dim; v++)
                    device[((size_t)h * o->dim + v) * o->dim + k] =
                        host[((size_t)h * o->dim + k) * o->dim + v] = case_float(c, 0.3f);
        for (size_t i = 0; i < window; i++)
            rows[i] = f32_to_bf16(host[n + i] = case_bf16(c, 1));
    }
}

/* Sequences, heads, dim, taps, softplus instead of bounded decay, plain (every state stays where it
 * is: what a decode step mostly does) */
static void make_kda(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t n = p[0], heads = p[1], dim = p[2], taps = p[3], P = heads * dim;
    bool plain = p[5];
    struct own *o = case_host(c, sizeof *o);
    o->heads = heads;
    o->dim = dim;
    o->taps = taps;
    o->slots = plain ? n : 3 * n;
    size_t window = 3 * (size_t)(taps - 1) * P;
    o->host.layer_floats = window_at(o) + window;
    o->host.slot_floats = LAYERS * o->host.layer_floats;
    o->host.data = case_host(c, o->slots * o->host.slot_floats * sizeof(float));
    o->layer_floats = (window_at(o) + (window + 1) / 2 + 3) / 4 * 4;
    o->slot_floats = LAYERS * o->layer_floats;
    o->device = case_take(c, o->slots * o->slot_floats * sizeof(float));
    for (uint32_t s = 0; s < o->slots; s++)
        fill_slot(c, o, s);

    struct case_rows q = case_rows(c, n, P, true, 1), k = case_rows(c, n, P, true, 1),
                     v = case_rows(c, n, P, true, 1), go = case_rows(c, n, P, true, 1),
                     z = case_rows(c, n, P, true, 1), b = {0};
    b = case_blank(c, n, P, true); /* as wide as the others: one row of a merged product */
    b.host.cols = heads;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < heads; h++)
            b.h[r * b.stride + h] = f32_to_bf16(tensor_row(b.host, r)[h] = case_bf16(c, 1));
    float *taps_of[3], *ea = case_take(c, heads * 4);
    for (int i = 0; i < 3; i++)
        taps_of[i] = case_f32_vector(c, (size_t)P * taps, 0.5f, 0);
    for (uint32_t h = 0; h < heads; h++)
        ea[h] = 0.5f + (float)case_unit(c);
    float *dt = case_f32_vector(c, P, 0.5f, 0), *o_norm = case_f32_vector(c, dim, 0.2f, 1);
    o->out = case_blank(c, n, P, true);

    struct gpu_kda_seq *seqs = case_take(c, n * sizeof *seqs);
    struct batch_seq *host = case_host(c, n * sizeof *host);
    struct batch_checkpoint *checkpoints = case_host(c, n * sizeof *checkpoints);
    for (uint32_t i = 0; i < n; i++) {
        int32_t slot = (int32_t)i, from = slot, checkpoint = -1;
        if (!plain && i % 4 == 1)
            from = (int32_t)(n + i);
        if (!plain && i % 4 == 2)
            from = -1;
        if (!plain && i % 4 == 3)
            slot = -1;
        if (!plain && i % 2 == 0)
            checkpoint = (int32_t)(2 * n + i);
        seqs[i] = (struct gpu_kda_seq){(int32_t)i, from, slot, checkpoint};
        checkpoints[i] = (struct batch_checkpoint){11, checkpoint};
        host[i] = (struct batch_seq){.row0 = i,
                                     .rows = 1,
                                     .pos0 = 10,
                                     .slot = slot,
                                     .from = from,
                                     .n_checkpoints = checkpoint >= 0,
                                     .checkpoints = &checkpoints[i]};
    }
    struct op_kda op = {.which = SEQ_ALL,
                        .q = q.host,
                        .k = k.host,
                        .v = v.host,
                        .z = z.host,
                        .b = b.host,
                        .go = go.host,
                        .out = o->out.host,
                        .q_taps = taps_of[0],
                        .k_taps = taps_of[1],
                        .v_taps = taps_of[2],
                        .ea = ea,
                        .dt = dt,
                        .o_norm = o_norm,
                        .lower_bound = p[4] ? 0 : -5,
                        .eps = 1e-5f,
                        .heads = heads,
                        .dim = dim,
                        .taps = taps,
                        .pool = &o->host,
                        .layer = LAYER};
    op.b.stride = b.host.stride;
    ref_kda_decode(&op, &(struct batch){.n_rows = n, .n_seqs = n, .n_decode = n, .seqs = host},
                   case_work(c, 5 * dim * sizeof(float)));
    c->record.kda_step = (struct gpu_kda_step){.q = q.h,
                                               .k = k.h,
                                               .v = v.h,
                                               .go = go.h,
                                               .b = b.h,
                                               .z = z.h,
                                               .out = o->out.h,
                                               .q_taps = taps_of[0],
                                               .k_taps = taps_of[1],
                                               .v_taps = taps_of[2],
                                               .ea = ea,
                                               .dt = dt,
                                               .o_norm = o_norm,
                                               .state = o->device + LAYER * o->layer_floats,
                                               .slot_floats = o->slot_floats,
                                               .seqs = seqs,
                                               .heads = heads,
                                               .taps = taps,
                                               .stride = q.stride,
                                               .b_stride = q.stride,
                                               .z_stride = z.stride,
                                               .out_stride = o->out.stride,
                                               .lower_bound = op.lower_bound,
                                               .eps = op.eps};
    c->launch = gpu_launch_kda_step(&c->record.kda_step, dim, n);
    c->traffic = (double)n * heads * dim * (2 * 4.0 * dim + 2 * 2.0 * 3 * (taps - 1) + 6 * 2);
    c->worst = worst_kda;
    c->own = o;
    snprintf(c->label, sizeof c->label, "kda_step %u sequences, %u heads of %u%s", n, heads, dim,
             p[4] ? ", softplus" : "");
}
static const uint32_t kda_small[][CASE_PARAMETERS] = {{5, 3, 8, 4, 0, 0},   {5, 2, 16, 4, 1, 0},
                                                      {4, 2, 32, 3, 0, 0},  {4, 1, 64, 2, 0, 0},
                                                      {4, 2, 128, 4, 0, 0}, {1, 3, 32, 1, 1, 1}};
static const uint32_t kda_large[][CASE_PARAMETERS] = {
    {1, 12, 128, 4, 0, 1}, {8, 12, 128, 4, 0, 1}, {32, 12, 128, 4, 0, 1}, {128, 12, 128, 4, 0, 1}};
const struct gpu_case_kind case_kda_step = {"kda_step", make_kda, SHAPES(kda_small),
                                            SHAPES(kda_large)};
