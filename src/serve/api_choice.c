/* api_choice.c: token ids through the output parser and the stop matcher into pieces.
 * Called by api_run.c for every generated token. Invariant that bites: ids are fed one at a time,
 * so the outcome (text, calls, token count, the token that completed a stop string) cannot depend
 * on how many arrived together. */
#include "serve/api_choice.h"

#include "text/stop.h"
#include "text/utf8.h"

#include <string.h>

/* A call that the model numbered ahead of its turn waits until the ones before it are out. */
struct held_call {
    uint64_t index;
    uint32_t call; /* as the parser counts */
    bool out, complete;
    uint32_t as; /* as the client counts, once out */
    struct text id, name, args;
};

struct api_choice {
    struct choice_options o;
    struct chat_parser *parser;
    struct utf8_stream utf8;
    struct stop_matcher *stops;
    bool bypass_stops; /* the token being fed comes before min_tokens */

    struct choice_piece *piece;
    size_t n_pieces, piece_capacity;
    struct text text;
    struct text shown;        /* scratch of the stop matcher */
    struct text bytes, clean; /* scratch of one token's text */

    struct choice_logprob *logprobs;
    size_t n_logprobs, logprob_capacity;
    weir_token *window; /* fed tokens whose text the parser has not yet accounted for */
    size_t n_window, window_capacity, window_first;

    struct ids ids;
    size_t taken_in, taken_out; /* bytes of visible text into and out of the matcher */
    size_t chars;

    struct held_call *calls;
    size_t n_calls, call_capacity;
    size_t *waiting; /* calls that are not out: a heap, the lowest index on top */
    size_t n_waiting, waiting_capacity;
    uint32_t calls_out, calls_complete;

    uint32_t tokens;
    int matched; /* index of the stop string, -1: none */
    weir_finish finish;
    int32_t stop_id;
};

static void *grow(void *p, size_t *capacity, size_t n, size_t size) {
    if (n < *capacity)
        return p;
    *capacity = *capacity ? 2 * *capacity : 8;
    p = realloc(p, *capacity * size);
    WEIR_ASSERT(p);
    return p;
}

static struct choice_piece *add_piece(struct api_choice *c, enum piece_kind kind, uint32_t call) {
    c->piece = grow(c->piece, &c->piece_capacity, c->n_pieces, sizeof *c->piece);
    struct choice_piece *p = &c->piece[c->n_pieces++];
    *p = (struct choice_piece){.kind = kind, .call = call, .at = c->text.n};
    return p;
}

static void add_text(struct api_choice *c, enum piece_kind kind, uint32_t call, const char *s,
                     size_t n) {
    if (n == 0)
        return;
    struct choice_piece *last = c->n_pieces ? &c->piece[c->n_pieces - 1] : NULL;
    if (!last || last->kind != kind || last->call != call)
        last = add_piece(c, kind, call);
    text_append(&c->text, s, n);
    last->n += n;
}

static void add_shown(struct api_choice *c) {
    add_text(c, PIECE_CONTENT, 0, c->shown.data, c->shown.n);
    text_clear(&c->shown);
}

static void new_stops(struct api_choice *c) {
    const struct api_sampling *s = c->o.sampling;
    stop_free(c->stops);
    c->stops = stop_new(s->stops, s->stop_bytes, s->n_stops, s->include_stop);
}

/* Visible text that is over: another kind follows, so nothing of it can still become a stop. */
static void release_held(struct api_choice *c) {
    if (c->matched >= 0 || stop_held(c->stops) == 0)
        return;
    c->matched = stop_finish(c->stops, &c->shown);
    add_shown(c);
    c->taken_out = c->taken_in;
    if (c->matched < 0)
        new_stops(c); /* a finished matcher takes no more */
}

static void visible(struct api_choice *c, const char *s, size_t n) {
    if (c->matched >= 0)
        return;
    c->taken_in += n;
    if (c->bypass_stops) {
        text_append(&c->shown, s, n);
    } else {
        c->matched = stop_push(c->stops, s, n, &c->shown);
    }
    add_shown(c);
    c->taken_out = c->taken_in - (c->matched >= 0 ? 0 : stop_held(c->stops));
}

static void add_logprob(struct api_choice *c, const weir_token *t, size_t end, size_t offset) {
    c->logprobs = grow(c->logprobs, &c->logprob_capacity, c->n_logprobs, sizeof *c->logprobs);
    c->logprobs[c->n_logprobs++] =
        (struct choice_logprob){.token = *t, .content_end = end, .char_offset = offset};
}

/* Moves the tokens of a visible text out of the window; what lies before them was structure. */
static void account(struct api_choice *c, const struct chat_event *e) {
    if (!c->o.logprobs)
        return;
    size_t drop = 0;
    for (; drop < c->n_window && c->window_first + drop < e->ids_done; drop++)
        if (c->window_first + drop >= e->ids_first && e->kind == CHAT_CONTENT)
            add_logprob(c, &c->window[drop], c->taken_in, 0);
    c->n_window -= drop;
    c->window_first += drop;
    memmove(c->window, c->window + drop, c->n_window * sizeof *c->window);
}

