/* disk_io.h: the threads of the disk tier. They cut jobs into pieces, loads first, and move several
 * pieces at a time: through io_uring, or each thread one with pread and pwrite. Inside of the cache
 * room. */
#ifndef WEIR_CACHE_DISK_IO_H
#define WEIR_CACHE_DISK_IO_H

#include "base/ring.h"
#include "cache/disk_file.h"
#include "cache/shelf_job.h"

#include <stdatomic.h>

enum disk_way { DISK_AUTO, DISK_RING, DISK_THREADS };
enum disk_direction { DISK_READ, DISK_WRITE, DISK_DIRECTIONS };
/* More room on a full disk is asked for as rarely as this: each attempt in vain costs a store. */
enum { DISK_MAX_THREADS = 8, DISK_GROW_PAUSES = 6 };

/* A direction that does not work at present. It is over only when as many bytes as failed have been
 * moved since, and none has failed for one pause: a record that is small enough for what a full
 * disk has left, or that goes to a place there was, says nothing about the next one. */
struct disk_trouble {
    bool on, space;    /* space: there was no room for more */
    uint32_t failures; /* one after another */
    double until;      /* no new attempt before (clock_seconds) */
    double failed_at;  /* the last time */
    uint64_t owed;     /* bytes to be moved until it is over; space: by which the files must grow */
};

/* The engine's wish to have something written that is no move. */
struct disk_note {
    enum shelf_kind kind;
    uint32_t place;
    uint64_t use;
};
struct disk_notes {
    struct disk_notes *next;
    uint64_t floor; /* 0: as it is */
    uint32_t n;
    struct disk_note note[];
};

struct disk_mover {
    struct disk_files *files;
    const struct cache_store *store;
    const struct record_shape *shape;
    struct shelf_lane *lane;
    enum disk_way way;
    double pause;
    size_t buffer_bytes;
    uint32_t buffers;            /* of each thread */
    _Atomic uint64_t generation; /* the last one given out */

    /* Under the lane's lock. */
    struct shelf_job *ready[DISK_DIRECTIONS], **ready_end[DISK_DIRECTIONS];
    struct disk_trouble trouble[DISK_DIRECTIONS];
    struct disk_notes *notes;
    bool gone; /* the files were deleted */
    enum disk_reopen { DISK_STAYS, DISK_REOPEN, DISK_REOPENED, DISK_NOT_REOPENED } reopen;

    pthread_t thread[DISK_MAX_THREADS];
    uint32_t n_threads;
};

/* files, store, shape, lane, way, pause and generation are set. Chooses the way and starts the
 * threads. False: not even one could be had. */
bool disk_mover_open(struct disk_mover *d);
/* Lets the threads finish what was given to the lane, and ends them. */
void disk_mover_close(struct disk_mover *d);
/* Takes the notes; they are written when there is nothing else to do. */
void disk_mover_note(struct disk_mover *d, struct disk_notes *notes);
bool disk_mover_noting(struct disk_mover *d); /* notes wait to be written */
/* Have the files been deleted, and may making new ones be tried now? Then it is tried while the
 * engine gives no jobs, and notify is called. */
bool disk_mover_gone(struct disk_mover *d);
void disk_mover_reopen(struct disk_mover *d);
/* Whether it has ended, once; *ok: the new files hold nothing. */
bool disk_mover_reopened(struct disk_mover *d, bool *ok);
/* May a job of this direction be tried now? */
bool disk_mover_may(struct disk_mover *d, enum disk_direction which);
/* Did the last one that ended work? */
bool disk_mover_works(struct disk_mover *d, enum disk_direction which);

/* For the two ways: a piece of a part, to be moved between a buffer and [offset, offset + span) of
 * a file. */
struct disk_piece {
    struct shelf_job *job;
    struct shelf_part *part;
    uint32_t index;
    enum disk_direction direction;
    bool skip; /* the job has failed already: only to be ended */
    int fd;
    uint64_t offset;
    size_t span;
};
/* False: nothing to do now, or (wait) the tier is being closed. */
bool disk_next(struct disk_mover *d, bool wait, struct disk_piece *out);
/* Fills the buffer of a piece to be written, DISK_ALIGN aligned and buffer_bytes long. */
void disk_begin(struct disk_mover *d, const struct disk_piece *p, unsigned char *buffer);
/* The transfer has ended with 0 or an errno. */
void disk_end(struct disk_mover *d, const struct disk_piece *p, unsigned char *buffer, int error);
/* The transfer of a piece, and the errno it ended with. */
struct transfer disk_transfer(const struct disk_piece *p, void *buffer);
int disk_error(const struct transfer *t);

void *disk_blocking_run(void *mover);
/* disk_ring.c */
void *disk_ring_run(void *mover); /* falls back to blocking where it gets no ring or memory */

#endif
