/* tokenizer.h: text to token ids and back, with the tiktoken rank file of the checkpoint and Kimi's
 * fixed pre-tokeniser. A tokenizer is read-only after opening and may be used from any thread. */
#ifndef WEIR_TEXT_TOKENIZER_H
#define WEIR_TEXT_TOKENIZER_H

#include "base/error.h"

struct tokenizer;

/* A growing list of ids, owned by the caller: zero-initialise, free with ids_free. */
struct ids {
    int32_t *data;
    size_t n, capacity;
};
void ids_push(struct ids *list, int32_t id); /* aborts without memory, as malloc failure is not
                                                input */
void ids_append(struct ids *list, const int32_t *data, size_t n);
void ids_free(struct ids *list);

/* A growing byte string with a NUL behind it, likewise. */
struct text {
    char *data;
    size_t n, capacity;
};
void text_append(struct text *t, const char *data, size_t n);
void text_puts(struct text *t, const char *s);
void text_clear(struct text *t);
void text_free(struct text *t);

/* Reads DIR/tiktoken.model and added_tokens_decoder of DIR/tokenizer_config.json. Special ids >=
 * vocab are dropped; ids without a rank or a name print as <|reserved_token_ID|>. WEIR_BAD_FILE
 * names file, line and rule. */
weir_status tokenizer_open(const char *dir, uint32_t vocab, struct tokenizer **out,
                           weir_error *err);
/* The same from memory: `ranks` is the text of a rank file, `config` of a tokenizer_config.json
 * (NULL: none). */
weir_status tokenizer_parse(const char *ranks, size_t n_ranks, const char *config, size_t n_config,
                            uint32_t vocab, struct tokenizer **out, weir_error *err);
void tokenizer_close(struct tokenizer *t);

/* Appends the ids of plain text: the spelling of a special token is ordinary bytes. Text must be
 * UTF-8; invalid bytes are replaced by U+FFFD as documented in docs/text.md. */
void tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, struct ids *out);
/* The same, but spellings of special tokens become their ids. For trusted text only, never for
 * users' messages. */
void tokenizer_encode_special(const struct tokenizer *t, const char *text, size_t bytes,
                              struct ids *out);

/* The id of a special token by its spelling, or -1. */
int32_t tokenizer_special(const struct tokenizer *t, const char *spelling);
/* The bytes of one id (0 <= id < vocab), the spelling for special ones. Never NULL. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *bytes);
enum token_kind {
    TOKEN_TEXT,
    TOKEN_MARKER /* special: false */,
    TOKEN_HIDDEN /* special: true */,
    TOKEN_RESERVED
};
enum token_kind tokenizer_kind(const struct tokenizer *t, int32_t id);
uint32_t tokenizer_vocab(const struct tokenizer *t);
uint32_t tokenizer_ranks(const struct tokenizer *t); /* ids below are text */

/* Appends the bytes of ids; hidden specials are left out when skip_hidden. Not necessarily valid
 * UTF-8: see utf8.h. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_hidden,
                      struct text *out);

#endif
