/* chat_k3.c: renders a request in K3's XTML: OPEN(tag, attributes) body CLOSE(tag), messages ended
 * by <|end_of_msg|>, no white space anywhere between. Called by chat.c. Invariants that bite: an
 * assistant message has a think channel whenever thinking is on, even an empty one, and attribute
 * values are escaped ('&' first) while bodies never are. Source: docs/text.md. */
#include "text/chat_parts.h"

#include <string.h>

static void open_begin(struct prompt *p, const char *tag) {
    prompt_marker(p, p->chat->open);
    prompt_puts(p, tag);
}

static void attribute(struct prompt *p, const char *name, const char *value, size_t n) {
    prompt_puts(p, " ");
    prompt_puts(p, name);
    prompt_puts(p, "=\"");
    size_t run = 0;
    for (size_t i = 0; i < n; i++) {
        if (value[i] != '&' && value[i] != '"')
            continue;
        prompt_text(p, value + run, i - run);
        prompt_puts(p, value[i] == '&' ? "&amp;" : "&quot;");
        run = i + 1;
    }
    prompt_text(p, value + run, n - run);
    prompt_puts(p, "\"");
}

static void attribute_index(struct prompt *p, size_t index) {
    char b[24];
    int n = snprintf(b, sizeof b, "%zu", index);
    attribute(p, "index", b, (size_t)n);
}

static void open_end(struct prompt *p) {
    prompt_marker(p, p->chat->sep);
}

static void open_tag(struct prompt *p, const char *tag) {
    open_begin(p, tag);
    open_end(p);
}

static void close_tag(struct prompt *p, const char *tag) {
    prompt_marker(p, p->chat->close);
    prompt_puts(p, tag);
    prompt_marker(p, p->chat->sep);
}

static void message_begin(struct prompt *p, const char *role) {
    open_begin(p, "message");
    attribute(p, "role", role, strlen(role));
}

static void message_end(struct prompt *p) {
    close_tag(p, "message");
    prompt_marker(p, p->chat->end);
}

static void system_begin(struct prompt *p, const char *type) {
    message_begin(p, "system");
    attribute(p, "type", type, strlen(type));
    open_end(p);
}

static void put_json(struct prompt *p, const json_t *value, const struct chat_options *o) {
    struct text t = {0};
    jsontext_write(&t, value, o->numbers, true);
    prompt_text(p, t.data, t.n);
    text_free(&t);
}

static void declare_tools(struct prompt *p, const char *lead, const json_t *tools,
                          const struct chat_options *o) {
    system_begin(p, "tool-declare");
    prompt_puts(p, lead);
    prompt_puts(p, "\n\n```json\n");
    put_json(p, tools, o);
    prompt_puts(p, "\n```");
    message_end(p);
}

static const char first_tools[] = "# Tools\n"
                                  "Here are the available tools, described in JSONSchema.";
static const char late_tools[] = "## New Tools Available\n"
                                 "The system dynamically extends the toolset via lazy-loading.\n"
                                 "You have access to all existing and extended tools.\n"
                                 "Here are the specs for the extended tools.";

static weir_status put_effort(struct prompt *p, const struct chat_options *o, weir_error *err) {
    static const char *const known[] = {"low", "medium", "high", "max"};
    const char *effort = o->effort ? o->effort : "max";
    bool good = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        good = good || strcmp(effort, known[i]) == 0;
    if (*effort == '\0')
        return WEIR_OK;
    if (!good)
        return weir_fail(err, WEIR_BAD_VALUE, "reasoning_effort",
                         "'%.40s' is not one of low, medium, high, max", effort);
    system_begin(p, "thinking-effort");
    prompt_puts(p, "`thinking_effort` guides on how much to think in your thinking channel (not "
                   "including the response channel), supported values include `low`, `medium`, "
                   "`high`, and `max`.\nNow the system is invoked with `thinking_effort=");
    prompt_puts(p, effort);
    prompt_puts(p, "`.");
    message_end(p);
    return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------
 * calls */

static const char *type_name(char first) {
    switch (first) {
    case '{': return "object";
    case '[': return "array";
    case '"': return "string";
    case 't':
    case 'f': return "boolean";
    case 'n': return "null";
    default: return "number";
    }
}

static void argument_begin(struct prompt *p, const char *key, size_t n, const char *type) {
    open_begin(p, "argument");
    attribute(p, "key", key, n);
    attribute(p, "type", type, strlen(type));
    open_end(p);
}

static void put_object_arguments(struct prompt *p, const json_t *arguments,
                                 const struct chat_options *o) {
    json_t *object = jsontext_loose(arguments);
    struct text t = {0};
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const json_t *v = json_object_iter_value(it);
        text_clear(&t);
        jsontext_write(&t, v, o->numbers, false);
        argument_begin(p, json_object_iter_key(it), json_object_iter_key_len(it),
                       type_name(t.data[0]));
        if (json_is_string(v))
            prompt_text(p, json_string_value(v), json_string_length(v));
        else
            prompt_text(p, t.data, t.n);
        close_tag(p, "argument");
    }
    text_free(&t);
}

