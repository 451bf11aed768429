/* pretokenizer.h: where Kimi's tokenizer cuts text before it merges bytes. Both functions need
 * valid UTF-8. */
#ifndef WEIR_TEXT_PRETOKENIZER_H
#define WEIR_TEXT_PRETOKENIZER_H

#include <stddef.h>

/* The end (> at) of the pre-token that begins at `at` < n. Text behind n is not looked at. */
size_t pretoken_end(const char *text, size_t n, size_t at);

/* The cuts that the reference makes beforehand, so that its regex engine survives giant inputs: a
 * window every 400,000 characters of the text, and in each window a slice wherever more than 25,000
 * characters in a row are white space, or are not. Both return the end (> at) of the window or
 * slice that begins at `at` < n. They matter for ids, because no pre-token crosses a cut. */
size_t pretoken_window_end(const char *text, size_t n, size_t at);
size_t pretoken_slice_end(const char *text, size_t n, size_t at);

#endif
