/* launch.h: which kernel an operation of a given shape takes, and with how many blocks, threads and
 * bytes of shared memory: rules only, the same for device and emulator. */
#ifndef WEIR_OPS_GPU_LAUNCH_H
#define WEIR_OPS_GPU_LAUNCH_H

#include "ops/gpu/records.h"
#include "ops/gpu/ways.h"

#include <stdbool.h>
#include <stddef.h>

/* Every kernel: its symbol, its record, the file it is in (src/ops/gpu/kernels). */
#define GPU_KERNELS(X)                                                                             \
    X(weir_norm, gpu_norm, norm)                                                                   \
    X(weir_mix_norm, gpu_mix_norm, norm)                                                           \
    X(weir_mix_norm_split, gpu_mix_norm, norm)                                                     \
    X(weir_mix_norm_many, gpu_mix_norm, norm)                                                      \
    X(weir_gemv_1, gpu_linear, linear)                                                             \
    X(weir_gemv_1_more, gpu_linear, linear)                                                        \
    X(weir_gemv_2, gpu_linear, linear)                                                             \
    X(weir_skinny_8, gpu_linear, skinny)                                                           \
    X(weir_skinny_16, gpu_linear, skinny)                                                          \
    X(weir_skinny_32, gpu_linear, skinny)                                                          \
    X(weir_skinny_64, gpu_linear, skinny)                                                          \
    X(weir_skinny_8_two, gpu_linear, skinny)                                                       \
    X(weir_skinny_8_wide, gpu_linear, skinny)                                                      \
    X(weir_skinny_16_wide, gpu_linear, skinny)                                                     \
    X(weir_skinny_32_wide, gpu_linear, skinny)                                                     \
    X(weir_skinny_64_wide, gpu_linear, skinny)                                                     \
    X(weir_kda_step_128, gpu_kda_step, kda_step)                                                   \
    X(weir_kda_step_64, gpu_kda_step, kda_step)                                                    \
    X(weir_kda_step_32, gpu_kda_step, kda_step)                                                    \
    X(weir_kda_step_16, gpu_kda_step, kda_step)                                                    \
    X(weir_kda_step_8, gpu_kda_step, kda_step)                                                     \
    X(weir_kda_step_128_by_2, gpu_kda_step, kda_step)                                              \
    X(weir_kda_verify_128, gpu_kda_verify, kda_verify)                                             \
    X(weir_kda_verify_64, gpu_kda_verify, kda_verify)                                              \
    X(weir_kda_verify_32, gpu_kda_verify, kda_verify)                                              \
    X(weir_kda_verify_16, gpu_kda_verify, kda_verify)                                              \
    X(weir_kda_verify_8, gpu_kda_verify, kda_verify)                                               \
    X(weir_kda_verify_128_by_2, gpu_kda_verify, kda_verify)                                        \
    X(weir_kda_verify_128_by_8, gpu_kda_verify, kda_verify)                                        \
    X(weir_route, gpu_route, route)                                                                \
    X(weir_experts_up, gpu_experts, experts)                                                       \
    X(weir_experts_down, gpu_experts, experts)                                                     \
    X(weir_combine, gpu_combine, combine)                                                          \
    X(weir_combine_2, gpu_combine, combine)                                                        \
    X(weir_combine_1, gpu_combine, combine)                                                        \
    X(weir_mla_split, gpu_mla_decode, mla)                                                         \
    X(weir_mla_merge, gpu_mla_decode, mla)                                                         \
    X(weir_mla_split_16, gpu_mla_decode, mla_wgmma)                                                \
    X(weir_mla_split_48, gpu_mla_decode, mla_wgmma)                                                \
    X(weir_mla_split_fp8_16, gpu_mla_decode, mla_fp8_wgmma)                                        \
    X(weir_mla_gather, gpu_mla_prefill, mla_prefill)                                               \
    X(weir_mla_attend, gpu_mla_prefill, mla_prefill)                                               \
    X(weir_mla_attend_wg, gpu_mla_prefill, mla_prefill_wgmma)                                      \
    X(weir_gemm_wg, gpu_linear, gemm_wgmma)                                                        \
    X(weir_gemm_wg_176, gpu_linear, gemm_wgmma)                                                    \
    X(weir_gemm_wg_128, gpu_linear, gemm_wgmma)                                                    \
    X(weir_gemm_wg_64, gpu_linear, gemm_wgmma)                                                     \
    X(weir_gemm_192, gpu_linear, gemm)                                                             \
    X(weir_gemm_128, gpu_linear, gemm)                                                             \
    X(weir_mla_split_fp8, gpu_mla_decode, mla_fp8)                                                 \
    X(weir_mla_write_fp8, gpu_mla_write, mla_write)                                                \
    X(weir_mla_write, gpu_mla_write, mla_write)                                                    \
    X(weir_embed, gpu_embed, elements)                                                             \
    X(weir_glu, gpu_glu, elements)                                                                 \
    X(weir_copy, gpu_copy, elements)                                                               \
    X(weir_kda_chunk_128, gpu_kda_prefill, kda_chunk)                                              \
    X(weir_kda_chunk_64, gpu_kda_prefill, kda_chunk)                                               \
    X(weir_kda_chunk_32, gpu_kda_prefill, kda_chunk)                                               \
    X(weir_kda_states_128, gpu_kda_prefill, kda_states)                                            \
    X(weir_kda_states_64, gpu_kda_prefill, kda_states)                                             \
    X(weir_kda_states_32, gpu_kda_prefill, kda_states)                                             \
    X(weir_kda_states_wg, gpu_kda_prefill, kda_states_wgmma)                                       \
    X(weir_kda_out, gpu_kda_prefill, kda_states)                                                   \
    X(weir_experts_up_row, gpu_experts, experts)                                                   \
    X(weir_experts_up_row_bf16, gpu_experts, experts)                                              \
    X(weir_experts_up_bf16, gpu_experts, experts)                                                  \
    X(weir_experts_down_bf16, gpu_experts, experts)                                                \
    X(weir_sample, gpu_sample, sample)                                                             \
    X(weir_group, gpu_group, experts_many)                                                         \
    X(weir_experts_up_many, gpu_experts, experts_many)                                             \
    X(weir_experts_down_many, gpu_experts, experts_many)                                           \
    X(weir_experts_up_many_bf16, gpu_experts, experts_many)                                        \
    X(weir_experts_down_many_bf16, gpu_experts, experts_many)                                      \
    X(weir_experts_up_many_wg, gpu_experts, experts_wgmma)                                         \
    X(weir_experts_down_many_wg, gpu_experts, experts_wgmma)                                       \
    X(weir_gemv_fp8_1, gpu_linear, linear_fp8)                                                     \
    X(weir_gemv_fp8_1_more, gpu_linear, linear_fp8)                                                \
    X(weir_gemv_fp8_2, gpu_linear, linear_fp8)                                                     \
    X(weir_skinny_fp8_8, gpu_linear, skinny_fp8)                                                   \
    X(weir_skinny_fp8_16, gpu_linear, skinny_fp8)                                                  \
    X(weir_skinny_fp8_32, gpu_linear, skinny_fp8)                                                  \
    X(weir_skinny_fp8_8_wide, gpu_linear, skinny_fp8)                                              \
    X(weir_skinny_fp8_16_wide, gpu_linear, skinny_fp8)                                             \
    X(weir_skinny_fp8_32_wide, gpu_linear, skinny_fp8)                                             \
    X(weir_widen, gpu_widen, elements)

