/* case_kda.c: see case_kda.h; and one token of Kimi Delta Attention: states kept, taken from
 * elsewhere, new, absent and copied to a checkpoint. */
#include "tests/ops/gpu/case_kda.h"

#include "base/dtype.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

enum { LAYERS = 2, LAYER = 1 }; /* the kernel works on the second of two */

static size_t window_at(const struct case_kda *k) {
    return (size_t)k->op.heads * k->op.dim * k->op.dim;
}
static size_t window_floats(const struct case_kda *k) {
    return 3 * (size_t)(k->op.taps - 1) * k->op.heads * k->op.dim;
}

/* Compares all slots: what nobody wrote is as it was. */
static double worst_kda(const struct gpu_case *c) {
    const struct case_kda *o = c->own;
    double worst = case_error_rows(&o->out, 1e-4);
    size_t n = window_at(o), window = window_floats(o), dim = o->op.dim;
    float *got = malloc((n + window) * sizeof *got);
    for (uint32_t s = 0; s < o->slots && got; s++) {
        const float *want = o->host.data + s * o->host.slot_floats + LAYER * o->host.layer_floats;
        const float *have = o->device + s * o->slot_floats + LAYER * o->layer_floats;
        const uint16_t *rows = (const uint16_t *)(have + n);
        for (size_t h = 0; h < o->op.heads; h++)
            for (size_t v = 0; v < dim; v++)
                for (size_t k = 0; k < dim; k++)
                    got[(h * dim + k) * dim + v] = have[(h * dim + v) * dim + k];
        for (size_t i = 0; i < window; i++)
            got[n + i] = bf16_to_f32(rows[i]);
        worst = fmax(worst, case_error(got, want, n, 1e-4));
        worst = fmax(worst, case_error(got + n, want + n, window, 1e-7));
    }
    free(got);
    return worst;
}

/* A slot of random numbers, the same in both layouts. */
static void fill_slot(struct gpu_case *c, struct case_kda *o, uint32_t s) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        float *host = o->host.data + s * o->host.slot_floats + l * o->host.layer_floats;
        float *device = o->device + s * o->slot_floats + l * o->layer_floats;
        size_t n = window_at(o), window = window_floats(o), dim = o->op.dim;
        uint16_t *rows = (uint16_t *)(device + n);
        for (size_t h = 0; h < o->op.heads; h++)
            for (size_t k = 0; k < dim; k++)
                for (size_t v = 0; v < dim; v++)
                    device[(h * dim + v) * dim + k] = host[(h * dim + k) * dim + v] =
                        case_float(c, 0.3f);
        for (size_t i = 0; i < window; i++)
            rows[i] = f32_to_bf16(host[n + i] = case_bf16(c, 1));
    }
}

struct case_kda *case_kda_open(struct gpu_case *c, uint32_t rows, uint32_t heads, uint32_t dim,
                               uint32_t taps, bool softplus, uint32_t slots) {
    uint32_t P = heads * dim;
    struct case_kda *o = case_host(c, sizeof *o);
    o->op = (struct op_kda){.heads = heads, .dim = dim, .taps = taps, .layer = LAYER};
    o->slots = slots;
    o->host.layer_floats = window_at(o) + window_floats(o);
    o->host.slot_floats = LAYERS * o->host.layer_floats;
    o->host.data = case_host(c, slots * o->host.slot_floats * sizeof(float));
    o->layer_floats = (window_at(o) + (window_floats(o) + 1) / 2 + 3) / 4 * 4;
    o->slot_floats = LAYERS * o->layer_floats;
    o->device = case_take(c, slots * o->slot_floats * sizeof(float));
    o->state = o->device + LAYER * o->layer_floats;
    for (uint32_t s = 0; s < slots; s++)
        fill_slot(c, o, s);
    o->q = case_rows(c, rows, P, true, 1);
    o->k = case_rows(c, rows, P, true, 1);
    o->v = case_rows(c, rows, P, true, 1);
    o->go = case_rows(c, rows, P, true, 1);
    o->z = case_rows(c, rows, P, true, 1);
    o->b = case_rows(c, rows, heads, true, 1);
    o->out = case_blank(c, rows, P, true);
    for (int i = 0; i < 3; i++)
        o->taps_of[i] = case_f32_vector(c, (size_t)P * taps, 0.5f, 0);
    o->ea = case_take(c, heads * 4);
    for (uint32_t h = 0; h < heads; h++)
        o->ea[h] = 0.5f + (float)case_unit(c);
    o->dt = case_f32_vector(c, P, 0.5f, 0);
    o->o_norm = case_f32_vector(c, dim, 0.2f, 1);
    o->op = (struct op_kda){.which = SEQ_ALL,
                            .q = o->q.host,
                            .k = o->k.host,
                            .v = o->v.host,
                            .z = o->z.host,
                            .b = o->b.host,
                            .go = o->go.host,
                            .out = o->out.host,
                            .q_taps = o->taps_of[0],
                            .k_taps = o->taps_of[1],
                            .v_taps = o->taps_of[2],
                            .ea = o->ea,
                            .dt = o->dt,
                            .o_norm = o->o_norm,
                            .lower_bound = softplus ? 0 : -5,
                            .eps = 1e-5f,
                            .heads = heads,
                            .dim = dim,
                            .taps = taps,
                            .pool = &o->host,
                            .layer = LAYER};
    c->own = o;
    c->worst = worst_kda;
    return o;
}

