/* case_kda_verify.c: drafts through Kimi Delta Attention. Once against the recurrence, with tokens
 * left behind that are any numbers; and in rounds beside weir_kda_step, token by token of what was
 * kept: the same bits. */
#include "tests/ops/gpu/case_kda.h"

#include "base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

/* ------------------------------------------------------------------------------- one launch */

static float *layer_of(const struct case_kda *o, int32_t slot) {
    return o->host.data + (size_t)slot * o->host.slot_floats +
           (size_t)o->op.layer * o->host.layer_floats;
}

/* Numbers for the tokens that were left, and what the kept ones make of the state. */
static void leave(struct gpu_case *c, const struct case_kda *o, float *left,
                  const struct gpu_kda_draft *draft) {
    const uint32_t heads = o->op.heads, dim = o->op.dim, width = heads * dim, taps = o->op.taps;
    uint16_t *raw = (uint16_t *)(left + (size_t)GPU_KDA_TOKENS_MOST * width * 3);
    float *live = draft->slot < 0 ? NULL : layer_of(o, draft->slot);
    if (live && draft->from < 0)
        memset(live, 0, o->host.layer_floats * sizeof *live);
    else if (live && draft->from != draft->slot)
        memcpy(live, layer_of(o, draft->from), o->host.layer_floats * sizeof *live);
    for (int32_t t = 0; t < draft->kept; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            float *k = left + ((size_t)t * heads + h) * 3 * dim, *decay = k + dim, *d = decay + dim;
            for (uint32_t i = 0; i < dim; i++) {
                k[i] = case_float(c, 0.2f);
                decay[i] = (float)case_unit(c);
                d[i] = case_float(c, 0.5f);
            }
            for (uint32_t i = 0; live && i < dim * dim; i++) {
                float *s = live + (size_t)h * dim * dim + i;
                *s = *s * decay[i / dim] + k[i / dim] * d[i % dim];
            }
        }
        for (uint32_t of = 0; of < 3; of++)
            for (uint32_t i = 0; i < width; i++) {
                const float x = case_bf16(c, 1);
                raw[((size_t)t * 3 + of) * width + i] = f32_to_bf16(x);
                if (!live || taps < 2)
                    continue;
                float *window = live + (size_t)width * dim + (size_t)of * (taps - 1) * width + i;
                for (uint32_t j = 0; j + 2 < taps; j++)
                    window[j * width] = window[(j + 1) * width];
                window[(taps - 2) * width] = x;
            }
        if (live && draft->checkpoint >= 0 && t + 1 == draft->checkpoint_kept)
            memcpy(layer_of(o, draft->checkpoint), live, o->host.layer_floats * sizeof *live);
    }
}

/* Outputs of all tokens of the batch; states stay as they are. */
static void want_outputs(struct gpu_case *c, struct case_kda *o, const struct batch *b) {
    const size_t bytes = o->slots * o->host.slot_floats * sizeof(float);
    float *before = malloc(bytes ? bytes : 1);
    if (!before)
        abort();
    memcpy(before, o->host.data, bytes);
    case_kda_want(c, o, b);
    memcpy(o->host.data, before, bytes);
    free(before);
}

static struct gpu_kda_verify record_of(const struct case_kda *o) {
    return (struct gpu_kda_verify){.token = case_kda_step_record(o),
                                   .left_floats = gpu_kda_left_floats(o->op.heads, o->op.dim)};
}

/* Sequences, heads, dim, taps, softplus instead of bounded decay, tokens, plain (all tokens of the
 * last launch were kept, states stay where they are) */
