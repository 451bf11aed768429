/* device_experts.c: experts of many rows on a device, at the widths of Kimi K3 on a rank of eight:
 * weights as large as those of a layer, which gpu_device would take long to make. Few experts are
 * made on the processor and copied on the device, so that memory is as busy as with different ones.
 * Some choices' results are compared with ops/ref; every kernel that takes so many is timed, as
 * medians of graphs. Weights are more than any cache holds. */
#include "base/dtype.h"
#include "base/rng.h"
#include "ops/gpu/driver.h"
#include "ops/gpu/pack.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 3584,
    INTER = 384,
    EXPERTS = 896,
    TOP_K = 16,
    DIFFERENT = 32, /* experts */
    COMPARED = 16,  /* choices */
    LAUNCHES = 4,   /* of a graph */
    REPLAYS = 9,
};

static struct gpu_device *device;
static weir_error err;
static uint64_t drawn;
static struct weight w1[DIFFERENT], w3[DIFFERENT], w2[DIFFERENT];

static void must(weir_status s) {
    if (s == WEIR_OK)
        return;
    fprintf(stderr, "device_experts: %s: %s\n", err.where, err.message);
    exit(1);
}
static void *room(size_t bytes) {
    void *p = calloc(1, bytes);
    if (!p) {
        fprintf(stderr, "device_experts: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}
static uint64_t bits(void) {
    return rng_mix(++drawn);
}
static uint64_t take(size_t bytes) {
    uint64_t at;
    must(gpu_memory_take(device, bytes, &at, &err));
    must(gpu_fill(device, at, 0xFF, bytes, &err)); /* NaN */
    return at;
}

static struct weight mxfp4(uint32_t rows, uint32_t cols) {
    const size_t n = (size_t)rows * cols;
    uint8_t *codes = room(n / 2), *scale = room(n / 32);
    for (size_t i = 0; i < n / 2; i += 8) {
        const uint64_t b = bits();
        memcpy(codes + i, &b, 8);
    }
    for (size_t i = 0; i < n / 32; i++)
        scale[i] = (uint8_t)(119 + bits() % 5);
    return (struct weight){
        .data = codes, .scale = scale, .dtype = DTYPE_MXFP4, .rows = rows, .cols = cols};
}

/* Packed, all experts, on the device. */
static uint64_t weights(const struct weight *w, const struct weight *other) {
    const size_t each = gpu_pack_bytes(w, other != NULL);
    const uint64_t at = take(EXPERTS * each);
    uint8_t *host = room(each);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (e < DIFFERENT) {
            gpu_pack(host, &w[e], other ? &other[e] : NULL);
            must(gpu_copy_in(device, at + e * each, host, each, &err));
            must(gpu_wait(device, &err));
        } else
            must(gpu_copy_on(device, at + e * each, at + e % DIFFERENT * each, each, &err));
    }
    must(gpu_wait(device, &err));
    free(host);
    return at;
}

static void *address(uint64_t at) {
    return (void *)(uintptr_t)at; /* NOLINT(performance-no-int-to-ptr): on the device */
}
static float widen(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* A step's choices, and what kernels read and write. */
struct rows {
    uint32_t n, slots;
    int32_t *ids;
    uint16_t *z;
    struct gpu_experts up, down;
    uint64_t memory[6];
};
static void open_rows(struct rows *r, uint32_t n, uint64_t up, uint64_t down) {
    r->n = n;
    r->slots = n * TOP_K;
    r->ids = room(r->slots * sizeof *r->ids);
    r->z = room((size_t)n * WIDTH * 2);
    for (uint32_t i = 0; i < r->slots; i++) {
        bool taken = true;
        while (taken) {
            r->ids[i] = (int32_t)(bits() % EXPERTS);
            taken = false;
            for (uint32_t j = i / TOP_K * TOP_K; j < i; j++)
                taken |= r->ids[j] == r->ids[i];
        }
    }
    for (size_t i = 0; i < (size_t)n * WIDTH; i++)
        r->z[i] = f32_to_bf16((float)(rng_unit(bits()) * 2 - 1));
    uint32_t *offsets = room((EXPERTS + 1) * sizeof *offsets),
             *order = room(r->slots * sizeof *order), at[EXPERTS];
    for (uint32_t i = 0; i < r->slots; i++)
        offsets[r->ids[i] + 1]++;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        at[e] = offsets[e];
        offsets[e + 1] += offsets[e];
    }
    for (uint32_t i = 0; i < r->slots; i++)
        order[at[r->ids[i]]++] = i;
    const size_t bytes[6] = {r->slots * 4,
                             (EXPERTS + 1) * 4,
                             r->slots * 4,
                             (size_t)n * WIDTH * 2,
                             (size_t)r->slots * INTER * 2,
                             (size_t)r->slots * WIDTH * 4};
    const void *from[4] = {r->ids, offsets, order, r->z};
    for (int i = 0; i < 6; i++) {
        r->memory[i] = take(bytes[i]);
        if (i < 4)
            must(gpu_copy_in(device, r->memory[i], from[i], bytes[i], &err));
    }
    must(gpu_wait(device, &err));
    free(offsets);
    free(order);
    r->up = (struct gpu_experts){.w = address(up),
                                 .x = address(r->memory[3]),
                                 .h = address(r->memory[4]),
                                 .ids = address(r->memory[0]),
                                 .w_stride = gpu_pack_bytes(&w1[0], true),
                                 .slots = r->slots,
                                 .top_k = TOP_K,
                                 .rows = INTER,
                                 .cols = WIDTH,
                                 .x_stride = WIDTH,
                                 .out_stride = INTER,
                                 .situ = 1,
                                 .beta = 4,
                                 .linear_beta = 25,
                                 .offsets = address(r->memory[1]),
                                 .order = address(r->memory[2]),
                                 .experts = EXPERTS};
    r->down = r->up;
    r->down.w = address(down);
    r->down.w_stride = gpu_pack_bytes(&w2[0], false);
    r->down.x = r->up.h;
    r->down.h = NULL;
    r->down.each = address(r->memory[5]);
    r->down.rows = WIDTH;
    r->down.cols = INTER;
    r->down.x_stride = INTER;
    r->down.out_stride = WIDTH;
}
static void close_rows(struct rows *r) {
    for (int i = 0; i < 6; i++)
        gpu_memory_free(device, r->memory[i]);
    free(r->ids);
    free(r->z);
}

static void launch(const struct gpu_launch *l, const struct gpu_experts *a) {
    void *kernel;
    must(gpu_kernel_find(device, gpu_kernel_info(l->kernel)->name, l->shared_bytes, &kernel, &err));
    must(gpu_kernel_launch(device, kernel, l, a, false, &err));
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}
static double launch_us(const struct gpu_launch *l, const struct gpu_experts *a) {
    struct gpu_graph *graph;
    double us[REPLAYS];
    launch(l, a); /* finds the kernel */
    must(gpu_graph_begin(device, &err));
    for (int i = 0; i < LAUNCHES; i++)
        launch(l, a);
    must(gpu_graph_end(device, &graph, &err));
    must(gpu_graph_launch(device, graph, &err));
    for (int i = 0; i < REPLAYS; i++) {
        must(gpu_mark(device, 0, &err));
        must(gpu_graph_launch(device, graph, &err));
        must(gpu_mark(device, 1, &err));
        must(gpu_marked_us(device, &us[i], &err));
    }
    gpu_graph_free(device, graph);
    qsort(us, REPLAYS, sizeof *us, by_size);
    return us[REPLAYS / 2] / LAUNCHES;
}

/* The largest error of n numbers, in the root mean square of what they should be; `rounded` of each
 * is allowed for. */
static double worst_of(const float *got, const float *want, size_t n, double rounded) {
    double sum = 0, worst = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)want[i] * want[i];
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - want[i]) - rounded * fabs((double)want[i]);
        worst = off <= worst ? worst : isnan(off) ? INFINITY : off;
    }
    return worst / sqrt(sum / (double)n);
}
static void compare(const struct rows *r, double *h_error, double *each_error) {
    float x[WIDTH], got[WIDTH], want[WIDTH], h[INTER];
    uint16_t half[INTER];
    *h_error = *each_error = 0;
    for (uint32_t i = 0; i < COMPARED; i++) {
        const uint32_t slot = i ? (uint32_t)(bits() % r->slots) : r->slots - 1;
        const int32_t e = r->ids[slot] % DIFFERENT;
        for (uint32_t k = 0; k < WIDTH; k++)
            x[k] = widen(r->z[(size_t)(slot / TOP_K) * WIDTH + k]);
        must(gpu_copy_out(device, half, r->memory[4] + (uint64_t)slot * INTER * 2, sizeof half,
                          &err));
        must(
            gpu_copy_out(device, got, r->memory[5] + (uint64_t)slot * WIDTH * 4, sizeof got, &err));
        must(gpu_wait(device, &err));
        for (uint32_t k = 0; k < INTER; k++) {
            const double gate = ref_dot(&w1[e], k, x), up = ref_dot(&w3[e], k, x);
            want[k] = (float)(4 * tanh(gate / 4) / (1 + exp(-gate)) * 25 * tanh(up / 25));
            h[k] = widen(half[k]);
        }
        *h_error = fmax(*h_error, worst_of(h, want, INTER, 0x1p-8));
        for (uint32_t k = 0; k < WIDTH; k++)
            want[k] = ref_dot(&w2[e], k, h);
        *each_error = fmax(*each_error, worst_of(got, want, WIDTH, 0));
    }
}

