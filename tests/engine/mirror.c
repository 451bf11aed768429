/* mirror.c: see mirror.h. */
#include "tests/test.h"

#include "tests/engine/mirror.h"

#include "base/clock.h"
#include "base/rng.h"

#include <time.h>
#include <unistd.h>

struct mirror {
    struct executor base;
    struct mirror_options o;
    int32_t (*page)[PAGE_TOKENS]; /* the id written at each position, -1: never */
    struct {
        uint64_t hash;
        uint32_t position;
    } * slot;
    const struct batch *batch[EXECUTOR_DEPTH];
    struct step_result *results[EXECUTOR_DEPTH];
    struct sample_result *tokens[EXECUTOR_DEPTH];
    uint32_t n_results[EXECUTOR_DEPTH];
    uint32_t submitted, collected;
};

static uint64_t state_after(uint64_t hash, int32_t id, uint32_t position) {
    return rng_mix(hash ^ rng_mix((uint64_t)id << 32 | position));
}

static uint64_t history_part(int32_t id, uint32_t position) {
    return rng_mix(((uint64_t)id << 24) + position + 77);
}

static int32_t next_id(uint64_t state, uint64_t history, uint64_t seed, uint64_t stream,
                       uint32_t n_output, uint32_t vocab) {
    return (int32_t)(rng_mix(state ^ (history * 3) ^ rng_at(seed, stream, n_output)) % vocab);
}

static float logprob_of(uint64_t state, uint64_t history, int32_t id) {
    return -(float)rng_unit(rng_mix(state + history + (uint64_t)id));
}

static bool fails_at(uint64_t seed, uint32_t n_output) {
    return (seed & MIRROR_FAILS) && (seed & 255) == n_output;
}

uint32_t mirror_solo(const struct mirror_options *o, const int32_t *prompt, uint32_t n,
                     const weir_params *p, int32_t *out, weir_finish *finish) {
    uint64_t state = 0, history = 0;
    uint32_t at = 0, most = p->max_tokens ? p->max_tokens : o->max_model_len - n;
    for (uint32_t i = 0; i < n; i++, at++) {
        state = state_after(state, prompt[i], at);
        history += history_part(prompt[i], at);
    }
    *finish = WEIR_FINISH_LENGTH;
    for (uint32_t k = 0; k < most; k++, at++) {
        if (p->n_scripted_ids && k == p->n_scripted_ids) {
            *finish = WEIR_FINISH_STOP;
            return k;
        }
        if (!p->n_scripted_ids && fails_at(p->seed, k)) {
            *finish = WEIR_FINISH_ERROR;
            return k;
        }
        out[k] = p->n_scripted_ids ? p->scripted_ids[k]
                                   : next_id(state, history, p->seed, p->choice, k, o->vocab);
        state = state_after(state, out[k], at);
        history += history_part(out[k], at);
        bool end = !p->ignore_eos && out[k] == o->eos;
        for (size_t i = 0; i < p->n_stop_ids; i++)
            end |= out[k] == p->stop_ids[i];
        if (end && k + 1 > p->min_tokens) {
            *finish = WEIR_FINISH_STOP;
            return k + 1;
        }
        if (k + 1 == p->n_scripted_ids && k + 1 < most)
            *finish = WEIR_FINISH_STOP;
    }
    return most;
}

float mirror_logprob(const int32_t *prompt, uint32_t target) {
    uint64_t state = 0, history = 0;
    for (uint32_t i = 0; i < target; i++) {
        state = state_after(state, prompt[i], i);
        history += history_part(prompt[i], i);
    }
    return logprob_of(state, history, prompt[target]);
}

static void write_token(struct mirror *m, const struct batch_seq *q, int32_t id,
                        uint32_t position) {
    int32_t page = q->pages[position / PAGE_TOKENS];
    WEIR_ASSERT(page >= 0 && (uint32_t)page < m->o.pages);
    m->page[page][position % PAGE_TOKENS] = id;
    m->slot[q->slot].hash = state_after(m->slot[q->slot].hash, id, position);
    m->slot[q->slot].position = position + 1;
}

