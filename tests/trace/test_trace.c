/* Readers of request traces: what each format says arrives in one form, what breaks a format's rule
 * is refused with file, line and field, and the counts and token ids that follow from a trace. */
#include "tests/test.h"

#include "trace/trace.h"

#include <sys/stat.h>
#include <unistd.h>

static weir_status read_bytes(const char *text, size_t n, enum trace_format format,
                              const struct trace_options *options, struct trace *t,
                              weir_error *err) {
    FILE *in = fmemopen((void *)(uintptr_t)text, n, "rb");
    assert_non_null(in);
    weir_status s = trace_read_stream(in, "dir/t", format, options, t, err);
    fclose(in);
    return s;
}

static void read_text(const char *text, enum trace_format format, struct trace *t) {
    weir_error err = {0};
    if (read_bytes(text, strlen(text), format, NULL, t, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static struct trace_stats counted(const struct trace *t) {
    struct trace_stats s;
    assert_int_equal(trace_count(t, NULL, &s, NULL), WEIR_OK);
    return s;
}

#define MS INT64_C(1000000)
#define S  INT64_C(1000000000)

/* ------------------------------------------------------------------------------------------ weka
 */

#define WE1_BEFORE                                                                                 \
    "{\"id\":\"s1\",\"block_size\":64,\"hash_id_scope\":\"local\",\"requests\":[\n"                \
    " {\"t\":0,\"type\":\"s\",\"in\":200,\"out\":20,\"hash_ids\":[1,2,3],\"api_time\":1.5,"        \
    "\"ttft\":0.4,\"think_time\":0},\n"                                                            \
    " {\"t\":4,\"type\":\"n\",\"in\":300,\"out\":10,\"hash_ids\":[1,2,3,4],\"api_time\":1.0,"      \
    "\"think_time\":2.5},\n"                                                                       \
    " {\"t\":5.2,\"type\":\"subagent\",\"agent_id\":\"a1\",\"subagent_type\":\"Explore\","         \
    "\"duration_ms\":3000,\"status\":\"completed\",\n"                                             \
    "  \"requests\":["
#define WE1_AFTER                                                                                  \
    "]},\n"                                                                                        \
    " {\"t\":9,\"type\":\"n\",\"in\":420,\"out\":30,\"hash_ids\":[1,2,3,4,5,6],\"api_time\":2,"    \
    "\"think_time\":4.0}]}\n"
#define INNER(t0, t1)                                                                              \
    "{\"t\":" t0 ",\"type\":\"n\",\"in\":130,\"out\":5,\"hash_ids\":[9,10],\"api_time\":0.5,"      \
    "\"think_time\":0},\n"                                                                         \
    "   {\"t\":" t1 ",\"type\":\"n\",\"in\":200,\"out\":5,\"hash_ids\":[9,10,11],\"api_time\":1,"  \
    "\"think_time\":1.5}"

static const char we1[] = WE1_BEFORE INNER("0", "2") WE1_AFTER;

static void expect_we1(const struct trace *t) {
    struct trace_stats s = counted(t);
    double rate;
    assert_int_equal(s.requests, 5);
    assert_int_equal(s.agents, 1);
    assert_int_equal(s.sum_in, 1250);
    assert_int_equal(s.sum_out, 70);
    assert_int_equal(s.max_in, 420);
    assert_int_equal(s.blocks, 18);
    assert_int_equal(s.hits, 9);
    assert_int_equal(s.hit_tokens, 9 * 64);
    assert_true(trace_hit_rate(&s, &rate) && rate == 0.5);
}

static void WE1_a_session_with_a_subagent(void **state) {
    struct trace t;
    read_text(we1, TRACE_WEKA, &t);
    expect_we1(&t);
    assert_int_equal(t.n_sessions, 1);
    const struct trace_session *s = &t.sessions[0];
    assert_string_equal(s->id, "s1");
    assert_int_equal(s->block_tokens, 64);
    assert_int_equal(s->n_own, 3);
    const struct trace_agent *a = &t.agents[0];
    assert_string_equal(a->id, "a1");
    assert_string_equal(a->type, "Explore");
    assert_int_equal(a->t, 5200 * MS);
    assert_int_equal(a->duration, 3 * S);
    assert_int_equal(a->after, 2);
    assert_int_equal(a->first, 3);
    assert_int_equal(a->n_requests, 2);
    const struct trace_request *r = &t.requests[0];
    assert_int_equal(r->api_time, 1500 * MS);
    assert_int_equal(r->ttft, 400 * MS);
    assert_int_equal(r->think_time, 0);
    assert_true(r->streamed && r->has_out);
    assert_int_equal(t.requests[1].ttft, TRACE_ABSENT);
    assert_int_equal(t.requests[2].n_blocks, 6);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(t.requests[2].hash_ids[i], i + 1);
    assert_int_equal(t.requests[4].agent, 0);
    assert_int_equal(t.requests[4].hash_ids[2], 11);
    uint32_t *order = trace_by_time(&t);
    static const uint32_t want[] = {0, 1, 3, 4, 2};
    assert_memory_equal(order, want, sizeof want);
    free(order);
    trace_free(&t);
}

/* t 100 .. 300 beside an entry at 5.2 is absolute; 0 .. 300 is relative although 300 > 5.2. */
static void inner_times_are_relative_or_absolute_for_a_subagent_as_a_whole(void **state) {
    static const struct {
        const char *text;
        bool relative;
        int64_t first, second;
    } cases[] = {
        {WE1_BEFORE INNER("0", "2") WE1_AFTER, true, 5200 * MS, 7200 * MS},
        {WE1_BEFORE INNER("5.2", "7.2") WE1_AFTER, false, 5200 * MS, 7200 * MS},
        {WE1_BEFORE INNER("5.1999995", "7.2") WE1_AFTER, false, 5199999500, 7200 * MS},
        {WE1_BEFORE INNER("5.199998", "7.2") WE1_AFTER, true, 10399998000, 12400 * MS},
        {WE1_BEFORE INNER("0", "300") WE1_AFTER, true, 5200 * MS, 305200 * MS},
        {WE1_BEFORE INNER("6", "300") WE1_AFTER, false, 6000 * MS, 300000 * MS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace t;
        read_text(cases[i].text, TRACE_WEKA, &t);
        assert_int_equal(t.agents[0].relative, cases[i].relative);
        assert_int_equal(t.requests[3].t, cases[i].first);
        assert_int_equal(t.requests[4].t, cases[i].second);
        trace_free(&t);
    }
}

static void one_session_a_line_or_one_object_over_many_lines(void **state) {
    struct trace t;
    char line[sizeof we1];
    size_t n = 0;
    for (const char *c = we1; *c; c++)
        if (*c != '\n')
            line[n++] = *c;
    line[n] = 0;
    char text[3 * sizeof we1];
    snprintf(text, sizeof text, "\r\n%s\r\n   \n%s", line, line);
    char *second = strstr(strstr(text, "\"s1\",") + 1, "\"s1\",");
    second[2] = '2'; /* the ids differ, the numbers do not: reuse stays inside each */
    read_text(text, TRACE_WEKA, &t);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(counted(&t).hits, 18);
    assert_string_equal(t.sessions[1].id, "s2");
    assert_int_equal(t.sessions[1].first, 5);
    assert_int_equal(t.agents[1].first, 8);
    trace_free(&t);
}

#define GLOBAL(id, t, more)                                                                        \
    "{\"id\":\"" id "\",\"hash_id_scope\":\"global\",\"requests\":[{\"t\":" t                      \
    ",\"type\":\"n\",\"in\":130,\"out\":1,\"hash_ids\":[1,2" more "]}]}\n"

static void numbers_of_global_scope_are_shared_by_the_file(void **state) {
    struct trace t;
    struct trace_stats each[3], total;
    /* the later line asks first */
    read_text(GLOBAL("a", "5", ",3") GLOBAL("b", "0", "") GLOBAL("c", "7", ",3"), TRACE_WEKA, &t);
    assert_int_equal(trace_count(&t, each, &total, NULL), WEIR_OK);
    assert_int_equal(each[0].hits, 2);
    assert_int_equal(each[1].hits, 0);
    assert_int_equal(each[2].hits, 3);
    assert_int_equal(total.hits, 5);
    assert_int_equal(each[2].hit_tokens, 130); /* three blocks are more than the prompt */
    assert_int_equal(t.n_warnings, 0);
    trace_free(&t);
}

static void numbers_for_no_count_of_blocks_are_used_as_far_as_the_prompt_goes(void **state) {
    struct trace t;
    read_text("{\"id\":\"a\",\"requests\":["
              "{\"t\":0,\"type\":\"n\",\"in\":130,\"out\":1,\"hash_ids\":[1,2,3,4,5]},"
              "{\"t\":0,\"type\":\"n\",\"in\":1000,\"out\":1,\"hash_ids\":[1,2]},"
              "{\"t\":0,\"type\":\"n\",\"in\":130,\"out\":1,\"hash_ids\":[1,2]},"
              "{\"t\":0,\"type\":\"n\",\"in\":10,\"out\":1,\"hash_ids\":[]}]}",
              TRACE_WEKA, &t);
    assert_int_equal(t.requests[0].n_blocks, 3);
    assert_int_equal(t.requests[1].n_blocks, 2);
    assert_int_equal(t.requests[2].n_blocks, 2);
    assert_int_equal(t.requests[3].n_blocks, 0);
    assert_int_equal(t.n_warnings, 2);
    assert_non_null(strstr(t.warning, "dir/t:1: field requests[0].hash_ids: 5 numbers for 130"));
    trace_free(&t);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_directory_is_all_its_sessions_by_name(void **state) {
    char dir[] = "/tmp/weir-trace-XXXXXX";
    weir_error err;
    struct trace t;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(trace_read(dir, TRACE_WEKA, NULL, &t, &err), WEIR_BAD_FILE);
    assert_string_equal(err.message, "holds no *.json and no *.jsonl");
    write_file(dir, "b.json", we1);
    write_file(dir, "B.jsonl", GLOBAL("x", "0", "") GLOBAL("y", "1", ""));
    write_file(dir, "c.jsonl", GLOBAL("x", "0", "")); /* the same id, but another file */
    write_file(dir, "notes.txt", "no trace");
    assert_int_equal(trace_read(dir, TRACE_WEKA, NULL, &t, &err), WEIR_OK);
    static const char *const ids[] = {"x", "y", "s1", "x"};
    assert_int_equal(t.n_sessions, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(t.sessions[i].id, ids[i]);
    assert_int_equal(counted(&t).hits, 2 + 9); /* the two files share nothing */
    trace_free(&t);
    assert_int_equal(trace_read(dir, TRACE_MOONCAKE, NULL, &t, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "is a directory"));
    static const char *const files[] = {"b.json", "B.jsonl", "c.jsonl", "notes.txt"};
    for (int i = 0; i < 4; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    assert_int_equal(trace_read(dir, TRACE_WEKA, NULL, &t, &err), WEIR_BAD_FILE);
    assert_string_equal(err.where, dir);
    assert_non_null(strstr(err.message, "cannot be opened: No such file"));
}

/* ------------------------------------------------------------------------------- other formats */

static void WE2_blocks_of_512_tokens(void **state) {
    struct trace t;
    double rate;
    read_text(
        "{\"timestamp\":0,\"input_length\":1300,\"output_length\":12,\"hash_ids\":[0,1,2]}\r\n"
        "{\"timestamp\":1500,\"input_length\":1100,\"output_length\":40,\"hash_ids\":[0,1,7]}\r\n",
        TRACE_MOONCAKE, &t);
    struct trace_stats s = counted(&t);
    assert_int_equal(s.blocks, 6);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.hit_tokens, 1024);
    assert_true(trace_hit_rate(&s, &rate));
    assert_float_equal(rate, 0.333333, 1e-6);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.requests[1].t, 1500 * MS);
    assert_string_equal(t.sessions[1].id, "line 2");
    trace_free(&t);
}

static void only_the_leading_run_of_known_blocks_is_a_hit(void **state) {
    struct trace t;
    struct trace_stats each[3], total;
    read_text("{\"input_length\":1536,\"hash_ids\":[1,2,3]}\n"
              "{\"input_length\":1536,\"hash_ids\":[9,2,3]}\n"
              "{\"input_length\":1536,\"hash_ids\":[1,7,3]}\n",
              TRACE_MOONCAKE, &t);
    assert_int_equal(trace_count(&t, each, &total, NULL), WEIR_OK);
    assert_int_equal(each[1].hits, 0);
    assert_int_equal(each[2].hits, 1);
    assert_int_equal(total.hits, 1);
    trace_free(&t);
}

static void turns_of_a_session_may_stand_apart_and_wait(void **state) {
    struct trace t;
    read_text("{\"timestamp\":7,\"session_id\":\"u\",\"input_length\":513,\"hash_ids\":[4,5]}\n"
              "{\"timestamp\":8.5,\"text_input\":\"hello\",\"output_length\":3}\n"
              "{\"delay\":20,\"session_id\":\"u\",\"input_length\":1,\"output_length\":2}\n"
              "{\"delay\":3,\"session_id\":\"u\",\"input_length\":1}",
              TRACE_MOONCAKE, &t);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.sessions[0].n_requests, 3);
    const struct trace_request *r = t.requests;
    assert_int_equal(r[0].t, 7 * MS);
    assert_int_equal(r[1].t, 27 * MS);
    assert_int_equal(r[2].t, 30 * MS);
    assert_int_equal(r[0].delay, TRACE_ABSENT);
    assert_int_equal(r[2].delay, 3 * MS);
    assert_false(r[0].has_out);
    assert_true(r[1].has_out);
    assert_int_equal(r[1].number, 2);
    assert_string_equal(r[3].text, "hello");
    assert_int_equal(r[3].t, 8500000);
    assert_int_equal(counted(&t).sum_out, 5);
    trace_free(&t);
}

static void block_size_is_the_callers_choice(void **state) {
    const char *line = "{\"input_length\":100,\"hash_ids\":[1,2,3,4]}";
    struct trace_options small = {.block_tokens = 32};
    struct trace t;
    weir_error err;
    assert_int_equal(read_bytes(line, strlen(line), TRACE_MOONCAKE, &small, &t, &err), WEIR_OK);
    assert_int_equal(t.sessions[0].block_tokens, 32);
    trace_free(&t);
    assert_int_equal(read_bytes(line, strlen(line), TRACE_MOONCAKE, NULL, &t, &err), WEIR_BAD_FILE);
    assert_string_equal(err.message, "field hash_ids: has 4 numbers, but 100 tokens in blocks of "
                                     "512 make 1 block");
}

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"

static void azure_times_keep_their_100_ns_and_count_from_the_first_row(void **state) {
    struct trace t;
    double rate;
    read_text(AZURE "2023-12-31 23:59:59.9799601,4808,10\r\n"
                    "2024-01-01 00:00:00.0319600,3180,8\r\n"
                    "2024-03-01 00:00:00.0000000,1,0",
              TRACE_AZURE, &t);
    assert_int_equal(t.n_requests, 3);
    assert_int_equal(t.requests[0].t, 0);
    assert_int_equal(t.requests[1].t, 51999900);
    assert_int_equal(t.requests[2].t, 60 * 86400 * S + 20039900); /* 2024 is a leap year */
    struct trace_stats s = counted(&t);
    assert_int_equal(s.sum_in, 7989);
    assert_int_equal(s.sum_out, 18);
    assert_int_equal(s.blocks, 0);
    assert_false(trace_hit_rate(&s, &rate));
    trace_free(&t);
}

static void conversations_as_text(void **state) {
    struct trace t;
    read_text("{\"session_id\":\"u1\",\"turns\":[{\"text\":\"list files\",\"role\":\"user\"},"
              "{\"texts\":[\"open a.c\",\"\",\"and b.c\"],\"delay\":2000},"
              "{\"text\":\"x\",\"delay\":1}]}\n{\"session_id\":\"u2\",\"turns\":[]}",
              TRACE_MULTI_TURN, &t);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.n_requests, 3);
    assert_string_equal(t.requests[0].text, "list files");
    assert_string_equal(t.requests[0].role, "user");
    assert_null(t.requests[1].role);
    assert_int_equal(t.requests[1].n_texts, 3);
    assert_string_equal(t.requests[1].text, "open a.c");
    assert_string_equal(t.requests[1].text + 9, "");
    assert_string_equal(t.requests[1].text + 10, "and b.c");
    assert_int_equal(t.requests[1].delay, 2 * S);
    assert_int_equal(t.requests[2].t, 2001 * MS);
    trace_free(&t);
    read_text("{\"text\":\"a\",\"timestamp\":5}\n{\"texts\":[\"b\"]}", TRACE_SINGLE_TURN, &t);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.requests[0].t, 5 * MS);
    assert_string_equal(t.requests[1].text, "b");
    trace_free(&t);
}

/* -------------------------------------------------------------------------------------- refusals
 */

#define WEKA(fields) "{\"id\":\"a\",\"requests\":[{" fields "}]}"
#define CALL         "\"t\":0,\"type\":\"n\",\"in\":64,\"out\":1,\"hash_ids\":[1]"
#define SUB(fields)                                                                                \
    "{\"id\":\"a\",\"requests\":[{\"t\":0,\"type\":\"subagent\",\"requests\":[{" fields "}]}]}"
#define GPT(id) "{\"id\":\"" id "\",\"conversations\":[{\"from\":\"human\",\"value\":\"q\"}]}"
#define ROW     "2023-11-16 18:17:03.9799600,4808,10\n"

static const struct {
    enum trace_format format;
    const char *text, *where, *message;
} bad[] = {
    {TRACE_WEKA, "", "dir/t", "holds no request"},
    {TRACE_WEKA, "{\"id\":\"a\",\"requests\":[]}", "dir/t", "holds no request"},
    {TRACE_WEKA, "[1]", "dir/t:1", "is not a JSON object"},
    {TRACE_WEKA, "7", "dir/t:1", "is not a JSON object"},
    {TRACE_WEKA, "{\"id\":1}", "dir/t:1", "field id: must be a string, not 1"},
    {TRACE_WEKA, "{\"requests\":[]}", "dir/t:1", "field id: is missing"},
    {TRACE_WEKA, "{\"id\":\"a\"}", "dir/t:1", "field requests: is missing"},
    {TRACE_WEKA, "{\"id\":\"a\",\"requests\":{}}", "dir/t:1", "field requests: must be an array"},
    {TRACE_WEKA, "{\"id\":\"a\",\"requests\":[3]}", "dir/t:1",
     "field requests[0]: must be an object"},
    {TRACE_WEKA, "{\"id\":\"a\",\"block_size\":0,\"requests\":[]}", "dir/t:1",
     "field block_size: must be an integer from 1"},
    {TRACE_WEKA, "{\"id\":\"a\",\"hash_id_scope\":\"x\",\"requests\":[]}", "dir/t:1",
     "field hash_id_scope: must be \"local\" or \"global\", not \"x\""},
    {TRACE_WEKA, WEKA(CALL) "\n" WEKA(CALL), "dir/t:2",
     "field id: \"a\" stood in this file before"},
    {TRACE_WEKA, WEKA("\"type\":\"n\""), "dir/t:1", "field requests[0].t: is missing"},
    {TRACE_WEKA, WEKA("\"t\":-0.5"), "dir/t:1", "field requests[0].t: must be a number from 0"},
    {TRACE_WEKA, WEKA("\"t\":\"1\""), "dir/t:1", "field requests[0].t: must be a number"},
    {TRACE_WEKA, WEKA("\"t\":1e30"), "dir/t:1", "field requests[0].t: must be a number"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"x\""), "dir/t:1",
     "field requests[0].type: must be \"n\", \"s\" or \"subagent\", not \"x\""},
    {TRACE_WEKA, WEKA("\"t\":0,\"in\":1"), "dir/t:1", "field requests[0].type: is missing"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"out\":1,\"hash_ids\":[]"), "dir/t:1",
     "field requests[0].in: is missing"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":-1,\"out\":1,\"hash_ids\":[]"), "dir/t:1",
     "field requests[0].in: must be an integer from 0 to 9007199254740992, not -1"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":9007199254740993,\"out\":1,\"hash_ids\":[]"),
     "dir/t:1", "field requests[0].in: must be an integer"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1.0,\"out\":1,\"hash_ids\":[]"), "dir/t:1",
     "field requests[0].in: must be an integer"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1,\"hash_ids\":[]"), "dir/t:1",
     "field requests[0].out: is missing"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1,\"out\":true,\"hash_ids\":[]"), "dir/t:1",
     "field requests[0].out: must be an integer"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1,\"out\":1"), "dir/t:1",
     "field requests[0].hash_ids: is missing"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":7"), "dir/t:1",
     "field requests[0].hash_ids: must be an array of integers, not 7"},
    {TRACE_WEKA, WEKA("\"t\":0,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[1,-2]"), "dir/t:1",
     "field requests[0].hash_ids[1]: must be an integer from 0 to 9007199254740992, not -2"},
    {TRACE_WEKA, WEKA(CALL ",\"think_time\":-1"), "dir/t:1",
     "field requests[0].think_time: must be a number"},
    {TRACE_WEKA, WEKA(CALL ",\"api_time\":\"\""), "dir/t:1",
     "field requests[0].api_time: must be a number"},
    {TRACE_WEKA,
     "{\"id\":\"a\",\"requests\":[{\"t\":3,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[]},"
     "{" CALL "}]}",
     "dir/t:1", "field requests[1].t: must not be below that of the entry before"},
    {TRACE_WEKA, "{\"id\":\"a\",\"requests\":[{\"t\":0,\"type\":\"subagent\"}]}", "dir/t:1",
     "field requests[0].requests: is missing"},
    {TRACE_WEKA, SUB("\"t\":0,\"type\":\"subagent\",\"requests\":[]"), "dir/t:1",
     "field requests[0].requests[0].type: must be \"n\" or \"s\", not \"subagent\""},
    {TRACE_WEKA, SUB("\"t\":0,\"type\":\"n\",\"in\":[],\"out\":1"), "dir/t:1",
     "field requests[0].requests[0].in: must be an integer"},
    {TRACE_WEKA, SUB("\"type\":\"n\""), "dir/t:1", "field requests[0].requests[0].t: is missing"},
    {TRACE_WEKA, WEKA(CALL) "\n{\"id\":\"b\",\"requ", "dir/t:2",
     "ends in the middle, is it cut off?"},
    {TRACE_WEKA, "{\"id\":\"b\",\"requ", "dir/t:1", "ends in the middle, is it cut off?"},
    {TRACE_WEKA, "\x1f\x8b\x08", "dir/t:1", "is compressed with gzip: unpack it first"},
    {TRACE_SHAREGPT, "\x28\xb5\x2f\xfd", "dir/t:1", "is compressed with zstd"},
    {TRACE_AZURE,
     "\xef\xbb"
     "x",
     "dir/t:1", "begins with byte 0xef"},
    {TRACE_WEKA, "{\n\"id\":\"b\",\n\"requests\":[}", "dir/t:3", "is not a JSON object: column 13"},
    {TRACE_WEKA, WEKA(CALL) " x", "dir/t:1", "is not a JSON object"},
    {TRACE_WEKA, "\n\n{\"id\":\"a\",\"id\":\"b\"}", "dir/t:3", "duplicate object key"},
    {TRACE_WEKA, "{\"id\":\"\xff\"}", "dir/t:1", "is not a JSON object"},
    {TRACE_MOONCAKE, "{}", "dir/t:1", "field input_length: is missing, and so is text_input"},
    {TRACE_MOONCAKE, "{\"input_length\":0}", "dir/t:1",
     "field input_length: must be an integer from 1"},
    {TRACE_MOONCAKE, "{\"input_length\":1,\"text_input\":\"a\"}", "dir/t:1",
     "field text_input: must not stand beside input_length"},
    {TRACE_MOONCAKE, "{\"input_length\":1,\"timestamp\":1,\"delay\":1}", "dir/t:1",
     "field delay: must not stand beside timestamp"},
    {TRACE_MOONCAKE, "{\"input_length\":1,\"timestamp\":-1}", "dir/t:1",
     "field timestamp: must be"},
    {TRACE_MOONCAKE, "{\"input_length\":1}\n{\"input_length\":1,\"output_length\":\"1\"}",
     "dir/t:2", "field output_length: must be an integer"},
    {TRACE_MOONCAKE, "{\"input_length\":513,\"hash_ids\":[1]}", "dir/t:1",
     "field hash_ids: has 1 number, but 513 tokens in blocks of 512 make 2 blocks"},
    {TRACE_MOONCAKE, "{\"input_length\":1,\"hash_ids\":[]}", "dir/t:1", "field hash_ids: has 0"},
    {TRACE_MOONCAKE, "{\"text_input\":\"a\",\"hash_ids\":[1]}", "dir/t:1",
     "field hash_ids: needs input_length"},
    {TRACE_MOONCAKE, "{\"input_length\":1,\"session_id\":5}", "dir/t:1",
     "field session_id: must be a string, not 5"},
    {TRACE_MOONCAKE, "{\n\"input_length\":1}", "dir/t:1", "is not a JSON object"},
    {TRACE_AZURE, ROW, "dir/t:1", "field header: must be TIMESTAMP,ContextTokens,GeneratedTokens"},
    {TRACE_AZURE, AZURE, "dir/t", "holds no request"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600,4808", "dir/t:2",
     "has 2 fields, but the header names 3"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600", "dir/t:2", "has 1 field, but the header"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600,1,2,3", "dir/t:2", "has 4 fields"},
    {TRACE_AZURE, AZURE ROW "2023-11-16 18:17:03.979960,1,2", "dir/t:3",
     "field TIMESTAMP: must be a time"},
    {TRACE_AZURE, AZURE "2023-02-29 18:17:03.9799600,1,2", "dir/t:2", "field TIMESTAMP: must be"},
    {TRACE_AZURE, AZURE "2023-11-16T18:17:03.9799600,1,2", "dir/t:2", "field TIMESTAMP: must be"},
    {TRACE_AZURE, AZURE "2023-11-16 24:17:03.9799600,1,2", "dir/t:2", "field TIMESTAMP: must be"},
    {TRACE_AZURE, AZURE ROW "2023-11-16 18:17:03.9799599,1,2", "dir/t:3",
     "field TIMESTAMP: must be at or after that of the first row"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600,-1,2", "dir/t:2",
     "field ContextTokens: must be an integer from 0 to 2^53, not '-1'"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600,,2", "dir/t:2", "field ContextTokens: must"},
    {TRACE_AZURE, AZURE "2023-11-16 18:17:03.9799600,1,99999999999999999999", "dir/t:2",
     "field GeneratedTokens: must be"},
    {TRACE_SINGLE_TURN, "{\"delay\":1}", "dir/t:1", "field text: is missing, and so is texts"},
    {TRACE_SINGLE_TURN, "{\"text\":\"a\",\"texts\":[]}", "dir/t:1",
     "field texts: must not stand beside text"},
    {TRACE_SINGLE_TURN, "{\"texts\":[]}", "dir/t:1", "field texts: must be an array of strings"},
    {TRACE_SINGLE_TURN, "{\"texts\":[\"a\",2]}", "dir/t:1",
     "field texts[1]: must be a string, not 2"},
    {TRACE_SINGLE_TURN, "{\"text\":\"a\",\"role\":1}", "dir/t:1", "field role: must be a string"},
    {TRACE_SINGLE_TURN, "{\"text\":\"a\",\"delay\":1,\"timestamp\":2}", "dir/t:1",
     "field delay: must not stand beside timestamp"},
    {TRACE_SHAREGPT, "{\"id\":\"a\"}", "dir/t:1", "field conversations: is missing"},
    {TRACE_SHAREGPT, "[\n" GPT("a") ",\n", "dir/t:3", "ends within its array"},
    {TRACE_SHAREGPT, "[" GPT("a") "\n", "dir/t:2", "ends within its array"},
    {TRACE_SHAREGPT, "[\n\n" GPT("a") ";", "dir/t:3", "must go on with a comma or the end"},
    {TRACE_SHAREGPT, "[" GPT("a") ",\n{\"id\":\n]", "dir/t:3", "is not a JSON object: column 1"},
    {TRACE_SHAREGPT, "[" GPT("a") ",\n\n7]", "dir/t:3", "is not a JSON object"},
    {TRACE_SHAREGPT, "[" GPT("a") "]\n]", "dir/t:2", "has something behind its array"},
    {TRACE_SHAREGPT, GPT("a") "\n{\"conversations\":[1]}", "dir/t:2",
     "field conversations[0]: must be an object"},
    {TRACE_SHAREGPT, "[]", "dir/t", "holds no request"},
    {TRACE_SHAREGPT, "[{\"id\":\"a\"}]", "dir/t:1", "field [0].conversations: is missing"},
    {TRACE_SHAREGPT,
     "[{\"id\":\"a\",\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"elf\","
     "\"value\":\"x\"}]}]",
     "dir/t:1",
     "field [0].conversations[1].from: must be \"human\", \"gpt\" or \"system\", not \"elf\""},
    {TRACE_SHAREGPT,
     "[{\"id\":\"a\",\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\"}]}]",
     "dir/t:1", "field [0].conversations[1].value: is missing"},
    {TRACE_MULTI_TURN, "{\"turns\":[]}", "dir/t:1", "field session_id: is missing"},
    {TRACE_MULTI_TURN, "{\"session_id\":\"a\"}", "dir/t:1", "field turns: is missing"},
    {TRACE_MULTI_TURN, "{\"session_id\":\"a\",\"turns\":[1]}", "dir/t:1",
     "field turns[0]: must be an object"},
    {TRACE_MULTI_TURN, "{\"session_id\":\"a\",\"turns\":[{\"text\":\"a\"},{\"text\":2}]}",
     "dir/t:1", "field turns[1].text: must be a string, not 2"},
    {TRACE_MULTI_TURN, "{\"session_id\":\"a\",\"turns\":[]}\n{\"session_id\":\"a\",\"turns\":[]}",
     "dir/t:2", "field session_id: \"a\" stood in this file before"},
};

