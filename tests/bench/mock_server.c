/* mock_server.c: a server of the completions API that computes nothing and keeps its times: the
 * first token so long after a request's first byte, each further one so long after the one before,
 * on absolute times that do not drift. It writes down when it really sent what, and on demand it
 * lies in every way that servers have been seen to.
 *
 *     mock_server --log FILE [--ttft-us N] [--itl-us N] [--chunk N] [--lies a,b,c]
 *
 * prints "ready PORT". Request i follows lie i modulo their number. Lines of the log, times in ns
 * of CLOCK_MONOTONIC: "open N LIE FIRST_BYTE", "prompt N HASH HASH ..." (of each 64 tokens), "sent
 * N INDEX PLANNED BEFORE AFTER" for each piece with text: the time read right before and right
 * after the write. The log is written when the server is asked to by SIGTERM. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum lie {
    LIE_OK,
    LIE_WRONG_USAGE, /* three times the tokens */
    LIE_FEW_USAGE,   /* one token */
    LIE_NO_USAGE,
    LIE_DROPPED,     /* the connection is closed half-way */
    LIE_HALF_CLOSED, /* only our side of it, half-way */
    LIE_NO_ANSWER,   /* closed before the first byte */
    LIE_DUPLICATE_ID,
    LIE_429,
    LIE_500_HTML,
    LIE_GARBAGE, /* events that are no JSON */
    LIE_NO_HTTP,
    LIE_SLOW_HEADERS, /* a byte every 2 ms */
    LIE_SHORT,
    LIE_LONG,
    LIE_ERROR_MID,
    LIE_HUGE, /* two megabytes in one piece */
    LIE_NO_DONE,
    LIE_BROKEN_END, /* the connection breaks behind the end mark */
    LIE_NO_FINISH,  /* neither finish reason nor end mark */
    LIE_SILENT,     /* a head and then nothing */
    LIE_PLAIN,      /* one JSON object instead of a stream */
    LIE_TORN,       /* events in pieces, CRLF, comments, null deltas */
    LIES,
};
static const char *const lie_names[LIES] = {
    "ok",           "wrong_usage", "few_usage", "no_usage",  "dropped", "half_closed",
    "no_answer",    "same_id",     "429",       "500_html",  "garbage", "no_http",
    "slow_headers", "short",       "long",      "error_mid", "huge",    "no_done",
    "broken_end",   "no_finish",   "silent",    "plain",     "torn"};

struct connection {
    int fd;
    char *in;
    size_t n_in, in_room;
    char *out; /* what the socket did not take */
    size_t n_out, out_at;
    int64_t first_byte; /* of the request being read or answered */
    bool answers, closing;
    enum lie lie;
    uint32_t number, tokens, pieces, next; /* next piece, 0: the head */
    uint32_t head_at;
    uint64_t in_tokens;
    int64_t due;
    uint32_t heap;                /* place in the heap; UINT32_MAX: none */
    struct connection *following; /* of all */
};

static struct {
    int64_t ttft, itl;
    uint32_t chunk;
    enum lie lies[64];
    uint32_t n_lies, requests;
    const char *log_path;
    char *log;
    size_t n_log, log_room;
    struct connection **heap;
    uint32_t n_heap, heap_room;
    struct connection *all;
    bool dropped; /* one of them is closed and waits to be freed */
    int poll, timer, listener;
} g;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fatal(const char *what) {
    fprintf(stderr, "mock: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    if (g.n_log + 4096 > g.log_room) {
        g.log_room = g.log_room * 2 + (1 << 20);
        g.log = realloc(g.log, g.log_room);
        if (!g.log)
            fatal("log");
    }
    va_list ap;
    va_start(ap, format);
    g.n_log += (size_t)vsnprintf(g.log + g.n_log, 4096, format, ap);
    va_end(ap);
}

/* ----------------------------------------------------------------------------------------- heap */

static void place(struct connection *c, uint32_t i) {
    g.heap[i] = c;
    c->heap = i;
}

static void sift(struct connection *c, uint32_t i) {
    for (; i > 0 && g.heap[(i - 1) / 2]->due > c->due; i = (i - 1) / 2)
        place(g.heap[(i - 1) / 2], i);
    for (uint32_t k; (k = 2 * i + 1) < g.n_heap; i = k) {
        k += k + 1 < g.n_heap && g.heap[k + 1]->due < g.heap[k]->due;
        if (g.heap[k]->due >= c->due)
            break;
        place(g.heap[k], i);
    }
    place(c, i);
}

