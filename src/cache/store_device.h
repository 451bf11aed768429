/* store_device.h: pools in the memory of a device, and how bytes come from there and go there.
 * Inside of the cache room.
 *
 * A slot of a device holds, per KDA layer, S [heads][value][key] f32, then the window
 * [3 (q,k,v)][taps-1][heads*dim] as BF16: not what a slot of this machine holds, nor a record. */
#ifndef WEIR_CACHE_STORE_DEVICE_H
#define WEIR_CACHE_STORE_DEVICE_H

#include "cache/store.h"

void store_describe(struct cache_store *s, uint32_t pages, size_t page_bytes, uint32_t width,
                    enum dtype dtype, uint32_t slots, size_t slot_floats, size_t layer_floats);
weir_status store_too_large(const struct cache_store *s, weir_error *err);
void store_device_close(struct store_device *d);

/* Bytes of a pool, from an address in it, to this machine, and back. Any thread; return when they
 * have arrived. False: the device failed, which is logged once. */
bool store_device_read(struct store_device *d, const void *from, void *to, size_t bytes);
bool store_device_write(struct store_device *d, void *to, const void *from, size_t bytes);

/* Memory for one layer of a slot, for whoever holds it; `out`: for what comes from the device. */
float *store_device_lend(struct store_device *d, bool out);
void store_device_return(struct store_device *d, bool out);

#endif
