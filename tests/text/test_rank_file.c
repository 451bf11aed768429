/* Reading tiktoken.model and tokenizer_config.json: what is refused, and in which words. */
#include "tests/test.h"

#include "text/tokenizer.h"

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_token(struct text *out, const char *token, size_t n, unsigned rank) {
    const unsigned char *s = (const unsigned char *)token;
    char line[32];
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) |
                     (i + 2 < n ? s[i + 2] : 0);
        char four[4] = {base64_digits[v >> 18], base64_digits[v >> 12 & 63],
                        i + 1 < n ? base64_digits[v >> 6 & 63] : '=',
                        i + 2 < n ? base64_digits[v & 63] : '='};
        text_append(out, four, 4);
    }
    snprintf(line, sizeof line, " %u\n", rank);
    text_puts(out, line);
}

/* The 256 single bytes, ranks 0 .. 255. */
static struct text single_bytes(void) {
    struct text t = {0};
    for (unsigned c = 0; c < 256; c++)
        put_token(&t, &(char){(char)c}, 1, c);
    return t;
}

static weir_status parse(const char *ranks, const char *config, uint32_t vocab,
                         struct tokenizer **out, weir_error *err) {
    return tokenizer_parse(ranks, strlen(ranks), config, config ? strlen(config) : 0, vocab, out,
                           err);
}

static void check_refused(const char *ranks, const char *config, uint32_t vocab, const char *where,
                          const char *message) {
    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(parse(ranks, config, vocab, &t, &err), WEIR_BAD_FILE);
    assert_null(t);
    assert_string_equal(err.where, where);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" does not say \"%s\"", err.message, message);
}

/* Appends `tail` to a good rank file. */
static void check_tail_refused(const char *tail, const char *message) {
    struct text ranks = single_bytes();
    text_puts(&ranks, tail);
    check_refused(ranks.data, NULL, 300, "tiktoken.model", message);
    text_free(&ranks);
}

static void a_bad_line_is_named_with_its_number_and_rule(void **state) {
    check_tail_refused("YWI=\n", "line 257: \"YWI=\" is not base64, a space and a rank");
    check_tail_refused("YWI= 257\n", "line 257: rank \"257\" is not a number from 0 to 256");
    check_tail_refused("YWI= -1\n", "rank \"-1\" is not a number");
    check_tail_refused("YWI= 0256\n", "rank \"0256\" is not a number");
    check_tail_refused("YWI= 256 \n", "rank \"256 \" is not a number");
    check_tail_refused("YWI= \n", "rank \"\" is not a number");
    check_tail_refused("YWI= 99999999999999999999\n", "is not a number");
    check_tail_refused("YWI= 7\n", "line 257: rank 7 was given before");
    check_tail_refused("YWI 256\n", "rank 256: \"YWI\" is not base64");
    check_tail_refused("YW=I 256\n", "rank 256: \"YW=I\" is not base64");
    check_tail_refused("YWJ= 256\n", "rank 256: \"YWJ=\" is not base64"); /* loose bits */
    check_tail_refused("==== 256\n", "is not base64");
    check_tail_refused(" 256\n", "rank 256: \"\" is not base64");
    check_tail_refused("YQ== 256\n", "ranks 97 and 256 are the same token");
}

static void a_rank_file_of_the_wrong_size_is_refused(void **state) {
    struct text ranks = single_bytes();
    check_refused(ranks.data, NULL, 255, "tiktoken.model",
                  "holds 256 tokens, but vocab_size is only 255");
    check_refused("", NULL, 10, "tiktoken.model", "holds no tokens");
    check_refused("\n\n", NULL, 10, "tiktoken.model", "holds no tokens");
    check_refused("IQ== 0\n", NULL, 10, "tiktoken.model", "no token for the single byte 0x00");
    struct text longest = single_bytes();
    char token[4097];
    memset(token, 'a', sizeof token);
    put_token(&longest, token, 4097, 256);
    check_refused(longest.data, NULL, 300, "tiktoken.model", "4096 bytes");
    text_free(&longest);

    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(parse(ranks.data, NULL, UINT32_MAX, &t, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "vocab_size");
    text_free(&ranks);
}

static void lines_may_come_in_any_order_with_any_line_end(void **state) {
    struct text ranks = {0};
    put_token(&ranks, "abc", 3, 257);
    put_token(&ranks, "ab", 2, 256);
    struct text bytes = single_bytes();
    for (size_t i = 0; i < bytes.n; i++) {
        if (bytes.data[i] == '\n')
            text_puts(&ranks, "\r\n\n");
        else
            text_append(&ranks, bytes.data + i, 1);
    }
    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(parse(ranks.data, NULL, 300, &t, &err), WEIR_OK);
    struct ids ids = {0};
    tokenizer_encode(t, "abc abd", 7, &ids);
    static const int32_t want[] = {257, ' ', 256, 'd'};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.data, want, sizeof want);
    ids_free(&ids);
    tokenizer_close(t);
    text_free(&ranks);
    text_free(&bytes);
}

/* Ranks that no training would give: a token that only a whole pre-token can be, a token that ranks
 * before its own parts, and a long one. */
