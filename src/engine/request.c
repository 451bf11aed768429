/* request.c: checks what a caller asks for and lays it out in one block. Called by weir_submit on
 * the caller's thread; everything the engine thread will write for this request is allocated here,
 * so that it never allocates later.
 * Invariant that bites: an id that is not below the vocabulary must not get past this file; the
 * embedding and the sampler index with it unchecked. */
#include "engine/request.h"

#include "base/arena.h"
#include "base/rng.h"
#include "base/plural.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------- checks
 */

static weir_status check_id(const char *list, size_t at, int64_t id, uint32_t vocab,
                            weir_error *err) {
    char where[64];
    if (id >= 0 && id < (int64_t)vocab)
        return WEIR_OK;
    if (list)
        snprintf(where, sizeof where, "%s[%zu]", list, at);
    else
        snprintf(where, sizeof where, "%zu", at);
    return weir_fail(err, list ? WEIR_BAD_VALUE : WEIR_BAD_ID, where,
                     "token id %" PRId64 " is outside the vocabulary: 0 to %" PRIu32, id,
                     vocab - 1);
}

static weir_status check_ids(const char *list, const int32_t *ids, size_t n, uint32_t vocab,
                             weir_error *err) {
    for (size_t i = 0; i < n; i++)
        if (check_id(list, i, ids[i], vocab, err))
            return list ? WEIR_BAD_VALUE : WEIR_BAD_ID;
    return WEIR_OK;
}

static weir_status check_number(const char *name, float value, bool ok, const char *rule,
                                weir_error *err) {
    if (ok)
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_VALUE, name, "is %g, must be %s", (double)value, rule);
}

static weir_status check_sampling(const weir_params *p, weir_error *err) {
    const struct {
        const char *name;
        float value;
        bool ok;
        const char *rule;
    } number[] = {
        {"temperature", p->temperature, isfinite(p->temperature) && p->temperature >= 0,
         "finite and not negative"},
        {"top_p", p->top_p, p->top_p > 0 && p->top_p <= 1, "above 0 and at most 1"},
        {"min_p", p->min_p, p->min_p >= 0 && p->min_p <= 1, "0 to 1"},
        {"repetition_penalty", p->repetition_penalty,
         isfinite(p->repetition_penalty) && p->repetition_penalty > 0, "finite and above 0"},
        {"frequency_penalty", p->frequency_penalty, isfinite(p->frequency_penalty), "finite"},
        {"presence_penalty", p->presence_penalty, isfinite(p->presence_penalty), "finite"},
        {"top_k", (float)p->top_k, p->top_k >= -1, "-1, 0 or above"},
        {"logprobs", (float)p->logprobs, p->logprobs >= -1 && p->logprobs <= WEIR_MAX_LOGPROBS,
         "-1 to 20"},
        {"prompt_logprobs", (float)p->prompt_logprobs,
         p->prompt_logprobs >= -1 && p->prompt_logprobs <= WEIR_MAX_LOGPROBS, "-1 to 20"},
    };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (check_number(number[i].name, number[i].value, number[i].ok, number[i].rule, err))
            return WEIR_BAD_VALUE;
    return WEIR_OK;
}

static weir_status check_lists(const struct request_limits *l, const weir_params *p,
                               weir_error *err) {
    weir_status s = check_ids("stop_ids", p->stop_ids, p->n_stop_ids, l->vocab, err);
    if (!s)
        s = check_ids("allowed_ids", p->allowed_ids, p->n_allowed_ids, l->vocab, err);
    if (!s)
        s = check_ids("scripted_ids", p->scripted_ids, p->n_scripted_ids, l->vocab, err);
    for (size_t i = 0; !s && i < p->n_bias; i++) {
        s = check_id("bias", i, p->bias[i].id, l->vocab, err);
        if (!s && !(p->bias[i].value < INFINITY))
            s = weir_fail(err, WEIR_BAD_VALUE, "bias", "value %g of id %" PRId32 " is no number",
                          (double)p->bias[i].value, p->bias[i].id);
    }
    for (size_t i = 0; !s && i < p->n_bad_words; i++) {
        if (p->bad_word_lengths[i] == 0)
            s = weir_fail(err, WEIR_BAD_VALUE, "bad_words", "entry %zu is empty", i);
        else
            s = check_ids("bad_words", p->bad_words[i], p->bad_word_lengths[i], l->vocab, err);
    }
    if (!s && (p->n_scripted_ids || p->n_scripted_steps) && !l->scripts)
        s = weir_fail(err, WEIR_BAD_VALUE, "scripted_ids",
                      "only the null column answers by script");
    for (size_t i = 0; !s && i < p->n_scripted_steps; i++)
        if (p->scripted_steps[i] == 0)
            s = weir_fail(err, WEIR_BAD_VALUE, "scripted_steps", "step %zu yields no token", i);
    return s;
}

