/* chat_backend.c: what both kinds of backend share: gathering an answer into a message that can be
 * sent back with the next request. */
#include "cli/chat_backend.h"

#include "base/clock.h"

#include <string.h>

void chat_answer_free(struct chat_answer *a) {
    json_decref(a->message);
    a->message = NULL;
}

const char *chat_backend_name(const struct chat_backend *b) {
    return b->name;
}

void chat_backend_close(struct chat_backend *b) {
    if (b)
        b->close(b);
}

weir_status chat_backend_ask(struct chat_backend *b, const json_t *request,
                             const struct chat_listener *listener,
                             const volatile sig_atomic_t *stop, struct chat_answer *out,
                             weir_error *err) {
    return b->ask(b, request, listener, stop, out, err);
}

static void append(char **text, size_t *n, const char *more, size_t bytes) {
    char *grown = realloc(*text, *n + bytes + 1);
    if (!grown)
        abort();
    memcpy(grown + *n, more, bytes);
    *n += bytes;
    grown[*n] = 0;
    *text = grown;
}

static void note_time(struct chat_gather *g) {
    g->answer->seconds = clock_seconds() - g->start;
    if (g->answer->first_seconds == 0)
        g->answer->first_seconds = g->answer->seconds;
}

void chat_gather_begin(struct chat_gather *g, const struct chat_listener *l,
                       struct chat_answer *a) {
    *a = (struct chat_answer){0};
    *g = (struct chat_gather){
        .listener = l, .answer = a, .calls = json_array(), .start = clock_seconds()};
}

void chat_gather_content(struct chat_gather *g, const char *text, size_t n) {
    if (n == 0)
        return;
    note_time(g);
    append(&g->content, &g->n_content, text, n);
    g->listener->content(g->listener->arg, text, n);
}

void chat_gather_reasoning(struct chat_gather *g, const char *text, size_t n) {
    if (n == 0)
        return;
    note_time(g);
    append(&g->reasoning, &g->n_reasoning, text, n);
    g->listener->reasoning(g->listener->arg, text, n);
}

void chat_gather_call(struct chat_gather *g, size_t index, const char *id, const char *name,
                      const char *arguments, size_t n) {
    note_time(g);
    while (json_array_size(g->calls) <= index && index < 1024)
        json_array_append_new(g->calls,
                              json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", "", "type", "function",
                                        "function", "name", "", "arguments", ""));
    json_t *call = json_array_get(g->calls, index), *f = json_object_get(call, "function");
    if (id)
        json_object_set_new(call, "id", json_string(id));
    if (name)
        json_object_set_new(f, "name", json_string(name));
    if (arguments) {
        const json_t *old = json_object_get(f, "arguments");
        char *text = NULL;
        size_t total = 0;
        append(&text, &total, json_string_value(old), json_string_length(old));
        append(&text, &total, arguments, n);
        json_object_set_new(f, "arguments", json_stringn(text, total));
        free(text);
    }
}

void chat_gather_end(struct chat_gather *g) {
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string("assistant"));
    json_object_set_new(m, "content", json_stringn(g->content ? g->content : "", g->n_content));
    if (g->n_reasoning)
        json_object_set_new(m, "reasoning_content", json_stringn(g->reasoning, g->n_reasoning));
    if (json_array_size(g->calls))
        json_object_set(m, "tool_calls", g->calls);
    g->answer->message = m;
    json_decref(g->calls);
    free(g->content);
    free(g->reasoning);
}
