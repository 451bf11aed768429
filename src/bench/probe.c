/* probe.c: asks the endpoints that tell servers apart. Called by replay.c before the first call. */
#include "bench/probe.h"

#include "bench/adapter.h"

#include <string.h>

#define SECONDS 10

/* GET as JSON; NULL: no 200, or no JSON. Kept in info under the path. `head`: how what came
 * begins. */
static json_t *ask_head(struct client *c, struct probe *p, const char *path,
                        struct client_text *text, char *head, size_t cap) {
    client_fetch(c, path, NULL, SECONDS, text);
    json_t *v = text->ok && text->status == 200 && text->text
                    ? json_loadb(text->text, text->n, JSON_ALLOW_NUL, NULL)
                    : NULL;
    if (v)
        json_object_set(p->info, path, v);
    if (cap > 0)
        snprintf(head, cap, "%s", text->text ? text->text : "");
    free(text->text);
    text->text = NULL;
    return v;
}

static json_t *ask(struct client *c, struct probe *p, const char *path, struct client_text *text) {
    return ask_head(c, p, path, text, NULL, 0);
}

static uint64_t positive(const json_t *v) {
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

static void copy(char *out, size_t cap, const char *text) {
    if (text)
        snprintf(out, cap, "%s", text);
}

/* {"data": [{"id", "owned_by", "max_model_len"} ...]} */
static weir_status read_models(struct probe *p, const json_t *models, const char *wanted,
                               weir_error *err) {
    const json_t *list = json_object_get(models, "data"), *chosen = NULL;
    struct text names = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        const char *id = json_string_value(json_object_get(m, "id"));
        if (id && !chosen && (!wanted || !strcmp(wanted, id)))
            chosen = m;
        if (id) {
            text_puts(&names, names.n ? ", " : "");
            text_puts(&names, id);
        }
    }
    copy(p->model, sizeof p->model,
         wanted ? wanted : json_string_value(json_object_get(chosen, "id")));
    weir_status s = WEIR_OK;
    if (wanted && names.n > 0 && !chosen)
        s = weir_fail(err, WEIR_BAD_VALUE, "--model-name",
                      "the server has no model %s; it serves %.300s", wanted, names.data);
    text_free(&names);
    const char *owner = json_string_value(json_object_get(chosen, "owned_by"));
    for (int k = SERVER_WEIR; owner && k < SERVER_OPENAI; k++)
        if (p->kind == SERVER_AUTO && !strcmp(owner, server_kind_name((enum server_kind)k)))
            p->kind = (enum server_kind)k;
    if (p->kind == SERVER_AUTO && owner && !strcmp(owner, "llamacpp"))
        p->kind = SERVER_LLAMA_CPP;
    p->max_context = positive(json_object_get(chosen, "max_model_len"));
    /* llama.cpp refuses ids beyond its vocabulary, and tells its size here alone. */
    uint64_t vocab = positive(json_object_get(json_object_get(chosen, "meta"), "n_vocab"));
    p->vocab = vocab <= INT32_MAX ? (uint32_t)vocab : 0;
    return s;
}

static void read_metrics(struct client *c, struct probe *p) {
    struct client_text t;
    client_fetch(c, "/metrics", NULL, SECONDS, &t);
    if (t.ok && t.status == 200 && t.text) {
        enum server_kind kind = adapter_of_metrics(t.text, t.n);
        if (p->kind == SERVER_AUTO)
            p->kind = kind;
        struct server_sample s;
        p->has_metrics = adapter_read(p->kind, t.text, t.n, &s) > 0;
    }
    free(t.text);
}

/* llama.cpp: the context of one slot, and its build. */
static void read_props(struct probe *p, const json_t *props) {
    const json_t *settings = json_object_get(props, "default_generation_settings");
    if (!json_is_object(settings))
        return;
    if (p->kind == SERVER_AUTO)
        p->kind = SERVER_LLAMA_CPP;
    if (p->kind != SERVER_LLAMA_CPP)
        return;
    uint64_t n = positive(json_object_get(settings, "n_ctx"));
    if (n > 0)
        p->max_context = n;
    copy(p->version, sizeof p->version, json_string_value(json_object_get(props, "build_info")));
}

