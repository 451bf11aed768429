/* step_device.h: what `weir bench step` needs of a GPU: its roof, and the time of a decode step and
 * of each kind of operation in it. */
#ifndef WEIR_BENCH_STEP_DEVICE_H
#define WEIR_BENCH_STEP_DEVICE_H

#include "bench/kernels_roof.h"
#include "forward/runner.h"
#include "ops/gpu/driver.h"

/* Read, modify and copy are all the rate of a copying kernel, bytes read and written, between two
 * buffers of `bytes` (0: a 256th of the memory; 1 GiB at most), or as much less as is to be had.
 * Arithmetic has no peak here. */
weir_status device_roof(struct gpu_device *d, size_t bytes, struct roof *out, weir_error *err);

struct device_step {
    double seconds;        /* of a launch of the step's graph among others of it */
    double kind[OP_COUNT]; /* of operations of a kind in it, by differences between graphs */
};
/* `kinds`: which occur, bit by bit. */
weir_status device_time_step(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                             uint32_t kinds, struct device_step *out, weir_error *err);
/* Seconds of a step without the operations that left_out[i] says (NULL: with all), with the experts
 * that the last watched step chose: one round of so many launches. */
weir_status device_step_seconds(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                                const bool *left_out, uint32_t launches, double *seconds,
                                weir_error *err);

#endif
