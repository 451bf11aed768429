/* executor_null.c: answers without computing, so that scheduler, caches, HTTP and replay can be
 * driven at full trace length. Called through executor.h.
 * Invariant that bites: results of a batch must survive the submit of the next one, so each of the
 * batches in flight has its own. */
#include "base/rng.h"
#include "engine/executor.h"

#include <stdlib.h>

struct flight {
    struct step_result *results;
    struct sample_result *tokens; /* of all rows, one after another */
    uint32_t n, capacity;
};

struct null_executor {
    struct executor base;
    uint32_t vocab;
    struct flight flight[EXECUTOR_DEPTH];
    uint32_t submitted, collected;
};

static struct sample_result plain(int32_t id, bool logprobs) {
    struct sample_result r = {.token = {.id = id}};
    if (logprobs)
        r.token.rank = 1;
    return r;
}

/* How many tokens the row yields. */
static uint32_t step_tokens(const struct sample_state *s) {
    if (!s || s->n_output >= s->script.n)
        return 1;
    size_t n = s->n_steps < s->script.n_steps ? s->script.steps[s->n_steps] : 1;
    size_t left = s->script.n - s->n_output;
    return (uint32_t)(n < left ? n : left);
}

static void answer(uint32_t vocab, const struct batch_logits *want, const struct step_result *out,
                   struct sample_result *tokens) {
    struct sample_state *s = want->state;
    if (!s) {
        tokens[0] = plain(want->target, true);
        return;
    }
    for (uint32_t i = 0; i < out->n_tokens; i++) {
        int32_t id = s->n_output < s->script.n
                         ? s->script.ids[s->n_output]
                         : (int32_t)(rng_at(s->rules.seed, s->rules.stream, s->n_output) % vocab);
        tokens[i] = plain(id, want->n_top >= 0);
        sample_advance(s, id);
    }
    s->n_steps++;
}

/* Room for the tokens of long script steps; the list grows to the longest batch and stays. Without
 * memory rows yield one token each, which always fits. */
static bool make_room(struct flight *f, uint64_t tokens) {
    if (tokens <= f->capacity)
        return true;
    struct sample_result *t =
        tokens <= UINT32_MAX ? realloc(f->tokens, (size_t)tokens * sizeof *t) : NULL;
    if (!t)
        return false;
    f->tokens = t;
    f->capacity = (uint32_t)tokens;
    return true;
}

static void null_submit(struct executor *base, const struct batch *b) {
    struct null_executor *x = (struct null_executor *)base;
    WEIR_ASSERT(x->submitted - x->collected < EXECUTOR_DEPTH);
    struct flight *f = &x->flight[x->submitted++ % EXECUTOR_DEPTH];
    uint64_t total = 0;
    for (uint32_t i = 0; i < b->n_logits; i++)
        total += step_tokens(b->logits[i].state);
    bool whole_steps = make_room(f, total);
    struct sample_result *at = f->tokens;
    f->n = b->n_logits;
    for (uint32_t i = 0; i < b->n_logits; i++) {
        struct step_result *r = &f->results[i];
        *r = (struct step_result){whole_steps ? step_tokens(b->logits[i].state) : 1, at};
        answer(x->vocab, &b->logits[i], r, at);
        at += r->n_tokens;
    }
}

static void null_collect(struct executor *base, struct step_outcome *out) {
    struct null_executor *x = (struct null_executor *)base;
    WEIR_ASSERT(x->submitted != x->collected);
    struct flight *f = &x->flight[x->collected++ % EXECUTOR_DEPTH];
    *out = (struct step_outcome){.n_results = f->n, .results = f->results};
}

static void null_close(struct executor *base) {
    struct null_executor *x = (struct null_executor *)base;
    for (int i = 0; i < EXECUTOR_DEPTH; i++) {
        free(x->flight[i].results);
        free(x->flight[i].tokens);
    }
    free(x);
}

weir_status executor_open_null(uint32_t vocab, struct step_limits limits, struct executor **out,
                               weir_error *err) {
    struct null_executor *x = calloc(1, sizeof *x);
    bool ok = x;
    *out = NULL;
    for (int i = 0; ok && i < EXECUTOR_DEPTH; i++) {
        x->flight[i].results = calloc(limits.logits, sizeof *x->flight[i].results);
        x->flight[i].tokens = calloc(limits.logits, sizeof *x->flight[i].tokens);
        x->flight[i].capacity = limits.logits;
        ok = x->flight[i].results && x->flight[i].tokens;
    }
    if (!ok) {
        if (x)
            null_close(&x->base);
        return weir_fail(err, WEIR_NO_MEMORY, "max_num_seqs", "no memory for %" PRIu32 " results",
                         limits.logits);
    }
    x->base = (struct executor){null_submit, null_collect, null_close};
    x->vocab = vocab;
    *out = &x->base;
    return WEIR_OK;
}
