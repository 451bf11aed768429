/* Replays of invented sessions on a virtual clock, many seeds: whatever the sessions look like, the
 * trees say what the trace says, every call is sent once and at its time, and lanes keep their
 * number. The seed is printed on failure; WEIR_SEED plays it alone. */
#include "tests/test.h"

#include "tests/trace/clock.h"

enum { SEEDS = 2000 };

static uint64_t seed_of_case;
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("seed %" PRIu64 ", line %d: %s", seed_of_case, __LINE__, #condition);         \
    } while (0)

struct dice {
    uint64_t x;
};

static uint32_t roll(struct dice *d, uint32_t n) {
    d->x = d->x * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)((d->x >> 33) % n);
}

/* ------------------------------------------------------------------------------- invented sessions
 */

static void print_call(FILE *out, struct dice *d, uint32_t t_ms) {
    fprintf(out, "{\"t\":%u.%03u,\"type\":\"%s\",\"in\":%u,\"out\":%u,\"hash_ids\":[]", t_ms / 1000,
            t_ms % 1000, roll(d, 2) ? "n" : "s", 1 + roll(d, 60), roll(d, 9));
    if (roll(d, 5))
        fprintf(out, ",\"api_time\":%u.%u", roll(d, 6), roll(d, 10));
    if (roll(d, 4) == 0)
        fprintf(out, ",\"think_time\":%u.%u", roll(d, 20), roll(d, 10));
    fputs("}", out);
}

static void print_agent(FILE *out, struct dice *d, uint32_t t_ms) {
    uint32_t n = roll(d, 7), inner = roll(d, 2) ? t_ms : 0; /* absolute or relative */
    fprintf(out, "{\"t\":%u.%03u,\"type\":\"subagent\",\"requests\":[", t_ms / 1000, t_ms % 1000);
    for (uint32_t i = 0; i < n; i++) {
        fputs(i ? "," : "", out);
        print_call(out, d, inner);
        inner += roll(d, 3) ? roll(d, 3000) : roll(d, 30000);
    }
    fputs("]}", out);
}

static char *invent(struct dice *d) {
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    uint32_t sessions = 1 + roll(d, 8);
    for (uint32_t s = 0; s < sessions; s++) {
        uint32_t entries = s ? roll(d, 14) : 1 + roll(d, 13), t = roll(d, 5000);
        fprintf(out, "{\"id\":\"s%u\",\"requests\":[", s);
        for (uint32_t i = 0; i < entries; i++) {
            fputs(i ? "," : "", out);
            if (i != entries / 2 && roll(d, 4) == 0)
                print_agent(out, d, t);
            else
                print_call(out, d, t);
            t += roll(d, 10) ? roll(d, 9000) : roll(d, 400000);
        }
        fputs("]}\n", out);
    }
    fclose(out);
    return text;
}

/* ------------------------------------------------------------------------------------ the mirror
 */

static int64_t recorded_end(const struct trace_request *r) {
    return r->t + (r->api_time == TRACE_ABSENT ? 0 : r->api_time);
}

static int64_t positive(int64_t x) {
    return x > 0 ? x : 0;
}

/* How many chains an agent needs: the greatest number of its calls that run at one time. */
static uint32_t depth_of(const struct trace *t, const struct trace_agent *a) {
    uint32_t most = 0;
    for (uint32_t i = a->first; i < a->first + a->n_requests; i++) {
        uint32_t depth = 0;
        for (uint32_t k = a->first; k < a->first + a->n_requests; k++) {
            const struct trace_request *x = &t->requests[k], *at = &t->requests[i];
            bool before = x->t < at->t || (x->t == at->t && k <= i);
            depth += k == i || (before && recorded_end(x) > at->t + 1000);
        }
        most = depth > most ? depth : most;
    }
    return most;
}

static void check_chain(const struct trace *t, const struct tree *tree, uint32_t chain,
                        uint8_t *met) {
    const struct tree_chain *c = &tree->chains[chain];
    const struct trace_session *s = &t->sessions[c->session];
    CHECK(c->n_calls > 0);
    for (uint32_t i = 0; i < c->n_calls; i++) {
        const struct tree_call *call = &tree->calls[c->first + i];
        const struct trace_request *r = &t->requests[call->request];
        CHECK(call->chain == chain && call->turn == i && r->agent == c->agent);
        CHECK(r->session == c->session && !met[call->request]++);
        int64_t want = 0;
        if (i == 0 && c->agent >= 0) {
            const struct trace_agent *a = &t->agents[c->agent];
            const struct trace_request *from = &t->requests[s->first + a->after - 1];
            want = positive((call->request == a->first ? a->t : r->t) - recorded_end(from));
        } else if (i > 0) {
            const struct trace_request *prev = &t->requests[call[-1].request];
            CHECK(c->agent < 0 ? r == prev + 1 : recorded_end(prev) <= r->t + 1000);
            want = r == prev + 1 && r->think_time != TRACE_ABSENT
                       ? r->think_time
                       : positive(r->t - recorded_end(prev));
        }
        CHECK(call->wait == want);
    }
}

