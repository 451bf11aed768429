/* test_rounding.c: what rounding to BF16 does to the golden prompts when everything else is exact.
 * Columns here are the exact one with roundings behind its operations; `weir score` then compares
 * them as it would a device. Routers of these small models are so near to ties at some positions
 * that any rounding may turn them, and a turned router is what leaves the bound: with the exact
 * column's choices of experts the same roundings keep it. docs/gpu.md, Accuracy on a device, rests
 * on these numbers; with --verbose all are printed. */
#include "tests/test.h"

#include "cli/score.h"
#include "ops/ref/ref.h"

#include <math.h>

/* --------------------------------------------------------------------------- columns
 * One thread runs them: what they keep is here. */

static uint32_t n_experts;
static struct {
    int32_t *ids;
    size_t n, room, at;
    float gap; /* the narrowest between the last chosen expert and the first left out */
    uint32_t position;
    size_t turned, rows; /* rows whose own choices would have been others */
} choices;

static void round_all(struct tensor t, size_t rows) {
    for (size_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < t.cols; c++)
            tensor_row(t, r)[c] = bf16_round(tensor_row(t, r)[c]);
}

/* Routers (no other matrix has as many rows as there are experts) and the head stay f32. */
static void rounded_linear(const struct op_linear *a, const struct batch *b, struct work w) {
    ref_linear(a, b, w);
    for (uint32_t p = 0; p < a->n_parts && !a->logit_rows; p++)
        if (a->part[p].w.rows != n_experts)
            round_all(a->part[p].y, b->n_rows);
}
static void rounded_mix_norm(const struct op_mix_norm *a, const struct batch *b, struct work w) {
    ref_mix_norm(a, b, w);
    round_all(a->out, a->gather ? b->n_logits : b->n_rows);
}
static void rounded_glu(const struct op_glu *a, const struct batch *b, struct work w) {
    ref_glu(a, b, w);
    round_all(a->y, b->n_rows);
}
static void rounded_norm(const struct op_norm *a, const struct batch *b, struct work w) {
    ref_norm(a, b, w);
    round_all(a->y, b->n_rows);
}
static void rounded_kda(const struct op_kda *a, const struct batch *b, struct work w) {
    ref_kda_decode(a, b, w);
    round_all(a->out, b->n_rows);
}
static void rounded_mla(const struct op_mla *a, const struct batch *b, struct work w) {
    ref_mla_decode(a, b, w);
    round_all(a->out, b->n_rows);
}
static void rounded_up(const struct op_experts *a, const struct batch *b, struct work w) {
    ref_experts_up(a, b, w);
    round_all(a->h, (size_t)b->n_rows * a->top_k);
}
static void rounded_down(const struct op_experts *a, const struct batch *b, struct work w) {
    ref_experts_down(a, b, w);
    round_all(a->out, b->n_rows);
}

static bool among(int32_t id, const int32_t *ids, uint32_t n) {
    for (uint32_t j = 0; j < n; j++)
        if (ids[j] == id)
            return true;
    return false;
}

/* Between the worst that was chosen and the best that was not. */
static float gap_of(const struct op_route *a, uint32_t row) {
    const int32_t *ids = a->ids + (size_t)row * a->top_k;
    float in = INFINITY, out = -INFINITY;
    for (uint32_t e = 0; e < a->experts; e++) {
        const float x = ref_sigmoid(tensor_row(a->logits, row)[e]) + (a->bias ? a->bias[e] : 0);
        if (among((int32_t)e, ids, a->top_k))
            in = fminf(in, x);
        else
            out = fmaxf(out, x);
    }
    return in - out;
}

