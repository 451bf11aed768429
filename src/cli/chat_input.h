/* chat_input.h: a chat request from a file, checked by the same rules as the API's, ready to be
 * rendered. Used by render and generate --chat. */
#ifndef WEIR_CLI_CHAT_INPUT_H
#define WEIR_CLI_CHAT_INPUT_H

#include "serve/chat_request.h"

struct chat_input {
    struct chat_request request;
    const char *name; /* of the source, for messages */
};

/* `path` "-": standard input. An array is taken as the messages. WEIR_BAD_FILE names the source;
 * the message the field and the rule. `limits` NULL: only what changes the prompt is looked at. */
weir_status chat_input_read(const char *path, const struct chat *c, const struct api_limits *limits,
                            struct chat_input *out, weir_error *err);
weir_status chat_input_render(const struct chat_input *in, const struct chat *c, struct ids *ids,
                              struct text *text, weir_error *err);
/* How the answer is to be parsed. */
struct chat_parser_options chat_input_parser(const struct chat_input *in);
void chat_input_free(struct chat_input *in);

#endif
