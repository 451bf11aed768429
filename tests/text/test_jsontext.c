/* test_jsontext.c: JSON that keeps its spelling: numbers, order, sorting, strictness, and a scanner
 * that agrees with the reader. */
#include "tests/test.h"

#include "text/jsontext.h"

#include <float.h>

static void rewrite(const char *in, bool sorted, const char *want) {
    struct jsontext_numbers *numbers = jsontext_numbers_new();
    json_t *v;
    weir_error err = {0};
    struct text out = {0};
    if (jsontext_read(in, strlen(in), 64, "body", numbers, &v, &err) != WEIR_OK)
        fail_msg("%s: %s", in, err.message);
    jsontext_write(&out, v, numbers, sorted);
    assert_string_equal(out.data, want);
    text_free(&out);
    json_decref(v);
    jsontext_numbers_free(numbers);
}

static void F018_numbers_keep_their_spelling(void **state) {
    rewrite("[1e2, 1.0, 12345678901234567890, -0, 0, -7, 1E+05, 0.10, 1e999, 100]", false,
            "[1e2,1.0,12345678901234567890,-0,0,-7,1E+05,0.10,1e999,100]");
}

/* Without the table of spellings: the shortest text of the same value. */
static void numbers_without_a_table_read_back_equal(void **state) {
    static const double values[] = {0.1, 1.0, 1e22, 1.0 / 3, -2.5e-300, 123456789.125};
    static const char *const texts[] = {"0.1",       "1.0",          "1e+22", "0.3333333333333333",
                                        "-2.5e-300", "123456789.125"};
    for (size_t i = 0; i < 6; i++) {
        struct text out = {0};
        json_t *v = json_real(values[i]);
        jsontext_write(&out, v, NULL, false);
        assert_string_equal(out.data, texts[i]);
        assert_true(strtod(out.data, NULL) == values[i]);
        json_decref(v);
        text_free(&out);
    }
}

/* Many numbers under repeated keys: a replaced node's address must not lend its spelling. */
static void spellings_belong_to_their_own_node(void **state) {
    struct text in = {0}, want = {0};
    char b[64];
    text_puts(&in, "[");
    text_puts(&want, "[");
    for (int i = 0; i < 5000; i++) {
        snprintf(b, sizeof b, "%s{\"a\":%d.50,\"a\":%d},%d", i ? "," : "", i, i, i);
        text_puts(&in, b);
        snprintf(b, sizeof b, "%s{\"a\":%d},%d", i ? "," : "", i, i);
        text_puts(&want, b);
    }
    text_puts(&in, "]");
    text_puts(&want, "]");
    rewrite(in.data, false, want.data);
    text_free(&in);
    text_free(&want);
}

static void keys_keep_their_order_or_are_sorted_by_code_point(void **state) {
    static const char in[] = "{\"b\":{\"z\":1,\"aa\":2,\"a\":3},\"\\ud83d\\ude00\":0,\"\\uff5e\":0,"
                             "\"a\":[{\"y\":1,\"x\":2}],\"Z\":0,\"\":0,\"b\":1}";
    rewrite(in, false,
            "{\"b\":1,\"\U0001F600\":0,\"\uFF5E\":0,\"a\":[{\"y\":1,\"x\":2}],\"Z\":0,\"\":0}");
    /* U+FF5E before U+1F600: by code point, not by UTF-16 unit. */
    rewrite(in, true,
            "{\"\":0,\"Z\":0,\"a\":[{\"x\":2,\"y\":1}],\"b\":1,\"\uFF5E\":0,\"\U0001F600\":0}");
}

static void strings_are_escaped_as_little_as_json_allows(void **state) {
    rewrite(
        " [ \"\\u00e9\\/\\\\\\\"\\b\\f\\n\\r\\t\\u001F\\u007f<\\u0000\" , true , false , null , "
        "{ } , [ ] ] ",
        false, "[\"\u00e9/\\\\\\\"\\b\\f\\n\\r\\t\\u001f\x7f<\\u0000\",true,false,null,{},[]]");
}

static void numbers_beyond_their_types_stay_in_range(void **state) {
    json_t *v;
    static const char in[] = "[1e999,-1e999,9223372036854775807,9223372036854775808]";
    assert_int_equal(jsontext_read(in, strlen(in), 64, "body", NULL, &v, NULL), WEIR_OK);
    assert_true(json_real_value(json_array_get(v, 0)) == DBL_MAX);
    assert_true(json_real_value(json_array_get(v, 1)) == -DBL_MAX);
    assert_true(json_is_integer(json_array_get(v, 2)));
    assert_true(json_is_real(json_array_get(v, 3)));
    json_decref(v);
}

