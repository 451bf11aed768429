/* parse_k3.c: reads K3's XTML. A tag is what stands between <|open|> or <|close|> and <|sep|>; its
 * name and attributes are ordinary tokens. Called by parse.c, one id at a time. Invariants that
 * bite: text of a tag is never shown, whatever becomes of the tag; string arguments stream, any
 * other value is held until its end, because only then it is known to be JSON of its type. */
#include "text/parse_parts.h"

#include <string.h>

static void go(struct chat_parser *p, enum k3_place place) {
    p->k3.place = place;
    switch (place) {
    case K3_BETWEEN:
    case K3_TOOLS:
    case K3_CALL: p->target = TARGET_NOWHERE; break;
    /* With thinking off everything the model says is the answer. */
    case K3_THINK: p->target = p->options.thinking ? TARGET_REASONING : TARGET_CONTENT; break;
    case K3_RESPONSE: p->target = TARGET_CONTENT; break;
    case K3_JSON: p->target = TARGET_ARGS; break;
    case K3_ARGUMENT: break; /* set by argument_begin */
    }
}

void parse_k3_start(struct chat_parser *p) {
    go(p, p->options.thinking ? K3_THINK : K3_RESPONSE);
}

void parse_k3_free(struct chat_parser *p) {
    text_free(&p->k3.tag_text);
    text_free(&p->k3.value);
}

/* -------------------------------------------------------------------------------------------------
 * attributes */

/* Appends the value of attribute `name` of a tag's text; false when the tag has none. &quot; is
 * undone before &amp;, the reverse of the escaping. */
static bool attribute(const struct text *tag, const char *name, struct text *out) {
    const char *s = tag->data, *end = s + tag->n;
    size_t length = strlen(name);
    const char *equals, *quote;
    for (; (equals = memchr(s, '=', (size_t)(end - s))) != NULL; s = quote + 1) {
        const char *space = memrchr(s, ' ', (size_t)(equals - s));
        const char *from = space ? space + 1 : s;
        const char *value = equals + 2;
        quote = equals;
        if (value > end || equals[1] != '"')
            continue;
        quote = memchr(value, '"', (size_t)(end - value));
        if (quote == NULL)
            return false;
        if ((size_t)(equals - from) != length || memcmp(from, name, length) != 0)
            continue;
        while (value < quote) {
            size_t left = (size_t)(quote - value);
            bool quot = left >= 6 && memcmp(value, "&quot;", 6) == 0;
            bool amp = left >= 5 && memcmp(value, "&amp;", 5) == 0;
            text_append(out, quot ? "\"" : amp ? "&" : value, 1);
            value += quot ? 6 : amp ? 5 : 1;
        }
        return true;
    }
    return false;
}

static bool tag_is(const struct text *tag, const char *name) {
    size_t n = strlen(name);
    return tag->n >= n && memcmp(tag->data, name, n) == 0 && (tag->n == n || tag->data[n] == ' ');
}

/* -------------------------------------------------------------------------------------------------
 * arguments */

static void args_puts(struct chat_parser *p, const char *s) {
    parser_call_args(p, s, strlen(s));
}

/* The type of JSON value that the type attribute asks for; "" for one that the format does not
 * know: any JSON value will do. */
static bool value_has_type(const char *type, const char *value) {
    switch (*value) {
    case '{': return *type == '\0' || strcmp(type, "object") == 0;
    case '[': return *type == '\0' || strcmp(type, "array") == 0;
    case '"': return *type == '\0';
    case 't':
    case 'f': return *type == '\0' || strcmp(type, "boolean") == 0;
    case 'n': return *type == '\0' || strcmp(type, "null") == 0;
    default: return *type == '\0' || strcmp(type, "number") == 0;
    }
}

/* An argument without a key is dropped, and so is everything behind a json tag, which has given the
 * arguments whole. Without a type an argument is a string. */
