/* api_choice.h: one choice in the making: generated tokens in, pieces of the answer out.
 *
 * Streams and whole replies read the same pieces. A stream takes them after every step and clears
 * them, a whole reply lets them grow and takes them at the end; adjoining pieces of one kind are
 * one. So joined deltas equal the whole message for every way of cutting the output. */
#ifndef WEIR_SERVE_API_CHOICE_H
#define WEIR_SERVE_API_CHOICE_H

#include "serve/api_sampling.h"
#include "text/chat.h"

enum piece_kind { PIECE_REASONING, PIECE_CONTENT, PIECE_CALL_BEGIN, PIECE_CALL_ARGS };

struct choice_piece {
    enum piece_kind kind;
    uint32_t call;  /* 0, 1, ... as the client counts them */
    size_t at, n;   /* text: in api_choice.text; PIECE_CALL_BEGIN: the id */
    size_t name_at; /* PIECE_CALL_BEGIN: the name, NUL-terminated like the id */
};

/* A token with its logprobs that waits until its text is out. */
struct choice_logprob {
    weir_token token;
    size_t content_end; /* bytes of visible text up to its own end */
    size_t char_offset; /* characters of text before it */
};

/* How generated ids become an answer. `chat` NULL: text completion. */
struct choice_options {
    const struct tokenizer *tokenizer;
    const struct chat *chat;
    struct chat_parser_options parser;
    const struct api_sampling *sampling; /* stops, min_tokens, special tokens */
    bool logprobs, keep_ids;
    size_t first_char; /* text completion with echo: characters of the prompt */
};

struct api_choice;
struct api_choice *api_choice_new(const struct choice_options *o);
void api_choice_free(struct api_choice *c);

/* One generated token. `is_stop`: it is the stop id that ended the generation. Returns false when
 * the choice is over: the token counts, nothing behind it does. That is when a stop string is
 * complete, and in a chat when the model goes on behind the end of its turn, with a token that ends
 * nothing: an end id normally follows the turn's closing marker and is waited for, so that it is
 * counted; all else would be generated unseen up to max_tokens. ignore_eos and min_tokens ask for
 * just that and are obeyed. */
bool api_choice_feed(struct api_choice *c, const weir_token *t, bool is_stop);
/* The end. `stop_id`: for WEIR_FINISH_STOP, -1 for none. Held text comes out. */
void api_choice_end(struct api_choice *c, weir_finish finish, int32_t stop_id);

struct choice_pieces {
    const struct choice_piece *piece;
    size_t n;
    const char *text;
    const struct choice_logprob *logprobs; /* those whose text is out */
    size_t n_logprobs;
    const int32_t *ids; /* all so far that were not taken */
    size_t n_ids;
};
struct choice_pieces api_choice_pieces(const struct api_choice *c);
/* Forgets what api_choice_pieces gave: it was sent. `logprobs`: those as well. */
void api_choice_taken(struct api_choice *c, bool logprobs);

/* "stop", "length", "tool_calls", "abort" */
const char *api_choice_finish_reason(const struct api_choice *c);
/* The string that ended it, or NULL; else the id, or -1 for the model's own end. */
const char *api_choice_stop_string(const struct api_choice *c, size_t *bytes);
int32_t api_choice_stop_id(const struct api_choice *c);
uint32_t api_choice_tokens(const struct api_choice *c);
uint32_t api_choice_reasoning_tokens(const struct api_choice *c);
uint32_t api_choice_parse_failures(const struct api_choice *c);
/* Whether `content` is null when there was no text: calls, or thinking that was cut. */
bool api_choice_content_is_null(const struct api_choice *c);

#endif
