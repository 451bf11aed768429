/* combine.c: the weighted sum over a row's experts, with or without a norm behind it. A thread asks
 * for its columns of several choices before it adds the first. */
#include "ops/gpu/kernels/row_sums.h"
#include "ops/gpu/records.h"

enum { COMBINE_THREADS = 512, COMBINE_CHUNKS = GPU_ROW_MOST / COMBINE_THREADS / 4 };

/* Four columns from `at` on. */
GPU_FN void put_four(const struct gpu_combine *a, uint64_t row, uint32_t at, const float *f) {
    if (a->out32 && at + 4 <= a->cols) {
        gpu_store16(a->out32 + row * a->out_stride + at, f32x4(f));
    } else if (!a->out32 && at + 4 <= a->cols) {
        uint32_t *to = (uint32_t *)(void *)(a->out + row * a->out_stride + at);
        to[0] = gpu_bf16_pair(f[0], f[1]);
        to[1] = gpu_bf16_pair(f[2], f[3]);
    } else {
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            if (at + e < a->cols && a->out32)
                a->out32[row * a->out_stride + at + e] = f[e];
            else if (at + e < a->cols)
                a->out[row * a->out_stride + at + e] = gpu_to_bf16(f[e]);
    }
}

/* `chunks` times four columns a thread, so many choices at a time. */
GPU_FN void combine(const struct gpu_combine *a, struct gpu_norm_shared *s, const uint32_t chunks,
                    const uint32_t batch) {
    const uint32_t members = gpu_cluster_blocks(), threads = gpu_waves() * GPU_WAVE;
    const uint32_t first = (gpu_cluster_rank() * threads + gpu_thread()) * 4;
    const uint32_t step = members * threads * 4, cols = a->cols;
    float v[COMBINE_CHUNKS][4], norm[COMBINE_CHUNKS][4], square = 0;
    members_begin();
    GPU_UNROLL
    for (uint32_t i = 0; i < chunks; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            v[i][e] = 0;
            norm[i][e] = 1;
        }
        if (a->norm)
            widen_f32x4(norm[i], load_f32x4(a->norm, first + i * step, cols));
    }
    gpu_wait_previous();
    gpu_launch_next();
    const uint64_t row = gpu_block_x() / members;
    const float *each = a->each + row * a->top_k * a->each_stride;
    const float *weights = a->weights + row * a->top_k;
    for (uint32_t base = 0; base < a->top_k; base += batch) {
        struct gpu_u4 f[GPU_COMBINE_BATCH][COMBINE_CHUNKS];
        float w[GPU_COMBINE_BATCH];
        GPU_UNROLL
        for (uint32_t j = 0; j < batch; j++)
            w[j] = base + j < a->top_k ? weights[base + j] : 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < chunks; i++) {
            const uint32_t at = first + i * step;
            const float *from = each + (uint64_t)base * a->each_stride;
            GPU_UNROLL
            for (uint32_t j = 0; j < batch; j++) {
                const struct gpu_u4 none = {0, 0, 0, 0};
                f[j][i] = none;
            }
            if (at + 4 <= cols) {
                GPU_UNROLL
                for (uint32_t j = 0; j < batch; j++)
                    if (base + j < a->top_k)
                        f[j][i] = gpu_load16_stream(from + j * (uint64_t)a->each_stride + at);
            } else if (at < cols) {
                GPU_UNROLL
                for (uint32_t j = 0; j < batch; j++)
                    if (base + j < a->top_k)
                        f[j][i] = load_f32x4(from + j * (uint64_t)a->each_stride, at, cols);
            }
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < batch; j++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < chunks; i++) {
                float x[4];
                widen_f32x4(x, f[j][i]);
                GPU_UNROLL
                for (uint32_t e = 0; e < 4; e++)
                    v[i][e] += w[j] * x[e];
            }
        }
    }
    members_there();
    float inv = 1;
    if (a->norm) {
        GPU_UNROLL
        for (uint32_t i = 0; i < chunks; i++) {
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                square += v[i][e] * v[i][e];
        }
        inv = gpu_rsqrt(sum_of_members(square, s->sum) / (float)cols + a->eps);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < chunks; i++) {
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            v[i][e] *= inv * norm[i][e];
        put_four(a, row, first + i * step, v[i]);
    }
}
GPU_KERNEL(weir_combine, gpu_combine, COMBINE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    combine(&a, s, 4, 4);
}
GPU_KERNEL(weir_combine_2, gpu_combine, COMBINE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    combine(&a, s, 2, 8);
}
GPU_KERNEL(weir_combine_1, gpu_combine, COMBINE_THREADS, 1) {
    GPU_SHARED(struct gpu_norm_shared, s);
    combine(&a, s, 1, 16);
}