static void what_breaks_a_format_is_refused_with_file_line_and_field(void **state) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace t;
        weir_error err = {0};
        const char *text = bad[i].text[0] ? bad[i].text : "\n";
        weir_status s = read_bytes(text, strlen(text), bad[i].format, NULL, &t, &err);
        if (s != WEIR_BAD_FILE || strcmp(err.where, bad[i].where) ||
            !strstr(err.message, bad[i].message))
            fail_msg("case %zu, %s: %s: '%s', wanted %s: '%s'", i, bad[i].text, err.where,
                     err.message, bad[i].where, bad[i].message);
        assert_null(t.requests);
        assert_int_equal(t.n_requests, 0);
        trace_free(&t); /* what failed is empty and may be freed */
    }
}

static void a_byte_order_mark_is_stepped_over(void **state) {
    static const struct {
        enum trace_format format;
        const char *text;
    } all[] = {{TRACE_MOONCAKE, "{\"input_length\":7}\n"},
               {TRACE_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 "
                             "00:00:00.0000000,7,1\n"},
               {TRACE_WEKA, we1},
               {TRACE_SHAREGPT, "[{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"}]}]"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[4096];
        struct trace plain, marked;
        snprintf(text, sizeof text, "\xef\xbb\xbf%s", all[i].text);
        read_text(all[i].text, all[i].format, &plain);
        read_text(text, all[i].format, &marked);
        assert_true(plain.n_requests > 0);
        assert_int_equal(plain.n_requests, marked.n_requests);
        assert_int_equal(plain.requests[0].in, marked.requests[0].in);
        trace_free(&plain);
        trace_free(&marked);
    }
}

