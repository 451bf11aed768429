/* fiber.h: what the emulator does for a running kernel (dialect_emu.h says it in the dialect's
 * words). Every thread of a block is a fiber of one thread of this machine; it runs until it has to
 * wait for others. */
#ifndef WEIR_OPS_GPU_EMU_FIBER_H
#define WEIR_OPS_GPU_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct emu_place {
    uint32_t thread, threads, block_x, block_y, blocks_x;
    uint32_t rank, cluster; /* of the block in its cluster; how many blocks that has */
};
/* Where the running fiber is. */
const struct emu_place *emu_here(void);

/* All fibers of the block meet. `line`: of the call; threads that meet at different ones are a
 * fault. */
void emu_barrier(int line);
/* All fibers of all blocks of the cluster, in two parts. */
void emu_cluster_arrive(int line);
void emu_cluster_wait(void);

/* So many fibers meet, of one part of the block; parts are numbered below 16. */
void emu_part_barrier(uint32_t part, uint32_t threads);
/* Gates (dialect.h), in shared memory. */
void emu_gate_set(uint64_t *gate, uint32_t count);
void emu_gate_arrive(uint64_t *gate);
void emu_gate_wait(uint64_t *gate, uint32_t parity);
/* Arrives, and the gate stays shut until so many bytes of boxes have come as well. */
void emu_gate_expect(uint64_t *gate, uint32_t bytes);
/* At that gate of another block of the cluster. */
void emu_gate_arrive_at(uint64_t *gate, uint32_t rank);

/* A stack of `steps` matrices of BF16, of which boxes of `high` rows by 64 columns are copied. */
struct emu_map {
    const uint16_t *from;
    uint64_t row_bytes, step_bytes;
    uint32_t cols, rows, steps, high;
};
/* Map n of this block; each is gone when the block ends. */
void emu_map_make(uint32_t n, const struct emu_map *map);
const struct emu_map *emu_map_made(uint32_t n);
/* To a panel in this block's shared memory or, with members, the same place of that of all of so
 * many blocks. What lies there is lost at once; what comes is there when the gate opens. */
void emu_copy_box(uint16_t *panel, const struct emu_map *map, uint32_t col, uint32_t row,
                  uint32_t step, uint64_t *gate, uint32_t members);

/* What the lanes of a wave do together. */
enum emu_kind {
    EMU_SHUFFLE = 1,
    EMU_BALLOT,
    EMU_MAX,
    EMU_SUM16,
    EMU_MMA,
    EMU_TRANSPOSE,
    EMU_WAIT,
};
enum { EMU_GIFT_BYTES = 64, EMU_LANES = 64, EMU_MAPS_MOST = 32 /* of a block */ };
struct emu_gift {
    unsigned char bytes[EMU_GIFT_BYTES];
};
struct emu_gathering {
    struct emu_gift gift[EMU_LANES];
    float sum[16][16]; /* of `finish` */
};
/* The lanes of the wave meet, each with `bytes` bytes at `gift`; the last calls `finish` unless
 * NULL. What comes back stays as it is until this lane's next but one meeting. */
const struct emu_gathering *emu_meet(enum emu_kind kind, const void *gift, size_t bytes,
                                     void (*finish)(struct emu_gathering *));

/* The block's shared memory, of which a kernel wants so much. */
void *emu_shared(size_t bytes);
/* Where p, in this block's shared memory, is in that of another of its cluster. */
void *emu_shared_of(void *p, uint32_t rank, size_t bytes);
/* 16 bytes that arrive when this fiber waits for them, no earlier. */
void emu_copy16(void *to, const void *from, bool there);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t behind);
/* A fault unless p is a multiple of 16. */
void emu_check_aligned(const void *p);
void emu_check_aligned_8(const void *p);

#endif
