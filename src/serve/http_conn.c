/* http_conn.c: one client connection: reading requests, one after the other, time limits, closing.
 * Created by the listener (http_server.c); calls http_route.c with each request and is told by
 * http_reply.c when the answer is out.
 *
 * Two rules bite. While a request is being answered its successors are not parsed, but the socket
 * is still read (up to HTTP_READ_AHEAD), because only reading tells that the client has gone; a
 * client that fills this is looked at by a timer instead. And a refusal that leaves
 * a body unread must not close the socket with bytes in it: the kernel would answer with a reset
 * that eats the refusal, so our side is shut first and the rest is read and dropped for a moment.
 */
#include "serve/http_inside.h"

#include "base/clock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

static const double LINGER_SECONDS = 5, WATCH_SECONDS = 0.25;

static void conn_read(struct bufferevent *bev, void *arg);

static void set_timer(struct http_conn *c, double seconds) {
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    event_add(&c->timer, &tv);
}

static void leave_idle_list(struct http_conn *c) {
    if (c->on_idle_list)
        TAILQ_REMOVE(&c->http->idle, c, idle_link);
    c->on_idle_list = false;
}

static void become_idle(struct http_conn *c) {
    c->state = CONN_IDLE;
    TAILQ_INSERT_TAIL(&c->http->idle, c, idle_link);
    c->on_idle_list = true;
    c->idle_since = clock_seconds();
    set_timer(c, c->http->config->idle_seconds);
}

static size_t output_bytes(const struct http_conn *c) {
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* ---- the end of a connection ---- */

void conn_free(struct http_conn *c) {
    struct http *h = c->http;
    c->state = CONN_DEAD;
    if (c->reply)
        reply_kill(c->reply, 499);
    leave_idle_list(c);
    TAILQ_REMOVE(&h->conns, c, link);
    h->n_conns--;
    h->buffered -= c->body_counted;
    event_del(&c->timer);
    bufferevent_free(c->bev);
    http_parser_reset(&c->parser);
    free(c);
    server_settled(h);
}

void conn_drop(struct http_conn *c) {
    if (c->in_read)
        c->state = CONN_DEAD;
    else
        conn_free(c);
}

/* The last answer is out: say so to the client, and give it a moment to read it. */
static void linger(struct http_conn *c) {
    SSL *ssl = c->http->tls ? bufferevent_openssl_get_ssl(c->bev) : NULL;
    if (ssl)
        SSL_shutdown(ssl);
    if (c->eof || shutdown(bufferevent_getfd(c->bev), SHUT_WR) != 0) {
        conn_drop(c);
        return;
    }
    c->state = CONN_LINGER;
    bufferevent_setwatermark(c->bev, EV_READ, 0, HTTP_READ_AHEAD);
    bufferevent_enable(c->bev, EV_READ);
    set_timer(c, LINGER_SECONDS);
}

static void drop_input(struct http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->state == CONN_LINGER && c->lingered > HTTP_LINGER_BYTES)
        c->state = CONN_DEAD;
}

