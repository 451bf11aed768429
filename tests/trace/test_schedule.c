/* Closed-loop replays on a virtual clock: what is sent when, phase by phase. */
#include "tests/test.h"

#include "tests/trace/clock.h"

#define CALL(t, api, more)                                                                         \
    "{\"t\":" #t ",\"type\":\"n\",\"in\":10,\"out\":1,\"hash_ids\":[],\"api_time\":" #api more "}"
#define AGENT(t, calls)      "{\"t\":" #t ",\"type\":\"subagent\",\"requests\":[" calls "]}"
#define SESSION(id, entries) "{\"id\":\"" id "\",\"requests\":[" entries "]}\n"

/* Every call takes `base` + ticket-free jitter of its own. */
struct server {
    int64_t base;
    uint64_t jitter; /* 0: none */
    uint32_t fails;  /* this request of the trace; TREE_NONE: none */
};

static int64_t serve(void *arg, const struct call *c, enum call_end *how) {
    const struct server *x = arg;
    *how = c->request == x->fails ? CALL_FAILED : CALL_OK;
    uint64_t h = (c->play * 1000003 + c->request) * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    return x->base + (int64_t)(x->jitter ? h % x->jitter * 1000 : 0);
}

struct setup {
    struct trace t;
    struct tree tree;
    struct lanes_options o;
    struct server server;
    struct schedule *s;
    struct play_log log;
};

/* Sessions from their first call, each once, without caps. */
static void open_setup(struct setup *x, const char *text) {
    *x = (struct setup){.server = {.base = SEC, .fails = TREE_NONE}};
    tree_of_text(text, TRACE_WEKA, &x->t, &x->tree);
    x->o = lanes_options_default();
    x->o.once = true;
    x->o.duration = 0;
    x->o.idle_cap = x->o.system_idle_cap = 0;
    x->o.warmup_calls = UINT32_MAX;
}

static void play(struct setup *x, int64_t from, int64_t until) {
    weir_error err = {0};
    if (schedule_lanes(&x->tree, &x->o, from, &x->s, &err))
        fail_msg("%s: %s", err.where, err.message);
    play_schedule(x->s, from, until, serve, &x->server, &x->log);
}

static void close_setup(struct setup *x) {
    schedule_free(x->s);
    play_log_free(&x->log);
    tree_free(&x->tree);
    trace_free(&x->t);
}

static const char we1[] = SESSION(
    "s1", CALL(0, 1.5, ",\"think_time\":0") "," CALL(4, 1.0, ",\"think_time\":2.5") "," AGENT(
              5.2, CALL(0, 0.5, ) "," CALL(2, 1, ",\"think_time\":1.5")) "," CALL(9, 2,
                                                                                  ",\"think_time\":"
                                                                                  "4.0"));

static void expect_call(const struct sent *e, uint32_t request, int64_t due) {
    assert_int_equal(e->call.request, request);
    assert_int_equal(e->call.due, due);
    assert_int_equal(e->at, due);
}

static void WE1_each_call_is_sent_one_wait_behind_the_end_of_the_one_before(void **state) {
    struct setup x;
    open_setup(&x, we1);
    play(&x, 100 * SEC, INT64_MAX);
    assert_int_equal(x.log.n, 5);
    expect_call(&x.log.sent[0], 0, 100 * SEC);
    expect_call(&x.log.sent[1], 1, 103500 * MS);
    expect_call(&x.log.sent[2], 3, 104700 * MS); /* the sub-agent, 0.2 s behind its spawner */
    expect_call(&x.log.sent[3], 4, 107200 * MS);
    expect_call(&x.log.sent[4], 2, 108500 * MS); /* 104.5 + 4.0, the sub-agent was done at 108.2 */
    assert_true(x.log.sent[0].call.root && !x.log.sent[2].call.root && x.log.sent[4].call.root);
    assert_int_equal(x.log.sent[3].call.turn, 1);
    assert_int_equal(schedule_profiling_start(x.s), 100 * SEC);
    assert_int_equal(x.log.ended, 109500 * MS);
    close_setup(&x);
}

