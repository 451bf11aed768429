/* emulated_driver.c: a library with the functions of a GPU driver whose device is the emulator
 * (src/ops/gpu/emu): as CUDA's with waves of 32 lanes, and as HIP's (EMULATED_HIP) with 64. With it
 * everything of the column for devices runs on this machine, but for the speed. Memory is this
 * machine's and full of NaN when it is taken; a graph is a list of launches. Errors of kernels are
 * what the emulator says. One device; one
 * thread at a time launches, others may copy. */
#include "base/clock.h"
#include "ops/gpu/emu/emu.h"
#include "ops/gpu/launch.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(EMULATED_HIP)
#define NAME(CUDA, HIP) HIP
#define WAVE            64
#define SUFFIX(NAME)    NAME##_emu64
#else
#define NAME(CUDA, HIP) CUDA
#define WAVE            32
#define SUFFIX(NAME)    NAME##_emu32
#endif

enum {
    OUT_OF_MEMORY = 2,
    BAD_VALUE = 1,
    BAD_IMAGE = 200,
    NO_KERNEL = 500,
    FAULT = 719,
    NOT_IN_CAPTURE = 900
};

#define DECLARE(NAME, RECORD, FILE) emu_kernel SUFFIX(NAME);
GPU_KERNELS(DECLARE)
struct kernel {
    const char *name;
    emu_kernel *run;
    size_t record_bytes;
};
#define ROW(NAME, RECORD, FILE) {#NAME, SUFFIX(NAME), sizeof(struct RECORD)},
static const struct kernel kernels[] = {GPU_KERNELS(ROW)};

struct launch {
    struct launch *next;
    const struct kernel *kernel;
    unsigned blocks_x, blocks_y, threads, cluster, shared_bytes;
    _Alignas(16) unsigned char record[2048];
};
struct graph {
    struct launch *first, **last;
};
static struct graph *capture;           /* NULL: launches happen at once */
static _Atomic(void *) captured_stream; /* the stream whose launches do not */
static weir_error fault;

static int run(const struct launch *l) {
    struct emu_launch e = {.kernel = l->kernel->run,
                           .record = l->record,
                           .blocks_x = l->blocks_x,
                           .blocks_y = l->blocks_y,
                           .threads = l->threads,
                           .cluster = l->cluster,
                           .wave = WAVE,
                           .shared_bytes = l->shared_bytes,
                           .order = EMU_FORWARD};
    weir_error err;
    if (emu_run(&e, &err) == WEIR_OK)
        return 0;
    fault = err;
    snprintf(fault.where, sizeof fault.where, "%s", l->kernel->name);
    return FAULT;
}

static int launch(void *kernel, const unsigned *grid, const unsigned *block, unsigned cluster,
                  unsigned shared_bytes, void **arguments) {
    const struct kernel *k = kernel;
    if (!k || grid[2] != 1 || block[1] != 1 || block[2] != 1 || k->record_bytes > 2048 ||
        !grid[0] || !grid[1] || grid[1] > 65535 || !block[0] || block[0] % WAVE ||
        (cluster && grid[0] % cluster))
        return BAD_VALUE;
    struct launch *l = calloc(1, sizeof *l);
    if (!l)
        return OUT_OF_MEMORY;
    *l = (struct launch){.kernel = k,
                         .blocks_x = grid[0],
                         .blocks_y = grid[1],
                         .threads = block[0],
                         .cluster = cluster,
                         .shared_bytes = shared_bytes};
    memcpy(l->record, arguments[0], k->record_bytes);
    if (capture) {
        *capture->last = l;
        capture->last = &l->next;
        return 0;
    }
    int code = run(l);
    free(l);
    return code;
}

static int one(void **out) {
    *out = malloc(1);
    return *out ? 0 : OUT_OF_MEMORY;
}
static int none(void *p) {
    free(p);
    return 0;
}

