/* chat_tools.c: tools and formats of a chat request. Called by chat_request.c.
 * Invariant that bites: a schema is client text of any shape. It is walked with the depth bound of
 * the JSON reader, $ref is never followed and no pattern is ever run. */
#include "serve/chat_tools.h"

#include <string.h>

static bool name_valid(const char *s, size_t n) {
    if (n < 1 || n > 256)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '.' || c == '-'))
            return false;
    }
    return true;
}

static bool type_known(const json_t *v) {
    static const char *const known[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};
    if (!json_is_string(v))
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(json_string_value(v), known[i]) == 0)
            return true;
    return false;
}

/* Brackets outside classes and escapes close in order. Not a full parse: the dialect of a pattern
 * is the model's business, a broken one is the client's fault. */
static const char *pattern_fault(const char *s, size_t n) {
    size_t open = 0;
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\') {
            if (++i == n)
                return "ends in a backslash";
        } else if (in_class) {
            in_class = s[i] != ']';
        } else if (s[i] == '[') {
            in_class = true;
            if (i + 1 < n && s[i + 1] == '^')
                i++;
        } else if (s[i] == '(') {
            open++;
        } else if (s[i] == ')' && open-- == 0) {
            return "closes a group that is not open";
        }
    }
    return in_class ? "has an unfinished class" : open ? "has an unfinished group" : NULL;
}

static bool check_type(const json_t *type, const char *path, struct api_error *e) {
    bool ok = type_known(type);
    if (json_is_array(type)) {
        ok = json_array_size(type) > 0;
        for (size_t i = 0; i < json_array_size(type); i++)
            ok = ok && type_known(json_array_get(type, i));
    }
    if (ok)
        return true;
    struct api_path at = api_path("%s.type", path);
    struct api_shown shown = api_show(type);
    return api_fail(e, 400, at.text,
                    "%s: %s is no JSON Schema type (object, array, string, number, integer, "
                    "boolean, null)",
                    at.text, shown.text);
}

static bool check_map(const json_t *map, const char *path, const char *keyword,
                      struct api_error *e) {
    struct api_path at = api_path("%s.%s", path, keyword);
    if (!json_is_object(map)) {
        struct api_shown shown = api_show(map);
        return api_fail(e, 400, at.text, "%s: %s is not allowed, it must be an object of schemas",
                        at.text, shown.text);
    }
    const char *key;
    json_t *item;
    json_object_foreach(jsontext_loose(map), key, item) {
        struct api_path below = api_path("%s.%s", at.text, key);
        if (!chat_schema_check(item, below.text, e))
            return false;
    }
    return true;
}

static bool check_list(const json_t *list, const char *path, const char *keyword,
                       struct api_error *e) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct api_path below = api_path("%s.%s.%zu", path, keyword, i);
        if (!chat_schema_check(json_array_get(list, i), below.text, e))
            return false;
    }
    return true;
}

bool chat_schema_check(const json_t *schema, const char *path, struct api_error *e) {
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions",
                                       "dependentSchemas"};
    static const char *const lists[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
    static const char *const ones[] = {"items",
                                       "additionalProperties",
                                       "not",
                                       "if",
                                       "then",
                                       "else",
                                       "contains",
                                       "propertyNames",
                                       "unevaluatedProperties",
                                       "unevaluatedItems"};
    if (json_is_boolean(schema))
        return true;
    if (!json_is_object(schema)) {
        struct api_shown shown = api_show(schema);
        return api_fail(e, 400, path, "%s: %s is not allowed, a schema must be an object", path,
                        shown.text);
    }
    const json_t *v = json_object_get(schema, "type");
    if (v && !check_type(v, path, e))
        return false;
    v = json_object_get(schema, "pattern");
    if (v) {
        const char *fault = json_is_string(v)
                                ? pattern_fault(json_string_value(v), json_string_length(v))
                                : "must be a string";
        struct api_path at = api_path("%s.pattern", path);
        struct api_shown shown = api_show(v);
        if (fault)
            return api_fail(e, 400, at.text, "%s: %s is no regular expression, it %s", at.text,
                            shown.text, fault);
    }
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        if ((v = json_object_get(schema, maps[i])) && !check_map(v, path, maps[i], e))
            return false;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if ((v = json_object_get(schema, lists[i])) && !check_list(v, path, lists[i], e))
            return false;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        v = json_object_get(schema, ones[i]);
        struct api_path below = api_path("%s.%s", path, ones[i]);
        if (json_is_array(v) && !check_list(v, path, ones[i], e))
            return false;
        if (v && !json_is_array(v) && !chat_schema_check(v, below.text, e))
            return false;
    }
    return true;
}

