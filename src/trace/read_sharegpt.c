/* read_sharegpt.c: conversations with the answers that were given, one JSON array of
 *   {"id", "conversations": [{"from": "human" or "gpt", "value"} ...]}
 * A turn is what a human said; the answer behind it is what later turns contain. Answers in front
 * of the first human turn, which exports of cut conversations have, are left out. Called by read.c.
 */
#include "trace/builder.h"

#include <errno.h>
#include <string.h>

enum speaker { SPEAKER_HUMAN, SPEAKER_MODEL, SPEAKER_SYSTEM, SPEAKER_OTHER };

static enum speaker speaker_of(const char *from) {
    static const struct {
        const char *name;
        enum speaker who;
    } names[] = {{"human", SPEAKER_HUMAN},     {"user", SPEAKER_HUMAN},   {"gpt", SPEAKER_MODEL},
                 {"chatgpt", SPEAKER_MODEL},   {"bing", SPEAKER_MODEL},   {"bard", SPEAKER_MODEL},
                 {"assistant", SPEAKER_MODEL}, {"system", SPEAKER_SYSTEM}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(from, names[i].name))
            return names[i].who;
    return SPEAKER_OTHER;
}

/* One entry of the conversation; a fault is recorded with its place. */
static weir_status read_entry(struct builder *b, const json_t *entry, const char *scope,
                              enum speaker *who, const json_t **value) {
    if (!json_is_object(entry))
        return builder_refuse(b, "field %.*s: must be an object", (int)strlen(scope) - 1, scope);
    struct json_fields f = builder_fields(b, entry, scope);
    const char *from = json_field_string(&f, "from", true);
    json_field_string(&f, "value", true);
    if (f.status)
        return f.status;
    *who = speaker_of(from);
    *value = json_field(&f, "value");
    if (*who == SPEAKER_OTHER)
        json_field_refuse(&f, "from", json_field(&f, "from"), WEIR_BAD_FILE,
                          "must be human, gpt or system");
    return f.status;
}

static weir_status add_turn(struct builder *b, uint32_t session, const json_t *said,
                            const char *answer) {
    struct trace_request r = {.session = session,
                              .agent = -1,
                              .n_texts = 1,
                              .delay = TRACE_ABSENT,
                              .api_time = TRACE_ABSENT,
                              .think_time = TRACE_ABSENT,
                              .ttft = TRACE_ABSENT};
    return builder_request(
        b, &r, &(struct builder_extra){.texts = said, .role = "user", .answer = answer});
}

static weir_status read_entries(struct builder *b, const json_t *entries, uint32_t session,
                                size_t number) {
    const json_t *said = NULL;
    weir_status s = WEIR_OK;
    for (size_t i = 0; !s && i < json_array_size(entries); i++) {
        char scope[80];
        enum speaker who = SPEAKER_OTHER;
        const json_t *value = NULL;
        snprintf(scope, sizeof scope, "[%zu].conversations[%zu].", number, i);
        s = read_entry(b, json_array_get(entries, i), scope, &who, &value);
        if (s || who == SPEAKER_SYSTEM)
            continue;
        bool answers = who == SPEAKER_MODEL && said;
        if (who == SPEAKER_MODEL && !said)
            builder_warn(b, "field %sfrom: an answer without a question, left out", scope);
        if (said)
            s = add_turn(b, session, said, answers ? json_string_value(value) : NULL);
        said = who == SPEAKER_HUMAN ? value : NULL;
    }
    if (!s && said)
        s = add_turn(b, session, said, NULL);
    return s;
}

static bool has_human(const json_t *entries) {
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const char *from = json_string_value(json_object_get(json_array_get(entries, i), "from"));
        if (from && speaker_of(from) == SPEAKER_HUMAN)
            return true;
    }
    return false;
}

static weir_status read_conversation(struct builder *b, const json_t *object, size_t number) {
    char scope[40], name[48];
    snprintf(scope, sizeof scope, "[%zu].", number);
    if (!json_is_object(object))
        return builder_refuse(b, "field [%zu]: must be an object", number);
    struct json_fields f = builder_fields(b, object, scope);
    const char *id = json_field_string(&f, "id", false);
    const json_t *entries = f.status ? NULL : json_field(&f, "conversations");
    if (!f.status && !json_is_array(entries))
        json_field_refuse(&f, "conversations", entries, WEIR_BAD_FILE,
                          entries ? "must be an array" : "is missing");
    if (f.status)
        return f.status;
    if (!has_human(entries)) {
        builder_warn(b, "field [%zu].conversations: nobody asks anything, left out", number);
        return WEIR_OK;
    }
    struct trace_session *session;
    snprintf(name, sizeof name, "conversation %zu", number);
    weir_status s = builder_session(b, id ? id : name, &session);
    if (s)
        return s;
    session->block_tokens = b->block_tokens;
    session->space = builder_space(b, true);
    return read_entries(b, entries, (uint32_t)(session - b->t.sessions), number);
}

weir_status read_sharegpt(struct builder *b, FILE *in) {
    json_error_t fault;
    builder_line(b, 1);
    json_t *all = json_loadf(in, JSON_REJECT_DUPLICATES, &fault);
    if (!all && json_error_code(&fault) == json_error_out_of_memory)
        return builder_no_memory(b);
    if (!all) {
        builder_line(b, fault.line > 0 ? (uint64_t)fault.line : 1);
        return builder_refuse(b, "is not a JSON array: column %d: %.200s", fault.column,
                              fault.text);
    }
    weir_status s = WEIR_OK;
    if (!json_is_array(all))
        s = builder_refuse(b, "is not a JSON array");
    for (size_t i = 0; !s && i < json_array_size(all); i++)
        s = read_conversation(b, json_array_get(all, i), i);
    json_decref(all);
    return s;
}
