/* test_api_request.c: bodies to requests: every field's type rule and range, and the refusals. */
#include "tests/test.h"

#include "serve/api_error.h"
#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/json_read.h"
#include "serve/json_write.h"

static struct tokenizer *tokenizer;
static struct api_limits limits;

static int open_tokenizer(void **state) {
    weir_error err = {0};
    if (tokenizer_open(source_path("models/tiny-k3"), 2816, &tokenizer, &err) != WEIR_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        return -1;
    }
    limits = (struct api_limits){.vocab = 2816,
                                 .max_model_len = 2048,
                                 .max_n = 128,
                                 .null_column = true,
                                 .temperature = 1,
                                 .top_p = 1,
                                 .tokenizer = tokenizer};
    return 0;
}

static int close_tokenizer(void **state) {
    tokenizer_close(tokenizer);
    return 0;
}

struct bad {
    const char *fields; /* members put behind the good ones; a later equal key wins */
    int status;
    const char *param;
    const char *says; /* part of the message, NULL: any */
};

static const struct bad shared[] = {
    {"\"temperature\":2.1", 400, "temperature", "2.1"},
    {"\"temperature\":-0.1", 400, "temperature", NULL},
    {"\"temperature\":\"0.7\"", 400, "temperature", "\"0.7\""},
    {"\"temperature\":true", 400, "temperature", NULL},
    {"\"temperature\":1e999", 400, "temperature", NULL},
    {"\"top_p\":0", 400, "top_p", NULL},
    {"\"top_p\":1.01", 400, "top_p", NULL},
    {"\"top_k\":-2", 400, "top_k", NULL},
    {"\"top_k\":2817", 400, "top_k", "2816"},
    {"\"top_k\":1.5", 400, "top_k", NULL},
    {"\"min_p\":1.5", 400, "min_p", NULL},
    {"\"frequency_penalty\":2.5", 400, "frequency_penalty", NULL},
    {"\"presence_penalty\":-3", 400, "presence_penalty", NULL},
    {"\"repetition_penalty\":0", 400, "repetition_penalty", NULL},
    {"\"repetition_penalty\":1e999", 400, "repetition_penalty", NULL},
    {"\"seed\":1.5", 400, "seed", NULL},
    {"\"seed\":\"7\"", 400, "seed", NULL},
    {"\"seed\":9223372036854775808", 400, "seed", "64-bit"},
    {"\"n\":129", 400, "n", "128"},
    {"\"n\":true", 400, "n", NULL},
    {"\"stop\":\"\"", 400, "stop", NULL},
    {"\"stop\":5", 400, "stop", NULL},
    {"\"stop\":[\"a\",\"\"]", 400, "stop.1", NULL},
    {"\"stop\":[\"a\",7]", 400, "stop.1", "7"},
    {"\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\","
     "\"14\",\"15\",\"16\",\"17\"]",
     400, "stop", "16"},
    {"\"stop_token_ids\":[2816]", 400, "stop_token_ids.0", "2816"},
    {"\"stop_token_ids\":[1,-1]", 400, "stop_token_ids.1", NULL},
    {"\"stop_token_ids\":3", 400, "stop_token_ids", NULL},
    {"\"allowed_token_ids\":[]", 400, "allowed_token_ids", NULL},
    {"\"allowed_token_ids\":[1.0]", 400, "allowed_token_ids.0", NULL},
    {"\"min_tokens\":-1", 400, "min_tokens", NULL},
    {"\"min_tokens\":9,\"max_tokens\":8", 400, "min_tokens", "8"},
    {"\"ignore_eos\":1", 400, "ignore_eos", NULL},
    {"\"bad_words\":\"x\"", 400, "bad_words", NULL},
    {"\"bad_words\":[\"a\",\"\"]", 400, "bad_words.1", NULL},
    {"\"stream\":1", 400, "stream", NULL},
    {"\"stream\":\"true\"", 400, "stream", NULL},
    {"\"stream_options\":{}", 400, "stream_options", NULL},
    {"\"stream\":true,\"stream_options\":[]", 400, "stream_options", NULL},
    {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", 400,
     "stream_options.include_usage", NULL},
    {"\"stream_interval\":0", 400, "stream_interval", NULL},
    {"\"prompt_logprobs\":21", 400, "prompt_logprobs", NULL},
    {"\"prompt_logprobs\":1,\"stream\":true", 400, "prompt_logprobs", "stream"},
    {"\"priority\":1", 400, "priority", "fcfs"},
    {"\"cache_salt\":\"\"", 400, "cache_salt", NULL},
    {"\"cache_salt\":\"a/b\"", 400, "cache_salt", NULL},
    {"\"cache_salt\":\"a@b\"", 400, "cache_salt", NULL},
    {"\"cache_salt\":\"a\\\\b\"", 400, "cache_salt", NULL},
    {"\"cache_salt\":\"a\\u0000b\"", 400, "cache_salt", NULL},
    {"\"cache_salt\":7", 400, "cache_salt", NULL},
    {"\"request_id\":\"a b\"", 400, "request_id", NULL},
    {"\"request_id\":\"\"", 400, "request_id", NULL},
    {"\"timeout\":0", 400, "timeout", NULL},
    {"\"best_of\":3", 400, "best_of", NULL},
    {"\"use_beam_search\":true", 400, "use_beam_search", NULL},
    {"\"length_penalty\":0.5", 400, "length_penalty", NULL},
    {"\"early_stopping\":true", 400, "early_stopping", NULL},
    {"\"logits_processors\":[\"os.system\"]", 400, "logits_processors", NULL},
    {"\"suffix\":\"x\"", 400, "suffix", NULL},
    {"\"thinking_token_budget\":5", 501, "thinking_token_budget", NULL},
    {"\"truncate_prompt_tokens\":5", 501, "truncate_prompt_tokens", NULL},
    {"\"structured_outputs\":{\"regex\":\"a\"}", 501, "structured_outputs", NULL},
    {"\"guided_json\":{}", 501, "guided_json", NULL},
    {"\"response_format\":{\"type\":\"json_object\"}", 501, "response_format", NULL},
    {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{}}"
     "}",
     501, "response_format", NULL},
    {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}", 400,
     "response_format.json_schema.schema", NULL},
    {"\"response_format\":{\"type\":\"xml\"}", 400, "response_format.type", "xml"},
    {"\"response_format\":\"text\"", 400, "response_format", NULL},
    {"\"model\":5", 400, "model", NULL},
    {"\"weir_output_ids\":[2816]", 400, "weir_output_ids.0", NULL},
    {"\"weir_step_sizes\":[0]", 400, "weir_step_sizes", NULL},
};

