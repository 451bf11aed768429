/* test_chat_turn.c: generated turns read back: which ids may stand for the message that they parse
 * to, and where the renderer asks for them. Both formats. */
#include "chat_test.h"

#include "base/rng.h"
#include "text/chat_turn.h"

struct format {
    const struct chat *chat;
    const struct tokenizer *tokenizer;
};

static void encode(const struct tokenizer *t, const char *marked, struct ids *ids) {
    struct text text = {0};
    expand(marked, &text);
    tokenizer_encode_special(t, text.data, text.n, ids);
    text_free(&text);
}

/* ---- the hook ---- */

struct asked {
    const char *replay; /* what to answer with, or NULL */
    const struct tokenizer *tokenizer;
    size_t times, at;
    struct text body; /* of the last one */
};

static bool answer(void *arg, const struct text *body, struct ids *ids) {
    struct asked *a = arg;
    a->times++;
    a->at = ids->n;
    text_clear(&a->body);
    text_append(&a->body, body->data, body->n);
    if (!a->replay)
        return false;
    encode(a->tokenizer, a->replay, ids);
    return true;
}

static void render(const struct chat *c, const char *messages, bool thinking, struct asked *asked,
                   struct ids *ids, struct text *text) {
    struct chat_options o = chat_options_default();
    json_t *m = quoted_json(messages, NULL);
    weir_error err = {0};
    o.thinking = thinking;
    o.effort = "";
    o.default_system = "";
    o.replay = asked ? answer : NULL;
    o.replay_arg = asked;
    if (chat_render(c, m, &o, ids, text, &err) != WEIR_OK)
        fail_msg("%s: %s", err.where, err.message);
    json_decref(m);
}

#define USER "{'role':'user','content':'Go'}"

static void the_hook_stands_where_generation_began(void **state) {
    const struct formats *f = *state;
    for (int i = 0; i < 3; i++) {
        const struct chat *c = i < 2 ? f->k3 : f->kimi;
        bool thinking = i == 1;
        struct asked asked = {0};
        struct ids first = {0}, second = {0}, anew = {0};
        render(c, "[" USER "]", thinking, NULL, &first, NULL);
        const char *next =
            "[" USER ",{'role':'assistant','content':[{'type':'text','text':'A'},{'type':'text',"
            "'text':'B'}],'reasoning':'R','tool_calls':[{'id':'x','type':'function','function':"
            "{'name':'f','arguments':'{}'}}]}]";
        render(c, next, thinking, &asked, &second, NULL);
        assert_int_equal(asked.times, 1);
        assert_int_equal(asked.at, first.n);
        assert_true(second.n > first.n);
        assert_memory_equal(second.data, first.data, first.n * sizeof *first.data);
        /* A hook that knows nothing changes nothing. */
        render(c, next, thinking, NULL, &anew, NULL);
        assert_int_equal(anew.n, second.n);
        assert_memory_equal(anew.data, second.data, anew.n * sizeof *anew.data);
        text_free(&asked.body);
        ids_free(&first);
        ids_free(&second);
        ids_free(&anew);
    }
}

static void bodies(const struct chat *c, bool thinking, const char *message, struct text *out) {
    struct asked asked = {0};
    struct ids ids = {0};
    struct text messages = {0};
    text_puts(&messages, "[" USER ",{'role':'assistant',");
    text_puts(&messages, message);
    text_puts(&messages, "}]");
    render(c, messages.data, thinking, &asked, &ids, NULL);
    text_clear(out);
    text_append(out, asked.body.data, asked.body.n);
    text_free(&asked.body);
    text_free(&messages);
    ids_free(&ids);
}

#define ASKS(id, name, arguments)                                                                  \
    "'tool_calls':[{'id':'" id "','type':'function','function':{'name':'" name                     \
    "','arguments':'" arguments "'}}]"

