/* chat_kimi.c: renders a request in the older markup of K2 and Kimi-Linear: <|im_CLASS|> name
 * <|im_middle|> body <|im_end|>. Called by chat.c. Invariant that bites: the markup has turns and
 * calls only; what it cannot say (a demanded call, a response format) is refused, never dropped.
 * Source: docs/text.md. */
#include "text/chat_parts.h"

#include <string.h>

static const char released_system[] = "You are Kimi, an AI assistant created by Moonshot AI.";

static void turn_begin(struct prompt *p, int32_t class, const char *name, size_t n) {
    prompt_marker(p, class);
    prompt_text(p, name, n);
    prompt_marker(p, p->chat->middle);
}

static void turn(struct prompt *p, int32_t class, const char *name, const char *body, size_t n) {
    turn_begin(p, class, name, strlen(name));
    prompt_text(p, body, n);
    prompt_marker(p, p->chat->end);
}

/* The string before the arguments is the call's id, so there is no call without one. */
static weir_status put_calls(struct prompt *p, const json_t *calls, const char *at,
                             const struct chat_options *o, weir_error *err) {
    struct path path, call_path, id_path;
    struct text json = {0};
    const char *where = path_key(&path, at, "tool_calls");
    prompt_marker(p, p->chat->section_begin);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *id = json_object_get(call, "id");
        const json_t *arguments = json_object_get(call_function(call), "arguments");
        if (json_string_length(id) == 0) {
            text_free(&json);
            return weir_fail(err, WEIR_BAD_VALUE,
                             path_key(&id_path, path_index(&call_path, where, i), "id"),
                             "must be a non-empty string");
        }
        prompt_marker(p, p->chat->call_begin);
        prompt_text(p, json_string_value(id), json_string_length(id));
        prompt_marker(p, p->chat->call_argument);
        if (json_is_string(arguments)) {
            prompt_text(p, json_string_value(arguments), json_string_length(arguments));
        } else if (json_is_object(arguments)) {
            text_clear(&json);
            jsontext_write(&json, arguments, o->numbers, false);
            prompt_text(p, json.data, json.n);
        } else {
            prompt_puts(p, "{}");
        }
        prompt_marker(p, p->chat->call_end);
    }
    prompt_marker(p, p->chat->section_end);
    text_free(&json);
    return WEIR_OK;
}

weir_status render_kimi_turn(struct prompt *p, const struct chat_turn *turn, const char *at,
                             const struct chat_options *o, weir_error *err) {
    prompt_text(p, turn->content, turn->content_bytes);
    weir_status s = turn->calls ? put_calls(p, turn->calls, at, o, err) : WEIR_OK;
    prompt_marker(p, p->chat->end);
    return s;
}

static weir_status tool_id(const json_t *message, const char *at, struct field *id,
                           weir_error *err) {
    struct path path;
    weir_status s = field_string(message, at, "tool_call_id", id, err);
    if (s == WEIR_OK && id->n == 0)
        s = weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "tool_call_id"),
                      "must be a non-empty string");
    return s;
}

static weir_status check_presence(enum chat_role role, bool present, const json_t *calls,
                                  const json_t *message, const char *at, weir_error *err) {
    struct path path;
    if (present)
        return WEIR_OK;
    if (role == ROLE_ASSISTANT &&
        (calls != NULL || json_is_string(json_object_get(message, "reasoning_content")) ||
         json_is_string(json_object_get(message, "reasoning"))))
        return WEIR_OK;
    return weir_fail(
        err, WEIR_BAD_VALUE, path_key(&path, at, "content"), "is required%s",
        role == ROLE_ASSISTANT ? " when there are neither tool_calls nor reasoning_content" : "");
}

