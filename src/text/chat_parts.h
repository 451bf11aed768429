/* chat_parts.h: what the renderers and parsers of both markups share; nobody else includes it. */
#ifndef WEIR_TEXT_CHAT_PARTS_H
#define WEIR_TEXT_CHAT_PARTS_H

#include "text/chat.h"

struct chat {
    enum chat_markup markup;
    const struct tokenizer *tokenizer;
    int32_t eos; /* safety stop, -1 when the tokenizer has none */
    int32_t end; /* end of turn */
    /* K3 */
    int32_t open, close, sep;
    /* Kimi-Linear */
    int32_t user, assistant, system, middle;
    int32_t section_begin, section_end, call_begin, call_argument, call_end;
};

/* A prompt being written. Text between two markers is gathered and encoded as one piece, because
 * the ids of a piece depend on where it is cut. */
struct prompt {
    const struct chat *chat;
    struct ids *ids;     /* NULL: nothing is encoded, and `text` gets markers as turn_marker does */
    struct text *text;   /* or NULL */
    struct text pending; /* plain text since the last marker */
};
void prompt_marker(struct prompt *p, int32_t id);
void prompt_text(struct prompt *p, const char *s, size_t n);
void prompt_puts(struct prompt *p, const char *s);

/* An assistant message. Text may hold NUL bytes. */
struct chat_turn {
    const char *reasoning; /* what the think channel gets: none where it is blank or thinking off */
    size_t reasoning_bytes;
    const char *content;
    size_t content_bytes;
    const json_t *calls; /* a checked, non-empty array, or NULL */
};
/* Lets o->replay write the body of an assistant message; false: the renderer has to. */
bool prompt_replay(struct prompt *p, const struct chat_turn *turn, const struct chat_options *o);
/* The last text. */
void prompt_flush(struct prompt *p);

/* Appends a marker in a form that no valid text and no white space can contain. */
void turn_marker(struct text *t, int32_t id);
/* Appends the body of a turn as the renderer would write it, markers in that form. False when it
 * cannot be rendered. */
bool turn_body(const struct chat *c, const struct chat_turn *turn, const struct chat_options *o,
               struct text *out);

/* Fields of a request. `at` is the dotted path of the object ("messages.2"). A string of JSON may
 * hold NUL bytes, hence the lengths. */
struct field {
    const char *s; /* NULL: absent or null */
    size_t n;
};
/* The path of a field below `at`, in a buffer that lives as long as `buffer`. */
struct path {
    char text[200];
};
const char *path_key(struct path *p, const char *at, const char *key);
const char *path_index(struct path *p, const char *at, size_t index);

weir_status field_string(const json_t *object, const char *at, const char *key, struct field *out,
                         weir_error *err);
/* `content`: a string, or a non-empty array of text parts, which are joined. Appends it; `present`
 * says whether it was there (not null). */
weir_status field_content(const json_t *message, const char *at, struct text *out, bool *present,
                          weir_error *err);
/* `tool_calls` of a message: *out is NULL when absent, null or empty. Every call is checked. */
weir_status field_calls(const json_t *message, const char *at, const json_t **out, weir_error *err);
/* An array of objects, or NULL when absent, null or empty. */
weir_status field_tools(const json_t *tools, const char *at, const json_t **out, weir_error *err);
const json_t *call_function(const json_t *call);

/* Roles, with developer taken as system. */
enum chat_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };
weir_status field_role(const json_t *message, const char *at, enum chat_role *out, weir_error *err);

/* Only white space, by Unicode. */
bool text_is_blank(const char *s, size_t n);

/* The body of an assistant message: all behind the place where its generation begins. `at` names
 * the message in a refusal. */
void render_k3_turn(struct prompt *p, const struct chat_turn *turn, const struct chat_options *o);
weir_status render_kimi_turn(struct prompt *p, const struct chat_turn *turn, const char *at,
                             const struct chat_options *o, weir_error *err);

weir_status render_k3(struct prompt *p, const json_t *messages, const struct chat_options *o,
                      weir_error *err);
weir_status render_kimi(struct prompt *p, const json_t *messages, const struct chat_options *o,
                        weir_error *err);

#endif
