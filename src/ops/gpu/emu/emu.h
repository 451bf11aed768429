/* emu.h: runs a kernel of the portable dialect on this machine, one block after another, every
 * thread a fiber. It is for tests: nothing of a device's speed shows, and much of what goes wrong
 * on one does:
 *   - threads run in the order asked for, from one meeting to the next; what comes out of a kernel
 *     that lacks a barrier depends on that order;
 *   - shared memory is NaN (bytes 0xFF) when a block begins, and ends where an allocation ends;
 *   - threads that wait for others which wait elsewhere, or have returned, are a fault that names
 *     them; so are loads of 16 bytes from odd addresses and asynchronous copies nobody waits for;
 *   - asynchronous copies arrive when they are waited for and not before; boxes when their gate
 *     opens, and what they replace is NaN from when they are asked for; but those of
 * gpu_copy_bulk() at once, so that reading them in front of their gate shows only where the copier
 * is late;
 *   - gates that were not set, maps that were not made, blocks of a cluster that have ended and are
 *     reached for are faults;
 *   - threads of the blocks of a cluster run in the same order as if they were of one block.
 * What it cannot show: what blocks do to each other at the same time, the memory order of a device,
 * registers, bank conflicts. */
#ifndef WEIR_OPS_GPU_EMU_EMU_H
#define WEIR_OPS_GPU_EMU_EMU_H

#include "weir.h"

#include <stddef.h>
#include <stdint.h>

enum emu_order {
    EMU_FORWARD, /* of the threads that can run always the first, blocks by rising number */
    EMU_REVERSE, /* the last, and falling */
    EMU_RANDOM,  /* by `seed` */
    EMU_ORDERS
};

typedef void emu_kernel(const void *record);

struct emu_launch {
    emu_kernel *kernel;
    const void *record;
    uint32_t blocks_x, blocks_y;
    uint32_t threads; /* of a block, a multiple of `wave` */
    uint32_t wave;    /* the kernel was compiled for */
    size_t shared_bytes;
    enum emu_order order;
    uint64_t seed;
    uint32_t cluster; /* blocks in a row of x that run together, all their threads at most
                         EMU_MAX_THREADS; 0: each alone */
};
enum { EMU_MAX_THREADS = 4096 };

/* WEIR_OK, or WEIR_BAD_VALUE and what the kernel did wrong: the block it happened in is left as it
 * was, later ones have not run. WEIR_NO_MEMORY. One thread of this machine at a time. */
weir_status emu_run(const struct emu_launch *l, weir_error *err);

#endif
