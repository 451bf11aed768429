/* kernels_fill.h: numbers for the cases of the kernel bench: random bits in the shape of reasonable
 * values, written by the whole team, the same for every team size. */
#ifndef WEIR_BENCH_KERNELS_FILL_H
#define WEIR_BENCH_KERNELS_FILL_H

#include "base/team.h"

#include <stddef.h>
#include <stdint.h>

enum kernel_fill {
    FILL_F32,     /* +-[1/2, 2) times 2^exponent */
    FILL_BF16,    /* the same, rounded by construction */
    FILL_RECORDS, /* as FILL_BF16, which makes f32 of any two as well, and no byte is a large E4M3
                     code */
    FILL_CODES,   /* random bytes */
    FILL_SCALES,  /* E8M0 of 2^exponent or twice as much */
};

void kernel_fill(struct team *team, void *to, size_t bytes, enum kernel_fill kind, int exponent,
                 uint64_t seed);
/* The power of two next to 1/sqrt(n): weights of a row of n values keep a dot product near 1. */
int kernel_exponent(uint32_t n);

#endif
