/* sample.c: draws the next token of each logits row, or scores a given one. The `sample` entry of
 * every CPU column; the rules and their order are in sample.h.
 *
 * In: raw logits, which stay untouched (logprobs are of the raw distribution). Out: one result a
 * row, and the row's sample_state advanced by its token.
 * Invariant that bites: a draw is a function of its own row, rules and (seed, stream, n_output),
 * never of the batch or the team; so every sum here runs in an order that the row alone fixes.
 *
 * A vocabulary of 163,840 is never sorted: top-k and top-p find their border by radix selection,
 * and the greedy case is one pass that compilers turn into vector code. */
#include "ops/sample.h"

#include "base/arena.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    LANES = 4,   /* what every x86-64 and ARM core has */
    BLOCK = 256, /* logits between two looks at the running best; also the unit of summation */
};

/* vLLM's border: below it a temperature counts as 0. */
static const float GREEDY_BELOW = 1e-5f;

/* --------------------------------------------------------------------------------- vector helpers
 * Vectors of the compiler's own kind, passed by address so that no calling convention is asked of
 * the machine; a loop over plain arrays is unrolled before anybody sees that it is a vector. */

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));

/* Up to LANES floats of the n at x, the rest -inf. The whole vector apart, because a copy of known
 * size is one load. */
static inline void load(const float *x, uint32_t n, floats *out) {
    if (n >= LANES) {
        memcpy(out, x, sizeof *out);
    } else {
        *out = (floats){0} - INFINITY;
        memcpy(out, x, n * sizeof *x);
    }
}

static inline void store(float *x, uint32_t n, const floats *v) {
    if (n >= LANES)
        memcpy(x, v, sizeof *v);
    else
        memcpy(x, v, n * sizeof *x);
}

/* *x = exp(*x) for values <= 0, relative error below 2e-7; 0 below -87, where the result is near
 * the end of the normal numbers. expf would be a call per token of the vocabulary. */
static inline void exp_negative(floats *x) {
    const ints there = *x > -87.0f;
    floats in = (floats)((ints)*x & there);    /* 0 in the lanes that end as 0 anyway */
    floats k = in * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: an integer stands in the low bits */
    ints scale = ((ints)k + 127) << 23;        /* 2^k */
    k -= 12582912.0f;
    floats r = in - k * 0.693359375f;
    r += k * 2.12194440e-4f;
    floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    *x = (floats)((ints)(p * (floats)scale) & there);
}

static inline void keep_larger(floats *m, const floats *v) {
    const ints larger = *v > *m; /* false for NaN */
    *m = (floats)(((ints)*v & larger) | ((ints)*m & ~larger));
}

struct peak {
    float value;
    uint32_t index; /* the lowest of equals; n when every value is -inf */
    bool finite;    /* no NaN and no +inf among them */
};

static float block_peak(const float *x, uint32_t n, bool *finite) {
    floats best = (floats){0} - INFINITY, v;
    ints good = (ints){0} - 1;
    for (uint32_t i = 0; i < n; i += LANES) {
        load(x + i, n - i, &v);
        keep_larger(&best, &v);
        good &= v <= FLT_MAX;
    }
    float m = best[0];
    for (int j = 0; j < LANES; j++) {
        m = best[j] > m ? best[j] : m;
        *finite &= good[j] != 0;
    }
    return m;
}

static struct peak find_peak(const float *x, uint32_t n) {
    struct peak p = {-INFINITY, n, true};
    uint32_t block = n;
    for (uint32_t i = 0; i < n; i += BLOCK) {
        float m = block_peak(x + i, n - i < BLOCK ? n - i : BLOCK, &p.finite);
        if (m > p.value) {
            p.value = m;
            block = i;
        }
    }
    if (block < n)
        for (p.index = block; x[p.index] != p.value;)
            p.index++;
    return p;
}

/* e[i] = exp((x[i] - peak) * inverse) unless e is NULL; returns their sum. */
static double exponentials(const float *x, uint32_t n, float peak, float inverse, float *e) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i += BLOCK) {
        uint32_t end = n - i < BLOCK ? n : i + BLOCK;
        floats part = {0}, v;
        for (uint32_t k = i; k < end; k += LANES) {
            load(x + k, end - k, &v);
            v = (v - peak) * inverse;
            exp_negative(&v);
            part += v;
            if (e)
                store(e + k, end - k, &v);
        }
        for (int j = 0; j < LANES; j++)
            sum += (double)part[j];
    }
    return sum;
}

/* ------------------------------------------------------------------------------------- logprobs */

