/* chat_turn.c: see chat_turn.h. Invariant that bites: the parser forgives (text between channels,
 * odd attributes and unknown markers are dropped), so a message says less than its ids may hold;
 * only ids that hold nothing else may stand for it. */
#include "text/chat_turn.h"

#include "text/chat_parts.h"
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

/* What the renderer would write for the turn, in the same form. */
static bool spell_anew(const struct chat *c, bool thinking, const struct chat_turn *turn,
                       struct text *out) {
    struct chat_options o = chat_options_default();
    struct prompt p = {.chat = c, .text = out};
    weir_status s = WEIR_OK;
    o.thinking = thinking;
    switch (c->markup) {
    case CHAT_K3: render_k3_turn(&p, turn, &o); break;
    case CHAT_KIMI_LINEAR: s = render_kimi_turn(&p, turn, "turn", &o, NULL); break;
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

bool chat_turn_read(const struct chat *c, bool thinking, struct ids *ids,
                    struct chat_turn_text *out) {
    thinking = thinking && chat_can_think(c);
    if (ids->n == 0)
        return false;
    if (c->eos >= 0 && ids->data[ids->n - 1] == c->eos)
        ids->data[ids->n - 1] = c->end;
    if (ids->data[ids->n - 1] != c->end)
        return false;
    struct chat_message *m = &out->message;
    parse(c, thinking, ids, m);
    out->turn = (struct chat_turn){.content = m->content.data,
                                   .content_bytes = m->content.n,
                                   .call_ids = c->markup == CHAT_KIMI_LINEAR};
    if (!text_is_blank(m->reasoning.data, m->reasoning.n)) {
        out->turn.reasoning = m->reasoning.data;
        out->turn.reasoning_bytes = m->reasoning.n;
    }
    if (m->n_calls != 0)
        out->turn.calls = out->calls = calls_of(m);
    struct text held = {0}, anew = {0};
    spell(c, ids, &held);
    bool good = spell_anew(c, thinking, &out->turn, &anew) && held.n <= anew.n + TURN_EXTRA_BYTES;
    drop_empty_responses(c, &held);
    drop_empty_responses(c, &anew);
    good = good && equal_but_for_space(&held, &anew);
    text_free(&held);
    text_free(&anew);
    return good;
}

void chat_turn_free(struct chat_turn_text *t) {
    chat_message_free(&t->message);
    json_decref(t->calls);
    *t = (struct chat_turn_text){0};
}
