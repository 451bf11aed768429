/* copier.c: see copier.h. */
#include "ops/gpu/copier.h"

#include "ops/gpu/driver_inside.h"

#include <stdlib.h>
#include <string.h>

enum { HALVES = 2, HALF_BYTES = 4 << 20, STREAM_NON_BLOCKING = 1 };

struct gpu_copier {
    struct gpu_device *device;
    void *stream, *event[HALVES];
    unsigned char *half[HALVES];
};

weir_status gpu_copier_open(struct gpu_device *d, struct gpu_copier **out, weir_error *err) {
    *out = NULL;
    struct gpu_copier *c = calloc(1, sizeof *c);
    if (!c)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory");
    c->device = d;
    int code = d->api.stream_make(&c->stream, STREAM_NON_BLOCKING);
    for (int i = 0; i < HALVES; i++) {
        void *half = NULL;
        code = code ? code : d->api.event_make(&c->event[i], 0);
        code = code ? code : d->api.host_take(&half, HALF_BYTES, 0);
        c->half[i] = half;
    }
    if (code) {
        gpu_copier_close(c);
        return gpu_check(d, code, "pinned memory", err);
    }
    *out = c;
    return WEIR_OK;
}

void gpu_copier_close(struct gpu_copier *c) {
    if (!c)
        return;
    struct api *api = &c->device->api;
    for (int i = 0; i < HALVES; i++) {
        if (c->half[i])
            api->host_free(c->half[i]);
        if (c->event[i])
            api->event_free(c->event[i]);
    }
    if (c->stream)
        api->stream_free(c->stream);
    free(c);
}

static size_t piece(size_t bytes, size_t at) {
    return bytes - at < HALF_BYTES ? bytes - at : HALF_BYTES;
}

/* Asks for the piece at `at`; behind the end: nothing. */
static int ask_out(struct gpu_copier *c, uint64_t from, size_t bytes, size_t at) {
    struct api *api = &c->device->api;
    const size_t h = at / HALF_BYTES % HALVES;
    if (at >= bytes)
        return 0;
    int code = api->copy_out(c->half[h], from + at, piece(bytes, at), c->stream);
    return code ? code : api->event_record(c->event[h], c->stream);
}

weir_status gpu_copier_out(struct gpu_copier *c, void *to, uint64_t from, size_t bytes,
                           weir_error *err) {
    weir_status st = gpu_device_enter(c->device, err);
    if (st)
        return st;
    int code = ask_out(c, from, bytes, 0);
    for (size_t at = 0; at < bytes && !code; at += HALF_BYTES) {
        const size_t h = at / HALF_BYTES % HALVES;
        code = ask_out(c, from, bytes, at + HALF_BYTES);
        code = code ? code : c->device->api.event_wait(c->event[h]);
        if (!code)
            memcpy((unsigned char *)to + at, c->half[h], piece(bytes, at));
    }
    if (code)
        c->device->api.stream_wait(c->stream);
    return gpu_check(c->device, code, "copy from the device", err);
}

weir_status gpu_copier_in(struct gpu_copier *c, uint64_t to, const void *from, size_t bytes,
                          weir_error *err) {
    struct api *api = &c->device->api;
    weir_status st = gpu_device_enter(c->device, err);
    if (st)
        return st;
    int code = 0;
    for (size_t at = 0; at < bytes && !code; at += HALF_BYTES) {
        const size_t h = at / HALF_BYTES % HALVES;
        if (at >= (size_t)HALVES * HALF_BYTES) /* what was in this half has left it */
            code = api->event_wait(c->event[h]);
        if (code)
            break;
        memcpy(c->half[h], (const unsigned char *)from + at, piece(bytes, at));
        code = api->copy_in(to + at, c->half[h], piece(bytes, at), c->stream);
        code = code ? code : api->event_record(c->event[h], c->stream);
    }
    /* Also after a failure: what is under way reads memory that the next call fills. */
    int waited = api->stream_wait(c->stream);
    return gpu_check(c->device, code ? code : waited, "copy to the device", err);
}
