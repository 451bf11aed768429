/* skinny.c: products of BF16 matrices with 3 to 64 rows (skinny.h). */
#include "ops/gpu/kernels/skinny.h"

#if GPU_WAVE == 32
#define SKINNY_SHARED(NAME) struct gpu_##NAME##_shared_32
#else
#define SKINNY_SHARED(NAME) struct gpu_##NAME##_shared_64
#endif
#define SKINNY(NAME, TILES, ROWS, BLOCKS, STAGES_32)                                               \
    GPU_KERNEL(weir_##NAME, gpu_linear, SKINNY_THREADS, BLOCKS) {                                  \
        GPU_SHARED(SKINNY_SHARED(NAME), s);                                                        \
        enum { STAGES = sizeof s->ring[0] / sizeof s->ring[0][0] };                                \
        skinny(&a, (struct gpu_u4 *)s->ring, &s->part[0][0][0], sizeof s->part[0][0] / 4, TILES,   \
               ROWS, STAGES);                                                                      \
    }
GPU_SKINNY_KERNELS(SKINNY)
