/* inspect.h: what a checkpoint directory holds, by kind of weight, and what a running sequence will
 * need. Works from config.json alone: counts and bytes then follow from the shapes. */
#ifndef WEIR_LOAD_INSPECT_H
#define WEIR_LOAD_INSPECT_H

#include "model/model.h"

#include <jansson.h>

enum inspect_kind {
    INSPECT_EMBEDDING,
    INSPECT_HEAD,
    INSPECT_KDA,
    INSPECT_MLA,
    INSPECT_DENSE,
    INSPECT_SHARED,
    INSPECT_ROUTED,
    INSPECT_ROUTER,
    INSPECT_LATENT,
    INSPECT_NORM, /* norms of the residual stream and the attention residuals */
    INSPECT_VISION,
    INSPECT_KINDS,
};

struct inspect_total {
    uint64_t tensors; /* as stored: an MXFP4 weight is two */
    uint64_t parameters;
    uint64_t bytes;
};

struct inspect_layer {
    bool kda, moe;
    struct inspect_total total;
};

enum { INSPECT_MAX_NAMES = 64 };

/* Names that stand out: how many there are, and the first of them. */
struct inspect_names {
    uint64_t count;
    uint32_t kept;
    char name[INSPECT_MAX_NAMES][200];
};

struct inspect_report {
    char dir[256];
    struct model model;
    bool has_weights;               /* false: all counts follow from config.json */
    uint32_t shards, shards_absent; /* files the index names; of these not in the directory */
    uint64_t stored_bytes;          /* of all tensors in the files */
    uint64_t claimed_bytes;         /* metadata.total_size of the index; 0: none */
    struct inspect_total kind[INSPECT_KINDS], all;
    struct inspect_layer layer[MODEL_MAX_LAYERS];
    uint64_t active_parameters; /* that one token passes through: its top_k experts only, no vision,
                                   one row of the embedding */
    /* of one sequence */
    uint64_t kv_bytes_per_token_f32, kv_bytes_per_token_bf16;
    uint64_t state_recurrent_bytes, state_conv_bytes; /* f32, as weir keeps them */
    /* against the model's list; only with weights */
    struct inspect_names missing; /* tensor names */
    struct inspect_names unfit;   /* sentences: wrong dtype or shape */
    struct inspect_names extra;   /* tensor names */
    uint64_t skipped; /* tensors left out on purpose: rotary tables, prediction layers */
};

/* Reads DIR/config.json and, where there are any, the shards. A missing shard, missing or unfit
 * tensors are part of the report; a file that contradicts itself is WEIR_BAD_FILE, as when loading.
 * The report is freed with free(). */
weir_status inspect_open(const char *dir, struct inspect_report **out, weir_error *err);
/* Whether the checkpoint could be loaded as far as names, dtypes and shapes say. */
bool inspect_complete(const struct inspect_report *r);
const char *inspect_kind_name(enum inspect_kind kind);
void inspect_print(const struct inspect_report *r, FILE *out);
/* NULL without memory. Keys: docs and man page of `weir inspect`. */
json_t *inspect_json(const struct inspect_report *r);

#endif
