/* cpu.c: feature detection. Called by ops/cpu to choose its files and by the engine to size the
 * team. */
#include "base/cpu.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum cpu_level cpu_best(void) {
    enum cpu_level best = CPU_PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = CPU_AVX2;
    if (best == CPU_AVX2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        best = CPU_AVX512;
#endif
    const char *wish = getenv("WEIR_CPU");
    for (enum cpu_level l = CPU_PORTABLE; wish && l < best; l++)
        if (strcmp(wish, cpu_level_name(l)) == 0)
            return l;
    return best;
}

const char *cpu_level_name(enum cpu_level level) {
    switch (level) {
    case CPU_PORTABLE: return "portable";
    case CPU_AVX2: return "avx2";
    case CPU_AVX512: return "avx512";
    }
    return "?";
}

uint32_t cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : (uint32_t)n;
}

/* The number in a one-line file; UINT64_MAX where there is none, or the word "max". */
static uint64_t limit_in(const char *path) {
    uint64_t bytes = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f)
        return bytes;
    if (fscanf(f, "%" SCNu64, &bytes) != 1)
        bytes = UINT64_MAX;
    fclose(f);
    return bytes;
}

uint64_t memory_limit(void) {
    /* Where a container sees its own limit: control groups version 2 and version 1. Without one,
     * version 1 shows a number larger than any machine. */
    static const char *const files[] = {"/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t least = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        uint64_t limit = limit_in(files[i]);
        least = limit < least ? limit : least;
    }
    return least;
}
