/* tier_case.h: what the tests of tiers share: pools of a made-up geometry, keys by number, bytes
 * that belong to a key, and moves that are waited for. */
#ifndef WEIR_TESTS_CACHE_TIER_CASE_H
#define WEIR_TESTS_CACHE_TIER_CASE_H

#include "tests/test.h"

#include "base/clock.h"
#include "base/rng.h"
#include "cache/tier.h"

#include <pthread.h>

struct tier_case {
    struct cache_store store;
    struct record_shape shape;
    struct tier_setup setup;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned notified;
};

static inline void case_notify(void *arg) {
    struct tier_case *c = arg;
    pthread_mutex_lock(&c->lock);
    c->notified++;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
}

static inline struct cache_key case_key(uint64_t n) {
    struct cache_key k;
    for (size_t i = 0; i < sizeof k.bytes; i += 8) {
        uint64_t v = rng_at(n, 77, i);
        memcpy(k.bytes + i, &v, 8);
    }
    return k;
}

/* `mla` layers of `width` f32 values a token; KDA of `layers`, `heads`, `dim`, three taps before
 * the current one. */
static inline void case_open(struct tier_case *c, uint32_t pages, uint32_t slots, uint32_t mla,
                             uint32_t width, uint32_t layers, uint32_t heads, uint32_t dim) {
    memset(c, 0, sizeof *c);
    size_t page = (size_t)mla * PAGE_TOKENS * width * 4;
    size_t layer = (size_t)heads * dim * dim + (size_t)9 * heads * dim;
    weir_error err;
    assert_int_equal(cache_store_open(&c->store, pages, page, width, DTYPE_F32, slots,
                                      layers * layer, layer, &err),
                     WEIR_OK);
    c->shape = (struct record_shape){page, layers, heads, dim, 3};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->ended, NULL);
    c->setup = (struct tier_setup){&c->store, &c->shape, case_key(1), case_notify, c};
}

static inline void case_close(struct tier_case *c) {
    cache_store_close(&c->store);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->ended);
}

static inline void case_small(struct tier_case *c) {
    case_open(c, 40, 8, 2, 5, 2, 3, 4);
}

static inline size_t case_bytes(const struct tier_case *c, bool state) {
    return state ? c->store.state.slot_floats * 4 : c->store.kv.page_bytes;
}
static inline unsigned char *case_at(const struct tier_case *c, bool state, int32_t id) {
    return state ? record_slot(&c->store, id) : record_page(&c->store, id);
}
/* The bytes of number n, as page or state. */
static inline uint64_t case_word(uint64_t n, bool state, size_t i) {
    return rng_mix(n * 2 + state + ((uint64_t)i << 32));
}
static inline void case_fill(const struct tier_case *c, bool state, int32_t id, uint64_t n) {
    unsigned char *at = case_at(c, state, id);
    size_t bytes = case_bytes(c, state);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t w = case_word(n, state, i);
        memcpy(at + i, &w, bytes - i < 8 ? bytes - i : 8);
    }
}
static inline bool case_holds(const struct tier_case *c, bool state, int32_t id, uint64_t n) {
    const unsigned char *at = case_at(c, state, id);
    size_t bytes = case_bytes(c, state);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t w = case_word(n, state, i);
        if (memcmp(at + i, &w, bytes - i < 8 ? bytes - i : 8) != 0)
            return false;
    }
    return true;
}

/* The next n moves that end, or more, waiting for them. */
static inline struct tier_move *case_wait(struct tier_case *c, struct tier *t, unsigned n) {
    struct tier_move *all = NULL, **end = &all;
    double limit = clock_seconds() + 120;
    while (n) {
        pthread_mutex_lock(&c->lock);
        while (!c->notified) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
            pthread_cond_timedwait(&c->ended, &c->lock, &until);
            if (clock_seconds() > limit)
                fail_msg("no move ended within 120 s");
        }
        c->notified = 0;
        pthread_mutex_unlock(&c->lock);
        for (*end = t->collect(t); *end; end = &(*end)->next)
            n -= n > 0;
    }
    return all;
}

/* Pages `first` .. first + n - 1 (numbers are keys) in device pages of the same order from
 * `page_id`, and the state of number `state` in `slot`, or -1. */
