/* device_batch.h: what a batch brings from step to step, as kernels read it. Where each array lies
 * depends on how many rows and logits there are and on nothing else: so a graph that was made of
 * one batch serves all of its size. */
#ifndef WEIR_FORWARD_DEVICE_BATCH_H
#define WEIR_FORWARD_DEVICE_BATCH_H

#include "ops/gpu/driver.h"
#include "ops/ops.h"

/* Rows of one launch of latent attention, and of its products. */
enum { DEVICE_ATTENTION_ROWS = GPU_SKINNY_ROWS };

struct device_batch {
    uint64_t device, pages_at; /* addresses there; 0: none yet */
    unsigned char *host;
    int32_t *pages;
    size_t room, room_pages;
    /* of the batch at hand, offsets into both */
    size_t ids, gather, kda, spans, checkpoints, mla, places, draws, used;
    size_t n_pages;
    bool expands; /* there are kernels for expanded history */
};

/* Bytes of all arrays but the pages, for a batch of so many rows and logits. A row may have a
 * checkpoint, or be a sequence. */
size_t device_batch_bytes(uint32_t rows, uint32_t logits);
/* Rows of one launch of absorbed latent attention. */
struct device_absorbed {
    uint32_t seq, end; /* the sequence of the first row; launches stop before sequence `end` */
    uint32_t row, rows;
};
/* Those of the sequences that decode, or of the others; the first launch is that of
 * device_absorbed_next. */
struct device_absorbed device_absorbed_begin(const struct batch *b, bool decode);
/* The next launch, past the sequences that are expanded. False: there is none. */
bool device_absorbed_next(const struct device_batch *d, const struct batch *b,
                          struct device_absorbed *a);
/* Whether the history of sequence s is expanded. */
bool device_expands(const struct device_batch *d, const struct batch *b, uint32_t s);
/* Fills `host` and, as far as there is room, `pages`; n_pages says how many there must be. `heads`
 * of latent attention, 0: none; `vocab` of the rows that tokens may be drawn of, 0: of none. */
void device_batch_fill(struct device_batch *d, const struct batch *b, uint32_t heads,
                       uint32_t vocab, struct gpu_shape shape);

#endif
