/* replay_call.c: the life of one call, from being due to its record. Called by replay.c.
 * Invariant that bites: a call's end is told to the schedule with the time it was seen on the wire,
 * not with the time its turn came, so that the wait behind it is as long as recorded. */
#include "bench/replay_inside.h"

#include "base/rng.h"
#include "base/plural.h"

#include <string.h>

/* MOST_PROMPT: tokens whose body still fits into the room for bodies. */
enum { FAILURES_IN_A_ROW = 64, MOST_PROMPT = 1 << 25 };

static struct call_record *record_of(struct flight_http *f) {
    return &f->r->run->records[f->record];
}

/* ------------------------------------------------------------------------------------- planning */

/* Do the server's own answers go into later turns? Only where a play is one session. */
static bool is_live_history(const struct replay *r) {
    return r->o->trace->format == TRACE_MULTI_TURN && !r->o->open_loop && !r->o->lanes.share;
}

bool replay_is_too_long(const struct replay *r, const struct call *call) {
    const struct trace_request *q = &r->o->trace->requests[call->request];
    uint64_t in = q->text ? 0 : trace_scaled_in(q, r->o->length_scale);
    return in > MOST_PROMPT ||
           (r->max_context > 0 && in + body_out_tokens(&r->maker, call) > r->max_context);
}

/* A call that will be skipped needs no body. */
static void ahead(struct replay *r, const struct call *next, const struct talk *talk) {
    if (!replay_is_too_long(r, next))
        composer_ahead(r->composer, next, talk);
}

void replay_look_ahead(struct replay *r, uint64_t from) {
    struct call next;
    for (uint64_t i = from; i < r->foreseen && schedule_upcoming(r->schedule, i, &next); i++)
        if (!is_live_history(r))
            ahead(r, &next, NULL);
}

/* Bodies of what will follow this call. With live answers in them they must wait for its end. */
static void compose_ahead(struct flight_http *f) {
    struct replay *r = f->r;
    struct call next;
    if (r->o->open_loop)
        return;
    if (schedule_following(r->schedule, f->call.ticket, &next)) {
        ahead(r, &next, f->talk);
        /* The last warm-up call is followed by one of full length, and does not know it. */
        if (next.one_token) {
            next.one_token = false;
            ahead(r, &next, f->talk);
        }
    }
    const struct tree *t = r->o->tree;
    const struct tree_chain *c = &t->chains[f->call.chain];
    const struct tree_call *call = &t->calls[c->first + f->call.turn];
    for (uint32_t i = 0; i < call->n_spawns; i++) {
        next = f->call;
        next.request = t->calls[t->chains[t->spawns[call->first_spawn + i]].first].request;
        ahead(r, &next, f->talk);
    }
}

/* ------------------------------------------------------------------------------------ judgement */

/* Notes an answer's id; true where another call had it. */
static bool is_known_id(struct id_set *s, const char *id) {
    uint64_t h = 0xCBF29CE484222325u;
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 0x100000001B3u;
    h = rng_mix(h) | 1;
    if (2 * (s->n + 1) > s->room) {
        struct id_set more = {.room = s->room ? 2 * s->room : 1024};
        more.slot = calloc(more.room, sizeof *more.slot);
        if (!more.slot)
            return false;
        for (size_t i = 0; i < s->room; i++)
            if (s->slot[i]) {
                size_t at = (size_t)s->slot[i] >> 1 & (more.room - 1);
                while (more.slot[at])
                    at = (at + 1) & (more.room - 1);
                more.slot[at] = s->slot[i];
                more.n++;
            }
        free(s->slot);
        *s = more;
    }
    size_t at = (size_t)h >> 1 & (s->room - 1);
    while (s->slot[at] && s->slot[at] != h)
        at = (at + 1) & (s->room - 1);
    if (s->slot[at])
        return true;
    s->slot[at] = h;
    s->n++;
    return false;
}

