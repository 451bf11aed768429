/* api_sampling.h: the fields that chat and text completions share: sampling, limits, stops, output
 * options. A pure function of the JSON object; nothing is scheduled or rendered here. */
#ifndef WEIR_SERVE_API_SAMPLING_H
#define WEIR_SERVE_API_SAMPLING_H

#include "serve/api_fields.h"
#include "text/tokenizer.h"

enum {
    API_MAX_STOPS = 16,
    API_MAX_STOP_BYTES = 1024,
    API_MAX_STOP_IDS = 1024,
    API_MAX_BIAS = 1024,
    API_MAX_BAD_WORDS = 256,
    API_MAX_PROMPTS = 1024,
    API_MAX_MESSAGES = 10000,
    API_MAX_TOOLS = 1024,
    /* Prompt tokens x choices: each choice hands the engine its own copy. */
    API_MAX_SUBMITTED_IDS = 16 << 20,
    /* Ids and log probabilities of prompts that an answer repeats. */
    API_MAX_PROMPT_VALUES = 2000000,
};

/* What the server is, as far as requests are checked against it. */
struct api_limits {
    uint32_t vocab, max_model_len, max_n;
    uint32_t max_queue;   /* 0: not known, no share is asked for */
    bool priority_policy; /* priority other than 0 is allowed */
    bool null_column;     /* weir_output_ids and weir_step_sizes are allowed */
    /* The checkpoint's generation_config.json; 1, 1, 0 without one. */
    double temperature, top_p;
    int32_t top_k;
    const struct tokenizer *tokenizer; /* bad_words to ids */
};

/* Reads temperature, top_p and top_k of DIR/generation_config.json into *limits; a missing file
 * leaves the neutral values. WEIR_BAD_FILE names the field that is out of its range. */
weir_status api_read_generation_config(const char *dir, struct api_limits *limits, weir_error *err);

/* Zero-initialise; api_sampling_free. Strings are borrowed from the JSON object, which must live as
 * long or until api_sampling_own; arrays of `params` point into the lists below. */
struct api_sampling {
    weir_params params; /* without scripted arrays' owner, see below */
    uint32_t n;
    uint32_t max_tokens; /* as given, or the endpoint's default; 0: to the end of the context */
    bool max_tokens_given;
    const char *max_tokens_field; /* the name that was sent, for refusals */

    const char *stops[API_MAX_STOPS];
    size_t stop_bytes[API_MAX_STOPS];
    size_t n_stops;
    bool include_stop;
    bool skip_special;

    bool stream, include_usage, continuous_usage;
    uint32_t stream_interval; /* tokens an event waits for; 1: every step */
    bool return_token_ids;
    bool tokens_as_ids; /* logprobs name tokens "token_id:N" */
    double timeout;     /* seconds; 0: none of its own */
    const char *request_id;

    struct ids stop_ids; /* the client's, then the format's own */
    size_t n_client_stop_ids;
    struct ids allowed_ids, scripted_ids;
    weir_bias *bias;
    struct ids bad_ids; /* all sequences, one behind the other */
    const int32_t **bad_words;
    size_t *bad_word_lengths;
    uint32_t *steps;
    char *own; /* the strings above, once they are no longer borrowed */
};

/* All shared fields but max_tokens and logprobs, whose rules differ (below). */
bool api_sampling_parse(const json_t *body, const struct api_limits *limits,
                        struct api_sampling *out, struct api_error *e);
/* `fields`: names in order of precedence, NULL at the end. `low`: the least value allowed. */
bool api_max_tokens_parse(const json_t *body, const char *const *fields, int64_t low,
                          struct api_sampling *out, struct api_error *e);
/* prompt tokens + max_tokens against the context; `prompt_field` is named when the prompt alone is
 * too long. Fills params.max_tokens. */
bool api_length_check(struct api_sampling *s, size_t prompt_tokens, const char *prompt_field,
                      const struct api_limits *limits, struct api_error *e);
/* What all choices together take in and what answers repeat of the prompts, against the limits
 * above; params.max_tokens is not counted: what is generated is paid for by generating it.
 * A refusal of
 * more choices than the request's share of the queue (half of it) comes from here too. */
struct api_prompts_size {
    uint64_t prompts, tokens; /* tokens of all prompts together */
    bool echo;                /* each choice repeats its prompt */
    bool chat;                /* one prompt, whose ids are listed once and not by each choice */
};
bool api_size_check(const struct api_sampling *s, struct api_prompts_size size,
                    const struct api_limits *limits, struct api_error *e);
/* Ids that end an answer of this format, beside the client's own. */
void api_sampling_add_stops(struct api_sampling *s, const int32_t *ids, size_t n);
/* Copies the strings that are borrowed from the JSON object, and *model (may be NULL), which then
 * lives as long as *s: a tree of a big body must not live as long as the generation. Once only. */
void api_sampling_own(struct api_sampling *s, const char **model);
void api_sampling_free(struct api_sampling *s);

/* Non-empty, at most 128 characters, none of @ / \ NUL. */
/* The field cache_salt alone. */
bool api_salt_parse(const json_t *body, struct api_sampling *out, struct api_error *e);
bool api_salt_valid(const char *salt, size_t bytes);

#endif
