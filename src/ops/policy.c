/* policy.c: see policy.h. Rows are read from the top and the first that fits counts. Sources:
 * vLLM's public changes 35850 (8 heads), 50578 (heads, partitions, dispatch), 51232 and 51403
 * (FP8), 51647 (24 heads), 54899 (96 heads), 51705 (queries), 58045 (tiles of verification), 54038
 * (groups of chunks, LDS); spec/gpu-kernels.md 2.2 to 2.4 and 2.10 for NVIDIA; spec/kimi-k3.md 5.4.
 */
#include "ops/policy.h"

#include <string.h>

#define ROWS(TABLE) (sizeof(TABLE) / sizeof(TABLE)[0])

enum { NVIDIA = POLICY_SM90 | POLICY_SM103, ALL = NVIDIA | POLICY_GFX950 };
#define ANY UINT32_MAX

bool policy_machine_of(const char *architecture, enum policy_machine *out) {
    static const struct {
        const char *architecture;
        enum policy_machine machine;
    } table[] = {{"sm_90", POLICY_SM90}, {"sm_103", POLICY_SM103}, {"gfx950", POLICY_GFX950}};
    for (size_t i = 0; i < ROWS(table); i++)
        if (!strcmp(table[i].architecture, architecture)) {
            *out = table[i].machine;
            return true;
        }
    return false;
}

const char *policy_fill_name(enum policy_fill f) {
    switch (f) {
    case POLICY_FILL_NONE: return "none";
    case POLICY_FILL_REPEAT: return "repeat";
    case POLICY_FILL_CYCLE: return "cycle";
    case POLICY_FILL_ZERO: return "zero";
    }
    return "none";
}

/* --------------------------------------------------------------------------- latent attention */

/* `multiple` 1: as they are; 0: only whole multiples of 16 are taken. */
static const struct {
    int machines;
    uint32_t first, last; /* rows */
    uint32_t multiple, tile;
    enum policy_fill fill; /* where they must be filled */
    const char *reason;
} heads_table[] = {
    {POLICY_GFX950, 24, 24, 1, 128, POLICY_FILL_NONE,
     "the assembly kernel has a build for 24 heads; padded to 32 a quarter would be waste"},
    {POLICY_GFX950, 96, 96, 128, 128, POLICY_FILL_ZERO,
     "gathered heads in one pass of 128: folded into tiles of 16 they read the history 6 times "
     "(published: 190.8 us as 128; 183.6 in a later build that runs 96 as they are)"},
    {POLICY_GFX950, 1, 128, 16, 128, POLICY_FILL_CYCLE,
     "the kernel that splits the history takes heads in multiples of 16; without it one workgroup "
     "walks all of it (published: 43.8 to 23.6 ms a token at 32K)"},
    {POLICY_GFX950, 129, ANY, 0, 128, POLICY_FILL_NONE,
     "beyond 128 heads the kernel takes multiples of 16 alone"},
    {NVIDIA, 1, 47, 16, 48, POLICY_FILL_ZERO,
     "rows are filled in the matrix tile alone: nothing is copied, and a tile of 64 rows would be "
     "mostly waste"},
    {NVIDIA, 48, ANY, 64, 64, POLICY_FILL_ZERO,
     "from 48 rows on tiles of 64, each of which reads the history once for all of its rows"},
};

struct policy_heads policy_heads(enum policy_machine m, uint32_t heads, uint32_t queries) {
    const uint32_t rows = m & NVIDIA ? heads * queries : heads;
    struct policy_heads h = {.reason = "no rule for so many heads"};
    for (size_t i = 0; i < ROWS(heads_table); i++) {
        if (!(heads_table[i].machines & m) || rows < heads_table[i].first ||
            rows > heads_table[i].last)
            continue;
        const uint32_t multiple = heads_table[i].multiple;
        h.reason = heads_table[i].reason;
        h.tile = heads_table[i].tile;
        if (!multiple) {
            h.heads = rows % 16 ? 0 : rows;
            return h;
        }
        h.heads = (rows + multiple - 1) / multiple * multiple;
        if (h.heads != rows)
            h.fill = heads_table[i].fill;
        if (h.fill == POLICY_FILL_CYCLE && h.heads % rows == 0) {
            h.fill = POLICY_FILL_REPEAT;
            h.repeat = h.heads / rows;
        }
        return h;
    }
    return h;
}

static const struct {
    int machines;
    uint32_t most, to; /* `to` 0: as many as there are */
    bool own_sequence;
    const char *reason;
} queries_table[] = {
    {ALL, 1, 1, false, "one query"},
    {POLICY_GFX950, 4, 4, false,
     "the assembly kernel has builds for 1 and 4 queries: 2 and 3 are led by rows of zeros, since "
     "its causal window is aligned to the right"},
    {POLICY_GFX950, ANY, 0, true,
     "each query is a sequence of its own over the same pages and reads the history for itself"},
    {NVIDIA, ANY, 0, false,
     "all queries in one tile, each row with a length of its own: where ranks share a history the "
     "lengths do not grow by one, so that a causal window from the right would be wrong"},
};

struct policy_queries policy_queries(enum policy_machine m, uint32_t queries) {
    size_t i = 0;
    while (!(queries_table[i].machines & m) || queries > queries_table[i].most)
        i++;
    return (struct policy_queries){queries_table[i].to ? queries_table[i].to : queries,
                                   queries_table[i].own_sequence, queries_table[i].reason};
}

static const struct {
    int machines;
    uint32_t fixed; /* 0: as many as fill the device once (gpu_mla_shares) */
    const char *reason;
} splits_table[] = {
    {POLICY_GFX950, 16, "the assembly kernel cuts every history into 16"},
    {NVIDIA, 0, "as many as give every multiprocessor one workgroup"},
};

