/* bench_index: how long the index takes to look up a prompt: the hash chain over its blocks, the
 * match against a cache that holds all of it, and how far it is known where the device has nothing
 * and the tiers have all of the history and no state. Run by hand: bench_index [TOKENS].
 * Milliseconds, every row and medians. */
#include "tests/test.h"

#include "base/clock.h"
#include "base/rng.h"
#include "cache/remote_known.h"
#include "cache/tiers.h"
#include "tests/cache/fake_tier.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPETITIONS = 11 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *ms) {
    printf("%-24s", name);
    for (int i = 0; i < REPETITIONS; i++)
        printf(" %.3f", ms[i]);
    qsort(ms, REPETITIONS, sizeof *ms, by_value);
    printf("   median %.3f ms\n", ms[REPETITIONS / 2]);
}

/* Three tiers that look into a table of names; the last one finds what it is asked for. */
static struct remote_known *known;
static enum tier_presence no_page(struct tier *t, const struct cache_key *key) {
    const struct remote_name name = {*key, 1};
    return remote_known_get(known, &name);
}
static enum tier_presence a_page(struct tier *t, const struct cache_key *key) {
    const struct remote_name name = {*key, 0};
    return remote_known_get(known, &name);
}
static enum tier_presence no_state(struct tier *t, const struct cache_key *key, uint32_t position) {
    const struct remote_name name = {*key, position};
    return remote_known_get(known, &name);
}

static bool measure_reach(const struct cache_setup *setup, const int32_t *ids, uint32_t n,
                          double *ms) {
    struct cache_index *x = cache_index_open(setup);
    struct fake fake[TIER_KINDS];
    struct tier *tier[TIER_KINDS];
    struct cache_lease l;
    for (int k = 0; k < TIER_KINDS; k++) {
        fake[k] = fake_tier((enum tier_kind)k);
        tier[k] = &fake[k].tier;
        tier[k]->page = k == TIER_REMOTE ? a_page : no_page;
        tier[k]->state = no_state;
    }
    struct cache_tiers *t = x ? cache_tiers_open(x, tier, TIER_KINDS) : NULL;
    known = remote_known_open(n);
    if (!t || !known || cache_lease_open(&l, &setup->space, n, NULL))
        return false;
    cache_match(x, &l, ids, n, n - 1, true);
    for (uint32_t b = 0; b < l.n_keys; b++)
        remote_known_set(known, &(struct remote_name){l.keys[b], 0}, TIER_PRESENT);
    for (int i = 0; i < REPETITIONS; i++) {
        cache_release(x, &l);
        cache_match(x, &l, ids, n, n - 1, true);
        double t0 = clock_seconds();
        cache_reach(t, &l, n, n - 1);
        ms[i] = 1e3 * (clock_seconds() - t0);
    }
    printf("%u tokens, known to %u\n", n, l.matched);
    cache_release(x, &l);
    cache_lease_close(&l);
    cache_tiers_close(t);
    cache_index_close(x);
    remote_known_close(known);
    return true;
}

int main(int argc, char **argv) {
    uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 100000;
    struct cache_setup setup = {.pages = n / 64 + 2,
                                .slots = 4,
                                .enabled = true,
                                .policy = checkpoint_policy_default(),
                                .space = {.step_rows = n}};
    setup.policy.keeps[CHECKPOINT_INTERVAL] = false;
    struct cache_index *x = cache_index_open(&setup);
    int32_t *ids = malloc(n * sizeof *ids);
    struct batch_checkpoint *mark = malloc((n / 64 + 2) * sizeof *mark);
    double first[REPETITIONS], again[REPETITIONS], reach[REPETITIONS];
    if (!x || !ids || !mark)
        return 1;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_mix(i) % 160000);
    struct cache_lease l;
    if (cache_lease_open(&l, &setup.space, n, NULL))
        return 1;
    cache_match(x, &l, ids, n, n - 1, true);
    cache_grow(x, &l, n);
    cache_admit(x, &l, ids, n);
    cache_checkpoints(x, &l, 0, n, n, mark);
    cache_computed(x, &l, ids, n);
    cache_release(x, &l);
    cache_lease_close(&l);
    for (int i = 0; i < REPETITIONS; i++) {
        if (cache_lease_open(&l, &setup.space, n, NULL))
            return 1;
        double t0 = clock_seconds();
        cache_match(x, &l, ids, n, n - 1, true); /* hashes, then matches */
        double t1 = clock_seconds();
        uint32_t resume = l.resume;
        cache_release(x, &l);
        double t2 = clock_seconds();
        cache_match(x, &l, ids, n, n - 1, true); /* the keys are known now */
        double t3 = clock_seconds();
        first[i] = 1e3 * (t1 - t0);
        again[i] = 1e3 * (t3 - t2);
        cache_release(x, &l);
        cache_lease_close(&l);
        if (i == 0)
            printf("%u tokens, resumes at %u\n", n, resume);
    }
    report("hash chain and match", first);
    report("match alone", again);
    if (!measure_reach(&setup, ids, n, reach))
        return 1;
    report("reach over three tiers", reach);
    cache_index_close(x);
    free(ids);
    free(mark);
    return 0;
}
