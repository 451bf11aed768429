/* pretokenizer.c: the fixed pattern of Kimi's tokenizer, matched by hand. Called by tokenizer.c.
 * Alternatives, the first that matches wins, with the backtracking of a regex engine:
 *   1  [\p{Han}]+
 *   2  P? U* W+ C?      P = [^\r\n\p{L}\p{N}]  U = CLASS_UPPER  W = CLASS_LOWER
 *   3  P? U+ W* C?      C = (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   4  \p{N}{1,3}
 *   5  [space]? [^\s\p{L}\p{N}]+ [\r\n]*
 *   6  \s*[\r\n]+
 *   7  \s+(?!\S)
 *   8  \s+
 * Invariant that bites: Lm, Lo and M are in both U and W, and M is in P too, so "greedy" has to be
 * undone exactly where the engine would undo it. Every scan below runs to the end of a run and no
 * character is scanned by more than a fixed number of calls, so hostile text costs linear time. */
#include "text/pretokenizer.h"

#include "text/unicode_tables.h"

#include <stdbool.h>
#include <string.h>

/* The classes of the character at s[at] and its length in bytes; 0 and 0 at the end. */
static inline unsigned class_at(const unsigned char *s, size_t n, size_t at, size_t *bytes) {
    if (at >= n) {
        *bytes = 0;
        return 0;
    }
    unsigned c = s[at];
    if (c < 0x80) {
        *bytes = 1;
        return unicode_class_ascii(c);
    }
    if (c < 0xE0) {
        *bytes = 2;
        return unicode_class((c & 0x1Fu) << 6 | (s[at + 1] & 0x3Fu));
    }
    if (c < 0xF0) {
        *bytes = 3;
        return unicode_class((c & 0x0Fu) << 12 | (s[at + 1] & 0x3Fu) << 6 | (s[at + 2] & 0x3Fu));
    }
    *bytes = 4;
    return unicode_class((c & 0x07u) << 18 | (s[at + 1] & 0x3Fu) << 12 | (s[at + 2] & 0x3Fu) << 6 |
                         (s[at + 3] & 0x3Fu));
}

/* The end of the run of characters from `at` that are in one of the classes. */
static inline size_t run_end(const unsigned char *s, size_t n, size_t at, unsigned classes) {
    size_t bytes;
    while (class_at(s, n, at, &bytes) & classes)
        at += bytes;
    return at;
}

/* The end of the optional contraction at `at`. Under (?i) the long s, U+017F, counts as an s. */
static size_t contraction_end(const unsigned char *s, size_t n, size_t at) {
    if (n - at < 2 || s[at] != '\'')
        return at;
    unsigned char a = s[at + 1] | 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if (n - at < 3)
        return at;
    if (s[at + 1] == 0xC5 && s[at + 2] == 0xBF)
        return at + 3;
    unsigned char b = s[at + 2] | 0x20;
    if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l'))
        return at + 3;
    return at;
}

/* Where U* W+ and U+ W* end when they begin at `at`; 0 where they do not match. */
struct word {
    size_t lower, upper;
};

static struct word match_word(const unsigned char *s, size_t n, size_t at) {
    size_t bytes, p = at, last_both = 0;
    unsigned c;
    while ((c = class_at(s, n, p, &bytes)) & CLASS_UPPER) {
        p += bytes;
        if (c & CLASS_LOWER)
            last_both = p;
    }
    if (c & CLASS_LOWER) {
        p = run_end(s, n, p + bytes, CLASS_LOWER);
        return (struct word){p, p};
    }
    /* W+ has to take back from U*: the last character of the run that is in both sets, and that one
     * alone, because what follows it is in U only. */
    return (struct word){last_both, p > at ? p : 0};
}

/* Alternatives 2 and 3; 0 when neither matches. */
static size_t word_end(const unsigned char *s, size_t n, size_t at, unsigned first, size_t bytes) {
    struct word prefixed = {0, 0}, bare = {0, 0};
    size_t end = 0;
    if (first & CLASS_PREFIX)
        prefixed = match_word(s, n, at + bytes);
    if (prefixed.lower) {
        end = prefixed.lower;
    } else {
        if (first & (CLASS_UPPER | CLASS_LOWER))
            bare = match_word(s, n, at);
        end = bare.lower ? bare.lower : prefixed.upper ? prefixed.upper : bare.upper;
    }
    return end ? contraction_end(s, n, end) : 0;
}

/* Alternatives 6 to 8, for a character that is white space and that nothing before has taken. */
static size_t space_end(const unsigned char *s, size_t n, size_t at) {
    size_t bytes, p = at, last_newline = 0, last = at;
    unsigned c;
    while ((c = class_at(s, n, p, &bytes)) & CLASS_SPACE) {
        last = p;
        p += bytes;
        if (c & CLASS_NEWLINE)
            last_newline = p;
    }
    if (last_newline)
        return last_newline;
    /* The last space before a word or sign stays for the next pre-token, unless it is all we have.
     */
    return p < n && last > at ? last : p;
}

size_t pretoken_end(const char *text, size_t n, size_t at) {
    const unsigned char *s = (const unsigned char *)text;
    size_t bytes;
    unsigned first = class_at(s, n, at, &bytes);
    if (first & CLASS_HAN)
        return run_end(s, n, at + bytes, CLASS_HAN);
    size_t end = word_end(s, n, at, first, bytes);
    if (end)
        return end;
    if (first & CLASS_NUMBER) {
        end = at + bytes;
        for (int i = 1; i < 3 && (class_at(s, n, end, &bytes) & CLASS_NUMBER); i++)
            end += bytes;
        return end;
    }
    size_t sign = s[at] == ' ' ? at + 1 : at;
    if (class_at(s, n, sign, &bytes) & CLASS_OTHER)
        return run_end(s, n, run_end(s, n, sign, CLASS_OTHER), CLASS_NEWLINE);
    return space_end(s, n, at);
}

size_t pretoken_window_end(const char *text, size_t n, size_t at) {
    const size_t limit = 400000;
    if (n - at <= limit)
        return n;
    size_t p = at, characters = 0;
    while (p < n) {
        if (((unsigned char)text[p] & 0xC0) != 0x80 && ++characters > limit)
            break;
        p++;
    }
    return p;
}

/* True when no run of more than 25,000 characters can begin in text[at .. n): it would cover one of
 * these blocks whole, and each of them holds a space and something that is none. */
static bool runs_are_short(const char *text, size_t n, size_t at) {
    const size_t block = 12500;
    for (; n - at >= block; at += block) {
        const char *space = memchr(text + at, ' ', block);
        if (!space)
            return false;
        size_t i = 0;
        while (i < block &&
               !((unsigned char)text[at + i] > ' ' && (unsigned char)text[at + i] < 0x7F))
            i++;
        if (i == block)
            return false;
    }
    return true;
}

size_t pretoken_slice_end(const char *text, size_t n, size_t at) {
    const size_t limit = 25000;
    if (n - at <= limit || runs_are_short(text, n, at))
        return n;
    const unsigned char *s = (const unsigned char *)text;
    size_t p = at, bytes, run = 0;
    bool run_is_space = false;
    for (; p < n; p += bytes) {
        /* What the reference's language calls white space here has the four information separators
         * besides the property of that name. */
        bool space = (class_at(s, n, p, &bytes) & CLASS_SPACE) || (s[p] >= 0x1C && s[p] <= 0x1F);
        if (space != run_is_space)
            run = 0;
        run_is_space = space;
        if (++run > limit)
            return p;
    }
    return n;
}
