/* device_linear.c: products on a device. Called by device_ops.c. Kernels take FP8 matrices with few
 * rows of x; for more the matrices of a launch become BF16 first, all of them: their bytes are
 * moved five times over, and the product is that of any others. */
#include "forward/device_values.h"

static struct gpu_linear_part product(struct device_program *p, const struct linear_part *a,
                                      bool wide) {
    struct gpu_linear_part r = {
        .w = matrix(p, &a->w),
        .x = half(p, a->x, 0),
        .rows = a->w.rows,
        .cols = a->w.cols,
        .x_stride = a->x.stride * 2,
        .add = a->add,
        .fp8 = a->w.packing == PACK_FP8,
    };
    if (wide)
        r.y = full(p, a->y, 0);
    else
        r.y16 = half(p, a->y, 0);
    r.y_stride = wide ? a->y.stride : a->y.stride * 2;
    if (a->w2.data) {
        r.w2 = matrix(p, &a->w2);
        r.x2 = half(p, a->x2, 0);
        r.cols2 = a->w2.cols;
        r.x2_stride = a->x2.stride * 2;
        r.fp8_2 = a->w2.packing == PACK_FP8;
    }
    return r;
}

/* Bytes of what becomes BF16 for operation i. */
static size_t widened_bytes(const struct op *op) {
    size_t all = 0;
    for (uint32_t k = 0; op->kind == OP_LINEAR && k < op->u.linear.n_parts; k++) {
        const struct linear_part *a = &op->u.linear.part[k];
        if (a->w.packing == PACK_FP8)
            all +=
                a->w.rows * (size_t)(a->w.cols + (a->w2.data ? a->w2.cols : 0)) * sizeof(uint16_t);
    }
    return all;
}

weir_status device_take_widened(struct device_program *p, weir_error *err) {
    size_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const size_t bytes = widened_bytes(&p->ops[i]);
        most = bytes > most ? bytes : most;
    }
    return most && p->limits.rows > GPU_FP8_X_ROWS ? device_take(&p->memory, most, &p->widened, err)
                                                   : WEIR_OK;
}

/* A matrix of FP8 as one of BF16 at `to`. */
static uint16_t *widen(struct device_program *p, const struct op *op, const uint16_t *codes,
                       uint32_t rows, uint32_t cols, uint64_t to) {
    const uint64_t from = (uintptr_t)codes;
    const struct gpu_widen r = {
        .codes = at_address(from),
        .to = at_address(to),
        .scales = at_address(from + (uint64_t)rows * GPU_FP8_ROW(cols)),
        .rows = rows,
        .cols = cols,
    };
    device_launch(p, op, gpu_launch_widen(&r), &r, true);
    return r.to;
}

static void widen_parts(struct device_program *p, const struct op *op, struct gpu_linear *a) {
    uint64_t to = p->widened;
    for (uint32_t k = 0; k < a->n_parts; k++) {
        struct gpu_linear_part *part = &a->part[k];
        if (!part->fp8)
            continue;
        part->w = widen(p, op, part->w, part->rows, part->cols, to);
        to += (uint64_t)part->rows * part->cols * sizeof(uint16_t);
        if (part->w2)
            part->w2 = widen(p, op, part->w2, part->rows, part->cols2, to);
        to += (uint64_t)part->rows * part->cols2 * sizeof(uint16_t);
        part->fp8 = part->fp8_2 = 0;
    }
}

void device_linear(struct device_program *p, uint32_t i, const struct batch *b) {
    const struct op_linear *a = &p->ops[i].u.linear;
    const uint32_t rows = a->logit_rows ? b->n_logits : b->n_rows;
    struct gpu_linear r = {.n_parts = a->n_parts, .x_rows = rows};
    bool fp8 = false;
    if (!rows)
        return;
    for (uint32_t k = 0; k < a->n_parts; k++) {
        r.part[k] = product(p, &a->part[k], p->wide[i] >> k & 1);
        fp8 |= r.part[k].fp8;
    }
    const enum gpu_way way = (enum gpu_way)p->ops[i].variant[row_class_of(rows)];
    const bool many = fp8 && rows > GPU_FP8_X_ROWS;
    if (many)
        widen_parts(p, &p->ops[i], &r);
    /* Not early behind those: a product reads its matrix before it waits for what is in front. */
    device_launch(p, &p->ops[i], gpu_launch_linear_by(&r, p->shape, way), &r, !many);
}
