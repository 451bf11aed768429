/* dialect_cuda.h: the dialect for NVIDIA, sm_80 and later (nvcc). Included by dialect.h alone. */
#ifndef WEIR_OPS_GPU_DIALECT_CUDA_H
#define WEIR_OPS_GPU_DIALECT_CUDA_H

#include <stdint.h>

#define GPU_WAVE 32
#define GPU_FN   static __device__ __forceinline__
#define GPU_KERNEL(NAME, RECORD, THREADS, BLOCKS)                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                  \
        NAME(const __grid_constant__ struct RECORD a)
#define GPU_SHARED(TYPE, NAME)                                                                     \
    extern __shared__ __align__(1024) unsigned char gpu_shared_bytes[];                            \
    TYPE *NAME = (TYPE *)gpu_shared_bytes
#define GPU_UNROLL    _Pragma("unroll")
#define GPU_ROLLED    _Pragma("unroll 1")
#define gpu_barrier() __syncthreads()

typedef uint32_t gpu_mask;
struct __align__(16) gpu_u4 {
    uint32_t x, y, z, w;
};
struct __align__(8) gpu_u2 {
    uint32_t x, y;
};

GPU_FN uint32_t gpu_thread(void) {
    return threadIdx.x;
}
GPU_FN uint32_t gpu_lane(void) {
    return threadIdx.x % GPU_WAVE;
}
GPU_FN uint32_t gpu_wave(void) {
    return threadIdx.x / GPU_WAVE;
}
GPU_FN uint32_t gpu_waves(void) {
    return blockDim.x / GPU_WAVE;
}
GPU_FN uint32_t gpu_block_x(void) {
    return blockIdx.x;
}
GPU_FN uint32_t gpu_block_y(void) {
    return blockIdx.y;
}
GPU_FN uint32_t gpu_blocks_x(void) {
    return gridDim.x;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GPU_CLUSTERS 1
#else
#define GPU_CLUSTERS 0
#endif
#if GPU_CLUSTERS
GPU_FN uint32_t gpu_cluster_rank(void) {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
GPU_FN uint32_t gpu_cluster_blocks(void) {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
GPU_FN void *gpu_shared_of(void *p, uint32_t rank) {
    void *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
    return there;
}
/* Not the aligned ones: waves whose lanes come by different ways were taken for more than one. */
GPU_FN void gpu_cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
GPU_FN void gpu_cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
/* A block alone meets in fewer cycles than a cluster of one. */
GPU_FN void gpu_cluster_barrier(void) {
    if (gpu_cluster_blocks() > 1) {
        gpu_cluster_arrive();
        gpu_cluster_wait();
    } else {
        gpu_barrier();
    }
}
GPU_FN void gpu_cluster_store(float *p, uint32_t rank, float v) {
    asm volatile(
        "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
        "st.shared::cluster.f32 [there], %2;\n\t}" ::"r"((uint32_t)__cvta_generic_to_shared(p)),
        "r"(rank), "f"(v)
        : "memory");
}
#endif

GPU_FN float gpu_as_f32(uint32_t u) {
    return __uint_as_float(u);
}
GPU_FN uint32_t gpu_as_u32(float f) {
    return __float_as_uint(f);
}
GPU_FN float gpu_fma(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
GPU_FN float gpu_mul(float a, float b) {
    return __fmul_rn(a, b);
}
GPU_FN float gpu_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_exp2_flush(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_max(float x, float y) {
    return fmaxf(x, y);
}
GPU_FN uint32_t gpu_uniform(uint32_t v) {
    return __shfl_sync(0xFFFFFFFFu, v, 0);
}
GPU_FN float gpu_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_rsqrt(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_FN float gpu_add(float x, float y) {
    return __fadd_rn(x, y);
}
GPU_FN uint32_t gpu_bf16_pair(float lo, float hi) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}
/* Both halves of x times both of y, each rounded to nearest even. */
GPU_FN uint32_t gpu_bf16_mul(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(0x80008000u));
    return z;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
/* By bits one row by a matrix of 6284 x 7168 took 20.1 us on an H200 instead of 18.8. */
#define GPU_E4M3_X2
GPU_FN void gpu_from_e4m3_x2(uint32_t w, bool upper, float *f) {
    asm("{\n.reg .b16 lo, hi;\n.reg .b32 both;\nmov.b32 {lo, hi}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 both, lo;\nmov.b32 {lo, hi}, both;\n"
        "cvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}\n"
        : "=f"(f[0]), "=f"(f[1])
        : "r"(upper ? w >> 16 : w));
}
#endif

GPU_FN uint32_t gpu_spread_bytes(uint32_t w, bool upper) {
    return __byte_perm(w, 0, upper ? 0x3424 : 0x1404);
}

GPU_FN void gpu_wave_meet(void) {
    __syncwarp();
}
GPU_FN float gpu_shuffle_xor(float v, uint32_t mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, v, (int)mask);
}
GPU_FN float gpu_shuffle(float v, uint32_t lane) {
    return __shfl_sync(0xFFFFFFFFu, v, (int)lane);
}
GPU_FN uint32_t gpu_shuffle_xor_u32(uint32_t v, uint32_t mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, v, (int)mask);
}
GPU_FN uint32_t gpu_shuffle_u32(uint32_t v, uint32_t lane) {
    return __shfl_sync(0xFFFFFFFFu, v, (int)lane);
}
GPU_FN gpu_mask gpu_ballot(bool yes) {
    return __ballot_sync(0xFFFFFFFFu, yes);
}
GPU_FN uint32_t gpu_popcount(gpu_mask m) {
    return (uint32_t)__popc(m);
}
GPU_FN uint32_t gpu_max_u32(uint32_t v) {
    return __reduce_max_sync(0xFFFFFFFFu, v);
}
GPU_FN uint32_t gpu_min_u32(uint32_t v) {
    return __reduce_min_sync(0xFFFFFFFFu, v);
}
GPU_FN float gpu_sum16(float v) {
    GPU_UNROLL
    for (uint32_t m = 8; m > 0; m /= 2)
        v += gpu_shuffle_xor(v, m);
    return v;
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
/* Volatile, so that what was written above gpu_wait_previous() stays there. */
GPU_FN gpu_u4 gpu_load16_stream(const void *p) {
    gpu_u4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
GPU_FN void gpu_store16_stream(void *p, gpu_u4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
GPU_FN uint32_t gpu_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
GPU_FN void gpu_copy16(void *shared, const void *global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(gpu_shared_address(shared)),
                 "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}
GPU_FN void gpu_copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define gpu_copy_wait(N) asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory")
GPU_FN void gpu_prefetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
GPU_FN uint32_t gpu_atomic_add(uint32_t *p, uint32_t n) {
    return atomicAdd(p, n);
}
GPU_FN void gpu_fence(void) {
    __threadfence();
}
GPU_FN void gpu_wait_previous(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
GPU_FN void gpu_launch_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

enum { GPU_STRIPS = 2, GPU_SUMS = 8, GPU_FEW = 8, GPU_FEW_SUMS = 4 };
struct gpu_strips {
    gpu_u4 row[GPU_STRIPS];
};
struct gpu_sums {
    float at[GPU_SUMS];
};

GPU_FN void gpu_mma_half(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* The instruction wants k = 2t, 2t+1, 2t+8, 2t+9 of lane t of four; a sum does not care in which
 * order its terms are named, so that each takes eight contiguous ones in two instructions. */
GPU_FN void gpu_mma16(gpu_sums *c, const gpu_strips *a, const gpu_strips *b) {
    const gpu_u4 x = a->row[0], y = a->row[1];
    GPU_UNROLL
    for (int half = 0; half < 2; half++)
        gpu_mma_half(c->at + 4 * half, x.x, y.x, x.y, y.y, b->row[half].x, b->row[half].y);
    GPU_UNROLL
    for (int half = 0; half < 2; half++) /* a product does not wait for the one just begun */
        gpu_mma_half(c->at + 4 * half, x.z, y.z, x.w, y.w, b->row[half].z, b->row[half].w);
}
GPU_FN void gpu_mma_few(float *c, const gpu_strips *a, gpu_u4 b) {
    const gpu_u4 x = a->row[0], y = a->row[1];
    gpu_mma_half(c, x.x, y.x, x.y, y.y, b.x, b.y);
    gpu_mma_half(c, x.z, y.z, x.w, y.w, b.z, b.w);
}
/* Four 8 x 8 matrices at a time, of k 0..7, 8..15, ...; lane t of four gets pairs 2t, 2t+1 of each.
 */
GPU_FN void gpu_strips_shared(gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t from =
            gpu_shared_address(tile + (half * 8 + gpu_lane() % 8) * stride + gpu_lane() / 8 * 8);
        gpu_u4 *to = &s->row[half];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                     : "r"(from)
                     : "memory");
    }
}
GPU_FN void gpu_strips_transposed(gpu_strips *s, const uint16_t *tile, uint32_t stride) {
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t from = gpu_shared_address(tile + gpu_lane() * stride + half * 8);
        gpu_u4 *to = &s->row[half];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                     : "r"(from)
                     : "memory");
    }
}
GPU_FN void gpu_fail(void) {
    asm volatile("trap;");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "ops/gpu/dialect_wgmma.h"
#endif

#endif
