/* device.h: a step program on a GPU. The list of operations is the same as on this machine; each
 * becomes one or a few launches of kernels (ops/gpu), decided anew for every batch, or once for all
 * batches of single tokens of one size, which then are a graph.
 *
 * Addresses. The list's step buffers are addresses of this machine, of which only the distances
 * count: device memory of the same size takes their place. What products read lies there as BF16,
 * what they write as f32 or, where only products or other takers of BF16 read it, as BF16; a row
 * begins where its f32 row would. Matrices and vectors are copied once, when the program is opened.
 * The pools' addresses are the device's already. */
#ifndef WEIR_FORWARD_DEVICE_H
#define WEIR_FORWARD_DEVICE_H

#include "forward/program.h"
#include "ops/gpu/driver.h"

struct device_program;

struct device_setup {
    struct gpu_device *device; /* with its kernels loaded; outlives the program */
    const struct op *ops;      /* built for column_gpu; outlive the program */
    uint32_t n_ops;
    const void *buffers; /* the piece of memory that all step buffers lie in */
    size_t buffers_bytes;
    struct step_limits limits;
};

/* Copies weights and takes buffers. WEIR_UNSUPPORTED: an operation's shape that no kernel takes
 * (named); WEIR_NO_MEMORY; what the driver says. */
weir_status device_program_open(const struct device_setup *s, struct device_program **out,
                                weir_error *err);
void device_program_close(struct device_program *p);

/* Runs a batch. Tokens that the device draws (device_draw.h) go into `a->results` and their
 * sequences' states, the logits of all other rows into `a->logits`: those are `left` to this
 * machine, n_left of them. On failure the results are worth nothing. */
struct device_left {
    const uint32_t *rows; /* of the logits, rising; valid until the next run */
    uint32_t n;
};
weir_status device_program_run(struct device_program *p, const struct batch *b,
                               const struct op_sample *a, struct device_left *left,
                               weir_error *err);

/* For benches. `watch`: a batch that is run goes operation by operation, each behind the end of the
 * one before, and what a router chose is brought to where it lies on this machine and kept for
 * timings; NULL: off. */
void device_program_watch(struct device_program *p, program_watch *watch, void *arg);
/* Microseconds of a batch from `launches` launches of its graph in a row, without the operations i
 * that left_out[i] says (NULL: with all). What comes out is worth nothing then, but which experts a
 * step reads must not depend on that: with `kept`, the choices of the last watched batch take the
 * place of every router's. States and histories go on changing. */
struct device_timing {
    const bool *left_out;
    bool kept;
    uint32_t launches;
};
weir_status device_program_time(struct device_program *p, const struct batch *b,
                                struct device_timing t, double *us, weir_error *err);

/* What has been done since the opening, for tests and metrics. */
struct device_counts {
    uint64_t launches, graphs, graph_launches;
    uint64_t drawn, brought; /* rows of logits whose token came, and those that came themselves */
    uint64_t bytes, weights; /* device memory taken, and what weights are of it */
};
struct device_counts device_program_counts(const struct device_program *p);
/* The same of a program that was moved to a device. */
struct device_counts program_device_counts(const struct step_program *p);

#endif
