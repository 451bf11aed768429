/* chat.h: chat requests to prompt ids, and generated ids to reasoning, content and tool calls, for
 * the markups of the family: K3's XTML (docs/text.md) and the older one of K2 and Kimi-Linear. User
 * text never makes a control token: markers are ids, text is encoded plainly, segment by segment.
 */
#ifndef WEIR_TEXT_CHAT_H
#define WEIR_TEXT_CHAT_H

#include "text/jsontext.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>

enum chat_markup { CHAT_K3, CHAT_KIMI_LINEAR };

struct chat;
/* Finds the control ids in the tokenizer, which must outlive the chat. WEIR_UNSUPPORTED when the
 * tokenizer lacks one (message names it). Read-only afterwards: any thread may render and parse. */
weir_status chat_open(enum chat_markup markup, const struct tokenizer *t, struct chat **out,
                      weir_error *err);
void chat_close(struct chat *c);
bool chat_can_think(const struct chat *c);
/* Ids that end a turn; returns how many there are (at most 2). */
size_t chat_stop_ids(const struct chat *c, int32_t *out, size_t cap);

enum chat_tool_choice {
    TOOL_CHOICE_AUTO,
    TOOL_CHOICE_NONE,
    TOOL_CHOICE_REQUIRED,
    TOOL_CHOICE_NAMED
};

/* Asked for each assistant message when the prompt stands where its generation would have begun:
 * `ids` is the list given to chat_render with everything before the message's body. `body` is what
 * would be written, its text with the markers in a form that no text contains: equal for two
 * messages exactly if they give the same prompt. Returns true when it appended the ids of the whole
 * body, end of turn included, in place of the renderer; false with `ids` untouched. What it appends
 * must say the same as `body`: see chat_turn.h. */
typedef bool chat_replay(void *arg, const struct text *body, struct ids *ids);

/* Start from chat_options_default(). */
struct chat_options {
    const json_t *tools; /* array or NULL */
    enum chat_tool_choice tool_choice;
    const char *tool_name;         /* TOOL_CHOICE_NAMED: one of tools */
    const json_t *response_format; /* object or NULL */
    bool thinking;                 /* ignored by a format that cannot think */
    const char *effort; /* low medium high max; NULL: max; "": no word about effort in the prompt */
    bool add_generation_prompt;  /* default true */
    bool continue_final_message; /* refused: neither format defines a prefilled answer */
    /* How numbers of messages, tools and response_format were spelled; NULL: by value. */
    const struct jsontext_numbers *numbers;
    /* Kimi-Linear: the system turn put first when the messages do not start with one; NULL: that of
     * the current releases; "": none. */
    const char *default_system;
    chat_replay *replay; /* NULL: every message is encoded anew */
    void *replay_arg;
};
struct chat_options chat_options_default(void);

/* Whether `tools` or a system message's own `tools` declare any: what the default of tool_choice
 * depends on (auto with tools, none without). */
bool chat_declares_tools(const json_t *messages, const json_t *tools);

/* Renders `messages` (as in the API) and appends ids and, where text is not NULL, the readable
 * prompt with the markers spelled out. Time is linear in the request. WEIR_BAD_VALUE: err->where is
 * the dotted field ("messages.2.role"), message the rule; WEIR_UNSUPPORTED: the format has no place
 * for what was asked. On failure nothing was appended. */
weir_status chat_render(const struct chat *c, const json_t *messages, const struct chat_options *o,
                        struct ids *ids, struct text *text, weir_error *err);

/* -------------------------------------------------------------------------------------------------
 * parsing */

enum chat_event_kind {
    CHAT_REASONING,  /* text */
    CHAT_CONTENT,    /* text */
    CHAT_CALL_BEGIN, /* call, id, name, index */
    CHAT_CALL_ARGS,  /* call, text: a piece of the arguments' JSON text */
    CHAT_CALL_END,   /* call: complete */
};

/* Text is valid UTF-8, never empty, never cuts a JSON escape, and lives until the callback returns,
 * as id and name do (they have a NUL behind them). */
struct chat_event {
    enum chat_event_kind kind;
    uint32_t call;  /* 0, 1, ... in order of appearance */
    uint64_t index; /* where the model wants the call among the others; counts from 1 */
    const char *id, *name;
    const char *text;
    size_t n;
    /* CHAT_REASONING, CHAT_CONTENT: the ids fed so far whose text is complete with this event are
     * ids_first .. ids_done - 1 (empty while a character is still unfinished): pairs logprobs with
     * text. Ranges of successive events do not overlap; ids between them are markers. For calls
     * ids_done counts the ids read so far. */
    size_t ids_first, ids_done;
};
typedef void chat_sink(void *arg, const struct chat_event *e);

struct chat_parser_options {
    bool thinking; /* as in the prompt: start inside the think channel */
    bool tools;    /* false: calls are not reported (their text is dropped) */
    bool one_call; /* parallel_tool_calls false: later calls are dropped */
    /* K3 writes no call ids: they are made from this and the call's number, so a random seed per
     * choice gives ids that are unique in a conversation, and the same seed the same ids. */
    uint64_t id_seed;
};

struct chat_parser;
struct chat_parser *chat_parser_new(const struct chat *c, struct chat_parser_options o,
                                    chat_sink *sink, void *arg);
/* Feeds generated ids in pieces of any size: the events do not depend on the cutting. The closing
 * stop id may be fed or not. Nothing is reported after the end of the turn. */
void chat_parser_feed(struct chat_parser *p, const int32_t *ids, size_t n);
/* No more ids. Releases held text. `cut`: the generation ended early (length, abort); open calls
 * stay incomplete. */
void chat_parser_finish(struct chat_parser *p, bool cut);
void chat_parser_free(struct chat_parser *p);
/* Whether the turn is over: the message was closed, an end id came, or the model went on with a
 * turn of somebody else. Ids fed from now on are not read. */
bool chat_parser_ended(const struct chat_parser *p);
/* Complete calls so far; ids spent on reasoning (markers not counted); calls that could not be
 * parsed. */
uint32_t chat_parser_calls(const struct chat_parser *p);
size_t chat_parser_reasoning_ids(const struct chat_parser *p);
uint32_t chat_parser_failures(const struct chat_parser *p);

#endif