static void times_that_go_backwards_and_empty_sessions_are_warned_of(void **state) {
    static const struct {
        enum trace_format format;
        const char *text, *warning; /* NULL: none */
    } all[] = {
        {TRACE_MOONCAKE,
         "{\"input_length\":7,\"timestamp\":5}\n{\"input_length\":7,\"timestamp\":5}", NULL},
        {TRACE_MOONCAKE,
         "{\"input_length\":7,\"timestamp\":5}\n{\"input_length\":7,\"timestamp\":3}",
         "dir/t:2: field timestamp: lies 0.002 s before a line above"},
        {TRACE_AZURE,
         "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:01.0000000,7,1\n"
         "2024-01-01 00:00:03.0000000,7,1\n2024-01-01 00:00:02.0000000,7,1\n",
         "dir/t:4: field TIMESTAMP: lies 1.000 s before"},
        {TRACE_WEKA, WE1_BEFORE INNER("0", "2") WE1_AFTER "{\"id\":\"e\",\"requests\":[]}",
         "field requests: is empty"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct trace t;
        char flat[4096], *to = flat;
        /* A session a line. */
        for (const char *c = all[i].text; *c; c++)
            if (all[i].format != TRACE_WEKA || *c != '\n' || c[1] == '{')
                *to++ = *c;
        *to = 0;
        read_text(flat, all[i].format, &t);
        assert_int_equal(t.n_warnings, all[i].warning ? 1 : 0);
        if (all[i].warning && !strstr(t.warning, all[i].warning))
            fail_msg("case %zu: %s", i, t.warning);
        trace_free(&t);
    }
}

/* Any cut but one behind the last brace. */
static void a_session_cut_anywhere_is_refused(void **state) {
    for (size_t n = 1; n < sizeof we1 - 2; n++) {
        struct trace t;
        weir_error err = {0};
        assert_int_equal(read_bytes(we1, n, TRACE_WEKA, NULL, &t, &err), WEIR_BAD_FILE);
        assert_true(!strncmp(err.where, "dir/t:", 6));
    }
}

/* Later turns of a recorded conversation contain the recorded answers, so each turn brings its own
 * along; what the model said before anyone asked belongs to nobody. */
static void sharegpt_turns_keep_their_recorded_answers(void **state) {
    struct trace t;
    read_text("[{\"id\":\"a\",\"conversations\":[\n"
              " {\"from\":\"gpt\",\"value\":\"early\"},{\"from\":\"human\",\"value\":\"q1\"},\n"
              " {\"from\":\"gpt\",\"value\":\"r1\"},{\"from\":\"human\",\"value\":\"q2\"},\n"
              " {\"from\":\"human\",\"value\":\"q3\"},{\"from\":\"gpt\",\"value\":\"r3\"}]},\n"
              " {\"id\":\"b\",\"conversations\":[{\"from\":\"gpt\",\"value\":\"alone\"}]},\n"
              " {\"id\":\"a\",\"conversations\":[{\"from\":\"system\",\"value\":\"\u00fcber\"},\n"
              "  {\"from\":\"user\",\"value\":\"q4\"}]}]",
              TRACE_SHAREGPT, &t);
    static const char *const texts[] = {"q1", "q2", "q3", "q4"};
    static const char *const answers[] = {"r1", NULL, "r3", NULL};
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.n_requests, 4);
    assert_int_equal(t.n_warnings, 3); /* two answers to nothing, one without a question */
    assert_string_equal(t.sessions[0].id, "a");
    assert_string_equal(t.sessions[1].id, "a"); /* published files repeat ids */
    assert_int_equal(t.sessions[0].n_own, 3);
    assert_ptr_equal(trace_first_turn(&t, &t.requests[2]), &t.requests[0]);
    assert_ptr_equal(trace_first_turn(&t, &t.requests[3]), &t.requests[3]);
    assert_string_equal(t.requests[3].system, "\u00fcber");
    assert_null(t.requests[2].system);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(t.requests[i].text, texts[i]);
        assert_string_equal(t.requests[i].role, "user");
        assert_false(t.requests[i].has_out);
        if (answers[i])
            assert_string_equal(t.requests[i].answer, answers[i]);
        else
            assert_null(t.requests[i].answer);
    }
    trace_free(&t);
}

