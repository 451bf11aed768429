/* dialect.h: what a kernel may say. One source is compiled by nvcc (waves of 32), by clang for AMD
 * (waves of 64, no vendor headers) and by the host's compiler for the emulator (either width,
 * emu/emu.h). Kernels are written in the common part of C and C++.
 *
 *   GPU_KERNEL(name, record, threads, blocks) { ... }   a kernel; its one argument is `struct
 * record a`, by value; launched with `threads` threads at most, made to fit `blocks` a
 *                   multiprocessor
 *   GPU_FN          in front of a function that kernels call
 *   GPU_SHARED(struct type, s);   struct type *s: the shared memory of the block. Its size is given
 *                   at launch. What it holds at first is undefined
 *   GPU_WAVE        lanes of a wave, 32 or 64. A block has whole waves
 *   GPU_UNROLL GPU_ROLLED   in front of a loop: wholly unrolled, not at all
 *   gpu_thread() gpu_lane() gpu_wave() gpu_waves()      place in the block
 *   gpu_block_x() gpu_block_y() gpu_blocks_x()          place in the grid
 *   gpu_barrier()   all threads of the block meet; none may have returned
 *
 * Clusters: where GPU_CLUSTERS is 1, a launch may bind blocks that follow each other in x; they run
 * at the same time and write into each other's shared memory.
 *   gpu_cluster_rank() gpu_cluster_blocks()   of this block among those, and how many there are
 *   gpu_cluster_store(p, rank, v)         a float to where p of this block is in that of `rank`
 *   gpu_cluster_arrive() gpu_cluster_wait()   a meeting of all threads of all blocks of the cluster
 *                   in two parts: behind the second, what anybody stored before its first is there.
 *                   Blocks store behind a meeting, so that all have begun, and end behind another
 *   gpu_cluster_barrier()                 such a meeting in one
 *   gpu_shared_of(p, rank)                where in the shared memory of block `rank` p would be
 * Elsewhere a cluster is a block.
 *
 * Collectives: every lane of the wave calls the same one. What is between the lanes of a wave needs
 * no other meeting, what is between waves needs gpu_barrier().
 *   gpu_shuffle_xor(v, mask) gpu_shuffle(v, lane)       and _u32 of both
 *   gpu_ballot(bool)              gpu_mask, bit i from lane i; gpu_popcount(mask) counts its bits
 *   gpu_wave_meet()               what lanes wrote or copied to shared memory is there for all
 *   gpu_max_u32(v) gpu_min_u32(v) over the wave
 *   gpu_sum16(v)                  over aligned groups of 16 lanes; every lane gets it
 *   gpu_mma16(acc, a, b)          acc += A B^T of 16 x 32 by 16 x 32 bf16 (see below)
 *   gpu_mma_few(acc, a, b)        the same with the first GPU_FEW rows of B alone (8 or 16): b is
 * strip 0 of a lane, acc the first GPU_FEW_SUMS of its sums
 *   gpu_strips_shared(s, tile, stride)                  strips of a tile [row][k] in shared memory
 *   gpu_strips_transposed(s, tile, stride)              strips of a tile [k][row] in shared memory
 *
 * Memory: gpu_u4 is 16 bytes, at addresses that are multiples of 16.
 *   gpu_load16(p) gpu_store16(p, v)                     cached
 *   gpu_load16_stream(p) gpu_store16_stream(p, v)       read once or written once
 *   gpu_load8(p) gpu_store8(p, x, y)                    8 bytes, struct gpu_u2, at a multiple of 8
 *   gpu_copy16(shared, global, there) gpu_copy_commit() gpu_copy_wait(n)   16 bytes to shared
 * memory behind the thread's back, zeros if not `there`. wait: all but the last n commits have
 * arrived, for this thread; for others behind the next barrier.
 *   gpu_prefetch(p)                                     the 128 bytes around p may be needed soon
 *   gpu_atomic_add(p, n)                                returns what was there
 * gpu_fence() before it makes this thread's writes visible to whoever sees the new value.
 *   gpu_wait_previous() gpu_launch_next()   where the launch allowed the next kernel to begin
 * early: nothing that the kernel directly before wrote may be read above gpu_wait_previous(). What
 * an earlier one wrote is there, since every kernel lets the next begin behind its own wait.
 *
 * Numbers: gpu_fma(a, b, c) is a * b + c rounded once, gpu_mul(a, b) a product that no compiler
 * contracts with a sum: what two kernels compute with these alone has the same bits.
 * gpu_exp2 gpu_log2 gpu_rsqrt gpu_rcp are within a few units in the last place on devices.
 * gpu_spread_bytes(w, upper): two bytes of w, the lower or the upper ones, each as the upper byte
 * of 16 bits, the others zero.
 * gpu_add is a sum of the same kind. gpu_exp2_flush: where that is below the smallest normal
 * number, 0; in fewer instructions. gpu_max(x, y): the other, if one is no number. gpu_uniform(v):
 * v, which all lanes of the wave have, known to be so.
 *
 * Strips. The tile product takes 16 rows of 32 elements of k on either side. A lane holds strips of
 * 8 elements, k ascending, of GPU_STRIPS rows: strip i is of row gpu_strip_row(i), from k =
 * gpu_strip_k() on. So operands whose k is contiguous are read 16 bytes a lane straight from
 * memory, on either vendor. Sums: GPU_SUMS a lane, element i is of row gpu_sum_row(i) of A, row
 * gpu_sum_col(i) of B.
 *
 * Warpgroups. Where GPU_WARPGROUPS is defined (NVIDIA sm_90a; the emulator with waves of 32), four
 * waves, the first a multiple of four, multiply together, 64 rows by N = 16, 48 or 128, 16 elements
 * of k at a time, of panels in shared memory: rows of 64 BF16 at a multiple of 1024 bytes, of which
 * piece (16 bytes) p of row r lies where gpu_panel(r, p) says, counted in elements. All lanes get
 * N / 2 sums, the i-th of row gpu_wg_row(i) of 64 and column gpu_wg_col(i) of N.
 *   gpu_wg_rows(c, N, a, b, k, add)     c (+)= A B^T: both k-contiguous, step k of a panel's 4; N
 *                                       64, 176 and 192 as well. With N 16 and 48 steps go on
 *                                       through the panels that lie behind a and b
 *   gpu_wg_columns(c, N, a, b, k, k_b)  c += A B^T: A is step k of panels [k][64 rows], B step k_b
 *   gpu_wg_rows_of(c, N, a, b, k, add)  as gpu_wg_rows, N a multiple of 8 up to 128: A from
 *                                       registers, as gpu_wg_operand leaves sums; k goes on in
 *                                       panels of N rows one behind the other.
 *                                       gpu_wg_rows_of_f16: of F16, N 16
 *   gpu_f16_pair(lo, hi)                two numbers as F16
 *   gpu_f16_codes(w, upper)             two E4M3 codes of w, the lower or the upper ones, as F16
 *   gpu_wg_values(c, N, a, b, k, rows)  c += A B: A from registers as well;
 *                                       B in panels [k][64], `rows` rows each, one behind the other
 *   gpu_wg_leave(panel, c)              sums of 16 columns as BF16 into a panel [column][64 rows]
 *   gpu_wg_begin() gpu_wg_commit() gpu_wg_wait(n)       in front of products, behind some, and
 * until all but the last n commits are done. Sums must not be touched in between; gpu_wg_hold(c, n)
 * names them in front of gpu_wg_begin() and behind the wait.
 *   gpu_wg_seen()                       products see what this thread wrote to shared memory behind
 * the next barrier, or what others wrote in front of a gate that this thread has passed.
 *   gpu_part_barrier(part, threads)     so many threads of the block meet; part 1 to 15, constants
 *   gpu_gate_set(g, n) gpu_gate_arrive(g) gpu_gate_wait(g, parity)      a gate (uint64_t in shared
 * memory) opens when n threads have arrived, then anew. wait: until it has opened an odd number of
 * times (parity 0) or an even one, none among them (1).
 *   gpu_copy_bulk(shared, global, bytes, g)             so many bytes, in multiples of 16, behind
 * the thread's back; the gate, at which this thread has yet to arrive, does not open before them.
 *   gpu_gate_arrive_copied(g)           arrives when all that this thread has asked for by
 * gpu_copy16 is there.
 *   gpu_gate_arrive_at(g, rank)         arrives at that gate of block `rank` of the cluster.
 *   gpu_gate_expect(g, bytes)           arrives, and g stays shut until boxes of so many bytes have
 * come as well.
 *   gpu_gates_seen()                    behind gpu_gate_set(), in front of the barrier, where
 * gpu_gate_arrive_at(), gpu_gate_expect() or gpu_copy_bulk() is used.
 *   gpu_more_registers(n)               of the threads of a warpgroup, n each;
 * gpu_fewer_registers(n)
 *
 * Boxes, where there are warpgroups: panels of up to 256 rows that one thread asks for. Where they
 * come from a map says: a stack of `steps` matrices of BF16 of rows by cols; what lies outside of
 * one is zero. Maps of a block are numbered below GPU_MAPS_MOST and gone when it ends; the device
 * keeps them for each multiprocessor, so that a block that makes maps takes more than half of the
 * shared memory.
 *   gpu_map_make(scratch, n, from, cols, rows, row_bytes, steps, step_bytes, high)   by a wave:
 *                                       map n, of boxes of `high` rows. Bytes are multiples of 16;
 *                                       scratch: a struct gpu_map at a multiple of 128 in shared
 *                                       memory. Others may use the map behind a barrier.
 *   gpu_map_made(n)                     a const struct gpu_map *, for the thread that calls it
 *   gpu_copy_box(panel, map, col, row, step, g)         a box from there on, to a panel at a
 * multiple of 1024, counted at gate g; whole, whatever is outside.
 *   gpu_copy_box_to_all(panel, map, col, row, step, g, members)     to the same place of the first
 * `members` blocks of the cluster, counted at the gate of each.
 * Kernels that need any of these say gpu_fail() elsewhere. */
