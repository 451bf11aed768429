/* onednn.h: products of a case by oneDNN, as a baseline of `weir bench kernels`: what a library
 * that many engines build on makes of the same matrices on the same cores. Found at run time;
 * nothing else of weir uses it. */
#ifndef WEIR_BENCH_ONEDNN_H
#define WEIR_BENCH_ONEDNN_H

#include "bench/kernels_build.h"

struct onednn;

/* Can it serve as a baseline? WEIR_UNSUPPORTED says what is missing: the library, or its headers
 * when weir was built. */
weir_status onednn_load(uint32_t threads, weir_error *err);
/* Has it products like this case's: one BF16 matrix? */
bool onednn_takes(const struct kernel_case *c);
/* The matrices of the case in whatever layout it likes best, its activations, and the primitive:
 * BF16 by BF16 with f32 sums where it has that for this processor, else f32 by f32 of the same
 * numbers. Conversions are not timed. NULL: it refuses. */
struct onednn *onednn_open(const struct kernel_work *w);
void onednn_close(struct onednn *o);
/* "onednn bf16" or "onednn f32". */
const char *onednn_name(const struct onednn *o);
/* As kernel_call. */
double onednn_call(struct onednn *o, uint32_t first, uint32_t calls);
/* Results of the last call, [rows][out]. */
const float *onednn_results(const struct onednn *o);

#endif
