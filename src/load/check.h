/* check.h: one weight of the model's list against the tensors of the files. */
#ifndef WEIR_LOAD_CHECK_H
#define WEIR_LOAD_CHECK_H

#include "load/shards.h"
#include "model/model.h"

/* Where a weight lies. MXFP4: `data` is NAME_packed and `scale` NAME_scale. */
struct found_weight {
    const struct shard_tensor *data, *scale;
    enum dtype dtype; /* as this file stores it: F32, BF16 or MXFP4 */
};

/* Finds the weight and checks dtype and shape. `where` is what a missing tensor is blamed on. The
 * tolerances are those of the released files: F32 or BF16 for either, unit dimensions anywhere in a
 * vector or convolution, A_log longer than the heads. */
weir_status weight_find(const struct shards *s, const struct model *m, const struct weight_spec *w,
                        const char *where, struct found_weight *out, weir_error *err);
/* Refuses the scale byte 255, which is NaN, naming tensor, row and columns of the group. */
weir_status weight_check_scales(const struct found_weight *f, const struct weight_spec *w,
                                weir_error *err);
/* The same for the bytes of a scale tensor in memory; `cols` are the weight's. */
weir_status weight_check_scale_bytes(const struct shard_tensor *t, const unsigned char *data,
                                     uint32_t cols, weir_error *err);
/* Whether a tensor of the files belongs to parts that weir leaves out on purpose: vision tower and
 * projector, rotary tables, and layers past the last one (multi-token prediction). */
bool tensor_is_skipped(const struct model *m, const char *name);
/* Sets m->prefix to what the files use: a flattened config.json may come with either. */
void adopt_prefix(const struct shards *s, struct model *m);
/* Calls `visit` for every tensor of the files that the model's list does not name, in order of
 * names; `skipped` as in tensor_is_skipped. WEIR_NO_MEMORY only. */
weir_status each_unlisted_tensor(const struct shards *s, const struct model *m,
                                 void (*visit)(void *arg, const struct shard_tensor *t,
                                               bool skipped),
                                 void *arg, weir_error *err);
/* Small tensors that the loader widens to f32: everything but the matrices. */
bool role_is_widened(enum role role);

#endif
