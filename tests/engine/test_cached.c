/* What is resumed answers as what is computed anew: random conversations that branch, go on, are
 * cut short, run side by side, are cancelled and preempted, over pools so small that something is
 * given up at every step, on the exact column, id for id. */
#include "tests/engine/real.h"

#include "engine/engine.h"

#include "base/clock.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXT = 512, AT_ONCE = 12, CONVERSATIONS = 20, VOCAB_USED = 90 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1, ROUNDS = 1, LENGTH_STRIDE = 150 };
#else
enum { SLOW = 0, ROUNDS = 2, LENGTH_STRIDE = 1 };
#endif
enum { LENGTHS = 300 };

/* Rounds for each pool: WEIR_CACHED_ROUNDS, for long runs by hand, and which seeds they start from:
 * WEIR_CACHED_SEED. */
static uint32_t from_environment(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

struct ask {
    int32_t prompt[CONTEXT], answer[CONTEXT];
    uint32_t n, n_answer, max_tokens;
    weir_params params;
    weir_progress end;
    weir_request *request;
    bool cancel;
};

struct conversation {
    int32_t ids[CONTEXT];
    uint32_t n;
};

static weir_options base_options(void) {
    weir_options o = weir_options_default();
    o.compute = WEIR_COMPUTE_EXACT;
    o.threads = 1;
    o.max_model_len = CONTEXT;
    o.max_num_seqs = AT_ONCE;
    o.max_num_batched_tokens = 200;
    return o;
}

/* An engine whose pools hold `pages` pages and `slots` slots. */
static weir_engine *open_tiny(const char *model, weir_options o, uint32_t pages, uint32_t slots) {
    weir_info info;
    weir_options probe = o;
    probe.cpu_offload_bytes = 0;
    probe.disk_offload_dir = probe.remote_store = NULL;
    weir_engine *e = open_engine(model, &probe);
    weir_get_info(e, &info);
    weir_close(e);
    o.max_checkpoints = slots - o.max_num_seqs;
    o.kv_cache_bytes = slots * info.state_slot_bytes + pages * info.kv_page_bytes;
    e = open_engine(model, &o);
    weir_get_info(e, &info);
    assert_int_equal(info.kv_pages, pages);
    assert_int_equal(info.state_slots, slots);
    return e;
}

static void submit(weir_engine *e, struct ask *a) {
    weir_error err;
    a->n_answer = 0;
    if (weir_submit(e, a->prompt, a->n, &a->params, a, &a->request, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static void take(struct ask *a) {
    weir_token t[64];
    size_t n = weir_poll(a->request, t, 64, &a->end);
    for (size_t i = 0; i < n; i++)
        a->answer[a->n_answer++] = t[i].id;
}

static void await(struct ask *a) {
    double limit = clock_seconds() + 300;
    for (;;) {
        take(a);
        if (a->end.finish != WEIR_RUNNING)
            return;
        if (clock_seconds() > limit)
            fail_msg("no end after five minutes");
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

static void answer_all(weir_engine *e, struct ask *a, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        submit(e, &a[i]);
    for (uint32_t i = 0; i < n; i++)
        if (a[i].cancel) {
            nanosleep(&(struct timespec){0, 1000 * (long)below(3000)}, NULL);
            weir_cancel(a[i].request);
        }
    for (uint32_t i = 0; i < n; i++) {
        await(&a[i]);
        weir_release(a[i].request);
        a[i].request = NULL;
    }
}

/* Cold: another engine, nothing kept. */
static void answer_cold(weir_engine *cold, struct ask *a, const struct ask *asked, uint32_t n) {
    memcpy(a, asked, n * sizeof *a);
    for (uint32_t i = 0; i < n; i++)
        a[i].cancel = false;
    answer_all(cold, a, n);
}

static void compare(const struct ask *warm, const struct ask *cold, unsigned long long seed,
                    const char *what) {
    if (warm->end.finish == WEIR_FINISH_ABORT ? warm->n_answer > cold->n_answer
                                              : warm->n_answer != cold->n_answer)
        fail_msg("%s, seed %llu: %u tokens instead of %u", what, seed, warm->n_answer,
                 cold->n_answer);
    for (uint32_t i = 0; i < warm->n_answer; i++)
        if (warm->answer[i] != cold->answer[i])
            fail_msg(
                "%s, seed %llu: prompt of %u tokens, %u cached, %u preemptions: token %u is %d "
                "instead of %d",
                what, seed, warm->n, warm->end.cached_tokens, warm->end.preemptions, i,
                warm->answer[i], cold->answer[i]);
}

static void random_tokens(int32_t *to, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        to[i] = (int32_t)below(VOCAB_USED);
}

/* One more move in the life of a conversation: begun anew, branched off another, cut short, or gone
 * on with what was said since. */
static void move_on(struct conversation *all, struct conversation *c) {
    uint32_t what = below(10), most = CONTEXT - 120;
    if (what == 0 || c->n == 0) {
        c->n = 1 + below(250);
        random_tokens(c->ids, c->n);
    } else if (what < 3) {
        const struct conversation *from = &all[below(CONVERSATIONS)];
        if (from->n > 1) {
            uint32_t n = 1 + below(from->n);
            memmove(c->ids, from->ids, n * sizeof *c->ids);
            c->n = n;
        }
    } else if (what < 4) {
        c->n = 1 + below(c->n);
    } else if (what < 5) {
        c->n = (c->n + 63) / 64 * 64 > c->n ? c->n / 64 * 64 : c->n; /* a whole number of blocks */
        c->n = c->n ? c->n : 1;
    }
    uint32_t more = below(2) ? below(90) : 0;
    if (c->n + more > most) {
        c->n = 1 + below(200);
        more = 0;
    }
    random_tokens(c->ids + c->n, more);
    c->n += more;
}

static void ask_of(struct ask *a, const struct conversation *c) {
    memset(a, 0, sizeof *a);
    memcpy(a->prompt, c->ids, c->n * sizeof *c->ids);
    a->n = c->n;
    a->params = weir_params_default();
    a->params.max_tokens = 1 + (below(3) ? below(20) : below(100));
    a->params.temperature = below(2) ? 0 : 1;
    a->params.has_seed = true;
    a->params.seed = below(1000);
    a->params.ignore_eos = true;
    a->params.priority = (int64_t)below(3);
    a->params.cache_salt = below(8) ? NULL : "tenant";
    a->cancel = below(7) == 0;
}

struct life {
    uint64_t cached, preemptions, cases;
};

/* forget: the pools are emptied before each round, so that what is resumed comes from the tiers. */
static struct life live(weir_engine *warm, weir_engine *cold, uint32_t rounds, bool forget,
                        unsigned long long seed, const char *what) {
    static struct conversation all[CONVERSATIONS];
    static struct ask asked[AT_ONCE], again[AT_ONCE];
    struct life life = {0};
    memset(all, 0, sizeof all);
    rng_state = seed << 32;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t n = 1 + below(SLOW ? 4 : AT_ONCE), first = below(CONVERSATIONS);
        for (uint32_t i = 0; i < n; i++) {
            struct conversation *c = &all[(first + i) % CONVERSATIONS];
            move_on(all, c);
            ask_of(&asked[i], c);
        }
        weir_cache_reset dropped;
        if (forget && below(4))
            assert_int_equal(weir_reset_prefix_cache(warm, false, &dropped), WEIR_OK);
        answer_all(warm, asked, n);
        answer_cold(cold, again, asked, n);
        for (uint32_t i = 0; i < n; i++) {
            compare(&asked[i], &again[i], seed, what);
            struct conversation *c = &all[(first + i) % CONVERSATIONS];
            memcpy(c->ids + c->n, asked[i].answer, asked[i].n_answer * sizeof *c->ids);
            c->n += asked[i].n_answer;
            life.cached += asked[i].end.cached_tokens;
            life.preemptions += asked[i].end.preemptions;
            life.cases++;
        }
    }
    return life;
}

static void check_balance(weir_engine *e) {
    weir_stats s;
    weir_cache_reset reset;
    double limit = clock_seconds() + 60;
    do { /* moves to the tiers hold pages until they end */
        assert_int_equal(weir_reset_prefix_cache(e, true, &reset), WEIR_OK);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    } while (reset.pages_in_use + reset.states_in_use > 0 && clock_seconds() < limit);
    assert_int_equal(reset.pages_in_use, 0);
    assert_int_equal(reset.states_in_use, 0);
    weir_get_stats(e, &s);
    assert_int_equal(s.tag_mismatches, 0);
}

static void random_conversations_answer_as_cold_ones(void **state) {
    static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear"};
    static const struct {
        const char *policy;
        uint32_t pages, slots;
        enum weir_policy order;
        bool async;
    } pool[] = {
        {"default", 8, 13, WEIR_FCFS, true},
        {"interval:64", 14, 20, WEIR_PRIORITY, true},
        {"end-of-prompt+junction+end-of-turn", 30, 16, WEIR_PRIORITY, false},
        {"interval:128+end-of-turn", 60, 40, WEIR_FCFS, true},
        {"none", 20, 14, WEIR_FCFS, true},
    };
    uint64_t cases = 0, preemptions = 0, cached = 0;
    uint32_t rounds = from_environment("WEIR_CACHED_ROUNDS", ROUNDS);
    uint32_t seed = from_environment("WEIR_CACHED_SEED", 0);
    for (size_t m = SLOW; m < 2; m++) {
        weir_options o = base_options();
        o.prefix_caching = false;
        weir_engine *cold = open_engine(models[m], &o);
        for (size_t p = 0; p < (SLOW ? 2 : sizeof pool / sizeof *pool); p++) {
            o = base_options();
            o.checkpoint_policy = pool[p].policy;
            o.policy = pool[p].order;
            o.async_scheduling = pool[p].async;
            weir_engine *warm = open_tiny(models[m], o, pool[p].pages, pool[p].slots);
            struct life life = live(warm, cold, rounds, false, seed + 100 * m + p, pool[p].policy);
            cases += life.cases;
            cached += life.cached;
            preemptions += life.preemptions;
            check_balance(warm);
            weir_close(warm);
        }
        weir_close(cold);
    }
    assert_true(SLOW || (preemptions > 0 && cached > 0));
    print_message("%llu answers compared\n", (unsigned long long)cases);
}

static void random_conversations_over_tiers_answer_as_cold_ones(void **state) {
    char directory[] = "/tmp/weir-cached-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    static const struct {
        const char *name;
        uint64_t host, disk;
    } tiers[] = {{"host", 3 << 20, 0}, {"disk", 0, 6 << 20}, {"host and disk", 1 << 20, 20 << 20}};
    uint32_t rounds = from_environment("WEIR_CACHED_ROUNDS", SLOW ? 1 : ROUNDS + 1);
    uint32_t seed = from_environment("WEIR_CACHED_SEED", 0);
    weir_options o = base_options();
    o.prefix_caching = false;
    const char *model = SLOW ? "models/micro-kimi-linear" : "models/micro-k3-odd";
    weir_engine *cold = open_engine(model, &o);
    uint64_t fetched = 0;
    for (size_t i = SLOW ? 2 : 0; i < sizeof tiers / sizeof *tiers; i++) {
        o = base_options();
        o.cpu_offload_bytes = tiers[i].host;
        o.disk_offload_dir = tiers[i].disk ? directory : NULL;
        o.disk_offload_bytes = tiers[i].disk;
        weir_engine *warm = open_tiny(model, o, 40, 30);
        weir_stats s;
        live(warm, cold, rounds, true, seed + 1000 + i, tiers[i].name);
        weir_get_stats(warm, &s);
        for (int k = WEIR_HOST; k < WEIR_SOURCES; k++) {
            fetched += s.sourced_tokens[k];
            assert_int_equal(s.tier[k].damaged, 0);
        }
        check_balance(warm);
        weir_close(warm);
    }
    weir_close(cold);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
    assert_true(SLOW || fetched > 0);
}

/* The bytes of an FP8 page come back from memory and from disk as they went: more prompts than the
 * pool has room for, then each again. */
static void fp8_history_comes_back_from_the_tiers(void **state) {
    enum { PROMPTS = SLOW ? 6 : 14, TOKENS = 200 };
    char directory[] = "/tmp/weir-cached-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    weir_options o = base_options();
    o.kv_dtype = WEIR_KV_FP8;
    o.prefix_caching = false;
    weir_engine *cold = open_engine("models/micro-k3-odd", &o);
    for (int disk = 0; disk < 2; disk++) {
        o.prefix_caching = true;
        o.cpu_offload_bytes = disk ? 0 : 20 << 20;
        o.disk_offload_dir = disk ? directory : NULL;
        o.disk_offload_bytes = disk ? 20 << 20 : 0;
        weir_engine *warm = open_tiny("models/micro-k3-odd", o, 16, AT_ONCE + 6);
        static struct ask want[PROMPTS], got;
        int32_t ids[TOKENS];
        for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
            rng_state = 500 + i % PROMPTS;
            random_tokens(ids, TOKENS);
            struct ask *both[] = {&want[i % PROMPTS], &got};
            for (int k = want[i % PROMPTS].n_answer > 0; k < 2; k++) { /* cold once */
                memset(both[k], 0, sizeof *both[k]);
                memcpy(both[k]->prompt, ids, sizeof ids);
                both[k]->n = TOKENS;
                both[k]->params = weir_params_default();
                both[k]->params.max_tokens = 3;
                both[k]->params.temperature = 0;
                submit(k ? warm : cold, both[k]);
                await(both[k]);
                weir_release(both[k]->request);
            }
            assert_true(both[0]->n_answer > 0);
            assert_int_equal(both[0]->n_answer, got.n_answer);
            assert_memory_equal(both[0]->answer, got.answer, got.n_answer * sizeof *got.answer);
        }
        weir_stats s;
        weir_get_stats(warm, &s);
        assert_true(s.sourced_tokens[disk ? WEIR_DISK : WEIR_HOST] > 0);
        assert_int_equal(s.tier[disk ? WEIR_DISK : WEIR_HOST].damaged, 0);
        weir_close(warm);
    }
    weir_close(cold);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* Of the first model every third length, those that go on, and those about the end of a page, or
 * all with WEIR_CACHED_ROUNDS; of the second every ninth. */
static bool length_is_tried(size_t model, uint32_t n) {
    if (SLOW || model)
        return (n - 1) % (model ? 8 * LENGTH_STRIDE + 1 : LENGTH_STRIDE) == 0;
    return n % 3 == 0 || n % 20 == 0 || n % 64 <= 1 ||
           from_environment("WEIR_CACHED_ROUNDS", 0) > 0;
}

static void every_prompt_length_answers_as_cold_and_resumes(void **state) {
    static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear"};
    for (size_t m = 0; m < 2; m++) {
        weir_options o = base_options();
        weir_engine *warm = open_engine(models[m], &o);
        o.prefix_caching = false;
        weir_engine *cold = open_engine(models[m], &o);
        static struct ask a, again, next, next_again;
        int32_t ids[CONTEXT];
        rng_state = 77 + m;
        random_tokens(ids, CONTEXT);
        for (uint32_t n = 1; n <= LENGTHS; n++) {
            if (!length_is_tried(m, n))
                continue;
            memset(&a, 0, sizeof a);
            /* A first token of its own: nothing comes from the length before. */
            memcpy(a.prompt, ids, n * sizeof *ids);
            a.prompt[0] = (int32_t)(n % VOCAB_USED);
            if (n > 1)
                a.prompt[1] = (int32_t)(n / VOCAB_USED);
            a.n = n;
            a.params = weir_params_default();
            a.params.temperature = 0;
            a.params.max_tokens = 1 + n % 5 + (n % 20 ? 0 : 60);
            a.params.ignore_eos = true;
            /* The first time nothing is known: that is the cold answer. */
            answer_all(warm, &a, 1);
            assert_int_equal(a.end.cached_tokens, 0);
            again = a;
            answer_all(warm, &a, 1);
            compare(&a, &again, n, "the same again");
            if (a.end.cached_tokens != (n - 1) / 64 * 64)
                fail_msg("prompt of %u: %u tokens cached", n, a.end.cached_tokens);
            if (n % 20)
                continue;
            /* Prompt, answer and something more. */
            next = a;
            memcpy(next.prompt + n, a.answer, a.n_answer * sizeof *a.answer);
            next.n = n + a.n_answer + 3;
            memcpy(next.prompt + n + a.n_answer, ids, 3 * sizeof *ids);
            answer_cold(cold, &next_again, &next, 1);
            answer_all(warm, &next, 1);
            compare(&next, &next_again, n, "the next turn");
            /* The last token of an answer is drawn but never computed. */
            uint32_t known = (n + a.n_answer - 1) / 64 * 64;
            if (next.end.cached_tokens != known)
                fail_msg("turn after %u + %u: %u tokens cached", n, a.n_answer,
                         next.end.cached_tokens);
        }
        check_balance(warm);
        weir_close(warm);
        weir_close(cold);
    }
}

/* F-049 */
static void F049_a_growing_session_never_falls_back_to_nothing(void **state) {
    weir_options o = base_options();
    o.max_model_len = 0;
    weir_engine *e = open_engine("models/micro-k3-odd", &o);
    weir_info info;
    weir_get_info(e, &info);
    static int32_t ids[40000];
    uint32_t n = 300, before = 0;
    weir_error err;
    rng_state = 49;
    random_tokens(ids, 40000);
    for (int turn = 0; turn < (SLOW ? 5 : 40) && n + 40 < info.max_model_len; turn++) {
        weir_params p = weir_params_default();
        weir_request *r;
        weir_progress end;
        weir_token t[64];
        p.max_tokens = 20;
        p.ignore_eos = true;
        p.has_seed = true;
        assert_int_equal(weir_submit(e, ids, n, &p, NULL, &r, &err), WEIR_OK);
        uint32_t k = 0;
        do {
            k += (uint32_t)weir_poll(r, t + k, 64 - k, &end);
            nanosleep(&(struct timespec){0, 50000}, NULL);
        } while (end.finish == WEIR_RUNNING);
        weir_release(r);
        for (uint32_t i = 0; i < k; i++)
            ids[n + i] = t[i].id;
        if (turn && end.cached_tokens + 64 < before)
            fail_msg("turn %d: %u of %u tokens, the turn before had %u", turn, end.cached_tokens, n,
                     before);
        before = n + k - 1;
        n += k + 5 + below(30);
    }
    weir_close(e);
}

/* Asks of `a` what both engines answer; they must agree. Returns how many tokens were cached. */
static uint32_t both(weir_engine *warm, weir_engine *cold, const int32_t *ids, uint32_t n,
                     uint32_t answer, const char *what) {
    static struct ask a, again;
    memset(&a, 0, sizeof a);
    memcpy(a.prompt, ids, n * sizeof *ids);
    a.n = n;
    a.params = weir_params_default();
    a.params.temperature = 0;
    a.params.max_tokens = answer;
    a.params.ignore_eos = true;
    answer_all(warm, &a, 1);
    answer_cold(cold, &again, &a, 1);
    compare(&a, &again, n, what);
    return a.end.cached_tokens;
}

static void open_pair(weir_engine **warm, weir_engine **cold, uint32_t rows) {
    weir_options o = base_options();
    o.max_num_batched_tokens = rows;
    *warm = open_engine("models/micro-k3-odd", &o);
    o.prefix_caching = false;
    *cold = open_engine("models/micro-k3-odd", &o);
}

static void F043_warm_answers_equal_cold_ones_and_use_the_cache(void **state) {
    weir_engine *warm, *cold;
    int32_t ids[300];
    open_pair(&warm, &cold, 200);
    rng_state = 43;
    random_tokens(ids, 300);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < (SLOW ? 2 : 8); i++) {
            ids[150] = i;
            uint32_t cached = both(warm, cold, ids, 200 + (uint32_t)i, 6, "F043");
            assert_true(cached >= (pass ? 192 : i ? 128 : 0) || (!pass && i == 1));
        }
    weir_close(warm);
    weir_close(cold);
}

static void F044_a_changed_middle_resumes_before_the_change(void **state) {
    weir_engine *warm, *cold;
    int32_t ids[400];
    open_pair(&warm, &cold, 200);
    rng_state = 44;
    random_tokens(ids, 400);
    both(warm, cold, ids, 390, 10, "F044");
    for (int32_t at = 380; at > 0; at -= SLOW ? 300 : 120) {
        ids[at] = (ids[at] + 1) % VOCAB_USED;
        assert_true(both(warm, cold, ids, 390, 10, "F044") <= (uint32_t)at);
    }
    weir_close(warm);
    weir_close(cold);
}

static void F045_first_diverging_and_extended_requests_all_answer(void **state) {
    weir_engine *warm, *cold;
    int32_t ids[300];
    open_pair(&warm, &cold, 200);
    rng_state = 45;
    random_tokens(ids, 300);
    assert_int_equal(both(warm, cold, ids, 100, 5, "first"), 0);
    ids[80]++;
    assert_true(both(warm, cold, ids, 100, 5, "diverging") <= 64);
    assert_true(both(warm, cold, ids, 250, 5, "extended") >= 64);
    weir_close(warm);
    weir_close(cold);
}

static void F048_a_prompt_of_one_token_starts_from_nothing(void **state) {
    weir_engine *warm, *cold;
    int32_t ids[300];
    /* One row a step: every chunk of a prompt is a single token too. */
    for (uint32_t rows = 1; rows <= 200; rows += 199) {
        open_pair(&warm, &cold, rows);
        rng_state = 48;
        for (int round = 0; round < (SLOW ? 2 : 8); round++) {
            random_tokens(ids, 300);
            both(warm, cold, ids, 70, 40, "long");
            assert_int_equal(both(warm, cold, ids, 1, 8, "one token"), 0);
        }
        weir_close(warm);
        weir_close(cold);
    }
}

/* Sixty-four conversations at once, each with a code word; tiny pools; each keeps its own. */
static void canaries_do_not_cross_over_under_load(void **state) {
    enum { MANY = SLOW ? 4 : 64, TURNS = SLOW ? 2 : 3 };
    static struct ask a[MANY], again[MANY];
    weir_options o = base_options();
    o.max_num_seqs = 24;
    o.prefix_caching = false;
    weir_engine *cold = open_engine("models/micro-k3-odd", &o);
    o.prefix_caching = true;
    weir_engine *warm = open_tiny("models/micro-k3-odd", o, 60, 40);
    rng_state = 64;
    int32_t common[70];
    random_tokens(common, 70);
    for (int i = 0; i < MANY; i++) {
        struct conversation c = {.n = 70 + 10};
        memcpy(c.ids, common, sizeof common);
        for (int k = 0; k < 10; k++)
            c.ids[70 + k] = i; /* the canary */
        ask_of(&a[i], &c);
        a[i].cancel = false;
        a[i].params.max_tokens = 24;
        a[i].params.cache_salt = NULL;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        answer_cold(cold, again, a, MANY);
        answer_all(warm, a, MANY);
        for (int i = 0; i < MANY; i++) {
            compare(&a[i], &again[i], (unsigned long long)i, "canary");
            memcpy(a[i].prompt + a[i].n, a[i].answer, a[i].n_answer * sizeof *a[i].answer);
            a[i].n += a[i].n_answer;
        }
    }
    check_balance(warm);
    weir_close(warm);
    weir_close(cold);
}

/* test_cached [PATTERN]: only tests of that name, for long runs by hand. */
/* Two that say the same side by side each have pages of their own. Once the other has ended, its
 * history is in the way of the one that is left, and must be given up or shared for it to go on. */
static void the_last_one_running_is_not_stopped_by_history_it_has_twice(void **state) {
    weir_options o = base_options();
    o.max_num_seqs = 2;
    o.prefix_caching = false;
    weir_engine *cold = open_engine("models/micro-k3-odd", &o);
    o.prefix_caching = true;
    static struct ask a[2], again[2];
    for (int async = 0; async < 2; async++) {
        o.async_scheduling = async;
        weir_engine *warm = open_tiny("models/micro-k3-odd", o, CONTEXT / 64, 4);
        rng_state = 5;
        memset(a, 0, sizeof a);
        for (int i = 0; i < 2; i++) {
            a[i].n = 20;
            memset(a[i].prompt, 0, a[i].n * sizeof *a[i].prompt);
            a[i].params = weir_params_default();
            a[i].params.temperature = 0;
            a[i].params.ignore_eos = true;
            a[i].params.max_tokens = i ? CONTEXT - a[i].n : 200;
        }
        answer_cold(cold, again, a, 2);
        answer_all(warm, a, 2);
        for (int i = 0; i < 2; i++)
            compare(&a[i], &again[i], 5, "twins");
        check_balance(warm);
        weir_close(warm);
    }
    weir_close(cold);
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(random_conversations_answer_as_cold_ones),
        cmocka_unit_test(random_conversations_over_tiers_answer_as_cold_ones),
        cmocka_unit_test(the_last_one_running_is_not_stopped_by_history_it_has_twice),
        cmocka_unit_test(canaries_do_not_cross_over_under_load),
    };
    const struct CMUnitTest rules[] = {
        cmocka_unit_test(fp8_history_comes_back_from_the_tiers),
        cmocka_unit_test(every_prompt_length_answers_as_cold_and_resumes),
        cmocka_unit_test(F043_warm_answers_equal_cold_ones_and_use_the_cache),
        cmocka_unit_test(F044_a_changed_middle_resumes_before_the_change),
        cmocka_unit_test(F045_first_diverging_and_extended_requests_all_answer),
        cmocka_unit_test(F048_a_prompt_of_one_token_starts_from_nothing),
        cmocka_unit_test(F049_a_growing_session_never_falls_back_to_nothing),
    };
    int failed = cmocka_run_group_tests_name("cached", threads, NULL, NULL);
#if defined(__SANITIZE_THREAD__)
    (void)rules; /* one request at a time, or what another test does with threads too */
    return failed;
#else
    return failed + cmocka_run_group_tests_name("cached rules", rules, NULL, NULL);
#endif
}
