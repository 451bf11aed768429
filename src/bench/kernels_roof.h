/* kernels_roof.h: what this machine gives at best, measured between the kernels: bandwidths of
 * memory from buffers of their own, and the peaks of arithmetic in registers. */
#ifndef WEIR_BENCH_KERNELS_ROOF_H
#define WEIR_BENCH_KERNELS_ROOF_H

#include "base/error.h"
#include "base/team.h"
#include "bench/kernels_table.h"

/* Rates of the whole team. 0: not measured, or not there on this processor. */
struct roof {
    double read, modify, copy; /* GB/s of memory; modify and copy count both ways */
    double cache;              /* GB/s read from buffers that fit the second-level cache */
    double peak[ARITHMETICS];  /* GFLOP/s (of int8: giga operations) */
};

/* What to measure. */
enum {
    ROOF_READ = 1,
    ROOF_MODIFY = 2,
    ROOF_COPY = 4,
    ROOF_CACHE = 8,
    ROOF_PEAK = 16, /* times 2^arithmetic */
    ROOF_ALL = 15 + ROOF_PEAK * ((1 << ARITHMETICS) - 1)
};

struct roof_meter;

/* Buffers of `bytes` (rounded up to whole pages a member) and the fastest form of each loop on this
 * machine, found by trying. WEIR_NO_MEMORY. */
weir_status roof_open(struct team *team, size_t bytes, struct roof_meter **out, weir_error *err);
void roof_close(struct roof_meter *m);
/* Measures the rates asked for, leaves the others as they are. About 10 ms each at 256 MiB. */
void roof_take(struct roof_meter *m, unsigned what, struct roof *out);
/* Time of an empty operation and its barrier, microseconds. */
double roof_barrier_us(struct roof_meter *m);
size_t roof_bytes(const struct roof_meter *m);
/* Does the processor have dot products of this arithmetic? Without them its peak is that of f32. */
bool roof_has(enum arithmetic a);

/* The least time of `k` under this roof in seconds, and what binds it: "read", "modify", "copy",
 * "cache" or the name of the arithmetic. */
double roof_seconds(const struct roof *r, const struct kernel_cost *k, enum arithmetic a,
                    const char **limit);
/* What of the roof a case needs to know. */
unsigned roof_needs(const struct kernel_cost *k, enum arithmetic a);

#endif
