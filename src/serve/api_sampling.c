/* api_sampling.c: parses the fields that chat and text completions share.
 * Called by chat_request.c and completion_request.c. Invariant that bites: every limit is checked
 * before anything of the request's own size is allocated, and every id against the vocabulary. */
#include "serve/api_sampling.h"

#include "base/file.h"
#include "base/plural.h"
#include "serve/json_read.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

bool api_salt_valid(const char *salt, size_t bytes) {
    size_t chars = 0;
    for (size_t i = 0; i < bytes; i++) {
        chars += ((unsigned char)salt[i] & 0xC0) != 0x80;
        if (salt[i] == 0 || salt[i] == '@' || salt[i] == '/' || salt[i] == '\\')
            return false;
    }
    return chars >= 1 && chars <= 128;
}

static bool parse_numbers(const struct api_fields *f, const struct api_limits *l, weir_params *p) {
    double temperature = l->temperature, top_p = l->top_p, min_p = 0, frequency = 0, presence = 0,
           repetition = 1;
    int64_t top_k = l->top_k;
    if (!api_number(f, "temperature", 0, false, 2, &temperature, NULL) ||
        !api_number(f, "top_p", 0, true, 1, &top_p, NULL) ||
        !api_number(f, "min_p", 0, false, 1, &min_p, NULL) ||
        !api_number(f, "frequency_penalty", -2, false, 2, &frequency, NULL) ||
        !api_number(f, "presence_penalty", -2, false, 2, &presence, NULL) ||
        !api_number(f, "repetition_penalty", 0, true, FLT_MAX, &repetition, NULL) ||
        !api_int(f, "top_k", -1, (int64_t)l->vocab, &top_k, NULL))
        return false;
    p->temperature = (float)temperature;
    /* A value that is positive as a double stays so as a float. */
    p->top_p = fmaxf((float)top_p, FLT_MIN);
    p->min_p = (float)min_p;
    p->frequency_penalty = (float)frequency;
    p->presence_penalty = (float)presence;
    p->repetition_penalty = fmaxf((float)repetition, FLT_MIN);
    p->top_k = (int32_t)top_k;
    return true;
}

static bool parse_counts(const struct api_fields *f, const struct api_limits *l,
                         struct api_sampling *out) {
    int64_t n = 1, seed = 0, priority = 0, min_tokens = 0, interval = 1;
    bool seed_given = false;
    if (!api_int(f, "n", 1, l->max_n, &n, NULL) ||
        !api_int(f, "seed", INT64_MIN, INT64_MAX, &seed, &seed_given) ||
        !api_int(f, "priority", INT64_MIN, INT64_MAX, &priority, NULL) ||
        !api_int(f, "min_tokens", 0, UINT32_MAX, &min_tokens, NULL) ||
        !api_int(f, "stream_interval", 1, UINT32_MAX, &interval, NULL) ||
        !api_number(f, "timeout", 0, true, 1e9, &out->timeout, NULL))
        return false;
    if (priority != 0 && !l->priority_policy)
        return api_fail(f->error, 400, "priority",
                        "priority: %" PRId64
                        " is not allowed, this server runs requests in order of arrival (policy "
                        "fcfs), so it must be 0",
                        priority);
    out->n = (uint32_t)n;
    out->params.has_seed = seed_given;
    out->params.seed = (uint64_t)seed;
    out->params.priority = priority;
    out->params.min_tokens = (uint32_t)min_tokens;
    out->stream_interval = (uint32_t)interval;
    return true;
}

static bool one_stop(const json_t *v, const char *path, struct api_sampling *out,
                     struct api_error *e) {
    size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n > API_MAX_STOP_BYTES) {
        struct api_shown shown = api_show(v);
        return api_fail(e, 400, path,
                        "%s: %s is not allowed, a stop string must be a string of 1 to %d bytes",
                        path, shown.text, API_MAX_STOP_BYTES);
    }
    out->stops[out->n_stops] = json_string_value(v);
    out->stop_bytes[out->n_stops++] = n;
    return true;
}