struct case_unit {
    struct tier_move move;
    struct cache_key page_keys[64], state_key;
    int32_t pages[64], slot;
    uint32_t position;
    uint64_t first, state;
};
static inline uint32_t case_position(uint64_t state) {
    return (uint32_t)(64 * (state % 1000 + 1));
}
static inline void case_unit(struct case_unit *u, enum tier_task task, uint64_t first, uint32_t n,
                             int32_t page_id, uint64_t state, int32_t slot) {
    *u = (struct case_unit){.first = first, .state = state, .slot = slot};
    for (uint32_t i = 0; i < n; i++) {
        u->page_keys[i] = case_key(first + i);
        u->pages[i] = page_id + (int32_t)i;
    }
    u->state_key = case_key(state);
    u->position = case_position(state);
    u->move = (struct tier_move){.task = task,
                                 .n_pages = n,
                                 .page_keys = u->page_keys,
                                 .pages = u->pages,
                                 .n_states = slot >= 0,
                                 .state_keys = &u->state_key,
                                 .positions = &u->position,
                                 .slots = &u->slot,
                                 .owner = u};
}
static inline void case_unit_fill(const struct tier_case *c, const struct case_unit *u) {
    for (uint32_t i = 0; i < u->move.n_pages; i++)
        case_fill(c, false, u->pages[i], u->first + i);
    if (u->slot >= 0)
        case_fill(c, true, u->slot, u->state);
}
static inline bool case_unit_holds(const struct tier_case *c, const struct case_unit *u) {
    for (uint32_t i = 0; i < u->move.n_pages; i++)
        if (!case_holds(c, false, u->pages[i], u->first + i))
            return false;
    return u->slot < 0 || case_holds(c, true, u->slot, u->state);
}
static inline enum tier_result case_run(struct tier_case *c, struct tier *t, struct case_unit *u) {
    u->move.result = TIER_RESULTS;
    t->submit(t, &u->move);
    assert_ptr_equal(case_wait(c, t, 1), &u->move);
    return u->move.result;
}
/* Fills, stores, waits. */
static inline enum tier_result case_store(struct tier_case *c, struct tier *t, uint64_t first,
                                          uint32_t n, uint64_t state, bool with_state) {
    struct case_unit u;
    case_unit(&u, TIER_STORE, first, n, 0, state, with_state ? 0 : -1);
    case_unit_fill(c, &u);
    return case_run(c, t, &u);
}
/* Loads into other pages and another slot than case_store uses; wrong bytes fail the test. */
static inline enum tier_result case_load(struct tier_case *c, struct tier *t, uint64_t first,
                                         uint32_t n, uint64_t state, bool with_state) {
    struct case_unit u;
    case_unit(&u, TIER_LOAD, first, n, (int32_t)c->store.pages / 2, state, with_state ? 1 : -1);
    enum tier_result r = case_run(c, t, &u);
    if (r == TIER_OK && !case_unit_holds(c, &u))
        fail_msg("pages %llu.., state %llu: wrong bytes", (unsigned long long)first,
                 (unsigned long long)state);
    return r;
}

/* A random history of stores, loads, uses and resets, several moves under way at a time. Bytes that
 * are not those of their key fail it, and so do usage beyond the budget and records that the tier
 * says it holds and does not. `failures`: results other than those of a healthy tier are fine. */
enum { CASE_LANES = 4, CASE_NUMBERS = 60 };
static inline void case_history(struct tier_case *c, struct tier *t, uint64_t seed, int steps,
                                bool failures) {
    struct case_unit unit[CASE_LANES];
    bool busy[CASE_LANES] = {false};
    unsigned under_way = 0;
    uint64_t at = seed << 32, ok = 0;
    int32_t span = (int32_t)c->store.pages / CASE_LANES;
    for (int step = 0; step < steps || under_way; step++) {
        uint64_t r = rng_mix(at++);
        uint32_t i = (uint32_t)(r % CASE_LANES);
        struct case_unit *u = &unit[i];
        if (step < steps && !busy[i]) {
            enum tier_task task = r >> 8 & 1 ? TIER_STORE : TIER_LOAD;
            uint32_t n = (uint32_t)((r >> 16) % (uint32_t)(span + 1));
            uint64_t first = (r >> 24) % CASE_NUMBERS;
            uint64_t state = first + (n ? n - 1 : 0);
            case_unit(u, task, first, n, (int32_t)i * span, state, r >> 9 & 1 ? (int32_t)i : -1);
            if (task == TIER_STORE)
                case_unit_fill(c, u);
            u->move.result = TIER_RESULTS;
            t->submit(t, &u->move);
            busy[i] = true;
            under_way++;
        } else if (step < steps && (r >> 40) % 200 == 0) {
            t->reset(t, &(uint64_t){0});
        } else if (step < steps && (r >> 40) % 4 == 0) {
            struct cache_key keys[16];
            uint32_t n = (uint32_t)((r >> 16) % 16);
            for (uint32_t k = 0; k < n; k++)
                keys[k] = case_key((r >> 24) % CASE_NUMBERS + k);
            t->touch(t, keys, n, r >> 9 & 1);
        } else if (under_way) {
            for (struct tier_move *m = case_wait(c, t, 1), *next; m; m = next) {
                next = m->next;
                u = m->owner;
                busy[u - unit] = false;
                under_way--;
                if (m->result == TIER_OK && !case_unit_holds(c, u))
                    fail_msg("seed %llu step %d: %s of pages %llu..+%u: wrong bytes",
                             (unsigned long long)seed, step,
                             m->task == TIER_LOAD ? "load" : "store", (unsigned long long)u->first,
                             m->n_pages);
                if (!failures && m->result != TIER_OK && m->result != TIER_GONE &&
                    m->result != TIER_DECLINED)
                    fail_msg("seed %llu step %d: %s", (unsigned long long)seed, step,
                             tier_result_name(m->result));
                ok += m->result == TIER_OK && m->bytes;
            }
        }
        struct tier_usage usage;
        t->usage(t, &usage);
        if (usage.bytes_used > usage.bytes_total)
            fail_msg("seed %llu step %d: over budget", (unsigned long long)seed, step);
    }
    if (!failures && !ok)
        fail_msg("seed %llu: nothing moved", (unsigned long long)seed);
    /* What it says it holds now, it gives. */
    struct tier_usage usage;
    uint64_t pages = 0, states = 0;
    for (uint64_t n = 0; n < CASE_NUMBERS + 64; n++) {
        struct cache_key key = case_key(n);
        if (t->page(t, &key) == TIER_PRESENT && case_load(c, t, n, 1, 0, false) == TIER_OK)
            pages++;
        if (t->state(t, &key, case_position(n)) == TIER_PRESENT &&
            case_load(c, t, 0, 0, n, true) == TIER_OK)
            states++;
        assert_int_equal(t->state(t, &key, case_position(n) + 64), TIER_ABSENT);
    }
    t->usage(t, &usage);
    assert_int_equal(usage.pages, pages);
    assert_int_equal(usage.states, states);
}

#endif