struct policy_splits policy_splits(enum policy_machine m, uint32_t tiles, struct gpu_shape shape) {
    size_t i = 0;
    while (!(splits_table[i].machines & m))
        i++;
    const uint32_t fill = gpu_mla_shares(tiles, GPU_MLA_HEADS, shape);
    return (struct policy_splits){splits_table[i].fixed ? splits_table[i].fixed : fill,
                                  splits_table[i].reason};
}

static const struct {
    int machines;
    uint32_t first, last; /* queries of a sequence */
    bool fallback;
    const char *variant, *reason;
} fp8_table[] = {
    {POLICY_GFX950, 1, 1, true, "fp8_asm_fp8_query",
     "16 heads, one query: no public kernel takes a BF16 query with FP8 history, and ranks that "
     "ask for it die at the start; the query is rounded to FP8 too, which costs accuracy"},
    {POLICY_GFX950, 2, ANY, false, "fp8_asm",
     "the assembly kernel reads FP8 history for several queries; the other takes a batch of 1"},
    {POLICY_SM90, 1, ANY, true, "bf16_in_shared",
     "the public dense kernel for Hopper reads BF16 alone: FP8 is made BF16 in shared memory, "
     "once a block, and only the bytes from memory are saved"},
    {POLICY_SM103, 1, ANY, false, "fp8_mma",
     "matrix instructions take FP8; the query is rounded to FP8 too"},
};

struct policy_history policy_fp8_history(enum policy_machine m, uint32_t queries) {
    for (size_t i = 0; i < ROWS(fp8_table); i++)
        if (fp8_table[i].machines & m && queries >= fp8_table[i].first &&
            queries <= fp8_table[i].last)
            return (struct policy_history){fp8_table[i].variant, fp8_table[i].reason,
                                           fp8_table[i].fallback};
    return (struct policy_history){"none", "no rule for so many queries", true};
}

/* --------------------------------------------------------------------------- KDA */

static const struct {
    uint64_t most; /* heads times sequences */
    struct policy_tile tile;
} tile_table[] = {
    {24,
     {4, 1, "at most 24 heads of all sequences: tiles of 32 columns would leave most units idle"}},
    {96, {8, 1, "25 to 96 heads of all sequences: tiles of 8 columns fill the device"}},
    {UINT64_MAX, {32, 4, "more than 96 heads of all sequences fill the device with wide tiles"}},
};

struct policy_tile policy_verify_tile(uint32_t heads, uint32_t sequences) {
    size_t i = 0;
    while ((uint64_t)heads * sequences > tile_table[i].most)
        i++;
    return tile_table[i].tile;
}

/* Groups are as many as fill the device: with `deep` or more chunks left in each by the blocks of
 * the second pass alone, else by those of the first. */
static const struct {
    int machines;
    uint32_t first, second;           /* workgroups of a head's group in each pass */
    uint32_t fill_first, fill_second; /* as such rules count them */
    uint32_t deep;
    uint32_t chunks_least; /* in a group */
    uint32_t most, least;  /* groups; fewer than `least` are not worth the second pass */
    const char *reason, *reason_one;
} groups_table[] = {
    {POLICY_GFX950, 2, 1, 2, 1, 12, 4, 32, 4,
     "groups of chunks fill the units: by the second pass if that leaves 12 chunks to a group, "
     "else by the first; 4 chunks at least, 32 groups at most",
     "fewer than 4 groups are not worth a second pass (2 take as long as 1)"},
    {NVIDIA, 2, 2, 1, 1, 0, 8, ANY, 2,
     "two workgroups of 64 value columns a group, two of them a multiprocessor; 8 chunks at least",
     "heads of all sequences fill the device, or too few chunks to part"},
};

static uint32_t least_of(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct policy_groups policy_prefill_groups(enum policy_machine m, uint32_t units, uint32_t heads,
                                           uint32_t sequences, uint32_t tokens) {
    size_t i = 0;
    while (!(groups_table[i].machines & m))
        i++;
    const uint64_t all = (uint64_t)heads * sequences;
    const uint32_t chunks = tokens / POLICY_CHUNK + (tokens % POLICY_CHUNK > 0);
    struct policy_groups g = {.groups = 1, .reason = groups_table[i].reason_one};
    if (all) {
        const uint32_t few = (uint32_t)(units / (all * groups_table[i].fill_first));
        const uint32_t many = (uint32_t)(units / (all * groups_table[i].fill_second));
        uint32_t n = many && chunks / many >= groups_table[i].deep ? many : few;
        n = least_of(least_of(n, chunks / groups_table[i].chunks_least), groups_table[i].most);
        if (n >= groups_table[i].least) {
            g.groups = n;
            g.reason = groups_table[i].reason;
        }
    }
    g.first = g.groups > 1 ? all * g.groups * groups_table[i].first : 0;
    g.second = all * g.groups * groups_table[i].second;
    return g;
}

/* --------------------------------------------------------------------------- resources */

struct policy_local policy_kda_prepare_local(enum policy_machine m) {
    if (m == POLICY_GFX950)
        return (struct policy_local){81408, "tiles of q and k share their place and the triangle "
                                            "keeps 10 of its 16 blocks: 79.5 KiB, so that two fit"};
    return (struct policy_local){0, "not known"};
}

struct policy_reduce policy_reduce(uint32_t rows) {
    static const struct {
        uint32_t most;
        struct policy_reduce reduce;
    } table[] = {
        {64, {"one_shot", "up to 64 rows every rank reads all: one exchange of signals"}},
        {ANY, {"two_shot", "more than 64 rows: each rank sums its part, then all gather"}},
    };
    size_t i = 0;
    while (rows > table[i].most)
        i++;
    return table[i].reduce;
}