static void argument_begin(struct chat_parser *p, const struct text *tag) {
    static const char *const known[] = {"object", "array", "boolean", "null", "number"};
    struct text key = {0}, type = {0};
    go(p, K3_ARGUMENT);
    p->target = TARGET_NOWHERE;
    p->k3.holds_value = false;
    bool typed = attribute(tag, "type", &type);
    if (!attribute(tag, "key", &key) || p->k3.raw_json) {
        p->call_broken = true;
    } else {
        text_clear(&p->escaped);
        text_puts(&p->escaped, p->k3.has_member ? ",\"" : "{\"");
        jsontext_escape(&p->escaped, key.n ? key.data : "", key.n);
        p->k3.has_member = true;
        bool string = !typed || (type.n == 6 && memcmp(type.data, "string", 6) == 0);
        text_puts(&p->escaped, string ? "\":\"" : "\":");
        parser_call_args(p, p->escaped.data, p->escaped.n);
        p->target = string ? TARGET_ARGS_STRING : TARGET_NOWHERE;
        p->k3.holds_value = !string;
        p->k3.type[0] = '\0';
        for (size_t i = 0; typed && i < sizeof known / sizeof *known; i++)
            if (type.n == strlen(known[i]) && memcmp(type.data, known[i], type.n) == 0)
                snprintf(p->k3.type, sizeof p->k3.type, "%s", known[i]);
        text_clear(&p->k3.value);
    }
    text_free(&key);
    text_free(&type);
}

/* JSON of the right type goes out as it was written, anything else as a JSON string of the raw
 * text. */
static void put_held_value(struct chat_parser *p) {
    struct utf8_stream u = {0};
    text_clear(&p->visible);
    utf8_push(&u, p->k3.value.data, p->k3.value.n, &p->visible);
    utf8_finish(&u, &p->visible);
    const char *s = p->visible.n ? p->visible.data : "";
    size_t n = p->visible.n;
    size_t at = jsontext_skip_space(s, n, 0);
    size_t end = jsontext_value_end(s, n, at);
    if (end != 0 && jsontext_skip_space(s, n, end) == n && value_has_type(p->k3.type, s + at)) {
        parser_call_args(p, s + at, end - at);
        return;
    }
    text_clear(&p->escaped);
    text_puts(&p->escaped, "\"");
    jsontext_escape(&p->escaped, s, n);
    text_puts(&p->escaped, "\"");
    parser_call_args(p, p->escaped.data, p->escaped.n);
}

static void argument_end(struct chat_parser *p) {
    if (p->k3.holds_value)
        put_held_value(p);
    else if (p->target == TARGET_ARGS_STRING)
        args_puts(p, "\"");
    p->k3.holds_value = false;
    go(p, K3_CALL);
}

static void json_begin(struct chat_parser *p) {
    if (p->k3.has_member || p->k3.raw_json) {
        p->call_broken = true;
        go(p, K3_JSON);
        p->target = TARGET_NOWHERE;
        return;
    }
    p->k3.raw_json = true;
    go(p, K3_JSON);
}

/* -------------------------------------------------------------------------------------------------
 * tags */

static bool in_call(const struct chat_parser *p) {
    return p->k3.place == K3_CALL || p->k3.place == K3_ARGUMENT || p->k3.place == K3_JSON;
}

/* A value that the model left open ends where the next part of the same call begins. */
static void end_value(struct chat_parser *p) {
    if (p->k3.place == K3_ARGUMENT) {
        p->call_broken = true;
        argument_end(p);
    } else if (p->k3.place == K3_JSON) {
        p->call_broken = true;
        go(p, K3_CALL);
    }
}

static void close_call(struct chat_parser *p) {
    end_value(p);
    if (p->k3.has_member)
        args_puts(p, "}");
    parser_call_end(p);
}

/* A call that the model left open is closed for it: its head may have been streamed already, and
 * what a client gets must be whole JSON. */
static void leave_open_call(struct chat_parser *p) {
    if (!in_call(p))
        return;
    p->call_broken = true;
    close_call(p);
}

