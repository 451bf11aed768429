/* test_chat_parse.c: generated ids to events: what every kind of output means, that no way of
 * cutting the ids changes an event, what streams and what is held, and that history renders to what
 * the model wrote. */
#include "chat_test.h"

#include "text/message.h"
#include "text/utf8.h"

enum { THINK = 1, TOOLS = 2, ONE_CALL = 4, CUT = 8 };

/* Every event as a line, exactly as it came, and the same gathered into a message. */
struct record {
    struct text log;
    struct chat_message message;
    size_t events, args_events;
    uint32_t complete, failures;
    size_t reasoning_ids;
    size_t last_done;
};

static void take(void *arg, const struct chat_event *e) {
    static const char kinds[] = "RCBAE";
    struct record *r = arg;
    char head[96];
    r->events++;
    r->args_events += e->kind == CHAT_CALL_ARGS;
    snprintf(head, sizeof head, "%c%u %zu..%zu ", kinds[e->kind], e->call, e->ids_first,
             e->ids_done);
    text_puts(&r->log, head);
    if (e->kind == CHAT_CALL_BEGIN) {
        snprintf(head, sizeof head, "%s %s #%llu", e->id, e->name, (unsigned long long)e->index);
        text_puts(&r->log, head);
    } else if (e->kind != CHAT_CALL_END) {
        assert_true(e->n > 0);
        assert_true(utf8_valid(e->text, e->n));
        text_append(&r->log, e->text, e->n);
    }
    text_puts(&r->log, "\n");
    if (e->kind == CHAT_REASONING || e->kind == CHAT_CONTENT) {
        assert_true(e->ids_first >= r->last_done);
        assert_true(e->ids_done >= e->ids_first);
        r->last_done = e->ids_done;
    }
    chat_message_take(&r->message, e);
}

static void record_free(struct record *r) {
    text_free(&r->log);
    chat_message_free(&r->message);
}

/* Feeds ids in pieces: `first` of them, then `step` at a time (0: one at a time). */
static struct record parse(const struct chat *c, const struct ids *ids, int flags, size_t first,
                           size_t step) {
    struct record r = {0};
    struct chat_parser_options o = {.thinking = flags & THINK,
                                    .tools = flags & TOOLS,
                                    .one_call = flags & ONE_CALL,
                                    .id_seed = 42};
    struct chat_parser *p = chat_parser_new(c, o, take, &r);
    size_t at = first < ids->n ? first : ids->n;
    chat_parser_feed(p, ids->data, at);
    for (step = step ? step : 1; at < ids->n; at += step)
        chat_parser_feed(p, ids->data + at, step < ids->n - at ? step : ids->n - at);
    chat_parser_finish(p, flags & CUT);
    r.complete = chat_parser_calls(p);
    r.failures = chat_parser_failures(p);
    r.reasoning_ids = chat_parser_reasoning_ids(p);
    chat_parser_free(p);
    return r;
}

/* The result of one output, after showing that no cutting changes any event. */
static struct record parse_all_ways(const struct chat *c, const struct ids *ids, int flags) {
    struct record whole = parse(c, ids, flags, ids->n, 0);
    for (size_t i = 0; i <= ids->n; i++) {
        struct record two = parse(c, ids, flags, i, ids->n), steps = parse(c, ids, flags, 0, i);
        assert_string_equal(two.log.n ? two.log.data : "", whole.log.n ? whole.log.data : "");
        assert_string_equal(steps.log.n ? steps.log.data : "", whole.log.n ? whole.log.data : "");
        assert_int_equal(steps.failures, whole.failures);
        record_free(&two);
        record_free(&steps);
    }
    return whole;
}

static struct ids ids_of(const struct tokenizer *t, const char *marked) {
    struct ids ids = {0};
    struct text spelled = {0};
    expand(marked, &spelled);
    tokenizer_encode_special(t, spelled.data, spelled.n, &ids);
    text_free(&spelled);
    return ids;
}

static int32_t byte_id(const struct tokenizer *t, unsigned char b) {
    size_t n;
    for (int32_t id = 0; id < (int32_t)tokenizer_ranks(t); id++) {
        const char *s = tokenizer_piece(t, id, &n);
        if (n == 1 && (unsigned char)s[0] == b)
            return id;
    }
    fail_msg("no token for byte %02x", b);
    return -1;
}

/* The message on one line: [reasoning][content] then, per call, name#index(arguments) and a ! when
 * it is not complete. */
static void describe(struct record *r, struct text *out) {
    char number[32];
    const struct chat_message *m = &r->message;
    text_puts(out, "[");
    text_append(out, m->reasoning.data, m->reasoning.n);
    text_puts(out, "][");
    text_append(out, m->content.data, m->content.n);
    text_puts(out, "]");
    for (size_t i = 0; i < m->n_calls; i++) {
        text_puts(out, " ");
        text_puts(out, m->calls[i].name);
        snprintf(number, sizeof number, "#%llu(", (unsigned long long)m->calls[i].index);
        text_puts(out, number);
        text_append(out, m->calls[i].arguments.data, m->calls[i].arguments.n);
        text_puts(out, m->calls[i].complete ? ")" : ")!");
    }
}

struct row {
    int flags;
    const char *output, *message;
    uint32_t failures;
};

