/* variant.c: see variant.h. The defaults stand in one place. */
#include "ops/cpu/variant.h"

/* From 4 rows on matrix tiles were faster than dot products, from 7 tokens on chunks faster than
 * the recurrence, and the processor's own prefetching stops at the end of a page of 4 KiB. */
#define ALL UINT32_MAX

const struct cpu_variant cpu_variants[CPU_VARIANTS] = {
    [CPU_DEFAULT] = {"default", false, false, false, ALL, 4096, 4, 4, 7},
    [CPU_FIXED] = {"fixed", true, false, false, ALL, 4096, 4, 4, 7},
    [CPU_SINGLE] = {"single", false, true, false, ALL, 4096, 4, 4, 7},
    [CPU_CHUNK_1] = {"chunk-1", false, false, true, ALL, 4096, 4, 4, 7},
    [CPU_ACTS_2] = {"acts-2", false, false, false, 2, 4096, 4, 4, 7},
    [CPU_ACTS_4] = {"acts-4", false, false, false, 4, 4096, 4, 4, 7},
    [CPU_ACTS_8] = {"acts-8", false, false, false, 8, 4096, 4, 4, 7},
    [CPU_AHEAD_0] = {"ahead-0", false, false, false, ALL, 0, 4, 4, 7},
    [CPU_AHEAD_2K] = {"ahead-2k", false, false, false, ALL, 2048, 4, 4, 7},
    [CPU_AHEAD_16K] = {"ahead-16k", false, false, false, ALL, 16384, 4, 4, 7},
    [CPU_DOTS] = {"dots", false, false, false, ALL, 4096, ALL, 4, 7},
    [CPU_TASKS_1] = {"tasks-1", false, false, false, ALL, 4096, 4, 1, 7},
    [CPU_TASKS_8] = {"tasks-8", false, false, false, ALL, 4096, 4, 8, 7},
    [CPU_CHUNKS] = {"chunks", false, false, false, ALL, 4096, 4, 4, 2},
    [CPU_TOKENS] = {"tokens", false, false, false, ALL, 4096, 4, 4, ALL},
};
