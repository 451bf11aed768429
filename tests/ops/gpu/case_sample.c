/* case_sample.c: tokens drawn by all rules that the kernel knows, against sample_draw. */
#include "tests/ops/gpu/cases.h"

#include "forward/device_draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

struct own {
    const struct gpu_drawn *drawn, *want;
    const bool *decided; /* the row must be */
    uint32_t rows;
};

static double worst_sample(const struct gpu_case *c) {
    const struct own *o = c->own;
    for (uint32_t r = 0; r < o->rows; r++) {
        const struct gpu_drawn *got = &o->drawn[r], *want = &o->want[r];
        if (got->state == GPU_DRAWN_UNDECIDED && !o->decided[r])
            continue;
        if (got->state != want->state || got->id != want->id) {
            fprintf(stderr, "row %u: token %d, state %u, not %d, %u\n", r, got->id, got->state,
                    want->id, want->state);
            return INFINITY;
        }
    }
    return 0;
}

/* Logits of a row: how they are spread, and what is odd about them. */
enum { PEAKED, FLAT, TIES, HOLES, NO_NUMBER, NOTHING, KINDS };

static float logit(struct gpu_case *c, uint32_t kind, uint32_t row, uint32_t i) {
    const float v = case_float(c, 1);
    switch (kind) {
    case FLAT: return v * 0.5f;
    case TIES: return floorf(v * 2) - 0.0f * v; /* zeros of both signs */
    case HOLES: return i % 3 == row % 3 ? 4 * v : -INFINITY;
    case NO_NUMBER: return i == 77 ? NAN : v;
    case NOTHING: return -INFINITY;
    default: return v * 3 + (i % 97 == 5 ? 4 : 0);
    }
}

/* The rules of row r of those that a case has. */
static struct sample_rules rules_of(uint32_t r, uint32_t only) {
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } table[] = {{0, 1, 0, 0},          {1, 1, 0, 0},           {0.7f, 1, 0, 50},
                 {1, 0.95f, 0, 50},     {0.3f, 0.9f, 0, 0},     {1, 1, 0.05f, 0},
                 {1.5f, 0.8f, 0.1f, 0}, {1, 0.99f, 0.01f, 180}, {2, 1, 0, 1},
                 {0.05f, 0.5f, 0, 0},   {1, 1e-6f, 0, 0},       {5, 1, 0, 7},
                 {1, 0.5f, 0, 192}};
    const uint32_t n = sizeof table / sizeof *table, i = only ? only - 1 : r % n;
    return (struct sample_rules){.temperature = table[i].temperature,
                                 .top_p = table[i].top_p,
                                 .min_p = table[i].min_p,
                                 .top_k = table[i].top_k,
                                 .repetition_penalty = 1,
                                 .seed = 5,
                                 .stream = r};
}

/* rows, vocabulary, rules of all rows (0: each its own), kind of all rows plus one (0: each its
 * own), blocks of a cluster (0: the rules') */
static void make_sample(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    const uint32_t rows = p[0], vocab = p[1];
    struct case_rows logits = case_blank(c, rows, vocab, false);
    struct gpu_draw *draws = case_take(c, rows * sizeof *draws);
    struct gpu_drawn *drawn = case_take(c, rows * sizeof *drawn),
                     *want = case_host(c, rows * sizeof *want);
    bool *decided = case_host(c, rows * sizeof *decided);
    void *scratch = case_host(c, sample_scratch_bytes(vocab) + 64);
    scratch = (void *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t kind = p[3] ? p[3] - 1 : r / 3 % KINDS;
        float *row = tensor_row(logits.host, r);
        for (uint32_t i = 0; i < vocab; i++)
            row[i] = logit(c, kind, r, i);
        memcpy(logits.f + (size_t)r * logits.stride, row, vocab * sizeof *row);
        int32_t output[1];
        struct sample_state state = {.rules = rules_of(r, p[2]), .output = output};
        const struct sample_rules *rules = &state.rules;
        struct sample_result result;
        draws[r] = device_draw(&(struct batch_logits){.state = &state, .n_top = -1}, vocab);
        sample_draw(&state, row, vocab, -1, scratch, &result);
        want[r].id = result.token.id;
        want[r].state = result.status == WEIR_OK ? GPU_DRAWN
                        : result.not_finite      ? GPU_DRAWN_NOT_FINITE
                                                 : GPU_DRAWN_NOTHING_LEFT;
        decided[r] = vocab <= GPU_SAMPLE_MOST ||
                     (rules->top_k > 0 && rules->top_k <= 50 && kind != TIES) ||
                     draws[r].how == GPU_DRAW_BEST ||
                     (rules->top_p >= 1 && rules->min_p <= 0 && rules->top_k <= 0);
    }
    struct own *o = case_host(c, sizeof *o);
    *o = (struct own){drawn, want, decided, rows};
    c->record.sample = (struct gpu_sample){.logits = logits.f,
                                           .draws = draws,
                                           .drawn = drawn,
                                           .vocab = vocab,
                                           .stride = logits.stride};
    c->record.sample.members = p[4];
    c->launch = gpu_launch_sample(&c->record.sample, rows, shape);
    c->traffic = 4.0 * rows * vocab;
    c->worst = worst_sample;
    c->own = o;
    const struct sample_rules all = rules_of(0, p[2]);
    if (p[2])
        snprintf(c->label, sizeof c->label,
                 "sample %u of %u, temperature %g, top-k %d, top-p %g, min-p %g, %u blocks", rows,
                 vocab, (double)all.temperature, all.top_k, (double)all.top_p, (double)all.min_p,
                 c->record.sample.members);
    else
        snprintf(c->label, sizeof c->label, "sample %u of %u, all rules", rows, vocab);
}
static const uint32_t sample_small[][CASE_PARAMETERS] = {{1, 1, 0, 0},     {26, 257, 0, 0},
                                                         {39, 1023, 0, 0}, {26, 3000, 0, 1},
                                                         {13, 1500, 0, 4}, {8, 9000, 0, 1}};
static const uint32_t sample_large[][CASE_PARAMETERS] = {
    {117, 163840, 0, 0},    {1, 163840, 4, 1},      {1, 163840, 1, 1},      {1, 163840, 2, 1},
    {1, 163840, 5, 1},      {1, 163840, 6, 1},      {32, 163840, 4, 1},     {128, 163840, 4, 1, 1},
    {128, 163840, 4, 1, 2}, {128, 163840, 4, 1, 8}, {128, 163840, 1, 1, 1}, {128, 163840, 1, 1, 2},
    {128, 163840, 1, 1, 8}, {128, 163840, 2, 1, 1}, {128, 163840, 2, 1, 2}, {128, 163840, 2, 1, 8},
    {128, 163840, 5, 1, 1}, {128, 163840, 5, 1, 2}, {128, 163840, 6, 1, 1}, {128, 163840, 6, 1, 2}};
const struct gpu_case_kind case_sample = {"sample", make_sample, SHAPES(sample_small),
                                          SHAPES(sample_large)};
