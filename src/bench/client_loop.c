/* client_loop.c: opens a client and waits for its sockets.
 * Two epoll descriptors watch the same sockets. The level-triggered one says what has to be read.
 * The edge-triggered one is emptied before each read, at a microsecond apiece: it says which
 * sockets have received something new since, so that a chunk that waits behind many others carries
 * the time it came and not the time its turn came. An edge counts in its own turn and in the next
 * one alone, and only if that one had not to wait: one whose data had been read before it was
 * noticed would otherwise be taken for later data. */
#include "bench/client_inside.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { EVENTS = 1024 };
#define LIMITS_EVERY 50000000 /* ns */

static int on_timer(CURLM *multi, long ms, void *user) {
    struct client *c = user;
    c->curl_due = ms < 0 ? INT64_MAX : client_now() + (int64_t)ms * 1000000;
    return 0;
}

static bool room_for(struct client *c, int fd) {
    if ((size_t)fd < c->n_edges)
        return true;
    size_t n = (size_t)fd * 2 + 64;
    struct edge *grown = realloc(c->edge, n * sizeof *grown);
    if (!grown)
        return false;
    memset(grown + c->n_edges, 0, (n - c->n_edges) * sizeof *grown);
    c->edge = grown;
    c->n_edges = n;
    return true;
}

/* libcurl wants to hear of a socket, or no more. It may close a descriptor before it says so, and
 * the kernel then has forgotten it by itself: failures of EPOLL_CTL_DEL are of no interest. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known) {
    struct client *c = user;
    struct epoll_event e = {.data.fd = fd};
    struct exchange *x = NULL;
    c->api->easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&x);
    /* libcurl's own handles, which close what nobody uses, are of no exchange. */
    if (x && what != CURL_POLL_REMOVE)
        x->fd = fd;
    if (what == CURL_POLL_REMOVE || !room_for(c, fd)) {
        epoll_ctl(c->poll, EPOLL_CTL_DEL, fd, &e);
        epoll_ctl(c->edges, EPOLL_CTL_DEL, fd, &e);
        return 0;
    }
    if (what & CURL_POLL_IN)
        e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        e.events |= EPOLLOUT;
    if (epoll_ctl(c->poll, EPOLL_CTL_MOD, fd, &e) != 0) {
        epoll_ctl(c->poll, EPOLL_CTL_ADD, fd, &e);
        c->edge[fd] = (struct edge){0};
        e.events = EPOLLIN | EPOLLET;
        epoll_ctl(c->edges, EPOLL_CTL_ADD, fd, &e);
    }
    return 0;
}

static weir_status take_url(struct client *c, const char *url, weir_error *err) {
    const char *host = strstr(url, "://");
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return weir_fail(err, WEIR_BAD_VALUE, "--url",
                         "must begin with http:// or https://, not %s", url);
    host += 3;
    if (!*host || *host == '/' || *host == ':' || strpbrk(url, " ?#"))
        return weir_fail(err, WEIR_BAD_VALUE, "--url",
                         "must be http://HOST[:PORT][/PREFIX], not %s", url);
    c->url = strdup(url);
    size_t n = c->url ? strlen(c->url) : 0;
    while (n > 0 && c->url[n - 1] == '/')
        c->url[--n] = 0;
    /* The API's root is often given with its version; paths here bring it along. */
    if (n > 3 && !strcmp(c->url + n - 3, "/v1"))
        c->url[n - 3] = 0;
    return c->url ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, "--url", "no memory");
}

static bool take_headers(struct client *c, const char *api_key) {
    char key[4096];
    /* An empty Expect keeps libcurl from waiting for a 100 before large bodies. */
    static const char *const lines[] = {"Content-Type: application/json", "Expect:",
                                        "Accept: text/event-stream, application/json, */*"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct curl_slist *more = c->api->slist_append(c->headers, lines[i]);
        if (!more)
            return false;
        c->headers = more;
    }
    if (!api_key)
        return true;
    snprintf(key, sizeof key, "Authorization: Bearer %s", api_key);
    struct curl_slist *more = c->api->slist_append(c->headers, key);
    c->headers = more ? more : c->headers;
    return more != NULL;
}

