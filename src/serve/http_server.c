/* http_server.c: the loop around everything: listening, accepting, draining, stopping. Called by
 * server.c. The loop thread is the one that calls http_run; nothing here blocks. */
#include "serve/http_work.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <event2/listener.h>
#include <malloc.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const double YOUNG_SECONDS = 1;

enum {
    SPARE_FILES = 64,      /* descriptors kept for files, the engine and the listener */
    ACCEPT_PAUSE_MS = 100, /* after running out of descriptors */
    DRAIN_TICK_MS = 20,
    LARGE_BUFFER = 32768,
    FLUSH_SECONDS = 2 /* for last answers on their way when everything else has ended */
};

/* ---- accepting ---- */

/* Makes room by closing the connection that has been idle for longest; not a young one, whose first
 * request may be on its way. */
static bool reap_idle(struct http *h) {
    struct http_conn *c;
    double now = clock_seconds();
    TAILQ_FOREACH(c, &h->idle, idle_link) {
        if (now - c->idle_since < YOUNG_SECONDS)
            return false;
        if (!c->in_read && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
            conn_free(c);
            return true;
        }
    }
    return false;
}

/* Clients wait in the backlog meanwhile. */
static void pause_accepting(struct http *h) {
    evconnlistener_disable(h->listener);
    struct timeval tv = {0, ACCEPT_PAUSE_MS * 1000};
    event_add(h->accept_again, &tv);
}

static void accept_again(evutil_socket_t fd, short what, void *arg) {
    struct http *h = arg;
    if (!h->listener)
        return;
    if (h->n_conns < h->max_conns || reap_idle(h))
        evconnlistener_enable(h->listener);
    else
        pause_accepting(h);
}

static void accepted(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                     int length, void *arg) {
    struct http *h = arg;
    conn_open(h, fd);
    if (h->n_conns >= h->max_conns && !reap_idle(h))
        pause_accepting(h);
}

/* Out of descriptors: the waiting client would wake the loop again and again. */
static void accept_failed(struct evconnlistener *listener, void *arg) {
    struct http *h = arg;
    log_line(LOG_WARN, "accept: %s; pausing", strerror(EVUTIL_SOCKET_ERROR()));
    reap_idle(h);
    pause_accepting(h);
}

void server_settled(struct http *h) {
    if (h->listener && h->n_conns < h->max_conns && !h->stopping)
        evconnlistener_enable(h->listener);
}

/* ---- opening ---- */

static weir_status bind_address(struct http *h, weir_error *err) {
    const struct serve_config *config = h->config;
    char service[8];
    snprintf(service, sizeof service, "%u", config->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    int fault = getaddrinfo(config->host, service, &hints, &list);
    if (fault != 0)
        return weir_fail(err, WEIR_BAD_VALUE, "--host", "%s: %s", config->host,
                         gai_strerror(fault));
    int reason = 0;
    for (struct addrinfo *a = list; a && h->socket < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
        if (fd < 0) {
            reason = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) {
            h->socket = fd;
        } else {
            reason = errno;
            close(fd);
        }
    }
    freeaddrinfo(list);
    if (h->socket < 0)
        return weir_fail(err, WEIR_BAD_FILE, "--port", "%s:%u: %s", config->host, config->port,
                         strerror(reason));
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char port[8];
    getsockname(h->socket, (struct sockaddr *)&bound, &length);
    if (getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV) == 0)
        h->port = (uint16_t)atoi(port);
    return WEIR_OK;
}

/* As many connections as descriptors allow; the soft limit is a default, not a decision. */
static size_t raise_limit(uint32_t wanted) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return wanted;
    rlim_t need = (rlim_t)wanted + SPARE_FILES;
    if (limit.rlim_cur < need) {
        limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= need)
        return wanted;
    return limit.rlim_cur > 2 * SPARE_FILES ? (size_t)limit.rlim_cur - SPARE_FILES : SPARE_FILES;
}

static void drain_tick(evutil_socket_t fd, short what, void *arg);

static weir_status open_loop(struct http *h, weir_error *err) {
    h->base = event_base_new();
    h->scratch = evbuffer_new();
    h->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!h->base || !h->scratch || h->wake_fd < 0)
        return weir_fail(err, WEIR_NO_MEMORY, "serve", "cannot start the event loop");
    h->wake_event = event_new(h->base, h->wake_fd, EV_READ | EV_PERSIST, workers_event, h);
    h->accept_again = evtimer_new(h->base, accept_again, h);
    h->drain_timer = event_new(h->base, -1, EV_PERSIST, drain_tick, h);
    h->workers = workers_open(h, h->config->workers > 0 ? h->config->workers : 1);
    if (!h->wake_event || !h->accept_again || !h->drain_timer || !h->workers)
        return weir_fail(err, WEIR_NO_MEMORY, "serve", "cannot start the event loop");
    event_add(h->wake_event, NULL);
    return WEIR_OK;
}

