/* admin.c: the endpoints about the server itself. Called by the transport through its routes.
 * None of them lets the loop wait for the engine: /health must answer while a step hangs, that is
 * what it is for. (/health_generate asks for a token, as its name says, and a reset of the cache
 * waits on a worker thread for the step to end.) */
#include "serve/admin.h"

#include "base/version.h"
#include "serve/http_server.h"
#include "serve/metrics.h"
#include "serve/server_inside.h"
#include "serve/turns.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

static void reply(struct http_reply *r, int status, json_t *value) {
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text)
        http_reply_json(r, status, text, strlen(text));
    else
        http_reply_error(r, 503, NULL, "out of memory");
    free(text);
}

/* ---- health ---- */

static void health(void *arg, struct http_request *q, struct http_reply *r) {
    const char *fault = server_fault(arg);
    if (fault)
        http_reply_error(r, 503, NULL, "%s", fault);
    else
        http_reply_bytes(r, 200, NULL, "", 0);
}

static void ready(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    const char *fault = server_fault(s);
    weir_stats stats;
    if (!fault && !http_is_ready(s->http))
        fault = "the server is shutting down";
    if (!fault) {
        uint32_t most = s->config->engine.max_queue;
        weir_get_stats(s->engine, &stats);
        if (stats.waiting >= (most ? most : DEFAULT_MAX_QUEUE))
            fault = "the queue is full";
    }
    if (fault)
        http_reply_error(r, 503, NULL, "%s", fault);
    else
        reply(r, 200, json_pack("{s:b}", "ready", 1));
}

/* One token, asked of the engine and looked for by a timer: the API owns weir_ready. */
struct probe {
    struct server *server;
    struct http_reply *reply;
    weir_request *request;
    struct http_timer *timer;
    double deadline;
};

enum { PROBE_SECONDS = 20 };
static const double PROBE_LOOK_SECONDS = 0.01;

static void probe_free(struct probe *p) {
    if (p->timer)
        http_timer_cancel(p->timer);
    weir_release(p->request);
    free(p);
}

static void probe_closed(void *arg) {
    probe_free(arg);
}

static void probe_look(void *arg) {
    struct probe *p = arg;
    weir_token token;
    weir_progress progress;
    size_t n = weir_poll(p->request, &token, 1, &progress);
    p->timer = NULL;
    if (n > 0) {
        http_reply_bytes(p->reply, 200, NULL, "", 0);
    } else if (progress.finish == WEIR_RUNNING && weir_now() < p->deadline) {
        p->timer = http_timer_start(p->server->http, PROBE_LOOK_SECONDS, probe_look, p);
        if (p->timer)
            return;
        http_reply_error(p->reply, 503, NULL, "out of memory");
    } else {
        http_reply_error(p->reply, 503, NULL, "the engine gave no token");
    }
    probe_free(p);
}

static void health_generate(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    struct probe *p = calloc(1, sizeof *p);
    weir_params params = weir_params_default();
    weir_error err;
    const int32_t prompt = 0;
    params.max_tokens = 1;
    params.temperature = 0;
    params.ignore_eos = true;
    if (!p || weir_submit(s->engine, &prompt, 1, &params, NULL, &p->request, &err) != WEIR_OK) {
        free(p);
        http_reply_error(r, 503, NULL, "the engine takes no request");
        return;
    }
    p->server = s;
    p->reply = r;
    p->deadline = weir_now() + PROBE_SECONDS;
    http_on_closed(r, probe_closed, p);
    probe_look(p);
}

/* ---- what this is ---- */

static void version(void *arg, struct http_request *q, struct http_reply *r) {
    reply(r, 200, json_pack("{s:s}", "version", WEIR_VERSION));
}

static void load(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    reply(r, 200, json_pack("{s:I}", "server_load", (json_int_t)http_in_flight(s->http)));
}

static json_t *model_object(const struct server *s, const char *name) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:I, s:[]}", "id", name, "object", "model",
                     "created", (json_int_t)s->created, "owned_by", "weir", "root", s->names[0],
                     "parent", "max_model_len", (json_int_t)s->info.max_model_len, "permission");
}

static void models(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_names; i++)
        json_array_append_new(list, model_object(s, s->names[i]));
    reply(r, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

static void model(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    for (size_t i = 0; i < s->n_names; i++)
        if (strcmp(s->names[i], q->rest) == 0) {
            reply(r, 200, model_object(s, s->names[i]));
            return;
        }
    http_reply_error(r, 404, "model", "the model %.200s is not served here", q->rest);
}

static bool is_loaded(const struct server *s, struct http_reply *r) {
    if (!s->engine)
        http_reply_error(r, 503, NULL, "the model is being loaded");
    return s->engine != NULL;
}

static void model_info(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    if (!is_loaded(s, r))
        return;
    reply(r, 200,
          json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I}", "model_path", s->names[0],
                    "is_generation", 1, "model_type", s->info.family, "column", s->info.column,
                    "vocab_size", (json_int_t)s->info.vocab_size, "max_model_len",
                    (json_int_t)s->info.max_model_len, "weight_bytes",
                    (json_int_t)s->info.weight_bytes));
}

