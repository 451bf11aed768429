/* The statistics of real traces that were counted independently: every reader reproduces them to
 * the last token. The folder is in WEIR_TRACES; meson leaves this test out where there is none. */
#include "tests/test.h"

#include "tests/trace/clock.h"

static const char *trace_path(const char *file) {
    static char path[4096];
    const char *dir = getenv("WEIR_TRACES");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "../shared/traces", file);
    return path;
}

static void open_trace(const char *file, enum trace_format format, struct trace *t) {
    weir_error err = {0};
    if (trace_read(trace_path(file), format, NULL, t, &err))
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(t->n_warnings, 0);
}

struct golden {
    const char *name;
    uint64_t requests, agents, sum_in, sum_out, max_in, blocks, hits;
    const char *rate; /* six decimals; NULL: none */
};

static void expect(const struct trace_stats *s, const struct golden *g) {
    if (s->requests != g->requests || s->agents != g->agents || s->sum_in != g->sum_in ||
        s->sum_out != g->sum_out || (g->max_in && s->max_in != g->max_in) ||
        s->blocks != g->blocks || s->hits != g->hits)
        fail_msg("%s: requests %" PRIu64 " agents %" PRIu64 " in %" PRIu64 " out %" PRIu64
                 " max %" PRIu64 " blocks %" PRIu64 " hits %" PRIu64,
                 g->name, s->requests, s->agents, s->sum_in, s->sum_out, s->max_in, s->blocks,
                 s->hits);
    double rate;
    char text[32];
    assert_int_equal(trace_hit_rate(s, &rate), g->rate != NULL);
    if (!g->rate)
        return;
    snprintf(text, sizeof text, "%.6f", rate);
    assert_string_equal(text, g->rate);
}

static void count_of_file(const char *file, enum trace_format format, const struct golden *g,
                          uint32_t sessions) {
    struct trace t;
    struct trace_stats s;
    open_trace(file, format, &t);
    assert_int_equal(trace_count(&t, NULL, &s, NULL), WEIR_OK);
    expect(&s, g);
    assert_int_equal(t.n_sessions, sessions);
    trace_free(&t);
}

static void mooncake_traces_count_as_published(void **state) {
    count_of_file(
        "mooncake_conversation_head.jsonl", TRACE_MOONCAKE,
        &(struct golden){"conversation", 6000, 0, 76643649, 2081764, 0, 152537, 52821, "0.346283"},
        6000);
    count_of_file(
        "mooncake_synthetic_head.jsonl", TRACE_MOONCAKE,
        &(struct golden){"synthetic", 2000, 0, 24732716, 382951, 0, 49580, 16270, "0.328157"},
        2000);
}

static void azure_rows_count_as_published(void **state) {
    count_of_file("azure_llm_2023_code_head.csv", TRACE_AZURE,
                  &(struct golden){"azure", 4400, 0, 8984744, 120968, 0, 0, 0, NULL}, 4400);
}

static const struct golden weka[] = {
    {"trace_0277", 53, 4, 2576410, 31862, 92614, 40230, 35139, "0.873453"},
    {"trace_0274", 105, 3, 5990912, 48868, 110524, 93558, 89129, "0.952660"},
    {"trace_0291", 32, 2, 2254119, 19504, 101059, 35209, 31603, "0.897583"},
    {"trace_0019", 24, 0, 627951, 10690, 37356, 9799, 9214, "0.940300"},
    {"trace_0449", 26, 0, 765312, 14823, 48152, 11948, 10753, "0.899983"},
    {"trace_0173", 10, 0, 1146459, 6277, 126980, 17908, 15924, "0.889212"},
    {"trace_0620", 6, 0, 280044, 6680, 59249, 4372, 3447, "0.788426"},
    {"trace_0360", 42, 0, 2576898, 16792, 97099, 40243, 38534, "0.957533"},
    {"trace_0057", 8, 0, 114011, 1821, 15225, 1778, 1541, "0.866704"},
    {"trace_0358", 15, 0, 558121, 6293, 48306, 8715, 7958, "0.913138"},
    {"trace_0507", 134, 0, 6798954, 32456, 290754, 106168, 94042, "0.885785"},
    {"trace_0060", 9, 0, 1370822, 2395, 156208, 21415, 18975, "0.886061"},
    {"trace_0312", 18, 0, 814715, 12660, 56246, 12721, 11843, "0.930980"},
    {"trace_0615", 12, 0, 317812, 4301, 29536, 4958, 4495, "0.906616"},
    {"trace_0106", 13, 0, 1145741, 5996, 95423, 17897, 16407, "0.916746"},
    {"trace_0538", 5, 0, 52375, 807, 11053, 817, 634, "0.776010"},
};
enum { WEKA_SESSIONS = sizeof weka / sizeof *weka };

