/* builder.c: places records, buffers and names while a step program is built. Called by the other
 * files of this room. */
#include "forward/builder.h"

#include <string.h>

void *builder_take(struct builder *b, size_t bytes) {
    b->bytes += arena_piece(bytes);
    if (b->measuring)
        return NULL;
    void *p = arena_take(b->arena, bytes);
    WEIR_ASSERT(p); /* the first pass has counted it */
    return p;
}

/* Rows start on 64 bytes, whatever the width. */
static uint32_t row_stride(uint32_t cols) {
    return (cols + 15) & ~15u;
}

struct tensor builder_keep(struct builder *b, uint32_t rows, uint32_t cols) {
    uint32_t stride = row_stride(cols);
    float *data = builder_take(b, (size_t)rows * stride * sizeof(float));
    return (struct tensor){data, cols, stride};
}

void builder_begin_sublayer(struct builder *b) {
    b->layer_used = 0;
}

void *builder_layer_bytes(struct builder *b, size_t bytes) {
    size_t at = b->layer_used;
    b->layer_used += arena_piece(bytes);
    if (b->layer_used > b->layer_most)
        b->layer_most = b->layer_used;
    return b->measuring ? NULL : b->layer + at;
}

struct tensor builder_rows(struct builder *b, size_t rows, uint32_t cols) {
    uint32_t stride = row_stride(cols);
    return (struct tensor){builder_layer_bytes(b, rows * stride * sizeof(float)), cols, stride};
}

struct tensor builder_buffer(struct builder *b, uint32_t each, uint32_t cols) {
    return builder_rows(b, (size_t)b->limits.rows * each, cols);
}

struct op *builder_op(struct builder *b, enum op_kind kind, int32_t layer) {
    struct op *op = b->measuring ? &b->discarded : &b->op[b->n_ops];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->layer = layer;
    b->n_ops++;
    return op;
}

void builder_tap(struct builder *b, struct tensor t, const char *format, int32_t layer) {
    if (!b->measuring) {
        struct tap_point *tap = &b->tap[b->n_taps];
        *tap = (struct tap_point){.after = b->n_ops - 1, .tensor = t};
        int at =
            0; /* the one %d of a format is written by hand: formats stay literals in the callers */
        for (const char *f = format; *f && at < TAP_NAME - 12; f++) {
            if (f[0] == '%' && f[1] == 'd') {
                at += snprintf(tap->name + at, (size_t)(TAP_NAME - at), "%d", (int)layer);
                f++;
            } else {
                tap->name[at++] = *f;
            }
        }
        tap->name[at] = 0;
    }
    b->n_taps++;
}

const float *builder_vector(const struct builder *b, enum role role, int32_t layer) {
    const struct weight *w = weights_get(b->w, role, layer);
    return w ? w->data : NULL;
}

struct tensor builder_product(struct op *op, const struct weight *w, struct tensor x,
                              struct tensor y) {
    struct op_linear *linear = &op->u.linear;
    WEIR_ASSERT(linear->n_parts < OP_LINEAR_PARTS && w->cols == x.cols && w->rows == y.cols);
    linear->part[linear->n_parts++] = (struct linear_part){.w = *w, .x = x, .y = y};
    return y;
}