static void check_rows(const struct chat *c, const struct tokenizer *t, const struct row *rows,
                       size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct ids ids = ids_of(t, rows[i].output);
        struct record r = parse_all_ways(c, &ids, rows[i].flags);
        struct text got = {0};
        uint32_t complete = 0;
        describe(&r, &got);
        if (strcmp(got.data, rows[i].message) != 0 || r.failures != rows[i].failures)
            fail_msg("output   %s\ngot      %s (%u failures)\nexpected %s (%u failures)",
                     rows[i].output, got.data, r.failures, rows[i].message, rows[i].failures);
        for (size_t k = 0; k < r.message.n_calls; k++)
            complete += r.message.calls[k].complete;
        assert_int_equal(r.complete, complete);
        text_free(&got);
        record_free(&r);
        ids_free(&ids);
    }
}

#define CHECK_ROWS(chat, tokenizer, rows)                                                          \
    check_rows(chat, tokenizer, rows, sizeof rows / sizeof *rows)

#define CALL(name, index)  "{o}call tool=\"" name "\" index=\"" index "\"{s}"
#define ARG(key, type)     "{o}argument key=\"" key "\" type=\"" type "\"{s}"
#define STRING(key, value) ARG(key, "string") value "{/argument}"

/* -------------------------------------------------------------------------------------------------
 * K3 */

