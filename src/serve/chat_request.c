/* chat_request.c: checks a chat request whole, before anything is rendered or scheduled.
 * Called by the chat handlers. Invariant that bites: the renderer relies on what is checked here
 * (roles, types of content and calls), so no message reaches it in another shape. */
#include "serve/chat_request.h"

#include "serve/chat_tools.h"
#include "serve/json_read.h"

#include <string.h>

static bool in_list(const char *s, const char *const *list) {
    for (; *list; list++)
        if (strcmp(s, *list) == 0)
            return true;
    return false;
}

static bool check_part(const json_t *part, const char *path, struct api_error *e) {
    const json_t *type = json_object_get(part, "type");
    const char *t = json_string_value(type);
    struct api_path type_path = api_path("%s.type", path);
    if (!json_is_object(part) || !t) {
        struct api_shown shown = api_show(part);
        return api_fail(e, 400, path, "%s: %s is not allowed, a part must be an object with a type",
                        path, shown.text);
    }
    const char *key = strcmp(t, "text") == 0      ? "text"
                      : strcmp(t, "refusal") == 0 ? "refusal"
                                                  : NULL;
    if (!key) {
        struct api_shown shown = api_show(type);
        return api_fail(e, 400, type_path.text,
                        "%s: %s is not supported, this server reads parts of type \"text\" only",
                        type_path.text, shown.text);
    }
    if (!json_is_string(json_object_get(part, key))) {
        struct api_path at = api_path("%s.%s", path, key);
        const json_t *v = json_object_get(part, key);
        struct api_found found = api_found(v);
        return api_fail(e, 400, at.text, "%s: %s, it must be a string", at.text, found.text);
    }
    return true;
}

/* A refusal part counts as text: the renderer knows text parts only. */
static void refusal_to_text(json_t *part) {
    json_t *refusal = json_object_get(part, "refusal");
    if (strcmp(json_string_value(json_object_get(part, "type")), "refusal") == 0) {
        json_object_set_nocheck(part, "text", refusal);
        json_object_set_new_nocheck(part, "type", json_string("text"));
    }
}

static bool check_content(json_t *message, const char *path, bool may_be_null,
                          struct api_error *e) {
    const json_t *content = json_object_get(message, "content");
    struct api_path at = api_path("%s.content", path);
    if (json_is_string(content))
        return true;
    if (!content || json_is_null(content)) {
        if (may_be_null)
            return true;
        return api_fail(e, 400, at.text, "%s: %s, it must be a string or an array of parts",
                        at.text, api_found(content).text);
    }
    if (!json_is_array(content) || json_array_size(content) == 0) {
        struct api_shown shown = api_show(content);
        return api_fail(e, 400, at.text,
                        "%s: %s is not allowed, it must be a string or a non-empty array of parts",
                        at.text, shown.text);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        struct api_path below = api_path("%s.%zu", at.text, i);
        if (!check_part(json_array_get(content, i), below.text, e))
            return false;
        refusal_to_text(json_array_get(content, i));
    }
    return true;
}

static bool check_call(const json_t *call, const char *path, struct api_error *e) {
    if (!json_is_object(call)) {
        struct api_shown shown = api_show(call);
        return api_fail(e, 400, path, "%s: %s is not allowed, a tool call must be an object", path,
                        shown.text);
    }
    struct api_fields f = {call, path, e};
    const char *id = NULL, *type = NULL, *name = NULL, *arguments = NULL;
    const json_t *function = NULL;
    size_t bytes = 0;
    if (!api_string(&f, "id", &id, NULL) || !api_string(&f, "type", &type, NULL) ||
        !api_object(&f, "function", &function))
        return false;
    if (type && strcmp(type, "function") != 0) {
        struct api_path at = api_field_path(&f, "type");
        struct api_shown shown = api_show_text(type, strlen(type));
        return api_fail(e, 400, at.text, "%s: %s is not supported, only \"function\"", at.text,
                        shown.text);
    }
    struct api_path fn_path = api_field_path(&f, "function");
    if (!function)
        return api_fail(e, 400, fn_path.text, "%s: an object is required", fn_path.text);
    struct api_fields in = {function, fn_path.text, e};
    if (!api_string(&in, "name", &name, NULL) || !api_string(&in, "arguments", &arguments, &bytes))
        return false;
    struct api_path missing = api_field_path(&in, name ? "arguments" : "name");
    if (!name || !arguments)
        return api_fail(e, 400, missing.text, "%s: a string is required", missing.text);
    if (!name[0])
        return api_fail(e, 400, api_field_path(&in, "name").text,
                        "%s.name: \"\" is not allowed, it must not be empty", fn_path.text);
    return true;
}

