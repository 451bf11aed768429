/* http_reply.c: replies: their ids, their head, their end. Called by handlers through http.h and by
 * the connection. Every reply passes reply_end or reply_kill once: there it is logged and counted,
 * so no request can be missed by the log or be counted twice. */
#include "serve/http_inside.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- ids ---- */

enum { NUMBERED_IDS = 4 }; /* equal ids that are told apart by a number */

static size_t id_slot(const char *id) {
    uint64_t h = 0xCBF29CE484222325u;
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 0x100000001B3u;
    return (size_t)(rng_mix(h) % HTTP_ID_SLOTS);
}

struct http_reply *reply_find(struct http *h, const char *id) {
    struct http_reply *r = h->ids[id_slot(id)];
    while (r && strcmp(r->id, id) != 0)
        r = r->next_id;
    return r;
}

static void unindex(struct http_reply *r) {
    if (!r->id[0])
        return;
    struct http_reply **at = &r->conn->http->ids[id_slot(r->id)];
    while (*at != r)
        at = &(*at)->next_id;
    *at = r->next_id;
}

/* Takes `id`, with a suffix if another running request has it: a number for the few that meet by
 * chance; a random one when a client gives all its requests the same, or the search for the next
 * free number would cost more with each of them. */
static void index_id(struct http_reply *r, const char *id) {
    struct http *h = r->conn->http;
    char name[HTTP_ID_BYTES];
    int length = snprintf(name, sizeof name, "%.128s", id);
    for (unsigned k = 2; reply_find(h, name); k++) {
        size_t left = sizeof name - (size_t)length;
        if (k <= NUMBERED_IDS)
            snprintf(name + length, left, "-%u", k);
        else
            snprintf(name + length, left, "-%016llx", (unsigned long long)rng_entropy());
    }
    memcpy(r->id, name, sizeof r->id);
    struct http_reply **slot = &h->ids[id_slot(r->id)];
    r->next_id = *slot;
    *slot = r;
    r->request.id = r->id;
}

/* Visible ASCII, 1 to 128 characters: it goes into a header line and, unquoted, into the log, where
 * a space would let it pass for further fields. */
static bool id_is_good(const char *id) {
    size_t n = strlen(id);
    for (size_t i = 0; i < n; i++)
        if (id[i] <= 0x20 || id[i] > 0x7E)
            return false;
    return n >= 1 && n <= 128;
}

void http_reply_set_id(struct http_reply *r, const char *id) {
    if (r->streaming || !id_is_good(id) || strcmp(id, r->id) == 0)
        return;
    unindex(r);
    index_id(r, id);
}

/* ---- life ---- */

struct http_reply *reply_open(struct http_conn *c) {
    struct http_reply *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    struct http_parser *p = &c->parser;
    struct http_request *q = &r->request;
    r->conn = c;
    r->began = clock_seconds();
    r->close_after = !p->keep_alive;
    *q = (struct http_request){
        .method = p->method, .path = p->path ? p->path : "", .rest = "", .query = "", .body = ""};
    if (q->path[0])
        q->query = http_parser_query(p);
    r->headers = calloc(p->n_fields + 1, sizeof *r->headers);
    for (uint32_t i = 0; r->headers && i < p->n_fields; i++)
        r->headers[q->n_headers++] = http_parser_header(p, i);
    q->headers = r->headers;
    const char *given = http_header_get(q, "x-request-id");
    if (given && id_is_good(given)) {
        q->id_given = true;
        index_id(r, given);
    } else {
        char id[33];
        snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)rng_entropy(),
                 (unsigned long long)rng_entropy());
        index_id(r, id);
    }
    return r;
}

const char *method_name(enum http_method method) {
    switch (method) {
    case HTTP_GET: return "GET";
    case HTTP_HEAD: return "HEAD";
    case HTTP_POST: return "POST";
    case HTTP_PUT: return "PUT";
    case HTTP_DELETE: return "DELETE";
    case HTTP_PATCH: return "PATCH";
    case HTTP_OPTIONS: return "OPTIONS";
    case HTTP_OTHER: break;
    }
    return "other";
}

static void access_log(const struct http_reply *r, int status, double seconds) {
    const struct http *h = r->conn->http;
    const struct http_parser *p = &r->conn->parser;
    const char *method = p->method ? http_parser_method(p) : "-";
    if (h->config->access_log)
        log_line(LOG_INFO, "%s %.200s %d %.1f ms id=%s", method,
                 r->request.path[0] ? r->request.path : "-", status, seconds * 1e3, r->id);
    if (h->observer)
        h->observer(h->observer_arg, method_name(p->method), r->route ? r->route->path : "none",
                    status, seconds);
}

static void reply_free(struct http_reply *r, int status) {
    struct http *h = r->conn->http;
    access_log(r, status, clock_seconds() - r->began);
    unindex(r);
    if (r->counted)
        h->in_flight--;
    if (r->ping)
        http_timer_cancel(r->ping);
    if (r->job)
        workers_forget(h->workers, r->job);
    if (r->extra)
        evbuffer_free(r->extra);
    free(r->headers);
    free(r);
}

void reply_end(struct http_reply *r, int status, bool keep) {
    struct http_conn *c = r->conn;
    c->reply = NULL;
    reply_free(r, status);
    conn_answered(c, keep);
}