static void check_tree(const struct trace *t, const struct tree *tree) {
    uint8_t *met = calloc(t->n_requests, 1);
    uint32_t chains = 0, dropped = 0, dropped_calls = 0, spawned = 0, joined = 0;
    for (uint32_t c = 0; c < tree->n_chains; c++)
        check_chain(t, tree, c, met);
    for (uint32_t s = 0; s < t->n_sessions; s++)
        chains += t->sessions[s].n_own > 0;
    for (uint32_t a = 0; a < t->n_agents; a++) {
        const struct trace_agent *g = &t->agents[a];
        dropped += g->after == 0;
        dropped_calls += g->after == 0 ? g->n_requests : 0;
        chains += g->after == 0 ? 0 : depth_of(t, g);
        for (uint32_t i = 0; i < g->n_requests; i++)
            CHECK(met[g->first + i] == (g->after > 0));
    }
    CHECK(tree->n_chains == chains);
    CHECK(tree->dropped_agents == dropped && tree->dropped_calls == dropped_calls);
    CHECK(tree->n_calls == t->n_requests - dropped_calls);
    for (uint32_t i = 0; i < tree->n_calls; i++) {
        const struct tree_call *c = &tree->calls[i];
        const struct trace_session *s = &t->sessions[t->requests[c->request].session];
        for (uint32_t k = 0; k < c->n_spawns; k++, spawned++) {
            const struct tree_chain *x = &tree->chains[tree->spawns[c->first_spawn + k]];
            CHECK(x->spawned_by == i && s->first + t->agents[x->agent].after == c->request + 1);
        }
        for (uint32_t k = 0; k < c->n_joins; k++, joined++) {
            const struct tree_chain *x = &tree->chains[tree->joins[c->first_join + k]];
            CHECK(x->joined_by == i && s->first + t->agents[x->agent].after == c->request);
        }
    }
    for (uint32_t c = 0; c < tree->n_chains; c++) {
        const struct tree_chain *x = &tree->chains[c];
        if (x->agent < 0)
            continue;
        spawned--;
        bool last = t->agents[x->agent].after == t->sessions[x->session].n_own;
        CHECK((x->joined_by == TREE_NONE) == last);
        joined -= !last;
    }
    CHECK(spawned == 0 && joined == 0);
    free(met);
}

/* ------------------------------------------------------------------------------------- the walk */

struct world {
    struct trace t;
    struct tree tree;
    struct lanes_options o;
    uint64_t seed;
    struct play_log log;
    int64_t profiling, profiling_on_clock, skipped;
};

static int64_t serve(void *arg, const struct call *c, enum call_end *how) {
    const struct world *w = arg;
    struct dice d = {w->seed ^ (c->play * 977 + c->request) * UINT64_C(0x9E3779B97F4A7C15)};
    roll(&d, 2);
    uint32_t kind = roll(&d, 20);
    if (!c->one_token && kind < 2)
        *how = kind ? CALL_FAILED : CALL_SKIPPED;
    return *how == CALL_SKIPPED ? 0 : 1 + roll(&d, 8000) * MS;
}

/* The sending of a call of a play; NULL: it was not sent. */
static const struct sent *sending(const struct world *w, uint64_t play, uint32_t call) {
    const struct tree_call *c = &w->tree.calls[call];
    for (uint32_t i = 0; i < w->log.n; i++)
        if (w->log.sent[i].call.play == play && w->log.sent[i].call.request == c->request)
            return &w->log.sent[i];
    return NULL;
}

static int64_t latest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* When the call was free to go, on the clock of the schedule. The first that is known of a chain of
 * a play that was entered midway has nothing before it. */