/* Pairs of messages: those of a pair have one body, of different pairs another. */
static void bodies_are_equal_exactly_where_the_prompts_are(void **state) {
    const struct formats *f = *state;
    static const char *const k3[][2] = {
        {"'content':'A'", "'content':[{'type':'text','text':'A'}],'reasoning_content':' \\n'"},
        {"'content':'A '", "'content':'A ','tool_calls':[]"},
        {"'content':'','reasoning':'R'", "'content':null,'reasoning_content':'R','refusal':null"},
        {"'content':'A','reasoning':'R'", "'content':'A','reasoning':'R','tool_calls':null"},
        {"'content':'A','reasoning':'R '",
         "'content':'A','reasoning_content':'R ','reasoning':'R'"},
        {ASKS("x", "f", "{}"), "'content':''," ASKS("y", "f", " { } ")},
        {ASKS("x", "g", "{}"), ASKS("x", "g", "{}")},
        {ASKS("x", "f", "{\\\"a\\\":1,\\\"b\\\":\\\"\u00e9\\\"}"),
         ASKS("x", "f", "{\\\"a\\\": 1, \\\"b\\\": \\\"\\\\u00e9\\\"}")},
        {ASKS("x", "f", "{\\\"a\\\":1.0}"), ASKS("x", "f", "{\\\"a\\\" :1.0}")},
        {ASKS("x", "f", "{\\\"a\\\":\\\"1\\\"}"), ASKS("x", "f", "{\\\"a\\\":\\\"1\\\"}")}};
    static const char *const kimi[][2] = {
        {"'content':'A'", "'content':'A','reasoning':'R'"},
        {ASKS("x", "f", "{}"), ASKS("x", "g", "{}")}, /* the name is not written */
        {ASKS("y", "f", "{}"), ASKS("y", "f", "{}")},
        {ASKS("x", "f", "{ }"), ASKS("x", "f", "{ }")}};
    struct text all[2][16] = {0}, other = {0};
    for (int i = 0; i < 2; i++) {
        const struct chat *c = i ? f->kimi : f->k3;
        size_t n = i ? sizeof kimi / sizeof *kimi : sizeof k3 / sizeof *k3;
        for (size_t k = 0; k < n; k++) {
            bodies(c, true, i ? kimi[k][0] : k3[k][0], &all[i][k]);
            bodies(c, true, i ? kimi[k][1] : k3[k][1], &other);
            if (other.n != all[i][k].n || memcmp(other.data, all[i][k].data, other.n) != 0)
                fail_msg("%s", i ? kimi[k][1] : k3[k][1]);
            for (size_t m = 0; m < k; m++)
                assert_false(all[i][m].n == other.n &&
                             memcmp(all[i][m].data, other.data, other.n) == 0);
        }
        for (size_t k = 0; k < n; k++)
            text_free(&all[i][k]);
    }
    text_free(&other);
}

static void replayed_ids_stand_in_the_prompt_and_show_in_its_text(void **state) {
    const struct formats *f = *state;
    struct asked k3 = {"X{/think}{response}Y{/response}{/m}", f->tiny};
    struct asked kimi = {"Y{end}", f->kimi_vocabulary};
    struct text text = {0}, decoded = {0}, want = {0};
    struct ids ids = {0};
    const char *messages = "[" USER ",{'role':'assistant','content':'A'}," USER "]";
    render(f->k3, messages, true, &k3, &ids, &text);
    expand("{user}Go{/m}{o}message role=\"assistant\"{s}{think}X{/think}{response}Y{/response}{/m}"
           "{user}Go{/m}{think-go}",
           &want);
    tokenizer_decode(f->tiny, ids.data, ids.n, false, &decoded);
    assert_string_equal(text.data, want.data);
    assert_string_equal(decoded.data, want.data);
    text_clear(&text);
    text_clear(&want);
    text_clear(&decoded);
    ids.n = 0;
    render(f->kimi, messages, false, &kimi, &ids, &text);
    expand("{im_user}user{mid}Go{end}{im_assistant}assistant{mid}Y{end}{im_user}user{mid}Go{end}"
           "{im_assistant}assistant{mid}",
           &want);
    tokenizer_decode(f->kimi_vocabulary, ids.data, ids.n, false, &decoded);
    assert_string_equal(text.data, want.data);
    assert_string_equal(decoded.data, want.data);
    text_free(&k3.body);
    text_free(&kimi.body);
    text_free(&text);
    text_free(&want);
    text_free(&decoded);
    ids_free(&ids);
}

/* ---- reading ---- */

struct row {
    bool thinking, good;
    const char *turn;
};

static void check_rows(const struct format *f, const struct row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct text body = {0};
        size_t calls;
        struct ids ids = {0};
        encode(f->tokenizer, rows[i].turn, &ids);
        if (chat_turn_read(f->chat, rows[i].thinking, &ids, &body, &calls) != rows[i].good)
            fail_msg("%s: expected %s", rows[i].turn, rows[i].good ? "good" : "refused");
        text_free(&body);
        ids_free(&ids);
    }
}

#define CALL(head, inside) "{o}call " head "{s}" inside "{/call}"
#define ARG(type, value)   "{o}argument key=\"a\" type=\"" type "\"{s}" value "{/argument}"
#define FIRST              "tool=\"f\" index=\"1\""

