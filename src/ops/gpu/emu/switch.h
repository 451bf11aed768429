/* switch.h: stacks of fibers and the change from one to another. On x86-64 by hand, because
 * ucontext enters the kernel at every change; elsewhere with ucontext. AddressSanitizer is told. */
#ifndef WEIR_OPS_GPU_EMU_SWITCH_H
#define WEIR_OPS_GPU_EMU_SWITCH_H

#include <stdbool.h>
#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

/* What runs on a stack and stands still at the moment. */
struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t registers;
#endif
    const void *stack; /* lowest address; of the caller's own stack known once it was left */
    size_t stack_bytes;
    void *fake; /* AddressSanitizer's */
};

/* Memory for n stacks, each with a page below it that nobody may touch. NULL: none. */
void *context_stacks(size_t n);
void context_stacks_free(void *stacks, size_t n);
/* Contexts were left where they stood, and not by their last change. */
void context_stacks_left(void *stacks, size_t n);

/* Makes *c begin `entry` on stack i of `stacks` when it is first changed to. `entry` must not
 * return, and begins with context_arrived. */
void context_prepare(struct context *c, void *stacks, size_t i, void (*entry)(void));
void context_arrived(struct context *from);
/* Goes on with `to`; returns when somebody changes back to `from`. `last`: nobody will. */
void context_change(struct context *from, struct context *to, bool last);

#endif
