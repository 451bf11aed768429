/* step.h: `weir bench step`: where the time of a step goes. Runs a model's own step program, one
 * decode step or one prompt at a time, and says of each operation how long it took, what it had to
 * move and compute, and how long that takes at the roof of the same run. */
#ifndef WEIR_BENCH_STEP_H
#define WEIR_BENCH_STEP_H

#include "bench/kernels_idle.h"
#include "bench/kernels_roof.h"

#include <jansson.h>

enum { STEP_SAMPLES = 64 };

struct step_options {
    const char *model; /* directory */
    const struct column *column;
    enum dense_form dense;
    enum dtype kv_dtype;
    uint32_t threads;
    const char *tuning;        /* whose table is used: tuning_choose (load/tuning.h) */
    uint32_t prompt_tokens;    /* at least 1 */
    uint32_t history;          /* invented, before the decode steps; 0: a prompt's */
    uint32_t decode_tokens;    /* steps to time, at most STEP_SAMPLES; 0: none */
    uint32_t sequences;        /* that decode together */
    uint32_t rows;             /* largest step of a prompt */
    uint32_t prompts;          /* to time, at most STEP_SAMPLES; 0: none */
    struct gpu_device *device; /* for column_gpu; NULL: this machine computes */
    double wait_seconds;       /* before each sample, for the machine to be idle; 0: none */
    size_t roof_bytes;         /* of the buffers; 0: as large as `weir bench kernels` takes */
    void (*done)(void *arg, uint32_t done, uint32_t of); /* behind every sample; NULL: nobody waits
                                                          */
    void *arg;
};

/* All operations of one kind. Medians over samples; costs of one sample. */
struct step_row {
    enum op_kind kind;
    uint32_t calls;
    double ms, share;        /* of the step */
    double bytes, flops;     /* what is changed in place counts twice */
    double roof_ms, of_roof; /* least time, and that over the time measured */
    const char *limit;       /* what binds the most expensive one; "" where nothing is counted */
};

/* Decode steps, or prompts. */
struct step_phase {
    uint32_t samples, tokens; /* tokens of one sample */
    double sample_ms[STEP_SAMPLES];
    struct step_row row[OP_COUNT];
    uint32_t n;
    double ms, ms_per_token;
    double between_ms; /* not in operations: waking the team, and what the caller does */
    double spread;     /* distance of the quartiles over the median */
    double bytes, flops;
    double memory_ms, of_memory; /* all bytes over the bandwidth of reading */
    double roof_ms, of_roof;     /* sum of the rows' */
    double of_peak;              /* all operations over the peak of the column's arithmetic */
    enum op_kind outside;        /* the most expensive operation that the kernel table lacks ... */
    double outside_share;        /* ... and its share; 0: none ran */
};

struct step_report {
    char model[256];
    const char *column;
    enum arithmetic arithmetic;
    uint32_t threads, ops;
    struct step_phase decode, prefill;
    struct roof roof; /* medians */
    struct idle_share idle;
    bool quiet;
};

/* On a device a decode step is a graph, and an operation's time what the graph is shorter by
 * without it; prompts go operation by operation, and their whole time is that of a prompt that does
 * not. WEIR_BAD_FILE and what else opening a model gives; WEIR_NO_MEMORY; what a device's driver
 * says. */
weir_status step_measure(const struct step_options *o, struct step_report *out, weir_error *err);
json_t *step_json(const struct step_report *r);

#endif
