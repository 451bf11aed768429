/* remote_link.c: sockets, time limits and the words of the protocol. Called by the remote tier's
 * threads. Invariant that bites: limits hold for a whole exchange, not for one system call, or a
 * server that sends a byte a second would hold a move for ever. */
#include "cache/remote_link.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Waits are cut into slices, so that `stop` is seen soon. */
enum { SLICE_MS = 50 };

static bool broken(struct remote_link *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool broken(struct remote_link *l, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(l->why, sizeof l->why, format, ap);
    va_end(ap);
    return false;
}

bool remote_link_make(struct remote_link *l, const _Atomic uint64_t *stop) {
    *l = (struct remote_link){.fd = -1, .stop = stop, .scratch = malloc(REMOTE_READ_BYTES)};
    return l->scratch != NULL;
}

void remote_link_free(struct remote_link *l) {
    remote_link_close(l);
    free(l->scratch);
    l->scratch = NULL;
}

void remote_link_close(struct remote_link *l) {
    if (l->fd >= 0)
        close(l->fd);
    if (l->reader)
        redisReaderFree(l->reader);
    l->fd = -1;
    l->reader = NULL;
}

bool remote_link_idle(const struct remote_link *l) {
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    return l->reader->pos == l->reader->len && poll(&p, 1, 0) == 0;
}

void remote_link_limit(struct remote_link *l, double seconds, double quiet_seconds) {
    l->deadline_ns = clock_ns() + (uint64_t)(seconds * 1e9);
    l->quiet_ns = (uint64_t)(quiet_seconds * 1e9);
}

/* Waits until the socket is ready for one of `events`; `since` is when the last byte moved.
 * Returns what it is ready for, 0: a limit was reached. */
static short wait_ready(struct remote_link *l, short events, uint64_t since) {
    for (;;) {
        const uint64_t now = clock_ns(), stop = atomic_load(l->stop);
        uint64_t end = l->deadline_ns < stop ? l->deadline_ns : stop;
        if (since + l->quiet_ns < end)
            end = since + l->quiet_ns;
        const uint64_t left_ms = now >= end ? 0 : (end - now) / 1000000 + 1;
        struct pollfd p = {.fd = l->fd, .events = events};
        const int n = poll(&p, 1, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS);
        if (n > 0)
            return p.revents;
        if (n < 0 && errno != EINTR) {
            broken(l, "poll: %s", strerror(errno));
            return 0;
        }
        if (now >= end) {
            broken(l, "%s", end == stop ? "closing" : "no answer within the time limit");
            return 0;
        }
    }
}

/* Takes what has arrived. *moved: something had. */
static bool fill(struct remote_link *l, bool *moved) {
    const ssize_t n = recv(l->fd, l->scratch, REMOTE_READ_BYTES, MSG_DONTWAIT);
    *moved = n > 0;
    if (n == 0)
        return broken(l, "the server closed the connection");
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return true;
        return broken(l, "%s", strerror(errno));
    }
    if (l->reader->len - l->reader->pos + (size_t)n > l->most_bytes + REMOTE_READ_BYTES)
        return broken(l, "it sends more than was asked for");
    if (redisReaderFeed(l->reader, (const char *)l->scratch, (size_t)n) != REDIS_OK)
        return broken(l, "%s", l->reader->errstr);
    return true;
}

bool remote_link_send(struct remote_link *l, struct iovec *part, int parts) {
    uint64_t since = clock_ns();
    while (parts > 0) {
        if (part->iov_len == 0) {
            part++;
            parts--;
            continue;
        }
        struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};
        ssize_t n = sendmsg(l->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return broken(l, "%s", strerror(errno));
        if (n >= 0) {
            since = clock_ns();
            while (parts > 0 && (size_t)n >= part->iov_len) {
                n -= (ssize_t)part->iov_len;
                part++;
                parts--;
            }
            if (parts > 0) {
                part->iov_base = (char *)part->iov_base + n;
                part->iov_len -= (size_t)n;
            }
            if (since < l->deadline_ns && since < atomic_load(l->stop))
                continue;
        }
        const short ready = wait_ready(l, POLLIN | POLLOUT, since);
        if (!ready)
            return false;
        /* A server that waits for its replies to be read takes no more commands. */
        bool moved = false;
        if ((ready & ~POLLOUT) && !fill(l, &moved))
            return false;
        if (moved)
            since = clock_ns();
    }
    return true;
}