static void make(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    static const int32_t some_kept[5] = {3, 0, 8, 4, 1};
    const uint32_t n = p[0], heads = p[1], dim = p[2], taps = p[3], tokens = p[5];
    const bool plain = p[6];
    struct gpu_kda_draft drafts[128];
    struct batch_seq seqs[128];
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = plain ? tokens : (tokens + 3 * i) % (GPU_KDA_TOKENS_MOST + 1);
        const int32_t kept = plain ? (int32_t)tokens : some_kept[i % 5];
        struct gpu_kda_draft *d = &drafts[i];
        *d = (struct gpu_kda_draft){(int32_t)rows,    (int32_t)own, (int32_t)i,
                                    (int32_t)i,       (int32_t)i,   kept,
                                    (int32_t)(n + i), -1,           0};
        if (!plain && i % 4 == 1)
            d->from = (int32_t)(n + i);
        if (!plain && i % 4 == 2)
            d->from = -1;
        if (!plain && i % 4 == 3)
            d->slot = -1;
        if (!plain && i % 2 == 0 && kept) {
            d->checkpoint = (int32_t)(2 * n + i);
            d->checkpoint_kept = (kept + 1) / 2;
        }
        seqs[i] = (struct batch_seq){
            .row0 = rows, .rows = own, .pos0 = 10, .slot = d->slot, .from = d->slot};
        rows += own;
    }
    struct case_kda *o = case_kda_open(c, rows, heads, dim, taps, p[4], plain ? n : 3 * n);
    struct gpu_kda_verify *a = &c->record.kda_verify;
    *a = record_of(o);
    float *left = case_take(c, 2 * n * a->left_floats * sizeof *left);
    struct gpu_kda_draft *list = case_take(c, n * sizeof *list);
    memcpy(list, drafts, n * sizeof *list);
    for (uint32_t i = 0; i < n; i++)
        leave(c, o, left + i * a->left_floats, &drafts[i]);
    want_outputs(c, o, &(struct batch){.n_rows = rows, .n_seqs = n, .seqs = seqs});
    a->drafts = list;
    a->left = left;
    c->launch = gpu_launch_kda_verify(a, dim, n, shape);
    c->traffic = (double)n * heads * dim *
                 (2 * 4.0 * dim + 2 * 2.0 * 3 * (taps - 1) + tokens * (6 * 2 + 2.0 * 18));
    snprintf(c->label, sizeof c->label, "kda_verify %u sequences of %u tokens, %u heads of %u%s", n,
             tokens, heads, dim, p[4] ? ", softplus" : "");
}
/* The last has so few heads that a cluster of eight blocks has one. */
static const uint32_t small[][CASE_PARAMETERS] = {
    {5, 3, 8, 4, 0, 4, 0},   {5, 2, 16, 4, 1, 8, 0},  {5, 2, 32, 3, 0, 2, 0},
    {4, 1, 64, 2, 0, 5, 0},  {5, 2, 128, 4, 0, 4, 0}, {1, 3, 32, 1, 1, 8, 1},
    {5, 1, 128, 4, 1, 7, 0},
};
static const uint32_t large[][CASE_PARAMETERS] = {{1, 12, 128, 4, 0, 4, 1},
                                                  {8, 12, 128, 4, 0, 4, 1},
                                                  {32, 12, 128, 4, 0, 4, 1},
                                                  {32, 12, 128, 4, 0, 8, 1}};
const struct gpu_case_kind case_kda_verify = {"kda_verify", make, SHAPES(small), SHAPES(large)};

/* ------------------------------------------------------------------------------- rounds */

enum { SEQUENCES = 3, TOKENS = 4, KEPT = 5 };
/* Tokens kept of the first and of the second round: KEPT of each sequence. */
static const int32_t kept_of[SEQUENCES][2] = {{3, 2}, {1, 4}, {4, 1}};

/* What weir_kda_step makes of the same tokens. */
struct rounds {
    struct case_kda *o;
    float *pool;
    struct case_rows out;
    double (*worst)(const struct gpu_case *c); /* against the reference */
};
static uint32_t row_of(uint32_t sequence, uint32_t round) {
    return (sequence * 2 + round) * TOKENS;
}

static double worst_of_rounds(const struct gpu_case *c) {
    const struct rounds *r = c->own;
    const struct case_kda *o = r->o;
    const size_t row_bytes = (size_t)o->op.heads * o->op.dim * sizeof(uint16_t);
    struct gpu_case inner = *c;
    inner.own = r->o;
    if (memcmp(r->pool, o->device, o->slots * o->slot_floats * sizeof(float)) != 0)
        return INFINITY;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t round = 0; round < 2; round++)
            for (int32_t t = 0; t < kept_of[i][round]; t++) {
                const size_t row = row_of(i, round) + (size_t)t;
                if (memcmp(r->out.h + row * r->out.stride, o->out.h + row * o->out.stride,
                           row_bytes) != 0)
                    return INFINITY;
            }
    return r->worst(&inner);
}