static weir_status check_length(const struct request_limits *l, size_t n, const weir_params *p,
                                weir_error *err) {
    if (n == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "prompt", "is empty");
    if (n >= l->max_model_len)
        return weir_fail(err, WEIR_TOO_LONG, "prompt",
                         "has %zu %s, which leaves no room for an answer in a context of "
                         "%" PRIu32,
                         n, plural(n, "token", "tokens"), l->max_model_len);
    if (p->max_tokens > l->max_model_len - n)
        return weir_fail(err, WEIR_TOO_LONG, "max_tokens",
                         "%zu %s of prompt and %" PRIu32 " of answer exceed the context of %" PRIu32
                         " tokens",
                         n, plural(n, "token", "tokens"), p->max_tokens, l->max_model_len);
    if (p->max_tokens && p->min_tokens > p->max_tokens)
        return weir_fail(err, WEIR_BAD_VALUE, "min_tokens",
                         "is %" PRIu32 ", more than max_tokens %" PRIu32, p->min_tokens,
                         p->max_tokens);
    return WEIR_OK;
}

/* ---------------------------------------------------------------------------------------- layout
 */

/* Hands out pieces of one block; with base NULL it only counts. */
struct layout {
    unsigned char *base;
    size_t used;
};

static void *take(struct layout *l, size_t n, size_t each) {
    size_t bytes = size_mul(n, each);
    void *p = l->base && n ? l->base + l->used : NULL;
    if (bytes > SIZE_MAX / 4 || l->used > SIZE_MAX / 4)
        l->used = SIZE_MAX / 2; /* calloc will refuse it */
    else
        l->used += arena_piece(bytes);
    return p;
}

static void *take_copy(struct layout *l, const void *from, size_t n, size_t each) {
    void *p = take(l, n, each);
    if (p)
        memcpy(p, from, n * each);
    return p;
}

