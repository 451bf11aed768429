/* dialect_hip.h: the dialect for AMD, gfx942 and later (clang 19, -x hip -nogpuinc -nogpulib).
 * Included by dialect.h alone. Nothing here has run on a device; see docs/gpu.md. */
#ifndef WEIR_OPS_GPU_DIALECT_HIP_H
#define WEIR_OPS_GPU_DIALECT_HIP_H

#include <stdint.h>

#define GPU_WAVE 64
#define GPU_FN   static inline __attribute__((device, always_inline))
#define GPU_KERNEL(NAME, RECORD, THREADS, BLOCKS)                                                  \
    extern "C" __attribute__((global))                                                             \
    __attribute__((amdgpu_flat_work_group_size(64, THREADS))) void                                 \
    NAME(const struct RECORD a)
#define GPU_SHARED(TYPE, NAME)                                                                     \
    extern __attribute__((shared)) __attribute__((aligned(16))) unsigned char gpu_shared_bytes[];  \
    TYPE *NAME = (TYPE *)gpu_shared_bytes
#define GPU_UNROLL _Pragma("unroll")
#define GPU_ROLLED _Pragma("nounroll")

typedef uint64_t gpu_mask;
typedef uint32_t gpu_v4u __attribute__((ext_vector_type(4)));
typedef short gpu_v4s __attribute__((ext_vector_type(4)));
typedef float gpu_v4f __attribute__((ext_vector_type(4)));
struct __attribute__((aligned(16))) gpu_u4 {
    uint32_t x, y, z, w;
};
struct __attribute__((aligned(8))) gpu_u2 {
    uint32_t x, y;
};

