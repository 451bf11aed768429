/* remote_known.c: a hash table with chains and a list by last use, in arrays of fixed size. Called
 * by remote.c with its lock held. Keys are SHA-256, so their first bytes are hash enough. */
#include "cache/remote_known.h"

#include <string.h>

struct entry {
    struct remote_name name;
    enum tier_presence presence;
    uint32_t touched;
    uint32_t chain;        /* next in the same bucket, or in the list of free entries; 0: none */
    uint32_t newer, older; /* 0: none */
};

/* Entry 0 is no record: its newer and older are the oldest and the newest of the list. */
struct remote_known {
    uint32_t mask, most, used, free; /* entries 1..used have been in use; free: a chain of them */
    uint64_t present[2];             /* pages, states */
    uint32_t *bucket;
    struct entry *entry;
};

struct remote_known *remote_known_open(uint32_t most) {
    struct remote_known *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    uint32_t buckets = 1;
    while (buckets < most)
        buckets *= 2;
    k->mask = buckets - 1;
    k->bucket = calloc(buckets, sizeof *k->bucket);
    k->entry = calloc((size_t)most + 1, sizeof *k->entry);
    if (!k->bucket || !k->entry) {
        remote_known_close(k);
        return NULL;
    }
    k->most = most;
    return k;
}

void remote_known_close(struct remote_known *k) {
    if (!k)
        return;
    free(k->bucket);
    free(k->entry);
    free(k);
}

static uint32_t *bucket_of(const struct remote_known *k, const struct remote_name *n) {
    uint32_t hash;
    memcpy(&hash, n->key.bytes, sizeof hash);
    return &k->bucket[(hash ^ n->position) & k->mask];
}

static uint32_t find(const struct remote_known *k, const struct remote_name *n) {
    uint32_t i = *bucket_of(k, n);
    while (i && (k->entry[i].name.position != n->position ||
                 !cache_key_equal(&k->entry[i].name.key, &n->key)))
        i = k->entry[i].chain;
    return i;
}

static void unlink_use(struct remote_known *k, uint32_t i) {
    struct entry *e = &k->entry[i];
    k->entry[e->newer].older = e->older;
    k->entry[e->older].newer = e->newer;
}

static void link_newest(struct remote_known *k, uint32_t i) {
    struct entry *e = &k->entry[i], *list = &k->entry[0];
    e->newer = 0;
    e->older = list->older;
    k->entry[list->older].newer = i;
    list->older = i;
}

static void set_presence(struct remote_known *k, uint32_t i, enum tier_presence p) {
    struct entry *e = &k->entry[i];
    uint64_t *count = &k->present[e->name.position != 0];
    *count -= e->presence == TIER_PRESENT;
    *count += p == TIER_PRESENT;
    e->presence = p;
}

static void forget(struct remote_known *k, uint32_t i) {
    uint32_t *at = bucket_of(k, &k->entry[i].name);
    while (*at != i)
        at = &k->entry[*at].chain;
    *at = k->entry[i].chain;
    set_presence(k, i, TIER_ABSENT);
    unlink_use(k, i);
    k->entry[i].chain = k->free;
    k->free = i;
}

static uint32_t fresh(struct remote_known *k) {
    if (!k->free && k->used < k->most)
        return ++k->used; /* memory is touched only as far as it is needed */
    if (!k->free)
        forget(k, k->entry[0].newer);
    const uint32_t i = k->free;
    k->free = k->entry[i].chain;
    return i;
}

enum tier_presence remote_known_get(const struct remote_known *k, const struct remote_name *n) {
    const uint32_t i = find(k, n);
    return i ? k->entry[i].presence : TIER_ABSENT;
}

void remote_known_set(struct remote_known *k, const struct remote_name *n, enum tier_presence p) {
    uint32_t i = find(k, n);
    if (p == TIER_ABSENT) {
        if (i)
            forget(k, i);
        return;
    }
    if (i) {
        unlink_use(k, i);
    } else {
        i = fresh(k);
        k->entry[i] = (struct entry){.name = *n};
        uint32_t *at = bucket_of(k, n);
        k->entry[i].chain = *at;
        *at = i;
    }
    set_presence(k, i, p);
    link_newest(k, i);
}

bool remote_known_touch(struct remote_known *k, const struct remote_name *n, uint32_t now,
                        uint32_t seconds) {
    const uint32_t i = find(k, n);
    if (!i)
        return false;
    unlink_use(k, i);
    link_newest(k, i);
    struct entry *e = &k->entry[i];
    if (e->presence != TIER_PRESENT || (e->touched && now - e->touched < seconds))
        return false;
    e->touched = now ? now : 1;
    return true;
}

uint64_t remote_known_reset(struct remote_known *k) {
    uint64_t n = 0;
    for (uint32_t i = k->entry[0].newer, next; i; i = next) {
        next = k->entry[i].newer;
        if (k->entry[i].presence == TIER_PRESENT) {
            forget(k, i);
            n++;
        }
    }
    return n;
}

void remote_known_count(const struct remote_known *k, uint64_t *pages, uint64_t *states) {
    *pages = k->present[0];
    *states = k->present[1];
}
