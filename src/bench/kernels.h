/* kernels.h: `weir bench kernels`: each case of the table checked against ops/ref and timed on the
 * team, the roof measured before and after every sample. */
#ifndef WEIR_BENCH_KERNELS_H
#define WEIR_BENCH_KERNELS_H

#include "bench/kernels_check.h"
#include "bench/kernels_idle.h"
#include "bench/kernels_roof.h"

#include <jansson.h>

enum { KERNEL_SAMPLES = 41 };
struct kernel_row;

struct kernel_options {
    uint32_t threads;
    const char *filter;          /* see kernel_selected; NULL: all */
    const struct column *column; /* what is measured */
    const char *baseline;        /* name of another column, "fastest", or NULL */
    bool quick;                  /* fewer samples, slow cases left out */
    double wait_seconds;         /* before each case, for the machine to be idle; 0: none */
    bool small;                  /* small shapes and buffers: for tests */
    /* Called behind every case; NULL: nobody waits. */
    void (*done)(void *arg, const struct kernel_row *row, size_t done, size_t of);
    void *arg;
};

/* One variant of a case. Medians over samples. */
struct kernel_timing {
    const char *variant;
    uint32_t n;
    double sample_us[KERNEL_SAMPLES]; /* of one call */
    double us, gbps, gflops;
    double best_us;
    double spread; /* distance of the quartiles over the median */
};

struct kernel_row {
    struct kernel_case c;
    char shape[96];
    struct kernel_cost cost;
    enum arithmetic arithmetic;              /* whose peak may bind */
    double bytes;                            /* of the working set */
    uint32_t copies, calls;                  /* distinct copies; calls of one sample */
    struct kernel_timing main, base;         /* base.variant NULL: none */
    struct roof sample_roof[KERNEL_SAMPLES]; /* mean of before and after */
    double sample_share[KERNEL_SAMPLES];
    double share;      /* of the roof, median over samples */
    double best_share; /* the best sample under the best of the roofs */
    const char *limit; /* what binds */
    struct kernel_error error;
    struct kernel_limit bound;
    bool exceeded;
    struct idle_share idle; /* others, while this case ran */
    bool busy;              /* others took time, or samples or roof are far apart */
    char skipped[160];      /* why nothing was measured; "" otherwise */
};

struct kernel_report {
    struct kernel_row *row;
    size_t n, exceeded, busy;
    uint32_t threads;
    struct roof roof; /* medians over the run */
    size_t roof_bytes;
    double barrier_us;
    struct idle_share before, after;
    bool quiet; /* nobody else before, behind and between */
};

/* WEIR_BAD_VALUE: the filter meets no case, or the baseline is not there; WEIR_NO_MEMORY. Cases
 * that do not fit into memory or would take minutes are skipped and say why. */
weir_status kernels_run(const struct kernel_options *o, struct kernel_report *out, weir_error *err);
void kernels_free(struct kernel_report *r);

/* A column by name: "exact", an instruction set with the activations it takes ("avx2",
 * "avx512dots-bf16"), "fastest" for what an engine would take. NULL: not here. */
const struct column *kernels_column(const char *name);
/* The names of what is here, "exact, portable, avx2". */
const char *kernels_columns(char *buf, size_t cap);

/* kernels_json.c: {"machine", "roof", "kernels", "warnings"}; NULL without memory. */
json_t *kernels_json(const struct kernel_report *r);
/* One line of the warning about a machine in use; "" if there is nothing to say. */
const char *kernels_warning(const struct kernel_report *r, char *buf, size_t cap);

#endif
