/* chat.c: opens a markup over a tokenizer, reads the fields of messages and writes segments; the
 * two renderers stand on it. Called by the server and the commands. Invariant that bites: only
 * prompt_marker makes a control id; everything that came from a request goes through prompt_text,
 * whose encoding never does. */
#include "text/chat_parts.h"
#include "text/utf8.h"

#include <string.h>

/* -------------------------------------------------------------------------------------------------
 * opening */

struct wanted {
    int32_t *id;
    const char *spelling;
};

static weir_status find_markers(const struct chat *c, const struct wanted *w, size_t n,
                                const char *markup, weir_error *err) {
    for (size_t i = 0; i < n; i++) {
        *w[i].id = tokenizer_special(c->tokenizer, w[i].spelling);
        if (*w[i].id < 0)
            return weir_fail(err, WEIR_UNSUPPORTED, "tokenizer_config.json",
                             "the %s chat format needs the special token %s, which is not there",
                             markup, w[i].spelling);
    }
    return WEIR_OK;
}

weir_status chat_open(enum chat_markup markup, const struct tokenizer *t, struct chat **out,
                      weir_error *err) {
    struct chat *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c == NULL)
        return weir_fail(err, WEIR_NO_MEMORY, "chat", "out of memory");
    *c = (struct chat){.markup = markup, .tokenizer = t, .eos = tokenizer_special(t, "[EOS]")};
    const struct wanted k3[] = {{&c->end, "<|end_of_msg|>"},
                                {&c->open, "<|open|>"},
                                {&c->close, "<|close|>"},
                                {&c->sep, "<|sep|>"}};
    const struct wanted kimi[] = {{&c->end, "<|im_end|>"},
                                  {&c->user, "<|im_user|>"},
                                  {&c->assistant, "<|im_assistant|>"},
                                  {&c->system, "<|im_system|>"},
                                  {&c->middle, "<|im_middle|>"},
                                  {&c->section_begin, "<|tool_calls_section_begin|>"},
                                  {&c->section_end, "<|tool_calls_section_end|>"},
                                  {&c->call_begin, "<|tool_call_begin|>"},
                                  {&c->call_argument, "<|tool_call_argument_begin|>"},
                                  {&c->call_end, "<|tool_call_end|>"}};
    weir_status s = markup == CHAT_K3
                        ? find_markers(c, k3, sizeof k3 / sizeof *k3, "K3", err)
                        : find_markers(c, kimi, sizeof kimi / sizeof *kimi, "Kimi-Linear", err);
    if (s != WEIR_OK) {
        free(c);
        return s;
    }
    *out = c;
    return WEIR_OK;
}

void chat_close(struct chat *c) {
    free(c);
}

bool chat_can_think(const struct chat *c) {
    return c->markup == CHAT_K3;
}

size_t chat_stop_ids(const struct chat *c, int32_t *out, size_t cap) {
    size_t n = 0;
    if (n < cap)
        out[n++] = c->end;
    if (c->eos >= 0 && n < cap)
        out[n++] = c->eos;
    return n;
}

/* -------------------------------------------------------------------------------------------------
 * segments */

void prompt_flush(struct prompt *p) {
    if (p->pending.n == 0)
        return;
    if (p->ids != NULL)
        tokenizer_encode(p->chat->tokenizer, p->pending.data, p->pending.n, p->ids);
    if (p->text != NULL)
        text_append(p->text, p->pending.data, p->pending.n);
    text_clear(&p->pending);
}

void prompt_marker(struct prompt *p, int32_t id) {
    prompt_flush(p);
    if (p->ids == NULL) {
        turn_marker(p->text, id);
        return;
    }
    ids_push(p->ids, id);
    if (p->text != NULL) {
        size_t n;
        const char *spelling = tokenizer_piece(p->chat->tokenizer, id, &n);
        text_append(p->text, spelling, n);
    }
}

void prompt_text(struct prompt *p, const char *s, size_t n) {
    text_append(&p->pending, s, n);
}

void prompt_puts(struct prompt *p, const char *s) {
    text_puts(&p->pending, s);
}

