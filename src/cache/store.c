/* store.c: the two pools of one rank. Opened by the engine, addressed by the operations and
 * copied by the tiers. Pages are mapped and not touched: a pool costs memory only as far as
 * it has been used. */
#include "cache/store_device.h"

void store_describe(struct cache_store *s, uint32_t pages, size_t page_bytes, uint32_t width,
                    enum dtype dtype, uint32_t slots, size_t slot_floats, size_t layer_floats) {
    *s = (struct cache_store){
        .kv = {.dtype = dtype, .page_bytes = page_bytes, .width = width},
        .state = {.slot_floats = slot_floats, .layer_floats = layer_floats},
        .pages = pages,
        .slots = slots,
    };
}

weir_status store_too_large(const struct cache_store *s, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, "kv_cache_bytes",
                     "no memory for %" PRIu32 " pages of %zu bytes and %" PRIu32
                     " state slots of %zu bytes",
                     s->pages, s->kv.page_bytes, s->slots, s->state.slot_floats * sizeof(float));
}

weir_status cache_store_open(struct cache_store *s, uint32_t pages, size_t page_bytes,
                             uint32_t width, enum dtype dtype, uint32_t slots, size_t slot_floats,
                             size_t layer_floats, weir_error *err) {
    store_describe(s, pages, page_bytes, width, dtype, slots, slot_floats, layer_floats);
    size_t page_pool = size_mul(pages, page_bytes);
    size_t slot_pool = size_mul(slots, size_mul(slot_floats, sizeof(float)));
    if (page_pool > SIZE_MAX / 4 || slot_pool > SIZE_MAX / 4 ||
        arena_open(&s->memory, arena_piece(page_pool) + arena_piece(slot_pool)) != 0)
        return store_too_large(s, err);
    s->kv.data = arena_take(&s->memory, page_pool);
    s->state.data = arena_take(&s->memory, slot_pool);
    WEIR_ASSERT(s->kv.data && s->state.data);
    return WEIR_OK;
}

void cache_store_close(struct cache_store *s) {
    store_device_close(s->device);
    arena_close(&s->memory);
}