struct slice {
    size_t at, end;
};

/* Splits the text of a JSON object, known to be valid, into its members: keys (as a jansson object
 * key -> number of the slice, in order of first appearance) and value slices; the last of several
 * equal keys wins. */
static json_t *split_object(const char *s, size_t n, size_t at, struct slice *slices) {
    json_t *keys = json_object();
    struct text key = {0};
    at = jsontext_skip_space(s, n, at + 1);
    for (size_t count = 0; s[at] != '}';) {
        text_clear(&key);
        at = jsontext_string(s, n, at, &key);
        at = jsontext_skip_space(s, n, at) + 1; /* the colon */
        at = jsontext_skip_space(s, n, at);
        const char *k = key.n ? key.data : "";
        const json_t *before = json_object_getn(keys, k, key.n);
        size_t place = before ? (size_t)json_integer_value(before) : count++;
        if (before == NULL)
            json_object_setn_new_nocheck(keys, k, key.n, json_integer((json_int_t)place));
        slices[place] = (struct slice){at, jsontext_value_end(s, n, at)};
        at = jsontext_skip_space(s, n, slices[place].end);
        if (s[at] == ',')
            at = jsontext_skip_space(s, n, at + 1);
    }
    text_free(&key);
    return keys;
}

static size_t count_char(const char *s, size_t n, char c) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += s[i] == c;
    return count;
}

/* The text of a JSON object keeps the spelling of every value that is not a string: it is what the
 * model wrote, and reading it back must give the same prompt. */
static void put_string_arguments(struct prompt *p, const char *s, size_t n) {
    size_t at = jsontext_skip_space(s, n, 0);
    size_t end = at < n && s[at] == '{' ? jsontext_value_end(s, n, at) : 0;
    if (end == 0 || jsontext_skip_space(s, n, end) != n) {
        open_begin(p, "json");
        attribute(p, "type", "object", 6);
        open_end(p);
        prompt_text(p, s, n);
        close_tag(p, "json");
        return;
    }
    struct slice *slices = calloc(1 + count_char(s, n, ':'), sizeof *slices);
    WEIR_ASSERT(slices != NULL);
    json_t *keys = split_object(s, n, at, slices);
    struct text value = {0};
    for (void *it = json_object_iter(keys); it; it = json_object_iter_next(keys, it)) {
        struct slice v = slices[json_integer_value(json_object_iter_value(it))];
        argument_begin(p, json_object_iter_key(it), json_object_iter_key_len(it),
                       type_name(s[v.at]));
        text_clear(&value);
        if (s[v.at] == '"') {
            jsontext_string(s, n, v.at, &value);
            prompt_text(p, value.data, value.n);
        } else {
            prompt_text(p, s + v.at, v.end - v.at);
        }
        close_tag(p, "argument");
    }
    text_free(&value);
    json_decref(keys);
    free(slices);
}

static void put_calls(struct prompt *p, const json_t *calls, const struct chat_options *o) {
    open_tag(p, "tools");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = call_function(json_array_get(calls, i));
        const json_t *name = json_object_get(function, "name");
        const json_t *arguments = json_object_get(function, "arguments");
        open_begin(p, "call");
        attribute(p, "tool", json_string_value(name), json_string_length(name));
        attribute_index(p, i + 1);
        open_end(p);
        if (json_is_object(arguments))
            put_object_arguments(p, arguments, o);
        else if (json_is_string(arguments))
            put_string_arguments(p, json_string_value(arguments), json_string_length(arguments));
        close_tag(p, "call");
    }
    close_tag(p, "tools");
}