static const struct bad chat_only[] = {
    {"\"max_tokens\":0", 400, "max_tokens", NULL},
    {"\"max_completion_tokens\":0", 400, "max_completion_tokens", NULL},
    {"\"max_tokens\":1.5", 400, "max_tokens", NULL},
    {"\"logprobs\":1", 400, "logprobs", NULL},
    {"\"top_logprobs\":3", 400, "top_logprobs", "logprobs"},
    {"\"logprobs\":true,\"top_logprobs\":21", 400, "top_logprobs", "20"},
    {"\"logprobs\":true,\"top_logprobs\":-1", 400, "top_logprobs", NULL},
    {"\"tools\":[]", 400, "tools", NULL},
    {"\"tools\":{}", 400, "tools", NULL},
    {"\"tools\":[{\"type\":\"web_search\"}]", 400, "tools.0.type", "web_search"},
    {"\"tools\":[{\"type\":\"function\"}]", 400, "tools.0.function", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", 400, "tools.0.function.name", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", 400,
     "tools.0.function.name", "a b"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\","
     "\"function\":{\"name\":\"a\"}}]",
     400, "tools.1.function.name", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", 400,
     "tools.0.function.parameters", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":true}}]", 501,
     "tools.0.function.strict", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":"
     "\"object\",\"properties\":{\"x\":{\"type\":\"nope\"}}}}}]",
     400, "tools.0.function.parameters.properties.x.type", "nope"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":"
     "\"object\",\"properties\":{\"x\":{\"type\":\"string\",\"pattern\":\"(\"}}}}}]",
     400, "tools.0.function.parameters.properties.x.pattern", "group"},
    {"\"tool_choice\":\"auto\"", 400, "tool_choice", NULL},
    {"\"tool_choice\":\"required\"", 400, "tool_choice", NULL},
    {"\"tool_choice\":\"sometimes\"", 400, "tool_choice", NULL},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":{\"type\":"
     "\"function\",\"function\":{\"name\":\"b\"}}",
     400, "tool_choice.function.name", "b"},
    {"\"parallel_tool_calls\":0", 400, "parallel_tool_calls", NULL},
    {"\"reasoning_effort\":\"huge\"", 400, "reasoning_effort", "huge"},
    {"\"chat_template_kwargs\":[]", 400, "chat_template_kwargs", NULL},
    {"\"chat_template_kwargs\":{\"thinking\":\"no\"}", 400, "chat_template_kwargs.thinking", NULL},
    {"\"chat_template\":\"{{ x }}\"", 400, "chat_template", "not supported"},
    {"\"add_generation_prompt\":false", 400, "add_generation_prompt", NULL},
    {"\"continue_final_message\":true", 400, "continue_final_message", NULL},
    {"\"echo\":true", 400, "echo", NULL},
    {"\"messages\":[]", 400, "messages", NULL},
    {"\"messages\":null", 400, "messages", NULL},
    {"\"messages\":\"hi\"", 400, "messages", NULL},
    {"\"messages\":[\"hi\"]", 400, "messages.0", NULL},
    {"\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]", 400, "messages.0.role", "robot"},
    {"\"messages\":[{\"content\":\"x\"}]", 400, "messages.0.role", NULL},
    {"\"messages\":[{\"role\":\"user\"}]", 400, "messages.0.content", NULL},
    {"\"messages\":[{\"role\":\"user\",\"content\":[]}]", 400, "messages.0.content", NULL},
    {"\"messages\":[{\"role\":\"user\",\"content\":5}]", 400, "messages.0.content", NULL},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
     400, "messages.0.content.0.type", "image_url"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]", 400,
     "messages.0.content.0.text", NULL},
    {"\"messages\":[{\"role\":\"assistant\"}]", 400, "messages.0.content", NULL},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]", 400, "messages.0.tool_calls",
     NULL},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
     "\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]",
     400, "messages.0.tool_calls.0.function.arguments", NULL},
    {"\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]", 400, "messages.0.tool_call_id", NULL},
};