static bool check_assistant(json_t *message, const char *path, struct api_error *e) {
    struct api_fields f = {message, path, e};
    const char *thought = NULL, *alias = NULL;
    size_t bytes = 0;
    if (!api_string(&f, "reasoning_content", &thought, &bytes) ||
        !api_string(&f, "reasoning", &alias, &bytes))
        return false;
    if (!thought && alias)
        json_object_set_nocheck(message, "reasoning_content",
                                json_object_get(message, "reasoning"));
    if (thought || alias)
        json_object_del(message, "reasoning");
    const json_t *calls = api_get(&f, "tool_calls");
    if (calls && !json_is_array(calls)) {
        struct api_path at = api_field_path(&f, "tool_calls");
        struct api_shown shown = api_show(calls);
        return api_fail(e, 400, at.text, "%s: %s is not allowed, it must be an array of calls",
                        at.text, shown.text);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        struct api_path below = api_path("%s.tool_calls.%zu", path, i);
        if (!check_call(json_array_get(calls, i), below.text, e))
            return false;
    }
    bool refusal = json_is_string(json_object_get(message, "refusal"));
    bool may_be_null = json_array_size(calls) > 0 || thought || alias || refusal;
    return check_content(message, path, may_be_null, e);
}

static bool check_message(json_t *message, size_t i, enum chat_request_use use,
                          struct api_error *e) {
    struct api_path at = api_path("messages.%zu", i);
    if (!json_is_object(message)) {
        struct api_shown shown = api_show(message);
        return api_fail(e, 400, at.text, "%s: %s is not allowed, a message must be an object",
                        at.text, shown.text);
    }
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    struct api_fields f = {message, at.text, e};
    const char *role = NULL, *name = NULL, *call_id = NULL;
    if (!api_string(&f, "role", &role, NULL) || !api_string(&f, "name", &name, NULL))
        return false;
    if (!role || !in_list(role, roles)) {
        struct api_path where = api_field_path(&f, "role");
        struct api_found found = api_found(json_object_get(message, "role"));
        return api_fail(e, 400, where.text,
                        "%s: %s, it must be system, developer, user, assistant or tool", where.text,
                        found.text);
    }
    if (strcmp(role, "assistant") == 0)
        return check_assistant(message, at.text, e);
    if (strcmp(role, "developer") == 0) {
        json_object_set_new_nocheck(message, "role", json_string("system"));
        role = "system";
    }
    if (strcmp(role, "tool") == 0) {
        if (!api_string(&f, "tool_call_id", &call_id, NULL))
            return false;
        struct api_path where = api_field_path(&f, "tool_call_id");
        if (!call_id)
            return api_fail(e, 400, where.text, "%s: a string is required", where.text);
    }
    bool late_tools = strcmp(role, "system") == 0 && api_get(&f, "tools");
    struct api_path tools_path = api_field_path(&f, "tools");
    if (late_tools &&
        !chat_tools_check(api_get(&f, "tools"), tools_path.text, use == CHAT_FOR_GENERATION, e))
        return false;
    return check_content(message, at.text, late_tools, e);
}

static bool check_messages(struct chat_request *r, enum chat_request_use use, struct api_error *e) {
    json_t *messages = json_object_get(r->body, "messages");
    size_t n = json_is_array(messages) ? json_array_size(messages) : 0;
    if (n < 1 || n > API_MAX_MESSAGES) {
        struct api_found found = api_found(messages);
        return api_fail(e, 400, "messages", "messages: %s, it must be an array of 1 to %d messages",
                        found.text, API_MAX_MESSAGES);
    }
    r->messages = messages;
    for (size_t i = 0; i < n; i++)
        if (!check_message(json_array_get(messages, i), i, use, e))
            return false;
    return true;
}

/* The nearest level that the model knows. */
static const char *nearest_effort(const char *effort) {
    if (strcmp(effort, "minimal") == 0)
        return "low";
    if (strcmp(effort, "xhigh") == 0)
        return "max";
    return effort;
}

static bool parse_thinking(struct chat_request *r, bool can_think, struct api_error *e) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max", NULL};
    struct api_fields f = {r->body, "", e};
    const char *effort = NULL;
    const json_t *kwargs = NULL;
    if (!api_string(&f, "reasoning_effort", &effort, NULL) ||
        !api_object(&f, "chat_template_kwargs", &kwargs))
        return false;
    if (effort && !in_list(effort, efforts)) {
        struct api_shown shown = api_show_text(effort, strlen(effort));
        return api_fail(e, 400, "reasoning_effort",
                        "reasoning_effort: %s is not allowed, it must be none, minimal, low, "
                        "medium, high, xhigh or max",
                        shown.text);
    }
    bool thinking = !effort || strcmp(effort, "none") != 0;
    struct api_fields k = {kwargs, "chat_template_kwargs", e};
    if (!api_bool(&k, "enable_thinking", &thinking) || !api_bool(&k, "thinking", &thinking))
        return false;
    r->options.thinking = can_think && thinking;
    if (effort && strcmp(effort, "none") != 0)
        r->options.effort = nearest_effort(effort);
    return true;
}

