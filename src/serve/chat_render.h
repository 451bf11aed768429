/* chat_render.h: what a request would feed to the model, for the render and tokenize endpoints. */
#ifndef WEIR_SERVE_CHAT_RENDER_H
#define WEIR_SERVE_CHAT_RENDER_H

#include "serve/api_serve.h"
#include "serve/chat_request.h"

/* Appends the prompt of a parsed request; `text` may be NULL. */
bool chat_request_render(const struct api *api, const struct chat_request *r, struct ids *ids,
                         struct text *text, struct api_error *e);
/* {"count":N,"prompt":text,"prompt_token_ids":[...]} */
void rendered_write(struct text *out, const struct text *prompt, const int32_t *ids, size_t n);

#endif