redisReply *remote_link_reply(struct remote_link *l) {
    uint64_t since = clock_ns();
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(l->reader, &reply) != REDIS_OK) {
            broken(l, "%s", l->reader->errstr);
            return NULL;
        }
        if (reply)
            return reply;
        bool moved = false;
        if (!wait_ready(l, POLLIN, since) || !fill(l, &moved))
            return NULL;
        if (moved)
            since = clock_ns();
        if (since > l->deadline_ns) {
            broken(l, "no answer within the time limit");
            return NULL;
        }
    }
}

size_t remote_command(char *out, size_t room, int words, const char *const *word) {
    int n = snprintf(out, room, "*%d\r\n", words);
    for (int i = 0; i < words && n > 0 && (size_t)n < room; i++)
        n += snprintf(out + n, room - (size_t)n, "$%zu\r\n%s\r\n", strlen(word[i]), word[i]);
    return n > 0 && (size_t)n < room ? (size_t)n : 0;
}

/* --- opening ---------------------------------------------------------------------------------- */

static bool connect_to(struct remote_link *l, const struct addrinfo *a) {
    l->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (l->fd < 0)
        return broken(l, "socket: %s", strerror(errno));
    int fault = 0;
    if (connect(l->fd, a->ai_addr, a->ai_addrlen) != 0) {
        socklen_t size = sizeof fault;
        fault = errno;
        if (fault == EINPROGRESS && !wait_ready(l, POLLOUT, clock_ns()))
            return false;
        if (fault == EINPROGRESS)
            getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &fault, &size);
    }
    if (fault != 0)
        return broken(l, "%s", strerror(fault));
    const int on = 1;
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return true;
}

/* Each address of the host gets its share of the time that is left. */
static bool connect_any(struct remote_link *l, const struct remote_address *a, double seconds) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int fault = getaddrinfo(a->host, a->port, &hints, &list);
    if (fault != 0)
        return broken(l, "host name: %s", gai_strerror(fault));
    int left = 0;
    for (const struct addrinfo *i = list; i; i = i->ai_next)
        left++;
    bool done = false;
    const uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9);
    for (const struct addrinfo *i = list; i && !done; i = i->ai_next, left--) {
        const uint64_t now = clock_ns();
        const double share = now < end ? (double)(end - now) * 1e-9 / left : 0;
        remote_link_limit(l, share, share);
        done = connect_to(l, i);
        if (!done && l->fd >= 0) {
            close(l->fd);
            l->fd = -1;
        }
    }
    freeaddrinfo(list);
    if (done) {
        l->deadline_ns = end;
        l->quiet_ns = (uint64_t)(seconds * 1e9);
    }
    return done;
}

/* One command of the greeting. Of a refusal only the first word is repeated if `secret`: some
 * servers quote what they did not like. */
static bool greet(struct remote_link *l, int words, const char *const *word, const char *what,
                  bool secret) {
    char text[2048];
    struct iovec part = {text, remote_command(text, sizeof text, words, word)};
    const bool sent = part.iov_len > 0 && remote_link_send(l, &part, 1);
    explicit_bzero(text, sizeof text);
    redisReply *r = sent ? remote_link_reply(l) : NULL;
    if (!r)
        return false;
    const bool fine = r->type == REDIS_REPLY_STATUS || r->type == REDIS_REPLY_INTEGER ||
                      (r->type == REDIS_REPLY_ERROR && strncmp(r->str, "WRONGTYPE", 9) == 0);
    if (!fine) {
        const char *said = r->type == REDIS_REPLY_ERROR ? r->str : "a reply of another kind";
        if (strncmp(said, "NOAUTH", 6) == 0) /* whatever it was asked first */
            what = "access without a password";
        broken(l, "it refuses %s: %.*s", what, secret ? (int)strcspn(said, " ") : 100, said);
    }
    freeReplyObject(r);
    return fine;
}

bool remote_link_open(struct remote_link *l, const struct remote_address *a, const char *key,
                      double seconds) {
    remote_link_close(l);
    l->why[0] = '\0';
    l->most_bytes = 0;
    l->reader = redisReaderCreate();
    bool ok = l->reader != NULL || broken(l, "no memory");
    if (ok)
        l->reader->maxbuf = 0; /* keep the buffer: the next reply is as large */
    ok = ok && connect_any(l, a, seconds);
    if (ok && a->password[0]) {
        const char *two[] = {"AUTH", a->password}, *three[] = {"AUTH", a->user, a->password};
        ok = a->user[0] ? greet(l, 3, three, "user and password", true)
                        : greet(l, 2, two, "the password", true);
    }
    const char *select[] = {"SELECT", a->db}, *length[] = {"STRLEN", key};
    ok = ok && (!a->db[0] || greet(l, 2, select, "the database", false));
    ok = ok && greet(l, 2, length, "to read", false);
    if (!ok)
        remote_link_close(l);
    return ok;
}
