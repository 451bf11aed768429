/* copier.h: copies between a device and this machine beside the steps that run there, for threads
 * other than the one that runs them. Each copier has a stream and pinned memory of its own: a piece
 * is on its way while the one before is put into place. */
#ifndef WEIR_OPS_GPU_COPIER_H
#define WEIR_OPS_GPU_COPIER_H

#include "ops/gpu/driver.h"

struct gpu_copier;

weir_status gpu_copier_open(struct gpu_device *d, struct gpu_copier **out, weir_error *err);
void gpu_copier_close(struct gpu_copier *c);
/* Return when the bytes have arrived. Any thread, one at a time for a copier. What a step writes or
 * reads at the moment is the caller's to know. */
weir_status gpu_copier_out(struct gpu_copier *c, void *to, uint64_t from, size_t bytes,
                           weir_error *err);
weir_status gpu_copier_in(struct gpu_copier *c, uint64_t to, const void *from, size_t bytes,
                          weir_error *err);

#endif
