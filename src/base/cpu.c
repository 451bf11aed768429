/* cpu.c: feature detection. Called by ops/cpu to choose its files and by the engine to size the
 * team. */
#include "base/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

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
