/* parse_parts.h: the frame that the two output parsers share: bytes of ids to valid text, events,
 * and the bookkeeping of calls. Nobody else includes it. */
#ifndef WEIR_TEXT_PARSE_PARTS_H
#define WEIR_TEXT_PARSE_PARTS_H

#include "text/chat_parts.h"
#include "text/utf8.h"

/* Where text goes now. */
enum target { TARGET_NOWHERE, TARGET_REASONING, TARGET_CONTENT, TARGET_ARGS, TARGET_ARGS_STRING };

enum k3_tag { TAG_NONE, TAG_OPEN, TAG_CLOSE };
enum k3_place { K3_BETWEEN, K3_THINK, K3_RESPONSE, K3_TOOLS, K3_CALL, K3_ARGUMENT, K3_JSON };
enum kimi_place { KIMI_CONTENT, KIMI_SECTION, KIMI_CALL_ID, KIMI_CALL_ARGS, KIMI_AFTER };

struct chat_parser {
    const struct chat *chat;
    struct chat_parser_options options;
    chat_sink *sink;
    void *arg;

    size_t fed;           /* ids read so far, the present one included */
    size_t reasoning_ids; /* of them text of the think channel */
    bool ended;           /* the turn is over: what follows is not read */

    enum target target;
    struct utf8_stream utf8;
    size_t held_from;    /* number of the id that the bytes held in utf8 begin in */
    size_t text_to;      /* one behind the last id that gave text */
    struct text visible; /* scratch: valid text of one push */
    struct text escaped; /* scratch */

    bool call_open;     /* between the head of a call and its end, reported or not */
    bool call_reported; /* its events reach the sink */
    bool call_broken;   /* something in it could not be used */
    size_t args_bytes;  /* of its arguments, reported so far */
    uint32_t begun, complete, failures;
    char call_id[40];

    union {
        struct {
            enum k3_tag tag;
            enum k3_place place;
            struct text tag_text; /* bytes since <|open|> or <|close|> */
            struct text value;    /* an argument that is not a string, held until its end */
            bool holds_value;
            bool has_member; /* the arguments' object has been opened */
            bool raw_json;   /* a json tag has given the arguments */
            char type[12];
        } k3;
        struct {
            enum kimi_place place;
            struct text id;    /* the string before the arguments */
            struct text space; /* white space that ends the arguments unless more follows */
        } kimi;
    };
};

/* Bytes of one text id to the present target. */
void parser_bytes(struct chat_parser *p, const char *s, size_t n);
/* The channel changes: an unfinished character becomes U+FFFD (`drop`: is forgotten). */
void parser_break(struct chat_parser *p, bool drop);

/* A call's head is complete. `id` NULL: one is made. `index` 0: by order of appearance. An empty
 * name drops the call. */
void parser_call_begin(struct chat_parser *p, const char *id, const char *name, uint64_t index);
void parser_call_args(struct chat_parser *p, const char *s, size_t n);
void parser_call_end(struct chat_parser *p);
/* The open call, if any, will not be completed: the model went on without closing it. */
void parser_call_abandon(struct chat_parser *p);

void parse_k3_start(struct chat_parser *p);
void parse_k3_id(struct chat_parser *p, int32_t id);
void parse_k3_end(struct chat_parser *p); /* the turn has ended by itself */
void parse_k3_free(struct chat_parser *p);
void parse_kimi_start(struct chat_parser *p);
void parse_kimi_id(struct chat_parser *p, int32_t id);
void parse_kimi_args(struct chat_parser *p, const char *s, size_t n);
void parse_kimi_free(struct chat_parser *p);

#endif