/* The readable prompt shows what is fed, not what would have been. */
bool prompt_replay(struct prompt *p, const struct chat_turn *turn, const struct chat_options *o) {
    if (o->replay == NULL || p->ids == NULL)
        return false;
    prompt_flush(p);
    size_t before = p->ids->n;
    struct text body = {0};
    bool written = turn_body(p->chat, turn, o, &body) && o->replay(o->replay_arg, &body, p->ids);
    text_free(&body);
    if (!written)
        return false;
    if (p->text != NULL) {
        struct text bytes = {0};
        struct utf8_stream u = {0};
        tokenizer_decode(p->chat->tokenizer, p->ids->data + before, p->ids->n - before, false,
                         &bytes);
        if (bytes.n != 0)
            utf8_push(&u, bytes.data, bytes.n, p->text);
        utf8_finish(&u, p->text);
        text_free(&bytes);
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------
 * fields */

static void path_join(struct path *p, const char *const *parts, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        for (const char *s = parts[i]; *s != '\0' && used + 1 < sizeof p->text; s++)
            p->text[used++] = *s;
    p->text[used] = '\0';
}

const char *path_key(struct path *p, const char *at, const char *key) {
    path_join(p, (const char *[]){at, ".", key}, 3);
    return p->text;
}

const char *path_index(struct path *p, const char *at, size_t index) {
    char digits[24];
    snprintf(digits, sizeof digits, "%zu", index);
    return path_key(p, at, digits);
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

weir_status field_string(const json_t *object, const char *at, const char *key, struct field *out,
                         weir_error *err) {
    struct path path;
    const json_t *v = member(object, key);
    *out = (struct field){NULL, 0};
    if (v == NULL)
        return WEIR_OK;
    if (!json_is_string(v))
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, key), "must be a string");
    *out = (struct field){json_string_value(v), json_string_length(v)};
    return WEIR_OK;
}

static weir_status append_part(const json_t *part, const char *at, struct text *out,
                               weir_error *err) {
    struct path path;
    struct field type, text;
    if (!json_is_object(part))
        return weir_fail(err, WEIR_BAD_VALUE, at, "must be an object with a type");
    weir_status s = field_string(part, at, "type", &type, err);
    if (s != WEIR_OK)
        return s;
    if (type.s == NULL)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "type"), "is required");
    if (strcmp(type.s, "text") != 0 && strcmp(type.s, "refusal") != 0)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "type"),
                         "'%.40s' is not supported, only text parts are", type.s);
    s = field_string(part, at, type.s, &text, err);
    if (s != WEIR_OK)
        return s;
    if (text.s == NULL)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, type.s), "is required");
    text_append(out, text.s, text.n);
    return WEIR_OK;
}

weir_status field_content(const json_t *message, const char *at, struct text *out, bool *present,
                          weir_error *err) {
    struct path path, part;
    const char *where = path_key(&path, at, "content");
    const json_t *v = member(message, "content");
    *present = v != NULL;
    if (v == NULL)
        return WEIR_OK;
    if (json_is_string(v)) {
        text_append(out, json_string_value(v), json_string_length(v));
        return WEIR_OK;
    }
    if (!json_is_array(v))
        return weir_fail(err, WEIR_BAD_VALUE, where, "must be a string or an array of text parts");
    if (json_array_size(v) == 0)
        return weir_fail(err, WEIR_BAD_VALUE, where, "must have at least one part");
    for (size_t i = 0; i < json_array_size(v); i++) {
        weir_status s = append_part(json_array_get(v, i), path_index(&part, where, i), out, err);
        if (s != WEIR_OK)
            return s;
    }
    return WEIR_OK;
}

const json_t *call_function(const json_t *call) {
    return json_object_get(call, "function");
}

static weir_status check_call(const json_t *call, const char *at, weir_error *err) {
    struct path path, deeper;
    struct field f;
    if (!json_is_object(call))
        return weir_fail(err, WEIR_BAD_VALUE, at, "must be an object");
    weir_status s = field_string(call, at, "id", &f, err);
    if (s != WEIR_OK || (s = field_string(call, at, "type", &f, err)) != WEIR_OK)
        return s;
    if (f.s != NULL && strcmp(f.s, "function") != 0)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "type"),
                         "'%.40s' is not supported, only function calls are", f.s);
    const char *where = path_key(&path, at, "function");
    const json_t *function = call_function(call);
    if (!json_is_object(function))
        return weir_fail(err, WEIR_BAD_VALUE, where, "must be an object with a name");
    s = field_string(function, where, "name", &f, err);
    if (s != WEIR_OK)
        return s;
    if (f.n == 0)
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&deeper, where, "name"),
                         "must be a non-empty string");
    const json_t *arguments = member(function, "arguments");
    if (arguments != NULL && !json_is_string(arguments) && !json_is_object(arguments))
        return weir_fail(err, WEIR_BAD_VALUE, path_key(&deeper, where, "arguments"),
                         "must be a string that holds a JSON object, or an object");
    return WEIR_OK;
}

