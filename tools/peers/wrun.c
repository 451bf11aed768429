/* wrun.c: times weir's step program on raw token ids, in the form and with the output line of
 * llama.cpp/lcrun.c, so that one script alternates both.
 *
 *   wrun bench MODEL COLUMN PP TG SEQS THREADS REPS     COLUMN: fast, exact
 *
 * Prefill: PP tokens of each of SEQS sequences in steps of 512; decode: TG steps over all
 * sequences, argmax. */
#include "forward/runner.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Jiffies the machine was busy, all jiffies, and this process's own. */
struct load {
    double busy, total, own;
};
static struct load probe(void) {
    struct load l = {0};
    double v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    if (f && fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", v, v + 1, v + 2, v + 3, v + 4, v + 5,
                    v + 6, v + 7) == 8) {
        for (int i = 0; i < 8; i++)
            l.total += v[i];
        l.busy = l.total - v[3] - v[4];
    }
    if (f)
        fclose(f);
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    l.own = 100.0 * ((double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec +
                     1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec));
    return l;
}
static double foreign(struct load a, struct load b) {
    double span = b.total - a.total;
    return span > 0 ? 100 * ((b.busy - a.busy) - (b.own - a.own)) / span : 0;
}

/* Fixed work on n threads at once: the machine's own speed at this moment, in Gflop/s. */
static void *spin(void *p) {
    float a[64];
    for (int i = 0; i < 64; i++)
        a[i] = 1.0f + 1e-6f * (float)i;
    for (int r = 0; r < 60000000; r++)
        for (int i = 0; i < 64; i++)
            a[i] = a[i] * 0.999999f + 1e-6f;
    float s = 0;
    for (int i = 0; i < 64; i++)
        s += a[i];
    *(float *)p = s;
    return NULL;
}
static double calibrate(uint32_t n) {
    pthread_t t[64];
    float r[64];
    double start = now();
    for (uint32_t i = 0; i < n; i++)
        pthread_create(&t[i], NULL, spin, &r[i]);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    return n * 7680e6 / (now() - start) * 1e-9;
}

static int32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

struct bench {
    struct model m;
    struct runner *r;
    uint32_t pp, tg, seqs, threads;
    int32_t *prompt;
};

static void prefill(struct bench *b) {
    for (uint32_t s = 0; s < b->seqs; s++) {
        for (uint32_t i = 0; i < b->pp; i++)
            b->prompt[i] = (int32_t)((i * 7919 + s * 31 + 17) % (b->m.vocab - 256));
        runner_prefill(b->r, s, b->prompt, b->pp, 512);
    }
}

static void decode(struct bench *b) {
    int32_t last[64];
    struct runner_feed feeds[64];
    for (uint32_t s = 0; s < b->seqs; s++)
        last[s] = (int32_t)(17 + s);
    for (uint32_t t = 0; t < b->tg; t++) {
        for (uint32_t s = 0; s < b->seqs; s++)
            feeds[s] = (struct runner_feed){s, &last[s], 1, false};
        runner_step(b->r, feeds, b->seqs);
        for (uint32_t s = 0; s < b->seqs; s++)
            last[s] = argmax(runner_logits(b->r, s), b->m.vocab);
    }
}

static void measure(struct bench *b, bool report) {
    for (uint32_t s = 0; s < b->seqs; s++)
        runner_reset(b->r, s);
    double calib = calibrate(b->threads);
    struct load l0 = probe();
    double t0 = now();
    prefill(b);
    double t1 = now();
    struct load l1 = probe();
    double t2 = now();
    decode(b);
    double t3 = now();
    struct load l2 = probe();
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    if (!report)
        return;
    printf(
        "threads %u seqs %u | prefill %u: %.1f tok/s | decode %u: %.1f tok/s total | other load pp "
        "%.0f%% tg %.0f%% of machine | calib %.1f | rss %ld KiB\n",
        b->threads, b->seqs, b->pp * b->seqs, b->pp * b->seqs / (t1 - t0), b->tg,
        b->tg * b->seqs / (t3 - t2), foreign(l0, l1), foreign(l1, l2), calib, u.ru_maxrss);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 9 || strcmp(argv[1], "bench") != 0) {
        fputs("see the head of wrun.c\n", stderr);
        return 2;
    }
    struct bench b = {.pp = (uint32_t)atoi(argv[4]),
                      .tg = (uint32_t)atoi(argv[5]),
                      .seqs = (uint32_t)atoi(argv[6]) & 63,
                      .threads = (uint32_t)atoi(argv[7])};
    struct weights *w = NULL;
    weir_error err;
    struct runner_options o = {
        .column = strcmp(argv[3], "exact") == 0 ? &column_ref : column_fast(ACTIVATION_DEFAULT),
        .threads = b.threads,
        .sequences = b.seqs,
        .positions = b.pp + b.tg + 64,
        .rows = 512,
        .logits = b.seqs,
        .kv_dtype = DTYPE_F32,
    };
    if (model_open(argv[2], &b.m, &err) || weights_open(argv[2], &b.m, &w, &err) ||
        weights_pack(w, o.column, DENSE_BF16, 0, b.threads, &err) ||
        runner_open(&b.m, w, &o, &b.r, &err)) {
        fprintf(stderr, "wrun: %s: %s\n", err.where, err.message);
        return 1;
    }
    b.prompt = malloc((b.pp + 1) * sizeof *b.prompt);
    if (!b.prompt)
        return 1;
    measure(&b, false);
    for (int r = 0; r < atoi(argv[8]); r++)
        measure(&b, true);
    free(b.prompt);
    runner_close(b.r);
    weights_close(w);
    return 0;
}
