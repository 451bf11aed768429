/* device.c: the kernels on a device: each against ops/ref, then its time. A program of its own that
 * needs the C library, a driver and the modules, so that it can be carried to a machine that has
 * nothing else.
 *
 * Time is that of a graph of many launches, divided by their number. Launches in a row work on
 * copies of the same case that lie apart, together larger than any cache; so what is read comes
 * from memory. Bandwidth is compared with that of weir_copy, measured in the
 * same run. */
#include "base/rng.h"
#include "ops/gpu/driver.h"
#include "tests/ops/gpu/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPIES_BYTES = 400 << 20, /* what the copies of a case fill at least: 8 times an H200's cache */
    COPIES_MOST = 512,
    LAUNCHES_LEAST = 40,
    REPLAYS = 25,
};

struct options {
    enum gpu_vendor vendor;
    const char *modules, *filter;
    const char *large; /* digits: these large shapes alone; none: small ones alone; NULL: all */
    bool right, time, portable;
};

static struct gpu_device *device;
static weir_error err;

static void must(weir_status s) {
    if (s == WEIR_OK)
        return;
    fprintf(stderr, "device: %s: %s\n", err.where, err.message);
    exit(1);
}

static void load_modules(const struct options *o) {
    const char *last = "";
    for (int k = 0; k < GPU_KERNEL_COUNT; k++) {
        const struct gpu_kernel_info *info = gpu_kernel_info(k);
        if (strcmp(info->file, last) == 0)
            continue;
        last = info->file;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.%s", o->modules, last,
                 o->vendor == GPU_CUDA ? "cubin" : "hsaco");
        must(gpu_module_load(device, path, &err));
    }
}

/* The record of launch k with every address of the case's memory turned into that of its copy. */
static void relocate(const struct gpu_case *c, int k, uint64_t copy, void *record) {
    size_t bytes = gpu_kernel_info(gpu_case_launch(c, k)->kernel)->record_bytes;
    uint64_t base = (uint64_t)(uintptr_t)c->memory, word;
    memcpy(record, gpu_case_record(c, k), bytes);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, (char *)record + i, 8);
        if (word >= base && word < base + c->bytes) {
            word = word - base + copy;
            memcpy((char *)record + i, &word, 8);
        }
    }
}

static void *kernel_of(const struct gpu_launch *l) {
    void *kernel;
    must(gpu_kernel_find(device, gpu_kernel_info(l->kernel)->name, l->shared_bytes, &kernel, &err));
    return kernel;
}

/* All launches of a case on its copy at `memory`; `kernels`: of each. */
static void launch_all(const struct gpu_case *c, void *const *kernels, uint64_t memory,
                       bool early) {
    unsigned char record[sizeof c->record];
    for (int i = 0; i <= c->n_then; i++) {
        relocate(c, i, memory, record);
        must(gpu_kernel_launch(device, kernels[i], gpu_case_launch(c, i), record, early, &err));
    }
}
static void kernels_of(const struct gpu_case *c, void **kernels) {
    for (int i = 0; i <= c->n_then; i++)
        kernels[i] = kernel_of(gpu_case_launch(c, i));
}

