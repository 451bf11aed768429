/* The engine over real models and the exact column: however requests are batched, chunked,
 * preempted, overlapped or threaded, each answer is the one it gets alone, bit for bit. */
#include "tests/engine/real.h"

#include "engine/engine.h"

#include "base/clock.h"
#include "base/rng.h"

#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>

/* the two small models, and the trained one */
#define MICRO  "models/micro-k3-odd"
#define LINEAR "models/micro-kimi-linear"
#define TINY   "models/tiny-k3"

enum { REQUESTS = 16, LONGEST = 200, ANSWER = 12 };

/* ------------------------------------------------------------------------ counting allocations */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

static pthread_t main_thread;
static atomic_bool counting;
static atomic_uint allocations;

static void count(void) {
    if (atomic_load(&counting) && !pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&allocations, 1);
}
void *__wrap_malloc(size_t n) {
    count();
    return __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t each) {
    count();
    return __real_calloc(n, each);
}
void *__wrap_realloc(void *p, size_t n) {
    count();
    return __real_realloc(p, n);
}

/* --------------------------------------------------------------------------------------- helpers
 */

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

static weir_options exact(void) {
    weir_options o = weir_options_default();
    o.compute = WEIR_COMPUTE_EXACT;
    o.threads = 1;
    o.max_model_len = 512;
    o.max_num_seqs = REQUESTS;
    return o;
}

struct ask {
    int32_t prompt[LONGEST];
    uint32_t n;
    weir_params params;
    weir_bias bias;
    weir_token answer[LONGEST];
    uint32_t n_answer;
    weir_progress end;
    weir_request *request;
};

static void submit(weir_engine *e, struct ask *a) {
    weir_error err;
    if (weir_submit(e, a->prompt, a->n, &a->params, a, &a->request, &err))
        fail_msg("%s: %s", err.where, err.message);
    a->n_answer = 0;
}

static void await(struct ask *a) {
    double limit = clock_seconds() + 300;
    do {
        a->n_answer += (uint32_t)weir_poll(a->request, a->answer + a->n_answer,
                                           LONGEST - a->n_answer, &a->end);
        nanosleep(&(struct timespec){0, 100000}, NULL);
        if (clock_seconds() > limit)
            fail_msg("no end after five minutes");
    } while (a->end.finish == WEIR_RUNNING);
}

static void answer_all(weir_engine *e, struct ask *a, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        submit(e, &a[i]);
    for (uint32_t i = 0; i < n; i++) {
        await(&a[i]);
        weir_release(a[i].request);
    }
}

static void answer_alone(weir_engine *e, struct ask *a, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        answer_all(e, &a[i], 1);
}

/* Tokens, logprobs, ranks and alternatives, bit for bit. */
static void assert_same(const struct ask *a, const struct ask *b, uint32_t n, const char *what) {
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].n_answer != b[i].n_answer || a[i].end.finish != b[i].end.finish)
            fail_msg("%s: request %u: %u tokens and end %d, otherwise %u and %d", what, i,
                     a[i].n_answer, a[i].end.finish, b[i].n_answer, b[i].end.finish);
        for (uint32_t k = 0; k < a[i].n_answer; k++) {
            const weir_token *x = &a[i].answer[k], *y = &b[i].answer[k];
            if (x->id != y->id || memcmp(&x->logprob, &y->logprob, sizeof x->logprob) != 0 ||
                x->rank != y->rank || x->n_top != y->n_top ||
                memcmp(x->top, y->top, x->n_top * sizeof *x->top) != 0)
                fail_msg("%s: request %u, token %u: %d (%.9g), otherwise %d (%.9g)", what, i, k,
                         x->id, (double)x->logprob, y->id, (double)y->logprob);
        }
    }
}

/* Different prompts around the borders of chunks and pages, under different rules. */
static void mixed_asks(weir_engine *e, struct ask *a, uint64_t seed) {
    static const uint32_t lengths[REQUESTS] = {1,  2,  5,   31,  63,  64,  65,  66,
                                               90, 96, 127, 128, 129, 130, 150, 190};
    weir_info info;
    weir_get_info(e, &info);
    rng_state = seed << 32;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        a[i] = (struct ask){.n = lengths[i], .params = weir_params_default()};
        for (uint32_t k = 0; k < a[i].n; k++)
            a[i].prompt[k] = (int32_t)below(info.vocab_size);
        weir_params *p = &a[i].params;
        p->max_tokens = ANSWER;
        p->ignore_eos = true;
        p->logprobs = 3;
        p->has_seed = true;
        p->seed = i;
        p->temperature = i % 3 ? 0.9f : 0;
        p->top_p = i % 4 ? 1 : 0.9f;
        p->top_k = i % 5 ? 0 : 20;
        p->repetition_penalty = i % 2 ? 1 : 1.2f;
        p->frequency_penalty = i % 4 == 1 ? 0.7f : 0;
    }
}

