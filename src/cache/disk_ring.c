/* disk_ring.c: moves pieces through io_uring. Each thread of the disk tier has a ring of its own
 * with several pieces under way. Started by disk_io.c. */
#include "cache/disk_io.h"

#include <errno.h>
#include <stdlib.h>

/* A buffer, and the piece that is moved through it. */
struct ring_slot {
    struct transfer transfer; /* first: what the ring gives back is the slot */
    struct disk_piece piece;
    struct ring_slot *next; /* free ones */
};

struct ring_thread {
    struct disk_mover *d;
    struct ring *ring;
    unsigned char *buffers;
    struct ring_slot *slots, *free_slots;
};

static bool thread_open(struct ring_thread *r, struct disk_mover *d) {
    *r = (struct ring_thread){.d = d, .ring = ring_open()};
    r->buffers = io_buffer(d->buffer_bytes * d->buffers);
    r->slots = calloc(d->buffers, sizeof *r->slots);
    if (!r->buffers || !r->slots || !r->ring)
        return false;
    for (uint32_t i = 0; i < d->buffers; i++) {
        struct ring_slot *s = &r->slots[i];
        s->transfer.buffer = r->buffers + i * d->buffer_bytes;
        s->next = r->free_slots;
        r->free_slots = s;
    }
    return true;
}

static void thread_close(struct ring_thread *r) {
    ring_close(r->ring);
    free(r->slots);
    free(r->buffers);
}

static void start(struct ring_thread *r, const struct disk_piece *p) {
    if (p->skip) {
        disk_end(r->d, p, NULL, ECANCELED);
        return;
    }
    struct ring_slot *s = r->free_slots;
    r->free_slots = s->next;
    s->piece = *p;
    disk_begin(r->d, p, s->transfer.buffer);
    s->transfer = disk_transfer(p, s->transfer.buffer);
    ring_start(r->ring, &s->transfer);
}

static void end(struct ring_thread *r, struct transfer *t) {
    struct ring_slot *s = (struct ring_slot *)t;
    disk_end(r->d, &s->piece, t->buffer, disk_error(t));
    s->next = r->free_slots;
    r->free_slots = s;
}

void *disk_ring_run(void *arg) {
    struct ring_thread r;
    struct disk_piece p;
    if (!thread_open(&r, arg)) {
        thread_close(&r);
        return disk_blocking_run(arg);
    }
    for (;;) {
        while (r.free_slots && disk_next(r.d, !ring_busy(r.ring), &p))
            start(&r, &p);
        if (!ring_busy(r.ring))
            break;
        for (struct transfer *t = ring_wait(r.ring); t; t = ring_ended(r.ring))
            end(&r, t);
    }
    thread_close(&r);
    return NULL;
}
