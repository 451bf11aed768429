/* kda_chunk.h: one chunk of one head in scratch, between kda_chunk.c (its way through the state)
 * and kda_factor.c (what its tokens have to do with one another). */
#ifndef WEIR_OPS_CPU_KDA_CHUNK_H
#define WEIR_OPS_CPU_KDA_CHUNK_H

#include "ops/cpu/kda.h"

/* Longer chunks save nothing here: a processor multiplies f32 matrices no faster than it sweeps
 * over a state in its first-level cache, and what tokens have to do with one another grows with
 * the chunk. With 16 the three products with the state are nine tenths of it. */
enum { CHUNK = 16, PANEL = 2 * VL /* columns of values that go through a chunk together */ };
/* Rows of a product's tile: TALL where there are enough, else TILE; chunks have whole TILEs. */
#if defined(WEIR_ISA_AVX512)
enum { TILE = 8, TALL = 8 };
#elif defined(WEIR_ISA_AVX2) && !defined(WEIR_SMALL_TILES)
enum { TILE = 4, TALL = 6 };
#else
enum { TILE = 4, TALL = 4 };
#endif

/* Matrices have rows of `width` floats unless they say otherwise. Columns of values never meet:
 * state and corrected values lie in panels of PANEL columns, each of which stays in the first-level
 * cache while the chunk passes through it. */
struct chunk {
    uint32_t n, width;   /* n: rows, up to whole tiles; those added are zero, their decay is 1 */
    struct kda_tokens t; /* [CHUNK] */
    float *qf, *kf;      /* times the decays from the chunk's start to the row, its own included */
    float *kb;           /* k times the decays behind the row to the chunk's end */
    float *decay;        /* [1]: of the whole chunk */
    float *aqk, *solve;  /* [CHUNK][CHUNK]; solve: (I + diag(beta) Akk)^-1 diag(beta) */
    float *rest, *r;     /* [CHUNK][PANEL] right-hand sides and corrected values of a panel */
    float *o;            /* [CHUNK] */
    float *state;        /* [width / PANEL][width][PANEL] */
};

/* Everything of a chunk that does not depend on the state: from t to qf, kf, kb, decay, aqk and
 * solve. */
void cpu_kda_factors(struct chunk *c);

#endif
