/* kernel_list.h: what the two files of kernel plans share. */
#ifndef WEIR_PLAN_KERNEL_LIST_H
#define WEIR_PLAN_KERNEL_LIST_H

#include "plan/kernels.h"

#include <stdarg.h>

struct kernel_list {
    struct kernel_plan *plan;
    const struct model *m;
    const struct kernel_machine *machine;
    const struct kernel_load *load;
    enum kernel_step step;
    uint32_t rows; /* of the step */
};

/* An entry for an operation that has launch g, so many times in the step. Without a kernel
 * (GPU_NO_KERNEL) its variant is "none". The reason is a printf format. */
__attribute__((format(printf, 5, 6))) struct kernel_entry *
kernel_list_add(struct kernel_list *l, const char *name, uint64_t launches, struct gpu_launch g,
                const char *reason, ...);
/* The same for what rules name and weir has no kernel for. */
__attribute__((format(printf, 6, 7))) struct kernel_entry *
kernel_list_named(struct kernel_list *l, const char *name, const char *variant, uint64_t launches,
                  uint64_t workgroups, const char *reason, ...);
/* Workgroups that fit a unit; 0 where neither local memory nor threads are known. */
uint32_t kernel_list_resident(const struct kernel_machine *m, uint32_t shared_bytes,
                              uint32_t threads);

/* kernel_steps.c: adds the operations of l->step. */
void kernel_list_step(struct kernel_list *l);

#endif
