/* What servers say, read whatever way it comes: cut anywhere, with comments, with fields of other
 * types than hoped for. And their metrics by the names of each kind. */
#include "tests/test.h"

#include "bench/adapter.h"
#include "bench/answer.h"
#include "bench/body.h"

#include <math.h>

/* Feeds `text` in pieces of `step` bytes; returns the number of chunks with something in them. */
static uint32_t feed(struct answer *a, int status, const char *text, size_t step) {
    uint32_t sum = 0, n;
    for (size_t at = 0, all = strlen(text); at < all; at += step) {
        answer_feed(a, status, text + at, all - at < step ? all - at : step, &n);
        sum += n;
    }
    answer_end(a, status, &n);
    return sum + n;
}

#define TEXT(T)                                                                                    \
    "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"" T "\",\"finish_reason\":null}]}"
#define DELTA(D)                                                                                   \
    "{\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{" D "},\"finish_reason\":null}]}"
#define FINISH "{\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}"
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":"            \
    "{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":2}}"

static const struct {
    const char *what, *text;
    uint32_t chunks;
    const char *content, *type; /* type "": no error */
    bool has_usage;
} said[] = {
    {"plain stream",
     "data: " TEXT("a") "\n\ndata: " TEXT(
         "b") "\n\ndata: " FINISH "\n\ndata: {\"choices\":[]," USAGE "}\n\ndata: [DONE]\n\n",
     2, "ab", "", true},
    {"CRLF, comments, other fields, no space, BOM",
     "\xEF\xBB\xBF: hello\r\nevent: x\r\ndata:" TEXT(
         "a") "\r\n\r\n: ping\r\n\r\nid: 7\r\nretry: 1\r\n"
              "data:" FINISH "\r\n\r\ndata: [DONE]\r\n\r\n",
     1, "a", "", false},
    {"bare CR", "data: " TEXT("a") "\r\rdata: " FINISH "\r\rdata: [DONE]\r\r", 1, "a", "", false},
    {"an event of two data lines",
     "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\ndata: \"text\":\"a\","
     "\"finish_reason\":\"stop\"}]}\n\n",
     1, "a", "", false},
    {"no end mark, last blank line missing", "data: " TEXT("a") "\n\ndata: " FINISH, 1, "a", "",
     false},
    {"usage in every chunk: the last counts",
     "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":7,"
     "\"completion_tokens\":1}}\n\ndata: "
     "{\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":"
     "\"length\"}]," USAGE "}\n\n",
     2, "ab", "", true},
    {"reasoning, under either name, once under both",
     "data: " DELTA("\"role\":\"assistant\",\"content\":null") "\n\ndata: " DELTA(
         "\"reason"
         "ing_"
         "content"
         "\":"
         "\"hm\"") "\n\ndata: " DELTA("\"reasoning\":\"hm\"") "\n\ndata: " DELTA("\"reasoning_"
                                                                                 "content\":\"h\","
                                                                                 "\"reasoning\":"
                                                                                 "\"h\"") "\n\ndata"
                                                                                          ":"
                                                                                          " " DELTA(
                                                                                              "\"co"
                                                                                              "n"
                                                                                              "tent"
                                                                                              "\":"
                                                                                              "\"a"
                                                                                              "\"") "\n\ndata: " FINISH
                                                                                                    "\n\n",
     4, "a", "", false},
    {"tool calls",
     "data: " DELTA(
         "\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\","
         "\"arguments\":\"\"}}]") "\n\ndata: " DELTA("\"tool_calls\":[{\"index\":0,"
                                                     "\"function\":"
                                                     "{\"arguments\":\"{}\"}}]") "\n\ndata:"
                                                                                 " " FINISH "\n\n",
     2, "", "", false},
    {"empty and null texts are no chunks",
     "data: " TEXT("") "\n\ndata: {\"choices\":[{\"index\":0,"
                       "\"text\":null}]}\n\ndata: {\"choices\":[]}\n\ndata: " TEXT(
                           "a") "\n\ndata: " FINISH "\n\n",
     1, "a", "", false},
    {"another choice is not ours",
     "data: {\"choices\":[{\"index\":1,\"text\":\"z\"}]}\n\ndata: " TEXT("a") "\n\ndata: " FINISH
                                                                              "\n\n",
     1, "a", "", false},
    {"plain JSON",
     " {\"id\":\"x\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"whole\"},"
     "\"finish_reason\":\"stop\"}]," USAGE "}",
     1, "whole", "", true},
    {"error in the stream",
     "data: " TEXT("a") "\n\ndata: {\"error\":{\"message\":\"dead\",\"code\":503}}"
                        "\n\ndata: [DONE]\n\n",
     1, "a", "server", false},
    {"error as a field of the stream",
     "data: " TEXT("a") "\n\nerror: {\"error\":{\"message\":\"dead\"}}\n\n", 1, "a", "server",
     false},
    {"error of the old form", "data: {\"object\":\"error\",\"message\":\"dead\",\"code\":400}\n\n",
     0, "", "server", false},
    {"error as text", "{\"error\":\"dead\"}", 0, "", "server", false},
    {"torn within an event", "data: " TEXT("a") "\n\ndata: {\"id\":\"x\",\"cho", 1, "a", "closed",
     false},
    {"no finish", "data: " TEXT("a") "\n\n", 1, "a", "closed", false},
    {"nothing at all", "", 0, "", "closed", false},
    {"garbage in the middle", "data: " TEXT("a") "\n\ndata: oh no\n\ndata: " FINISH "\n\n", 1, "a",
     "protocol", false},
    {"a page", "<html>data: x</html>", 0, "", "closed", false},
    {"half an object", "{\"id\":\"x\"", 0, "", "protocol", false},
    {"fields of other types",
     "data: {\"id\":3,\"choices\":{\"a\":1},\"usage\":[1]}\n\ndata: {\"choices\":"
     "[3,{\"delta\":4,\"text\":5,\"finish_reason\":6}],\"usage\":{\"completion_tokens\":"
     "\"9\"}}\n\ndata: " FINISH "\n\n",
     0, "", "", false},
};

