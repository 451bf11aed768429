/* device_values.h: where values of the list lie on the device: those of the step buffers, of the
 * batch, and what the model has, which is copied when it is first asked for. */
#ifndef WEIR_FORWARD_DEVICE_VALUES_H
#define WEIR_FORWARD_DEVICE_VALUES_H

#include "forward/device_inside.h"

static inline void *at_address(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static inline uint64_t place_of(const struct device_program *p, const void *host) {
    uintptr_t at = (uintptr_t)host - p->buffers;
    WEIR_ASSERT(at < p->buffers_bytes);
    return p->device_buffers + at;
}

/* Row `row` of a step buffer as BF16 or f32; rows are `stride` f32 apart, so 2 * stride BF16. */
static inline uint16_t *half(const struct device_program *p, struct tensor t, uint32_t row) {
    return (uint16_t *)at_address(place_of(p, t.data) + (uint64_t)row * t.stride * sizeof(float));
}
static inline float *full(const struct device_program *p, struct tensor t, uint32_t row) {
    return (float *)at_address(place_of(p, t.data) + (uint64_t)row * t.stride * sizeof(float));
}

static inline const void *of_batch(const struct device_program *p, size_t offset) {
    return at_address(p->batch.device + offset);
}

static inline bool failed(struct device_program *p, weir_status st) {
    if (st)
        p->status = st;
    return p->status != WEIR_OK;
}

/* A vector of the model or of the list; NULL stays NULL. */
static inline const float *vector(struct device_program *p, const float *host, size_t n) {
    if (!host)
        return NULL;
    uint64_t at = device_find(&p->memory, host, DEVICE_PLAIN);
    if (!at && !failed(p, device_copy_plain(&p->memory, host, n * sizeof *host, p->err)))
        at = device_find(&p->memory, host, DEVICE_PLAIN);
    return at_address(at);
}

static inline const uint16_t *matrix(struct device_program *p, const struct weight *w) {
    enum device_form form = w->packing == PACK_FP8  ? DEVICE_FP8
                            : w->dtype == DTYPE_F32 ? DEVICE_BF16
                                                    : DEVICE_PLAIN;
    uint64_t at = device_find(&p->memory, w->data, form);
    if (!at && !failed(p, device_copy_matrix(&p->memory, w, p->err)))
        at = device_find(&p->memory, w->data, form);
    return at_address(at);
}

#endif