/* Reads positions 0..position through the pages, as attention does. */
static uint64_t read_history(struct mirror *m, const struct batch_seq *q, uint32_t position) {
    uint64_t history = 0;
    for (uint32_t p = 0; p <= position; p++) {
        int32_t id = m->page[q->pages[p / PAGE_TOKENS]][p % PAGE_TOKENS];
        WEIR_ASSERT(id >= 0);
        history += history_part(id, p);
    }
    return history;
}

/* One logits row, reached when its token has been written. Returns how many results it filled. */
static uint32_t answer(struct mirror *m, const struct batch_seq *q, uint32_t position,
                       const struct batch_logits *want, struct sample_result *out) {
    uint64_t state = m->slot[q->slot].hash, history = read_history(m, q, position);
    struct sample_state *s = want->state;
    if (!s) {
        out[0] =
            (struct sample_result){.token = {.id = want->target,
                                             .rank = 1,
                                             .logprob = logprob_of(state, history, want->target)}};
        return 1;
    }
    const struct sample_rules *r = &s->rules;
    uint32_t n = s->n_steps < s->script.n_steps ? s->script.steps[s->n_steps] : 1, i = 0;
    s->n_steps++;
    do {
        int32_t id = s->n_output < s->script.n
                         ? s->script.ids[s->n_output]
                         : next_id(state, history, r->seed, r->stream, s->n_output, m->o.vocab);
        out[i] = (struct sample_result){.token = {.id = id}};
        if (!s->script.n && fails_at(r->seed, s->n_output)) {
            out[i] = (struct sample_result){
                .token = {.id = -1}, .status = WEIR_NO_TOKEN, .not_finite = true};
            return 1;
        }
        sample_advance(s, id);
        if (++i < n && s->n_output < s->script.n)
            write_token(m, q, id, position + i);
    } while (i < n && s->n_output < s->script.n);
    return i;
}

/* What ops.h promises about a batch. */
static void check_shape(const struct mirror *m, const struct batch *b) {
    uint32_t row = 0;
    WEIR_ASSERT(b->n_rows > 0 && b->n_rows <= m->o.max_rows && b->n_seqs <= m->o.max_seqs);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seqs[i];
        WEIR_ASSERT(q->row0 == row && q->rows > 0);
        WEIR_ASSERT((q->rows == 1) == (i < b->n_decode));
        WEIR_ASSERT(q->slot >= 0 && (uint32_t)q->slot < m->o.slots);
        for (uint32_t k = 0; k < i; k++)
            WEIR_ASSERT(b->seqs[k].slot != q->slot);
        row += q->rows;
    }
    WEIR_ASSERT(row == b->n_rows);
    WEIR_ASSERT(b->n_logits <= m->o.max_seqs + SCORES_A_STEP);
}

static void run(struct mirror *m, uint32_t ticket) {
    const struct batch *b = m->batch[ticket % EXECUTOR_DEPTH];
    uint32_t previous = (ticket + EXECUTOR_DEPTH - 1) % EXECUTOR_DEPTH;
    struct step_result *results = m->results[ticket % EXECUTOR_DEPTH];
    struct sample_result *at = m->tokens[ticket % EXECUTOR_DEPTH];
    check_shape(m, b);
    uint32_t done = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seqs[i];
        if (q->from < 0) {
            WEIR_ASSERT(q->pos0 == 0);
            m->slot[q->slot].hash = 0;
            m->slot[q->slot].position = 0;
        } else {
            m->slot[q->slot] = m->slot[q->from];
        }
        WEIR_ASSERT(m->slot[q->slot].position == q->pos0);
        for (uint32_t k = 0; k < q->rows; k++) {
            int32_t id = b->ids[q->row0 + k];
            if (id < 0) {
                uint32_t row = (uint32_t)((int64_t)id - ID_FROM_PREVIOUS);
                WEIR_ASSERT(row < m->n_results[previous]);
                const struct sample_result *r = m->results[previous][row].tokens;
                id = r->status ? 0 : r->token.id;
            }
            WEIR_ASSERT(id >= 0 && (uint32_t)id < m->o.vocab);
            write_token(m, q, id, q->pos0 + k);
            for (uint32_t w = 0; w < b->n_logits; w++)
                if (b->logits[w].row == q->row0 + k) {
                    results[w].tokens = at;
                    results[w].n_tokens = answer(m, q, q->pos0 + k, &b->logits[w], at);
                    at += results[w].n_tokens;
                    done++;
                }
        }
    }
    WEIR_ASSERT(done == b->n_logits);
    m->n_results[ticket % EXECUTOR_DEPTH] = b->n_logits;
}