static void an_answer_means_the_same_however_it_is_cut(void **state) {
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        for (size_t step = 1; step < 300; step += step < 20 ? 1 : 37) {
            struct answer a = {.keep_text = true};
            uint32_t n = feed(&a, 200, said[i].text, step);
            if (n != said[i].chunks || a.n_chunks != n || strcmp(a.error_type, said[i].type) ||
                a.has_usage != said[i].has_usage ||
                strcmp(a.content.data ? a.content.data : "", said[i].content))
                fail_msg("%s, %zu bytes at a time: %u chunks, '%s', error '%s' %s", said[i].what,
                         step, n, a.content.data ? a.content.data : "", a.error_type,
                         a.error_message);
            if (said[i].has_usage) {
                assert_int_equal(a.prompt_tokens, 7);
                assert_int_equal(a.completion_tokens, 3);
                assert_int_equal(a.cached_tokens, 4);
                assert_int_equal(a.reasoning_tokens, 2);
            }
            answer_free(&a);
        }
}

/* 2^53 is the greatest number that the files of a run hold. */
static void counts_that_no_file_holds_are_none(void **state) {
    static const struct {
        const char *said;
        uint64_t tokens; /* 0: not taken */
    } of[] = {{"9007199254740992", INT64_C(1) << 53},
              {"9007199254740993", 0},
              {"9223372036854775807", 0},
              {"9.1e15", 0},
              {"-1", 0},
              {"3.0", 3}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[400];
        struct answer a = {0};
        snprintf(text, sizeof text,
                 "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%s,\"completion_tokens\":%s,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":%s}}}\n\ndata: " FINISH "\n\n",
                 of[i].said, of[i].said, of[i].said);
        feed(&a, 200, text, 1000);
        assert_string_equal(a.error_type, "");
        assert_int_equal(a.prompt_tokens, of[i].tokens);
        assert_int_equal(a.completion_tokens, of[i].tokens);
        assert_int_equal(a.has_usage, of[i].tokens != 0);
        assert_int_equal(a.has_cached, of[i].tokens != 0);
        answer_free(&a);
    }
}