static const struct bad completion_only[] = {
    {"\"prompt\":\"\"", 400, "prompt", NULL},
    {"\"prompt\":[]", 400, "prompt", NULL},
    {"\"prompt\":[[]]", 400, "prompt.0", NULL},
    {"\"prompt\":null", 400, "prompt", NULL},
    {"\"prompt\":5", 400, "prompt", NULL},
    {"\"prompt\":[\"a\",[1]]", 400, "prompt.1", "one kind"},
    {"\"prompt\":[1,\"a\"]", 400, "prompt.1", NULL},
    {"\"prompt\":[1,2816]", 400, "prompt.1", "2816"},
    {"\"prompt\":[[1],[2,-7]]", 400, "prompt.1.1", "-7"},
    {"\"prompt\":[\"a\",\"\"]", 400, "prompt.1", NULL},
    {"\"logprobs\":21", 400, "logprobs", NULL},
    {"\"logprobs\":true", 400, "logprobs", NULL},
    {"\"max_tokens\":0", 400, "max_tokens", "echo"},
    {"\"max_tokens\":-1,\"echo\":true", 400, "max_tokens", NULL},
    {"\"echo\":1", 400, "echo", NULL},
    {"\"parse_special\":1", 400, "parse_special", NULL},
    {"\"min_tokens\":17", 400, "min_tokens", "16"},
};

static const char chat_good[] = "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]";
static const char completion_good[] = "\"prompt\":\"Hello\"";

static bool parse_chat(const char *body, struct chat_request *r, struct api_error *e) {
    return chat_request_parse(body, strlen(body), CHAT_FOR_GENERATION, &limits, true, r, e);
}

static struct api_error chat_error(const char *body) {
    struct chat_request r = {0};
    struct api_error e = {0};
    bool ok = parse_chat(body, &r, &e);
    chat_request_free(&r);
    if (ok)
        e.status = 200;
    return e;
}

static struct api_error completion_error(const char *body) {
    struct completion_request r = {0};
    struct api_error e = {0};
    bool ok = completion_request_parse(body, strlen(body), &limits, &r, &e);
    completion_request_free(&r);
    if (ok)
        e.status = 200;
    return e;
}

static void expect(const struct bad *bad, size_t n, const char *good,
                   struct api_error (*parse)(const char *)) {
    char body[4096];
    for (size_t i = 0; i < n; i++) {
        snprintf(body, sizeof body, "{%s,%s}", good, bad[i].fields);
        struct api_error e = parse(body);
        if (e.status != bad[i].status || strcmp(e.param, bad[i].param) != 0 ||
            (bad[i].says && !strstr(e.message, bad[i].says)))
            fail_msg("%s\n gives %d, param '%s': %s", bad[i].fields, e.status, e.param, e.message);
        /* The field is named in the sentence too. */
        assert_non_null(strstr(e.message, bad[i].param));
        snprintf(body, sizeof body, "{%s}", good);
        assert_int_equal(parse(body).status, 200);
    }
}

#define EXPECT(table, good, parse) expect(table, sizeof(table) / sizeof *(table), good, parse)

static void every_bad_field_is_named_with_status_and_rule(void **state) {
    EXPECT(shared, chat_good, chat_error);
    EXPECT(shared, completion_good, completion_error);
    EXPECT(chat_only, chat_good, chat_error);
    EXPECT(completion_only, completion_good, completion_error);
}

