/* The index: what is matched is what was written for exactly these tokens, whatever was branched,
 * evicted, preempted or abandoned before; states resume only at their own position; the pools are
 * balanced after any history. A mirror of the pools remembers which prefix each page and slot was
 * written with. */
#include "tests/test.h"

#include "base/rng.h"
#include "cache/index.h"

#include <stdlib.h>
#include <string.h>

enum { SEQS = 6, MAX_TOKENS = 64 * 14, STEP_ROWS = 192, FLIGHTS = 2 };

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    return (uint32_t)(rng_mix(rng_state++) % n);
}

/* What the bytes of a prefix would be: a hash of its tokens and its tenant. */
static uint64_t content(const int32_t *ids, uint32_t n, int salt) {
    uint64_t h = 0x9E37 + (uint64_t)salt;
    for (uint32_t i = 0; i < n; i++)
        h = rng_mix(h ^ (uint64_t)(uint32_t)ids[i]);
    return rng_mix(h + n);
}

struct pending {
    uint32_t end, n_marks;
    struct batch_checkpoint mark[STEP_ROWS / 64 + 1];
};

struct seq {
    struct cache_lease lease;
    int32_t ids[MAX_TOKENS];
    uint32_t n_prompt, n_end, computed;
    int salt;
    bool running, waiting;
    struct pending flight[FLIGHTS];
    uint32_t n_flights;
};

struct world {
    struct cache_index *x;
    struct seq seq[SEQS];
    uint64_t *page, *slot; /* content of the last write */
    uint64_t hits, resumed_tokens;
    unsigned long long seed;
};

static void open_seq(struct world *w, struct seq *s, const struct cache_space *space) {
    /* Few different blocks, so that prefixes are shared, left and met again all the time. */
    uint32_t blocks = 1 + below(MAX_TOKENS / 64 - 4);
    s->n_prompt = 64 * blocks - below(66) % 64;
    s->n_end = s->n_prompt + 1 + below(150);
    s->salt = below(5) == 0;
    for (uint32_t b = 0; b * 64 < MAX_TOKENS; b++) {
        uint32_t kind = below(4) ? 0 : below(2);
        for (uint32_t i = 0; i < 64; i++)
            s->ids[b * 64 + i] = (int32_t)(b * 7 + kind * 1000 + i);
    }
    assert_int_equal(cache_lease_open(&s->lease, space, s->n_end, s->salt ? "tenant" : NULL),
                     WEIR_OK);
    s->computed = s->n_flights = 0;
    s->running = s->waiting = false;
}

static void close_seq(struct world *w, struct seq *s) {
    cache_release(w->x, &s->lease);
    cache_lease_close(&s->lease);
    s->running = s->waiting = false;
    s->n_flights = 0;
}

static void check_match(struct world *w, struct seq *s, uint32_t n) {
    const struct cache_lease *l = &s->lease;
    if (l->resume % 64 || l->resume >= n || l->resume > l->kept)
        fail_msg("seed %llu: resume %u, kept %u of %u", w->seed, l->resume, l->kept, n);
    for (uint32_t b = 0; b < l->kept / 64; b++)
        if (w->page[l->pages[b]] != content(s->ids, 64 * (b + 1), s->salt))
            fail_msg("seed %llu: block %u holds another prefix", w->seed, b);
    if (l->resume && w->slot[l->from] != content(s->ids, l->resume, s->salt))
        fail_msg("seed %llu: the state at %u is another's", w->seed, l->resume);
    if (!l->resume && l->from != -1)
        fail_msg("seed %llu: a state without a resume point", w->seed);
}

static void admit(struct world *w, struct seq *s) {
    uint32_t n = s->computed > s->n_prompt ? s->computed : s->n_prompt;
    if (s->waiting && cache_waits(w->x, &s->lease))
        return;
    s->waiting = false;
    if (cache_match(w->x, &s->lease, s->ids, n, n - 1, below(3) > 0) == CACHE_WAIT) {
        s->waiting = true;
        return;
    }
    check_match(w, s, n);
    if (!cache_grow(w->x, &s->lease, n)) {
        cache_release(w->x, &s->lease);
        return;
    }
    cache_admit(w->x, &s->lease, s->ids, n);
    s->running = true;
    s->computed = s->lease.resume;
    w->hits += s->lease.resume > 0;
    w->resumed_tokens += s->lease.resume;
}