static void only_ids_that_say_what_the_message_says_stand_for_it_k3(void **state) {
    const struct formats *s = *state;
    const struct format f = {s->k3, s->tiny};
    static const struct row rows[] = {
        {true, true, "Hm{/think}{response}Hi{/response}{/m}"},
        {false, true, "Hi{/response}{/m}"},
        {true, true, "{/think}{response}{/response}{/m}"},
        {true, true, "{/think}{/m}"}, /* no response channel: nothing is said either way */
        {true, true, "\n{/think}{response} Hi {/response}{/m}"},
        {true, true, "{/think}{tools}" CALL(FIRST, ARG("string", "x")) "{/tools}{/m}"},
        {true, true, "{/think}{tools}" CALL(FIRST, ARG("number", " 1e2\n")) "{/tools}{/m}"},
        {true, true, "{/think}{tools}" CALL(FIRST, "") "{/tools}{/m}"},
        {true, true,
         "{/think}{tools}" CALL(FIRST, "") CALL("tool=\"f&amp;\" index=\"2\"", "") "{/tools}{/m}"},
        {true, true, "Hm{/think}{response}Hi{/response}{c}message{s}[EOS]"},
        /* not ended, or not as the format ends a turn */
        {true, false, ""},
        {true, false, "Hm{/think}{response}Hi{/response}{c}message{s}"},
        {true, false, "Hm{/think}{response}Hi{/response}{e}"},
        {true, false, "Hm{/think}{response}Hi{/m}"},
        {true, false, "Hm{e}"},
        {true, false, "Hm{/m}"},
        {true, false, "Hm{/think}{response}Hi[EOS]"},
        {true, false, "Hm{/think}{response}Hi{/response}{/m}{e}"},
        {true, false, "Hm{/think}{response}Hi{/response}{/m}{user}Obey{/m}"},
        {false, false, "Hm{/think}{response}Hi{/response}{/m}"},
        /* text that the message has not */
        {true, false, "{/think}x{response}Hi{/response}{/m}"},
        {true, false, "{/think}{response}Hi{/response}x{/m}"},
        {true, false, "{/think}{o}response x{s}Hi{/response}{/m}"},
        {true, false, "{/think}{response}Hi{/response}{o}x{s}{/m}"},
        {true, false, "{/think}{response}Hi{/response}{o}x{/m}"},
        {true, false, "{/think}{response}Hi{/response}{s}{/m}"},
        {true, false, "{/think}{response}Hi{/response}{c}message x{s}{e}"},
        {true, false, "{/think}{response}H[PAD]i{/response}{/m}"},
        {true, false, "{/think}{response}H{/response}{response}i{/response}{/m}"},
        {true, false, "{/think}{response}Hi{/response}{think}Hm{/think}{/m}"},
        {true, false,
         "{/think}{response}{/response}{response}{/response}{response}{/response}{response}Hi"
         "{/response}{/m}"},
        {true, false, "{/think}{response}Hi{/response}{tools}{/tools}{/m}"},
        {true, false, "{/think}{tools}x" CALL(FIRST, "") "{/tools}{/m}"},
        {true, false, "{/think}{tools}" CALL(FIRST " x=\"y\"", "") "{/tools}{/m}"},
        {true, false, "{/think}{tools}" CALL("tool=\"f\" index=\"2\"", "") "{/tools}{/m}"},
        {true, false, "{/think}{tools}" CALL(FIRST, "x") "{/tools}{/m}"},
        {true, false, "{/think}{tools}" CALL(FIRST, ARG("number", "no")) "{/tools}{/m}"},
        {true, false,
         "{/think}{tools}" CALL(FIRST, ARG("string", "1") ARG("string", "2")) "{/tools}{/m}"},
        {true, false, "{/think}{tools}" CALL("tool=\"\" index=\"1\"", "") "{/tools}{/m}"},
    };
    check_rows(&f, rows, sizeof rows / sizeof *rows);
}

static void only_ids_that_say_what_the_message_says_stand_for_it_kimi(void **state) {
    const struct formats *s = *state;
    const struct format f = {s->kimi, s->kimi_vocabulary};
    static const struct row rows[] = {
        {false, true, "Hi{end}"},
        {true, true, "Hi{end}"}, /* the format knows no thinking */
        {false, true, "{end}"},
        {false, true, "Hi[EOS]"},
        {false, true, "Hi{calls}{tcall}functions.f:0{args}{\"a\": 1}{/tcall}{/calls}{end}"},
        {false, true,
         "{calls}{tcall} f:0 {args} {} \n{/tcall}{tcall}g{args}{}{/tcall}{/calls}{end}"},
        {false, false, "Hi"},
        {false, false, "Hi{calls}{tcall}f:0{args}{}{/tcall}{end}"},
        {false, false, "Hi{calls}{/calls}{end}"},
        {false, false, "Hi{calls}x{tcall}f:0{args}{}{/tcall}{/calls}{end}"},
        {false, false, "Hi{calls}{tcall}f:0{args}{}{/tcall}{/calls}x{end}"},
        {false, false, "Hi{calls}{tcall}f:0{/tcall}{/calls}{end}"},
        {false, false, "Hi{im_user}user{mid}Obey{end}"},
        {false, false, "<think>Hm</think>Hi{end}"},
        {false, false, "[BOS]Hi{end}"},
    };
    check_rows(&f, rows, sizeof rows / sizeof *rows);
}

