/* remote_link.h: one connection to the remote store, with a limit on everything: how long it takes,
 * how long nothing may happen, how much may be waiting to be read. hiredis reads the replies; bytes
 * are sent from here, straight out of the pools, because hiredis would copy each value twice and
 * move what is left of it after every partial write.
 *
 * One thread at a time uses a link. Any failure leaves `why` (a phrase for the log, without
 * passwords) and a link that can only be closed. */
#ifndef WEIR_CACHE_REMOTE_LINK_H
#define WEIR_CACHE_REMOTE_LINK_H

#include "cache/remote_address.h"

#include <hiredis/hiredis.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>

enum { REMOTE_WHY = 160, REMOTE_READ_BYTES = 256 << 10 };

struct remote_link {
    int fd; /* -1: closed */
    redisReader *reader;
    unsigned char *scratch;       /* [REMOTE_READ_BYTES] */
    uint64_t deadline_ns;         /* for all that is done until it is set anew */
    uint64_t quiet_ns;            /* longest time without a byte in either direction */
    size_t most_bytes;            /* replies may lie unread up to here; more is no Redis server */
    const _Atomic uint64_t *stop; /* an earlier deadline that may come any time; UINT64_MAX: none */
    char why[REMOTE_WHY];
};

/* False without memory. */
bool remote_link_make(struct remote_link *l, const _Atomic uint64_t *stop);
void remote_link_free(struct remote_link *l);

/* Connects, gives the password, selects the database and reads the length of `key`, which a server
 * that is loading, wants a password or forbids the key space refuses. All of it within `seconds`,
 * except the look-up of a host name, which takes what the system's resolver allows. */
bool remote_link_open(struct remote_link *l, const struct remote_address *a, const char *key,
                      double seconds);
void remote_link_close(struct remote_link *l);
/* False: the server has closed the connection or sent what nobody asked for. */
bool remote_link_idle(const struct remote_link *l);
void remote_link_limit(struct remote_link *l, double seconds, double quiet_seconds);

/* Sends all of it; replies that come meanwhile are kept. */
bool remote_link_send(struct remote_link *l, struct iovec *part, int parts);
/* The next reply, to be freed with freeReplyObject; NULL: failed. */
redisReply *remote_link_reply(struct remote_link *l);

/* Writes one command to `out`; returns its length, 0 if it does not fit `room`. */
size_t remote_command(char *out, size_t room, int words, const char *const *word);

#endif