/* How many tokens the answer has, without asking the server. */
static void count_tokens(struct flight_http *f, struct call_record *c) {
    const struct answer *a = &f->answer;
    c->out = c->n_chunks;
    c->out_source = COUNT_CHUNKS;
    if (a->n_token_ids > 0) {
        c->out = a->n_token_ids;
        c->out_source = COUNT_TOKENS;
    } else if (f->r->o->tokenizer && a->all.n > 0) {
        struct ids ids = {0};
        tokenizer_encode(f->r->o->tokenizer, a->all.data, a->all.n, &ids);
        c->out = ids.n;
        c->out_source = COUNT_TOKENS;
        ids_free(&ids);
    }
}

/* The server's count unless it cannot be true: fewer tokens than half the pieces they came in (a
 * piece without a token of its own, held-back text, is possible), or more than were asked for in
 * fewer pieces than that. */
static void judge_out(struct flight_http *f, struct call_record *c) {
    struct oddities *odd = &f->r->odd;
    const struct answer *a = &f->answer;
    uint64_t said = a->completion_tokens, asked = body_out_tokens(&f->r->maker, &f->call);
    bool few = a->has_usage && 2 * said + 2 < c->n_chunks;
    bool many = a->has_usage && asked > 0 && said > asked && c->n_chunks <= asked;
    odd->no_usage += !a->has_usage;
    odd->few_tokens += few;
    odd->many_tokens += many;
    if (a->has_usage && !few && !many) {
        c->out = said;
        c->out_source = COUNT_USAGE;
    } else {
        count_tokens(f, c);
    }
    if (c->out_expected > 0)
        c->length_missed = c->out != c->out_expected;
}

/* Ids that were sent are counted, and no server knows better; 1 more: a token at the beginning that
 * it puts there. Of words its count is taken, unless there are more tokens than bytes to make them
 * of: a tokenizer gives no more than one a byte, and a template's own are few. */
static void judge_in(struct flight_http *f, struct call_record *c) {
    enum { TEMPLATE = 4096 };
    struct oddities *odd = &f->r->odd;
    const struct answer *a = &f->answer;
    bool told = a->has_prompt && a->prompt_tokens > 0;
    bool exact = f->r->o->endpoint == ENDPOINT_COMPLETIONS && c->in_expected > 0 &&
                 !f->r->o->trace->requests[c->request].text;
    uint64_t far = a->prompt_tokens > c->in_expected ? a->prompt_tokens - c->in_expected
                                                     : c->in_expected - a->prompt_tokens;
    bool wrong = told && (exact ? far > 1 : a->prompt_tokens > f->body.n + TEMPLATE);
    if (wrong) {
        odd->prompt_length++;
        if (far > odd->prompt_difference)
            odd->prompt_difference = far;
    }
    odd->no_number += a->odd_counts > 0;
    c->in = told && !wrong ? a->prompt_tokens : c->in_expected;
    c->in_source = told && !wrong       ? COUNT_USAGE
                   : c->in_expected > 0 ? COUNT_EXPECTED
                                        : COUNT_UNKNOWN;
    c->has_cached = a->has_cached && a->cached_tokens <= c->in;
    c->cached = c->has_cached ? a->cached_tokens : 0;
    odd->cached_more += a->has_cached && !c->has_cached;
}

static void copy_error(struct call_record *c, const char *type, int code, const char *message) {
    c->error_code = code;
    snprintf(c->error_type, sizeof c->error_type, "%s", type);
    snprintf(c->error_message, sizeof c->error_message, "%s", message);
    for (char *p = c->error_message; *p; p++)
        if ((unsigned char)*p < 32)
            *p = ' ';
}

/* A connection that broke behind the end mark had nothing more to say. */
static bool is_whole(const struct answer *a, const struct exchange_end *end) {
    return end->ok || (a->is_done && !strcmp(end->type, "closed"));
}

