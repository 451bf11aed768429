/* dialect_emu.h: the dialect for the emulator, in plain C. GPU_WAVE comes from the command line;
 * kernels get the suffix _emu32 or _emu64, so that one program holds both. Included by dialect.h
 * alone. */
#ifndef WEIR_OPS_GPU_EMU_DIALECT_EMU_H
#define WEIR_OPS_GPU_EMU_DIALECT_EMU_H

#include "ops/gpu/emu/fiber.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if !defined(GPU_WAVE) || (GPU_WAVE != 32 && GPU_WAVE != 64)
#error "GPU_WAVE must be 32 or 64"
#endif

#define GPU_FN              static inline __attribute__((unused))
#define GPU_NAME_2(NAME, W) NAME##_emu##W
#define GPU_NAME_1(NAME, W) GPU_NAME_2(NAME, W)
#define GPU_KERNEL(NAME, RECORD, THREADS, BLOCKS)                                                  \
    static void NAME##_body(const struct RECORD a);                                                \
    void GPU_NAME_1(NAME, GPU_WAVE)(const void *record);                                           \
    void GPU_NAME_1(NAME, GPU_WAVE)(const void *record) {                                          \
        NAME##_body(*(const struct RECORD *)record);                                               \
    }                                                                                              \
    static void NAME##_body(const struct RECORD a)
#define GPU_SHARED(TYPE, NAME) TYPE *NAME = emu_shared(sizeof(TYPE))
#define GPU_UNROLL
#define GPU_ROLLED
#define gpu_barrier() emu_barrier(__LINE__)

#if GPU_WAVE == 32
typedef uint32_t gpu_mask;
#else
typedef uint64_t gpu_mask;
#endif
struct gpu_u4 {
    uint32_t x, y, z, w;
} __attribute__((aligned(16)));
struct gpu_u2 {
    uint32_t x, y;
} __attribute__((aligned(8)));

GPU_FN uint32_t gpu_thread(void) {
    return emu_here()->thread;
}
GPU_FN uint32_t gpu_lane(void) {
    return gpu_thread() % GPU_WAVE;
}
GPU_FN uint32_t gpu_wave(void) {
    return gpu_thread() / GPU_WAVE;
}
GPU_FN uint32_t gpu_waves(void) {
    return emu_here()->threads / GPU_WAVE;
}
GPU_FN uint32_t gpu_block_x(void) {
    return emu_here()->block_x;
}
GPU_FN uint32_t gpu_block_y(void) {
    return emu_here()->block_y;
}
GPU_FN uint32_t gpu_blocks_x(void) {
    return emu_here()->blocks_x;
}

#define GPU_CLUSTERS          1
#define gpu_cluster_arrive()  emu_cluster_arrive(__LINE__)
#define gpu_cluster_wait()    emu_cluster_wait()
#define gpu_cluster_barrier() (emu_cluster_arrive(__LINE__), emu_cluster_wait())
GPU_FN uint32_t gpu_cluster_rank(void) {
    return emu_here()->rank;
}
GPU_FN uint32_t gpu_cluster_blocks(void) {
    return emu_here()->cluster;
}
GPU_FN void *gpu_shared_of(void *p, uint32_t rank) {
    return emu_shared_of(p, rank, 1);
}
GPU_FN void gpu_cluster_store(float *p, uint32_t rank, float v) {
    memcpy(emu_shared_of(p, rank, sizeof v), &v, sizeof v);
}

