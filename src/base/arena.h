/* arena.h: one allocation per lifetime (model, session, step), handed out in pieces and freed as a
 * whole. */
#ifndef WEIR_BASE_ARENA_H
#define WEIR_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct arena {
    unsigned char *base;
    size_t used, size;
};

/* Maps `size` zeroed bytes (2 MiB aligned with huge pages asked for where that pays). Returns 0, or
 * -1 without memory. */
int arena_open(struct arena *a, size_t size);
void arena_close(struct arena *a);
/* 64-byte aligned and zeroed; NULL when the arena is full: sizes are computed beforehand, so
 * callers may assert. */
void *arena_take(struct arena *a, size_t bytes);

/* The bytes arena_take will use up for a piece of this size. */
static inline size_t arena_piece(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

/* a * b, or SIZE_MAX on overflow: sizes read from files must not wrap. */
static inline size_t size_mul(size_t a, size_t b) {
    size_t r;
    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}

#endif