/* SGLang and weir. */
static void read_info(struct probe *p, const json_t *info) {
    const char *version = json_string_value(json_object_get(info, "version"));
    if (p->kind == SERVER_AUTO && json_object_get(info, "max_running_requests"))
        p->kind = SERVER_SGLANG;
    copy(p->version, sizeof p->version, version);
    uint64_t n = positive(json_object_get(info, "max_req_input_len"));
    if (p->max_context == 0)
        p->max_context = n > 0 ? n : positive(json_object_get(info, "context_length"));
}

static bool has(const char *text, const char *part) {
    return strcasestr(text, part) != NULL;
}

/* One side speaks TLS and the other does not: libcurl and servers say so in many ways. */
static const char *scheme_hint(const struct client *c, const struct client_text *t,
                               const char *head) {
    if (!strncmp(client_url(c), "https:", 6))
        return !t->ok &&
                       (has(t->message, "wrong version number") ||
                        has(t->message, "unknown protocol") ||
                        has(t->message, "packet length too long") ||
                        has(t->message, "record layer failure") || has(t->message, "http request"))
                   ? "; it does not speak TLS there: try http://"
                   : "";
    bool refused = t->ok && t->status == 400 && (has(head, "https") || has(head, "TLS"));
    bool hung_up = !t->ok && (has(t->message, "Empty reply") || has(t->message, "HTTP/0.9") ||
                              has(t->message, "reset by peer"));
    return refused   ? "; it speaks TLS there: try https://"
           : hung_up ? "; if it speaks TLS there, it is https://"
                     : "";
}

/* The first answer says whether it is worth asking on. */
static weir_status judge_first(const struct client *c, const struct client_text *t,
                               const char *head, weir_error *err) {
    const char *hint = scheme_hint(c, t, head);
    if (!t->ok)
        return weir_fail(err, WEIR_CLOSED, "--url", "the server does not answer: %s%s", t->message,
                         hint);
    if (*hint)
        return weir_fail(err, WEIR_CLOSED, "--url", "status %d at /v1/models%s", t->status, hint);
    /* Up, but still loading its model: whatever it is asked now says nothing of what it is. */
    if (t->status == 503)
        return weir_fail(err, WEIR_CLOSED, "--url",
                         "the server is up but not ready: status 503 at /v1/models");
    if (t->status != 401 && t->status != 403)
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_VALUE, "--api-key",
                     client_has_key(c)
                         ? "the server refuses it: status %d at /v1/models"
                         : "the server wants one and none was given: status %d at /v1/models",
                     t->status);
}

weir_status probe_server(struct client *c, enum server_kind wanted, const char *model,
                         struct probe *out, weir_error *err) {
    struct client_text t;
    *out = (struct probe){.kind = wanted, .info = json_object()};
    char head[256] = "";
    json_t *models = ask_head(c, out, "/v1/models", &t, head, sizeof head);
    weir_status s = judge_first(c, &t, head, err);
    if (s) {
        json_decref(models);
        probe_free(out);
        return s;
    }
    s = read_models(out, models, model, err);
    json_decref(models);
    if (s) {
        probe_free(out);
        return s;
    }
    read_metrics(c, out);
    json_t *v = ask(c, out, "/version", &t);
    copy(out->version, sizeof out->version, json_string_value(json_object_get(v, "version")));
    /* vLLM without metrics: nobody else has this endpoint and no other sign. */
    bool versioned = v != NULL;
    json_decref(v);
    if (out->kind == SERVER_AUTO || out->kind == SERVER_LLAMA_CPP) {
        v = ask(c, out, "/props", &t);
        read_props(out, v);
        json_decref(v);
    }
    if (out->kind == SERVER_AUTO || out->kind == SERVER_SGLANG || out->kind == SERVER_WEIR) {
        v = ask(c, out, "/get_server_info", &t);
        if (!v)
            v = ask(c, out, "/server_info", &t);
        read_info(out, v);
        json_decref(v);
    }
    if (out->kind == SERVER_WEIR) {
        v = ask(c, out, "/get_model_info", &t);
        out->vocab = (uint32_t)positive(json_object_get(v, "vocab_size"));
        json_decref(v);
    }
    if (out->kind == SERVER_AUTO)
        out->kind = versioned ? SERVER_VLLM : SERVER_OPENAI;
    return WEIR_OK;
}

void probe_free(struct probe *p) {
    json_decref(p->info);
    *p = (struct probe){0};
}