static const char *const fine[] = {
    "\"temperature\":0",
    "\"temperature\":2",
    "\"temperature\":null",
    "\"top_p\":1",
    "\"top_k\":0",
    "\"top_k\":-1",
    "\"min_p\":1",
    "\"repetition_penalty\":5",
    "\"seed\":-9223372036854775808",
    "\"n\":128",
    "\"stop\":null",
    "\"stop\":[]",
    "\"stop\":\"x\"",
    "\"stop_token_ids\":[]",
    "\"logit_bias\":{}",
    "\"bad_words\":[]",
    "\"stream_options\":null",
    "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":true}",
    "\"priority\":0",
    "\"cache_salt\":\"tenant-1\"",
    "\"best_of\":1",
    "\"n\":2,\"best_of\":2",
    "\"length_penalty\":1.0",
    "\"use_beam_search\":false",
    "\"early_stopping\":false",
    "\"logits_processors\":[]",
    "\"suffix\":null",
    "\"response_format\":{\"type\":\"text\"}",
    "\"thinking_token_budget\":-1",
    "\"user\":\"u\",\"metadata\":{},\"store\":true",
    "\"nonsense\":[1,{}]",
    "\"skip_special_tokens\":true",
    "\"weir_output_ids\":[1,2],\"weir_step_sizes\":[2]",
    "\"timeout\":2.5",
    "\"session_id\":\"s\",\"prompt_cache_key\":\"k\"",
};

static void good_fields_pass_on_both_endpoints(void **state) {
    char body[1024];
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        snprintf(body, sizeof body, "{%s,%s}", chat_good, fine[i]);
        struct api_error e = chat_error(body);
        if (e.status != 200)
            fail_msg("%s: %s", fine[i], e.message);
        snprintf(body, sizeof body, "{%s,%s}", completion_good, fine[i]);
        e = completion_error(body);
        if (e.status != 200)
            fail_msg("%s: %s", fine[i], e.message);
    }
}

static void good_messages_pass(void **state) {
    static const char *const messages[] = {
        "[{\"role\":\"user\",\"content\":\"\"}]",
        "[{\"role\":\"developer\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"text\",\"text\":\"a\"},{\"type\":\"refusal\",\"refusal\":\"b\"}]}]",
        "[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\"}]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}],\"audio\":null,"
        "\"function_call\":null},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"1\"}]",
        "[{\"role\":\"user\",\"name\":\"Ann\",\"content\":\"x\",\"extra\":{}}]",
    };
    char body[1024];
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        snprintf(body, sizeof body, "{\"messages\":%s}", messages[i]);
        struct api_error e = chat_error(body);
        if (e.status != 200)
            fail_msg("%s: %s", messages[i], e.message);
    }
}

static void developer_becomes_system_and_reasoning_its_long_name(void **state) {
    struct chat_request r = {0};
    struct api_error e = {0};
    assert_true(parse_chat("{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"},"
                           "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\"},"
                           "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\","
                           "\"reasoning_content\":\"s\"}]}",
                           &r, &e));
    json_t *m = r.messages;
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 0), "role")), "system");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(m, 1), "reasoning_content")), "r");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(m, 2), "reasoning_content")), "s");
    chat_request_free(&r);
}

static void values_arrive_as_written(void **state) {
    struct chat_request r = {0};
    struct api_error e = {0};
    limits.temperature = 0.6;
    limits.top_p = 0.95;
    limits.top_k = 40;
    assert_true(parse_chat(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":5,"
        "\"max_completion_tokens\":7,\"top_p\":0.5,\"seed\":-1,\"logprobs\":true,"
        "\"top_logprobs\":4,\"stop\":[\"a\",\"bc\"],\"logit_bias\":{\"5\":-200,\"6\":1.5},"
        "\"stop_token_ids\":[9],\"reasoning_effort\":\"xhigh\"}",
        &r, &e));
    const weir_params *p = &r.sampling.params;
    assert_int_equal(r.sampling.max_tokens, 7);
    assert_string_equal(r.sampling.max_tokens_field, "max_completion_tokens");
    assert_true(p->temperature == 0.6f && p->top_p == 0.5f && p->top_k == 40);
    assert_true(p->has_seed && p->seed == UINT64_MAX);
    assert_int_equal(p->logprobs, 4);
    assert_int_equal(r.sampling.n_stops, 2);
    assert_int_equal(p->n_bias, 2);
    assert_int_equal(p->bias[0].id, 5);
    assert_true(p->bias[0].value == -100 && p->bias[1].value == 1.5f);
    assert_true(r.options.thinking);
    assert_string_equal(r.options.effort, "max");
    chat_request_free(&r);
    limits.temperature = limits.top_p = 1;
    limits.top_k = 0;
}

static void thinking_follows_effort_and_the_template_key_wins(void **state) {
    static const struct {
        const char *fields;
        bool thinking;
    } cases[] = {
        {"\"reasoning_effort\":\"none\"", false},
        {"\"reasoning_effort\":\"low\"", true},
        {"\"chat_template_kwargs\":{\"thinking\":false}", false},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false}", false},
        {"\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"thinking\":true}", true},
        {"\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"thinking\":false}", false},
        {"\"chat_template_kwargs\":{\"other\":1}", true},
    };
    char body[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_request r = {0};
        struct api_error e = {0};
        snprintf(body, sizeof body, "{%s,%s}", chat_good, cases[i].fields);
        assert_true(parse_chat(body, &r, &e));
        assert_int_equal(r.options.thinking, cases[i].thinking);
        chat_request_free(&r);
    }
}

