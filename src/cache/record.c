/* record.c: canonical records of pages and states. Called by the disk and remote tiers on their own
 * threads, for pages and slots that the move owns.
 * Invariant that bites: a state without its window is worthless, and the window lies behind the
 * matrices of all heads. */
#include "cache/record.h"
#include "cache/store_device.h"

#include "base/dtype.h"

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

bool record_read_page(const struct cache_store *store, int32_t page, void *out) {
    const unsigned char *from = record_page(store, page);
    if (store->device)
        return store_device_read(store->device, from, out, store->kv.page_bytes);
    memcpy(out, from, store->kv.page_bytes);
    return true;
}

bool record_write_page(const struct cache_store *store, int32_t page, const void *in) {
    unsigned char *to = record_page(store, page);
    if (store->device)
        return store_device_write(store->device, to, in, store->kv.page_bytes);
    memcpy(to, in, store->kv.page_bytes);
    return true;
}

static void pack(const struct record_shape *s, const float *from, float *to) {
    const size_t square = (size_t)s->dim * s->dim, row = s->dim * sizeof(float);
    const float *window = from + s->heads * square;
    for (uint32_t h = 0; h < s->heads; h++) {
        memcpy(to, from + h * square, square * sizeof *to);
        to += square;
        for (uint32_t i = 0; i < 3 * s->window; i++, to += s->dim)
            memcpy(to, window + ((size_t)i * s->heads + h) * s->dim, row);
    }
}

static void unpack(const struct record_shape *s, const float *from, float *to) {
    const size_t square = (size_t)s->dim * s->dim, row = s->dim * sizeof(float);
    float *window = to + s->heads * square;
    for (uint32_t h = 0; h < s->heads; h++) {
        memcpy(to + h * square, from, square * sizeof *to);
        from += square;
        for (uint32_t i = 0; i < 3 * s->window; i++, from += s->dim)
            memcpy(window + ((size_t)i * s->heads + h) * s->dim, from, row);
    }
}

static void transpose(const float *from, float *to, uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < n; c++)
            to[(size_t)c * n + r] = from[(size_t)r * n + c];
}

/* The same for a layer as a device has it. */
static void pack_device(const struct record_shape *s, const float *from, float *to) {
    const size_t square = (size_t)s->dim * s->dim;
    const uint16_t *window = (const uint16_t *)(const void *)(from + s->heads * square);
    for (uint32_t h = 0; h < s->heads; h++) {
        transpose(from + h * square, to, s->dim);
        to += square;
        for (uint32_t i = 0; i < 3 * s->window; i++)
            for (uint32_t d = 0; d < s->dim; d++)
                *to++ = bf16_to_f32(window[((size_t)i * s->heads + h) * s->dim + d]);
    }
}

static void unpack_device(const struct record_shape *s, const float *from, float *to) {
    const size_t square = (size_t)s->dim * s->dim;
    uint16_t *window = (uint16_t *)(void *)(to + s->heads * square);
    for (uint32_t h = 0; h < s->heads; h++) {
        transpose(from, to + h * square, s->dim);
        from += square;
        for (uint32_t i = 0; i < 3 * s->window; i++)
            for (uint32_t d = 0; d < s->dim; d++)
                window[((size_t)i * s->heads + h) * s->dim + d] = f32_to_bf16(*from++);
    }
}

/* Bytes of a layer of a device's slot. */
static size_t device_layer_bytes(const struct record_shape *s) {
    return s->heads * ((size_t)s->dim * s->dim * sizeof(float) +
                       (size_t)3 * s->window * s->dim * sizeof(uint16_t));
}

bool record_pack_layer(const struct record_shape *s, const struct cache_store *store, int32_t slot,
                       uint32_t layer, void *out) {
    const float *from = layer_of(store, slot, layer);
    if (!store->device) {
        pack(s, from, out);
        return true;
    }
    float *here = store_device_lend(store->device, true);
    bool ok = store_device_read(store->device, from, here, device_layer_bytes(s));
    if (ok)
        pack_device(s, here, out);
    store_device_return(store->device, true);
    return ok;
}

bool record_unpack_layer(const struct record_shape *s, const struct cache_store *store,
                         int32_t slot, uint32_t layer, const void *in) {
    float *to = layer_of(store, slot, layer);
    if (!store->device) {
        unpack(s, in, to);
        return true;
    }
    float *here = store_device_lend(store->device, false);
    unpack_device(s, in, here);
    bool ok = store_device_write(store->device, to, here, device_layer_bytes(s));
    store_device_return(store->device, false);
    return ok;
}
