/* `weir bench inspect`: the counts of a trace as JSON and as a table, and what is refused. */
#include "tests/test.h"

#include "tests/cli/program.h"

#include <sys/stat.h>

static void write_trace(const char *name, const char *text) {
    write_scratch(name, text, strlen(text));
}

#define WE1                                                                                        \
    "{\"id\":\"s1\",\"block_size\":64,\"hash_id_scope\":\"local\",\"requests\":["                  \
    "{\"t\":0,\"type\":\"s\",\"in\":200,\"out\":20,\"hash_ids\":[1,2,3],\"api_time\":1.5,"         \
    "\"ttft\":0.4,\"think_time\":0},"                                                              \
    "{\"t\":4,\"type\":\"n\",\"in\":300,\"out\":10,\"hash_ids\":[1,2,3,4],\"api_time\":1.0,"       \
    "\"think_time\":2.5},"                                                                         \
    "{\"t\":5.2,\"type\":\"subagent\",\"agent_id\":\"a1\",\"requests\":["                          \
    "{\"t\":0,\"type\":\"n\",\"in\":130,\"out\":5,\"hash_ids\":[9,10],\"api_time\":0.5,"           \
    "\"think_time\":0},{\"t\":2,\"type\":\"n\",\"in\":200,\"out\":5,\"hash_ids\":[9,10,11],"       \
    "\"api_time\":1,\"think_time\":1.5}]},"                                                        \
    "{\"t\":9,\"type\":\"n\",\"in\":420,\"out\":30,\"hash_ids\":[1,2,3,4,5,6],\"api_time\":2,"     \
    "\"think_time\":4.0}]}\n"
/* Nothing stands before its first agent; the second one's calls overlap. */
#define ODD                                                                                        \
    "{\"id\":\"odd\",\"requests\":[{\"t\":0,\"type\":\"subagent\",\"requests\":[{\"t\":0,"         \
    "\"type\":\"n\",\"in\":64,\"out\":1,\"hash_ids\":[1]}]},"                                      \
    "{\"t\":1,\"type\":\"n\",\"in\":64,\"out\":1,\"hash_ids\":[1,2,3],\"api_time\":1},"            \
    "{\"t\":2,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[],\"think_time\":1.5},"              \
    "{\"t\":2,\"type\":\"subagent\",\"requests\":["                                                \
    "{\"t\":0,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[],\"api_time\":5},"                  \
    "{\"t\":1,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[],\"api_time\":5}]}]}\n"

static int64_t integer(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        fail_msg("%s is no integer", key);
    return json_integer_value(v);
}

static double real(const json_t *o, const char *object, const char *key) {
    const json_t *v = json_object_get(object ? json_object_get(o, object) : o, key);
    if (!json_is_number(v))
        fail_msg("%s is no number", key);
    return json_number_value(v);
}

static void expect_we1(const json_t *o) {
    assert_int_equal(integer(o, "requests"), 5);
    assert_int_equal(integer(o, "sub_agents"), 1);
    assert_int_equal(integer(o, "sub_agent_requests"), 2);
    assert_int_equal(integer(o, "sum_input"), 1250);
    assert_int_equal(integer(o, "sum_output"), 70);
    assert_int_equal(integer(o, "max_input"), 420);
    assert_int_equal(integer(o, "blocks"), 18);
    assert_int_equal(integer(o, "hits"), 9);
    assert_int_equal(integer(o, "hit_tokens"), 576);
    assert_float_equal(real(o, NULL, "hit_rate"), 0.5, 1e-9);
    assert_float_equal(real(o, NULL, "hit_token_rate"), 576 / 1250.0, 1e-9);
    assert_int_equal(integer(o, "block_tokens"), 64);
    assert_int_equal(integer(o, "dropped_sub_agents"), 0);
}

static void WE1_as_json(void **state) {
    write_trace("we1.jsonl", WE1);
    json_t *o = run_json(NULL, "bench inspect --trace %/we1.jsonl --format weka --json");
    expect_we1(o);
    assert_int_equal(integer(o, "sessions"), 1);
    assert_string_equal(json_string_value(json_object_get(o, "format")), "weka");
    assert_non_null(strstr(json_string_value(json_object_get(o, "trace")), "/we1.jsonl"));
    assert_null(json_object_get(o, "per_session"));
    assert_float_equal(real(o, "input_tokens", "mean"), 250, 1e-9);
    assert_float_equal(real(o, "input_tokens", "p50"), 200, 1e-9);
    assert_float_equal(real(o, "input_tokens", "max"), 420, 1e-9);
    assert_float_equal(real(o, "output_tokens", "p90"), 26, 1e-9);
    assert_int_equal(real(o, "wait_seconds", "count"), 4); /* 2.5, 4.0; 0.2, 1.5 of the agent */
    assert_float_equal(real(o, "wait_seconds", "mean"), 8.2 / 4, 1e-9);
    assert_float_equal(real(o, "session_seconds", "max"), 9, 1e-9);
    assert_float_equal(real(o, "requests_per_session", "max"), 5, 1e-9);
    assert_int_equal(integer(o, "odd_waits"), 0);
    assert_true(json_is_null(json_object_get(o, "first_warning")));
    json_decref(o);
}