static size_t record_bytes(int32_t n_top) {
    return offsetof(weir_token, top) + (size_t)n_top * sizeof(weir_logprob);
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static void place_bad_words(struct layout *l, struct sample_rules *rules, const weir_params *p) {
    const int32_t **word = take(l, p->n_bad_words, sizeof *word);
    rules->bad_word_lengths =
        take_copy(l, p->bad_word_lengths, p->n_bad_words, sizeof *p->bad_word_lengths);
    for (size_t i = 0; i < p->n_bad_words; i++) {
        int32_t *copy = take_copy(l, p->bad_words[i], p->bad_word_lengths[i], sizeof *copy);
        if (word)
            word[i] = copy;
    }
    rules->bad_words = word;
    rules->n_bad_words = (uint32_t)p->n_bad_words;
}

static void place_rules(struct layout *l, struct weir_request *r,
                        const struct request_limits *limits, const weir_params *p) {
    size_t n_end = p->n_stop_ids + (p->ignore_eos ? 0 : limits->n_eos);
    int32_t *end = take(l, n_end, sizeof *end);
    if (end) {
        if (p->n_stop_ids)
            memcpy(end, p->stop_ids, p->n_stop_ids * sizeof *end);
        if (!p->ignore_eos && limits->n_eos)
            memcpy(end + p->n_stop_ids, limits->eos, limits->n_eos * sizeof *end);
        qsort(end, n_end, sizeof *end, by_id);
    }
    int32_t *allowed = take_copy(l, p->allowed_ids, p->n_allowed_ids, sizeof *allowed);
    if (allowed)
        qsort(allowed, p->n_allowed_ids, sizeof *allowed, by_id);
    struct sample_rules *rules = &r->sample.rules;
    *rules = (struct sample_rules){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .repetition_penalty = p->repetition_penalty,
        .frequency_penalty = p->frequency_penalty,
        .presence_penalty = p->presence_penalty,
        .seed = p->seed,
        .stream = p->choice,
        .min_tokens = p->min_tokens,
        .end_ids = end,
        .n_end_ids = (uint32_t)n_end,
        .bias = take_copy(l, p->bias, p->n_bias, sizeof *p->bias),
        .n_bias = (uint32_t)p->n_bias,
        .allowed = allowed,
        .n_allowed = (uint32_t)p->n_allowed_ids,
    };
    r->ask.end_ids = end;
    r->ask.n_end_ids = (uint32_t)n_end;
    place_bad_words(l, rules, p);
    r->sample.script = (struct sample_script){
        .ids = take_copy(l, p->scripted_ids, p->n_scripted_ids, sizeof *p->scripted_ids),
        .n = p->n_scripted_ids,
        .steps = take_copy(l, p->scripted_steps, p->n_scripted_steps, sizeof *p->scripted_steps),
        .n_steps = p->n_scripted_steps,
    };
}

/* Everything of variable size, in one order for counting and for placing. */
static void place_all(struct layout *l, struct weir_request *r, const struct request_limits *limits,
                      const int32_t *ids, const weir_params *p) {
    const struct request_ask *a = &r->ask;
    r->tokens = take(l, (size_t)a->n_prompt + a->max_new + a->max_step, sizeof *r->tokens);
    if (r->tokens) {
        memcpy(r->tokens, ids, a->n_prompt * sizeof *ids);
        r->sample.output = r->tokens + a->n_prompt;
    }
    bool repeats = p->repetition_penalty != 1.0f;
    bool counts = p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
    r->sample.seen = take(l, repeats ? limits->vocab : 0, 1);
    r->sample.counts = take(l, counts ? limits->vocab : 0, sizeof *r->sample.counts);
    for (uint32_t i = 0; r->sample.seen && i < a->n_prompt; i++)
        r->sample.seen[ids[i]] = 1;
    if (a->n_top >= 0)
        r->logprobs = take(l, a->max_new, record_bytes(a->n_top));
    if (a->prompt_top >= 0)
        r->prompt_scores = take(l, a->n_prompt - 1, sizeof *r->prompt_scores);
    place_rules(l, r, limits, p);
    if (p->name)
        r->name = take_copy(l, p->name, strlen(p->name) + 1, 1);
}

static uint32_t longest_step(const weir_params *p) {
    uint32_t most = 1;
    for (size_t i = 0; i < p->n_scripted_steps; i++)
        most = p->scripted_steps[i] > most ? p->scripted_steps[i] : most;
    uint32_t whole = p->n_scripted_ids ? (uint32_t)p->n_scripted_ids : 1;
    return most < whole ? most : whole;
}

weir_status request_create(const struct request_limits *limits, const int32_t *ids, size_t n,
                           const weir_params *p, struct weir_request **out, weir_error *err) {
    *out = NULL;
    weir_status s = check_ids(NULL, ids, n, limits->vocab, err);
    if (!s)
        s = check_sampling(p, err);
    if (!s)
        s = check_lists(limits, p, err);
    if (!s)
        s = check_length(limits, n, p, err);
    if (s)
        return s;

    struct weir_request plan = {0};
    plan.ask = (struct request_ask){
        .n_prompt = (uint32_t)n,
        .max_new = p->max_tokens ? p->max_tokens : limits->max_model_len - (uint32_t)n,
        .max_step = longest_step(p),
        .priority = p->priority,
        .repeats = p->choice > 0,
        .n_top = p->logprobs,
        .prompt_top = p->prompt_logprobs,
        .min_tokens = p->min_tokens,
    };
    struct layout count = {0};
    struct weir_request *r = take(&count, 1, sizeof *r);
    place_all(&count, &plan, limits, ids, p);
    unsigned char *memory = calloc(1, count.used);
    if (!memory)
        return weir_fail(err, WEIR_NO_MEMORY, "request", "no memory for %zu bytes", count.used);
    struct layout real = {memory, 0};
    r = take(&real, 1, sizeof *r);
    r->ask = plan.ask;
    r->memory = memory;
    place_all(&real, r, limits, ids, p);
    if (!p->has_seed)
        r->sample.rules.seed = rng_entropy();
    r->run.scored_to = 1;
    r->pub.progress = (weir_progress){.stop_id = -1, .prompt_tokens = (uint32_t)n};
    if (cache_lease_open(&r->run.lease, &limits->space,
                         r->ask.n_prompt + r->ask.max_new + r->ask.max_step, p->cache_salt)) {
        free(memory);
        return weir_fail(err, WEIR_NO_MEMORY, "request", "no memory for its page table");
    }
    *out = r;
    return WEIR_OK;
}

void request_free(struct weir_request *r) {
    if (!r)
        return;
    cache_lease_close(&r->run.lease);
    free(r->memory);
}

/* ------------------------------------------------------------------------------------ in passing
 */

bool request_before(const struct weir_request *a, const struct weir_request *b) {
    if (a->ask.priority != b->ask.priority)
        return a->ask.priority < b->ask.priority;
    return a->ask.arrival < b->ask.arrival;
}

bool request_ends_at(const struct weir_request *r, int32_t id) {
    return r->ask.n_end_ids &&
           bsearch(&id, r->ask.end_ids, r->ask.n_end_ids, sizeof id, by_id) != NULL;
}

void request_keep(struct weir_request *r, uint32_t at, const weir_token *token) {
    if (!r->logprobs)
        return;
    size_t bytes = record_bytes(r->ask.n_top);
    size_t filled = record_bytes((int32_t)token->n_top);
    memcpy(r->logprobs + at * bytes, token, filled < bytes ? filled : bytes);
}

void request_read(const struct weir_request *r, uint32_t at, weir_token *out) {
    if (r->logprobs) {
        const unsigned char *record = r->logprobs + at * record_bytes(r->ask.n_top);
        memcpy(out, record, offsetof(weir_token, top));
        memcpy(out->top, record + offsetof(weir_token, top), out->n_top * sizeof *out->top);
    } else {
        out->id = r->tokens[r->ask.n_prompt + at];
        out->logprob = 0;
        out->rank = 0;
        out->n_top = 0;
    }
}
