/* completion_request.h: a text completion request, checked: bytes in, a struct or one refusal out.
 */
#ifndef WEIR_SERVE_COMPLETION_REQUEST_H
#define WEIR_SERVE_COMPLETION_REQUEST_H

#include "serve/api_sampling.h"

/* Zero-initialise; completion_request_free. */
struct completion_request {
    json_t *body;
    const char *model;
    struct api_sampling sampling;
    struct ids prompt_ids; /* all prompts, one behind the other */
    size_t *prompt_ends;   /* n_prompts entries: where each ends in prompt_ids */
    size_t n_prompts;
    bool several; /* `prompt` was an array of prompts: paths of refusals carry an index */
    bool echo;
    int32_t logprobs; /* -1: none */
    bool no_output;   /* max_tokens 0: echo only */
};

/* Parses and tokenises. The model name is not checked here. */
bool completion_request_parse(const char *body, size_t bytes, const struct api_limits *limits,
                              struct completion_request *out, struct api_error *e);
/* Keeps what the generation needs and frees the tree. */
void completion_request_drop_body(struct completion_request *r);
/* Ids of prompt i. */
const int32_t *completion_prompt(const struct completion_request *r, size_t i, size_t *n);
void completion_request_free(struct completion_request *r);

#endif
