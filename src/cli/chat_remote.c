/* chat_remote.c: `weir chat --url`: any server with the OpenAI API answers, over HTTP and
 * server-sent events. The transport is libevent's HTTP client, which the server's own library
 * brings along; TLS is OpenSSL's. One event loop per request, so that a signal can end it. */
#include "cli/chat_backend.h"

#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPLY_LIMIT = 64 << 20, CONNECT_SECONDS = 20, SILENCE_SECONDS = 600, PROBE_MS = 3000 };

struct remote_backend {
    struct chat_backend base;
    char *host, *prefix, *key;
    int port;
    SSL_CTX *tls; /* NULL: plain HTTP */
};

/* One exchange. */
struct exchange {
    struct remote_backend *remote;
    struct event_base *loop;
    struct evhttp_connection *connection;
    const volatile sig_atomic_t *stop;
    struct evbuffer *unread;    /* bytes of an unfinished line, or of an error's body */
    struct chat_gather *gather; /* NULL: the whole body is wanted */
    bool is_stream, is_done, is_stopped, is_finished; /* finished: the stream said so itself */
    int status;
    char fault[400]; /* what the server or the connection said */
};

static void copy_fault(struct exchange *x, const char *text) {
    if (!x->fault[0])
        snprintf(x->fault, sizeof x->fault, "%s", text);
}

/* {"error":{"message":...}} of a refusal, or of an event on the way. */
static bool note_error(struct exchange *x, const json_t *body) {
    const json_t *error = json_object_get(body, "error");
    const char *text = json_string_value(json_object_get(error, "message"));
    if (!text)
        text = json_string_value(error);
    if (!text)
        return false;
    copy_fault(x, text);
    return true;
}

static void take_usage(struct chat_answer *a, const json_t *usage) {
    if (!json_is_object(usage))
        return;
    a->prompt_tokens = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->generated_tokens = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    a->cached_tokens = (uint32_t)json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static void take_calls(struct chat_gather *g, const json_t *calls) {
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        const json_t *index = json_object_get(call, "index");
        json_int_t at = json_is_integer(index) ? json_integer_value(index) : (json_int_t)i;
        const json_t *arguments = json_object_get(f, "arguments");
        if (at >= 0 && at < 1024)
            chat_gather_call(g, (size_t)at, json_string_value(json_object_get(call, "id")),
                             json_string_value(json_object_get(f, "name")),
                             json_string_value(arguments), json_string_length(arguments));
    }
}

static void take_event(struct exchange *x, const char *data, size_t n) {
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        x->is_finished = true;
        return;
    }
    json_t *event = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
    if (!event || note_error(x, event)) {
        if (!event)
            copy_fault(x, "the server sent an event that is no JSON");
        json_decref(event);
        return;
    }
    struct chat_gather *g = x->gather;
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *reasoning = json_object_get(delta, "reasoning_content");
    const json_t *content = json_object_get(delta, "content");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (!json_is_string(reasoning))
        reasoning = json_object_get(delta, "reasoning");
    if (json_is_string(reasoning))
        chat_gather_reasoning(g, json_string_value(reasoning), json_string_length(reasoning));
    if (json_is_string(content))
        chat_gather_content(g, json_string_value(content), json_string_length(content));
    take_calls(g, json_object_get(delta, "tool_calls"));
    take_usage(g->answer, json_object_get(event, "usage"));
    if (finish)
        snprintf(g->answer->finish, sizeof g->answer->finish, "%s", finish);
    json_decref(event);
}

/* Whole lines of the stream; an event is one data line, as every server of this API sends it. */
static void take_lines(struct exchange *x) {
    size_t n;
    char *line;
    while ((line = evbuffer_readln(x->unread, &n, EVBUFFER_EOL_CRLF))) {
        if (n >= 5 && !memcmp(line, "data:", 5)) {
            size_t skip = 5 + (n > 5 && line[5] == ' ');
            take_event(x, line + skip, n - skip);
        }
        free(line);
    }
}

static void on_chunk(struct evhttp_request *r, void *arg) {
    struct exchange *x = arg;
    evbuffer_add_buffer(x->unread, evhttp_request_get_input_buffer(r));
    x->status = evhttp_request_get_response_code(r);
    if (x->gather && x->status == 200)
        take_lines(x);
    if (evbuffer_get_length(x->unread) > REPLY_LIMIT) {
        copy_fault(x, "the answer is too long");
        event_base_loopbreak(x->loop);
    }
}

/* Why no connection to an address comes about: 0 when it does. */
static int try_address(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), reason = 0;
    if (fd < 0)
        return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        reason = errno;
    if (reason == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t n = sizeof reason;
        if (poll(&p, 1, PROBE_MS) != 1)
            reason = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &n) != 0)
            reason = errno;
    }
    close(fd);
    return reason;
}

