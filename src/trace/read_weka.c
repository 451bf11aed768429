/* read_weka.c: agent sessions. One object a session:
 *   {"id", "block_size" (64), "hash_id_scope" ("local"), "requests": [entry ...]}
 *   entry: {"t" s, "type" "n" or "s", "in", "out", "hash_ids", "api_time" s, "think_time" s, "ttft"
 * s} or {"t", "type" "subagent", "agent_id", "subagent_type", "duration_ms", "requests": [entry
 * ...]} hash_ids: a number for each full block of the prompt, or for the partial last one too.
 * Called by read.c.
 * Invariant that bites: releases differ in whether a sub-agent's inner times count from its own
 * entry or from the session's start. That is decided once for a sub-agent, by its first call: a
 * long relative one passes its entry's t, and call by call it would be torn apart. */
#include "trace/builder.h"

#include "base/plural.h"

#include <string.h>

enum { DEFAULT_BLOCK = 64, SCOPE_BYTES = 64 };
#define SECOND_NS      1e9
#define MILLISECOND_NS 1e6

struct weka {
    struct builder *b;
    uint32_t session, block_tokens;
};

/* How many of the n numbers count: as many as the prompt has blocks at most. */
static uint32_t usable_blocks(struct weka *w, const char *scope, uint64_t in, size_t n) {
    uint64_t whole = in / w->block_tokens, all = whole + (in % w->block_tokens != 0);
    if (n == whole || n == all)
        return (uint32_t)n;
    builder_warn(w->b,
                 "field %shash_ids: %zu %s for %" PRIu64 " %s in blocks of %" PRIu32
                 ", neither one for each full block nor one for each block",
                 scope, n, plural(n, "number", "numbers"), in, plural(in, "token", "tokens"),
                 w->block_tokens);
    return (uint32_t)(n < all ? n : all);
}

/* A model call; `from` is added to its time. */
static weir_status read_call(struct weka *w, const json_t *entry, const char *scope, int32_t agent,
                             int64_t from) {
    struct json_fields f = builder_fields(w->b, entry, scope);
    struct trace_request r = {.session = w->session, .agent = agent, .has_out = true};
    const char *type = json_field_string(&f, "type", true);
    if (type && strcmp(type, "n") && strcmp(type, "s"))
        json_field_refuse(&f, "type", json_field(&f, "type"), WEIR_BAD_FILE, "must be %s",
                          agent < 0 ? "\"n\", \"s\" or \"subagent\"" : "\"n\" or \"s\"");
    r.streamed = type && !strcmp(type, "s");
    r.t = from + builder_time(&f, "t", true, SECOND_NS);
    r.in = builder_count(&f, "in", true, 0);
    r.out = builder_count(&f, "out", true, 0);
    r.api_time = builder_time(&f, "api_time", false, SECOND_NS);
    r.think_time = builder_time(&f, "think_time", false, SECOND_NS);
    r.ttft = builder_time(&f, "ttft", false, SECOND_NS);
    r.delay = TRACE_ABSENT;
    size_t n;
    uint64_t *ids = builder_numbers(&f, "hash_ids", true, &n);
    weir_status s = f.status;
    if (!s) {
        r.n_blocks = usable_blocks(w, scope, r.in, n);
        s = builder_request(w->b, &r, &(struct builder_extra){.ids = ids});
    }
    free(ids);
    return s;
}

/* An array of entries; NULL and a failure noted in *f where it is none. */
static const json_t *entries(struct json_fields *f) {
    const json_t *v = f->status ? NULL : json_field(f, "requests");
    if (f->status || json_is_array(v))
        return v;
    json_field_refuse(f, "requests", v, WEIR_BAD_FILE, v ? "must be an array" : "is missing");
    return NULL;
}