static bool check_tool(const json_t *tool, const char *path, size_t i, bool refuse_strict,
                       const char **name, struct api_error *e) {
    struct api_path at = api_path("%s.%zu", path, i);
    if (!json_is_object(tool)) {
        struct api_shown shown = api_show(tool);
        return api_fail(e, 400, at.text, "%s: %s is not allowed, a tool must be an object", at.text,
                        shown.text);
    }
    struct api_path type_path = api_path("%s.type", at.text);
    const json_t *type = json_object_get(tool, "type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0) {
        struct api_shown shown = api_show(type ? type : json_null());
        return api_fail(e, 400, type_path.text, "%s: %s is not supported, only \"function\"",
                        type_path.text, shown.text);
    }
    struct api_path fn_path = api_path("%s.function", at.text);
    const json_t *function = json_object_get(tool, "function");
    if (!json_is_object(function)) {
        struct api_shown shown = api_show(function ? function : json_null());
        return api_fail(e, 400, fn_path.text, "%s: %s is not allowed, it must be an object",
                        fn_path.text, shown.text);
    }
    struct api_fields f = {function, fn_path.text, e};
    const char *s = NULL, *description = NULL;
    size_t n = 0, bytes = 0;
    const json_t *parameters = NULL;
    bool strict = false;
    if (!api_string(&f, "name", &s, &n) || !api_string(&f, "description", &description, &bytes) ||
        !api_object(&f, "parameters", &parameters) || !api_bool(&f, "strict", &strict))
        return false;
    struct api_path name_path = api_field_path(&f, "name");
    if (!s || !name_valid(s, n)) {
        struct api_shown shown = s ? api_show_text(s, n) : api_show(json_null());
        return api_fail(e, 400, name_path.text,
                        "%s: %s is not allowed, it must be 1 to 256 characters of A-Z a-z 0-9 _ . "
                        "-",
                        name_path.text, shown.text);
    }
    *name = s;
    struct api_path schema_path = api_field_path(&f, "parameters");
    if (parameters && !chat_schema_check(parameters, schema_path.text, e))
        return false;
    if (strict && refuse_strict) {
        struct api_path strict_path = api_field_path(&f, "strict");
        return api_fail(e, 501, strict_path.text,
                        "%s: true is not supported, this build has no constrained decoding",
                        strict_path.text);
    }
    return true;
}

bool chat_tools_check(const json_t *tools, const char *path, bool refuse_strict,
                      struct api_error *e) {
    size_t n = json_is_array(tools) ? json_array_size(tools) : 0;
    if (n < 1 || n > 1024) {
        struct api_shown shown = api_show(tools);
        return api_fail(e, 400, path,
                        "%s: %s is not allowed, it must be an array of 1 to 1024 tools", path,
                        shown.text);
    }
    json_t *names = json_object();
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        const char *name = NULL;
        ok = check_tool(json_array_get(tools, i), path, i, refuse_strict, &name, e);
        if (ok && json_object_get(names, name)) {
            struct api_path at = api_path("%s.%zu.function.name", path, i);
            ok = api_fail(e, 400, at.text, "%s: \"%s\" is not allowed, another tool has this name",
                          at.text, name);
        }
        if (ok)
            json_object_set_new_nocheck(names, name, json_true());
    }
    json_decref(names);
    return ok;
}