weir_status client_watch(struct client *c, int fd, void (*ready)(void *user), void *user,
                         weir_error *err) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    WEIR_ASSERT(c->n_watched < sizeof c->watched / sizeof *c->watched);
    if (epoll_ctl(c->poll, EPOLL_CTL_ADD, fd, &e) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "epoll", "%s", strerror(errno));
    c->watched[c->n_watched++] = (struct client_watched){fd, ready, user};
    return WEIR_OK;
}

weir_status client_open(const struct client_options *o, struct client **out, weir_error *err) {
    *out = NULL;
    const struct curl_api *api;
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of its call, not the end */
    weir_status s = curl_api_load(&api, err);
    if (s)
        return s;
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return weir_fail(err, WEIR_NO_MEMORY, "client", "no memory");
    c->api = api;
    c->connect_ms = (int64_t)(o->connect_seconds * 1e3);
    c->has_key = o->api_key != NULL;
    c->silence = (int64_t)(o->silence_seconds * 1e9);
    c->whole = (int64_t)(o->whole_seconds * 1e9);
    c->curl_due = INT64_MAX;
    c->reading = -1;
    reservoir_clear(&c->turns);
    c->poll = epoll_create1(EPOLL_CLOEXEC);
    c->edges = epoll_create1(EPOLL_CLOEXEC);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    c->multi = api->multi_init();
    s = take_url(c, o->url, err);
    if (!s && o->ca_file && access(o->ca_file, R_OK) != 0)
        s = weir_fail(err, WEIR_BAD_FILE, "--ca", "%s cannot be read: %s", o->ca_file,
                      strerror(errno));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = c->timer};
    bool ok = c->poll >= 0 && c->edges >= 0 && c->timer >= 0 && c->multi &&
              epoll_ctl(c->poll, EPOLL_CTL_ADD, c->timer, &e) == 0 && take_headers(c, o->api_key) &&
              (!o->ca_file || (c->ca_file = strdup(o->ca_file)) != NULL);
    if (!s && !ok)
        s = weir_fail(err, WEIR_NO_MEMORY, "client", "cannot start: %s", strerror(errno));
    if (s) {
        client_close(c);
        return s;
    }
    api->multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    api->multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    api->multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    api->multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    api->multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)o->streams + 16);
    *out = c;
    return WEIR_OK;
}

void client_close(struct client *c) {
    if (!c)
        return;
    while (c->exchanges)
        client_exchange_free(c, c->exchanges);
    while (c->n_idle > 0)
        c->api->easy_cleanup(c->idle[--c->n_idle]);
    if (c->multi)
        c->api->multi_cleanup(c->multi);
    c->api->slist_free_all(c->headers);
    const int fds[] = {c->poll, c->edges, c->timer};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(c->url);
    free(c->ca_file);
    free(c->edge);
    free(c);
}

/* Bytes that wait in a socket; INT_MAX where that is not to be had. Under TLS they are more than
 * what will come of them, so that a piece behind others may carry the time of the first. */
static int unread(int fd) {
    int n = 0;
    return ioctl(fd, FIONREAD, &n) == 0 ? n : INT_MAX;
}

/* Notes which sockets have received something since the last look, and how much waits there by
 * then: a read may bring more, which came later. */
static void look(struct client *c) {
    struct epoll_event e[EVENTS];
    int n = epoll_wait(c->edges, e, EVENTS, 0);
    int64_t now = client_now();
    c->looked = now;
    for (int i = 0; i < n; i++) {
        struct edge *edge = &c->edge[e[i].data.fd];
        int bytes = unread(e[i].data.fd);
        if (bytes == 0)
            continue; /* it was read before it was looked at, or has only ended */
        struct waiting waiting = {now, bytes};
        if (edge->first.at && edge->turn + 1 >= c->turn)
            edge->newest = waiting; /* what came first still waits */
        else
            *edge = (struct edge){waiting, waiting, c->turn};
    }
}