GPU_FN float gpu_as_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
GPU_FN uint32_t gpu_as_u32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
GPU_FN float gpu_fma(float a, float b, float c) {
    return fmaf(a, b, c);
}
GPU_FN float gpu_mul(float a, float b) {
    return a * b;
}
GPU_FN float gpu_exp2(float x) {
    return exp2f(x);
}
GPU_FN float gpu_exp2_flush(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}
GPU_FN float gpu_max(float x, float y) {
    return fmaxf(x, y);
}
GPU_FN uint32_t gpu_uniform(uint32_t v) {
    return v;
}
GPU_FN float gpu_log2(float x) {
    return log2f(x);
}
GPU_FN float gpu_rsqrt(float x) {
    return 1.0f / sqrtf(x);
}
GPU_FN float gpu_rcp(float x) {
    return 1.0f / x;
}
GPU_FN float gpu_add(float x, float y) {
    return x + y;
}
GPU_FN uint32_t gpu_bf16_bits(float f) {
    uint32_t u = gpu_as_u32(f);
    return f != f ? u >> 16 | 0x40u : (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
GPU_FN uint32_t gpu_bf16_pair(float lo, float hi) {
    return gpu_bf16_bits(lo) | gpu_bf16_bits(hi) << 16;
}
GPU_FN uint32_t gpu_bf16_mul(uint32_t x, uint32_t y) {
    return gpu_bf16_pair(gpu_as_f32(x << 16) * gpu_as_f32(y << 16),
                         gpu_as_f32(x & 0xFFFF0000u) * gpu_as_f32(y & 0xFFFF0000u));
}
GPU_FN uint32_t gpu_spread_bytes(uint32_t w, bool upper) {
    w = upper ? w >> 16 : w;
    return (w & 0xFFu) << 8 | (w & 0xFF00u) << 16;
}

/* Every collective puts down what this lane gives and takes up what others gave. */
GPU_FN uint32_t gpu_shuffle_u32(uint32_t v, uint32_t lane) {
    const struct emu_gift *all = emu_meet(EMU_SHUFFLE, &v, sizeof v, NULL)->gift;
    memcpy(&v, all[lane % GPU_WAVE].bytes, sizeof v);
    return v;
}
GPU_FN uint32_t gpu_shuffle_xor_u32(uint32_t v, uint32_t mask) {
    return gpu_shuffle_u32(v, gpu_lane() ^ mask);
}
GPU_FN float gpu_shuffle(float v, uint32_t lane) {
    return gpu_as_f32(gpu_shuffle_u32(gpu_as_u32(v), lane));
}
GPU_FN float gpu_shuffle_xor(float v, uint32_t mask) {
    return gpu_shuffle(v, gpu_lane() ^ mask);
}
GPU_FN gpu_mask gpu_ballot(bool yes) {
    const struct emu_gift *all = emu_meet(EMU_BALLOT, &yes, sizeof yes, NULL)->gift;
    gpu_mask mask = 0;
    for (uint32_t i = 0; i < GPU_WAVE; i++)
        mask |= (gpu_mask)(all[i].bytes[0] != 0) << i;
    return mask;
}
GPU_FN void gpu_wave_meet(void) {
    (void)gpu_ballot(true);
}
GPU_FN uint32_t gpu_popcount(gpu_mask m) {
    return (uint32_t)__builtin_popcountll(m);
}
GPU_FN uint32_t gpu_max_u32(uint32_t v) {
    const struct emu_gift *all = emu_meet(EMU_MAX, &v, sizeof v, NULL)->gift;
    for (uint32_t i = 0; i < GPU_WAVE; i++) {
        uint32_t other;
        memcpy(&other, all[i].bytes, sizeof other);
        v = other > v ? other : v;
    }
    return v;
}
GPU_FN uint32_t gpu_min_u32(uint32_t v) {
    return ~gpu_max_u32(~v);
}
/* In the order of a device: pairs, fours, eights, sixteen. */
GPU_FN float gpu_sum16(float v) {
    const struct emu_gift *all = emu_meet(EMU_SUM16, &v, sizeof v, NULL)->gift;
    float part[16];
    for (uint32_t i = 0; i < 16; i++)
        memcpy(&part[i], all[gpu_lane() / 16 * 16 + i].bytes, sizeof v);
    for (uint32_t m = 8; m > 0; m /= 2)
        for (uint32_t i = 0; i < m; i++)
            part[i] += part[i + m];
    return part[0];
}

GPU_FN struct gpu_u4 gpu_load16(const void *p) {
    struct gpu_u4 v;
    emu_check_aligned(p);
    memcpy(&v, p, sizeof v);
    return v;
}
GPU_FN void gpu_store16(void *p, struct gpu_u4 v) {
    emu_check_aligned(p);
    memcpy(p, &v, sizeof v);
}
GPU_FN struct gpu_u2 gpu_load8(const void *p) {
    struct gpu_u2 v;
    emu_check_aligned_8(p);
    memcpy(&v, p, sizeof v);
    return v;
}
GPU_FN void gpu_store8(void *p, uint32_t x, uint32_t y) {
    const uint32_t v[2] = {x, y};
    emu_check_aligned_8(p);
    memcpy(p, v, sizeof v);
}
GPU_FN struct gpu_u4 gpu_load16_stream(const void *p) {
    return gpu_load16(p);
}
GPU_FN void gpu_store16_stream(void *p, struct gpu_u4 v) {
    gpu_store16(p, v);
}
GPU_FN void gpu_copy16(void *shared, const void *global, bool there) {
    emu_copy16(shared, global, there);
}
GPU_FN void gpu_copy_commit(void) {
    emu_copy_commit();
}
#define gpu_copy_wait(N) emu_copy_wait(N)
GPU_FN void gpu_prefetch(const void *p) {}
GPU_FN uint32_t gpu_atomic_add(uint32_t *p, uint32_t n) {
    uint32_t was = *p;
    *p = was + n;
    return was;
}
GPU_FN void gpu_fence(void) {}
GPU_FN void gpu_wait_previous(void) {}
GPU_FN void gpu_launch_next(void) {}

enum {
    GPU_STRIPS = 64 / GPU_WAVE,
    GPU_SUMS = 256 / GPU_WAVE,
    GPU_FEW = GPU_WAVE == 32 ? 8 : 16,
    GPU_FEW_SUMS = 4
};
struct gpu_strips {
    struct gpu_u4 row[GPU_STRIPS];
};
struct gpu_sums {
    float at[GPU_SUMS];
};
struct gpu_mma_gift {
    struct gpu_strips a, b;
};
GPU_FN uint32_t gpu_strip_row(uint32_t i);
GPU_FN uint32_t gpu_strip_k(void);
GPU_FN uint32_t gpu_sum_row(uint32_t i);
GPU_FN uint32_t gpu_sum_col(uint32_t i);

/* The whole product, once for the wave, by whoever came last. */
GPU_FN void gpu_mma_product(struct emu_gathering *g) {
    float A[16][32], B[16][32];
    for (uint32_t lane = 0; lane < GPU_WAVE; lane++) {
        uint32_t row = GPU_WAVE == 32 ? lane / 4 : lane % 16;
        uint32_t k = GPU_WAVE == 32 ? lane % 4 * 8 : lane / 16 * 8;
        for (uint32_t i = 0; i < GPU_STRIPS; i++) {
            uint16_t a[8], b[8];
            struct gpu_mma_gift gift;
            memcpy(&gift, g->gift[lane].bytes, sizeof gift);
            memcpy(a, &gift.a.row[i], sizeof a);
            memcpy(b, &gift.b.row[i], sizeof b);
            for (uint32_t e = 0; e < 8; e++) {
                A[row + 8 * i][k + e] = gpu_as_f32((uint32_t)a[e] << 16);
                B[row + 8 * i][k + e] = gpu_as_f32((uint32_t)b[e] << 16);
            }
        }
    }
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t c = 0; c < 16; c++) {
            float sum = 0;
            for (uint32_t k = 0; k < 32; k++)
                sum += A[r][k] * B[c][k];
            g->sum[r][c] = sum;
        }
}
GPU_FN void gpu_mma16(struct gpu_sums *c, const struct gpu_strips *a, const struct gpu_strips *b) {
    struct gpu_mma_gift gift = {*a, *b};
    const struct emu_gathering *g = emu_meet(EMU_MMA, &gift, sizeof gift, gpu_mma_product);
    for (uint32_t i = 0; i < GPU_SUMS; i++)
        c->at[i] += g->sum[gpu_sum_row(i)][gpu_sum_col(i)];
}
GPU_FN void gpu_mma_few(float *c, const struct gpu_strips *a, struct gpu_u4 b) {
    struct gpu_strips rows;
    struct gpu_sums sums;
    memset(&rows, 0, sizeof rows);
    rows.row[0] = b;
    memset(&sums, 0, sizeof sums);
    gpu_mma16(&sums, a, &rows);
    for (uint32_t i = 0; i < GPU_FEW_SUMS; i++)
        c[i] += sums.at[i];
}
/* Which k element e of a strip from shared memory is: with waves of 32 as ldmatrix deals them out.
 */
GPU_FN uint32_t gpu_shared_k(uint32_t e) {
    return GPU_WAVE == 32 ? e / 2 * 8 + gpu_lane() % 4 * 2 + e % 2 : gpu_strip_k() + e;
}
GPU_FN void gpu_strips_shared(struct gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    emu_meet(EMU_TRANSPOSE, NULL, 0, NULL);
    emu_check_aligned(tile);
    emu_check_aligned(tile + stride);
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        uint16_t strip[8];
        for (uint32_t e = 0; e < 8; e++)
            strip[e] = tile[gpu_strip_row(i) * stride + gpu_shared_k(e)];
        memcpy(&s->row[i], strip, sizeof strip);
    }
}
GPU_FN void gpu_strips_transposed(struct gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    emu_meet(EMU_TRANSPOSE, NULL, 0, NULL);
    emu_check_aligned(tile);
    emu_check_aligned(tile + stride);
    for (uint32_t i = 0; i < GPU_STRIPS; i++) {
        uint16_t strip[8];
        for (uint32_t e = 0; e < 8; e++)
            strip[e] = tile[gpu_shared_k(e) * stride + gpu_strip_row(i)];
        memcpy(&s->row[i], strip, sizeof strip);
    }
}
GPU_FN void gpu_fail(void) {
    abort();
}

