/* turns.c: see turns.h: a hash table of entries, linked by use.
 * Invariant that bites: entries are shared with threads that copy from them or write them to a
 * file, so one that leaves the store is freed by whoever lets go last. */
#include "serve/turns_inside.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BUCKETS = 256 };

static size_t bytes_of(const struct turns_entry *e) {
    /* A bucket or two come with each entry. */
    return sizeof *e + e->n * sizeof e->ids[0] + 2 * sizeof(struct turns_entry *);
}

struct turns *turns_open(size_t limit_bytes) {
    struct turns *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->buckets = calloc(FIRST_BUCKETS, sizeof(struct turns_entry *));
    if (!t->buckets) {
        free(t);
        return NULL;
    }
    t->n_buckets = FIRST_BUCKETS;
    t->stats.limit_bytes = limit_bytes;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void turns_let_go(struct turns_entry *e) {
    if (atomic_fetch_sub(&e->users, 1) == 1)
        free(e);
}

/* ---- under the lock ---- */

static struct turns_entry **bucket_of(struct turns *t, const struct turns_key *key) {
    size_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    return &t->buckets[hash & (t->n_buckets - 1)];
}

static struct turns_entry *find(struct turns *t, const struct turns_key *key) {
    struct turns_entry *e = *bucket_of(t, key);
    while (e && memcmp(&e->key, key, sizeof *key) != 0)
        e = e->chain;
    return e;
}

static void unlink_use(struct turns *t, struct turns_entry *e) {
    *(e->newer ? &e->newer->older : &t->newest) = e->older;
    *(e->older ? &e->older->newer : &t->oldest) = e->newer;
}

static void link_newest(struct turns *t, struct turns_entry *e) {
    e->newer = NULL;
    e->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = e;
    t->newest = e;
}

static void take_out(struct turns *t, struct turns_entry *e) {
    struct turns_entry **at = bucket_of(t, &e->key);
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    unlink_use(t, e);
    t->stats.entries--;
    t->stats.bytes -= bytes_of(e);
    turns_let_go(e);
}

/* Without memory the chains grow longer instead. */
static void grow(struct turns *t) {
    size_t n = 2 * t->n_buckets;
    struct turns_entry **buckets = calloc(n, sizeof(struct turns_entry *));
    if (!buckets)
        return;
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
    for (struct turns_entry *e = t->newest; e; e = e->older) {
        struct turns_entry **at = bucket_of(t, &e->key);
        e->chain = *at;
        *at = e;
    }
}

static void put_in(struct turns *t, struct turns_entry *e) {
    struct turns_entry *before = find(t, &e->key);
    if (before)
        take_out(t, before);
    while (t->oldest && t->stats.bytes + bytes_of(e) > t->stats.limit_bytes) {
        take_out(t, t->oldest);
        t->stats.evictions++;
    }
    if (t->stats.entries >= t->n_buckets)
        grow(t);
    struct turns_entry **at = bucket_of(t, &e->key);
    e->chain = *at;
    *at = e;
    link_newest(t, e);
    t->stats.entries++;
    t->stats.bytes += bytes_of(e);
    t->added++;
}

/* ---- the caller's side ---- */

void turns_put(struct turns *t, const struct turns_key *key, const int32_t *ids, size_t n) {
    if (n > UINT32_MAX / sizeof *ids)
        return;
    struct turns_entry *e = malloc(sizeof *e + n * sizeof *ids);
    if (!e)
        return; /* the turn is encoded anew, as every other */
    *e = (struct turns_entry){.key = *key, .n = (uint32_t)n};
    atomic_init(&e->users, 1);
    if (n)
        memcpy(e->ids, ids, n * sizeof *ids);
    if (bytes_of(e) > t->stats.limit_bytes) {
        free(e);
        return;
    }
    pthread_mutex_lock(&t->lock);
    put_in(t, e);
    pthread_mutex_unlock(&t->lock);
}

bool turns_get(struct turns *t, const struct turns_key *key, struct ids *out) {
    pthread_mutex_lock(&t->lock);
    struct turns_entry *e = find(t, key);
    if (e) {
        atomic_fetch_add(&e->users, 1);
        t->stats.hits++;
    } else {
        t->stats.misses++;
    }
    pthread_mutex_unlock(&t->lock);
    if (!e)
        return false;
    ids_append(out, e->ids, e->n);
    turns_let_go(e);
    return true;
}

void turns_touch(struct turns *t, const struct turns_key *keys, size_t n) {
    if (n == 0)
        return;
    pthread_mutex_lock(&t->lock);
    while (n-- > 0) {
        struct turns_entry *e = find(t, &keys[n]);
        if (e && e != t->newest) {
            unlink_use(t, e);
            link_newest(t, e);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

struct turns_stats turns_stats(struct turns *t) {
    pthread_mutex_lock(&t->lock);
    struct turns_stats stats = t->stats;
    pthread_mutex_unlock(&t->lock);
    return stats;
}

struct turns_entry **turns_hold_all(struct turns *t, size_t *n, uint64_t *added) {
    pthread_mutex_lock(&t->lock);
    *n = t->stats.entries;
    *added = t->added;
    struct turns_entry **all = *n ? malloc(*n * sizeof(struct turns_entry *)) : NULL;
    size_t i = 0;
    if (all)
        for (struct turns_entry *e = t->oldest; e; e = e->newer) {
            atomic_fetch_add(&e->users, 1);
            all[i++] = e;
        }
    pthread_mutex_unlock(&t->lock);
    return all;
}

void turns_close(struct turns *t) {
    if (!t)
        return;
    turns_keep_stop(t);
    while (t->oldest)
        take_out(t, t->oldest);
    pthread_mutex_destroy(&t->lock);
    free(t->buckets);
    free(t->path);
    free(t);
}
