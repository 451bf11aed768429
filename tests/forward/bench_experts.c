/* bench_experts.c: how fast experts that are larger than memory are read while a model runs, beside
 * fio on the same files in the same run. Usage: bench_experts MODEL BYTES [ROUNDS [TOKENS [ROWS
 * [THREADS]]]]. Not part of the test suite.
 *
 * BYTES is the memory for experts. A round computes TOKENS steps of ROWS rows four times: without
 * and with reading ahead on a guess, each on experts that are packed and on such that stay as they
 * are stored; and lets fio read as many bytes as that took, past the page cache, in requests of 1
 * MiB with as many under way. Bandwidth is bytes over the time during which
 * something was being read. Printed are the rounds and their medians. */
#include "forward/runner.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"

#include <dirent.h>
#include <string.h>

enum { DEPTH = 64, MOST = 99 };

struct sample {
    double seconds, gbps, hits, right, waited, gigabytes;
};

static struct model m;
static const char *dir;
static uint32_t threads, tokens, rows;

static void fail(const weir_error *e) {
    fprintf(stderr, "bench_experts: %s: %s\n", e->where, e->message);
    exit(1);
}

struct run {
    struct weights *w;
    struct runner *r;
    uint64_t at; /* of the ids */
};

static const struct way {
    const char *name;
    bool guess, packed;
} ways[] = {{"as chosen", false, true},
            {"as chosen, stored", false, false},
            {"guessing", true, true},
            {"guessing, stored", true, false}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void open_run(struct run *run, uint64_t bytes, const struct way *way) {
    weir_error err;
    const struct expert_setup setup = {.bytes = bytes,
                                       .members = threads,
                                       .guess = way->guess,
                                       .column =
                                           way->packed ? column_fast(ACTIVATION_DEFAULT) : NULL};
    const struct runner_options o = {.column = column_fast(ACTIVATION_DEFAULT),
                                     .threads = threads,
                                     .sequences = rows,
                                     .positions = 4096,
                                     .rows = rows,
                                     .logits = rows,
                                     .kv_dtype = DTYPE_F32};
    if (weights_open_reading(dir, &m, &setup, &run->w, &err) ||
        runner_open(&m, run->w, &o, &run->r, &err))
        fail(&err);
}

/* The same ids whoever runs. */
static struct sample steps(struct run *run) {
    weir_expert_stats a, b;
    struct runner_feed feed[64];
    int32_t id[64];
    weights_count_experts(run->w, &a);
    double from = clock_seconds();
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t i = 0; i < rows; i++) {
            id[i] = (int32_t)(rng_unit(rng_at(5, 6, run->at++)) * m.vocab);
            feed[i] = (struct runner_feed){i, &id[i], 1, false};
        }
        runner_step(run->r, feed, rows);
    }
    struct sample s = {.seconds = clock_seconds() - from};
    weir_error err;
    if (runner_failure(run->r, &err))
        fail(&err);
    weights_count_experts(run->w, &b);
    uint64_t hits = b.hits - a.hits, all = hits + b.misses - a.misses;
    uint64_t guesses = b.guesses - a.guesses;
    s.gigabytes = (double)(b.read_bytes - a.read_bytes) / 1e9;
    s.gbps = s.gigabytes / (b.read_seconds - a.read_seconds);
    s.hits = all ? (double)hits / (double)all : 0;
    s.right = guesses ? (double)(b.guesses_right - a.guesses_right) / (double)guesses : 0;
    s.waited = b.stall_seconds - a.stall_seconds;
    return s;
}

/* GB/s of fio over so many bytes of the shards. */
static double fio(uint64_t bytes) {
    char files[4096] = "", command[8192], text[4096];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name), at = strlen(files);
        if (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0)
            snprintf(files + at, sizeof files - at, "%s%s/%s", at ? ":" : "", dir, e->d_name);
    }
    if (d)
        closedir(d);
    snprintf(command, sizeof command,
             "fio --name=read --readonly --filename=%s --bs=1M --rw=read --direct=1 "
             "--ioengine=io_uring --iodepth=%d --io_size=%llu --output-format=terse "
             "--terse-version=3 2>/dev/null",
             files, DEPTH, (unsigned long long)bytes / 1048576 * 1048576);
    FILE *f = popen(command, "r");
    double kib = 0;
    if (f && fgets(text, sizeof text, f)) { /* the seventh field is read bandwidth in KiB/s */
        char *at = text;
        for (int i = 0; i < 6 && at; i++)
            at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL;
        kib = at ? strtod(at, NULL) : 0;
    }
    if (!f || pclose(f) != 0 || kib <= 0)
        fprintf(stderr, "bench_experts: no result from %s\n", command);
    return kib * 1024 / 1e9;
}

static void print(const char *what, struct sample s) {
    printf(
        "  %s: %.2f s, %.2f steps/s, %.2f GB at %.3f GB/s, %.1f %% were in memory, waited %.2f s",
        what, s.seconds, tokens / s.seconds, s.gigabytes, s.gbps, 100 * s.hits, s.waited);
    if (s.right > 0)
        printf(", %.1f %% of guesses right", 100 * s.right);
    printf("\n");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static uint32_t number(int argc, char **argv, int i, uint32_t otherwise) {
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    weir_error err;
    int rounds = (int)number(argc, argv, 3, 3);
    tokens = number(argc, argv, 4, 8);
    rows = number(argc, argv, 5, 1);
    threads = number(argc, argv, 6, cpu_count());
    if (argc < 3 || rounds < 1 || rounds > MOST || tokens < 1 || rows < 1 || rows > 64 ||
        !threads) {
        fprintf(stderr, "usage: bench_experts MODEL BYTES [ROUNDS [TOKENS [ROWS [THREADS]]]]\n");
        return 2;
    }
    dir = argv[1];
    if (model_open(dir, &m, &err))
        fail(&err);
    struct run run[WAYS];
    double gbps[WAYS][MOST], seconds[WAYS][MOST], beside[MOST];
    uint64_t bytes = strtoull(argv[2], NULL, 10);
    for (int g = 0; g < WAYS; g++) {
        open_run(&run[g], bytes, &ways[g]);
        steps(&run[g]); /* brings in what is mapped */
    }
    for (int i = 0; i < rounds; i++) {
        double read = 0;
        printf("round %d\n", i + 1);
        for (int g = 0; g < WAYS; g++) {
            struct sample s = steps(&run[g]);
            print(ways[g].name, s);
            gbps[g][i] = s.gbps;
            seconds[g][i] = s.seconds;
            read = s.gigabytes > read ? s.gigabytes : read;
        }
        beside[i] = fio((uint64_t)(read * 1e9));
        printf("  fio: %.3f GB/s\n", beside[i]);
        fflush(stdout);
    }
    double f = median(beside, rounds);
    for (int g = 0; g < WAYS; g++) {
        double x = median(gbps[g], rounds);
        printf("%s: %.2f steps/s, %.3f GB/s, fio %.3f GB/s, ratio %.2f\n", ways[g].name,
               tokens / median(seconds[g], rounds), x, f, x / f);
        runner_close(run[g].r);
        weights_close(run[g].w);
    }
    return 0;
}
