/* answer.c: reads the objects of an answer. Called by the replay on its loop and by the fuzz
 * target. Invariant that bites: nothing a server sends may end a run, so every field is looked at
 * as if it could be of any type, and only the first fault of an answer is kept. */
#include "bench/answer.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { BODY_LIMIT = 64 << 20, ERROR_BODY_LIMIT = 64 << 10 };

void answer_free(struct answer *a) {
    text_free(&a->content);
    text_free(&a->all);
    events_free(&a->events);
    free(a->body);
    *a = (struct answer){.keep_text = a->keep_text};
}

/* Server text for one line of a file: control characters shown as spaces, cut between
 * characters. */
static void copy_line(char *out, size_t cap, const char *text) {
    size_t n = 0;
    for (; text[n] && n + 1 < cap; n++)
        out[n] = (unsigned char)text[n] < 32 || text[n] == 127 ? ' ' : text[n];
    while (text[n] && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    out[n] = 0;
}

/* What had to be cut says so by dots. */
static void copy_message(struct answer *a, const char *text) {
    enum { DOTS = 3 };
    copy_line(a->error_message, sizeof a->error_message, text);
    if (strlen(text) < sizeof a->error_message)
        return;
    copy_line(a->error_message, sizeof a->error_message - DOTS, text);
    strcat(a->error_message, "...");
}

static void fault(struct answer *a, const char *type, int code, const char *message) {
    if (a->failed)
        return;
    a->failed = true;
    a->error_code = code;
    copy_line(a->error_type, sizeof a->error_type, type);
    copy_message(a, message);
}

/* {"error": {"message", "code"}}, {"error": "text"} or {"object": "error", "message", "code"}. */
static bool take_error(struct answer *a, const json_t *object, int status) {
    const json_t *error = json_object_get(object, "error");
    const char *kind = json_string_value(json_object_get(object, "object"));
    if (!error && kind && !strcmp(kind, "error"))
        error = object;
    if (!error || json_is_null(error) || json_is_false(error))
        return false;
    const char *text = json_string_value(error);
    const json_t *code = json_object_get(error, "code");
    if (!text)
        text = json_string_value(json_object_get(error, "message"));
    int number =
        json_is_integer(code) && json_integer_value(code) > 0 && json_integer_value(code) < 1000
            ? (int)json_integer_value(code)
            : status;
    fault(a, "server", number, text ? text : "an error without a message");
    return true;
}

/* A count, false where it is none. Up to what the files of a run hold: beyond it no number of
 * tokens is true, and the whole run could not be read back. */
static bool count_of(struct answer *a, const json_t *object, const char *name, uint64_t *out) {
    const int64_t most = INT64_C(1) << 53;
    const json_t *v = json_object_get(object, name);
    if (!v || json_is_null(v))
        return false;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most) {
        *out = (uint64_t)json_integer_value(v);
        return true;
    }
    double real = json_is_real(v) ? json_real_value(v) : -1;
    if (!(real >= 0 && real <= (double)most && real == floor(real))) {
        a->odd_counts++;
        return false;
    }
    *out = (uint64_t)real;
    return true;
}

/* The last usage wins: servers that send one with every chunk count up. */
static void take_usage(struct answer *a, const json_t *usage) {
    uint64_t n;
    if (!json_is_object(usage))
        return;
    if (count_of(a, usage, "completion_tokens", &n)) {
        a->completion_tokens = n;
        a->has_usage = true;
    }
    if (count_of(a, usage, "prompt_tokens", &n)) {
        a->prompt_tokens = n;
        a->has_prompt = true;
    }
    if (count_of(a, json_object_get(usage, "prompt_tokens_details"), "cached_tokens", &n)) {
        a->cached_tokens = n;
        a->has_cached = true;
    }
    if (count_of(a, json_object_get(usage, "completion_tokens_details"), "reasoning_tokens", &n) ||
        count_of(a, usage, "reasoning_tokens", &n))
        a->reasoning_tokens = n;
}

/* True where the string has something in it. */
static bool take_text(struct answer *a, const json_t *v, bool is_content) {
    size_t n = json_string_length(v);
    if (n == 0)
        return false;
    if (a->keep_text && is_content)
        text_append(&a->content, json_string_value(v), n);
    if (a->keep_text)
        text_append(&a->all, json_string_value(v), n);
    return true;
}

/* A delta of a stream or the message of a plain answer. */
static bool take_delta(struct answer *a, const json_t *delta) {
    bool any = take_text(a, json_object_get(delta, "reasoning_content"), false);
    /* Servers that changed the name send both for a while, with the same text. */
    if (!any)
        any = take_text(a, json_object_get(delta, "reasoning"), false);
    any |= take_text(a, json_object_get(delta, "content"), true);
    any |= take_text(a, json_object_get(delta, "refusal"), false);
    const json_t *calls = json_object_get(delta, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        any |= take_text(a, json_object_get(f, "name"), false);
        any |= take_text(a, json_object_get(f, "arguments"), false);
    }
    return any;
}