static void fill_record(struct flight_http *f, const struct exchange_end *end, int64_t at) {
    struct replay *r = f->r;
    struct call_record *c = record_of(f);
    struct answer *a = &f->answer;
    c->end = replay_unix(r, at);
    snprintf(c->server_id, sizeof c->server_id, "%s", a->id);
    c->reasoning = a->reasoning_tokens;
    if (end->was_cancelled) {
        c->was_cancelled = true;
        c->cancelled = c->end;
        copy_error(c, end->type, 0, end->message);
    } else if (a->failed) {
        copy_error(c, a->error_type, a->error_code, a->error_message);
    } else if (!is_whole(a, end)) {
        copy_error(c, end->type, end->status == 200 ? 0 : end->status, end->message);
    }
    r->odd.resent += end->resent;
    r->odd.id_changed += a->id_changed;
    if (a->id[0])
        r->odd.same_id += is_known_id(&r->ids, a->id);
    judge_in(f, c);
    if (c->error_type[0]) {
        c->out = c->n_chunks;
        c->out_source = COUNT_CHUNKS;
    } else {
        r->odd.no_end_mark += a->is_stream && !a->is_done;
        judge_out(f, c);
    }
}

/* A server's words may be any; its status says what they are about. */
static void say_error(const struct call_record *c, char *out, size_t cap) {
    if (c->error_code)
        snprintf(out, cap, "%s %d: %s", c->error_type, c->error_code, c->error_message);
    else
        snprintf(out, cap, "%s: %s", c->error_type, c->error_message);
}

/* A server that is gone fails each call at once; the trees of a whole trace would run through in
 * seconds. */
static void count_failure(struct replay *r, const struct call_record *c) {
    bool failed = c->error_type[0] && !c->was_cancelled;
    char last[224];
    say_error(c, last, sizeof last);
    r->failed += failed;
    r->failures_in_a_row = failed ? r->failures_in_a_row + 1 : 0;
    if (failed && !r->first_failure[0])
        say_error(c, r->first_failure, sizeof r->first_failure);
    uint32_t limit = FAILURES_IN_A_ROW;
    if (!r->o->open_loop && 2 * r->o->lanes.lanes > limit)
        limit = 2 * r->o->lanes.lanes;
    if (r->failures_in_a_row >= limit && !r->gone[0])
        snprintf(r->gone, sizeof r->gone, "%u calls in a row failed, the last one with %s",
                 r->failures_in_a_row, last);
}

static void log_record(const struct replay *r, const struct call_record *c) {
    if (r->o->log)
        run_log_add(r->o->log, c);
}

/* --------------------------------------------------------------------------------------- events */

static void on_sent(void *user, int64_t at) {
    struct flight_http *f = user;
    struct call_record *c = record_of(f);
    c->start = replay_unix(f->r, at);
    if (c->phase < PHASE_PROFILING)
        return;
    reservoir_add(f->r->late, (double)(at - f->could) * 1e-3);
    if (f->r->o->open_loop && f->r->o->arrivals.most > 0)
        reservoir_add(f->r->held, (double)(f->could - f->call.due) * 1e-6);
}

static void on_head(void *user, int status, int64_t at) {
    struct flight_http *f = user;
    record_of(f)->ack = replay_unix(f->r, at);
}

static void add_chunks(struct flight_http *f, uint32_t n, int64_t at) {
    f->r->tokens += n;
    for (uint32_t i = 0; i < n; i++)
        if (!call_record_chunk(record_of(f), replay_unix(f->r, at)))
            f->r->failed_memory = true;
}

/* An answer that does not end would hold up the end of the run. Pieces hold a token or more each,
 * and what surrounds a token is not large. */
static void refuse_endless(struct flight_http *f, int status) {
    enum { SPARE_PIECES = 64, SPARE_BYTES = 16 << 20, TOKEN_BYTES = 64 << 10 };
    uint64_t asked = body_out_tokens(&f->r->maker, &f->call);
    uint32_t pieces = record_of(f)->n_chunks;
    char text[128] = "";
    if (asked > 0 && pieces > 2 * asked + SPARE_PIECES)
        snprintf(text, sizeof text,
                 "the answer has %" PRIu32 " pieces where %" PRIu64 " %s asked for, and goes on",
                 pieces, asked, plural(asked, "token was", "tokens were"));
    else if ((asked > 0 || status != 200) && f->bytes > SPARE_BYTES + asked * TOKEN_BYTES)
        snprintf(text, sizeof text,
                 "the answer has %" PRIu64 " bytes where %" PRIu64 " %s asked for, and goes on",
                 f->bytes, asked, plural(asked, "token was", "tokens were"));
    if (text[0])
        client_refuse(f->exchange, text);
}