static void want_round(struct gpu_case *c, struct case_kda *o, uint32_t round) {
    struct batch_seq seqs[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++)
        seqs[i] = (struct batch_seq){
            .row0 = row_of(i, round), .rows = TOKENS, .slot = (int32_t)i, .from = (int32_t)i};
    const struct batch b = {.n_rows = SEQUENCES * 2 * TOKENS, .n_seqs = SEQUENCES, .seqs = seqs};
    want_outputs(c, o, &b);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        seqs[i].rows = (uint32_t)kept_of[i][round];
    case_kda_want(c, o, &b);
}

static void add_launch(struct gpu_case *c, struct gpu_launch l, const union gpu_record *record) {
    c->other[c->n_then] = *record;
    c->has_other[c->n_then] = true;
    c->then[c->n_then++] = l;
}

/* Heads, dim, taps, softplus instead of bounded decay. */
static void make_rounds(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    const uint32_t heads = p[0], dim = p[1];
    struct case_kda *o =
        case_kda_open(c, SEQUENCES * 2 * TOKENS, heads, dim, p[2], p[3], SEQUENCES);
    const size_t pool_bytes = o->slots * o->slot_floats * sizeof(float);
    struct rounds *r = case_host(c, sizeof *r);
    *r = (struct rounds){.o = o, .pool = case_take(c, pool_bytes), .worst = c->worst};
    memcpy(r->pool, o->device, pool_bytes);
    r->out = case_blank(c, SEQUENCES * 2 * TOKENS, heads * dim, true);
    c->own = r;
    c->worst = worst_of_rounds;
    want_round(c, o, 0);
    want_round(c, o, 1);

    union gpu_record a = {.kda_verify = record_of(o)};
    a.kda_verify.left = case_take(c, 2 * SEQUENCES * a.kda_verify.left_floats * sizeof(float));
    struct gpu_kda_draft *drafts = case_take(c, 3 * SEQUENCES * sizeof *drafts);
    for (int32_t round = 0; round < 3; round++)
        for (int32_t i = 0; i < SEQUENCES; i++)
            drafts[round * SEQUENCES + i] = (struct gpu_kda_draft){
                .row = round < 2 ? (int32_t)row_of((uint32_t)i, (uint32_t)round) : 0,
                .tokens = round < 2 ? TOKENS : 0,
                .from = i,
                .slot = i,
                .left = i + (round + 1) % 2 * SEQUENCES,
                .kept = round > 0 ? kept_of[i][round - 1] : 0,
                .leave = i + round % 2 * SEQUENCES,
                .checkpoint = -1,
            };
    a.kda_verify.drafts = drafts;
    c->launch = gpu_launch_kda_verify(&a.kda_verify, dim, SEQUENCES, shape);
    c->record = a;
    for (int round = 1; round < 3; round++) {
        a.kda_verify.drafts = drafts + round * SEQUENCES;
        add_launch(c, c->launch, &a);
    }
    struct gpu_kda_seq *seqs = case_take(c, KEPT * SEQUENCES * sizeof *seqs);
    a.kda_step = case_kda_step_record(o);
    a.kda_step.state = r->pool + (o->state - o->device);
    a.kda_step.out = r->out.h;
    a.kda_step.out_stride = r->out.stride;
    for (int32_t m = 0; m < KEPT; m++) {
        for (int32_t i = 0; i < SEQUENCES; i++) {
            const int32_t first = kept_of[i][0], second = m >= first;
            seqs[m * SEQUENCES + i] = (struct gpu_kda_seq){
                (int32_t)row_of((uint32_t)i, (uint32_t)second) + m - second * first, i, i, -1};
        }
        a.kda_step.seqs = seqs + m * SEQUENCES;
        add_launch(c, gpu_launch_kda_step(&a.kda_step, dim, SEQUENCES, shape), &a);
    }
    snprintf(c->label, sizeof c->label, "kda_verify in rounds, %u heads of %u, %u taps%s", heads,
             dim, p[2], p[3] ? ", softplus" : "");
}
static const uint32_t small_rounds[][CASE_PARAMETERS] = {
    {2, 128, 4, 0}, {1, 128, 4, 1}, {2, 64, 4, 0}, {2, 32, 3, 1}, {3, 16, 4, 0}, {3, 8, 2, 0},
};
const struct gpu_case_kind case_kda_verify_rounds = {"kda_verify_rounds", make_rounds,
                                                     SHAPES(small_rounds), NULL, 0};