#define GPU_KERNEL_ID(NAME, RECORD, FILE) GPU_##NAME,
enum gpu_kernel { GPU_KERNELS(GPU_KERNEL_ID) GPU_KERNEL_COUNT, GPU_NO_KERNEL = GPU_KERNEL_COUNT };

struct gpu_kernel_info {
    const char *name, *file;
    size_t record_bytes;
};
const struct gpu_kernel_info *gpu_kernel_info(enum gpu_kernel k);

struct gpu_launch {
    enum gpu_kernel kernel; /* GPU_NO_KERNEL: no kernel takes this shape */
    uint32_t blocks_x, blocks_y, threads;
    uint32_t shared_bytes;
    uint32_t cluster; /* blocks in a row of x that are bound together; 0: none */
};

enum { GPU_GLU_ROWS = 32768 }; /* that one launch of weir_glu takes */

static inline uint32_t gpu_divide_up(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

/* What rules depend on. */
struct gpu_shape {
    uint32_t multiprocessors, wave;
    bool warpgroups;  /* CUDA 9.0 and its modules: products of four waves */
    uint32_t cluster; /* blocks of a cluster at most; 0: there are none */
};
enum { GPU_CLUSTER_MOST = 8 }; /* on any device of CUDA 9.0 and later */

struct gpu_launch gpu_launch_norm(const struct gpu_norm *a, uint32_t rows, struct gpu_shape shape);
/* Fills `way` unless it is set. */
struct gpu_launch gpu_launch_mix_norm(struct gpu_mix_norm *a, struct gpu_shape shape);
/* Fills first_block of every part, and `split` unless it is set. No kernel takes FP8 matrices with
 * more than GPU_FP8_X_ROWS rows of x: so many are worth making the matrix BF16 (gpu_launch_widen).
 */
struct gpu_launch gpu_launch_linear(struct gpu_linear *a, struct gpu_shape shape);
struct gpu_launch gpu_launch_linear_by(struct gpu_linear *a, struct gpu_shape shape,
                                       enum gpu_way way);
struct gpu_launch gpu_launch_kda_step(const struct gpu_kda_step *a, uint32_t dim, uint32_t n_seqs,
                                      struct gpu_shape shape);
struct gpu_launch gpu_launch_kda_verify(const struct gpu_kda_verify *a, uint32_t dim,
                                        uint32_t n_seqs, struct gpu_shape shape);
/* Of what weir_kda_verify leaves of a sequence. */
uint64_t gpu_kda_left_floats(uint32_t heads, uint32_t dim);
struct gpu_launch gpu_launch_route(const struct gpu_route *a);
/* Up to GPU_EXPERT_SLOTS choices, few of them an expert. */
struct gpu_launch gpu_launch_experts_up(const struct gpu_experts *a, struct gpu_shape shape);
struct gpu_launch gpu_launch_experts_down(const struct gpu_experts *a, struct gpu_shape shape);
/* Whether so many choices among so many experts are worth tiles of choices, below. More than
 * GPU_EXPERT_SLOTS must be. */
bool gpu_experts_many(uint64_t slots, uint32_t experts, enum gpu_way way);
struct gpu_launch gpu_launch_group(const struct gpu_group *a);
/* For many choices an expert, grouped by a launch before. */
struct gpu_launch gpu_launch_experts_up_many(const struct gpu_experts *a, struct gpu_shape shape);
struct gpu_launch gpu_launch_experts_down_many(const struct gpu_experts *a, struct gpu_shape shape);
struct gpu_launch gpu_launch_combine(const struct gpu_combine *a, uint32_t rows,
                                     struct gpu_shape shape);

/* Fills `kept`. */
struct gpu_launch gpu_launch_sample(struct gpu_sample *a, uint32_t rows, struct gpu_shape shape);

struct gpu_launch gpu_launch_copy(const struct gpu_copy *a);
struct gpu_launch gpu_launch_embed(const struct gpu_embed *a, uint32_t rows);
/* A block for 4096 codes. */
struct gpu_launch gpu_launch_widen(const struct gpu_widen *a);
struct gpu_launch gpu_launch_glu(const struct gpu_glu *a, uint32_t rows);
struct gpu_launch gpu_launch_mla_write(const struct gpu_mla_write *a, uint32_t rows);

/* Heads that a block takes of so many. */
uint32_t gpu_mla_heads(uint32_t heads, struct gpu_shape shape);
/* Shares that the positions of each sequence are divided into, for launches of so many rows. */
uint32_t gpu_mla_shares(uint32_t rows, uint32_t heads, struct gpu_shape shape);
/* Positions of a share of a sequence that has `positions`. */
uint32_t gpu_mla_share(uint32_t shares, uint32_t positions);
struct gpu_launch gpu_launch_mla_split(const struct gpu_mla_decode *a, uint32_t rows,
                                       struct gpu_shape shape);
/* Fills a->columns. */
struct gpu_launch gpu_launch_mla_merge(struct gpu_mla_decode *a, uint32_t rows,
                                       struct gpu_shape shape);

/* Whether rows of a sequence that comes to have so many positions are worth expanding its history
 * for. */
bool gpu_mla_expand(uint32_t rows, uint32_t positions);
struct gpu_launch gpu_launch_mla_gather(const struct gpu_mla_prefill *a);
struct gpu_launch gpu_launch_mla_attend(const struct gpu_mla_prefill *a, struct gpu_shape shape);

/* Launched in this order, each on what the one before it left. `rows`: of all sequences of
 * a->seqs together. What stands in a->seqs plays no part. */
struct gpu_launch gpu_launch_kda_prefill_chunks(const struct gpu_kda_prefill *a, uint32_t rows,
                                                struct gpu_shape shape);
struct gpu_launch gpu_launch_kda_prefill_states(const struct gpu_kda_prefill *a, uint32_t rows,
                                                struct gpu_shape shape);
struct gpu_launch gpu_launch_kda_prefill_out(const struct gpu_kda_prefill *a, uint32_t rows,
                                             struct gpu_shape shape);
/* Bytes of a->work for as many rows and sequences, or fewer: by n_seqs, heads, dim and taps. */
uint64_t gpu_kda_prefill_bytes(const struct gpu_kda_prefill *a, uint32_t rows,
                               struct gpu_shape shape);

#endif