void reply_kill(struct http_reply *r, int status) {
    void (*closed)(void *arg) = r->closed;
    void *arg = r->closed_arg;
    r->conn->reply = NULL;
    reply_free(r, status);
    if (closed)
        closed(arg);
}

void reply_fail(struct http_reply *r, int status, const char *message) {
    void (*closed)(void *arg) = r->closed;
    void *arg = r->closed_arg;
    r->close_after = true;
    http_stream_fail(r, status, NULL, "%s", message);
    if (closed)
        closed(arg);
}

/* ---- what handlers see ---- */

const char *http_header_get(const struct http_request *q, const char *name) {
    for (size_t i = 0; i < q->n_headers; i++)
        if (strcmp(q->headers[i].name, name) == 0)
            return q->headers[i].value;
    return NULL;
}

void http_on_closed(struct http_reply *r, void (*closed)(void *arg), void *arg) {
    r->closed = closed;
    r->closed_arg = arg;
}

void http_on_abort(struct http_reply *r, void (*aborted)(void *arg), void *arg) {
    r->aborted = aborted;
    r->aborted_arg = arg;
}

void http_on_drained(struct http_reply *r, void (*drained)(void *arg), void *arg) {
    r->drained = drained;
    r->drained_arg = arg;
}

struct http_request *http_reply_request(struct http_reply *r) {
    return &r->request;
}

struct http *http_reply_server(struct http_reply *r) {
    return r->conn->http;
}

char *http_take_body(struct http_request *q, size_t *bytes) {
    struct http_reply *r = (struct http_reply *)((char *)q - offsetof(struct http_reply, request));
    struct http_parser *p = &r->conn->parser;
    char *body = p->body ? p->body : calloc(1, 1);
    *bytes = p->body_bytes;
    p->body = NULL;
    p->body_bytes = 0;
    q->body = "";
    q->body_bytes = 0;
    return body;
}

/* ---- the head of an answer ---- */

static const char *reason(int status) {
    switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
    }
}

void http_reply_header(struct http_reply *r, const char *name, const char *value) {
    /* A line break in a value would let its author write the rest of the answer. */
    if (strpbrk(name, "\r\n") || strpbrk(value, "\r\n"))
        return;
    if (!r->extra)
        r->extra = evbuffer_new();
    if (r->extra)
        evbuffer_add_printf(r->extra, "%s: %s\r\n", name, value);
}

static void cors_fields(struct http_reply *r, struct evbuffer *out) {
    const struct serve_config *config = r->conn->http->config;
    const char *origin = http_header_get(&r->request, "origin");
    if (!origin || config->n_cors_origins == 0)
        return;
    for (size_t i = 0; i < config->n_cors_origins; i++) {
        bool any = strcmp(config->cors_origins[i], "*") == 0;
        if (!any && strcmp(config->cors_origins[i], origin) != 0)
            continue;
        evbuffer_add_printf(out,
                            "Access-Control-Allow-Origin: %s\r\n"
                            "Access-Control-Expose-Headers: x-request-id, retry-after\r\n",
                            any ? "*" : origin);
        break;
    }
    evbuffer_add_printf(out, "Vary: Origin\r\n");
}

void reply_head(struct http_reply *r, struct evbuffer *out, int status, const char *content_type,
                int64_t body_bytes) {
    struct http *h = r->conn->http;
    const struct http_parser *p = &r->conn->parser;
    bool body_unread = r->conn->state == CONN_BODY && p->has_body;
    if (h->draining || body_unread)
        r->close_after = true;
    if (body_bytes < 0 && p->minor == 0)
        r->close_after =
            true; /* HTTP/1.0 knows no chunks: the end of the connection ends the body */
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nx-request-id: %s\r\n", status, reason(status),
                        r->id);
    if (content_type)
        evbuffer_add_printf(out, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\n",
                            content_type);
    if (body_bytes >= 0 && status != 204 && status != 304)
        evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)body_bytes);
    else if (body_bytes < 0 && p->minor == 1)
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    if (r->close_after)
        evbuffer_add_printf(out, "Connection: close\r\n");
    else if (p->minor == 0)
        evbuffer_add_printf(out, "Connection: keep-alive\r\n");
    if (status == 503 || status == 429)
        evbuffer_add_printf(out, "Retry-After: %d\r\n", h->draining ? 5 : 1);
    cors_fields(r, out);
    if (r->extra)
        evbuffer_add_buffer(out, r->extra);
    evbuffer_add(out, "\r\n", 2);
}

void http_reply_bytes(struct http_reply *r, int status, const char *content_type, const void *data,
                      size_t bytes) {
    struct evbuffer *scratch = r->conn->http->scratch;
    reply_head(r, scratch, status, content_type, (int64_t)bytes);
    if (r->request.method != HTTP_HEAD && status != 204 && status != 304)
        evbuffer_add(scratch, data, bytes);
    evbuffer_add_buffer(bufferevent_get_output(r->conn->bev), scratch);
    reply_end(r, status, !r->close_after);
}

void http_reply_json(struct http_reply *r, int status, const char *json, size_t bytes) {
    http_reply_bytes(r, status, "application/json", json, bytes);
}
