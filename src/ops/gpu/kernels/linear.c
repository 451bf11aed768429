/* linear.c: products of BF16 matrices with one row or two (gemv.h). */
#include "ops/gpu/kernels/gemv.h"

#define GEMV(NAME, SHARED, ROWS, BLOCKS)                                                           \
    GPU_KERNEL(NAME, gpu_linear, GEMV_THREADS, BLOCKS) {                                           \
        GPU_SHARED(SHARED, s);                                                                     \
        enum { STAGES = sizeof s->ring[0] / sizeof s->ring[0][0] };                                \
        gemv(&a, (struct gpu_u4 *)s->ring, s->part[0], ROWS, STAGES);                              \
    }
GEMV(weir_gemv_1, gemv_shared, 1, 3)
GEMV(weir_gemv_1_more, gemv_more_shared, 1, 4)
GEMV(weir_gemv_2, gemv_shared, 2, 3)