static void a_join_waits_for_the_later_of_its_own_wait_and_the_subagents(void **state) {
    struct setup x;
    open_setup(&x, we1);
    x.server.base = 3 * SEC;
    play(&x, 0, INT64_MAX);
    /* 0-3, 5.5-8.5; sub 8.7-11.7, 13.2-16.2; own wait over at 12.5 */
    expect_call(&x.log.sent[3], 4, 13200 * MS);
    expect_call(&x.log.sent[4], 2, 16200 * MS);
    close_setup(&x);
}

static void a_background_agent_drains_before_its_lane_goes_on(void **state) {
    struct setup x;
    open_setup(&x, SESSION("a", CALL(0, 1, ) "," AGENT(3, CALL(0, 1, ) "," CALL(6, 1, ))) SESSION(
                       "b", AGENT(0, CALL(0, 1, )) "," CALL(0, 1, ) "," AGENT(1, CALL(0, 1, ))));
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.tree.dropped_agents, 1);
    assert_int_equal(x.tree.dropped_calls, 1);
    assert_int_equal(x.log.n, 5); /* what was dropped is not sent */
    assert_int_equal(x.log.most_alive, 1);
    uint32_t first = x.t.requests[x.log.sent[0].call.request].session;
    int64_t drained = first ? 2 * SEC : 3 * SEC + 6 * SEC;
    uint32_t next = first ? 2 : 3;
    expect_call(&x.log.sent[next], x.t.sessions[!first].first, drained);
    assert_int_equal(x.log.sent[next].call.play, 1);
    close_setup(&x);
}

static void waits_are_scaled_and_then_capped(void **state) {
    static const struct {
        double scale;
        int64_t cap, second, third;
    } cases[] = {
        {1, 300 * SEC, 301 * SEC, 302 * SEC + 7 * SEC},
        {1, 0, 1001 * SEC, 1002 * SEC + 7 * SEC},
        {0.1, 300 * SEC, 101 * SEC, 102700 * MS},
        {0, 300 * SEC, 1 * SEC, 2 * SEC},
        {2, 10 * SEC, 11 * SEC, 22 * SEC},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct setup x;
        open_setup(&x, SESSION("a", CALL(0, 1, ) "," CALL(1001, 1, ) "," CALL(1009, 1, )));
        x.o.time_scale = cases[i].scale;
        x.o.idle_cap = cases[i].cap;
        play(&x, 0, INT64_MAX);
        expect_call(&x.log.sent[1], 1, cases[i].second);
        expect_call(&x.log.sent[2], 2, cases[i].third);
        close_setup(&x);
    }
}

/* Two lanes: waits of 100 s and 130 s. Once nothing is in flight the nearer is 10 s away and the
 * other 30 s behind it. */
static void an_idle_system_moves_all_timers_so_that_the_first_fires_after_the_cap(void **state) {
    struct setup x;
    open_setup(&x, SESSION("a", CALL(0, 1, ) "," CALL(101, 1, ))
                       SESSION("b", CALL(0, 1, ) "," CALL(131, 1, )));
    x.o.lanes = 2;
    x.o.system_idle_cap = 10 * SEC;
    play(&x, 0, INT64_MAX);
    expect_call(&x.log.sent[2], 1, 11 * SEC);
    /* at 12 s its successor ends, the other is due at 41 s: again more than 10 s away */
    expect_call(&x.log.sent[3], 3, 22 * SEC);
    assert_int_equal(schedule_skipped(x.s), (131 - 22) * SEC);
    close_setup(&x);
    /* one call in flight and nothing is moved */
    open_setup(&x, SESSION("a", CALL(0, 1, ) "," CALL(101, 1, ))
                       SESSION("b", CALL(0, 1, ) "," CALL(131, 1, )));
    x.o.lanes = 2;
    x.o.system_idle_cap = 10 * SEC;
    x.server.base = 1000 * SEC;
    play(&x, 0, INT64_MAX);
    assert_int_equal(schedule_skipped(x.s), 90 * SEC);
    expect_call(&x.log.sent[2], 1, 1010 * SEC);
    expect_call(&x.log.sent[3], 3, 1040 * SEC); /* the other one's 30 s are kept */
    close_setup(&x);
}