static struct ask alone[REQUESTS], other[REQUESTS];

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1 }; /* the same paths in a tenth of the time */
#else
enum { SLOW = 0 };
#endif

/* -------------------------------------------------------------------------------------- the ways
 */

static void a_batch_of_sixteen_equals_each_alone_whatever_the_budget(void **state) {
    static const char *const models[] = {MICRO, LINEAR};
#if defined(__SANITIZE_THREAD__)
    static const uint32_t budgets[] = {100};
#elif defined(__SANITIZE_ADDRESS__)
    static const uint32_t budgets[] = {7};
#else
    static const uint32_t budgets[] = {1024, 7, 100, 64, 63, 1};
#endif
    for (int m = SLOW; m < 2; m++) {
        weir_options o = exact();
        weir_engine *e = open_engine(models[m], &o);
        mixed_asks(e, alone, (uint64_t)m + 1);
        memcpy(other, alone, sizeof other);
        answer_alone(e, alone, REQUESTS);
        weir_close(e);
        size_t n = sizeof budgets / sizeof budgets[0];
        for (size_t b = 0; b < (m && n > 3 ? 3 : n); b++) {
            char what[80];
            snprintf(what, sizeof what, "%s, budget %u", models[m], budgets[b]);
            o.max_num_batched_tokens = budgets[b];
            e = open_engine(models[m], &o);
            answer_all(e, other, REQUESTS);
            assert_same(alone, other, REQUESTS, what);
            weir_close(e);
        }
    }
}

static void two_threads_equal_one(void **state) {
    weir_options o = exact();
    weir_engine *e = open_engine(MICRO, &o);
    mixed_asks(e, alone, 5);
    memcpy(other, alone, sizeof other);
    answer_all(e, alone, REQUESTS);
    weir_close(e);
    for (uint32_t threads = SLOW ? 3 : 2; threads <= 3; threads++) {
        o.threads = threads;
        e = open_engine(MICRO, &o);
        answer_all(e, other, REQUESTS);
        assert_same(alone, other, REQUESTS, "threads");
        weir_close(e);
    }
}

/* Also covers prompts and penalties: what was generated before the preemption still counts. */
static void F047_a_preempted_request_continues_as_if_nothing_had_been(void **state) {
    weir_options o = exact();
    weir_engine *e = open_engine(MICRO, &o);
    weir_info info;
    weir_get_info(e, &info);
    mixed_asks(e, alone, 9);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        alone[i].n = 30 + i;
        for (uint32_t k = 0; k < alone[i].n; k++)
            alone[i].prompt[k] = (int32_t)below(info.vocab_size);
        alone[i].params.max_tokens = 90;
    }
    memcpy(other, alone, sizeof other);
    answer_alone(e, alone, REQUESTS);
    weir_close(e);
    for (int async = 0; async < 2; async++) {
        o.async_scheduling = async;
        o.max_model_len = 190;
        o.max_num_seqs = 6;
        o.kv_cache_bytes = 6 * info.state_slot_bytes + 6 * info.kv_page_bytes;
        e = open_engine(MICRO, &o);
        answer_all(e, other, REQUESTS);
        assert_same(alone, other, REQUESTS, "preempted");
        assert_true(when_idle(e).preemptions > 0);
        weir_close(e);
    }
}

