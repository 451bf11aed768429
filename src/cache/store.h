/* store.h: the bytes behind page and slot ids, on one rank: two pools, in this machine's memory or
 * in a device's. */
#ifndef WEIR_CACHE_STORE_H
#define WEIR_CACHE_STORE_H

#include "base/arena.h"
#include "base/error.h"
#include "ops/ops.h"

struct cache_store {
    struct kv_pool kv;
    struct state_pool state;
    uint32_t pages, slots;
    struct arena memory;
    struct store_device *device; /* NULL: the pools are in `memory` */
};

/* Maps both pools, zeroed. `width` = kv_lora + rope_dim. WEIR_NO_MEMORY names the bytes asked for.
 */
weir_status cache_store_open(struct cache_store *s, uint32_t pages, size_t page_bytes,
                             uint32_t width, enum dtype dtype, uint32_t slots, size_t slot_floats,
                             size_t layer_floats, weir_error *err);
/* The same in the memory of a device, which must outlive the store: not zeroed, the addresses are
 * the device's (store_device.h). */
struct gpu_device;
weir_status cache_store_open_device(struct cache_store *s, struct gpu_device *d, uint32_t pages,
                                    size_t page_bytes, uint32_t width, enum dtype dtype,
                                    uint32_t slots, size_t slot_floats, size_t layer_floats,
                                    weir_error *err);
void cache_store_close(struct cache_store *s);
#endif