static void a_long_path_keeps_its_line_in_messages(void **state) {
    char name[600];
    memset(name, 'd', sizeof name);
    strcpy(name + sizeof name - 8, "/t.json");
    FILE *in = fmemopen((void *)(uintptr_t) "\n{}", 3, "rb");
    struct trace t;
    weir_error err;
    assert_int_equal(trace_read_stream(in, name, TRACE_WEKA, NULL, &t, &err), WEIR_BAD_FILE);
    fclose(in);
    assert_string_equal(err.where + strlen(err.where) - 9, "/t.json:2");
}

static void format_names_are_checked(void **state) {
    enum trace_format f;
    weir_error err;
    for (int i = 0; i < TRACE_FORMATS; i++) {
        assert_int_equal(trace_format_parse(trace_format_name((enum trace_format)i), &f, NULL), 0);
        assert_int_equal((int)f, i);
    }
    assert_int_equal(trace_format_parse("wek", &f, &err), WEIR_BAD_VALUE);
    assert_string_equal(
        err.message,
        "'wek' is none of weka, mooncake, azure, single_turn, multi_turn and sharegpt");
}

/* ------------------------------------------------------------------------------------- token ids
 */

static void prompt(const struct trace *t, uint32_t request, uint64_t key, int32_t *out) {
    struct trace_play play = {key, 100, 5000};
    trace_prompt_ids(t, &t->requests[request], &play, 0, t->requests[request].in, out);
}

