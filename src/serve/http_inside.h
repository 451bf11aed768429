/* http_inside.h: what the files of the transport share. Included by http_*.c and sse.c alone.
 *
 * A connection carries one request at a time: bytes of the next one wait in its input buffer until
 * the answer has been given. So a connection has at most one reply, and a reply always has its
 * connection. Connections are freed from events of the loop only (conn_drop inside a handler marks
 * them), never under the feet of a caller. */
#ifndef WEIR_SERVE_HTTP_INSIDE_H
#define WEIR_SERVE_HTTP_INSIDE_H

#include "serve/auth.h"
#include "serve/http_parse.h"
#include "serve/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <openssl/ssl.h>
#include <sys/queue.h>

enum {
    HTTP_MAX_LINE = 8192,
    HTTP_MAX_HEADER = 65536,
    HTTP_MAX_FIELDS = 100,
    HTTP_READ_AHEAD = 65536,      /* bytes of later requests that wait while one is answered */
    HTTP_STREAM_FULL = 262144,    /* queued bytes at which a stream is full */
    HTTP_STREAM_SHORT = 65536,    /* and at which it goes on */
    HTTP_ID_BYTES = 160,          /* longest request id with suffix, and its NUL */
    HTTP_BODY_STEP = 65536,       /* body bytes that renew the body time */
    HTTP_LINGER_BYTES = 128 << 20 /* read and dropped behind a refusal, so that it can be read */
};

enum conn_state {
    CONN_IDLE,   /* between requests */
    CONN_HEAD,   /* a header is coming */
    CONN_BODY,   /* a body is coming */
    CONN_BUSY,   /* a handler has the request */
    CONN_FLUSH,  /* the last answer is being written, then the connection closes */
    CONN_LINGER, /* our side is shut; what the client still sends is dropped for a moment */
    CONN_DEAD,   /* to be freed */
};

struct http_conn {
    struct http *http;
    struct bufferevent *bev;
    enum conn_state state;
    bool in_read;     /* conn_read is on the stack: it continues by itself */
    bool tls_waiting; /* handshake not done */
    bool on_idle_list;
    bool eof;  /* the client's sending side is shut */
    bool held; /* the next request waits until this client has read */
    double idle_since;
    struct event timer; /* of the state */
    struct http_parser parser;
    size_t body_counted; /* bytes of this body in http.buffered */
    size_t body_renewed; /* body bytes at which the body time was renewed */
    size_t lingered;
    struct http_reply *reply;
    TAILQ_ENTRY(http_conn) link;
    TAILQ_ENTRY(http_conn) idle_link;
};
TAILQ_HEAD(conn_list, http_conn);

struct http_reply {
    struct http_conn *conn;
    struct http_request request;
    const struct http_route *route; /* NULL: none matched */
    struct http_header *headers;
    char id[HTTP_ID_BYTES];
    struct http_reply *next_id; /* chain of the id table */
    unsigned char key_digest[AUTH_DIGEST_BYTES];
    double began;     /* first byte of the header seen by the parser */
    bool handled;     /* the handler has it */
    bool counted;     /* in http.in_flight */
    bool close_after; /* the connection ends with this answer */
    bool streaming, was_full;
    bool pinged;            /* the ping timer saw no event since its last run */
    struct evbuffer *extra; /* further header fields, or NULL */
    struct http_timer *ping;
    struct job *job; /* what a worker does for it, NULL: nothing */
    void (*closed)(void *arg);
    void *closed_arg;
    void (*aborted)(void *arg);
    void *aborted_arg;
    void (*drained)(void *arg);
    void *drained_arg;
};

struct route_node {
    struct http_route route;
    size_t prefix; /* length before '*', SIZE_MAX: exact */
    struct route_node *next;
};

enum { HTTP_ID_SLOTS = 1024 };

struct http {
    const struct serve_config *config;
    struct event_base *base;
    struct http_limits limits;
    struct auth auth;
    SSL_CTX *tls;
    int socket; /* bound; -1 once the listener owns it */
    uint16_t port;
    struct evconnlistener *listener;
    struct event *accept_again;
    bool ready, draining, stopping;
    double drain_until, flush_until;
    struct event *drain_timer;
    struct event *signals[2];
    void (*on_signal)(void *arg);
    void *on_signal_arg;
    bool signalled;

    struct conn_list conns;
    struct conn_list idle; /* the longest idle first */
    size_t n_conns, max_conns;
    size_t in_flight;
    size_t buffered; /* bytes of large bodies held by connections and by workers' jobs */
    struct route_node *routes;
    struct http_reply *ids[HTTP_ID_SLOTS];
    struct evbuffer *scratch;
    http_observer *observer;
    void *observer_arg;

    int wake_fd;
    struct event *wake_event;
    void (*wake)(void *arg);
    void *wake_arg;
    struct workers *workers;
    struct http_timer *timers; /* running ones */
};

/* http_work.c: timers that still run at the end */
void timers_free(struct http *h);
/* The job's reply has ended: a job that no worker has begun is done without being worked on. */
void workers_forget(struct workers *w, struct job *job);

/* http_conn.c */
void conn_open(struct http *h, evutil_socket_t fd);
void conn_free(struct http_conn *c);
/* The answer has been given (its bytes are queued): go on with the next request or close. */
void conn_answered(struct http_conn *c, bool keep);
/* Frees the connection as soon as no caller is inside it. */
void conn_drop(struct http_conn *c);

/* http_reply.c */
struct http_reply *reply_open(struct http_conn *c);
/* Ends the reply: log, metrics, id table; then the connection goes on. `status` is for the log. */
void reply_end(struct http_reply *r, int status, bool keep);
/* The reply dies without its handler's doing; calls closed. The connection is the caller's. */
void reply_kill(struct http_reply *r, int status);
/* Status line and fields up to the empty line into `out`. body_bytes < 0: no Content-Length. */
void reply_head(struct http_reply *r, struct evbuffer *out, int status, const char *content_type,
                int64_t body_bytes);
struct http_reply *reply_find(struct http *h, const char *id);
/* The transport gives up on a running request: error object or error event, then closed. */
void reply_fail(struct http_reply *r, int status, const char *message);
/* For labels: a fixed word also for methods that nobody knows. */
const char *method_name(enum http_method method);

/* sse.c: the end of a stream's body, without an event. */
void stream_close(struct http_reply *r, int status);

/* http_route.c */
/* Header complete: decides who gets the request. False when it was answered with a refusal. */
bool route_head(struct http_reply *r);
/* Request complete: calls the handler. */
void route_run(struct http_reply *r);
void routes_free(struct http *h);

/* http_tls.c */
weir_status tls_open(const char *cert, const char *key, SSL_CTX **out, weir_error *err);
struct bufferevent *tls_accept(struct http *h, evutil_socket_t fd);

/* http_server.c: in_flight fell or a connection was closed. */
void server_settled(struct http *h);

#endif
