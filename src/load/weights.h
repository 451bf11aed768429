/* weights.h: a checkpoint's weights in memory, found by role. Matrices point into the mapped
 * shards; vectors, convolution taps and other small tensors are widened to f32 copies. */
#ifndef WEIR_LOAD_WEIGHTS_H
#define WEIR_LOAD_WEIGHTS_H

#include "load/expert_cache.h"
#include "model/model.h"
#include "ops/ops.h"

struct weights;

/* Opens DIR: model.safetensors.index.json and the shards it names, or model.safetensors. Checks
 * every tensor of the model's list for presence, dtype, shape and byte range, every header for
 * overlapping or out-of-file ranges and duplicate names, every expert scale for the byte 255. Warns
 * of unknown tensors, skips vision_tower., mm_projector. and rotary_emb. WEIR_BAD_FILE with file,
 * tensor and numbers, or WEIR_NO_MEMORY. */
weir_status weights_open(const char *dir, const struct model *m, struct weights **out,
                         weir_error *err);
/* The same with routed experts that stay in their files and are read when chosen (expert_cache.h),
 * unless `experts` is NULL or the model has none. Besides, what expert_cache_open says. */
weir_status weights_open_reading(const char *dir, const struct model *m,
                                 const struct expert_setup *experts, struct weights **out,
                                 weir_error *err);
void weights_close(struct weights *w);
/* Who reads the experts; NULL: they are mapped. */
const struct expert_source *weights_source(const struct weights *w);
void weights_count_experts(const struct weights *w, weir_expert_stats *out);

/* Gives the matrices of products the layout `column` wants (struct weight: packed), beside the
 * stored form; experts that stay in their files are left alone. BF16 matrices but the router and
 * the head are quantised as `dense` says. Only the first call does anything. Matrices that would
 * not fit into memory stay as they are, with a warning; there is one as well where they would not
 * fit beside `other_bytes`, what pools and caches of this process may grow to. For a column on a
 * device it says which form matrices are to have there, and makes nothing. WEIR_NO_MEMORY. */
weir_status weights_pack(struct weights *w, const struct column *column, enum dense_form dense,
                         uint64_t other_bytes, uint32_t threads, weir_error *err);

/* The weight of a role; layer -1 for whole-model roles. data == NULL where the model has none
 * (A_log keeps its heads only). */
const struct weight *weights_get(const struct weights *w, enum role role, int32_t layer);
/* The layer's experts, model.experts of them, for ROLE_EXPERT_W1, W2 or W3; NULL for a layer
 * without. Shapes without data where a source reads them. */
const struct weight *weights_experts(const struct weights *w, enum role role, uint32_t layer);
/* Names the weights: SHA-256 over every tensor's name, dtype, shape and samples of its bytes
 * (first, middle and last 64). Two checkpoints of one architecture differ, and a copy of one does
 * not. */
enum { WEIGHTS_FINGERPRINT_BYTES = 32 };
void weights_fingerprint(const struct weights *w, uint8_t out[WEIGHTS_FINGERPRINT_BYTES]);
/* Bytes of all weights, as stored. */
uint64_t weights_bytes(const struct weights *w);
/* The same where those that weights_pack has said to be FP8 on a device are. */
uint64_t weights_device_bytes(const struct weights *w);

#endif