static void on_data(void *user, int status, const char *bytes, size_t n, int64_t at) {
    struct flight_http *f = user;
    uint32_t chunks;
    answer_feed(&f->answer, status, bytes, n, &chunks);
    add_chunks(f, chunks, at);
    f->bytes += n;
    refuse_endless(f, status);
}

static void free_flight(struct flight_http *f) {
    struct replay *r = f->r;
    r->flight[f->call.ticket] = NULL;
    free(f->body.bytes);
    answer_free(&f->answer);
    f->next = r->free_flights;
    r->free_flights = f;
}

/* What later turns and their bodies need, before the schedule may ask for them. */
static void keep_answer(struct flight_http *f, bool ok) {
    struct replay *r = f->r;
    const struct trace_session *s =
        &r->o->trace->sessions[r->o->trace->requests[f->call.request].session];
    uint32_t turn = f->call.request - s->first;
    if (!f->talk)
        return;
    if (ok)
        talk_answer(f->talk, turn, f->answer.content.data, f->answer.content.n);
    if (turn + 1 < s->n_own) {
        compose_ahead(f);
        return;
    }
    composer_forget(r->composer, f->call.play);
    talks_drop(&r->talks, f->call.play);
}

/* Who waits for the limit on calls in flight can go from now on. */
static void note_freed(struct replay *r, int64_t at) {
    uint32_t most = r->o->open_loop ? r->o->arrivals.most : 0;
    if (most > 0 && schedule_in_flight(r->schedule) >= most)
        r->freed = at;
}

static void on_ended(void *user, const struct exchange_end *end, int64_t at) {
    struct flight_http *f = user;
    struct replay *r = f->r;
    uint32_t chunks = 0;
    f->exchange = NULL;
    if (end->ok)
        answer_end(&f->answer, end->status, &chunks);
    add_chunks(f, chunks, at);
    fill_record(f, end, at);
    struct call_record *c = record_of(f);
    bool ok = !c->error_type[0];
    log_record(r, c);
    r->done++;
    /* Pieces of the answer have been counted as they came. */
    r->tokens += ok ? c->in + (c->out > c->n_chunks ? c->out - c->n_chunks : 0) : 0;
    count_failure(r, c);
    keep_answer(f, ok);
    note_freed(r, at);
    schedule_done(r->schedule, f->call.ticket, at, ok ? CALL_OK : CALL_FAILED);
    free_flight(f);
}

/* -------------------------------------------------------------------------------------- sending */

static struct flight_http *new_flight(struct replay *r, const struct call *call) {
    if (call->ticket >= r->n_flights) {
        uint32_t n = call->ticket * 2 + 64;
        struct flight_http **more = realloc(r->flight, n * sizeof(struct flight_http *));
        if (!more)
            return NULL;
        memset(more + r->n_flights, 0, (n - r->n_flights) * sizeof(struct flight_http *));
        r->flight = more;
        r->n_flights = n;
    }
    struct flight_http *f = r->free_flights;
    if (f)
        r->free_flights = f->next;
    else
        f = malloc(sizeof *f);
    if (!f)
        return NULL;
    *f = (struct flight_http){.r = r, .call = *call, .record = UINT32_MAX};
    f->could = call->due > r->freed ? call->due : r->freed;
    f->answer.keep_text = r->keeps_text;
    r->flight[call->ticket] = f;
    return f;
}

