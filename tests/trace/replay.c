/* replay.c: see replay.h. Called by replay_cache.c. */
#include "tests/trace/replay.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <semaphore.h>
#include <string.h>
#include <time.h>

enum {
    VOCAB = 163840,
    PLAIN_IDS = 163584, /* ids below are text, the rest markers */
    SEED = 42,
};

struct run {
    const struct replay_setup *setup;
    weir_engine *engine;
    bool *started, *done; /* of each request */
    uint32_t first_open;  /* all before it in order have started */
    uint32_t in_flight, n_done;
    int32_t *prompt, *answer; /* room for the longest */
    struct replay_result *result;
    uint32_t *cached;
    sem_t all_done;
};

static void give_up(const weir_error *err, const char *what) {
    fprintf(stderr, "replay: %s: %s: %s\n", what, err->where, err->message);
    exit(1);
}

static uint32_t answer_tokens(const struct trace_request *r) {
    return r->has_out && r->out > 0 ? (uint32_t)r->out : 1; /* the engine takes 0 for 'no limit' */
}

uint32_t replay_longest(const struct trace *t) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        uint64_t n = t->requests[i].in + answer_tokens(&t->requests[i]);
        WEIR_ASSERT(t->requests[i].in > 0 && n < INT32_MAX / 2);
        longest = n > longest ? (uint32_t)n : longest;
    }
    return longest;
}

uint32_t replay_ample(const struct trace *t, uint32_t concurrency) {
    struct trace_stats s;
    weir_error err;
    if (trace_count(t, NULL, &s, &err))
        give_up(&err, "counting");
    /* What is new of every prompt and its answer, as if nothing were shared but whole blocks. */
    uint64_t pages = (s.sum_in - s.hit_tokens + s.sum_out) / 64 + 3 * s.requests;
    pages += (uint64_t)concurrency * (replay_longest(t) / 64 + 2);
    WEIR_ASSERT(pages < INT32_MAX);
    return (uint32_t)pages;
}

/* -------------------------------------------------------------------------------------- prompts */

static struct trace_play play_of(const struct run *x, const struct trace_request *r) {
    uint32_t space = x->setup->trace->sessions[r->session].space;
    return (struct trace_play){trace_play_key(SEED, space), 0, PLAIN_IDS};
}

/* The next prompt of the chain, if it repeats all whole blocks of this one and goes on. */
static const struct trace_request *continuation(const struct run *x, uint32_t i) {
    const struct trace *t = x->setup->trace;
    const struct trace_request *r = &t->requests[i], *next = r + 1;
    uint64_t blocks = r->in / t->sessions[r->session].block_tokens;
    if (i + 1 == t->n_requests || next->session != r->session || next->agent != r->agent ||
        next->in <= r->in || next->n_blocks <= blocks || r->n_blocks < blocks ||
        memcmp(next->hash_ids, r->hash_ids, blocks * sizeof *r->hash_ids))
        return NULL;
    return next;
}

/* Fills x->prompt; returns how many ids of x->answer are recorded. */
static uint32_t write_prompt(const struct run *x, uint32_t i) {
    const struct trace *t = x->setup->trace;
    const struct trace_request *r = &t->requests[i];
    struct trace_play play = play_of(x, r);
    trace_prompt_ids(t, r, &play, 0, r->in, x->prompt);
    const struct trace_request *next = x->setup->recorded_answers ? continuation(x, i) : NULL;
    if (!next)
        return 0;
    uint64_t block = t->sessions[r->session].block_tokens, tail = r->in / block * block;
    uint64_t left = next->in - r->in, n = answer_tokens(r) < left ? answer_tokens(r) : left;
    trace_prompt_ids(t, next, &play, tail, r->in - tail, x->prompt + tail);
    trace_prompt_ids(t, next, &play, r->in, n, x->answer);
    return (uint32_t)n;
}

/* --------------------------------------------------------------------------------------- running
 */

/* A request this one has to wait for, -1: none. */
static int64_t blocker(const struct run *x, uint32_t i) {
    const struct trace *t = x->setup->trace;
    const struct trace_request *r = &t->requests[i];
    const struct trace_session *s = &t->sessions[r->session];
    if (r->agent >= 0) {
        const struct trace_agent *a = &t->agents[r->agent];
        if (i > a->first)
            return x->done[i - 1] ? -1 : (int64_t)i - 1;
        uint32_t spawner = s->first + a->after - 1;
        return a->after == 0 || x->done[spawner] ? -1 : (int64_t)spawner;
    }
    if (i > s->first && !x->done[i - 1])
        return (int64_t)i - 1;
    for (uint32_t a = s->first_agent; a < s->first_agent + s->n_agents; a++) {
        const struct trace_agent *g = &t->agents[a];
        uint32_t last = g->first + g->n_requests - 1;
        if (g->after == i - s->first && g->n_requests && !x->done[last])
            return last;
    }
    return -1;
}

