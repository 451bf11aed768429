/* fake_tier.h: a tier made for tests, which has what it is told to have and answers when it is told
 * to. */
#ifndef WEIR_TESTS_CACHE_FAKE_TIER_H
#define WEIR_TESTS_CACHE_FAKE_TIER_H

#include "cache/tier.h"

struct fake {
    struct tier tier;
    uint32_t pages, state; /* leading blocks it has; the position it has a state of, 0: none */
    uint32_t hole;         /* of the blocks, one that it lacks, counted from 1 */
    uint64_t began;
    bool off;
    const struct cache_key *keys;
    struct tier_move *submitted, *ended;
    uint32_t n_loads, n_stores, n_probes;
};

static inline enum tier_presence fake_page(struct tier *t, const struct cache_key *key) {
    const struct fake *f = (struct fake *)t;
    for (uint32_t b = 0; f->keys && b < f->pages; b++)
        if (cache_key_equal(key, &f->keys[b]) && b + 1 != f->hole)
            return TIER_PRESENT;
    return TIER_ABSENT;
}

static inline enum tier_presence fake_state(struct tier *t, const struct cache_key *key,
                                            uint32_t position) {
    const struct fake *f = (struct fake *)t;
    return f->keys && f->state && position == f->state &&
                   cache_key_equal(key, &f->keys[f->state / 64 - 1])
               ? TIER_PRESENT
               : TIER_ABSENT;
}

static inline void fake_submit(struct tier *t, struct tier_move *m) {
    struct fake *f = (struct fake *)t;
    f->n_loads += m->task == TIER_LOAD;
    f->n_stores += m->task == TIER_STORE;
    f->n_probes += m->task == TIER_PROBE;
    m->next = f->submitted;
    f->submitted = m;
}

static inline struct tier_move *fake_collect(struct tier *t) {
    struct fake *f = (struct fake *)t;
    struct tier_move *m = f->ended;
    f->ended = NULL;
    return m;
}

static inline void fake_touch(struct tier *t, const struct cache_key *keys, uint32_t n,
                              bool state) {}
static inline void fake_usage(const struct tier *t, struct tier_usage *out) {
    const struct fake *f = (const struct fake *)t;
    *out = (struct tier_usage){.up = !f->off, .began = f->began};
}
static inline uint64_t fake_reset(struct tier *t, uint64_t *left) {
    *left = 0;
    return 0;
}
static inline void fake_close(struct tier *t) {}

static inline struct fake fake_tier(enum tier_kind kind) {
    return (struct fake){.tier = {kind, fake_page, fake_state, fake_submit, fake_collect,
                                  fake_touch, fake_usage, fake_reset, fake_close}};
}

/* All that is under way ends. */
static inline void end_all(struct fake *f, enum tier_result result) {
    for (struct tier_move *m = f->submitted; m; m = m->next)
        m->result = result;
    f->ended = f->submitted;
    f->submitted = NULL;
}

#endif