static void k3_channels(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {THINK, "why{/think}{response}because{/response}{/m}", "[why][because]", 0},
        {0, "because{/response}{/m}", "[][because]", 0},
        {THINK, "", "[][]", 0},
        /* nothing is trimmed */
        {THINK, " why \n{/think}{response}\n a {/response}{/m}", "[ why \n][\n a ]", 0},
        /* structure between and behind channels is dropped */
        {THINK, "a{/think} x {response}b{/response} y {c}message{s} z {e} w", "[a][b]", 0},
        /* a repeated think head, also in the middle */
        {THINK, "{think}a{/think}{response}b{/response}{/m}", "[a][b]", 0},
        {THINK, "{think}{think}a{think}b{/think}{response}c{/response}{/m}", "[ab][c]", 0},
        /* the answer opens without the close of thinking; thinking opens again behind it */
        {THINK, "a{response}b{/response}{/m}", "[a][b]", 0},
        {THINK, "a{/think}{response}b{/response}{think}c{/think}{response}d", "[ac][bd]", 0},
        /* ends of every kind */
        {0, "a{c}message{s}b", "[][a]", 0},
        {0, "a{e}b", "[][a]", 0},
        {0, "a{c}message{s}{response}b", "[][a]", 0},
        {TOOLS, "a{/m}{assistant}{response}b{/response}{tools}" CALL("f", "1") "{/call}", "[][a]",
         0},
        {0, "a[EOS]b", "[][a]", 0},
        {THINK, "a{e}b", "[a][]", 0},
        /* tags that are broken off or unknown leave no trace, and the text around them stays */
        {0, "a{c}respo{e}", "[][a]", 0},
        {0, "a{o}x y=\"z\"{s}b{c}x{s}c{/response}", "[][abc]", 0},
        {0, "a{s}b{o}{s}c{o}{c}{s}d{o}tag{o}tag{s}e", "[][abcde]", 0},
        {0, "a[PAD]b<|media_pad|>c[BOS]", "[][abc]", 0},
        {0, "a{c}think{s}b{c}tools{s}c{c}call{s}d{c}argument{s}e{c}json{s}f", "[][abcdef]", 0},
        {0, "a{o}argument key=\"k\" type=\"string\"{s}b", "[][ab]", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void k3_calls(void **state) {
    const struct formats *f = *state;
    /* clang-format off */
    static const struct row rows[] = {
        /* the example of the format */
        {THINK | TOOLS,
         "I should look it up.{/think}{response}{/response}{tools}" CALL("weather", "1") 
         STRING("city", "Oslo") ARG("days", "number") "2{/argument}{/call}{/tools}{/m}{e}",
         "[I should look it up.][] weather#1({\"city\":\"Oslo\",\"days\":2})", 0},
        {TOOLS, "hm{/response}{tools}" CALL("f", "1") "{/call}{/tools}{/m}", "[][hm] f#1({})", 0},
        /* every type, with white space around, as it was written */
        {TOOLS,
         "{tools}" CALL("f", "1") ARG("a", "boolean") "true{/argument}"
         ARG("b", "null") " null {/argument}" ARG("c", "object") "{ \"k\" : [1.0 ] }{/argument}"
         ARG("d", "array") "[]{/argument}" ARG("e", "integer") "7{/argument}"
         "{o}argument key=\"g\"{s}7{/argument}{/call}",
         "[][] f#1({\"a\":true,\"b\":null,\"c\":{ \"k\" : [1.0 ] },\"d\":[],\"e\":7,\"g\":\"7\"})",
         0},
        /* strings are escaped */
        {TOOLS, "{tools}" CALL("f", "1") STRING("a", "\"\\\n\t/\u00e9\U0001F600") "{/call}",
         "[][] f#1({\"a\":\"\\\"\\\\\\n\\t/\u00e9\U0001F600\"})", 0},
        /* a json tag gives the arguments whole */
        {TOOLS,
         "{tools}" CALL("f", "1") "{o}json type=\"object\"{s}{\"a\": 1{c}json{s}{/call}"
         CALL("g", "2") "{o}json type=\"object\"{s}{c}json{s}{/call}",
         "[][] f#1({\"a\": 1) g#2({})", 0},
        /* ... unless there are arguments already, and the other way round */
        {TOOLS,
         "{tools}" CALL("f", "1") STRING("a", "b") "{o}json type=\"object\"{s}{}{c}json{s}{/call}",
         "[][] f#1({\"a\":\"b\"})", 1},
        {TOOLS,
         "{tools}" CALL("f", "1") "{o}json type=\"object\"{s}{}{c}json{s}"
         STRING("a", "b") "{/call}",
         "[][] f#1({})", 1},
        /* without a name a call is dropped, with its arguments */
        {TOOLS,
         "{tools}{o}call index=\"1\"{s}" STRING("a", "b") "{/call}"
         CALL("", "2") "{/call}" CALL("g", "3") "{/call}",
         "[][] g#3({})", 2},
        /* an argument without a key is dropped alone */
        {TOOLS,
         "{tools}" CALL("f", "1") "{o}argument type=\"string\"{s}x{/argument}"
         STRING("a", "b") "{/call}",
         "[][] f#1({\"a\":\"b\"})", 1},
        /* not closed before the next call, the end of tools, another channel, the end of the turn:
         * the call is closed for the model, and counted as a failure */
        {TOOLS, "{tools}" CALL("f", "1") STRING("a", "b") CALL("g", "2") "{/call}{/tools}",
         "[][] f#1({\"a\":\"b\"}) g#2({})", 1},
        {TOOLS, "{tools}" CALL("f", "1") ARG("a", "string") "b{/tools}{response}c",
         "[][c] f#1({\"a\":\"b\"})", 1},
        {TOOLS, "{tools}" CALL("f", "1") "{response}c", "[][c] f#1({})", 1},
        {TOOLS, "{tools}" CALL("f", "1") "{e}", "[][] f#1({})", 1},
        {TOOLS, "{tools}" CALL("f", "1") ARG("a", "number") "1{/m}", "[][] f#1({\"a\":1})", 1},
        /* a value that is not closed ends with its call or where the next one begins */
        {TOOLS, "{tools}" CALL("f", "1") ARG("a", "string") "b{/call}",
         "[][] f#1({\"a\":\"b\"})", 1},
        {TOOLS, "{tools}" CALL("f", "1") ARG("a", "number") "1" STRING("b", "c") "{/call}",
         "[][] f#1({\"a\":1,\"b\":\"c\"})", 1},
        /* no tools head; text in the structure is dropped */
        {TOOLS, "x" CALL("f", "1") " y " STRING("a", "b") " z {/call} w {/tools} v {/m}",
         "[][x] f#1({\"a\":\"b\"})", 0},
        /* attributes: any order, escapes undone once, what is not an attribute skipped */
        {TOOLS,
         "{tools}{o}call index=\"7\" junk x= tool=\"a&quot;&amp;quot;b&lt;\"{s}{o}argument "
         "type=\"string\" key=\"k &amp;amp; = \"{s}v{/argument}{/call}",
         "[][] a\"&quot;b&lt;#7({\"k &amp; = \":\"v\"})", 0},
        {TOOLS,
         "{tools}" CALL("f", "0") "{/call}" CALL("g", "x") "{/call}" CALL("h", "-1") "{/call}",
         "[][] f#1({}) g#2({}) h#3({})", 0},
        /* tools not wanted; one call wanted */
        {0, "a{/response}{tools}" CALL("f", "1") STRING("a", "b") "{/call}{/tools}{/m}", "[][a]",
         0},
        {TOOLS | ONE_CALL, "{tools}" CALL("f", "1") "{/call}" CALL("g", "2") "{/call}{/tools}",
         "[][] f#1({})", 0},
    };
    /* clang-format on */
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F012_close_of_the_message_never_shows(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {0, "Hi{/m}", "[][Hi]", 0},
        {THINK, "{/think}{response}Hi{/m}", "[][Hi]", 0},
        {THINK, "{/think}{response}Hi{c}message{s}", "[][Hi]", 0},
        {CUT, "Hi{c}mess", "[][Hi]", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F013_tools_open_without_the_close_of_thinking(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {THINK | TOOLS, "hmm{tools}" CALL("f", "1") STRING("a", "b") "{/call}{/tools}{/m}",
         "[hmm][] f#1({\"a\":\"b\"})", 0},
        {THINK | TOOLS, "hmm{tools} x " CALL("f", "1") "{/call}", "[hmm][] f#1({})", 0},
        {THINK | TOOLS | CUT, "hmm{tools} x ", "[hmm][]", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

/* Counts argument events after each id. */
static void F014_a_long_string_argument_streams(void **state) {
    const struct formats *f = *state;
    struct text output = {0}, value = {0};
    for (int i = 0; value.n < 2000; i++) {
        static const char *const words[] = {"river ", "stone \"", "caf\u00e9\n", "\U0001F30A "};
        text_puts(&value, words[i % 4]);
    }
    text_puts(&output, "{tools}" CALL("write", "1") ARG("text", "string"));
    text_append(&output, value.data, value.n);
    text_puts(&output, "{/argument}{/call}{/tools}{/m}");
    struct ids ids = ids_of(f->tiny, output.data);
    struct ids head = ids_of(f->tiny, "{tools}" CALL("write", "1"));
    struct ids value_head = ids_of(f->tiny, ARG("text", "string"));
    struct ids tail = ids_of(f->tiny, "{/argument}{/call}{/tools}{/m}");
    size_t value_from = head.n + value_head.n, value_to = ids.n - tail.n;

    struct record r = {0};
    struct chat_parser_options o = {.tools = true, .id_seed = 1};
    struct chat_parser *p = chat_parser_new(f->k3, o, take, &r);
    size_t longest_silence = 0, silent = 0;
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = r.events;
        chat_parser_feed(p, ids.data + i, 1);
        if (i + 1 == head.n) {
            assert_int_equal(r.events, 1);
            assert_int_equal(r.message.n_calls, 1);
            assert_string_equal(r.message.calls[0].name, "write");
        }
        silent = r.events == before ? silent + 1 : 0;
        if (i < value_from)
            silent = 0;
        else if (i < value_to && silent > longest_silence)
            longest_silence = silent;
    }
    chat_parser_finish(p, false);
    chat_parser_free(p);
    assert_true(r.args_events >= 20);
    /* An emoji is up to four byte tokens here: never more than three ids without a piece. */
    assert_true(longest_silence <= 3);
    json_t *arguments = json_loads(r.message.calls[0].arguments.data, 0, NULL);
    assert_non_null(arguments);
    assert_string_equal(json_string_value(json_object_get(arguments, "text")), value.data);
    json_decref(arguments);
    record_free(&r);
    ids_free(&ids);
    ids_free(&head);
    ids_free(&value_head);
    ids_free(&tail);
    text_free(&output);
    text_free(&value);
}

static void F015_values_that_are_not_of_their_type_become_strings(void **state) {
    const struct formats *f = *state;
    /* clang-format off */
    static const struct row rows[] = {
        {TOOLS,
         "{tools}" CALL("f", "1") ARG("a", "object") "not json{/argument}"
         ARG("b", "number") "abc{/argument}" ARG("c", "object") "\"x\"{/argument}"
         ARG("d", "number") "{/argument}" STRING("e", "kept") "{/call}{/tools}",
         "[][] f#1({\"a\":\"not json\",\"b\":\"abc\",\"c\":\"\\\"x\\\"\",\"d\":\"\",\"e\":"
         "\"kept\"})",
         0},
        {TOOLS,
         "{tools}" CALL("f", "1") ARG("a", "object") "[1]{/argument}"
         ARG("b", "boolean") "True{/argument}" ARG("c", "number") "01{/argument}"
         ARG("d", "number") "NaN{/argument}" ARG("e", "array") "[1,]{/argument}"
         ARG("g", "null") " none {/argument}" ARG("h", "object") "{\"k\":1} x{/argument}"
         ARG("i", "what") "x\n{/argument}{/call}",
         "[][] f#1({\"a\":\"[1]\",\"b\":\"True\",\"c\":\"01\",\"d\":\"NaN\",\"e\":\"[1,]\",\"g\":"
         "\" none \",\"h\":\"{\\\"k\\\":1} x\",\"i\":\"x\\n\"})",
         0},
    };
    /* clang-format on */
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F016_one_step_carries_text_a_call_and_the_head_of_another(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {TOOLS,
         "before{/response}{tools}" CALL("f", "1") STRING("a", "b") "{/call}" CALL("g", "2")
             STRING("c", "d") "{/call}{/tools}{/m}",
         "[][before] f#1({\"a\":\"b\"}) g#2({\"c\":\"d\"})", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F016_an_argument_of_64_KiB_arrives_whole(void **state) {
    const struct formats *f = *state;
    static const char *const types[] = {"string", "array"};
    for (int kind = 0; kind < 2; kind++) {
        struct text output = {0}, value = {0};
        for (int i = 0; value.n < 64 * 1024; i++) {
            char word[32];
            snprintf(word, sizeof word, kind ? "%s%d" : "%sword%d", i ? "," : kind ? "[" : "", i);
            text_puts(&value, word);
        }
        text_puts(&value, kind ? "]" : "");
        text_puts(&output, "{tools}{o}call tool=\"f\"{s}{o}argument key=\"a\" type=\"");
        text_puts(&output, types[kind]);
        text_puts(&output, "\"{s}");
        text_append(&output, value.data, value.n);
        text_puts(&output, "{/argument}{/call}{/tools}");
        struct ids ids = ids_of(f->tiny, output.data);
        for (size_t step = 1; step < 100000; step = step * 7 + 1) {
            struct record r = parse(f->k3, &ids, TOOLS, 0, step);
            const struct text *a = &r.message.calls[0].arguments;
            assert_int_equal(a->n, value.n + (kind ? 6 : 8));
            assert_memory_equal(a->data + (kind ? 5 : 6), value.data, value.n);
            record_free(&r);
        }
        ids_free(&ids);
        text_free(&output);
        text_free(&value);
    }
}

static void F018_literals_stay_as_written_and_calls_are_ordered_by_index(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {TOOLS,
         "{tools}" CALL("f", "1") ARG("a", "number") "1e2{/argument}" ARG(
             "b", "number") "1.0{/argument}" ARG("c", "number") "12345678901234567890{/argument}"
                                                                "{/call}",
         "[][] f#1({\"a\":1e2,\"b\":1.0,\"c\":12345678901234567890})", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);

    struct ids ids = ids_of(f->tiny, "{tools}" CALL("second", "2") "{/call}" CALL(
                                         "first", "1") "{/call}" CALL("last", "2") "{/call}");
    struct record r = parse(f->k3, &ids, TOOLS, ids.n, 0);
    assert_string_equal(r.message.calls[0].name, "second");
    chat_message_order(&r.message);
    assert_string_equal(r.message.calls[0].name, "first");
    assert_string_equal(r.message.calls[1].name, "second");
    assert_string_equal(r.message.calls[2].name, "last");
    record_free(&r);
    ids_free(&ids);
}

static void F021_an_output_that_ends_in_or_right_after_thinking(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {THINK | CUT, "so far", "[so far][]", 0},
        {THINK | CUT, "so far{c}thi", "[so far][]", 0},
        {THINK, "all{/think}", "[all][]", 0},
        {THINK, "all{/think}{e}", "[all][]", 0},
        {THINK, "all{/think}{response}{/response}{/m}", "[all][]", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F023_with_thinking_off_all_text_is_content(void **state) {
    const struct formats *f = *state;
#define F023 "one{/think}{response}two{/response}{/m}"
    static const struct row rows[] = {
        {THINK, F023, "[one][two]", 0},
        {0, F023, "[][onetwo]", 0},
        {0, "{think}one{/think}{response}two{/response}{/m}", "[][onetwo]", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

static void F024_parallel_calls_keep_their_own_number(void **state) {
    const struct formats *f = *state;
    struct ids ids =
        ids_of(f->tiny, "{tools}" CALL("f", "1") STRING("a", "1") "{/call}" CALL("g", "2")
                            STRING("a", "2") "{/call}" CALL("h", "3")
                                STRING("a", "3") "{/call}{/tools}{/m}");
    struct record r = parse_all_ways(f->k3, &ids, TOOLS);
    uint32_t call = 0;
    bool begun = false;
    for (char *line = strtok(r.log.data, "\n"); line; line = strtok(NULL, "\n")) {
        assert_int_equal(line[1] - '0', call);
        assert_int_equal(line[0] == 'B', !begun);
        begun = line[0] != 'E';
        call += line[0] == 'E';
    }
    assert_int_equal(call, 3);
    assert_string_equal(r.message.calls[2].arguments.data, "{\"a\":\"3\"}");
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(r.message.calls[i].id, r.message.calls[k].id);
    record_free(&r);
    ids_free(&ids);
}

static void call_ids_are_opaque_and_follow_the_seed(void **state) {
    const struct formats *f = *state;
    struct ids ids = ids_of(f->tiny, "{tools}" CALL("f", "1") "{/call}");
    char seen[3][64];
    static const uint64_t seeds[] = {1, 2, 1};
    for (int i = 0; i < 3; i++) {
        struct record r = {0};
        struct chat_parser_options o = {.tools = true, .id_seed = seeds[i]};
        struct chat_parser *p = chat_parser_new(f->k3, o, take, &r);
        chat_parser_feed(p, ids.data, ids.n);
        snprintf(seen[i], sizeof seen[i], "%s", r.message.calls[0].id);
        chat_parser_free(p);
        record_free(&r);
    }
    assert_int_equal(strncmp(seen[0], "call_", 5), 0);
    assert_int_equal(strlen(seen[0]), 29);
    assert_string_not_equal(seen[0], seen[1]);
    assert_string_equal(seen[0], seen[2]);
    ids_free(&ids);
}

static void cut_inside_a_call_repairs_nothing(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {TOOLS | CUT, "{tools}{o}call tool=\"f", "[][]", 0},
        {TOOLS | CUT, "{tools}" CALL("f", "1"), "[][] f#1()!", 0},
        {TOOLS | CUT, "{tools}" CALL("f", "1") ARG("a", "string"), "[][] f#1({\"a\":\")!", 0},
        {TOOLS | CUT, "{tools}" CALL("f", "1") ARG("a", "string") "b", "[][] f#1({\"a\":\"b)!", 0},
        {TOOLS | CUT, "{tools}" CALL("f", "1") ARG("a", "object") "{\"b\":", "[][] f#1({\"a\":)!",
         0},
        {TOOLS | CUT, "{tools}" CALL("f", "1") STRING("a", "b"), "[][] f#1({\"a\":\"b\")!", 0},
    };
    CHECK_ROWS(f->k3, f->tiny, rows);
}

/* Half a character at the cut: U+FFFD in an answer, but nothing is added to arguments. */
static void cut_inside_a_character(void **state) {
    const struct formats *f = *state;
    struct ids answer = ids_of(f->tiny, "x");
    struct ids call = ids_of(f->tiny, "{tools}" CALL("f", "1") ARG("a", "string") "x");
    int32_t half = byte_id(f->tiny, 0xC3);
    ids_push(&answer, half);
    ids_push(&call, half);
    struct record r = parse_all_ways(f->k3, &answer, CUT);
    assert_string_equal(r.message.content.data, "x\uFFFD");
    record_free(&r);
    r = parse_all_ways(f->k3, &call, TOOLS | CUT);
    assert_string_equal(r.message.calls[0].arguments.data, "{\"a\":\"x");
    record_free(&r);
    ids_free(&answer);
    ids_free(&call);
}

/* Spellings of markers that come as ordinary tokens are text. */
static void quoted_markers_are_text(void **state) {
    const struct formats *f = *state;
    static const char quoted[] = "say <|close|>think<|sep|><|open|>tools<|sep|><|end_of_msg|>";
    struct ids ids = {0};
    tokenizer_encode(f->tiny, quoted, strlen(quoted), &ids);
    struct record r = parse_all_ways(f->k3, &ids, THINK | TOOLS);
    assert_string_equal(r.message.reasoning.data, quoted);
    assert_int_equal(r.reasoning_ids, ids.n);
    record_free(&r);
    ids_free(&ids);
}

static void reasoning_ids_count_text_without_markers(void **state) {
    const struct formats *f = *state;
    struct ids ids = ids_of(f->tiny, "{think}some thoughts{/think}{response}x{/response}{/m}");
    struct ids text = ids_of(f->tiny, "some thoughts");
    struct record r = parse_all_ways(f->k3, &ids, THINK);
    assert_int_equal(r.reasoning_ids, text.n);
    record_free(&r);
    r = parse_all_ways(f->k3, &ids, 0);
    assert_int_equal(r.reasoning_ids, 0);
    record_free(&r);
    ids_free(&ids);
    ids_free(&text);
}

/* -------------------------------------------------------------------------------------------------
 * characters out of byte tokens */

static void push_bytes(const struct tokenizer *t, struct ids *ids, const char *bytes) {
    for (; *bytes != '\0'; bytes++)
        ids_push(ids, byte_id(t, (unsigned char)*bytes));
}

static void F011_characters_of_several_tokens_come_whole(void **state) {
    const struct formats *f = *state;
    const struct {
        const struct chat *chat;
        const struct tokenizer *t;
    } both[] = {{f->k3, f->tiny}, {f->kimi, f->kimi_vocabulary}};
    for (int i = 0; i < 2; i++) {
        struct ids ids = {0};
        push_bytes(both[i].t, &ids, "a\U0001F600\u00e9\u6f22");
        struct record r = parse_all_ways(both[i].chat, &ids, 0);
        assert_string_equal(r.message.content.data, "a\U0001F600\u00e9\u6f22");
        assert_int_equal(r.events, 4);
        assert_string_equal(r.log.data, "C0 0..1 a\nC0 1..5 \U0001F600\nC0 5..7 \u00e9\nC0 7..10 "
                                        "\u6f22\n");
        record_free(&r);
        ids_free(&ids);
    }
}

static void invalid_bytes_become_replacement_characters(void **state) {
    const struct formats *f = *state;
    struct ids ids = {0};
    push_bytes(f->tiny, &ids,
               "a\xF0\x9F"
               "b\xFF\x80");
    struct ids tail = ids_of(f->tiny, "{/response}{tools}" CALL("f", "1") ARG("a", "string"));
    push_bytes(f->tiny, &ids, "\xE2\x82"); /* unfinished where the channel ends */
    ids_append(&ids, tail.data, tail.n);
    push_bytes(f->tiny, &ids, "x\xC3");
    struct ids end = ids_of(f->tiny, "{/argument}" ARG("b", "number"));
    ids_append(&ids, end.data, end.n);
    push_bytes(f->tiny, &ids, "\x80");
    struct ids last = ids_of(f->tiny, "{/argument}{/call}{/tools}");
    ids_append(&ids, last.data, last.n);
    struct record r = parse_all_ways(f->k3, &ids, TOOLS);
    assert_string_equal(r.message.content.data, "a\uFFFD"
                                                "b\uFFFD\uFFFD\uFFFD");
    assert_string_equal(r.message.calls[0].arguments.data, "{\"a\":\"x\uFFFD\",\"b\":\"\uFFFD\"}");
    record_free(&r);
    ids_free(&ids);
    ids_free(&tail);
    ids_free(&end);
    ids_free(&last);
}

/* The ids that events name are exactly the text ids of their channels. */
static void events_name_the_ids_their_text_comes_from(void **state) {
    const struct formats *f = *state;
    struct ids ids = {0};
    push_bytes(f->tiny, &ids, "x\xE2\x82");
    ids_push(&ids, tokenizer_special(f->tiny, "[PAD]"));
    push_bytes(f->tiny, &ids, "\xAC\xC3");
    struct ids tail = ids_of(f->tiny, "{/think}{response}");
    ids_append(&ids, tail.data, tail.n);
    size_t answer = ids.n;
    push_bytes(f->tiny, &ids, "y\xC3");
    struct record r = parse_all_ways(f->k3, &ids, THINK);
    char want[256];
    snprintf(want, sizeof want,
             "R0 0..1 x\nR0 1..5 \u20AC\nR0 5..6 \uFFFD\nC0 %zu..%zu y\nC0 %zu..%zu \uFFFD\n",
             answer, answer + 1, answer + 1, answer + 2);
    assert_string_equal(r.log.data, want);
    record_free(&r);
    ids_free(&ids);
    ids_free(&tail);
}

/* -------------------------------------------------------------------------------------------------
 * Kimi-Linear */

static void kimi_outputs(void **state) {
    const struct formats *f = *state;
    static const struct row rows[] = {
        {TOOLS, "Hello{end}more", "[][Hello]", 0},
        {TOOLS | THINK, "Hello", "[][Hello]", 0},
        {TOOLS, "a[EOS]b", "[][a]", 0},
        {TOOLS,
         "wait{calls}{tcall}functions.get.weather:0{args} {\"a\": 1e2}\n {/tcall}{tcall}"
         "functions.g:12{args}{}{/tcall}{/calls}{end}",
         "[][wait] get.weather#1({\"a\": 1e2}) g#2({})", 0},
        /* names without the usual parts keep what is there */
        {TOOLS,
         "{calls}{tcall} f {args}1{/tcall}{tcall}g:{args}2{/tcall}{tcall}functions.h:x:3{args}3"
         "{/tcall}{tcall}4{args}{/tcall}{/calls}",
         "[][] f#1(1) g:#2(2) h:x#3(3) 4#4({})", 0},
        /* arguments as they are, JSON or not; none at all is an empty object */
        {TOOLS, "{calls}{tcall}functions.f:0{args}  not \n json {/tcall}{/calls}",
         "[][] f#1(not \n json)", 0},
        {TOOLS, "{calls}{tcall}functions.f:0{args} \n{/tcall}{tcall}functions.g:1{/tcall}",
         "[][] f#1({}) g#2({})", 0},
        /* no name: dropped */
        {TOOLS, "{calls}{tcall}{args}{}{/tcall}{tcall}functions.:0{args}{}{/tcall}{/calls}", "[][]",
         2},
        /* text around the calls is structure; behind the section it is dropped, never a call */
        {TOOLS,
         "a{calls} b {tcall}functions.f:0{args}{}{/tcall} c {/calls} d {tcall}x{args}{}{end}",
         "[][a] f#1({})", 0},
        /* no section head; a second section */
        {TOOLS, "a{tcall}functions.f:0{args}{}{/tcall}{/calls}", "[][a] f#1({})", 0},
        {TOOLS,
         "{calls}{tcall}functions.f:0{args}{}{/tcall}{/calls}{calls}{tcall}functions.g:1{args}{}"
         "{/tcall}{/calls}",
         "[][] f#1({}) g#2({})", 0},
        /* not closed */
        {TOOLS,
         "{calls}{tcall}functions.f:0{args}{\"a\"{tcall}functions.g:1{args}{}{/tcall}{/calls}",
         "[][] f#1({\"a\")! g#2({})", 1},
        {TOOLS, "{calls}{tcall}functions.f:0{args}{\"a\"{/calls}", "[][] f#1({\"a\")!", 1},
        {TOOLS, "{calls}{tcall}functions.f:0{args}{\"a\"{end}", "[][] f#1({\"a\")!", 1},
        {TOOLS | CUT, "{calls}{tcall}functions.f:0{args}{\"a\": ", "[][] f#1({\"a\":)!", 0},
        {TOOLS | CUT, "{calls}{tcall}functions.f", "[][]", 0},
        /* somebody else's turn ends this one; other markers leave no trace */
        {TOOLS, "a{im_user}user{mid}b", "[][a]", 0},
        {TOOLS, "a<think>b</think>c{mid}d{args}e{/tcall}f", "[][abcdef]", 0},
        {0, "a{calls}{tcall}functions.f:0{args}{}{/tcall}{/calls}", "[][a]", 0},
        {TOOLS | ONE_CALL,
         "{calls}{tcall}functions.f:0{args}{}{/tcall}{tcall}functions.g:1{args}{}{/tcall}{/calls}",
         "[][] f#1({})", 0},
    };
    CHECK_ROWS(f->kimi, f->kimi_vocabulary, rows);
}

static void kimi_calls_keep_the_id_the_model_wrote(void **state) {
    const struct formats *f = *state;
    struct ids ids = ids_of(f->kimi_vocabulary,
                            "{calls}{tcall}functions.f:7{args}{}{/tcall}{tcall}odd id{args}{}"
                            "{/tcall}{/calls}{end}");
    struct record r = parse_all_ways(f->kimi, &ids, TOOLS);
    assert_string_equal(r.message.calls[0].id, "functions.f:7");
    assert_string_equal(r.message.calls[1].id, "odd id");
    record_free(&r);
    ids_free(&ids);
}

static void F014_kimi_arguments_stream_as_they_come(void **state) {
    const struct formats *f = *state;
    struct ids ids = ids_of(f->kimi_vocabulary, "{calls}{tcall}functions.f:0{args}{\"a\":\"");
    for (int i = 0; i < 2000; i++)
        ids_push(&ids, 'a' + i % 26);
    struct record r = parse(f->kimi, &ids, TOOLS | CUT, 0, 1);
    assert_int_equal(r.args_events, 2006);
    record_free(&r);
    ids_free(&ids);
}

/* -------------------------------------------------------------------------------------------------
 * there and back */

static json_t *message_json(const struct record *r) {
    json_t *m = json_object(), *calls = json_array();
    json_object_set_new(m, "role", json_string("assistant"));
    json_object_set_new(
        m, "content",
        json_stringn(r->message.content.n ? r->message.content.data : "", r->message.content.n));
    json_object_set_new(m, "reasoning_content",
                        json_stringn(r->message.reasoning.n ? r->message.reasoning.data : "",
                                     r->message.reasoning.n));
    for (size_t i = 0; i < r->message.n_calls; i++) {
        const struct chat_call *c = &r->message.calls[i];
        json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", c->id, "type",
                                               "function", "function", "name", c->name, "arguments",
                                               c->arguments.data));
    }
    json_object_set_new(m, "tool_calls", calls);
    return m;
}

/* The prompt of [question, answer] begins with the prompt of [question]; the rest, read as output,
 * gives the answer, and that renders to the same ids. */
static void check_round_trip(const struct chat *c, bool thinking, json_t *answer) {
    struct chat_options o = chat_options_default();
    o.thinking = thinking;
    json_t *question = quoted_json("[{'role':'user','content':'Q'}]", NULL);
    json_t *both = json_copy(question);
    json_array_append(both, answer);
    struct ids prompt = {0}, all = {0}, again = {0};
    assert_int_equal(chat_render(c, question, &o, &prompt, NULL, NULL), WEIR_OK);
    o.add_generation_prompt = false;
    assert_int_equal(chat_render(c, both, &o, &all, NULL, NULL), WEIR_OK);
    assert_true(all.n > prompt.n);
    assert_memory_equal(all.data, prompt.data, prompt.n * sizeof *prompt.data);
    struct ids output = {all.data + prompt.n, all.n - prompt.n, 0};
    struct record r = parse(c, &output, TOOLS | (thinking ? THINK : 0), 0, 1);
    assert_int_equal(r.failures, 0);
    json_array_set_new(both, 1, message_json(&r));
    assert_int_equal(chat_render(c, both, &o, &again, NULL, NULL), WEIR_OK);
    assert_int_equal(again.n, all.n);
    assert_memory_equal(again.data, all.data, all.n * sizeof *all.data);
    record_free(&r);
    ids_free(&prompt);
    ids_free(&all);
    ids_free(&again);
    json_decref(question);
    json_decref(both);
}

static void rendered_answers_parse_to_themselves(void **state) {
    const struct formats *f = *state;
    static const char *const answers[] = {
        "{'role':'assistant','content':'plain'}",
        "{'role':'assistant','content':'','reasoning_content':'why \U0001F600\\n'}",
        "{'role':'assistant','content':' <|close|>response<|sep|> ','reasoning_content':"
        "'<|end_of_msg|>'}",
        "{'role':'assistant','content':'c','reasoning_content':'r','tool_calls':[{'id':"
        "'functions.f&\\u0022:0','function':{'name':'f&\\u0022','arguments':'{\\u0022k &amp; "
        "\\\\u0022\\u0022: \\u0022v\\\\n\\u0022, \\u0022n\\u0022: 1.0, \\u0022o\\u0022:{ \\u0022a"
        "\\u0022 : [1e2]}, \\u0022e\\u0022:\\u0022\\u0022}'}},{'id':'functions.g:1','function':"
        "{'name':'g','arguments':'{}'}}]}",
        "{'role':'assistant','content':'','tool_calls':[{'id':'functions.f:0','function':{'name':"
        "'f','arguments':'not json'}}]}",
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        json_t *answer = quoted_json(answers[i], NULL);
        check_round_trip(f->k3, true, answer);
        check_round_trip(f->k3, false, answer);
        check_round_trip(f->kimi, false, answer);
        json_decref(answer);
    }
}

/* The small model's own greedy outputs, as the reference recorded them. */
static void golden_outputs_parse(void **state) {
    const struct formats *f = *state;
    static const struct {
        const char *name;
        int flags;
        const char *message;
    } want[] = {
        {"chat-capital", THINK,
         "[The user asks for the capital of Norway. It is Oslo.][The capital of Norway is Oslo.]"},
        {"chat-give", 0, "[][Nora has the clock now.]"},
        {"chat-two-turns", 0, "[][3 plus 4 is 7.]"},
        {"chat-effort", THINK,
         "[I need the opposite of hot.][The opposite of \"hot\" is \"cold\".]"},
    };
    json_t *root = json_load_file(source_path("vectors/tiny-k3/manifest.json"), 0, NULL);
    size_t i, seen = 0;
    json_t *item, *id;
    json_array_foreach(json_object_get(root, "cases"), i, item) {
        for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
            if (strcmp(json_string_value(json_object_get(item, "name")), want[k].name) != 0)
                continue;
            struct ids ids = {0};
            struct text got = {0};
            size_t at;
            json_array_foreach(json_object_get(json_object_get(item, "greedy"), "ids"), at, id)
                ids_push(&ids, (int32_t)json_integer_value(id));
            struct record r = parse_all_ways(f->k3, &ids, want[k].flags);
            describe(&r, &got);
            assert_string_equal(got.data, want[k].message);
            seen++;
            record_free(&r);
            ids_free(&ids);
            text_free(&got);
        }
    }
    assert_int_equal(seen, 4);
    json_decref(root);
}

static size_t ids_until_ended(const struct chat *c, const struct tokenizer *t, const char *marked) {
    struct record r = {0};
    struct ids ids = ids_of(t, marked);
    struct chat_parser *p = chat_parser_new(c, (struct chat_parser_options){0}, take, &r);
    size_t at = 0;
    while (at < ids.n && !chat_parser_ended(p))
        chat_parser_feed(p, ids.data + at++, 1);
    size_t left = ids.n - at;
    assert_int_equal(chat_parser_ended(p), true);
    chat_parser_free(p);
    record_free(&r);
    ids_free(&ids);
    return left;
}

static void the_end_of_the_turn_is_told(void **state) {
    const struct formats *f = *state;
    assert_int_equal(ids_until_ended(f->k3, f->tiny, "Hi<|close|>message<|sep|><|open|>"), 1);
    assert_int_equal(ids_until_ended(f->k3, f->tiny, "Hi<|end_of_msg|>"), 0);
    assert_int_equal(ids_until_ended(f->kimi, f->kimi_vocabulary, "Hi<|im_user|><|im_user|>"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k3_channels),
        cmocka_unit_test(k3_calls),
        cmocka_unit_test(F011_characters_of_several_tokens_come_whole),
        cmocka_unit_test(F012_close_of_the_message_never_shows),
        cmocka_unit_test(F013_tools_open_without_the_close_of_thinking),
        cmocka_unit_test(F014_a_long_string_argument_streams),
        cmocka_unit_test(F014_kimi_arguments_stream_as_they_come),
        cmocka_unit_test(F015_values_that_are_not_of_their_type_become_strings),
        cmocka_unit_test(F016_one_step_carries_text_a_call_and_the_head_of_another),
        cmocka_unit_test(F016_an_argument_of_64_KiB_arrives_whole),
        cmocka_unit_test(F018_literals_stay_as_written_and_calls_are_ordered_by_index),
        cmocka_unit_test(F021_an_output_that_ends_in_or_right_after_thinking),
        cmocka_unit_test(F023_with_thinking_off_all_text_is_content),
        cmocka_unit_test(F024_parallel_calls_keep_their_own_number),
        cmocka_unit_test(call_ids_are_opaque_and_follow_the_seed),
        cmocka_unit_test(cut_inside_a_call_repairs_nothing),
        cmocka_unit_test(cut_inside_a_character),
        cmocka_unit_test(quoted_markers_are_text),
        cmocka_unit_test(reasoning_ids_count_text_without_markers),
        cmocka_unit_test(invalid_bytes_become_replacement_characters),
        cmocka_unit_test(events_name_the_ids_their_text_comes_from),
        cmocka_unit_test(kimi_outputs),
        cmocka_unit_test(kimi_calls_keep_the_id_the_model_wrote),
        cmocka_unit_test(rendered_answers_parse_to_themselves),
        cmocka_unit_test(golden_outputs_parse),
        cmocka_unit_test(the_end_of_the_turn_is_told),
    };
    return cmocka_run_group_tests(tests, open_formats, close_formats);
}
