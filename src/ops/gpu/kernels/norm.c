/* norm.c: RMS norms, and the attention-residual mixture with the norm behind it. */
#include "ops/gpu/kernels/rows.h"
#include "ops/gpu/records.h"

enum { NORM_THREADS = 256, NORM_CHUNKS = GPU_ROW_MOST / NORM_THREADS / 8 };

GPU_KERNEL(weir_norm, gpu_norm, NORM_THREADS, 2) {
    GPU_SHARED(struct gpu_norm_shared, s);
    const float *x = a.x + (uint64_t)gpu_block_x() * a.x_stride;
    uint16_t *y = a.y + (uint64_t)gpu_block_x() * a.y_stride;
    float v[NORM_CHUNKS][8], square = 0;
    gpu_wait_previous();
    gpu_launch_next();
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++) {
        uint32_t at = (j * NORM_THREADS + gpu_thread()) * 8;
        widen_f32x4(v[j], load_f32x4(x, at, a.cols));
        widen_f32x4(v[j] + 4, load_f32x4(x, at + 4, a.cols));
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            square += v[j][e] * v[j][e];
    }
    float inv = gpu_rsqrt(gpu_block_sum(square, s->sum) / (float)a.cols + a.eps);
    GPU_UNROLL
    for (uint32_t j = 0; j < NORM_CHUNKS; j++) {
        uint32_t at = (j * NORM_THREADS + gpu_thread()) * 8;
        float w[8];
        widen_f32x4(w, load_f32x4(a.norm, at, a.cols));
        widen_f32x4(w + 4, load_f32x4(a.norm, at + 4, a.cols));
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            w[e] *= v[j][e] * inv;
        store_bf16x8(y, at, a.cols, narrow_bf16x8(w));
    }
}

/* ------------------------------------------------------------------------------- mixture
 * A thread has up to MIX_CHUNKS times 8 columns of each source in registers: every source is read
 * once, and all reads of up to 9 sources are on their way before the first is needed. */
enum { MIX_THREADS = 512, MIX_CHUNKS = GPU_ROW_MOST / MIX_THREADS / 8 };

/* Over aligned groups of 16 lanes: lane l gets the sum of t[l % 16]. Halves change hands at every
 * step, so that 16 sums cost 15 shuffles. */
GPU_FN float sum_sixteen(float *t) {
    GPU_UNROLL
    for (uint32_t step = 0; step < 4; step++) {
        const uint32_t m = 8u >> step;
        const bool upper = (gpu_lane() & m) != 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            if (i < m) {
                const float keep = upper ? t[i + m] : t[i], give = upper ? t[i] : t[i + m];
                t[i] = keep + gpu_shuffle_xor(give, m);
            }
    }
    return t[0];
}

/* The sum over waves of one column of their partial sums. */
GPU_FN float over_waves(const float (*part)[2 * GPU_MIX_SOURCES + 2], uint32_t column) {
    float sum = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++)
        sum += part[w][column];
    return sum;
}

