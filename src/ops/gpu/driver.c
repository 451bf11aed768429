/* driver.c: see driver.h. The functions of both drivers that we use mean the same and take the
 * same, but for launches, contexts and texts of errors; so one table serves both, by two lists of
 * names. */
#include "ops/gpu/driver_inside.h"

#include "base/file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { MODULE_BYTES = 256 << 20 };

static const struct {
    const char *name[2]; /* CUDA, HIP; NULL: not there */
    size_t at;
} functions[] = {
#define FUNCTION(FIELD, CUDA, HIP)                                                                 \
    { {CUDA, HIP}, offsetof(struct api, FIELD) }
    FUNCTION(init, "cuInit", "hipInit"),
    FUNCTION(count, "cuDeviceGetCount", "hipGetDeviceCount"),
    FUNCTION(get, "cuDeviceGet", "hipDeviceGet"),
    FUNCTION(name, "cuDeviceGetName", "hipDeviceGetName"),
    FUNCTION(attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    FUNCTION(total, "cuDeviceTotalMem_v2", "hipDeviceTotalMem"),
    FUNCTION(left, "cuMemGetInfo_v2", "hipMemGetInfo"),
    FUNCTION(take, "cuMemAlloc_v2", "hipMalloc"),
    FUNCTION(free, "cuMemFree_v2", "hipFree"),
    FUNCTION(copy_in, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"),
    FUNCTION(copy_out, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"),
    FUNCTION(copy_on, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
    FUNCTION(fill, "cuMemsetD8Async", "hipMemsetD8Async"),
    FUNCTION(stream_make, "cuStreamCreate", "hipStreamCreateWithFlags"),
    FUNCTION(stream_wait, "cuStreamSynchronize", "hipStreamSynchronize"),
    FUNCTION(stream_free, "cuStreamDestroy_v2", "hipStreamDestroy"),
    FUNCTION(capture_begin, "cuStreamBeginCapture_v2", "hipStreamBeginCapture"),
    FUNCTION(capture_end, "cuStreamEndCapture", "hipStreamEndCapture"),
    FUNCTION(graph_make, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags"),
    FUNCTION(graph_launch, "cuGraphLaunch", "hipGraphLaunch"),
    FUNCTION(graph_free, "cuGraphExecDestroy", "hipGraphExecDestroy"),
    FUNCTION(capture_free, "cuGraphDestroy", "hipGraphDestroy"),
    FUNCTION(event_make, "cuEventCreate", "hipEventCreateWithFlags"),
    FUNCTION(event_record, "cuEventRecord", "hipEventRecord"),
    FUNCTION(event_wait, "cuEventSynchronize", "hipEventSynchronize"),
    FUNCTION(event_elapsed, "cuEventElapsedTime", "hipEventElapsedTime"),
    FUNCTION(event_free, "cuEventDestroy_v2", "hipEventDestroy"),
    FUNCTION(host_take, "cuMemHostAlloc", "hipHostMalloc"),
    FUNCTION(host_free, "cuMemFreeHost", "hipHostFree"),
    FUNCTION(module_load, "cuModuleLoadData", "hipModuleLoadData"),
    FUNCTION(module_find, "cuModuleGetFunction", "hipModuleGetFunction"),
    FUNCTION(module_free, "cuModuleUnload", "hipModuleUnload"),
    FUNCTION(context_retain, "cuDevicePrimaryCtxRetain", NULL),
    FUNCTION(context_set, "cuCtxSetCurrent", NULL),
    FUNCTION(context_release, "cuDevicePrimaryCtxRelease_v2", NULL),
    FUNCTION(function_set, "cuFuncSetAttribute", NULL),
    FUNCTION(launch, "cuLaunchKernelEx", NULL),
    FUNCTION(error_text, "cuGetErrorString", NULL),
    FUNCTION(device_set, NULL, "hipSetDevice"),
    FUNCTION(launch_hip, NULL, "hipModuleLaunchKernel"),
    FUNCTION(error_text_hip, NULL, "hipGetErrorString"),
};

/* Numbers of the drivers' headers. */
enum {
    CUDA_MULTIPROCESSORS = 16,
    CUDA_CLOCK_KHZ = 13,
    CUDA_MAJOR = 75,
    CUDA_MINOR = 76,
    CUDA_SHARED_BYTES = 8, /* of a function: the most it may be launched with */
    CUDA_CLUSTER = 4,      /* of a launch: blocks of a cluster in x, y, z */
    CUDA_PROGRAMMATIC = 6, /* of a launch: may begin early */
    CAPTURE_RELAXED = 2,
    STREAM_NON_BLOCKING = 1,
    SHARED_WITHOUT_ASKING = 48 * 1024,
};
struct cuda_attribute {
    int id;
    char pad[4];
    union {
        int value;
        unsigned dims[3];
        char room[64];
    } u;
};
struct cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct cuda_attribute *attributes;
    unsigned n_attributes;
};

static weir_status fail(struct gpu_device *d, int code, const char *what, weir_error *err) {
    const char *text = NULL;
    if (d->vendor == GPU_CUDA)
        d->api.error_text(code, &text);
    else
        text = d->api.error_text_hip(code);
    /* 2: out of memory, of both drivers. */
    return weir_fail(err, code == 2 ? WEIR_NO_MEMORY : WEIR_UNSUPPORTED, d->library_name,
                     "%s: error %d, %s", what, code, text ? text : "of an unknown kind");
}

weir_status gpu_check(struct gpu_device *d, int code, const char *what, weir_error *err) {
    return code ? fail(d, code, what, err) : WEIR_OK;
}

static weir_status find_functions(struct gpu_device *d, weir_error *err) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const char *name = functions[i].name[d->vendor];
        if (!name)
            continue;
        void *function = dlsym(d->library, name);
        if (!function)
            return weir_fail(err, WEIR_UNSUPPORTED, d->library_name,
                             "has no %s: this driver is too old", name);
        memcpy((char *)&d->api + functions[i].at, &function, sizeof function);
    }
    return WEIR_OK;
}

static weir_status find_library(struct gpu_device *d, const char *library, weir_error *err) {
    static const char *const usual[2][3] = {
        {"libcuda.so.1"}, {"libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7"}};
    const char *const *names = library ? &library : usual[d->vendor];
    size_t n = library || d->vendor == GPU_CUDA ? 1 : 3;
    d->library_name = names[0];
    for (size_t i = 0; i < n && !d->library; i++) {
        d->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (d->library)
            d->library_name = names[i];
    }
    if (d->library)
        return WEIR_OK;
    return weir_fail(err, WEIR_UNSUPPORTED, d->library_name,
                     "cannot be loaded: no %s driver is installed",
                     d->vendor == GPU_CUDA ? "NVIDIA" : "AMD");
}

/* Counts devices; a driver without one says so by an error or by zero. */
static weir_status choose_device(struct gpu_device *d, uint32_t index, weir_error *err) {
    int n = 0, code = d->api.init(0);
    if (code == 0)
        code = d->api.count(&n);
    if (code == 100 || (code == 0 && n == 0)) /* 100: no device, of both drivers */
        return weir_fail(err, WEIR_UNSUPPORTED, d->library_name, "finds no device");
    if (code)
        return fail(d, code, "cannot be used", err);
    if (index >= (uint32_t)n)
        return weir_fail(err, WEIR_UNSUPPORTED, d->library_name,
                         "has no device %" PRIu32 ": there are %d", index, n);
    return gpu_check(d, d->api.get(&d->device, (int)index), "device", err);
}

static weir_status learn_facts(struct gpu_device *d, weir_error *err) {
    /* Of HIP's header 5.0 and later, not seen to work on a device. */
    enum { HIP_MULTIPROCESSORS = 63, HIP_CLOCK_KHZ = 5 };
    const bool cuda = d->vendor == GPU_CUDA;
    int multiprocessors = 0, khz = 0, major = 0, minor = 0;
    int code = d->api.name(d->facts.name, sizeof d->facts.name, d->device);
    code = code ? code : d->api.total(&d->facts.memory_bytes, d->device);
    code = code ? code
                : d->api.attribute(&multiprocessors,
                                   cuda ? CUDA_MULTIPROCESSORS : HIP_MULTIPROCESSORS, d->device);
    code = code ? code : d->api.attribute(&khz, cuda ? CUDA_CLOCK_KHZ : HIP_CLOCK_KHZ, d->device);
    if (cuda) {
        code = code ? code : d->api.attribute(&major, CUDA_MAJOR, d->device);
        code = code ? code : d->api.attribute(&minor, CUDA_MINOR, d->device);
    }
    d->facts.multiprocessors = (uint32_t)multiprocessors;
    d->facts.clock_mhz = (uint32_t)khz / 1000;
    d->facts.major = (uint32_t)major;
    d->facts.minor = (uint32_t)minor;
    d->facts.wave = cuda ? 32 : 64;
    return gpu_check(d, code, "properties of the device", err);
}

weir_status gpu_device_enter(struct gpu_device *d, weir_error *err) {
    int code =
        d->vendor == GPU_CUDA ? d->api.context_set(d->context) : d->api.device_set(d->device);
    return gpu_check(d, code, "cannot be entered", err);
}

static weir_status begin(struct gpu_device *d, weir_error *err) {
    int code = 0;
    if (d->vendor == GPU_CUDA)
        code = d->api.context_retain(&d->context, d->device);
    if (code)
        return fail(d, code, "cannot begin", err);
    weir_status st = gpu_device_enter(d, err);
    if (st)
        return st;
    code = d->api.stream_make(&d->stream, STREAM_NON_BLOCKING);
    for (int i = 0; i < GPU_MARKS; i++)
        code = code ? code : d->api.event_make(&d->mark[i], 0);
    size_t all;
    code = code ? code : d->api.left(&d->facts.memory_left, &all);
    return gpu_check(d, code, "cannot begin", err);
}

weir_status gpu_device_open(enum gpu_vendor vendor, uint32_t index, const char *library,
                            struct gpu_device **out, weir_error *err) {
    struct gpu_device *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory");
    d->vendor = vendor;
    weir_status s = find_library(d, library, err);
    s = s ? s : find_functions(d, err);
    s = s ? s : choose_device(d, index, err);
    s = s ? s : learn_facts(d, err);
    s = s ? s : begin(d, err);
    if (s) {
        gpu_device_close(d);
        return s;
    }
    *out = d;
    return WEIR_OK;
}

void gpu_device_close(struct gpu_device *d) {
    if (!d)
        return;
    for (uint32_t i = 0; i < d->n_modules; i++)
        d->api.module_free(d->module[i]);
    for (int i = 0; i < GPU_MARKS; i++)
        if (d->mark[i])
            d->api.event_free(d->mark[i]);
    if (d->stream)
        d->api.stream_free(d->stream);
    if (d->context)
        d->api.context_release(d->device);
    if (d->library)
        dlclose(d->library);
    free(d);
}

const struct gpu_facts *gpu_device_facts(const struct gpu_device *d) {
    return &d->facts;
}
struct gpu_shape gpu_device_shape(const struct gpu_device *d) {
    return (struct gpu_shape){
        .multiprocessors = d->facts.multiprocessors,
        .wave = d->facts.wave,
        /* Of compute capability 9.0 alone: neither older nor newer devices have them. */
        .warpgroups = d->vendor == GPU_CUDA && d->facts.major == 9 && d->facts.minor == 0,
        .cluster = d->facts.major >= 9 ? GPU_CLUSTER_MOST : 0,
    };
}

/* ------------------------------------------------------------------------------ kernels */

weir_status gpu_module_load(struct gpu_device *d, const char *path, weir_error *err) {
    if (d->n_modules == MODULES_MOST)
        return weir_fail(err, WEIR_UNSUPPORTED, path, "is one module more than %d", MODULES_MOST);
    /* Drivers take what is no binary for text that ends with a NUL, which file_read puts there. */
    char *image;
    size_t bytes;
    weir_status s = file_read(path, MODULE_BYTES, &image, &bytes, err);
    if (s)
        return s;
    int code = d->api.module_load(&d->module[d->n_modules], image);
    free(image);
    if (code) {
        weir_error why;
        fail(d, code, "module", &why);
        return weir_fail(err, WEIR_BAD_FILE, path, "is no module for %s (%s)", d->facts.name,
                         why.message);
    }
    d->n_modules++;
    return WEIR_OK;
}

weir_status gpu_kernel_find(struct gpu_device *d, const char *name, uint32_t shared_bytes,
                            void **kernel, weir_error *err) {
    *kernel = NULL;
    for (uint32_t i = 0; i < d->n_modules; i++)
        if (d->api.module_find(kernel, d->module[i], name) == 0)
            break;
    if (!*kernel)
        return weir_fail(err, WEIR_UNSUPPORTED, name, "is in none of the %" PRIu32 " modules",
                         d->n_modules);
    if (d->vendor == GPU_CUDA && shared_bytes > SHARED_WITHOUT_ASKING)
        return gpu_check(d, d->api.function_set(*kernel, CUDA_SHARED_BYTES, (int)shared_bytes),
                         "shared memory", err);
    return WEIR_OK;
}

weir_status gpu_kernel_launch(struct gpu_device *d, void *kernel, const struct gpu_launch *l,
                              const void *record, bool early, weir_error *err) {
    /* The drivers take addresses of arguments and copy what is there. */
    void *arguments[1];
    memcpy(&arguments[0], &record, sizeof record);
    const char *name = gpu_kernel_info(l->kernel)->name;
    if (d->vendor == GPU_HIP)
        return gpu_check(d,
                         d->api.launch_hip(kernel, l->blocks_x, l->blocks_y, 1, l->threads, 1, 1,
                                           l->shared_bytes, d->stream, arguments, NULL),
                         name, err);
    struct cuda_attribute attributes[2];
    unsigned n = 0;
    if (early && d->facts.major >= 9)
        attributes[n++] = (struct cuda_attribute){.id = CUDA_PROGRAMMATIC, .u.value = 1};
    if (l->cluster > 1)
        attributes[n++] = (struct cuda_attribute){.id = CUDA_CLUSTER, .u.dims = {l->cluster, 1, 1}};
    struct cuda_launch config = {.grid = {l->blocks_x, l->blocks_y, 1},
                                 .block = {l->threads, 1, 1},
                                 .shared_bytes = l->shared_bytes,
                                 .stream = d->stream,
                                 .attributes = attributes,
                                 .n_attributes = n};
    return gpu_check(d, d->api.launch(&config, kernel, arguments, NULL), name, err);
}

/* ------------------------------------------------------------------------------ memory */

weir_status gpu_memory_take(struct gpu_device *d, size_t bytes, uint64_t *address,
                            weir_error *err) {
    return gpu_check(d, d->api.take(address, bytes), "memory", err);
}
void gpu_memory_free(struct gpu_device *d, uint64_t address) {
    if (address)
        d->api.free(address);
}
weir_status gpu_copy_in(struct gpu_device *d, uint64_t to, const void *from, size_t bytes,
                        weir_error *err) {
    return gpu_check(d, d->api.copy_in(to, from, bytes, d->stream), "copy to the device", err);
}
weir_status gpu_copy_out(struct gpu_device *d, void *to, uint64_t from, size_t bytes,
                         weir_error *err) {
    return gpu_check(d, d->api.copy_out(to, from, bytes, d->stream), "copy from the device", err);
}
weir_status gpu_copy_on(struct gpu_device *d, uint64_t to, uint64_t from, size_t bytes,
                        weir_error *err) {
    return gpu_check(d, d->api.copy_on(to, from, bytes, d->stream), "copy on the device", err);
}
weir_status gpu_fill(struct gpu_device *d, uint64_t to, uint8_t byte, size_t bytes,
                     weir_error *err) {
    return gpu_check(d, d->api.fill(to, byte, bytes, d->stream), "fill", err);
}
weir_status gpu_wait(struct gpu_device *d, weir_error *err) {
    return gpu_check(d, d->api.stream_wait(d->stream), "wait", err);
}

/* ------------------------------------------------------------------------------ graphs and time */

weir_status gpu_graph_begin(struct gpu_device *d, weir_error *err) {
    return gpu_check(d, d->api.capture_begin(d->stream, CAPTURE_RELAXED), "graph", err);
}

weir_status gpu_graph_end(struct gpu_device *d, struct gpu_graph **out, weir_error *err) {
    void *captured = NULL, *graph = NULL;
    int code = d->api.capture_end(d->stream, &captured);
    code = code ? code : d->api.graph_make(&graph, captured, 0);
    if (captured)
        d->api.capture_free(captured);
    *out = graph;
    return gpu_check(d, code, "graph", err);
}

weir_status gpu_graph_launch(struct gpu_device *d, struct gpu_graph *g, weir_error *err) {
    return gpu_check(d, d->api.graph_launch(g, d->stream), "graph", err);
}

void gpu_graph_free(struct gpu_device *d, struct gpu_graph *g) {
    if (g)
        d->api.graph_free(g);
}

weir_status gpu_mark(struct gpu_device *d, unsigned mark, weir_error *err) {
    return gpu_check(d, d->api.event_record(d->mark[mark], d->stream), "mark", err);
}

weir_status gpu_marked_us(struct gpu_device *d, double *us, weir_error *err) {
    float ms = 0;
    int code = d->api.event_wait(d->mark[1]);
    code = code ? code : d->api.event_elapsed(&ms, d->mark[0], d->mark[1]);
    *us = (double)ms * 1000;
    return gpu_check(d, code, "time", err);
}
