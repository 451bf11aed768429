/* Sampling: every rule alone, all rules in their order against a plain reference, distributions by
 * chi-square. */
#include "tests/test.h"

#include "base/arena.h"
#include "base/rng.h"
#include "ops/sample.h"

#include <math.h>

enum { MAX_VOCAB = 163840 };

static uint64_t rng_state;
static uint64_t next(void) {
    return rng_mix(rng_state++);
}
static float uniform(float lo, float hi) {
    return lo + (hi - lo) * (float)rng_unit(next());
}
static uint32_t below(uint32_t n) {
    return (uint32_t)(next() % n);
}

static void *scratch;
static float *logits;
static int32_t output[4096];

static struct sample_rules neutral(void) {
    return (struct sample_rules){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
}

static struct sample_state fresh(struct sample_rules rules) {
    return (struct sample_state){.rules = rules, .output = output};
}

static int32_t draw_once(struct sample_rules rules, const float *x, uint32_t vocab) {
    struct sample_state s = fresh(rules);
    struct sample_result r;
    sample_draw(&s, x, vocab, -1, scratch, &r);
    assert_int_equal(r.status, WEIR_OK);
    return r.token.id;
}

/* ------------------------------------------------------------------------------------ reference */

struct entry {
    double x, p;
    int32_t id;
};

static int by_falling_x(const void *a, const void *b) {
    const struct entry *p = a, *q = b;
    if (p->x != q->x)
        return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : 1;
}

static double renormalise(struct entry *e, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(e[i].x - e[0].x);
    for (uint32_t i = 0; i < n; i++)
        e[i].p = exp(e[i].x - e[0].x) / sum;
    return sum;
}

/* The rules word by word, in double and with a full sort. Returns how many tokens are left; e holds
 * them by falling probability. */
static uint32_t reference(const struct sample_state *s, const float *raw, uint32_t vocab,
                          struct entry *e) {
    const struct sample_rules *r = &s->rules;
    for (uint32_t i = 0; i < vocab; i++) {
        bool in = r->n_allowed == 0;
        for (uint32_t k = 0; k < r->n_allowed; k++)
            in |= r->allowed[k] == (int32_t)i;
        e[i] = (struct entry){.x = in ? raw[i] : -INFINITY, .id = (int32_t)i};
    }
    for (uint32_t w = 0; w < r->n_bad_words; w++) {
        size_t head = r->bad_word_lengths[w] - 1;
        bool match = head <= s->n_output;
        for (size_t k = 0; match && k < head; k++)
            match = s->output[s->n_output - head + k] == r->bad_words[w][k];
        if (match)
            e[r->bad_words[w][head]].x = -INFINITY;
    }
    for (uint32_t k = 0; s->n_output < r->min_tokens && k < r->n_end_ids; k++)
        e[r->end_ids[k]].x = -INFINITY;
    /* In f32, as the logits are: in double two equal penalised logits could differ. */
    for (uint32_t k = 0; k < r->n_bias; k++)
        e[r->bias[k].id].x = (float)e[r->bias[k].id].x + r->bias[k].value;
    for (uint32_t i = 0; i < vocab; i++) {
        float v = (float)e[i].x;
        if (s->seen && s->seen[i])
            v = v > 0 ? v / r->repetition_penalty : v * r->repetition_penalty;
        if (s->counts && s->counts[i])
            v -= r->frequency_penalty * (float)s->counts[i] + r->presence_penalty;
        e[i].x = v;
    }
    qsort(e, vocab, sizeof *e, by_falling_x);
    uint32_t n = vocab;
    while (n > 0 && e[n - 1].x == -INFINITY)
        n--;
    if (n == 0)
        return 0;
    if (r->temperature < 1e-5f) {
        e[0].p = 1;
        return 1;
    }
    for (uint32_t i = 0; i < n; i++)
        e[i].x /= (double)r->temperature;
    while (n > 1 && exp(e[n - 1].x - e[0].x) < (double)r->min_p)
        n--;
    if (r->top_k > 0 && (uint32_t)r->top_k < n)
        n = (uint32_t)r->top_k;
    renormalise(e, n);
    double sum = 0;
    uint32_t keep = 0;
    while (keep < n && (keep == 0 || sum < (double)r->top_p))
        sum += e[keep++].p;
    renormalise(e, keep);
    return keep;
}

/* Upper 1e-6 point of chi-square with k degrees of freedom (Wilson and Hilferty). */
static double chi_square_limit(double k) {
    double z = 4.75342, a = 2 / (9 * k);
    return k * pow(1 - a + z * sqrt(a), 3);
}

/* Draws `n` times from one row, each time from the same state, and holds the counts against the
 * reference's probabilities. */
static void check_distribution(const struct sample_state *s, const float *x, uint32_t vocab,
                               uint32_t n, unsigned long long shown_seed) {
    struct entry *e = calloc(vocab, sizeof *e);
    uint32_t *drawn = calloc(vocab, sizeof *drawn);
    uint8_t *seen = calloc(vocab, sizeof *seen);
    uint32_t *counts = calloc(vocab, sizeof *counts);
    uint32_t left = reference(s, x, vocab, e), inside = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sample_state one = *s;
        struct sample_result r;
        one.rules.stream = i;
        if (s->seen)
            one.seen = memcpy(seen, s->seen, vocab);
        if (s->counts)
            one.counts = memcpy(counts, s->counts, vocab * sizeof *counts);
        sample_draw(&one, x, vocab, -1, scratch, &r);
        assert_int_equal(r.status, left ? WEIR_OK : WEIR_NO_TOKEN);
        assert_int_equal(one.n_output, s->n_output + (left ? 1 : 0));
        if (left)
            drawn[r.token.id]++;
    }
    double chi = 0, rest_p = 0;
    uint32_t cells = 0, rest = 0;
    for (uint32_t k = 0; k < left; k++) {
        inside += drawn[e[k].id];
        if (e[k].p * n < 8) {
            rest_p += e[k].p;
            rest += drawn[e[k].id];
            continue;
        }
        double d = drawn[e[k].id] - e[k].p * n;
        chi += d * d / (e[k].p * n);
        cells++;
    }
    if (rest_p * n >= 8) {
        double d = rest - rest_p * n;
        chi += d * d / (rest_p * n);
        cells++;
    }
    if (left && (inside != n || (cells > 1 && chi > chi_square_limit(cells - 1))))
        fail_msg("seed %llu: %u of %u draws inside, chi-square %.1f over %u cells", shown_seed,
                 inside, n, chi, cells);
    free(e);
    free(drawn);
    free(seen);
    free(counts);
}