static void equal_blocks_have_equal_ids_and_tails_are_ones_own(void **state) {
    struct trace t;
    int32_t a[300], b[420], again[300];
    read_text(we1, TRACE_WEKA, &t);
    prompt(&t, 1, 7, a);
    prompt(&t, 2, 7, b);
    prompt(&t, 1, 7, again);
    assert_memory_equal(a, again, sizeof a);
    assert_memory_equal(a, b, 4 * 64 * sizeof *a);
    assert_memory_not_equal(a + 256, b + 256, 44 * sizeof *a); /* its tail, the other's block 5 */
    assert_memory_not_equal(a, a + 64, 64 * sizeof *a);
    for (int i = 0; i < 420; i++)
        assert_true(b[i] >= 100 && b[i] < 5000);
    /* the tail of one request is not that of another behind the same blocks */
    int32_t c[200], d[200];
    t.requests[3].in = 200;
    t.requests[3].n_blocks = t.requests[4].n_blocks = 2;
    prompt(&t, 3, 7, c);
    prompt(&t, 4, 7, d);
    assert_memory_equal(c, d, 128 * sizeof *c);
    for (int i = 0; i < 8; i++)
        assert_memory_not_equal(c + 128 + 8 * i, d + 128 + 8 * i, 8 * sizeof *c);
    trace_free(&t);
}

