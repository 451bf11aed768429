/* kernels_machine.h: what a result of the kernel bench must say about where it was taken. */
#ifndef WEIR_BENCH_KERNELS_MACHINE_H
#define WEIR_BENCH_KERNELS_MACHINE_H

#include <jansson.h>
#include <stdint.h>

/* {"model", "cores", "usable_cores", "threads", "isa", "extensions", "kernel", "memory_bytes",
 * "huge_pages", "caches": [{"level", "type", "bytes", "shared_by"}]};
 * what the system does not tell is null. NULL without memory. */
json_t *machine_json(uint32_t threads);
/* Bytes of the largest cache of the first core; 32 MiB where the system does not tell. */
uint64_t machine_last_cache_bytes(void);

#endif
