/* turns_inside.h: the store behind turns.h. Shared by turns.c and turns_file.c. */
#ifndef WEIR_SERVE_TURNS_INSIDE_H
#define WEIR_SERVE_TURNS_INSIDE_H

#include "base/error.h"
#include "serve/turns.h"

#include <pthread.h>
#include <stdatomic.h>

/* Never changes once it is in the store; lives until its last user has let go. */
struct turns_entry {
    struct turns_key key;
    atomic_uint users; /* the store and whoever copies from it */
    struct turns_entry *newer, *older;
    struct turns_entry *chain; /* of its bucket */
    uint32_t n;
    int32_t ids[];
};

struct turns {
    pthread_mutex_t lock;
    struct turns_entry **buckets;
    size_t n_buckets; /* a power of two */
    struct turns_entry *newest, *oldest;
    struct turns_stats stats;
    uint64_t added; /* turns_put calls that changed something */

    /* turns_keep */
    pthread_t keeper;
    pthread_cond_t wake;
    bool keeps, stop;
    char *path;
    double seconds;
    uint64_t saved; /* `added` of the last save; the keeper's own */
};

void turns_let_go(struct turns_entry *e);
/* Takes hold of all entries, the least recently used first: an array to be freed; *n of them. NULL
 * when there are none or no memory is left (*n is then 0 or not). */
struct turns_entry **turns_hold_all(struct turns *t, size_t *n, uint64_t *added);
/* Joins the thread of turns_keep. */
void turns_keep_stop(struct turns *t);

#endif