static int64_t free_to_go(const struct world *w, const struct sent *e, bool *known) {
    const struct tree_chain *c = &w->tree.chains[e->call.chain];
    uint32_t index = c->first + e->call.turn;
    const struct tree_call *call = &w->tree.calls[index];
    uint32_t before = e->call.turn ? index - 1 : c->spawned_by;
    const struct sent *prev = before == TREE_NONE ? NULL : sending(w, e->call.play, before);
    bool primer = e->call.phase == PHASE_PRIMER;
    *known = prev || primer;
    if (!prev || primer)
        return 0;
    double scaled = (double)call->wait * w->o.time_scale;
    int64_t wait = w->o.time_scale == 1 ? call->wait : (int64_t)(scaled + 0.5);
    if (w->o.idle_cap && wait > w->o.idle_cap)
        wait = w->o.idle_cap;
    if (e->call.one_token)
        wait = 0;
    int64_t at = prev->end_on_clock + wait;
    for (uint32_t i = 0; i < call->n_joins; i++) {
        const struct tree_chain *x = &w->tree.chains[w->tree.joins[call->first_join + i]];
        const struct sent *last = sending(w, e->call.play, x->first + x->n_calls - 1);
        /* A sub-agent that had ended where the lane came in was not sent at all. */
        bool midway = e->call.play < w->o.lanes && w->o.warmup_calls != UINT32_MAX;
        CHECK(last || midway);
        if (last)
            at = latest(at, last->end_on_clock);
        else
            for (uint32_t k = 0; k < x->n_calls; k++)
                CHECK(!sending(w, e->call.play, x->first + k));
    }
    if (!e->call.one_token)
        at = latest(at, w->profiling_on_clock);
    return at;
}

static void check_times(const struct world *w) {
    for (uint32_t i = 0; i < w->log.n; i++) {
        const struct sent *e = &w->log.sent[i];
        bool known;
        int64_t at = free_to_go(w, e, &known);
        CHECK(e->at == e->call.due);
        if (known)
            CHECK(e->due_on_clock == at);
        CHECK(e->call.one_token == (e->call.phase < PHASE_PROFILING));
        CHECK(e->call.one_token ? e->end <= w->profiling : e->at >= w->profiling);
        CHECK(!w->o.duration || w->profiling == INT64_MIN || e->at < w->profiling + w->o.duration);
        CHECK(e->call.root == (w->tree.chains[e->call.chain].agent < 0));
    }
}

/* Nothing is sent twice in a play, and what is sent of a chain is a run of its turns. */
static void check_plays(const struct world *w) {
    for (uint32_t i = 0; i < w->log.n; i++)
        for (uint32_t k = 0; k < i; k++) {
            const struct call *a = &w->log.sent[k].call, *b = &w->log.sent[i].call;
            CHECK(a->play != b->play || (a->request != b->request && a->lane == b->lane));
            CHECK(a->play != b->play || a->chain != b->chain || a->turn < b->turn);
        }
    for (uint32_t i = 0; i < w->log.n; i++) {
        const struct call *c = &w->log.sent[i].call;
        uint32_t first = w->tree.chains[c->chain].first;
        if (c->turn && c->phase != PHASE_PRIMER)
            CHECK(sending(w, c->play, first + c->turn - 1));
    }
}

/* Sessions that are played once and from their start are played whole. */
static void check_whole(const struct world *w) {
    uint32_t plays = 0;
    for (uint32_t s = 0; s < w->t.n_sessions; s++)
        plays += w->tree.sessions[s].n_chains > 0;
    CHECK(w->log.n == w->tree.n_calls);
    for (uint32_t i = 0; i < w->log.n; i++)
        CHECK(w->log.sent[i].call.play < plays);
}

static void check_lanes(const struct world *w) {
    uint32_t warm[64] = {0};
    struct {
        int64_t first, last;
        uint32_t lane;
        bool met;
    } *play = calloc(w->log.n, sizeof *play);
    uint32_t plays = 0;
    for (uint32_t i = 0; i < w->log.n; i++) {
        const struct sent *e = &w->log.sent[i];
        warm[e->call.lane] += e->call.phase == PHASE_WARMUP;
        CHECK(e->call.play < w->log.n);
        plays = e->call.play >= plays ? (uint32_t)e->call.play + 1 : plays;
        if (!play[e->call.play].met)
            play[e->call.play].first = e->at;
        play[e->call.play].met = true;
        play[e->call.play].lane = e->call.lane;
        play[e->call.play].last = latest(play[e->call.play].last, e->end);
    }
    for (uint32_t p = 0; p < plays; p++) {
        CHECK(play[p].met); /* numbers are not left out */
        uint32_t before = p;
        while (before-- > 0 && play[before].lane != play[p].lane)
            ;
        if (before != UINT32_MAX) { /* the lane's play before it has drained, at that moment */
            int64_t drained = play[before].last;
            CHECK(play[p].first == drained || play[p].first == latest(drained, w->profiling));
        } else {
            CHECK(play[p].first == 0 || play[p].first == w->profiling);
        }
    }
    for (uint32_t l = 0; l < w->o.lanes; l++)
        CHECK(w->o.warmup_calls == UINT32_MAX ? warm[l] == 0
              : w->o.once                     ? warm[l] <= w->o.warmup_calls
                                              : warm[l] == w->o.warmup_calls);
    CHECK(w->log.most_alive <= w->o.lanes);
    free(play);
}

