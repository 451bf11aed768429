/* Incremental UTF-8: what is replaced, and that it does not depend on where the bytes are cut. */
#include "tests/test.h"

#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define FFFD "\xEF\xBF\xBD"

static struct text whole(const char *bytes, size_t n) {
    struct text out = {0};
    struct utf8_stream s = {0};
    utf8_push(&s, bytes, n, &out);
    utf8_finish(&s, &out);
    text_append(&out, NULL, 0); /* a NUL also when nothing came */
    return out;
}

/* Rows as in the WHATWG decoder: one U+FFFD per maximal invalid sequence. */
static void invalid_sequences_are_replaced_one_by_one(void **state) {
    static const struct {
        const char *in, *out;
    } row[] = {
        {"", ""},
        {"plain", "plain"},
        {"\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80", "\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80"},
        {"\x80", FFFD},
        {"\xC0\xAF", FFFD FFFD},          /* overlong */
        {"\xE0\x80\xAF", FFFD FFFD FFFD}, /* overlong */
        {"\xF0\x80\x80\xAF", FFFD FFFD FFFD FFFD},
        {"\xED\xA0\x80", FFFD FFFD FFFD},          /* a surrogate */
        {"\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD}, /* above U+10FFFF */
        {"\xF5\xFF", FFFD FFFD},
        {"\xE4\xBD", FFFD}, /* cut short: one */
        {"\xF0\x9F\x98", FFFD},
        {"\xF0\x9F\x98z", FFFD "z"},
        {"\xF0\x9F\xE4\xBD\xA0", FFFD "\xE4\xBD\xA0"},
        {"\xE4\xE4\xBD\xA0\xBD", FFFD "\xE4\xBD\xA0" FFFD},
        {"a\xF1\x80\x80\xE1\x80\xC2"
         "b\x80"
         "c\x80\xBF"
         "d",
         "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d"},
        {"\xF4\x8F\xBF\xBF\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF\xEF\xBF\xBF"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct text out = whole(row[i].in, strlen(row[i].in));
        assert_string_equal(out.data, row[i].out);
        assert_int_equal(utf8_valid(row[i].in, strlen(row[i].in)),
                         strcmp(row[i].in, row[i].out) == 0);
        text_free(&out);
    }
}

static void pieces_give_what_one_push_gives_and_each_is_valid(void **state) {
    static const unsigned char likely[] = {0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x98, 0x80, 0xC3,
                                           0xA9, 'a',  0xED, 0xF4, 0x8F, 0xBF, 0xC0, 0xFF};
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        char bytes[64];
        size_t n = rng_at(seed, 0, 0) % sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)likely[rng_at(seed, 1, i) % sizeof likely];
        struct text once = whole(bytes, n), parts = {0};
        assert_true(utf8_valid(once.data, once.n));
        struct utf8_stream s = {0};
        for (size_t at = 0, i = 0; at < n; i++) {
            size_t piece = rng_at(seed, 2, i) % 5, before = parts.n;
            if (piece > n - at)
                piece = n - at;
            utf8_push(&s, bytes + at, piece, &parts);
            at += piece;
            if (parts.n > before)
                assert_true(utf8_valid(parts.data + before, parts.n - before));
            assert_true(s.n < 4);
        }
        utf8_finish(&s, &parts);
        if (parts.n != once.n || (parts.n && memcmp(parts.data, once.data, parts.n)))
            fail_msg("seed %" PRIu64 ": the result depends on the cuts", seed);
        text_free(&once);
        text_free(&parts);
    }
}

/* An emoji and an accented letter, byte token by byte token: nothing comes until a character is
 * whole, and no replacement character ever does. */
static void F011_characters_of_several_tokens_arrive_whole(void **state) {
    struct tokenizer *t;
    weir_error err = {0};
    assert_int_equal(tokenizer_open(source_path("models/tiny-k3"), 2816, &t, &err), WEIR_OK);
    static const char text[] = "\xF0\x9F\xA6\x84\xC3\xA9\xE4\xBD\xA0!";
    struct ids ids = {0};
    struct text streamed = {0};
    struct utf8_stream s = {0};
    for (size_t i = 0; i + 1 < sizeof text; i++) { /* one id per byte, whatever encoding would give
                                                    */
        for (int32_t id = 0; id < 2560; id++) {
            size_t n;
            if (tokenizer_piece(t, id, &n)[0] == text[i] && n == 1)
                ids_push(&ids, id);
        }
    }
    assert_int_equal(ids.n, sizeof text - 1);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n, before = streamed.n;
        const char *piece = tokenizer_piece(t, ids.data[i], &n);
        utf8_push(&s, piece, n, &streamed);
        if (streamed.n > before)
            assert_true(utf8_valid(streamed.data + before, streamed.n - before));
    }
    assert_int_equal(s.n, 0);
    assert_string_equal(streamed.data, text);
    text_free(&streamed);
    ids_free(&ids);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_sequences_are_replaced_one_by_one),
        cmocka_unit_test(pieces_give_what_one_push_gives_and_each_is_valid),
        cmocka_unit_test(F011_characters_of_several_tokens_arrive_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
