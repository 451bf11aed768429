/* cpu.c: the choice among the instruction sets that one binary holds. Called by the engine, tests
 * and benches. */
#include "ops/cpu/cpu.h"

#include <stddef.h>

#if defined(__x86_64__) && !defined(WEIR_PORTABLE_ALONE)
#define HAS_VECTOR_SETS
#endif

extern const struct column cpu_portable_columns[ACTIVATIONS];
#if defined(HAS_VECTOR_SETS)
extern const struct column cpu_avx2_columns[ACTIVATIONS], cpu_avx512_columns[ACTIVATIONS],
    cpu_dots_columns[ACTIVATIONS], cpu_amx_columns[ACTIVATIONS];
#endif

const struct column *column_cpu(enum cpu_level level, enum activation a) {
    if (level > cpu_best())
        return NULL;
    switch (level) {
    case CPU_PORTABLE: return &cpu_portable_columns[a];
#if defined(HAS_VECTOR_SETS)
    case CPU_AVX2: return &cpu_avx2_columns[a];
    case CPU_AVX512: return &cpu_avx512_columns[a];
    case CPU_AVX512_DOTS: return a == ACTIVATION_F32 ? NULL : &cpu_dots_columns[a];
    case CPU_AMX: return a == ACTIVATION_F32 ? NULL : &cpu_amx_columns[a];
#else
    case CPU_AVX2:
    case CPU_AVX512:
    case CPU_AVX512_DOTS:
    case CPU_AMX: break;
#endif
    case CPU_LEVELS: break;
    }
    return NULL;
}

uint32_t column_list(const struct column *out[CPU_COLUMNS]) {
    uint32_t n = 0;
    for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++)
        for (enum activation a = ACTIVATION_F32; a < ACTIVATIONS; a++)
            if (column_cpu(l, a))
                out[n++] = column_cpu(l, a);
    return n;
}

const struct column *column_fast(enum activation a) {
    const struct column *best = NULL;
    for (enum cpu_level l = CPU_PORTABLE; l < CPU_LEVELS; l++)
        if (column_cpu(l, a))
            best = column_cpu(l, a);
    return best;
}