static void two_plays_share_no_block(void **state) {
    struct trace t;
    int32_t a[420], b[420];
    read_text(we1, TRACE_WEKA, &t);
    prompt(&t, 2, trace_play_key(42, 0), a);
    prompt(&t, 2, trace_play_key(42, 1), b);
    for (int i = 0; i + 8 <= 420; i += 8)
        assert_memory_not_equal(a + i, b + i, 8 * sizeof *a);
    assert_true(trace_play_key(42, 0) != trace_play_key(43, 0));
    trace_free(&t);
}

static void any_piece_of_a_prompt_equals_the_same_piece_of_the_whole(void **state) {
    struct trace t;
    int32_t whole[1300], piece[1300];
    struct trace_play play = {99, 0, 163840};
    read_text("{\"input_length\":1300,\"hash_ids\":[0,1,2]}", TRACE_MOONCAKE, &t);
    trace_prompt_ids(&t, &t.requests[0], &play, 0, 1300, whole);
    for (uint64_t from = 0; from < 1300; from += 101)
        for (uint64_t n = 0; n <= 1300 - from; n += 97) {
            trace_prompt_ids(&t, &t.requests[0], &play, from, n, piece);
            assert_memory_equal(piece, whole + from, n * sizeof *whole);
        }
    trace_free(&t);
}