GPU_FN uint32_t gpu_thread(void) {
    return __builtin_amdgcn_workitem_id_x();
}
GPU_FN uint32_t gpu_lane(void) {
    return gpu_thread() % GPU_WAVE;
}
GPU_FN uint32_t gpu_wave(void) {
    return (uint32_t)__builtin_amdgcn_readfirstlane((int)(gpu_thread() / GPU_WAVE));
}
GPU_FN uint32_t gpu_waves(void) {
    return __builtin_amdgcn_workgroup_size_x() / GPU_WAVE;
}
GPU_FN uint32_t gpu_block_x(void) {
    return __builtin_amdgcn_workgroup_id_x();
}
GPU_FN uint32_t gpu_block_y(void) {
    return __builtin_amdgcn_workgroup_id_y();
}
GPU_FN uint32_t gpu_blocks_x(void) {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
GPU_FN void gpu_barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#define GPU_CLUSTERS 0

GPU_FN float gpu_as_f32(uint32_t u) {
    return __builtin_bit_cast(float, u);
}
GPU_FN uint32_t gpu_as_u32(float f) {
    return __builtin_bit_cast(uint32_t, f);
}
GPU_FN float gpu_fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
GPU_FN float gpu_mul(float a, float b) {
    float c = a * b;
    __asm__("" : "+v"(c));
    return c;
}
GPU_FN float gpu_exp2(float x) {
    return __builtin_exp2f(x);
}
GPU_FN float gpu_exp2_flush(float x) {
    return __builtin_exp2f(x);
}
GPU_FN float gpu_max(float x, float y) {
    return __builtin_fmaxf(x, y);
}
GPU_FN uint32_t gpu_uniform(uint32_t v) {
    return (uint32_t)__builtin_amdgcn_readfirstlane((int)v);
}
GPU_FN float gpu_log2(float x) {
    return __builtin_log2f(x);
}
GPU_FN float gpu_rsqrt(float x) {
    return __builtin_amdgcn_rsqf(x);
}
GPU_FN float gpu_rcp(float x) {
    return __builtin_amdgcn_rcpf(x);
}
GPU_FN float gpu_add(float x, float y) {
#pragma clang fp contract(off)
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

GPU_FN void gpu_wave_meet(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
GPU_FN uint32_t gpu_shuffle_u32(uint32_t v, uint32_t lane) {
    return (uint32_t)__builtin_amdgcn_ds_bpermute((int)(lane * 4), (int)v);
}
GPU_FN uint32_t gpu_shuffle_xor_u32(uint32_t v, uint32_t mask) {
    return gpu_shuffle_u32(v, gpu_lane() ^ mask);
}
GPU_FN float gpu_shuffle(float v, uint32_t lane) {
    return gpu_as_f32(gpu_shuffle_u32(gpu_as_u32(v), lane));
}
GPU_FN float gpu_shuffle_xor(float v, uint32_t mask) {
    return gpu_as_f32(gpu_shuffle_xor_u32(gpu_as_u32(v), mask));
}
GPU_FN gpu_mask gpu_ballot(bool yes) {
    return __builtin_amdgcn_uicmp(yes ? 1u : 0u, 0u, 33); /* 33: not equal */
}
GPU_FN uint32_t gpu_popcount(gpu_mask m) {
    return (uint32_t)__builtin_popcountll(m);
}
GPU_FN uint32_t gpu_max_u32(uint32_t v) {
    for (uint32_t m = GPU_WAVE / 2; m > 0; m /= 2) {
        uint32_t other = gpu_shuffle_xor_u32(v, m);
        v = other > v ? other : v;
    }
    return v;
}
GPU_FN uint32_t gpu_min_u32(uint32_t v) {
    return ~gpu_max_u32(~v);
}
/* Additions that read another lane of the row of 16 directly, without a way through shared memory:
 * the neighbour, the other pair of four, then the mirrored lane of 8 and of 16, which holds the
 * other half's sum by then. */
#define GPU_DPP(V, CONTROL)                                                                        \
    gpu_as_f32(                                                                                    \
        (uint32_t)__builtin_amdgcn_update_dpp(0, (int)gpu_as_u32(V), CONTROL, 0xF, 0xF, true))
GPU_FN float gpu_sum16(float v) {
    v += GPU_DPP(v, 0xB1);
    v += GPU_DPP(v, 0x4E);
    v += GPU_DPP(v, 0x141);
    return v + GPU_DPP(v, 0x140);
}

GPU_FN gpu_u4 gpu_load16(const void *p) {
    return *(const gpu_u4 *)p;
}
GPU_FN void gpu_store16(void *p, gpu_u4 v) {
    *(gpu_u4 *)p = v;
}
GPU_FN gpu_u2 gpu_load8(const void *p) {
    return *(const gpu_u2 *)p;
}
GPU_FN void gpu_store8(void *p, uint32_t x, uint32_t y) {
    *(gpu_u2 *)p = gpu_u2{x, y};
}
GPU_FN gpu_u4 gpu_load16_stream(const void *p) {
    return __builtin_bit_cast(gpu_u4, __builtin_nontemporal_load((const gpu_v4u *)p));
}
GPU_FN void gpu_store16_stream(void *p, gpu_u4 v) {
    __builtin_nontemporal_store(__builtin_bit_cast(gpu_v4u, v), (gpu_v4u *)p);
}
/* Through registers: right, if not as early as it could be. */
GPU_FN void gpu_copy16(void *shared, const void *global, bool there) {
    gpu_u4 v = {0, 0, 0, 0};
    if (there)
        v = gpu_load16(global);
    gpu_store16(shared, v);
}
GPU_FN void gpu_copy_commit(void) {}
#define gpu_copy_wait(N) (void)(N)
GPU_FN void gpu_prefetch(const void *p) {}
GPU_FN uint32_t gpu_atomic_add(uint32_t *p, uint32_t n) {
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
GPU_FN void gpu_fence(void) {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent");
}
GPU_FN void gpu_wait_previous(void) {}
GPU_FN void gpu_launch_next(void) {}

enum { GPU_STRIPS = 1, GPU_SUMS = 4, GPU_FEW = 16, GPU_FEW_SUMS = 4 };
struct gpu_strips {
    gpu_u4 row[GPU_STRIPS];
};
struct gpu_sums {
    float at[GPU_SUMS];
};

GPU_FN gpu_v4s gpu_four(uint32_t lo, uint32_t hi) {
    return __builtin_bit_cast(gpu_v4s, (uint64_t)hi << 32 | lo);
}
GPU_FN void gpu_mma16(gpu_sums *c, const gpu_strips *a, const gpu_strips *b) {
    const gpu_u4 x = a->row[0], z = b->row[0];
    gpu_v4f d = {c->at[0], c->at[1], c->at[2], c->at[3]};
    d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(gpu_four(x.x, x.y), gpu_four(z.x, z.y), d, 0, 0,
                                                  0);
    d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(gpu_four(x.z, x.w), gpu_four(z.z, z.w), d, 0, 0,
                                                  0);
    for (int i = 0; i < 4; i++)
        c->at[i] = d[i];
}
GPU_FN void gpu_mma_few(float *c, const gpu_strips *a, gpu_u4 b) {
    gpu_sums sums = {{c[0], c[1], c[2], c[3]}};
    const gpu_strips rows = {{b}};
    gpu_mma16(&sums, a, &rows);
    for (int i = 0; i < 4; i++)
        c[i] = sums.at[i];
}
GPU_FN void gpu_strips_shared(gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    s->row[0] = gpu_load16(tile + gpu_lane() % 16 * stride + gpu_lane() / 16 * 8);
}
GPU_FN void gpu_strips_transposed(gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    const uint16_t *from = tile + gpu_lane() / 16 * 8 * stride + gpu_lane() % 16;
    uint32_t pair[4];
    for (uint32_t i = 0; i < 4; i++)
        pair[i] = from[2 * i * stride] | (uint32_t)from[(2 * i + 1) * stride] << 16;
    s->row[0] = (gpu_u4){pair[0], pair[1], pair[2], pair[3]};
}
GPU_FN void gpu_fail(void) {
    __builtin_trap();
}

#endif