static void fill(uint32_t vocab, float spread) {
    for (uint32_t i = 0; i < vocab; i++)
        logits[i] = uniform(-spread, spread);
}

/* -------------------------------------------------------------------------------- single rules */

static void greedy_takes_the_best_and_the_lowest_of_equals(void **state) {
    struct sample_rules r = neutral();
    r.temperature = 0;
    for (uint32_t vocab = 1; vocab < 1200; vocab += 1 + vocab / 7) {
        fill(vocab, 5);
        uint32_t a = below(vocab), b = below(vocab);
        logits[a] = logits[b] = 9;
        assert_int_equal(draw_once(r, logits, vocab), a < b ? a : b);
        r.top_k = 3; /* without effect at temperature 0 */
        r.top_p = 0.5f;
        assert_int_equal(draw_once(r, logits, vocab), a < b ? a : b);
    }
    for (uint32_t i = 0; i < 300; i++)
        logits[i] = -3e38f;
    assert_int_equal(draw_once(r, logits, 300), 0);
}

static void a_row_that_is_not_finite_yields_no_token_and_keeps_the_state(void **state) {
    static const float wrong[] = {NAN, -NAN, INFINITY};
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 3; k++)
            for (uint32_t at = 0; at < 300; at += 23) {
                struct sample_rules rules = neutral();
                rules.temperature = (float)t;
                struct sample_state s = fresh(rules);
                struct sample_result r;
                fill(300, 3);
                logits[at] = wrong[k];
                sample_draw(&s, logits, 300, 3, scratch, &r);
                assert_int_equal(r.status, WEIR_NO_TOKEN);
                assert_true(r.not_finite);
                assert_int_equal(r.token.id, -1);
                assert_int_equal(s.n_output, 0);
                sample_score(logits, 300, 5, 3, scratch, &r);
                assert_int_equal(r.status, WEIR_NO_TOKEN);
            }
}

