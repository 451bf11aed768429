/* memory.h: bytes that sequences take on each rank, and what a host may lend. Everything follows
 * from the model's description. Bytes, tokens; GB are 1e9 bytes, MiB 2^20. */
#ifndef WEIR_PLAN_MEMORY_H
#define WEIR_PLAN_MEMORY_H

#include "model/model.h"

/* MLA history of `tokens` on the rank that holds most of it. Tensor parallelism replicates it; a
 * decode-context group of `dcp` ranks deals its tokens out one by one. */
uint64_t memory_mla_bytes(const struct model *m, uint64_t tokens, uint32_t value_bytes,
                          uint32_t dcp);

/* State of all KDA layers at one position, on one rank of `tp`. */
struct memory_state {
    uint64_t recurrent; /* float32 */
    uint64_t conv;      /* inputs that the convolutions look back on, and those of drafts that may
                           yet be rejected */
};
/* conv_value_bytes: of a convolution's input. heads must divide by tp. */
struct memory_state memory_kda_state(const struct model *m, uint32_t tp, uint32_t drafts,
                                     uint32_t conv_value_bytes);
/* Tokens of MLA history (dcp 1) that fit into so many bytes. */
uint64_t memory_mla_tokens(const struct model *m, uint64_t bytes, uint32_t value_bytes);

/* Where a sequence resumes whose first `mla` tokens are there, with states at `state` (any order):
 * the last state not behind them, 0 without one. What lies between is computed again. */
uint64_t memory_resume(uint64_t mla, const uint64_t *state, size_t n);

/* Bytes a rank saves where the projection from the latent width back to the hidden one is cut by
 * output row over `tp` ranks and not held whole by each. */
uint64_t memory_latent_trim_bytes(const struct model *m, uint32_t tp, uint32_t value_bytes);

struct memory_host {
    uint64_t total_gb; /* of the instance, whole */
    double per_gpu_gb;
};
/* A share of what the host has, at most `cap_mib` of it, for tp of its GPUs. */
struct memory_host memory_host_budget(uint64_t available_mib, uint64_t cap_mib, double share,
                                      uint32_t tp, uint32_t gpus_in_node);

#endif