void case_kda_want(struct gpu_case *c, struct case_kda *k, const struct batch *b) {
    ref_kda_decode(&k->op, b, case_work(c, 5 * k->op.dim * sizeof(float)));
}

struct gpu_kda_step case_kda_step_record(const struct case_kda *o) {
    return (struct gpu_kda_step){.q = o->q.h,
                                 .k = o->k.h,
                                 .v = o->v.h,
                                 .go = o->go.h,
                                 .b = o->b.h,
                                 .z = o->z.h,
                                 .out = o->out.h,
                                 .q_taps = o->taps_of[0],
                                 .k_taps = o->taps_of[1],
                                 .v_taps = o->taps_of[2],
                                 .ea = o->ea,
                                 .dt = o->dt,
                                 .o_norm = o->o_norm,
                                 .state = o->state,
                                 .slot_floats = o->slot_floats,
                                 .heads = o->op.heads,
                                 .taps = o->op.taps,
                                 .stride = o->q.stride,
                                 .b_stride = o->b.stride,
                                 .z_stride = o->z.stride,
                                 .out_stride = o->out.stride,
                                 .lower_bound = o->op.lower_bound,
                                 .eps = o->op.eps};
}

/* Sequences, heads, dim, taps, softplus instead of bounded decay, plain (every state stays where it
 * is: what a decode step mostly does) */
static void make_kda(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t n = p[0], heads = p[1], dim = p[2], taps = p[3];
    bool plain = p[5];
    struct case_kda *o = case_kda_open(c, n, heads, dim, taps, p[4], plain ? n : 3 * n);
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
    case_kda_want(c, o, &(struct batch){.n_rows = n, .n_seqs = n, .n_decode = n, .seqs = host});
    c->record.kda_step = case_kda_step_record(o);
    c->record.kda_step.seqs = seqs;
    c->launch = gpu_launch_kda_step(&c->record.kda_step, dim, n, shape);
    c->traffic = (double)n * heads * dim * (2 * 4.0 * dim + 2 * 2.0 * 3 * (taps - 1) + 6 * 2);
    snprintf(c->label, sizeof c->label, "kda_step %u sequences, %u heads of %u%s", n, heads, dim,
             p[4] ? ", softplus" : "");
}
/* Also so few heads that a cluster has one. */
static const uint32_t kda_small[][CASE_PARAMETERS] = {
    {5, 3, 8, 4, 0, 0},   {5, 2, 16, 4, 1, 0}, {4, 2, 32, 3, 0, 0},  {4, 1, 64, 2, 0, 0},
    {4, 2, 128, 4, 0, 0}, {1, 3, 32, 1, 1, 1}, {1, 2, 128, 4, 0, 0}, {2, 1, 128, 3, 1, 0},
};
static const uint32_t kda_large[][CASE_PARAMETERS] = {
    {1, 12, 128, 4, 0, 1}, {8, 12, 128, 4, 0, 1}, {32, 12, 128, 4, 0, 1}, {128, 12, 128, 4, 0, 1}};
const struct gpu_case_kind case_kda_step = {"kda_step", make_kda, SHAPES(kda_small),
                                            SHAPES(kda_large)};
