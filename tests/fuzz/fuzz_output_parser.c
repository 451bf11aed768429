/* fuzz_output_parser.c: any ids to both output parsers. Holds that every event is valid UTF-8, that
 * complete calls without a json tag have JSON arguments, and that no cutting of the ids changes an
 * event. One byte of input is one id or one of the pieces that make up the markup, so that
 * well-formed calls are found quickly. */
#include "tests/text/byte_tokenizer.h"

#include "text/message.h"
#include "text/utf8.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const specials[] = {"[BOS]",
                                       "[EOS]",
                                       "<|end_of_msg|>",
                                       "<|open|>",
                                       "<|close|>",
                                       "<|sep|>",
                                       "<|im_end|>",
                                       "<|im_user|>",
                                       "<|im_assistant|>",
                                       "<|im_system|>",
                                       "<|im_middle|>",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>"};
enum { VOCABULARY = 320, SPECIALS = sizeof specials / sizeof *specials };

/* Input bytes from 0x80 stand for these, and what is left above them for bytes. */
static const char *const pieces[] = {"<|open|>think<|sep|>",
                                     "<|close|>think<|sep|>",
                                     "<|open|>response<|sep|>",
                                     "<|close|>response<|sep|>",
                                     "<|open|>tools<|sep|>",
                                     "<|close|>tools<|sep|>",
                                     "<|open|>call tool=\"f\" index=\"2\"<|sep|>",
                                     "<|open|>call tool=\"",
                                     "\" index=\"",
                                     "<|close|>call<|sep|>",
                                     "<|open|>argument key=\"k\" type=\"string\"<|sep|>",
                                     "<|open|>argument key=\"k\" type=\"number\"<|sep|>",
                                     "<|open|>argument key=\"k\" type=\"object\"<|sep|>",
                                     "<|open|>argument key=\"",
                                     "\" type=\"",
                                     "\"<|sep|>",
                                     "<|close|>argument<|sep|>",
                                     "<|open|>json type=\"object\"<|sep|>",
                                     "<|close|>json<|sep|>",
                                     "<|close|>message<|sep|>",
                                     "&quot;",
                                     "&amp;",
                                     "functions.f:0",
                                     "{\"a\":1e2}",
                                     "\xF0\x9F\x98\x80"};
enum { PIECES = sizeof pieces / sizeof *pieces };

static struct tokenizer *make_tokenizer(void) {
    struct byte_special s[SPECIALS];
    for (int i = 0; i < SPECIALS; i++)
        s[i] = (struct byte_special){specials[i], BYTE_RANKS + i, i % 2};
    return byte_tokenizer(s, SPECIALS, VOCABULARY);
}

struct record {
    struct text log;
    struct chat_message message;
    size_t done;
};

static void take(void *arg, const struct chat_event *e) {
    struct record *r = arg;
    char head[80];
    snprintf(head, sizeof head, "\n%d %u %zu %zu ", (int)e->kind, e->call, e->ids_first,
             e->ids_done);
    text_puts(&r->log, head);
    if (e->kind == CHAT_CALL_BEGIN) {
        WEIR_ASSERT(*e->id != '\0' && *e->name != '\0' && e->index > 0);
        WEIR_ASSERT(utf8_valid(e->id, strlen(e->id)) && utf8_valid(e->name, strlen(e->name)));
        text_puts(&r->log, e->name);
    } else if (e->kind != CHAT_CALL_END) {
        WEIR_ASSERT(e->n > 0 && utf8_valid(e->text, e->n));
        text_append(&r->log, e->text, e->n);
    }
    if (e->kind == CHAT_REASONING || e->kind == CHAT_CONTENT) {
        WEIR_ASSERT(e->ids_first >= r->done && e->ids_done >= e->ids_first);
        r->done = e->ids_done;
    }
    chat_message_take(&r->message, e);
}

/* Pieces of 1 .. 8 ids from the seed; seed 0: all at once. */
static struct record parse(const struct chat *c, const struct ids *ids, uint8_t flags,
                           uint32_t seed) {
    struct record r = {0};
    struct chat_parser_options o = {
        .thinking = flags & 1, .tools = flags & 2, .one_call = flags & 4, .id_seed = 7};
    struct chat_parser *p = chat_parser_new(c, o, take, &r);
    for (size_t at = 0; at < ids->n;) {
        seed = seed * 1664525u + 1013904223u * (seed != 0);
        size_t n = seed ? 1 + (seed >> 28) % 8 : ids->n;
        n = n < ids->n - at ? n : ids->n - at;
        chat_parser_feed(p, ids->data + at, n);
        at += n;
    }
    chat_parser_finish(p, flags & 8);
    uint32_t complete = 0;
    for (size_t i = 0; i < r.message.n_calls; i++)
        complete += r.message.calls[i].complete;
    WEIR_ASSERT(complete == chat_parser_calls(p));
    WEIR_ASSERT(chat_parser_reasoning_ids(p) <= ids->n);
    chat_parser_free(p);
    return r;
}

static void record_free(struct record *r) {
    text_free(&r->log);
    chat_message_free(&r->message);
}

static void check(const struct chat *c, const struct ids *ids, uint8_t flags, bool raw_arguments) {
    struct record whole = parse(c, ids, flags, 0);
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct record cut = parse(c, ids, flags, seed);
        WEIR_ASSERT(cut.log.n == whole.log.n);
        WEIR_ASSERT(cut.log.n == 0 || memcmp(cut.log.data, whole.log.data, cut.log.n) == 0);
        record_free(&cut);
    }
    for (size_t i = 0; i < whole.message.n_calls && !raw_arguments; i++) {
        const struct text *a = &whole.message.calls[i].arguments;
        if (whole.message.calls[i].complete)
            WEIR_ASSERT(a->data[0] == '{' && jsontext_value_end(a->data, a->n, 0) == a->n);
    }
    record_free(&whole);
}

static bool has_json_tag(const struct text *spelled) {
    return spelled->n != 0 && memmem(spelled->data, spelled->n, "json", 4) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *t;
    static struct chat *k3, *kimi;
    if (t == NULL) {
        t = make_tokenizer();
        weir_status s = chat_open(CHAT_K3, t, &k3, NULL);
        WEIR_ASSERT(s == WEIR_OK);
        s = chat_open(CHAT_KIMI_LINEAR, t, &kimi, NULL);
        WEIR_ASSERT(s == WEIR_OK);
    }
    if (size == 0)
        return 0;
    struct ids ids = {0};
    struct text spelled = {0};
    for (size_t i = 1; i < size; i++) {
        if (data[i] < SPECIALS)
            ids_push(&ids, BYTE_RANKS + data[i]);
        else if (data[i] >= 0x80 && data[i] < 0x80 + PIECES)
            tokenizer_encode_special(t, pieces[data[i] - 0x80], strlen(pieces[data[i] - 0x80]),
                                     &ids);
        else
            ids_push(&ids, data[i]);
    }
    tokenizer_decode(t, ids.data, ids.n, false, &spelled);
    check(k3, &ids, data[0], has_json_tag(&spelled));
    check(kimi, &ids, data[0], true);
    ids_free(&ids);
    text_free(&spelled);
    return 0;
}