static void F038_penalties_see_every_token_with_overlap_on_and_off(void **state) {
    for (int t = 0; t < 2; t++) {
        for (int async = 0; async < 2; async++) {
            weir_options o = exact();
            o.async_scheduling = async;
            weir_engine *e = open_engine(TINY, &o);
            struct ask *a = async ? other : alone;
            *a = (struct ask){.n = 12, .params = weir_params_default()};
            for (uint32_t k = 0; k < a->n; k++)
                a->prompt[k] = 300; /* what the model likes to go on with */
            a->params.temperature = (float)t;
            a->params.has_seed = true;
            a->params.seed = 3;
            a->params.frequency_penalty = 2;
            a->params.ignore_eos = true;
            a->params.max_tokens = 60;
            answer_all(e, a, 1);
            weir_close(e);
        }
        assert_same(alone, other, 1, "overlap");
        if (t == 0) { /* and the penalty has its effect */
            weir_options o = exact();
            weir_engine *e = open_engine(TINY, &o);
            other[0].params.frequency_penalty = 0;
            answer_all(e, other, 1);
            weir_close(e);
            bool differs = false;
            for (uint32_t k = 0; k < 60; k++)
                differs |= other[0].answer[k].id != alone[0].answer[k].id;
            assert_true(differs);
        }
    }
}

static void F039_four_choices_are_reproducible_and_greedy_ones_equal(void **state) {
    weir_options o = exact();
    weir_engine *e = open_engine(MICRO, &o);
    for (int t = 0; t < 2; t++) {
        for (int round = 0; round < 2; round++) {
            struct ask *a = round ? other : alone;
            for (uint32_t i = 0; i < 4; i++) {
                a[i] = (struct ask){.n = 6, .prompt = {3, 1, 4, 1, 5, 9}};
                a[i].params = weir_params_default();
                a[i].params.temperature = (float)t;
                a[i].params.has_seed = true;
                a[i].params.seed = 7;
                a[i].params.choice = round ? 3 - i : i; /* submitted in another order */
                a[i].params.max_tokens = 30;
                a[i].params.ignore_eos = true;
            }
            answer_all(e, a, 4);
        }
        for (uint32_t i = 0; i < 4; i++)
            assert_same(&alone[i], &other[3 - i], 1, "choice");
        for (uint32_t i = 1; i < 4; i++) {
            bool same = true;
            for (uint32_t k = 0; k < 30; k++)
                same &= alone[i].answer[k].id == alone[0].answer[k].id;
            assert_int_equal(same, t == 0);
        }
    }
    weir_close(e);
}

static void F040_seeded_requests_do_not_notice_unseeded_neighbours(void **state) {
    weir_options o = exact();
    weir_engine *e = open_engine(MICRO, &o);
    mixed_asks(e, alone, 11);
    for (uint32_t i = 0; i < 6; i++) {
        alone[i].params.temperature = 1;
        alone[i].params.has_seed = i % 2 == 0;
        alone[i].params.seed = i / 2 + 1;
        alone[i].params.max_tokens = i == 3 ? 4 : ANSWER; /* one ends early */
    }
    memcpy(other, alone, sizeof other);
    answer_alone(e, alone, 6);
    answer_all(e, other, 6);
    bool fresh = false;
    for (uint32_t i = 0; i < 6; i++) {
        if (i % 2 == 0)
            assert_same(&alone[i], &other[i], 1, "seeded");
        else
            for (uint32_t k = 0; k < other[i].n_answer; k++)
                fresh |= other[i].answer[k].id != alone[i].answer[k].id;
    }
    assert_true(fresh); /* without a seed randomness is new each time */
    weir_close(e);
}

static void F041_logprobs_come_with_every_token_and_hold_the_drawn_one(void **state) {
    weir_options o = exact();
    weir_engine *e = open_engine(MICRO, &o);
    mixed_asks(e, alone, 13);
    answer_all(e, alone, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(alone[i].n_answer, ANSWER);
        for (uint32_t k = 0; k < ANSWER; k++) {
            const weir_token *t = &alone[i].answer[k];
            double sum = 0;
            assert_int_equal(t->n_top, 3);
            assert_true(t->rank >= 1 && t->logprob <= 0 && isfinite(t->logprob));
            for (uint32_t j = 0; j < 3; j++)
                sum += exp((double)t->top[j].logprob);
            assert_true(sum <= 1 + 1e-6);
            if (t->rank <= 3) {
                assert_int_equal(t->top[t->rank - 1].id, t->id);
                assert_true(t->top[t->rank - 1].logprob == t->logprob);
            }
        }
    }
    weir_close(e);
}

