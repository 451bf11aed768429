/* chat_render.h: what a request would feed to the model, for the render and tokenize endpoints. */
#ifndef WEIR_SERVE_CHAT_RENDER_H
#define WEIR_SERVE_CHAT_RENDER_H

#include "serve/api_serve.h"
#include "serve/chat_request.h"
#include "serve/turns_chat.h"

/* The prompt of a parsed request into an empty list; turns that were generated here are replayed.
 * `key_salt`: of the job. `text` and `base` (what the next turn starts from) may be NULL. */
bool chat_request_render(const struct api *api, const struct chat_request *r, const char *key_salt,
                         struct ids *ids, struct text *text, struct turns_base *base,
                         struct api_error *e);
/* {"count":N,"prompt":text,"prompt_token_ids":[...]} */
void rendered_write(struct text *out, const struct text *prompt, const int32_t *ids, size_t n);

#endif