static void submit(struct world *w, struct seq *s) {
    struct cache_lease *l = &s->lease;
    uint32_t left = (s->computed < s->n_prompt ? s->n_prompt : s->n_end) - s->computed;
    uint32_t rows = s->computed < s->n_prompt ? 1 + below(STEP_ROWS) : 1 + below(40);
    rows = rows < left ? rows : left;
    if (s->n_flights == FLIGHTS || rows == 0 || !cache_grow(w->x, l, s->computed + rows))
        return;
    struct pending *p = &s->flight[s->n_flights++];
    p->end = s->computed + rows;
    p->n_marks = cache_checkpoints(w->x, l, s->computed, rows, s->n_prompt, p->mark);
    /* What an executor would do. */
    for (uint32_t t = s->computed; t < p->end; t++) {
        if (t < l->kept) {
            if ((t + 1) % 64 == 0 && w->page[l->pages[t / 64]] != content(s->ids, t + 1, s->salt))
                fail_msg("seed %llu: shared block %u changed while in use", w->seed, t / 64);
            continue;
        }
        w->page[l->pages[t / 64]] =
            (t + 1) % 64 == 0 ? content(s->ids, t + 1, s->salt) : rng_mix(t + w->seed);
    }
    uint64_t before = l->from < 0 ? 0 : w->slot[l->from];
    uint64_t want = s->computed ? content(s->ids, s->computed, s->salt) : 0;
    if (before != want)
        fail_msg("seed %llu: the state before token %u is another's", w->seed, s->computed);
    uint32_t last = 0;
    for (uint32_t i = 0; i < p->n_marks; i++) {
        const struct batch_checkpoint *m = &p->mark[i];
        if (m->position <= s->computed || m->position > p->end || m->position <= last ||
            m->position % 64 || m->slot == l->slot)
            fail_msg("seed %llu: a checkpoint at %u in slot %d", w->seed, m->position, m->slot);
        last = m->position;
        w->slot[m->slot] = content(s->ids, m->position, s->salt);
    }
    w->slot[l->slot] = content(s->ids, p->end, s->salt);
    l->from = l->slot;
    s->computed = p->end;
}

static void collect(struct world *w, struct seq *s) {
    if (s->n_flights == 0)
        return;
    cache_computed(w->x, &s->lease, s->ids, s->flight[0].end);
    memmove(s->flight, s->flight + 1, --s->n_flights * sizeof s->flight[0]);
}

static void drain(struct world *w, struct seq *s) {
    while (s->n_flights)
        collect(w, s);
}

static struct checkpoint_policy random_policy(void) {
    struct checkpoint_policy p = checkpoint_policy_default();
    for (int i = 0; i < CHECKPOINT_FETCHED; i++)
        p.keeps[i] = below(3) > 0;
    p.interval = 64 * (1 + below(4));
    p.rederive_tokens = 64 * below(5);
    return p;
}

