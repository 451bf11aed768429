/* cpu.h: what this machine gives the process: instruction sets, cores, memory. */
#ifndef WEIR_BASE_CPU_H
#define WEIR_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each includes the ones before it. */
enum cpu_level {
    CPU_PORTABLE,
    CPU_AVX2,        /* AVX2, FMA and F16C */
    CPU_AVX512,      /* F, BW, VL, DQ */
    CPU_AVX512_DOTS, /* dot products: AVX512_BF16 and VNNI */
    CPU_AMX, /* matrix tiles of BF16 and INT8, where the kernel lets this process use them */
    CPU_LEVELS
};

/* The widest level that processor and kernel support, lowered by
 * WEIR_CPU=portable|avx2|avx512|avx512dots (tests use it). The first call asks for the tiles. */
enum cpu_level cpu_best(void);
const char *cpu_level_name(enum cpu_level level);
/* What the processor calls itself; "" where the system does not tell. */
void cpu_model(char *out, size_t cap);
/* The same with family and model numbers: virtual machines call many processors by one name. */
void cpu_identity(char *out, size_t cap);
/* Cores this process may run on (affinity mask), at least 1. */
uint32_t cpu_count(void);

/* Bytes of memory this process may use: the machine's, or its container's limit where that is less.
 */
uint64_t memory_limit(void);

#endif
