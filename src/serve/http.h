/* http.h: the seam between the HTTP transport and the endpoints.
 *
 * One loop thread owns all connections, replies, timers and routes; every function here is called
 * on it unless it says otherwise. A handler gets a whole request and a reply that it keeps: it
 * answers at once or later, with one JSON text or with a stream of server-sent events.
 *
 * Life of a reply: it ends exactly once, either by the handler (http_reply_json, http_reply_error,
 * http_reply_bytes, http_stream_end, http_stream_fail) or by the transport, which then calls the
 * handler's closed callback (client gone, drain time over, time-out of a stuck reader). After
 * either, reply and request are dead and must not be touched. A handler that hands work to a worker
 * therefore keeps a context of its own, and its closed callback clears the reply in there. */
#ifndef WEIR_SERVE_HTTP_H
#define WEIR_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http;
struct http_reply;
struct http_timer;

enum http_method {
    HTTP_GET = 1,
    HTTP_HEAD = 2,
    HTTP_POST = 4,
    HTTP_PUT = 8,
    HTTP_DELETE = 16,
    HTTP_PATCH = 32,
    HTTP_OPTIONS = 64,
    HTTP_OTHER = 128,
};

struct http_header {
    const char *name; /* lower case */
    const char *value;
};

struct http_request {
    enum http_method method;
    const char *path;  /* normalised: percent-decoded, no empty, '.' or '..' segments, no query */
    const char *rest;  /* what a route's '*' stands for, "" without one */
    const char *query; /* behind '?', as sent; "" when there is none */
    const char *id;    /* request id: x-request-id of the answer; unique among the running ones */
    bool id_given;     /* the client named it in X-Request-Id */
    const struct http_header *headers;
    size_t n_headers;
    const char *body; /* NUL behind its last byte; "" when there is none */
    size_t body_bytes;
    double arrived; /* weir_now() when its last byte was here */
    bool is_admin;
    const unsigned char *key_digest; /* SHA-256 of the key it came with (32 bytes), NULL: no key */
};

/* Value of a header field (name in lower case), NULL when absent. */
const char *http_header_get(const struct http_request *q, const char *name);
/* Moves the body out of the request, so that it outlives it (a worker parses it); free() it. */
char *http_take_body(struct http_request *q, size_t *bytes);

/* ---- answering ---- */

/* `closed` is called once when the reply dies without the handler having ended it. */
void http_on_closed(struct http_reply *r, void (*closed)(void *arg), void *arg);
/* `aborted` is called when /abort_request names this request; the reply stays alive and the handler
 * ends it (finish_reason abort). Without it the transport answers with an error and calls closed.
 */
void http_on_abort(struct http_reply *r, void (*aborted)(void *arg), void *arg);
/* The request as the handler got it; alive as long as the reply. */
struct http_request *http_reply_request(struct http_reply *r);
struct http *http_reply_server(struct http_reply *r);
/* Takes another id (body field request_id); made unique by a suffix. Not after the first byte; one
 * that is not 1 to 128 visible ASCII characters is not taken. */
void http_reply_set_id(struct http_reply *r, const char *id);
/* Adds a header field to the answer. Not after the first byte; name and value without CR, LF. */
void http_reply_header(struct http_reply *r, const char *name, const char *value);

void http_reply_json(struct http_reply *r, int status, const char *json, size_t bytes);
void http_reply_bytes(struct http_reply *r, int status, const char *content_type, const void *data,
                      size_t bytes);
/* The error object; its type follows from the status. `param` is the dotted path of the field or
 * NULL. 429 and 503 carry Retry-After. The message is cut to 2000 bytes, or less where it is
 * mostly escapes, at a character border and made valid UTF-8. */
void http_reply_error(struct http_reply *r, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The text of that object alone, for error events: {"error":{...}}. free() it; NULL without memory.
 */
char *http_error_json(int status, const char *param, const char *message);

/* Status 200 and the header of an event stream. */
void http_stream_start(struct http_reply *r);
bool http_stream_started(const struct http_reply *r);
/* One event `data: JSON`. `json` holds no line break. Events of one loop turn leave in one write.
 */
void http_stream_send(struct http_reply *r, const char *json, size_t bytes);
/* Ends a good stream: `data: [DONE]`. The connection stays open for the next request. */
void http_stream_end(struct http_reply *r);
/* Ends a stream with an error event and closes the connection; before http_stream_start it is
 * http_reply_error. */
void http_stream_fail(struct http_reply *r, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Bytes that wait for a slow reader. Above the mark (http_stream_full) a handler stops polling
 * tokens for this stream and goes on when `drained` is called: once, when the queue has become
 * short again. */
size_t http_stream_queued(const struct http_reply *r);
bool http_stream_full(struct http_reply *r);
void http_on_drained(struct http_reply *r, void (*drained)(void *arg), void *arg);

/* ---- routes ---- */

enum http_access { HTTP_OPEN, HTTP_KEY, HTTP_ADMIN };

typedef void http_handler(void *arg, struct http_request *q, struct http_reply *r);

struct http_route {
    enum http_method method; /* several may be or-ed; GET answers HEAD too */
    const char *path;        /* exact, or ending in a '*' that stands for one or more characters */
    enum http_access access;
    bool json_body; /* another Content-Type than application/json is 415 */
    bool admits;    /* starts work: 503 while loading and draining, counted by /load */
    http_handler *handle;
    void *arg;
};

/* The route is copied, its path must live on. Later routes do not replace earlier ones. */
void http_route(struct http *h, const struct http_route *route);

/* ---- time and threads ---- */

/* Calls fn(arg) once after `seconds`. The handle is dead once fn was called or it was cancelled. */
struct http_timer *http_timer_start(struct http *h, double seconds, void (*fn)(void *arg),
                                    void *arg);
void http_timer_cancel(struct http_timer *t);

/* Runs work(arg) on a worker thread, then done(arg) on the loop thread, for one reply, which has
 * one job at a time. done is called exactly once, also while stopping, and after `closed` when the
 * reply has died; work is not called when it died before a worker came to it. Bodies above
 * HTTP_WORK_BYTES are parsed and tokenised this way, and until done has been called the request's
 * body counts among those of all connections. False: too many bodies wait, or no memory; nothing
 * will be called, and the handler answers 503. */
enum { HTTP_WORK_BYTES = 65536 };
bool http_work(struct http_reply *r, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/* From any thread, never blocks: the loop will call the wake callback soon, once for any number of
 * calls. Its signature is that of weir_options.on_progress, with the http as argument. */
void http_wake(void *http);
void http_on_wake(struct http *h, void (*wake)(void *arg), void *arg);

#endif
