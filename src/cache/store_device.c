/* store_device.c: see store_device.h. Opened by the engine; read and written by the threads of
 * tiers, each direction by one at a time, since there is one way to the device and one back. */
#include "cache/store_device.h"

#include "base/log.h"
#include "ops/gpu/copier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct way {
    struct gpu_copier *copier;
    pthread_mutex_t copying;
    pthread_mutex_t lending;
    float *layer;
};

struct store_device {
    struct gpu_device *device;
    uint64_t pool[2];
    struct way in, out;
    atomic_bool said;
};

static weir_status open_way(struct gpu_device *d, struct way *w, size_t layer_floats,
                            weir_error *err) {
    pthread_mutex_init(&w->copying, NULL);
    pthread_mutex_init(&w->lending, NULL);
    w->layer = malloc((layer_floats ? layer_floats : 1) * sizeof *w->layer);
    if (!w->layer)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for a layer of a state");
    return gpu_copier_open(d, &w->copier, err);
}

static void close_way(struct way *w) {
    gpu_copier_close(w->copier);
    free(w->layer);
    pthread_mutex_destroy(&w->copying);
    pthread_mutex_destroy(&w->lending);
}

void store_device_close(struct store_device *d) {
    if (!d)
        return;
    close_way(&d->in);
    close_way(&d->out);
    for (int i = 0; i < 2; i++)
        gpu_memory_free(d->device, d->pool[i]);
    free(d);
}

weir_status cache_store_open_device(struct cache_store *s, struct gpu_device *device,
                                    uint32_t pages, size_t page_bytes, uint32_t width,
                                    enum dtype dtype, uint32_t slots, size_t slot_floats,
                                    size_t layer_floats, weir_error *err) {
    store_describe(s, pages, page_bytes, width, dtype, slots, slot_floats, layer_floats);
    struct store_device *d = calloc(1, sizeof *d);
    if (!d)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory");
    d->device = device;
    s->device = d;
    weir_status st = open_way(device, &d->in, layer_floats, err);
    weir_status other = open_way(device, &d->out, layer_floats, st ? &(weir_error){0} : err);
    st = st ? st : other;
    /* A model may have no layer of one kind, and drivers take no memory of no bytes. */
    const size_t bytes[2] = {size_mul(pages, page_bytes),
                             size_mul(slots, size_mul(slot_floats, sizeof(float)))};
    for (int i = 0; i < 2 && !st; i++) {
        weir_error why;
        if (gpu_memory_take(device, bytes[i] ? bytes[i] : 1, &d->pool[i], &why))
            st = store_too_large(s, err);
    }
    if (st) {
        store_device_close(d);
        s->device = NULL;
        return st;
    }
    s->kv.data = (unsigned char *)(uintptr_t)d->pool[0];
    s->state.data = (float *)(uintptr_t)d->pool[1];
    return WEIR_OK;
}

static bool went_well(struct store_device *d, weir_status st, const weir_error *err) {
    if (st && !atomic_exchange(&d->said, true))
        log_line(LOG_ERROR, "cache: %s: %s (said once; what was to be moved is computed again)",
                 err->where, err->message);
    return st == WEIR_OK;
}

bool store_device_read(struct store_device *d, const void *from, void *to, size_t bytes) {
    weir_error err;
    pthread_mutex_lock(&d->out.copying);
    weir_status st = gpu_copier_out(d->out.copier, to, (uint64_t)(uintptr_t)from, bytes, &err);
    pthread_mutex_unlock(&d->out.copying);
    return went_well(d, st, &err);
}

bool store_device_write(struct store_device *d, void *to, const void *from, size_t bytes) {
    weir_error err;
    pthread_mutex_lock(&d->in.copying);
    weir_status st = gpu_copier_in(d->in.copier, (uint64_t)(uintptr_t)to, from, bytes, &err);
    pthread_mutex_unlock(&d->in.copying);
    return went_well(d, st, &err);
}

static struct way *way_of(struct store_device *d, bool out) {
    return out ? &d->out : &d->in;
}
float *store_device_lend(struct store_device *d, bool out) {
    pthread_mutex_lock(&way_of(d, out)->lending);
    return way_of(d, out)->layer;
}
void store_device_return(struct store_device *d, bool out) {
    pthread_mutex_unlock(&way_of(d, out)->lending);
}