/* Shared prefixes of scaled prompts end where the scaled blocks do, at every scale. */
static void scaled_prompts_share_their_prefixes_in_proportion(void **state) {
    static const double scales[] = {1, 0.5, 1.0 / 3, 0.1, 0.013, 0.001, 1.7, 3};
    struct trace t;
    int32_t a[1300], b[1300], piece[1300];
    read_text(we1, TRACE_WEKA, &t);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        double s = scales[i];
        struct trace_play play = {7, 100, 1000000000, s};
        const struct trace_request *x = &t.requests[1], *y = &t.requests[2];
        uint64_t na = trace_scaled_in(x, s), nb = trace_scaled_in(y, s);
        assert_int_equal(na, (uint64_t)(300 * s) > 1 ? (uint64_t)(300 * s) : 1);
        trace_prompt_ids(&t, x, &play, 0, na, a);
        trace_prompt_ids(&t, y, &play, 0, nb, b);
        uint64_t same = 0;
        while (same < na && same < nb && a[same] == b[same])
            same++;
        assert_int_equal(same, (uint64_t)(4 * 64 * s)); /* four common blocks */
        for (uint64_t from = 0; from < nb; from += 1 + from / 3) {
            uint64_t n = nb - from < 50 ? nb - from : 50;
            trace_prompt_ids(&t, y, &play, from, n, piece);
            assert_memory_equal(piece, b + from, n * sizeof *b);
        }
    }
    /* 0 is 1, and 1 is what there was without a scale */
    struct trace_play plain = {7, 100, 5000, 0}, one = {7, 100, 5000, 1};
    trace_prompt_ids(&t, &t.requests[2], &plain, 0, 420, a);
    trace_prompt_ids(&t, &t.requests[2], &one, 0, 420, b);
    assert_memory_equal(a, b, 420 * sizeof *a);
    assert_int_equal(trace_scaled_in(&t.requests[2], 0), 420);
    trace_free(&t);
}