int NAME(cuInit, hipInit)(unsigned flags) {
    return flags ? BAD_VALUE : 0;
}
int NAME(cuDeviceGetCount, hipGetDeviceCount)(int *n) {
    *n = 1;
    return 0;
}
int NAME(cuDeviceGet, hipDeviceGet)(int *device, int index) {
    *device = index;
    return 0;
}
int NAME(cuDeviceGetName, hipDeviceGetName)(char *name, int n, int device) {
    snprintf(name, (size_t)n, "emulated, waves of %d", WAVE);
    return 0;
}
int NAME(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device) {
    *value = attribute == NAME(16, 63)  ? 8
             : attribute == NAME(13, 5) ? 1000000
             : attribute == 75          ? 9
                                        : 0;
    return 0;
}
int NAME(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) {
    *bytes = (size_t)2 << 30;
    return 0;
}
int NAME(cuMemGetInfo_v2, hipMemGetInfo)(size_t *left, size_t *all) {
    *left = (size_t)2 << 30;
    *all = (size_t)2 << 30;
    return 0;
}
int NAME(cuMemAlloc_v2, hipMalloc)(uint64_t *address, size_t bytes) {
    void *p = bytes <= (size_t)2 << 30 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    if (!p)
        return OUT_OF_MEMORY;
    memset(p, 0xFF, bytes);
    *address = (uint64_t)(uintptr_t)p;
    return 0;
}
int NAME(cuMemFree_v2, hipFree)(uint64_t address) {
    return none((void *)(uintptr_t)address);
}
int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(uint64_t to, const void *from, size_t n,
                                                   void *stream) {
    if (stream == captured_stream)
        return NOT_IN_CAPTURE;
    memcpy((void *)(uintptr_t)to, from, n);
    return 0;
}
int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, uint64_t from, size_t n,
                                                   void *stream) {
    if (stream == captured_stream)
        return NOT_IN_CAPTURE;
    memcpy(to, (void *)(uintptr_t)from, n);
    return 0;
}
int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t n,
                                                   void *stream) {
    if (stream == captured_stream)
        return NOT_IN_CAPTURE;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
    return 0;
}
int NAME(cuMemsetD8Async, hipMemsetD8Async)(uint64_t to, unsigned char byte, size_t n,
                                            void *stream) {
    if (stream == captured_stream)
        return NOT_IN_CAPTURE;
    memset((void *)(uintptr_t)to, byte, n);
    return 0;
}
int NAME(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags) {
    return one(stream);
}
int NAME(cuStreamSynchronize, hipStreamSynchronize)(void *stream) {
    return stream == captured_stream ? NOT_IN_CAPTURE : 0;
}
int NAME(cuStreamDestroy_v2, hipStreamDestroy)(void *stream) {
    return none(stream);
}
static void free_graph(struct graph *g) {
    for (struct launch *l = g->first, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    free(g);
}
int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void *stream, int mode) {
    if (capture)
        return NOT_IN_CAPTURE;
    capture = calloc(1, sizeof *capture);
    if (!capture)
        return OUT_OF_MEMORY;
    capture->last = &capture->first;
    captured_stream = stream;
    return 0;
}
int NAME(cuStreamEndCapture, hipStreamEndCapture)(void *stream, void **graph) {
    *graph = capture;
    capture = NULL;
    captured_stream = NULL;
    return *graph ? 0 : NOT_IN_CAPTURE;
}
/* The graph that runs takes over the launches of the one that was captured. */
int NAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void **graph, void *captured,
                                                                    unsigned long long flags) {
    struct graph *from = captured, *to = calloc(1, sizeof *to);
    if (!to)
        return OUT_OF_MEMORY;
    to->first = from->first;
    from->first = NULL;
    *graph = to;
    return 0;
}
int NAME(cuGraphLaunch, hipGraphLaunch)(void *graph, void *stream) {
    int code = 0;
    for (const struct launch *l = ((struct graph *)graph)->first; l && !code; l = l->next)
        code = run(l);
    return code;
}
int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(void *graph) {
    free_graph(graph);
    return 0;
}
int NAME(cuGraphDestroy, hipGraphDestroy)(void *graph) {
    free_graph(graph);
    return 0;
}
int NAME(cuEventCreate, hipEventCreateWithFlags)(void **event, unsigned flags) {
    *event = calloc(1, sizeof(double));
    return *event ? 0 : OUT_OF_MEMORY;
}
int NAME(cuEventRecord, hipEventRecord)(void *event, void *stream) {
    *(double *)event = clock_seconds(); /* what was asked for before has happened */
    return 0;
}
int NAME(cuEventSynchronize, hipEventSynchronize)(void *event) {
    return 0;
}
int NAME(cuEventElapsedTime, hipEventElapsedTime)(float *ms, void *from, void *to) {
    *ms = (float)(1e3 * (*(double *)to - *(double *)from));
    return 0;
}
int NAME(cuEventDestroy_v2, hipEventDestroy)(void *event) {
    return none(event);
}
int NAME(cuMemHostAlloc, hipHostMalloc)(void **memory, size_t bytes, unsigned flags) {
    *memory = malloc(bytes);
    return *memory ? 0 : OUT_OF_MEMORY;
}
int NAME(cuMemFreeHost, hipHostFree)(void *memory) {
    return none(memory);
}
/* Any file that says it is for the emulator will do: the kernels are in this library. */
int NAME(cuModuleLoadData, hipModuleLoadData)(void **module, const void *image) {
    return memcmp(image, "emulated", 8) == 0 ? one(module) : BAD_IMAGE;
}
int NAME(cuModuleGetFunction, hipModuleGetFunction)(void **kernel, void *module, const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0) {
            const struct kernel *found = &kernels[i];
            memcpy(kernel, &found, sizeof found);
            return 0;
        }
    return NO_KERNEL;
}
int NAME(cuModuleUnload, hipModuleUnload)(void *module) {
    return none(module);
}

