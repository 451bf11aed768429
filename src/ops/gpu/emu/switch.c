/* switch.c: see switch.h. */
#include "ops/gpu/emu/switch.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a context has of its stack when it changes for the last time is within LAST_BYTES. */
enum { STACK_BYTES = 128 * 1024, LAST_BYTES = 4096 };

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(WITH_ASAN)
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
void __asan_unpoison_memory_region(const volatile void *, size_t);
#endif

static size_t stride(void) {
    return STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE);
}

void *context_stacks(size_t n) {
    char *all = mmap(NULL, n * stride(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < n; i++)
        mprotect(all + i * stride(), stride() - STACK_BYTES, PROT_NONE);
    return all;
}

void context_stacks_free(void *stacks, size_t n) {
    context_stacks_left(stacks, n);
    munmap(stacks, n * stride());
}

void context_stacks_left(void *stacks, size_t n) {
#if defined(WITH_ASAN)
    for (size_t i = 0; i < n; i++)
        __asan_unpoison_memory_region((char *)stacks + (i + 1) * stride() - STACK_BYTES,
                                      STACK_BYTES);
#else
    (void)stacks;
    (void)n;
#endif
}

#if defined(__x86_64__)
/* Saves what a call must preserve, changes stacks, restores. */
void weir_emu_switch(void **save, void *load);
__asm__(".text\n"
        ".globl weir_emu_switch\n"
        ".type weir_emu_switch, @function\n"
        "weir_emu_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size weir_emu_switch, . - weir_emu_switch\n"
        ".section .note.GNU-stack,\"\",@progbits\n"
        ".text\n");
enum { SAVED_REGISTERS = 6 };
#endif

void context_prepare(struct context *c, void *stacks, size_t i, void (*entry)(void)) {
    char *stack = (char *)stacks + i * stride() + (stride() - STACK_BYTES);
    memset(c, 0, sizeof *c);
    c->stack = stack;
    c->stack_bytes = STACK_BYTES;
#if defined(WITH_ASAN)
    /* What an earlier context left: functions that returned have cleared theirs. */
    __asan_unpoison_memory_region(stack + STACK_BYTES - LAST_BYTES, LAST_BYTES);
#endif
#if defined(__x86_64__)
    /* As if `entry` had been called: its return address, to nowhere, on top. */
    void **top = (void **)(void *)(stack + STACK_BYTES);
    *--top = NULL;
    *--top = (void *)(uintptr_t)entry;
    for (int r = 0; r < SAVED_REGISTERS; r++)
        *--top = NULL;
    c->stack_pointer = top;
#else
    getcontext(&c->registers);
    c->registers.uc_stack.ss_sp = stack;
    c->registers.uc_stack.ss_size = STACK_BYTES;
    makecontext(&c->registers, entry, 0);
#endif
}

void context_arrived(struct context *from) {
#if defined(WITH_ASAN)
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &stack, &bytes);
    if (!from->stack) {
        from->stack = stack;
        from->stack_bytes = bytes;
    }
#else
    (void)from;
#endif
}

void context_change(struct context *from, struct context *to, bool last) {
#if defined(WITH_ASAN)
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->stack, to->stack_bytes);
#else
    (void)last;
#endif
#if defined(__x86_64__)
    weir_emu_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->registers, &to->registers);
#endif
#if defined(WITH_ASAN)
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}