static uint64_t one_history(unsigned long long seed) {
    rng_state = seed << 32;
    struct world w = {.seed = seed};
    uint32_t pages = 14 + below(60), slots = 1 + below(14);
    struct cache_setup setup = {.pages = pages,
                                .slots = slots,
                                .enabled = true,
                                .policy = random_policy(),
                                .space = {.step_rows = STEP_ROWS}};
    w.x = cache_index_open(&setup);
    w.page = calloc(pages, sizeof *w.page);
    w.slot = calloc(slots, sizeof *w.slot);
    for (int i = 0; i < SEQS; i++)
        open_seq(&w, &w.seq[i], &setup.space);
    for (int step = 0; step < 400; step++) {
        struct seq *s = &w.seq[below(SEQS)];
        uint32_t what = below(20);
        if (!s->running) {
            admit(&w, s);
        } else if (what < 9) {
            submit(&w, s);
        } else if (what < 17) {
            collect(&w, s);
        } else if (what < 18) { /* preempted */
            drain(&w, s);
            cache_release(w.x, &s->lease);
            s->running = false;
        } else if (s->computed == s->n_end || what == 19) { /* ended, or cancelled anywhere */
            drain(&w, s);
            close_seq(&w, s);
            open_seq(&w, s, &setup.space);
        }
        if (below(150) == 0)
            cache_evict_all(w.x, below(2));
    }
    for (int i = 0; i < SEQS; i++) {
        drain(&w, &w.seq[i]);
        close_seq(&w, &w.seq[i]);
    }
    struct cache_usage u = cache_get_usage(w.x);
    if (u.pages_used || u.slots_used)
        fail_msg("seed %llu: %u pages and %u slots left over", seed, u.pages_used, u.slots_used);
    if (cache_get_counts(w.x).tag_mismatches)
        fail_msg("seed %llu: a slot held another state than its node", seed);
    cache_evict_all(w.x, false);
    u = cache_get_usage(w.x);
    assert_int_equal(u.pages_cached + u.slots_cached, 0);
    cache_index_close(w.x);
    free(w.page);
    free(w.slot);
    return w.resumed_tokens;
}

static void what_is_matched_was_written_for_these_tokens(void **state) {
    uint64_t resumed = 0;
    for (unsigned long long seed = 1; seed <= 3000; seed++)
        resumed += one_history(seed);
    assert_true(resumed > 1000000); /* or the test has matched nothing */
}

/* ------------------------------------------------------------------------------- single rules */

struct bench {
    struct cache_index *x;
    struct cache_setup setup;
    int32_t ids[8192];
};

static struct bench open_bench(const char *policy, uint32_t pages, uint32_t slots) {
    struct bench b = {0};
    weir_error err;
    b.setup = (struct cache_setup){
        .pages = pages, .slots = slots, .enabled = true, .space = {.step_rows = 8192}};
    assert_int_equal(checkpoint_policy_parse(policy, &b.setup.policy, &err), WEIR_OK);
    b.x = cache_index_open(&b.setup);
    for (int i = 0; i < 8192; i++)
        b.ids[i] = i;
    return b;
}

static struct cache_lease start(struct bench *b, uint32_t n, uint32_t *resumed) {
    struct cache_lease l;
    assert_int_equal(cache_lease_open(&l, &b->setup.space, 8192, NULL), WEIR_OK);
    assert_int_equal(cache_match(b->x, &l, b->ids, n, n - 1, false), CACHE_GO);
    assert_true(cache_grow(b->x, &l, n));
    cache_admit(b->x, &l, b->ids, n);
    *resumed = l.resume;
    return l;
}

/* Runs a prompt of n tokens and an answer of `more`; returns what it resumed at. */
static uint32_t turn(struct bench *b, uint32_t n, uint32_t more) {
    struct batch_checkpoint mark[130];
    uint32_t resumed;
    struct cache_lease l = start(b, n, &resumed);
    cache_checkpoints(b->x, &l, resumed, n - resumed, n, mark);
    l.from = l.slot;
    cache_computed(b->x, &l, b->ids, n);
    for (uint32_t i = n; i < n + more; i++) {
        assert_true(cache_grow(b->x, &l, i + 1));
        cache_checkpoints(b->x, &l, i, 1, n, mark);
        cache_computed(b->x, &l, b->ids, i + 1);
    }
    cache_release(b->x, &l);
    cache_lease_close(&l);
    return resumed;
}

static void history_to_3072_and_a_state_at_2048_resume_at_2048(void **state) {
    struct bench b = open_bench("interval:2048", 200, 8);
    assert_int_equal(turn(&b, 3072, 1), 0);
    assert_int_equal(turn(&b, 3500, 1), 2048);
    cache_index_close(b.x);
    /* With a state at the tail: 3,072. */
    b = open_bench("interval:2048+end-of-prompt", 200, 8);
    assert_int_equal(turn(&b, 3072, 1), 0);
    assert_int_equal(turn(&b, 3500, 1), 3072);
    cache_index_close(b.x);
}

