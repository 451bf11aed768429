/* chat_backend.h: what answers in `weir chat`: a server behind a URL, or a model loaded into this
 * process. Both take the request of /v1/chat/completions, so that a setting means the same. */
#ifndef WEIR_CLI_CHAT_BACKEND_H
#define WEIR_CLI_CHAT_BACKEND_H

#include "base/error.h"
#include "cli/engine_args.h"

#include <jansson.h>
#include <signal.h>

/* Called as the answer comes. Text is valid UTF-8. */
struct chat_listener {
    void (*reasoning)(void *arg, const char *text, size_t n);
    void (*content)(void *arg, const char *text, size_t n);
    void *arg;
};

/* Zero-initialise; chat_answer_free. Text of the message is filled in even when the answer was
 * stopped or failed on the way. */
struct chat_answer {
    json_t *message; /* role, content, reasoning_content and tool_calls where there are any */
    char finish[24]; /* "stop", "length", "tool_calls", "stopped" */
    uint32_t prompt_tokens, cached_tokens, generated_tokens;
    double first_seconds, seconds; /* to the first token, to the last */
};
void chat_answer_free(struct chat_answer *a);

struct chat_backend;

weir_status chat_backend_local(const struct engine_args *args, struct chat_backend **out,
                               weir_error *err);
/* `url`: http or https, with or without a trailing /v1. `key` and `ca` (a PEM file of trusted
 * certificates) may be NULL. Asks for the model's name unless `model` is given. */
weir_status chat_backend_remote(const char *url, const char *key, const char *ca, const char *model,
                                const volatile sig_atomic_t *stop, struct chat_backend **out,
                                weir_error *err);
const char *chat_backend_name(const struct chat_backend *b);
void chat_backend_close(struct chat_backend *b);

/* Answers `request`. When *stop becomes set the answer ends where it is (finish "stopped").
 * WEIR_BAD_VALUE: the request was refused, the message says why; WEIR_CLOSED: the connection. */
weir_status chat_backend_ask(struct chat_backend *b, const json_t *request,
                             const struct chat_listener *listener,
                             const volatile sig_atomic_t *stop, struct chat_answer *out,
                             weir_error *err);

/* For the two implementations. */
struct chat_backend {
    char *name;
    weir_status (*ask)(struct chat_backend *b, const json_t *request,
                       const struct chat_listener *listener, const volatile sig_atomic_t *stop,
                       struct chat_answer *out, weir_error *err);
    void (*close)(struct chat_backend *b);
};
/* Gathers an answer while it is told to the listener. */
struct chat_gather {
    const struct chat_listener *listener;
    struct chat_answer *answer;
    char *content, *reasoning;
    size_t n_content, n_reasoning;
    json_t *calls;
    double start;
};
void chat_gather_begin(struct chat_gather *g, const struct chat_listener *l, struct chat_answer *a);
void chat_gather_content(struct chat_gather *g, const char *text, size_t n);
void chat_gather_reasoning(struct chat_gather *g, const char *text, size_t n);
/* A piece of call `index`; id, name and arguments may each be NULL. */
void chat_gather_call(struct chat_gather *g, size_t index, const char *id, const char *name,
                      const char *arguments, size_t n);
void chat_gather_end(struct chat_gather *g);

#endif