static void unschedule(struct connection *c) {
    if (c->heap == UINT32_MAX)
        return;
    uint32_t i = c->heap;
    struct connection *last = g.heap[--g.n_heap];
    c->heap = UINT32_MAX;
    if (last != c)
        sift(last, i);
}

static void schedule(struct connection *c, int64_t due) {
    c->due = due;
    if (c->heap != UINT32_MAX) {
        sift(c, c->heap);
        return;
    }
    if (g.n_heap == g.heap_room) {
        g.heap_room = g.heap_room * 2 + 64;
        g.heap = realloc(g.heap, g.heap_room * sizeof(struct connection *));
        if (!g.heap)
            fatal("heap");
    }
    sift(c, g.n_heap++);
}

/* --------------------------------------------------------------------------------------- output */

static void watch(struct connection *c, bool out) {
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(g.poll, EPOLL_CTL_MOD, c->fd, &e);
}

static void drop(struct connection *c) {
    unschedule(c);
    close(c->fd);
    g.dropped = true;
    c->fd = -1; /* freed by the loop, which may still hold events of it */
}

static void put(struct connection *c, const char *bytes, size_t n) {
    ssize_t k = 0;
    if (c->fd < 0)
        return;
    if (c->n_out == c->out_at)
        k = send(c->fd, bytes, n, MSG_NOSIGNAL);
    if (k < 0 && errno != EAGAIN) {
        drop(c);
        return;
    }
    k = k < 0 ? 0 : k;
    if ((size_t)k == n)
        return;
    char *grown = realloc(c->out, c->n_out + n);
    if (!grown)
        fatal("output");
    c->out = grown;
    memcpy(c->out + c->n_out, bytes + k, n - (size_t)k);
    c->n_out += n - (size_t)k;
    watch(c, true);
}

static void flush_out(struct connection *c) {
    ssize_t k = send(c->fd, c->out + c->out_at, c->n_out - c->out_at, MSG_NOSIGNAL);
    if (k < 0 && errno != EAGAIN) {
        drop(c);
        return;
    }
    c->out_at += k > 0 ? (size_t)k : 0;
    if (c->out_at < c->n_out)
        return;
    free(c->out);
    c->out = NULL;
    c->n_out = c->out_at = 0;
    watch(c, false);
}

/* One HTTP chunk. */
static void put_chunk(struct connection *c, const char *text, size_t n) {
    char *all = malloc(n + 32);
    if (!all)
        fatal("chunk");
    int head = sprintf(all, "%zx\r\n", n);
    memcpy(all + head, text, n);
    memcpy(all + head + n, "\r\n", 2);
    put(c, all, (size_t)head + n + 2);
    free(all);
}

static void put_end(struct connection *c) {
    put(c, "0\r\n\r\n", 5);
}

static void put_status(struct connection *c, const char *status, const char *type,
                       const char *body) {
    char head[512];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, type,
                     strlen(body));
    put(c, head, (size_t)n);
    put(c, body, strlen(body));
}

static const char stream_head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n";

static void id_of(const struct connection *c, char id[32]) {
    snprintf(id, 32, "mock-%u", c->lie == LIE_DUPLICATE_ID ? 0 : c->number + 1);
}

/* An event, torn to pieces where the lie says so. */
static void put_event(struct connection *c, const char *json) {
    char text[1024];
    const char *end = c->lie == LIE_TORN ? "\r\n\r\n" : "\n\n";
    int n = snprintf(text, sizeof text, "data: %s%s", json, end);
    if (c->lie != LIE_TORN) {
        put_chunk(c, text, (size_t)n);
        return;
    }
    put_chunk(c, ": still here\r\n\r\n", 16);
    for (int at = 0; at < n; at += 7)
        put_chunk(c, text + at, (size_t)(n - at < 7 ? n - at : 7));
}

static void put_piece(struct connection *c, uint32_t tokens) {
    char json[512], id[32], text[256] = "";
    id_of(c, id);
    for (uint32_t i = 0; i < tokens && i < 32; i++)
        strcat(text, " tok");
    snprintf(json, sizeof json,
             "{\"id\":\"%s\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":"
             "\"%s\",\"finish_reason\":null}]}",
             id, text);
    put_event(c, json);
}