/* For both widths, beside products of warpgroups. */
#define gpu_part_barrier(PART, THREADS) emu_part_barrier(PART, THREADS)
#define gpu_more_registers(N)           (void)(N)
#define gpu_fewer_registers(N)          (void)(N)
GPU_FN void gpu_gate_set(uint64_t *gate, uint32_t count) {
    emu_gate_set(gate, count);
}
GPU_FN void gpu_gate_arrive(uint64_t *gate) {
    emu_gate_arrive(gate);
}
GPU_FN void gpu_gate_arrive_copied(uint64_t *gate) {
    emu_copy_commit();
    emu_copy_wait(0);
    emu_gate_arrive(gate);
}
_Static_assert((int)GPU_MAPS_MOST == (int)EMU_MAPS_MOST, "maps of a block");
/* At once: whoever copies has not yet arrived. */
GPU_FN void gpu_copy_bulk(void *shared, const void *global, uint32_t bytes, uint64_t *gate) {
    (void)gate;
    emu_check_aligned(shared);
    emu_check_aligned(global);
    memcpy(shared, global, bytes);
}
GPU_FN void gpu_gate_wait(uint64_t *gate, uint32_t parity) {
    emu_gate_wait(gate, parity);
}
GPU_FN void gpu_gates_seen(void) {}
GPU_FN void gpu_gate_expect(uint64_t *gate, uint32_t bytes) {
    emu_gate_expect(gate, bytes);
}
GPU_FN void gpu_gate_arrive_at(uint64_t *gate, uint32_t rank) {
    emu_gate_arrive_at(gate, rank);
}

