/* cpu.h: what this machine gives the process: instruction sets, cores, memory. */
#ifndef WEIR_BASE_CPU_H
#define WEIR_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

enum cpu_level {
    CPU_PORTABLE,
    CPU_AVX2,
    CPU_AVX512
}; /* AVX2 means AVX2+FMA+F16C; AVX512 means F, BW, VL, DQ */

/* The widest level that processor and kernel support, lowered by WEIR_CPU=portable|avx2|avx512
 * (tests use it). */
enum cpu_level cpu_best(void);
const char *cpu_level_name(enum cpu_level level);
/* Cores this process may run on (affinity mask), at least 1. */
uint32_t cpu_count(void);

/* Bytes of memory this process may use: the machine's, or its container's limit where that is less.
 */
uint64_t memory_limit(void);

#endif
