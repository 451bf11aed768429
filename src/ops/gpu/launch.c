/* launch.c: see launch.h. Figures that were measured: docs/performance.md. */
#include "ops/gpu/launch.h"

#include "ops/kv.h"

#include <stdbool.h>

#define KERNEL_INFO(NAME, RECORD, FILE) {#NAME, #FILE, sizeof(struct RECORD)},
static const struct gpu_kernel_info kernels[] = {GPU_KERNELS(KERNEL_INFO)};

const struct gpu_kernel_info *gpu_kernel_info(enum gpu_kernel k) {
    return &kernels[k];
}

static const struct gpu_launch none = {.kernel = GPU_NO_KERNEL};
enum {
    BLOCKS_Y_MOST = 65535,    /* of a launch, on CUDA */
    SHARED_MOST = 227 * 1024, /* of a block, where there are clusters */
};

/* Threads of a block that have so many columns each of `cols`; whole waves of either width. */
static uint32_t row_threads(uint32_t cols, uint32_t each) {
    return gpu_divide_up(gpu_divide_up(cols, each), 64) * 64;
}

/* Blocks of a cluster that a row is given to: as many as leave none of the device's idle, while a
 * wave and more of each has something to do. */
static uint32_t row_members(uint32_t rows, uint32_t threads, struct gpu_shape shape) {
    uint32_t members = 1;
    while (2 * members <= shape.cluster && 2 * members * rows <= shape.multiprocessors &&
           threads / (2 * members) >= 64)
        members *= 2;
    return members;
}

struct gpu_launch gpu_launch_norm(const struct gpu_norm *a, uint32_t rows, struct gpu_shape shape) {
    enum { EIGHT_EACH = 4096 }; /* columns */
    if (a->cols > GPU_ROW_MOST)
        return none;
    /* Many blocks of few threads have more of memory under way than few of many. */
    const bool sixteen = a->cols > EIGHT_EACH || rows > 2 * shape.multiprocessors;
    return (struct gpu_launch){GPU_weir_norm, rows, 1, row_threads(a->cols, sixteen ? 16 : 8),
                               sizeof(struct gpu_norm_shared)};
}

/* The kernel that takes rows one after another. */
static struct gpu_launch mix_many(const struct gpu_mix_norm *a, struct gpu_shape shape) {
    const uint32_t threads = gpu_divide_up(gpu_divide_up(a->cols, 16), shape.wave) * shape.wave;
    const uint32_t rows = a->rows < shape.multiprocessors ? a->rows : shape.multiprocessors;
    return (struct gpu_launch){GPU_weir_mix_norm_many, rows, 1, threads,
                               (uint32_t)sizeof(struct gpu_mix_norm_shared) +
                                   (GPU_MIX_PIECES + a->n_bank) * 2 * threads * 16};
}

/* On an H200, 8 sources of 7168: one row 5.18 us by two blocks, 5.65 by four, 5.52 by eight; 32
 * rows 6.10 and 6.57 by four; 128 rows 14.6 by two blocks each, 11.7 by one. */
static uint8_t mix_way(const struct gpu_mix_norm *a, struct gpu_shape shape) {
    if (!shape.cluster)
        return GPU_MIX_BLOCK;
    if (2 * a->rows <= shape.multiprocessors || a->n_bank > GPU_MIX_SOURCES || a->cols % 8 ||
        a->gather || mix_many(a, shape).shared_bytes > SHARED_MOST)
        return GPU_MIX_SPLIT_2;
    return GPU_MIX_MANY;
}

struct gpu_launch gpu_launch_mix_norm(struct gpu_mix_norm *a, struct gpu_shape shape) {
    if (a->cols > GPU_ROW_MOST)
        return none;
    if (!a->way)
        a->way = mix_way(a, shape);
    if (a->way == GPU_MIX_BLOCK)
        return (struct gpu_launch){GPU_weir_mix_norm, a->rows, 1, row_threads(a->cols, 16),
                                   sizeof(struct gpu_mix_norm_shared)};
    if (a->way == GPU_MIX_MANY)
        return mix_many(a, shape);
    return (struct gpu_launch){GPU_weir_mix_norm_split,
                               a->rows * a->way,
                               1,
                               row_threads(gpu_divide_up(a->cols, a->way), 8),
                               sizeof(struct gpu_mix_norm_shared),
                               a->way};
}

/* Blocks that the parts need when `split` waves share a group of rows of W. */
static uint32_t blocks_of(struct gpu_linear *a, uint32_t rows_of_block) {
    uint32_t blocks = 0;
    for (uint32_t p = 0; p < a->n_parts; p++) {
        a->part[p].first_block = blocks;
        blocks += gpu_divide_up(a->part[p].rows, rows_of_block);
    }
    return blocks;
}

/* Blocks of tiles of so many rows of x by rows of W. */
static uint32_t tiles_of(struct gpu_linear *a, uint32_t x_rows, uint32_t rows) {
    uint32_t blocks = 0;
    for (uint32_t p = 0; p < a->n_parts; p++) {
        a->part[p].first_block = blocks;
        blocks += gpu_divide_up(a->x_rows, x_rows) * gpu_divide_up(a->part[p].rows, rows);
    }
    return blocks;
}

