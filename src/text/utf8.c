/* utf8.c: UTF-8 that arrives in pieces. Called by the tokenizer (input that is not valid), the
 * output parsers and serve. Invariant that bites: what is replaced must not depend on how the bytes
 * were cut, so one function alone decides about a sequence and the stream only feeds it. */
#include "text/utf8.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD";

/* Looks at the sequence that starts at p (n >= 1 bytes). Its length when it is a character; 0 when
 * all n bytes are the beginning of one; minus the length of the maximal invalid sequence otherwise.
 * The ranges of the second byte shut out overlong forms, surrogates and values above U+10FFFF. */
static int look(const unsigned char *p, size_t n) {
    unsigned char lead = p[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return -1;
    int need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    unsigned lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < need; i++) {
        if ((size_t)i == n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return need;
}

/* Bytes at the front of p that are whole characters. */
static size_t valid_prefix(const unsigned char *p, size_t n) {
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, p + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        int length = look(p + at, n - at);
        if (length <= 0)
            break;
        at += (size_t)length;
    }
    return at;
}

bool utf8_valid(const char *s, size_t n) {
    return valid_prefix((const unsigned char *)s, n) == n;
}

/* Decides about the held bytes as far as they allow. */
static void settle(struct utf8_stream *s, struct text *out) {
    while (s->n > 0) {
        int length = look(s->held, s->n);
        if (length == 0)
            return;
        uint32_t used = (uint32_t)(length > 0 ? length : -length);
        if (length > 0)
            text_append(out, (const char *)s->held, used);
        else
            text_append(out, replacement, 3);
        memmove(s->held, s->held + used, s->n - used);
        s->n -= used;
    }
}

void utf8_push(struct utf8_stream *s, const char *bytes, size_t n, struct text *out) {
    const unsigned char *p = (const unsigned char *)bytes;
    size_t at = 0;
    while (at < n) {
        if (s->n == 0) {
            size_t whole = valid_prefix(p + at, n - at);
            if (whole)
                text_append(out, bytes + at, whole);
            at += whole;
            if (at == n)
                return;
        }
        s->held[s->n++] = p[at++];
        settle(s, out);
    }
}

void utf8_finish(struct utf8_stream *s, struct text *out) {
    if (s->n > 0)
        text_append(out, replacement, 3);
    s->n = 0;
}
