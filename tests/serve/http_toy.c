/* http_toy.c: the transport with toy endpoints, for the black-box tests in test_http.py. Prints
 * `ready: http://127.0.0.1:PORT` and serves until SIGTERM. Options: NAME=VALUE of serve_config. */
#include "serve/http_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct toy {
    struct http *http;
    unsigned held, closed, aborted, drained, worked, wakes;
    double drain_seconds;
};

/* One running answer of the toy. */
struct answer {
    struct toy *toy;
    struct http_reply *reply; /* NULL: dead */
    struct http_timer *timer;
    long left, size, interval_ms;
    bool waiting; /* for the reader */
    char *body;
    size_t bytes;
    unsigned long sum;
};

static long parameter(const struct http_request *q, const char *name, long fallback) {
    size_t n = strlen(name);
    for (const char *s = q->query; s && *s; s = strchr(s, '&') ? strchr(s, '&') + 1 : "")
        if (strncmp(s, name, n) == 0 && s[n] == '=')
            return atol(s + n + 1);
    return fallback;
}

static void answer_closed(void *arg) {
    struct answer *a = arg;
    a->toy->closed++;
    a->reply = NULL;
    if (a->timer)
        http_timer_cancel(a->timer);
    if (!a->body) /* with a body a worker still has it */
        free(a);
}

static void answer_aborted(void *arg) {
    struct answer *a = arg;
    a->toy->aborted++;
    http_reply_json(a->reply, 200, "{\"aborted\":true}", 16);
    if (a->timer)
        http_timer_cancel(a->timer);
    free(a);
}

static struct answer *begin(void *arg, struct http_reply *r) {
    struct answer *a = calloc(1, sizeof *a);
    a->toy = arg;
    a->reply = r;
    http_on_closed(r, answer_closed, a);
    return a;
}

static void hold(void *arg, struct http_request *q, struct http_reply *r) {
    struct answer *a = begin(arg, r);
    a->toy->held++;
    if (parameter(q, "abortable", 0))
        http_on_abort(r, answer_aborted, a);
}

static void echo(void *arg, struct http_request *q, struct http_reply *r) {
    char text[512];
    int n = snprintf(text, sizeof text, "{\"bytes\":%zu,\"sum\":%d,\"rest\":\"%s\",\"id\":\"%s\"}",
                     q->body_bytes, q->body_bytes ? q->body[0] + q->body[q->body_bytes - 1] : 0,
                     q->rest, q->id);
    http_reply_json(r, 200, text, (size_t)n);
}

static void fault(void *arg, struct http_request *q, struct http_reply *r) {
    char *body;
    size_t bytes;
    body = http_take_body(q, &bytes);
    http_reply_error(r, 400, "messages.0", "%s", body);
    free(body);
}

static void late_now(void *arg) {
    struct answer *a = arg;
    http_reply_json(a->reply, 200, "{\"late\":true}", 13);
    free(a);
}

static void late(void *arg, struct http_request *q, struct http_reply *r) {
    struct answer *a = begin(arg, r);
    a->timer = http_timer_start(a->toy->http, (double)parameter(q, "ms", 100) / 1e3, late_now, a);
}

static void stream_more(void *arg) {
    struct answer *a = arg;
    a->timer = NULL;
    a->waiting = false;
    char *event = malloc((size_t)a->size + 64);
    while (a->left > 0) {
        if (http_stream_full(a->reply)) {
            a->waiting = true;
            break;
        }
        int n = sprintf(event, "{\"left\":%ld,\"text\":\"", a->left);
        memset(event + n, 'x', (size_t)a->size);
        strcpy(event + n + a->size, "\"}");
        http_stream_send(a->reply, event, strlen(event));
        a->left--;
        if (a->interval_ms)
            break;
    }
    free(event);
    if (a->left == 0) {
        http_stream_end(a->reply);
        free(a);
    } else if (!a->waiting) {
        a->timer = http_timer_start(a->toy->http, (double)a->interval_ms / 1e3, stream_more, a);
    }
}

static void stream_drained(void *arg) {
    struct answer *a = arg;
    a->toy->drained++;
    if (a->waiting)
        stream_more(a);
}

static void stream(void *arg, struct http_request *q, struct http_reply *r) {
    struct answer *a = begin(arg, r);
    a->left = parameter(q, "events", 3);
    a->size = parameter(q, "size", 8);
    a->interval_ms = parameter(q, "ms", 0);
    http_on_drained(r, stream_drained, a);
    http_stream_start(r);
    stream_more(a);
}

static void breaks(void *arg, struct http_request *q, struct http_reply *r) {
    if (parameter(q, "started", 0)) {
        http_stream_start(r);
        http_stream_send(r, "{}", 2);
    }
    http_stream_fail(r, 500, NULL, "it broke");
}

static void count(void *arg) {
    struct answer *a = arg;
    usleep((unsigned)a->interval_ms * 1000);
    for (size_t i = 0; i < a->bytes; i++)
        a->sum += (unsigned char)a->body[i];
    http_wake(a->toy->http);
}

static void counted(void *arg) {
    struct answer *a = arg;
    char text[64];
    int n = snprintf(text, sizeof text, "{\"sum\":%lu}", a->sum);
    a->toy->worked++;
    if (a->reply)
        http_reply_json(a->reply, 200, text, (size_t)n);
    free(a->body);
    free(a);
}