static const char *const bad[] = {"",
                                  " ",
                                  "{",
                                  "[",
                                  "[1",
                                  "[1,",
                                  "[1,]",
                                  "{\"a\"}",
                                  "{\"a\":}",
                                  "{a:1}",
                                  "{\"a\":1,}",
                                  "[1 2]",
                                  "01",
                                  "1.",
                                  ".5",
                                  "+1",
                                  "-",
                                  "1e",
                                  "1e+",
                                  "NaN",
                                  "Infinity",
                                  "tru",
                                  "truee",
                                  "nul",
                                  "'a'",
                                  "\"",
                                  "\"\\x\"",
                                  "\"\\u12\"",
                                  "\"\\ud800\"",
                                  "\"\\ud800\\u0041\"",
                                  "\"\\udc00\"",
                                  "\"\n\"",
                                  "\"a",
                                  "[1]]",
                                  "1 1",
                                  "\"\xff\"",
                                  "\"\xed\xa0\x80\"",
                                  "{\"a\":1]",
                                  "[1}"};

static void what_is_not_json_is_refused_with_its_place(void **state) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weir_error err = {0};
        json_t *v;
        if (jsontext_read(bad[i], strlen(bad[i]), 64, "body", NULL, &v, &err) != WEIR_BAD_VALUE)
            fail_msg("read: %s", bad[i]);
        assert_null(v);
        assert_string_equal(err.where, "body");
    }
    weir_error err = {0};
    json_t *v;
    jsontext_read("{\n  \"a\": 1,\n  \"b\": x}", 22, 64, "body", NULL, &v, &err);
    assert_non_null(strstr(err.message, "line 3, column 8"));
}

static void depth_is_bounded(void **state) {
    char deep[2100];
    for (size_t n = 63; n <= 65; n++) {
        memset(deep, '[', n);
        memset(deep + n, ']', n);
        json_t *v;
        weir_status s = jsontext_read(deep, 2 * n, 64, "body", NULL, &v, NULL);
        assert_int_equal(s, n <= 64 ? WEIR_OK : WEIR_BAD_VALUE);
        json_decref(v);
    }
    memset(deep, '[', 512);
    memset(deep + 512, ']', 512);
    assert_int_equal(jsontext_value_end(deep, 1024, 0), 1024);
    memset(deep, '[', 513);
    memset(deep + 513, ']', 513);
    assert_int_equal(jsontext_value_end(deep, 1026, 0), 0);
}

static const char *const good[] = {"0",
                                   "-1.5e-3",
                                   "\"a\\u00e9\\ud83d\\ude00\"",
                                   "true",
                                   "null",
                                   "[]",
                                   "{}",
                                   "[[],{},[1,\"x\",{\"a\":[null]}]]",
                                   "{\"a\":{\"b\":[1,2]},\"c\":\"d\"}",
                                   "[ 1 , { \"a\" : 2 } ]"};

/* A value ends at the same place with or without something behind it, and no prefix of a bracketed
 * value is one. */
static void the_scanner_finds_the_end_of_a_value(void **state) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t n = strlen(good[i]);
        char b[128];
        assert_int_equal(jsontext_value_end(good[i], n, 0), n);
        snprintf(b, sizeof b, "x%s,\"", good[i]);
        assert_int_equal(jsontext_value_end(b, n + 3, 1), n + 1);
        for (size_t cut = 0; cut < n && strchr("[{\"tn", good[i][0]); cut++)
            assert_int_equal(jsontext_value_end(good[i], cut, 0), 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = strlen(bad[i]), at = jsontext_skip_space(bad[i], n, 0);
        size_t end = jsontext_value_end(bad[i], n, at);
        bool utf8 = strchr(bad[i], '\xff') || strchr(bad[i], '\xed');
        if (!utf8 && end != 0 && jsontext_skip_space(bad[i], n, end) == n)
            fail_msg("taken for a value: %s", bad[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F018_numbers_keep_their_spelling),
        cmocka_unit_test(numbers_without_a_table_read_back_equal),
        cmocka_unit_test(spellings_belong_to_their_own_node),
        cmocka_unit_test(keys_keep_their_order_or_are_sorted_by_code_point),
        cmocka_unit_test(strings_are_escaped_as_little_as_json_allows),
        cmocka_unit_test(numbers_beyond_their_types_stay_in_range),
        cmocka_unit_test(what_is_not_json_is_refused_with_its_place),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(the_scanner_finds_the_end_of_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