#define FOUR(id) SESSION(id, CALL(0, 1, ) "," CALL(10, 1, ) "," CALL(20, 1, ) "," CALL(30, 1, ))

static void a_lane_enters_its_session_behind_a_primer_and_a_warmup(void **state) {
    struct setup x;
    open_setup(&x, SESSION("a", CALL(0, 1, ) "," CALL(10, 1, ) "," CALL(20, 1, ) "," CALL(
                                    30, 1, ) "," CALL(40, 1, ) "," CALL(50, 1, )));
    x.o.start_min = x.o.start_max = 0.25; /* 12.5 s: turn 2 */
    x.o.warmup_calls = 2;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 5);
    static const enum phase phases[] = {PHASE_PRIMER, PHASE_WARMUP, PHASE_WARMUP, PHASE_PROFILING,
                                        PHASE_PROFILING};
    for (uint32_t i = 0; i < 5; i++) {
        const struct call *c = &x.log.sent[i].call;
        assert_int_equal(c->turn, i + 1);
        assert_int_equal(c->phase, phases[i]);
        assert_int_equal(c->one_token, i < 3);
        assert_int_equal(c->play, 0);
    }
    expect_call(&x.log.sent[0], 1, 0);
    expect_call(&x.log.sent[1], 2, 1 * SEC); /* no waits */
    expect_call(&x.log.sent[2], 3, 2 * SEC);
    expect_call(&x.log.sent[3], 4, 3 * SEC + 9 * SEC);
    assert_int_equal(schedule_profiling_start(x.s), 3 * SEC);
    close_setup(&x);
}

static void the_start_is_the_first_turn_at_or_after_its_share_but_never_the_first(void **state) {
    static const struct {
        double share;
        uint32_t primer;
    } cases[] = {{0, 0}, {0.01, 0}, {1.0 / 3, 0}, {0.34, 1}, {2.0 / 3, 1}, {0.7, 2}, {1, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct setup x;
        open_setup(&x, FOUR("a"));
        x.o.start_min = x.o.start_max = cases[i].share;
        x.o.warmup_calls = 0;
        play(&x, 0, INT64_MAX);
        assert_int_equal(x.log.sent[0].call.turn, cases[i].primer);
        assert_int_equal(x.log.sent[0].call.phase, PHASE_PRIMER);
        assert_int_equal(x.log.sent[1].call.phase, PHASE_PROFILING);
        assert_int_equal(x.log.n, 4 - cases[i].primer);
        close_setup(&x);
    }
    struct setup x; /* a session of one turn has no primer */
    open_setup(&x, SESSION("a", CALL(0, 1, )) SESSION("b", CALL(0, 1, )));
    x.o.warmup_calls = 1;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 2);
    assert_int_equal(x.log.sent[0].call.phase, PHASE_WARMUP);
    assert_int_equal(x.log.sent[1].call.phase, PHASE_PROFILING);
    assert_int_equal(x.log.sent[1].at, 1 * SEC);
    close_setup(&x);
}

/* At half of the span (10 s) turn 1 has started two agents: one is between its calls of 6 s and
 * 12 s, one has ended, one begins at 11 s. */
static void a_subagent_branch_that_ran_at_the_start_has_a_primer_too(void **state) {
    struct setup x;
    open_setup(
        &x,
        SESSION(
            "a",
            CALL(0, 1, ) "," CALL(3, 1, ) "," AGENT(
                5, CALL(0, 1, ) "," CALL(1, 1, ) "," CALL(
                       7, 1, )) "," AGENT(5, CALL(0, 1, )) "," AGENT(11,
                                                                     CALL(0, 1, )) "," CALL(20,
                                                                                            1, )));
    x.o.start_min = x.o.start_max = 0.5;
    x.o.warmup_calls = 0;
    play(&x, 0, INT64_MAX);
    /* own calls 0..2, then 3 4 5 of the first agent, 6, 7 */
    assert_int_equal(x.log.n, 5);
    expect_call(&x.log.sent[0], 1, 0);
    expect_call(&x.log.sent[1], 4, 0);
    assert_int_equal(x.log.sent[1].call.phase, PHASE_PRIMER);
    expect_call(&x.log.sent[2], 5, 1 * SEC + 5 * SEC);
    expect_call(&x.log.sent[3], 7, 1 * SEC + 7 * SEC); /* 11 - 4 behind its spawner */
    expect_call(&x.log.sent[4], 2, 1 * SEC + 16 * SEC);
    close_setup(&x);
}

