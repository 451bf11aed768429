/* ring.h: many reads and writes under way from one thread, through io_uring. Used by the disk tier
 * of the cache and by the reader of experts, each of whose threads has a ring of its own. */
#ifndef WEIR_BASE_RING_H
#define WEIR_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What O_DIRECT wants of addresses, offsets and lengths. */
enum { IO_ALIGN = 4096 };

/* `bytes` (more than 0) between a buffer and [offset, offset + bytes) of a file. Aligned reads may
 * reach beyond the end of the file: they are whole once `need` bytes have come. The caller keeps
 * the record, and all that it points to, until it has ended. */
struct transfer {
    int fd;
    bool write;
    void *buffer;
    uint64_t offset;
    size_t bytes, need;
    int error; /* after the end: 0, an errno, or TRANSFER_SHORT */

    /* the ring's own */
    size_t cut;    /* bytes handed to requests */
    uint32_t left; /* requests not ended */
    struct transfer *next;
};
enum { TRANSFER_SHORT = -1 }; /* the file ended before `need` bytes, or took no more */

/* Does the kernel let this process use io_uring? */
bool ring_works(void);

struct ring;
/* NULL: no ring or no memory. One thread uses it. */
struct ring *ring_open(void);
/* Only when nothing is under way. */
void ring_close(struct ring *r);
/* Starts a transfer, cut into requests of a mebibyte, so that one large piece keeps the disk as
 * busy as many small ones. Any number may be started; they go to the kernel in order. */
void ring_start(struct ring *r, struct transfer *t);
/* Hands what was started to the kernel, waits until a transfer has ended or something has moved,
 * and returns one that has ended; NULL: none has as yet. Not with nothing under way. */
struct transfer *ring_wait(struct ring *r);
/* One more that has ended by now, without waiting; NULL: none. */
struct transfer *ring_ended(struct ring *r);
uint32_t ring_busy(const struct ring *r); /* transfers started and not returned */

/* The same without a ring: returns when it has ended, and what. */
int transfer_run(struct transfer *t);

/* `bytes` on an IO_ALIGN border, in huge pages where they are large; free() it. NULL: no memory. */
void *io_buffer(size_t bytes);

#endif