/* Is the entry an object with a time? The fault is recorded with the full name of the field. */
static weir_status entry_time(struct weka *w, const json_t *entry, const char *scope,
                              const char *name, int64_t *t) {
    if (!json_is_object(entry))
        return builder_refuse(w->b, "field %s: must be an object", name);
    struct json_fields f = builder_fields(w->b, entry, scope);
    *t = builder_time(&f, "t", true, SECOND_NS);
    return f.status;
}

static weir_status read_subagent(struct weka *w, const json_t *entry, const char *scope, int64_t t,
                                 uint32_t after) {
    struct json_fields f = builder_fields(w->b, entry, scope);
    struct trace_agent a = {.t = t, .session = w->session, .after = after};
    const char *id = json_field_string(&f, "agent_id", false);
    const char *type = json_field_string(&f, "subagent_type", false);
    a.duration = builder_time(&f, "duration_ms", false, MILLISECOND_NS);
    const json_t *inner = entries(&f);
    if (f.status)
        return f.status;

    weir_status s = WEIR_OK;
    int32_t number = (int32_t)w->b->t.n_agents;
    for (size_t i = 0; !s && i < json_array_size(inner); i++) {
        char place[SCOPE_BYTES + 32], name[sizeof place];
        snprintf(name, sizeof name, "%srequests[%zu]", scope, i);
        snprintf(place, sizeof place, "%srequests[%zu].", scope, i);
        const json_t *call = json_array_get(inner, i);
        int64_t inner_t = 0;
        s = entry_time(w, call, place, name, &inner_t);
        if (!s && i == 0) {
            a.relative = inner_t + 1000 < t; /* 1 us: what rounding may do */
            s = builder_agent(w->b, id, type, &a);
        }
        if (!s)
            s = read_call(w, call, place, number, a.relative ? t : 0);
    }
    if (!s && json_array_size(inner) == 0)
        s = builder_agent(w->b, id, type, &a);
    return s;
}

static weir_status read_entry(struct weka *w, const json_t *entry, size_t i, int64_t *t) {
    char scope[SCOPE_BYTES], name[SCOPE_BYTES];
    snprintf(name, sizeof name, "requests[%zu]", i);
    snprintf(scope, sizeof scope, "requests[%zu].", i);
    int64_t before = *t;
    weir_status s = entry_time(w, entry, scope, name, t);
    if (s)
        return s;
    if (*t < before)
        return builder_refuse(w->b, "field %st: must not be below that of the entry before", scope);
    const char *type = json_string_value(json_object_get(entry, "type"));
    const struct trace_session *session = &w->b->t.sessions[w->session];
    if (type && !strcmp(type, "subagent"))
        return read_subagent(w, entry, scope, *t, session->n_own);
    return read_call(w, entry, scope, -1, 0);
}

weir_status read_weka_object(struct builder *b, const json_t *object) {
    struct json_fields f = builder_fields(b, object, "");
    const char *id = json_field_string(&f, "id", true);
    const char *scope = json_field_string(&f, "hash_id_scope", false);
    if (scope && strcmp(scope, "local") && strcmp(scope, "global"))
        json_field_refuse(&f, "hash_id_scope", json_field(&f, "hash_id_scope"), WEIR_BAD_FILE,
                          "must be \"local\" or \"global\"");
    struct weka w = {.b = b, .session = b->t.n_sessions};
    w.block_tokens =
        (uint32_t)json_field_integer(&f, "block_size", false, DEFAULT_BLOCK, 1, 1 << 30);
    const json_t *list = entries(&f);
    if (f.status)
        return f.status;
    struct trace_session *session;
    weir_status s = builder_session(b, id, &session);
    if (s)
        return s;
    session->block_tokens = w.block_tokens;
    session->space = builder_space(b, scope && !strcmp(scope, "global"));
    int64_t t = 0;
    if (!json_array_size(list))
        builder_warn(b, "field requests: is empty; the session calls nothing");
    for (size_t i = 0; !s && i < json_array_size(list); i++)
        s = read_entry(&w, json_array_get(list, i), i, &t);
    return s;
}