static weir_status put_message(struct prompt *p, const json_t *message, const char *at,
                               enum chat_role role, const struct chat_options *o, weir_error *err) {
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    const int32_t classes[] = {p->chat->system, p->chat->user, p->chat->assistant, p->chat->system};
    struct path path;
    struct text content = {0};
    struct field name, id = {NULL, 0}, reasoning;
    const json_t *calls = NULL, *tools;
    bool present = false;
    weir_status s = field_string(message, at, "name", &name, err);
    if (s == WEIR_OK && role == ROLE_ASSISTANT) {
        s = field_calls(message, at, &calls, err);
        if (s == WEIR_OK)
            s = field_string(message, at, "reasoning_content", &reasoning, err);
        if (s == WEIR_OK)
            s = field_string(message, at, "reasoning", &reasoning, err);
    }
    if (s == WEIR_OK && role == ROLE_TOOL)
        s = tool_id(message, at, &id, err);
    if (s == WEIR_OK && role == ROLE_SYSTEM) {
        const char *where = path_key(&path, at, "tools");
        s = field_tools(json_object_get(message, "tools"), where, &tools, err);
        if (s == WEIR_OK && tools != NULL)
            s = weir_fail(err, WEIR_UNSUPPORTED, where,
                          "this chat format declares tools at its start only");
    }
    if (s == WEIR_OK)
        s = field_content(message, at, &content, &present, err);
    if (s == WEIR_OK)
        s = check_presence(role, present, calls, message, at, err);
    if (s == WEIR_OK) {
        if (name.n == 0)
            name = (struct field){names[role], strlen(names[role])};
        turn_begin(p, classes[role], name.s, name.n);
        if (role == ROLE_TOOL) {
            prompt_puts(p, "## Return of ");
            prompt_text(p, id.s, id.n);
            prompt_puts(p, "\n");
        }
        struct chat_turn turn = {
            .content = content.data, .content_bytes = content.n, .calls = calls};
        if (role != ROLE_ASSISTANT || !prompt_replay(p, &turn, o))
            s = render_kimi_turn(p, &turn, at, o, err);
    }
    text_free(&content);
    return s;
}

static weir_status refuse_unsayable(const struct chat_options *o, weir_error *err) {
    struct field type = {NULL, 0};
    if (o->tool_choice == TOOL_CHOICE_REQUIRED || o->tool_choice == TOOL_CHOICE_NAMED)
        return weir_fail(err, WEIR_UNSUPPORTED, "tool_choice",
                         "this chat format cannot demand a call; use auto or none");
    const json_t *format = o->response_format;
    if (format == NULL || json_is_null(format))
        return WEIR_OK;
    if (!json_is_object(format))
        return weir_fail(err, WEIR_BAD_VALUE, "response_format", "must be an object");
    weir_status s = field_string(format, "response_format", "type", &type, err);
    if (s != WEIR_OK)
        return s;
    if (type.s == NULL || strcmp(type.s, "text") != 0)
        return weir_fail(err, WEIR_UNSUPPORTED, "response_format.type",
                         "this chat format cannot ask for JSON; only text is supported");
    return WEIR_OK;
}

weir_status render_kimi(struct prompt *p, const json_t *messages, const struct chat_options *o,
                        weir_error *err) {
    const json_t *tools;
    struct path path;
    enum chat_role role;
    weir_status s = refuse_unsayable(o, err);
    if (s == WEIR_OK)
        s = field_tools(o->tools, "tools", &tools, err);
    if (s != WEIR_OK)
        return s;
    /* No message forbids calls either, so with tool_choice none the tools are not shown. */
    if (tools != NULL && o->tool_choice != TOOL_CHOICE_NONE) {
        struct text json = {0};
        jsontext_write(&json, tools, o->numbers, false);
        turn(p, p->chat->system, "tool_declare", json.data, json.n);
        text_free(&json);
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *at = path_index(&path, "messages", i);
        s = field_role(message, at, &role, err);
        if (s != WEIR_OK)
            return s;
        if (i == 0 && role != ROLE_SYSTEM) {
            const char *lead = o->default_system ? o->default_system : released_system;
            if (*lead != '\0')
                turn(p, p->chat->system, "system", lead, strlen(lead));
        }
        s = put_message(p, message, at, role, o, err);
        if (s != WEIR_OK)
            return s;
    }
    if (o->add_generation_prompt)
        turn_begin(p, p->chat->assistant, "assistant", strlen("assistant"));
    return WEIR_OK;
}