static void call_begin(struct chat_parser *p, const struct text *tag) {
    leave_open_call(p);
    struct text name = {0}, number = {0};
    uint64_t index = 0;
    attribute(tag, "tool", &name);
    if (attribute(tag, "index", &number) && number.n > 0 && number.n < 10 &&
        strspn(number.data, "0123456789") == number.n)
        index = strtoull(number.data, NULL, 10);
    parser_call_begin(p, NULL, name.n ? name.data : "", index);
    p->k3.has_member = p->k3.raw_json = false;
    go(p, K3_CALL);
    text_free(&name);
    text_free(&number);
}

static void leave_call(struct chat_parser *p, enum k3_place place) {
    leave_open_call(p);
    go(p, place);
}

static void opened(struct chat_parser *p, const struct text *tag) {
    if (tag_is(tag, "think")) {
        leave_call(p, K3_THINK);
    } else if (tag_is(tag, "response")) {
        leave_call(p, K3_RESPONSE);
    } else if (tag_is(tag, "tools")) {
        leave_call(p, K3_TOOLS);
    } else if (tag_is(tag, "call")) {
        call_begin(p, tag);
    } else if (in_call(p) && tag_is(tag, "argument")) {
        end_value(p);
        argument_begin(p, tag);
    } else if (in_call(p) && tag_is(tag, "json")) {
        end_value(p);
        json_begin(p);
    }
}

static void closed(struct chat_parser *p, const struct text *tag) {
    enum k3_place at = p->k3.place;
    if (tag_is(tag, "message")) {
        leave_call(p, K3_BETWEEN);
        p->ended = true;
    } else if (tag_is(tag, "tools")) {
        if (in_call(p) || at == K3_TOOLS)
            leave_call(p, K3_BETWEEN);
    } else if (tag_is(tag, "call")) {
        if (!in_call(p))
            return;
        close_call(p);
        go(p, K3_TOOLS);
    } else if ((tag_is(tag, "think") && at == K3_THINK && p->options.thinking) ||
               (tag_is(tag, "response") && at == K3_RESPONSE)) {
        go(p, K3_BETWEEN);
    } else if (tag_is(tag, "argument") && at == K3_ARGUMENT) {
        argument_end(p);
    } else if (tag_is(tag, "json") && at == K3_JSON) {
        go(p, K3_CALL);
    }
}

static void tag_ends(struct chat_parser *p) {
    struct text tag = {0};
    struct utf8_stream u = {0};
    utf8_push(&u, p->k3.tag_text.data, p->k3.tag_text.n, &tag);
    utf8_finish(&u, &tag);
    enum k3_tag kind = p->k3.tag;
    p->k3.tag = TAG_NONE;
    if (tag.n != 0 && kind == TAG_OPEN)
        opened(p, &tag);
    else if (tag.n != 0)
        closed(p, &tag);
    text_free(&tag);
}

void parse_k3_end(struct chat_parser *p) {
    leave_call(p, K3_BETWEEN);
}

void parse_k3_id(struct chat_parser *p, int32_t id) {
    const struct chat *c = p->chat;
    if (id == c->open || id == c->close) {
        parser_break(p, false);
        p->k3.tag = id == c->open ? TAG_OPEN : TAG_CLOSE;
        text_clear(&p->k3.tag_text);
        return;
    }
    if (id == c->sep) {
        parser_break(p, false);
        if (p->k3.tag != TAG_NONE)
            tag_ends(p);
        return;
    }
    if (tokenizer_kind(c->tokenizer, id) != TOKEN_TEXT)
        return;
    size_t n;
    const char *s = tokenizer_piece(c->tokenizer, id, &n);
    if (p->k3.tag != TAG_NONE) {
        text_append(&p->k3.tag_text, s, n);
        return;
    }
    p->reasoning_ids += p->target == TARGET_REASONING;
    if (p->k3.place == K3_ARGUMENT && p->k3.holds_value)
        text_append(&p->k3.value, s, n);
    else
        parser_bytes(p, s, n);
}