static void a_warmup_longer_than_the_session_goes_on_with_the_next(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b") FOUR("c"));
    x.o.warmup_calls = 5;
    x.o.start_min = x.o.start_max = 1;
    play(&x, 0, INT64_MAX);
    uint32_t warm = 0;
    for (uint32_t i = 0; i < x.log.n; i++)
        warm += x.log.sent[i].call.phase == PHASE_WARMUP;
    assert_int_equal(warm, 5); /* turn 3 of the first, all of the second */
    assert_int_equal(x.log.n, 1 + 5 + 4);
    assert_int_equal(x.log.sent[6].call.phase, PHASE_PROFILING);
    assert_int_equal(x.log.sent[6].call.turn, 0);
    assert_int_equal(x.log.sent[6].at, schedule_profiling_start(x.s));
    close_setup(&x);
}

static void profiling_begins_when_the_slowest_lane_has_warmed_up(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b") FOUR("c") FOUR("d"));
    x.o.lanes = 4;
    x.o.warmup_calls = 1;
    x.o.start_min = x.o.start_max = 0.2;
    x.server.jitter = 100000;
    play(&x, 0, INT64_MAX);
    int64_t drained = 0, start = schedule_profiling_start(x.s);
    for (uint32_t i = 0; i < x.log.n; i++) {
        const struct sent *e = &x.log.sent[i];
        if (e->call.one_token && e->end > drained)
            drained = e->end;
        if (!e->call.one_token)
            assert_true(e->at >= start);
    }
    assert_int_equal(drained, start);
    close_setup(&x);
}

static void at_the_end_of_the_duration_nothing_more_is_sent_and_calls_under_way_end(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b") FOUR("c"));
    x.o.lanes = 2;
    x.o.once = false;
    x.o.duration = 100 * SEC;
    x.server.base = 7 * SEC;
    play(&x, 50 * SEC, INT64_MAX);
    int64_t last = 0, end = 0;
    for (uint32_t i = 0; i < x.log.n; i++) {
        last = x.log.sent[i].at > last ? x.log.sent[i].at : last;
        end = x.log.sent[i].end > end ? x.log.sent[i].end : end;
        assert_int_equal(x.log.sent[i].call.phase, PHASE_PROFILING);
    }
    assert_true(last < 150 * SEC && last > 130 * SEC);
    assert_int_equal(x.log.ended, end > 150 * SEC ? end : 150 * SEC);
    assert_int_equal(x.log.most_alive, 2);
    close_setup(&x);
    /* a call due at that very moment is not sent */
    open_setup(&x, SESSION("a", CALL(0, 1, ) "," CALL(10, 1, )));
    x.o.duration = 10 * SEC;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 1);
    assert_int_equal(x.log.ended, 10 * SEC);
    close_setup(&x);
}

static void lanes_take_sessions_in_a_shuffled_order_again_and_again(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b") FOUR("c") FOUR("d") FOUR("e"));
    x.o.lanes = 7;
    x.o.once = false;
    x.o.duration = 500 * SEC;
    x.server.jitter = 5000;
    play(&x, 0, INT64_MAX);
    uint32_t session[1000], plays = 0;
    for (uint32_t i = 0; i < x.log.n; i++) {
        const struct call *c = &x.log.sent[i].call;
        if (c->turn)
            continue;
        assert_int_equal(c->play, plays); /* numbers are given in order */
        session[plays++] = x.t.requests[c->request].session;
        if (plays <= 7)
            assert_int_equal(c->lane, plays - 1);
    }
    assert_true(plays > 30);
    bool seen[5] = {0};
    for (uint32_t i = 0; i < 5; i++)
        seen[session[i]] = true;
    for (uint32_t i = 0; i < 5; i++)
        assert_true(seen[i]);
    for (uint32_t i = 5; i < plays; i++)
        assert_int_equal(session[i], session[i % 5]);
    close_setup(&x);
}

