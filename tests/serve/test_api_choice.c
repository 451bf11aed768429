/* test_api_choice.c: scripted output through parser, stop matcher and writers. For every script the
 * joined stream must equal the whole reply for every way of cutting the output into steps. */
#include "tests/test.h"

#include "serve/api_reply.h"
#include "serve/chat_request.h"

static struct tokenizer *tokenizer;
static struct chat *chat;

static int open_text(void **state) {
    weir_error err = {0};
    if (tokenizer_open(source_path("models/tiny-k3"), 2816, &tokenizer, &err) != WEIR_OK ||
        chat_open(CHAT_K3, tokenizer, &chat, &err) != WEIR_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        return -1;
    }
    return 0;
}

static int close_text(void **state) {
    chat_close(chat);
    tokenizer_close(tokenizer);
    return 0;
}

/* What is asked for and what the model says; markers in their spelling. */
struct script {
    const char *output;
    bool plain;    /* text completion */
    bool no_think; /* starts in the response channel */
    bool no_calls, one_call, logprobs, hide_reasoning, include_stop;
    const char *stops[3];
    uint32_t min_tokens;
    bool ignore_eos;
    weir_finish finish; /* 0: stop by the model's end */
    int32_t stop_id;    /* with WEIR_FINISH_STOP: an id of the client's */
};

/* An answer, whole or joined. */
struct answer {
    struct text reasoning, content, calls, finish, logprobs;
    bool content_null;
    int64_t tokens;
    size_t events, argument_events, call_begins;
    size_t first_text_event; /* number of the step that first showed content, from 1 */
    size_t step;
    struct text argument[8];
    bool paced; /* check that no token's entry comes before its text */
    size_t token_bytes;
};

static void answer_free(struct answer *a) {
    text_free(&a->reasoning);
    text_free(&a->content);
    text_free(&a->calls);
    text_free(&a->finish);
    text_free(&a->logprobs);
    for (size_t i = 0; i < 8; i++)
        text_free(&a->argument[i]);
}

static void append(struct text *t, const json_t *string) {
    if (json_is_string(string))
        text_append(t, json_string_value(string), json_string_length(string));
}

static void append_logprobs(struct text *t, const json_t *logprobs) {
    static const char *const keys[] = {"content", "tokens", "token_logprobs", "text_offset"};
    for (size_t k = 0; k < 4; k++) {
        const json_t *list = json_object_get(logprobs, keys[k]);
        for (size_t i = 0; i < json_array_size(list); i++) {
            char *s = json_dumps(json_array_get(list, i), JSON_ENCODE_ANY | JSON_COMPACT);
            if (k == 0 || k == 1)
                text_puts(t, s);
            free(s);
        }
    }
}

static void begin_call(struct answer *a, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    append(&a->calls, json_object_get(call, "id"));
    text_puts(&a->calls, " ");
    append(&a->calls, json_object_get(function, "name"));
    text_puts(&a->calls, "\n");
    a->call_begins++;
}

static void end_choice(struct answer *a, const json_t *choice) {
    append(&a->finish, json_object_get(choice, "finish_reason"));
    text_puts(&a->finish, " ");
    char *s = json_dumps(json_object_get(choice, "stop_reason"), JSON_ENCODE_ANY);
    text_puts(&a->finish, s);
    free(s);
}

static void take_call_delta(struct answer *a, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    json_int_t index = json_integer_value(json_object_get(call, "index"));
    assert_true(json_is_integer(json_object_get(call, "index")));
    assert_true(json_is_string(arguments));
    assert_in_range(index, 0, 7);
    if (json_object_get(call, "id")) {
        assert_int_equal(index, a->call_begins);
        assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
        assert_string_equal(json_string_value(arguments), "");
        begin_call(a, call);
    } else {
        assert_null(json_object_get(function, "name"));
        assert_int_equal(index + 1, a->call_begins);
        assert_true(json_string_length(arguments) > 0);
        a->argument_events++;
    }
    append(&a->argument[index], arguments);
}