static void each_session_has_its_own_counts(void **state) {
    write_trace("two.jsonl", WE1 ODD);
    json_t *o = run_json(NULL, "bench inspect --trace %/two.jsonl --format weka --json --sessions");
    assert_int_equal(integer(o, "sessions"), 2);
    assert_int_equal(integer(o, "dropped_sub_agents"), 1);
    assert_int_equal(integer(o, "dropped_requests"), 1);
    assert_int_equal(integer(o, "parallel_chains"), 1);
    assert_int_equal(integer(o, "odd_waits"), 1); /* the calls touch, think_time says 1.5 s */
    assert_int_equal(integer(o, "warnings"), 1);
    assert_non_null(strstr(json_string_value(json_object_get(o, "first_warning")),
                           "two.jsonl:2: field requests[1].hash_ids: 3 numbers for 64 tokens"));
    const json_t *list = json_object_get(o, "per_session");
    assert_int_equal(json_array_size(list), 2);
    expect_we1(json_array_get(list, 0));
    const json_t *odd = json_array_get(list, 1);
    assert_string_equal(json_string_value(json_object_get(odd, "id")), "odd");
    assert_int_equal(integer(odd, "requests"), 5);
    assert_int_equal(integer(odd, "dropped_sub_agents"), 1);
    assert_int_equal(integer(odd, "hits"), 1);
    json_decref(o);
}

static void what_a_trace_does_not_tell_is_null(void **state) {
    static const char *const absent[] = {"sum_input",  "sum_output",     "max_input",
                                         "blocks",     "hits",           "hit_rate",
                                         "hit_tokens", "hit_token_rate", "block_tokens"};
    write_trace("chat.json", "[{\"id\":\"a\",\"conversations\":[{\"from\":\"human\",\"value\":"
                             "\"four\"},{\"from\":\"gpt\",\"value\":\"answer\"},"
                             "{\"from\":\"human\",\"value\":\"five!\"}]}]");
    json_t *o = run_json(NULL, "bench inspect --trace %/chat.json --format sharegpt --json");
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_true(json_is_null(json_object_get(o, absent[i])));
    assert_int_equal(integer(o, "requests"), 2);
    assert_int_equal(integer(o, "texts"), 2);
    assert_int_equal(integer(o, "text_bytes"), 9);
    assert_true(json_is_null(json_object_get(json_object_get(o, "input_tokens"), "mean")));
    json_decref(o);
    write_trace("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                         "2023-12-31 23:59:59.0000000,4808,10\r\n"
                         "2024-01-01 00:00:01.5000000,3180,8\r\n");
    o = run_json(NULL, "bench inspect --trace %/a.csv --format azure --json");
    assert_int_equal(integer(o, "sum_input"), 7988);
    assert_true(json_is_null(json_object_get(o, "hit_rate")));
    assert_float_equal(real(o, NULL, "span_seconds"), 2.5, 1e-9);
    json_decref(o);
}

static void WE2_blocks_are_of_the_size_that_is_given(void **state) {
    write_trace(
        "m.jsonl",
        "{\"timestamp\":0,\"input_length\":1300,\"output_length\":12,\"hash_ids\":[0,1,2]}\n"
        "{\"timestamp\":1500,\"input_length\":1100,\"output_length\":40,\"hash_ids\":"
        "[0,1,7]}\n");
    json_t *o = run_json(NULL, "bench inspect --trace %/m.jsonl --format mooncake --json");
    assert_int_equal(integer(o, "blocks"), 6);
    assert_int_equal(integer(o, "hits"), 2);
    assert_int_equal(integer(o, "hit_tokens"), 1024);
    assert_float_equal(real(o, NULL, "hit_rate"), 1.0 / 3, 1e-6);
    json_decref(o);
    fails(1, "bench inspect --trace %/m.jsonl --format mooncake --block-size 64",
          "m.jsonl:1: field hash_ids: has 3 numbers, but 1300 tokens in blocks of 64");
}