static void set_timer(struct client *c, int64_t at) {
    if (at == c->timer_set)
        return;
    struct itimerspec t = {0};
    if (at != INT64_MAX) {
        at = at < 1 ? 1 : at; /* zero would switch it off */
        t.it_value.tv_sec = at / 1000000000;
        t.it_value.tv_nsec = at % 1000000000;
    }
    timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL);
    c->timer_set = at;
}

static bool is_watched(struct client *c, int fd) {
    for (uint32_t i = 0; i < c->n_watched; i++)
        if (c->watched[i].fd == fd) {
            c->watched[i].ready(c->watched[i].user);
            return true;
        }
    return false;
}

int64_t client_take_edge(struct client *c, int fd) {
    if (fd < 0 || (size_t)fd >= c->n_edges)
        return 0;
    struct edge *edge = &c->edge[fd];
    int64_t at = edge->turn + 1 >= c->turn ? edge->first.at : 0;
    edge->first.at = 0;
    return at;
}

static void read_socket(struct client *c, const struct epoll_event *e, int64_t now) {
    int fd = e->data.fd, running;
    int mask = 0;
    struct edge edge = c->edge[fd];
    int64_t at = client_take_edge(c, fd);
    /* Without an edge one byte was there: that the wait ended says no more. */
    struct waiting waited = {now, 1};
    c->read = (struct reading){.first = at && at <= now ? edge.first : waited,
                               .newest = at ? edge.newest : waited,
                               .looked = c->looked};
    c->reading = fd;
    if (e->events & EPOLLIN)
        mask |= CURL_CSELECT_IN;
    if (e->events & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    if (e->events & (EPOLLERR | EPOLLHUP))
        mask |= CURL_CSELECT_ERR;
    c->api->multi_socket_action(c->multi, fd, mask, &running);
    client_finish_all(c);
    c->reading = -1;
}

/* libcurl's own work: new exchanges, its timeouts. */
static void kick(struct client *c) {
    int running;
    c->must_kick = false;
    c->curl_due = INT64_MAX;
    c->reading = -1;
    c->api->multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    client_finish_all(c);
}

int64_t client_turn(struct client *c, int64_t until) {
    struct epoll_event e[EVENTS];
    uint64_t ended = c->ended;
    while (c->must_kick)
        kick(c);
    int64_t wake = c->curl_due < until ? c->curl_due : until;
    if (c->n_streams > 0 && c->limits_checked + LIMITS_EVERY < wake)
        wake = c->limits_checked + LIMITS_EVERY;
    set_timer(c, wake);
    int n = epoll_wait(c->poll, e, EVENTS, 0);
    c->turn++;
    if (n == 0) {
        /* Nothing was waiting, so that all edges noted so far are of data already read. What ended
         * above may have changed what the caller waits for: no waiting then. */
        c->turn++;
        n = epoll_wait(c->poll, e, EVENTS, c->ended == ended ? -1 : 0);
    }
    int64_t now = client_now(), sockets = 0;
    c->waited = now;
    look(c);
    for (int i = 0; i < n; i++) {
        if (e[i].data.fd == c->timer) {
            uint64_t times;
            c->timer_set = 0;
            if (read(c->timer, &times, sizeof times) < 0)
                continue; /* it was moved meanwhile */
        } else if (!is_watched(c, e[i].data.fd)) {
            if (sockets > 0)
                look(c);
            /* A socket that was first seen after the wait cannot be in this list. */
            read_socket(c, &e[i], now);
            sockets++;
        }
    }
    if (client_now() >= c->curl_due)
        kick(c);
    while (c->must_kick)
        kick(c);
    if (now - c->limits_checked > LIMITS_EVERY) {
        c->limits_checked = now;
        client_check_limits(c, now);
    }
    if (sockets > 0)
        reservoir_add(&c->turns, (double)(client_now() - now) * 1e-3);
    return now;
}