/* An entry may come with later text than its own, never earlier. */
static void check_pace(struct answer *a, const json_t *logprobs) {
    const json_t *tokens = json_object_get(logprobs, "tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        a->token_bytes += json_string_length(json_array_get(tokens, i));
    assert_true(a->token_bytes <= a->content.n);
}

/* F-032: every choice of every chunk has delta, index and finish_reason. */
static void take_event(void *arg, const char *json, size_t n) {
    struct answer *a = arg;
    assert_null(memchr(json, '\n', n));
    json_t *event = json_loadb(json, n, 0, NULL);
    assert_non_null(event);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *text = json_object_get(choice, "text");
    assert_true(json_is_object(delta) || json_is_string(text));
    assert_true(json_is_integer(json_object_get(choice, "index")));
    assert_non_null(json_object_get(choice, "finish_reason"));
    assert_non_null(json_object_get(choice, "logprobs"));
    const json_t *content = text ? text : json_object_get(delta, "content");
    bool last = json_is_string(json_object_get(choice, "finish_reason"));
    if (a->events > 0 && !last && json_is_string(content))
        assert_true(json_string_length(content) > 0);
    if (json_string_length(content) > 0 && a->first_text_event == 0)
        a->first_text_event = a->step;
    append(&a->content, content);
    append(&a->reasoning, json_object_get(delta, "reasoning_content"));
    const json_t *calls = json_object_get(delta, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++)
        take_call_delta(a, json_array_get(calls, i));
    append_logprobs(&a->logprobs, json_object_get(choice, "logprobs"));
    if (a->paced)
        check_pace(a, json_object_get(choice, "logprobs"));
    if (last)
        end_choice(a, choice);
    a->events++;
    json_decref(event);
}

static void take_whole(struct answer *a, const struct text *json) {
    json_t *reply = json_loadb(json->data, json->n, 0, NULL);
    assert_non_null(reply);
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *text = json_object_get(choice, "text");
    const json_t *content = text ? text : json_object_get(message, "content");
    a->content_null = json_is_null(content);
    append(&a->content, content);
    append(&a->reasoning, json_object_get(message, "reasoning_content"));
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        append(&a->argument[i], json_object_get(json_object_get(call, "function"), "arguments"));
        begin_call(a, call);
    }
    append_logprobs(&a->logprobs, json_object_get(choice, "logprobs"));
    end_choice(a, choice);
    json_decref(reply);
}

static weir_token token_of(int32_t id) {
    weir_token t = {.id = id, .logprob = -0.25f, .rank = 2, .n_top = 2};
    t.top[0] = (weir_logprob){7, -0.125f};
    t.top[1] = (weir_logprob){id, -0.25f};
    return t;
}

/* Feeds ids in steps; `cuts` holds the step sizes, the last one repeats. */
static void play(const struct script *s, const int32_t *ids, size_t n, const size_t *cuts,
                 size_t n_cuts, bool stream, struct answer *a) {
    struct api_sampling sampling = {.skip_special = true, .include_stop = s->include_stop};
    sampling.params.min_tokens = s->min_tokens;
    sampling.params.ignore_eos = s->ignore_eos;
    int32_t end_ids[2];
    sampling.params.stop_ids = end_ids;
    sampling.params.n_stop_ids = s->plain || s->ignore_eos ? 0 : chat_stop_ids(chat, end_ids, 2);
    for (; sampling.n_stops < 3 && s->stops[sampling.n_stops]; sampling.n_stops++) {
        sampling.stops[sampling.n_stops] = s->stops[sampling.n_stops];
        sampling.stop_bytes[sampling.n_stops] = strlen(s->stops[sampling.n_stops]);
    }
    struct choice_options o = {.tokenizer = tokenizer,
                               .chat = s->plain ? NULL : chat,
                               .parser = {.thinking = !s->no_think,
                                          .tools = !s->no_calls,
                                          .one_call = s->one_call,
                                          .id_seed = 5},
                               .sampling = &sampling,
                               .logprobs = s->logprobs};
    struct api_envelope v = {.chat = !s->plain,
                             .id = "i",
                             .model = "m",
                             .sampling = &sampling,
                             .logprob_style = {.tokenizer = tokenizer, .top = 2},
                             .logprobs = s->logprobs,
                             .hide_reasoning = s->hide_reasoning,
                             .reasoning = REASONING_CONTENT};
    struct api_prompt prompt = {0};
    struct api_choice *choice = api_choice_new(&o);
    if (stream)
        api_event_first(&v, 0, &prompt, NULL, take_event, a);
    weir_finish finish = s->finish ? s->finish : WEIR_FINISH_STOP;
    bool on = true;
    for (size_t at = 0, step = 0; on && at < n; step++) {
        size_t size = cuts[step < n_cuts ? step : n_cuts - 1];
        a->step = step + 1;
        for (size_t i = 0; on && i < size && at < n; i++, at++) {
            weir_token t = token_of(ids[at]);
            on = api_choice_feed(choice, &t, finish == WEIR_FINISH_STOP && at + 1 == n);
        }
        if (stream)
            api_event_step(&v, 0, choice, NULL, take_event, a);
    }
    if (!on)
        finish = WEIR_FINISH_STOP;
    api_choice_end(choice, finish, s->finish == WEIR_FINISH_STOP ? s->stop_id : -1);
    if (stream) {
        api_event_step(&v, 0, choice, NULL, take_event, a);
        api_event_finish(&v, 0, choice, NULL, take_event, a);
    } else {
        struct text out = {0};
        struct api_usage usage = {0};
        api_reply_write(&v, &choice, 1, &prompt, 1, &usage, &out);
        take_whole(a, &out);
        text_free(&out);
    }
    a->tokens = api_choice_tokens(choice);
    api_choice_free(choice);
    api_envelope_free(&v);
}

