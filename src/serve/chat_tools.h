/* chat_tools.h: checks of the tools, tool_choice and response_format fields of a chat request. */
#ifndef WEIR_SERVE_CHAT_TOOLS_H
#define WEIR_SERVE_CHAT_TOOLS_H

#include "serve/api_fields.h"
#include "text/chat.h"

/* A list of tools at `path`. `refuse_strict`: a strict tool is 501, since no grammar would hold it.
 */
bool chat_tools_check(const json_t *tools, const char *path, bool refuse_strict,
                      struct api_error *e);
/* Fills the options' tools, tool_choice, tool_name. The lists of system messages must have been
 * checked: tool_choice may name one of theirs. */
bool chat_tools_parse(const json_t *body, const json_t *messages, bool refuse_strict,
                      struct chat_options *out, struct api_error *e);
/* Fills response_format; {"type":"text"} is the same as none. `refuse`: any other one is 501. Also
 * refuses the other spellings of structured outputs. */
bool chat_response_format_parse(const json_t *body, bool refuse, struct chat_options *out,
                                struct api_error *e);
/* For text completions: everything but plain text is 501. */
bool api_no_structured_outputs(const json_t *body, struct api_error *e);
/* A schema that goes into the prompt: `type` names must exist, patterns must be balanced. Keywords
 * it does not know pass. */
bool chat_schema_check(const json_t *schema, const char *path, struct api_error *e);

#endif