/* F-045 and F-048: whatever the slots held before. */
static void F048_a_reused_slot_starts_from_nothing(void **state) {
    static const uint32_t budgets[] = {1024, 5, 1};
    for (int b = 0; b < 3; b++) {
        weir_options o = exact();
        o.max_num_seqs = 4;
        o.max_num_batched_tokens = budgets[b];
        for (int used = 0; used < 2; used++) {
            weir_engine *e = open_engine(MICRO, &o);
            struct ask *a = used ? other : alone;
            if (used) { /* fill all slots with long requests and finish them */
                mixed_asks(e, other, 17);
                answer_all(e, other + 8, 8);
            }
            for (uint32_t i = 0; i < 8; i++) {
                a[i] = (struct ask){.n = i < 4 ? 1 : 6 + i, .params = weir_params_default()};
                for (uint32_t k = 0; k < a[i].n; k++)
                    a[i].prompt[k] = (int32_t)(20 + i + k);
                a[i].params.temperature = 0;
                a[i].params.max_tokens = 10;
                a[i].params.logprobs = 2;
                a[i].params.ignore_eos = true;
            }
            answer_all(e, a, 8);
            weir_close(e);
        }
        assert_same(alone, other, 8, "reused slots");
    }
}

static void prompt_logprobs_do_not_depend_on_chunks_and_agree_with_the_answer(void **state) {
    static weir_token first[LONGEST];
    static const uint32_t budgets[] = {512, 64, 50, 1};
    for (int b = 0; b < 4; b++) {
        weir_options o = exact();
        o.max_num_batched_tokens = budgets[b];
        weir_engine *e = open_engine(MICRO, &o);
        struct ask *a = &alone[0];
        mixed_asks(e, alone, 23);
        a->n = 170;
        for (uint32_t k = 0; k < a->n; k++)
            a->prompt[k] = (int32_t)below(100);
        a->params.prompt_logprobs = 4;
        submit(e, a);
        submit(e, &alone[5]); /* not alone */
        await(a);
        await(&alone[5]);
        const weir_token *scores;
        assert_int_equal(weir_prompt_logprobs(a->request, &scores), a->n - 1);
        for (uint32_t t = 1; t < a->n; t++) {
            assert_int_equal(scores[t - 1].id, a->prompt[t]);
            assert_int_equal(scores[t - 1].n_top, 4);
        }
        if (b == 0)
            memcpy(first, scores, (a->n - 1) * sizeof *scores);
        for (uint32_t t = 0; t + 1 < a->n; t++) {
            assert_true(first[t].logprob == scores[t].logprob && first[t].rank == scores[t].rank);
            assert_memory_equal(first[t].top, scores[t].top, 4 * sizeof *scores[t].top);
        }
        /* a prompt that holds an answer is scored as the answer was drawn */
        struct ask *again = &other[0];
        *again = *a;
        memcpy(again->prompt, alone[5].prompt, alone[5].n * sizeof(int32_t));
        for (uint32_t k = 0; k < ANSWER; k++)
            again->prompt[alone[5].n + k] = alone[5].answer[k].id;
        again->n = alone[5].n + ANSWER;
        submit(e, again);
        await(again);
        assert_int_equal(weir_prompt_logprobs(again->request, &scores), again->n - 1);
        for (uint32_t k = 0; k < ANSWER; k++)
            assert_true(scores[alone[5].n + k - 1].logprob == alone[5].answer[k].logprob);
        weir_release(a->request);
        weir_release(alone[5].request);
        weir_release(again->request);
        weir_close(e);
    }
}