static void F046_history_without_its_states_is_no_hit(void **state) {
    struct bench b = open_bench(NULL, 200, 8);
    assert_int_equal(turn(&b, 1000, 1), 0);
    cache_evict_all(b.x, true);
    assert_int_equal(cache_get_usage(b.x).pages_cached, 15);
    uint32_t resumed;
    struct cache_lease l = start(&b, 1000, &resumed);
    assert_int_equal(resumed, 0);
    assert_int_equal(l.from, -1);
    /* The history is shared all the same and not written again, and the state is made good. */
    assert_int_equal(l.kept, 960);
    assert_int_equal(l.matched, 960);
    assert_int_equal(l.junction, 960);
    cache_release(b.x, &l);
    cache_lease_close(&l);
    assert_int_equal(turn(&b, 1000, 1), 0);
    assert_int_equal(turn(&b, 1000, 1), 960);
    cache_index_close(b.x);
}

static void F042_prompts_around_whole_blocks_resume_where_the_one_before_ended(void **state) {
    enum { G = 64 };
    for (uint32_t n = 1; n <= 5 * G; n++)
        for (uint32_t more = 1; more <= 2; more++) {
            struct bench b = open_bench(NULL, 40, 8);
            assert_int_equal(turn(&b, n, 1), 0);
            /* Prompt and the one token of answer, below the last token of the next prompt. */
            uint32_t known = n + 1 < n + more - 1 ? n + 1 : n + more - 1, want = known / G * G;
            assert_int_equal(turn(&b, n + more, 1), want);
            cache_index_close(b.x);
        }
    /* The same prompt again must compute one token at least. */
    for (uint32_t n = 1; n <= 5 * G; n++) {
        struct bench b = open_bench(NULL, 40, 8);
        turn(&b, n, 1);
        assert_int_equal(turn(&b, n, 1), (n - 1) / G * G);
        cache_index_close(b.x);
    }
}

static void an_answer_is_the_prefix_of_the_next_prompt(void **state) {
    for (uint32_t answer = 1; answer < 300; answer += 7) {
        struct bench b = open_bench("end-of-turn", 40, 4);
        turn(&b, 100, answer);
        uint32_t end = 100 + answer, last = end / 64 * 64;
        assert_int_equal(turn(&b, end + 30, 1), last > 100 ? last : 0);
        /* One state for one turn, however long. */
        assert_true(cache_get_usage(b.x).slots_cached <= 2);
        cache_index_close(b.x);
    }
}

/* Computes a prompt of n tokens up to `end` and gives it up there, or at its end. */
static uint32_t try_prompt(struct bench *b, uint32_t n, uint32_t end) {
    struct batch_checkpoint mark[130];
    uint32_t resumed;
    struct cache_lease l = start(b, n, &resumed);
    for (uint32_t at = resumed; at < end;) {
        uint32_t rows = end - at < 512 ? end - at : 512;
        cache_checkpoints(b->x, &l, at, rows, n, mark);
        l.from = l.slot;
        at += rows;
        cache_computed(b->x, &l, b->ids, at);
    }
    cache_release(b->x, &l);
    cache_lease_close(&l);
    return resumed;
}

