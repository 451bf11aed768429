/* parse_kimi.c: reads the older markup of K2 and Kimi-Linear: content, then a section of calls,
 * each an id, a marker and the arguments' text. Called by parse.c, one id at a time. Invariants
 * that bite: arguments are passed on as they are, but for the white space around them; text after
 * the section is dropped and never read as a call. */
#include "text/parse_parts.h"

#include <string.h>

static void go(struct chat_parser *p, enum kimi_place place) {
    p->kimi.place = place;
    p->target = place == KIMI_CONTENT     ? TARGET_CONTENT
                : place == KIMI_CALL_ARGS ? TARGET_ARGS
                                          : TARGET_NOWHERE;
}

void parse_kimi_start(struct chat_parser *p) {
    go(p, KIMI_CONTENT);
}

void parse_kimi_free(struct chat_parser *p) {
    text_free(&p->kimi.id);
    text_free(&p->kimi.space);
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* White space is sent only once something follows it. */
void parse_kimi_args(struct chat_parser *p, const char *s, size_t n) {
    size_t end = n;
    while (end > 0 && is_space(s[end - 1]))
        end--;
    if (end != 0) {
        size_t from = 0;
        if (p->args_bytes == 0)
            while (is_space(s[from]))
                from++;
        else
            parser_call_args(p, p->kimi.space.data, p->kimi.space.n);
        text_clear(&p->kimi.space);
        parser_call_args(p, s + from, end - from);
    }
    text_append(&p->kimi.space, s + end, n - end);
}

/* functions.NAME:IDX: only the literal prefix and a numeric suffix are not part of the name, which
 * may have dots and colons of its own. */
static void head_ends(struct chat_parser *p) {
    static const char prefix[] = "functions.";
    struct text id = {0}, name = {0};
    struct utf8_stream u = {0};
    size_t from = 0, to = p->kimi.id.n;
    while (from < to && is_space(p->kimi.id.data[from]))
        from++;
    while (to > from && is_space(p->kimi.id.data[to - 1]))
        to--;
    utf8_push(&u, p->kimi.id.data + from, to - from, &id);
    utf8_finish(&u, &id);
    from =
        id.n >= strlen(prefix) && memcmp(id.data, prefix, strlen(prefix)) == 0 ? strlen(prefix) : 0;
    to = id.n;
    while (to > from && id.data[to - 1] >= '0' && id.data[to - 1] <= '9')
        to--;
    to = to < id.n && to > from && id.data[to - 1] == ':' ? to - 1 : id.n;
    text_append(&name, id.data + from, to - from);
    parser_call_begin(p, id.n ? id.data : "", name.n ? name.data : "", 0);
    text_clear(&p->kimi.space);
    text_free(&id);
    text_free(&name);
}

static void call_starts(struct chat_parser *p) {
    parser_call_abandon(p);
    text_clear(&p->kimi.id);
    go(p, KIMI_CALL_ID);
}

static void marker(struct chat_parser *p, int32_t id) {
    const struct chat *c = p->chat;
    enum kimi_place at = p->kimi.place;
    if (id == c->section_begin) {
        parser_call_abandon(p);
        go(p, KIMI_SECTION);
    } else if (id == c->section_end) {
        parser_call_abandon(p);
        go(p, KIMI_AFTER);
    } else if (id == c->call_begin) {
        if (at != KIMI_AFTER)
            call_starts(p);
    } else if (id == c->call_argument) {
        if (at == KIMI_CALL_ID) {
            head_ends(p);
            go(p, KIMI_CALL_ARGS);
        }
    } else if (id == c->call_end) {
        if (at == KIMI_CALL_ID)
            head_ends(p);
        if (at == KIMI_CALL_ID || at == KIMI_CALL_ARGS) {
            parser_call_end(p);
            go(p, KIMI_SECTION);
        }
    } else if (id == c->user || id == c->assistant || id == c->system) {
        /* The model has begun to write a turn of somebody else: this one is over. */
        parser_call_abandon(p);
        p->ended = true;
    }
}

void parse_kimi_id(struct chat_parser *p, int32_t id) {
    if (tokenizer_kind(p->chat->tokenizer, id) != TOKEN_TEXT) {
        parser_break(p, false);
        marker(p, id);
        return;
    }
    size_t n;
    const char *s = tokenizer_piece(p->chat->tokenizer, id, &n);
    if (p->kimi.place == KIMI_CALL_ID)
        text_append(&p->kimi.id, s, n);
    else
        parser_bytes(p, s, n);
}