static void masks_that_leave_nothing_yield_no_token(void **state) {
    for (int t = 0; t < 2; t++) {
        struct sample_rules rules = neutral();
        rules.temperature = (float)t;
        int32_t allowed[] = {3, 8};
        weir_bias bias[] = {{3, -INFINITY}, {8, -INFINITY}};
        rules.allowed = allowed;
        rules.n_allowed = 2;
        rules.bias = bias;
        rules.n_bias = 1;
        fill(20, 3);
        assert_int_equal(draw_once(rules, logits, 20), 8);
        rules.n_bias = 2;
        struct sample_state s = fresh(rules);
        struct sample_result r;
        sample_draw(&s, logits, 20, -1, scratch, &r);
        assert_int_equal(r.status, WEIR_NO_TOKEN);
        assert_false(r.not_finite);
        for (int i = 0; i < 20; i++)
            logits[i] = -INFINITY;
        s = fresh(neutral());
        sample_draw(&s, logits, 20, 2, scratch, &r);
        assert_int_equal(r.status, WEIR_NO_TOKEN);
    }
}

static void end_ids_are_masked_until_min_tokens(void **state) {
    struct sample_rules rules = neutral();
    int32_t end[] = {4, 9};
    rules.temperature = 0;
    rules.end_ids = end;
    rules.n_end_ids = 2;
    rules.min_tokens = 2;
    fill(20, 1);
    logits[4] = 8;
    logits[9] = 7;
    logits[1] = 6;
    struct sample_state s = fresh(rules);
    struct sample_result r;
    for (int i = 0; i < 3; i++)
        sample_draw(&s, logits, 20, -1, scratch, &r);
    assert_int_equal(output[0], 1);
    assert_int_equal(output[1], 1);
    assert_int_equal(output[2], 4);
}

/* F-037: also where the phrase began in an earlier step. */
static void F037_a_bad_word_never_appears_not_even_across_steps(void **state) {
    static const int32_t one[] = {3}, two[] = {1, 2}, four[] = {1, 1, 1, 4};
    static const int32_t *const words[] = {one, two, four};
    static const size_t lengths[] = {1, 2, 4};
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sample_rules rules = neutral();
        rules.bad_words = words;
        rules.bad_word_lengths = lengths;
        rules.n_bad_words = 3;
        rules.seed = seed;
        rules.temperature = seed % 2 ? 1 : 0;
        struct sample_state s = fresh(rules);
        struct sample_result r;
        rng_state = seed * 1000;
        for (int i = 0; i < 200; i++) {
            fill(5, 2);
            sample_draw(&s, logits, 5, -1, scratch, &r);
            assert_int_equal(r.status, WEIR_OK);
            assert_int_not_equal(output[i], 3);
            assert_false(i >= 1 && output[i] == 2 && output[i - 1] == 1);
            assert_false(i >= 3 && output[i] == 4 && output[i - 1] == 1 && output[i - 2] == 1 &&
                         output[i - 3] == 1);
        }
    }
    static int32_t phrase[300];
    for (int i = 0; i < 300; i++)
        phrase[i] = 2;
    static const int32_t *const lists[] = {phrase};
    static const size_t length[] = {300};
    struct sample_rules rules = neutral();
    rules.temperature = 0;
    rules.bad_words = lists;
    rules.bad_word_lengths = length;
    rules.n_bad_words = 1;
    struct sample_state s = fresh(rules);
    struct sample_result r;
    fill(5, 1);
    logits[2] = 5;
    logits[4] = 4;
    for (int i = 0; i < 600; i++) {
        sample_draw(&s, logits, 5, -1, scratch, &r);
        assert_int_equal(output[i], i % 300 == 299 ? 4 : 2);
    }
}

