/* rng.c: entropy from the kernel. */
#include "base/rng.h"

#include "base/clock.h"

#include <sys/random.h>

uint64_t rng_entropy(void) {
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) != (long)sizeof x)
        x = rng_mix(clock_ns());
    return x;
}