static void F027_overlong_request_tells_limit_prompt_and_output(void **state) {
    struct chat_request r = {0};
    struct api_error e = {0};
    char body[256];
    snprintf(body, sizeof body, "{%s,\"max_tokens\":2045}", chat_good);
    assert_true(parse_chat(body, &r, &e));
    assert_false(api_length_check(&r.sampling, 8, "messages", &limits, &e));
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "max_tokens");
    assert_non_null(strstr(e.message, "2048"));
    assert_non_null(strstr(e.message, " 8 "));
    assert_non_null(strstr(e.message, "2045"));
    assert_true(api_length_check(&r.sampling, 3, "messages", &limits, &e));
    assert_int_equal(r.sampling.params.max_tokens, 2045);
    assert_false(api_length_check(&r.sampling, 2048, "messages", &limits, &e));
    assert_string_equal(e.param, "messages");
    assert_non_null(strstr(e.message, "requested output tokens: 2045"));
    chat_request_free(&r);
    /* Who asked for no output tokens is not told that 0 were asked for. */
    snprintf(body, sizeof body, "{%s}", chat_good);
    assert_true(parse_chat(body, &r, &e));
    assert_false(api_length_check(&r.sampling, 2048, "messages", &limits, &e));
    assert_non_null(strstr(e.message, "2048"));
    assert_null(strstr(e.message, "output"));
    chat_request_free(&r);
}

static void prompts_times_choices_are_bounded(void **state) {
    struct api_limits l = {.max_queue = 9};
    struct api_sampling s = {.n = 4, .params = {.logprobs = -1, .prompt_logprobs = -1}};
    struct api_prompts_size size = {.prompts = 1, .tokens = API_MAX_SUBMITTED_IDS / 4};
    struct api_error e = {0};
    assert_true(api_size_check(&s, size, &l, &e));
    size.tokens++;
    assert_false(api_size_check(&s, size, &l, &e));
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "n");
    assert_non_null(strstr(e.message, "16777220 prompt tokens"));
    s.n = 5;
    size.tokens = 1;
    assert_true(api_size_check(&s, size, &l, &e));
    s.n = 6;
    assert_false(api_size_check(&s, size, &l, &e));
    assert_non_null(strstr(e.message, "at most 5, half of this server's queue"));
}

/* What an answer repeats of the prompts: tokens x choices x values of each. */
static void repeated_prompt_values_are_bounded(void **state) {
    struct api_limits l = {0};
    struct api_error e = {0};
    struct api_sampling echo = {.n = 10, .params = {.logprobs = 1, .prompt_logprobs = -1}};
    struct api_prompts_size size = {.prompts = 1, .tokens = 100000, .echo = true};
    assert_true(api_size_check(&echo, size, &l, &e));
    size.tokens++;
    assert_false(api_size_check(&echo, size, &l, &e));
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "prompt");
    assert_non_null(strstr(e.message, "2000020"));
    struct api_sampling scores = {.n = 10, .params = {.logprobs = -1, .prompt_logprobs = 19}};
    size = (struct api_prompts_size){.prompts = 1, .tokens = 100000, .chat = true};
    assert_true(api_size_check(&scores, size, &l, &e));
    scores.return_token_ids = true;
    assert_false(api_size_check(&scores, size, &l, &e));
    assert_string_equal(e.param, "messages");
    size.tokens -= 5000;
    assert_true(api_size_check(&scores, size, &l, &e));
    size.chat = false;
    assert_false(api_size_check(&scores, size, &l, &e));
}

static void missing_fields_are_called_missing(void **state) {
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"{}", "messages: is missing, it must be an array"},
        {"{\"messages\":null}", "messages: null is not allowed, it must be an array"},
        {"{\"messages\":[{}]}", "messages.0.role: is missing, it must be system"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages.0.content: is missing, it must be"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
         "messages.0.content: null is not allowed, it must be"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages.0.content.0.text: is missing, it must be a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_error e = chat_error(cases[i].body);
        assert_int_equal(e.status, 400);
        if (strncmp(e.message, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s", e.message);
    }
    assert_non_null(strstr(completion_error("{}").message, "prompt: is missing, it must be"));
}

static void default_length_is_cut_to_the_room_left(void **state) {
    struct completion_request r = {0};
    struct api_error e = {0};
    char body[] = "{\"prompt\":\"x\"}";
    assert_true(completion_request_parse(body, strlen(body), &limits, &r, &e));
    assert_true(api_length_check(&r.sampling, 2040, "prompt", &limits, &e));
    assert_int_equal(r.sampling.params.max_tokens, 8);
    completion_request_free(&r);
}

static void F029_bad_logit_bias_is_refused_each_time(void **state) {
    static const struct bad cases[] = {
        {"\"logit_bias\":{\"1\":null}", 400, "logit_bias", "null"},
        {"\"logit_bias\":{\"1\":true}", 400, "logit_bias", "true"},
        {"\"logit_bias\":{\"x\":1}", 400, "logit_bias", "x"},
        {"\"logit_bias\":{\"1\":1e999}", 400, "logit_bias", "finite"},
        {"\"logit_bias\":{\"1\":-1e999}", 400, "logit_bias", "finite"},
        {"\"logit_bias\":{\"1.5\":1}", 400, "logit_bias", "1.5"},
        {"\"logit_bias\":{\"01\":1}", 400, "logit_bias", "01"},
        {"\"logit_bias\":{\"\":1}", 400, "logit_bias", NULL},
        {"\"logit_bias\":[]", 400, "logit_bias", NULL},
    };
    EXPECT(cases, chat_good, chat_error);
    EXPECT(cases, completion_good, completion_error);
}

static void F030_numbers_that_are_none_are_refused(void **state) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity", "1e999", "\"0.7\"",
                                        "+1",  ".5",       "1.",        "0x1",   "01"};
    char body[256];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(body, sizeof body, "{%s,\"temperature\":%s}", chat_good, words[i]);
        assert_int_equal(chat_error(body).status, 400);
        snprintf(body, sizeof body, "{%s}", chat_good);
        assert_int_equal(chat_error(body).status, 200);
    }
}