static void repetition_counts_the_prompt_and_the_others_do_not(void **state) {
    uint8_t seen[8] = {0};
    uint32_t counts[8] = {0};
    struct sample_rules rules = neutral();
    rules.temperature = 0;
    for (int i = 0; i < 8; i++)
        logits[i] = -4;
    logits[5] = 4;
    logits[6] = 3;
    logits[7] = 2.5f;
    rules.repetition_penalty = 2;
    struct sample_state s = fresh(rules);
    s.seen = seen;
    seen[5] = 1; /* stands in the prompt: 4 -> 2 */
    struct sample_result r;
    int32_t expect[] = {6, 7, 5, 5};
    for (int i = 0; i < 4; i++) { /* 6: 3 -> 1.5, then 7: 2.5 -> 1.25, then 5 at 2 */
        sample_draw(&s, logits, 8, -1, scratch, &r);
        assert_int_equal(r.token.id, expect[i]);
    }
    /* a negative logit moves away from zero */
    float low[] = {-1, -1.5f};
    uint8_t low_seen[2] = {1, 0};
    s = fresh(rules);
    s.seen = low_seen;
    sample_draw(&s, low, 2, -1, scratch, &r);
    assert_int_equal(r.token.id, 1);

    rules = neutral();
    rules.temperature = 0;
    rules.frequency_penalty = 1;
    s = fresh(rules);
    s.counts = counts;
    sample_draw(&s, logits, 8, -1, scratch, &r);
    assert_int_equal(r.token.id, 5); /* 4 */
    sample_draw(&s, logits, 8, -1, scratch, &r);
    assert_int_equal(r.token.id, 5); /* 3 = 3 of id 6: the lower id */
    sample_draw(&s, logits, 8, -1, scratch, &r);
    assert_int_equal(r.token.id, 6); /* 2, 3, 2.5 */
    sample_draw(&s, logits, 8, -1, scratch, &r);
    assert_int_equal(r.token.id, 7); /* 2, 2, 2.5 */

    memset(counts, 0, sizeof counts);
    rules.frequency_penalty = 0;
    rules.presence_penalty = 1.25f;
    s = fresh(rules);
    s.counts = counts;
    int32_t by_presence[] = {5, 6, 5, 5}; /* 4 -> 2.75 once and for all */
    for (int i = 0; i < 4; i++) {
        sample_draw(&s, logits, 8, -1, scratch, &r);
        assert_int_equal(r.token.id, by_presence[i]);
    }
}

static void the_order_is_masks_penalties_then_min_p_top_k_top_p(void **state) {
    struct sample_rules rules = neutral();
    /* top-k after the bias: the raised id counts among the two best */
    weir_bias bias[] = {{0, 20}};
    float x[] = {-9, 5, 4, 3};
    rules.top_k = 2;
    rules.bias = bias;
    rules.n_bias = 1;
    for (uint64_t seed = 0; seed < 300; seed++) {
        rules.seed = seed;
        int32_t id = draw_once(rules, x, 4);
        assert_true(id == 0 || id == 1);
    }
    /* top-p is measured on what top-k left: of {0.5, 0.3, 0.2} top-2 leaves 0.625 and 0.375, so 0.6
     * keeps one; on the whole distribution it would have kept two */
    float y[] = {logf(0.5f), logf(0.3f), logf(0.2f)};
    rules = neutral();
    rules.top_k = 2;
    rules.top_p = 0.6f;
    for (uint64_t seed = 0; seed < 300; seed++) {
        rules.seed = seed;
        assert_int_equal(draw_once(rules, y, 3), 0);
    }
    /* min-p is measured after the temperature: 0.3/0.5 = 0.6 is kept at 0.5, and at temperature 0.5
     * it is 0.36 and goes */
    rules = neutral();
    rules.min_p = 0.5f;
    bool second = false;
    for (uint64_t seed = 0; seed < 300; seed++) {
        rules.seed = seed;
        rules.temperature = 1;
        second |= draw_once(rules, y, 3) == 1;
        rules.temperature = 0.5f;
        assert_int_equal(draw_once(rules, y, 3), 0);
    }
    assert_true(second);
}