#ifndef WEIR_OPS_GPU_DIALECT_H
#define WEIR_OPS_GPU_DIALECT_H

enum { GPU_MAPS_MOST = 32 };

#if defined(__CUDACC__)
#include "ops/gpu/dialect_cuda.h"
#elif defined(__HIP__)
#include "ops/gpu/dialect_hip.h"
#else
#include "ops/gpu/emu/dialect_emu.h"
#endif

GPU_FN uint32_t gpu_strip_row(uint32_t i) {
    return GPU_WAVE == 32 ? gpu_lane() / 4 + 8 * i : gpu_lane() % 16;
}
GPU_FN uint32_t gpu_strip_k(void) {
    return GPU_WAVE == 32 ? gpu_lane() % 4 * 8 : gpu_lane() / 16 * 8;
}
GPU_FN uint32_t gpu_sum_row(uint32_t i) {
    return GPU_WAVE == 32 ? gpu_lane() / 4 + i / 2 % 2 * 8 : gpu_lane() / 16 * 4 + i;
}
GPU_FN uint32_t gpu_sum_col(uint32_t i) {
    return GPU_WAVE == 32 ? gpu_lane() % 4 * 2 + i % 2 + i / 4 * 8 : gpu_lane() % 16;
}

/* Panels and sums of warpgroups. */
GPU_FN uint32_t gpu_panel(uint32_t row, uint32_t piece) {
    return row * 64 + (piece ^ row % 8) * 8;
}
GPU_FN uint32_t gpu_wg_row(uint32_t i) {
    return gpu_wave() % 4 * 16 + gpu_lane() / 4 + i / 2 % 2 * 8;
}
GPU_FN uint32_t gpu_wg_col(uint32_t i) {
    return i / 4 * 8 + gpu_lane() % 4 * 2 + i % 2;
}