/* Greedy continuations of the golden vectors, all cases of a model at once. */
static void golden_greedy_answers_come_out_of_a_full_batch(void **state) {
    static const char *const models[] = {"micro-k3-odd", "micro-kimi-linear", "tiny-k3"};
    for (int m = 0; m < 3; m++) {
        char path[128];
        snprintf(path, sizeof path, "vectors/%s/manifest.json", models[m]);
        json_t *manifest = json_load_file(source_path(path), 0, NULL);
        assert_non_null(manifest);
        json_t *cases = json_object_get(manifest, "cases"), *ids[REQUESTS], *best[REQUESTS];
        weir_options o = exact();
        o.threads = 0;
        o.max_model_len = 1024;
        snprintf(path, sizeof path, "models/%s", models[m]);
        weir_engine *e = open_engine(path, &o);
        static int32_t prompt[REQUESTS][1024];
        weir_request *r[REQUESTS];
        uint32_t n = 0;
        for (size_t i = 0; i < json_array_size(cases) && n < REQUESTS; i++) {
            json_t *c = json_array_get(cases, i);
            ids[n] = json_object_get(c, "ids");
            best[n] = json_object_get(json_object_get(c, "greedy"), "ids");
            size_t length = json_array_size(ids[n]);
            if (!best[n] || length > (m == 2 ? 80 : 300))
                continue;
            for (size_t k = 0; k < length; k++)
                prompt[n][k] = (int32_t)json_integer_value(json_array_get(ids[n], k));
            weir_params p = weir_params_default();
            p.temperature = 0;
            p.ignore_eos = true;
            p.max_tokens = 16;
            weir_error err;
            if (weir_submit(e, prompt[n], length, &p, NULL, &r[n], &err))
                fail_msg("%s: %s", err.where, err.message);
            n++;
        }
        assert_true(n >= 3);
        for (uint32_t i = 0; i < n; i++) {
            struct ask a = {.request = r[i]};
            await(&a);
            assert_int_equal(a.n_answer, 16);
            for (uint32_t k = 0; k < 16; k++)
                if (a.answer[k].id != json_integer_value(json_array_get(best[i], k)))
                    fail_msg("%s, case %u: token %u is %d", models[m], i, k, a.answer[k].id);
            weir_release(r[i]);
        }
        weir_close(e);
        json_decref(manifest);
    }
}

/* ------------------------------------------------------------------------------------- poisoning
 */

/* Hands batches through, and once spoils the state that a chosen sequence is about to read. */
struct poisoner {
    struct executor base;
    struct executor *inner;
    struct cache_store *store;
    uint32_t at_position;
    int32_t slot; /* the poisoned one, -1: not yet */
};

static void poison_submit(struct executor *x, const struct batch *b) {
    struct poisoner *p = (struct poisoner *)x;
    for (uint32_t i = 0; i < b->n_seqs && p->slot < 0; i++)
        if (b->seqs[i].pos0 == p->at_position) {
            p->slot = b->seqs[i].slot;
            for (size_t k = 0; k < p->store->state.slot_floats; k++)
                p->store->state.data[(size_t)p->slot * p->store->state.slot_floats + k] = NAN;
        }
    p->inner->submit(p->inner, b);
}
static void poison_collect(struct executor *x, struct step_outcome *out) {
    struct poisoner *p = (struct poisoner *)x;
    p->inner->collect(p->inner, out);
}
static void poison_close(struct executor *x) {
    struct poisoner *p = (struct poisoner *)x;
    p->inner->close(p->inner);
}

static void F067_a_poisoned_state_ends_its_request_and_its_slot_is_clean_again(void **state) {
    enum { SEQS = 3, PAGES = 30 };
    static struct model m;
    static struct cache_store store;
    struct weights *w;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(MICRO));
    assert_int_equal(model_open(dir, &m, &err), WEIR_OK);
    assert_int_equal(weights_open(dir, &m, &w, &err), WEIR_OK);
    assert_int_equal(cache_store_open(&store, PAGES, program_kv_page_bytes(&m, DTYPE_F32),
                                      m.kv_lora + m.rope_dim, DTYPE_F32, SEQS,
                                      program_state_slot_floats(&m), program_state_layer_floats(&m),
                                      &err),
                     WEIR_OK);
    struct step_limits limits = {.rows = 64, .logits = SEQS + SCORES_A_STEP, .position = 512};
    struct step_program *program;
    assert_int_equal(
        program_build(&m, w, &column_ref, &store.kv, &store.state, limits, 1, &program, &err),
        WEIR_OK);
    struct poisoner p = {.base = {poison_submit, poison_collect, poison_close},
                         .store = &store,
                         .at_position = 40,
                         .slot = -1};
    assert_int_equal(executor_open_program(program, 1, NULL, limits, &p.inner, &err), WEIR_OK);
    struct engine_setup setup = {
        .info = {.kv_pages = PAGES, .state_slots = SEQS, .vocab_size = m.vocab},
        .request = {.vocab = m.vocab, .max_model_len = 512, .eos = m.eos, .n_eos = m.n_eos},
        .schedule = {.max_seqs = SEQS, .max_rows = 64, .max_waiting = 100},
        .async = false, /* the store may be written between steps */
        .executor = &p.base,
    };
    weir_engine *e;
    assert_int_equal(engine_open(&setup, &e, &err), WEIR_OK);
    mixed_asks(e, alone, 31);
    memcpy(other, alone, sizeof other);
    for (int i = 0; i < 3; i++)
        alone[i].n = (uint32_t)(3 + 10 * i); /* only request 2 (23 tokens) gets to 40 in time */
    alone[0].params.max_tokens = alone[1].params.max_tokens = 20;
    alone[2].params.max_tokens = 60;
    memcpy(other, alone, sizeof other);
    answer_all(e, other, 3);
    assert_true(p.slot >= 0);
    assert_int_equal(other[2].end.finish, WEIR_FINISH_ERROR);
    assert_int_equal(other[2].end.error, WEIR_NO_TOKEN);
    /* Rows at positions 22 to 39 still drew; the one at 40 read the poison. */
    assert_int_equal(other[2].n_answer, 18);
    /* everything again, the poison being spent: the slot is reused and neighbours were unharmed */
    answer_all(e, alone, 3);
    assert_same(alone, other, 2, "neighbours of the poisoned one");
    assert_int_equal(alone[2].end.finish, WEIR_FINISH_LENGTH);
    assert_int_equal(alone[2].n_answer, 60);
    weir_stats s;
    weir_get_stats(e, &s);
    assert_int_equal(s.nan_guards, 1);
    weir_close(e);
    cache_store_close(&store);
    weights_close(w);
}