static void the_table_says_the_same(void **state) {
    write_trace("two.jsonl", WE1 ODD);
    const struct outcome *r =
        run(NULL, "bench inspect --trace %/two.jsonl --format weka --sessions");
    assert_int_equal(r->status, 0);
    static const char *const parts[] = {
        "requests                   10  5 of them by 3 sub-agents\n",
        "dropped                     1  sub-agent with 1 request:",
        "input tokens            1,381  largest 420\n",
        "hits                       10  0.500000 of the blocks",
        "s1 ",
        "odd ",
        "1 odd place accepted, first: "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(r->out, parts[i]))
            fail_msg("'%s' is not in:\n%s", parts[i], r->out);
    write_trace("evil.jsonl", "{\"id\":\"\\u001b[31mred\",\"requests\":[{\"t\":0,\"type\":\"n\","
                              "\"in\":1,\"out\":1,\"hash_ids\":[]}]}");
    r = run(NULL, "bench inspect --trace %/evil.jsonl --format weka --sessions");
    assert_non_null(strstr(r->out, "?[31mred"));
    assert_null(strchr(r->out, '\033'));
}

static void faults_name_file_line_and_field(void **state) {
    write_trace("bad.jsonl", WE1 "{\"id\":\"b\",\"requests\":[{\"t\":0,\"type\":\"n\",\"in\":-1,"
                                 "\"out\":1,\"hash_ids\":[]}]}\n");
    fails(
        1, "bench inspect --trace %/bad.jsonl --format weka",
        "bad.jsonl:2: field requests[0].in: must be an integer from 0 to 9007199254740992, not -1");
    fails(1, "bench inspect --trace %/none.jsonl --format weka --json", "cannot be opened");
    /* A file within a directory of traces that is a directory itself. */
    mkdir(scratch("tdir"), 0777);
    mkdir(scratch("tdir/c.jsonl"), 0777);
    fails(1, "bench inspect --trace %/tdir --format weka",
          "c.jsonl: cannot be read: Is a directory");
    write_trace("nul.jsonl", "{\"id\":\"a\\u0000b\",\"requests\":[]}\n");
    fails(1, "bench inspect --trace %/nul.jsonl --format weka", "a text holds \\u0000");
    fails(2, "bench inspect --trace %/bad.jsonl --format wek", "format");
    fails(2, "bench inspect --trace %/bad.jsonl", "format");
    fails(2, "bench inspect --format weka", "trace");
}

/* 1500 x 2^53 wraps 64 bits. */
static void a_sum_that_64_bits_do_not_hold_is_refused(void **state) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (int i = 0; i < 1500; i++)
        fprintf(f,
                "{\"id\":\"s%d\",\"requests\":[{\"t\":0,\"type\":\"n\","
                "\"in\":9007199254740992,\"out\":1,\"hash_ids\":[]}]}\n",
                i);
    fclose(f);
    write_scratch("sum.jsonl", text, n);
    free(text);
    fails(1, "bench inspect --trace %/sum.jsonl --format weka",
          "sum.jsonl:513: the tokens of all calls up to here add up to more than 2^62");
}

static void a_workload_that_no_memory_holds_is_refused_at_once(void **state) {
    static const char rest[] = " --url http://127.0.0.1:1 --no-history --out %/none";
    char line[256];
    snprintf(line, sizeof line, "bench replay --random-input-len 99999999%s", rest);
    fails(2, line, "--random-input-len");
    snprintf(line, sizeof line, "bench replay --random-input-len 8 --random-prefix-len 33554433%s",
             rest);
    fails(2, line, "--random-prefix-len");
    snprintf(line, sizeof line, "bench replay --random-input-len 33554432 --num-prompts 1000%s",
             rest);
    fails(2, line, "--num-prompts: 1000 prompts of 33554432 tokens each come to more");
    struct stat st;
    assert_int_not_equal(stat(scratch("none"), &st), 0);
}

/* A result of an hour would be lost otherwise; so it is refused before the server is asked. */
static void an_output_that_cannot_be_made_is_refused_before_the_run(void **state) {
    write_trace("file", "x");
    fails(1, "bench replay --random-input-len 1 --url http://127.0.0.1:1 --out %/file",
          "file: is not a directory");
    fails(1, "bench replay --random-input-len 1 --url http://127.0.0.1:1 --out %/file/below",
          "cannot be made");
    fails(1, "bench replay --random-input-len 1 --url http://127.0.0.1:1 --out /proc",
          "cannot be written");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(WE1_as_json),
        cmocka_unit_test(each_session_has_its_own_counts),
        cmocka_unit_test(what_a_trace_does_not_tell_is_null),
        cmocka_unit_test(WE2_blocks_are_of_the_size_that_is_given),
        cmocka_unit_test(the_table_says_the_same),
        cmocka_unit_test(faults_name_file_line_and_field),
        cmocka_unit_test(a_sum_that_64_bits_do_not_hold_is_refused),
        cmocka_unit_test(a_workload_that_no_memory_holds_is_refused_at_once),
        cmocka_unit_test(an_output_that_cannot_be_made_is_refused_before_the_run),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
