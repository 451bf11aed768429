/* sse.c: server-sent events over a reply. Called by handlers through http.h.
 * Each event is one chunk of the body; the bytes are put together before they reach the connection,
 * so that under TLS an event is one record, and what is queued within one turn of the loop leaves
 * in one write. */
#include "serve/http_inside.h"

#include <string.h>

/* Sends `head` + data + `tail` as one piece of the body. */
static void piece(struct http_reply *r, const char *head, const char *data, size_t bytes,
                  const char *tail) {
    struct evbuffer *scratch = r->conn->http->scratch;
    bool chunked = r->conn->parser.minor == 1;
    size_t head_bytes = strlen(head), tail_bytes = strlen(tail);
    if (chunked)
        evbuffer_add_printf(scratch, "%zx\r\n", head_bytes + bytes + tail_bytes);
    evbuffer_add(scratch, head, head_bytes);
    evbuffer_add(scratch, data, bytes);
    evbuffer_add(scratch, tail, tail_bytes);
    if (chunked)
        evbuffer_add(scratch, "\r\n", 2);
    evbuffer_add_buffer(bufferevent_get_output(r->conn->bev), scratch);
    r->pinged = false;
}

/* Quiet streams die in proxies; a comment keeps them. It repeats until the reply ends. */
static void ping(void *arg) {
    struct http_reply *r = arg;
    struct http *h = r->conn->http;
    if (r->pinged && http_stream_queued(r) == 0)
        piece(r, ": keep-alive", "", 0, "\n\n");
    r->pinged = true;
    r->ping = http_timer_start(h, h->config->ping_seconds, ping, r);
}

void http_stream_start(struct http_reply *r) {
    struct http *h = r->conn->http;
    http_reply_header(r, "Cache-Control", "no-cache");
    http_reply_header(r, "X-Accel-Buffering", "no");
    reply_head(r, h->scratch, 200, "text/event-stream; charset=utf-8", -1);
    evbuffer_add_buffer(bufferevent_get_output(r->conn->bev), h->scratch);
    r->streaming = true;
    r->pinged = true;
    if (h->config->ping_seconds > 0)
        r->ping = http_timer_start(h, h->config->ping_seconds, ping, r);
}

bool http_stream_started(const struct http_reply *r) {
    return r->streaming;
}

void http_stream_send(struct http_reply *r, const char *json, size_t bytes) {
    piece(r, "data: ", json, bytes, "\n\n");
}

void stream_close(struct http_reply *r, int status) {
    if (r->conn->parser.minor == 1)
        evbuffer_add(bufferevent_get_output(r->conn->bev), "0\r\n\r\n", 5);
    reply_end(r, status, status == 200 && !r->close_after);
}

void http_stream_end(struct http_reply *r) {
    piece(r, "data: [DONE]", "", 0, "\n\n");
    stream_close(r, 200);
}

size_t http_stream_queued(const struct http_reply *r) {
    return evbuffer_get_length(bufferevent_get_output(r->conn->bev));
}

bool http_stream_full(struct http_reply *r) {
    if (http_stream_queued(r) < HTTP_STREAM_FULL)
        return false;
    r->was_full = true; /* somebody was told to wait, so `drained` will come */
    return true;
}