static void agent_sessions_count_as_published_one_by_one(void **state) {
    struct trace t;
    struct trace_stats total, each[WEKA_SESSIONS];
    open_trace("cc_weka_excerpt_a.jsonl", TRACE_WEKA, &t);
    assert_int_equal(t.n_sessions, WEKA_SESSIONS);
    assert_int_equal(trace_count(&t, each, &total, NULL), WEIR_OK);
    for (int i = 0; i < WEKA_SESSIONS; i++) {
        assert_string_equal(t.sessions[i].id, weka[i].name);
        expect(&each[i], &weka[i]);
    }
    expect(&total,
           &(struct golden){"all", 512, 9, 27390656, 222225, 290754, 427736, 389638, "0.910931"});
    assert_int_equal(total.agent_requests, 104);
    uint32_t streamed = 0;
    for (uint32_t i = 0; i < t.n_requests; i++)
        streamed += t.requests[i].streamed;
    assert_int_equal(streamed, 88);
    for (uint32_t i = 0; i < t.n_agents; i++)
        assert_true(t.agents[i].relative);
    trace_free(&t);
}

/* The file with every line end replaced; `last` keeps the one of the last line. */
static char *with_ends(const char *file, const char *end, bool last, size_t *bytes) {
    FILE *in = fopen(trace_path(file), "rb"), *out;
    char *text, *line = NULL;
    size_t room = 0;
    ssize_t n;
    assert_non_null(in);
    out = open_memstream(&text, bytes);
    assert_non_null(out);
    bool first = true;
    while ((n = getline(&line, &room, in)) >= 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        fputs(first ? "" : end, out);
        fwrite(line, 1, (size_t)n, out);
        first = false;
    }
    fputs(last ? end : "", out);
    fclose(out);
    fclose(in);
    free(line);
    return text;
}

static const struct {
    const char *file;
    enum trace_format format;
    uint64_t requests, sum_in, hits, lines;
} files[] = {
    {"cc_weka_excerpt_a.jsonl", TRACE_WEKA, 512, 27390656, 389638, 16},
    {"mooncake_conversation_head.jsonl", TRACE_MOONCAKE, 6000, 76643649, 52821, 6000},
    {"mooncake_synthetic_head.jsonl", TRACE_MOONCAKE, 2000, 24732716, 16270, 2000},
    {"azure_llm_2023_code_head.csv", TRACE_AZURE, 4400, 8984744, 0, 4401},
};
enum { FILES = sizeof files / sizeof *files };

static void line_ends_do_not_count(void **state) {
    static const struct {
        const char *end;
        bool last;
    } kinds[] = {{"\n", true}, {"\n", false}, {"\r\n", true}, {"\r\n", false}, {"\r\n\r\n", true}};
    for (int i = 0; i < FILES; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            size_t bytes;
            char *text = with_ends(files[i].file, kinds[k].end, kinds[k].last, &bytes);
            FILE *in = fmemopen(text, bytes, "rb");
            struct trace t;
            struct trace_stats s;
            weir_error err = {0};
            if (trace_read_stream(in, "t", files[i].format, NULL, &t, &err))
                fail_msg("%s, ends %zu: %s: %s", files[i].file, k, err.where, err.message);
            assert_int_equal(trace_count(&t, NULL, &s, NULL), WEIR_OK);
            assert_int_equal(s.requests, files[i].requests);
            assert_int_equal(s.sum_in, files[i].sum_in);
            assert_int_equal(s.hits, files[i].hits);
            trace_free(&t);
            fclose(in);
            free(text);
        }
}

static void a_last_line_that_was_cut_off_is_refused_by_its_number(void **state) {
    for (int i = 0; i < FILES; i++) {
        size_t bytes;
        char *text = with_ends(files[i].file, "\n", false, &bytes), want[40];
        /* Azure's last number could be cut and remain one: so the comma goes as well. */
        FILE *in = fmemopen(text, bytes - 6, "rb");
        struct trace t;
        weir_error err = {0};
        assert_int_equal(trace_read_stream(in, "t", files[i].format, NULL, &t, &err),
                         WEIR_BAD_FILE);
        snprintf(want, sizeof want, "t:%" PRIu64, files[i].lines);
        assert_string_equal(err.where, want);
        assert_null(t.requests);
        fclose(in);
        free(text);
    }
}

/* think_time was recorded beside the times it follows from; both say the same within a second where
 * the end of the call before was recorded. Elsewhere it counts from an earlier call. */
