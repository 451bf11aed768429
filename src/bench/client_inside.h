/* client_inside.h: what the two files of the client share. */
#ifndef WEIR_BENCH_CLIENT_INSIDE_H
#define WEIR_BENCH_CLIENT_INSIDE_H

#include "bench/client.h"
#include "bench/curl_api.h"

enum { IDLE_HANDLES = 1024 };

struct exchange {
    struct client *client;
    CURL *easy;
    struct exchange_events events;
    void *user;
    struct exchange *next, **back;
    int64_t sent, last; /* last: when something was heard of it */
    int fd;             /* that libcurl waits for; -1: none yet */
    int status;
    bool resent, is_post, refused;
    bool is_chunked; /* the answer's transfer coding */
    char fault[CURL_ERROR_SIZE];
    char why[160]; /* with refused */
    char url[];
};

/* So many bytes of a socket were seen to wait; at 0: not known. */
struct waiting {
    int64_t at;
    int64_t bytes;
};

/* When a descriptor was first seen to be readable since it was last read, and when something new
 * came while that waited. */
struct edge {
    struct waiting first, newest;
    uint64_t turn;
};

/* One read: what waited before it, and how much of it libcurl has handed over. */
struct reading {
    struct waiting first, newest;
    int64_t looked; /* what is beyond `newest` came after this */
    int64_t bytes;
};

struct client_watched {
    int fd;
    void (*ready)(void *user);
    void *user;
};

struct client {
    const struct curl_api *api;
    CURLM *multi;
    struct curl_slist *headers;
    char *url, *ca_file;
    bool has_key;
    int64_t connect_ms, silence, whole; /* ns but for the first; 0: no limit */

    int poll;  /* sockets, timer and watched descriptors, level-triggered: what has to be read */
    int edges; /* the same sockets, edge-triggered: when data came */
    int timer;
    int64_t curl_due;  /* when libcurl wants to be called; INT64_MAX: never */
    int64_t timer_set; /* what the timer stands at */
    int64_t looked;    /* when edges were last looked at */
    int64_t waited;    /* when the last wait ended */
    int reading;       /* descriptor being read; -1: libcurl does its own work */
    struct reading read;
    int64_t limits_checked;
    bool must_kick; /* exchanges were added */
    uint64_t turn;
    struct edge *edge; /* by descriptor */
    size_t n_edges;
    struct client_watched watched[4];
    uint32_t n_watched;

    struct exchange *exchanges;
    uint32_t n_streams, n_posts, most_streams; /* most: of POSTs */
    uint64_t ended;                            /* exchanges so far */
    CURL *idle[IDLE_HANDLES];
    size_t n_idle;
    struct reservoir turns;
};

/* When the `bytes` that libcurl hands over now came in; with what HTTP puts around them. What it
 * reads on its own, without our having said that the socket is readable, is of the moment; and
 * nothing was there before the request had left. */
int64_t client_stamp(struct client *c, struct exchange *x, size_t bytes);
/* When data of this descriptor was first seen to wait, 0: not known. Forgets it; fd may be -1. */
int64_t client_take_edge(struct client *c, int fd);
void client_exchange_free(struct client *c, struct exchange *x);
/* Tells the ends that libcurl has noted. */
void client_finish_all(struct client *c);
/* Ends exchanges that were silent or under way for too long. */
void client_check_limits(struct client *c, int64_t now);

#endif