/* -------------------------------------------------------------------------------------------------
 * messages */

/* What tool results refer to: the calls of the last assistant message. */
struct history {
    const json_t *calls; /* or NULL */
    json_t *by_id;       /* id -> number of the call */
    size_t results;      /* tool messages since that assistant message */
};

static void remember_calls(struct history *h, const json_t *calls) {
    json_decref(h->by_id);
    *h = (struct history){.calls = calls, .by_id = json_object()};
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *id = json_object_get(json_array_get(calls, i), "id");
        size_t n = json_string_length(id);
        if (json_is_string(id) && json_object_getn(h->by_id, json_string_value(id), n) == NULL)
            json_object_setn_new_nocheck(h->by_id, json_string_value(id), n,
                                         json_integer((json_int_t)i));
    }
}

static weir_status put_plain(struct prompt *p, const json_t *message, const char *at,
                             const char *role, weir_error *err) {
    struct path path;
    struct text content = {0};
    struct field name;
    bool present;
    weir_status s = field_string(message, at, "name", &name, err);
    if (s == WEIR_OK)
        s = field_content(message, at, &content, &present, err);
    if (s == WEIR_OK && !present)
        s = weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "content"), "is required");
    if (s == WEIR_OK) {
        message_begin(p, role);
        if (name.n != 0)
            attribute(p, "name", name.s, name.n);
        open_end(p);
        prompt_text(p, content.data, content.n);
        message_end(p);
    }
    text_free(&content);
    return s;
}

/* A system message that brings tools declares them; what it says besides goes before, as a system
 * message of its own, so that nothing is lost. */
static weir_status put_system(struct prompt *p, const json_t *message, const char *at,
                              const struct chat_options *o, weir_error *err) {
    struct path path;
    const json_t *tools;
    weir_status s =
        field_tools(json_object_get(message, "tools"), path_key(&path, at, "tools"), &tools, err);
    if (s != WEIR_OK)
        return s;
    if (tools == NULL)
        return put_plain(p, message, at, "system", err);
    struct text content = {0};
    bool present;
    s = field_content(message, at, &content, &present, err);
    bool says = content.n != 0;
    text_free(&content);
    if (s == WEIR_OK && says)
        s = put_plain(p, message, at, "system", err);
    if (s == WEIR_OK)
        declare_tools(p, late_tools, tools, o);
    return s;
}

void render_k3_turn(struct prompt *p, const struct chat_turn *turn, const struct chat_options *o) {
    if (o->thinking) {
        prompt_text(p, turn->reasoning, turn->reasoning_bytes);
        close_tag(p, "think");
        open_tag(p, "response");
    }
    prompt_text(p, turn->content, turn->content_bytes);
    close_tag(p, "response");
    if (turn->calls != NULL)
        put_calls(p, turn->calls, o);
    message_end(p);
}

static weir_status put_assistant(struct prompt *p, const json_t *message, const char *at,
                                 const struct chat_options *o, struct history *h, weir_error *err) {
    struct path path;
    struct text content = {0};
    struct field name, reasoning, alias;
    const json_t *calls;
    bool present = false;
    weir_status s = field_string(message, at, "name", &name, err);
    if (s == WEIR_OK)
        s = field_string(message, at, "reasoning_content", &reasoning, err);
    if (s == WEIR_OK)
        s = field_string(message, at, "reasoning", &alias, err);
    if (s == WEIR_OK)
        s = field_calls(message, at, &calls, err);
    if (s == WEIR_OK)
        s = field_content(message, at, &content, &present, err);
    if (s == WEIR_OK && !present && calls == NULL && reasoning.s == NULL && alias.s == NULL)
        s = weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "content"),
                      "is required when there are neither tool_calls nor reasoning_content");
    if (s != WEIR_OK) {
        text_free(&content);
        return s;
    }
    if (reasoning.n == 0)
        reasoning = alias;
    message_begin(p, "assistant");
    if (name.n != 0)
        attribute(p, "name", name.s, name.n);
    open_end(p);
    struct chat_turn turn = {.content = content.data, .content_bytes = content.n, .calls = calls};
    if (o->thinking && !text_is_blank(reasoning.s, reasoning.n)) {
        turn.reasoning = reasoning.s;
        turn.reasoning_bytes = reasoning.n;
    }
    open_tag(p, o->thinking ? "think" : "response");
    if (!prompt_replay(p, &turn, o))
        render_k3_turn(p, &turn, o);
    text_free(&content);
    remember_calls(h, calls);
    return WEIR_OK;
}

