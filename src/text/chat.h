/* chat.h: chat requests to prompt ids, and generated ids to reasoning, content and tool calls, for
 * the markups of the family: K3's XTML (docs/text.md) and the older one of K2 and Kimi-Linear. User
 * text never makes a control token: markers are ids, text is encoded plainly, segment by segment.
 */
#ifndef WEIR_TEXT_CHAT_H
#define WEIR_TEXT_CHAT_H

#include "text/tokenizer.h"

#include <jansson.h>

enum chat_markup { CHAT_K3, CHAT_KIMI_LINEAR };

struct chat;
/* Finds the control ids in the tokenizer. WEIR_UNSUPPORTED when the tokenizer lacks one (message
 * names it). */
weir_status chat_open(enum chat_markup markup, const struct tokenizer *t, struct chat **out,
                      weir_error *err);
void chat_close(struct chat *c);
bool chat_can_think(const struct chat *c);
/* Ids that end a turn. */
size_t chat_stop_ids(const struct chat *c, int32_t *out, size_t cap);

enum chat_tool_choice {
    TOOL_CHOICE_AUTO,
    TOOL_CHOICE_NONE,
    TOOL_CHOICE_REQUIRED,
    TOOL_CHOICE_NAMED
};

struct chat_options {
    const json_t *tools; /* array or NULL */
    enum chat_tool_choice tool_choice;
    const char *tool_name;         /* TOOL_CHOICE_NAMED */
    const json_t *response_format; /* object or NULL */
    bool thinking;
    const char *effort;         /* low medium high max; NULL: the model's default */
    bool add_generation_prompt; /* default true */
};

/* Renders `messages` (an array as in the API, roles already checked for type) and appends ids and,
 * where text is not NULL, the readable prompt. WEIR_BAD_VALUE: err->where is the dotted field
 * ("messages.2.role"), message the rule. */
weir_status chat_render(const struct chat *c, const json_t *messages, const struct chat_options *o,
                        struct ids *ids, struct text *text, weir_error *err);

/* -------------------------------------------------------------------------------------------------------------
 * parsing */

enum chat_event_kind {
    CHAT_REASONING,  /* text */
    CHAT_CONTENT,    /* text */
    CHAT_CALL_BEGIN, /* call, id, name */
    CHAT_CALL_ARGS,  /* call, text: a piece of the arguments' JSON text */
    CHAT_CALL_END,   /* call: complete */
};

/* Text is valid UTF-8, never empty, and lives until the callback returns. */
struct chat_event {
    enum chat_event_kind kind;
    uint32_t call; /* 0, 1, ... in order of appearance */
    const char *id, *name;
    const char *text;
    size_t n;
    /* How many of the ids fed so far are accounted for by this and earlier events: pairs logprobs
     * with text. */
    size_t ids_done;
};
typedef void chat_sink(void *arg, const struct chat_event *e);

struct chat_parser_options {
    bool thinking; /* as in the prompt: start inside the think channel */
    bool tools;    /* false: calls are not reported (their text is dropped) */
    bool one_call; /* parallel_tool_calls false: later calls are dropped */
};

struct chat_parser;
struct chat_parser *chat_parser_new(const struct chat *c, struct chat_parser_options o,
                                    chat_sink *sink, void *arg);
/* Feeds generated ids in pieces of any size: the events of a text are the same for every way of
 * cutting it, but for where text is split. The closing stop id may be fed or not. */
void chat_parser_feed(struct chat_parser *p, const int32_t *ids, size_t n);
/* No more ids. Releases held text. `cut`: the generation ended early (length, abort); open calls
 * stay incomplete. */
void chat_parser_finish(struct chat_parser *p, bool cut);
void chat_parser_free(struct chat_parser *p);
/* Complete calls so far; ids spent on reasoning (markers not counted); calls that could not be
 * parsed. */
uint32_t chat_parser_calls(const struct chat_parser *p);
size_t chat_parser_reasoning_ids(const struct chat_parser *p);
uint32_t chat_parser_failures(const struct chat_parser *p);

#endif