static void recorded_waits_agree_with_the_times(void **state) {
    struct trace t;
    struct tree tree;
    uint32_t pairs = 0, odd = 0, absent = 0;
    open_trace("cc_weka_excerpt_a.jsonl", TRACE_WEKA, &t);
    assert_int_equal(tree_build(&t, &tree, NULL), WEIR_OK);
    assert_int_equal(tree.n_calls, 512);
    assert_int_equal(tree.n_chains, 16 + 9);
    assert_int_equal(tree.dropped_agents, 0);
    for (uint32_t c = 0; c < tree.n_chains; c++)
        for (uint32_t i = 1; i < tree.chains[c].n_calls; i++, pairs++) {
            const struct tree_call *call = &tree.calls[tree.chains[c].first + i];
            const struct trace_request *r = &t.requests[call->request], *before = r - 1;
            int64_t gap = r->t - before->t - (before->api_time > 0 ? before->api_time : 0);
            gap = gap > 0 ? gap : 0;
            assert_int_equal(call->wait, r->think_time < 0 ? gap : r->think_time);
            absent += r->think_time < 0;
            odd += llabs(gap - call->wait) > SEC;
            if (before->api_time >= 0)
                assert_true(llabs(gap - call->wait) <= SEC);
        }
    assert_int_equal(pairs, 512 - 16 - 9);
    assert_int_equal(absent, 2);
    assert_int_equal(odd, 51);
    assert_int_equal(tree.odd_waits, 51);
    tree_free(&tree);
    trace_free(&t);
}

static int64_t serve(void *arg, const struct call *c, enum call_end *how) {
    (void)how;
    const struct trace_request *r = &((const struct trace *)arg)->requests[c->request];
    return (int64_t)r->in * 20000 + (c->one_token ? 1 : (int64_t)r->out) * 10 * MS;
}

/* Once through from the first calls: all of them, whatever the lanes. And as AgentX has it for an
 * hour: 64 sessions alive, 10 warm-up calls a lane, no wait longer than the caps. */
static void recorded_sessions_are_played_whole_and_for_an_hour(void **state) {
    struct trace t;
    struct tree tree;
    struct schedule *s;
    struct play_log log;
    open_trace("cc_weka_excerpt_a.jsonl", TRACE_WEKA, &t);
    assert_int_equal(tree_build(&t, &tree, NULL), WEIR_OK);
    struct lanes_options o = lanes_options_default();
    o.once = true;
    o.warmup_calls = UINT32_MAX;
    o.duration = 0;
    for (o.lanes = 1; o.lanes <= 32; o.lanes *= 2) {
        uint64_t in = 0;
        assert_int_equal(schedule_lanes(&tree, &o, 0, &s, NULL), WEIR_OK);
        play_schedule(s, 0, INT64_MAX, serve, &t, &log);
        for (uint32_t i = 0; i < log.n; i++)
            in += t.requests[log.sent[i].call.request].in;
        assert_int_equal(log.n, 512);
        assert_int_equal(in, 27390656);
        assert_int_equal(log.most_alive, o.lanes < 16 ? o.lanes : 16);
        schedule_free(s);
        play_log_free(&log);
    }
    o = lanes_options_default();
    o.lanes = 64;
    assert_int_equal(schedule_lanes(&tree, &o, 0, &s, NULL), WEIR_OK);
    play_schedule(s, 0, INT64_MAX, serve, &t, &log);
    uint32_t warm = 0, late = 0;
    int64_t start = schedule_profiling_start(s);
    for (uint32_t i = 0; i < log.n; i++) {
        warm += log.sent[i].call.phase == PHASE_WARMUP;
        late += log.sent[i].at >= start + o.duration;
        assert_int_equal(log.sent[i].call.one_token, log.sent[i].at < start);
    }
    assert_int_equal(warm, 64 * 10);
    assert_int_equal(late, 0);
    assert_int_equal(log.most_alive, 64);
    assert_true(log.n > 5000);
    assert_true(log.ended >= start + o.duration);
    schedule_free(s);
    play_log_free(&log);
    tree_free(&tree);
    trace_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mooncake_traces_count_as_published),
        cmocka_unit_test(azure_rows_count_as_published),
        cmocka_unit_test(agent_sessions_count_as_published_one_by_one),
        cmocka_unit_test(recorded_waits_agree_with_the_times),
        cmocka_unit_test(recorded_sessions_are_played_whole_and_for_an_hour),
        cmocka_unit_test(line_ends_do_not_count),
        cmocka_unit_test(a_last_line_that_was_cut_off_is_refused_by_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