static void a_prompt_cut_short_goes_on_where_it_was(void **state) {
    static const char *const policies[] = {"default", "end-of-prompt"};
    for (int i = 0; i < 2; i++) {
        struct bench b = open_bench(policies[i], 100, 8);
        const uint64_t *stored;
        assert_int_equal(try_prompt(&b, 5000, 1024), 0);
        assert_int_equal(try_prompt(&b, 5000, 2048), 1024);
        assert_int_equal(try_prompt(&b, 5000, 2048), 2048); /* left before its first step */
        struct cache_counts c = cache_get_counts(b.x);
        stored = c.stored;
        assert_int_equal(stored[CHECKPOINT_PREFILL], 2);
        assert_int_equal(c.resumed[CHECKPOINT_PREFILL], 2);
        /* One state for one prompt, however often it was tried. */
        assert_int_equal(cache_get_usage(b.x).slots_cached, 1);
        assert_int_equal(try_prompt(&b, 5000, 3200), 2048);
        assert_int_equal(cache_get_usage(b.x).slots_cached, 1);
        /* Once it is computed its own state is all that stays. */
        assert_int_equal(try_prompt(&b, 5000, 5000), 3200);
        assert_int_equal(cache_get_usage(b.x).slots_cached, 1);
        assert_int_equal(try_prompt(&b, 5000, 5000), 4992);
        cache_index_close(b.x);
    }
}

static void a_state_left_by_a_cut_prompt_stays_while_it_is_the_last(void **state) {
    struct bench b = open_bench("end-of-prompt", 100, 8);
    try_prompt(&b, 5000, 2048);
    /* The end of this one is where the other was cut. */
    assert_int_equal(try_prompt(&b, 2100, 2100), 2048);
    assert_int_equal(try_prompt(&b, 2100, 2100), 2048);
    cache_index_close(b.x);
}

static void what_is_no_state_of_a_whole_prefix_is_not_kept(void **state) {
    struct bench b = open_bench("end-of-prompt", 100, 8);
    uint32_t resumed;
    try_prompt(&b, 5000, 1000); /* inside a block */
    assert_int_equal(cache_get_usage(b.x).slots_cached, 0);
    /* A step that was not collected has changed the live state. */
    struct cache_lease l = start(&b, 5000, &resumed);
    struct batch_checkpoint mark[130];
    cache_checkpoints(b.x, &l, 0, 1024, 5000, mark);
    cache_computed(b.x, &l, b.ids, 1024);
    cache_spoil(&l);
    cache_release(b.x, &l);
    cache_lease_close(&l);
    assert_int_equal(cache_get_usage(b.x).slots_cached, 0);
    cache_index_close(b.x);
    b = open_bench("none", 100, 8);
    try_prompt(&b, 5000, 1024);
    assert_int_equal(cache_get_usage(b.x).slots_cached, 0);
    cache_index_close(b.x);
}

static void a_prefix_seen_twice_gets_a_state_at_its_fork(void **state) {
    struct bench b = open_bench("junction", 200, 8);
    turn(&b, 1000, 1);
    for (int i = 640; i < 1000; i++)
        b.ids[i] = 5000 + i;
    assert_int_equal(turn(&b, 1000, 1), 0); /* meets the fork at 640 */
    for (int i = 640; i < 1000; i++)
        b.ids[i] = 15000 + i;
    assert_int_equal(turn(&b, 1000, 1), 640);
    assert_int_equal(cache_get_counts(b.x).stored[CHECKPOINT_JUNCTION], 1);
    cache_index_close(b.x);
}

static void requests_that_arrive_together_compute_their_prefix_once(void **state) {
    struct bench b = open_bench(NULL, 200, 8);
    struct batch_checkpoint mark[130];
    uint32_t resumed;
    struct cache_lease first = start(&b, 1000, &resumed), second;
    assert_int_equal(cache_lease_open(&second, &b.setup.space, 8192, NULL), WEIR_OK);
    int32_t other[1000];
    memcpy(other, b.ids, sizeof other);
    for (int i = 700; i < 1000; i++)
        other[i] = 7000 + i;
    assert_int_equal(cache_match(b.x, &second, other, 1000, 999, true), CACHE_WAIT);
    assert_true(cache_waits(b.x, &second));
    /* The first is asked for a state where the two part, in the middle of its chunk. */
    assert_int_equal(cache_checkpoints(b.x, &first, 0, 1000, 1000, mark), 2);
    assert_int_equal(mark[0].position, 640);
    assert_int_equal(mark[1].position, 960);
    assert_true(cache_waits(b.x, &second));
    cache_computed(b.x, &first, b.ids, 1000);
    assert_false(cache_waits(b.x, &second));
    assert_int_equal(cache_match(b.x, &second, other, 1000, 999, true), CACHE_GO);
    assert_int_equal(second.resume, 640);
    cache_release(b.x, &second);
    cache_release(b.x, &first);
    /* If the first goes away, nobody waits for ever. */
    cache_evict_all(b.x, false);
    cache_lease_close(&first);
    first = start(&b, 1000, &resumed);
    assert_int_equal(cache_match(b.x, &second, other, 1000, 999, true), CACHE_WAIT);
    cache_release(b.x, &first);
    assert_false(cache_waits(b.x, &second));
    assert_int_equal(cache_match(b.x, &second, other, 1000, 999, true), CACHE_GO);
    assert_int_equal(second.resume, 0);
    cache_release(b.x, &second);
    cache_lease_close(&first);
    cache_lease_close(&second);
    cache_index_close(b.x);
}

