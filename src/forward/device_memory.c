/* device_memory.c: see device_memory.h. Small pieces are cut from large ones: drivers round every
 * piece up, and a model has thousands of vectors. */
#include "forward/device_memory.h"

#include "base/dtype.h"
#include "base/error.h"
#include "ops/gpu/pack.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)32 << 20)

struct device_upload {
    const void *host;
    enum device_form form;
    uint64_t address; /* 0: an empty place of the table */
};

void device_memory_free(struct device_memory *m) {
    for (size_t i = 0; i < m->n_taken; i++)
        gpu_memory_free(m->device, m->taken[i]);
    free(m->taken);
    free(m->upload);
}

static weir_status take_piece(struct device_memory *m, size_t bytes, uint64_t *address,
                              weir_error *err) {
    if (m->n_taken == m->room_taken) {
        size_t room = m->room_taken ? 2 * m->room_taken : 64;
        uint64_t *more = realloc(m->taken, room * sizeof *more);
        if (!more)
            return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for its table");
        m->taken = more;
        m->room_taken = room;
    }
    weir_status st = gpu_memory_take(m->device, bytes, address, err);
    if (st)
        return st;
    m->taken[m->n_taken++] = *address;
    m->bytes += bytes;
    return WEIR_OK;
}

weir_status device_take(struct device_memory *m, size_t bytes, uint64_t *address, weir_error *err) {
    bytes = (bytes + 255) & ~(size_t)255;
    if (bytes > CHUNK / 8)
        return take_piece(m, bytes, address, err);
    if (m->end - m->at < bytes) {
        weir_status st = take_piece(m, CHUNK, &m->at, err);
        if (st) {
            m->at = m->end = 0;
            return st;
        }
        m->end = m->at + CHUNK;
    }
    *address = m->at;
    m->at += bytes;
    return WEIR_OK;
}

/* Where the entry is, or the empty place where it would be. */
static struct device_upload *slot_of(const struct device_memory *m, const void *host,
                                     enum device_form form) {
    uint64_t hash = ((uint64_t)(uintptr_t)host + (uint64_t)form) * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 20) & (m->room_uploads - 1);
    while (m->upload[at].address && (m->upload[at].host != host || m->upload[at].form != form))
        at = (at + 1) & (m->room_uploads - 1);
    return &m->upload[at];
}

uint64_t device_find(const struct device_memory *m, const void *host, enum device_form form) {
    return m->room_uploads ? slot_of(m, host, form)->address : 0;
}

static weir_status grow_table(struct device_memory *m, weir_error *err) {
    struct device_memory larger = *m;
    larger.room_uploads = m->room_uploads ? 2 * m->room_uploads : 1024;
    larger.upload = calloc(larger.room_uploads, sizeof *larger.upload);
    if (!larger.upload)
        return weir_fail(err, WEIR_NO_MEMORY, "device", "no memory for its table");
    for (size_t i = 0; i < m->room_uploads; i++)
        if (m->upload[i].address)
            *slot_of(&larger, m->upload[i].host, m->upload[i].form) = m->upload[i];
    free(m->upload);
    *m = larger;
    return WEIR_OK;
}

/* Takes device memory for `host` in this form and enters it into the table. */
static weir_status enter(struct device_memory *m, const void *host, enum device_form form,
                         size_t bytes, uint64_t *address, weir_error *err) {
    weir_status st = WEIR_OK;
    if (2 * m->n_uploads >= m->room_uploads)
        st = grow_table(m, err);
    if (!st)
        st = device_take(m, bytes, address, err);
    if (st)
        return st;
    *slot_of(m, host, form) = (struct device_upload){host, form, *address};
    m->n_uploads++;
    m->copied += bytes;
    return WEIR_OK;
}

weir_status device_copy_plain(struct device_memory *m, const void *host, size_t bytes,
                              weir_error *err) {
    uint64_t address;
    weir_status st = enter(m, host, DEVICE_PLAIN, bytes, &address, err);
    return st ? st : gpu_copy_in(m->device, address, host, bytes, err);
}

/* Copies what was made anew here and gives it back. */
static weir_status copy_made(struct device_memory *m, uint64_t address, void *made, size_t bytes,
                             weir_error *err) {
    weir_status st = gpu_copy_in(m->device, address, made, bytes, err);
    if (!st)
        st = gpu_wait(m->device, err); /* the copy may still be reading */
    free(made);
    return st;
}