static void describe(struct flight_http *f) {
    struct replay *r = f->r;
    struct call_record *c = record_of(f);
    const struct call *call = &f->call;
    const struct trace_request *q = &r->o->trace->requests[call->request];
    c->phase = call->phase;
    c->lane = call->lane;
    c->turn = call->turn;
    c->request = call->request;
    c->play = call->play;
    c->number = r->sent++;
    c->root = call->root;
    c->conversation = r->o->trace->sessions[q->session].id;
    c->due = replay_unix(r, call->due);
    c->in_expected = q->text ? 0 : trace_scaled_in(q, r->o->length_scale);
    c->out_expected = call->one_token || q->has_out ? body_out_tokens(&r->maker, call) : 0;
}

/* Ends a call that was never sent. */
static void end_unsent(struct flight_http *f, enum call_end how, const char *type, int64_t now) {
    struct replay *r = f->r;
    log_record(r, record_of(f));
    r->done++;
    note_freed(r, now);
    schedule_done(r->schedule, f->call.ticket, now, how);
    free_flight(f);
}

static void send(struct flight_http *f) {
    static const struct exchange_events events = {on_sent, on_head, on_data, on_ended};
    struct replay *r = f->r;
    int64_t now = client_now();
    if (f->body.bytes)
        f->exchange = client_send(r->client, endpoint_path(r->o->endpoint), f->body.bytes,
                                  f->body.n, &events, f);
    if (!f->exchange) {
        copy_error(record_of(f), "protocol", 0, "no memory for the request");
        r->failed_memory = true;
        end_unsent(f, CALL_FAILED, "protocol", now);
        return;
    }
    if (!is_live_history(r))
        compose_ahead(f);
    /* A play has begun: one more has come into sight. */
    if (r->o->open_loop || (f->call.root && f->call.turn == 0))
        replay_look_ahead(r, r->foreseen - 1);
}

void replay_begin(struct replay *r, const struct call *call, int64_t now) {
    struct flight_http *f = new_flight(r, call);
    struct call_record *c = f ? run_record(r->run) : NULL;
    if (!c) {
        r->failed_memory = true;
        if (f)
            free_flight(f);
        schedule_done(r->schedule, call->ticket, now, CALL_FAILED);
        return;
    }
    f->record = (uint32_t)(c - r->run->records);
    describe(f);
    if (replay_is_too_long(r, call)) {
        c->skipped = true;
        end_unsent(f, CALL_SKIPPED, "", now);
        return;
    }
    const struct trace_session *s =
        &r->o->trace->sessions[r->o->trace->requests[call->request].session];
    if (is_live_history(r))
        f->talk = talks_of(&r->talks, call->play, s->n_own);
    if (composer_take(r->composer, call, f->talk, &f->body)) {
        send(f);
        return;
    }
    f->composing = true;
    f->next = r->composing;
    r->composing = f;
}

void replay_send_composed(struct replay *r) {
    struct flight_http *list = r->composing, *next;
    composer_seen(r->composer);
    r->composing = NULL;
    for (; list; list = next) {
        next = list->next;
        if (composer_take(r->composer, &list->call, list->talk, &list->body)) {
            list->composing = false;
            send(list);
        } else {
            list->next = r->composing;
            r->composing = list;
        }
    }
}

void replay_cancel_all(struct replay *r) {
    int64_t now = client_now();
    r->composing = NULL;
    for (uint32_t i = 0; i < r->n_flights; i++) {
        struct flight_http *f = r->flight[i];
        if (f && f->exchange) {
            client_cancel(r->client, f->exchange);
        } else if (f) {
            struct call_record *c = record_of(f);
            c->was_cancelled = true;
            c->cancelled = replay_unix(r, now);
            copy_error(c, "cancelled", 0, "the run was ended before it was sent");
            end_unsent(f, CALL_FAILED, "cancelled", now);
        }
    }
}

void replay_free_calls(struct replay *r) {
    for (uint32_t i = 0; i < r->n_flights; i++)
        if (r->flight[i])
            free_flight(r->flight[i]);
    while (r->free_flights) {
        struct flight_http *f = r->free_flights;
        r->free_flights = f->next;
        free(f);
    }
    free(r->flight);
    free(r->ids.slot);
    talks_free(&r->talks);
}