struct result {
    size_t message;
    size_t call; /* SIZE_MAX: matches no call */
};

static int by_call(const void *a, const void *b) {
    const struct result *x = a, *y = b;
    if (x->call != y->call)
        return x->call < y->call ? -1 : 1;
    return x->message < y->message ? -1 : x->message > y->message;
}

/* The name of the tool that answered: of the call with that id, else as the message says, else of
 * the call at the same place. */
static weir_status result_name(const json_t *message, const char *at, const struct history *h,
                               size_t call, struct field *out, weir_error *err) {
    struct field name;
    weir_status s = field_string(message, at, "tool", out, err);
    if (s == WEIR_OK)
        s = field_string(message, at, "name", &name, err);
    if (s != WEIR_OK)
        return s;
    if (out->n == 0)
        *out = name;
    if (call == SIZE_MAX && out->n == 0)
        call = h->results;
    if (call < json_array_size(h->calls)) {
        const json_t *f = call_function(json_array_get(h->calls, call));
        const json_t *n = json_object_get(f, "name");
        *out = (struct field){json_string_value(n), json_string_length(n)};
    }
    struct path path;
    if (out->n == 0)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "tool_call_id"),
                         "answers no tool call of the assistant message before it, and the "
                         "message has no name");
    return WEIR_OK;
}

static weir_status put_result(struct prompt *p, const json_t *message, const char *at,
                              struct history *h, size_t call, weir_error *err) {
    struct path path;
    struct text content = {0};
    struct field name;
    bool present;
    weir_status s = result_name(message, at, h, call, &name, err);
    if (s == WEIR_OK)
        s = field_content(message, at, &content, &present, err);
    if (s == WEIR_OK && !present)
        s = weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "content"), "is required");
    if (s == WEIR_OK) {
        message_begin(p, "tool");
        attribute(p, "tool", name.s, name.n);
        attribute_index(p, ++h->results);
        open_end(p);
        prompt_text(p, content.data, content.n);
        message_end(p);
    }
    text_free(&content);
    return s;
}

/* A run of tool messages `from` .. `to` - 1: in the order of the calls when every one of them names
 * one, else as they stand. */
static weir_status put_results(struct prompt *p, const json_t *messages, size_t from, size_t to,
                               struct history *h, weir_error *err) {
    struct path at;
    struct result *results = calloc(to - from, sizeof *results);
    WEIR_ASSERT(results != NULL);
    bool all = true;
    weir_status s = WEIR_OK;
    for (size_t i = from; i < to && s == WEIR_OK; i++) {
        struct field id;
        s = field_string(json_array_get(messages, i), path_index(&at, "messages", i),
                         "tool_call_id", &id, err);
        const json_t *call =
            s == WEIR_OK && id.s != NULL ? json_object_getn(h->by_id, id.s, id.n) : NULL;
        results[i - from] = (struct result){i, call ? (size_t)json_integer_value(call) : SIZE_MAX};
        all = all && call != NULL;
    }
    if (all)
        qsort(results, to - from, sizeof *results, by_call);
    for (size_t i = 0; i < to - from && s == WEIR_OK; i++)
        s = put_result(p, json_array_get(messages, results[i].message),
                       path_index(&at, "messages", results[i].message), h, results[i].call, err);
    free(results);
    return s;
}