weir_status field_calls(const json_t *message, const char *at, const json_t **out,
                        weir_error *err) {
    struct path path, call;
    const char *where = path_key(&path, at, "tool_calls");
    const json_t *v = member(message, "tool_calls");
    *out = NULL;
    if (v == NULL)
        return WEIR_OK;
    if (!json_is_array(v))
        return weir_fail(err, WEIR_BAD_VALUE, where, "must be an array");
    for (size_t i = 0; i < json_array_size(v); i++) {
        weir_status s = check_call(json_array_get(v, i), path_index(&call, where, i), err);
        if (s != WEIR_OK)
            return s;
    }
    if (json_array_size(v) != 0)
        *out = v;
    return WEIR_OK;
}

weir_status field_tools(const json_t *tools, const char *at, const json_t **out, weir_error *err) {
    struct path path;
    *out = NULL;
    if (tools == NULL || json_is_null(tools))
        return WEIR_OK;
    if (!json_is_array(tools))
        return weir_fail(err, WEIR_BAD_VALUE, at, "must be an array of tools");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_object(json_array_get(tools, i)))
            return weir_fail(err, WEIR_BAD_VALUE, path_index(&path, at, i), "must be an object");
    if (json_array_size(tools) != 0)
        *out = tools;
    return WEIR_OK;
}

weir_status field_role(const json_t *message, const char *at, enum chat_role *out,
                       weir_error *err) {
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", ROLE_SYSTEM},
                 {"developer", ROLE_SYSTEM},
                 {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT},
                 {"tool", ROLE_TOOL}};
    struct path path;
    struct field f;
    if (!json_is_object(message))
        return weir_fail(err, WEIR_BAD_VALUE, at, "must be an object with a role");
    weir_status s = field_string(message, at, "role", &f, err);
    if (s != WEIR_OK)
        return s;
    for (size_t i = 0; f.s != NULL && i < sizeof roles / sizeof *roles; i++)
        if (strlen(roles[i].name) == f.n && memcmp(roles[i].name, f.s, f.n) == 0) {
            *out = roles[i].role;
            return WEIR_OK;
        }
    return weir_fail(err, WEIR_BAD_VALUE, path_key(&path, at, "role"),
                     "%s%.40s%s is not one of system, developer, user, assistant, tool",
                     f.s ? "'" : "", f.s ? f.s : "nothing", f.s ? "'" : "");
}

bool text_is_blank(const char *s, size_t n) {
    static const char *const wide[] = {
        "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
        "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
        "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
        "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
    for (size_t i = 0; i < n;) {
        if (s[i] == ' ' || (s[i] >= '\t' && s[i] <= '\r')) {
            i++;
            continue;
        }
        size_t step = 0;
        for (size_t w = 0; step == 0 && w < sizeof wide / sizeof *wide; w++)
            if (n - i >= strlen(wide[w]) && memcmp(s + i, wide[w], strlen(wide[w])) == 0)
                step = strlen(wide[w]);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------
 * rendering */

struct chat_options chat_options_default(void) {
    return (struct chat_options){.add_generation_prompt = true};
}

bool chat_declares_tools(const json_t *messages, const json_t *tools) {
    if (json_array_size(tools) != 0)
        return true;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (json_array_size(json_object_get(json_array_get(messages, i), "tools")) != 0)
            return true;
    return false;
}

static weir_status check_request(const json_t *messages, const struct chat_options *o,
                                 weir_error *err) {
    struct path at, field;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "messages", "must be a non-empty array");
    if (o->continue_final_message)
        return weir_fail(err, WEIR_BAD_VALUE, "continue_final_message",
                         "is not supported: the chat format defines no prefilled answer");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (json_is_true(json_object_get(json_array_get(messages, i), "partial")))
            return weir_fail(err, WEIR_BAD_VALUE,
                             path_key(&field, path_index(&at, "messages", i), "partial"),
                             "is not supported: the chat format defines no prefilled answer");
    return WEIR_OK;
}

weir_status chat_render(const struct chat *c, const json_t *messages, const struct chat_options *o,
                        struct ids *ids, struct text *text, weir_error *err) {
    weir_status s = check_request(messages, o, err);
    if (s != WEIR_OK)
        return s;
    size_t ids_before = ids->n, text_before = text ? text->n : 0;
    struct prompt p = {.chat = c, .ids = ids, .text = text};
    switch (c->markup) {
    case CHAT_K3: s = render_k3(&p, messages, o, err); break;
    case CHAT_KIMI_LINEAR: s = render_kimi(&p, messages, o, err); break;
    }
    if (s == WEIR_OK) {
        prompt_flush(&p);
    } else {
        ids->n = ids_before;
        if (text != NULL && text->data != NULL) {
            text->n = text_before;
            text->data[text_before] = '\0';
        }
    }
    text_free(&p.pending);
    return s;
}