GPU_KERNEL(weir_mix_norm, gpu_mix_norm, MIX_THREADS, 1) {
    GPU_SHARED(struct gpu_mix_norm_shared, s);
    const uint32_t lane = gpu_lane(), cols = a.cols, step = gpu_waves() * GPU_WAVE * 8;
    const uint32_t first = gpu_thread() * 8;
    gpu_wait_previous();
    gpu_launch_next();
    const uint64_t row = a.gather ? (uint32_t)a.gather[gpu_block_x()] : gpu_block_x();
    uint16_t *p = a.prefix + row * a.stride;
    const uint16_t *bank = a.bank + row * a.stride;
    struct gpu_u4 sum[MIX_CHUNKS]; /* the prefix, BF16 */
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
        uint32_t at = first + j * step;
        struct gpu_u4 old = load_bf16x8(p, at, cols);
        sum[j] = old;
        if (a.delta) {
            const float *delta = a.delta + row * a.delta_stride;
            float was[8], d[8];
            widen_f32x4(d, load_f32x4(delta, at, cols));
            widen_f32x4(d + 4, load_f32x4(delta, at + 4, cols));
            widen_bf16x8(was, old);
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++)
                d[e] += a.replace ? 0 : was[e];
            sum[j] = narrow_bf16x8(d);
        }
    }
    float mix[MIX_CHUNKS][8], top = 0, total = 0;
    for (uint32_t base = 0; base < a.n_bank; base += GPU_MIX_SOURCES) {
        const uint32_t n = a.n_bank - base < GPU_MIX_SOURCES ? a.n_bank - base : GPU_MIX_SOURCES;
        struct gpu_u4 v[GPU_MIX_SOURCES][MIX_CHUNKS];
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_MIX_SOURCES; i++)
            if (i < n) {
                GPU_UNROLL
                for (uint32_t j = 0; j < MIX_CHUNKS; j++)
                    v[i][j] =
                        load_bf16x8(bank + (base + i) * a.bank_stride, first + j * step, cols);
            }
        float t[2 * GPU_MIX_SOURCES], dot = 0, square = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2 * GPU_MIX_SOURCES; i++)
            t[i] = 0;
        GPU_UNROLL
        for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
            float c[8], f[8];
            widen_f32x4(c, load_f32x4(a.c, first + j * step, cols));
            widen_f32x4(c + 4, load_f32x4(a.c, first + j * step + 4, cols));
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_MIX_SOURCES; i++)
                if (i < n) {
                    widen_bf16x8(f, v[i][j]);
                    GPU_UNROLL
                    for (uint32_t e = 0; e < 8; e++) {
                        t[i] += f[e] * c[e];
                        t[GPU_MIX_SOURCES + i] += f[e] * f[e];
                    }
                }
            widen_bf16x8(f, sum[j]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++) {
                dot += f[e] * c[e];
                square += f[e] * f[e];
            }
        }
        /* Two areas in turn: a fast wave writes the next while a slow one reads this. */
        float(*part)[2 * GPU_MIX_SOURCES + 2] = s->part[base / GPU_MIX_SOURCES % 2];
        float mine = sum_sixteen(t);
        mine += gpu_shuffle_xor(mine, 16);
        if (GPU_WAVE == 64)
            mine += gpu_shuffle_xor(mine, 32);
        dot = gpu_wave_sum(dot);
        square = gpu_wave_sum(square);
        if (lane < 16)
            part[gpu_wave()][lane] = mine;
        if (lane == 16) {
            part[gpu_wave()][16] = dot;
            part[gpu_wave()][17] = square;
        }
        gpu_barrier();
        /* Every wave for itself: lane i has the score of entry i, lane 8 that of the prefix, which
         * counts once, with the first entries. */
        const bool with_prefix = base == 0;
        float score = -GPU_INFINITY;
        if (lane < n || (lane == GPU_MIX_SOURCES && with_prefix)) {
            uint32_t of = lane == GPU_MIX_SOURCES ? 16 : lane;
            float d = over_waves(part, of), q = over_waves(part, of == 16 ? 17 : of + 8);
            score = d * gpu_rsqrt(q / (float)cols + a.eps);
        }
        float best = gpu_wave_max(score);
        float highest = with_prefix || best > top ? best : top;
        float weight = gpu_exp(score - highest);
        float before = with_prefix ? 0 : gpu_exp(top - highest);
        top = highest;
        total = total * before + gpu_wave_sum(weight);
        float w_prefix = gpu_shuffle(weight, GPU_MIX_SOURCES);
        GPU_UNROLL
        for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
            float f[8];
            widen_bf16x8(f, sum[j]);
            GPU_UNROLL
            for (uint32_t e = 0; e < 8; e++)
                mix[j][e] = with_prefix ? w_prefix * f[e] : mix[j][e] * before;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < GPU_MIX_SOURCES; i++)
            if (i < n) {
                float w = gpu_shuffle(weight, i);
                GPU_UNROLL
                for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
                    float f[8];
                    widen_bf16x8(f, v[i][j]);
                    GPU_UNROLL
                    for (uint32_t e = 0; e < 8; e++)
                        mix[j][e] += w * f[e];
                }
            }
    }
    float scale = a.n_bank ? gpu_rcp(total) : 1, square = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
        if (!a.n_bank)
            widen_bf16x8(mix[j], sum[j]);
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++) {
            mix[j][e] *= scale;
            square += mix[j][e] * mix[j][e];
        }
        if (a.delta && !a.gather)
            store_bf16x8(p, first + j * step, cols, sum[j]);
        /* The prefix as it was before this sublayer: the mixture would leak this layer's own
         * weights into every later mix. */
        if (a.push)
            store_bf16x8(a.bank + a.n_bank * a.bank_stride + row * a.stride, first + j * step, cols,
                         sum[j]);
    }
    float inv = gpu_rsqrt(gpu_block_sum(square, s->square) / (float)cols + a.eps);
    GPU_UNROLL
    for (uint32_t j = 0; j < MIX_CHUNKS; j++) {
        float w[8];
        widen_f32x4(w, load_f32x4(a.norm, first + j * step, cols));
        widen_f32x4(w + 4, load_f32x4(a.norm, first + j * step + 4, cols));
        GPU_UNROLL
        for (uint32_t e = 0; e < 8; e++)
            w[e] *= mix[j][e] * inv;
        store_bf16x8(a.out + (uint64_t)gpu_block_x() * a.out_stride, first + j * step, cols,
                     narrow_bf16x8(w));
    }
}