static void top_p_keeps_at_least_one_and_ties_go_to_the_lower_ids(void **state) {
    struct sample_rules rules = neutral();
    rules.top_p = 1e-30f;
    for (uint32_t vocab = 1; vocab < 700; vocab += 13) {
        for (uint32_t i = 0; i < vocab; i++)
            logits[i] = 1.5f;
        rules.top_p = 1e-30f;
        rules.top_k = 0;
        assert_int_equal(draw_once(rules, logits, vocab), 0);
        rules.top_p = 1;
        rules.top_k = 3;
        for (rules.seed = 0; rules.seed < 50; rules.seed++)
            assert_in_range(draw_once(rules, logits, vocab), 0, 2);
        rules.top_p = 0.5f; /* two of the three: one weighs 1/3 < 0.5 */
        for (rules.seed = 0; rules.seed < 50; rules.seed++)
            assert_in_range(draw_once(rules, logits, vocab), 0, 1);
    }
}

/* ------------------------------------------------------------------------------- all rules */

static void random_rules_draw_from_the_reference_distribution(void **state) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        rng_state = seed << 20;
        uint32_t vocab = 1 + below(seed % 4 ? 60 : 700);
        struct sample_rules r = neutral();
        uint8_t *seen = calloc(vocab, 1);
        uint32_t *counts = calloc(vocab, sizeof *counts);
        int32_t allowed[64], end[2], word[2];
        weir_bias bias[4];
        const int32_t *const words[] = {word};
        const size_t lengths[] = {2};
        fill(vocab, uniform(0.1f, 6));
        if (below(3) == 0) /* equal values */
            for (uint32_t i = 0; i < vocab; i++)
                logits[i] = rintf(logits[i]);
        r.temperature = below(8) ? uniform(0.2f, 3) : 0;
        if (below(2))
            r.top_p = uniform(0.05f, 1);
        if (below(2))
            r.top_k = 1 + (int32_t)below(vocab + 3);
        if (below(3) == 0)
            r.min_p = uniform(0, 1);
        struct sample_state s = {.output = output};
        s.n_output = below(6);
        for (uint32_t i = 0; i < s.n_output; i++)
            output[i] = (int32_t)below(vocab);
        if (below(3) == 0) {
            r.repetition_penalty = uniform(0.5f, 2);
            s.seen = seen;
            for (uint32_t i = 0; i < vocab; i++)
                seen[i] = below(2) == 0;
        }
        if (below(3) == 0) {
            r.frequency_penalty = uniform(-2, 2);
            r.presence_penalty = uniform(-2, 2);
            s.counts = counts;
            for (uint32_t i = 0; i < s.n_output; i++)
                counts[output[i]]++;
        }
        if (below(3) == 0) {
            uint32_t step = 1 + below(4);
            for (uint32_t i = below(vocab); i < vocab && r.n_allowed < 64; i += step)
                allowed[r.n_allowed++] = (int32_t)i;
            r.allowed = allowed;
        }
        if (below(3) == 0) {
            r.n_bias = 1 + below(4);
            for (uint32_t i = 0; i < r.n_bias; i++)
                bias[i] = (weir_bias){(int32_t)below(vocab), below(4) ? uniform(-5, 5) : -INFINITY};
            r.bias = bias;
        }
        if (below(3) == 0) {
            end[0] = (int32_t)below(vocab);
            end[1] = (int32_t)below(vocab);
            r.end_ids = end;
            r.n_end_ids = 2;
            r.min_tokens = below(8);
        }
        if (s.n_output && below(2)) {
            word[0] = output[s.n_output - 1];
            word[1] = (int32_t)below(vocab);
            r.bad_words = words;
            r.bad_word_lengths = lengths;
            r.n_bad_words = 1;
        }
        r.seed = seed;
        s.rules = r;
        check_distribution(&s, logits, vocab, 600, seed);
        free(seen);
        free(counts);
    }
}