static bool is_right(struct gpu_case *c, uint64_t memory) {
    void *kernels[1 + CASE_LAUNCHES];
    kernels_of(c, kernels);
    must(gpu_copy_in(device, memory, c->memory, c->bytes, &err));
    launch_all(c, kernels, memory, false);
    must(gpu_copy_out(device, c->memory, memory, c->bytes, &err));
    must(gpu_wait(device, &err));
    double worst = c->worst(c);
    bool intact = gpu_case_gaps_intact(c), right = worst <= 1 && intact;
    printf("%-5s %-64s error %.3g of what is allowed%s\n", right ? "right" : "WRONG", c->label,
           worst, intact ? "" : ", and touches what is not its own");
    return right;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Median time of what `graph` holds. */
static double graph_us(struct gpu_graph *graph) {
    double us[REPLAYS];
    must(gpu_graph_launch(device, graph, &err)); /* the first brings code and addresses along */
    for (int i = 0; i < REPLAYS; i++) {
        must(gpu_mark(device, 0, &err));
        must(gpu_graph_launch(device, graph, &err));
        must(gpu_mark(device, 1, &err));
        must(gpu_marked_us(device, &us[i], &err));
    }
    qsort(us, REPLAYS, sizeof *us, by_size);
    return us[REPLAYS / 2];
}

static double launches_us(const struct gpu_case *c, uint64_t memory, size_t stride, size_t copies,
                          bool early) {
    struct gpu_graph *graph;
    void *kernels[1 + CASE_LAUNCHES];
    kernels_of(c, kernels);
    size_t n = copies > LAUNCHES_LEAST ? copies : (LAUNCHES_LEAST / copies + 1) * copies;
    must(gpu_graph_begin(device, &err));
    for (size_t i = 0; i < n; i++)
        launch_all(c, kernels, memory + i % copies * stride, early);
    must(gpu_graph_end(device, &graph, &err));
    double us = graph_us(graph) / (double)n;
    gpu_graph_free(device, graph);
    return us;
}

static void take_time(const struct gpu_case *c, double roof) {
    size_t stride = (c->bytes + 511) / 512 * 512;
    size_t copies = COPIES_BYTES / stride + 2;
    copies = copies > COPIES_MOST ? COPIES_MOST : copies;
    uint64_t memory;
    must(gpu_memory_take(device, copies * stride, &memory, &err));
    must(gpu_copy_in(device, memory, c->memory, c->bytes, &err));
    for (size_t i = 1; i < copies; i++)
        must(gpu_copy_on(device, memory + i * stride, memory, c->bytes, &err));
    must(gpu_wait(device, &err));
    double us = launches_us(c, memory, stride, copies, false);
    double early = launches_us(c, memory, stride, copies, true);
    const double least = c->traffic / roof / 1e3;
    printf(
        "%-64s %8.2f us %8.2f us early %9.3f MB %7.0f GB/s, at least %8.2f us: %5.2f times, %5.2f "
        "early\n",
        c->label, us, early, c->traffic / 1e6, c->traffic / us / 1e3, least, us / least,
        early / least);
    gpu_memory_free(device, memory);
}

/* GB/s, read and written, of a gibibyte. */
static double copy_roof(void) {
    enum { COPIES = 4, PIECE = 16 << 20 };
    static uint64_t piece[PIECE / 8];
    const size_t bytes = (size_t)1 << 30;
    uint64_t from, to;
    must(gpu_memory_take(device, bytes, &from, &err));
    must(gpu_memory_take(device, bytes, &to, &err));
    const struct gpu_copy record = {
        .from = (const void *)(uintptr_t)from, .to = (void *)(uintptr_t)to, .pieces = bytes / 16};
    const struct gpu_launch launch = gpu_launch_copy(&record);
    void *kernel = kernel_of(&launch);
    struct gpu_graph *graph;
    /* Numbers at random: constant ones may move faster. */
    for (size_t i = 0; i < PIECE / 8; i++)
        piece[i] = rng_mix(i);
    for (size_t at = 0; at < bytes; at += PIECE)
        must(gpu_copy_in(device, from + at, piece, PIECE, &err));
    must(gpu_graph_begin(device, &err));
    for (int i = 0; i < COPIES; i++)
        must(gpu_kernel_launch(device, kernel, &launch, &record, false, &err));
    must(gpu_graph_end(device, &graph, &err));
    double us = graph_us(graph) / COPIES;
    gpu_graph_free(device, graph);
    gpu_memory_free(device, from);
    gpu_memory_free(device, to);
    return 2.0 * (double)bytes / us / 1e3;
}

static bool wanted(const struct options *o, const char *name) {
    return !o->filter || strstr(name, o->filter);
}

static int run_all(const struct options *o) {
    struct gpu_shape shape = gpu_device_shape(device);
    shape.warpgroups &= !o->portable;
    int passed = 0, failed = 0;
    double roof = o->time ? copy_roof() : 0;
    if (o->time)
        printf("copy of 1 GiB: %.0f GB/s read and written\n", roof);
    for (size_t k = 0; k < gpu_n_case_kinds; k++) {
        const struct gpu_case_kind *kind = gpu_case_kinds[k];
        for (size_t i = 0; wanted(o, kind->name) && i < kind->n_small + kind->n_large; i++) {
            struct gpu_case c;
            uint64_t memory;
            bool large = i >= kind->n_small;
            if (o->large && (large ? !strchr(o->large, (int)('0' + i - kind->n_small)) : *o->large))
                continue;
            if (large ? !o->time && !o->right : !o->right)
                continue;
            gpu_case_open(&c, kind, large, large ? i - kind->n_small : i, shape, 100 + i);
            must(gpu_memory_take(device, c.bytes, &memory, &err));
            bool right = is_right(&c, memory);
            gpu_memory_free(device, memory);
            passed += right;
            failed += !right;
            if (large && o->time)
                take_time(&c, roof);
            gpu_case_close(&c);
            fflush(stdout);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}

int main(int argc, char **argv) {
    struct options o = {.vendor = GPU_CUDA, .modules = ".", .right = true, .time = true};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--right") == 0)
            o.time = false;
        else if (strcmp(argv[i], "--time") == 0)
            o.right = false;
        else if (strcmp(argv[i], "--large") == 0 && ++i)
            o.large = value;
        else if (strcmp(argv[i], "--portable") == 0) /* kernels that need no kind of device */
            o.portable = true;
        else if (strcmp(argv[i], "--modules") == 0 && ++i)
            o.modules = value;
        else if (strcmp(argv[i], "--filter") == 0 && ++i)
            o.filter = value;
        else if (strcmp(argv[i], "--device") == 0 && ++i)
            o.vendor = strcmp(value, "hip") == 0 ? GPU_HIP : GPU_CUDA;
        else {
            fprintf(stderr, "usage: gpu_device [--device cuda|hip] [--modules DIR] [--filter TEXT] "
                            "[--large DIGITS] [--right | --time] [--portable]\n");
            return 2;
        }
    }
    must(gpu_device_open(o.vendor, 0, NULL, &device, &err));
    const struct gpu_facts *f = gpu_device_facts(device);
    printf("%s, %u multiprocessors, compute capability %u.%u, %u MHz, %.1f GiB\n", f->name,
           f->multiprocessors, f->major, f->minor, f->clock_mhz,
           (double)f->memory_bytes / (1 << 30));
    load_modules(&o);
    int status = run_all(&o);
    gpu_device_close(device);
    return status;
}
