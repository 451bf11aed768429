/* io.h: what several commands do with standard input and output. */
#ifndef WEIR_CLI_IO_H
#define WEIR_CLI_IO_H

#include "text/tokenizer.h"

#include <jansson.h>

/* All of standard input, at most `limit` bytes; free with free(). */
weir_status io_read_input(size_t limit, char **out, size_t *bytes, weir_error *err);
/* Prints one JSON value and a line break. Takes over `value`; NULL prints nothing and is
 * WEIR_NO_MEMORY. */
weir_status io_print_json(json_t *value, weir_error *err);
/* A JSON string of bytes that may not be UTF-8: what is not becomes U+FFFD. */
json_t *io_json_text(const char *bytes, size_t n);
/* `[1,2,3]` without building a value for each. */
void io_print_ids(const int32_t *ids, size_t n);

/* "1,2,3" or "1 2 3" to ids below `vocab`. `where` names the source in errors. */
weir_status io_parse_ids(const char *text, size_t n, uint32_t vocab, const char *where,
                         struct ids *out, weir_error *err);

#endif
