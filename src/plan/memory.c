/* memory.c: sizes of histories, states and host budgets. Called by plans and the simulator. */
#include "plan/memory.h"

#include <math.h>

/* Values of one token in one layer: the latent, and the part that carries positions. */
static uint64_t mla_values(const struct model *m) {
    return (uint64_t)model_mla_layers(m) * (m->kv_lora + m->rope_dim);
}

uint64_t memory_mla_bytes(const struct model *m, uint64_t tokens, uint32_t value_bytes,
                          uint32_t dcp) {
    uint64_t most = (tokens + dcp - 1) / dcp;
    return most * mla_values(m) * value_bytes;
}

uint64_t memory_mla_tokens(const struct model *m, uint64_t bytes, uint32_t value_bytes) {
    return bytes / (mla_values(m) * value_bytes);
}

struct memory_state memory_kda_state(const struct model *m, uint32_t tp, uint32_t drafts,
                                     uint32_t conv_value_bytes) {
    uint64_t width = (uint64_t)model_kda_layers(m) * (m->kda_heads / tp) * m->kda_dim;
    return (struct memory_state){
        .recurrent = width * m->kda_dim * 4,
        /* of queries, keys and values */
        .conv = width * 3 * (m->conv_taps - 1 + drafts) * conv_value_bytes,
    };
}

uint64_t memory_resume(uint64_t mla, const uint64_t *state, size_t n) {
    uint64_t best = 0;
    for (size_t i = 0; i < n; i++)
        if (state[i] <= mla && state[i] > best)
            best = state[i];
    return best;
}

uint64_t memory_latent_trim_bytes(const struct model *m, uint32_t tp, uint32_t value_bytes) {
    uint64_t layers = 0;
    for (uint32_t i = 0; m->latent && i < m->layers; i++)
        layers += model_is_moe(m, i);
    uint64_t rows = m->hidden - m->hidden / tp; /* those of the other ranks */
    return layers * rows * m->latent * value_bytes;
}

struct memory_host memory_host_budget(uint64_t available_mib, uint64_t cap_mib, double share,
                                      uint32_t tp, uint32_t gpus_in_node) {
    double mib = (double)(available_mib < cap_mib ? available_mib : cap_mib);
    double gb = mib * 1048576 * share * ((double)tp / gpus_in_node) / 1e9;
    struct memory_host h = {.total_gb = (uint64_t)floor(gb)};
    h.per_gpu_gb = (double)h.total_gb / tp;
    return h;
}
