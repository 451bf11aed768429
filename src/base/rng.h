/* rng.h: random numbers as a function of (seed, stream, counter), so that a draw depends on its own
 * request alone: never on the batch, on threads or on how often others drew. */
#ifndef WEIR_BASE_RNG_H
#define WEIR_BASE_RNG_H

#include <stdint.h>

/* A well mixed 64-bit value of its argument (splitmix64 finaliser). */
static inline uint64_t rng_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t rng_at(uint64_t seed, uint64_t stream, uint64_t counter) {
    return rng_mix(rng_mix(rng_mix(seed) ^ stream) ^ counter);
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_unit(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

/* Fresh entropy from the system, for requests without a seed and for ids. */
uint64_t rng_entropy(void);

#endif
