/* bench_index: how long the index takes to look up a prompt: the hash chain over its blocks, and
 * the match against a cache that holds all of it. Run by hand: bench_index [TOKENS]. Milliseconds,
 * every row and medians. */
#include "base/clock.h"
#include "base/rng.h"
#include "cache/index.h"

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
    double first[REPETITIONS], again[REPETITIONS];
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
    cache_index_close(x);
    free(ids);
    free(mark);
    return 0;
}