/* The HTTP client does not tell why it came to no connection: the way is walked once more. */
static void explain_connection(struct exchange *x) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", x->remote->port);
    int fault = getaddrinfo(x->remote->host, port, &hints, &list), reason = 0;
    if (fault)
        snprintf(x->fault, sizeof x->fault, "host %s: %s", x->remote->host, gai_strerror(fault));
    if (fault)
        return;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        reason = try_address(a);
        if (!reason)
            break;
    }
    freeaddrinfo(list);
    if (reason)
        snprintf(x->fault, sizeof x->fault, "port %d of %s: %s", x->remote->port, x->remote->host,
                 strerror(reason));
    else if (!x->remote->tls)
        copy_fault(x, "the server closed the connection without an answer; one that speaks TLS "
                      "wants https://");
}

/* The handshake that failed; the verification of a certificate has spoken for itself. */
static void explain_tls(struct exchange *x) {
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->connection);
    const SSL *ssl = bev ? bufferevent_openssl_get_ssl(bev) : NULL;
    unsigned long code = bev ? bufferevent_get_openssl_error(bev) : 0;
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    char text[400];
    if (ssl && SSL_is_init_finished(ssl))
        copy_fault(x, "the server closed the connection without an answer");
    if (code && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER)
        copy_fault(x, "TLS: the server does not speak it; http:// is for one without");
    snprintf(text, sizeof text, "TLS: the handshake failed%s%s", reason ? ": " : "",
             reason ? reason : "; http:// is for a server without TLS");
    copy_fault(x, text);
}

/* A certificate that is not trusted is named with the way out. */
static int on_certificate(int good, X509_STORE_CTX *store) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct exchange *x = ssl ? SSL_get_app_data(ssl) : NULL;
    if (good || !x)
        return good;
    int code = X509_STORE_CTX_get_error(store);
    bool other = code == X509_V_ERR_HOSTNAME_MISMATCH || code == X509_V_ERR_IP_ADDRESS_MISMATCH;
    char text[400];
    snprintf(text, sizeof text, "TLS: the server's certificate is refused: %s%s",
             X509_verify_cert_error_string(code),
             other ? "; --url must name the host as the certificate does"
                   : "; --tls-ca FILE names certificates to trust");
    copy_fault(x, text);
    return 0;
}

static void on_done(struct evhttp_request *r, void *arg) {
    struct exchange *x = arg;
    /* Without a connection the request comes back too, with no status. */
    x->is_done = r && evhttp_request_get_response_code(r) != 0;
    if (x->is_done) {
        x->status = evhttp_request_get_response_code(r);
        evbuffer_add_buffer(x->unread, evhttp_request_get_input_buffer(r));
        if (x->gather && x->status == 200)
            take_lines(x);
    }
    event_base_loopbreak(x->loop);
}

static void on_error(enum evhttp_request_error error, void *arg) {
    struct exchange *x = arg;
    switch (error) {
    case EVREQ_HTTP_TIMEOUT: copy_fault(x, "the server does not answer"); break;
    case EVREQ_HTTP_EOF:
        if (x->status) /* else there may never have been a connection: see explain_connection */
            copy_fault(x, "the connection ended early");
        break;
    case EVREQ_HTTP_INVALID_HEADER:
        copy_fault(x, x->remote->tls
                          ? "the answer is no HTTP"
                          : "the answer is no HTTP; a server that speaks TLS wants https://");
        break;
    case EVREQ_HTTP_BUFFER_ERROR: copy_fault(x, "the connection broke"); break;
    case EVREQ_HTTP_REQUEST_CANCEL: break;
    case EVREQ_HTTP_DATA_TOO_LONG: copy_fault(x, "the answer is too long"); break;
    }
}

static void look_at_stop(evutil_socket_t fd, short what, void *arg) {
    struct exchange *x = arg;
    if (x->stop && *x->stop) {
        x->is_stopped = true;
        event_base_loopbreak(x->loop);
    }
}