static void a_whole_vocabulary_is_drawn_from_the_reference_distribution(void **state) {
    static const struct {
        float top_p, min_p;
        int32_t top_k;
    } kind[] = {{0.95f, 0, 0}, {1, 0, 40}, {0.8f, 0.001f, 0}, {1, 0, 0}, {0.9f, 0.01f, 1000}};
    for (uint64_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        rng_state = k;
        for (uint32_t i = 0; i < MAX_VOCAB; i++)
            logits[i] = uniform(-6, 2) + uniform(-6, 2);
        for (uint32_t i = 0; i < 40; i++)
            logits[below(MAX_VOCAB)] = uniform(8, 15);
        struct sample_rules r = neutral();
        r.top_p = kind[k].top_p;
        r.top_k = kind[k].top_k;
        r.min_p = kind[k].min_p;
        struct sample_state s = fresh(r);
        check_distribution(&s, logits, MAX_VOCAB, 200, k);
    }
}

/* ------------------------------------------------------------------------------ what is reported
 */

static void logprobs_are_of_the_raw_distribution_with_ranks_and_ties_by_id(void **state) {
    for (uint64_t seed = 0; seed < 100; seed++) {
        rng_state = seed << 32;
        uint32_t vocab = 1 + below(seed % 10 ? 800 : MAX_VOCAB);
        fill(vocab, uniform(0.5f, 20));
        if (seed % 3 == 0)
            for (uint32_t i = 0; i < vocab; i++)
                logits[i] = rintf(logits[i]);
        struct entry *e = calloc(vocab, sizeof *e);
        for (uint32_t i = 0; i < vocab; i++)
            e[i] = (struct entry){.x = logits[i], .id = (int32_t)i};
        qsort(e, vocab, sizeof *e, by_falling_x);
        double log_sum = log(renormalise(e, vocab)) + e[0].x;
        struct sample_rules rules = neutral();
        weir_bias bias = {(int32_t)below(vocab), 50};
        rules.bias = &bias;
        rules.n_bias = 1;
        struct sample_state s = fresh(rules);
        struct sample_result drawn, scored;
        int32_t n_top = (int32_t)below(21);
        sample_draw(&s, logits, vocab, n_top, scratch, &drawn);
        assert_int_equal(drawn.token.id, bias.id);
        sample_score(logits, vocab, bias.id, n_top, scratch, &scored);
        assert_memory_equal(&drawn.token, &scored.token, offsetof(weir_token, top));
        assert_true(fabs((double)drawn.token.logprob - (logits[bias.id] - log_sum)) < 1e-5);
        assert_int_equal(e[drawn.token.rank - 1].id, bias.id);
        assert_int_equal(drawn.token.n_top, (uint32_t)n_top < vocab ? (uint32_t)n_top : vocab);
        double sum = 0;
        for (uint32_t i = 0; i < drawn.token.n_top; i++) {
            assert_int_equal(drawn.token.top[i].id, e[i].id);
            assert_true(fabs((double)drawn.token.top[i].logprob - (e[i].x - log_sum)) < 1e-5);
            sum += exp((double)drawn.token.top[i].logprob);
        }
        assert_true(sum <= 1 + 1e-5);
        free(e);
    }
}