static void work(void *arg, struct http_request *q, struct http_reply *r) {
    struct answer *a = begin(arg, r);
    a->interval_ms = parameter(q, "ms", 0);
    a->body = http_take_body(q, &a->bytes);
    if (!http_work(r, count, counted, a)) {
        http_reply_error(r, 503, NULL, "too many bodies wait");
        free(a->body);
        free(a);
    }
}

static void counters(void *arg, struct http_request *q, struct http_reply *r) {
    struct toy *t = arg;
    char text[256];
    int n = snprintf(text, sizeof text,
                     "{\"held\":%u,\"closed\":%u,\"aborted\":%u,\"drained\":%u,\"worked\":%u,"
                     "\"wakes\":%u,\"in_flight\":%zu,\"connections\":%zu}",
                     t->held, t->closed, t->aborted, t->drained, t->worked, t->wakes,
                     http_in_flight(t->http), http_connections(t->http));
    http_reply_json(r, 200, text, (size_t)n);
}

static void abort_other(void *arg, struct http_request *q, struct http_reply *r) {
    struct toy *t = arg;
    http_abort(t->http, q->body, q);
    http_reply_json(r, 200, "{}", 2);
}

static void woken(void *arg) {
    ((struct toy *)arg)->wakes++;
}

static void terminate(void *arg) {
    struct toy *t = arg;
    http_drain(t->http, t->drain_seconds);
}

static bool set_option(struct serve_config *config, const char *option) {
    static const char *keys[8], *origins[8];
    const char *value = strchr(option, '=') + 1;
    size_t n = (size_t)(value - option - 1);
    const struct {
        const char *name;
        double *real;
    } reals[] = {
        {"header_seconds", &config->header_seconds}, {"body_seconds", &config->body_seconds},
        {"idle_seconds", &config->idle_seconds},     {"stall_seconds", &config->stall_seconds},
        {"drain_seconds", &config->drain_seconds},   {"ping_seconds", &config->ping_seconds}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (strncmp(reals[i].name, option, n) == 0) {
            *reals[i].real = atof(value);
            return true;
        }
    if (strncmp(option, "api_key", n) == 0) {
        config->api_keys = keys;
        keys[config->n_api_keys++] = value;
    } else if (strncmp(option, "cors_origin", n) == 0) {
        config->cors_origins = origins;
        origins[config->n_cors_origins++] = value;
    } else if (strncmp(option, "admin_key", n) == 0) {
        config->admin_key = value;
    } else if (strncmp(option, "api_file", n) == 0) {
        config->api_key_file = value;
    } else if (strncmp(option, "cert", n) == 0) {
        config->tls_cert = value;
    } else if (strncmp(option, "tkey", n) == 0) {
        config->tls_key = value;
    } else if (strncmp(option, "max_body_bytes", n) == 0) {
        config->max_body_bytes = (size_t)atol(value);
    } else if (strncmp(option, "max_buffered_bytes", n) == 0) {
        config->max_buffered_bytes = (size_t)atol(value);
    } else if (strncmp(option, "max_waiting_bodies", n) == 0) {
        config->max_waiting_bodies = (uint32_t)atol(value);
    } else if (strncmp(option, "workers", n) == 0) {
        config->workers = (uint32_t)atol(value);
    } else if (strncmp(option, "max_connections", n) == 0) {
        config->max_connections = (uint32_t)atol(value);
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    struct serve_config config = serve_config_default();
    config.port = 0;
    config.access_log = true;
    for (int i = 1; i < argc; i++)
        if (!strchr(argv[i], '=') || !set_option(&config, argv[i])) {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    struct toy toy = {.drain_seconds = config.drain_seconds};
    weir_error err;
    if (http_open(&config, &toy.http, &err) != WEIR_OK || http_listen(toy.http, &err) != WEIR_OK) {
        fprintf(stderr, "weir: %s: %s\n", err.where, err.message);
        return 1;
    }
    const struct http_route routes[] = {
        {HTTP_GET, "/health", HTTP_OPEN, false, false, counters, &toy},
        {HTTP_POST, "/v1/echo", HTTP_KEY, true, true, echo, &toy},
        {HTTP_GET, "/v1/echo/*", HTTP_KEY, false, false, echo, &toy},
        {HTTP_POST, "/v1/fault", HTTP_KEY, true, true, fault, &toy},
        {HTTP_POST, "/v1/hold", HTTP_KEY, true, true, hold, &toy},
        {HTTP_POST, "/v1/late", HTTP_KEY, true, true, late, &toy},
        {HTTP_POST, "/v1/stream", HTTP_KEY, true, true, stream, &toy},
        {HTTP_POST, "/v1/breaks", HTTP_KEY, true, true, breaks, &toy},
        {HTTP_POST, "/v1/work", HTTP_KEY, true, true, work, &toy},
        {HTTP_POST, "/abort", HTTP_KEY, true, false, abort_other, &toy},
        {HTTP_POST, "/admin", HTTP_ADMIN, true, false, echo, &toy},
    };
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        http_route(toy.http, &routes[i]);
    http_on_wake(toy.http, woken, &toy);
    http_on_signal(toy.http, terminate, &toy);
    http_set_ready(toy.http);
    printf("ready: http://127.0.0.1:%u\n", http_port(toy.http));
    fflush(stdout);
    http_run(toy.http);
    http_close(toy.http);
    return 0;
}
