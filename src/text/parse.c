/* parse.c: the frame of the output parsers: generated ids in, events out. Called by the server and
 * the commands. Invariants that bite: markers are recognised as ids, so no spelling in text can
 * forge one and none reaches a client; nothing but an unfinished character is held back in text;
 * what has been reported stands, so an incomplete call is never repaired. */
#include "text/parse_parts.h"

#include "base/rng.h"

#include <string.h>

struct chat_parser *chat_parser_new(const struct chat *c, struct chat_parser_options o,
                                    chat_sink *sink, void *arg) {
    struct chat_parser *p = calloc(1, sizeof *p);
    WEIR_ASSERT(p != NULL);
    p->chat = c;
    p->options = o;
    p->sink = sink;
    p->arg = arg;
    switch (c->markup) {
    case CHAT_K3: parse_k3_start(p); break;
    case CHAT_KIMI_LINEAR: parse_kimi_start(p); break;
    }
    return p;
}

void chat_parser_free(struct chat_parser *p) {
    if (p == NULL)
        return;
    switch (p->chat->markup) {
    case CHAT_K3: parse_k3_free(p); break;
    case CHAT_KIMI_LINEAR: parse_kimi_free(p); break;
    }
    text_free(&p->visible);
    text_free(&p->escaped);
    free(p);
}

/* -------------------------------------------------------------------------------------------------
 * events */

static void emit_text(struct chat_parser *p, enum chat_event_kind kind, const char *s, size_t n,
                      size_t first, size_t done) {
    if (n == 0)
        return;
    struct chat_event e = {.kind = kind, .text = s, .n = n, .ids_first = first, .ids_done = done};
    p->sink(p->arg, &e);
}

void parser_call_args(struct chat_parser *p, const char *s, size_t n) {
    if (n == 0 || !p->call_reported)
        return;
    p->args_bytes += n;
    struct chat_event e = {.kind = CHAT_CALL_ARGS,
                           .call = p->begun - 1,
                           .text = s,
                           .n = n,
                           .ids_first = p->fed,
                           .ids_done = p->fed};
    p->sink(p->arg, &e);
}

/* Valid text in p->visible to where it belongs; it completes the ids first .. done - 1. */
static void deliver(struct chat_parser *p, size_t first, size_t done) {
    const struct text *t = &p->visible;
    switch (p->target) {
    case TARGET_NOWHERE: break;
    case TARGET_REASONING: emit_text(p, CHAT_REASONING, t->data, t->n, first, done); break;
    case TARGET_CONTENT: emit_text(p, CHAT_CONTENT, t->data, t->n, first, done); break;
    case TARGET_ARGS:
        if (p->chat->markup == CHAT_KIMI_LINEAR)
            parse_kimi_args(p, t->data, t->n);
        else
            parser_call_args(p, t->data, t->n);
        break;
    case TARGET_ARGS_STRING:
        text_clear(&p->escaped);
        jsontext_escape(&p->escaped, t->data, t->n);
        parser_call_args(p, p->escaped.data, p->escaped.n);
        break;
    }
}

void parser_bytes(struct chat_parser *p, const char *s, size_t n) {
    size_t id = p->fed - 1;
    size_t first = p->utf8.n != 0 ? p->held_from : id;
    text_clear(&p->visible);
    utf8_push(&p->utf8, s, n, &p->visible);
    p->text_to = p->fed;
    if (p->visible.n != 0)
        deliver(p, first, p->utf8.n != 0 ? id : p->fed);
    /* Whatever was held before is part of what came out, if anything did. */
    p->held_from = p->visible.n != 0 ? id : first;
}

void parser_break(struct chat_parser *p, bool drop) {
    if (p->utf8.n == 0)
        return;
    text_clear(&p->visible);
    utf8_finish(&p->utf8, &p->visible);
    p->utf8.n = 0;
    if (!drop)
        deliver(p, p->held_from, p->text_to);
}

/* -------------------------------------------------------------------------------------------------
 * calls */

void parser_call_begin(struct chat_parser *p, const char *id, const char *name, uint64_t index) {
    parser_call_abandon(p);
    p->call_open = true;
    p->call_broken = false;
    p->args_bytes = 0;
    p->call_reported = false;
    if (*name == '\0') {
        p->failures++;
        return;
    }
    if (!p->options.tools || (p->options.one_call && p->begun != 0))
        return;
    if (id == NULL) {
        uint64_t a = rng_at(p->options.id_seed, 1, p->begun);
        uint64_t b = rng_at(p->options.id_seed, 2, p->begun);
        snprintf(p->call_id, sizeof p->call_id, "call_%016" PRIx64 "%08" PRIx32, a, (uint32_t)b);
        id = p->call_id;
    }
    p->call_reported = true;
    struct chat_event e = {.kind = CHAT_CALL_BEGIN,
                           .call = p->begun,
                           .index = index ? index : (uint64_t)p->begun + 1,
                           .id = id,
                           .name = name,
                           .ids_first = p->fed,
                           .ids_done = p->fed};
    p->begun++;
    p->sink(p->arg, &e);
}

void parser_call_end(struct chat_parser *p) {
    if (!p->call_open)
        return;
    p->call_open = false;
    if (!p->call_reported)
        return;
    if (p->args_bytes == 0)
        parser_call_args(p, "{}", 2);
    p->failures += p->call_broken;
    p->complete++;
    struct chat_event e = {
        .kind = CHAT_CALL_END, .call = p->begun - 1, .ids_first = p->fed, .ids_done = p->fed};
    p->sink(p->arg, &e);
    p->call_reported = false;
}

void parser_call_abandon(struct chat_parser *p) {
    if (p->call_open && p->call_reported)
        p->failures++;
    p->call_open = p->call_reported = false;
}

static void end_of_turn(struct chat_parser *p) {
    switch (p->chat->markup) {
    case CHAT_K3: parse_k3_end(p); break;
    case CHAT_KIMI_LINEAR: parser_call_abandon(p); break;
    }
    p->ended = true;
}

/* -------------------------------------------------------------------------------------------------
 * the caller's side */

void chat_parser_feed(struct chat_parser *p, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n && !p->ended; i++) {
        p->fed++;
        if (ids[i] == p->chat->end || ids[i] == p->chat->eos) {
            parser_break(p, false);
            end_of_turn(p);
            break;
        }
        switch (p->chat->markup) {
        case CHAT_K3: parse_k3_id(p, ids[i]); break;
        case CHAT_KIMI_LINEAR: parse_kimi_id(p, ids[i]); break;
        }
    }
}

void chat_parser_finish(struct chat_parser *p, bool cut) {
    if (p->ended)
        return;
    bool in_call = p->target == TARGET_ARGS || p->target == TARGET_ARGS_STRING;
    parser_break(p, cut && in_call);
    if (cut)
        p->call_open = false;
    else
        end_of_turn(p);
    p->ended = true;
}

bool chat_parser_ended(const struct chat_parser *p) {
    return p->ended;
}

uint32_t chat_parser_calls(const struct chat_parser *p) {
    return p->complete;
}

size_t chat_parser_reasoning_ids(const struct chat_parser *p) {
    return p->reasoning_ids;
}

uint32_t chat_parser_failures(const struct chat_parser *p) {
    return p->failures;
}