static void a_refusal_is_told_in_the_servers_words(void **state) {
    static const struct {
        const char *body, *message;
    } refused[] = {{"{\"error\":{\"message\":\"too long\",\"code\":400}}", "too long"},
                   {"{\"detail\":\"Not authenticated\"}", "Not authenticated"},
                   {"<html>bad\ngateway</html>", "<html>bad gateway</html>"},
                   {"", "status 502"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct answer a = {0};
        assert_int_equal(feed(&a, 502, refused[i].body, 5), 0);
        assert_string_equal(a.error_type, "http");
        assert_int_equal(a.error_code, 502);
        assert_string_equal(a.error_message, refused[i].message);
        answer_free(&a);
    }
}

/* -------------------------------------------------------------------------------------- metrics */

static struct server_sample sample(enum server_kind kind, const char *text) {
    struct server_sample s = {.at = 5};
    assert_true(adapter_read(kind, text, strlen(text), &s) > 0);
    assert_int_equal(s.at, 5);
    return s;
}

static void vllm_engines_are_added_and_sources_kept_apart(void **state) {
    struct server_sample s = sample(
        SERVER_VLLM,
        "# HELP vllm:prompt_tokens_total x\n# TYPE vllm:prompt_tokens_total counter\n"
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 100.0\n"
        "vllm:prompt_tokens_total{engine=\"1\",model_name=\"m\"} 1.5e2\n"
        "vllm:prompt_tokens_cached_total{engine=\"0\"} 7\n"
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"} 3\n"
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\"} 4\n"
        "vllm:prefix_cache_queries_total{engine=\"0\"} "
        "90\nvllm:prefix_cache_hits_total{engine=\"0\"} 45\n"
        "vllm:external_prefix_cache_hits_total{engine=\"0\"} 11\n"
        "vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n"
        "vllm:gpu_cache_usage_perc{engine=\"0\"} 0.9\n"
        "vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"local_compute\"} 60\n"
        "vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"local_cache_hit\"} 30\n"
        "vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"external_kv_transfer\"} 10\n"
        "vllm:kv_offload_total_bytes_total{engine=\"0\",transfer_type=\"CPU_to_GPU\"} 5e9\n"
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",engine=\"0\"} 1.0\n"
        "vllm:spec_decode_num_drafts_total{engine=\"0\"} 2\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 99\n");
    assert_true(s.prompt_tokens == 250 && s.requests_done == 7);
    assert_true(s.query_tokens == 90 && s.hit_tokens == 45 && s.external_hit_tokens == 11);
    assert_true(fabs(s.kv_usage - 0.3) < 1e-12);
    assert_true(s.computed_tokens == 60 && s.device_tokens == 30 && s.remote_tokens == 10);
    assert_true(s.bytes_in == 5e9 && isnan(s.bytes_out) && s.kv_total_tokens == 16000);
    assert_true(s.drafts == 2 && isnan(s.accepted_tokens) && isnan(s.host_tokens));
}

/* Ranks of one engine report the whole engine each; engines report their own share. */
static void sglang_ranks_of_one_engine_count_once(void **state) {
    struct server_sample s =
        sample(SERVER_SGLANG, "sglang:prompt_tokens_total{model_name=\"m\"} 1000\n"
                              "sglang:cached_tokens_total{cache_source=\"device\"} 300\n"
                              "sglang:cached_tokens_total{cache_source=\"host\"} 100\n"
                              "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 4\n"
                              "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 4\n"
                              "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 3\n"
                              "sglang:token_usage{tp_rank=\"0\"} 0.5\n");
    assert_true(s.running == 7 && s.kv_usage == 0.5 && s.prompt_tokens == 1000);
    assert_true(s.hit_tokens == 400 && s.device_tokens == 300 && s.host_tokens == 100);
    assert_true(s.computed_tokens == 600 && s.query_tokens == 1000);
}

static void llama_cpp_prompts_are_whole_only_where_cached_tokens_are_told(void **state) {
    struct server_sample old = sample(SERVER_LLAMA_CPP, "llamacpp:prompt_tokens_total 500\n"
                                                        "llamacpp:tokens_predicted_total 42\n"
                                                        "llamacpp:requests_processing 2\n");
    assert_true(old.computed_tokens == 500 && isnan(old.prompt_tokens) && old.running == 2);
    struct server_sample s = sample(SERVER_LLAMA_CPP, "llamacpp:prompt_tokens_total 500\n"
                                                      "llamacpp:prompt_tokens_cached_total 100\n");
    assert_true(s.prompt_tokens == 600 && s.hit_tokens == 100 && s.query_tokens == 600);
}

static void numbers_that_no_counter_has_are_unknown(void **state) {
    struct server_sample s = sample(SERVER_VLLM, "vllm:prompt_tokens_total 1e305\n"
                                                 "vllm:generation_tokens_total +Inf\n"
                                                 "vllm:kv_cache_usage_perc NaN\n"
                                                 "vllm:num_requests_running 2\n");
    assert_true(isnan(s.prompt_tokens) && isnan(s.generated_tokens) && isnan(s.kv_usage));
    assert_true(s.running == 2);
}

static void kinds_are_told_apart_by_their_metrics(void **state) {
    static const struct {
        const char *text;
        enum server_kind kind;
    } of[] = {{"vllm:x 1\n", SERVER_VLLM},     {"vllm:x 1\nweir_steps_total 3\n", SERVER_WEIR},
              {"sglang:x 1\n", SERVER_SGLANG}, {"python_gc 1\nllamacpp:x 1", SERVER_LLAMA_CPP},
              {"python_gc 1\n", SERVER_AUTO},  {"", SERVER_AUTO}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        assert_int_equal(adapter_of_metrics(of[i].text, strlen(of[i].text)), of[i].kind);
}

/* --------------------------------------------------------------------------------------- bodies */

static json_t *body_of(const struct body_maker *m, const struct call *call,
                       const struct talk *talk) {
    struct body b;
    body_make(m, call, talk, &b);
    assert_non_null(b.bytes);
    json_t *v = json_loadb(b.bytes, b.n, JSON_REJECT_DUPLICATES, NULL);
    if (!v)
        fail_msg("no JSON: %.300s", b.bytes);
    free(b.bytes);
    return v;
}

static void read_trace(const char *text, enum trace_format f, struct trace *t) {
    FILE *in = fmemopen((void *)(uintptr_t)text, strlen(text), "rb");
    assert_int_equal(trace_read_stream(in, "t", f, NULL, t, NULL), WEIR_OK);
    fclose(in);
}

/* Each server gets the fields it knows, and no other. */
static void lengths_are_asked_for_in_the_servers_own_words(void **state) {
    struct trace t;
    struct call call = {.request = 0};
    read_trace("{\"id\":\"a\",\"requests\":[{\"t\":0,\"type\":\"s\",\"in\":130,\"out\":9,"
               "\"hash_ids\":[1,2]}]}",
               TRACE_WEKA, &t);
    struct body_maker m = {.trace = &t, .model = "m", .low = 100, .high = 1000, .length_scale = 1};
    for (int k = SERVER_WEIR; k < SERVER_KINDS; k++) {
        m.server = (enum server_kind)k;
        json_t *v = body_of(&m, &call, NULL);
        assert_int_equal(json_integer_value(json_object_get(v, "max_tokens")), 9);
        assert_true((json_object_get(v, "ignore_eos") != NULL) == (k != SERVER_OPENAI));
        assert_true((json_object_get(v, "min_tokens") != NULL) ==
                    (k != SERVER_OPENAI && k != SERVER_LLAMA_CPP));
        assert_int_equal(json_array_size(json_object_get(v, "prompt")), 130);
        assert_true(
            json_is_true(json_object_get(json_object_get(v, "stream_options"), "include_usage")));
        json_decref(v);
    }
    json_t *extra = json_pack("{s:i, s:f}", "max_tokens", 5, "temperature", 0.5);
    m.extra = extra;
    call.one_token = true;
    json_t *v = body_of(&m, &call, NULL);
    assert_int_equal(json_integer_value(json_object_get(v, "max_tokens")), 5);
    assert_true(json_real_value(json_object_get(v, "temperature")) == 0.5);
    json_decref(v);
    json_decref(extra);
    m.endpoint = ENDPOINT_CHAT;
    m.extra = NULL;
    assert_int_equal(words_common(&m.words, NULL), WEIR_OK);
    v = body_of(&m, &call, NULL);
    const char *text = json_string_value(
        json_object_get(json_array_get(json_object_get(v, "messages"), 0), "content"));
    size_t words = 0;
    for (const char *s = text; *s; s++)
        words += *s == ' ';
    assert_int_equal(words, 130);
    json_decref(v);
    words_free(&m.words);
    trace_free(&t);
}

static const char *message(const json_t *v, size_t i, const char *field) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(v, "messages"), i), field));
}