/* F-040: neither neighbours nor the team size reach into a row's draw. */
static void F040_a_draw_depends_on_its_own_row_alone(void **state) {
    enum { ROWS = 23, VOCAB = 500 };
    rng_state = 99;
    fill(ROWS * VOCAB, 4);
    static int32_t out[3][ROWS][8];
    struct sample_result alone[ROWS], results[ROWS];
    struct sample_state s[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        struct sample_rules r = neutral();
        r.seed = i;
        r.top_p = i % 2 ? 0.9f : 1;
        s[i] = (struct sample_state){.rules = r, .output = out[0][i]};
        sample_draw(&s[i], logits + i * VOCAB, VOCAB, 2, scratch, &alone[i]);
    }
    for (uint32_t members = 1; members <= 5; members++) {
        struct batch_logits want[ROWS];
        for (uint32_t i = 0; i < ROWS; i++) {
            s[i].n_output = 0;
            want[i] = (struct batch_logits){.row = i, .state = &s[i], .n_top = 2};
        }
        want[4] = (struct batch_logits){.row = 4, .target = 17, .n_top = 0};
        struct batch b = {.n_logits = ROWS, .logits = want};
        struct op_sample a = {{logits, VOCAB, VOCAB}, results};
        memset(results, 0xEE, sizeof results);
        for (uint32_t m = 0; m < members; m++)
            ref_sample(&a, &b, (struct work){.index = m, .count = members, .scratch = scratch});
        for (uint32_t i = 0; i < ROWS; i++)
            if (i == 4)
                assert_int_equal(results[i].token.id, 17);
            else
                assert_memory_equal(&results[i].token, &alone[i].token,
                                    sizeof(weir_token) - 8 * 18);
    }
}

static void choices_of_one_seed_draw_from_different_streams(void **state) {
    rng_state = 5;
    fill(400, 1);
    struct sample_rules r = neutral();
    int32_t first[4][8];
    for (uint32_t c = 0; c < 4; c++) {
        r.stream = c;
        struct sample_state s = {.rules = r, .output = first[c]};
        struct sample_result out;
        for (int i = 0; i < 8; i++)
            sample_draw(&s, logits, 400, -1, scratch, &out);
        for (uint32_t other = 0; other < c; other++)
            assert_memory_not_equal(first[c], first[other], sizeof first[c]);
    }
}

static int allocate(void **state) {
    scratch = aligned_alloc(64, sample_scratch_bytes(MAX_VOCAB));
    logits = calloc(MAX_VOCAB, sizeof *logits);
    return !scratch || !logits;
}

static int release(void **state) {
    free(scratch);
    free(logits);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_best_and_the_lowest_of_equals),
        cmocka_unit_test(a_row_that_is_not_finite_yields_no_token_and_keeps_the_state),
        cmocka_unit_test(masks_that_leave_nothing_yield_no_token),
        cmocka_unit_test(end_ids_are_masked_until_min_tokens),
        cmocka_unit_test(F037_a_bad_word_never_appears_not_even_across_steps),
        cmocka_unit_test(repetition_counts_the_prompt_and_the_others_do_not),
        cmocka_unit_test(the_order_is_masks_penalties_then_min_p_top_k_top_p),
        cmocka_unit_test(top_p_keeps_at_least_one_and_ties_go_to_the_lower_ids),
        cmocka_unit_test(random_rules_draw_from_the_reference_distribution),
        cmocka_unit_test(a_whole_vocabulary_is_drawn_from_the_reference_distribution),
        cmocka_unit_test(logprobs_are_of_the_raw_distribution_with_ranks_and_ties_by_id),
        cmocka_unit_test(F040_a_draw_depends_on_its_own_row_alone),
        cmocka_unit_test(choices_of_one_seed_draw_from_different_streams),
    };
    return cmocka_run_group_tests(tests, allocate, release);
}
