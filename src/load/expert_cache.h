/* expert_cache.h: routed experts that stay in the checkpoint's files and are read when they are
 * chosen, for models whose experts are larger than memory. It is the `source` of the operations on
 * experts (ops.h).
 *
 * A unit is what one operation reads of one expert: up (w1 and w3) or down (w2). A frame holds one
 * matrix, so an up unit takes two frames and a down unit one, and memory has no gaps. Files are
 * read past the page cache where the file system allows it.
 *
 * A unit is read as it is stored. Where the column wants it laid out anew (ops/pack.h), so that it
 * computes as fast as on weights in memory and gets the same bits, the team does so when it first
 * comes to the unit: from its frames into two that are kept free for that. Frames have one size,
 * the larger of both forms: BF16 experts quantised to 8 bits (--dense-dtype) take as much memory as
 * before. */
#ifndef WEIR_LOAD_EXPERT_CACHE_H
#define WEIR_LOAD_EXPERT_CACHE_H

#include "load/shards.h"
#include "model/model.h"
#include "ops/ops.h"

struct expert_cache;

/* Where one matrix lies: its data, or packed codes with their scales. */
struct expert_home {
    const struct shard_tensor *data, *scale;
};

enum expert_way { EXPERT_AUTO, EXPERT_RING, EXPERT_THREADS };

struct expert_setup {
    uint64_t bytes;      /* for frames */
    uint32_t members;    /* of the team that computes */
    enum expert_way way; /* how files are read; EXPERT_AUTO: io_uring where it works */
    bool guess;          /* read ahead what `op_experts.ahead` names */
    /* Whose layout experts are kept in, and what becomes of BF16 ones; NULL: as stored. */
    const struct column *column;
    enum dense_form dense;
    /* Tests: called when a unit has been read; an errno makes that read a failure. NULL: none. */
    int (*fault)(void *arg, uint32_t layer, enum expert_part part, uint32_t expert);
    void *fault_arg;
};

/* `home` and `shape` are [layers][3: w1 w2 w3][experts] and outlive the cache, as `shards` does.
 * WEIR_BAD_VALUE (expert_cache_bytes): fewer bytes than one up unit needs, packing included, with
 * that number;
 * WEIR_BAD_FILE: a shard cannot be opened; WEIR_NO_MEMORY. */
weir_status expert_cache_open(const char *dir, const struct model *m, const struct shards *shards,
                              const struct expert_home *home, const struct weight *shape,
                              const struct expert_setup *setup, struct expert_cache **out,
                              weir_error *err);
void expert_cache_close(struct expert_cache *c);
const struct expert_source *expert_cache_source(struct expert_cache *c);
/* Refuses the scale byte 255 in any expert, as weight_check_scales, past the page cache. */
weir_status expert_cache_check(struct expert_cache *c, weir_error *err);
/* From here on a look at an expert through the mapping of the shards brings in a page, and not what
 * lies around it. */
void expert_cache_expect_samples(struct expert_cache *c);
/* Lets go of what pages of the experts that mapping has brought into memory. */
void expert_cache_drop_pages(struct expert_cache *c);

void expert_cache_count(struct expert_cache *c, weir_expert_stats *out);

#endif
