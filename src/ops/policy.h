/* policy.h: which variant of a GPU kernel a shape should take, as rows of tables: a machine, a
 * range of shapes, what follows, and why. Pure functions over constant rows: nothing here allocates
 * or fails. What weir's own kernels take is launch.h's business (ops/gpu); rows name variants
 * whether or not weir has them, and whoever prints them says which it lacks. Figures in reasons
 * were published by others, for their kernels. */
#ifndef WEIR_OPS_POLICY_H
#define WEIR_OPS_POLICY_H

#include "ops/gpu/launch.h"

#include <stdbool.h>

/* Kinds of machines; sets of them in rows. */
enum policy_machine {
    POLICY_SM90 = 1,   /* H200 */
    POLICY_SM103 = 2,  /* B300 */
    POLICY_GFX950 = 4, /* MI355X */
};
/* By the name in src/machine/gpus.json. False: no rules for it. */
bool policy_machine_of(const char *architecture, enum policy_machine *out);

/* How the heads that a kernel has too many of are filled. Heads are rows that know nothing of each
 * other, so every way is exact; results of the added ones are dropped. */
enum policy_fill {
    POLICY_FILL_NONE,
    POLICY_FILL_REPEAT, /* each head so many times in a row, every so manieth result is taken */
    POLICY_FILL_CYCLE,  /* the list of heads again from its start, cut at the end */
    POLICY_FILL_ZERO,
};
const char *policy_fill_name(enum policy_fill f);

/* Rows of latent attention: the heads, or on NVIDIA the heads of all queries of a sequence. */
struct policy_heads {
    uint32_t heads;  /* that the kernel takes; 0: none takes them */
    uint32_t tile;   /* of them in one workgroup, at most */
    uint32_t repeat; /* of POLICY_FILL_REPEAT */
    enum policy_fill fill;
    const char *reason;
};
struct policy_heads policy_heads(enum policy_machine m, uint32_t heads, uint32_t queries);

/* Queries of a sequence that verifies drafts. */
struct policy_queries {
    uint32_t queries;  /* that the kernel takes; added ones lead */
    bool own_sequence; /* each query is a sequence of its own over the same pages */
    const char *reason;
};
struct policy_queries policy_queries(enum policy_machine m, uint32_t queries);

/* Partitions that each history is cut into, where all sequences have so many tiles of rows. */
struct policy_splits {
    uint32_t splits;
    const char *reason;
};
struct policy_splits policy_splits(enum policy_machine m, uint32_t tiles, struct gpu_shape shape);

/* Value columns of a head that one workgroup of KDA takes where several tokens are verified. */
struct policy_tile {
    uint32_t columns, waves;
    const char *reason;
};
struct policy_tile policy_verify_tile(uint32_t heads, uint32_t sequences);

/* Groups that the chunks (64 tokens) of each sequence are cut into where KDA reads a prompt; 1: the
 * chunks are walked in order. Workgroups of the first pass (each group from the zero state) and of
 * the second (from the true one); without groups there is the second alone. */
struct policy_groups {
    uint32_t groups;
    uint64_t first, second;
    const char *reason;
};
enum { POLICY_CHUNK = 64 };
struct policy_groups policy_prefill_groups(enum policy_machine m, uint32_t units, uint32_t heads,
                                           uint32_t sequences, uint32_t tokens);

/* What reads a history of FP8 values. */
struct policy_history {
    const char *variant, *reason;
    bool fallback; /* not what was asked for, and something is lost by it */
};
struct policy_history policy_fp8_history(enum policy_machine m, uint32_t queries);

/* What the kernel that prepares KDA's chunks asks of local memory (LDS, shared), in bytes; 0: it is
 * not known. */
struct policy_local {
    uint32_t bytes;
    const char *reason;
};
struct policy_local policy_kda_prepare_local(enum policy_machine m);

/* How ranks put sums of so many rows together. */
struct policy_reduce {
    const char *variant, *reason;
};
struct policy_reduce policy_reduce(uint32_t rows);

#endif
