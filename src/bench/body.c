/* body.c: composes request bodies. Called by compose.c on its thread.
 * Invariant that bites: equal prefixes must stay equal bytes, and no two plays may share a block,
 * so ids and words come from (play, block) alone and texts get a marker of their play in front. */
#include "bench/body.h"

#include "base/rng.h"

#include <string.h>

enum { PIECE = 4096, DIGITS = 12 };

static const char *const kind_names[SERVER_KINDS] = {"auto",   "weir",      "vllm",
                                                     "sglang", "llama.cpp", "openai"};

const char *server_kind_name(enum server_kind k) {
    return kind_names[k];
}

const char *endpoint_path(enum endpoint e) {
    return e == ENDPOINT_CHAT ? "/v1/chat/completions" : "/v1/completions";
}

bool body_has_history(const struct trace *t) {
    return t->format == TRACE_MULTI_TURN || t->format == TRACE_SHAREGPT;
}

uint64_t body_out_tokens(const struct body_maker *m, const struct call *call) {
    const struct trace_request *r = &m->trace->requests[call->request];
    if (call->one_token)
        return 1;
    return r->has_out ? trace_scaled_out(r, m->length_scale) : m->max_tokens;
}

/* All fields but the prompt, without the closing brace. */
static char *head_of(const struct body_maker *m, const struct call *call) {
    const struct trace_request *r = &m->trace->requests[call->request];
    uint64_t out = body_out_tokens(m, call);
    bool exact = call->one_token || r->has_out;
    bool is_openai = m->server == SERVER_OPENAI;
    json_t *o = json_pack("{s:s, s:b, s:{s:b}}", "model", m->model, "stream", 1, "stream_options",
                          "include_usage", 1);
    if (out > 0)
        json_object_set_new(
            o, is_openai && m->endpoint == ENDPOINT_CHAT ? "max_completion_tokens" : "max_tokens",
            json_integer((json_int_t)out));
    if (exact && !is_openai)
        json_object_set_new(o, "ignore_eos", json_true());
    if (exact && out > 0 && !is_openai && m->server != SERVER_LLAMA_CPP)
        json_object_set_new(o, "min_tokens", json_integer((json_int_t)out));
    const char *key;
    json_t *value;
    if (m->extra) {
        json_t *extra = json_deep_copy(m->extra); /* iterating writes to the object */
        json_object_foreach(extra, key, value) json_object_set(o, key, value);
        json_decref(extra);
    }
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (text)
        text[strlen(text) - 1] = ',';
    return text;
}

static struct trace_play play_of(const struct body_maker *m, const struct call *call) {
    return (struct trace_play){.key = trace_play_key(m->seed, call->play),
                               .low = m->low,
                               .high = m->high,
                               .length_scale = m->length_scale};
}

static char *put_number(char *at, uint32_t v) {
    char digits[DIGITS];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    while (n > 0)
        *at++ = digits[--n];
    return at;
}

static bool reserve(struct text *t, size_t more) {
    if (t->n + more + 1 <= t->capacity)
        return true;
    size_t room = (t->n + more + 1) * 5 / 4;
    char *grown = realloc(t->data, room);
    if (!grown)
        return false;
    t->data = grown;
    t->capacity = room;
    return true;
}

static bool put_ids(const struct body_maker *m, const struct call *call, struct text *out) {
    const struct trace_request *r = &m->trace->requests[call->request];
    struct trace_play play = play_of(m, call);
    int32_t ids[PIECE];
    text_puts(out, "\"prompt\":[");
    uint64_t in = trace_scaled_in(r, m->length_scale);
    for (uint64_t from = 0; from < in; from += PIECE) {
        uint64_t n = in - from < PIECE ? in - from : PIECE;
        trace_prompt_ids(m->trace, r, &play, from, n, ids);
        if (!reserve(out, n * DIGITS))
            return false;
        char *at = out->data + out->n;
        for (uint64_t i = 0; i < n; i++) {
            if (from + i > 0)
                *at++ = ',';
            at = put_number(at, (uint32_t)ids[i]);
        }
        *at = 0;
        out->n = (size_t)(at - out->data);
    }
    text_puts(out, "]}");
    return true;
}

