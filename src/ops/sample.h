/* sample.h: the rules by which the next token is drawn, and what is reported about it. Order
 * (vLLM's): raw logprobs first; allowed ids, bad words, minimum-length mask, bias; repetition,
 * frequency, presence penalties; argmax for temperature 0; temperature; min-p; top-k; top-p; draw.
 * docs/sampling.md.
 *
 * The state lives beside the logits and is advanced by the operation itself, so that a step may be
 * scheduled before the one before it has been read. */
#ifndef WEIR_OPS_SAMPLE_H
#define WEIR_OPS_SAMPLE_H

#include "ops/ops.h"

struct sample_rules {
    float temperature, top_p, min_p;
    int32_t top_k; /* <= 0: off */
    float repetition_penalty, frequency_penalty, presence_penalty;
    uint64_t seed, stream; /* draw i uses rng_at(seed, stream, i) */
    uint32_t min_tokens;
    const int32_t *end_ids; /* masked before min_tokens: eos and stop ids */
    uint32_t n_end_ids;
    const weir_bias *bias;
    uint32_t n_bias;
    const int32_t *allowed; /* sorted; n_allowed 0: all */
    uint32_t n_allowed;
    const int32_t *const *bad_words;
    const size_t *bad_word_lengths;
    uint32_t n_bad_words;
};

/* An answer fixed beforehand, for executors that compute nothing: `ids` in order, `steps` of them
 * at a time (1 where steps has run out). sample_draw does not look at it. */
struct sample_script {
    const int32_t *ids;
    size_t n;
    const uint32_t *steps;
    size_t n_steps;
};

/* One sequence's sampling state. `output` has room for every token the request may generate. `seen`
 * and `counts` are there ([vocab] each) only where a penalty needs them. */
struct sample_state {
    struct sample_rules rules;
    int32_t *output;
    uint32_t n_output;
    uint32_t n_steps; /* draws done; differs from n_output where a step yields several tokens */
    uint8_t *seen;    /* 1: in the prompt or generated (repetition penalty) */
    uint32_t *counts; /* generated (frequency and presence) */
    struct sample_script script; /* n 0: none */
};

struct sample_result {
    weir_token token;   /* the drawn id, or the target of a scored row; without logprobs only the id
                           is set */
    weir_status status; /* WEIR_OK, or WEIR_NO_TOKEN: nothing left to choose or a logit was NaN or
                           +inf; token.id is -1 then and the state stays as it was */
    bool not_finite;    /* which of the two */
};

/* Draws from one row of logits, advances the state, fills *out. A raw logit of -inf is a token that
 * cannot be chosen. `scratch` has sample_scratch_bytes(vocab), 64-byte aligned. n_top: best ids to
 * report, -1: no logprobs. */
void sample_draw(struct sample_state *s, const float *logits, uint32_t vocab, int32_t n_top,
                 void *scratch, struct sample_result *out);
/* Reports on `target` without drawing. */
void sample_score(const float *logits, uint32_t vocab, int32_t target, int32_t n_top, void *scratch,
                  struct sample_result *out);
size_t sample_scratch_bytes(uint32_t vocab);
/* Takes `id` as the next token of the sequence: what sample_draw does with its choice. */
void sample_advance(struct sample_state *s, int32_t id);

/* The pieces of sample_draw, for a device that finds the token itself: whether a rule changes
 * single logits at this draw, whether the best logit wins, the random number in [0, 1) of this
 * draw; then the token that was found, or why there is none. */
bool sample_changes_logits(const struct sample_state *s);
bool sample_takes_best(const struct sample_rules *r);
double sample_point(const struct sample_state *s);
void sample_take(struct sample_state *s, int32_t id, struct sample_result *out);
void sample_no_token(struct sample_result *out, bool not_finite);

/* Row i of the operation, whatever is wanted of it. */
void sample_row(const struct op_sample *a, const struct batch *b, uint32_t i, void *scratch);
/* The operation of every CPU column: logits rows are shared out over the members. */
void ref_sample(const struct op_sample *a, const struct batch *b, struct work w);

#endif
