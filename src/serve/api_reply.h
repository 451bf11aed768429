/* api_reply.h: the JSON of answers: stream chunks and whole replies of both endpoints. Pure: what
 * goes out goes to a sink or a text. The constant head of a stream is written once, a token costs
 * its own delta. */
#ifndef WEIR_SERVE_API_REPLY_H
#define WEIR_SERVE_API_REPLY_H

#include "serve/api_logprobs.h"

enum reasoning_name { REASONING_CONTENT = 1, REASONING_SHORT = 2 }; /* or-ed: both */

struct api_usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens;
};

/* The prompt that a choice answers. */
struct api_prompt {
    const int32_t *ids;
    size_t n;
    struct text echo;   /* its text, for echo */
    weir_token *scored; /* tokens 1..n-1, own copy, or NULL */
};

/* What is the same for all events of one request. Zero-initialise; api_envelope_free. */
struct api_envelope {
    bool chat;
    const char *id, *model; /* the id without its prefix */
    int64_t created;
    const struct api_sampling *sampling;
    struct logprob_style logprob_style;
    struct logprob_style prompt_style;
    bool logprobs;  /* of generated tokens */
    bool echo;      /* text completion */
    bool no_output; /* max_tokens 0 */
    bool hide_reasoning;
    unsigned reasoning; /* reasoning_name */
    bool moonshot_usage;
    size_t most_bytes; /* of a whole reply; 0: no limit. The styles' own is the same. */
    struct text head;  /* up to and including "choices":[ of chunks; written on first use */
    struct text line;  /* scratch */
};
void api_envelope_free(struct api_envelope *v);

typedef void event_sink(void *arg, const char *json, size_t n);

/* The first chunk of a choice: the role, or the echoed prompt when there is one. `running` is the
 * usage so far, for continuous_usage_stats. */
void api_event_first(struct api_envelope *v, uint32_t index, const struct api_prompt *prompt,
                     const struct api_usage *running, event_sink *sink, void *arg);
/* What is new in the choice, one chunk a kind; then the choice forgets it. May send nothing. */
void api_event_step(struct api_envelope *v, uint32_t index, struct api_choice *choice,
                    const struct api_usage *running, event_sink *sink, void *arg);
/* The last chunk of a choice that has ended. */
void api_event_finish(struct api_envelope *v, uint32_t index, struct api_choice *choice,
                      const struct api_usage *running, event_sink *sink, void *arg);
/* The chunk without choices, for include_usage. */
void api_event_usage(struct api_envelope *v, const struct api_usage *usage, event_sink *sink,
                     void *arg);

/* A reply is written in memory before it goes out. Streams have no such limit. */
enum { API_MAX_REPLY_BYTES = 256 << 20 };

/* The whole reply. Choice i answers prompts[i / choices_per_prompt]; the first choice of a prompt
 * tells its scores. False when it is longer than most_bytes: *out is not to be used then. */
bool api_reply_write(struct api_envelope *v, struct api_choice *const *choices, size_t n,
                     const struct api_prompt *prompts, uint32_t choices_per_prompt,
                     const struct api_usage *usage, struct text *out);
void api_usage_write(struct text *out, const struct api_usage *usage, bool moonshot);

#endif
