/* bench_disk.c: how fast the disk tier reads, beside fio in the same directory and the same run.
 * Usage: bench_disk DIR [ROUNDS]. Not part of the test suite.
 *
 * Page records of 1.7 MB and state records of 450 MB, as those of the large model. Tier and fio
 * take turns, each reads what it wrote before, past the page cache, with requests of 1 MiB and the
 * same number of them under way; printed are medians and their ratio. */
#include "cache/disk.h"

#include "base/clock.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 300, STATES = 2, DEPTH = 32 };

struct bench {
    struct cache_store store;
    struct record_shape shape;
    struct tier *tier;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned notified;
    struct cache_key key[PAGES];
    int32_t page[PAGES];
    const char *dir;
};

static void on_end(void *arg) {
    struct bench *b = arg;
    pthread_mutex_lock(&b->lock);
    b->notified++;
    pthread_cond_signal(&b->ended);
    pthread_mutex_unlock(&b->lock);
}

static struct tier_move *finish(struct bench *b) {
    struct tier_move *m;
    while (!(m = b->tier->collect(b->tier))) {
        pthread_mutex_lock(&b->lock);
        while (!b->notified)
            pthread_cond_wait(&b->ended, &b->lock);
        b->notified = 0;
        pthread_mutex_unlock(&b->lock);
    }
    return m;
}

/* GB/s of one move of all pages, or of `STATES` moves of one state. */
static double tier_run(struct bench *b, enum tier_task task, bool states) {
    uint32_t position = 64;
    double from = clock_seconds(), bytes = 0;
    for (int i = 0; i < (states ? STATES : 1); i++) {
        int32_t slot = i % 2;
        struct tier_move m = {.task = task,
                              .n_pages = states ? 0 : PAGES,
                              .page_keys = b->key,
                              .pages = b->page,
                              .n_states = states,
                              .state_keys = &b->key[i],
                              .positions = &position,
                              .slots = &slot};
        b->tier->submit(b->tier, &m);
        finish(b);
        if (m.result != TIER_OK) {
            fprintf(stderr, "bench_disk: %s\n", tier_result_name(m.result));
            exit(1);
        }
        bytes += (double)m.bytes;
    }
    return bytes / (clock_seconds() - from) / 1e9;
}

/* GB/s of fio over as many bytes in records as large. */
static double fio_run(const struct bench *b, bool states) {
    char command[1024];
    size_t record = states ? record_state_bytes(&b->shape) : b->shape.page_bytes;
    size_t all = record * (states ? STATES : PAGES);
    snprintf(command, sizeof command,
             "fio --name=read --directory=%s --filename=fio-%s --size=%zu --bs=1M --rw=read "
             "--direct=1 --ioengine=io_uring --iodepth=%d --output-format=terse "
             "--terse-version=3 2>/dev/null",
             b->dir, states ? "states" : "pages", all / 4096 * 4096, DEPTH);
    FILE *f = popen(command, "r");
    double kib = 0;
    char text[4096];
    if (f && fgets(text, sizeof text, f)) { /* the seventh field is read bandwidth in KiB/s */
        char *at = text;
        for (int i = 0; i < 6 && at; i++)
            at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL;
        kib = at ? strtod(at, NULL) : 0;
    }
    if (!f || pclose(f) != 0 || kib <= 0)
        fprintf(stderr, "bench_disk: no result from %s\n", command);
    return kib * 1024 / 1e9;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int main(int argc, char **argv) {
    enum { MOST = 99 };
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (argc < 2 || rounds < 1 || rounds > MOST) {
        fprintf(stderr, "usage: bench_disk DIR [ROUNDS]\n");
        return 2;
    }
    static struct bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    b.dir = argv[1];
    /* 24 layers of 576 values in BF16; 69 layers of 96 heads, less a few so that it is 450 MB. */
    b.shape = (struct record_shape){(size_t)24 * 64 * 576 * 2, 67, 96, 128, 3};
    size_t layer = record_layer_bytes(&b.shape) / 4;
    weir_error err;
    if (cache_store_open(&b.store, PAGES, b.shape.page_bytes, 576, DTYPE_BF16, 2,
                         layer * b.shape.layers, layer, &err) != WEIR_OK) {
        fprintf(stderr, "bench_disk: %s %s\n", err.where, err.message);
        return 1;
    }
    for (size_t i = 0; i < b.shape.page_bytes * PAGES; i++)
        b.store.kv.data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < 2 * layer * b.shape.layers; i++)
        b.store.state.data[i] = (float)(i % 8191);
    for (int i = 0; i < PAGES; i++) {
        memset(&b.key[i], i & 255, sizeof b.key[i]);
        b.key[i].bytes[0] = (uint8_t)(i >> 8);
        b.page[i] = i;
    }
    const struct tier_setup setup = {&b.store, &b.shape, {{7}}, on_end, &b};
    const struct disk_tuning tuning = {.way =
                                           getenv("WEIR_BENCH_THREADS") ? DISK_THREADS : DISK_AUTO,
                                       .pause = 10,
                                       .note_every = 10,
                                       .most_storing_bytes = (uint64_t)4 << 30};
    if (disk_open_tuned(&setup, b.dir, (uint64_t)4 << 30, &tuning, &b.tier, &err) != WEIR_OK) {
        fprintf(stderr, "bench_disk: %s %s\n", err.where, err.message);
        return 1;
    }
    b.tier->reset(b.tier, &(uint64_t){0});
    for (int s = 0; s < 2; s++) {
        double write = tier_run(&b, TIER_STORE, s), tier[MOST], fio[MOST];
        fio_run(&b, s); /* lays out its file */
        for (int i = 0; i < rounds; i++) {
            tier[i] = tier_run(&b, TIER_LOAD, s);
            fio[i] = fio_run(&b, s);
            printf("  round %d: tier %.3f GB/s, fio %.3f GB/s\n", i + 1, tier[i], fio[i]);
        }
        double t = median(tier, rounds), f = median(fio, rounds);
        printf("%s of %.1f MB: write %.3f GB/s; read: tier %.3f GB/s, fio %.3f GB/s, ratio %.2f\n",
               s ? "states" : "pages",
               (double)(s ? record_state_bytes(&b.shape) : b.shape.page_bytes) / 1e6, write, t, f,
               t / f);
    }
    b.tier->reset(b.tier, &(uint64_t){0});
    b.tier->close(b.tier);
    cache_store_close(&b.store);
    return 0;
}