struct gpu_map {
    struct emu_map at;
    char room[128 - sizeof(struct emu_map)];
};
GPU_FN void gpu_map_make(struct gpu_map *scratch, uint32_t n, const uint16_t *from, uint32_t cols,
                         uint32_t rows, uint64_t row_bytes, uint32_t steps, uint64_t step_bytes,
                         uint32_t high) {
    const struct emu_map map = {from, row_bytes, step_bytes, cols, rows, steps, high};
    emu_meet(EMU_TRANSPOSE, NULL, 0, NULL);
    if (gpu_lane() == 0)
        scratch->at = map;
    emu_meet(EMU_TRANSPOSE, NULL, 0, NULL);
    emu_map_make(n, &scratch->at);
    emu_meet(EMU_TRANSPOSE, NULL, 0, NULL);
}
GPU_FN const struct gpu_map *gpu_map_made(uint32_t n) {
    return (const struct gpu_map *)emu_map_made(n);
}
GPU_FN void gpu_copy_box(uint16_t *panel, const struct gpu_map *map, uint32_t col, uint32_t row,
                         uint32_t step, uint64_t *gate) {
    emu_copy_box(panel, (const struct emu_map *)map, col, row, step, gate, 0);
}
GPU_FN void gpu_copy_box_to_all(uint16_t *panel, const struct gpu_map *map, uint32_t col,
                                uint32_t row, uint32_t step, uint64_t *gate, uint32_t members) {
    emu_copy_box(panel, (const struct emu_map *)map, col, row, step, gate, members);
}

#if GPU_WAVE == 32
#include "ops/gpu/emu/dialect_emu_wgmma.h"
#endif

#endif