weir_status http_open(const struct serve_config *config, struct http **out, weir_error *err) {
    *out = NULL;
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return weir_fail(err, WEIR_NO_MEMORY, "serve", "no memory");
    h->config = config;
    h->socket = h->wake_fd = -1;
    h->limits = (struct http_limits){.line_bytes = HTTP_MAX_LINE,
                                     .header_bytes = HTTP_MAX_HEADER,
                                     .fields = HTTP_MAX_FIELDS,
                                     .body_bytes = config->max_body_bytes};
    TAILQ_INIT(&h->conns);
    TAILQ_INIT(&h->idle);
    /* Buffers of large requests go back to the system when they are freed, instead of being kept
     * for a crowd that may not come again. */
    mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER);
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error of its connection alone */
    weir_status status = auth_open(&h->auth, config->api_keys, config->n_api_keys,
                                   config->api_key_file, config->admin_key, err);
    if (status == WEIR_OK && !config->tls_cert != !config->tls_key)
        status = weir_fail(err, WEIR_BAD_VALUE, config->tls_cert ? "--tls-cert" : "--tls-key",
                           "needs %s as well", config->tls_cert ? "--tls-key" : "--tls-cert");
    if (status == WEIR_OK && config->tls_cert)
        status = tls_open(config->tls_cert, config->tls_key, &h->tls, err);
    h->max_conns = raise_limit(config->max_connections);
    if (status == WEIR_OK)
        status = open_loop(h, err);
    if (status == WEIR_OK)
        status = bind_address(h, err);
    if (status != WEIR_OK) {
        http_close(h);
        return status;
    }
    *out = h;
    return WEIR_OK;
}

weir_status http_listen(struct http *h, weir_error *err) {
    if (h->listener)
        return WEIR_OK;
    h->listener = evconnlistener_new(
        h->base, accepted, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 1024, h->socket);
    if (!h->listener)
        return weir_fail(err, WEIR_BAD_VALUE, "--port", "%s:%u: %s", h->config->host, h->port,
                         strerror(errno));
    h->socket = -1;
    evconnlistener_set_error_cb(h->listener, accept_failed);
    return WEIR_OK;
}

uint16_t http_port(const struct http *h) {
    return h->port;
}

/* ---- running ---- */

void http_set_ready(struct http *h) {
    h->ready = true;
}

bool http_is_ready(const struct http *h) {
    return h->ready && !h->draining;
}

void http_run(struct http *h) {
    event_base_dispatch(h->base);
}

void http_stop(struct http *h) {
    h->stopping = true;
    event_base_loopbreak(h->base);
}

size_t http_in_flight(const struct http *h) {
    return h->in_flight;
}

size_t http_connections(const struct http *h) {
    return h->n_conns;
}

void http_on_answer(struct http *h, http_observer *fn, void *arg) {
    h->observer = fn;
    h->observer_arg = arg;
}

static void signalled(evutil_socket_t number, short what, void *arg) {
    struct http *h = arg;
    if (h->signalled)
        _exit(128 + (int)number);
    h->signalled = true;
    h->on_signal(h->on_signal_arg);
}

void http_on_signal(struct http *h, void (*fn)(void *arg), void *arg) {
    static const int numbers[2] = {SIGTERM, SIGINT};
    h->on_signal = fn;
    h->on_signal_arg = arg;
    for (int i = 0; i < 2; i++) {
        h->signals[i] = evsignal_new(h->base, numbers[i], signalled, h);
        if (h->signals[i])
            event_add(h->signals[i], NULL);
    }
}

void http_abort(struct http *h, const char *id, const struct http_request *caller) {
    struct http_reply *r = reply_find(h, id);
    if (!r || !r->handled || &r->request == caller)
        return;
    bool same_key = caller->key_digest && r->request.key_digest &&
                    memcmp(caller->key_digest, r->request.key_digest, AUTH_DIGEST_BYTES) == 0;
    if (!caller->is_admin && !same_key && h->auth.n_keys + h->auth.has_admin > 0)
        return;
    if (r->aborted)
        r->aborted(r->aborted_arg);
    else
        reply_fail(r, 400, "the request was aborted");
}

/* ---- draining ---- */

static bool all_flushed(const struct http *h) {
    const struct http_conn *c;
    TAILQ_FOREACH(c, &h->conns, link) {
        if (c->reply && c->reply->handled)
            return false;
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
            return false;
    }
    return true;
}

/* Answers every running request with an error; their closed callbacks run. */
static void fail_running(struct http *h) {
    struct http_conn *c;
    TAILQ_FOREACH(c, &h->conns, link) {
        if (c->reply && c->reply->handled)
            reply_fail(c->reply, 503, "the server is shutting down");
    }
}

static void drain_tick(evutil_socket_t fd, short what, void *arg) {
    struct http *h = arg;
    double now = clock_seconds();
    if (h->in_flight > 0 && now < h->drain_until)
        return;
    if (h->flush_until == 0)
        h->flush_until = now + FLUSH_SECONDS;
    fail_running(h);
    if (all_flushed(h) || now >= h->flush_until)
        http_stop(h);
}

void http_drain(struct http *h, double seconds) {
    if (h->draining)
        return;
    h->draining = true;
    h->drain_until = clock_seconds() + seconds;
    struct timeval tick = {0, DRAIN_TICK_MS * 1000};
    event_add(h->drain_timer, &tick);
}

/* ---- closing ---- */

void http_shut(struct http *h) {
    h->stopping = h->draining = true;
    if (h->listener)
        evconnlistener_free(h->listener);
    h->listener = NULL;
    while (!TAILQ_EMPTY(&h->conns))
        conn_free(TAILQ_FIRST(&h->conns));
    if (h->workers)
        workers_finish(h);
}

static void free_event(struct event *event) {
    if (event)
        event_free(event);
}

void http_close(struct http *h) {
    http_shut(h);
    if (h->workers)
        workers_close(h->workers);
    routes_free(h);
    free_event(h->signals[0]);
    free_event(h->signals[1]);
    free_event(h->wake_event);
    free_event(h->accept_again);
    free_event(h->drain_timer);
    timers_free(h);
    if (h->scratch)
        evbuffer_free(h->scratch);
    if (h->base)
        event_base_free(h->base);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    if (h->socket >= 0)
        close(h->socket);
    SSL_CTX_free(h->tls);
    auth_close(&h->auth);
    free(h);
}
