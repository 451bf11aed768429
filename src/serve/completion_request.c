/* completion_request.c: checks a text completion request and turns its prompts into ids.
 * Called by the completion handlers. Invariant that bites: prompts x n choices is bounded before
 * anything of that size exists. */
#include "serve/completion_request.h"

#include "base/plural.h"

#include "serve/chat_tools.h"
#include "serve/json_read.h"

#include <string.h>

static bool bad_prompt(const json_t *v, const char *path, struct api_error *e) {
    struct api_found found = api_found(v);
    return api_fail(e, 400, path,
                    "%s: %s, it must be a non-empty string, array of strings, array of token ids "
                    "or array of such arrays",
                    path, found.text);
}

static bool add_prompt(struct completion_request *r, const json_t *v, const char *path,
                       const struct api_limits *l, bool special, struct api_error *e) {
    size_t before = r->prompt_ids.n;
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        if (special)
            tokenizer_encode_special(l->tokenizer, s, json_string_length(v), &r->prompt_ids);
        else
            tokenizer_encode(l->tokenizer, s, json_string_length(v), &r->prompt_ids);
    } else if (!api_value_ids(v, path, l->vocab, SIZE_MAX, &r->prompt_ids, e)) {
        return false;
    }
    if (r->prompt_ids.n == before)
        return bad_prompt(v, path, e);
    r->prompt_ends[r->n_prompts++] = r->prompt_ids.n;
    return true;
}

static bool parse_prompts(struct completion_request *r, const struct api_limits *l,
                          struct api_error *e) {
    struct api_fields f = {r->body, "", e};
    const json_t *prompt = json_object_get(r->body, "prompt");
    bool special = false, add_special = true;
    if (!api_bool(&f, "parse_special", &special) ||
        !api_bool(&f, "add_special_tokens", &add_special))
        return false;
    const json_t *first = json_array_get(prompt, 0);
    r->several = json_is_string(first) || json_is_array(first);
    if (!json_is_string(prompt) && !first)
        return bad_prompt(prompt, "prompt", e);
    if (!json_is_string(prompt) && !r->several && !json_is_integer(first))
        return bad_prompt(prompt, "prompt", e);
    size_t n = r->several ? json_array_size(prompt) : 1;
    if (n > API_MAX_PROMPTS)
        return api_fail(e, 400, "prompt", "prompt: %zu prompts are not allowed, at most %d", n,
                        API_MAX_PROMPTS);
    r->prompt_ends = calloc(n, sizeof *r->prompt_ends);
    WEIR_ASSERT(r->prompt_ends);
    if (!r->several)
        return add_prompt(r, prompt, "prompt", l, special, e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(prompt, i);
        struct api_path path = api_path("prompt.%zu", i);
        if (json_typeof(v) != json_typeof(first)) {
            struct api_shown shown = api_show(v);
            return api_fail(e, 400, path.text,
                            "%s: %s is not allowed, all prompts must be of one kind (strings or "
                            "arrays of token ids)",
                            path.text, shown.text);
        }
        if (!add_prompt(r, v, path.text, l, special, e))
            return false;
    }
    return true;
}

static bool parse_logprobs(struct completion_request *r, struct api_error *e) {
    struct api_fields f = {r->body, "", e};
    int64_t k = -1;
    if (!api_int(&f, "logprobs", 0, WEIR_MAX_LOGPROBS, &k, NULL))
        return false;
    r->logprobs = (int32_t)k;
    weir_params *p = &r->sampling.params;
    p->logprobs = r->logprobs;
    /* An echoed prompt brings its own values; both lists share the larger k. */
    if (r->echo && r->logprobs > p->prompt_logprobs)
        p->prompt_logprobs = r->logprobs;
    return true;
}

static bool parse_limits(struct completion_request *r, struct api_error *e) {
    static const char *const fields[] = {"max_tokens", NULL};
    struct api_sampling *s = &r->sampling;
    if (!api_max_tokens_parse(r->body, fields, 0, s, e))
        return false;
    if (!s->max_tokens_given) {
        s->max_tokens = 16;
        if (s->params.min_tokens > s->max_tokens)
            return api_fail(e, 400, "min_tokens",
                            "min_tokens: %" PRIu32
                            " is not allowed, it must be at most max_tokens (default 16)",
                            s->params.min_tokens);
    }
    if (s->max_tokens > 0)
        return true;
    if (!r->echo)
        return api_fail(e, 400, "max_tokens", "max_tokens: 0 is allowed only together with echo");
    /* The engine always draws one token; it is not shown. */
    r->no_output = true;
    s->max_tokens = 1;
    return true;
}

bool completion_request_parse(const char *body, size_t bytes, const struct api_limits *limits,
                              struct completion_request *out, struct api_error *e) {
    out->body = json_read_object(body, bytes, NULL, e);
    if (!out->body)
        return false;
    struct api_fields f = {out->body, "", e};
    if (!api_string(&f, "model", &out->model, NULL) || !api_bool(&f, "echo", &out->echo) ||
        !api_refused(&f, "suffix", NULL, 400, "this server does not fill in the middle") ||
        !api_sampling_parse(out->body, limits, &out->sampling, e) || !parse_limits(out, e) ||
        !parse_logprobs(out, e) || !api_no_structured_outputs(out->body, e) ||
        !parse_prompts(out, limits, e))
        return false;
    if (out->n_prompts * out->sampling.n > API_MAX_PROMPTS)
        return api_fail(
            e, 400, "n", "n: %" PRIu32 " %s of %zu %s are not allowed, at most %d together",
            out->sampling.n, plural(out->sampling.n, "choice", "choices"), out->n_prompts,
            plural(out->n_prompts, "prompt", "prompts"), API_MAX_PROMPTS);
    struct api_prompts_size size = {
        .prompts = out->n_prompts, .tokens = out->prompt_ids.n, .echo = out->echo};
    return api_size_check(&out->sampling, size, limits, e);
}

const int32_t *completion_prompt(const struct completion_request *r, size_t i, size_t *n) {
    size_t from = i ? r->prompt_ends[i - 1] : 0;
    *n = r->prompt_ends[i] - from;
    return r->prompt_ids.data + from;
}

void completion_request_drop_body(struct completion_request *r) {
    api_sampling_own(&r->sampling, &r->model);
    json_decref(r->body);
    r->body = NULL;
}

void completion_request_free(struct completion_request *r) {
    api_sampling_free(&r->sampling);
    ids_free(&r->prompt_ids);
    free(r->prompt_ends);
    json_decref(r->body);
    r->body = NULL;
}
