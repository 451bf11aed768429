/* jsontext.h: JSON in and out without losing how it was written. jansson's tree keeps a number's
 * value but not its spelling (1e2 comes back as 100.0, 1.0 and 12345678901234567890 change or are
 * refused), so the reader here notes the spellings beside the tree. Called by the server and the
 * commands for request bodies, by the chat renderers and the output parsers. */
#ifndef WEIR_TEXT_JSONTEXT_H
#define WEIR_TEXT_JSONTEXT_H

#include "text/tokenizer.h"

#include <jansson.h>

/* Spellings of the numbers of one or more trees, found by the address of their node: free the table
 * before or after the trees, but do not write trees with it after removing numbers from them. */
struct jsontext_numbers;
struct jsontext_numbers *jsontext_numbers_new(void);
void jsontext_numbers_free(struct jsontext_numbers *n);

/* Reads one strict JSON text (RFC 8259, UTF-8, no lone surrogates, no bytes behind it but white
 * space) nested at most max_depth deep. The last of several equal keys wins, at the place of the
 * first. Integers beyond 64 bits become reals; a number beyond the range of a double becomes
 * +-DBL_MAX, so that the caller can refuse it where it stands. `numbers` may be NULL. On success
 * *out is a new reference; else WEIR_BAD_VALUE with `where` as given and line and column in the
 * message. */
weir_status jsontext_read(const char *s, size_t n, unsigned max_depth, const char *where,
                          struct jsontext_numbers *numbers, json_t **out, weir_error *err);

/* Appends compact JSON: separators ',' and ':', non-ASCII as it is, numbers as they were spelled
 * (without a table: shortest text that reads back equal). `sorted`: keys of every object by code
 * point. */
void jsontext_write(struct text *out, const json_t *value, const struct jsontext_numbers *numbers,
                    bool sorted);

/* Appends s as the inside of a JSON string (no quotes). s is valid UTF-8. */
void jsontext_escape(struct text *out, const char *s, size_t n);

/* The end of the one JSON value that starts at s[at] (no white space before it), or 0 when there is
 * no valid value. Iterative; values nested more than 512 deep count as invalid. */
size_t jsontext_value_end(const char *s, size_t n, size_t at);
size_t jsontext_skip_space(const char *s, size_t n, size_t at);

/* Appends the value of the JSON string that starts at s[at] == '"'; returns the index behind the
 * closing quote, or 0 when it is not valid. */
size_t jsontext_string(const char *s, size_t n, size_t at, struct text *out);

/* jansson's iterators and reference counts take trees that are not const even to read them. */
json_t *jsontext_loose(const json_t *value);

#endif
