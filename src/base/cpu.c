/* cpu.c: feature detection. Called by ops/cpu to choose its files and by the engine to size the
 * team. */
#include "base/cpu.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
/* Linux gives the tiles' state (8 KiB a thread) only to who asks; once, for the whole process. */
static bool may_use_tiles(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

/* What compilers of some age do not name: CPUID leaf 7, sub-leaf 0, EDX bits 22 (AMX-BF16), 24
 * (AMX-TILE) and 25 (AMX-INT8). */
static bool has_tiles(void) {
    unsigned a, b, c, d;
    const unsigned all = 1u << 22 | 1u << 24 | 1u << 25;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all;
}
#endif

static enum cpu_level find_best(void) {
    enum cpu_level best = CPU_PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = CPU_AVX2;
    if (best == CPU_AVX2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        best = CPU_AVX512;
    if (best == CPU_AVX512 && __builtin_cpu_supports("avx512bf16") &&
        __builtin_cpu_supports("avx512vnni"))
        best = CPU_AVX512_DOTS;
    if (best == CPU_AVX512_DOTS && has_tiles() && may_use_tiles())
        best = CPU_AMX;
#endif
    return best;
}

enum cpu_level cpu_best(void) {
    static _Atomic int known = -1; /* finding it twice at once does no harm */
    int level = known;
    if (level < 0)
        known = level = (int)find_best();
    enum cpu_level best = (enum cpu_level)level;
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
    case CPU_AVX512_DOTS: return "avx512dots";
    case CPU_AMX: return "amx";
    case CPU_LEVELS: break;
    }
    return "?";
}

/* The value of the first processor's line "key : value". */
static void cpuinfo(const char *key, char *out, size_t cap) {
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256], *value = NULL;
    size_t n = strlen(key);
    while (f && !value && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && line[n + strspn(line + n, " \t")] == ':') {
            value = strchr(line, ':') + 1;
            value += *value == ' ';
            value[strcspn(value, "\n")] = 0;
        }
    if (f)
        fclose(f);
    snprintf(out, cap, "%s", value ? value : "");
}

void cpu_model(char *out, size_t cap) {
    cpuinfo("model name", out, cap);
}

void cpu_identity(char *out, size_t cap) {
    char name[96], family[16], model[16];
    cpuinfo("model name", name, sizeof name);
    cpuinfo("cpu family", family, sizeof family);
    cpuinfo("model", model, sizeof model);
    snprintf(out, cap, "%s, family %s, model %s", name, family, model);
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
