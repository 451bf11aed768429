/* stop.h: stop strings over text that arrives in pieces: earliest match start wins, then the
 * longest; text is held back only while it may still become a match. */
#ifndef WEIR_TEXT_STOP_H
#define WEIR_TEXT_STOP_H

#include "text/tokenizer.h"

struct stop_matcher;
/* Strings are copied. n may be 0; a string of length 0 never matches. */
struct stop_matcher *stop_new(const char *const *strings, const size_t *lengths, size_t n,
                              bool include_in_output);
void stop_free(struct stop_matcher *m);
/* Appends to `out` what may be shown. Returns the index of the string that matched, or -1; after a
 * match nothing more is taken. */
int stop_push(struct stop_matcher *m, const char *text, size_t n, struct text *out);
/* The end: releases what was held back. Returns the index of a match that was only waiting for a
 * longer one, or -1. */
int stop_finish(struct stop_matcher *m, struct text *out);
/* Bytes held back now. */
size_t stop_held(const struct stop_matcher *m);

#endif
