/* read_turns.c: prompts as text.
 *   single_turn, a line: {"text" or "texts": [...], "timestamp" ms or "delay" ms, "role"}
 *   multi_turn, a line:  {"session_id", "turns": [single_turn ...]}
 * `delay` counts from the answer of the turn before. Lengths are for the tokenizer to say.
 * Called by read.c. */
#include "trace/builder.h"

#define MILLISECOND_NS 1e6

/* The string of `text`, or the strings of `texts`; a fault is noted in *f. */
static const json_t *texts_of(struct json_fields *f, uint32_t *n) {
    const json_t *one = json_field(f, "text"), *many = json_field(f, "texts");
    *n = 1;
    if (f->status)
        return NULL;
    if (one && many)
        json_field_refuse(f, "texts", NULL, WEIR_BAD_FILE, "must not stand beside text");
    else if (!one && !many)
        json_field_refuse(f, "text", NULL, WEIR_BAD_FILE, "is missing, and so is texts");
    else if (one && !json_is_string(one))
        json_field_refuse(f, "text", one, WEIR_BAD_FILE, "must be a string");
    else if (many && (!json_is_array(many) || json_array_size(many) == 0 ||
                      json_array_size(many) > INT32_MAX))
        json_field_refuse(f, "texts", many, WEIR_BAD_FILE, "must be an array of strings");
    if (!many || f->status)
        return one;
    *n = (uint32_t)json_array_size(many);
    for (size_t i = 0; i < *n; i++) {
        const json_t *text = json_array_get(many, i);
        if (json_is_string(text))
            continue;
        char name[40];
        snprintf(name, sizeof name, "texts[%zu]", i);
        json_field_refuse(f, name, text, WEIR_BAD_FILE, "must be a string");
        return NULL;
    }
    return many;
}

/* `t`: start of the turn before; moved on to this one's. */
static weir_status read_turn(struct builder *b, const json_t *turn, const char *scope,
                             uint32_t session, int64_t *t) {
    struct json_fields f = builder_fields(b, turn, scope);
    struct trace_request r = {.session = session,
                              .agent = -1,
                              .api_time = TRACE_ABSENT,
                              .think_time = TRACE_ABSENT,
                              .ttft = TRACE_ABSENT};
    const json_t *texts = texts_of(&f, &r.n_texts);
    int64_t timestamp = builder_time(&f, "timestamp", false, MILLISECOND_NS);
    r.delay = builder_time(&f, "delay", false, MILLISECOND_NS);
    if (timestamp >= 0 && r.delay >= 0)
        json_field_refuse(&f, "delay", NULL, WEIR_BAD_FILE, "must not stand beside timestamp");
    const char *role = json_field_string(&f, "role", false);
    if (f.status)
        return f.status;
    r.t = timestamp >= 0 ? timestamp : *t + (r.delay > 0 ? r.delay : 0);
    *t = r.t;
    return builder_request(b, &r, &(struct builder_extra){.texts = texts, .role = role});
}

static weir_status open_session(struct builder *b, const char *id, uint32_t *session) {
    struct trace_session *s;
    weir_status status = id ? builder_session(b, id, &s) : builder_turn_session(b, NULL, &s);
    if (status)
        return status;
    s->block_tokens = b->block_tokens;
    s->space = builder_space(b, true);
    *session = (uint32_t)(s - b->t.sessions);
    return WEIR_OK;
}

weir_status read_single_turn_object(struct builder *b, const json_t *object) {
    uint32_t session;
    int64_t t = 0;
    weir_status s = open_session(b, NULL, &session);
    return s ? s : read_turn(b, object, "", session, &t);
}

weir_status read_multi_turn_object(struct builder *b, const json_t *object) {
    struct json_fields f = builder_fields(b, object, "");
    const char *id = json_field_string(&f, "session_id", true);
    const json_t *turns = f.status ? NULL : json_field(&f, "turns");
    if (!f.status && !json_is_array(turns))
        json_field_refuse(&f, "turns", turns, WEIR_BAD_FILE,
                          turns ? "must be an array" : "is missing");
    uint32_t session;
    weir_status s = f.status ? f.status : open_session(b, id, &session);
    int64_t t = 0;
    for (size_t i = 0; !s && i < json_array_size(turns); i++) {
        char scope[40];
        const json_t *turn = json_array_get(turns, i);
        snprintf(scope, sizeof scope, "turns[%zu].", i);
        if (!json_is_object(turn))
            return builder_refuse(b, "field turns[%zu]: must be an object", i);
        s = read_turn(b, turn, scope, session, &t);
    }
    return s;
}