static bool parse_stops(const struct api_fields *f, struct api_sampling *out) {
    const json_t *v = api_get(f, "stop");
    if (!v)
        return true;
    if (!json_is_array(v)) {
        if (!json_is_string(v)) {
            struct api_shown shown = api_show(v);
            return api_fail(f->error, 400, "stop",
                            "stop: %s is not allowed, it must be a string or an array of strings",
                            shown.text);
        }
        return one_stop(v, "stop", out, f->error);
    }
    if (json_array_size(v) > API_MAX_STOPS)
        return api_fail(f->error, 400, "stop", "stop: %zu strings are not allowed, at most %d",
                        json_array_size(v), API_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct api_path path = api_path("stop.%zu", i);
        if (!one_stop(json_array_get(v, i), path.text, out, f->error))
            return false;
    }
    return true;
}

/* A decimal id without sign, blank or leading zero; -1 for anything else. */
static int64_t decimal_id(const char *s) {
    int64_t id = 0;
    if (!s[0] || (s[0] == '0' && s[1]))
        return -1;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || id > INT32_MAX)
            return -1;
        id = id * 10 + (*s - '0');
    }
    return id;
}

static bool parse_bias(const struct api_fields *f, const struct api_limits *l,
                       struct api_sampling *out) {
    const json_t *v = api_get(f, "logit_bias");
    if (!v)
        return true;
    if (!json_is_object(v)) {
        struct api_shown shown = api_show(v);
        return api_fail(f->error, 400, "logit_bias",
                        "logit_bias: %s is not allowed, it must be an object of token id to number",
                        shown.text);
    }
    size_t n = json_object_size(v);
    if (n > API_MAX_BIAS)
        return api_fail(f->error, 400, "logit_bias",
                        "logit_bias: %zu entries are not allowed, at most %d", n, API_MAX_BIAS);
    if (n == 0)
        return true;
    out->bias = calloc(n, sizeof *out->bias);
    WEIR_ASSERT(out->bias);
    const char *key;
    json_t *item;
    size_t used = 0;
    json_object_foreach(jsontext_loose(v), key, item) {
        int64_t id = decimal_id(key);
        if (id < 0 || id >= (int64_t)l->vocab) {
            struct api_shown shown = api_show_text(key, strlen(key));
            return api_fail(f->error, 400, "logit_bias",
                            "logit_bias: key %s is no token id, it must be a decimal from 0 to "
                            "%" PRIu32 " (vocabulary size %" PRIu32 ")",
                            shown.text, l->vocab - 1, l->vocab);
        }
        if (!json_is_number(item) || fabs(json_number_value(item)) >= DBL_MAX) {
            struct api_shown shown = api_show(item);
            return api_fail(f->error, 400, "logit_bias",
                            "logit_bias: %s for id %s is not allowed, it must be a finite number",
                            shown.text, key);
        }
        double value = json_number_value(item);
        out->bias[used++] = (weir_bias){(int32_t)id, (float)(value < -100  ? -100
                                                             : value > 100 ? 100
                                                                           : value)};
    }
    out->params.bias = out->bias;
    out->params.n_bias = used;
    return true;
}

/* The phrase as it would be spelled at the start of a text and behind a space. Long phrases are
 * bounded by bytes, so that one request cannot make the sampler compare for ever. */