/* --------------------------------------------------------------------------------------- traffic
 */

struct client {
    pthread_t thread;
    weir_engine *engine;
    uint64_t seed;
    uint32_t done;
};

static double traffic_end;

static void *run_client(void *arg) {
    struct client *c = arg;
    weir_token got[32];
    int32_t prompt[200];
    for (uint64_t i = 0; i < 3 || clock_seconds() < traffic_end; i++) {
        uint64_t h = rng_mix(c->seed * 1000003 + i);
        uint32_t n = 1 + (uint32_t)(h % 200);
        for (uint32_t k = 0; k < n; k++)
            prompt[k] = (int32_t)(rng_mix(h + k) % 100);
        weir_params p = weir_params_default();
        p.max_tokens = 1 + (uint32_t)(h >> 20) % 60;
        weir_request *r;
        if (weir_submit(c->engine, prompt, n, &p, NULL, &r, NULL))
            continue;
        weir_progress g;
        uint32_t stop_after = (h >> 40) % 3 ? UINT32_MAX : (uint32_t)(h >> 45) % 20, n_got = 0;
        do {
            n_got += (uint32_t)weir_poll(r, got, 32, &g);
            nanosleep(&(struct timespec){0, 50000}, NULL);
        } while (g.finish == WEIR_RUNNING && n_got < stop_after);
        weir_release(r); /* perhaps in the middle of a step */
        c->done++;
    }
    return NULL;
}

/* F-053: short; under the sanitizers it is the real test. */
static void F053_clients_that_come_and_go_leave_nothing_behind(void **state) {
    weir_options o = exact();
    o.threads = 2;
    o.max_num_seqs = 3;
    weir_engine *e = open_engine(MICRO, &o);
    weir_info info;
    weir_get_info(e, &info);
    weir_close(e);
    o.kv_cache_bytes = 3 * info.state_slot_bytes + 10 * info.kv_page_bytes;
    e = open_engine(MICRO, &o);
    struct client c[4];
    traffic_end = clock_seconds() + 3;
    for (uint64_t i = 0; i < 4; i++) {
        c[i] = (struct client){.engine = e, .seed = i + 1};
        assert_int_equal(pthread_create(&c[i].thread, NULL, run_client, &c[i]), 0);
    }
    uint64_t done = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(c[i].thread, NULL);
        done += c[i].done;
    }
    assert_true(done >= 12);
    weir_stats s = when_idle(e);
    uint64_t ended = 0;
    for (int i = 0; i < 5; i++)
        ended += s.finished[i];
    assert_int_equal(ended, done);
    weir_close(e);
}

static void no_token_costs_an_allocation_in_engine_executor_or_team(void **state) {
    weir_options o = exact();
    o.threads = 2;
    weir_engine *e = open_engine(MICRO, &o);
    mixed_asks(e, alone, 41);
    atomic_store(&counting, true);
    for (uint32_t i = 0; i < REQUESTS; i++)
        submit(e, &alone[i]);
    weir_stats s;
    do {
        weir_get_stats(e, &s);
        nanosleep(&(struct timespec){0, 100000}, NULL);
    } while (s.finished[WEIR_FINISH_LENGTH] < REQUESTS);
    atomic_store(&counting, false);
    assert_int_equal(s.generated_tokens, REQUESTS * ANSWER);
    assert_int_equal(atomic_load(&allocations), 0);
    for (uint32_t i = 0; i < REQUESTS; i++)
        weir_release(alone[i].request);
    weir_close(e);
}