static bool parse_prompt_end(struct chat_request *r, enum chat_request_use use,
                             struct api_error *e) {
    struct api_fields f = {r->body, "", e};
    bool generation = true;
    if (!api_bool(&f, "add_generation_prompt", &generation) ||
        !api_refused(&f, "continue_final_message", json_false(), 400,
                     "the model's format defines no started answer") ||
        !api_refused(&f, "chat_template", NULL, 400, "no template language runs in this server"))
        return false;
    if (!generation && use == CHAT_FOR_GENERATION)
        return api_fail(e, 400, "add_generation_prompt",
                        "add_generation_prompt: false is not allowed, an answer needs its opening");
    r->options.add_generation_prompt = generation;
    return true;
}

static bool parse_logprobs(struct chat_request *r, struct api_error *e) {
    struct api_fields f = {r->body, "", e};
    int64_t top = 0;
    if (!api_bool(&f, "logprobs", &r->logprobs) ||
        !api_int(&f, "top_logprobs", 0, WEIR_MAX_LOGPROBS, &top, NULL))
        return false;
    if (top > 0 && !r->logprobs)
        return api_fail(e, 400, "top_logprobs",
                        "top_logprobs: %" PRId64 " is not allowed unless logprobs is true", top);
    r->sampling.params.logprobs = r->logprobs ? (int32_t)top : -1;
    return true;
}

static bool parse_generation(struct chat_request *r, const struct api_limits *limits,
                             struct api_error *e) {
    static const char *const max_tokens[] = {"max_completion_tokens", "max_tokens", NULL};
    struct api_fields f = {r->body, "", e};
    bool parallel = true;
    r->include_reasoning = true;
    if (!api_sampling_parse(r->body, limits, &r->sampling, e) ||
        !api_max_tokens_parse(r->body, max_tokens, 1, &r->sampling, e) || !parse_logprobs(r, e) ||
        !api_bool(&f, "include_reasoning", &r->include_reasoning) ||
        !api_bool(&f, "parallel_tool_calls", &parallel) ||
        !api_refused(&f, "echo", json_false(), 400, "it belongs to text completions") ||
        !api_refused(&f, "suffix", NULL, 400, "it belongs to text completions"))
        return false;
    r->one_call = !parallel;
    return true;
}

bool chat_request_parse(const char *body, size_t bytes, enum chat_request_use use,
                        const struct api_limits *limits, bool can_think, struct chat_request *out,
                        struct api_error *e) {
    struct api_fields f = {NULL, "", e};
    out->numbers = jsontext_numbers_new();
    out->body = json_read_object(body, bytes, out->numbers, e);
    if (!out->body)
        return false;
    out->options = chat_options_default();
    out->options.numbers = out->numbers;
    f.object = out->body;
    if (!api_string(&f, "model", &out->model, NULL))
        return false;
    bool generate = use == CHAT_FOR_GENERATION;
    /* Cheap limits first: a request with a huge n is refused before its messages are walked. */
    if (generate ? !parse_generation(out, limits, e)
                 : !api_salt_parse(out->body, &out->sampling, e))
        return false;
    if (!check_messages(out, use, e) ||
        !chat_tools_parse(out->body, out->messages, generate, &out->options, e) ||
        !parse_thinking(out, can_think, e) || !parse_prompt_end(out, use, e) ||
        !chat_response_format_parse(out->body, generate, &out->options, e))
        return false;
    out->parse_calls = out->options.tool_choice != TOOL_CHOICE_NONE &&
                       chat_declares_tools(out->messages, out->options.tools);
    return true;
}

void chat_request_drop_body(struct chat_request *r) {
    api_sampling_own(&r->sampling, &r->model);
    r->messages = NULL;
    r->options.tools = r->options.response_format = NULL;
    r->options.tool_name = r->options.effort = NULL;
    r->options.numbers = NULL;
    json_decref(r->body);
    jsontext_numbers_free(r->numbers);
    r->body = NULL;
    r->numbers = NULL;
}

void chat_request_free(struct chat_request *r) {
    api_sampling_free(&r->sampling);
    json_decref(r->body);
    jsontext_numbers_free(r->numbers);
    *r = (struct chat_request){0};
}
