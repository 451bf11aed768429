/* device_inside.h: what the files of the device's program share. */
#ifndef WEIR_FORWARD_DEVICE_INSIDE_H
#define WEIR_FORWARD_DEVICE_INSIDE_H

#include "forward/device.h"
#include "forward/device_batch.h"
#include "forward/device_memory.h"

enum { DEVICE_GRAPH_ROWS = 64 }; /* batches of single tokens up to here become graphs */

enum { SEEN_NEVER, SEEN_ONCE, SEEN_TWICE };

/* History as rows, and keys and values of it; sums of rows whose history is longer than there is
 * room for positions, NULL if that cannot be. */
struct device_expanded {
    uint32_t positions; /* a multiple of 64; 0: no kernel takes the heads of this model */
    uint64_t latents, kv, sum, state;
};

struct device_program {
    struct gpu_device *device;
    const struct op *ops;
    uint32_t n_ops;
    uint8_t *wide; /* [n_ops] bit k: what part k of a product (or the experts) writes is f32 */
    uintptr_t buffers;
    size_t buffers_bytes;
    uint64_t device_buffers;
    struct step_limits limits;
    struct gpu_shape shape;
    struct device_memory memory;
    void *kernel[GPU_KERNEL_COUNT];
    uint32_t kernel_shared[GPU_KERNEL_COUNT]; /* what it was found for */
    uint32_t heads;                           /* of latent attention, 0: none */
    uint64_t queries, latents, part, lse;     /* between the kernels of latent attention */
    struct device_expanded expanded;
    uint64_t kda_work;            /* between those of KDA */
    uint64_t widened;             /* FP8 matrices of an operation as BF16, for many rows */
    uint64_t offsets, order;      /* of a layer's choices by expert */
    uint64_t drawn;               /* tokens, [limits.logits] */
    struct gpu_drawn *drawn_here; /* the same on this machine */
    uint32_t *left;               /* rows that it has to draw */
    uint32_t vocab;               /* of rows that tokens are drawn of; 0: of none */
    struct device_batch batch;
    struct gpu_graph *graph[DEVICE_GRAPH_ROWS + 1];
    uint8_t seen[DEVICE_GRAPH_ROWS + 1]; /* how often a size has come up: SEEN_* */
    bool opening;                        /* nothing is launched; what is missing is copied */
    struct device_timing timing;         /* what is left out of the batch at hand */
    uint64_t kept;                       /* choices of every router; 0: nobody has watched yet */
    size_t kept_each;                    /* bytes for one router */
    program_watch *watch;                /* NULL: nobody looks */
    void *watch_arg;
    weir_status status; /* of the batch at hand; the first failure ends it */
    weir_error *err;
    struct device_counts counts;
};

/* Launches unless the batch has failed. */
void device_launch(struct device_program *p, const struct op *op, struct gpu_launch l,
                   const void *record, bool early);
/* Asks for operation i on the batch that p->batch holds. */
void device_enqueue(struct device_program *p, uint32_t i, const struct batch *b);
/* Products. Their memory is taken when the program opens. */
weir_status device_take_widened(struct device_program *p, weir_error *err);
void device_linear(struct device_program *p, uint32_t i, const struct batch *b);
/* Those of latent attention. */
void device_mla_write(struct device_program *p, const struct op *op, const struct batch *b);
void device_mla(struct device_program *p, const struct op *op, const struct batch *b);
/* The record of expanded attention, of a span of one position. */
struct gpu_mla_prefill device_expanded_record(struct device_program *p, const struct op_mla *a);
/* Fills p->wide and p->heads. */
void device_read_list(struct device_program *p);

#endif