static void F036_ids_beyond_the_vocabulary_name_its_size(void **state) {
    static const struct bad cases[] = {
        {"\"logit_bias\":{\"2816\":1}", 400, "logit_bias", "2816"},
        {"\"logit_bias\":{\"-1\":1}", 400, "logit_bias", "vocabulary size 2816"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", 400, "logit_bias", "99999999999999999999"},
        {"\"logit_bias\":{\"4294967297\":1}", 400, "logit_bias", "vocabulary size 2816"},
        {"\"stop_token_ids\":[4294967297]", 400, "stop_token_ids.0", "vocabulary size 2816"},
    };
    EXPECT(cases, chat_good, chat_error);
    EXPECT(cases, completion_good, completion_error);
}

static void F037_bad_words_are_bounded_and_spelled_both_ways(void **state) {
    struct text body = {0};
    text_puts(&body, "{\"prompt\":\"x\",\"bad_words\":[");
    for (int i = 0; i < 5000; i++)
        text_puts(&body, i ? ",\"w\"" : "\"w\"");
    text_puts(&body, "]}");
    struct api_error e = completion_error(body.data);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "bad_words");
    text_free(&body);

    struct completion_request r = {0};
    const char *good = "{\"prompt\":\"x\",\"bad_words\":[\"river\",\"\xF0\x9F\x98\x80\"]}";
    assert_true(completion_request_parse(good, strlen(good), &limits, &r, &e));
    const weir_params *p = &r.sampling.params;
    assert_int_equal(p->n_bad_words, 4);
    static const char *const spelled[] = {"river", " river", "\xF0\x9F\x98\x80",
                                          " \xF0\x9F\x98\x80"};
    for (size_t i = 0; i < 4; i++) {
        struct text t = {0};
        assert_true(p->bad_word_lengths[i] > 0);
        tokenizer_decode(tokenizer, p->bad_words[i], p->bad_word_lengths[i], false, &t);
        assert_string_equal(t.data, spelled[i]);
        text_free(&t);
    }
    completion_request_free(&r);
}

static void F076_a_huge_n_is_refused_before_anything_is_allocated(void **state) {
    static const char *const values[] = {"1000000", "2147483648",          "0",
                                         "-1",      "9223372036854775807", "99999999999999999999"};
    char body[256];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(body, sizeof body, "{%s,\"n\":%s}", chat_good, values[i]);
        struct api_error e = chat_error(body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "n");
        assert_non_null(strstr(e.message, "128"));
    }
    struct text many = {0};
    text_puts(&many, "{\"n\":100,\"prompt\":[");
    for (int i = 0; i < 1000; i++)
        text_puts(&many, i ? ",\"w\"" : "\"w\"");
    text_puts(&many, "]}");
    assert_string_equal(completion_error(many.data).param, "n");
    text_free(&many);
}

static void F020_schemas_with_references_pass_whole(void **state) {
    const char *body =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"description\":\"h\xC3\xA9\",\"parameters\":{\"type\":"
        "\"object\",\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/n\"}]}},"
        "\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\",\"description\":\"d\"},\"type\":{\"enum\":"
        "[1,\"x\"]},\"l\":{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"null\"],"
        "\"pattern\":\"^[(]\\\\)(a|b)+$\"}}},\"x-unknown\":{\"type\":\"nope\"},"
        "\"additionalProperties\":false}}}],\"tool_choice\":\"auto\"}";
    struct api_error e = chat_error(body);
    if (e.status != 200)
        fail_msg("%s", e.message);
}