static bool parse_bad_words(const struct api_fields *f, const struct api_limits *l,
                            struct api_sampling *out) {
    const json_t *v = api_get(f, "bad_words");
    if (!v)
        return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 0;
    if (!json_is_array(v) || n > API_MAX_BAD_WORDS) {
        struct api_shown shown = api_show(v);
        return api_fail(f->error, 400, "bad_words",
                        "bad_words: %s is not allowed, it must be an array of at most %d strings",
                        shown.text, API_MAX_BAD_WORDS);
    }
    if (n == 0)
        return true;
    size_t *ends = calloc(2 * n, sizeof *ends);
    out->bad_words = calloc(2 * n, sizeof *out->bad_words);
    out->bad_word_lengths = calloc(2 * n, sizeof *out->bad_word_lengths);
    WEIR_ASSERT(ends && out->bad_words && out->bad_word_lengths);
    struct text spaced = {0};
    size_t used = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *word = json_array_get(v, i);
        size_t bytes = json_is_string(word) ? json_string_length(word) : 0;
        if (bytes == 0 || bytes > 16384) {
            struct api_path path = api_path("bad_words.%zu", i);
            struct api_shown shown = api_show(word);
            ok = api_fail(f->error, 400, path.text,
                          "%s: %s is not allowed, a bad word must be a string of 1 to 16384 bytes",
                          path.text, shown.text);
            break;
        }
        text_clear(&spaced);
        text_puts(&spaced, " ");
        text_append(&spaced, json_string_value(word), bytes);
        tokenizer_encode(l->tokenizer, spaced.data + 1, bytes, &out->bad_ids);
        ends[used++] = out->bad_ids.n;
        tokenizer_encode(l->tokenizer, spaced.data, bytes + 1, &out->bad_ids);
        ends[used++] = out->bad_ids.n;
    }
    for (size_t i = 0; i < used; i++) {
        size_t from = i ? ends[i - 1] : 0;
        out->bad_words[i] = out->bad_ids.data + from;
        out->bad_word_lengths[i] = ends[i] - from;
    }
    out->params.bad_words = out->bad_words;
    out->params.bad_word_lengths = out->bad_word_lengths;
    out->params.n_bad_words = used;
    text_free(&spaced);
    free(ends);
    return ok;
}

void api_sampling_add_stops(struct api_sampling *s, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        ids_push(&s->stop_ids, ids[i]);
    s->params.stop_ids = s->stop_ids.data;
    s->params.n_stop_ids = s->stop_ids.n;
}

static bool parse_id_lists(const struct api_fields *f, const struct api_limits *l,
                           struct api_sampling *out) {
    if (!api_ids(f, "stop_token_ids", l->vocab, API_MAX_STOP_IDS, &out->stop_ids) ||
        !api_ids(f, "allowed_token_ids", l->vocab, l->vocab, &out->allowed_ids))
        return false;
    if (api_get(f, "allowed_token_ids") && out->allowed_ids.n == 0)
        return api_fail(f->error, 400, "allowed_token_ids",
                        "allowed_token_ids: [] is not allowed, it must hold at least one id");
    out->n_client_stop_ids = out->stop_ids.n;
    api_sampling_add_stops(out, NULL, 0);
    out->params.allowed_ids = out->allowed_ids.data;
    out->params.n_allowed_ids = out->allowed_ids.n;
    return true;
}

static bool parse_output_options(const struct api_fields *f, struct api_sampling *out) {
    out->skip_special = true;
    bool spaces = true;
    const char *id = NULL;
    if (!api_bool(f, "stream", &out->stream) ||
        !api_bool(f, "include_stop_str_in_output", &out->include_stop) ||
        !api_bool(f, "ignore_eos", &out->params.ignore_eos) ||
        !api_bool(f, "skip_special_tokens", &out->skip_special) ||
        !api_bool(f, "spaces_between_special_tokens", &spaces) ||
        !api_bool(f, "return_token_ids", &out->return_token_ids) ||
        !api_bool(f, "return_tokens_as_token_ids", &out->tokens_as_ids) ||
        !api_string(f, "request_id", &id, NULL))
        return false;
    if (id) {
        size_t n = strlen(id);
        bool printable = n >= 1 && n <= 128;
        for (size_t i = 0; i < n && printable; i++)
            printable = id[i] > 0x20 && id[i] < 0x7F;
        if (!printable) {
            struct api_shown shown = api_show_text(id, n);
            return api_fail(f->error, 400, "request_id",
                            "request_id: %s is not allowed, it must be 1 to 128 printable ASCII "
                            "characters",
                            shown.text);
        }
        out->request_id = id;
    }
    const json_t *options = NULL;
    if (!api_object(f, "stream_options", &options))
        return false;
    if (!options)
        return true;
    if (!out->stream)
        return api_fail(f->error, 400, "stream_options",
                        "stream_options: allowed only when stream is true");
    struct api_fields o = {options, "stream_options", f->error};
    return api_bool(&o, "include_usage", &out->include_usage) &&
           api_bool(&o, "continuous_usage_stats", &out->continuous_usage);
}

