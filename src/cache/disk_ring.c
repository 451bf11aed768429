/* disk_ring.c: moves pieces through io_uring. Each thread of the disk tier has a ring of its own
 * with several pieces under way, cut into requests of a mebibyte, so that one large state keeps the
 * disk as busy as many pages do. Started by disk_io.c.
 * Invariant that bites: a short transfer is no error; the rest is asked for again. */
#include "cache/disk_io.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 1 << 20, RING_ENTRIES = 64 };

struct ring_slot;
struct ring_chunk {
    struct ring_slot *slot;
    size_t at, end; /* of the piece, not moved yet */
    struct ring_chunk *next;
};

struct ring_slot {
    struct disk_piece piece;
    unsigned char *buffer;
    struct ring_chunk *chunk;
    uint32_t left; /* chunks not moved */
    int error;
    struct ring_slot *next; /* free ones */
};

struct ring_thread {
    struct disk_mover *d;
    struct io_uring ring;
    bool ring_open;
    unsigned char *buffers;
    struct ring_slot *slots, *free_slots;
    struct ring_chunk *chunks, *waiting, **waiting_end; /* waiting: for room in the queue */
    uint32_t busy;                                      /* slots */
    uint32_t under_way;                                 /* requests the kernel has */
};

bool disk_ring_works(void) {
    struct io_uring ring;
    if (io_uring_queue_init(RING_ENTRIES, &ring, 0) != 0)
        return false;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    bool works = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                 io_uring_opcode_supported(probe, IORING_OP_WRITE);
    free(probe);
    io_uring_queue_exit(&ring);
    return works;
}

static bool ring_open(struct ring_thread *r, struct disk_mover *d) {
    *r = (struct ring_thread){.d = d};
    size_t chunks = (d->buffer_bytes + CHUNK - 1) / CHUNK;
    r->waiting_end = &r->waiting;
    r->buffers = disk_buffers(d, d->buffers);
    r->slots = calloc(d->buffers, sizeof *r->slots);
    r->chunks = calloc(d->buffers * chunks, sizeof *r->chunks);
    r->ring_open = io_uring_queue_init(RING_ENTRIES, &r->ring, 0) == 0;
    if (!r->buffers || !r->slots || !r->chunks || !r->ring_open)
        return false;
    for (uint32_t i = 0; i < d->buffers; i++) {
        struct ring_slot *s = &r->slots[i];
        s->buffer = r->buffers + i * d->buffer_bytes;
        s->chunk = r->chunks + i * chunks;
        s->next = r->free_slots;
        r->free_slots = s;
    }
    return true;
}

static void ring_close(struct ring_thread *r) {
    if (r->ring_open)
        io_uring_queue_exit(&r->ring);
    free(r->chunks);
    free(r->slots);
    free(r->buffers);
}

static void wait_for_room(struct ring_thread *r, struct ring_chunk *c) {
    c->next = NULL;
    *r->waiting_end = c;
    r->waiting_end = &c->next;
}

static void queue_waiting(struct ring_thread *r) {
    while (r->waiting && r->under_way < RING_ENTRIES) {
        struct io_uring_sqe *e = io_uring_get_sqe(&r->ring);
        if (!e)
            return;
        struct ring_chunk *c = r->waiting;
        r->waiting = c->next;
        if (!r->waiting)
            r->waiting_end = &r->waiting;
        const struct disk_piece *p = &c->slot->piece;
        unsigned char *at = c->slot->buffer + c->at;
        unsigned bytes = (unsigned)(c->end - c->at);
        if (p->direction == DISK_READ)
            io_uring_prep_read(e, p->fd, at, bytes, p->offset + c->at);
        else
            io_uring_prep_write(e, p->fd, at, bytes, p->offset + c->at);
        io_uring_sqe_set_data(e, c);
        r->under_way++;
    }
}

static void start(struct ring_thread *r, const struct disk_piece *p) {
    if (p->skip) {
        disk_end(r->d, p, NULL, ECANCELED);
        return;
    }
    struct ring_slot *s = r->free_slots;
    r->free_slots = s->next;
    r->busy++;
    s->piece = *p;
    s->error = 0;
    s->left = 0;
    disk_begin(r->d, p, s->buffer);
    for (size_t at = 0; at < p->span; at += CHUNK) {
        struct ring_chunk *c = &s->chunk[s->left++];
        size_t end = p->span - at < CHUNK ? p->span : at + CHUNK;
        *c = (struct ring_chunk){.slot = s, .at = at, .end = end};
        wait_for_room(r, c);
    }
    queue_waiting(r);
    io_uring_submit(&r->ring); /* on failure the requests stay queued for the next try */
}

static void chunk_ended(struct ring_thread *r, struct ring_chunk *c, int result) {
    struct ring_slot *s = c->slot;
    r->under_way--;
    if (result == -EINTR || result == -EAGAIN) {
        wait_for_room(r, c);
        return;
    }
    if (result > 0 && (size_t)result < c->end - c->at) {
        c->at += (size_t)result;
        wait_for_room(r, c);
        return;
    }
    if (result <= 0 && !s->error)
        s->error = result ? -result : s->piece.direction == DISK_READ ? EIO : ENOSPC;
    if (--s->left)
        return;
    disk_end(r->d, &s->piece, s->buffer, s->error);
    s->next = r->free_slots;
    r->free_slots = s;
    r->busy--;
}

static void reap(struct ring_thread *r) {
    struct io_uring_cqe *e;
    while (io_uring_peek_cqe(&r->ring, &e) == 0) {
        struct ring_chunk *c = io_uring_cqe_get_data(e);
        int result = e->res;
        io_uring_cqe_seen(&r->ring, e);
        chunk_ended(r, c, result);
    }
}

void *disk_ring_run(void *arg) {
    struct ring_thread r;
    struct disk_piece p;
    if (!ring_open(&r, arg)) {
        ring_close(&r);
        return disk_blocking_run(arg);
    }
    for (;;) {
        while (r.free_slots && disk_next(r.d, !r.busy, &p))
            start(&r, &p);
        if (!r.busy)
            break;
        queue_waiting(&r);
        int n = io_uring_submit_and_wait(&r.ring, r.under_way ? 1 : 0);
        if (n < 0 && n != -EINTR) { /* out of kernel memory, say */
            const struct timespec while_busy = {.tv_nsec = 1000000};
            nanosleep(&while_busy, NULL);
        }
        reap(&r);
    }
    ring_close(&r);
    return NULL;
}
