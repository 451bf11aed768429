/* chat_test.h: what the tests of the chat formats share: the tokenizer of tiny-k3, a vocabulary for
 * Kimi-Linear made on the spot, short marks for long markers, and requests from JSON. */
#ifndef WEIR_TESTS_TEXT_CHAT_TEST_H
#define WEIR_TESTS_TEXT_CHAT_TEST_H

#include "tests/test.h"
#include "tests/text/byte_tokenizer.h"

#include "text/chat.h"

enum { KIMI_VOCAB = 512, KIMI_FIRST_SPECIAL = BYTE_RANKS };

/* Distances from the first special id as in the released vocabulary. */
#define KIMI_SPECIAL(spelling, offset, hidden)                                                     \
    { spelling, KIMI_FIRST_SPECIAL + offset, hidden }
static const struct byte_special kimi_specials[] = {
    KIMI_SPECIAL("[BOS]", 0, true),
    KIMI_SPECIAL("[EOS]", 1, true),
    KIMI_SPECIAL("<|im_end|>", 2, true),
    KIMI_SPECIAL("<|im_user|>", 3, true),
    KIMI_SPECIAL("<|im_assistant|>", 4, true),
    KIMI_SPECIAL("<|im_system|>", 10, true),
    KIMI_SPECIAL("<|tool_calls_section_begin|>", 11, false),
    KIMI_SPECIAL("<|tool_calls_section_end|>", 12, false),
    KIMI_SPECIAL("<|tool_call_begin|>", 13, false),
    KIMI_SPECIAL("<|tool_call_argument_begin|>", 14, false),
    KIMI_SPECIAL("<|tool_call_end|>", 15, false),
    KIMI_SPECIAL("<|im_middle|>", 17, true),
    KIMI_SPECIAL("<think>", 22, false),
    KIMI_SPECIAL("</think>", 23, false)};
enum { KIMI_SPECIALS = sizeof kimi_specials / sizeof *kimi_specials };

/* `without`: a special token to leave out, or NULL. */
static inline struct tokenizer *kimi_tokenizer_without(const char *without) {
    struct byte_special s[KIMI_SPECIALS];
    memcpy(s, kimi_specials, sizeof s);
    for (size_t i = 0; i < KIMI_SPECIALS; i++)
        if (without != NULL && strcmp(without, s[i].spelling) == 0)
            s[i].spelling = NULL;
    return byte_tokenizer(s, KIMI_SPECIALS, KIMI_VOCAB);
}

static inline struct tokenizer *kimi_tokenizer(void) {
    return kimi_tokenizer_without(NULL);
}

static inline struct tokenizer *tiny_tokenizer(void) {
    struct tokenizer *t = NULL;
    weir_error err = {0};
    if (tokenizer_open(source_path("models/tiny-k3"), 2816, &t, &err) != WEIR_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        abort();
    }
    return t;
}

/* Both formats, opened once per test program. */
struct formats {
    struct tokenizer *tiny, *kimi_vocabulary;
    struct chat *k3, *kimi;
};

static inline int open_formats(void **state) {
    static struct formats f;
    weir_error err = {0};
    f.tiny = tiny_tokenizer();
    f.kimi_vocabulary = kimi_tokenizer();
    assert_int_equal(chat_open(CHAT_K3, f.tiny, &f.k3, &err), WEIR_OK);
    assert_int_equal(chat_open(CHAT_KIMI_LINEAR, f.kimi_vocabulary, &f.kimi, &err), WEIR_OK);
    *state = &f;
    return 0;
}

static inline int close_formats(void **state) {
    struct formats *f = *state;
    chat_close(f->k3);
    chat_close(f->kimi);
    tokenizer_close(f->tiny);
    tokenizer_close(f->kimi_vocabulary);
    return 0;
}

/* Short marks for long markers, as the tables below write them. */
static inline void expand(const char *s, struct text *out) {
    static const struct {
        const char *mark, *spelling;
    } marks[] = {{"{o}", "<|open|>"},
                 {"{c}", "<|close|>"},
                 {"{s}", "<|sep|>"},
                 {"{e}", "<|end_of_msg|>"},
                 {"{/m}", "<|close|>message<|sep|><|end_of_msg|>"},
                 {"{user}", "<|open|>message role=\"user\"<|sep|>"},
                 {"{assistant}", "<|open|>message role=\"assistant\"<|sep|>"},
                 {"{think}", "<|open|>think<|sep|>"},
                 {"{/think}", "<|close|>think<|sep|>"},
                 {"{response}", "<|open|>response<|sep|>"},
                 {"{/response}", "<|close|>response<|sep|>"},
                 {"{tools}", "<|open|>tools<|sep|>"},
                 {"{/tools}", "<|close|>tools<|sep|>"},
                 {"{/call}", "<|close|>call<|sep|>"},
                 {"{/argument}", "<|close|>argument<|sep|>"},
                 {"{go}", "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>"},
                 {"{think-go}", "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>"},
                 {"{im_user}", "<|im_user|>"},
                 {"{im_assistant}", "<|im_assistant|>"},
                 {"{im_system}", "<|im_system|>"},
                 {"{mid}", "<|im_middle|>"},
                 {"{end}", "<|im_end|>"},
                 {"{calls}", "<|tool_calls_section_begin|>"},
                 {"{/calls}", "<|tool_calls_section_end|>"},
                 {"{tcall}", "<|tool_call_begin|>"},
                 {"{args}", "<|tool_call_argument_begin|>"},
                 {"{/tcall}", "<|tool_call_end|>"}};
    while (*s != '\0') {
        size_t i = 0;
        for (; i < sizeof marks / sizeof *marks; i++)
            if (strncmp(s, marks[i].mark, strlen(marks[i].mark)) == 0)
                break;
        if (i < sizeof marks / sizeof *marks) {
            text_puts(out, marks[i].spelling);
            s += strlen(marks[i].mark);
        } else {
            text_append(out, s++, 1);
        }
    }
}

/* JSON with ' for ", to be readable inside C; a real ' is written \u0027. */
static inline json_t *quoted_json(const char *s, struct jsontext_numbers *numbers) {
    size_t n = strlen(s);
    char *copy = malloc(n + 1);
    for (size_t i = 0; i <= n; i++)
        copy[i] = s[i] == '\'' ? '"' : s[i];
    json_t *v = NULL;
    weir_error err = {0};
    if (jsontext_read(copy, n, 64, "test", numbers, &v, &err) != WEIR_OK) {
        fprintf(stderr, "%s\n%s\n", err.message, copy);
        abort();
    }
    free(copy);
    return v;
}

#endif