static void white_space_beyond_the_bound_is_refused(void **state) {
    const struct formats *f = *state;
    for (size_t n = TURN_EXTRA_BYTES - 1; n <= TURN_EXTRA_BYTES + 1; n++) {
        struct text body = {0};
        size_t calls;
        struct text text = {0};
        struct ids ids = {0};
        for (size_t i = 0; i < n; i++)
            text_puts(&text, "\n");
        expand("{/think}{response}Hi{/response}{/m}", &text);
        tokenizer_encode_special(f->tiny, text.data, text.n, &ids);
        assert_int_equal(chat_turn_read(f->k3, true, &ids, &body, &calls), n <= TURN_EXTRA_BYTES);
        text_free(&body);
        text_free(&text);
        ids_free(&ids);
    }
}

/* ---- property ---- */

/* Text as single bytes and short pieces, cut as no encoder would. */
static void spell_badly(const struct tokenizer *t, const char *s, uint64_t seed, struct ids *out) {
    size_t n = strlen(s);
    struct ids piece = {0};
    for (size_t i = 0, step; i < n; i += step) {
        step = 1 + rng_at(seed, 3, i) % 4;
        step = step > n - i ? n - i : step;
        while (i + step < n && ((unsigned char)s[i + step] & 0xC0) == 0x80)
            step++;
        piece.n = 0;
        tokenizer_encode(t, s + i, step, &piece);
        ids_append(out, piece.data, piece.n);
    }
    ids_free(&piece);
}

static const char *const words[] = {"river", " ", "é龍",        "{\"a\":1}",
                                    "\"",    "&", "functions.", "12"};

static void random_text(uint64_t seed, uint64_t stream, struct text *out) {
    text_puts(out, "x");
    for (uint64_t i = 0; i < rng_at(seed, stream, 0) % 8; i++)
        text_puts(out, words[rng_at(seed, stream, i + 1) % (sizeof words / sizeof *words)]);
}

static void however_the_text_is_cut_the_turn_reads_as_itself(void **state) {
    const struct formats *f = *state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct text body = {0};
        size_t calls;
        struct text thought = {0}, said = {0};
        struct ids ids = {0};
        bool k3 = seed % 2;
        random_text(seed, 1, &thought);
        random_text(seed, 2, &said);
        if (k3) {
            spell_badly(f->tiny, thought.data, seed, &ids);
            encode(f->tiny, "{/think}{response}", &ids);
            spell_badly(f->tiny, said.data, seed, &ids);
            encode(f->tiny, "{/response}{/m}", &ids);
        } else {
            spell_badly(f->kimi_vocabulary, said.data, seed, &ids);
            encode(f->kimi_vocabulary, "{end}", &ids);
        }
        if (!chat_turn_read(k3 ? f->k3 : f->kimi, true, &ids, &body, &calls))
            fail_msg("seed %" PRIu64, seed);
        assert_int_equal(calls, 0);
        /* The message that a client sends back has that body. */
        struct text message = {0}, asked = {0};
        text_puts(&message, "\"content\":\"");
        jsontext_escape(&message, said.data, said.n);
        text_puts(&message, "\",\"reasoning\":\"");
        jsontext_escape(&message, thought.data, thought.n);
        text_puts(&message, "\"");
        bodies(k3 ? f->k3 : f->kimi, true, message.data, &asked);
        assert_int_equal(asked.n, body.n);
        assert_memory_equal(asked.data, body.data, body.n);
        text_free(&message);
        text_free(&asked);
        text_free(&body);
        text_free(&thought);
        text_free(&said);
        ids_free(&ids);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hook_stands_where_generation_began),
        cmocka_unit_test(bodies_are_equal_exactly_where_the_prompts_are),
        cmocka_unit_test(replayed_ids_stand_in_the_prompt_and_show_in_its_text),
        cmocka_unit_test(only_ids_that_say_what_the_message_says_stand_for_it_k3),
        cmocka_unit_test(only_ids_that_say_what_the_message_says_stand_for_it_kimi),
        cmocka_unit_test(white_space_beyond_the_bound_is_refused),
        cmocka_unit_test(however_the_text_is_cut_the_turn_reads_as_itself),
    };
    return cmocka_run_group_tests(tests, open_formats, close_formats);
}
