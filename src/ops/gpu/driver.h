/* driver.h: a GPU through the driver that is installed where weir runs: CUDA's (libcuda.so.1) or
 * HIP's (libamdhip64.so), found with dlopen, so that one program serves machines with either and
 * with none. Addresses on the device are numbers of 64 bits.
 *
 * A device has one stream: what is asked for happens in order, and copies, fills and launches
 * return before it has happened. Copiers (copier.h) have streams of their own. Functions that
 * return a status leave *err alone on success; faults of a kernel come up in whatever is called
 * next. One thread at a time uses a device here, and one that has not opened it enters it first:
 * drivers keep for each thread which device is meant. */
#ifndef WEIR_OPS_GPU_DRIVER_H
#define WEIR_OPS_GPU_DRIVER_H

#include "ops/gpu/launch.h"
#include "weir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpu_vendor { GPU_CUDA, GPU_HIP };

struct gpu_facts {
    char name[128];
    uint32_t multiprocessors;
    uint32_t wave;
    uint32_t major, minor; /* CUDA: compute capability; HIP: 0 */
    uint32_t clock_mhz;
    size_t memory_bytes, memory_left; /* left: when it was opened */
};

struct gpu_device;

/* Device `index` of the vendor. `library`: NULL, or another file than the usual, whose name must
 * live as long as the device.
 * WEIR_UNSUPPORTED: no driver, one that is too old, no such device; err->where names the library.
 */
weir_status gpu_device_open(enum gpu_vendor vendor, uint32_t index, const char *library,
                            struct gpu_device **out, weir_error *err);
void gpu_device_close(struct gpu_device *d);
/* This thread uses the device from here on. */
weir_status gpu_device_enter(struct gpu_device *d, weir_error *err);
const struct gpu_facts *gpu_device_facts(const struct gpu_device *d);
/* What rules of launches depend on. */
struct gpu_shape gpu_device_shape(const struct gpu_device *d);

/* Modules hold kernels: a cubin or hsaco. Those of a device live as long as it does.
 * WEIR_BAD_FILE: cannot be read, or the driver refuses it (made for another device). */
weir_status gpu_module_load(struct gpu_device *d, const char *path, weir_error *err);
/* The kernel of that name in any module that was loaded, ready for so much shared memory. */
weir_status gpu_kernel_find(struct gpu_device *d, const char *name, uint32_t shared_bytes,
                            void **kernel, weir_error *err);

weir_status gpu_memory_take(struct gpu_device *d, size_t bytes, uint64_t *address, weir_error *err);
void gpu_memory_free(struct gpu_device *d, uint64_t address);
weir_status gpu_copy_in(struct gpu_device *d, uint64_t to, const void *from, size_t bytes,
                        weir_error *err);
weir_status gpu_copy_out(struct gpu_device *d, void *to, uint64_t from, size_t bytes,
                         weir_error *err);
weir_status gpu_copy_on(struct gpu_device *d, uint64_t to, uint64_t from, size_t bytes,
                        weir_error *err);
weir_status gpu_fill(struct gpu_device *d, uint64_t to, uint8_t byte, size_t bytes,
                     weir_error *err);
/* Waits until all that was asked for has happened. */
weir_status gpu_wait(struct gpu_device *d, weir_error *err);

/* `record` is read before this returns. `early`: the kernel may begin while the one before it ends,
 * as far as gpu_launch_next() there and gpu_wait_previous() here allow (CUDA 9.0 and later; else
 * the same as not early). */
weir_status gpu_kernel_launch(struct gpu_device *d, void *kernel, const struct gpu_launch *launch,
                              const void *record, bool early, weir_error *err);

/* What is asked for between begin and end does not happen but becomes a graph, to be launched as a
 * whole and often. */
struct gpu_graph;
weir_status gpu_graph_begin(struct gpu_device *d, weir_error *err);
weir_status gpu_graph_end(struct gpu_device *d, struct gpu_graph **out, weir_error *err);
weir_status gpu_graph_launch(struct gpu_device *d, struct gpu_graph *g, weir_error *err);
void gpu_graph_free(struct gpu_device *d, struct gpu_graph *g);

/* Two marks in the stream, and the time between them (waits for the second). */
enum { GPU_MARKS = 2 };
weir_status gpu_mark(struct gpu_device *d, unsigned mark, weir_error *err);
weir_status gpu_marked_us(struct gpu_device *d, double *us, weir_error *err);

#endif