/* Whether any part is of FP8 matrices: the kernels of those take parts of BF16 as well. */
static bool has_fp8(const struct gpu_linear *a) {
    bool any = false;
    for (uint32_t p = 0; p < a->n_parts; p++)
        any |= a->part[p].fp8 != 0;
    return any;
}

/* Whether the results of every step begin at an even column. */
static bool in_pairs(const struct gpu_linear *a) {
    bool all = true;
    for (uint32_t p = 0; p < a->n_parts && a->steps > 1; p++)
        all &= a->part[p].y_step % 2 == 0;
    return all;
}

/* By warpgroups: the kernel whose rounds over the device take the least time. Clusters stay, each
 * for tiles of its members one below the other. On an H200 none of the other kernels of many rows
 * takes less time, whatever the shape. */
static struct gpu_launch by_warpgroups(struct gpu_linear *a, struct gpu_shape shape) {
#define BY_WARPGROUPS(NAME, ROWS, STAGES, TIME)                                                    \
    {GPU_weir_##NAME, ROWS, TIME, sizeof(struct gpu_##NAME##_shared)},
    static const struct {
        enum gpu_kernel kernel;
        uint32_t rows, time;
        size_t shared_bytes;
    } form[] = {GPU_GEMM_WG_KERNELS(BY_WARPGROUPS)};
    enum { MEMBERS = GPU_GEMM_WG_MEMBERS, X_ROWS = MEMBERS * GPU_GEMM_WG_X };
    const uint32_t steps = a->steps ? a->steps : 1, most = shape.multiprocessors / MEMBERS;
    uint64_t least = UINT64_MAX;
    uint32_t take = 0;
    for (uint32_t i = 0; i < sizeof form / sizeof *form; i++) {
        const uint32_t tiles = tiles_of(a, X_ROWS, form[i].rows) * steps;
        const uint64_t time = (uint64_t)form[i].time * gpu_divide_up(tiles, most);
        if (time < least) {
            least = time;
            take = i;
        }
    }
    const uint32_t tiles = tiles_of(a, X_ROWS, form[take].rows) * steps;
    return (struct gpu_launch){
        form[take].kernel,   (tiles < most ? tiles : most) * MEMBERS, 1,
        GPU_GEMM_WG_THREADS, (uint32_t)form[take].shared_bytes,       MEMBERS};
}

/* The kernel whose rounds over the device take less time. A tile of 128 by 64 is a third of one of
 * 192 by 128, but reads nearly twice as much for a multiplication: 5 to 9, by the figures for
 * bandwidth of a cache. */
static struct gpu_launch many_rows(struct gpu_linear *a, struct gpu_shape shape, enum gpu_way way) {
    enum { SMALL = 5, LARGE = 9 };
    const uint32_t steps = a->steps ? a->steps : 1, at_once = shape.multiprocessors;
    const uint64_t small = (uint64_t)SMALL * gpu_divide_up(tiles_of(a, 128, 64) * steps, at_once);
    const uint32_t blocks = tiles_of(a, 192, 128);
    const bool large = (uint64_t)LARGE * gpu_divide_up(blocks * steps, at_once) <= small;
    a->split = 1;
    if (shape.warpgroups && at_once >= GPU_GEMM_WG_MEMBERS && way != GPU_WAY_TILES_128 &&
        way != GPU_WAY_TILES_192 && in_pairs(a))
        return by_warpgroups(a, shape);
    if (way == GPU_WAY_TILES_192 || (large && way != GPU_WAY_TILES_128))
        return (struct gpu_launch){GPU_weir_gemm_192, blocks, steps, 8 * shape.wave,
                                   shape.wave == 32 ? sizeof(struct gpu_gemm_192_shared_32)
                                                    : sizeof(struct gpu_gemm_192_shared_64)};
    return (struct gpu_launch){GPU_weir_gemm_128, tiles_of(a, 128, 64), steps, 4 * shape.wave,
                               shape.wave == 32 ? sizeof(struct gpu_gemm_128_shared_32)
                                                : sizeof(struct gpu_gemm_128_shared_64)};
}

/* Blocks of many tiles read x less often, those of few leave multiprocessors less unequal work: the
 * kernel by which the fullest one reads the least. */
static struct gpu_launch some_rows(struct gpu_linear *a, struct gpu_shape shape, enum gpu_way way) {
#define SKINNY_KERNEL(FORM, NAME, TILES, ROWS)                                                     \
    {GPU_weir_##NAME,                                                                              \
     FORM,                                                                                         \
     TILES,                                                                                        \
     ROWS,                                                                                         \
     {sizeof(struct gpu_##NAME##_shared_32), sizeof(struct gpu_##NAME##_shared_64)}},
#define OF_BF16(NAME, TILES, ROWS, BLOCKS, STAGES) SKINNY_KERNEL(false, NAME, TILES, ROWS)
#define OF_FP8(NAME, TILES, ROWS, BLOCKS, STAGES_32, STAGES_64)                                    \
    SKINNY_KERNEL(true, NAME, TILES, ROWS)
    static const struct {
        enum gpu_kernel kernel;
        bool fp8;
        uint32_t tiles, rows;
        size_t shared_bytes[2];
    } skinny[] = {GPU_SKINNY_KERNELS(OF_BF16) GPU_SKINNY_FP8_KERNELS(OF_FP8)};
    enum { THREADS = 256, TILE = 16, N = sizeof skinny / sizeof *skinny };
    const uint32_t steps = a->steps ? a->steps : 1;
    const bool fp8 = has_fp8(a);
    uint32_t take = N;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t blocks = blocks_of(a, skinny[i].tiles * TILE) * steps;
        /* Bytes of a column: of W, and two each of x. */
        const uint32_t column = skinny[i].tiles * TILE * (fp8 ? 1 : 2) + skinny[i].rows * 2;
        uint64_t bytes = (uint64_t)gpu_divide_up(blocks, shape.multiprocessors) * column;
        if (way == GPU_WAY_NARROW || way == GPU_WAY_WIDE)
            bytes = way == GPU_WAY_NARROW ? skinny[i].tiles : TILE - skinny[i].tiles;
        if (skinny[i].fp8 != fp8 || a->x_rows > skinny[i].rows ||
            (take < N && skinny[i].rows > skinny[take].rows) || bytes >= least)
            continue;
        take = i;
        least = bytes;
    }
    a->split = THREADS / shape.wave;
    const uint32_t blocks = blocks_of(a, skinny[take].tiles * TILE);
    return (struct gpu_launch){skinny[take].kernel, blocks, steps, THREADS,
                               (uint32_t)skinny[take].shared_bytes[shape.wave == 64]};
}

/* As few waves for a group of rows as let all blocks be there at the same time: each must sum up at
 * the end, and blocks that come later begin with nothing on its way. More of them are there at a
 * time if each has less on its way. `a->split` is left alone where it is set. */
static struct gpu_launch few_rows(struct gpu_linear *a, struct gpu_shape shape) {
    enum {
        THREADS = 256,
        ROWS = GPU_GEMV_ROWS,
        RESIDENT = 3,
        BEGINNING = 256, /* as long as so many columns */
    };
    const uint32_t waves = THREADS / shape.wave, steps = a->steps ? a->steps : 1;
    const bool narrow = shape.wave == 32, fp8 = has_fp8(a);
    uint64_t least = UINT64_MAX;
    uint32_t best = 1, more = 0, cols = 0;
    for (uint32_t p = 0; p < a->n_parts; p++) {
        const uint32_t both = a->part[p].cols + (a->part[p].w2 ? a->part[p].cols2 : 0);
        cols = both > cols ? both : cols;
    }
    for (uint32_t with = 0; with < (a->x_rows == 1 ? 2u : 1u); with++)
        for (uint32_t split = a->split ? a->split : 1; split <= waves; split *= 2) {
            if (waves % split)
                return none;
            const uint32_t blocks = blocks_of(a, waves / split * ROWS) * steps;
            const uint32_t rounds =
                gpu_divide_up(blocks, (RESIDENT + with) * shape.multiprocessors);
            const uint64_t time = (uint64_t)rounds * (gpu_divide_up(cols, split) + BEGINNING);
            if (time < least) {
                least = time;
                best = split;
                more = with;
            }
            if (a->split)
                break;
        }
    if (least == UINT64_MAX)
        return none;
    a->split = best;
    const uint32_t blocks = blocks_of(a, waves / best * ROWS);
    if (more)
        return (struct gpu_launch){fp8 ? GPU_weir_gemv_fp8_1_more : GPU_weir_gemv_1_more, blocks,
                                   steps, THREADS,
                                   narrow ? sizeof(struct gpu_gemv_more_shared_32)
                                          : sizeof(struct gpu_gemv_more_shared_64)};
    const enum gpu_kernel one = fp8 ? GPU_weir_gemv_fp8_1 : GPU_weir_gemv_1;
    return (struct gpu_launch){a->x_rows == 1 ? one
                               : fp8          ? GPU_weir_gemv_fp8_2
                                              : GPU_weir_gemv_2,
                               blocks, steps, THREADS,
                               narrow ? sizeof(struct gpu_gemv_shared_32)
                                      : sizeof(struct gpu_gemv_shared_64)};
}

struct gpu_launch gpu_launch_linear(struct gpu_linear *a, struct gpu_shape shape) {
    return gpu_launch_linear_by(a, shape, GPU_WAY_RULE);
}

struct gpu_launch gpu_launch_linear_by(struct gpu_linear *a, struct gpu_shape shape,
                                       enum gpu_way way) {
    enum { GEMV_MOST = 2 /* measured: tiles take less time for three */, WAVES = 8 };
    if (a->n_parts > GPU_PARTS || a->steps > BLOCKS_Y_MOST)
        return none;
    for (uint32_t p = 0; p < a->n_parts; p++)
        if (a->part[p].cols % 8 || (a->part[p].w2 && a->part[p].cols2 % 8) ||
            a->part[p].w_step % 8 || a->part[p].x_step % 8 || (a->part[p].fp8 && a->steps > 1) ||
            (a->part[p].w2 && a->part[p].fp8 != a->part[p].fp8_2))
            return none;
    if (!a->x_rows || !a->n_parts || (a->x_rows > GPU_FP8_X_ROWS && has_fp8(a)))
        return none;
    if (a->x_rows > GPU_SKINNY_ROWS)
        return many_rows(a, shape, way);
    if (a->x_rows > GEMV_MOST)
        return some_rows(a, shape, way);
    if (way >= GPU_WAY_SPLIT_1 && way <= GPU_WAY_SPLIT_8 &&
        1u << (way - GPU_WAY_SPLIT_1) <= WAVES * 32 / shape.wave)
        a->split = 1u << (way - GPU_WAY_SPLIT_1);
    return few_rows(a, shape);
}

/* Kernels of KDA by tokens, for heads of 128, 64, 32, 16 and 8 in this order. */
static struct gpu_launch kda_tokens(const struct gpu_kda_step *a, uint32_t dim, uint32_t n_seqs,
                                    enum gpu_kernel of_128, uint32_t shared_bytes) {
    struct gpu_launch l = {of_128, a->heads, n_seqs, dim == 128 ? 256 : 64, shared_bytes};
    if (a->taps < 1 || a->taps > GPU_TAPS_MOST || n_seqs > BLOCKS_Y_MOST)
        return none;
    for (uint32_t d = 128; d >= 8; d /= 2, l.kernel++)
        if (d == dim)
            return l;
    return none;
}
/* The same by a cluster of `parts` blocks a head. */
static struct gpu_launch kda_parts(struct gpu_launch l, enum gpu_kernel kernel, uint32_t parts,
                                   uint32_t threads) {
    l.kernel = kernel;
    l.blocks_x *= parts;
    l.cluster = parts;
    l.threads = threads;
    return l;
}

/* A block forms all keys of its head, whatever part of it it has: two of them pay while each has a
 * multiprocessor for itself. (On an H200 12 heads of one sequence take 4.52 us in 2 parts and 4.75
 * in one; 8 sequences 7.15 and 6.78.) Devices with warpgroups have clusters too. */
struct gpu_launch gpu_launch_kda_step(const struct gpu_kda_step *a, uint32_t dim, uint32_t n_seqs,
                                      struct gpu_shape shape) {
    const struct gpu_launch l =
        kda_tokens(a, dim, n_seqs, GPU_weir_kda_step_128, sizeof(struct gpu_kda_step_shared));
    if (l.kernel != GPU_NO_KERNEL && dim == 128 && shape.warpgroups &&
        2ull * a->heads * n_seqs <= shape.multiprocessors)
        return kda_parts(l, GPU_weir_kda_step_128_by_2, 2, 256);
    return l;
}

/* Tokens take turns on a state, so that more parts pay than for one: 8 while each has a
 * multiprocessor for itself, and 2, whose state leaves registers for a third block a
 * multiprocessor, for more. (On an H200, of 4 tokens: 12 heads of one sequence 7.83 us in 8 parts,
 * 9.43 in 2 and 13.46 in one; 32 sequences 64.8, 32.2 and 39.6.) */
struct gpu_launch gpu_launch_kda_verify(const struct gpu_kda_verify *a, uint32_t dim,
                                        uint32_t n_seqs, struct gpu_shape shape) {
    const struct gpu_launch l = kda_tokens(&a->token, dim, n_seqs, GPU_weir_kda_verify_128,
                                           sizeof(struct gpu_kda_verify_shared));
    if (dim != 128 || !shape.warpgroups || l.kernel == GPU_NO_KERNEL)
        return l;
    if (8ull * a->token.heads * n_seqs <= shape.multiprocessors)
        return kda_parts(l, GPU_weir_kda_verify_128_by_8, 8, 128);
    return kda_parts(l, GPU_weir_kda_verify_128_by_2, 2, 256);
}

uint64_t gpu_kda_left_floats(uint32_t heads, uint32_t dim) {
    return (uint64_t)GPU_KDA_TOKENS_MOST * heads * dim * 9 / 2;
}

struct gpu_launch gpu_launch_route(const struct gpu_route *a) {
    enum { THREADS = 256, GROUPS_MOST = 128 };
    if (a->experts > GPU_EXPERTS_MOST || a->top_k > GPU_ROUTE_MOST || a->top_k > a->experts ||
        a->groups > GROUPS_MOST)
        return none;
    return (struct gpu_launch){GPU_weir_route, a->rows, 1, THREADS,
                               sizeof(struct gpu_route_shared)};
}

bool gpu_experts_many(uint64_t slots, uint32_t experts, enum gpu_way way) {
    enum { WORTH_TILES = 8 }; /* choices an expert */
    if (way == GPU_WAY_TILES || slots > GPU_EXPERT_SLOTS)
        return true;
    return way != GPU_WAY_STREAMS && slots >= (uint64_t)WORTH_TILES * experts;
}

static bool experts_fit(const struct gpu_experts *a) {
    return a->cols % (a->bf16 ? 8 : 32) == 0 && a->w_stride % 16 == 0 && a->slots && a->top_k &&
           a->slots % a->top_k == 0;
}

/* As many blocks as are there at the same time. */
static struct gpu_launch experts_few(const struct gpu_experts *a, enum gpu_kernel kernel,
                                     struct gpu_shape shape) {
    enum { RESIDENT = 2 };
    const bool narrow = shape.wave == 32;
    if (!experts_fit(a) || a->slots > GPU_EXPERT_SLOTS || a->experts > GPU_EXPERTS_MOST)
        return none;
    return (struct gpu_launch){kernel, RESIDENT * shape.multiprocessors, 1,
                               shape.wave * (narrow ? GPU_EXPERT_WAVES_32 : GPU_EXPERT_WAVES_64),
                               narrow ? sizeof(struct gpu_experts_shared_32)
                                      : sizeof(struct gpu_experts_shared_64)};
}

struct gpu_launch gpu_launch_experts_up(const struct gpu_experts *a, struct gpu_shape shape) {
    enum { THREADS = 256, TILE = 16 };
    if (a->slots != a->top_k || !experts_fit(a))
        return experts_few(a, a->bf16 ? GPU_weir_experts_up_bf16 : GPU_weir_experts_up, shape);
    return (struct gpu_launch){a->bf16 ? GPU_weir_experts_up_row_bf16 : GPU_weir_experts_up_row,
                               gpu_divide_up(a->rows, TILE), a->slots, THREADS,
                               sizeof(struct gpu_experts_row_shared)};
}

struct gpu_launch gpu_launch_experts_down(const struct gpu_experts *a, struct gpu_shape shape) {
    return experts_few(a, a->bf16 ? GPU_weir_experts_down_bf16 : GPU_weir_experts_down, shape);
}

struct gpu_launch gpu_launch_group(const struct gpu_group *a) {
    enum { THREADS = 256, SLOTS_MOST = 1 << 24 }; /* counts are summed as f32 */
    if (!a->slots || a->slots > SLOTS_MOST || !a->experts)
        return none;
    return (struct gpu_launch){GPU_weir_group, gpu_divide_up(a->experts, GPU_GROUP_EXPERTS), 1,
                               THREADS, sizeof(struct gpu_group_shared)};
}

/* However the choices fall, no more tiles than these: every expert has one at most that is not
 * full. */
static struct gpu_launch experts_many(const struct gpu_experts *a, uint32_t rows,
                                      struct gpu_shape shape, enum gpu_kernel kernel,
                                      enum gpu_kernel warpgroups) {
    enum { WORTH_BLOCKS = 4 }; /* a multiprocessor: with so many none is idle for long */
    const uint32_t tile = shape.wave == 32 ? GPU_MANY_TILE_32 : GPU_MANY_TILE_64;
    const uint64_t tiles = (uint64_t)a->slots / tile + a->experts;
    if (!experts_fit(a) || !a->experts || tiles > BLOCKS_Y_MOST)
        return none;
    if (shape.warpgroups && !a->bf16) {
        const uint32_t groups = gpu_divide_up(a->rows, rows);
        const uint32_t want = gpu_divide_up(WORTH_BLOCKS * shape.multiprocessors, (uint32_t)tiles);
        return (struct gpu_launch){warpgroups, want < groups ? want : groups, (uint32_t)tiles,
                                   GPU_MANY_WG_THREADS, sizeof(struct gpu_many_wg_shared)};
    }
    return (struct gpu_launch){kernel, gpu_divide_up(a->rows, rows * GPU_MANY_GROUPS),
                               (uint32_t)tiles, GPU_MANY_WAVES * shape.wave,
                               shape.wave == 32 ? sizeof(struct gpu_many_shared_32)
                                                : sizeof(struct gpu_many_shared_64)};
}

struct gpu_launch gpu_launch_experts_up_many(const struct gpu_experts *a, struct gpu_shape shape) {
    return experts_many(a, GPU_MANY_ROWS, shape,
                        a->bf16 ? GPU_weir_experts_up_many_bf16 : GPU_weir_experts_up_many,
                        GPU_weir_experts_up_many_wg);
}
struct gpu_launch gpu_launch_experts_down_many(const struct gpu_experts *a,
                                               struct gpu_shape shape) {
    return experts_many(a, 2 * GPU_MANY_ROWS, shape,
                        a->bf16 ? GPU_weir_experts_down_many_bf16 : GPU_weir_experts_down_many,
                        GPU_weir_experts_down_many_wg);
}

struct gpu_launch gpu_launch_combine(const struct gpu_combine *a, uint32_t rows,
                                     struct gpu_shape shape) {
    enum { THREADS = 512 };
    if (a->cols > GPU_ROW_MOST)
        return none;
    const uint32_t members = row_members(rows, row_threads(a->cols, 4), shape);
    const uint32_t cols = gpu_divide_up(a->cols, members);
    uint32_t each = 4; /* columns of a thread */
    while (row_threads(cols, each) > THREADS || row_threads(cols, each) * members > 2 * THREADS)
        each *= 2;
    return (struct gpu_launch){each == 4   ? GPU_weir_combine_1
                               : each == 8 ? GPU_weir_combine_2
                                           : GPU_weir_combine,
                               rows * members,
                               1,
                               row_threads(cols, each),
                               sizeof(struct gpu_norm_shared),
                               members};
}

/* Blocks of a cluster that a row of logits is given to. Where all clusters of the largest kind are
 * on the device at once each block keeps its share; else a block a multiprocessor reads its share
 * as often as it must. (On an H200 128 rows take 51 us by one block each and 83 by eight.) */
static uint32_t sample_members(uint32_t rows, struct gpu_shape shape) {
    enum { RESIDENT = 2 }; /* blocks that keep their share, of a multiprocessor */
    uint32_t members = 1;
    if (shape.cluster && rows * shape.cluster <= RESIDENT * shape.multiprocessors)
        return shape.cluster;
    while (2 * members <= shape.cluster && 2 * members * rows <= shape.multiprocessors)
        members *= 2;
    return members;
}

struct gpu_launch gpu_launch_sample(struct gpu_sample *a, uint32_t rows, struct gpu_shape shape) {
    enum { KEPT_BYTES = 90 << 10, EACH = 8 };
    const uint32_t blocks = gpu_divide_up(a->vocab, GPU_SAMPLE_BLOCK);
    if (!a->vocab || blocks > GPU_SAMPLE_BLOCKS)
        return none;
    if (!a->members)
        a->members = sample_members(rows, shape);
    const uint32_t share = gpu_divide_up(blocks, a->members);
    const uint32_t bytes = share * GPU_SAMPLE_ROW * (uint32_t)sizeof(float);
    a->kept = bytes <= KEPT_BYTES ? share : 0;
    const uint32_t wanted = row_threads(share * GPU_SAMPLE_BLOCK, EACH);
    const uint32_t most = a->members > 1 ? 512 : 1024;
    const uint32_t sort = sizeof(struct gpu_sample_sort);
    return (struct gpu_launch){GPU_weir_sample,
                               rows * a->members,
                               1,
                               wanted < most ? wanted : most,
                               (uint32_t)sizeof(struct gpu_sample_shared) +
                                   (a->kept && bytes > sort ? bytes : sort),
                               a->members};
}

_Static_assert((int)GPU_KV_SCALED == (int)KV_SCALED, "kernels read what others wrote");

/* Records as the kernels expect them. */
static bool history_fits(uint32_t latent, uint32_t extra, uint32_t record_bytes, bool fp8) {
    return latent <= GPU_LATENT_MOST && extra <= GPU_EXTRA_MOST && latent % 8 == 0 &&
           extra % 8 == 0 &&
           record_bytes == kv_record_bytes(fp8 ? DTYPE_FP8 : DTYPE_BF16, latent, extra);
}

/* Products of warpgroups cost by the head, so that only the room for queries bounds them. */
uint32_t gpu_mla_heads(uint32_t heads, struct gpu_shape shape) {
    enum { MANY = 48 };
    return shape.warpgroups && heads > GPU_MLA_HEADS ? MANY : GPU_MLA_HEADS;
}

struct gpu_launch gpu_launch_mla_split(const struct gpu_mla_decode *a, uint32_t rows,
                                       struct gpu_shape shape) {
    const bool panels =
        shape.warpgroups && a->latent == GPU_LATENT_MOST && a->extra == GPU_EXTRA_MOST;
    const uint32_t heads = panels && !a->fp8 ? gpu_mla_heads(a->heads, shape) : GPU_MLA_HEADS;
    const uint32_t tiles = gpu_divide_up(a->heads, heads);
    if (!history_fits(a->latent, a->extra, a->record_bytes, a->fp8) || !a->shares ||
        a->shares > GPU_SHARES_MOST || (uint64_t)tiles * rows > BLOCKS_Y_MOST)
        return none;
    struct gpu_launch l = {.blocks_x = a->shares, .blocks_y = tiles * rows};
    if (panels && a->fp8) {
        l.kernel = GPU_weir_mla_split_fp8_16;
        l.threads = GPU_MLA_FP8_WG_THREADS;
        l.shared_bytes = sizeof(struct gpu_mla_fp8_wg_shared);
    } else if (panels) {
        l.kernel = heads == GPU_MLA_HEADS ? GPU_weir_mla_split_16 : GPU_weir_mla_split_48;
        l.threads = GPU_MLA_WG_THREADS;
        l.shared_bytes = heads == GPU_MLA_HEADS ? sizeof(struct gpu_mla_wg_16_shared)
                                                : sizeof(struct gpu_mla_wg_48_shared);
    } else {
        l.kernel = a->fp8 ? GPU_weir_mla_split_fp8 : GPU_weir_mla_split;
        l.threads = 256;
        l.shared_bytes =
            shape.wave == 32 ? sizeof(struct gpu_mla_shared_32) : sizeof(struct gpu_mla_shared_64);
    }
    return l;
}

/* As many as keep every multiprocessor busy once. */
uint32_t gpu_mla_shares(uint32_t rows, uint32_t heads, struct gpu_shape shape) {
    uint64_t blocks = (uint64_t)rows * gpu_divide_up(heads, gpu_mla_heads(heads, shape));
    uint32_t shares = blocks ? (uint32_t)(shape.multiprocessors / blocks) : 1;
    return shares < 1 ? 1 : shares > GPU_SHARES_MOST ? GPU_SHARES_MOST : shares;
}

/* Whole pages. */
uint32_t gpu_mla_share(uint32_t shares, uint32_t positions) {
    uint32_t pages = gpu_divide_up(gpu_divide_up(positions, 64), shares);
    return (pages ? pages : 1) * 64;
}

/* As many latents a block as leave every multiprocessor something to do: a block of few has more
 * threads for the shares. */
struct gpu_launch gpu_launch_mla_merge(struct gpu_mla_decode *a, uint32_t rows,
                                       struct gpu_shape shape) {
    enum { LEAST = 64 };
    if (a->latent > GPU_LATENT_MOST || a->latent % 4 || !a->shares || a->shares > GPU_SHARES_MOST ||
        rows > BLOCKS_Y_MOST)
        return none;
    a->columns = GPU_LATENT_MOST;
    while (a->columns > LEAST && (uint64_t)rows * a->heads * gpu_divide_up(a->latent, a->columns) <
                                     2 * shape.multiprocessors)
        a->columns /= 2;
    return (struct gpu_launch){GPU_weir_mla_merge, a->heads * gpu_divide_up(a->latent, a->columns),
                               rows, GPU_MERGE_THREADS, sizeof(struct gpu_mla_merge_shared)};
}

/* Expanding costs every head 2 * latent * (nope + v_dim) operations a position, and saves each row
 * more than two thirds of 2 * (2 * latent + extra), and that the history is read for it alone: by
 * the figures of Kimi K3 and of the caches about 40 rows are worth it. Not measured. Where all of
 * it is the rows' own, less is expanded than they would read. */
bool gpu_mla_expand(uint32_t rows, uint32_t positions) {
    enum { WORTH_EXPANDING = 40, SMALL = 16 };
    return rows >= (rows == positions ? SMALL : WORTH_EXPANDING);
}

/* Tiles of so many that the numbers of all spans need, each its own. */
static uint32_t span_tiles(const struct gpu_mla_prefill *a, bool rows, uint32_t tile) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_spans; i++)
        n += gpu_divide_up(rows ? a->span[i].rows : a->span[i].end - a->span[i].from, tile);
    return n;
}

static bool spans_fit(const struct gpu_mla_prefill *a) {
    return history_fits(a->latent, a->extra, a->record_bytes, a->fp8) && a->n_spans &&
           a->n_spans <= GPU_MLA_SPANS && a->nope % 8 == 0 && a->v_dim % 8 == 0 &&
           a->nope + a->extra <= GPU_KEY_MOST && a->v_dim <= GPU_VALUE_MOST;
}

struct gpu_launch gpu_launch_mla_gather(const struct gpu_mla_prefill *a) {
    if (!spans_fit(a))
        return none;
    return (struct gpu_launch){GPU_weir_mla_gather, span_tiles(a, false, 64), 1, 256, 0};
}

struct gpu_launch gpu_launch_mla_attend(const struct gpu_mla_prefill *a, struct gpu_shape shape) {
    if (!spans_fit(a))
        return none;
    if (shape.warpgroups && a->nope == 128 && a->extra == 64 && a->v_dim == 128 &&
        a->latent == GPU_LATENT_MOST)
        return (struct gpu_launch){GPU_weir_mla_attend_wg, a->heads * span_tiles(a, true, 128), 1,
                                   GPU_MLA_ATTEND_WG_THREADS,
                                   sizeof(struct gpu_mla_attend_wg_shared)};
    return (struct gpu_launch){GPU_weir_mla_attend, a->heads * span_tiles(a, true, 64), 1,
                               4 * shape.wave, sizeof(struct gpu_mla_attend_shared)};
}

struct gpu_launch gpu_launch_mla_write(const struct gpu_mla_write *a, uint32_t rows) {
    if (!history_fits(a->latent, a->extra, a->record_bytes, a->fp8))
        return none;
    return (struct gpu_launch){a->fp8 ? GPU_weir_mla_write_fp8 : GPU_weir_mla_write, rows, 1, 64,
                               sizeof(struct gpu_norm_shared)};
}

/* 1024 pieces a block: many short blocks, as the device hands out memory's work best. */
struct gpu_launch gpu_launch_copy(const struct gpu_copy *a) {
    const uint64_t blocks = (a->pieces + 1023) / 1024;
    if (blocks > INT32_MAX)
        return none;
    return (struct gpu_launch){GPU_weir_copy, (uint32_t)blocks, 1, 256, 0};
}

struct gpu_launch gpu_launch_embed(const struct gpu_embed *a, uint32_t rows) {
    if (a->cols % 8)
        return none;
    return (struct gpu_launch){GPU_weir_embed, rows, 1, 256, 0};
}

struct gpu_launch gpu_launch_widen(const struct gpu_widen *a) {
    enum { THREADS = 256 };
    const uint64_t vectors = a->rows * (uint64_t)(GPU_FP8_ROW(a->cols) / 16);
    const uint64_t blocks = (vectors + THREADS - 1) / THREADS;
    if (a->cols % 8 || !blocks || blocks > INT32_MAX)
        return none;
    return (struct gpu_launch){GPU_weir_widen, (uint32_t)blocks, 1, THREADS, 0};
}

struct gpu_launch gpu_launch_glu(const struct gpu_glu *a, uint32_t rows) {
    enum { THREADS = 256 };
    if (rows > BLOCKS_Y_MOST)
        return none;
    return (struct gpu_launch){GPU_weir_glu, gpu_divide_up(a->cols, THREADS * 8), rows, THREADS, 0};
}

/* ------------------------------------------------------------------------- rows of KDA */

static uint32_t kda_rows_of_chunk(struct gpu_shape shape) {
    return shape.wave == 32 ? GPU_KDA_ROWS_32 : GPU_KDA_ROWS_64;
}
/* At most: a sequence's first and last chunk may have a single row. */
static uint64_t kda_chunks(const struct gpu_kda_prefill *a, uint32_t rows, struct gpu_shape shape) {
    uint64_t chunk = kda_rows_of_chunk(shape);
    uint64_t most = (rows + a->n_seqs * (2 * chunk - 2)) / chunk;
    return most < rows ? most : rows;
}
static uint32_t kda_keys(const struct gpu_kda_prefill *a) {
    return a->dim < GPU_KDA_KEYS_LEAST ? GPU_KDA_KEYS_LEAST : a->dim;
}

uint64_t gpu_kda_prefill_bytes(const struct gpu_kda_prefill *a, uint32_t rows,
                               struct gpu_shape shape) {
    uint64_t chunk = kda_rows_of_chunk(shape), keys = kda_keys(a);
    uint64_t windows = (uint64_t)a->n_seqs * 3 * (a->taps - 1) * a->heads * a->dim;
    uint64_t floats = chunk * keys * 9 / 2 + chunk * chunk + keys;
    return (windows + 7) / 8 * 16 + kda_chunks(a, rows, shape) * a->heads * floats * sizeof(float);
}

/* The kernel for heads of this size, of those for 128, 64 and 32 (and less). */
static struct gpu_launch kda_prefill(const struct gpu_kda_prefill *a, enum gpu_kernel of_128,
                                     struct gpu_launch l) {
    if (a->taps < 1 || a->taps > GPU_TAPS_MOST || !l.blocks_x || !l.blocks_y ||
        l.blocks_y > BLOCKS_Y_MOST)
        return none;
    switch (a->dim) {
    case 128: l.kernel = of_128; break;
    case 64: l.kernel = of_128 + 1; break;
    case 32:
    case 16:
    case 8: l.kernel = of_128 + 2; break;
    default: return none;
    }
    return l;
}

struct gpu_launch gpu_launch_kda_prefill_chunks(const struct gpu_kda_prefill *a, uint32_t rows,
                                                struct gpu_shape shape) {
    return kda_prefill(
        a, GPU_weir_kda_chunk_128,
        (struct gpu_launch){.blocks_x = a->heads,
                            .blocks_y = (uint32_t)kda_chunks(a, rows, shape),
                            .threads = 256,
                            .shared_bytes = shape.wave == 32
                                                ? sizeof(struct gpu_kda_chunk_shared_32)
                                                : sizeof(struct gpu_kda_chunk_shared_64)});
}

struct gpu_launch gpu_launch_kda_prefill_states(const struct gpu_kda_prefill *a, uint32_t rows,
                                                struct gpu_shape shape) {
    if (shape.warpgroups && a->dim == 128)
        return kda_prefill(
            a, GPU_weir_kda_states_wg,
            (struct gpu_launch){.blocks_x = a->heads * (128 / GPU_KDA_WG_VALUES),
                                .blocks_y = rows ? a->n_seqs : 0,
                                .threads = GPU_KDA_WG_THREADS,
                                .shared_bytes = sizeof(struct gpu_kda_states_wg_shared)});
    return kda_prefill(
        a, GPU_weir_kda_states_128,
        (struct gpu_launch){.blocks_x = a->heads * gpu_divide_up(a->dim, 16),
                            .blocks_y = rows ? a->n_seqs : 0,
                            .threads = kda_rows_of_chunk(shape) / 16 * 2 * shape.wave,
                            .shared_bytes = sizeof(struct gpu_kda_states_shared)});
}

struct gpu_launch gpu_launch_kda_prefill_out(const struct gpu_kda_prefill *a, uint32_t rows,
                                             struct gpu_shape shape) {
    struct gpu_launch l = gpu_launch_kda_prefill_chunks(a, rows, shape);
    if (l.kernel != GPU_NO_KERNEL)
        l.kernel = GPU_weir_kda_out;
    l.shared_bytes = 0;
    return l;
}
