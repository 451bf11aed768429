/* rank_file.h: the text of a tiktoken rank file, and the names of a tokenizer_config.json, as plain
 * tables. Used by tokenizer.c when a tokenizer is opened. */
#ifndef WEIR_TEXT_RANK_FILE_H
#define WEIR_TEXT_RANK_FILE_H

#include "text/tokenizer.h"

/* Token i is bytes[offset[i] .. offset[i + 1]). Both freed by rank_file_free. */
struct rank_file {
    char *bytes;
    uint32_t *offset; /* [ranks + 1] */
    uint32_t ranks;
};

/* Lines of `base64 SP rank`; ranks are 0 .. n-1 in any order, each once and below vocab. Duplicate
 * tokens are found by the caller, who builds the index. `path` stands in messages. */
weir_status rank_file_parse(const char *path, const char *text, size_t n, uint32_t vocab,
                            struct rank_file *out, weir_error *err);
void rank_file_free(struct rank_file *f);

enum { RANK_TOKEN_BYTES = 4096 }; /* longest token that a rank file may hold */

/* A token of added_tokens_decoder. */
struct added_token {
    char *spelling; /* NULL: not named */
    bool special;
};

/* Fills tokens[0 .. vocab - ranks) with the names of ids ranks .. vocab - 1; names of ids >= vocab
 * are dropped, as loaders that carry a stale list of names produce them. The caller frees the
 * spellings, also on failure. */
weir_status added_tokens_parse(const char *path, const char *text, size_t n, uint32_t ranks,
                               uint32_t vocab, struct added_token *tokens, weir_error *err);

#endif