/* Takes down what the exact column chooses. */
static void watched_route(const struct op_route *a, const struct batch *b, struct work w) {
    const size_t n = (size_t)b->n_rows * a->top_k;
    ref_route(a, b, w);
    assert_true(!a->softmax && a->groups <= 1); /* or a gap would be another */
    if (choices.n + n > choices.room) {
        choices.room = 2 * (choices.n + n);
        choices.ids = realloc(choices.ids, choices.room * sizeof *choices.ids);
        assert_non_null(choices.ids);
    }
    memcpy(choices.ids + choices.n, a->ids, n * sizeof *a->ids);
    choices.n += n;
    for (uint32_t r = 0; r < b->n_rows; r++)
        if (gap_of(a, r) < choices.gap) {
            choices.gap = gap_of(a, r);
            choices.position = b->seqs[0].pos0 + r;
        }
}

/* Weighs the exact column's choices by its own logits. Steps come in the same order; behind the
 * first continued token that differs there is nothing to take. */
static void held_route(const struct op_route *a, const struct batch *b, struct work w) {
    const size_t n = (size_t)b->n_rows * a->top_k;
    ref_route(a, b, w);
    if (choices.at + n > choices.n)
        return;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const int32_t *mine = a->ids + (size_t)r * a->top_k;
        bool same = true;
        for (uint32_t j = 0; j < a->top_k; j++)
            same = same && among(mine[j], choices.ids + choices.at + r * a->top_k, a->top_k);
        choices.turned += !same;
    }
    choices.rows += b->n_rows;
    memcpy(a->ids, choices.ids + choices.at, n * sizeof *a->ids);
    choices.at += n;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        float *weights = a->weights + (size_t)r * a->top_k, sum = 0;
        for (uint32_t j = 0; j < a->top_k; j++) {
            weights[j] = ref_sigmoid(tensor_row(a->logits, r)[a->ids[r * a->top_k + j]]);
            sum += weights[j];
        }
        for (uint32_t j = 0; j < a->top_k; j++)
            weights[j] = (a->renormalize ? weights[j] / (sum + 1e-20f) : weights[j]) * a->scale;
    }
}

/* The residual prefix alone, which every implementation in BF16 keeps as such. */
static struct column prefix_column(void) {
    struct column c = column_ref;
    c.round_prefix = true;
    return c;
}
/* What products, norms, activations, attention and experts leave as well: the released code in
 * BF16, but that what happens inside of an operation is as in the exact column. */
static struct column published_column(void) {
    struct column c = prefix_column();
    c.linear = rounded_linear;
    c.mix_norm = rounded_mix_norm;
    c.glu = rounded_glu;
    c.norm = rounded_norm;
    c.kda_decode = rounded_kda;
    c.mla_decode = rounded_mla;
    c.experts_up = rounded_up;
    c.experts_down = rounded_down;
    return c;
}

/* --------------------------------------------------------------------------- scoring */

static bool verbose;

struct scored {
    double rms, kl, other_ids, kl_bound;
};

static struct scored score(const char *model, const char *name, const struct column *column,
                           enum dtype kv) {
    char dir[4096], vectors[4096];
    struct model m;
    struct weights *w = NULL;
    struct vectors v;
    weir_error err;
    snprintf(dir, sizeof dir, "%s", source_path("models/"));
    snprintf(vectors, sizeof vectors, "%s", source_path("vectors/"));
    strncat(dir, model, sizeof dir - strlen(dir) - 1);
    strncat(vectors, model, sizeof vectors - strlen(vectors) - 1);
    if (model_open(dir, &m, &err) || weights_open(dir, &m, &w, &err) ||
        vectors_open(vectors, &v, &err))
        fail_msg("%s: %s", err.where, err.message);
    n_experts = m.experts;
    const struct score_settings s = {.model = &m,
                                     .weights = w,
                                     .column = column,
                                     .fast = true,
                                     .threads = 1,
                                     .rows = 256,
                                     .kv_dtype = kv};
    struct scored out = {.kl_bound = -1};
    for (size_t i = 0; i < vectors_cases(&v); i++) {
        struct score_case c;
        if (strcmp(vectors_case_name(vectors_case(&v, i)), name))
            continue;
        if (score_run(&s, &v, vectors_case(&v, i), &c, &err))
            fail_msg("%s: %s", err.where, err.message);
        for (size_t k = 0; k < c.n_checks; k++) {
            if (!strncmp(c.check[k].what, "root", 4))
                out.rms = c.check[k].error;
            if (!strncmp(c.check[k].what, "mean KL", 7)) {
                out.kl = c.check[k].error;
                out.kl_bound = c.check[k].bound;
            }
            if (!strncmp(c.check[k].what, "share", 5))
                out.other_ids = c.check[k].error;
        }
        score_free(&c);
    }
    assert_true(out.kl_bound > 0); /* the case was there */
    vectors_close(&v);
    weights_close(w);
    return out;
}