static void F081_hostile_schemas_end_in_a_refusal(void **state) {
    struct text body = {0};
    text_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
                     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":");
    size_t head = body.n;
    for (int i = 0; i < 10000; i++)
        text_puts(&body, "{\"items\":");
    text_puts(&body, "{}");
    for (int i = 0; i < 10000; i++)
        text_puts(&body, "}");
    text_puts(&body, "}}]}");
    struct api_error e = chat_error(body.data);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "deeper than 64 levels"));

    body.n = head;
    text_puts(&body, "{\"enum\":[");
    for (int i = 0; i < 1000000; i++)
        text_append(&body, i ? ",[]" : "[]", i ? 3 : 2);
    text_puts(&body, ",[[]],[[]]]}}}]}");
    assert_int_equal(chat_error(body.data).status, 400);
    text_free(&body);
}

/* An id of a prompt costs a third of an array: a long prompt of ids passes, half as many arrays do
 * not. */
static void values_are_counted_by_what_they_cost(void **state) {
    static const char *const items[] = {",1", ",[]"};
    for (int arrays = 0; arrays < 2; arrays++) {
        struct text body = {0};
        struct api_error e = {0};
        text_puts(&body, "{\"a\":[0");
        for (int i = 0; i < (arrays ? 500000 : 1100000); i++)
            text_puts(&body, items[arrays]);
        text_puts(&body, "]}");
        json_t *v = json_read_object(body.data, body.n, NULL, &e);
        assert_int_equal(v != NULL, !arrays);
        assert_int_equal(e.status, arrays ? 400 : 0);
        json_decref(v);
        text_free(&body);
    }
}

/* Everything that a generation reads is there after the tree is gone (a sanitizer sees the rest).
 */
static void a_request_outlives_its_body(void **state) {
#define SHARED                                                                                     \
    "\"model\":\"m\",\"stop\":[\"one\",\"t\\u0000wo\"],\"request_id\":\"r-1\",\"cache_salt\":"     \
    "\"salt\""
    struct api_error e = {0};
    struct chat_request c = {0};
    struct completion_request t = {0};
    char body[512];
    snprintf(body, sizeof body, "{%s," SHARED "}", chat_good);
    assert_true(parse_chat(body, &c, &e));
    chat_request_drop_body(&c);
    const char *text = "{\"prompt\":\"x\"," SHARED "}";
    assert_true(completion_request_parse(text, strlen(text), &limits, &t, &e));
    completion_request_drop_body(&t);
    assert_null(c.body);
    assert_null(c.messages);
    assert_null(t.body);
    assert_string_equal(c.model, "m");
    assert_string_equal(t.model, "m");
    const struct api_sampling *both[] = {&c.sampling, &t.sampling};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both[i]->n_stops, 2);
        assert_string_equal(both[i]->stops[0], "one");
        assert_int_equal(both[i]->stop_bytes[1], 4);
        assert_memory_equal(both[i]->stops[1], "t\0wo", 5);
        assert_string_equal(both[i]->request_id, "r-1");
        assert_string_equal(both[i]->params.cache_salt, "salt");
    }
    chat_request_free(&c);
    completion_request_free(&t);
    t = (struct completion_request){0};
    text = "{\"prompt\":\"x\"}";
    assert_true(completion_request_parse(text, strlen(text), &limits, &t, &e));
    completion_request_drop_body(&t);
    assert_null(t.model);
    assert_null(t.sampling.request_id);
    completion_request_free(&t);
#undef SHARED
}

static void F082_salts_follow_their_rule(void **state) {
    assert_true(api_salt_valid("a", 1));
    assert_false(api_salt_valid("", 0));
    assert_false(api_salt_valid("a\0b", 3));
    char longest[129 * 2];
    for (int i = 0; i < 129; i++)
        memcpy(longest + 2 * i, "\xC3\xA9", 2);
    assert_true(api_salt_valid(longest, 256));
    assert_false(api_salt_valid(longest, 258));
    /* A salt is a secret: the refusal must not repeat it. */
    struct api_error e = chat_error("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                                    "\"cache_salt\":\"hush/hush\"}");
    assert_null(strstr(e.message, "hush"));
}

static void scripts_are_refused_outside_the_null_column(void **state) {
    limits.null_column = false;
    struct api_error e = chat_error("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                                    "\"weir_output_ids\":[1]}");
    limits.null_column = true;
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "weir_output_ids");
}

static void bodies_that_are_no_json_object_are_refused(void **state) {
    static const char *const bodies[] = {
        "",
        " ",
        "[]",
        "5",
        "null",
        "\"x\"",
        "{",
        "{}}",
        "{\"a\":1,}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":\"\xFF\"}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udc00\\ud800\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":tru}",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":1}x",
        "{\"a\":/**/1}",
        "{\"a\":\"\\x\"}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct api_error e = {0};
        json_t *v = json_read_object(bodies[i], strlen(bodies[i]), NULL, &e);
        if (v || e.status != 400)
            fail_msg("accepted: %s", bodies[i]);
    }
}