static void same(const char *what, const struct text *a, const struct text *b) {
    if (a->n != b->n || (a->n && memcmp(a->data, b->data, a->n) != 0))
        fail_msg("%s: '%s' and '%s'", what, a->n ? a->data : "", b->n ? b->data : "");
}

static void same_answer(const struct answer *whole, const struct answer *joined) {
    same("reasoning", &whole->reasoning, &joined->reasoning);
    same("content", &whole->content, &joined->content);
    same("calls", &whole->calls, &joined->calls);
    same("finish", &whole->finish, &joined->finish);
    same("logprobs", &whole->logprobs, &joined->logprobs);
    assert_int_equal(whole->tokens, joined->tokens);
    for (size_t i = 0; i < 8; i++)
        same("arguments", &whole->argument[i], &joined->argument[i]);
}

static void ids_of(const char *text, struct ids *ids) {
    tokenizer_encode_special(tokenizer, text, strlen(text), ids);
}

/* Plays whole, then streamed with every single cut and with steady steps; all must agree. */
static void play_all(const struct script *s, struct answer *whole) {
    struct ids ids = {0};
    ids_of(s->output, &ids);
    size_t all = SIZE_MAX;
    *whole = (struct answer){0};
    play(s, ids.data, ids.n, &all, 1, false, whole);
    size_t most = ids.n < 400 ? ids.n : 40;
    for (size_t cut = 1; cut <= most; cut++) {
        size_t cuts[2] = {cut, all};
        for (size_t steady = 0; steady < 2; steady++) {
            struct answer joined = {0};
            play(s, ids.data, ids.n, cuts, 2 - steady, true, &joined);
            same_answer(whole, &joined);
            answer_free(&joined);
        }
        struct answer pieces = {0};
        play(s, ids.data, ids.n, cuts, 1, false, &pieces);
        same_answer(whole, &pieces);
        answer_free(&pieces);
    }
    ids_free(&ids);
}

static const char *str(const struct text *t) {
    return t->data ? t->data : "";
}

#define THINK_END         "<|close|>think<|sep|>"
#define ANSWER            "<|open|>response<|sep|>"
#define ANSWER_END        "<|close|>response<|sep|>"
#define TOOLS             "<|open|>tools<|sep|>"
#define TOOLS_END         "<|close|>tools<|sep|>"
#define END               "<|close|>message<|sep|><|end_of_msg|>"
#define CALL(name, index) "<|open|>call tool=\"" name "\" index=\"" index "\"<|sep|>"
#define CALL_END          "<|close|>call<|sep|>"
#define ARG(key, type, value)                                                                      \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" value "<|close|>argument<|sep|>"

static void expect(const struct script *s, const char *reasoning, const char *content,
                   const char *finish) {
    struct answer a;
    play_all(s, &a);
    assert_string_equal(str(&a.reasoning), reasoning);
    assert_string_equal(str(&a.content), content ? content : "");
    assert_int_equal(a.content_null, content == NULL);
    assert_string_equal(str(&a.finish), finish);
    answer_free(&a);
}

static void F012_no_marker_reaches_content(void **state) {
    struct script s = {.output = "Hm." THINK_END ANSWER "Hi" ANSWER_END END};
    expect(&s, "Hm.", "Hi", "stop null");
    s.output = "Hm." THINK_END ANSWER "Hi<|close|>message<|sep|><|end_of_msg|>";
    expect(&s, "Hm.", "Hi", "stop null");
}

