/* store.h: the bytes behind page and slot ids, on one rank: the two pools of device memory. */
#ifndef WEIR_CACHE_STORE_H
#define WEIR_CACHE_STORE_H

#include "base/arena.h"
#include "base/error.h"
#include "ops/gpu/driver.h"
#include "ops/ops.h"

struct cache_store {
    struct kv_pool kv;
    struct state_pool state;
    uint32_t pages, slots;
    struct arena memory;
    struct gpu_device *device; /* NULL: the pools are in `memory` */
    uint64_t on_device[2];
};

/* Maps both pools, zeroed. `width` = kv_lora + rope_dim. WEIR_NO_MEMORY names the bytes asked for.
 */
weir_status cache_store_open(struct cache_store *s, uint32_t pages, size_t page_bytes,
                             uint32_t width, enum dtype dtype, uint32_t slots, size_t slot_floats,
                             size_t layer_floats, weir_error *err);
/* The same in a device's memory, not zeroed: the addresses are the device's. */
weir_status cache_store_open_device(struct cache_store *s, struct gpu_device *d, uint32_t pages,
                                    size_t page_bytes, uint32_t width, enum dtype dtype,
                                    uint32_t slots, size_t slot_floats, size_t layer_floats,
                                    weir_error *err);
void cache_store_close(struct cache_store *s);
#endif