static struct scored shown(const char *model, const char *name, const char *what,
                           struct column column, enum dtype kv) {
    struct scored s = score(model, name, &column, kv);
    if (verbose)
        printf("%-17s %-14s %-32s rms %.4f  KL %.2e of %.1e  other ids %.1f %%\n", model, name,
               what, s.rms, s.kl, s.kl_bound, 100 * s.other_ids);
    if (verbose && column.route == held_route)
        printf("%-33s%zu of %zu choices would turn; the narrowest gap is %.1e, at position %u\n",
               "", choices.turned, choices.rows, (double)choices.gap, choices.position);
    return s;
}

/* What the exact column chooses on this case, to be held afterwards. */
static void choose_exactly(const char *model, const char *name) {
    struct column c = column_ref;
    c.route = watched_route;
    choices.n = choices.at = choices.turned = choices.rows = 0;
    choices.gap = INFINITY;
    assert_true(score(model, name, &c, DTYPE_F32).kl == 0); /* the same bits */
    assert_true(choices.n > 0);
}

struct prompt {
    const char *model, *name;
};
/* Under a sanitizer every step takes ten times as long: one will do. */
static const struct prompt near_ties[] = {
    {"tiny-k3", "unicode"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    {"tiny-k3", "chat-effort"},
    {"micro-kimi-linear", "len20"},
    {"micro-kimi-linear", "len70"},
#endif
};

/* Beyond the bound as it is, within it with the exact column's choices. */
static void leaves_the_bound_by_choices_alone(const struct prompt *p, const char *what,
                                              struct column column, enum dtype kv) {
    const struct scored s = shown(p->model, p->name, what, column, kv);
    assert_true(s.kl > s.kl_bound);
    choose_exactly(p->model, p->name);
    column.route = held_route;
    const struct scored held = shown(p->model, p->name, "the same, choices held", column, kv);
    assert_true(choices.turned > 0);
    assert_true(held.rms < 0.1 && held.kl > 0 && held.kl < 2 * held.kl_bound / 3);
}

static void the_rounded_prefix_alone_turns_routers_near_a_tie(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof near_ties / sizeof *near_ties; i++) {
        const struct prompt *p = &near_ties[i];
        if (strcmp(p->name, "chat-effort"))
            leaves_the_bound_by_choices_alone(p, "prefix rounded", prefix_column(), DTYPE_F32);
        else /* the one whose near ties fall as the exact column has them */
            assert_true(shown(p->model, p->name, "prefix rounded", prefix_column(), DTYPE_F32).kl <
                        5e-4);
    }
}

static void published_roundings_keep_the_bound_with_the_exact_choices(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof near_ties / sizeof *near_ties; i++)
        leaves_the_bound_by_choices_alone(&near_ties[i], "published roundings", published_column(),
                                          DTYPE_BF16);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rounded_prefix_alone_turns_routers_near_a_tie),
        cmocka_unit_test(published_roundings_keep_the_bound_with_the_exact_choices),
    };
    verbose = argc > 1 && !strcmp(argv[1], "--verbose");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(choices.ids);
    return failed;
}
