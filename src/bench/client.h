/* client.h: many HTTP exchanges from one thread, with honest times. libcurl's multi interface on an
 * epoll loop of our own, so that it is known when each socket became readable.
 *
 * Times are int64_t ns of CLOCK_MONOTONIC. An arrival is stamped when its socket was first seen to
 * be readable, not when its turn to be read came: sockets that wait while others are read are
 * looked at again before each read. */
#ifndef WEIR_BENCH_CLIENT_H
#define WEIR_BENCH_CLIENT_H

#include "base/error.h"
#include "bench/reservoir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct exchange;

struct client_options {
    const char *url; /* "http://host:port/prefix"; https too. Paths are put behind it */
    const char *api_key, *ca_file;                          /* NULL: none */
    double connect_seconds, silence_seconds, whole_seconds; /* 0: no limit */
    uint32_t streams; /* exchanges at once that the pool of connections is made for */
};

/* How an exchange ended. */
struct exchange_end {
    int status;           /* of HTTP; 0: no answer came */
    bool ok;              /* the answer came whole, whatever it says */
    bool was_cancelled;   /* by client_cancel */
    const char *type;     /* "connect", "closed", "timeout", "protocol", "cancelled"; "" with ok */
    const char *message;  /* valid during the call */
    uint32_t connections; /* that had to be made; 0: an open one was used again */
    bool resent;          /* an open connection had died: it was sent again on a fresh one */
};

/* What is told of an exchange; all may be NULL. Called from client_turn only. */
struct exchange_events {
    void (*sent)(void *user, int64_t at);             /* the first byte is about to be sent */
    void (*head)(void *user, int status, int64_t at); /* first byte of the answer */
    void (*data)(void *user, int status, const char *bytes, size_t n, int64_t at);
    /* `at`: when the end was seen. The exchange is gone afterwards. */
    void (*ended)(void *user, const struct exchange_end *end, int64_t at);
};

/* WEIR_BAD_VALUE names --url; WEIR_UNSUPPORTED: no libcurl. */
weir_status client_open(const struct client_options *o, struct client **out, weir_error *err);
/* Exchanges under way are dropped without a word. */
void client_close(struct client *c);

int64_t client_now(void);
/* As it is asked, without a slash at the end; was a key given? */
const char *client_url(const struct client *c);
bool client_has_key(const struct client *c);

/* Begins an exchange: POST of `body` (not copied, must live until the end), or GET without one.
 * `path` begins with a slash. NULL without memory. */
struct exchange *client_send(struct client *c, const char *path, const char *body, size_t n,
                             const struct exchange_events *events, void *user);
/* Ends it at once; `ended` is called before this returns. */
void client_cancel(struct client *c, struct exchange *x);

/* Ends it as a failure of the protocol, from within its `data`: `ended` is called later, with these
 * words. */
void client_refuse(struct exchange *x, const char *why);

/* A file descriptor to watch beside the sockets; `ready` is called when it is readable. */
weir_status client_watch(struct client *c, int fd, void (*ready)(void *user), void *user,
                         weir_error *err);

/* Waits until something happens, or until `until`, handles all of it and returns the time right
 * after the wait. A signal ends the wait too. */
int64_t client_turn(struct client *c, int64_t until);

/* One whole exchange: waits for its end. *text is the body (NUL behind it), freed with free(); NULL
 * where none came. Not within a callback. */
struct client_text {
    int status;
    bool ok;
    char *text;
    size_t n;
    char message[160];
};
void client_fetch(struct client *c, const char *path, const char *body, double seconds,
                  struct client_text *out);

/* Lengths of loop turns that handled something, in us: how late an arrival may have been stamped at
 * worst. The client adds to it. */
struct reservoir *client_turn_lengths(struct client *c);
/* POSTs under way at once. */
uint32_t client_most_streams(const struct client *c);

#endif
