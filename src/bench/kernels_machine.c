/* kernels_machine.c: see kernels_machine.h. Called by kernels.c and kernels_json.c. */
#include "bench/kernels_machine.h"

#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first line of a file without its end; false: no such file. */
static bool first_line(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool got = fgets(out, (int)cap, f) != NULL;
    fclose(f);
    if (got)
        out[strcspn(out, "\n")] = 0;
    return got;
}

static json_t *text_or_null(const char *s) {
    json_t *t = s && *s ? json_string(s) : NULL;
    return t ? t : json_null();
}

/* "32768K" and the like. */
static uint64_t size_of(const char *text) {
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    return *end == 'K' ? n << 10 : *end == 'M' ? n << 20 : n;
}

struct cache {
    uint64_t bytes;
    char type[24], level[8], shared[64];
};

static bool cache_at(int i, struct cache *c) {
    static const char *const base = "/sys/devices/system/cpu/cpu0/cache/index";
    char path[128], size[32];
    *c = (struct cache){0};
    snprintf(path, sizeof path, "%s%d/size", base, i);
    if (!first_line(path, size, sizeof size))
        return false;
    c->bytes = size_of(size);
    snprintf(path, sizeof path, "%s%d/type", base, i);
    first_line(path, c->type, sizeof c->type);
    snprintf(path, sizeof path, "%s%d/level", base, i);
    first_line(path, c->level, sizeof c->level);
    snprintf(path, sizeof path, "%s%d/shared_cpu_list", base, i);
    first_line(path, c->shared, sizeof c->shared);
    return true;
}

uint64_t machine_last_cache_bytes(void) {
    struct cache c;
    uint64_t most = 0;
    for (int i = 0; i < 8 && cache_at(i, &c); i++)
        most = c.bytes > most ? c.bytes : most;
    return most ? most : 32u << 20;
}

/* Vector extensions that matter here. */
static json_t *extensions(void) {
    json_t *list = json_array();
#if defined(__x86_64__)
#define HAS(NAME)                                                                                  \
    if (__builtin_cpu_supports(NAME))                                                              \
    json_array_append_new(list, json_string(NAME))
    __builtin_cpu_init();
    HAS("avx2");
    HAS("fma");
    HAS("avx512f");
    HAS("avx512bw");
    HAS("avx512vl");
    HAS("avx512dq");
    HAS("avx512vnni");
    HAS("avx512bf16");
#undef HAS
#endif
    return list;
}

json_t *machine_json(uint32_t threads) {
    char pages[128] = "";
    first_line("/sys/kernel/mm/transparent_hugepage/enabled", pages, sizeof pages);
    char *open = strchr(pages, '['), *mode = open ? open + 1 : NULL;
    if (mode)
        mode[strcspn(mode, "]")] = 0;
    struct utsname u;
    char kernel[160] = "", model[256];
    cpu_model(model, sizeof model);
    if (uname(&u) == 0)
        snprintf(kernel, sizeof kernel, "%.60s %.80s", u.sysname, u.release);
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    json_t *caches = json_array();
    struct cache c;
    for (int i = 0; i < 8 && cache_at(i, &c); i++)
        json_array_append_new(caches,
                              json_pack("{s:o,s:o,s:I,s:o}", "level", text_or_null(c.level), "type",
                                        text_or_null(c.type), "bytes", (json_int_t)c.bytes,
                                        "shared_by", text_or_null(c.shared)));
    return json_pack("{s:o,s:I,s:I,s:I,s:s,s:o,s:o,s:I,s:o,s:o}", "model", text_or_null(model),
                     "cores", (json_int_t)all, "usable_cores", (json_int_t)cpu_count(), "threads",
                     (json_int_t)threads, "isa", cpu_level_name(cpu_best()), "extensions",
                     extensions(), "kernel", text_or_null(kernel), "memory_bytes",
                     (json_int_t)memory_limit(), "huge_pages", text_or_null(mode), "caches",
                     caches);
}
