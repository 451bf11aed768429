/* prometheus.c: the text format, a line at a time. Called by adapter.c and its fuzz target. */
#include "bench/prometheus.h"

#include <stdlib.h>
#include <string.h>

static bool has_prefix(const char *at, size_t n, const char *const *prefixes) {
    if (!prefixes)
        return true;
    for (; *prefixes; prefixes++) {
        size_t k = strlen(*prefixes);
        if (k <= n && !memcmp(at, *prefixes, k))
            return true;
    }
    return false;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':';
}

/* The closing brace of labels that begin at `at`; NULL: none in the line. Braces and commas in
 * quoted values are text. */
static const char *end_of_labels(const char *at, const char *end) {
    bool quoted = false;
    for (; at < end; at++) {
        if (quoted && *at == '\\')
            at++;
        else if (*at == '"')
            quoted = !quoted;
        else if (!quoted && *at == '}')
            return at;
    }
    return NULL;
}

/* A number without asking the locale. */
static bool number(const char *at, const char *end, double *out) {
    char text[64], *rest;
    size_t n = 0;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (at < end && n < sizeof text - 1 && *at != ' ' && *at != '\t' && *at != '\r')
        text[n++] = *at++;
    text[n] = 0;
    if (n == 0)
        return false;
    /* weir never leaves the C locale, whose point is the one written here. */
    *out = strtod(text, &rest);
    return *rest == 0;
}

static bool take_line(const char *at, const char *end, struct prometheus_sample *out) {
    const char *name = at;
    while (at < end && is_name(*at))
        at++;
    out->name = (struct span_text){name, (size_t)(at - name)};
    out->labels = (struct span_text){at, 0};
    if (out->name.n == 0)
        return false;
    while (at < end && *at == ' ')
        at++;
    if (at < end && *at == '{') {
        const char *close = end_of_labels(at + 1, end);
        if (!close)
            return false;
        out->labels = (struct span_text){at + 1, (size_t)(close - at - 1)};
        at = close + 1;
    }
    return number(at, end, &out->value);
}

bool prometheus_next(const char **at, const char *end, const char *const *prefixes,
                     struct prometheus_sample *out) {
    while (*at < end) {
        const char *line = *at, *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            stop = end;
        *at = stop < end ? stop + 1 : end;
        if (line < stop && *line != '#' && has_prefix(line, (size_t)(stop - line), prefixes) &&
            take_line(line, stop, out))
            return true;
    }
    return false;
}

bool prometheus_label(const struct prometheus_sample *s, const char *name, struct span_text *out) {
    const char *at = s->labels.at, *end = at + s->labels.n;
    while (at < end) {
        while (at < end && (*at == ',' || *at == ' '))
            at++;
        const char *key = at;
        while (at < end && is_name(*at))
            at++;
        struct span_text k = {key, (size_t)(at - key)};
        while (at < end && (*at == ' ' || *at == '='))
            at++;
        if (at >= end || *at != '"')
            return false;
        const char *value = ++at;
        while (at < end && *at != '"')
            at += *at == '\\' && at + 1 < end ? 2 : 1;
        if (at > end)
            at = end;
        if (span_is(k, name)) {
            *out = (struct span_text){value, (size_t)(at - value)};
            return true;
        }
        at += at < end;
    }
    return false;
}
