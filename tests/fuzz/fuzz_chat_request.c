/* fuzz_chat_request.c: any bytes as a chat request: the JSON reader, the field checks and both
 * renderers. Holds that writing what was read and reading it again gives the same text, that a
 * refused request leaves nothing behind, and that the ids of a prompt spell its text. */
#include "tests/text/byte_tokenizer.h"

#include "text/chat.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const specials[] = {"[EOS]",
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

static struct tokenizer *make_tokenizer(void) {
    struct byte_special s[SPECIALS];
    for (int i = 0; i < SPECIALS; i++)
        s[i] = (struct byte_special){specials[i], BYTE_RANKS + i, true};
    return byte_tokenizer(s, SPECIALS, VOCABULARY);
}

static void check_rewrite(const json_t *root, const struct jsontext_numbers *numbers, bool sorted) {
    struct jsontext_numbers *again_numbers = jsontext_numbers_new();
    struct text once = {0}, twice = {0};
    json_t *again;
    jsontext_write(&once, root, numbers, sorted);
    weir_status s = jsontext_read(once.data, once.n, 64, "", again_numbers, &again, NULL);
    WEIR_ASSERT(s == WEIR_OK);
    WEIR_ASSERT(jsontext_value_end(once.data, once.n, 0) == once.n);
    jsontext_write(&twice, again, again_numbers, sorted);
    WEIR_ASSERT(twice.n == once.n && memcmp(twice.data, once.data, once.n) == 0);
    json_decref(again);
    jsontext_numbers_free(again_numbers);
    text_free(&once);
    text_free(&twice);
}

static void check_render(const struct chat *c, const struct tokenizer *t, const json_t *root,
                         const struct jsontext_numbers *numbers) {
    struct chat_options o = chat_options_default();
    struct ids ids = {0};
    struct text text = {0}, spelled = {0};
    weir_error err = {0};
    o.tools = json_object_get(root, "tools");
    o.response_format = json_object_get(root, "response_format");
    o.effort = json_string_value(json_object_get(root, "reasoning_effort"));
    o.thinking = !json_is_false(json_object_get(root, "thinking"));
    o.tool_choice = (enum chat_tool_choice)(json_object_size(root) % 4);
    o.tool_name = "f";
    o.numbers = numbers;
    weir_status s = chat_render(c, json_object_get(root, "messages"), &o, &ids, &text, &err);
    if (s == WEIR_OK) {
        tokenizer_decode(t, ids.data, ids.n, false, &spelled);
        WEIR_ASSERT(spelled.n == text.n && memcmp(spelled.data, text.data, text.n) == 0);
    } else {
        WEIR_ASSERT(ids.n == 0 && text.n == 0 && *err.where != '\0' && *err.message != '\0');
    }
    ids_free(&ids);
    text_free(&text);
    text_free(&spelled);
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
    struct jsontext_numbers *numbers = jsontext_numbers_new();
    json_t *root;
    if (jsontext_read((const char *)data, size, 64, "body", numbers, &root, NULL) == WEIR_OK) {
        check_rewrite(root, numbers, false);
        check_rewrite(root, numbers, true);
        check_render(k3, t, root, numbers);
        check_render(kimi, t, root, numbers);
        json_decref(root);
    }
    jsontext_numbers_free(numbers);
    return 0;
}
