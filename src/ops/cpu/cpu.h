/* cpu.h: the fast columns: one for each instruction set and kind of activations; column_fast
 * (ops.h) takes the best one. */
#ifndef WEIR_OPS_CPU_CPU_H
#define WEIR_OPS_CPU_CPU_H

#include "base/cpu.h"
#include "ops/ops.h"

/* The column of one level, or NULL where this build or this processor lacks it. Names: "avx2",
 * "avx2-bf16", "avx2-int8" and so on. The levels with dot-product instructions take f32 activations
 * as the level below does, and have no column of their own for them. */
const struct column *column_cpu(enum cpu_level level, enum activation activation);

/* All columns that this machine runs, levels ascending; returns how many. */
enum { CPU_COLUMNS = CPU_LEVELS * ACTIVATIONS };
uint32_t column_list(const struct column *out[CPU_COLUMNS]);

#endif
