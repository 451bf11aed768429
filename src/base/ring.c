/* ring.c: see ring.h.
 * Invariant that bites: a short transfer is no error; the rest is asked for again. */
#include "base/ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, RING_ENTRIES = 64 };

/* One request: a part of a transfer that has not been moved yet. */
struct chunk {
    struct transfer *transfer;
    size_t at, end;
    struct chunk *next; /* free ones, or those to be asked for again */
};

struct ring {
    struct io_uring ring;
    struct chunk chunk[RING_ENTRIES], *idle, *again;
    struct transfer *waiting, **waiting_end; /* not cut to the end */
    struct transfer *ended, **ended_end;
    uint32_t busy;      /* transfers */
    uint32_t under_way; /* requests the kernel has */
};

bool ring_works(void) {
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

struct ring *ring_open(void) {
    struct ring *r = calloc(1, sizeof *r);
    if (!r || io_uring_queue_init(RING_ENTRIES, &r->ring, 0) != 0) {
        free(r);
        return NULL;
    }
    r->waiting_end = &r->waiting;
    r->ended_end = &r->ended;
    for (uint32_t i = 0; i < RING_ENTRIES; i++) {
        r->chunk[i].next = r->idle;
        r->idle = &r->chunk[i];
    }
    return r;
}

void ring_close(struct ring *r) {
    if (!r)
        return;
    io_uring_queue_exit(&r->ring);
    free(r);
}

uint32_t ring_busy(const struct ring *r) {
    return r->busy;
}

/* The next request: one that came back short, else a new piece of the first transfer. */
static struct chunk *next_chunk(struct ring *r) {
    struct chunk *c = r->again;
    if (c) {
        r->again = c->next;
        return c;
    }
    struct transfer *t = r->waiting;
    if (!t || !(c = r->idle))
        return NULL;
    r->idle = c->next;
    size_t end = t->bytes - t->cut < CHUNK ? t->bytes : t->cut + CHUNK;
    *c = (struct chunk){.transfer = t, .at = t->cut, .end = end};
    t->cut = end;
    t->left++;
    if (t->cut == t->bytes) {
        r->waiting = t->next;
        if (!r->waiting)
            r->waiting_end = &r->waiting;
    }
    return c;
}

static void queue_requests(struct ring *r) {
    while (io_uring_sq_space_left(&r->ring) > 0) {
        struct chunk *c = next_chunk(r);
        if (!c)
            return;
        struct io_uring_sqe *e = io_uring_get_sqe(&r->ring);
        const struct transfer *t = c->transfer;
        unsigned char *at = (unsigned char *)t->buffer + c->at;
        unsigned bytes = (unsigned)(c->end - c->at);
        if (t->write)
            io_uring_prep_write(e, t->fd, at, bytes, t->offset + c->at);
        else
            io_uring_prep_read(e, t->fd, at, bytes, t->offset + c->at);
        io_uring_sqe_set_data(e, c);
        r->under_way++;
    }
}

void ring_start(struct ring *r, struct transfer *t) {
    t->error = 0;
    t->cut = 0;
    t->left = 0;
    t->next = NULL;
    *r->waiting_end = t;
    r->waiting_end = &t->next;
    r->busy++;
    queue_requests(r);
    io_uring_submit(&r->ring); /* on failure the requests stay queued for the next try */
}

static void end_transfer(struct ring *r, struct transfer *t) {
    t->next = NULL;
    *r->ended_end = t;
    r->ended_end = &t->next;
}

static void chunk_ended(struct ring *r, struct chunk *c, int result) {
    struct transfer *t = c->transfer;
    r->under_way--;
    if (result > 0)
        c->at += (size_t)result;
    bool whole = c->at >= c->end || c->at >= t->need;
    if (!whole && (result > 0 || result == -EINTR || result == -EAGAIN)) {
        c->next = r->again;
        r->again = c;
        return;
    }
    if (!whole && !t->error)
        t->error = result ? -result : TRANSFER_SHORT;
    c->next = r->idle;
    r->idle = c;
    if (--t->left == 0 && t->cut == t->bytes)
        end_transfer(r, t);
}

static void reap(struct ring *r) {
    struct io_uring_cqe *e;
    while (io_uring_peek_cqe(&r->ring, &e) == 0) {
        struct chunk *c = io_uring_cqe_get_data(e);
        int result = e->res;
        io_uring_cqe_seen(&r->ring, e);
        chunk_ended(r, c, result);
    }
}

struct transfer *ring_ended(struct ring *r) {
    struct transfer *t = r->ended;
    if (!t)
        return NULL;
    r->ended = t->next;
    if (!r->ended)
        r->ended_end = &r->ended;
    r->busy--;
    return t;
}

struct transfer *ring_wait(struct ring *r) {
    if (r->ended)
        return ring_ended(r);
    queue_requests(r);
    int n = io_uring_submit_and_wait(&r->ring, r->under_way ? 1 : 0);
    if (n < 0 && n != -EINTR) { /* out of kernel memory, say */
        const struct timespec while_busy = {.tv_nsec = 1000000};
        nanosleep(&while_busy, NULL);
    }
    reap(r);
    return ring_ended(r);
}

int transfer_run(struct transfer *t) {
    t->error = 0;
    for (size_t at = 0; at < t->need && !t->error;) {
        unsigned char *buffer = (unsigned char *)t->buffer + at;
        off_t offset = (off_t)(t->offset + at);
        ssize_t n = t->write ? pwrite(t->fd, buffer, t->bytes - at, offset)
                             : pread(t->fd, buffer, t->bytes - at, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            t->error = n < 0 ? errno : TRANSFER_SHORT;
        else
            at += (size_t)n;
    }
    return t->error;
}

void *io_buffer(size_t bytes) {
    const size_t huge = (size_t)2 << 20;
    void *p = NULL;
    if (posix_memalign(&p, bytes < huge ? IO_ALIGN : huge, bytes) != 0)
        return NULL;
    if (bytes >= huge) /* the kernel pins whole pages for each transfer: fewer are cheaper */
        madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}