static bool parse_prompt_logprobs(const struct api_fields *f, struct api_sampling *out) {
    int64_t k = -1;
    bool given = false;
    if (!api_int(f, "prompt_logprobs", 0, WEIR_MAX_LOGPROBS, &k, &given))
        return false;
    if (given && out->stream)
        return api_fail(f->error, 400, "prompt_logprobs",
                        "prompt_logprobs: %" PRId64 " is not allowed together with stream", k);
    out->params.prompt_logprobs = (int32_t)k;
    return true;
}

bool api_salt_parse(const json_t *body, struct api_sampling *out, struct api_error *e) {
    const struct api_fields f = {body, "", e};
    const char *salt = NULL;
    size_t bytes = 0;
    if (!api_string(&f, "cache_salt", &salt, &bytes))
        return false;
    /* The salt is a secret of the tenant: not even a refusal repeats it. */
    if (salt && !api_salt_valid(salt, bytes))
        return api_fail(e, 400, "cache_salt",
                        "cache_salt: must be 1 to 128 characters without '@', '/', '\\' and NUL");
    out->params.cache_salt = salt;
    return true;
}

static bool parse_script(const struct api_fields *f, const struct api_limits *l,
                         struct api_sampling *out) {
    static const char *const names[] = {"weir_output_ids", "weir_step_sizes"};
    for (size_t i = 0; i < 2; i++) {
        if (api_get(f, names[i]) && !l->null_column)
            return api_fail(f->error, 400, names[i], "%s: allowed only under --compute null",
                            names[i]);
    }
    if (!api_ids(f, "weir_output_ids", l->vocab, l->max_model_len, &out->scripted_ids))
        return false;
    out->params.scripted_ids = out->scripted_ids.data;
    out->params.n_scripted_ids = out->scripted_ids.n;
    const json_t *sizes = api_get(f, "weir_step_sizes");
    if (!sizes)
        return true;
    size_t n = json_array_size(sizes);
    bool ok = json_is_array(sizes) && n <= l->max_model_len;
    out->steps = ok && n ? calloc(n, sizeof *out->steps) : NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *v = json_array_get(sizes, i);
        ok = json_is_integer(v) && json_integer_value(v) >= 1 &&
             json_integer_value(v) <= (json_int_t)l->max_model_len;
        if (ok)
            out->steps[i] = (uint32_t)json_integer_value(v);
    }
    if (!ok) {
        struct api_shown shown = api_show(sizes);
        return api_fail(f->error, 400, "weir_step_sizes",
                        "weir_step_sizes: %s is not allowed, it must be an array of integers of at "
                        "least 1",
                        shown.text);
    }
    out->params.scripted_steps = out->steps;
    out->params.n_scripted_steps = n;
    return true;
}

static bool refuse_unsupported(const struct api_fields *f, uint32_t n) {
    static const char gone[] = "this server does not have it";
    json_t *one = json_integer(1), *same = json_integer(n), *none = json_array(),
           *unlimited = json_integer(-1);
    bool best_is_n = json_equal(json_object_get(f->object, "best_of"), same);
    bool ok =
        api_refused(f, "best_of", best_is_n ? same : one, 400, gone) &&
        api_refused(f, "use_beam_search", json_false(), 400, gone) &&
        api_refused(f, "length_penalty", one, 400, "it belongs to beam search") &&
        api_refused(f, "early_stopping", json_false(), 400, "it belongs to beam search") &&
        api_refused(f, "logits_processors", none, 400, "no client code runs here") &&
        api_refused(f, "logprob_token_ids", none, 501, "this build does not offer it") &&
        api_refused(f, "truncate_prompt_tokens", NULL, 501, "this build does not offer it") &&
        api_refused(f, "thinking_token_budget", unlimited, 501, "this build does not offer it");
    json_decref(one);
    json_decref(same);
    json_decref(none);
    json_decref(unlimited);
    return ok;
}