static void merges_follow_the_ranks_also_in_odd_tables(void **state) {
    struct text ranks = single_bytes();
    put_token(&ranks, "xyz", 3, 256); /* xy and yz are no tokens: unreachable by merging */
    put_token(&ranks, "mno", 3, 257); /* before mn */
    put_token(&ranks, "mn", 2, 258);
    put_token(&ranks, "no", 2, 259);
    char ones[200];
    memset(ones, 'k', sizeof ones);
    put_token(&ranks, "kk", 2, 260);
    put_token(&ranks, ones, 4, 261);
    put_token(&ranks, ones, 200, 262);
    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(parse(ranks.data, NULL, 300, &t, &err), WEIR_OK);
    static const struct {
        const char *text;
        int32_t ids[8];
        size_t n;
    } row[] = {
        {"xyz", {256}, 1},        {"xyzx", {'x', 'y', 'z', 'x'}, 4},
        {"mno", {257}, 1},        {"amnoa", {'a', 257, 'a'}, 3},
        {"kkkkk", {261, 'k'}, 2}, {"kkkkkkk", {261, 260, 'k'}, 3},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct ids ids = {0};
        tokenizer_encode(t, row[i].text, strlen(row[i].text), &ids);
        assert_int_equal(ids.n, row[i].n);
        assert_memory_equal(ids.data, row[i].ids, ids.n * sizeof *ids.data);
        ids_free(&ids);
    }
    struct ids ids = {0};
    tokenizer_encode(t, ones, sizeof ones, &ids);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.data[0], 262);
    ids_free(&ids);
    tokenizer_close(t);
    text_free(&ranks);
}

static void check_config_refused(const char *config, const char *message) {
    struct text ranks = single_bytes();
    check_refused(ranks.data, config, 260, "tokenizer_config.json", message);
    text_free(&ranks);
}

static void a_bad_configuration_is_named_by_its_field(void **state) {
    check_config_refused("{", "line 1, column 1");
    check_config_refused("[]", "added_tokens_decoder: must be an object");
    check_config_refused("{}", "added_tokens_decoder: must be an object");
    check_config_refused("{\"added_tokens_decoder\": 3}", "must be an object");
    check_config_refused("{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}",
                         "key \"x\" is not a token id");
    check_config_refused("{\"added_tokens_decoder\": {\"-1\": {\"content\": \"a\"}}}",
                         "key \"-1\" is not a token id");
    check_config_refused("{\"added_tokens_decoder\": {\"255\": {\"content\": \"a\"}}}",
                         "added_tokens_decoder.255: ids below 256 belong to the rank file");
    check_config_refused("{\"added_tokens_decoder\": {\"256\": {\"content\": \"\"}}}",
                         "added_tokens_decoder.256.content: must be a string that is not empty");
    check_config_refused("{\"added_tokens_decoder\": {\"256\": \"<s>\"}}",
                         "added_tokens_decoder.256.content");
    check_config_refused(
        "{\"added_tokens_decoder\": {\"256\": {\"content\": \"a\", \"special\": 1}}}",
        "added_tokens_decoder.256.special: must be true or false");
    check_config_refused("{\"added_tokens_decoder\": {\"256\": {\"content\": \"<s>\"}, \"258\": "
                         "{\"content\": \"<s>\"}}}",
                         "have the same name \"<s>\"");
    check_config_refused("{\"added_tokens_decoder\": {\"256\": {\"content\": "
                         "\"<|reserved_token_257|>\"}}}",
                         "have the same name");
}

static void names_beyond_the_vocabulary_are_dropped(void **state) {
    struct text ranks = single_bytes();
    struct tokenizer *t;
    weir_error err = {0};
    const char *config = "{\"added_tokens_decoder\": {\"257\": {\"content\": \"<|open|>\", "
                         "\"special\": true}, \"260\": {\"content\": \"<|im_end|>\"}}}";
    assert_int_equal(parse(ranks.data, config, 260, &t, &err), WEIR_OK);
    assert_int_equal(tokenizer_special(t, "<|im_end|>"), -1);
    assert_int_equal(tokenizer_special(t, "<|open|>"), 257);
    assert_int_equal(tokenizer_kind(t, 257), TOKEN_HIDDEN);
    assert_int_equal(tokenizer_special(t, "<|reserved_token_259|>"), 259);
    tokenizer_close(t);
    text_free(&ranks);
}

/* Of several names that fit at one place the longest is taken. */
static void the_longest_special_name_wins(void **state) {
    struct text ranks = single_bytes();
    struct tokenizer *t;
    weir_error err = {0};
    const char *config = "{\"added_tokens_decoder\": {\"256\": {\"content\": \"<a\"}, \"257\": "
                         "{\"content\": \"<ab>\"}, \"258\": {\"content\": \"<ab\"}}}";
    assert_int_equal(parse(ranks.data, config, 260, &t, &err), WEIR_OK);
    struct ids ids = {0};
    tokenizer_encode_special(t, "<ab><ab<a<", 10, &ids);
    static const int32_t want[] = {257, 258, 256, '<'};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.data, want, sizeof want);
    ids_free(&ids);
    tokenizer_close(t);
    text_free(&ranks);
}

static void a_missing_file_is_named(void **state) {
    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(tokenizer_open(source_path("models/micro-k3-odd"), 300, &t, &err),
                     WEIR_BAD_FILE);
    assert_null(t);
    assert_non_null(strstr(err.where, "models/micro-k3-odd/tiktoken.model"));
    assert_non_null(strstr(err.message, "cannot be opened"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_line_is_named_with_its_number_and_rule),
        cmocka_unit_test(a_rank_file_of_the_wrong_size_is_refused),
        cmocka_unit_test(lines_may_come_in_any_order_with_any_line_end),
        cmocka_unit_test(merges_follow_the_ranks_also_in_odd_tables),
        cmocka_unit_test(a_bad_configuration_is_named_by_its_field),
        cmocka_unit_test(names_beyond_the_vocabulary_are_dropped),
        cmocka_unit_test(the_longest_special_name_wins),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
