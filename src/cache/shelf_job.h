/* shelf_job.h: one move on its way between device pools and a tier with a shelf, and the queue
 * between the engine's thread and the tier's own. Inside of the cache room.
 *
 * All that concerns the shelf happens on the engine's thread, when a job is opened and when it is
 * closed; between the two the other threads see parts alone, which name places and ids. */
#ifndef WEIR_CACHE_SHELF_JOB_H
#define WEIR_CACHE_SHELF_JOB_H

#include "cache/shelf.h"

#include <pthread.h>

/* One page or state of a move. */
struct shelf_part {
    struct cache_key key;
    enum shelf_kind kind;
    uint32_t place, position;
    int32_t id;                  /* device page or slot */
    bool moving;                 /* false: the tier has it already, nothing to store */
    enum tier_result outcome;    /* set by who moves the bytes */
    uint64_t sum[2];             /* of the bytes: set when stored, expected when loaded */
    struct shelf_record *record; /* the engine's thread alone */

    /* disk_io.c's own. */
    uint64_t use;
    uint64_t (*sums)[2]; /* of its pieces */
    uint32_t left;       /* pieces not moved yet */
    int error;
};

struct shelf_place {
    enum shelf_kind kind;
    uint32_t place;
};

struct shelf_job {
    enum tier_task task;
    struct tier_move *move; /* the engine's thread alone */
    struct shelf_job *next;
    struct shelf_part *parts; /* pages in order, then the state */
    uint32_t n_parts;
    struct shelf_place *give_back; /* to be done before anything is written */
    uint32_t n_give_back;
    uint64_t bytes; /* to be moved */
    uint64_t grows; /* stores: bytes that they add to those behind places; UINT64_MAX: they fill
                       the budget */
    double began;

    /* disk_io.c's own. */
    uint64_t (*sums)[2];
    uint32_t next_part, next_piece, left;
    int error;
    bool no_space; /* failed for want of it: its places may have no bytes behind them */
};

/* Two queues: jobs to do and what has been done. */
struct shelf_lane {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the tier's threads */
    struct shelf_job *todo, **todo_end;
    struct shelf_job *done, **done_end;
    struct tier_move *ended; /* moves that needed no job; the engine's thread alone */
    struct tier_move **ended_end;
    bool closing;
    uint32_t open;    /* jobs not yet collected; likewise */
    uint64_t damaged; /* records dropped because they were wrong; likewise */
    uint64_t lost;    /* or unreadable; likewise */
    bool no_space;    /* a job failed for want of it; the owner clears it; likewise */
    uint64_t began;   /* resets and new beginnings, counted by the owner; likewise */
    uint64_t most_storing_bytes;
    uint64_t storing_bytes; /* of stores not yet collected; likewise */
    void (*notify)(void *arg);
    void *notify_arg;
};
/* Stores wait in device memory that somebody else may need: when more than this waits, or would,
 * the next is declined. A single larger one is taken when nothing else waits. */
void lane_open(struct shelf_lane *l, const struct tier_setup *setup, uint64_t most_storing_bytes);
void lane_stop(struct shelf_lane *l); /* the threads end once all jobs are done */
/* Frees the queues after the threads have ended; the shelf is not told. */
void lane_close(struct shelf_lane *l);
void lane_give(struct shelf_lane *l, struct shelf_job *job);
void shelf_job_free(struct shelf_job *job);
/* The next job, waiting for it; NULL: the tier is being closed and all jobs have been taken. */
struct shelf_job *lane_take(struct shelf_lane *l);
void lane_done(struct shelf_lane *l, struct shelf_job *job);
/* The move ends here and now. */
void lane_end(struct shelf_lane *l, struct tier_move *m, enum tier_result result);
/* Opens the move's job and queues it, or ends it at once. */
void lane_submit(struct shelf_lane *l, struct shelf *s, struct tier_move *m);
/* Closes what is done; returns its moves, linked, and those that ended without a job. */
struct tier_move *lane_collect(struct shelf_lane *l, struct shelf *s);

/* A thread that takes no signals: they are the program's, and a write past a limit of file size
 * would raise one. False: no thread could be had. */
bool lane_thread(pthread_t *out, void *(*run)(void *), void *arg);

#endif
