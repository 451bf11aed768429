/* cpu.c: the choice among the instruction sets that one binary holds. Called by the engine, tests
 * and benches. */
#include "ops/cpu/cpu.h"

#include <stddef.h>

extern const struct column cpu_portable_column;
#if defined(__x86_64__)
extern const struct column cpu_avx2_column, cpu_avx512_column;
#endif

const struct column *column_cpu(enum cpu_level level) {
    if (level > cpu_best())
        return NULL;
    switch (level) {
    case CPU_PORTABLE: return &cpu_portable_column;
#if defined(__x86_64__)
    case CPU_AVX2: return &cpu_avx2_column;
    case CPU_AVX512: return &cpu_avx512_column;
#else
    case CPU_AVX2:
    case CPU_AVX512: break;
#endif
    }
    return NULL;
}

const struct column *column_fast(void) {
    return column_cpu(cpu_best());
}