#if !GPU_CLUSTERS /* a cluster is a block */
GPU_FN uint32_t gpu_cluster_rank(void) {
    return 0;
}
GPU_FN uint32_t gpu_cluster_blocks(void) {
    return 1;
}
GPU_FN void *gpu_shared_of(void *p, uint32_t rank) {
    return p;
}
GPU_FN void gpu_cluster_store(float *p, uint32_t rank, float v) {
    *p = v;
}
GPU_FN void gpu_cluster_arrive(void) {}
GPU_FN void gpu_cluster_wait(void) {
    gpu_barrier();
}
GPU_FN void gpu_cluster_barrier(void) {
    gpu_barrier();
}
#endif

/* ------------------------------------------------------------------------------ numbers */

#define GPU_INFINITY gpu_as_f32(0x7F800000u)

GPU_FN float gpu_bf16_lo(uint32_t pair) {
    return gpu_as_f32(pair << 16);
}
GPU_FN float gpu_bf16_hi(uint32_t pair) {
    return gpu_as_f32(pair & 0xFFFF0000u);
}
GPU_FN float gpu_from_bf16(uint16_t h) {
    return gpu_as_f32((uint32_t)h << 16);
}
/* To nearest even; NaN stays NaN. */
GPU_FN uint16_t gpu_to_bf16(float f) {
    return (uint16_t)(gpu_bf16_pair(f, 0) & 0xFFFFu);
}

