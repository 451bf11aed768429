/* bench_resume: time to the first token of one prompt, computed anew (3 times) and resumed from
 * the device pools, host memory, disk and Redis (7 times each) in one run.
 *
 *     bench_resume MODEL TOKENS [DISK_DIRECTORY [REDIS_URL]]
 *
 * Each tier has an engine of its own. A prompt of TOKENS random ids is computed once and, when its
 * state has arrived in the tier, the device pools are emptied before each repetition; the answer
 * must be the one of the cold run. Rows and medians in milliseconds. */
#include "base/clock.h"
#include "base/rng.h"
#include "weir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPETITIONS = 7, COLD = 3, ANSWER = 4 };

struct run {
    double ms;
    uint32_t cached;
    int32_t answer[ANSWER];
};

static void die(const char *what, const weir_error *err) {
    fprintf(stderr, "bench_resume: %s: %s %s\n", what, err->where, err->message);
    exit(1);
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static struct run ask(weir_engine *e, const int32_t *ids, uint32_t n) {
    weir_params p = weir_params_default();
    weir_request *r;
    weir_error err = {0};
    weir_progress end;
    weir_token t[ANSWER];
    struct run run = {0};
    p.max_tokens = ANSWER;
    p.temperature = 0;
    p.ignore_eos = true;
    if (weir_submit(e, ids, n, &p, NULL, &r, &err))
        die("submit", &err);
    size_t k = 0;
    do {
        k += weir_poll(r, t + k, ANSWER - k, &end);
        nap();
    } while (end.finish == WEIR_RUNNING);
    for (int i = 0; i < ANSWER; i++)
        run.answer[i] = t[i].id;
    run.ms = 1e3 * (end.first_token - end.arrived);
    run.cached = end.cached_tokens;
    weir_release(r);
    return run;
}

static int by_ms(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, const struct run *runs, int n, const struct run *cold) {
    double ms[REPETITIONS];
    printf("%-8s %6u", name, runs[0].cached);
    for (int i = 0; i < n; i++) {
        ms[i] = runs[i].ms;
        printf(" %9.2f", ms[i]);
        if (memcmp(runs[i].answer, cold->answer, sizeof cold->answer))
            printf("(another answer!)");
    }
    qsort(ms, (size_t)n, sizeof *ms, by_ms);
    printf("   median %9.2f\n", ms[n / 2]);
    fflush(stdout);
}

/* Until nothing has been stored for a while. */
static void settle(weir_engine *e, enum weir_source tier) {
    double quiet = clock_seconds();
    uint64_t last = 0;
    weir_stats s;
    do {
        weir_get_stats(e, &s);
        if (s.tier[tier].stored_bytes != last)
            quiet = clock_seconds();
        last = s.tier[tier].stored_bytes;
        nap();
    } while (clock_seconds() - quiet < 2);
}

static weir_engine *open_with(const char *model, enum weir_source tier, const char *where,
                              uint32_t n) {
    weir_options o = weir_options_default();
    weir_error err = {0};
    weir_engine *e;
    o.max_num_seqs = 2;
    o.max_checkpoints = 4;
    o.max_model_len = n + ANSWER + 64;
    o.prefix_caching = tier != WEIR_SOURCES;
    if (tier == WEIR_HOST)
        o.cpu_offload_bytes = 4ull << 30;
    if (tier == WEIR_DISK) {
        o.disk_offload_dir = where;
        o.disk_offload_bytes = 4ull << 30;
    }
    if (tier == WEIR_REMOTE)
        o.remote_store = where;
    if (weir_open(model, &o, &e, &err))
        die("open", &err);
    return e;
}

static void bench(const char *model, enum weir_source tier, const char *name, const char *where,
                  const int32_t *ids, uint32_t n, const struct run *cold) {
    struct run runs[REPETITIONS];
    weir_engine *e = open_with(model, tier, where, n);
    weir_cache_reset dropped;
    weir_stats s;
    ask(e, ids, n);
    if (tier != WEIR_DEVICE)
        settle(e, tier);
    for (int i = 0; i < REPETITIONS; i++) {
        if (tier != WEIR_DEVICE)
            weir_reset_prefix_cache(e, false, &dropped);
        runs[i] = ask(e, ids, n);
    }
    report(name, runs, REPETITIONS, cold);
    weir_get_stats(e, &s);
    if (tier != WEIR_DEVICE && s.tier[tier].load_seconds > 0)
        printf("         %.0f MB a load, %.2f GB/s\n",
               (double)s.tier[tier].loaded_bytes / 1e6 / REPETITIONS,
               (double)s.tier[tier].loaded_bytes / 1e9 / s.tier[tier].load_seconds);
    weir_close(e);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_resume MODEL TOKENS [DISK_DIRECTORY [REDIS_URL]]\n");
        return 2;
    }
    uint32_t n = (uint32_t)strtoul(argv[2], NULL, 10);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    struct run cold[COLD];
    weir_engine *e = open_with(argv[1], WEIR_SOURCES, NULL, n);
    weir_info info;
    weir_get_info(e, &info);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_mix(i) % (info.vocab_size * 9 / 10));
    printf("%s, %u tokens, column %s, %u threads, page %llu bytes, state %llu bytes\n", argv[1], n,
           info.column, info.threads, (unsigned long long)info.kv_page_bytes,
           (unsigned long long)info.state_slot_bytes);
    printf("source   cached  time to first token, ms\n");
    for (int i = 0; i < COLD; i++)
        cold[i] = ask(e, ids, n);
    report("cold", cold, COLD, &cold[0]);
    weir_close(e);
    bench(argv[1], WEIR_DEVICE, "device", NULL, ids, n, &cold[0]);
    bench(argv[1], WEIR_HOST, "host", NULL, ids, n, &cold[0]);
    if (argc > 3)
        bench(argv[1], WEIR_DISK, "disk", argv[3], ids, n, &cold[0]);
    if (argc > 4)
        bench(argv[1], WEIR_REMOTE, "redis", argv[4], ids, n, &cold[0]);
    free(ids);
    return 0;
}
