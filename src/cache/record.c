/* record.c: canonical records of pages and states. Called by the disk and remote tiers on their own
 * threads, for pages and slots that the move owns.
 * Invariant that bites: a state without its window is worthless, and the window lies behind the
 * matrices of all heads. */
#include "cache/record.h"

#include <string.h>

static size_t head_floats(const struct record_shape *s) {
    return (size_t)s->dim * s->dim + (size_t)3 * s->window * s->dim;
}

size_t record_layer_bytes(const struct record_shape *s) {
    return s->heads * head_floats(s) * sizeof(float);
}

size_t record_state_bytes(const struct record_shape *s) {
    return s->layers * record_layer_bytes(s);
}

unsigned char *record_page(const struct cache_store *store, int32_t page) {
    WEIR_ASSERT(page >= 0 && (uint32_t)page < store->pages);
    return store->kv.data + (size_t)page * store->kv.page_bytes;
}

unsigned char *record_slot(const struct cache_store *store, int32_t slot) {
    WEIR_ASSERT(slot >= 0 && (uint32_t)slot < store->slots);
    return (unsigned char *)(store->state.data + (size_t)slot * store->state.slot_floats);
}

static float *layer_of(const struct cache_store *store, int32_t slot, uint32_t layer) {
    return (float *)(void *)record_slot(store, slot) + layer * store->state.layer_floats;
}

void record_pack_layer(const struct record_shape *s, const struct cache_store *store, int32_t slot,
                       uint32_t layer, void *out) {
    const float *from = layer_of(store, slot, layer);
    const size_t square = (size_t)s->dim * s->dim, row = s->dim * sizeof(float);
    const float *window = from + s->heads * square;
    float *to = out;
    for (uint32_t h = 0; h < s->heads; h++) {
        memcpy(to, from + h * square, square * sizeof *to);
        to += square;
        for (uint32_t i = 0; i < 3 * s->window; i++, to += s->dim)
            memcpy(to, window + ((size_t)i * s->heads + h) * s->dim, row);
    }
}

void record_unpack_layer(const struct record_shape *s, const struct cache_store *store,
                         int32_t slot, uint32_t layer, const void *in) {
    float *to = layer_of(store, slot, layer);
    const size_t square = (size_t)s->dim * s->dim, row = s->dim * sizeof(float);
    float *window = to + s->heads * square;
    const float *from = in;
    for (uint32_t h = 0; h < s->heads; h++) {
        memcpy(to + h * square, from, square * sizeof *to);
        from += square;
        for (uint32_t i = 0; i < 3 * s->window; i++, from += s->dim)
            memcpy(window + ((size_t)i * s->heads + h) * s->dim, from, row);
    }
}