void conn_answered(struct http_conn *c, bool keep) {
    c->reply = NULL;
    c->http->buffered -= c->body_counted;
    c->body_counted = 0;
    http_parser_reset(&c->parser);
    event_del(&c->timer);
    if (c->state == CONN_DEAD)
        return;
    bufferevent_enable(c->bev, EV_READ);
    if (keep && !c->eof) {
        become_idle(c);
        if (!c->in_read && evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
            bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    c->state = CONN_FLUSH;
    if (output_bytes(c) == 0)
        bufferevent_trigger(c->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

/* ---- events ---- */

static void conn_write(struct bufferevent *bev, void *arg) {
    struct http_conn *c = arg;
    struct http_reply *r = c->reply;
    size_t queued = output_bytes(c);
    if (c->state == CONN_FLUSH && queued == 0) {
        linger(c);
        return;
    }
    if (c->state == CONN_IDLE && !c->tls_waiting && queued == 0) {
        leave_idle_list(c);
        become_idle(c); /* idle time begins when the answer is out */
    }
    if (c->held && queued <= HTTP_STREAM_SHORT) {
        c->held = false;
        bufferevent_enable(bev, EV_READ);
        bufferevent_trigger(bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
    } else if (r && r->was_full && queued <= HTTP_STREAM_SHORT) {
        r->was_full = false;
        if (r->drained)
            r->drained(r->drained_arg);
    }
}

/* The client's sending side is shut. A request that is being answered cannot be told from one whose
 * client has closed: it ends. Answers that were given before are still written out. */
static void conn_gone(struct http_conn *c) {
    if (c->reply)
        reply_kill(c->reply, 499);
    if (output_bytes(c) == 0) {
        conn_drop(c);
        return;
    }
    leave_idle_list(c);
    event_del(&c->timer);
    c->state = CONN_FLUSH;
}

static void conn_event(struct bufferevent *bev, short what, void *arg) {
    struct http_conn *c = arg;
    if (what & BEV_EVENT_CONNECTED) {
        c->tls_waiting = false;
        become_idle(c);
        return;
    }
    /* Both may come at once, and after a fault of the socket nothing will be written any more. */
    if (what & (BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) {
        conn_drop(c);
    } else if (what & BEV_EVENT_EOF) {
        c->eof = true;
        conn_gone(c);
    }
}

/* Input is full: stop reading (at its high mark a bufferevent calls back again and again) and look
 * now and then whether the client has gone. An event for the close alone would spin on a reset,
 * which the kernel reports as readable. */
static void pause_reading(struct http_conn *c) {
    bufferevent_disable(c->bev, EV_READ);
    set_timer(c, WATCH_SECONDS);
}

static void check_for_close(struct http_conn *c) {
    struct pollfd p = {.fd = bufferevent_getfd(c->bev), .events = POLLRDHUP};
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR))) {
        c->eof = true;
        c->state = CONN_DEAD;
    } else {
        set_timer(c, WATCH_SECONDS);
    }
}

static void refuse(struct http_conn *c, int status, const char *message) {
    if (!c->reply)
        c->reply = reply_open(c);
    if (!c->reply) {
        c->state = CONN_DEAD;
        return;
    }
    c->reply->close_after = true;
    http_reply_error(c->reply, status, NULL, "%s", message);
}

static void conn_timeout(evutil_socket_t fd, short what, void *arg) {
    struct http_conn *c = arg;
    switch (c->state) {
    case CONN_HEAD: refuse(c, 408, "the request header took too long to arrive"); break;
    case CONN_BODY: refuse(c, 408, "the request body took too long to arrive"); break;
    case CONN_BUSY: check_for_close(c); break;
    case CONN_IDLE:
        /* The last answer is still on its way over a slow link: conn_write sees its end, and a
         * reader that takes nothing has its own time limit. */
        if (c->tls_waiting || output_bytes(c) == 0)
            c->state = CONN_DEAD;
        break;
    case CONN_LINGER:
    case CONN_FLUSH:
    case CONN_DEAD: c->state = CONN_DEAD; break;
    }
    if (c->state == CONN_DEAD)
        conn_free(c);
}

/* ---- requests ---- */

/* Large bodies of all connections share one budget; small ones are bounded by the number of
 * connections, so that a few large ones cannot shut everybody out. And a body that trickles in must
 * not live for ever. */
static bool body_progress(struct http_conn *c) {
    struct http *h = c->http;
    size_t held = c->parser.body_bytes > HTTP_WORK_BYTES ? c->parser.body_space : 0;
    h->buffered += held - c->body_counted;
    c->body_counted = held;
    if (held > 0 && h->buffered > h->config->max_buffered_bytes) {
        refuse(c, 503, "too many large requests at once");
        return false;
    }
    if (c->parser.body_bytes - c->body_renewed >= HTTP_BODY_STEP) {
        c->body_renewed = c->parser.body_bytes;
        set_timer(c, h->config->body_seconds);
    }
    return true;
}

static void head_arrived(struct http_conn *c) {
    event_del(&c->timer);
    c->reply = reply_open(c);
    if (!c->reply) {
        c->state = CONN_DEAD;
        return;
    }
    c->body_renewed = 0;
    c->state = CONN_BODY;
    set_timer(c, c->http->config->body_seconds);
    if (!route_head(c->reply))
        return;
    bool body_has_begun = evbuffer_get_length(bufferevent_get_input(c->bev)) > 0;
    if (c->parser.expects_continue && c->parser.has_body && !body_has_begun)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
}

/* Parses the next piece. False: wait for more. */
static bool conn_step(struct http_conn *c, struct evbuffer *in) {
    struct evbuffer_iovec piece = {0};
    if (evbuffer_get_length(in) > 0)
        evbuffer_peek(in, -1, NULL, &piece, 1);
    size_t taken;
    enum http_parse_result result = http_parse(&c->parser, piece.iov_base, piece.iov_len, &taken);
    evbuffer_drain(in, taken);
    switch (result) {
    case HTTP_PARSE_MORE:
        if (c->state == CONN_IDLE && !http_parser_idle(&c->parser)) {
            leave_idle_list(c);
            c->state = CONN_HEAD;
            set_timer(c, c->http->config->header_seconds);
        }
        if (c->state == CONN_BODY && !body_progress(c))
            return true;
        return evbuffer_get_length(in) > 0;
    case HTTP_PARSE_HEAD:
        leave_idle_list(c);
        head_arrived(c);
        return true;
    case HTTP_PARSE_DONE:
        if (!body_progress(c))
            return true;
        event_del(&c->timer);
        c->state = CONN_BUSY;
        route_run(c->reply);
        return true;
    case HTTP_PARSE_BAD:
        leave_idle_list(c);
        refuse(c, c->parser.status, c->parser.fault);
        return true;
    }
    return false;
}

/* A client that asks and asks without reading: small requests can have large answers, so its next
 * request waits until the last answers are on their way. */
static bool hold_back(struct http_conn *c) {
    if (c->state == CONN_IDLE && output_bytes(c) >= HTTP_STREAM_FULL) {
        c->held = true;
        bufferevent_disable(c->bev, EV_READ);
    }
    return c->held;
}

static void conn_read(struct bufferevent *bev, void *arg) {
    struct http_conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    c->in_read = true;
    bool more = true;
    while (more && (c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY))
        more = !hold_back(c) && conn_step(c, in);
    if (c->state == CONN_FLUSH || c->state == CONN_LINGER)
        drop_input(c);
    c->in_read = false;
    if (c->state == CONN_DEAD)
        conn_free(c);
    else if (c->state == CONN_BUSY && evbuffer_get_length(in) >= HTTP_READ_AHEAD)
        pause_reading(c);
}

/* ---- the beginning ---- */

static void tune(evutil_socket_t fd) {
    int on = 1, idle = 60, interval = 15, count = 4;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a token must not wait for an ACK */
    /* A client whose machine vanished sends no FIN: find out, or its request runs to its end. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void conn_open(struct http *h, evutil_socket_t fd) {
    struct http_conn *c = calloc(1, sizeof *c);
    struct bufferevent *bev = NULL;
    if (c) {
        tune(fd);
        bev = h->tls ? tls_accept(h, fd)
                     : bufferevent_socket_new(h->base, fd,
                                              BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    }
    if (!bev) {
        free(c);
        evutil_closesocket(fd);
        return;
    }
    c->http = h;
    c->bev = bev;
    http_parser_open(&c->parser, &h->limits);
    event_assign(&c->timer, h->base, -1, 0, conn_timeout, c);
    TAILQ_INSERT_TAIL(&h->conns, c, link);
    h->n_conns++;
    c->tls_waiting = h->tls != NULL;
    if (c->tls_waiting)
        set_timer(c, h->config->header_seconds);
    else
        become_idle(c);
    struct timeval stall = {(time_t)h->config->stall_seconds, 0};
    bufferevent_setcb(bev, conn_read, conn_write, conn_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, HTTP_READ_AHEAD);
    bufferevent_setwatermark(bev, EV_WRITE, HTTP_STREAM_SHORT, 0);
    bufferevent_set_timeouts(bev, NULL, &stall);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}
