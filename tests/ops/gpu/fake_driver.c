/* fake_driver.c: a library with the functions of a GPU driver, for test_gpu_driver.c: as CUDA's and
 * as HIP's, with one device, with none (FAKE_NO_DEVICE) and without one function (FAKE_OLD). Memory
 * of the "device" is this machine's, kernels write down how they were launched. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int fake_open; /* contexts, streams, events, graphs, modules and memory not given back */
struct fake_launch {
    unsigned grid[3], block[3], shared_bytes, attributes;
    uint64_t first_word;
} fake_last;
int fake_shared_bytes;

#if defined(FAKE_HIP)
#define NAME(CUDA, HIP) HIP
#else
#define NAME(CUDA, HIP) CUDA
#endif

static int make(void **out) {
    fake_open++;
    *out = malloc(1);
    return *out ? 0 : 2;
}
static int unmake(void *p) {
    fake_open--;
    free(p);
    return 0;
}

int NAME(cuInit, hipInit)(unsigned flags) {
#if defined(FAKE_NO_DEVICE)
    return 100;
#else
    return flags ? 1 : 0;
#endif
}
int NAME(cuDeviceGetCount, hipGetDeviceCount)(int *n) {
    *n = 1;
    return 0;
}
int NAME(cuDeviceGet, hipDeviceGet)(int *device, int index) {
    *device = index + 7;
    return 0;
}
int NAME(cuDeviceGetName, hipDeviceGetName)(char *name, int n, int device) {
    strncpy(name, device == 7 ? "Fake 1" : "?", (size_t)n);
    return 0;
}
int NAME(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device) {
    *value = attribute == NAME(16, 63)  ? 132
             : attribute == NAME(13, 5) ? 1980000
             : attribute == 75          ? 9
                                        : 0;
    return device == 7 ? 0 : 101;
}
int NAME(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) {
    *bytes = (size_t)1 << 30;
    return 0;
}
int NAME(cuMemGetInfo_v2, hipMemGetInfo)(size_t *left, size_t *all) {
    *left = (size_t)3 << 28;
    *all = (size_t)1 << 30;
    return 0;
}
int NAME(cuMemAlloc_v2, hipMalloc)(uint64_t *address, size_t bytes) {
    void *p = bytes < (size_t)1 << 30 ? malloc(bytes) : NULL;
    if (!p)
        return 2;
    fake_open++;
    *address = (uint64_t)(uintptr_t)p;
    return 0;
}
int NAME(cuMemFree_v2, hipFree)(uint64_t address) {
    return unmake((void *)(uintptr_t)address);
}
int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(uint64_t to, const void *from, size_t n,
                                                   void *stream) {
    memcpy((void *)(uintptr_t)to, from, n);
    return 0;
}
int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, uint64_t from, size_t n,
                                                   void *stream) {
    memcpy(to, (void *)(uintptr_t)from, n);
    return 0;
}
int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t n,
                                                   void *stream) {
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
    return 0;
}
int NAME(cuMemsetD8Async, hipMemsetD8Async)(uint64_t to, unsigned char byte, size_t n,
                                            void *stream) {
    memset((void *)(uintptr_t)to, byte, n);
    return 0;
}
int NAME(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags) {
    return make(stream);
}
int NAME(cuStreamSynchronize, hipStreamSynchronize)(void *stream) {
    return stream ? 0 : 1;
}
int NAME(cuStreamDestroy_v2, hipStreamDestroy)(void *stream) {
    return unmake(stream);
}
int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void *stream, int mode) {
    return mode == 2 ? 0 : 1;
}
int NAME(cuStreamEndCapture, hipStreamEndCapture)(void *stream, void **graph) {
    return make(graph);
}
int NAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void **graph, void *captured,
                                                                    unsigned long long flags) {
    return make(graph);
}
int NAME(cuGraphLaunch, hipGraphLaunch)(void *graph, void *stream) {
    return graph && stream ? 0 : 1;
}
int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(void *graph) {
    return unmake(graph);
}
int NAME(cuGraphDestroy, hipGraphDestroy)(void *graph) {
    return unmake(graph);
}
int NAME(cuEventCreate, hipEventCreateWithFlags)(void **event, unsigned flags) {
    return make(event);
}
int NAME(cuEventRecord, hipEventRecord)(void *event, void *stream) {
    return event && stream ? 0 : 1;
}
int NAME(cuEventSynchronize, hipEventSynchronize)(void *event) {
    return 0;
}
int NAME(cuEventElapsedTime, hipEventElapsedTime)(float *ms, void *from, void *to) {
    *ms = 0.25f;
    return from != to ? 0 : 1;
}
int NAME(cuEventDestroy_v2, hipEventDestroy)(void *event) {
    return unmake(event);
}
int NAME(cuMemHostAlloc, hipHostMalloc)(void **memory, size_t bytes, unsigned flags) {
    *memory = malloc(bytes);
    fake_open += *memory != NULL;
    return *memory ? 0 : 2;
}
int NAME(cuMemFreeHost, hipHostFree)(void *memory) {
    return unmake(memory);
}
int NAME(cuModuleLoadData, hipModuleLoadData)(void **module, const void *image) {
    return memcmp(image, "module", 6) == 0 ? make(module) : 200;
}
int NAME(cuModuleGetFunction, hipModuleGetFunction)(void **kernel, void *module, const char *name) {
    if (strcmp(name, "weir_norm") != 0)
        return 500;
    *kernel = module;
    return 0;
}
int NAME(cuModuleUnload, hipModuleUnload)(void *module) {
    return unmake(module);
}

#if defined(FAKE_HIP)
int hipSetDevice(int device) {
    return device == 7 ? 0 : 1;
}
int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
                          void **extra) {
    fake_last = (struct fake_launch){{gx, gy, gz}, {bx, by, bz}, shared, 0, 0};
    memcpy(&fake_last.first_word, arguments[0], 8);
    return kernel && stream ? 0 : 1;
}
const char *hipGetErrorString(int code) {
    return code == 200 ? "bad image" : "something";
}
#else
int cuDevicePrimaryCtxRetain(void **context, int device) {
    static char one;
    fake_open++;
    *context = &one;
    return 0;
}
int cuCtxSetCurrent(void *context) {
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    fake_open--;
    return 0;
}
int cuFuncSetAttribute(void *kernel, int attribute, int value) {
    fake_shared_bytes = attribute == 8 ? value : -1;
    return 0;
}
#if !defined(FAKE_OLD)
int cuLaunchKernelEx(const void *config, void *kernel, void **arguments, void **extra) {
    memcpy(&fake_last, config, 7 * sizeof(unsigned));
    memcpy(&fake_last.attributes, (const char *)config + 48, sizeof(unsigned));
    memcpy(&fake_last.first_word, arguments[0], 8);
    return kernel ? 0 : 1;
}
#endif
int cuGetErrorString(int code, const char **text) {
    *text = code == 200 ? "bad image" : "something";
    return 0;
}
#endif