/* The n_top best ids of raw logits, by falling value, equal ones by rising id. */
static uint32_t find_top(const float *x, uint32_t vocab, uint32_t n_top, weir_logprob *top) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab; i += BLOCK) {
        uint32_t end = vocab - i < BLOCK ? vocab : i + BLOCK;
        bool finite = true;
        if (n == n_top && !(block_peak(x + i, end - i, &finite) > top[n - 1].logprob))
            continue;
        for (uint32_t k = i; k < end; k++) {
            if (n == n_top && !(x[k] > top[n - 1].logprob))
                continue;
            uint32_t at = n < n_top ? n++ : n - 1;
            for (; at > 0 && x[k] > top[at - 1].logprob; at--)
                top[at] = top[at - 1];
            top[at] = (weir_logprob){(int32_t)k, x[k]};
        }
    }
    return n;
}

static void report(const float *logits, uint32_t vocab, struct peak raw, int32_t n_top,
                   weir_token *out) {
    double log_sum = (double)raw.value + log(exponentials(logits, vocab, raw.value, 1.0f, NULL));
    float mine = logits[out->id];
    uint32_t above = 0;
    for (uint32_t i = 0; i < vocab; i++)
        above += logits[i] > mine;
    for (uint32_t i = 0; i < (uint32_t)out->id; i++)
        above += logits[i] == mine;
    out->logprob = (float)((double)mine - log_sum);
    out->rank = above + 1;
    uint32_t want = n_top > WEIR_MAX_LOGPROBS ? WEIR_MAX_LOGPROBS : (uint32_t)n_top;
    out->n_top = want ? find_top(logits, vocab, want, out->top) : 0;
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
}

/* ----------------------------------------------------------------------- rules on single logits */

static bool has_penalty(const struct sample_rules *r) {
    return r->repetition_penalty != 1.0f || r->frequency_penalty != 0.0f ||
           r->presence_penalty != 0.0f;
}

/* Forbids the last token of every sequence whose other tokens the output ends with; `output` holds
 * all steps, so a sequence is caught across their borders. */
static void mask_bad_words(const struct sample_state *s, float *x) {
    const struct sample_rules *r = &s->rules;
    for (uint32_t i = 0; i < r->n_bad_words; i++) {
        const int32_t *word = r->bad_words[i];
        size_t head = r->bad_word_lengths[i] - 1;
        if (head <= s->n_output &&
            (head == 0 || memcmp(s->output + s->n_output - head, word, head * sizeof *word) == 0))
            x[word[head]] = -INFINITY;
    }
}

static void penalise(const struct sample_state *s, float *x, uint32_t vocab) {
    const struct sample_rules *r = &s->rules;
    float repeat = r->repetition_penalty, frequency = r->frequency_penalty,
          presence = r->presence_penalty;
    bool counted = s->counts && (frequency != 0.0f || presence != 0.0f);
    bool repeated = s->seen && repeat != 1.0f;
    for (uint32_t i = 0; i < vocab; i++) {
        if (x[i] == -INFINITY)
            continue; /* a masked token must not become NaN by inf - inf */
        if (repeated && s->seen[i])
            x[i] = x[i] > 0 ? x[i] / repeat : x[i] * repeat;
        if (counted && s->counts[i])
            x[i] -= frequency * (float)s->counts[i] + presence;
        x[i] = x[i] > FLT_MAX ? FLT_MAX : x[i];
    }
}

/* Before its time. */
static bool end_is_masked(const struct sample_state *s) {
    return s->n_output < s->rules.min_tokens && s->rules.n_end_ids > 0;
}

bool sample_changes_logits(const struct sample_state *s) {
    const struct sample_rules *r = &s->rules;
    return r->n_allowed || r->n_bad_words || r->n_bias || has_penalty(r) || end_is_masked(s);
}

/* x = logits after masks, bias and penalties. Returns false when the rules change nothing and x was
 * not written. */
static bool apply_rules(const struct sample_state *s, const float *logits, uint32_t vocab,
                        float *x) {
    const struct sample_rules *r = &s->rules;
    if (!sample_changes_logits(s))
        return false;
    if (r->n_allowed) {
        for (uint32_t i = 0; i < vocab; i++)
            x[i] = -INFINITY;
        for (uint32_t i = 0; i < r->n_allowed; i++)
            x[r->allowed[i]] = logits[r->allowed[i]];
    } else {
        memcpy(x, logits, vocab * sizeof *x);
    }
    mask_bad_words(s, x);
    for (uint32_t i = 0; end_is_masked(s) && i < r->n_end_ids; i++)
        x[r->end_ids[i]] = -INFINITY;
    for (uint32_t i = 0; i < r->n_bias; i++) {
        float *v = &x[r->bias[i].id];
        *v = *v + r->bias[i].value;
        *v = *v > FLT_MAX ? FLT_MAX : *v;
    }
    if (has_penalty(r))
        penalise(s, x, vocab);
    return true;
}