static int by_value(const void *a, const void *z) {
    const uint64_t *x = a, *y = z;
    return *x < *y ? -1 : *x > *y;
}

#define HASHED(t, in, ids)                                                                         \
    "{\"t\":" #t ",\"type\":\"n\",\"in\":" #in ",\"out\":1,\"hash_ids\":[" ids "],\"api_time\":1}"
/* All blocks of all prompts that are sent, by their tokens: equal ones belong to one play. */
static void two_plays_share_no_block_and_the_warmup_shares_all_of_its_plays(void **state) {
    struct setup x;
    open_setup(&x,
               SESSION("s1", HASHED(0, 200, "1,2,3") "," HASHED(4, 300, "1,2,3,4") "," AGENT(
                                 5.2, HASHED(0, 130, "9,10") "," HASHED(
                                          2, 200, "9,10,11")) "," HASHED(9, 420, "1,2,3,4,5,6")));
    x.o.lanes = 3; /* all play the one session */
    x.o.once = false;
    x.o.duration = 60 * SEC;
    x.o.warmup_calls = 2;
    play(&x, 0, INT64_MAX);
    uint64_t(*seen)[2] = calloc(x.log.n * 6, sizeof *seen);
    size_t n = 0, within = 0;
    int32_t ids[420];
    for (uint32_t i = 0; i < x.log.n; i++) {
        const struct call *c = &x.log.sent[i].call;
        const struct trace_request *r = &x.t.requests[c->request];
        struct trace_play p = {.key = trace_play_key(42, c->play), .high = 1000000};
        trace_prompt_ids(&x.t, r, &p, 0, r->in, ids);
        for (uint32_t b = 0; b < r->n_blocks; b++, n++) {
            uint64_t h = 14695981039346656037u;
            for (int k = 0; k < 64; k++)
                h = (h ^ (uint64_t)ids[64 * b + k]) * 1099511628211u;
            seen[n][0] = h;
            seen[n][1] = c->play;
        }
    }
    qsort(seen, n, sizeof *seen, by_value);
    for (size_t i = 1; i < n; i++)
        if (seen[i][0] == seen[i - 1][0]) {
            assert_int_equal(seen[i][1], seen[i - 1][1]);
            within++;
        }
    assert_true(within > n / 4); /* reuse inside of a play is real */
    /* a lane's primer and what it profiles of that session are one play */
    uint32_t continued = 0;
    for (uint32_t i = 0; i < x.log.n; i++)
        continued += x.log.sent[i].call.play < 3 && !x.log.sent[i].call.one_token;
    assert_true(continued > 0);
    free(seen);
    close_setup(&x);
}

static void once_plays_every_session_once_on_no_more_lanes_than_there_are_sessions(void **state) {
    for (uint32_t lanes = 1; lanes < 9; lanes++) {
        struct setup x;
        open_setup(&x,
                   FOUR("a") FOUR("b") FOUR("c") SESSION("d", AGENT(0, CALL(0, 1, ))) FOUR("e"));
        x.o.lanes = lanes;
        play(&x, 0, INT64_MAX);
        assert_int_equal(x.log.n, 16);
        assert_int_equal(x.log.most_alive, lanes < 4 ? lanes : 4);
        close_setup(&x);
    }
}