static json_t *tiers_object(const weir_info *i) {
    json_t *tiers = json_object();
    for (int k = 0; k < WEIR_SOURCES; k++)
        if (i->tier_open[k])
            json_object_set_new(
                tiers, weir_source_name((enum weir_source)k),
                i->tier_bytes[k] ? json_pack("{s:I}", "limit_bytes", (json_int_t)i->tier_bytes[k])
                                 : json_object());
    return tiers;
}

static void server_info(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    const weir_info *i = &s->info;
    if (!is_loaded(s, r))
        return;
    reply(r, 200,
          json_pack(
              "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:I, s:o}", "version",
              WEIR_VERSION, "served_model_name", s->names[0], "max_model_len",
              (json_int_t)i->max_model_len, "max_num_seqs", (json_int_t)i->max_num_seqs,
              "max_num_batched_tokens", (json_int_t)i->max_num_batched_tokens, "page_tokens",
              (json_int_t)i->page_tokens, "kv_pages", (json_int_t)i->kv_pages, "state_slots",
              (json_int_t)i->state_slots, "threads", (json_int_t)i->threads, "kv_cache_bytes",
              (json_int_t)(i->kv_pages * i->kv_page_bytes + i->state_slots * i->state_slot_bytes),
              "prefix_caching", i->prefix_caching, "checkpoint_policy", i->checkpoint_policy,
              "max_checkpoints", (json_int_t)(i->state_slots - i->max_num_seqs), "tiers",
              tiers_object(i)));
}

static void metrics(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    weir_stats stats;
    struct metrics_now now = {.connections = http_connections(s->http),
                              .in_flight = http_in_flight(s->http),
                              .ready = http_is_ready(s->http)};
    struct turns_stats turns;
    if (s->turns) {
        turns = turns_stats(s->turns);
        now.turns = &turns;
    }
    if (s->engine) {
        weir_get_stats(s->engine, &stats);
        metrics_steps(s->metrics, &stats);
        now.stats = &stats;
    }
    size_t bytes;
    char *text = metrics_text(s->metrics, &now, &bytes);
    if (text)
        http_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", text, bytes);
    else
        http_reply_error(r, 503, NULL, "out of memory");
    free(text);
}

/* ---- administration ---- */

enum { ABORT_BYTES = 4096 }; /* it is parsed on the loop thread, while all others wait */

/* Answers 200 whether or not the id is known: who asks learns nothing about others' requests. */
static void abort_request(void *arg, struct http_request *q, struct http_reply *r) {
    struct server *s = arg;
    json_error_t fault;
    if (q->body_bytes > ABORT_BYTES) {
        http_reply_error(r, 413, NULL, "the body must not be larger than %d bytes", ABORT_BYTES);
        return;
    }
    json_t *body = json_loadb(q->body, q->body_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!json_is_object(body)) {
        http_reply_error(r, 400, NULL, "the body must be one JSON object");
        json_decref(body);
        return;
    }
    const char *field = "request_id";
    json_t *id = json_object_get(body, field);
    if (!id || json_is_null(id)) {
        id = json_object_get(body, "rid");
        field = id ? "rid" : field;
    }
    if (json_is_string(id)) {
        http_abort(s->http, server_bare_id(json_string_value(id)), q);
        reply(r, 200, json_pack("{s:b}", "success", 1));
    } else {
        http_reply_error(r, 400, field, "%s must be a string", field);
    }
    json_decref(body);
}

/* ------------------------------------------------------------------------- reset of the cache */

struct reset {
    struct server *server;
    struct http_reply *reply; /* NULL: the client is gone */
    bool tiers;
    weir_status status;
    weir_cache_reset result;
};

static void reset_closed(void *arg) {
    ((struct reset *)arg)->reply = NULL;
}

/* On a worker thread: it waits for the step the engine is in. */
static void reset_work(void *arg) {
    struct reset *c = arg;
    c->status = weir_reset_prefix_cache(c->server->engine, c->tiers, &c->result);
}

static json_t *by_tier(const uint64_t n[WEIR_SOURCES]) {
    return json_pack("{s:I, s:I, s:I}", "host", (json_int_t)n[WEIR_HOST], "disk",
                     (json_int_t)n[WEIR_DISK], "remote", (json_int_t)n[WEIR_REMOTE]);
}

