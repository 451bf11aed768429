/* kernels_loops.h: the loops of the roof, in the widest form the processor has. Each is a plain
 * function on one thread; `form` chooses among ways to write it, of which the fastest counts. */
#ifndef WEIR_BENCH_KERNELS_LOOPS_H
#define WEIR_BENCH_KERNELS_LOOPS_H

#include "bench/kernels_table.h"

enum { LOOP_FORMS = 4 };

/* Reads bytes (a multiple of 4096) and returns something that depends on all of them. */
float loop_read(const float *from, size_t bytes, int form);
/* x = x * 0.5 + 0.25 for every value. */
void loop_modify(float *x, size_t bytes, int form);
void loop_copy(float *to, const float *from, size_t bytes, int form);
/* Runs `rounds` rounds of independent multiply-adds and returns how many operations (two each)
 * they were; 0: this processor or form has none. */
double loop_peak(enum arithmetic a, uint64_t rounds, int form);

#endif