static void submit(struct executor *x, const struct batch *b) {
    struct mirror *m = (struct mirror *)x;
    WEIR_ASSERT(m->submitted - m->collected < EXECUTOR_DEPTH);
    m->batch[m->submitted++ % EXECUTOR_DEPTH] = b;
}

static void collect(struct executor *x, struct step_outcome *out) {
    struct mirror *m = (struct mirror *)x;
    WEIR_ASSERT(m->submitted != m->collected);
    uint32_t ticket = m->collected++;
    if (m->o.step_us)
        usleep(m->o.step_us);
    run(m, ticket);
    *out = (struct step_outcome){m->n_results[ticket % EXECUTOR_DEPTH],
                                 m->results[ticket % EXECUTOR_DEPTH], 1e-6};
}

static void close_mirror(struct executor *x) {
    struct mirror *m = (struct mirror *)x;
    WEIR_ASSERT(m->submitted == m->collected);
    for (int i = 0; i < EXECUTOR_DEPTH; i++) {
        free(m->results[i]);
        free(m->tokens[i]);
    }
    free(m->page);
    free(m->slot);
    free(m);
}

weir_engine *mirror_open(const struct mirror_options *o) {
    struct mirror *m = calloc(1, sizeof *m);
    m->base = (struct executor){submit, collect, close_mirror};
    m->o = *o;
    m->page = malloc(o->pages * sizeof *m->page);
    m->slot = malloc(o->slots * sizeof *m->slot);
    memset(m->page, 0xFF, o->pages * sizeof *m->page);
    memset(m->slot, 0xFF, o->slots * sizeof *m->slot);
    uint32_t logits = o->max_seqs + SCORES_A_STEP;
    for (int i = 0; i < EXECUTOR_DEPTH; i++) {
        m->results[i] = calloc(logits, sizeof *m->results[i]);
        m->tokens[i] = calloc((size_t)logits + o->max_seqs * 64, sizeof *m->tokens[i]);
    }
    struct engine_setup setup = {
        .info = {.kv_pages = o->pages, .state_slots = o->slots},
        .request = {.vocab = o->vocab,
                    .max_model_len = o->max_model_len,
                    .eos = &m->o.eos,
                    .n_eos = 1,
                    .scripts = true},
        .schedule = {.max_seqs = o->max_seqs,
                     .max_rows = o->max_rows,
                     .max_waiting = o->max_waiting ? o->max_waiting : 4096,
                     .policy = o->policy},
        .async = o->async,
        .executor = &m->base,
    };
    weir_engine *e;
    assert_int_equal(engine_open(&setup, &e, NULL), WEIR_OK);
    return e;
}

uint32_t wait_end(weir_request *r, weir_token *out, uint32_t cap, weir_progress *progress,
                  const char *what) {
    uint32_t n = 0;
    double limit = clock_seconds() + 60;
    for (;;) {
        n += (uint32_t)weir_poll(r, out + n, cap - n, progress);
        if (progress->finish != WEIR_RUNNING)
            return n;
        if (clock_seconds() > limit)
            fail_msg("%s: no end after a minute, %u tokens so far", what, n);
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}
