/* api_logprobs.h: log probabilities as the API writes them: natural logs of the raw distribution,
 * minus infinity as -9999.0. */
#ifndef WEIR_SERVE_API_LOGPROBS_H
#define WEIR_SERVE_API_LOGPROBS_H

#include "serve/api_choice.h"

struct logprob_style {
    const struct tokenizer *tokenizer;
    bool tokens_as_ids; /* "token_id:N" in place of the text */
    uint32_t top;       /* how many alternatives were asked for */
    /* Lists end early once the text is longer, 0 for no limit: the writer of the reply refuses it
     * then, so what is cut reaches nobody. */
    size_t most_bytes;
};

/* {"content":[...],"refusal":null} */
void logprobs_write_chat(struct text *out, const struct logprob_style *style,
                         const struct choice_logprob *entries, size_t n);

/* The prompt of a text completion with echo: `scored` are tokens 1..n-1 of `ids` (NULL: no values).
 */
struct logprob_prompt {
    const int32_t *ids;
    size_t n;
    const weir_token *scored;
};
/* {"tokens":[...],"token_logprobs":[...],"top_logprobs":[...],"text_offset":[...]}; the prompt's
 * entries first when `prompt` is not NULL. */
void logprobs_write_completion(struct text *out, const struct logprob_style *style,
                               const struct logprob_prompt *prompt,
                               const struct choice_logprob *entries, size_t n);
/* [null,{"ID":{"logprob","rank","decoded_token"},...},...] */
void logprobs_write_prompt(struct text *out, const struct logprob_style *style,
                           const struct logprob_prompt *prompt);

#endif
