/* tier.h: a place below the device pools that keeps prefixes for longer: host memory, disk, a store
 * on the network. What moves is a unit: the MLA history of some blocks and the KDA state at the end
 * of the last one. A tier is addressed by keys (key.h) and knows nothing of requests.
 *
 * Threads: the functions of `struct tier` are called by one thread, the engine's, and return at
 * once; bytes are moved by threads of the tier's own, which call `notify` when a move has ended.
 * Source and target pages and slots belong to the move until it has been collected: published
 * content or fresh ids, so nobody writes to the former and nobody reads the latter meanwhile.
 *
 * A tier may be slow, full, dead or damaged. It then says so in the result of the move, and writes
 * one log line when its condition changes, not one per move. It never gives bytes whose checksum
 * does not match. */
#ifndef WEIR_CACHE_TIER_H
#define WEIR_CACHE_TIER_H

#include "cache/key.h"
#include "cache/record.h"
#include "cache/store.h"

enum tier_kind { TIER_HOST, TIER_DISK, TIER_REMOTE, TIER_KINDS };

enum tier_presence {
    TIER_ABSENT,
    TIER_COMING,  /* being written: need not be stored again, cannot be loaded yet */
    TIER_PRESENT, /* as far as the tier knows; a load may still find it gone */
};

enum tier_task {
    TIER_STORE, /* device to tier */
    TIER_LOAD,  /* tier to device */
    TIER_PROBE, /* find out which of the keys the tier holds; page() and state() know afterwards.
                   Tiers that always know answer at once */
};

enum tier_result {
    TIER_OK,
    TIER_GONE,     /* a record was not there any more (load) */
    TIER_DAMAGED,  /* a record was there and wrong: it was dropped (load) */
    TIER_FAILED,   /* input or output failed, or took longer than the tier's time limit */
    TIER_DECLINED, /* the tier is off for now; of stores also: no room, or too much under way */
    TIER_RESULTS,
};
const char *tier_result_name(enum tier_result r);

/* One unit on its way. All but the last block below is filled by who submits it and stays untouched
 * until collected. On a failed load the targets hold anything. */
struct tier_move {
    enum tier_task task;
    uint32_t n_pages;
    const struct cache_key *page_keys; /* [n_pages] */
    const int32_t *pages; /* [n_pages] device pages; PROBE: NULL. STORE: -1 for one that
                             the tier holds or is getting, named because the rest is of
                             no use without it */
    uint32_t n_states;    /* LOAD, STORE: at most 1; PROBE: any */
    const struct cache_key *state_keys;
    const uint32_t *positions; /* tokens before each state */
    const int32_t *slots;      /* device slots; PROBE: NULL */
    void *owner;

    enum tier_result result;
    uint64_t bytes; /* payload moved */
    double seconds; /* from submit to end */
    struct tier_move *next;
};

struct tier_usage {
    uint64_t bytes_used, bytes_total; /* total 0: the tier does not say */
    uint64_t pages, states;           /* records present */
    uint64_t pages_evicted, states_evicted;
    uint64_t damaged; /* records dropped because their bytes were wrong */
    uint64_t lost;    /* records dropped because they could not be read */
    uint64_t began;   /* how often it came up, was reset or lost everything at once */
    bool up;          /* it answers loads; false: off for now, moves are declined */
    bool takes;       /* it takes stores, as far as is known */
};

struct tier {
    enum tier_kind kind;
    enum tier_presence (*page)(struct tier *t, const struct cache_key *key);
    enum tier_presence (*state)(struct tier *t, const struct cache_key *key, uint32_t position);
    /* Takes the move; its end shows up in collect, however it ends. A state becomes PRESENT only
     * after the pages stored with it. */
    void (*submit)(struct tier *t, struct tier_move *m);
    /* Moves that have ended since the last call, linked by next; NULL: none. */
    struct tier_move *(*collect)(struct tier *t);
    /* The prefix was used: its records are the last to be evicted, tails before heads. state: the
     * one at the end of block n. */
    void (*touch)(struct tier *t, const struct cache_key *keys, uint32_t n, bool state);
    void (*usage)(const struct tier *t, struct tier_usage *out);
    /* Drops everything that is not under way; returns how many records that were. *left: how many
     * that it knew of stay where they are, because they are under way or not this process's own. */
    uint64_t (*reset)(struct tier *t, uint64_t *left);
    /* Waits for what is under way and frees the tier. Uncollected moves are dropped: their owner
     * must not wait for them. */
    void (*close)(struct tier *t);
};

/* What a tier is opened over. */
struct tier_setup {
    const struct cache_store *store;
    const struct record_shape *shape;
    struct cache_key model;    /* names the directory or the key space */
    void (*notify)(void *arg); /* any thread; must not block */
    void *notify_arg;
};

/* Host memory: at most `bytes` of pages and states together. */
weir_status tier_open_host(const struct tier_setup *s, uint64_t bytes, struct tier **out,
                           weir_error *err);
/* Files in `directory` (made if missing, its parent is not), at most `bytes`; what an earlier
 * process published there for the same model is found again. WEIR_BAD_VALUE names what cannot be
 * made or opened. */
weir_status tier_open_disk(const struct tier_setup *s, const char *directory, uint64_t bytes,
                           struct tier **out, weir_error *err);
/* A Redis server that several processes may share: "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]"
 * (remote_address.h). A server that does not answer at the start is tried again later;
 * WEIR_BAD_VALUE for a wrong address or rediss://, WEIR_UNSUPPORTED for records that no Redis value
 * can hold. Its records are everybody's: reset deletes none. It makes this process forget what it
 * knew and load from then on only what it has stored since, until it is started anew; so after a
 * reset no answer depends on anything older, whoever wrote it. */
weir_status tier_open_remote(const struct tier_setup *s, const char *url, struct tier **out,
                             weir_error *err);

#endif
