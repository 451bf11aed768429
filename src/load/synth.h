/* synth.h: writes a checkpoint of any shape with seeded weights in the original file format:
 * config, index, shards, tokenizer. For speed and memory work on true widths without the true
 * weights. */
#ifndef WEIR_LOAD_SYNTH_H
#define WEIR_LOAD_SYNTH_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct synth_options {
    const char *preset; /* kimi-k3, kimi-linear, mid or tiny */
    const char *out;    /* directory; made if need be, must be empty */
    uint64_t seed;
    uint32_t layers;      /* 0: the preset's */
    uint32_t experts;     /* per MoE layer; 0: the preset's */
    uint32_t vocab;       /* 0: the preset's; at least 512: 256 bytes and 256 special ids */
    uint32_t ranks;       /* heads, feed-forward widths and vocabulary over so many; 0: 1 */
    uint32_t threads;     /* 0: one per core */
    uint64_t shard_bytes; /* largest shard; 0: 4,900,000,000 */
    /* Called now and then from one thread, and once at the end; may be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

struct synth_result {
    uint64_t bytes; /* of all tensors */
    uint32_t shards;
    uint32_t layers, experts, vocab;
};

/* The bytes written depend on everything but `threads`. WEIR_BAD_VALUE names the option,
 * WEIR_UNSUPPORTED a preset that this build does not write, WEIR_BAD_FILE what could not be
 * written. The config.json comes last, so that a directory left by a failure is no checkpoint. */
weir_status synth_write(const struct synth_options *o, struct synth_result *out, weir_error *err);

#endif
