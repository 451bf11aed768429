/* elements.c: what goes element by element: looking up embeddings, gated activation, copying, codes
 * becoming numbers. */
#include "ops/gpu/kernels/codes.h"
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { ELEMENT_THREADS = 256 };

GPU_KERNEL(weir_embed, gpu_embed, ELEMENT_THREADS, 1) {
    gpu_wait_previous();
    gpu_launch_next();
    const int32_t id = a.ids[gpu_block_x()];
    const uint16_t *row = a.w + (uint64_t)(id < 0 ? 0u : (uint32_t)id) * a.cols;
    uint16_t *out = a.out + (uint64_t)gpu_block_x() * a.stride;
    const struct gpu_u4 none = {0, 0, 0, 0};
    for (uint32_t at = gpu_thread() * 8; at < a.cols; at += ELEMENT_THREADS * 8)
        gpu_store16(out + at, id < 0 ? none : gpu_load16_stream(row + at));
}

GPU_KERNEL(weir_glu, gpu_glu, ELEMENT_THREADS, 1) {
    gpu_wait_previous();
    gpu_launch_next();
    const uint32_t at = (gpu_block_x() * ELEMENT_THREADS + gpu_thread()) * 8;
    const uint64_t row = gpu_block_y();
    if (at >= a.cols)
        return;
    float gate[8], up[8];
    widen_bf16x8(gate, load_bf16x8(a.gate + row * a.gate_stride, at, a.cols));
    widen_bf16x8(up, load_bf16x8(a.up + row * a.up_stride, at, a.cols));
    GPU_UNROLL
    for (uint32_t e = 0; e < 8; e++)
        gate[e] = glu_of(a.situ, a.beta, a.linear_beta, gate[e], up[e]);
    store_bf16x8(a.y + row * a.y_stride, at, a.cols, narrow_bf16x8(gate));
}

/* Four loads in flight a thread, as far apart as neighbours' loads lie side by side. */
GPU_KERNEL(weir_copy, gpu_copy, ELEMENT_THREADS, 1) {
    enum { EACH = 4 };
    const uint64_t first = (uint64_t)gpu_block_x() * EACH * ELEMENT_THREADS + gpu_thread();
    struct gpu_u4 v[EACH];
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++)
        if (first + i * ELEMENT_THREADS < a.pieces)
            v[i] = gpu_load16_stream((const unsigned char *)a.from +
                                     (first + i * ELEMENT_THREADS) * 16);
    GPU_UNROLL
    for (uint32_t i = 0; i < EACH; i++)
        if (first + i * ELEMENT_THREADS < a.pieces)
            gpu_store16_stream((unsigned char *)a.to + (first + i * ELEMENT_THREADS) * 16, v[i]);
}

/* 16 codes of a row a thread. What `to` held may still be read by the product before. */
GPU_KERNEL(weir_widen, gpu_widen, ELEMENT_THREADS, 1) {
    const uint32_t vectors = GPU_FP8_ROW(a.cols) / 16;
    const uint64_t at = (uint64_t)gpu_block_x() * ELEMENT_THREADS + gpu_thread();
    const uint64_t row = at / vectors;
    const uint32_t col = (uint32_t)(at % vectors) * 16;
    if (row < a.rows) {
        const struct gpu_u4 v = gpu_load16_stream(a.codes + row * GPU_FP8_ROW(a.cols) + col);
        const float scale = a.scales[row * GPU_FP8_SCALES(a.cols) + col / GPU_FP8_SCALED];
        uint16_t *to = a.to + row * a.cols + col;
        gpu_wait_previous();
        gpu_store16(to, numbers_of_codes(v.x, v.y, scale));
        if (col + 8 < a.cols)
            gpu_store16(to + 8, numbers_of_codes(v.z, v.w, scale));
    } else {
        gpu_wait_previous();
    }
    gpu_launch_next();
}
