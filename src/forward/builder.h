/* builder.h: what the files of this room share while a step program is being put together. */
#ifndef WEIR_FORWARD_BUILDER_H
#define WEIR_FORWARD_BUILDER_H

#include "base/arena.h"
#include "forward/program.h"

enum { TAP_NAME = 40 };

/* A value that has a name in the golden vectors, ready behind operation `after`. */
struct tap_point {
    uint32_t after;
    char name[TAP_NAME];
    struct tensor tensor;
    struct tensor sum[2]; /* if present: `tensor` is formed as their sum when someone looks */
    bool logit_rows;
};

/* A builder runs twice: first measuring, to count operations and bytes, then placing them. */
struct builder {
    const struct model *m;
    const struct weights *w;
    const struct column *column;
    const struct kv_pool *kv;
    const struct state_pool *state;
    struct step_limits limits;

    bool measuring;
    struct arena *arena;
    size_t bytes;         /* of everything that lives as long as the program */
    unsigned char *layer; /* buffers of one sublayer; the next one takes the same bytes */
    size_t layer_used, layer_most;
    struct op *op;
    uint32_t n_ops;
    struct op discarded; /* what builder_op gives while measuring */
    struct tap_point *tap;
    uint32_t n_taps;

    struct tensor prefix, delta, x, mixed;
    struct tensor *bank;
    uint32_t n_bank;
    bool pending; /* delta holds a sublayer's output that is not in the prefix yet */
    bool replace; /* that output starts the prefix anew: its sublayer stood at a block border */
    struct tensor logits;
    struct sample_result *results;
};

void *builder_take(struct builder *b, size_t bytes); /* lives as long as the program */
struct tensor builder_keep(struct builder *b, uint32_t rows, uint32_t cols);
/* A step buffer of the current sublayer, limits.rows rows (times `each`). */
struct tensor builder_buffer(struct builder *b, uint32_t each, uint32_t cols);
struct tensor builder_rows(struct builder *b, size_t rows, uint32_t cols); /* likewise */
void *builder_layer_bytes(struct builder *b, size_t bytes);
void builder_begin_sublayer(struct builder *b);

/* The next record of the list, zeroed. */
struct op *builder_op(struct builder *b, enum op_kind kind, int32_t layer);
/* Names what `t` holds behind the newest operation; format takes the layer. */
void builder_tap(struct builder *b, struct tensor t, const char *format, int32_t layer);

/* The vector behind a role as f32, NULL where the model has none. */
const float *builder_vector(const struct builder *b, enum role role, int32_t layer);
/* Adds y = W x to a merged product and gives y. */
struct tensor builder_product(struct op *op, const struct weight *w, struct tensor x,
                              struct tensor y);

/* Takes what is pending into the prefix, mixes it with the bank, norms the mixture into `out`;
 * banks the prefix if `push`. `gather`: for the logits rows alone. */
void build_mix_norm(struct builder *b, int32_t layer, enum role norm, enum role res_norm,
                    enum role res_proj, bool push, bool gather, struct tensor out);

/* Each reads the normed mixture b->x and leaves the sublayer's output in b->delta. */
void build_kda(struct builder *b, uint32_t layer);
void build_mla(struct builder *b, uint32_t layer);
void build_ffn(struct builder *b, uint32_t layer);

#endif