/* Says what was given up and what had to stay, because somebody uses it or it is not ours. */
static void reset_done(void *arg) {
    struct reset *c = arg;
    const weir_cache_reset *d = &c->result;
    if (!c->reply) {
        free(c);
        return;
    }
    http_on_closed(c->reply, NULL, NULL);
    if (c->status != WEIR_OK)
        http_reply_error(c->reply, 503, NULL, "the engine is closing");
    else
        reply(c->reply, 200,
              json_pack("{s:b, s:{s:I, s:I}, s:{s:I, s:I}, s:o, s:o}", "success", 1, "dropped",
                        "pages", (json_int_t)d->pages, "states", (json_int_t)d->states, "in_use",
                        "pages", (json_int_t)d->pages_in_use, "states",
                        (json_int_t)d->states_in_use, "records_dropped", by_tier(d->records),
                        "records_left", by_tier(d->records_left)));
    free(c);
}

/* As Python's and JavaScript's clients write it. */
static bool read_bool(const char *text, size_t n, bool *out) {
    static const char *const words[] = {"false", "true", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && strncasecmp(words[i], text, n) == 0) {
            *out = i % 2;
            return true;
        }
    return false;
}

/* vLLM's two parameters. False: answered with what is wrong. */
static bool reset_query(const char *query, struct http_reply *r, bool *tiers) {
    static const char *const known[] = {"reset_external", "reset_running_requests"};
    bool value[2] = {false, false};
    for (const char *at = query, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "&");
        const size_t name = strcspn(at, "=&"), skip = name + (at[name] == '=');
        const size_t n = (size_t)(end - at) - skip;
        size_t i = 0;
        while (i < 2 && (strlen(known[i]) != name || strncmp(at, known[i], name) != 0))
            i++;
        if (i == 2) {
            http_reply_error(r, 400, "query", "there is no parameter %.*s, only %s and %s",
                             name < 64 ? (int)name : 64, at, known[0], known[1]);
            return false;
        }
        if (!read_bool(at + skip, n, &value[i])) {
            http_reply_error(r, 400, known[i], "%s must be true or false, not '%.*s'", known[i],
                             n < 64 ? (int)n : 64, at + skip);
            return false;
        }
    }
    if (value[1])
        http_reply_error(r, 400, known[1], "%s: running requests are never interrupted here",
                         known[1]);
    *tiers = value[0];
    return !value[1];
}

/* ?reset_external=true: the tiers below the device pools, too. */
static void reset_prefix_cache(void *arg, struct http_request *q, struct http_reply *r) {
    bool tiers;
    if (!is_loaded(arg, r) || !reset_query(q->query, r, &tiers))
        return;
    struct reset *c = malloc(sizeof *c);
    if (c) {
        *c = (struct reset){.server = arg, .reply = r, .tiers = tiers, .status = WEIR_CLOSED};
        http_on_closed(r, reset_closed, c);
        if (http_work(r, reset_work, reset_done, c))
            return;
        http_on_closed(r, NULL, NULL);
        free(c);
    }
    http_reply_error(r, 503, NULL, "out of memory");
}

void admin_routes(struct server *s, struct http *h) {
    const enum http_access scrape = s->config->open_metrics ? HTTP_OPEN : HTTP_KEY;
    const struct http_route routes[] = {
        {HTTP_GET, "/health", HTTP_OPEN, false, false, health, s},
        {HTTP_GET | HTTP_POST, "/ping", HTTP_OPEN, false, false, health, s},
        {HTTP_GET, "/ready", HTTP_OPEN, false, false, ready, s},
        {HTTP_GET, "/health_generate", HTTP_KEY, false, true, health_generate, s},
        {HTTP_GET, "/version", HTTP_OPEN, false, false, version, s},
        {HTTP_GET, "/metrics", scrape, false, false, metrics, s},
        {HTTP_GET, "/load", HTTP_KEY, false, false, load, s},
        {HTTP_GET, "/v1/models", HTTP_KEY, false, false, models, s},
        {HTTP_GET, "/v1/models/*", HTTP_KEY, false, false, model, s},
        {HTTP_GET, "/get_model_info", HTTP_KEY, false, false, model_info, s},
        {HTTP_GET, "/get_server_info", HTTP_KEY, false, false, server_info, s},
        {HTTP_POST, "/abort_request", HTTP_KEY, true, false, abort_request, s},
    };
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        http_route(h, &routes[i]);
    if (!s->config->admin_key)
        return;
    const struct http_route admin[] = {
        {HTTP_POST, "/reset_prefix_cache", HTTP_ADMIN, false, false, reset_prefix_cache, s},
        {HTTP_POST, "/flush_cache", HTTP_ADMIN, false, false, reset_prefix_cache, s},
    };
    for (size_t i = 0; i < sizeof admin / sizeof *admin; i++)
        http_route(h, &admin[i]);
}