static weir_status put_messages(struct prompt *p, const json_t *messages,
                                const struct chat_options *o, weir_error *err) {
    struct history h = {0};
    struct path path;
    weir_status s = WEIR_OK;
    size_t n = json_array_size(messages);
    for (size_t i = 0; i < n && s == WEIR_OK; i++) {
        const json_t *message = json_array_get(messages, i);
        const char *at = path_index(&path, "messages", i);
        enum chat_role role;
        s = field_role(message, at, &role, err);
        if (s != WEIR_OK)
            break;
        size_t run = i + 1;
        enum chat_role next;
        switch (role) {
        case ROLE_SYSTEM: s = put_system(p, message, at, o, err); break;
        case ROLE_USER: s = put_plain(p, message, at, "user", err); break;
        case ROLE_ASSISTANT: s = put_assistant(p, message, at, o, &h, err); break;
        case ROLE_TOOL:
            while (run < n && field_role(json_array_get(messages, run), at, &next, NULL) == 0 &&
                   next == ROLE_TOOL)
                run++;
            s = put_results(p, messages, i, run, &h, err);
            i = run - 1;
            break;
        }
    }
    json_decref(h.by_id);
    return s;
}

/* -------------------------------------------------------------------------------------------------
 * what follows the messages */

/* The format knows required and none only, so a named choice is asked for as required. */
static void put_tool_choice(struct prompt *p, enum chat_tool_choice choice) {
    switch (choice) {
    case TOOL_CHOICE_AUTO: return;
    case TOOL_CHOICE_NONE:
        system_begin(p, "tool-choice");
        prompt_puts(p, "The system is invoked with `tool_choice=none`.\n"
                       "You MUST NOT call any tools in the next message.");
        break;
    case TOOL_CHOICE_REQUIRED:
    case TOOL_CHOICE_NAMED:
        system_begin(p, "tool-choice");
        prompt_puts(p, "The system is invoked with `tool_choice=required`.\n"
                       "You MUST call tools in the next message.");
        break;
    }
    message_end(p);
}

static weir_status put_response_format(struct prompt *p, const struct chat_options *o,
                                       weir_error *err) {
    struct field type;
    const json_t *format = o->response_format;
    if (format == NULL || json_is_null(format))
        return WEIR_OK;
    if (!json_is_object(format))
        return weir_fail(err, WEIR_BAD_VALUE, "response_format", "must be an object");
    weir_status s = field_string(format, "response_format", "type", &type, err);
    if (s != WEIR_OK)
        return s;
    if (type.s != NULL && strcmp(type.s, "text") == 0)
        return WEIR_OK;
    bool schema_asked = type.s != NULL && strcmp(type.s, "json_schema") == 0;
    if (!schema_asked && (type.s == NULL || strcmp(type.s, "json_object") != 0))
        return weir_fail(err, WEIR_BAD_VALUE, "response_format.type",
                         "must be one of text, json_object, json_schema");
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (schema_asked && !json_is_object(schema))
        return weir_fail(err, WEIR_BAD_VALUE, "response_format.json_schema.schema",
                         "must be an object");
    system_begin(p, "response-format");
    prompt_puts(p, "The system is invoked with `response_format=");
    prompt_puts(p, type.s);
    prompt_puts(p, "`.\nYour response must be raw JSON data without markdown code blocks (```json) "
                   "or any additional formatting.");
    if (schema_asked) {
        prompt_puts(p, "\nThe JSON data must match the following schema:\n```json\n");
        put_json(p, schema, o);
        prompt_puts(p, "\n```");
    }
    message_end(p);
    return WEIR_OK;
}

weir_status render_k3(struct prompt *p, const json_t *messages, const struct chat_options *o,
                      weir_error *err) {
    const json_t *tools;
    weir_status s = field_tools(o->tools, "tools", &tools, err);
    if (s != WEIR_OK)
        return s;
    if (tools != NULL)
        declare_tools(p, first_tools, tools, o);
    if (o->thinking)
        s = put_effort(p, o, err);
    if (s == WEIR_OK)
        s = put_messages(p, messages, o, err);
    if (s != WEIR_OK)
        return s;
    if (chat_declares_tools(messages, tools))
        put_tool_choice(p, o->tool_choice);
    s = put_response_format(p, o, err);
    if (s == WEIR_OK && o->add_generation_prompt) {
        message_begin(p, "assistant");
        open_end(p);
        open_tag(p, o->thinking ? "think" : "response");
    }
    return s;
}
