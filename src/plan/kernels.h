/* kernels.h: what each operation of a model's step takes on a GPU, and why: weir's own rules of
 * launches (ops/gpu/launch.h) where it has a kernel, rows of ops/policy.h where they name another.
 * Counts of shapes; nothing is run and no time is given. */
#ifndef WEIR_PLAN_KERNELS_H
#define WEIR_PLAN_KERNELS_H

#include "machine/gpus.h"
#include "machine/occupancy.h"
#include "model/model.h"
#include "ops/policy.h"

/* A GPU of the catalogue as rules see it. */
struct kernel_machine {
    char name[32], architecture[16];
    enum policy_machine kind;
    struct occupancy_device device;
    struct gpu_shape shape;
};
/* WEIR_BAD_VALUE: no such GPU, or none with rules; the message lists those there are. */
weir_status kernel_machine_find(const char *name, struct kernel_machine *out, weir_error *err);

/* What one rank computes. Steps: `batch` sequences with 1 + draft tokens each behind `context`
 * tokens of history, and one prompt of `prompt` tokens (0: none). */
struct kernel_load {
    uint32_t tp, dcp;
    uint32_t batch, context, prompt, draft;
    bool fp8_history, fp8_dense; /* dense: as `--dense-dtype fp8`, of BF16 matrices */
};

enum kernel_step { KERNEL_DECODE, KERNEL_VERIFY, KERNEL_PREFILL };
const char *kernel_step_name(enum kernel_step s);

/* One way of an operation. */
struct kernel_way {
    char variant[48];
    uint64_t workgroups;   /* of one launch; 0: not known */
    uint32_t threads;      /* of a workgroup; 0: not known */
    uint32_t shared_bytes; /* of a workgroup; 0: none, or not known */
    uint32_t resident;     /* workgroups that fit a unit by local memory and threads (registers are
                              not counted); 0: not known */
    char reason[640];
};
struct kernel_entry {
    enum kernel_step step;
    const char *name;
    const char *kernel; /* of weir; NULL: no kernel yet, and `takes` is what the rules name */
    uint64_t launches;  /* of a step, all layers together */
    uint32_t heads,
        padded; /* rows of heads and what they are filled up to; 0: no matter of heads */
    struct kernel_way takes;
    bool has_other;
    struct kernel_way other; /* that the rules name, where weir's kernel is not it: no kernel yet */
};

enum { KERNEL_ENTRIES_MOST = 96 };
struct kernel_plan {
    struct kernel_entry entry[KERNEL_ENTRIES_MOST];
    size_t n;
};

/* WEIR_BAD_VALUE: a size that does not divide what it cuts (where: tensor_parallel_size,
 * decode_context_parallel_size). */
weir_status kernel_plan_make(const struct model *m, const struct kernel_machine *machine,
                             const struct kernel_load *load, struct kernel_plan *out,
                             weir_error *err);

#endif