bool api_sampling_parse(const json_t *body, const struct api_limits *limits,
                        struct api_sampling *out, struct api_error *e) {
    struct api_fields f = {body, "", e};
    out->params = weir_params_default();
    out->params.logprobs = -1;
    out->params.prompt_logprobs = -1;
    return parse_counts(&f, limits, out) && parse_numbers(&f, limits, &out->params) &&
           parse_stops(&f, out) && parse_bias(&f, limits, out) && parse_id_lists(&f, limits, out) &&
           parse_bad_words(&f, limits, out) && parse_output_options(&f, out) &&
           parse_prompt_logprobs(&f, out) && api_salt_parse(body, out, e) &&
           parse_script(&f, limits, out) && refuse_unsupported(&f, out->n);
}

bool api_max_tokens_parse(const json_t *body, const char *const *fields, int64_t low,
                          struct api_sampling *out, struct api_error *e) {
    struct api_fields f = {body, "", e};
    for (; *fields; fields++) {
        int64_t value = 0;
        bool given = false;
        if (!api_int(&f, *fields, low, UINT32_MAX, &value, &given))
            return false;
        if (!given || out->max_tokens_given)
            continue;
        out->max_tokens_given = true;
        out->max_tokens_field = *fields;
        out->max_tokens = (uint32_t)value;
    }
    if (out->max_tokens_given && out->params.min_tokens > out->max_tokens)
        return api_fail(e, 400, "min_tokens",
                        "min_tokens: %" PRIu32 " is not allowed, it must be at most %s (%" PRIu32
                        ")",
                        out->params.min_tokens, out->max_tokens_field, out->max_tokens);
    return true;
}

bool api_length_check(struct api_sampling *s, size_t prompt_tokens, const char *prompt_field,
                      const struct api_limits *limits, struct api_error *e) {
    uint32_t most = limits->max_model_len;
    if (prompt_tokens >= most)
        return s->max_tokens_given
                   ? api_fail(e, 400, prompt_field,
                              "%s: the context holds %" PRIu32
                              " tokens and the prompt alone has %zu (requested output tokens: "
                              "%" PRIu32 ")",
                              prompt_field, most, prompt_tokens, s->max_tokens)
                   : api_fail(e, 400, prompt_field,
                              "%s: the context holds %" PRIu32
                              " tokens and the prompt alone has %zu",
                              prompt_field, most, prompt_tokens);
    uint32_t room = most - (uint32_t)prompt_tokens;
    if (s->max_tokens_given && s->max_tokens > room)
        return api_fail(e, 400, s->max_tokens_field,
                        "%s: the context holds %" PRIu32
                        " tokens, but the prompt has %zu and %" PRIu32 " output tokens are "
                        "requested",
                        s->max_tokens_field, most, prompt_tokens, s->max_tokens);
    if (s->params.min_tokens > room)
        return api_fail(e, 400, "min_tokens",
                        "min_tokens: %" PRIu32 " is not allowed, the context has room for %" PRIu32
                        " output %s",
                        s->params.min_tokens, room, plural(room, "token", "tokens"));
    /* A default is cut to what fits, a wish is not. */
    if (!s->max_tokens_given && (s->max_tokens == 0 || s->max_tokens > room))
        s->max_tokens = room;
    s->params.max_tokens = s->max_tokens;
    return true;
}

