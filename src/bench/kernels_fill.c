/* kernels_fill.c: see kernels_fill.h. Called by kernels_build.c.
 * Invariant that bites: no value may be subnormal or huge; a processor slows down on such numbers
 * and the bench would measure that. */
#include "bench/kernels_fill.h"

#include "base/rng.h"

#include <string.h>

struct fill {
    unsigned char *to;
    size_t words; /* of 8 bytes */
    enum kernel_fill kind;
    int exponent;
    uint64_t seed;
    uint32_t members;
};

static uint64_t shaped(uint64_t r, enum kernel_fill kind, int exponent) {
    uint64_t out = 0;
    switch (kind) {
    case FILL_CODES: return r;
    case FILL_SCALES:
        return (r & 0x0101010101010101u) + (uint64_t)(127 + exponent) * 0x0101010101010101u;
    case FILL_RECORDS: return shaped(r, FILL_BF16, exponent) & ~0x0040004000400040u;
    case FILL_BF16:
        for (int i = 0; i < 64; i += 16) {
            uint64_t h = r >> i & 0xFFFF;
            uint64_t e = (uint64_t)(126 + exponent) + (h >> 7 & 1);
            out |= ((h & 0x8000) | e << 7 | (h & 0x7F)) << i;
        }
        return out;
    case FILL_F32:
        for (int i = 0; i < 64; i += 32) {
            uint64_t h = r >> i & 0xFFFFFFFFu;
            uint64_t e = (uint64_t)(126 + exponent) + (h >> 23 & 1);
            out |= ((h & 0x80000000u) | e << 23 | (h & 0x7FFFFFu)) << i;
        }
        return out;
    }
    return 0;
}

static void fill_member(void *arg, uint32_t member) {
    const struct fill *f = arg;
    size_t begin = f->words * member / f->members, end = f->words * (member + 1) / f->members;
    for (size_t i = begin; i < end; i++) {
        uint64_t v = shaped(rng_mix(f->seed + i), f->kind, f->exponent);
        memcpy(f->to + 8 * i, &v, 8);
    }
}

void kernel_fill(struct team *team, void *to, size_t bytes, enum kernel_fill kind, int exponent,
                 uint64_t seed) {
    struct fill f = {to, bytes / 8, kind, exponent, rng_mix(seed), team_threads(team)};
    team_run(team, fill_member, &f);
    uint64_t last = shaped(rng_mix(f.seed + f.words), kind, exponent);
    memcpy(f.to + 8 * f.words, &last, bytes % 8);
}

int kernel_exponent(uint32_t n) {
    int e = 0;
    for (uint32_t x = n; x >= 4; x /= 4)
        e--;
    return e;
}