static void one(struct rows *r, const char *what, const struct gpu_launch *up,
                const struct gpu_launch *down) {
    double h, each;
    must(gpu_fill(device, r->memory[4], 0xFF, (size_t)r->slots * INTER * 2, &err));
    must(gpu_fill(device, r->memory[5], 0xFF, (size_t)r->slots * WIDTH * 4, &err));
    launch(up, &r->up);
    launch(down, &r->down);
    compare(r, &h, &each);
    const double up_us = launch_us(up, &r->up), down_us = launch_us(down, &r->down);
    printf("%-5s %5u rows %-10s up %8.1f us, down %8.1f us, both %8.1f us, %4.0f TFLOP/s; error "
           "%.2g, %.2g\n",
           h < 1e-4 && each < 1e-4 ? "right" : "WRONG", r->n, what, up_us, down_us, up_us + down_us,
           6.0 * r->slots * WIDTH * INTER / (up_us + down_us) / 1e6, h, each);
    fflush(stdout);
}

static void load(const char *folder, const char *file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.cubin", folder, file);
    must(gpu_module_load(device, path, &err));
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: gpu_device_experts FOLDER_OF_MODULES ROWS...\n");
        return 2;
    }
    must(gpu_device_open(GPU_CUDA, 0, NULL, &device, &err));
    load(argv[1], "experts");
    load(argv[1], "experts_many");
    load(argv[1], "experts_wgmma");
    struct gpu_shape shape = gpu_device_shape(device), plain = shape;
    plain.warpgroups = false;
    for (int e = 0; e < DIFFERENT; e++) {
        w1[e] = mxfp4(INTER, WIDTH);
        w3[e] = mxfp4(INTER, WIDTH);
        w2[e] = mxfp4(WIDTH, INTER);
    }
    const uint64_t up = weights(w1, w3), down = weights(w2, NULL);
    for (int i = 2; i < argc; i++) {
        struct rows r;
        struct gpu_launch u, d;
        open_rows(&r, (uint32_t)strtoul(argv[i], NULL, 10), up, down);
        u = gpu_launch_experts_up(&r.up, shape);
        d = gpu_launch_experts_down(&r.down, shape);
        if (u.kernel != GPU_NO_KERNEL)
            one(&r, "streams", &u, &d);
        u = gpu_launch_experts_up_many(&r.up, plain);
        d = gpu_launch_experts_down_many(&r.down, plain);
        one(&r, "tiles", &u, &d);
        u = gpu_launch_experts_up_many(&r.up, shape);
        d = gpu_launch_experts_down_many(&r.down, shape);
        one(&r, "warpgroups", &u, &d);
        close_rows(&r);
    }
    gpu_device_close(device);
    return 0;
}
