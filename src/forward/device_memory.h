/* device_memory.h: memory of a device that lives as long as a program, and what has been copied
 * there, found by its address on this machine. */
#ifndef WEIR_FORWARD_DEVICE_MEMORY_H
#define WEIR_FORWARD_DEVICE_MEMORY_H

#include "ops/gpu/driver.h"
#include "ops/ops.h"

/* How something lies on the device. */
enum device_form {
    DEVICE_PLAIN,   /* as here */
    DEVICE_BF16,    /* f32 here */
    DEVICE_FP8,     /* BF16 here: codes and scales */
    DEVICE_KEYS,    /* the key half of kv_b: per head [latent][nope] */
    DEVICE_EXPERTS, /* w1 and w3, or w2, of all experts of a layer, as ops/gpu/pack.h says */
};

struct device_memory {
    struct gpu_device *device;
    uint64_t *taken;
    size_t n_taken, room_taken;
    uint64_t at, end; /* of the piece that small ones are cut from */
    struct device_upload *upload;
    size_t n_uploads, room_uploads; /* room: a power of two, or 0 */
    uint64_t bytes, copied;         /* taken; and of those, of matrices and vectors */
};

void device_memory_free(struct device_memory *m);
/* 256-byte aligned, with what happens to be there. WEIR_NO_MEMORY. */
weir_status device_take(struct device_memory *m, size_t bytes, uint64_t *address, weir_error *err);

/* Where `host` lies in this form; 0: nowhere. */
uint64_t device_find(const struct device_memory *m, const void *host, enum device_form form);
/* Copies: bytes as they are; a BF16 or f32 matrix as BF16, or as FP8 where it is to be PACK_FP8;
 * the key half of a BF16 kv_b of so many heads; the matrices of n experts, found by the first of
 * `w` (`other`: w3 of theirs, or NULL). */
weir_status device_copy_plain(struct device_memory *m, const void *host, size_t bytes,
                              weir_error *err);
weir_status device_copy_matrix(struct device_memory *m, const struct weight *w, weir_error *err);
weir_status device_copy_keys(struct device_memory *m, const struct op_mla *a, weir_error *err);
weir_status device_copy_experts(struct device_memory *m, const struct weight *w,
                                const struct weight *other, uint32_t n, weir_error *err);

#endif
