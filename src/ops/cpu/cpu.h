/* cpu.h: the fast columns, one per instruction set; column_fast (ops.h) takes the best one. */
#ifndef WEIR_OPS_CPU_CPU_H
#define WEIR_OPS_CPU_CPU_H

#include "base/cpu.h"
#include "ops/ops.h"

/* The column of one level, or NULL where this build or this processor lacks it. */
const struct column *column_cpu(enum cpu_level level);

#endif