static bool tool_named(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

static bool declared(const json_t *messages, const json_t *tools, const char *name) {
    bool found = tool_named(tools, name);
    for (size_t i = 0; !found && i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        found = strcmp(role, "system") == 0 && tool_named(json_object_get(m, "tools"), name);
    }
    return found;
}

static bool choice_by_name(const json_t *choice, const json_t *messages, bool any,
                           struct chat_options *out, struct api_error *e) {
    const json_t *type = json_object_get(choice, "type");
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0 ||
        !json_is_string(name)) {
        struct api_shown shown = api_show(choice);
        return api_fail(e, 400, "tool_choice",
                        "tool_choice: %s is not allowed, it must be \"none\", \"auto\", "
                        "\"required\" or {\"type\":\"function\",\"function\":{\"name\":...}}",
                        shown.text);
    }
    const char *s = json_string_value(name);
    if (any && !declared(messages, out->tools, s)) {
        struct api_shown shown = api_show(name);
        return api_fail(e, 400, "tool_choice.function.name",
                        "tool_choice.function.name: %s is not among the tools", shown.text);
    }
    out->tool_choice = TOOL_CHOICE_NAMED;
    out->tool_name = s;
    return true;
}

bool chat_tools_parse(const json_t *body, const json_t *messages, bool refuse_strict,
                      struct chat_options *out, struct api_error *e) {
    struct api_fields f = {body, "", e};
    const json_t *tools = api_get(&f, "tools"), *choice = api_get(&f, "tool_choice");
    if (tools && !chat_tools_check(tools, "tools", refuse_strict, e))
        return false;
    bool any = chat_declares_tools(messages, tools);
    out->tools = tools;
    out->tool_choice = TOOL_CHOICE_AUTO;
    if (!choice)
        return true;
    const char *word = json_string_value(choice);
    if (word && strcmp(word, "none") == 0)
        out->tool_choice = TOOL_CHOICE_NONE;
    else if (word && strcmp(word, "auto") == 0)
        out->tool_choice = TOOL_CHOICE_AUTO;
    else if (word && strcmp(word, "required") == 0)
        out->tool_choice = TOOL_CHOICE_REQUIRED;
    else if (!choice_by_name(choice, messages, any, out, e))
        return false;
    if (!any && out->tool_choice != TOOL_CHOICE_NONE) {
        struct api_shown shown = api_show(choice);
        return api_fail(e, 400, "tool_choice",
                        "tool_choice: %s is not allowed without tools, only \"none\"", shown.text);
    }
    return true;
}

static bool other_spellings(const json_t *body, struct api_error *e) {
    static const char *const names[] = {
        "structured_outputs", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar",     "json_schema", "regex",        "ebnf"};
    struct api_fields f = {body, "", e};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!api_refused(&f, names[i], NULL, 501, "this build has no constrained decoding"))
            return false;
    return true;
}

bool chat_response_format_parse(const json_t *body, bool refuse, struct chat_options *out,
                                struct api_error *e) {
    struct api_fields f = {body, "", e};
    const json_t *format = NULL, *schema = NULL;
    const char *type = NULL;
    if (!api_object(&f, "response_format", &format))
        return false;
    struct api_fields in = {format, "response_format", e};
    if (format) {
        if (!api_string(&in, "type", &type, NULL))
            return false;
        bool text = type && strcmp(type, "text") == 0;
        bool object = type && strcmp(type, "json_object") == 0;
        bool by_schema = type && strcmp(type, "json_schema") == 0;
        if (!text && !object && !by_schema && !(type && strcmp(type, "structural_tag") == 0)) {
            struct api_shown shown = api_show(api_get(&in, "type"));
            return api_fail(e, 400, "response_format.type",
                            "response_format.type: %s is not allowed, it must be \"text\", "
                            "\"json_object\" or \"json_schema\"",
                            type ? shown.text : "null");
        }
        if (by_schema) {
            if (!api_object(&in, "json_schema", &schema))
                return false;
            const json_t *inner = json_object_get(schema, "schema");
            if (!json_is_object(inner))
                return api_fail(e, 400, "response_format.json_schema.schema",
                                "response_format.json_schema.schema: an object is required");
            if (!chat_schema_check(inner, "response_format.json_schema.schema", e))
                return false;
        }
        if (!text && !object && !by_schema)
            return api_fail(e, 501, "response_format.type",
                            "response_format.type: \"structural_tag\" is not supported by this "
                            "build");
        if (!text && refuse)
            return api_fail(e, 501, "response_format",
                            "response_format: \"%s\" is not supported, this build has no "
                            "constrained decoding",
                            type);
        out->response_format = text ? NULL : format;
    }
    return !refuse || other_spellings(body, e);
}

bool api_no_structured_outputs(const json_t *body, struct api_error *e) {
    struct chat_options unused = {0};
    return chat_response_format_parse(body, true, &unused, e);
}