static void start(struct run *x, uint32_t i) {
    const struct trace_request *r = &x->setup->trace->requests[i];
    weir_params p = weir_params_default();
    p.max_tokens = answer_tokens(r);
    p.ignore_eos = true;
    p.has_seed = true;
    p.seed = i;
    /* The engine ends an answer with its script, so a script of a part only is filled up. */
    uint32_t n = write_prompt(x, i);
    for (uint32_t k = n; n && k < p.max_tokens; k++)
        x->answer[k] = (int32_t)(k % PLAIN_IDS);
    p.scripted_ids = n ? x->answer : NULL;
    p.n_scripted_ids = n ? p.max_tokens : 0;
    x->started[i] = true;
    x->in_flight++;
    weir_request *q;
    weir_error err;
    /* `user` counts from 1: NULL is nobody. */
    if (weir_submit(x->engine, x->prompt, r->in, &p, (void *)(uintptr_t)(i + 1), &q, &err))
        give_up(&err, "submitting");
}

static void start_what_may(struct run *x) {
    const struct replay_setup *s = x->setup;
    uint32_t n = s->trace->n_requests;
    while (x->first_open < n && x->started[s->order[x->first_open]])
        x->first_open++;
    for (uint32_t at = x->first_open; at < n && x->in_flight < s->concurrency; at++) {
        uint32_t i = s->order[at];
        if (x->started[i])
            continue;
        int64_t before = blocker(x, i);
        if (before < 0)
            start(x, i);
        else if (x->started[before])
            return; /* nobody overtakes one that is only waiting for its turn */
    }
}

static void take_tokens(struct run *x, weir_request *q) {
    weir_token token[64];
    weir_progress p;
    while (weir_poll(q, token, 64, &p) == 64)
        ;
    if (p.finish == WEIR_RUNNING)
        return;
    uint32_t i = (uint32_t)(uintptr_t)weir_user(q) - 1;
    if (p.finish != WEIR_FINISH_LENGTH || p.prompt_tokens != x->setup->trace->requests[i].in) {
        fprintf(stderr, "replay: request %u ended as %d\n", i, (int)p.finish);
        exit(1);
    }
    x->result->prompt_tokens += p.prompt_tokens;
    x->result->cached_tokens += p.cached_tokens;
    if (x->cached)
        x->cached[i] = p.cached_tokens;
    x->done[i] = true;
    x->in_flight--;
    x->n_done++;
    weir_release(q);
}

static void on_progress(void *arg) {
    struct run *x = arg;
    weir_request *ready[64];
    size_t n;
    while ((n = weir_ready(x->engine, ready, 64)) > 0)
        for (size_t i = 0; i < n; i++)
            take_tokens(x, ready[i]);
    weir_stats s;
    weir_get_stats(x->engine, &s);
    uint64_t slots = s.slots_used + s.slots_cached;
    uint64_t states = slots > s.running ? slots - s.running : 0;
    if (states > x->result->most_states)
        x->result->most_states = (uint32_t)states;
    start_what_may(x);
    if (x->n_done == x->setup->trace->n_requests)
        sem_post(&x->all_done);
}

static weir_engine *open_engine(struct run *x) {
    const struct replay_setup *s = x->setup;
    uint32_t longest = replay_longest(s->trace);
    struct engine_setup setup = {
        .info = {.kv_pages = s->pages, .state_slots = s->slots, .vocab_size = VOCAB},
        .request = {.vocab = VOCAB, .max_model_len = longest + 64, .scripts = true},
        .schedule = {.max_seqs = s->concurrency,
                     .max_rows = s->step_rows,
                     .max_waiting = s->concurrency,
                     .policy = WEIR_FCFS},
        .async = true,
        .cache = {.enabled = true, .policy = s->policy},
        .on_progress = on_progress,
        .on_progress_arg = x,
    };
    struct step_limits limits = {.rows = s->step_rows,
                                 .logits = scheduler_max_logits(&setup.schedule)};
    weir_engine *e = NULL;
    weir_error err;
    if (executor_open_null(VOCAB, limits, &setup.executor, &err) || engine_open(&setup, &e, &err))
        give_up(&err, "opening");
    return e;
}

void replay_run(const struct replay_setup *setup, struct replay_result *out, uint32_t *cached) {
    uint32_t n = setup->trace->n_requests, longest = replay_longest(setup->trace);
    struct run x = {.setup = setup, .result = out, .cached = cached};
    *out = (struct replay_result){0};
    x.started = calloc(n, sizeof *x.started);
    x.done = calloc(n, sizeof *x.done);
    x.prompt = malloc((size_t)longest * sizeof *x.prompt);
    x.answer = malloc((size_t)longest * sizeof *x.answer);
    WEIR_ASSERT(x.started && x.done && x.prompt && x.answer);
    sem_init(&x.all_done, 0, 0);
    double begin = clock_seconds();
    x.engine = open_engine(&x);
    start(&x, setup->order[0]); /* all others from the engine's thread */
    while (sem_wait(&x.all_done) != 0)
        ;
    /* The last one gives back what it held once the engine has come round. */
    do {
        nanosleep(&(struct timespec){0, 100000}, NULL);
        weir_get_stats(x.engine, &out->end);
    } while (out->end.running > 0 || out->end.slots_used > 0);
    out->seconds = clock_seconds() - begin;
    weir_close(x.engine);
    sem_destroy(&x.all_done);
    free(x.started);
    free(x.done);
    free(x.prompt);
    free(x.answer);
}