/* Eight sums of a warpgroup, 16 columns, as the rows of the next product, rounded to BF16. */
GPU_FN struct gpu_u4 gpu_wg_operand(const float *sum) {
    struct gpu_u4 v = {gpu_bf16_pair(sum[0], sum[1]), gpu_bf16_pair(sum[2], sum[3]),
                       gpu_bf16_pair(sum[4], sum[5]), gpu_bf16_pair(sum[6], sum[7])};
    return v;
}

GPU_FN float gpu_exp(float x) {
    return gpu_exp2(x * 1.44269504f);
}
GPU_FN float gpu_sigmoid(float x) {
    return gpu_rcp(1.0f + gpu_exp(-x));
}
/* Error about 1e-7 of 1: what multiplies it is of the order of 1. */
GPU_FN float gpu_tanh(float x) {
    return 1.0f - 2.0f * gpu_rcp(1.0f + gpu_exp(2.0f * x));
}
/* log(1 + e^x) without overflow. */
GPU_FN float gpu_softplus(float x) {
    float a = x > 0 ? x : -x;
    return gpu_fma(gpu_log2(1.0f + gpu_exp(-a)), 0.69314718f, x > 0 ? x : 0);
}
/* E4M3 code; the two that mean NaN become 480: whoever writes codes says NaN by their scale. */
GPU_FN float gpu_from_e4m3(uint32_t code) {
    return gpu_as_f32((code & 0x80u) << 24 | (code & 0x7Fu) << 20) * 0x1p120f;
}
#ifndef GPU_E4M3_X2
/* The lower or the upper two of four codes as numbers; what becomes of NaN is anybody's guess. */
GPU_FN void gpu_from_e4m3_x2(uint32_t w, bool upper, float *f) {
    f[0] = gpu_from_e4m3(upper ? w >> 16 & 0xFFu : w & 0xFFu);
    f[1] = gpu_from_e4m3(upper ? w >> 24 : w >> 8 & 0xFFu);
}
#endif
/* The E4M3 code of a number of at most 448, to nearest even; of larger ones that of 448; NaN is
 * NaN. */
GPU_FN uint32_t gpu_to_e4m3(float f) {
    const uint32_t u = gpu_as_u32(f), sign = u >> 24 & 0x80u, a = u & 0x7FFFFFFFu;
    /* Adding 2^14 leaves multiples of 2^-9, the step of the smallest codes. */
    const uint32_t small = gpu_as_u32(gpu_as_f32(a) + 0x1p14f) & 0xFFu;
    uint32_t normal = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    normal = a > 0x43E00000u ? 0x7Eu : normal;
    normal = a > 0x7F800000u ? 0x7Fu : normal;
    return sign | (a < 0x3C800000u ? small : normal);
}
/* A key whose order as an unsigned number is that of floats; NaN above or below all. */
GPU_FN uint32_t gpu_order_key(float f) {
    uint32_t u = gpu_as_u32(f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
GPU_FN float gpu_from_order_key(uint32_t key) {
    return gpu_as_f32(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* ------------------------------------------------------------------------------ sums over lanes */

GPU_FN float gpu_wave_sum(float v) {
    v = gpu_sum16(v);
    v += gpu_shuffle_xor(v, 16);
    return GPU_WAVE == 64 ? v + gpu_shuffle_xor(v, 32) : v;
}
/* Sixteen sums over the wave: lane l gets that of t[l % 16]. Within 16 lanes halves change hands at
 * every step, so that 16 sums cost 15 shuffles there. */
GPU_FN float gpu_wave_sum_sixteen(float *t) {
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
    const float v = t[0] + gpu_shuffle_xor(t[0], 16);
    return GPU_WAVE == 64 ? v + gpu_shuffle_xor(v, 32) : v;
}
GPU_FN float gpu_wave_max(float v) {
    for (uint32_t m = GPU_WAVE / 2; m > 0; m /= 2) {
        float other = gpu_shuffle_xor(v, m);
        v = other > v ? other : v;
    }
    return v;
}
/* Over the block. `partial`: a float for each wave, used by nothing else until the next barrier
 * after this one. */
GPU_FN float gpu_block_sum(float v, float *partial) {
    v = gpu_wave_sum(v);
    if (gpu_lane() == 0)
        partial[gpu_wave()] = v;
    gpu_barrier();
    float sum = 0;
    for (uint32_t w = 0; w < gpu_waves(); w++)
        sum += partial[w];
    return sum;
}

#endif
