/* gpus.h: published specifications of accelerators, as data: src/machine/gpus.json in the program.
 * Rates are dense (no sparsity). NAN: the source does not say, or the format does not exist there.
 */
#ifndef WEIR_MACHINE_GPUS_H
#define WEIR_MACHINE_GPUS_H

#include "base/error.h"

#include <stddef.h>

struct gpu_spec {
    char name[32];
    double tdp_watts;
    double fp4_tflops, fp8_tflops, bf16_tflops;
    double memory_gb;            /* 1e9 bytes */
    double memory_tb_per_s;      /* 1e12 bytes */
    double scale_up_gb_per_s;    /* of one GPU, one way */
    double scale_up_gpus;        /* of one domain */
    double scale_out_gbit_per_s; /* of one GPU */
    /* What kernels see; "" and NAN where nobody has looked. */
    char architecture[16]; /* "sm_90", "gfx950" */
    double compute_units, wave_lanes;
    double local_bytes;          /* local memory (LDS, shared) of one unit */
    double local_unit_bytes;     /* is given out in pieces of */
    double local_reserved_bytes; /* the system's share of each workgroup's; NAN: none */
    char note[128];              /* where sources differ, or "" */
};

/* All of them in a new array, freed with free(). WEIR_BAD_FILE names field and rule;
 * WEIR_NO_MEMORY. */
weir_status gpu_specs_open(struct gpu_spec **out, size_t *n, weir_error *err);
/* One by name, letters of any case. WEIR_BAD_VALUE lists the names. */
weir_status gpu_spec_find(const char *name, struct gpu_spec *out, weir_error *err);

#endif