static bool put_words(const struct body_maker *m, const struct call *call, struct text *out) {
    const struct trace_request *r = &m->trace->requests[call->request];
    struct trace_play play = play_of(m, call);
    int32_t ids[PIECE];
    play.low = 0;
    play.high = (int32_t)m->words.n;
    bool is_chat = m->endpoint == ENDPOINT_CHAT;
    text_puts(out, is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"");
    uint64_t in = trace_scaled_in(r, m->length_scale);
    for (uint64_t from = 0; from < in; from += PIECE) {
        uint64_t n = in - from < PIECE ? in - from : PIECE;
        trace_prompt_ids(m->trace, r, &play, from, n, ids);
        if (!reserve(out, n * UINT8_MAX))
            return false;
        for (uint64_t i = 0; i < n; i++) {
            memcpy(out->data + out->n, m->words.word[ids[i]], m->words.bytes[ids[i]]);
            out->n += m->words.bytes[ids[i]];
        }
        out->data[out->n] = 0;
    }
    text_puts(out, is_chat ? "\"}]}" : "\"}");
    return true;
}

static void add_message(json_t *messages, const char *role, const char *text) {
    json_t *content = json_string(text);
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content",
                                              content ? content : json_string("")));
}

static void add_marked(json_t *messages, const char *role, const char *text, const char *marker) {
    struct text all = {0};
    text_puts(&all, marker);
    text_puts(&all, text);
    add_message(messages, role, all.data ? all.data : "");
    text_free(&all);
}

/* The texts of a request joined, behind `marker`. */
static char *joined(const struct trace_request *r, const char *marker) {
    struct text all = {0};
    text_puts(&all, marker);
    const char *text = r->text;
    for (uint32_t i = 0; i < r->n_texts && text; i++) {
        if (i > 0)
            text_puts(&all, "\n");
        text_puts(&all, text);
        text += strlen(text) + 1;
    }
    return all.data;
}

static const char *role_of(const struct trace_request *r) {
    return r->role && *r->role ? r->role : "user";
}

/* One play of a conversation must not find what another play of it left in the cache. */
static void marker_of(const struct body_maker *m, const struct call *call, char out[40]) {
    snprintf(out, 40, "(%016" PRIx64 ") ", trace_play_key(m->seed, call->play));
}

static bool put_texts(const struct body_maker *m, const struct call *call, const struct talk *talk,
                      struct text *out) {
    const struct trace *t = m->trace;
    char marker[40];
    marker_of(m, call, marker);
    const struct trace_request *last = &t->requests[call->request], *first = last;
    if (body_has_history(t))
        first = trace_first_turn(t, last);
    if (m->endpoint == ENDPOINT_COMPLETIONS) {
        char *text = joined(&t->requests[call->request], marker);
        json_t *v = json_string(text);
        char *dumped = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        if (dumped) {
            text_puts(out, "\"prompt\":");
            text_puts(out, dumped);
            text_puts(out, "}");
        }
        json_decref(v);
        free(text);
        free(dumped);
        return dumped != NULL;
    }
    json_t *messages = json_array();
    for (const struct trace_request *r = first; r <= last; r++) {
        size_t turn = (size_t)(r - first);
        if (r->system)
            add_marked(messages, "system", r->system, turn == 0 ? marker : "");
        char *text = joined(r, turn == 0 && !r->system ? marker : "");
        add_message(messages, role_of(r), text ? text : "");
        free(text);
        const char *said = m->recorded_answers            ? r->answer
                           : talk && turn < talk->n_turns ? talk->answer[turn]
                                                          : NULL;
        if (r < last && said)
            add_message(messages, "assistant", said);
    }
    char *dumped = json_dumps(messages, JSON_COMPACT);
    json_decref(messages);
    if (!dumped)
        return false;
    text_puts(out, "\"messages\":");
    text_puts(out, dumped);
    text_puts(out, "}");
    free(dumped);
    return true;
}

void body_make(const struct body_maker *m, const struct call *call, const struct talk *talk,
               struct body *out) {
    const struct trace_request *r = &m->trace->requests[call->request];
    struct text all = {0};
    char *head = head_of(m, call);
    bool ok = head != NULL;
    if (ok) {
        text_puts(&all, head);
        if (r->text)
            ok = put_texts(m, call, talk, &all);
        else if (m->endpoint == ENDPOINT_COMPLETIONS)
            ok = put_ids(m, call, &all);
        else
            ok = put_words(m, call, &all);
    }
    free(head);
    if (!ok)
        text_free(&all);
    *out = (struct body){all.data, all.n};
}
