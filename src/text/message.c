/* message.c: see message.h. */
#include "text/message.h"

#include <string.h>

static struct chat_call *add_call(struct chat_message *m) {
    if (m->n_calls == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 4;
        m->calls = realloc(m->calls, m->capacity * sizeof *m->calls);
        WEIR_ASSERT(m->calls != NULL);
    }
    m->calls[m->n_calls] = (struct chat_call){0};
    return &m->calls[m->n_calls++];
}

void chat_message_take(void *message, const struct chat_event *e) {
    struct chat_message *m = message;
    struct chat_call *call;
    switch (e->kind) {
    case CHAT_REASONING: text_append(&m->reasoning, e->text, e->n); break;
    case CHAT_CONTENT: text_append(&m->content, e->text, e->n); break;
    case CHAT_CALL_BEGIN:
        call = add_call(m);
        call->id = strdup(e->id);
        call->name = strdup(e->name);
        call->index = e->index;
        call->appeared = e->call;
        WEIR_ASSERT(call->id != NULL && call->name != NULL);
        break;
    case CHAT_CALL_ARGS: text_append(&m->calls[e->call].arguments, e->text, e->n); break;
    case CHAT_CALL_END: m->calls[e->call].complete = true; break;
    }
}

static int by_index(const void *a, const void *b) {
    const struct chat_call *x = a, *y = b;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return x->appeared < y->appeared ? -1 : x->appeared > y->appeared;
}

void chat_message_order(struct chat_message *m) {
    if (m->n_calls > 1)
        qsort(m->calls, m->n_calls, sizeof *m->calls, by_index);
}

void chat_message_free(struct chat_message *m) {
    text_free(&m->reasoning);
    text_free(&m->content);
    for (size_t i = 0; i < m->n_calls; i++) {
        free(m->calls[i].id);
        free(m->calls[i].name);
        text_free(&m->calls[i].arguments);
    }
    free(m->calls);
    *m = (struct chat_message){0};
}