static void scaled_lengths_are_at_least_one(void **state) {
    struct trace_request r = {.in = 1000, .out = 15};
    assert_int_equal(trace_scaled_in(&r, 0.0157), 15);
    assert_int_equal(trace_scaled_out(&r, 0.1), 2); /* 1.5 to the nearest */
    assert_int_equal(trace_scaled_out(&r, 0.09), 1);
    assert_int_equal(trace_scaled_out(&r, 0.0001), 1);
    assert_int_equal(trace_scaled_in(&r, 0.0001), 1);
    assert_int_equal(trace_scaled_out(&r, 0), 15);
    r.out = r.in = 0;
    assert_int_equal(trace_scaled_out(&r, 1), 1);
    assert_int_equal(trace_scaled_in(&r, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(WE1_a_session_with_a_subagent),
        cmocka_unit_test(inner_times_are_relative_or_absolute_for_a_subagent_as_a_whole),
        cmocka_unit_test(one_session_a_line_or_one_object_over_many_lines),
        cmocka_unit_test(numbers_of_global_scope_are_shared_by_the_file),
        cmocka_unit_test(numbers_for_no_count_of_blocks_are_used_as_far_as_the_prompt_goes),
        cmocka_unit_test(a_directory_is_all_its_sessions_by_name),
        cmocka_unit_test(WE2_blocks_of_512_tokens),
        cmocka_unit_test(only_the_leading_run_of_known_blocks_is_a_hit),
        cmocka_unit_test(turns_of_a_session_may_stand_apart_and_wait),
        cmocka_unit_test(block_size_is_the_callers_choice),
        cmocka_unit_test(azure_times_keep_their_100_ns_and_count_from_the_first_row),
        cmocka_unit_test(conversations_as_text),
        cmocka_unit_test(what_breaks_a_format_is_refused_with_file_line_and_field),
        cmocka_unit_test(a_byte_order_mark_is_stepped_over),
        cmocka_unit_test(times_that_go_backwards_and_empty_sessions_are_warned_of),
        cmocka_unit_test(a_session_cut_anywhere_is_refused),
        cmocka_unit_test(a_long_path_keeps_its_line_in_messages),
        cmocka_unit_test(format_names_are_checked),
        cmocka_unit_test(sharegpt_turns_keep_their_recorded_answers),
        cmocka_unit_test(equal_blocks_have_equal_ids_and_tails_are_ones_own),
        cmocka_unit_test(two_plays_share_no_block),
        cmocka_unit_test(any_piece_of_a_prompt_equals_the_same_piece_of_the_whole),
        cmocka_unit_test(scaled_prompts_share_their_prefixes_in_proportion),
        cmocka_unit_test(scaled_lengths_are_at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
