/* store.c: the two pools of one rank. Opened by the engine, addressed by the operations and
 * copied by the tiers. Pages are mapped and not touched: a pool costs memory only as far as
 * it has been used. */
#include "cache/store.h"

static void describe(struct cache_store *s, uint32_t pages, size_t page_bytes, uint32_t width,
                     enum dtype dtype, uint32_t slots, size_t slot_floats, size_t layer_floats) {
    *s = (struct cache_store){
        .kv = {.dtype = dtype, .page_bytes = page_bytes, .width = width},
        .state = {.slot_floats = slot_floats, .layer_floats = layer_floats},
        .pages = pages,
        .slots = slots,
    };
}

static weir_status too_large(const struct cache_store *s, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, "kv_cache_bytes",
                     "no memory for %" PRIu32 " pages of %zu bytes and %" PRIu32
                     " state slots of %zu bytes",
                     s->pages, s->kv.page_bytes, s->slots, s->state.slot_floats * sizeof(float));
}

weir_status cache_store_open(struct cache_store *s, uint32_t pages, size_t page_bytes,
                             uint32_t width, enum dtype dtype, uint32_t slots, size_t slot_floats,
                             size_t layer_floats, weir_error *err) {
    describe(s, pages, page_bytes, width, dtype, slots, slot_floats, layer_floats);
    size_t page_pool = size_mul(pages, page_bytes);
    size_t slot_pool = size_mul(slots, size_mul(slot_floats, sizeof(float)));
    if (page_pool > SIZE_MAX / 4 || slot_pool > SIZE_MAX / 4 ||
        arena_open(&s->memory, arena_piece(page_pool) + arena_piece(slot_pool)) != 0)
        return too_large(s, err);
    s->kv.data = arena_take(&s->memory, page_pool);
    s->state.data = arena_take(&s->memory, slot_pool);
    WEIR_ASSERT(s->kv.data && s->state.data);
    return WEIR_OK;
}

weir_status cache_store_open_device(struct cache_store *s, struct gpu_device *d, uint32_t pages,
                                    size_t page_bytes, uint32_t width, enum dtype dtype,
                                    uint32_t slots, size_t slot_floats, size_t layer_floats,
                                    weir_error *err) {
    describe(s, pages, page_bytes, width, dtype, slots, slot_floats, layer_floats);
    s->device = d;
    /* A model may have no layer of one kind, and drivers take no memory of no bytes. */
    size_t bytes[2] = {size_mul(pages, page_bytes),
                       size_mul(slots, size_mul(slot_floats, sizeof(float)))};
    weir_error why;
    for (int i = 0; i < 2; i++)
        if (gpu_memory_take(d, bytes[i] ? bytes[i] : 1, &s->on_device[i], &why)) {
            cache_store_close(s);
            return too_large(s, err);
        }
    s->kv.data = (unsigned char *)(uintptr_t)s->on_device[0];
    s->state.data = (float *)(uintptr_t)s->on_device[1];
    return WEIR_OK;
}

void cache_store_close(struct cache_store *s) {
    for (int i = 0; i < 2 && s->device; i++)
        gpu_memory_free(s->device, s->on_device[i]);
    arena_close(&s->memory);
}
