/* read_sharegpt.c: conversations with their answers, as one JSON array or one a line:
 *   {"id", "conversations": [{"from" "human" or "gpt" or "system", "value"} ...]}
 * Every human turn is a request; the answer behind it is kept with it, a system turn goes with the
 * next request. Published files also say "user", "assistant", "chatgpt", "bing" and "bard", hold
 * conversations that begin with an answer, and conversations without turns. Nothing is said of
 * times: turns follow each other. Called by read.c.
 * The array is read element by element, so that a fault has a line and a large file is not held
 * as JSON all at once. */
#include "trace/builder.h"

#include <string.h>

enum speaker { HUMAN, MODEL, SYSTEM, NOBODY };

static enum speaker speaker_of(const char *from) {
    static const struct {
        const char *name;
        enum speaker who;
    } known[] = {{"human", HUMAN},   {"user", HUMAN}, {"gpt", MODEL},  {"assistant", MODEL},
                 {"chatgpt", MODEL}, {"bing", MODEL}, {"bard", MODEL}, {"system", SYSTEM}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, from))
            return known[i].who;
    return NOBODY;
}

/* Who speaks and what in entry i; a fault has the entry's full name. `of` is the conversation's. */
static weir_status read_entry(struct builder *b, const json_t *list, const char *of, size_t i,
                              enum speaker *who, const char **value) {
    char scope[80];
    const json_t *entry = json_array_get(list, i);
    if (!json_is_object(entry))
        return builder_refuse(b, "field %sconversations[%zu]: must be an object", of, i);
    snprintf(scope, sizeof scope, "%sconversations[%zu].", of, i);
    struct json_fields f = builder_fields(b, entry, scope);
    const char *from = json_field_string(&f, "from", true);
    *value = json_field_string(&f, "value", true);
    *who = from ? speaker_of(from) : NOBODY;
    if (!f.status && *who == NOBODY)
        json_field_refuse(&f, "from", json_field(&f, "from"), WEIR_BAD_FILE,
                          "must be \"human\", \"gpt\" or \"system\"");
    return f.status;
}

static weir_status open_conversation(struct builder *b, const char *id, uint32_t *session) {
    struct trace_session *s;
    char name[40];
    snprintf(name, sizeof name, "conversation %" PRIu32, b->t.n_sessions + 1);
    weir_status status = builder_loose_session(b, id && *id ? id : name, &s);
    if (status)
        return status;
    s->block_tokens = b->block_tokens;
    s->space = builder_space(b, true);
    *session = (uint32_t)(s - b->t.sessions);
    return WEIR_OK;
}

static weir_status read_conversation(struct builder *b, const json_t *object, const char *scope) {
    struct json_fields f = builder_fields(b, object, scope);
    const char *id = json_field_string(&f, "id", false);
    const json_t *list = f.status ? NULL : json_field(&f, "conversations");
    if (!f.status && !json_is_array(list))
        json_field_refuse(&f, "conversations", list, WEIR_BAD_FILE,
                          list ? "must be an array" : "is missing");
    struct trace_request r = {.agent = -1,
                              .delay = TRACE_ABSENT,
                              .api_time = TRACE_ABSENT,
                              .think_time = TRACE_ABSENT,
                              .ttft = TRACE_ABSENT,
                              .n_texts = 1};
    const char *system = NULL;
    bool open = false;
    weir_status s = f.status;
    size_t n = json_array_size(list);
    for (size_t i = 0; !s && i < n; i++) {
        enum speaker who, next = NOBODY;
        const char *value, *answer = NULL;
        s = read_entry(b, list, scope, i, &who, &value);
        if (!s && who == SYSTEM)
            system = value;
        else if (!s && who == MODEL)
            builder_warn(b, "field %sconversations[%zu]: an answer to nothing is left out", scope,
                         i);
        if (s || who != HUMAN)
            continue;
        if (i + 1 < n)
            s = read_entry(b, list, scope, i + 1, &next, &answer);
        if (!s && !open)
            s = open_conversation(b, id, &r.session);
        open = true;
        if (!s)
            s = builder_request(
                b, &r,
                &(struct builder_extra){.texts = json_object_get(json_array_get(list, i), "value"),
                                        .role = "user",
                                        .system = system,
                                        .answer = next == MODEL ? answer : NULL});
        system = NULL;
        i += next == MODEL;
    }
    if (!s && !open)
        builder_warn(b, "field %sconversations: nobody asks anything, left out", scope);
    return s;
}

/* ----------------------------------------------------------------------------------- the elements
 */

struct cursor {
    const char *at, *end;
    uint64_t line;
    size_t n; /* elements so far */
    bool in_array;
};

/* The next byte that is no white space; 0 at the end. */
static char skip_space(struct cursor *c) {
    for (; c->at < c->end && strchr(" \t\r\n", *c->at); c->at++)
        c->line += *c->at == '\n';
    return c->at < c->end ? *c->at : 0;
}

static weir_status read_element(struct builder *b, struct cursor *c) {
    json_error_t fault;
    builder_line(b, c->line);
    if (*c->at != '{')
        return builder_refuse(b, "is not a JSON object");
    json_t *object = json_loadb(c->at, (size_t)(c->end - c->at),
                                JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &fault);
    if (!object) {
        builder_line(b, c->line + (fault.line > 0 ? (uint64_t)fault.line - 1 : 0));
        return builder_json_fault(b, &fault);
    }
    char scope[32] = "";
    if (c->in_array)
        snprintf(scope, sizeof scope, "[%zu].", c->n++);
    weir_status s = read_conversation(b, object, scope);
    json_decref(object);
    for (const char *to = c->at + fault.position; c->at < to; c->at++)
        c->line += *c->at == '\n';
    return s;
}

/* [element, element ...] with nothing behind it. */
static weir_status read_array(struct builder *b, struct cursor *c) {
    weir_status s = WEIR_OK;
    c->at++;
    c->in_array = true;
    if (skip_space(c) == ']')
        c->at++;
    else
        for (bool more = true; !s && more;) {
            skip_space(c);
            s = c->at < c->end ? read_element(b, c) : WEIR_OK;
            char next = s ? 0 : skip_space(c);
            if (s)
                break;
            builder_line(b, c->line);
            if (next != ',' && next != ']')
                return builder_refuse(b, next ? "must go on with a comma or the end of the array"
                                              : "ends within its array");
            more = next == ',';
            c->at++;
        }
    if (!s && skip_space(c)) {
        builder_line(b, c->line);
        s = builder_refuse(b, "has something behind its array");
    }
    return s;
}

weir_status read_sharegpt(struct builder *b, FILE *in) {
    char *text = NULL;
    size_t room = 0, bytes = 0;
    weir_status s = builder_slurp(b, in, &text, &room, 0, &bytes);
    struct cursor c = {.at = text, .end = text + bytes, .line = 1};
    if (!s && skip_space(&c) == '[')
        s = read_array(b, &c);
    else
        while (!s && skip_space(&c))
            s = read_element(b, &c);
    free(text);
    return s;
}
