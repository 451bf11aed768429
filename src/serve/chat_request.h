/* chat_request.h: a chat request, checked: bytes in, a struct or one refusal out. Used by
 * /v1/chat/completions, its render endpoint, /tokenize with messages, and `weir render`. */
#ifndef WEIR_SERVE_CHAT_REQUEST_H
#define WEIR_SERVE_CHAT_REQUEST_H

#include "serve/api_sampling.h"
#include "text/chat.h"

/* Zero-initialise; chat_request_free. Everything borrowed points into `body`
 * until chat_request_drop_body. */
struct chat_request {
    json_t *body;
    struct jsontext_numbers *numbers; /* spellings of the numbers in body */
    json_t *messages;                 /* of body; developer has become system */
    const char *model;
    struct api_sampling sampling;
    struct chat_options options;
    bool parse_calls; /* tools are declared and tool_choice is not none */
    bool one_call;    /* parallel_tool_calls false */
    bool include_reasoning;
    bool logprobs;
};

enum chat_request_use {
    CHAT_FOR_GENERATION, /* everything; structured outputs and strict tools are 501 */
    CHAT_FOR_RENDERING,  /* the fields that change the prompt; others are not looked at */
};

/* `can_think`: the markup has a think channel. The model name is not checked here. */
bool chat_request_parse(const char *body, size_t bytes, enum chat_request_use use,
                        const struct api_limits *limits, bool can_think, struct chat_request *out,
                        struct api_error *e);
/* Rendered: keeps what the generation needs and frees the tree. Messages and the options that point
 * into it are gone. */
void chat_request_drop_body(struct chat_request *r);
void chat_request_free(struct chat_request *r);

#endif
