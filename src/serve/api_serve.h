/* api_serve.h: the OpenAI-compatible API of one loaded model: what all endpoints share, and the
 * table through which the server opens it. */
#ifndef WEIR_SERVE_API_SERVE_H
#define WEIR_SERVE_API_SERVE_H

#include "serve/api_sampling.h"
#include "serve/server.h"
#include "text/chat.h"

/* The API behind weir_serve_run. */
extern const struct serve_api serve_api_openai;

struct api_run;

/* One per server. Read-only after opening but for the list of runs, which is the loop thread's. */
struct api {
    struct server *server;
    weir_engine *engine;
    struct tokenizer *tokenizer;
    struct chat *chat; /* NULL: the tokenizer lacks the family's markers, see no_chat */
    weir_error no_chat;
    struct turns *turns; /* the server's; NULL: turns are not replayed */
    unsigned char realm[32];
    struct api_limits limits;
    weir_info info;
    struct api_run *runs; /* all that were submitted and have not ended */
};

/* Appended to an endpoint's path: adds the routes of one file. */
void chat_routes(struct api *api, struct http *h);
void completion_routes(struct api *api, struct http *h);
void tokenize_routes(struct api *api, struct http *h);

/* True when the model name may be used; else a 404. */
bool api_model_check(const struct api *api, const char *name, struct api_error *e);

#endif