static void F013_tools_right_after_thinking_are_calls(void **state) {
    struct script s = {.output = "I look it up." TOOLS CALL("weather", "1")
                           ARG("city", "string", "Oslo") CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    assert_string_equal(str(&a.reasoning), "I look it up.");
    assert_string_equal(str(&a.argument[0]), "{\"city\":\"Oslo\"}");
    assert_string_equal(str(&a.finish), "tool_calls null");
    assert_true(a.content_null);
    answer_free(&a);
}

static void long_argument(struct text *out, size_t bytes) {
    text_puts(out, THINK_END TOOLS "<|open|>call tool=\"write\" index=\"1\"<|sep|>"
                                   "<|open|>argument key=\"body\" type=\"string\"<|sep|>");
    while (bytes > 0) {
        static const char piece[] = "the \"quick\" fox\n\\ j\xC3\xA9 ";
        size_t n = bytes < sizeof piece - 1 ? bytes : sizeof piece - 1;
        if (n < sizeof piece - 1) {
            text_append(out, "xxxxxxxxxxxxxxxxxxxxxxxxxxxx", n);
        } else {
            text_append(out, piece, n);
        }
        bytes -= n;
    }
    text_puts(out, "<|close|>argument<|sep|>" CALL_END TOOLS_END END);
}

static void F014_arguments_stream_while_they_are_generated(void **state) {
    struct text output = {0};
    struct ids ids = {0};
    long_argument(&output, 2000);
    struct script s = {.output = output.data};
    ids_of(s.output, &ids);
    struct answer a = {0}, whole = {0};
    size_t one = 1;
    play(&s, ids.data, ids.n, &one, 1, true, &a);
    assert_int_equal(a.call_begins, 1);
    assert_true(a.argument_events >= 20);
    json_t *arguments = json_loads(str(&a.argument[0]), 0, NULL);
    assert_int_equal(json_string_length(json_object_get(arguments, "body")), 2000);
    json_decref(arguments);
    answer_free(&a);
    play_all(&s, &whole);
    answer_free(&whole);
    text_free(&output);
    ids_free(&ids);
}

static void F015_broken_argument_values_come_as_strings(void **state) {
    struct script s = {.output = THINK_END ANSWER ANSWER_END TOOLS CALL("f", "1")
                           ARG("a", "object", "not json") ARG("b", "number", "abc")
                               ARG("c", "object", "\"x\"") ARG("d", "string", "ok")
                                   CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    json_t *arguments = json_loads(str(&a.argument[0]), 0, NULL);
    assert_non_null(arguments);
    assert_string_equal(json_string_value(json_object_get(arguments, "a")), "not json");
    assert_string_equal(json_string_value(json_object_get(arguments, "b")), "abc");
    assert_string_equal(json_string_value(json_object_get(arguments, "d")), "ok");
    assert_null(strstr(str(&a.argument[0]), "<|"));
    json_decref(arguments);
    answer_free(&a);
}

static void F016_content_and_two_calls_in_one_step_and_a_long_argument(void **state) {
    struct script s = {.output = THINK_END ANSWER "Let me see." ANSWER_END TOOLS CALL("a", "1")
                           ARG("x", "number", "1") CALL_END CALL("b", "2") ARG("y", "string", "2")
                               CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    assert_string_equal(str(&a.content), "Let me see.");
    assert_int_equal(a.call_begins, 2);
    assert_string_equal(str(&a.argument[0]), "{\"x\":1}");
    assert_string_equal(str(&a.argument[1]), "{\"y\":\"2\"}");
    answer_free(&a);

    struct text output = {0};
    struct ids ids = {0};
    long_argument(&output, 65536);
    s.output = output.data;
    ids_of(s.output, &ids);
    struct answer whole = {0}, joined = {0};
    size_t all = SIZE_MAX, seven = 7;
    play(&s, ids.data, ids.n, &all, 1, false, &whole);
    play(&s, ids.data, ids.n, &seven, 1, true, &joined);
    same_answer(&whole, &joined);
    json_t *arguments = json_loads(str(&whole.argument[0]), 0, NULL);
    assert_int_equal(json_string_length(json_object_get(arguments, "body")), 65536);
    json_decref(arguments);
    answer_free(&whole);
    answer_free(&joined);
    text_free(&output);
    ids_free(&ids);
}

static void F018_literals_keep_their_spelling_and_calls_their_order(void **state) {
    struct script s = {
        .output = THINK_END ANSWER ANSWER_END TOOLS CALL("second", "2") ARG("a", "number", "1e2")
            ARG("b", "number", "1.0") CALL_END CALL("first", "1")
                ARG("c", "number", "12345678901234567890") CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    assert_string_equal(str(&a.argument[0]), "{\"c\":12345678901234567890}");
    assert_string_equal(str(&a.argument[1]), "{\"a\":1e2,\"b\":1.0}");
    assert_true(strstr(str(&a.calls), " first\n") < strstr(str(&a.calls), " second\n"));
    answer_free(&a);
}

static void F021_output_that_ends_before_an_answer(void **state) {
    struct script s = {.output = "I think about", .finish = WEIR_FINISH_LENGTH};
    expect(&s, "I think about", NULL, "length null");
    s = (struct script){.output = "Done." THINK_END "<|end_of_msg|>"};
    expect(&s, "Done.", "", "stop null");
}

static void F023_text_goes_where_thinking_says(void **state) {
    struct script s = {.output = "Plain text." ANSWER_END END, .no_think = true};
    expect(&s, "", "Plain text.", "stop null");
    s = (struct script){.output = "Plain text." THINK_END ANSWER "Yes." ANSWER_END END};
    expect(&s, "Plain text.", "Yes.", "stop null");
    s.hide_reasoning = true;
    expect(&s, "", "Yes.", "stop null");
}

static void F024_three_calls_count_0_1_2(void **state) {
    struct script s = {.output = THINK_END ANSWER ANSWER_END TOOLS CALL("a", "1")
                           ARG("x", "number", "1") CALL_END CALL("b", "2") CALL_END CALL("c", "3")
                               ARG("z", "boolean", "true") CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    assert_int_equal(a.call_begins, 3);
    assert_string_equal(str(&a.argument[0]), "{\"x\":1}");
    assert_string_equal(str(&a.argument[1]), "{}");
    assert_string_equal(str(&a.argument[2]), "{\"z\":true}");
    answer_free(&a);
    s.one_call = true;
    play_all(&s, &a);
    assert_int_equal(a.call_begins, 1);
    answer_free(&a);
    s.one_call = false;
    s.no_calls = true;
    play_all(&s, &a);
    assert_int_equal(a.call_begins, 0);
    assert_string_equal(str(&a.finish), "stop null");
    answer_free(&a);
}

/* A call that the model gave up for the next one gets no end; the next one streams all the same. */
static void a_call_behind_an_abandoned_one_streams_as_it_comes(void **state) {
    struct text output = {0};
    struct ids ids = {0};
    text_puts(&output, THINK_END TOOLS "<|open|>call tool=\"left\" index=\"1\"<|sep|>"
                                       "<|open|>call tool=\"write\" index=\"2\"<|sep|>"
                                       "<|open|>argument key=\"body\" type=\"string\"<|sep|>");
    for (int i = 0; i < 100; i++)
        text_puts(&output, "the quick fox ");
    text_puts(&output, "<|close|>argument<|sep|>" CALL_END TOOLS_END END);
    struct script s = {.output = output.data};
    ids_of(s.output, &ids);
    struct answer a = {0}, whole = {0};
    size_t one = 1;
    play(&s, ids.data, ids.n, &one, 1, true, &a);
    assert_int_equal(a.call_begins, 2);
    assert_true(a.argument_events >= 20);
    answer_free(&a);
    play_all(&s, &whole);
    answer_free(&whole);
    text_free(&output);
    ids_free(&ids);
}

static void calls_without_their_first_index_come_at_the_end(void **state) {
    struct script s = {.output = THINK_END ANSWER ANSWER_END TOOLS CALL("c", "7")
                           ARG("x", "number", "1") CALL_END CALL("b", "5") CALL_END TOOLS_END END};
    struct answer a;
    play_all(&s, &a);
    assert_int_equal(a.call_begins, 2);
    assert_string_equal(str(&a.argument[1]), "{\"x\":1}");
    answer_free(&a);
}

static void generation_cut_inside_a_call_keeps_what_was_sent(void **state) {
    struct script s = {
        .output = THINK_END ANSWER ANSWER_END TOOLS CALL(
            "write", "1") "<|open|>argument key=\"body\" type=\"string\"<|sep|>Once upon a",
        .finish = WEIR_FINISH_LENGTH};
    struct answer a;
    play_all(&s, &a);
    assert_string_equal(str(&a.finish), "length null");
    assert_true(strncmp("{\"body\":\"Once upon a\"}", str(&a.argument[0]), a.argument[0].n) == 0);
    answer_free(&a);
}

static void F011_characters_of_several_tokens_stay_whole(void **state) {
    struct script s = {.output = THINK_END ANSWER "a \xF0\x9F\x98\x80 caf\xC3\xA9 \xE9\xBE\x8D"
                                                  "." ANSWER_END END,
                       .logprobs = true};
    expect(&s, "", "a \xF0\x9F\x98\x80 caf\xC3\xA9 \xE9\xBE\x8D.", "stop null");
    s = (struct script){.output = "a \xF0\x9F\x98\x80 caf\xC3\xA9 \xE9\xBE\x8D.",
                        .plain = true,
                        .logprobs = true,
                        .finish = WEIR_FINISH_LENGTH};
    expect(&s, "", "a \xF0\x9F\x98\x80 caf\xC3\xA9 \xE9\xBE\x8D.", "length null");
}

static void unfinished_character_at_the_end_is_replaced(void **state) {
    struct ids ids = {0};
    ids_of("x\xF0\x9F\x98\x80", &ids);
    struct script s = {.plain = true, .finish = WEIR_FINISH_LENGTH, .logprobs = true};
    struct answer whole = {0}, joined = {0};
    size_t one = 1;
    assert_true(ids.n >= 3);
    play(&s, ids.data, ids.n - 1, &one, 1, false, &whole);
    play(&s, ids.data, ids.n - 1, &one, 1, true, &joined);
    same_answer(&whole, &joined);
    assert_string_equal(str(&whole.content), "x\xEF\xBF\xBD");
    answer_free(&whole);
    answer_free(&joined);
    ids_free(&ids);
}

static void F033_no_part_of_a_stop_string_reaches_the_client(void **state) {
    struct script s = {.output = THINK_END ANSWER "Yes.\nUser: more" ANSWER_END END,
                       .stops = {"\nUser:"}};
    expect(&s, "", "Yes.", "stop \"\\nUser:\"");
    s.output = THINK_END ANSWER "Yes.\nUsers are many" ANSWER_END END;
    expect(&s, "", "Yes.\nUsers are many", "stop null");
    s.output = THINK_END ANSWER "Yes.\nUser" ANSWER_END END;
    expect(&s, "", "Yes.\nUser", "stop null");
    s.plain = true;
    s.output = "Yes.\nUser: more";
    expect(&s, "", "Yes.", "stop \"\\nUser:\"");
    s = (struct script){
        .output = "a b c", .plain = true, .stops = {"b c d", "b"}, .finish = WEIR_FINISH_LENGTH};
    expect(&s, "", "a ", "stop \"b\"");
}

static void F034_text_is_held_only_while_it_may_become_a_stop(void **state) {
    struct script s = {.output = "Some words without it", .plain = true, .stops = {"zzzzzzzzzzzz"}};
    struct ids ids = {0};
    ids_of(s.output, &ids);
    struct answer a = {0};
    size_t one = 1;
    play(&s, ids.data, ids.n, &one, 1, true, &a);
    assert_int_equal(a.first_text_event, 1);
    answer_free(&a);
    ids_free(&ids);
}

static void F035_stop_string_is_shown_only_when_asked_for(void **state) {
    for (int plain = 0; plain < 2; plain++) {
        struct script s = {.output = plain ? "One END two"
                                           : THINK_END ANSWER "One END two" ANSWER_END END,
                           .plain = plain,
                           .stops = {"END"}};
        expect(&s, "", "One ", "stop \"END\"");
        s.include_stop = true;
        expect(&s, "", "One END", "stop \"END\"");
    }
}

static void stop_strings_do_not_act_in_thinking_or_arguments(void **state) {
    struct script s = {.output = "END here" THINK_END ANSWER "ok" ANSWER_END TOOLS CALL("f", "1")
                           ARG("x", "string", "END") CALL_END TOOLS_END END,
                       .stops = {"END"}};
    struct answer a;
    play_all(&s, &a);
    assert_string_equal(str(&a.reasoning), "END here");
    assert_string_equal(str(&a.argument[0]), "{\"x\":\"END\"}");
    assert_string_equal(str(&a.finish), "tool_calls null");
    answer_free(&a);
}

static void min_tokens_delays_stop_strings(void **state) {
    struct ids ids = {0};
    ids_of("END one", &ids);
    struct script s = {.output = "END one END two",
                       .plain = true,
                       .stops = {"END"},
                       .min_tokens = (uint32_t)ids.n + 1};
    ids_free(&ids);
    expect(&s, "", "END one ", "stop \"END\"");
    s.min_tokens = 0;
    expect(&s, "", "", "stop \"END\"");
}

static void tokens_behind_a_stop_string_do_not_count(void **state) {
    struct ids ids = {0};
    ids_of("One END", &ids);
    struct script s = {.output = "One END two three four", .plain = true, .stops = {"END"}};
    struct answer a;
    play_all(&s, &a);
    assert_int_equal(a.tokens, ids.n);
    ids_free(&ids);
    answer_free(&a);
}

static void stop_id_is_told_and_its_text_hidden(void **state) {
    struct ids ids = {0};
    ids_of(" two", &ids);
    assert_int_equal(ids.n, 1);
    struct script s = {
        .output = "One two", .plain = true, .finish = WEIR_FINISH_STOP, .stop_id = ids.data[0]};
    char finish[64];
    snprintf(finish, sizeof finish, "stop %d", ids.data[0]);
    expect(&s, "", "One", finish);
    s.include_stop = true;
    expect(&s, "", "One two", finish);
    ids_free(&ids);
}

static void chat_logprobs_name_the_visible_tokens_only(void **state) {
    struct ids ids = {0};
    ids_of("The answer is four.", &ids);
    struct script s = {.output =
                           "Two and two." THINK_END ANSWER "The answer is four." ANSWER_END END,
                       .logprobs = true};
    struct answer a;
    play_all(&s, &a);
    size_t entries = 0;
    for (const char *p = str(&a.logprobs); (p = strstr(p, "\"top_logprobs\"")); p++)
        entries++;
    assert_int_equal(entries, ids.n);
    answer_free(&a);
    ids_free(&ids);
}

static void logprobs_wait_for_held_text(void **state) {
    struct script s = {.output = "Yes.\nUsers are many",
                       .plain = true,
                       .logprobs = true,
                       .stops = {"\nUser: "},
                       .finish = WEIR_FINISH_LENGTH};
    struct ids ids = {0};
    ids_of(s.output, &ids);
    struct answer a = {.paced = true};
    size_t one = 1;
    play(&s, ids.data, ids.n, &one, 1, true, &a);
    assert_int_equal(a.token_bytes, strlen(s.output));
    answer_free(&a);
    ids_free(&ids);
}

static void expect_tokens(const struct script *s, const char *counted, const char *finish) {
    struct ids ids = {0};
    struct answer a;
    ids_of(counted, &ids);
    play_all(s, &a);
    assert_string_equal(str(&a.content), "Hi");
    assert_string_equal(str(&a.finish), finish);
    assert_int_equal(a.tokens, ids.n);
    answer_free(&a);
    ids_free(&ids);
}

/* Hidden tokens are not generated up to max_tokens; the end id behind the marker still counts. */
static void a_model_that_goes_on_behind_its_turn_is_stopped(void **state) {
#define CLOSED THINK_END ANSWER "Hi" ANSWER_END "<|close|>message<|sep|>"
    struct script s = {.output = CLOSED " two three four five", .finish = WEIR_FINISH_LENGTH};
    expect_tokens(&s, CLOSED " two", "stop null");
    s.output = CLOSED "<|open|>message role=\"user\"<|sep|>more";
    expect_tokens(&s, CLOSED "<|open|>", "stop null");
    s.finish = 0;
    s.output = CLOSED "<|end_of_msg|>";
    expect_tokens(&s, s.output, "stop null");
    /* Who asks for a length gets it. */
    s = (struct script){.output = CLOSED "<|end_of_msg|> two three",
                        .ignore_eos = true,
                        .finish = WEIR_FINISH_LENGTH};
    expect_tokens(&s, s.output, "length null");
    s = (struct script){.output = CLOSED " two two two", .finish = WEIR_FINISH_LENGTH};
    struct ids ids = {0};
    ids_of(CLOSED " two two", &ids);
    s.min_tokens = (uint32_t)ids.n;
    ids_free(&ids);
    expect_tokens(&s, CLOSED " two two", "stop null");
#undef CLOSED
}

/* "b" is held as the head of a longer stop; the end of the answer makes it a match of its own. */
static void thinking_behind_a_stop_string_is_dropped(void **state) {
    struct script s = {.output = THINK_END ANSWER "a b" ANSWER_END
                                                  "<|open|>think<|sep|>late" THINK_END END,
                       .stops = {"b c d", "b"}};
    expect(&s, "", "a ", "stop \"b\"");
}

/* Every call waits for one that never comes: finding the next one must not walk all of them, nor
 * may the reply walk all pieces for each call. */
static void many_calls_keep_content_and_order(void **state) {
    enum { CALLS = 4000 };
    struct text output = {0};
    struct ids ids = {0};
    char head[96];
    text_puts(&output, TOOLS);
    for (int i = CALLS; i > 0; i--) {
        snprintf(head, sizeof head, "<|open|>call tool=\"f%d\" index=\"%d\"<|sep|>" CALL_END, i,
                 i + 1);
        text_puts(&output, head);
    }
    text_puts(&output, TOOLS_END END);
    ids_of(output.data, &ids);
    struct api_sampling sampling = {.skip_special = true};
    struct choice_options o = {.tokenizer = tokenizer,
                               .chat = chat,
                               .parser = {.thinking = true, .tools = true},
                               .sampling = &sampling};
    struct api_choice *choice = api_choice_new(&o);
    for (size_t i = 0; i < ids.n; i++) {
        weir_token token = token_of(ids.data[i]);
        assert_true(api_choice_feed(choice, &token, i + 1 == ids.n));
    }
    assert_int_equal(api_choice_pieces(choice).n, 0);
    api_choice_end(choice, WEIR_FINISH_STOP, -1);
    struct api_envelope v = {.chat = true,
                             .id = "i",
                             .model = "m",
                             .sampling = &sampling,
                             .reasoning = REASONING_CONTENT};
    struct api_prompt prompt = {0};
    struct api_usage usage = {0};
    struct text out = {0};
    api_reply_write(&v, &choice, 1, &prompt, 1, &usage, &out);
    json_t *reply = json_loadb(out.data, out.n, 0, NULL);
    const json_t *calls = json_object_get(
        json_object_get(json_array_get(json_object_get(reply, "choices"), 0), "message"),
        "tool_calls");
    assert_int_equal(json_array_size(calls), CALLS);
    for (int i = 0; i < CALLS; i++) {
        const json_t *function = json_object_get(json_array_get(calls, (size_t)i), "function");
        snprintf(head, sizeof head, "f%d", i + 1);
        assert_string_equal(json_string_value(json_object_get(function, "name")), head);
        assert_string_equal(json_string_value(json_object_get(function, "arguments")), "{}");
    }
    json_decref(reply);
    text_free(&out);
    text_free(&output);
    ids_free(&ids);
    api_choice_free(choice);
    api_envelope_free(&v);
}

/* A reply over its limit is refused, early enough that no list is written to its end. */
static void a_reply_over_its_limit_is_not_written(void **state) {
    enum { PROMPT = 5000, LIMIT = 10000 };
    struct api_sampling sampling = {.skip_special = true};
    sampling.params.prompt_logprobs = 0;
    struct choice_options o = {.tokenizer = tokenizer, .sampling = &sampling, .logprobs = true};
    struct api_choice *choices[2] = {api_choice_new(&o), api_choice_new(&o)};
    weir_token *scored = calloc(PROMPT, sizeof *scored);
    int32_t *prompt_ids = calloc(PROMPT, sizeof *prompt_ids);
    assert_true(scored && prompt_ids);
    for (int i = 0; i < PROMPT; i++)
        scored[i] = token_of(prompt_ids[i] = 5);
    struct api_prompt prompt = {.ids = prompt_ids, .n = PROMPT, .scored = scored};
    struct api_envelope v = {.id = "i",
                             .model = "m",
                             .sampling = &sampling,
                             .logprob_style = {.tokenizer = tokenizer},
                             .prompt_style = {.tokenizer = tokenizer}};
    struct api_usage usage = {0};
    struct text out = {0};
    for (int i = 0; i < 2; i++)
        api_choice_end(choices[i], WEIR_FINISH_LENGTH, -1);
    assert_true(api_reply_write(&v, choices, 2, &prompt, 2, &usage, &out));
    assert_true(out.n > 10 * LIMIT);
    json_t *reply = json_loadb(out.data, out.n, 0, NULL);
    const json_t *list = json_object_get(reply, "choices");
    assert_int_equal(json_array_size(json_object_get(json_array_get(list, 0), "prompt_logprobs")),
                     PROMPT);
    assert_true(json_is_null(json_object_get(json_array_get(list, 1), "prompt_logprobs")));
    json_decref(reply);
    text_clear(&out);
    v.most_bytes = v.logprob_style.most_bytes = v.prompt_style.most_bytes = LIMIT;
    assert_false(api_reply_write(&v, choices, 2, &prompt, 2, &usage, &out));
    assert_true(out.n < 2 * LIMIT);
    v.echo = v.logprobs = true;
    text_clear(&out);
    assert_false(api_reply_write(&v, choices, 2, &prompt, 2, &usage, &out));
    assert_true(out.n < 2 * LIMIT);
    text_free(&out);
    free(scored);
    free(prompt_ids);
    api_choice_free(choices[0]);
    api_choice_free(choices[1]);
    api_envelope_free(&v);
}

static void an_empty_answer_is_an_empty_string(void **state) {
    struct script s = {.output = THINK_END ANSWER ANSWER_END END};
    expect(&s, "", "", "stop null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F011_characters_of_several_tokens_stay_whole),
        cmocka_unit_test(F012_no_marker_reaches_content),
        cmocka_unit_test(F013_tools_right_after_thinking_are_calls),
        cmocka_unit_test(F014_arguments_stream_while_they_are_generated),
        cmocka_unit_test(F015_broken_argument_values_come_as_strings),
        cmocka_unit_test(F016_content_and_two_calls_in_one_step_and_a_long_argument),
        cmocka_unit_test(F018_literals_keep_their_spelling_and_calls_their_order),
        cmocka_unit_test(F021_output_that_ends_before_an_answer),
        cmocka_unit_test(F023_text_goes_where_thinking_says),
        cmocka_unit_test(F024_three_calls_count_0_1_2),
        cmocka_unit_test(F033_no_part_of_a_stop_string_reaches_the_client),
        cmocka_unit_test(F034_text_is_held_only_while_it_may_become_a_stop),
        cmocka_unit_test(F035_stop_string_is_shown_only_when_asked_for),
        cmocka_unit_test(a_call_behind_an_abandoned_one_streams_as_it_comes),
        cmocka_unit_test(calls_without_their_first_index_come_at_the_end),
        cmocka_unit_test(generation_cut_inside_a_call_keeps_what_was_sent),
        cmocka_unit_test(unfinished_character_at_the_end_is_replaced),
        cmocka_unit_test(stop_strings_do_not_act_in_thinking_or_arguments),
        cmocka_unit_test(min_tokens_delays_stop_strings),
        cmocka_unit_test(tokens_behind_a_stop_string_do_not_count),
        cmocka_unit_test(stop_id_is_told_and_its_text_hidden),
        cmocka_unit_test(chat_logprobs_name_the_visible_tokens_only),
        cmocka_unit_test(logprobs_wait_for_held_text),
        cmocka_unit_test(an_empty_answer_is_an_empty_string),
        cmocka_unit_test(a_model_that_goes_on_behind_its_turn_is_stopped),
        cmocka_unit_test(thinking_behind_a_stop_string_is_dropped),
        cmocka_unit_test(many_calls_keep_content_and_order),
        cmocka_unit_test(a_reply_over_its_limit_is_not_written),
    };
    return cmocka_run_group_tests(tests, open_text, close_text);
}