static void one_slot_is_enough_to_resume(void **state) {
    struct bench b = open_bench("end-of-prompt", 40, 2);
    turn(&b, 200, 1);
    uint32_t resumed;
    /* Another sequence holds the second slot: the state resumed from becomes the live one. */
    int32_t other[64] = {1};
    struct cache_lease l, beside;
    assert_int_equal(cache_lease_open(&beside, &b.setup.space, 64, NULL), WEIR_OK);
    assert_int_equal(cache_match(b.x, &beside, other, 64, 63, false), CACHE_GO);
    assert_true(cache_grow(b.x, &beside, 64));
    l = start(&b, 250, &resumed);
    assert_int_equal(resumed, 192);
    assert_int_equal(l.from, l.slot);
    cache_release(b.x, &l);
    cache_release(b.x, &beside);
    cache_lease_close(&l);
    cache_lease_close(&beside);
    cache_index_close(b.x);
}

static void tails_are_given_up_before_heads(void **state) {
    struct bench b = open_bench("interval:64", 20, 40);
    turn(&b, 640, 1);
    for (int i = 0; i < 8192; i++)
        b.ids[i] += 20000;
    turn(&b, 900, 1); /* needs 15 pages: five of ten blocks must go */
    for (int i = 0; i < 8192; i++)
        b.ids[i] -= 20000;
    assert_int_equal(turn(&b, 640, 1), 320);
    cache_index_close(b.x);
}

static void a_state_that_is_quickly_computed_again_goes_first(void **state) {
    struct bench b = open_bench("interval:64", 100, 4);
    b.setup.policy.rederive_tokens = 128;
    cache_index_close(b.x);
    b.x = cache_index_open(&b.setup);
    /* Three slots for states beside the live one. Those at 128 and 192 follow from 64. */
    turn(&b, 200, 1);
    for (int i = 0; i < 8192; i++)
        b.ids[i] += 20000;
    turn(&b, 100, 1);
    for (int i = 0; i < 8192; i++)
        b.ids[i] -= 20000;
    assert_int_equal(turn(&b, 100, 1), 64);
    assert_true(cache_get_counts(b.x).cheap_states_evicted > 0);
    cache_index_close(b.x);
}

static void F082_salts_separate_tenants(void **state) {
    struct bench b = open_bench(NULL, 100, 8);
    turn(&b, 500, 1);
    static const char *const salt[] = {"", "a", "b"};
    for (int i = 0; i < 3; i++) {
        struct cache_lease l;
        assert_int_equal(cache_lease_open(&l, &b.setup.space, 8192, salt[i]), WEIR_OK);
        assert_int_equal(cache_match(b.x, &l, b.ids, 500, 499, true), CACHE_GO);
        assert_int_equal(l.kept, 0);
        cache_release(b.x, &l);
        cache_lease_close(&l);
    }
    assert_int_equal(turn(&b, 500, 1), 448);
    cache_index_close(b.x);
}

