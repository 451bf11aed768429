/* arena.c: memory by lifetime, mapped from the system. Called by load, cache, forward, engine. */
#include "base/arena.h"

#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

int arena_open(struct arena *a, size_t size) {
    memset(a, 0, sizeof *a);
    if (size == 0)
        size = 64;
    if (size > SIZE_MAX - 2 * (size_t)HUGE_PAGE)
        return -1;
    size = arena_piece(size);
    /* Over-map and trim, because mmap aligns to 4 KiB only and a huge page needs a 2 MiB border. */
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : 4096;
    size_t span = size + align;
    unsigned char *raw =
        mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return -1;
    unsigned char *base = (unsigned char *)(((uintptr_t)raw + align - 1) & ~(uintptr_t)(align - 1));
    size_t keep = (size + 4095) & ~(size_t)4095;
    if (base > raw)
        munmap(raw, (size_t)(base - raw));
    size_t behind = (size_t)(raw + span - (base + keep));
    if (behind)
        munmap(base + keep, behind);
    if (size >= HUGE_PAGE)
        madvise(base, keep, MADV_HUGEPAGE);
    a->base = base;
    a->size = keep;
    return 0;
}

void arena_close(struct arena *a) {
    if (a->base)
        munmap(a->base, a->size);
    memset(a, 0, sizeof *a);
}

void *arena_take(struct arena *a, size_t bytes) {
    size_t n = arena_piece(bytes);
    if (n < bytes || n > a->size - a->used)
        return NULL;
    void *p = a->base + a->used;
    a->used += n;
    return p;
}