/* While nothing is in flight, the next call is never further away than the cap. */
static void check_idle(const struct world *w) {
    int64_t busy = 0, skipped = 0;
    for (uint32_t i = 0; i < w->log.n; i++) {
        const struct sent *e = &w->log.sent[i];
        CHECK(!w->o.system_idle_cap || e->at - busy <= w->o.system_idle_cap);
        busy = latest(busy, e->end);
        CHECK(e->due_on_clock - e->call.due >= skipped);
        skipped = e->due_on_clock - e->call.due;
    }
    CHECK(w->o.system_idle_cap || w->skipped == 0);
}

static void walk(struct world *w) {
    struct schedule *s;
    weir_error err = {0};
    if (schedule_lanes(&w->tree, &w->o, 0, &s, &err))
        fail_msg("seed %" PRIu64 ": %s: %s", seed_of_case, err.where, err.message);
    play_schedule(s, 0, INT64_MAX, serve, w, &w->log);
    w->profiling = schedule_profiling_start(s);
    w->profiling_on_clock = w->profiling; /* nothing is skipped before */
    w->skipped = schedule_skipped(s);
    CHECK(!schedule_abort_reason(s)[0]);
    schedule_free(s);
}

static void choose_options(struct world *w, struct dice *d) {
    w->o = lanes_options_default();
    w->o.lanes = 1 + roll(d, 6);
    w->o.seed = roll(d, 1000);
    w->o.once = roll(d, 2);
    w->o.duration = w->o.once && roll(d, 2) ? 0 : (1 + roll(d, 300)) * SEC;
    w->o.warmup_calls = (uint32_t[]){UINT32_MAX, 0, 1, 3, 10}[roll(d, 5)];
    w->o.start_min = roll(d, 5) * 0.25;
    w->o.start_max = w->o.start_min + (1 - w->o.start_min) * roll(d, 3) * 0.5;
    w->o.idle_cap = (int64_t[]){0, 300 * SEC, 2 * SEC}[roll(d, 3)];
    w->o.system_idle_cap = (int64_t[]){0, 10 * SEC, 1 * SEC}[roll(d, 3)];
    w->o.time_scale = (double[]){1, 1, 0.37, 0, 3}[roll(d, 5)];
    w->seed = d->x;
}

static void check_again(struct world *w) {
    struct world again = *w;
    walk(&again);
    CHECK(again.log.n == w->log.n && again.profiling == w->profiling);
    for (uint32_t i = 0; i < w->log.n; i++) {
        const struct sent *a = &w->log.sent[i], *b = &again.log.sent[i];
        CHECK(a->call.request == b->call.request && a->call.play == b->call.play &&
              a->call.lane == b->call.lane && a->at == b->at && a->end == b->end);
    }
    play_log_free(&again.log);
}

static uint32_t walked_calls, midway_calls, joined_calls, skipping_walks;

static void one_case(uint64_t seed) {
    struct dice d = {seed * 7919 + 13};
    struct world w = {0};
    seed_of_case = seed;
    for (int i = 0; i < 8; i++)
        roll(&d, 2);
    char *text = invent(&d);
    tree_of_text(text, TRACE_WEKA, &w.t, &w.tree);
    check_tree(&w.t, &w.tree);
    choose_options(&w, &d);
    walk(&w);
    if (w.log.n < 3000) { /* the checks take its square */
        check_times(&w);
        check_plays(&w);
    }
    check_lanes(&w);
    check_idle(&w);
    if (w.o.once && !w.o.duration && w.o.warmup_calls == UINT32_MAX)
        check_whole(&w);
    check_again(&w);
    walked_calls += w.log.n;
    skipping_walks += w.skipped > 0;
    for (uint32_t i = 0; i < w.log.n; i++) {
        const struct call *c = &w.log.sent[i].call;
        midway_calls += c->phase == PHASE_PRIMER && !c->root;
        joined_calls += w.tree.calls[w.tree.chains[c->chain].first + c->turn].n_joins > 0;
    }
    play_log_free(&w.log);
    tree_free(&w.tree);
    trace_free(&w.t);
    free(text);
}

static void invented_sessions_are_walked_as_they_say(void **state) {
    const char *only = getenv("WEIR_SEED");
    for (uint64_t seed = only ? strtoull(only, NULL, 10) : 1; seed <= SEEDS; seed++) {
        one_case(seed);
        if (only)
            return;
    }
    /* the cases are worth something */
    assert_true(walked_calls > 20 * SEEDS);
    assert_true(midway_calls > 10);
    assert_true(joined_calls > SEEDS);
    assert_true(skipping_walks > SEEDS / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invented_sessions_are_walked_as_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