static void nothing_is_kept_when_caching_is_off(void **state) {
    struct bench b = open_bench(NULL, 100, 8);
    b.setup.enabled = false;
    cache_index_close(b.x);
    b.x = cache_index_open(&b.setup);
    turn(&b, 500, 100);
    assert_int_equal(turn(&b, 600, 1), 0);
    struct cache_usage u = cache_get_usage(b.x);
    assert_int_equal(u.pages_cached + u.slots_cached + u.pages_used + u.slots_used, 0);
    cache_index_close(b.x);
}

static void policies_are_parsed_or_refused_by_name(void **state) {
    struct checkpoint_policy p;
    weir_error err;
    char text[128];
    static const struct {
        const char *in, *out;
    } good[] = {
        {NULL, "end-of-prompt+junction+end-of-turn+interval:8192"},
        {"default", "end-of-prompt+junction+end-of-turn+interval:8192"},
        {"none", "none"},
        {"interval:64", "interval:64"},
        {"end-of-turn+end-of-prompt", "end-of-prompt+end-of-turn"},
        {"default+interval:512", "end-of-prompt+junction+end-of-turn+interval:512"},
        {"interval:512+default", "end-of-prompt+junction+end-of-turn+interval:512"},
        {"default+junction", "end-of-prompt+junction+end-of-turn+interval:8192"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(checkpoint_policy_parse(good[i].in, &p, &err), WEIR_OK);
        checkpoint_policy_print(&p, text, sizeof text);
        assert_string_equal(text, good[i].out);
    }
    static const char *const bad[] = {
        "",          "interval",  "interval:", "interval:0",   "interval:65", "interval:4294967360",
        "junction+", "+junction", "fetched",   "interval:-64", "End-of-turn"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (checkpoint_policy_parse(bad[i], &p, &err) != WEIR_BAD_VALUE)
            fail_msg("'%s' was accepted", bad[i]);
    static const struct {
        const char *in, *says;
    } said[] = {
        {"end-of-prompt,junction", "names are joined by '+'"},
        {"interval:8192k", "'8192k' is not a whole number of tokens"},
        {"interval:99999999999999999999", "must be a multiple of 64 tokens from 64 to 2147483584"},
        {"interval:100", "must be a multiple of 64 tokens"},
        {"interval", "needs its tokens"},
        {"junction+junction", "junction is named twice"},
        {"interval:64+interval:128", "interval is named twice"},
        {"default+default", "default is named twice"},
        {"none+junction", "'none' goes with no other name"},
        {"junction+none", "'none' goes with no other name"},
        {"junction++default", "a name is missing"},
        {"prefill", "'prefill' is none of"},
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        assert_int_equal(checkpoint_policy_parse(said[i].in, &p, &err), WEIR_BAD_VALUE);
        if (!strstr(err.message, said[i].says))
            fail_msg("'%s': %s", said[i].in, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_matched_was_written_for_these_tokens),
        cmocka_unit_test(history_to_3072_and_a_state_at_2048_resume_at_2048),
        cmocka_unit_test(F046_history_without_its_states_is_no_hit),
        cmocka_unit_test(F042_prompts_around_whole_blocks_resume_where_the_one_before_ended),
        cmocka_unit_test(an_answer_is_the_prefix_of_the_next_prompt),
        cmocka_unit_test(a_prompt_cut_short_goes_on_where_it_was),
        cmocka_unit_test(a_state_left_by_a_cut_prompt_stays_while_it_is_the_last),
        cmocka_unit_test(what_is_no_state_of_a_whole_prefix_is_not_kept),
        cmocka_unit_test(a_prefix_seen_twice_gets_a_state_at_its_fork),
        cmocka_unit_test(requests_that_arrive_together_compute_their_prefix_once),
        cmocka_unit_test(one_slot_is_enough_to_resume),
        cmocka_unit_test(tails_are_given_up_before_heads),
        cmocka_unit_test(a_state_that_is_quickly_computed_again_goes_first),
        cmocka_unit_test(F082_salts_separate_tenants),
        cmocka_unit_test(nothing_is_kept_when_caching_is_off),
        cmocka_unit_test(policies_are_parsed_or_refused_by_name),
    };
    return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
