/* utf8.h: valid UTF-8 out of bytes that arrive in pieces. */
#ifndef WEIR_TEXT_UTF8_H
#define WEIR_TEXT_UTF8_H

#include "text/tokenizer.h"

#include <stdbool.h>

bool utf8_valid(const char *s, size_t n);

/* Holds back an unfinished character between calls. Zero-initialise. */
struct utf8_stream {
    unsigned char held[4];
    uint32_t n;
};
/* Appends to `out` what is complete; a byte that can never become part of a character turns into
 * U+FFFD (one per maximal invalid sequence, as the WHATWG decoder does). */
void utf8_push(struct utf8_stream *s, const char *bytes, size_t n, struct text *out);
/* The end of the text: what is held back becomes U+FFFD. */
void utf8_finish(struct utf8_stream *s, struct text *out);

#endif
