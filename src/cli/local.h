/* local.h: a model loaded into this process for one user: engine, tokenizer and chat markup, and a
 * call that runs one request to its end. Used by generate and chat. */
#ifndef WEIR_CLI_LOCAL_H
#define WEIR_CLI_LOCAL_H

#include "cli/engine_args.h"
#include "model/model.h"
#include "text/chat.h"

#include <signal.h>

struct local;

/* A checkpoint without a tokenizer opens all the same: local_tokenizer is NULL then, and so is
 * local_chat where the tokenizer lacks a marker; *why (may be NULL) says what is amiss. */
weir_status local_open(const struct engine_args *args, struct local **out, weir_error *why,
                       weir_error *err);
void local_close(struct local *l);

const struct model *local_model(const struct local *l);
const struct tokenizer *local_tokenizer(const struct local *l);
const struct chat *local_chat(const struct local *l);
weir_engine *local_engine(const struct local *l);

/* Gets new ids as they come. Returns false to end the request. */
typedef bool local_sink(void *arg, const weir_token *tokens, size_t n);

/* Runs a request to its end and fills *progress. `stop` (may be NULL) is looked at every few
 * milliseconds: once it is set the request is cancelled. */
weir_status local_run(struct local *l, const int32_t *ids, size_t n, const weir_params *p,
                      local_sink *sink, void *arg, const volatile sig_atomic_t *stop,
                      weir_progress *progress, weir_error *err);

#endif