static const char *text_of(int code) {
    static char text[1024];
    switch (code) {
    case OUT_OF_MEMORY: return "out of memory";
    case BAD_VALUE: return "invalid argument";
    case BAD_IMAGE: return "no module of the emulator";
    case NO_KERNEL: return "no such kernel";
    case NOT_IN_CAPTURE: return "not while a graph is captured";
    case FAULT: snprintf(text, sizeof text, "%s: %s", fault.where, fault.message); return text;
    default: return "unknown";
    }
}

#if defined(EMULATED_HIP)
int hipSetDevice(int device) {
    return device ? BAD_VALUE : 0;
}
int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
                          void **extra) {
    return launch(kernel, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, 0, shared, arguments);
}
const char *hipGetErrorString(int code) {
    return text_of(code);
}
#else
int cuDevicePrimaryCtxRetain(void **context, int device) {
    static char it;
    *context = &it;
    return 0;
}
int cuCtxSetCurrent(void *context) {
    return context ? 0 : 201;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    return 0;
}
int cuFuncSetAttribute(void *kernel, int attribute, int value) {
    return attribute == 8 && value <= 227 * 1024 ? 0 : BAD_VALUE;
}
int cuLaunchKernelEx(const void *config, void *kernel, void **arguments, void **extra) {
    const struct {
        unsigned grid[3], block[3], shared_bytes;
        void *stream;
        const struct {
            int id, pad;
            unsigned value[16];
        } * attributes;
        unsigned n_attributes;
    } *c = config;
    unsigned cluster = 0;
    for (unsigned i = 0; i < c->n_attributes; i++)
        if (c->attributes[i].id == 4)
            cluster = c->attributes[i].value[0];
    return launch(kernel, c->grid, c->block, cluster, c->shared_bytes, arguments);
}
int cuGetErrorString(int code, const char **text) {
    *text = text_of(code);
    return 0;
}
#endif