static bool take_choice(struct answer *a, const json_t *choice) {
    const json_t *index = json_object_get(choice, "index");
    if (json_is_integer(index) && json_integer_value(index) != 0)
        return false;
    const json_t *delta = json_object_get(choice, "delta");
    if (!json_is_object(delta))
        delta = json_object_get(choice, "message");
    bool any = take_delta(a, delta);
    any |= take_text(a, json_object_get(choice, "text"), true);
    a->n_token_ids += json_array_size(json_object_get(choice, "token_ids"));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (finish) {
        copy_line(a->finish_reason, sizeof a->finish_reason, finish);
        a->is_finished = true;
    }
    return any;
}

static void take_object(struct answer *a, const json_t *object, int status) {
    const char *id = json_string_value(json_object_get(object, "id"));
    if (take_error(a, object, status))
        return;
    if (id && !a->id[0])
        copy_line(a->id, sizeof a->id, id);
    else if (id && strncmp(id, a->id, sizeof a->id - 1))
        a->id_changed = true;
    const json_t *choices = json_object_get(object, "choices");
    bool any = false;
    for (size_t i = 0; i < json_array_size(choices); i++)
        any |= take_choice(a, json_array_get(choices, i));
    take_usage(a, json_object_get(object, "usage"));
    a->n_chunks += any;
}

static void on_event(void *user, const char *data, size_t n) {
    struct answer *a = user;
    a->is_stream = true;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        a->is_done = true;
        return;
    }
    if (n == 0)
        return;
    json_error_t why;
    json_t *object = json_loadb(data, n, JSON_ALLOW_NUL, &why);
    if (json_is_object(object))
        take_object(a, object, 0);
    else if (a->is_ending)
        fault(a, "closed", 0, "the stream ended within an event");
    else
        fault(a, "protocol", 0, "an event of the stream is no JSON object");
    json_decref(object);
}

static void keep_body(struct answer *a, const char *bytes, size_t n, size_t limit) {
    if (a->n_body + n > limit)
        n = limit - a->n_body;
    if (a->n_body + n > a->body_room) {
        size_t room = (a->n_body + n) * 2;
        char *grown = realloc(a->body, room);
        if (!grown) {
            fault(a, "protocol", 0, "no memory for the answer");
            return;
        }
        a->body = grown;
        a->body_room = room;
    }
    if (n > 0)
        memcpy(a->body + a->n_body, bytes, n);
    a->n_body += n;
}

/* The first byte says what it is: an object begins with a brace, and no field of an event does.
 * Content types are not believed. */
static bool is_plain(const struct answer *a) {
    return a->first == '{';
}

void answer_feed(struct answer *a, int status, const char *bytes, size_t n, uint32_t *chunks) {
    uint32_t before = a->n_chunks;
    *chunks = 0;
    if (status != 200) {
        keep_body(a, bytes, n, ERROR_BODY_LIMIT);
        return;
    }
    /* Blanks in front are dropped, whichever way they were cut. */
    for (; n > 0 && !a->first; bytes++, n--)
        if (!*bytes || !strchr(" \t\r\n", *bytes)) {
            a->first = *bytes ? *bytes : '?';
            break;
        }
    if (!a->first)
        return;
    if (is_plain(a))
        keep_body(a, bytes, n, BODY_LIMIT);
    else if (!events_feed(&a->events, bytes, n, on_event, a))
        fault(a, "protocol", 0, "an event of the stream is too long");
    *chunks = a->n_chunks - before;
}

static void end_refused(struct answer *a, int status) {
    char text[40];
    json_t *object = json_loadb(a->body ? a->body : "", a->n_body, JSON_ALLOW_NUL, NULL);
    const char *detail = json_string_value(json_object_get(object, "detail"));
    struct answer said = {0};
    if (take_error(&said, object, status))
        detail = said.error_message;
    snprintf(text, sizeof text, "status %d", status);
    char head[2 * sizeof a->error_message] = "";
    if (!object && a->n_body > 0)
        snprintf(head, sizeof head, "%.*s",
                 (int)(a->n_body < sizeof head ? a->n_body : sizeof head - 1), a->body);
    fault(a, "http", status, detail ? detail : head[0] ? head : text);
    json_decref(object);
}

static void end_plain(struct answer *a) {
    json_t *object = json_loadb(a->body ? a->body : "", a->n_body, JSON_ALLOW_NUL, NULL);
    if (json_is_object(object))
        take_object(a, object, 0);
    else
        fault(a, "protocol", 0, "the answer is neither a stream of events nor a JSON object");
    json_decref(object);
}

void answer_end(struct answer *a, int status, uint32_t *chunks) {
    uint32_t before = a->n_chunks;
    a->is_ending = true;
    if (status != 200)
        end_refused(a, status);
    else if (is_plain(a))
        end_plain(a);
    else
        events_end(&a->events, on_event, a);
    if (!a->failed && status == 200 && !a->is_finished && !a->is_done)
        fault(a, "closed", 0,
              a->is_stream ? "the stream ended without a finish reason or an end mark"
                           : "the answer has no event and no object");
    *chunks = a->n_chunks - before;
}