static void put_call(struct api_choice *c, struct held_call *h) {
    h->out = true;
    h->as = c->calls_out++;
    struct choice_piece *p = add_piece(c, PIECE_CALL_BEGIN, h->as);
    p->n = h->id.n;
    text_append(&c->text, h->id.data, h->id.n + 1);
    p->name_at = c->text.n;
    text_append(&c->text, h->name.data, h->name.n + 1);
    add_text(c, PIECE_CALL_ARGS, h->as, h->args.data ? h->args.data : "", h->args.n);
}

/* Equal indices keep the order in which the model wrote them. */
static bool goes_before(const struct api_choice *c, size_t a, size_t b) {
    uint64_t x = c->calls[a].index, y = c->calls[b].index;
    return x != y ? x < y : a < b;
}

static void add_waiting(struct api_choice *c, size_t call) {
    c->waiting = grow(c->waiting, &c->waiting_capacity, c->n_waiting, sizeof *c->waiting);
    size_t at = c->n_waiting++;
    for (; at > 0 && goes_before(c, call, c->waiting[(at - 1) / 2]); at = (at - 1) / 2)
        c->waiting[at] = c->waiting[(at - 1) / 2];
    c->waiting[at] = call;
}

static void remove_first_waiting(struct api_choice *c) {
    size_t last = c->waiting[--c->n_waiting], at = 0;
    for (size_t below = 1; below < c->n_waiting; below = 2 * at + 1) {
        if (below + 1 < c->n_waiting && goes_before(c, c->waiting[below + 1], c->waiting[below]))
            below++;
        if (!goes_before(c, c->waiting[below], last))
            break;
        c->waiting[at] = c->waiting[below];
        at = below;
    }
    c->waiting[at] = last;
}

/* The next one whose turn has come: the lowest index, and not ahead unless nothing can come. */
static bool put_next_call(struct api_choice *c, bool all) {
    if (c->n_waiting == 0)
        return false;
    struct held_call *next = &c->calls[c->waiting[0]];
    if (!all && next->index > (uint64_t)c->calls_out + 1)
        return false;
    remove_first_waiting(c);
    put_call(c, next);
    return true;
}

/* Only the newest call can still grow: one that the model abandoned for the next never gets its
 * end. */
static bool call_is_open(const struct api_choice *c) {
    const struct held_call *newest = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;
    return newest && newest->out && !newest->complete;
}

static void on_call(struct api_choice *c, const struct chat_event *e) {
    if (e->kind == CHAT_CALL_BEGIN) {
        c->calls = grow(c->calls, &c->call_capacity, c->n_calls, sizeof *c->calls);
        struct held_call *h = &c->calls[c->n_calls++];
        *h = (struct held_call){.index = e->index, .call = e->call};
        text_puts(&h->id, e->id);
        text_puts(&h->name, e->name);
        add_waiting(c, c->n_calls - 1);
    }
    struct held_call *h = NULL;
    for (size_t i = c->n_calls; i > 0 && !h; i--)
        if (c->calls[i - 1].call == e->call)
            h = &c->calls[i - 1];
    WEIR_ASSERT(h);
    if (e->kind == CHAT_CALL_ARGS) {
        if (h->out)
            add_text(c, PIECE_CALL_ARGS, h->as, e->text, e->n);
        else
            text_append(&h->args, e->text, e->n);
        return;
    }
    if (e->kind == CHAT_CALL_END) {
        h->complete = true;
        c->calls_complete++;
    }
    /* A call that comes out while it is open blocks the ones behind it. */
    while (!call_is_open(c) && put_next_call(c, false))
        continue;
}

static void on_event(void *arg, const struct chat_event *e) {
    struct api_choice *c = arg;
    if (c->matched >= 0)
        return;
    switch (e->kind) {
    case CHAT_CONTENT:
        visible(c, e->text, e->n);
        account(c, e);
        return;
    case CHAT_REASONING:
        release_held(c);
        if (c->matched < 0)
            add_text(c, PIECE_REASONING, 0, e->text, e->n);
        account(c, e);
        return;
    case CHAT_CALL_BEGIN:
    case CHAT_CALL_ARGS:
    case CHAT_CALL_END:
        release_held(c);
        account(c, e);
        if (c->matched < 0)
            on_call(c, e);
        return;
    }
}

struct api_choice *api_choice_new(const struct choice_options *o) {
    struct api_choice *c = calloc(1, sizeof *c);
    WEIR_ASSERT(c);
    c->o = *o;
    c->matched = -1;
    c->stop_id = -1;
    c->chars = o->first_char;
    new_stops(c);
    if (o->chat) {
        c->parser = chat_parser_new(o->chat, o->parser, on_event, c);
        WEIR_ASSERT(c->parser);
    }
    return c;
}

void api_choice_free(struct api_choice *c) {
    if (!c)
        return;
    if (c->parser)
        chat_parser_free(c->parser);
    stop_free(c->stops);
    for (size_t i = 0; i < c->n_calls; i++) {
        text_free(&c->calls[i].id);
        text_free(&c->calls[i].name);
        text_free(&c->calls[i].args);
    }
    free(c->calls);
    free(c->waiting);
    free(c->piece);
    free(c->logprobs);
    free(c->window);
    text_free(&c->text);
    text_free(&c->shown);
    text_free(&c->bytes);
    text_free(&c->clean);
    ids_free(&c->ids);
    free(c);
}