static void put_huge(struct connection *c) {
    enum { BYTES = 2 << 20 };
    char id[32], *text = malloc(BYTES + 512);
    if (!text)
        fatal("huge");
    id_of(c, id);
    int n = sprintf(text, "data: {\"id\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"", id);
    memset(text + n, 'x', BYTES);
    n += BYTES;
    n += sprintf(text + n, "\",\"finish_reason\":null}]}\n\n");
    put_chunk(c, text, (size_t)n);
    free(text);
}

static void put_finish(struct connection *c) {
    char json[512], id[32];
    id_of(c, id);
    uint32_t said = c->tokens;
    said = c->lie == LIE_WRONG_USAGE ? 3 * said : c->lie == LIE_FEW_USAGE ? 1 : said;
    if (c->lie != LIE_NO_FINISH) {
        snprintf(json, sizeof json,
                 "{\"id\":\"%s\",\"choices\":[{\"index\":0,\"text\":%s,\"finish_reason\":\"%s\"}]}",
                 id, c->lie == LIE_TORN ? "null" : "\"\"", c->lie == LIE_SHORT ? "stop" : "length");
        put_event(c, json);
    }
    snprintf(json, sizeof json,
             "{\"id\":\"%s\",\"choices\":[],\"usage\":{\"prompt_tokens\":%" PRIu64
             ",\"completion_tokens\":%u,\"total_tokens\":%" PRIu64
             ",\"prompt_tokens_details\":{\"cached_tokens\":0}}}",
             id, c->in_tokens, said, c->in_tokens + said);
    if (c->lie != LIE_NO_USAGE)
        put_event(c, json);
    if (c->lie != LIE_NO_DONE && c->lie != LIE_NO_FINISH)
        put_event(c, "[DONE]");
    if (c->lie != LIE_BROKEN_END)
        put_end(c);
}

/* -------------------------------------------------------------------------------------- answers */

static void finish(struct connection *c) {
    c->answers = false;
    if (c->fd >= 0)
        unschedule(c);
}

static void plain_answer(struct connection *c) {
    char body[512], id[32];
    id_of(c, id);
    snprintf(body, sizeof body,
             "{\"id\":\"%s\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":"
             "\" whole\",\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%" PRIu64
             ",\"completion_tokens\":%u}}",
             id, c->in_tokens, c->tokens);
    put_status(c, "200 OK", "application/json", body);
    finish(c);
}

/* The answers that have no stream. True: it was one. */
static bool odd_answer(struct connection *c) {
    static const char no_http[] = "\x16\x03\x01\x00\xff no http at all\r\n\r\n";
    switch (c->lie) {
    case LIE_NO_ANSWER:
        finish(c);
        drop(c);
        return true;
    case LIE_429:
        put_status(c, "429 Too Many Requests", "application/json",
                   "{\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit\",\"code\":429}}");
        finish(c);
        return true;
    case LIE_500_HTML:
        put_status(c, "500 Internal Server Error", "text/html", "<html>broken</html>");
        finish(c);
        return true;
    case LIE_NO_HTTP:
        put(c, no_http, sizeof no_http - 1);
        finish(c);
        drop(c);
        return true;
    case LIE_PLAIN: plain_answer(c); return true;
    default: return false;
    }
}

/* Piece `next` is due. */
static void send_piece(struct connection *c) {
    int64_t planned = c->due;
    if (c->lie == LIE_SLOW_HEADERS && c->head_at < sizeof stream_head - 1) {
        put(c, stream_head + c->head_at++, 1);
        schedule(c, planned + 2000000);
        return;
    }
    if (c->next == 0 && odd_answer(c))
        return;
    if (c->next == 0 && c->lie != LIE_SLOW_HEADERS)
        put(c, stream_head, sizeof stream_head - 1);
    if (c->next == c->pieces / 2 && c->lie == LIE_DROPPED) {
        finish(c);
        drop(c);
        return;
    }
    if (c->next == c->pieces / 2 && c->lie == LIE_HALF_CLOSED) {
        shutdown(c->fd, SHUT_WR);
        finish(c);
        return;
    }
    if (c->lie == LIE_SILENT) {
        unschedule(c);
        return;
    }
    if (c->next == c->pieces / 2 && c->lie == LIE_GARBAGE)
        put_event(c, "{\"id\": oh no");
    if (c->next == c->pieces / 2 && c->lie == LIE_ERROR_MID) {
        put_event(c, "{\"error\":{\"message\":\"the engine died\",\"code\":500}}");
        put_event(c, "[DONE]");
        put_end(c);
        finish(c);
        return;
    }
    uint32_t left = c->tokens - c->next * g.chunk;
    int64_t before = now_ns();
    if (c->lie == LIE_HUGE && c->next == 1)
        put_huge(c);
    else
        put_piece(c, left < g.chunk ? left : g.chunk);
    note("sent %u %u %" PRId64 " %" PRId64 " %" PRId64 "\n", c->number, c->next, planned, before,
         now_ns());
    if (c->fd < 0)
        return;
    if (++c->next < c->pieces) {
        schedule(c, planned + g.itl * g.chunk);
        return;
    }
    put_finish(c);
    finish(c);
    if (c->lie == LIE_BROKEN_END)
        drop(c);
}

/* ------------------------------------------------------------------------------------- requests */

/* Hashes of each 64 token ids of the prompt; returns how many ids there are. */
static uint64_t read_prompt(const struct connection *c, const char *body) {
    const char *p = strstr(body, "\"prompt\":[");
    uint64_t n = 0, h = 1;
    if (!p)
        return 0;
    note("prompt %u", c->number);
    for (p += 10; *p && *p != ']';) {
        char *end;
        h = (h ^ strtoul(p, &end, 10)) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
        p = end + (*end == ',');
        if (++n % 64 == 0) {
            note(" %016" PRIx64, h);
            h = 1;
        }
    }
    note("\n");
    return n;
}

static void begin_answer(struct connection *c, const char *body) {
    const char *most = strstr(body, "\"max_tokens\":");
    c->number = g.requests++;
    c->lie = g.lies[c->number % g.n_lies];
    note("open %u %s %" PRId64 "\n", c->number, lie_names[c->lie], c->first_byte);
    c->in_tokens = read_prompt(c, body);
    c->tokens = most ? (uint32_t)strtoul(most + 13, NULL, 10) : 16;
    c->tokens = c->lie == LIE_SHORT  ? c->tokens / 2
                : c->lie == LIE_LONG ? 2 * c->tokens
                                     : c->tokens;
    c->tokens = c->tokens < 1 ? 1 : c->tokens;
    c->pieces = (c->tokens + g.chunk - 1) / g.chunk;
    c->next = c->head_at = 0;
    c->answers = true;
    schedule(c, c->first_byte + g.ttft);
}

static void handle(struct connection *c, const char *body) {
    if (!strncmp(c->in, "POST ", 5)) {
        begin_answer(c, body);
        return;
    }
    if (!strncmp(c->in, "GET /v1/models ", 15))
        put_status(c, "200 OK", "application/json",
                   "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"max_model_len\":100000}]}");
    else
        put_status(c, "404 Not Found", "application/json", "{\"error\":{\"message\":\"no\"}}");
}

/* Takes whole requests out of what has come. */
static void take_requests(struct connection *c) {
    while (c->fd >= 0 && !c->answers && c->n_in > 0) {
        c->in[c->n_in] = 0;
        char *end = strstr(c->in, "\r\n\r\n");
        if (!end)
            return;
        const char *length = strcasestr(c->in, "\r\nContent-Length:");
        size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
        size_t all = (size_t)(end + 4 - c->in) + body;
        if (c->n_in < all)
            return;
        char kept = c->in[all];
        c->in[all] = 0;
        handle(c, end + 4);
        c->in[all] = kept;
        memmove(c->in, c->in + all, c->n_in - all);
        c->n_in -= all;
        if (!c->answers)
            c->first_byte = 0;
    }
}

static void read_some(struct connection *c, int64_t now) {
    if (c->in_room - c->n_in < 65536) {
        c->in_room = c->in_room * 2 + 131072;
        c->in = realloc(c->in, c->in_room);
        if (!c->in)
            fatal("input");
    }
    ssize_t n = recv(c->fd, c->in + c->n_in, c->in_room - c->n_in - 1, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        drop(c);
        return;
    }
    if (n < 0)
        return;
    if (c->n_in == 0)
        c->first_byte = now;
    c->n_in += (size_t)n;
    take_requests(c);
}

static void accept_all(void) {
    for (;;) {
        int fd = accept4(g.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            fatal("connection");
        c->fd = fd;
        c->heap = UINT32_MAX;
        c->following = g.all;
        g.all = c;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(g.poll, EPOLL_CTL_ADD, fd, &e);
    }
}

/* ----------------------------------------------------------------------------------------- main */

static void open_all(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    g.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    g.poll = epoll_create1(EPOLL_CLOEXEC);
    g.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (g.listener < 0 || g.poll < 0 || g.timer < 0 || bind(g.listener, (void *)&a, sizeof a) ||
        listen(g.listener, 4096) || getsockname(g.listener, (void *)&a, &n))
        fatal("cannot listen");
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &g.listener};
    epoll_ctl(g.poll, EPOLL_CTL_ADD, g.listener, &e);
    e.data.ptr = &g.timer;
    epoll_ctl(g.poll, EPOLL_CTL_ADD, g.timer, &e);
    printf("ready %d\n", ntohs(a.sin_port));
    fflush(stdout);
}

static volatile sig_atomic_t stopped;

static void on_term(int number) {
    stopped = 1;
}

static void read_lies(const char *text) {
    while (*text) {
        size_t n = strcspn(text, ","), i = 0;
        while (i < LIES && (strlen(lie_names[i]) != n || strncmp(lie_names[i], text, n)))
            i++;
        if (i == LIES || g.n_lies == 64) {
            fprintf(stderr, "mock: no lie %.*s\n", (int)n, text);
            exit(2);
        }
        g.lies[g.n_lies++] = (enum lie)i;
        text += n + (text[n] == ',');
    }
}

/* Those that are closed; with `all` the others too. Not while events of them may be about. */
static void free_connections(bool all) {
    for (struct connection **at = &g.all; *at;) {
        struct connection *c = *at;
        if (c->fd >= 0 && !all) {
            at = &c->following;
            continue;
        }
        if (c->fd >= 0)
            drop(c);
        *at = c->following;
        free(c->in);
        free(c->out);
        free(c);
    }
}

static void set_timer(void) {
    struct itimerspec t = {0};
    if (g.n_heap > 0) {
        int64_t at = g.heap[0]->due > 0 ? g.heap[0]->due : 1;
        t.it_value.tv_sec = at / 1000000000;
        t.it_value.tv_nsec = at % 1000000000;
    }
    timerfd_settime(g.timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void loop(void) {
    struct epoll_event e[1024];
    while (!stopped) {
        if (g.dropped)
            free_connections(false);
        g.dropped = false;
        while (g.n_heap > 0 && g.heap[0]->due <= now_ns()) {
            struct connection *c = g.heap[0];
            send_piece(c);
            if (c->fd >= 0 && !c->answers)
                take_requests(c);
        }
        set_timer();
        int n = epoll_wait(g.poll, e, 1024, 100);
        int64_t now = now_ns();
        for (int i = 0; i < n; i++) {
            struct connection *c = e[i].data.ptr;
            uint64_t times;
            if (e[i].data.ptr == &g.listener) {
                accept_all();
            } else if (e[i].data.ptr == &g.timer) {
                if (read(g.timer, &times, sizeof times) < 0)
                    continue;
            } else {
                if (e[i].events & EPOLLOUT && c->fd >= 0)
                    flush_out(c);
                if (e[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && c->fd >= 0)
                    read_some(c, now);
            }
        }
    }
}

int main(int argc, char **argv) {
    g.ttft = 50000000;
    g.itl = 10000000;
    g.chunk = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--ttft-us"))
            g.ttft = strtoll(v, NULL, 10) * 1000;
        else if (!strcmp(argv[i], "--itl-us"))
            g.itl = strtoll(v, NULL, 10) * 1000;
        else if (!strcmp(argv[i], "--chunk"))
            g.chunk = (uint32_t)strtoul(v, NULL, 10);
        else if (!strcmp(argv[i], "--lies"))
            read_lies(v);
        else if (!strcmp(argv[i], "--log"))
            g.log_path = v;
    }
    if (g.n_lies == 0)
        read_lies("ok");
    struct sigaction a = {.sa_handler = on_term};
    sigaction(SIGTERM, &a, NULL);
    open_all();
    loop();
    free_connections(true);
    FILE *f = g.log_path ? fopen(g.log_path, "w") : NULL;
    if (f) {
        if (g.n_log > 0)
            fwrite(g.log, 1, g.n_log, f);
        fclose(f);
    }
    free(g.log);
    free(g.heap);
    return 0;
}
