/* options.h: defaults, and the sizes that follow from options and a model. */
#ifndef WEIR_ENGINE_OPTIONS_H
#define WEIR_ENGINE_OPTIONS_H

#include "base/error.h"

#include <stddef.h>

/* Bytes of one unit of each pool, and the longest context the model knows. */
struct unit_sizes {
    size_t page_bytes, slot_bytes;
    uint32_t max_position;
};

struct engine_sizes {
    uint32_t threads, max_model_len, max_num_seqs, max_num_batched_tokens, max_queue;
    uint32_t pages, slots;
};

/* Resolves every 0 and checks every value. The pools: one state slot for each of max_num_seqs, with
 * prefix caching further ones for states that are kept (max_checkpoints; else half of what is left
 * beside one whole context), the rest of kv_cache_bytes in pages. Without kv_cache_bytes: pages for
 * max_num_seqs at a quarter of the context, at least one full context, all in half of the machine's
 * memory that they may be in (`memory_bytes`; `host_bytes`: of this machine). Without max_num_seqs:
 * 64, or as many as half of the cache holds slots for and as leave room for one whole context and a
 * kept state each. A context that does not fit is refused where max_model_len was given, else
 * shortened. WEIR_BAD_VALUE with the numbers. */
weir_status engine_sizes_plan(const weir_options *o, const struct unit_sizes *unit,
                              uint64_t memory_bytes, uint64_t host_bytes, struct engine_sizes *out,
                              weir_error *err);

#endif
