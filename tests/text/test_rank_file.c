/* Reading tiktoken.model and tokenizer_config.json: what is refused, and in which words. */
#include "tests/test.h"

#include "base/rng.h"
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

struct table {
    char token[32][8];
    size_t length[32];
    unsigned n;
};

static int32_t find(const struct table *v, const char *s, size_t n) {
    for (unsigned k = 0; k < v->n; k++)
        if (v->length[k] == n && memcmp(v->token[k], s, n) == 0)
            return (int32_t)(256 + k);
    return n == 1 ? (int32_t)(unsigned char)s[0] : -1;
}

/* The definition: the whole piece if it is a token, else the pair of neighbours whose bytes have
 * the lowest rank, leftmost first, until none has a rank. Returns the number of ids. */
static size_t merge_by_definition(const struct table *v, const char *s, size_t n, int32_t *ids) {
    size_t start[600], parts = n;
    ids[0] = find(v, s, n);
    if (ids[0] >= 0)
        return 1;
    for (size_t i = 0; i <= n; i++)
        start[i] = i;
    for (;;) {
        int32_t least = INT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            int32_t rank = find(v, s + start[i], start[i + 2] - start[i]);
            if (rank >= 0 && rank < least) {
                least = rank;
                at = i;
            }
        }
        if (least == INT32_MAX)
            break;
        memmove(start + at + 1, start + at + 2, (parts - at - 1) * sizeof *start);
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        ids[i] = find(v, s + start[i], start[i + 1] - start[i]);
    return parts;
}

/* Tables drawn at random, most of which no training would give, over the letters a and b. */
static void merging_equals_its_definition_for_any_table(void **state) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct table v = {.n = 0};
        struct text ranks = single_bytes();
        for (unsigned k = 0, wanted = 1 + rng_at(seed, 0, 0) % 32; k < wanted; k++) {
            size_t n = 2 + rng_at(seed, 1, k) % 7;
            for (size_t i = 0; i < n; i++)
                v.token[v.n][i] = "ab"[rng_at(seed, 2 + k, i) & 1];
            if (find(&v, v.token[v.n], n) >= 0)
                continue;
            v.length[v.n] = n;
            put_token(&ranks, v.token[v.n], n, 256 + v.n);
            v.n++;
        }
        struct tokenizer *t;
        weir_error err = {0};
        assert_int_equal(parse(ranks.data, NULL, 300, &t, &err), WEIR_OK);
        for (uint64_t round = 0; round < 20; round++) {
            char piece[512];
            int32_t want[512];
            size_t n = 1 + rng_at(seed, 100, round) % (round < 15 ? 40 : sizeof piece);
            for (size_t i = 0; i < n; i++)
                piece[i] = "ab"[rng_at(seed, 101 + round, i) & 1];
            size_t n_want = merge_by_definition(&v, piece, n, want);
            struct ids got = {0};
            tokenizer_encode(t, piece, n, &got);
            if (got.n != n_want || memcmp(got.data, want, n_want * sizeof *want))
                fail_msg("seed %" PRIu64 ", round %" PRIu64 ": other ids than the definition's",
                         seed, round);
            ids_free(&got);
        }
        tokenizer_close(t);
        text_free(&ranks);
    }
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
        cmocka_unit_test(merging_equals_its_definition_for_any_table),
        cmocka_unit_test(a_bad_configuration_is_named_by_its_field),
        cmocka_unit_test(names_beyond_the_vocabulary_are_dropped),
        cmocka_unit_test(the_longest_special_name_wins),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