/* multi_turn goes on from what the server said; sharegpt from what was recorded. */
static void later_turns_contain_the_answers_before(void **state) {
    struct trace t;
    struct call call = {.request = 1, .play = 3};
    struct talks talks = {0};
    struct body_maker m = {
        .server = SERVER_OPENAI, .endpoint = ENDPOINT_CHAT, .model = "m", .trace = &t, .seed = 1};
    read_trace(
        "{\"session_id\":\"u\",\"turns\":[{\"text\":\"list \\\"files\\\"\"},{\"text\":\"open\"}]}",
        TRACE_MULTI_TURN, &t);
    struct talk *talk = talks_of(&talks, 3, 2);
    talk_answer(talk, 0, "a.c\nb.c", 7);
    json_t *v = body_of(&m, &call, talk);
    assert_int_equal(json_array_size(json_object_get(v, "messages")), 3);
    assert_non_null(strstr(message(v, 0, "content"), ") list \"files\""));
    assert_string_equal(message(v, 1, "role"), "assistant");
    assert_string_equal(message(v, 1, "content"), "a.c\nb.c");
    assert_string_equal(message(v, 2, "content"), "open");
    /* The same words in another play do not begin alike. */
    call.play = 4;
    json_t *other = body_of(&m, &call, NULL);
    assert_string_not_equal(message(v, 0, "content"), message(other, 0, "content"));
    assert_int_equal(json_array_size(json_object_get(other, "messages")), 2);
    json_decref(v);
    json_decref(other);
    talks_free(&talks);
    trace_free(&t);
    read_trace(
        "[{\"id\":\"a\",\"conversations\":[{\"from\":\"human\",\"value\":\"q1\"},{\"from\":\"gpt\","
        "\"value\":\"r1\"},{\"from\":\"human\",\"value\":\"q2\"}]}]",
        TRACE_SHAREGPT, &t);
    m.recorded_answers = true;
    v = body_of(&m, &call, NULL);
    assert_string_equal(message(v, 1, "content"), "r1");
    assert_string_equal(message(v, 2, "content"), "q2");
    json_decref(v);
    trace_free(&t);
}