/* ------------------------------------------------------------------------- top-k, top-p and draw
 */

struct scratch {
    float *x;             /* logits after the rules */
    float *e;             /* their exponentials at the temperature, 1 for the best */
    uint32_t *ids, *open; /* candidates; those a selection has yet to decide on */
};

/* Same order as the float's own; -0 and 0 are equal, so they must share a key. */
static inline uint32_t sort_key(float f) {
    uint32_t u;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Keeps, in falling order of x (equal ones as they stand), the candidates before which less than
 * `limit` weight was kept: with weight NULL the `limit` best, with weight = e the smallest set that
 * reaches `limit`. Equal ones stand by rising id on entry and still do afterwards; otherwise the
 * order changes, to one that x and ids alone fix. Three rounds of counting over 11, 11 and 10 bits
 * of the key narrow the border down to one value. */
static uint32_t keep_best(const struct scratch *w, uint32_t n, const float *weight, double limit) {
    const float *x = w->x;
    uint32_t kept = 0, n_open = n;
    double before = 0;
    const uint32_t *open = w->ids;
    for (int round = 0; round < 3; round++) {
        static const int shift[3] = {21, 10, 0};
        const uint32_t mask = round == 2 ? 0x3FF : 0x7FF;
        double heap[0x800] = {0};
        for (uint32_t i = 0; i < n_open; i++)
            heap[(sort_key(x[open[i]]) >> shift[round]) & mask] +=
                weight ? (double)weight[open[i]] : 1.0;
        uint32_t border = mask;
        while (border > 0 && before + heap[border] < limit)
            before += heap[border--];
        uint32_t left = 0;
        for (uint32_t i = 0; i < n_open; i++) {
            uint32_t id = open[i], digit = (sort_key(x[id]) >> shift[round]) & mask;
            if (digit > border)
                w->ids[kept++] = id; /* never overtakes the reader: kept <= i in the first round */
            else if (digit == border)
                w->open[left++] = id;
        }
        open = w->open;
        n_open = left;
    }
    for (uint32_t i = 0; i < n_open && before < limit; i++) {
        before += weight ? (double)weight[open[i]] : 1.0;
        w->ids[kept++] = open[i];
    }
    return kept;
}

/* The candidate under `target`, a point in [0, sum of all weights). */
static uint32_t pick(const struct scratch *w, uint32_t n, double target) {
    uint32_t last = 0;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        float e = w->e[w->ids[i]];
        if (e == 0.0f)
            continue;
        last = w->ids[i];
        sum += (double)e;
        if (sum > target)
            break;
    }
    return last;
}

/* The same over the whole vocabulary, in blocks so that the walk costs little. */
static uint32_t pick_any(const float *e, uint32_t vocab, double target) {
    uint32_t last = 0;
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i += BLOCK) {
        uint32_t end = vocab - i < BLOCK ? vocab : i + BLOCK;
        floats part = {0}, v;
        double block = 0;
        for (uint32_t k = i; k < end; k += LANES) {
            load(e + k, end - k, &v);
            for (uint32_t j = end - k; j < LANES; j++)
                v[j] = 0;
            part += v;
        }
        for (int j = 0; j < LANES; j++)
            block += (double)part[j];
        if (block == 0.0)
            continue;
        bool inside = sum + block > target;
        for (uint32_t k = i; inside && k < end; k++) {
            sum += (double)e[k];
            if (e[k] > 0.0f)
                last = k;
            if (sum > target)
                return k;
        }
        if (!inside) {
            sum += block;
            for (uint32_t k = end; k-- > i;)
                if (e[k] > 0.0f) {
                    last = k;
                    break;
                }
        }
    }
    return last; /* rounding carried the target past the end */
}

