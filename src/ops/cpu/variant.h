/* variant.h: the ways in which the operations of this folder can be done (struct variant of ops.h).
 * Which of them an operation has in an instruction set is said in column.c.
 * All but three give the default's bits: the sum of one row and activation does not depend on the
 * tile (product_tile.h), nor that of one head on how a history is shared out (mla_decode.c). `dots`
 * adds up in another order than matrix tiles do; `chunks` and `tokens` are the two forms of KDA. */
#ifndef WEIR_OPS_CPU_VARIANT_H
#define WEIR_OPS_CPU_VARIANT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CPU_DEFAULT,
    CPU_FIXED,
    CPU_SINGLE,
    CPU_CHUNK_1,
    CPU_ACTS_2,
    CPU_ACTS_4,
    CPU_ACTS_8,
    CPU_AHEAD_0,
    CPU_AHEAD_2K,
    CPU_AHEAD_16K,
    CPU_DOTS,
    CPU_TASKS_1,
    CPU_TASKS_8,
    CPU_CHUNKS,
    CPU_TOKENS,
    CPU_VARIANTS
};

struct cpu_variant {
    const char *name;
    bool fixed;      /* shares are equal and always the same: work_span, not work_next */
    bool single;     /* products are given out by chunks of rows, never by whole panels */
    bool one_chunk;  /* tiles of one chunk of PANEL_LANES rows, whatever the activations */
    uint32_t acts;   /* activations of a tile at most */
    uint32_t ahead;  /* bytes that a stream of weights is asked for ahead */
    uint32_t tiles;  /* AMX: rows from which on there are matrix tiles */
    uint32_t tasks;  /* of a wave of latent attention, for each member beyond one a row */
    uint32_t chunks; /* KDA: rows of a sequence from which on it goes in chunks */
};

extern const struct cpu_variant cpu_variants[CPU_VARIANTS];

#endif