static struct bufferevent *open_tls(struct exchange *x) {
    struct remote_backend *b = x->remote;
    SSL *ssl = SSL_new(b->tls);
    if (!ssl)
        return NULL;
    SSL_set_tlsext_host_name(ssl, b->host);
    SSL_set1_host(ssl, b->host);
    SSL_set_app_data(ssl, x);
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(x->loop, -1, ssl, BUFFEREVENT_SSL_CONNECTING,
                                       BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    else
        SSL_free(ssl);
    return bev;
}

static bool start(struct exchange *x, const char *path, const char *body) {
    struct remote_backend *b = x->remote;
    struct bufferevent *bev = b->tls ? open_tls(x) : NULL;
    if (b->tls && !bev)
        return false;
    x->connection =
        evhttp_connection_base_bufferevent_new(x->loop, NULL, bev, b->host, (uint16_t)b->port);
    struct evhttp_request *r = x->connection ? evhttp_request_new(on_done, x) : NULL;
    if (!r)
        return false;
    evhttp_connection_set_timeout(x->connection, body ? SILENCE_SECONDS : CONNECT_SECONDS);
    evhttp_request_set_chunked_cb(r, on_chunk);
    evhttp_request_set_error_cb(r, on_error);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(r);
    char value[600];
    snprintf(value, sizeof value, strchr(b->host, ':') ? "[%s]:%d" : "%s:%d", b->host, b->port);
    evhttp_add_header(headers, "Host", value);
    evhttp_add_header(headers, "Connection", "close");
    evhttp_add_header(headers, "User-Agent", "weir");
    if (b->key) {
        snprintf(value, sizeof value, "Bearer %s", b->key);
        if (evhttp_add_header(headers, "Authorization", value))
            copy_fault(x, "the key has characters that no header may have");
    }
    if (body) {
        evhttp_add_header(headers, "Content-Type", "application/json");
        evhttp_add_header(headers, "Accept", "text/event-stream");
        evbuffer_add(evhttp_request_get_output_buffer(r), body, strlen(body));
    }
    char target[1024];
    snprintf(target, sizeof target, "%s%s", b->prefix, path);
    return evhttp_make_request(x->connection, r, body ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, target) ==
           0;
}

/* Sends a request and takes in the answer: into `gather` as it streams, else left in x->unread. */
static weir_status run_exchange(struct exchange *x, const char *path, const char *body,
                                weir_error *err) {
    struct event_config *config = event_config_new();
    x->loop = config ? event_base_new_with_config(config) : NULL;
    if (config)
        event_config_free(config);
    x->unread = evbuffer_new();
    if (!x->loop || !x->unread)
        return weir_fail(err, WEIR_NO_MEMORY, x->remote->base.name, "no memory");
    struct timeval often = {0, 50000};
    struct event *look = event_new(x->loop, -1, EV_PERSIST, look_at_stop, x);
    if (look)
        event_add(look, &often);
    bool started = look && start(x, path, body);
    if (started && !x->fault[0])
        event_base_dispatch(x->loop);
    if (look)
        event_free(look);
    if (x->is_stopped)
        return WEIR_OK;
    if (x->status && x->status != 200) {
        size_t n = evbuffer_get_length(x->unread);
        json_t *reply = json_loadb((const char *)evbuffer_pullup(x->unread, -1), n, 0, NULL);
        bool told = note_error(x, reply);
        json_decref(reply);
        return weir_fail(err, WEIR_BAD_VALUE, x->remote->base.name, "status %d%s%s", x->status,
                         told ? ": " : "", x->fault);
    }
    if (started && !x->status && !x->is_done && !x->fault[0])
        explain_connection(x);
    if (started && !x->status && !x->is_done && !x->fault[0])
        explain_tls(x);
    if (x->fault[0] || !started || !x->is_done)
        return weir_fail(err, WEIR_CLOSED, x->remote->base.name, "%s",
                         x->fault[0] ? x->fault : "cannot be reached");
    if (x->gather && !x->is_finished)
        return weir_fail(err, WEIR_CLOSED, x->remote->base.name, "the answer ended early");
    return WEIR_OK;
}

static void close_exchange(struct exchange *x) {
    if (x->connection)
        evhttp_connection_free(x->connection);
    if (x->unread)
        evbuffer_free(x->unread);
    if (x->loop)
        event_base_free(x->loop);
}

static weir_status ask(struct chat_backend *base, const json_t *request,
                       const struct chat_listener *listener, const volatile sig_atomic_t *stop,
                       struct chat_answer *out, weir_error *err) {
    struct chat_gather gather;
    chat_gather_begin(&gather, listener, out);
    json_t *streamed = json_copy((json_t *)(uintptr_t)request);
    json_object_set_new(streamed, "stream", json_true());
    json_object_set_new(streamed, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (!json_object_get(streamed, "model"))
        json_object_set_new(streamed, "model", json_string(base->name));
    char *body = json_dumps(streamed, JSON_COMPACT);
    json_decref(streamed);
    struct exchange x = {.remote = (struct remote_backend *)base, .stop = stop, .gather = &gather};
    weir_status status = body ? run_exchange(&x, "/v1/chat/completions", body, err)
                              : weir_fail(err, WEIR_BAD_VALUE, "request", "is not UTF-8 text");
    if (x.is_stopped)
        snprintf(out->finish, sizeof out->finish, "stopped");
    close_exchange(&x);
    free(body);
    chat_gather_end(&gather);
    return status;
}

/* The first model the server lists. */
static weir_status find_model(struct remote_backend *b, const volatile sig_atomic_t *stop,
                              weir_error *err) {
    struct exchange x = {.remote = b, .stop = stop};
    weir_status status = run_exchange(&x, "/v1/models", NULL, err);
    if (!status && x.is_stopped)
        status = weir_fail(err, WEIR_CLOSED, b->base.name, "stopped");
    if (!status) {
        size_t n = evbuffer_get_length(x.unread);
        json_t *reply = json_loadb((const char *)evbuffer_pullup(x.unread, -1), n, 0, NULL);
        const json_t *first = json_array_get(json_object_get(reply, "data"), 0);
        const char *id = json_string_value(json_object_get(first, "id"));
        char *name = id ? strdup(id) : NULL;
        if (name) {
            free(b->base.name);
            b->base.name = name;
        } else {
            status = weir_fail(err, WEIR_CLOSED, b->base.name, "/v1/models lists no model");
        }
        json_decref(reply);
    }
    close_exchange(&x);
    return status;
}

static void close_backend(struct chat_backend *base) {
    struct remote_backend *b = (struct remote_backend *)base;
    if (b->tls)
        SSL_CTX_free(b->tls);
    free(b->host);
    free(b->prefix);
    free(b->key);
    free(b->base.name);
    free(b);
}

static weir_status read_url(struct remote_backend *b, const char *url, bool *is_tls,
                            weir_error *err) {
    struct evhttp_uri *uri = evhttp_uri_parse(url);
    const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL;
    const char *host = uri ? evhttp_uri_get_host(uri) : NULL;
    weir_status status = WEIR_OK;
    if (!scheme || !host || !*host || (strcasecmp(scheme, "http") && strcasecmp(scheme, "https"))) {
        status = weir_fail(err, WEIR_BAD_VALUE, "--url",
                           "'%s' is not of the form http://HOST:PORT or https://HOST", url);
    } else {
        const char *path = evhttp_uri_get_path(uri);
        size_t n = path ? strlen(path) : 0;
        *is_tls = !strcasecmp(scheme, "https");
        b->port = evhttp_uri_get_port(uri) > 0 ? evhttp_uri_get_port(uri) : *is_tls ? 443 : 80;
        /* An address of version 6 comes in brackets. */
        size_t length = strlen(host);
        bool brackets = host[0] == '[' && host[length - 1] == ']';
        b->host = strndup(host + brackets, length - 2 * brackets);
        while (n && path[n - 1] == '/')
            n--;
        if (n >= 3 && !memcmp(path + n - 3, "/v1", 3))
            n -= 3;
        b->prefix = strndup(path ? path : "", n);
        if (!b->host || !b->prefix)
            status = weir_fail(err, WEIR_NO_MEMORY, "--url", "no memory");
    }
    if (uri)
        evhttp_uri_free(uri);
    return status;
}

/* Asked once beforehand, because a name server that is silent is waited for at every look-up. */
static weir_status check_host(const struct remote_backend *b, weir_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int fault = getaddrinfo(b->host, NULL, &hints, &list);
    if (fault)
        return weir_fail(err, WEIR_CLOSED, b->base.name, "host %s: %s", b->host,
                         gai_strerror(fault));
    freeaddrinfo(list);
    return WEIR_OK;
}

weir_status chat_backend_remote(const char *url, const char *key, const char *ca, const char *model,
                                const volatile sig_atomic_t *stop, struct chat_backend **out,
                                weir_error *err) {
    struct remote_backend *b = calloc(1, sizeof *b);
    if (!b)
        return weir_fail(err, WEIR_NO_MEMORY, "--url", "no memory");
    signal(SIGPIPE, SIG_IGN); /* a server that is gone is an error of its connection alone */
    b->base = (struct chat_backend){
        .name = strdup(model ? model : url), .ask = ask, .close = close_backend};
    b->key = key && *key ? strdup(key) : NULL;
    bool is_tls = false;
    weir_status status = read_url(b, url, &is_tls, err);
    if (!status)
        status = check_host(b, err);
    if (!status && is_tls) {
        b->tls = SSL_CTX_new(TLS_client_method());
        if (!b->tls)
            status = weir_fail(err, WEIR_NO_MEMORY, "--url", "TLS cannot be set up");
        else if (ca ? SSL_CTX_load_verify_locations(b->tls, ca, NULL) != 1
                    : SSL_CTX_set_default_verify_paths(b->tls) != 1)
            status = weir_fail(err, WEIR_BAD_FILE, ca ? ca : "system certificates",
                               "cannot be read as certificates");
        else
            SSL_CTX_set_verify(b->tls, SSL_VERIFY_PEER, on_certificate);
    }
    if (!status && !model)
        status = find_model(b, stop, err);
    if (status) {
        close_backend(&b->base);
        return status;
    }
    *out = &b->base;
    return WEIR_OK;
}