bool api_size_check(const struct api_sampling *s, struct api_prompts_size size,
                    const struct api_limits *limits, struct api_error *e) {
    const weir_params *p = &s->params;
    const char *prompt = size.chat ? "messages" : "prompt";
    const char *many = s->n > 1 ? "n" : prompt;
    uint64_t choices = size.prompts * s->n, submitted = size.tokens * s->n, values = 0;
    uint32_t share = limits->max_queue / 2 + limits->max_queue % 2;
    if (limits->max_queue && choices > share)
        return api_fail(e, 400, many,
                        "%s: %" PRIu64 " choices of one request are not allowed, at most %" PRIu32
                        ", half of this server's queue",
                        many, choices, share);
    if (submitted > API_MAX_SUBMITTED_IDS)
        return api_fail(e, 400, many,
                        "%s: %" PRIu64 " prompt tokens (%" PRIu64 " in the prompts, n %" PRIu32
                        ") are not allowed, at most %d in one request",
                        many, submitted, size.tokens, s->n, API_MAX_SUBMITTED_IDS);
    if (size.echo)
        values += submitted * (p->logprobs >= 0 ? (uint64_t)p->logprobs + 1 : 1);
    if (s->return_token_ids)
        values += size.chat ? size.tokens : submitted;
    if (p->prompt_logprobs >= 0 && !s->stream)
        values += size.tokens * ((uint64_t)p->prompt_logprobs + 1);
    if (values > API_MAX_PROMPT_VALUES)
        return api_fail(e, 400, prompt,
                        "%s: the answer would repeat %" PRIu64
                        " ids and log probabilities of %" PRIu64 " prompt tokens (n %" PRIu32
                        "), at most %d are allowed",
                        prompt, values, size.tokens, s->n, API_MAX_PROMPT_VALUES);
    return true;
}

static const char *copy_to(char **at, const char *s, size_t n) {
    char *copy = memcpy(*at, s, n);
    copy[n] = 0;
    *at += n + 1;
    return copy;
}

void api_sampling_own(struct api_sampling *s, const char **model) {
    const char **strings[] = {model, &s->request_id, &s->params.cache_salt};
    size_t bytes = 1;
    for (size_t i = 0; i < 3; i++)
        bytes += *strings[i] ? strlen(*strings[i]) + 1 : 0;
    for (size_t i = 0; i < s->n_stops; i++)
        bytes += s->stop_bytes[i] + 1;
    s->own = malloc(bytes);
    WEIR_ASSERT(s->own);
    char *at = s->own;
    for (size_t i = 0; i < 3; i++)
        if (*strings[i])
            *strings[i] = copy_to(&at, *strings[i], strlen(*strings[i]));
    for (size_t i = 0; i < s->n_stops; i++)
        s->stops[i] = copy_to(&at, s->stops[i], s->stop_bytes[i]);
}

void api_sampling_free(struct api_sampling *s) {
    free(s->own);
    ids_free(&s->stop_ids);
    ids_free(&s->allowed_ids);
    ids_free(&s->scripted_ids);
    ids_free(&s->bad_ids);
    free(s->bias);
    free(s->bad_words);
    free(s->bad_word_lengths);
    free(s->steps);
}

weir_status api_read_generation_config(const char *dir, struct api_limits *limits,
                                       weir_error *err) {
    limits->temperature = 1;
    limits->top_p = 1;
    limits->top_k = 0;
    char *path = file_join(dir, "generation_config.json");
    if (!path)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "out of memory");
    if (access(path, F_OK) != 0) {
        free(path);
        return WEIR_OK;
    }
    char *text = NULL;
    size_t bytes = 0;
    weir_status st = file_read(path, 1 << 20, &text, &bytes, err);
    if (st == WEIR_OK) {
        struct api_error e = {0};
        json_t *config = json_read_object(text, bytes, NULL, &e);
        struct api_fields f = {config, "", &e};
        int64_t top_k = 0;
        bool ok = config &&
                  api_number(&f, "temperature", 0, false, 2, &limits->temperature, NULL) &&
                  api_number(&f, "top_p", 0, true, 1, &limits->top_p, NULL) &&
                  api_int(&f, "top_k", -1, limits->vocab, &top_k, NULL);
        limits->top_k = (int32_t)top_k;
        if (!ok)
            st = weir_fail(err, WEIR_BAD_FILE, path, "%s", e.message);
        json_decref(config);
    }
    free(text);
    free(path);
    return st;
}
