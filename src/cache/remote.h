/* remote.h: the limits of the remote tier, which tests make shorter. Everybody else opens it
 * through tier.h. */
#ifndef WEIR_CACHE_REMOTE_H
#define WEIR_CACHE_REMOTE_H

#include "cache/tier.h"

struct remote_limits {
    double connect_seconds;  /* to be connected and greeted; a question may not wait for longer */
    double move_seconds;     /* a move may take this and its bytes over bytes_per_second ... */
    double bytes_per_second; /* ... and never may this long go by without a byte */
    /* A server that was lost is tried again at once, then after a pause that doubles each time. */
    double pause_seconds, pause_most_seconds;
    uint32_t known;         /* records that are remembered, pages and states together */
    uint32_t stores;        /* stores that may wait; more are declined: they pin device memory */
    uint32_t touch_seconds; /* the server is told of a record's use at most this often, and asked in
                               the same breath whether it still has it */
};

/* 2 s, 10 s, 16 MB/s, 1 s to 30 s, 262144 records (16 MiB), 32 stores, 10 s. */
extern const struct remote_limits remote_limits_usual;

weir_status remote_open(const struct tier_setup *s, const char *url,
                        const struct remote_limits *limits, struct tier **out, weir_error *err);

#endif
