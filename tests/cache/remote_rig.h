/* remote_rig.h: what the tests of the remote tier share: a Redis server of their own, servers that
 * misbehave, a small store, moves that are waited for, the log's lines. */
#ifndef WEIR_TESTS_REMOTE_RIG_H
#define WEIR_TESTS_REMOTE_RIG_H

#include "tests/test.h"

#include "base/clock.h"
#include "base/rng.h"
#include "cache/remote.h"
#include "cache/remote_value.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdatomic.h>

/* --- a real server ---------------------------------------------------------------------------- */

struct rig_server {
    int pid, port;
    char directory[64];
    redisContext *raw; /* the test's own connection */
};
/* Starts redis-server on a free port, or on `port`; `options`: further arguments, NULL at their
 * end. Fails the test if there is none. */
void rig_server_start(struct rig_server *s, int port, const char *const *options);
void rig_server_stop(struct rig_server *s, int signal);
/* One command over the raw connection; the reply is freed by the next call. */
redisReply *rig_do(struct rig_server *s, const char *format, ...);
/* The n-th key in sorted order whose name matches `pattern`; fails if there is none. */
char *rig_key(struct rig_server *s, const char *pattern, size_t n);
size_t rig_count(struct rig_server *s, const char *pattern);

/* --- a server that misbehaves ----------------------------------------------------------------- */

enum rig_fault {
    RIG_SILENT,    /* accepts and never answers */
    RIG_NO_VALUES, /* answers the greeting and nothing more */
    RIG_TRICKLE,   /* after the greeting: a reply that never ends, a byte at a time */
    RIG_FLOOD,     /* after the greeting: far more than was asked for */
    RIG_GARBAGE,   /* after the greeting: no Redis protocol */
    RIG_ECHO,      /* refuses every command and quotes it */
    RIG_SLOW,      /* right answers of an empty server that takes everything, each after a while */
    RIG_NO_PAGES,  /* an empty server that refuses pages */
    RIG_NO_LAYERS, /* an empty server that refuses the layers of states but the last */
};
struct rig_fake {
    enum rig_fault fault;
    int listener, port;
    atomic_bool stop;
    atomic_uint pages, layers, manifests; /* that somebody tried to write */
    pthread_t thread;
};
void rig_fake_start(struct rig_fake *f, enum rig_fault fault);
void rig_fake_stop(struct rig_fake *f);

/* --- a tier with a store under it ------------------------------------------------------------- */

enum { RIG_PAGES = 64, RIG_SLOTS = 4, RIG_PAGE_BYTES = 3000, RIG_LAYERS = 3 };

struct rig {
    struct record_shape shape;
    struct cache_store store;
    struct tier_setup setup;
    struct tier *tier;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned notified;
};
/* Long ones, so that a busy machine fails no test; short ones to see them reached. */
extern const struct remote_limits rig_long, rig_short;
/* `model`: one letter that stands for a fingerprint. Opens over url or fails the test. */
void rig_open_url(struct rig *r, char model, const char *url, const struct remote_limits *limits);
void rig_open(struct rig *r, char model, int port); /* with the long ones */
void rig_open_short(struct rig *r, char model, int port);
void rig_close(struct rig *r);
/* Key of block i of prefix `seed`. */
struct cache_key rig_block(uint64_t seed, uint32_t i);
/* Fills a page, a slot with bytes that follow from (seed, i). */
void rig_fill_page(struct rig *r, int32_t page, uint64_t seed, uint32_t i);
void rig_fill_slot(struct rig *r, int32_t slot, uint64_t seed, uint32_t i);
bool rig_page_is(struct rig *r, int32_t page, uint64_t seed, uint32_t i);
bool rig_slot_is(struct rig *r, int32_t slot, uint64_t seed, uint32_t i);
void rig_clear(struct rig *r); /* zeroes pages and slots */

/* A move over the first n blocks of prefix `seed`, with the state at the end of the last one or
 * not. Pages from..from+n-1 and slot `slot` are its places; a store fills them first. */
struct rig_move {
    struct tier_move move;
    struct cache_key keys[RIG_PAGES], state_key;
    int32_t pages[RIG_PAGES], slot;
    uint32_t position;
    uint64_t seed;
};
void rig_move_make(struct rig *r, struct rig_move *m, enum tier_task task, uint64_t seed,
                   uint32_t n, bool state, int32_t from, int32_t slot);
/* Waits for n moves to end; fails the test after some seconds. */
void rig_wait(struct rig *r, unsigned n);
/* Makes, submits, waits: the result. */
enum tier_result rig_run(struct rig *r, enum tier_task task, uint64_t seed, uint32_t n, bool state);
/* Whether the pages of rig_run's load, and the slot, hold what was stored. */
bool rig_loaded(struct rig *r, uint64_t seed, uint32_t n, bool state);
bool rig_all_are(struct rig *r, uint64_t seed, uint32_t n, bool state, enum tier_presence p);
struct tier_usage rig_usage(struct rig *r);
/* Waits until usage says up or not. */
void rig_wait_up(struct rig *r, bool up);

/* --- the log ---------------------------------------------------------------------------------- */

void rig_log_begin(void); /* from here, standard error goes to a file, with all levels */
unsigned rig_log_count(const char *s); /* lines so far that hold `s` */
int rig_log_end(void **state);         /* teardown: shows what was written; errors only from here */

#endif
