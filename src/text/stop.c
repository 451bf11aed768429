/* stop.c: stop strings over streamed text. Called by serve for every request that names some.
 * One Knuth-Morris-Pratt automaton per string tells after each byte how much of the string the text
 * ends with; the earliest such beginning is all that has to be held back. Invariant that bites: a
 * match is final only when no string that began at or before it can still grow, otherwise the
 * answer would depend on how the text was cut. */
#include "text/stop.h"

#include <string.h>

struct automaton {
    unsigned char *string;
    uint32_t *border; /* border[i]: longest proper prefix of string[0..i] that is also its suffix */
    size_t n;
    size_t state; /* bytes of the string that the text ends with */
};

struct stop_matcher {
    struct automaton *strings;
    size_t n;
    bool include;
    struct text held;
    size_t held_at; /* position in the whole text of held.data[0] */
    size_t at;      /* bytes taken so far */
    int best;       /* candidate: index, start, length; -1: none */
    size_t best_start, best_length;
    bool done;
};

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "weir: no memory for stop strings\n");
        abort();
    }
    return p;
}

struct stop_matcher *stop_new(const char *const *strings, const size_t *lengths, size_t n,
                              bool include_in_output) {
    struct stop_matcher *m = must(calloc(1, sizeof *m));
    m->strings = must(calloc(n ? n : 1, sizeof *m->strings));
    m->n = n;
    m->include = include_in_output;
    m->best = -1;
    for (size_t k = 0; k < n; k++) {
        struct automaton *a = &m->strings[k];
        a->n = lengths[k];
        a->string = must(malloc(a->n + 1));
        a->border = must(calloc(a->n + 1, sizeof *a->border));
        if (a->n)
            memcpy(a->string, strings[k], a->n);
        for (size_t i = 1, b = 0; i < a->n; i++) {
            while (b > 0 && a->string[i] != a->string[b])
                b = a->border[b - 1];
            if (a->string[i] == a->string[b])
                b++;
            a->border[i] = (uint32_t)b;
        }
    }
    return m;
}

void stop_free(struct stop_matcher *m) {
    if (!m)
        return;
    for (size_t k = 0; k < m->n; k++) {
        free(m->strings[k].string);
        free(m->strings[k].border);
    }
    free(m->strings);
    text_free(&m->held);
    free(m);
}

/* Takes one byte; true when the string is complete. The state then falls to the border, so that
 * overlapping occurrences are seen. */
static bool advance(struct automaton *a, unsigned char c) {
    if (a->n == 0)
        return false;
    while (a->state > 0 && a->string[a->state] != c)
        a->state = a->border[a->state - 1];
    if (a->string[a->state] == c)
        a->state++;
    if (a->state < a->n)
        return false;
    a->state = a->border[a->n - 1];
    return true;
}

/* The earliest position that still matters: nothing before it is part of any possible match. */
static size_t earliest_open(const struct stop_matcher *m) {
    size_t earliest = m->at;
    for (size_t k = 0; k < m->n; k++)
        if (m->at - m->strings[k].state < earliest)
            earliest = m->at - m->strings[k].state;
    return earliest;
}

static void release(struct stop_matcher *m, size_t upto, struct text *out) {
    size_t n = upto - m->held_at;
    if (n == 0)
        return;
    text_append(out, m->held.data, n);
    memmove(m->held.data, m->held.data + n, m->held.n - n + 1);
    m->held.n -= n;
    m->held_at = upto;
}

static int settle(struct stop_matcher *m, struct text *out) {
    release(m, m->best_start + (m->include ? m->best_length : 0), out);
    text_clear(&m->held);
    m->done = true;
    return m->best;
}

int stop_push(struct stop_matcher *m, const char *text, size_t n, struct text *out) {
    if (m->done)
        return -1;
    if (m->n == 0) {
        if (n)
            text_append(out, text, n);
        return -1;
    }
    if (n)
        text_append(&m->held, text, n);
    for (size_t i = 0; i < n; i++) {
        m->at++;
        for (size_t k = 0; k < m->n; k++) {
            struct automaton *a = &m->strings[k];
            if (!advance(a, (unsigned char)text[i]))
                continue;
            size_t start = m->at - a->n;
            if (m->best < 0 || start < m->best_start ||
                (start == m->best_start && a->n > m->best_length)) {
                m->best = (int)k;
                m->best_start = start;
                m->best_length = a->n;
            }
        }
        if (m->best >= 0 && earliest_open(m) > m->best_start)
            return settle(m, out);
    }
    size_t open = earliest_open(m);
    release(m, m->best >= 0 && m->best_start < open ? m->best_start : open, out);
    return -1;
}

int stop_finish(struct stop_matcher *m, struct text *out) {
    if (m->done)
        return -1;
    if (m->best >= 0)
        return settle(m, out);
    release(m, m->at, out);
    m->done = true;
    return -1;
}

size_t stop_held(const struct stop_matcher *m) {
    return m->held.n;
}