static uint32_t draw(const struct sample_rules *r, const struct scratch *w, uint32_t vocab,
                     float peak, double u) {
    float inverse = 1.0f / r->temperature;
    bool cut_k = r->top_k > 0 && (uint32_t)r->top_k < vocab;
    uint32_t n = 0;
    double sum = 0;
    if (cut_k) {
        /* Before min-p although it comes after: both keep a head of the same order, min-p measured
         * against the best alone, so they commute, and this way k exponentials are enough. */
        for (uint32_t i = 0; i < vocab; i++)
            if (w->x[i] != -INFINITY)
                w->ids[n++] = i;
        if (n > (uint32_t)r->top_k)
            n = keep_best(w, n, NULL, r->top_k);
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t id = w->ids[i];
            exponentials(&w->x[id], 1, peak, inverse, &w->e[id]);
            if (w->e[id] >= r->min_p) {
                w->ids[left++] = id;
                sum += (double)w->e[id];
            }
        }
        n = left;
    } else {
        sum = exponentials(w->x, vocab, peak, inverse, w->e);
        if (r->min_p <= 0.0f && r->top_p >= 1.0f)
            return pick_any(w->e, vocab, u * sum);
        /* What lies below `floor` cannot be in the smallest set that reaches top_p, because all of
         * it together weighs less than the rest that may be dropped. */
        float floor = r->min_p > 0.0f
                          ? r->min_p
                          : (float)(0.5 * (1.0 - (double)r->top_p) * sum / (double)vocab);
        double kept = 0;
        for (uint32_t i = 0; i < vocab; i++)
            if (w->e[i] >= floor && w->e[i] > 0.0f) {
                w->ids[n++] = i;
                kept += (double)w->e[i];
            }
        if (r->min_p > 0.0f)
            sum = kept;
    }
    if (r->top_p < 1.0f) {
        double limit = (double)r->top_p * sum;
        n = keep_best(w, n, w->e, limit > 0 ? limit : DBL_MIN);
        sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)w->e[w->ids[i]];
    }
    return pick(w, n, u * sum);
}

/* ------------------------------------------------------------------------------------ the whole */

size_t sample_scratch_bytes(uint32_t vocab) {
    return 4 * arena_piece((size_t)vocab * sizeof(float));
}

static struct scratch lay_out(void *memory, uint32_t vocab) {
    size_t piece = arena_piece((size_t)vocab * sizeof(float));
    unsigned char *p = memory;
    return (struct scratch){(void *)p, (void *)(p + piece), (void *)(p + 2 * piece),
                            (void *)(p + 3 * piece)};
}

void sample_advance(struct sample_state *s, int32_t id) {
    s->output[s->n_output++] = id;
    if (s->seen)
        s->seen[id] = 1;
    if (s->counts)
        s->counts[id]++;
}

bool sample_takes_best(const struct sample_rules *r) {
    return r->temperature < GREEDY_BELOW;
}

double sample_point(const struct sample_state *s) {
    return rng_unit(rng_at(s->rules.seed, s->rules.stream, s->n_output));
}

void sample_no_token(struct sample_result *out, bool not_finite) {
    out->token = (weir_token){.id = -1};
    out->status = WEIR_NO_TOKEN;
    out->not_finite = not_finite;
}

static void clear(struct sample_result *out, int32_t id) {
    out->token.id = id;
    out->token.logprob = 0;
    out->token.rank = 0;
    out->token.n_top = 0;
    out->status = WEIR_OK;
    out->not_finite = false;
}

void sample_take(struct sample_state *s, int32_t id, struct sample_result *out) {
    clear(out, id);
    s->n_steps++;
    sample_advance(s, id);
}

void sample_draw(struct sample_state *s, const float *logits, uint32_t vocab, int32_t n_top,
                 void *memory, struct sample_result *out) {
    struct scratch w = lay_out(memory, vocab);
    const struct sample_rules *r = &s->rules;
    struct peak raw = find_peak(logits, vocab), best = raw;
    if (!raw.finite) {
        sample_no_token(out, true);
        return;
    }
    bool changed = apply_rules(s, logits, vocab, w.x);
    if (changed)
        best = find_peak(w.x, vocab);
    if (best.index == vocab) {
        sample_no_token(out, false);
        return;
    }
    uint32_t id = best.index;
    if (!sample_takes_best(r)) {
        if (!changed)
            memcpy(w.x, logits, vocab * sizeof *w.x);
        id = draw(r, &w, vocab, best.value, sample_point(s));
    }
    sample_take(s, (int32_t)id, out);
    if (n_top >= 0)
        report(logits, vocab, raw, n_top, &out->token);
}

void sample_score(const float *logits, uint32_t vocab, int32_t target, int32_t n_top, void *memory,
                  struct sample_result *out) {
    struct peak raw = find_peak(logits, vocab);
    if (!raw.finite || raw.index == vocab) {
        sample_no_token(out, !raw.finite);
        return;
    }
    clear(out, target);
    report(logits, vocab, raw, n_top < 0 ? 0 : n_top, &out->token);
}

void sample_row(const struct op_sample *a, const struct batch *b, uint32_t i, void *scratch) {
    const struct batch_logits *want = &b->logits[i];
    const float *logits = tensor_row(a->logits, i);
    if (want->state)
        sample_draw(want->state, logits, a->logits.cols, want->n_top, scratch, &a->results[i]);
    else
        sample_score(logits, a->logits.cols, want->target, want->n_top, scratch, &a->results[i]);
}

void ref_sample(const struct op_sample *a, const struct batch *b, struct work w) {
    struct span rows = work_span(w, b->n_logits);
    for (uint32_t i = rows.begin; i < rows.end; i++)
        sample_row(a, b, i, w.scratch);
}