/* ---------------------------------------------------------------------------------------- opening
 */

static void an_engine_says_what_it_is_and_refuses_what_cannot_be(void **state) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(TINY));
    static const struct {
        enum weir_compute compute;
        const char *column;
    } columns[] = {{WEIR_COMPUTE_EXACT, "exact"}, {WEIR_COMPUTE_NULL, "null"}};
    weir_engine *e;
    weir_error err;
    weir_info info;
    for (int i = 0; i < 2; i++) {
        weir_options o = weir_options_default();
        o.compute = columns[i].compute;
        assert_int_equal(weir_open(dir, &o, &e, &err), WEIR_OK);
        weir_get_info(e, &info);
        assert_string_equal(info.column, columns[i].column);
        assert_string_equal(info.family, "kimi_k3");
        assert_int_equal(info.vocab_size, 2816);
        assert_int_equal(info.max_model_len, 8192);
        assert_int_equal(info.weight_bytes > 0, i == 0);
        weir_close(e);
    }
    /* F-085 */
    weir_options o = weir_options_default();
    o.max_num_seqs = 64;
    o.kv_cache_bytes = 64 * info.state_slot_bytes + 10 * info.kv_page_bytes;
    o.max_model_len = 2000;
    assert_int_equal(weir_open(dir, &o, &e, &err), WEIR_BAD_VALUE);
    assert_null(e);
    assert_string_equal(err.where, "kv_cache_bytes");
    assert_non_null(strstr(err.message, "max_model_len 2000 needs"));
    assert_int_equal(weir_open("/nonexistent", &o, &e, &err), WEIR_BAD_FILE);
    o.max_model_len = 9000;
    assert_int_equal(weir_open(dir, &o, &e, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "max_model_len");
    o = weir_options_default();
    o.compute = WEIR_COMPUTE_EXACT;
    assert_int_equal(weir_open(dir, &o, &e, &err), WEIR_OK);
    weir_params p = weir_params_default();
    int32_t id = 5;
    p.scripted_ids = &id;
    p.n_scripted_ids = 1;
    weir_request *r;
    assert_int_equal(weir_submit(e, &id, 1, &p, NULL, &r, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "scripted_ids");
    weir_close(e);
}

#if defined(__SANITIZE_THREAD__) /* numbers that threads have no part in are not computed there */
enum { ALL = 0 };
#else
enum { ALL = 1 };
#endif

int main(void) {
    main_thread = pthread_self();
    const struct CMUnitTest running[] = {
        cmocka_unit_test(a_batch_of_sixteen_equals_each_alone_whatever_the_budget),
        cmocka_unit_test(two_threads_equal_one),
        cmocka_unit_test(F047_a_preempted_request_continues_as_if_nothing_had_been),
        cmocka_unit_test(F038_penalties_see_every_token_with_overlap_on_and_off),
        cmocka_unit_test(F067_a_poisoned_state_ends_its_request_and_its_slot_is_clean_again),
        cmocka_unit_test(F053_clients_that_come_and_go_leave_nothing_behind),
        cmocka_unit_test(no_token_costs_an_allocation_in_engine_executor_or_team),
        cmocka_unit_test(an_engine_says_what_it_is_and_refuses_what_cannot_be),
    };
    const struct CMUnitTest numbers[] = {
        cmocka_unit_test(F039_four_choices_are_reproducible_and_greedy_ones_equal),
        cmocka_unit_test(F040_seeded_requests_do_not_notice_unseeded_neighbours),
        cmocka_unit_test(F041_logprobs_come_with_every_token_and_hold_the_drawn_one),
        cmocka_unit_test(F048_a_reused_slot_starts_from_nothing),
        cmocka_unit_test(prompt_logprobs_do_not_depend_on_chunks_and_agree_with_the_answer),
        cmocka_unit_test(golden_greedy_answers_come_out_of_a_full_batch),
    };
    int failed = cmocka_run_group_tests(running, NULL, NULL);
    return failed + (ALL ? cmocka_run_group_tests(numbers, NULL, NULL) : 0);
}
