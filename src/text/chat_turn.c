/* chat_turn.c: see chat_turn.h. Invariant that bites: the parser forgives (text between channels,
 * odd attributes and unknown markers are dropped), so a message says less than its ids may hold;
 * only ids that hold nothing else may stand for it. */
#include "text/chat_turn.h"

#include "text/chat_parts.h"
#include "text/message.h"
#include "text/utf8.h"

#include <string.h>

/* Bytes from 0xF8 upwards occur in no UTF-8 text. */
void turn_marker(struct text *t, int32_t id) {
    char b[6] = {(char)0xFF};
    for (int i = 0; i < 5; i++)
        b[i + 1] = (char)(0x80 | ((uint32_t)id >> (7 * i) & 0x7F));
    text_append(t, b, sizeof b);
}

static void flush_bytes(struct text *bytes, struct text *out) {
    struct utf8_stream u = {0};
    if (bytes->n != 0)
        utf8_push(&u, bytes->data, bytes->n, out);
    utf8_finish(&u, out);
    text_clear(bytes);
}

/* What the ids hold, markers as turn_marker writes them. */
static void spell(const struct chat *c, const struct ids *ids, struct text *out) {
    struct text bytes = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *piece = tokenizer_piece(c->tokenizer, ids->data[i], &n);
        if (tokenizer_kind(c->tokenizer, ids->data[i]) == TOKEN_TEXT) {
            text_append(&bytes, piece, n);
            continue;
        }
        flush_bytes(&bytes, out);
        turn_marker(out, ids->data[i]);
    }
    flush_bytes(&bytes, out);
    text_free(&bytes);
}

bool turn_body(const struct chat *c, const struct chat_turn *turn, const struct chat_options *o,
               struct text *out) {
    struct prompt p = {.chat = c, .text = out};
    weir_status s = WEIR_OK;
    switch (c->markup) {
    case CHAT_K3: render_k3_turn(&p, turn, o); break;
    case CHAT_KIMI_LINEAR: s = render_kimi_turn(&p, turn, "turn", o, NULL); break;
    }
    prompt_flush(&p);
    text_free(&p.pending);
    return s == WEIR_OK;
}

/* K3: a model may leave out a response channel with nothing in it, which the renderer writes. */
static void drop_empty_responses(const struct chat *c, struct text *t) {
    struct text pair = {0};
    if (c->markup != CHAT_K3)
        return;
    turn_marker(&pair, c->open);
    text_puts(&pair, "response");
    turn_marker(&pair, c->sep);
    turn_marker(&pair, c->close);
    text_puts(&pair, "response");
    turn_marker(&pair, c->sep);
    size_t kept = 0, from = 0;
    while (from < t->n) {
        const char *at = memmem(t->data + from, t->n - from, pair.data, pair.n);
        size_t n = at ? (size_t)(at - t->data) - from : t->n - from;
        memmove(t->data + kept, t->data + from, n);
        kept += n;
        from += n + (at ? pair.n : 0);
    }
    t->n = kept;
    text_free(&pair);
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool equal_but_for_space(const struct text *a, const struct text *b) {
    size_t i = 0, k = 0;
    for (;;) {
        while (i < a->n && is_space(a->data[i]))
            i++;
        while (k < b->n && is_space(b->data[k]))
            k++;
        if (i == a->n || k == b->n)
            return i == a->n && k == b->n;
        if (a->data[i++] != b->data[k++])
            return false;
    }
}

static json_t *calls_of(const struct chat_message *m) {
    json_t *calls = json_array();
    for (size_t i = 0; i < m->n_calls; i++) {
        const struct chat_call *call = &m->calls[i];
        json_t *function = json_object(), *object = json_object();
        json_object_set_new(function, "name", json_string(call->name));
        json_object_set_new(
            function, "arguments",
            json_stringn(call->arguments.data ? call->arguments.data : "", call->arguments.n));
        json_object_set_new(object, "id", json_string(call->id));
        json_object_set_new(object, "function", function);
        json_array_append_new(calls, object);
    }
    /* An empty object in place of one that could not be made would read as another message. */
    WEIR_ASSERT(json_array_size(calls) == m->n_calls);
    return calls;
}

static void parse(const struct chat *c, bool thinking, const struct ids *ids,
                  struct chat_message *m) {
    /* Every call is read, also those that a request does not want to see: the renderer must account
     * for all ids. */
    struct chat_parser_options o = {.thinking = thinking, .tools = true};
    struct chat_parser *p = chat_parser_new(c, o, chat_message_take, m);
    chat_parser_feed(p, ids->data, ids->n);
    chat_parser_finish(p, false);
    chat_parser_free(p);
    chat_message_order(m);
}

/* Both without empty response channels, for the comparison alone. */
static bool says_the_same(const struct chat *c, struct text *held, const struct text *body) {
    struct text plain = {0};
    if (held->n > body->n + TURN_EXTRA_BYTES)
        return false;
    text_append(&plain, body->data, body->n);
    drop_empty_responses(c, held);
    drop_empty_responses(c, &plain);
    bool same = equal_but_for_space(held, &plain);
    text_free(&plain);
    return same;
}

bool chat_turn_read(const struct chat *c, bool thinking, struct ids *ids, struct text *body,
                    size_t *calls) {
    struct chat_options o = chat_options_default();
    struct chat_message m = {0};
    o.thinking = thinking && chat_can_think(c);
    if (ids->n == 0)
        return false;
    if (c->eos >= 0 && ids->data[ids->n - 1] == c->eos)
        ids->data[ids->n - 1] = c->end;
    if (ids->data[ids->n - 1] != c->end)
        return false;
    parse(c, o.thinking, ids, &m);
    struct chat_turn turn = {.content = m.content.data, .content_bytes = m.content.n};
    if (!text_is_blank(m.reasoning.data, m.reasoning.n)) {
        turn.reasoning = m.reasoning.data;
        turn.reasoning_bytes = m.reasoning.n;
    }
    json_t *array = calls_of(&m);
    if (m.n_calls != 0)
        turn.calls = array;
    struct text held = {0};
    spell(c, ids, &held);
    text_clear(body);
    bool good = turn_body(c, &turn, &o, body) && says_the_same(c, &held, body);
    *calls = m.n_calls;
    text_free(&held);
    json_decref(array);
    chat_message_free(&m);
    return good;
}