static void a_root_call_that_fails_in_the_warmup_ends_the_run(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b") FOUR("c"));
    x.o.lanes = 3;
    x.o.warmup_calls = 1;
    x.o.start_min = x.o.start_max = 0.5;
    x.server.fails = 6; /* turn 2 of b */
    x.server.jitter = 1000;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 6);
    assert_int_equal(schedule_profiling_start(x.s), INT64_MIN);
    assert_non_null(strstr(schedule_abort_reason(x.s), "session b, turn 2"));
    close_setup(&x);
    /* not so in the profiling phase, nor for a sub-agent */
    open_setup(&x, FOUR("a"));
    x.server.fails = 2;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 4);
    assert_string_equal(schedule_abort_reason(x.s), "");
    close_setup(&x);
    open_setup(&x, we1);
    x.server.fails = 3;
    x.o.start_min = x.o.start_max = 0.7;
    x.o.warmup_calls = 3;
    play(&x, 0, INT64_MAX);
    assert_int_equal(x.log.n, 4); /* primers of turn 1 and of the sub-agent, one more of each */
    assert_string_equal(schedule_abort_reason(x.s), "");
    close_setup(&x);
}

static void stopping_sends_nothing_more(void **state) {
    struct setup x;
    open_setup(&x, FOUR("a") FOUR("b"));
    x.o.lanes = 2;
    x.server.base = 4 * SEC;
    play(&x, 0, 14 * SEC); /* 0-4, 13-17 */
    assert_int_equal(x.log.n, 4);
    assert_int_equal(x.log.ended, 17 * SEC);
    assert_string_equal(schedule_abort_reason(x.s), "");
    close_setup(&x);
}

static void what_follows_a_call_is_known_while_it_runs(void **state) {
    struct setup x;
    struct call c, next;
    open_setup(&x, we1);
    assert_int_equal(schedule_lanes(&x.tree, &x.o, 0, &x.s, NULL), WEIR_OK);
    assert_true(schedule_next(x.s, 0, &c));
    assert_true(schedule_following(x.s, c.ticket, &next));
    assert_int_equal(next.request, 1);
    assert_int_equal(next.turn, 1);
    assert_int_equal(next.play, c.play);
    schedule_done(x.s, c.ticket, SEC, CALL_OK);
    assert_true(schedule_next(x.s, 10 * SEC, &c));
    assert_true(schedule_following(x.s, c.ticket, &next));
    assert_int_equal(next.request, 2);
    schedule_done(x.s, c.ticket, 10 * SEC, CALL_OK);
    assert_true(schedule_next(x.s, 20 * SEC, &c)); /* late: the plan says when it was due */
    assert_int_equal(c.due, 10200 * MS);
    schedule_done(x.s, c.ticket, 20 * SEC, CALL_SKIPPED);
    assert_true(schedule_next(x.s, 30 * SEC, &c));
    assert_int_equal(c.request, 4);
    assert_false(schedule_following(x.s, c.ticket, &next)); /* the last of its chain */
    close_setup(&x);
}