static weir_status copy_fp8(struct device_memory *m, const struct weight *w, weir_error *err) {
    const size_t bytes = gpu_pack_fp8_bytes(w);
    uint64_t address;
    weir_status st = enter(m, w->data, DEVICE_FP8, bytes, &address, err);
    if (st)
        return st;
    uint8_t *made = malloc(bytes);
    if (!made)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for a matrix");
    gpu_pack_fp8(made, w);
    return copy_made(m, address, made, bytes, err);
}

weir_status device_copy_matrix(struct device_memory *m, const struct weight *w, weir_error *err) {
    size_t n = (size_t)w->rows * w->cols;
    if (w->packing == PACK_FP8)
        return copy_fp8(m, w, err);
    if (w->dtype == DTYPE_BF16)
        return device_copy_plain(m, w->data, n * 2, err);
    if (w->dtype != DTYPE_F32)
        return weir_fail(err, WEIR_UNSUPPORTED, "weights",
                         "a matrix of %" PRIu32 " x %" PRIu32
                         " is stored neither as bf16 nor as f32, which is what devices take",
                         w->rows, w->cols);
    uint64_t address;
    weir_status st = enter(m, w->data, DEVICE_BF16, n * 2, &address, err);
    if (st)
        return st;
    uint16_t *made = malloc(n * sizeof *made);
    if (!made)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for a matrix");
    for (size_t i = 0; i < n; i++)
        made[i] = f32_to_bf16(((const float *)w->data)[i]);
    return copy_made(m, address, made, n * sizeof *made, err);
}

weir_status device_copy_keys(struct device_memory *m, const struct op_mla *a, weir_error *err) {
    const uint32_t latent = a->kv_lora, nope = a->nope_dim;
    if (a->kv_b.dtype != DTYPE_BF16)
        return weir_fail(err, WEIR_UNSUPPORTED, "weights",
                         "kv_b is not stored as bf16, which is what devices take");
    size_t n = (size_t)a->heads * latent * nope;
    uint64_t address;
    weir_status st = enter(m, a->kv_b.data, DEVICE_KEYS, n * 2, &address, err);
    if (st)
        return st;
    uint16_t *made = malloc(n * sizeof *made);
    if (!made)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for a matrix");
    const uint16_t *kv_b = a->kv_b.data;
    for (uint32_t h = 0; h < a->heads; h++)
        for (uint32_t c = 0; c < latent; c++)
            for (uint32_t d = 0; d < nope; d++)
                made[((size_t)h * latent + c) * nope + d] =
                    kv_b[((size_t)h * (nope + a->v_dim) + d) * latent + c];
    return copy_made(m, address, made, n * sizeof *made, err);
}

weir_status device_copy_experts(struct device_memory *m, const struct weight *w,
                                const struct weight *other, uint32_t n, weir_error *err) {
    if (w->dtype != DTYPE_MXFP4 && w->dtype != DTYPE_BF16)
        return weir_fail(err, WEIR_UNSUPPORTED, "weights",
                         "experts are stored neither as mxfp4 nor as bf16, which is what devices "
                         "take");
    if (w->packing != PACK_NONE)
        return weir_fail(err, WEIR_UNSUPPORTED, "dense_dtype",
                         "is fp8, and experts of %" PRIu32 " x %" PRIu32
                         " are stored as bf16: no kernel of a device takes those as fp8",
                         w->rows, w->cols);
    const size_t bytes = gpu_pack_bytes(w, other != NULL);
    uint64_t address;
    weir_status st = enter(m, w[0].data, DEVICE_EXPERTS, n * bytes, &address, err);
    if (st)
        return st;
    uint8_t *made = malloc(bytes);
    if (!made)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for an expert");
    for (uint32_t e = 0; e < n && !st; e++) {
        gpu_pack(made, &w[e], other ? &other[e] : NULL);
        st = gpu_copy_in(m->device, address + e * bytes, made, bytes, err);
        if (!st)
            st = gpu_wait(m->device, err); /* the copy may still be reading */
    }
    free(made);
    return st;
}