/* Words of the model's own vocabulary make prompts of exactly the wanted length. */
static void words_of_a_vocabulary_encode_to_themselves(void **state) {
    struct tokenizer *t;
    struct words w;
    weir_error err = {0};
    const char *dir = source_path("models/tiny-k3");
    if (tokenizer_open(dir, 2816, &t, &err))
        fail_msg("%s: %s", err.where, err.message);
    if (words_of(t, dir, &w, &err))
        fail_msg("%s: %s", err.where, err.message);
    struct text text = {0};
    struct ids ids = {0};
    for (uint32_t i = 0; i < 5000; i++)
        text_append(&text, w.word[i * 7919 % w.n], w.bytes[i * 7919 % w.n]);
    tokenizer_encode(t, text.data, text.n, &ids);
    assert_int_equal(ids.n, 5000);
    assert_true(w.exact);
    ids_free(&ids);
    text_free(&text);
    words_free(&w);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_means_the_same_however_it_is_cut),
        cmocka_unit_test(counts_that_no_file_holds_are_none),
        cmocka_unit_test(a_refusal_is_told_in_the_servers_words),
        cmocka_unit_test(vllm_engines_are_added_and_sources_kept_apart),
        cmocka_unit_test(sglang_ranks_of_one_engine_count_once),
        cmocka_unit_test(llama_cpp_prompts_are_whole_only_where_cached_tokens_are_told),
        cmocka_unit_test(numbers_that_no_counter_has_are_unknown),
        cmocka_unit_test(kinds_are_told_apart_by_their_metrics),
        cmocka_unit_test(lengths_are_asked_for_in_the_servers_own_words),
        cmocka_unit_test(later_turns_contain_the_answers_before),
        cmocka_unit_test(words_of_a_vocabulary_encode_to_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