static void depth_of_64_passes_and_65_does_not(void **state) {
    for (int depth = 64; depth <= 65; depth++) {
        struct text body = {0};
        text_puts(&body, "{\"a\":");
        for (int i = 1; i < depth; i++)
            text_puts(&body, "[");
        for (int i = 1; i < depth; i++)
            text_puts(&body, "]");
        text_puts(&body, "}");
        struct api_error e = {0};
        json_t *v = json_read_object(body.data, body.n, NULL, &e);
        assert_int_equal(v != NULL, depth == 64);
        json_decref(v);
        text_free(&body);
    }
}

static void values_in_messages_are_cut_to_200_characters(void **state) {
    struct text body = {0};
    text_puts(&body, "{\"prompt\":\"x\",\"temperature\":\"");
    for (int i = 0; i < 5000; i++)
        text_puts(&body, "\xF0\x9F\x98\x80");
    text_puts(&body, "\"}");
    struct api_error e = completion_error(body.data);
    size_t chars = 0;
    for (const char *s = e.message; *s; s++)
        chars += ((unsigned char)*s & 0xC0) != 0x80;
    assert_in_range(chars, 200, 320);
    struct text written = {0};
    json_put_string(&written, e.message, strlen(e.message));
    assert_null(strstr(written.data, "\xEF\xBF\xBD"));
    text_free(&written);
    text_free(&body);
}

static void strings_are_escaped_and_repaired(void **state) {
    struct text out = {0};
    json_put_string(&out, "a\"\\\n\x01\xFF\xC3\xA9", 8);
    assert_string_equal(out.data, "\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBD\xC3\xA9\"");
    text_clear(&out);
    json_put_float(&out, -0.1f);
    assert_string_equal(out.data, "-0.1");
    text_clear(&out);
    json_put_float(&out, -3);
    assert_string_equal(out.data, "-3.0");
    text_free(&out);
}

static void generation_config_gives_the_defaults(void **state) {
    struct api_limits l = {.vocab = 2816};
    weir_error err = {0};
    assert_int_equal(api_read_generation_config(source_path("models/tiny-k3"), &l, &err), WEIR_OK);
    assert_true(l.temperature == 1 && l.top_p == 1 && l.top_k == 0);
    char dir[] = "/tmp/weir-config-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char path[64];
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(api_read_generation_config(dir, &l, &err), WEIR_OK);
    FILE *f = fopen(path, "w");
    fputs("{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20}", f);
    fclose(f);
    assert_int_equal(api_read_generation_config(dir, &l, &err), WEIR_OK);
    assert_true(l.temperature == 0.6 && l.top_p == 0.95 && l.top_k == 20);
    f = fopen(path, "w");
    fputs("{\"temperature\":\"hot\"}", f);
    fclose(f);
    assert_int_equal(api_read_generation_config(dir, &l, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "temperature"));
    remove(path);
    remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bad_field_is_named_with_status_and_rule),
        cmocka_unit_test(good_fields_pass_on_both_endpoints),
        cmocka_unit_test(good_messages_pass),
        cmocka_unit_test(developer_becomes_system_and_reasoning_its_long_name),
        cmocka_unit_test(values_arrive_as_written),
        cmocka_unit_test(thinking_follows_effort_and_the_template_key_wins),
        cmocka_unit_test(F027_overlong_request_tells_limit_prompt_and_output),
        cmocka_unit_test(prompts_times_choices_are_bounded),
        cmocka_unit_test(repeated_prompt_values_are_bounded),
        cmocka_unit_test(missing_fields_are_called_missing),
        cmocka_unit_test(default_length_is_cut_to_the_room_left),
        cmocka_unit_test(F029_bad_logit_bias_is_refused_each_time),
        cmocka_unit_test(F030_numbers_that_are_none_are_refused),
        cmocka_unit_test(F036_ids_beyond_the_vocabulary_name_its_size),
        cmocka_unit_test(F037_bad_words_are_bounded_and_spelled_both_ways),
        cmocka_unit_test(F076_a_huge_n_is_refused_before_anything_is_allocated),
        cmocka_unit_test(F020_schemas_with_references_pass_whole),
        cmocka_unit_test(F081_hostile_schemas_end_in_a_refusal),
        cmocka_unit_test(values_are_counted_by_what_they_cost),
        cmocka_unit_test(a_request_outlives_its_body),
        cmocka_unit_test(F082_salts_follow_their_rule),
        cmocka_unit_test(scripts_are_refused_outside_the_null_column),
        cmocka_unit_test(bodies_that_are_no_json_object_are_refused),
        cmocka_unit_test(depth_of_64_passes_and_65_does_not),
        cmocka_unit_test(values_in_messages_are_cut_to_200_characters),
        cmocka_unit_test(strings_are_escaped_and_repaired),
        cmocka_unit_test(generation_config_gives_the_defaults),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
