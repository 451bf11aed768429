/* message.h: gathers the events of an output parser into one assistant message, as a non-stream
 * answer needs it: reasoning, content and the calls. */
#ifndef WEIR_TEXT_MESSAGE_H
#define WEIR_TEXT_MESSAGE_H

#include "text/chat.h"

struct chat_call {
    char *id, *name;
    struct text arguments; /* JSON text; partial when the call is not complete */
    uint64_t index;        /* the place the model gave it, from 1 */
    uint32_t appeared;     /* its number in the stream, from 0 */
    bool complete;
};

/* Zero-initialise, free with chat_message_free. */
struct chat_message {
    struct text reasoning, content;
    struct chat_call *calls; /* as they appeared, until chat_message_order */
    size_t n_calls, capacity;
};

/* A chat_sink; arg is the struct chat_message. */
void chat_message_take(void *message, const struct chat_event *e);
/* Sorts the calls by index; equal ones keep their order. */
void chat_message_order(struct chat_message *m);
void chat_message_free(struct chat_message *m);

#endif