static size_t count_chars(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

/* Text completion: the ids' own bytes. */
static void feed_plain(struct api_choice *c, const weir_token *t, bool shown) {
    text_clear(&c->bytes);
    text_clear(&c->clean);
    if (shown)
        tokenizer_decode(c->o.tokenizer, &t->id, 1, c->o.sampling->skip_special, &c->bytes);
    if (c->bytes.n)
        utf8_push(&c->utf8, c->bytes.data, c->bytes.n, &c->clean);
    size_t offset = c->chars;
    c->chars += count_chars(c->clean.data, c->clean.n);
    if (c->clean.n)
        visible(c, c->clean.data, c->clean.n);
    if (c->o.logprobs)
        add_logprob(c, t, c->taken_in, offset);
}

static bool is_end_id(const weir_params *p, int32_t id) {
    for (size_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

bool api_choice_feed(struct api_choice *c, const weir_token *t, bool is_stop) {
    const struct api_sampling *s = c->o.sampling;
    c->tokens++;
    if (c->o.keep_ids)
        ids_push(&c->ids, t->id);
    c->bypass_stops = c->tokens < s->params.min_tokens;
    bool runs_on = c->parser && chat_parser_ended(c->parser) && !is_stop && !s->params.ignore_eos &&
                   !c->bypass_stops && !is_end_id(&s->params, t->id);
    bool shown = !is_stop || s->include_stop || !s->skip_special;
    if (!c->o.chat) {
        feed_plain(c, t, shown);
    } else if (shown) {
        if (c->o.logprobs) {
            c->window = grow(c->window, &c->window_capacity, c->n_window, sizeof *c->window);
            c->window[c->n_window++] = *t;
        }
        chat_parser_feed(c->parser, &t->id, 1);
    }
    return c->matched < 0 && !runs_on;
}

void api_choice_end(struct api_choice *c, weir_finish finish, int32_t stop_id) {
    c->bypass_stops = false;
    if (c->matched < 0) {
        if (c->o.chat) {
            chat_parser_finish(c->parser, finish != WEIR_FINISH_STOP);
        } else {
            struct text rest = {0};
            utf8_finish(&c->utf8, &rest);
            if (rest.n)
                visible(c, rest.data, rest.n);
            text_free(&rest);
        }
        release_held(c);
        while (put_next_call(c, true))
            continue;
    }
    c->taken_out = c->taken_in;
    c->finish = c->matched >= 0 ? WEIR_FINISH_STOP : finish;
    c->stop_id = c->matched >= 0 ? -1 : stop_id;
}

struct choice_pieces api_choice_pieces(const struct api_choice *c) {
    struct choice_pieces p = {
        .piece = c->piece,
        .n = c->n_pieces,
        .text = c->text.data,
        .logprobs = c->logprobs,
        .ids = c->ids.data,
        .n_ids = c->ids.n,
    };
    while (p.n_logprobs < c->n_logprobs && c->logprobs[p.n_logprobs].content_end <= c->taken_out)
        p.n_logprobs++;
    return p;
}

void api_choice_taken(struct api_choice *c, bool logprobs) {
    size_t gone = logprobs ? api_choice_pieces(c).n_logprobs : 0;
    c->n_logprobs -= gone;
    if (gone)
        memmove(c->logprobs, c->logprobs + gone, c->n_logprobs * sizeof *c->logprobs);
    c->n_pieces = 0;
    text_clear(&c->text);
    c->ids.n = 0;
}

const char *api_choice_finish_reason(const struct api_choice *c) {
    switch (c->finish) {
    case WEIR_FINISH_STOP: return c->calls_complete > 0 ? "tool_calls" : "stop";
    case WEIR_FINISH_LENGTH: return "length";
    case WEIR_RUNNING:
    case WEIR_FINISH_ABORT:
    case WEIR_FINISH_ERROR: return "abort";
    }
    return "abort";
}

const char *api_choice_stop_string(const struct api_choice *c, size_t *bytes) {
    if (c->matched < 0)
        return NULL;
    *bytes = c->o.sampling->stop_bytes[c->matched];
    return c->o.sampling->stops[c->matched];
}

int32_t api_choice_stop_id(const struct api_choice *c) {
    return c->stop_id;
}

uint32_t api_choice_tokens(const struct api_choice *c) {
    return c->tokens;
}

uint32_t api_choice_reasoning_tokens(const struct api_choice *c) {
    return c->parser ? (uint32_t)chat_parser_reasoning_ids(c->parser) : 0;
}

uint32_t api_choice_parse_failures(const struct api_choice *c) {
    return c->parser ? chat_parser_failures(c->parser) : 0;
}

bool api_choice_content_is_null(const struct api_choice *c) {
    return c->calls_out > 0 || (c->o.parser.thinking && c->finish != WEIR_FINISH_STOP);
}