static void options_that_make_no_sense_are_refused_by_name(void **state) {
    struct setup x;
    open_setup(&x, we1);
    static const struct {
        const char *where;
        uint32_t lanes;
        int64_t duration, idle, system;
        double low, high, scale;
    } cases[] = {
        {"lanes", 0, SEC, 0, 0, 0, 1, 1},
        {"duration", 1, 0, 0, 0, 0, 1, 1},
        {"duration", 1, -1, 0, 0, 0, 1, 1},
        {"idle_cap", 1, SEC, -1, 0, 0, 1, 1},
        {"system_idle_cap", 1, SEC, 0, -1, 0, 1, 1},
        {"start_ratio", 1, SEC, 0, 0, 0.5, 0.4, 1},
        {"start_ratio", 1, SEC, 0, 0, 0.5, 1.1, 1},
        {"start_ratio", 1, SEC, 0, 0, -0.1, 1, 1},
        {"time_scale", 1, SEC, 0, 0, 0, 1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_error err = {0};
        struct lanes_options o = lanes_options_default();
        o.lanes = cases[i].lanes;
        o.duration = cases[i].duration;
        o.idle_cap = cases[i].idle;
        o.system_idle_cap = cases[i].system;
        o.start_min = cases[i].low;
        o.start_max = cases[i].high;
        o.time_scale = cases[i].scale;
        assert_int_equal(schedule_lanes(&x.tree, &o, 0, &x.s, &err), WEIR_BAD_VALUE);
        assert_string_equal(err.where, cases[i].where);
        assert_null(x.s);
    }
    close_setup(&x);
    struct trace t;
    struct tree tree;
    weir_error err = {0};
    struct lanes_options o = lanes_options_default();
    tree_of_text(SESSION("b", AGENT(0, CALL(0, 1, ))), TRACE_WEKA, &t, &tree);
    assert_int_equal(schedule_lanes(&tree, &o, 0, &x.s, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.message, "holds no session with a call of its own");
    tree_free(&tree);
    trace_free(&t);
}

/* What is foreseen before anything is sent is what plays then begin with, in that order. */
static void what_begins_next_is_known_before(void **state) {
    enum { AHEAD = 12 };
    static const char text[] = SESSION("a", CALL(0, 1, "") "," CALL(2, 1, ""))
        SESSION("b", CALL(0, 1, "")) SESSION("c", CALL(0, 3, "") "," CALL(4, 1, ""));
    for (int share = 0; share < 2; share++) {
        struct setup x;
        struct call seen[AHEAD], none;
        open_setup(&x, text);
        x.o.lanes = 2;
        x.o.once = false;
        x.o.share = share;
        x.o.duration = 60 * SEC;
        assert_int_equal(schedule_lanes(&x.tree, &x.o, 0, &x.s, NULL), WEIR_OK);
        for (uint64_t i = 0; i < AHEAD; i++)
            assert_true(schedule_upcoming(x.s, i, &seen[i]));
        play_schedule(x.s, 0, INT64_MAX, serve, &x.server, &x.log);
        uint32_t begun = 0;
        for (uint32_t i = 0; i < x.log.n && begun < AHEAD + 2; i++) {
            const struct call *c = &x.log.sent[i].call;
            if (c->turn != 0)
                continue;
            if (begun >= 2) { /* the first two had begun with the schedule */
                assert_int_equal(c->request, seen[begun - 2].request);
                assert_int_equal(c->play, seen[begun - 2].play);
            }
            begun++;
        }
        assert_int_equal(begun, AHEAD + 2);
        assert_false(schedule_upcoming(x.s, 0, &none)); /* it has ended */
        close_setup(&x);
    }
    struct setup x;
    struct call c;
    open_setup(&x, text);
    x.o.lanes = 2;
    assert_int_equal(schedule_lanes(&x.tree, &x.o, 0, &x.s, NULL), WEIR_OK);
    assert_true(schedule_upcoming(x.s, 0, &c));
    assert_false(schedule_upcoming(x.s, 1, &c)); /* each is played once, and there are three */
    close_setup(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(WE1_each_call_is_sent_one_wait_behind_the_end_of_the_one_before),
        cmocka_unit_test(a_join_waits_for_the_later_of_its_own_wait_and_the_subagents),
        cmocka_unit_test(a_background_agent_drains_before_its_lane_goes_on),
        cmocka_unit_test(waits_are_scaled_and_then_capped),
        cmocka_unit_test(an_idle_system_moves_all_timers_so_that_the_first_fires_after_the_cap),
        cmocka_unit_test(a_lane_enters_its_session_behind_a_primer_and_a_warmup),
        cmocka_unit_test(the_start_is_the_first_turn_at_or_after_its_share_but_never_the_first),
        cmocka_unit_test(a_subagent_branch_that_ran_at_the_start_has_a_primer_too),
        cmocka_unit_test(a_warmup_longer_than_the_session_goes_on_with_the_next),
        cmocka_unit_test(profiling_begins_when_the_slowest_lane_has_warmed_up),
        cmocka_unit_test(at_the_end_of_the_duration_nothing_more_is_sent_and_calls_under_way_end),
        cmocka_unit_test(lanes_take_sessions_in_a_shuffled_order_again_and_again),
        cmocka_unit_test(two_plays_share_no_block_and_the_warmup_shares_all_of_its_plays),
        cmocka_unit_test(once_plays_every_session_once_on_no_more_lanes_than_there_are_sessions),
        cmocka_unit_test(a_root_call_that_fails_in_the_warmup_ends_the_run),
        cmocka_unit_test(stopping_sends_nothing_more),
        cmocka_unit_test(what_follows_a_call_is_known_while_it_runs),
        cmocka_unit_test(what_begins_next_is_known_before),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
