/* kernels_call.h: runs records of a case as a step program runs its list. */
#ifndef WEIR_BENCH_KERNELS_CALL_H
#define WEIR_BENCH_KERNELS_CALL_H

#include "bench/kernels_build.h"

/* Calls `column`'s function for records `first`, `first`+1, ... of the case, `calls` of them, each
 * behind a barrier, as a step program does. Returns seconds, counted from when all members are
 * awake. `scratch` must hold kernel_scratch_bytes for every member. */
double kernel_call(struct kernel_work *w, const struct column *column, struct team *team,
                   void *scratch, uint32_t first, uint32_t calls);
/* Bytes of scratch for the whole team. */
size_t kernel_scratch_bytes(const struct kernel_work *w, const struct column *column,
                            uint32_t members);

#endif
