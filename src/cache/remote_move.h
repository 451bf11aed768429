/* remote_move.h: what one thread of the remote tier does for one move, over its own connection.
 *
 * Order of publication: pages, then the layers of the state, then its manifest, each confirmed
 * before the next kind is sent; a reader that finds the manifest finds the rest, unless the server
 * has evicted it since. A state with a missing or wrong layer loses its manifest at once, so that
 * it is no longer found. */
#ifndef WEIR_CACHE_REMOTE_MOVE_H
#define WEIR_CACHE_REMOTE_MOVE_H

#include "cache/remote_known.h"
#include "cache/remote_link.h"
#include "cache/remote_value.h"

enum remote_trouble {
    REMOTE_FINE,
    REMOTE_OFF,       /* the connection is broken or the server refuses to read */
    REMOTE_NO_WRITES, /* it reads, but takes no values: full, a replica, ... */
};

enum {
    REMOTE_BATCH = 256,            /* commands without payload in one round trip */
    REMOTE_WINDOW = 64,            /* values under way on one connection at most, of at most */
    REMOTE_WINDOW_BYTES = 8 << 20, /* this many bytes, or a single larger value (stores: two) */
};

struct remote_mover {
    /* Given by the owner. learn: what the server said about n records; any time during a move. */
    const struct tier_setup *setup;
    double move_seconds, bytes_per_second; /* a move may take move_seconds + bytes / rate, */
    double question_seconds;               /* a question no longer than this without a byte */
    void (*learn)(void *arg, const struct remote_name *names, const bool *present, uint32_t n);
    /* Likewise, of records said to be used: those that are not whole are gone, the others as
     * before. */
    void (*learn_gone)(void *arg, const struct remote_name *names, const bool *whole, uint32_t n);
    void *arg;
    struct remote_link link;
    /* Set by a move. */
    enum remote_trouble trouble;
    char why[REMOTE_WHY];
    bool wrote; /* the server took a value */
    /* Room to work in. */
    struct remote_value *batch; /* [REMOTE_BATCH] */
    char *text;
    unsigned char *layer;            /* one layer's record */
    uint64_t *manifest, *layer_sums; /* [layers][heads], [heads] */
    uint32_t pending;                /* values sent and not confirmed */
};

/* False without memory. setup, learn and arg are set before. */
bool remote_mover_make(struct remote_mover *v, const _Atomic uint64_t *stop);
void remote_mover_free(struct remote_mover *v);

/* The name that remote_link_open reads. */
void remote_mover_name(const struct remote_mover *v, char out[REMOTE_NAME_BYTES]);
uint64_t remote_move_bytes(const struct tier_setup *s, const struct tier_move *m);

/* all: send also what the server has already. FAILED, or DECLINED with REMOTE_NO_WRITES. */
enum tier_result remote_move_store(struct remote_mover *v, struct tier_move *m, bool all);
/* Bytes reach a page or slot only after their checksums have been found right. */
enum tier_result remote_move_load(struct remote_mover *v, struct tier_move *m);
enum tier_result remote_move_probe(struct remote_mover *v, const struct tier_move *m);
/* Tells the server that n records, at most REMOTE_BATCH, were used, and learns which are gone. */
void remote_move_touch(struct remote_mover *v, const struct remote_name *names, uint32_t n);

#endif
