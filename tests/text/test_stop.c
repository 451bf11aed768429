/* Stop strings: what is held back, what is cut off, and that neither depends on how text arrives.
 */
#include "tests/test.h"

#include "base/rng.h"
#include "text/stop.h"

enum { MAX_STRINGS = 4 };

struct stops {
    const char *string[MAX_STRINGS];
    size_t length[MAX_STRINGS];
    size_t n;
};

static struct stops stops(const char *a, const char *b) {
    struct stops s = {{a, b}, {strlen(a), b ? strlen(b) : 0}, b ? 2 : 1};
    return s;
}

static struct stop_matcher *matcher(const struct stops *s, bool include) {
    return stop_new(s->string, s->length, s->n, include);
}

static void F033_nothing_of_a_stop_string_is_shown(void **state) {
    struct stops s = stops("\nUser:", NULL);
    struct stop_matcher *m = matcher(&s, false);
    struct text out = {0};
    assert_int_equal(stop_push(m, "hello", 5, &out), -1);
    assert_int_equal(stop_push(m, "\n", 1, &out), -1);
    assert_int_equal(stop_push(m, "User", 4, &out), -1);
    assert_int_equal(stop_held(m), 5);
    assert_int_equal(stop_push(m, ":", 1, &out), 0);
    assert_int_equal(stop_push(m, " more", 5, &out), -1);
    assert_int_equal(stop_finish(m, &out), -1);
    assert_string_equal(out.data, "hello");
    stop_free(m);
    text_free(&out);
}

static void F033_held_text_is_released_once_it_cannot_match(void **state) {
    struct stops s = stops("\nUser:", NULL);
    struct stop_matcher *m = matcher(&s, false);
    struct text out = {0};
    stop_push(m, "\nUser", 5, &out);
    assert_int_equal(out.n, 0);
    stop_push(m, " interface", 10, &out);
    assert_string_equal(out.data, "\nUser interface");
    assert_int_equal(stop_held(m), 0);
    stop_push(m, "\nUs", 3, &out);
    assert_int_equal(stop_held(m), 3);
    assert_int_equal(stop_finish(m, &out), -1);
    assert_string_equal(out.data, "\nUser interface\nUs");
    stop_free(m);
    text_free(&out);
}

static void F034_text_without_a_partial_match_passes_at_once(void **state) {
    struct stops s = stops("zzzzzzzzzzzz", NULL);
    struct stop_matcher *m = matcher(&s, false);
    struct text out = {0};
    static const char *const token[] = {"Hel", "lo", " ", "w", "orld"};
    size_t n = 0;
    for (size_t i = 0; i < 5; i++) {
        stop_push(m, token[i], strlen(token[i]), &out);
        n += strlen(token[i]);
        assert_int_equal(out.n, n);
        assert_int_equal(stop_held(m), 0);
    }
    stop_free(m);
    text_free(&out);
}

static void check_match(const struct stops *s, bool include, const char *text, int index,
                        const char *shown) {
    struct stop_matcher *m = matcher(s, include);
    struct text out = {0};
    int got = stop_push(m, text, strlen(text), &out);
    if (got < 0)
        got = stop_finish(m, &out);
    text_append(&out, NULL, 0);
    assert_int_equal(got, index);
    assert_string_equal(out.data, shown);
    stop_free(m);
    text_free(&out);
}

static void the_earliest_start_wins_then_the_longest(void **state) {
    struct stops s = stops("bc", "abcd");
    check_match(&s, false, "xabcdy", 1, "x"); /* bc is complete first, abcd began first */
    check_match(&s, false, "xabcy", 0, "xa");
    check_match(&s, false, "xabc", 0, "xa"); /* decided by the end of the text */
    s = stops("ab", "abc");
    check_match(&s, true, "-abc-", 1, "-abc");
    check_match(&s, true, "-abd-", 0, "-ab");
    check_match(&s, true, "-ab", 0, "-ab");
    check_match(&s, false, "-ab", 0, "-");
    s = stops("aab", "b");
    check_match(&s, false, "aaab", 0, "a"); /* the automaton falls back to the border */
    s = stops("", "b");
    check_match(&s, false, "ab", 1, "a"); /* an empty string never matches */
}

/* The definition, without any automaton. */
static int plain_search(const struct stops *s, const char *text, size_t n, size_t *start) {
    for (size_t at = 0; at < n; at++) {
        int best = -1;
        for (size_t k = 0; k < s->n; k++)
            if (s->length[k] && s->length[k] <= n - at &&
                !memcmp(text + at, s->string[k], s->length[k]) &&
                (best < 0 || s->length[k] > s->length[best]))
                best = (int)k;
        if (best >= 0) {
            *start = at;
            return best;
        }
    }
    *start = n;
    return -1;
}

static void every_way_of_cutting_gives_the_same_text_and_match(void **state) {
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        char text[24], string[MAX_STRINGS][6];
        struct stops s = {.n = 1 + rng_at(seed, 0, 0) % MAX_STRINGS};
        size_t n = rng_at(seed, 0, 1) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = "ab"[rng_at(seed, 1, i) & 1];
        for (size_t k = 0; k < s.n; k++) {
            s.string[k] = string[k];
            s.length[k] = 1 + rng_at(seed, 2, k) % sizeof string[k];
            for (size_t i = 0; i < s.length[k]; i++)
                string[k][i] = "ab"[rng_at(seed, 3 + k, i) & 1];
        }
        bool include = rng_at(seed, 0, 2) & 1;
        size_t start;
        int want = plain_search(&s, text, n, &start);
        size_t shown = start + (want >= 0 && include ? s.length[want] : 0);

        struct stop_matcher *m = matcher(&s, include);
        struct text out = {0};
        int got = -1;
        for (size_t at = 0, i = 0; at < n && got < 0; i++) {
            size_t piece = rng_at(seed, 9, i) % 6;
            piece = piece > n - at ? n - at : piece;
            got = stop_push(m, text + at, piece, &out);
            at += piece;
            size_t longest = 0;
            for (size_t k = 0; k < s.n; k++)
                longest = s.length[k] > longest ? s.length[k] : longest;
            assert_true(stop_held(m) < 2 * longest);
        }
        if (got < 0)
            got = stop_finish(m, &out);
        bool same_index =
            got == want || (got >= 0 && want >= 0 && s.length[got] == s.length[want] &&
                            !memcmp(string[got], string[want], s.length[got]));
        if (!same_index || out.n != shown || (shown && memcmp(out.data, text, shown)))
            fail_msg("seed %" PRIu64 ": match %d instead of %d, %zu bytes instead of %zu", seed,
                     got, want, out.n, shown);
        stop_free(m);
        text_free(&out);
    }
}

static void without_strings_text_passes_through(void **state) {
    struct stop_matcher *m = stop_new(NULL, NULL, 0, false);
    struct text out = {0};
    assert_int_equal(stop_push(m, "any", 3, &out), -1);
    assert_int_equal(stop_finish(m, &out), -1);
    assert_string_equal(out.data, "any");
    stop_free(m);
    text_free(&out);
    stop_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F033_nothing_of_a_stop_string_is_shown),
        cmocka_unit_test(F033_held_text_is_released_once_it_cannot_match),
        cmocka_unit_test(F034_text_without_a_partial_match_passes_at_once),
        cmocka_unit_test(the_earliest_start_wins_then_the_longest),
        cmocka_unit_test(every_way_of_cutting_gives_the_same_text_and_match),
        cmocka_unit_test(without_strings_text_passes_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
